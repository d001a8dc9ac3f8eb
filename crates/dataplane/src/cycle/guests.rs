//! Loops with and without queues, stepped in any order: what the answers look like from outside.

use super::*;
use crate::bell::Bell;
use crate::crossing::{Helpers, crossings};
use crate::{MOST_THREADS, Owners};
use port::guest::{Housed, house};
use port::pipe::{self, Pipe};
use port::{Facts, Waiting};
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::Mutex;
use wire::ethernet::{EtherType, Link};
use wire::flow::Flow;
use wire::{Protocol, Sum, ipv4, udp};

const GROUPS: usize = 8;
const AT: usize = 14 + 20 + 8;

/// A datagram of a flow with its number.
fn write(frame: &mut Frame, flow: u16, number: u32) {
    let mut bytes = vec![0; AT];
    bytes.extend(number.to_be_bytes());
    bytes.resize(60, 0);
    let payload_bytes = 8 + bytes.len() - AT;
    Link { dst: [2; 6], src: [4; 6], tag: None, ether_type: EtherType::IPV4 }.write(&mut bytes);
    let mut head = [0; 20];
    let (src, dst) = ([203, 0, 113, 9].into(), [192, 0, 2, 1].into());
    ipv4::Header { src, dst, protocol: Protocol::UDP, ttl: 64, payload_bytes }.write(&mut head);
    bytes[14..34].copy_from_slice(&head);
    udp::write(&mut bytes[34..], flow, 53, Sum::pseudo_v4(src, dst, Protocol::UDP, payload_bytes as u16));
    assert!(frame.fill(&bytes));
}

fn read(frame: &Frame) -> (u16, u32) {
    let bytes = frame.bytes();
    let number = u32::from_be_bytes(bytes[AT..AT + 4].try_into().unwrap());
    (Flow::of_frame(bytes).unwrap().src().port(), number)
}

/// A device that takes so many frames, until it is given room again.
struct Narrow {
    pipe: Pipe,
    room: usize,
    /// how sending goes at best
    outgoing: Outgoing,
}

impl Port for Narrow {
    fn facts(&self) -> &Facts {
        self.pipe.facts()
    }
    fn receive(&mut self, into: &mut Burst, limit: usize) -> usize {
        self.pipe.receive(into, limit)
    }
    fn waiting(&mut self) -> usize {
        self.pipe.waiting()
    }
    fn transmit_room(&mut self) -> usize {
        self.room
    }
    fn transmit(&mut self, from: &mut Burst) -> usize {
        let n = from.len().min(self.room);
        self.room -= n;
        let mut some = Burst::new();
        some.extend(from.drain(..n));
        self.pipe.transmit(&mut some)
    }
    fn flush(&mut self) -> Outgoing {
        self.pipe.flush().max(self.outgoing)
    }
    fn take(&mut self) -> Option<Frame> {
        self.pipe.take()
    }
    fn give(&mut self, frame: Frame) {
        self.pipe.give(frame);
    }
}

/// A queue that any thread may take from, which has received what the test puts in.
#[derive(Debug, Default)]
struct Open(Mutex<VecDeque<Frame>>);

