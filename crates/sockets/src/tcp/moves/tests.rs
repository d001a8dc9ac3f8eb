use super::*;
use app::{DeadReason, Listener, Streams};
use mio::{Events, Poll};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream as Client};
use std::sync::Arc;
use std::time::Duration;

/// Counts the octets of each connection, by a cookie of its own, and answers with the count.
#[derive(Default)]
struct Counting {
    counts: Vec<Option<u64>>,
    /// the places that it has
    room: usize,
    dead: Vec<DeadReason>,
    timers: usize,
}

impl Counting {
    fn with_room(room: usize) -> Counting {
        Counting { room, ..Counting::default() }
    }

    fn put(&mut self, count: u64) -> Option<u64> {
        let taken = self.counts.iter().flatten().count();
        (taken < self.room).then(|| {
            self.counts.push(Some(count));
            self.counts.len() as u64 - 1
        })
    }
}

impl Service for Counting {
    fn knock<C: Streams>(&mut self, _: Instant, calls: &mut C, _: Listener, connection: Connection, _: Addresses) {
        if let Some(cookie) = self.put(0) {
            calls.accept(connection, cookie).unwrap();
        }
    }

    fn recv<C: Streams>(&mut self, now: Instant, calls: &mut C, connection: Connection, cookie: u64, bytes: &[u8]) {
        let count = self.counts[cookie as usize].as_mut().unwrap();
        *count += bytes.len() as u64;
        calls.send(connection, &[*count as u8]).unwrap();
        if !bytes.contains(&b'k') {
            calls.recv_done(connection, bytes.len()).unwrap();
        }
        if bytes.contains(&b't') {
            calls.timer_set(connection, Some(now + Duration::from_secs(1))).unwrap();
        }
    }

    fn timer<C: Streams>(&mut self, _: Instant, _: &mut C, _: Connection, _: u64) {
        self.timers += 1;
    }

    fn dead(&mut self, _: Instant, _: Connection, cookie: u64, reason: DeadReason) {
        self.counts[cookie as usize] = None;
        self.dead.push(reason);
    }

    fn can_move(&self) -> bool {
        true
    }

    fn depart(&mut self, _: Instant, _: Connection, cookie: u64) -> Luggage {
        Box::new(self.counts[cookie as usize].take().unwrap())
    }

    fn arrive<C: Streams>(&mut self, _: Instant, _: &mut C, _: Connection, luggage: Luggage) -> Option<u64> {
        self.put(*luggage.downcast::<u64>().unwrap())
    }
}

/// What a thread has.
struct Floor {
    poll: Poll,
    table: Table,
    service: Counting,
}

impl Floor {
    fn new(room: usize) -> Floor {
        let table = Table::new(crate::Streams::default(), Arc::default());
        Floor { poll: Poll::new().unwrap(), table, service: Counting::with_room(room) }
    }

    fn token(&self) -> Token {
        Token(self.table.next_index() as usize)
    }

    fn accept(&mut self, from: &TcpListener) {
        let (stream, peer) = from.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        let local = stream.local_addr().unwrap();
        let mut stream = TcpStream::from_std(stream);
        self.poll.registry().register(&mut stream, self.token(), WATCHED).unwrap();
        self.table.knock(stream, Listener(0), Addresses { local, peer }, 1 << 16, &mut self.service);
    }

    fn depart(&mut self, index: usize) -> Option<Parcel> {
        self.depart_if(index, |_| true)
    }

    fn depart_if(&mut self, index: usize, goes: impl Fn(&Addresses) -> bool) -> Option<Parcel> {
        self.table.depart(index, goes, self.poll.registry(), &mut self.service)
    }

    fn arrive(&mut self, parcel: Parcel) -> bool {
        let token = self.token();
        self.table.arrive(parcel, (self.poll.registry(), token), &mut self.service)
    }

    /// What the kernel has to say, and what follows from it.
    fn run(&mut self) {
        let mut events = Events::with_capacity(16);
        self.poll.poll(&mut events, Some(Duration::from_secs(10))).unwrap();
        assert!(!events.is_empty(), "nothing came");
        for event in &events {
            self.table.on_event(event.token().0 as u32, event);
        }
        while self.table.has_work() {
            self.turn();
        }
    }

