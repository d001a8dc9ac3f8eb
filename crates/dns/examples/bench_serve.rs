//! Nanoseconds a question in the service alone: `bench_serve [NAMES] [BURST] [wire|name] [hit|miss]`. Bursts of questions over a
//! zone of NAMES hosts, in a random order; filling the buffers is outside the timed part.

use std::sync::Arc;
use std::time::{Duration, Instant as Wall};

use app::{Addresses, Datagram, Ecn, Listener, Service};
use base::Instant;
use base::publish::Publisher;
use base::rng::Rng;
use dns::{Options, QuestionCompression, Server, Tables};
use zone::MemorySource;

const SLOT_BYTES: usize = 1792;

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap_or("");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).unwrap_or(0)
}

fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or("");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).unwrap_or(0)
}

fn question(name: &str) -> Vec<u8> {
    let mut message = vec![0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1];
    for label in name.split('.') {
        message.push(label.len() as u8);
        message.extend_from_slice(label.as_bytes());
    }
    message.extend_from_slice(&[0, 0, 1, 0, 1]);
    message.extend_from_slice(&[0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0]);
    message
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, otherwise: usize| arguments.get(at).and_then(|a| a.parse().ok()).unwrap_or(otherwise);
    let (names, burst) = (number(0, 10_000), number(1, 64).clamp(1, 64));
    let accept = arguments.get(2).is_some_and(|keying| keying == "name");
    let miss = arguments.get(3).is_some_and(|what| what == "miss");
    let mut text = "$TTL 3600\n@ SOA ns1 hostmaster 1 7200 3600 1209600 300\n@ NS ns1\nns1 A 198.18.0.1\n".to_owned();
    for n in 0..names {
        text += &format!("host{n} A 198.18.{}.{}\n", n / 250 % 250, n % 250 + 1);
    }
    let disk_bytes = text.len();
    let source = MemorySource::new().with("zone", text);
    let start = Wall::now();
    let zone = zone::load(&source, "zone", "example.com".parse().ok()).expect("the zone is sound");
    let loaded = start.elapsed();
    let (zone_bytes, start) = (zone.bytes(), Wall::now());
    let tables = Tables::build(vec![zone], 0x1234_5678_9abc_def1).expect("one zone");
    println!("load {loaded:?}, build {:?}", start.elapsed());
    println!(
        "zone {} and tables {} bytes a name, file {}; resident {} KiB, peak {} KiB",
        zone_bytes / names,
        tables.bytes() / names,
        disk_bytes / names,
        resident_kib(),
        peak_kib()
    );
    let question_compression = if accept { QuestionCompression::Accept } else { QuestionCompression::Refuse };
    let mut server =
        Server::new(Publisher::new(Arc::new(tables)).reader(), Options { question_compression, ..Options::default() });
    let mut rng = Rng::new(7);
    let prefix = if miss { "nohost" } else { "host" };
    let questions: Vec<Vec<u8>> = (0..names.clamp(1 << 16, 1 << 20))
        .map(|_| question(&format!("{prefix}{}.example.com", rng.below(names as u64))))
        .collect();
    let mut slots = vec![[0u8; SLOT_BYTES]; burst];
    let peer = "192.0.2.1:4242".parse().expect("an address");
    let addresses = Addresses { local: peer, peer };
    let (mut best, mut total, mut rounds) = (Duration::MAX, Duration::ZERO, 0u32);
    while rounds < 8 {
        let mut spent = Duration::ZERO;
        for chunk in questions.chunks_exact(burst) {
            for (slot, question) in slots.iter_mut().zip(chunk) {
                slot[..question.len()].copy_from_slice(question);
            }
            let mut datagrams: Vec<_> = slots
                .iter_mut()
                .zip(chunk)
                .map(|(slot, question)| Datagram::new(slot, question.len(), Ecn::NotEct, addresses))
                .collect();
            let start = Wall::now();
            server.datagrams(Instant::ZERO, Listener(0), &mut datagrams);
            spent += start.elapsed();
            assert!(datagrams.iter().all(|datagram| datagram.reply_bytes().is_some()), "an answer to each");
        }
        best = best.min(spent);
        total += spent;
        rounds += 1;
    }
    let count = (questions.len() / burst * burst) as f64;
    println!(
        "{names} names, bursts of {burst}, {}: best {:.1} ns, mean {:.1} ns a question",
        if accept { "name keying" } else { "wire keying" },
        best.as_nanos() as f64 / count,
        total.as_nanos() as f64 / count / f64::from(rounds)
    );
}
