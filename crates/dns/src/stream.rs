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
use app::{Connection, Streams};
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// connections at a time, over all threads
    pub connections: usize,
    /// how long a connection may go without a whole question, and without taking more of an answer that waits for it
    pub idle: Duration,
    /// answers, over all threads, that wait for their peers to read, 64 KiB each
    pub backlogs: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { connections: 4096, idle: Duration::from_secs(10), backlogs: 64 }
    }
}

impl Limits {
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
    backlog: Option<u16>,
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
    free: Vec<u32>,
    inputs: Vec<u8>,
    backlogs: Vec<Backlog>,
    free_backlogs: Vec<u16>,
    answer: Vec<u8>,
}

impl Connections {
    pub(crate) fn new(limits: &Limits, threads: usize) -> Connections {
        let share = |all: usize| all.div_ceil(threads.max(1)).min(usize::from(u16::MAX));
        let (clients, backlogs) = (share(limits.connections), share(limits.backlogs));
        Connections {
            clients: vec![None; clients],
            free: (0..clients as u32).rev().collect(),
            // zeroed memory costs nothing until a connection uses it
            inputs: vec![0; clients * INPUT_BYTES],
            backlogs: (0..backlogs)
                .map(|_| Backlog { bytes: Vec::with_capacity(ANSWER_BYTES), done: 0, done_then: 0 })
                .collect(),
            free_backlogs: (0..backlogs as u16).rev().collect(),
            answer: vec![0; ANSWER_BYTES],
        }
    }

    fn client(&mut self, cookie: u64) -> Option<&mut Client> {
        self.clients.get_mut(usize::try_from(cookie).ok()?)?.as_mut()
    }

    fn input(&mut self, cookie: u64) -> &mut [u8] {
        let at = cookie as usize * INPUT_BYTES;
        &mut self.inputs[at..at + INPUT_BYTES]
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
    let Some(place) = server.connections.free.pop() else {
        server.core.shared.stats.connections_refused.add(1);
        let _ = calls.reject(connection);
        return;
    };
    if calls.accept(connection, u64::from(place)).is_err() {
        server.connections.free.push(place);
        return;
    }
    server.core.shared.stats.connections.add(1);
    server.connections.clients[place as usize] = Some(Client { peer, input_bytes: 0, backlog: None, finished: false });
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
        server.connections.free_backlogs.push(backlog);
    }
    server.connections.free.push(place as u32);
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
    input: Box<[u8]>,
    /// what is left of the answer that waits for room
    rest: Option<Box<[u8]>>,
    finished: bool,
}

/// Takes a connection out; None when there is none of that cookie.
pub(crate) fn pack(server: &mut Server, cookie: u64) -> Option<Packed> {
    let Client { peer, input_bytes, backlog, finished } = *server.connections.client(cookie)?;
    let input = server.connections.input(cookie)[..input_bytes].into();
    let rest = backlog.map(|place| {
        let backlog = &server.connections.backlogs[usize::from(place)];
        backlog.bytes[backlog.done..].into()
    });
    dead(server, cookie);
    Some(Packed { peer, input, rest, finished })
}

/// Puts a connection in that came from another thread; its cookie, or None when there is no room.
pub(crate) fn unpack(server: &mut Server, packed: &Packed) -> Option<u64> {
    let Connections { clients, free, free_backlogs, backlogs, .. } = &mut server.connections;
    if free.is_empty() || packed.rest.is_some() && free_backlogs.is_empty() {
        server.core.shared.stats.connections_refused.add(1);
        return None;
    }
    let place = free.pop()?;
    let backlog = packed.rest.as_ref().and_then(|rest| {
        let place = free_backlogs.pop()?;
        let backlog = &mut backlogs[usize::from(place)];
        backlog.bytes.clear();
        backlog.bytes.extend_from_slice(rest);
        (backlog.done, backlog.done_then) = (0, 0);
        Some(place)
    });
    let Packed { peer, finished, ref input, .. } = *packed;
    clients[place as usize] = Some(Client { peer, input_bytes: input.len(), backlog, finished });
    let cookie = u64::from(place);
    server.connections.input(cookie)[..input.len()].copy_from_slice(input);
    Some(cookie)
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
    let Connections { clients, backlogs, free_backlogs, .. } = &mut server.connections;
    let Some(Some(client)) = clients.get_mut(cookie as usize) else { return Ok(false) };
    let Some(place) = client.backlog else { return Ok(false) };
    let backlog = &mut backlogs[usize::from(place)];
    backlog.done += calls.send(connection, &backlog.bytes[backlog.done..]).map_err(|_| Broken)?;
    let is_all = backlog.done == backlog.bytes.len();
    if is_all {
        client.backlog = None;
        free_backlogs.push(place);
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
        let begin = cookie as usize * INPUT_BYTES + done + LENGTH_BYTES;
        let message = &inputs[begin..begin + question];
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
    let Connections { clients, answer, backlogs, free_backlogs, .. } = &mut server.connections;
    let taken = calls.send(connection, &answer[..bytes]).map_err(|_| Broken)?;
    if taken == bytes {
        return Ok(());
    }
    let place = free_backlogs.pop().ok_or(Broken)?;
    let backlog = &mut backlogs[usize::from(place)];
    backlog.bytes.clear();
    backlog.bytes.extend_from_slice(&answer[taken..bytes]);
    (backlog.done, backlog.done_then) = (0, 0);
    if let Some(Some(client)) = clients.get_mut(cookie as usize) {
        client.backlog = Some(place);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