impl Open {
    fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

impl Inlet for Open {
    fn lease(&self, work: &mut dyn FnMut(&mut dyn Waiting)) -> bool {
        work(&mut &*self);
        true
    }
    fn watch(&self, _: BorrowedFd<'_>, _: bool) -> bool {
        true
    }
}

impl Waiting for &Open {
    fn receive(&mut self, into: &mut Burst, limit: usize, _: &mut dyn FnMut(Frame)) -> usize {
        let mut arrived = self.0.lock().unwrap();
        let n = limit.min(arrived.len());
        into.extend(arrived.drain(..n));
        n
    }
    fn waiting(&mut self) -> usize {
        self.len()
    }
    fn refill(&mut self, _: &mut dyn FnMut() -> Option<Frame>) {}
}

struct Nothing;
impl Service for Nothing {
    fn datagrams(&mut self, _: Instant, _: app::Listener, _: &mut [app::Datagram<'_>]) {}
}

/// Sends every frame back and knows the next number of each flow, which goes along with its group.
struct Echo {
    groups: Arc<Groups>,
    next: BTreeMap<u16, BTreeMap<u16, u32>>,
    /// a group that cannot leave
    stays: Option<u16>,
    /// a bell, and whether it had rung when frames were taken
    hears: Option<(Arc<Bell>, bool)>,
    /// how often its thread's receive queue was about full
    overruns: usize,
}

impl Floor for Echo {
    fn input<S: Service>(&mut self, _: Instant, rx: &mut Burst, tx: &mut Burst, _: &mut Burst, _: &mut S) {
        if let Some((bell, rung)) = &mut self.hears {
            *rung |= rustix::io::read(bell.descriptor(), &mut [0; 8]).is_ok();
        }
        for frame in rx.drain(..) {
            let (flow, number) = read(&frame);
            let group = self.groups.of(&Flow::of_frame(frame.bytes()).unwrap());
            let next = self.next.get_mut(&group).expect("the thread has the group").entry(flow).or_default();
            assert_eq!(number, *next, "flow {flow} at its thread");
            *next += 1;
            tx.push(frame);
        }
    }

    fn poll<S: Service>(&mut self, _: Instant, _: &mut dyn Supply, _: &mut Burst, _: &mut S) -> Option<Instant> {
        None
    }

    fn overrun(&mut self, _: Instant) {
        self.overruns += 1;
    }

    fn can_depart<S: Service>(&self, group: u16, _: &S) -> bool {
        self.stays != Some(group)
    }

    fn depart<S: Service>(&mut self, _: Instant, group: u16, _: &mut S) -> Parcel {
        Box::new((group, self.next.remove(&group).expect("a group that is here")))
    }

    fn arrive<S: Service>(&mut self, _: Instant, parcel: Parcel, _: &mut S) {
        let (group, next) = *parcel.downcast::<(u16, BTreeMap<u16, u32>)>().unwrap();
        assert!(self.next.insert(group, next).is_none());
    }
}

struct World {
    now: Instant,
    loops: Vec<Loop<Housed<Narrow>, Nothing, Echo>>,
    owners: Arc<Owners>,
    bells: Vec<Arc<Bell>>,
    clients: Vec<Pipe>,
    /// what arrives at queues that others may take from
    inlets: Vec<Option<Arc<Open>>>,
    frames: u32,
    sent: BTreeMap<u16, u32>,
    answered: BTreeMap<u16, u32>,
}

impl World {
    fn new(queues: usize, guests: usize) -> World {
        World::with(queues, guests, 2048, |_| None)
    }

    /// The first thread and so many others, from whose queues it may take.
    fn with_open_queues(others: usize) -> World {
        World::with(1 + others, 0, 2048, |thread| (thread > 0).then(Arc::default))
    }

    /// Receive queues of so many frames, or those that others may take from.
    fn with(queues: usize, guests: usize, ring_frames: usize, open: impl Fn(usize) -> Option<Arc<Open>>) -> World {
        let threads = queues + guests;
        assert!(threads <= MOST_THREADS);
        // fewer than a ring between two threads holds, so that none can be lost there
        let frames = 1500 / queues as u32;
        let config = pipe::Config { queues, frames, ring_frames, ..pipe::Config::default() };
        let (clients, servers, pools) = pipe::pair_with_pools(&config, guests).unwrap();
        let servers = servers.into_iter().map(|pipe| Narrow { pipe, room: 100, outgoing: Outgoing::Nothing }).collect();
        let owners = Arc::new(Owners::new(Groups::keyed(GROUPS, [7, 9]), threads, |group| group % threads as u16));
        let bells: Vec<_> = (0..threads).map(|_| Arc::new(Bell::new().unwrap())).collect();
        let inlets: Vec<_> = (0..threads).map(open).collect();
        let shared = inlets.iter().cloned().map(|inlet| inlet.map(|inlet| inlet as Arc<dyn Inlet>));
        let helpers = Helpers::new(GROUPS, shared);
        let crossings = crossings(&owners, None, None, 0, &bells, &helpers);
        let floor = |me: usize| {
            let ours = (0..GROUPS as u16).filter(|group| usize::from(owners.owner(*group)) == me);
            let next = ours.map(|group| (group, BTreeMap::new())).collect();
            Echo { groups: owners.groups().clone(), next, stays: None, hears: None, overruns: 0 }
        };
        let ports = house(servers, pools, 0).into_iter().enumerate().zip(crossings);
        let loops =
            ports.map(|((me, port), crossing)| Loop::new(port, floor(me), Nothing, 64).with_crossing(Some(crossing)));
        let loops = loops.collect();
        let (sent, answered) = Default::default();
        World { now: Instant::ZERO, loops, owners, bells, clients, inlets, frames, sent, answered }
    }

    /// A flow's frames always come to one queue, which need not be its owner's.
    fn send(&mut self, flow: u16) {
        let queue = usize::from(flow) % self.clients.len();
        let client = &mut self.clients[queue];
        let Some(mut frame) = client.take() else { return };
        let number = self.sent.entry(flow).or_default();
        write(&mut frame, flow, *number);
        *number += 1;
        if let Some(inlet) = &self.inlets[queue] {
            return inlet.0.lock().unwrap().push_back(frame);
        }
        let mut burst = Burst::new();
        burst.push(frame);
        client.transmit(&mut burst);
    }

    /// Frames that wait at a queue.
    fn waiting(&mut self, queue: usize) -> usize {
        match &self.inlets[queue] {
            Some(inlet) => inlet.len(),
            None => self.loops[queue].port().waiting(),
        }
    }

    /// Sends of a flow until so many frames wait at its queue.
    fn fill(&mut self, flow: u16, frames: usize) {
        while self.waiting(usize::from(flow) % self.clients.len()) < frames {
            self.send(flow);
        }
    }

    /// The flow group of a flow.
    fn group(&self, flow: u16) -> u16 {
        let (src, dst) = (([203, 0, 113, 9], flow).into(), ([192, 0, 2, 1], 53).into());
        self.owners.groups().of(&Flow::new(Protocol::UDP, src, dst).unwrap())
    }

    fn cycle(&mut self, at: usize) -> Activity {
        self.now += Duration::from_micros(10);
        let activity = self.loops[at].cycle(self.now);
        let mut burst = Burst::new();
        for client in &mut self.clients {
            while client.receive(&mut burst, 64) > 0 {
                for frame in burst.drain(..) {
                    let (flow, number) = read(&frame);
                    let next = self.answered.entry(flow).or_default();
                    assert_eq!(number, *next, "flow {flow} on its way out");
                    *next += 1;
                    client.give(frame);
                }
            }
            client.flush();
        }
        activity
    }

    fn set_room(&mut self, queue: usize, room: usize) {
        let Housed::Host(_) = self.loops[queue].port() else { panic!("thread {queue} has no queue") };
        self.loops[queue].port().queue_mut().unwrap().room = room;
    }

    fn settle(&mut self) {
        for _ in 0..100 {
            (0..self.clients.len()).for_each(|queue| self.set_room(queue, 10_000));
            for at in 0..self.loops.len() {
                self.cycle(at);
            }
        }
    }

    fn check(mut self) {
        assert_eq!(self.sent, self.answered);
        for (me, cycles) in self.loops.iter_mut().enumerate() {
            let (on, groups) = (me < self.owners.on_duty(), cycles.stack().next.len());
            assert_eq!((groups == 0, groups), (!on || self.owners.count(me as u16) == 0, self.owners.count(me as u16)));
            assert!(cycles.may_rest(self.now), "thread {me}");
            let counters = cycles.crossing().unwrap().counters();
            assert_eq!((counters.lost.get(), counters.hurried.get()), (0, 0));
        }
        let home = self.clients.iter_mut().map(|client| std::iter::from_fn(|| client.take()).count() as u32);
        assert_eq!(home.sum::<u32>(), self.frames * self.clients.len() as u32);
    }
}

#[test]
fn a_queue_that_was_about_full_is_told_to_its_threads_stack_alone() {
    let mut world = World::with(1, 1, 1024, |_| None);
    let mut cycle_after = |frames: u16| {
        (0..frames).for_each(|n| world.send(n % 12));
        [0, 1].map(|thread| {
            world.cycle(thread);
            world.loops[thread].stack().overruns
        })
    };
    assert_eq!(cycle_after(895), [0, 0]);
    // a batch of 64 was taken
    assert_eq!(cycle_after(64), [0, 0]);
    assert_eq!(cycle_after(65), [1, 0]);
    assert_eq!(cycle_after(0), [1, 0]);
    world.settle();
    world.check();
}

#[derive(Clone, Debug)]
enum Step {
    Send(u16, u8),
    Cycle(usize),
    Want(usize, u16),
    Duty(usize),
    Room(usize, usize),
}

fn a_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u16..12, 1u8..40).prop_map(|(flow, times)| Step::Send(flow, times)),
        8 => (0usize..6).prop_map(Step::Cycle),
        2 => (0usize..6, 0u16..GROUPS as u16).prop_map(|(thread, group)| Step::Want(thread, group)),
        1 => (1usize..6).prop_map(Step::Duty),
        2 => (0usize..3, 0usize..200).prop_map(|(queue, room)| Step::Room(queue, room)),
    ]
}

