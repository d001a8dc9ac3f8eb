use super::*;
use crate::{Lab, zonegen::Zone};

const QUESTIONS: usize = 3000;

fn started(lab: &Lab, kind: Kind, port: u16, zones: &[Zone]) -> (Peer, Server) {
    let at = SocketAddr::from((SERVER_V4, port));
    let peer = Peer::start(lab, kind, at, zones).unwrap();
    (peer, Server { party: Party::Peer(kind), udp: at, tcp: at })
}

#[test]
fn a_changed_record_is_found_and_nothing_else() {
    crate::require();
    let lab = Lab::new().unwrap();
    let world = World::draw(77);
    let mut changed = world.zones.clone();
    changed[0].text = changed[0].text.replace(" IN CAA 0 issue ", " IN CAA 128 issue ");
    let (_one, first) = started(&lab, Kind::Knot, 5400, &changed);
    let (_two, second) = started(&lab, Kind::Knot, 5401, &world.zones);
    let first = Server { party: Party::Subject, ..first };
    let questions = world.questions(77, QUESTIONS);
    let report = lab.client().inside(|| compare(&world, &questions, &[first, second])).unwrap();
    assert!(report.unexplained > 0);
    assert_eq!(report.parts.keys().copied().collect::<Vec<_>>(), [Part::Answer], "{report}");
    assert!(report.to_string().contains("CAA 128 issue"), "{report}");
    // and a server that is silent is no match
    let closed = SocketAddr::from((SERVER_V4, 5402));
    let silent = Server { udp: closed, ..second };
    let report = lab.client().inside(|| compare(&world, &questions[..5], &[silent, second])).unwrap();
    assert_eq!(report.parts.get(&Part::Message), Some(&5), "{report}");
}

#[test]
fn a_subject_is_started_and_compared_with_both_peers() {
    crate::require();
    let lab = Lab::new().unwrap();
    let dir = tempfile::tempdir().unwrap();
    // Knot stands in for the server under test: equal to Knot, and as different from NSD as Knot is
    let start = |host: &Host, files: &[ZoneFile], address: SocketAddr| {
        let config = dir.path().join("knot.conf");
        std::fs::write(&config, crate::peers::knot_config(dir.path(), address, files))?;
        host.spawn(&["knotd", "-c", config.to_str().unwrap()])
    };
    let report = run(&lab, Some(&start), &[5], 1500).unwrap();
    assert_eq!((report.questions, report.compared), (1500, 2 * 2 * 1500));
    assert!(report.unexplained > 0 && report.differences.len() <= SHOWN, "{report}");
    assert!(report.differences.iter().all(|difference| difference.answers[1].0 == Party::Peer(Kind::Nsd)), "{report}");
    assert!(report.classes[&Class::Exact] > 100, "{report}");
}

#[test]
fn a_subject_that_does_not_start_is_told_with_its_words() {
    crate::require();
    let lab = Lab::new().unwrap();
    let start =
        |host: &Host, _: &[ZoneFile], _: SocketAddr| host.spawn(&["sh", "-c", "echo no such option >&2; exit 2"]);
    let error = format!("{:#}", run(&lab, Some(&start), &[5], 10).unwrap_err());
    assert!(error.contains("no such option") && error.contains("exit status: 2"), "{error}");
}

type Fault = (&'static str, fn(&mut Answer) -> bool);

/// Faults that a server could have, each put into an answer that was right. False where the answer gives no room for it.
const FAULTS: [Fault; 12] = [
    ("AA flipped", |answer| {
        answer.flags ^= 0x0400;
        true
    }),
    ("TC flipped", |answer| {
        answer.flags ^= 0x0200;
        true
    }),
    ("RA set", |answer| {
        answer.flags |= 0x80;
        true
    }),
    ("another RCODE", |answer| {
        answer.rcode = if answer.rcode == 3 { 0 } else { 3 };
        true
    }),
    ("question's letter case", |answer| {
        let before = answer.questions.clone();
        answer
            .questions
            .iter_mut()
            .for_each(|(name, ..)| name.iter_mut().for_each(|octet| *octet = octet.to_ascii_uppercase()));
        answer.questions != before
    }),
    ("TTL in the answer", |answer| answer.sections[0].last_mut().map(|rr| rr.ttl += 1).is_some()),
    ("RDATA in the answer", |answer| answer.sections[0].last_mut().map(|rr| rr.rdata.push(0)).is_some()),
    ("a record twice", |answer| match answer.sections[0].last().cloned() {
        Some(rr) => {
            answer.sections[0].push(rr);
            true
        }
        None => false,
    }),
    ("answer's last record missing", |answer| answer.sections[0].pop().is_some()),
    ("authority missing", |answer| !std::mem::take(&mut answer.sections[1]).is_empty()),
    ("TTL in the additional section", |answer| answer.sections[2].last_mut().map(|rr| rr.ttl += 1).is_some()),
    ("OPT missing", |answer| answer.edns.take().is_some()),
];

#[test]
fn the_exceptions_do_not_swallow_faults() {
    crate::require();
    let lab = Lab::new().unwrap();
    let world = World::draw(78);
    let questions = world.questions(78, QUESTIONS);
    for (kind, port) in [(Kind::Nsd, 5400), (Kind::Knot, 5401)] {
        let (_peer, server) = started(&lab, kind, port, &world.zones);
        let right = lab.client().inside(|| gather(&server, &questions)).unwrap();
        for (name, fault) in FAULTS {
            let mut planted = 0;
            let mut spoilt = right.each_ref().map(|answers| copy(answers));
            for answer in spoilt.iter_mut().flatten().flatten() {
                planted += usize::from(fault(answer));
            }
            let answers = [spoilt, right.each_ref().map(|answers| copy(answers))];
            let report = judge_all(&world, &questions, &[Party::Subject, server.party], &answers).unwrap();
            // what one peer's exceptions must let pass, the other peer's do not
            assert!(
                planted > 100 && report.unexplained * 10 >= planted * 9,
                "{kind}, {name}: {} of {planted} found; {:?}",
                report.unexplained,
                report.exceptions
            );
        }
    }
}

fn copy(answers: &[Result<Answer>]) -> Vec<Result<Answer>> {
    answers.iter().map(|answer| Ok(answer.as_ref().unwrap().clone())).collect()
}
