//! The table by which a NIC spreads flows over its queues, while it follows flow groups.
//!
//! To write it takes CAP_NET_ADMIN, and a server has no capability left. So the table is kept by a process of its own (`simoom
//! keep-table`, which the server starts before it drops its privileges): it knows the table as it found it, writes what it is told over
//! a socket, queues that are served and nothing else, and when the socket closes, however the server has ended, puts back what it found.
//! It keeps that one capability (for a pinned map none), and reads nothing but that socket.
//!
//! Somebody else may write the table, too. Before each write it must be what was written last; if it is not, it is the other's from
//! then on, and stays as it is, also at the end.
//!
//! If both processes are killed, the table stays as it was written last: see ARCHITECTURE.md for the mend.

use crate::config::Settings;
use crate::error::{Error, reason};
use crate::words::{Balance, RssTable};
use base::balance::{IndirectionTable, Turn};
use port_xdp::nic::Nic;
use rustix::thread::{CapabilitySet, CapabilitySets};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// How long the keeper may take for a write, and to end. A driver that resets its queues takes long.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of a line at most: every entry of the largest table with its queue.
const LINE_BYTES: u64 = 1 << 20;

/// A table that can be written. Entries are queues; a packet's is that of its hash modulo their number.
pub(crate) trait NicTable {
    /// The queue of each entry.
    fn read(&mut self) -> Result<Vec<u32>, String>;

    /// Writes all of it, `before` being what it is now.
    fn write(&mut self, table: &[u32], before: &[u32]) -> Result<(), String>;
}

/// An interface's own, by the ethtool ioctls.
impl NicTable for Nic {
    fn read(&mut self) -> Result<Vec<u32>, String> {
        let rss = self.rss().map_err(|error| reason(&error))?;
        rss.map(|rss| rss.table).ok_or_else(|| "the device has no table".into())
    }

    fn write(&mut self, table: &[u32], _: &[u32]) -> Result<(), String> {
        self.set_rss_table(table).map_err(|error| reason(&error))?.ok_or_else(|| "the driver does not take one".into())
    }
}

/// A program's.
impl NicTable for bpf::rss::Table {
    fn read(&mut self) -> Result<Vec<u32>, String> {
        bpf::rss::Table::read(self).map_err(|error| error.to_string())
    }

