use super::*;
use crate::serve::Options;
use crate::testing::{question, read, show, zone};
use app::{Addresses, CallError, DeadReason, Listener, Range, Service};
use zone::{Name, Rtype};

/// One connection's far end: what the service sent, and how much the engine takes.
#[derive(Default)]
struct Peer {
    accepted: Option<u64>,
    rejected: bool,
    room: usize,
    out: Vec<u8>,
    given_back: usize,
    closed: bool,
    aborted: bool,
    timer: Option<Instant>,
}

impl Streams for Peer {
    fn accept(&mut self, _: Connection, cookie: u64) -> Result<(), CallError> {
        self.accepted = Some(cookie);
        Ok(())
    }
    fn reject(&mut self, _: Connection) -> Result<(), CallError> {
        self.rejected = true;
        Ok(())
    }
    fn sendv(&mut self, _: Connection, ranges: &[Range<'_>]) -> Result<u64, CallError> {
        let [Range::Owned(bytes)] = ranges else { panic!("one answer of its own, not {ranges:?}") };
        let taken = bytes.len().min(self.room);
        self.room -= taken;
        self.out.extend_from_slice(&bytes[..taken]);
        Ok(taken as u64)
    }
    fn room(&self, _: Connection) -> usize {
        self.room
    }
    fn recv_done(&mut self, _: Connection, bytes: usize) -> Result<(), CallError> {
        self.given_back += bytes;
        Ok(())
    }
    fn shutdown(&mut self, _: Connection) -> Result<(), CallError> {
        panic!("DNS ends both directions at once")
    }
    fn close(&mut self, _: Connection) -> Result<(), CallError> {
        self.closed = true;
        Ok(())
    }
    fn abort(&mut self, _: Connection) -> Result<(), CallError> {
        self.aborted = true;
        Ok(())
    }
    fn timer_set(&mut self, _: Connection, at: Option<Instant>) -> Result<(), CallError> {
        self.timer = at;
        Ok(())
    }
}

const HANDLE: Connection = Connection { index: 0, generation: 0 };

fn server(limits: Limits) -> Server {
    let text = "$TTL 60\n@ SOA ns h 1 1 1 1 1\n@ NS ns\nns A 192.0.2.1\n$GENERATE 1-3000 big A 10.0.${0,1,x}.1\n\
                $GENERATE 1-250 big A 10.1.2.$\n$GENERATE 1-250 big A 10.1.3.$\n";
    let text = text.replace("$GENERATE 1-3000 big A 10.0.${0,1,x}.1\n", "");
    crate::testing::server(vec![zone("example.", &text)], Options { tcp: limits, ..Options::default() })
}

fn knock(server: &mut Server, peer: &mut Peer) -> u64 {
    let addresses = Addresses { local: "192.0.2.53:53".parse().unwrap(), peer: "198.51.100.1:4000".parse().unwrap() };
    server.knock(Instant::ZERO, peer, Listener(0), HANDLE, addresses);
    peer.accepted.unwrap_or(u64::MAX)
}

fn framed(name: &str) -> Vec<u8> {
    let name: Name = name.parse().unwrap();
    let message = question(name.view(), Rtype::A, None);
    [&(message.len() as u16).to_be_bytes()[..], &message].concat()
}

/// The whole answers that came.
fn answers(mut rest: &[u8]) -> Vec<String> {
    let mut lines = Vec::new();
    while let Some((length, after)) = rest.split_first_chunk::<2>() {
        let Some((message, after)) = after.split_at_checked(usize::from(u16::from_be_bytes(*length))) else { break };
        let answer = read(message);
        lines.push(if answer.sections[0].len() > 9 {
            format!("{} records", answer.sections[0].len())
        } else {
            show(&answer)
        });
        rest = after;
    }
    lines
}

#[test]
fn questions_come_in_any_pieces_and_are_answered_in_order() {
    let stream = [framed("ns.example"), framed("nope.example"), framed("big.example"), framed("elsewhere")].concat();
    let expected = ["NOERROR aa | ns.example./A | |", "NXDOMAIN aa | | example./SOA |", "500 records", "REFUSED | | |"];
    for piece in [1, 2, 3, 7, 31, stream.len()] {
        let mut server = server(Limits::default());
        let mut peer = Peer { room: usize::MAX, ..Peer::default() };
        let cookie = knock(&mut server, &mut peer);
        for bytes in stream.chunks(piece) {
            server.recv(Instant::ZERO, &mut peer, HANDLE, cookie, bytes);
        }
        assert_eq!(answers(&peer.out), expected, "pieces of {piece}");
        assert_eq!(peer.given_back, stream.len());
        assert!(!peer.aborted && !peer.closed);
        server.eof(Instant::ZERO, &mut peer, HANDLE, cookie);
        assert!(peer.closed);
    }
}

#[test]
fn an_answer_that_does_not_fit_waits_and_holds_the_next_ones_back() {
    let mut server = server(Limits::default());
    let mut peer = Peer { room: 100, ..Peer::default() };
    let cookie = knock(&mut server, &mut peer);
    let stream = [framed("big.example"), framed("ns.example")].concat();
    server.recv(Instant::ZERO, &mut peer, HANDLE, cookie, &stream);
    assert_eq!((peer.out.len(), peer.given_back), (100, framed("big.example").len()));
    server.eof(Instant::ZERO, &mut peer, HANDLE, cookie);
    assert!(!peer.closed, "the peer still reads");
    for _ in 0..200 {
        peer.room = 77;
        server.sent(Instant::ZERO, &mut peer, HANDLE, cookie, 77, 77);
    }
    assert_eq!(answers(&peer.out), ["500 records", "NOERROR aa | ns.example./A | |"]);
    assert!(peer.closed && !peer.aborted);
}

/// Idle is who has no answers outstanding (RFC 7766 sections 3 and 6.2.3): while a client takes them its connection stays.
#[test]
fn a_client_that_takes_its_answers_slowly_gets_all_of_them() {
    let mut server = server(Limits::default());
    let idle = Limits::default().idle;
    let mut peer = Peer { room: 100, ..Peer::default() };
    let cookie = knock(&mut server, &mut peer);
    let stream = [framed("big.example"), framed("big.example"), framed("big.example")].concat();
    let mut now = Instant::ZERO;
    server.recv(now, &mut peer, HANDLE, cookie, &stream);
    let mut seconds = 0;
    while answers(&peer.out).len() < 3 {
        let due = peer.timer.unwrap();
        now += Duration::from_secs(9);
        assert!(now < due, "after {} octets", peer.out.len());
        peer.room = LEAST_TAKEN_BYTES;
        server.sent(now, &mut peer, HANDLE, cookie, LEAST_TAKEN_BYTES, LEAST_TAKEN_BYTES);
        seconds += 9;
    }
    assert!(seconds > 3 * idle.as_secs() && !peer.closed && !peer.aborted);
    assert_eq!(answers(&peer.out), ["500 records"; 3]);
    let due = peer.timer.unwrap();
    server.timer(due, &mut peer, HANDLE, cookie);
    assert!(peer.closed && !peer.aborted, "idle now");
}

/// Who takes nothing, or an octet now and then, is not waited for, and does not take the half of a message for the whole.
#[test]
fn a_client_that_does_not_take_its_answer_is_aborted() {
    for octets in [0, 1, 100] {
        let mut server = server(Limits::default());
        let mut peer = Peer { room: 100, ..Peer::default() };
        let cookie = knock(&mut server, &mut peer);
        server.recv(Instant::ZERO, &mut peer, HANDLE, cookie, &framed("big.example"));
        let due = peer.timer.unwrap();
        for second in 1..10 {
            peer.room = octets;
            server.sent(Instant::ZERO + Duration::from_secs(second), &mut peer, HANDLE, cookie, octets, octets);
        }
        assert_eq!(peer.timer, Some(due), "{octets} octets a second");
        server.timer(due, &mut peer, HANDLE, cookie);
        assert!(peer.aborted && !peer.closed, "{octets} octets a second");
        assert_eq!(server.core.shared.stats.connections_timed_out.get(), 1);
    }
}

/// An engine may tell of room late, or in large pieces: what it takes when the time is over counts.
#[test]
fn room_that_was_not_told_of_counts_when_the_time_is_over() {
    let mut server = server(Limits::default());
    let mut peer = Peer { room: 100, ..Peer::default() };
    let cookie = knock(&mut server, &mut peer);
    server.recv(Instant::ZERO, &mut peer, HANDLE, cookie, &[framed("big.example"), framed("ns.example")].concat());
    let due = peer.timer.unwrap();
    peer.room = LEAST_TAKEN_BYTES;
    server.timer(due, &mut peer, HANDLE, cookie);
    assert!(!peer.aborted && !peer.closed && peer.timer == Some(due + Limits::default().idle));
    // the rest, and the answer behind it
    peer.room = usize::MAX;
    server.timer(due + Limits::default().idle, &mut peer, HANDLE, cookie);
    assert!(!peer.aborted && !peer.closed);
    assert_eq!(answers(&peer.out), ["500 records", "NOERROR aa | ns.example./A | |"]);
}

/// A connection between two servers, which goes to the other one before every event.
struct Restless {
    servers: [Server; 2],
    peer: Peer,
    cookie: u64,
}

impl Restless {
    fn new(room: usize) -> Restless {
        let mut servers = [server(Limits::default()), server(Limits::default())];
        let mut peer = Peer { room, ..Peer::default() };
        let cookie = knock(&mut servers[0], &mut peer);
        Restless { servers, peer, cookie }
    }

