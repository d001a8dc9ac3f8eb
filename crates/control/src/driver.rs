//! The driver tier of DNS: answers of the tables given to the program in the driver, and taken back.
//!
//! A reload must not let an answer of the old zones out after it has returned, nor let a client see the new ones and then
//! the old. So the new answers are put in while the old ones are given, the program is stopped, the serving threads take the new
//! tables, and the program goes on with the new answers ([`Driver::prepare`], [`Driver::stop`], [`Prepared::start`]). In
//! between our own stack answers everything.
//!
//! Cookies are made and judged by the programs as by the serving threads, and at the same second. When secrets are replaced the
//! programs leave questions with a cookie to the serving threads first, and make cookies again when these have the new secrets
//! ([`Driver::stop_cookies`], [`Driver::start_cookies`]). When the machine's clock is set they begin anew by its time
//! ([`Driver::follow_clock`]).
//!
//! Of more names than the driver may have, it has the hottest ([`choice`]); at the start, before anybody has asked, those that
//! come first in the table. A thread looks once a second what was asked for and exchanges names ([`hot`]), and whether it is
//! worth it that the programs answer at all ([`worth`]).
//! Memory: the kernel has each answer once an interface, during a reload those of the old zones beside those of the new.

mod choice;
mod hot;
mod worth;

use base::counter::{Figure, Report};
use base::publish::Publisher;
use base::{Clock, Counter};
use bpf::steering::{Answer, Answers, AnswersConfig, Baking, Below, Cut, Fill, Given, Name, Put, Size, Which};
use choice::Choice;
use dns::fixed::{self, Counted, Elsewhere, Fixed, For, NameId};
use dns::hot::Exchange;
use dns::{Tables, cookie};
use hot::Hot;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The program of one interface.
#[derive(Debug)]
struct Interface {
    name: String,
    answers: Answers,
    counted: Elsewhere,
}

/// The programs that answer, all from the same tables.
#[derive(Debug)]
pub(crate) struct Driver {
    interfaces: Vec<Interface>,
    udp_bytes: u16,
    tables: Arc<Publisher<Tables>>,
    /// of the serving threads, with their clock; None without cookies
    cookies: Option<(cookie::Config, Clock)>,
    /// the programs are to make cookies; who changes what they make them with holds it
    makes_cookies: Mutex<bool>,
    /// where the serving threads' sketches are
    watched: Vec<Arc<Exchange>>,
    /// for the sketches
    seed: u64,
    /// the programs answer only where it is worth it
    weighed: bool,
    /// what changes by heat: there while the programs answer, from the tables that are published
    hot: Mutex<Option<Hot>>,
    /// it is there now
    begun: Condvar,
    counters: Counters,
    /// who counts, does so alone: figures that were read earlier must not be taken over later
    counting: Mutex<()>,
}

/// What the programs have; written by who holds [`Driver::hot`].
#[derive(Debug, Default)]
struct Counters {
    names: Counter,
    promoted: Counter,
    demoted: Counter,
}

/// Answers that are in the kernel, and not given yet.
#[derive(Debug)]
pub(crate) struct Prepared {
    driver: Arc<Driver>,
    config: AnswersConfig,
    fills: Vec<Fill>,
    choice: Choice,
    /// no name is left out for want of room
    complete: bool,
    /// all names that exist have entries, so the others do not
    whole: bool,
    /// names that were left out for another reason
    unfit: Vec<NameId>,
}

/// An answer that is left to the socket.
const LEFT: Answer<'_> = Answer { nxdomain: false, authoritative: false, zone: 0, body: &[], cuts: &[], moves: None };

