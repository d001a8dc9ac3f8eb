//! Replays the corpus of every fuzz target.

use std::path::Path;

fn replay(target: &str, run: impl Fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut replayed = 0;
    for entry in entries {
        let path = entry.expect("an entry").path();
        println!("{}", path.display()); // shown when the run below panics
        run(&std::fs::read(&path).expect("a corpus file"));
        replayed += 1;
    }
    assert!(replayed > 0, "no corpus in {}", folder.display());
}

#[test]
fn frames() {
    replay("frames", fuzz::frames);
}

#[test]
fn http_request() {
    replay("http_request", fuzz::http_request);
}

#[test]
fn kv() {
    replay("kv", fuzz::kv);
}

#[test]
fn question() {
    replay("question", fuzz::question);
}

#[test]
fn segment() {
    replay("segment", fuzz::segment);
}

#[test]
fn stream() {
    replay("stream", fuzz::stream);
}

#[test]
fn zone_file() {
    replay("zone_file", fuzz::zone_file);
}
