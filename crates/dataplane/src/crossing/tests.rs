mod absent;
mod held_up;
mod turning;

use super::*;
use base::balance::{IndirectionTable, Turn};
use base::{Arena, Pool};
use port::{Inlet, Waiting};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
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
#[derive(Debug, Default)]
struct NoInlet {
    /// wishes to be told of arrivals that it does not take
    refusals: AtomicU32,
    /// another thread is at it
    leased: AtomicBool,
    /// what its device has received, where a test does not move that by itself
    arrived: Mutex<Vec<Frame>>,
}

impl Inlet for NoInlet {
    fn lease(&self, work: &mut dyn FnMut(&mut dyn Waiting)) -> bool {
        let free = !self.leased.load(Ordering::Relaxed);
        if free {
            work(&mut Arrived(&self.arrived));
        }
        free
    }

    fn watch(&self, _: BorrowedFd<'_>, _: bool) -> bool {
        let left = |left: u32| left.checked_sub(1);
        self.refusals.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left).is_err()
    }
}

struct Arrived<'a>(&'a Mutex<Vec<Frame>>);

impl Waiting for Arrived<'_> {
    fn receive(&mut self, into: &mut Burst, limit: usize, _: &mut dyn FnMut(Frame)) -> usize {
        let mut arrived = self.0.lock().unwrap();
        let n = limit.min(arrived.len());
        into.extend(arrived.drain(..n));
        n
    }

    fn waiting(&mut self) -> usize {
        self.0.lock().unwrap().len()
    }

    fn refill(&mut self, _: &mut dyn FnMut() -> Option<Frame>) {}
}

/// What a thread's stack would have of a group: the next number of each flow.
type Known = BTreeMap<u16, u32>;

struct Thread {
    crossing: Crossing,
    groups: BTreeMap<u16, Known>,
    /// what its queue has received
    queue: VecDeque<Frame>,
}

/// A NIC whose table may be written. What it hashed before a write comes a little later, in its order.
struct Nic {
    steering: Arc<Steering>,
    table: Vec<u16>,
    /// hashed and not yet in a receive ring: until when, the queue
    under_way: VecDeque<(Instant, u16, Frame)>,
    /// writes that it takes yet
    good_writes: u32,
    said: u32,
}

/// How long a frame is on its way at most: less than the grace.
const ON_ITS_WAY: Duration = Duration::from_micros(900);

/// The NIC's table, to be written as a driver does: whole and at once, or not at all.
struct Written<'a>(&'a mut Vec<u16>, &'a mut u32, &'a mut u32);

impl IndirectionTable for Written<'_> {
    fn write(&mut self, turns: &[Turn]) -> Result<(), String> {
        *self.1 = self.1.checked_sub(1).ok_or("refused")?;
        turns.iter().for_each(|turn| self.0[usize::from(turn.entry)] = turn.queue);
        Ok(())
    }
    fn given_up(&mut self, _: &str) {
        *self.2 += 1;
    }
}

/// A flow by its client's port, which is its number.
fn by_port(flow: u16) -> Flow {
    Flow::new(Protocol::UDP, (CLIENT, flow).into(), (SERVER, 53).into()).unwrap()
}

struct World {
    now: Instant,
    nic: Option<Nic>,
    threads: Vec<Thread>,
    inlets: Vec<Arc<NoInlet>>,
    pool: Pool,
    groups: Arc<Groups>,
    /// the number that each flow sends next
    sent: BTreeMap<u16, u32>,
    taken: u32,
    lost: u32,
    /// of groups of a thread that hangs
    orphans: u32,
    /// frames may be overtaken
    hurries: bool,
}

impl World {
    fn new(threads: usize) -> World {
        World::with(threads, None)
    }

