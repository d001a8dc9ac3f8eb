//! Services in processes of their own, over AF_XDP: the packets' way is our own stack's, and the process has never seen a device.

use crate::common::{PATIENCE, Server, simoom};
use lab::{Lab, Options};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const AT: &str = "198.18.0.1";

#[test]
fn services_in_processes_of_their_own_answer_over_af_xdp() {
    lab::require();
    let lab = Lab::new().unwrap();
    for place in ["same", "cpu=1"] {
        let mut command = simoom(lab.server());
        command.args(["kv", "--interface", "vs", "--listen", "198.18.0.1:11211", "--place", place]);
        let server = Server::spawn(command);
        // values of a part of a segment and of many, whole lines of which are counted
        let script = "exec 3<>/dev/tcp/198.18.0.1/11211; \
                      for n in $(seq 50); do v=$(head -c $((n * 700)) /dev/zero | tr '\\0' x); printf 'set k%d 0 0 %d\\r\\n%s\\r\\n' $n ${#v} $v >&3; done; \
                      for n in $(seq 50); do printf 'get k%d\\r\\n' $n >&3; done; printf 'quit\\r\\n' >&3; cat <&3 | wc -cl";
        let counted = lab.client().run(&["timeout", "20", "bash", "-c", script]).unwrap();
        // STORED; VALUE, the value and END
        let expected: usize =
            (1..=50).map(|n: usize| 8 + format!("VALUE k{n} 0 {}\r\n", n * 700).len() + n * 700 + 2 + 5).sum();
        let counted: Vec<usize> = counted.split_whitespace().map(|number| number.parse().unwrap()).collect();
        assert_eq!(counted, [50 * 4, expected], "{place}");
        let stats = server.stats();
        assert!(stats.sum("app_calls_total", &[]) >= 100, "{place}");
        // a call may come for a connection that has ended meanwhile
        let late = stats.sum("app_rejects_total", &[("reason", "stale")]);
        assert_eq!(stats.sum("app_rejects_total", &[]), late, "{place}: {stats:?}");
        drop(server);

        let mut command = simoom(lab.server());
        command.args(["echo", "--interface", "vs", "--listen", "198.18.0.1:7", "--place", place]);
        let server = Server::spawn(command);
        let mut ping = simoom(lab.client());
        ping.args(["ping", "--json", "--timeout", "20000", AT, "--count", "200", "--size", "333", "--warm-up", "0"]);
        let output = ping.output().unwrap();
        let figures: serde_json::Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
        assert_eq!(
            (figures["answered"].as_u64(), figures["wrong"].as_u64()),
            (Some(200), Some(0)),
            "{place}: {figures}"
        );
        assert!(server.stats().sum("app_events_total", &[]) >= 200, "{place}");
    }
}

#[test]
fn threads_of_an_application_are_on_the_processors_of_those_that_they_serve() {
    lab::require();
    let lab = Lab::with(&Options { queues: 2, ..Options::default() }).unwrap();
    let mut command = simoom(lab.server());
    command.args(["echo", "--interface", "vs", "--listen", "198.18.0.1:7", "--cpus", "0,1", "--place", "same"]);
    let server = Server::spawn(command);
    let log = server.process.log();
    let pid = log.split(": process ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    let allowed = |task: &str| {
        let status = std::fs::read_to_string(format!("/proc/{task}/status")).unwrap();
        status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim().to_owned()
    };
    let tasks = || {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        let mut tasks: Vec<u32> = tasks.map(|it| it.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect();
        tasks.sort_unstable();
        tasks.iter().map(|task| allowed(&format!("{pid}/task/{task}"))).collect::<Vec<_>>()
    };
    // beside kernel sockets, whose thread runs anywhere: that one's first, in the process that has both; then each queue's
    let expected = [&allowed("self")[..], "0", "1"];
    assert!(lab::wait_until(|| tasks() == expected, PATIENCE), "{:?}", tasks());
}

/// An example of crate `embed`, where an application's user can reach it.
fn example(name: &str, folder: &Path) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    // beside this test's own folder: target/debug or target/release
    let target = Path::new(env!("CARGO_BIN_EXE_simoom")).parent().unwrap();
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--locked", "-p", "embed", "--example", name, "--target-dir"]).arg(target.parent().unwrap());
    if target.ends_with("release") {
        build.arg("--release");
    }
    assert!(build.current_dir(&root).status().unwrap().success());
    let program = folder.join(name);
    lab::copy_file(&target.join("examples").join(name), &program);
    std::fs::set_permissions(folder, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    program
}

/// A server at the client's side that sends back what it has heard, from behind; where it listens.
fn reverses(lab: &Lab, at: &str) -> SocketAddr {
    let listener = lab.client().inside(|| TcpListener::bind(at).unwrap());
    let to = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut heard = Vec::new();
                // who is cut off has nothing to hear
                if stream.read_to_end(&mut heard).is_ok() {
                    heard.reverse();
                    let _ = stream.write_all(&heard);
                }
            });
        }
    });
    to
}

