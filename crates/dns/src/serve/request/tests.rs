use super::*;
use crate::rrl;
use crate::testing::{question, server, zone};
use base::Instant;
use zone::Name;

/// Of a redirection, whose target has one name, of an alias to below it, and of DS above an inner zone.
#[test]
fn nothing_is_composed_that_the_rate_does_not_let_out() {
    let text = "$TTL 60\n@ SOA ns h 1 1 1 1 1\n@ NS ns\nns A 192.0.2.1\ndn DNAME target\na.target A 192.0.2.8\nalias CNAME a.dn\n";
    let limits = rrl::Config {
        responses_per_second: 1,
        nxdomains_per_second: 1,
        nodata_per_second: 1,
        ..rrl::Config::default()
    };
    for slip in [0, 1, 2] {
        let zones = vec![zone("example.", text), zone("in.example.", "@ 60 SOA ns h 1 1 1 1 1\n@ 60 NS ns.example.\n")];
        let rrl = Some(rrl::Config { slip, ..limits.clone() });
        let mut server = server(zones, Options { rrl, ..Options::default() });
        let mut ask = |name: &str, rtype: Rtype| {
            let name: Name = name.parse().unwrap();
            let message = question(name.view(), rtype, None);
            let mut buffer = [0; 512];
            buffer[..message.len()].copy_from_slice(&message);
            // whatever is composed is written there
            server.core.kitchen.block.clear();
            let from = From { now: Instant::ZERO, peer: [192, 0, 2, 77].into(), stream: false };
            let sent = server.core.one(from, &mut buffer, message.len());
            let is_whole = sent.is_ok() && buffer[2] & 2 == 0;
            assert_eq!(!server.core.kitchen.block.is_empty(), is_whole, "{name}, slip {slip}");
            is_whole
        };
        // names that exist at the target and that do not are one account, the redirection's
        let below = (0..100)
            .filter(|n| ask(&if n % 2 == 0 { format!("r{n}.dn.example") } else { "a.dn.example".into() }, Rtype::A));
        assert_eq!(below.count(), 1, "slip {slip}");
        assert_eq!((0..100).filter(|_| ask("alias.example", Rtype::A)).count(), 1, "slip {slip}");
        assert_eq!((0..100).filter(|_| ask("in.example", Rtype::DS)).count(), 1, "slip {slip}");
    }
}
