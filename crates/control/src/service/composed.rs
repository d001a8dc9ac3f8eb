//! All services of one thread as one, told apart by listener and by what marks their cookies.

use crate::run::Placed;
use app::{
    Addresses, CallError, Coming, Connection, Datagram, DeadReason, Listener, Luggage, Range, Service, Streams, Waker,
};
use arrayvec::ArrayVec;
use base::{BURST_FRAMES, Instant};
use std::net::SocketAddr;

/// What the web service's cookies have that others have not.
pub(super) const WEB: u64 = 1 << 63;
/// What those of the key-value store have.
const KV: u64 = 1 << 62;
/// What those of applications in processes of their own have, with the application's number at [`APP_AT`].
const APP: u64 = 1 << 61;
const APP_AT: u32 = 48;
const APP_NUMBER: u64 = (APPS_MOST as u64 - 1) << APP_AT;
/// Applications in processes of their own at most: as many as their numbers in a cookie can tell.
pub(crate) const APPS_MOST: usize = 256;
const _: () = assert!(APPS_MOST.is_power_of_two() && APP_NUMBER & (WEB | KV | APP) == 0);

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

impl Kind {
    /// Its table in a configuration file.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Dns => "dns",
            Kind::Web => "web",
            Kind::Kv => "kv",
            Kind::Echo => "echo",
            Kind::App => "app",
        }
    }
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
    pub(super) division: Division,
    pub(super) dns: Option<dns::Server>,
    pub(super) web: Option<web::Server>,
    pub(super) kv: Option<kv::Server>,
    pub(super) echo: Option<echo::Server>,
    /// applications in processes of their own, each with its listeners; services that are placed there among them
    pub(super) apps: Vec<Placed>,
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