    fn write(&mut self, table: &[u32], before: &[u32]) -> Result<(), String> {
        for (entry, (queue, _)) in table.iter().zip(before).enumerate().filter(|(_, (queue, before))| queue != before) {
            self.set(entry as u32, *queue).map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

/// `simoom keep-table`.
#[derive(Debug, clap::Args)]
pub struct KeepCommand {
    /// The interface whose table it is
    #[arg(long, value_name = "IF", required_unless_present = "map")]
    interface: Option<String>,
    /// A pinned map that is the table
    #[arg(long, value_name = "FILE")]
    map: Option<PathBuf>,
    /// Queues that entries may name
    #[arg(long, value_name = "N")]
    queues: u32,
}

/// A table with its history.
struct Kept<T> {
    table: T,
    queues: u32,
    found: Vec<u32>,
    /// what it should be now
    written: Vec<u32>,
}

impl<T: NicTable> Kept<T> {
    fn find(mut table: T, queues: u32) -> Result<Kept<T>, String> {
        let found = table.read()?;
        Ok(Kept { table, queues, written: found.clone(), found })
    }

    /// Has entries name other queues: all of them or, as far as the device allows, none.
    fn turn(&mut self, turns: &[(usize, u32)]) -> Result<(), String> {
        let mut next = self.written.clone();
        for &(entry, queue) in turns {
            let place = next.get_mut(entry).ok_or_else(|| format!("it has no entry {entry}"))?;
            if queue >= self.queues {
                return Err(format!("queue {queue} is not served"));
            }
            *place = queue;
        }
        if self.table.read()? != self.written {
            return Err("somebody else has written it".into());
        }
        let written = self.table.write(&next, &self.written);
        let now = self.table.read()?;
        if now == next {
            self.written = next;
            return Ok(());
        }
        if now != self.written {
            // half of it was done; if taking that back fails as well, the next look finds a table that is not ours
            let _ = self.table.write(&self.written, &now);
        }
        written?;
        Err("the device has not taken what was written".into())
    }

    /// Puts back what was found, unless the table is somebody else's by now.
    fn put_back(&mut self) -> Result<(), String> {
        if self.written == self.found {
            return Ok(());
        }
        if self.table.read()? != self.written {
            return Err("somebody else has written it, and it stays as it is".into());
        }
        self.table.write(&self.found, &self.written)
    }
}

/// The keeper: does what it is told until nobody is there to tell it.
///
/// # Errors
/// What kept it from reading the table, or from putting it back.
pub(crate) fn keep(command: &KeepCommand) -> Result<String, Error> {
    // whoever ends the server by a signal to all its processes wants the table back as well
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))
            .map_err(|error| Error::environment(format!("signals: {}", reason(&error))))?;
    }
    match (&command.map, &command.interface) {
        (Some(map), _) => {
            let table =
                bpf::rss::Table::open(map).map_err(|error| failed(&map.display().to_string(), &error.to_string()))?;
            give_up_all_but(CapabilitySet::empty())?;
            obey(table, command.queues, &map.display().to_string())
        }
        (None, Some(interface)) => {
            give_up_all_but(CapabilitySet::NET_ADMIN)?;
            obey(Nic::of(interface), command.queues, interface)
        }
        (None, None) => Err(Error::input("keep-table: give --interface or --map")),
    }
}

fn failed(name: &str, why: &str) -> Error {
    Error::environment(format!("{name}: the table: {why}"))
}

fn give_up_all_but(kept: CapabilitySet) -> Result<(), Error> {
    let refused = |error: rustix::io::Errno| Error::environment(format!("privileges: {}", reason(&error.into())));
    rustix::thread::set_no_new_privs(true).map_err(refused)?;
    rustix::thread::clear_ambient_capability_set().map_err(refused)?;
    let has = rustix::thread::capabilities(None).map_err(refused)?;
    let left = has.permitted & kept;
    let sets = CapabilitySets { effective: left, permitted: left, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets).map_err(refused)
}

fn obey(table: impl NicTable, queues: u32, name: &str) -> Result<String, Error> {
    let mut kept = Kept::find(table, queues).map_err(|why| failed(name, &why))?;
    let (mut input, mut output) = (BufReader::new(io::stdin().lock()), io::stdout().lock());
    let mut said = sentence(&kept.found);
    // whoever started us is gone when reading or writing ends
    while writeln!(output, "{said}").and_then(|()| output.flush()).is_ok() {
        let mut line = String::new();
        if input.by_ref().take(LINE_BYTES).read_line(&mut line).unwrap_or(0) == 0 {
            break;
        }
        said = match pairs(&line)
            .ok_or_else(|| "not a list of entries and queues".to_owned())
            .and_then(|it| kept.turn(&it))
        {
            Ok(()) => "done".to_owned(),
            Err(why) => why.replace('\n', " "),
        };
    }
    kept.put_back().map_err(|why| failed(name, &why))?;
    Ok(String::new())
}

fn sentence(numbers: &[u32]) -> String {
    numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")
}

fn numbers(line: &str) -> Option<Vec<u32>> {
    line.split_ascii_whitespace().map(|word| word.parse().ok()).collect()
}

fn pairs(line: &str) -> Option<Vec<(usize, u32)>> {
    let numbers = numbers(line)?;
    numbers.len().is_multiple_of(2).then(|| numbers.chunks_exact(2).map(|pair| (pair[0] as usize, pair[1])).collect())
}

