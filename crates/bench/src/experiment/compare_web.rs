//! `simoom-bench compare-web`: web servers back to back by file size, the reflector that bounds them, and processor time a request at
//! a rate that both servers hold; medians of paired ratios.

use super::apart;
use super::bed::Busy;
use super::taken::{self, Taken};
use super::web::{self, Bed, Generator, LONGER_S, Load, Run, SEGMENT_BYTES, Server, Up, size, size_word};
use super::{Common, tell_written, told_anew};
use crate::commands::seconds;
use crate::report::{Cell, Machine, Peers, Report, Table};
use crate::stats::{self, Summary};
use anyhow::Result;

/// Options of `simoom-bench compare-web`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each round measures, for each load and file, each server once, one after the other, each in a laboratory of its own (two network
namespaces, one veth pair; server on processor 0, load on processor 1): requests/s of --connections in a closed loop, and how busy the processors are. Then
processor 0's busy time (softirqs included) a request at half of nginx's rate of that round. The first server is the subject, which
the figures of the others divide. Loads: own is `simoom-bench http` over AF_XDP, beside which the reflector is measured, the bound
of a file of that size for a server that sends frame by frame (`reflect --segments`, asked by `bursts`); wrk has the kernel's TCP
with the offloads as they are, and h2load keeps the rate for it. The smallest file is measured with a connection for each request,
too. In a --server's command {simoom} is the server under test, {www} the folder to serve and {run} a folder for its own files; it
serves on 198.18.0.1:80, at interface vs. Writes NAME.csv and NAME.md. Needs root, and nginx.

  simoom-bench compare-web                                    loads own and wrk, 1 KiB to 1 MiB, five rounds
  simoom-bench compare-web --loads own --no-cost --taken 70 --name compare-web-taken      where servers are the bound
  simoom-bench compare-web --loads own --files 1k,64k --rounds 1 --seconds 1 --no-cost --out /tmp      a quick look")]
pub(crate) struct Options {
    /// Who makes the load
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "own,wrk")]
    loads: Vec<Generator>,
    /// Sizes of the files
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1k,4k,16k,64k,256k,1m", value_parser = size)]
    files: Vec<u64>,
    /// The server to measure, again for more; default: simoom over AF_XDP
    #[arg(long, value_name = "NAME=COMMAND", value_parser = web::server)]
    server: Vec<Server>,
    /// Connections at once
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    connections: u16,
    /// How often every server is measured
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// For how long the processors are looked at during a load, which runs 1.4 s longer
    #[arg(long, value_name = "S", default_value = "3", value_parser = seconds)]
    seconds: f64,
    /// How long processor time is measured
    #[arg(long, value_name = "S", default_value = "4", value_parser = seconds)]
    rate_seconds: f64,
    /// Leave processor time out
    #[arg(long)]
    no_cost: bool,
    /// Leave the connection for each request out
    #[arg(long)]
    no_close: bool,
    /// Leave the reflector out
    #[arg(long)]
    no_reflector: bool,
    /// Have each host take in what veth hands over past its receive thread on its own processor too, as two machines would
    #[arg(long)]
    steer: bool,
    /// Percent of the server's processor that something else takes, so that the server is the bound and not the load
    #[arg(long, value_name = "N", default_value_t = 0, requires = "no_cost", value_parser = clap::value_parser!(u32).range(0..=90))]
    taken: u32,
    /// where the processors are
    #[command(flatten)]
    apart: apart::Wanted,
    /// What the result files are called
    #[arg(long, value_name = "NAME", default_value = "compare-web")]
    name: String,
    /// common
    #[command(flatten)]
    common: Common,
}

/// Frames that the reflector may have on their way at once, at most, however many each request brings: as TCP's windows bound what
/// servers have on theirs. The receive ring at the other end has four times as many slots.
const FRAMES_UNDER_WAY: u64 = 2048;

/// One line of the comparison: what is asked for, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Case {
    generator: Generator,
    file_bytes: u64,
    close: bool,
}

impl Case {
    fn words(&self) -> String {
        let manner = if self.close { "a connection a request" } else { "keep-alive" };
        format!("{:<4} {:>5} {manner}", self.generator.word(), size_word(self.file_bytes))
    }
}

