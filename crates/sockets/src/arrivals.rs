//! Where packets arrive, and listeners that take connections there.
//!
//! Which listener of a reuseport group gets a connection the kernel's hash says, so of two threads' connections every other one is worked on
//! by another processor than the one where its packets arrive, and each of them wakes a thread there. Where packets arrive on the processors of
//! all threads, as with a NIC that has a queue for each, the listeners of [`Spread::PerCore`](crate::Spread::PerCore) are told their processors
//! (SO_INCOMING_CPU, which reuseport groups go by since Linux 6.2), and the kernel prefers the one where the SYN arrived. Elsewhere (one queue,
//! loopback, a virtual link) all connections would go to one thread.
//!
//! Seen are connections alone, one in [`SAMPLE`] when it is accepted: the kernel does not tell where a datagram arrived.

use crate::config::Config;
use crate::counters::Sharing;
use crate::sys;
use base::CacheAligned;
use mio::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// One connection of so many is looked at.
const SAMPLE: u32 = 8;
/// Fewer of these a thread tell nothing.
const TELL: u64 = 50;
/// Value of SO_INCOMING_CPU for a socket that has no processor.
const ANYWHERE: i32 = -1;

/// The processors of the threads, if each has one of its own.
pub(crate) fn pinned(config: &Config) -> Vec<usize> {
    let first = config.cpus.iter().copied().take(config.threads).collect::<Vec<_>>();
    if first.len() == config.threads { first } else { Vec::new() }
}

/// Whether packets arrive on the processors of all threads, or on a few: on a NIC with a queue for each they do, on loopback and
/// on virtual links they arrive where they were sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Arrivals {
    last: Vec<u64>,
    spread: bool,
}

impl Arrivals {
    /// As the last look found.
    pub(crate) fn spread(&self) -> bool {
        self.spread
    }

    /// By the count of each thread's processor so far; fewer than `tell` new ones a thread tell nothing. Spread from when each has at
    /// least half of its fair share, until one has less than a quarter.
    pub(crate) fn judge(&mut self, counts: &[u64], tell: u64) -> bool {
        self.last.resize(counts.len(), 0);
        let new: Vec<u64> = counts.iter().zip(&self.last).map(|(now, before)| now.saturating_sub(*before)).collect();
        let (sum, least) = (new.iter().sum::<u64>(), new.iter().copied().min().unwrap_or(0));
        if sum < tell * counts.len() as u64 {
            return self.spread;
        }
        self.last.copy_from_slice(counts);
        let fair = sum / counts.len() as u64;
        self.spread = if self.spread { least >= fair / 4 } else { least >= fair / 2 };
        self.spread
    }

    #[cfg(test)]
    pub(crate) fn known(spread: bool) -> Arrivals {
        Arrivals { spread, ..Arrivals::default() }
    }
}

/// Listeners of all threads, and where the connections came that they were given.
#[derive(Debug)]
struct Listeners {
    /// by thread
    sockets: Vec<Vec<Arc<TcpListener>>>,
    processors: Vec<usize>,
    /// by the thread whose processor it was
    arrived: Vec<CacheAligned<AtomicU64>>,
    seen: CacheAligned<AtomicU64>,
    arrivals: Mutex<Arrivals>,
    /// by thread, where it is shown
    sharing: Vec<Arc<Sharing>>,
}

impl Listeners {
    /// A connection has come by `processor`.
    fn saw(&self, processor: usize) {
        if let Some(thread) = self.processors.iter().position(|of| *of == processor) {
            self.arrived[thread].fetch_add(1, Ordering::Relaxed);
        }
        let seen = self.seen.fetch_add(1, Ordering::Relaxed) + 1;
        if seen.is_multiple_of(TELL * self.processors.len() as u64) {
            self.look();
        }
    }

    /// Some hundred connections are between two looks.
    #[cold]
    fn look(&self) {
        let mut arrivals = self.arrivals.lock().unwrap_or_else(PoisonError::into_inner);
        let counts: Vec<u64> = self.arrived.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        let before = arrivals.spread();
        let here = arrivals.judge(&counts, TELL);
        if here == before {
            return;
        }
        for ((sockets, processor), sharing) in self.sockets.iter().zip(&self.processors).zip(&self.sharing) {
            let value = if here { *processor as i32 } else { ANYWHERE };
            for socket in sockets {
                // refused, the kernel's hash goes on: slower, never wrong
                let _ = sys::set_incoming_cpu(socket.as_fd(), value);
            }
            sharing.listeners_follow.set(here.into());
        }
    }
}

/// One thread's part in seeing where connections arrive.
#[derive(Debug)]
pub(crate) struct Sampler {
    listeners: Arc<Listeners>,
    accepted: u32,
}

