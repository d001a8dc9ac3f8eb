//! How many connections there may be, and what they may hold, for each engine. Kernel sockets and our own stack have bounds of
//! their own, each the whole of what the settings say.
//!
//! Every thread has room for all connections, since any of them may get, or be given, most of them; that there are no more over all threads is what
//! each service sees to ([`app::Bound`]). What connections may hold is divided: no thread takes what others' need.

use super::listeners::{Listening, division};
use crate::config::Settings;
use crate::service::Division;
use app::{Listener, PerSource};
use sockets::Streams;
use stack::tcp::BLOCK_BYTES;
use stack::{TcpConfig, TcpLimits};
use std::time::Duration;

/// Most connections of all services together.
pub(super) fn connections(settings: &Settings) -> usize {
    let (dns, web) = (settings.dns.as_ref(), settings.web.as_ref());
    let kv = settings.kv.as_ref().map_or(0, |kv| kv.connections);
    let apps: usize = settings.apps.iter().map(|app| app.connections).sum();
    dns.map_or(0, |dns| dns.tcp_connections) + web.map_or(0, |web| web.connections) + kv + apps
}

/// Bytes that may wait for slow readers. The budget is one for both services, the sum of what each has alone: it bounds the
/// memory, and does not keep the readers of one service from spending the other's part.
fn budget_bytes(settings: &Settings) -> usize {
    let of_web = settings.web.as_ref().map_or(0, |_| Streams::default().budget_bytes);
    let of_kv = settings.kv.as_ref().map_or(0, |_| Streams::default().budget_bytes);
    let of_apps = settings.apps.len() * Streams::default().budget_bytes;
    settings.dns.as_ref().map_or(0, |dns| dns.tcp_memory_bytes) + of_web + of_kv + of_apps
}

/// Connections of DNS over TCP from one source on one of so many threads: not a setting. Threads count for themselves, and a source may
/// come to all of them; together they let it have a quarter of all connections, so that nobody keeps the others out alone. Each lets it
/// have one, so where there are fewer than four connections a thread it may be more.
fn dns_per_source(connections: usize, threads: usize) -> usize {
    (connections / 4 / threads.max(1)).clamp(1, 256)
}

/// Connections of one source on one of so many threads, by service. Those of applications are bounded by application alone, as are those
/// that they ask for.
fn per_source(settings: &Settings, threads: usize) -> PerSource {
    let Division { web_from, kv_from, app_from, .. } = division(settings);
    let of_dns = settings.dns.iter().map(|dns| (Listener(0), dns_per_source(dns.tcp_connections, threads)));
    let of_web = settings.web.iter().map(|web| (Listener(web_from), web.per_source));
    let of_kv = settings.kv.iter().map(|kv| (Listener(kv_from), kv.per_source));
    let apps = (!settings.apps.is_empty()).then(|| (Listener(app_from), connections(settings)));
    PerSource::new(of_dns.chain(of_web).chain(of_kv).chain(apps).collect())
}

/// How long a peer may leave its window closed: an engine's own bound is for services that have none, and ends nobody before `--send-timeout`.
fn stalled(settings: &Settings, default: Duration) -> Duration {
    let of_web = settings.web.iter().map(|web| web.send_timeout_s);
    let of_kv = settings.kv.iter().map(|kv| kv.send_timeout_s);
    of_web.chain(of_kv).map(|seconds| Duration::from_secs(seconds.into())).fold(default, Duration::max)
}

/// Of one thread on kernel sockets.
pub(super) fn on_sockets(settings: &Settings, threads: usize) -> Streams {
    let default = Streams::default();
    Streams {
        // 0 would be refused; without a listener for streams there is none
        connections: connections(settings).max(1),
        // of connections that applications ask for
        per_source: connections(settings).max(1),
        services: per_source(settings, threads),
        budget_bytes: budget_bytes(settings).div_ceil(threads).max(1),
        stalled: stalled(settings, default.stalled),
        ..default
    }
}

