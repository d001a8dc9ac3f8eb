//! Seeds of the simulated world that the ordinary test run goes through; `make simulate` goes through thousands more. One that
//! fails is told with the command that runs it again.

use sim::{Show, own, smoltcp};
use std::panic::{UnwindSafe, catch_unwind, resume_unwind};

/// Goes through seeds and folds what was met.
fn through<T: Default>(
    against: &str,
    count: u64,
    run: impl Fn(u64) -> T + UnwindSafe + Copy,
    and: impl Fn(T, T) -> T,
) -> T {
    (0..count).fold(T::default(), |met, seed| match catch_unwind(move || run(seed)) {
        Ok(more) => and(met, more),
        Err(panic) => {
            eprintln!("to replay: cargo run --release -p sim -- --against {against} --seed {seed}");
            resume_unwind(panic);
        }
    })
}

#[test]
fn every_byte_arrives_and_every_connection_ends() {
    let met = through("self", 1500, |seed| own::run(seed, Show::default()), own::Met::and);
    let own::Met { large, gathered, oversized, lowered, moved: _, aborted, full_last } = met;
    assert!(large > 0 && gathered > 0 && oversized > 0 && lowered > 0, "not everything was met: {met:?}");
    assert!(aborted > 0 && full_last > 0, "not every end was met: {met:?}");
}

#[test]
fn a_connection_that_moves_between_stacks_sends_what_one_that_stays_does() {
    let run = |seed| own::run_moving(seed, Show::default(), own::moves_below(seed));
    let met = through("self --moves", 600, run, own::Met::and);
    assert!(met.moved > 10_000 && met.lowered > 0 && met.large > 0 && met.gathered > 0, "{met:?}");
}

#[test]
fn smoltcp_serves_and_is_served() {
    let and = |met: smoltcp::Met, more: smoltcp::Met| smoltcp::Met {
        oversized: met.oversized + more.oversized,
        lowered: met.lowered + more.lowered,
    };
    let met = through("smoltcp", 500, |seed| smoltcp::run(seed, Show::default()), and);
    assert!(met.oversized > 0 && met.lowered > 0, "no path was narrow: {met:?}");
}

#[test]
fn a_seed_decides_everything() {
    for seed in [3, 8] {
        assert_eq!(own::run(seed, Show::default()), own::run(seed, Show::default()));
        assert_eq!(smoltcp::run(seed, Show::default()), smoltcp::run(seed, Show::default()));
    }
}