proptest! {
    /// Threads with queues and without run in any order, groups move, threads go and come back, with their queues or without, devices take now
    /// much and now nothing: every question is answered, and in each flow questions and answers keep their order.
    #[test]
    fn nothing_is_lost_and_nothing_overtakes(
        queues in 1usize..4,
        guests in 0usize..4,
        open: bool,
        steps in prop::collection::vec(a_step(), 1..400),
    ) {
        let is_open = |thread: usize| open && (1..queues).contains(&thread);
        let mut world = World::with(queues, guests, 2048, |thread| is_open(thread).then(Arc::default));
        for step in steps {
            match step {
                Step::Send(flow, times) => (0..times).for_each(|_| world.send(flow)),
                Step::Cycle(thread) => { world.cycle(thread % (queues + guests)); }
                Step::Want(thread, group) => {
                    world.loops[thread % (queues + guests)].crossing().unwrap().want(group);
                }
                Step::Duty(count) => world.owners.set_on_duty(count.min(queues + guests)),
                Step::Room(queue, room) => world.set_room(queue % queues, room),
            }
        }
        world.settle();
        world.check();
    }
}

#[test]
fn a_thread_that_is_not_needed_sleeps_beside_a_group_that_cannot_leave() {
    let mut world = World::new(1, 1);
    let group = (0..GROUPS as u16).find(|group| world.owners.owner(*group) == 1).unwrap();
    world.loops[1].stack().stays = Some(group);
    world.owners.set_on_duty(1);
    world.settle();
    assert_eq!((world.owners.count(1), world.owners.owner(group)), (1, 1));
    for _ in 0..5 {
        let next = world.cycle(1).next.expect("it is looked at again");
        assert!(next > world.now && world.loops[1].may_rest(world.now), "it does not sleep");
        world.now = next;
        // once more, and no further
        for _ in 0..3 {
            world.cycle(1);
        }
    }
    // what comes for it is answered
    (1..50).for_each(|flow| world.send(flow));
    world.settle();
    world.loops[1].stack().stays = None;
    world.now += std::time::Duration::from_secs(1);
    world.settle();
    assert_eq!(world.owners.count(1), 0);
    world.check();
}