    fn go_over(&mut self) {
        assert!(self.servers[0].can_move());
        let luggage = self.servers[0].depart(Instant::ZERO, HANDLE, self.cookie);
        self.servers.swap(0, 1);
        self.cookie = self.servers[0].arrive(Instant::ZERO, &mut self.peer, HANDLE, luggage).expect("room for it");
    }
}

#[test]
fn questions_and_answers_go_along_to_another_thread() {
    for piece in [1, 7, 31] {
        let mut pair = Restless::new(100);
        let stream = [framed("big.example"), framed("nope.example"), framed("ns.example")].concat();
        for bytes in stream.chunks(piece) {
            pair.go_over();
            pair.servers[0].recv(Instant::ZERO, &mut pair.peer, HANDLE, pair.cookie, bytes);
        }
        pair.go_over();
        pair.servers[0].eof(Instant::ZERO, &mut pair.peer, HANDLE, pair.cookie);
        for _ in 0..200 {
            if !pair.peer.closed {
                pair.peer.room = 77;
                pair.go_over();
                pair.servers[0].sent(Instant::ZERO, &mut pair.peer, HANDLE, pair.cookie, 77, 77);
            }
        }
        let expected = ["500 records", "NXDOMAIN aa | | example./SOA |", "NOERROR aa | ns.example./A | |"];
        assert_eq!(answers(&pair.peer.out), expected, "pieces of {piece}");
        assert!(pair.peer.closed && !pair.peer.aborted);
        assert_eq!(pair.peer.given_back, stream.len());
        pair.servers[0].dead(Instant::ZERO, HANDLE, pair.cookie, DeadReason::Closed);
        for server in &pair.servers {
            assert!(is_empty(server));
        }
    }
}

fn is_empty(server: &Server) -> bool {
    let Connections { clients, places, backlog_places, .. } = &server.connections;
    clients.iter().all(Option::is_none) && places.used() == 0 && backlog_places.used() == 0
}

#[test]
fn a_connection_that_finds_no_room_on_another_thread_is_refused() {
    for (limits, question) in [
        (Limits { connections: Bound::new(0), ..Limits::default() }, "ns.example"),
        (Limits { backlogs: Bound::new(0), ..Limits::default() }, "big.example"),
    ] {
        let mut pair = Restless::new(100);
        pair.servers[0].recv(Instant::ZERO, &mut pair.peer, HANDLE, pair.cookie, &framed(question));
        let luggage = pair.servers[0].depart(Instant::ZERO, HANDLE, pair.cookie);
        let mut other = server(limits);
        assert_eq!(other.arrive(Instant::ZERO, &mut pair.peer, HANDLE, luggage), None);
        assert_eq!(other.core.shared.stats.connections_refused.get(), 1);
        assert!(is_empty(&other));
    }
}

#[test]
fn a_peer_that_sends_on_without_reading_is_aborted() {
    let mut server = server(Limits::default());
    let mut peer = Peer { room: 10, ..Peer::default() };
    let cookie = knock(&mut server, &mut peer);
    for _ in 0..200 {
        if !peer.aborted {
            server.recv(Instant::ZERO, &mut peer, HANDLE, cookie, &framed("ns.example"));
        }
    }
    assert!(peer.aborted);
    server.dead(Instant::ZERO, HANDLE, cookie, DeadReason::Aborted);
    assert!(is_empty(&server), "everything came home");
}

#[test]
fn what_is_no_question_ends_the_connection() {
    let response = {
        let mut framed = framed("ns.example");
        framed[4] |= 0x80;
        framed
    };
    for bytes in [&b"\0\0"[..], b"\0\x05abcde", b"\xff\xff", &response] {
        let mut server = server(Limits::default());
        let mut peer = Peer { room: usize::MAX, ..Peer::default() };
        let cookie = knock(&mut server, &mut peer);
        server.recv(Instant::ZERO, &mut peer, HANDLE, cookie, bytes);
        assert!(peer.aborted && peer.out.is_empty(), "{bytes:?}");
    }
}

#[test]
fn connections_are_bounded_and_idle_ones_closed() {
    let limits = Limits { connections: Bound::new(2), idle: Duration::from_secs(3), ..Limits::default() };
    let mut server = server(limits);
    let mut peers: Vec<Peer> = (0..3).map(|_| Peer { room: usize::MAX, ..Peer::default() }).collect();
    for peer in &mut peers {
        knock(&mut server, peer);
    }
    assert_eq!(peers.iter().map(|peer| peer.rejected).collect::<Vec<_>>(), [false, false, true]);
    let cookie = peers[0].accepted.unwrap();
    let later = Instant::ZERO + Duration::from_secs(1);
    // a piece of a question does not keep the connection alive, a whole one does
    let question = framed("ns.example");
    server.recv(later, &mut peers[0], HANDLE, cookie, &question[..5]);
    assert_eq!(peers[0].timer, Some(Instant::ZERO + Duration::from_secs(3)));
    server.recv(later, &mut peers[0], HANDLE, cookie, &question[5..]);
    assert_eq!(peers[0].timer, Some(later + Duration::from_secs(3)));
    server.timer(later, &mut peers[0], HANDLE, cookie);
    assert!(peers[0].closed);
    server.dead(later, HANDLE, cookie, DeadReason::TimedOut);
    let mut next = Peer { room: usize::MAX, ..Peer::default() };
    knock(&mut server, &mut next);
    assert!(!next.rejected);
}
