//! `simoom-bench experiment loss`: how much gets through a path that loses frames and is long, from servers of different TCPs to
//! clients of the kernel's.

use super::downloads::{self, Download};
use super::{Common, tell_written};
use crate::commands::seconds;
use crate::report::{Axis, Cell, Chart, Machine, Report, Series, Table};
use crate::stats::{self, Summary};
use anyhow::{Context as _, Result, ensure};
use lab::{Lab, MIDDLE, Process};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Options of `simoom-bench experiment loss`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Goodput of --connections that fetch one file again and again from a server in turn with nginx, on the kernel's TCP, through
`simoom-bench wire`; every byte is compared. Then one connection fetches one long file over 100 ms each way without loss. In a
--server's command {simoom} is the server under test, {www} the folder to serve (the files are /file and /long) and {run} a folder for
its own files; it serves on 198.18.0.1:80, at interface vs. Writes NAME.csv, NAME.svg and NAME.md. Needs root, and nginx. With what is
preset a round takes five to six minutes.")]
pub(crate) struct Options {
    /// A server to measure against nginx, again for more; default: simoom over AF_XDP
    #[arg(long, value_name = "NAME=COMMAND", value_parser = server)]
    server: Vec<Server>,
    /// Losses in percent, or P:N for bursts of N frames on average
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "0.1,1,5,1:8")]
    losses: Vec<String>,
    /// Delays each way, in milliseconds
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "0,1,20,100")]
    delays: Vec<f64>,
    /// The line's rate, as `wire` has it; any unless told
    #[arg(long, value_name = "R")]
    rate: Option<String>,
    /// Connections at once
    #[arg(long, value_name = "N", default_value_t = 80, value_parser = clap::value_parser!(u16).range(1..=1000))]
    connections: u16,
    /// KiB of the file
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    kib: u32,
    /// MiB of the file that one connection fetches over 100 ms without loss; 0 to leave that out
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(0..=1 << 10))]
    long_mib: u32,
    /// Congestion control of the kernel that nginx runs on, in turn with each where there are several; ratios are to the first.
    /// What machines are set to differs, and so does what it means: CUBIC yields to loss, BBR hardly does
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "cubic,bbr")]
    kernel: Vec<String>,
    /// How long each load runs
    #[arg(long, value_name = "S", default_value = "6", value_parser = seconds)]
    seconds: f64,
    /// How often every server is measured
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// What the result files are called
    #[arg(long, value_name = "NAME", default_value = "loss")]
    name: String,
    /// common
    #[command(flatten)]
    common: Common,
}

/// A server: what it goes by, and its command.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Server {
    name: String,
    words: Vec<String>,
    /// of the kernel that it runs on; None for as it is
    kernel: Option<String>,
}

const NGINX: &str = "nginx=nginx -c {run}/nginx.conf";
const SIMOOM: &str = "simoom={simoom} web --interface vs --listen 198.18.0.1:80 --cpus 0 --control {run}/control {www}";
/// Delay each way, in milliseconds, of the path without loss that one connection has for itself.
const LONG_DELAY_MS: f64 = 100.0;
/// Frames that fit on it.
const LONG_HOLD: &str = "262144";
const ADDRESS: &str = "198.18.0.1:80";
/// How long a server, or the wire, may take to come up.
const START: Duration = Duration::from_secs(60);
/// How long one attempt to reach it waits: some SYNs over a bad path.
const PROBE: Duration = Duration::from_secs(4);

const NGINX_CONF: &str = "daemon off;
worker_processes 1;
pid {run}/nginx.pid;
error_log stderr;
events { worker_connections 4096; }
http {
  access_log off;
  sendfile on;
  tcp_nopush on;
  keepalive_requests 1000000;
  client_body_temp_path {run}/body;
  proxy_temp_path {run}/proxy;
  fastcgi_temp_path {run}/fastcgi;
  uwsgi_temp_path {run}/uwsgi;
  scgi_temp_path {run}/scgi;
  server { listen 198.18.0.1:80 backlog=1024; root {www}; }
}
";

fn server(text: &str) -> Result<Server, String> {
    let (name, command) = text.split_once('=').ok_or("NAME=COMMAND")?;
    let words: Vec<String> = command.split_whitespace().map(String::from).collect();
    if name.is_empty() || words.is_empty() {
        Err("NAME=COMMAND".into())
    } else {
        Ok(Server { name: name.into(), words, kernel: None })
    }
}

