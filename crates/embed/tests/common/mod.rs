//! A service that does what the test says, between two cycles, and tells the test what happens.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part of this module")]

pub mod protected;

use app::{Addresses, Connection, Datagram, DeadReason, Listener, Service, Streams, Waker};
use base::Instant;
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// Ends waiting for what must happen.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Happened {
    /// a connection came in; what calls said before it was accepted
    Knock(Listener, Connection, Addresses, Vec<Result<(), app::CallError>>),
    Connected(u64, Result<Connection, DeadReason>),
    Recv(u64, Vec<u8>),
    Eof(u64),
    Sent(u64, usize),
    Timer(u64, Instant),
    Alarm(u64, Instant),
    Dead(u64, DeadReason),
    /// the flush that follows a death, in the same cycle
    Flushed(Instant),
    Datagram(Listener, Addresses, Vec<u8>),
}

type Order = Box<dyn FnOnce(&mut dyn Streams, Instant) + Send>;

/// The service's side.
pub struct Remote {
    orders: Receiver<Order>,
    happened: Sender<Happened>,
    wakers: Sender<Waker>,
    accepted: u64,
    /// the time of a cycle in which something died
    died_at: Option<Instant>,
}

/// The test's side.
pub struct Hand {
    orders: Sender<Order>,
    happened: Receiver<Happened>,
    wakers: Receiver<Waker>,
    waker: std::cell::OnceCell<Waker>,
    /// taken from the channel and not asked for yet
    kept: std::cell::RefCell<VecDeque<Happened>>,
}

/// A service, and the hand that works it.
pub fn remote() -> (Remote, Hand) {
    let ((order, orders), (tell, happened), (give, wakers)) = (channel(), channel(), channel());
    let remote = Remote { orders, happened: tell, wakers: give, accepted: 0, died_at: None };
    let hand = Hand { orders: order, happened, wakers, waker: Default::default(), kept: Default::default() };
    (remote, hand)
}

impl Hand {
    /// Has a call made.
    pub fn call<R: Send + 'static>(&self, work: impl FnOnce(&mut dyn Streams) -> R + Send + 'static) -> R {
        self.at(move |calls, _| work(calls))
    }

    /// The same, with the cycle's time.
    pub fn at<R: Send + 'static>(&self, work: impl FnOnce(&mut dyn Streams, Instant) -> R + Send + 'static) -> R {
        let (give, take) = channel();
        let order = move |calls: &mut dyn Streams, now| {
            // who asked waits for it
            let _ = give.send(work(calls, now));
        };
        assert!(self.orders.send(Box::new(order)).is_ok(), "the service is gone");
        self.waker.get_or_init(|| self.wakers.recv_timeout(PATIENCE).expect("a waker")).wake();
        take.recv_timeout(PATIENCE).expect("the call's outcome")
    }

    /// Waits for something that `found` finds something in; what came before it stays for later.
    pub fn wait<R>(&self, what: &str, mut found: impl FnMut(&Happened) -> Option<R>) -> R {
        let mut kept = self.kept.borrow_mut();
        for n in 0..kept.len() {
            if let Some(result) = found(&kept[n]) {
                kept.remove(n);
                return result;
            }
        }
        loop {
            match self.happened.recv_timeout(PATIENCE) {
                Ok(happened) => match found(&happened) {
                    Some(result) => return result,
                    None => kept.push_back(happened),
                },
                Err(_) => panic!("{what} did not come; what did: {kept:?}"),
            }
        }
    }

    /// Waits for exactly this.
    pub fn expect(&self, expected: &Happened) {
        self.wait(&format!("{expected:?}"), |happened| (happened == expected).then_some(()));
    }

    /// What became of a connection that was asked for.
    pub fn connected(&self, cookie: u64) -> Result<Connection, DeadReason> {
        self.wait("connected", |happened| match happened {
            Happened::Connected(of, outcome) if *of == cookie => Some(*outcome),
            _ => None,
        })
    }

    /// The next connection that comes in, with its cookie's worth: who came, and what calls had said before.
    pub fn knock(&self) -> (Listener, Connection, Addresses, Vec<Result<(), app::CallError>>) {
        self.wait("a knock", |happened| match happened {
            Happened::Knock(listener, connection, addresses, before) => {
                Some((*listener, *connection, *addresses, before.clone()))
            }
            _ => None,
        })
    }

    /// So many bytes of a connection.
    pub fn bytes(&self, cookie: u64, count: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while all.len() < count {
            all.extend(self.wait("bytes", |happened| match happened {
                Happened::Recv(of, bytes) if *of == cookie => Some(bytes.clone()),
                _ => None,
            }));
        }
        all
    }

    /// The next datagram to a listener.
    pub fn datagram(&self, to: Listener) -> (Addresses, Vec<u8>) {
        self.wait("a datagram", |happened| match happened {
            Happened::Datagram(listener, addresses, bytes) if *listener == to => Some((*addresses, bytes.clone())),
            _ => None,
        })
    }
}