/// A server beyond the link is reached by the router of the kernel's default route, and without one by nothing.
#[test]
fn an_application_connects_beyond_the_link_by_the_kernels_router() {
    lab::require();
    let lab = Lab::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let program = example("proxy", folder.path());
    lab.client().run(&["ip", "addr", "add", "203.0.113.9/32", "dev", "lo"]).unwrap();
    let to = reverses(&lab, "203.0.113.9:0");
    for has_route in [false, true] {
        if has_route {
            lab.server().run(&["ip", "route", "add", "default", "via", "198.18.0.2", "dev", "vs"]).unwrap();
        }
        let mut command = simoom(lab.server());
        command.args(["run", "--interface", "vs", "--own", "198.18.0.77/24", "--listen", "198.18.0.77:8080"]);
        command.args(["--connect", "203.0.113.0/24:*"]);
        let server = Server::spawn_program(command, &[program.to_str().unwrap(), "--to", &to.to_string()]);
        server.wait_until("no address", |stats| stats.sum("own_address_state", &[("address", "198.18.0.77")]) == 1);
        let heard = lab.client().inside(|| {
            let Ok(mut stream) = TcpStream::connect("198.18.0.77:8080") else { return Vec::new() };
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            let mut heard = Vec::new();
            // who is cut off hears nothing, and soon
            let _ = stream.write_all(b"abc").and_then(|()| stream.shutdown(Shutdown::Write));
            let ended = stream.read_to_end(&mut heard).map_err(|error| error.kind());
            assert_ne!(ended, Err(ErrorKind::WouldBlock), "neither served nor cut off");
            heard
        });
        assert_eq!(heard, if has_route { &b"cba"[..] } else { b"" }, "with a route: {has_route}");
    }
}

/// A proxy that has never seen a device, for a server that our own stack finds by ARP.
#[test]
fn an_application_connects_over_af_xdp_where_it_may() {
    lab::require();
    let lab = Lab::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let program = example("proxy", folder.path());
    let to = reverses(&lab, "198.18.0.2:0");
    for (place, permit, may) in [
        ("same", format!("198.18.0.0/24:{}", to.port()), true),
        ("cpu=1", "198.18.0.2:*".to_owned(), true),
        ("same", "198.18.0.3:*".to_owned(), false),
    ] {
        let mut command = simoom(lab.server());
        command.args(["run", "--interface", "vs", "--own", "198.18.0.77/24", "--listen", "198.18.0.77:8080"]);
        command.args(["--place", place, "--connect", &permit]);
        let server = Server::spawn_program(command, &[program.to_str().unwrap(), "--to", &to.to_string()]);
        server.wait_until("no address", |stats| stats.sum("own_address_state", &[("address", "198.18.0.77")]) == 1);
        let heard = lab.client().inside(|| {
            // who is cut off may see it as early as here
            let Ok(mut stream) = TcpStream::connect("198.18.0.77:8080") else { return (false, 0) };
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            let said: Vec<u8> = (0..500_000usize).map(|at| (at * 31 + at / 253) as u8).collect();
            let written = stream.write_all(&said).and_then(|()| stream.shutdown(Shutdown::Write));
            let mut heard = Vec::new();
            let ended = stream.read_to_end(&mut heard);
            heard.reverse();
            (written.is_ok() && ended.is_ok() && heard == said, heard.len())
        });
        assert_eq!(heard.0, may, "{place} {permit}: {} bytes", heard.1);
        server.wait_until("its connections end", |stats| stats.sum("app_connections", &[]) == 0);
        let stats = server.stats();
        assert_eq!(stats.sum("app_connects_total", &[]), u64::from(may), "{place} {permit}");
        // late calls for a connection that has just ended are refused as such
        let rejects = stats.sum("app_rejects_total", &[]) - stats.sum("app_rejects_total", &[("reason", "stale")]);
        assert_eq!(rejects, 0, "{place} {permit}");
    }
}
