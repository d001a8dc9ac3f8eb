use super::*;
use base::{Arena, Pool};
use port::{Inlet, Waiting};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use wire::ethernet::{EtherType, Link};
use wire::flow::{Flow, Groups};
use wire::{Protocol, Sum, ipv4, udp};

const SERVER: [u8; 4] = [192, 0, 2, 1];
const CLIENT: [u8; 4] = [203, 0, 113, 9];
const AT: usize = 14 + 20 + 8;

/// A datagram of a flow with its number.
fn write(frame: &mut Frame, flow: u16, number: u32) {
    let mut bytes = vec![0; AT];
    bytes.extend(number.to_be_bytes());
    Link { dst: [2; 6], src: [4; 6], tag: None, ether_type: EtherType::IPV4 }.write(&mut bytes);
    let mut head = [0; 20];
    let (src, dst) = (CLIENT.into(), SERVER.into());
    ipv4::Header { src, dst, protocol: Protocol::UDP, ttl: 64, payload_bytes: 12 }.write(&mut head);
    bytes[14..34].copy_from_slice(&head);
    udp::write(&mut bytes[34..], flow, 53, Sum::pseudo_v4(src, dst, Protocol::UDP, 12));
    assert!(frame.fill(&bytes));
}

fn read(frame: &Frame) -> (u16, u32) {
    let bytes = frame.bytes();
    let number = u32::from_be_bytes(bytes[AT..AT + 4].try_into().unwrap());
    (Flow::of_frame(bytes).unwrap().src().port(), number)
}

/// A port whose frames the test moves by itself.
#[derive(Debug)]
struct NoInlet;
impl Inlet for NoInlet {
    fn lease(&self, _: &mut dyn FnMut(&mut dyn Waiting)) -> bool {
        false
    }

    fn watch(&self, _: BorrowedFd<'_>, _: bool) {}
}

/// What a thread's stack would have of a group: the next number of each flow.
type Known = BTreeMap<u16, u32>;

struct Thread {
    crossing: Crossing,
    groups: BTreeMap<u16, Known>,
    /// what its queue has received
    queue: VecDeque<Frame>,
}

struct World {
    threads: Vec<Thread>,
    pool: Pool,
    groups: Arc<Groups>,
    /// the number that each flow sends next
    sent: BTreeMap<u16, u32>,
    taken: u32,
    lost: u32,
}

impl World {
    fn new(threads: usize) -> World {
        let (arena, frames) = Arena::new(4096, 2048).unwrap();
        let owners = Arc::new(Owners::new(Groups::keyed(8, [77, 99]), threads, |group| group % threads as u16));
        let bells: Vec<_> = (0..threads).map(|_| Arc::new(Bell::new().unwrap())).collect();
        let groups = owners.groups().clone();
        let of =
            |me: u16| (0..8).filter(|group| owners.owner(*group) == me).map(|group| (group, Known::new())).collect();
        let helpers = Helpers::new(8, (0..threads).map(|_| Some(Arc::new(NoInlet) as Arc<dyn Inlet>)));
        let thread = |(me, crossing)| Thread { crossing, groups: of(me as u16), queue: VecDeque::new() };
        let threads = crossings(&owners, None, 0, &bells, &helpers).into_iter().enumerate().map(thread).collect();
        World { threads, pool: Pool::new(arena, frames), groups, sent: BTreeMap::new(), taken: 0, lost: 0 }
    }

    /// A flow's frames always come to one queue, which need not be its owner's.
    fn send(&mut self, flow: u16) {
        let Some(mut frame) = self.pool.take() else { return };
        let number = self.sent.entry(flow).or_default();
        write(&mut frame, flow, *number);
        *number += 1;
        let queue = usize::from(flow) % self.threads.len();
        self.threads[queue].queue.push_back(frame);
    }

