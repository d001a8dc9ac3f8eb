//! What a thread counts.

use base::Counter;
use base::counter::{Figure, Report};

/// One thread's counters: written by the thread, read by anybody.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Counters {
    /// cycles of the loop
    pub cycles: Counter,
    /// 1 while the last cycle has left something in a queue, told where threads help each other out: for them, and not shown
    pub leaves: Counter,
    /// times the thread went to sleep in the kernel
    pub sleeps: Counter,
    /// receive calls that brought at least one datagram
    pub batches: Counter,
    /// receive calls that brought none
    pub empty_receives: Counter,
    /// send calls
    pub send_calls: Counter,
    /// datagrams received
    pub received: Counter,
    /// answers that the kernel took
    pub sent: Counter,
    /// datagrams that the service left unanswered
    pub unanswered: Counter,
    /// questions longer than the buffer
    pub dropped_oversize: Counter,
    /// datagrams whose source cannot be answered: port 0, or no IP address
    pub dropped_source: Counter,
    /// datagrams that the service sent by itself, whatever became of them
    pub unasked: Counter,
    /// answers dropped because the kernel's send queue stayed full, and datagrams that a service sent by itself because it was
    pub dropped_send_full: Counter,
    /// answers that the kernel refused: no route, a firewall, too long
    pub dropped_send_refused: Counter,
    /// datagrams that were in hand when the service panicked
    pub dropped_panic: Counter,
    /// receive calls that failed
    pub receive_errors: Counter,
    /// connections open now
    pub connections: Counter,
    /// connections accepted
    pub accepted: Counter,
    /// connections that the service rejected
    pub rejected: Counter,
    /// connections refused because the thread had its most
    pub refused_full: Counter,
    /// connections refused because their source had its most
    pub refused_source: Counter,
    /// accept calls that failed for want of descriptors or memory
    pub accept_errors: Counter,
    /// connections that the service asked for
    pub connects: Counter,
    /// of which so many came about
    pub connected: Counter,
    /// and so many did not
    pub connects_failed: Counter,
    /// stream bytes received
    pub stream_received: Counter,
    /// stream bytes that the kernel took
    pub stream_sent: Counter,
    /// sends that were cut short because all connections together had queued their most
    pub budget_spent: Counter,
    /// system calls that the kernel took stream bytes with
    pub stream_writes: Counter,
    /// connections that ended
    pub ended: Counter,
    /// closed connections that did not finish in time
    pub linger_expired: Counter,
    /// connections aborted because they still held replaced content when its time to drain was over
    pub drain_expired: Counter,
    /// panics of the service, contained
    pub panics: Counter,
}

/// What one of several threads does of its own work and of others', apart from the other threads' figures.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Sharing {
    thread: String,
    /// connections accepted from its own queue, or from the one that all threads share
    pub accepted_own: Counter,
    /// connections accepted from another thread's queue
    pub accepted_stolen: Counter,
    /// datagrams received from its own socket, or from the one that all threads share
    pub received_own: Counter,
    /// datagrams received from another thread's socket
    pub received_stolen: Counter,
    /// flow groups taken over from other threads
    pub groups_taken: Counter,
    /// flow groups that follow their packets again
    pub groups_returned: Counter,
    /// open connections taken over from other threads
    pub connections_taken: Counter,
    /// connections that another thread gave and that had to be reset: there was no room
    pub connections_lost: Counter,
    /// flow groups that others got when this thread panicked
    pub groups_left: Counter,
    /// flow groups that it owns
    pub groups: Counter,
    /// what waits at it, in thousandths of what it holds at most
    pub backlog: Counter,
    /// 1 while it cannot keep up, or its processor has other work
    pub busy: Counter,
    /// 1 while flow groups that were not taken over follow their packets to the thread of the processor where they arrive
    pub follows: Counter,
    /// 1 while the thread's own listeners get the connections that arrive on its processor
    pub listeners_follow: Counter,
}

impl Sharing {
    pub(crate) fn new(thread: usize) -> Sharing {
        Sharing { thread: thread.to_string(), ..Sharing::default() }
    }
}

