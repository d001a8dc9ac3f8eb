//! Helping each other out: what a thread does about the others' backlogs, by the policy in [`base::balance`].
//!
//! A thread looks around when it is about to sleep and, with work of its own, once in [`LOOK_EVERY`]. What it then takes from a
//! busy thread's socket it handles as its own: a stolen connection stays with the thief, a stolen burst is answered from the
//! socket that it came to.
//!
//! Who takes over a part of another's flow groups wants as large a part of its connections, too, or those of the groups where that can be
//! told: those that last would stay behind. Their
//! owner gives them when it comes round, as many as are at rest, a few in each cycle.

use crate::config::Config;
use crate::counters::{Counters, Sharing};
use crate::engine::Thread;
use crate::run::{Door, Loop, Taken};
use crate::selector::Whose;
use crate::share::{Board, policy};
use crate::udp::Udp;
use app::{Addresses, Listener, Service};
use base::Instant;
use base::balance::{Balancer, Look, Move, Relief, WHOLE};
use mio::Token;
use mio::net::TcpListener;
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

/// A look costs system calls: no more often than this.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// Nor at more queues of others at a time, or at one thread's, about half a microsecond each: where there are more, threads take turns.
const LOOK_QUEUES: usize = 32;
/// Steals of one cycle by a thread with nothing else to do.
const STEALS: usize = 4;
/// Of the groups that were taken over this part goes back at a time.
const BACK_PART: usize = 4;
/// A thread that runs so long after a panic gets its groups back.
const RECOVERED: Duration = Duration::from_secs(1);
/// Connections that a thread gives away in one cycle, and at how many it looks for that.
const GIVES: usize = 64;
const GIVE_LOOKS: usize = 1024;
/// How often a thread takes part in looking where packets arrive.
const FOLLOW_EVERY: Duration = Duration::from_millis(100);

/// How a thread uses another one's queue.
pub(crate) enum Theirs {
    Tcp { socket: Arc<TcpListener>, listener: Listener, window_bytes: usize },
    Udp(Udp),
}

/// One thread's part in helping.
pub(crate) struct Helper {
    board: Arc<Board>,
    me: usize,
    balancer: Balancer,
    /// by thread, its queues in the board's order; none of its own
    theirs: Vec<Vec<Theirs>>,
    /// with which queue of a victim to begin
    begin: usize,
    /// the last look around found a victim
    seen: bool,
    /// it slept to its limit, and has had nothing to do since
    rested: bool,
    look_at: Instant,
    /// at whom to look first
    next: usize,
    follow_at: Instant,
    /// what was taken away when this thread failed, and when it is given back
    left: Vec<Move>,
    was_down: bool,
    back_at: Option<Instant>,
    gift: Option<Gift>,
    /// the engine drains: everybody looks after himself
    retired: bool,
    sharing: Arc<Sharing>,
}

/// Connections that are still to be given away.
#[derive(Debug)]
struct Gift {
    to: usize,
    count: usize,
    /// each goes to the owner of its group, whoever asked; None: any to who asked
    whose: Option<Whose>,
    /// where to look for them next, and at how many places
    place: usize,
    looks: usize,
}

impl Helper {
    pub(crate) fn new(
        board: Arc<Board>,
        me: usize,
        config: &Config,
        theirs: Vec<Vec<Theirs>>,
        sharing: Arc<Sharing>,
    ) -> Helper {
        let balancer = Balancer::new(me, board.threads(), policy(config));
        let (look_at, follow_at) = (Instant::ZERO, Instant::ZERO);
        Helper {
            board,
            me,
            balancer,
            theirs,
            begin: 0,
            seen: false,
            rested: false,
            look_at,
            next: 0,
            follow_at,
            left: Vec::new(),
            was_down: false,
            back_at: None,
            gift: None,
            retired: false,
            sharing,
        }
    }

    /// The thread's service panicked: a burst of another's that was in hand is lost, and what was to be given away has gone with its
    /// table.
    pub(crate) fn recover(&mut self, counters: &Counters) {
        self.gift = None;
        for theirs in self.theirs.iter_mut().flatten() {
            if let Theirs::Udp(udp) = theirs {
                udp.recover(counters);
            }
        }
    }

    /// The thread does not run until it is started again.
    pub(crate) fn go_down(&mut self) {
        let moved = self.board.go_down(self.me);
        self.sharing.groups_left.add(moved.len() as u64);
        self.left.extend(moved);
        (self.was_down, self.back_at) = (true, None);
    }

