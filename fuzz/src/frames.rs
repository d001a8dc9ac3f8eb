//! Arbitrary bytes as frames off the wire.

use app::{Datagram, Listener, Service};
use base::{Arena, Burst, Instant, Pool};
use port::Facts;
use stack::{Claim, ClaimMode, Config, OwnAddress, Stack, UdpListener};

/// Answers every datagram with its own bytes, and now and then with the most that fits.
struct Echo;

impl Service for Echo {
    fn datagrams(&mut self, _: Instant, _: Listener, burst: &mut [Datagram<'_>]) {
        for datagram in burst {
            match datagram.question() {
                [] => {}
                [0xFF, ..] => datagram.reply(datagram.capacity()),
                question => datagram.reply(question.len()),
            }
        }
    }
}

/// Each piece is a frame. None may be lost: every one is transmitted or freed. What is transmitted must fit the MTU, and the
/// stack of the other side must find nothing malformed in it.
pub fn frames(data: &[u8]) {
    let mac = [2, 0, 0, 0, 0, 1];
    let facts = Facts { mac, mtu: 1500, frame_bytes: 1792, virtual_link: true, receive_slots: 64 };
    let own = ["198.18.0.1", "2001:db8:18::1"]
        .map(|addr| OwnAddress { addr: addr.parse().expect("an address"), prefix_len: 24 });
    let any = ["0.0.0.0:53", "[::]:53"]
        .map(|local| UdpListener { listener: Listener(0), local: local.parse().expect("an address") });
    let claim = Claim { mode: ClaimMode::Silent, ..Claim::default() };
    let mut stack = Stack::new(Config { own: own.into(), listeners: any.into(), claim, ..Config::default() }, &facts);
    let (arena, frames) = Arena::new(64, 2048).expect("memory for 64 frames");
    let mut pool = Pool::new(arena, frames);
    let (mut rx, mut tx, mut free) = (Burst::new(), Burst::new(), Burst::new());
    for piece in crate::pieces(data).take(48) {
        let mut frame = pool.take().expect("more frames than pieces");
        if frame.fill(&piece[..piece.len().min(1792)]) {
            rx.push(frame);
        } else {
            pool.give(frame);
        }
    }
    let n = rx.len();
    stack.input(Instant::ZERO, &mut rx, &mut tx, &mut free, &mut Echo);
    assert_eq!((rx.len(), tx.len() + free.len()), (0, n), "a frame was lost or made");
    for frame in &tx {
        assert!(frame.len() >= 14 && frame.len() <= 1500 + 18, "an answer of {} bytes", frame.len());
    }
    for frame in tx.drain(..).chain(free.drain(..)) {
        pool.give(frame);
    }
    assert_eq!(pool.len(), 64);
}
