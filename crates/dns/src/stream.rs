//! DNS over streams (RFC 7766): two octets of length before each message, several questions in flight, in any pieces.
//!
//! Bounds: a number of connections, one question's buffer each, one answer in the making for all, and a few buffers for
//! answers that the engine could take only in part. A connection that has nothing to say for the idle time is closed, but not
//! while it takes an answer: 1 KiB of it, or its rest, in each such time. One that takes less, or sends on without reading its
//! answers, is aborted, and so sees no end in the middle of a message. All memory is allocated with the server. Connections may
//! move between the servers of threads.

use std::net::IpAddr;
use std::time::Duration;

use crate::serve::{From, Server};
use app::{Bound, Claim, Connection, Places, Streams};
use base::Instant;

/// The longest question that is read; longer ones are not DNS questions.
const QUESTION_MAX_BYTES: usize = 4096;
const LENGTH_BYTES: usize = 2;
const INPUT_BYTES: usize = LENGTH_BYTES + QUESTION_MAX_BYTES;
/// The receive window that an engine should give each connection: what its input buffer holds. A wider one lets a peer that
/// asks faster than its answers go out fill the buffer, which ends the connection; this one makes it wait.
pub const WINDOW_BYTES: usize = INPUT_BYTES;
/// What a peer must take within the idle time of an answer that waits for it, or else its rest: so the longest answer takes at most
/// 64 such times, and whoever takes an octet now and then does not hold it for ever.
const LEAST_TAKEN_BYTES: usize = 1024;
const ANSWER_BYTES: usize = LENGTH_BYTES + 65_535;

/// Limits of DNS over TCP.
#[derive(Clone, Debug)]
pub struct Limits {
    /// connections at a time, over all threads
    pub connections: Bound,
    /// how long a connection may go without a whole question, and without taking more of an answer that waits for it
    pub idle: Duration,
    /// answers, over all threads, that wait for their peers to read, 64 KiB each
    pub backlogs: Bound,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { connections: Bound::new(4096), idle: Duration::from_secs(10), backlogs: Bound::new(64) }
    }
}

impl Limits {
    /// For servers of their own, on so many threads.
    #[must_use]
    pub fn among(mut self, threads: usize) -> Limits {
        for bound in [&mut self.connections, &mut self.backlogs] {
            *bound = bound.among(threads);
        }
        self
    }

    /// The idle time as edns-tcp-keepalive tells it, in units of 100 ms (RFC 7828 section 3.1).
    pub(crate) fn keepalive_units(&self) -> u16 {
        u16::try_from(self.idle.as_millis() / 100).unwrap_or(u16::MAX)
    }
}

#[derive(Clone, Copy)]
struct Client {
    peer: IpAddr,
    /// octets in its input buffer, none of them given back to the window yet
    input_bytes: usize,
    /// the answer that waits for room
    backlog: Option<u32>,
    /// the peer sends no more
    finished: bool,
}

#[derive(Clone)]
struct Backlog {
    bytes: Vec<u8>,
    done: usize,
    /// how much was done when the idle time began anew
    done_then: usize,
}

/// One thread's connections.
pub(crate) struct Connections {
    clients: Vec<Option<Client>>,
    places: Places,
    /// one a client
    inputs: Vec<Box<[u8]>>,
    /// made when they are needed first
    backlogs: Vec<Backlog>,
    backlog_places: Places,
    answer: Vec<u8>,
}

impl Connections {
    pub(crate) fn new(limits: &Limits) -> Connections {
        Connections {
            clients: limits.connections.vec(),
            places: Places::new(limits.connections.clone()),
            inputs: limits.connections.vec(),
            backlogs: limits.backlogs.vec(),
            backlog_places: Places::new(limits.backlogs.clone()),
            answer: vec![0; ANSWER_BYTES],
        }
    }

    /// Puts a client at a place.
    fn settle_in(&mut self, place: u32, client: Client) {
        match self.clients.get_mut(place as usize) {
            Some(free) => *free = Some(client),
            // places are numbered as they are needed
            None => {
                self.clients.push(Some(client));
                self.inputs.push(vec![0; INPUT_BYTES].into());
            }
        }
    }

    /// Keeps the rest of an answer at a place that was just taken.
    fn keep(&mut self, place: u32, rest: &[u8]) {
        if place as usize == self.backlogs.len() {
            self.backlogs.push(Backlog { bytes: Vec::with_capacity(ANSWER_BYTES), done: 0, done_then: 0 });
        }
        let backlog = &mut self.backlogs[place as usize];
        backlog.bytes.clear();
        backlog.bytes.extend_from_slice(rest);
        (backlog.done, backlog.done_then) = (0, 0);
    }

    fn client(&mut self, cookie: u64) -> Option<&mut Client> {
        self.clients.get_mut(usize::try_from(cookie).ok()?)?.as_mut()
    }

    fn input(&mut self, cookie: u64) -> &mut [u8] {
        &mut self.inputs[cookie as usize]
    }
}