/// The server's end. Dropping it has the table put back.
#[derive(Debug)]
pub(crate) struct Keeper {
    name: String,
    child: Child,
    /// None once it is dropped
    socket: Option<BufReader<UnixStream>>,
    found: Vec<u32>,
}

impl Keeper {
    /// A keeper for the table of `interface`, of which so many queues are served; None where the settings want none or there is none
    /// that could be kept. Needs privileges.
    ///
    /// # Errors
    /// The table that was asked for by name is not to be had.
    pub(crate) fn start(settings: &Settings, interface: &str, queues: usize) -> Result<Option<Keeper>, Error> {
        if queues < 2 || settings.balance == Some(Balance::Off) {
            return Ok(None);
        }
        let (option, what) = match &settings.rss_table {
            RssTable::Keep => return Ok(None),
            RssTable::Map(file) => ("--map", file.as_str()),
            // reading needs no privileges, and nobody is started in vain
            RssTable::Follow => match Nic::of(interface).rss() {
                Ok(Some(rss)) if rss.table.len().is_power_of_two() => ("--interface", interface),
                _ => return Ok(None),
            },
        };
        match Keeper::spawn(&[option, what, "--queues", &queues.to_string()], what) {
            Ok(keeper) => Ok(Some(keeper)),
            Err(why) if option == "--map" => Err(Error::environment(format!("--rss-table {what}: {why}"))),
            Err(why) => {
                tracing::warn!("{interface}: the NIC's table stays as it is: {why}");
                Ok(None)
            }
        }
    }

    fn spawn(args: &[&str], name: &str) -> Result<Keeper, String> {
        let failed = |error: io::Error| reason(&error);
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        let (input, output) = (OwnedFd::from(theirs.try_clone().map_err(failed)?), OwnedFd::from(theirs));
        let mut command = crate::child::ourselves();
        // a group of its own: what a terminal or a supervisor sends to ours is not meant for it
        command.arg("keep-table").args(args).stdin(Stdio::from(input)).stdout(Stdio::from(output)).process_group(0);
        let child = command.spawn().map_err(|error| format!("its keeper cannot be started: {}", reason(&error)))?;
        // the child has its copies
        drop(command);
        ours.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
        let mut keeper = Keeper { name: name.to_owned(), child, socket: Some(BufReader::new(ours)), found: Vec::new() };
        let line = keeper.hear()?;
        keeper.found = numbers(&line).filter(|table| !table.is_empty()).ok_or_else(|| format!("it says: {line}"))?;
        Ok(keeper)
    }

    fn hear(&mut self) -> Result<String, String> {
        let socket = self.socket.as_mut().ok_or("it has ended")?;
        let mut line = String::new();
        match socket.read_line(&mut line) {
            Ok(0) => Err("its keeper has ended".into()),
            Ok(_) => Ok(line.trim_end().to_owned()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Err(format!("no answer in {} s", PATIENCE.as_secs()))
            }
            Err(error) => Err(reason(&error)),
        }
    }

    /// The table as it was found.
    pub(crate) fn found(&self) -> &[u32] {
        &self.found
    }
}

impl IndirectionTable for Keeper {
    fn write(&mut self, turns: &[Turn]) -> Result<(), String> {
        let all: Vec<u32> = turns.iter().flat_map(|turn| [turn.entry.into(), turn.queue.into()]).collect();
        let line = format!("{}\n", sentence(&all));
        let socket = self.socket.as_mut().ok_or("it has ended")?;
        socket.get_mut().write_all(line.as_bytes()).map_err(|error| reason(&error))?;
        match self.hear()? {
            said if said == "done" => Ok(()),
            said => Err(said),
        }
    }

    fn given_up(&mut self, why: &str) {
        tracing::warn!(
            "{}: the NIC's table is not written any more, flow groups are handed over between threads: {why}",
            self.name
        );
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // it ends with the socket
        self.socket = None;
        crate::child::wait(&mut self.child, PATIENCE);
    }
}

#[cfg(test)]
mod tests;
