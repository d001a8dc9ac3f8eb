//! The differential test: the same questions to our server, NSD and Knot, over UDP and TCP, compared section by section.
//!
//! A difference passes only if a class of `exceptions.toml` explains it: the class names the peer and the RFC section that
//! supports the other answer, and its code takes back exactly what the class
//! describes; the rest must be equal. Order within a section is not compared.

mod answer;
mod ask;
mod exceptions;

pub use answer::{Answer, Edns, Part, Rr};
pub use ask::{Transport, ask};

use crate::{
    Host, Lab, Process, SERVER_V4,
    peers::{Kind, Peer, ZoneFile, serves, write_zones},
    zonegen::{Class, Question, World, rtype},
};
use anyhow::{Context as _, Result};
use exceptions::{Case, Exceptions};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

/// Differences that a report shows in full; all are counted.
const SHOWN: usize = 20;

/// Whom an answer came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Party {
    /// The server under test.
    Subject,
    /// A peer.
    Peer(Kind),
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Subject => f.write_str("subject"),
            Self::Peer(kind) => kind.fmt(f),
        }
    }
}

/// A server to ask.
#[derive(Clone, Copy, Debug)]
pub struct Server {
    /// Who it is.
    pub party: Party,
    /// Where it answers over UDP.
    pub udp: SocketAddr,
    /// Where it answers over TCP.
    pub tcp: SocketAddr,
}

/// What a run found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Questions asked, each of every server over both transports.
    pub questions: usize,
    /// Pairs of answers compared.
    pub compared: usize,
    /// How often each class of answer was reached.
    pub classes: BTreeMap<Class, usize>,
    /// How often each class of exception explained a difference, by name.
    pub exceptions: BTreeMap<String, usize>,
    /// Pairs that differ and that nothing explains.
    pub unexplained: usize,
    /// The unexplained differences by part of the message.
    pub parts: BTreeMap<Part, usize>,
    /// The first unexplained differences, one of each kind before more of one kind.
    pub differences: Vec<Difference>,
}

/// One unexplained difference.
#[derive(Clone, Debug)]
pub struct Difference {
    /// The world's seed.
    pub seed: u64,
    /// What was asked.
    pub question: Question,
    /// Over which transport.
    pub transport: Transport,
    /// The classes the answer should belong to.
    pub classes: Vec<Class>,
    /// Where they differ after the exceptions.
    pub parts: Vec<Part>,
    /// Both servers and their answers as text.
    pub answers: [(Party, String); 2],
}

/// Starts the server under test: the host to run in (its interface is `vs`), the zones, and the address to answer on.
pub type Start<'a> = &'a dyn Fn(&Host, &[ZoneFile], SocketAddr) -> Result<Process>;

/// Where the server under test is to answer.
pub const SUBJECT: SocketAddr = SocketAddr::new(IpAddr::V4(SERVER_V4), 53);
const NSD: SocketAddr = SocketAddr::new(IpAddr::V4(SERVER_V4), 5301);
const KNOT: SocketAddr = SocketAddr::new(IpAddr::V4(SERVER_V4), 5302);
const PATIENCE: Duration = Duration::from_secs(30);

/// Draws a world for each seed, starts NSD, Knot and the subject for it in the server's host, asks `questions` questions of
/// each from the client's and compares. Without a subject the two peers are compared with each other.
pub fn run(lab: &Lab, subject: Option<Start<'_>>, seeds: &[u64], questions: usize) -> Result<Report> {
    let mut report = Report::default();
    for &seed in seeds {
        let part = run_world(lab, subject, &World::draw(seed), questions).with_context(|| format!("seed {seed}"))?;
        report.merge(part);
    }
    Ok(report)
}

