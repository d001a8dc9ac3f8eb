use super::composed::WEB;
use super::*;
use crate::launch::tiers::driver_share;
use app::{Addresses, CallError, Connection, Datagram, DeadReason, Ecn, Listener, Range, Service, Streams};
use base::Instant;

#[test]
fn the_driver_has_its_share_of_each_rate_that_it_answers_under() {
    let all = dns::rrl::Config::default();
    let mut rest = all.clone();
    give_share(&mut rest);
    let rates = |of: &dns::rrl::Config| {
        [of.responses_per_second, of.referrals_per_second, of.nodata_per_second, of.nxdomains_per_second]
    };
    assert!(rates(&all).iter().all(|rate| *rate > 1));
    assert_eq!(rates(&rest), rates(&all).map(|rate| rate - driver_share(rate)));
    // errors are never the driver's
    assert_eq!(rest.errors_per_second, all.errors_per_second);
}

/// An engine that takes everything and remembers the cookie.
struct Taker(Option<u64>);

impl Streams for Taker {
    fn accept(&mut self, _: Connection, cookie: u64) -> Result<(), CallError> {
        self.0 = Some(cookie);
        Ok(())
    }
    fn reject(&mut self, _: Connection) -> Result<(), CallError> {
        panic!("rejected")
    }
    fn sendv(&mut self, _: Connection, ranges: &[Range<'_>]) -> Result<u64, CallError> {
        Ok(ranges.iter().map(Range::bytes).sum())
    }
    fn room(&self, _: Connection) -> usize {
        usize::MAX
    }
    fn recv_done(&mut self, _: Connection, _: usize) -> Result<(), CallError> {
        Ok(())
    }
    fn shutdown(&mut self, _: Connection) -> Result<(), CallError> {
        Ok(())
    }
    fn close(&mut self, _: Connection) -> Result<(), CallError> {
        Ok(())
    }
    fn abort(&mut self, _: Connection) -> Result<(), CallError> {
        panic!("aborted")
    }
    fn timer_set(&mut self, _: Connection, _: Option<Instant>) -> Result<(), CallError> {
        Ok(())
    }
}

#[test]
fn a_connection_moves_to_the_service_of_its_kind() {
    let (_, maker) = maker();
    let (mut from, mut to) = (maker.make(0), maker.make(1));
    assert!(from.can_move());
    let socket = "192.0.2.1:80".parse().unwrap();
    let connection = |index| Connection { index, generation: 0 };
    for (n, listener) in [(0, Listener(0)), (1, Listener(1))] {
        let mut calls = Taker(None);
        let addresses = Addresses { local: socket, peer: socket };
        from.knock(Instant::ZERO, &mut calls, listener, connection(n), addresses);
        let cookie = calls.0.expect("accepted");
        assert_eq!(cookie & WEB != 0, listener == Listener(1));
        // half of a head, half of a question
        from.recv(Instant::ZERO, &mut calls, connection(n), cookie, b"\0");
        let luggage = from.depart(Instant::ZERO, connection(n), cookie);
        let cookie = to.arrive(Instant::ZERO, &mut calls, connection(n), luggage).expect("room for it");
        assert_eq!(cookie & WEB != 0, listener == Listener(1));
        to.recv(Instant::ZERO, &mut calls, connection(n), cookie, b"\x01");
        to.dead(Instant::ZERO, connection(n), cookie, DeadReason::Closed);
    }
    assert_eq!(to.arrive(Instant::ZERO, &mut Taker(None), connection(0), Box::new("a stranger's")), None);
}

/// Two threads of DNS, whose listener is the first, and web, with all the plan's counters.
fn maker() -> (Arc<Registry>, Maker) {
    let settings = crate::config::from_text("s.toml", "[web]\nroot = \"/nowhere\"\n[[dns.zone]]\nfile = \"z\"\n");
    let settings = settings.unwrap();
    let registry = Arc::new(Registry::default());
    let tables = Arc::new(Publisher::new(Arc::new(Tables::build(Vec::new(), 1).unwrap())));
    let division = Division { web_from: 1, kv_from: 2, echo_from: 2, app_from: 2 };
    let wall = Wall::start();
    let config = web::Config { hosts: vec![web::Host::default()], ..web::Config::default() };
    let site = web::SiteBuilder::new(config, 1, 0, None).unwrap();
    let site = Arc::new(Publisher::new(Arc::new(site.finish().unwrap())));
    let published = Published { tables: Some(tables), secrets: None, site: Some(site), cache: None, kv: None };
    let mut plan = Plan::new(&settings, division, published, &wall, None, registry.clone(), Seats::default()).unwrap();
    plan.dns.as_mut().unwrap().retained_bytes = 1 << 16;
    (registry, plan.maker(2, true))
}

#[test]
fn services_made_anew_go_on_with_the_counters_of_their_thread() {
    let (registry, maker) = maker();
    let figure = |name: &str| -> u64 { registry.collect()[name].samples.values().sum() };
    let (mut services, other) = (maker.make(0), maker.make(1));
    let memory = figure("dns_retained_bytes");
    assert!(memory > 0);
    for panics in 1..=3 {
        let local = "192.0.2.1:53".parse().unwrap();
        let mut nothing = [0; 512];
        let mut burst = [Datagram::new(&mut nothing, 0, Ecn::NotEct, Addresses { local, peer: local })];
        services.datagrams(Instant::ZERO, Listener(0), &mut burst);
        // made before the old ones are dropped, as the engines do
        services = maker.make(0);
        assert_eq!(format!("{registry:?}"), "Registry(4 blocks)");
        assert_eq!((figure("dns_drops_total"), figure("dns_retained_bytes")), (panics, memory));
    }
    drop((services, other));
    assert_eq!(figure("dns_retained_bytes"), 0);
}
