//! Messages there and back, and the experiments that are made of them, as quick looks: that they run, that what came back was right, and what
//! they write.

use lab::Lab;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

const BENCH: &str = env!("CARGO_BIN_EXE_simoom-bench");

/// Experiments have the same processors, and would take each other's.
static ALONE: Mutex<()> = Mutex::new(());

/// Runs an experiment with its results in `out`; what it printed.
fn run(out: &Path, words: &[&str]) -> String {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut command = Command::new(BENCH);
    let done = command.arg("experiment").args(words).args(["--rounds", "1", "--out"]).arg(out).output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{words:?}: {text}");
    text
}

/// The rows of a CSV by their cells, a name's commas left out.
fn rows(out: &Path, name: &str) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(out.join(format!("{name}.csv"))).unwrap();
    let inside_quotes = |(n, part): (usize, &str)| if n % 2 == 1 { part.replace(',', "") } else { part.to_owned() };
    let cells = |line: &str| {
        let plain: String = line.split('"').enumerate().map(inside_quotes).collect();
        plain.split(',').map(String::from).collect()
    };
    text.lines().skip(1).map(cells).collect()
}

fn number(cell: &str) -> f64 {
    cell.parse().unwrap_or_else(|_| panic!("'{cell}' is no number"))
}

fn are_there(out: &Path, names: &[&str]) {
    for name in names {
        assert!(out.join(name).exists(), "{name}");
    }
}

fn has_two_processors() -> bool {
    std::thread::available_parallelism().map_or(1, usize::from) >= 2
}

#[test]
fn one_way_times_are_measured_on_our_stack_and_the_kernels() {
    lab::require_programs(&["ip", "ethtool"]);
    if !has_two_processors() {
        return; // it says so, and measures nothing
    }
    let out = tempfile::tempdir().unwrap();
    let text = run(out.path(), &["netpipe", "--sizes", "64,64k", "--seconds", "0.3"]);
    let rows = rows(out.path(), "netpipe");
    assert_eq!(rows.len(), 2 * 4, "{text}");
    for row in &rows {
        let (bytes, one_way_us, gbps) = (number(&row[0]), number(&row[2]), number(&row[6]));
        assert!(one_way_us > 0.0 && number(&row[7]) > 0.0, "{row:?}: {text}");
        // to the decimals that are told
        assert!((gbps - bytes * 8.0 / 1e3 / one_way_us).abs() <= 0.01 * gbps + 0.001, "{row:?}");
        assert_eq!(row[10].is_empty(), !(row[1] == "simoom AF_XDP" && row[0] == "64"), "{row:?}");
    }
    are_there(out.path(), &["netpipe.md", "netpipe.svg", "netpipe-2.svg"]);
}

#[test]
fn an_echo_is_measured_by_round_trips_and_by_length() {
    lab::require_programs(&["ip", "ethtool"]);
    let out = tempfile::tempdir().unwrap();
    let words = ["echo", "--trips", "1,16", "--sizes", "8k", "--seconds", "0.4", "--connections", "16"];
    let text = run(out.path(), &words);
    let rows = rows(out.path(), "echo");
    assert_eq!(rows.len(), 3 * 3, "{text}");
    for row in &rows {
        let (trips, messages, connections) = (number(&row[0]), number(&row[3]), number(&row[6]));
        assert!(messages > 0.0 && number(&row[7]) >= 0.0, "{row:?}: {text}");
        // a connection for each so many messages, but for those under way at either end of the span
        assert!((connections * trips - messages).abs() <= 2.0 * 16.0 * trips / 0.4, "{row:?}: {text}");
        assert_eq!(row[10].is_empty(), row[2] == "simoom AF_XDP", "{row:?}");
    }
    are_there(out.path(), &["echo.md", "echo.svg", "echo-2.svg", "echo-3.svg"]);
}

