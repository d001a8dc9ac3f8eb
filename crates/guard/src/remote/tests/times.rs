//! What time the application is told.

use super::*;
use base::Clock;
use std::sync::mpsc;

/// How long a thread of a busy machine is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// Notes the times that it is told, in their order.
#[derive(Default)]
struct Notes {
    cycle: Instant,
    woken: Instant,
    flush: Instant,
    /// the thread is about to sleep
    rests: Option<mpsc::Sender<Instant>>,
}

impl Service for Notes {
    fn cycle(&mut self, now: Instant) {
        self.cycle = now;
    }
    fn woken<C: Streams>(&mut self, now: Instant, _: &mut C) {
        self.woken = now;
    }
    fn flush<C: Streams>(&mut self, now: Instant, _: &mut C) {
        self.flush = now;
    }
    fn may_rest(&mut self, now: Instant) -> bool {
        if let Some(rests) = &self.rests {
            // nobody listens any more when the test is over
            let _ = rests.send(now);
        }
        true
    }
}

/// A world whose engine goes by the machine's clock, has told the time once, and sleeps since; and the clock as it is told.
fn sleeping() -> (World, Clock) {
    let mut world = World::timed();
    world.engine.now = Clock::at(Clock::start().zero_ns() / 2).now().as_nanos();
    world.cycle();
    let clock = world.pair.attached.zero().unwrap().unwrap();
    std::thread::sleep(Duration::from_millis(1));
    (world, clock)
}

#[test]
fn who_is_woken_by_its_own_waker_is_told_the_time() {
    let (mut world, clock) = sleeping();
    let (mut notes, before) = (Notes::default(), clock.now());
    world.woken.set();
    assert!(world.client.batch(&mut notes, &world.woken));
    assert!(notes.woken >= before && notes.woken <= clock.now(), "{:?} is before {before:?}", notes.woken);
    assert_eq!([notes.cycle, notes.flush], [notes.woken; 2]);
    // what is told late may be of an earlier cycle
    world.engine.ask(&mut world.pair.remote, b"?");
    world.cycle();
    assert!(world.pair.remote.now < notes.woken);
    let before = notes.woken;
    assert!(world.client.batch(&mut notes, &world.woken));
    assert!(notes.woken >= before, "from {before:?} back to {:?}", notes.woken);
}

#[test]
fn who_is_about_to_sleep_is_told_the_time() {
    let (world, clock) = sleeping();
    let (rests, told) = mpsc::channel();
    let (attached, goes_on) = (&world.pair.attached, std::sync::atomic::AtomicBool::new(true));
    let before = clock.now();
    std::thread::scope(|scope| {
        let notes = Notes { rests: Some(rests), ..Notes::default() };
        scope.spawn(|| crate::client::run_while(attached, notes, &goes_on).unwrap());
        let now = told.recv_timeout(PATIENCE);
        goes_on.store(false, Ordering::Relaxed);
        assert!(now.is_ok_and(|now| now >= before && now <= clock.now()), "{now:?} is before {before:?}");
    });
}

#[test]
fn a_thread_of_the_grant_runs_one_service() {
    let world = World::new(10);
    let ended = std::sync::atomic::AtomicBool::new(false);
    let run = || crate::client::run_while(&world.pair.attached, Notes::default(), &ended);
    run().unwrap();
    for _ in 0..2 {
        assert_eq!(run().unwrap_err().kind(), std::io::ErrorKind::ResourceBusy);
    }
}
