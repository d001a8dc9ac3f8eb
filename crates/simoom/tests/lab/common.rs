//! What all these tests share: starting the command, asking it, reading its counters.

use lab::{CLIENT_V4, CLIENT_V6, Host, Lab, Process, SERVER_V4, SERVER_V6, frame, raw::Raw, zonegen::Question};
use serde_json::Value;
use std::{
    fs,
    net::{IpAddr, UdpSocket},
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
    time::Duration,
};
use tempfile::TempDir;

/// Ends waiting for what must happen; far above what it takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Where the lab's server listens when nothing else is said.
pub(crate) const LISTEN: [&str; 6] =
    ["--interface", "vs", "--listen", "198.18.0.1:53", "--listen", "[2001:db8:18::1]:53"];

/// A zone with something of everything that the tests ask for; `big` does not fit a datagram.
pub(crate) const ZONE: &str = r#"$ORIGIN example.com.
$TTL 300
@      SOA   ns hostmaster 1 7200 3600 1209600 60
       NS    ns
       MX    10 mail
ns     A     198.18.0.1
       AAAA  2001:db8:18::1
mail   A     198.18.0.25
www    A     198.18.0.80
       AAAA  2001:db8:18::80
alias  CNAME www
*.wild TXT   "a wildcard answers"
cut    NS    ns.cut
ns.cut A     198.18.0.53
$GENERATE 1-99 big TXT answer-$-to-a-question-that-takes-more-than-one-datagram
"#;

/// The command in a host.
pub(crate) fn simoom(host: &Host) -> Command {
    host.command(env!("CARGO_BIN_EXE_simoom"))
}

/// Work that leaves little of a processor to others. One test at a time takes one away: on a machine of two, the next one would have none
/// left to be helped by.
pub(crate) struct Hogs {
    _processes: Vec<Process>,
    _alone: RwLockWriteGuard<'static, ()>,
}

static HOGS: RwLock<()> = RwLock::new(());

impl Hogs {
    /// No other test has any for as long as this is kept: for one in which a thread without its processor is something else.
    pub(crate) fn none() -> RwLockReadGuard<'static, ()> {
        HOGS.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// So many programs, each of which ends by itself in any case.
    pub(crate) fn on(processor: usize, count: usize, niceness: i32) -> Hogs {
        let alone = HOGS.write().unwrap_or_else(PoisonError::into_inner);
        let hog = |_| {
            let mut command = Command::new("taskset");
            command.args(["-c", &processor.to_string(), "nice", "-n", &niceness.to_string()]);
            command.args(["sh", "-c", "ulimit -t 300; while :; do :; done"]);
            Process::spawn(command).unwrap()
        };
        Hogs { _processes: (0..count).map(hog).collect(), _alone: alone }
    }
}

fn scratch() -> TempDir {
    tempfile::Builder::new().prefix("simoom-itest-").tempdir().unwrap()
}

/// A folder with the zone in it, and the argument that serves it.
pub(crate) fn zone(text: &str) -> (TempDir, String) {
    let dir = scratch();
    let file = dir.path().join("example.com.zone");
    fs::write(&file, text).unwrap();
    (dir, format!("example.com={}", file.display()))
}

/// A running `simoom dns`; it ends with this value.
pub(crate) struct Server {
    pub(crate) process: Process,
    dir: TempDir,
}

impl Server {
    /// Starts the command for [`ZONE`] and waits until it serves.
    pub(crate) fn start(host: &Host, args: &[&str]) -> Self {
        Self::start_for(host, ZONE, args)
    }

    /// Starts the command for the text of example.com and waits until it serves.
    pub(crate) fn start_for(host: &Host, text: &str, args: &[&str]) -> Self {
        lab::require();
        let (dir, zone) = zone(text);
        let mut command = simoom(host);
        command.arg("dns").args(args).arg(zone);
        Self::run(command, dir)
    }

