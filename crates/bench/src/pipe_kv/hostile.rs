//! `simoom-bench protection --hostile SECONDS`: what an application that keeps to nothing takes from an honest one beside it.
//!
//! Both are served by one thread of the server. The honest one echoes over the in-memory pipe. The hostile one is
//! [`guard::hostile::Hostile`] in a process of its own; its connections end in an engine that takes everything, so that what it costs is the
//! judging. It is stopped and let go on in turn, a slice each, and the slices of one round are compared.

use super::clients::{Clients, Plan};
use super::protected::{Other, ProtectionOptions, SPIN};
use crate::pipe::{Figure, RoundFigures, write};
use crate::pipe_tcp::services::Echo;
use crate::stats::{Summary, paired_ratio};
use anyhow::{Context as _, Result, bail, ensure};
use app::{Addresses, CallError, Coming, Connection, DeadReason, Listener, Range, Service, Streams, Waker};
use base::Instant;
use guard::stats::{REJECTS, Stats};
use guard::{Place, Remote};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// Frames a cycle.
const BATCHES: [usize; 3] = [1, 16, 64];
const CONNECTIONS: usize = 64;
/// Connections of the hostile one.
const FOES: usize = 16;
/// Cycles for each thing that happens to one of them.
const CYCLES_AN_EVENT: u32 = 64;
/// What the project asks of itself: at most so much of the time that the honest one takes alone.
const ASKED: &str = "1.10 of alone";

/// One connection of the hostile application.
#[derive(Clone, Copy, Debug, Default)]
struct Foe {
    generation: u32,
    cookie: Option<u64>,
    /// sent and not reported
    sent: usize,
    ended: bool,
}

/// An engine that takes everything at once and whose peers say something now and then.
#[derive(Debug)]
struct Elsewhere {
    foes: [Foe; FOES],
}

impl Elsewhere {
    fn foe(&mut self, connection: Connection) -> Result<&mut Foe, CallError> {
        let foe = self.foes.get_mut(connection.index as usize);
        let is = |foe: &&mut Foe| foe.generation == connection.generation && foe.cookie.is_some() && !foe.ended;
        foe.filter(is).ok_or(CallError::NoConnection)
    }

    fn end(&mut self, connection: Connection) -> Result<(), CallError> {
        self.foe(connection).map(|foe| foe.ended = true)
    }

    /// Tells what has happened to one connection: that it is there, gone, was sent something, or has taken something.
    fn tell(&mut self, now: Instant, remote: &mut Remote, n: usize) {
        let Foe { generation, cookie, sent, ended } = self.foes[n];
        let connection = Connection { index: n as u32, generation };
        let Some(cookie) = cookie else {
            self.foes[n] = Foe { generation: generation.wrapping_add(1), ..Foe::default() };
            let connection = Connection { generation: self.foes[n].generation, ..connection };
            let any = ([192, 0, 2, 1], 7).into();
            return remote.knock(now, self, Listener(0), connection, Addresses { local: any, peer: any });
        };
        if ended {
            self.foes[n].cookie = None;
            return remote.dead(now, connection, cookie, DeadReason::Closed);
        }
        if sent > 0 {
            self.foes[n].sent = 0;
            return remote.sent(now, self, connection, cookie, sent, usize::MAX);
        }
        remote.recv(now, self, connection, cookie, b"something to answer");
    }
}

