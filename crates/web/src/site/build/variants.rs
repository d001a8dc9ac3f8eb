//! Variants that the caller makes: of what, and how they come in.

use std::collections::BTreeMap;

use super::{Body, File, Identity, NO_ORIGIN, Representation, Site, SiteBuilder, Stored, media_type};
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
            let Some(bytes) = self.bytes_of(own) else { continue };
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

    /// A file's bytes, if they are held.
    fn bytes_of<'a>(&'a self, file: &'a Stored) -> Option<&'a [u8]> {
        match &file.body {
            Body::Small(bytes) => Some(bytes),
            Body::Object(id) => Some(self.content.bytes(*id)),
            Body::Origin(_) => None,
        }
    }

    /// The variant of a file that the version before has and that was made of the bytes which are here now, and its tag. The identity alone
    /// does not tell, since that of a young file may stay the same over the next write.
    fn held_variant(&self, file: usize, encoding: Encoding) -> Option<(Representation, u64)> {
        let (own, before) = (&self.files[file], self.before.as_ref()?);
        let named = |identity: Identity| before.identities.get(&(identity, encoding));
        // it may have been young then
        let when_young = Identity { modified_ns: -own.identity.modified_ns, ..own.identity };
        let &(at, tag) = named(own.identity).or_else(|| named(when_young))?;
        let page = &before.representations[at as usize..];
        // the last one of a page is the file itself
        let made_of = bytes_before(before, page.iter().find(|one| one.encoding == Encoding::Identity)?)?;
        let here = self.bytes_of(own)?;
        // what is shared is not gone through
        (std::ptr::eq(made_of, here) || made_of == here).then_some((page[0], tag))
    }

    /// How long the variant of such a file is that the version before has; None when it has none.
    pub fn held_variant_bytes(&self, file: usize, encoding: Encoding) -> Option<u64> {
        self.held_variant(file, encoding).map(|(variant, _)| variant.body_bytes)
    }

    /// Adds a variant of a file that [`SiteBuilder::compressible`] told, if the version before has it.
    pub fn add_held_variant(&mut self, file: usize, encoding: Encoding) -> bool {
        let Some((variant, tag)) = self.held_variant(file, encoding) else { return false };
        let Some(before) = self.before.clone() else { return false };
        let body = self.body_held(&before, &variant);
        let own = &self.files[file];
        let (host, path, modified_unix_s, identity) = (own.host, own.path.clone(), own.modified_unix_s, own.identity);
        let file = File { path: &path, modified_unix_s, identity, encoding };
        self.push(usize::from(host), &file, body, variant.body_bytes, tag);
        true
    }

    /// Adds a variant of a file that [`SiteBuilder::compressible`] told.
    pub fn add_variant(&mut self, file: usize, encoding: Encoding, bytes: &[u8]) {
        let own = &self.files[file];
        let (host, path, modified_unix_s, identity) = (own.host, own.path.clone(), own.modified_unix_s, own.identity);
        // its own path was taken
        let _ = self.add(usize::from(host), &File { path: &path, modified_unix_s, identity, encoding }, bytes);
    }
}

/// The bytes of a representation of the version before, if it holds them.
fn bytes_before<'a>(before: &'a Site, of: &Representation) -> Option<&'a [u8]> {
    let (at, bytes) = (of.body_at as usize, of.body_bytes as usize);
    (of.origin == NO_ORIGIN).then(|| &before.content.bytes(of.body)[at..at + bytes])
}
