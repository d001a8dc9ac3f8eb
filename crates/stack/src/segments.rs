//! Where TCP meets the burst: segments are judged with the other packets, and handed to the engine in order of arrival when
//! the burst's datagrams are answered.

use crate::input::{Fate, Note, sent};
use crate::locals::{Key, Local, Route};
use crate::tcp::tuple::{Tuple, Tuple4, Tuple6};
use crate::tcp::{Engine, Hop, Origin, Place};
use crate::turn::{pair4, pair6};
use crate::{DropReason, Handled, Stack};
use app::{Coming, Ecn, Service};
use arrayvec::ArrayVec;
use base::{BURST_FRAMES, Burst, Frame, Instant};
use wire::Sum;
use wire::ethernet::Link;
use wire::tcp::{Malformed, Tcp, Verdict};

impl Stack {
    /// Judges a segment's form and whether it is for us at all.
    #[inline]
    pub(crate) fn judge_segment(&mut self, bytes: &[u8], pseudo: Sum, dst: Key, v6: bool) -> Result<(), DropReason> {
        let tcp = Tcp::parse(bytes)?;
        if tcp.src_port() == 0 || tcp.dst_port() == 0 {
            return Err(DropReason::TcpPort);
        }
        match tcp.verdict(pseudo) {
            Verdict::Good => {}
            Verdict::Partial if self.facts.virtual_link => self.counters.partial_checksums.add(1),
            Verdict::Partial | Verdict::Bad => return Err(DropReason::TcpChecksum),
        }
        match self.locals.route_tcp(dst, v6, tcp.dst_port()) {
            Route::To(_) => Ok(()),
            Route::NotOurs => Err(DropReason::NotOurs),
            Route::NotReady => Err(DropReason::NotReady),
            Route::Broadcast => Err(DropReason::Multicast),
            // ours alone: the segment is of a connection of ours, or gets its reset
            Route::NoListener if matches!(self.locals.find(dst), Some(Local::Own(_))) => Ok(()),
            Route::NoListener => Err(DropReason::NoListener),
        }
    }

    /// Hands the burst's segments to the engine.
    #[inline(never)]
    pub(crate) fn take_segments<S: Service>(
        &mut self,
        now: Instant,
        frames: &mut Burst,
        notes: &mut [Note],
        service: &mut S,
    ) {
        let mut origins = Origins::new();
        for (index, (frame, note)) in frames.iter().zip(&*notes).enumerate() {
            let v6 = match note.fate {
                Fate::Tcp4 => false,
                Fate::Tcp6 => true,
                _ => continue,
            };
            self.counters.add_handled(if v6 { Handled::Tcp6 } else { Handled::Tcp4 }, 1);
            let (bytes, ip_at) = (frame.bytes(), usize::from(note.ip_at));
            let (remote_port, local_port) = ports(bytes, note);
            if v6 {
                let (remote, local) = pair6(bytes, ip_at);
                let tuple = Tuple::V6(Tuple6 { local, remote, local_port, remote_port });
                self.add_origin(frame, index, tuple, Key::v6(local), &mut origins);
            } else {
                let (remote, local) = pair4(bytes, ip_at);
                let tuple = Tuple::V4(Tuple4 { local, remote, local_port, remote_port });
                self.add_origin(frame, index, tuple, Key::v4(local), &mut origins);
            }
        }
        let Some(tcp) = &mut self.tcp else { return };
        let likely: ArrayVec<u32, BURST_FRAMES> =
            runs(&origins).map(|run| tcp.likely_connection(run[0].1.hash)).collect();
        if service.foresees() {
            likely.iter().for_each(|index| tcp.foresee_connection(*index));
        }
        tcp.foresee_first(&likely);
        if service.foresees() {
            tcp.foresee_data(frames, notes, &origins, &likely, service);
        }
        for (turn, run) in runs(&origins).enumerate() {
            tcp.foresee_behind(&likely, turn);
            for (index, origin) in run {
                let (frame, note) = (&mut frames[usize::from(*index)], &mut notes[usize::from(*index)]);
                let place = Place {
                    ip_at: usize::from(note.ip_at),
                    at: usize::from(note.payload_at),
                    bytes: usize::from(note.payload_bytes),
                    congested: Ecn::from_bits(note.class) == Ecn::Ce,
                };
                note.fate = sent(tcp.input(now, frame, place, origin, likely[turn], service));
            }
        }
    }

    /// Adds who sent the segment, whereto, over which station, and who listens there; `key` is our address. Those of one connection come
    /// in runs, and say the same as the one before. Inlined for each family, so that it is made where it stands, and not moved there from
    /// parts that were just written, for which the processor would wait: see [`Sum::four`].
    #[inline(always)]
    fn add_origin(&mut self, frame: &Frame, index: usize, tuple: Tuple, key: Key, origins: &mut Origins) {
        let link = Link::parse(frame.bytes()).expect("a link header was parsed");
        let hop = Hop::new(link.src, link.tag);
        if let Some((_, last)) = origins.last()
            && last.tuple == tuple
        {
            let origin = Origin { hop, ..*last };
            return origins.push((index as u8, origin));
        }
        let listener = match self.locals.route_tcp(key, matches!(tuple, Tuple::V6(_)), tuple.local_port()) {
            Route::To(listener) => Some(listener),
            _ => None,
        };
        let Some(tcp) = &self.tcp else { return };
        origins.push((index as u8, Origin { hash: tcp.foresee(&tuple), tuple, hop, listener }));
    }
}

/// The peer's port and ours, of a segment that was parsed before.
#[inline(always)]
fn ports(frame: &[u8], note: &Note) -> (u16, u16) {
    let [a, b, c, d] = *frame[usize::from(note.payload_at)..].first_chunk().expect("a segment was parsed");
    (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]))
}

/// Where a burst's segments come from, each with the place of its frame.
type Origins = ArrayVec<(u8, Origin), BURST_FRAMES>;

/// Segments of one connection come in runs: what it needs is asked for once.
fn runs(origins: &[(u8, Origin)]) -> impl Iterator<Item = &[(u8, Origin)]> {
    origins.chunk_by(|(_, one), (_, next)| one.hash == next.hash)
}

impl From<Malformed> for DropReason {
    fn from(malformed: Malformed) -> DropReason {
        match malformed {
            Malformed::Short => DropReason::TcpShort,
            Malformed::DataOffset => DropReason::TcpDataOffset,
        }
    }
}

impl Engine {
    /// Tells the service what the segments bring, as far as it can be told by now; `likely` has the connection of each run of one
    /// connection's segments.
    fn foresee_data<S: Service>(
        &self,
        frames: &Burst,
        notes: &[Note],
        origins: &[(u8, Origin)],
        likely: &[u32],
        service: &mut S,
    ) {
        let mut coming: ArrayVec<Coming<'_>, BURST_FRAMES> = ArrayVec::new();
        for (run, connection) in runs(origins).zip(likely) {
            coming.extend(run.iter().filter_map(|(index, _)| {
                let (frame, note) = (&frames[usize::from(*index)], &notes[usize::from(*index)]);
                let (at, bytes) = (usize::from(note.payload_at), usize::from(note.payload_bytes));
                self.coming(*connection, &frame.bytes()[at..at + bytes])
            }));
        }
        service.foresee(&coming);
    }
}
