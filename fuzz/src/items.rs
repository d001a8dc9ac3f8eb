//! Arbitrary bytes as what a client of the key-value store sends, and commands made of them beside a model.

mod engine;

use std::collections::HashMap;
use std::sync::Arc;

use app::{Addresses, Bound, Coming, DeadReason, Listener, Service};
use base::Instant;
use engine::{CONNECTION, Engine};
use kv::{Clock, Limits, Options, Server, Shared};

/// A server with one connection, or two that see the same items.
struct Bed {
    server: Server,
    engine: Engine,
}

impl Bed {
    fn new() -> Bed {
        let limits =
            Limits { memory_bytes: 4 << 20, item_bytes: 1 << 20, threads: 1, secret: [3, 4], shared_nothing: false };
        let shared = Arc::new(Shared::new(limits));
        let stats = shared.stats();
        let clock = Arc::new(Clock::new(1_700_000_000));
        let [connections, buffers, pendings] = [1; 3].map(Bound::new);
        let options = Options { connections, buffers, pendings, clock, ..Options::default() };
        let mut server = Server::new(shared, options, stats);
        let at = |text: &str| text.parse().expect("an address");
        let addresses = Addresses { local: at("198.18.0.1:11211"), peer: at("198.18.0.2:5353") };
        let mut engine = Engine::default();
        server.knock(Instant::ZERO, &mut engine, Listener(0), CONNECTION, addresses);
        assert!(engine.cookie.is_some(), "accepted");
        Bed { server, engine }
    }

    /// What goes out for these bytes, sent in pieces and within these bounds.
    fn say(&mut self, data: &[u8], piece_bytes: usize, quota_bytes: usize) -> Vec<u8> {
        let Bed { server, engine } = self;
        engine.quota_bytes = quota_bytes;
        let cookie = engine.cookie.expect("accepted");
        for piece in data.chunks(piece_bytes) {
            let mut rest = piece;
            while !rest.is_empty() && !engine.is_over() {
                // a peer sends what the window allows, and reads when nothing more goes
                let (now, later) = rest.split_at(rest.len().min(kv::WINDOW_BYTES - engine.delivered));
                if now.is_empty() {
                    let bytes = engine.drain();
                    assert!(bytes > 0, "stuck with {} octets to send", rest.len());
                    server.sent(Instant::ZERO, engine, CONNECTION, cookie, bytes, quota_bytes);
                    continue;
                }
                engine.delivered += now.len();
                server.foresee(&[Coming { cookie, bytes: now }]);
                server.recv(Instant::ZERO, engine, CONNECTION, cookie, now);
                rest = later;
            }
            while engine.unsent() > 0 && !engine.aborted {
                let bytes = engine.drain();
                server.sent(Instant::ZERO, engine, CONNECTION, cookie, bytes, quota_bytes);
            }
        }
        std::mem::take(&mut engine.out)
    }
}

/// The same bytes in any pieces and with any room have the same answers; nothing is kept of a connection that is gone.
pub fn kv(data: &[u8]) {
    let data = &data[..data.len().min(kv::WINDOW_BYTES)];
    let mut whole = Bed::new();
    let out = whole.say(data, data.len().max(1), usize::MAX);
    for (piece_bytes, quota_bytes) in [(1, usize::MAX), (7, 9_000), (data.len() % 61 + 1, 10_000)] {
        let mut other = Bed::new();
        let said = other.say(data, piece_bytes, quota_bytes);
        assert!(out == said, "other answers in pieces of {piece_bytes}");
        assert_eq!((whole.engine.closed, whole.engine.aborted), (other.engine.closed, other.engine.aborted));
        other.server.dead(Instant::ZERO, CONNECTION, other.engine.cookie.expect("accepted"), DeadReason::Reset);
    }
    model(data);
}

/// Each two octets, with a length behind some, as one command for one of eight keys: the answers are those of a map.
fn model(data: &[u8]) {
    let mut bed = Bed::new();
    let mut twin: HashMap<u8, Vec<u8>> = HashMap::new();
    let (mut requests, mut answers) = (Vec::new(), Vec::new());
    for (at, chunk) in data.chunks_exact(3).take(200).enumerate() {
        let (key, length) = (chunk[1] % 8, usize::from(chunk[2]) * if chunk[1] & 0x80 == 0 { 1 } else { 40 });
        let value: Vec<u8> = (0..length).map(|n| b'a' + ((n + at) % 26) as u8).collect();
        command(&mut twin, chunk[0], key, &value, (&mut requests, &mut answers));
    }
    let said = bed.say(&requests, data.len() % 997 + 1, usize::MAX);
    let alike = said.iter().zip(&answers).take_while(|(ours, model)| ours == model).count();
    let near =
        |text: &[u8]| String::from_utf8_lossy(&text[alike.saturating_sub(40)..text.len().min(alike + 40)]).into_owned();
    assert!(said == answers, "at octet {alike} {:?} where the model has {:?}", near(&said), near(&answers));
}

/// Writes a command, and does it to the model, which says what the answer is.
fn command(
    twin: &mut HashMap<u8, Vec<u8>>,
    kind: u8,
    key: u8,
    value: &[u8],
    (requests, answers): (&mut Vec<u8>, &mut Vec<u8>),
) {
    let mut store = |word: &str| {
        requests.extend_from_slice(format!("{word} key-{key} 7 0 {}\r\n", value.len()).as_bytes());
        requests.extend_from_slice(value);
        requests.extend_from_slice(b"\r\n");
    };
    let mut say = |text: &[u8]| answers.extend_from_slice(text);
    let known = twin.get(&key).cloned();
    // longer than that, and memory could run short
    let joined = known.as_ref().map_or(0, Vec::len) + value.len() < 100_000;
    let (stored, said): (Option<Vec<u8>>, &[u8]) = match (kind % 8, known) {
        (0, _) => {
            store("set");
            (Some(value.to_vec()), b"STORED\r\n")
        }
        (1, known) => {
            store("add");
            if known.is_some() { (None, b"NOT_STORED\r\n") } else { (Some(value.to_vec()), b"STORED\r\n") }
        }
        (2, known) => {
            store("replace");
            if known.is_none() { (None, b"NOT_STORED\r\n") } else { (Some(value.to_vec()), b"STORED\r\n") }
        }
        (3, Some(known)) if joined => {
            store("append");
            (Some([&known, value].concat()), b"STORED\r\n")
        }
        (4, Some(known)) if joined => {
            store("prepend");
            (Some([value, &known].concat()), b"STORED\r\n")
        }
        (5, known) => {
            requests.extend_from_slice(format!("delete key-{key}\r\n").as_bytes());
            twin.remove(&key);
            (None, if known.is_some() { b"DELETED\r\n" } else { b"NOT_FOUND\r\n" })
        }
        (6, _) => {
            requests.extend_from_slice(b"flush_all\r\n");
            twin.clear();
            (None, b"OK\r\n")
        }
        (_, known) => {
            requests.extend_from_slice(format!("get key-{key}\r\n").as_bytes());
            if let Some(known) = known {
                say(format!("VALUE key-{key} 7 {}\r\n", known.len()).as_bytes());
                say(&known);
                say(b"\r\n");
            }
            (None, b"END\r\n")
        }
    };
    say(said);
    if let Some(stored) = stored {
        twin.insert(key, stored);
    }
}
