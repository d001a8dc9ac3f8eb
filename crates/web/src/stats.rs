//! What was asked and answered. One block a thread, written by it alone.

use base::Counter;
use base::counter::{Figure, Report};

use crate::head::{Method, Refusal};

/// Why a connection ended in another way than HTTP has for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DropReason {
    /// more connections than the limit
    Full,
    /// the client did not read its answer for the send time
    SlowReader,
    /// content did not come in time, or broke its framing
    Content,
    /// more was sent than the receive window allows
    Overflow,
    /// no PROXY header where one must be
    ProxyHeader,
    /// no buffer for an answer that the engine took in part
    NoPending,
    /// the engine refused a call
    Engine,
    /// the file changed, or could not be read, while it was sent
    Changed,
}

const DROPS: [(DropReason, &str); 8] = [
    (DropReason::Full, "full"),
    (DropReason::SlowReader, "slow reader"),
    (DropReason::Content, "content"),
    (DropReason::Overflow, "overflow"),
    (DropReason::ProxyHeader, "proxy header"),
    (DropReason::NoPending, "no pending"),
    (DropReason::Engine, "engine"),
    (DropReason::Changed, "changed"),
];
const METHODS: [(Method, &str); 5] = [
    (Method::Get, "GET"),
    (Method::Head, "HEAD"),
    (Method::Options, "OPTIONS"),
    (Method::Known, "not allowed"),
    (Method::Unknown, "unknown"),
];
const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// One thread's counts.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Stats {
    methods: [Counter; METHODS.len()],
    classes: [Counter; CLASSES.len()],
    refusals: [Counter; Refusal::ALL.len()],
    drops: [Counter; DROPS.len()],
    pub(crate) not_modified: Counter,
    pub(crate) partial: Counter,
    pub(crate) bytes: Counter,
    pub(crate) connections: Counter,
    pub(crate) open: Counter,
    pub(crate) idle_closed: Counter,
    pub(crate) stalled: Counter,
    pub(crate) logged: Counter,
    pub(crate) log_drops: Counter,
    pub(crate) cache_hits: Counter,
    pub(crate) cache_misses: Counter,
}

impl Stats {
    #[inline]
    pub(crate) fn asked(&self, method: Method) {
        self.methods[method as usize].add(1);
    }

    #[inline]
    pub(crate) fn answered(&self, status: u16, bytes: u64) {
        self.classes[usize::from(status / 100).clamp(1, 5) - 1].add(1);
        match status {
            206 => self.partial.add(1),
            304 => self.not_modified.add(1),
            _ => {}
        }
        self.bytes.add(bytes);
    }

    pub(crate) fn refused(&self, refusal: Refusal) {
        self.refusals[refusal as usize].add(1);
    }

    pub(crate) fn dropped(&self, reason: DropReason) {
        self.drops[reason as usize].add(1);
    }

    /// Connections that ended for this reason.
    pub fn drops(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize].get()
    }

    /// Requests that were refused for this reason.
    pub fn refusals(&self, refusal: Refusal) -> u64 {
        self.refusals[refusal as usize].get()
    }

    /// Answers whose status begins with this digit, 1 to 5.
    ///
    /// # Panics
    /// When there is no such class.
    pub fn answers(&self, class: u16) -> u64 {
        self.classes[usize::from(class) - 1].get()
    }

    /// Requests of this method.
    pub fn requests(&self, method: Method) -> u64 {
        self.methods[method as usize].get()
    }

    /// Access-log records that found the ring full.
    pub fn log_drops(&self) -> u64 {
        self.log_drops.get()
    }
}

fn count<'a>(name: &'a str, help: &'a str, labels: &'a [(&'a str, &'a str)], counter: &Counter) -> Figure<'a> {
    Figure { name, help, gauge: false, labels, value: counter.get() }
}

impl Report for Stats {
    fn report(&self, show: &mut dyn FnMut(Figure<'_>)) {
        for (method, name) in METHODS {
            let counter = &self.methods[method as usize];
            show(count("web_requests_total", "requests read", &[("method", name)], counter));
        }
        for (name, counter) in CLASSES.iter().zip(&self.classes) {
            show(count("web_answers_total", "answers by class of status", &[("class", name)], counter));
        }
        for (refusal, name) in Refusal::ALL {
            let counter = &self.refusals[refusal as usize];
            show(count("web_refusals_total", "requests refused before a look-up", &[("reason", name)], counter));
        }
        for (reason, name) in DROPS {
            let counter = &self.drops[reason as usize];
            show(count("web_drops_total", "connections ended without an answer", &[("reason", name)], counter));
        }
        for (name, help, counter) in [
            ("web_not_modified_total", "answers of 304", &self.not_modified),
            ("web_partial_total", "answers of 206", &self.partial),
            ("web_bytes_total", "octets of answers queued, heads included", &self.bytes),
            ("web_connections_total", "connections accepted", &self.connections),
            ("web_idle_closed_total", "connections closed as idle", &self.idle_closed),
            ("web_stalled_total", "times that pipelined requests waited for answers before", &self.stalled),
            ("web_logged_total", "access-log records made", &self.logged),
            ("web_log_drops_total", "access-log records that found no room", &self.log_drops),
            ("web_cache_hits_total", "chunks of files that were there when they were wanted", &self.cache_hits),
            ("web_cache_misses_total", "chunks of files that had to be waited for", &self.cache_misses),
        ] {
            show(count(name, help, &[], counter));
        }
        let open = self.open.get();
        show(Figure { name: "web_connections", help: "connections open now", gauge: true, labels: &[], value: open });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_stands_at_its_own_place() {
        let stats = Stats::default();
        for (n, (method, _)) in METHODS.iter().enumerate() {
            assert_eq!(*method as usize, n);
        }
        for (n, (refusal, _)) in Refusal::ALL.iter().enumerate() {
            assert_eq!(*refusal as usize, n);
        }
        for (n, (reason, _)) in DROPS.iter().enumerate() {
            assert_eq!(*reason as usize, n);
        }
        stats.answered(304, 9);
        stats.answered(505, 1);
        let mut seen = Vec::new();
        stats.report(&mut |figure| {
            if figure.value > 0 {
                seen.push((figure.name.to_owned(), figure.value));
            }
        });
        let seen: Vec<(&str, u64)> = seen.iter().map(|(name, value)| (&**name, *value)).collect();
        let answers = "web_answers_total";
        assert_eq!(seen, [(answers, 1), (answers, 1), ("web_not_modified_total", 1), ("web_bytes_total", 10)]);
    }
}
