//! The yardstick: threads that count in registers, each on a processor of its own. What more of them gain is what the machine has to
//! give: it shows processors that share a core, a clock that falls under load, and what others on the machine take.

use crate::procs;
use anyhow::{Result, anyhow};
use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Steps between two looks at the clock.
const STEPS: u32 = 1 << 16;

/// Steps a second of all threads, one on each of `cpus`, together.
pub(super) fn rate(cpus: &[usize], seconds: f64) -> Result<f64> {
    let (barrier, span) = (Barrier::new(cpus.len()), Duration::from_secs_f64(seconds));
    std::thread::scope(|scope| {
        let one = |cpu: usize| {
            let barrier = &barrier;
            move || -> Result<f64> {
                let pinned = procs::pin(cpu);
                // also when it failed: the others wait
                barrier.wait();
                pinned?;
                Ok(count(span))
            }
        };
        let threads: Vec<_> = cpus.iter().map(|cpu| scope.spawn(one(*cpu))).collect();
        threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("a loop panicked"))?).sum()
    })
}

fn count(span: Duration) -> f64 {
    let (begun, mut steps, mut value) = (Instant::now(), 0u64, 1u64);
    loop {
        for _ in 0..STEPS {
            // a chain that has no shorter form
            value = value.rotate_left(5).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
        value = black_box(value);
        steps += u64::from(STEPS);
        let elapsed = begun.elapsed();
        if elapsed >= span {
            return steps as f64 / elapsed.as_secs_f64();
        }
    }
}
