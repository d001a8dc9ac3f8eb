//! `simoom-bench wire`: a lossy, slow path between two interfaces.

use super::{number, seconds, stop_flag};
use crate::link::{Counts, Link};
use crate::xdp::Mode;
use anyhow::{Context as _, Result, bail, ensure};
use base::time::Clock;
use port::fault::{BurstLoss, Line, Rates};
use port_xdp::device;
use port_xdp::{Handle, OpenConfig, Opened, XdpPort};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Options of `simoom-bench wire`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Joins two interfaces: every frame that arrives at one leaves by the other, injured as asked. P is a percentage. A value given
twice as X,Y is that of frames from --a to --b, and of frames back. Each direction judges its frames one after the other from
--seed: the same frames meet the same fate again. Until SIGTERM, or for --seconds; then both interfaces are as they were.

Both interfaces are this program's while it runs (an XDP program takes everything), so they belong in a network namespace of
their own, without addresses, between the two hosts:
  client host -- c0|w0 -- [ simoom-bench wire --a w0 --b w1 ] -- w1|s0 -- server host
With a program at w0 the kernel behind c0 sends no packets larger than the MTU. Checksums that it leaves to the device are
completed here. VLAN tags that it leaves to the device are lost: `ethtool -K c0 txvlan off` keeps them.

Give each veth a queue (`tc qdisc replace dev w0 root pfifo limit 1000`): without one it drops, uncounted, what the other end is too
busy to take.

  simoom-bench wire --a w0 --b w1 --loss 1 --delay 20 --rate 100M,10M --stats")]
pub(crate) struct Options {
    /// One interface
    #[arg(long, value_name = "IF")]
    a: String,
    /// The other
    #[arg(long, value_name = "IF")]
    b: String,
    /// Frames lost, one by one
    #[arg(long, value_name = "P", default_value = "0", value_parser = pair(percent))]
    loss: [f64; 2],
    /// Frames lost in bursts: P of all frames, N in a row on average (Gilbert-Elliott)
    #[arg(long, value_name = "P:N", value_parser = pair(burst))]
    burst_loss: Option<[BurstLoss; 2]>,
    /// Frames that come twice
    #[arg(long, value_name = "P", default_value = "0", value_parser = pair(percent))]
    duplicate: [f64; 2],
    /// Frames overtaken by the next one, if that comes within 2 ms
    #[arg(long, value_name = "P", default_value = "0", value_parser = pair(percent))]
    reorder: [f64; 2],
    /// Frames with a flipped bit
    #[arg(long, value_name = "P", default_value = "0", value_parser = pair(percent))]
    corrupt: [f64; 2],
    /// How much later every frame comes, in milliseconds
    #[arg(long, value_name = "MS", default_value = "0", value_parser = pair(milliseconds))]
    delay: [Duration; 2],
    /// The line's rate, in bits of frames a second (64k, 10M, 1G); any unless told
    #[arg(long, value_name = "R", value_parser = pair(bits))]
    rate: Option<[f64; 2]>,
    /// How long frames wait for the line at most, in milliseconds
    #[arg(long, value_name = "MS", default_value = "100", value_parser = pair(milliseconds))]
    queue: [Duration; 2],
    /// Frames held in each direction at most: the delay times the rate must fit
    #[arg(long, value_name = "N", default_value_t = 32_768, value_parser = clap::value_parser!(u32).range(64..=1 << 20))]
    hold: u32,
    /// What decides
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// End after so long
    #[arg(long, value_name = "S", value_parser = seconds)]
    seconds: Option<f64>,
    /// At the end, print what became of each direction's frames
    #[arg(long)]
    stats: bool,
    /// The same as one line of JSON
    #[arg(long)]
    json: bool,
    /// How to use AF_XDP
    #[arg(long, value_name = "WORD", default_value = "auto")]
    mode: Mode,
    /// Run on this processor
    #[arg(long, value_name = "N")]
    cpu: Option<usize>,
}

/// How long a frame that is to be overtaken waits for another.
const REORDER_WAIT: Duration = Duration::from_millis(2);
/// Frames that may arrive while this program does not run: senders on the same machine have bursts, and take its processor.
const RECEIVE_SLOTS: u32 = 8192;
/// How often the interfaces are looked at, and the longest sleep.
const LOOK: Duration = Duration::from_millis(500);

