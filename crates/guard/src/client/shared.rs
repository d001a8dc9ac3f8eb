//! The application's view of the memory.

use crate::channel::{GRANT_VARIABLE, Granted, ring};
use crate::layout::{
    CALL_SLOTS, Call, EVENT_SLOTS, Event, FILE_BYTES, MAGIC, PAYLOAD_AT, PERMITS, RECEIVE_BYTES, SLOT_BYTES, SLOTS_AT,
    VERSION, control, header,
};
use crate::map::Map;
use crate::permits::{Grant, Permit};
use base::{CACHE_LINE_BYTES, Clock, Instant};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::futex;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use std::time::Duration;

/// What one thread of the application was granted.
#[derive(Debug)]
pub struct Attached {
    life: Arc<OwnedFd>,
    receive: OwnedFd,
    transmit: OwnedFd,
    bell: OwnedFd,
    /// a service runs on it, or has
    taken: AtomicBool,
}

/// What this process was granted, a thread each, by its environment; None when it was started by somebody else.
///
/// # Errors
/// The environment says something else than this version knows, or descriptors are not there.
pub fn attach() -> io::Result<Option<Vec<Attached>>> {
    let Some(text) = std::env::var_os(GRANT_VARIABLE) else { return Ok(None) };
    let granted = Granted::decode(&text.to_string_lossy()).map_err(io::Error::other)?;
    let attached = attach_to(&granted)?;
    // another application of the same user could read what is shared here, and this process's memory, by way of /proc; where no filter
    // allows this there is no such application
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    Ok(Some(attached))
}

/// The same, by numbers.
///
/// # Errors
/// Descriptors are not there.
pub fn attach_to(granted: &Granted) -> io::Result<Vec<Attached>> {
    let life = Arc::new(open(granted.life)?);
    let thread = |numbers: &[i32; 3]| -> io::Result<Attached> {
        let [receive, transmit, bell] = numbers.map(open);
        let (receive, transmit, bell) = (receive?, transmit?, bell?);
        Ok(Attached { life: life.clone(), receive, transmit, bell, taken: AtomicBool::new(false) })
    };
    granted.channels.iter().map(thread).collect()
}

/// A descriptor of our own for one that was inherited by number.
fn open(number: i32) -> io::Result<OwnedFd> {
    let lost = |error: io::Error| {
        io::Error::new(error.kind(), format!("descriptor {number}, which {GRANT_VARIABLE} names: {error}"))
    };
    crate::map::duplicate(number).map_err(lost)
}

impl Attached {
    /// Whether the dataplane is still there.
    pub fn is_alive(&self) -> bool {
        let mut life = [PollFd::new(&*self.life, PollFlags::IN | PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let seen = poll(&mut life, Some(&now)).unwrap_or(0);
        seen == 0 || !life[0].revents().intersects(PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR)
    }

    /// The zero of the times that the dataplane tells this thread, by the machine's monotonic clock; None before it has told one.
    ///
    /// # Errors
    /// What is shared is not what this version knows.
    pub fn zero(&self) -> io::Result<Option<Clock>> {
        let zero_ns = self.shared()?.receive.long(header::ZERO_AT).load(Ordering::Relaxed);
        Ok((zero_ns > 0).then(|| Clock::at(zero_ns)))
    }

    /// Takes it for a service: for the first one alone, since what the rings say is between the dataplane and that one.
    pub(super) fn take(&self) -> io::Result<()> {
        if self.taken.swap(true, Ordering::Relaxed) {
            let why = "a service runs on this thread of the grant, or has";
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, why));
        }
        Ok(())
    }

    /// Both files, as they may be mapped.
    pub(crate) fn maps(&self) -> io::Result<(Map, Map)> {
        Ok((Map::new(&self.receive, FILE_BYTES, false)?, Map::new(&self.transmit, FILE_BYTES, true)?))
    }

    /// Rings the bell, whether the dataplane sleeps or not.
    pub(crate) fn ring(&self) {
        ring(&self.bell);
    }

    pub(crate) fn files(&self) -> [BorrowedFd<'_>; 2] {
        [self.receive.as_fd(), self.transmit.as_fd()]
    }

