//! The client library: the same service code, with this memory for an engine.
//!
//! [`run`] gives a service its events and lets it call [`Calls`], which answers at once from what it knows: how much credit a
//! connection has, which handles live. What a call comes to is written behind the calls before it; the dataplane takes them in their
//! order. Ranges of content are copied into the transmit area as there is credit, and each holds its version until the last byte
//! was copied. Nobody else writes what the dataplane reads meanwhile, but were it so, what is sent would be wrong and nothing else.
//!
//! When the dataplane ends, every connection is told dead and [`run`] returns.

mod budget;
mod calls;
mod outbox;
mod outward;
mod shared;

pub use calls::Calls;
pub use shared::{Attached, attach, attach_to};

use crate::layout::{self, ADDRESSES_BYTES, Event, EventKind, Handle, SEND_BYTES};
use crate::{GROUP, status};
use app::{Coming, Connection, Datagram, DeadReason, Ecn, Listener, Service, Waker};
use arrayvec::ArrayVec;
use base::counter::Report;
pub(crate) use shared::{Shared, Woken};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Events taken in one batch.
const BATCH: u32 = 64;
/// A thread that looks for events looks at the clock, which costs more, after so many looks.
const LOOKS_A_CLOCK: u32 = 16;
/// How often a sleeping thread looks whether the dataplane is still there.
const LIFE_EVERY: Duration = Duration::from_millis(100);
/// Batches after which a thread that never sleeps looks whether its counters are to be shown.
const SHOW_BATCHES: u32 = 256;
/// How long a thread sleeps that waits for the dataplane to take calls, which nobody tells it.
const BLOCKED_SLEEP: Duration = Duration::from_micros(200);

/// Runs a service for one thread of the application until the dataplane ends.
///
/// # Errors
/// What is shared is not what this version knows, or the thread cannot be placed. [`io::ErrorKind::ResourceBusy`]: this thread of the
/// grant has run a service already, whether that goes on or not.
pub fn run<S: Service>(attached: &Attached, service: S) -> io::Result<()> {
    run_while(attached, service, &AtomicBool::new(true))
}

/// The same, for one whose counters the server shows: it knows what they are called, by [`Status`](crate::Status).
///
/// # Errors
/// As [`run`].
pub fn run_showing<S: Service>(attached: &Attached, service: S, counters: &[Arc<dyn Report>]) -> io::Result<()> {
    run_until(attached, service, &AtomicBool::new(true), counters)
}

/// Runs a service until the dataplane ends, or `goes_on` is false; then without a word to either side.
///
/// # Errors
/// As [`run`].
pub fn run_while<S: Service>(attached: &Attached, service: S, goes_on: &AtomicBool) -> io::Result<()> {
    run_until(attached, service, goes_on, &[])
}

fn run_until<S: Service>(
    attached: &Attached,
    mut service: S,
    goes_on: &AtomicBool,
    counters: &[Arc<dyn Report>],
) -> io::Result<()> {
    attached.take()?;
    let shared = attached.shared()?;
    let woken = Arc::<Woken>::default();
    let waker = {
        let (shared, woken) = (shared.clone(), woken.clone());
        Waker::new(move || woken.wake(&shared))
    };
    let mut client = Client::new(shared.clone());
    service.begin(&waker);
    shared.pin()?;
    shared.attach();
    let spin = shared.spin();
    let (mut looked, mut idle_since, mut looks) = (Instant::now(), None::<Instant>, 0u32);
    let (mut shown, mut batches) = (Instant::now(), 0u32);
    status::show(&shared, counters);
    while goes_on.load(Ordering::Relaxed) {
        let worked = client.batch(&mut service, &woken);
        if worked {
            (idle_since, looks) = (None, 0);
            batches = batches.wrapping_add(1);
            if !counters.is_empty() && batches.is_multiple_of(SHOW_BATCHES) && shown.elapsed() >= LIFE_EVERY {
                shown = Instant::now();
                status::show(&shared, counters);
            }
            continue;
        }
        if !spin.is_zero() {
            looks = looks.wrapping_add(1);
            if !looks.is_multiple_of(LOOKS_A_CLOCK) {
                std::hint::spin_loop();
                continue;
            }
            let now = Instant::now();
            if now - *idle_since.get_or_insert(now) < spin {
                std::hint::spin_loop();
                continue;
            }
        }
        if !service.may_rest(client.pass(false)) {
            continue;
        }
        let most = if client.is_blocked() { BLOCKED_SLEEP } else { LIFE_EVERY };
        shared.sleep(client.seen(), &woken, most);
        if looked.elapsed() >= LIFE_EVERY {
            looked = Instant::now();
            status::show(&shared, counters);
            if !attached.is_alive() {
                client.end_all(&mut service);
                return Ok(());
            }
        }
    }
    Ok(())
}

