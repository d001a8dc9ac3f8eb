//! Large sends: new data that may go at once leaves as one super-segment, which the device cuts into the segments that
//! would have been sent otherwise.
//!
//! To everything else they are those segments: each is noted, paced and counted by itself. The payload is lent from the queue as
//! it lies there. What is sent again, probes, and the segment that tells of a reduced window (CWR) go as frames, and so does
//! new data while frames of the same connection wait in the burst: a super-segment would overtake them.

use super::ack::Sender;
use super::connection::Flags;
use super::engine::{Engine, Outlet};
use super::hop::{ip_bytes, pseudo};
use super::output::{Plan, advertise, heads, on_acknowledged, timestamps};
use super::tuple::Tuple;
use arrayvec::ArrayVec;
use base::Instant;
use port::{Large, MAX_PIECES, MOST_BYTES, Segmentation};
use wire::ethernet::TAGGED_HEADER_BYTES;
use wire::tcp::{self, Header, PayloadSum};
use wire::{ethernet, ipv6};

/// Fewer segments than these are cheaper as frames.
const LEAST_SEGMENTS: u64 = 2;
/// Room for all headers.
const HEAD_BYTES: usize = TAGGED_HEADER_BYTES + ipv6::HEADER_BYTES + tcp::MAX_HEADER_BYTES;

impl Sender<'_> {
    /// Whether the new data that are to go next may go together, and are `least` segments or more.
    pub(super) fn may_run(&self, least: u64) -> bool {
        let (c, a) = (&*self.c, &*self.a);
        let enough = c.snd.end.saturating_sub(c.snd.nxt) >= least * u64::from(c.mss);
        enough && !a.probe_now && !c.flags.has(Flags::REDUCED)
    }

    /// Whether new data may overtake the burst: none of the connection's is in it.
    pub(super) fn may_overtake(&self, poll: u32) -> bool {
        self.a.framed_in != poll
    }

    /// Bytes of new data that go together, at most `most`: whole segments, and the end of what is queued. Zero when they are less
    /// than `least` segments.
    pub(super) fn run_bytes(&mut self, least: u64, most: u64) -> u64 {
        self.restart_after_idle();
        let (c, a) = (&*self.c, &*self.a);
        let mss = u64::from(c.mss);
        let data = c.snd.end - c.snd.nxt;
        let window = c.snd.edge.saturating_sub(c.snd.nxt);
        let congestion = u64::from(a.congestion.window().saturating_sub(a.board.pipe()));
        let bytes = data.min(window).min(congestion).min(self.paced_bytes()).min(most);
        match bytes {
            _ if bytes < least * mss => 0,
            _ if bytes == data => bytes,
            _ => bytes - bytes % mss,
        }
    }

    /// Notes `bytes` of new data, and the FIN behind them, as the segments that they are cut into; how many.
    fn commit_run(&mut self, bytes: u64, fin: bool) -> usize {
        let mss = u64::from(self.c.mss);
        let segments = bytes.div_ceil(mss);
        for n in 0..segments {
            let last = n + 1 == segments;
            let some = if last { bytes - n * mss + u64::from(fin) } else { mss };
            self.commit(Plan::New { bytes: some as u32 });
        }
        segments as usize
    }
}

impl Engine {
    /// Sends new data, which may go together, as a super-segment; of how many segments, and none when they are to go as frames.
    pub(super) fn send_large(&mut self, now: Instant, index: u32, out: &mut Outlet<'_>) -> usize {
        let poll = self.polls;
        let may = |sender: Sender<'_>| sender.may_run(LEAST_SEGMENTS) && sender.may_overtake(poll);
        if !self.sender(now, index).is_some_and(may) {
            return 0;
        }
        let Some(large) = out.supply.large() else { return 0 };
        self.send_super(now, index, large, out.mac)
    }

    fn send_super(&mut self, now: Instant, index: u32, large: &mut dyn Large, mac: ethernet::Mac) -> usize {
        let c = &self.connections[index as usize];
        let mut header = Header { timestamps: timestamps(c, now), flags: tcp::Flags::ACK, ..Header::default() };
        let ip_at = if c.hop.tag().is_some() { TAGGED_HEADER_BYTES } else { ethernet::HEADER_BYTES };
        let tcp_at = ip_at + ip_bytes(&c.tuple);
        let head_bytes = tcp_at + header.bytes();
        let most = large.most_bytes().min(MOST_BYTES).saturating_sub(head_bytes);
        let Some(mut sender) = self.sender(now, index) else { return 0 };
        let bytes = sender.run_bytes(LEAST_SEGMENTS, most as u64);
        let Some(a) = self.actives.get(self.connections[index as usize].active).filter(|_| bytes > 0) else { return 0 };
        let c = &mut self.connections[index as usize];
        let mut pieces = ArrayVec::<&[u8], MAX_PIECES>::new();
        let lent = self.queue.lend(&mut a.list, c.snd.nxt, bytes as usize, &mut pieces) as u64;
        if lent < bytes {
            // many small ranges; they are cheaper copied
            return 0;
        }
        let end = c.snd.nxt + bytes;
        let fin = end == c.snd.end && c.flags.has(Flags::FIN) && end < c.snd.edge;
        for (flag, set) in [
            (tcp::Flags::FIN, fin),
            (tcp::Flags::PSH, end == c.snd.end),
            // RFC 3168 section 6.1.3
            (tcp::Flags::ECE, c.flags.has(Flags::ECHO)),
        ] {
            if set {
                header.flags |= flag;
            }
        }
        (header.src_port, header.dst_port) = (c.tuple.local_port(), c.tuple.remote_port());
        (header.seq, header.ack, header.window) = (c.seq(c.snd.nxt), c.rcv.nxt, advertise(c));
        let segment_bytes = header.bytes() + bytes as usize;
        let mut room = [0; HEAD_BYTES];
        let head = &mut room[..head_bytes];
        let marked = c.flags.has(Flags::ECN);
        header.write(
            heads(head, mac, &c.hop, &c.tuple, segment_bytes, marked),
            pseudo(&c.tuple, segment_bytes),
            PayloadSum::Device,
        );
        let v6 = matches!(c.tuple, Tuple::V6(_));
        let sent = large.send(head, &pieces, &Segmentation { segment_bytes: c.mss, ip_at, tcp_at, v6 });
        drop(pieces);
        if !sent {
            return 0;
        }
        on_acknowledged(c);
        let segments = self.sender(now, index).map_or(0, |mut sender| sender.commit_run(bytes, fin));
        self.counters.sent.add(segments as u64);
        segments
    }
}
