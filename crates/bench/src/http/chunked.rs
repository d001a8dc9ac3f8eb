//! The chunked transfer coding (RFC 9112 section 7.1), byte by byte where it must be, slices where it can be.
//!
//! Chunk extensions and trailers are read and thrown away, within bounds.

/// Octets of one chunk's extensions, and of all trailers, at most.
const ASIDE_MOST_BYTES: u32 = 16 << 10;
/// Hexadecimal digits of a chunk's size at most: 2^60 octets.
const DIGITS_MOST: u8 = 15;

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// digits of the size
    Size { bytes: u64, digits: u8 },
    /// what stands behind the size, up to the line's end
    Extension { bytes: u64 },
    /// the line feed behind the size
    SizeEnd { bytes: u64 },
    /// so much of the chunk
    Data { left: u64 },
    /// CR behind the chunk
    DataReturn,
    /// LF behind it
    DataEnd,
    /// the first octet of a trailer's line
    Trailer,
    /// inside a trailer's line
    TrailerLine,
    /// LF of a trailer's line
    TrailerEnd,
    /// the last LF
    LastEnd,
}

/// What was found not to be a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadChunk;

/// A body being taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunked {
    state: State,
    /// octets of extensions or trailers seen
    aside: u32,
}

impl Chunked {
    pub(super) fn new() -> Chunked {
        Chunked { state: State::Size { bytes: 0, digits: 0 }, aside: 0 }
    }

    /// Takes `bytes`, giving the body's to `body`: how many were taken, and whether the body is at its end. All are taken
    /// unless it is.
    pub(super) fn feed(&mut self, bytes: &[u8], body: &mut impl FnMut(&[u8])) -> Result<(usize, bool), BadChunk> {
        let mut at = 0;
        while at < bytes.len() {
            if let State::Data { left } = self.state {
                let part = left.min((bytes.len() - at) as u64) as usize;
                body(&bytes[at..at + part]);
                at += part;
                let left = left - part as u64;
                self.state = if left == 0 { State::DataReturn } else { State::Data { left } };
                continue;
            }
            let octet = bytes[at];
            at += 1;
            if self.state == State::LastEnd && octet == b'\n' {
                return Ok((at, true));
            }
            self.state = self.after(octet)?;
        }
        Ok((at, false))
    }

    fn after(&mut self, octet: u8) -> Result<State, BadChunk> {
        Ok(match (self.state, octet) {
            (State::Size { bytes, digits }, b'\r') if digits > 0 => State::SizeEnd { bytes },
            (State::Size { bytes, digits }, b';' | b' ' | b'\t') if digits > 0 => State::Extension { bytes },
            (State::Size { bytes, digits }, octet) => {
                let digit = char::from(octet).to_digit(16).ok_or(BadChunk)?;
                if digits == DIGITS_MOST {
                    return Err(BadChunk);
                }
                State::Size { bytes: bytes << 4 | u64::from(digit), digits: digits + 1 }
            }
            (State::Extension { bytes }, b'\r') => State::SizeEnd { bytes },
            (State::Extension { bytes }, octet) => self.pass(octet, State::Extension { bytes })?,
            (State::SizeEnd { bytes }, b'\n') => {
                self.aside = 0;
                if bytes == 0 { State::Trailer } else { State::Data { left: bytes } }
            }
            (State::DataReturn, b'\r') => State::DataEnd,
            (State::DataEnd, b'\n') => State::Size { bytes: 0, digits: 0 },
            (State::Trailer, b'\r') => State::LastEnd,
            (State::Trailer, octet) => self.pass(octet, State::TrailerLine)?,
            (State::TrailerLine, b'\r') => State::TrailerEnd,
            (State::TrailerLine, octet) => self.pass(octet, State::TrailerLine)?,
            (State::TrailerEnd, b'\n') => State::Trailer,
            _ => return Err(BadChunk),
        })
    }

    /// An octet that means nothing to us.
    fn pass(&mut self, octet: u8, state: State) -> Result<State, BadChunk> {
        self.aside += 1;
        if octet == b'\n' || self.aside > ASIDE_MOST_BYTES { Err(BadChunk) } else { Ok(state) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &[u8]) -> Result<(Vec<u8>, usize, bool), BadChunk> {
        let mut body = Vec::new();
        let (taken, ended) = Chunked::new().feed(text, &mut |part| body.extend_from_slice(part))?;
        Ok((body, taken, ended))
    }

    #[test]
    fn chunks_extensions_and_trailers() {
        let whole = b"4\r\nWiki\r\n6;name=\"v\"\r\npedia \r\nA \r\nin chunks.\r\n000\r\nX-Sum: 7\r\nX: y\r\n\r\nHTTP";
        assert_eq!(read(whole), Ok((b"Wikipedia in chunks.".to_vec(), whole.len() - 4, true)));
        assert_eq!(read(b"0\r\n\r\n"), Ok((vec![], 5, true)));
        assert_eq!(read(b"0\r\n"), Ok((vec![], 3, false)));
    }

    #[test]
    fn what_is_no_chunk_is_refused() {
        for wrong in [
            &b"\r\n"[..],
            b"g\r\n",
            b"-1\r\n",
            b"1\n",
            b";x\r\n",
            b"1\r\nab",
            b"1\r\na\n",
            b"1;a\nb\r\n",
            b"0\r\nA: b\n",
            b"0\r\n\rx",
            b"1000000000000000\r\n",
        ] {
            assert_eq!(read(wrong), Err(BadChunk), "{:?}", String::from_utf8_lossy(wrong));
        }
        assert!(read(&[b"1;", &[b'x'; ASIDE_MOST_BYTES as usize + 1][..]].concat()).is_err());
    }
}
