//! Answers, compared octet by octet with what was stored.

use super::workload::{KEY_MOST_BYTES, Records};
use arrayvec::ArrayVec;

/// Octets of `VALUE`, key, flags, length and a line's end, at most.
const LINE_MOST_BYTES: usize = 6 + KEY_MOST_BYTES + 16;
const END: &[u8] = b"\r\nEND\r\n";

/// What was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Get,
    Set,
}

/// What came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Hit,
    Miss,
    Stored,
    /// the server says that it could not
    Refused,
    /// not what was stored
    Wrong,
}

/// Appends a request.
pub(super) fn write_request(records: &Records, kind: Kind, record: u32, out: &mut Vec<u8>) {
    let mut line = ArrayVec::<u8, LINE_MOST_BYTES>::new();
    line.extend(match kind {
        Kind::Get => *b"get ",
        Kind::Set => *b"set ",
    });
    records.write_key(record, &mut line);
    if kind == Kind::Set {
        line.extend(*b" 0 0 ");
        write_number(&mut line, records.value(record).len());
    }
    line.extend(*b"\r\n");
    out.extend_from_slice(&line);
    if kind == Kind::Set {
        out.extend_from_slice(records.value(record));
        out.extend_from_slice(b"\r\n");
    }
}

fn write_number(line: &mut ArrayVec<u8, LINE_MOST_BYTES>, number: usize) {
    if number >= 10 {
        write_number(line, number / 10);
    }
    line.push(b'0' + (number % 10) as u8);
}

/// The answer at the front of what came and its octets; None when it is not whole yet.
pub(super) fn read(records: &Records, kind: Kind, record: u32, bytes: &[u8]) -> Option<(Answer, usize)> {
    if kind == Kind::Get && bytes.starts_with(b"VALUE ") {
        return read_value(records, record, bytes);
    }
    let end = memchr::memchr(b'\n', bytes)? + 1;
    let answer = match (kind, &bytes[..end]) {
        (Kind::Get, b"END\r\n") => Answer::Miss,
        (Kind::Set, b"STORED\r\n") => Answer::Stored,
        (_, line) if line.starts_with(b"SERVER_ERROR") => Answer::Refused,
        _ => Answer::Wrong,
    };
    Some((answer, end))
}

fn read_value(records: &Records, record: u32, bytes: &[u8]) -> Option<(Answer, usize)> {
    let value = records.value(record);
    let mut line = ArrayVec::<u8, LINE_MOST_BYTES>::new();
    line.extend(*b"VALUE ");
    records.write_key(record, &mut line);
    line.extend(*b" 0 ");
    write_number(&mut line, value.len());
    line.extend(*b"\r\n");
    let whole = line.len() + value.len() + END.len();
    let known = bytes.len().min(line.len());
    if bytes[..known] != line[..known] {
        return Some((Answer::Wrong, bytes.len()));
    }
    let bytes = bytes.get(..whole)?;
    let (found, end) = bytes[line.len()..].split_at(value.len());
    Some((if found == value && end == END { Answer::Hit } else { Answer::Wrong }, whole))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memcache::Mix;

    #[test]
    fn an_answer_is_compared_wherever_it_is_cut() {
        let records = Records::new(Mix::Etc, 1000, None).unwrap();
        for record in 0..200 {
            let mut request = Vec::new();
            write_request(&records, Kind::Get, record, &mut request);
            let key = request[4..request.len() - 2].to_vec();
            let value = records.value(record);
            let head = [b"VALUE ", &key[..], format!(" 0 {}\r\n", value.len()).as_bytes()].concat();
            let answer = [&head[..], value, b"\r\nEND\r\n"].concat();
            for cut in 0..answer.len() {
                assert_eq!(read(&records, Kind::Get, record, &answer[..cut]), None, "{cut}");
            }
            let more = [&answer[..], b"VALUE next"].concat();
            assert_eq!(read(&records, Kind::Get, record, &more), Some((Answer::Hit, answer.len())));
            let mut wrong = answer.clone();
            let last = wrong.len() - 8;
            wrong[last] ^= 1;
            assert!(matches!(read(&records, Kind::Get, record, &wrong), Some((Answer::Wrong, _))));
            assert!(matches!(read(&records, Kind::Get, record + 1, &answer), Some((Answer::Wrong, _))));
            request.clear();
            write_request(&records, Kind::Set, record, &mut request);
            let line = [b"set ", &key[..], format!(" 0 0 {}\r\n", value.len()).as_bytes()].concat();
            assert_eq!(request, [&line[..], value, b"\r\n"].concat());
        }
        for (kind, text, expected) in [
            (Kind::Get, &b"END\r\n"[..], Some((Answer::Miss, 5))),
            (Kind::Get, b"EN", None),
            (Kind::Set, b"STORED\r\nmore", Some((Answer::Stored, 8))),
            (Kind::Set, b"SERVER_ERROR out of memory storing object\r\n", Some((Answer::Refused, 43))),
            (Kind::Get, b"STORED\r\n", Some((Answer::Wrong, 8))),
        ] {
            assert_eq!(read(&records, kind, 0, text), expected, "{}", String::from_utf8_lossy(text));
        }
    }
}