#[test]
fn connections_are_measured_in_the_laboratory_and_on_the_pipe() {
    lab::require_programs(&["ip", "ethtool"]);
    let out = tempfile::tempdir().unwrap();
    let words = ["connections", "--counts", "10,300", "--pipe", "64,10000", "--seconds", "0.3", "--under-way", "32"];
    let text = run(out.path(), &words);
    let rows = rows(out.path(), "connections");
    assert_eq!(rows.len(), 3 * 2 + 2, "{text}");
    for row in &rows {
        assert!(number(&row[2]) > 0.0 && row[9].is_empty(), "{row:?}: {text}");
        assert_eq!(row[7].is_empty(), row[0].contains("pipe"), "{row:?}");
        // a TCB is larger than this, and what the stack has for all of them divided by so many is no more
        assert!(row[8].is_empty() || (100.0..100_000.0).contains(&number(&row[8])), "{row:?}");
        assert_eq!(row[8].is_empty(), number(&row[1]) < 10_000.0, "{row:?}");
    }
    are_there(out.path(), &["connections.md", "connections.svg"]);
}

#[test]
fn batches_are_measured_over_af_xdp_and_on_the_pipe() {
    lab::require_programs(&["ip", "ethtool"]);
    let out = tempfile::tempdir().unwrap();
    let simoom = lab::program_beside(BENCH, "simoom");
    let words = ["batch", "--batches", "1,64", "--loads", "0.2,0.5", "--from", "5k", "--to", "8k", "--seconds", "0.3"];
    let text = run(out.path(), &[&words[..], &["--items", "2000", "--simoom", simoom.to_str().unwrap()]].concat());
    let rows = rows(out.path(), "batch");
    assert_eq!(rows.len(), 2 * (2 + 2), "{text}");
    for row in &rows {
        let is_most = row[2] == "most";
        // what the server could do beyond the last rate, nobody asked: that is a bound, and in no ratio
        let beyond = row[3].strip_prefix('≥');
        assert!(number(beyond.unwrap_or(&row[3])) > 0.0, "{row:?}: {text}");
        let ratio_is_empty = !is_most || beyond.is_some();
        assert_eq!(
            (row[6].is_empty(), row[7].is_empty(), row[8].is_empty()),
            (ratio_is_empty, is_most, is_most),
            "{row:?}"
        );
        assert!(is_most || number(&row[8]) >= number(&row[7]), "{row:?}: {text}");
    }
    are_there(out.path(), &["batch.md", "batch.svg", "batch-2.svg"]);
}

#[test]
fn what_is_wrong_is_one_line() {
    let lab = Lab::new().unwrap();
    let ours = ["--interface", "vc", "--address", "198.18.0.3", "--server", "198.18.0.1:7"];
    let cases: [(Vec<&str>, &str); 6] = [
        (vec!["answer", "--interface", "nope", "--listen", "198.18.0.1:7"], "no interface nope"),
        (vec!["answer", "--engine", "epoll", "--listen", "198.18.0.77:7"], "cannot listen on 198.18.0.77:7"),
        (vec!["messages", "--kernel", "blocking", "--server", "198.18.0.1:7"], "no connection to 198.18.0.1:7"),
        ([&["messages"], &ours[..]].concat(), "0 of 1 connections stand"),
        ([&["messages"], &ours[..2], &["--address", "198.18.0.2", "--server", "198.18.0.1:7"]].concat(), "198.18.0.2"),
        (vec!["experiment", "batch", "--simoom", "/nope"], "no server at /nope"),
    ];
    for (args, words) in cases {
        let done = lab.client().command(BENCH).args(&args).output().unwrap();
        let text = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(1), "{args:?}: {text}");
        assert!(text.trim().lines().last().is_some_and(|line| line.contains(words)), "{args:?}: {text}");
    }
}

#[test]
fn whoever_does_not_answer_as_it_should_is_told() {
    let lab = Lab::new().unwrap();
    let listener = lab.server().inside(|| TcpListener::bind("198.18.0.1:7")).unwrap();
    std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut message = [0; 64];
        // until the client has seen enough
        while client.read_exact(&mut message).is_ok() {
            message[63] ^= 1;
            if client.write_all(&message).is_err() {
                break;
            }
        }
    });
    let words = ["messages", "--kernel", "blocking", "--server", "198.18.0.1:7", "--seconds", "0.5"];
    let done = lab.client().command(BENCH).args(words).output().unwrap();
    let text = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(1), "{text}");
    assert!(text.contains("other octets came than were sent"), "{text}");
}
