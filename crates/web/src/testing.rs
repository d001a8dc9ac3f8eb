//! What several tests stand on: a site in memory, an engine of one connection, a conversation.

#[path = "../tests/common/engine.rs"]
mod engine;

pub(crate) use engine::{CONNECTION, Engine};

use std::sync::Arc;

use app::{Addresses, Bound, DeadReason, Listener, Service};
use base::Instant;
use base::publish::Publisher;

use crate::chunks::Cache;
use crate::{Config, Encoding, File, Host, Identity, Options, Redirect, Server, Site, SiteBuilder, WallClock};

/// 1994-11-06T08:49:37Z, the date of RFC 9110's examples: when the files were changed.
pub(crate) const CHANGED_UNIX_S: u64 = 784_111_777;
/// A day later: now.
pub(crate) const NOW_UNIX_S: u64 = CHANGED_UNIX_S + 86_400;
/// The Date of every answer at [`Instant::ZERO`].
pub(crate) const NOW: &str = "Mon, 07 Nov 1994 08:49:37 GMT";
pub(crate) const CHANGED: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
pub(crate) const BIG_BYTES: usize = 100_000;

pub(crate) fn big() -> Vec<u8> {
    (0..BIG_BYTES).map(|n| b' ' + (n / 7 % 95) as u8).collect()
}

pub(crate) fn file<'a>(path: &'a str, inode: u64) -> File<'a> {
    File {
        path: path.as_bytes(),
        modified_unix_s: CHANGED_UNIX_S,
        identity: Identity { inode, ..Identity::default() },
        encoding: Encoding::Identity,
    }
}

pub(crate) fn config() -> Config {
    let rule = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    let redirect = |from: &str, to: &str, status| Redirect { from: from.to_owned(), to: to.to_owned(), status };
    let first = Host {
        names: vec!["www.example.com".to_owned()],
        cache: vec![rule("/**/*.css", "public, max-age=31536000, immutable"), rule("/sub/**", "no-cache")],
        headers: vec![("/**/*.html".to_owned(), "X-Frame-Options".to_owned(), "DENY".to_owned())],
        redirects: vec![
            redirect("/old", "/a.txt", 301),
            redirect("/part", "/a.txt#s", 301),
            redirect("/part/two", "/a.txt?y#s?", 301),
            redirect("/moved/here", "/a.txt", 302),
            redirect("/moved/*", "https://example.org/new/*", 308),
            redirect("/moved/there", "/b.txt", 302),
        ],
        error_pages: vec![(404, "/errors/404.html".to_owned())],
        ..Host::default()
    };
    let second = Host {
        names: vec!["other.example".to_owned(), "*.wild.example".to_owned()],
        listing: true,
        redirects: vec![redirect("/dir/*", "/new/*", 307)],
        ..Host::default()
    };
    Config { hosts: vec![first, second], ..Config::default() }
}

pub(crate) fn builder(config: Config, before: Option<Arc<Site>>) -> SiteBuilder {
    SiteBuilder::new(config, 7, NOW_UNIX_S, before).expect("a configuration that is taken")
}

