//! Frames and flow groups between the threads of one interface.
//!
//! A frame that a thread received of another's group crosses over a ring to the owner: its handle, not its bytes. From any
//! thread to any other there is one ring, with one producer and one consumer.
//!
//! A group moves so that nothing is lost and no frame overtakes another (IX section 4.3 has the same three parts):
//!
//! 1. The owner lets go: it takes the group's connections out of its stack, names the new owner in the table, and sends a
//!    parcel. From then on it sends what still reaches it behind the parcel (*forward*).
//! 2. The new owner takes the parcel in and goes on with what the old one forwards. Frames of the group that reach it by any other
//!    way are younger than what others may have sent to the old owner before the table changed, so they wait (*in transition*).
//! 3. Every other thread is asked, and answers over the same ring that carried its frames to the old owner. With the last answer
//!    all old frames were forwarded; the old owner says so behind them, and what waited is taken (*replay*). A thread that does not
//!    answer is waited for a while and no longer, and so is an old owner that does not come round ([`leaving`]).
//!
//! What arrives for a thread that is held up others take for it ([`help`]). Where the NIC's table can be written, it follows then ([`turning`]).
//! A thread that is not needed gives all its groups away, and its queue to another thread ([`duty`]).
//!
//! Whoever sleeps is woken for what is sent to it. Before a ring is full what is to be forwarded waits at the device, within bounds ([`room`]);
//! a ring that is full all the same drops frames, counted, as a NIC's does; notes wait.

mod duty;
mod help;
mod leaving;
mod room;
mod sending;
mod turning;

use crate::balance::{Advice, Balance, Board, Relief};
use crate::bell::Bell;
use crate::counters::Crossings;
use crate::cycle::Parcel;
use crate::owners::{Ours, Owners};
use crate::pulse::Waits;
use crate::steering::Steering;
use base::balance::Policy;
use base::ring::{Consumer, Producer, ring};
use base::{Burst, Frame, Instant};
use duty::Duty;
pub(crate) use help::Helpers;
use help::Helping;
use leaving::{Leaving, Rounds};
use room::{Grace, Shortage};
use std::collections::VecDeque;
use std::sync::Arc;
use turning::{Turner, Turns};
use wire::flow::{is_datagram, is_plain, is_pure_ack};

/// What waits between two threads at most.
const RING_ITEMS: usize = 2048;
/// Frames of a group in transition that wait at most; what comes beyond is taken at once, out of order.
const WAITING_FRAMES: usize = 1024;
/// Groups that leave between two bursts at most, and that are asked for: a thread that is added has its share of 4096 within some bursts.
const DEPARTURES: usize = 256;

/// What goes from one thread to another.
#[derive(Debug)]
enum Item {
    Frame(Frame),
    Note(Box<Note>),
}

const _: () = assert!(size_of::<Item>() == 16);

#[derive(Debug)]
enum Note {
    /// to the owner: let the receiver have the group
    Wanted { group: u16, by: u16 },
    /// to a busy thread: let the receiver have groups that bring so many frames of those that it has shown
    Relieved { frames: u32, of: u32, by: u16 },
    /// to the new owner: what belongs to the group, and what it weighs in the balance
    Parcel { group: u16, number: u32, at: Instant, parcel: Parcel, weight: u32 },
    /// to the others: answer behind all frames of the group that you have sent here
    Asked { group: u16, number: u32 },
    /// the answer
    Answered { group: u16, number: u32 },
    /// to the new owner: nothing older will come
    Settled { group: u16, number: u32 },
    /// to the thread of a queue: the NIC brings the group to the sender's now
    Turned { group: u16, number: u32 },
    /// the answer: what came before has been forwarded
    Drained { group: u16, number: u32 },
    /// to a thread on duty: let the receiver, who is now too, have its share of your groups
    Share { by: u16 },
    /// to the others: answer behind all frames that came from here, which are the last of this queue
    Fence { queue: u16, number: u32 },
    /// the answer
    Fenced { queue: u16, number: u32 },
    /// to who serves the queue from now on: nothing older of it is anywhere. Which of its requests that answers; of no meaning to another
    Queue { queue: u16, asked: u32 },
    /// to who serves the queue: its own thread is on duty again, and asks for the so manieth time
    Back { queue: u16, asked: u32 },
}

/// A group on its way to this thread.
#[derive(Debug)]
struct Coming {
    group: u16,
    /// who forwards, once its parcel was taken in
    from: Option<u16>,
    /// which of that one's moves it is
    number: u32,
    /// how often that one had come round, and when it is not waited for any more if it does not again; None until the clock is read
    heard: Option<(u32, Instant)>,
    /// it is here, and only the NIC's table is to follow
    turns: Option<Turns>,
    /// younger frames
    waiting: Vec<Frame>,
}

