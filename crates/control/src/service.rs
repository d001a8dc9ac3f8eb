//! The services of each thread, made from the settings and composed into one by listener.

use crate::access_log::AccessLog;
use crate::config::{Dns, Echo, Kv, Settings, Web};
use crate::launch::tiers::driver_share;
use crate::metrics::Registry;
use crate::run::{Placed, Seats};
use crate::secrets::random;
use crate::words::{Placement, Prefix, QuestionCompression, Transmit};
use app::{
    Addresses, CallError, Coming, Connection, Datagram, DeadReason, Listener, Luggage, Range, Service, Streams, Waker,
};
use arrayvec::ArrayVec;
use base::counter::Report;
use base::publish::Publisher;
use base::{BURST_FRAMES, Instant};
use dns::Tables;
use dns::cookie::{self, Secrets};
use dns::hot::Exchange;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use web::chunks::Cache;
use web::{Site, WallClock};

/// Memory of each thread for finished answers under `--transmit precopy`.
const RETAINED_BYTES: usize = 16 << 20;
/// What the web service's cookies have that others have not.
const WEB: u64 = 1 << 63;
/// What those of the key-value store have.
const KV: u64 = 1 << 62;
/// What those of applications in processes of their own have, with the application's number at [`APP_AT`].
const APP: u64 = 1 << 61;
const APP_AT: u32 = 48;
const APP_NUMBER: u64 = 0xff << APP_AT;

/// A service, for what differs between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Dns,
    Web,
    Kv,
    Echo,
    /// a program in a process of its own
    App,
}

/// What is served, by listener: those of DNS come first, then those of the web, of the key-value store, of echo, and of applications.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Division {
    pub(crate) web_from: u16,
    pub(crate) kv_from: u16,
    pub(crate) echo_from: u16,
    pub(crate) app_from: u16,
}

impl Division {
    #[inline]
    fn of(self, listener: Listener) -> Kind {
        if listener.0 < self.web_from {
            Kind::Dns
        } else if listener.0 < self.kv_from {
            Kind::Web
        } else if listener.0 < self.echo_from {
            Kind::Kv
        } else if listener.0 < self.app_from {
            Kind::Echo
        } else {
            Kind::App
        }
    }
}

/// All services of one thread. A burst belongs to one listener, so it costs one comparison to tell whose it is.
pub(crate) struct Composed {
    division: Division,
    dns: Option<dns::Server>,
    web: Option<web::Server>,
    kv: Option<kv::Server>,
    echo: Option<echo::Server>,
    /// applications in processes of their own, each with its listeners; services that are placed there among them
    apps: Vec<Placed>,
}

impl Composed {
    /// The application that a listener belongs to.
    #[inline]
    fn app_of(&self, listener: Listener) -> Option<usize> {
        self.apps.iter().position(|app| app.listeners.contains(&listener.0))
    }
}

/// What marks the connections of an application.
#[inline]
fn app_mark(number: usize) -> u64 {
    APP | (number as u64) << APP_AT
}

/// What marks the calls of the service that a cookie belongs to.
#[inline]
fn mark_of(cookie: u64) -> u64 {
    match cookie & (WEB | KV | APP) {
        APP => cookie & (APP | APP_NUMBER),
        mark => mark,
    }
}

/// Calls of one service, whose connections are told from the others' by a bit of the cookie.
struct Marked<'a, C> {
    calls: &'a mut C,
    mark: u64,
}

impl<C: Streams> Streams for Marked<'_, C> {
    fn accept(&mut self, connection: Connection, cookie: u64) -> Result<(), CallError> {
        debug_assert_eq!(cookie & (WEB | KV | APP), 0, "services number their connections from 0");
        self.calls.accept(connection, cookie | self.mark)
    }
    fn reject(&mut self, connection: Connection) -> Result<(), CallError> {
        self.calls.reject(connection)
    }
    fn sendv(&mut self, connection: Connection, ranges: &[Range<'_>]) -> Result<u64, CallError> {
        self.calls.sendv(connection, ranges)
    }
    fn room(&self, connection: Connection) -> usize {
        self.calls.room(connection)
    }
    fn recv_done(&mut self, connection: Connection, bytes: usize) -> Result<(), CallError> {
        self.calls.recv_done(connection, bytes)
    }
    fn shutdown(&mut self, connection: Connection) -> Result<(), CallError> {
        self.calls.shutdown(connection)
    }
    fn close(&mut self, connection: Connection) -> Result<(), CallError> {
        self.calls.close(connection)
    }
    fn abort(&mut self, connection: Connection) -> Result<(), CallError> {
        self.calls.abort(connection)
    }
    fn timer_set(&mut self, connection: Connection, at: Option<Instant>) -> Result<(), CallError> {
        self.calls.timer_set(connection, at)
    }
    fn connect(&mut self, remote: SocketAddr, local: Option<SocketAddr>, cookie: u64) -> Result<Connection, CallError> {
        self.calls.connect(remote, local, cookie | self.mark)
    }
    fn send_to(&mut self, listener: Listener, ends: Addresses, bytes: &[u8]) -> Result<(), CallError> {
        self.calls.send_to(listener, ends, bytes)
    }
    fn alarm_set(&mut self, cookie: u64, at: Option<Instant>) -> Result<(), CallError> {
        self.calls.alarm_set(cookie | self.mark, at)
    }
}

