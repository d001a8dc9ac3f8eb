//! A running `simoom` and a minimal DNS client.

#![allow(dead_code, unreachable_pub, reason = "each test file is a crate of its own and uses a part")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Far beyond what anything here takes on a busy machine; only a failure waits so long.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub const ZONE: &str =
    "$ORIGIN example.com.\n$TTL 3600\n@ SOA ns host 1 2 3 4 5\n@ NS ns\nns A 192.0.2.1\nwww A 192.0.2.2\n";

pub fn simoom() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_simoom"));
    command.env_remove("NOTIFY_SOCKET").env_remove("WATCHDOG_USEC").env("SIMOOM_LOG", "info").stdin(Stdio::null());
    command
}

/// Runs the command to its end.
pub fn run(args: &[&str]) -> Output {
    simoom().args(args).output().unwrap()
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A port that was free a moment ago, over UDP and TCP.
pub fn free_port() -> u16 {
    // below those that the kernel gives to clients (ip_local_port_range), one of which may take a free one before the server does
    const FIRST: u32 = 10_000;
    const COUNT: u32 = 20_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // looked up rather than tried: a socket of ours may live on for a while in what another thread forks
    let taken: String = ["tcp", "tcp6", "udp", "udp6"]
        .map(|table| std::fs::read_to_string(format!("/proc/thread-self/net/{table}")).unwrap_or_default())
        .concat();
    for _ in 0..COUNT {
        let next = NEXT.fetch_add(1, Ordering::Relaxed).wrapping_add(std::process::id().wrapping_mul(97));
        let port = (FIRST + next % COUNT) as u16;
        if !taken.contains(&format!(":{port:04X} ")) {
            return port;
        }
    }
    panic!("no port is free over both UDP and TCP");
}

/// A folder with a zone in it.
pub struct Place(pub TempDir);

impl Place {
    pub fn new() -> Place {
        let place = Place(tempfile::tempdir().unwrap());
        place.write("example.zone", ZONE);
        place
    }

    pub fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    pub fn write(&self, name: &str, text: &str) {
        // whole or not at all, as an operator's tools do
        let new = self.0.path().join(format!("{name}.new"));
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, self.0.path().join(name)).unwrap();
    }

    pub fn zone(&self, www: &str) {
        self.write("example.zone", &ZONE.replace("192.0.2.2", www));
    }
}

/// A server that is ended with the test.
pub struct Server {
    child: Child,
    pub address: SocketAddr,
    pub control: PathBuf,
    log: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// Serves `place`'s zone on a free port; ready when this returns.
    pub fn start(place: &Place, more: &[&str]) -> Server {
        Server::start_with(place, more, |_| {})
    }

    pub fn start_with(place: &Place, more: &[&str], prepare: impl Fn(&mut Command)) -> Server {
        Server::start_service(place, &["dns", &place.path("example.zone")], more, prepare)
    }

    /// Serves what `service` says: on a free port, or as a configuration file says.
    pub fn start_service(place: &Place, service: &[&str], more: &[&str], prepare: impl Fn(&mut Command)) -> Server {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let control = place.path("control");
        let mut command = simoom();
        command.args(service);
        if service[0] == "serve" {
            let config = service.last().unwrap();
            let text = std::fs::read_to_string(config).unwrap();
            std::fs::write(config, format!("{text}[control]\npath = \"{control}\"\n")).unwrap();
        } else {
            command.args(["--listen", &address.to_string(), "--control", &control]);
        }
        command.args(more);
        prepare(&mut command);
        Server::spawn(command, address, control.into())
    }

    /// Serves what a configuration file says that has `place`'s control socket.
    pub fn start_config(place: &Place, config: &str) -> Server {
        let mut command = simoom();
        command.args(["serve", "--config", config]);
        Server::spawn(command, SocketAddr::from(([127, 0, 0, 1], 0)), place.path("control").into())
    }

