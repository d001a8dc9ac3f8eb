//! `simoom-bench results`: all reports as one page.

use crate::page;
use anyhow::{Context as _, Result};
use std::fs;
use std::path::PathBuf;

/// Options of `simoom-bench results`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The page has every report (*.md) of the folder, with the plots that they refer to inside, and a table of what was measured when, at
which commit and by which command; it needs no other file. Written into the folder itself unless --out says where.")]
pub(crate) struct Options {
    /// The folder of the reports
    #[arg(value_name = "DIR", default_value = "docs/results")]
    folder: PathBuf,
    /// Where to write the page; default: index.html in the folder
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Runs it.
pub(crate) fn run(options: &Options) -> Result<()> {
    let text = page::page(&options.folder)?;
    let path = options.out.clone().unwrap_or_else(|| options.folder.join("index.html"));
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    eprintln!("wrote {}", path.display());
    Ok(())
}
