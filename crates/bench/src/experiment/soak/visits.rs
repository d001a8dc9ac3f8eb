//! Visits of real clients to the site of the web's soak, from the kernel's sockets: ranges, conditions, codings, heads, slow
//! readers, and clients that go away in the middle. Each knows which versions the server may have, and compares every octet.

mod reply;

use super::site::{Entry, Site, Versions};
use crate::pages::Text;
use anyhow::{Context as _, Result, bail, ensure};
use base::rng::Rng;
use reply::Reply;
use std::collections::HashMap;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use web::Encoding;

/// How long a server may let a client wait.
const PATIENCE: Duration = Duration::from_secs(30);
/// Requests on a connection.
const REQUESTS: u32 = 20;
/// Faults that are told word by word.
const TOLD: usize = 10;
/// Pages for clients that leave or are slow are so long at least: more than the kernel takes at once.
const LONG_BYTES: u64 = 250_000;
/// A slow client takes so much, and then waits so long.
const SIP_BYTES: usize = 32 << 10;
const SIP_WAIT: Duration = Duration::from_millis(150);
/// And its socket holds no more.
const SLOW_BUFFER_BYTES: usize = 16 << 10;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// the whole of it
    Whole,
    /// in a coding
    Coded,
    /// its head
    Head,
    /// octets from here to there
    Part,
    /// the last octets
    End,
    /// the first and the last octets
    Parts,
    /// a part behind its end
    Beyond,
    /// a part, if it is still the version seen last
    PartIfSame,
    /// the whole, unless it is the version seen last
    UnlessSame,
    /// the whole, if it is the version seen last
    IfSame,
    /// something that there is not
    Nothing,
    /// the whole, of which only the beginning is read
    Leave,
    /// the whole, taken slowly
    Slowly,
}

/// What quick visitors do in turn.
pub(super) const QUICK: [Kind; 12] = [
    Kind::Whole,
    Kind::UnlessSame,
    Kind::Coded,
    Kind::PartIfSame,
    Kind::Head,
    Kind::Part,
    Kind::IfSame,
    Kind::End,
    Kind::Parts,
    Kind::Leave,
    Kind::Beyond,
    Kind::Nothing,
];

/// What slow ones do.
pub(super) const SLOW: [Kind; 1] = [Kind::Slowly];

/// What visitors saw; sums are to agree with what the server counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) gets: u64,
    pub(super) heads: u64,
    /// answers by class of status
    pub(super) classes: [u64; 5],
    pub(super) partial: u64,
    pub(super) not_modified: u64,
    /// octets of answers; of one that was left those that it would have had
    pub(super) bytes: u64,
    pub(super) connections: u64,
    pub(super) left: u64,
    pub(super) slow: u64,
    pub(super) faults: u64,
    /// the first faults
    pub(super) told: Vec<String>,
}

impl Seen {
    pub(super) fn add(&mut self, other: Seen) {
        let Seen { gets, heads, classes, partial, not_modified, bytes, connections, left, slow, faults, told } = other;
        self.classes.iter_mut().zip(classes).for_each(|(sum, count)| *sum += count);
        let sums = [
            (&mut self.gets, gets),
            (&mut self.heads, heads),
            (&mut self.partial, partial),
            (&mut self.not_modified, not_modified),
            (&mut self.bytes, bytes),
            (&mut self.connections, connections),
            (&mut self.left, left),
            (&mut self.slow, slow),
            (&mut self.faults, faults),
        ];
        sums.into_iter().for_each(|(sum, count)| *sum += count);
        self.told.extend(told);
    }

    fn answered(&mut self, reply: &Reply) {
        self.classes[usize::from(reply.status / 100).clamp(1, 5) - 1] += 1;
        self.partial += u64::from(reply.status == 206);
        self.not_modified += u64::from(reply.status == 304);
        self.bytes += reply.whole_bytes;
    }
}

/// A client that comes again and again.
#[derive(Debug)]
pub(super) struct Visitor<'a> {
    at: SocketAddr,
    site: &'a Site,
    versions: &'a Versions,
    rng: Rng,
    /// the connection, and requests made on it
    stream: Option<(TcpStream, u32)>,
    /// of each page the version seen last and its ETag
    tags: HashMap<usize, (u64, String)>,
    seen: Seen,
}

/// One answer with what it may be.
struct Answered<'a> {
    entry: &'a Entry,
    reply: Reply,
    versions: RangeInclusive<u64>,
}

