//! `simoom-bench bursts`: asks `reflect --segments`.

use super::{Tool, seconds, stop_flag};
use crate::bursts::{Load, Plan};
use crate::interface;
use crate::xdp;
use anyhow::{Context as _, Result, ensure};
use port::Mac;
use rustix::time::{ClockId, clock_gettime};
use std::net::SocketAddr;
use std::time::Duration;

/// Options of `simoom-bench bursts`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A closed loop: --outstanding requests at a time, each of which `simoom-bench reflect --segments K` answers by K full frames. A
request whose K frames have come counts (Requests/sec); one of which a frame was lost is given up when later ones are answered, or
when nothing has come for --timeout, and counts as short. All frames that came, divided by K, are told beside it.
Exit status: 0; 1 when nothing was answered or the load could not be run; 2 for a wrong command line.

  simoom-bench bursts --interface vc --server 198.18.0.1:7 --segments 46 --outstanding 16 --seconds 3")]
pub(crate) struct Options {
    /// The interface to send from
    #[arg(long, value_name = "IF")]
    interface: String,
    /// The reflector
    #[arg(long, value_name = "ADDR:PORT")]
    server: SocketAddr,
    /// The next hop's hardware address; else the kernel is asked
    #[arg(long, value_name = "MAC", value_parser = |text: &str| interface::parse_mac(text).map_err(|error| error.to_string()))]
    server_mac: Option<Mac>,
    /// Frames that answer a request
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    segments: u32,
    /// Requests at a time
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    outstanding: u32,
    /// How long to ask
    #[arg(long, value_name = "S", default_value = "3", value_parser = seconds)]
    seconds: f64,
    /// When nothing has come for so long, the oldest request is given up
    #[arg(long, value_name = "S", default_value = "0.02", value_parser = seconds)]
    timeout: f64,
    /// The UDP port to ask from
    #[arg(long, value_name = "PORT", default_value_t = 20_000, value_parser = clap::value_parser!(u16).range(1..))]
    source_port: u16,
    #[command(flatten)]
    tool: Tool,
}

/// Runs it.
pub(crate) fn run(options: &Options) -> Result<()> {
    options.tool.pin()?;
    let ends = interface::ends(&options.interface, options.server, options.server_mac)?;
    let own = SocketAddr::new(ends.client, options.source_port);
    let opened = xdp::open_deep(&options.interface, options.tool.mode, own)
        .with_context(|| format!("cannot use {}", options.interface))?;
    eprintln!("{}", opened.what);
    let plan = Plan {
        segments: options.segments,
        outstanding: options.outstanding,
        span: Duration::from_secs_f64(options.seconds),
        timeout: Duration::from_secs_f64(options.timeout),
        wait: options.tool.wait,
    };
    let stop = stop_flag()?;
    // numbers of runs one after the other never meet: a run sends less than one request a nanosecond
    let time = clock_gettime(ClockId::Monotonic);
    let first = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
    let outcome = Load::new(opened.port, &ends, options.source_port, first).run(&plan, &stop, || {});
    if options.tool.json {
        println!("{}", serde_json::to_string(&outcome)?);
    } else {
        println!("{outcome}");
    }
    ensure!(
        outcome.frames > 0,
        "nothing was answered; does `simoom-bench reflect --segments` run at {}?",
        options.server
    );
    Ok(())
}
