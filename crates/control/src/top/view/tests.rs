use super::*;
use crate::top::reading::Reading;
use crate::top::recorded;
use serde_json::json;
use std::time::Duration;

/// A table as lines of cells.
fn rows(title: &str) -> Vec<Vec<String>> {
    let tables = tables(&recorded::change());
    let table = tables.iter().find(|table| table.title == title).unwrap_or_else(|| panic!("no {title}"));
    // wide enough for every column
    let text = |cell: &Cell| match cell {
        Cell::Text(text) | Cell::Number(_, text) => text.clone(),
        Cell::Nothing => "-".into(),
    };
    let heading = table.columns.clone();
    std::iter::once(heading).chain(table.rows.iter().map(|row| row.iter().map(text).collect())).collect()
}

fn cell(rows: &[Vec<String>], row: &str, column: &str) -> String {
    let at = rows[0].iter().position(|name| name == column).unwrap_or_else(|| panic!("no {column} in {:?}", rows[0]));
    let row = rows.iter().find(|cells| cells[0].starts_with(row)).unwrap_or_else(|| panic!("no {row} in {rows:?}"));
    row[at].clone()
}

#[test]
fn threads_have_what_is_known_of_each() {
    let rows = rows("Threads");
    for (column, zero, one) in [
        ("busy", "yes", "no"),
        ("backlog", "9", "0"),
        ("groups", "96", "32"),
        ("groups in/s", "-", "2"),
        ("groups out/s", "2", "-"),
        ("helped/s", "0", "32"),
        ("crossed/s", "0", "10"),
    ] {
        let found = (cell(&rows, "dataplane-0", column), cell(&rows, "dataplane-1", column));
        assert_eq!(found, (zero.to_owned(), one.to_owned()), "{column}");
    }
    // 40,000 frames in 1,000 bursts over two seconds; two threads were busy for three of four seconds
    assert_eq!(cell(&rows, "dataplane, all", "thread"), "dataplane, all, 75% busy, 25% asleep, 40 a batch");
    assert_eq!(cell(&rows, "dataplane, all", "in/s"), "20000");
    assert!(rows.iter().all(|row| row.len() == rows[0].len()), "{rows:?}");
}

#[test]
fn figures_of_threads_that_nobody_thought_of_have_columns() {
    let rows = rows("Threads");
    assert_eq!(cell(&rows, "dataplane-0", "loop"), "15.5 us");
    assert_eq!(cell(&rows, "dataplane-1", "loop"), "900 ns");
    // a counter of nanoseconds is a share
    assert_eq!(cell(&rows, "dataplane-0", "queue delay"), "25%");
}

#[test]
fn services_have_rates_and_errors() {
    let rows = rows("Services");
    let row = |name: &str| rows.iter().find(|row| row[0] == name).unwrap().join(" ");
    assert_eq!(row("dns"), "dns 515 507 2 3 - 2130");
    assert_eq!(row("web"), "web 101 101 1 - 2.00 MiB 303");
    // one that this was written without
    assert_eq!(row("gopher"), "gopher 1 - - - - 3");
    assert!(!rows.iter().any(|row| row[0] == "kv"));
}

#[test]
fn connections_are_told_apart_by_who_has_them() {
    let rows = rows("Connections");
    let row = |name: &str| rows.iter().find(|row| row[0] == name).unwrap().join(" ");
    assert_eq!(row("own stack"), "own stack 80 100 95 - 2 6 900");
    assert_eq!(row("kernel sockets"), "kernel sockets 4 5 4.5 0 - - 40");
    assert_eq!(row("dns"), "dns - 5 - 1 - - 15");
    assert_eq!(row("web"), "web 80 100 - - - - 900");
}

#[test]
fn what_is_being_lost_now_comes_first() {
    let rows = rows("Drops");
    let names: Vec<_> = rows[1..].iter().map(|row| (row[0].as_str(), row[2].as_str(), row[3].as_str())).collect();
    assert_eq!(
        names,
        [
            ("xdp_frames_dropped", "500", "1005"),
            ("dns_drops", "3", "6"),
            ("dns_connections_refused", "1", "2"),
            ("dns_drops", "0", "7")
        ]
    );
    assert_eq!(rows[1][1], "interface=eth0 queue=0 reason=receive ring full");
}

#[test]
fn times_are_shown_in_their_units() {
    assert_eq!(rows("Times")[1..], [["dataplane_nic_grace_microseconds", "", "250.0 us"].map(String::from)]);
}

#[test]
fn everything_is_among_all_figures() {
    let rows = rows("All figures");
    assert_eq!(rows.len() - 1, recorded::change().figures.len());
    assert_eq!(cell(&rows, "gopher", "per second"), "1");
}

#[test]
fn a_server_that_says_nothing_has_no_tables() {
    let reading = Reading::new(Duration::ZERO, serde_json::Value::Null, &json!({}));
    assert_eq!(tables(&Change::between(None, &reading)), []);
}

#[test]
fn without_a_reading_before_there_are_levels_and_no_rates() {
    let change = Change::between(None, &recorded::reading(1));
    let tables = tables(&change);
    let drops = tables.iter().find(|table| table.title == "Drops").unwrap();
    assert!(drops.rows.iter().all(|row| row[2] == Cell::Nothing && row[3] != Cell::Nothing));
}
