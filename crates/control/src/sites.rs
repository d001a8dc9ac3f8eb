//! Directory trees from the file system, into a site that serves.
//!
//! A load has two passes. The walk looks at every name below each root and at nothing else, so the memory needed is known before
//! a byte is read. Then each file that the version before does not hold is read into its final place, the smallest first in line
//! for memory; what does not fit is only looked at, and read while it is sent (crate web's `chunks`, [`on_disk`]). A load is all or
//! nothing, as with zones; but who may write below a root is not who runs the server, so what one author cannot or will not have
//! served is left out with a word ([`Said`]) and does not hold up the others.
//!
//! Every path is opened below its root by openat2(2) with RESOLVE_BENEATH: a link that leaves the root is refused by the
//! kernel, whatever happens to the tree meanwhile. A file that changes while it is read is read again; one that will not hold
//! still is left out, unless it is served and would be lost: then the load is refused. One that vanishes is left out.

mod budget;
mod compress;
mod on_disk;
mod pass;

pub(crate) use budget::cache_bytes;
pub(crate) use compress::Memo;
pub(crate) use pass::{Served, with_touched, with_variants};

use crate::config::{HostSpec, Web};
use crate::error::reason;
use crate::print::Print;
use crate::sandbox;
use ::web::{Encoding, File, FileError, Identity, Site, SiteBuilder};
use budget::Budget;
use on_disk::OnDisk;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Lines of one kind that a load shows at most.
const LINES: usize = 20;
/// Readings of a file that changes meanwhile.
const ATTEMPTS: usize = 3;

/// A site that was read.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) site: Site,
    /// what it was read from, so that the next load can tell whether anything changed
    pub(crate) tree: Tree,
    /// what is not served, and why
    pub(crate) warnings: Vec<String>,
    pub(crate) touched: Touched,
}

/// Whether a reading of a file found it with another time of change and else as it was: somebody has changed its permissions or its
/// names, such as a backup that links to it. It may have been written all the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Touched(Arc<AtomicBool>);

impl Touched {
    fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether one was found since this was asked last.
    pub(crate) fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

/// Every file and directory of every host, in the order of the walk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tree(Vec<Found>);

impl Tree {
    /// Whether this older tree and a newer one are the same, and no change in between could be missed.
    fn still(&self, now: &Tree) -> bool {
        let same = |(a, b): (&Found, &Found)| {
            a.host == b.host
                && a.path == b.path
                && (a.directory == b.directory)
                && (a.directory || a.print.still(&b.print))
        };
        self.0.len() == now.0.len() && self.0.iter().zip(&now.0).all(same)
    }

    fn files(&self) -> impl Iterator<Item = &Found> {
        self.0.iter().filter(|found| !found.directory && !found.left_out)
    }

    /// Whether the version that this is the tree of serves the file. Where hosts are others by now, it is known by what it is, since their numbers
    /// belong to others.
    fn serves(&self, file: &Found, same_hosts: bool) -> bool {
        let is_it = |found: &Found| match same_hosts {
            true => found.host == file.host && found.path == file.path,
            false => (found.print.device, found.print.inode) == (file.print.device, file.print.inode),
        };
        self.files().any(is_it)
    }

    /// A host's files and their bytes.
    pub(crate) fn of_host(&self, host: usize) -> (usize, u64) {
        let files = self.files().filter(|found| found.host == host);
        files.fold((0, 0), |(files, bytes), found| (files + 1, bytes + found.print.bytes))
    }

