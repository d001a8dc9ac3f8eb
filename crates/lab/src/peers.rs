//! The servers that ours is compared with: NSD and Knot, with configurations of our own.

use crate::{
    Lab, Process,
    zonegen::{Question, Zone, present},
};
use anyhow::{Context as _, Result};
use std::{
    fmt, fs,
    net::{SocketAddr, UdpSocket},
    path::{Path, PathBuf},
    time::Duration,
};

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// NLnet Labs' NSD.
    Nsd,
    /// CZ.NIC's Knot DNS on kernel sockets.
    Knot,
}

impl Kind {
    /// The name used in reports and in `exceptions.toml`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nsd => "nsd",
            Self::Knot => "knot",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A running server that answers for its zones. It ends with this value.
#[derive(Debug)]
pub struct Peer {
    /// Which server it is.
    pub kind: Kind,
    /// Where it answers, over UDP and TCP.
    pub address: SocketAddr,
    // before the directory: the server ends before its files go
    process: Process,
    _dir: tempfile::TempDir,
}

impl Peer {
    /// Starts a server in the server's host and waits until it answers the client's for every zone.
    pub fn start(lab: &Lab, kind: Kind, address: SocketAddr, zones: &[Zone]) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("simoom-peer-").tempdir()?;
        let files = write_zones(dir.path(), zones)?;
        let (config, program) = match kind {
            Kind::Nsd => (nsd_config(dir.path(), address, &files), "nsd"),
            Kind::Knot => (knot_config(dir.path(), address, &files), "knotd"),
        };
        let file = dir.path().join("server.conf");
        fs::write(&file, config)?;
        let file = file.to_str().context("a temporary path in UTF-8")?;
        let args: &[&str] = if kind == Kind::Nsd { &[program, "-d", "-c", file] } else { &[program, "-c", file] };
        let mut process = lab.server().spawn(args)?;
        process
            .wait_until(
                || lab.client().inside(|| zones.iter().all(|zone| serves(address, zone))),
                Duration::from_secs(30),
            )
            .with_context(|| format!("{kind} does not serve every zone of {}", zones.len()))?;
        Ok(Self { kind, address, process, _dir: dir })
    }

    /// What the server wrote.
    pub fn log(&self) -> String {
        self.process.log()
    }
}

/// A zone file on disk.
#[derive(Clone, Debug)]
pub struct ZoneFile {
    /// The zone's name with a final dot.
    pub origin: String,
    /// The file.
    pub path: PathBuf,
}

/// Writes each zone to `NUMBER.zone` in `dir`: an origin may hold what a file name cannot.
pub fn write_zones(dir: &Path, zones: &[Zone]) -> Result<Vec<ZoneFile>> {
    let write = |(number, zone): (usize, &Zone)| {
        let path = dir.join(format!("{number}.zone"));
        fs::write(&path, &zone.text)?;
        Ok(ZoneFile { origin: present(&zone.origin), path })
    };
    zones.iter().enumerate().map(write).collect()
}

/// True if the server at `address` answers the zone's SOA question with authority.
pub fn serves(address: SocketAddr, zone: &Zone) -> bool {
    let question = Question::new(zone.origin.clone(), 6);
    let ask = || -> Result<bool> {
        let local = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(local)?;
        socket.connect(address)?;
        socket.set_read_timeout(Some(Duration::from_millis(200)))?;
        socket.send(&question.wire(1))?;
        let mut answer = [0; 4096];
        let length = socket.recv(&mut answer)?;
        // AA set, RCODE 0, one answer
        Ok(length > 12 && answer[2] & 4 != 0 && answer[3] & 15 == 0 && answer[7] == 1)
    };
    ask().unwrap_or(false)
}

fn nsd_config(dir: &Path, address: SocketAddr, files: &[ZoneFile]) -> String {
    let (dir, ip, port) = (dir.display(), address.ip(), address.port());
    let mut config = format!(
        "server:\n  server-count: 1\n  minimal-responses: yes\n  ip-address: {ip}@{port}\n  username: \"\"\n  tcp-count: 100\n  \
         zonesdir: \"{dir}\"\n  database: \"\"\n  pidfile: \"{dir}/nsd.pid\"\n  xfrdfile: \"{dir}/xfrd.state\"\n  \
         zonelistfile: \"{dir}/zone.list\"\n  rrl-ratelimit: 0\nremote-control:\n  control-enable: no\n"
    );
    for ZoneFile { origin, path } in files {
        config += &format!("zone:\n  name: \"{origin}\"\n  zonefile: \"{}\"\n", path.display());
    }
    config
}

pub(crate) fn knot_config(dir: &Path, address: SocketAddr, files: &[ZoneFile]) -> String {
    let (dir, ip, port) = (dir.display(), address.ip(), address.port());
    let mut config = format!(
        "server:\n  rundir: \"{dir}\"\n  user: root:root\n  listen: {ip}@{port}\n  udp-workers: 1\n  tcp-workers: 1\n\
         log:\n  - target: stderr\n    any: warning\ndatabase:\n  storage: \"{dir}\"\nzone:\n"
    );
    for ZoneFile { origin, path } in files {
        config += &format!("  - domain: \"{origin}\"\n    file: \"{}\"\n", path.display());
    }
    config
}