impl Remote {
    fn tell(&self, happened: Happened) {
        // the test may have seen enough
        let _ = self.happened.send(happened);
    }
}

impl Service for Remote {
    fn begin(&mut self, waker: &Waker) {
        let _ = self.wakers.send(waker.clone());
    }

    fn woken<C: Streams>(&mut self, now: Instant, calls: &mut C) {
        while let Ok(order) = self.orders.try_recv() {
            order(calls, now);
        }
    }

    fn datagrams(&mut self, _: Instant, listener: Listener, burst: &mut [Datagram<'_>]) {
        for datagram in burst {
            self.tell(Happened::Datagram(listener, datagram.addresses, datagram.question().to_vec()));
        }
    }

    fn knock<C: Streams>(
        &mut self,
        _: Instant,
        calls: &mut C,
        listener: Listener,
        connection: Connection,
        addresses: Addresses,
    ) {
        let before = vec![
            calls.send(connection, b"x").map(drop),
            calls.recv_done(connection, 0),
            calls.shutdown(connection),
            calls.close(connection),
            calls.timer_set(connection, None),
        ];
        assert_eq!(calls.room(connection), 0);
        self.accepted += 1;
        calls.accept(connection, 1000 + self.accepted).expect("to accept");
        self.tell(Happened::Knock(listener, connection, addresses, before));
    }

    fn connected<C: Streams>(&mut self, _: Instant, _: &mut C, cookie: u64, outcome: Result<Connection, DeadReason>) {
        self.tell(Happened::Connected(cookie, outcome));
    }

    fn recv<C: Streams>(&mut self, _: Instant, _: &mut C, _: Connection, cookie: u64, bytes: &[u8]) {
        self.tell(Happened::Recv(cookie, bytes.to_vec()));
    }

    fn eof<C: Streams>(&mut self, _: Instant, _: &mut C, _: Connection, cookie: u64) {
        self.tell(Happened::Eof(cookie));
    }

    fn sent<C: Streams>(&mut self, _: Instant, _: &mut C, _: Connection, cookie: u64, bytes: usize, _: usize) {
        self.tell(Happened::Sent(cookie, bytes));
    }

    fn dead(&mut self, now: Instant, _: Connection, cookie: u64, reason: DeadReason) {
        self.died_at = Some(now);
        self.tell(Happened::Dead(cookie, reason));
    }

    fn timer<C: Streams>(&mut self, now: Instant, _: &mut C, _: Connection, cookie: u64) {
        self.tell(Happened::Timer(cookie, now));
    }

    fn alarm<C: Streams>(&mut self, now: Instant, _: &mut C, cookie: u64) {
        self.tell(Happened::Alarm(cookie, now));
    }

    fn flush<C: Streams>(&mut self, now: Instant, _: &mut C) {
        if let Some(died_at) = self.died_at.take() {
            assert_eq!(died_at, now, "the flush of another cycle");
            self.tell(Happened::Flushed(now));
        }
    }
}
