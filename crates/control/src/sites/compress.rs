//! Variants made at load (`--compress`): gzip, Zstandard and Brotli of every held file whose type compresses.
//!
//! A site is served first with those that there are, none after the start, so that neither a start nor a reload waits for one; the thread that
//! reloads makes the others then, until the next reload is wanted. One that saves nothing is not kept and not tried again while its file stays the same. Levels are fixed and nothing
//! else enters, so the same files give the same variants, and the same entity tags, everywhere.

use ::web::{Compressible, Encoding, Identity, SiteBuilder};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A file that is shorter fits into a segment or two anyway.
const LEAST_BYTES: usize = 256;
/// A variant must save so much: its own field lines take some of it.
const SAVES_BYTES: usize = 64;
/// Bytes of files that are compressed between two looks at the memory left: seconds, but for a file that is larger itself.
const BATCH_BYTES: usize = if cfg!(test) { 1 << 20 } else { 32 << 20 };
/// Bytes that are compressed between two looks at who waits for the thread: a fraction of a second.
const PIECE_BYTES: usize = 1 << 20;
/// How often that is looked at while other threads compress what is left.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Near the best ratio at a tenth of the time that the highest levels take.
const GZIP_LEVEL: u32 = 9;
const ZSTD_LEVEL: i32 = 15;
const BROTLI_QUALITY: i32 = 9;
/// 4 MiB; decoders of browsers bear no more than 8 (RFC 9659), and 16 of Brotli (RFC 7932).
const WINDOW_LOG: u32 = 22;

/// A variant, by what it is made of.
type Key = (Identity, Encoding);

/// What was found out before.
#[derive(Debug, Default)]
pub(crate) struct Memo {
    /// variants that save nothing
    useless: BTreeSet<Key>,
    /// variants that were made before a pass was broken off, within the memory that its version left. A version of their own would have to be
    /// drained before the reload that is waited for.
    made: BTreeMap<Key, Vec<u8>>,
}

impl Memo {
    /// The version that is served has the variants by now.
    pub(crate) fn on_published(&mut self) {
        self.made.clear();
    }
}

/// A variant that there is memory for.
struct Accepted {
    file: usize,
    key: Key,
    bytes: Vec<u8>,
    from_bytes: usize,
}

/// What became of it.
#[derive(Debug, Default)]
pub(super) struct Made {
    variants: usize,
    from_bytes: u64,
    to_bytes: u64,
    /// for want of memory
    left_out: usize,
}

impl Made {
    fn count(&mut self, one: &Accepted) {
        self.variants += 1;
        self.from_bytes += one.from_bytes as u64;
        self.to_bytes += one.bytes.len() as u64;
    }

    pub(super) fn is_nothing(&self) -> bool {
        self.variants == 0
    }

    /// For the log; None when there was nothing to do.
    pub(super) fn described(&self) -> Option<String> {
        let Made { variants, from_bytes, to_bytes, left_out } = self;
        let (from, to) = (super::size(*from_bytes), super::size(*to_bytes));
        let made = (*variants > 0).then(|| format!("made {variants} compressed variants, {to} of {from}"));
        let out = (*left_out > 0)
            .then(|| format!("{left_out} compressed variants are left out: no memory is left; give more --memory"));
        match (made, out) {
            (Some(made), Some(out)) => Some(format!("{made}; {out}")),
            (made, out) => made.or(out),
        }
    }
}

/// Adds the variants that there are, as far as `left_bytes` of memory go. The memo keeps what it has until a version with it is published.
pub(super) fn keep(builder: &mut SiteBuilder, memo: &Memo, mut left_bytes: u64) {
    keep_held(builder, &mut left_bytes);
    let resumed = resume(builder, &memo.made, &mut left_bytes);
    put(builder, resumed);
}