    /// Starts a command that takes `--control` and waits until it serves.
    pub(crate) fn spawn(command: Command) -> Self {
        Self::run(command, scratch())
    }

    /// The same of one that runs a program, whose command stands behind the options.
    pub(crate) fn spawn_program(mut command: Command, program: &[&str]) -> Self {
        let dir = scratch();
        command.arg("--control").arg(dir.path().join("control")).arg("--").args(program);
        Self::serving(command, dir)
    }

    fn run(mut command: Command, dir: TempDir) -> Self {
        command.arg("--control").arg(dir.path().join("control"));
        Self::serving(command, dir)
    }

    fn serving(command: Command, dir: TempDir) -> Self {
        let mut server = Self { process: Process::spawn(command).unwrap(), dir };
        server.wait_for("serving on");
        server
    }

    /// Starts the command for DNS through AF_XDP and for the directory of the zone file over HTTP, and waits until it serves.
    pub(crate) fn start_with_web(host: &Host) -> Self {
        Self::start_with_web_and(host, "")
    }

    /// The same, with more of the web's settings.
    pub(crate) fn start_with_web_and(host: &Host, more: &str) -> Self {
        lab::require();
        let (dir, _) = zone(ZONE);
        let text = "[dataplane]\ninterface = [\"vs\"]\nlisten = [\"198.18.0.1:53\", \"[2001:db8:18::1]:53\"]\n\
                    [[dns.zone]]\norigin = \"example.com\"\nfile = \"example.com.zone\"\n\
                    [web]\nlisten = [\"198.18.0.1:80\", \"[2001:db8:18::1]:80\"]\nroot = \"site\"\n";
        let control = format!("[control]\npath = \"{}\"\n", dir.path().join("control").display());
        Self::start_config(host, dir, &format!("{text}{more}{control}"))
    }

    /// Starts the command for a configuration in `dir`, where it finds the zone and a site of one page, and waits until it serves.
    pub(crate) fn start_config(host: &Host, dir: TempDir, text: &str) -> Self {
        fs::create_dir(dir.path().join("site")).unwrap();
        fs::write(dir.path().join("site/index.html"), "hello").unwrap();
        fs::write(dir.path().join("s.toml"), text).unwrap();
        let mut command = simoom(host);
        command.arg("serve").arg("--config").arg(dir.path().join("s.toml"));
        let mut server = Self { process: Process::spawn(command).unwrap(), dir };
        server.wait_for("serving on");
        server
    }

    /// Waits until the log says so.
    pub(crate) fn wait_for(&mut self, words: &str) {
        self.process.wait_for(words, PATIENCE).unwrap_or_else(|error| panic!("{error:#}"));
    }

    /// The zone file it serves.
    pub(crate) fn zone_file(&self) -> PathBuf {
        self.dir.path().join("example.com.zone")
    }

    /// Its control socket.
    pub(crate) fn control(&self) -> PathBuf {
        self.dir.path().join("control")
    }

    /// `simoom ctl`.
    pub(crate) fn ctl(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_simoom"));
        command.arg("ctl").arg("--control").arg(self.control()).args(args).output().unwrap()
    }

    /// The counters now.
    pub(crate) fn stats(&self) -> Stats {
        let out = self.ctl(&["stats", "--json"]);
        assert!(out.status.success(), "{out:?}");
        Stats(serde_json::from_slice(&out.stdout).unwrap())
    }

    /// Waits until `holds` of the counters.
    pub(crate) fn wait_until(&self, what: &str, holds: impl Fn(&Stats) -> bool) {
        let held = lab::wait_until(|| holds(&self.stats()), PATIENCE);
        assert!(held, "{what}:\n{}\n{}", String::from_utf8_lossy(&self.ctl(&["stats"]).stdout), self.process.log());
    }
}

/// What `ctl stats --json` says.
#[derive(Debug)]
pub(crate) struct Stats(Value);

