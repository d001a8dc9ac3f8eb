//! `simoom ctl`: asks a running server and shows what it says.

use super::{Request, candidates, connections};
use crate::cli::CtlCommand;
use crate::error::{Error, reason};
use crate::metrics;
use serde_json::Value;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Does one command and gives what is to be printed.
///
/// # Errors
/// No server answers, or it says no.
pub fn run(control: Option<&Path>, command: &CtlCommand) -> Result<String, Error> {
    let mut connection = Connection::open(control)?;
    match command {
        CtlCommand::Status => Ok(status(&connection.ask(&Request::Status {})?)),
        CtlCommand::Stats { json } => {
            let answer = connection.ask(&Request::Stats {})?;
            let samples = answer["metrics"].as_array().cloned().unwrap_or_default();
            match json {
                true => Ok(format!("{}\n", serde_json::json!({ "metrics": samples }))),
                false => Ok(metrics::table(&samples)),
            }
        }
        CtlCommand::Connections { most, json } => {
            let answer = connection.ask(&Request::Connections { most: most.0 })?;
            Ok(if *json { format!("{answer}\n") } else { connections::table(&answer) })
        }
        CtlCommand::Capture { file, filter, count, seconds } => {
            let request =
                Request::Capture { filter: filter.clone(), count: count.map(|n| n.0.into()), seconds: seconds.0 };
            connection.capture(&request, file)
        }
        CtlCommand::MoveGroups { from, to, count } => {
            let count = count.map_or(u32::MAX, |count| count.0);
            let request = Request::MoveGroups { from: from.0 as usize, to: to.0 as usize, count };
            let answer = connection.ask(&request)?;
            Ok(format!("{}\n", answer["message"].as_str().unwrap_or("asked")))
        }
        CtlCommand::Threads { count } => {
            let answer = connection.ask(&Request::Threads { count: count.0 as usize })?;
            Ok(format!("{}\n", answer["message"].as_str().unwrap_or("asked")))
        }
        CtlCommand::Reload => {
            let answer = connection.ask(&Request::Reload {})?;
            Ok(format!("{}\n", answer["message"].as_str().unwrap_or("reloaded")))
        }
        CtlCommand::Stop => {
            connection.ask(&Request::Stop {})?;
            connection.wait_for_end();
            Ok(String::new())
        }
    }
}

/// A connection to a server's control socket.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: BufReader<UnixStream>,
    path: PathBuf,
}

impl Connection {
    /// Connects to `control`, or to where servers put their sockets.
    ///
    /// # Errors
    /// No server is there.
    pub(crate) fn open(control: Option<&Path>) -> Result<Connection, Error> {
        let paths = control.map_or_else(candidates, |path| vec![path.to_owned()]);
        let mut failures = Vec::new();
        for path in paths {
            match UnixStream::connect(&path) {
                Ok(stream) => return Ok(Connection { stream: BufReader::new(stream), path }),
                Err(error) => failures.push(format!("{}: {}", path.display(), reason(&error))),
            }
        }
        Err(Error::environment(format!("no server answers: {}; is it running? see --control", failures.join("; "))))
    }

    /// With an end to waiting for answers.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn patient(self, patience: Duration) -> Result<Connection, Error> {
        let stream = self.stream.get_ref();
        let set = stream.set_read_timeout(Some(patience)).and(stream.set_write_timeout(Some(patience)));
        set.map_err(|error| self.broken(&error))?;
        Ok(self)
    }

    fn broken(&self, error: &io::Error) -> Error {
        Error::environment(format!("{}: {}; see the server's log", self.path.display(), reason(error)))
    }

    fn send(&mut self, request: &Request) -> Result<(), Error> {
        let mut line = serde_json::to_string(request).expect("a request has no map with other keys than strings");
        line.push('\n');
        self.stream.get_mut().write_all(line.as_bytes()).map_err(|error| self.broken(&error))
    }

    /// The next answer; one that says no is an error with all its lines.
    fn answer(&mut self) -> Result<Value, Error> {
        let mut line = String::new();
        self.stream.read_line(&mut line).map_err(|error| self.broken(&error))?;
        let answer: Value = match serde_json::from_str(&line) {
            Ok(answer) => answer,
            Err(_) => return Err(self.broken(&io::Error::other("the server closed the connection"))),
        };
        if answer["ok"] == true {
            return Ok(answer);
        }
        let text = |value: &Value| value.as_str().unwrap_or("unknown error").to_owned();
        match answer["errors"].as_array() {
            Some(errors) if !errors.is_empty() => {
                let lines = std::iter::once(text(&answer["error"])).chain(errors.iter().map(text));
                Err(Error::Environment(lines.collect()))
            }
            _ => Err(Error::environment(text(&answer["error"]))),
        }
    }

    /// Asks, and gives the answer.
    ///
    /// # Errors
    /// The server does not answer, or says no.
    pub(crate) fn ask(&mut self, request: &Request) -> Result<Value, Error> {
        self.send(request)?;
        self.answer()
    }

    /// The server closes the connection when it ends.
    fn wait_for_end(&mut self) {
        let _ = self.stream.read_line(&mut String::new());
    }

    fn capture(&mut self, request: &Request, file: &Path) -> Result<String, Error> {
        let shown = file.display();
        let cannot = |error: io::Error| Error::input(format!("{shown}: cannot be written: {}", reason(&error)));
        self.send(request)?;
        self.answer()?;
        let mut out = io::BufWriter::new(std::fs::File::create(file).map_err(cannot)?);
        out.write_all(&pcap_header()).map_err(cannot)?;
        let mut line = String::new();
        loop {
            line.clear();
            self.stream.read_line(&mut line).map_err(|error| self.broken(&error))?;
            let Ok(record) = serde_json::from_str::<Value>(&line) else {
                out.flush().map_err(cannot)?;
                return Err(Error::environment(format!(
                    "{shown}: the server went while capturing; the file is whole up to there"
                )));
            };
            if let Some(frames) = record["captured"].as_u64() {
                out.flush().map_err(cannot)?;
                let missed = record["missed"].as_u64().unwrap_or_default();
                return Ok(format!("{frames} frames captured, {missed} missed\n"));
            }
            let Some(packet) = packet(&record) else {
                return Err(Error::environment(
                    "the server sent a frame that cannot be read; use one version of simoom",
                ));
            };
            out.write_all(&packet).map_err(cannot)?;
            if self.stream.buffer().is_empty() {
                // so that the file is whole when the user ends this by Ctrl-C
                out.flush().map_err(cannot)?;
            }
        }
    }
}

