//! Makes the service of each thread from the settings.

use crate::config::Settings;
use crate::metrics::Registry;
use crate::words::{QuestionCompression, Transmit};
use base::publish::Publisher;
use dns::{Options, Server, Tables};
use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Memory of each thread for finished answers under `--transmit precopy`.
const RETAINED_BYTES: usize = 16 << 20;

/// Makes a server for each thread of an engine, and again after a panic.
#[derive(Clone)]
pub(crate) struct Maker {
    tables: Arc<Publisher<Tables>>,
    registry: Arc<Registry>,
    options: Options,
}

/// Numbers nobody can guess.
fn random<const BYTES: usize>() -> io::Result<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// What the service is told, the same for all engines.
///
/// # Errors
/// The kernel's, when it gives no random numbers.
pub(crate) fn options(settings: &Settings) -> io::Result<Options> {
    let dns = &settings.dns;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let cookies = match dns.cookies {
        true => Some(dns::cookie::Config { secrets: vec![random()?], unix_time_at_zero_s: now }),
        false => None,
    };
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
        Maker { tables: tables.clone(), registry: registry.clone(), options }
    }

    /// For what else needs unguessable numbers.
    pub(crate) fn seed(&self) -> u64 {
        self.options.seed.rotate_left(32)
    }

    /// A server, with its counters in the registry.
    pub(crate) fn make(&self) -> Server {
        let server = Server::new(self.tables.reader(), self.options.clone());
        self.registry.add(server.stats());
        server
    }
}
