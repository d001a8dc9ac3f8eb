//! A service that sends objects.

use app::{
    Addresses, CallError, Connection, Content, ContentBuilder, DeadReason, Listener, ObjectId, Range, Service, Streams,
};
use arrayvec::ArrayVec;
use base::Instant;
use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

/// What goes in front of each object.
pub const HEAD: &[u8] = b"head of a small object\r\n";
pub const SMALL: ObjectId = ObjectId(0);
pub const BIG: ObjectId = ObjectId(1);

/// A version whose objects tell its number: a small one of 1000 bytes and one of `big_bytes`.
pub fn version(number: u8, big_bytes: usize) -> Arc<Content> {
    let mut builder = ContentBuilder::new();
    assert_eq!(builder.add(&pattern(number, 1000)), SMALL);
    assert_eq!(builder.add(&pattern(number, big_bytes)), BIG);
    builder.finish()
}

pub fn pattern(number: u8, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|n| (n % 251) as u8 ^ number).collect()
}

/// Each byte received is a command: 's' sends the head and the small object, 'b' the big one, 't' the big one in eight parts
/// with the tail of the small one behind each; 'd' finishes writing, 'c' closes, 'n' does nothing, 'w' asks for what must be refused. The
/// window opens as commands are done, so a peer that does not read is not read from.
pub struct Objects {
    current: Arc<Mutex<Arc<Content>>>,
    dead: Sender<DeadReason>,
    clients: HashMap<u64, Client>,
    accepted: u64,
}

/// Commands that wait, and how much of the first was taken.
#[derive(Default)]
struct Client {
    commands: VecDeque<u8>,
    taken: u64,
}

pub type Objecting = (Box<dyn Fn(usize) -> Objects + Send + Sync>, Arc<Mutex<Arc<Content>>>, Receiver<DeadReason>);

pub fn objects(first: &Arc<Content>) -> Objecting {
    let current = Arc::new(Mutex::new(first.clone()));
    let (dead, deaths) = channel();
    let shown = current.clone();
    let make = move |_| Objects { current: current.clone(), dead: dead.clone(), clients: HashMap::new(), accepted: 0 };
    (Box::new(make), shown, deaths)
}

/// The ranges without their first `done` bytes.
fn rest<'a>(ranges: &[Range<'a>], mut done: u64) -> ArrayVec<Range<'a>, 16> {
    let mut rest = ArrayVec::new();
    for range in ranges {
        let skipped = done.min(range.bytes());
        done -= skipped;
        match *range {
            _ if skipped == range.bytes() => {}
            Range::Owned(bytes) => rest.push(Range::Owned(&bytes[skipped as usize..])),
            Range::Object { content, object, start, bytes } => {
                rest.push(Range::Object { content, object, start: start + skipped, bytes: bytes - skipped });
            }
        }
    }
    rest
}

impl Objects {
    fn work<C: Streams>(&mut self, calls: &mut C, connection: Connection, cookie: u64) {
        let current = self.current.lock().unwrap();
        let content = &*current;
        let object = |object: ObjectId, start: u64, bytes: u64| Range::Object { content, object, start, bytes };
        let big_bytes = content.bytes(BIG).len() as u64;
        let client = self.clients.entry(cookie).or_default();
        while let Some(command) = client.commands.front() {
            let ranges: ArrayVec<Range<'_>, 16> = match command {
                b's' => [Range::Owned(HEAD), object(SMALL, 0, 1000)].into_iter().collect(),
                b'b' => [object(BIG, 0, big_bytes)].into_iter().collect(),
                b't' => {
                    let part = big_bytes / 8;
                    let parts = (0..8).flat_map(|n| [object(BIG, n * part, part), object(SMALL, 990, 10)]);
                    parts.collect()
                }
                b'd' => {
                    calls.shutdown(connection).unwrap();
                    assert_eq!(calls.room(connection), 0);
                    assert_eq!(calls.send(connection, b"late"), Err(CallError::WrongState));
                    ArrayVec::new()
                }
                b'c' => {
                    client.commands.clear();
                    calls.close(connection).unwrap();
                    return;
                }
                b'n' => ArrayVec::new(),
                b'w' => {
                    for wrong in [object(SMALL, 1, 1000), object(ObjectId(2), 0, 0), object(BIG, u64::MAX, 2)] {
                        let ranges = [Range::Owned(b"never sent"), wrong];
                        assert_eq!(calls.sendv(connection, &ranges), Err(CallError::NoSuchRange));
                    }
                    ArrayVec::new()
                }
                other => panic!("no command: {other}"),
            };
            let left = rest(&ranges, client.taken);
            let wanted: u64 = left.iter().map(Range::bytes).sum();
            let taken = if left.is_empty() { 0 } else { calls.sendv(connection, &left).unwrap() };
            if taken < wanted {
                client.taken += taken;
                return;
            }
            client.commands.pop_front();
            client.taken = 0;
            calls.recv_done(connection, 1).unwrap();
        }
    }
}

impl Service for Objects {
    fn knock<C: Streams>(&mut self, _: Instant, calls: &mut C, _: Listener, connection: Connection, _: Addresses) {
        self.accepted += 1;
        calls.accept(connection, self.accepted).unwrap();
    }

    fn recv<C: Streams>(&mut self, _: Instant, calls: &mut C, connection: Connection, cookie: u64, bytes: &[u8]) {
        self.clients.entry(cookie).or_default().commands.extend(bytes);
        self.work(calls, connection, cookie);
    }

    fn sent<C: Streams>(&mut self, _: Instant, calls: &mut C, connection: Connection, cookie: u64, _: usize, _: usize) {
        self.work(calls, connection, cookie);
    }

    fn dead(&mut self, _: Instant, _: Connection, cookie: u64, reason: DeadReason) {
        self.clients.remove(&cookie);
        let _ = self.dead.send(reason);
    }
}