    fn spawn(mut command: Command, address: SocketAddr, control: PathBuf) -> Server {
        command.stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let (lines, shared) = (BufReader::new(child.stderr.take().unwrap()).lines(), log.clone());
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| shared.lock().unwrap().push(line)));
        let server = Server { child, address, control, log };
        server.wait_for_log("serving on");
        server
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    pub fn wait_for_log(&self, part: &str) {
        until(|| self.log().iter().any(|line| line.contains(part)), || format!("no `{part}` in {:#?}", self.log()));
    }

    pub fn ctl(&self, args: &[&str]) -> Output {
        run(&[&["ctl", "--control", self.control.to_str().unwrap()], args].concat())
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.pid() as i32).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// The exit status, once it ends by itself.
    pub fn end(&mut self) -> ExitStatus {
        let mut status = None;
        until(
            || {
                status = self.child.try_wait().unwrap();
                status.is_some()
            },
            || "it does not end".into(),
        );
        status.unwrap()
    }

    /// The value of a metric, with its labels as `ctl stats` shows them.
    pub fn stat(&self, name: &str) -> u64 {
        self.stat_if_any(name).unwrap_or_else(|| panic!("no {name} in {}", text(&self.ctl(&["stats"]).stdout)))
    }

    /// That, where there is one, and a server that tells.
    pub fn stat_if_any(&self, name: &str) -> Option<u64> {
        let text = text(&self.ctl(&["stats"]).stdout);
        let line = text.lines().find(|line| line.rsplit_once(' ').is_some_and(|(key, _)| key.trim_end() == name))?;
        Some(line.split_whitespace().last()?.parse().unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // it may have ended; the child is ours, so the number is too
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until something is true.
pub fn until(mut is: impl FnMut() -> bool, otherwise: impl Fn() -> String) {
    let deadline = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < deadline, "{}", otherwise());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A question for the A record of `name`.
pub fn question(id: u16, name: &str) -> Vec<u8> {
    let mut message = id.to_be_bytes().to_vec();
    message.extend([0, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in name.split('.').filter(|label| !label.is_empty()) {
        message.push(label.len() as u8);
        message.extend(label.bytes());
    }
    message.extend([0, 0, 1, 0, 1]);
    message
}

/// The RCODE and the last address of an answer; it must be one to the question `id`.
pub fn read_answer(id: u16, answer: &[u8]) -> (u8, Option<[u8; 4]>) {
    assert_eq!(answer[..2], id.to_be_bytes());
    assert_eq!(answer[2] & 0x80, 0x80, "not an answer");
    let answers = u16::from_be_bytes([answer[6], answer[7]]);
    let address = (answers > 0).then(|| *answer.last_chunk::<4>().unwrap());
    (answer[3] & 15, address)
}

/// Asks over UDP once; panics without an answer.
pub fn ask(server: SocketAddr, name: &str) -> (u8, Option<[u8; 4]>) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.connect(server).unwrap();
    socket.send(&question(7, name)).unwrap();
    let mut answer = [0; 4096];
    let bytes = lab::patiently(|| socket.recv(&mut answer)).unwrap();
    read_answer(7, &answer[..bytes])
}

/// Asks over TCP.
pub fn ask_tcp(server: SocketAddr, name: &str) -> (u8, Option<[u8; 4]>) {
    let mut stream = TcpStream::connect(server).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let question = question(9, name);
    stream.write_all(&(question.len() as u16).to_be_bytes()).unwrap();
    stream.write_all(&question).unwrap();
    let mut length = [0; 2];
    stream.read_exact(&mut length).unwrap();
    let mut answer = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut answer).unwrap();
    read_answer(9, &answer)
}

/// The fields of every thread's status.
pub fn thread_status(pid: u32, field: &str) -> Vec<String> {
    let mut values = Vec::new();
    for task in std::fs::read_dir(Path::new("/proc").join(pid.to_string()).join("task")).unwrap() {
        // one that has just ended has none
        let Ok(status) = std::fs::read_to_string(task.unwrap().path().join("status")) else { continue };
        let value = status.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_default();
        values.push(value.trim_start_matches(':').trim().to_owned());
    }
    values
}
