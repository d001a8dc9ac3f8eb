//! What became of every segment that was not simply processed, and what happened to connections.

use crate::counters::counted;
use base::Counter;
use base::counter::{Figure, Report};

counted! {
    /// Why a segment of a connection went no further than its header.
    Ignored {
        /// its timestamp is older than what was seen (PAWS, RFC 7323 section 5.3)
        OldTimestamp = "old timestamp",
        /// no timestamp on a connection that uses them (RFC 7323 section 3.2)
        NoTimestamp = "no timestamp",
        /// all of it was received before
        OldSegment = "old segment",
        /// beyond the receive window
        BeyondWindow = "beyond window",
        /// neither ACK nor RST nor SYN
        NoAck = "no ack",
        /// a SYN on a connection that is open (RFC 5961 section 4)
        UnexpectedSyn = "unexpected syn",
        /// it acknowledges what was never sent
        AckBeyond = "ack beyond",
        /// it acknowledges what was acknowledged long ago (RFC 5961 section 5.2)
        AckOld = "ack old",
        /// a reset whose number is in the window but not the one expected (RFC 5961 section 3.2)
        ResetInWindow = "reset in window",
        /// a reset outside the window
        ResetOutside = "reset outside",
        /// data without room in the pool for out-of-order segments
        NoBlock = "no out-of-order block",
        /// a SYN while SYNs are limited: half-open table full and cookies impossible
        NoHalfOpen = "no half-open entry",
        /// a handshake that found no connection block
        NoConnection = "no connection block",
        /// a SYN from a source that has as many connections as one may have
        SourceLimit = "source limit",
        /// an acknowledgement without connection whose cookie is not ours
        BadCookie = "bad cookie",
        /// a segment in TIME-WAIT
        TimeWait = "time-wait",
        /// a segment that fits no connection and no listener, answered by a reset
        Stray = "stray",
        /// such a segment that is not answered: itself a reset, or resets are limited, or a connection of ours that is to have these
        /// ends waits for its neighbour
        StraySilent = "stray unanswered",
        /// data for a connection whose service has closed it
        Abandoned = "data after close",
    }
}

counted! {
    /// What happened to connections.
    Event {
        /// a SYN took a half-open entry
        HalfOpen = "half-open",
        /// a source had as many half-open entries as one may
        SourceHalfOpen = "half-open source limit",
        /// a SYN was answered by a cookie
        Cookie = "cookie sent",
        /// a cookie came back
        CookieAccepted = "cookie accepted",
        /// a half-open entry was given up
        HalfOpenTimeout = "half-open timeout",
        /// a handshake of a peer's is complete
        Accepted = "accepted",
        /// the service rejected it
        Rejected = "rejected",
        /// a handshake of ours is complete
        Connected = "connected",
        /// a handshake of ours was refused, since its answer would have come to another thread
        Elsewhere = "connect refused, another thread's",
        /// both sides finished
        Closed = "closed",
        /// the peer reset it
        Reset = "reset by peer",
        /// we aborted it
        Aborted = "aborted",
        /// of those, since it still held content that was replaced when the time to drain was over
        DrainExpired = "drain expired",
        /// its thread panicked, and nothing is known of it any more
        Lost = "lost by a panic",
        /// it was asked for and nobody listened there
        Refused = "connect refused by peer",
        /// it was asked for and there was no way to the peer
        Unreachable = "connect unreachable",
        /// it made no progress for too long
        TimedOut = "timed out",
        /// something it needed ran out
        NoResources = "no resources",
        /// a service offered more than pools that all connections share had room for
        QueueShort = "queue pool short",
        /// a segment was sent again
        Retransmitted = "segment retransmitted",
        /// the retransmission timer expired
        RetransmissionTimeout = "retransmission timeout",
        /// loss was found by RACK, and is being repaired
        Recovery = "recovery",
        /// a recovery turned out to be without need, and was taken back
        Undone = "recovery undone",
        /// a tail loss probe
        TailLossProbe = "tail loss probe",
        /// a probe or a timeout was put off, since our own receive queue ran over
        PutOff = "timeout put off",
        /// the congestion window was reduced because a router marked
        EcnReduced = "ecn reduction",
        /// bytes that the peer had already (D-SACK)
        DuplicateTold = "d-sack received",
        /// a probe of a closed window
        WindowProbe = "window probe",
        /// a keepalive probe
        Keepalive = "keepalive",
        /// an ACK that challenges
        Challenge = "challenge ack",
        /// a reset was sent
        ResetSent = "reset sent",
        /// the path's MTU was lowered, by ICMP or because full segments vanish
        PathMtu = "path mtu lowered",
        /// a segment went out to see whether a path that was narrow carries more
        PathMtuTried = "path mtu tried",
        /// and it does
        PathMtuRaised = "path mtu raised",
        /// an ICMP error that fits no sequence number in flight
        IcmpIgnored = "icmp error ignored",
        /// for want of a record a SACK block was not noted, data wait, or a list was folded
        RecordsShort = "record pool empty",
        /// a connection's own list of records is as long as one may be: a SACK block was not noted, or data wait
        ListFull = "record list full",
        /// TIME-WAIT entries made
        TimeWaitBegun = "time-wait begun",
        /// a TIME-WAIT entry was reused early by a new connection (RFC 6191)
        TimeWaitReused = "time-wait reused",
        /// a delayed ACK went out by its timer
        DelayedAck = "delayed ack",
    }
}

