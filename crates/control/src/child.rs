//! Processes of ours that end by themselves.

use std::process::Child;
use std::time::{Duration, Instant};

/// Waits for one that is about to end, so long at most.
pub(crate) fn wait(child: &mut Child, most: Duration) {
    let begun = Instant::now();
    while matches!(child.try_wait(), Ok(None)) && begun.elapsed() < most {
        std::thread::sleep(Duration::from_millis(1));
    }
}
