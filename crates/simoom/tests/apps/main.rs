//! Applications in processes of their own: what such a process may do, what becomes of its connections when it is killed, and a program in
//! C.

mod bounds;
#[path = "../common/mod.rs"]
mod common;

use common::{PATIENCE, Place, Server, run, text, until};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread::JoinHandle;
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
    // whoever starts the server leaves one open
    let left_open = rustix::fs::open("/", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty()).unwrap();
    for placement in ["same", "cpu=0"] {
        let server = Server::start_service(&place, &["kv", "--cpus", "0"], &["--place", placement], |_| {});
        let of_server = std::fs::read_link(format!("/proc/{}/fd/{}", server.pid(), left_open.as_raw_fd()));
        assert_eq!(of_server.unwrap(), Path::new("/"), "the server was not started with it");
        let pids = processes(&server);
        let &[pid] = &pids[..] else { panic!("{pids:?}: {:#?}", server.log()) };
        let status = status(pid);
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
            assert_eq!(u64::from_str_radix(&field(&status, set), 16), Ok(0), "{set} of {status}");
        }
        let keeper = self::status(field(&status, "PPid:").parse().unwrap());
        for set in ["CapPrm:", "CapBnd:"] {
            // to kill, to become another user, to bound what it has, a network namespace (capabilities(7))
            let kept = 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 21;
            let has = u64::from_str_radix(&field(&keeper, set), 16).unwrap();
            assert!(has & !kept == 0, "{set} of {keeper}");
        }
        assert_eq!((field(&status, "NoNewPrivs:"), field(&status, "Seccomp:")), ("1".into(), "2".into()));
        assert_eq!(field(&status, "Uid:"), "65534\t65534\t65534\t65534");
        let namespace = |pid: &str, of: &str| std::fs::read_link(format!("/proc/{pid}/ns/{of}")).unwrap();
        for of in ["net", "user", "ipc"] {
            assert_ne!(namespace(&pid.to_string(), of), namespace("self", of));
        }
        assert!(!server.log().iter().any(|line| line.contains(" has no ")), "{:#?}", server.log());
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

/// How often the gate kills; `SIMOOM_KILLS=1000 cargo test --release -p simoom --test apps killed` kills a thousand times, in some twenty minutes.
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
        if kills() > 10 {
            // one that ends within a second is started again later and later
            std::thread::sleep(Duration::from_secs(1));
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
fn one_that_cannot_be_started_now_is_started_later() {
    let place = Place::new();
    let server = Server::start_service(&place, &["kv", "--cpus", "0"], &["--place", "same"], |_| {});
    let pid = processes(&server)[0];
    let keeper = rustix::process::Pid::from_raw(field(&status(pid), "PPid:").parse().unwrap());
    let descriptors = |most| {
        let limit = rustix::process::Rlimit { current: Some(most), maximum: Some(1024) };
        rustix::process::prlimit(keeper, rustix::process::Resource::Nofile, limit).unwrap();
    };
    // as if somebody else had filled a table
    descriptors(3);
    kill(pid);
    server.wait_for_log("it cannot be started: Too many open files; it is started again in ");
    descriptors(1024);
    until(|| processes(&server).len() == 2, || format!("it is not started again: {:#?}", server.log()));
    let mut stream = connect(server.address);
    assert_eq!(ask(&mut stream, b"set a 0 0 3\r\nabc\r\n", 8).unwrap(), b"STORED\r\n");
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
    let (code, said) =
        ends(&["kv-app", "--memory-bytes", "1", "--item-bytes", "1", "--connections", "1", "--send-timeout-s", "1"]);
    assert!(code == Some(2) && said.contains("started by a server"), "{said}");
}

/// Builds something of the workspace beside this test; the folder that it is in.
fn build(what: &[&str]) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    // beside this test's own folder: target/debug or target/release
    let target = Path::new(env!("CARGO_BIN_EXE_simoom")).parent().unwrap();
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--locked"]).args(what).arg("--target-dir").arg(target.parent().unwrap()).current_dir(&root);
    if target.ends_with("release") {
        build.arg("--release");
    }
    assert!(build.status().unwrap().success());
    target.to_owned()
}

