//! What threads know of each other when they help each other out: who sleeps, what waits where, who failed.
//!
//! A thread's own work wakes it, so a sleeping thread has nothing that waits. One that runs may be held up, by its service or by
//! whoever else the processor runs, and can then tell nobody; so as long as a thread runs and another sleeps, one of the sleepers
//! *watches*: it sleeps with a time limit. Who has just had something to do *dozes*: it sleeps with that limit as well, and the others
//! go on as if it ran, so that a short sleep touches nothing that threads share. Only one whose limit has passed with nothing to do
//! sleeps in earnest. When all do, nobody has a timer.
//!
//! A thread that takes over flow groups asks their owner for as large a part of its connections, by leaving word at its place; what
//! the owner gives it puts into the other one's inbox.
//!
//! Nothing here is touched for a datagram or a request, but when a thread goes to sleep, when it looks around, and, for a word that was
//! left, once a cycle.

use crate::config::{Config, Endpoint, Spread};
use crate::counters::Counters;
use crate::scheduled::Source;
use crate::selector::Table;
use crate::sys;
use crate::tcp::Parcel;
use base::CacheAligned;
use base::balance::{Look, Move, Policy, Relief, Scheduled};
use mio::Waker;
use mio::net::TcpListener;
use socket2::Socket;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// The balancer's unit: thousandths of what a queue holds before its thread is wholly behind.
pub(crate) const FULL: u32 = 1000;
/// Connections that wait at a thread that is wholly behind, where its backlog is not shorter anyway.
const CONNECTIONS_BEHIND: u32 = 64;

/// What a thread is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum State {
    Awake = 0,
    /// in the kernel until its own work or somebody wakes it
    Asleep = 1,
    /// the same, and no longer than it watches
    Watching = 2,
    /// after a panic, not yet started again
    Down = 3,
    /// the same as `Watching`, and not counted among those that sleep
    Dozing = 4,
}

/// A socket of a thread as the others see it.
#[derive(Debug)]
pub(crate) enum Queue {
    /// a listener, and the connections that fill it
    Tcp(Arc<TcpListener>, u32),
    Udp(Arc<Socket>),
}

impl Queue {
    /// What waits, of [`FULL`].
    fn waiting(&self) -> u32 {
        let (waiting, most) = match self {
            Queue::Tcp(socket, most) => (sys::accept_queue(socket.as_fd()).unwrap_or(0), *most),
            Queue::Udp(socket) => sys::receive_queue(socket.as_fd()).unwrap_or((0, 1)),
        };
        if waiting == 0 {
            return 0;
        }
        (u64::from(waiting) * u64::from(FULL) / u64::from(most.max(1))).clamp(1, FULL.into()) as u32
    }
}

/// A thread as the others see it.
#[derive(Debug)]
struct Place {
    state: CacheAligned<AtomicU8>,
    waker: Arc<Waker>,
    counters: Arc<Counters>,
    /// of the endpoints that are spread by affinity, in the configuration's order
    queues: Vec<Queue>,
    /// from its first cycle on, where the kernel counts
    scheduled: OnceLock<Source>,
    mail: CacheAligned<Mail>,
}

/// What others have left at a thread's place.
#[derive(Debug, Default)]
struct Mail {
    /// who wants connections, plus one, above the part of them; 0: nobody
    asked: AtomicU64,
    /// there is something in the inbox
    full: AtomicBool,
    inbox: Mutex<Vec<Parcel>>,
}

/// What the threads of an engine share.
#[derive(Debug)]
pub(crate) struct Board {
    places: Vec<Place>,
    /// how many sleep, watchers among them and without those that doze
    asleep: AtomicUsize,
    watching: AtomicUsize,
    /// None where the kernel has no table
    table: Option<Mutex<Table>>,
}

impl Board {
    /// By thread: how to wake it, what it counts, its queues.
    pub(crate) fn new(threads: Vec<(Arc<Waker>, Arc<Counters>, Vec<Queue>)>, table: Option<Table>) -> Board {
        let place = |(waker, counters, queues)| Place {
            state: CacheAligned(AtomicU8::new(State::Awake as u8)),
            waker,
            counters,
            queues,
            scheduled: OnceLock::new(),
            mail: CacheAligned::default(),
        };
        Board {
            places: threads.into_iter().map(place).collect(),
            asleep: AtomicUsize::new(0),
            watching: AtomicUsize::new(0),
            table: table.map(Mutex::new),
        }
    }

    pub(crate) fn threads(&self) -> usize {
        self.places.len()
    }

