//! `simoom-bench messages`: messages that go to a server and come back, over our own stack or plain kernel sockets.

use super::http::{SECRET, since_boot};
use super::{Tool, seconds, stop_flag};
use crate::http::{Peer, Sources};
use crate::interface;
use crate::messages::kernel::{self, Waits};
use crate::messages::{End, HEAD_BYTES, Load, MOST_BYTES, Outcome, Plan};
use crate::xdp;
use anyhow::{Context as _, Result, ensure};
use port::Mac;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::time::Duration;

/// Options of `simoom-bench messages`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The server is `simoom-bench answer`. With --interface connections are our own stack's, over AF_XDP, from addresses that the kernel does not
have, as with `simoom-bench http`: all of them stand before the first message, each has one message under way at most, all together
--under-way, in turn. With --kernel it is one connection of the kernel's. Lengths are measured one after the other on the same
connections. Every message's head is compared, and all of one in 16.
Exit status: 0; 1 when an octet was wrong, a connection failed, or the load could not be run; 2 for a wrong command line.

  simoom-bench messages --interface vc --address 198.18.0.3 --server 198.18.0.1:7 --connections 64 --bytes 64
  simoom-bench messages --interface vc --address 198.18.0.3-198.18.0.34 --server 198.18.0.1:7 --connections 256 --trips 1
  simoom-bench messages --kernel blocking --server 198.18.0.1:7 --bytes 64,1024,65536 --json")]
pub(crate) struct Options {
    /// The interface to send from
    #[arg(long, value_name = "IF", requires = "address", conflicts_with = "kernel")]
    interface: Option<String>,
    /// Addresses of ours that the kernel does not have
    #[arg(long, value_name = "IP[-IP]", requires = "interface")]
    address: Option<Sources>,
    /// One connection of the kernel's, and how it waits
    #[arg(long, value_name = "WORD", required_unless_present = "interface", conflicts_with_all = ["connections", "under_way", "trips"])]
    kernel: Option<Waits>,
    /// The server
    #[arg(long, value_name = "ADDR:PORT")]
    server: SocketAddr,
    /// Octets of a message, again for more
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "64", value_parser = message_bytes)]
    bytes: Vec<u32>,
    /// Connections
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    connections: u32,
    /// Messages under way at one time [default: one on each connection]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16_384))]
    under_way: Option<u32>,
    /// Round trips of a connection, which is ended then and followed by another; without it connections stay
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    trips: Option<u64>,
    /// How it is ended
    #[arg(long, value_name = "WORD", default_value = "rst")]
    end: End,
    /// How long each length is measured
    #[arg(long, value_name = "S", default_value = "3", value_parser = seconds)]
    seconds: f64,
    /// How long is asked before that, with answers that do not count
    #[arg(long, value_name = "S", default_value = "0.1", value_parser = seconds)]
    warm_up: f64,
    /// Bytes that the server may send on a connection before they are read
    #[arg(long, value_name = "BYTES", default_value_t = 262_144, value_parser = clap::value_parser!(u32).range(1024..=1 << 30))]
    window: u32,
    /// The next hop's hardware address; else the kernel is asked
    #[arg(long, value_name = "MAC", value_parser = |text: &str| interface::parse_mac(text).map_err(|error| error.to_string()))]
    server_mac: Option<Mac>,
    #[command(flatten)]
    tool: Tool,
}

/// Octets of a message; `k` and `M` are 1024 and its square.
pub(crate) fn message_bytes(text: &str) -> Result<u32, String> {
    let (digits, unit) = match text.strip_suffix(['k', 'M']) {
        Some(digits) => (digits, if text.ends_with('k') { 1 << 10 } else { 1 << 20 }),
        None => (text, 1),
    };
    let bytes = digits.parse::<usize>().ok().and_then(|count| count.checked_mul(unit));
    bytes
        .filter(|bytes| (HEAD_BYTES..=MOST_BYTES).contains(bytes))
        .map(|bytes| bytes as u32)
        .ok_or_else(|| format!("octets of a message, {HEAD_BYTES} to {MOST_BYTES}, such as 64 or 16k"))
}

/// What is told as JSON.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Results {
    /// a run for each length
    pub(crate) runs: Vec<Outcome>,
}

/// Runs it.
pub(crate) fn run(options: &Options) -> Result<()> {
    options.tool.pin()?;
    let plan = |bytes: &u32| Plan {
        bytes: *bytes,
        under_way: options.under_way.unwrap_or(options.connections),
        trips: options.trips,
        end: options.end,
        span: Duration::from_secs_f64(options.seconds),
        warm_up: Duration::from_secs_f64(options.warm_up),
        wait: options.tool.wait,
    };
    let plans: Vec<Plan> = options.bytes.iter().map(plan).collect();
    let runs = match (options.kernel, &options.interface, &options.address) {
        (Some(waits), ..) => kernel::ask(options.server, waits, &plans, stop_flag()?.as_ref())?,
        (None, Some(interface), Some(sources)) => over_af_xdp(options, interface, sources, &plans)?,
        _ => anyhow::bail!("--interface with --address, or --kernel, says who asks"),
    };
    if options.tool.json {
        println!("{}", serde_json::to_string(&Results { runs: runs.clone() })?);
    } else {
        runs.iter().for_each(|run| println!("{run}"));
    }
    let (failed, answered) = (runs.iter().map(Outcome::failed).sum::<u64>(), runs.iter().all(|run| run.answered > 0));
    let reasons: Vec<_> = runs.iter().flat_map(|run| &run.failures).collect();
    ensure!(failed == 0, "{failed} messages or connections failed: {reasons:?}");
    ensure!(answered, "nothing came back");
    Ok(())
}

fn over_af_xdp(options: &Options, interface: &str, sources: &Sources, plans: &[Plan]) -> Result<Vec<Outcome>> {
    let (server, addresses) = (options.server, sources.addresses());
    let one_family = addresses.iter().all(|address| address.is_ipv4() == server.is_ipv4());
    ensure!(one_family, "the addresses and the server, {}, must be of one family", server.ip());
    let hop = interface::next_hop_mac(interface, server, options.server_mac)?;
    interface::ensure_free(addresses)?;
    let opened = xdp::open_own(interface, options.tool.mode, addresses, None)
        .with_context(|| format!("cannot use {interface}"))?;
    eprintln!("{}", opened.what);
    let stop = stop_flag()?;
    let mut sources = sources.clone();
    sources.skip(since_boot().as_nanos());
    let peer = Peer { server, hop, window_bytes: options.window };
    let first = *plans.first().context("no length of a message")?;
    let mut load = Load::new(opened.port, (options.connections, first), peer, sources, SECRET);
    let tick = &mut since_boot;
    load.connect(first.wait, &stop, tick)?;
    eprintln!("{} connections stand", options.connections);
    let runs = plans.iter().map(|plan| load.run(plan, &stop, tick)).collect();
    load.close(first.wait, tick);
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use super::message_bytes;

    #[test]
    fn lengths_have_units_and_bounds() {
        assert_eq!(message_bytes("16"), Ok(16));
        assert_eq!(message_bytes("64k"), Ok(65_536));
        assert_eq!(message_bytes("4M"), Ok(4 << 20));
        for wrong in ["", "k", "15", "-1", "5M", "64K", "99999999999999999999k"] {
            assert!(message_bytes(wrong).is_err(), "{wrong}");
        }
    }
}