impl Driver {
    /// None when no interface has such a program. `cookies` are what the serving threads make them with, and the clock that they
    /// read; the programs make some from [`Driver::start_cookies`] on. `watched` are the exchanges of all threads that answer what
    /// these leave, `seed` keys their sketches. `weighed`: the programs answer only while it is worth it.
    pub(crate) fn new(
        programs: Vec<(String, Answers)>,
        udp_bytes: u16,
        tables: &Arc<Publisher<Tables>>,
        cookies: Option<(cookie::Config, Clock)>,
        watched: Vec<Arc<Exchange>>,
        seed: u64,
        weighed: bool,
    ) -> Option<Arc<Driver>> {
        let with = |(name, answers)| Interface { name, answers, counted: Elsewhere::default() };
        let interfaces: Vec<_> = programs.into_iter().map(with).collect();
        let driver = Driver {
            interfaces,
            udp_bytes,
            tables: tables.clone(),
            cookies,
            makes_cookies: Mutex::new(false),
            watched,
            seed,
            weighed,
            hot: Mutex::new(None),
            begun: Condvar::new(),
            counters: Counters::default(),
            counting: Mutex::new(()),
        };
        (!driver.interfaces.is_empty()).then(|| Arc::new(driver))
    }

    /// Who changes what is answered from. A round of changes that panicked has ended ([`hot`]).
    fn lock(&self) -> MutexGuard<'_, Option<Hot>> {
        self.hot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts the answers of `tables` in, of as many names as there is room for: of those that the driver has now, as far as they
    /// are there, the hottest first, and then of others.
    ///
    /// # Errors
    /// The kernel's, in one line; nothing stays then.
    pub(crate) fn prepare(self: &Arc<Self>, tables: &Tables) -> Result<Prepared, String> {
        let kept = self.lock().as_ref().map_or_else(Vec::new, |hot| hot.carried(&self.tables.current(), tables));
        let config = self.interfaces[0].answers.config();
        let fills = self.interfaces.iter().map(|interface| interface.answers.fill()).collect();
        let choice = Choice::new(config.names, config.room());
        let mut prepared =
            Prepared { driver: self.clone(), config, fills, choice, complete: true, whole: false, unfit: Vec::new() };
        let others = tables.fixed().map(|name| (name, 0.0));
        for (name, heat) in kept.into_iter().chain(others) {
            if prepared.choice.has(name.id()) {
                continue;
            }
            let Some(seat) = prepared.choice.next_seat() else {
                prepared.complete = false;
                break;
            };
            prepared.put(name, heat, seat)?;
        }
        prepared.close(tables)?;
        let others = if prepared.whole { ", and tells which do not exist" } else { "" };
        tracing::info!("the driver has the answers of {} of {} names{others}", prepared.choice.len(), tables.names());
        Ok(prepared)
    }

    /// Has the programs answer nothing; when this has returned, no answer of theirs leaves, and none is put in.
    ///
    /// # Errors
    /// The kernel's, in one line. Those that were stopped stay so; the others go on with the answers that they have.
    pub(crate) fn stop(&self) -> Result<(), String> {
        *self.lock() = None;
        self.counters.names.set(0);
        let stopped = |Interface { name, answers, .. }: &Interface| {
            answers.stop().map_err(|error| format!("{name}: the driver cannot be stopped: {error}"))
        };
        let all: Vec<_> = self.interfaces.iter().map(stopped).collect();
        self.count();
        all.into_iter().collect()
    }

    /// Whether the programs have less than they could, since the kernel has refused something.
    pub(crate) fn is_behind(&self) -> bool {
        self.lock().as_ref().is_none_or(|hot| hot.failed)
    }

    /// Has the programs leave questions with a cookie to the serving threads; when this has returned they have no secret.
    ///
    /// # Errors
    /// The kernel's, in one line.
    pub(crate) fn stop_cookies(&self) -> Result<(), String> {
        let mut makes = self.makes_cookies();
        *makes = false;
        for Interface { name, answers, .. } in &self.interfaces {
            answers
                .leave_cookies()
                .map_err(|error| format!("{name}: the driver's cookies cannot be stopped: {error}"))?;
        }
        Ok(())
    }

    /// Has the programs make and judge cookies with the secrets that are published.
    ///
    /// # Errors
    /// The kernel's, in one line.
    pub(crate) fn start_cookies(&self) -> Result<(), String> {
        let mut makes = self.makes_cookies();
        *makes = true;
        self.make_cookies()
    }

    /// Has the programs that make cookies make them by the time that was set; others will when they begin.
    ///
    /// # Errors
    /// The kernel's, in one line.
    pub(crate) fn follow_clock(&self) -> Result<(), String> {
        let makes = self.makes_cookies();
        if *makes { self.make_cookies() } else { Ok(()) }
    }

