//! For tests: an application that keeps to nothing.
//!
//! It follows the protocol far enough to be believed (it accepts, answers, gives back), and spoils what it writes: fields of calls,
//! whole calls, payload while it is read, both rings' indices, the words that are slept on, everything in its area. It
//! also asks the kernel for what it must not get.

use crate::client::Attached;
use crate::layout::{
    ADDRESSES_BYTES, CALL_SLOTS, CREDIT_BYTES, Call, CallKind, EventKind, FILE_BYTES, Handle, SEND_BYTES, SLOT_BYTES,
    SLOTS_AT, TRANSMIT_BYTES, control, header,
};
use crate::map::Map;
use fastrand::Rng;
use rustix::fs::{FallocateFlags, fallocate, ftruncate};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// One application that is hostile.
#[derive(Debug)]
pub struct Hostile {
    receive: Map,
    transmit: Map,
    attached: Attached,
    rng: Rng,
    owner: u16,
    /// places of connections that it may ask for
    places: std::ops::Range<u32>,
    event_tail: u32,
    call_head: u32,
    /// connections that it was told of, gone ones too
    known: Vec<Handle>,
    questions: Vec<Handle>,
}

impl Hostile {
    /// Takes the memory.
    ///
    /// # Errors
    /// It is not there.
    pub fn new(attached: Attached, seed: u64) -> io::Result<Hostile> {
        let (receive, transmit) = attached.maps()?;
        transmit.word(control::ATTACHED_AT).store(1, Ordering::Release);
        let word = |at| receive.word(at).load(Ordering::Relaxed);
        let (owner, from) = (word(header::OWNER_AT) as u16, word(header::CONNECTIONS_AT));
        let places = from..from + word(header::ASKED_AT);
        Ok(Hostile {
            owner,
            places,
            receive,
            transmit,
            attached,
            rng: Rng::with_seed(seed),
            event_tail: 0,
            call_head: 0,
            known: Vec::new(),
            questions: Vec::new(),
        })
    }

    /// Goes on until it is stopped or the dataplane ends.
    pub fn run(&mut self, goes_on: &AtomicBool) {
        let mut turns = 0u32;
        while goes_on.load(Ordering::Relaxed) {
            self.turn();
            turns = turns.wrapping_add(1);
            if turns.is_multiple_of(1024) {
                if !self.attached.is_alive() {
                    return;
                }
                self.ask_the_kernel();
            }
            if self.chance(4) {
                self.attached.ring();
            }
            if turns.is_multiple_of(16) {
                std::thread::yield_now();
            }
        }
    }

    fn chance(&mut self, of: u64) -> bool {
        self.rng.u64(..of) == 0
    }

    fn turn(&mut self) {
        let head = self.receive.word(header::EVENT_HEAD_AT).load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let mut taken = 0;
        while self.event_tail != head && taken < 64 {
            self.take_event();
            taken += 1;
        }
        for _ in 0..self.rng.u64(..4) {
            self.anything();
        }
        // what it owes it gives back now and then
        let tail = if self.chance(500) { self.rng.u64(..) as u32 } else { self.event_tail };
        self.transmit.word(control::EVENT_TAIL_AT).store(tail, Ordering::Release);
        let call_head = if self.chance(500) { self.rng.u64(..) as u32 } else { self.call_head };
        self.transmit.word(control::CALL_HEAD_AT).store(call_head, Ordering::Release);
        if call_head != self.call_head || tail != self.event_tail {
            // let it be seen, then go on from where the other side believes we are
            (0..50).for_each(|_| std::thread::yield_now());
            self.call_head = call_head;
        }
    }

