//! What a thread counts.

use crate::Owners;
use base::Counter;
use base::counter::{Figure, Report};
use std::sync::Arc;

/// Bursts are counted in classes of 1, 2, 3-4, 5-8, 9-16, 17-32 and 33-64 frames.
pub const BURST_CLASSES: usize = 7;
const CLASS_NAMES: [&str; BURST_CLASSES] = ["1", "2", "4", "8", "16", "32", "64"];

/// One thread's counters: written by the thread, read by anybody.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Counters {
    /// cycles of the loop
    pub cycles: Counter,
    /// cycles that received or sent nothing
    pub empty_cycles: Counter,
    /// frames received
    pub received: Counter,
    /// frames that the port took for sending
    pub transmitted: Counter,
    /// frames that waited behind each burst, summed over all
    pub queued: Counter,
    /// bursts by size
    pub bursts: [Counter; BURST_CLASSES],
    /// cycles that received less, or nothing, because the port took no more
    pub transmit_stalls: Counter,
    /// times the thread let others of its processor run though it had work
    pub yields: Counter,
    /// times the thread went to sleep
    pub sleeps: Counter,
    /// nanoseconds in cycles that had work
    pub busy_ns: Counter,
    /// nanoseconds asleep
    pub asleep_ns: Counter,
    /// commands carried out
    pub commands: Counter,
    /// panics contained
    pub panics: Counter,
    /// frames that were in hand at a panic and went back unsent
    pub dropped_panic: Counter,
    /// frames copied to the tap
    pub tapped: Counter,
    /// frames not copied because the tap's ring was full
    pub tap_missed: Counter,
}

impl Counters {
    /// Counts a burst of `frames`, at least one.
    #[inline]
    pub(crate) fn burst(&self, frames: usize) {
        let class = frames.next_power_of_two().trailing_zeros() as usize;
        self.bursts[class.min(BURST_CLASSES - 1)].add(1);
    }
}

