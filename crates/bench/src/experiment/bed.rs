//! Where servers are measured: the laboratory's two hosts, the server on processor 0, the generator on processor 1, the
//! receive threads of either side on its own processor.

use super::ANEW_MOST;
use super::subject::{Data, Subject};
use crate::commands::dns::Results;
use crate::grid::{Capacity, Step};
use crate::load::{Good, Outcome};
use crate::procs::Ticks;
use crate::queries::Synthetic;
use anyhow::{Context as _, Result, bail, ensure};
use lab::{Lab, Process};
use std::io::Write as _;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where the server answers.
pub(crate) const SERVER: &str = "198.18.0.1:53";
/// How long a server may take to load a zone and answer.
const START: Duration = Duration::from_secs(60);

/// Who makes the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Generator {
    /// simoom-bench dns
    Own,
    /// Knot's kxdpgun
    Kxdpgun,
}

/// What does not change from server to server.
#[derive(Debug)]
pub(crate) struct Bed {
    data: Data,
    zone: Synthetic,
    simoom: PathBuf,
    generator: Generator,
}

/// A server that answers in a laboratory of its own. Both end with this value.
#[derive(Debug)]
pub(crate) struct Served<'a> {
    bed: &'a Bed,
    // the server ends before its host goes
    process: Process,
    lab: Lab,
    reflects: bool,
    name: String,
}

/// Processor time over an interval.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Busy {
    /// of processor 0, softirqs included, in seconds
    pub(crate) server_s: f64,
    /// of the whole machine
    pub(crate) machine_s: f64,
    /// the interval
    pub(crate) span_s: f64,
}

impl Busy {
    /// How busy processor 0 was, and all others, each in percent of one.
    pub(crate) fn percent(&self) -> [f64; 2] {
        [self.server_s, self.machine_s - self.server_s].map(|busy_s| busy_s / self.span_s * 100.0)
    }
}

impl Bed {
    /// Writes the zone and the questions. `simoom` is the server's binary.
    pub(crate) fn new(zone: Synthetic, simoom: &Path, generator: Generator) -> Result<Bed> {
        ensure!(rustix::process::geteuid().is_root(), "this makes network namespaces: run it as root");
        // from here on an interruption ends what runs in order: load, server, namespaces
        lab::interrupt_by(crate::commands::stop_flag()?);
        let data = Data::new()?;
        zone.write_file(&data.zone())?;
        let mut questions = std::io::BufWriter::new(std::fs::File::create(data.questions())?);
        let mut rng = base::rng::Rng::new(7);
        for _ in 0..zone.names.clamp(1 << 16, 200_000) {
            writeln!(questions, "host{}.{} A", rng.below(zone.names), zone.origin)?;
        }
        questions.flush()?;
        Ok(Bed { data, zone, simoom: simoom.to_owned(), generator })
    }

    /// The folder of the zone.
    pub(crate) fn data(&self) -> &Data {
        &self.data
    }

    /// Starts `subject` in a fresh laboratory and waits until it answers.
    pub(crate) fn serve(&self, subject: &Subject) -> Result<Served<'_>> {
        let lab = Lab::new()?;
        let command = subject.command(&self.data, &self.simoom)?;
        let mut server = lab.server().command("taskset");
        server.args(["-c", "0"]).args(&command);
        let mut process = Process::spawn(server)?;
        let reflects = subject.reflects();
        let ready = if reflects {
            await_log(&mut process, "reflecting", START)
        } else {
            process.wait_until(|| lab.client().inside(|| answers(&self.zone.origin)), START)
        };
        ready.with_context(|| format!("{} does not come up", subject.name()))?;
        // attaching a program may have made the receive threads anew
        lab.pin();
        Ok(Served { bed: self, process, lab, reflects, name: subject.name() })
    }
}