/// Lets an application's user reach what is in a folder.
fn open(folder: &Path) {
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder, open).unwrap();
}

/// Builds the library and an example in C.
fn in_c(name: &str, folder: &Path) -> PathBuf {
    compiled(&Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../libsimoom/examples/{name}.c")), folder)
}

/// Builds the library and a program in C.
fn compiled(source: &Path, folder: &Path) -> PathBuf {
    let (root, target) = (Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."), build(&["-p", "libsimoom"]));
    let program = folder.join(source.file_stem().unwrap());
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-I"]).arg(root.join("crates/libsimoom/include"));
    gcc.arg("-o").arg(&program).arg(source).arg(target.join("liblibsimoom.a"));
    assert!(gcc.args(["-lpthread", "-ldl", "-lm"]).status().unwrap().success());
    open(folder);
    program
}

/// Waits for clients; when one of them has failed, what the server says of its application's connections is the first to look at.
fn all_end_well(server: &Server, clients: Vec<JoinHandle<()>>) {
    let failed = clients.into_iter().map(JoinHandle::join).filter(Result::is_err).count();
    let stats = || -> Vec<String> {
        let stats = text(&server.ctl(&["stats"]).stdout);
        stats.lines().filter(|line| line.contains("app_")).map(str::to_owned).collect()
    };
    assert_eq!(failed, 0, "{:#?}\n{:#?}", stats(), server.log());
}

#[test]
fn a_program_in_c_echoes_over_tcp_and_udp() {
    let place = Place::new();
    let program = in_c("echo", place.0.path());
    for (placement, threads) in [("same", "0"), ("cpu=0", "0"), ("same", "0,1"), ("cpu=0", "0,1")] {
        let more = ["--place", placement, "--cpus", threads, "--", program.to_str().unwrap()];
        let server = Server::start_service(&place, &["run"], &more, |_| {});
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        udp.set_read_timeout(Some(PATIENCE)).unwrap();
        // what it would send to itself it does not answer
        let itself = UdpSocket::bind(("127.0.0.2", server.address.port())).unwrap();
        itself.send_to(b"ball", server.address).unwrap();
        for n in 0..100usize {
            let question: Vec<u8> = (0..n * 14).map(|at| (at * 7 + n) as u8).collect();
            udp.send_to(&question, server.address).unwrap();
            let mut answer = [0; 2000];
            let (bytes, from) = lab::patiently(|| udp.recv_from(&mut answer)).unwrap();
            assert_eq!((&answer[..bytes], from), (&question[..], server.address));
        }
        itself.set_nonblocking(true).unwrap();
        assert!(itself.recv(&mut [0; 10]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock));
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
        all_end_well(&server, streams.collect());
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
        let (bytes, _) = lab::patiently(|| udp.recv_from(&mut answer)).unwrap();
        assert_eq!(answer[..bytes], n.to_be_bytes());
    }
    assert!(server.stat("app_calls_total  application=echo") >= 200);
}

/// A server of the kernel's: `work` gets each connection, in a thread of its own.
fn served_by(work: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let work = Arc::new(work);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, work) = (stream.unwrap(), work.clone());
            std::thread::spawn(move || work(stream));
        }
    });
    at
}

/// Says backwards what it hears, when it has heard all.
fn backwards(mut stream: TcpStream) {
    let mut heard = Vec::new();
    // who is cut off has nothing to hear
    if stream.read_to_end(&mut heard).is_ok() {
        heard.reverse();
        let _ = stream.write_all(&heard);
    }
}

/// What is said comes back backwards through whatever carries it.
fn is_carried(address: SocketAddr, bytes: usize, seed: usize) {
    let said: Vec<u8> = (0..bytes).map(|at| (at * 31 + at / 253 + seed) as u8).collect();
    let mut stream = connect(address);
    stream.write_all(&said).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard).unwrap();
    assert!(heard.iter().eq(said.iter().rev()), "{} bytes of {bytes}", heard.len());
}