    /// Bytes of memory that its files take as content.
    pub(crate) fn content_bytes(&self) -> u64 {
        self.files().map(|found| app::memory_bytes(found.print.bytes as usize)).sum()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Found {
    host: usize,
    /// as it is served: begins with a slash
    path: Vec<u8>,
    directory: bool,
    print: Print,
    /// a file that is there and is not served, since it could not be had
    left_out: bool,
}

/// A host's directory.
struct Root {
    fd: OwnedFd,
    shown: String,
    touched: Touched,
}

impl Root {
    fn open(spec: &HostSpec, touched: &Touched) -> Result<Root, String> {
        let path = spec.root.display().to_string();
        let shown = if spec.place == path { path } else { format!("{}: {path}", spec.place) };
        // the root itself may be a link: the operator named it
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::open(&spec.root, flags, Mode::empty()) {
            Ok(fd) => Ok(Root { fd, shown, touched: touched.clone() }),
            Err(Errno::NOTDIR) => Err(format!("{shown}: it is not a directory; name the one that is to be served")),
            Err(error) => {
                let why = sandbox::explain(&spec.root, &error.into());
                Err(format!("{shown}: cannot be read: {why}; check the path"))
            }
        }
    }

    /// Opens what is served at `path`, wherever links lead below the root and nowhere else.
    fn open_below(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        let relative = path.strip_prefix(b"/").filter(|path| !path.is_empty()).unwrap_or(b".");
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        for _ in 0..ATTEMPTS {
            // EAGAIN: something was renamed meanwhile, and the kernel cannot tell whether the root was left (openat2(2))
            match rustix::fs::openat2(&self.fd, relative, flags | OFlags::CLOEXEC, Mode::empty(), resolve) {
                Err(Errno::AGAIN) => {}
                outcome => return outcome,
            }
        }
        Err(Errno::AGAIN)
    }

    fn named(&self, path: &[u8]) -> String {
        format!("{}{}", self.shown.trim_end_matches('/'), String::from_utf8_lossy(path))
    }
}

fn why(error: Errno) -> String {
    reason(&io::Error::from(error))
}

/// Whether something is not for who the server is.
fn is_denied(error: Errno) -> bool {
    matches!(error, Errno::ACCESS | Errno::PERM)
}

/// Whether what was seen is no longer there to be served: it has gone, or its author has put something else in the place of it, or of a directory
/// on the way, such as a socket or a link that leaves the root.
fn has_gone(error: Errno) -> bool {
    matches!(error, Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::NXIO)
}

/// The lines that are shown of many.
#[derive(Default)]
struct Lines(Vec<String>, usize);

impl Lines {
    fn push(&mut self, line: String) {
        self.1 += 1;
        if self.0.len() < LINES {
            self.0.push(line);
        }
    }

    fn finish(mut self, more: &str) -> Vec<String> {
        if self.1 > self.0.len() {
            self.0.push(format!("and {} more {more}", self.1 - self.0.len()));
        }
        self.0
    }
}

/// Why a file cannot be had.
#[derive(Debug)]
enum Lack {
    Vanished,
    /// it is not for who the server is
    Denied(Errno),
    /// it does not hold still
    Changes,
    /// what is wrong with the machine, and not with the file
    Failed(String),
}

impl Lack {
    /// Of a file that cannot be opened.
    fn of(error: Errno) -> Lack {
        match error {
            error if has_gone(error) => Lack::Vanished,
            error if is_denied(error) => Lack::Denied(error),
            // names on the way move (openat2(2)), or somebody has a lease on it (fcntl(2)), which its author may take
            Errno::AGAIN => Lack::Changes,
            error => Lack::Failed(format!("cannot be read: {}; make it readable", why(error))),
        }
    }
}

/// What a load has to say.
struct Said<'a> {
    /// what is served and would be replaced
    before: Option<Before<'a>>,
    /// what is not served, and why
    warnings: Lines,
    /// what ends the load
    errors: Lines,
}

impl Said<'_> {
    /// Leaves a file out that cannot be had, or ends the load for it.
    fn leave_out(&mut self, root: &Root, found: &mut Found, lack: Lack) {
        let named = root.named(&found.path);
        let changes = "it changes while it is read";
        let mend = "move it into place when it is complete";
        // nothing is lost by either
        let is_served =
            matches!(lack, Lack::Changes) && self.before.is_some_and(|before| before.tree.serves(found, before.rules));
        found.left_out = true;
        match lack {
            Lack::Vanished => {}
            Lack::Denied(error) => self.warnings.push(not_read(&named, error)),
            Lack::Changes if is_served => self.errors.push(format!("{named}: {changes}; {mend}")),
            Lack::Changes => {
                // that reload is to look, even if it has rested by now
                found.print.fresh = true;
                self.warnings.push(format!("{named}: {changes}, not served until a reload; {mend}"));
            }
            Lack::Failed(why) => self.errors.push(format!("{named}: {why}")),
        }
    }

