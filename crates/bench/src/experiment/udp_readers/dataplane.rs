//! Readers of the dataplane: its threads with our own stack, each on a queue of its own of the in-memory NIC.
//!
//! A datagram comes as it would from a wire, in an Ethernet frame with both checksums, which the stack verifies, and at the queue that
//! a NIC would choose: by the Toeplitz hash of its flow. The threads look up each frame's flow group, as those of a server do, and find
//! it their own; no group moves.
//!
//! The wire's end of a queue belongs to the senders; with several, one at a time puts a run of frames in.

use super::rung::{Queue, Rung};
use super::{BYTES, Figures, Options, RUN, Readers, Sent, Sink, Spent, drained, send_for};
use crate::pipe::stack;
use anyhow::{Context as _, Result, bail, ensure};
use app::Listener;
use base::{BURST_FRAMES, Burst, Frame};
use dataplane::{Config, Dataplane, Idle, Owners, Sharing};
use port::pipe::{self, Pipe};
use port::{Facts, Mac, Port};
use stack::{DropReason, Handled, UdpListener};
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use wire::ethernet::{EtherType, Link};
use wire::flow::{Flow, Groups, Ports};
use wire::toeplitz::Key;
use wire::{Protocol, Sum, ipv4, udp};

const SERVER: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
const PORT: u16 = 7;
const FIRST_PORT: u16 = 10_000;
/// The shortest frame of an Ethernet, without its check sequence: the datagram's headers and payload are 52.
const FRAME_BYTES: usize = 60;
/// What a frame takes of an arena.
const CHUNK_BYTES: usize = 2048;
/// Memory that all frames of a measurement may take together.
const MEMORY_BYTES: usize = 2 << 30;
/// Flow groups, as `simoom` has them.
const GROUPS: usize = 4096;
/// Frames that are neither in a queue nor free: bursts of a reader and of a sender.
const IN_HAND: usize = 4 * BURST_FRAMES;

/// Whether so many datagrams can wait.
pub(super) fn ensure_room(datagrams: u32) -> Result<()> {
    let most = MEMORY_BYTES / CHUNK_BYTES;
    ensure!(
        datagrams as usize <= most,
        "--datagrams {datagrams}: the dataplane's wait in frames of {CHUNK_BYTES} bytes, of which 2 GiB hold {most}; ask for \
         fewer, or leave dataplane out of --queue"
    );
    Ok(())
}

/// Fills the queues, then has them read; the time to the last datagram.
pub(super) fn drain(options: &Options, readers: Readers) -> Result<Figures> {
    let all = options.datagrams as usize;
    let flows = Flows::new(options.sources, readers.count)?;
    let waiting = flows.waiting(all);
    // both ends start with as many frames, and those of both fill the queue
    let sizes = waiting.iter().map(|frames| (frames.next_power_of_two(), frames.div_ceil(2).max(1)));
    let (mut nic, mut queues) = nic(flows, sizes)?;
    nic.fill(&mut queues, all)?;
    let begun = Instant::now();
    let threads = Threads::start(queues, &nic.flows, readers)?;
    let seconds = drained(begun, all as u64, || threads.received())?;
    let figures = threads.figures(seconds, all as u64)?;
    threads.stop();
    Ok(figures)
}

/// Sends as fast as it goes while the readers read.
pub(super) fn live(options: &Options, readers: Readers) -> Result<Figures> {
    let flows = Flows::new(options.sources, readers.count)?;
    let ring_frames = live_frames(options.live_datagrams(), readers.count.into());
    let (nic, queues) = nic(flows, (0..readers.count).map(|_| (ring_frames, ring_frames + IN_HAND)))?;
    let threads = Threads::start(queues, &nic.flows, readers)?;
    let Sent { sent, received, seconds } =
        send_for(options, readers.processors, |_, run| nic.send(run), || threads.received())?;
    // what is read after the end is no throughput
    let figures = Figures { received, ..threads.figures(seconds, sent)? };
    // and yet it comes: each frame was dropped by a ring or is read
    let (crossed, dropped) = nic.counts();
    ensure!(crossed + dropped == sent, "of {sent} frames {crossed} crossed the wire and {dropped} were dropped");
    drained(Instant::now(), crossed, || threads.received())?;
    threads.stop();
    Ok(figures)
}

