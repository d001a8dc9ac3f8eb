//! Gets over UDP. A datagram has eight octets before the request: the client's number, the datagram's number and how many there are, and
//! two that are reserved. Requests and answers of more than one datagram are refused, since each question has one slot for its answer. Commands that
//! have nothing to say, as a quiet one that misses, are answered by no datagram, as by memcached.
//!
//! What changes items is refused too: whoever forges a source would change them, and nobody could be told. For the same reason an `mg` of a
//! stale item never wins here (W) the right to make it anew, which one client alone is given.
//!
//! Two servers that answer each other never stop, and a forged source sets them against each other. So what comes from a server's port is
//! dropped, and so is what does not begin with a command that reads: no answer of ours begins so, nor one of memcached's, wherever it listens.

use crate::out::Out;
use crate::stats::DropReason;
use crate::text::{State, Step, World, step};
use app::Datagram;

const HEADER_BYTES: usize = 8;
/// Bytes of an answer, header included: what passes everywhere in one packet.
const ANSWER_MOST_BYTES: usize = 1400;
const TOO_LARGE: &[u8] = b"SERVER_ERROR answer too large for a datagram\r\n";
const READS_ONLY: &[u8] = b"CLIENT_ERROR only get, gets, mg, mn and version over UDP\r\n";

/// Ports below this one belong to services (RFC 6335 section 6): whoever asks from there is a server, or its address was forged.
const FIRST_CLIENT_PORT: u16 = 1024;

/// Why a datagram from `port` is not answered by a service that listens on `ports`.
pub(super) fn refused(ports: &[u16], port: u16) -> Option<DropReason> {
    if ports.contains(&port) {
        Some(DropReason::OwnPort)
    } else if port < FIRST_CLIENT_PORT {
        Some(DropReason::LowPort)
    } else {
        None
    }
}

/// Does what a datagram asks for, and answers it unless there is nothing to say; or says why it is not done.
pub(super) fn answer(mut world: World<'_>, datagram: &mut Datagram<'_>) -> Result<(), DropReason> {
    let question = datagram.question();
    world.may_change = false;
    let Some((header, request)) = question.split_first_chunk::<HEADER_BYTES>() else {
        return Err(DropReason::Datagram);
    };
    let number = [header[0], header[1]];
    if [header[4], header[5]] != [0, 1] || request.is_empty() {
        return Err(DropReason::Datagram);
    }
    if !matches!(first_line(request).next(), Some(b"get" | b"gets" | b"mg" | b"mn" | b"version")) {
        return Err(DropReason::NoRead);
    }
    if !run(&mut world, request) {
        world.out.clear();
        return Err(DropReason::Datagram);
    }
    write(datagram, number, world.out);
    world.out.clear();
    Ok(())
}

/// Does what a request asks for, until the answer is too large; false when its last line has no end.
fn run(world: &mut World<'_>, mut request: &[u8]) -> bool {
    let mut state = State::Line;
    let mut any = false;
    while !request.is_empty() {
        if matches!(state, State::Line) && !reads(request) {
            world.out.bytes.extend_from_slice(READS_ONLY);
            return true;
        }
        match step(world, &mut state, request) {
            Step::Done(bytes) => request = &request[bytes..],
            Step::More | Step::Close => return false,
        }
        if !world.out.is_plain() || world.out.bytes.len() > ANSWER_MOST_BYTES {
            return true;
        }
        any = true;
    }
    any && matches!(state, State::Line)
}

/// The words of the first line.
fn first_line(lines: &[u8]) -> impl Iterator<Item = &[u8]> {
    let line = lines.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    line.split(|byte| *byte == b' ').filter(|word| !word.is_empty())
}

/// Whether the first line is a command that changes nothing.
fn reads(lines: &[u8]) -> bool {
    let mut words = first_line(lines);
    match words.next() {
        Some(b"get" | b"gets" | b"mn" | b"version") => true,
        // which make an item, or change its time
        Some(b"mg") => !words.skip(1).any(|flag| matches!(flag[0], b'N' | b'T' | b'R')),
        _ => false,
    }
}

fn write(datagram: &mut Datagram<'_>, number: [u8; 2], out: &Out) {
    if out.left() == 0 {
        return;
    }
    let room = datagram.capacity().min(ANSWER_MOST_BYTES);
    let fits = out.is_plain() && HEADER_BYTES + out.bytes.len() <= room;
    let text = if fits { &out.bytes } else { TOO_LARGE };
    let bytes = HEADER_BYTES + text.len();
    if bytes > room {
        return;
    }
    let buffer = datagram.buffer();
    buffer[..HEADER_BYTES].copy_from_slice(&[number[0], number[1], 0, 0, 0, 1, 0, 0]);
    buffer[HEADER_BYTES..bytes].copy_from_slice(text);
    datagram.reply(bytes);
}
