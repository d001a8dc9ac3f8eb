//! Numbers as C's `strtoull` and its kin read them, since that is what clients were written against: white space and a sign in front, white
//! space or nothing behind.

use arrayvec::ArrayVec;

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

/// The sign and the digits of a number, of any size; None when there is none, it is too large, or something else follows.
fn parse(text: &[u8]) -> Option<(bool, u64)> {
    let text = &text[text.iter().take_while(|byte| is_space(**byte)).count()..];
    let (negative, digits) = match text.first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let count = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if count == 0 || !digits.get(count).is_none_or(|byte| is_space(*byte)) {
        return None;
    }
    let add = |sum: u64, digit: &u8| sum.checked_mul(10)?.checked_add(u64::from(digit - b'0'));
    Some((negative, digits[..count].iter().try_fold(0, add)?))
}

/// A number of 64 bits without a sign; a minus is understood as C does, and refused when the number is then very large.
pub(crate) fn unsigned(text: &[u8]) -> Option<u64> {
    let (negative, number) = parse(text)?;
    let number = if negative { number.wrapping_neg() } else { number };
    if number > i64::MAX as u64 && text.contains(&b'-') { None } else { Some(number) }
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
        fn what_is_written_is_read_again(number in any::<u64>()) {
            let mut text = b"x".to_vec();
            write(&mut text, number);
            prop_assert_eq!(std::str::from_utf8(&text[1..]).unwrap(), number.to_string());
            prop_assert_eq!(unsigned(&text[1..]), Some(number));
        }
    }
}