    /// With a NIC that takes so many writes of its table and refuses then.
    fn with(threads: usize, good_writes: Option<u32>) -> World {
        let (arena, frames) = Arena::new(4096, 2048).unwrap();
        let owners = Arc::new(Owners::new(Groups::keyed(8, [77, 99]), threads, |group| group % threads as u16));
        let bells: Vec<_> = (0..threads).map(|_| Arc::new(Bell::new().unwrap())).collect();
        let groups = owners.groups().clone();
        let of =
            |me: u16| (0..8).filter(|group| owners.owner(*group) == me).map(|group| (group, Known::new())).collect();
        let nic = good_writes.map(|good_writes| {
            let table: Vec<u16> = (0..8).map(|group| group % threads as u16).collect();
            let steering = Arc::new(Steering::new(&table, 0..threads).unwrap());
            Nic { steering, table, under_way: VecDeque::new(), good_writes, said: 0 }
        });
        let steering = nic.as_ref().map(|nic| &nic.steering);
        let inlets: Vec<_> = (0..threads).map(|_| Arc::new(NoInlet::default())).collect();
        let helpers = Helpers::new(8, inlets.iter().map(|inlet| Some(inlet.clone() as Arc<dyn Inlet>)));
        let thread = |(me, crossing)| Thread { crossing, groups: of(me as u16), queue: VecDeque::new() };
        let threads =
            crossings(&owners, None, steering, 0, &bells, &helpers).into_iter().enumerate().map(thread).collect();
        World {
            now: Instant::ZERO,
            nic,
            threads,
            inlets,
            pool: Pool::new(arena, frames),
            groups,
            sent: BTreeMap::new(),
            taken: 0,
            lost: 0,
            orphans: 0,
            hurries: false,
        }
    }

    /// The group of a flow.
    fn group(&self, flow: u16) -> u16 {
        self.groups.of(&by_port(flow))
    }

    /// A flow's frames always come to one queue, which need not be its owner's.
    fn send(&mut self, flow: u16) {
        let Some(mut frame) = self.pool.take() else { return };
        let number = self.sent.entry(flow).or_default();
        write(&mut frame, flow, *number);
        *number += 1;
        if let Some(nic) = &mut self.nic {
            let group = self.groups.of(&Flow::of_frame(frame.bytes()).unwrap());
            let queue = nic.table[usize::from(group)];
            return nic.under_way.push_back((self.now + ON_ITS_WAY, queue, frame));
        }
        let queue = usize::from(flow) % self.threads.len();
        self.threads[queue].queue.push_back(frame);
    }

    /// Time passes, and the NIC delivers what it has had for long, and `more` beside that.
    fn pass(&mut self, us: u64, more: usize) {
        self.now += Duration::from_micros(us);
        let Some(nic) = &mut self.nic else { return };
        let due = nic.under_way.iter().take_while(|(until, ..)| *until <= self.now).count();
        let due = (due + more).min(nic.under_way.len());
        for (_, queue, frame) in nic.under_way.drain(..due) {
            self.threads[usize::from(queue)].queue.push_back(frame);
        }
    }

    fn begin(&mut self) {
        let Some(Nic { steering, table, good_writes: 1.., .. }) = &mut self.nic else { return };
        let mut turns = Vec::new();
        steering.take_wishes(&mut turns);
        turns.into_iter().for_each(|turn| table[usize::from(turn.entry)] = turn.queue);
    }

    fn write(&mut self) {
        let Some(Nic { steering, table, good_writes, said, .. }) = &mut self.nic else { return };
        let mut is_said = *said > 0;
        steering.step(&mut Written(table, good_writes, said), &mut Vec::new(), &mut is_said);
    }

    /// One cycle of a thread, as `Loop` has it.
    fn cycle(&mut self, at: usize, limit: usize) {
        let thread = &mut self.threads[at];
        for _ in 0..thread.crossing.departing() {
            let Some(departure) = thread.crossing.departure() else { break };
            let known = thread.groups.remove(&departure.group).expect("a group is where the table says");
            thread.crossing.send(self.now, departure, Box::new((departure.group, known)));
        }
        thread.crossing.look(self.now, thread.queue.len());
        let (mut received, mut rx, mut lost) = (Burst::new(), Burst::new(), Burst::new());
        thread.crossing.receive(&mut rx, limit.div_ceil(2), &mut lost);
        if !thread.crossing.is_replaying() {
            if thread.crossing.has_queue() {
                let room = limit - rx.len();
                let aside = thread.crossing.take_aside(&mut received, room);
                let n = thread.queue.len().min(room - aside);
                received.extend(thread.queue.drain(..n));
                thread.crossing.sort(&mut received, &mut rx, &mut lost);
            }
            for queue in thread.crossing.standing() {
                if !self.threads[at].crossing.is_stood_for(queue) {
                    continue;
                }
                let absent = &mut self.threads[usize::from(queue)];
                let n = absent.queue.len().min(limit - rx.len());
                received.extend(absent.queue.drain(..n));
                let left = absent.queue.len();
                let thread = &mut self.threads[at];
                thread.crossing.sort_for_absent(queue, &mut received, left, &mut rx, &mut lost);
                self.lost += lost.len() as u32;
                lost.drain(..).for_each(|frame| self.pool.give(frame));
            }
            self.lost += lost.len() as u32;
            lost.drain(..).for_each(|frame| self.pool.give(frame));
            let thread = &mut self.threads[at];
            thread.crossing.receive(&mut rx, limit, &mut lost);
        }
        self.lost += lost.len() as u32;
        lost.drain(..).for_each(|frame| self.pool.give(frame));
        self.take(at, &mut rx);
    }

