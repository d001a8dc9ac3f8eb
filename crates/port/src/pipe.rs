//! An in-memory NIC pair: what one end transmits, the other receives.
//!
//! For tests and for measuring the stack without a kernel. Each end has its own frames, as each host has its own memory:
//! [`Port::flush`] of the receiving side copies nothing, but a frame that arrives is the sender's chunk; it travels home
//! through the receiver's transmit or the way between their pools, so the receiver may answer in place, through any of its
//! queues, and the pipe moves handles only.
//! What is gathered goes over as it is, a frame with its headers and a piece of shared bytes beside it; the receiving end puts the
//! two together, as a card does that writes into its host's memory.
//! Rings are bounded; a frame that finds the receive ring full is dropped and counted, as a NIC does.

use crate::{Cuts, Facts, Gather, Large, MOST_BYTES, Mac, Outgoing, Piece, Port, Segmentation};
use base::ring::{Consumer, Producer, ring};
use base::{Arena, Burst, Counter, Frame, Pool};
use std::io;
use std::sync::Arc;

/// How a pair is made.
#[derive(Clone, Debug)]
pub struct Config {
    /// queues of each end, at least one
    pub queues: usize,
    /// bytes of the largest packet above the link layer
    pub mtu: usize,
    /// frames that wait in one direction of one queue at most; a power of two
    pub ring_frames: usize,
    /// free frames each end's queue starts with
    pub frames: u32,
    /// hardware addresses of the first and the second end
    pub macs: [Mac; 2],
}

impl Default for Config {
    fn default() -> Self {
        Config { queues: 1, mtu: 1500, ring_frames: 1024, frames: 4096, macs: [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]] }
    }
}

/// What one queue of one end has counted; shared with whoever shows it.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Stats {
    /// frames handed to the other end
    pub sent: Counter,
    /// frames that found the other end's receive ring full
    pub dropped: Counter,
    /// super-segments that were cut into frames
    pub large: Counter,
    /// frames that were gathered
    pub gathered: Counter,
}

/// One queue of one end.
#[derive(Debug)]
pub struct Pipe {
    facts: Facts,
    out: Producer<Frame>,
    into: Consumer<Frame>,
    /// the payload of gathered frames, each with the frame's number in `out`
    out_pieces: Producer<(u32, Piece)>,
    into_pieces: Consumer<(u32, Piece)>,
    /// the first of `into_pieces`, whose frame has not come yet
    piece: Option<(u32, Piece)>,
    /// frames that went into `out` and came out of `into`, modulo 2^32
    pushed: u32,
    popped: u32,
    pool: Pool,
    segments: bool,
    gathers: bool,
    stats: Arc<Stats>,
}

impl Pipe {
    /// What this queue has counted.
    pub fn stats(&self) -> &Arc<Stats> {
        &self.stats
    }

    /// Whether a frame is one of this queue's.
    pub fn has(&self, frame: &Frame) -> bool {
        self.pool.is_home_of(frame)
    }

    /// Whether it takes super-segments and cuts them, as a device with TSO; not at first.
    pub fn set_segments(&mut self, segments: bool) {
        self.segments = segments;
    }

    /// Whether it takes gathered frames; not at first.
    pub fn set_gathers(&mut self, gathers: bool) {
        self.gathers = gathers;
    }

    /// Puts the frame that came out of the ring last together with its payload, if that was gathered.
    fn complete(&mut self, frame: &mut Frame) {
        if self.piece.is_none() {
            self.piece = self.into_pieces.pop();
        }
        if let Some((_, piece)) = self.piece.take_if(|(number, _)| *number == self.popped) {
            piece.append_to(frame);
        }
    }
}

impl Port for Pipe {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn receive(&mut self, into: &mut Burst, limit: usize) -> usize {
        let n = limit.min(into.remaining_capacity());
        let n = n.min(self.into.waiting(n));
        // a piece goes into its ring before its frame does, so those of the frames that wait are seen now
        let gathered = self.piece.is_some() || self.into_pieces.waiting(1) > 0;
        for _ in 0..n {
            let Some(mut frame) = self.into.pop() else { break };
            if gathered {
                self.complete(&mut frame);
            }
            self.popped = self.popped.wrapping_add(1);
            into.push(frame);
        }
        n
    }

