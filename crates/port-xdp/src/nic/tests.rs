use super::*;
use std::cell::RefCell;

/// A driver: what it answers to a command, as the bytes of the structure; without an answer it refuses.
#[derive(Default)]
struct Driver {
    answers: Vec<(u32, Vec<u32>)>,
    /// the commands that set something
    written: std::rc::Rc<RefCell<Vec<Vec<u32>>>>,
}

impl Ask for Driver {
    fn ask(&self, words: &mut [u32]) -> io::Result<()> {
        if matches!(words[0], ETHTOOL_SRXFHINDIR | ETHTOOL_SRSSH) {
            self.written.borrow_mut().push(words.to_vec());
            return Ok(());
        }
        let flows = if words[0] == ETHTOOL_GRXFH { words[1] } else { 0 };
        let matches = |answer: &&(u32, Vec<u32>)| answer.0 == words[0] && (flows == 0 || answer.1[1] == flows);
        let Some((_, answer)) = self.answers.iter().find(matches) else {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        };
        // as the kernel: no more than there is room for
        let len = words.len().min(answer.len());
        words[..len].copy_from_slice(&answer[..len]);
        Ok(())
    }
}

/// `struct ethtool_rxfh` with a table over `queues`, a key that counts up, and the four bytes of function and transformation.
fn rxfh(entries: u32, queues: u32, key_bytes: u8, function: [u8; 4]) -> (u32, Vec<u32>) {
    let mut words = vec![ETHTOOL_GRSSH, 0, entries, u32::from(key_bytes), u32::from_ne_bytes(function), 0];
    words.extend((0..entries).map(|entry| entry % queues));
    let mut key: Vec<u8> = (1..=key_bytes).collect();
    key.resize(key.len().next_multiple_of(4), 0);
    words.extend(key.chunks(4).map(word));
    (ETHTOOL_GRSSH, words)
}

fn hashed(flows: Flows, bits: u64) -> (u32, Vec<u32>) {
    let bits = bits.to_ne_bytes();
    let mut words = vec![0; RXNFC_WORDS];
    words[..4].copy_from_slice(&[ETHTOOL_GRXFH, flows.number(), word(&bits[..4]), word(&bits[4..])]);
    (ETHTOOL_GRXFH, words)
}

fn nic(answers: Vec<(u32, Vec<u32>)>) -> Nic {
    Nic(Box::new(Driver { answers, ..Driver::default() }))
}

#[test]
fn receive_side_scaling_is_read_as_drivers_tell_it() {
    // entries, queues, bytes of the key, function and transformation: i40e, ice, mlx5, virtio_net, ena (which hides its key at times)
    for (entries, queues, key, function, is, symmetric) in [
        (512, 8, 52, [1, 0, 0, 0], HashFunction::Toeplitz, false),
        (2048, 16, 52, [1, 1, 0, 0], HashFunction::Toeplitz, true),
        (256, 12, 40, [1, 0, 0, 0], HashFunction::Toeplitz, false),
        (128, 4, 40, [1, 0, 0, 0], HashFunction::Toeplitz, false),
        (128, 4, 0, [4, 0, 0, 0], HashFunction::Crc32, false),
        (64, 3, 39, [0, 0, 0, 0], HashFunction::Unknown, false),
        (2, 2, 40, [2, 0, 0, 0], HashFunction::Xor, false),
    ] {
        let rss = nic(vec![rxfh(entries, queues, key, function)]).rss().unwrap().unwrap();
        assert_eq!(rss.table, (0..entries).map(|entry| entry % queues).collect::<Vec<_>>());
        assert_eq!(rss.key, (1..=key).collect::<Vec<u8>>());
        assert_eq!((rss.function, rss.symmetric), (is, symmetric));
    }
}

