//! The metrics listener: enough of HTTP/1.1 (RFC 9112) for a scraper, and no more.
//!
//! A request is read up to its empty line, at most 8 KiB within 5 s, answered within 5 s, and the connection closed. Left out:
//! keep-alive, request bodies, compression. At most [`CONNECTIONS`] are open at once; more wait in the kernel's queue.

use crate::error::{Error, reason};
use crate::metrics::{Registry, prometheus};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Scrapers served at once.
const CONNECTIONS: usize = 4;
const REQUEST_BYTES: usize = 8 << 10;
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a peer that has its answer may take to close its end.
const LAST_BYTES: Duration = Duration::from_millis(500);

/// Binds the listener.
///
/// # Errors
/// The address is in use or cannot be had.
pub(crate) fn bind(address: SocketAddr) -> Result<TcpListener, Error> {
    TcpListener::bind(address).map_err(|error| {
        let mend = match error.kind() {
            io::ErrorKind::AddrInUse => "choose another port",
            io::ErrorKind::AddrNotAvailable => "give an address of this machine",
            _ => "choose another address",
        };
        Error::environment(format!("metrics {address}: {}; {mend}", reason(&error)))
    })
}

/// Serves until the process ends.
///
/// # Errors
/// The kernel's, when a thread cannot be started.
pub(crate) fn start(listener: TcpListener, registry: Arc<Registry>) -> io::Result<()> {
    let listener = Arc::new(listener);
    for n in 0..CONNECTIONS {
        let (listener, registry) = (listener.clone(), registry.clone());
        std::thread::Builder::new().name(format!("metrics-{n}")).spawn(move || {
            loop {
                match listener.accept() {
                    // what goes wrong with one scraper is the scraper's to notice
                    Ok((stream, _)) => drop(serve(stream, &registry)),
                    // out of descriptors or memory: not again at once
                    Err(_) => std::thread::sleep(Duration::from_millis(200)),
                }
            }
        })?;
    }
    Ok(())
}

fn serve(mut stream: TcpStream, registry: &Registry) -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let mut request = Vec::new();
    let mut part = [0; 1024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return refuse(&mut stream, "408 Request Timeout");
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut part) {
            Ok(0) => return Ok(()),
            Ok(n) => request.extend_from_slice(&part[..n]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return refuse(&mut stream, "408 Request Timeout");
            }
            Err(error) => return Err(error),
        }
        if request.len() > REQUEST_BYTES {
            return refuse(&mut stream, "431 Request Header Fields Too Large");
        }
    }
    let line = request.split(|&b| b == b'\r').next().unwrap_or_default();
    let line = std::str::from_utf8(line).unwrap_or_default();
    let (status, extra, body) = answer(line, registry);
    let head = head(status, extra, body.len());
    // an answer to HEAD has the length that one to GET would have (RFC 9110 section 8.6)
    let body = if line.starts_with("HEAD ") { "" } else { &body };
    send(&mut stream, &[head.as_bytes(), body.as_bytes()].concat())
}

/// The answer to a request line (RFC 9112 section 3).
fn answer(line: &str, registry: &Registry) -> (&'static str, &'static str, String) {
    let mut words = line.split(' ');
    let (Some(method), Some(target), Some(version), None) = (words.next(), words.next(), words.next(), words.next())
    else {
        return ("400 Bad Request", "", String::new());
    };
    if !version.starts_with("HTTP/1.") {
        return ("505 HTTP Version Not Supported", "", String::new());
    }
    match (method, path(target)) {
        ("GET" | "HEAD", "/metrics") => ("200 OK", "", prometheus(&registry.collect())),
        (_, "/metrics") => ("405 Method Not Allowed", "Allow: GET, HEAD\r\n", "GET only\n".into()),
        _ => ("404 Not Found", "", "see /metrics\n".into()),
    }
}

/// The path of a target in origin-form or absolute-form, which a server has to take as well (RFC 9112 section 3.2.2).
fn path(target: &str) -> &str {
    const SCHEME: &str = "http://";
    let path = match target.split_at_checked(SCHEME.len()) {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case(SCHEME) => rest.find('/').map_or("/", |at| &rest[at..]),
        _ => target,
    };
    path.split('?').next().unwrap_or_default()
}

