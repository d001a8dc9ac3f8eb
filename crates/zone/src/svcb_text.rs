//! Service parameters in presentation form (RFC 9460 section 2.1 and appendix A).

use std::collections::BTreeMap;

use crate::exotic::address_octets;
use crate::parse::{Cursor, Parsed, base64_word, decimal, unescape_into};
use crate::scan::Token;
use crate::svcb::KEYS;

/// Reads `key[=value]` words to the end of the record and writes them in ascending order of their keys.
pub(crate) fn params(cursor: &mut Cursor<'_>, out: &mut Vec<u8>) -> Parsed<()> {
    let mut params: BTreeMap<u16, Vec<u8>> = BTreeMap::new();
    while let Some(token) = cursor.peek() {
        cursor.skip();
        let text = cursor.text(token);
        let at = text.iter().position(|&octet| octet == b'=');
        let (key_text, mut value) = match at {
            Some(at) => (&text[..at], Some((&text[at + 1..], token))),
            None => (text, None),
        };
        let key = key_number(key_text).filter(|_| !token.quoted);
        let key = key.ok_or_else(|| {
            cursor.wrong(token, "is not a service parameter; write key=value with a known key or keyNNN")
        })?;
        // the value may be quoted, with the mark right behind the equals sign
        if let (Some((b"", _)), Some(quoted)) = (value, cursor.peek())
            && quoted.quoted
            && quoted.glued
        {
            cursor.skip();
            value = Some((cursor.text(quoted), quoted));
        }
        let mut octets = Vec::new();
        let by_number = key_text.get(..3).is_some_and(|head| head.eq_ignore_ascii_case(b"key"));
        if let Some((value, token)) = value {
            if by_number {
                unescape_into(value, token, &mut octets)?;
            } else {
                read_value(key, value, token, cursor, &mut octets)?;
            }
        }
        if params.insert(key, octets).is_some() {
            return Err(cursor.wrong(token, "repeats a key; a service parameter stands once (RFC 9460 2.1)"));
        }
    }
    for (key, value) in params {
        out.extend_from_slice(&key.to_be_bytes());
        // an entry is bounded, and the rdata is checked as a whole, so a long value shows there
        out.extend_from_slice(&u16::try_from(value.len()).unwrap_or(u16::MAX).to_be_bytes());
        out.extend_from_slice(&value);
    }
    Ok(())
}

fn key_number(text: &[u8]) -> Option<u16> {
    if let Some(at) = KEYS.iter().position(|key| key.as_bytes() == text) {
        return u16::try_from(at).ok();
    }
    let digits = text.strip_prefix(b"key")?;
    if digits.len() > 1 && digits[0] == b'0' {
        return None;
    }
    u16::try_from(decimal(digits)?).ok()
}

fn read_value(key: u16, value: &[u8], token: Token, cursor: &Cursor<'_>, out: &mut Vec<u8>) -> Parsed<()> {
    match key {
        0 => {
            let keys: Option<Vec<u16>> = value.split(|&octet| octet == b',').map(key_number).collect();
            let mut keys = keys.ok_or_else(|| cursor.wrong(token, "is not a list of keys with commas"))?;
            keys.sort_unstable();
            out.extend(keys.into_iter().flat_map(u16::to_be_bytes));
            Ok(())
        }
        1 => alpn(value, token, cursor, out),
        3 => {
            let port = decimal(value).and_then(|port| u16::try_from(port).ok());
            out.extend_from_slice(
                &port.ok_or_else(|| cursor.wrong(token, "is not a port from 0 to 65535"))?.to_be_bytes(),
            );
            Ok(())
        }
        4 | 6 => {
            for address in value.split(|&octet| octet == b',') {
                let octets = address_octets(address, key == 6);
                out.extend(
                    octets.ok_or_else(|| cursor.wrong(token, "is not a list of addresses of the key's family"))?,
                );
            }
            Ok(())
        }
        5 => base64_word(value, token, out),
        _ => unescape_into(value, token, out),
    }
}

/// A comma-separated list (RFC 9460 appendix A.1): escapes of the string first, then `\,` and `\\` of the list.
fn alpn(value: &[u8], token: Token, cursor: &Cursor<'_>, out: &mut Vec<u8>) -> Parsed<()> {
    let mut list = Vec::new();
    unescape_into(value, token, &mut list)?;
    let mut ids: Vec<Vec<u8>> = vec![Vec::new()];
    let mut octets = list.into_iter();
    while let Some(octet) = octets.next() {
        let last = ids.len() - 1;
        match octet {
            b',' => ids.push(Vec::new()),
            b'\\' => match octets.next() {
                Some(escaped @ (b',' | b'\\')) => ids[last].push(escaped),
                _ => return Err(cursor.wrong(token, r"has a bad escape in its list; write \\, or \\\\ (RFC 9460 A.1)")),
            },
            _ => ids[last].push(octet),
        }
    }
    for id in ids {
        let len = u8::try_from(id.len()).ok().filter(|&len| len > 0);
        out.push(len.ok_or_else(|| cursor.wrong(token, "is not a list of protocols of 1 to 255 octets each"))?);
        out.extend_from_slice(&id);
    }
    Ok(())
}