/// One thread's end of the channel.
pub(crate) struct Client {
    calls: Calls,
    /// events taken
    tail: u32,
    /// the next one is a datagram whose answer found no room when so many calls had been taken
    held: Option<u32>,
    /// where payload most likely comes next
    next_payload: u32,
    /// the payload of a group of events, copied out
    bytes: Vec<u8>,
}

impl Client {
    pub(crate) fn new(shared: Arc<Shared>) -> Client {
        Client {
            calls: Calls::new(shared),
            tail: 0,
            held: None,
            next_payload: 0,
            bytes: vec![0; SEND_BYTES + ADDRESSES_BYTES],
        }
    }

    /// One batch of events and what the service makes of them; whether there was anything.
    pub(crate) fn batch<S: Service>(&mut self, service: &mut S, woken: &Woken) -> bool {
        self.held = self.held.filter(|taken| !self.calls.has_taken_since(*taken));
        let waiting =
            if self.held.is_some() { 0 } else { self.calls.shared().event_head().wrapping_sub(self.tail).min(BATCH) };
        let was_woken = woken.take();
        let news = service.has_news();
        let waits = self.calls.has_waiting();
        if waiting == 0 && !was_woken && !news && !waits {
            return false;
        }
        let now = self.pass(waiting > 0 && !was_woken);
        service.cycle(now);
        let mut left = waiting;
        while left > 0 && self.held.is_none() {
            left -= self.group(service, left);
            if left > 0 {
                // the dataplane begins with these; if it sleeps it is woken behind the batch
                self.calls.show(self.tail);
            }
        }
        // behind the datagrams, as everywhere
        service.woken(now, &mut self.calls);
        service.flush(now, &mut self.calls);
        self.calls.pump_waiting();
        let published = self.calls.publish(Some(self.tail));
        waiting > 0 || was_woken || news || published
    }

    /// Whether something waits for the dataplane to take calls.
    pub(crate) fn is_blocked(&self) -> bool {
        self.held.is_some() || self.calls.is_blocked()
    }

    /// Where the events end that need no further look: those that were taken, or all while the first of them waits for room.
    pub(crate) fn seen(&self) -> u32 {
        if self.held.is_some() { self.calls.shared().event_head() } else { self.tail }
    }

    /// The time that the service is told from now on. Who brings events has told it just before; without any the dataplane's thread may
    /// sleep, as long as nothing is due, and the clock is looked at, which costs too much for each event.
    fn pass(&mut self, is_told: bool) -> base::Instant {
        let shared = self.calls.shared();
        let now = if is_told { shared.told_now() } else { shared.clock_now() };
        self.calls.pass(now)
    }

    /// The next events, at most `most` and [`GROUP`]: copied, announced, told; how many of the ring's slots they were. A datagram whose
    /// answer might find no room is left there, with what comes behind it.
    fn group<S: Service>(&mut self, service: &mut S, most: u32) -> u32 {
        let Client { calls, tail, held, next_payload, bytes } = self;
        let mut group = ArrayVec::<Event, GROUP>::new();
        // slots in front of those of the group: of kinds that this version does not have
        let (mut skipped, mut length) = (0, 0);
        // on its way together with the slots that say where it is
        calls.shared().foresee_likely(*next_payload);
        while skipped + (group.len() as u32) < most && !group.is_full() {
            match calls.shared().event(tail.wrapping_add(skipped + group.len() as u32)) {
                None if group.is_empty() => skipped += 1,
                // the first one fits
                Some(event) if group.is_empty() || length + event.length as usize <= bytes.len() => {
                    length += event.length as usize;
                    if event.length > 0 {
                        *next_payload = event.offset.wrapping_add(event.length);
                    }
                    calls.foresee(&event);
                    group.push(event);
                }
                _ => break,
            }
        }
        let ahead = skipped + group.len() as u32;
        calls.shared().foresee_events(tail.wrapping_add(ahead), (most - ahead).min(GROUP as u32));
        let mut parts = ArrayVec::<&mut [u8], GROUP>::new();
        let mut rest = &mut bytes[..];
        for event in &group {
            let length = (event.length as usize).min(rest.len());
            let (part, behind) = rest.split_at_mut(length);
            calls.shared().payload(event.offset, part);
            parts.push(part);
            rest = behind;
        }
        if service.foresees() {
            announce(service, calls, &group, &parts);
        }
        let mut taken = skipped;
        for (event, bytes) in group.iter().zip(parts) {
            if event.kind == EventKind::Datagram && !calls.has_room(longest_answer(event)) {
                *held = Some(calls.taken());
                break;
            }
            tell(service, calls, event, bytes);
            taken += 1;
        }
        *tail = tail.wrapping_add(taken);
        taken
    }

