//! Variants that the caller makes: of what, and how they come in.

use std::collections::BTreeMap;

use super::{Body, File, Identity, SiteBuilder, media_type};
use crate::mime;
use crate::negotiate::Encoding;

/// A variant that could be made of a file.
#[derive(Clone, Copy, Debug)]
pub struct Compressible<'a> {
    /// which file, for [`SiteBuilder::add_variant`]
    pub file: usize,
    /// the coding of the variant
    pub encoding: Encoding,
    /// the file's
    pub identity: Identity,
    /// the file's bytes
    pub bytes: &'a [u8],
}

impl SiteBuilder {
    /// Files of which variants may be made, and of which coding: their types compress, their bytes are held, and none was given or
    /// stands beside them. In the order of paths.
    pub fn compressible(&self) -> Vec<Compressible<'_>> {
        let mut at = BTreeMap::new();
        for (number, file) in self.files.iter().enumerate() {
            at.insert((file.host, &*file.path, file.encoding), number);
        }
        let mut all = Vec::new();
        for (&(host, path, encoding), &number) in &at {
            let rules = &self.config.hosts[usize::from(host)];
            let own = &self.files[number];
            if encoding != Encoding::Identity || !mime::compresses(&media_type(rules, path)) {
                continue;
            }
            let bytes = match &own.body {
                Body::Small(bytes) => &**bytes,
                Body::Object(id) => self.content.bytes(*id),
                Body::Origin(_) => continue,
            };
            for coding in &Encoding::ALL[1..] {
                let name = [path, coding.suffix().as_bytes()].concat();
                let beside = at.get(&(host, &*name, Encoding::Identity)).is_some_and(|beside| {
                    rules.precompressed && self.files[*beside].modified_unix_s >= own.modified_unix_s
                });
                // what is itself a variant is not asked for by who could undo two codings
                let is_variant = Encoding::ALL[1..].iter().any(|coding| path.ends_with(coding.suffix().as_bytes()));
                if !beside && !is_variant && !at.contains_key(&(host, path, *coding)) {
                    all.push(Compressible { file: number, encoding: *coding, identity: own.identity, bytes });
                }
            }
        }
        all
    }

    /// Adds a variant of a file that [`SiteBuilder::compressible`] told, if the version before has it.
    pub fn add_held_variant(&mut self, file: usize, encoding: Encoding) -> bool {
        let own = &self.files[file];
        let (host, path, modified_unix_s, identity) = (own.host, own.path.clone(), own.modified_unix_s, own.identity);
        self.add_held(usize::from(host), &File { path: &path, modified_unix_s, identity, encoding }) == Ok(true)
    }

    /// Adds a variant of a file that [`SiteBuilder::compressible`] told.
    pub fn add_variant(&mut self, file: usize, encoding: Encoding, bytes: &[u8]) {
        let own = &self.files[file];
        let (host, path, modified_unix_s, identity) = (own.host, own.path.clone(), own.modified_unix_s, own.identity);
        // its own path was taken
        let _ = self.add(usize::from(host), &File { path: &path, modified_unix_s, identity, encoding }, bytes);
    }
}
