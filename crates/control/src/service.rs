//! The services of each thread, made from the settings and composed into one by listener.

mod composed;
mod options;
#[cfg(test)]
mod tests;

use crate::access_log::AccessLog;
use crate::config::Settings;
use crate::metrics::Registry;
use crate::run::Seats;
use crate::secrets::random;
use crate::wall::Wall;
use crate::words::Placement;
use base::counter::Report;
use base::publish::Publisher;
pub(crate) use composed::{APPS_MOST, Composed, Division, Kind};
use dns::Tables;
use dns::cookie::{self, Secrets};
use dns::hot::Exchange;
use options::{dns_options, echo_options, give_share, kv_options, web_options};
use std::io;
use std::sync::Arc;
use web::Site;
use web::chunks::Cache;

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
        wall: &Wall,
        access_log: Option<Arc<AccessLog>>,
        registry: Arc<Registry>,
        apps: Seats,
    ) -> io::Result<Plan> {
        let dns = settings.dns.as_ref().map(|dns| dns_options(dns, published.secrets.as_ref(), wall.cookies()));
        let cache = published.cache.clone();
        let kv = settings.kv.as_ref().filter(|kv| kv.place == Placement::Inline);
        Ok(Plan {
            division,
            dns: dns.transpose()?,
            published,
            web: settings.web.as_ref().map(|web| web_options(web, wall.dates(), cache)).transpose()?,
            kv: kv.map(|kv| kv_options(kv, wall.items())),
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
            (dns.threads, dns.tcp) = (threads, dns.tcp.clone().among(threads));
        }
        // each engine has bounds of its own
        plan.web = plan.web.filter(|_| streams).map(|web| web.among(threads));
        plan.kv = plan.kv.map(|kv| kv.among(threads));
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