impl Streams for Elsewhere {
    fn accept(&mut self, connection: Connection, cookie: u64) -> Result<(), CallError> {
        self.foes[connection.index as usize].cookie = Some(cookie);
        Ok(())
    }
    fn reject(&mut self, _: Connection) -> Result<(), CallError> {
        Ok(())
    }
    fn sendv(&mut self, connection: Connection, ranges: &[Range<'_>]) -> Result<u64, CallError> {
        let bytes: u64 = ranges.iter().map(Range::bytes).sum();
        self.foe(connection)?.sent += bytes as usize;
        Ok(bytes)
    }
    fn room(&self, _: Connection) -> usize {
        usize::MAX
    }
    fn recv_done(&mut self, connection: Connection, _: usize) -> Result<(), CallError> {
        self.foe(connection).map(drop)
    }
    fn shutdown(&mut self, connection: Connection) -> Result<(), CallError> {
        self.foe(connection).map(drop)
    }
    fn close(&mut self, connection: Connection) -> Result<(), CallError> {
        self.end(connection)
    }
    fn abort(&mut self, connection: Connection) -> Result<(), CallError> {
        self.end(connection)
    }
    fn timer_set(&mut self, connection: Connection, _: Option<Instant>) -> Result<(), CallError> {
        self.foe(connection).map(drop)
    }
}

/// An honest service, and beside it what serves the hostile one while that is there.
struct Beside<S> {
    honest: S,
    remote: Remote,
    elsewhere: Elsewhere,
    is_there: Rc<Cell<bool>>,
    cycles: u32,
}

impl<S: Service> Service for Beside<S> {
    fn begin(&mut self, waker: &Waker) {
        self.honest.begin(waker);
    }
    fn cycle(&mut self, now: Instant) {
        self.honest.cycle(now);
        if self.is_there.get() {
            self.remote.cycle(now);
        }
    }
    fn woken<C: Streams>(&mut self, now: Instant, calls: &mut C) {
        self.honest.woken(now, calls);
        if !self.is_there.get() {
            return;
        }
        let Beside { remote, elsewhere, cycles, .. } = self;
        remote.woken(now, elsewhere);
        *cycles = cycles.wrapping_add(1);
        if cycles.is_multiple_of(CYCLES_AN_EVENT) {
            elsewhere.tell(now, remote, (*cycles / CYCLES_AN_EVENT) as usize % FOES);
        }
    }
    fn has_news(&mut self) -> bool {
        self.honest.has_news() || (self.is_there.get() && self.remote.has_news())
    }
    fn may_rest(&mut self, now: Instant) -> bool {
        // a round ends when the honest one is done
        self.honest.may_rest(now)
    }
    fn knock<C: Streams>(&mut self, now: Instant, calls: &mut C, on: Listener, connection: Connection, of: Addresses) {
        self.honest.knock(now, calls, on, connection, of);
    }
    fn foresees(&self) -> bool {
        self.honest.foresees()
    }
    fn foresee(&mut self, coming: &[Coming<'_>]) {
        self.honest.foresee(coming);
    }
    fn recv<C: Streams>(&mut self, now: Instant, calls: &mut C, connection: Connection, cookie: u64, bytes: &[u8]) {
        self.honest.recv(now, calls, connection, cookie, bytes);
    }
    fn eof<C: Streams>(&mut self, now: Instant, calls: &mut C, connection: Connection, cookie: u64) {
        self.honest.eof(now, calls, connection, cookie);
    }
    fn sent<C: Streams>(
        &mut self,
        now: Instant,
        calls: &mut C,
        connection: Connection,
        cookie: u64,
        bytes: usize,
        room: usize,
    ) {
        self.honest.sent(now, calls, connection, cookie, bytes, room);
    }
    fn dead(&mut self, now: Instant, connection: Connection, cookie: u64, reason: DeadReason) {
        self.honest.dead(now, connection, cookie, reason);
    }
    fn timer<C: Streams>(&mut self, now: Instant, calls: &mut C, connection: Connection, cookie: u64) {
        self.honest.timer(now, calls, connection, cookie);
    }
    fn flush<C: Streams>(&mut self, now: Instant, calls: &mut C) {
        self.honest.flush(now, calls);
        if self.is_there.get() {
            self.remote.flush(now, &mut self.elsewhere);
        }
    }
}

/// What one honest service takes, alone and beside the hostile one, round by round.
struct Compared {
    alone: Vec<RoundFigures>,
    beside: Vec<RoundFigures>,
    /// what the hostile one has had done in its slices
    foe: Vec<Done>,
}

/// What the hostile application has had done.
#[derive(Clone, Copy, Debug)]
struct Done {
    judged: u64,
    refused: u64,
    copied_bytes: u64,
}

impl Done {
    fn of(stats: &Stats) -> Done {
        let refused = REJECTS.iter().map(|(reason, _)| stats.rejects(*reason)).sum();
        Done { judged: stats.calls(), refused, copied_bytes: stats.sent_bytes() }
    }

