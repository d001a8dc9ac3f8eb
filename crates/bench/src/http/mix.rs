//! What is asked for: URLs, in turn or by weight, the requests' texts, and the bodies that are expected.

use super::synthetic;
use crate::pages;
use anyhow::{Context as _, Result, bail, ensure};
use app::{Content, ContentBuilder, ObjectId};
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::str::FromStr;
use std::sync::Arc;

/// The most requests of one round of the mix.
const ROUND_MOST: u64 = 1 << 20;

/// A URL of the command line: `[WEIGHT@]http://HOST[:PORT]/PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Url {
    /// how often it is asked for in a round
    pub(crate) weight: u32,
    /// host and port as they were written
    pub(crate) authority: String,
    /// path and query
    pub(crate) path: String,
}

impl FromStr for Url {
    type Err = String;

    fn from_str(text: &str) -> Result<Url, String> {
        let (weight, url) = match text.split_once('@') {
            Some((weight, url)) if weight.bytes().all(|octet| octet.is_ascii_digit()) => {
                (weight.parse().map_err(|_| format!("'{weight}' is no weight"))?, url)
            }
            _ => (1, text),
        };
        if weight == 0 {
            return Err("a weight of 0 asks for nothing".into());
        }
        let rest = url.strip_prefix("http://").ok_or("http://HOST[:PORT]/PATH, with WEIGHT@ before it if wanted")?;
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let printable = |text: &str| text.bytes().all(|octet| octet.is_ascii_graphic() && octet != b'#');
        if authority.is_empty() || authority.contains('@') || !printable(rest) {
            return Err(format!("'{url}' has no host, or an octet that is to be percent-encoded"));
        }
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Ok(Url { weight, authority: authority.to_owned(), path })
    }
}

impl Url {
    /// The server, asked of the resolver if it is a name.
    fn server(&self) -> Result<SocketAddr> {
        let has_port = match self.authority.rsplit_once(':') {
            Some((host, _)) => !host.starts_with('[') || host.ends_with(']'),
            None => false,
        };
        let at = if has_port { self.authority.clone() } else { format!("{}:80", self.authority) };
        let mut found = at.to_socket_addrs().with_context(|| format!("no address of {}", self.authority))?;
        found.next().with_context(|| format!("no address of {}", self.authority))
    }
}

/// What a URL's body should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// it is not known yet
    Unknown,
    /// being read for the first time
    Learning(Vec<u8>),
    /// this one
    Known(Vec<u8>),
    /// a page of the synthetic site
    Synthetic(Box<synthetic::Expected>),
}

/// A URL as it is asked for.
#[derive(Debug)]
pub(super) struct Page {
    /// the request, and the same with the wish that the connection ends
    requests: [ObjectId; 2],
    pub(super) url: Url,
    pub(super) body: Body,
}

/// All that is asked for, over and over.
#[derive(Debug)]
pub(crate) struct Mix {
    server: SocketAddr,
    content: Arc<Content>,
    pub(super) pages: Vec<Page>,
    /// pages in the order of asking
    round: Vec<u32>,
    next: usize,
}

impl Mix {
    /// Of these URLs, each with a body if it is known, and fields that every request has.
    pub(crate) fn new(urls: &[Url], bodies: Vec<Vec<u8>>, fields: &[String]) -> Result<Mix> {
        Mix::expecting(urls, bodies.into_iter().map(Body::Known).collect(), fields)
    }

    /// Of pages of the synthetic site, by their paths.
    pub(crate) fn synthetic(urls: &[Url], fields: &[String]) -> Result<Mix> {
        let expected = |url: &Url| {
            let page = pages::Page::of_path(&url.path)
                .with_context(|| format!("{} is no path of the synthetic site", url.path))?;
            Ok(Body::Synthetic(Box::new(synthetic::Expected::new(page))))
        };
        Mix::expecting(urls, urls.iter().map(expected).collect::<Result<_>>()?, fields)
    }

    fn expecting(urls: &[Url], bodies: Vec<Body>, fields: &[String]) -> Result<Mix> {
        let server = urls.first().context("no URL")?.server()?;
        ensure!(bodies.len() <= urls.len(), "{} bodies for {} URLs", bodies.len(), urls.len());
        let mut bodies = bodies.into_iter();
        let mut builder = ContentBuilder::new();
        let mut pages = Vec::new();
        for url in urls {
            ensure!(url.server()? == server, "all URLs must be one server's, and {} is not {server}", url.authority);
            let mut request = |ends| builder.add(text(url, fields, ends).as_bytes());
            let requests = [request(false), request(true)];
            let body = bodies.next().unwrap_or(Body::Unknown);
            pages.push(Page { requests, url: url.clone(), body });
        }
        for field in fields {
            ensure!(is_field(field), "'{field}' is no header field such as 'Accept-Encoding: gzip'");
        }
        Ok(Mix { server, content: builder.finish(), pages, round: round(urls)?, next: 0 })
    }

    /// Whom all of it is asked of.
    pub(crate) fn server(&self) -> SocketAddr {
        self.server
    }

    /// The page whose turn it is.
    #[inline]
    pub(super) fn next(&mut self) -> u32 {
        let page = self.round[self.next];
        self.next = (self.next + 1) % self.round.len();
        page
    }

