//! A closed-loop HTTP load of the kernel's TCP: connections that fetch one file again and again, every byte compared.

use anyhow::{Context as _, Result, bail, ensure};
use std::io::{Read, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What is fetched.
#[derive(Clone, Copy, Debug)]
pub(super) struct Download<'a> {
    /// the server
    pub(super) at: SocketAddr,
    /// the path
    pub(super) path: &'a str,
    /// what it must be
    pub(super) content: &'a [u8],
}

/// What came of a load.
#[derive(Clone, Copy, Debug)]
pub(super) struct Goodput {
    /// bytes of bodies, all of them right
    pub(super) bytes: u64,
    /// how long it took, from before the first connection
    pub(super) span: Duration,
    /// connections beyond the first of each: those before had ended
    pub(super) reconnects: u64,
}

impl Goodput {
    pub(super) fn bits_per_s(&self) -> f64 {
        self.bytes as f64 * 8.0 / self.span.as_secs_f64()
    }
}

/// Runs `connections` at once for `span`, each on a thread of its own: they wait nearly all the time.
pub(super) fn run(download: &Download<'_>, connections: usize, span: Duration) -> Result<Goodput> {
    let (bytes, opened) = (AtomicU64::new(0), AtomicU64::new(0));
    let begin = Instant::now();
    let end = begin + span;
    let outcomes: Vec<Result<()>> = std::thread::scope(|scope| {
        let work = || {
            while Instant::now() < end {
                opened.fetch_add(1, Ordering::Relaxed);
                one_connection(download, end, &bytes)?;
            }
            Ok(())
        };
        let spawn = |_| std::thread::Builder::new().stack_size(256 << 10).spawn_scoped(scope, work);
        let threads: Vec<_> = (0..connections).map(spawn).collect();
        threads
            .into_iter()
            .map(|thread| thread.context("no thread")?.join().expect("a connection's thread does not panic"))
            .collect()
    });
    outcomes.into_iter().collect::<Result<()>>()?;
    let reconnects = opened.into_inner().saturating_sub(connections as u64);
    Ok(Goodput { bytes: bytes.into_inner(), span: begin.elapsed(), reconnects })
}

/// Fetches until `end` or until the connection ends: a path may be bad enough for that, and then there is another. Only wrong bytes
/// are an error.
fn one_connection(download: &Download<'_>, end: Instant, bytes: &AtomicU64) -> Result<()> {
    let left = || Some(end.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero());
    let Some(wait) = left() else { return Ok(()) };
    let Ok(mut stream) = TcpStream::connect_timeout(&download.at, wait) else {
        std::thread::sleep(Duration::from_millis(10));
        return Ok(());
    };
    stream.set_nodelay(true)?;
    let request = format!("GET {} HTTP/1.1\r\nHost: {}\r\n\r\n", download.path, download.at.ip());
    let mut buffer = vec![0; 64 << 10];
    while stream.write_all(request.as_bytes()).is_ok() {
        let mut reply = Reply::new(download.content);
        while !reply.is_whole() {
            let Some(wait) = left() else { return Ok(()) };
            stream.set_read_timeout(Some(wait))?;
            let Ok(n @ 1..) = stream.read(&mut buffer) else { return Ok(()) };
            let body = reply.take(&buffer[..n]).with_context(|| format!("from {}", download.at))?;
            // what comes after the end was not in time
            if Instant::now() < end {
                bytes.fetch_add(body as u64, Ordering::Relaxed);
            }
        }
    }
    Ok(())
}

/// A reply that is coming.
#[derive(Debug)]
struct Reply<'a> {
    content: &'a [u8],
    head: Vec<u8>,
    /// the head has ended
    in_body: bool,
    body_bytes: usize,
}

impl<'a> Reply<'a> {
    fn new(content: &'a [u8]) -> Reply<'a> {
        Reply { content, head: Vec::new(), in_body: false, body_bytes: 0 }
    }

    fn is_whole(&self) -> bool {
        self.in_body && self.body_bytes == self.content.len()
    }

    /// Takes what has arrived and returns how many bytes of it are body.
    fn take(&mut self, arrived: &[u8]) -> Result<usize> {
        if self.in_body {
            return self.take_body(arrived);
        }
        self.head.extend_from_slice(arrived);
        ensure!(self.head.len() < (64 << 10) + arrived.len(), "a head without an end");
        let Some(at) = self.head.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(0) };
        let body = self.head.split_off(at + 4);
        self.check_head()?;
        self.in_body = true;
        self.take_body(&body)
    }

    fn check_head(&self) -> Result<()> {
        let text = String::from_utf8_lossy(&self.head);
        let mut lines = text.lines();
        let status = lines.next().unwrap_or_default();
        if !status.starts_with("HTTP/1.1 200 ") {
            bail!("not 200: {status}");
        }
        let length =
            lines.filter_map(|line| line.split_once(':')).find(|(n, _)| n.eq_ignore_ascii_case("content-length"));
        let length: Option<usize> = length.and_then(|(_, value)| value.trim().parse().ok());
        ensure!(length == Some(self.content.len()), "a length of {length:?} instead of {}", self.content.len());
        Ok(())
    }

    fn take_body(&mut self, arrived: &[u8]) -> Result<usize> {
        let expected = self.content.get(self.body_bytes..self.body_bytes + arrived.len());
        ensure!(expected == Some(arrived), "wrong bytes within {} of byte {}", arrived.len(), self.body_bytes);
        self.body_bytes += arrived.len();
        Ok(arrived.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    const HEAD: &str = "HTTP/1.1 200 OK\r\nServer: x\r\ncontent-Length: 5\r\n\r\n";

    #[test]
    fn a_reply_is_read_in_pieces_of_any_size() {
        let whole = format!("{HEAD}abcde");
        for piece in 1..=whole.len() {
            let mut reply = Reply::new(b"abcde");
            let body: usize = whole.as_bytes().chunks(piece).map(|piece| reply.take(piece).unwrap()).sum();
            assert!(reply.is_whole() && body == 5, "{piece}");
        }
    }

    #[test]
    fn wrong_bytes_statuses_and_lengths_are_errors() {
        for wrong in [
            format!("{HEAD}abcdX"),
            format!("{HEAD}abcdef"),
            HEAD.replace("200", "404"),
            HEAD.replace('5', "6"),
            HEAD.replace("content-Length", "x"),
        ] {
            assert!(Reply::new(b"abcde").take(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn connections_that_end_are_made_again_and_all_bytes_count() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let content = vec![7; 100_000];
        let reply =
            [format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", content.len()).as_bytes(), &content].concat();
        // two replies a connection; it ends with the process
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                for _ in 0..2 {
                    let _ = stream.read(&mut [0; 1000]);
                    let _ = stream.write_all(&reply);
                }
            }
        });
        let download = Download { at, path: "/", content: &content };
        // any run in which the threads have a processor
        let mut runs = (0..20).map(|_| run(&download, 2, Duration::from_millis(500)).unwrap());
        let goodput = runs.find(|goodput| goodput.bytes >= 200_000 && goodput.reconnects > 0).expect("a good run");
        assert!(goodput.bits_per_s() > 0.0);
    }
}