/// A proxy that connects where it may, and tells its client when it may not or when nobody is there.
fn proxies(program: &str, arguments: impl Fn(SocketAddr) -> Vec<String>) {
    let place = Place::new();
    let name = Path::new(program).file_name().unwrap().to_str().unwrap().to_owned();
    let to = served_by(backwards);
    let start = |placement: &str, to: SocketAddr, permits: &[String]| {
        let mut more: Vec<String> = ["--place", placement, "--cpus", "0"].map(str::to_owned).to_vec();
        more.extend(permits.iter().flat_map(|permit| ["--connect".to_owned(), permit.clone()]));
        more.extend(["--".to_owned(), program.to_owned()]);
        more.extend(arguments(to));
        let more: Vec<&str> = more.iter().map(String::as_str).collect();
        Server::start_service(&place, &["run"], &more, |_| {})
    };
    for placement in ["same", "cpu=0"] {
        let server = start(placement, to, &[format!("127.0.0.0/8:{}", to.port())]);
        let address = server.address;
        let clients = (0..6).map(|n| std::thread::spawn(move || is_carried(address, 1 + n * 400_000, n)));
        all_end_well(&server, clients.collect());
        let stat = |what: &str| server.stat(&format!("{what}  application={name}"));
        assert_eq!(stat("app_connects_total"), 6);
        until(|| stat("app_connections") == 0, || "connections are left".into());
        // who resets takes the other side along
        let reset = connect(address);
        rustix::net::sockopt::set_socket_linger(&reset, Some(Duration::ZERO)).unwrap();
        until(|| stat("app_connections") == 2, || "it is not carried".into());
        drop(reset);
        until(|| stat("app_connections") == 0, || "a half is left".into());
        assert_eq!(processes(&server).len(), 1, "{:#?}", server.log());
    }
    let cut_off = |server: &Server| {
        let mut stream = connect(server.address);
        let ended = stream.read(&mut [0]);
        assert!(matches!(ended, Ok(0)) || ended.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset));
        until(|| server.stat(&format!("app_connections  application={name}")) == 0, || "one is left".into());
        assert_eq!(processes(server).len(), 1, "{:#?}", server.log());
    };
    // nobody is permitted, and somebody else
    for permits in [vec![], vec![format!("127.0.0.1:{}", to.port() ^ 1)]] {
        let server = start("same", to, &permits);
        cut_off(&server);
        // what was never counted is not shown
        assert!(!text(&server.ctl(&["stats"]).stdout).contains("app_connects_total"));
    }
    // it may, and nobody is there
    let nobody = SocketAddr::from(([127, 0, 0, 1], common::free_port()));
    cut_off(&start("cpu=0", nobody, &["127.0.0.1:*".to_owned()]));
}

#[test]
fn a_program_in_c_connects_where_it_may() {
    let place = Place::new();
    let program = in_c("proxy", place.0.path());
    proxies(program.to_str().unwrap(), |to| vec![to.ip().to_string(), to.port().to_string()]);
}

