//! Applications in processes of their own: what such a process may do, what becomes of its connections when it is killed, and a program in
//! C.

mod common;

use common::{PATIENCE, Place, Server, run, text, until};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// What is said to a question of `answer_bytes`; None when the connection has ended before.
fn ask(stream: &mut TcpStream, question: &[u8], answer_bytes: usize) -> Option<Vec<u8>> {
    stream.write_all(question).ok()?;
    let mut answer = vec![0; answer_bytes];
    stream.read_exact(&mut answer).ok()?;
    Some(answer)
}

/// The processes that an application has had, in their order.
fn processes(server: &Server) -> Vec<i32> {
    let of = |line: &String| line.split(": process ").nth(1)?.strip_suffix(" is there")?.parse().ok();
    server.log().iter().filter_map(of).collect()
}

fn status(pid: i32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap()
}

fn field(status: &str, name: &str) -> String {
    status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim().to_owned()
}

fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

fn kill(pid: i32) {
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), rustix::process::Signal::KILL).unwrap();
}

#[test]
fn an_application_has_no_privilege_and_no_network() {
    let place = Place::new();
    for placement in ["same", "cpu=0"] {
        let server = Server::start_service(&place, &["kv", "--cpus", "0"], &["--place", placement], |_| {});
        let pids = processes(&server);
        let &[pid] = &pids[..] else { panic!("{pids:?}: {:#?}", server.log()) };
        let status = status(pid);
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
            assert_eq!(u64::from_str_radix(&field(&status, set), 16), Ok(0), "{set} of {status}");
        }
        assert_eq!((field(&status, "NoNewPrivs:"), field(&status, "Seccomp:")), ("1".into(), "2".into()));
        assert_eq!(field(&status, "Uid:"), "65534\t65534\t65534\t65534");
        let network = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/net")).unwrap();
        assert_ne!(network(&pid.to_string()), network("self"));
        // the server's end of life and what it shares, and nothing of the server's
        let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
        for descriptor in open.map(|entry| entry.unwrap().path()) {
            let Ok(is) = std::fs::read_link(&descriptor) else { continue };
            let is = is.display().to_string();
            let shared = ["/dev/null", "/memfd:simoom-", "anon_inode:[eventfd]", "pipe:", "socket:"];
            assert!(shared.iter().any(|known| is.starts_with(known)), "{} is {is}", descriptor.display());
        }
        let mut stream = connect(server.address);
        assert_eq!(
            text(&ask(&mut stream, b"set a 0 0 3\r\nabc\r\nget a\r\n", 26).unwrap()),
            "STORED\r\nVALUE a 0 3\r\nabc\r\n"
        );
        // it ends with the server
        drop(server);
        until(|| !Path::new(&format!("/proc/{pid}")).exists(), || format!("process {pid} goes on"));
    }
}

/// How often the gate kills; `SIMOOM_KILLS=1000 cargo test --release -p simoom --test apps killed` kills a thousand times.
fn kills() -> usize {
    std::env::var("SIMOOM_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(4)
}

#[test]
fn one_that_is_killed_loses_its_connections_and_nothing_else() {
    let place = Place::new();
    let config = place.path("simoom.toml");
    let [kv, dns] = [common::free_port(), common::free_port()].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    let text = format!(
        "[dataplane]\ncpus = [0]\nlisten = [\"{dns}\"]\n[kv]\nlisten = [\"{kv}\"]\nplace = \"cpu=0\"\n[[dns.zone]]\nfile = \"{}\"\n",
        place.path("example.zone")
    );
    std::fs::write(&config, text).unwrap();
    let server = Server::start_service(&place, &["serve", "--config", &config], &[], |_| {});
    let before = descriptors(server.pid());
    for n in 1..=kills() {
        let mut streams: Vec<_> = (0..20).map(|_| connect(kv)).collect();
        for (m, stream) in streams.iter_mut().enumerate() {
            let set = format!("set k{m} 0 0 1000\r\n{}\r\n", "x".repeat(1000));
            assert_eq!(ask(stream, set.as_bytes(), 8).unwrap(), b"STORED\r\n");
        }
        // at whatever instruction it is, with requests under way
        let gets = "get k1 k2 k3 k4 k5 k6 k7 k8\r\n".repeat(n % 7 * 40);
        streams.iter_mut().for_each(|stream| drop(stream.write_all(gets.as_bytes())));
        std::thread::sleep(Duration::from_micros((n as u64 * 7919) % 3000));
        kill(*processes(&server).last().unwrap());
        for mut stream in streams {
            let mut rest = Vec::new();
            let ended = stream.read_to_end(&mut rest);
            assert!(ended.is_ok() || ended.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset));
        }
        // the other service has not noticed
        assert_eq!(common::ask(dns, "www.example.com"), (0, Some([192, 0, 2, 2])));
        until(|| processes(&server).len() == n + 1, || format!("it is not started again: {:#?}", server.log()));
        let mut stream = connect(kv);
        assert_eq!(ask(&mut stream, b"get k1\r\n", 5).unwrap(), b"END\r\n", "a new one has nothing of the old one's");
    }
    until(|| server.stat("app_connections  application=kv") == 0, || "connections are left".into());
    let label = |name: &str| server.stat(&format!("{name}  application=kv"));
    assert_eq!((label("app_held_bytes"), label("app_unsent_bytes"), label("app_pending_bytes")), (0, 0, 0));
    assert_eq!(label("app_lost_total"), kills() as u64);
    until(
        || descriptors(server.pid()) <= before,
        || format!("{} descriptors, not {before}", descriptors(server.pid())),
    );
}