impl Sampler {
    /// One for each thread; none where a thread has no processor of its own, or there is one alone. `threads` has the listeners of each that are
    /// one of a group, and its figures.
    pub(crate) fn new(config: &Config, threads: Vec<(Vec<Arc<TcpListener>>, Arc<Sharing>)>) -> Vec<Sampler> {
        let processors = pinned(config);
        if processors.len() < 2 || threads.iter().any(|(sockets, _)| sockets.is_empty()) {
            return Vec::new();
        }
        let (sockets, sharing): (Vec<_>, Vec<_>) = threads.into_iter().unzip();
        let listeners = Arc::new(Listeners {
            arrived: processors.iter().map(|_| CacheAligned::default()).collect(),
            seen: CacheAligned::default(),
            arrivals: Mutex::default(),
            sockets,
            processors,
            sharing,
        });
        listeners.sockets.iter().map(|_| Sampler { listeners: listeners.clone(), accepted: 0 }).collect()
    }

    /// A connection was accepted.
    pub(crate) fn note(&mut self, stream: &TcpStream) {
        self.accepted = self.accepted.wrapping_add(1);
        if self.accepted.is_multiple_of(SAMPLE)
            && let Ok(processor) = rustix::net::sockopt::socket_incoming_cpu(stream)
        {
            self.listeners.saw(processor as usize);
        }
    }
}

/// Lets the kernel's hash choose again where an earlier engine had a socket's processor told.
pub(crate) fn anywhere(socket: &impl AsFd) {
    // a kernel that has no such option has nothing to take back
    let _ = sys::set_incoming_cpu(socket.as_fd(), ANYWHERE);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_followed_when_they_arrive_everywhere() {
        let mut arrivals = Arrivals::default();
        let mut judge = |counts: &[u64]| arrivals.judge(counts, 200);
        assert!(!judge(&[1000, 0]), "all on one");
        assert!(!judge(&[1010, 10]), "too few to tell");
        assert!(!judge(&[1810, 210]), "a fifth of the fair share more than nothing");
        assert!(judge(&[2800, 1200]));
        assert!(judge(&[3500, 1500]), "half of the fair share and a bit");
        assert!(judge(&[3600, 1500]), "too few to tell");
        assert!(!judge(&[5000, 1510]));
    }

    #[test]
    fn processors_count_only_when_each_thread_has_one() {
        let with = |threads, cpus: &[usize]| pinned(&Config { threads, cpus: cpus.to_vec(), ..Config::default() });
        assert_eq!(with(2, &[4, 6]), [4, 6]);
        assert_eq!(with(2, &[4, 6, 8]), [4, 6]);
        assert_eq!(with(2, &[4]), [0; 0]);
        assert_eq!(with(2, &[]), [0; 0]);
    }

    fn listener() -> Arc<TcpListener> {
        Arc::new(TcpListener::bind("127.0.0.1:0".parse().unwrap()).unwrap())
    }

    #[test]
    fn listeners_have_their_processors_while_connections_come_by_all_of_them() {
        let config = Config { threads: 2, cpus: vec![5, 3], ..Config::default() };
        let threads: Vec<_> = (0..2).map(|n| (vec![listener(), listener()], Arc::new(Sharing::new(n)))).collect();
        let samplers = Sampler::new(&config, threads.clone());
        let told = || -> Vec<Vec<i32>> {
            let of = |socket: &Arc<TcpListener>| rustix::net::sockopt::socket_incoming_cpu(socket).unwrap() as i32;
            threads.iter().map(|(sockets, _)| sockets.iter().map(of).collect()).collect()
        };
        let shown = || threads.iter().map(|(_, sharing)| sharing.listeners_follow.get()).collect::<Vec<_>>();
        let nowhere = vec![vec![ANYWHERE; 2]; 2];
        assert_eq!((told(), samplers.len()), (nowhere.clone(), 2));
        let come = |by: &[usize]| (0..TELL * 2).for_each(|n| samplers[0].listeners.saw(by[n as usize % by.len()]));
        come(&[5]);
        assert_eq!((told(), shown()), (nowhere.clone(), vec![0, 0]), "all by one");
        come(&[5, 3]);
        assert_eq!((told(), shown()), (vec![vec![5; 2], vec![3; 2]], vec![1, 1]));
        come(&[7]);
        assert_eq!(shown(), [1, 1], "where no thread is they tell nothing");
        come(&[3, 3, 3, 3, 3, 3, 3, 3, 5, 3]);
        assert_eq!((told(), shown()), (nowhere, vec![0, 0]));
    }

    #[test]
    fn nobody_samples_where_there_is_nothing_to_choose() {
        let samplers = |threads, cpus: &[usize], sockets: usize| {
            let config = Config { threads, cpus: cpus.to_vec(), ..Config::default() };
            let of = |n| ((0..sockets).map(|_| listener()).collect(), Arc::new(Sharing::new(n)));
            Sampler::new(&config, (0..threads).map(of).collect()).len()
        };
        assert_eq!(
            [samplers(1, &[0], 1), samplers(2, &[0], 1), samplers(2, &[0, 1], 0), samplers(2, &[0, 1], 1)],
            [0, 0, 0, 2]
        );
    }
}
