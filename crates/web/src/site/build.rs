//! Puts a site together at load. Nothing here runs while answers are made, so it may allocate.
//!
//! The caller gives files in any order, with their bytes or with a function that writes them in place; a file that the
//! version before had under the same identity is shared with it and not read again. What follows from all files together
//! (variants, index and listing pages, directory redirects) is made in [`SiteBuilder::finish`].

mod variants;

pub use variants::Compressible;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hasher;
use std::sync::Arc;

use app::{ContentBuilder, ObjectId};
use globset::GlobMatcher;
use siphasher::sip::SipHasher13;
use thiserror::Error;

use super::page::{self, Fields, Line};
use super::{Entry, HOST_NAMES, HostPages, NO_OBJECT, NO_ORIGIN, PrefixRedirect, Representation, Site, Span};
use crate::chunks::{Origin, Source};
use crate::config::{self, Config, ConfigError, Host};
use crate::head::LINE_MAX_BYTES;
use crate::mime;
use crate::negotiate::Encoding;
use crate::status;
use crate::table::Table;

/// Bodies up to this size stand in one object with their fields.
const SMALL_BYTES: usize = 16 << 10;

/// What makes a file the same file with the same content, as far as can be told without reading it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    /// the file system it is on
    pub device: u64,
    /// its number there
    pub inode: u64,
    /// its size
    pub bytes: u64,
    /// its last change, nanoseconds since 1970; negated while a later change could still carry the same time
    pub modified_ns: i128,
}

impl Identity {
    /// Whether the file could change and keep this identity.
    pub fn is_young(&self) -> bool {
        self.modified_ns < 0
    }
}

/// A file of a host.
#[derive(Clone, Copy, Debug)]
pub struct File<'a> {
    /// where it is served: begins with a slash, is not encoded
    pub path: &'a [u8],
    /// seconds since 1970, for Last-Modified
    pub modified_unix_s: u64,
    /// see [`Identity`]
    pub identity: Identity,
    /// Identity, or the coding of a variant of `path` that the caller compressed itself
    pub encoding: Encoding,
}

/// A file that is not taken. None of these leaves the builder changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FileError {
    /// a name that begins with a dot
    #[error("its name begins with a dot; list it in `dotfiles` to serve it")]
    Hidden,
    /// a name that no request can ask for
    #[error("no request can ask for such a name; rename it without control characters, backslash and dot segments")]
    Unreachable,
    /// there is no such host
    #[error("host {0} is not configured")]
    NoHost(usize),
}

/// A site that cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BuildError {
    /// the fields of one path take too much
    #[error("the header fields of {0:?} take over 64 KiB; shorten the rules that match it")]
    Fields(String),
    /// more paths than a table can hold
    #[error("more paths, or longer ones, than a table can hold (4 GiB of names)")]
    TooLarge,
}

enum Body {
    Small(Box<[u8]>),
    Object(ObjectId),
    /// read while it is sent; the number of its origin
    Origin(u32),
}

struct Stored {
    host: u16,
    path: Box<[u8]>,
    encoding: Encoding,
    modified_unix_s: u64,
    identity: Identity,
    body: Body,
    bytes: u64,
    tag: u64,
}

/// The rules of one host, read.
struct Rules {
    cache: Vec<(GlobMatcher, String)>,
    headers: Vec<(GlobMatcher, String, String)>,
}

/// Collects files and makes a [`Site`] of them.
pub struct SiteBuilder {
    config: Config,
    rules: Vec<Rules>,
    seed: u64,
    unix_s: u64,
    before: Option<Arc<Site>>,
    content: ContentBuilder,
    origins: Vec<Arc<Origin>>,
    files: Vec<Stored>,
    directories: BTreeSet<(u16, Box<[u8]>)>,
}

