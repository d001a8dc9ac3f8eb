//! Questions about the server itself: CH TXT (RFC 4892). Nothing is told unless the operator set it.

use crate::question::Ask;
use crate::serve::Options;
use zone::Rtype;

/// The text that answers, as one character-string; None where there is none.
pub(crate) fn text<'o>(options: &'o Options, name: &[u8], ask: &Ask) -> Option<&'o [u8]> {
    if ask.qtype != Rtype::TXT.0 {
        return None;
    }
    let is = |wire: &[u8]| name[..usize::from(ask.name_bytes)].eq_ignore_ascii_case(wire);
    let text = if is(b"\x07version\x04bind\0") || is(b"\x07version\x06server\0") {
        options.version.as_deref()
    } else if is(b"\x02id\x06server\0") || is(b"\x08hostname\x04bind\0") {
        options.id.as_deref()
    } else {
        None
    };
    text.map(|text| &text.as_bytes()[..text.len().min(255)])
}
