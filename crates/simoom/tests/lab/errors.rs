//! What goes wrong at the start: one line with the mend, the right exit status, nothing left behind.

use crate::common::{
    PATIENCE, Server, ZONE, complaints, dig_until, ip, nothing_attached, refused, refused_through, zone,
};
use lab::Lab;
use std::fs;

const LISTEN: [&str; 4] = ["--interface", "vs", "--listen", "198.18.0.1:53"];

/// The command must refuse with this status and one line that holds all of `words`; nothing stays.
fn refuses(lab: &Lab, through: &[&str], args: &[&str], status: i32, words: &[&str]) {
    let (got, log) = refused_through(lab.server(), through, args);
    let lines = complaints(&log);
    let found = lines.len() == 1 && words.iter().all(|word| lines[0].contains(word));
    assert!(found && got == Some(status), "{args:?}: status {got:?}, not {status} with {words:?}:\n{log}");
    nothing_attached(lab);
}

#[test]
fn an_interface_that_cannot_be_had() {
    let lab = Lab::new().unwrap();
    let (_dir, zone) = zone(ZONE);
    let with =
        |more: &[&'static str]| -> Vec<String> { more.iter().map(ToString::to_string).chain([zone.clone()]).collect() };
    let refuses = |args: Vec<String>, words: &[&str]| {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        refuses(&lab, &[], &args, 1, words);
    };
    refuses(with(&["--interface", "nosuch0", "--listen", "198.18.0.1:53"]), &["no interface nosuch0", "--interface"]);
    refuses(
        with(&["--interface", "vs", "--listen", "198.18.0.1:53", "--mode", "zerocopy"]),
        &["zero-copy", "--mode auto"],
    );
    ip(lab.server(), "link set vs mtu 9000");
    refuses(with(&LISTEN), &["9000, is too large", "mtu"]);
    ip(lab.server(), "link set vs mtu 1500");
    ip(lab.server(), "link set vs down");
    refuses(with(&LISTEN), &["interface vs is down", "ip link set dev vs up"]);
}

#[test]
fn what_is_not_permitted_names_the_capability() {
    let lab = Lab::new().unwrap();
    let (_dir, zone) = zone(ZONE);
    let without = |missing: &str| format!("--bounding-set=-{}", missing.replace(' ', ",-"));
    for (missing, port, status, words) in [
        ("net_raw", 53, 1, &["CAP_NET_RAW"][..]),
        ("bpf sys_admin", 53, 1, &["CAP_BPF"]),
        ("net_admin sys_admin", 53, 1, &["CAP_NET_ADMIN"]),
        ("net_bind_service", 53, 1, &["CAP_NET_BIND_SERVICE"]),
        // nothing at all, as an ordinary user has it
        ("all", 5300, 1, &["CAP_"]),
    ] {
        let listen = format!("198.18.0.1:{port}");
        let args = ["--interface", "vs", "--listen", &listen, &zone];
        refuses(&lab, &["setpriv", &without(missing)], &args, status, words);
    }
    let driver = [&LISTEN[..], &["--tier", "driver", &zone]].concat();
    refuses(&lab, &["setpriv", &without("perfmon sys_admin")], &driver, 1, &["CAP_PERFMON;", "answers in the driver"]);
    // locked memory is asked of the limit where the capability to pass it is missing
    let through = ["prlimit", "--memlock=65536:65536", "setpriv", "--bounding-set=-ipc_lock,-sys_resource"];
    let args = [&LISTEN[..], &[&zone]].concat();
    refuses(&lab, &through, &args, 1, &["RLIMIT_MEMLOCK is 65536", "LimitMEMLOCK"]);
}

#[test]
fn what_the_unit_grants_is_enough() {
    let unit = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/simoom.service")).unwrap();
    let of = |name: &str| unit.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).unwrap();
    assert_eq!(of("AmbientCapabilities"), of("CapabilityBoundingSet"));
    let granted = of("AmbientCapabilities").to_lowercase().replace("cap_", "+").replace(' ', ",");
    // and with LimitMEMLOCK=infinity, which is not ours to raise here
    let bound = format!("--bounding-set=-all,{granted},+ipc_lock");
    let lab = Lab::new().unwrap();
    let (_dir, zone) = zone(ZONE);
    let mut command = lab.server().command("setpriv");
    command.args([&bound, env!("CARGO_BIN_EXE_simoom"), "dns", "--tier", "driver"]).args(LISTEN).arg(zone);
    let _server = Server::spawn(command);
    dig_until(&lab, "@198.18.0.1 www.example.com A", "198.18.0.80");
}

