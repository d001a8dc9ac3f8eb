//! What a thread of an engine shares with a thread of an application, and with who supervises both.

use crate::layout::{FILE_BYTES, MAGIC, VERSION, control, header};
use crate::map::{Map, close_on_exec};
use crate::permits::{Grant, Permit};
use app::Waker;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::Errno;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The environment variable that tells a program what it was granted: the protocol's version, the descriptor whose end is the
/// dataplane's end, and for each of its threads the receive file, the transmit file and the eventfd:
/// `4:3:4,5,6:7,8,9`.
pub const GRANT_VARIABLE: &str = "SIMOOM_APP";

/// While an application has connections, its channel is looked at this often, in case the dataplane sleeps and the application
/// does not take what it was told.
const WATCH_EVERY: Duration = Duration::from_millis(10);
/// And while it has none.
const REST: Duration = Duration::from_secs(1);

/// Where an application's thread runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// on the processor of the engine's thread, which is handed over when there are events
    Same,
    /// on another processor, where it looks for events for so long before it sleeps
    Other {
        /// how long, before it sleeps
        spin: Duration,
    },
}

/// Whether there is an application at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// there is none, and the memory is clean
    Down,
    /// there is one, or it is about to start
    Up,
    /// it has ended, and the engine's thread does not know yet
    Lost,
}

/// One thread's channel.
pub struct Channel {
    pub(crate) receive: Map,
    pub(crate) transmit: Map,
    files: [OwnedFd; 2],
    /// what the application rings while the dataplane sleeps
    bell: OwnedFd,
    pub(crate) owner: u16,
    pub(crate) place: Place,
    pub(crate) grant: Grant,
    state: AtomicU8,
    /// how many services have taken the engine's end, one after the other
    claims: AtomicU32,
    /// the application is to be ended: what it believes is not so any more
    condemned: AtomicBool,
    waker: Mutex<Option<Waker>>,
    /// it was told something that it has not taken
    pub(crate) owes: AtomicBool,
    pub(crate) busy: AtomicBool,
    ended: AtomicBool,
}

impl Channel {
    /// A channel for the application's thread `owner`, which is to run on `cpu` if that is given, with what it is granted.
    ///
    /// # Errors
    /// The kernel's: no memory, no descriptor, or a kernel without seals.
    pub fn new(owner: u16, place: Place, cpu: Option<u32>, grant: Grant) -> io::Result<Arc<Channel>> {
        let file = |name: &str| -> io::Result<OwnedFd> {
            let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
            rustix::fs::ftruncate(&file, FILE_BYTES as u64)?;
            Ok(file)
        };
        let files = [file("simoom-receive")?, file("simoom-transmit")?];
        let receive = Map::new(&files[0], FILE_BYTES, true)?;
        let transmit = Map::new(&files[1], FILE_BYTES, true)?;
        let fixed = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        // behind our own mapping: nobody gets another one to write
        fcntl_add_seals(&files[0], fixed | SealFlags::FUTURE_WRITE)?;
        fcntl_add_seals(&files[1], fixed)?;
        let spin = match place {
            Place::Same => Duration::ZERO,
            Place::Other { spin } => spin,
        };
        receive.long(header::MAGIC_AT).store(MAGIC, Ordering::Relaxed);
        let words = [
            (header::VERSION_AT, VERSION),
            (header::OWNER_AT, owner.into()),
            (header::CONNECTIONS_AT, grant.connections),
            (header::ASKED_AT, grant.asked()),
            (header::LISTENERS_FROM_AT, grant.listeners.start.into()),
            (header::LISTENERS_AT, grant.listeners.len() as u32),
            (header::CPU_AT, cpu.unwrap_or(header::NO_CPU)),
            (header::SPIN_NS_AT, u32::try_from(spin.as_nanos()).unwrap_or(u32::MAX)),
        ];
        words.into_iter().for_each(|(at, word)| receive.word(at).store(word, Ordering::Relaxed));
        let permits = grant.permits.iter().flat_map(Permit::encode);
        for (n, word) in std::iter::once(grant.permits.len() as u64).chain(permits).enumerate() {
            receive.long(header::PERMITS_AT + 8 * n).store(word, Ordering::Relaxed);
        }
        Ok(Arc::new(Channel {
            receive,
            transmit,
            files,
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            owner,
            place,
            grant,
            state: AtomicU8::new(State::Down as u8),
            claims: AtomicU32::new(0),
            condemned: AtomicBool::new(false),
            waker: Mutex::default(),
            owes: AtomicBool::new(false),
            busy: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        }))
    }

