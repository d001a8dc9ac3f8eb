//! `simoom ping --ladder`: from a thread that sleeps to one that spins, a step after the other.
//!
//! The steps are those of the client. The server's are its own: `simoom echo` is started with `--idle`, `--busy-poll` and `--cpus` by
//! whoever runs it. Without an address ping serves itself over loopback, and then both sides take each step together, as the paper
//! has it. All steps use one source port, so one flow: a NIC that hashes ports keeps it on one queue.
//!
//! The processor that takes the NIC's interrupts is where the kernel says it received the first step's answers.

use super::kernel::{connected, local};
use super::{How, Options, Outcome, Target, judge, load, measure, print, show, xdp};
use crate::error::{Error, reason};
use crate::words::{Idle, Mode, Sleep};
use app::Listener;
use rustix::thread::{CpuSet, sched_getaffinity};
use sockets::{Config, Endpoint, Engine, Transport};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The paper's.
const BUSY_POLL_US: u32 = 50;
/// Where ping's own server listens; the kernel chooses the port.
const OWN: ([u8; 4], u16) = ([127, 0, 0, 1], 0);

/// A step: what it is called, and how either side waits.
#[derive(Clone, Debug)]
struct Step {
    name: String,
    how: How,
    /// where ping's own server runs
    server_cpu: Option<usize>,
}

/// What all steps have in common.
struct Common {
    target: Option<SocketAddr>,
    source_port: u16,
    busy_poll_us: u32,
    interface: Option<String>,
    mode: Mode,
    sleep: Sleep,
}

impl Common {
    fn step(&self, name: &str, idle: Idle, busy_poll_us: u32, cpu: Option<usize>) -> Step {
        let how = How {
            interface: None,
            mode: self.mode,
            idle,
            sleep: self.sleep,
            busy_poll_us,
            cpu,
            source_port: self.source_port,
        };
        Step { name: name.to_owned(), how, server_cpu: None }
    }

    /// What needs no processor to be known.
    fn first(&self) -> Vec<Step> {
        let us = self.busy_poll_us;
        vec![
            self.step("sleeping in the kernel", Idle::Block, 0, None),
            self.step(&format!("SO_BUSY_POLL={us}"), Idle::Block, us, None),
            self.step("spinning", Idle::Spin, 0, None),
        ]
    }

    /// Pinned: on the processor that takes the interrupts, and beside it.
    fn pinned(&self, interrupts: Option<usize>, processors: &[usize]) -> Vec<Step> {
        let Some(on) = interrupts.or(processors.first().copied()) else { return Vec::new() };
        let Some(beside) = neighbour(on, processors) else {
            eprintln!("simoom: one processor: there is none beside the one that takes the interrupts");
            return vec![self.step(&format!("spinning on processor {on}"), Idle::Spin, 0, Some(on))];
        };
        if self.target.is_none() {
            // over loopback whoever sends takes the receiver's interrupt: always beside
            let step = self.step(&format!("spinning on {beside}, server on {on}"), Idle::Spin, 0, Some(beside));
            return vec![Step { server_cpu: Some(on), ..step }];
        }
        let mut steps = vec![
            self.step(&format!("spinning on {on}, which receives"), Idle::Spin, 0, Some(on)),
            self.step(&format!("spinning on {beside}, beside it"), Idle::Spin, 0, Some(beside)),
        ];
        if let Some(interface) = &self.interface {
            for (idle, cpu) in
                [(Idle::Block, None), (Idle::Adaptive, None), (Idle::Spin, Some(on)), (Idle::Spin, Some(beside))]
            {
                let place = cpu.map_or(String::new(), |cpu| format!(" on {cpu}"));
                let mut step = self.step(&format!("AF_XDP, {idle}{place}"), idle, 0, cpu);
                step.how.interface = Some(interface.clone());
                steps.push(step);
            }
        }
        steps
    }
}

/// The processor next to `on` that we may use.
fn neighbour(on: usize, processors: &[usize]) -> Option<usize> {
    // beside it in number, which on most machines shares its caches and memory
    processors.iter().copied().filter(|&cpu| cpu != on).min_by_key(|cpu| cpu.abs_diff(on))
}

/// The processors that this process may run on.
fn processors() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect()
}