    /// One cycle of a thread, as `Loop` has it.
    fn cycle(&mut self, at: usize, limit: usize) {
        let thread = &mut self.threads[at];
        while let Some(departure) = thread.crossing.departure() {
            let known = thread.groups.remove(&departure.group).expect("a group is where the table says");
            thread.crossing.send(Instant::ZERO, departure, Box::new((departure.group, known)));
        }
        let (mut received, mut rx, mut lost) = (Burst::new(), Burst::new(), Burst::new());
        thread.crossing.receive(&mut rx, limit.div_ceil(2), &mut lost);
        if !thread.crossing.is_replaying() {
            let room = limit - rx.len();
            let aside = thread.crossing.take_aside(&mut received, room);
            let n = thread.queue.len().min(room - aside);
            received.extend(thread.queue.drain(..n));
            thread.crossing.sort(&mut received, &mut rx, &mut lost);
            self.lost += lost.len() as u32;
            lost.drain(..).for_each(|frame| self.pool.give(frame));
            thread.crossing.receive(&mut rx, limit, &mut lost);
        }
        self.lost += lost.len() as u32;
        lost.drain(..).for_each(|frame| self.pool.give(frame));
        self.take(at, &mut rx);
    }

    /// What a thread's stack does with a burst.
    fn take(&mut self, at: usize, rx: &mut Burst) {
        let thread = &mut self.threads[at];
        while let Some((_, parcel)) = thread.crossing.arrival() {
            let (group, known) = *parcel.downcast::<(u16, Known)>().unwrap();
            assert!(thread.groups.insert(group, known).is_none(), "group {group} came twice");
        }
        for frame in rx.drain(..) {
            let (flow, number) = read(&frame);
            let group = self.groups.of(&Flow::of_frame(frame.bytes()).unwrap());
            let known = thread.groups.get_mut(&group).expect("a frame comes to the thread that has its group");
            let next = known.entry(flow).or_default();
            assert_eq!(number, *next, "flow {flow} in its order");
            *next += 1;
            self.taken += 1;
            self.pool.give(frame);
        }
        thread.crossing.ring_bells();
    }

    /// One thread looks at another's port, as `Crossing::help` does.
    fn help(&mut self, at: usize, victim: usize, limit: usize) {
        let helper = &mut self.threads[at];
        helper.crossing.offer(victim as u16);
        let room = helper.crossing.room_to_help(victim as u16).min(limit);
        let n = self.threads[victim].queue.len().min(room);
        let (mut received, mut rx) = (Burst::new(), Burst::new());
        received.extend(self.threads[victim].queue.drain(..n));
        self.threads[at].crossing.sort_for(victim as u16, &mut received, &mut rx);
        self.take(at, &mut rx);
    }

    /// A thread's interval ends.
    fn review(&mut self, at: usize, held_up: bool) {
        self.threads[at].crossing.review_help(held_up);
    }

    fn settle(&mut self) {
        for _ in 0..200 {
            (0..self.threads.len()).for_each(|at| self.cycle(at, 64));
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Send(u16, u8),
    Cycle(usize, usize),
    Want(usize, u16),
    Help(usize, usize, usize),
    Review(usize, bool),
}

fn a_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u16..12, 1u8..40).prop_map(|(flow, times)| Step::Send(flow, times)),
        5 => (0usize..4, 1usize..65).prop_map(|(thread, limit)| Step::Cycle(thread, limit)),
        2 => (0usize..4, 0u16..8).prop_map(|(thread, group)| Step::Want(thread, group)),
        4 => (0usize..4, 0usize..4, 1usize..65).prop_map(|(thread, victim, limit)| Step::Help(thread, victim, limit)),
        1 => (0usize..4, any::<bool>()).prop_map(|(thread, held_up)| Step::Review(thread, held_up)),
    ]
}

