//! `simoom-bench pipe-http`: nanoseconds, or instructions, a request in our stack and web service, with no kernel in it.

mod clients;
#[cfg(test)]
mod tests;

use crate::pipe::{Common, Figure, callgrind, measure, write};
use anyhow::{Result, ensure};
use clients::{Clients, Plan};
pub(crate) use clients::{head, one_file};
use std::path::PathBuf;

/// Options of `simoom-bench pipe-http`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A site with files of each size is served to a peer over an in-memory pipe in one thread, as in `simoom-bench pipe-tcp`: each
connection asks for a file, the server's cycles are timed, the peer takes what came and acknowledges every second segment, until all
answers are whole; then they ask again on the same connections. Asking, checking and acknowledging is not in the figure. Status,
Content-Length and the number of bytes of every answer are checked, of the bytes one segment in 64 whole and others at their
ends; what is wrong ends the program with status 1.

  simoom-bench pipe-http --cpu 1
  simoom-bench pipe-http --sizes 4096 --files 10000 --callgrind")]
pub(crate) struct Options {
    #[command(flatten)]
    common: Common,
    /// Bytes of the files, with commas between
    #[arg(
        long,
        value_name = "N,...",
        value_delimiter = ',',
        default_value = "1024,4096,16384,65536,262144,1048576",
        value_parser = clap::value_parser!(u64).range(1..=1 << 30)
    )]
    sizes: Vec<u64>,
    /// Files of each size, asked for in random order
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    files: u32,
    /// Connections
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=512))]
    connections: u16,
    /// Segments in flight, of all connections together
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u16).range(2..=1024))]
    in_flight: u16,
    /// Write pipe-http.csv and pipe-http.md there
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Bytes that a round asks for, about.
const ROUND_BYTES: u64 = 1 << 30;

/// Runs it.
pub(crate) fn run(options: &Options) -> Result<()> {
    let common = &options.common;
    if let Some(cpu) = common.cpu {
        crate::procs::pin(cpu)?;
    }
    ensure!(!common.callgrind || options.sizes.len() == 1, "--callgrind is for one size at a time: give --sizes N");
    let mut figures = Vec::new();
    for &bytes in &options.sizes {
        for figure in one_size(options, bytes)? {
            println!("{}", figure.line());
            figures.push(figure);
        }
    }
    if let Some(out) = &options.out {
        let method = format!(
            "Server time in the stack and the web service over the in-memory pipe, one thread, IPv4, MTU 1500, keep-alive, \
             timestamps and SACK, checksums made and verified; the peer's own time excluded. Medians of {} rounds, a round being \
             the median of its sections (see `simoom-bench pipe-http --help`); *mean* is over all sections of all rounds.",
            common.rounds
        );
        write(out, "pipe-http", "HTTP on the in-memory pipe", &method, &figures)?;
    }
    Ok(())
}

fn one_size(options: &Options, bytes: u64) -> Result<Vec<Figure>> {
    let common = &options.common;
    let connections = u64::from(options.connections);
    let what = format!("GET of {bytes} bytes, {connections} connections, {} files", options.files);
    if common.callgrind {
        let few = 8 * connections;
        let a_request = callgrind([few, 4 * few])?;
        return Ok(vec![Figure::once(&what, "instructions a request", 0, a_request)]);
    }
    let mut clients = Clients::new(Plan {
        bytes,
        files: options.files,
        connections: usize::from(options.connections),
        in_flight: usize::from(options.in_flight),
        batch: usize::from(common.batch),
    })?;
    let round = (ROUND_BYTES / bytes).clamp(4 * connections, 500_000);
    let warm_up = (round / 4).max(connections);
    let (summary, mean) = measure(common, [warm_up, round], |requests| clients.run(requests), |ns| ns)?;
    let (median, unit) = (summary.median, "ns a request");
    Ok(vec![
        Figure { what: what.clone(), unit, decimals: 1, summary, mean: Some(mean), asked: None },
        Figure::once(&what, "requests/s", 0, 1e9 / median),
        Figure::once(&what, "Gb/s of content", 1, bytes as f64 * 8.0 / median),
    ])
}
