use super::timers::{SPARE_TIMERS, TIMERS_A_PLACE};
use super::*;
use app::{ContentBuilder, ObjectId, Range};
use std::net::TcpListener;

const HOUR: Duration = Duration::from_secs(3600);

/// Has a timer of an hour for every connection.
#[derive(Default)]
struct Patient {
    accepted: Vec<Connection>,
    timers: Vec<u64>,
}

impl Service for Patient {
    fn knock<C: Streams>(&mut self, now: Instant, calls: &mut C, _: Listener, connection: Connection, _: Addresses) {
        calls.accept(connection, self.accepted.len() as u64).unwrap();
        calls.timer_set(connection, Some(now + HOUR)).unwrap();
        self.accepted.push(connection);
    }

    fn timer<C: Streams>(&mut self, _: Instant, _: &mut C, _: Connection, cookie: u64) {
        self.timers.push(cookie);
    }
}

#[test]
fn timers_of_connections_that_have_gone_do_not_pile_up() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap();
    let (mut table, mut service) = (Table::new(Limits::default(), Arc::default()), Patient::default());
    let mut most = 0;
    let mut clients = Vec::new();
    for n in 0..2_000 {
        clients.push(std::net::TcpStream::connect(to).unwrap());
        let (stream, peer) = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        table.set_now(Instant::from_nanos(n));
        table.knock(TcpStream::from_std(stream), Listener(0), Addresses { local: to, peer }, 1000, &mut service);
        // a few stay
        if n % 500 != 0 {
            table.abort(*service.accepted.last().unwrap()).unwrap();
            clients.pop();
        }
        table.turn(16, &mut service, &mut [0; 16]);
        most = most.max(table.timers.len());
    }
    assert_eq!((table.len(), table.places()), (4, 5));
    assert!(most <= TIMERS_A_PLACE * table.places() + SPARE_TIMERS, "{most} entries of 5 places");
    // and those that stayed have theirs, one each
    table.set_now(Instant::from_nanos(1_999) + HOUR);
    table.turn(4_000, &mut service, &mut [0; 16]);
    assert_eq!((service.timers, table.next_deadline()), (vec![0, 500, 1000, 1500], None));
}

/// Answers whatever comes with a kilobyte, as much of it at a time as is taken.
#[derive(Default)]
struct Answers {
    accepted: Vec<Connection>,
    left: Vec<u64>,
    dead: Vec<DeadReason>,
}

impl Answers {
    fn send<C: Streams>(&mut self, calls: &mut C, connection: Connection, cookie: u64) {
        let left = &mut self.left[cookie as usize];
        *left -= calls.sendv(connection, &[Range::Owned(&[7; 1024][..*left as usize])]).unwrap();
    }
}

impl Service for Answers {
    fn knock<C: Streams>(&mut self, _: Instant, calls: &mut C, _: Listener, connection: Connection, _: Addresses) {
        calls.accept(connection, self.accepted.len() as u64).unwrap();
        self.accepted.push(connection);
        self.left.push(0);
    }

    fn recv<C: Streams>(&mut self, _: Instant, calls: &mut C, connection: Connection, cookie: u64, bytes: &[u8]) {
        calls.recv_done(connection, bytes.len()).unwrap();
        self.left[cookie as usize] += 1024;
        self.send(calls, connection, cookie);
    }

    fn sent<C: Streams>(&mut self, _: Instant, calls: &mut C, connection: Connection, cookie: u64, _: usize, _: usize) {
        self.send(calls, connection, cookie);
    }

    fn dead(&mut self, _: Instant, _: Connection, _: u64, reason: DeadReason) {
        self.dead.push(reason);
    }
}

/// A table whose budget is one answer, with so many connections that have asked for theirs; the first one's kernel takes nothing.
fn short_of_room(connections: usize) -> (Table, Answers, Vec<std::net::TcpStream>) {
    within(Limits { budget_bytes: 1024, queue_bytes: 2048, ..Limits::default() }, connections)
}

