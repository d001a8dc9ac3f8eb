//! `simoom ping`: round trips to an echo server, one after the other or at a rate, over a kernel socket or through AF_XDP.
//!
//! Each probe says which one it is and every octet of it is known ([`echo::probe`]), so a lost, late, doubled, overtaken or changed
//! answer is told as what it is. The time runs from before the call that sends to after the one that receives.
//!
//! Left out: several threads; names instead of addresses.

mod drive;
mod kernel;
mod ladder;
mod show;
mod tally;
mod xdp;

use crate::error::{Error, reason};
use crate::secrets::random;
use crate::words::{Backend, Cpus, Idle, Mode, Sleep, Within};
use drive::{Load, drive};
use kernel::Kernel;
use rustix::thread::CpuSet;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tally::Tally;
use xdp::Xdp;

/// Where the echo server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target(pub SocketAddr);

impl FromStr for Target {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let with_port = || text.parse::<SocketAddr>().ok();
        let address = text.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, echo::PORT)).or_else(with_port);
        let address = address.ok_or_else(|| {
            format!("`{text}` is not an address; write it as 192.0.2.1, 192.0.2.1:7, 2001:db8::1 or [2001:db8::1]:7")
        })?;
        if address.port() == 0 || address.ip().is_unspecified() || address.ip().is_multicast() {
            return Err(format!("`{text}` is nobody's address; give a unicast address and a port from 1 to 65535"));
        }
        Ok(Target(address))
    }
}

/// `simoom ping`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Ends with status 1 when no answer came or one was wrong. Ctrl-C ends it with its figures told.
Without --rate the next probe goes out when an answer has come (--in-flight of them at once).")]
pub struct Options {
    /// The echo server; the port is 7 unless told. With --ladder and without it: a server of ping's own, over loopback
    #[arg(value_name = "ADDR[:PORT]", required_unless_present = "ladder")]
    pub target: Option<Target>,
    /// Octets of a probe, 16 to 65507
    #[arg(long, value_name = "BYTES", default_value = "32")]
    pub size: Within<16, 65_507>,
    /// End after so many probes
    #[arg(long, value_name = "N")]
    pub count: Option<Within<1, { u32::MAX }>>,
    /// End after so many seconds; default: 10, with --ladder 2 a step, with --count when that is reached
    #[arg(long, value_name = "S")]
    pub seconds: Option<Within<1, 86_400>>,
    /// Probes a second, whatever comes back
    #[arg(long, value_name = "R", conflicts_with = "in_flight")]
    pub rate: Option<Within<1, 10_000_000>>,
    /// Probes on their way at once; default: 1
    #[arg(long, value_name = "N")]
    pub in_flight: Option<Within<1, 4096>>,
    /// An answer that takes longer is none, in milliseconds
    #[arg(long, value_name = "MS", default_value = "1000")]
    pub timeout: Within<1, 60_000>,
    /// Probes of this time at the beginning do not count, in milliseconds
    #[arg(long, value_name = "MS", default_value = "100")]
    pub warm_up: Within<0, 60_000>,
    /// Send and receive on this interface through AF_XDP
    #[arg(long, value_name = "IF")]
    pub interface: Option<String>,
    /// xdp, sockets, or auto (xdp where it can be had); default: xdp with --interface, else sockets
    #[arg(long, value_name = "WORD", conflicts_with = "ladder")]
    pub backend: Option<Backend>,
    /// How AF_XDP is bound: auto, zerocopy, copy or generic
    #[arg(long, value_name = "WORD", requires = "interface")]
    pub mode: Option<Mode>,
    /// What to do while waiting: spin, adaptive (ask for a while, then sleep) or block; default: adaptive
    #[arg(long, value_name = "WORD", conflicts_with = "ladder")]
    pub idle: Option<Idle>,
    /// How to sleep on a kernel socket: recv or epoll; default: recv, with --rate epoll
    #[arg(long, value_name = "WORD")]
    pub sleep: Option<Sleep>,
    /// Have a receive poll the device's queue for so many microseconds (SO_BUSY_POLL); 0 is off; with --ladder the step's, 50
    #[arg(long, value_name = "US")]
    pub busy_poll: Option<Within<0, 10_000>>,
    /// The processor to run on
    #[arg(long, value_name = "N", conflicts_with = "ladder")]
    pub cpus: Option<Cpus>,
    /// The port that probes come from; it decides over the receive queue of a NIC that hashes ports
    #[arg(long, value_name = "PORT")]
    pub source_port: Option<Within<1, 65_535>>,
    /// Figures as JSON
    #[arg(long)]
    pub json: bool,
    /// Take the paper's steps one after another, from a sleeping thread to a spinning one, and draw what each gains
    #[arg(long, conflicts_with_all = ["rate", "in_flight"])]
    pub ladder: bool,
}

/// One way to wait for answers.
#[derive(Clone, Debug)]
struct How {
    /// None uses a kernel socket
    interface: Option<String>,
    mode: Mode,
    idle: Idle,
    sleep: Sleep,
    busy_poll_us: u32,
    /// None leaves it to the kernel
    cpu: Option<usize>,
    /// 0 leaves it to the kernel
    source_port: u16,
}