/// One server's figures in one case, a round each.
#[derive(Clone, Debug, Default)]
struct Figures {
    requests_per_s: Vec<f64>,
    /// percent of processor 0 that was busy meanwhile, and of the others, as percent of one
    busy: [Vec<f64>; 2],
    /// processor 0's microseconds a request
    cost_us: Vec<f64>,
    failures: u64,
    /// rounds in which the rate was not held
    unheld: usize,
    /// how often a load was made anew of which nothing good had come back
    anew: usize,
}

impl Figures {
    fn take(&mut self, requests_per_s: f64, busy: [f64; 2]) {
        self.requests_per_s.push(requests_per_s);
        self.busy.iter_mut().zip(busy).for_each(|(all, share)| all.push(share));
    }
}

/// A rate is held when so much of it was answered.
const HELD_SHARE: f64 = 0.95;

/// What the project asks of itself (issue 3, "What it must show", 1), as the least ratio of requests/s, or the greatest of processor time.
mod asked {
    use super::{Case, Generator};

    /// Of requests/s beside nginx.
    pub(super) fn beside_nginx(case: &Case) -> f64 {
        match (case.generator, case.file_bytes) {
            (Generator::Wrk, bytes) => {
                if bytes >= 256 << 10 {
                    1.3
                } else {
                    1.0
                }
            }
            (Generator::Own, bytes) if bytes <= 1 << 10 => 2.0,
            (Generator::Own, bytes) if bytes < 16 << 10 => 1.4,
            (Generator::Own, _) => 0.9,
        }
    }

    /// Of requests/s beside the reflector.
    pub(super) const BESIDE_REFLECTOR: f64 = 0.85;
    /// Of processor 0's time a request, beside nginx.
    pub(super) const COST: f64 = 0.5;
}

const NGINX: &str = "nginx";
const REFLECTOR: &str = "reflector";

/// Runs it.
pub(super) fn run(options: &Options) -> Result<()> {
    let mut servers =
        if options.server.is_empty() { vec![Server::simoom("simoom", "")] } else { options.server.clone() };
    servers.push(Server::nginx());
    let bed = Bed::new(&options.common, &servers, web::NGINX_BUFFERS)?.steady(options.apart)?;
    for generator in &options.loads {
        web::ensure_can_run(generator.programs(!options.no_cost))?;
    }
    for bytes in &options.files {
        bed.add_file(&size_word(*bytes), *bytes)?;
    }
    let cases = cases(options);
    let mut names: Vec<String> = servers.iter().map(|server| server.name.clone()).collect();
    names.push(REFLECTOR.into());
    let _taken = Taken::of(options.taken, 0)?;
    let mut figures = vec![vec![Figures::default(); names.len()]; cases.len()];
    for round in 1..=options.rounds {
        for (case, figures) in cases.iter().zip(&mut figures) {
            measure(&bed, options, &servers, case, round, figures)?;
        }
    }
    let mut report = report(options, &names, &cases, &figures);
    report.method += &bed.told_apart();
    print!("{}", report.table.markdown());
    tell_written(&report.write(&options.common.out)?);
    Ok(())
}

fn cases(options: &Options) -> Vec<Case> {
    let smallest = options.files.iter().min().copied();
    let mut cases = Vec::new();
    for &generator in &options.loads {
        for &file_bytes in &options.files {
            cases.push(Case { generator, file_bytes, close: false });
            if Some(file_bytes) == smallest && !options.no_close {
                cases.push(Case { generator, file_bytes, close: true });
            }
        }
    }
    cases
}

