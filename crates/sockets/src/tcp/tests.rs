use super::timers::{SPARE_TIMERS, TIMERS_A_PLACE};
use super::*;
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
