//! What an operator says about sites, and what of it is refused.

use globset::{GlobBuilder, GlobMatcher};
use thiserror::Error;

use crate::head::LINE_MAX_BYTES;
use crate::target;

/// Everything that one set of listeners serves.
#[derive(Clone, Debug)]
pub struct Config {
    /// the Server field; None sends none
    pub server: Option<String>,
    /// virtual hosts; the first one also answers names that no host has
    pub hosts: Vec<Host>,
}

/// One virtual host.
#[derive(Clone, Debug)]
pub struct Host {
    /// names without a port, in any letter case; `*.example.org` is every name below
    pub names: Vec<String>,
    /// the files that stand for their directory, the first that is there
    pub index: Vec<String>,
    /// render a page for a directory without an index file; it is forbidden otherwise (403)
    pub listing: bool,
    /// added to text types that name none; None adds none
    pub charset: Option<String>,
    /// extension without a dot, and its media type, before the built-in table
    pub types: Vec<(String, String)>,
    /// pattern and value of Cache-Control; the first that matches counts
    pub cache: Vec<(String, String)>,
    /// pattern, name and value of further fields; all that match are sent, with 200, 206 and 304
    pub headers: Vec<(String, String, String)>,
    /// what is elsewhere; looked at before files: a rule for a path of its own before those for prefixes, these in their order
    pub redirects: Vec<Redirect>,
    /// status, and the path of the file that is its content
    pub error_pages: Vec<(u16, String)>,
    /// `a.js.br`, `.zst`, `.gz` beside `a.js` are its variants
    pub precompressed: bool,
    /// names that begin with a dot and are served all the same
    pub dotfiles: Vec<String>,
}

impl Default for Host {
    fn default() -> Host {
        Host {
            names: Vec::new(),
            index: vec!["index.html".to_owned()],
            listing: false,
            charset: Some("utf-8".to_owned()),
            types: Vec::new(),
            cache: Vec::new(),
            headers: Vec::new(),
            redirects: Vec::new(),
            error_pages: Vec::new(),
            precompressed: true,
            // RFC 8615: meant for the public, and where ACME looks
            dotfiles: vec![".well-known".to_owned()],
        }
    }
}

impl Default for Config {
    fn default() -> Config {
        Config { server: Some("simoom".to_owned()), hosts: vec![Host::default()] }
    }
}

/// A path that is elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// a path, or a prefix that ends in `/*`
    pub from: String,
    /// a URI reference; what `*` stood for replaces the `*` of a `/*` at its end
    pub to: String,
    /// 301, 302, 303, 307 or 308
    pub status: u16,
}

/// A configuration that is refused. Each message names the value, its place and the mend.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// there is no host
    #[error("no host is configured; one is needed")]
    NoHost,
    /// more hosts than can be told apart
    #[error("{0} hosts are configured; 65534 are the most")]
    TooManyHosts(usize),
    /// two hosts have the same name
    #[error("the name {0:?} belongs to two hosts; remove one")]
    HostTwice(String),
    /// a name that no Host field can match
    #[error("{0:?} is no host name; give it without scheme, port or path, `*.` in front for all names below")]
    HostName(String),
    /// a name that nothing is found by
    #[error("{name:?} of {place}: {why}")]
    Name {
        /// which option
        place: &'static str,
        /// as it was given
        name: String,
        /// how to write it
        why: &'static str,
    },
    /// a pattern that cannot be read, or that no path matches
    #[error("pattern {pattern:?} of {place}: {why}")]
    Pattern {
        /// which option
        place: &'static str,
        /// as it was given
        pattern: String,
        /// what the matcher says
        why: String,
    },
    /// a field name that is none, or one that the server itself writes
    #[error("header {name:?}: {why}")]
    Header {
        /// as it was given
        name: String,
        /// what is wrong with it
        why: &'static str,
    },
    /// a value with control characters
    #[error("the value {value:?} of {place} cannot stand in a header; remove its control characters")]
    Value {
        /// which option
        place: &'static str,
        /// as it was given
        value: String,
    },
    /// a redirect that cannot be made
    #[error("redirect from {from:?}: {why}")]
    Redirect {
        /// as it was given
        from: String,
        /// what is wrong with it
        why: &'static str,
    },
    /// an error page for a status that has none
    #[error("an error page for {0}: only {known} have one", known = crate::site::error_statuses())]
    ErrorStatus(u16),
}