/// Passes an event to the service that a cookie belongs to.
macro_rules! pass {
    ($self:ident, $cookie:ident, |$service:ident| $event:expr) => {
        if $cookie & WEB != 0 {
            if let Some($service) = &mut $self.web {
                let $cookie = $cookie & !WEB;
                $event
            }
        } else if $cookie & KV != 0 {
            if let Some($service) = &mut $self.kv {
                let $cookie = $cookie & !KV;
                $event
            }
        } else if $cookie & APP != 0 {
            if let Some(app) = $self.apps.get_mut((($cookie & APP_NUMBER) >> APP_AT) as usize) {
                let ($service, $cookie) = (&mut app.remote, $cookie & !(APP | APP_NUMBER));
                $event
            }
        } else if let Some($service) = &mut $self.dns {
            $event
        }
    };
}

impl Service for Composed {
    fn begin(&mut self, waker: &Waker) {
        if let Some(dns) = &mut self.dns {
            dns.begin(waker);
        }
        if let Some(web) = &mut self.web {
            web.begin(waker);
        }
        self.apps.iter_mut().for_each(|app| app.remote.begin(waker));
    }

    #[inline]
    fn woken<C: Streams>(&mut self, now: Instant, calls: &mut C) {
        if let Some(dns) = &mut self.dns {
            dns.woken(now, &mut Marked { calls: &mut *calls, mark: 0 });
        }
        if let Some(web) = &mut self.web {
            web.woken(now, &mut Marked { calls: &mut *calls, mark: WEB });
        }
        for (n, app) in self.apps.iter_mut().enumerate() {
            app.remote.woken(now, &mut Marked { calls: &mut *calls, mark: app_mark(n) });
        }
    }

    #[inline]
    fn has_news(&mut self) -> bool {
        self.apps.iter_mut().any(|app| app.remote.has_news())
    }

    #[inline]
    fn may_rest(&mut self, now: Instant) -> bool {
        // all are asked: each is told that the thread sleeps
        self.apps.iter_mut().fold(true, |all, app| app.remote.may_rest(now) & all)
    }

    fn cycle(&mut self, now: Instant) {
        if let Some(dns) = &mut self.dns {
            dns.cycle(now);
        }
        if let Some(web) = &mut self.web {
            web.cycle(now);
        }
        if let Some(kv) = &mut self.kv {
            kv.cycle(now);
        }
        self.apps.iter_mut().for_each(|app| app.remote.cycle(now));
    }

