//! Whether the program in the driver answers, and what it is told.

use super::listeners::Listening;
use crate::config::Settings;
use crate::error::{Error, reason};
use crate::secrets::random;
use crate::service::Kind;
use crate::words::Tier;
use bpf::steering::{AnswersConfig, UDP};
use port_xdp::Answering;
use std::net::SocketAddr;

/// Numbers of zones that there is room for at least; a reload may bring others while the old ones are still counted.
const ZONES: usize = 1024;

/// What the program answers, where it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) answers: AnswersConfig,
    pub(super) when: Answering,
}

/// Whether the program answers. Of what `--tier driver` cannot have, `--tier auto` leaves the driver out.
///
/// # Errors
/// What `--tier driver` cannot have.
pub(super) fn when(settings: &Settings, listeners: &[Listening]) -> Result<Option<Answering>, Error> {
    let hides = hides_dns(settings, listeners);
    match (settings.dns.as_ref().map(|dns| dns.tier), hides) {
        (None | Some(Tier::Xdp | Tier::Sockets), _) => Ok(None),
        (Some(Tier::Auto), hides) => Ok((hides.is_none() && settings.own.is_empty()).then_some(Answering::WhereTaken)),
        (Some(Tier::Driver), None) => Ok(Some(Answering::Always)),
        (Some(Tier::Driver), Some(other)) => Err(Error::input(format!(
            "--tier driver: the driver cannot tell DNS from the service at {other}; give that another port, or say --tier xdp"
        ))),
    }
}

/// What the program answers; None when it does not.
///
/// # Errors
/// As [`when`], or no random numbers.
pub(super) fn answers(settings: &Settings, listeners: &[Listening]) -> Result<Option<Wanted>, Error> {
    let Some((dns, when)) = settings.dns.as_ref().zip(when(settings, listeners)?) else { return Ok(None) };
    let seed = random().map_err(|error| Error::environment(format!("/dev/urandom: {}; mount /dev", reason(&error))))?;
    let of_dns = listeners.iter().filter(|at| at.kind == Kind::Dns);
    let answers = AnswersConfig {
        names: dns.driver_names,
        zones: ZONES.max(2 * dns.zones.len()) as u32,
        edns_bytes: dns.edns_size,
        // the stack has the rest of it (see service)
        rate: dns.rrl_rate.map(|rate| driver_share(rate) / settings.interfaces.len().max(1) as u32),
        // the interface's
        mtu: 0,
        partial_checksums: false,
        redirect_to: None,
        cookies: dns.cookies,
        seed: u64::from_ne_bytes(seed),
        listeners: of_dns.map(|at| (at.address.ip(), at.address.port())).collect(),
    };
    Ok(Some(Wanted { answers, when }))
}

/// What of the rate of answers is the driver's, where it answers. Nobody can tell what the one has sent from the other, so each has
/// an account of its own, and together they let no more out than was set.
pub(crate) fn driver_share(rate: u32) -> u32 {
    rate / 2
}

/// Another service's datagrams at a port of DNS, which the program tells by addresses as they are listened at.
fn hides_dns(settings: &Settings, listeners: &[Listening]) -> Option<SocketAddr> {
    let ports: Vec<u16> = listeners.iter().filter(|at| at.kind == Kind::Dns).map(|at| at.address.port()).collect();
    let others = listeners.iter().filter(|at| at.kind != Kind::Dns);
    let datagrams = |at: &&Listening| at.taken(settings).any(|taken| taken.protocol == UDP);
    others.filter(datagrams).find(|at| ports.contains(&at.address.port())).map(|at| at.address)
}

#[cfg(test)]
mod tests {
    use super::super::listeners::listeners;
    use super::super::tests::settings;
    use super::*;

    fn asked(tier: &str, more: &str) -> Result<Option<Wanted>, Error> {
        asked_at("\"e0\"", tier, more)
    }

    fn asked_at(interfaces: &str, tier: &str, more: &str) -> Result<Option<Wanted>, Error> {
        let text = format!(
            "[dataplane]\ninterface = [{interfaces}]\nlisten = [\"0.0.0.0:53\", \"[2001:db8::1]:5353\"]\n[dns]\n{tier}\n[[dns.zone]]\nfile = \"z\"\n{more}"
        );
        let settings = settings(&text);
        answers(&settings, &listeners(&settings))
    }

    #[test]
    fn the_driver_answers_where_it_is_asked_for() {
        let asked_for = asked("tier = \"driver\"\ndriver-names = 7\nedns-size = 1400", "").unwrap().unwrap();
        let Wanted { answers: given, when } = asked_for;
        assert_eq!(when, Answering::Always);
        assert_eq!((given.names, given.zones, given.edns_bytes), (7, 1024, 1400));
        assert!(given.cookies);
        assert!(!asked("tier = \"driver\"\ncookies = false", "").unwrap().unwrap().answers.cookies);
        assert_eq!(given.listeners, [("0.0.0.0".parse().unwrap(), 53), ("2001:db8::1".parse().unwrap(), 5353)]);
        for tier in ["", "tier = \"auto\""] {
            assert_eq!(asked(tier, "").unwrap().unwrap().when, Answering::WhereTaken, "{tier}");
        }
        for tier in ["tier = \"xdp\"", "tier = \"sockets\""] {
            assert_eq!(asked(tier, "").unwrap(), None, "{tier}");
        }
    }

    #[test]
    fn the_rate_is_shared_with_the_stack_and_among_interfaces() {
        for (rate, shares) in [(200, [100, 50]), (5, [2, 1]), (1, [0, 0])] {
            let rrl = format!("[dns.rrl]\nrate = {rate}");
            for (interfaces, share) in ["\"e0\"", "\"e0\", \"e1\""].into_iter().zip(shares) {
                let given = asked_at(interfaces, "tier = \"driver\"", &rrl).unwrap().unwrap();
                assert_eq!(given.answers.rate, Some(share), "{rate} at {interfaces}");
            }
        }
        assert_eq!(asked("tier = \"driver\"", "").unwrap().unwrap().answers.rate, None);
    }

    #[test]
    fn another_service_at_the_port_is_refused_or_leaves_the_driver_out() {
        let echo = "[echo]\nlisten = [\"192.0.2.9:53\"]\n";
        assert_eq!(asked("", echo).unwrap(), None);
        let said = asked("tier = \"driver\"", echo).unwrap_err().to_string();
        assert!(said.contains("192.0.2.9:53"), "{said}");
        // connections are never the driver's
        let web = "[web]\nroot = \"/nowhere\"\nlisten = [\"192.0.2.9:53\"]\n";
        assert!(asked("tier = \"driver\"", web).unwrap().is_some());
    }
}
