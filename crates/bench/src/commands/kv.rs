//! `simoom-bench kv`: a memcached load through AF_XDP, from our own stack's client side.

use super::http::{SECRET, since_boot};
use super::{Tool, rate, seconds, stop_flag};
use crate::http::{Peer, Sources};
use crate::interface;
use crate::memcache::{Bound, Load, Manner, Mix, Outcome, Plan, Records, Share};
use crate::xdp;
use anyhow::{Context as _, Result, ensure};
use port::Mac;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::time::Duration;

/// Options of `simoom-bench kv`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The addresses must be ones that the kernel does not have, as with `simoom-bench http`. The mixes are those of Atikoglu and others (SIGMETRICS
2012) with mutilate's parameters: usr has keys of 16 or 21 octets, values of 2 and 99.8% GET; etc has keys by a generalized extreme
value distribution, values by a table and a generalized Pareto distribution and 75% GET. A record's lengths and value follow from its number, so every
value that comes back is compared. With --rate requests are due at the moments of a Poisson process and latency runs from then; without it each
connection asks again when it was answered. --probes connections ask seldom, one request at a time, and have a latency of their own, which
is the one that --p99 looks at: it searches for the highest rate at which the 99th percentile is no higher. It goes by windows of 100 ms, of which a share
(--windows) must keep to it, lest the pauses of a virtual machine be measured; where probes bring fewer than 100 answers to more than one window in ten, the whole span must.
A rate holds when one of a few tries does, some that did not are tried again later, and the highest that held is told: the most that was
seen, not a mean. Connections that failed are made again before each try, and a rate holds with all of them alone. Wrong answers and lost connections of the warm-up are told with the run behind it.
Exit status: 0; 1 when an answer was wrong, nothing was answered or the load could not be run; 2 for a wrong command line.

  simoom-bench kv --interface vc --address 198.18.0.3-198.18.0.34 --server 198.18.0.1:11211 --store --mix usr --rate 200k
  simoom-bench kv --interface vc --address 198.18.0.3-198.18.0.34 --server 198.18.0.1:11211 --store --mix etc --connections 1476 --p99 500")]
pub(crate) struct Options {
    /// The interface to send from
    #[arg(long, value_name = "IF")]
    interface: String,
    /// Addresses of ours that the kernel does not have
    #[arg(long, value_name = "IP[-IP]")]
    address: Sources,
    /// The server
    #[arg(long, value_name = "ADDR:PORT")]
    server: SocketAddr,
    /// What is asked for
    #[arg(long, value_name = "WORD", default_value = "usr")]
    mix: Mix,
    /// The share of GETs, instead of the mix's
    #[arg(long, value_name = "SHARE")]
    gets: Option<Share>,
    /// Records
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    records: u32,
    /// Store all records first
    #[arg(long)]
    store: bool,
    /// Connections that make the load
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    connections: u32,
    /// Requests under way on each, at most
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    depth: u32,
    /// Connections that ask seldom, one request at a time; 0 for none
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(0..=1000))]
    probes: u32,
    /// Requests a second of all of them together
    #[arg(long, value_name = "R", default_value = "2000", value_parser = rate)]
    probe_rate: f64,
    /// How long to ask
    #[arg(long, value_name = "S", default_value = "3", value_parser = seconds)]
    seconds: f64,
    /// How long to ask before that, with answers that do not count
    #[arg(long, value_name = "S", default_value = "0.2", value_parser = seconds)]
    warm_up: f64,
    /// Requests a second (20000, 20k, 0.1M); without it each connection asks again when it was answered
    #[arg(long, value_name = "R", value_parser = rate)]
    rate: Option<f64>,
    /// Search for the highest rate whose 99th percentile is at most so many microseconds in enough windows, from --rate or 50k on
    #[arg(long, value_name = "US", value_parser = rate)]
    p99: Option<f64>,
    /// The share of windows of 100 ms that must keep to --p99
    #[arg(long, value_name = "SHARE", default_value = "0.9", requires = "p99")]
    windows: Share,
    /// The share of GETs that may find nothing where a rate holds; default: 0.001 with --store, else any
    #[arg(long, value_name = "SHARE")]
    misses: Option<Share>,
    /// The next hop's hardware address; else the kernel is asked
    #[arg(long, value_name = "MAC", value_parser = |text: &str| interface::parse_mac(text).map_err(|error| error.to_string()))]
    server_mac: Option<Mac>,
    #[command(flatten)]
    tool: Tool,
}

/// Bytes that the server may send on a connection before they are read.
const WINDOW_BYTES: u32 = 256 << 10;
/// GETs that may find nothing of what was stored before: a server in whose memory all of it lies has no reason for more.
pub(crate) const STORED_MISSES: f64 = 0.001;
/// Where a search begins.
const FROM: f64 = 50_000.0;

/// What is told as JSON.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Results {
    /// every run; of a search the best one first
    pub(crate) runs: Vec<Outcome>,
}

/// Runs it.
pub(crate) fn run(options: &Options) -> Result<()> {
    options.tool.pin()?;
    let records = Records::new(options.mix, options.records, options.gets)?;
    let addresses = options.address.addresses();
    let one_family = addresses.iter().all(|address| address.is_ipv4() == options.server.is_ipv4());
    ensure!(one_family, "the addresses and the server, {}, must be of one family", options.server.ip());
    let hop = interface::next_hop_mac(&options.interface, options.server, options.server_mac)?;
    interface::ensure_free(addresses)?;
    let opened = xdp::open_own(&options.interface, options.tool.mode, addresses, None)
        .with_context(|| format!("cannot use {}", options.interface))?;
    eprintln!("{}", opened.what);
    let manner = Manner { connections: options.connections, depth: options.depth, probes: options.probes };
    let plan = Plan {
        rate: options.rate,
        probe_rate: if options.probes > 0 { options.probe_rate } else { 0.0 },
        span: Duration::from_secs_f64(options.seconds),
        warm_up: Duration::from_secs_f64(options.warm_up),
        misses_most: options.misses.map_or(if options.store { STORED_MISSES } else { 1.0 }, |share| share.0),
        wait: options.tool.wait,
    };
    let stop = stop_flag()?;
    let mut sources = options.address.clone();
    sources.skip(since_boot().as_nanos());
    let peer = Peer { server: options.server, hop, window_bytes: WINDOW_BYTES };
    let mut load = Load::new(opened.port, records, manner, peer, sources, SECRET);
    let tick = &mut since_boot;
    load.connect(plan.wait, tick)?;
    if options.store {
        let stored = load.store(plan.wait, tick)?;
        eprintln!(
            "{} records stored, {:.0} a second; {} refused",
            stored.stored,
            stored.answered_rate(),
            stored.refused
        );
        ensure!(stored.failed() == 0, "not all records could be stored: {stored}");
    }
    let runs = match options.p99 {
        Some(p99_us) => {
            let bound = Bound { p99_us, windows: options.windows.0 };
            load.search(&plan, (options.rate.unwrap_or(FROM), bound), &stop, tick)
        }
        None => vec![load.run(&plan, &stop, tick)],
    };
    load.close(plan.wait, tick);
    let best = runs.first().context("it was stopped before anything was asked")?;
    if options.tool.json {
        println!("{}", serde_json::to_string(&Results { runs: runs.clone() })?);
    } else {
        println!("{best}");
    }
    let wrong: u64 = runs.iter().map(|run| run.wrong).sum();
    ensure!(wrong == 0, "{wrong} answers were wrong");
    ensure!(best.answered > 0, "nothing was answered");
    Ok(())
}
