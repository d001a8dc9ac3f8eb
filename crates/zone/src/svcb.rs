//! Service parameters of SVCB and HTTPS (RFC 9460): their wire form and the rules between them.

use crate::rtype::Rtype;

#[cfg(test)]
thread_local! {
    /// how many parameters were read
    pub(crate) static PARAMS_READ: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// The keys that RFC 9460, 9461 and 9540 name, by their numbers.
pub(crate) const KEYS: [&str; 9] =
    ["mandatory", "alpn", "no-default-alpn", "port", "ipv4hint", "ech", "ipv6hint", "dohpath", "ohttp"];

/// Service parameters in wire form, one at a time: key, value.
pub(crate) fn params(mut rest: &[u8]) -> impl Iterator<Item = Result<(u16, &[u8]), &'static str>> {
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        #[cfg(test)]
        PARAMS_READ.set(PARAMS_READ.get() + 1);
        let parsed = match *rest {
            [key_high, key_low, len_high, len_low, ref after @ ..] => {
                after.split_at_checked(usize::from(u16::from_be_bytes([len_high, len_low]))).map(|(value, after)| {
                    rest = after;
                    (u16::from_be_bytes([key_high, key_low]), value)
                })
            }
            _ => None,
        };
        if parsed.is_none() {
            rest = &[];
        }
        Some(parsed.ok_or("a service parameter ends too early"))
    })
}

/// Checks parameters in wire form: ascending keys without repeats, each value of its key's form, and
/// whatever `mandatory` lists present. Gives their length, which is all of `rest`.
pub(crate) fn check_params(rest: &[u8]) -> Result<usize, &'static str> {
    let mut last = None;
    for param in params(rest) {
        let (key, value) = param?;
        if last.is_some_and(|last| key <= last) {
            return Err("service parameters are not in ascending order of their keys, or one repeats (RFC 9460 2.2)");
        }
        last = Some(key);
        check_value(key, value)?;
    }
    // RFC 9460 section 8: mandatory keys must be there, and `mandatory` is always so by itself
    if let Some(Ok((0, mandatory))) = params(rest).next() {
        let mut wanted = mandatory.chunks_exact(2).map(|key| u16::from_be_bytes([key[0], key[1]]));
        // both ascend, so what is wanted next stands behind what was found
        let mut there = params(rest).flatten().map(|(key, _)| key);
        if !wanted.all(|wanted| there.any(|key| key == wanted)) {
            return Err("a key that mandatory lists is missing (RFC 9460 8)");
        }
    }
    Ok(rest.len())
}

fn check_value(key: u16, value: &[u8]) -> Result<(), &'static str> {
    let sound = match key {
        0 => {
            let keys = || value.chunks_exact(2).map(|key| u16::from_be_bytes([key[0], key[1]]));
            let ascending = keys().zip(keys().skip(1)).all(|(a, b)| a < b);
            !value.is_empty() && value.len().is_multiple_of(2) && ascending && keys().all(|key| key != 0)
        }
        1 => is_alpn(value),
        2 | 8 => value.is_empty(),
        3 => value.len() == 2,
        4 => !value.is_empty() && value.len().is_multiple_of(4),
        6 => !value.is_empty() && value.len().is_multiple_of(16),
        7 => !value.is_empty() && std::str::from_utf8(value).is_ok(),
        65535 => false,
        _ => true,
    };
    if sound { Ok(()) } else { Err("the value of a service parameter is malformed (RFC 9460 7 and 8)") }
}

fn is_alpn(mut value: &[u8]) -> bool {
    if value.is_empty() {
        return false;
    }
    while let Some((&len, after)) = value.split_first() {
        match after.split_at_checked(usize::from(len)) {
            Some((_, rest)) if len > 0 => value = rest,
            _ => return false,
        }
    }
    true
}

/// What RFC 9460 advises against in a record that is well formed, if anything; clients ignore it.
pub(crate) fn doubt(rtype: Rtype, rdata: &[u8]) -> Option<&'static str> {
    let (at, target) = rtype.embedded_names(rdata).next()?;
    let rest = &rdata[at + target.as_wire().len()..];
    let present = |wanted: u16| params(rest).flatten().any(|(key, _)| key == wanted);
    if rdata.starts_with(&[0, 0]) && !rest.is_empty() {
        return Some("has priority 0, AliasMode, which takes no parameters (RFC 9460 2.4.2)");
    }
    (present(2) && !present(1)).then_some("has no-default-alpn without alpn (RFC 9460 7.1.1)")
}
