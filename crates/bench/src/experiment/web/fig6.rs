//! `simoom-bench experiment fig6`: ways to send, and system calls (the paper's figure 6, whose lines are pre-copy, memcpy and nginx).

use super::figure::{self, Line, Plan, Point};
use super::{Bed, NGINX_BUFFERS, Server, size, size_word};
use anyhow::Result;

/// Options of fig6.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
fig6: requests/s, Gb/s, processor 0's busy time, system calls and memory of simoom web by file size, for each way to send
(--transmit), beside nginx; a way that the server does not have here is left out, and the report says so. fig6-flush: the same for one
file by the most frames that are handed to the kernel before it is asked to send (--batch; our stack flushes once a cycle instead of
by a timer). Writes NAME.csv, NAME.svg (throughput), NAME-2.svg (processor), NAME-3.svg (system calls) and NAME.md of both. Needs
root, nginx, wrk and perf.")]
pub(crate) struct Options {
    /// Ways to send
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "copy,precopy,gather,offload")]
    transmit: Vec<String>,
    /// Sizes of the file
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1k,4k,16k,64k,256k,1m", value_parser = size)]
    points: Vec<u64>,
    /// The most frames a flush
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,4,16,64", value_parser = clap::value_parser!(u16).range(1..=64))]
    flush: Vec<u16>,
    /// Size of the file whose flush is swept
    #[arg(long, value_name = "SIZE", default_value = "16k", value_parser = size)]
    flush_file: u64,
    /// Leave the sweep of the flush out
    #[arg(long)]
    no_flush: bool,
    /// Connections at once
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    connections: u16,
    /// figure
    #[command(flatten)]
    figure: figure::Manner,
}

/// Runs it.
pub(in crate::experiment) fn run(options: &Options) -> Result<()> {
    let servers = [Server::nginx(), Server::simoom("simoom", "")];
    let bed = Bed::new(&options.figure.common, &servers, NGINX_BUFFERS)?.steady(options.figure.apart)?;
    for &bytes in options.points.iter().chain([&options.flush_file]) {
        bed.add_file(&size_word(bytes), bytes)?;
    }
    figure::run(&bed, &by_transmit(options), &options.figure)?;
    if !options.no_flush {
        figure::run(&bed, &by_flush(options), &options.figure)?;
    }
    Ok(())
}

fn by_transmit(options: &Options) -> Plan {
    let point = |&bytes: &u64| {
        let word = size_word(bytes);
        let x = bytes as f64 / 1024.0;
        Point { x, word: word.clone(), connections: options.connections, files: vec![word] }
    };
    let mut lines = vec![Line::new(&Server::nginx(), true)];
    for transmit in &options.transmit {
        let server = Server::simoom(&format!("simoom, {transmit}"), &format!("--transmit {transmit}"));
        lines.push(Line { optional: true, ..Line::new(&server, true) });
    }
    Plan {
        name: "fig6".into(),
        title: "Ways to send a file".into(),
        what: format!(
            "The paper's figure 6 on one processor and one link: {} connections at once that fetch one file, by its size, for each way \
             to send it.",
            options.connections
        ),
        axis: "file, KiB",
        points: options.points.iter().map(point).collect(),
        lines,
        calls: true,
    }
}

fn by_flush(options: &Options) -> Plan {
    let word = size_word(options.flush_file);
    let point = |&frames: &u16| Point {
        x: frames.into(),
        word: frames.to_string(),
        connections: options.connections,
        files: vec![word.clone()],
    };
    let line = |transmit: &String| {
        let server = |frames: &u16| Server::simoom("simoom", &format!("--transmit {transmit} --batch {frames}"));
        let servers = options.flush.iter().map(server).collect();
        Line { name: format!("simoom, {transmit}"), servers, offloads: true, optional: true }
    };
    Plan {
        name: "fig6-flush".into(),
        title: format!("How often the kernel is asked to send, {word}"),
        what: format!(
            "{} connections at once that fetch a file of {word}, by the most frames of a cycle (--batch), after which our stack has the \
             kernel send: the paper's transmit flush, which a timer sets off there.",
            options.connections
        ),
        axis: "frames a flush, at most",
        points: options.flush.iter().map(point).collect(),
        lines: options.transmit.iter().map(line).collect(),
        calls: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::parsed;

    #[test]
    fn lines_are_ways_to_send_and_the_flush_is_the_batch() {
        let options = parsed::<Options>(["fig6", "--points", "1k,4k", "--flush", "1,64"]).unwrap();
        let plan = by_transmit(&options);
        assert_eq!(plan.lines.len(), 5);
        assert!(plan.lines[1..].iter().all(|line| line.optional && line.name.starts_with("simoom, ")));
        assert!(!plan.lines[0].optional);
        assert_eq!(plan.points.iter().map(|point| point.x).collect::<Vec<_>>(), [1.0, 4.0]);
        let plan = by_flush(&options);
        assert_eq!(plan.points.len(), 2);
        for line in &plan.lines {
            let words: Vec<String> = line.servers.iter().map(|server| server.words.join(" ")).collect();
            assert!(words[0].contains("--batch 1 ") && words[1].contains("--batch 64 "), "{words:?}");
        }
    }
}