impl Stats {
    /// The sum of a metric's samples that have these labels.
    pub(crate) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        let samples = self.0["metrics"].as_array().expect("an array");
        let mut named = samples.iter().filter(|sample| sample["name"] == name).peekable();
        assert!(named.peek().is_some(), "no metric {name}");
        named
            .filter(|sample| labels.iter().all(|(label, value)| sample["labels"][label] == *value))
            .map(|sample| sample["value"].as_u64().expect("a count"))
            .sum()
    }

    /// Questions by how they came.
    pub(crate) fn questions(&self, transport: &str, family: &str) -> u64 {
        self.sum("dns_questions_total", &[("transport", transport), ("family", family)])
    }

    /// Frames that the steering program gave to AF_XDP.
    pub(crate) fn taken(&self) -> u64 {
        self.sum("steering_taken_total", &[])
    }

    /// Questions that the driver answered.
    pub(crate) fn by_the_driver(&self) -> u64 {
        self.sum("steering_answered_total", &[])
    }

    /// Frames that the steering program kept from the kernel.
    pub(crate) fn ours(&self) -> u64 {
        self.taken() + self.by_the_driver()
    }

    /// Datagrams that came over kernel sockets.
    pub(crate) fn on_sockets(&self) -> u64 {
        self.sum("sockets_datagrams_received_total", &[])
    }
}

/// The output of a program that must succeed at the client's.
pub(crate) fn client(lab: &Lab, line: &str) -> String {
    let args: Vec<&str> = line.split_whitespace().collect();
    lab.client().run(&args).unwrap_or_else(|error| panic!("{line}: {error:#}"))
}

/// `ip` in a host.
pub(crate) fn ip(host: &Host, line: &str) {
    let args: Vec<&str> = std::iter::once("ip").chain(line.split_whitespace()).collect();
    host.run(&args).unwrap();
}

/// dig's short answer; empty where none came.
pub(crate) fn dig(lab: &Lab, line: &str) -> String {
    let args: Vec<&str> = ["dig", "+short", "+tries=1", "+time=2"].into_iter().chain(line.split_whitespace()).collect();
    // dig says with status 9 that nobody answered, and writes so
    lab.client().run(&args).unwrap_or_default().trim().to_owned()
}

/// Asks with patience, since a program just attached may still make the link wait.
pub(crate) fn dig_until(lab: &Lab, line: &str, answer: &str) {
    let mut last = String::new();
    let found = lab::wait_until(
        || {
            last = dig(lab, line);
            last == answer
        },
        PATIENCE,
    );
    assert!(found, "dig {line}: {last:?} instead of {answer:?}");
}

/// Panics if a program is attached to the server's interface, or one stays.
pub(crate) fn nothing_attached(lab: &Lab) {
    let mut shown = String::new();
    let gone = || {
        shown = lab.server().run(&["ip", "link", "show", "dev", "vs"]).unwrap();
        !shown.contains("xdp")
    };
    assert!(lab::wait_until(gone, PATIENCE), "{shown}");
}

/// A question for www.example.com A.
pub(crate) fn question(id: u16) -> Vec<u8> {
    question_for("www.example.com", 1, id)
}

/// A question.
pub(crate) fn question_for(name: &str, rtype: u16, id: u16) -> Vec<u8> {
    Question::new(name.parse().expect("a name"), rtype).wire(id)
}

/// A client that writes its own frames, at [`CLIENT_PORT`].
pub(crate) struct RawClient {
    pub(crate) raw: Raw,
    pub(crate) us: [u8; 6],
    pub(crate) them: [u8; 6],
    // for IPv4 too
    _socket: UdpSocket,
}

/// Where raw questions come from.
pub(crate) const CLIENT_PORT: u16 = 4000;

