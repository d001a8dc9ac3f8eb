//! The version that is served once more, with the compressed variants that it lacks.
//!
//! Nothing is looked at below the roots: what stands there by now is for the next reload, which somebody has to want. So a pass shows
//! nobody a tree that is being written, and needs no rights. All memory is shared with the version before but that of small files.

use super::budget::Budget;
use super::{Loaded, Memo, Tree, compress, described, new_builder};
use crate::config::Web;
use ::web::Site;
use std::sync::Arc;

/// Makes variants for a version as long as `keep_on` says, which is asked before each batch. None when there is nothing to make, or when
/// it was broken off; what was made by then is in the memo, for whichever version comes next.
///
/// # Errors
/// Why it cannot be done.
pub(crate) fn with_variants(
    web: &Web,
    (site, tree): (&Arc<Site>, &Tree),
    memo: &mut Memo,
    keep_on: &mut dyn FnMut() -> bool,
) -> Result<Option<Loaded>, Vec<String>> {
    let place = &web.hosts[0].place;
    let mut builder = new_builder(web, Some(site.clone()))?;
    for found in &tree.0 {
        if found.directory {
            // the walk asked for every path
            let _ = builder.add_directory(found.host, &found.path);
        } else if !found.left_out && builder.add_as_before(found.host, &described(found, &found.print)) != Ok(true) {
            let path = String::from_utf8_lossy(&found.path);
            return Err(vec![format!("{place}: {path}: not found as it was read in what is served; reload")]);
        }
    }
    let left_bytes = Budget::of(web, tree)?.left_bytes;
    let Some(made) = compress::add(&mut builder, memo, left_bytes, keep_on) else { return Ok(None) };
    if let Some(line) = made.described() {
        tracing::info!("{line}");
    }
    if made.is_nothing() {
        return Ok(None);
    }
    let site = builder.finish().map_err(|error| vec![format!("{place}: {error}")])?;
    Ok(Some(Loaded { site, tree: tree.clone(), warnings: Vec::new() }))
}
