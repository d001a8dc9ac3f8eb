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
fn a_zone_that_lacks_the_names_is_found_out() {
    let tables = harness::tables(1).unwrap();
    let mut harness = Harness::new(&setup(1_000, 64, Keying::Wire, Transmit::Inplace), tables).unwrap();
    let error = harness.run(1).unwrap_err().to_string();
    assert!(error.contains("was not answered next"), "{error}");
}

#[test]
fn callgrinds_count_is_read() {
    let text = "==9== Callgrind\n==9== \n==9== Events    : Ir\n==9== Collected : 123456\n==9==\n";
    assert_eq!(collected(text), Some(123_456));
    assert_eq!(collected("==9== Collected : 0\n"), None);
    assert_eq!(collected(""), None);
}

#[test]
fn the_sweep_has_every_size_and_two_at_every_batch() {
    assert_eq!(setups(100).len(), 6);
    assert_eq!(setups(10_000).len(), 42);
}
