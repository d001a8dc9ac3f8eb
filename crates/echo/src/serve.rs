//! The service.

use crate::stats::{DropReason, Stats};
use app::{Datagram, Listener, Service};
use base::Instant;
use std::sync::Arc;

/// Ports below this one belong to services (RFC 6335 section 6): whoever asks from there is a server, or its address was forged.
const FIRST_CLIENT_PORT: u16 = 1024;

/// What the service is told.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// the ports it listens on: what comes from one of them may come from another echo server
    pub ports: Vec<u16>,
    /// whether every source port is answered, also those of servers
    pub any_source_port: bool,
}

impl Options {
    /// Why a datagram from this port is not answered.
    #[inline]
    fn refuses(&self, port: u16) -> Option<DropReason> {
        if self.any_source_port {
            None
        } else if self.ports.contains(&port) {
            Some(DropReason::OwnPort)
        } else if port < FIRST_CLIENT_PORT {
            Some(DropReason::LowPort)
        } else {
            None
        }
    }
}

/// One thread's echo service.
#[derive(Debug)]
pub struct Server {
    options: Options,
    stats: Arc<Stats>,
}

impl Server {
    /// A server that counts in `stats`.
    pub fn with_stats(options: Options, stats: Arc<Stats>) -> Server {
        Server { options, stats }
    }
}

impl Service for Server {
    #[inline]
    fn datagrams(&mut self, _: Instant, _: Listener, burst: &mut [Datagram<'_>]) {
        let (mut answers, mut octets) = (0, 0);
        for datagram in burst {
            if let Some(reason) = self.options.refuses(datagram.addresses.peer.port()) {
                self.stats.dropped(reason);
                continue;
            }
            let bytes = datagram.question().len();
            datagram.reply(bytes);
            answers += 1;
            octets += bytes as u64;
        }
        self.stats.answers.add(answers);
        self.stats.octets.add(octets);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use app::{Addresses, Ecn};

    /// What becomes of a datagram from `port`: the answer's bytes.
    fn asked(server: &mut Server, port: u16, question: &[u8]) -> Option<Vec<u8>> {
        let mut buffer = vec![0xee; 64];
        buffer[..question.len()].copy_from_slice(question);
        let peer = format!("192.0.2.9:{port}").parse().unwrap();
        let addresses = Addresses { local: "192.0.2.1:7007".parse().unwrap(), peer };
        let mut burst = [Datagram::new(&mut buffer, question.len(), Ecn::NotEct, addresses)];
        server.datagrams(Instant::ZERO, Listener(0), &mut burst);
        let bytes = burst[0].reply_bytes()?;
        Some(buffer[..bytes].to_vec())
    }

    fn server(any_source_port: bool) -> Server {
        Server::with_stats(Options { ports: vec![7, 7007], any_source_port }, Arc::default())
    }

    #[test]
    fn what_comes_goes_back() {
        let mut server = server(false);
        for question in [&b"hello"[..], b"", &[0xa5; 64]] {
            assert_eq!(asked(&mut server, 40_000, question).as_deref(), Some(question));
        }
        assert_eq!(asked(&mut server, 1024, b"x").as_deref(), Some(&b"x"[..]));
        assert_eq!((server.stats.answers.get(), server.stats.octets.get()), (4, 70));
    }

    #[test]
    fn servers_ports_are_answered_only_when_asked_for() {
        let (mut careful, mut open) = (server(false), server(true));
        // echo, chargen, DNS, NTP, the last of them; and another server on our own port
        for port in [7, 19, 53, 123, 1023, 7007] {
            assert_eq!(asked(&mut careful, port, b"x"), None, "{port}");
            assert_eq!(asked(&mut open, port, b"x").as_deref(), Some(&b"x"[..]), "{port}");
        }
        assert_eq!(careful.stats.drops(DropReason::OwnPort), 2);
        assert_eq!(careful.stats.drops(DropReason::LowPort), 4);
        assert_eq!(careful.stats.answers.get(), 0);
    }

    #[test]
    fn two_servers_that_are_set_against_each_other_stop_at_once() {
        let mut server = server(false);
        // a forged question makes this server's answer look like a question to the other, from this server's port
        assert_eq!(asked(&mut server, 7007, b"ball"), None);
    }
}