#[test]
fn another_program_and_a_taken_queue() {
    lab::require_programs(&["bpftool"]);
    let lab = Lab::new().unwrap();
    let (_dir, zone) = zone(ZONE);
    let first = Server::start(lab.server(), &LISTEN);
    let second = |words: &[&str]| {
        let args = ["--interface", "vs", "--listen", "198.18.0.1:5353", &zone];
        let (status, log) = refused(lab.server(), &args);
        let lines = complaints(&log);
        assert!(lines.len() == 1 && words.iter().all(|word| lines[0].contains(word)), "{log}");
        assert_eq!(status, Some(1), "{log}");
    };
    second(&["XDP program", "ip link show dev vs"]);
    // the first one goes on
    dig_until(&lab, "@198.18.0.1 www.example.com A", "198.18.0.80");
    // without its program its sockets still have the queues
    let json = |args: &[&str]| -> serde_json::Value { serde_json::from_str(&lab.server().run(args).unwrap()).unwrap() };
    let program = json(&["ip", "--json", "link", "show", "dev", "vs"])[0]["xdp"]["prog"]["id"].clone();
    let links = json(&["bpftool", "--json", "link", "list"]);
    let link = links.as_array().unwrap().iter().find(|link| link["prog_id"] == program);
    let id = link.unwrap_or_else(|| panic!("no link of program {program}: {links}"))["id"].to_string();
    lab.server().run(&["bpftool", "link", "detach", "id", &id]).unwrap();
    nothing_attached(&lab);
    second(&["queue 0 of vs is taken", "ss --xdp -p"]);
    drop(first);
    // and with the first one gone there is room
    let _again = Server::start(lab.server(), &LISTEN);
}

#[test]
fn bad_input_attaches_nothing() {
    let lab = Lab::new().unwrap();
    let (dir, good) = zone(ZONE);
    let file = dir.path().join("broken.zone");
    fs::write(&file, ZONE.replace("mail   A", "mail   AA").replace("NS    ns\n", "NS    ns\nns A nonsense\n")).unwrap();
    let broken = format!("example.com={}", file.display());
    let absent = format!("example.com={}", dir.path().join("absent.zone").display());
    let with = |zones: &[&str]| -> Vec<String> { LISTEN.iter().chain(zones).map(ToString::to_string).collect() };
    let ends_with = |status: i32, args: Vec<String>, words: &[&str]| {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        refuses(&lab, &[], &args, status, words);
    };
    let refuses = |args, words: &[&str]| ends_with(2, args, words);
    // what the machine may have otherwise later
    let refuses_for_now = |args, words: &[&str]| ends_with(1, args, words);
    refuses(with(&[&absent]), &["absent.zone", "cannot be read"]);
    refuses(with(&[&good, &good]), &["zone example.com. is given twice"]);
    refuses(with(&["--listen", "198.18.0.1:53", &good]), &["--listen: 198.18.0.1:53 is given twice"]);
    refuses_for_now(with(&["--listen", "198.18.0.9:53", &good]), &["198.18.0.9", "--own"]);

    // every error of a zone, each with its place
    let (status, log) = refused(lab.server(), &with(&[&broken]).iter().map(String::as_str).collect::<Vec<_>>());
    let lines = complaints(&log);
    assert!(status == Some(2) && lines.len() == 2, "{log}");
    assert!(lines.iter().all(|line| line.starts_with(&format!("{}:", file.display()))), "{log}");
    nothing_attached(&lab);

    for bind in ["udp", "tcp"] {
        let (udp, tcp);
        if bind == "udp" {
            udp = lab.server().inside(|| std::net::UdpSocket::bind("198.18.0.1:53").unwrap());
            refuses_for_now(with(&[&good]), &["198.18.0.1:53", "in use"]);
            drop(udp);
            let bound = || lab.server().inside(|| std::net::UdpSocket::bind("198.18.0.1:53").is_ok());
            assert!(lab::wait_until(bound, PATIENCE), "a process that another test starts has it for a moment");
        } else {
            tcp = lab.server().inside(|| std::net::TcpListener::bind("198.18.0.1:53").unwrap());
            refuses_for_now(with(&[&good]), &["198.18.0.1:53", "in use"]);
            drop(tcp);
            let bound = || lab.server().inside(|| std::net::TcpListener::bind("198.18.0.1:53").is_ok());
            assert!(lab::wait_until(bound, PATIENCE), "as above");
        }
    }
    // and with nothing in the way the same line starts
    let _server = Server::start(lab.server(), &LISTEN);
}