/// Waits until `process` has written `words`.
fn await_log(process: &mut Process, words: &str, timeout: Duration) -> Result<()> {
    let end = std::time::Instant::now() + timeout;
    while !process.log().contains(words) {
        if let Some(status) = process.ended() {
            bail!("it ended ({status}): {}", process.log().trim());
        }
        ensure!(std::time::Instant::now() < end, "no '{words}' after {timeout:?}: {}", process.log().trim());
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Whether the zone's SOA is answered.
fn answers(origin: &str) -> bool {
    let ask = || -> Option<()> {
        let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
        socket.connect(SERVER).ok()?;
        socket.set_read_timeout(Some(Duration::from_millis(200))).ok()?;
        socket.send(&question(origin, 6)).ok()?;
        let mut answer = [0; 1500];
        let len = socket.recv(&mut answer).ok()?;
        // QR, RCODE 0, one answer
        is_good(&answer[..len]).then_some(())
    };
    ask().is_some()
}

/// Whether this is an answer (QR), without error (RCODE 0) and of one record (RFC 1035 section 4.1.1).
pub(crate) fn is_good(message: &[u8]) -> bool {
    message.len() > 12 && message[2] & 0x80 != 0 && message[3] & 15 == 0 && message[6..8] == [0, 1]
}

/// A question in wire format, id 1.
pub(crate) fn question(name: &str, rtype: u16) -> Vec<u8> {
    let mut wire = vec![0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.trim_end_matches('.').split('.') {
        wire.push(label.len() as u8);
        wire.extend_from_slice(label.as_bytes());
    }
    wire.push(0);
    wire.extend_from_slice(&rtype.to_be_bytes());
    wire.extend_from_slice(&[0, 1]);
    wire
}

impl Served<'_> {
    /// The laboratory.
    pub(crate) fn lab(&self) -> &Lab {
        &self.lab
    }

    /// The server's process, while it runs; its group has the same number.
    pub(crate) fn server_pid(&mut self) -> Result<u32> {
        match self.process.ended() {
            // `ip netns exec` and `taskset` become the command that they start
            None => Ok(self.process.id()),
            Some(status) => bail!("{} ended ({status}): {}", self.name, self.process.log().trim()),
        }
    }

    /// Which of its answers are good.
    pub(crate) fn good(&self) -> Good {
        if self.reflects { Good::Any } else { Good::NoError }
    }

    /// The command of our generator in the client's host.
    pub(crate) fn own_load(&self, options: &[&str]) -> Result<std::process::Command> {
        let zone = &self.bed.zone;
        let ours = std::env::current_exe().context("where this program lies")?;
        let mut command = self.lab.client().command(ours);
        command.args(["dns", "--interface", "vc", "--cpu", "1", "--json", "--server", SERVER]);
        command.args(["--zone", &zone.origin, "--names", &zone.names.to_string()]);
        if matches!(zone.content, crate::queries::Content::Version(_)) {
            command.arg("--versioned");
        }
        if self.reflects {
            let mac = self.lab.server().mac()?.map(|byte| format!("{byte:02x}")).join(":");
            command.args(["--any-answer", "--server-mac", &mac]);
        }
        command.args(options);
        Ok(command)
    }

    /// Good answers a second over the grid of rates. An error when one was wrong, or when the server ended: what it could do before has no
    /// meaning then.
    pub(crate) fn capacity(&mut self, rates: &[f64], seconds: f64) -> Result<Capacity> {
        let capacity = match self.bed.generator {
            Generator::Own => self.own_capacity(rates, seconds)?,
            Generator::Kxdpgun => self.kxdpgun_capacity(rates, seconds)?,
        };
        self.server_pid()?;
        Ok(capacity)
    }

    fn own_capacity(&self, rates: &[f64], seconds: f64) -> Result<Capacity> {
        let rates = rates.iter().map(f64::to_string).collect::<Vec<_>>().join(",");
        let options = ["--rate", &rates, "--stop-past-peak", "--seconds", &seconds.to_string()];
        let mut load = Process::spawn(self.own_load(&options)?)?;
        Ok(self.finished(&mut load)?.capacity)
    }

    fn kxdpgun_capacity(&self, rates: &[f64], seconds: f64) -> Result<Capacity> {
        let mut capacity = Capacity::default();
        for rate in rates {
            let KxdpgunRun { sent, answered, good } = self.kxdpgun(*rate, seconds)?;
            let good = if self.reflects { answered } else { good };
            capacity.add(&Step { due: *rate, sent, good, good_share: good / sent.max(1.0) });
            if capacity.is_over() {
                break;
            }
        }
        Ok(capacity)
    }

    fn kxdpgun(&self, rate: f64, seconds: f64) -> Result<KxdpgunRun> {
        let questions = self.bed.data.questions();
        let (rate, span) = (format!("{rate:.0}"), format!("{:.0}", seconds.max(1.0)));
        let questions = questions.to_str().context("a temporary path in UTF-8")?;
        let args =
            ["taskset", "-c", "1", "kxdpgun", "-t", &span, "-Q", &rate, "-i", questions, "-p", "53", "198.18.0.1"];
        let text = self.lab.client().run(&args)?;
        KxdpgunRun::parse(&text, seconds.max(1.0)).with_context(|| format!("what kxdpgun printed: {text}"))
    }

    /// Waits for our generator and takes its results. Wrong answers are an error.
    fn finished(&self, load: &mut Process) -> Result<Results> {
        let results = reported(load)?;
        results.ensure_right().with_context(|| format!("what {} answered", self.name))?;
        Ok(results)
    }

    /// One rate by our generator, with the processor time that passed while it ran at that rate, and how often it was asked anew because
    /// the generator had fallen behind. An error as with [`Served::capacity`].
    pub(crate) fn at_rate(&mut self, rate: f64, seconds: f64) -> Result<(Outcome, Busy, usize)> {
        let mut anew = 0;
        loop {
            let (outcome, busy) = self.once_at_rate(rate, seconds)?;
            let step = Step::of(&outcome, self.good());
            if step.is_asked() {
                // else its latency would be that of none, 0
                ensure!(
                    outcome.good_share(self.good()) > 0.0,
                    "{} gave no good answer at {rate} questions/s",
                    self.name
                );
                return Ok((outcome, busy, anew));
            }
            let behind = format!("of {:.0} questions/s due the generator sent {:.0}", step.due, step.sent);
            ensure!(anew < ANEW_MOST, "{behind}, and no more {ANEW_MOST} times before: choose a lower rate");
            eprintln!("{behind}: asked anew");
            anew += 1;
        }
    }

    fn once_at_rate(&mut self, rate: f64, seconds: f64) -> Result<(Outcome, Busy)> {
        let (rate, span) = (rate.to_string(), (seconds + 3.0).to_string());
        let load = self.own_load(&["--rate", &rate, "--seconds", &span, "--progress", "--wait", "poll"])?;
        let mut load = Process::spawn(load)?;
        // its first line of progress comes after a second at the rate
        await_log(&mut load, "answered", Duration::from_secs(30))?;
        let before = (Ticks::now(Some(0))?, Ticks::now(None)?, std::time::Instant::now());
        std::thread::sleep(Duration::from_secs_f64(seconds));
        let after = (Ticks::now(Some(0))?, Ticks::now(None)?);
        let busy = Busy {
            server_s: after.0.busy_s_since(before.0),
            machine_s: after.1.busy_s_since(before.1),
            span_s: before.2.elapsed().as_secs_f64(),
        };
        let results = self.finished(&mut load)?;
        self.server_pid()?;
        Ok((results.runs.into_iter().next().context("the generator measured nothing")?, busy))
    }
}

/// Waits for our generator and takes what it tells, which may be wrong answers: whoever calls this judges them.
pub(crate) fn reported(load: &mut Process) -> Result<Results> {
    let status = load.wait(Duration::from_secs(3600))?;
    let log = load.log();
    let line = log.lines().rfind(|line| line.starts_with('{'));
    let line = line.with_context(|| format!("the generator failed ({status}): {}", log.trim()))?;
    let results: Results = serde_json::from_str(line).context("the generator's results")?;
    // wrong answers are the one failure that it tells figures with
    ensure!(status.success() || results.ensure_right().is_err(), "the generator failed ({status}): {}", log.trim());
    Ok(results)
}

struct KxdpgunRun {
    sent: f64,
    answered: f64,
    good: f64,
}

impl KxdpgunRun {
    fn parse(text: &str, seconds: f64) -> Option<KxdpgunRun> {
        let number = |line_start: &str, word: usize| -> Option<f64> {
            let line = text.lines().find(|line| line.trim_start().starts_with(line_start))?;
            line.trim_start()[line_start.len()..].split_whitespace().nth(word)?.parse().ok()
        };
        let sent = number("total queries:", 0)?;
        let answered = number("total replies:", 0).unwrap_or(0.0);
        let good = number("responded NOERROR:", 0).or_else(|| number("NOERROR:", 0)).unwrap_or(0.0);
        Some(KxdpgunRun { sent: sent / seconds, answered: answered / seconds, good: good / seconds })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kxdpguns_summary_is_read() {
        let text = "using interface vc, XDP threads 1, IPv4/UDP 100 queries/s\nthread#00: sent 200, received 199\n\
                    total queries:     200 (100 pps) (50.0%)\ntotal replies:     199 (99 pps) (99%)\naverage DNS reply size: 49 B\n\
                    responded NOERROR:    198\nresponded REFUSED:    1\nduration: 2 s\n";
        let run = KxdpgunRun::parse(text, 2.0).unwrap();
        assert_eq!((run.sent, run.answered, run.good), (100.0, 99.5, 99.0));
        assert!(KxdpgunRun::parse("nothing", 1.0).is_none());
    }

    #[test]
    fn a_question_is_in_wire_format() {
        assert_eq!(question("a.bc.", 1)[12..], *b"\x01a\x02bc\x00\x00\x01\x00\x01");
    }

    #[test]
    fn an_answer_is_good_without_error_and_with_its_record() {
        let mut answer = question("a.bc.", 1);
        assert!(!is_good(&answer), "a question");
        (answer[2], answer[7]) = (0x84, 1);
        assert!(is_good(&answer));
        assert!(!is_good(&answer[..12]), "a head alone");
        for (at, octet) in [(3, 2), (3, 5), (7, 0)] {
            let mut other = answer.clone();
            other[at] = octet;
            assert!(!is_good(&other), "{at} {octet}");
        }
    }
}
