//! After start-up an answer costs no allocation, whatever was asked.

use std::sync::Arc;

use app::{Addresses, Datagram, Ecn, Listener, Service};
use base::Instant;
use base::counter::Report;
use base::publish::Publisher;
use dns::{Options, QuestionCompression, Server, Tables, cookie, rrl};
use zone::{MemorySource, Rtype};

#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::Counting;

const ZONE: &str = "\
$TTL 60
@ SOA ns h 1 2 3 4 5
@ NS ns
ns A 192.0.2.1
@ MX 10 mail
mail A 192.0.2.2
*.wild A 192.0.2.3
*.wildalias CNAME ns
*.loop CNAME y.loop
alias CNAME mail
gone CNAME nowhere
cut NS ns.cut
cut DS 1 8 1 00
ns.cut A 192.0.2.4
dn DNAME target
loopdn DNAME a.loopdn2
loopdn2 DNAME b.loopdn
a.target A 192.0.2.5
longdn DNAME aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
big TXT \"0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789\"
$GENERATE 1-40 big A 192.0.2.$
$GENERATE 1-200 big AAAA 2001:db8::$
";

fn message(name: &str, rtype: u16, class: u16, opt: Option<&[u8]>) -> Vec<u8> {
    let mut message = vec![0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.').filter(|label| !label.is_empty()) {
        message.push(label.len() as u8);
        message.extend_from_slice(label.as_bytes());
    }
    message.push(0);
    message.extend_from_slice(&rtype.to_be_bytes());
    message.extend_from_slice(&class.to_be_bytes());
    if let Some(options) = opt {
        message[11] = 1;
        message.extend_from_slice(&[0, 0, 41, 4, 208, 0, 0, 0, 0]);
        message.extend_from_slice(&(options.len() as u16).to_be_bytes());
        message.extend_from_slice(options);
    }
    message
}

fn questions() -> Vec<Vec<u8>> {
    let mut deep = String::new();
    for _ in 0..120 {
        deep += "d.";
    }
    let names = [
        "example",
        "ns.example",
        "NS.EXAMPLE",
        "nope.example",
        "a.b.c.nope.example",
        "q.wild.example",
        "q.wildalias.example",
        "z.loop.example",
        "y.loop.example",
        "alias.example",
        "gone.example",
        "cut.example",
        "x.cut.example",
        "dn.example",
        "a.dn.example",
        "b.dn.example",
        "x.loopdn.example",
        "a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p.q.r.s.t.u.v.w.x.y.z.longdn.example",
        "big.example",
        "elsewhere",
        "",
        "in.example",
        "x.in.example",
        "version.bind",
        "id.server",
        &format!("{deep}example")[..],
        &format!("{}longdn.example", &deep[..120]),
    ];
    let types = [
        Rtype::A,
        Rtype::AAAA,
        Rtype::NS,
        Rtype::DS,
        Rtype::MX,
        Rtype::ANY,
        Rtype::CNAME,
        Rtype::TXT,
        Rtype::AXFR,
        Rtype::IXFR,
        Rtype(0),
        Rtype(65_535),
    ];
    let cookie = b"\0\x0a\0\x08cookieme\0\x03\0\0";
    let forged = b"\0\x0a\0\x18cookieme\x01\0\0\0\0\0\0\0xxxxxxxx";
    let mut questions = Vec::new();
    for name in names {
        for rtype in types {
            for class in [1, 3, 255, 9] {
                for opt in [None, Some(&b""[..]), Some(&cookie[..]), Some(&forged[..])] {
                    questions.push(message(name, rtype.0, class, opt));
                }
            }
        }
    }
    let plain = message("ns.example", 1, 1, Some(b""));
    for at in 0..plain.len() {
        questions.push(plain[..at].to_vec());
        for bit in 0..8 {
            let mut mangled = plain.clone();
            mangled[at] ^= 1 << bit;
            questions.push(mangled);
        }
    }
    questions
}

fn count(options: Options) -> (u64, usize, usize) {
    let source = MemorySource::new().with("zone", ZONE);
    let inner = MemorySource::new().with("zone", "@ 60 SOA ns h 1 2 3 4 5\n@ 60 NS ns\n");
    let zones = vec![
        zone::load(&source, "zone", "example".parse().ok()).unwrap(),
        zone::load(&inner, "zone", "in.example".parse().ok()).unwrap(),
    ];
    let publisher = Publisher::new(Arc::new(Tables::build(zones, 3).unwrap()));
    let mut server = Server::new(publisher.reader(), options);
    let questions = questions();
    let addresses = |port| Addresses {
        local: "192.0.2.1:53".parse().unwrap(),
        peer: if port % 2 == 0 { "198.51.100.7:1000".parse().unwrap() } else { "[2001:db8::7]:1000".parse().unwrap() },
    };
    let (mut answered, mut allocated) = (0, 0);
    for (n, chunk) in questions.chunks(64).enumerate() {
        let mut slots: Vec<_> = chunk
            .iter()
            .map(|question| {
                let mut slot = vec![0; 1500];
                slot[..question.len()].copy_from_slice(question);
                slot
            })
            .collect();
        let mut burst: Vec<_> = slots
            .iter_mut()
            .zip(chunk)
            .map(|(slot, question)| Datagram::new(slot, question.len(), Ecn::NotEct, addresses(n)))
            .collect();
        let before = allocations::of_thread();
        server.cycle(Instant::ZERO);
        server.datagrams(Instant::ZERO, Listener(0), &mut burst);
        allocated += allocations::of_thread() - before;
        answered += burst.iter().filter(|datagram| datagram.reply_bytes().is_some()).count();
    }
    (allocated, answered, questions.len())
}