impl Coming {
    fn new(group: u16, turns: Option<Turns>) -> Coming {
        Coming { group, from: None, number: 0, heard: None, turns, waiting: Vec::new() }
    }

    /// Whether what comes by this way (None: the own queue) is taken at once.
    fn takes(&self, from: Option<u16>) -> bool {
        match self.turns {
            None => from.is_some() && self.from == from,
            Some(turns) => from.is_some() || turns == Turns::Open,
        }
    }
}

/// A group that another thread wants of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Departure {
    /// which
    pub(crate) group: u16,
    /// for whom
    pub(crate) to: u16,
}

/// One thread's ends of the rings.
#[derive(Debug)]
pub(crate) struct Crossing {
    me: u16,
    owners: Arc<Owners>,
    out: Vec<Option<Producer<Item>>>,
    into: Vec<Option<Consumer<Item>>>,
    /// notes that found a ring full, those to a thread in their order
    unsent: VecDeque<(u16, Box<Note>)>,
    /// groups to be asked for
    wishes: VecDeque<u16>,
    /// whose ring is looked at first
    next: usize,
    /// whether a group is this thread's and settled
    mine: Box<[bool]>,
    /// behind the last group that was given away for relief
    chosen: u16,
    coming: Vec<Coming>,
    leaving: Vec<Leaving>,
    /// groups that have left since the start
    moves: u32,
    rounds: Arc<Rounds>,
    /// frames that waited for their group and go first
    replayed: VecDeque<Frame>,
    /// groups that others want, to be given away before the next burst
    departures: VecDeque<Departure>,
    /// what came with groups, to be taken in before the burst that came behind it
    arrivals: VecDeque<(Instant, Parcel)>,
    balance: Option<Balance>,
    helping: Helping,
    duty: Duty,
    grace: Grace,
    shortages: Box<[Shortage]>,
    turner: Option<Turner>,
    /// threads that were sent something since the last [`Crossing::ring_bells`]
    touched: Vec<bool>,
    bells: Vec<Arc<Bell>>,
    counters: Arc<Crossings>,
}

/// Every thread's ends, for threads with these bells, the first of which is thread `first` of all; `balance`: groups move by
/// themselves, by this policy, and threads help each other; `steering`: the NIC's table follows.
pub(crate) fn crossings(
    owners: &Arc<Owners>,
    balance: Option<&Policy>,
    steering: Option<&Arc<Steering>>,
    first: usize,
    bells: &[Arc<Bell>],
    helpers: &Arc<Helpers>,
) -> Vec<Crossing> {
    let threads = owners.threads();
    let (board, rounds) = (Board::new(threads), Rounds::new(threads));
    let balance = |me| balance.map(|policy| Balance::new(me, owners.groups().count(), policy.clone(), board.clone()));
    assert_eq!(threads, bells.len(), "a bell for each thread");
    if let Some(steering) = steering {
        assert_eq!(steering.entries(), owners.groups().count(), "a flow group for each entry of the NIC's table");
        steering.set_bells(bells);
    }
    let make = |me: usize| Crossing {
        me: me as u16,
        owners: owners.clone(),
        out: Vec::with_capacity(threads),
        into: Vec::with_capacity(threads),
        unsent: VecDeque::new(),
        wishes: VecDeque::new(),
        next: 0,
        mine: (0..owners.groups().count()).map(|group| usize::from(owners.owner(group as u16)) == me).collect(),
        chosen: 0,
        coming: Vec::new(),
        leaving: Vec::new(),
        moves: 0,
        rounds: rounds.clone(),
        replayed: VecDeque::new(),
        departures: VecDeque::new(),
        arrivals: VecDeque::new(),
        balance: balance(me),
        helping: Helping::new(helpers.clone()),
        duty: Duty::default(),
        grace: Grace::new(),
        shortages: vec![Shortage::default(); threads].into(),
        turner: steering.map(|steering| Turner::new(me as u16, steering.clone())),
        touched: vec![false; threads],
        bells: bells.to_vec(),
        counters: Arc::new(Crossings::new(owners.clone(), me as u16, first + me)),
    };
    let mut all: Vec<Crossing> = (0..threads).map(make).collect();
    for from in 0..threads {
        for to in 0..threads {
            let (out, into) = (from != to).then(|| ring(RING_ITEMS)).unzip();
            all[from].out.push(out);
            all[to].into.push(into);
        }
    }
    all
}