fn run_world(lab: &Lab, subject: Option<Start<'_>>, world: &World, questions: usize) -> Result<Report> {
    let peers = [Peer::start(lab, Kind::Nsd, NSD, &world.zones)?, Peer::start(lab, Kind::Knot, KNOT, &world.zones)?];
    let mut servers = Vec::new();
    let dir = tempfile::tempdir()?;
    let files = write_zones(dir.path(), &world.zones)?;
    let mut process = None;
    if let Some(start) = subject {
        let started = process.insert(start(lab.server(), &files, SUBJECT)?);
        let ready = || lab.client().inside(|| world.zones.iter().all(|zone| serves(SUBJECT, zone)));
        started.wait_until(ready, PATIENCE)?;
        servers.push(Server { party: Party::Subject, udp: SUBJECT, tcp: SUBJECT });
    }
    servers.extend(peers.iter().map(|peer| Server {
        party: Party::Peer(peer.kind),
        udp: peer.address,
        tcp: peer.address,
    }));
    let questions = world.questions(world.seed, questions);
    let report = lab.client().inside(|| compare(world, &questions, &servers));
    report.with_context(|| format!("the subject wrote:\n{}", process.as_ref().map(Process::log).unwrap_or_default()))
}

/// Asks every server every question, from the calling thread's host, and compares the first server's answers with each other's.
pub fn compare(world: &World, questions: &[Question], servers: &[Server]) -> Result<Report> {
    let answers: Vec<Answers> = servers.iter().map(|server| gather(server, questions)).collect::<Result<_>>()?;
    let parties: Vec<Party> = servers.iter().map(|server| server.party).collect();
    judge_all(world, questions, &parties, &answers)
}

/// One server's answers over UDP and over TCP, by question.
type Answers = [Vec<Result<Answer>>; 2];

fn gather(server: &Server, questions: &[Question]) -> Result<Answers> {
    let udp = ask(server.udp, Transport::Udp, questions)?;
    let tcp = ask(server.tcp, Transport::Tcp, questions)?;
    Ok([parse(udp), parse(tcp)])
}

fn judge_all(world: &World, questions: &[Question], parties: &[Party], answers: &[Answers]) -> Result<Report> {
    let exceptions = Exceptions::load()?;
    let mut report = Report { questions: questions.len(), ..Report::default() };
    for (index, question) in questions.iter().enumerate() {
        let walk = world.walk(question);
        report.count(&walk.classes, [&answers[0][0][index], &answers[0][1][index]]);
        for (number, transport) in [Transport::Udp, Transport::Tcp].into_iter().enumerate() {
            for other in 1..parties.len() {
                let mut case = Case {
                    question,
                    walk: &walk,
                    transport,
                    parties: [parties[0], parties[other]],
                    whole: [answers[0][1][index].as_ref().ok(), answers[other][1][index].as_ref().ok()],
                    used: Vec::new(),
                };
                let pair = [&answers[0][number][index], &answers[other][number][index]];
                report.judge(world.seed, &mut case, pair, &exceptions);
            }
        }
    }
    Ok(report)
}

fn parse(answers: Vec<Option<Vec<u8>>>) -> Vec<Result<Answer>> {
    answers
        .into_iter()
        .map(|answer| {
            let octets = answer.context("no answer")?;
            Answer::parse(&octets).with_context(|| format!("unreadable: {octets:02x?}"))
        })
        .collect()
}

impl Report {
    /// Counts the classes that the model names and that the first server's answer bears out.
    fn count(&mut self, classes: &BTreeSet<Class>, [udp, tcp]: [&Result<Answer>; 2]) {
        let (Ok(udp), Ok(tcp)) = (udp, tcp) else { return };
        for class in classes.iter().filter(|class| borne_out(**class, tcp)) {
            *self.classes.entry(*class).or_default() += 1;
        }
        if udp.truncated() {
            *self.classes.entry(Class::Truncated).or_default() += 1;
        }
    }

    fn judge(&mut self, seed: u64, case: &mut Case<'_>, pair: [&Result<Answer>; 2], exceptions: &Exceptions) {
        self.compared += 1;
        let parts = match pair {
            [Ok(first), Ok(second)] => {
                if first.differences(second).is_empty() {
                    return;
                }
                exceptions.remaining(case, first, second)
            }
            _ => vec![Part::Message],
        };
        if parts.is_empty() {
            for name in &case.used {
                *self.exceptions.entry((*name).to_owned()).or_default() += 1;
            }
            return;
        }
        self.unexplained += 1;
        for part in &parts {
            *self.parts.entry(*part).or_default() += 1;
        }
        let classes: Vec<Class> = case.walk.classes.iter().copied().collect();
        if self.differences.len() >= SHOWN
            || self.differences.iter().any(|known| known.parts == parts && known.classes == classes)
        {
            return;
        }
        let show = |answer: &Result<Answer>| match answer {
            Ok(answer) => answer.to_string(),
            Err(error) => format!("{error:#}\n"),
        };
        self.differences.push(Difference {
            seed,
            question: case.question.clone(),
            transport: case.transport,
            classes,
            parts,
            answers: [(case.parties[0], show(pair[0])), (case.parties[1], show(pair[1]))],
        });
    }