    #[inline]
    fn datagrams(&mut self, now: Instant, listener: Listener, burst: &mut [Datagram<'_>]) {
        if let Some(n) = self.app_of(listener) {
            return self.apps[n].remote.datagrams(now, listener, burst);
        }
        match self.division.of(listener) {
            Kind::Dns => self.dns.iter_mut().for_each(|dns| dns.datagrams(now, listener, burst)),
            Kind::Echo => self.echo.iter_mut().for_each(|echo| echo.datagrams(now, listener, burst)),
            Kind::Kv => self.kv.iter_mut().for_each(|kv| kv.datagrams(now, listener, burst)),
            Kind::Web | Kind::App => {}
        }
    }

    fn knock<C: Streams>(
        &mut self,
        now: Instant,
        calls: &mut C,
        listener: Listener,
        connection: Connection,
        addresses: Addresses,
    ) {
        if let Some(n) = self.app_of(listener) {
            let mut calls = Marked { calls, mark: app_mark(n) };
            return self.apps[n].remote.knock(now, &mut calls, listener, connection, addresses);
        }
        // an unanswered knock is a rejection
        match self.division.of(listener) {
            Kind::Web => {
                if let Some(web) = &mut self.web {
                    web.knock(now, &mut Marked { calls, mark: WEB }, listener, connection, addresses);
                }
            }
            Kind::Kv => {
                if let Some(kv) = &mut self.kv {
                    kv.knock(now, &mut Marked { calls, mark: KV }, listener, connection, addresses);
                }
            }
            Kind::Dns => {
                if let Some(dns) = &mut self.dns {
                    dns.knock(now, &mut Marked { calls, mark: 0 }, listener, connection, addresses);
                }
            }
            Kind::Echo | Kind::App => {}
        }
    }

    fn foresees(&self) -> bool {
        self.kv.is_some()
    }

    fn foresee(&mut self, coming: &[Coming<'_>]) {
        let Some(kv) = &mut self.kv else { return };
        let of_kv = coming.iter().filter(|coming| coming.cookie & KV != 0);
        // no burst has more
        let of_kv = of_kv.map(|coming| Coming { cookie: coming.cookie & !KV, ..*coming }).take(BURST_FRAMES);
        kv.foresee(&of_kv.collect::<ArrayVec<_, BURST_FRAMES>>());
    }

    fn recv<C: Streams>(&mut self, now: Instant, calls: &mut C, connection: Connection, cookie: u64, bytes: &[u8]) {
        let calls = &mut Marked { calls, mark: mark_of(cookie) };
        pass!(self, cookie, |service| service.recv(now, calls, connection, cookie, bytes));
    }

    fn eof<C: Streams>(&mut self, now: Instant, calls: &mut C, connection: Connection, cookie: u64) {
        let calls = &mut Marked { calls, mark: mark_of(cookie) };
        pass!(self, cookie, |service| service.eof(now, calls, connection, cookie));
    }

    fn sent<C: Streams>(
        &mut self,
        now: Instant,
        calls: &mut C,
        connection: Connection,
        cookie: u64,
        bytes: usize,
        room: usize,
    ) {
        let calls = &mut Marked { calls, mark: mark_of(cookie) };
        pass!(self, cookie, |service| service.sent(now, calls, connection, cookie, bytes, room));
    }

    fn dead(&mut self, now: Instant, connection: Connection, cookie: u64, reason: DeadReason) {
        pass!(self, cookie, |service| service.dead(now, connection, cookie, reason));
    }

    fn timer<C: Streams>(&mut self, now: Instant, calls: &mut C, connection: Connection, cookie: u64) {
        let calls = &mut Marked { calls, mark: mark_of(cookie) };
        pass!(self, cookie, |service| service.timer(now, calls, connection, cookie));
    }

    fn connected<C: Streams>(
        &mut self,
        now: Instant,
        calls: &mut C,
        cookie: u64,
        outcome: Result<Connection, DeadReason>,
    ) {
        let calls = &mut Marked { calls, mark: mark_of(cookie) };
        pass!(self, cookie, |service| service.connected(now, calls, cookie, outcome));
    }

    fn alarm<C: Streams>(&mut self, now: Instant, calls: &mut C, cookie: u64) {
        let calls = &mut Marked { calls, mark: mark_of(cookie) };
        pass!(self, cookie, |service| service.alarm(now, calls, cookie));
    }

    #[inline]
    fn flush<C: Streams>(&mut self, now: Instant, calls: &mut C) {
        if let Some(dns) = &mut self.dns {
            dns.flush(now, &mut Marked { calls: &mut *calls, mark: 0 });
        }
        if let Some(web) = &mut self.web {
            web.flush(now, &mut Marked { calls: &mut *calls, mark: WEB });
        }
        if let Some(kv) = &mut self.kv {
            kv.flush(now, &mut Marked { calls: &mut *calls, mark: KV });
        }
        for (n, app) in self.apps.iter_mut().enumerate() {
            app.remote.flush(now, &mut Marked { calls: &mut *calls, mark: app_mark(n) });
        }
    }

    /// Those that share the thread: which of them was slow is not known.
    fn name(&self) -> &'static str {
        match (self.dns.is_some(), self.web.is_some(), self.kv.is_some()) {
            (true, false, false) => "dns",
            (false, true, false) => "web",
            (false, false, true) => "kv",
            (true, true, false) => "dns, web",
            (true, false, true) => "dns, kv",
            (false, true, true) => "web, kv",
            (true, true, true) => "dns, web, kv",
            (false, false, false) if self.echo.is_none() => "applications",
            (false, false, false) => "echo",
        }
    }

    fn can_move(&self) -> bool {
        self.dns.as_ref().is_none_or(Service::can_move)
            && self.web.as_ref().is_none_or(Service::can_move)
            && self.kv.as_ref().is_none_or(Service::can_move)
            && self.apps.is_empty()
    }

    fn depart(&mut self, now: Instant, connection: Connection, cookie: u64) -> Luggage {
        match (cookie & (WEB | KV), &mut self.dns, &mut self.web, &mut self.kv) {
            (WEB, _, Some(web), _) => Box::new(Labelled::Web(web.depart(now, connection, cookie & !WEB))),
            (KV, _, _, Some(kv)) => Box::new(Labelled::Kv(kv.depart(now, connection, cookie & !KV))),
            (0, Some(dns), ..) => Box::new(Labelled::Dns(dns.depart(now, connection, cookie))),
            _ => Box::new(()),
        }
    }

    fn arrive<C: Streams>(
        &mut self,
        now: Instant,
        calls: &mut C,
        connection: Connection,
        luggage: Luggage,
    ) -> Option<u64> {
        match (*luggage.downcast::<Labelled>().ok()?, &mut self.dns, &mut self.web, &mut self.kv) {
            (Labelled::Web(luggage), _, Some(web), _) => {
                web.arrive(now, &mut Marked { calls, mark: WEB }, connection, luggage).map(|cookie| cookie | WEB)
            }
            (Labelled::Kv(luggage), _, _, Some(kv)) => {
                kv.arrive(now, &mut Marked { calls, mark: KV }, connection, luggage).map(|cookie| cookie | KV)
            }
            (Labelled::Dns(luggage), Some(dns), ..) => {
                dns.arrive(now, &mut Marked { calls, mark: 0 }, connection, luggage)
            }
            _ => None,
        }
    }
}

/// What a service has packed, and which it was.
enum Labelled {
    Dns(Luggage),
    Web(Luggage),
    Kv(Luggage),
}

/// What changes while threads go on.
#[derive(Clone)]
pub(crate) struct Published {
    pub(crate) tables: Option<Arc<Publisher<Tables>>>,
    /// what the cookies of DNS are made with; None without cookies
    pub(crate) secrets: Option<Arc<Publisher<Secrets>>>,
    pub(crate) site: Option<Arc<Publisher<Site>>>,
    /// what files that are not held are read through
    pub(crate) cache: Option<Cache>,
    /// the items of the key-value store, which both engines work on
    pub(crate) kv: Option<Arc<kv::Shared>>,
}

/// What the services of every engine are told.
#[derive(Clone)]
pub(crate) struct Plan {
    division: Division,
    published: Published,
    dns: Option<dns::Options>,
    web: Option<web::Options>,
    kv: Option<kv::Options>,
    echo: Option<echo::Options>,
    apps: Seats,
    access_log: Option<Arc<AccessLog>>,
    registry: Arc<Registry>,
    /// a thread of AF_XDP each, where the driver answers in front of them
    exchanges: Arc<[Arc<Exchange>]>,
    seed: u64,
    secret: [u64; 2],
}

/// Makes the services of each thread of an engine, and again after a panic.
#[derive(Clone)]
pub(crate) struct Maker {
    plan: Plan,
    /// a block a thread for each service, which outlasts the thread's servers
    dns_stats: Arc<[Arc<dns::Stats>]>,
    web_stats: Arc<[Arc<web::Stats>]>,
    kv_stats: Arc<[Arc<kv::Stats>]>,
    echo_stats: Arc<[Arc<echo::Stats>]>,
    /// of this engine's threads among those of all
    first_seat: usize,
    /// the driver wants to know what these threads are asked for
    watched: bool,
}

impl Plan {
    /// # Errors
    /// The kernel's, when it gives no random numbers.
    pub(crate) fn new(
        settings: &Settings,
        division: Division,
        published: Published,
        wall: &Arc<WallClock>,
        access_log: Option<Arc<AccessLog>>,
        registry: Arc<Registry>,
        apps: Seats,
    ) -> io::Result<Plan> {
        let dns = settings.dns.as_ref().map(|dns| dns_options(dns, published.secrets.as_ref()));
        let cache = published.cache.clone();
        Ok(Plan {
            division,
            dns: dns.transpose()?,
            published,
            web: settings.web.as_ref().map(|web| web_options(web, wall, cache)).transpose()?,
            kv: settings.kv.as_ref().filter(|kv| kv.place == Placement::Inline).map(kv_options),
            echo: settings.echo.as_ref().filter(|echo| echo.place == Placement::Inline).map(echo_options),
            apps,
            access_log,
            registry,
            exchanges: Arc::default(),
            seed: u64::from_ne_bytes(random()?),
            secret: [u64::from_ne_bytes(random()?), u64::from_ne_bytes(random()?)],
        })
    }

