//! Sketches against a slow twin that counts everything, and what a server counts.

use std::collections::HashMap;

use super::*;
use crate::serve::{Options, Server};
use crate::testing::{question, zone};
use app::{Addresses, Datagram, Ecn, Listener, Service};
use base::Instant;
use base::publish::Publisher;
use base::rng::Rng;
use proptest::prelude::*;
use zone::Name;

/// A sketch and all that it was shown.
struct Twin {
    sketch: Sketch,
    shown: HashMap<NameId, u32>,
}

impl Twin {
    fn new(names: usize, seed: u64) -> Twin {
        Twin { sketch: Sketch::new(names, seed), shown: HashMap::new() }
    }

    fn show(&mut self, name: u32) {
        self.sketch.count(NameId(name));
        *self.shown.entry(NameId(name)).or_default() += 1;
    }

    /// The `count` names that were shown most.
    fn hottest(&self, count: usize) -> Vec<(NameId, u32)> {
        let mut all: Vec<_> = self.shown.iter().map(|(name, times)| (*name, *times)).collect();
        all.sort_by_key(|(name, times)| (std::cmp::Reverse(*times), *name));
        all.truncate(count);
        all
    }

    fn counted(&self) -> HashMap<NameId, u32> {
        self.sketch.names().collect()
    }
}

/// A rank from 0 on, under Zipf's law with exponent 1 over so many ranks.
fn zipf(rng: &mut Rng, ranks: u32) -> u32 {
    let uniform = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
    (f64::from(ranks + 1).powf(uniform) - 1.0) as u32
}

/// The number of a rank, as a table gives them: apart by some units, in no order.
fn number(rank: u32) -> u32 {
    1 + (rank ^ 0x2a_aaaa) * 9
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn no_count_is_above_the_truth(seed in any::<u64>(), names in 1u32..20_000, shown in 0usize..20_000) {
        let mut twin = Twin::new(1, seed);
        let rng = &mut Rng::new(seed);
        for _ in 0..shown {
            twin.show(number(zipf(rng, names)));
        }
        let counted = twin.counted();
        prop_assert_eq!(counted.len(), twin.sketch.names().count(), "a name has one counter");
        for (name, times) in &counted {
            prop_assert!(*times <= twin.shown[name], "{:?}: {} of {}", name, times, twin.shown[name]);
        }
        // what fits is all there
        if names < 64 {
            prop_assert_eq!(counted, twin.shown);
        }
    }

    /// Of a zone with 200,000 names the hottest eighth of what the sketch has room for, by Zipf's law: found, and near the truth.
    #[test]
    fn the_hottest_names_are_found(seed in any::<u64>()) {
        let mut twin = Twin::new(4096, seed);
        let rng = &mut Rng::new(!seed);
        (0..125_000).for_each(|_| twin.show(number(zipf(rng, 200_000))));
        let counted = twin.counted();
        let hottest = twin.hottest(512);
        let found = hottest.iter().filter(|(name, _)| counted.contains_key(name)).count();
        prop_assert!(found >= 500, "{} of 512", found);
        for (name, times) in &hottest[..100] {
            prop_assert!(counted[name] * 4 >= times * 3, "{:?}: {} of {}", name, counted[name], times);
        }
    }

    /// Nine of ten samples are of names that come once each, as of somebody who walks through a zone.
    #[test]
    fn a_flood_of_other_names_does_not_displace_them(seed in any::<u64>()) {
        let mut twin = Twin::new(4096, seed);
        let rng = &mut Rng::new(!seed);
        for n in 0..125_000 {
            twin.show(if n % 10 == 0 { number(zipf(rng, 1000)) } else { number(1000 + n) });
        }
        let counted = twin.counted();
        let count = |name| counted.get(name).copied().unwrap_or(0);
        let hottest = twin.hottest(100);
        for (name, times) in &hottest[..20] {
            prop_assert!(count(name) * 2 >= *times, "{name:?}: {} of {times}", count(name));
        }
        let found = hottest.iter().filter(|(name, _)| count(name) > 1).count();
        prop_assert!(found >= 90, "{found} of 100");
        // and none of those that came once looks hot
        for (name, times) in &counted {
            prop_assert!(*times <= twin.shown[name]);
        }
    }
}

#[test]
fn who_comes_once_pushes_nobody_out() {
    let mut twin = Twin::new(1, 7);
    for _ in 0..3 {
        (0..2000).for_each(|rank| twin.show(number(rank)));
    }
    let before = twin.counted();
    (0..200_000).for_each(|rank| twin.show(number(2000 + rank)));
    let after = twin.counted();
    // only the least of a set that was full has lost
    let kept = (0..2000).filter(|rank| after.get(&NameId(number(*rank))) == Some(&3)).count();
    let had = before.values().filter(|times| **times == 3).count();
    assert!(had > 1900 && kept + 60 > had, "{kept} of {had}");
}

