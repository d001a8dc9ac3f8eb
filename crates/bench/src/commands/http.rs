//! `simoom-bench http`: an HTTP/1.1 load through AF_XDP, from our own stack's client side.

use super::{Tool, rate, seconds, stop_flag};
use crate::flood::{Flood, Flooding};
use crate::http::{Failure, Load, Manner, Mix, Outcome, Peer, Plan, Sources, Url};
use crate::interface;
use crate::xdp;
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use base::Instant;
use port::{Mac, Port};
use rustix::time::{ClockId, clock_gettime};
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Options of `simoom-bench http`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The addresses must be ones that the kernel does not have: our stack answers ARP and neighbour discovery for them, and its
connections use all their ports from 1024 up in turn. Every URL's body is learned from a first answer, or told by --body; the
length of every body is compared, the content of one in --check-every. All URLs must be one server's.
Latency runs from when a request was due (with --rate by the schedule, else when its connection was free) to its answer's end.
Exit status: 0; 1 when a body was wrong, no answer was good or the load could not be run; 2 for a wrong command line.

  simoom-bench http --interface vc --address 198.18.0.3 --connections 64 --seconds 3 http://198.18.0.1/1k
  simoom-bench http --interface vc --address 198.18.0.3-198.18.0.18 --connections 256 --seconds 3 \\
    --requests-per-connection 1 --rate 50k 9@http://198.18.0.1/1k 1@http://198.18.0.1/64k")]
pub(crate) struct Options {
    /// The interface to send from
    #[arg(long, value_name = "IF")]
    interface: String,
    /// Addresses of ours that the kernel does not have
    #[arg(long, value_name = "IP[-IP]")]
    address: Sources,
    /// Connections at a time
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    connections: u32,
    /// How long to ask
    #[arg(long, value_name = "S", default_value = "3", value_parser = seconds)]
    seconds: f64,
    /// How long to ask before that, with answers that do not count
    #[arg(long, value_name = "S", value_parser = seconds)]
    warm_up: Option<f64>,
    /// Ask again and again, each time as long, of the server's port that FILE.1, FILE.2 and so on name, from when each is there, until
    /// one names none: for loads that ask at the same time, several servers in turn. Bodies are learned before, from the URLs' own port
    #[arg(long, value_name = "FILE", conflicts_with = "flood")]
    turns: Option<PathBuf>,
    /// A connection ends after so many requests; 0 for no limit
    #[arg(long, value_name = "N", default_value_t = 0)]
    requests_per_connection: u32,
    /// Requests a second (20000, 20k, 0.1M); without it each connection asks again when it was answered
    #[arg(long, value_name = "R", value_parser = rate)]
    rate: Option<f64>,
    /// The body of a URL, instead of learning it; again for the next URL, in their order
    #[arg(long, value_name = "FILE")]
    body: Vec<PathBuf>,
    /// Compare the content of every so manieth body; 0 for none
    #[arg(long, value_name = "N", default_value_t = 16)]
    check_every: u64,
    /// The URLs are of the site that `soak-web` makes: every octet follows from path and version, and is compared
    #[arg(long, conflicts_with = "body")]
    synthetic: bool,
    /// A header field that every request has
    #[arg(long, value_name = "NAME: VALUE")]
    header: Vec<String>,
    /// An answer, or a connection, that takes longer is an error; a good answer that comes later than this after its request was due is late
    #[arg(long, value_name = "S", default_value = "5", value_parser = seconds)]
    timeout: f64,
    /// A connection that was answered waits so long before its next request, on average (exponentially distributed, ten times as long at
    /// most); the first ones begin over the time that one waits in all
    #[arg(long, value_name = "S", default_value = "0", value_parser = think, conflicts_with = "rate")]
    think: f64,
    /// Bytes that the server may send on a connection before they are read
    #[arg(long, value_name = "BYTES", default_value_t = 262_144, value_parser = clap::value_parser!(u32).range(1024..=1 << 30))]
    window: u32,
    /// The next hop's hardware address; else the kernel is asked
    #[arg(long, value_name = "MAC", value_parser = |text: &str| interface::parse_mac(text).map_err(|error| error.to_string()))]
    server_mac: Option<Mac>,
    /// Beside the load so many SYNs a second to the server, from addresses of 10.0.0.0/8 in no order
    #[arg(long, value_name = "R", value_parser = rate)]
    flood: Option<f64>,
    /// Send each flow through the queue that this pinned BPF array names for its Toeplitz hash under Microsoft's key, as a NIC at the
    /// server would deal flows out; else by a hash of the generator's own
    #[arg(long, value_name = "FILE")]
    nic_table: Option<PathBuf>,
    #[command(flatten)]
    tool: Tool,
    /// More to ask for, a line each
    #[arg(long, value_name = "FILE")]
    urls_from: Option<PathBuf>,
    /// What to ask for, in turn or as often as the weights say
    #[arg(value_name = "[WEIGHT@]URL", required_unless_present = "urls_from")]
    urls: Vec<Url>,
}

/// Seconds, or none.
fn think(text: &str) -> Result<f64, String> {
    if text == "0" { Ok(0.0) } else { seconds(text) }
}

/// All URLs, those of the file behind those of the command line.
fn urls(options: &Options) -> Result<Vec<Url>> {
    let mut all = options.urls.clone();
    if let Some(path) = &options.urls_from {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let url = line.trim().parse();
            all.push(url.map_err(|error: String| anyhow!("{}:{}: {error}", path.display(), number + 1))?);
        }
        ensure!(!all.is_empty(), "{}: no URL in it", path.display());
    }
    Ok(all)
}