/// Adds all variants, as far as `left_bytes` of memory go. None when `keep_on`, which is asked before each batch and while one is compressed, does
/// not want more; what was made then waits in the memo.
pub(super) fn add(
    builder: &mut SiteBuilder,
    memo: &mut Memo,
    mut left_bytes: u64,
    keep_on: &mut dyn FnMut() -> bool,
) -> Option<Made> {
    let without = keep_held(builder, &mut left_bytes);
    let mut accepted = resume(builder, &std::mem::take(&mut memo.made), &mut left_bytes);
    let mut made = Made { left_out: without.len(), ..Made::default() };
    accepted.iter().for_each(|one| made.count(one));
    let settled: BTreeSet<(usize, Encoding)> =
        accepted.iter().map(|one| (one.file, one.key.1)).chain(without).collect();
    let all: Vec<Compressible<'_>> =
        builder.compressible().into_iter().filter(|one| one.bytes.len() >= LEAST_BYTES).collect();
    // of files that are gone there is nothing to remember
    let known: BTreeSet<Key> = all.iter().map(|one| (one.identity, one.encoding)).collect();
    memo.useless.retain(|one| known.contains(one));
    let is_wanted = |one: &&Compressible<'_>| {
        !memo.useless.contains(&(one.identity, one.encoding)) && !settled.contains(&(one.file, one.encoding))
    };
    let wanted: Vec<_> = all.iter().filter(is_wanted).collect();
    let mut rest = &wanted[..];
    while !rest.is_empty() {
        let (batch, behind) = rest.split_at(batch(rest));
        let mut is_broken_off = !keep_on();
        let outcomes = if is_broken_off { Vec::new() } else { compress_all(batch, keep_on, &mut is_broken_off) };
        for (one, outcome) in batch.iter().zip(outcomes) {
            let key = (one.identity, one.encoding);
            let bytes = match outcome {
                Outcome::Made(variant) if variant.len() + SAVES_BYTES <= one.bytes.len() => variant,
                Outcome::Made(_) | Outcome::Failed => {
                    memo.useless.insert(key);
                    continue;
                }
                Outcome::BrokenOff => continue,
            };
            let Some(left) = left_bytes.checked_sub(app::memory_bytes(bytes.len())) else {
                made.left_out += 1;
                continue;
            };
            left_bytes = left;
            let one = Accepted { file: one.file, key, bytes, from_bytes: one.bytes.len() };
            made.count(&one);
            accepted.push(one);
        }
        if is_broken_off {
            let lasting = accepted.into_iter().filter(|one| !one.key.0.is_young());
            memo.made.extend(lasting.map(|one| (one.key, one.bytes)));
            return None;
        }
        rest = behind;
    }
    drop(wanted);
    drop(all);
    put(builder, accepted);
    Some(made)
}

/// The variants that were made before a pass was broken off, of files that are still the same.
fn resume(builder: &SiteBuilder, there: &BTreeMap<Key, Vec<u8>>, left_bytes: &mut u64) -> Vec<Accepted> {
    if there.is_empty() {
        return Vec::new();
    }
    let mut accepted = Vec::new();
    for one in builder.compressible() {
        let key = (one.identity, one.encoding);
        // a file may be served at several paths
        let Some(bytes) = there.get(&key) else { continue };
        let Some(left) = left_bytes.checked_sub(app::memory_bytes(bytes.len())) else { continue };
        *left_bytes = left;
        accepted.push(Accepted { file: one.file, key, bytes: bytes.clone(), from_bytes: one.bytes.len() });
    }
    accepted
}

fn put(builder: &mut SiteBuilder, accepted: Vec<Accepted>) {
    for Accepted { file, key: (_, encoding), bytes, .. } in accepted {
        builder.add_variant(file, encoding, &bytes);
    }
}

/// Adds the variants that the version before has, as far as `left_bytes` go. They may share its memory, but this version has them too and
/// outlives it. Gives those for which there is no room any more.
fn keep_held(builder: &mut SiteBuilder, left_bytes: &mut u64) -> BTreeSet<(usize, Encoding)> {
    let asked: Vec<(usize, Encoding)> = builder.compressible().iter().map(|one| (one.file, one.encoding)).collect();
    let mut without = BTreeSet::new();
    for (file, encoding) in asked {
        let Some(bytes) = builder.held_variant_bytes(file, encoding) else { continue };
        match left_bytes.checked_sub(app::memory_bytes(bytes as usize)) {
            Some(left) if builder.add_held_variant(file, encoding) => *left_bytes = left,
            Some(_) => {}
            None => {
                without.insert((file, encoding));
            }
        }
    }
    without
}