fn head(status: &str, extra: &str, body_bytes: usize) -> String {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {body_bytes}\r\n\
         Connection: close\r\n{extra}\r\n"
    )
}

/// Refuses without a word about why.
fn refuse(stream: &mut TcpStream, status: &str) -> io::Result<()> {
    send(stream, head(status, "", 0).as_bytes())
}

fn send(stream: &mut TcpStream, answer: &[u8]) -> io::Result<()> {
    // the time counts from the first byte to the last: there are few threads, and a peer that takes or gives a byte now and
    // then must not keep one
    let deadline = Instant::now() + PATIENCE;
    let mut rest = answer;
    while !rest.is_empty() {
        stream.set_write_timeout(Some(left(deadline)?))?;
        let taken = stream.write(rest)?;
        rest = &rest[taken..];
    }
    stream.shutdown(std::net::Shutdown::Write)?;
    // the peer's last bytes are read, so that the close is no reset that takes our answer with it
    let deadline = Instant::now() + LAST_BYTES;
    let mut part = [0; 1024];
    loop {
        stream.set_read_timeout(Some(left(deadline)?))?;
        if stream.read(&mut part)? == 0 {
            return Ok(());
        }
    }
}

/// The time until `deadline`, or an error when it has passed.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange(request: &[u8]) -> String {
        let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        start(listener, Arc::default()).unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn each_request_gets_its_status() {
        for (request, status) in [
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", "200 OK"),
            ("GET /metrics?x HTTP/1.0\r\n\r\n", "200 OK"),
            ("HEAD /metrics HTTP/1.1\r\n\r\n", "200 OK"),
            ("GET http://127.0.0.1:9100/metrics?x HTTP/1.1\r\n\r\n", "200 OK"),
            ("GET http://127.0.0.1:9100 HTTP/1.1\r\n\r\n", "404 Not Found"),
            ("GET /x://y/metrics HTTP/1.1\r\n\r\n", "404 Not Found"),
            ("POST /metrics HTTP/1.1\r\n\r\n", "405 Method Not Allowed"),
            ("GET / HTTP/1.1\r\n\r\n", "404 Not Found"),
            ("GET /metrics HTTP/2\r\n\r\n", "505 HTTP Version Not Supported"),
            ("nonsense\r\n\r\n", "400 Bad Request"),
        ] {
            let answer = exchange(request.as_bytes());
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{request}: {answer}");
            assert!(answer.contains("Connection: close\r\n"));
        }
    }

    #[test]
    fn head_has_the_length_of_get_and_no_content() {
        for target in ["/metrics", "/none"] {
            let get = exchange(format!("GET {target} HTTP/1.1\r\n\r\n").as_bytes());
            let head = exchange(format!("HEAD {target} HTTP/1.1\r\n\r\n").as_bytes());
            let (fields, content) = get.split_once("\r\n\r\n").unwrap();
            assert!(get.contains(&format!("\r\nContent-Length: {}\r\n", content.len())), "{get}");
            assert_eq!(head, format!("{fields}\r\n\r\n"), "{target}");
        }
    }

    #[test]
    fn a_header_without_end_is_refused() {
        let answer = exchange(&vec![b'x'; REQUEST_BYTES + 1]);
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    }

    #[test]
    fn a_peer_that_dribbles_on_does_not_keep_a_thread() {
        let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        start(listener, Arc::default()).unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        stream.read_to_end(&mut Vec::new()).unwrap();
        // far fewer bytes than it would read of a request, each soon after the one before
        let refused = (0..1000).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            stream.write_all(b"x").is_err()
        });
        assert!(refused, "1000 bytes later the connection is still open");
    }

    #[test]
    fn an_address_in_use_says_so() {
        let first = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = first.local_addr().unwrap();
        let error = bind(address).unwrap_err();
        assert_eq!(
            (error.to_string(), error.status()),
            (format!("metrics {address}: Address already in use; choose another port"), 1)
        );
    }
}