/// Fields that the server writes itself, and how to have them otherwise.
const OWN_FIELDS: [(&str, &str); 14] = [
    ("accept-ranges", "the server writes it"),
    ("allow", "the server writes it"),
    ("cache-control", "write a rule of `cache`"),
    ("connection", "the server writes it"),
    ("content-encoding", "the server writes it"),
    ("content-length", "the server writes it"),
    ("content-range", "the server writes it"),
    ("content-type", "write a rule of `types`"),
    ("date", "the server writes it"),
    ("etag", "the server writes it"),
    ("last-modified", "the server writes it"),
    ("location", "write a redirect"),
    ("server", "set `server`"),
    ("transfer-encoding", "the server writes it"),
];

/// A pattern that was read: `*` and `?` stay within a segment, `**` does not.
pub(crate) fn pattern(place: &'static str, pattern: &str) -> Result<GlobMatcher, ConfigError> {
    let wrong = |why| ConfigError::Pattern { place, pattern: pattern.to_owned(), why };
    // alternatives are each their own matter
    if !pattern.starts_with(['/', '{']) && !pattern.starts_with("**/") && pattern != "**" {
        return Err(wrong("paths begin with a slash, which nothing else matches; begin it with / or **/".to_owned()));
    }
    let glob = GlobBuilder::new(pattern).literal_separator(true).backslash_escape(true).build();
    glob.map(|glob| glob.compile_matcher()).map_err(|why| wrong(why.kind().to_string()))
}

/// A field value as RFC 9110 section 5.5 has it.
pub(crate) fn check_value(place: &'static str, value: &str) -> Result<(), ConfigError> {
    if value.bytes().all(|byte| byte == b'\t' || (byte >= b' ' && byte != 0x7f)) {
        return Ok(());
    }
    Err(ConfigError::Value { place, value: value.to_owned() })
}

impl Config {
    /// Everything that can be judged without files.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        if self.hosts.is_empty() {
            return Err(ConfigError::NoHost);
        }
        if self.hosts.len() >= usize::from(u16::MAX) {
            return Err(ConfigError::TooManyHosts(self.hosts.len()));
        }
        if let Some(server) = &self.server {
            check_value("server", server)?;
        }
        let mut names: Vec<String> = Vec::new();
        for host in &self.hosts {
            for name in &host.names {
                names.push(host_name(name)?);
            }
            host.check()?;
        }
        names.sort();
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(ConfigError::HostTwice(pair[0].clone())),
            None => Ok(()),
        }
    }
}

/// A configured name as requests are looked up by it.
pub(crate) fn host_name(name: &str) -> Result<String, ConfigError> {
    let name_of = name.strip_suffix('.').unwrap_or(name);
    let plain = name_of.strip_prefix("*.").unwrap_or(name_of);
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    // an address of IPv6 in its brackets, which no name stands below
    let literal = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).is_some_and(is_address);
    if !literal && (plain.is_empty() || plain.len() > 253 || !plain.bytes().all(known)) {
        return Err(ConfigError::HostName(name.to_owned()));
    }
    Ok(name_of.to_ascii_lowercase())
}

/// Whether a Host field can have this in brackets, as far as it is looked at.
fn is_address(inside: &str) -> bool {
    !inside.is_empty() && inside.bytes().all(|byte| byte.is_ascii_hexdigit() || b":.".contains(&byte))
}

impl Host {
    fn check(&self) -> Result<(), ConfigError> {
        if let Some(charset) = &self.charset {
            check_value("charset", charset)?;
        }
        let wrong = |place, name: &String, why| Err(ConfigError::Name { place, name: name.clone(), why });
        for (extension, media_type) in &self.types {
            if extension.is_empty() || extension.contains(['.', '/']) {
                return wrong(
                    "types",
                    extension,
                    "it is the part behind a name's last dot; write it without a dot, such as md",
                );
            }
            check_value("types", media_type)?;
        }
        for name in &self.index {
            if matches!(&**name, "" | "." | "..") || name.contains('/') {
                return wrong(
                    "index",
                    name,
                    "it is a file of every directory; write its name without a slash, such as index.html",
                );
            }
        }
        for name in &self.dotfiles {
            if matches!(&**name, "." | "..") || !name.starts_with('.') || name.contains('/') {
                return wrong(
                    "dotfiles",
                    name,
                    "it is one segment of a path; write it with a dot in front and no slash, such as .well-known",
                );
            }
        }
        for (_, value) in &self.cache {
            check_value("cache", value)?;
        }
        for (_, name, value) in &self.headers {
            check_value("headers", value)?;
            check_name(name)?;
        }
        self.redirects.iter().try_for_each(Redirect::check)?;
        for (status, _) in &self.error_pages {
            if !crate::site::has_error_page(*status) {
                return Err(ConfigError::ErrorStatus(*status));
            }
        }
        Ok(())
    }
}