impl SiteBuilder {
    /// A builder without files. `seed` keys the site's tables and comes from the machine's entropy; `unix_s` is the time now,
    /// seconds since 1970; `before` is the version that this one replaces.
    ///
    /// # Errors
    /// What of the configuration is refused.
    pub fn new(config: Config, seed: u64, unix_s: u64, before: Option<Arc<Site>>) -> Result<SiteBuilder, ConfigError> {
        config.check()?;
        let rules = config.hosts.iter().map(Rules::read).collect::<Result<_, _>>()?;
        let content = ContentBuilder::new();
        Ok(SiteBuilder {
            config,
            rules,
            seed,
            unix_s,
            before,
            content,
            origins: Vec::new(),
            files: Vec::new(),
            directories: BTreeSet::new(),
        })
    }

    /// Whether a file at `path` would be taken; asked before it is opened.
    ///
    /// # Errors
    /// Why it would not.
    pub fn check_path(&self, host: usize, path: &[u8]) -> Result<(), FileError> {
        let rules = self.config.hosts.get(host).ok_or(FileError::NoHost(host))?;
        let segments = path.strip_prefix(b"/").ok_or(FileError::Unreachable)?.split(|byte| *byte == b'/');
        for segment in segments {
            let bad = |byte: &u8| *byte < b' ' || *byte == 0x7f || *byte == b'\\';
            if matches!(segment, b"" | b"." | b"..") || segment.iter().any(bad) {
                return Err(FileError::Unreachable);
            }
            if segment.starts_with(b".") && !rules.dotfiles.iter().any(|name| name.as_bytes() == segment) {
                return Err(FileError::Hidden);
            }
        }
        // three octets each when they are encoded, and the request line has to hold them
        if path.len() > LINE_MAX_BYTES / 4 { Err(FileError::Unreachable) } else { Ok(()) }
    }

    /// Adds a file that the version before has under the same identity and coding; false when it has not, and then it must be
    /// read.
    ///
    /// # Errors
    /// See [`SiteBuilder::check_path`].
    pub fn add_held(&mut self, host: usize, file: &File<'_>) -> Result<bool, FileError> {
        self.check_path(host, file.path)?;
        let Some(before) = self.before.clone() else { return Ok(false) };
        let Some(&(at, tag)) = before.identities.get(&(file.identity, file.encoding)) else { return Ok(false) };
        let held = &before.representations[at as usize];
        if held.origin != NO_ORIGIN {
            return Ok(false);
        }
        let body = self.body_held(&before, held);
        self.push(host, file, body, held.body_bytes, tag);
        Ok(true)
    }

    /// What the version before holds, shared with it where that is an object of its own.
    fn body_held(&mut self, before: &Site, held: &Representation) -> Body {
        if held.body == held.head {
            let object = before.content.bytes(held.body);
            Body::Small(object[held.body_at as usize..].into())
        } else {
            Body::Object(self.content.add_shared(&before.content, held.body))
        }
    }

    /// Adds a file that the version before has under the same identity and coding, as it has it: held, or read while it is sent from the
    /// same source. False when it has not.
    ///
    /// # Errors
    /// See [`SiteBuilder::check_path`].
    pub fn add_as_before(&mut self, host: usize, file: &File<'_>) -> Result<bool, FileError> {
        if self.add_held(host, file)? {
            return Ok(true);
        }
        let Some(before) = self.before.clone() else { return Ok(false) };
        let Some(&(at, tag)) = before.identities.get(&(file.identity, file.encoding)) else { return Ok(false) };
        let Some(origin) = before.origin(before.representations[at as usize].origin) else { return Ok(false) };
        let number = self.origins.len() as u32;
        self.origins.push(origin.clone());
        self.push(host, file, Body::Origin(number), file.identity.bytes, tag);
        Ok(true)
    }

