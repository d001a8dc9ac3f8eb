//! Makes the service of each thread from the settings.

use crate::config::Settings;
use crate::metrics::Registry;
use crate::secrets::random;
use crate::words::{QuestionCompression, Transmit};
use base::publish::Publisher;
use dns::cookie::{self, Secrets};
use dns::{Options, Server, Stats, Tables};
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Memory of each thread for finished answers under `--transmit precopy`.
const RETAINED_BYTES: usize = 16 << 20;

/// Makes a server for each thread of an engine, and again after a panic.
#[derive(Clone)]
pub(crate) struct Maker {
    tables: Arc<Publisher<Tables>>,
    options: Options,
    /// a block a thread, which outlasts the thread's servers
    stats: Arc<[Arc<Stats>]>,
}

/// What the service is told, the same for all engines.
///
/// # Errors
/// The kernel's, when it gives no random numbers.
pub(crate) fn options(settings: &Settings, secrets: Option<&Arc<Publisher<Secrets>>>) -> io::Result<Options> {
    let dns = &settings.dns;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let cookies = secrets.map(|secrets| cookie::Config { secrets: secrets.clone(), unix_time_at_zero_s: now });
    let rrl = dns.rrl_rate.map(|rate| dns::rrl::Config {
        responses_per_second: rate,
        referrals_per_second: rate,
        nodata_per_second: rate,
        nxdomains_per_second: rate,
        errors_per_second: rate,
        slip: dns.rrl_slip,
        allow: dns.rrl_exempt.iter().map(|prefix| (prefix.address, prefix.bits)).collect(),
        ..dns::rrl::Config::default()
    });
    Ok(Options {
        udp_bytes: dns.edns_size,
        question_compression: match dns.question_compression {
            QuestionCompression::Refuse => dns::QuestionCompression::Refuse,
            QuestionCompression::Accept => dns::QuestionCompression::Accept,
        },
        retained_bytes: if dns.transmit == Transmit::Precopy { RETAINED_BYTES } else { 0 },
        nsid: dns.nsid.clone().unwrap_or_default().into_bytes(),
        version: dns.version_string.clone(),
        id: dns.id_string.clone(),
        cookies,
        rrl,
        tcp: dns::stream::Limits {
            connections: dns.tcp_connections,
            idle: Duration::from_secs(dns.tcp_idle_s.into()),
            ..dns::stream::Limits::default()
        },
        seed: u64::from_ne_bytes(random()?),
        ..Options::default()
    })
}

impl Maker {
    /// For an engine of `threads` threads; `streams` is false where no connection ever comes, so none needs memory.
    pub(crate) fn new(
        options: &Options,
        threads: usize,
        streams: bool,
        tables: &Arc<Publisher<Tables>>,
        registry: &Arc<Registry>,
    ) -> Maker {
        let mut options = options.clone();
        options.threads = threads;
        if !streams {
            options.tcp.connections = 1;
            options.tcp.backlogs = 1;
        }
        let stats: Arc<[_]> = (0..threads).map(|_| Arc::<Stats>::default()).collect();
        stats.iter().for_each(|stats| registry.add(stats.clone()));
        Maker { tables: tables.clone(), options, stats }
    }

    /// For what else needs unguessable numbers.
    pub(crate) fn seed(&self) -> u64 {
        self.options.seed.rotate_left(32)
    }

    /// A server for `thread`, which goes on with the counters of the one before it.
    pub(crate) fn make(&self, thread: usize) -> Server {
        Server::with_stats(self.tables.reader(), self.options.clone(), self.stats[thread].clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use app::{Addresses, Datagram, Ecn, Listener, Service};
    use base::Instant;

    #[test]
    fn a_server_made_anew_goes_on_with_the_counters_of_its_thread() {
        let registry = Arc::new(Registry::default());
        let tables = Arc::new(Publisher::new(Arc::new(Tables::build(Vec::new(), 1).unwrap())));
        let options = Options { retained_bytes: 1 << 16, ..Options::default() };
        let maker = Maker::new(&options, 2, true, &tables, &registry);
        let figure = |name: &str| -> u64 { registry.collect()[name].samples.values().sum() };
        let (mut server, other) = (maker.make(0), maker.make(1));
        let memory = figure("dns_retained_bytes");
        assert!(memory > 0);
        for panics in 1..=3 {
            let local = "192.0.2.1:53".parse().unwrap();
            let mut nothing = [0; 512];
            let mut burst = [Datagram::new(&mut nothing, 0, Ecn::NotEct, Addresses { local, peer: local })];
            server.datagrams(Instant::ZERO, Listener(0), &mut burst);
            // made before the old one is dropped, as the engines do
            server = maker.make(0);
            assert_eq!(format!("{registry:?}"), "Registry(2 blocks)");
            assert_eq!((figure("dns_drops_total"), figure("dns_retained_bytes")), (panics, memory));
        }
        drop((server, other));
        assert_eq!(figure("dns_retained_bytes"), 0);
    }
}
