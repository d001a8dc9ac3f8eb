//! Clients that want harm, against `simoom web` over AF_XDP: what each can make the server do or hold is bounded, and others are
//! served meanwhile. Exact timing and what only counters of the stack show is in crate stack (`tests/tcp_hostile.rs`).

use crate::common::Stats;
use crate::web::{LISTEN, Web, connect, contents, curl, get};
use lab::frame::{self, Tcp, bits};
use lab::raw::Direct;
use lab::{Lab, Options, SERVER_V4};
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The server's socket.
const SERVER: (Ipv4Addr, u16) = (SERVER_V4, 80);
/// An answer to a frame that was sent by hand.
const SOON: Duration = Duration::from_secs(10);
/// A sender that waits so long between two bytes is slow.
const PAUSE: Duration = Duration::from_millis(100);
/// MSS 1460, SACK permitted, a window scale of 7, and timestamps if wanted.
const OPTIONS: [u8; 12] = [2, 4, 5, 180, 1, 3, 3, 7, 1, 1, 4, 2];

/// A laboratory whose segments come as they are sent: neither end merges or cuts, and bursts wait in a queue.
fn lab() -> Lab {
    let lab = Lab::with(&Options { offloads: false, ..Options::default() }).unwrap();
    let client = lab.client();
    client.run(&["ethtool", "-K", "vc", "gro", "off"]).unwrap();
    client.run(&["tc", "qdisc", "replace", "dev", "vc", "root", "pfifo", "limit", "10000"]).unwrap();
    lab
}

/// An event of TCP.
fn event(stats: &Stats, name: &str) -> u64 {
    stats.sum("tcp_events_total", &[("event", name)])
}

/// Segments that went no further for a reason.
fn ignored(stats: &Stats, reason: &str) -> u64 {
    stats.sum("tcp_segments_ignored_total", &[("reason", reason)])
}

/// Resident memory of the server.
fn resident_bytes(web: &Web) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", web.server.process.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// What lies below the client's TCP: frames by hand, between hardware addresses that were looked up.
struct Wire {
    direct: Direct,
    us: [u8; 6],
    them: [u8; 6],
    sent: u32,
}

impl Wire {
    /// Runs `work` in the client's host with a wire of its own.
    fn with<T: Send>(lab: &Lab, work: impl FnOnce(&mut Wire) -> T + Send) -> T {
        let (us, them) = (lab.client().mac().unwrap(), lab.server().mac().unwrap());
        let interface = lab.client().interface();
        lab.client().inside(|| work(&mut Wire { direct: Direct::open(interface).unwrap(), us, them, sent: 0 }))
    }

    fn send(&mut self, segment: &Tcp) {
        let frame = frame::ethernet(self.them, self.us, frame::ethertype::IPV4, &segment.packet());
        self.direct.send(&frame).unwrap();
        self.sent += 1;
        if self.sent.is_multiple_of(32) {
            // else the socket's own queue overflows
            sleep(Duration::from_millis(2));
        }
    }

    /// The next segment to this socket for which `wanted` holds.
    fn hear(&mut self, to: (Ipv4Addr, u16), wanted: impl Fn(&Tcp) -> bool) -> Option<Tcp> {
        self.direct.receive(SOON, |frame| Tcp::parse(frame).filter(|segment| segment.to == to && wanted(segment)))
    }
}

/// Keeps a wire from running far ahead of the server, whose receive ring has room for 2048 frames.
struct Pace<'a> {
    web: &'a Web,
    /// frames that were sent and received when it began
    sent: u32,
    received: u64,
    /// sent since, and not to come any more
    lost: u64,
}