    /// The warnings, if nothing ends the load.
    fn finish(self) -> Result<Lines, Vec<String>> {
        let errors = self.errors.finish("that cannot be read");
        if errors.is_empty() { Ok(self.warnings) } else { Err(errors) }
    }
}

/// Landlock has no part in it: who could open the root may read all that is below it.
fn not_read(named: &str, error: Errno) -> String {
    format!("{named}: cannot be read: {}, not served", why(error))
}

/// One load under way.
struct Load<'a> {
    roots: Vec<Arc<Root>>,
    builder: &'a SiteBuilder,
    tree: Tree,
    warnings: Lines,
    errors: Lines,
}

impl Load<'_> {
    /// Looks at everything below a host's root. `within`: the directories above, so that links do not lead round in circles.
    fn walk(&mut self, host: usize, path: &[u8], within: &mut Vec<(u64, u64)>) {
        let mut below = Vec::new();
        match self.directory(host, path, within) {
            Ok(Some(found)) => below.extend(found),
            Ok(None) => return,
            // gone since it was seen; the root was opened before
            Err(error) if has_gone(error) && path != b"/" => {
                // the last one that was found
                self.tree.0.pop();
                return;
            }
            // lost+found, and what an author keeps to himself
            Err(error) if is_denied(error) && path != b"/" => {
                self.warnings.push(not_read(&self.roots[host].named(path), error));
                // the last one that was found
                self.tree.0.pop();
                return;
            }
            Err(error) => {
                let line =
                    format!("{}: cannot be read: {}; make it readable", self.roots[host].named(path), why(error));
                return self.errors.push(line);
            }
        }
        for found in below {
            let path = found.directory.then(|| found.path.clone());
            self.tree.0.push(found);
            if let Some(path) = path {
                self.walk(host, &path, within);
            }
        }
        within.pop();
    }

    /// What stands in one directory, in the order of names; None when it is one of those above it.
    fn directory(
        &mut self,
        host: usize,
        path: &[u8],
        within: &mut Vec<(u64, u64)>,
    ) -> Result<Option<Vec<Found>>, Errno> {
        let fd = self.roots[host].open_below(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let stat = rustix::fs::fstat(&fd)?;
        if within.contains(&(stat.st_dev, stat.st_ino)) {
            let line = format!("{}: a link back to a directory above it, not served", self.roots[host].named(path));
            self.warnings.push(line);
            return Ok(None);
        }
        let mut names = Vec::new();
        for entry in Dir::read_from(&fd)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push((name.to_vec(), entry.file_type()));
            }
        }
        within.push((stat.st_dev, stat.st_ino));
        names.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        let prefix = path.strip_suffix(b"/").unwrap_or(path);
        let looked = names.into_iter().filter_map(|(name, kind)| {
            let path = [prefix, b"/", &name].concat();
            match self.builder.check_path(host, &path) {
                Ok(()) => self.look(host, path, &name, kind, &fd),
                // by default, and not worth a line each
                Err(FileError::Hidden) => None,
                Err(why) => {
                    self.warnings.push(format!("{}: not served: {why}", self.roots[host].named(&path)));
                    None
                }
            }
        });
        Ok(Some(looked.collect()))
    }

    fn look(&mut self, host: usize, path: Vec<u8>, name: &[u8], kind: FileType, within: &OwnedFd) -> Option<Found> {
        let root = &self.roots[host];
        let stat: Result<Stat, Errno> = match kind {
            FileType::Symlink | FileType::Unknown => {
                root.open_below(&path, OFlags::PATH).and_then(|fd| rustix::fs::fstat(&fd))
            }
            _ => rustix::fs::statat(within.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW),
        };
        let not_served = |why: &str| format!("{}: {why}, not served", root.named(&path));
        let found = |path, directory, stat: &Stat| {
            Some(Found { host, path, directory, print: Print::of_stat(stat), left_out: false })
        };
        let line = match stat {
            Ok(stat) => match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => return found(path, false, &stat),
                FileType::Directory => return found(path, true, &stat),
                // it was a file when the name was read
                FileType::Symlink => return None,
                _ => not_served("neither a file nor a directory"),
            },
            Err(Errno::XDEV) => not_served("a link that leaves the root"),
            Err(Errno::NOENT) if kind == FileType::Symlink => not_served("a link that leads nowhere"),
            Err(Errno::NOENT) => return None,
            Err(Errno::LOOP) => not_served("a link that leads in circles"),
            Err(error) => not_served(&why(error)),
        };
        self.warnings.push(line);
        None
    }
}