    fn waiting(&mut self) -> usize {
        self.into.waiting(usize::MAX)
    }

    fn transmit_room(&mut self) -> usize {
        usize::MAX // a full ring drops, as a wire does, so there is always room
    }

    fn transmit(&mut self, from: &mut Burst) -> usize {
        let n = from.len();
        let mut frames = from.drain(..);
        let sent = self.out.push_all(&mut frames);
        self.pushed = self.pushed.wrapping_add(sent as u32);
        self.stats.sent.add(sent as u64);
        self.stats.dropped.add((n - sent) as u64);
        for frame in frames {
            self.pool.give(frame);
        }
        n
    }

    fn flush(&mut self) -> Outgoing {
        self.pool.bring_home();
        Outgoing::Nothing
    }

    fn take(&mut self) -> Option<Frame> {
        self.pool.take()
    }

    fn give(&mut self, frame: Frame) {
        self.pool.give(frame);
    }

    fn large(&mut self) -> Option<&mut dyn Large> {
        self.segments.then_some(self)
    }

    fn gather(&mut self) -> Option<&mut dyn Gather> {
        self.gathers.then_some(self)
    }
}

impl Large for Pipe {
    fn most_bytes(&mut self) -> usize {
        MOST_BYTES
    }

    /// Segments that find no frame are lost, as on a wire.
    fn send(&mut self, header: &[u8], payload: &[&[u8]], how: &Segmentation) -> bool {
        let mut cuts = Cuts::new(header, payload, how);
        while let Some(bytes) = cuts.next_bytes() {
            let Some(mut frame) = self.take() else {
                self.stats.dropped.add(1);
                break;
            };
            frame.set_len(bytes);
            cuts.write(frame.bytes_mut());
            match self.out.push(frame) {
                Ok(()) => {
                    self.pushed = self.pushed.wrapping_add(1);
                    self.stats.sent.add(1);
                }
                Err(frame) => {
                    self.stats.dropped.add(1);
                    self.pool.give(frame);
                }
            }
        }
        self.stats.large.add(1);
        true
    }
}

impl Gather for Pipe {
    fn frame(&mut self) -> Option<Frame> {
        self.take()
    }

    fn give_back(&mut self, frame: Frame) {
        self.give(frame);
    }

    /// As on a wire, what finds the other end's ring full is lost.
    fn send(&mut self, head: Frame, piece: Piece) -> Result<(), Frame> {
        if head.len() + piece.len() > self.facts.frame_bytes || piece.len() > head.room() - head.len() {
            return Err(head);
        }
        // there is a place for the piece of each frame
        if self.out.room(1) == 0 || self.out_pieces.push((self.pushed, piece)).is_err() {
            self.stats.dropped.add(1);
            self.give(head);
            return Ok(());
        }
        match self.out.push(head) {
            Ok(()) => {
                self.pushed = self.pushed.wrapping_add(1);
                self.stats.sent.add(1);
                self.stats.gathered.add(1);
            }
            Err(_) => unreachable!("there was room"),
        }
        Ok(())
    }
}

/// Two ends, each a `Vec` of its queues; queue `n` of one end is joined to queue `n` of the other.
///
/// # Errors
/// The kernel's, when there is no memory for the frames.
///
/// # Panics
/// When `ring_frames` is not a power of two.
pub fn pair(config: &Config) -> io::Result<(Vec<Pipe>, Vec<Pipe>)> {
    pair_with_pools(config, 0).map(|(first, second, _)| (first, second))
}