    /// Whether there is an application.
    pub fn state(&self) -> State {
        match self.state.load(Ordering::Acquire) {
            0 => State::Down,
            1 => State::Up,
            _ => State::Lost,
        }
    }

    pub(crate) fn set_state(&self, state: State) {
        self.state.store(state as u8, Ordering::Release);
    }

    /// The supervisor's: an application is about to start. False when the engine's thread has not cleaned up after the last one.
    pub fn open(&self) -> bool {
        self.condemned.store(false, Ordering::Release);
        let (down, up) = (State::Down as u8, State::Up as u8);
        self.state.compare_exchange(down, up, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// The supervisor's: the application's process has ended, all of it. The engine's thread resets its connections.
    pub fn lose(&self) {
        let (up, lost) = (State::Up as u8, State::Lost as u8);
        if self.state.compare_exchange(up, lost, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            self.wake();
        }
    }

    /// Whether the application has found its memory.
    pub fn is_attached(&self) -> bool {
        self.transmit.word(control::ATTACHED_AT).load(Ordering::Acquire) == 1
    }

    /// A number that the application shows.
    pub(crate) fn shown(&self, n: usize) -> u64 {
        self.transmit.long(control::STATUS_AT + 8 * n).load(Ordering::Relaxed)
    }

    /// Whether the application is to be ended, since the engine's thread has begun anew.
    pub fn is_condemned(&self) -> bool {
        self.condemned.load(Ordering::Acquire)
    }

    /// A service takes the engine's end; its number. What the application knows of an earlier one's connections is void.
    pub(crate) fn claim(&self) -> u32 {
        let claim = self.claims.fetch_add(1, Ordering::AcqRel) + 1;
        if claim > 1 {
            self.condemned.store(true, Ordering::Release);
        }
        claim
    }

    pub(crate) fn set_waker(&self, waker: &Waker) {
        *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker.clone());
    }

    fn wake(&self) {
        if let Some(waker) = &*self.waker.lock().unwrap_or_else(PoisonError::into_inner) {
            waker.wake();
        }
    }

    /// What a process is to have of it, in the order in which [`GRANT_VARIABLE`] names them.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 3] {
        [self.files[0].as_fd(), self.files[1].as_fd(), self.bell.as_fd()]
    }

    /// Starts the thread that begins a cycle of the engine when the application rings, and sees to it that an application that does
    /// not take its events is noticed while the engine sleeps. It ends with [`Channel::end`].
    ///
    /// # Errors
    /// The kernel's.
    pub fn attend(self: &Arc<Self>) -> io::Result<JoinHandle<()>> {
        let channel = self.clone();
        std::thread::Builder::new().name(format!("app-bell-{}", self.owner)).spawn(move || {
            let mut answered = Answered::new(Instant::now());
            while !channel.ended.load(Ordering::Acquire) {
                let most = if channel.busy.load(Ordering::Relaxed) { WATCH_EVERY } else { REST };
                let most = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: most.subsec_nanos().into() };
                let mut rung = [PollFd::new(&channel.bell, PollFlags::IN)];
                // interrupted or not, what follows is right
                let rung = poll(&mut rung, Some(&most)).unwrap_or(0) > 0;
                if rung {
                    let _ = rustix::io::read(&channel.bell, &mut [0; 8]);
                }
                let asleep = channel.receive.word(header::DP_ASLEEP_AT).load(Ordering::Relaxed);
                if if rung { answered.is_due(asleep) } else { asleep != 0 && channel.owes.load(Ordering::Relaxed) } {
                    channel.wake();
                }
                if let Some(time) = answered.deaf_for(Instant::now()) {
                    std::thread::sleep(time);
                }
            }
        })
    }

    /// Ends what [`Channel::attend`] started.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
        ring(&self.bell);
    }
}

/// Which rings of the bell were answered: one for each of the engine's sleeps. Between two of them an application has nothing to ring for,
/// since a thread that is awake looks by itself; one that rings all the same often is not even heard for a while.
#[derive(Debug)]
struct Answered {
    /// the sleep that was ended last
    sleep: u32,
    /// rings that were for nothing, since when
    idle: u32,
    since: Instant,
}

