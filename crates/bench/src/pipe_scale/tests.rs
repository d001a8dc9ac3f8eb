use super::figures::Window;
use super::*;
use crate::commands::parsed;

fn setup(mode: Mode, threads: usize, seconds: f64) -> Setup {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let cpus = (0..threads).map(|thread| thread % processors).collect();
    Setup { mode, threads, cpus, flows: 64, seconds }
}

/// That every answer is right, none is lost and all frames come home is judged by the run itself.
fn every_mode(protocol: Protocol) {
    let content = Content::new(protocol, 100).unwrap();
    for threads in [1, 2, 3] {
        for &mode in Mode::value_variants() {
            let seconds = if mode.is_skewed() { 1.0 } else { 0.3 };
            // a thread that had no processor meanwhile has done nothing
            let ran = |figures: &Figures| {
                let rates = Rates::since(&figures.windows, 0.0);
                let ones: Vec<Rates> = figures.ones.iter().map(|one| Rates::since(one, 0.0)).collect();
                let compares = threads > 1 && !mode.is_paced();
                assert_eq!(ones.len(), if compares { threads } else { 0 }, "{mode:?} {threads}: {figures:?}");
                let share = figures.clients_share;
                rates.answers > 0.0
                    && share > 0.0
                    && share < 1.0
                    && (mode.is_paced() || rates.steps > 0.0)
                    && ones.iter().all(|one| one.answers > 0.0 && one.steps > 0.0)
            };
            let mut runs = (0..20).map(|_| bed::run(&setup(mode, threads, seconds), &content).unwrap());
            let figures = runs.find(ran).unwrap_or_else(|| panic!("{mode:?} {threads}: no run with figures"));
            let rates = Rates::since(&figures.windows, 0.0);
            assert!(figures.checked > 0, "{mode:?} {threads}: {figures:?}");
            assert_eq!(rates.steps > 0.0, !mode.is_paced(), "{mode:?} {threads}: {rates:?}");
            let crossed = figures.crossed_share;
            match mode {
                Mode::Crossed if threads > 1 => assert!(crossed > 0.9, "{figures:?}"),
                Mode::Apart | Mode::Even | Mode::Level | Mode::Skewed => assert_eq!((crossed, figures.moved), (0.0, 0)),
                _ => {}
            }
            if mode == Mode::Skewed {
                let counts = &figures.windows.last().unwrap().answered;
                assert!(counts[1..].iter().all(|count| *count == 0), "{figures:?}");
            }
        }
    }
}

#[test]
fn every_question_is_answered_rightly_in_every_mode() {
    every_mode(Protocol::Dns);
}

#[test]
fn every_request_is_answered_rightly_in_every_mode() {
    every_mode(Protocol::Web);
}

#[test]
fn a_free_thread_takes_part_of_the_groups_and_leaves_part() {
    // Before other tests, as far as that is permitted: while they keep threads from their processors none is free, or one comes to have none. The
    // threads that are made below have it from this one.
    let _ = rustix::process::setpriority_process(None, -15);
    for mode in [Mode::Balanced, Mode::BalancedFixed] {
        let content = Content::new(Protocol::Dns, 100).unwrap();
        let both = |two: &[Window]| two[1].answered.iter().zip(&two[0].answered).all(|(after, before)| after > before);
        // and where it is not: other tests end
        let is_shared = |_| {
            let figures = bed::run(&Setup { flows: 256, ..setup(mode, 2, 2.0) }, &content).unwrap();
            figures.moved > 0 && figures.windows.windows(2).any(both)
        };
        assert!((0..30).any(is_shared), "{mode:?}: nothing moves");
    }
}

#[test]
fn numbers_of_threads() {
    let numbers_of = |line: &str, processors| {
        numbers(&parsed::<Options>(line.split(' ')).unwrap(), processors).map_err(|error| error.to_string())
    };
    assert_eq!(numbers_of("pipe-scale", 6), Ok((vec![1, 2, 4], 256)));
    assert_eq!(numbers_of("pipe-scale --threads 2,1,2", 1), Ok((vec![1, 2], 256)));
    assert_eq!(numbers_of("pipe-scale --threads 1,16", 1), Ok((vec![1, 16], 96)));
    assert!(numbers_of("pipe-scale --threads 8 --flows 256", 1).unwrap_err().contains("2048 flows"));
}

#[test]
fn where_the_processors_are_is_looked_at_only_of_the_first_two() {
    let wanted_of = |line: &str, cpus: &[usize]| {
        let options = parsed::<Options>(line.split(' ')).map_err(|error| error.to_string())?;
        wanted(&options, cpus).map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(wanted_of("pipe-scale", &[1, 0]), Ok(()));
    assert_eq!(wanted_of("pipe-scale --apart 66", &[0, 1, 2]), Ok(()));
    assert!(wanted_of("pipe-scale --apart 66", &[1, 0]).unwrap_err().contains("processors 0 and 1"));
    assert!(wanted_of("pipe-scale --apart 66", &[0]).is_err());
    assert!(wanted_of("pipe-scale --apart 0", &[0, 1]).is_err());
}