#[test]
fn one_that_blocks_is_held_up_and_then_cut_off_on_both_sides() {
    let place = Place::new();
    let program = in_c("proxy", place.0.path());
    let (says, said) = std::sync::mpsc::channel();
    let to = served_by(move |mut stream| {
        let _ = says.send(stream.read_to_end(&mut Vec::new()).is_ok());
    });
    let (ip, port) = (to.ip().to_string(), to.port().to_string());
    for placement in ["same", "cpu=0"] {
        let more = ["--place", placement, "--cpus", "0", "--connect", "127.0.0.0/8:*"];
        let more = [&more[..], &["--app-slow-after", "20", "--app-reset-after", "600", "--"]].concat();
        let more = [&more[..], &[program.to_str().unwrap(), &ip, &port]].concat();
        let server = Server::start_service(&place, &["run"], &more, |_| {});
        let pid = rustix::process::Pid::from_raw(processes(&server)[0]).unwrap();
        let signal = |signal| rustix::process::kill_process(pid, signal).unwrap();
        let connections = || server.stat("app_connections  application=proxy");
        let mut stream = connect(server.address);
        until(|| connections() == 2, || "it is not carried".into());
        signal(rustix::process::Signal::STOP);
        stream.write_all(b"is anybody there?").unwrap();
        // neither the one that came nor the one that it has asked for outlives its patience
        let reset = stream.read_to_end(&mut Vec::new());
        assert!(reset.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset));
        assert!(!said.recv_timeout(PATIENCE).unwrap());
        assert_eq!(server.stat("app_drops_total  application=proxy  reason=stuck"), 2);
        assert!(server.stat("app_unresponsive_total  application=proxy") >= 1);
        // and whose fault it was the log says
        let says =
            |words: &str| server.log().iter().any(|line| line.contains("application proxy: ") && line.contains(words));
        until(|| says("it took no event for 20 ms and more"), || format!("{:#?}", server.log()));
        until(
            || says("it took no event for 600 ms, and its connections were reset (2)"),
            || format!("{:#?}", server.log()),
        );
        // it hears of that when it goes on, and serves who comes then
        signal(rustix::process::Signal::CONT);
        until(|| connections() == 0, || "connections are left".into());
        until(|| says("it takes events again, after "), || format!("{:#?}", server.log()));
        let ask_again = || {
            let stream = connect(server.address);
            stream.set_nonblocking(true).unwrap();
            stream
        };
        let mut stream = ask_again();
        let goes_on = || {
            let open = stream.peek(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
            if !open {
                // who comes before it has taken its events is reset
                stream = ask_again();
            }
            connections() == 2
        };
        until(goes_on, || "it does not go on".into());
        stream.shutdown(Shutdown::Both).unwrap();
        assert!(said.recv_timeout(PATIENCE).unwrap());
        assert_eq!(processes(&server).len(), 1, "{:#?}", server.log());
    }
}

/// An example that runs on either engine, where an application's user can reach it.
fn example(name: &str, folder: &Path) -> PathBuf {
    let program = folder.join(name);
    lab::copy_file(&build(&["-p", "embed", "--example", name]).join("examples").join(name), &program);
    open(folder);
    program
}

#[test]
fn the_conveniences_are_the_same_in_a_process_of_its_own() {
    let place = Place::new();
    let program = example("proxy", place.0.path());
    proxies(program.to_str().unwrap(), |to| vec!["--to".to_owned(), to.to_string()]);
}

#[test]
fn datagrams_are_answered_now_later_from_threads_and_unasked() {
    let place = Place::new();
    let program = example("lookup", place.0.path());
    for (placement, permitted) in [("same", true), ("cpu=0", false)] {
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        udp.set_read_timeout(Some(PATIENCE)).unwrap();
        let permit = format!("127.0.0.1:{}", udp.local_addr().unwrap().port());
        let permits: &[&str] = if permitted { &["--connect", &permit] } else { &[] };
        let more = [&["--place", placement, "--cpus", "0"], permits, &["--", program.to_str().unwrap()]].concat();
        let server = Server::start_service(&place, &["run"], &more, |_| {});
        let hear = || {
            let mut answer = [0; 100];
            let (bytes, from) = lab::patiently(|| udp.recv_from(&mut answer)).unwrap();
            assert_eq!(from, server.address);
            text(&answer[..bytes])
        };
        let ask = |question: &str| {
            udp.send_to(question.as_bytes(), server.address).unwrap();
            hear()
        };
        assert!(ask("up").starts_with("running "));
        assert_eq!(ask("after 100"), "100 ms later\n");
        assert_eq!(ask("primes 100000"), "9592 primes\n");
        // the first of these answers, four more do not
        assert_eq!(ask("tick"), "tock\n");
        if permitted {
            (0..4).for_each(|_| assert_eq!(hear(), "tock\n"));
        }
        until(|| server.stat("app_alarms  application=lookup") == 0, || "alarms are left".into());
        if !permitted {
            // this is the next that comes
            assert!(ask("up").starts_with("running "));
        }
        assert_eq!(processes(&server).len(), 1, "{:#?}", server.log());
    }
}