    /// The memory, mapped.
    pub(crate) fn shared(&self) -> io::Result<Arc<Shared>> {
        let (receive, transmit) = self.maps()?;
        let is_ours = receive.long(header::MAGIC_AT).load(Ordering::Relaxed) == MAGIC;
        let version = receive.word(header::VERSION_AT).load(Ordering::Relaxed);
        if !is_ours || version != VERSION {
            return Err(io::Error::other(format!("the shared memory is of version {version}, and this is {VERSION}")));
        }
        let bell = rustix::io::dup(self.bell.as_fd())?;
        Ok(Arc::new(Shared { receive, transmit, bell, sleeps: AtomicU32::new(0) }))
    }
}

/// That another thread of the application has left something.
#[derive(Debug, Default)]
pub(crate) struct Woken(AtomicBool);

impl Woken {
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    #[inline]
    pub(super) fn take(&self) -> bool {
        self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::SeqCst)
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// Payload that is asked for before it is known to be there.
const LIKELY_BYTES: usize = 2 * CACHE_LINE_BYTES;

/// Where an event's slot stands.
#[inline]
fn event_at(index: u32) -> usize {
    SLOTS_AT + (index % EVENT_SLOTS) as usize * SLOT_BYTES
}

/// Both files, mapped.
#[derive(Debug)]
pub(crate) struct Shared {
    receive: Map,
    transmit: Map,
    bell: OwnedFd,
    sleeps: AtomicU32,
}

impl Shared {
    /// An index of the dataplane's, with what was written before it. A load with acquire is one from memory that may be written, for
    /// the language; a relaxed one and a fence are the same to the machine.
    #[inline]
    fn seen(&self, at: usize) -> u32 {
        let index = self.number(at);
        fence(Ordering::Acquire);
        index
    }

    #[inline]
    fn number(&self, at: usize) -> u32 {
        self.receive.word(at).load(Ordering::Relaxed)
    }

    pub(super) fn owner(&self) -> u16 {
        self.number(header::OWNER_AT) as u16
    }

    /// What this thread was granted.
    pub(super) fn grant(&self) -> Grant {
        let from = self.number(header::LISTENERS_FROM_AT) as u16;
        let listeners = from..from.saturating_add(self.number(header::LISTENERS_AT) as u16);
        let word = |n: usize| self.receive.long(header::PERMITS_AT + 8 * n).load(Ordering::Relaxed);
        let permits = (word(0) as usize).min(PERMITS);
        let permit = |n: usize| Permit::decode(std::array::from_fn(|part| word(1 + 3 * n + part)));
        Grant::new(self.number(header::CONNECTIONS_AT), listeners).permitting((0..permits).map(permit).collect())
    }

    pub(super) fn spin(&self) -> Duration {
        Duration::from_nanos(self.number(header::SPIN_NS_AT).into())
    }

    /// Has this thread run where the dataplane wants it.
    pub(super) fn pin(&self) -> io::Result<()> {
        let cpu = self.number(header::CPU_AT) as usize;
        if cpu >= rustix::thread::CpuSet::MAX_CPU {
            return Ok(());
        }
        let mut set = rustix::thread::CpuSet::new();
        set.set(cpu);
        // one whose threads all run on the same processor was put there before it began, and may not choose
        if rustix::thread::sched_getaffinity(None).is_ok_and(|has| has == set) {
            return Ok(());
        }
        let refused = |error: rustix::io::Errno| io::Error::other(format!("pinning to processor {cpu}: {error}"));
        rustix::thread::sched_setaffinity(None, &set).map_err(refused)
    }

    pub(crate) fn attach(&self) {
        self.transmit.word(control::ATTACHED_AT).store(1, Ordering::Release);
    }

    /// The time as the dataplane's thread told it last, which it does in each of its cycles.
    pub(super) fn told_now(&self) -> Instant {
        Instant::from_nanos(self.receive.long(header::NOW_AT).load(Ordering::Relaxed))
    }

    /// The same while that thread may sleep, by the machine's clock; never ahead of what it would tell.
    pub(super) fn clock_now(&self) -> Instant {
        let (told, zero_ns) = (self.told_now(), self.receive.long(header::ZERO_AT).load(Ordering::Relaxed));
        if zero_ns == 0 { told } else { told.max(Clock::at(zero_ns).now()) }
    }

    #[inline]
    pub(super) fn event_head(&self) -> u32 {
        self.seen(header::EVENT_HEAD_AT)
    }

    #[inline]
    pub(crate) fn event(&self, index: u32) -> Option<Event> {
        Event::decode(self.receive.slot(event_at(index)))
    }

