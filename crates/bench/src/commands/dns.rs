//! `simoom-bench dns`: a DNS load through AF_XDP.

use super::{Tool, rate, seconds, stop_flag};
use crate::grid::{self, Capacity, Step};
use crate::interface;
use crate::load::{Good, Load, Outcome, Plan, SourcePorts};
use crate::queries::{Content, Queries, Synthetic};
use crate::xdp;
use anyhow::{Context as _, Result, bail, ensure};
use port::Mac;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Options of `simoom-bench dns`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Questions are numbered by source port and DNS id, so every answer is matched, timed and counted once; what is not answered is
lost. With several rates each is run in turn, and the highest lossless one (99.9% answered well) and the most good answers are told.
An answer is good by its RCODE: NOERROR, and NXDOMAIN with --absent.
Exit status: 0; 1 when a checked answer was wrong or the load could not be run; 2 for a wrong command line.

  simoom-bench dns --interface vc --server 198.18.0.1 --names 10000 --zone example.com --rate 200k --seconds 5")]
pub(crate) struct Options {
    /// The interface to send from
    #[arg(long, value_name = "IF")]
    interface: String,
    /// The server; port 53 unless told
    #[arg(long, value_name = "ADDR[:PORT]", value_parser = server)]
    server: SocketAddr,
    /// The next hop's hardware address; else the kernel is asked
    #[arg(long, value_name = "MAC", value_parser = |text: &str| interface::parse_mac(text).map_err(|error| error.to_string()))]
    server_mac: Option<Mac>,
    /// Questions from a file, NAME TYPE a line, in its order and again from the start
    #[arg(long, value_name = "FILE", conflicts_with = "names", required_unless_present = "names")]
    queries: Option<PathBuf>,
    /// Random questions for the A records of host0..hostN-1 in --zone, whose addresses are checked (see `zone`)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    names: Option<u64>,
    /// The zone of --names
    #[arg(long, value_name = "ORIGIN", default_value = "example.com")]
    zone: String,
    /// The zone tells its version, and answers made of two versions or of an old one are faults
    #[arg(long, requires = "names")]
    versioned: bool,
    /// So many in a hundred ask for random names that the zone does not have
    #[arg(long, value_name = "P", default_value_t = 0, requires = "names", value_parser = clap::value_parser!(u8).range(0..=100))]
    absent: u8,
    /// Questions a second (200000, 200k, 0.5M); several with commas are run in turn
    #[arg(long, value_name = "R", value_delimiter = ',', value_parser = rate, required_unless_present_any = ["peak", "flood"])]
    rate: Vec<f64>,
    /// Rates from 100k to 1.2M by 15%, until the answers grow no more
    #[arg(long, conflicts_with_all = ["rate", "flood"])]
    peak: bool,
    /// As many questions as the port takes
    #[arg(long, conflicts_with = "rate")]
    flood: bool,
    /// With several rates, end when higher ones bring no more good answers
    #[arg(long)]
    stop_past_peak: bool,
    /// How long each rate is sent
    #[arg(long, value_name = "S", default_value = "1", value_parser = seconds)]
    seconds: f64,
    /// How long answers are waited for at most when all is sent; one that comes later is lost
    #[arg(long, value_name = "S", default_value = "0.5", value_parser = seconds)]
    stragglers: f64,
    /// Check every so manieth answer to the last byte; 0 for none
    #[arg(long, value_name = "N", default_value_t = 16)]
    check_every: u64,
    /// Every answer counts, whatever its RCODE, and none is checked: for a reflector
    #[arg(long)]
    any_answer: bool,
    /// Offer EDNS with this size
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(512..))]
    edns: Option<u16>,
    /// The first source port
    #[arg(long, value_name = "PORT", default_value_t = 20_000)]
    source_port: u16,
    /// How many source ports; each adds 65536 questions that can be outstanding
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    source_ports: u16,
    /// Questions put into the ring at once, at most
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=64))]
    batch: u16,
    #[command(flatten)]
    tool: Tool,
    /// The seed of --names' random order
    #[arg(long, value_name = "N", default_value_t = 7)]
    seed: u64,
    /// A line of progress a second on standard error
    #[arg(long)]
    progress: bool,
}

/// What --json prints.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Results {
    /// over all rates
    pub(crate) capacity: Capacity,
    /// each rate
    pub(crate) runs: Vec<Outcome>,
}

impl Results {
    /// An error when a checked answer was wrong.
    pub(crate) fn ensure_right(&self) -> Result<()> {
        self.runs.iter().try_for_each(Outcome::ensure_right)
    }
}

