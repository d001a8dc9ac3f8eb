//! `simoom-bench pipe-kv`: nanoseconds, or instructions, a GET in the key-value service alone, and in our stack with it, with no kernel in it.

mod clients;
mod hostile;
mod line;
mod protected;
#[cfg(test)]
mod tests;

pub(crate) use protected::{AppOptions, ProtectionOptions, app, protection};

use crate::pipe::{Common, Figure, callgrind, measure, write};
use anyhow::Result;
use clients::{Alone, Clients, Plan, items};
use std::path::PathBuf;
use std::sync::Arc;

/// Options of `simoom-bench pipe-kv`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A store of many items is asked for them in random order, one GET a connection at a time. First the service alone is given requests in bursts as an engine
would give them, and what it sends is taken at once. Then it answers a peer over an in-memory pipe in one thread, as in `simoom-bench
pipe-tcp`: the server's cycles are timed, asking and checking is not in the figure. Every answer is compared with what was stored; what is
wrong ends the program with status 1.

  simoom-bench pipe-kv --cpu 1
  simoom-bench pipe-kv --items 1000 --connections 1 --callgrind")]
pub(crate) struct Options {
    #[command(flatten)]
    common: Common,
    /// Items
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..=50_000_000))]
    items: u32,
    /// Bytes of each value
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1000))]
    bytes: u32,
    /// Connections, each with one GET on its way
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=512))]
    connections: u16,
    /// Write pipe-kv.csv and pipe-kv.md there
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// A store on the pipe that is asked with several batches.
pub(crate) struct Gets {
    plan: Plan,
    shared: Arc<kv::Shared>,
}

impl Gets {
    /// A store of so many items of 32 bytes; 512 connections.
    pub(crate) fn new(items: u32) -> Result<Gets> {
        let plan = Plan { items, bytes: 32, connections: 512, batch: base::BURST_FRAMES, echo: false };
        Ok(Gets { plan, shared: Arc::new(clients::items(&plan)?) })
    }

    /// Nanoseconds a GET of stack and service with so many frames a cycle, over so many GETs after so many others.
    pub(crate) fn round(&self, batch: usize, [warm_up, gets]: [u64; 2]) -> Result<f64> {
        let plan = Plan { batch, ..self.plan };
        let service = kv::Server::new(self.shared.clone(), plan.options(), self.shared.stats());
        let mut clients = Clients::new(plan, service)?;
        clients.run(warm_up)?;
        Ok(clients.run(gets)?.median_ns)
    }
}

/// GETs of a round.
const ROUND: u64 = 1_000_000;

/// Runs it.
pub(crate) fn run(options: &Options) -> Result<()> {
    let common = &options.common;
    if let Some(cpu) = common.cpu {
        crate::procs::pin(cpu)?;
    }
    let plan = Plan {
        items: options.items,
        bytes: options.bytes as usize,
        connections: usize::from(options.connections),
        batch: usize::from(common.batch),
        echo: false,
    };
    let what = format!("GET of {} bytes, {} items", options.bytes, options.items);
    let whole = format!("{what}, {} connections: the server", options.connections);
    if common.callgrind {
        let few = 64 * u64::from(options.connections);
        println!("{}", Figure::once(&whole, "instructions a GET", 0, callgrind([few, 4 * few])?).line());
        return Ok(());
    }
    let shared = Arc::new(items(&plan)?);
    let mut alone = Alone::new(&plan, shared.clone());
    let mut figures = Vec::new();
    let (summary, mean) = measure(common, [ROUND / 4, ROUND], |gets| alone.run(gets), |ns| ns)?;
    let unit = "ns a GET";
    let figure =
        |what: String, summary, mean| Figure { what, unit, decimals: 1, summary, mean: Some(mean), asked: None };
    let is_asked = options.items == 1_000_000;
    figures.push(figure(format!("{what}: the service"), summary, mean).asked(is_asked.then_some("200 ns")));
    println!("{}", figures[0].line());
    let stats = shared.stats();
    let mut clients = Clients::new(plan, kv::Server::new(shared, plan.options(), stats))?;
    let (summary, mean) = measure(common, [ROUND / 4, ROUND], |gets| clients.run(gets), |ns| ns)?;
    figures.push(figure(whole, summary, mean).asked(is_asked.then_some("450 ns")));
    println!("{}", figures[1].line());
    if let Some(out) = &options.out {
        let method = format!(
            "Time in the key-value service alone, and in stack and service over the in-memory pipe, one thread, IPv4, timestamps and SACK, \
             checksums made and verified; the peer's own time excluded. Medians of {} rounds, a round being the median of its sections \
             (see `simoom-bench pipe-kv --help`); *mean* is over all sections of all rounds.",
            common.rounds
        );
        write(out, "pipe-kv", "Key-value store on the in-memory pipe", &method, &figures)?;
    }
    Ok(())
}