/// Takes every step and draws them.
///
/// # Errors
/// What keeps the first step from being taken, and a step without an answer or with a wrong one.
pub(super) fn run(options: &Options, stop: &AtomicBool) -> Result<String, Error> {
    let target = options.target.map(|Target(target)| target);
    if let (None, Some(interface)) = (target, &options.interface) {
        return Err(Error::input(format!(
            "--interface {interface}: ping's own server answers over loopback; give the address of another, or leave it out"
        )));
    }
    let source_port = match (options.source_port, target) {
        (Some(port), _) => port.0 as u16,
        // one that is free now
        (None, Some(target)) => local(&connected(target, 0)?)?.port(),
        (None, None) => 0,
    };
    let common = Common {
        target,
        source_port,
        busy_poll_us: options.busy_poll.map_or(BUSY_POLL_US, |us| us.0),
        interface: options.interface.clone(),
        mode: options.mode.unwrap_or(Mode::Auto),
        sleep: options.sleep.unwrap_or(Sleep::Recv),
    };
    let mut done = Vec::new();
    for step in common.first() {
        take(&common, step, options, stop, &mut done)?;
    }
    let interrupts = done.first().and_then(|(_, first): &(String, Outcome)| first.incoming_cpu);
    for step in common.pinned(interrupts, &processors()) {
        take(&common, step, options, stop, &mut done)?;
    }
    let text = if options.json {
        let steps = done.iter().map(|(name, outcome)| {
            let mut figures = show::json(outcome);
            figures["step"] = name.as_str().into();
            figures
        });
        format!("{}\n", serde_json::Value::from_iter(steps))
    } else {
        show::ladder(&done)
    };
    print(&text);
    done.iter().try_for_each(|(_, outcome)| judge(outcome)).map(|()| String::new())
}

/// Takes one step. One that this machine cannot take is said and left out, except the first.
fn take(
    common: &Common,
    step: Step,
    options: &Options,
    stop: &AtomicBool,
    done: &mut Vec<(String, Outcome)>,
) -> Result<(), Error> {
    if stop.load(Ordering::Relaxed) {
        return Ok(());
    }
    let load = load(options, 2)?;
    let outcome = match common.target {
        Some(target) => measure(target, &step.how, &load, stop),
        None => {
            let server = serve(&step)?;
            let outcome = measure(server.addresses()[0], &step.how, &load, stop);
            server.stop();
            outcome
        }
    };
    match outcome {
        Ok(outcome) => done.push((step.name, outcome)),
        Err(error) if done.is_empty() => return Err(error),
        Err(error) => eprintln!("simoom: {}: left out: {}", step.name, xdp::why_not(&error)),
    }
    Ok(())
}

/// An echo server over loopback that waits as the step's client does.
fn serve(step: &Step) -> Result<sockets::Running, Error> {
    let endpoint = Endpoint {
        listener: Listener(0),
        address: SocketAddr::from(OWN),
        transport: Transport::Udp,
        window_bytes: None,
        backlog: None,
    };
    let config = Config {
        endpoints: vec![endpoint],
        cpus: step.server_cpu.into_iter().collect(),
        datagram_bytes: 65_535,
        busy_poll_us: step.how.busy_poll_us,
        idle: match step.how.idle {
            Idle::Spin => sockets::Idle::Spin,
            Idle::Adaptive => sockets::Idle::Adaptive,
            Idle::Block => sockets::Idle::Block,
        },
        ..Config::default()
    };
    let engine = Engine::bind(config).map_err(|error| Error::environment(format!("ping's own server: {error}")))?;
    engine
        .start(|_| echo::Server::with_stats(echo::Options::default(), Arc::default()))
        .map_err(|error| Error::environment(format!("ping's own server: {}", reason(&error))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn common(target: Option<&str>, interface: Option<&str>) -> Common {
        Common {
            target: target.map(|target| target.parse().unwrap()),
            source_port: 40_000,
            busy_poll_us: 50,
            interface: interface.map(Into::into),
            mode: Mode::Auto,
            sleep: Sleep::Recv,
        }
    }

    #[test]
    fn the_steps_are_the_papers() {
        let first = common(None, None).first();
        let ways: Vec<_> = first.iter().map(|step| (step.how.idle, step.how.busy_poll_us, step.how.cpu)).collect();
        assert_eq!(ways, [(Idle::Block, 0, None), (Idle::Block, 50, None), (Idle::Spin, 0, None)]);
        assert!(first.iter().all(|step| step.how.source_port == 40_000));
    }

    #[test]
    fn both_sides_of_the_interrupt_are_taken() {
        let cpus =
            |steps: &[Step]| steps.iter().map(|step| (step.how.interface.is_some(), step.how.cpu)).collect::<Vec<_>>();
        let steps = common(Some("192.0.2.1:7"), None).pinned(Some(1), &[0, 1, 2, 3]);
        assert_eq!(cpus(&steps), [(false, Some(1)), (false, Some(0))]);
        let steps = common(Some("192.0.2.1:7"), Some("e0")).pinned(Some(0), &[0, 1]);
        let af_xdp = [(true, None), (true, None), (true, Some(0)), (true, Some(1))];
        assert_eq!(cpus(&steps)[2..], af_xdp);
        // over loopback there is no interrupt of a NIC: the server has the other processor
        let steps = common(None, None).pinned(Some(0), &[0, 1]);
        assert_eq!(steps.iter().map(|step| (step.how.cpu, step.server_cpu)).collect::<Vec<_>>(), [(Some(1), Some(0))]);
        assert_eq!(common(None, None).pinned(None, &[3]).len(), 1);
    }

    #[test]
    fn this_process_may_run_somewhere() {
        assert!(!processors().is_empty());
        assert_eq!(neighbour(2, &[0, 2, 3, 7]), Some(3));
        assert_eq!(neighbour(0, &[0]), None);
    }
}
