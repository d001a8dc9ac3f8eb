//! The servers that are measured, and how each is started: on processor 0 of the laboratory's server host, with one worker.

use anyhow::{Context as _, Result};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// A server to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// the yardstick over our own port
    Reflector,
    /// the yardstick of the driver tier
    ReflectorDriver,
    /// NLnet Labs' NSD
    Nsd,
    /// Knot DNS on kernel sockets
    Knot,
    /// Knot DNS on AF_XDP
    KnotXdp,
    /// ours: the name it goes by here, and what stands between `simoom dns` and the zone
    Simoom(String, Vec<String>),
    /// any command that serves `example.com` on 198.18.0.1:53 at interface vs
    Command(Vec<String>),
}

/// The peers by the words of the command line.
const WORDS: [(&str, Subject); 5] = [
    ("reflector", Subject::Reflector),
    ("reflector-driver", Subject::ReflectorDriver),
    ("nsd", Subject::Nsd),
    ("knot", Subject::Knot),
    ("knot-xdp", Subject::KnotXdp),
];

/// What ours is started with when nothing else is said.
const SIMOOM: &str = "--interface vs --listen 198.18.0.1:53 --cpus 0";
/// The same on kernel sockets.
const SIMOOM_SOCKETS: &str = "--backend sockets --listen 198.18.0.1:53 --cpus 0";

impl std::str::FromStr for Subject {
    type Err = String;
    fn from_str(word: &str) -> Result<Subject, String> {
        if let Some((_, subject)) = WORDS.iter().find(|(name, _)| *name == word) {
            return Ok(subject.clone());
        }
        match word {
            "simoom" => Ok(Subject::simoom(word, "")),
            "simoom-driver" => Ok(Subject::simoom(word, "--tier driver")),
            "simoom-xdp" => Ok(Subject::simoom(word, "--tier xdp")),
            "simoom-sockets" => Ok(Subject::Simoom(word.into(), words(SIMOOM_SOCKETS))),
            _ => Err("one of reflector, reflector-driver, nsd, knot, knot-xdp, simoom, simoom-driver, simoom-xdp, \
                      simoom-sockets"
                .into()),
        }
    }
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(String::from).collect()
}

impl Subject {
    /// Ours over AF_XDP with further options.
    pub(crate) fn simoom(name: &str, options: &str) -> Subject {
        let mut args = words(SIMOOM);
        args.extend(words(options));
        Subject::Simoom(name.into(), args)
    }

    /// What it is called in reports.
    pub(crate) fn name(&self) -> String {
        match self {
            Subject::Simoom(name, _) => name.clone(),
            Subject::Command(command) => command.join(" "),
            known => WORDS.iter().find(|(_, subject)| subject == known).map_or("?", |(name, _)| name).into(),
        }
    }

    /// Answers are questions come back: none can be checked, and none has a meaning.
    pub(crate) fn reflects(&self) -> bool {
        matches!(self, Subject::Reflector | Subject::ReflectorDriver)
    }

    /// The command that serves the zone of `data`.
    pub(crate) fn command(&self, data: &Data, simoom: &Path) -> Result<Vec<OsString>> {
        let plain = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        Ok(match self {
            Subject::Reflector | Subject::ReflectorDriver => {
                let ours = std::env::current_exe().context("where this program lies")?;
                let mut command = vec![ours.into_os_string()];
                command.extend(plain(&["reflect", "--interface", "vs", "--listen", "198.18.0.1:53", "--cpu", "0"]));
                command.extend((*self == Subject::ReflectorDriver).then(|| "--driver".into()));
                command
            }
            Subject::Nsd => {
                let mut command = plain(&["nsd", "-d", "-c"]);
                command.push(data.write("nsd.conf", NSD)?.into_os_string());
                command
            }
            Subject::Knot => data.knot("knot.conf", "")?,
            Subject::KnotXdp => data.knot("knot-xdp.conf", "xdp:\n  listen: vs@53\n")?,
            Subject::Simoom(_, args) => {
                let mut command = vec![simoom.as_os_str().to_owned(), "dns".into()];
                command.extend(args.iter().map(OsString::from));
                let control = data.folder().join("control");
                command.extend(["--control".into(), control.into_os_string()]);
                let mut zone = OsString::from("example.com=");
                zone.push(data.zone());
                command.push(zone);
                command
            }
            Subject::Command(command) => command.iter().map(OsString::from).collect(),
        })
    }
}

