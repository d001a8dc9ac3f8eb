//! What the generator must know of the network before it can make frames of its own: addresses, and the next hop's hardware
//! address, asked of the kernel through iproute2.

use crate::load::Ends;
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use port::Mac;
use serde_json::Value;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::process::Command;
use std::time::Duration;

/// How often the kernel is asked whether the next hop has answered.
const LOOKS: u32 = 20;

/// Who talks to whom when this host asks `server` through `interface`. `server_mac` spares the question for the next hop's
/// address, for servers that take every frame and answer no ARP.
pub(crate) fn ends(interface: &str, server: SocketAddr, server_mac: Option<Mac>) -> Result<Ends> {
    let client_mac = link_mac(&ip(&["link", "show", "dev", interface])?)?;
    let unspecified: IpAddr =
        if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((unspecified, 0)).context("cannot open a UDP socket")?;
    socket.connect(server).with_context(|| format!("no route to {server}"))?;
    let client = socket.local_addr()?.ip();
    let server_mac = next_hop_mac(interface, server, server_mac)?;
    Ok(Ends { client_mac, server_mac, client, server })
}

/// The hardware address of the next hop to `server` through `interface`: `told`, or what the kernel finds.
pub(crate) fn next_hop_mac(interface: &str, server: SocketAddr, told: Option<Mac>) -> Result<Mac> {
    let hop = next_hop(&ip(&["route", "get", &server.ip().to_string()])?, interface, server.ip())?;
    told.map_or_else(|| neighbour(interface, hop), Ok)
}

/// Fails when the kernel has one of these addresses: it would answer for it beside us.
pub(crate) fn ensure_free(addresses: &[IpAddr]) -> Result<()> {
    let links = ip(&["addr", "show"])?;
    let infos = links.as_array().into_iter().flatten().filter_map(|link| link["addr_info"].as_array()).flatten();
    let locals: Vec<IpAddr> = infos.filter_map(|info| info["local"].as_str()?.parse().ok()).collect();
    match addresses.iter().find(|address| locals.contains(address)) {
        Some(taken) => bail!("the kernel has {taken}: give an address that nobody has"),
        None => Ok(()),
    }
}

fn neighbour(interface: &str, hop: IpAddr) -> Result<Mac> {
    let unspecified: IpAddr = if hop.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((unspecified, 0)).context("cannot open a UDP socket")?;
    for _ in 0..LOOKS {
        let found = ip(&["neigh", "show", "to", &hop.to_string(), "dev", interface])?;
        if let Some(mac) = found[0]["lladdr"].as_str() {
            return parse_mac(mac);
        }
        // anything sent there makes the kernel ask; discard (RFC 863) is the port that means nothing
        let _ = socket.send_to(&[0], (hop, 9));
        std::thread::sleep(Duration::from_millis(100));
    }
    bail!("{hop} does not answer on {interface}; is the server up? --server-mac sets its hardware address")
}

fn next_hop(route: &Value, interface: &str, server: IpAddr) -> Result<IpAddr> {
    let device = route[0]["dev"].as_str().unwrap_or_default();
    ensure!(device == interface, "the route to {server} leaves by '{device}', not by '{interface}'");
    match route[0]["gateway"].as_str() {
        Some(gateway) => gateway.parse().with_context(|| format!("the gateway {gateway}")),
        None => Ok(server),
    }
}

fn link_mac(link: &Value) -> Result<Mac> {
    parse_mac(link[0]["address"].as_str().unwrap_or_default())
}

/// `02:00:00:00:00:01`
pub(crate) fn parse_mac(text: &str) -> Result<Mac> {
    let bytes: Option<Vec<u8>> = text.split(':').map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
    bytes.and_then(|bytes| bytes.try_into().ok()).ok_or_else(|| anyhow!("'{text}' is no hardware address"))
}

fn ip(args: &[&str]) -> Result<Value> {
    let done = Command::new("ip").arg("-j").args(args).output().context("cannot run ip (package iproute2)")?;
    if !done.status.success() {
        bail!("ip {}: {}", args.join(" "), String::from_utf8_lossy(&done.stderr).trim());
    }
    // no match is an empty answer, not an empty list
    if done.stdout.is_empty() {
        return Ok(Value::Null);
    }
    serde_json::from_slice(&done.stdout).with_context(|| format!("what ip {} printed", args.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn hardware_addresses() {
        assert_eq!(parse_mac("02:00:5e:10:00:ff").unwrap(), [2, 0, 0x5e, 0x10, 0, 255]);
        for wrong in ["", "02:00:5e:10:00", "02:00:5e:10:00:ff:00", "02:00:5e:10:00:gg"] {
            assert!(parse_mac(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_next_hop_is_the_gateway_or_the_server_itself() {
        let server: IpAddr = "192.0.2.1".parse().unwrap();
        let route = json!([{"dst": "192.0.2.1", "gateway": "198.51.100.1", "dev": "e0"}]);
        assert_eq!(next_hop(&route, "e0", server).unwrap().to_string(), "198.51.100.1");
        assert_eq!(next_hop(&json!([{"dst": "192.0.2.1", "dev": "e0"}]), "e0", server).unwrap(), server);
        let error = next_hop(&route, "e1", server).unwrap_err().to_string();
        assert_eq!(error, "the route to 192.0.2.1 leaves by 'e0', not by 'e1'");
    }

    #[test]
    fn an_unknown_interface_is_one_line() {
        let error = ends("no-such-if", "192.0.2.1:53".parse().unwrap(), None).unwrap_err();
        let text = format!("{error:#}");
        assert!(text.contains("no-such-if") && !text.contains('\n'), "{text}");
    }
}