impl<'a> Pace<'a> {
    fn begin(web: &'a Web, wire: &Wire) -> Pace<'a> {
        Pace { web, sent: wire.sent, received: received(web), lost: 0 }
    }

    /// Waits until so many frames at most are on their way.
    fn wait(&mut self, wire: &Wire, most: u64) {
        let (mut last, mut since) = (0, Instant::now());
        loop {
            let came = received(self.web) - self.received;
            let on_their_way = u64::from(wire.sent - self.sent).saturating_sub(came + self.lost);
            if on_their_way <= most {
                return;
            }
            if came != last {
                (last, since) = (came, Instant::now());
            }
            if since.elapsed() > SOON {
                self.lost += on_their_way;
                return;
            }
            sleep(Duration::from_millis(10));
        }
    }
}

/// Frames that the server has received.
fn received(web: &Web) -> u64 {
    web.server.stats().sum("xdp_frames_received_total", &[])
}

/// A connection whose segments are written by hand, from an address that no kernel has.
struct Foe {
    from: (Ipv4Addr, u16),
    seq: u32,
    ack: u32,
    window: u16,
}

impl Foe {
    /// Asks for a connection and completes the handshake; what the server answered.
    fn connect(wire: &mut Wire, from: (Ipv4Addr, u16), window: u16, options: &[u8]) -> (Foe, Tcp) {
        let mut foe = Foe { from, seq: 1_000_000, ack: 0, window };
        let answer = foe.knock(wire, options);
        assert_eq!((answer.bits & bits::ACK, answer.ack), (bits::ACK, foe.seq + 1));
        foe.seq += 1;
        foe.ack = answer.seq.wrapping_add(1);
        wire.send(&foe.segment(bits::ACK));
        (foe, answer)
    }

    /// Asks for a connection, again if need be, as whoever does: what is answered.
    fn knock(&self, wire: &mut Wire, options: &[u8]) -> Tcp {
        let answered = (0..10).find_map(|_| {
            wire.send(&Tcp { options: options.to_vec(), ..self.segment(bits::SYN) });
            wire.hear(self.from, |it| it.bits & bits::SYN != 0)
        });
        answered.expect("a SYN-ACK")
    }

    fn segment(&self, bits: u8) -> Tcp {
        Tcp { seq: self.seq, ack: self.ack, window: self.window, ..Tcp::new(self.from, SERVER, bits) }
    }