/// Frames that a queue has room for: a power of two, so that those of all queues keep to the bound on memory. Each end of a queue has
/// that many.
fn live_frames(wanted: usize, queues: usize) -> usize {
    let most = MEMORY_BYTES / CHUNK_BYTES / (2 * queues) - IN_HAND;
    wanted.next_power_of_two().min(1 << most.ilog2())
}

/// A flow's frame, and the queue where it arrives.
struct Source {
    frame: [u8; FRAME_BYTES],
    queue: usize,
}

/// All flows, and whose they are.
struct Flows {
    sources: Vec<Source>,
    owners: Arc<Owners>,
}

impl Flows {
    fn new(sources: u16, readers: u16) -> Result<Flows> {
        let groups = Groups::toeplitz(GROUPS, &Key::MICROSOFT, Ports::ALL);
        let owners = Owners::new(groups, readers.into(), |group| group % readers);
        let source = |n: u16| {
            let port = FIRST_PORT + n;
            let flow = Flow::new(Protocol::UDP, (CLIENT, port).into(), (SERVER, PORT).into());
            let group = owners.groups().of(&flow.context("addresses of two families")?);
            Ok(Source { frame: frame(pipe::Config::default().macs, port), queue: owners.owner(group).into() })
        };
        let sources = (0..sources).map(source).collect::<Result<_>>()?;
        Ok(Flows { sources, owners: Arc::new(owners) })
    }

    /// The flow whose turn it is.
    fn of_run(&self, run: usize) -> &Source {
        &self.sources[run % self.sources.len()]
    }

    /// How many of `all` datagrams arrive at each queue.
    fn waiting(&self, all: usize) -> Vec<usize> {
        let mut waiting = vec![0; self.owners.threads()];
        for (run, from) in (0..all).step_by(RUN).enumerate() {
            waiting[self.of_run(run).queue] += RUN.min(all - from);
        }
        waiting
    }
}

/// A datagram as it comes from the wire, filled up to what an Ethernet carries at least.
fn frame([client, server]: [Mac; 2], port: u16) -> [u8; FRAME_BYTES] {
    let mut bytes = [0; FRAME_BYTES];
    let link = Link { dst: server, src: client, tag: None, ether_type: EtherType::IPV4 };
    link.write(&mut bytes);
    let payload_bytes = udp::HEADER_BYTES + BYTES;
    let mut head = [0; 20];
    ipv4::Header { src: CLIENT, dst: SERVER, protocol: Protocol::UDP, ttl: 64, payload_bytes }.write(&mut head);
    let (at, end) = (14 + head.len(), 14 + head.len() + payload_bytes);
    bytes[14..at].copy_from_slice(&head);
    bytes[at + udp::HEADER_BYTES..end].fill(b'x');
    let pseudo = Sum::pseudo_v4(CLIENT, SERVER, Protocol::UDP, payload_bytes as u16);
    udp::write(&mut bytes[at..end], port, PORT, pseudo);
    bytes
}

/// The wire's ends of all queues.
struct Nic {
    flows: Flows,
    wires: Vec<Mutex<Pipe>>,
    rungs: Vec<Arc<Rung>>,
}

/// A queue for each of `sizes`: frames that wait in it at most, a power of two, and that each of its ends starts with.
fn nic(flows: Flows, sizes: impl Iterator<Item = (usize, usize)>) -> Result<(Nic, Vec<Queue>)> {
    let mut nic = Nic { flows, wires: Vec::new(), rungs: Vec::new() };
    let mut queues = Vec::new();
    for (ring_frames, frames) in sizes {
        let config = pipe::Config { ring_frames, frames: frames as u32, ..pipe::Config::default() };
        let (wires, ends) = pipe::pair(&config).context("memory for the queues' frames")?;
        let rung = Rung::new()?;
        nic.wires.extend(wires.into_iter().map(Mutex::new));
        queues.extend(ends.into_iter().map(|pipe| Queue::new(pipe, rung.clone())));
        nic.rungs.push(rung);
    }
    Ok((nic, queues))
}

