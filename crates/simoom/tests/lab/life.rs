//! A server's life: killed, ended, reloaded under load, idle.

use crate::common::{
    LISTEN, PATIENCE, Server, Stats, client, dig, dig_until, ip, nothing_attached, question_for, ticks,
};
use crate::web::connect;
use lab::{Host, Lab};
use rustix::process::Signal;
use std::{
    collections::HashSet,
    fs,
    io::{ErrorKind, Read, Write},
    net::UdpSocket,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Nobody at UDP port 53: the kernel says so.
fn refused_by_the_kernel(host: &Host, at: &str) -> bool {
    let any = if at.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
    let socket = host.inside(|| UdpSocket::bind(any).unwrap());
    socket.connect(at).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    socket.send(&question_for("www.example.com", 1, 1)).unwrap();
    socket.recv(&mut [0; 512]).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

fn as_it_was(lab: &Lab) {
    nothing_attached(lab);
    for (at, ping) in [("198.18.0.1:53", "198.18.0.1"), ("[2001:db8:18::1]:53", "2001:db8:18::1")] {
        assert!(client(lab, &format!("ping -c 2 -i 0.2 -W 5 {ping}")).contains(" 2 received"));
        assert!(lab::wait_until(|| refused_by_the_kernel(lab.client(), at), PATIENCE), "{at}");
    }
}

#[test]
fn a_killed_server_leaves_the_interface_as_it_was() {
    let lab = Lab::new().unwrap();
    let mut server = Server::start(lab.server(), &LISTEN);
    dig_until(&lab, "@198.18.0.1 www.example.com A", "198.18.0.80");
    let before = lab.server().run(&["ip", "link", "show", "dev", "vs"]).unwrap();
    assert!(before.contains("xdp"), "{before}");
    server.process.signal(Signal::KILL);
    server.process.wait(PATIENCE).unwrap();
    as_it_was(&lab);
    // the control socket that it left is in nobody's way
    let control = server.control();
    assert!(control.exists());
    let again = Server::start(lab.server(), &LISTEN);
    dig_until(&lab, "@198.18.0.1 www.example.com A", "198.18.0.80");
    drop(again);
}

#[test]
fn a_server_told_to_end_cleans_up() {
    let lab = Lab::new().unwrap();
    for how in ["SIGTERM", "SIGINT", "ctl stop"] {
        let mut server = Server::start(lab.server(), &LISTEN);
        dig_until(&lab, "@2001:db8:18::1 www.example.com A", "198.18.0.80");
        match how {
            "SIGTERM" => server.process.signal(Signal::TERM),
            "SIGINT" => server.process.signal(Signal::INT),
            _ => assert!(server.ctl(&["stop"]).status.success()),
        }
        let status = server.process.wait(PATIENCE).unwrap();
        assert_eq!(status.code(), Some(0), "{how}: {}", server.process.log());
        assert!(!server.control().exists(), "{how}: the control socket stayed");
        as_it_was(&lab);
    }
}

/// A zone whose answers tell which version they are of, in each record.
fn version(number: usize) -> String {
    let strings: String = (0..8).map(|record| format!("www TXT \"{number}\" \"record {record}\"\n")).collect();
    // names that come and go with the version make the tables differ in more than values
    let names: String = (0..number % 7 * 50).map(|name| format!("n{name} A 192.0.2.1\n")).collect();
    format!(
        "$ORIGIN example.com.\n$TTL 60\n@ SOA ns h {} 1 1 1 1\n@ NS ns\nns A 198.18.0.1\n{strings}{names}",
        number + 1
    )
}

/// The version that all the TXT records of an answer are of.
fn version_of(answer: &[u8]) -> Result<usize, String> {
    let text: String =
        answer.iter().map(|&octet| if octet.is_ascii_graphic() { char::from(octet) } else { '\n' }).collect();
    if answer[3] & 15 != 0 || answer[6..8] != [0, 8] {
        return Err(format!("not eight records: {text}"));
    }
    let mut versions = HashSet::new();
    let mut at = 12 + 17 + 4;
    for _ in 0..8 {
        // a pointer as the owner, type, class, TTL, length of the data, then the first string
        let data = at + 12;
        let length = usize::from(answer[data]);
        let string = std::str::from_utf8(&answer[data + 1..data + 1 + length]).map_err(|error| error.to_string())?;
        versions.insert(string.parse::<usize>().map_err(|_| text.clone())?);
        at = data + usize::from(u16::from_be_bytes([answer[data - 2], answer[data - 1]]));
    }
    match versions.len() {
        1 => Ok(versions.into_iter().next().unwrap_or_default()),
        _ => Err(format!("of several versions: {versions:?}")),
    }
}

/// What a client saw that asked all the time.
#[derive(Debug, Default)]
struct Seen {
    asked: usize,
    versions: Vec<usize>,
}

/// How far a client is that asks all the time.
#[derive(Debug, Default)]
struct Progress {
    /// the version of its last answer
    version: AtomicUsize,
    asked: AtomicUsize,
}

/// Asks numbered questions until told to stop, a few on the way at a time; fails when one stays without its answer.
fn ask_on(socket: &UdpSocket, stop: &AtomicBool, progress: &Progress) -> Result<Seen, String> {
    const WINDOW: usize = 16;
    let mut seen = Seen::default();
    let mut open: HashSet<u16> = HashSet::new();
    let mut heard = Instant::now();
    while !stop.load(Ordering::Relaxed) || !open.is_empty() {
        while open.len() < WINDOW && !stop.load(Ordering::Relaxed) {
            let id = seen.asked as u16;
            assert!(open.insert(id), "number {id} is still on the way");
            socket.send(&question_for("www.example.com", 16, id)).map_err(|error| error.to_string())?;
            seen.asked += 1;
        }
        progress.asked.store(seen.asked, Ordering::Relaxed);
        let mut answer = [0; 1232];
        match socket.recv(&mut answer) {
            Ok(length) => {
                heard = Instant::now();
                let id = u16::from_be_bytes([answer[0], answer[1]]);
                if !open.remove(&id) {
                    return Err(format!("an answer to {id}, which is not open"));
                }
                let version = version_of(&answer[..length])?;
                if seen.versions.last() != Some(&version) {
                    seen.versions.push(version);
                }
                progress.version.store(version, Ordering::Relaxed);
            }
            Err(_) if heard.elapsed() > PATIENCE / 3 => return Err(format!("lost: {open:?} of {}", seen.asked)),
            Err(_) => {}
        }
    }
    Ok(seen)
}

#[test]
fn a_reload_under_load_loses_no_question_and_mixes_nothing() {
    let stats = reloaded_under_load(&["--tier", "xdp"]);
    assert_eq!(stats.by_the_driver(), 0);
}

#[test]
fn nor_does_one_while_the_driver_answers() {
    let stats = reloaded_under_load(&[]);
    let (driver, taken) = (stats.by_the_driver(), stats.taken());
    // between reloads the one, while they last the other
    assert!(driver > 100 && taken > 2, "{driver} by the driver, {taken} by AF_XDP");
}

/// Reloads while questions come; the counters at the end, when all is well.
fn reloaded_under_load(more: &[&str]) -> Stats {
    let lab = Lab::new().unwrap();
    let server = Server::start_for(lab.server(), &version(0), &[&LISTEN[..], more].concat());
    // the first frames after an attachment may find the link waiting
    dig_until(&lab, "@198.18.0.1 ns.example.com A", "198.18.0.1");
    dig_until(&lab, "@2001:db8:18::1 ns.example.com A", "198.18.0.1");
    let before = server.stats();
    let stop = Arc::new(AtomicBool::new(false));
    let progress = [(); 2].map(|()| Arc::new(Progress::default()));
    let clients: Vec<_> = [("0.0.0.0:0", "198.18.0.1:53"), ("[::]:0", "[2001:db8:18::1]:53")]
        .into_iter()
        .zip(&progress)
        .map(|((any, at), progress)| {
            let socket = lab.client().inside(|| UdpSocket::bind(any).unwrap());
            socket.connect(at).unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
            let (stop, progress) = (stop.clone(), progress.clone());
            thread::spawn(move || ask_on(&socket, &stop, &progress))
        })
        .collect();
    // one that has failed says why at the end
    let wait_for_clients = |come: &dyn Fn(&Progress) -> bool| {
        let come = || progress.iter().all(|one| come(one)) || clients.iter().any(thread::JoinHandle::is_finished);
        assert!(lab::wait_until(come, PATIENCE), "{progress:?}");
    };
    let last = 20;
    for number in 1..=last {
        thread::sleep(Duration::from_millis(100));
        // a rename, so that no half-written file is read
        let next = server.zone_file().with_extension("next");
        fs::write(&next, version(number)).unwrap();
        fs::rename(&next, server.zone_file()).unwrap();
        if number % 2 == 0 {
            server.process.signal(Signal::HUP);
            server.wait_until("no reload", |stats| stats.sum("reloads_total", &[("outcome", "done")]) == number as u64);
        } else {
            let out = server.ctl(&["reload"]);
            let said = String::from_utf8_lossy(&out.stdout).into_owned();
            assert!(out.status.success() && said.contains("reloaded 1 zone"), "{out:?}");
        }
        wait_for_clients(&|one| one.version.load(Ordering::Relaxed) >= number);
    }
    wait_for_clients(&|one| one.asked.load(Ordering::Relaxed) > 1000);
    thread::sleep(Duration::from_millis(200));
    stop.store(true, Ordering::Relaxed);
    let seen: Vec<Seen> = clients.into_iter().map(|client| client.join().unwrap().unwrap()).collect();
    for seen in &seen {
        assert!(seen.versions.is_sorted(), "an old answer after a new one: {seen:?}");
        assert_eq!(seen.versions.last(), Some(&last), "{seen:?}");
        assert!(seen.versions.len() >= last && seen.asked > 1000, "{seen:?}");
    }
    let stats = server.stats();
    let asked = seen.iter().map(|seen| seen.asked as u64).sum::<u64>();
    let questions = |stats: &Stats| stats.questions("udp", "4") + stats.questions("udp", "6");
    assert_eq!(questions(&stats) - questions(&before), asked, "{stats:?}");
    assert_eq!(stats.on_sockets(), 0);
    stats
}

#[test]
fn a_broken_zone_at_reload_keeps_the_old_one() {
    let lab = Lab::new().unwrap();
    let mut server = Server::start_for(lab.server(), &version(1), &LISTEN);
    let file = server.zone_file();
    let served = |number: usize| {
        dig_until(
            &lab,
            "@198.18.0.1 example.com SOA",
            &format!("ns.example.com. h.example.com. {} 1 1 1 1", number + 1),
        );
    };
    served(1);
    fs::write(&file, version(2).replace("ns A 198", "ns A x98")).unwrap();
    let out = server.ctl(&["reload"]);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(1), "{out:?}");
    assert!(said.contains(&format!("{}:5:", file.display())), "{said}");
    assert!(said.contains("old zones"), "{said}");
    served(1);

    fs::remove_file(&file).unwrap();
    server.process.signal(Signal::HUP);
    server.wait_for("cannot be read");
    server.wait_until("no failure", |stats| stats.sum("reloads_total", &[("outcome", "failed")]) == 2);
    served(1);
    let log = server.process.log();
    assert!(log.contains("not reloaded, the old zones go on serving"), "{log}");

    fs::write(&file, version(3)).unwrap();
    assert!(server.ctl(&["reload"]).status.success());
    served(3);
}

/// Until the server has used so many ticks (hundredths of a second, USER_HZ) at most in a time of this length, the fifth of them at last: what had
/// begun before may end, and the machine may be slow for a while.
fn within(server: &Server, most: u64, length: Duration, what: &str) {
    let mut used = Vec::new();
    let mut rests = || {
        let before = ticks(server.process.id());
        thread::sleep(length);
        used.push(ticks(server.process.id()) - before);
        used.last().is_some_and(|used| *used <= most)
    };
    assert!((0..5).any(|_| rests()), "{what}: {used:?} ticks in {length:?} each");
}

#[test]
fn an_idle_server_uses_less_than_a_hundredth_of_a_processor() {
    const SECONDS: u64 = 6;
    let lab = Lab::new().unwrap();
    let server = Server::start(lab.server(), &LISTEN);
    for _ in 0..20 {
        dig(&lab, "@198.18.0.1 www.example.com A");
    }
    // the adaptive policy spins a while after the last question
    thread::sleep(Duration::from_secs(1));
    // a tick is a hundredth of a second (USER_HZ)
    within(&server, SECONDS - 1, Duration::from_secs(SECONDS), "idle");
    dig_until(&lab, "@198.18.0.1 www.example.com A", "198.18.0.80");
}

#[test]
fn another_user_serves_follows_and_reloads() {
    let lab = Lab::new().unwrap();
    let args = ["--interface", "vs", "--listen", "0.0.0.0:53", "--user", "nobody"];
    let mut server = Server::start_for(lab.server(), &version(1), &args);
    let folder = server.zone_file().parent().unwrap().to_owned();
    fs::set_permissions(&folder, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    dig_until(&lab, "@198.18.0.1 ns.example.com A", "198.18.0.1");
    // the steering program is changed without any capability
    ip(lab.client(), "route add 198.51.100.7/32 via 198.18.0.1");
    ip(lab.server(), "addr add 198.51.100.7/32 dev lo");
    server.wait_for("addresses changed");
    let ours = server.stats().ours();
    dig_until(&lab, "@198.51.100.7 ns.example.com A", "198.18.0.1");
    assert!(server.stats().ours() > ours && server.stats().on_sockets() == 0, "{:?}", server.stats());
    fs::write(server.zone_file(), version(2)).unwrap();
    let out = server.ctl(&["reload"]);
    assert!(out.status.success(), "{out:?}");
    server.process.signal(Signal::TERM);
    assert_eq!(server.process.wait(PATIENCE).unwrap().code(), Some(0), "{}", server.process.log());
    nothing_attached(&lab);
}

#[test]
fn an_interface_that_goes_down_comes_back_and_one_that_goes_for_good_burns_nothing() {
    let lab = Lab::new().unwrap();
    let server = Server::start_with_web_and(lab.server(), "drain = 1\n");
    fs::write(server.zone_file().with_file_name("site").join("large"), vec![b'x'; 32 << 20]).unwrap();
    assert!(server.ctl(&["reload"]).status.success());
    let answered = || dig_until(&lab, "@198.18.0.1 www.example.com A", "198.18.0.80");
    let idle = |what: &str| {
        thread::sleep(Duration::from_secs(1));
        within(&server, 6, Duration::from_secs(3), what);
    };
    answered();
    for _ in 0..3 {
        ip(lab.server(), "link set vs down");
        ip(lab.server(), "link set vs up");
        let before = server.stats().ours();
        answered();
        assert!(server.stats().ours() > before && server.stats().on_sockets() == 0, "{:?}", server.stats());
    }
    // a client that waits for its answer, so that there is a timer
    let mut client = connect(&lab, "198.18.0.1:80").unwrap();
    client.write_all(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    client.read_exact(&mut [0; 1000]).unwrap();
    ip(lab.server(), "link set vs down");
    idle("down");
    ip(lab.server(), "link del vs");
    idle("gone");
    server.wait_until("it is known", |stats| stats.sum("xdp_carrier", &[]) == 0);
    // the connection goes on repeating what it has sent, to nobody, for longer than completions are waited for
    thread::sleep(Duration::from_secs(6));
    idle("gone for longer");
    let log = server.process.log();
    assert!(!log.contains("cannot be made anew"), "another socket was tried for: {log}");
    assert!(log.contains("vs: the interface is gone"), "{log}");
    let count = |line: &str| log.lines().filter(|said| said.contains(line)).count();
    assert!(count("vs: the interface is down") >= 1, "{log}");
    assert_eq!(count("vs: the interface is gone"), 1, "{log}");
    assert!(server.ctl(&["stop"]).status.success());
}