    fn take_event(&mut self) {
        let at = SLOTS_AT + (self.event_tail % crate::layout::EVENT_SLOTS) as usize * SLOT_BYTES;
        self.event_tail = self.event_tail.wrapping_add(1);
        let Some(event) = crate::layout::Event::decode(self.receive.slot(at)) else { return };
        match event.kind {
            EventKind::Knock => {
                self.known.push(event.handle);
                if self.known.len() > 64 {
                    self.known.remove(0);
                }
                let kind = if self.chance(8) { CallKind::Reject } else { CallKind::Accept };
                if !self.chance(8) {
                    self.write(Call::plain(kind, self.owner, event.handle));
                }
            }
            EventKind::Recv => {
                let call = Call::plain(CallKind::Send, self.owner, event.handle);
                let offset = self.rng.u64(..(TRANSMIT_BYTES / 2) as u64) as u32;
                self.write(Call { length: event.length, offset, done: event.length, ..call });
            }
            EventKind::Eof => self.write(Call::plain(CallKind::Close, self.owner, event.handle)),
            EventKind::Datagram => {
                self.questions.push(event.handle);
                if self.questions.len() > 64 {
                    self.questions.remove(0);
                }
                let length = event.length.saturating_sub(ADDRESSES_BYTES as u32);
                self.write(Call { length, ..Call::plain(CallKind::Reply, self.owner, event.handle) });
            }
            EventKind::Connected if event.detail == 0 && self.known.len() < 64 => self.known.push(event.handle),
            EventKind::Sent | EventKind::Dead | EventKind::Timer | EventKind::Connected | EventKind::Alarm => {}
        }
    }

    /// A call that nothing asked for.
    fn anything(&mut self) {
        let handle = match self.known.len() as u64 {
            0 => Handle { index: self.rng.u64(..16) as u32, generation: 0 },
            known => self.known[self.rng.u64(..known) as usize],
        };
        let kind = [CallKind::Send, CallKind::Send, CallKind::Done, CallKind::Timer, CallKind::Accept, CallKind::Reply];
        let kind = kind[self.rng.u64(..6) as usize];
        let (length, offset) = (self.rng.u64(..40_000) as u32, self.rng.u64(..300_000) as u32);
        let (done, at) = (self.rng.u64(..3) as u32 * 7, self.rng.u64(..) >> 20);
        self.write(Call { length, offset, done, at, ..Call::plain(kind, self.owner, handle) });
        self.begin();
        if self.chance(100) {
            // more than it has credit for
            let call = Call { length: SEND_BYTES as u32, ..Call::plain(CallKind::Send, self.owner, handle) };
            (0..5).for_each(|_| self.write(call));
        }
        if self.chance(300) {
            // more than any one may have unsent, and more than all may
            let latest: Vec<Handle> = self.known.iter().rev().take(16).copied().collect();
            for handle in latest {
                for _ in 0..CREDIT_BYTES / SEND_BYTES as u64 + 1 {
                    self.write(Call { length: SEND_BYTES as u32, ..Call::plain(CallKind::Send, self.owner, handle) });
                }
            }
        }
        if self.chance(200) {
            let kind = if self.chance(2) { CallKind::Abort } else { CallKind::Shutdown };
            self.write(Call::plain(kind, self.owner, handle));
        }
    }

    /// Something that it begins itself: a connection, a datagram, an alarm, with whomever and from wherever.
    fn begin(&mut self) {
        let kind = [CallKind::Connect, CallKind::SendTo, CallKind::Alarm][self.rng.u64(..3) as usize];
        let what = self.rng.u64(..);
        let handle = match kind {
            CallKind::Connect if !self.places.is_empty() => Handle {
                index: self.places.start + what as u32 % self.places.len() as u32,
                generation: what as u32 >> 16,
            },
            // mostly the listener of its own
            CallKind::SendTo => Handle { index: (what % 5) as u32, generation: u32::from(self.chance(50)) },
            _ => Handle::of_cookie(what),
        };
        let peer =
            std::net::Ipv4Addr::from(if self.chance(8) { what as u32 } else { 0xc000_0200 | what as u32 & 0xff });
        let local = std::net::SocketAddr::from(([0u16; 8], if self.chance(20) { what as u16 } else { 0 }));
        let peer = std::net::SocketAddr::from((peer, self.rng.u64(..) as u16));
        let ends = crate::layout::encode_addresses(&app::Addresses { local, peer });
        let offset = TRANSMIT_BYTES - 4096 + (what % 2048) as usize;
        self.transmit.copy_in(crate::layout::PAYLOAD_AT + offset, &ends);
        let more = if kind == CallKind::SendTo { what as u32 % 1000 } else { 0 };
        let (length, at) = (ends.len() as u32 + more, if self.chance(3) { what >> 24 } else { what });
        self.write(Call { length, offset: offset as u32, at, ..Call::plain(kind, self.owner, handle) });
    }

