//! The driver tier of DNS: answers of the tables given to the program in the driver, and taken back.
//!
//! A reload must not let an answer of the old zones out after it has returned, nor let a client see the new ones and then
//! the old. So the new answers are put in while the old ones are given, the program is stopped, the serving threads take the new
//! tables, and the program goes on with the new answers ([`Driver::prepare`], [`Driver::stop`], [`Prepared::start`]). In
//! between our own stack answers everything.
//!
//! Which names the driver has when there are more than may be is left to chance: the order of the table, which its seed decides.
//! Memory: the kernel has each answer once an interface, during a reload those of the old zones beside those of the new.

use base::counter::{Figure, Report};
use base::publish::Publisher;
use bpf::steering::{Answer, Answers, Cut, Fill, SteeringError, Which};
use dns::Tables;
use dns::fixed::{Counted, Elsewhere, Fixed, For};
use std::sync::{Arc, Mutex, PoisonError};

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
    /// who counts, does so alone: figures that were read earlier must not be taken over later
    counting: Mutex<()>,
}

/// Answers that are in the kernel, and not given yet.
#[derive(Debug)]
pub(crate) struct Prepared(Vec<Fill>);

impl Driver {
    /// None when no interface has such a program.
    pub(crate) fn new(
        programs: Vec<(String, Answers)>,
        udp_bytes: u16,
        tables: &Arc<Publisher<Tables>>,
    ) -> Option<Arc<Driver>> {
        let with = |(name, answers)| Interface { name, answers, counted: Elsewhere::default() };
        let interfaces: Vec<_> = programs.into_iter().map(with).collect();
        let tables = tables.clone();
        (!interfaces.is_empty()).then(|| Arc::new(Driver { interfaces, udp_bytes, tables, counting: Mutex::new(()) }))
    }

    /// Puts the answers of `tables` in, of as many names as there is room for.
    ///
    /// # Errors
    /// The kernel's, in one line; nothing stays then.
    pub(crate) fn prepare(&self, tables: &Tables) -> Result<Prepared, String> {
        let failed = |name: &str, error: &SteeringError| format!("{name}: the driver cannot be given answers: {error}");
        let mut fills = Vec::new();
        for Interface { name, answers, .. } in &self.interfaces {
            let (mut fill, mut names) = (answers.fill(), 0);
            for fixed in tables.fixed() {
                names += usize::from(put(&mut fill, fixed, self.udp_bytes).map_err(|error| failed(name, &error))?);
            }
            tracing::info!("{name}: the driver has the answers of {names} of {} names", tables.names());
            fills.push(fill);
        }
        Ok(Prepared(fills))
    }

    /// Has the programs answer nothing; when this has returned, no answer of theirs leaves.
    ///
    /// # Errors
    /// The kernel's, in one line.
    pub(crate) fn stop(&self) -> Result<(), String> {
        let stopped = |Interface { name, answers, .. }: &Interface| {
            answers.stop().map_err(|error| format!("{name}: the driver cannot be stopped: {error}"))
        };
        let all: Vec<_> = self.interfaces.iter().map(stopped).collect();
        self.count();
        all.into_iter().collect()
    }

    /// Takes over what was counted, while the tables are there that it was answered from.
    fn count(&self) {
        let _alone = self.counting.lock().unwrap_or_else(PoisonError::into_inner);
        let tables = self.tables.current();
        for Interface { answers, counted, .. } in &self.interfaces {
            if let Some(now) = answers.answered() {
                let bpf::steering::Answered { families, truncated, types, zones } = now;
                counted.count(&tables, Counted { families, truncated, types, zones });
            }
        }
    }
}

impl Prepared {
    /// Has the programs answer.
    ///
    /// # Errors
    /// The kernel's, in one line.
    pub(crate) fn start(self) -> Result<(), String> {
        let started = |fill: Fill| fill.start().map_err(|error| format!("the driver does not answer: {error}"));
        self.0.into_iter().try_for_each(started)
    }
}

/// Puts the answers of one name in, where there is room.
fn put(fill: &mut Fill, name: Fixed<'_>, udp_bytes: u16) -> Result<bool, SteeringError> {
    let answers = name.answers(udp_bytes);
    let cuts = |answer: &dns::fixed::Answer| -> Vec<Cut> {
        let cut = |&dns::fixed::Cut { bytes, answer, authority, additional, truncated }: &_| Cut {
            bytes,
            answer,
            authority,
            additional,
            truncated,
        };
        answer.cuts.iter().map(cut).collect()
    };
    let cuts: Vec<_> = answers.iter().map(|(_, answer)| answer.as_ref().map(cuts).unwrap_or_default()).collect();
    let mut entries = Vec::with_capacity(answers.len());
    for ((of, answer), cuts) in answers.iter().zip(&cuts) {
        let which = match *of {
            For::Type(rtype) => Which::Type(rtype.0),
            // without the answer to all others nothing is taken for one of them
            For::Others { .. } if answer.is_none() => continue,
            For::Others { but_any, but_ds } => Which::Others { but_any, but_ds },
        };
        entries.push((
            which,
            match answer {
                Some(answer) => Answer {
                    nxdomain: answer.nxdomain,
                    authoritative: answer.authoritative,
                    zone: answer.zone,
                    body: &answer.body,
                    cuts,
                },
                // left to the socket
                None => Answer { nxdomain: false, authoritative: false, zone: 0, body: &[], cuts: &[] },
            },
        ));
    }
    fill.put(name.wire(), &entries)
}

impl Report for Driver {
    fn report(&self, show: &mut dyn FnMut(Figure<'_>)) {
        self.count();
        for Interface { name, answers, counted } in &self.interfaces {
            counted.stats().report(show);
            let (short, long) = answers.entries();
            for (kind, value) in [("short", short), ("long", long)] {
                let labels = [("interface", name.as_str()), ("size", kind)];
                let help = "answers that the driver has";
                show(Figure { name: "dns_driver_answers", help, gauge: true, labels: &labels, value: value as u64 });
            }
        }
    }
}