    /// With the driver in front of so many threads of AF_XDP. It has its share of the rates of what it answers, and wants to know what
    /// is asked for.
    pub(crate) fn behind_driver(mut self, threads: usize) -> Plan {
        self.exchanges = (0..threads).map(|_| Arc::default()).collect();
        if let Some(rrl) = self.dns.as_mut().and_then(|dns| dns.rrl.as_mut()) {
            give_share(rrl);
        }
        self
    }

    /// Where the threads of AF_XDP leave which names they are asked for.
    pub(crate) fn exchanges(&self) -> &[Arc<Exchange>] {
        &self.exchanges
    }

    /// For the stacks' random delays.
    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    /// What the cookies of DNS are made with; None without them.
    pub(crate) fn cookies(&self) -> Option<&cookie::Config> {
        self.dns.as_ref()?.cookies.as_ref()
    }

    /// What TCP's sequence numbers and cookies are made with.
    pub(crate) fn secret(&self) -> [u64; 2] {
        self.secret
    }

    /// For an engine of `threads` threads; `streams` is false where no connection ever comes, so none needs memory.
    pub(crate) fn maker(&self, threads: usize, streams: bool) -> Maker {
        let mut plan = self.clone();
        if let Some(dns) = &mut plan.dns {
            dns.threads = threads;
            if !streams {
                (dns.tcp.connections, dns.tcp.backlogs) = (1, 1);
            }
        }
        match &mut plan.web {
            Some(web) if streams => web.threads = threads,
            _ => plan.web = None,
        }
        if let Some(kv) = &mut plan.kv {
            kv.threads = threads;
            if !streams {
                (kv.connections, kv.buffers, kv.pendings) = (1, 1, 1);
            }
        }
        let dns_stats = self.counted(if plan.dns.is_some() { threads } else { 0 });
        let web_stats = self.counted(if plan.web.is_some() { threads } else { 0 });
        let kv_stats = self.kv_counted(if plan.kv.is_some() { threads } else { 0 });
        let echo_stats = self.counted(if plan.echo.is_some() { threads } else { 0 });
        let first_seat = self.apps.take(threads);
        Maker { plan, dns_stats, web_stats, kv_stats, echo_stats, first_seat, watched: false }
    }

