//! What was asked and answered. One block a thread, written by it alone; `ledger` has the counts by zone.

use base::Counter;
use base::counter::{Figure, Report};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::ledger::{Ledger, Row};
use crate::question::DropReason;
use zone::Rtype;

const TYPES: usize = 260;
const RCODES: [&str; 24] = [
    "NOERROR",
    "FORMERR",
    "SERVFAIL",
    "NXDOMAIN",
    "NOTIMP",
    "REFUSED",
    "YXDOMAIN",
    "YXRRSET",
    "NXRRSET",
    "NOTAUTH",
    "NOTZONE",
    "11",
    "12",
    "13",
    "14",
    "15",
    "BADVERS",
    "BADKEY",
    "BADTIME",
    "BADMODE",
    "BADNAME",
    "BADALG",
    "BADTRUNC",
    "BADCOOKIE",
];

/// How a question came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Transport {
    Udp4,
    Udp6,
    Tcp4,
    Tcp6,
}

impl Transport {
    #[inline(always)]
    pub(crate) fn of(stream: bool, peer: IpAddr) -> Transport {
        match (stream, peer) {
            (false, IpAddr::V4(_)) => Transport::Udp4,
            (false, IpAddr::V6(_)) => Transport::Udp6,
            (true, IpAddr::V4(_)) => Transport::Tcp4,
            (true, IpAddr::V6(_)) => Transport::Tcp6,
        }
    }
}

const TRANSPORTS: [(&str, &str); 4] = [("udp", "4"), ("udp", "6"), ("tcp", "4"), ("tcp", "6")];
const DROPS: [(DropReason, &str); 4] = [
    (DropReason::Short, "short"),
    (DropReason::Response, "response"),
    (DropReason::RateLimited, "rate limited"),
    (DropReason::NoRoom, "no room"),
];

/// One thread's counts.
#[derive(Debug)]
#[repr(align(128))]
pub struct Stats {
    pub(crate) transports: [Counter; 4],
    types: [Counter; TYPES],
    rcodes: [Counter; 24],
    drops: [Counter; DROPS.len()],
    pub(crate) truncated: Counter,
    pub(crate) slipped: Counter,
    pub(crate) cookies_valid: Counter,
    pub(crate) retained: Counter,
    pub(crate) retained_bytes: Counter,
    pub(crate) connections: Counter,
    pub(crate) connections_refused: Counter,
    pub(crate) connections_timed_out: Counter,
    /// by zone; one row, but for tables that were built without regard to those before
    zones: Mutex<Vec<Arc<Row>>>,
}

impl Default for Stats {
    fn default() -> Self {
        Stats {
            transports: Default::default(),
            types: std::array::from_fn(|_| Counter::new()),
            rcodes: std::array::from_fn(|_| Counter::new()),
            drops: Default::default(),
            truncated: Counter::new(),
            slipped: Counter::new(),
            cookies_valid: Counter::new(),
            retained: Counter::new(),
            retained_bytes: Counter::new(),
            connections: Counter::new(),
            connections_refused: Counter::new(),
            connections_timed_out: Counter::new(),
            zones: Mutex::new(Vec::new()),
        }
    }
}

impl Stats {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Row>>> {
        // a push that panicked left the vector whole
        self.zones.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This thread's counts of the zones of `ledger`.
    pub(crate) fn zones(&self, ledger: &Arc<Ledger>) -> Arc<Row> {
        let mut rows = self.lock();
        if let Some(row) = rows.iter().find(|row| Arc::ptr_eq(row.ledger(), ledger)) {
            return row.clone();
        }
        rows.push(ledger.row());
        rows[rows.len() - 1].clone()
    }

    #[inline(always)]
    pub(crate) fn asked(&self, transport: Transport, qtype: u16) {
        self.transports[transport as usize].add(1);
        self.asked_often(qtype, 1);
    }

    #[inline(always)]
    pub(crate) fn asked_often(&self, qtype: u16, times: u64) {
        // one place for all the types that hardly anyone asks for
        self.types[usize::from(qtype).min(TYPES - 1)].add(times);
    }

    #[inline(always)]
    pub(crate) fn answered(&self, rcode: u16) {
        self.answered_often(rcode, 1);
    }

    #[inline(always)]
    pub(crate) fn answered_often(&self, rcode: u16, times: u64) {
        self.rcodes[usize::from(rcode).min(23)].add(times);
    }