impl RawClient {
    pub(crate) fn new(lab: &Lab) -> Self {
        // else the client's kernel would tell the server that nobody is there
        let socket = lab.client().inside(|| UdpSocket::bind(("::", CLIENT_PORT)).unwrap());
        let (us, them) = (lab.client().mac().unwrap(), lab.server().mac().unwrap());
        Self { raw: Raw::open(lab.client()).unwrap(), us, them, _socket: socket }
    }

    /// A packet to the server.
    pub(crate) fn send(&mut self, packet: &[u8]) {
        let ethertype = if packet[0] >> 4 == 6 { frame::ethertype::IPV6 } else { frame::ethertype::IPV4 };
        self.raw.send(&frame::ethernet(self.them, self.us, ethertype, packet)).unwrap();
    }

    /// The answer to question `id`, as a frame; the DNS message starts at the returned offset.
    pub(crate) fn answer(&mut self, id: u16) -> (Vec<u8>, usize) {
        let mut offset = 0;
        let found = self.raw.receive(PATIENCE, |got| {
            let Some((from, at)) = datagram(got) else { return false };
            offset = at;
            from == 53 && got[at..].starts_with(&id.to_be_bytes())
        });
        (found.unwrap_or_else(|| panic!("no answer to question {id}")), offset)
    }
}

/// A datagram's source port and where its payload begins.
pub(crate) fn datagram(frame: &[u8]) -> Option<(u16, usize)> {
    let tag = if frame.get(12..14)? == [0x81, 0] { 4 } else { 0 };
    let ip = 14 + tag;
    let (protocol, udp) = match *frame.get(ip)? >> 4 {
        4 => (frame[ip + 9], ip + 4 * usize::from(frame[ip] & 15)),
        6 => (frame[ip + 6], ip + 40),
        _ => return None,
    };
    let port = frame.get(udp..udp + 2)?;
    (protocol == frame::protocol::UDP && frame.len() >= udp + 10)
        .then(|| (u16::from_be_bytes([port[0], port[1]]), udp + 8))
}

/// The client's and the server's address, and a datagram between them.
pub(crate) fn udp_v4(payload: &[u8]) -> Vec<u8> {
    frame::udp((CLIENT_V4.into(), CLIENT_PORT), (SERVER_V4.into(), 53), payload)
}

/// As [`udp_v4`].
pub(crate) fn udp_v6(payload: &[u8]) -> Vec<u8> {
    frame::udp((IpAddr::from(CLIENT_V6), CLIENT_PORT), (SERVER_V6.into(), 53), payload)
}

/// Runs the command where it must refuse; gives its exit status and what it wrote.
pub(crate) fn refused(host: &Host, args: &[&str]) -> (Option<i32>, String) {
    refused_through(host, &[], args)
}

/// As [`refused`], started by another program.
pub(crate) fn refused_through(host: &Host, through: &[&str], args: &[&str]) -> (Option<i32>, String) {
    let dir = tempfile::tempdir().unwrap();
    let words: Vec<&str> =
        through.iter().copied().chain([env!("CARGO_BIN_EXE_simoom"), "dns"]).chain(args.iter().copied()).collect();
    let mut command = host.command(words[0]);
    command.args(&words[1..]).arg("--control").arg(dir.path().join("control"));
    let mut process = Process::spawn(command).unwrap();
    let status = process.wait(PATIENCE).unwrap();
    assert!(!dir.path().join("control").exists(), "the control socket stayed");
    (status.code(), process.log())
}

/// The lines of the command itself, without its log.
pub(crate) fn complaints(log: &str) -> Vec<&str> {
    log.lines().filter_map(|line| line.strip_prefix("simoom: ")).collect()
}

/// The processor time of a process so far, in clock ticks.
pub(crate) fn ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat")).unwrap();
    // the name may hold spaces; utime and stime are the 14th and 15th field (proc_pid_stat(5))
    let (_, rest) = stat.rsplit_once(") ").unwrap();
    rest.split(' ').skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum()
}