#[test]
fn what_cannot_run_is_said() {
    let ends = |args: &[&str]| {
        let output = run(args);
        (output.status.code(), text(&output.stderr))
    };
    let at = format!("127.0.0.1:{}", common::free_port());
    let listen = ["--listen", at.as_str()];
    let (code, said) = ends(&[&["run"], &listen[..], &["--place", "inline", "--", "/bin/true"]].concat());
    assert_eq!(
        (code, said.as_str()),
        (Some(2), "simoom: --place inline: a program runs in a process of its own; give same or cpu=N\n")
    );
    let (code, said) = ends(&["run", "--", "/bin/true"]);
    assert_eq!((code, said.as_str()), (Some(2), "simoom: no listener; add --listen ADDR:PORT\n"));
    let (code, said) = ends(&[&["run"], &listen[..], &["--place", "cpu=x", "--", "/bin/true"]].concat());
    assert!(code == Some(2) && said.contains("`cpu=x` is none of inline, same, cpu=N"), "{said}");
    let place = Place::new();
    let control = ["--control", &place.path("control")];
    let (code, said) = ends(&[&["run"], &listen[..], &control, &["--", "/nowhere/program"]].concat());
    assert!(code == Some(1) && said.contains("/nowhere/program: No such file or directory"), "{said}");
    assert!(said.contains("application program: process") && said.contains("has ended: exit status 1"), "{said}");
    let (code, said) = ends(&[
        "kv-app",
        "--memory-bytes",
        "1",
        "--item-bytes",
        "1",
        "--connections",
        "1",
        "--send-timeout-s",
        "1",
        "--unix-at-zero-s",
        "1",
    ]);
    assert!(code == Some(2) && said.contains("started by a server"), "{said}");
}

/// Builds the library and the example in C.
fn c_echo(folder: &Path) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    // beside this test's own folder: target/debug or target/release
    let target = Path::new(env!("CARGO_BIN_EXE_simoom")).parent().unwrap();
    let mut build = Command::new(env!("CARGO"));
    build
        .args(["build", "--locked", "-p", "libsimoom", "--target-dir"])
        .arg(target.parent().unwrap())
        .current_dir(&root);
    if target.ends_with("release") {
        build.arg("--release");
    }
    assert!(build.status().unwrap().success());
    let program = folder.join("echo");
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-I"]).arg(root.join("crates/libsimoom/include"));
    gcc.arg("-o").arg(&program).arg(root.join("crates/libsimoom/examples/echo.c")).arg(target.join("liblibsimoom.a"));
    assert!(gcc.args(["-lpthread", "-ldl", "-lm"]).status().unwrap().success());
    program
}

#[test]
fn a_program_in_c_echoes_over_tcp_and_udp() {
    let place = Place::new();
    let program = c_echo(place.0.path());
    // the application's user has to reach it
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(place.0.path(), open).unwrap();
    for placement in ["same", "cpu=0"] {
        let more = ["--place", placement, "--cpus", "0", "--", program.to_str().unwrap()];
        let server = Server::start_service(&place, &["run"], &more, |_| {});
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        udp.set_read_timeout(Some(PATIENCE)).unwrap();
        for n in 0..100usize {
            let question: Vec<u8> = (0..n * 14).map(|at| (at * 7 + n) as u8).collect();
            udp.send_to(&question, server.address).unwrap();
            let mut answer = [0; 2000];
            let (bytes, from) = udp.recv_from(&mut answer).unwrap();
            assert_eq!((&answer[..bytes], from), (&question[..], server.address));
        }
        let streams = (0..8).map(|n| {
            let mut stream = connect(server.address);
            std::thread::spawn(move || {
                // more than any window, so that both sides wait for each other
                let text: Vec<u8> = (0..3_000_000usize).map(|at| (at * 31 + at / 253 + n) as u8).collect();
                let (said, mut writer) = (text.clone(), stream.try_clone().unwrap());
                let writing = std::thread::spawn(move || {
                    writer.write_all(&said).unwrap();
                    writer.shutdown(std::net::Shutdown::Write).unwrap();
                });
                let mut heard = Vec::new();
                stream.read_to_end(&mut heard).unwrap();
                writing.join().unwrap();
                assert!(heard == text, "{} bytes of {}", heard.len(), text.len());
            })
        });
        for stream in streams.collect::<Vec<_>>() {
            stream.join().unwrap();
        }
        let mut ended = processes(&server);
        assert_eq!(ended.len(), 1, "{:#?}", server.log());
        until(|| server.stat("app_connections  application=echo") == 0, || "connections are left".into());
        let pid = ended.pop().unwrap();
        server.signal(rustix::process::Signal::KILL);
        // told by the end of its life line, or killed by its keeper
        until(|| !Path::new(&format!("/proc/{pid}")).exists(), || format!("process {pid} goes on without its server"));
    }
}

#[test]
fn echo_in_a_process_of_its_own_answers_who_asks() {
    let place = Place::new();
    let server = Server::start_service(&place, &["echo", "--cpus", "0"], &["--place", "same"], |_| {});
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    udp.set_read_timeout(Some(PATIENCE)).unwrap();
    for n in 0..200u32 {
        udp.send_to(&n.to_be_bytes(), server.address).unwrap();
        let mut answer = [0; 100];
        let (bytes, _) = udp.recv_from(&mut answer).unwrap();
        assert_eq!(answer[..bytes], n.to_be_bytes());
    }
    assert!(server.stat("app_calls_total  application=echo") >= 200);
}
