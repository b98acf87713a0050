//! Azure's LLM inference traces: when requests arrive and how long they are.
//!
//! CSV with `TIMESTAMP` (`2023-11-16 18:15:46.6805900`), `ContextTokens`, `GeneratedTokens`
//! (github.com/Azure/AzurePublicDataset).

use crate::ImportError;
use crate::table::Table;

/// Arrivals beyond this are refused: half a year of the recorded rate.
const ARRIVALS_MAX: usize = 1 << 24;

/// One request's arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Time after the first arrival, ns.
    pub at_ns: u64,
    /// Prompt tokens.
    pub prompt_tokens: u32,
    /// Output tokens.
    pub output_tokens: u32,
}

/// Reads an arrivals CSV, gzip or plain; `name` is for messages.
///
/// # Errors
/// Names the line and column of a field that is not readable, or of a time that falls.
pub fn arrivals_with_lengths(bytes: &[u8], name: &str) -> Result<Vec<Arrival>, ImportError> {
    let mut table = Table::open(name, bytes)?;
    let time = table.need(&["TIMESTAMP"])?;
    let prompt = table.need(&["ContextTokens"])?;
    let output = table.need(&["GeneratedTokens"])?;
    let mut arrivals: Vec<Arrival> = Vec::new();
    let mut start = None;
    while table.advance()? {
        if arrivals.len() == ARRIVALS_MAX {
            let (file, limit) = (name.to_owned(), ARRIVALS_MAX as u64);
            return Err(ImportError::Limit { file, what: "number of arrivals", limit });
        }
        let at = timestamp_ns(table.text(time))
            .ok_or_else(|| table.fault(time, "a time like `2023-11-16 18:15:46.6805900`"))?;
        let at_ns = at
            .checked_sub(*start.get_or_insert(at))
            .filter(|at_ns| arrivals.last().is_none_or(|last| last.at_ns <= *at_ns))
            .ok_or_else(|| table.fault(time, "times in order"))?;
        arrivals.push(Arrival {
            at_ns,
            prompt_tokens: table.number(prompt, "a whole number")?,
            output_tokens: table.number(output, "a whole number")?,
        });
    }
    Ok(arrivals)
}

/// Times of arrival alone, ns after the first.
///
/// # Errors
/// As [`arrivals_with_lengths`].
pub fn arrivals(bytes: &[u8], name: &str) -> Result<Vec<u64>, ImportError> {
    Ok(arrivals_with_lengths(bytes, name)?.iter().map(|arrival| arrival.at_ns).collect())
}

/// Nanoseconds since 1970 of `YYYY-MM-DD HH:MM:SS[.fraction]` without a time zone.
fn timestamp_ns(text: &str) -> Option<u64> {
    let (date, time) = text.split_once([' ', 'T'])?;
    let [year, month, day] = three(date, '-')?;
    let (clock, fraction) = time.split_once('.').unwrap_or((time, ""));
    let [hour, minute, second] = three(clock, ':')?;
    let in_range = (1970..=2200).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second <= 60;
    let digits = fraction.len() <= 9 && fraction.bytes().all(|byte| byte.is_ascii_digit());
    if !in_range || !digits {
        return None;
    }
    let nanos: u64 = format!("{fraction:0<9}").parse().ok()?;
    let seconds = ((days(year, month, day) * 24 + hour) * 60 + minute) * 60 + second;
    Some(seconds * 1_000_000_000 + nanos)
}

fn three(text: &str, separator: char) -> Option<[u64; 3]> {
    let mut parts = text.split(separator).map(|part| match part.len() {
        1..=4 if part.bytes().all(|byte| byte.is_ascii_digit()) => part.parse::<u64>().ok(),
        _ => None,
    });
    let three = [parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then_some(three)
}

/// Days since 1970-01-01 in the Gregorian calendar (Hinnant, "chrono-compatible low-level date
/// algorithms").
fn days(year: u64, month: u64, day: u64) -> u64 {
    let shifted = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (shifted / 400, shifted % 400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HEAD: &str = "TIMESTAMP,ContextTokens,GeneratedTokens\n";

    #[test]
    fn times_count_from_the_first() {
        let text = format!(
            "{HEAD}2023-12-31 23:59:59.5000000,374,44\n2024-01-01 00:00:00.2500000,396,109\n\
             2024-03-01 00:00:00.2500000,1,1\n"
        );
        let arrivals = arrivals_with_lengths(text.as_bytes(), "a.csv").unwrap();
        assert_eq!(arrivals[0].at_ns, 0);
        assert_eq!(
            arrivals[1],
            Arrival { at_ns: 750_000_000, prompt_tokens: 396, output_tokens: 109 }
        );
        assert_eq!(arrivals[2].at_ns - arrivals[1].at_ns, 60 * 86_400 * 1_000_000_000);
        assert_eq!(days(1970, 1, 1), 0);
        assert_eq!(days(2000, 3, 1), 11_017);
    }

    #[test]
    fn faults_are_named_by_line_and_column() {
        let message = |text: &str| arrivals(text.as_bytes(), "a.csv").unwrap_err().to_string();
        let text = format!("{HEAD}2023-11-16 18:15:46,1,2\n2023-11-16 18:15:45,1,2\n");
        assert_eq!(
            message(&text),
            "a.csv: line 3, column `TIMESTAMP`: `2023-11-16 18:15:45`, expected times in order"
        );
        assert!(message(&format!("{HEAD}yesterday,1,2\n")).contains("line 2, column `TIMESTAMP`"));
        assert!(
            message(&format!("{HEAD}2023-11-16 18:15:46,-1,2\n")).contains("`ContextTokens`: `-1`")
        );
        assert!(
            message(&format!("{HEAD}2023-11-16 18:15:46,1\n")).contains("2 fields, expected 3")
        );
        assert!(message("a,b\n").contains("no column `TIMESTAMP`"));
        assert!(message("").contains("it has none"));
    }

    proptest! {
        #[test]
        fn any_bytes_end_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = arrivals(&bytes, "a.csv");
            let _ = arrivals(&[HEAD.as_bytes(), &bytes].concat(), "a.csv");
        }

        #[test]
        fn any_time_ends_without_panic(text in "[0-9:. T-]{0,30}") {
            let _ = timestamp_ns(&text);
        }
    }
}
