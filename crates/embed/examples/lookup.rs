//! A UDP service that answers at once, later, and unasked.
//!
//!     cargo run --release -p embed --example lookup -- --listen 127.0.0.1:7008
//!     echo "up" | nc -u -w1 127.0.0.1 7008             # answered where it lies
//!     echo "after 300" | nc -u -w1 127.0.0.1 7008      # after 300 ms, by an alarm
//!     echo "primes 2000000" | nc -u -w3 127.0.0.1 7008 # counted by a thread that may take its time
//!     echo "tick" | nc -u -w5 127.0.0.1 7008           # from now on a line a second, unasked, five times
//!
//! and over AF_XDP, as root:
//!
//!     target/release/examples/lookup --interface eth0 --own 192.0.2.77/24 --listen 192.0.2.77:7008
//!
//! and in a process without privileges, where a late answer needs no permission, and what is unasked does (--connect):
//!
//!     simoom run --listen 127.0.0.1:7008 --connect '127.0.0.0/8:*' -- target/release/examples/lookup
//!
//! Look at: a question that is left unanswered, and answered by `send_to` when the answer is there; alarms, which belong to the service
//! and not to a connection; background work (crate `kit`), so that the elastic thread never waits; answers that are no questions, so that
//! nobody can set it against itself.

mod common;

use app::{Addresses, Datagram, Listener, Service, Streams, Waker};
use base::Instant;
use clap::Parser;
use kit::Background;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

/// A UDP service.
#[derive(Parser)]
struct Options {
    /// Where to listen
    #[arg(long, default_value = "127.0.0.1:7008")]
    listen: SocketAddr,
    #[command(flatten)]
    place: common::Place,
}

/// A job, and its result, with who asked.
type Job = (Listener, Addresses, u32);
type Counted = (Listener, Addresses, usize);

/// What an alarm is for.
struct Promise {
    listener: Listener,
    ends: Addresses,
    text: String,
    /// and so often again, a second later each time
    again: u32,
}

/// One thread's service.
#[derive(Default)]
struct Lookup {
    background: Option<Background<Job, Counted>>,
    /// asked in `datagrams`, which has no calls: set in `woken`, which follows in the same cycle
    promised: Vec<(Duration, Promise)>,
    /// by cookie
    waiting: HashMap<u64, Promise>,
    next_cookie: u64,
    served: u64,
}

/// Primes up to `most`, the slow way.
fn primes((listener, ends, most): Job) -> Counted {
    let mut composite = vec![false; most as usize + 1];
    let mut count = 0;
    for n in 2..=most as usize {
        if !composite[n] {
            count += 1;
            (n * n..=most as usize).step_by(n).for_each(|multiple| composite[multiple] = true);
        }
    }
    (listener, ends, count)
}

impl Lookup {
    fn promise<C: Streams>(&mut self, now: Instant, calls: &mut C, after: Duration, promise: Promise) {
        self.next_cookie += 1;
        // without room for another alarm the client gets no answer, and asks again
        if calls.alarm_set(self.next_cookie, Some(now + after)).is_ok() {
            self.waiting.insert(self.next_cookie, promise);
        }
    }
}

impl Service for Lookup {
    fn begin(&mut self, waker: &Waker) {
        // without threads the questions that need them stay unanswered
        self.background = Background::start("primes", 1, 64, waker, primes).ok();
    }

    fn datagrams(&mut self, now: Instant, listener: Listener, burst: &mut [Datagram<'_>]) {
        for datagram in burst {
            let ends = datagram.addresses;
            if common::may_be_a_server(&ends) {
                continue;
            }
            let text = String::from_utf8_lossy(datagram.question()).into_owned();
            let mut words = text.split_ascii_whitespace();
            let (word, number) = (words.next(), words.next().and_then(|word| word.parse::<u32>().ok()));
            self.served += 1;
            match (word, number) {
                (Some("up"), _) => {
                    let answer = format!("running {} s, {} questions\n", now.as_nanos() / 1_000_000_000, self.served);
                    if answer.len() <= datagram.capacity() {
                        datagram.buffer()[..answer.len()].copy_from_slice(answer.as_bytes());
                        datagram.reply(answer.len());
                    }
                }
                (Some("after"), Some(ms)) => {
                    let promise = Promise { listener, ends, text: format!("{ms} ms later\n"), again: 0 };
                    self.promised.push((Duration::from_millis(ms.into()), promise));
                }
                (Some("tick"), _) => {
                    let promise = Promise { listener, ends, text: "tock\n".into(), again: 4 };
                    self.promised.push((Duration::from_secs(1), promise));
                }
                (Some("primes"), Some(most)) if most <= 100_000_000 => {
                    if let Some(background) = &mut self.background {
                        // a full queue is no answer, as a lost datagram is
                        let _ = background.submit((listener, ends, most));
                    }
                }
                _ => {}
            }
        }
    }

    fn woken<C: Streams>(&mut self, now: Instant, calls: &mut C) {
        for (after, promise) in std::mem::take(&mut self.promised) {
            self.promise(now, calls, after, promise);
        }
        while let Some(result) = self.background.as_mut().and_then(Background::take) {
            if let Ok((listener, ends, count)) = result {
                // a way that is not known any more is a lost datagram
                let _ = calls.send_to(listener, ends, format!("{count} primes\n").as_bytes());
            }
        }
    }

    fn alarm<C: Streams>(&mut self, now: Instant, calls: &mut C, cookie: u64) {
        let Some(Promise { listener, ends, text, again }) = self.waiting.remove(&cookie) else { return };
        let _ = calls.send_to(listener, ends, text.as_bytes());
        if again > 0 {
            self.promise(now, calls, Duration::from_secs(1), Promise { listener, ends, text, again: again - 1 });
        }
    }

    fn name(&self) -> &'static str {
        "lookup"
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = Options::parse();
    common::run(options.place.builder().udp(options.listen), |_| Lookup::default())
}