/// A world of one queue and one guest, whose group is wanted by the other while an answer of it waits to leave; the group.
fn on_its_way_out() -> (World, u16) {
    let mut world = World::new(1, 1);
    let flow = (1..100).find(|flow| world.owners.owner(world.group(*flow)) == 1).unwrap();
    let group = world.group(flow);
    world.loops[0].crossing().unwrap().want(group);
    world.send(flow);
    world.cycle(0);
    world.set_room(0, 0);
    assert_eq!(world.cycle(1).transmitted, 1);
    (world, group)
}

#[test]
fn a_group_waits_for_what_was_sent_for_it() {
    let (mut world, group) = on_its_way_out();
    for _ in 0..10 {
        let activity = world.cycle(1);
        assert_eq!((activity.outgoing, activity.next), (Outgoing::Waiting, None));
        assert!(world.loops[1].may_rest(world.now));
        assert_eq!(world.owners.owner(group), 1);
    }
    world.set_room(0, 10);
    world.cycle(0);
    world.cycle(1);
    assert_eq!(world.owners.owner(group), 0);
    world.settle();
    world.check();
}

#[test]
fn who_gets_groups_is_woken_before_the_service_keeps_who_gave_them() {
    let mut world = World::new(2, 0);
    let flow = (0..100).step_by(2).find(|flow| world.owners.owner(world.group(*flow)) == 0).unwrap();
    let other =
        (0..GROUPS as u16).find(|group| world.owners.owner(*group) == 0 && *group != world.group(flow)).unwrap();
    world.loops[1].crossing().unwrap().want(other);
    world.cycle(1);
    world.cycle(0);
    world.send(flow);
    world.bells[1].fall_asleep();
    world.loops[0].stack().hears = Some((world.bells[1].clone(), false));
    world.cycle(0);
    assert_eq!(world.owners.owner(other), 1);
    assert!(world.loops[0].stack().hears.as_ref().unwrap().1, "it would sleep as long as the service likes");
    world.bells[1].wake_up();
    world.settle();
    world.check();
}