    /// The thread's loop begins.
    pub(crate) fn come_up(&mut self, now: Instant) {
        self.board.come_up(self.me);
        // also one that had no group: its processor was nobody's meanwhile
        self.back_at = std::mem::take(&mut self.was_down).then_some(now + RECOVERED);
    }

    /// From here on the thread neither helps nor is helped; what was on its way to it still comes.
    pub(crate) fn retire(&mut self) {
        self.retired = true;
        (self.back_at, self.gift) = (None, None);
    }

    fn steals(&self) -> bool {
        !self.retired && self.balancer.policy().steal
    }

    /// When it has something to do whatever comes.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.back_at
    }

    /// Something told the thread to look around at once.
    pub(crate) fn look_soon(&mut self) {
        self.look_at = Instant::ZERO;
    }

    /// Goes to sleep: how long it may at most.
    pub(crate) fn go_to_sleep(&mut self) -> Option<Duration> {
        if !self.steals() {
            return None;
        }
        self.sharing.busy.set(0);
        self.sharing.backlog.set(0);
        self.balancer.nap(self.board.go_to_sleep(self.me, self.rested))
    }

    /// Woken. `to_work`: there is something of its own to do; `told`: by whatever it be, not by its limit.
    pub(crate) fn wake_up(&mut self, to_work: bool, told: bool) {
        if self.steals() {
            self.rested = !told;
            self.board.wake_up(self.me, to_work);
        }
    }

    /// Looks around, if it is time to; whether there is something to steal. `idle`: the thread would sleep otherwise.
    pub(crate) fn looks(&mut self, now: Instant, idle: bool) -> bool {
        if self.retired {
            return false;
        }
        if now >= self.look_at {
            self.look_at = now + LOOK_EVERY;
            self.tend(now);
            if !self.steals() {
                return false;
            }
            self.look_around(now, idle);
            self.seen = self.balancer.victim(true).is_some();
        }
        self.seen && self.balancer.victim(idle).is_some()
    }

    /// At how many others one look looks.
    fn others_a_look(&self) -> usize {
        let each = self.theirs.iter().map(Vec::len).max().unwrap_or(0);
        (LOOK_QUEUES / each.max(1)).max(1)
    }

    fn look_around(&mut self, now: Instant, idle: bool) {
        let own = if idle { Look::default() } else { self.look(self.me, false) };
        self.balancer.on_look(self.me, now, own);
        for thread in in_turn(self.board.threads(), self.me, self.next, self.others_a_look()) {
            let look = self.look(thread, idle);
            self.balancer.on_look(thread, now, look);
            self.next = thread + 1;
        }
        let busy = self.balancer.is_busy(self.me);
        self.sharing.busy.set(busy.into());
        self.sharing.backlog.set(own.waiting.into());
        if busy && own.waiting > 0 {
            self.board.wake_one(self.me);
        }
    }

    /// One look. Who has work looks again soon: of who keeps up it need not ask the kernel what has come since, a system call for each queue
    /// and lines of the owner's. Who is about to sleep has to know.
    fn look(&self, thread: usize, idle: bool) -> Look {
        let late = self.balancer.is_late(thread);
        let glance = if idle || late { None } else { self.board.glance(thread, self.balancer.cycles(thread)) };
        glance.unwrap_or_else(|| self.board.look(thread, late))
    }

    /// What is due now and then: groups given back, taken over, made to follow their packets.
    fn tend(&mut self, now: Instant) {
        if self.back_at.is_some_and(|at| now >= at) {
            self.back_at = None;
            if let Some(mut table) = self.board.table() {
                table.come_back(self.me, &self.left);
            }
            self.left.clear();
        }
        if self.balancer.interval_is_over(now) {
            if self.balancer.has_rested(now) {
                self.give_back(1);
            }
            for thread in 0..self.board.threads() {
                if let Some(counts) = self.board.scheduled(thread) {
                    self.balancer.on_scheduled(thread, now, counts);
                }
            }
            if let Some(relief) = self.balancer.poll_migration(now) {
                self.relieve(relief);
            } else if self.balancer.may_give_back(now) {
                self.give_back(BACK_PART);
            }
        }
        if now >= self.follow_at {
            self.follow_at = now + FOLLOW_EVERY;
            if let Some(mut table) = self.board.table() {
                if table.is_due(now) {
                    table.follow_arrivals();
                }
                self.sharing.follows.set(table.follows().into());
                self.sharing.groups.set(table.count(self.me) as u64);
            }
        }
    }
}

/// So many of the threads but `me`, from `next` on and round the end.
fn in_turn(threads: usize, me: usize, next: usize, most: usize) -> impl Iterator<Item = usize> {
    (0..threads).map(move |n| (next + n) % threads).filter(move |thread| *thread != me).take(most)
}

