//! LOC (RFC 1876): a place on the globe. 16 octets: version, size, horizontal and vertical precision, each
//! a decimal digit and a power of ten in centimetres; latitude, longitude, altitude.

use std::fmt;

use crate::parse::{Cursor, Parsed, decimal};
use crate::scan::Token;

/// Thousandths of an arc second in a degree, a minute.
const DEGREE: u64 = 3_600_000;
const MINUTE: u64 = 60_000;
const EQUATOR: u32 = 1 << 31;
/// The altitude's zero is 100,000 m below the reference.
const ALTITUDE_BASE_CM: i64 = 10_000_000;

/// `d1 [m1 [s1]] N|S d2 [m2 [s2]] E|W alt[m] [size[m] [hp[m] [vp[m]]]]` (RFC 1876 section 3).
pub(crate) fn read(cursor: &mut Cursor<'_>, out: &mut Vec<u8>) -> Parsed<()> {
    let latitude = angle(cursor, 90, b"NS")?;
    let longitude = angle(cursor, 180, b"EW")?;
    let (text, token) = cursor.word("an altitude")?;
    let altitude = centimetres(text)
        .and_then(|cm| u32::try_from(cm + ALTITUDE_BASE_CM).ok())
        .ok_or_else(|| cursor.wrong(token, "is not an altitude; write metres from -100000.00 to 42849672.95"))?;
    // the defaults of section 3: 1 m, 10,000 m, 10 m
    let mut sizes = [0x12, 0x16, 0x13];
    for size in &mut sizes {
        if let Some(token) = cursor.peek() {
            cursor.skip();
            *size = centimetres(cursor.text(token))
                .and_then(|cm| u64::try_from(cm).ok())
                .and_then(digit_and_power)
                .ok_or_else(|| cursor.wrong(token, "is not a size; write metres from 0 to 90000000.00"))?;
        }
    }
    out.push(0);
    out.extend_from_slice(&sizes);
    out.extend_from_slice(&latitude.to_be_bytes());
    out.extend_from_slice(&longitude.to_be_bytes());
    out.extend_from_slice(&altitude.to_be_bytes());
    Ok(())
}

fn angle(cursor: &mut Cursor<'_>, most_degrees: u64, directions: &[u8; 2]) -> Parsed<u32> {
    let wanted = "degrees, minutes, seconds and a direction";
    let scales = [(most_degrees, DEGREE), (59, MINUTE), (59, 1000)];
    let mut total = 0;
    for (part, (most, scale)) in scales.into_iter().enumerate() {
        let (text, token) = cursor.word(wanted)?;
        if part > 0
            && let Some(turned) = direction(text, directions)
        {
            return turn(cursor, token, total, turned, most_degrees);
        }
        let value =
            if scale == 1000 { thousandths(text) } else { decimal(text).and_then(|value| value.checked_mul(scale)) };
        total += value
            .filter(|value| value / scale <= most)
            .ok_or_else(|| cursor.wrong(token, &format!("is not a number from 0 to {most}")))?;
    }
    let (text, token) = cursor.word(wanted)?;
    match direction(text, directions) {
        Some(turned) => turn(cursor, token, total, turned, most_degrees),
        None => {
            let [one, other] = directions.map(char::from);
            Err(cursor.wrong(token, &format!("is not {one} or {other}")))
        }
    }
}

/// Whether the text is the first (`Some(false)`) or the second of the directions.
fn direction(text: &[u8], directions: &[u8; 2]) -> Option<bool> {
    let &[letter] = text else { return None };
    directions.iter().position(|&known| known == letter.to_ascii_uppercase()).map(|at| at == 1)
}

fn turn(cursor: &Cursor<'_>, token: Token, total: u64, negative: bool, most_degrees: u64) -> Parsed<u32> {
    let sum = u32::try_from(total).ok().filter(|_| total <= most_degrees * DEGREE);
    let sum = sum.ok_or_else(|| cursor.wrong(token, &format!("makes more than {most_degrees} degrees")))?;
    Ok(if negative { EQUATOR - sum } else { EQUATOR + sum })
}

/// A decimal with up to `places` digits behind the point, as a whole number of the last place.
fn scaled(text: &[u8], places: usize) -> Option<u64> {
    let point = text.iter().position(|&octet| octet == b'.');
    let (whole, fraction) = match point {
        Some(at) => (&text[..at], &text[at + 1..]),
        None => (text, &b""[..]),
    };
    if fraction.len() > places || whole.len() > 12 || (whole.is_empty() && fraction.is_empty()) {
        return None;
    }
    let mut value = if whole.is_empty() { 0 } else { decimal(whole)? };
    for place in 0..places {
        let digit = fraction.get(place).copied().unwrap_or(b'0');
        value = value * 10 + digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
    }
    Some(value)
}

fn thousandths(text: &[u8]) -> Option<u64> {
    scaled(text, 3)
}

fn centimetres(text: &[u8]) -> Option<i64> {
    let text = text.strip_suffix(b"m").unwrap_or(text);
    let (digits, sign) = match text {
        [b'-', rest @ ..] => (rest, -1),
        [b'+', rest @ ..] => (rest, 1),
        _ => (text, 1),
    };
    Some(i64::try_from(scaled(digits, 2)?).ok()? * sign)
}

/// The leading digit and the power of ten of a number of centimetres up to 9e9.
fn digit_and_power(cm: u64) -> Option<u8> {
    let (mut digit, mut power) = (cm, 0u8);
    while digit >= 10 {
        digit /= 10;
        power += 1;
    }
    (power <= 9).then_some((digit as u8) << 4 | power)
}

/// Whether [`read`] would make these very octets of what [`write`] prints: angles on the globe, and no power of
/// ten behind a zero.
pub(crate) fn has_text(rdata: &[u8]) -> bool {
    let word = |at: usize| u32::from_be_bytes([rdata[at], rdata[at + 1], rdata[at + 2], rdata[at + 3]]);
    let on_globe = |at: usize, degrees: u64| u64::from(word(at).abs_diff(EQUATOR)) <= degrees * DEGREE;
    rdata[1..4].iter().all(|&size| size >> 4 != 0 || size == 0) && on_globe(4, 90) && on_globe(8, 180)
}

/// Prints what [`read`] reads; `rdata` has passed the layout's check.
pub(crate) fn write(rdata: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let word = |at: usize| u32::from_be_bytes([rdata[at], rdata[at + 1], rdata[at + 2], rdata[at + 3]]);
    for (value, directions) in [(word(4), ['N', 'S']), (word(8), ['E', 'W'])] {
        let size = u64::from(value.abs_diff(EQUATOR));
        let (degrees, minutes) = (size / DEGREE, size / MINUTE % 60);
        let (seconds, thousandths) = (size / 1000 % 60, size % 1000);
        let direction = directions[usize::from(value < EQUATOR)];
        write!(f, "{degrees} {minutes} {seconds}.{thousandths:03} {direction} ")?;
    }
    let altitude = i64::from(word(12)) - ALTITUDE_BASE_CM;
    let sign = if altitude < 0 { "-" } else { "" };
    write!(f, "{sign}{}.{:02}m", altitude.abs() / 100, altitude.abs() % 100)?;
    for octet in &rdata[1..4] {
        let cm = u64::from(octet >> 4) * 10u64.pow(u32::from(octet & 15));
        write!(f, " {}.{:02}m", cm / 100, cm % 100)?;
    }
    Ok(())
}
