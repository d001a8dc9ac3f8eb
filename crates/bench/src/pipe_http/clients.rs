//! Connections that ask for files of one size, answer after answer.

use crate::pipe::{Bed, Meter, PSH, Repeated, RoundFigures, SEGMENT_BYTES, Setup, fill};
use anyhow::{Context as _, Result, anyhow, ensure};
use base::publish::Publisher;
use base::rng::Rng;
use stack::{TcpConfig, TcpLimits};
use std::sync::Arc;
use web::{Config, Encoding, File, Identity, Server, Site, SiteBuilder};

/// One answer's content in so many segments is compared whole.
const CHECK_EVERY: u64 = 64;
/// The peer acknowledges every so many segments.
const ACK_EVERY: u32 = 2;
const MODIFIED_UNIX_S: u64 = 1_700_000_000;

/// What is asked for, and by whom.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// of each file
    pub(super) bytes: u64,
    pub(super) files: u32,
    pub(super) connections: usize,
    /// segments in flight, of all connections together
    pub(super) in_flight: usize,
    pub(super) batch: usize,
}

impl Plan {
    /// Where a file's content stands in the pattern.
    fn content(&self, file: u32) -> Repeated {
        Repeated { start: u64::from(file) * self.bytes.next_multiple_of(8), period: self.bytes }
    }

    fn path(file: u32) -> String {
        format!("/files/{file}.bin")
    }

    fn server(&self) -> Result<Server> {
        let options = web::Options { connections: app::Bound::new(self.connections), ..web::Options::default() };
        Ok(Server::new(Publisher::new(self.site()?).reader(), options, None))
    }

    fn site(&self) -> Result<Arc<Site>> {
        let mut builder = SiteBuilder::new(Config::default(), 1, MODIFIED_UNIX_S, None)?;
        for file in 0..self.files {
            let (path, start) = (Plan::path(file), self.content(file).start);
            let file = File {
                path: path.as_bytes(),
                modified_unix_s: MODIFIED_UNIX_S,
                identity: Identity::default(),
                encoding: Encoding::Identity,
            };
            let filled = builder.add_with(0, &file, self.bytes as usize, |memory| {
                fill(start, memory);
                Ok::<(), std::convert::Infallible>(())
            });
            let Ok(()) = filled?;
        }
        Ok(Arc::new(builder.finish()?))
    }
}

/// A site of one file of so many bytes: the site, a request for the file, and where its content stands in the pattern.
pub(crate) fn one_file(bytes: u64) -> Result<(Arc<Site>, Vec<u8>, Repeated)> {
    let plan = Plan { bytes, files: 1, connections: 1, in_flight: 1, batch: 1 };
    Ok((plan.site()?, request(0), plan.content(0)))
}

fn request(file: u32) -> Vec<u8> {
    format!("GET {} HTTP/1.1\r\nHost: 198.18.0.1\r\n\r\n", Plan::path(file)).into_bytes()
}

/// A connection's answer under way.
#[derive(Clone, Copy, Debug, Default)]
struct Awaited {
    file: u32,
    /// content bytes to come; None before the head
    left: Option<u64>,
    unacknowledged: u32,
}

/// The connections and the server.
pub(super) struct Clients {
    bed: Bed<Server>,
    plan: Plan,
    requests: Vec<Vec<u8>>,
    awaited: Vec<Awaited>,
    rng: Rng,
    segments: u64,
}

impl Clients {
    pub(super) fn new(plan: Plan) -> Result<Clients> {
        let limits = TcpLimits { connections: plan.connections as u32, ..TcpLimits::default() };
        let setup = Setup {
            connections: plan.connections,
            batch: plan.batch,
            tcp: TcpConfig { limits, ..TcpConfig::default() },
            receive_bytes: web::WINDOW_BYTES as u32,
            window_bytes: (plan.in_flight / plan.connections).max(2) * SEGMENT_BYTES,
        };
        let mut bed = Bed::new(&setup, plan.server()?, || {})?;
        bed.establish()?;
        Ok(Clients {
            bed,
            plan,
            requests: (0..plan.files).map(request).collect(),
            awaited: vec![Awaited::default(); plan.connections],
            rng: Rng::new(11),
            segments: 0,
        })
    }

