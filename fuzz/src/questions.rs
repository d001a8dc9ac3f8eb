//! Arbitrary bytes as DNS questions, over datagrams and over a stream.

use crate::message::check_answer;
use app::{Addresses, CallError, Connection, Datagram, Ecn, Listener, Range, Service, Streams};
use base::Instant;
use base::publish::Publisher;
use dns::{Options, QuestionCompression, Server, Tables};
use std::sync::{Arc, OnceLock};
use zone::MemorySource;

const ZONE: &str = include_str!("../../demo/example.com.zone");
const LISTENER: Listener = Listener(0);
const CONNECTION: Connection = Connection { index: 7, generation: 1 };

/// The demo's zone, served with everything switched on that reads the question.
fn server(compression: QuestionCompression) -> Server {
    static TABLES: OnceLock<Publisher<Tables>> = OnceLock::new();
    let tables = TABLES.get_or_init(|| {
        let zone = zone::load(&MemorySource::new().with("zone", ZONE), "zone", None).expect("the demo's zone");
        Publisher::new(Arc::new(Tables::build(vec![zone], 1).expect("the demo's tables")))
    });
    let options = Options {
        question_compression: compression,
        nsid: b"fuzz".to_vec(),
        version: Some("fuzz".into()),
        cookies: Some(dns::cookie::Config::fixed(vec![[7; 16]], 1_800_000_000)),
        ..Options::default()
    };
    Server::new(tables.reader(), options)
}

fn addresses() -> Addresses {
    let at = |text: &str| text.parse().expect("an address");
    Addresses { local: at("198.18.0.1:53"), peer: at("198.18.0.2:5353") }
}

/// Each piece of the input is a datagram of one burst, for a server of either keying. Answers must be well-formed, belong to
/// their question and fit.
pub fn question(data: &[u8]) {
    for compression in [QuestionCompression::Refuse, QuestionCompression::Accept] {
        let mut server = server(compression);
        let questions: Vec<&[u8]> = crate::pieces(data).map(|piece| &piece[..piece.len().min(1472)]).take(64).collect();
        let mut buffers: Vec<Vec<u8>> =
            questions.iter().map(|question| [question, &[0xA5; 1472][question.len()..]].concat()).collect();
        let mut burst: Vec<Datagram<'_>> = buffers
            .iter_mut()
            .zip(&questions)
            .map(|(buffer, question)| Datagram::new(buffer, question.len(), Ecn::NotEct, addresses()))
            .collect();
        if burst.is_empty() {
            return;
        }
        server.cycle(Instant::ZERO);
        server.datagrams(Instant::ZERO, LISTENER, &mut burst);
        let lengths: Vec<Option<usize>> = burst.iter().map(|datagram| datagram.reply_bytes()).collect();
        for ((question, buffer), length) in questions.iter().zip(&buffers).zip(lengths) {
            if let Some(length) = length {
                check_answer(question, &buffer[..length]);
            }
        }
    }
}

/// A connection that takes everything and keeps it.
#[derive(Default)]
struct Taken {
    bytes: Vec<u8>,
    delivered: usize,
    over: bool,
}

impl Streams for Taken {
    fn accept(&mut self, _: Connection, _: u64) -> Result<(), CallError> {
        Ok(())
    }
    fn reject(&mut self, _: Connection) -> Result<(), CallError> {
        self.over = true;
        Ok(())
    }
    fn sendv(&mut self, _: Connection, ranges: &[Range<'_>]) -> Result<u64, CallError> {
        assert!(!self.over, "bytes after the end");
        let before = self.bytes.len();
        for range in ranges {
            let Range::Owned(bytes) = range else { panic!("the service has no objects") };
            self.bytes.extend_from_slice(bytes);
        }
        Ok((self.bytes.len() - before) as u64)
    }
    fn shutdown(&mut self, _: Connection) -> Result<(), CallError> {
        self.over = true;
        Ok(())
    }
    fn room(&self, _: Connection) -> usize {
        1 << 20
    }
    fn recv_done(&mut self, _: Connection, bytes: usize) -> Result<(), CallError> {
        self.delivered = self.delivered.checked_sub(bytes).ok_or(CallError::TooMuch)?;
        Ok(())
    }
    fn close(&mut self, _: Connection) -> Result<(), CallError> {
        self.over = true;
        Ok(())
    }
    fn abort(&mut self, _: Connection) -> Result<(), CallError> {
        self.over = true;
        Ok(())
    }
    fn timer_set(&mut self, _: Connection, _: Option<Instant>) -> Result<(), CallError> {
        Ok(())
    }
}

/// Accepts and remembers the service's cookie for the connection.
struct Knocked(Option<u64>);

impl Streams for Knocked {
    fn accept(&mut self, _: Connection, cookie: u64) -> Result<(), CallError> {
        self.0 = Some(cookie);
        Ok(())
    }
    fn reject(&mut self, _: Connection) -> Result<(), CallError> {
        Ok(())
    }
    fn sendv(&mut self, _: Connection, _: &[Range<'_>]) -> Result<u64, CallError> {
        Err(CallError::WrongState)
    }
    fn shutdown(&mut self, _: Connection) -> Result<(), CallError> {
        Ok(())
    }
    fn room(&self, _: Connection) -> usize {
        0
    }
    fn recv_done(&mut self, _: Connection, _: usize) -> Result<(), CallError> {
        Err(CallError::TooMuch)
    }
    fn close(&mut self, _: Connection) -> Result<(), CallError> {
        Ok(())
    }
    fn abort(&mut self, _: Connection) -> Result<(), CallError> {
        Ok(())
    }
    fn timer_set(&mut self, _: Connection, _: Option<Instant>) -> Result<(), CallError> {
        Ok(())
    }
}

/// The pieces of the input are what arrives on one connection, in order. What comes back must be framed whole (RFC 7766
/// section 8), and cutting the same bytes otherwise must not change it.
pub fn stream(data: &[u8]) {
    let parts: Vec<&[u8]> = crate::pieces(data).filter(|part| !part.is_empty()).collect();
    let whole = parts.concat();
    let by_parts = converse(parts.iter().copied());
    let at_once = converse(std::iter::once(&whole[..]).filter(|whole| !whole.is_empty()));
    assert_eq!(by_parts, at_once, "the answer depends on how the stream was cut");
    let mut rest = &by_parts[..];
    while let Some((length, after)) = rest.split_first_chunk::<2>() {
        let length = usize::from(u16::from_be_bytes(*length));
        assert!(length >= 12 && length <= after.len(), "a frame of {length} bytes with {} left", after.len());
        rest = &after[length..];
    }
    assert!(rest.is_empty(), "bytes behind the last frame");
}

fn converse<'a>(parts: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut server = server(QuestionCompression::Refuse);
    let mut knocked = Knocked(None);
    server.knock(Instant::ZERO, &mut knocked, LISTENER, CONNECTION, addresses());
    let cookie = knocked.0.expect("a first connection is accepted");
    let mut taken = Taken::default();
    for part in parts {
        if taken.over {
            break;
        }
        taken.delivered += part.len();
        server.recv(Instant::ZERO, &mut taken, CONNECTION, cookie, part);
    }
    taken.bytes
}
