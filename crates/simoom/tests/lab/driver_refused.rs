//! A kernel that takes no more of the driver's answers: nothing is stale meanwhile, who reloads is told, and a reload mends it.

use crate::common::{LISTEN, PATIENCE, Server, ZONE};
use crate::driver::{ENDS, REACHED, asked, exchange, wait_for_the_wire};
use lab::Lab;
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::net::UdpSocket;

/// A map that a process has, by its name.
fn map_of(lab: &Lab, pid: u32, name: &str) -> Value {
    let files = fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap().map(|entry| entry.unwrap().path());
    let texts: Vec<String> = files.filter_map(|file| fs::read_to_string(file).ok()).collect();
    let ids = texts.iter().filter_map(|text| text.lines().find_map(|line| line.strip_prefix("map_id:")));
    let shown = |id: &str| lab.server().run(&["bpftool", "--json", "map", "show", "id", id.trim()]).unwrap();
    let mut maps = ids.map(|id| serde_json::from_str::<Value>(&shown(id)).unwrap());
    maps.find(|map| map["name"] == name).unwrap_or_else(|| panic!("no map {name}"))
}

/// Entries that nobody looks for: `map` command and key, each with a value or without.
fn junk(map: &Value, command: &str, count: u64) -> String {
    let octets = |field: &str| vec!["0xff"; map[field].as_u64().unwrap() as usize - 2].join(" ");
    let value = if command == "update" { format!(" value {} 0 0", octets("bytes_value")) } else { String::new() };
    let mut batch = String::new();
    for n in 0..count {
        let (id, key) = (&map["id"], octets("bytes_key"));
        writeln!(batch, "map {command} id {id} key {key} {} {}{value}", n & 255, n >> 8).unwrap();
    }
    batch
}

#[test]
fn what_the_kernel_refuses_is_told_and_the_next_reload_mends_it() {
    lab::require_programs(&["bpftool"]);
    let lab = Lab::with(&REACHED).unwrap();
    let server = Server::start(lab.server(), &[&LISTEN[..], &["--tier", "driver", "--driver-names", "16"]].concat());
    wait_for_the_wire(&lab);
    let socket = lab.client().inside(|| UdpSocket::bind(ENDS[0].0).unwrap());
    socket.connect(ENDS[0].1).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    // the last octet of the address of www, and whether the driver said so
    let www = |id: u16| {
        let before = server.stats().by_the_driver();
        let answer = exchange(&socket, &asked("www.example.com", 1, None, id));
        (*answer.last().unwrap(), server.stats().by_the_driver() - before)
    };
    let rewrite = |last: u8| {
        let next = server.zone_file().with_extension("next");
        fs::write(&next, ZONE.replace("198.18.0.80", &format!("198.18.0.{last}"))).unwrap();
        fs::rename(&next, server.zone_file()).unwrap();
        server.ctl(&["reload"])
    };
    assert_eq!(www(1), (80, 1));
    let map = map_of(&lab, server.process.id(), "short_answers");
    let batch = server.zone_file().with_extension("batch");
    let run = |text: String| {
        fs::write(&batch, text).unwrap();
        lab.server().run(&["bpftool", "batch", "file", batch.to_str().unwrap()])
    };
    let most = map["max_entries"].as_u64().unwrap() + 1;
    let fill = || assert!(run(junk(&map, "update", most)).is_err(), "it took {most}");
    fill();

    let reload = rewrite(81);
    let said = String::from_utf8_lossy(&reload.stderr).into_owned();
    assert_eq!(reload.status.code(), Some(1), "{said}");
    assert!(said.contains("the driver answers less than it could until a reload mends that"), "{said}");
    assert_eq!(www(2), (81, 0));
    // what the old answers took
    fill();
    // that nothing has changed since is no reason to leave it so, nor to say that all is well
    assert_eq!(server.ctl(&["reload"]).status.code(), Some(1));
    assert_eq!(www(3), (81, 0));

    let _ = run(junk(&map, "delete", most));
    let reload = server.ctl(&["reload"]);
    assert!(reload.status.success(), "{reload:?}");
    assert_eq!(www(4), (81, 1));
    assert!(rewrite(82).status.success());
    assert_eq!(www(5), (82, 1));
}
