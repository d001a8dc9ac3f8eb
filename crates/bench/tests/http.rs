//! The HTTP load against nginx: our TCP's client side meets the kernel's over a veth pair.

use lab::{Lab, Process, capture::Capture};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

const BENCH: &str = env!("CARGO_BIN_EXE_simoom-bench");
const SIZES: [usize; 3] = [1 << 10, 1 << 16, 1 << 20];

/// nginx with files named by their sizes.
fn nginx(lab: &Lab, dir: &Path) -> Process {
    lab::require_programs(&["nginx", "curl"]);
    std::fs::create_dir(dir.join("www")).unwrap();
    for bytes in SIZES {
        let body: Vec<u8> = (0..bytes).map(|at| (at / 251 + at) as u8).collect();
        std::fs::write(dir.join("www").join(bytes.to_string()), body).unwrap();
    }
    let d = dir.display();
    let config = format!(
        "daemon off; master_process off; user root; pid {d}/pid; error_log {d}/error.log;\n\
         events {{ worker_connections 1024; }}\n\
         http {{ access_log off; client_body_temp_path {d}/t1; proxy_temp_path {d}/t2; fastcgi_temp_path {d}/t3;\n\
         uwsgi_temp_path {d}/t4; scgi_temp_path {d}/t5; keepalive_requests 100;\n\
         server {{ listen 80; listen [::]:80; root {d}/www; location /gone {{ return 410; }} }} }}\n"
    );
    std::fs::write(dir.join("nginx.conf"), config).unwrap();
    let conf = dir.join("nginx.conf");
    let mut process = lab.server().spawn(&["nginx", "-c", conf.to_str().unwrap()]).unwrap();
    let probe = ["curl", "-s", "-m", "2", "-o", "/dev/null", "http://198.18.0.1/1024"];
    process.wait_until(|| lab.client().run(&probe).is_ok(), Duration::from_secs(60)).unwrap();
    process
}

fn load(lab: &Lab, more: &[&str]) -> Value {
    let mut args = vec![BENCH, "http", "--interface", "vc", "--json", "--check-every", "1", "--seconds", "1"];
    args.extend(more);
    let text = lab.client().run(&args).unwrap();
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

fn assert_whole(run: &Value) {
    assert!(run["answered"].as_u64().unwrap() > 0, "{run}");
    assert_eq!(run["failures"], json!([]), "{run}");
    assert_eq!(run["statuses"], json!({}), "{run}");
    assert_eq!((&run["answered"], &run["unfinished"]), (&run["sent"], &json!(0)), "{run}");
    assert_eq!(run["checked"], run["answered"], "{run}");
}

#[test]
fn nginx_answers_over_both_families_and_nothing_is_malformed() {
    // else the client's kernel, which asks for the server's hardware address, leaves its checksums unfinished
    let lab = Lab::with(&lab::Options { offloads: false, ..lab::Options::default() }).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let _nginx = nginx(&lab, dir.path());
    for (address, host) in [("198.18.0.3", "198.18.0.1"), ("2001:db8:18::3-2001:db8:18::5", "[2001:db8:18::1]")] {
        let urls = SIZES.map(|bytes| format!("http://{host}/{bytes}"));
        for each in ["0", "1", "7"] {
            let capture = Capture::of_client(&lab).unwrap();
            let mut args = vec!["--address", address, "--connections", "4", "--requests-per-connection", each];
            args.extend(urls.iter().map(String::as_str));
            args.extend(["--rate", "200"]);
            let run = load(&lab, &args);
            assert_whole(&run);
            if each == "1" {
                assert_eq!(run["connections"], run["sent"], "{run}");
            }
            let findings = capture.finish().unwrap();
            findings.check();
        }
    }
    // the kernel goes on beside us
    lab.client().run(&["ping", "-c", "1", "-W", "2", "198.18.0.1"]).unwrap();
    assert!(!lab.client().run(&["ip", "link", "show", "dev", "vc"]).unwrap().contains("xdp"));
}

#[test]
fn a_closed_loop_and_what_is_told_of_it() {
    let lab = Lab::new().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let _nginx = nginx(&lab, dir.path());
    let args = ["--address", "198.18.0.3-198.18.0.4", "--connections", "16"];
    let run = load(&lab, &[&args[..], &["http://198.18.0.1/1024"]].concat());
    assert_whole(&run);
    assert_eq!(run["body_bytes"].as_u64().unwrap(), 1024 * run["answered"].as_u64().unwrap(), "{run}");
    let run = load(&lab, &[&args[..], &["3@http://198.18.0.1/1024", "http://198.18.0.1/gone"]].concat());
    let (answered, gone) = (run["answered"].as_u64().unwrap(), run["statuses"]["410"].as_u64().unwrap());
    assert!(answered.abs_diff(4 * gone) <= 4, "{run}");

    let mut words = vec![BENCH, "http", "--interface", "vc", "--seconds", "3"];
    words.extend(args);
    words.push("http://198.18.0.1/1024");
    let text = lab.client().run(&words).unwrap();
    let rate = text.lines().find_map(|line| line.strip_prefix("Requests/sec: ")).expect("as wrk tells it");
    assert!(rate.parse::<f64>().unwrap() > 0.0, "{text}");
    assert!(text.contains("latency") && text.contains("p99"), "{text}");
}

#[test]
fn what_is_wrong_is_one_line_at_the_end() {
    let lab = Lab::new().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let _nginx = nginx(&lab, dir.path());
    let wrong = dir.path().join("wrong");
    std::fs::write(&wrong, vec![b'x'; 1024]).unwrap();
    let wrong = wrong.to_str().unwrap();
    let own = ["--address", "198.18.0.3"];
    let page = "http://198.18.0.1/1024";
    let cases: [(&[&str], &str); 7] = [
        (&["--body", wrong, page], "bodies were wrong"),
        (&["http://198.18.0.1:81/"], "connections refused"),
        (&["http://198.18.0.1/gone"], "no answer was good: {410: "),
        (&["--body", wrong, "http://198.18.0.1:81/"], "nothing was answered"),
        (&["http://198.18.0.77/"], "does not answer"),
        (&["--body", "/nope", page], "cannot read /nope"),
        (&["http://[2001:db8:18::1]/"], "must be of one family"),
    ];
    for (more, words) in cases {
        let done = lab
            .client()
            .command(BENCH)
            .args(["http", "--interface", "vc", "--seconds", "0.3", "--connections", "2"])
            .args(own)
            .args(more)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(1), "{more:?}: {text}");
        assert!(text.trim().lines().last().is_some_and(|line| line.contains(words)), "{more:?}: {text}");
        let told = String::from_utf8_lossy(&done.stdout);
        let rate = told.lines().find_map(|line| line.strip_prefix("Requests/sec: "));
        assert!(rate.is_none_or(|rate| more[0] == "--body" || rate == "0.00"), "{more:?}: {told}");
    }
    let taken =
        lab.client().command(BENCH).args(["http", "--interface", "vc", "--address", "198.18.0.2", page]).output();
    assert!(String::from_utf8_lossy(&taken.unwrap().stderr).contains("the kernel has 198.18.0.2"));
}