/// A server that is watched, of whose zone the names www, alias, cut, big and, by a wildcard, all below w exist.
struct Bed {
    server: Server,
    publisher: Publisher<Tables>,
    exchange: Arc<Exchange>,
}

fn tables() -> Tables {
    let mut text = "$TTL 60\n@ SOA ns h 1 1 1 1 60\n@ NS ns\nns A 192.0.2.1\nwww A 192.0.2.2\nalias CNAME www\n\
                    *.w A 192.0.2.4\ncut NS ns.elsewhere.\nouter NS ns.elsewhere.\ndn DNAME target\nto CNAME x.dn\n"
        .to_owned();
    (0..30).for_each(|n| text += &format!("big TXT \"{n:0>100}\"\n"));
    let below = "@ 60 SOA ns h 1 1 1 1 60\n@ 60 NS ns.elsewhere.\n";
    Tables::build(vec![zone("example.", &text), zone("z.y.outer.example.", below)], 7).unwrap()
}

impl Bed {
    fn new(options: Options) -> Bed {
        let publisher = Publisher::new(Arc::new(tables()));
        let exchange = Arc::new(Exchange::default());
        let server = Server::new(publisher.reader(), options).watched(exchange.clone());
        Bed { server, publisher, exchange }
    }

    /// Gives the server a sketch, and takes the one that it had.
    fn turn(&mut self, mut sketch: Option<Box<Sketch>>) -> Option<Box<Sketch>> {
        assert!(self.exchange.turn(&mut sketch));
        self.server.cycle(Instant::ZERO);
        let mut had = None;
        assert!(self.exchange.turn(&mut had));
        self.server.cycle(Instant::ZERO);
        had
    }

    /// Gives the server an empty sketch, and the sketch that it had goes.
    fn begin(&mut self) {
        let mut sketch = Some(Box::new(Sketch::new(1, 7)));
        sketch.as_mut().unwrap().begin(self.publisher.version());
        assert!(self.exchange.turn(&mut sketch));
        self.server.cycle(Instant::ZERO);
    }

    /// What the server has counted since.
    fn end(&mut self) -> HashMap<String, u32> {
        let sketch = self.turn(None).expect("the sketch that it was given");
        let tables = self.publisher.current();
        let name = |id| Name::from_wire(tables.fixed_of_id(id).wire()).unwrap().to_string();
        sketch.names().map(|(id, times)| (name(id), times)).collect()
    }

    fn ask(&mut self, message: &[u8]) {
        let mut buffer = [0; 4096];
        buffer[..message.len()].copy_from_slice(message);
        let ends = Addresses { local: "192.0.2.1:53".parse().unwrap(), peer: "192.0.2.9:4000".parse().unwrap() };
        let mut burst = [Datagram::new(&mut buffer, message.len(), Ecn::NotEct, ends)];
        self.server.datagrams(Instant::ZERO, Listener(0), &mut burst);
    }

    fn ask_often(&mut self, times: u32, name: &str, rtype: Rtype, offered: Option<u16>) {
        let name: Name = name.parse().unwrap();
        let message = question(name.view(), rtype, offered);
        (0..times).for_each(|_| self.ask(&message));
    }
}

/// Whether it is about one of so many that was counted.
fn is_share(counted: u32, of: u32) -> bool {
    let expected = of / ANSWERS_A_SAMPLE;
    (expected - expected / 3..=expected + expected / 3).contains(&counted)
}

#[test]
fn a_share_of_the_answers_to_plain_questions_is_counted() {
    for retained_bytes in [0, 1 << 20] {
        let mut bed = Bed::new(Options { retained_bytes, ..Options::default() });
        bed.begin();
        // none of a period of eight hides
        for n in 0..8000 {
            let (name, rtype) = [
                ("WwW.eXample.", Rtype::A),
                ("ns.example.", Rtype::AAAA),
                ("alias.example.", Rtype::A),
                ("cut.example.", Rtype::A),
                ("x.BELOW.cut.example.", Rtype::DS),
            ][[0, 0, 0, 0, 0, 1, 2, 3 + n / 16 % 2][n % 8]];
            bed.ask_often(1, name, rtype, [None, Some(1232)][n / 8 % 2]);
        }
        let counted = bed.end();
        assert_eq!(counted.len(), 4, "{counted:?}");
        for (name, of) in
            [("www.example.", 5000), ("ns.example.", 1000), ("alias.example.", 1000), ("cut.example.", 1000)]
        {
            assert!(is_share(counted[name], of), "{counted:?}");
        }
    }
}

/// A question with these octets as the options of its OPT record.
fn with_options(name: &str, options: &[u8]) -> Vec<u8> {
    let name: Name = name.parse().unwrap();
    let mut message = question(name.view(), Rtype::A, Some(1232));
    let at = message.len() - 2;
    message[at..].copy_from_slice(&(options.len() as u16).to_be_bytes());
    message.extend(options);
    message
}