proptest! {
    /// Threads run in any order and as often as they like, groups move at any time, threads take frames from each other's ports: every frame comes to the thread that has its
    /// group's state, in its flow's order, and none is lost.
    #[test]
    fn nothing_is_lost_and_nothing_overtakes(threads in 2usize..5, steps in prop::collection::vec(a_step(), 1..400)) {
        let mut world = World::new(threads);
        for step in steps {
            match step {
                Step::Send(flow, times) => (0..times).for_each(|_| world.send(flow)),
                Step::Cycle(thread, limit) => world.cycle(thread % threads, limit),
                Step::Want(thread, group) => world.threads[thread % threads].crossing.want(group),
                Step::Help(thread, victim, limit) if thread % threads != victim % threads => {
                    world.help(thread % threads, victim % threads, limit);
                }
                Step::Help(..) => {}
                Step::Review(thread, held_up) => world.review(thread % threads, held_up),
            }
        }
        world.settle();
        prop_assert_eq!(world.taken + world.lost, world.sent.values().sum::<u32>());
        prop_assert_eq!(world.lost, 0);
        for group in 0..8 {
            let owner = usize::from(world.threads[0].crossing.owners().owner(group));
            prop_assert!(world.threads[owner].groups.contains_key(&group));
            prop_assert!(world.threads[owner].crossing.mine[usize::from(group)]);
        }
        prop_assert!(world.threads.iter_mut().all(|thread| !thread.crossing.has_work()));
        prop_assert!(world.threads.iter().all(|thread| thread.crossing.coming.is_empty() && thread.crossing.leaving.is_empty()));
        prop_assert_eq!(world.pool.len(), 4096);
    }
}

#[test]
fn a_full_ring_loses_frames_and_counts_them_but_no_group() {
    let mut world = World::new(2);
    // a flow that comes to the other thread's queue
    let foreign = (0..100).find(|port| {
        let flow = Flow::new(Protocol::UDP, (CLIENT, *port).into(), (SERVER, 53).into()).unwrap();
        world.groups.of(&flow) % 2 == 1 && port % 2 == 0
    });
    let flow = foreign.unwrap();
    (0..3000).for_each(|_| world.send(flow));
    let group = (0..8).find(|group| world.threads[0].crossing.owners().owner(*group) == 0).unwrap();
    world.threads[1].crossing.want(group);
    world.threads[1].crossing.ask();
    for _ in 0..50 {
        // the owner never looks
        let thread = &mut world.threads[0];
        let (mut received, mut rx, mut lost) = (Burst::new(), Burst::new(), Burst::new());
        let n = thread.queue.len().min(64);
        received.extend(thread.queue.drain(..n));
        thread.crossing.sort(&mut received, &mut rx, &mut lost);
        world.lost += lost.len() as u32;
        assert!(rx.is_empty());
        lost.drain(..).for_each(|frame| world.pool.give(frame));
    }
    assert_eq!(world.lost, 3000 - RING_ITEMS as u32);
    assert_eq!(world.threads[0].crossing.counters().lost.get(), u64::from(world.lost));
    assert_eq!(world.threads[0].crossing.departing(), 0);
    // with its ring full, the note with the group would wait until there is room
    let thread = &mut world.threads[0];
    let (mut rx, mut lost) = (Burst::new(), Burst::new());
    thread.crossing.receive(&mut rx, 64, &mut lost);
    let departure = thread.crossing.departure().unwrap();
    let known = thread.groups.remove(&departure.group).unwrap();
    thread.crossing.send(Instant::ZERO, departure, Box::new((departure.group, known)));
    assert!(thread.crossing.has_work());
    world.settle();
    assert!(world.threads[1].groups.contains_key(&departure.group));
    assert_eq!(world.taken, RING_ITEMS as u32);
}

#[test]
fn who_sleeps_is_woken_and_who_wakes_is_left_alone() {
    let bell = Bell::new().unwrap();
    let rung = |bell: &Bell| rustix::io::read(bell.descriptor(), &mut [0; 8]).is_ok();
    bell.wake_if_asleep();
    assert!(!rung(&bell));
    bell.fall_asleep();
    bell.wake_if_asleep();
    assert!(rung(&bell));
    bell.wake_up();
    bell.wake_if_asleep();
    assert!(!rung(&bell));
    bell.ring();
    bell.silence();
    assert!(!rung(&bell));
}

