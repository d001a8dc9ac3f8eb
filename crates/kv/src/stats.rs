//! What was asked and answered. One block a thread, written by it alone; what the items are is the store's ([`crate::Store`]).

use base::Counter;
use base::counter::{Figure, Report};

/// Why a connection ended in another way than its client wanted, or a datagram was not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DropReason {
    /// more connections than the limit
    Full,
    /// the client did not read its answers for the send time
    SlowReader,
    /// the client did not go on with a command for the send time
    SlowWriter,
    /// no end of line where one must be, or HTTP
    NoCommand,
    /// the binary protocol
    Binary,
    /// no buffer for a command in pieces
    NoBuffer,
    /// no place for an answer that the engine took in part
    NoPending,
    /// more was sent than the receive window allows
    Overflow,
    /// the engine refused a call
    Engine,
    /// a datagram without a whole request
    Datagram,
    /// a datagram from a port below 1024, where servers are
    LowPort,
    /// a datagram from a port that this service listens on: perhaps another such server
    OwnPort,
    /// a datagram that does not begin with a command that reads: perhaps another server's answer
    NoRead,
}

const DROPS: [(DropReason, &str); 13] = [
    (DropReason::Full, "full"),
    (DropReason::SlowReader, "slow reader"),
    (DropReason::SlowWriter, "slow writer"),
    (DropReason::NoCommand, "no command"),
    (DropReason::Binary, "binary"),
    (DropReason::NoBuffer, "no buffer"),
    (DropReason::NoPending, "no pending"),
    (DropReason::Overflow, "overflow"),
    (DropReason::Engine, "engine"),
    (DropReason::Datagram, "datagram"),
    (DropReason::LowPort, "low port"),
    (DropReason::OwnPort, "own port"),
    (DropReason::NoRead, "no read"),
];

macro_rules! counters {
    ($($field:ident $name:literal $help:literal,)*) => {
        /// One thread's counts.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub struct Stats {
            drops: [Counter; DROPS.len()],
            pub(crate) open: Counter,
            $(pub(crate) $field: Counter,)*
        }

        /// The counts of all threads, added up.
        #[derive(Clone, Copy, Debug, Default)]
        pub(crate) struct Sum {
            $(pub(crate) $field: u64,)*
            pub(crate) open: u64,
        }

        impl Sum {
            pub(crate) fn of<'a>(all: impl Iterator<Item = &'a Stats>) -> Sum {
                let mut sum = Sum::default();
                for stats in all {
                    $(sum.$field = sum.$field.wrapping_add(stats.$field.get());)*
                    sum.open = sum.open.wrapping_add(stats.open.get());
                }
                sum
            }

            /// What was counted since; gauges stay.
            pub(crate) fn since(self, before: &Sum) -> Sum {
                Sum { $($field: self.$field.wrapping_sub(before.$field),)* open: self.open }
            }
        }

        impl Report for Stats {
            fn report(&self, show: &mut dyn FnMut(Figure<'_>)) {
                let mut count = |name, help, labels: &[(&str, &str)], counter: &Counter| {
                    show(Figure { name, help, gauge: false, labels, value: counter.get() });
                };
                $(count($name, $help, &[], &self.$field);)*
                for (reason, name) in DROPS {
                    let counter = &self.drops[reason as usize];
                    count("kv_drops_total", "connections ended, and datagrams not answered", &[("reason", name)], counter);
                }
                let value = self.open.get();
                show(Figure { name: "kv_connections", help: "connections open now", gauge: true, labels: &[], value });
            }
        }
    };
}

counters! {
    get_hits "kv_get_hits_total" "keys asked for and found",
    get_misses "kv_get_misses_total" "keys asked for and not found",
    set "kv_stores_total" "values that came to be stored, whatever became of them",
    touch_hits "kv_touch_hits_total" "keys touched",
    touch_misses "kv_touch_misses_total" "keys to be touched and not found",
    delete_hits "kv_delete_hits_total" "keys deleted",
    delete_misses "kv_delete_misses_total" "keys to be deleted and not found",
    incr_hits "kv_incr_hits_total" "numbers added to",
    incr_misses "kv_incr_misses_total" "numbers to be added to and not found",
    decr_hits "kv_decr_hits_total" "numbers taken from",
    decr_misses "kv_decr_misses_total" "numbers to be taken from and not found",
    cas_hits "kv_cas_hits_total" "values stored in place of the one that the client knew",
    cas_badval "kv_cas_badval_total" "values not stored, since another came before",
    cas_misses "kv_cas_misses_total" "values not stored, since there was none to replace",
    flush "kv_flushes_total" "flush_all commands",
    meta "kv_debug_total" "me commands",
    too_large "kv_too_large_total" "values larger than the limit",
    no_memory "kv_no_memory_total" "stores that found no memory",
    connections "kv_connections_total" "connections accepted",
    idle_closed "kv_idle_closed_total" "connections closed as idle",
    stalled "kv_stalled_total" "times that commands waited for answers before",
    bytes_in "kv_received_bytes_total" "bytes of commands",
    bytes_out "kv_sent_bytes_total" "bytes of answers queued",
    datagrams "kv_datagrams_total" "datagrams whose commands were done",
}

/// What `stats reset` subtracts.
#[derive(Debug, Default)]
pub(crate) struct Baseline {
    pub(crate) sum: Sum,
    pub(crate) stored: u64,
    pub(crate) evictions: u64,
    pub(crate) expired: u64,
}

impl Stats {
    pub(crate) fn dropped(&self, reason: DropReason) {
        self.drops[reason as usize].add(1);
    }

    /// Connections that ended, or datagrams that were not answered, for this reason.
    pub fn drops(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize].get()
    }

    /// Keys that were asked for and found.
    pub fn hits(&self) -> u64 {
        self.get_hits.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_stands_at_its_own_place() {
        let stats = Stats::default();
        for (n, (reason, _)) in DROPS.iter().enumerate() {
            assert_eq!(*reason as usize, n);
        }
        stats.dropped(DropReason::Binary);
        stats.set.add(3);
        stats.open.set(2);
        let mut seen = Vec::new();
        stats.report(&mut |figure| {
            if figure.value > 0 {
                seen.push((figure.name.to_owned(), figure.gauge, figure.value));
            }
        });
        let seen: Vec<(&str, bool, u64)> = seen.iter().map(|(name, gauge, value)| (&**name, *gauge, *value)).collect();
        assert_eq!(seen, [("kv_stores_total", false, 3), ("kv_drops_total", false, 1), ("kv_connections", true, 2)]);
        let sum = Sum::of([&stats, &stats].into_iter());
        assert_eq!((sum.set, sum.open), (6, 4));
        let since = sum.since(&Sum { set: 5, ..Sum::default() });
        assert_eq!((since.set, since.open), (1, 4));
    }
}