/// One round of one case: every server's rate, then every server's processor time at half of nginx's.
fn measure(
    bed: &Bed,
    options: &Options,
    servers: &[Server],
    case: &Case,
    round: u16,
    figures: &mut [Figures],
) -> Result<()> {
    let files = [size_word(case.file_bytes)];
    let (connections, close) = (options.connections, case.close);
    let load =
        Load { generator: case.generator, connections, close, rate: None, seconds: options.seconds, files: &files };
    // our load's program would take it away, after the server has looked
    let server_tso = case.generator == Generator::Wrk;
    let lab = lab::Options { steer: options.steer, server_tso, ..lab::Options::default() };
    let mut answer_bytes = None;
    let mut half = None;
    for (server, figures) in servers.iter().zip(&mut *figures) {
        let mut up = bed.serve(server, &lab, &files)?;
        // the subject's head is what the reflector is to have sent
        answer_bytes.get_or_insert(up.answer_bytes);
        let (run, busy) = watched(&mut up, &load)?;
        eprintln!(
            "{round} {}  {:<20} {:>10.0} requests/s, processors {:.0}% and {:.0}% busy",
            case.words(),
            server.name,
            run.requests_per_s,
            busy[0],
            busy[1]
        );
        figures.take(run.requests_per_s, busy);
        figures.failures += run.failures;
        figures.anew += run.anew;
        if server.name == NGINX {
            half = Some(run.requests_per_s / 2.0);
        }
    }
    if case.generator == Generator::Own && !case.close && !options.no_reflector {
        let (run, busy) = reflect(bed, &lab, &load, answer_bytes.unwrap_or(case.file_bytes))?;
        let frames_per_s = run.frames_per_s.unwrap_or_default();
        eprintln!(
            "{round} {}  {REFLECTOR:<20} {:>10.0} requests/s, {frames_per_s:.0} by frames, processors {:.0}% and {:.0}% busy",
            case.words(),
            run.requests_per_s,
            busy[0],
            busy[1]
        );
        figures[servers.len()].take(frames_per_s, busy);
        figures[servers.len()].anew += run.anew;
    }
    // h2load has no connection for each request
    let keeps_rate = !(case.generator == Generator::Wrk && close);
    let Some(rate) = half.filter(|_| keeps_rate && !options.no_cost) else { return Ok(()) };
    let load = Load { rate: Some(rate), seconds: options.rate_seconds, ..load };
    for (server, figures) in servers.iter().zip(figures) {
        let mut up = bed.serve(server, &lab, &files)?;
        let (cost_us, run) = cost_us(&mut up, &load)?;
        let name = &server.name;
        let answered = run.requests_per_s;
        eprintln!(
            "{round} {}  {name:<20} {cost_us:>10.2} us of processor 0 a request at {answered:.0}/s of {rate:.0}/s",
            case.words()
        );
        figures.cost_us.push(cost_us);
        figures.failures += run.failures;
        figures.anew += run.anew;
        figures.unheld += usize::from(answered < HELD_SHARE * rate);
    }
    Ok(())
}

/// What came of a load, and how busy processor 0 was meanwhile, and all others, each as percent of one.
fn watched(up: &mut Up<'_>, load: &Load<'_>) -> Result<(Run, [f64; 2])> {
    let (run, busy, ()) = up.run_watched(load, web::sleep)?;
    Ok((run, busy.percent()))
}

/// The rate of a reflector for answers of so many octets.
fn reflect(bed: &Bed, lab: &lab::Options, load: &Load<'_>, answer_bytes: u64) -> Result<(Run, [f64; 2])> {
    let segments = answer_bytes.div_ceil(SEGMENT_BYTES);
    let outstanding = (FRAMES_UNDER_WAY / segments).clamp(1, load.connections.into()) as u16;
    let mut up = bed.reflect(lab, segments as u32)?;
    watched(&mut up, &Load { connections: outstanding, ..*load })
}

/// Processor 0's microseconds a good answer at the load's rate, and what came of the load.
fn cost_us(up: &mut Up<'_>, load: &Load<'_>) -> Result<(f64, Run)> {
    let (run, Busy { server_s, span_s, .. }, ()) = up.run_watched(load, web::sleep)?;
    Ok((server_s * 1e6 / (run.requests_per_s * span_s), run))
}

