//! Master files (RFC 1035 section 5.1) cut into entries: an entry is the tokens of one line, or of several
//! where parentheses join them. Escapes are left as they stand; what they mean is the field's matter.
//!
//! A scanner reads its input once, in chunks, and an [`Entry`] is used again for each entry, so memory is
//! bounded by the longest entry.

use std::io::{self, Read};

use crate::error::Wrong;

/// The most octets of text in one entry: four for each octet of the longest rdata (`\DDD`), and as many again.
const MAX_ENTRY_BYTES: usize = 512 * 1024;
const CHUNK_BYTES: usize = 64 * 1024;

/// A word or a quoted string; `text` is in the entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token {
    start: u32,
    end: u32,
    pub(crate) line: u32,
    pub(crate) column: u32,
    /// It stood between quotation marks, which are not part of the text.
    pub(crate) quoted: bool,
    /// No blank stood between it and the token before it.
    pub(crate) glued: bool,
}

impl Token {
    /// The same word as if it stood where `other` does.
    pub(crate) fn placed_as(self, other: Token) -> Token {
        Token { line: other.line, column: other.column, ..self }
    }
}

/// The tokens of one entry.
#[derive(Debug, Default)]
pub(crate) struct Entry {
    text: Vec<u8>,
    tokens: Vec<Token>,
    /// The line began with a blank, so the owner is that of the entry before.
    pub(crate) owner_omitted: bool,
}

impl Entry {
    pub(crate) fn clear(&mut self) {
        self.text.clear();
        self.tokens.clear();
        self.owner_omitted = false;
    }

    pub(crate) fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// The octets of its text.
    pub(crate) fn bytes(&self) -> u64 {
        self.text.len() as u64
    }

    pub(crate) fn text(&self, token: Token) -> &[u8] {
        &self.text[token.start as usize..token.end as usize]
    }

    /// Appends a token of known text ($GENERATE makes entries out of others).
    pub(crate) fn push(&mut self, like: Token, text: &[u8]) {
        let start = self.text.len() as u32;
        self.text.extend_from_slice(text);
        self.tokens.push(Token { start, end: self.text.len() as u32, ..like });
    }
}

/// What an octet is outside quotation marks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Word,
    Blank,
    Newline,
    Special,
}

const KINDS: [Kind; 256] = {
    let mut kinds = [Kind::Word; 256];
    kinds[b' ' as usize] = Kind::Blank;
    kinds[b'\t' as usize] = Kind::Blank;
    kinds[b'\r' as usize] = Kind::Blank;
    kinds[0x0b] = Kind::Blank;
    kinds[0x0c] = Kind::Blank;
    kinds[b'\n' as usize] = Kind::Newline;
    kinds[b'(' as usize] = Kind::Special;
    kinds[b')' as usize] = Kind::Special;
    kinds[b';' as usize] = Kind::Special;
    kinds[b'"' as usize] = Kind::Special;
    kinds
};

/// Cuts one file into entries.
pub(crate) struct Scanner<'s> {
    input: Box<dyn Read + 's>,
    chunk: Box<[u8]>,
    pos: usize,
    len: usize,
    line: u32,
    /// The column of the octet at `pos`.
    column: u32,
    failed: Option<io::Error>,
}

impl<'s> Scanner<'s> {
    pub(crate) fn new(input: Box<dyn Read + 's>) -> Self {
        let mut scanner =
            Scanner { input, chunk: vec![0; CHUNK_BYTES].into(), pos: 0, len: 0, line: 1, column: 1, failed: None };
        scanner.skip_byte_order_mark();
        scanner
    }

    /// The error that ended the input early, if one did.
    pub(crate) fn take_failure(&mut self) -> Option<io::Error> {
        self.failed.take()
    }

    fn skip_byte_order_mark(&mut self) {
        // a first read may be short, but not that short where a mark matters
        if self.peek().is_some() && self.chunk[..self.len].starts_with(b"\xef\xbb\xbf") {
            self.pos = 3;
        }
    }

    #[inline]
    fn peek(&mut self) -> Option<u8> {
        if self.pos == self.len && !self.refill() {
            return None;
        }
        Some(self.chunk[self.pos])
    }