#[test]
fn what_passes_between_threads_is_looked_at_though_frames_wait_to_go_out() {
    let mut world = World::new(2, 0);
    let group = (0..GROUPS as u16).find(|group| world.owners.owner(*group) == 0).unwrap();
    world.loops[1].crossing().unwrap().want(group);
    world.cycle(1);
    world.cycle(0);
    world.loops[0].port().queue_mut().unwrap().outgoing = Outgoing::Waiting;
    let activity = world.cycle(0);
    assert_eq!((world.owners.owner(group), activity.outgoing), (1, Outgoing::Waiting));
    assert_eq!(activity.next, Some(Instant::ZERO), "from when on the other is waited for is not known yet");
    // who cannot look, since it could not answer what it received, is not kept awake by it
    world.set_room(0, 0);
    let activity = world.cycle(0);
    assert_eq!((activity.outgoing, activity.next), (Outgoing::Full, None));
    assert!(world.loops[0].may_rest(world.now));
    world.loops[0].port().queue_mut().unwrap().outgoing = Outgoing::Nothing;
    world.settle();
    world.check();
}

#[test]
fn a_host_that_does_not_run_keeps_no_group_for_ever() {
    let (mut world, group) = on_its_way_out();
    world.cycle(1);
    world.now += HELD;
    world.cycle(1);
    assert_eq!(world.owners.owner(group), 0);
    assert_eq!(world.loops[1].crossing().unwrap().counters().hurried.get(), 1);
}

#[test]
fn a_host_that_cannot_send_rests_though_its_guests_ask() {
    let (mut world, _) = on_its_way_out();
    assert_eq!(world.cycle(0).outgoing, Outgoing::Full);
    assert!(world.loops[0].may_rest(world.now));
    world.set_room(0, 10);
    assert!(!world.loops[1].may_rest(world.now), "a group is to leave");
    world.cycle(0);
    world.settle();
    world.check();
}

