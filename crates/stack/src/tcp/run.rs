//! Runs: new data of one object that fill several segments are planned, noted and framed together.
//!
//! Such segments differ in sequence number and payload only, so their headers are written once and copied; the checksum of
//! each is that of the copied header, its number and the sum of its payload added. The payload is copied behind the headers
//! or, where the port gathers, left where it is. What else goes out (the end of what is queued, with PSH and FIN; owned bytes;
//! what is sent again; probes) goes segment by segment, and to everything but the builder a run is those segments.

use super::connection::Flags;
use super::engine::{Engine, Outlet};
use super::hop::{ip_bytes, pseudo};
use super::output::{Plan, advertise, heads, on_acknowledged, timestamps};
use super::send::Stretch;
use app::Parts;
use base::{Frame, Instant, Seq};
use port::{Gather, Piece};
use std::sync::Arc;
use wire::ethernet::{HEADER_BYTES, TAGGED_HEADER_BYTES};
use wire::tcp::{self, Header, PayloadSum};
use wire::{Sum, ipv6};

/// Fewer segments than these are not worth it where they are copied.
const LEAST_COPIED: u64 = 2;
/// Shorter payloads are cheaper copied than gathered.
const LEAST_GATHERED_BYTES: u16 = 512;
/// So many segments ahead the sums are asked for that a gathered one needs.
const FORESEEN_SEGMENTS: usize = 6;
/// Room for all headers (tag, IPv6, timestamps), which are copied with what stands behind them: the length of the copy is known then.
const HEAD_BYTES: usize = 96;
const _: () = assert!(TAGGED_HEADER_BYTES + ipv6::HEADER_BYTES + tcp::HEADER_BYTES + 12 <= HEAD_BYTES);

/// The headers of a run's segments.
struct Heads {
    room: [u8; HEAD_BYTES],
    bytes: usize,
    tcp_at: usize,
    /// of the pseudo-header and the TCP header without a sequence number
    sum: Sum,
    seq: Seq,
}

impl Heads {
    /// Headers that are the same in each segment, the sequence number zero; the run begins at `seq`.
    fn new(room: [u8; HEAD_BYTES], bytes: usize, tcp_at: usize, seq: Seq) -> Heads {
        // the checksum of the header alone is the complement of its sum
        let field = u16::from_ne_bytes([room[tcp_at + 16], room[tcp_at + 17]]);
        Heads { sum: Sum::from_folded(!field), room, bytes, tcp_at, seq }
    }

    /// Writes the headers of the next segment, of so many bytes of payload with this sum, before the payload is.
    #[inline]
    fn write(&mut self, frame: &mut Frame, payload_bytes: u32, payload: u16) {
        let out = frame.room_mut().first_chunk_mut::<HEAD_BYTES>().expect("a frame's room is larger than headers");
        *out = self.room;
        let seq = self.seq.get();
        let tcp = &mut out[self.tcp_at..self.bytes];
        tcp[4..8].copy_from_slice(&seq.to_be_bytes());
        let sum = self.sum.word((seq >> 16) as u16).word(seq as u16).word(payload);
        tcp[16..18].copy_from_slice(&sum.checksum());
        self.seq += payload_bytes;
    }
}

impl Engine {
    /// Sends new data, which may go together, as a run of full segments, `most` at most; how many, and none when they are to go one by
    /// one.
    pub(super) fn send_run(&mut self, now: Instant, index: u32, most: usize, out: &mut Outlet<'_>) -> usize {
        let (mss, poll) = (self.connections[index as usize].mss, self.polls);
        let Some(mut sender) = self.sender(now, index) else { return 0 };
        let gathers = mss >= LEAST_GATHERED_BYTES && sender.may_overtake(poll) && out.supply.gather().is_some();
        let (least, most) = if gathers { (1, most) } else { (LEAST_COPIED, most.min(out.tx.remaining_capacity())) };
        if !sender.may_run(least) {
            return 0;
        }
        let bytes = sender.run_bytes(least, most as u64 * u64::from(mss));
        let Some(segments) = self.run_segments(index, bytes).filter(|segments| *segments >= least) else { return 0 };
        let mut heads = self.run_heads(now, index, out);
        let c = &self.connections[index as usize];
        let Some(a) = self.actives.get(c.active) else { return 0 };
        let Some(Stretch { content, object, start, .. }) = self.queue.stretch(&mut a.list, c.snd.nxt) else { return 0 };
        let mut parts = content.parts(object, start);
        let sent = match out.supply.gather().filter(|_| gathers) {
            Some(gather) => gather_run(gather, &mut heads, &mut parts, content.shared(object), segments, mss),
            None => {
                let sent = copy_run(out, &mut heads, &mut parts, segments, mss);
                if sent > 0 {
                    a.framed_in = poll;
                }
                sent
            }
        };
        if sent > 0 {
            on_acknowledged(&mut self.connections[index as usize]);
            if let Some(mut sender) = self.sender(now, index) {
                sender.commit(Plan::New { bytes: sent as u32 * u32::from(mss) });
            }
            self.counters.sent.add(sent as u64);
        }
        sent
    }

