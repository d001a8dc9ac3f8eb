//! A load on a server that speaks memcached's protocol, from our own stack's client side over a [`Port`]: records of the published mixes,
//! requests at the moments of a Poisson process whether or not answers come, every value compared.
//!
//! Latency runs from when a request was due, so what waits because all connections are busy waits on the clock. It is told twice: of the
//! connections that make the load, and of some that ask seldom, as mutilate's master does beside its agents. [`Load::search`] looks for
//! the highest rate at which the second has its 99th percentile within a bound, in so many windows ([`Bound`]).
//!
//! Left out: the binary protocol, UDP, multi-gets, and connections that are made anew while a load runs.

mod answer;
mod client;
mod outcome;
mod schedule;
mod search;
#[cfg(test)]
mod tests;
mod workload;

pub(crate) use client::Manner;
pub(crate) use outcome::{Bound, Outcome, WINDOWS_HELD, WINDOWS_LEAST};
pub(crate) use search::DOUBTS;
pub(crate) use workload::{Mix, Records, Share};

use crate::http::{Peer, Sources, dial, stack_config};
use crate::load::Wait;
use anyhow::{Result, ensure};
use base::{BURST_FRAMES, Instant};
use client::{Asks, Client};
use dataplane::Loop;
use port::Port;
use schedule::Schedule;
use search::Search;
use stack::Stack;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long connections, and last answers, are waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// Connections asked for between two cycles at most.
const DIALS: u32 = 64;
/// The stack's blocks for requests, of 2 KiB.
const OWNED_BLOCKS: u32 = 32_768;
/// A rate is given up when it failed so often: a virtual machine's processors are taken away now and then, on some in half of all tries. With two of
/// them, rounds of one server on such a machine were apart by a factor of two.
pub(crate) const TRIES: usize = 4;

/// How a load is run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// requests a second; None: one whenever a connection has fewer under way than it may have
    pub(crate) rate: Option<f64>,
    /// requests a second of the connections that ask seldom, together
    pub(crate) probe_rate: f64,
    /// how long to ask
    pub(crate) span: Duration,
    /// how long to ask before that, with answers that do not count
    pub(crate) warm_up: Duration,
    /// where a greater share of the GETs finds nothing, a rate does not hold
    pub(crate) misses_most: f64,
    /// what to do when nothing is due
    pub(crate) wait: Wait,
}

/// A generator.
#[derive(Debug)]
pub(crate) struct Load<P> {
    work: Loop<P, Client>,
    peer: Peer,
    sources: Sources,
    seed: u64,
}

impl<P: Port> Load<P> {
    /// A generator over `port`; `secret` makes sequence numbers and timestamps.
    pub(crate) fn new(
        port: P,
        records: Records,
        manner: Manner,
        peer: Peer,
        sources: Sources,
        secret: [u64; 2],
    ) -> Load<P> {
        let mut config = stack_config(sources.addresses(), manner.connections + manner.probes, secret);
        if let Some(tcp) = &mut config.tcp {
            tcp.limits.owned_blocks = OWNED_BLOCKS;
        }
        let stack = Stack::new(config, port.facts());
        let work = Loop::new(port, stack, Client::new(records, manner, secret[0]), BURST_FRAMES);
        Load { work, peer, sources, seed: secret[1] }
    }

    /// Opens all connections. `tick` tells the time, once an iteration; tests move it by hand and let the other end work there.
    pub(crate) fn connect(&mut self, wait: Wait, tick: &mut impl FnMut() -> Instant) -> Result<()> {
        let (mut next, mut now) = (0, tick());
        let end = now + PATIENCE;
        while self.work.service().pending() > 0 && now < end {
            let (peer, sources) = (&self.peer, &mut self.sources);
            self.work.with_parts(|client, stack| {
                for _ in 0..DIALS {
                    let Some(index) = client.unasked(next) else { break };
                    let asked = dial(now, stack, peer, sources, index.into()).map_err(|why| why.to_string());
                    client.on_asked(index, asked);
                    next = index + 1;
                }
            });
            self.work.poll_soon();
            now = self.step(wait, tick);
        }
        let client = self.work.service();
        let (count, pending, failures) = (client.count(), client.pending(), &client.outcome.failures);
        ensure!(
            pending == 0 && failures.is_empty(),
            "not all of {count} connections stand: {pending} unanswered {failures:?}"
        );
        Ok(())
    }

    /// Stores every record once.
    pub(crate) fn store(&mut self, wait: Wait, tick: &mut impl FnMut() -> Instant) -> Result<Outcome> {
        let client = self.work.service();
        client.count_anew(Outcome::new(None));
        client.ask(Asks::Stores(0));
        let start = tick();
        client.schedule = Schedule::new(start, Duration::from_secs(3600), None, 0);
        let mut heard = (0, start);
        loop {
            let now = self.step(wait, tick);
            let client = self.work.service();
            if client.has_stored_all() && client.under_way() == 0 {
                break;
            }
            if client.outcome.answered > heard.0 {
                heard = (client.outcome.answered, now);
            }
            ensure!(client.is_alive(), "no connection is left: {:?}", client.outcome.failures);
            ensure!(now.saturating_since(heard.1) < PATIENCE, "the server says nothing any more: {}", client.outcome);
        }
        Ok(self.end(start, tick))
    }

    /// Asks as planned, and tells what came of it. `stop` ends it early.
    pub(crate) fn run(&mut self, plan: &Plan, stop: &AtomicBool, tick: &mut impl FnMut() -> Instant) -> Outcome {
        if !plan.warm_up.is_zero() {
            self.begin(plan, tick(), plan.warm_up);
            self.ask(plan.wait, stop, tick);
            self.drain(plan.wait, tick);
        }
        let start = tick();
        self.begin(plan, start, plan.span);
        let now = self.ask(plan.wait, stop, tick);
        let client = self.work.service();
        client.outcome.missed = client.schedule.missed(now);
        self.drain(plan.wait, tick);
        let span = now - start;
        let mut outcome = self.end(start, tick);
        outcome.span_ns = span.as_nanos() as u64;
        outcome
    }