/// How many of these make a batch: one at least.
fn batch(rest: &[&Compressible<'_>]) -> usize {
    let mut bytes = 0;
    let taken = rest.iter().take_while(|one| {
        let first = bytes == 0;
        bytes += one.bytes.len();
        first || bytes <= BATCH_BYTES
    });
    taken.count()
}

/// What became of a file.
#[derive(Clone)]
enum Outcome {
    Made(Vec<u8>),
    Failed,
    BrokenOff,
}

/// Compresses all of them on as many threads as there are processors, until `keep_on` does not want more.
fn compress_all(
    batch: &[&Compressible<'_>],
    keep_on: &mut dyn FnMut() -> bool,
    is_broken_off: &mut bool,
) -> Vec<Outcome> {
    let outcomes = Mutex::new(vec![Outcome::BrokenOff; batch.len()]);
    let (next, goes_on) = (AtomicUsize::new(0), AtomicBool::new(true));
    let work = |keep_on: &mut dyn FnMut() -> bool| {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(one) = batch.get(at) else { return };
            // of the first it was asked for the batch
            if at > 0 && !keep_on() {
                return;
            }
            let outcome = compress(one.encoding, one.bytes, keep_on);
            outcomes.lock().unwrap_or_else(PoisonError::into_inner)[at] = outcome;
        }
    };
    let others_keep_on = || goes_on.load(Ordering::Relaxed);
    // only this thread may ask, and it tells the others
    let mut asked = || {
        if others_keep_on() && !keep_on() {
            goes_on.store(false, Ordering::Relaxed);
        }
        others_keep_on()
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(batch.len());
    std::thread::scope(|scope| {
        // they have this thread's low priority; one that cannot be started is done without
        let start = |_| {
            let other = || work(&mut || others_keep_on());
            std::thread::Builder::new().name("compress".into()).spawn_scoped(scope, other).ok()
        };
        let others: Vec<_> = (1..threads).filter_map(start).collect();
        work(&mut asked);
        while others.iter().any(|other| !other.is_finished()) && asked() {
            std::thread::sleep(LOOK_EVERY);
        }
    });
    *is_broken_off = !goes_on.into_inner();
    outcomes.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// `keep_on` is asked between pieces.
fn compress(encoding: Encoding, bytes: &[u8], keep_on: &mut dyn FnMut() -> bool) -> Outcome {
    let mut pieces = Pieces { rest: bytes, asked_at: bytes.len(), keep_on, is_broken_off: false };
    match compress_pieces(encoding, bytes.len(), &mut pieces) {
        Ok(variant) => Outcome::Made(variant),
        Err(_) if pieces.is_broken_off => Outcome::BrokenOff,
        Err(_) => Outcome::Failed,
    }
}

fn compress_pieces(encoding: Encoding, len_bytes: usize, pieces: &mut Pieces<'_>) -> io::Result<Vec<u8>> {
    match encoding {
        Encoding::Identity => {
            let mut out = Vec::with_capacity(len_bytes);
            io::copy(pieces, &mut out)?;
            Ok(out)
        }
        Encoding::Gzip => {
            // without name and time, so that nothing but the bytes enters
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(GZIP_LEVEL));
            io::copy(pieces, &mut encoder)?;
            encoder.finish()
        }
        Encoding::Zstd => {
            let mut encoder = zstd::Encoder::new(Vec::new(), ZSTD_LEVEL)?;
            encoder.window_log(WINDOW_LOG)?;
            encoder.set_pledged_src_size(Some(len_bytes as u64))?;
            io::copy(pieces, &mut encoder)?;
            encoder.finish()
        }
        Encoding::Brotli => {
            let mut out = Vec::new();
            let mut params = brotli::enc::BrotliEncoderParams::default();
            (params.quality, params.lgwin, params.size_hint) = (BROTLI_QUALITY, WINDOW_LOG as i32, len_bytes);
            brotli::BrotliCompress(pieces, &mut out, &params)?;
            Ok(out)
        }
    }
}

/// A file's bytes, which end in an error when no more is wanted.
struct Pieces<'a> {
    rest: &'a [u8],
    /// how much was left when it was asked last
    asked_at: usize,
    keep_on: &'a mut dyn FnMut() -> bool,
    is_broken_off: bool,
}

impl Read for Pieces<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.asked_at - self.rest.len() >= PIECE_BYTES && !self.is_broken_off {
            self.asked_at = self.rest.len();
            self.is_broken_off = !(self.keep_on)();
        }
        if self.is_broken_off {
            return Err(io::Error::other("broken off"));
        }
        let most = into.len().min(PIECE_BYTES);
        self.rest.read(&mut into[..most])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::web::{Config, File};
    use std::sync::Arc;

    /// All of them at once.
    fn add(builder: &mut SiteBuilder, memo: &mut Memo, left_bytes: u64) -> Made {
        super::add(builder, memo, left_bytes, &mut || true).expect("a pass to its end")
    }

    fn text(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|n| b"the quick brown fox jumps over the lazy dog, again and again "[n * n % 61]).collect()
    }

    fn compress(encoding: Encoding, bytes: &[u8]) -> io::Result<Vec<u8>> {
        match super::compress(encoding, bytes, &mut || true) {
            Outcome::Made(variant) => Ok(variant),
            Outcome::Failed | Outcome::BrokenOff => Err(io::Error::other("no variant")),
        }
    }

    fn undo(encoding: Encoding, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        match encoding {
            Encoding::Identity => out.extend_from_slice(bytes),
            Encoding::Gzip => {
                flate2::read::GzDecoder::new(bytes).read_to_end(&mut out).unwrap();
            }
            Encoding::Zstd => zstd::stream::copy_decode(bytes, &mut out).unwrap(),
            Encoding::Brotli => brotli::BrotliDecompress(&mut &*bytes, &mut out).unwrap(),
        }
        out
    }

    #[test]
    fn every_coding_comes_back_and_is_the_same_each_time() {
        for bytes in [0, 1, 300, 100_000, 5 << 20] {
            let text = text(bytes);
            for encoding in Encoding::ALL {
                let compressed = compress(encoding, &text).unwrap();
                assert!(undo(encoding, &compressed) == text, "{encoding:?} of {bytes}");
                assert_eq!(compress(encoding, &text).unwrap(), compressed, "{encoding:?} of {bytes}");
                assert!(encoding == Encoding::Identity || bytes < 1000 || compressed.len() < bytes / 2);
            }
        }
    }

    fn builder(files: &[(&str, &[u8])]) -> SiteBuilder {
        builder_after(files, None)
    }

    fn builder_after(files: &[(&str, &[u8])], before: Option<Arc<::web::Site>>) -> SiteBuilder {
        let mut builder = SiteBuilder::new(Config::default(), 1, 1 << 30, before).unwrap();
        for (inode, (path, bytes)) in files.iter().enumerate() {
            let identity = Identity { inode: inode as u64, bytes: bytes.len() as u64, ..Identity::default() };
            let file = File { path: path.as_bytes(), modified_unix_s: 7, identity, encoding: Encoding::Identity };
            builder.add(0, &file, bytes).unwrap();
        }
        builder
    }

    #[test]
    fn only_what_compresses_and_saves_has_variants() {
        let mut state = 1u64;
        let mut byte = || {
            // Knuth's MMIX generator: its high bits do not compress
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        let (long, noise) = (text(20_000), (0..20_000).map(|_| byte()).collect::<Vec<u8>>());
        let files: [(&str, &[u8]); 7] = [
            ("/a.html", &long),
            ("/b.png", &long),
            ("/c.txt", &noise),
            ("/d.txt", b"short"),
            ("/e.js", &long),
            ("/e.js.br", b"made by somebody else"),
            ("/f.css.gz", &long),
        ];
        let mut memo = Memo::default();
        let mut first = builder(&files);
        let made = add(&mut first, &mut memo, 1 << 30);
        // three of a.html, two of e.js beside the one that is there
        assert_eq!((made.variants, made.left_out, memo.useless.len()), (5, 0, 3), "{made:?}");
        assert_eq!(made.from_bytes, 5 * 20_000);
        // what saves nothing is remembered as long as its file is there
        let mut again = builder(&files);
        assert_eq!(add(&mut again, &mut memo, 1 << 30).variants, 5);
        assert_eq!(memo.useless.len(), 3);
        add(&mut builder(&files[..2]), &mut memo, 1 << 30);
        assert!(memo.useless.is_empty());
    }

    #[test]
    fn memory_that_is_used_up_leaves_the_rest_out() {
        let long = text(50_000);
        let files: Vec<(String, &[u8])> = (0..20).map(|n| (format!("/{n:02}.txt"), &*long)).collect();
        let files: Vec<(&str, &[u8])> = files.iter().map(|(path, bytes)| (&**path, *bytes)).collect();
        let whole = add(&mut builder(&files), &mut Memo::default(), 1 << 30);
        assert_eq!((whole.variants, whole.described().unwrap().contains("left out")), (60, false));
        let most = whole.to_bytes / 2;
        let half = add(&mut builder(&files), &mut Memo::default(), most);
        assert!(half.to_bytes <= most && half.variants > 10 && half.variants + half.left_out == 60, "{half:?}");
        assert!(half.described().unwrap().ends_with("give more --memory"));
    }

    #[test]
    fn what_a_pass_made_before_it_was_broken_off_is_not_made_again() {
        // a batch each
        let long = text(BATCH_BYTES / 2 + 1);
        let files: [(&str, &[u8]); 2] = [("/a.txt", &long), ("/b.png", &long)];
        let mut memo = Memo::default();
        let mut batches = 0;
        let mut two = || {
            batches += 1;
            batches <= 2
        };
        assert!(super::add(&mut builder(&files), &mut memo, 1 << 30, &mut two).is_none());
        assert_eq!(memo.made.len(), 2);
        // a pass that may not even begin loses nothing
        assert!(super::add(&mut builder(&files), &mut memo, 1 << 30, &mut || false).is_none());
        assert_eq!(memo.made.len(), 2);
        let mut batches = 0;
        let mut counted = || {
            batches += 1;
            true
        };
        let made = super::add(&mut builder(&files), &mut memo, 1 << 30, &mut counted).unwrap();
        assert_eq!((made.variants, batches, memo.made.len()), (3, 1, 0), "{made:?}");
        // a reload takes what there is, and makes nothing
        let mut batches = 0;
        let mut one = || {
            batches += 1;
            batches <= 1
        };
        assert!(super::add(&mut builder(&files), &mut memo, 1 << 30, &mut one).is_none());
        // until one is published: whichever fails leaves them to the next
        for _ in 0..2 {
            let mut reloaded = builder(&files);
            keep(&mut reloaded, &memo, 1 << 30);
            assert_eq!((reloaded.compressible().len(), memo.made.len()), (2, 1));
        }
        memo.on_published();
        let mut reloaded = builder(&files);
        keep(&mut reloaded, &memo, 1 << 30);
        assert_eq!(reloaded.compressible().len(), 3);
    }

    #[test]
    fn one_large_file_is_broken_off_between_its_pieces() {
        let long = text(8 * PIECE_BYTES);
        for encoding in Encoding::ALL {
            let mut asked = 0;
            let mut twice = || {
                asked += 1;
                asked <= 2
            };
            assert!(matches!(super::compress(encoding, &long, &mut twice), Outcome::BrokenOff), "{encoding:?}");
            assert_eq!(asked, 3, "{encoding:?}");
        }
        // and is no file that saves nothing
        let mut memo = Memo::default();
        let mut asked = 0;
        let mut thrice = || {
            asked += 1;
            asked <= 3
        };
        assert!(super::add(&mut builder(&[("/a.txt", &long)]), &mut memo, 1 << 30, &mut thrice).is_none());
        assert_eq!((asked, memo.useless.len(), memo.made.len()), (4, 0, 0));
    }

    /// The thread that asks may have nothing to compress itself any more.
    #[test]
    fn the_other_threads_are_told_when_no_more_is_wanted() {
        let (short, long) = (text(LEAST_BYTES), text(32 * PIECE_BYTES));
        let builder = builder(&[("/a.txt", &short), ("/b.txt", &long)]);
        let all = builder.compressible();
        let of = |bytes: usize| all.iter().find(|one| one.bytes.len() == bytes && one.encoding == Encoding::Brotli);
        let batch = [of(short.len()).unwrap(), of(long.len()).unwrap()];
        let mut asked = 0;
        let mut thrice = || {
            asked += 1;
            asked <= 3
        };
        let mut is_broken_off = false;
        let outcomes = compress_all(&batch, &mut thrice, &mut is_broken_off);
        assert!(is_broken_off && matches!(outcomes[..], [Outcome::Made(_), Outcome::BrokenOff]));
    }

    #[test]
    fn variants_that_are_kept_take_memory_in_each_version() {
        let long = text(50_000);
        let files: Vec<(String, &[u8])> = (0..20).map(|n| (format!("/{n:02}.txt"), &*long)).collect();
        let files: Vec<(&str, &[u8])> = files.iter().map(|(path, bytes)| (&**path, *bytes)).collect();
        // what the variants of a version take, by what the next one could keep
        let taken = |site: &Arc<::web::Site>| -> u64 {
            let next = builder_after(&files, Some(site.clone()));
            let held = next.compressible();
            let held = held.iter().filter_map(|one| next.held_variant_bytes(one.file, one.encoding));
            held.map(|bytes| app::memory_bytes(bytes as usize)).sum()
        };
        let most = add(&mut builder(&files), &mut Memo::default(), 1 << 30).to_bytes / 2;
        let (mut memo, mut before) = (Memo::default(), None);
        for left_bytes in [most, most, most, most / 2] {
            let mut next = builder_after(&files, before.take());
            let made = add(&mut next, &mut memo, left_bytes);
            let site = Arc::new(next.finish().unwrap());
            assert!(made.left_out > 10 && (1..=left_bytes).contains(&taken(&site)), "{made:?}: {}", taken(&site));
            before = Some(site);
        }
    }
}