    /// New blocks of counters of the key-value store, which clients may ask for too.
    fn kv_counted(&self, blocks: usize) -> Arc<[Arc<kv::Stats>]> {
        let shared = self.published.kv.iter().flat_map(|shared| (0..blocks).map(|_| shared.stats()));
        let stats: Arc<[_]> = shared.collect();
        stats.iter().for_each(|stats| self.registry.add(stats.clone()));
        stats
    }

    /// New blocks of counters, in the registry.
    fn counted<R: Report + Default + 'static>(&self, blocks: usize) -> Arc<[Arc<R>]> {
        let stats: Arc<[_]> = (0..blocks).map(|_| Arc::<R>::default()).collect();
        stats.iter().for_each(|stats| self.registry.add(stats.clone()));
        stats
    }
}

/// What the DNS service is told.
fn dns_options(dns: &Dns, secrets: Option<&Arc<Publisher<Secrets>>>) -> io::Result<dns::Options> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let cookies = secrets.map(|secrets| cookie::Config { secrets: secrets.clone(), unix_time_at_zero_s: now });
    let rrl = dns.rrl_rate.map(|rate| dns::rrl::Config {
        responses_per_second: rate,
        referrals_per_second: rate,
        nodata_per_second: rate,
        nxdomains_per_second: rate,
        errors_per_second: rate,
        slip: dns.rrl_slip,
        allow: dns.rrl_exempt.iter().map(|prefix| (prefix.address, prefix.bits)).collect(),
        ..dns::rrl::Config::default()
    });
    Ok(dns::Options {
        udp_bytes: dns.edns_size,
        question_compression: match dns.question_compression {
            QuestionCompression::Refuse => dns::QuestionCompression::Refuse,
            QuestionCompression::Accept => dns::QuestionCompression::Accept,
        },
        retained_bytes: if dns.transmit == Transmit::Precopy { RETAINED_BYTES } else { 0 },
        nsid: dns.nsid.clone().unwrap_or_default().into_bytes(),
        version: dns.version_string.clone(),
        id: dns.id_string.clone(),
        cookies,
        rrl,
        tcp: dns::stream::Limits {
            connections: dns.tcp_connections,
            idle: Duration::from_secs(dns.tcp_idle_s.into()),
            ..dns::stream::Limits::default()
        },
        seed: u64::from_ne_bytes(random()?),
        ..dns::Options::default()
    })
}