    /// Adds a file with a copy of its bytes.
    ///
    /// # Errors
    /// See [`SiteBuilder::check_path`].
    pub fn add(&mut self, host: usize, file: &File<'_>, bytes: &[u8]) -> Result<(), FileError> {
        self.check_path(host, file.path)?;
        let body =
            if bytes.len() <= SMALL_BYTES { Body::Small(bytes.into()) } else { Body::Object(self.content.add(bytes)) };
        self.push(host, file, body, bytes.len() as u64, tag_of(file.encoding, bytes));
        Ok(())
    }

    /// Adds a file of `bytes` octets that `fill` writes in place, such as by reading the file there. When `fill` fails nothing
    /// is added.
    ///
    /// # Errors
    /// The outer one is about the path, see [`SiteBuilder::check_path`]; the inner one is what `fill` says.
    pub fn add_with<E>(
        &mut self,
        host: usize,
        file: &File<'_>,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<Result<(), E>, FileError> {
        self.check_path(host, file.path)?;
        let mut tag = 0;
        let filled = |memory: &mut [u8]| {
            fill(memory)?;
            tag = tag_of(file.encoding, memory);
            Ok(())
        };
        let body = if bytes <= SMALL_BYTES {
            let mut memory = vec![0; bytes];
            filled(&mut memory).map(|()| Body::Small(memory.into()))
        } else {
            self.content.add_with(bytes, filled).map(Body::Object)
        };
        Ok(body.map(|body| self.push(host, file, body, bytes as u64, tag)))
    }

    /// Adds a file that is not held but read while it is sent, from `source`. What was read of it for the version before, under the
    /// same identity, goes on to be of use; its source does not, since the file may have moved without a trace in its identity, as
    /// when a directory above it was renamed.
    ///
    /// Its entity tag is made of the identity instead of the octets, so another machine's differs. It is a strong one all the same
    /// (RFC 9110 section 8.8.1) if the identity changes whenever the content does and the source gives no octet of any other
    /// content: the caller sees to both.
    ///
    /// # Errors
    /// See [`SiteBuilder::check_path`].
    pub fn add_source(&mut self, host: usize, file: &File<'_>, source: Box<dyn Source>) -> Result<(), FileError> {
        self.check_path(host, file.path)?;
        let before = self.before.as_ref().and_then(|before| {
            let (at, _) = before.identities.get(&(file.identity, file.encoding))?;
            before.origin(before.representations[*at as usize].origin)
        });
        let origin = match before {
            Some(before) => before.moved(source),
            None => Origin::new(file.identity.bytes, source),
        };
        let Identity { device, inode, bytes, modified_ns } = file.identity;
        let identity = [device.to_ne_bytes(), inode.to_ne_bytes(), bytes.to_ne_bytes()].concat();
        let tag = tag_of(file.encoding, &[&b"identity"[..], &identity, &modified_ns.to_ne_bytes()].concat());
        let number = self.origins.len() as u32;
        self.origins.push(Arc::new(origin));
        self.push(host, file, Body::Origin(number), bytes, tag);
        Ok(())
    }

    /// Adds a directory, so that one without files is known too. `path` is as a file's, without a slash at its end.
    ///
    /// # Errors
    /// See [`SiteBuilder::check_path`].
    pub fn add_directory(&mut self, host: usize, path: &[u8]) -> Result<(), FileError> {
        self.check_path(host, path)?;
        self.directories.insert((host as u16, [path, b"/"].concat().into()));
        Ok(())
    }

    fn push(&mut self, host: usize, file: &File<'_>, body: Body, bytes: u64, tag: u64) {
        self.files.push(Stored {
            host: host as u16,
            path: file.path.into(),
            encoding: file.encoding,
            // no later than the answer's Date (RFC 9110 section 8.8.2.1)
            modified_unix_s: file.modified_unix_s.min(self.unix_s),
            identity: file.identity,
            body,
            bytes,
            tag,
        });
    }