    /// A page's request.
    #[inline]
    pub(super) fn request(&self, page: u32, ends: bool) -> app::Range<'_> {
        let object = self.pages[page as usize].requests[usize::from(ends)];
        let bytes = self.content.bytes(object).len() as u64;
        app::Range::Object { content: &self.content, object, start: 0, bytes }
    }
}

fn text(url: &Url, fields: &[String], ends: bool) -> String {
    let mut text = format!("GET {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: simoom-bench\r\n", url.path, url.authority);
    for field in fields {
        text.push_str(field);
        text.push_str("\r\n");
    }
    text.push_str(if ends { "Connection: close\r\n\r\n" } else { "\r\n" });
    text
}

fn is_field(text: &str) -> bool {
    let is_token = |octet: u8| octet.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&octet);
    text.split_once(':').is_some_and(|(name, value)| {
        !name.is_empty() && name.bytes().all(is_token) && !value.bytes().any(|octet| matches!(octet, 0 | b'\r' | b'\n'))
    })
}

/// Each URL as often as its weight says, evenly spread: in every step each gains its weight, and the richest pays for all.
fn round(urls: &[Url]) -> Result<Vec<u32>> {
    let whole: u64 = urls.iter().map(|url| u64::from(url.weight)).sum();
    if whole > ROUND_MOST {
        bail!("weights come to {whole}, and {ROUND_MOST} is the most");
    }
    if urls.iter().all(|url| url.weight == urls[0].weight) {
        return Ok((0..urls.len() as u32).collect());
    }
    let mut credit = vec![0i64; urls.len()];
    let step = |_| {
        for (credit, url) in credit.iter_mut().zip(urls) {
            *credit += i64::from(url.weight);
        }
        // the first of the richest
        let richest = (0..urls.len()).rev().max_by_key(|&at| credit[at]).expect("a URL at least");
        credit[richest] -= whole as i64;
        richest as u32
    };
    Ok((0..whole).map(step).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        text.parse().unwrap()
    }

    #[test]
    fn urls_have_weights_hosts_and_paths() {
        let whole = url("3@http://192.0.2.1:8080/a/b?c=d@e");
        assert_eq!((whole.weight, &*whole.authority, &*whole.path), (3, "192.0.2.1:8080", "/a/b?c=d@e"));
        assert_eq!(whole.server().unwrap().to_string(), "192.0.2.1:8080");
        let bare = url("http://[2001:db8::1]");
        assert_eq!((bare.weight, &*bare.path, bare.server().unwrap().port()), (1, "/", 80));
        assert_eq!(url("http://[2001:db8::1]:81/").server().unwrap().port(), 81);
        assert_eq!(url("http://a?b").path, "/?b");
        for wrong in [
            "",
            "/x",
            "https://a/",
            "http://",
            "http:///x",
            "0@http://a/",
            "http://u@a/",
            "http://a/ b",
            "9999999999@http://a/",
        ] {
            assert!(wrong.parse::<Url>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn pages_come_in_turn_or_by_weight() {
        let mut mix = Mix::new(&[url("http://192.0.2.1/a"), url("http://192.0.2.1/b")], vec![], &[]).unwrap();
        assert_eq!(std::array::from_fn(|_| mix.next()), [0, 1, 0, 1]);
        let urls = [url("5@http://192.0.2.1/a"), url("1@http://192.0.2.1/b"), url("2@http://192.0.2.1/c")];
        let round = round(&urls).unwrap();
        let count = |page| round.iter().filter(|other| **other == page).count();
        assert_eq!([count(0), count(1), count(2), round.len()], [5, 1, 2, 8]);
        // spread: the heaviest never waits for three others
        assert!(round.windows(3).all(|three| three.contains(&0)), "{round:?}");
        assert!(super::round(&[url("1048576@http://192.0.2.1/"), url("1@http://192.0.2.1/")]).is_err());
    }

    #[test]
    fn requests_are_what_the_rfc_wants() {
        let fields = ["Accept-Encoding: gzip".to_owned()];
        let mix = Mix::new(&[url("http://192.0.2.1:81/a")], vec![b"x".to_vec()], &fields).unwrap();
        let read = |ends| match mix.request(0, ends) {
            app::Range::Object { content, object, .. } => String::from_utf8(content.bytes(object).to_vec()).unwrap(),
            app::Range::Owned(_) => unreachable!("requests are objects"),
        };
        let head = "GET /a HTTP/1.1\r\nHost: 192.0.2.1:81\r\nUser-Agent: simoom-bench\r\nAccept-Encoding: gzip\r\n";
        assert_eq!(read(false), format!("{head}\r\n"));
        assert_eq!(read(true), format!("{head}Connection: close\r\n\r\n"));
        assert_eq!(mix.pages[0].body, Body::Known(b"x".to_vec()));
    }

    #[test]
    fn what_cannot_be_asked_is_refused() {
        let (one, other) = (url("http://192.0.2.1/"), url("http://192.0.2.2/"));
        assert!(Mix::new(&[one.clone(), other], vec![], &[]).is_err());
        assert!(Mix::new(std::slice::from_ref(&one), vec![vec![], vec![]], &[]).is_err());
        for wrong in ["no field", ": x", "A b: c", "A: b\r\nC: d"] {
            assert!(Mix::new(std::slice::from_ref(&one), vec![], &[wrong.to_owned()]).is_err(), "{wrong}");
        }
    }
}