/// One value for both directions, or two.
fn pair<T: Clone>(
    one: impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static,
) -> impl Fn(&str) -> Result<[T; 2], String> + Clone + Send + Sync + 'static {
    move |text| match text.split_once(',') {
        Some((there, back)) => Ok([one(there)?, one(back)?]),
        None => one(text).map(|both| [both.clone(), both]),
    }
}

fn percent(text: &str) -> Result<f64, String> {
    number(text.strip_suffix('%').unwrap_or(text))
        .filter(|value| (0.0..=100.0).contains(value))
        .map(|value| value / 100.0)
        .ok_or_else(|| "a percentage from 0 to 100, or one for each direction, such as 1 or 0.5,2".into())
}

fn burst(text: &str) -> Result<BurstLoss, String> {
    let what = || "P:N, such as 1:8 for 1% of all frames, 8 in a row on average; N is at least 1".to_owned();
    let (rate, mean) = text.split_once(':').ok_or_else(what)?;
    let rate = percent(rate)?;
    let mean = number(mean).filter(|mean| *mean >= 1.0).ok_or_else(what)?;
    BurstLoss::new(rate, mean).ok_or_else(|| format!("no path loses {}% in bursts of {mean} frames", rate * 100.0))
}

fn milliseconds(text: &str) -> Result<Duration, String> {
    number(text)
        .filter(|value| (0.0..=60_000.0).contains(value))
        .map(|ms| Duration::from_secs_f64(ms / 1000.0))
        .ok_or_else(|| "milliseconds from 0 to 60000".into())
}

fn bits(text: &str) -> Result<f64, String> {
    let units = [('k', 1e3), ('M', 1e6), ('G', 1e9)];
    let (digits, unit) =
        units.into_iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, unit))).unwrap_or((text, 1.0));
    number(digits)
        .map(|value| value * unit)
        .filter(|value| (1e3..=1e12).contains(value))
        .ok_or_else(|| "bits a second from 1k to 1000G, such as 512k or 10M".into())
}

impl Options {
    fn rates(&self, direction: usize) -> Rates {
        Rates {
            drop: self.loss[direction],
            burst: self.burst_loss.map(|of| of[direction]),
            corrupt: self.corrupt[direction],
            duplicate: self.duplicate[direction],
            reorder: self.reorder[direction],
            reorder_wait: REORDER_WAIT,
            line: self.rate.map(|of| Line { bits_per_s: of[direction], queue: self.queue[direction] }),
            latency: self.delay[direction],
            room_frames: Some(self.hold as usize),
            ..Rates::default()
        }
    }
}

/// One interface, opened.
struct Side {
    name: String,
    /// detaches the program when it goes
    handle: Handle,
}

/// Opens both interfaces; nothing of the first stays when the second fails.
fn open(options: &Options) -> Result<([Side; 2], [Vec<XdpPort>; 2])> {
    let there = device::names().context("cannot ask for the interfaces")?;
    for name in [&options.a, &options.b] {
        let others = there.join(", ");
        ensure!(there.contains(name), "no interface {name}: there are {others}; give two of them to --a and --b");
    }
    ensure!(options.a != options.b, "{} is given twice: --a and --b are two interfaces", options.a);
    let [a, b] = [open_one(&options.a, options)?, open_one(&options.b, options)?];
    let mtus = [&a, &b].map(|opened| opened.got.device.mtu);
    if mtus[0] != mtus[1] {
        let (longer, shorter) = (mtus[0].max(mtus[1]), mtus[0].min(mtus[1]));
        eprintln!("the MTUs are {} and {}: packets above {shorter} of {longer} are lost", mtus[0], mtus[1]);
    }
    let side = |name: &String, handle| Side { name: name.clone(), handle };
    Ok(([side(&options.a, a.handle), side(&options.b, b.handle)], [a.ports, b.ports]))
}

fn open_one(name: &str, options: &Options) -> Result<Opened> {
    let mut config = OpenConfig::new(name);
    config.mode = options.mode.into();
    config.everything = true;
    config.spare_frames = options.hold;
    config.rx_slots = RECEIVE_SLOTS;
    let opened = port_xdp::open(&config)?;
    let (mode, device) = (opened.got.mode, &opened.got.device);
    // only a program in the driver takes segmentation away from the other end
    if mode == port_xdp::Mode::Generic && device.is_virtual_link() {
        bail!(
            "{name} has AF_XDP in generic mode only, and packets larger than the MTU would be lost: use --mode auto, and an MTU of \
             1500 (`ip link set dev {name} mtu 1500`)"
        );
    }
    eprintln!("{}", opened.got);
    Ok(opened)
}

