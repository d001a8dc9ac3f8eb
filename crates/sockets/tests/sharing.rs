//! How connections and datagrams get to several threads, over real sockets on loopback. Needs root for the selector.

mod common;

use app::{Addresses, Connection, Datagram, Listener, Luggage, Service, Streams};
use base::Instant;
use common::{PATIENCE, config, echo, start, total, until};
use sockets::{Balance, Config, Engine, Running, Sharing, Spread, Transport};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const SPREADS: [Spread; 3] = [Spread::Shared, Spread::PerCore, Spread::Affinity];
const THREADS: usize = 3;

/// Answers with the number of its thread. Thread 0 panics at "P", and at "H" does not come back until it is let go.
struct Who {
    thread: usize,
    hold: Arc<Hold>,
    /// connections may go to other threads
    moves: bool,
}

#[derive(Default)]
struct Hold {
    inside: AtomicBool,
    over: AtomicBool,
}

impl Hold {
    /// Sends "H" by `send`; true when thread 0 sits in its service, false when it `is_answered`: what was thread 0's may have gone to
    /// another thread meanwhile.
    fn begin(&self, send: impl FnOnce(), mut is_answered: impl FnMut() -> bool) -> bool {
        send();
        let mut inside = false;
        until("somebody who takes it", || {
            inside = self.inside.load(Ordering::Acquire);
            inside || is_answered()
        });
        inside
    }

    fn end(&self) {
        self.over.store(true, Ordering::Release);
    }
}

