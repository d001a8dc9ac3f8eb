//! Web servers in the laboratory: the files they serve, how each is started on processor 0 of the server's host, and the loads that
//! are put on them from processor 1 of the client's (`load`).

mod calls;
pub(super) mod fig4;
pub(super) mod fig6;
mod figure;
mod load;

pub(super) use load::{Generator, LONGER_S, Load, Run, json, sleep};

use super::Common;
use super::apart::{self, Apart};
use anyhow::{Context as _, Result, bail, ensure};
use lab::{Lab, Process};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

/// Where servers listen.
pub(super) const ADDRESS: &str = "198.18.0.1:80";
/// Where a reflector is asked.
const REFLECTOR: &str = "198.18.0.1:7";
/// Octets of a full TCP segment's data: 1500 less the headers of IPv4 and TCP with timestamps, which all sides here have.
pub(super) const SEGMENT_BYTES: u64 = 1448;
/// How long a server, or the wire, may take to come up.
pub(super) const START: Duration = Duration::from_secs(60);
/// How long one attempt to reach a server waits: some SYNs over a bad path.
pub(super) const PROBE: Duration = Duration::from_secs(4);

/// A server: what it goes by, and its command. In its words `{simoom}` is the server under test, `{www}` the folder to serve and
/// `{run}` a folder for its own files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Server {
    pub(super) name: String,
    pub(super) words: Vec<String>,
    /// congestion control of the kernel that it runs on; None for what the host is set to
    kernel: Option<String>,
}

impl Server {
    /// nginx with the configuration that the bed was made with.
    pub(super) fn nginx() -> Server {
        server("nginx=nginx -c {run}/nginx.conf").expect("a name and a command")
    }

    /// nginx on a kernel with this congestion control.
    pub(super) fn nginx_with(kernel: &str) -> Server {
        let nginx = Server::nginx();
        Server { name: format!("{} ({kernel})", nginx.name), kernel: Some(kernel.to_owned()), ..nginx }
    }

    /// Ours over AF_XDP, with further options.
    pub(super) fn simoom(name: &str, options: &str) -> Server {
        let command = "{simoom} web --interface vs --listen 198.18.0.1:80 --cpus 0 --control {run}/control";
        server(&format!("{name}={command} {options} {{www}}")).expect("a name and a command")
    }
}

/// A server of the command line, `NAME=COMMAND`.
pub(super) fn server(text: &str) -> Result<Server, String> {
    let (name, command) = text.split_once('=').ok_or("NAME=COMMAND")?;
    let words: Vec<String> = command.split_whitespace().map(String::from).collect();
    if name.is_empty() || words.is_empty() {
        Err("NAME=COMMAND".into())
    } else {
        Ok(Server { name: name.into(), words, kernel: None })
    }
}

/// How nginx is set up for a path that loses frames: what a careful administrator has.
pub(super) const NGINX_SENDFILE: &str = "sendfile on; tcp_nopush on; keepalive_requests 1000000;";
/// How nginx is fastest over a veth pair, where segmentation offload is off as soon as a program is attached at the peer: sendfile and
/// tcp_nopush were slower there at every size (4 KiB: 20,000 and 90,000 against 103,000 requests/s).
pub(super) const NGINX_BUFFERS: &str = "sendfile off; output_buffers 2 1m; tcp_nodelay on; keepalive_requests 100000000; \
     open_file_cache max=10000; open_file_cache_valid 3600s;";

const NGINX_CONF: &str = "daemon off;
worker_processes 1;
pid {run}/nginx.pid;
error_log stderr;
events { worker_connections 16384; multi_accept on; }
http {
  access_log off;
  default_type application/octet-stream;
  client_body_temp_path {run}/body;
  proxy_temp_path {run}/proxy;
  fastcgi_temp_path {run}/fastcgi;
  uwsgi_temp_path {run}/uwsgi;
  scgi_temp_path {run}/scgi;
  {how}
  server { listen 198.18.0.1:80 backlog=16384; root {www}; }
}
";