    /// Makes the site.
    ///
    /// # Errors
    /// What makes it impossible; a file alone never does.
    pub fn finish(self) -> Result<Site, BuildError> {
        let SiteBuilder { config, rules, seed, content, origins, files, mut directories, .. } = self;
        for file in &files {
            for (at, _) in file.path.iter().enumerate().filter(|(_, byte)| **byte == b'/') {
                directories.insert((file.host, file.path[..=at].into()));
            }
        }
        for host in 0..config.hosts.len() {
            directories.insert((host as u16, b"/"[..].into()));
        }
        let mut maker = Maker {
            config: &config,
            rules: &rules,
            files: &files,
            content,
            representations: Vec::new(),
            identities: BTreeMap::new(),
            entries: Vec::new(),
            keys: Vec::new(),
            text: Vec::new(),
            notes: Vec::new(),
        };
        maker.redirects();
        let paths = maker.paths();
        maker.files(&paths)?;
        maker.directories(&directories, &paths)?;
        let hosts = maker.hosts(&paths)?;
        maker.names();
        let keys = maker.keys.iter().map(|(scope, key, value)| (*scope, &**key, *value));
        let table = Table::build(seed, keys).map_err(|_| BuildError::TooLarge)?;
        Ok(Site {
            content: maker.content.finish(),
            table,
            entries: maker.entries.into(),
            representations: maker.representations.into(),
            origins: origins.into(),
            identities: maker.identities,
            hosts: hosts.into(),
            has_names: config.hosts.iter().any(|host| !host.names.is_empty()),
            text: maker.text.into(),
            notes: maker.notes.into(),
        })
    }
}

impl Rules {
    fn read(host: &Host) -> Result<Rules, ConfigError> {
        let cache = host.cache.iter().map(|(text, value)| Ok((config::pattern("cache", text)?, value.clone())));
        let headers = host.headers.iter();
        let headers =
            headers.map(|(text, name, value)| Ok((config::pattern("headers", text)?, name.clone(), value.clone())));
        Ok(Rules { cache: cache.collect::<Result<_, _>>()?, headers: headers.collect::<Result<_, _>>()? })
    }
}

/// The tag of a representation: made of its octets, so that machines with the same files agree. The key is not secret.
fn tag_of(encoding: Encoding, bytes: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(0, encoding as u64);
    hasher.write(bytes);
    hasher.finish()
}

/// Which files there are at a path: its own, and its variants.
type Paths = BTreeMap<(u16, Box<[u8]>), [Option<usize>; 4]>;

struct Maker<'b> {
    config: &'b Config,
    rules: &'b [Rules],
    files: &'b [Stored],
    content: ContentBuilder,
    representations: Vec<Representation>,
    identities: BTreeMap<(Identity, Encoding), (u32, u64)>,
    entries: Vec<Entry>,
    keys: Vec<(u16, Box<[u8]>, u32)>,
    text: Vec<u8>,
    notes: Vec<String>,
}

fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

