//! The yardsticks: messages over plain kernel sockets, with nothing of ours between the program and the kernel. A server of one connection
//! at a time and its client, which sleep in the kernel or ask again and again; and a server of many connections in a loop over epoll, level
//! triggered, as simple event loops are.

use super::{HEAD_BYTES, Head, MOST_BYTES, Outcome, Pattern, Plan, Progress};
use anyhow::{Context as _, Result, ensure};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What one read takes at most.
const READ_BYTES: usize = 256 << 10;
/// Events of one wait.
const EVENTS: usize = 256;
/// Connections that the kernel holds before they are accepted.
const BACKLOG: i32 = 4096;
/// Nothing that comes back for so long ends a client.
const PATIENCE: Duration = Duration::from_secs(5);

/// How whoever has nothing to do waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Waits {
    /// asleep in the kernel
    Blocking,
    /// asking again and again
    Spinning,
}

/// A connection of one message at a time.
struct Line {
    stream: TcpStream,
    buffer: Vec<u8>,
    pattern: Pattern,
    out: Vec<u8>,
}

impl Line {
    fn new(stream: TcpStream, waits: Waits) -> io::Result<Line> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(waits == Waits::Spinning)?;
        let pattern = Pattern::new(MOST_BYTES);
        let out = pattern.octets().to_vec();
        Ok(Line { stream, buffer: vec![0; READ_BYTES], pattern, out })
    }

    /// Takes a message; None at the end of the stream.
    fn take(&mut self, give_up: impl Fn() -> bool) -> Result<Option<Head>> {
        let mut progress = Progress::default();
        loop {
            let count = match self.stream.read(&mut self.buffer) {
                Ok(0) if progress.is_empty() => return Ok(None),
                Ok(count) => count,
                Err(error) if waits_longer(&error) => {
                    ensure!(!give_up(), "nothing came for {PATIENCE:?}");
                    std::hint::spin_loop();
                    continue;
                }
                Err(error) => return Err(error).context("receiving"),
            };
            ensure!(count > 0, "the stream ended within a message");
            let (taken, whole) =
                progress.feed(&self.buffer[..count], &self.pattern).ok().context("other octets came than were sent")?;
            ensure!(taken == count, "more came than a message");
            if whole.is_some() {
                return Ok(whole);
            }
        }
    }

    /// Sends a message.
    fn send(&mut self, head: Head) -> io::Result<()> {
        self.out[..HEAD_BYTES].copy_from_slice(&head.octets());
        let mut rest = &self.out[..head.bytes as usize];
        while !rest.is_empty() {
            match self.stream.write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) if waits_longer(&error) => std::hint::spin_loop(),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn waits_longer(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// Answers one connection after the other, for ever.
pub(crate) fn serve_one(address: SocketAddr, waits: Waits, ready: impl FnOnce(SocketAddr)) -> Result<()> {
    let listener = TcpListener::bind(address).with_context(|| format!("cannot listen on {address}"))?;
    ready(listener.local_addr()?);
    loop {
        let (stream, _) = listener.accept().context("accepting")?;
        let mut line = Line::new(stream, waits)?;
        let mut answer = || -> Result<()> {
            while let Some(head) = line.take(|| false)? {
                line.send(head)?;
            }
            Ok(())
        };
        // a client that goes away by a reset is as good as one that closes
        if let Err(error) = answer() {
            eprintln!("a connection ended: {error:#}");
        }
    }
}

/// Sends messages to a server and takes them back, one at a time on one connection.
pub(crate) fn ask(server: SocketAddr, waits: Waits, plans: &[Plan], stop: &AtomicBool) -> Result<Vec<Outcome>> {
    let stream = TcpStream::connect_timeout(&server, PATIENCE).with_context(|| format!("no connection to {server}"))?;
    // whoever sleeps in the kernel is not to sleep for ever
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut line = Line::new(stream, waits)?;
    let mut number = 0;
    let mut outcomes = Vec::new();
    for plan in plans {
        for (span, counts) in [(plan.warm_up, false), (plan.span, true)].into_iter().filter(|(span, _)| !span.is_zero())
        {
            let mut outcome = Outcome::new(plan.bytes);
            let begun = Instant::now();
            let mut now = begun;
            while now - begun < span && !stop.load(Ordering::Relaxed) {
                number += 1;
                let head = Head { bytes: plan.bytes, connection: 0, number };
                outcome.sent += 1;
                line.send(head).context("sending")?;
                let came = line.take(|| waits == Waits::Blocking || now.elapsed() > PATIENCE)?;
                ensure!(came == Some(head), "{came:?} came where {head:?} was due");
                let after = Instant::now();
                outcome.take((after - now).as_nanos() as u64, after - begun < span);
                now = after;
            }
            outcome.finish((now - begun).as_nanos() as u64);
            if counts {
                outcomes.push(outcome);
            }
        }
    }
    Ok(outcomes)
}

/// One of many connections.
struct Conn {
    stream: TcpStream,
    progress: Progress,
    /// the answer under way, and how much of it is sent
    answer: Option<(Head, usize)>,
    /// whether its events are those of writing
    writes: bool,
}

/// A loop over epoll.
struct Many {
    epoll: rustix::fd::OwnedFd,
    listener: TcpListener,
    conns: Vec<Option<Conn>>,
    free: Vec<usize>,
    pattern: Pattern,
    buffer: Vec<u8>,
    out: Vec<u8>,
}

/// The listener's name among events; connections have their place.
const LISTENER: u64 = u64::MAX;

/// Answers many connections until `stop`.
pub(crate) fn serve_many(address: SocketAddr, stop: &AtomicBool, ready: impl FnOnce(SocketAddr)) -> Result<()> {
    let listener = TcpListener::bind(address).with_context(|| format!("cannot listen on {address}"))?;
    // again, for a longer queue than the library's
    rustix::net::listen(&listener, BACKLOG)?;
    listener.set_nonblocking(true)?;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, &listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)?;
    ready(listener.local_addr()?);
    let pattern = Pattern::new(MOST_BYTES);
    let out = pattern.octets().to_vec();
    let (conns, free) = (Vec::new(), Vec::new());
    let mut many = Many { epoll, listener, conns, free, pattern, buffer: vec![0; READ_BYTES], out };
    let mut events = Vec::with_capacity(EVENTS);
    while !stop.load(Ordering::Relaxed) {
        events.clear();
        let wait = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        match epoll::wait(&many.epoll, rustix::buffer::spare_capacity(&mut events), Some(&wait)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("waiting"),
        }
        for event in &events {
            match event.data.u64() {
                LISTENER => many.accept()?,
                place => many.serve(place as usize),
            }
        }
    }
    Ok(())
}

impl Many {
    fn accept(&mut self) -> Result<()> {
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if waits_longer(&error) => return Ok(()),
                // gone before it was accepted
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => continue,
                Err(error) => return Err(error).context("accepting"),
            };
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            let place = self.free.pop().unwrap_or_else(|| {
                self.conns.push(None);
                self.conns.len() - 1
            });
            let data = epoll::EventData::new_u64(place as u64);
            epoll::add(&self.epoll, &stream, data, epoll::EventFlags::IN)?;
            self.conns[place] = Some(Conn { stream, progress: Progress::default(), answer: None, writes: false });
        }
    }

    /// Does for a connection what can be done; whoever ends or sends something else is closed.
    fn serve(&mut self, place: usize) {
        let Some(mut conn) = self.conns[place].take() else { return };
        match self.work(&mut conn, place) {
            Ok(true) => self.conns[place] = Some(conn),
            // closing it takes it out of the set
            Ok(false) | Err(_) => self.free.push(place),
        }
    }

    /// Whether the connection goes on.
    fn work(&mut self, conn: &mut Conn, place: usize) -> io::Result<bool> {
        if !self.flush(conn)? {
            return Ok(true);
        }
        if conn.writes {
            self.watch(conn, place, false)?;
        }
        let count = match conn.stream.read(&mut self.buffer) {
            Ok(0) => return Ok(false),
            Ok(count) => count,
            Err(error) if waits_longer(&error) => return Ok(true),
            Err(error) => return Err(error),
        };
        // a client has one message under way: what was read ends with it, or within it
        let fed = conn.progress.feed(&self.buffer[..count], &self.pattern);
        let Ok((taken, whole)) = fed else { return Ok(false) };
        if taken < count {
            return Ok(false);
        }
        conn.answer = whole.map(|head| (head, 0));
        if !self.flush(conn)? {
            self.watch(conn, place, true)?;
        }
        Ok(true)
    }

    /// Sends what there is; whether that was all.
    fn flush(&mut self, conn: &mut Conn) -> io::Result<bool> {
        let Some((head, sent)) = &mut conn.answer else { return Ok(true) };
        self.out[..HEAD_BYTES].copy_from_slice(&head.octets());
        while *sent < head.bytes as usize {
            match conn.stream.write(&self.out[*sent..head.bytes as usize]) {
                Ok(count) => *sent += count,
                Err(error) if waits_longer(&error) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        conn.answer = None;
        Ok(true)
    }

    fn watch(&self, conn: &mut Conn, place: usize, writes: bool) -> io::Result<()> {
        conn.writes = writes;
        let flags = if writes { epoll::EventFlags::OUT } else { epoll::EventFlags::IN };
        Ok(epoll::modify(&self.epoll, &conn.stream, epoll::EventData::new_u64(place as u64), flags)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Wait;
    use crate::messages::{CHECK_EVERY, End};
    use std::sync::mpsc::channel;

    fn plan(bytes: u32) -> Plan {
        let span = Duration::from_millis(20);
        // as long as the span, and yet not counted
        let warm_up = span;
        Plan { bytes, under_way: 1, trips: None, end: End::Rst, span, warm_up, wait: Wait::Poll }
    }

    #[test]
    fn messages_of_every_length_come_back_from_each_server() {
        let loopback: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let stop: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
        let (said, heard) = channel();
        for waits in [Some(Waits::Blocking), Some(Waits::Spinning), None] {
            let said = said.clone();
            // the threads of those that serve for ever end with the process
            std::thread::spawn(move || {
                let ready = |address| said.send(address).unwrap();
                match waits {
                    Some(waits) => serve_one(loopback, waits, ready),
                    None => serve_many(loopback, stop, ready),
                }
            });
            let server = heard.recv_timeout(Duration::from_secs(60)).unwrap();
            for client in [Waits::Blocking, Waits::Spinning] {
                let plans = [16, 64, 5000, 1 << 20].map(plan);
                let outcomes = ask(server, client, &plans, &AtomicBool::new(false)).unwrap();
                assert_eq!(outcomes.len(), plans.len());
                for (outcome, plan) in outcomes.iter().zip(&plans) {
                    assert_eq!(outcome.bytes, plan.bytes);
                    assert!(outcome.answered > 0 && outcome.sent == outcome.answered, "{outcome}");
                    assert!(outcome.latency.p50_us > 0.0 && outcome.failed() == 0, "{outcome}");
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
    }

    #[test]
    fn what_is_no_message_ends_the_connection() {
        let stop: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
        let (said, heard) = channel();
        std::thread::spawn(move || serve_many("127.0.0.1:0".parse().unwrap(), stop, |at| said.send(at).unwrap()));
        let server = heard.recv_timeout(Duration::from_secs(60)).unwrap();
        let mut wrong = Pattern::new(64).octets().to_vec();
        wrong[..HEAD_BYTES].copy_from_slice(&Head { bytes: 64, connection: 0, number: CHECK_EVERY }.octets());
        wrong[63] ^= 1;
        for octets in [wrong, vec![0xff; HEAD_BYTES], vec![0; HEAD_BYTES]] {
            let mut stream = TcpStream::connect(server).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            stream.write_all(&octets).unwrap();
            assert!(matches!(stream.read(&mut [0; 1]), Ok(0) | Err(_)), "{octets:?} was answered");
        }
        stop.store(true, Ordering::Relaxed);
    }
}