impl Crossing {
    /// The table.
    pub(crate) fn owners(&self) -> &Arc<Owners> {
        &self.owners
    }

    /// Which groups are this thread's.
    pub(crate) fn ours(&self) -> Arc<dyn stack::Ours> {
        Arc::new(Ours { owners: self.owners.clone(), me: self.me })
    }

    /// What it counts.
    pub(crate) fn counters(&self) -> &Arc<Crossings> {
        &self.counters
    }

    /// The thread is about to sleep unless something waits for it, which is told; while it holds groups back it may always. One that
    /// sleeps is not busy.
    pub(crate) fn may_rest(&mut self, holds: bool) -> bool {
        self.counters.busy.set(0);
        self.counters.backlog.set(0);
        holds || !self.has_work()
    }

    fn has_work(&mut self) -> bool {
        !self.replayed.is_empty()
            || self.duty.wants_another_look()
            || self.put_aside() > 0
            || ((!self.departures.is_empty() || !self.wishes.is_empty()) && self.has_room())
            || self.into.iter_mut().flatten().any(|ring| ring.waiting(1) > 0)
    }

    /// Groups to be given away now, each by [`Crossing::send`].
    pub(crate) fn departing(&mut self) -> usize {
        // what is replayed may be of a group that is to go
        let waiting = if self.is_replaying() { 0 } else { self.departures.len().min(DEPARTURES) };
        if waiting > 0 && self.has_room() { waiting } else { 0 }
    }

    /// The next of them.
    pub(crate) fn departure(&mut self) -> Option<Departure> {
        while let Some(departure) = self.departures.pop_front() {
            // who does not come round would serve it later than we do, and asks again when he does
            if self.may_depart(departure.group, departure.to) && !self.is_stuck(departure.to) {
                return Some(departure);
            }
        }
        None
    }

    /// What came with a group and is to be taken in before the frames that [`Crossing::receive`] gave, and when it was sent: what
    /// is done with it is done no earlier, though this thread's cycle may have begun before.
    pub(crate) fn arrival(&mut self) -> Option<(Instant, Parcel)> {
        self.arrivals.pop_front()
    }

    /// Asks the owner of `group` to hand it over, soon. Nothing comes of it when it is ours, or its owner has changed by then, or this
    /// thread has not taken what that one has sent for a while.
    pub(crate) fn want(&mut self, group: u16) {
        if self.is_on_duty() {
            self.wishes.push_back(group);
        }
    }

    #[cold]
    fn ask(&mut self) {
        if !self.has_room() {
            return;
        }
        for _ in 0..DEPARTURES.min(self.wishes.len()) {
            let Some(group) = self.wishes.pop_front() else { return };
            let owner = self.owners.owner(group);
            if owner != self.me {
                self.note(owner, Note::Wanted { group, by: self.me });
            }
        }
    }

    /// Whether the balance is to be told for how long the thread has waited for its processor, by [`Crossing::on_delay`].
    #[inline]
    pub(crate) fn wants_delay(&self, now: Instant) -> bool {
        self.balance.as_ref().is_some_and(|balance| balance.wants_delay(now))
    }

    /// So long, in all, and for how long it was busy.
    pub(crate) fn on_delay(&mut self, now: Instant, waits: Waits, busy_ns: u64) {
        if let Some(balance) = &mut self.balance {
            balance.on_delay(now, waits, busy_ns);
        }
    }

    /// Looks at the load, with so many frames that wait in the port, and does what the balance asks for. What other threads have
    /// sent waits too: a thread whose frames all come that way would otherwise never seem busy, and ask for more for ever. How many
    /// frames wait in all.
    #[inline]
    pub(crate) fn look(&mut self, now: Instant, waiting: usize) -> usize {
        // looked at behind the port: who takes something there puts it aside before the next look at it
        let waiting = waiting + self.put_aside();
        self.look_anew();
        self.look_at_rings(now);
        self.look_at_leaving(now);
        self.look_at_coming(now);
        self.follow_up(now, waiting);
        self.attend(now, waiting);
        let sent: usize = self.into.iter_mut().flatten().map(|ring| ring.waiting(usize::MAX)).sum();
        let waiting = waiting + self.waits_elsewhere() + sent + self.replayed.len();
        if let Some(balance) = self.balance.as_mut().filter(|_| self.duty.is_on())
            && let Some(advice) = balance.look(now, waiting)
        {
            self.take_advice(advice);
        }
        waiting
    }

