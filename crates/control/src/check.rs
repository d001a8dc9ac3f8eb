//! `simoom check`: reads what a server would read and says what of it would be refused, and what it needs. Opens no socket, so whether
//! addresses, interfaces and privileges can be had, and applications' programs started, only a start tells.

use crate::config::{Web, ZoneSpec};
use crate::error::Error;
use crate::{reload, sites, zones};
use std::fmt::Write;
use zone::Zone;

/// Reads zones and content, and gives a line about each and one about them all.
///
/// # Errors
/// What a server would refuse of them.
pub(crate) fn run(specs: &[ZoneSpec], web: Option<&Web>) -> Result<String, Error> {
    let zones = if specs.is_empty() { Ok(String::new()) } else { zones(specs) };
    let content = web.map_or(Ok(String::new()), content);
    match (zones, content) {
        (Ok(zones), Ok(content)) => Ok(zones + &content),
        (zones, content) => Err(Error::Input([zones.err(), content.err()].into_iter().flatten().flatten().collect())),
    }
}

fn zones(specs: &[ZoneSpec]) -> Result<String, Vec<String>> {
    let loaded = zones::load(specs, None)?;
    let mut text = String::new();
    for zone in &loaded.zones {
        for warning in zone.warnings() {
            let _ = writeln!(text, "warning: {warning}");
        }
        let _ = writeln!(text, "{}", line(zone));
    }
    let tables = reload::build(loaded.zones, None)?;
    let _ = writeln!(text, "total: {}; a reload needs as much again while both are held", reload::describe(&tables));
    Ok(text)
}

fn line(zone: &Zone) -> String {
    format!("zone {}: {} names, {} records", zone.origin(), zone.len(), zone.record_count())
}

fn content(web: &Web) -> Result<String, Vec<String>> {
    let mut text = String::new();
    let Some(loaded) = sites::load(web, None, sites::Variants::Later)? else { return Ok(text) };
    for warning in &loaded.warnings {
        let _ = writeln!(text, "warning: {warning}");
    }
    for (n, host) in web.hosts.iter().enumerate() {
        let (files, bytes) = loaded.tree.of_host(n);
        let names = if host.entry.names.is_empty() { "any name".to_owned() } else { host.entry.names.join(", ") };
        let root = host.root.display();
        let _ = writeln!(text, "host {root} ({names}): {files} files, {}", sites::size(bytes));
    }
    let held = sites::describe(&loaded.site);
    let _ = writeln!(text, "content: {held}; a reload needs the memory of what has changed while both are held");
    Ok(text)
}