#[test]
fn what_a_service_counts_in_a_process_of_its_own_is_shown_as_if_it_ran_inside() {
    let place = Place::new();
    let inside = Server::start_service(&place, &["kv", "--cpus", "0"], &[], |_| {});
    let names = |server: &Server| -> Vec<String> {
        let stats: serde_json::Value = serde_json::from_slice(&server.ctl(&["stats", "--json"]).stdout).unwrap();
        let names = stats["metrics"].as_array().unwrap().iter().filter_map(|metric| metric["name"].as_str());
        names.filter(|name| name.starts_with("kv_")).map(str::to_owned).collect()
    };
    let expected = names(&inside);
    assert!(expected.len() > 30, "{expected:?}");
    drop(inside);
    for placement in ["same", "cpu=0"] {
        let server = Server::start_service(&place, &["kv", "--cpus", "0"], &["--place", placement], |_| {});
        assert_eq!(names(&server), expected);
        let mut stream = connect(server.address);
        assert_eq!(ask(&mut stream, b"set a 0 0 3\r\nabc\r\n", 8).unwrap(), b"STORED\r\n");
        assert_eq!(ask(&mut stream, b"get a b\r\n", 23).unwrap(), b"VALUE a 0 3\r\nabc\r\nEND\r\n");
        for (name, value) in [
            ("kv_get_hits_total", 1),
            ("kv_get_misses_total", 1),
            ("kv_stores_total", 1),
            ("kv_items", 1),
            ("kv_connections", 1),
            ("kv_memory_limit_bytes", 64 << 20),
        ] {
            until(|| server.stat(name) == value, || format!("{name} is {}, not {value}", server.stat(name)));
        }
        // a process begins at nothing
        kill(*processes(&server).last().unwrap());
        until(|| processes(&server).len() == 2, || format!("it is not started again: {:#?}", server.log()));
        let left = || ["kv_items", "kv_stores_total"].map(|name| server.stat(name));
        until(|| left() == [0, 0], || format!("what was counted is left: {:?}", left()));
    }
    let server = Server::start_service(&place, &["echo", "--cpus", "0"], &["--place", "same"], |_| {});
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    udp.set_read_timeout(Some(PATIENCE)).unwrap();
    udp.send_to(b"hello", server.address).unwrap();
    assert_eq!(udp.recv(&mut [0; 10]).unwrap(), 5);
    until(|| server.stat("echo_answers_total") == 1, || format!("{} answers", server.stat("echo_answers_total")));
}

/// An application with a thread that computes without end.
const BUSY: &str = r#"
#include <pthread.h>
#include <stddef.h>
#include "simoom.h"
static void *burn(void *nothing)
{
	for (volatile unsigned long n = 1; n; n++)
		;
	return nothing;
}
int main(void)
{
	static const struct simoom_service service;
	pthread_t thread;
	return pthread_create(&thread, NULL, burn, NULL) || simoom_run(&service, NULL, 0);
}
"#;

#[test]
fn applications_on_one_processor_divide_it_by_their_shares() {
    let place = Place::new();
    place.write("busy.c", BUSY);
    let program = compiled(Path::new(&place.path("busy.c")), place.0.path());
    let app = |name: &str, share: u32| {
        let (at, program) = (SocketAddr::from(([127, 0, 0, 1], common::free_port())), program.display());
        format!(
            "[[app]]\nname = \"{name}\"\nprogram = [\"{program}\"]\nlisten = [\"{at}\"]\nplace = \"cpu=0\"\nshare = {share}\n"
        )
    };
    let config = place.path("simoom.toml");
    std::fs::write(&config, format!("[dataplane]\ncpus = [0]\n{}{}", app("much", 8), app("little", 1))).unwrap();
    let server = Server::start_service(&place, &["serve", "--config", &config], &[], |_| {});
    let pids = processes(&server);
    assert_eq!(pids.len(), 2, "{:#?}", server.log());
    // the applications' part of fields 14 and 15, in ticks
    let ticks = |pid: i32| -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields = stat.rsplit_once(')').unwrap().1.split_whitespace().skip(11).take(2);
        fields.map(|field| field.parse::<u64>().unwrap()).sum()
    };
    let begun = [ticks(pids[0]), ticks(pids[1])];
    let since = || [ticks(pids[0]) - begun[0], ticks(pids[1]) - begun[1]];
    // little, since a machine that is busy gives both of them little
    until(|| since().iter().sum::<u64>() >= 60, || format!("{:?} ticks", since()));
    let [much, little] = since();
    // 1.25^9 is 7.5
    assert!(much > 4 * little && much < 16 * little, "{much} and {little} ticks");
}

