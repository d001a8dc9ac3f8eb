//! Numbers as C's `strtoull` and its kin read them, since that is what clients were written against: white space and a sign in front, white
//! space or nothing behind.

use arrayvec::ArrayVec;

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

/// The sign and the digits of a number, of any size; None when there is none, it is too large, or something else follows than white space, or a
/// NUL, which ends every text of C's.
fn parse(text: &[u8]) -> Option<(bool, u64)> {
    let text = &text[text.iter().take_while(|byte| is_space(**byte)).count()..];
    let (negative, digits) = match text.first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let count = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if count == 0 || !digits.get(count).is_none_or(|byte| is_space(*byte) || *byte == 0) {
        return None;
    }
    let add = |sum: u64, digit: &u8| sum.checked_mul(10)?.checked_add(u64::from(digit - b'0'));
    Some((negative, digits[..count].iter().try_fold(0, add)?))
}

/// A number of 64 bits without a sign; a minus is understood as C does, and refused when the number is then very large, wherever it stands.
pub(crate) fn unsigned(text: &[u8]) -> Option<u64> {
    let (negative, number) = parse(text)?;
    let number = if negative { number.wrapping_neg() } else { number };
    if number > i64::MAX as u64 && has_minus(text.iter()) { None } else { Some(number) }
}

/// The same, of which 32 bits are kept.
pub(crate) fn unsigned_32(text: &[u8]) -> Option<u32> {
    unsigned(text).map(|number| number as u32)
}

/// A number with a sign, of which 32 bits are kept.
pub(crate) fn signed_32(text: &[u8]) -> Option<i32> {
    let (negative, number) = parse(text)?;
    let number = if negative { 0i64.checked_sub_unsigned(number)? } else { i64::try_from(number).ok()? };
    Some(number as i32)
}

/// An [`unsigned`] number whose text stands in pieces.
pub(crate) fn unsigned_of<'a>(pieces: impl Iterator<Item = &'a [u8]> + Clone) -> Option<u64> {
    // without the white space and the zeros in front, as far as it takes to see that it is too large: a sign, a zero, digits and one byte
    let mut text = ArrayVec::<u8, { DIGITS_MOST + 3 }>::new();
    for mut piece in pieces.clone() {
        if text.is_empty() {
            piece = &piece[leading(piece, is_space)..];
            if let Some((&sign, rest)) = piece.split_first()
                && matches!(sign, b'-' | b'+')
            {
                text.push(sign);
                piece = rest;
            }
        }
        if text.iter().all(|byte| matches!(byte, b'-' | b'+' | b'0')) {
            let zeros = leading(piece, |byte| byte == b'0');
            if zeros > 0 && text.last() != Some(&b'0') {
                text.push(b'0');
            }
            piece = &piece[zeros..];
        }
        text.extend(piece.iter().copied().take(text.remaining_capacity()));
        if text.is_full() {
            break;
        }
    }
    let number = unsigned(&text)?;
    if number > i64::MAX as u64 && has_minus(pieces.flatten()) { None } else { Some(number) }
}

fn has_minus<'a>(text: impl Iterator<Item = &'a u8>) -> bool {
    text.take_while(|byte| **byte != 0).any(|byte| *byte == b'-')
}

/// How many bytes of this kind a piece begins with. There may be very many, so that most are looked at without a branch for each.
fn leading(piece: &[u8], is: impl Fn(u8) -> bool) -> usize {
    const TOGETHER: usize = 64;
    let are_all = |bytes: &&[u8; TOGETHER]| bytes.iter().fold(true, |all, byte| all & is(*byte));
    let many = piece.as_chunks().0.iter().take_while(are_all).count() * TOGETHER;
    many + piece[many..].iter().take_while(|byte| is(**byte)).count()
}

/// Digits that a number has at most.
pub(crate) const DIGITS_MOST: usize = 20;

/// Writes a number behind what is there.
#[inline]
pub(crate) fn write(out: &mut Vec<u8>, number: u64) {
    if number < 10 {
        return out.push(b'0' + number as u8);
    }
    let mut room = [0; DIGITS_MOST];
    out.extend_from_slice(render(number, &mut room));
}

/// A number's digits.
pub(crate) fn digits(number: u64) -> ArrayVec<u8, DIGITS_MOST> {
    let mut room = [0; DIGITS_MOST];
    render(number, &mut room).iter().copied().collect()
}

#[inline]
fn render(mut number: u64, room: &mut [u8; DIGITS_MOST]) -> &[u8] {
    let mut at = DIGITS_MOST;
    loop {
        at -= 1;
        room[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &room[at..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_are_read_as_c_reads_them() {
        for (text, number) in [
            ("0", Some(0)),
            ("  \t12", Some(12)),
            ("12\r", Some(12)),
            ("12 abc", Some(12)),
            ("+7", Some(7)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("-1", None),
            ("-18446744073709551615", Some(1)),
            ("", None),
            ("-", None),
            ("12abc", None),
            ("abc", None),
            ("0x10", None),
            ("7\0x", Some(7)),
            ("\x007", None),
            ("18446744073709551615 -", None),
            ("18446744073709551615\0-", Some(u64::MAX)),
        ] {
            assert_eq!(unsigned(text.as_bytes()), number, "{text}");
        }
        assert_eq!(unsigned_32(b"4294967296"), Some(0));
        assert_eq!(signed_32(b"-1"), Some(-1));
        assert_eq!(signed_32(b"4294967297"), Some(1));
        assert_eq!(signed_32(b"-9223372036854775808"), Some(0));
        assert_eq!((signed_32(b"9223372036854775808"), signed_32(b"1.5")), (None, None));
    }

    proptest! {
        #[test]
        fn pieces_are_read_as_the_whole(
            text in "[ \t]{0,3}[+-]?(0{0,3}|[0-9]{1,21})[ x0-]{0,3}",
            (spaces, zeros) in (0usize..200, 0usize..200),
            cuts in prop::collection::vec(1usize..90, 1..5)
        ) {
            let digits = text.find(|first: char| first.is_ascii_digit()).unwrap_or(text.len());
            let (front, back) = text.split_at(digits);
            let whole = format!("{}{front}{}{back}", " ".repeat(spaces), "0".repeat(zeros));
            let (mut rest, mut pieces) = (whole.as_bytes(), Vec::new());
            for cut in cuts.iter().cycle() {
                let (piece, behind) = rest.split_at(rest.len().min(*cut));
                pieces.push(piece);
                rest = behind;
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(unsigned_of(pieces.into_iter()), unsigned(whole.as_bytes()), "{:?}", whole);
        }

        #[test]
        fn what_is_written_is_read_again(number in any::<u64>()) {
            let mut text = b"x".to_vec();
            write(&mut text, number);
            prop_assert_eq!(std::str::from_utf8(&text[1..]).unwrap(), number.to_string());
            prop_assert_eq!(unsigned(&text[1..]), Some(number));
        }
    }
}