fn check_name(name: &str) -> Result<(), ConfigError> {
    let wrong = |why| Err(ConfigError::Header { name: name.to_owned(), why });
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || !name.bytes().all(token) {
        return wrong("no field name; letters, digits and - make one");
    }
    match OWN_FIELDS.iter().find(|(own, _)| name.eq_ignore_ascii_case(own)) {
        Some((_, why)) => wrong(why),
        None => Ok(()),
    }
}

impl Redirect {
    fn check(&self) -> Result<(), ConfigError> {
        let wrong = |why| Err(ConfigError::Redirect { from: self.from.clone(), why });
        if !self.from.starts_with('/') {
            return wrong("it begins with no slash; write a path");
        }
        if let Some(why) = never_a_path(self.from.strip_suffix('*').unwrap_or(&self.from)) {
            return wrong(why);
        }
        let star = |text: &str| text.contains('*') && !text.ends_with("/*") || text.matches('*').count() > 1;
        if star(&self.from) || star(&self.to) {
            // behind anything but a slash, what the client adds could name another host
            return wrong("a * stands at the end only, behind a slash");
        }
        if self.to.is_empty() || !self.to.bytes().all(|byte| byte.is_ascii_graphic()) {
            return wrong("its target is no URI; percent-encode spaces and what is not ASCII");
        }
        if self.to.ends_with('*') && !self.from.ends_with('*') {
            return wrong("its target ends in * and it does not");
        }
        if self.to.ends_with('*') && self.to.contains('#') {
            return wrong("what its * stands for would be of the fragment; leave out the # and what is behind it");
        }
        if !matches!(self.status, 301 | 302 | 303 | 307 | 308) {
            return wrong("its status is none of 301, 302, 303, 307, 308");
        }
        Ok(())
    }
}