/// What a run has shown, and how it was made.
#[derive(Clone, Debug)]
struct Outcome {
    target: SocketAddr,
    local: SocketAddr,
    bytes: usize,
    how: How,
    /// in words, what carried the probes
    backend: String,
    /// where the kernel received the last answer, if it says so
    incoming_cpu: Option<usize>,
    tally: Tally,
}

/// Measures, and gives the figures as text.
///
/// # Errors
/// What cannot be done, and a run without an answer or with a wrong one, whose figures were shown already.
pub(crate) fn run(options: &Options) -> Result<String, Error> {
    let stop = stop_flag()?;
    if options.ladder {
        return ladder::run(options, &stop);
    }
    let Some(Target(target)) = options.target else { return Err(Error::input("no address; give ADDR[:PORT]")) };
    let how = how(options)?;
    let load = load(options, 10)?;
    let outcome = match measure(target, &how, &load, &stop) {
        Err(Error::Environment(why)) if how.interface.is_some() && options.backend == Some(Backend::Auto) => {
            eprintln!("simoom: a kernel socket instead of AF_XDP: {}", xdp::why_not(&Error::Environment(why)));
            measure(target, &How { interface: None, ..how }, &load, &stop)?
        }
        outcome => outcome?,
    };
    let text = if options.json { format!("{}\n", show::json(&outcome)) } else { show::text(&outcome) };
    print(&text);
    judge(&outcome).map(|()| String::new())
}

/// A flag that SIGINT and SIGTERM set; a second one ends the process at once.
fn stop_flag() -> Result<Arc<AtomicBool>, Error> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register_conditional_default(signal, stop.clone())
            .and_then(|_| signal_hook::flag::register(signal, stop.clone()))
            .map_err(|error| Error::environment(format!("signals: {}", reason(&error))))?;
    }
    Ok(stop)
}

