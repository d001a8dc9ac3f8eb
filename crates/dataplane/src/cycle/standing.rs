//! Arrivals where a thread has the queues of others beside its own: those of threads that are off duty.
//!
//! All of them together bring it no more than a burst a cycle, and each has its part of that, so that no queue that is always full keeps
//! another from being emptied.

use super::Joint;
use crate::MOST_THREADS;
use arrayvec::ArrayVec;
use base::Burst;
use port::Port;

impl Joint {
    /// As [`Joint::receive`], from the own port and every queue that this thread stands in for. Each has an equal part of `limit`, and what one
    /// does not need the others have; where there is too little for all, they have their turns.
    pub(super) fn receive_by_parts<P: Port>(
        &mut self,
        port: &mut P,
        rx: &mut Burst,
        limit: usize,
        lost: &mut Burst,
    ) -> usize {
        let standing = self.crossing.standing();
        // the own port is the last place
        let places = standing.len() + usize::from(self.crossing.has_queue());
        let mut asking: ArrayVec<usize, MOST_THREADS> = (0..places).map(|n| (self.turn + n) % places).collect();
        let (mut left, mut served) = (limit, None);
        loop {
            let mut sharing = asking.len();
            // who took its whole part may have more
            asking.retain(|place| {
                let part = left.div_ceil(sharing);
                let taken = match standing.get(*place) {
                    Some(queue) => {
                        let Joint { crossing, received, .. } = self;
                        crossing.stand_in(*queue, rx, received, part, lost, port)
                    }
                    None => self.receive(port, rx, part, lost),
                };
                (left, sharing) = (left - taken, sharing - 1);
                if taken > 0 {
                    served.get_or_insert(*place);
                }
                taken > 0 && taken == part
            });
            if left == 0 || asking.is_empty() {
                break;
            }
        }
        // also of what does not come out even each has its turn
        self.turn = served.map_or(self.turn, |first| first + 1);
        limit - left
    }
}
