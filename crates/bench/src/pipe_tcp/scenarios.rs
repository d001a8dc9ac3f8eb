//! The scenarios: each fills the pipe, has the server's cycles timed, and checks what came.

use super::Transmit;
use super::services::{Echo, Object, Once, Stream};
use crate::pipe::{Bed, FIN, Meter, PSH, Peer, Repeated, RoundFigures, SEGMENT_BYTES, Setup};
use crate::procs;
use anyhow::{Context as _, Result, ensure};
use base::Frame;
use base::rng::Rng;
use stack::{TcpConfig, TcpLimits};
use std::cell::Cell;
use std::time::Duration;

/// Requests that wait when the clock starts, at most: a NIC's ring, well filled.
pub(super) const TOGETHER: usize = 512;
const RECEIVE_BYTES: u32 = 65_536;
/// One answer in so many is compared to the last byte.
const CHECK_EVERY: u64 = 64;

fn figures(meter: &Meter) -> Result<RoundFigures> {
    meter.figures().context("nothing was done")
}

/// Requests and answers of equal size.
pub(super) struct PingPong {
    bed: Bed<Echo>,
    order: Vec<u32>,
    rng: Rng,
    bytes: usize,
    echoes: bool,
    /// whether the peer acknowledges each answer by itself, or by its next request
    acknowledges: bool,
    asked: u64,
}

impl PingPong {
    /// `echoes` says whether an answer is a copy of its request, or an object.
    pub(super) fn new(connections: usize, bytes: usize, echoes: bool, batch: usize) -> Result<PingPong> {
        let most = connections as u32;
        let limits = TcpLimits {
            connections: most,
            // each connection's last answer is acknowledged by its next request
            active: most,
            records: 2 * most + 1024,
            ranges: most + 1024,
            owned_blocks: if echoes { most } else { 1 },
            ..TcpLimits::default()
        };
        let setup = setup(connections, batch, limits, 65_536);
        let object = (!echoes).then(|| Object::new(bytes as u64));
        let mut bed = Bed::new(&setup, Echo { object }, || {})?;
        bed.establish()?;
        let order = (0..most).collect();
        Ok(PingPong { bed, order, rng: Rng::new(3), bytes, echoes, acknowledges: false, asked: 0 })
    }

    /// Has the peer acknowledge each answer by itself. It must, where so many connections have their turns that the server would send an
    /// answer again before the next request comes.
    pub(super) fn set_acknowledges(&mut self, acknowledges: bool) {
        self.acknowledges = acknowledges;
    }

    /// So many round trips or more: the connections one after the other in random order, up to [`TOGETHER`] at a time.
    pub(super) fn run(&mut self, trips: u64) -> Result<RoundFigures> {
        let mut meter = Meter::default();
        let mut order = std::mem::take(&mut self.order);
        while meter.operations() < trips {
            self.rng.shuffle(&mut order);
            for slots in order.chunks(TOGETHER) {
                let took_ns = self.section(slots)?;
                meter.note(took_ns, slots.len() as u64);
                if meter.operations() >= trips {
                    break;
                }
            }
        }
        self.order = order;
        figures(&meter)
    }

    /// One round trip of each.
    fn section(&mut self, slots: &[u32]) -> Result<f64> {
        self.asked += 1;
        let mut request = vec![0; self.bytes];
        crate::pipe::fill(0, &mut request);
        let of = |slot: u32, request: &mut [u8], asked: u64| {
            request[..8].copy_from_slice(&asked.to_be_bytes());
            request[8..12].copy_from_slice(&slot.to_be_bytes());
        };
        for &slot in slots {
            of(slot, &mut request, self.asked);
            self.bed.peer.send(slot as usize, PSH, &request)?;
        }
        let mut took_ns = self.bed.exchange()?;
        let (echoes, asked) = (self.echoes, self.asked);
        if !echoes {
            crate::pipe::fill(0, &mut request);
        }
        let answers = self.bed.drain(|peer, frame| {
            let arrival = peer.accept(frame.bytes())?;
            if echoes {
                of(arrival.slot as u32, &mut request, asked);
            }
            ensure!(arrival.payload == request, "connection {}: another answer than expected", arrival.slot);
            Ok(())
        })?;
        // each is the next of its connection and right, so none can stand for another
        ensure!(answers == slots.len(), "{answers} of {} requests were answered", slots.len());
        if self.acknowledges {
            for &slot in slots {
                self.bed.peer.send(slot as usize, 0, &[])?;
            }
            took_ns += self.bed.exchange()?;
            let said = self.bed.drain(|_, _| Ok(()))?;
            ensure!(said == 0, "{said} segments came for acknowledgements");
        }
        Ok(took_ns)
    }
}

