//! The loop and its threads over the in-memory NIC.

use app::{Listener, Service};
use base::{Burst, Clock, Frame, Instant};
use dataplane::{Activity, Config, Counters, Dataplane, Floor, Idle, Loop, tap};
use port::pipe::{self, Pipe};
use port::{Facts, Outgoing, Port};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// Answers every frame in place through the service: a datagram that is the whole frame. Frames that begin with '-' are
/// dropped. Sends one frame of its own at `due`.
struct Whole {
    due: Option<Instant>,
}

impl Floor for Whole {
    fn input<S: Service>(&mut self, now: Instant, rx: &mut Burst, tx: &mut Burst, free: &mut Burst, service: &mut S) {
        let any = "192.0.2.1:1".parse().unwrap();
        for mut frame in rx.drain(..) {
            let bytes = frame.len();
            let addresses = app::Addresses { local: any, peer: any };
            let mut slot = [app::Datagram::new(frame.room_mut(), bytes, app::Ecn::NotEct, addresses)];
            service.datagrams(now, Listener(0), &mut slot);
            match slot[0].reply_bytes() {
                Some(bytes) => {
                    frame.set_len(bytes);
                    tx.push(frame);
                }
                None => free.push(frame),
            }
        }
    }

    fn poll<S: Service>(
        &mut self,
        now: Instant,
        supply: &mut dyn port::Supply,
        tx: &mut Burst,
        _: &mut S,
    ) -> Option<Instant> {
        if self.due.is_some_and(|due| now >= due)
            && tx.remaining_capacity() > 0
            && let Some(mut frame) = supply.frame()
        {
            assert!(frame.fill(b"on my own"));
            tx.push(frame);
            self.due = None;
        }
        self.due
    }
}

#[derive(Default)]
struct Shout {
    cycles: Option<Arc<AtomicU64>>,
}