#[test]
fn nothing_is_allocated_for_an_answer() {
    let (allocated, answered, asked) = count(Options::default());
    // what is dropped: the stumps and the response among the mangled
    assert_eq!((allocated, asked - answered), (0, 12 + 1));
}

/// A record that is the last straw is not copied first.
#[test]
fn nor_for_what_no_message_has_room_for() {
    let mut text = "$TTL 60\n@ SOA ns h 1 2 3 4 5\n@ NS ns\nalias CNAME big\ndn DNAME t\n".to_owned();
    for name in ["big", "x.t"] {
        text += &format!(
            "{name} TYPE65280 \\# 400 {}\n{name} TYPE65280 \\# 65500 {}\n",
            "aa".repeat(400),
            "bb".repeat(65_500)
        );
    }
    let zones = vec![zone::load(&MemorySource::new().with("zone", text), "zone", "example".parse().ok()).unwrap()];
    let options = Options { udp_bytes: u16::MAX, ..Options::default() };
    let mut server = Server::new(Publisher::new(Arc::new(Tables::build(zones, 3).unwrap())).reader(), options);
    for name in ["alias.example", "x.dn.example"] {
        let mut question = message(name, 65_280, 1, Some(b""));
        let at = question.len() - 8;
        question[at..at + 2].copy_from_slice(&[0xff; 2]);
        let mut slot = vec![0; 65_535];
        slot[..question.len()].copy_from_slice(&question);
        let local = "192.0.2.1:53".parse().unwrap();
        let mut burst = [Datagram::new(&mut slot, question.len(), Ecn::NotEct, Addresses { local, peer: local })];
        let before = allocations::of_thread();
        server.datagrams(Instant::ZERO, Listener(0), &mut burst);
        assert_eq!(allocations::of_thread(), before, "{name}");
        assert!(burst[0].reply_bytes().is_some());
        assert_eq!(slot[2] & 2, 2, "{name}: truncated");
    }
}

#[test]
fn nor_when_new_tables_are_taken() {
    let source = MemorySource::new().with("zone", "@ 60 SOA ns h 1 2 3 4 5\n@ 60 NS ns\n");
    let zones = |range: std::ops::Range<u32>| {
        range.map(|n| zone::load(&source, "zone", format!("z{n}").parse().ok()).unwrap()).collect()
    };
    let publisher = Publisher::new(Arc::new(Tables::build(zones(0..10), 3).unwrap()));
    let mut server = Server::new(publisher.reader(), Options::default());
    for last in [10, 500, 20] {
        let before = publisher.current();
        publisher.publish(Arc::new(before.rebuild(zones(5..last), 4).unwrap()));
        let last = format!("z{}", last - 1);
        let counted = allocations::of_thread();
        server.cycle(Instant::ZERO);
        assert_eq!(allocations::of_thread(), counted);
        let mut slot = [0; 512];
        let question = message(&last, Rtype::SOA.0, 1, None);
        slot[..question.len()].copy_from_slice(&question);
        let local = "192.0.2.1:53".parse().unwrap();
        let mut burst = [Datagram::new(&mut slot, question.len(), Ecn::NotEct, Addresses { local, peer: local })];
        let counted = allocations::of_thread();
        server.datagrams(Instant::ZERO, Listener(0), &mut burst);
        assert_eq!(allocations::of_thread(), counted);
        let mut answers = 0;
        server.stats().report(&mut |figure| {
            let of_zone = figure.labels.first().is_some_and(|(_, zone)| zone.trim_end_matches('.') == last);
            answers += if figure.name == "dns_zone_answers_total" && of_zone { figure.value } else { 0 };
        });
        assert_eq!(answers, 1, "{last}");
    }
}

#[test]
fn nor_for_one_that_is_retained() {
    for retained_bytes in [1 << 12, 4 << 20] {
        let (allocated, answered, asked) = count(Options { retained_bytes, ..Options::default() });
        assert_eq!((allocated, asked - answered), (0, 12 + 1));
    }
}

#[test]
fn nor_with_everything_switched_on() {
    let (allocated, answered, _) = count(Options {
        retained_bytes: 1 << 16,
        question_compression: QuestionCompression::Accept,
        nsid: b"ns1".to_vec(),
        version: Some("simoom".to_owned()),
        id: Some("ns1".to_owned()),
        cookies: Some(cookie::Config::fixed(vec![[1; 16]], 1_700_000_000)),
        rrl: Some(rrl::Config::default()),
        ..Options::default()
    });
    assert_eq!(allocated, 0);
    assert!(answered > 1000, "{answered}");
}