/// nginx on a kernel with each congestion control, then the others.
fn servers(options: &Options) -> Result<Vec<Server>> {
    let parse = |text| server(text).map_err(anyhow::Error::msg);
    let mut all = Vec::new();
    for kernel in &options.kernel {
        let nginx = parse(NGINX)?;
        all.push(Server { name: format!("{} ({kernel})", nginx.name), kernel: Some(kernel.clone()), ..nginx });
    }
    ensure!(!all.is_empty(), "--kernel names no congestion control");
    if options.server.is_empty() {
        all.push(parse(SIMOOM)?);
    }
    all.extend(options.server.iter().cloned());
    Ok(all)
}

/// What does not change from load to load.
struct Bed {
    folder: tempfile::TempDir,
    simoom: String,
    content: Vec<u8>,
    long: Vec<u8>,
}

impl Bed {
    fn new(options: &Options, servers: &[Server]) -> Result<Bed> {
        ensure!(rustix::process::geteuid().is_root(), "this makes network namespaces: run it as root");
        lab::require_programs(&["nginx"]);
        // from here on an interruption ends what runs in order: load, server, namespaces
        lab::interrupt_by(crate::commands::stop_flag()?);
        let asks = |server: &Server| server.words.iter().any(|word| word.contains("{simoom}"));
        let simoom =
            if servers.iter().any(asks) { options.common.simoom()?.display().to_string() } else { String::new() };
        let folder = tempfile::Builder::new().prefix("simoom-bench-").tempdir().context("no temporary folder")?;
        // nginx's worker is another user
        std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        let mut rng = base::rng::Rng::new(17);
        let mut bytes = |kib: u64| (0..kib * 128).flat_map(|_| rng.next_u64().to_ne_bytes()).collect();
        let (content, long) = (bytes(u64::from(options.kib)), bytes(u64::from(options.long_mib) << 10));
        let bed = Bed { folder, simoom, content, long };
        for name in ["www", "run"] {
            std::fs::create_dir(bed.folder.path().join(name)).context("no folder for the servers")?;
        }
        std::fs::write(bed.folder.path().join("www/file"), &bed.content)
            .context("cannot write the file to be served")?;
        std::fs::write(bed.folder.path().join("www/long"), &bed.long).context("cannot write the long file")?;
        std::fs::write(bed.folder.path().join("run/nginx.conf"), bed.fill(NGINX_CONF))?;
        Ok(bed)
    }

    /// Puts what is known now into the braces.
    fn fill(&self, text: &str) -> String {
        let path = |name: &str| self.folder.path().join(name).display().to_string();
        text.replace("{www}", &path("www")).replace("{run}", &path("run")).replace("{simoom}", &self.simoom)
    }

    /// Goodput of one server over one path, in bits a second, and how many frames the path had no room for.
    fn measure(&self, options: &Options, server: &Server, point: &Point, round: u16) -> Result<(f64, u64)> {
        let lab = Lab::with_middle(&lab::Options::default())?;
        if let Some(kernel) = &server.kernel {
            // by route: what a namespace may set for all is restricted
            let route = ["ip", "route", "change", "198.18.0.0/24", "dev", "vs", "proto", "kernel", "scope", "link"];
            let chosen = lab.server().run(&[&route[..], &["src", "198.18.0.1", "congctl", kernel]].concat());
            chosen.with_context(|| format!("no congestion control {kernel} in this kernel"))?;
        }
        let mut command = lab.server().command("taskset");
        command.args(["-c", "0"]).args(server.words.iter().map(|word| self.fill(word)));
        let mut process = Process::spawn(command)?;
        let at: SocketAddr = ADDRESS.parse()?;
        let kind = if point.loss.contains(':') { "--burst-loss" } else { "--loss" };
        let (delay, seed) = (point.delay_ms.to_string(), round.to_string());
        let mut faults = vec![kind, &point.loss, "--delay", &delay, "--seed", &seed];
        if point.long {
            faults.extend(["--hold", LONG_HOLD]);
        }
        faults.extend(options.rate.iter().flat_map(|rate| ["--rate", rate]));
        let mut wire = wire(&lab, &faults)?;
        let answers = || lab.client().inside(|| TcpStream::connect_timeout(&at, PROBE).is_ok());
        process.wait_until(answers, START).with_context(|| format!("{} does not come up", server.name))?;
        // the server may have attached a program, too
        lab.pin();
        let (path, content) = if point.long { ("/long", &self.long) } else { ("/file", &self.content) };
        let download = Download { at, path, content };
        let goodput = lab.client().inside(|| {
            crate::procs::pin(1)?;
            downloads::run(&download, usize::from(point.connections), Duration::from_secs_f64(options.seconds))
        })?;
        if let Some(status) = process.ended() {
            anyhow::bail!("{} ended ({status}): {}", server.name, process.log().trim());
        }
        if goodput.reconnects > 0 {
            eprintln!("{}: {} connections ended and were made again", server.name, goodput.reconnects);
        }
        wire.stop();
        Ok((goodput.bits_per_s(), overflow(&wire.log())?))
    }
}