    #[cold]
    fn take_advice(&mut self, advice: Advice) {
        match advice {
            Advice::Nothing => {}
            Advice::Ask(Relief { from, frames, of, held_up }) => {
                self.note_once(from, Note::Relieved { frames, of, by: self.me });
                if held_up {
                    self.offer(from);
                }
            }
            Advice::CallForHelp => {
                let me = usize::from(self.me);
                self.touched.iter_mut().enumerate().for_each(|(at, touched)| *touched |= at != me);
            }
        }
        if let Some(balance) = &self.balance {
            let held_up = balance.is_held_up();
            let (busy, backlog) = balance.shown();
            self.counters.busy.set(u64::from(busy));
            self.counters.backlog.set(u64::from(backlog));
            self.review_help(held_up);
        }
    }

    /// Chooses groups for a thread that has time.
    #[cold]
    fn relieve(&mut self, by: u16, frames: [u32; 2]) {
        let Some(balance) = &self.balance else { return };
        if !self.departures.is_empty() || !self.is_on_duty() {
            return; // what was asked for before is on its way
        }
        // those whose frames come to its queue cross over no longer
        let (may_depart, preferred) = (|group| self.may_depart(group, by), |group| self.is_brought_to(group, by));
        let chosen = balance.choose(frames, self.chosen, may_depart, preferred);
        self.chosen = chosen.last().map_or(self.chosen, |group| group.wrapping_add(1));
        self.departures.extend(chosen.into_iter().map(|group| Departure { group, to: by }));
    }

    /// Whether the group is this thread's to give away.
    fn may_depart(&self, group: u16, to: u16) -> bool {
        self.mine[usize::from(group)]
            && to != self.me
            && usize::from(to) < self.owners.threads()
            // a group whose old frames may still be on their way here stays until they have come
            && !self.leaving.iter().any(|leaving| leaving.group == group)
    }

    /// Gives the group with what belonged to it away.
    pub(crate) fn send(&mut self, at: Instant, Departure { group, to }: Departure, parcel: Parcel) {
        debug_assert!(self.may_depart(group, to), "group {group} is not ours");
        self.mine[usize::from(group)] = false;
        let weight = self.balance.as_mut().map_or(0, |balance| balance.departed(group));
        self.moves = self.moves.wrapping_add(1);
        let number = self.moves;
        self.note(to, Note::Parcel { group, number, at, parcel, weight });
        self.owners.hand(group, to);
        self.ask_behind(at, group, to, number);
        self.counters.groups_out.add(1);
    }

    /// Sends the frames of `received` that are others' to them, keeps those that must wait, and appends the rest to `rx`, in their
    /// order. What finds no room is appended to `lost`.
    pub(crate) fn sort(&mut self, received: &mut Burst, rx: &mut Burst, lost: &mut Burst) {
        if let Some(turner) = &mut self.turner {
            turner.took(received.len());
        }
        for frame in received.drain(..) {
            match self.owners.group(frame.bytes()) {
                None => rx.push(frame),
                Some(group) => self.place(group, frame, None, rx, lost),
            }
        }
    }

    /// Takes what others have sent, until `rx` has `limit` frames. How many frames and notes it saw.
    pub(crate) fn receive(&mut self, rx: &mut Burst, limit: usize, lost: &mut Burst) -> usize {
        self.send_notes();
        if !self.wishes.is_empty() {
            self.ask();
        }
        let limit = limit.min(rx.capacity());
        let mut seen = self.replay(rx, limit);
        let (threads, first) = (self.into.len(), self.next);
        for from in (0..threads).map(|n| (first + n) % threads) {
            let before = seen;
            // nothing overtakes what is replayed
            while rx.len() < limit && !lost.is_full() && self.replayed.is_empty() {
                let Some(item) = self.into[from].as_mut().and_then(Consumer::pop) else { break };
                seen += 1;
                match item {
                    Item::Frame(frame) => {
                        self.counters.frames_in.add(1);
                        match self.owners.group(frame.bytes()) {
                            None => rx.push(frame),
                            Some(group) => self.place(group, frame, Some(from as u16), rx, lost),
                        }
                    }
                    Item::Note(note) => {
                        self.take_note(from as u16, *note);
                        seen += self.replay(rx, limit);
                    }
                }
            }
            if seen > before {
                // however often there is room for none, the one behind the last that something was taken of is the next
                self.next = (from + 1) % threads;
            }
        }
        if self.duty.is_asked() {
            self.share_out();
        }
        seen
    }

    fn replay(&mut self, rx: &mut Burst, limit: usize) -> usize {
        let before = rx.len();
        while rx.len() < limit
            && let Some(frame) = self.replayed.pop_front()
        {
            rx.push(frame);
        }
        rx.len() - before
    }