fn server(text: &str) -> Result<SocketAddr, String> {
    let alone = text.parse::<IpAddr>().map(|address| SocketAddr::new(address, 53));
    let server =
        alone.or_else(|_| text.parse()).map_err(|_| "ADDR or ADDR:PORT, such as 192.0.2.1 or [2001:db8::1]:53")?;
    if server.port() == 0 { Err("port 0 is nobody's".into()) } else { Ok(server) }
}

/// Runs it.
pub(crate) fn run(options: &Options) -> Result<()> {
    options.tool.pin()?;
    let queries = match (&options.queries, options.names) {
        (Some(path), _) => Queries::from_file(path, options.edns)?,
        (None, Some(names)) => {
            let content = if options.versioned { Content::Version(0) } else { Content::Plain };
            let zone = Synthetic { origin: options.zone.clone(), names, content };
            Queries::with_absent(&zone, options.absent, options.edns, options.seed)?
        }
        (None, None) => bail!("--queries or --names is needed"),
    };
    let ends = interface::ends(&options.interface, options.server, options.server_mac)?;
    let sources = SourcePorts { first: options.source_port, count: options.source_ports };
    ensure!(sources.first > 0 && u16::MAX - sources.count >= sources.first, "source ports end at 65535");
    let taken = (0..sources.count).map(|at| SocketAddr::new(ends.client, sources.first + at));
    let opened = xdp::open(&options.interface, options.tool.mode, taken)
        .with_context(|| format!("cannot use {}", options.interface))?;
    eprintln!("{}", opened.what);
    let mut load = Load::new(opened.port, ends, sources, &queries)?;
    let results = measure(options, &mut load)?;
    if options.tool.json {
        println!("{}", serde_json::to_string(&results)?);
    }
    results.ensure_right()
}

fn good(options: &Options) -> Good {
    match (options.any_answer, options.absent) {
        (true, _) => Good::Any,
        (false, 0) => Good::NoError,
        (false, _) => Good::OrAbsent,
    }
}

fn measure<P: port::Port>(options: &Options, load: &mut Load<'_, P>) -> Result<Results> {
    let stop = stop_flag()?;
    let rates: Vec<Option<f64>> = match (options.flood, options.peak) {
        (true, _) => vec![None],
        (_, true) => grid::rates(100e3, 1.2e6).into_iter().map(Some).collect(),
        _ => options.rate.iter().copied().map(Some).collect(),
    };
    let several = rates.len() > 1;
    let (mut runs, mut capacity) = (Vec::new(), Capacity::default());
    for rate in rates {
        let plan = Plan {
            rate,
            span: Duration::from_secs_f64(options.seconds),
            stragglers: Duration::from_secs_f64(options.stragglers),
            check_every: if options.any_answer { 0 } else { options.check_every },
            wait: options.tool.wait,
            burst_frames: usize::from(options.batch),
            progress: options.progress || (!options.tool.json && !several && options.seconds >= 2.0),
        };
        let outcome = load.run(&plan, &stop, || {});
        if !options.tool.json {
            show(&outcome, several, good(options));
        }
        capacity.add(&Step::of(&outcome, good(options)));
        runs.push(outcome);
        if stop.load(Ordering::Relaxed) || ((options.peak || options.stop_past_peak) && capacity.is_over()) {
            break;
        }
    }
    if several && !options.tool.json {
        println!("{}", capacity.text());
    }
    Ok(Results { capacity, runs })
}

fn show(outcome: &Outcome, short: bool, good: Good) {
    if short {
        let wrong: u64 = outcome.faults.values().sum();
        println!(
            "sent {:>8.0}/s  answered well {:>8.0}/s  {:>7.3}%  p50 {:>8.1} us  p99 {:>8.1} us  wrong {wrong}",
            outcome.sent_rate(),
            outcome.good_rate(good),
            outcome.good_share(good) * 100.0,
            outcome.latency.p50_us,
            outcome.latency.p99_us,
        );
    } else {
        println!("{outcome}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_an_address_with_or_without_a_port() {
        for (text, expected) in
            [("192.0.2.1", "192.0.2.1:53"), ("192.0.2.1:54", "192.0.2.1:54"), ("2001:db8::1", "[2001:db8::1]:53")]
        {
            assert_eq!(server(text).unwrap().to_string(), expected);
        }
        for wrong in ["", "example.com", "192.0.2.1:0", "192.0.2.1:99999"] {
            assert!(server(wrong).is_err(), "{wrong}");
        }
    }
}