/// Joins the hosts of `lab` with these faults.
fn wire(lab: &Lab, faults: &[&str]) -> Result<Process> {
    let [a, b] = MIDDLE;
    let middle = lab.middle().context("a laboratory with a middle")?;
    let mut command = middle.command(std::env::current_exe().context("where this program lies")?);
    command.args(["wire", "--a", a, "--b", b, "--cpu", "1", "--json"]).args(faults);
    let mut wire = Process::spawn(command)?;
    wire.wait_for("joined", START)?;
    // attaching a program made the receive threads anew
    lab.pin();
    Ok(wire)
}

/// The frames that a wire had no room for or missed, by what it printed.
fn overflow(log: &str) -> Result<u64> {
    let line = log.lines().find(|line| line.starts_with('[')).with_context(|| format!("no counts in: {log}"))?;
    let directions: Vec<serde_json::Value> = serde_json::from_str(line).context("the counts of a wire")?;
    let of = |(direction, name): (&serde_json::Value, &str)| {
        direction["frames"][name].as_u64().with_context(|| format!("no {name} in the counts"))
    };
    directions.iter().flat_map(|direction| ["overflow", "missed"].map(|name| (direction, name))).map(of).sum()
}

/// One path, and what was measured over it: rounds by server.
struct Point {
    loss: String,
    delay_ms: f64,
    connections: u16,
    /// the long file, without loss
    long: bool,
    goodputs: Vec<Vec<f64>>,
    /// frames that found no room, by server
    overflows: Vec<u64>,
}

/// Runs it.
pub(super) fn run(options: &Options) -> Result<()> {
    let servers = servers(options)?;
    let bed = Bed::new(options, &servers)?;
    let mut points = points(options, servers.len());
    for round in 1..=options.rounds {
        for point in &mut points {
            for (at, server) in servers.iter().enumerate() {
                let (goodput, overflow) = bed.measure(options, server, point, round)?;
                eprintln!(
                    "{round} loss {:>5} delay {:>5} ms  {:>3} x {:<20} {:>9.2} Mbit/s",
                    point.loss,
                    point.delay_ms,
                    point.connections,
                    server.name,
                    goodput / 1e6
                );
                point.goodputs[at].push(goodput);
                point.overflows[at] += overflow;
            }
        }
    }
    let report = report(options, &servers, &points);
    print!("{}", report.table.markdown());
    tell_written(&report.write(&options.common.out)?);
    Ok(())
}

/// Every loss with every delay, then the path without loss.
fn points(options: &Options, servers: usize) -> Vec<Point> {
    let point = |loss: &str, delay_ms, connections, long| Point {
        loss: loss.to_owned(),
        delay_ms,
        connections,
        long,
        goodputs: vec![Vec::new(); servers],
        overflows: vec![0; servers],
    };
    let of = |loss: &String| {
        options.delays.iter().map(|delay_ms| point(loss, *delay_ms, options.connections, false)).collect::<Vec<_>>()
    };
    let mut points: Vec<Point> = options.losses.iter().flat_map(of).collect();
    if options.long_mib > 0 {
        points.push(point("0", LONG_DELAY_MS, 1, true));
    }
    points
}