#[test]
fn a_table_without_a_key_is_read_by_the_older_command() {
    let rss = nic(vec![(ETHTOOL_GRXFHINDIR, vec![ETHTOOL_GRXFHINDIR, 4, 0, 1, 0, 1])]).rss().unwrap().unwrap();
    assert_eq!(rss, Rss { table: vec![0, 1, 0, 1], key: vec![], function: HashFunction::Unknown, symmetric: false });
    // one queue, hence no table
    assert_eq!(nic(vec![(ETHTOOL_GRXFHINDIR, vec![ETHTOOL_GRXFHINDIR, 0])]).rss().unwrap(), None);
    assert_eq!(nic(vec![rxfh(0, 1, 40, [1, 0, 0, 0])]).rss().unwrap(), None);
}

#[test]
fn a_driver_that_lies_about_sizes_is_not_believed() {
    let error = nic(vec![(ETHTOOL_GRSSH, vec![ETHTOOL_GRSSH, 0, u32::MAX, 40, 1, 0])]).rss().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    nic(vec![(ETHTOOL_GSSET_INFO, vec![ETHTOOL_GSSET_INFO, 0, 16, 0, 1 << 20])]).features().unwrap_err();
}

#[test]
fn table_and_key_are_written_apart() {
    let driver = Driver { answers: vec![rxfh(4, 2, 6, [1, 2, 0, 0])], ..Driver::default() };
    let written = driver.written.clone();
    let nic = Nic(Box::new(driver));
    nic.set_rss_table(&[1, 1, 0, 0]).unwrap().unwrap();
    assert_eq!(written.borrow_mut().pop().unwrap(), [ETHTOOL_SRXFHINDIR, 4, 1, 1, 0, 0]);
    nic.set_rss_table(&[]).unwrap_err();
    nic.set_rss_key(&[9, 8, 7, 6, 5, 4]).unwrap().unwrap();
    let function = u32::from_ne_bytes([1, 2, 0, 0]);
    let key = [u32::from_ne_bytes([9, 8, 7, 6]), u32::from_ne_bytes([5, 4, 0, 0])];
    assert_eq!(written.borrow_mut().pop().unwrap(), [ETHTOOL_SRSSH, 0, u32::MAX, 6, function, 0, key[0], key[1]]);
    assert!(written.borrow().is_empty());
}

#[test]
fn hashed_fields_are_told_apart() {
    let (addresses, ports) = (0x30, 0xc0);
    for (bits, expected) in [
        (addresses, HashFields { addresses: true, ports: false, others: false }),
        (addresses | ports, HashFields { addresses: true, ports: true, others: false }),
        (0, HashFields { addresses: false, ports: false, others: false }),
        // the source address alone
        (0x10, HashFields { addresses: false, ports: false, others: true }),
        // with the VLAN
        (addresses | ports | 4, HashFields { addresses: true, ports: true, others: true }),
        (1 << 33 | addresses, HashFields { addresses: true, ports: false, others: true }),
    ] {
        let nic = nic(vec![hashed(Flows::Udp6, bits), hashed(Flows::Tcp4, addresses)]);
        assert_eq!(nic.hash_fields(Flows::Udp6).unwrap(), Some(expected), "{bits:#x}");
        assert_eq!(nic.hash_fields(Flows::Tcp6).unwrap(), None);
    }
    let names: Vec<_> = Flows::ALL.iter().map(|flows| flows.name()).collect();
    assert_eq!(names, ["tcp4", "udp4", "tcp6", "udp6"]);
}