    /// Lets these threads run and time pass until it is so.
    fn run_until(&mut self, threads: &[usize], is: impl Fn(&World) -> bool) {
        for _ in 0..100 {
            if is(self) {
                return;
            }
            self.pass(10_000, 0);
            threads.iter().for_each(|at| self.cycle(*at, 64));
        }
        panic!("it does not come to that");
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
            let owners = thread.crossing.owners();
            if owners.hangs(owners.owner(group)) && !thread.groups.contains_key(&group) {
                self.orphans += 1;
                self.pool.give(frame);
                continue;
            }
            let known = thread.groups.get_mut(&group).expect("a frame comes to the thread that has its group");
            let next = known.entry(flow).or_default();
            assert!(self.hurries || number == *next, "flow {flow} in its order: {number} for {next}");
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
        self.settle_by(100);
    }

    /// Steps of so many microseconds.
    fn settle_by(&mut self, us: u64) {
        let all: Vec<usize> = (0..self.threads.len()).collect();
        self.run(&all, us);
    }

    /// The others do not come round, and are not waited for any more.
    fn settle_of(&mut self, threads: &[usize]) {
        self.run(threads, 1000);
    }

    fn run(&mut self, threads: &[usize], us: u64) {
        for _ in 0..200 {
            self.pass(us, 0);
            self.write();
            threads.iter().for_each(|at| self.cycle(*at, 64));
        }
    }

    /// Everything is in its place, and nobody waits for anything.
    fn check(&mut self) {
        assert_eq!((self.taken, self.lost), (self.sent.values().sum::<u32>(), 0));
        for group in 0..8 {
            let owners = self.threads[0].crossing.owners();
            let owner = usize::from(owners.owner(group));
            assert!(owner < owners.on_duty(), "group {group} is with thread {owner}, who is off duty");
            assert!(self.threads[owner].groups.contains_key(&group));
            assert!(self.threads[owner].crossing.mine[usize::from(group)]);
        }
        for (at, Thread { crossing, .. }) in self.threads.iter_mut().enumerate() {
            let on = at < crossing.owners().on_duty();
            assert_eq!((crossing.is_off_duty(), crossing.has_queue()), (!on, on), "thread {at}");
            assert!(on || crossing.helps_nobody(), "thread {at} is off duty and helps");
            assert!(!crossing.has_work() && !crossing.waits_for_room());
            assert!(crossing.coming.is_empty() && crossing.leaving.is_empty());
            assert_eq!(crossing.next_at(), None);
        }
        assert_eq!(self.pool.len(), 4096);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Send(u16, u8),
    Cycle(usize, usize),
    Want(usize, u16),
    Help(usize, usize, usize),
    Review(usize, bool),
    /// this thread alone does not run from now on; nobody's, all do
    Hang(usize),
    /// without a NIC's table: longer passes than the others wait for it
    PassLong,
    /// so many threads are to serve
    Duty(usize),
    /// time passes, and the NIC delivers some frames early
    Pass(u64, usize),
    /// the NIC's table is looked after
    Write,
    /// it is being written: the device does by it, but the writer does not know yet
    Begin,
}

fn a_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u16..12, 1u8..40).prop_map(|(flow, times)| Step::Send(flow, times)),
        5 => (0usize..4, 1usize..65).prop_map(|(thread, limit)| Step::Cycle(thread, limit)),
        2 => (0usize..4, 0u16..8).prop_map(|(thread, group)| Step::Want(thread, group)),
        4 => (0usize..4, 0usize..4, 1usize..65).prop_map(|(thread, victim, limit)| Step::Help(thread, victim, limit)),
        1 => (0usize..4, any::<bool>()).prop_map(|(thread, held_up)| Step::Review(thread, held_up)),
        1 => (0usize..5).prop_map(Step::Hang),
        1 => Just(Step::PassLong),
        1 => (1usize..5).prop_map(Step::Duty),
        2 => (0u64..500, 0usize..20).prop_map(|(us, frames)| Step::Pass(us, frames)),
        1 => Just(Step::Write),
        1 => Just(Step::Begin),
    ]
}

