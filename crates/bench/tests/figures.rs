//! The comparisons and figures of web servers, as quick looks, with nginx on both sides: that they run, and what they write.

use std::path::Path;
use std::process::Command;

const BENCH: &str = env!("CARGO_BIN_EXE_simoom-bench");
/// A second nginx stands for the server under test, which this crate's tests do not have.
const OTHER: [&str; 2] = ["--server", "other=nginx -c {run}/nginx.conf"];

/// Runs a command with its results in `out`; what it printed.
fn run(out: &Path, words: &[&str]) -> String {
    let done = Command::new(BENCH).args(words).args(OTHER).arg("--out").arg(out).output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{words:?}: {text}");
    text
}

/// The rows of a CSV by their cells; none of ours here has a quoted one.
fn rows(out: &Path, name: &str) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(out.join(format!("{name}.csv"))).unwrap();
    text.lines().skip(1).map(|line| line.split(',').map(String::from).collect()).collect()
}

fn is_positive(cell: &str) -> bool {
    cell.parse::<f64>().is_ok_and(|value| value > 0.0)
}

#[test]
fn web_servers_are_compared_with_each_other_and_with_the_bound() {
    lab::require_programs(&["ip", "ethtool", "nginx", "wrk", "h2load"]);
    let out = tempfile::tempdir().unwrap();
    let words = "compare-web --files 1k,64k --rounds 1 --seconds 0.3 --rate-seconds 0.3 --apart 0";
    let words: Vec<&str> = words.split(' ').collect();
    let text = run(out.path(), &words);
    let rows = rows(out.path(), "compare-web");
    // own: two files and a connection a request, the reflector beside the files; wrk: the same without it
    assert_eq!(rows.len(), 3 * 2 + 2 + 3 * 2, "{text}");
    for row in &rows {
        assert!(is_positive(&row[4]), "{row:?}: {text}");
        assert_eq!(row[7].is_empty(), row[3] == "other", "{row:?}: {text}");
    }
    let page = std::fs::read_to_string(out.path().join("compare-web.md")).unwrap();
    for part in
        ["# other beside nginx", "| nginx | nginx version", "| command | simoom-bench compare-web --files 1k,64k"]
    {
        assert!(page.contains(part), "{part} in {page}");
    }
}

#[test]
fn a_server_of_other_content_is_not_measured() {
    lab::require_programs(&["ip", "ethtool", "nginx"]);
    let folder = tempfile::tempdir().unwrap();
    let d = folder.path().display();
    let config = format!(
        "daemon off; master_process off; user root; pid {d}/pid; error_log {d}/error.log; events {{}}\n\
         http {{ access_log off; client_body_temp_path {d}/t1; proxy_temp_path {d}/t2; fastcgi_temp_path {d}/t3;\n\
         uwsgi_temp_path {d}/t4; scgi_temp_path {d}/t5;\n\
         server {{ listen 198.18.0.1:80; location / {{ return 200 0123456789; }} }} }}\n"
    );
    std::fs::write(folder.path().join("nginx.conf"), config).unwrap();
    let server = format!("small=nginx -c {d}/nginx.conf");
    let words = "--loads own --files 1k --rounds 1 --seconds 0.3 --no-cost --no-reflector --apart 0".split(' ');
    let out = folder.path().join("out");
    let done =
        Command::new(BENCH).arg("compare-web").args(words).args(["--server", &server]).arg("--out").arg(&out).output();
    let done = done.unwrap();
    let text = String::from_utf8_lossy(&done.stderr);
    let expected = "what small serves: /1k: a body of 10 octets is not the file, of 1024";
    assert!(!done.status.success() && text.contains(expected), "{text}");
    assert!(!out.exists(), "{text}");
}

#[test]
fn figures_are_written_and_make_a_page() {
    lab::require_programs(&["ip", "ethtool", "nginx", "wrk"]);
    let out = tempfile::tempdir().unwrap();
    let quick = ["--rounds", "1", "--seconds", "0.3", "--apart", "0"];
    run(out.path(), &[&["experiment", "fig4", "--points", "4k", "--offloads", "on,off"], &quick[..]].concat());
    let trace =
        ["experiment", "fig5", "--points", "4", "--files", "20", "--load", "own", "--keep-alive", "--offloads", "on"];
    run(out.path(), &[&trace[..], &quick].concat());
    // nothing is measured anew there, since a path may be so bad that nothing comes
    let rtt = ["experiment", "rtt", "--points", "0,10", "--kib", "256", "--rounds", "1", "--seconds", "3"];
    run(out.path(), &rtt);
    for (name, count, servers, rate) in [("fig4", 4, 1, 3), ("fig5", 2, 1, 3), ("rtt", 4, 1, 2)] {
        let rows = rows(out.path(), name);
        assert_eq!(rows.len(), count, "{name}: {rows:?}");
        for row in &rows {
            assert!(["nginx", "other"].contains(&&*row[servers]) && is_positive(&row[rate]), "{name}: {row:?}");
        }
    }
    let done = Command::new(BENCH).arg("results").arg(out.path()).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let page = std::fs::read_to_string(out.path().join("index.html")).unwrap();
    // two charts of each web figure, one of rtt
    assert_eq!((page.matches("<svg").count(), page.matches("<section id=").count()), (5, 3), "{page}");
}