impl Who {
    fn wait(&self) {
        while self.thread == 0 && !self.hold.over.load(Ordering::Acquire) {
            self.hold.inside.store(true, Ordering::Release);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Service for Who {
    fn datagrams(&mut self, _: Instant, _: Listener, burst: &mut [Datagram<'_>]) {
        for datagram in burst {
            match datagram.question() {
                b"P" if self.thread == 0 => panic!("asked to"),
                b"H" => self.wait(),
                _ => {}
            }
            datagram.buffer()[0] = b'0' + self.thread as u8;
            datagram.reply(1);
        }
    }

    fn knock<C: Streams>(&mut self, _: Instant, calls: &mut C, _: Listener, connection: Connection, _: Addresses) {
        calls.accept(connection, 0).unwrap();
    }

    fn recv<C: Streams>(&mut self, _: Instant, calls: &mut C, connection: Connection, _: u64, bytes: &[u8]) {
        match bytes[0] {
            b'P' if self.thread == 0 => panic!("asked to"),
            b'H' => self.wait(),
            _ => {}
        }
        calls.recv_done(connection, bytes.len()).unwrap();
        calls.send(connection, &[b'0' + self.thread as u8]).unwrap();
    }

    fn can_move(&self) -> bool {
        self.moves
    }

    fn arrive<C: Streams>(&mut self, _: Instant, _: &mut C, _: Connection, luggage: Luggage) -> Option<u64> {
        luggage.is::<()>().then_some(0)
    }
}

/// Lets go also when a test fails, so that the engine can end.
struct Holding(Arc<Hold>);

impl std::ops::Deref for Holding {
    type Target = Hold;
    fn deref(&self) -> &Hold {
        &self.0
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.end();
    }
}

fn who(config: Config) -> (Running, SocketAddr, Holding) {
    let hold = Arc::<Hold>::default();
    let held = hold.clone();
    let (running, address) = start(config, move |thread| Who { thread, hold: held.clone(), moves: true });
    assert_eq!(running.notes(), [""; 0], "these tests need root");
    (running, address, Holding(hold))
}

fn of(transport: Transport, spread: Spread) -> Config {
    let mut config = config("127.0.0.1:0", transport);
    config.threads = THREADS;
    (config.accept, config.receive) = (spread, spread);
    config.streams.per_source = 10_000;
    config
}

fn ask(stream: &mut TcpStream, question: &[u8]) -> usize {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(question).unwrap();
    let mut answer = [0];
    stream.read_exact(&mut answer).unwrap();
    usize::from(answer[0] - b'0')
}

/// Who answers each of `n` new connections; they stay open.
fn connections(to: SocketAddr, n: usize) -> (Vec<usize>, Vec<TcpStream>) {
    let mut streams: Vec<_> = (0..n).map(|_| TcpStream::connect(to).unwrap()).collect();
    let whose = streams.iter_mut().map(|stream| ask(stream, b"x")).collect();
    (whose, streams)
}

fn socket(to: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.connect(to).unwrap();
    socket
}

fn ask_by(socket: &UdpSocket, question: &[u8]) -> usize {
    socket.send(question).unwrap();
    let mut answer = [0];
    assert_eq!(socket.recv(&mut answer).unwrap(), 1);
    usize::from(answer[0] - b'0')
}

fn figure(running: &Running, of: impl Fn(&Sharing) -> u64) -> u64 {
    running.sharing().map(|sharing| of(sharing)).sum()
}

/// Has thread 0 held up by one of `streams`, with more of them where it has no other; which one it is, and how many it had then.
fn hold_one(to: SocketAddr, hold: &Hold, streams: &mut Vec<TcpStream>) -> (usize, usize) {
    let mut held = None;
    until("thread 0 in its service", || {
        let whose: Vec<usize> = streams.iter_mut().map(|stream| ask(stream, b"x")).collect();
        let has: Vec<usize> = (0..whose.len()).filter(|at| whose[*at] == 0).collect();
        let [at, _, ..] = has[..] else {
            streams.extend(connections(to, 20).1);
            return false;
        };
        let stream = &streams[at];
        stream.set_nonblocking(true).unwrap();
        let (mut sends, mut answer) = (stream, stream);
        if hold.begin(|| sends.write_all(b"H").unwrap(), || answer.read(&mut [0]).is_ok()) {
            held = Some((at, has.len()));
        }
        stream.set_nonblocking(false).unwrap();
        held.is_some()
    });
    held.unwrap()
}

/// Without help, so that each does what comes to it.
fn alone(config: Config) -> Config {
    Config { balance: Balance { steal: false, ..Balance::default() }, ..config }
}

#[test]
fn every_policy_serves_all_and_uses_all_threads() {
    for spread in SPREADS {
        let (running, address, _) = who(alone(of(Transport::Tcp, spread)));
        let (whose, _streams) = connections(address, 300);
        if spread != Spread::Shared {
            // which of those that listen to one socket is fastest is not ours to say
            for thread in 0..THREADS {
                let count = whose.iter().filter(|who| **who == thread).count();
                assert!((50..=160).contains(&count), "{spread:?}: thread {thread} has {count} of 300");
            }
        }
        assert_eq!(total(&running, |c| c.accepted.get()), 300);
        assert_eq!(figure(&running, |s| s.accepted_own.get()), 300);

        let (running, address, _) = who(alone(of(Transport::Udp, spread)));
        let mut by_thread = HashMap::<usize, usize>::new();
        for _ in 0..300 {
            *by_thread.entry(ask_by(&socket(address), b"x")).or_default() += 1;
        }
        assert!(spread == Spread::Shared || by_thread.len() == THREADS, "{spread:?}: {by_thread:?}");
        // counted when the answers are on their way already
        until("the count", || figure(&running, |s| s.received_own.get()) == 300);
    }
}

#[test]
fn sockets_that_are_used_again_keep_nothing_of_the_policy_before() {
    let first = Engine::bind(alone(of(Transport::Tcp, Spread::Affinity))).unwrap();
    let address = first.addresses()[0];
    let left: Vec<_> = first.sockets().map(|socket| socket.try_clone_to_owned().unwrap()).collect();
    let hold = Arc::<Hold>::default();
    let make = move |thread| Who { thread, hold: hold.clone(), moves: true };
    first.start(make.clone()).unwrap().stop();
    let mut config = Config { threads: THREADS + 1, ..alone(of(Transport::Tcp, Spread::PerCore)) };
    config.endpoints[0].address = address;
    let second = Engine::bind_with(config, left).unwrap();
    let running = second.start(make).unwrap();
    let (whose, _streams) = connections(address, 300);
    for thread in 0..=THREADS {
        let count = whose.iter().filter(|who| **who == thread).count();
        assert!(count >= 30, "thread {thread} has {count} of 300");
    }
    running.stop();
}

#[test]
fn a_shared_socket_is_served_by_others_while_one_is_held_up() {
    for spread in [Spread::Shared, Spread::Affinity] {
        let (_running, address, hold) = who(of(Transport::Tcp, spread));
        let (_, mut all) = connections(address, 20);
        hold_one(address, &hold, &mut all);
        // whatever comes now is served by others
        let (whose, _more) = connections(address, 60);
        assert!(whose.iter().all(|who| *who != 0), "{spread:?}: {whose:?}");
        hold.end();
    }
}

#[test]
fn connections_of_a_thread_that_is_held_up_are_stolen_and_its_groups_taken_over() {
    let (running, address, hold) = who(of(Transport::Tcp, Spread::Affinity));
    let (_, mut streams) = connections(address, 60);
    let (at, before) = hold_one(address, &hold, &mut streams);
    until("groups taken over", || {
        let (whose, _some) = connections(address, 10);
        assert!(whose.iter().all(|who| *who != 0), "{whose:?}");
        // a large part, and not one group after the other: it did not come round
        running.sharing().skip(1).map(|sharing| sharing.groups.get()).sum::<u64>() > 4096 * 5 / 6
    });
    assert!(figure(&running, |s| s.accepted_stolen.get()) > 0);
    hold.end();
    // what it had in hand it answers, and then it gives away what it was asked for
    streams[at].set_read_timeout(Some(PATIENCE)).unwrap();
    streams[at].read_exact(&mut [0]).unwrap();
    until("connections given away", || {
        let has = streams.iter_mut().filter_map(|stream| (ask(stream, b"x") == 0).then_some(())).count();
        figure(&running, |s| s.connections_taken.get()) > 0 && has < before
    });
    assert_eq!(figure(&running, |s| s.connections_lost.get()), 0);
}

#[test]
fn datagrams_of_a_thread_that_is_held_up_are_answered_by_others() {
    let (running, address, hold) = who(of(Transport::Udp, Spread::Affinity));
    let sockets: Vec<_> = (0..60).map(|_| socket(address)).collect();
    let mut held = None;
    until("thread 0 in its service", || {
        let at = sockets.iter().position(|socket| ask_by(socket, b"x") == 0);
        held = at.filter(|at| {
            let socket = &sockets[*at];
            socket.set_nonblocking(true).unwrap();
            let is_answered = || socket.recv(&mut [0]).is_ok();
            let is_held = hold.begin(|| assert_eq!(socket.send(b"H").unwrap(), 1), is_answered);
            socket.set_nonblocking(false).unwrap();
            is_held
        });
        held.is_some()
    });
    let at = held.unwrap();
    until("a group taken over", || {
        for (_, socket) in sockets.iter().enumerate().filter(|(n, _)| *n != at) {
            assert_ne!(ask_by(socket, b"x"), 0);
        }
        figure(&running, |s| s.groups_taken.get()) > 2
    });
    assert!(figure(&running, |s| s.received_stolen.get()) > 0);
    hold.end();
    let mut answer = [0];
    assert_eq!(sockets[at].recv(&mut answer).unwrap(), 1, "what it had in hand it answers");
    assert_eq!(answer, [b'0']);
    // and a flow whose group moved stays where it is now, unless somebody is held up again
    until("rest", || figure(&running, |s| s.busy.get()) == 0);
}

#[test]
fn without_balancing_who_waits_for_a_thread_waits() {
    let config = alone(of(Transport::Tcp, Spread::Affinity));
    let (_running, address, hold) = who(config);
    let (_, mut streams) = connections(address, 60);
    let (at, _) = hold_one(address, &hold, &mut streams);
    let mut waiting: Vec<_> = (0..60).map(|_| TcpStream::connect(address).unwrap()).collect();
    let mut silent = 0;
    for stream in &mut waiting {
        stream.write_all(b"x").unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        silent += usize::from(stream.read(&mut [0]).is_err());
    }
    assert!(silent > 0, "those of thread 0 wait");
    hold.end();
    ask(&mut streams[at], b"x");
}

#[test]
fn the_groups_of_a_thread_that_panics_go_to_others_and_come_back() {
    let mut all = of(Transport::Tcp, Spread::Affinity);
    all.balance.groups = 64;
    // the service of thread 0 cannot even be made again until it may
    let broken = Arc::new(AtomicBool::new(false));
    let state = (broken.clone(), Arc::<Hold>::default());
    let (running, address) = start(all, move |thread| {
        assert!(thread != 0 || !state.0.load(Ordering::Acquire), "not yet");
        Who { thread, hold: state.1.clone(), moves: false }
    });
    let owned = || running.sharing().map(|sharing| sharing.groups.get()).collect::<Vec<_>>();
    // a connection does not move here, so who has accepted it gets what is sent by it
    let mut streams = Vec::new();
    until("a connection of thread 0", || {
        let (whose, more) = connections(address, 60);
        streams.extend(more);
        let at = whose.iter().position(|who| *who == 0).map(|at| streams.len() - whose.len() + at);
        at.is_some_and(|at| {
            broken.store(true, Ordering::Release);
            streams[at].write_all(b"P").unwrap();
            true
        })
    });
    until("a panic", || total(&running, |c| c.panics.get()) > 0);
    until("its groups with others", || figure(&running, |s| s.groups_left.get()) > 0);
    let begun = std::time::Instant::now();
    let (whose, _more) = connections(address, 60);
    assert!(whose.iter().all(|who| *who != 0));
    assert!(begun.elapsed() < PATIENCE);
    broken.store(false, Ordering::Release);
    until("its groups back", || {
        // a group is given back by its thread when it has run for a while, which it does when something comes in
        let (whose, _some) = connections(address, 10);
        whose.contains(&0)
    });
    until("the figures", || {
        let _some = connections(address, 10);
        owned().iter().sum::<u64>() == 64 && owned()[0] > 10
    });
}

#[test]
fn a_burst_of_a_panic_is_counted_and_datagrams_go_on() {
    for spread in SPREADS {
        let (running, address, _) = who(of(Transport::Udp, spread));
        let sockets: Vec<_> = (0..30).map(|_| socket(address)).collect();
        let all_panic = || sockets.iter().for_each(|socket| assert_eq!(socket.send(b"P").unwrap(), 1));
        all_panic();
        // thread 0 panics at what it takes itself: others may take some, and more while it is held up
        if spread != Spread::Shared {
            until("panics", || {
                all_panic();
                std::thread::sleep(Duration::from_millis(20));
                total(&running, |c| c.panics.get()) > 0 && total(&running, |c| c.dropped_panic.get()) > 0
            });
        }
        let answered = |socket: &UdpSocket| {
            socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            socket.send(b"x").unwrap();
            socket.recv(&mut [0; 1]).is_ok()
        };
        until("answers to all", || sockets.iter().all(answered));
    }
}

/// Connections to an engine of two threads by the processor from which they came, and by the thread that took them.
struct FromBoth {
    cpus: Vec<usize>,
    address: SocketAddr,
    found: [[usize; 2]; 2],
}

impl FromBoth {
    /// `count` from each of these processors; on loopback a packet arrives on the processor that sends it.
    fn ask(&mut self, from: &[usize], count: usize) {
        for &n in from {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    pin(self.cpus[n]);
                    for who in connections(self.address, count).0 {
                        self.found[n][who] += 1;
                    }
                });
            });
        }
    }
}

