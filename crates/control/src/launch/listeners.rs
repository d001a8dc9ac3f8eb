//! Who listens where: which engine takes what.

use crate::config::Settings;
use crate::service::{Division, Kind};
use crate::words::Tier;
use app::Listener;
use bpf::steering::{TCP, UDP};
use sockets::{Endpoint, Transport};
use stack::{TcpListener, UdpListener};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

/// A listener's number, its address and whose it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Listening {
    pub(super) listener: Listener,
    pub(super) address: SocketAddr,
    pub(super) kind: Kind,
}

/// The listeners that can be had, those of DNS first: those that nobody asked for may be left out.
pub(super) fn listeners(settings: &Settings) -> Vec<Listening> {
    let has_ipv6 = Path::new("/proc/net/if_inet6").exists();
    let wanted = |address: &SocketAddr, by_default: bool| has_ipv6 || address.is_ipv4() || !by_default;
    let dns = settings.dns.iter().flat_map(|dns| dns.listen.iter().map(|at| (*at, dns.listen_by_default, Kind::Dns)));
    let web = settings.web.iter().flat_map(|web| web.listen.iter().map(|at| (*at, web.listen_by_default, Kind::Web)));
    let echo =
        settings.echo.iter().flat_map(|echo| echo.listen.iter().map(|at| (*at, echo.listen_by_default, Kind::Echo)));
    let kv = settings.kv.iter().flat_map(|kv| kv.listen.iter().map(|at| (*at, kv.listen_by_default, Kind::Kv)));
    let apps = settings.apps.iter().flat_map(|app| app.listen.iter().map(|at| (*at, false, Kind::App)));
    let numbered = dns.chain(web).chain(kv).chain(echo).chain(apps).enumerate();
    let possible = numbered.filter(|(_, (address, by_default, _))| wanted(address, *by_default));
    possible.map(|(n, (address, _, kind))| Listening { listener: Listener(n as u16), address, kind }).collect()
}

pub(super) fn division(settings: &Settings) -> Division {
    let web_from = settings.dns.as_ref().map_or(0, |dns| dns.listen.len() as u16);
    let kv_from = web_from + settings.web.as_ref().map_or(0, |web| web.listen.len() as u16);
    let echo_from = kv_from + settings.kv.as_ref().map_or(0, |kv| kv.listen.len() as u16);
    let app_from = echo_from + settings.echo.as_ref().map_or(0, |echo| echo.listen.len() as u16);
    Division { web_from, kv_from, echo_from, app_from }
}

/// Where the steering program takes connections away from the kernel.
pub(super) fn taken_connections(settings: &Settings, listeners: &[Listening]) -> Vec<SocketAddr> {
    let takes = |at: &&Listening| at.taken(settings).any(|taken| taken.protocol == TCP);
    listeners.iter().filter(takes).map(|at| at.address).collect()
}

impl Listening {
    /// Whether `own` is an address that it listens on.
    fn is_at(&self, own: IpAddr) -> bool {
        self.address.ip() == own || (self.address.ip().is_unspecified() && self.address.is_ipv4() == own.is_ipv4())
    }

    /// What the steering program takes for it: datagrams of DNS and of echo, connections of the web and of the key-value store, and
    /// datagrams of that if it has them, both of applications. The connections of DNS at an address that the kernel has stay with the kernel.
    pub(super) fn taken(&self, settings: &Settings) -> impl Iterator<Item = port_xdp::Listener> + use<> {
        let connections = matches!(self.kind, Kind::Web | Kind::Kv | Kind::App).then_some(TCP);
        let protocols = connections.into_iter().chain(self.has_datagrams(settings).then_some(UDP));
        let (address, port) = (self.address.ip(), self.address.port());
        protocols.map(move |protocol| port_xdp::Listener { address, protocol, port })
    }

    /// Whether its datagrams are for our own stack.
    fn has_datagrams(&self, settings: &Settings) -> bool {
        match self.kind {
            Kind::Dns => settings.dns.as_ref().is_some_and(|dns| dns.tier != Tier::Sockets),
            Kind::Echo | Kind::App => true,
            Kind::Web => false,
            Kind::Kv => settings.kv.as_ref().is_some_and(|kv| kv.udp),
        }
    }

    /// Where our own stack takes datagrams.
    pub(super) fn datagrams(&self, settings: &Settings) -> Option<UdpListener> {
        let local = self.address;
        self.has_datagrams(settings).then_some(UdpListener { listener: self.listener, local })
    }

    /// Where our own stack takes connections: the web's and the key-value store's anywhere, those of DNS at own addresses.
    pub(super) fn streams(&self, settings: &Settings) -> Option<TcpListener> {
        let ours = match self.kind {
            Kind::Web | Kind::Kv | Kind::App => true,
            Kind::Dns => settings.own.iter().any(|own| self.is_at(own.0.address)),
            Kind::Echo => false,
        };
        let window_bytes = self.window_bytes() as u32;
        ours.then_some(TcpListener { listener: self.listener, local: self.address, window_bytes })
    }