#[test]
fn what_other_threads_have_sent_counts_as_backlog() {
    let owners = Arc::new(Owners::new(Groups::keyed(8, [77, 99]), 2, |_| 1));
    let bells: Vec<_> = (0..2).map(|_| Arc::new(Bell::new().unwrap())).collect();
    let helpers = Helpers::new(8, [None, None]);
    let mut threads = crossings(&owners, Some(&Policy::default()), 0, &bells, &helpers);
    let (arena, frames) = Arena::new(64, 2048).unwrap();
    let mut pool = Pool::new(arena, frames);
    let (mut received, mut rx, mut lost) = (Burst::new(), Burst::new(), Burst::new());
    for flow in 0..64 {
        let mut frame = pool.take().unwrap();
        write(&mut frame, flow, 0);
        received.push(frame);
    }
    // all of it came to the first thread's queue, and is the second's
    threads[0].sort(&mut received, &mut rx, &mut lost);
    assert_eq!((rx.len(), lost.len()), (0, 0));
    for ms in [0, 100] {
        let now = Instant::ZERO + std::time::Duration::from_millis(ms);
        threads.iter_mut().for_each(|crossing| crossing.look(now, 0));
    }
    let busy = threads.iter().map(|crossing| crossing.counters().busy.get());
    assert_eq!(busy.collect::<Vec<_>>(), [0, 1]);
    while threads[1].receive(&mut rx, 64, &mut lost) > 0 {}
    assert_eq!(rx.len(), 64);
    rx.drain(..).for_each(|frame| pool.give(frame));
}

#[test]
fn a_helper_keeps_its_own_and_the_owner_gets_the_rest_in_order() {
    let mut world = World::new(2);
    // to the first thread's queue: a flow of each one's groups
    let of = |world: &World, owner: u16| {
        let flow = |port| Flow::new(Protocol::UDP, (CLIENT, port).into(), (SERVER, 53).into()).unwrap();
        (0..100).step_by(2).find(|port| world.groups.of(&flow(*port)) % 2 == owner).unwrap()
    };
    let (first, second) = (of(&world, 0), of(&world, 1));
    let counts = |world: &World, at: usize| {
        let counters = world.threads[at].crossing.counters();
        [counters.helped.get(), counters.passed.get()]
    };
    (0..10).for_each(|_| [first, second].into_iter().for_each(|flow| world.send(flow)));
    world.help(1, 0, 6);
    assert_eq!((counts(&world, 1), world.taken), ([3, 3], 3));
    assert!(world.threads[0].crossing.has_work(), "the owner does not sleep");
    // the owner takes what was put aside first, and the rest itself
    world.cycle(0, 64);
    world.cycle(1, 64);
    assert_eq!((world.taken, world.threads[0].crossing.put_aside()), (20, 0));
    // a group that moves while its frames are aside goes on being put aside
    (0..4).for_each(|_| world.send(first));
    world.help(1, 0, 2);
    assert_eq!(counts(&world, 1), [3, 5]);
    let group = world.groups.of(&Flow::new(Protocol::UDP, (CLIENT, first).into(), (SERVER, 53).into()).unwrap());
    world.threads[1].crossing.want(group);
    world.settle();
    assert!(world.threads[1].groups.contains_key(&group));
    (0..4).for_each(|_| world.send(first));
    world.help(1, 0, 64);
    assert_eq!(counts(&world, 1), [7, 5]);
    // no longer held up, no longer helped
    world.review(0, false);
    (0..4).for_each(|_| world.send(first));
    assert_eq!(world.threads[1].crossing.room_to_help(0), 0);
    world.settle();
    assert_eq!((world.taken, world.lost), (world.sent.values().sum(), 0));
}

#[test]
fn what_is_put_aside_is_bounded() {
    let mut world = World::new(2);
    let flow = |port| Flow::new(Protocol::UDP, (CLIENT, port).into(), (SERVER, 53).into()).unwrap();
    let first = (0..100).step_by(2).find(|port| world.groups.of(&flow(*port)).is_multiple_of(2)).unwrap();
    (0..4000).for_each(|_| world.send(first));
    (0..100).for_each(|_| world.help(1, 0, 64));
    assert_eq!(world.threads[0].crossing.put_aside(), help::MOST_ASIDE);
    assert_eq!(world.threads[0].queue.len(), 4000 - help::MOST_ASIDE);
    world.settle();
    assert_eq!((world.taken, world.lost), (4000, 0));
}