impl Report for Sharing {
    fn report(&self, show: &mut dyn FnMut(Figure<'_>)) {
        let thread = ("thread", self.thread.as_str());
        let mut one = |name: &str, help, labels: &[(&str, &str)], counter: &Counter| {
            let gauge = !name.ends_with("_total");
            show(Figure { name, help, gauge, labels, value: counter.get() });
        };
        for (queue, accepted, received) in [
            ("its own", &self.accepted_own, &self.received_own),
            ("another's", &self.accepted_stolen, &self.received_stolen),
        ] {
            let labels = [thread, ("queue", queue)];
            one("sockets_thread_accepted_total", "connections that a thread accepted", &labels, accepted);
            one("sockets_thread_received_total", "datagrams that a thread received", &labels, received);
        }
        let taken = "flow groups that a thread took over from busy ones";
        one("sockets_thread_groups_taken_total", taken, &[thread], &self.groups_taken);
        let returned = "flow groups that a thread took over and let follow their packets again";
        one("sockets_thread_groups_returned_total", returned, &[thread], &self.groups_returned);
        let taken = "open connections that a thread took over from busy ones";
        one("sockets_thread_connections_taken_total", taken, &[thread], &self.connections_taken);
        let lost = "connections reset because the thread that was to take them over had no room";
        one("sockets_thread_connections_lost_total", lost, &[thread], &self.connections_lost);
        let left = "flow groups that others got because a thread panicked";
        one("sockets_thread_groups_left_total", left, &[thread], &self.groups_left);
        one("sockets_thread_groups", "flow groups that a thread owns", &[thread], &self.groups);
        let backlog = "what waits at a thread, in thousandths of what it holds at most";
        one("sockets_thread_backlog_permille", backlog, &[thread], &self.backlog);
        one(
            "sockets_thread_busy",
            "1 while a thread cannot keep up, or its processor has other work",
            &[thread],
            &self.busy,
        );
        let follows = "1 while flow groups follow their packets to the processor where they arrive";
        one("sockets_thread_follows", follows, &[thread], &self.follows);
        let follow = "1 while a thread's own listeners get the connections that arrive on its processor";
        one("sockets_thread_listeners_follow", follow, &[thread], &self.listeners_follow);
    }
}

impl Report for Counters {
    fn report(&self, show: &mut dyn FnMut(Figure<'_>)) {
        let mut one = |name, help, labels: &[(&str, &str)], counter: &Counter| {
            let gauge = name == "sockets_connections";
            show(Figure { name, help, gauge, labels, value: counter.get() });
        };
        one("sockets_cycles_total", "cycles of the socket engine's loop", &[], &self.cycles);
        one("sockets_sleeps_total", "times a thread went to sleep in the kernel", &[], &self.sleeps);
        let calls = "system calls for datagrams";
        one("sockets_datagram_calls_total", calls, &[("call", "receive")], &self.batches);
        one("sockets_datagram_calls_total", calls, &[("call", "receive, empty")], &self.empty_receives);
        one("sockets_datagram_calls_total", calls, &[("call", "send")], &self.send_calls);
        one("sockets_datagrams_received_total", "datagrams received", &[], &self.received);
        one("sockets_datagrams_sent_total", "answers that the kernel took", &[], &self.sent);
        let drops = "datagrams that were not answered, and answers that were not sent";
        for (reason, counter) in [
            ("left unanswered by the service", &self.unanswered),
            ("question too long", &self.dropped_oversize),
            ("source cannot be answered", &self.dropped_source),
            ("send queue full", &self.dropped_send_full),
            ("send refused", &self.dropped_send_refused),
            ("panic", &self.dropped_panic),
        ] {
            one("sockets_datagrams_dropped_total", drops, &[("reason", reason)], counter);
        }
        one("sockets_receive_errors_total", "receive calls that failed", &[], &self.receive_errors);
        one("sockets_connections", "connections open now", &[], &self.connections);
        one("sockets_connections_accepted_total", "connections accepted", &[], &self.accepted);
        let refused = "connections turned away";
        for (reason, counter) in [
            ("by the service", &self.rejected),
            ("too many", &self.refused_full),
            ("too many from its source", &self.refused_source),
        ] {
            one("sockets_connections_refused_total", refused, &[("reason", reason)], counter);
        }
        one("sockets_unasked_datagrams_total", "datagrams that a service sent by itself", &[], &self.unasked);
        let connects = "connections that a service asked for, and what became of them";
        one("sockets_connects_total", connects, &[("step", "asked for")], &self.connects);
        one("sockets_connects_total", connects, &[("step", "connected")], &self.connected);
        one("sockets_connects_total", connects, &[("step", "failed")], &self.connects_failed);
        one(
            "sockets_accept_errors_total",
            "accepts that failed for want of descriptors or memory",
            &[],
            &self.accept_errors,
        );
        let bytes = "stream bytes";
        one("sockets_stream_bytes_total", bytes, &[("direction", "in")], &self.stream_received);
        one("sockets_stream_bytes_total", bytes, &[("direction", "out")], &self.stream_sent);
        let budget = "sends cut short because all connections together had queued their most";
        one("sockets_budget_spent_total", budget, &[], &self.budget_spent);
        one("sockets_stream_writes_total", "system calls that took stream bytes", &[], &self.stream_writes);
        one("sockets_connections_ended_total", "connections that ended", &[], &self.ended);
        one(
            "sockets_linger_expired_total",
            "closed connections that did not finish in time",
            &[],
            &self.linger_expired,
        );
        one(
            "sockets_drain_expired_total",
            "connections aborted because they still held replaced content after its time to drain",
            &[],
            &self.drain_expired,
        );
        one("sockets_panics_total", "panics of a service, contained", &[], &self.panics);
    }
}