/// The file's header: nanosecond times, Ethernet, in this machine's byte order (draft-ietf-opsawg-pcap section 4).
fn pcap_header() -> [u8; 24] {
    let mut header = [0; 24];
    header[0..4].copy_from_slice(&0xA1B2_3C4Du32.to_ne_bytes());
    header[4..6].copy_from_slice(&2u16.to_ne_bytes());
    header[6..8].copy_from_slice(&4u16.to_ne_bytes());
    header[16..20].copy_from_slice(&65_535u32.to_ne_bytes());
    header[20..24].copy_from_slice(&1u32.to_ne_bytes());
    header
}

/// A packet record (section 5) of a frame as the server sends it.
fn packet(record: &Value) -> Option<Vec<u8>> {
    let at_ns = record["unix_ns"].as_u64()?;
    let original = u32::try_from(record["length"].as_u64()?).ok()?;
    let hex = record["bytes"].as_str()?.as_bytes();
    let mut packet = Vec::with_capacity(16 + hex.len() / 2);
    packet.extend(u32::try_from(at_ns / 1_000_000_000).ok()?.to_ne_bytes());
    packet.extend(((at_ns % 1_000_000_000) as u32).to_ne_bytes());
    packet.extend(u32::try_from(hex.len() / 2).ok()?.to_ne_bytes());
    packet.extend(original.to_ne_bytes());
    for pair in hex.chunks(2) {
        let &[high, low] = pair else { return None };
        let digit = |digit: u8| char::from(digit).to_digit(16);
        packet.push((digit(high)? * 16 + digit(low)?) as u8);
    }
    Some(packet)
}

fn status(answer: &Value) -> String {
    let mut text = String::new();
    for (name, value) in answer.as_object().into_iter().flatten().filter(|(name, _)| *name != "ok") {
        let value = match value {
            Value::String(value) => value.clone(),
            Value::Array(values) => values
                .iter()
                .map(|value| value.as_str().map_or(value.to_string(), str::to_owned))
                .collect::<Vec<_>>()
                .join(", "),
            other => other.to_string(),
        };
        text.push_str(&format!("{:<12} {value}\n", name.replace('_', " ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_frame_becomes_a_pcap_record() {
        let record = json!({"unix_ns": 3_000_000_007u64, "length": 60, "bytes": "00ff10"});
        let packet = packet(&record).unwrap();
        assert_eq!(packet[0..4], 3u32.to_ne_bytes());
        assert_eq!(packet[4..8], 7u32.to_ne_bytes());
        assert_eq!((&packet[8..12], &packet[12..16]), (&3u32.to_ne_bytes()[..], &60u32.to_ne_bytes()[..]));
        assert_eq!(packet[16..], [0, 255, 16]);
        for bad in ["0", "zz", "+1", "é"] {
            let record = json!({"unix_ns": 0, "length": 1, "bytes": bad});
            assert_eq!(super::packet(&record), None, "{bad}");
        }
    }

    #[test]
    fn nobody_there_says_where_it_was_looked_for() {
        let error = run(Some(Path::new("/nonexistent/control")), &CtlCommand::Status).unwrap_err();
        assert_eq!(
            error.to_string(),
            "no server answers: /nonexistent/control: No such file or directory; is it running? see --control"
        );
        assert_eq!(error.status(), 1);
    }
}