fn report(options: &Options, names: &[String], cases: &[Case], figures: &[Vec<Figures>]) -> Report {
    let mut table = Table::new(&[
        "load",
        "file",
        "connections",
        "server",
        "requests/s",
        "least",
        "greatest",
        "subject's ratio",
        "least",
        "greatest",
        "asked",
        "processor 0 busy, %",
        "others busy, %",
        "processor 0, us a request",
        "least",
        "greatest",
        "subject's ratio",
        "asked",
        "failed",
    ]);
    for (case, figures) in cases.iter().zip(figures) {
        for (at, (name, row)) in names.iter().zip(figures).enumerate() {
            let Some(rate) = Summary::of(&row.requests_per_s) else { continue };
            let subject = &figures[0];
            let ratio = stats::paired_ratio(&subject.requests_per_s, &row.requests_per_s).filter(|_| at > 0);
            let asked = match name.as_str() {
                NGINX => Some(asked::beside_nginx(case)),
                REFLECTOR => Some(asked::BESIDE_REFLECTOR),
                _ => None,
            };
            let [server, others] = row.busy.each_ref().map(|busy| Summary::of(busy).map(|busy| busy.median));
            let cost = Summary::of(&row.cost_us);
            let cost_ratio = stats::paired_ratio(&subject.cost_us, &row.cost_us).filter(|_| at > 0);
            let cost_asked = (name == NGINX && cost.is_some()).then_some(asked::COST);
            table.row(vec![
                Cell::text(case.generator.word()),
                Cell::text(size_word(case.file_bytes)),
                Cell::text(if case.close { "one a request" } else { "kept" }),
                Cell::text(name),
                Cell::Number(rate.median, 0),
                Cell::Number(rate.least, 0),
                Cell::Number(rate.greatest, 0),
                Cell::number(ratio.map(|ratio| ratio.median), 2),
                Cell::number(ratio.map(|ratio| ratio.least), 2),
                Cell::number(ratio.map(|ratio| ratio.greatest), 2),
                asked.map_or(Cell::Missing, |least| Cell::text(format!("≥ {least}"))),
                Cell::number(server, 0),
                Cell::number(others, 0),
                Cell::number(cost.map(|cost| cost.median), 2),
                Cell::number(cost.map(|cost| cost.least), 2),
                Cell::number(cost.map(|cost| cost.greatest), 2),
                Cell::number(cost_ratio.map(|ratio| ratio.median), 2),
                cost_asked.map_or(Cell::Missing, |most| Cell::text(format!("≤ {most}"))),
                Cell::Count(row.failures),
            ]);
        }
    }
    Report {
        name: options.name.clone(),
        title: format!("{} beside nginx by file size, one processor each", names[0]),
        method: method(options, figures),
        table,
        charts: Vec::new(),
        machine: Machine::here(Peers::Web),
    }
}