impl Nic {
    /// Puts `all` datagrams into the queues.
    fn fill(&mut self, queues: &mut [Queue], all: usize) -> Result<()> {
        for (run, from) in (0..all).step_by(RUN).enumerate() {
            let source = self.flows.of_run(run);
            let reader = &mut queues[source.queue].pipe;
            let mut wire = locked(&self.wires[source.queue]);
            put(source, RUN.min(all - from), &mut wire, |wire| wire.take().or_else(|| reader.take()));
        }
        let (crossed, _) = self.counts();
        ensure!(crossed == all as u64, "{crossed} of {all} datagrams found room in the queues");
        Ok(())
    }

    /// Sends the run whose turn it is; how many datagrams.
    fn send(&self, run: usize) -> u64 {
        let source = self.flows.of_run(run);
        put(source, RUN, &mut locked(&self.wires[source.queue]), Pipe::take);
        self.rungs[source.queue].ring();
        RUN as u64
    }

    /// Frames that came into a queue, and that found it full.
    fn counts(&self) -> (u64, u64) {
        let counts = self.wires.iter().map(|wire| {
            let stats = locked(wire).stats().clone();
            (stats.sent.get(), stats.dropped.get())
        });
        counts.fold((0, 0), |(sent, dropped), one| (sent + one.0, dropped + one.1))
    }
}

fn locked(wire: &Mutex<Pipe>) -> MutexGuard<'_, Pipe> {
    wire.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes `count` frames of a flow and puts them into its queue; those that find no room are dropped and counted there.
fn put(source: &Source, count: usize, wire: &mut Pipe, mut take: impl FnMut(&mut Pipe) -> Option<Frame>) {
    let mut burst = Burst::new();
    for _ in 0..count {
        let mut frame = take(wire).expect("more frames than can be in the queue and in anybody's hands");
        assert!(frame.fill(&source.frame), "a chunk has room for the shortest frame");
        burst.push(frame);
    }
    wire.transmit(&mut burst);
}

/// The threads, and what their stacks count.
struct Threads {
    dataplane: Dataplane<Queue, Sink>,
    stacks: Vec<Arc<stack::Counters>>,
}

impl Threads {
    fn start(queues: Vec<Queue>, flows: &Flows, readers: Readers) -> Result<Threads> {
        let sharing = Sharing { first: 0, owners: flows.owners.clone(), balance: None, steering: None };
        let config = Config {
            cpus: readers.cpus(),
            batch: readers.batch.into(),
            idle: Idle::Block,
            // as in a server, whose only thread has nobody to share with
            sharing: if readers.count > 1 { vec![sharing] } else { Vec::new() },
            ..Config::default()
        };
        let stacks = Arc::new(Mutex::new(Vec::new()));
        let made = stacks.clone();
        let make_stack = move |_, facts: &Facts| {
            let listeners = vec![UdpListener { listener: Listener(0), local: (SERVER, PORT).into() }];
            let stack = stack(stack::Config { listeners, ..stack::Config::default() }, SERVER.into(), facts);
            made.lock().unwrap_or_else(PoisonError::into_inner).push(stack.counters());
            stack
        };
        let dataplane = Dataplane::start(queues, &config, make_stack, |_| Sink).context("the readers")?;
        let stacks = stacks.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(Threads { dataplane, stacks })
    }

    /// Datagrams that the stacks have handed to the service, both checksums verified. That any went another way is an error.
    fn received(&self) -> Result<u64> {
        for reason in DropReason::ALL {
            let dropped: u64 = self.stacks.iter().map(|stack| stack.dropped(*reason)).sum();
            ensure!(dropped == 0, "a stack dropped {dropped} datagrams: {}", reason.label());
        }
        let crossed: u64 = self.dataplane.crossings().map(|it| it.frames_out.get() + it.lost.get()).sum();
        ensure!(crossed == 0, "{crossed} frames came at another thread's queue");
        if self.dataplane.counters().any(|counters| counters.panics.get() > 0) {
            bail!("a reader panicked");
        }
        Ok(self.stacks.iter().map(|stack| stack.handled(Handled::Udp4Unanswered)).sum())
    }