impl Service for Shout {
    fn cycle(&mut self, _: Instant) {
        if let Some(cycles) = &self.cycles {
            cycles.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn datagrams(&mut self, _: Instant, _: Listener, burst: &mut [app::Datagram<'_>]) {
        for datagram in burst {
            assert_ne!(datagram.question(), b"panic");
            if !datagram.question().starts_with(b"-") {
                let bytes = datagram.question().len();
                datagram.buffer()[..bytes].make_ascii_uppercase();
                datagram.reply(bytes);
            }
        }
    }
}

/// A pipe whose transmit ring takes `room` frames until more room is given.
struct Narrow {
    inner: Pipe,
    room: usize,
}

impl Port for Narrow {
    fn facts(&self) -> &Facts {
        self.inner.facts()
    }
    fn receive(&mut self, into: &mut Burst, limit: usize) -> usize {
        self.inner.receive(into, limit)
    }
    fn transmit_room(&mut self) -> usize {
        self.room
    }
    fn transmit(&mut self, from: &mut Burst) -> usize {
        let n = from.len().min(self.room);
        let mut some: Burst = from.drain(..n).collect();
        self.inner.transmit(&mut some);
        self.room -= n;
        n
    }
    fn flush(&mut self) -> Outgoing {
        self.inner.flush()
    }
    fn take(&mut self) -> Option<Frame> {
        self.inner.take()
    }
    fn give(&mut self, frame: Frame) {
        self.inner.give(frame);
    }
}

fn ends() -> (Pipe, Pipe) {
    let (mut near, mut far) = pipe::pair(&pipe::Config::default()).unwrap();
    (near.remove(0), far.remove(0))
}

fn send(port: &mut Pipe, packet: &[u8]) {
    let mut frame = port.take().expect("a free frame");
    assert!(frame.fill(packet));
    let mut burst = Burst::new();
    burst.push(frame);
    port.transmit(&mut burst);
    port.flush();
}

fn received(port: &mut Pipe) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let mut burst = Burst::new();
    while port.receive(&mut burst, 64) > 0 {
        for frame in burst.drain(..) {
            all.push(frame.bytes().to_vec());
            port.give(frame);
        }
    }
    all
}

fn await_frames(port: &mut Pipe, count: usize) -> Vec<Vec<u8>> {
    let (start, mut all) = (std::time::Instant::now(), Vec::new());
    while all.len() < count {
        assert!(start.elapsed() < PATIENCE, "{} of {count} came", all.len());
        all.extend(received(port));
        std::thread::yield_now();
    }
    all
}

fn await_count(what: &str, mut count: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !count() {
        assert!(start.elapsed() < PATIENCE, "{what} did not come");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn whole(_: usize, _: &Facts) -> Whole {
    Whole { due: None }
}

#[test]
fn a_cycle_answers_what_is_there_up_to_the_batch_and_never_waits() {
    let (mut client, server) = ends();
    let mut cycles = Loop::new(server, Whole { due: None }, Shout::default(), 8);
    assert_eq!(
        cycles.cycle(Instant::ZERO),
        Activity { received: 0, transmitted: 0, outgoing: Outgoing::Nothing, next: None }
    );
    for n in 0..19 {
        send(&mut client, if n % 5 == 4 { b"-drop" } else { b"shout" });
    }
    let mut bursts = Vec::new();
    for _ in 0..4 {
        let activity = cycles.cycle(Instant::ZERO);
        bursts.push((activity.received, activity.transmitted));
    }
    assert_eq!(bursts, [(8, 7), (8, 6), (3, 3), (0, 0)]);
    assert_eq!(received(&mut client), vec![b"SHOUT".to_vec(); 16]);
    let counters = cycles.counters();
    assert_eq!((counters.received.get(), counters.transmitted.get(), counters.empty_cycles.get()), (19, 16, 2));
    assert_eq!((counters.bursts[2].get(), counters.bursts[3].get()), (1, 2));
}

#[test]
fn a_full_transmit_ring_stops_receiving_and_loses_nothing() {
    let (mut client, server) = ends();
    let mut cycles = Loop::new(Narrow { inner: server, room: 5 }, Whole { due: None }, Shout::default(), 64);
    let questions: Vec<Vec<u8>> = (0..100).map(|n| format!("q{n}").into_bytes()).collect();
    questions.iter().for_each(|question| send(&mut client, question));
    let mut answers = Vec::new();
    for room in [0, 0, 1, 64, 0, 64, 0] {
        let activity = cycles.cycle(Instant::ZERO);
        assert!(activity.received <= 64);
        cycles.port().room += room;
        answers.extend(received(&mut client));
    }
    answers.extend(received(&mut client));
    let expected: Vec<_> = questions.iter().map(|question| question.to_ascii_uppercase()).collect();
    assert_eq!(answers, expected);
    assert!(cycles.counters().transmit_stalls.get() >= 3);
}

#[test]
fn while_the_stack_waits_for_room_what_comes_is_taken_and_answered_in_order() {
    let (mut client, server) = ends();
    let mut cycles =
        Loop::new(Narrow { inner: server, room: 0 }, Whole { due: Some(Instant::ZERO) }, Shout::default(), 64);
    cycles.poll_soon();
    ["-no answer", "first", "-none either", "second"].iter().for_each(|frame| send(&mut client, frame.as_bytes()));
    let activity = cycles.cycle(Instant::ZERO);
    assert_eq!((activity.received, activity.transmitted), (4, 0));
    // answers that wait fill the burst, and no more are taken then
    (0..100).for_each(|n| send(&mut client, format!("q{n}").as_bytes()));
    assert_eq!([(); 3].map(|()| cycles.cycle(Instant::ZERO).received), [62, 0, 0]);
    cycles.port().room = 1;
    cycles.cycle(Instant::ZERO);
    assert_eq!(received(&mut client), [b"FIRST".to_vec()]);
    let mut answers = Vec::new();
    for _ in 0..4 {
        cycles.port().room = 64;
        cycles.cycle(Instant::ZERO);
        answers.extend(received(&mut client));
    }
    let own = answers.iter().position(|answer| answer == b"on my own").expect("what the stack had to send");
    answers.remove(own);
    let expected = std::iter::once("SECOND".to_owned()).chain((0..100).map(|n| format!("Q{n}")));
    assert!(answers.into_iter().eq(expected.map(String::into_bytes)));
}

/// A port that claims more room than it has: what it does not take must be kept.
struct Liar(Narrow);

impl Port for Liar {
    fn facts(&self) -> &Facts {
        self.0.facts()
    }
    fn receive(&mut self, into: &mut Burst, limit: usize) -> usize {
        self.0.receive(into, limit)
    }
    fn transmit_room(&mut self) -> usize {
        64
    }
    fn transmit(&mut self, from: &mut Burst) -> usize {
        self.0.transmit(from)
    }
    fn flush(&mut self) -> Outgoing {
        self.0.flush()
    }
    fn take(&mut self) -> Option<Frame> {
        self.0.take()
    }
    fn give(&mut self, frame: Frame) {
        self.0.give(frame);
    }
}

#[test]
fn what_the_port_does_not_take_is_kept_for_the_next_cycle() {
    let (mut client, server) = ends();
    let mut cycles = Loop::new(Liar(Narrow { inner: server, room: 3 }), Whole { due: None }, Shout::default(), 16);
    (0..40).for_each(|n| send(&mut client, &[b'a' + n % 26]));
    let mut answers = Vec::new();
    for _ in 0..40 {
        let activity = cycles.cycle(Instant::ZERO);
        answers.extend(received(&mut client));
        assert_eq!(activity.outgoing == Outgoing::Waiting, cycles.port().0.room == 0 && answers.len() < 40);
        cycles.port().0.room += 2;
    }
    let expected: Vec<_> = (0..40).map(|n| vec![b'A' + n % 26]).collect();
    assert_eq!(answers, expected);
}

#[test]
fn the_stack_is_polled_when_due_and_not_before() {
    let (mut client, server) = ends();
    let due = Instant::from_nanos(500);
    let mut cycles = Loop::new(server, Whole { due: Some(due) }, Shout::default(), 64);
    assert_eq!(cycles.cycle(Instant::from_nanos(1)).next, Some(due));
    assert_eq!(cycles.cycle(Instant::from_nanos(499)).transmitted, 0);
    let activity = cycles.cycle(due);
    assert_eq!((activity.transmitted, activity.next), (1, None));
    assert_eq!(received(&mut client), [b"on my own".to_vec()]);
}

#[test]
fn a_tap_copies_both_directions_and_never_blocks() {
    let (mut client, server) = ends();
    let mut cycles = Loop::new(server, Whole { due: None }, Shout::default(), 64);
    let (tap, mut copies) = tap::tap(4);
    cycles.set_tap(Some(tap));
    for question in [&b"one"[..], b"-two", b"three"] {
        send(&mut client, question);
    }
    cycles.cycle(Instant::from_nanos(9));
    let mut seen = Vec::new();
    while let Some(copy) = copies.pop() {
        assert_eq!(copy.at, Instant::from_nanos(9));
        seen.push((copy.direction, copy.bytes.to_vec()));
    }
    use tap::Direction::{In, Out};
    let expected = [(In, &b"one"[..]), (In, b"-two"), (In, b"three"), (Out, b"ONE")];
    assert_eq!(seen, expected.map(|(direction, bytes)| (direction, bytes.to_vec())));
    assert_eq!((cycles.counters().tapped.get(), cycles.counters().tap_missed.get()), (4, 1));
    cycles.set_tap(None);
    send(&mut client, b"more");
    cycles.cycle(Instant::from_nanos(10));
    assert!(copies.pop().is_none());
    assert_eq!(received(&mut client).len(), 3);
}

#[test]
fn threads_answer_and_stop_with_their_ports() {
    for idle in [Idle::default(), Idle::Block] {
        let config = pipe::Config { queues: 2, ..pipe::Config::default() };
        let (mut clients, servers) = pipe::pair(&config).unwrap();
        let config = Config { idle, ..Config::default() };
        let dataplane = Dataplane::start(servers, &config, whole, |_| Shout::default()).unwrap();
        for client in &mut clients {
            (0..200).for_each(|_| send(client, b"hello"));
            assert_eq!(await_frames(client, 200), vec![b"HELLO".to_vec(); 200]);
        }
        let received: Vec<u64> = dataplane.counters().map(|counters| counters.received.get()).collect();
        assert_eq!(received, [200, 200]);
        assert_eq!(dataplane.stop().len(), 2);
    }
}

/// A pipe with a descriptor to sleep on.
struct Pollable {
    inner: Pipe,
    descriptor: Arc<std::os::fd::OwnedFd>,
    outgoing: Outgoing,
}

impl Port for Pollable {
    fn facts(&self) -> &Facts {
        self.inner.facts()
    }
    fn receive(&mut self, into: &mut Burst, limit: usize) -> usize {
        // taking the count makes it unreadable, as an empty ring is
        let _ = rustix::io::read(&*self.descriptor, &mut [0; 8]);
        self.inner.receive(into, limit)
    }
    fn transmit_room(&mut self) -> usize {
        self.inner.transmit_room()
    }
    fn transmit(&mut self, from: &mut Burst) -> usize {
        self.inner.transmit(from)
    }
    fn flush(&mut self) -> Outgoing {
        self.inner.flush().max(self.outgoing)
    }
    fn take(&mut self) -> Option<Frame> {
        self.inner.take()
    }
    fn give(&mut self, frame: Frame) {
        self.inner.give(frame);
    }
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(std::os::fd::AsFd::as_fd(&*self.descriptor))
    }
}

fn pollable() -> (Pipe, Pollable, Arc<std::os::fd::OwnedFd>) {
    use rustix::event::{EventfdFlags, eventfd};
    let (client, inner) = ends();
    let descriptor = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap());
    (client, Pollable { inner, descriptor: descriptor.clone(), outgoing: Outgoing::Nothing }, descriptor)
}

#[test]
fn frames_that_wait_to_go_out_have_the_thread_look_soon_and_frames_that_the_device_has_only_now_and_then() {
    let thread = |outgoing| {
        let (client, mut server, bell) = pollable();
        server.outgoing = outgoing;
        let dataplane = Dataplane::start(vec![server], &Config::default(), whole, |_| Shout::default()).unwrap();
        let counters = dataplane.counters().next().unwrap().clone();
        await_count("sleep", || counters.sleeps.get() > 0);
        (dataplane, counters, (client, bell))
    };
    // sleeps in a hundred milliseconds and a little, and as many as there may be of 20 ms each
    let look = |counters: &Counters| {
        let (start, before) = (std::time::Instant::now(), counters.sleeps.get());
        std::thread::sleep(Duration::from_millis(100));
        let sleeps = counters.sleeps.get() - before;
        (sleeps, start.elapsed().as_millis() as u64 / 20 + 1)
    };
    // a thread that is not let run sleeps less often, so it is looked at again
    let (_waiting, counters, _ends) = thread(Outgoing::Waiting);
    await_count("a look soon", || {
        let (sleeps, rare) = look(&counters);
        sleeps > rare
    });
    let (_underway, counters, _ends) = thread(Outgoing::Underway);
    let (sleeps, rare) = look(&counters);
    assert!(sleeps <= rare, "{sleeps} sleeps");
    let (_nothing, counters, _ends) = thread(Outgoing::Nothing);
    assert_eq!(look(&counters).0, 0);
}

/// A port through which nothing leaves until it is opened, with frames of guests for which that is so, too.
struct Shut {
    inner: Pollable,
    open: Arc<AtomicBool>,
    asked: bool,
}

impl Port for Shut {
    fn facts(&self) -> &Facts {
        self.inner.facts()
    }
    fn receive(&mut self, into: &mut Burst, limit: usize) -> usize {
        self.inner.receive(into, limit)
    }
    fn transmit_room(&mut self) -> usize {
        if self.open.load(Ordering::Relaxed) { self.inner.transmit_room() } else { 0 }
    }
    fn transmit(&mut self, from: &mut Burst) -> usize {
        if self.transmit_room() > 0 { self.inner.transmit(from) } else { 0 }
    }
    fn flush(&mut self) -> Outgoing {
        self.inner.flush()
    }
    fn take(&mut self) -> Option<Frame> {
        self.inner.take()
    }
    fn give(&mut self, frame: Frame) {
        self.inner.give(frame);
    }
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.inner.descriptor()
    }
    fn is_asked(&mut self) -> bool {
        self.asked && !self.open.load(Ordering::Relaxed)
    }
}

#[test]
fn a_thread_that_cannot_send_sleeps_whatever_waits_for_that() {
    // the stack's timer, guests, frames that arrive
    for (due, asked, arrivals) in
        [(true, false, 0), (false, true, 0), (false, false, 1), (true, false, 65), (true, true, 1)]
    {
        let (mut client, inner, bell) = pollable();
        let open = Arc::new(AtomicBool::new(false));
        let server = Shut { inner, open: open.clone(), asked };
        let stack = move |_: usize, _: &Facts| Whole { due: due.then_some(Instant::ZERO) };
        let dataplane = Dataplane::start(vec![server], &Config::default(), stack, |_| Shout::default()).unwrap();
        let counters = dataplane.counters().next().unwrap().clone();
        (0..arrivals).for_each(|_| send(&mut client, b"hello"));
        rustix::io::write(&*bell, &1u64.to_ne_bytes()).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        let (begun, before) = (std::time::Instant::now(), counters.cycles.get());
        std::thread::sleep(Duration::from_millis(200));
        let (cycles, most) = (counters.cycles.get() - before, begun.elapsed().as_millis() as u64);
        assert!(cycles <= most, "{cycles} cycles in {most} ms: {due} {asked} {arrivals}");
        // and it goes on by itself when there is room
        open.store(true, Ordering::Relaxed);
        assert_eq!(await_frames(&mut client, arrivals + usize::from(due)).len(), arrivals + usize::from(due));
    }
}

#[test]
fn an_idle_thread_sleeps_wakes_for_frames_commands_and_timers() {
    let (mut client, server, bell) = pollable();
    let service_cycles = Arc::new(AtomicU64::new(0));
    let of_service = service_cycles.clone();
    let make = move |_| Shout { cycles: Some(of_service.clone()) };
    let dataplane = Dataplane::start(vec![server], &Config::default(), whole, make).unwrap();
    let counters = dataplane.counters().next().unwrap().clone();
    await_count("sleep", || counters.sleeps.get() > 0);
    std::thread::sleep(Duration::from_millis(20));
    let cycles = counters.cycles.get();
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(counters.cycles.get(), cycles, "an idle thread makes no cycles");
    // a frame wakes it
    send(&mut client, b"good morning");
    rustix::io::write(&*bell, &1u64.to_ne_bytes()).unwrap();
    assert_eq!(await_frames(&mut client, 1), [b"GOOD MORNING".to_vec()]);
    // a wake-up makes a cycle
    let before = service_cycles.load(Ordering::Relaxed);
    dataplane.wake();
    await_count("a cycle", || service_cycles.load(Ordering::Relaxed) > before);
    // and so does a command, after which the stack is polled; its timer ends a sleep
    let clock = Clock::start();
    dataplane.command(|n, _, stack| {
        assert_eq!(n, 0);
        stack.due = Some(Instant::from_nanos(1_000_000_000));
    });
    assert_eq!(await_frames(&mut client, 1), [b"on my own".to_vec()]);
    assert!(clock.now() < Instant::from_nanos(PATIENCE.as_nanos() as u64));
    assert_eq!(counters.commands.get(), 1);
    dataplane.stop();
}

#[test]
fn what_had_come_is_answered_before_the_end() {
    let (mut client, server, _bell) = pollable();
    let dataplane = Dataplane::start(vec![server], &Config::default(), whole, |_| Shout::default()).unwrap();
    let counters = dataplane.counters().next().unwrap().clone();
    await_count("sleep", || counters.sleeps.get() > 0);
    (0..200).for_each(|_| send(&mut client, b"last"));
    dataplane.stop();
    assert_eq!(received(&mut client), vec![b"LAST".to_vec(); 200]);
}

/// Begins a cycle when it gets the lock, and says that it wants it.
struct Gated(Arc<AtomicU64>, Arc<std::sync::Mutex<()>>);

impl Service for Gated {
    fn cycle(&mut self, _: Instant) {
        self.0.fetch_add(1, Ordering::Relaxed);
        drop(self.1.lock().unwrap());
    }
}

#[test]
fn commands_behind_one_that_panics_are_carried_out() {
    let (_client, server, _bell) = pollable();
    let (begun, gate) = (Arc::new(AtomicU64::new(0)), Arc::new(std::sync::Mutex::new(())));
    let (of_service, of_gate) = (begun.clone(), gate.clone());
    let make = move |_| Gated(of_service.clone(), of_gate.clone());
    let closed = gate.lock().unwrap();
    let dataplane = Dataplane::start(vec![server], &Config::default(), whole, make).unwrap();
    await_count("a cycle", || begun.load(Ordering::Relaxed) == 1);
    // both are there when the thread looks
    dataplane.command(|_, _, _| panic!("a command that panics"));
    let done = Arc::new(AtomicBool::new(false));
    let to_do = done.clone();
    dataplane.command(move |_, _, _| to_do.store(true, Ordering::Relaxed));
    drop(closed);
    await_count("the second", || done.load(Ordering::Relaxed));
}

#[test]
fn a_panic_is_contained_and_the_port_goes_on() {
    let (mut client, server) = ends();
    let made = Arc::new(AtomicU64::new(0));
    let count = made.clone();
    let make = move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        Shout::default()
    };
    let dataplane = Dataplane::start(vec![server], &Config::default(), whole, make).unwrap();
    let counters = dataplane.counters().next().unwrap().clone();
    for round in 1..=3 {
        send(&mut client, b"panic");
        await_count("the panic", || counters.panics.get() == round);
        send(&mut client, b"still here");
        assert_eq!(await_frames(&mut client, 1), [b"STILL HERE".to_vec()]);
    }
    assert_eq!(made.load(Ordering::Relaxed), 4);
    assert_eq!(dataplane.stop().len(), 1);
}

#[test]
fn a_panicking_factory_is_tried_again() {
    let (mut client, server) = ends();
    let broken = Arc::new(AtomicBool::new(false));
    let breaks = broken.clone();
    let make = move |_| {
        assert!(!breaks.load(Ordering::Relaxed), "broken");
        Shout::default()
    };
    let dataplane = Dataplane::start(vec![server], &Config::default(), whole, make).unwrap();
    let counters = dataplane.counters().next().unwrap().clone();
    broken.store(true, Ordering::Relaxed);
    send(&mut client, b"panic");
    await_count("a second failure", || counters.panics.get() >= 2);
    broken.store(false, Ordering::Relaxed);
    send(&mut client, b"back");
    assert_eq!(await_frames(&mut client, 1), [b"BACK".to_vec()]);
}

#[test]
fn a_processor_that_does_not_exist_is_an_error() {
    let (_client, server) = ends();
    let config = Config { cpus: vec![1 << 20], ..Config::default() };
    let error = Dataplane::start(vec![server], &config, whole, |_| Shout::default()).unwrap_err();
    assert!(error.to_string().contains("1048576"), "{error}");
}