fn method(options: &Options, figures: &[Vec<Figures>]) -> String {
    let mut text = format!(
        "Requests/s of {} connections in a closed loop, {} s each and {LONGER_S} s more, {} rounds in turn: medians, the least and the greatest round behind \
         them. *Busy* is what processor 0 was meanwhile, and all others together as percent of one: with a load's processor busy throughout and \
         the server's not, the load is the bound. *Subject's ratio* is the median over rounds of the first server's figure divided by the row's. The server has \
         processor 0, the load processor 1, between them one veth pair with its default offloads, a laboratory of its own for each \
         measurement. Each file was asked for and compared before. Requests/s are of good answers, *failed* of those of all loads that were none.",
        options.connections, options.seconds, options.rounds
    );
    text += &taken::told(options.taken);
    if options.steer {
        text += " Each host takes in on its own processor also what veth hands over past its receive thread (`--steer`: receive packet \
                 steering): a sender with TSO would otherwise have the peer's TCP in its own time.";
    }
    if options.loads.contains(&Generator::Own) {
        text += " Load *own* is `simoom-bench http` over AF_XDP: a program attached at the client takes TSO away from the server, so there it has none from the start.";
        if !options.no_reflector {
            text += " The reflector answers each request by as many full frames as the subject's answer has segments of 1448 octets, \
                     without any protocol; its figure is the rate of the frames that came, divided by those of an answer.";
        }
    }
    if options.loads.contains(&Generator::Wrk) {
        text += " Load *wrk* is wrk with one thread, on the kernel's TCP.";
    }
    if !options.no_cost {
        text += &format!(
            " Processor time a request is what processor 0 was not idle for by /proc/stat, softirqs included, over {} s of a load that is {LONGER_S} s longer (of \
             h2load whole seconds), at half of nginx's requests/s of the round, divided by the requests/s of all of that load (`simoom-bench \
             http --rate`; for wrk h2load, which has no connection for each request).",
            options.rate_seconds
        );
        let unheld: usize = figures.iter().flatten().map(|figures| figures.unheld).sum();
        if unheld > 0 {
            text += &format!(
                " In {unheld} of these measurements less than {:.0}% of the rate was answered: their time a request says little.",
                HELD_SHARE * 100.0
            );
        }
    }
    text += &told_anew(figures.iter().flatten().map(|figures| figures.anew).sum());
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::parsed;

    fn options(words: &[&str]) -> Options {
        let words = [&["compare-web"], words].concat();
        parsed::<Options>(words).unwrap()
    }

    #[test]
    fn the_smallest_file_has_a_connection_for_each_request_too() {
        let case = |generator, file_bytes, close| Case { generator, file_bytes, close };
        let all = cases(&options(&["--loads", "own,wrk", "--files", "4k,1k"]));
        use Generator::{Own, Wrk};
        let expected = [
            case(Own, 4096, false),
            case(Own, 1024, false),
            case(Own, 1024, true),
            case(Wrk, 4096, false),
            case(Wrk, 1024, false),
            case(Wrk, 1024, true),
        ];
        assert_eq!(all, expected);
        assert_eq!(cases(&options(&["--loads", "own", "--files", "4k", "--no-close"])), expected[..1]);
        assert_eq!(cases(&options(&[])).len(), 14);
    }

    #[test]
    fn rows_have_paired_ratios_and_what_is_asked() {
        let options = options(&["--loads", "own", "--files", "1k", "--no-close"]);
        let names = ["simoom", NGINX, REFLECTOR].map(String::from);
        let row = |rates: &[f64], costs: &[f64]| Figures {
            requests_per_s: rates.to_vec(),
            busy: [vec![50.0, 54.0], vec![99.0, 101.0]],
            cost_us: costs.to_vec(),
            failures: 3,
            unheld: 1,
            anew: 0,
        };
        let figures = [row(&[300.0, 200.0], &[2.0, 3.0]), row(&[100.0, 100.0], &[8.0, 6.0]), row(&[400.0, 400.0], &[])];
        let report = report(&options, &names, &cases(&options), &[figures.to_vec()]);
        let csv = report.table.csv();
        let rows: Vec<&str> = csv.lines().skip(1).collect();
        assert_eq!(rows[0], "own,1k,kept,simoom,250,200,300,,,,,52,100,2.50,2.00,3.00,,,3");
        assert_eq!(rows[1], "own,1k,kept,nginx,100,100,100,2.50,2.00,3.00,≥ 2,52,100,7.00,6.00,8.00,0.38,≤ 0.5,3");
        assert_eq!(rows[2], "own,1k,kept,reflector,400,400,400,0.62,0.50,0.75,≥ 0.85,52,100,,,,,,3");
        assert!(report.method.contains("In 3 of these"), "{}", report.method);
        assert!(report.method.contains("reflector") && !report.method.contains("wrk with one"), "{}", report.method);
    }

    #[test]
    fn what_is_taken_of_the_processor_is_told_and_leaves_no_time_a_request() {
        let told = |words: &[&str]| report(&options(words), &["simoom".into()], &[], &[]).method;
        assert!(told(&["--taken", "70", "--no-cost"]).contains(" Of processor 0 something else takes 70% "));
        assert!(!told(&["--no-cost"]).contains("something else"));
        assert!(parsed::<Options>(["compare-web", "--taken", "70"]).is_err(), "busy time is the other's, too");
    }

    #[test]
    fn what_is_asked_follows_the_size_and_the_load() {
        let asked = |generator, file_bytes| asked::beside_nginx(&Case { generator, file_bytes, close: false });
        assert_eq!(
            [1, 4, 16, 64, 256, 1024].map(|kib| asked(Generator::Own, kib << 10)),
            [2.0, 1.4, 0.9, 0.9, 0.9, 0.9]
        );
        assert_eq!(
            [1, 4, 16, 64, 256, 1024].map(|kib| asked(Generator::Wrk, kib << 10)),
            [1.0, 1.0, 1.0, 1.0, 1.3, 1.3]
        );
    }
}
