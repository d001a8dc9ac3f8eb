//! `simoom-bench reflect`: the yardstick at an interface.

use super::{seconds, stop_flag};
use crate::reflect::{Bursts, cycle};
use crate::xdp::{self, Mode};
use anyhow::{Context as _, Result, bail};
use base::{BURST_FRAMES, Burst};
use bpf::reflect::Reflector;
use port::{Outgoing, Port as _};
use port_xdp::device::Device;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Options of `simoom-bench reflect`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Every frame to --listen goes back with hardware addresses, addresses and ports swapped and nothing else read: no server on the
same port can answer more than this sends back. With --segments each frame is a request that is answered by so many full frames
with its headers turned round and its first eight octets behind them, and no protocol: no server that sends frame by frame can
answer more requests for a file of that size (`simoom-bench bursts` asks). With --driver a program in the driver sends the frames
back: what a driver answers cannot cost less. Until SIGTERM, or for --seconds.

  simoom-bench reflect --interface vs --listen 198.18.0.1:53
  simoom-bench reflect --interface vs --listen 198.18.0.1:7 --segments 46        64 KiB in segments of 1448 bytes")]
pub(crate) struct Options {
    /// The interface
    #[arg(long, value_name = "IF")]
    interface: String,
    /// What to take: a local address and a UDP port (again for more)
    #[arg(long, value_name = "ADDR:PORT", required = true)]
    listen: Vec<SocketAddr>,
    /// Answer each frame by so many full ones
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    segments: Option<u32>,
    /// Have the driver send back what comes to the port, whatever its address
    #[arg(long, conflicts_with_all = ["segments", "mode", "batch"])]
    driver: bool,
    /// How to use AF_XDP
    #[arg(long, value_name = "WORD", default_value = "auto")]
    mode: Mode,
    /// Frames a cycle, at most
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=64))]
    batch: u16,
    /// Run on this processor
    #[arg(long, value_name = "N")]
    cpu: Option<usize>,
    /// End after so long
    #[arg(long, value_name = "S", value_parser = seconds)]
    seconds: Option<f64>,
}

/// Runs it.
pub(crate) fn run(options: &Options) -> Result<()> {
    if let Some(cpu) = options.cpu {
        crate::procs::pin(cpu)?;
    }
    if options.driver {
        return in_the_driver(options);
    }
    let opened = xdp::open(&options.interface, options.mode, options.listen.iter().copied())
        .with_context(|| format!("cannot use {}", options.interface))?;
    eprintln!("{}", opened.what);
    let mut port = opened.port;
    let stop = stop_flag()?;
    let end = options.seconds.map(|seconds| Instant::now() + Duration::from_secs_f64(seconds));
    let limit = usize::from(options.batch).min(BURST_FRAMES);
    let mut burst = Burst::new();
    let mut bursts = options.segments.map(|segments| Bursts::new(segments, port.facts()));
    let mut reflected = 0u64;
    eprintln!("reflecting at {}", options.interface);
    while !stop.load(Ordering::Relaxed) {
        let (received, outgoing) = match &mut bursts {
            Some(bursts) => bursts.cycle(&mut port, &mut burst, limit),
            None => cycle(&mut port, &mut burst, limit),
        };
        reflected += received as u64;
        if end.is_some_and(|end| Instant::now() >= end) {
            break;
        }
        if outgoing == Outgoing::Full {
            // who makes room at a veth's other end may need this processor, as may the receive thread of this one
            std::thread::yield_now();
        }
        if received > 0 || outgoing >= Outgoing::Waiting {
            continue;
        }
        match port.descriptor() {
            Some(descriptor) => {
                let wait = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
                // a signal ends the wait, and the flag says so
                let _ = poll(&mut [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)], Some(&wait));
            }
            // several queues
            None => std::thread::yield_now(),
        }
    }
    eprintln!("reflected {reflected} frames");
    Ok(())
}

/// Leaves it to the driver.
fn in_the_driver(options: &Options) -> Result<()> {
    let [listen] = options.listen[..] else { bail!("--driver takes one --listen") };
    let interface = &options.interface;
    let device = Device::find(interface).with_context(|| format!("cannot use {interface}"))?;
    let device = device.with_context(|| format!("there is no interface {interface}"))?;
    let reflector = Reflector::attach(device.index, listen.port(), device.driver == "veth")
        .with_context(|| format!("cannot use {interface}"))?;
    let (stop, begun) = (stop_flag()?, Instant::now());
    eprintln!("reflecting at {interface}");
    let span = options.seconds.map(Duration::from_secs_f64);
    while !stop.load(Ordering::Relaxed) && span.is_none_or(|span| begun.elapsed() < span) {
        std::thread::sleep(Duration::from_millis(20));
    }
    eprintln!("reflected {} frames", reflector.reflected()?);
    Ok(())
}