impl Helper {
    /// Gives back this part of what it took over.
    fn give_back(&mut self, part: usize) {
        if let Some(mut table) = self.board.table() {
            self.sharing.groups_returned.add(table.give_back(self.me, part) as u64);
        }
    }

    /// Takes over groups, and asks for connections.
    fn relieve(&mut self, relief: Relief) {
        if let Some(mut table) = self.board.table() {
            let taken = table.take_over(relief, self.me);
            self.sharing.groups_taken.add(taken as u64);
        }
        if relief.part > 0 {
            self.board.ask(self.me, relief);
        }
    }

    /// Takes in what another thread has asked for, with `places` in the table and `connections` in them.
    fn heed(&mut self, now: Instant, places: usize, connections: usize) {
        let Some((to, part)) = self.board.asked(self.me) else { return };
        if self.retired {
            return;
        }
        self.balancer.on_relieved(now);
        // those of groups that have gone, where that can be told
        let whose = self.board.table().and_then(|table| table.whose());
        let part = if whose.is_some() { WHOLE } else { part };
        let count = (connections as u64 * u64::from(part) / u64::from(WHOLE)) as usize;
        let place = self.gift.as_ref().map_or(0, |gift| gift.place);
        self.gift = Some(Gift { to, count, whose, place, looks: places });
    }
}