    fn figures(&self, seconds: f64, sent: u64) -> Result<Figures> {
        let spent = Spent::of_threads("dataplane-")?;
        Ok(Figures {
            received: self.received()?,
            sent,
            seconds,
            busy_s: spent.busy_s,
            empty: self.dataplane.counters().map(|counters| counters.empty_cycles.get()).sum(),
            slept: spent.slept,
            put_off: spent.put_off,
        })
    }

    /// Ends them. Their ends of the queues go first: frames that are on their way home arrive at the wire's.
    fn stop(self) {
        drop(self.dataplane.stop());
    }
}

#[cfg(test)]
mod tests {
    use super::super::{PATIENCE, tests::options};
    use super::*;
    use wire::ipv4::Ipv4;
    use wire::toeplitz::{self, Input};
    use wire::udp::{Udp, Verdict};

    const READERS: Readers = Readers { count: 3, batch: 8, processors: 1 };

    #[test]
    fn each_source_has_a_sound_frame_at_the_queue_of_its_hash() {
        let flows = Flows::new(512, READERS.count).unwrap();
        let mut dealt = [0; 3];
        for (n, source) in flows.sources.iter().enumerate() {
            let ip = Ipv4::parse(&source.frame[14..]).unwrap();
            let udp = Udp::parse(&source.frame[14 + 20..]).unwrap();
            let pseudo = Sum::pseudo_v4(ip.src(), ip.dst(), Protocol::UDP, udp.bytes() as u16);
            assert_eq!((udp.verdict(pseudo), udp.payload()), (Verdict::Good, &[b'x'; BYTES][..]));
            assert_eq!((udp.src_port(), udp.dst_port()), (FIRST_PORT + n as u16, PORT));
            let (src, dst) = ((ip.src(), udp.src_port()).into(), (ip.dst(), udp.dst_port()).into());
            let input = Input::of(src, dst, true).unwrap();
            let hash = toeplitz::hash(&Key::MICROSOFT, input.as_bytes()) as usize;
            assert_eq!(source.queue, hash % GROUPS % 3, "{src}");
            dealt[source.queue] += 1;
        }
        assert!(dealt.iter().all(|flows| *flows > 100), "{dealt:?}");
        let waiting = flows.waiting(20_000);
        assert_eq!(waiting.iter().sum::<usize>(), 20_000);
        assert!(waiting.iter().all(|frames| *frames > 4_000), "{waiting:?}");
    }

    /// Queues with room for so many frames, each end of which starts with so many.
    fn bed(sources: u16, room: usize, frames: usize) -> (Nic, Vec<Queue>) {
        let flows = Flows::new(sources, READERS.count).unwrap();
        nic(flows, (0..READERS.count).map(|_| (room, frames))).unwrap()
    }

    #[test]
    fn frames_come_home_and_are_counted_on_the_way() {
        let (mut nic, mut queues) = bed(48, 1024, 1024);
        nic.fill(&mut queues, 1_000).unwrap();
        let threads = Threads::start(queues, &nic.flows, READERS).unwrap();
        drained(Instant::now(), 1_000, || threads.received()).unwrap();
        let received = threads.dataplane.counters().map(|counters| counters.received.get());
        assert_eq!(
            received.collect::<Vec<_>>(),
            nic.flows.waiting(1_000).iter().map(|n| *n as u64).collect::<Vec<_>>()
        );
        threads.stop();
        for wire in &nic.wires {
            let frames: Vec<Frame> = std::iter::from_fn(|| locked(wire).take()).collect();
            assert_eq!(frames.len(), 1024);
            frames.into_iter().for_each(|frame| locked(wire).give(frame));
        }
    }

