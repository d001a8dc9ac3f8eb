//! Proportional Rate Reduction (RFC 9937): how much may be sent for each acknowledgement during fast recovery, so that
//! the flight ends it at the slow-start threshold, neither in one burst nor after a silence.
//!
//! The caller knows the scoreboard; it says what each acknowledgement delivered and what is in flight, and takes the
//! window from here until recovery ends, when the window is the threshold.

/// One recovery of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prr {
    /// ssthresh, where the flight is to end
    target_bytes: u32,
    /// RecoverFS
    flight_bytes: u32,
    /// prr_delivered
    delivered_bytes: u32,
    /// prr_out
    out_bytes: u32,
}

const _: () = assert!(size_of::<Prr>() == 16);

impl Prr {
    /// Recovery begins (RFC 9937 section 6.2). `target_bytes` is the new slow-start threshold. `flight_bytes` is
    /// RecoverFS: SND.NXT - SND.UNA as it was before the acknowledgement that began recovery, less what had been SACKed
    /// before that acknowledgement.
    pub fn begin(target_bytes: u32, flight_bytes: u32) -> Prr {
        Prr { target_bytes, flight_bytes: flight_bytes.max(1), delivered_bytes: 0, out_bytes: 0 }
    }

    /// The window after an acknowledgement, the one that begins recovery and every one during it (RFC 9937 section
    /// 6.2); `None` when it stays as it is. `delivered_bytes`: newly acknowledged or SACKed. `pipe_bytes`: in flight
    /// now, lost ones left out. `safe`: SND.UNA advanced and no further loss was found. Recovery that a timer begins
    /// calls this with nothing delivered.
    #[must_use]
    pub fn on_ack(&mut self, delivered_bytes: u32, pipe_bytes: u32, safe: bool, mss_bytes: u32) -> Option<u32> {
        if delivered_bytes == 0 && self.out_bytes > 0 {
            return None;
        }
        self.delivered_bytes = self.delivered_bytes.saturating_add(delivered_bytes);
        let (delivered, out) = (i64::from(self.delivered_bytes), i64::from(self.out_bytes));
        let send = if pipe_bytes > self.target_bytes {
            // proportional: by the end as much has left as the target is of the old flight, rounded up
            let share = u64::from(self.delivered_bytes) * u64::from(self.target_bytes);
            share.div_ceil(u64::from(self.flight_bytes)) as i64 - out
        } else {
            // below the target: as much as was delivered (PRR-CRB), a segment more while recovery goes well (PRR-SSRB)
            let limit = (delivered - out).max(i64::from(delivered_bytes)) + if safe { i64::from(mss_bytes) } else { 0 };
            limit.min(i64::from(self.target_bytes - pipe_bytes))
        };
        // the first retransmission always goes
        let least = if self.out_bytes == 0 { i64::from(mss_bytes) } else { 0 };
        let send = send.max(least).min(i64::from(u32::MAX));
        Some(pipe_bytes.saturating_add(send as u32))
    }

    /// Bytes were sent, new or again.
    #[inline]
    pub fn on_sent(&mut self, bytes: u32) {
        self.out_bytes = self.out_bytes.saturating_add(bytes);
    }

