//! What each service is told, made from the settings.

use crate::config::{Dns, Echo, Kv, Web};
use crate::launch::tiers::driver_share;
use crate::secrets::random;
use crate::words::{Prefix, QuestionCompression, Transmit};
use app::Bound;
use base::publish::Publisher;
use dns::cookie::{self, Secrets, UnixTime};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use web::WallClock;
use web::chunks::Cache;

/// Memory of each thread for finished answers under `--transmit precopy`.
const RETAINED_BYTES: usize = 16 << 20;

/// What the DNS service is told.
pub(super) fn dns_options(
    dns: &Dns,
    secrets: Option<&Arc<Publisher<Secrets>>>,
    time: &Arc<UnixTime>,
) -> io::Result<dns::Options> {
    let cookies = secrets.map(|secrets| cookie::Config { secrets: secrets.clone(), time: time.clone() });
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
    Ok(dns::Options {
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
            connections: Bound::new(dns.tcp_connections),
            idle: Duration::from_secs(dns.tcp_idle_s.into()),
            ..dns::stream::Limits::default()
        },
        seed: u64::from_ne_bytes(random()?),
        ..dns::Options::default()
    })
}

/// What the web service is told.
pub(super) fn web_options(web: &Web, wall: &Arc<WallClock>, cache: Option<Cache>) -> io::Result<web::Options> {
    let prefixes = |prefixes: &[Prefix]| {
        prefixes.iter().map(|prefix| web::Prefix { address: prefix.address, bits: prefix.bits }).collect()
    };
    Ok(web::Options {
        connections: Bound::new(web.connections),
        idle: Duration::from_secs(web.keep_alive_s.into()),
        head: Duration::from_secs(web.request_timeout_s.into()),
        send: Duration::from_secs(web.send_timeout_s.into()),
        proxies: prefixes(&web.proxy_protocol),
        forwarded: prefixes(&web.forwarded),
        wall: wall.clone(),
        cache,
        seed: u64::from_ne_bytes(random()?),
        ..web::Options::default()
    })
}

/// What the key-value store is told.
pub(super) fn kv_options(kv: &Kv, clock: &Arc<kv::Clock>) -> kv::Options {
    kv::Options {
        connections: Bound::new(kv.connections),
        buffers: Bound::new(kv.connections),
        idle: kv.idle_s.map(|seconds| Duration::from_secs(seconds.into())),
        stuck: Duration::from_secs(kv.send_timeout_s.into()),
        clock: clock.clone(),
        ports: kv.listen.iter().map(|at| at.port()).collect(),
        ..kv::Options::default()
    }
}

/// What the echo service is told.
pub(super) fn echo_options(echo: &Echo) -> echo::Options {
    let ports = echo.listen.iter().map(|at| at.port()).collect();
    echo::Options { ports, any_source_port: echo.any_source_port }
}

/// Leaves the driver its share of the rates of what it answers.
pub(super) fn give_share(rrl: &mut dns::rrl::Config) {
    for rate in [
        &mut rrl.responses_per_second,
        &mut rrl.referrals_per_second,
        &mut rrl.nodata_per_second,
        &mut rrl.nxdomains_per_second,
    ] {
        *rate -= driver_share(*rate);
    }
}
