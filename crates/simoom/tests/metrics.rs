//! The metrics page: what a scraper reads, what docs/metrics.md says of it, and what the files in contrib/ make of it.

mod common;
#[path = "common/exposition.rs"]
mod exposition;
#[path = "common/queries.rs"]
mod queries;

use common::{PATIENCE, Place, Server, ask, ask_tcp, free_port, text};
use exposition::{check_documented, check_exposed, documented, parse};
use queries::{Selector, alerts, check_values, dashboard, groupings, of_panel, selectors};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split_once("\r\n\r\n").expect("a head").1.to_owned()
}

/// `promtool`, where Prometheus is installed, on this input; what it complains of.
fn promtool(args: &[&str], input: &str) -> Option<String> {
    let mut child = Command::new("promtool")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| eprintln!("promtool: {error}"))
        .ok()?;
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = format!("{}{}", text(&output.stdout), text(&output.stderr));
    Some(if output.status.success() { String::new() } else { said })
}

/// Everything on kernel sockets, in one process: its control socket, and where the services and the metrics are.
struct Everything {
    place: Place,
    server: Server,
    metrics: String,
    dns: SocketAddr,
    web: String,
}

fn everything() -> Everything {
    let place = Place::new();
    let [dns, web, kv, echo, app, metrics] = std::array::from_fn(|_| format!("127.0.0.1:{}", free_port()));
    std::fs::create_dir(place.path("site")).unwrap();
    std::fs::write(place.path("site/index.html"), "hello").unwrap();
    // without an origin of the configuration's, so that it can be another's later
    place.write("other.zone", &common::ZONE.replace("example.com", "example.net"));
    let control = place.path("control");
    place.write(
        "s.toml",
        &format!(
            "[dataplane]\nlisten = [\"{dns}\"]\n[[dns.zone]]\nfile = \"example.zone\"\n\
             [[dns.zone]]\nfile = \"other.zone\"\n\
             [web]\nroot = \"site\"\nlisten = [\"{web}\"]\naccess-log = \"access.log\"\n\
             [kv]\nlisten = [\"{kv}\"]\n[echo]\nlisten = [\"{echo}\"]\n\
             [[app]]\nname = \"other\"\nprogram = [\"{}\", \"echo-app\"]\nlisten = [\"{app}\"]\n\
             [control]\npath = \"{control}\"\nmetrics = \"{metrics}\"\n",
            env!("CARGO_BIN_EXE_simoom")
        ),
    );
    let server = Server::start_config(&place, &place.path("s.toml"));
    Everything { place, server, metrics, dns: dns.parse().unwrap(), web }
}

#[test]
fn what_is_exposed_is_well_formed_and_documented() {
    let all = everything();
    assert_eq!(ask(all.dns, "www.example.com").0, 0);
    assert_eq!(ask_tcp(all.dns, "www.example.net").0, 0);
    assert_eq!(get(&all.web, "/"), "hello");
    // a zone goes, with what it has counted
    all.place.write("other.zone", &common::ZONE.replace("example.com", "example.org"));
    let reload = all.server.ctl(&["reload"]);
    assert!(reload.status.success(), "{}", text(&reload.stderr));
    let page = get(&all.metrics, "/metrics");
    let families = parse(&page).unwrap_or_else(|error| panic!("{error}\n{page}"));
    check_documented(&families);
    check_exposed(&families, |section| !section.contains("AF_XDP") && !section.contains("The NIC's table"));
    assert!(check_values(&families) > 5, "what alerts and dashboard name of services and kernel sockets");
    if let Some(complaints) = promtool(&["check", "metrics"], &page) {
        assert_eq!(complaints, "", "promtool complains");
    }
    // the control socket has the same figures, but in whole numbers
    let json: Value = serde_json::from_slice(&all.server.ctl(&["stats", "--json"]).stdout).unwrap();
    let names: BTreeSet<&str> = json["metrics"].as_array().unwrap().iter().flat_map(|it| it["name"].as_str()).collect();
    assert_eq!(names.len(), families.len());
}

#[test]
fn the_reader_of_metrics_is_strict() {
    let good = "# HELP a_total b\\n\\\\\n# TYPE a_total counter\na_total{l=\"x\\\"y,}\"} 1\na_total{l=\"z\"} 2.5\n";
    let families = parse(good).unwrap();
    assert_eq!(families["a_total"].help, "b\n\\");
    assert_eq!(families["a_total"].samples[0].0["l"], "x\"y,}");
    let head = "# HELP a_total b\n# TYPE a_total counter\n";
    for wrong in [
        "a_total 1\n".to_owned(),
        head.to_owned(),
        format!("{head}a_total 1"),
        format!("{head}a_total -1\n"),
        format!("{head}a_total 1\na_total 2\n"),
        format!("{head}b_total 1\n"),
        format!("{head}a_total{{l=\"x}} 1\n"),
        format!("{head}a_total{{l=\"\\q\"}} 1\n"),
        format!("{head}a_total{{1=\"x\"}} 1\n"),
        format!("{head}{head}a_total 1\n"),
        "# TYPE a_total counter\na_total 1\n".to_owned(),
        "# HELP a_total b\na_total 1\n".to_owned(),
        "# HELP a_total \n# TYPE a_total counter\na_total 1\n".to_owned(),
        head.replace("counter", "gauge") + "a_total 1\n",
        "# HELP a b\n# TYPE a counter\na 1\n".to_owned(),
        "# HELP a_milliseconds b\n# TYPE a_milliseconds gauge\na_milliseconds 1\n".to_owned(),
    ] {
        assert!(parse(&wrong).is_err(), "{wrong}");
    }
}

