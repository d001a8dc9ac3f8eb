//! `simoom-bench zone`: the synthetic zones as files.

use crate::queries::{Content, Synthetic, VERSIONS};
use anyhow::{Context as _, Result};
use std::io::{BufWriter, Write as _};
use std::path::PathBuf;

/// Options of `simoom-bench zone`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
host<i> has the address 198.18.(i/250 mod 250).(i mod 250 + 1); with --zone-version V four, 10.V.k.(i mod 250 + 1) for k from 0
to 3, so that every answer tells which version of the zone it is from.")]
pub(crate) struct Options {
    /// How many names
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    names: u64,
    /// Its apex
    #[arg(long, value_name = "ORIGIN", default_value = "example.com")]
    zone: String,
    /// Records that tell this version
    #[arg(long, value_name = "V", value_parser = clap::value_parser!(u8).range(..i64::from(VERSIONS)))]
    zone_version: Option<u8>,
    /// The file; standard output unless told
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Runs it.
pub(crate) fn run(options: &Options) -> Result<()> {
    let content = options.zone_version.map_or(Content::Plain, Content::Version);
    let zone = Synthetic { origin: options.zone.clone(), names: options.names, content };
    match &options.out {
        Some(path) => zone.write_file(path),
        None => {
            let mut out = BufWriter::new(std::io::stdout().lock());
            zone.write(&mut out).and_then(|()| out.flush()).context("cannot write to standard output")
        }
    }
}