    fn turn(&mut self) {
        self.table.turn(16, &mut self.service, &mut [0; 4096]);
    }
}

fn client(of: &TcpListener) -> Client {
    let client = Client::connect(of.local_addr().unwrap()).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    client
}

fn answer(client: &mut Client) -> std::io::Result<u8> {
    let mut byte = [0];
    client.read_exact(&mut byte).map(|()| byte[0])
}

#[test]
fn a_connection_goes_on_at_another_thread_as_if_it_had_been_there_always() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (mut one, mut two) = (Floor::new(9), Floor::new(9));
    let mut clients = [client(&listener), client(&listener)];
    one.accept(&listener);
    one.accept(&listener);
    clients[1].write_all(b"threk").unwrap();
    while one.service.counts[1] != Some(5) {
        one.run();
    }
    assert_eq!(answer(&mut clients[1]).unwrap(), 5);
    one.table.set_now(Instant::from_nanos(2_000));
    // what comes on its way is not lost
    assert!(one.depart_if(1, |_| false).is_none(), "it is not one of those");
    let parcel = one.depart(1).unwrap();
    clients[1].write_all(b"12").unwrap();
    assert_eq!((one.table.len(), one.table.places()), (1, 2));
    assert!(one.depart(1).is_none() && one.depart(7).is_none(), "nothing is there");
    assert!(two.arrive(parcel));
    assert_eq!(two.table.now, Instant::from_nanos(2_000), "nothing happens before what has happened");
    two.run();
    assert_eq!(answer(&mut clients[1]).unwrap(), 7);
    assert_eq!((two.table.len(), two.service.counts[0]), (1, Some(7)));
    // with what was not given back, and the timer
    let conn = two.table.slots[0].conn.as_ref().unwrap();
    assert_eq!((conn.delivered, conn.used), (5, true));
    two.table.set_now(Instant::from_nanos(1_000_000_000));
    two.turn();
    assert_eq!(two.service.timers, 1);
    // the one that stayed is the first thread's still, and a new one may have the other's place there
    clients[0].write_all(b"1").unwrap();
    one.run();
    assert_eq!(answer(&mut clients[0]).unwrap(), 1);
    let mut third = client(&listener);
    one.accept(&listener);
    third.write_all(b"123").unwrap();
    while one.service.counts[2] != Some(3) {
        one.run();
    }
    assert_eq!(answer(&mut third).unwrap(), 3);
    drop(clients);
    two.run();
    assert_eq!((two.service.dead.len(), two.table.len(), two.table.sources.len()), (1, 0, 0));
}

#[test]
fn only_what_is_at_rest_goes() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut floor = Floor::new(9);
    let _client = client(&listener);
    floor.accept(&listener);
    let handle = Connection { index: 0, generation: 0 };
    floor.table.send(handle, b"not gone yet").unwrap();
    assert!(floor.depart(0).is_none(), "something is queued");
    while floor.table.has_work() {
        floor.turn();
    }
    floor.table.shutdown(handle).unwrap();
    assert!(floor.depart(0).is_none(), "it is being ended");
}

#[test]
fn who_finds_no_room_is_reset() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (mut one, mut two) = (Floor::new(9), Floor::new(0));
    let (mut refused, mut lost) = (client(&listener), client(&listener));
    one.accept(&listener);
    one.accept(&listener);
    let parcel = one.depart(0).unwrap();
    assert!(!two.arrive(parcel));
    assert_eq!(answer(&mut refused).unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    assert_eq!((two.table.len(), two.table.sources.len(), two.service.dead.len()), (0, 0, 0));
    drop(one.depart(1).unwrap());
    assert_eq!(answer(&mut lost).unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    assert_eq!((one.table.len(), one.table.sources.len(), one.service.dead.len()), (0, 0, 0));
}

#[test]
fn a_thread_that_drains_closes_what_comes_and_is_idle() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (mut one, mut two) = (Floor::new(9), Floor::new(9));
    let mut idle = client(&listener);
    one.accept(&listener);
    idle.write_all(b"1").unwrap();
    one.run();
    assert_eq!(answer(&mut idle).unwrap(), 1);
    two.table.drain();
    assert!(two.arrive(one.depart(0).unwrap()));
    while two.table.has_work() {
        two.turn();
    }
    assert_eq!(answer(&mut idle).unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
}
