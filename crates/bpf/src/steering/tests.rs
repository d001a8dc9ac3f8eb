use super::*;

#[test]
fn keys_are_laid_out_as_the_program_reads_them() {
    let taken = Taken { address: "198.18.0.1".parse().unwrap(), protocol: UDP, port: 53 };
    let mut expect = [0; 20];
    expect[10..12].copy_from_slice(&[0xff, 0xff]);
    expect[12..16].copy_from_slice(&[198, 18, 0, 1]);
    expect[16..20].copy_from_slice(&[0, 53, 17, 0]);
    assert_eq!(taken.bytes(), expect);
}

#[test]
fn prefixes_compare_by_their_bits_alone() {
    let prefix = |text: &str, bits| Prefix { address: text.parse().unwrap(), bits };
    assert_eq!(prefix("198.18.7.9", 16).canonical(), prefix("198.18.0.0", 16));
    assert_eq!(prefix("198.18.7.9", 0).canonical(), prefix("0.0.0.0", 0));
    assert_eq!(prefix("198.18.7.9", 32).canonical(), prefix("198.18.7.9", 32));
    assert_eq!(prefix("2001:db8::1", 32).canonical(), prefix("2001:db8::", 32));
    assert_eq!(prefix("2001:db8::1", 0).canonical(), prefix("::", 0));
    assert!(matches!(prefix("198.18.0.0", 33).key(), Err(SteeringError::Prefix { most: 32, .. })));
    assert!(matches!(prefix("::", 129).key(), Err(SteeringError::Prefix { most: 128, .. })));
}

#[test]
fn a_missing_capability_is_named() {
    let said = not_permitted("open", &[("CAP_THAT_NOBODY_HAS", 63)]).to_string();
    assert!(said.contains("CAP_THAT_NOBODY_HAS") && !said.contains('\n'), "{said}");
}