impl Report for Counters {
    fn report(&self, show: &mut dyn FnMut(Figure<'_>)) {
        let mut one = |name, help, labels: &[(&str, &str)], counter: &Counter| {
            show(Figure { name, help, gauge: false, labels, value: counter.get() });
        };
        one("dataplane_cycles_total", "cycles of the loop", &[], &self.cycles);
        one("dataplane_empty_cycles_total", "cycles without work", &[], &self.empty_cycles);
        let frames = "frames between port and stack";
        one("dataplane_frames_total", frames, &[("direction", "in")], &self.received);
        one("dataplane_frames_total", frames, &[("direction", "out")], &self.transmitted);
        one("dataplane_queued_frames_total", "frames left waiting, summed over cycles", &[], &self.queued);
        for (most, counter) in CLASS_NAMES.iter().zip(&self.bursts) {
            one(
                "dataplane_bursts_total",
                "bursts of at most so many frames, by powers of two",
                &[("frames", most)],
                counter,
            );
        }
        let stalls = "cycles that received less because the port took no more";
        one("dataplane_transmit_stalls_total", stalls, &[], &self.transmit_stalls);
        one("dataplane_yields_total", "times a busy thread let others run", &[], &self.yields);
        one("dataplane_sleeps_total", "times a thread went to sleep", &[], &self.sleeps);
        let time = "nanoseconds by what a thread did";
        one("dataplane_time_nanoseconds_total", time, &[("state", "busy")], &self.busy_ns);
        one("dataplane_time_nanoseconds_total", time, &[("state", "asleep")], &self.asleep_ns);
        one("dataplane_commands_total", "commands from control", &[], &self.commands);
        one("dataplane_panics_total", "panics contained", &[], &self.panics);
        let dropped = "frames dropped by the loop";
        one("dataplane_dropped_total", dropped, &[("reason", "panic")], &self.dropped_panic);
        one("dataplane_tapped_total", "frames copied to a tap", &[], &self.tapped);
        one("dataplane_tap_missed_total", "frames that found the tap's ring full", &[], &self.tap_missed);
    }
}

/// What a thread counts of its dealings with the other threads of its interface.
#[derive(Debug)]
#[repr(align(128))]
pub struct Crossings {
    owners: Arc<Owners>,
    /// among those of the interface
    me: u16,
    /// among all
    thread: String,
    /// frames of other threads' groups that were sent to them
    pub frames_out: Counter,
    /// frames that others sent
    pub frames_in: Counter,
    /// frames that found the ring to their owner full
    pub lost: Counter,
    /// datagrams of a thread's that hangs, which we took ourselves
    pub orphans: Counter,
    /// frames that waited for their group to arrive
    pub waited: Counter,
    /// frames of ours that we took from the port of a thread that was held up
    pub helped: Counter,
    /// frames that we took there and passed on to it
    pub passed: Counter,
    /// flow groups that were given away
    pub groups_out: Counter,
    /// flow groups that were taken over
    pub groups_in: Counter,
    /// times that groups left, or settled elsewhere, though frames of theirs may have waited for a thread that did not run
    pub hurried: Counter,
    /// 1 while the thread is busy, as the balancer sees it
    pub busy: Counter,
    /// moving average of the frames that wait in its port and in the rings from other threads
    pub backlog: Counter,
}

impl Crossings {
    /// Of the thread `me` of those that `owners` has; it is thread `thread` of all.
    pub(crate) fn new(owners: Arc<Owners>, me: u16, thread: usize) -> Crossings {
        Crossings {
            owners,
            me,
            thread: thread.to_string(),
            frames_out: Counter::default(),
            frames_in: Counter::default(),
            lost: Counter::default(),
            orphans: Counter::default(),
            waited: Counter::default(),
            helped: Counter::default(),
            passed: Counter::default(),
            groups_out: Counter::default(),
            groups_in: Counter::default(),
            hurried: Counter::default(),
            busy: Counter::default(),
            backlog: Counter::default(),
        }
    }
}

/// Flow groups that have left one of these threads and are not taken in by another yet; may be more by those that leave meanwhile.
pub(crate) fn groups_under_way(all: &[Arc<Crossings>]) -> u64 {
    // first those that have arrived: one that leaves and arrives in between is still on its way then, and none seems to have come from nowhere
    let arrived: u64 = all.iter().map(|crossings| crossings.groups_in.get()).sum();
    let left: u64 = all.iter().map(|crossings| crossings.groups_out.get()).sum();
    left.saturating_sub(arrived)
}

impl Report for Crossings {
    fn report(&self, show: &mut dyn FnMut(Figure<'_>)) {
        let thread = ("thread", self.thread.as_str());
        let mut labelled = |name, help, label: Option<(&str, &str)>, counter: &Counter| {
            let labels = [thread, label.unwrap_or_default()];
            let labels = if label.is_some() { &labels[..] } else { &labels[..1] };
            show(Figure { name, help, gauge: false, labels, value: counter.get() });
        };
        let taken = "frames that a thread took from the port of one that was held up";
        labelled("dataplane_helped_frames_total", taken, Some(("to", "itself")), &self.helped);
        labelled("dataplane_helped_frames_total", taken, Some(("to", "owner")), &self.passed);
        let mut one = |name, help, direction: Option<&str>, counter: &Counter| {
            labelled(name, help, direction.map(|direction| ("direction", direction)), counter);
        };
        let frames = "frames of other threads' flow groups";
        one("dataplane_crossed_frames_total", frames, Some("out"), &self.frames_out);
        one("dataplane_crossed_frames_total", frames, Some("in"), &self.frames_in);
        one("dataplane_crossing_lost_total", "frames that found the ring to their owner full", None, &self.lost);
        let orphans = "datagrams of a thread that hangs, taken by the one that received them";
        one("dataplane_crossing_orphans_total", orphans, None, &self.orphans);
        one("dataplane_crossing_waited_total", "frames that waited for their flow group", None, &self.waited);
        let groups = "flow groups that changed their thread";
        one("dataplane_moved_groups_total", groups, Some("out"), &self.groups_out);
        one("dataplane_moved_groups_total", groups, Some("in"), &self.groups_in);
        let hurried = "times that groups moved though frames of theirs waited for a thread that did not run";
        one("dataplane_hurried_moves_total", hurried, None, &self.hurried);
        let mut gauge = |name, help, value: u64| show(Figure { name, help, gauge: true, labels: &[thread], value });
        gauge("dataplane_flow_groups", "flow groups that the thread owns", self.owners.count(self.me) as u64);
        gauge("dataplane_busy", "1 while the balancer sees the thread as busy", self.busy.get());
        let backlog = "moving average of the frames that wait in the thread's port and in rings from others";
        gauge("dataplane_backlog_frames", backlog, self.backlog.get());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_under_way_until_they_are_taken_in() {
        let owners = Arc::new(Owners::new(wire::flow::Groups::keyed(16, [1, 2]), 3, |_| 0));
        let all: Vec<_> = (0..3).map(|me| Arc::new(Crossings::new(owners.clone(), me, me.into()))).collect();
        let under_way = || groups_under_way(&all);
        assert_eq!(under_way(), 0);
        all[0].groups_out.add(5);
        all[2].groups_out.add(1);
        assert_eq!(under_way(), 6);
        all[1].groups_in.add(4);
        assert_eq!(under_way(), 2);
        all[0].groups_in.add(2);
        assert_eq!(under_way(), 0);
    }

    #[test]
    fn every_burst_size_has_its_class() {
        let counters = Counters::default();
        (1..=64).for_each(|frames| counters.burst(frames));
        let counts = counters.bursts.each_ref().map(Counter::get);
        assert_eq!(counts, [1, 1, 2, 4, 8, 16, 32]);
    }
}