impl Answered<'_> {
    /// The versions that it may be of.
    fn texts(&self, coding: Encoding) -> impl Iterator<Item = (u64, Text)> {
        let page = self.entry.page;
        let versions = if page.is_live() { self.versions.clone() } else { 0..=0 };
        versions.map(move |version| (version, page.text(coding, version)))
    }

    /// The version that it is the whole of.
    fn whole(&self, coding: Encoding) -> Result<u64> {
        ensure!(self.reply.status == 200, "{} instead of 200", self.reply.status);
        let coded = self.reply.field("content-encoding").unwrap_or("identity");
        ensure!(coded == coding.token(), "in {coded} instead of {}", coding.token());
        let body = &self.reply.body;
        let is = |text: &Text| text.bytes == body.len() as u64 && text.has(0, body);
        let found = self.texts(coding).find(|(_, text)| is(text)).map(|(version, _)| version);
        found.with_context(|| format!("{} octets that are no version of {:?}", body.len(), self.versions))
    }

    /// The version that these octets of it are of.
    fn part(&self, start: impl Fn(u64) -> u64, end: impl Fn(u64) -> u64) -> Result<u64> {
        ensure!(self.reply.status == 206, "{} instead of 206", self.reply.status);
        let is = |text: &Text| {
            let (start, end) = (start(text.bytes), end(text.bytes));
            self.reply.field("content-range") == Some(&format!("bytes {start}-{end}/{}", text.bytes))
                && self.reply.body.len() as u64 == end - start + 1
                && text.has(start, &self.reply.body)
        };
        let found = self.texts(Encoding::Identity).find(|(_, text)| is(text)).map(|(version, _)| version);
        found.with_context(|| {
            format!("{:?} is no part of versions {:?}", self.reply.field("content-range"), self.versions)
        })
    }

    fn may_be(&self, version: u64) -> bool {
        !self.entry.page.is_live() || self.versions.contains(&version)
    }

    fn is_surely(&self, version: u64) -> bool {
        !self.entry.page.is_live() || self.versions == (version..=version)
    }
}

