//! Variants made at load (`--compress`): gzip, Zstandard and Brotli of every held file whose type compresses.
//!
//! The first site is served without them, so that a start waits for nothing; the thread that reloads makes them then, and again of
//! what changed. One that saves nothing is not kept and not tried again while its file stays the same. Levels are fixed and nothing
//! else enters, so the same files give the same variants, and the same entity tags, everywhere.

use ::web::{Compressible, Encoding, Identity, SiteBuilder};
use std::collections::BTreeSet;
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// A file that is shorter fits into a segment or two anyway.
const LEAST_BYTES: usize = 256;
/// A variant must save so much: its own field lines take some of it.
const SAVES_BYTES: usize = 64;
/// Bytes of files that are compressed between two looks at the memory left.
const BATCH_BYTES: usize = 32 << 20;
/// Near the best ratio at a tenth of the time that the highest levels take.
const GZIP_LEVEL: u32 = 9;
const ZSTD_LEVEL: i32 = 15;
const BROTLI_QUALITY: i32 = 9;
/// 4 MiB; decoders of browsers bear no more than 8 (RFC 9659), and 16 of Brotli (RFC 7932).
const WINDOW_LOG: u32 = 22;

/// What was found out before.
#[derive(Debug, Default)]
pub(crate) struct Memo {
    /// variants that save nothing
    useless: BTreeSet<(Identity, Encoding)>,
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

/// Adds variants, as far as `left_bytes` of memory go.
pub(super) fn add(builder: &mut SiteBuilder, memo: &mut Memo, mut left_bytes: u64) -> Made {
    let asked: Vec<(usize, Encoding)> = builder.compressible().iter().map(|one| (one.file, one.encoding)).collect();
    for (file, encoding) in asked {
        // those of the version before, which share its memory or stand within what was divided for them then
        builder.add_held_variant(file, encoding);
    }
    let all: Vec<Compressible<'_>> =
        builder.compressible().into_iter().filter(|one| one.bytes.len() >= LEAST_BYTES).collect();
    // of files that are gone there is nothing to remember
    let known: BTreeSet<(Identity, Encoding)> = all.iter().map(|one| (one.identity, one.encoding)).collect();
    memo.useless.retain(|one| known.contains(one));
    let wanted: Vec<_> = all.iter().filter(|one| !memo.useless.contains(&(one.identity, one.encoding))).collect();
    let (mut made, mut accepted) = (Made::default(), Vec::new());
    let mut rest = &wanted[..];
    while !rest.is_empty() {
        let (batch, behind) = rest.split_at(batch(rest));
        for (one, outcome) in batch.iter().zip(compress_all(batch)) {
            let Some(variant) = outcome.filter(|variant| variant.len() + SAVES_BYTES <= one.bytes.len()) else {
                memo.useless.insert((one.identity, one.encoding));
                continue;
            };
            let Some(left) = left_bytes.checked_sub(app::memory_bytes(variant.len())) else {
                made.left_out += 1;
                continue;
            };
            left_bytes = left;
            made.variants += 1;
            made.from_bytes += one.bytes.len() as u64;
            made.to_bytes += variant.len() as u64;
            accepted.push((one.file, one.encoding, variant));
        }
        rest = behind;
    }
    drop(wanted);
    drop(all);
    for (file, encoding, variant) in accepted {
        builder.add_variant(file, encoding, &variant);
    }
    made
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

/// Compresses all of them on as many threads as there are processors; None for what cannot be.
fn compress_all(batch: &[&Compressible<'_>]) -> Vec<Option<Vec<u8>>> {
    let outcomes = Mutex::new(vec![None; batch.len()]);
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(one) = batch.get(at) else { return };
            let variant = compress(one.encoding, one.bytes).ok();
            outcomes.lock().unwrap_or_else(PoisonError::into_inner)[at] = variant;
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(batch.len());
    std::thread::scope(|scope| {
        for _ in 1..threads {
            // they have this thread's low priority; one that cannot be started is done without
            let _ = std::thread::Builder::new().name("compress".into()).spawn_scoped(scope, work);
        }
        work();
    });
    outcomes.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn compress(encoding: Encoding, bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    match encoding {
        Encoding::Identity => Ok(bytes.to_vec()),
        Encoding::Gzip => {
            // without name and time, so that nothing but the bytes enters
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(GZIP_LEVEL));
            encoder.write_all(bytes)?;
            encoder.finish()
        }
        Encoding::Zstd => {
            let mut encoder = zstd::Encoder::new(Vec::new(), ZSTD_LEVEL)?;
            encoder.window_log(WINDOW_LOG)?;
            encoder.set_pledged_src_size(Some(bytes.len() as u64))?;
            encoder.write_all(bytes)?;
            encoder.finish()
        }
        Encoding::Brotli => {
            let mut out = Vec::new();
            let mut params = brotli::enc::BrotliEncoderParams::default();
            (params.quality, params.lgwin, params.size_hint) = (BROTLI_QUALITY, WINDOW_LOG as i32, bytes.len());
            brotli::BrotliCompress(&mut &*bytes, &mut out, &params)?;
            Ok(out)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::web::{Config, File};
    use std::io::Read;

    fn text(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|n| b"the quick brown fox jumps over the lazy dog, again and again "[n * n % 61]).collect()
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
        let mut builder = SiteBuilder::new(Config::default(), 1, 1 << 30, None).unwrap();
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
}
