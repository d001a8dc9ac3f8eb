//! The generator and the reflector at the two ends of a veth pair.

use lab::{Lab, Process};
use serde_json::Value;
use std::time::Duration;

const BENCH: &str = env!("CARGO_BIN_EXE_simoom-bench");

fn reflector(lab: &Lab, listen: &str, more: &[&str]) -> Process {
    let words = [&[BENCH, "reflect", "--interface", "vs", "--listen", listen], more].concat();
    let mut process = lab.server().spawn(&words).unwrap();
    let end = std::time::Instant::now() + Duration::from_secs(60);
    while !process.log().contains("reflecting") {
        assert!(process.ended().is_none() && std::time::Instant::now() < end, "{}", process.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    lab.pin();
    process
}

fn load(lab: &Lab, server: &str, options: &[&str]) -> Value {
    let (results, error, status) = load_of_any(lab, server, options);
    assert_eq!(status, Some(0), "{error}");
    results
}

/// What a load tells, what it says on standard error, and how it ends.
fn load_of_any(lab: &Lab, server: &str, options: &[&str]) -> (Value, String, Option<i32>) {
    let mut load = lab.client().command(BENCH);
    load.args(["dns", "--interface", "vc", "--server", server, "--names", "100", "--json"]);
    // it ends with the last answer, which may be late on a machine that is busy
    load.args(["--stragglers", "30"]).args(options);
    let done = load.output().unwrap();
    let [text, error] = [&done.stdout, &done.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    let line = text.lines().last().unwrap_or_else(|| panic!("no figures: {error}"));
    (serde_json::from_str(line).unwrap(), error, done.status.code())
}

#[test]
fn what_the_generator_sends_the_reflector_returns_over_both_families() {
    let lab = Lab::new().unwrap();
    let servers = ["198.18.0.1:53", "[2001:db8:18::1]:53"];
    for (server, options) in servers.into_iter().flat_map(|server| [(server, &[][..]), (server, &["--driver"])]) {
        let mut reflector = reflector(&lab, server, options);
        // all of them find room in veth's ring of 256 however long nobody takes them out
        let results = load(&lab, server, &["--rate", "400", "--seconds", "0.5", "--any-answer"]);
        let run = &results["runs"][0];
        let sent = run["sent"].as_u64().unwrap();
        assert!(sent > 0, "{results}");
        assert_eq!(run["answered"], sent, "{results}");
        assert_eq!(run["foreign"], 0, "{results}");
        // ping of the same address goes through the kernel all the while
        lab.client()
            .run(&[
                "ping",
                "-c",
                "1",
                "-W",
                "10",
                server.trim_start_matches('[').split([']']).next().unwrap().trim_end_matches(":53"),
            ])
            .unwrap();
        reflector.stop();
        let log = reflector.log();
        let words: Vec<&str> = log.split_whitespace().collect();
        let reflected = words.iter().position(|word| *word == "reflected").map(|at| words[at + 1]).expect("a count");
        assert!(reflected.parse::<u64>().unwrap() >= sent, "{log}");
        assert!(!lab.server().run(&["ip", "link", "show", "dev", "vs"]).unwrap().contains("xdp"));
    }
}

#[test]
fn a_reflector_of_bursts_answers_each_request_by_all_its_frames() {
    let lab = Lab::new().unwrap();
    for (server, segments) in [("198.18.0.1:7", "1"), ("[2001:db8:18::1]:7", "46")] {
        let _reflector = reflector(&lab, server, &["--segments", segments]);
        let words = [BENCH, "bursts", "--interface", "vc", "--server", server, "--segments", segments];
        // a few at a time find room in veth's ring however busy the machine is
        let load = [&words[..], &["--outstanding", "2", "--seconds", "1", "--json"]].concat();
        let text = lab.client().run(&load).unwrap();
        let run: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        let count = |name: &str| run[name].as_u64().unwrap();
        assert!(count("answered") > 0, "{run}");
        assert_eq!(count("sent"), count("answered") + count("short") + count("unfinished"), "{run}");
        assert_eq!(count("foreign"), 0, "{run}");
        let segments: u64 = segments.parse().unwrap();
        assert!(count("frames") >= segments * count("answered") && count("unfinished") <= 2, "{run}");
        let text = lab.client().run(&[&words[..], &["--seconds", "3"]].concat()).unwrap();
        assert!(text.lines().any(|line| line.starts_with("Requests/sec: ")), "{text}");
    }
}

#[test]
fn the_checks_of_answers_find_that_a_reflector_is_no_server() {
    let lab = Lab::new().unwrap();
    let _reflector = reflector(&lab, "198.18.0.1:53", &[]);
    let options = ["--rate", "500", "--seconds", "0.2", "--check-every", "1"];
    let (results, error, status) = load_of_any(&lab, "198.18.0.1:53", &options);
    let run = &results["runs"][0];
    let checked = run["checked"].as_u64().unwrap();
    assert!(checked > 0, "{results}");
    assert_eq!(run["faults"]["message"], run["checked"], "{results}");
    // who reads the figures without a look at them learns it by the status
    assert_eq!(status, Some(1), "{error}");
    assert!(error.contains(&format!("{checked} of {checked} checked answers were wrong")), "{error}");
}

#[test]
fn a_knot_server_answers_rightly() {
    let lab = Lab::new().unwrap();
    lab::require_programs(&["knotd"]);
    let text = lab.client().run(&[BENCH, "zone", "--names", "100"]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    std::fs::write(dir.join("zone"), text).unwrap();
    let config = format!(
        "server:\n  rundir: \"{0}\"\n  user: root:root\n  listen: 198.18.0.1@53\n  udp-workers: 1\ndatabase:\n  storage: \"{0}\"\n\
         zone:\n  - domain: example.com\n    file: \"{0}/zone\"\n",
        dir.display()
    );
    std::fs::write(dir.join("knot.conf"), config).unwrap();
    let mut knot = lab.server().spawn(&["knotd", "-c", dir.join("knot.conf").to_str().unwrap()]).unwrap();
    let ask = ["dig", "+tries=1", "+time=1", "+short", "@198.18.0.1", "host5.example.com", "A"];
    knot.wait_until(|| lab.client().run(&ask).is_ok_and(|text| text.contains("198.18")), Duration::from_secs(60))
        .unwrap();
    let options = ["--rate", "1000", "--seconds", "0.5", "--check-every", "1", "--edns", "1232"];
    let results = load(&lab, "198.18.0.1", &options);
    let run = &results["runs"][0];
    assert!(run["checked"].as_u64().unwrap() > 0, "{results}");
    assert_eq!(run["faults"], serde_json::json!({}), "{results}");
    assert_eq!(run["rcodes"][0], run["answered"], "{results}");
    // a kernel sender leaves its checksums to the NIC
    assert!(run["partial_checksums"].as_u64().unwrap() > 0, "{results}");
}

#[test]
fn what_is_wrong_is_one_line() {
    let lab = Lab::new().unwrap();
    let cases: [(&[&str], &str); 9] = [
        (&["dns", "--interface", "nope", "--server", "198.18.0.1", "--names", "1", "--rate", "1"], "nope"),
        (&["dns", "--interface", "vc", "--server", "198.18.0.77", "--names", "1", "--rate", "1"], "does not answer"),
        (
            &["dns", "--interface", "vc", "--server", "198.18.0.1", "--queries", "/nope", "--rate", "1"],
            "cannot read /nope",
        ),
        (&["reflect", "--interface", "nope", "--listen", "198.18.0.1:53"], "no interface nope"),
        (&["compare", "--servers", "simoom", "--simoom", "/nope"], "no server at /nope"),
        (&["compare-web", "--simoom", "/nope"], "no server at /nope"),
        (
            &["bursts", "--interface", "vc", "--server", "198.18.0.1:7", "--segments", "3", "--seconds", "0.2"],
            "nothing was answered; does `simoom-bench reflect --segments` run at 198.18.0.1:7?",
        ),
        (&["bursts", "--interface", "nope", "--server", "198.18.0.1:7", "--segments", "3"], "nope"),
        (&["results", "/nope"], "cannot read /nope"),
    ];
    for (args, words) in cases {
        let done = lab.client().command(BENCH).args(args).output().unwrap();
        let text = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(1), "{args:?}: {text}");
        // what got as far as the interface says first how it opened it
        let lines = if args.contains(&"vc") && args[0] == "bursts" { 2 } else { 1 };
        assert!(text.contains(words) && text.trim().lines().count() == lines, "{args:?}: {text}");
    }
}
