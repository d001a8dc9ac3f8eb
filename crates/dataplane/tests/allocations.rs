//! No allocation for a packet. A program of its own, since it replaces the allocator.

use app::{Listener, Service};
use base::{Burst, Instant};
use dataplane::{Floor, Loop};
use port::{Port, pipe};

#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::Counting;

/// Sends every other frame back and drops the rest.
struct Half;

impl Floor for Half {
    fn input<S: Service>(&mut self, now: Instant, rx: &mut Burst, tx: &mut Burst, free: &mut Burst, service: &mut S) {
        service.datagrams(now, Listener(0), &mut []);
        for (n, frame) in rx.drain(..).enumerate() {
            if n % 2 == 0 { tx.push(frame) } else { free.push(frame) }
        }
    }
    fn poll<S: Service>(&mut self, _: Instant, _: &mut dyn port::Supply, _: &mut Burst, _: &mut S) -> Option<Instant> {
        None
    }
}

struct Nothing;
impl Service for Nothing {}

#[test]
fn cycles_do_not_allocate() {
    let (mut clients, mut servers) = pipe::pair(&pipe::Config::default()).unwrap();
    let client = &mut clients[0];
    let mut cycles = Loop::new(servers.remove(0), Half, Nothing, 32);
    let mut burst = Burst::new();
    // this thread's: the harness's own may print meanwhile
    let before = allocations::of_thread();
    let mut answers = 0;
    for n in 0..1000 {
        for _ in 0..n % 64 {
            let mut frame = client.take().expect("a free frame");
            assert!(frame.fill(b"packet"));
            burst.push(frame);
        }
        client.transmit(&mut burst);
        cycles.cycle(Instant::from_nanos(n));
        cycles.cycle(Instant::from_nanos(n));
        answers += client.receive(&mut burst, 64);
        for frame in burst.drain(..) {
            client.give(frame);
        }
        client.flush();
    }
    assert_eq!(allocations::of_thread() - before, 0);
    assert!(answers > 10_000);
}