/// Takes its memory without the library, so that it keeps what a program may do while it loads; when it is told of whom, it reaches for them.
const REACHING: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
static int opens(int pid, const char *what)
{
	char path[64];
	int fd;
	snprintf(path, sizeof path, "/proc/%d/%s", pid, what);
	if ((fd = open(path, O_RDONLY)) < 0)
		return 0;
	close(fd);
	return 1;
}
static int moves(int pid)
{
	cpu_set_t all;
	CPU_ZERO(&all);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		CPU_SET(cpu, &all);
	return sched_setaffinity(pid, sizeof all, &all) == 0;
}
int main(int argc, char **argv)
{
	int life, receive, transmit, bell, pid, reached = 0, others = 0;
	FILE *of = NULL;
	cpu_set_t has;
	char *words;
	if (argc < 2 || sscanf(getenv("SIMOOM_APP"), "4:%d:%d,%d,%d", &life, &receive, &transmit, &bell) != 4)
		return 1;
	words = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, transmit, 0);
	if (words == MAP_FAILED)
		return 2;
	atomic_store((_Atomic unsigned *)(words + 320), 1);
	while (!(of = fopen(argv[1], "r")))
		usleep(10000);
	sched_getaffinity(0, sizeof has, &has);
	while (fscanf(of, "%d", &pid) == 1) {
		char path[32];
		reached += opens(pid, "mem") + opens(pid, "maps") + opens(pid, "fd") + opens(pid, "environ");
		for (int fd = 0; fd < 32; fd++) {
			snprintf(path, sizeof path, "fd/%d", fd);
			reached += opens(pid, path);
		}
		others += moves(pid);
	}
	fprintf(stderr, "reached %d moved %d processors %d itself %d own %d\n", reached, others, CPU_COUNT(&has), moves(0), opens(getpid(), "maps"));
	for (;;)
		pause(), usleep(100000);
}
"#;

#[test]
fn applications_of_one_user_do_not_reach_each_other_nor_the_server_nor_other_processors() {
    let place = Place::new();
    place.write("reaching.c", REACHING);
    place.write("busy.c", BUSY);
    let [reaching, busy] = ["reaching.c", "busy.c"].map(|name| compiled(Path::new(&place.path(name)), place.0.path()));
    let whom = place.path("whom");
    let app = |name: &str, program: &str| {
        let at = SocketAddr::from(([127, 0, 0, 1], common::free_port()));
        format!("[[app]]\nname = \"{name}\"\nprogram = [{program}]\nlisten = [\"{at}\"]\nplace = \"cpu=0\"\n")
    };
    let config = place.path("simoom.toml");
    let [reaching, busy] = [
        app("reaching", &format!("\"{}\", \"{whom}\"", reaching.display())),
        app("busy", &format!("\"{}\"", busy.display())),
    ];
    std::fs::write(&config, format!("[dataplane]\ncpus = [0]\n{reaching}{busy}")).unwrap();
    let server = Server::start_service(&place, &["serve", "--config", &config], &[], |_| {});
    let pids = processes(&server);
    assert_eq!(pids.len(), 2, "{:#?}", server.log());
    let uid = |pid: i32| field(&status(pid), "Uid:");
    assert_eq!(uid(pids[0]), uid(pids[1]));
    // whole, or not there yet
    place.write("these", &format!("{}\n{}\n", pids[1], server.pid()));
    std::fs::rename(place.path("these"), &whom).unwrap();
    server.wait_for_log("reached 0 moved 0 processors 1 itself 0 own 1");
}