impl Connections {
    /// Puts a connection in that came from another thread; its cookie, or None when there is no room.
    fn take_in(&mut self, packed: Packed) -> Option<u64> {
        let Packed { peer, claim, input, rest, finished } = packed;
        let place = self.places.arrive(claim)?;
        let backlog = match rest {
            None => None,
            Some((rest, claim)) => {
                let Some(kept) = self.backlog_places.arrive(claim) else {
                    self.places.give(place);
                    return None;
                };
                self.keep(kept, &rest);
                Some(kept)
            }
        };
        self.settle_in(place, Client { peer, input_bytes: input.len(), backlog, finished });
        self.inputs[place as usize][..input.len()].copy_from_slice(&input);
        Some(place.into())
    }
}

/// Why a connection cannot go on.
struct Broken;

pub(crate) fn knock<C: Streams>(
    server: &mut Server,
    now: Instant,
    calls: &mut C,
    connection: Connection,
    peer: IpAddr,
) {
    let Some(place) = server.connections.places.take() else {
        server.core.shared.stats.connections_refused.add(1);
        let _ = calls.reject(connection);
        return;
    };
    if calls.accept(connection, u64::from(place)).is_err() {
        server.connections.places.give(place);
        return;
    }
    server.core.shared.stats.connections.add(1);
    server.connections.settle_in(place, Client { peer, input_bytes: 0, backlog: None, finished: false });
    let _ = calls.timer_set(connection, Some(now + server.core.shared.options.tcp.idle));
}

pub(crate) fn recv<C: Streams>(
    server: &mut Server,
    now: Instant,
    calls: &mut C,
    connection: Connection,
    cookie: u64,
    mut bytes: &[u8],
) {
    while !bytes.is_empty() {
        let Some(client) = server.connections.client(cookie) else { return };
        let held = client.input_bytes;
        let taken = bytes.len().min(INPUT_BYTES - held);
        client.input_bytes += taken;
        server.connections.input(cookie)[held..held + taken].copy_from_slice(&bytes[..taken]);
        bytes = &bytes[taken..];
        let progress = work(server, now, calls, connection, cookie);
        // a full buffer that nothing was taken from: a question too long, or a peer that does not read
        if progress.is_err() || taken == 0 {
            let _ = calls.abort(connection);
            return;
        }
    }
}

pub(crate) fn eof<C: Streams>(server: &mut Server, _now: Instant, calls: &mut C, connection: Connection, cookie: u64) {
    let Some(client) = server.connections.client(cookie) else { return };
    client.finished = true;
    // a peer may finish sending and still read its answers (RFC 7766 section 6.2.4 lets either side close)
    if client.backlog.is_none() {
        let _ = calls.close(connection);
    }
}

pub(crate) fn sent<C: Streams>(server: &mut Server, now: Instant, calls: &mut C, connection: Connection, cookie: u64) {
    let Some(client) = server.connections.client(cookie) else { return };
    if client.backlog.is_none() {
        return;
    }
    if go_on(server, now, calls, connection, cookie).is_err() {
        let _ = calls.abort(connection);
    }
}

pub(crate) fn dead(server: &mut Server, cookie: u64) {
    let Ok(place) = usize::try_from(cookie) else { return };
    let Some(client) = server.connections.clients.get_mut(place).and_then(Option::take) else { return };
    if let Some(backlog) = client.backlog {
        server.connections.backlog_places.give(backlog);
    }
    server.connections.places.give(place as u32);
}

pub(crate) fn timer<C: Streams>(server: &mut Server, now: Instant, calls: &mut C, connection: Connection, cookie: u64) {
    let waits = server.connections.client(cookie).is_some_and(|client| client.backlog.is_some());
    // an engine may tell of room only when there is much of it
    if waits && matches!(go_on(server, now, calls, connection, cookie), Ok(true)) {
        return;
    }
    server.core.shared.stats.connections_timed_out.add(1);
    // a close in the middle of an answer would look like its end
    let _ = if waits { calls.abort(connection) } else { calls.close(connection) };
}

/// Goes on with the answer that waits and those behind it; true when enough of it was taken for the idle time to begin anew.
fn go_on<C: Streams>(
    server: &mut Server,
    now: Instant,
    calls: &mut C,
    connection: Connection,
    cookie: u64,
) -> Result<bool, Broken> {
    let taken = flush(server, now, calls, connection, cookie)?;
    work(server, now, calls, connection, cookie)?;
    if let Some(Client { backlog: None, finished: true, .. }) = server.connections.client(cookie) {
        let _ = calls.close(connection);
    }
    Ok(taken)
}

/// A connection on its way to the server of another thread.
pub(crate) struct Packed {
    peer: IpAddr,
    claim: Claim,
    input: Box<[u8]>,
    /// what is left of the answer that waits for room
    rest: Option<(Box<[u8]>, Claim)>,
    finished: bool,
}