    pub(super) fn payload(&self, offset: u32, into: &mut [u8]) {
        self.receive.copy_out(PAYLOAD_AT + offset as usize, into);
    }

    /// Asks for slots that are about to be looked at.
    #[inline]
    pub(super) fn foresee_events(&self, from: u32, count: u32) {
        for index in (0..count).step_by(CACHE_LINE_BYTES / SLOT_BYTES) {
            self.receive.foresee(event_at(from.wrapping_add(index)), SLOT_BYTES);
        }
    }

    /// Asks for the payload that most likely comes next.
    #[inline]
    pub(super) fn foresee_likely(&self, offset: u32) {
        self.receive.foresee(PAYLOAD_AT + offset as usize % RECEIVE_BYTES, LIKELY_BYTES);
    }

    /// Asks for an event's payload.
    #[inline]
    pub(super) fn foresee_payload(&self, event: &Event) {
        self.receive.foresee(PAYLOAD_AT + event.offset as usize, event.length as usize);
    }

    pub(super) fn set_event_tail(&self, tail: u32) {
        self.transmit.word(control::EVENT_TAIL_AT).store(tail, Ordering::Release);
    }

    #[inline]
    pub(super) fn call_tail(&self) -> u32 {
        self.seen(header::CALL_TAIL_AT)
    }

    #[inline]
    pub(super) fn set_call(&self, index: u32, call: &Call) {
        self.transmit.set_slot(SLOTS_AT + (index % CALL_SLOTS) as usize * SLOT_BYTES, call.encode());
    }

    /// Asks for a slot that will be written.
    #[inline]
    pub(super) fn claim_slot(&self, index: u32) {
        self.transmit.claim(SLOTS_AT + (index % CALL_SLOTS) as usize * SLOT_BYTES, SLOT_BYTES);
    }

    /// Asks for room that payload will be written to.
    #[inline]
    pub(super) fn claim_payload(&self, offset: usize, bytes: usize) {
        self.transmit.claim(PAYLOAD_AT + offset, bytes);
    }

    pub(super) fn set_payload(&self, offset: usize, bytes: &[u8]) {
        self.transmit.copy_in(PAYLOAD_AT + offset, bytes);
    }

    /// Lets the dataplane see calls up to `head`.
    #[inline]
    pub(super) fn show(&self, head: u32) {
        self.transmit.word(control::CALL_HEAD_AT).store(head, Ordering::Release);
    }

    /// Behind that: rings once for each of its sleeps.
    pub(super) fn ring_if_asleep(&self, rung: &mut u32) {
        // either it sees them, or we see that it sleeps (layout)
        fence(Ordering::SeqCst);
        let asleep = self.number(header::DP_ASLEEP_AT);
        if asleep != 0 && asleep != *rung {
            *rung = asleep;
            ring(&self.bell);
        }
    }

    /// Sleeps until there are events behind `tail`, somebody wakes us, or for `most`.
    pub(super) fn sleep(&self, tail: u32, woken: &Woken, most: Duration) {
        let word = self.transmit.word(control::WAKE_AT);
        let seen = word.load(Ordering::Acquire);
        let number = self.sleeps.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1);
        let asleep = self.transmit.word(control::APP_ASLEEP_AT);
        asleep.store(number, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.spin().is_zero() {
            // the dataplane waits for this on the same processor
            let turn = self.transmit.word(control::TURN_AT);
            turn.fetch_add(1, Ordering::Release);
            let _ = futex::wake(turn, futex::Flags::empty(), 1);
        }
        if self.event_head() == tail && !woken.is_set() {
            let most = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: most.subsec_nanos().into() };
            // for whatever reason it ends, the caller looks
            let _ = futex::wait(word, futex::Flags::empty(), seen, Some(&most));
        }
        asleep.store(0, Ordering::Relaxed);
    }

    /// Has the server see a number of ours.
    pub(crate) fn set_number(&self, n: usize, value: u64) {
        self.transmit.long(control::STATUS_AT + 8 * n).store(value, Ordering::Relaxed);
    }

    /// Ends our own thread's sleep.
    pub(super) fn wake_self(&self) {
        let word = self.transmit.word(control::WAKE_AT);
        word.fetch_add(1, Ordering::SeqCst);
        let _ = futex::wake(word, futex::Flags::empty(), 1);
    }
}