impl<'a> Visitor<'a> {
    pub(super) fn new(at: SocketAddr, site: &'a Site, versions: &'a Versions, seed: u64) -> Visitor<'a> {
        let (rng, seen) = (Rng::new(seed), Seen::default());
        Visitor { at, site, versions, rng, stream: None, tags: HashMap::new(), seen }
    }

    /// Visits at a rate until `stop`, one kind after the other.
    pub(super) fn run(mut self, kinds: &[Kind], every: Duration, stop: &AtomicBool) -> Seen {
        let mut next = Instant::now();
        for kind in kinds.iter().cycle() {
            while let Some(wait) = next.checked_duration_since(Instant::now()) {
                if stop.load(Ordering::Relaxed) {
                    return self.seen;
                }
                std::thread::sleep(wait.min(Duration::from_millis(50)));
            }
            if stop.load(Ordering::Relaxed) {
                break;
            }
            // what could not be done in time is not made up for
            next = (next + every).max(Instant::now());
            let at = self.choose(*kind);
            if let Err(error) = self.visit(*kind, at) {
                self.stream = None;
                self.seen.faults += 1;
                if self.seen.told.len() < TOLD {
                    self.seen.told.push(format!("{kind:?} of {}: {error:#}", self.site.entries[at].page));
                }
            }
        }
        self.seen
    }

    /// A page that is fit for this.
    fn choose(&mut self, kind: Kind) -> usize {
        let (site, wants_live) = (self.site, self.rng.chance(0.5));
        let is_fit = |entry: &Entry| match kind {
            // a server may ignore ranges of what has no octets (RFC 9110 section 14.2)
            Kind::Part | Kind::End | Kind::PartIfSame | Kind::Beyond => entry.bytes > 0,
            Kind::Parts => entry.bytes > 4000,
            Kind::Coded => !entry.codings.is_empty(),
            Kind::Leave => entry.bytes >= LONG_BYTES,
            Kind::Slowly => entry.bytes >= LONG_BYTES && entry.page.is_live(),
            _ => true,
        };
        let fit: Vec<usize> = (0..site.entries.len())
            .filter(|at| is_fit(&site.entries[*at]) && (!wants_live || site.entries[*at].page.is_live()))
            .collect();
        fit[self.rng.below(fit.len() as u64) as usize]
    }

    fn visit(&mut self, kind: Kind, at: usize) -> Result<()> {
        let entry = &self.site.entries[at];
        let bytes = entry.bytes;
        match kind {
            Kind::Whole => self.see_whole(at),
            Kind::Coded => {
                let coding = entry.codings[self.rng.below(entry.codings.len() as u64) as usize];
                let answered = self.ask(at, "GET", &format!("Accept-Encoding: {}\r\n", coding.token()))?;
                answered.whole(coding).map(drop)
            }
            Kind::Head => {
                let answered = self.ask(at, "HEAD", "")?;
                let length = answered.reply.length()?;
                ensure!(answered.texts(Encoding::Identity).any(|(_, text)| text.bytes == length), "{length} octets");
                Ok(())
            }
            Kind::Part => {
                let (start, end) = self.part_of(bytes);
                let answered = self.ask(at, "GET", &format!("Range: bytes={start}-{end}\r\n"))?;
                answered.part(|_| start, |_| end).map(drop)
            }
            Kind::End => {
                let count = 1 + self.rng.below(bytes);
                let answered = self.ask(at, "GET", &format!("Range: bytes=-{count}\r\n"))?;
                answered.part(|whole| whole - count, |whole| whole - 1).map(drop)
            }
            Kind::Parts => {
                let answered = self.ask(at, "GET", "Range: bytes=0-99,-200\r\n")?;
                let parts = answered.reply.parts()?;
                let is = |text: &Text| {
                    let wanted = [(0, 99), (text.bytes - 200, text.bytes - 1)];
                    parts.len() == 2
                        && parts.iter().zip(wanted).all(|((range, part), (start, end))| {
                            *range == format!("bytes {start}-{end}/{}", text.bytes)
                                && part.len() as u64 == end - start + 1
                                && text.has(start, part)
                        })
                };
                ensure!(answered.texts(Encoding::Identity).any(|(_, text)| is(&text)), "parts of no version");
                Ok(())
            }
            Kind::Beyond => {
                let answered = self.ask(at, "GET", &format!("Range: bytes={}-\r\n", 2 * bytes + 100))?;
                ensure!(answered.reply.status == 416, "{} instead of 416", answered.reply.status);
                let told = answered.reply.field("content-range").unwrap_or_default().to_owned();
                let is = |(_, text): (u64, Text)| told == format!("bytes */{}", text.bytes);
                ensure!(answered.texts(Encoding::Identity).any(is), "Content-Range: {told}");
                Ok(())
            }
            Kind::PartIfSame | Kind::UnlessSame | Kind::IfSame => self.ask_of_the_same(kind, at),
            Kind::Nothing => {
                let (_, reply) = self.exchange("/nothing", "GET", "")?;
                ensure!(reply.status == 404, "{} instead of 404", reply.status);
                Ok(())
            }
            Kind::Leave => self.leave(at),
            Kind::Slowly => self.read_slowly(at),
        }
    }

    fn part_of(&mut self, bytes: u64) -> (u64, u64) {
        let start = self.rng.below(bytes);
        (start, start + self.rng.below(bytes - start))
    }

    fn see_whole(&mut self, at: usize) -> Result<()> {
        let answered = self.ask(at, "GET", "")?;
        let version = answered.whole(Encoding::Identity)?;
        let tag = answered.reply.tag()?;
        self.remember(at, version, tag)
    }

    /// Of two answers with the same version both have the same ETag, of two with different ones different ones.
    fn remember(&mut self, at: usize, version: u64, tag: String) -> Result<()> {
        if let Some((other, before)) = self.tags.insert(at, (version, tag.clone())) {
            ensure!((other == version) == (before == tag), "version {version} has {tag}, version {other} had {before}");
        }
        Ok(())
    }

    /// Requests that hold only for the version seen last, or only for others.
    fn ask_of_the_same(&mut self, kind: Kind, at: usize) -> Result<()> {
        if !self.tags.contains_key(&at) {
            self.see_whole(at)?;
        }
        let (version, tag) = self.tags[&at].clone();
        let bytes = self.site.entries[at].bytes;
        let (start, end) = if kind == Kind::PartIfSame { self.part_of(bytes) } else { (0, 0) };
        let fields = match kind {
            Kind::PartIfSame => format!("Range: bytes={start}-{end}\r\nIf-Range: {tag}\r\n"),
            Kind::UnlessSame => format!("If-None-Match: {tag}\r\n"),
            _ => format!("If-Match: {tag}\r\n"),
        };
        let answered = self.ask(at, "GET", &fields)?;
        let status = answered.reply.status;
        match (kind, status) {
            (Kind::PartIfSame, 206) => {
                let of = answered.part(|_| start, |_| end)?;
                // a short part may be the same in both
                let text = answered.entry.page.text(Encoding::Identity, version);
                ensure!(of == version || text.has(start, &answered.reply.body), "a part of {of}, not of {version}");
                ensure!(answered.may_be(version) && answered.reply.tag()? == tag, "a part of another version");
                return Ok(());
            }
            (Kind::UnlessSame, 304) => {
                ensure!(answered.may_be(version), "304 for version {version}, not {:?}", answered.versions);
                ensure!(
                    answered.reply.tag()? == tag && answered.reply.body.is_empty(),
                    "304 with another ETag or a body"
                );
                return Ok(());
            }
            (Kind::IfSame, 412) => {
                ensure!(!answered.is_surely(version), "412 though version {version} is served");
                return Ok(());
            }
            (_, 200) => {}
            (_, other) => bail!("{other} is no answer to it"),
        }
        let now = answered.whole(Encoding::Identity)?;
        let same = kind == Kind::IfSame;
        ensure!((now == version) == same, "all of version {now}, asked of version {version}");
        let tag = answered.reply.tag()?;
        self.remember(at, now, tag)
    }

    /// Asks for a page and waits for the whole answer.
    fn ask(&mut self, at: usize, method: &str, fields: &str) -> Result<Answered<'a>> {
        let entry = &self.site.entries[at];
        let (versions, reply) = self.exchange(&entry.page.to_string(), method, fields)?;
        Ok(Answered { entry, reply, versions })
    }

    fn exchange(&mut self, path: &str, method: &str, fields: &str) -> Result<(RangeInclusive<u64>, Reply)> {
        let oldest = self.versions.oldest();
        let (mut stream, asked) = match self.stream.take() {
            Some(kept) => kept,
            None => (self.connect()?, 0),
        };
        let last = asked + 1 == REQUESTS;
        self.send(&mut stream, path, method, fields, last)?;
        let reply = Reply::read(&mut stream, method == "HEAD").context("the answer")?;
        self.seen.answered(&reply);
        let newest = self.versions.newest();
        if last {
            let count = stream.read(&mut [0]).context("the end of the connection")?;
            ensure!(count == 0, "more than the answer");
        } else {
            self.stream = Some((stream, asked + 1));
        }
        Ok((oldest..=newest, reply))
    }

    fn connect(&mut self) -> Result<TcpStream> {
        let stream = TcpStream::connect_timeout(&self.at, PATIENCE).context("no connection")?;
        self.seen.connections += 1;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    fn send(&mut self, stream: &mut TcpStream, path: &str, method: &str, fields: &str, last: bool) -> Result<()> {
        let end = if last { "Connection: close\r\n\r\n" } else { "\r\n" };
        let request = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\n{fields}{end}", self.at.ip());
        stream.write_all(request.as_bytes()).context("the request")?;
        *(if method == "HEAD" { &mut self.seen.heads } else { &mut self.seen.gets }) += 1;
        Ok(())
    }

    /// Goes away in the middle of an answer: with octets unread the kernel resets the connection.
    fn leave(&mut self, at: usize) -> Result<()> {
        let mut stream = self.connect()?;
        self.send(&mut stream, &self.site.entries[at].page.to_string(), "GET", "", false)?;
        let reply = Reply::read_head(&mut stream)?;
        self.seen.answered(&reply);
        ensure!(reply.status == 200, "{} instead of 200", reply.status);
        // so that there is more to come when it goes
        stream.read_exact(&mut [0; 5000]).context("the beginning")?;
        self.seen.left += 1;
        Ok(())
    }

    /// Takes an answer so slowly that versions go by meanwhile: it is the one that was served when it began.
    fn read_slowly(&mut self, at: usize) -> Result<()> {
        let entry = &self.site.entries[at];
        let mut stream = self.connect()?;
        rustix::net::sockopt::set_socket_recv_buffer_size(&stream, SLOW_BUFFER_BYTES)?;
        let oldest = self.versions.oldest();
        self.send(&mut stream, &entry.page.to_string(), "GET", "", true)?;
        let mut reply = Reply::read_head(&mut stream)?;
        self.seen.answered(&reply);
        let versions = oldest..=self.versions.newest();
        let mut sip = vec![0; SIP_BYTES];
        loop {
            match stream.read(&mut sip) {
                Ok(0) => break,
                Ok(count) => reply.body.extend_from_slice(&sip[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error).context("the answer, read slowly"),
            }
            std::thread::sleep(SIP_WAIT);
        }
        self.seen.slow += 1;
        Answered { entry, reply, versions }.whole(Encoding::Identity).map(drop)
    }
}

#[cfg(test)]
mod tests;
