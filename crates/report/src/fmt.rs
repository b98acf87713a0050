//! Numbers as people read them: three significant digits, the unit attached, "–" where there is
//! no number.
//!
//! Digits are grouped and units joined by U+202F (narrow no-break space), so that nothing breaks
//! across lines; [`plain`] turns that into ASCII for terminals.

/// The narrow no-break space between groups of digits and before units.
pub const THIN: char = '\u{202f}';
/// What stands for a number that is not there.
pub const NONE: &str = "–";

/// Replaces typographic spaces and the minus sign by ASCII.
pub fn plain(text: &str) -> String {
    text.replace([THIN, '\u{2009}', '\u{a0}'], " ").replace('\u{2212}', "-")
}

/// A number with three significant digits: `0.0123`, `1.23`, `12.3`, `123`, `12 300`.
pub fn number(value: f64) -> String {
    if !value.is_finite() {
        return NONE.to_owned();
    }
    let size = value.abs();
    if size >= 1e15 {
        return minus(format!("{value:.2e}"));
    }
    if size > 0.0 && size < 1e-4 {
        return minus(format!("{value:.1e}"));
    }
    // Round first: 9.996 is 10.0, not 10.00.
    let digits = match size {
        s if s < 1e-12 => 0,
        s if s < 0.009_995 => 4,
        s if s < 0.099_95 => 3,
        s if s < 9.995 => 2,
        s if s < 99.95 => 1,
        _ => 0,
    };
    minus(group(&format!("{value:.digits$}")))
}

/// A whole number with its digits grouped: `1 664`.
pub fn count(value: u64) -> String {
    group(&value.to_string())
}

/// A number and its unit.
pub fn with_unit(value: f64, unit: &str) -> String {
    if !value.is_finite() {
        return NONE.to_owned();
    }
    match unit {
        "" => number(value),
        "%" => format!("{}{THIN}%", number(value)),
        _ => format!("{}{THIN}{unit}", number(value)),
    }
}

/// A time given in ms.
pub fn ms(value_ms: f64) -> String {
    with_unit(value_ms, "ms")
}

/// A time given in µs, in ms from 10,000 µs on.
pub fn us(value_us: f64) -> String {
    if value_us.abs() >= 10_000.0 {
        return ms(value_us / 1e3);
    }
    with_unit(value_us, "µs")
}

/// A time given in seconds, in the unit that suits it: µs, ms, s, min, h.
pub fn seconds(value_s: f64) -> String {
    match value_s.abs() {
        s if s > 0.0 && s < 1e-3 => us(value_s * 1e6),
        s if s > 0.0 && s < 1.0 => ms(value_s * 1e3),
        s if s < 120.0 => with_unit(value_s, "s"),
        s if s < 7200.0 => with_unit(value_s / 60.0, "min"),
        _ => with_unit(value_s / 3600.0, "h"),
    }
}

/// Bytes in decimal units: kB, MB, GB, TB.
pub fn bytes(value: f64) -> String {
    let (scale, unit) = match value.abs() {
        b if b < 1e3 => (1.0, "B"),
        b if b < 1e6 => (1e3, "kB"),
        b if b < 1e9 => (1e6, "MB"),
        b if b < 1e12 => (1e9, "GB"),
        _ => (1e12, "TB"),
    };
    with_unit(value / scale, unit)
}

/// A share (0 to 1) as percent; one decimal below 10 %.
pub fn percent(share: f64) -> String {
    if !share.is_finite() {
        return NONE.to_owned();
    }
    let value = share * 100.0;
    let digits = usize::from(value.abs() < 9.95 && value.abs() > 1e-9);
    minus(group(&format!("{value:.digits$}{THIN}%")))
}

/// A change as a share, with its sign and one decimal below 100 %: `+3.2 %`, `−10.4 %`, `0 %`.
pub fn change(share: f64) -> String {
    let text = match share.abs() {
        s if (0.0995..0.9995).contains(&s) => minus(format!("{:.1}{THIN}%", share * 100.0)),
        _ => percent(share),
    };
    let zero = text.chars().all(|c| !('1'..='9').contains(&c));
    if zero {
        return text.trim_start_matches('\u{2212}').to_owned();
    }
    if share > 0.0 { format!("+{text}") } else { text }
}

/// A factor: `3.21×`.
pub fn factor(value: f64) -> String {
    if value.is_finite() { format!("{}×", number(value)) } else { NONE.to_owned() }
}

/// A quantile as a name: `p50`, `p99`, `p99.9`.
pub fn percentile(q: f64) -> String {
    let text = format!("{:.3}", q * 100.0);
    format!("p{}", text.trim_end_matches('0').trim_end_matches('.'))
}

/// `s` with the ASCII minus replaced by the typographic one, which is as wide as a digit. A zero
/// loses its sign.
fn minus(s: String) -> String {
    let zero = s.chars().all(|c| !('1'..='9').contains(&c));
    match s.strip_prefix('-') {
        Some(rest) if zero => rest.to_owned(),
        _ => s.replace('-', "\u{2212}"),
    }
}

/// Groups the digits before the point by threes, from four digits on.
fn group(s: &str) -> String {
    let start = usize::from(s.starts_with('-'));
    let end = s.find(|c: char| !c.is_ascii_digit() && c != '-').unwrap_or(s.len());
    let digits = &s[start..end];
    if digits.len() < 4 {
        return s.to_owned();
    }
    let mut out = s[..start].to_owned();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(THIN);
        }
        out.push(c);
    }
    out.push_str(&s[end..]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_three_digits() {
        let cases = [
            (0.0, "0"),
            (-0.0, "0"),
            (0.012_34, "0.012"),
            (1.234, "1.23"),
            (9.996, "10.0"),
            (12.34, "12.3"),
            (99.96, "100"),
            (123.4, "123"),
            (1234.0, "1 234"),
            (-1_234_567.0, "-1 234 567"),
            (1e-7, "1.0e-7"),
            (f64::NAN, "–"),
            (f64::NEG_INFINITY, "–"),
        ];
        for (value, text) in cases {
            assert_eq!(plain(&number(value)), text, "{value}");
        }
        assert!(plain(&number(f64::MAX)).starts_with("1.80e308"));
    }

    #[test]
    fn units_suit_the_size() {
        assert_eq!(plain(&seconds(0.000_25)), "250 µs");
        assert_eq!(plain(&seconds(0.25)), "250 ms");
        assert_eq!(plain(&seconds(90.0)), "90.0 s");
        assert_eq!(plain(&seconds(600.0)), "10.0 min");
        assert_eq!(plain(&bytes(1_234_000_000.0)), "1.23 GB");
        assert_eq!(plain(&bytes(512.0)), "512 B");
        assert_eq!(plain(&us(15_000.0)), "15.0 ms");
        assert_eq!(plain(&ms(f64::INFINITY)), "–");
        assert_eq!(plain(&count(1_664)), "1 664");
    }

    #[test]
    fn shares_and_changes_carry_their_sign() {
        assert_eq!(plain(&percent(0.1234)), "12 %");
        assert_eq!(plain(&percent(0.0123)), "1.2 %");
        assert_eq!(plain(&change(0.0123)), "+1.2 %");
        assert_eq!(plain(&change(-0.081)), "-8.1 %");
        assert_eq!(plain(&change(-0.1042)), "-10.4 %");
        assert_eq!(plain(&change(1.5)), "+150 %");
        assert_eq!(plain(&change(-0.000_01)), "0.0 %");
        assert_eq!(percentile(0.999), "p99.9");
        assert_eq!(percentile(0.5), "p50");
    }
}