/// The first of four threads, at whose own queue a batch always waits, with as much in the rings from the others; the flows, by their queues.
fn with_full_rings() -> (World, Vec<u16>) {
    let mut world = World::new(4, 0);
    let of = |world: &World, queue: u16| (queue..1000).step_by(4).find(|flow| world.group(*flow) == 0).unwrap();
    let flows: Vec<u16> = (0..4).map(|queue| of(&world, queue)).collect();
    // before the frames that come from there
    world.loops[2].crossing().unwrap().want(4);
    for (queue, flow) in flows.iter().enumerate().skip(1) {
        world.fill(*flow, 300);
        while world.waiting(queue) > 0 {
            world.cycle(queue);
        }
    }
    (world, flows)
}

#[test]
fn no_other_thread_is_kept_from_a_busy_one() {
    let (mut world, flows) = with_full_rings();
    for _ in 0..6 {
        world.fill(flows[0], 64);
        world.set_room(0, 10_000);
        world.cycle(0);
    }
    let taken = [1, 2, 3].map(|other| world.answered.get(&flows[other]).copied().unwrap_or(0));
    assert_eq!(taken, [64; 3]);
    // what it says besides is heard
    assert_eq!(world.owners.owner(4), 2);
    world.settle();
    world.check();
}

#[test]
fn nor_where_there_is_room_for_one_frame_at_a_time() {
    let (mut world, flows) = with_full_rings();
    for _ in 0..60 {
        world.fill(flows[0], 64);
        world.set_room(0, 1);
        world.cycle(0);
    }
    let taken = [1, 2, 3].map(|other| world.answered.get(&flows[other]).copied().unwrap_or(0));
    assert_eq!(taken, [20; 3]);
    world.settle();
    world.check();
}

/// The first of so many threads, which has the queues of the others; a flow for each queue.
fn with_queues_of_others(others: usize) -> (World, Vec<u16>) {
    let mut world = World::with_open_queues(others);
    world.owners.set_on_duty(1);
    world.settle();
    assert_eq!(world.loops[0].crossing().unwrap().standing().len(), others);
    (world, (0..=others as u16).collect())
}

#[test]
fn a_busy_queue_keeps_none_of_those_that_a_thread_stands_in_for_from_being_emptied() {
    for others in [1, 2, 3] {
        for room in [1, 2, 5, 63, 10_000] {
            let (mut world, flows) = with_queues_of_others(others);
            for _ in 0..30 {
                flows.iter().for_each(|flow| world.fill(*flow, 64));
                world.set_room(0, room);
                world.cycle(0);
            }
            let taken: Vec<u32> = flows.iter().map(|flow| world.answered.get(flow).copied().unwrap_or(0)).collect();
            let (least, most) = (taken.iter().min().unwrap(), taken.iter().max().unwrap());
            assert_eq!(taken.iter().sum::<u32>() as usize, 30 * room.min(64), "{others}, room for {room}: {taken:?}");
            assert!(most - least <= 2, "{others}, room for {room}: {taken:?}");
            world.settle();
            world.check();
        }
    }
}

#[test]
fn what_one_of_several_queues_does_not_need_the_others_have() {
    let (mut world, flows) = with_queues_of_others(3);
    for busy in [&flows[..1], &flows[1..2], &flows[3..], &flows[1..3], &flows[..2]] {
        busy.iter().for_each(|flow| world.fill(*flow, 64));
        world.set_room(0, 10_000);
        assert_eq!(world.cycle(0).received, 64);
        world.settle();
    }
    // and how much waits behind a burst counts, wherever
    let queued = |world: &World| world.loops[0].counters().queued.get();
    flows.iter().for_each(|flow| world.fill(*flow, 64));
    let before = queued(&world);
    world.cycle(0);
    world.cycle(0);
    assert_eq!(queued(&world) - before, 128);
    world.settle();
    world.check();
}
