use super::*;
use crate::commands::parsed;

fn options(words: &[&str]) -> Options {
    parsed::<Options>([&["balance"], words].concat()).unwrap()
}

#[test]
fn a_report_compares_with_no_compiler_with_no_balancer_and_with_the_compiler_alone() {
    let options = options(&["--engine", "sockets", "--requests", "6"]);
    let line = |case: Case, p90_us: f64, compile_s: Option<f64>| Line {
        engine: Engine::Sockets,
        requests: 6,
        case,
        rate: 1000.0,
        runs: vec![Figures { p50_us: 10.0, p90_us, p99_us: 99.0, compile_s, ..Figures::default() }; 2],
    };
    let [unloaded, off, steal, on] = CASES;
    let lines = [
        line(unloaded, 50.0, None),
        line(off, 4000.0, Some(3.0)),
        line(steal, 1000.0, Some(2.5)),
        line(on, 100.0, Some(2.1)),
    ];
    let report = report::report(&options, &lines, &[2.0, 2.0]);
    let rows: Vec<Vec<String>> =
        report.table.csv().lines().map(|row| row.split(',').map(str::to_owned).collect()).collect();
    let cells = |row: usize, from: usize, count: usize| rows[row][from..from + count].join(" ");
    assert_eq!(cells(1, 3, 1), "compiler alone");
    // headings with a comma in them are quoted, so these are the rows'
    assert_eq!(cells(5, 0, 6), "kernel sockets 6 requests each 1000 migration 10 100");
    assert_eq!(cells(5, 8, 3), "99 2.00 40.00", "to no compiler, of no balancer");
    assert_eq!(cells(5, 12, 4), "2.10 1.05 1.05 1.05");
    assert_eq!(cells(2, 12, 2), " ", "nothing was compiled");
    assert_eq!((report.charts.len(), report.charts[0].series.len()), (1, 4));
    assert!(report.method.contains("a 6th of what"), "{}", report.method);
    assert!(!report.method.contains("at once, on processor 1"), "{}", report.method);
    let several = self::options(&["--jobs", "4", "--name", "balance-jobs"]);
    let report = report::report(&several, &lines, &[2.0, 2.0]);
    assert!(report.method.contains("again and again, 4 of them at once, on processor 1"), "{}", report.method);
    assert_eq!(report.name, "balance-jobs");
}

#[test]
fn the_server_is_told_how_to_balance() {
    let bed = Bed { folder: tempfile::tempdir().unwrap(), pins: Pins::new().unwrap(), simoom: PathBuf::from("/s") };
    let words = |engine, balance| bed.server(engine, balance).unwrap().words.join(" ");
    let start = "/s web --listen 198.18.0.1:80 --backend sockets --accept affinity --cpus 0,1 --balance steal ";
    assert!(words(Engine::Sockets, "steal").starts_with(start));
    assert!(words(Engine::Xdp, "on").contains(" --interface vs --cpus 0,1 --balance on "));
    let table = format!(
        " --rss-key 6d:5a:56:da:25:5b:0e:c2:41:67:25:3d:43:a3:8f:b0:d0:ca:2b:cb:ae:7b:30:b4:77:cb:2d:a3:80:30:f2:0c:6a:42:b7:3b:be:ac:01:fa --rss-table {} ",
        bed.pins.table().display()
    );
    assert!(words(Engine::Xdp, "on").contains(&table));
}

#[test]
fn options_have_bounds() {
    let all = options(&[]);
    assert_eq!((all.engine, all.requests), (vec![Engine::Sockets, Engine::Xdp], vec![6, 0]));
    for wrong in [
        ["--engine", "tcp"],
        ["--part", "0"],
        ["--requests", "-1"],
        ["--jobs", "0"],
        ["--seconds", "0"],
        ["--rate", "0"],
    ] {
        assert!(parsed::<Options>([&["balance"], &wrong[..]].concat()).is_err(), "{wrong:?}");
    }
}

#[test]
fn moves_are_added_over_threads_and_engines() {
    let sample = |name: &str, label: &str, value: &str, count: u64| serde_json::json!({ "name": name, "labels": { label: value, "thread": "0" }, "value": count });
    let all = serde_json::json!({ "metrics": [
        sample("sockets_thread_accepted_total", "queue", "another's", 1), sample("sockets_thread_accepted_total", "queue", "its own", 50),
        sample("sockets_thread_groups_taken_total", "x", "", 2), sample("sockets_thread_groups_taken_total", "x", "", 3),
        sample("sockets_thread_connections_taken_total", "x", "", 4),
        sample("tcp_moved_total", "direction", "in", 8), sample("tcp_moved_total", "direction", "out", 80),
        sample("dataplane_moved_groups_total", "direction", "in", 7), sample("dataplane_moved_groups_total", "direction", "out", 70),
    ]});
    assert_eq!(shares_of(&all), Shares { stolen: 1, groups: 12, connections: 12 });
}