/// nginx's configuration, with this beside the rest; `{run}` and `{www}` are still to be filled in.
pub(super) fn nginx_conf(how: &str) -> String {
    NGINX_CONF.replace("{how}", how)
}

/// Fails with one line that names the mend unless this process is root and these programs are installed.
pub(super) fn ensure_can_run(programs: &[&str]) -> Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "this makes network namespaces: run it as root");
    if let Some(line) = lab::missing(programs) {
        bail!("programs are missing; run: {line}");
    }
    Ok(())
}

/// What does not change from load to load: a folder with what is served and what servers need. It goes with the value.
#[derive(Debug)]
pub(super) struct Bed {
    folder: tempfile::TempDir,
    simoom: String,
    /// the server's processor and the load's
    apart: Apart,
}

impl Bed {
    /// An empty folder for these servers; `nginx` is what its configuration says beside the rest. From here on an interruption ends
    /// what runs in order: load, server, namespaces.
    pub(super) fn new(common: &Common, servers: &[Server], nginx: &str) -> Result<Bed> {
        let uses = |word: &str| servers.iter().any(|server| server.words.iter().any(|other| other.contains(word)));
        let mut programs = vec!["ip", "ethtool", "taskset"];
        programs.extend(uses("nginx").then_some("nginx"));
        ensure_can_run(&programs)?;
        lab::interrupt_by(crate::commands::stop_flag()?);
        let simoom = if uses("{simoom}") { common.simoom()?.display().to_string() } else { String::new() };
        let folder = tempfile::Builder::new().prefix("simoom-bench-").tempdir().context("no temporary folder")?;
        // nginx's worker is another user
        std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        for name in ["www", "run"] {
            std::fs::create_dir(folder.path().join(name)).context("no folder for the servers")?;
        }
        let bed = Bed { folder, simoom, apart: Apart::default() };
        std::fs::write(bed.folder.path().join("run/nginx.conf"), bed.fill(&nginx_conf(nginx)))?;
        Ok(bed)
    }

    /// Measures only while both processors are where they usually are.
    pub(super) fn steady(self, wanted: apart::Wanted) -> Result<Bed> {
        Ok(Bed { apart: Apart::begin(wanted)?, ..self })
    }

    /// What a report says of where the processors were, a sentence after others.
    pub(super) fn told_apart(&self) -> String {
        self.apart.told()
    }

    /// Where its own files lie.
    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Puts a file of `bytes` octets, the same in every run, among those that are served; its content.
    pub(super) fn add_file(&self, name: &str, bytes: u64) -> Result<Vec<u8>> {
        let seed = name.bytes().fold(17, |seed: u64, byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
        let mut rng = base::rng::Rng::new(seed);
        let mut content: Vec<u8> = (0..bytes.div_ceil(8)).flat_map(|_| rng.next_u64().to_ne_bytes()).collect();
        content.truncate(bytes as usize);
        let path = self.folder().join("www").join(name);
        std::fs::write(&path, &content).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(content)
    }

    /// Puts what is known now into the braces.
    fn fill(&self, text: &str) -> String {
        let path = |name: &str| self.folder().join(name).display().to_string();
        text.replace("{www}", &path("www")).replace("{run}", &path("run")).replace("{simoom}", &self.simoom)
    }

    /// Starts `server` in `lab` and does not wait for it.
    pub(super) fn start(&self, server: &Server, lab: &Lab) -> Result<Process> {
        if let Some(kernel) = &server.kernel {
            // by route: a namespace may set for all of itself only what the host allows everybody
            let route = ["ip", "route", "change", "198.18.0.0/24", "dev", "vs", "proto", "kernel", "scope", "link"];
            let chosen = lab.server().run(&[&route[..], &["src", "198.18.0.1", "congctl", kernel]].concat());
            chosen.with_context(|| format!("no congestion control {kernel} in this kernel"))?;
        }
        let mut command = lab.server().command("taskset");
        command.args(["-c", "0"]).args(server.words.iter().map(|word| self.fill(word)));
        Process::spawn(command)
    }

    /// Starts `server` in a laboratory of its own, waits until it answers with the first of `files`, and compares all of them, once each:
    /// loads look at no content, or take for right what the server sent first.
    pub(super) fn serve(&self, server: &Server, options: &lab::Options, files: &[String]) -> Result<Up<'_>> {
        let lab = Lab::with(options)?;
        let mut process = self.start(server, &lab)?;
        if server.words.iter().any(|word| word == "{simoom}") {
            // until its program is attached the kernel's own sockets answer, and who met those would be reset
            process.wait_for("serving on ", START).with_context(|| format!("{} does not come up", server.name))?;
        }
        let (at, name) = (ADDRESS.parse()?, files.first().context("no file to ask for")?);
        let answers = || lab.client().inside(|| answer(at, name)).is_ok();
        process.wait_until(answers, START).with_context(|| format!("{} does not come up", server.name))?;
        let answer_bytes = lab
            .client()
            .inside(|| self.ensure_right(at, files))
            .with_context(|| format!("what {} serves", server.name))?;
        // attaching a program may have made the receive threads anew
        lab.pin();
        Ok(Up { bed: self, name: server.name.clone(), process, lab, answer_bytes, segments: None })
    }