/// Of one of so many threads on our own stack, which has this share of what connections may hold (1 in `share`); None when no listener
/// wants TCP there.
pub(super) fn on_stack(
    settings: &Settings,
    listeners: &[Listening],
    threads: usize,
    share: usize,
    secret: [u64; 2],
) -> Option<TcpConfig> {
    let listeners: Vec<_> = listeners.iter().filter_map(|at| at.streams(settings)).collect();
    if listeners.is_empty() {
        return None;
    }
    let default = TcpLimits::default();
    let least = |n: usize, most: u32| u32::try_from(n).unwrap_or(u32::MAX).min(most);
    let connections = connections(settings);
    let limits = TcpLimits {
        connections: least(connections, u32::MAX),
        // a connection that is not there cannot use what there is for each
        active: least(connections, default.active),
        records: least(connections.saturating_mul(64), default.records),
        ranges: least(connections.saturating_mul(16), default.ranges),
        owned_blocks: least(budget_bytes(settings).div_ceil(share) / BLOCK_BYTES, u32::MAX).max(1),
        connections_per_source: least(connections, u32::MAX),
        ..default
    };
    let mut config =
        TcpConfig { listeners, limits, per_source: per_source(settings, threads), secret, ..TcpConfig::default() };
    config.times.zero_window = stalled(settings, config.times.zero_window);
    Some(config)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::listeners::listeners;
    use crate::launch::tests::{DNS, WEB, settings};
    use crate::service::Kind;

    #[test]
    fn bounds_of_connections_are_those_of_both_services_together() {
        let of = |text: &str| {
            let streams = on_sockets(&settings(text), 2);
            (streams.connections, streams.budget_bytes >> 20)
        };
        assert_eq!(of(DNS), (10, 4));
        assert_eq!(of(WEB), (100, 32));
        assert_eq!(of(&format!("{DNS}{WEB}")), (110, 36));
    }

    #[test]
    fn each_service_has_its_own_bound_of_a_source_in_both_engines() {
        let kv = "[kv]\nlisten = [\"127.0.0.1:11211\"]\nper-source = 7\n";
        let app = "[[app]]\nname = \"a\"\nprogram = [\"/bin/true\"]\nlisten = [\"127.0.0.1:7\"]\nconnections = 3\n";
        let settings = settings(&format!("{DNS}{WEB}{kv}{app}"));
        let all = listeners(&settings);
        let streams = on_sockets(&settings, 2);
        let tcp = on_stack(&settings, &all, 2, 2, [1, 2]).unwrap();
        assert_eq!(streams.services, tcp.per_source);
        for Listening { listener, kind, .. } in all {
            let expected = match kind {
                // of 10 on two threads
                Kind::Dns => 1,
                Kind::Web => 50,
                Kind::Kv => 7,
                Kind::App => connections(&settings),
                Kind::Echo => unreachable!("none was asked for"),
            };
            let bounds = &streams.services;
            assert_eq!(bounds.most(bounds.service(listener)), Some(expected), "{kind:?}");
        }
    }

    /// Threads count apart, elastic ones too, although each of those may have all of the memory.
    #[test]
    fn no_source_has_all_connections_of_dns_by_coming_to_all_threads() {
        for (connections, threads) in [(1024, 1), (1024, 2), (1024, 4), (1024, 64), (100, 8), (10, 2), (1_000_000, 3)] {
            let text = DNS.replace("connections = 10\n", &format!("connections = {connections}\n"));
            let settings = settings(&format!("{text}{WEB}"));
            let streams = on_sockets(&settings, threads);
            let tcp = on_stack(&settings, &listeners(&settings), threads, 1, [1, 2]).unwrap();
            for bounds in [streams.services, tcp.per_source] {
                let most = bounds.bounds().next().unwrap();
                assert!(
                    (1..=256).contains(&most) && most * threads <= connections / 4,
                    "{connections} {threads} {most}"
                );
            }
        }
        assert_eq!(
            [(1024, 4), (1024, 1), (3, 2), (100_000, 4)].map(|(all, on)| dns_per_source(all, on)),
            [64, 256, 1, 256]
        );
    }

    #[test]
    fn no_engine_ends_who_takes_nothing_before_the_service_does() {
        let of = |text: &str| {
            let settings = settings(text);
            let tcp = on_stack(&settings, &listeners(&settings), 2, 2, [1, 2]).unwrap();
            [on_sockets(&settings, 2).stalled, tcp.times.zero_window].map(|time| time.as_secs())
        };
        assert_eq!(of(WEB), [120, 120]);
        let kv = "[kv]\nlisten = [\"192.0.2.1:11211\"]\nsend-timeout = 600\n";
        assert_eq!(of(&format!("{WEB}{kv}")), [600, 600]);
    }

    #[test]
    fn our_own_stack_has_the_same_bounds_and_no_tcp_that_nobody_wants() {
        let of = |text: &str| {
            let settings = settings(text);
            on_stack(&settings, &listeners(&settings), 2, 2, [1, 2])
        };
        assert_eq!(of(DNS), None);
        let both = of(&format!("{DNS}{WEB}")).unwrap();
        assert_eq!((both.limits.connections, both.secret), (110, [1, 2]));
        assert_eq!(both.limits.owned_blocks as usize * BLOCK_BYTES, 36 << 20);
        assert!(both.listeners.iter().all(|at| at.window_bytes as usize == ::web::WINDOW_BYTES));
    }
}