fn within(limits: Limits, connections: usize) -> (Table, Answers, Vec<std::net::TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap();
    let (mut table, mut service) = (Table::new(limits, Arc::default()), Answers::default());
    let mut clients = Vec::new();
    for n in 0..connections {
        let mut client = std::net::TcpStream::connect(to).unwrap();
        std::io::Write::write_all(&mut client, b"?").unwrap();
        let (stream, peer) = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        table.knock(TcpStream::from_std(stream), Listener(0), Addresses { local: to, peer }, 1000, &mut service);
        let connection = service.accepted[n];
        while !table.conn(connection).unwrap().used {
            let conn = table.conn(connection).unwrap();
            (conn.readable, conn.writable) = (true, n > 0);
            table.make_ready(connection.index);
            // no more than this one's reading
            table.turn(1, &mut service, &mut [0; 16]);
        }
        clients.push(client);
    }
    (table, service, clients)
}

#[test]
fn who_waits_for_the_budget_is_not_idle() {
    let (mut table, mut service, mut clients) = short_of_room(2);
    let [first, second] = service.accepted[..] else { panic!() };
    assert!(table.conn(second).unwrap().starved);
    table.drain();
    table.turn(16, &mut service, &mut [0; 16]);
    assert_eq!(table.conn(second).unwrap().phase, Phase::Open);
    // room for it: it is answered whole, then it is idle
    table.abort(first).unwrap();
    for _ in 0..4 {
        table.turn(16, &mut service, &mut [0; 16]);
    }
    assert_ne!(table.conn(second).map_or(Phase::Lingering, |conn| conn.phase), Phase::Open);
    let mut answer = Vec::new();
    std::io::Read::read_to_end(&mut clients[1], &mut answer).unwrap();
    assert_eq!(answer, [7; 1024]);
}

#[test]
fn those_that_wait_for_the_budget_leave_nothing_behind() {
    let (mut table, mut service, clients) = short_of_room(50);
    assert_eq!(table.starved.len(), 49);
    for round in 0..100 {
        // they ask, wait and end: what stays is bounded by the places
        for connection in service.accepted.split_off(1) {
            table.abort(connection).unwrap();
        }
        assert!(table.starved.len() <= 2 * table.places(), "{} in round {round}", table.starved.len());
        service.left.truncate(1);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let client = std::net::TcpStream::connect(to).unwrap();
        let (stream, peer) = listener.accept().unwrap();
        table.knock(TcpStream::from_std(stream), Listener(0), Addresses { local: to, peer }, 1000, &mut service);
        let connection = service.accepted[1];
        assert_eq!(table.sendv(connection, &[Range::Owned(b"x")]), Ok(0));
        drop(client);
    }
    drop(clients);
    table.abort(service.accepted[0]).unwrap();
    table.abort(service.accepted[1]).unwrap();
    table.turn(200, &mut service, &mut [0; 16]);
    assert_eq!((table.len(), table.starved.len(), table.queued_bytes), (0, 0, 0));
}

/// Accepts, and notes who is told of room.
#[derive(Default)]
struct Told {
    accepted: Vec<Connection>,
    told: Vec<(u64, usize)>,
}

impl Service for Told {
    fn knock<C: Streams>(&mut self, _: Instant, calls: &mut C, _: Listener, connection: Connection, _: Addresses) {
        calls.accept(connection, self.accepted.len() as u64).unwrap();
        self.accepted.push(connection);
    }

    fn sent<C: Streams>(&mut self, _: Instant, _: &mut C, _: Connection, cookie: u64, bytes: usize, _: usize) {
        self.told.push((cookie, bytes));
    }
}

/// Chunks of content are held by number, and one connection may hold them all.
#[test]
fn who_finds_no_hold_of_a_chunk_is_told_when_there_is_one() {
    let limits = Limits { queue_ranges: usize::MAX, ..Limits::default() };
    let (mut table, mut service) = (Table::new(limits, Arc::default()), Told::default());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap();
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(std::net::TcpStream::connect(to).unwrap());
        let (stream, peer) = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        table.knock(TcpStream::from_std(stream), Listener(0), Addresses { local: to, peer }, 1000, &mut service);
    }
    let [first, second, third] = service.accepted[..] else { panic!() };
    let chunk = ContentBuilder::chunk(1, |_| Ok::<_, ()>(())).unwrap();
    let range = || Range::Object { content: &chunk, object: ObjectId(0), start: 0, bytes: 1 };
    // its kernel takes nothing
    table.conn(first).unwrap().writable = false;
    while table.sendv(first, &[range()]) == Ok(1) {}
    assert_eq!(table.versions.chunks_left(), 0);
    for connection in [second, third] {
        // twice is once
        assert_eq!([0; 2].map(|_| table.sendv(connection, &[range()])), [Ok(0); 2]);
    }
    table.turn(16, &mut service, &mut [0; 16]);
    service.told.retain(|(cookie, _)| *cookie != 0);
    assert_eq!(service.told, []);
    table.abort(third).unwrap();
    table.abort(first).unwrap();
    assert!(table.has_work());
    table.turn(16, &mut service, &mut [0; 16]);
    assert_eq!(service.told, [(1, 0)]);
    assert_eq!((table.sendv(second, &[range()]), table.unheld.len()), (Ok(1), 0));
}