    /// Sends bytes.
    fn say(&mut self, wire: &mut Wire, text: &str) {
        wire.send(&Tcp { payload: text.into(), ..self.segment(bits::ACK | bits::PSH) });
        self.seq += text.len() as u32;
    }
}

/// Another address each time, all outside of the wire's own prefix.
fn stranger(n: u32) -> (Ipv4Addr, u16) {
    (Ipv4Addr::from(0x0a00_0001 + n), 1024 + (n % 50_000) as u16)
}

const REQUEST: &str = "GET /5000000.bin HTTP/1.1\r\nHost: lab\r\n\r\n";

#[test]
fn requests_a_byte_at_a_time_end_while_others_are_served() {
    const SLOW: usize = 100;
    let lab = Lab::new().unwrap();
    let web = Web::start(lab.server(), &[&LISTEN[..], &["--request-timeout", "2"]].concat());
    let mut heads: Vec<TcpStream> = (0..SLOW).map(|_| connect(&lab, "198.18.0.1:80").unwrap()).collect();
    let mut bodies: Vec<TcpStream> = (0..SLOW).map(|_| connect(&lab, "[2001:db8:18::1]:80").unwrap()).collect();
    for body in &mut bodies {
        body.write_all(b"GET /1.bin HTTP/1.1\r\nHost: lab\r\nContent-Length: 100000\r\n\r\n").unwrap();
    }
    let mut head = b"GET / HTTP/1.1\r\nHost: lab\r\n".iter().chain(b"X-Slow: 1\r\n".iter().cycle());
    let (mut answered, mut aborted) = (0, 0);
    // far longer than the server should wait for either
    for _ in 0..900 {
        let byte = [*head.next().unwrap()];
        // who was answered is not told more
        heads.retain_mut(|slow| slow.write_all(&byte).is_ok());
        bodies.retain_mut(|slow| slow.write_all(b"x").is_ok());
        assert_eq!(curl(&lab, &["http://198.18.0.1/"]), b"hello");
        let stats = web.tcp();
        answered = stats.sum("web_refusals_total", &[("reason", "timed out")]);
        aborted = stats.sum("web_drops_total", &[("reason", "content")]);
        if (answered, aborted) == (SLOW as u64, SLOW as u64) {
            break;
        }
        sleep(PAUSE);
    }
    assert_eq!((answered, aborted), (SLOW as u64, SLOW as u64), "{:?}", web.server.stats());
    for slow in &mut heads {
        let mut answer = Vec::new();
        let _ = slow.read_to_end(&mut answer);
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 408 "), "{}", String::from_utf8_lossy(&answer));
    }
    drop((heads, bodies));
    web.wait_for_connections(0);
}

#[test]
fn resets_and_syns_guessed_into_a_connection_do_it_no_harm() {
    let lab = lab();
    let web = Web::start(lab.server(), &LISTEN);
    let mut victim = connect(&lab, "198.18.0.1:80").unwrap();
    assert_eq!(get(&mut victim, "/1449.bin").unwrap(), contents(1449));
    let std::net::SocketAddr::V4(at) = victim.local_addr().unwrap() else { panic!("IPv4 was asked for") };
    let from = (*at.ip(), at.port());
    Wire::with(&lab, |wire| {
        let mut pace = Pace::begin(&web, wire);
        for n in 0..4000u32 {
            // numbers all over: no guess is the one that is expected, but for one in 2^32
            let (seq, ack) = (n.wrapping_mul(1_073_741), n.wrapping_mul(777_777_777));
            for kind in [bits::RST, bits::SYN, bits::RST | bits::ACK, bits::FIN | bits::ACK] {
                let payload = if kind & bits::FIN != 0 { b"GET / HTTP/1.1\r\n\r\n".to_vec() } else { Vec::new() };
                wire.send(&Tcp { seq, ack, payload, ..Tcp::new(from, SERVER, kind) });
            }
            // four frames each, and no more on their way than the wire's own socket takes
            if n % 30 == 29 {
                pace.wait(wire, 120);
            }
        }
    });
    web.server.wait_until("guesses arrive", |stats| ignored(stats, "unexpected syn") >= 3900);
    assert_eq!(get(&mut victim, "/65536.bin").unwrap(), contents(65_536));
    let stats = web.tcp();
    assert_eq!(event(&stats, "reset by peer"), 0, "{stats:?}");
    // two a second for a connection
    let seconds = 60;
    assert!((1..2 * seconds).contains(&event(&stats, "challenge ack")), "{stats:?}");
}

#[test]
fn a_flood_of_half_open_connections_gets_cookies_that_keep_what_was_offered() {
    const FLOOD: u32 = 60_000;
    let lab = lab();
    let web = Web::start(lab.server(), &LISTEN);
    let flood = |wire: &mut Wire, from: u32| {
        let mut pace = Pace::begin(&web, wire);
        for n in from..from + FLOOD {
            wire.send(&Tcp { seq: n, options: OPTIONS.to_vec(), ..Tcp::new(stranger(n), SERVER, bits::SYN) });
            if n % 500 == 499 {
                pace.wait(wire, 250);
            }
        }
    };
    let sent_cookies = |least: u64| {
        web.server.wait_until("cookies", |stats| event(stats, "cookie sent") >= least);
        assert_eq!(curl(&lab, &["http://198.18.0.1/65536.bin"]), contents(65_536));
        resident_bytes(&web)
    };
    // the first flood has the pages of the tables touched; what is lost on the way is a small part
    Wire::with(&lab, |wire| flood(wire, 0));
    let before = sent_cookies(u64::from(FLOOD) / 2);
    Wire::with(&lab, |wire| {
        flood(wire, FLOOD);
        flood(wire, 2 * FLOOD);
    });
    let after = sent_cookies(u64::from(FLOOD));
    assert!(after <= before + (2 << 20), "{before} bytes resident before, {after} after");
    let stats = web.tcp();
    assert!(stats.sum("tcp_half_open", &[]) >= 8000, "{stats:?}");
    Wire::with(&lab, |wire| {
        // a window of 100 << 7: without the scale it would not hold a segment
        for (port, clock) in [(7001, None), (7002, Some([1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0]))] {
            let from = (Ipv4Addr::new(198, 18, 0, 77), port);
            let options = [&OPTIONS[..], clock.as_ref().map_or(&[], |clock| &clock[..])].concat();
            let accepted = event(&web.tcp(), "cookie accepted");
            let mut foe = Foe { from, seq: 5000, ack: 0, window: 100 };
            let answer = foe.knock(wire, &options);
            assert_eq!(answer.option(2), Some(&1460u16.to_be_bytes()[..]), "{answer:?}");
            assert!(answer.option(3).is_some() && answer.option(4) == Some(&[]), "{answer:?}");
            assert_eq!(answer.option(8).is_some(), clock.is_some(), "{answer:?}");
            foe.seq += 1;
            foe.ack = answer.seq.wrapping_add(1);
            let echo = answer.option(8).map(|clocks| [&[1, 1, 8, 10, 0, 0, 0, 2], &clocks[..4]].concat());
            let echo = echo.unwrap_or_default();
            // the second half of the request comes first: SACK tells where it is
            let (first, second) = REQUEST.split_at(20);
            let late = foe.seq + first.len() as u32;
            wire.send(&Tcp { options: echo.clone(), ..foe.segment(bits::ACK) });
            wire.send(&Tcp {
                seq: late,
                options: echo.clone(),
                payload: second.into(),
                ..foe.segment(bits::ACK | bits::PSH)
            });
            let told = wire.hear(from, |it| it.option(5).is_some()).expect("a SACK block");
            let block = [late, late + second.len() as u32].map(u32::to_be_bytes).concat();
            assert_eq!(told.option(5), Some(&block[..]), "{told:?}");
            wire.send(&Tcp { options: echo, payload: first.into(), ..foe.segment(bits::ACK) });
            let mut next = foe.ack;
            while next.wrapping_sub(foe.ack) < 11_000 {
                let Some(data) = wire.hear(from, |it| it.seq == next && !it.payload.is_empty()) else {
                    panic!("{} bytes within a window of 12,800", next.wrapping_sub(foe.ack))
                };
                next = next.wrapping_add(data.payload.len() as u32);
            }
            assert_eq!(event(&web.tcp(), "cookie accepted"), accepted + 1);
            wire.send(&Tcp { seq: foe.seq + REQUEST.len() as u32, ..foe.segment(bits::RST) });
        }
        // nobody gets in with a guess
        let from = (Ipv4Addr::new(198, 18, 0, 77), 7003);
        wire.send(&Tcp { seq: 1, ack: 77, ..Tcp::new(from, SERVER, bits::ACK) });
        assert_eq!(wire.hear(from, |_| true).expect("a reset").bits, bits::RST);
    });
    assert!(ignored(&web.tcp(), "bad cookie") >= 1);
}

#[test]
fn windows_held_at_zero_are_let_go_and_the_memory_with_them() {
    const HELD: u32 = 500;
    let lab = lab();
    let web = Web::start(lab.server(), &[&LISTEN[..], &["--send-timeout", "3"]].concat());
    let hold = |from: u32| {
        Wire::with(&lab, |wire| {
            for n in from..from + HELD {
                let (mut foe, _) = Foe::connect(wire, stranger(n), 0, &OPTIONS);
                foe.say(wire, REQUEST);
            }
        });
    };
    hold(0);
    web.server.wait_until("held", |stats| stats.sum("web_requests_total", &[("method", "GET")]) >= u64::from(HELD));
    assert_eq!(curl(&lab, &["http://198.18.0.1/65536.bin"]), contents(65_536));
    let slow = |stats: &Stats| stats.sum("web_drops_total", &[("reason", "slow reader")]);
    let let_go = |rounds: u32| {
        web.server.wait_until("let go", |stats| slow(stats) >= u64::from(rounds * HELD));
        web.wait_for_connections(0);
        resident_bytes(&web)
    };
    let_go(1);
    // as many at once as a busy machine makes of them, which is what touches memory
    let rounds = |rounds: std::ops::Range<u32>| {
        let all = rounds.end;
        rounds.for_each(|round| hold(round * HELD));
        let_go(all)
    };
    let before = rounds(1..4);
    let after = rounds(4..7);
    assert!(after <= before + (4 << 20), "{before} bytes resident before, {after} after");
}

#[test]
fn one_source_has_a_bound_and_others_do_not_notice() {
    let lab = lab();
    let web = Web::start(lab.server(), &[&LISTEN[..], &["--per-source", "20"]].concat());
    let greedy = Ipv4Addr::new(198, 18, 0, 66);
    Wire::with(&lab, |wire| {
        for port in 1..=20 {
            Foe::connect(wire, (greedy, 2000 + port), 1000, &OPTIONS);
        }
        web.wait_for_connections(20);
        for port in 1..=50 {
            wire.send(&Tcp { options: OPTIONS.to_vec(), ..Tcp::new((greedy, 3000 + port), SERVER, bits::SYN) });
        }
        web.server.wait_until("refused", |stats| ignored(stats, "source limit") >= 50);
        Foe::connect(wire, (Ipv4Addr::new(198, 18, 0, 67), 2000), 1000, &OPTIONS);
    });
    assert_eq!(curl(&lab, &["http://198.18.0.1/"]), b"hello");
    web.wait_for_connections(21);
}

#[test]
fn who_never_reads_across_reloads_holds_an_old_version_for_the_drain_time_at_most() {
    let lab = Lab::new().unwrap();
    let web = Web::start(lab.server(), &[&LISTEN[..], &["--drain", "2"]].concat());
    let mut last = Vec::new();
    let requests = |stats: &Stats| stats.sum("web_requests_total", &[]);
    for version in 1..=3 {
        let before = requests(&web.server.stats());
        let mut stuck = connect(&lab, "198.18.0.1:80").unwrap();
        stuck.write_all(REQUEST.as_bytes()).unwrap();
        web.server.wait_until("asked", |stats| requests(stats) > before);
        let (before, text) = (resident_bytes(&web), format!("version {version}"));
        fs::write(web.file("5000000.bin"), &text).unwrap();
        assert!(web.server.ctl(&["reload"]).status.success());
        assert_eq!(curl(&lab, &["http://198.18.0.1/5000000.bin"]), text.as_bytes());
        // at most two versions are held: this reload waits for the end of the last one's drain
        fs::write(web.file("5000000.bin"), contents(5_000_000)).unwrap();
        assert!(web.server.ctl(&["reload"]).status.success());
        let ended = std::io::copy(&mut stuck, &mut std::io::sink()).map_err(|error| error.kind());
        assert_eq!(ended, Err(ErrorKind::ConnectionReset));
        last.push(before.max(resident_bytes(&web)));
    }
    assert!(event(&web.tcp(), "aborted") >= 3, "{:?}", web.tcp());
    assert!(last[2] <= last[0] + (8 << 20), "the versions before were not let go: {last:?}");
}

#[test]
fn mad_acknowledgements_make_the_server_send_no_faster() {
    let lab = lab();
    let web = Web::start(lab.server(), &LISTEN);
    Wire::with(&lab, |wire| {
        let (mut foe, _) = Foe::connect(wire, (Ipv4Addr::new(198, 18, 0, 77), 7001), 60_000, &OPTIONS);
        foe.say(wire, REQUEST);
        let mut pace = Pace::begin(&web, wire);
        // the first flight: ten segments, whatever the window (RFC 6928)
        let first = foe.ack;
        let mut next = first;
        while next.wrapping_sub(first) < 14_000 {
            let data = wire.hear(foe.from, |it| it.seq == next && !it.payload.is_empty()).expect("ten segments");
            next = next.wrapping_add(data.payload.len() as u32);
        }
        // What was never sent is acknowledged, again and again: nothing comes of it. Farther than the segment that a probe for the tail
        // may send where we are late (RFC 8985 section 7.3).
        for n in 1..2000 {
            wire.send(&Tcp { ack: next.wrapping_add((10 + n) * 1000), ..foe.segment(bits::ACK) });
            if n % 100 == 0 {
                pace.wait(wire, 100);
            }
        }
        web.server.wait_until("mad", |stats| ignored(stats, "ack beyond") >= 1900);
        // SACK blocks of a byte each: nothing is lost or gained
        for n in (0..14_000).step_by(8) {
            let edges = [1, 3, 5].map(|k| [first.wrapping_add(n + k), first.wrapping_add(n + k + 1)]);
            let blocks: Vec<u8> = edges.as_flattened().iter().flat_map(|edge| edge.to_be_bytes()).collect();
            let options = [&[1, 1, 5, 26][..], &blocks].concat();
            wire.send(&Tcp { options, ..foe.segment(bits::ACK) });
        }
        pace.wait(wire, 100);
        // a byte at a time for a segment, then a part of the window is taken back, then all is acknowledged
        for n in 1..=1460 {
            wire.send(&Tcp { ack: first.wrapping_add(n), ..foe.segment(bits::ACK) });
        }
        wire.send(&Tcp { ack: first.wrapping_add(1460), window: 4, ..foe.segment(bits::ACK) });
        wire.send(&Tcp { ack: next, ..foe.segment(bits::ACK) });
        assert!(wire.hear(foe.from, |it| it.seq == next && !it.payload.is_empty()).is_some(), "it goes on");
        wire.send(&foe.segment(bits::RST));
    });
    let stats = web.tcp();
    assert!(event(&stats, "challenge ack") <= 60, "{stats:?}");
    assert!(stats.sum("tcp_segments_sent_total", &[]) < 500, "{stats:?}");
    web.wait_for_connections(0);
    assert_eq!(curl(&lab, &["http://198.18.0.1/5000000.bin"]), contents(5_000_000));
}