    /// Adds another report's counts and, as far as there is room, its differences.
    pub fn merge(&mut self, other: Self) {
        self.questions += other.questions;
        self.compared += other.compared;
        self.unexplained += other.unexplained;
        for (class, count) in other.classes {
            *self.classes.entry(class).or_default() += count;
        }
        for (name, count) in other.exceptions {
            *self.exceptions.entry(name).or_default() += count;
        }
        for (part, count) in other.parts {
            *self.parts.entry(part).or_default() += count;
        }
        let room = SHOWN.saturating_sub(self.differences.len());
        self.differences.extend(other.differences.into_iter().take(room));
    }

    /// Panics with the whole report if a difference is unexplained or a class was reached fewer than `least` times.
    pub fn check(&self, least: usize) {
        let rare: Vec<String> = Class::ALL
            .iter()
            .filter(|class| self.classes.get(class).copied().unwrap_or(0) < least)
            .map(ToString::to_string)
            .collect();
        assert!(self.unexplained == 0, "{self}");
        assert!(rare.is_empty(), "reached fewer than {least} times: {}\n{self}", rare.join(", "));
    }
}

/// True if an answer over TCP looks as its class must.
fn borne_out(class: Class, answer: &Answer) -> bool {
    let [data, authority, additional] = &answer.sections;
    let has = |section: &[Rr], rtype| section.iter().any(|rr| rr.rtype == rtype);
    let negative = has(authority, rtype::SOA);
    match class {
        Class::Exact | Class::Wildcard | Class::Cname | Class::CnameChain => {
            answer.rcode == 0 && !data.is_empty() && !negative
        }
        Class::Nodata | Class::EntNodata | Class::WildcardNodata => answer.rcode == 0 && data.is_empty() && negative,
        Class::NxDomain => answer.rcode == 3 && data.is_empty() && negative,
        Class::CnameNegative => has(data, rtype::CNAME) && negative,
        Class::CnameLoop | Class::CnameOutside | Class::CnameOtherZone => has(data, rtype::CNAME),
        Class::CnameReferral => has(data, rtype::CNAME) && has(authority, rtype::NS),
        Class::Dname | Class::DnameLoop => has(data, rtype::DNAME),
        Class::YxDomain => answer.rcode == 6 && has(data, rtype::DNAME),
        Class::Referral => has(authority, rtype::NS) && additional.is_empty(),
        Class::ReferralGlue => has(authority, rtype::NS) && !additional.is_empty(),
        Class::DsParent => answer.authoritative() && (has(data, rtype::DS) || negative),
        Class::DsNested | Class::Nested => true,
        Class::Any => answer.rcode != 5,
        Class::Refused | Class::Chaos => answer.rcode == 5 && data.is_empty() && authority.is_empty(),
        Class::Truncated => false,
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for difference in &self.differences {
            writeln!(f, "--- seed {}, {:?}: {}", difference.seed, difference.transport, difference.question)?;
            writeln!(f, "differs in {:?}; classes {:?}", difference.parts, difference.classes)?;
            for (party, answer) in &difference.answers {
                write!(f, "{party}:\n{answer}")?;
            }
        }
        writeln!(
            f,
            "{} questions, {} pairs of answers, {} unexplained",
            self.questions, self.compared, self.unexplained
        )?;
        for (part, count) in &self.parts {
            writeln!(f, "  {count:>7} {part:?}")?;
        }
        writeln!(f, "exceptions:")?;
        for (name, count) in &self.exceptions {
            writeln!(f, "  {count:>7} {name}")?;
        }
        writeln!(f, "classes:")?;
        for class in Class::ALL {
            writeln!(f, "  {:>7} {class}", self.classes.get(&class).unwrap_or(&0))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
