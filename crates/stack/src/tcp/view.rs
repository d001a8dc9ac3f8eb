//! Connections as they stand, for who asks by hand: what `ss -ti` shows of the kernel's.

use super::congestion::Algorithm;
use super::connection::{Connection, Flags};
use super::engine::Engine;
use super::state::State;
use app::Listener;
use base::Instant;
use std::net::SocketAddr;
use std::time::Duration;

/// A connection as it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    /// our end
    pub local: SocketAddr,
    /// the other end
    pub peer: SocketAddr,
    /// RFC 9293's name of its state, such as "ESTABLISHED"
    pub state: &'static str,
    /// where it came in; of no meaning for one that we asked for
    pub listener: Listener,
    /// bytes that the service has and did not give back
    pub delivered_bytes: u32,
    /// bytes queued that were not sent yet
    pub unsent_bytes: u64,
    /// bytes sent that were not acknowledged
    pub unacknowledged_bytes: u64,
    /// bytes acknowledged since the connection began
    pub acknowledged_bytes: u64,
    /// bytes that the peer may send
    pub window_bytes: u32,
    /// bytes that we may send
    pub peer_window_bytes: u64,
    /// bytes of data in a full segment
    pub segment_bytes: u16,
    /// smoothed and variance, from the first sample on (RFC 6298)
    pub round_trip: Option<(Duration, Duration)>,
    /// retransmission timeout, backoff counted
    pub timeout: Duration,
    /// since something was heard
    pub silent: Duration,
    /// SACK, timestamps, window scale and ECN, as agreed on
    pub sack: bool,
    /// as above
    pub timestamps: bool,
    /// as above: theirs and ours
    pub window_scales: Option<(u8, u8)>,
    /// as above
    pub ecn: bool,
    /// what a sender has; None while nothing was sent for long
    pub sender: Option<SenderView>,
}

/// The sending half.
#[derive(Clone, Debug, PartialEq)]
pub struct SenderView {
    /// congestion control
    pub algorithm: Algorithm,
    /// congestion window, bytes
    pub window_bytes: u32,
    /// slow start threshold, bytes; u32::MAX before the first loss
    pub threshold_bytes: u32,
    /// bytes in flight that the peer told to hold
    pub sacked_bytes: u32,
    /// bytes taken for lost and not sent again
    pub lost_bytes: u32,
}

impl Engine {
    /// Shows up to `most` places of the table from place `from` on; where to go on, None at the end. Free places count, so a
    /// call is bounded; connections that come or go between calls may be missed.
    pub(crate) fn view(&self, now: Instant, from: u32, most: u32, show: &mut dyn FnMut(View)) -> Option<u32> {
        let all = self.connections.len() as u32;
        let end = from.saturating_add(most).min(all);
        for c in self.connections.get(from as usize..end as usize).unwrap_or_default() {
            if c.state != State::Closed {
                show(self.view_of(now, c));
            }
        }
        (end < all).then_some(end)
    }

    fn view_of(&self, now: Instant, c: &Connection) -> View {
        let ns = Duration::from_nanos;
        let scaled = c.flags.has(Flags::SCALED);
        let sender = self.actives.peek(c.active).map(|a| SenderView {
            algorithm: a.congestion.algorithm(),
            window_bytes: a.congestion.window(),
            threshold_bytes: a.congestion.threshold(),
            sacked_bytes: a.board.sacked,
            lost_bytes: a.board.lost,
        });
        View {
            local: c.tuple.local(),
            peer: c.tuple.remote(),
            state: c.state.name(),
            listener: c.listener,
            delivered_bytes: c.rcv.delivered,
            unsent_bytes: c.snd.end.saturating_sub(c.snd.nxt),
            unacknowledged_bytes: c.snd.nxt.saturating_sub(c.snd.una),
            // the SYN is no data
            acknowledged_bytes: c.snd.una.min(c.snd.end).saturating_sub(1),
            window_bytes: c.offered(),
            peer_window_bytes: c.snd.edge.saturating_sub(c.snd.nxt),
            segment_bytes: c.mss,
            round_trip: c.rtt.smoothed_ns().map(|smoothed| (ns(smoothed), ns(c.rtt.variance_ns()))),
            timeout: ns(c.rtt.rto_ns()),
            silent: c.heard_at.near(now).filter(|at| *at < now).map_or(Duration::ZERO, |at| now - at),
            sack: c.flags.has(Flags::SACK),
            timestamps: c.flags.has(Flags::TIMESTAMPS),
            window_scales: scaled.then_some((c.snd_scale, c.rcv_scale)),
            ecn: c.flags.has(Flags::ECN),
            sender,
        }
    }
}