    fn makes_cookies(&self) -> MutexGuard<'_, bool> {
        self.makes_cookies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// With [`Driver::makes_cookies`] held: secrets that are read here must not be put in after others were published.
    fn make_cookies(&self) -> Result<(), String> {
        let Some((config, clock)) = &self.cookies else { return Ok(()) };
        let secrets = config.secrets.current();
        let Some(secret) = secrets.active() else { return Ok(()) };
        let baking = Baking {
            secret: *secret,
            others: secrets.has_others(),
            zero_ns: clock.zero_ns(),
            unix_time_at_zero_s: config.time.at_zero_s(),
        };
        for Interface { name, answers, .. } in &self.interfaces {
            answers.make_cookies(&baking).map_err(|error| format!("{name}: the driver makes no cookies: {error}"))?;
        }
        Ok(())
    }

    /// Takes over what was counted, while the tables are there that it was answered from.
    fn count(&self) {
        let _alone = self.counting.lock().unwrap_or_else(PoisonError::into_inner);
        let tables = self.tables.current();
        for Interface { answers, counted, .. } in &self.interfaces {
            if let Some(now) = answers.answered(tables.zone_numbers()) {
                let bpf::steering::Answered { families, truncated, cookies_valid, types, zones } = now;
                counted.count(&tables, Counted { families, truncated, cookies_valid, types, zones });
            }
        }
    }
}

impl Prepared {
    fn put(&mut self, name: Fixed<'_>, heat: f32, seat: u32) -> Result<(), String> {
        let entries = Entries::of(name, self.driver.udp_bytes);
        let answers = entries.list(&self.config);
        match self.put_answers(&Name { seat, name: name.wire(), answers: &answers })? {
            Put::Done => self.choice.sit(name.id(), heat, self.config.size(name.wire(), &answers)),
            Put::NoRoom => self.complete = false,
            Put::Unfit => self.unfit.push(name.id()),
        }
        Ok(())
    }

    fn put_answers(&mut self, with: &Name<'_>) -> Result<Put, String> {
        let mut put = Put::Done;
        for (fill, Interface { name, .. }) in self.fills.iter_mut().zip(&self.driver.interfaces) {
            let failed = |error| format!("{name}: the driver cannot be given answers: {error}");
            // the same at each, since all are told the same
            put = fill.put(with).map_err(failed)?;
        }
        Ok(put)
    }

    /// Has names that the programs cannot answer for be left to the socket, if all the others are in: then all names that exist have
    /// entries.
    fn close(&mut self, tables: &Tables) -> Result<(), String> {
        self.whole = self.complete;
        let unfit: Vec<Fixed<'_>> = self.unfit.iter().map(|id| tables.fixed_of_id(*id)).collect();
        for name in unfit.into_iter().chain(tables.unfixed()) {
            if !self.whole {
                break;
            }
            let answers = [(others_left(name.below()), LEFT)];
            self.whole = self.put_answers(&Name { seat: 0, name: name.wire(), answers: &answers })? == Put::Done;
        }
        Ok(())
    }

    /// Has the programs answer. The tables of these answers are published by now, and no serving thread has others.
    ///
    /// # Errors
    /// The kernel's, in one line.
    pub(crate) fn start(self) -> Result<(), String> {
        let Prepared { driver, fills, choice, complete, whole, .. } = self;
        let started =
            |fill: Fill| fill.start(!complete, whole).map_err(|error| format!("the driver does not answer: {error}"));
        let given: Result<Vec<Given>, String> = fills.into_iter().map(started).collect();
        // what is known of the old tables says nothing of these
        driver.release();
        let given = given.inspect_err(|_| {
            // the error is already known, and nobody would choose and weigh for those that answer
            let _ = driver.stop();
        })?;
        driver.counters.names.set(choice.len() as u64);
        *driver.lock() = Some(Hot::new(given, choice, complete, driver.tables.version()));
        driver.begun.notify_all();
        Ok(())
    }
}

/// All answers of a name.
struct Entries<'t> {
    name: Fixed<'t>,
    answers: Vec<(For, Option<fixed::Answer>)>,
    /// of each, as the program wants them
    cuts: Vec<Vec<Cut>>,
}