proptest! {
    /// Threads run in any order and as often as they like, groups move at any time, threads take frames from each other's ports:
    /// as many of them serve as one likes, and more or fewer at any time; one may not run for longer than it is waited for:
    /// every frame comes to the thread that has its group's state, in its flow's order, and none is lost. Where there is a NIC with a table, that follows, however often and
    /// whenever it is written, until a write fails.
    #[test]
    fn nothing_is_lost_and_nothing_overtakes(
        threads in 2usize..5,
        good_writes in prop_oneof![Just(None), Just(Some(u32::MAX)), (0u32..4).prop_map(Some)],
        steps in prop::collection::vec(a_step(), 1..400),
    ) {
        let mut world = World::with(threads, good_writes);
        let mut hangs = None;
        for step in steps {
            match step {
                Step::Cycle(thread, _) if Some(thread % threads) == hangs => {}
                Step::Help(thread, ..) | Step::Review(thread, _) if Some(thread % threads) == hangs => {}
                Step::Hang(thread) => hangs = Some(thread),
                // less in all than a fence is waited for
                Step::PassLong if good_writes.is_none() && world.now < Instant::ZERO + Duration::from_millis(40) => {
                    world.pass(u64::try_from(leaving::PATIENCE.as_micros()).unwrap(), 0);
                }
                Step::PassLong => {}
                Step::Send(flow, times) => (0..times).for_each(|_| world.send(flow)),
                Step::Cycle(thread, limit) => world.cycle(thread % threads, limit),
                Step::Want(thread, group) => world.threads[thread % threads].crossing.want(group),
                Step::Help(thread, victim, limit) if thread % threads != victim % threads => {
                    world.help(thread % threads, victim % threads, limit);
                }
                Step::Help(..) => {}
                Step::Review(thread, held_up) => world.review(thread % threads, held_up),
                Step::Duty(count) => world.threads[0].crossing.owners().set_on_duty(count.min(threads)),
                // well within what the thread of an old queue is waited for
                Step::Pass(us, frames) if world.now < Instant::ZERO + Duration::from_millis(60) => world.pass(us, frames),
                Step::Pass(_, frames) => world.pass(0, frames),
                Step::Write => world.write(),
                Step::Begin => world.begin(),
            }
        }
        // longer than a thread waits after a write before its queue is another's
        world.settle_by(450);
        world.check();
        if let Some(nic) = &world.nic {
            let owners = world.threads[0].crossing.owners();
            let names: Vec<u16> = (0..8).map(|group| nic.steering.queue(group)).collect();
            prop_assert_eq!(&names, &nic.table);
            if good_writes == Some(u32::MAX) {
                prop_assert!(nic.steering.follows());
                prop_assert_eq!(&names, &(0..8).map(|group| owners.owner(group)).collect::<Vec<_>>());
            }
            prop_assert_eq!(nic.said, u32::from(!nic.steering.follows()));
            let strays = (0..threads).map(|thread| nic.steering.strays(thread as u16));
            let strays = strays.map(|it| it.untrue.get() + it.late.get() + it.unanswered.get());
            prop_assert_eq!(strays.sum::<u64>(), 0);
        }
    }
}

proptest! {
    /// Any thread may stop for as long as it likes, and others are not waited for then: frames may be overtaken, but every one comes to the
    /// thread that has its group's state, none is lost, and in the end nobody waits for anything.
    #[test]
    fn nothing_is_lost_and_nobody_waits_for_ever_whoever_hangs(
        threads in 2usize..5,
        good_writes in prop_oneof![Just(None), Just(Some(u32::MAX)), (0u32..4).prop_map(Some)],
        steps in prop::collection::vec(a_step(), 1..400),
    ) {
        let mut world = World { hurries: true, ..World::with(threads, good_writes) };
        let mut hangs = None;
        for step in steps {
            match step {
                Step::Cycle(thread, _) if Some(thread % threads) == hangs => {}
                Step::Help(thread, ..) | Step::Review(thread, _) if Some(thread % threads) == hangs => {}
                Step::Hang(thread) => hangs = Some(thread),
                Step::PassLong => world.pass(60_000, 0),
                Step::Send(flow, times) => (0..times).for_each(|_| world.send(flow)),
                Step::Cycle(thread, limit) => world.cycle(thread % threads, limit),
                Step::Want(thread, group) => world.threads[thread % threads].crossing.want(group),
                Step::Help(thread, victim, limit) if thread % threads != victim % threads => {
                    world.help(thread % threads, victim % threads, limit);
                }
                Step::Help(..) => {}
                Step::Review(thread, held_up) => world.review(thread % threads, held_up),
                Step::Duty(count) => world.threads[0].crossing.owners().set_on_duty(count.min(threads)),
                Step::Pass(us, frames) => world.pass(us, frames),
                Step::Write => world.write(),
                Step::Begin => world.begin(),
            }
        }
        (0..3).for_each(|_| world.settle_by(450));
        world.check();
    }
}