/// Files of the first host, then of the second.
pub(crate) fn files() -> [Vec<(&'static str, Vec<u8>)>; 2] {
    let css = b"body { color: black } ".repeat(10);
    [
        vec![
            ("/index.html", b"<h1>home</h1>\n".to_vec()),
            ("/a.txt", b"0123456789".to_vec()),
            ("/empty.txt", Vec::new()),
            ("/big.bin", big()),
            ("/style.css", css),
            ("/style.css.gz", b"gzip of the style".to_vec()),
            ("/style.css.br", b"br of the style".to_vec()),
            ("/style.css.zst", b"zstd of the style!".to_vec()),
            ("/sub/index.html", b"<h1>sub</h1>\n".to_vec()),
            ("/bare/file", b"x".to_vec()),
            ("/errors/404.html", b"<h1>nothing here</h1>\n".to_vec()),
            ("/name with space & more/caf\u{e9}.txt", b"coffee".to_vec()),
        ],
        vec![("/b.txt", b"second host".to_vec()), ("/dir/c.txt", b"c".to_vec()), ("/dir/sub/d.txt", b"d".to_vec())],
    ]
}

pub(crate) fn site() -> Site {
    let mut builder = builder(config(), None);
    for (host, files) in files().iter().enumerate() {
        for (n, (path, bytes)) in files.iter().enumerate() {
            builder.add(host, &file(path, (100 * host + n) as u64), bytes).expect("a file that is taken");
        }
    }
    builder.finish().expect("a site")
}

pub(crate) fn options() -> Options {
    let wall = Arc::new(WallClock::new(NOW_UNIX_S * 1_000_000_000));
    let [connections, buffers, pendings] = [4, 2, 2].map(Bound::new);
    Options { connections, buffers, pendings, wall, seed: 11, ..Options::default() }
}

pub(crate) fn server(options: Options) -> Server {
    Server::new(Publisher::new(Arc::new(site())).reader(), options, None)
}

/// One connection to a server, or, when there is a spare one, to two in turn: it goes over before every event.
pub(crate) struct Talk {
    pub(crate) server: Server,
    pub(crate) spare: Option<Server>,
    pub(crate) engine: Engine,
    pub(crate) now: Instant,
    /// when the last cycle began
    cycle_at: Instant,
}

impl Talk {
    pub(crate) fn new(options: Options) -> Talk {
        Talk::over(server(options), "192.0.2.7:4711")
    }

    pub(crate) fn over(mut server: Server, peer: &str) -> Talk {
        let mut engine = Engine::new(1 << 20);
        let addresses = Addresses { local: "192.0.2.1:80".parse().unwrap(), peer: peer.parse().unwrap() };
        server.cycle(Instant::ZERO);
        server.knock(Instant::ZERO, &mut engine, Listener(0), CONNECTION, addresses);
        Talk { server, spare: None, engine, now: Instant::ZERO, cycle_at: Instant::ZERO }
    }

    /// The connection goes to the other server, if there is one; whether there was room for it.
    pub(crate) fn go_over(&mut self) -> bool {
        let Some(spare) = &mut self.spare else { return true };
        let cookie = self.engine.cookie.expect("accepted");
        let luggage = self.server.depart(self.now, CONNECTION, cookie);
        std::mem::swap(&mut self.server, spare);
        self.server.cycle(self.cycle_at);
        let cookie = self.server.arrive(self.now, &mut self.engine, CONNECTION, luggage);
        self.engine.cookie = self.engine.cookie.and(cookie);
        cookie.is_some()
    }

    fn cookie(&self) -> u64 {
        self.engine.cookie.expect("accepted")
    }

    /// Bytes arrive; nothing of the answers is taken by the client yet.
    pub(crate) fn receive(&mut self, bytes: &[u8]) {
        assert!(self.go_over());
        self.engine.delivered += bytes.len();
        let cookie = self.cookie();
        self.server.recv(self.now, &mut self.engine, CONNECTION, cookie, bytes);
    }

    /// The client takes what is on its way.
    pub(crate) fn drain(&mut self) {
        while self.engine.unsent > 0 && !self.engine.aborted {
            assert!(self.go_over());
            let bytes = self.engine.drain();
            let (cookie, room) = (self.cookie(), self.engine.quota_bytes);
            self.server.sent(self.now, &mut self.engine, CONNECTION, cookie, bytes, room);
        }
    }

    /// The client takes so many octets of what is on its way, if it has not been ended.
    pub(crate) fn take(&mut self, bytes: usize) {
        if self.engine.aborted {
            return;
        }
        assert!(self.go_over() && bytes <= self.engine.unsent);
        self.engine.unsent -= bytes;
        let (cookie, room) = (self.cookie(), self.engine.quota_bytes);
        self.server.sent(self.now, &mut self.engine, CONNECTION, cookie, bytes, room);
    }

    pub(crate) fn eof(&mut self) {
        assert!(self.go_over());
        let cookie = self.cookie();
        self.server.eof(self.now, &mut self.engine, CONNECTION, cookie);
    }

    pub(crate) fn dead(&mut self) {
        assert!(self.go_over());
        let cookie = self.cookie();
        self.server.dead(self.now, CONNECTION, cookie, DeadReason::Closed);
    }

    /// Chunks that were asked for are read, and the server is told.
    pub(crate) fn read_chunks(&mut self, cache: &Cache) {
        while cache.turn() {}
        assert!(self.go_over());
        self.server.woken(self.now, &mut self.engine);
        if let Some(spare) = &mut self.spare {
            // what comes too late finds nobody
            spare.woken(self.now, &mut self.engine);
        }
    }

    /// Time passes up to `to_s`; timers come when they are due.
    pub(crate) fn pass(&mut self, to_s: u64) {
        let end = Instant::from_nanos(to_s * 1_000_000_000);
        while let Some(at) = self.engine.timer.filter(|at| *at <= end && !self.engine.aborted && !self.engine.closed) {
            self.engine.timer = None;
            self.now = self.now.max(at);
            assert!(self.go_over());
            let cookie = self.cookie();
            self.server.timer(self.now, &mut self.engine, CONNECTION, cookie);
        }
        (self.now, self.cycle_at) = (end, end);
        self.server.cycle(end);
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.engine.out).into_owned()
    }
}

/// What a fresh server answers to these bytes, and whether it ended the connection.
pub(crate) fn reply(request: &str) -> (String, bool) {
    let mut talk = Talk::new(options());
    talk.receive(request.replace('|', "\r\n").as_bytes());
    talk.drain();
    (talk.text(), talk.engine.closed)
}

/// An answer taken apart.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: String,
    pub(crate) closes: bool,
}

impl Answer {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(known, _)| known == name).map(|(_, value)| &**value)
    }
}

/// The one answer to a request, whose lines are separated by `|`.
pub(crate) fn ask(request: &str) -> Answer {
    let (text, closes) = reply(request);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{request}: no answer but {text:?}"));
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).expect("a status");
    let fields = lines.map(|line| line.split_once(": ").expect("a field")).map(|(a, b)| (a.to_owned(), b.to_owned()));
    Answer { status: status.parse().expect("a number"), fields: fields.collect(), body: body.to_owned(), closes }
}