impl<'t> Entries<'t> {
    fn of(name: Fixed<'t>, udp_bytes: u16) -> Entries<'t> {
        let answers = name.answers(udp_bytes);
        let cuts = |answer: &fixed::Answer| -> Vec<Cut> {
            let cut = |&fixed::Cut { bytes, answer, authority, additional, truncated }: &_| Cut {
                bytes,
                answer,
                authority,
                additional,
                truncated,
            };
            answer.cuts.iter().map(cut).collect()
        };
        let cuts = answers.iter().map(|(_, answer)| answer.as_ref().map(cuts).unwrap_or_default()).collect();
        Entries { name, answers, cuts }
    }

    /// As the program wants them.
    fn list(&self, config: &AnswersConfig) -> Vec<(Which, Answer<'_>)> {
        let pairs = self.answers.iter().zip(&self.cuts);
        pairs.map(|((of, answer), cuts)| self.one(config, *of, answer.as_ref(), cuts)).collect()
    }

    fn one<'s>(
        &'s self,
        config: &AnswersConfig,
        of: For,
        answer: Option<&'s fixed::Answer>,
        cuts: &'s [Cut],
    ) -> (Which, Answer<'s>) {
        let with = |answer: &'s fixed::Answer| {
            let fixed::Answer { nxdomain, authoritative, zone, body, .. } = answer;
            Answer { nxdomain: *nxdomain, authoritative: *authoritative, zone: *zone, body, cuts, moves: None }
        };
        match (of, answer) {
            (For::Type(rtype), answer) => (Which::Type(rtype.0), answer.map_or(LEFT, with)),
            // nothing else is taken for one of them, nor the name for one that does not exist
            (For::Others { below, .. }, None) => (others_left(below), LEFT),
            (For::Others { but_any, but_ds, below }, Some(answer)) => {
                let (below, own) = (told(below), with(answer));
                let with_below = match below {
                    Below::Answered { .. } => Answer { moves: Some(&answer.moves), ..own.clone() },
                    Below::AsAbove | Below::Left => own.clone(),
                };
                if matches!(below, Below::Answered { .. }) && !config.takes(self.name.wire(), &with_below) {
                    // too much for one entry: then for the name alone
                    let own = Answer { cuts: &cuts[answer.cuts_below..], ..own };
                    return (Which::Others { but_any, but_ds, below: Below::Left }, own);
                }
                (Which::Others { but_any, but_ds, below }, with_below)
            }
        }
    }
}

fn told(below: fixed::Below) -> Below {
    match below {
        fixed::Below::AsAbove => Below::AsAbove,
        fixed::Below::Left => Below::Left,
        fixed::Below::Answered { absent, whole } => Below::Answered { absent, whole },
    }
}

/// For an answer to all other types that is left to the socket: what is below is, too, where the name has something to say of it.
fn others_left(below: fixed::Below) -> Which {
    let below = if below == fixed::Below::AsAbove { Below::AsAbove } else { Below::Left };
    Which::Others { but_any: false, but_ds: false, below }
}

impl Report for Driver {
    fn report(&self, show: &mut dyn FnMut(Figure<'_>)) {
        self.count();
        for Interface { name, answers, counted } in &self.interfaces {
            counted.stats().report(show);
            let active = Figure {
                name: "dns_driver_active",
                help: "whether the driver answers: it has answers, what it sends is taken, and it is worth it",
                gauge: true,
                labels: &[("interface", name.as_str())],
                value: u64::from(answers.is_answering()),
            };
            show(active);
            let Size { short, long } = answers.entries();
            for (kind, value) in [("short", short), ("long", long)] {
                let labels = [("interface", name.as_str()), ("size", kind)];
                let help = "answers that the driver has";
                show(Figure { name: "dns_driver_answers", help, gauge: true, labels: &labels, value: value as u64 });
            }
        }
        let Counters { names, promoted, demoted } = &self.counters;
        for (name, help, gauge, counter) in [
            ("dns_driver_names", "names that the driver has", true, names),
            (
                "dns_driver_promoted_total",
                "names that the driver was given, since they were asked for most",
                false,
                promoted,
            ),
            ("dns_driver_demoted_total", "names taken from the driver again for others", false, demoted),
        ] {
            show(Figure { name, help, gauge, labels: &[], value: counter.get() });
        }
    }
}