impl Event {
    /// There is no record: the pool lacks them, or the connection has as many as one may have, by which one peer says nothing of others.
    pub(super) fn no_record(pool: bool) -> Event {
        if pool { Event::RecordsShort } else { Event::ListFull }
    }
}

/// TCP's counters of one stack. Its thread writes, anybody reads.
#[derive(Debug)]
#[repr(align(128))]
pub struct Counters {
    ignored: [Counter; Ignored::ALL.len()],
    events: [Counter; Event::ALL.len()],
    /// connections that are open now, those whose end the service was not told of counted
    pub connections: Counter,
    /// half-open entries now
    pub half_open: Counter,
    /// TIME-WAIT entries now
    pub time_wait: Counter,
    /// segments received
    pub received: Counter,
    /// segments sent
    pub sent: Counter,
    /// bytes of data delivered to services
    pub delivered_bytes: Counter,
    /// bytes of data acknowledged by peers
    pub acknowledged_bytes: Counter,
    /// connections that came from another thread
    pub moved_in: Counter,
    /// connections that went to another thread
    pub moved_out: Counter,
    /// connections and half-open entries that came from another thread and found no room
    pub moves_refused: Counter,
}

impl Counters {
    pub(crate) fn new() -> Counters {
        Counters {
            ignored: [const { Counter::new() }; _],
            events: [const { Counter::new() }; _],
            connections: Counter::new(),
            half_open: Counter::new(),
            time_wait: Counter::new(),
            received: Counter::new(),
            sent: Counter::new(),
            delivered_bytes: Counter::new(),
            acknowledged_bytes: Counter::new(),
            moved_in: Counter::new(),
            moved_out: Counter::new(),
            moves_refused: Counter::new(),
        }
    }

    /// Segments that went no further for this reason.
    pub fn ignored(&self, reason: Ignored) -> u64 {
        self.ignored[reason as usize].get()
    }

    /// How often this happened.
    pub fn event(&self, event: Event) -> u64 {
        self.events[event as usize].get()
    }

    #[inline]
    pub(crate) fn ignore(&self, reason: Ignored) {
        self.ignored[reason as usize].add(1);
    }

    #[inline]
    pub(crate) fn on(&self, event: Event) {
        self.events[event as usize].add(1);
    }
}

impl Report for Counters {
    fn report(&self, show: &mut dyn FnMut(Figure<'_>)) {
        let mut put = |name, help, gauge, labels: &[(&str, &str)], counter: &Counter| {
            show(Figure { name, help, gauge, labels, value: counter.get() });
        };
        put("tcp_connections", "connections open now", true, &[], &self.connections);
        put("tcp_half_open", "half-open entries now", true, &[], &self.half_open);
        put("tcp_time_wait", "TIME-WAIT entries now", true, &[], &self.time_wait);
        put("tcp_segments_received_total", "segments received", false, &[], &self.received);
        put("tcp_segments_sent_total", "segments sent", false, &[], &self.sent);
        put("tcp_delivered_bytes_total", "bytes delivered to services", false, &[], &self.delivered_bytes);
        put("tcp_acknowledged_bytes_total", "bytes acknowledged by peers", false, &[], &self.acknowledged_bytes);
        for (direction, counter) in [("in", &self.moved_in), ("out", &self.moved_out)] {
            let help = "connections that moved between threads";
            put("tcp_moved_total", help, false, &[("direction", direction)], counter);
        }
        let help = "connections, and handshakes, that moved and found no room";
        put("tcp_moves_refused_total", help, false, &[], &self.moves_refused);
        for (reason, counter) in Ignored::ALL.iter().zip(&self.ignored) {
            let help = "segments that went no further, by reason";
            put("tcp_segments_ignored_total", help, false, &[("reason", reason.label())], counter);
        }
        for (event, counter) in Event::ALL.iter().zip(&self.events) {
            let help = "what happened to connections";
            put("tcp_events_total", help, false, &[("event", event.label())], counter);
        }
    }
}