    fn window_bytes(&self) -> usize {
        match self.kind {
            Kind::Web => ::web::WINDOW_BYTES,
            Kind::Kv => ::kv::WINDOW_BYTES,
            Kind::App => guard::layout::WINDOW_BYTES,
            Kind::Dns | Kind::Echo => dns::stream::WINDOW_BYTES,
        }
    }

    /// Its kernel sockets: DNS over both transports, the web over TCP, echo over UDP, the key-value store over TCP and, if
    /// that is asked for, UDP.
    pub(super) fn endpoints(&self, settings: &Settings) -> impl Iterator<Item = Endpoint> + use<> {
        let Listening { listener, address, kind } = *self;
        let window_bytes = Some(self.window_bytes());
        let backlog = settings.dns.as_ref().filter(|_| kind == Kind::Dns).map(|dns| dns.tcp_backlog as i32);
        let transports: &[Transport] = match kind {
            Kind::Kv if self.has_datagrams(settings) => &[Transport::Udp, Transport::Tcp],
            Kind::Kv => &[Transport::Tcp],
            Kind::Dns => &[Transport::Udp, Transport::Tcp],
            Kind::Web => &[Transport::Tcp],
            Kind::Echo => &[Transport::Udp],
            Kind::App => &[Transport::Udp, Transport::Tcp],
        };
        transports.iter().map(move |&transport| Endpoint { listener, address, transport, window_bytes, backlog })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::tests::{DNS, WEB, settings};

    #[test]
    fn listeners_are_divided_and_have_their_services_transports_and_backlogs() {
        let settings = settings(&format!(
            "[dataplane]\nlisten = [\"127.0.0.1:53\"]\n{DNS}{WEB}listen = [\"127.0.0.1:80\"]\n[echo]\nlisten = [\"127.0.0.1:7\"]\n"
        ));
        let listeners = listeners(&settings);
        let found: Vec<_> = listeners
            .iter()
            .flat_map(|at| at.endpoints(&settings))
            .map(|it| (it.listener.0, it.address.port(), it.transport, it.backlog))
            .collect();
        let dns = |transport| (0, 53, transport, Some(9));
        let others = [(1, 80, Transport::Tcp, None), (2, 7, Transport::Udp, None)];
        assert_eq!(found, [&[dns(Transport::Udp), dns(Transport::Tcp)], &others[..]].concat());
        assert_eq!(division(&settings), Division { web_from: 1, kv_from: 2, echo_from: 2, app_from: 3 });
        let taken: Vec<_> = taken(&settings);
        assert_eq!(taken, [(53, UDP), (80, TCP), (7, UDP)]);
        let connections: Vec<_> = taken_connections(&settings, &listeners).iter().map(SocketAddr::port).collect();
        assert_eq!(connections, [80], "those of DNS stay with the kernel");
    }

    fn taken(settings: &Settings) -> Vec<(u16, u8)> {
        let taken = listeners(settings).into_iter().flat_map(|at| at.taken(settings));
        taken.map(|at| (at.port, at.protocol)).collect()
    }

    #[test]
    fn datagrams_of_the_key_value_store_are_taken_when_it_has_them() {
        for (udp, protocols) in [("", &[TCP][..]), ("udp = true\n", &[TCP, UDP])] {
            let settings = settings(&format!("[kv]\nlisten = [\"192.0.2.1:11211\"]\n{udp}"));
            let expected: Vec<_> = protocols.iter().map(|protocol| (11_211, *protocol)).collect();
            assert_eq!(taken(&settings), expected);
            let ours = listeners(&settings).iter().filter_map(|at| at.datagrams(&settings)).count();
            assert_eq!(ours, protocols.len() - 1);
        }
    }

    #[test]
    fn our_own_tcp_has_the_web_everywhere_and_dns_where_the_kernel_has_no_address() {
        let ours = |own: &str, dns: &str| -> Vec<u16> {
            let text = format!(
                "[dataplane]\ninterface = [\"eth0\"]\nown = [{own}]\nlisten = [{dns}]\n{DNS}{WEB}listen = [\"192.0.2.1:80\"]\n"
            );
            let settings = settings(&text);
            let listeners = listeners(&settings);
            listeners.iter().filter_map(|at| at.streams(&settings)).map(|it| it.local.port()).collect()
        };
        assert_eq!(ours("", "\"192.0.2.1:53\""), [80]);
        assert_eq!(ours("\"192.0.2.2/24\"", "\"192.0.2.1:53\", \"192.0.2.2:53\""), [53, 80]);
        assert_eq!(ours("\"192.0.2.2/24\"", "\"[2001:db8::1]:53\""), [80]);
        assert_eq!(ours("\"192.0.2.2/24\"", "\"0.0.0.0:53\""), [53, 80]);
    }
}