impl Maker<'_> {
    fn entry(&mut self, host: u16, path: &[u8], entry: Entry) {
        let at = self.entries.len() as u32;
        self.entries.push(entry);
        self.keys.push((host, path.into(), at));
    }

    fn redirect(&mut self, host: u16, path: &[u8], by_rule: bool, status: u16, location: &[u8]) {
        let at = self.text.len() as u32;
        self.text.extend_from_slice(location);
        self.entry(host, path, Entry::Redirect { by_rule, status, at, bytes: location.len() as u32 });
    }

    /// First of all, so that they stand above files.
    fn redirects(&mut self) {
        let config = self.config;
        for (host, rules) in config.hosts.iter().enumerate() {
            for redirect in rules.redirects.iter().filter(|redirect| !redirect.from.ends_with('*')) {
                self.redirect(host as u16, redirect.from.as_bytes(), true, redirect.status, redirect.to.as_bytes());
            }
        }
    }

    /// All paths with their variants: those given as such, and files beside that are named as such.
    fn paths(&mut self) -> Paths {
        let mut paths = Paths::new();
        for (at, file) in self.files.iter().enumerate() {
            let variants = paths.entry((file.host, file.path.clone())).or_default();
            if variants[file.encoding as usize].replace(at).is_some() {
                self.notes.push(format!("{}: given twice, the second one is served", shown(&file.path)));
            }
        }
        let mut beside = Vec::new();
        for ((host, path), variants) in &paths {
            let Some(own) = variants[0] else { continue };
            if !self.config.hosts[usize::from(*host)].precompressed {
                continue;
            }
            for encoding in &Encoding::ALL[1..] {
                let name: Box<[u8]> = [path, encoding.suffix().as_bytes()].concat().into();
                let Some(&[Some(at), ..]) = paths.get(&(*host, name)) else { continue };
                let variant = &self.files[at];
                if variant.modified_unix_s < self.files[own].modified_unix_s {
                    let text =
                        format!("{}: older than what it compresses, not used as a variant", shown(&variant.path));
                    self.notes.push(text);
                } else {
                    // above one that was made
                    beside.push(((*host, path.clone()), *encoding, at));
                }
            }
        }
        for (key, encoding, at) in beside {
            if let Some(variants) = paths.get_mut(&key) {
                variants[encoding as usize] = Some(at);
            }
        }
        paths
    }

    fn files(&mut self, paths: &Paths) -> Result<(), BuildError> {
        for ((host, path), variants) in paths {
            let Some(own) = variants[0] else {
                self.notes.push(format!("{}: a variant of nothing, not served", shown(path)));
                continue;
            };
            // a variant that saves nothing is none
            let smaller = |at: &usize| self.files[*at].bytes < self.files[own].bytes;
            let mut all: Vec<(Encoding, usize)> = Encoding::ALL[1..]
                .iter()
                .filter_map(|encoding| Some((*encoding, variants[*encoding as usize].filter(smaller)?)))
                .collect();
            all.sort_by_key(|(_, at)| self.files[*at].bytes);
            all.push((Encoding::Identity, own));
            let first = self.representations.len() as u32;
            for (encoding, at) in &all {
                let modified_unix_s = self.files[own].modified_unix_s;
                self.file(*host, path, *encoding, *at, modified_unix_s, all.len() > 1)?;
            }
            self.entry(*host, path, Entry::Page { first, variants: all.len() as u8 });
        }
        Ok(())
    }

    /// One representation of a file, with everything that the rules say of its path.
    fn file(
        &mut self,
        host: u16,
        path: &[u8],
        encoding: Encoding,
        at: usize,
        modified_unix_s: u64,
        varies: bool,
    ) -> Result<(), BuildError> {
        let file = &self.files[at];
        let fields = FieldsOf { tag: Some(file.tag), modified_unix_s: Some(modified_unix_s), encoding, varies };
        let media_type = media_type(&self.config.hosts[usize::from(host)], path);
        let made = self.representation(host, path, &media_type, &fields, &file.body, file.bytes)?;
        let number = self.representations.len() as u32;
        self.representations.push(made);
        self.identities.entry((file.identity, file.encoding)).or_insert((number, file.tag));
        Ok(())
    }

    fn representation(
        &mut self,
        host: u16,
        path: &[u8],
        media_type: &str,
        of: &FieldsOf,
        body: &Body,
        body_bytes: u64,
    ) -> Result<Representation, BuildError> {
        let rules = &self.rules[usize::from(host)];
        let text = String::from_utf8_lossy(path);
        let cache = rules.cache.iter().find(|(pattern, _)| pattern.is_match(&*text)).map(|(_, value)| &**value);
        let extra = rules.headers.iter().filter(|(pattern, ..)| pattern.is_match(&*text));
        let extra: Vec<(&str, &str)> = extra.map(|(_, name, value)| (&**name, &**value)).collect();
        let fields = Fields {
            body_bytes,
            media_type,
            encoding: of.encoding,
            tag: of.tag,
            modified_unix_s: of.modified_unix_s,
            varies: of.varies,
            cache,
            extra: &extra,
            server: self.config.server.as_deref(),
        };
        place(&mut self.content, &fields, body).ok_or_else(|| BuildError::Fields(shown(path)))
    }

    /// What a directory's path answers, with and without its slash.
    fn directories(&mut self, directories: &BTreeSet<(u16, Box<[u8]>)>, paths: &Paths) -> Result<(), BuildError> {
        let config = self.config;
        let pages: BTreeMap<(u16, Box<[u8]>), u32> =
            self.keys.iter().map(|(host, path, at)| ((*host, path.clone()), *at)).collect();
        for (host, path) in directories {
            let rules = &config.hosts[usize::from(*host)];
            let index = rules.index.iter().find_map(|name| {
                let at = *pages.get(&(*host, [path, name.as_bytes()].concat().into()))?;
                matches!(self.entries[at as usize], Entry::Page { .. }).then_some(at)
            });
            match index {
                Some(at) => self.keys.push((*host, path.clone(), at)),
                None if rules.listing => self.listing(*host, path, directories, paths)?,
                None => self.entry(*host, path, Entry::Forbidden),
            }
            if path.len() > 1 {
                let mut location = Vec::new();
                page::push_encoded(&mut location, path);
                self.redirect(*host, &path[..path.len() - 1], false, 301, &location);
            }
        }
        Ok(())
    }

    fn listing(
        &mut self,
        host: u16,
        path: &[u8],
        directories: &BTreeSet<(u16, Box<[u8]>)>,
        paths: &Paths,
    ) -> Result<(), BuildError> {
        let below = (host, Box::<[u8]>::from(path));
        let mut lines: Vec<Line<'_>> = Vec::new();
        for (_, directory) in
            directories.range(below.clone()..).take_while(|(of, at)| *of == host && at.starts_with(path))
        {
            match directory[path.len()..].strip_suffix(b"/") {
                Some(name) if !name.contains(&b'/') => lines.push(Line { name, bytes: None, modified_unix_s: 0 }),
                _ => {}
            }
        }
        for ((_, file), variants) in
            paths.range(below..).take_while(|((of, at), _)| *of == host && at.starts_with(path))
        {
            let name = &file[path.len()..];
            let Some(own) = variants[0].filter(|_| !name.contains(&b'/')) else { continue };
            let Stored { bytes, modified_unix_s, .. } = self.files[own];
            lines.push(Line { name, bytes: Some(bytes), modified_unix_s });
        }
        let text = page::listing(path, &lines).into_bytes();
        let tag = Some(tag_of(Encoding::Identity, &text));
        let fields = FieldsOf { tag, modified_unix_s: None, encoding: Encoding::Identity, varies: false };
        let bytes = text.len() as u64;
        let body =
            if text.len() <= SMALL_BYTES { Body::Small(text.into()) } else { Body::Object(self.content.add(&text)) };
        let made = self.representation(host, path, "text/html; charset=utf-8", &fields, &body, bytes)?;
        let first = self.representations.len() as u32;
        self.representations.push(made);
        self.entry(host, path, Entry::Page { first, variants: 1 });
        Ok(())
    }

    /// Error pages and prefixes of every host.
    fn hosts(&mut self, paths: &Paths) -> Result<Vec<HostPages>, BuildError> {
        let mut plain = Vec::new();
        for (code, reason) in status::PAGES {
            let text = page::error(*code, reason).into_bytes();
            plain.push(self.error(text.len() as u64, "text/html; charset=utf-8", &Body::Small(text.into()))?);
        }
        let mut hosts = Vec::new();
        for (host, rules) in self.config.hosts.iter().enumerate() {
            let mut errors = plain.clone();
            for (code, path) in &rules.error_pages {
                let file = paths.get(&(host as u16, path.as_bytes().into())).and_then(|variants| variants[0]);
                let (Some(file), Some(place)) = (file, status::page(*code)) else {
                    self.notes.push(format!("{path}: the error page for {code} is not there"));
                    continue;
                };
                let file = &self.files[file];
                errors[place] = self.error(file.bytes, &media_type(rules, path.as_bytes()), &file.body)?;
            }
            let prefixes = rules.redirects.iter().filter_map(|redirect| {
                let from = redirect.from.strip_suffix('*')?;
                let (to, with_rest) = match redirect.to.strip_suffix('*') {
                    Some(to) => (to, true),
                    None => (&*redirect.to, false),
                };
                Some(PrefixRedirect {
                    from: from.as_bytes().into(),
                    to: to.as_bytes().into(),
                    with_rest,
                    status: redirect.status,
                })
            });
            hosts.push(HostPages { errors: errors.into(), prefixes: prefixes.collect() });
        }
        Ok(hosts)
    }

    fn error(&mut self, body_bytes: u64, media_type: &str, body: &Body) -> Result<Representation, BuildError> {
        let fields = Fields {
            body_bytes,
            media_type,
            encoding: Encoding::Identity,
            tag: None,
            modified_unix_s: None,
            varies: false,
            cache: None,
            extra: &[],
            server: self.config.server.as_deref(),
        };
        place(&mut self.content, &fields, body).ok_or_else(|| BuildError::Fields("error pages".to_owned()))
    }

    fn names(&mut self) {
        for (host, rules) in self.config.hosts.iter().enumerate() {
            for name in &rules.names {
                // checked before
                let Ok(name) = config::host_name(name) else { continue };
                self.keys.push((HOST_NAMES, name.into_bytes().into(), host as u32));
            }
        }
    }
}