    #[inline(always)]
    pub(crate) fn dropped(&self, reason: DropReason) {
        self.drops[reason as usize].add(1);
    }

    /// Messages dropped for this reason.
    pub fn drops(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize].get()
    }

    /// Answers of this extended RCODE.
    pub fn rcodes(&self, rcode: u16) -> u64 {
        self.rcodes[usize::from(rcode).min(23)].get()
    }
}

fn count<'a>(name: &'a str, help: &'a str, labels: &'a [(&'a str, &'a str)], counter: &Counter) -> Figure<'a> {
    Figure { name, help, gauge: false, labels, value: counter.get() }
}

impl Report for Stats {
    fn report(&self, show: &mut dyn FnMut(Figure<'_>)) {
        for ((transport, family), counter) in TRANSPORTS.iter().zip(&self.transports) {
            let labels = [("transport", *transport), ("family", *family)];
            show(count("dns_questions_total", "questions read", &labels, counter));
        }
        for (number, counter) in self.types.iter().enumerate().filter(|(_, counter)| counter.get() > 0) {
            let name = if number == TYPES - 1 { "other".to_owned() } else { Rtype(number as u16).to_string() };
            show(count("dns_questions_by_type_total", "questions by type", &[("type", &name)], counter));
        }
        for (name, counter) in RCODES.iter().zip(&self.rcodes) {
            if counter.get() > 0 || matches!(*name, "NOERROR" | "NXDOMAIN" | "REFUSED") {
                show(count("dns_answers_total", "answers by RCODE", &[("rcode", name)], counter));
            }
        }
        for (reason, name) in DROPS {
            let counter = &self.drops[reason as usize];
            show(count("dns_drops_total", "messages without an answer", &[("reason", name)], counter));
        }
        for (name, help, counter) in [
            ("dns_truncated_total", "answers with TC set", &self.truncated),
            ("dns_slipped_total", "rate-limited answers sent truncated", &self.slipped),
            ("dns_cookies_valid_total", "questions with a valid server cookie", &self.cookies_valid),
            ("dns_retained_total", "answers copied whole from those retained", &self.retained),
            ("dns_connections_total", "TCP connections accepted", &self.connections),
            ("dns_connections_refused_total", "TCP connections refused at the limit", &self.connections_refused),
            (
                "dns_connections_timed_out_total",
                "TCP connections that were idle, or did not take their answers",
                &self.connections_timed_out,
            ),
        ] {
            show(count(name, help, &[], counter));
        }
        show(Figure {
            name: "dns_retained_bytes",
            help: "memory for retained answers",
            gauge: true,
            labels: &[],
            value: self.retained_bytes.get(),
        });
        // not under the lock: who makes a server for this thread takes it
        let rows = self.lock().clone();
        for (zone, rcode, value) in rows.iter().flat_map(|row| row.figures()) {
            let rcode = ("rcode", RCODES[rcode]);
            match &zone {
                Some(zone) => {
                    let (name, help) = ("dns_zone_answers_total", "answers by zone and RCODE");
                    show(Figure { name, help, gauge: false, labels: &[("zone", zone), rcode], value });
                }
                None => {
                    let (name, help) = ("dns_removed_zone_answers_total", "answers of zones that a reload removed");
                    show(Figure { name, help, gauge: false, labels: &[rcode], value });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use zone::NameRef;

    #[test]
    fn who_shows_the_figures_does_not_hold_up_the_thread_that_counts() {
        let (stats, ledger) = (Arc::new(Stats::default()), Arc::new(Ledger::default()));
        let slots = ledger.lease([NameRef::ROOT].into_iter());
        stats.zones(&ledger).answered(slots.slot(0).unwrap(), 0);
        let (shown, of_zone) = std::sync::mpsc::channel();
        let counting = stats.clone();
        // not joined: where a lock is held this thread never ends
        std::thread::spawn(move || {
            stats.report(&mut |figure| {
                if figure.name == "dns_zone_answers_total" {
                    drop(ledger.lease(std::iter::empty()));
                    counting.zones(&ledger);
                    let _ = shown.send(figure.value);
                }
            });
        });
        assert_eq!(of_zone.recv_timeout(Duration::from_secs(20)), Ok(1));
    }
}