    #[cold]
    fn refill(&mut self) -> bool {
        self.pos = 0;
        self.len = 0;
        while self.failed.is_none() {
            match self.input.read(&mut self.chunk) {
                Ok(len) => {
                    self.len = len;
                    return len > 0;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => self.failed = Some(error),
            }
        }
        false
    }

    /// Steps over the octet that was peeked.
    #[inline]
    fn advance(&mut self, octet: u8) {
        self.pos += 1;
        if octet == b'\n' {
            self.line = self.line.saturating_add(1);
            self.column = 1;
        } else {
            self.column = self.column.saturating_add(1);
        }
    }

    fn skip_line(&mut self) {
        while let Some(octet) = self.peek() {
            if octet == b'\n' {
                return;
            }
            self.advance(octet);
        }
    }

    /// Reads the next entry that has a token into `entry`; false at the end of the input. After an error
    /// the scanner stands at the end of that line.
    pub(crate) fn next_entry(&mut self, entry: &mut Entry) -> Result<bool, Wrong> {
        entry.clear();
        let mut open: Vec<(u32, u32)> = Vec::new();
        let mut glued = false;
        let mut line_start = true;
        while let Some(octet) = self.peek() {
            match KINDS[usize::from(octet)] {
                Kind::Newline => {
                    self.advance(octet);
                    if open.is_empty() {
                        if !entry.tokens.is_empty() {
                            return Ok(true);
                        }
                        entry.owner_omitted = false;
                        line_start = true;
                    }
                    glued = false;
                    continue;
                }
                Kind::Blank => {
                    // a carriage return alone on a line is its end, not a blank in front
                    entry.owner_omitted |= line_start && octet != b'\r';
                    self.advance(octet);
                    glued = false;
                }
                Kind::Word => {
                    self.word(entry, glued)?;
                    glued = true;
                }
                Kind::Special => {
                    let at = (self.line, self.column);
                    match octet {
                        b';' => self.skip_line(),
                        b'"' => self.quoted(entry, glued)?,
                        b'(' if open.len() < 64 => open.push(at),
                        b'(' => return Err(self.bad_line(at, "more than 64 parentheses are open")),
                        _ if open.pop().is_none() => {
                            return Err(self.bad_line(at, "no parenthesis is open; remove this one"));
                        }
                        _ => {}
                    }
                    if matches!(octet, b'(' | b')') {
                        self.advance(octet);
                    }
                    glued = octet == b'"';
                }
            }
            line_start = false;
            if entry.text.len() > MAX_ENTRY_BYTES || entry.tokens.len() > MAX_ENTRY_BYTES {
                let at = open.first().copied().unwrap_or((self.line, self.column));
                return Err(self.bad_line(at, "the entry is longer than any record; a parenthesis may be unclosed"));
            }
        }
        match open.first() {
            Some(&(line, column)) => Err(Wrong { line, column, what: "the parenthesis is not closed".to_owned() }),
            None => Ok(!entry.tokens.is_empty()),
        }
    }

    fn bad_line(&mut self, (line, column): (u32, u32), what: &str) -> Wrong {
        self.skip_line();
        Wrong { line, column, what: what.to_owned() }
    }

    fn word(&mut self, entry: &mut Entry, glued: bool) -> Result<(), Wrong> {
        let (line, column, start) = (self.line, self.column, entry.text.len() as u32);
        while let Some(octet) = self.peek() {
            if KINDS[usize::from(octet)] != Kind::Word {
                break;
            }
            self.advance(octet);
            entry.text.push(octet);
            if octet == b'\\' {
                match self.peek() {
                    None | Some(b'\n' | b'\r') => {
                        return Err(self.bad_line((self.line, self.column - 1), r"\ stands at the end of the line"));
                    }
                    Some(octet) => {
                        self.advance(octet);
                        entry.text.push(octet);
                    }
                }
            }
            if entry.text.len() > MAX_ENTRY_BYTES {
                return Err(self.bad_line((line, column), "the word is longer than any record"));
            }
        }
        let end = entry.text.len() as u32;
        entry.tokens.push(Token { start, end, line, column, quoted: false, glued });
        Ok(())
    }

    fn quoted(&mut self, entry: &mut Entry, glued: bool) -> Result<(), Wrong> {
        let (line, column, start) = (self.line, self.column, entry.text.len() as u32);
        self.advance(b'"');
        loop {
            let Some(octet) = self.peek() else {
                return Err(Wrong { line, column, what: "the quotation mark is not closed".to_owned() });
            };
            self.advance(octet);
            match octet {
                b'"' => break,
                b'\\' => {
                    entry.text.push(octet);
                    if let Some(escaped) = self.peek() {
                        self.advance(escaped);
                        entry.text.push(escaped);
                    }
                }
                _ => entry.text.push(octet),
            }
            if entry.text.len() > MAX_ENTRY_BYTES {
                let what = "the quoted string is longer than any record; the quotation mark may be unclosed";
                return Err(self.bad_line((line, column), what));
            }
        }
        let end = entry.text.len() as u32;
        entry.tokens.push(Token { start, end, line, column, quoted: true, glued });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(text: &str) -> Vec<(bool, Vec<String>)> {
        let mut scanner = Scanner::new(Box::new(text.as_bytes()));
        let (mut entry, mut all) = (Entry::default(), Vec::new());
        while scanner.next_entry(&mut entry).unwrap() {
            let words = entry.tokens().iter().map(|&token| String::from_utf8_lossy(entry.text(token)).into_owned());
            all.push((entry.owner_omitted, words.collect()));
        }
        all
    }

    #[test]
    fn lines_parentheses_comments_and_quotes_make_entries() {
        let text = "\u{feff}a b ; c\r\n\r\n  \n\td (e ; f\n g)h\n\"i j\"k\\ l\\;\"\" (\n)m";
        let words = |omitted: bool, words: &[&str]| (omitted, words.iter().map(|&w| w.to_owned()).collect::<Vec<_>>());
        let expected = [
            words(false, &["a", "b"]),
            words(true, &["d", "e", "g", "h"]),
            words(false, &["i j", "k\\ l\\;", "", "m"]),
        ];
        assert_eq!(entries(text), expected);
    }

    #[test]
    fn what_never_closes_is_reported_where_it_opened() {
        for (text, line, column) in [("a\nb (c\nd", 2, 3), ("a \"b\nc", 1, 3), ("a\n )", 2, 2), ("x \\", 1, 3)] {
            let mut scanner = Scanner::new(Box::new(text.as_bytes()));
            let mut entry = Entry::default();
            let wrong = loop {
                match scanner.next_entry(&mut entry) {
                    Ok(true) => {}
                    Ok(false) => panic!("{text:?} was read"),
                    Err(wrong) => break wrong,
                }
            };
            assert_eq!((wrong.line, wrong.column), (line, column), "{text:?}");
        }
    }
}