/// The same, and so many pools more that frames find their way home to, for threads without a queue ([`crate::guest`]).
///
/// # Errors
/// The kernel's, when there is no memory for the frames.
///
/// # Panics
/// When `ring_frames` is not a power of two.
pub fn pair_with_pools(config: &Config, more: usize) -> io::Result<(Vec<Pipe>, Vec<Pipe>, Vec<Pool>)> {
    let pools = (0..2 * config.queues + more).map(|_| pool(config)).collect::<io::Result<Vec<Pool>>>()?;
    let mut pools = Pool::join(pools).into_iter();
    let mut ends = (Vec::new(), Vec::new());
    for _ in 0..config.queues {
        let (first_out, second_in) = ring(config.ring_frames);
        let (second_out, first_in) = ring(config.ring_frames);
        // the receiver may hold one whose frame it has not taken out yet
        let (first_out_pieces, second_in_pieces) = ring(2 * config.ring_frames);
        let (second_out_pieces, first_in_pieces) = ring(2 * config.ring_frames);
        let mut end = |side, rings, pieces| {
            let pool = pools.next().expect("a pool for each queue of each end");
            end(config, side, pool, rings, pieces)
        };
        ends.0.push(end(0, (first_out, first_in), (first_out_pieces, first_in_pieces)));
        ends.1.push(end(1, (second_out, second_in), (second_out_pieces, second_in_pieces)));
    }
    Ok((ends.0, ends.1, pools.collect()))
}

fn chunk_bytes(config: &Config) -> u16 {
    if config.mtu <= 1500 { 2048 } else { 4096 }
}

fn pool(config: &Config) -> io::Result<Pool> {
    let (arena, frames) = Arena::new(config.frames, chunk_bytes(config))?;
    Ok(Pool::new(arena, frames))
}

type FrameEnds = (Producer<Frame>, Consumer<Frame>);
type PieceEnds = (Producer<(u32, Piece)>, Consumer<(u32, Piece)>);