fn setup(connections: usize, batch: usize, limits: TcpLimits, window_bytes: usize) -> Setup {
    let tcp = TcpConfig { limits, ..TcpConfig::default() };
    Setup { connections, batch, tcp, receive_bytes: RECEIVE_BYTES, window_bytes }
}

/// How a connection of [`Churn`] goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChurnPlan {
    pub(super) request_bytes: usize,
    pub(super) answer_bytes: usize,
    /// the handshake's acknowledgement rides on the request
    pub(super) merged: bool,
    /// entries of TIME-WAIT that there is room for
    pub(super) time_wait: u32,
    pub(super) batch: usize,
}

/// A connection for each request, which the server closes.
pub(super) struct Churn {
    bed: Bed<Once>,
    plan: ChurnPlan,
    request: Vec<u8>,
    ended: u64,
}

impl Churn {
    pub(super) fn new(plan: ChurnPlan) -> Result<Churn> {
        let limits = TcpLimits { time_wait: plan.time_wait, ..TcpLimits::default() };
        let setup = setup(TOGETHER, plan.batch, limits, 65_536);
        let service = Once { request_bytes: plan.request_bytes, object: Object::new(plan.answer_bytes as u64) };
        let mut request = vec![0; plan.request_bytes];
        crate::pipe::fill(0, &mut request);
        Ok(Churn { bed: Bed::new(&setup, service, || {})?, plan, request, ended: 0 })
    }

    /// So many connections or more, [`TOGETHER`] at a time.
    pub(super) fn run(&mut self, connections: u64) -> Result<RoundFigures> {
        let mut meter = Meter::default();
        while meter.operations() < connections {
            let took_ns = self.open()? + self.ask()? + self.finish()?;
            meter.note(took_ns, TOGETHER as u64);
            self.bed.peer.renew();
            self.ended += TOGETHER as u64;
        }
        let usage = self.bed.usage();
        let waiting = self.ended.min(u64::from(self.plan.time_wait));
        ensure!(
            usage.connections == 0 && usage.half_open == 0 && usage.time_wait as u64 == waiting,
            "after {} connections there are {usage:?}",
            self.ended
        );
        figures(&meter)
    }

    fn open(&mut self) -> Result<f64> {
        for slot in 0..TOGETHER {
            self.bed.peer.open(slot)?;
        }
        let took_ns = self.bed.exchange()?;
        let mut opened = 0;
        self.bed.drain(|peer, frame| {
            opened += usize::from(peer.accept(frame.bytes())?.is_syn());
            Ok(())
        })?;
        ensure!(opened == TOGETHER, "{opened} of {TOGETHER} connections were opened");
        Ok(took_ns)
    }

    fn ask(&mut self) -> Result<f64> {
        for slot in 0..TOGETHER {
            if !self.plan.merged {
                self.bed.peer.send(slot, 0, &[])?;
            }
            self.bed.peer.send(slot, PSH, &self.request)?;
        }
        let took_ns = self.bed.exchange()?;
        let answer = Repeated { start: 0, period: self.plan.answer_bytes as u64 };
        let mut came = [0; TOGETHER];
        let mut finished = 0;
        let ended = self.ended;
        self.bed.drain(|peer, frame| {
            let arrival = peer.accept(frame.bytes())?;
            let at = &mut came[arrival.slot];
            let all = (ended + arrival.slot as u64).is_multiple_of(CHECK_EVERY);
            ensure!(answer.holds(*at, arrival.payload, all), "connection {}: wrong bytes", arrival.slot);
            *at += arrival.payload.len() as u64;
            finished += usize::from(arrival.is_fin());
            Ok(())
        })?;
        ensure!(came == [answer.period; TOGETHER], "answers are not {} bytes long", answer.period);
        ensure!(finished == TOGETHER, "the server finished {finished} of {TOGETHER} connections");
        Ok(took_ns)
    }

    fn finish(&mut self) -> Result<f64> {
        for slot in 0..TOGETHER {
            self.bed.peer.send(slot, FIN, &[])?;
        }
        let took_ns = self.bed.exchange()?;
        let last = self.bed.drain(|peer, frame| {
            let arrival = peer.accept(frame.bytes())?;
            ensure!(arrival.payload.is_empty(), "connection {}: data behind the end", arrival.slot);
            Ok(())
        })?;
        ensure!(last == TOGETHER, "{last} of {TOGETHER} connections had their last acknowledgement");
        Ok(took_ns)
    }
}

/// How [`Bulk`] goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct BulkPlan {
    pub(super) connections: usize,
    pub(super) object_bytes: u64,
    /// segments in flight, of all connections together
    pub(super) in_flight: usize,
    /// an acknowledgement for so many segments
    pub(super) ack_every: u32,
    pub(super) transmit: Transmit,
    pub(super) batch: usize,
}

