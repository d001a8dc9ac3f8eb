//! The states of a connection (RFC 9293 section 3.3.2), and where each event leads.
//!
//! LISTEN has no connection; SYN-RECEIVED of the passive side is a half-open entry (`half_open`) and TIME-WAIT an entry of its
//! own (`time_wait`). So what stands here is what a connection block can be in. A transition is a value: nothing happens but
//! what the caller does with it.

/// A connection's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum State {
    /// we asked, nobody answered yet
    SynSent,
    /// both asked at once (RFC 9293 section 3.5, figure 7)
    SynReceived,
    /// data flows both ways
    Established,
    /// we finished, the peer has not said that it knows
    FinWait1,
    /// we finished, the peer knows and goes on
    FinWait2,
    /// the peer finished, we go on
    CloseWait,
    /// both finished at once, the peer has not said that it knows
    Closing,
    /// the peer finished, then we; the peer has not said that it knows
    LastAck,
    /// nothing is expected any more
    Closed,
}

/// Where the peer's word that it has our FIN leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// to this state
    State(State),
    /// to waiting until old segments have left the network (RFC 9293 section 3.6.1)
    TimeWait,
    /// to the end
    Closed,
}

impl State {
    /// RFC 9293's name for it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            State::SynSent => "SYN-SENT",
            State::SynReceived => "SYN-RECEIVED",
            State::Established => "ESTABLISHED",
            State::FinWait1 => "FIN-WAIT-1",
            State::FinWait2 => "FIN-WAIT-2",
            State::CloseWait => "CLOSE-WAIT",
            State::Closing => "CLOSING",
            State::LastAck => "LAST-ACK",
            State::Closed => "CLOSED",
        }
    }

    /// The handshake is complete, whichever way.
    pub(crate) const fn is_synchronized(self) -> bool {
        !matches!(self, State::SynSent | State::SynReceived | State::Closed)
    }

    /// We may queue more.
    pub(crate) const fn may_send(self) -> bool {
        matches!(self, State::SynSent | State::SynReceived | State::Established | State::CloseWait)
    }

    /// The peer may send more.
    pub(crate) const fn may_receive(self) -> bool {
        matches!(self, State::Established | State::FinWait1 | State::FinWait2)
    }

    /// Our FIN is queued or sent.
    pub(crate) const fn has_finished(self) -> bool {
        matches!(self, State::FinWait1 | State::FinWait2 | State::Closing | State::LastAck)
    }

    /// We finish (RFC 9293 section 3.10.4): FIN goes behind what is queued. None when there is nothing to finish.
    pub(crate) const fn on_shutdown(self) -> Option<State> {
        match self {
            State::SynReceived | State::Established => Some(State::FinWait1),
            State::CloseWait => Some(State::LastAck),
            _ => None,
        }
    }

    /// The peer's FIN has arrived in order (RFC 9293 section 3.10.7.4, eighth).
    pub(crate) const fn on_fin(self) -> Next {
        match self {
            State::SynReceived | State::Established => Next::State(State::CloseWait),
            State::FinWait1 => Next::State(State::Closing),
            State::FinWait2 => Next::TimeWait,
            other => Next::State(other),
        }
    }

    /// The peer has acknowledged our FIN (RFC 9293 section 3.10.7.4, fifth).
    pub(crate) const fn on_fin_acknowledged(self) -> Next {
        match self {
            State::FinWait1 => Next::State(State::FinWait2),
            State::Closing => Next::TimeWait,
            State::LastAck => Next::Closed,
            other => Next::State(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_orders_of_closing_end() {
        let first = State::Established.on_shutdown().unwrap();
        assert_eq!(first.on_fin_acknowledged(), Next::State(State::FinWait2));
        assert_eq!(State::FinWait2.on_fin(), Next::TimeWait);
        assert_eq!(first.on_fin(), Next::State(State::Closing));
        assert_eq!(State::Closing.on_fin_acknowledged(), Next::TimeWait);
        assert_eq!(State::Established.on_fin(), Next::State(State::CloseWait));
        assert_eq!(State::CloseWait.on_shutdown(), Some(State::LastAck));
        assert_eq!(State::LastAck.on_fin_acknowledged(), Next::Closed);
    }

    #[test]
    fn who_has_finished_may_not_send_and_cannot_finish_again() {
        for state in [State::FinWait1, State::FinWait2, State::Closing, State::LastAck] {
            assert!(
                state.has_finished() && !state.may_send() && state.on_shutdown().is_none() && state.is_synchronized()
            );
        }
    }
}
