//! The version that is served once more: with the compressed variants that it lacks, or with files as they are now that are read while they
//! are sent, and of which nothing but the time of change is another.
//!
//! Nothing else is looked at below the roots: what stands there by now is for the next reload, which somebody has to want. So a pass shows
//! nobody a tree that is being written, and variants need no rights. All memory is shared with the version before but that of small files.

use super::budget::Budget;
use super::on_disk::{OnDisk, look};
use super::{Loaded, Memo, Root, Touched, Tree, compress, described, new_builder, open_roots};
use crate::config::Web;
use crate::print::Print;
use ::web::{Site, SiteBuilder};
use std::collections::HashMap;
use std::sync::Arc;

/// The version that is served.
#[derive(Clone, Copy)]
pub(crate) struct Served<'a> {
    pub(crate) site: &'a Arc<Site>,
    pub(crate) tree: &'a Tree,
    pub(crate) touched: &'a Touched,
}

/// Makes variants for a version as long as `keep_on` says, which is asked before each batch. None when there is nothing to make, or when
/// it was broken off; what was made by then is in the memo, for whichever version comes next.
///
/// # Errors
/// Why it cannot be done.
pub(crate) fn with_variants(
    web: &Web,
    served: Served<'_>,
    memo: &mut Memo,
    keep_on: &mut dyn FnMut() -> bool,
) -> Result<Option<Loaded>, Vec<String>> {
    let mut builder = again(web, served, served.tree, |_, _| false)?;
    let left_bytes = Budget::of(web, served.tree)?.left_bytes;
    let Some(made) = compress::add(&mut builder, memo, left_bytes, keep_on) else { return Ok(None) };
    if let Some(line) = made.described() {
        tracing::info!("{line}");
    }
    if made.is_nothing() {
        return Ok(None);
    }
    finish(web, builder, served.tree.clone(), served.touched).map(Some)
}

/// Takes files as they are now that are read while they are sent, and of which nothing but the time of change is another. They may have been
/// written, so they are other versions, with other entity tags. None when there is no such file, or when it does not hold still.
///
/// # Errors
/// Why it cannot be done.
pub(crate) fn with_touched(web: &Web, served: Served<'_>, memo: &Memo) -> Result<Option<Loaded>, Vec<String>> {
    let roots = open_roots(web, served.touched)?;
    let mut tree = served.tree.clone();
    let budget = Budget::of(web, &tree)?;
    let now = touched(&roots, &tree, &budget);
    if now.is_empty() {
        return Ok(None);
    }
    for (at, print) in &now {
        tree.0[*at].print = *print;
    }
    let source = |at: usize, builder: &mut SiteBuilder| {
        let found = &tree.0[at];
        let source = || OnDisk::source(&roots[found.host], found);
        now.contains_key(&at) && builder.add_source(found.host, &described(found, &found.print), source()).is_ok()
    };
    let mut builder = again(web, served, &tree, source)?;
    if web.compress {
        compress::keep(&mut builder, memo, budget.left_bytes);
    }
    let loaded = finish(web, builder, tree, served.touched)?;
    let s = if now.len() == 1 { "" } else { "s" };
    tracing::info!("{} file{s} touched (permissions, links, names), served on under another entity tag", now.len());
    Ok(Some(loaded))
}

/// Those files by their places in the tree, as they are when no later change can carry the same times.
fn touched(roots: &[Arc<Root>], tree: &Tree, budget: &Budget) -> HashMap<usize, Print> {
    let look = |at: usize| {
        let found = &tree.0[at];
        let print = look(&roots[found.host], &found.path).ok()?;
        (!found.left_out && found.print.is_touched(&print)).then_some((at, print))
    };
    let first: HashMap<usize, Print> = budget.over().filter_map(look).collect();
    let wait = first.values().map(Print::settles_in).max().unwrap_or_default();
    std::thread::sleep(wait);
    // who does not hold still is found by the next reading
    first.iter().filter_map(|(at, print)| look(*at).filter(|(_, now)| now.same(print))).collect()
}

/// A builder with all that the tree has: what `take` does not add, from the version before.
fn again(
    web: &Web,
    served: Served<'_>,
    tree: &Tree,
    take: impl Fn(usize, &mut SiteBuilder) -> bool,
) -> Result<SiteBuilder, Vec<String>> {
    let mut builder = new_builder(web, Some(served.site.clone()))?;
    for (at, found) in tree.0.iter().enumerate() {
        if found.directory {
            // the walk asked for every path
            let _ = builder.add_directory(found.host, &found.path);
        } else if !found.left_out
            && !take(at, &mut builder)
            && builder.add_as_before(found.host, &described(found, &found.print)) != Ok(true)
        {
            let path = String::from_utf8_lossy(&found.path);
            let place = &web.hosts[0].place;
            return Err(vec![format!("{place}: {path}: not found as it was read in what is served; reload")]);
        }
    }
    Ok(builder)
}

fn finish(web: &Web, builder: SiteBuilder, tree: Tree, touched: &Touched) -> Result<Loaded, Vec<String>> {
    let site = builder.finish().map_err(|error| vec![format!("{}: {error}", web.hosts[0].place)])?;
    Ok(Loaded { site, tree, warnings: Vec::new(), touched: touched.clone() })
}
