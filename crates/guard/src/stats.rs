//! What an application did and was refused. One block a thread, written by it alone.

use base::Counter;
use base::counter::{Figure, Report};

/// Why something that an application wrote was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Reject {
    /// more calls than there are slots
    CallHead,
    /// events taken that were not told
    EventTail,
    /// no such call
    Kind,
    /// something where zero must be
    NotZero,
    /// a handle of another owner
    Owner,
    /// an index beyond the table
    Index,
    /// a connection that is gone; an honest application may be late, too
    Stale,
    /// a call that the connection's state does not allow
    State,
    /// more given back than was delivered
    Done,
    /// payload outside its area
    Offset,
    /// no payload, or more than a call may have
    Length,
    /// more unsent than a connection may have
    Credit,
    /// more unsent than all connections may have
    Budget,
    /// an answer to no datagram, or a longer one than it may be
    Reply,
    /// a peer that the operator does not permit
    Permit,
    /// more connections asked for at one time than may be
    Asking,
    /// a datagram from a listener of others
    Listener,
    /// more alarms than there may be
    Alarms,
}

/// Every reason with its name.
pub const REJECTS: [(Reject, &str); 18] = [
    (Reject::CallHead, "call head"),
    (Reject::EventTail, "event tail"),
    (Reject::Kind, "kind"),
    (Reject::NotZero, "not zero"),
    (Reject::Owner, "owner"),
    (Reject::Index, "index"),
    (Reject::Stale, "stale"),
    (Reject::State, "state"),
    (Reject::Done, "done"),
    (Reject::Offset, "offset"),
    (Reject::Length, "length"),
    (Reject::Credit, "credit"),
    (Reject::Budget, "budget"),
    (Reject::Reply, "reply"),
    (Reject::Permit, "permit"),
    (Reject::Asking, "asking"),
    (Reject::Listener, "listener"),
    (Reject::Alarms, "alarms"),
];

/// Why a connection or a datagram did not get to the application, or was ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DropReason {
    /// its process is not there
    Absent,
    /// it does not take its events
    Unresponsive,
    /// there is no room for the event
    NoRoom,
    /// the datagram is longer than an event's may be
    TooLong,
    /// it has its most connections
    Full,
    /// its process ended
    Lost,
    /// it took no event for so long that its connections were ended
    Stuck,
    /// what it has not taken passed its bound
    Overrun,
    /// the engine refused a call
    Engine,
    /// it was closed, and its peer took nothing of what waited for the engine
    Lingered,
}

/// Every reason with its name.
pub const DROPS: [(DropReason, &str); 10] = [
    (DropReason::Absent, "absent"),
    (DropReason::Unresponsive, "unresponsive"),
    (DropReason::NoRoom, "no room"),
    (DropReason::TooLong, "too long"),
    (DropReason::Full, "full"),
    (DropReason::Lost, "lost"),
    (DropReason::Stuck, "stuck"),
    (DropReason::Overrun, "overrun"),
    (DropReason::Engine, "engine"),
    (DropReason::Lingered, "lingered"),
];