/// The folder with the zone, the questions and the peers' configurations.
#[derive(Debug)]
pub(crate) struct Data {
    folder: tempfile::TempDir,
}

impl Data {
    /// An empty one.
    pub(crate) fn new() -> Result<Data> {
        let folder = tempfile::Builder::new().prefix("simoom-bench-").tempdir().context("no temporary folder")?;
        Ok(Data { folder })
    }

    /// Where it lies.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The zone file.
    pub(crate) fn zone(&self) -> PathBuf {
        self.folder().join("example.com.zone")
    }

    /// The questions, a `NAME TYPE` a line, for generators that are not ours.
    pub(crate) fn questions(&self) -> PathBuf {
        self.folder().join("queries.txt")
    }

    fn knot(&self, name: &str, xdp: &str) -> Result<Vec<OsString>> {
        // Knot keeps what it has parsed: another zone needs a database of its own
        let database = tempfile::Builder::new().prefix("knot-").tempdir_in(self.folder())?.keep();
        let text = KNOT.replace("@DB@", &database.display().to_string()).replace("@XDP@", xdp);
        Ok(vec!["knotd".into(), "-c".into(), self.write(name, &text)?.into_os_string()])
    }

    fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.folder().join(name);
        let text = text.replace("@DIR@", &self.folder().display().to_string());
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }
}

const NSD: &str = r#"server:
  server-count: 1
  minimal-responses: yes
  ip-address: 198.18.0.1
  username: ""
  zonesdir: "@DIR@"
  database: ""
  pidfile: "@DIR@/nsd.pid"
  xfrdfile: "@DIR@/xfrd.state"
  zonelistfile: "@DIR@/zone.list"
  rrl-ratelimit: 0
remote-control:
  control-enable: no
zone:
  name: example.com
  zonefile: example.com.zone
"#;

const KNOT: &str = r#"server:
  rundir: "@DB@"
  user: root:root
  listen: 198.18.0.1@53
  udp-workers: 1
  tcp-workers: 1
@XDP@log:
  - target: stderr
    any: warning
database:
  storage: "@DB@"
zone:
  - domain: example.com
    file: "@DIR@/example.com.zone"
"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_names_a_subject_and_back() {
        for word in
            WORDS.iter().map(|(word, _)| *word).chain(["simoom", "simoom-driver", "simoom-xdp", "simoom-sockets"])
        {
            assert_eq!(word.parse::<Subject>().unwrap().name(), word);
        }
        assert!("bind".parse::<Subject>().is_err());
    }

    #[test]
    fn configurations_have_no_place_holder_left() {
        let data = Data::new().unwrap();
        for subject in [Subject::Nsd, Subject::Knot, Subject::KnotXdp] {
            let command = subject.command(&data, Path::new("simoom")).unwrap();
            let text = fs::read_to_string(command.last().unwrap()).unwrap();
            assert!(!text.contains('@') || text.contains("@53"), "{text}");
            assert!(!text.contains("@DIR@") && !text.contains("@DB@") && !text.contains("@XDP@"), "{text}");
            assert_eq!(text.contains("vs@53"), subject == Subject::KnotXdp);
        }
        let ours = Subject::simoom("x", "--batch 1").command(&data, Path::new("/bin/simoom")).unwrap();
        assert_eq!(ours[..2], ["/bin/simoom", "dns"]);
        assert!(ours.contains(&"--batch".into()) && ours.last().unwrap().to_str().unwrap().starts_with("example.com="));
    }
}