/// What ends one reading.
enum Wrong {
    Changed,
    /// in its time of change alone
    Touched,
    Io(io::Error),
}

/// Reads a file into its place; gives what it was then.
///
/// # Errors
/// Why it cannot be had.
fn read(root: &Root, found: &Found, builder: &mut SiteBuilder) -> Result<Print, Lack> {
    let failed = |why: String| Lack::Failed(format!("cannot be read: {why}; make it readable"));
    for _ in 0..ATTEMPTS {
        // neither a FIFO nor a device that took the file's place may hold up the load
        let fd = match root.open_below(&found.path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY) {
            Ok(fd) => fd,
            Err(error) => return Err(Lack::of(error)),
        };
        let stat = match rustix::fs::fstat(&fd) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => stat,
            _ => return Err(Lack::Vanished),
        };
        let before = Print::of_stat(&stat);
        let mut file = std::fs::File::from(fd);
        let fill = |memory: &mut [u8]| {
            file.read_exact(memory).map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => Wrong::Changed,
                _ => Wrong::Io(error),
            })?;
            let after = Print::of(&file).map_err(Wrong::Io)?;
            // longer now, or written to
            if after.same(&before) { Ok(()) } else { Err(Wrong::Changed) }
        };
        match builder.add_with(found.host, &described(found, &before), before.bytes as usize, fill) {
            Ok(Ok(())) => return Ok(before),
            Ok(Err(Wrong::Changed | Wrong::Touched)) => {}
            Ok(Err(Wrong::Io(error))) => return Err(failed(reason(&error))),
            // the walk asked for every path
            Err(error) => return Err(Lack::Failed(error.to_string())),
        }
    }
    Err(Lack::Changes)
}

/// Gives the builder all that was found, from the version before or from the disk.
fn fill(roots: &[Arc<Root>], tree: &mut Tree, budget: &Budget, builder: &mut SiteBuilder, said: &mut Said<'_>) {
    for (number, found) in tree.0.iter_mut().enumerate() {
        let root = &roots[found.host];
        if found.directory {
            // the walk asked for every path
            let _ = builder.add_directory(found.host, &found.path);
            continue;
        }
        // it was looked at (on_disk::settle)
        if found.left_out {
            continue;
        }
        if budget.is_over(number) {
            // the walk asked for every path
            let _ = builder.add_source(found.host, &described(found, &found.print), OnDisk::source(root, found));
            continue;
        }
        if !found.print.fresh && builder.add_held(found.host, &described(found, &found.print)) == Ok(true) {
            continue;
        }
        match read(root, found, builder) {
            Ok(print) => found.print = print,
            Err(lack) => said.leave_out(root, found, lack),
        }
    }
}