fn end(config: &Config, side: usize, pool: Pool, (out, into): FrameEnds, pieces: PieceEnds) -> Pipe {
    let room = usize::from(chunk_bytes(config) - base::arena::HEADROOM_BYTES);
    let facts = Facts {
        mac: config.macs[side],
        mtu: config.mtu,
        frame_bytes: room,
        virtual_link: true,
        receive_slots: config.ring_frames,
    };
    let (out_pieces, into_pieces) = pieces;
    Pipe {
        facts,
        out,
        into,
        out_pieces,
        into_pieces,
        piece: None,
        pushed: 0,
        popped: 0,
        pool,
        segments: false,
        gathers: false,
        stats: Arc::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send(port: &mut Pipe, packet: &[u8]) {
        let mut frame = port.take().expect("a free frame");
        assert!(frame.fill(packet));
        let mut burst = Burst::new();
        burst.push(frame);
        assert_eq!(port.transmit(&mut burst), 1);
        port.flush();
    }

    #[test]
    fn a_frame_crosses_is_answered_in_place_and_comes_home() {
        let (mut a, mut b) = pair(&Config { frames: 4, ..Config::default() }).unwrap();
        let (a, b) = (&mut a[0], &mut b[0]);
        for _ in 0..20 {
            send(a, b"question");
            let mut burst = Burst::new();
            assert_eq!(b.receive(&mut burst, 64), 1);
            burst[0].bytes_mut().copy_from_slice(b"answered");
            b.transmit(&mut burst);
            assert_eq!(a.receive(&mut burst, 64), 1);
            assert_eq!(burst[0].bytes(), b"answered");
            a.give(burst.pop().unwrap());
        }
    }

    #[test]
    fn frames_given_by_the_receiver_return_to_the_sender() {
        let (mut a, mut b) = pair(&Config { frames: 2, ..Config::default() }).unwrap();
        for _ in 0..10 {
            send(&mut a[0], b"one way");
            let mut burst = Burst::new();
            assert_eq!(b[0].receive(&mut burst, 1), 1);
            b[0].give(burst.pop().unwrap());
        }
    }

    #[test]
    fn a_full_ring_drops_and_counts() {
        let (mut a, mut b) = pair(&Config { ring_frames: 2, frames: 8, ..Config::default() }).unwrap();
        for _ in 0..5 {
            send(&mut a[0], b"x");
        }
        assert_eq!((a[0].stats().sent.get(), a[0].stats().dropped.get()), (2, 3));
        let mut burst = Burst::new();
        assert_eq!(b[0].receive(&mut burst, 64), 2);
        for frame in burst.drain(..) {
            b[0].give(frame);
        }
        a[0].flush();
        assert_eq!(a[0].pool.len(), 8);
    }

    #[test]
    fn a_ring_overran_if_seven_eighths_of_it_wait() {
        let (mut a, mut b) = pair(&Config { ring_frames: 16, frames: 32, ..Config::default() }).unwrap();
        for sent in 1..=20 {
            send(&mut a[0], b"x");
            let waiting = b[0].waiting();
            assert_eq!(b[0].facts().overran(waiting), sent >= 14, "{sent}");
        }
    }

    #[test]
    fn receive_keeps_to_its_limit_and_queues_do_not_mix() {
        let (mut a, mut b) = pair(&Config { queues: 2, ..Config::default() }).unwrap();
        for _ in 0..3 {
            send(&mut a[1], b"second queue");
        }
        let mut burst = Burst::new();
        assert_eq!(b[0].receive(&mut burst, 64), 0);
        assert_eq!(b[1].receive(&mut burst, 2), 2);
        assert_eq!(b[1].receive(&mut burst, 2), 1);
        for frame in burst.drain(..) {
            b[1].give(frame);
        }
    }
    #[test]
    fn gathered_frames_keep_their_place_and_hold_their_bytes_until_they_arrive() {
        let (mut a, mut b) = pair(&Config { ring_frames: 8, frames: 8, ..Config::default() }).unwrap();
        let (a, b) = (&mut a[0], &mut b[0]);
        assert!(a.gather().is_none());
        a.set_gathers(true);
        let shared: Arc<[u8]> = (0..100).collect();
        let expect = |n: usize, gathered: bool| match gathered {
            true => [&[n as u8][..], &shared[n..n + 10]].concat(),
            false => vec![n as u8],
        };
        let mut sent = Vec::new();
        for round in 0..50usize {
            // each round another mixture, taken out a few at a time
            for n in 0..round % 8 {
                let gathered = (round * 7 + n * n) % 3 > 0;
                if gathered {
                    let gather = a.gather().unwrap();
                    let mut head = gather.frame().unwrap();
                    assert!(head.fill(&[n as u8]));
                    gather.send(head, Piece::new(shared.clone(), n, 10)).unwrap();
                } else {
                    send(a, &[n as u8]);
                }
                sent.push(expect(n, gathered));
            }
            let gathered = sent.iter().filter(|packet| packet.len() > 1).count();
            assert_eq!(Arc::strong_count(&shared), 1 + gathered);
            let mut burst = Burst::new();
            while b.receive(&mut burst, 1 + round % 3) > 0 {}
            let came: Vec<_> = burst.iter().map(|frame| frame.bytes().to_vec()).collect();
            assert_eq!(came, std::mem::take(&mut sent), "round {round}");
            assert_eq!(Arc::strong_count(&shared), 1);
            burst.drain(..).for_each(|frame| b.give(frame));
        }
        assert_eq!(a.stats().dropped.get(), 0);
        assert!(a.stats().gathered.get() > 50);
    }

    #[test]
    fn a_gathered_frame_that_finds_no_room_is_lost_and_one_too_long_refused() {
        let (mut a, mut b) = pair(&Config { ring_frames: 2, frames: 8, ..Config::default() }).unwrap();
        a[0].set_gathers(true);
        let shared: Arc<[u8]> = vec![7; 4000].into();
        let mut offer = |len: usize| {
            let gather = a[0].gather().unwrap();
            let mut head = gather.frame().unwrap();
            assert!(head.fill(b"head"));
            gather.send(head, Piece::new(shared.clone(), 0, len))
        };
        let head = offer(1790).unwrap_err();
        assert_eq!(head.bytes(), b"head");
        for _ in 0..5 {
            offer(1000).unwrap();
        }
        a[0].gather().unwrap().give_back(head);
        assert_eq!((a[0].stats().gathered.get(), a[0].stats().dropped.get()), (2, 3));
        let mut burst = Burst::new();
        assert_eq!(b[0].receive(&mut burst, 64), 2);
        assert!(burst.iter().all(|frame| frame.len() == 1004));
        burst.drain(..).for_each(|frame| b[0].give(frame));
        a[0].flush();
        assert_eq!((a[0].pool.len(), Arc::strong_count(&shared)), (8, 1));
    }
}
