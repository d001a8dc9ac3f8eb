use super::*;

fn on(interface: u32, address: &str) -> Address {
    Address { interface, address: address.parse().unwrap(), prefix_bits: 64 }
}

#[test]
fn wildcards_mean_the_addresses_that_packets_can_carry_here() {
    let here = [
        on(1, "127.0.0.1"),
        on(1, "::1"),
        on(1, "192.0.2.53"),
        on(7, "198.18.0.1"),
        on(7, "2001:db8::1"),
        on(7, "fe80::7"),
        on(8, "fe80::8"),
    ];
    let listener = |address: &str| Listener { address: address.parse().unwrap(), protocol: 17, port: 53 };
    let resolved = |listeners: &[Listener]| {
        let resolved = resolve(&listeners.iter().copied().collect(), &here.into_iter().collect(), 7);
        resolved.into_iter().map(|taken| taken.address.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(resolved(&[listener("0.0.0.0")]), ["192.0.2.53", "198.18.0.1"]);
    assert_eq!(resolved(&[listener("::")]), ["2001:db8::1", "fe80::7"]);
    // an address that is not there (yet) is taken all the same
    assert_eq!(resolved(&[listener("203.0.113.1")]), ["203.0.113.1"]);
    assert_eq!(resolved(&[]), Vec::<String>::new());
}
