//! The echo service's part of the settings.

use super::places::{Places, twice};
use crate::words::{Listen, Placed, Placement, Switch};
use serde::Deserialize;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

/// What the echo service does; `[echo]` in the file.
#[derive(Clone, Debug, Default, clap::Args, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct EchoOptions {
    #[arg(skip)]
    /// where it listens, in the file only: on the command line it is --listen
    pub listen: Vec<Placed<Listen>>,
    /// Answer datagrams from ports below 1024 and from our own, too: on or off (a loop with another server needs them)
    #[arg(long, value_name = "on|off")]
    pub any_source_port: Option<Switch>,
    /// Where echo runs: inline, or in an unprivileged process of its own, same (on the processor of the thread that serves it)
    /// or cpu=N; default: inline
    #[arg(long, value_name = "PLACE")]
    pub place: Option<Placement>,
}

/// The echo service's settings.
#[derive(Clone, Debug)]
pub struct Echo {
    /// where it listens
    pub listen: Vec<SocketAddr>,
    /// nobody asked for these listeners
    pub listen_by_default: bool,
    /// whether the ports of servers are answered
    pub any_source_port: bool,
    /// where it runs
    pub place: Placement,
}

/// Fills in defaults and refuses contradictions.
pub(super) fn settle(
    places: &Places<'_>,
    listen: &[Placed<Listen>],
    echo: &EchoOptions,
    errors: &mut Vec<String>,
) -> Echo {
    twice(places, listen, "--listen", errors);
    let mut addresses: Vec<_> = listen.iter().map(|placed| placed.value.0).collect();
    if addresses.is_empty() {
        addresses = vec![(Ipv6Addr::UNSPECIFIED, echo::PORT).into(), (Ipv4Addr::UNSPECIFIED, echo::PORT).into()];
    }
    Echo {
        listen: addresses,
        listen_by_default: listen.is_empty(),
        any_source_port: echo.any_source_port.is_some_and(|on| on.0),
        place: echo.place.unwrap_or_default(),
    }
}