/// The figures come before the complaint about them.
fn print(text: &str) {
    use std::io::Write;
    // a reader that went (`| head`) is no error
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// Refuses what contradicts itself.
fn how(options: &Options) -> Result<How, Error> {
    let backend = options.backend.unwrap_or(match options.interface {
        Some(_) => Backend::Xdp,
        None => Backend::Sockets,
    });
    let interface = match (backend, &options.interface) {
        (Backend::Xdp | Backend::Auto, None) => {
            return Err(Error::input(format!("--backend {backend}: needs an interface; add --interface IF")));
        }
        (Backend::Sockets, _) => None,
        (Backend::Xdp | Backend::Auto, interface) => interface.clone(),
    };
    let cpu = match options.cpus.as_ref().map(|cpus| cpus.0.as_slice()) {
        None => None,
        Some([cpu]) => Some(*cpu),
        Some(several) => {
            return Err(Error::input(format!("--cpus: {} processors for one thread; give one", several.len())));
        }
    };
    let sleep = options.sleep.unwrap_or(if options.rate.is_some() { Sleep::Epoll } else { Sleep::Recv });
    if options.rate.is_some() && sleep == Sleep::Recv {
        return Err(Error::input("--sleep recv: sleeps past the time of the next probe of --rate; use --sleep epoll"));
    }
    Ok(How {
        interface,
        mode: options.mode.unwrap_or(Mode::Auto),
        idle: options.idle.unwrap_or(Idle::Adaptive),
        sleep,
        busy_poll_us: options.busy_poll.map_or(0, |us| us.0),
        cpu,
        source_port: options.source_port.map_or(0, |port| port.0 as u16),
    })
}

/// What is sent; `seconds` is how long by default.
fn load(options: &Options, seconds: u32) -> Result<Load, Error> {
    let entropy = random::<4>().map_err(|error| Error::environment(format!("/dev/urandom: {}", reason(&error))))?;
    let seconds = match (options.seconds, options.count) {
        (None, Some(_)) => None,
        (given, _) => Some(given.map_or(seconds, |seconds| seconds.0)),
    };
    Ok(Load {
        run: u32::from_ne_bytes(entropy).max(xdp::FIRST_RUN + 1),
        bytes: options.size.0 as usize,
        rate: options.rate.map(|rate| rate.0),
        in_flight: options.in_flight.map_or(1, |n| n.0.into()),
        timeout: Duration::from_millis(options.timeout.0.into()),
        warm_up: Duration::from_millis(options.warm_up.0.into()),
        span: seconds.map(|seconds| Duration::from_secs(seconds.into())),
        count: options.count.map(|count| count.0.into()),
    })
}

/// One run, on a thread of its own, so that its processor is no other's business.
fn measure(target: SocketAddr, how: &How, load: &Load, stop: &AtomicBool) -> Result<Outcome, Error> {
    let work = || {
        how.cpu.map_or(Ok(()), pin)?;
        let outcome = |local, backend, incoming_cpu, tally| {
            let how = how.clone();
            Outcome { target, local, bytes: load.bytes, how, backend, incoming_cpu, tally }
        };
        let probes = (load.run, load.bytes);
        match &how.interface {
            Some(interface) => {
                let setup = xdp::Setup { interface, mode: how.mode, busy_poll_us: how.busy_poll_us };
                let mut link = Xdp::open(target, how.source_port, &setup, probes, stop)?;
                let tally = drive(&mut link, load, how.idle, stop)?;
                Ok(outcome(link.local(), format!("AF_XDP: {}", link.what), None, tally))
            }
            None => {
                let mut link = Kernel::open(target, how.source_port, how.busy_poll_us, how.sleep, probes)?;
                let local = link.local()?;
                let tally = drive(&mut link, load, how.idle, stop)?;
                Ok(outcome(local, "kernel socket".into(), link.incoming_cpu(), tally))
            }
        }
    };
    std::thread::scope(|scope| {
        // a panic there is one of ours, and was shown
        scope.spawn(work).join().unwrap_or_else(|_| Err(Error::environment("the measuring thread ended early")))
    })
}

fn pin(cpu: usize) -> Result<(), Error> {
    let none = || Error::input(format!("--cpus: there is no processor {cpu}; see /sys/devices/system/cpu/online"));
    if cpu >= CpuSet::MAX_CPU {
        return Err(none());
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).map_err(|_| none())
}

/// A run without an answer, or with a wrong one, is a failure, whose figures were shown.
fn judge(Outcome { target, tally, .. }: &Outcome) -> Result<(), Error> {
    if tally.damaged > 0 {
        return Err(Error::environment(format!("{target}: {} answers had wrong octets", tally.damaged)));
    }
    if tally.answered > 0 || (tally.sent == 0 && tally.lost == 0) {
        return Ok(());
    }
    let refused = if tally.unreachable > 0 { "nobody listens there, or it cannot be reached" } else { "nothing came" };
    Err(Error::environment(format!(
        "{target}: no answer to {} probes: {refused}; is an echo server up (`simoom echo`), and the way open?",
        tally.sent
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(args: &str) -> Options {
        let line = format!("simoom ping {args}");
        match crate::cli::parse("1", line.split_whitespace().map(Into::into)) {
            Ok(Ok(crate::cli::Cli { command: crate::cli::Command::Ping(options) })) => options,
            other => panic!("{args}: {other:?}"),
        }
    }

    fn refused(args: &str) -> String {
        let line = format!("simoom ping {args}");
        match crate::cli::parse("1", line.split_whitespace().map(Into::into)) {
            Err(error) => error.to_string(),
            Ok(_) => how(&options(args)).unwrap_err().to_string(),
        }
    }

    #[test]
    fn targets_have_a_port_or_the_services() {
        let target = |text: &str| text.parse::<Target>().unwrap().0.to_string();
        assert_eq!(target("192.0.2.1"), "192.0.2.1:7");
        assert_eq!(target("192.0.2.1:7007"), "192.0.2.1:7007");
        assert_eq!(target("2001:db8::1"), "[2001:db8::1]:7");
        assert_eq!(target("[2001:db8::1]:9"), "[2001:db8::1]:9");
        for (text, words) in
            [("host", "is not an address"), ("192.0.2.1:0", "nobody's"), ("::", "nobody's"), ("224.0.0.1", "nobody's")]
        {
            assert!(text.parse::<Target>().unwrap_err().contains(words), "{text}");
        }
    }

    #[test]
    fn defaults_are_a_closed_loop_on_a_kernel_socket() {
        let options = options("192.0.2.1");
        let (how, load) = (how(&options).unwrap(), load(&options, 10).unwrap());
        assert_eq!((how.interface, how.idle, how.sleep), (None, Idle::Adaptive, Sleep::Recv));
        assert_eq!((load.bytes, load.rate, load.in_flight, load.count), (32, None, 1, None));
        assert_eq!(load.span, Some(Duration::from_secs(10)));
        assert_ne!(load.run, xdp::FIRST_RUN);
    }

    #[test]
    fn a_count_has_no_time_of_its_own_and_a_rate_sleeps_in_epoll() {
        let options = options("192.0.2.1 --count 5 --rate 1000");
        assert_eq!((load(&options, 10).unwrap().span, load(&options, 10).unwrap().count), (None, Some(5)));
        assert_eq!(how(&options).unwrap().sleep, Sleep::Epoll);
    }

    #[test]
    fn what_contradicts_itself_is_one_line() {
        for (args, words) in [
            ("", "required arguments were not provided: <ADDR[:PORT]>"),
            ("192.0.2.1 --size 15", "`15` is not a whole number from 16 to 65507"),
            ("192.0.2.1 --backend xdp", "--backend xdp: needs an interface; add --interface IF"),
            ("192.0.2.1 --cpus 0,1", "--cpus: 2 processors for one thread; give one"),
            ("192.0.2.1 --rate 10 --sleep recv", "use --sleep epoll"),
            ("192.0.2.1 --rate 10 --in-flight 3", "cannot be used with"),
            ("--ladder --idle spin", "cannot be used with"),
            ("192.0.2.1 --mode copy", "required arguments were not provided: --interface <IF>"),
        ] {
            let line = refused(args);
            assert!(line.contains(words) && !line.contains('\n'), "{args}: {line}");
        }
    }
}
