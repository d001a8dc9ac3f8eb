//! `$GENERATE` as BIND reads it: a range, and `$` in the owner and the rdata for its values, with
//! `${offset,width,base}` for other forms. `\$` and `$$` are a dollar sign.

use std::fmt::Write;

use crate::error::Wrong;
use crate::parse::{Cursor, decimal};
use crate::scan::{Entry, Scanner, Token};

/// The widest number that can be asked for; more fits no label or string.
const MAX_WIDTH: usize = 255;

/// `start-stop/step`, both ends included.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    next: u64,
    stop: u64,
    step: u64,
}

impl Range {
    pub(crate) fn parse(text: &[u8]) -> Option<Range> {
        let (ends, step) = match text.iter().position(|&octet| octet == b'/') {
            Some(at) => (&text[..at], decimal(&text[at + 1..])?),
            None => (text, 1),
        };
        let dash = ends.iter().position(|&octet| octet == b'-')?;
        let (next, stop) = (decimal(&ends[..dash])?, decimal(&ends[dash + 1..])?);
        // BIND's numbers are 31 bits
        (next <= stop && stop < 1 << 31 && step > 0 && step < 1 << 31).then_some(Range { next, stop, step })
    }

    pub(crate) fn size(&self) -> u64 {
        (self.stop - self.next) / self.step + 1
    }
}

impl Iterator for Range {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let value = self.next;
        self.next += self.step;
        (value <= self.stop).then_some(value)
    }
}

/// Makes the record's tokens out of the directive's: `lhs` and everything after it, for one value.
pub(crate) fn line(directive: &Entry, lhs: Token, value: u64, out: &mut Entry) -> Result<(), Wrong> {
    let tokens = directive.tokens();
    // the directive's word and the range stand before the owner
    let tail = &tokens[2..];
    let last = tail.len() - 1;
    for (at, &token) in tail.iter().enumerate() {
        let text = substitute(directive.text(token), value);
        let text = text.ok_or_else(|| {
            Cursor::new(directive, 0, None)
                .wrong(token, "has a bad $ in it; write $, or ${OFFSET,WIDTH,BASE} with base d, o, x, X, n or N")
        })?;
        // rdata of several words is quoted as one string in BIND's files, and means its words
        if at == last && token.quoted {
            rescan(&text, token, out)?;
        } else {
            out.push(token, &text);
        }
    }
    debug_assert_eq!(out.tokens()[0].column, lhs.column);
    Ok(())
}

fn rescan(text: &[u8], token: Token, out: &mut Entry) -> Result<(), Wrong> {
    let placed = |wrong: Wrong| Wrong { line: token.line, column: token.column, ..wrong };
    let mut words = Entry::default();
    let mut scanner = Scanner::new(Box::new(text));
    if !scanner.next_entry(&mut words).map_err(placed)? {
        out.push(token, b"");
    }
    for &word in words.tokens() {
        out.push(word.placed_as(token), words.text(word));
    }
    Ok(())
}

fn substitute(text: &[u8], value: u64) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len() + 8);
    let mut rest = text;
    while let Some((&octet, after)) = rest.split_first() {
        rest = after;
        match (octet, after.first()) {
            (b'\\', Some(&escaped)) => {
                out.extend_from_slice(&[octet, escaped]);
                rest = &after[1..];
            }
            (b'$', Some(b'$')) => {
                out.extend_from_slice(b"\\$");
                rest = &after[1..];
            }
            (b'$', Some(b'{')) => {
                let end = after.iter().position(|&octet| octet == b'}')?;
                modified(&after[1..end], value, &mut out)?;
                rest = &after[end + 1..];
            }
            (b'$', _) => out.extend_from_slice(value.to_string().as_bytes()),
            _ => out.push(octet),
        }
    }
    Some(out)
}

/// `offset[,width[,base]]`.
fn modified(text: &[u8], value: u64, out: &mut Vec<u8>) -> Option<()> {
    let mut parts = std::str::from_utf8(text).ok()?.split(',');
    let offset: i64 = parts.next()?.parse::<i32>().ok()?.into();
    let width: usize = parts.next().map_or(Some(0), |width| width.parse().ok())?;
    let base = parts.next().unwrap_or("d");
    if parts.next().is_some() || width > MAX_WIDTH {
        return None;
    }
    let value = u64::try_from(i64::try_from(value).ok()? + offset).ok()?;
    let mut text = String::new();
    match base {
        "d" => write!(text, "{value:0width$}"),
        "o" => write!(text, "{value:0width$o}"),
        "x" => write!(text, "{value:0width$x}"),
        "X" => write!(text, "{value:0width$X}"),
        "n" | "N" => nibbles(value, width, base == "N", &mut text),
        _ => return None,
    }
    .ok()?;
    out.extend_from_slice(text.as_bytes());
    Some(())
}

/// Hexadecimal digits from the lowest, with dots; `width` counts digits and dots, as in BIND.
fn nibbles(mut value: u64, mut width: usize, upper: bool, out: &mut String) -> std::fmt::Result {
    loop {
        let digit = value & 15;
        if upper {
            write!(out, "{digit:X}")?
        } else {
            write!(out, "{digit:x}")?
        }
        value >>= 4;
        width = width.saturating_sub(1);
        if width > 0 || value != 0 {
            out.push('.');
            width = width.saturating_sub(1);
        }
        if value == 0 && width == 0 {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dollars_become_numbers() {
        for (text, value, expected) in [
            ("host$", 7, "host7"),
            ("a${0,3}b$", 7, "a007b7"),
            ("${-5}", 7, "2"),
            ("${10,4,x}-${10,4,X}-${0,4,o}", 21, "001f-001F-0025"),
            ("${0,0,n}.${0,5,N}", 0xab, "b.a.B.A.0"),
            (r"\$$$x\\$", 1, r"\$\$x\\1"),
        ] {
            assert_eq!(substitute(text.as_bytes(), value).unwrap(), expected.as_bytes(), "{text}");
        }
        for text in ["${", "${x}", "${0,1,q}", "${0,999}", "${-9}", "${0,1,d,4}"] {
            assert_eq!(substitute(text.as_bytes(), 7), None, "{text}");
        }
    }

    #[test]
    fn ranges_have_both_ends() {
        let values = |text: &str| Range::parse(text.as_bytes()).map(Vec::from_iter);
        assert_eq!(values("1-4"), Some(vec![1, 2, 3, 4]));
        assert_eq!(values("0-10/4"), Some(vec![0, 4, 8]));
        for text in ["4-1", "1", "1-", "1-2/0", "-1-2", "1-4294967296", "a-b"] {
            assert!(values(text).is_none(), "{text}");
        }
        for text in ["1-4", "0-10/4", "5-5/9"] {
            assert_eq!(Range::parse(text.as_bytes()).unwrap().size(), values(text).unwrap().len() as u64);
        }
    }
}
