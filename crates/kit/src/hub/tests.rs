//! Hubs over an engine of paper: it takes what the test lets it.

use super::*;
use app::{CallError, Range};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::net::SocketAddr;

const PEER: &str = "192.0.2.9:80";

/// What became of a connection.
#[derive(Debug, Default)]
struct End {
    cookie: u64,
    out: Vec<u8>,
    given_back: usize,
    shut: bool,
    closed: bool,
    aborted: bool,
    timer: Option<Instant>,
}

#[derive(Debug, Default)]
struct Engine {
    ends: BTreeMap<u32, End>,
    asked: Vec<(SocketAddr, u64)>,
    sends: usize,
    /// bytes that one send takes at most
    takes: usize,
    alarms: BTreeMap<u64, Instant>,
}

fn handle(index: u32) -> Connection {
    Connection { index, generation: 0 }
}

impl Engine {
    fn end(&mut self, connection: Connection) -> Result<&mut End, CallError> {
        self.ends.get_mut(&connection.index).ok_or(CallError::NoConnection)
    }
}

impl Streams for Engine {
    fn accept(&mut self, connection: Connection, cookie: u64) -> Result<(), CallError> {
        self.ends.insert(connection.index, End { cookie, ..End::default() });
        Ok(())
    }
    fn reject(&mut self, _: Connection) -> Result<(), CallError> {
        Ok(())
    }
    fn sendv(&mut self, connection: Connection, ranges: &[Range<'_>]) -> Result<u64, CallError> {
        let (takes, [Range::Owned(bytes)]) = (self.takes, ranges) else { panic!("{ranges:?}") };
        assert!(!bytes.is_empty());
        let end = self.end(connection)?;
        assert!(!end.shut && !end.closed);
        let taken = bytes.len().min(takes);
        end.out.extend_from_slice(&bytes[..taken]);
        self.sends += 1;
        Ok(taken as u64)
    }
    fn room(&self, _: Connection) -> usize {
        self.takes
    }
    fn recv_done(&mut self, connection: Connection, bytes: usize) -> Result<(), CallError> {
        self.end(connection)?.given_back += bytes;
        Ok(())
    }
    fn shutdown(&mut self, connection: Connection) -> Result<(), CallError> {
        self.end(connection)?.shut = true;
        Ok(())
    }
    fn close(&mut self, connection: Connection) -> Result<(), CallError> {
        self.end(connection)?.closed = true;
        Ok(())
    }
    fn abort(&mut self, connection: Connection) -> Result<(), CallError> {
        self.end(connection)?.aborted = true;
        Ok(())
    }
    fn timer_set(&mut self, connection: Connection, at: Option<Instant>) -> Result<(), CallError> {
        self.end(connection)?.timer = at;
        Ok(())
    }
    fn connect(&mut self, remote: SocketAddr, _: Option<SocketAddr>, cookie: u64) -> Result<Connection, CallError> {
        self.asked.push((remote, cookie));
        Ok(handle(900 + self.asked.len() as u32))
    }
    fn alarm_set(&mut self, cookie: u64, at: Option<Instant>) -> Result<(), CallError> {
        self.alarms.remove(&cookie);
        self.alarms.extend(at.map(|at| (cookie, at)));
        Ok(())
    }
}

/// A talk that does what the shared list says at each event, and notes the events.
struct Told;

type Step = Box<dyn FnMut(Line, &mut With<'_, Told>)>;

#[derive(Default)]
struct Notes {
    events: Vec<(Line, Event)>,
    steps: Vec<Step>,
}

impl Talk for Told {
    type Shared = Notes;
    fn knock(_: &mut Notes, _: Listener, _: Addresses) -> Option<Told> {
        Some(Told)
    }
    fn on(&mut self, me: Line, event: Event, with: &mut With<'_, Told>) {
        with.shared.events.push((me, event));
        if !with.shared.steps.is_empty() {
            with.shared.steps.remove(0)(me, with);
        }
    }
}

struct Bench {
    hub: Hub<Told>,
    engine: Engine,
}

const NOW: Instant = Instant::ZERO;

impl Bench {
    fn new(takes: usize) -> Bench {
        Bench { hub: Hub::new(Notes::default()), engine: Engine { takes, ..Engine::default() } }
    }

    fn knock(&mut self, index: u32) -> u64 {
        let peer = PEER.parse().unwrap();
        self.hub.knock(NOW, &mut self.engine, Listener(0), handle(index), Addresses { local: peer, peer });
        self.engine.ends[&index].cookie
    }

    fn step(&mut self, step: impl FnMut(Line, &mut With<'_, Told>) + 'static) {
        self.hub.shared.steps.push(Box::new(step));
    }

    fn flush(&mut self) {
        self.hub.flush(NOW, &mut self.engine);
    }

    fn events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.hub.shared.events).into_iter().map(|(_, event)| event).collect()
    }
}

#[test]
fn what_a_cycle_sends_on_a_line_is_one_call() {
    let mut bench = Bench::new(1000);
    let cookie = bench.knock(1);
    for piece in [&b"one "[..], b"two ", b"three"] {
        bench.step(move |me, with| assert_eq!(with.send(me, piece), piece.len()));
        bench.hub.recv(NOW, &mut bench.engine, handle(1), cookie, b"x");
    }
    assert_eq!(bench.engine.sends, 0);
    bench.flush();
    assert_eq!((bench.engine.sends, &bench.engine.ends[&1].out[..]), (1, &b"one two three"[..]));
    bench.flush();
    assert_eq!(bench.engine.sends, 1, "nothing more");
}

#[test]
fn what_is_not_consumed_keeps_the_window_closed() {
    let mut bench = Bench::new(1000);
    let cookie = bench.knock(1);
    bench.step(|me, with| with.consume(me, 2));
    bench.hub.recv(NOW, &mut bench.engine, handle(1), cookie, b"abcde");
    assert_eq!(bench.engine.ends[&1].given_back, 2);
    bench.step(|me, with| {
        assert_eq!(with.bytes(me), b"cdefg");
        with.consume(me, 100);
    });
    bench.hub.recv(NOW, &mut bench.engine, handle(1), cookie, b"fg");
    assert_eq!(bench.engine.ends[&1].given_back, 7);
    bench.step(|me, with| assert!(with.is_drained(me)));
    bench.hub.eof(NOW, &mut bench.engine, handle(1), cookie);
}

#[test]
fn a_line_that_both_sides_have_finished_stays_until_what_came_was_consumed_or_is_not_wanted() {
    let ends: [fn(Line, &mut With<'_, Told>); 3] =
        [|me, with| with.consume(me, 3), |me, with| with.close(me), |me, with| with.abort(me)];
    for (n, end) in ends.into_iter().enumerate() {
        let mut bench = Bench::new(1000);
        let [ended, other] = [1, 2].map(|index| bench.knock(index));
        bench.step(|me, with| with.finish(me));
        bench.hub.recv(NOW, &mut bench.engine, handle(1), ended, b"abcde");
        bench.flush();
        bench.hub.eof(NOW, &mut bench.engine, handle(1), ended);
        bench.events();
        bench.hub.dead(NOW, handle(1), ended, DeadReason::Closed);
        bench.flush();
        assert_eq!(bench.events(), []);
        // what the other line does with it
        let line = bench.hub.line(ended).unwrap();
        bench.step(move |_, with| {
            assert_eq!(with.bytes(line), b"abcde");
            with.consume(line, 2);
        });
        bench.hub.recv(NOW, &mut bench.engine, handle(2), other, b"x");
        assert_eq!(bench.events(), [Event::Bytes]);
        bench.step(move |_, with| end(line, with));
        bench.hub.recv(NOW, &mut bench.engine, handle(2), other, b"x");
        assert_eq!(bench.events(), [Event::Bytes, Event::Dead(DeadReason::Closed)], "{n}");
        assert_eq!(bench.hub.lines(), 1);
    }
    // a reset takes it along, and so does the end of one that was closed
    for (closes, reason) in [(false, DeadReason::Reset), (true, DeadReason::Closed)] {
        let mut bench = Bench::new(1000);
        let cookie = bench.knock(1);
        bench.step(move |me, with| {
            if closes {
                with.close(me)
            }
        });
        bench.hub.recv(NOW, &mut bench.engine, handle(1), cookie, b"abcde");
        bench.hub.dead(NOW, handle(1), cookie, reason);
        bench.flush();
        assert_eq!(bench.events()[2..], [Event::Dead(reason)]);
        assert_eq!(bench.hub.lines(), 0);
    }
}

/// A line that both sides have finished, with `abcde` unread and a timer at 10 ns.
fn over_with_a_timer() -> (Bench, Line) {
    let mut bench = Bench::new(1000);
    let cookie = bench.knock(1);
    bench.step(|me, with| {
        with.timer(me, Some(Instant::from_nanos(10))).unwrap();
        with.finish(me);
    });
    bench.hub.recv(NOW, &mut bench.engine, handle(1), cookie, b"abcde");
    bench.flush();
    bench.hub.eof(NOW, &mut bench.engine, handle(1), cookie);
    assert_eq!((bench.engine.ends[&1].timer, bench.engine.alarms.len()), (Some(Instant::from_nanos(10)), 0));
    let line = bench.hub.line(cookie).unwrap();
    bench.hub.dead(NOW, handle(1), cookie, DeadReason::Closed);
    bench.engine.ends.clear();
    bench.flush();
    bench.events();
    (bench, line)
}

impl Bench {
    /// The first alarm rings at its time.
    fn ring(&mut self) -> Instant {
        let (cookie, at) = self.engine.alarms.pop_first().expect("an alarm");
        self.hub.alarm(at, &mut self.engine, cookie);
        self.flush();
        at
    }
}

#[test]
fn a_line_that_both_sides_have_finished_has_its_timer_still() {
    let (mut bench, line) = over_with_a_timer();
    // told once, and set anew
    bench.step(|me, with| with.timer(me, Some(Instant::from_nanos(25))).unwrap());
    assert_eq!((bench.ring(), bench.events()), (Instant::from_nanos(10), vec![Event::Timer]));
    bench.step(move |me, with| {
        assert_eq!((me, with.bytes(me)), (line, &b"abcde"[..]));
        with.close(me);
    });
    assert_eq!(bench.ring(), Instant::from_nanos(25));
    assert_eq!(bench.events(), [Event::Timer, Event::Dead(DeadReason::Closed)]);
    assert_eq!((bench.hub.lines(), bench.engine.alarms.len()), (0, 0));
}

#[test]
fn a_line_that_is_gone_or_took_its_timer_back_is_not_told_of_it() {
    let takes_back: [fn(Line, &mut With<'_, Told>); 2] =
        [|line, with| with.consume(line, 5), |line, with| with.timer(line, None).unwrap()];
    for takes_back in takes_back {
        let (mut bench, line) = over_with_a_timer();
        let other = bench.knock(2);
        bench.step(move |_, with| takes_back(line, with));
        bench.hub.recv(NOW, &mut bench.engine, handle(2), other, b"x");
        bench.flush();
        assert_eq!(bench.engine.alarms.len(), 0);
    }
    // and the hub's alarm is nobody else's
    let (mut bench, _) = over_with_a_timer();
    let other = bench.knock(2);
    bench.step(|_, with| assert_eq!(with.alarm(u64::MAX, None), Err(CallError::NoResources)));
    bench.hub.recv(NOW, &mut bench.engine, handle(2), other, b"x");
    bench.flush();
    assert_eq!(bench.engine.alarms.len(), 1);
}

#[test]
fn a_line_whose_peer_never_finished_does_not_stay_when_it_is_gone() {
    let mut bench = Bench::new(1000);
    let cookie = bench.knock(1);
    bench.step(|me, with| with.finish(me));
    bench.hub.recv(NOW, &mut bench.engine, handle(1), cookie, b"abcde");
    bench.flush();
    bench.events();
    bench.hub.dead(NOW, handle(1), cookie, DeadReason::Closed);
    bench.flush();
    assert_eq!((bench.events(), bench.hub.lines()), (vec![Event::Dead(DeadReason::Closed)], 0));
}

#[test]
fn marks_are_told_when_what_was_sent_before_them_was_taken() {
    let mut bench = Bench::new(1000);
    let cookie = bench.knock(1);
    bench.step(|me, with| {
        with.mark(me, 1);
        with.send(me, &[0; 10]);
        with.mark(me, 2);
        with.send(me, &[0; 5]);
        with.mark(me, 3);
    });
    bench.hub.recv(NOW, &mut bench.engine, handle(1), cookie, b"x");
    bench.flush();
    let mut told = |bytes| {
        bench.hub.sent(NOW, &mut bench.engine, handle(1), cookie, bytes, 1000);
        bench.events()
    };
    assert_eq!(told(9), [Event::Connected, Event::Bytes, Event::Sent(1)]);
    assert_eq!(told(1), [Event::Sent(2)]);
    assert_eq!(told(5), [Event::Sent(3)]);
}

#[test]
fn ends_come_behind_what_was_gathered_and_only_once() {
    let mut bench = Bench::new(4);
    let cookie = bench.knock(1);
    bench.step(|me, with| {
        with.send(me, b"abcdef");
        with.finish(me);
        assert_eq!(with.send(me, b"late"), 0);
    });
    bench.hub.recv(NOW, &mut bench.engine, handle(1), cookie, b"x");
    bench.flush();
    assert!(!bench.engine.ends[&1].shut);
    bench.hub.sent(NOW, &mut bench.engine, handle(1), cookie, 4, 4);
    bench.flush();
    assert_eq!((bench.engine.ends[&1].shut, &bench.engine.ends[&1].out[..]), (true, &b"abcdef"[..]));
    bench.step(|me, with| with.close(me));
    bench.hub.eof(NOW, &mut bench.engine, handle(1), cookie);
    bench.flush();
    assert!(bench.engine.ends[&1].closed);
    bench.hub.dead(NOW, handle(1), cookie, DeadReason::Closed);
    bench.flush();
    assert_eq!((bench.events().last(), bench.hub.lines()), (Some(&Event::Dead(DeadReason::Closed)), 0));
}

#[test]
fn dialled_lines_carry_what_was_sent_before_they_were_there() {
    let mut bench = Bench::new(1000);
    let cookie = bench.knock(1);
    bench.step(|me, with| {
        let other = with.dial(PEER.parse().unwrap(), Told).unwrap();
        assert_eq!(with.forward(me, other), 5);
        let lost = with.dial(PEER.parse().unwrap(), Told).unwrap();
        with.send(lost, b"never");
    });
    bench.hub.recv(NOW, &mut bench.engine, handle(1), cookie, b"early");
    bench.flush();
    assert_eq!((bench.engine.sends, bench.engine.ends[&1].given_back, bench.hub.lines()), (0, 5, 3));
    let (first, second) = (bench.engine.asked[0].1, bench.engine.asked[1].1);
    bench.engine.ends.insert(2, End::default());
    bench.hub.connected(NOW, &mut bench.engine, first, Ok(handle(2)));
    bench.hub.connected(NOW, &mut bench.engine, second, Err(DeadReason::Refused));
    bench.flush();
    assert_eq!((&bench.engine.ends[&2].out[..], bench.hub.lines()), (&b"early"[..], 2));
    assert_eq!(bench.events().last(), Some(&Event::Failed(DeadReason::Refused)));
}

#[test]
fn a_line_that_is_gone_is_nobody_elses() {
    let mut bench = Bench::new(1000);
    let first = bench.knock(1);
    let (line, _) = bench.hub.shared.events[0];
    bench.hub.dead(NOW, handle(1), first, DeadReason::Reset);
    bench.flush();
    let second = bench.knock(2);
    assert_eq!(first, second, "the place is used again");
    bench.step(move |me, with| {
        assert!(!with.lives(line) && with.lives(me));
        assert_eq!((with.send(line, b"x"), with.bytes(line), with.room(line)), (0, &b""[..], 0));
        with.close(line);
        with.abort(line);
        assert_eq!(with.timer(line, None), Err(CallError::NoConnection));
    });
    bench.hub.recv(NOW, &mut bench.engine, handle(2), second, b"x");
    bench.flush();
    let end = &bench.engine.ends[&2];
    assert!(end.out.is_empty() && !end.closed && !end.aborted);
}

proptest! {
    /// Whatever an engine takes of it, and whenever, bytes come out in their order, bounded, and none is lost.
    #[test]
    fn bytes_leave_in_order(
        steps in prop::collection::vec((0usize..100_000, 0usize..80_000, any::<bool>()), 1..40),
    ) {
        let mut bench = Bench::new(0);
        let cookie = bench.knock(1);
        let (mut next, mut sent) = (0u8, Vec::new());
        for (bytes, takes, confirm) in steps {
            let piece: Vec<u8> = (0..bytes).map(|n| next.wrapping_add(n as u8)).collect();
            let count = std::rc::Rc::new(std::cell::Cell::new(0));
            let (counted, offered) = (count.clone(), piece.clone());
            bench.step(move |me, with| counted.set(with.send(me, &offered)));
            bench.hub.recv(NOW, &mut bench.engine, handle(1), cookie, b"x");
            sent.extend_from_slice(&piece[..count.get()]);
            next = next.wrapping_add(count.get() as u8);
            bench.engine.takes = takes;
            if confirm {
                bench.hub.sent(NOW, &mut bench.engine, handle(1), cookie, 0, takes);
            }
            bench.flush();
            let out = &bench.engine.ends[&1].out;
            prop_assert_eq!(&sent[..out.len()], &out[..]);
            prop_assert!(sent.len() - out.len() <= crate::LINE_BYTES);
        }
        bench.engine.takes = usize::MAX;
        bench.hub.sent(NOW, &mut bench.engine, handle(1), cookie, 0, usize::MAX);
        bench.flush();
        prop_assert_eq!(&bench.engine.ends[&1].out, &sent);
    }
}