    /// Looks for the highest rate whose 99th percentile is within a bound ([`Outcome::holds`]), from `from` on; every run, the best one first. A rate holds if any of
    /// [`TRIES`] does, so the best is the most that was seen: with rates that hold by chance it is more than what holds always.
    pub(crate) fn search(
        &mut self,
        plan: &Plan,
        (from, bound): (f64, Bound),
        stop: &AtomicBool,
        tick: &mut impl FnMut() -> Instant,
    ) -> Vec<Outcome> {
        let mut runs = Vec::<Outcome>::new();
        let mut search = Search::from(from);
        while let Some(rate) = search.rate
            && !stop.load(Ordering::Relaxed)
            && self.renew(plan.wait, tick)
        {
            let held = (0..TRIES).any(|_| {
                self.renew(plan.wait, tick);
                let outcome = self.run(&Plan { rate: Some(rate), ..*plan }, stop, tick);
                let held = outcome.holds(bound);
                eprintln!(
                    "{rate:>9.0}/s  {:>9.0} answered/s  p99 {:>7.1} us{}  {} failed  {} not found  {}",
                    outcome.answered_rate(),
                    outcome.p99_us(),
                    outcome
                        .windows_held(bound.p99_us)
                        .map_or_else(String::new, |share| format!(", kept by {:.0}% of windows", share * 100.0)),
                    outcome.failed(),
                    outcome.misses,
                    if held { "held" } else { "not held" }
                );
                runs.push(outcome);
                held
            });
            search.found(rate, held);
        }
        let best = |outcome: &Outcome| if outcome.holds(bound) { outcome.answered_rate() } else { 0.0 };
        runs.sort_by(|a, b| best(b).total_cmp(&best(a)));
        runs
    }

    /// Asks again for the connections that failed, so that no rate is tried with fewer; whether there is any. Whatever does not stand then
    /// is lacking in the next run, which holds nothing.
    fn renew(&mut self, wait: Wait, tick: &mut impl FnMut() -> Instant) -> bool {
        self.work.service().renew();
        if let Err(why) = self.connect(wait, tick) {
            eprintln!("{why}");
        }
        self.work.service().is_alive()
    }

    /// Ends all connections.
    pub(crate) fn close(&mut self, wait: Wait, tick: &mut impl FnMut() -> Instant) {
        let now = tick();
        self.work.with_parts(|client, stack| {
            if let Some(mut calls) = stack.calls(now) {
                client.close(&mut calls);
            }
        });
        self.work.poll_soon();
        self.step(wait, tick);
    }

    fn begin(&mut self, plan: &Plan, now: Instant, span: Duration) {
        self.seed = self.seed.wrapping_add(2);
        let seed = self.seed;
        let client = self.work.service();
        let mut outcome = Outcome::new(plan.rate);
        outcome.misses_most = plan.misses_most;
        outcome.lacking = client.lacking();
        client.count_anew(outcome);
        client.ask(Asks::Records);
        client.schedule = Schedule::new(now, span, plan.rate, seed);
        client.probing = if plan.probe_rate > 0.0 {
            Schedule::new(now, span, Some(plan.probe_rate), seed + 1)
        } else {
            Schedule::never()
        };
    }

    /// Asks until no more requests become due; the time then.
    fn ask(&mut self, wait: Wait, stop: &AtomicBool, tick: &mut impl FnMut() -> Instant) -> Instant {
        let mut now = tick();
        while !self.work.service().schedule.is_over(now)
            && self.work.service().is_alive()
            && !stop.load(Ordering::Relaxed)
        {
            now = self.step(wait, tick);
        }
        now
    }

    /// Waits for the last answers.
    fn drain(&mut self, wait: Wait, tick: &mut impl FnMut() -> Instant) {
        let mut now = tick();
        let end = now + PATIENCE;
        let client = self.work.service();
        (client.schedule, client.probing) = (Schedule::never(), Schedule::never());
        while self.work.service().under_way() > 0 && now < end {
            now = self.step(wait, tick);
        }
    }

    /// What came since the beginning, which is over.
    fn end(&mut self, start: Instant, tick: &mut impl FnMut() -> Instant) -> Outcome {
        let client = self.work.service();
        (client.schedule, client.probing) = (Schedule::never(), Schedule::never());
        client.ask(Asks::Nothing);
        let mut outcome = std::mem::replace(&mut client.outcome, Outcome::new(None));
        outcome.unfinished = client.under_way();
        outcome.span_ns = (tick() - start).as_nanos() as u64;
        outcome.finish();
        outcome
    }

    /// One cycle and what is due between two; the cycle's time.
    fn step(&mut self, wait: Wait, tick: &mut impl FnMut() -> Instant) -> Instant {
        let now = tick();
        let activity = self.work.cycle(now);
        let busy = self.work.with_parts(|client, stack| {
            client.next_at(now) <= now && stack.calls(now).is_some_and(|mut calls| client.pump(now, &mut calls))
        });
        if busy {
            self.work.poll_soon();
        }
        // the receive thread of a veth's end may share this processor (see `load`)
        if wait == Wait::Yield || !(activity.is_busy() || busy) {
            let next = self.work.service().next_at(now).min(activity.next.unwrap_or(Instant::MAX));
            let span = if busy { Duration::ZERO } else { next.saturating_since(now) };
            wait.pass(self.work.port(), span.as_nanos() as u64, activity.outgoing);
        }
        now
    }
}