    /// Writes a call, spoilt now and then.
    fn write(&mut self, mut call: Call) {
        let what = self.rng.u64(..);
        let mut words = None;
        match self.rng.u64(..40) {
            0 => call.kind = what as u8,
            1 => call.zero = what as u8,
            2 => call.owner = what as u16,
            3 => call.handle.index = what as u32 % 64,
            4 => call.handle.index = what as u32,
            5 => call.handle.generation ^= 1 << (what % 32),
            6 => call.length = what as u32,
            7 => call.offset = what as u32,
            8 => call.done = what as u32,
            9 => call.at = what,
            10 => words = Some([what, self.rng.u64(..), self.rng.u64(..), self.rng.u64(..)]),
            _ => {}
        }
        let at = SLOTS_AT + (self.call_head % CALL_SLOTS) as usize * SLOT_BYTES;
        self.transmit.set_slot(at, words.unwrap_or_else(|| call.encode()));
        self.call_head = self.call_head.wrapping_add(1);
        if self.chance(30) {
            // anywhere, also where it is read this moment; the attached word stays, or no connection would come
            let at = self.rng.u64(..FILE_BYTES as u64 / 8) as usize * 8;
            if at >= SLOTS_AT {
                self.transmit.long(at).store(what, Ordering::Relaxed);
            }
        }
        if self.chance(300) {
            let word = [control::APP_ASLEEP_AT, control::WAKE_AT, control::TURN_AT][self.rng.u64(..3) as usize];
            self.transmit.word(word).store(what as u32, Ordering::Relaxed);
        }
        if self.chance(100) {
            // a call that is written twice while it is looked at
            self.transmit.word(control::CALL_HEAD_AT).store(self.call_head, Ordering::Release);
            self.transmit.set_slot(at, call.encode());
        }
    }

