//! A service that keeps its thread is seen, on both engines, by name.

mod common;

use app::{Cycles, Service};
use common::{Hand, remote};
use dataplane::{Dataplane, Idle};
use port::pipe::{self, Pipe};
use stack::Stack;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The service has its thread sleep, which no scheduler is to blame for; what was counted then.
fn keeps(hand: &Hand, cycles: &Arc<Cycles>) {
    hand.call(|_| ());
    let before = cycles.slow.get();
    let start = std::time::Instant::now();
    while cycles.slow.get() == before {
        assert!(start.elapsed() < common::PATIENCE, "{cycles:?}");
        // again where it was not counted: waits for the processor are taken off, and may be all of it
        hand.call(|_| std::thread::sleep(Duration::from_millis(60)));
        // told at the end of the cycle that the call was made in
        hand.call(|_| ());
    }
    assert!(cycles.slow_ns.get() >= 30_000_000 && cycles.longest_ns.get() >= 30_000_000, "{cycles:?}");
    assert!(cycles.service().contains("Remote"), "{cycles:?}");
}

#[test]
fn on_kernel_sockets() {
    let (remote, hand) = remote();
    let remote = Mutex::new(Some(remote));
    let builder = embed::Builder::new().udp("127.0.0.1:0".parse().unwrap()).slow_after(Duration::from_millis(30));
    let server = builder.start(move |_| remote.lock().unwrap().take().expect("one thread")).unwrap();
    keeps(&hand, &server.cycles()[0]);
    let mut shown = 0;
    server.report(&mut |figure| shown += u64::from(figure.name == "slow_cycles_total" && figure.value > 0));
    assert_eq!(shown, 1);
}

#[test]
fn on_our_own_stack() {
    let (mut ours, _theirs) = pipe::pair(&pipe::Config::default()).unwrap();
    let (remote, hand) = remote();
    let name = remote.name();
    let remote = Mutex::new(Some(remote));
    let config =
        dataplane::Config { idle: Idle::Block, slow_after: Duration::from_millis(30), ..dataplane::Config::default() };
    let dataplane: Dataplane<Pipe, common::Remote> = Dataplane::start(
        vec![ours.remove(0)],
        &config,
        |_, facts| Stack::new(stack::Config::default(), facts),
        move |_| remote.lock().unwrap().take().expect("one thread"),
    )
    .unwrap();
    let cycles = dataplane.cycles().next().unwrap().clone();
    keeps(&hand, &cycles);
    assert_eq!((cycles.service(), cycles.thread()), (name, ("dataplane", "0")));
}