/// Of sequence numbers and timestamps: always the same, so that those of a tuple go on growing from run to run. Else a server in
/// whose TIME-WAIT the last run's connections stand would not take this one's for newer (RFC 6191), and every one of them would
/// cost a reset first.
pub(super) const SECRET: [u64; 2] = [0x5349_4d4f_4f4d_2d42, 0x454e_4348_2d48_5454];

/// Runs it.
pub(crate) fn run(options: &Options) -> Result<()> {
    options.tool.pin()?;
    let read = |path: &PathBuf| std::fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    let bodies = options.body.iter().map(read).collect::<Result<_>>()?;
    let urls = urls(options)?;
    let mix = match options.synthetic {
        true => Mix::synthetic(&urls, &options.header)?,
        false => Mix::new(&urls, bodies, &options.header)?,
    };
    let server = mix.server();
    let addresses = options.address.addresses();
    let one_family = addresses.iter().all(|address| address.is_ipv4() == server.is_ipv4());
    ensure!(one_family, "the addresses and the server, {}, must be of one family", server.ip());
    let hop = interface::next_hop_mac(&options.interface, server, options.server_mac)?;
    interface::ensure_free(addresses)?;
    let opened = xdp::open_own(&options.interface, options.tool.mode, addresses, options.nic_table.as_deref())
        .with_context(|| format!("cannot use {}", options.interface))?;
    eprintln!("{}", opened.what);
    let manner = Manner {
        connections: options.connections,
        requests_per_connection: options.requests_per_connection,
        check_every: options.check_every,
        timeout: Duration::from_secs_f64(options.timeout),
        think: Duration::from_secs_f64(options.think),
    };
    let peer = Peer { server, hop, window_bytes: options.window };
    let plan = Plan {
        rate: options.rate,
        span: Duration::from_secs_f64(options.seconds),
        warm_up: options.warm_up.map(Duration::from_secs_f64),
        wait: options.tool.wait,
        progress: true,
    };
    let stop = stop_flag()?;
    let mut sources = options.address.clone();
    sources.skip(since_boot().as_nanos());
    let flood = options.flood.map(|rate| flood(server, hop, rate)).transpose()?;
    let port = Flooding::new(opened.port, flood);
    let mut load = Load::new(port, mix, manner, peer, sources, SECRET);
    if let Some(file) = &options.turns {
        return take_turns(&mut load, file, &plan, &stop, options);
    }
    let mut outcome = load.run(&plan, &stop, since_boot)?;
    outcome.flood = load.port().flood.as_ref().map(|flood| (flood.sent, flood.missed));
    tell(&outcome, options)
}

/// Tells what came of it.
fn tell(outcome: &Outcome, options: &Options) -> Result<()> {
    if options.tool.json {
        println!("{}", serde_json::to_string(outcome)?);
    } else {
        println!("{outcome}");
    }
    let wrong = outcome.failed(Failure::is_wrong_body);
    ensure!(wrong == 0, "{wrong} bodies were wrong");
    ensure!(outcome.answered > 0, "nothing was answered");
    ensure!(outcome.good_share() > 0.0, "no answer was good: {:?}", outcome.statuses);
    Ok(())
}

/// Asks once for each file that comes, of the port that it names.
fn take_turns<P: Port>(
    load: &mut Load<P>,
    file: &Path,
    plan: &Plan,
    stop: &AtomicBool,
    options: &Options,
) -> Result<()> {
    load.learn(plan.wait, stop, &mut since_boot)?;
    for turn in 1.. {
        let file = turn_file(file, turn);
        load.wait_for(&file, plan.wait, stop, &mut since_boot);
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let Some(port) = named_port(&file)? else { break };
        load.ask_of(port);
        tell(&load.measure(plan, stop, since_boot), options)?;
    }
    Ok(())
}

/// What says of whom to ask in a turn.
pub(crate) fn turn_file(file: &Path, turn: u32) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(format!(".{turn}"));
    name.into()
}

/// The port that such a file names.
fn named_port(file: &Path) -> Result<Option<u16>> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let port = Some(text.trim()).filter(|text| !text.is_empty()).map(str::parse::<NonZeroU16>).transpose();
    Ok(port.with_context(|| format!("{}: '{}' is no port", file.display(), text.trim()))?.map(NonZeroU16::get))
}

fn flood(server: SocketAddr, hop: Mac, rate: f64) -> Result<Flood> {
    let SocketAddr::V4(server) = server else { bail!("--flood knows IPv4 only") };
    Ok(Flood::new(server, hop, rate))
}

/// The origin is the same in every run, see [`SECRET`].
pub(super) fn since_boot() -> Instant {
    let time = clock_gettime(ClockId::Monotonic);
    Instant::from_nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_of_the_port_that_its_file_names() {
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path().join("turn");
        for (turn, text, port) in [(1, "81", Some(81)), (2, "65535\n", Some(65535)), (3, " \n", None), (4, "", None)] {
            let file = turn_file(&base, turn);
            assert_eq!(file, folder.path().join(format!("turn.{turn}")));
            std::fs::write(&file, text).unwrap();
            assert_eq!(named_port(&file).unwrap(), port, "{text:?}");
        }
        for wrong in ["0", "65536", "eighty", "80 81"] {
            std::fs::write(&base, wrong).unwrap();
            assert!(named_port(&base).is_err(), "{wrong}");
        }
        assert!(named_port(&turn_file(&base, 5)).is_err(), "there is none");
    }
}
