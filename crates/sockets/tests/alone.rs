//! A service without listeners: what it does begins with itself.

mod common;

use app::{Service, Streams};
use base::Instant;
use common::{PATIENCE, total};
use sockets::{Config, Engine};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};

/// Says at each wake-up which of the thread's services it is; panics instead when it is to.
struct Alone {
    life: usize,
    told: Sender<usize>,
    fails: Arc<AtomicBool>,
}

impl Service for Alone {
    fn woken<C: Streams>(&mut self, _: Instant, _: &mut C) {
        assert!(!self.fails.swap(false, Ordering::AcqRel), "asked to");
        self.told.send(self.life).unwrap();
    }
}

#[test]
fn it_has_a_first_cycle_and_another_one_after_a_panic() {
    let (told, lives) = channel();
    let (fails, made) = (Arc::<AtomicBool>::default(), AtomicUsize::new(0));
    let failing = fails.clone();
    let make = move |_| {
        let life = made.fetch_add(1, Ordering::AcqRel);
        Alone { life, told: told.clone(), fails: failing.clone() }
    };
    let config = Config { may_lack_endpoints: true, ..Config::default() };
    let running = Engine::bind(config).unwrap().start(make).unwrap();
    assert_eq!(lives.recv_timeout(PATIENCE), Ok(0), "nobody has woken it");
    fails.store(true, Ordering::Release);
    running.wake();
    // the one that was woken has failed, and what was left for it is the next one's
    let next = std::iter::repeat_with(|| lives.recv_timeout(PATIENCE)).find(|life| *life != Ok(0));
    assert_eq!((next, total(&running, |c| c.panics.get())), (Some(Ok(1)), 1));
}