impl Answered {
    /// So many within [`WATCH_EVERY`] may be for nothing: an engine may be awake before the bell is heard.
    const IDLE_MOST: u32 = 128;

    fn new(now: Instant) -> Answered {
        Answered { sleep: 0, idle: 0, since: now }
    }

    /// Whether a ring is to be answered, while the engine's thread is in this sleep, or in none.
    fn is_due(&mut self, asleep: u32) -> bool {
        let due = asleep != 0 && asleep != self.sleep;
        if due {
            self.sleep = asleep;
        } else {
            self.idle += 1;
        }
        due
    }

    /// For how long no ring is heard, because too many were for nothing.
    fn deaf_for(&mut self, now: Instant) -> Option<Duration> {
        let left = WATCH_EVERY.checked_sub(now - self.since).filter(|left| !left.is_zero());
        let deaf = left.filter(|_| self.idle >= Self::IDLE_MOST);
        if deaf.is_some() || left.is_none() {
            (self.idle, self.since) = (0, now + deaf.unwrap_or_default());
        }
        deaf
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Channel({}, {:?}, {:?})", self.owner, self.place, self.state())
    }
}

/// Rings an eventfd; refused only when its count is full, and then whoever waits is about to wake.
pub(crate) fn ring(bell: impl AsFd) {
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

/// What an application was granted: descriptors by number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// ends when the dataplane does
    pub life: i32,
    /// of each thread: receive file, transmit file, eventfd
    pub channels: Vec<[i32; 3]>,
}

impl Granted {
    /// What these channels are, for a process that inherits their descriptors.
    pub fn of(life: BorrowedFd<'_>, channels: &[Arc<Channel>]) -> Granted {
        let numbers = |channel: &Arc<Channel>| channel.descriptors().map(|descriptor| descriptor.as_raw_fd());
        Granted { life: life.as_raw_fd(), channels: channels.iter().map(numbers).collect() }
    }

    /// Sees to it that the program which this process executes next has these descriptors, the standard ones and no other: whoever started
    /// the server may have left some open.
    ///
    /// # Errors
    /// /proc does not tell what is open.
    pub fn withhold_others(&self) -> io::Result<()> {
        let is_granted = |number: &i32| *number == self.life || self.channels.as_flattened().contains(number);
        let open: Vec<i32> = std::fs::read_dir("/proc/self/fd")?
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter(|number| *number > 2 && !is_granted(number))
            .collect();
        for number in open {
            match close_on_exec(number) {
                // the one that they were read by
                Err(error) if error.raw_os_error() == Some(Errno::BADF.raw_os_error()) => {}
                done => done?,
            }
        }
        Ok(())
    }

    /// As [`GRANT_VARIABLE`] has it.
    pub fn encode(&self) -> String {
        let channels = self.channels.iter().map(|[receive, transmit, bell]| format!(":{receive},{transmit},{bell}"));
        format!("{VERSION}:{}{}", self.life, channels.collect::<String>())
    }