macro_rules! counters {
    ($($field:ident $name:literal $gauge:literal $help:literal,)*) => {
        /// One thread's counts.
        #[derive(Debug)]
        #[repr(align(128))]
        pub struct Stats {
            application: String,
            rejects: [Counter; REJECTS.len()],
            drops: [Counter; DROPS.len()],
            $(pub(crate) $field: Counter,)*
        }

        impl Stats {
            /// Of the application of this name.
            pub fn new(application: &str) -> Stats {
                Stats {
                    application: application.to_owned(),
                    rejects: Default::default(),
                    drops: Default::default(),
                    $($field: Counter::new(),)*
                }
            }
        }

        impl Report for Stats {
            fn report(&self, show: &mut dyn FnMut(Figure<'_>)) {
                let of = ("application", self.application.as_str());
                $(show(Figure { name: $name, help: $help, gauge: $gauge, labels: &[of], value: self.$field.get() });)*
                for (reason, name) in REJECTS {
                    let (help, labels) = ("what an application wrote and was not done", [of, ("reason", name)]);
                    let value = self.rejects(reason);
                    show(Figure { name: "app_rejects_total", help, gauge: false, labels: &labels, value });
                }
                for (reason, name) in DROPS {
                    let (help, labels) = ("connections and datagrams refused or ended", [of, ("reason", name)]);
                    let value = self.drops(reason);
                    show(Figure { name: "app_drops_total", help, gauge: false, labels: &labels, value });
                }
            }
        }
    };
}

counters! {
    connections "app_connections" true "connections that an application has now",
    held_bytes "app_held_bytes" true "bytes kept for an application that has not taken them",
    unsent_bytes "app_unsent_bytes" true "bytes that an application sent and peers have not taken",
    pending_bytes "app_pending_bytes" true "bytes that an application sent and the engine has not taken",
    alarms "app_alarms" true "alarms that an application has set",
    connects "app_connects_total" false "connections that an application asked for and the engine began",
    events "app_events_total" false "events told",
    calls "app_calls_total" false "calls taken",
    batches "app_batches_total" false "times that calls were taken",
    throttled "app_throttled_total" false "times that an application had made so many calls that further ones had to wait",
    received_bytes "app_received_bytes_total" false "bytes told",
    sent_bytes "app_sent_bytes_total" false "bytes taken",
    wakes "app_wakes_total" false "times that an application was woken",
    handovers "app_handovers_total" false "times that a processor was handed over",
    unresponsive "app_unresponsive_total" false "times that an application did not take its events in time",
    unresponsive_ns "app_unresponsive_nanoseconds_total" false "nanoseconds until an application that did not take its events in time took one",
    lost "app_lost_total" false "times that an application ended",
}

impl Stats {
    #[inline]
    pub(crate) fn rejected(&self, reason: Reject) {
        self.rejects[reason as usize].add(1);
    }

    #[inline]
    pub(crate) fn dropped(&self, reason: DropReason) {
        self.drops[reason as usize].add(1);
    }

    /// What was written and not done for this reason.
    pub fn rejects(&self, reason: Reject) -> u64 {
        self.rejects[reason as usize].get()
    }

    /// Connections and datagrams that were refused or ended for this reason.
    pub fn drops(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize].get()
    }

    /// Connections that the application has now.
    pub fn connections(&self) -> u64 {
        self.connections.get()
    }

    /// Bytes kept in the trusted half now: for the application, and for the engine.
    pub fn kept_bytes(&self) -> u64 {
        self.held_bytes.get() + self.pending_bytes.get()
    }

    /// Calls that were judged.
    pub fn calls(&self) -> u64 {
        self.calls.get()
    }

    /// Bytes of payload that were copied out of the application's memory.
    pub fn sent_bytes(&self) -> u64 {
        self.sent_bytes.get()
    }

    /// Times that the application did not take its events in time.
    pub fn unresponsive(&self) -> u64 {
        self.unresponsive.get()
    }

    /// How long it took for the next in those times, in all that are over, in nanoseconds.
    pub fn unresponsive_ns(&self) -> u64 {
        self.unresponsive_ns.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_stands_at_its_own_place() {
        assert!(REJECTS.iter().enumerate().all(|(n, (reason, _))| *reason as usize == n));
        assert!(DROPS.iter().enumerate().all(|(n, (reason, _))| *reason as usize == n));
        let stats = Stats::new("kv");
        stats.rejected(Reject::Credit);
        stats.dropped(DropReason::Stuck);
        stats.calls.add(3);
        let mut seen = Vec::new();
        stats.report(&mut |figure| {
            assert_eq!(figure.labels[0], ("application", "kv"));
            if figure.value > 0 {
                seen.push((
                    figure.name.to_owned(),
                    figure.labels.get(1).map_or("", |label| label.1).to_owned(),
                    figure.value,
                ));
            }
        });
        let seen: Vec<_> = seen.iter().map(|(name, reason, value)| (name.as_str(), reason.as_str(), *value)).collect();
        assert_eq!(
            seen,
            [("app_calls_total", "", 3), ("app_rejects_total", "credit", 1), ("app_drops_total", "stuck", 1)]
        );
    }
}