fn described<'a>(found: &'a Found, print: &Print) -> File<'a> {
    let identity = Identity {
        device: print.device,
        inode: print.inode,
        bytes: print.bytes,
        // what could change again without a new time must not be taken for the same
        modified_ns: if print.fresh { -print.changed_ns } else { print.changed_ns },
    };
    File {
        path: &found.path,
        modified_unix_s: u64::try_from(print.modified_ns / 1_000_000_000).unwrap_or(0),
        identity,
        encoding: Encoding::Identity,
    }
}

fn open_roots(web: &Web, touched: &Touched) -> Result<Vec<Arc<Root>>, Vec<String>> {
    let mut roots = Vec::new();
    let mut errors = Vec::new();
    for spec in &web.hosts {
        match Root::open(spec, touched) {
            Ok(root) => roots.push(Arc::new(root)),
            Err(line) => errors.push(line),
        }
    }
    if errors.is_empty() { Ok(roots) } else { Err(errors) }
}

/// All roots, what is below them, and what is not served.
type Walked = (Vec<Arc<Root>>, Tree, Lines);

/// Walks all roots; gives the tree and what is not served.
fn walk(web: &Web, touched: &Touched, builder: &SiteBuilder) -> Result<Walked, Vec<String>> {
    let roots = open_roots(web, touched)?;
    let (warnings, errors) = (Lines::default(), Lines::default());
    let mut load = Load { roots, builder, tree: Tree::default(), warnings, errors };
    for host in 0..load.roots.len() {
        load.walk(host, b"/", &mut Vec::new());
    }
    let errors = load.errors.finish("that cannot be read");
    if errors.is_empty() { Ok((load.roots, load.tree, load.warnings)) } else { Err(errors) }
}

/// Which compressed variants a load has, if the settings want any. None does wait for one to be made ([`with_variants`]).
pub(crate) enum Variants<'a> {
    /// none: at a start, and for a check, there are none
    Later,
    /// those that there are
    Kept(&'a Memo),
}

/// A builder of what follows this version.
fn new_builder(web: &Web, before: Option<Arc<Site>>) -> Result<SiteBuilder, Vec<String>> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    // std's hash keys come from the machine's entropy, and so does what they make of nothing
    let seed = RandomState::new().build_hasher().finish();
    let built = SiteBuilder::new(site_config(web), seed, now, before);
    built.map_err(|error| vec![format!("{}: {error}", web.hosts[0].place)])
}

/// The version that a load replaces.
#[derive(Clone, Copy)]
pub(crate) struct Before<'a> {
    pub(crate) site: &'a Arc<Site>,
    pub(crate) tree: &'a Tree,
    /// whether its rules are those of now: the hosts and what is said of them
    pub(crate) rules: bool,
}

/// Reads all hosts. `before` is the version that is replaced: what did not change is shared with it, and None is the outcome
/// when nothing changed at all.
///
/// # Errors
/// Everything wrong with any of them, a line each.
pub(crate) fn load(
    web: &Web,
    before: Option<Before<'_>>,
    variants: Variants<'_>,
) -> Result<Option<Loaded>, Vec<String>> {
    let mut builder = new_builder(web, before.map(|before| before.site.clone()))?;
    let touched = Touched::default();
    let (roots, mut tree, warnings) = walk(web, &touched, &builder)?;
    if before.is_some_and(|before| before.rules && before.tree.still(&tree)) {
        return Ok(None);
    }
    let budget = Budget::of(web, &tree)?;
    let mut said = Said { before, warnings, errors: Lines::default() };
    on_disk::settle(&roots, &mut tree, &budget, &mut said);
    if said.errors.0.is_empty() {
        fill(&roots, &mut tree, &budget, &mut builder, &mut said);
    }
    let warnings = said.finish()?.finish("that are not served");
    if let (true, Variants::Kept(memo)) = (web.compress, variants) {
        compress::keep(&mut builder, memo, budget.left_bytes);
    }
    let site = builder.finish().map_err(|error| vec![format!("{}: {error}", web.hosts[0].place)])?;
    let mut shown = Lines::default();
    site.notes().iter().for_each(|note| shown.push(format!("{}: {note}", roots[0].shown)));
    let warnings = warnings.into_iter().chain(shown.finish("notes")).collect();
    Ok(Some(Loaded { site, tree, warnings, touched }))
}