#[test]
fn the_structures_of_fixed_length_are_read() {
    let mut coalescing = vec![0; 23];
    coalescing[..12].copy_from_slice(&[ETHTOOL_GCOALESCE, 50, 64, 7, 7, 25, 32, 7, 7, 7, 1, 0]);
    let mut rules = vec![0; RXNFC_WORDS];
    rules[0] = ETHTOOL_GRXCLSRLCNT;
    // struct ethtool_rxnfc: 4 + 4 + 8 bytes, then 168 of the rule, then the number of rules
    rules[(4 + 4 + 8 + 168) / 4] = 3;
    let nic = nic(vec![
        (ETHTOOL_GCHANNELS, vec![ETHTOOL_GCHANNELS, 1, 2, 3, 64, 0, 0, 1, 8]),
        (ETHTOOL_GRINGPARAM, vec![ETHTOOL_GRINGPARAM, 8160, 9, 9, 4096, 512, 9, 9, 256]),
        (ETHTOOL_GCOALESCE, coalescing),
        (ETHTOOL_GPAUSEPARAM, vec![ETHTOOL_GPAUSEPARAM, 1, 1, 0]),
        (ETHTOOL_GRXCLSRLCNT, rules),
    ]);
    let bounded = |now, max| Bounded { now, max };
    let channels = Channels { rx: bounded(0, 1), tx: bounded(0, 2), combined: bounded(8, 64) };
    assert_eq!(nic.channels().unwrap(), Some(channels));
    assert_eq!(nic.rings().unwrap(), Some(Rings { rx: bounded(512, 8160), tx: bounded(256, 4096) }));
    let coalescing =
        Coalescing { rx_us: 50, rx_frames: 64, tx_us: 25, tx_frames: 32, adaptive_rx: true, adaptive_tx: false };
    assert_eq!(nic.coalescing().unwrap(), Some(coalescing));
    assert_eq!(nic.pause().unwrap(), Some(Pause { autonegotiated: true, rx: true, tx: false }));
    assert_eq!(nic.flow_rules().unwrap(), Some(3));
    assert_eq!(Nic(Box::new(Driver::default())).channels().unwrap(), None);
}

#[test]
fn features_are_read_with_their_names() {
    // 34 features: two blocks
    let name = |at: usize| match at {
        2 => "rx-lro".to_owned(),
        33 => "rx-udp-gro-forwarding".to_owned(),
        5 => String::new(),
        _ => format!("feature-{at}"),
    };
    let mut strings = vec![ETHTOOL_GSTRINGS, ETH_SS_FEATURES, 34];
    for at in 0..34 {
        let mut bytes = name(at).into_bytes();
        bytes.resize(ETH_GSTRING_BYTES, 0);
        strings.extend(bytes.chunks(4).map(word));
    }
    let nic = nic(vec![
        (ETHTOOL_GSSET_INFO, vec![ETHTOOL_GSSET_INFO, 0, 16, 0, 34]),
        (ETHTOOL_GSTRINGS, strings),
        // available, requested, active, never changed
        (ETHTOOL_GFEATURES, vec![ETHTOOL_GFEATURES, 2, 0b1101, 0, 0b0110, 0b1000, 0b10, 0, 0b10, 0]),
    ]);
    let features = nic.features().unwrap();
    assert_eq!(features.len(), 33, "one has no name");
    let of = |name: &str| features[name];
    assert_eq!(of("rx-lro"), Feature { on: true, fixed: false });
    assert_eq!(of("rx-udp-gro-forwarding"), Feature { on: true, fixed: false });
    assert_eq!(of("feature-0"), Feature { on: false, fixed: false });
    assert_eq!(of("feature-1"), Feature { on: true, fixed: true });
    assert_eq!(of("feature-3"), Feature { on: false, fixed: true });
}

#[test]
fn lo_has_none_of_it_but_features() {
    let lo = Nic::of("lo");
    assert_eq!(lo.rss().unwrap(), None);
    assert_eq!(lo.set_rss_table(&[0]).unwrap(), None);
    assert_eq!(lo.set_rss_key(&[0; 40]).unwrap(), None);
    assert_eq!(lo.flow_rules().unwrap(), None);
    assert_eq!(lo.channels().unwrap(), None);
    assert_eq!(lo.rings().unwrap(), None);
    assert_eq!(lo.coalescing().unwrap(), None);
    assert_eq!(lo.pause().unwrap(), None);
    for flows in Flows::ALL {
        assert_eq!(lo.hash_fields(flows).unwrap(), None);
    }
    let features = lo.features().unwrap();
    assert_eq!(features["loopback"], Feature { on: true, fixed: true });
    assert!(features.contains_key("rx-lro"), "{features:?}");
    let error = Nic::of("no-such-one").channels().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
    assert_eq!(Nic::of(&"x".repeat(99)).channels().unwrap_err().kind(), io::ErrorKind::NotFound);
}