    pub(crate) fn table(&self) -> Option<MutexGuard<'_, Table>> {
        Some(self.table.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn is(&self, thread: usize, state: State) -> bool {
        self.places[thread].state.load(Ordering::SeqCst) == state as u8
    }

    fn sleeps(&self, thread: usize) -> bool {
        [State::Asleep, State::Watching, State::Dozing].iter().any(|state| self.is(thread, *state))
    }

    fn set(&self, thread: usize, state: State) {
        self.places[thread].state.store(state as u8, Ordering::SeqCst);
    }

    /// Looks at a thread. What waits at one that sleeps has just woken it, unless its processor is known to let it run `late`.
    pub(crate) fn look(&self, thread: usize, late: bool) -> Look {
        let place = &self.places[thread];
        let (cycles, down) = (place.counters.cycles.get(), self.is(thread, State::Down));
        let asleep = self.sleeps(thread);
        if asleep && !late {
            return Look { waiting: 0, cycles, asleep, down };
        }
        let waiting = place.queues.iter().map(Queue::waiting).max().unwrap_or(0);
        Look { waiting, cycles, asleep: asleep && waiting == 0, down }
    }

    /// The same, without asking the kernel, of a thread that runs, has come round since it had done so many `cycles`, and took all that it
    /// found; None of any other.
    pub(crate) fn glance(&self, thread: usize, cycles: u64) -> Option<Look> {
        let place = &self.places[thread];
        let look = Look { waiting: 0, cycles: place.counters.cycles.get(), asleep: false, down: false };
        let keeps_up = self.is(thread, State::Awake) && look.cycles != cycles && place.counters.leaves.get() == 0;
        keeps_up.then_some(look)
    }

    /// `me` is going to sleep; whether no longer than it watches. `rested`: it had nothing to do since it last slept, and that to its limit.
    pub(crate) fn go_to_sleep(&self, me: usize, rested: bool) -> bool {
        if !rested {
            self.set(me, State::Dozing);
            return true;
        }
        self.set(me, State::Asleep);
        // in this order, and the other one in `wake_up`: of two threads at the same time, either this one sees the other run or
        // the other one sees this one sleep
        let asleep = self.asleep.fetch_add(1, Ordering::SeqCst) + 1;
        let watches = asleep < self.places.len()
            && self.watching.compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if watches {
            self.set(me, State::Watching);
        }
        watches
    }

    /// `me` is awake. `to_work`: there is something to do, so that who sleeps should have somebody who watches.
    pub(crate) fn wake_up(&self, me: usize, to_work: bool) {
        let slept = self.places[me].state.swap(State::Awake as u8, Ordering::SeqCst);
        if slept == State::Watching as u8 {
            self.watching.fetch_sub(1, Ordering::SeqCst);
        }
        if slept != State::Dozing as u8 {
            self.asleep.fetch_sub(1, Ordering::SeqCst);
        }
        if to_work && self.asleep.load(Ordering::SeqCst) > 0 && self.watching.load(Ordering::SeqCst) == 0 {
            self.wake_one(me);
        }
    }

    /// Wakes a thread that sleeps, if there is one.
    pub(crate) fn wake_one(&self, me: usize) {
        let mut others = (1..self.places.len()).map(|n| (me + n) % self.places.len());
        if let Some(sleeper) = others.find(|n| self.sleeps(*n)) {
            // refused only when the eventfd's count is full, and then the thread is about to wake
            let _ = self.places[sleeper].waker.wake();
        }
    }

    /// `me` does not run any more: its groups go to those that do, and they are woken to see what it left. What was moved.
    pub(crate) fn go_down(&self, me: usize) -> Vec<Move> {
        self.set(me, State::Down);
        let heirs: Vec<usize> = (0..self.places.len()).filter(|n| *n != me && !self.is(*n, State::Down)).collect();
        let moves = self.table().map(|mut table| table.leave(me, &heirs)).unwrap_or_default();
        for heir in heirs {
            // as above
            let _ = self.places[heir].waker.wake();
        }
        moves
    }

    /// `me`, which calls this, runs, for the first time or again.
    pub(crate) fn come_up(&self, me: usize) {
        self.set(me, State::Awake);
        if let Some(source) = Source::of_this_thread() {
            // the first one is the thread's for good
            let _ = self.places[me].scheduled.set(source);
        }
    }

    /// What the scheduler has counted of a thread; None where it counts nothing.
    pub(crate) fn scheduled(&self, thread: usize) -> Option<Scheduled> {
        self.places[thread].scheduled.get()?.read()
    }

    /// `me` has relieved another thread, and wants its connections.
    pub(crate) fn ask(&self, me: usize, relief: Relief) {
        let place = &self.places[relief.from];
        // a word that was not heard yet is replaced: the newer one knows better
        place.mail.asked.store((me as u64 + 1) << 32 | u64::from(relief.part), Ordering::Release);
        // one that has none hears of it when it wakes for something else
        if self.connections(relief.from) > 0 {
            // refused only when the eventfd's count is full, and then the thread is about to wake
            let _ = place.waker.wake();
        }
    }

    /// Who wants what part of the connections of `me`, told once.
    pub(crate) fn asked(&self, me: usize) -> Option<(usize, u32)> {
        let asked = &self.places[me].mail.asked;
        if asked.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let word = asked.swap(0, Ordering::Acquire);
        Some(((word >> 32).checked_sub(1)? as usize, word as u32))
    }

    /// How many connections a thread has.
    pub(crate) fn connections(&self, thread: usize) -> usize {
        self.places[thread].counters.connections.get() as usize
    }

    /// Gives connections to a thread.
    pub(crate) fn give(&self, to: usize, parcels: &mut Vec<Parcel>) {
        let place = &self.places[to];
        place.mail.inbox.lock().unwrap_or_else(PoisonError::into_inner).append(parcels);
        place.mail.full.store(true, Ordering::Release);
        // as above
        let _ = place.waker.wake();
    }

    /// What was given to `me`.
    pub(crate) fn given(&self, me: usize) -> Vec<Parcel> {
        let mail = &self.places[me].mail;
        if !mail.full.load(Ordering::Relaxed) || !mail.full.swap(false, Ordering::Acquire) {
            return Vec::new();
        }
        std::mem::take(&mut mail.inbox.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// One queue of a thread, for the board.
pub(crate) fn listening(socket: &Arc<TcpListener>, backlog: i32) -> Queue {
    let most = u32::try_from(backlog).unwrap_or(0).clamp(1, CONNECTIONS_BEHIND);
    Queue::Tcp(socket.clone(), most)
}

/// The policy of an engine's threads.
pub(crate) fn policy(config: &Config) -> Policy {
    let balance = config.balance;
    Policy { limit: FULL, steal: balance.steal, migrate: balance.steal && balance.migrate, ..Policy::default() }
}

/// Whether an endpoint's queues are taken from by threads that do not own them.
pub(crate) fn is_balanced(config: &Config, endpoint: &Endpoint) -> bool {
    config.threads > 1 && config.spread(endpoint.transport) == Spread::Affinity
}

#[cfg(test)]
mod tests {
    use super::*;
    use mio::{Events, Poll, Token};
    use std::time::Duration;

    /// A board of threads without queues, and what each one is woken by.
    fn board(threads: usize) -> (Board, Vec<Poll>) {
        let polls: Vec<_> = (0..threads).map(|_| Poll::new().unwrap()).collect();
        let waker = |poll: &Poll| Arc::new(Waker::new(poll.registry(), Token(0)).unwrap());
        let places = polls.iter().map(|poll| (waker(poll), Arc::default(), Vec::new())).collect();
        (Board::new(places, None), polls)
    }

    fn woken(poll: &mut Poll) -> bool {
        let mut events = Events::with_capacity(4);
        poll.poll(&mut events, Some(Duration::ZERO)).unwrap();
        !events.is_empty()
    }

    #[test]
    fn one_sleeper_watches_as_long_as_somebody_runs() {
        let (board, mut polls) = board(3);
        assert!(board.go_to_sleep(1, true), "0 and 2 run");
        assert!(!board.go_to_sleep(2, true), "1 watches already");
        assert!(board.look(1, false).asleep && board.look(2, true).asleep && !board.look(0, false).asleep);
        assert!(!board.go_to_sleep(0, true));
        // the watcher's time is over: nobody runs, so nobody need watch
        board.wake_up(1, false);
        assert!(!board.go_to_sleep(1, true));
        assert!(polls.iter_mut().all(|poll| !woken(poll)));
        // somebody runs, and one of the others is to watch
        board.wake_up(0, true);
        assert!(woken(&mut polls[1]) && !woken(&mut polls[2]));
        board.wake_up(1, false);
        assert!(board.go_to_sleep(1, true));
        // with a watcher nobody else is woken
        board.wake_up(2, true);
        assert!(polls.iter_mut().all(|poll| !woken(poll)));
        // and the watcher that has something to do has nobody to wake
        board.wake_up(1, true);
        assert!(polls.iter_mut().all(|poll| !woken(poll)));
        assert!((0..3).all(|thread| !board.look(thread, false).asleep));
    }

    #[test]
    fn who_has_just_worked_dozes_and_the_others_go_on_as_if_it_ran() {
        let (board, mut polls) = board(2);
        for thread in [0, 1] {
            assert!(board.go_to_sleep(thread, false), "though all sleep");
            assert!(board.look(thread, false).asleep);
        }
        let counted = || (board.asleep.load(Ordering::SeqCst), board.watching.load(Ordering::SeqCst));
        for _ in 0..3 {
            board.wake_up(0, true);
            assert_eq!((board.go_to_sleep(0, false), counted()), (true, (0, 0)));
        }
        // one that dozes can be woken for work of others'
        board.wake_up(1, true);
        board.wake_one(1);
        assert!(woken(&mut polls[0]) && !woken(&mut polls[1]));
        // their limits pass, one after the other
        assert!(board.go_to_sleep(1, true), "0 may come to run");
        board.wake_up(0, true);
        assert!(polls.iter_mut().all(|poll| !woken(poll)), "1 watches");
        assert!(board.go_to_sleep(0, false));
        board.wake_up(0, false);
        assert!(!board.go_to_sleep(0, true), "all sleep");
        board.wake_up(1, false);
        assert_eq!((board.go_to_sleep(1, true), counted()), (false, (2, 0)));
        // then one is woken to watch, since nobody does
        board.wake_up(0, true);
        assert!(woken(&mut polls[1]));
        board.wake_up(1, false);
        assert_eq!((board.go_to_sleep(1, false), board.go_to_sleep(0, false)), (true, true));
        assert_eq!(counted(), (0, 0));
    }

    #[test]
    fn who_comes_round_and_leaves_nothing_need_not_be_looked_at_closely() {
        let (board, _polls) = board(2);
        let counters = &board.places[0].counters;
        assert_eq!(board.glance(0, 0), None, "it has not come round");
        counters.cycles.add(3);
        assert_eq!(board.glance(0, 2), Some(Look { cycles: 3, ..Look::default() }));
        assert_eq!(board.glance(0, 3), None, "not since");
        counters.leaves.set(1);
        assert_eq!(board.glance(0, 2), None, "something lies there");
        counters.leaves.set(0);
        board.go_to_sleep(0, false);
        assert_eq!(board.glance(0, 2), None, "it sleeps");
        board.wake_up(0, true);
        assert!(board.glance(0, 2).is_some());
    }

    #[test]
    fn a_thread_that_goes_down_is_seen_by_all_and_wakes_them() {
        let (board, mut polls) = board(3);
        board.go_to_sleep(1, true);
        assert_eq!(board.go_down(0), [], "there is no table");
        assert!(board.look(0, false).down && !woken(&mut polls[0]));
        assert!(woken(&mut polls[1]) && woken(&mut polls[2]));
        board.come_up(0);
        assert!(!board.look(0, false).down);
    }

    #[test]
    fn what_waits_at_a_thread_that_sleeps_is_seen_when_it_runs_late() {
        let poll = Poll::new().unwrap();
        let waker = Arc::new(Waker::new(poll.registry(), Token(0)).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let to = listener.local_addr().unwrap();
        let board = Board::new(vec![(waker, Arc::default(), vec![listening(&Arc::new(listener), 8)])], None);
        board.go_to_sleep(0, true);
        assert!(board.look(0, true).asleep, "it has nothing to do");
        let _stream = std::net::TcpStream::connect(to).unwrap();
        let seen = |late| (board.look(0, late).waiting, board.look(0, late).asleep);
        assert_eq!((seen(false), seen(true)), ((0, true), (FULL / 8, false)));
        board.wake_up(0, false);
        assert_eq!(seen(false), (FULL / 8, false));
    }

    #[test]
    fn who_is_relieved_is_told_once_and_woken_if_it_has_connections() {
        let (board, mut polls) = board(2);
        assert_eq!(board.asked(0), None);
        board.ask(1, Relief { from: 0, part: 7 });
        assert!(!woken(&mut polls[0]), "it has none");
        board.places[0].counters.connections.set(1);
        board.ask(1, Relief { from: 0, part: 9 });
        assert!(woken(&mut polls[0]));
        assert_eq!((board.asked(1), board.asked(0), board.asked(0)), (None, Some((1, 9)), None));
        assert_eq!(board.given(1).len(), 0);
        board.give(1, &mut Vec::new());
        assert!(woken(&mut polls[1]) && board.given(1).is_empty());
    }

    #[test]
    fn backlogs_are_parts_of_what_a_queue_holds() {
        let listener = TcpListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let to = listener.local_addr().unwrap();
        let queue = listening(&Arc::new(listener), 8);
        assert_eq!(queue.waiting(), 0);
        let streams: Vec<_> = (0..4).map(|_| std::net::TcpStream::connect(to).unwrap()).collect();
        assert_eq!(queue.waiting(), FULL / 2);
        drop(streams);
        let socket: Socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().into();
        socket.set_nonblocking(true).unwrap();
        let to = socket.local_addr().unwrap();
        let queue = Queue::Udp(Arc::new(socket));
        assert_eq!(queue.waiting(), 0);
        let from = Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None).unwrap();
        from.send_to(b"one", &to).unwrap();
        let one = queue.waiting();
        assert!((1..=FULL / 10).contains(&one), "{one}");
        (0..10_000).for_each(|_| drop(from.send_to(&[0; 1000], &to)));
        assert!(queue.waiting() > FULL * 3 / 4, "{}", queue.waiting());
    }
}
