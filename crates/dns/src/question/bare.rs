//! What is answered without records is read for the second time here, slowly: an answer has the question and an OPT record wherever
//! the message has them (RFC 6891 sections 6.1.1 and 7), so that a malformed option does not look like a server without EDNS.

use super::{Bare, Edns, IXFR, NAME_AT, OPT, OPT_BYTES, asked, opt, options, u16_at};
use crate::reference::rcode;
use zone::Rtype;

/// RFC 6891 section 9
const BADVERS: u16 = 16;

/// Reads a message that is longer than a header and no question that can be looked up.
#[cold]
#[inline(never)]
pub(super) fn read(message: &[u8], decompressed: Option<&mut [u8; 256]>, cookies: bool) -> Bare {
    let is_query = message[2] & 0x78 == 0;
    let rcode = if is_query { rcode::FORMERR } else { rcode::NOTIMP };
    let mut bare = Bare { rcode: rcode.into(), ..Bare::default() };
    let counts = [4, 6, 8, 10].map(|at| u16_at(message, at));
    let mut end = NAME_AT;
    match counts[0] {
        0 if is_query && cookies && counts == [0, 0, 0, 1] => {
            if opt(message, NAME_AT, cookies).is_some_and(|edns| edns.cookie_bytes > 0) {
                bare.rcode = 0;
            }
        }
        1 => {
            if let Some((ask, behind)) = asked(message, decompressed) {
                (bare.ask, end) = (ask, behind);
            } else {
                // one that is not repeated has records behind it all the same
                let Some(behind) = skip_name(message, end) else { return bare };
                end = behind + 4;
            }
        }
        // none of several is repeated (RFC 9619 section 4)
        several => {
            for _ in 0..several {
                let Some(behind) = skip_name(message, end) else { return bare };
                end = behind + 4;
            }
        }
    }
    if is_query && counts[..3] == [1, 0, 1] && bare.ask.qtype == IXFR && is_soa(message, end) {
        // as every secondary asks (RFC 1995 section 3): nothing is wrong with that, but there are no transfers
        bare.rcode = rcode::REFUSED.into();
    }
    bare.ask.plain = false;
    bare.ask.edns = find_opt(message, end, counts[1..].iter().copied().map(u32::from).sum(), cookies);
    if bare.ask.edns.is_some_and(|edns| edns.version > 0) {
        // what else there is may mean something else (RFC 6891 section 6.1.3)
        bare.rcode = BADVERS;
    }
    bare
}

/// The first OPT record of so many from `at` on, with its options up to a malformed one.
fn find_opt(message: &[u8], mut at: usize, records: u32, cookies: bool) -> Option<Edns> {
    for _ in 0..records {
        // as if at the root, whatever its owner
        let root = skip_name(message, at)? - 1;
        let fixed = message.get(root..root + OPT_BYTES)?;
        let begin = root + OPT_BYTES;
        at = begin + usize::from(u16_at(fixed, 9));
        if u16_at(fixed, 1) == OPT {
            let mut edns = Edns::of(fixed);
            let _ = options(&message[..at.min(message.len())], begin, &mut edns, cookies);
            return Some(edns);
        }
    }
    None
}

/// Whether the record at `at` is an SOA record.
fn is_soa(message: &[u8], at: usize) -> bool {
    skip_name(message, at).and_then(|end| message.get(end..end + 2)) == Some(&Rtype::SOA.0.to_be_bytes())
}

/// Where the name at `at` ends.
fn skip_name(message: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match usize::from(*message.get(at)?) {
            0 => return Some(at + 1),
            0xc0..=0xff => return Some(at + 2),
            len => at += 1 + len,
        }
    }
}
