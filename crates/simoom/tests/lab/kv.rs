//! The key-value store over our own stack: values larger than a segment, many connections, clients that do not read, datagrams, and an address
//! that the kernel does not have.

use crate::common::{PATIENCE, Server, client, simoom};
use crate::web::{connect, contents};
use lab::{Host, Lab, Options, capture::Capture};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};

/// Where the lab's key-value store listens.
const LISTEN: [&str; 6] = ["--interface", "vs", "--listen", "198.18.0.1:11211", "--listen", "[2001:db8:18::1]:11211"];
const SERVERS: [&str; 2] = ["198.18.0.1:11211", "[2001:db8:18::1]:11211"];

fn start(host: &Host, args: &[&str]) -> Server {
    let mut command = simoom(host);
    command.arg("kv").args(args);
    Server::spawn(command)
}

/// Sends a request and reads so many octets.
fn ask(stream: &mut TcpStream, request: &[u8], bytes: usize) -> Vec<u8> {
    stream.write_all(request).unwrap();
    let mut answer = vec![0; bytes];
    stream.read_exact(&mut answer).unwrap();
    answer
}

fn store(key: &str, value: &[u8]) -> Vec<u8> {
    [format!("set {key} 5 0 {}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat()
}

fn found(key: &str, value: &[u8]) -> Vec<u8> {
    [format!("VALUE {key} 5 {}\r\n", value.len()).as_bytes(), value, b"\r\nEND\r\n"].concat()
}

#[test]
fn values_of_every_size_come_back_and_the_wire_stays_clean() {
    let lab = Lab::with(&Options { offloads: false, ..Options::default() }).unwrap();
    let server = start(lab.server(), &[&LISTEN[..], &["--memory", "64M"]].concat());
    // the client's kernel merges segments before they can be captured, and leaves the checksum of what it made open
    lab.client().run(&["ethtool", "-K", "vc", "gro", "off"]).unwrap();
    let capture = Capture::start(&lab).unwrap();
    for at in SERVERS {
        let mut stream = connect(&lab, at).unwrap();
        for bytes in [0, 1, 1400, 1448, 1449, 2900, 4096, 65_536, 1_000_000] {
            let value = contents(bytes);
            assert_eq!(ask(&mut stream, &store("k", &value), 8), b"STORED\r\n");
            let expected = found("k", &value);
            assert!(ask(&mut stream, b"get k\r\n", expected.len()) == expected, "{at}: {bytes}");
        }
        // one request in many segments, and many in one
        let keys: String = (0..500).map(|n| format!(" k{n}")).collect();
        assert_eq!(ask(&mut stream, format!("get{keys}\r\n").as_bytes(), 5), b"END\r\n");
        let answers = ask(&mut stream, &b"get none\r\n".repeat(100), 500);
        assert_eq!(answers, b"END\r\n".repeat(100));
    }
    capture.finish().unwrap().check();
    let stats = server.stats();
    assert_eq!(stats.sum("sockets_connections_accepted_total", &[]), 0, "{stats:?}");
    assert_eq!(stats.sum("tcp_events_total", &[("event", "accepted")]), 2, "{stats:?}");
    assert_eq!(stats.sum("kv_stores_total", &[]), 18, "{stats:?}");
}

#[test]
fn many_connections_see_each_others_items() {
    let lab = Lab::new().unwrap();
    let server = start(lab.server(), &[&LISTEN[..], &["--memory", "64M"]].concat());
    let mut streams: Vec<TcpStream> = (0..400).map(|_| connect(&lab, SERVERS[0]).unwrap()).collect();
    for (n, stream) in streams.iter_mut().enumerate() {
        stream.write_all(&store(&format!("k{n}"), &contents(n * 7))).unwrap();
    }
    for stream in &mut streams {
        assert_eq!(ask(stream, b"", 8), b"STORED\r\n");
    }
    let all = streams.len();
    for (n, stream) in streams.iter_mut().enumerate() {
        let other = (n * 31 + 5) % all;
        let expected = found(&format!("k{other}"), &contents(other * 7));
        assert!(ask(stream, format!("get k{other}\r\n").as_bytes(), expected.len()) == expected, "{n} {other}");
    }
    let stats = server.stats();
    assert_eq!((stats.sum("kv_connections", &[]), stats.sum("kv_get_hits_total", &[])), (400, 400), "{stats:?}");
    drop(streams);
    server.wait_until("connections", |stats| stats.sum("kv_connections", &[]) == 0);
}

#[test]
fn who_does_not_read_is_sent_away_and_others_are_served() {
    let lab = Lab::new().unwrap();
    let server = start(lab.server(), &[&LISTEN[..], &["--memory", "16M", "--send-timeout", "15"]].concat());
    let value = contents(400_000);
    let mut stream = connect(&lab, SERVERS[0]).unwrap();
    assert_eq!(ask(&mut stream, &store("w", &value), 8), b"STORED\r\n");
    let mut stuck: Vec<TcpStream> = (0..8).map(|_| connect(&lab, SERVERS[0]).unwrap()).collect();
    for stream in &mut stuck {
        stream.set_nonblocking(true).unwrap();
        let _ = stream.write_all(&b"get w\r\n".repeat(2000));
    }
    for n in 0..40 {
        let key = format!("v{n}");
        assert_eq!(ask(&mut stream, &store(&key, &value), 8), b"STORED\r\n", "{n}");
        let expected = found(&key, &value);
        assert!(ask(&mut stream, format!("get {key}\r\n").as_bytes(), expected.len()) == expected, "{n}");
    }
    server.wait_until("slow readers", |stats| stats.sum("kv_drops_total", &[("reason", "slow reader")]) == 8);
    server.wait_until("connections", |stats| stats.sum("kv_connections", &[]) == 1);
}

/// Asks over UDP from the client's host; the answer without its header, and who it came from.
fn over_udp(lab: &Lab, at: &str, request: &[u8]) -> (Vec<u8>, SocketAddr) {
    let at: SocketAddr = at.parse().unwrap();
    let any: SocketAddr = if at.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }.parse().unwrap();
    let socket = lab.client().inside(|| UdpSocket::bind(any)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.send_to(&[&[9, 8, 0, 0, 0, 1, 0, 0], request].concat(), at).unwrap();
    let mut answer = [0; 2000];
    let (bytes, from) = lab::patiently(|| socket.recv_from(&mut answer)).unwrap();
    assert_eq!(answer[..8], [9, 8, 0, 0, 0, 1, 0, 0]);
    (answer[8..bytes].to_vec(), from)
}

#[test]
fn datagrams_are_answered_from_the_address_that_was_asked_even_one_that_the_kernel_has_not() {
    let lab = Lab::new().unwrap();
    let own = [
        "--own",
        "198.18.0.53/24",
        "--own",
        "2001:db8:18::53/64",
        "--listen",
        "198.18.0.53:11211",
        "--listen",
        "[2001:db8:18::53]:11211",
        "--udp",
        "on",
    ];
    let server = start(lab.server(), &[&LISTEN[..], &own].concat());
    for at in ["198.18.0.53", "2001:db8:18::53"] {
        server.wait_until(at, |stats| stats.sum("own_address_state", &[("address", at)]) == 1);
    }
    let all = [SERVERS[0], SERVERS[1], "198.18.0.53:11211", "[2001:db8:18::53]:11211"];
    let mut stream = connect(&lab, SERVERS[0]).unwrap();
    assert_eq!(ask(&mut stream, &store("u", b"value"), 8), b"STORED\r\n");
    for at in all {
        let (answer, from) = over_udp(&lab, at, b"get u none\r\n");
        assert_eq!((&answer[..], from), (&b"VALUE u 5 5\r\nvalue\r\nEND\r\n"[..], at.parse().unwrap()));
        let mut stream = connect(&lab, at).unwrap();
        assert_eq!(ask(&mut stream, b"get u\r\n", 25), found("u", b"value"), "{at}");
    }
    let stats = server.stats();
    assert_eq!((stats.sum("kv_datagrams_total", &[]), stats.sum("kv_get_hits_total", &[])), (4, 8), "{stats:?}");
    assert!(client(&lab, "ping -c 1 -W 5 198.18.0.1").contains(" 1 received"));
}