/// Why no request's path, as it is looked up, is this one; None when one can be.
fn never_a_path(path: &str) -> Option<&'static str> {
    if path.len() > LINE_MAX_BYTES {
        return Some("it is too long for a request");
    }
    if path.contains(['?', '#']) {
        return Some("a path alone is looked up; write it without a query and a fragment");
    }
    if path.contains('%') {
        return Some("paths are decoded before they are looked up; write the decoded characters");
    }
    if path.bytes().any(|byte| byte < b' ' || byte == 0x7f) {
        return Some("no request has such a path; remove its control characters");
    }
    let mut scratch = [0; LINE_MAX_BYTES];
    let is_normal = target::normalise(path.as_bytes(), &mut scratch) == Ok(path.as_bytes());
    (!is_normal).then_some("paths are looked up without repeated slashes and dot segments; write it so")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl FnOnce(&mut Config)) -> String {
        let mut config = Config::default();
        change(&mut config);
        config.check().map_or_else(|error| error.to_string(), |()| "taken".to_owned())
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_mend() {
        let header = |name: &'static str, value: &'static str| {
            refused(|config| config.hosts[0].headers.push(("/**".into(), name.into(), value.into())))
        };
        assert_eq!(header("X-Frame-Options", "DENY"), "taken");
        assert!(header("X Frame", "DENY").contains("no field name"));
        assert!(header("Content-length", "5").contains("the server writes it"));
        assert!(header("content-type", "text/html").contains("`types`"));
        assert!(header("X", "a\r\nSet-Cookie: b").contains("control characters"));
        assert!(refused(|config| config.hosts.clear()).contains("one is needed"));
        assert!(refused(|config| config.server = Some("a\nb".into())).contains("server"));
        assert!(refused(|config| config.hosts[0].error_pages.push((200, "/a".into()))).contains("200"));
        let names = |names: &'static [&'static str]| {
            refused(|config| config.hosts[0].names = names.iter().map(|name| (*name).to_owned()).collect())
        };
        assert_eq!(names(&["a.example", "*.example", "[::1]", "192.0.2.1"]), "taken");
        assert!(names(&["a.example", "A.example."]).contains("two hosts"));
        let more = ["[::1]:8080", "[::1", "::1]", "[]", "[example]", "*.[::1]", "[::1].", "a[b]", ".", "*"];
        for name in ["", "*.", "a:80", "http://a", "a/b", "é.example"].into_iter().chain(more) {
            let name: &'static str = name;
            assert!(refused(|config| config.hosts[0].names = vec![name.to_owned()]).contains("no host name"), "{name}");
        }
    }

    #[test]
    fn what_could_never_take_effect_is_refused_with_its_mend() {
        let host = |change: &dyn Fn(&mut Host)| refused(|config| change(&mut config.hosts[0]));
        for (extension, taken) in
            [("md", true), ("MD", true), (".md", false), ("tar.gz", false), ("", false), ("a/b", false)]
        {
            let said = host(&|host| host.types.push((extension.into(), "text/markdown".into())));
            assert_eq!(said == "taken", taken, "{extension}");
            assert!(taken || said.contains("of types: ") && said.contains("without a dot"), "{said}");
        }
        for (index, taken) in
            [("index.htm", true), ("i", true), ("/index.html", false), ("a/b", false), ("", false), ("..", false)]
        {
            let said = host(&|host| host.index.push(index.into()));
            assert_eq!(said == "taken", taken, "{index}");
            assert!(taken || said.contains("of index: ") && said.contains("without a slash"), "{said}");
        }
        for (dot, taken) in [
            (".well-known", true),
            (".a", true),
            ("a", false),
            (".a/b", false),
            ("", false),
            (".", false),
            ("..", false),
        ] {
            let said = host(&|host| host.dotfiles.push(dot.into()));
            assert_eq!(said == "taken", taken, "{dot}");
            assert!(taken || said.contains("of dotfiles: ") && said.contains("with a dot"), "{said}");
        }
    }

    #[test]
    fn redirects_are_judged() {
        let redirect = |from: &str, to: &str, status| {
            refused(|config| config.hosts[0].redirects.push(Redirect { from: from.into(), to: to.into(), status }))
        };
        for (from, to) in
            [("/café/.x", "/b"), ("/", "/b"), ("/a", "/b"), ("/a/*", "https://h/b/*"), ("/a/*", "/b"), ("/*", "/b/*")]
        {
            assert_eq!(redirect(from, to, 308), "taken", "{from} {to}");
        }
        for (from, to, status) in [
            ("a", "/b", 301),
            ("/a*b", "/b", 301),
            ("/a**", "/b", 301),
            ("/*a*", "/b", 301),
            ("/a*", "/b", 301),
            ("/a/*", "https://h*", 301),
            ("/a/*", "/*/b", 301),
            ("/a", "", 301),
            ("/a", "/b c", 301),
            ("/a", "/b\r\n", 301),
            ("/a", "/b/*", 301),
            ("/a", "/b", 200),
        ] {
            assert!(redirect(from, to, status).starts_with("redirect from"), "{from} {to} {status}");
        }
        // which no path that is looked up can be, and what to write instead
        let long = format!("/{}", "a".repeat(LINE_MAX_BYTES));
        for (from, mend) in [
            ("/caf%C3%A9", "decoded"),
            ("/a%", "decoded"),
            ("/p?id=3", "without a query"),
            ("/p#a", "without a query"),
            ("/a//b", "dot segments"),
            ("//*", "dot segments"),
            ("/a/./b", "dot segments"),
            ("/a/../b/*", "dot segments"),
            ("/..", "dot segments"),
            ("/a/.", "dot segments"),
            ("/a\u{1}b", "control characters"),
            ("/a\u{7f}", "control characters"),
            (&long, "too long"),
        ] {
            let said = redirect(from, "/b", 301);
            assert!(said.starts_with("redirect from") && said.contains(mend), "{said:.200}");
        }
    }

    #[test]
    fn patterns_stay_within_a_segment() {
        let matches = |text: &str, path: &str| pattern("cache", text).unwrap().is_match(path);
        assert!(matches("/assets/**", "/assets/a/b.js"));
        assert!(matches("/*.js", "/a.js") && !matches("/*.js", "/a/b.js"));
        assert!(matches("**/*.js", "/a/b.js") && matches("/**/*.{js,css}", "/a.css"));
        assert!(matches("**", "/a/b") && matches("{/a,/b}/*", "/b/c"));
        assert!(pattern("cache", "/[").is_err());
        // nothing matches them: a path begins with a slash, and a * stays within a segment
        for text in ["assets/**", "a", "*.js", "*", "**.js", "?a", "[/]a", ""] {
            let said = pattern("header", text).map_or_else(|error| error.to_string(), |_| "taken".to_owned());
            assert!(said.contains("begin it with / or **/"), "{text}: {said}");
        }
    }
}