    #[test]
    fn a_datagram_that_the_stack_drops_is_an_error() {
        for (at, reason) in [(14 + 20 + 8, "udp checksum"), (14 + 8, "ipv4 checksum"), (5, "not our mac")] {
            let (mut nic, mut queues) = bed(48, 1024, 1024);
            nic.flows.sources[7].frame[at] ^= 1;
            nic.fill(&mut queues, 1_000).unwrap();
            let threads = Threads::start(queues, &nic.flows, READERS).unwrap();
            let error = drained(Instant::now(), 1_000, || threads.received()).unwrap_err();
            // the others may be read or not when the first is found
            assert!(error.to_string().ends_with(&format!("datagrams: {reason}")), "{error}");
        }
    }

    #[test]
    fn a_frame_at_a_queue_of_another_thread_is_an_error() {
        let (mut nic, mut queues) = bed(48, 1024, 1024);
        let source = &mut nic.flows.sources[7];
        source.queue = (source.queue + 1) % 3;
        // one pool for all, as frames that cross want it
        let config = pipe::Config { queues: 3, ..pipe::Config::default() };
        let (wires, ends) = pipe::pair(&config).unwrap();
        nic.wires = wires.into_iter().map(Mutex::new).collect();
        for (queue, pipe) in queues.iter_mut().zip(ends) {
            queue.pipe = pipe;
        }
        nic.fill(&mut queues, 1_000).unwrap();
        let threads = Threads::start(queues, &nic.flows, READERS).unwrap();
        let error = drained(Instant::now(), 1_000, || threads.received()).unwrap_err();
        assert!(error.to_string().ends_with("came at another thread's queue"), "{error}");
    }

    #[test]
    fn what_finds_its_queue_full_is_counted_and_lost() {
        let (mut nic, mut queues) = bed(1, 64, 64 + RUN);
        let error = nic.fill(&mut queues, 100).unwrap_err();
        assert_eq!(error.to_string(), "64 of 100 datagrams found room in the queues");
        // and of those that are sent while nobody reads
        let (nic, _queues) = bed(1, 64, 64 + RUN);
        assert_eq!((0..10).map(|run| nic.send(run)).sum::<u64>(), 160);
        assert_eq!(nic.counts(), (64, 96));
    }

    #[test]
    fn all_that_was_sent_is_read_or_was_dropped() {
        for count in [1, 3] {
            let readers = Readers { count, batch: 1, processors: 1 };
            let options = options("udp-readers --datagrams 1000 --sources 16 --seconds 0.2 --senders 2");
            let figures = live(&options, readers).unwrap();
            assert!(figures.received > 0 && figures.received <= figures.sent, "{figures:?}");
            assert!(figures.busy_s > 0.0, "{figures:?}");
        }
    }

    #[test]
    fn a_reader_that_found_nothing_and_sleeps_is_woken() {
        let (nic, queues) = bed(16, 1024, 1024);
        let threads = Threads::start(queues, &nic.flows, READERS).unwrap();
        for round in 0..20 {
            let begun = Instant::now();
            while !threads.dataplane.pulses().all(|pulse| pulse.asleep) {
                assert!(begun.elapsed() < PATIENCE, "round {round}: a reader does not sleep");
                std::thread::yield_now();
            }
            nic.send(round);
            drained(Instant::now(), RUN as u64 * (round as u64 + 1), || threads.received()).unwrap();
        }
        let figures = threads.figures(1.0, 320).unwrap();
        assert!(figures.received == 320 && figures.empty > 0 && figures.slept > 0, "{figures:?}");
    }

    #[test]
    fn memory_has_a_bound() {
        assert_eq!((live_frames(50_000, 1), live_frames(50_000, 7), live_frames(1_000, 64)), (65_536, 65_536, 1024));
        for queues in 1..=64 {
            let frames = live_frames(200_000, queues);
            let bytes = 2 * queues * (frames + IN_HAND) * CHUNK_BYTES;
            assert!(frames.is_power_of_two() && bytes <= MEMORY_BYTES && frames >= 4096, "{queues}: {frames}");
        }
        ensure_room(1 << 20).unwrap();
        let error = ensure_room((1 << 20) + 1).unwrap_err().to_string();
        assert!(error.starts_with("--datagrams 1048577: ") && error.contains("1048576; ask for fewer"), "{error}");
    }
}