    /// Asks for each of `files` once, from this thread's host: octets of the answer with the first. An error where a body is not the file.
    fn ensure_right(&self, at: SocketAddr, files: &[String]) -> Result<u64> {
        let mut first = None;
        for name in files {
            let (whole, body) = answer(at, name).with_context(|| format!("/{name}"))?;
            let path = self.folder().join("www").join(name);
            let content = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            ensure!(
                whole[body..] == content,
                "/{name}: a body of {} octets is not the file, of {}",
                whole.len() - body,
                content.len()
            );
            first.get_or_insert(whole.len() as u64);
        }
        first.context("no file to ask for")
    }

    /// Starts a reflector of so many frames a request in a laboratory of its own.
    pub(super) fn reflect(&self, options: &lab::Options, segments: u32) -> Result<Up<'_>> {
        let lab = Lab::with(options)?;
        let mut command = lab.server().command(std::env::current_exe().context("where this program lies")?);
        command.args(["reflect", "--interface", "vs", "--listen", REFLECTOR, "--cpu", "0"]);
        command.args(["--segments", &segments.to_string()]);
        let mut process = Process::spawn(command)?;
        process.wait_for("reflecting", START).context("the reflector does not come up")?;
        lab.pin();
        let name = "reflector".into();
        Ok(Up { bed: self, name, process, lab, answer_bytes: 0, segments: Some(segments) })
    }
}

/// A server that answers in a laboratory of its own. Both end with this value.
#[derive(Debug)]
pub(super) struct Up<'a> {
    bed: &'a Bed,
    name: String,
    // the server ends before its host goes
    process: Process,
    lab: Lab,
    /// octets of the answer that it was found up by, head and body
    pub(super) answer_bytes: u64,
    /// frames a request, of a reflector
    segments: Option<u32>,
}

impl Up<'_> {
    /// The laboratory.
    pub(super) fn lab(&self) -> &Lab {
        &self.lab
    }

    /// The server's process, while it runs; its group has the same number.
    pub(super) fn pid(&mut self) -> Result<u32> {
        match self.process.ended() {
            // `ip netns exec` and `taskset` become the command that they start
            None => Ok(self.process.id()),
            Some(status) => bail!("{} ended ({status}): {}", self.name, self.process.log().trim()),
        }
    }
}