    /// From [`GRANT_VARIABLE`]'s value.
    ///
    /// # Errors
    /// It is of another version, or no grant.
    pub fn decode(text: &str) -> Result<Granted, String> {
        let broken = || format!("{GRANT_VARIABLE}={text} is not a grant of version {VERSION}");
        let mut parts = text.split(':');
        if parts.next().and_then(|version| version.parse().ok()) != Some(VERSION) {
            return Err(broken());
        }
        let life = parts.next().and_then(|life| life.parse().ok()).ok_or_else(broken)?;
        let channel = |part: &str| -> Option<[i32; 3]> {
            let numbers: Vec<i32> = part.split(',').map(str::parse).collect::<Result<_, _>>().ok()?;
            numbers.try_into().ok()
        };
        let channels: Option<Vec<_>> = parts.map(channel).collect();
        Ok(Granted { life, channels: channels.filter(|channels| !channels.is_empty()).ok_or_else(broken)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{FallocateFlags, fallocate, ftruncate};

    #[test]
    fn a_grant_comes_back_and_nothing_else_is_one() {
        let granted = Granted { life: 3, channels: vec![[4, 5, 6], [7, 8, 9]] };
        assert_eq!(granted.encode(), "4:3:4,5,6:7,8,9");
        // it is the example that the variable's documentation gives, of this version
        assert!(include_str!("channel.rs").contains(&format!("/// `{}`.\n", granted.encode())));
        assert_eq!(Granted::decode(&granted.encode()), Ok(granted));
        for text in ["", "4", "4:3", "3:3:4,5,6", "4:3:4,5", "4:3:4,5,6,7", "4:x:4,5,6", "4:3:4,5,6:"] {
            assert!(Granted::decode(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_receive_file_is_read_only_and_neither_changes_its_size() {
        let channel = Channel::new(0, Place::Same, None, Grant::new(10, 0..1)).unwrap();
        let [receive, transmit, _] = channel.descriptors();
        assert!(Map::new(receive, FILE_BYTES, true).is_err());
        assert!(Map::new(receive, FILE_BYTES, false).is_ok() && Map::new(transmit, FILE_BYTES, true).is_ok());
        assert!(rustix::io::pwrite(receive, b"x", 0).is_err());
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        assert!(fallocate(receive, hole, 0, 4096).is_err());
        // another description of the same file is no way around it
        let again = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(format!("/proc/self/fd/{}", receive.as_raw_fd()))
            .unwrap();
        assert!(Map::new(&again, FILE_BYTES, true).is_err());
        for file in [receive, transmit] {
            assert!(ftruncate(file, 0).is_err() && ftruncate(file, 2 * FILE_BYTES as u64).is_err());
            assert!(fcntl_add_seals(file, SealFlags::WRITE).is_err());
        }
        // a hole in what the application may write is zeros and no fault
        channel.transmit.copy_in(8192, b"text");
        fallocate(transmit, hole, 0, FILE_BYTES as u64).unwrap();
        let mut bytes = [1; 4];
        channel.transmit.copy_out(8192, &mut bytes);
        assert_eq!(bytes, [0; 4]);
    }

    #[test]
    fn a_ring_is_answered_once_for_each_sleep_and_one_who_rings_without_end_is_not_heard() {
        let begun = Instant::now();
        let mut answered = Answered::new(begun);
        assert!(
            !answered.is_due(0)
                && answered.is_due(1)
                && !answered.is_due(1)
                && !answered.is_due(0)
                && answered.is_due(2)
        );
        assert_eq!(answered.deaf_for(begun), None);
        let mut now = begun + WATCH_EVERY;
        assert_eq!(answered.deaf_for(now), None);
        for n in 0..Answered::IDLE_MOST {
            assert_eq!(answered.deaf_for(now), None, "{n}");
            assert!(!answered.is_due(2));
        }
        now += WATCH_EVERY / 4;
        assert_eq!(answered.deaf_for(now), Some(WATCH_EVERY / 4 * 3));
        // that is forgiven then
        assert_eq!(answered.deaf_for(now + WATCH_EVERY), None);
        assert!(answered.is_due(3));
    }

    #[test]
    fn whoever_rings_while_the_thread_is_awake_does_not_wake_it() {
        let channel = Arc::new(Channel::new(0, Place::Same, None, Grant::new(10, 0..1)).unwrap());
        let woken = Arc::new(AtomicU32::new(0));
        let count = woken.clone();
        channel.set_waker(&Waker::new(move || {
            count.fetch_add(1, Ordering::SeqCst);
        }));
        let thread = channel.attend().unwrap();
        let [.., bell] = channel.descriptors();
        // each write is heard at the latest before the count is full
        (0..100_000).for_each(|_| ring(bell));
        for sleep in 1..=3 {
            channel.receive.word(header::DP_ASLEEP_AT).store(sleep, Ordering::SeqCst);
            let begun = Instant::now();
            while woken.load(Ordering::SeqCst) < sleep {
                ring(bell);
                assert!(begun.elapsed() < Duration::from_secs(20), "sleep {sleep} does not end");
                std::thread::sleep(Duration::from_millis(1));
            }
            (0..1_000).for_each(|_| ring(bell));
            channel.receive.word(header::DP_ASLEEP_AT).store(0, Ordering::SeqCst);
            (0..1_000).for_each(|_| ring(bell));
        }
        channel.end();
        thread.join().unwrap();
        assert_eq!(woken.load(Ordering::SeqCst), 3);
    }
}