/// A flow that comes to the queue of `queue` and whose group `owner` has, in a world of so many threads.
fn flow_of(world: &World, queue: usize, owner: u16) -> u16 {
    let threads = world.threads.len();
    let mut flows = (0..1000u16).filter(|flow| usize::from(*flow) % threads == queue);
    flows.find(|flow| world.threads[0].crossing.owners().owner(world.group(*flow)) == owner).unwrap()
}

#[test]
fn a_full_ring_holds_up_no_note_to_another_thread() {
    let mut world = World::new(3);
    let crossing = &mut world.threads[0].crossing;
    let asked = |number| Note::Asked { group: 0, number };
    (0..RING_ITEMS as u32 + 3).for_each(|number| crossing.note(2, asked(number)));
    assert_eq!(crossing.unsent.len(), 3);
    crossing.note(1, asked(0));
    assert_eq!(crossing.unsent.len(), 3);
    // one that waited with them goes, too, and those keep their order
    crossing.unsent.push_back((1, Box::new(asked(1))));
    crossing.send_notes();
    let numbers = |crossing: &mut Crossing| {
        let ring = crossing.into[0].as_mut().unwrap();
        let number = |item| match item {
            Item::Note(note) => format!("{note:?}"),
            Item::Frame(_) => panic!("nobody sent a frame"),
        };
        std::iter::from_fn(|| ring.pop()).map(number).collect::<Vec<_>>()
    };
    let expected =
        |numbers: std::ops::Range<u32>| numbers.map(|number| format!("{:?}", asked(number))).collect::<Vec<_>>();
    assert_eq!(numbers(&mut world.threads[1].crossing), expected(0..2));
    assert_eq!(numbers(&mut world.threads[2].crossing), expected(0..RING_ITEMS as u32));
    world.threads[0].crossing.send_notes();
    assert_eq!(numbers(&mut world.threads[2].crossing), expected(RING_ITEMS as u32..RING_ITEMS as u32 + 3));
}

#[test]
fn a_full_ring_loses_frames_and_counts_them_but_no_group() {
    let mut world = World::new(2);
    // it comes to the other thread's queue
    let flow = flow_of(&world, 0, 1);
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
    assert!(thread.crossing.is_blocked() && !thread.crossing.has_work());
    world.settle();
    assert!(world.threads[1].groups.contains_key(&departure.group));
    assert_eq!(world.taken, RING_ITEMS as u32);
}

#[test]
fn what_is_sent_to_a_thread_that_has_ended_comes_home() {
    let mut world = World::new(2);
    let flow = flow_of(&world, 0, 1);
    (0..10).for_each(|_| world.send(flow));
    world.cycle(0, 5);
    let pool = &mut world.pool;
    world.threads.pop().unwrap().crossing.clear(|frame| pool.give(frame));
    world.cycle(0, 64);
    let crossing = &mut world.threads[0].crossing;
    crossing.note(1, Note::Asked { group: 0, number: 1 });
    assert!(crossing.unsent.is_empty());
    crossing.clear(|frame| world.pool.give(frame));
    assert_eq!((world.lost, crossing.counters().lost.get(), world.pool.len()), (5, 5, 4096));
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
    let mut threads = crossings(&owners, Some(&Policy::default()), None, 0, &bells, &helpers);
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
        for crossing in &mut threads {
            crossing.look(now, 0);
        }
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
    let (first, second) = (flow_of(&world, 0, 0), flow_of(&world, 0, 1));
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
    let group = world.group(first);
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
    let first = flow_of(&world, 0, 0);
    (0..4000).for_each(|_| world.send(first));
    (0..100).for_each(|_| world.help(1, 0, 64));
    assert_eq!(world.threads[0].crossing.put_aside(), help::MOST_ASIDE);
    assert_eq!(world.threads[0].queue.len(), 4000 - help::MOST_ASIDE);
    world.settle();
    assert_eq!((world.taken, world.lost), (4000, 0));
}
