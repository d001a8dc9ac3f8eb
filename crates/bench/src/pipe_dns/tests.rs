use super::*;

fn setup(names: u64, batch: usize, keying: Keying, transmit: Transmit) -> Setup {
    Setup { names, batch, keying, transmit }
}

#[test]
fn every_key_and_way_answers_rightly_at_every_batch() {
    // the harness fails on the first answer that is missing, out of order or wrong
    let tables = harness::tables(1_000).unwrap();
    for keying in [Keying::Wire, Keying::Name] {
        for transmit in [Transmit::Inplace, Transmit::Copy, Transmit::Precopy] {
            for batch in [1, 7, 64] {
                let mut harness = Harness::new(&setup(1_000, batch, keying, transmit), tables.clone()).unwrap();
                assert!(harness.run(3_000).unwrap() > 0.0);
            }
        }
    }
}

#[test]
fn every_way_sends_the_same_frames_and_keeps_all_of_its_own() {
    let tables = harness::tables(40).unwrap();
    let ways = [Transmit::Inplace, Transmit::Copy, Transmit::Precopy];
    for keying in [Keying::Wire, Keying::Name] {
        let harness = |transmit| Harness::new(&setup(40, 16, keying, transmit), tables.clone()).unwrap();
        let mut harnesses = ways.map(harness);
        let before = harnesses.each_mut().map(Harness::at_rest);
        let mut rng = base::rng::Rng::new(5);
        let mut answered = 0;
        for _ in 0..50 {
            let mut frames = Vec::new();
            for _ in 0..rng.below(200) {
                let mut frame =
                    harnesses[0].question(rng.below(1000), rng.below(65_536) as u16, 1024 + rng.below(9000) as u16);
                match rng.below(10) {
                    0 => {
                        let at = rng.below(frame.len() as u64) as usize;
                        frame[at] ^= 1 << rng.below(8);
                    }
                    // type, class, flags and letters, under no checksum
                    1 => {
                        let at = 42 + 2 + rng.below(frame.len() as u64 - 44) as usize;
                        frame[40..42].fill(0);
                        frame[at] ^= [1, 0x20, 2][rng.below(3) as usize];
                    }
                    _ => {}
                }
                frames.push(frame);
            }
            let [in_place, copied, retained] = harnesses.each_mut().map(|harness| harness.exchange(&frames));
            answered += in_place.len();
            assert_eq!(in_place, copied);
            assert_eq!(in_place, retained);
        }
        assert!(answered > 3000, "{answered} were answered");
        assert_eq!(harnesses.each_mut().map(Harness::at_rest), before);
    }
}

#[test]
fn a_zone_that_lacks_the_names_is_found_out() {
    let tables = harness::tables(1).unwrap();
    let mut harness = Harness::new(&setup(1_000, 64, Keying::Wire, Transmit::Inplace), tables).unwrap();
    let error = harness.run(1).unwrap_err().to_string();
    assert!(error.contains("was not answered next"), "{error}");
}

#[test]
fn the_sweep_has_every_size_and_two_at_every_batch() {
    assert_eq!(setups(100).len(), 6);
    assert_eq!(setups(10_000).len(), 42);
}