/// Takes a connection out; None when there is none of that cookie.
pub(crate) fn pack(server: &mut Server, cookie: u64) -> Option<Packed> {
    let Client { peer, input_bytes, backlog, finished } = *server.connections.client(cookie)?;
    let connections = &mut server.connections;
    let input = connections.input(cookie)[..input_bytes].into();
    let rest = backlog.map(|place| {
        let backlog = &connections.backlogs[place as usize];
        (backlog.bytes[backlog.done..].into(), connections.backlog_places.depart(place))
    });
    connections.clients[cookie as usize] = None;
    let claim = connections.places.depart(cookie as u32);
    Some(Packed { peer, claim, input, rest, finished })
}

/// Puts a connection in that came from another thread; its cookie, or None when there is no room.
pub(crate) fn unpack(server: &mut Server, packed: Packed) -> Option<u64> {
    let cookie = server.connections.take_in(packed);
    if cookie.is_none() {
        server.core.shared.stats.connections_refused.add(1);
    }
    cookie
}

/// Sends more of the answer that waits. True when it is the rest of it, or enough since the idle time began, which begins anew then:
/// who has answers outstanding is not idle (RFC 7766 sections 3 and 6.2.3).
fn flush<C: Streams>(
    server: &mut Server,
    now: Instant,
    calls: &mut C,
    connection: Connection,
    cookie: u64,
) -> Result<bool, Broken> {
    let Connections { clients, backlogs, backlog_places, .. } = &mut server.connections;
    let Some(Some(client)) = clients.get_mut(cookie as usize) else { return Ok(false) };
    let Some(place) = client.backlog else { return Ok(false) };
    let backlog = &mut backlogs[place as usize];
    backlog.done += calls.send(connection, &backlog.bytes[backlog.done..]).map_err(|_| Broken)?;
    let is_all = backlog.done == backlog.bytes.len();
    if is_all {
        client.backlog = None;
        backlog_places.give(place);
    } else if backlog.done - backlog.done_then < LEAST_TAKEN_BYTES {
        return Ok(false);
    }
    backlog.done_then = backlog.done;
    let _ = calls.timer_set(connection, Some(now + server.core.shared.options.tcp.idle));
    Ok(true)
}

/// Answers whole questions in the input buffer, as long as answers can be sent.
fn work<C: Streams>(
    server: &mut Server,
    now: Instant,
    calls: &mut C,
    connection: Connection,
    cookie: u64,
) -> Result<(), Broken> {
    let mut done = 0;
    loop {
        let Some(client) = server.connections.client(cookie) else { return Err(Broken) };
        let (held, peer) = (client.input_bytes, client.peer);
        if client.backlog.is_some() {
            break;
        }
        let Some(question) = next_question(&server.connections.input(cookie)[done..held])? else { break };
        let Connections { inputs, answer, .. } = &mut server.connections;
        let message = &inputs[cookie as usize][done + LENGTH_BYTES..][..question];
        answer[LENGTH_BYTES..LENGTH_BYTES + question].copy_from_slice(message);
        done += LENGTH_BYTES + question;
        let from = From { now, peer, stream: true };
        match server.core.one(from, &mut answer[LENGTH_BYTES..], question) {
            Ok(bytes) => {
                answer[..LENGTH_BYTES].copy_from_slice(&(bytes as u16).to_be_bytes());
                send(server, calls, connection, cookie, LENGTH_BYTES + bytes)?;
            }
            // what is no question ends the connection: its framing cannot be trusted
            Err(reason) => {
                server.core.shared.stats.dropped(reason);
                return Err(Broken);
            }
        }
    }
    if done > 0 {
        let Some(client) = server.connections.client(cookie) else { return Err(Broken) };
        let held = client.input_bytes;
        client.input_bytes = held - done;
        server.connections.input(cookie).copy_within(done..held, 0);
        calls.recv_done(connection, done).map_err(|_| Broken)?;
        // only a whole question keeps a connection alive (RFC 7766 section 6.2.3)
        let _ = calls.timer_set(connection, Some(now + server.core.shared.options.tcp.idle));
    }
    Ok(())
}

/// The octets of the first question, if it is whole.
fn next_question(input: &[u8]) -> Result<Option<usize>, Broken> {
    let Some((length, rest)) = input.split_first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
    let bytes = usize::from(u16::from_be_bytes(*length));
    if bytes > QUESTION_MAX_BYTES {
        return Err(Broken);
    }
    Ok((rest.len() >= bytes).then_some(bytes))
}

fn send<C: Streams>(
    server: &mut Server,
    calls: &mut C,
    connection: Connection,
    cookie: u64,
    bytes: usize,
) -> Result<(), Broken> {
    let connections = &mut server.connections;
    let taken = calls.send(connection, &connections.answer[..bytes]).map_err(|_| Broken)?;
    if taken == bytes {
        return Ok(());
    }
    let place = connections.backlog_places.take().ok_or(Broken)?;
    let answer = std::mem::take(&mut connections.answer);
    connections.keep(place, &answer[taken..bytes]);
    connections.answer = answer;
    if let Some(client) = connections.client(cookie) {
        client.backlog = Some(place);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
