use super::*;
use crate::reflect::Bursts;
use port::pipe::{self, Pipe};
use std::net::SocketAddr;

fn ends(v6: bool) -> Ends {
    let (client, server) = if v6 { ("2001:db8::2", "[2001:db8::1]:7") } else { ("198.18.0.2", "198.18.0.1:7") };
    Ends {
        client_mac: [2, 0, 0, 0, 0, 1],
        server_mac: [2, 0, 0, 0, 0, 2],
        client: client.parse::<IpAddr>().unwrap(),
        server: server.parse::<SocketAddr>().unwrap(),
    }
}

fn pair() -> (Pipe, Pipe) {
    let (mut clients, mut servers) = pipe::pair(&pipe::Config::default()).unwrap();
    (clients.remove(0), servers.remove(0))
}

fn plan(segments: u32, outstanding: u32) -> Plan {
    let span = Duration::from_millis(30);
    Plan { segments, outstanding, span, timeout: Duration::from_millis(2), wait: Wait::Yield }
}

/// Runs until some were answered: a busy machine may not run this thread for a whole span.
fn run(load: &mut Load<Pipe>, plan: &Plan, mut between: impl FnMut()) -> Outcome {
    let never = AtomicBool::new(false);
    let mut runs = (0..100).map(|_| load.run(plan, &never, &mut between));
    runs.find(|outcome| outcome.answered > 5).expect("some are answered in one of 100 spans")
}

#[test]
fn every_burst_of_a_reflector_is_counted_once() {
    for (v6, segments, outstanding) in [(false, 1, 64), (true, 3, 7), (false, 46, 16), (false, 100, 1)] {
        let (client, mut server) = pair();
        let (mut bursts, mut burst) = (Bursts::new(segments, server.facts()), Burst::new());
        let mut load = Load::new(client, &ends(v6), 20_000, 5);
        let outcome = run(&mut load, &plan(segments, outstanding), || {
            bursts.cycle(&mut server, &mut burst, 64);
        });
        assert_eq!((outcome.short, outcome.foreign), (outcome.silent, 0), "{outcome}");
        assert!(outcome.unfinished <= u64::from(outstanding), "{outcome}");
        assert_eq!(outcome.sent, outcome.answered + outcome.short + outcome.unfinished, "{outcome}");
        let whole = u64::from(segments) * outcome.answered;
        assert!(outcome.frames >= whole, "{outcome}");
        assert!(outcome.frames <= whole + u64::from(segments) * (outcome.unfinished + outcome.short), "{outcome}");
        assert_eq!(outcome.bytes, 1514 * outcome.frames);
        assert!(outcome.latency.p50_us > 0.0 && outcome.frames_rate() >= outcome.answered_rate());
    }
}

/// Lets a reflector answer and takes from the way back what `lost` says, by the count of frames.
fn lossy(segments: u32, outstanding: u32, mut lost: impl FnMut(u64) -> bool) -> Outcome {
    let (client, mut near) = pair();
    let (mut far, mut server) = pair();
    let (mut bursts, mut burst) = (Bursts::new(segments, server.facts()), Burst::new());
    let mut load = Load::new(client, &ends(false), 20_000, 1 << 40);
    let mut count = 0;
    run(&mut load, &plan(segments, outstanding), || {
        carry(&mut near, &mut far, |_| true);
        bursts.cycle(&mut server, &mut burst, 64);
        carry(&mut far, &mut near, |_| {
            count += 1;
            !lost(count)
        });
    })
}

fn carry(from: &mut Pipe, to: &mut Pipe, mut passes: impl FnMut(&[u8]) -> bool) {
    let (mut burst, mut out) = (Burst::new(), Burst::new());
    from.receive(&mut burst, to.transmit_room().min(64));
    for frame in burst.drain(..) {
        if passes(frame.bytes()) {
            let mut copy = to.take().expect("a free frame");
            assert!(copy.fill(frame.bytes()));
            out.push(copy);
        }
        from.give(frame);
    }
    to.transmit(&mut out);
    from.flush();
    to.flush();
}

#[test]
fn a_lost_frame_costs_its_burst_and_stops_nothing() {
    // one frame in 31: with ten frames a burst about a third of the bursts are short
    let outcome = lossy(10, 8, |count| count.is_multiple_of(31));
    assert!(outcome.short > 0, "{outcome}");
    assert!(outcome.answered > outcome.short, "{outcome}");
    assert!(outcome.frames_rate() > outcome.answered_rate(), "{outcome}");
    // one at a time there is no later one to tell: the silence does
    let outcome = lossy(10, 1, |count| count.is_multiple_of(31));
    assert!(outcome.silent > 0 && outcome.short == outcome.silent, "{outcome}");
}

#[test]
fn frames_of_other_flows_and_of_runs_before_count_for_nothing() {
    let (client, _server) = pair();
    let mut load = Load::new(client, &ends(false), 20_000, 100);
    let mut outcome = Outcome::new(2);
    assert_eq!(load.send(2, 0, &mut outcome), 2);
    let mut frame = load.request.clone();
    let answer = |frame: &mut Vec<u8>, number: u64| {
        frame[42..50].copy_from_slice(&number.to_be_bytes());
    };
    answer(&mut frame, 100);
    load.on_frame(&frame, 1, &mut outcome); // not turned round
    load.on_frame(&frame[..49], 1, &mut outcome);
    assert_eq!(outcome.foreign, 2);
    assert!(crate::reflect::turn_round(&mut frame));
    for number in [99, 102, u64::MAX, 0] {
        answer(&mut frame, number);
        load.on_frame(&frame, 1, &mut outcome);
    }
    assert_eq!((outcome.late, outcome.frames), (4, 0));
    answer(&mut frame, 100);
    (0..3).for_each(|_| load.on_frame(&frame, 1, &mut outcome));
    assert_eq!((outcome.answered, outcome.frames, outcome.late, load.open), (1, 2, 5, 1));
}