/// Asks for a file once, from this thread's host: the whole answer, and where its body begins.
fn answer(at: SocketAddr, name: &str) -> Result<(Vec<u8>, usize)> {
    let mut stream = TcpStream::connect_timeout(&at, PROBE)?;
    stream.set_read_timeout(Some(PROBE))?;
    stream.write_all(format!("GET /{name} HTTP/1.1\r\nHost: {}\r\n\r\n", at.ip()).as_bytes())?;
    let (mut answer, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
    let mut shape = None;
    loop {
        let count = stream.read(&mut buffer)?;
        ensure!(count > 0, "the answer ended early");
        answer.extend_from_slice(&buffer[..count]);
        if shape.is_none() {
            shape = whole_bytes(&answer)?;
        }
        if let Some((body, whole)) = shape
            && answer.len() as u64 >= whole
        {
            return Ok((answer, body));
        }
    }
}

/// Octets of the head and of the whole answer that begins so; None before its head has ended.
fn whole_bytes(answer: &[u8]) -> Result<Option<(usize, u64)>> {
    let Some(at) = answer.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(None) };
    let head = String::from_utf8_lossy(&answer[..at]);
    ensure!(head.starts_with("HTTP/1.1 200 "), "not 200: {}", head.lines().next().unwrap_or_default());
    let mut fields = head.lines().filter_map(|line| line.split_once(':'));
    let length = fields.find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let length: u64 = length.and_then(|(_, value)| value.trim().parse().ok()).context("no Content-Length")?;
    Ok(Some((at + 4, (at as u64 + 4).saturating_add(length))))
}

/// Octets by a word of the command line: 700, 4k, 1m.
pub(super) fn size(text: &str) -> Result<u64, String> {
    let lower = text.to_ascii_lowercase();
    let (digits, unit) = match lower.strip_suffix(['k', 'm']) {
        Some(digits) => (digits, if lower.ends_with('k') { 10 } else { 20 }),
        None => (lower.as_str(), 0),
    };
    let octets = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << unit));
    octets
        .filter(|octets| (1..=1 << 30).contains(octets))
        .ok_or_else(|| "a size up to 1024m, such as 700, 4k or 1m".into())
}

/// The word of a size.
pub(super) fn size_word(octets: u64) -> String {
    match octets {
        octets if octets % (1 << 20) == 0 => format!("{}m", octets >> 20),
        octets if octets % (1 << 10) == 0 => format!("{}k", octets >> 10),
        octets => octets.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_a_name_and_a_command() {
        let nginx = Server::nginx();
        assert_eq!((nginx.name.as_str(), nginx.words.len()), ("nginx", 3));
        let ours = Server::simoom("simoom, copy", "--transmit copy");
        assert_eq!((ours.name.as_str(), ours.words[0].as_str()), ("simoom, copy", "{simoom}"));
        assert_eq!(ours.words[ours.words.len() - 3..], ["--transmit", "copy", "{www}"]);
        let bbr = Server::nginx_with("bbr");
        assert_eq!((bbr.name.as_str(), bbr.kernel.as_deref()), ("nginx (bbr)", Some("bbr")));
        assert_eq!((bbr.words, nginx.kernel), (nginx.words, None));
        for wrong in ["", "nginx", "=nginx", "nginx="] {
            assert!(server(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_are_words_and_back() {
        for (word, octets) in [("700", 700), ("1k", 1024), ("64k", 65_536), ("1m", 1 << 20), ("1024m", 1 << 30)] {
            assert_eq!(size(word), Ok(octets));
            assert_eq!(size_word(octets), if octets == 1 << 30 { "1024m" } else { word });
        }
        assert_eq!(size("4K"), Ok(4096));
        for wrong in ["", "k", "0", "-1", "1.5k", "1g", "2048m", "99999999999999999999k"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_answer_is_whole_by_its_head() {
        assert_eq!(whole_bytes(b"HTTP/1.1 200 OK\r\ncontent-LENGTH: 5\r\n").unwrap(), None);
        assert_eq!(whole_bytes(b"HTTP/1.1 200 OK\r\ncontent-LENGTH: 5\r\n\r\nab").unwrap(), Some((38, 43)));
        assert!(whole_bytes(b"HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\n\r\n").is_err());
        assert!(whole_bytes(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
    }
}