    /// How many full segments `bytes` of new data are, as far as they come from one object and are not the last ones queued.
    fn run_segments(&mut self, index: u32, bytes: u64) -> Option<u64> {
        let c = &self.connections[index as usize];
        let a = self.actives.get(c.active).filter(|_| bytes > 0)?;
        let stretch = self.queue.stretch(&mut a.list, c.snd.nxt)?;
        let behind = c.snd.end - c.snd.nxt - 1;
        Some(bytes.min(stretch.bytes).min(behind) / u64::from(c.mss))
    }

    /// What stands in front of each segment of a run.
    fn run_heads(&mut self, now: Instant, index: u32, out: &Outlet<'_>) -> Heads {
        let c = &mut self.connections[index as usize];
        // RFC 3168 section 6.1.3
        let echo = if c.flags.has(Flags::ECHO) { tcp::Flags::ECE } else { tcp::Flags::NONE };
        let header = Header {
            src_port: c.tuple.local_port(),
            dst_port: c.tuple.remote_port(),
            ack: c.rcv.nxt,
            flags: tcp::Flags::ACK | echo,
            window: advertise(c),
            timestamps: timestamps(c, now),
            ..Header::default()
        };
        let link_bytes = if c.hop.tag().is_some() { TAGGED_HEADER_BYTES } else { HEADER_BYTES };
        let tcp_at = link_bytes + ip_bytes(&c.tuple);
        let segment_bytes = header.bytes() + usize::from(c.mss);
        let mut room = [0; HEAD_BYTES];
        let marked = c.flags.has(Flags::ECN);
        let tcp = heads(&mut room, out.mac, &c.hop, &c.tuple, segment_bytes, marked);
        header.write(tcp, pseudo(&c.tuple, segment_bytes), PayloadSum::Known(Sum::ZERO));
        Heads::new(room, tcp_at + header.bytes(), tcp_at, c.seq(c.snd.nxt))
    }
}

/// Puts segments into the burst, as far as there are frames; how many.
fn copy_run(out: &mut Outlet<'_>, heads: &mut Heads, parts: &mut Parts<'_>, segments: u64, mss: u16) -> usize {
    for n in 0..segments as usize {
        let Some(mut frame) = out.frame() else { return n };
        let (bytes, sum) = parts.take(usize::from(mss));
        heads.write(&mut frame, u32::from(mss), sum);
        frame.set_len(heads.bytes + bytes.len());
        frame.bytes_mut()[heads.bytes..].copy_from_slice(bytes);
        out.tx.push(frame);
    }
    segments as usize
}

/// Has the port gather segments, as far as there are frames and it takes them; how many.
fn gather_run(
    gather: &mut dyn Gather,
    heads: &mut Heads,
    parts: &mut Parts<'_>,
    object: &Arc<[u8]>,
    segments: u64,
    mss: u16,
) -> usize {
    let ahead = FORESEEN_SEGMENTS * usize::from(mss);
    (1..FORESEEN_SEGMENTS).for_each(|n| parts.foresee(n * usize::from(mss)));
    for n in 0..segments as usize {
        let Some(mut frame) = gather.frame() else { return n };
        parts.foresee(ahead);
        let at = parts.at();
        let (bytes, sum) = parts.take(usize::from(mss));
        heads.write(&mut frame, u32::from(mss), sum);
        frame.set_len(heads.bytes);
        if let Err(frame) = gather.send(frame, Piece::new(object.clone(), at, bytes.len())) {
            gather.give_back(frame);
            return n;
        }
    }
    segments as usize
}