    /// The dataplane has ended, and its connections with it.
    pub(crate) fn end_all<S: Service>(&mut self, service: &mut S) {
        let now = self.pass(false);
        for (connection, cookie) in self.calls.all() {
            self.calls.forget(connection);
            service.dead(now, connection, cookie, DeadReason::Reset);
        }
        for (connection, cookie) in self.calls.all_asked() {
            self.calls.forget(connection);
            service.connected(now, &mut self.calls, cookie, Err(DeadReason::Reset));
        }
        service.flush(now, &mut self.calls);
    }
}

/// Has the service ask for the memory that what has arrived needs.
fn announce<S: Service>(service: &mut S, calls: &mut Calls, group: &[Event], parts: &[&mut [u8]]) {
    let mut coming = ArrayVec::<Coming<'_>, GROUP>::new();
    for (event, bytes) in group.iter().zip(parts) {
        if event.kind == EventKind::Recv
            && let Some(cookie) = calls.cookie(connection(event.handle))
        {
            coming.push(Coming { cookie, bytes });
        }
    }
    // what one alone needs it asks for itself
    if coming.len() > 1 {
        service.foresee(&coming);
    }
}

fn connection(handle: Handle) -> Connection {
    Connection { index: handle.index, generation: handle.generation }
}

/// Tells one event, whose payload was copied out.
fn tell<S: Service>(service: &mut S, calls: &mut Calls, event: &Event, bytes: &mut [u8]) {
    let (length, now) = (bytes.len(), calls.now());
    let connection = connection(event.handle);
    if event.kind == EventKind::Knock {
        let Some(addresses) = bytes.first_chunk::<ADDRESSES_BYTES>() else { return };
        let addresses = layout::decode_addresses(addresses);
        calls.knock(connection);
        service.knock(now, calls, Listener(event.listener), connection, addresses);
        calls.reject_unanswered(connection);
        return;
    }
    if event.kind == EventKind::Datagram {
        return tell_datagram(service, calls, event, bytes);
    }
    match event.kind {
        EventKind::Connected => {
            if let Some((cookie, outcome)) = calls.connected(connection, event.detail) {
                service.connected(now, calls, cookie, outcome);
            }
            return;
        }
        EventKind::Alarm => {
            let cookie = event.handle.cookie();
            if calls.alarmed(cookie, event.bytes) {
                service.alarm(now, calls, cookie);
            }
            return;
        }
        EventKind::Dead => {
            if let Some(cookie) = calls.dead_given_up(connection) {
                return service.connected(now, calls, cookie, Err(DeadReason::Aborted));
            }
        }
        _ => {}
    }
    let Some(cookie) = calls.cookie(connection) else { return };
    match event.kind {
        EventKind::Recv => {
            if calls.received(connection, length) {
                service.recv(now, calls, connection, cookie, bytes);
            }
        }
        EventKind::Eof => {
            if calls.is_open(connection) {
                service.eof(now, calls, connection, cookie);
            }
        }
        EventKind::Sent => {
            if let Some(room) = calls.sent(connection, event.bytes) {
                service.sent(now, calls, connection, cookie, event.bytes as usize, room);
            }
        }
        EventKind::Timer => {
            if calls.timed(connection, event.bytes) {
                service.timer(now, calls, connection, cookie);
            }
        }
        EventKind::Dead => {
            let reason = calls.reason(connection, layout::reason(event.detail));
            calls.forget(connection);
            service.dead(now, connection, cookie, reason);
        }
        EventKind::Knock | EventKind::Datagram | EventKind::Connected | EventKind::Alarm => {}
    }
}

/// The longest answer to a datagram, which is told with the question, and is not shorter than that.
fn longest_answer(event: &Event) -> usize {
    let question = (event.length as usize).saturating_sub(ADDRESSES_BYTES);
    (event.bytes as usize).max(question).min(SEND_BYTES)
}

/// A datagram as a burst of one; the answer goes out as a call.
fn tell_datagram<S: Service>(service: &mut S, calls: &mut Calls, event: &Event, bytes: &mut [u8]) {
    let Some((addresses, question)) = bytes.split_first_chunk::<ADDRESSES_BYTES>() else { return };
    let (addresses, length) = (layout::decode_addresses(addresses), question.len());
    let listener = Listener(event.listener);
    let mut buffer = calls.take_buffer();
    buffer[..length].copy_from_slice(question);
    let capacity = longest_answer(event);
    let mut burst = [Datagram::new(&mut buffer[..capacity], length, Ecn::from_bits(event.detail), addresses)];
    service.datagrams(calls.now(), listener, &mut burst);
    match burst[0].reply_bytes() {
        Some(bytes) => {
            let sent = calls.reply(event.handle, &buffer[..bytes]);
            debug_assert!(sent, "there was room for the longest answer");
        }
        None => calls.outward.note((listener, addresses), event.handle, capacity),
    }
    calls.give_buffer(buffer);
}

/// Wakes and has them seen: for [`Shared::sleep`].
impl Woken {
    fn wake(&self, shared: &Shared) {
        self.set();
        shared.wake_self();
    }
}