#[test]
fn packets_are_followed_to_the_processor_where_they_arrive() {
    let cpus = processors();
    if cpus.len() < 2 {
        return; // there is nowhere else to arrive
    }
    for spread in [Spread::Affinity, Spread::PerCore] {
        let follows = |s: &Sharing| if spread == Spread::PerCore { s.listeners_follow.get() } else { s.follows.get() };
        let mut config = of(Transport::Tcp, spread);
        (config.threads, config.cpus) = (2, cpus.clone());
        let (running, address, _) = who(alone(config));
        let mut connections = FromBoth { cpus: cpus.clone(), address, found: [[0; 2]; 2] };
        // by turns, so that as much arrives on the one as on the other however busy the machine is
        until("what follows", || {
            connections.ask(&[0, 1], 10);
            figure(&running, follows) == 2
        });
        let before = connections.found;
        (0..20).for_each(|_| connections.ask(&[0, 1], 10));
        let after = connections.found;
        let new = [0, 1].map(|from| [0, 1].map(|to| after[from][to] - before[from][to]));
        assert_eq!(new, [[200, 0], [0, 200]], "{spread:?}");
        // all from one processor would be one thread's
        until("what follows no more", || {
            connections.ask(&[0], 20);
            figure(&running, follows) == 0
        });
        let before = connections.found;
        connections.ask(&[0], 200);
        let new = [0, 1].map(|to| connections.found[0][to] - before[0][to]);
        assert!(new.iter().all(|count| *count > 40), "{spread:?} {new:?}");
    }
}