    /// So many requests or more, one on each connection at a time.
    pub(super) fn run(&mut self, requests: u64) -> Result<RoundFigures> {
        let mut meter = Meter::default();
        while meter.operations() < requests {
            for (slot, awaited) in self.awaited.iter_mut().enumerate() {
                let file = self.rng.below(u64::from(self.plan.files)) as u32;
                *awaited = Awaited { file, ..Awaited::default() };
                self.bed.peer.send(slot, PSH, &self.requests[file as usize])?;
            }
            let (mut took_ns, mut whole) = (0.0, 0);
            while whole < self.awaited.len() {
                took_ns += self.bed.exchange()?;
                let (segments, finished) = self.take()?;
                ensure!(segments > 0, "{whole} of {} requests were answered", self.awaited.len());
                whole += finished;
            }
            meter.note(took_ns, self.awaited.len() as u64);
        }
        meter.figures().context("nothing was asked for")
    }

    /// Takes and acknowledges what came; how many segments, and how many answers are whole now.
    fn take(&mut self) -> Result<(usize, usize)> {
        let Clients { bed, plan, awaited, segments, .. } = self;
        let mut finished = 0;
        let came = bed.drain(|peer, frame| {
            let arrival = peer.accept(frame.bytes())?;
            *segments += 1;
            let awaited = &mut awaited[arrival.slot];
            let wrong = |what: &str| anyhow!("connection {}: {what}", arrival.slot);
            ensure!(!arrival.is_fin(), wrong("the server closes"));
            let content = match awaited.left {
                Some(_) => arrival.payload,
                None => {
                    let (content, bytes) = head(arrival.payload).ok_or_else(|| wrong("no answer with status 200"))?;
                    ensure!(bytes == plan.bytes, wrong("another Content-Length"));
                    awaited.left = Some(bytes);
                    content
                }
            };
            let left = awaited.left.unwrap_or_default();
            let rest = left.checked_sub(content.len() as u64).ok_or_else(|| wrong("more than was asked for"))?;
            let right =
                plan.content(awaited.file).holds(plan.bytes - left, content, segments.is_multiple_of(CHECK_EVERY));
            ensure!(right && (!arrival.payload.is_empty()), wrong("wrong bytes"));
            awaited.left = Some(rest);
            awaited.unacknowledged += 1;
            if rest == 0 {
                // the next request acknowledges it
                finished += 1;
            } else if awaited.unacknowledged >= ACK_EVERY {
                awaited.unacknowledged = 0;
                peer.send(arrival.slot, 0, &[])?;
            }
            Ok(())
        })?;
        for (slot, awaited) in awaited.iter_mut().enumerate() {
            if awaited.unacknowledged > 0 && awaited.left != Some(0) {
                awaited.unacknowledged = 0;
                bed.peer.send(slot, 0, &[])?;
            }
        }
        Ok((came, finished))
    }
}

/// What of an answer's first segment is content, and what Content-Length says; None unless the status is 200.
pub(crate) fn head(segment: &[u8]) -> Option<(&[u8], u64)> {
    let end = segment.windows(4).position(|four| four == b"\r\n\r\n")?;
    let text = std::str::from_utf8(&segment[..end]).ok()?;
    let mut lines = text.split("\r\n");
    lines.next().filter(|status| *status == "HTTP/1.1 200 OK")?;
    let length = lines.filter_map(|line| line.split_once(": ")).find(|(name, _)| *name == "Content-Length")?.1;
    Some((&segment[end + 4..], length.parse().ok()?))
}

#[cfg(test)]
impl Clients {
    /// Asks for this instead of the files.
    pub(super) fn ask_instead(&mut self, request: &[u8]) {
        self.requests.fill(request.to_vec());
    }
}
