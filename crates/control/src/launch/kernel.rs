//! Kernel sockets: what their engine is told, and how binding fails.

use super::behind::behind;
use super::limits;
use super::listeners::{Listening, taken_connections};
use crate::config::Settings;
use crate::error::Error;
use crate::words::{Balance, Idle, Spread};
use sockets::{BindError, Config, Endpoint, Engine};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

/// Binds what the kernel has addresses for, or takes what was inherited; None where that is nothing. `alone`: without AF_XDP beside it.
///
/// # Errors
/// An address that cannot be had, and why.
pub(super) fn open_sockets(
    settings: &Settings,
    listeners: &[Listening],
    alone: bool,
    threads: usize,
    inherited: Vec<OwnedFd>,
) -> Result<Option<Engine>, Error> {
    let is_own = |address: &SocketAddr| settings.own.iter().any(|own| own.0.address == address.ip());
    let endpoints: Vec<_> =
        listeners.iter().filter(|at| !is_own(&at.address)).flat_map(|at| at.endpoints(settings)).collect();
    if endpoints.is_empty() {
        return Ok(None);
    }
    warn_short_backlog(settings);
    let config = config(settings, endpoints, threads);
    if !alone {
        return bind(settings, beside(config, settings, listeners), inherited).map(Some);
    }
    let Some(behind) = behind(settings, &config.endpoints, threads)? else {
        return bind(settings, config, inherited).map(Some);
    };
    let engine = bind(settings, Config { nic: Some(behind.spread), ..config }, inherited)?;
    Ok(Some(engine.keep_table(Box::new(behind.keeper))))
}

/// Where nothing else serves.
fn config(settings: &Settings, endpoints: Vec<Endpoint>, threads: usize) -> Config {
    let default = Config::default();
    Config {
        endpoints,
        threads,
        cpus: settings.cpus.clone().unwrap_or_default(),
        batch: settings.batch,
        idle: match settings.idle {
            Idle::Spin => sockets::Idle::Spin,
            Idle::Adaptive => sockets::Idle::Adaptive,
            Idle::Block => sockets::Idle::Block,
        },
        accept: spread(settings.accept),
        receive: spread(settings.receive),
        balance: sockets::Balance {
            steal: settings.balance != Some(Balance::Off),
            migrate: settings.balance.is_none_or(|balance| balance == Balance::On),
            groups: settings.flow_groups,
        },
        streams: limits::on_sockets(settings, threads),
        slow_after: settings.slow_after,
        // echo gives back whatever comes
        datagram_bytes: match (&settings.echo, settings.apps.is_empty()) {
            (Some(_), _) => 65_535,
            (None, false) => guard::layout::SEND_BYTES,
            (None, true) => default.datagram_bytes,
        },
        busy_poll_us: settings.busy_poll_us,
        ..default
    }
}

/// Beside AF_XDP, for what is rare.
fn beside(config: Config, settings: &Settings, listeners: &[Listening]) -> Config {
    Config {
        cpus: Vec::new(),
        idle: sockets::Idle::Block,
        busy_poll_us: 0,
        // what the program will take would find no connection that the kernel has held
        refuse_until_started: taken_connections(settings, listeners),
        ..config
    }
}

fn bind(settings: &Settings, config: Config, inherited: Vec<OwnedFd>) -> Result<Engine, Error> {
    let engine = Engine::bind_with(config, inherited).map_err(|error| match error {
        BindError::Config(_) | BindError::Twice { .. } => Error::input(error.to_string()),
        BindError::NoSuchAddress { .. } if !settings.interfaces.is_empty() => {
            Error::environment(format!("{error}; or give --own if simoom is to answer ARP and NDP for it"))
        }
        // a port may come free, and an address may come: nothing of that is in the settings alone
        _ => Error::environment(error.to_string()),
    })?;
    if !engine.polls_in_epoll() {
        tracing::warn!(
            "--busy-poll: this kernel does not poll while a thread waits for events (Linux 6.9 does); add --idle spin"
        );
    }
    Ok(engine)
}

/// The kernel takes a longer backlog without a word and keeps to its own bound.
fn warn_short_backlog(settings: &Settings) {
    let most = std::fs::read_to_string("/proc/sys/net/core/somaxconn").ok().and_then(|text| text.trim().parse().ok());
    let Some(asked) = settings.dns.as_ref().map(|dns| dns.tcp_backlog) else { return };
    if let Some(most) = most.filter(|most: &u32| asked > *most) {
        let place =
            settings.file.as_ref().map_or("--tcp-backlog".to_owned(), |file| format!("{file}: dns.tcp-backlog"));
        tracing::warn!(
            "{place}: the kernel holds {most} connections, not {asked}; raise it with `sysctl net.core.somaxconn={asked}`"
        );
    }
}

fn spread(word: Spread) -> sockets::Spread {
    match word {
        Spread::Shared => sockets::Spread::Shared,
        Spread::PerCore => sockets::Spread::PerCore,
        Spread::Affinity => sockets::Spread::Affinity,
    }
}
