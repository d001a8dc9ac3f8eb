//! Times in zone files: TTLs with units, and the timestamps of signatures.

const UNITS: [(u8, u64); 5] = [(b's', 1), (b'm', 60), (b'h', 3600), (b'd', 86_400), (b'w', 604_800)];

/// Seconds, or runs of digits each with a unit (`1h30m`, `1W`), up to 32 bits. BIND's form: any letter case, a last run
/// without a unit counts seconds.
pub(crate) fn ttl(text: &[u8]) -> Option<u32> {
    let (mut total, mut run, mut in_run) = (0u64, 0u64, false);
    for octet in text {
        if octet.is_ascii_digit() {
            run = run.checked_mul(10)?.checked_add(u64::from(octet - b'0'))?;
            in_run = true;
        } else {
            let unit = UNITS.iter().find(|unit| unit.0 == octet.to_ascii_lowercase() && in_run)?;
            total = total.checked_add(run.checked_mul(unit.1)?)?;
            (run, in_run) = (0, false);
        }
    }
    if text.is_empty() {
        return None;
    }
    u32::try_from(total.checked_add(run)?).ok()
}

/// `YYYYMMDDHHmmSS` modulo 2^32, or seconds since 1970 in at most ten digits (RFC 4034 section 3.2).
pub(crate) fn timestamp(text: &[u8]) -> Option<u32> {
    if !text.iter().all(u8::is_ascii_digit) || text.is_empty() {
        return None;
    }
    if text.len() <= 10 {
        return u32::try_from(crate::parse::decimal(text)?).ok();
    }
    if text.len() != 14 {
        return None;
    }
    let part = |from: usize, to: usize| text[from..to].iter().fold(0i64, |value, d| value * 10 + i64::from(d - b'0'));
    let (year, month, day) = (part(0, 4), part(4, 6), part(6, 8));
    let (hour, minute, second) = (part(8, 10), part(10, 12), part(12, 14));
    if year < 1970 || !(1..=12).contains(&month) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    if day < 1 || day > days_in(year, month) {
        return None;
    }
    let seconds = days_from_1970(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second;
    // serial number arithmetic makes the upper bits meaningless
    Some(seconds as u32)
}

/// The form that [`timestamp`] reads, of the years 1970 to 2106.
pub(crate) fn format_timestamp(seconds: u32) -> String {
    let (mut days, rest) = (i64::from(seconds / 86_400), seconds % 86_400);
    let (mut year, mut month) = (1970, 1);
    while days >= if is_leap(year) { 366 } else { 365 } {
        days -= if is_leap(year) { 366 } else { 365 };
        year += 1;
    }
    while days >= days_in(year, month) {
        days -= days_in(year, month);
        month += 1;
    }
    format!("{year:04}{month:02}{:02}{:02}{:02}{:02}", days + 1, rest / 3600, rest / 60 % 60, rest % 60)
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_in(year: i64, month: i64) -> i64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

fn days_from_1970(year: i64, month: i64, day: i64) -> i64 {
    let leaps = |year: i64| year / 4 - year / 100 + year / 400;
    let whole_years = (year - 1970) * 365 + leaps(year - 1) - leaps(1969);
    whole_years + (1..month).map(|month| days_in(year, month)).sum::<i64>() + day - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ttls_take_units_in_any_case() {
        for (text, seconds) in
            [("0", 0), ("3600", 3600), ("1h30m", 5400), ("1W2D3H4M5", 788_645), ("4294967295", u32::MAX)]
        {
            assert_eq!(ttl(text.as_bytes()), Some(seconds), "{text}");
        }
        for text in ["", "h", "1hh", "1x", "4294967296", "99999999999999999999w", "-1"] {
            assert_eq!(ttl(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn timestamps_are_read_and_written() {
        // RFC 4034 section 3.3
        for (text, seconds) in
            [("20030322173103", 1_048_354_263), ("19700101000000", 0), ("20240229235959", 1_709_251_199)]
        {
            assert_eq!(timestamp(text.as_bytes()), Some(seconds), "{text}");
            assert_eq!(format_timestamp(seconds), text);
        }
        for text in ["20030230000000", "20031301000000", "200301010000", "2003010100000x", "4294967296"] {
            assert_eq!(timestamp(text.as_bytes()), None, "{text}");
        }
        for seconds in (0..=u32::MAX).step_by(7_654_321) {
            assert_eq!(timestamp(format_timestamp(seconds).as_bytes()), Some(seconds));
        }
    }
}
