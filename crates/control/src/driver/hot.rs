//! Once a second: what was asked for, and by that which names the driver has.
//!
//! The programs count by seat what they answer, the serving threads keep sketches of what is left to them; both count one answer of
//! sixteen. So a name that the driver answers stays as hot as it was when the serving threads answered for it.
//!
//! A round holds [`Driver::hot`] throughout, and there is nothing to hold while tables are replaced ([`Driver::stop`] to
//! [`Prepared::start`](super::Prepared::start)): so what a round puts in comes from the tables that everybody answers from, and into
//! their generation. The programs refuse it for any other.

use super::choice::{Change, Choice};
use super::worth::Worth;
use super::{Driver, Entries, Interface};
use bpf::steering::{Given, Name, Put};
use dns::Tables;
use dns::fixed::{Fixed, NameId};
use dns::hot::Sketch;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use zone::NameRef;

/// From one look to the next.
const ROUND: Duration = Duration::from_secs(1);

// both count alike
const _: () = assert!(dns::hot::ANSWERS_A_SAMPLE == bpf::steering::ANSWERS_A_SAMPLE);

/// What is answered from now, and the heat of its names.
#[derive(Debug)]
pub(super) struct Hot {
    /// by interface
    given: Vec<Given>,
    choice: Choice,
    /// the driver has all names that it can have: there is nothing to choose
    complete: bool,
    /// it could not be changed, and has fewer than it could
    pub(super) failed: bool,
    /// of the tables, as their publisher numbers it
    version: u64,
    /// by interface and seat, what the programs had counted last
    counted: Vec<Vec<u32>>,
    /// goes round: full from one thread, and empty to the next
    sketch: Option<Box<Sketch>>,
    /// of the interfaces' programs
    worth: Vec<Worth>,
}

impl Hot {
    pub(super) fn new(given: Vec<Given>, choice: Choice, complete: bool, version: u64) -> Hot {
        // counters go on from whatever they were at
        let counted = given.iter().map(|given| given.heats().unwrap_or_default()).collect();
        let worth = given.iter().map(|_| Worth::default()).collect();
        Hot { given, choice, complete, failed: false, version, counted, sketch: None, worth }
    }

    /// The names that the driver has and that `next` has, too, the hottest first, with their heat. `now` are the tables in force.
    pub(super) fn carried<'n>(&self, now: &Tables, next: &'n Tables) -> Vec<(Fixed<'n>, f32)> {
        let carry = |seat: &super::choice::Seat| {
            let name = NameRef::from_wire(now.fixed_of_id(seat.name).wire()).ok()?;
            Some((next.fixed_of_name(name)?, seat.heat))
        };
        self.choice.hottest().iter().filter_map(carry).collect()
    }
}

impl Driver {
    /// Starts the thread that chooses and weighs. It sleeps while there is nothing to choose or to weigh.
    ///
    /// # Errors
    /// The kernel's, when the thread cannot be started.
    pub(crate) fn start_choosing(self: &Arc<Self>) -> io::Result<()> {
        let driver = self.clone();
        std::thread::Builder::new().name("hot-names".into()).spawn(move || {
            // this thread only, on Linux: choosing gives way to serving
            let _ = rustix::process::nice(10);
            loop {
                driver.wait();
                std::thread::sleep(ROUND);
                if catch_unwind(AssertUnwindSafe(|| driver.round())).is_err() {
                    *driver.lock() = None;
                    driver.release();
                    tracing::error!("choosing the hot names failed by a bug in simoom: please report it");
                }
            }
        })?;
        Ok(())
    }

    /// Until there is something to choose or to weigh.
    fn wait(&self) {
        let idle = |hot: &mut Option<Hot>| hot.as_ref().is_none_or(|hot| hot.complete && !self.weighed);
        drop(self.begun.wait_while(self.lock(), idle).unwrap_or_else(PoisonError::into_inner));
    }

    fn round(&self) {
        let mut hot = self.lock();
        let Some(now) = hot.as_mut() else { return };
        if self.weighed {
            self.weigh(&mut now.worth);
        }
        if now.complete {
            return;
        }
        self.collect(now);
        now.read();
        let tables = self.tables.current();
        let changed = self.change(now, &tables);
        // before the lock goes: who replaces the tables waits until nobody has the old ones
        drop(tables);
        match changed {
            Ok(()) => self.counters.names.set(now.choice.len() as u64),
            Err(why) => {
                // what it has is not known for sure, and there is nothing to choose any more
                (now.complete, now.failed) = (true, true);
                tracing::error!("{why}; it keeps the names that it has until the next reload");
            }
        }
    }

    /// Takes over what the serving threads have counted.
    fn collect(&self, Hot { choice, version, sketch, .. }: &mut Hot) {
        choice.age();
        for thread in &self.watched {
            let fresh = || {
                let mut fresh = Box::new(Sketch::new(2 * choice.seats(), self.seed));
                fresh.begin(*version);
                fresh
            };
            sketch.get_or_insert_with(fresh);
            if !thread.turn(sketch) {
                continue;
            }
            let Some(sketch) = sketch else { continue };
            if sketch.version() == *version {
                sketch.names().for_each(|(name, times)| choice.asked(name, times));
                choice.bound();
            }
            sketch.begin(*version);
        }
    }

    /// Exchanges names, as far as their heat says so.
    fn change(&self, Hot { given, choice, .. }: &mut Hot, tables: &Tables) -> Result<(), String> {
        let Some(config) = self.interfaces.first().map(|first| first.answers.config()) else { return Ok(()) };
        let entries = |id: NameId| Entries::of(tables.fixed_of_id(id), self.udp_bytes);
        let wire = |id: NameId| tables.fixed_of_id(id).wire();
        let change = choice.change(|id| config.size(wire(id), &entries(id).list(&config)));
        if change == Change::default() {
            return Ok(());
        }
        let out: Vec<&[u8]> = change.out.iter().map(|(_, id)| wire(*id)).collect();
        let entries: Vec<Entries<'_>> = change.into.iter().map(|(_, id)| entries(*id)).collect();
        let lists: Vec<_> = entries.iter().map(|entries| entries.list(&config)).collect();
        let names = change.into.iter().zip(&lists);
        let into = names.map(|((seat, id), answers)| Name { seat: *seat, name: wire(*id), answers });
        let into: Vec<Name<'_>> = into.collect();
        let mut put = Vec::new();
        for (given, Interface { name, .. }) in given.iter().zip(&self.interfaces) {
            let failed = |error| format!("{name}: the driver's names cannot be changed: {error}");
            // the same at each, since all are told the same
            match given.change(&out, &into).map_err(failed)? {
                Some(what) => put = what,
                None => return Err(format!("{name}: the driver's answers were replaced meanwhile")),
            }
        }
        let mut promoted = 0;
        for ((at, id), put) in change.into.iter().zip(put) {
            match put {
                Put::Done => promoted += 1,
                Put::NoRoom | Put::Unfit => choice.refused(*at, *id, put == Put::Unfit),
            }
        }
        self.counters.promoted.add(promoted);
        self.counters.demoted.add(change.out.len() as u64);
        Ok(())
    }
}

impl Hot {
    /// Takes over what the programs have counted. What is counted for a name between this and its going is the next one's, which is
    /// little, since the coldest go.
    fn read(&mut self) {
        for (given, counted) in self.given.iter().zip(&mut self.counted) {
            let Some(now) = given.heats() else { continue };
            for (seat, (now, before)) in now.iter().zip(&*counted).enumerate() {
                self.choice.answered(seat, now.wrapping_sub(*before));
            }
            *counted = now;
        }
    }
}