/// Runs it.
pub(crate) fn run(options: &Options) -> Result<()> {
    if let Some(cpu) = options.cpu {
        crate::procs::pin(cpu)?;
    }
    let stop = stop_flag()?;
    let (mut sides, ports) = open(options)?;
    let mut link = Link::new(ports, options.seed, [options.rates(0), options.rates(1)]);
    eprintln!("joined {} and {}", options.a, options.b);
    let end = options.seconds.map(|seconds| Instant::now() + Duration::from_secs_f64(seconds));
    let clock = Clock::start();
    let mut look_at = Instant::now() + LOOK;
    let mut done = Ok(());
    while !stop.load(Ordering::Relaxed) {
        let now = clock.now();
        let moved = link.cycle(now);
        let time = Instant::now();
        if end.is_some_and(|end| time >= end) {
            break;
        }
        if time >= look_at {
            look_at = time + LOOK;
            done = sides.iter_mut().try_for_each(Side::look);
            if done.is_err() {
                break;
            }
        }
        if moved == 0 {
            let left = end.map_or(LOOK, |end| end.saturating_duration_since(time)).min(LOOK);
            sleep(&link, link.idle(now).unwrap_or(LOOK).min(left));
        }
    }
    tell(options, &mut link);
    done
}

impl Side {
    /// Fails when the interface has gone.
    fn look(&mut self) -> Result<()> {
        let followed = self.handle.follow();
        followed.failed.map_or(Ok(()), Err).with_context(|| format!("cannot ask for {}", self.name))?;
        ensure!(followed.link != Some(device::Link::Gone), "interface {} has gone", self.name);
        Ok(())
    }
}

/// Until a frame arrives, a signal comes, or `span` is over.
fn sleep(link: &Link<XdpPort>, span: Duration) {
    let wait = Timespec { tv_sec: span.as_secs() as i64, tv_nsec: i64::from(span.subsec_nanos()) };
    let mut polled: Vec<_> = link.descriptors().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    // a signal ends the wait, and the flag says so
    let _ = poll(&mut polled, Some(&wait));
}

/// Says what became of all frames.
fn tell(options: &Options, link: &mut Link<XdpPort>) {
    let mut counts = link.counts();
    let dropped = |port: &mut XdpPort| {
        let (no_frame, ring_full) = port.stats().dropped_by_kernel();
        (port.queue() == 0, no_frame + ring_full + port.stats().in_pieces.get())
    };
    // each interface's queues begin with the first
    let mut side = 0;
    for (at, (first, n)) in link.ports().map(dropped).enumerate() {
        side += usize::from(first && at > 0);
        counts[side].missed += n;
    }
    let names = [(&options.a, &options.b), (&options.b, &options.a)];
    if options.json {
        let of = |((from, to), counts): (&(&String, &String), &Counts)| serde_json::json!({"from": from, "to": to, "frames": counts});
        println!("{}", serde_json::Value::from_iter(names.iter().zip(&counts).map(of)));
    } else if options.stats {
        for ((from, to), counts) in names.iter().zip(&counts) {
            println!("{from} to {to}: {counts}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_for_both_directions_or_one_each() {
        assert_eq!(pair(percent)("1"), Ok([0.01, 0.01]));
        assert_eq!(pair(percent)("0.5%,100"), Ok([0.005, 1.0]));
        for wrong in ["", "101", "-1", "nan", "1,2,3", "1,", "x"] {
            assert!(pair(percent)(wrong).is_err(), "{wrong}");
        }
        let ms = Duration::from_micros;
        assert_eq!(pair(milliseconds)("20,0.5"), Ok([ms(20_000), ms(500)]));
        assert!(pair(milliseconds)("60001").is_err());
    }

    #[test]
    fn rates_have_units() {
        assert_eq!(["64k", "10M", "1G", "9600"].map(bits), [Ok(64e3), Ok(10e6), Ok(1e9), Ok(9600.0)]);
        for wrong in ["", "0", "1T", "k", "-1M", "10m"] {
            assert!(bits(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn bursts_that_cannot_be_are_refused() {
        assert_eq!(burst("1:8"), Ok(BurstLoss::new(0.01, 8.0).unwrap()));
        for wrong in ["1", "1:0.5", "100:8", "90:2", "101:8", ":", "1:x"] {
            assert!(burst(wrong).is_err(), "{wrong}");
        }
    }
}
