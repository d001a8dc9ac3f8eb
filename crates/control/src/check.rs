//! `simoom check`: reads what a server would read and says what it would refuse and need. Opens no socket.

use crate::config::ZoneSpec;
use crate::error::Error;
use crate::{reload, zones};
use std::fmt::Write;
use zone::Zone;

/// Reads the zones, and gives a line about each and one about them all.
///
/// # Errors
/// Everything that a server would refuse.
pub(crate) fn run(specs: &[ZoneSpec]) -> Result<String, Error> {
    let loaded = zones::load(specs).map_err(Error::Input)?;
    let mut text = String::new();
    for zone in &loaded.zones {
        for warning in zone.warnings() {
            let _ = writeln!(text, "warning: {warning}");
        }
        let _ = writeln!(text, "{}", line(zone));
    }
    let tables = reload::build(loaded.zones, None).map_err(Error::Input)?;
    let _ = writeln!(text, "total: {}; a reload needs as much again while both are held", reload::describe(&tables));
    Ok(text)
}

fn line(zone: &Zone) -> String {
    format!("zone {}: {} names, {} records", zone.origin(), zone.len(), zone.record_count())
}