#[test]
fn who_reads_nothing_leaves_a_part_of_the_budget_to_others() {
    let limits = Limits { budget_bytes: 64 << 10, queue_bytes: 48 << 10, ..Limits::default() };
    let (mut table, service, _clients) = within(limits, 4);
    let [first, second, third, fourth] = service.accepted[..] else { panic!() };
    let bytes = vec![7; 48 << 10];
    // those whose answers went out at once queue again, and their kernels take nothing
    for connection in [second, third, fourth] {
        table.conn(connection).unwrap().writable = false;
        assert!(table.conn(connection).unwrap().queue.is_empty());
    }
    let send = |table: &mut Table, connection, bytes: &[u8]| table.sendv(connection, &[Range::Owned(bytes)]).unwrap();
    let room = table.room(second);
    assert_eq!(send(&mut table, second, &bytes), room as u64);
    // seven eighths are used up
    assert!(send(&mut table, first, &bytes) > 0);
    assert_eq!((table.room(first), table.room(second), table.queued_bytes), (0, 0, 56 << 10));
    for connection in [third, fourth] {
        assert_eq!(table.room(connection), 4096);
        assert_eq!(send(&mut table, connection, &bytes), 4096);
        assert_eq!(table.room(connection), 0);
    }
    assert_eq!(table.queued_bytes, 64 << 10);
}

#[test]
fn a_place_that_is_used_again_has_one_turn_a_round() {
    let (mut table, mut service, _clients) = short_of_room(1);
    let to = table.conn(service.accepted[0]).unwrap().addresses.local;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut clients = Vec::new();
    for _ in 0..5 {
        // it stands in the queue when it ends
        let last = *service.accepted.last().unwrap();
        table.conn(last).unwrap().readable = true;
        table.make_ready(last.index);
        table.abort(last).unwrap();
        clients.push(std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        let (stream, peer) = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        table.knock(TcpStream::from_std(stream), Listener(0), Addresses { local: to, peer }, 1000, &mut service);
        assert_eq!(service.accepted.last().unwrap().index, last.index);
    }
    table.turn(16, &mut service, &mut [0; 16]);
    let last = *service.accepted.last().unwrap();
    for _ in 0..3 {
        table.conn(last).unwrap().readable = true;
        table.make_ready(last.index);
        assert_eq!(table.ready, [last]);
        table.turn(1, &mut service, &mut [0; 16]);
    }
}

/// A service that finishes may be faster than the kernel's word of a reset.
#[test]
fn a_reset_that_was_not_told_yet_is_none_the_less_why_it_ends() {
    let (mut table, mut service, mut clients) = within(Limits::default(), 1);
    let connection = service.accepted[0];
    table.conn(connection).unwrap().writable = true;
    table.make_ready(connection.index);
    table.turn(1, &mut service, &mut [0; 16]);
    let client = clients.pop().unwrap();
    socket2::SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
    drop(client);
    let conn = table.conn(connection).unwrap();
    while conn.stream.peer_addr().is_ok() {
        std::thread::yield_now();
    }
    conn.readable = false;
    table.shutdown(connection).unwrap();
    table.turn(1, &mut service, &mut [0; 16]);
    assert_eq!((table.len(), service.dead), (0, vec![DeadReason::Reset]));
}

#[test]
fn who_is_asked_for_has_the_options_of_who_is_accepted() {
    let poll = mio::Poll::new().unwrap();
    let asks = Asks { registry: poll.registry().try_clone().unwrap(), first_token: 0 };
    let mut table = Table::new(Limits::default(), Arc::default()).with(Some(asks), Unasked::default());
    for any in ["127.0.0.1:0", "[::1]:0"] {
        let listener = TcpListener::bind(any).unwrap();
        let connection = table.connect(listener.local_addr().unwrap(), None, 0).unwrap();
        crate::options::assert_set(&socket2::SockRef::from(&table.conn(connection).unwrap().stream));
    }
}