/// What a representation's fields depend on besides its path and body.
struct FieldsOf {
    tag: Option<u64>,
    modified_unix_s: Option<u64>,
    encoding: Encoding,
    varies: bool,
}

/// Adds the objects of a representation; None when its fields are too long.
fn place(content: &mut ContentBuilder, fields: &Fields<'_>, body: &Body) -> Option<Representation> {
    let mut head = fields.write()?;
    let mut origin = NO_ORIGIN;
    let (head_id, body_id, body_at) = match body {
        Body::Small(bytes) => {
            head.text.extend_from_slice(bytes);
            let id = content.add(&head.text);
            (id, id, u64::from(head.head_end))
        }
        Body::Object(id) => (content.add(&head.text), *id, 0),
        Body::Origin(number) => {
            origin = *number;
            (content.add(&head.text), NO_OBJECT, 0)
        }
    };
    Some(Representation {
        head: head_id,
        length_end: head.length_end,
        type_end: head.type_end,
        head_end: head.head_end,
        encoding: fields.encoding,
        etag: if fields.tag.is_some() { head.etag } else { Span::default() },
        modified: if fields.modified_unix_s.is_some() { head.modified } else { Span::default() },
        modified_unix_s: fields.modified_unix_s.unwrap_or(0),
        body: body_id,
        body_at,
        body_bytes: fields.body_bytes,
        origin,
    })
}

/// The media type of a path, with the host's charset where one belongs.
fn media_type(host: &Host, path: &[u8]) -> String {
    let extension = mime::extension(path);
    let own =
        extension.and_then(|extension| host.types.iter().find(|(known, _)| known.eq_ignore_ascii_case(extension)));
    let found = match (own, extension) {
        (Some((_, own)), _) => own,
        (None, Some(extension)) => mime::of(extension).unwrap_or(mime::UNKNOWN),
        (None, None) => mime::UNKNOWN,
    };
    match &host.charset {
        Some(charset) if mime::takes_charset(found) => format!("{found}; charset={charset}"),
        _ => found.to_owned(),
    }
}