/// What the web service is told.
fn web_options(web: &Web, wall: &Arc<WallClock>, cache: Option<Cache>) -> io::Result<web::Options> {
    let prefixes = |prefixes: &[Prefix]| {
        prefixes.iter().map(|prefix| web::Prefix { address: prefix.address, bits: prefix.bits }).collect()
    };
    Ok(web::Options {
        connections: web.connections,
        idle: Duration::from_secs(web.keep_alive_s.into()),
        head: Duration::from_secs(web.request_timeout_s.into()),
        send: Duration::from_secs(web.send_timeout_s.into()),
        proxies: prefixes(&web.proxy_protocol),
        forwarded: prefixes(&web.forwarded),
        wall: wall.clone(),
        cache,
        seed: u64::from_ne_bytes(random()?),
        ..web::Options::default()
    })
}

/// What the key-value store is told.
fn kv_options(kv: &Kv) -> kv::Options {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    kv::Options {
        connections: kv.connections,
        buffers: kv.connections,
        idle: kv.idle_s.map(|seconds| Duration::from_secs(seconds.into())),
        stuck: Duration::from_secs(kv.send_timeout_s.into()),
        clock: kv::Clock { unix_at_zero_s: now },
        ..kv::Options::default()
    }
}

/// What the echo service is told.
fn echo_options(echo: &Echo) -> echo::Options {
    let ports = echo.listen.iter().map(|at| at.port()).collect();
    echo::Options { ports, any_source_port: echo.any_source_port }
}

impl Maker {
    /// For the engine behind the driver, if there is one.
    pub(crate) fn watched(self) -> Maker {
        Maker { watched: true, ..self }
    }

    /// One thread's services, which go on with the counters of those before them.
    pub(crate) fn make(&self, thread: usize) -> Composed {
        let Plan { division, published, dns, web, kv, echo, access_log, .. } = &self.plan;
        let dns = published.tables.as_ref().zip(dns.as_ref()).map(|(tables, options)| {
            let server = dns::Server::with_stats(tables.reader(), options.clone(), self.dns_stats[thread].clone());
            match self.plan.exchanges.get(thread).filter(|_| self.watched) {
                Some(exchange) => server.watched(exchange.clone()),
                None => server,
            }
        });
        let web = published.site.as_ref().zip(web.as_ref()).map(|(site, options)| {
            let records = access_log.as_ref().map(|log| log.records());
            web::Server::with_stats(site.reader(), options.clone(), records, self.web_stats[thread].clone())
        });
        let kv = published.kv.as_ref().zip(kv.as_ref()).map(|(shared, options)| {
            let options = kv::Options { thread, ..options.clone() };
            kv::Server::new(shared.clone(), options, self.kv_stats[thread].clone())
        });
        let echo =
            echo.as_ref().map(|options| echo::Server::with_stats(options.clone(), self.echo_stats[thread].clone()));
        let apps = self.plan.apps.remotes(self.first_seat + thread);
        Composed { division: *division, dns, web, kv, echo, apps }
    }
}

/// Leaves the driver its share of the rates of what it answers.
fn give_share(rrl: &mut dns::rrl::Config) {
    for rate in [
        &mut rrl.responses_per_second,
        &mut rrl.referrals_per_second,
        &mut rrl.nodata_per_second,
        &mut rrl.nxdomains_per_second,
    ] {
        *rate -= driver_share(*rate);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use app::Ecn;

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
        let wall = Arc::new(WallClock::new(0));
        let config = web::Config { hosts: vec![web::Host::default()], ..web::Config::default() };
        let site = web::SiteBuilder::new(config, 1, 0, None).unwrap();
        let site = Arc::new(Publisher::new(Arc::new(site.finish().unwrap())));
        let published = Published { tables: Some(tables), secrets: None, site: Some(site), cache: None, kv: None };
        let mut plan =
            Plan::new(&settings, division, published, &wall, None, registry.clone(), Seats::default()).unwrap();
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
}