    fn since(self, before: Done) -> Done {
        Done {
            judged: self.judged - before.judged,
            refused: self.refused - before.refused,
            copied_bytes: self.copied_bytes - before.copied_bytes,
        }
    }
}

/// The slices' means: all of the time, so throughput; what else the machine does in it, too.
fn means(rounds: &[RoundFigures]) -> Vec<f64> {
    rounds.iter().map(|round| round.mean_ns).collect()
}

/// The slices' medians of sections, which single interruptions do not move.
fn medians(rounds: &[RoundFigures]) -> Vec<f64> {
    rounds.iter().map(|round| round.median_ns).collect()
}

fn compare<S: Service>(options: &ProtectionOptions, plan: Plan, honest: S, slice: Duration) -> Result<Compared> {
    let foes = Plan { connections: FOES, ..plan };
    let place = Place::Other { spin: SPIN };
    let (mut foe, remote, stats) = Other::hostile(place, options.hostile_cpu, &foes)?;
    let is_there = Rc::new(Cell::new(false));
    let elsewhere = Elsewhere { foes: [Foe::default(); FOES] };
    let beside = Beside { honest, remote, elsewhere, is_there: is_there.clone(), cycles: 0 };
    foe.stop()?;
    let mut clients = Clients::new(plan, beside)?;
    clients.run_for(slice / 4)?;
    let mut compared = Compared { alone: Vec::new(), beside: Vec::new(), foe: Vec::new() };
    for round in 1..=options.rounds() {
        compared.alone.push(clients.run_for(slice)?);
        is_there.set(true);
        foe.go_on()?;
        // its connections are there again, and it has seen that
        clients.run_for(slice / 4)?;
        let before = Done::of(&stats);
        compared.beside.push(clients.run_for(slice)?);
        let done = Done::of(&stats).since(before);
        // else what was measured is the honest one beside nobody
        foe.ensure_runs().context("the hostile application")?;
        ensure!(done.refused > 0, "the hostile application did nothing that was refused in round {round}");
        compared.foe.push(done);
        foe.stop()?;
        is_there.set(false);
    }
    Ok(compared)
}

/// Runs it, for about so long.
pub(super) fn hostile(options: &ProtectionOptions, seconds: u32) -> Result<()> {
    let places: &[&str] = if options.hostile_cpu == options.app_cpu { &["inline"] } else { &["inline", "other"] };
    let cases = (places.len() * BATCHES.len()) as u32;
    // warm-ups are a quarter of a slice
    let slice =
        Duration::from_secs(seconds.into()).mul_f64(1.0 / (2.25 * f64::from(cases * u32::from(options.rounds()))));
    let mut figures = Vec::new();
    for place in places {
        for batch in BATCHES {
            let plan = Plan { items: 1, bytes: options.bytes(), connections: CONNECTIONS, batch, echo: true };
            let compared = match *place {
                "inline" => compare(options, plan, Echo::default(), slice)?,
                "other" => {
                    let (_other, honest) = Other::start(Place::Other { spin: SPIN }, Some(options.app_cpu), &plan)?;
                    compare(options, plan, honest, slice)?
                }
                place => bail!("no place is called {place}"),
            };
            let what = format!("echo of {} bytes, {CONNECTIONS} connections, batch {batch}: {place}", options.bytes());
            let Compared { alone, beside, foe } = &compared;
            let ratio =
                |of: fn(&[RoundFigures]) -> Vec<f64>| paired_ratio(&of(beside), &of(alone)).context("no round was run");
            let time = |rounds| Summary::of(&medians(rounds)).context("no round was run");
            let figure =
                |what, unit, decimals, summary| Figure { what, unit, decimals, summary, mean: None, asked: None };
            let had = |what_it_had: &str, unit, decimals, of: fn(&Done) -> f64| -> Result<Figure> {
                let rates: Vec<f64> = foe.iter().map(|done| of(done) / slice.as_secs_f64()).collect();
                let summary = Summary::of(&rates).context("no round was run")?;
                Ok(figure(format!("{what}, the hostile application's {what_it_had}"), unit, decimals, summary))
            };
            let rows = [
                figure(format!("{what}, alone"), "ns a request", 0, time(alone)?),
                figure(format!("{what}, beside a hostile application"), "ns a request", 0, time(beside)?),
                figure(format!("{what}, beside to alone"), "ratio", 3, ratio(medians)?),
                figure(format!("{what}, beside to alone, all of the time"), "ratio", 3, ratio(means)?)
                    .asked(Some(ASKED)),
                had("calls judged", "a second", 0, |done| done.judged as f64)?,
                had("calls refused", "a second", 0, |done| done.refused as f64)?,
                had("octets copied", "MB a second", 1, |done| done.copied_bytes as f64 / 1e6)?,
            ];
            rows.iter().for_each(|row| println!("{}", row.line()));
            figures.extend(rows);
        }
    }
    if let Some(out) = options.out() {
        let method = format!(
            "Server's time a request of an echo over the in-memory pipe, inline or in a process on processor {}, alone and with an application \
             in another process on processor {} that writes anything into what it shares with the same thread of the server, behind the filters of `simoom run`. {} rounds of a \
             slice each, {:.0} ms; a round's figure is the median of its slice's sections, the ratio that of one round's slices; *all of the time* \
             compares the slices' means. In each round it must have run to the end, and have been refused something; what it had done is told of the \
             slices that it ran in.",
            options.app_cpu,
            options.hostile_cpu,
            options.rounds(),
            slice.as_secs_f64() * 1e3
        );
        write(out, "protection-hostile", "What a hostile application takes from one beside it", &method, &figures)?;
    }
    Ok(())
}
