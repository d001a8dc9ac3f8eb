//! Servers of messages in the laboratory (`simoom-bench answer`), on processor 0 of the server's host, and what asks them (`simoom-bench
//! messages`), on processor 1 of the client's.

use crate::commands::messages::Results;
use crate::messages::Outcome;
use anyhow::{Context as _, Result, ensure};
use lab::{Lab, Process};
use std::time::Duration;

/// Where servers answer.
pub(super) const ADDRESS: &str = "198.18.0.1:7";
/// Where our own stack's connections come from: addresses that the kernel of the client's host does not have.
pub(super) const OWN_ADDRESSES: &str = "198.18.0.3-198.18.0.34";
/// How long a server may take to come up.
const START: Duration = Duration::from_secs(60);
/// A load ends by itself.
const PATIENCE: Duration = Duration::from_secs(600);

/// Who serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Engine {
    /// ours over AF_XDP
    AfXdp,
    /// ours on kernel sockets
    Sockets,
    /// a plain loop over epoll
    Epoll,
    /// one connection of the kernel's, asleep in read()
    Blocking,
    /// the same, asking again and again
    Spinning,
}

impl Engine {
    /// In reports.
    pub(super) fn name(self) -> &'static str {
        match self {
            Engine::AfXdp => "simoom, AF_XDP",
            Engine::Sockets => "simoom, sockets",
            Engine::Epoll => "epoll",
            Engine::Blocking => "kernel, blocking",
            Engine::Spinning => "kernel, spinning",
        }
    }

    fn words(self) -> [&'static str; 2] {
        match self {
            Engine::AfXdp => ["--interface", "vs"],
            Engine::Sockets => ["--engine", "sockets"],
            Engine::Epoll => ["--engine", "epoll"],
            Engine::Blocking => ["--engine", "blocking"],
            Engine::Spinning => ["--engine", "spinning"],
        }
    }
}

/// A server that answers. It ends with this value, and its laboratory with it.
#[derive(Debug)]
pub(super) struct Served {
    // ends before its host goes
    process: Process,
    lab: Lab,
    engine: Engine,
}

/// Starts a server with further options in `lab`.
pub(super) fn serve(lab: Lab, engine: Engine, options: &[&str]) -> Result<Served> {
    let own = std::env::current_exe().context("where this program lies")?;
    let mut command = lab.server().command(own);
    command.args(["answer", "--listen", ADDRESS, "--cpu", "0"]).args(engine.words()).args(options);
    let mut process = Process::spawn(command)?;
    process.wait_for("answering at ", START).with_context(|| format!("{} does not come up", engine.name()))?;
    Ok(Served { process, lab, engine })
}

impl Served {
    /// The laboratory.
    pub(super) fn lab(&self) -> &Lab {
        &self.lab
    }

    /// The server's process, as long as it runs.
    pub(super) fn pid(&mut self) -> Result<u32> {
        let Served { process, engine, .. } = self;
        ensure!(process.ended().is_none(), "{} ended: {}", engine.name(), process.log().trim());
        // `ip netns exec` becomes the command that it starts
        Ok(process.id())
    }

    /// Starts a load over our own stack with further options.
    pub(super) fn start_load(&self, options: &[&str]) -> Result<Process> {
        let words = [&["--interface", "vc", "--address", OWN_ADDRESSES], options].concat();
        self.start(&words)
    }

    /// Starts a client with these options.
    pub(super) fn start(&self, options: &[&str]) -> Result<Process> {
        let own = std::env::current_exe().context("where this program lies")?;
        let mut command = self.lab.client().command(own);
        command.args(["messages", "--server", ADDRESS, "--cpu", "1", "--json"]).args(options);
        Process::spawn(command)
    }

    /// Waits for a client's end; its runs. What failed in them is an error; that nothing came back is for the caller to judge.
    pub(super) fn finish(&mut self, mut load: Process) -> Result<Vec<Outcome>> {
        let status = load.wait(PATIENCE)?;
        let (log, name) = (load.log(), self.engine.name());
        let runs = super::web::json::<Results>(&log).map(|results| results.runs);
        let is_done = status.success() || runs.as_ref().is_ok_and(|runs| is_silent(runs));
        ensure!(is_done, "the load on {name} failed ({status}): {}", log.trim());
        self.pid()?;
        runs
    }
}

/// Nothing was wrong but that of one run nothing came back.
fn is_silent(runs: &[Outcome]) -> bool {
    runs.iter().all(|run| run.wrong == 0 && run.failures.is_empty()) && runs.iter().any(|run| run.answered == 0)
}