impl Loop<'_> {
    /// Takes in the connections that others have given to this thread.
    pub(crate) fn receive_gifts<S: Service>(&mut self, service: &mut S) -> bool {
        let Some(helper) = &self.thread.helper else { return false };
        let parcels = helper.board.given(helper.me);
        let some = !parcels.is_empty();
        for parcel in parcels {
            let token = Token(self.first_connection + self.table.next_index() as usize);
            if self.table.arrive(parcel, (self.thread.poll.registry(), token), service) {
                self.thread.sharing.connections_taken.add(1);
            } else {
                self.thread.sharing.connections_lost.add(1);
            }
        }
        some
    }

    /// Gives others the connections that they have asked for; whether there are more to be given.
    pub(crate) fn give<S: Service>(&mut self, now: Instant, most: usize, service: &mut S) -> bool {
        let Some(helper) = &mut self.thread.helper else { return false };
        helper.heed(now, self.table.places(), self.table.len());
        let Some(mut gift) = helper.gift.take() else { return false };
        if !service.can_move() {
            return false;
        }
        let (me, board) = (helper.me, &helper.board);
        let mut parcels: Vec<Vec<_>> = (0..board.threads()).map(|_| Vec::new()).collect();
        let room: Vec<usize> = (0..board.threads()).map(|to| most.saturating_sub(board.connections(to))).collect();
        let mut given = 0;
        for _ in 0..GIVE_LOOKS.min(gift.looks) {
            if given == GIVES.min(gift.count) {
                break;
            }
            gift.looks -= 1;
            gift.place = (gift.place + 1) % self.table.places();
            let to = Cell::new(gift.to);
            let goes = |at: &Addresses| {
                if let Some(whose) = &gift.whose {
                    to.set(whose.thread_of(at.peer, at.local).unwrap_or(me));
                }
                to.get() != me && parcels[to.get()].len() < room[to.get()]
            };
            let parcel = self.table.depart(gift.place, goes, self.thread.poll.registry(), service);
            given += usize::from(parcel.is_some());
            parcels[to.get()].extend(parcel);
        }
        gift.count -= given;
        for (to, parcels) in parcels.iter_mut().enumerate().filter(|(_, parcels)| !parcels.is_empty()) {
            board.give(to, parcels);
        }
        let more = gift.count > 0 && gift.looks > 0;
        helper.gift = more.then_some(gift);
        more
    }

    /// Whether a busy thread has something for this one, which would sleep otherwise.
    pub(crate) fn sees_a_victim(&mut self) -> bool {
        let now = self.clock.now();
        self.thread.helper.as_mut().is_some_and(|helper| helper.looks(now, true))
    }

    /// Takes `n` of its own into account, and steals what the policy says.
    pub(crate) fn help<S: Service>(&mut self, now: Instant, own: u32, idle: bool, service: &mut S) -> bool {
        let Thread { helper: Some(helper), udp, tcp, counters, .. } = &mut *self.thread else { return false };
        let leaves = udp.iter().any(|udp| udp.readable) || tcp.iter().any(|tcp| tcp.readable);
        counters.leaves.set(leaves.into());
        helper.balancer.on_local(own);
        // idle, it has just looked
        if !idle && !helper.looks(now, false) {
            return false;
        }
        let mut worked = false;
        for _ in 0..if idle { STEALS } else { 1 } {
            let Some(helper) = &self.thread.helper else { break };
            let Some(victim) = helper.balancer.victim(idle) else { break };
            let stolen = self.steal(victim, now, service);
            if let Some(helper) = &mut self.thread.helper {
                helper.balancer.on_stolen(victim, stolen);
            }
            worked |= stolen > 0;
        }
        worked
    }

    /// Takes one connection or one burst from a queue of `victim`; 0 when there was none.
    fn steal<S: Service>(&mut self, victim: usize, now: Instant, service: &mut S) -> u32 {
        let Loop { thread, table, batch, config, first_connection, .. } = self;
        let Thread { helper, poll, counters, sampler, sharing, .. } = &mut **thread;
        let Some(helper) = helper else { return 0 };
        let theirs = &mut helper.theirs[victim];
        let count = theirs.len();
        helper.begin = helper.begin.wrapping_add(1);
        for n in 0..count {
            match &mut theirs[helper.begin.wrapping_add(n) % count] {
                Theirs::Udp(udp) => {
                    let received = udp.turn(now, config.batch, batch, service, counters);
                    if received > 0 {
                        sharing.received_stolen.add(received as u64);
                        return 1;
                    }
                }
                // it would turn away what its owner may have room for
                Theirs::Tcp { .. } if table.is_full() => {}
                Theirs::Tcp { socket, listener, window_bytes } => {
                    let registry = poll.registry();
                    let mut door = Door { registry, counters, sampler, table, first_connection: *first_connection };
                    if door.take(socket, *listener, *window_bytes, service) == Taken::One {
                        sharing.accepted_stolen.add(1);
                        return 1;
                    }
                }
            }
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{STOP, Stage, WAKE};
    use crate::selector::Table;
    use crate::tcp::WATCHED;
    use app::{Connection, Luggage, Streams};
    use base::Clock;
    use mio::{Poll, Waker};

    /// Ends its thread's loop with so many cycles.
    #[derive(Default)]
    struct Moves {
        stage: Arc<Stage>,
        cycles: u32,
    }

    impl Service for Moves {
        fn cycle(&mut self, _: Instant) {
            self.cycles = self.cycles.saturating_sub(1);
            if self.cycles == 0 {
                self.stage.go_on_to(STOP);
            }
        }

        fn knock<C: Streams>(&mut self, _: Instant, calls: &mut C, _: Listener, connection: Connection, _: Addresses) {
            calls.accept(connection, 0).unwrap();
        }

        fn can_move(&self) -> bool {
            true
        }

        fn arrive<C: Streams>(&mut self, _: Instant, _: &mut C, _: Connection, _: Luggage) -> Option<u64> {
            Some(0)
        }
    }

    #[test]
    fn a_look_at_some_goes_on_behind_the_last() {
        let mut next = 0;
        let mut seen = Vec::new();
        for _ in 0..4 {
            let now: Vec<usize> = in_turn(6, 2, next, 2).collect();
            next = now[1] + 1;
            seen.push(now);
        }
        assert_eq!(seen, [[0, 1], [3, 4], [5, 0], [1, 3]]);
        assert_eq!(in_turn(4, 1, 3, 9).collect::<Vec<_>>(), [3, 0, 2]);
        assert_eq!(in_turn(1, 0, 1, 9).count(), 0);
    }

    /// Without a socket.
    fn thread(poll: Poll, waker: Arc<Waker>, counters: Arc<Counters>, helper: Helper) -> Thread {
        let (sharing, cycles) = (helper.sharing.clone(), Arc::new(app::Cycles::new("sockets", helper.me)));
        Thread {
            udp: Vec::new(),
            tcp: Vec::new(),
            poll,
            waker,
            counters,
            sharing,
            helper: Some(helper),
            sampler: None,
            cycles,
        }
    }

    #[test]
    fn connections_move_to_a_thread_that_accepts_none() {
        let config = Config { threads: 2, ..Config::default() };
        let counters = Arc::<Counters>::default();
        let polls = [(); 2].map(|()| Poll::new().unwrap());
        let wakers = [0, 1].map(|at: usize| Arc::new(Waker::new(polls[at].registry(), WAKE).unwrap()));
        let places = wakers.iter().map(|waker| (waker.clone(), counters.clone(), Vec::new())).collect();
        let board = Arc::new(Board::new(places, None));
        let mut threads = polls.into_iter().zip(wakers).enumerate().map(|(me, (poll, waker))| {
            let (theirs, sharing) = (vec![Vec::new(), Vec::new()], Arc::new(Sharing::new(me)));
            thread(poll, waker, counters.clone(), Helper::new(board.clone(), me, &config, theirs, sharing))
        });
        let (mut from, mut to) = (threads.next().unwrap(), threads.next().unwrap());
        // as one that a service asked for
        let peer = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = mio::net::TcpStream::connect(peer.local_addr().unwrap()).unwrap();
        let _accepted = peer.accept().unwrap();
        let addresses = Addresses { local: stream.local_addr().unwrap(), peer: peer.local_addr().unwrap() };
        from.poll.registry().register(&mut stream, Token(2), WATCHED).unwrap();
        let mut giver = Loop::new(&mut from, &config, Clock::start());
        giver.table.knock(stream, Listener(0), addresses, 1 << 16, &mut Moves::default());
        let parcel = giver.table.depart(0, |_| true, giver.thread.poll.registry(), &mut Moves::default());
        board.give(1, &mut vec![parcel.expect("a connection at rest")]);
        let mut service = Moves { cycles: 2, ..Moves::default() };
        let stage = service.stage.clone();
        Loop::new(&mut to, &config, Clock::start()).run(&stage, &mut service);
        let sharing = &to.sharing;
        assert_eq!((sharing.connections_taken.get(), sharing.connections_lost.get()), (1, 0));
    }

    #[test]
    fn who_rested_gives_back_what_it_took_over() {
        let poll = Poll::new().unwrap();
        let waker = Arc::new(Waker::new(poll.registry(), WAKE).unwrap());
        let places = (0..2).map(|_| (waker.clone(), Arc::default(), Vec::new())).collect();
        let mut table = Table::told_to_nobody(64, 2, true);
        assert_eq!(table.take_over(Relief { from: 1, part: WHOLE }, 0), 64);
        let board = Arc::new(Board::new(places, Some(table)));
        let (config, theirs) = (Config { threads: 2, ..Config::default() }, vec![Vec::new(), Vec::new()]);
        let mut helper = Helper::new(board, 0, &config, theirs, Arc::new(Sharing::new(0)));
        // with work all the time a quarter of them at the end of an interval, as nothing keeps them here
        let returned = [0, 100, 110, 5000, 9000].map(|ms| {
            helper.looks(Instant::from_nanos(ms * 1_000_000), false);
            helper.sharing.groups_returned.get()
        });
        assert_eq!(returned, [0, 16, 16, 64, 64]);
    }

    #[test]
    fn one_that_had_no_group_when_it_went_down_comes_back_as_well() {
        let poll = Poll::new().unwrap();
        let waker = Arc::new(Waker::new(poll.registry(), WAKE).unwrap());
        let places = (0..2).map(|_| (waker.clone(), Arc::default(), Vec::new())).collect();
        let board = Arc::new(Board::new(places, None));
        let (config, theirs) = (Config { threads: 2, ..Config::default() }, vec![Vec::new(), Vec::new()]);
        let mut helper = Helper::new(board, 0, &config, theirs, Arc::new(Sharing::new(0)));
        helper.come_up(Instant::ZERO);
        assert_eq!(helper.deadline(), None);
        helper.go_down();
        helper.come_up(Instant::ZERO);
        assert_eq!(helper.deadline(), Some(Instant::ZERO + RECOVERED));
        assert!(!helper.looks(Instant::ZERO + RECOVERED, false));
        assert_eq!(helper.deadline(), None);
    }

    #[test]
    fn what_was_to_be_given_away_does_not_outlive_its_table() {
        let config = Config { threads: 2, ..Config::default() };
        let poll = Poll::new().unwrap();
        let waker = Arc::new(Waker::new(poll.registry(), WAKE).unwrap());
        let counters = Arc::<Counters>::default();
        let places = (0..2).map(|_| (waker.clone(), counters.clone(), Vec::new())).collect();
        let board = Arc::new(Board::new(places, None));
        let sharing = Arc::new(Sharing::new(0));
        let mut helper = Helper::new(board.clone(), 0, &config, vec![Vec::new(), Vec::new()], sharing.clone());
        board.ask(1, Relief { from: 0, part: WHOLE / 2 });
        helper.heed(Instant::ZERO, 8, 8);
        assert_eq!(helper.gift.as_ref().map(|gift| (gift.to, gift.count, gift.looks)), Some((1, 4, 8)));
        // as a thread does whose service has panicked
        helper.recover(&counters);
        helper.go_down();
        let mut thread = thread(poll, waker, counters, helper);
        let mut next = Loop::new(&mut thread, &config, Clock::start());
        assert!(!next.give(Instant::ZERO, 9, &mut Moves::default()), "the new table has no places");
    }
}