const COOKIE: [u8; 12] = [0, 10, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8];

#[test]
fn a_cookie_alone_makes_a_name_hot_as_well() {
    let mut bed = Bed::new(Options::default());
    bed.begin();
    let server = [&[0, 10, 0, 24], &[7; 24][..]].concat();
    for options in [&COOKIE[..], &server] {
        (0..2000).for_each(|_| bed.ask(&with_options("www.example.", options)));
    }
    let padded = [&COOKIE[..], &[0, 12, 0, 0]].concat();
    let long = [&[0, 10, 0, 32], &[7; 32][..]].concat();
    for options in [&padded, &long, &[0, 3, 0, 0].to_vec(), &[&[0, 12, 0, 0], &COOKIE[..]].concat()] {
        (0..2000).for_each(|_| bed.ask(&with_options("ns.example.", options)));
    }
    let counted = bed.end();
    assert_eq!(counted.len(), 1, "{counted:?}");
    assert!(is_share(counted["www.example."], 4000), "{counted:?}");
}

#[test]
fn what_the_driver_could_not_answer_is_not_counted() {
    let mut bed = Bed::new(Options::default());
    bed.begin();
    for n in 0..4000 {
        let (name, rtype) = [
            ("absent.example.", Rtype::A),
            ("x.w.example.", Rtype::A),
            ("below.outer.example.", Rtype::A),
            ("y.outer.example.", Rtype::A),
            ("to.example.", Rtype::A),
            ("www.example.", Rtype::ANY),
            ("www.example.", Rtype::AXFR),
            ("big.example.", Rtype::TXT),
            ("elsewhere.", Rtype::A),
        ][n % 9];
        bed.ask_often(1, name, rtype, [None, Some(1232)][n / 9 % 2]);
        let www: Name = "www.example.".parse().unwrap();
        let (mut dnssec_ok, mut chaos) =
            (question(www.view(), Rtype::A, Some(1232)), question(www.view(), Rtype::A, None));
        let at = dnssec_ok.len() - 4;
        dnssec_ok[at] = 0x80;
        *chaos.last_mut().unwrap() = 3;
        bed.ask(&dnssec_ok);
        bed.ask(&chaos);
        bed.ask(&chaos[..5]);
    }
    assert_eq!(bed.end(), HashMap::new());
}

#[test]
fn answers_beyond_a_rate_are_not_counted() {
    let rrl = crate::rrl::Config { slip: 1, ..crate::rrl::Config::default() };
    let mut bed = Bed::new(Options { rrl: Some(rrl), ..Options::default() });
    bed.begin();
    // 200 of them are sent whole
    bed.ask_often(8000, "www.example.", Rtype::A, None);
    let counted = bed.end();
    assert!(counted["www.example."] <= 200 / ANSWERS_A_SAMPLE * 2, "{counted:?}");
}

#[test]
fn names_of_other_tables_are_not_counted() {
    let mut bed = Bed::new(Options::default());
    bed.begin();
    bed.publisher.publish(Arc::new(tables()));
    // the server has the new tables from its next cycle on
    bed.ask_often(800, "www.example.", Rtype::A, None);
    bed.server.cycle(Instant::ZERO);
    bed.ask_often(8000, "ns.example.", Rtype::A, None);
    let sketch = bed.turn(None).unwrap();
    assert_eq!(sketch.version(), 0);
    let times: Vec<u32> = sketch.names().map(|(_, times)| times).collect();
    assert!(matches!(times[..], [times] if is_share(times, 800)), "{times:?}");
    bed.begin();
    bed.ask_often(800, "ns.example.", Rtype::A, None);
    let counted = bed.end();
    assert!(is_share(counted["ns.example."], 800), "{counted:?}");
}

#[test]
fn nobody_waits_in_an_exchange() {
    let exchange = Exchange::default();
    let fresh = || Some(Box::new(Sketch::new(1, 7)));
    let (mut chooser, mut thread) = (fresh(), None);
    assert!(exchange.turn(&mut chooser) && chooser.is_none());
    let mut early = fresh();
    assert!(!exchange.turn(&mut early) && early.is_some(), "the thread has not come by");
    let held = exchange.sketch.lock().unwrap();
    exchange.take(&mut thread);
    assert!(thread.is_none(), "somebody else is there");
    drop(held);
    exchange.take(&mut thread);
    assert!(thread.is_some());
    assert!(exchange.turn(&mut early) && early.is_none());
}

#[test]
fn a_sketch_has_the_memory_that_is_told() {
    for (names, bytes) in [(1, 32 << 10), (4097, 64 << 10), (65_536 * 2, 1 << 20), (8_000_000, 1 << 20)] {
        assert_eq!(Sketch::new(names, 1).sets.len() * size_of::<Set>(), bytes, "{names}");
    }
}