    /// Whether frames of the own queue must wait for those that are replayed.
    pub(crate) fn is_replaying(&self) -> bool {
        !self.replayed.is_empty()
    }

    #[inline]
    fn place(&mut self, group: u16, frame: Frame, from: Option<u16>, rx: &mut Burst, lost: &mut Burst) {
        if self.mine[usize::from(group)] {
            if let Some(balance) = &mut self.balance {
                balance.took(group);
            }
            return rx.push(frame);
        }
        self.place_elsewhere(group, frame, from, rx, lost);
    }

    #[inline(never)]
    fn place_elsewhere(&mut self, group: u16, frame: Frame, from: Option<u16>, rx: &mut Burst, lost: &mut Burst) {
        let owner = self.owners.owner(group);
        if owner != self.me {
            if let Some(turner) = self.turner.as_mut().filter(|_| from.is_none()) {
                turner.on_foreign(group, frame.bytes());
            }
            // who asks hears something, whichever thread it is that answers
            if self.owners.hangs(owner) && is_datagram(frame.bytes()) {
                self.counters.orphans.add(1);
                return rx.push(frame);
            }
            return self.forward(owner, frame, lost);
        }
        let at = self.coming(group);
        let coming = &mut self.coming[at];
        if coming.takes(from) || coming.waiting.len() >= WAITING_FRAMES {
            return rx.push(frame);
        }
        if coming.turns == Some(Turns::Quiet)
            && self.turner.as_ref().is_some_and(|turner| turner.is_writing(group))
            && is_plain(frame.bytes())
        {
            coming.turns = Some(Turns::Begun);
        }
        // a sender that hears nothing for some milliseconds would send again
        if coming.turns.is_some() && is_pure_ack(frame.bytes()) {
            return rx.push(frame);
        }
        coming.waiting.push(frame);
        self.counters.waited.add(1);
    }

    fn coming(&mut self, group: u16) -> usize {
        self.coming.iter().position(|coming| coming.group == group).unwrap_or_else(|| {
            self.coming.push(Coming::new(group, None));
            self.coming.len() - 1
        })
    }

    fn take_note(&mut self, from: u16, note: Note) {
        self.duty.on_note();
        match note {
            Note::Wanted { group, by } => {
                if self.may_depart(group, by) {
                    self.departures.push_back(Departure { group, to: by });
                }
            }
            Note::Relieved { frames, of, by } => self.relieve(by, [frames, of]),
            Note::Parcel { group, number, at, parcel, weight } => {
                if let Some(balance) = &mut self.balance {
                    balance.arrived(group, weight);
                }
                let coming = self.coming(group);
                let coming = &mut self.coming[coming];
                (coming.from, coming.number) = (Some(from), number);
                self.arrivals.push_back((at, parcel));
                self.counters.groups_in.add(1);
            }
            Note::Asked { group, number } => self.note(from, Note::Answered { group, number }),
            Note::Answered { group, number } => self.take_answer(from, group, number),
            Note::Settled { group, number } => self.settle(from, group, number),
            Note::Turned { group, number } => self.drain(from, group, number),
            Note::Drained { group, number } => self.take_drained(group, number),
            Note::Share { by } => self.on_share(by),
            Note::Fence { queue, number } => self.note(from, Note::Fenced { queue, number }),
            Note::Fenced { queue, number } => self.take_fenced(from, queue, number),
            Note::Queue { queue, asked } => self.offer_queue(queue, asked),
            Note::Back { queue, asked } => self.give_back(queue, asked),
        }
    }

    /// Nothing older of a group will come from the thread that gave it.
    fn settle(&mut self, from: u16, group: u16, number: u32) {
        // it may be said when that one is not waited for any more, and the group has gone on
        let is = |coming: &Coming| coming.group == group && coming.from == Some(from) && coming.number == number;
        let Some(at) = self.coming.iter().position(is) else { return };
        let coming = self.coming.swap_remove(at);
        self.mine[usize::from(group)] = true;
        self.replayed.extend(coming.waiting);
        self.turn(group);
    }

    /// Every frame that is here or on its way here, at the end. What others send from then on goes home from there.
    pub(crate) fn clear(&mut self, mut give: impl FnMut(Frame)) {
        // gone with the last frame, which others see
        for mut ring in self.into.drain(..).flatten() {
            while let Some(item) = ring.pop() {
                if let Item::Frame(frame) = item {
                    give(frame);
                }
            }
        }
        self.clear_aside(&mut give);
        self.replayed.drain(..).for_each(&mut give);
        self.coming.iter_mut().for_each(|coming| coming.waiting.drain(..).for_each(&mut give));
    }
}

#[cfg(test)]
mod tests;