fn report(options: &Options, servers: &[Server], points: &[Point]) -> Report {
    let mut table = Table::new(&[
        "loss %",
        "delay each way ms",
        "connections",
        "server",
        "goodput Mbit/s",
        "least",
        "greatest",
        "ratio to the first",
        "least ratio",
        "greatest ratio",
        "no room, frames",
    ]);
    for point in points {
        for ((server, goodputs), overflow) in servers.iter().zip(&point.goodputs).zip(&point.overflows) {
            let Some(Summary { median, least, greatest, .. }) = Summary::of(goodputs) else { continue };
            let ratio = stats::paired_ratio(goodputs, &point.goodputs[0]);
            table.row(vec![
                Cell::text(&point.loss),
                Cell::Number(point.delay_ms, 1),
                Cell::Count(point.connections.into()),
                Cell::text(&server.name),
                Cell::Number(median / 1e6, 2),
                Cell::Number(least / 1e6, 2),
                Cell::Number(greatest / 1e6, 2),
                Cell::number(ratio.map(|ratio| ratio.median), 2),
                Cell::number(ratio.map(|ratio| ratio.least), 2),
                Cell::number(ratio.map(|ratio| ratio.greatest), 2),
                Cell::Count(*overflow),
            ]);
        }
    }
    let title = format!("Goodput over a lossy path, {} connections", options.connections);
    let rate = options.rate.as_ref().map_or_else(|| "no rate".into(), |rate| format!("a rate of {rate}"));
    let method = format!(
        "{} connections of the kernel's TCP fetch a file of {} KiB again and again for {} s, from the first SYN on; the bytes of bodies \
         that came in that time count, every one compared. The path is `simoom-bench wire` between two veth pairs, with the same loss \
         and delay each way and {rate}; a loss of P:N is P% in bursts of N frames on average. In parentheses stands the congestion \
         control of the kernel that nginx runs on; what another one reaches over a path that loses at random says how it takes loss, \
         not how well it repairs it. Servers have processor 0, clients and the path processor 1; where neither loss nor delay holds the \
         clients back, those two are the limit. {} rounds in turn, each with a seed of its own for the losses: medians, and medians of the \
         ratios within a round. The row of a single connection is one file of {} MiB. The last column has the frames that the path had no \
         room for (all rounds), beside those that it lost on purpose.",
        options.connections, options.kib, options.seconds, options.rounds, options.long_mib
    );
    let chart = Chart {
        title: title.clone(),
        x: Axis::linear("delay each way, ms"),
        y: Axis::linear(&format!("goodput, ratio to {}", servers[0].name)),
        series: series(options, servers, points),
    };
    Report { name: options.name.clone(), title, method, table, chart: Some(chart), machine: Machine::here(true) }
}

/// A line for each server beside nginx and each loss: the ratio over the delay.
fn series(options: &Options, servers: &[Server], points: &[Point]) -> Vec<Series> {
    let mut all = Vec::new();
    for (at, server) in servers.iter().enumerate().skip(1) {
        for loss in &options.losses {
            let of = points.iter().filter(|point| point.loss == *loss && !point.long);
            let ratios = of.filter_map(|point| {
                let ratio = stats::paired_ratio(&point.goodputs[at], &point.goodputs[0])?;
                Some(((point.delay_ms, ratio.median), (ratio.least, ratio.greatest)))
            });
            let (line, spread): (Vec<_>, Vec<_>) = ratios.unzip();
            all.push(Series::new(format!("{}, {loss}%", server.name), line).with_spread(spread));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_a_name_and_a_command() {
        let nginx = server(NGINX).unwrap();
        assert_eq!((nginx.name.as_str(), nginx.words.len()), ("nginx", 3));
        assert_eq!(server(SIMOOM).unwrap().words[0], "{simoom}");
        for wrong in ["", "nginx", "=nginx", "nginx="] {
            assert!(server(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_report_has_every_path_and_ratios_within_rounds() {
        let words = ["loss", "--losses", "1,1:8", "--delays", "0,20", "--kernel", "reno", "--server", "ours=x {run}/y"];
        let options = <Cli as clap::Parser>::parse_from(words).options;
        let servers = servers(&options).unwrap();
        assert_eq!(servers.iter().map(|server| server.name.as_str()).collect::<Vec<_>>(), ["nginx (reno)", "ours"]);
        let mut points = points(&options, 2);
        for point in &mut points {
            (point.goodputs, point.overflows) = (vec![vec![1e6, 4e6, 2e6], vec![2e6, 4e6, 6e6]], vec![0, 7]);
        }
        let report = report(&options, &servers, &points);
        let csv = report.table.csv();
        assert_eq!(csv.lines().count(), 1 + 10, "{csv}");
        assert!(csv.contains("1:8,20.0,80,ours,4.00,2.00,6.00,2.00,1.00,3.00,7"), "{csv}");
        assert!(csv.contains("\n0,100.0,1,ours,4.00"), "{csv}");
        assert_eq!(report.chart.unwrap().series.len(), 2);
    }

    #[test]
    fn overflow_is_of_both_directions() {
        let log = "joined\n[{\"frames\":{\"overflow\":3,\"missed\":1}},{\"frames\":{\"overflow\":4,\"missed\":2}}]\n";
        assert_eq!(overflow(log).unwrap(), 10);
        assert!(overflow("joined\n").is_err() && overflow("[{}]\n").is_err());
    }

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        options: Options,
    }
}