/// One connection's download.
#[derive(Clone, Copy, Debug, Default)]
struct Download {
    came: u64,
    unacknowledged: u32,
}

/// An object over and over.
pub(super) struct Bulk {
    bed: Bed<Stream>,
    plan: BulkPlan,
    downloads: Vec<Download>,
    segments: u64,
}

impl Bulk {
    pub(super) fn new(plan: BulkPlan) -> Result<Bulk> {
        let window_bytes = (plan.in_flight / plan.connections).max(2) * SEGMENT_BYTES;
        let setup = setup(plan.connections, plan.batch, TcpLimits::default(), window_bytes);
        let mut bed = Bed::new(&setup, Stream::new(Object::new(plan.object_bytes)), || {})?;
        if plan.transmit == Transmit::Gather {
            bed.gather();
        }
        bed.establish()?;
        for slot in 0..plan.connections {
            bed.peer.send(slot, PSH, b"on and on")?;
        }
        Ok(Bulk { bed, plan, downloads: vec![Download::default(); plan.connections], segments: 0 })
    }

    /// So many bytes or more.
    pub(super) fn run(&mut self, bytes: u64) -> Result<RoundFigures> {
        let mut meter = Meter::default();
        while meter.operations() < bytes {
            let took_ns = self.bed.exchange()?;
            let came = self.take()?;
            ensure!(came > 0, "the server sends nothing more");
            meter.note(took_ns, came);
        }
        let gathered = self.bed.gathered();
        ensure!((gathered > 0) == (self.plan.transmit == Transmit::Gather), "{gathered} frames were gathered");
        figures(&meter)
    }

    /// Takes and acknowledges what came; its bytes.
    fn take(&mut self) -> Result<u64> {
        let Bulk { bed, plan, downloads, segments } = self;
        let object = Repeated { start: 0, period: plan.object_bytes };
        let mut bytes = 0;
        bed.drain(|peer: &mut Peer, frame: &Frame| {
            let arrival = peer.accept(frame.bytes())?;
            let download = &mut downloads[arrival.slot];
            *segments += 1;
            let all = segments.is_multiple_of(CHECK_EVERY);
            ensure!(object.holds(download.came, arrival.payload, all), "connection {}: wrong bytes", arrival.slot);
            download.came += arrival.payload.len() as u64;
            bytes += arrival.payload.len() as u64;
            download.unacknowledged += 1;
            if download.unacknowledged >= plan.ack_every {
                download.unacknowledged = 0;
                peer.send(arrival.slot, 0, &[])?;
            }
            Ok(())
        })?;
        // whoever waits for a window would wait for ever
        for (slot, download) in downloads.iter_mut().enumerate().filter(|(_, download)| download.unacknowledged > 0) {
            download.unacknowledged = 0;
            bed.peer.send(slot, 0, &[])?;
        }
        Ok(bytes)
    }
}

/// What idle connections cost.
#[derive(Clone, Copy, Debug)]
pub(super) struct IdleFigures {
    /// resident memory of the server with all of them, the process without a server subtracted
    pub(super) resident_bytes: u64,
    /// the same of the server before the first of them
    pub(super) empty_bytes: u64,
    /// cycles in an hour of which the stack said that it needs them
    pub(super) wakes: u64,
    /// how soon it asks for the first; None for never
    pub(super) first_wake: Option<Duration>,
}

/// Opens connections that then do nothing.
pub(super) fn idle(connections: usize, batch: usize) -> Result<IdleFigures> {
    let limits = TcpLimits { connections: connections as u32, ..TcpLimits::default() };
    let setup = setup(connections, batch, limits, 65_536);
    let resident = || procs::resident_bytes(std::process::id());
    let before = Cell::new(None);
    let mut bed = Bed::new(&setup, Echo { object: None }, || before.set(resident().ok()))?;
    let before = before.get().context("cannot tell the resident memory")?;
    let empty_bytes = resident()?.saturating_sub(before);
    bed.establish()?;
    let resident_bytes = resident()?.saturating_sub(before);
    let usage = bed.usage();
    ensure!(usage.connections == connections && usage.half_open == 0, "there are {usage:?}");
    let (wakes, first_wake) = bed.rest(Duration::from_secs(3600))?;
    ensure!(bed.usage().connections == connections, "connections are lost");
    Ok(IdleFigures { resident_bytes, empty_bytes, wakes, first_wake })
}

#[cfg(test)]
impl PingPong {
    /// Has the service answer with an object of so many bytes, whatever is expected.
    pub(super) fn answer_with(&mut self, bytes: u64) {
        self.bed.service().object = Some(Object::new(bytes));
    }
}

#[cfg(test)]
impl Churn {
    /// Has the service answer requests of another size only.
    pub(super) fn expect_requests_of(&mut self, bytes: usize) {
        self.bed.service().request_bytes = bytes;
    }
}