/// Threads that want all of a processor, as long as it lives.
struct Hogs(Arc<AtomicBool>, Vec<std::thread::JoinHandle<()>>);

impl Hogs {
    fn on(cpu: usize, count: usize) -> Hogs {
        let stop = Arc::new(AtomicBool::new(false));
        let hog = |_| {
            let stop = stop.clone();
            std::thread::spawn(move || {
                pin(cpu);
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        };
        let threads = (0..count).map(hog).collect();
        Hogs(stop, threads)
    }
}

impl Drop for Hogs {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        self.1.drain(..).for_each(|hog| hog.join().unwrap());
    }
}

fn pin(cpu: usize) {
    let mut one = rustix::thread::CpuSet::new();
    one.set(cpu);
    rustix::thread::sched_setaffinity(None, &one).unwrap();
}

fn processors() -> Vec<usize> {
    let mine = rustix::thread::sched_getaffinity(None).unwrap();
    (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| mine.is_set(*cpu)).take(2).collect()
}

#[test]
fn a_thread_whose_processor_has_other_work_is_relieved_though_nothing_waits_long() {
    let cpus = processors();
    if cpus.len() < 2 {
        return; // there is nowhere to go
    }
    let mut config = of(Transport::Tcp, Spread::Affinity);
    (config.threads, config.cpus) = (2, cpus.clone());
    let (running, address, _) = who(config);
    let (mut whose, mut streams) = connections(address, 40);
    // a machine that is busy may have kept the second one from its processor so long that it was relieved already
    until("connections at the second thread", || {
        let has = whose.contains(&1);
        if !has {
            (whose, streams) = connections(address, 40);
        }
        has
    });
    let had = whose.iter().filter(|who| **who == 1).count();
    let hogs = Hogs::on(cpus[1], 6);
    // one after the other is asked, so that no queue ever holds more than one
    let mut now = whose;
    until("connections at the other thread", || {
        now = streams.iter_mut().map(|stream| ask(stream, b"x")).collect();
        now.iter().filter(|who| **who == 1).count() * 2 < had
    });
    let taken = |thread: usize, of: fn(&Sharing) -> u64| of(running.sharing().nth(thread).unwrap());
    until("the figures", || {
        let _some = connections(address, 5);
        let groups =
            taken(0, |s| s.groups_taken.get()) > 1 && taken(0, |s| s.groups.get()) > taken(1, |s| s.groups.get());
        groups && taken(0, |s| s.connections_taken.get()) > 0
    });
    assert_eq!(figure(&running, |s| s.connections_lost.get()), 0);
    drop(hogs);
}

#[test]
fn a_drain_serves_what_came_before_and_refuses_what_comes_after() {
    for spread in SPREADS {
        let (running, address, _) = who(of(Transport::Tcp, spread));
        let (_, streams) = connections(address, 20);
        running.drain();
        until("the end", || TcpStream::connect(address).is_err());
        until("an empty table", || total(&running, |c| c.connections.get()) == 0);
        drop(streams);
        running.stop();
    }
}

#[test]
fn connections_can_be_refused_until_the_start_with_every_policy() {
    for spread in SPREADS {
        let free = std::net::TcpListener::bind(("127.0.0.78", 0)).unwrap().local_addr().unwrap();
        let mut config = Config { refuse_until_started: vec![free], ..of(Transport::Tcp, spread) };
        config.endpoints[0].address = free;
        let engine = Engine::bind(config).unwrap();
        assert!(TcpStream::connect(free).is_err(), "{spread:?}");
        let (make, _events) = echo();
        let running = engine.start(make).unwrap();
        for _ in 0..20 {
            let mut stream = TcpStream::connect(free).unwrap();
            stream.write_all(b"again").unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.read_exact(&mut [0; 5]).unwrap();
        }
        running.stop();
    }
}

#[test]
fn idle_threads_have_no_timers() {
    let (running, address, _) = who(of(Transport::Tcp, Spread::Affinity));
    let (_, _streams) = connections(address, 60);
    let sleeps = || total(&running, |c| c.sleeps.get());
    // a watcher sees that nobody runs, and sleeps on for good
    let mut before = 0;
    until("rest", || {
        std::thread::sleep(Duration::from_millis(100));
        std::mem::replace(&mut before, sleeps()) == sleeps()
    });
}

#[test]
fn bad_numbers_of_groups_are_refused() {
    for groups in [0, 65_537] {
        let mut config = of(Transport::Udp, Spread::Affinity);
        config.balance.groups = groups;
        let error = Engine::bind(config).unwrap_err().to_string();
        assert_eq!(error, format!("{groups} flow groups; 1 to 65536 are possible"));
    }
}