    /// What nobody may get: another size, another right, a hole in what is read only. That it does not is counted on.
    fn ask_the_kernel(&mut self) {
        let [receive, transmit] = self.attached.files();
        for file in [receive, transmit] {
            assert!(
                ftruncate(file, 0).is_err() && ftruncate(file, 1 << 30).is_err(),
                "the size of shared memory changed"
            );
        }
        assert!(Map::new(receive, FILE_BYTES, true).is_err(), "what is read only was mapped to be written");
        assert!(rustix::io::pwrite(receive, b"x", 0).is_err(), "what is read only was written");
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        assert!(fallocate(receive, hole, 0, 4096).is_err(), "what is read only has a hole");
        // this one may succeed, where no filter is: zeros are as good as anything
        let _ = fallocate(transmit, hole, crate::layout::PAYLOAD_AT as u64, TRANSMIT_BYTES as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::ASKING;
    use crate::stats::{REJECTS, Reject};
    use crate::testing::{Echo, Engine, pair, pair_of};
    use crate::{Grant, Options, Permit, client};
    use app::Service;
    use std::time::{Duration, Instant};

    /// How long the gate's run takes; `SIMOOM_HOSTILE_SECONDS=3600 cargo test --release -p guard hostile` takes an hour.
    fn seconds() -> u64 {
        std::env::var("SIMOOM_HOSTILE_SECONDS").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(3)
    }

    /// Memory that this process has.
    fn resident_bytes() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
    }

    /// It may grow by less than this in what remains of a run; with some 25,000 calls a second, an hour shows a leak of a byte in 40 calls.
    const GROWTH_BYTES: usize = 2 << 20;
    /// A run this long is the only test of its process, and by then has the memory that it needs.
    const SETTLED: Duration = Duration::from_secs(60);

    #[test]
    fn a_hostile_application_meets_every_reason_and_nobody_else_notices() {
        let permits = vec![Permit::new([192, 0, 2, 0].into(), 24, None)];
        // more than may be asked for at one time
        let grant = Grant::new(2048, 3..4).permitting(permits);
        // on a machine that is busy their threads may not run for long
        let (quick, long) = (Duration::from_secs(20), Duration::from_secs(3600));
        let mut ours = pair_of(grant, Options { unresponsive: quick, patience: 40 * quick, ..Options::default() });
        ours.remote.budget_bytes = 300_000;
        let mut honest = pair(16, Options { unresponsive: long, patience: long, ..Options::default() });
        let goes_on = AtomicBool::new(true);
        let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
        println!("seed {seed}");
        let mut hostile = Hostile::new(ours.attached, seed).unwrap();
        let honest_attached = honest.attached;
        let (mut engine, mut other) = (Engine::new(12), Engine::new(4));
        std::thread::scope(|scope| {
            scope.spawn(|| hostile.run(&goes_on));
            scope.spawn(|| client::run_while(&honest_attached, Echo::default(), &goes_on).unwrap());
            let mut rng = Rng::with_seed(seed ^ 1);
            let begun = Instant::now();
            let (mut said, mut read, mut rounds) = (0u64, 0u64, 0u64);
            let mut settled_bytes = None;
            let enough = |stats: &crate::stats::Stats| REJECTS.iter().all(|(reason, _)| stats.rejects(*reason) > 0);
            // not less than was asked for, and on a machine that is busy until every reason was met
            while begun.elapsed() < Duration::from_secs(seconds())
                || (!enough(&ours.stats) && begun.elapsed() < Duration::from_secs(600))
            {
                let n = rng.u64(..12) as usize;
                match rng.u64(..6) {
                    0 => engine.knock(&mut ours.remote, n),
                    1 => engine.recv(&mut ours.remote, n, &[7; 700][..rng.u64(..700) as usize]),
                    2 => {
                        // those that were asked for, too
                        let any = rng.u64(..engine.peers.len() as u64) as usize;
                        engine.read(&mut ours.remote, n, 90_000);
                        engine.read(&mut ours.remote, any, 90_000);
                        if any >= 12 && rng.u64(..8) == 0 {
                            engine.end(any, app::DeadReason::Reset);
                        }
                    }
                    3 if rng.u64(..20) == 0 => engine.eof(&mut ours.remote, n),
                    4 if rng.u64(..50) == 0 => engine.end(n, app::DeadReason::Reset),
                    4 => {
                        // as many as may be under way, and then all of them at once
                        let asking = engine.asking();
                        for n in asking.iter().filter(|_| asking.len() >= ASKING as usize) {
                            let outcome = if rng.u64(..64) == 0 { Ok(()) } else { Err(app::DeadReason::Refused) };
                            engine.answer(&mut ours.remote, *n, outcome);
                        }
                    }
                    _ => engine.ask(&mut ours.remote, b"question"),
                }
                // as much time as a ring full of its calls costs
                engine.now += 1_100_000;
                engine.cycle(&mut ours.remote);
                assert!(ours.stats.kept_bytes() <= (64 << 20) + 300_000);
                // the honest one beside is served as if nothing were
                for n in 0..4 {
                    other.knock(&mut honest.remote, n);
                    if other.peers[n].open && other.peers[n].delivered == 0 {
                        other.recv(&mut honest.remote, n, b"honest");
                        said += 6;
                    }
                    other.read(&mut honest.remote, n, usize::MAX);
                }
                other.cycle(&mut honest.remote);
                read += other.forget();
                assert!(engine.unasked.iter().all(|(ends, _)| ends.peer.ip().to_string().starts_with("192.0.2.")));
                engine.forget();
                rounds += 1;
                if settled_bytes.is_none() && begun.elapsed() > SETTLED {
                    settled_bytes = Some(resident_bytes());
                }
            }
            let patience = Instant::now();
            while read < said && patience.elapsed() < Duration::from_secs(60) {
                (0..4).for_each(|n| other.read(&mut honest.remote, n, usize::MAX));
                other.cycle(&mut honest.remote);
                read += other.forget();
            }
            goes_on.store(false, Ordering::Relaxed);
            assert_eq!(read, said, "after {rounds} rounds");
            if let Some(settled) = settled_bytes {
                let now = resident_bytes();
                println!("{rounds} rounds, {settled} bytes resident after {SETTLED:?}, {now} at the end");
                assert!(now < settled + GROWTH_BYTES, "memory grew from {settled} to {now} bytes");
            }
        });
        for (reason, name) in REJECTS {
            assert!(ours.stats.rejects(reason) > 0, "no call was refused for `{name}`");
            assert!(reason == Reject::Stale || honest.stats.rejects(reason) == 0, "the honest one was refused: {name}");
        }
        ours.channel.lose();
        (0..3).for_each(|_| engine.cycle(&mut ours.remote));
        assert!(engine.asking().is_empty() && engine.alarms.is_empty());
        assert_eq!((ours.stats.connections(), ours.stats.kept_bytes()), (0, 0));
        assert!(engine.peers.iter().all(|peer| !peer.open));
        assert!(!ours.remote.has_news() || ours.channel.state() == crate::State::Down);
    }
}
