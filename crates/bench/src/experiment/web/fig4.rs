//! `simoom-bench experiment fig4` and `fig5`: throughput and processor use beside nginx, by file size, and for files as sites have them
//! (Marinos, Watson, Handley: Network Stack Specialization for Performance, SIGCOMM 2014, figures 4 and 5).

use super::figure::{self, Line, Plan, Point};
use super::{Bed, NGINX_BUFFERS, Server, server, size, size_word};
use anyhow::Result;
use std::str::FromStr;

/// A state of the devices' offloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(in crate::experiment) enum Offloads {
    /// segmentation and checksums in the device
    On,
    /// neither
    Off,
}

/// What both figures' lines are.
#[derive(Clone, Debug, clap::Args)]
pub(in crate::experiment) struct Lines {
    /// Offloads of both ends
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "on,off")]
    offloads: Vec<Offloads>,
    /// A server to measure beside nginx, again for more, as in `compare-web`; default: simoom over AF_XDP
    #[arg(long, value_name = "NAME=COMMAND", value_parser = server)]
    server: Vec<Server>,
}

impl Lines {
    fn servers(&self) -> Vec<Server> {
        let mut servers = vec![Server::nginx()];
        if self.server.is_empty() {
            servers.push(Server::simoom("simoom", ""));
        }
        servers.extend(self.server.iter().cloned());
        servers
    }

    fn lines(&self) -> Vec<Line> {
        let of = |offloads: &Offloads| {
            let on = *offloads == Offloads::On;
            self.servers().into_iter().map(move |server| Line::new(&server, on))
        };
        self.offloads.iter().flat_map(of).collect()
    }

    fn bed(&self, figure: &figure::Manner) -> Result<Bed> {
        Bed::new(&figure.common, &self.servers(), NGINX_BUFFERS)?.steady(figure.apart)
    }
}

/// Options of fig4.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Requests/s, Gb/s and processor 0's busy time of nginx and ours by file size, with the devices' offloads on and off. As in the paper
each request has a connection of its own (--keep-alive for the other). Writes fig4.csv, fig4.svg (throughput), fig4-2.svg (processor)
and fig4.md. Needs root, nginx and wrk.")]
pub(crate) struct SizeOptions {
    /// Sizes of the file
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1k,4k,16k,64k,256k,1m", value_parser = size)]
    points: Vec<u64>,
    /// Connections at once
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    connections: u16,
    /// lines
    #[command(flatten)]
    lines: Lines,
    /// figure
    #[command(flatten)]
    figure: figure::Manner,
}

/// Runs fig4.
pub(in crate::experiment) fn by_size(options: &SizeOptions) -> Result<()> {
    let bed = options.lines.bed(&options.figure)?;
    let mut points = Vec::new();
    for &bytes in &options.points {
        let word = size_word(bytes);
        bed.add_file(&word, bytes)?;
        let x = bytes as f64 / 1024.0;
        points.push(Point { x, word: word.clone(), connections: options.connections, files: vec![word] });
    }
    let plan = Plan {
        name: "fig4".into(),
        title: "Web servers by file size".into(),
        what: format!(
            "The paper's figure 4 on one processor and one link: {} connections at once that fetch one file.",
            options.connections
        ),
        axis: "file, KiB",
        points,
        lines: options.lines.lines(),
        calls: false,
    };
    figure::run(&bed, &plan, &options.figure)
}

/// Options of fig5.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A site of --files files whose sizes are those of a power law: 90% under 25 KB, from 2 KB to 20 MB, as the paper says of the Yahoo!
CDN's. They are asked for in turn, in an order shuffled once, by each number of connections of --points. Writes fig5.csv, fig5.svg
(throughput), fig5-2.svg (processor) and fig5.md. Needs root, nginx and wrk.")]
pub(crate) struct TraceOptions {
    /// Numbers of connections at once
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "8,64,256", value_parser = connections)]
    points: Vec<u16>,
    /// Files of the site
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(2..=10_000))]
    files: u32,
    /// lines
    #[command(flatten)]
    lines: Lines,
    /// figure
    #[command(flatten)]
    figure: figure::Manner,
}

fn connections(text: &str) -> Result<u16, String> {
    let number = u16::from_str(text).ok().filter(|number| (1..=4096).contains(number));
    number.ok_or_else(|| "a number of connections from 1 to 4096".into())
}

/// Runs fig5.
pub(in crate::experiment) fn of_a_trace(options: &TraceOptions) -> Result<()> {
    let bed = options.lines.bed(&options.figure)?;
    let sizes = trace(options.files);
    let mut files = Vec::new();
    for (at, &bytes) in sizes.iter().enumerate() {
        let name = format!("f{at}");
        bed.add_file(&name, bytes)?;
        files.push(name);
    }
    base::rng::Rng::new(5).shuffle(&mut files);
    // what a server is found up by is not the largest
    let small = files.iter().position(|name| name == "f0").unwrap_or_default();
    files.rotate_left(small);
    let whole: u64 = sizes.iter().sum();
    let point = |&connections: &u16| Point {
        x: connections.into(),
        word: connections.to_string(),
        connections,
        files: files.clone(),
    };
    let plan = Plan {
        name: "fig5".into(),
        title: format!("Web servers, a site of {} files", options.files),
        what: format!(
            "The paper's figure 5, by connections at once instead of network cards: a site of {} files, 90% of them under 25 KB, from \
             {} to {} octets, {:.1} KB on average, asked for in turn in a shuffled order.",
            options.files,
            sizes[0],
            sizes[sizes.len() - 1],
            whole as f64 / 1e3 / sizes.len() as f64
        ),
        axis: "connections",
        points: options.points.iter().map(point).collect(),
        lines: options.lines.lines(),
        calls: false,
    };
    figure::run(&bed, &plan, &options.figure)
}

/// Sizes of `count` files, growing: the quantiles of a bounded Pareto distribution from 2 KB to 20 MB whose exponent puts nine of ten
/// under 25 KB.
fn trace(count: u32) -> Vec<u64> {
    let (least, most) = (2e3, 20e6);
    // the share above 25 KB, (2/25)^a of the unbounded law, is a tenth
    let exponent = 10f64.ln() / (25e3f64 / least).ln();
    let tail = (least / most).powf(exponent);
    let size = |at: u32| {
        let quantile = f64::from(at) / f64::from(count - 1);
        (least * (1.0 - quantile * (1.0 - tail)).powf(-1.0 / exponent)).round() as u64
    };
    (0..count).map(size).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trace_is_what_the_paper_says_of_it() {
        let sizes = trace(1000);
        let under = sizes.iter().filter(|bytes| **bytes < 25_000).count();
        assert!((890..=910).contains(&under), "{under}");
        assert_eq!((sizes[0], sizes[999]), (2_000, 20_000_000));
        assert!(sizes.is_sorted());
        assert_eq!(trace(2), [2_000, 20_000_000]);
    }

    #[test]
    fn lines_are_servers_by_offloads() {
        let lines = Lines { offloads: vec![Offloads::On, Offloads::Off], server: Vec::new() };
        let all: Vec<_> = lines.lines().into_iter().map(|line| (line.name, line.offloads)).collect();
        let expected = [("nginx", true), ("simoom", true), ("nginx", false), ("simoom", false)];
        assert_eq!(all, expected.map(|(name, on)| (name.to_owned(), on)));
    }

    #[test]
    fn connections_have_bounds() {
        assert_eq!(connections("64"), Ok(64));
        for wrong in ["", "0", "5000", "x"] {
            assert!(connections(wrong).is_err(), "{wrong}");
        }
    }
}