/// What was read for a version and cannot be any more, a line each: at a start it was read with privileges that are gone by now.
pub(crate) fn denied_by_now(web: &Web, tree: &Tree) -> Vec<String> {
    // a root that is denied itself is said elsewhere
    let roots: Vec<Option<Root>> = web.hosts.iter().map(|spec| Root::open(spec, &Touched::default()).ok()).collect();
    let mut lines = Lines::default();
    let mut above: Option<&Found> = None;
    for found in tree.0.iter().filter(|found| !found.left_out) {
        let Some(root) = &roots[found.host] else { continue };
        // said with its directory
        let is_below = |of: &Found| {
            of.host == found.host && found.path.strip_prefix(&*of.path).is_some_and(|rest| rest.starts_with(b"/"))
        };
        if above.is_some_and(is_below) {
            continue;
        }
        let outcome = root.open_below(&found.path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY);
        let Some(error) = outcome.err().filter(|error| is_denied(*error)) else { continue };
        let (named, why) = (root.named(&found.path), why(error));
        lines.push(format!(
            "{named}: cannot be read any more now that privileges are dropped ({why}): a reload that has to read it leaves it out"
        ));
        if found.directory {
            above = Some(found);
        }
    }
    lines.finish("that cannot be read any more")
}

/// `1.5 MiB`.
pub(crate) fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..0x10_0000 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        0x10_0000..0x4000_0000 => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
        _ => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

/// `12 pages, 3.4 MiB`, or `12 pages, 3.4 MiB held, 2 of 7.9 GiB read while they are sent`.
pub(crate) fn describe(site: &Site) -> String {
    let pages = site.pages();
    let held = format!("{pages} page{}, {}", if pages == 1 { "" } else { "s" }, size(site.memory_bytes()));
    match site.read_when_sent() {
        (0, _) => held,
        (files, bytes) => format!("{held} held, {files} of {} read while they are sent", size(bytes)),
    }
}

/// The configuration in the service's words.
fn site_config(web: &Web) -> ::web::Config {
    ::web::Config { server: web.server.clone(), hosts: web.hosts.iter().map(host).collect() }
}

fn host(spec: &HostSpec) -> ::web::Host {
    let entry = &spec.entry;
    let default = ::web::Host::default();
    ::web::Host {
        names: entry.names.clone(),
        index: entry.index.clone().unwrap_or(default.index),
        listing: entry.listing,
        charset: match entry.charset.as_deref() {
            None => default.charset,
            Some("") => None,
            Some(charset) => Some(charset.to_owned()),
        },
        types: entry.types.iter().map(|(extension, of)| (extension.clone(), of.clone())).collect(),
        cache: entry.cache.iter().map(|rule| (rule.path.clone(), rule.value.clone())).collect(),
        headers: entry.header.iter().map(|rule| (rule.path.clone(), rule.name.clone(), rule.value.clone())).collect(),
        redirects: entry
            .redirect
            .iter()
            .map(|rule| ::web::Redirect { from: rule.from.clone(), to: rule.to.clone(), status: rule.status })
            .collect(),
        error_pages: entry.error_page.iter().map(|page| (page.status, page.path.clone())).collect(),
        precompressed: entry.precompressed.unwrap_or(default.precompressed),
        dotfiles: entry.dotfiles.clone().unwrap_or(default.dotfiles),
    }
}

#[cfg(test)]
mod tests;