/// What Prometheus adds to each scrape.
const SCRAPE: [&str; 2] = ["instance", "job"];

fn check_expression(expression: &str) {
    let documented = documented();
    // each side of an `or` has labels of its own
    for part in expression.split(" or ") {
        let metrics = selectors(part);
        for selector in &metrics {
            let name = &selector.metric;
            let row = documented.get(name).unwrap_or_else(|| panic!("{name} does not exist: {part}"));
            for (label, ..) in &selector.matchers {
                let is_known = row.labels.contains(label) || SCRAPE.contains(&label.as_str());
                assert!(is_known, "{name} has no {label}: {part}");
            }
        }
        for label in groupings(part) {
            let has = metrics.iter().all(|it| documented[&it.metric].labels.contains(&label));
            assert!(has || SCRAPE.contains(&label.as_str()), "not all have {label}: {part}");
        }
    }
}

#[test]
fn expressions_are_taken_apart() {
    let found = selectors("sum by (a) (rate(simoom_x_total{b=\"c\", d!~\"e|f\"}[5m])) / simoom_y > 1");
    let owned = |(label, how, value): (&str, &str, &str)| (label.to_owned(), how.to_owned(), value.to_owned());
    assert_eq!(found[0].metric, "simoom_x_total");
    assert_eq!(found[0].matchers, [("b", "=", "c"), ("d", "!~", "e|f")].map(owned));
    assert_eq!((found[1].metric.as_str(), found[1].matchers.len()), ("simoom_y", 0));
    assert_eq!(groupings("sum by (a, b) (x) / max by (c) (y)"), ["a", "b", "c"]);
}

#[test]
fn the_dashboard_shows_metrics_that_exist() {
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().unwrap();
    let (mut expressions, mut ids, mut taken) = (0, BTreeSet::new(), BTreeSet::new());
    for panel in panels {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "an id twice: {panel}");
        let at = |name: &str| panel["gridPos"][name].as_u64().unwrap();
        assert!(at("x") + at("w") <= 24 && at("w") > 0 && at("h") > 0, "{panel}");
        for (x, y) in (at("x")..at("x") + at("w")).flat_map(|x| (at("y")..at("y") + at("h")).map(move |y| (x, y))) {
            assert!(taken.insert((x, y)), "{} lies upon another", panel["title"]);
        }
        if panel["type"] == "row" {
            continue;
        }
        let of_panel = of_panel(panel);
        assert!(!of_panel.is_empty() && panel["datasource"]["uid"] == "${datasource}", "{panel}");
        for expression in &of_panel {
            assert!(expression.contains("$instance"), "of every server at once: {expression}");
            check_expression(expression);
        }
        expressions += of_panel.len();
    }
    assert!(expressions > 20, "{expressions}");
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    for query in variables.iter().filter_map(|variable| variable["definition"].as_str()) {
        check_expression(query);
    }
}

/// What a server says of a want of its own, which nobody else does: metrics, and values of a label where it is one of them.
const WANTS: [(&str, &str); 4] = [
    ("simoom_tcp_events_total", "queue pool short"),
    ("simoom_tcp_events_total", "record pool empty"),
    ("simoom_xdp_queue_without_socket", ""),
    ("simoom_xdp_spare_sockets", ""),
];

#[test]
fn a_want_of_the_servers_own_raises_an_alert() {
    let watched: Vec<_> = alerts().iter().flat_map(|(_, expression, _)| selectors(expression)).collect();
    for (metric, value) in WANTS {
        let has = |(_, _, values): &(String, String, String)| values.split('|').any(|it| it == value);
        let is_it = |it: &Selector| it.metric == metric && (value.is_empty() || it.matchers.iter().any(has));
        assert!(watched.iter().any(is_it), "{metric} {value}");
    }
}

#[test]
fn the_alerts_watch_metrics_that_exist() {
    let mut names = BTreeSet::new();
    for (name, expression, rule) in alerts() {
        assert!(name.starts_with("Simoom") && names.insert(name.clone()), "{name}");
        assert!(selectors(&expression).len() + usize::from(expression.contains("up{")) > 0, "{name}: {expression}");
        check_expression(&expression);
        for key in ["labels:", "severity:", "annotations:", "summary:", "description:"] {
            assert!(rule.contains(key), "{name} has no {key}");
        }
    }
    assert!(names.len() > 10, "{names:?}");
    let path = format!("{}/../../contrib/prometheus-alerts.yml", env!("CARGO_MANIFEST_DIR"));
    if let Some(complaints) = promtool(&["check", "rules", &path], "") {
        assert_eq!(complaints, "", "promtool complains");
    }
}