    /// The window when recovery ends (RFC 9937 section 6.2).
    #[inline]
    pub fn target_bytes(&self) -> u32 {
        self.target_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MSS: u32 = 1000;

    /// RFC 9937's pseudocode, in segments, over a recovery in which `lost` of `flight` segments are gone and each
    /// acknowledgement SACKs one: returns the flight at the end and the largest burst.
    fn recover(flight: u32, lost: u32, target: u32) -> (u32, u32) {
        let mut prr = Prr::begin(target * MSS, flight * MSS);
        let (mut pipe, mut waiting, mut burst) = (flight - lost, flight - lost, 0);
        while waiting > 0 {
            waiting -= 1;
            pipe -= 1;
            let Some(window) = prr.on_ack(MSS, pipe * MSS, false, MSS) else { continue };
            let send = (window / MSS).saturating_sub(pipe);
            prr.on_sent(send * MSS);
            pipe += send;
            burst = burst.max(send);
        }
        (pipe, burst)
    }

    #[test]
    fn few_losses_end_at_the_target_without_bursts() {
        for flight in [10, 20, 100, 1000] {
            for lost in [1, 2, flight / 10] {
                let target = flight * 7 / 10;
                let (pipe, burst) = recover(flight, lost, target);
                // what was delivered is the target's share of the flight; the losses' own share does not come
                let least = (flight - lost) * target / flight;
                assert!(
                    (least.saturating_sub(1)..=target).contains(&pipe),
                    "{pipe} of {target} after {lost} of {flight}"
                );
                assert!(burst <= 2, "{burst} at once");
            }
        }
    }

    #[test]
    fn heavy_losses_send_one_for_one() {
        // 80 of 100 lost: in flight are 20, below the target at once, so each delivery lets one leave
        let (pipe, burst) = recover(100, 80, 50);
        assert_eq!((pipe, burst), (20, 1));
    }

    #[test]
    fn the_numbers_of_the_rfcs_first_example() {
        // RFC 6937 section 5: 20 segments, the first lost, Reno: 19 acknowledgements, 10 segments leave
        let mut prr = Prr::begin(10 * MSS, 20 * MSS);
        let (mut pipe, mut sent) = (19, Vec::new());
        for _ in 0..19 {
            pipe -= 1;
            let window = prr.on_ack(MSS, pipe * MSS, false, MSS).unwrap();
            let send = (window / MSS).saturating_sub(pipe);
            prr.on_sent(send * MSS);
            pipe += send;
            sent.push(send);
        }
        // half of the acknowledgements let one leave; a share of half a segment waits for the other half
        assert_eq!(sent.iter().sum::<u32>(), 10);
        assert!(sent.iter().all(|send| *send <= 1), "{sent:?}");
        assert!(sent.windows(3).all(|three| three.contains(&1)), "{sent:?}");
        assert_eq!(pipe, 10);
    }

    #[test]
    fn the_first_retransmission_goes_even_when_a_timer_finds_the_loss() {
        let mut prr = Prr::begin(5 * MSS, 10 * MSS);
        assert_eq!(prr.on_ack(0, 8 * MSS, false, MSS), Some(9 * MSS));
        prr.on_sent(MSS);
        assert_eq!(prr.on_ack(0, 9 * MSS, false, MSS), None);
    }

    proptest! {
        /// However acknowledgements come, what is let out is at most what was delivered and a segment for each of them,
        /// and the window leads at most to the target or to what is in flight and one more.
        #[test]
        fn lets_out_what_was_delivered(
            target in 2u32..500, flight in 1u32..500, acks in prop::collection::vec((0u32..6 * MSS, any::<bool>(), 0u32..600, 0u8..=100), 1..100)
        ) {
            let mut prr = Prr::begin(target * MSS, flight.max(target) * MSS);
            let (mut delivered_all, mut out_all) = (0u64, 0u64);
            for (n, (delivered, safe, pipe, percent)) in acks.into_iter().enumerate() {
                let pipe = pipe * MSS;
                delivered_all += u64::from(delivered);
                let Some(window) = prr.on_ack(delivered, pipe, safe, MSS) else { continue };
                prop_assert!(window >= pipe);
                let send = window - pipe;
                prop_assert!(u64::from(send) <= (delivered_all - out_all.min(delivered_all)).max(u64::from(delivered)) + u64::from(MSS));
                if pipe <= target * MSS {
                    prop_assert!(window <= (target * MSS).max(pipe + MSS));
                }
                // an application may have less to send
                let sent = u64::from(send) * u64::from(percent) / 100;
                prr.on_sent(sent as u32);
                out_all += sent;
                prop_assert!(out_all <= 2 * delivered_all + (n as u64 + 1) * u64::from(MSS));
            }
        }
    }
}
