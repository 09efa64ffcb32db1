//! Two tables: what differs, and what came of it.

use std::io::Write;

use railnet_core::Span;

use super::Ran;
use super::differs::Difference;
use super::figures::{Figure, Kind, Value};
use crate::words::{self, grouped, tenths};

/// Keys that are shown without being asked for more.
const KEYS_SHOWN: usize = 20;
/// Changes below this part are none.
const SAME: f64 = 0.001;

pub(super) fn print(
    differences: &[Difference],
    titles: &[&str],
    ran: &[Ran],
    verbose: bool,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    changed(differences, ran, verbose, out)?;
    if ran.iter().any(|one| !one.is_whole()) {
        let names: Vec<&str> =
            ran.iter().filter(|one| !one.is_whole()).map(|one| one.name.as_str()).collect();
        writeln!(out)?;
        words::paragraph(&format!("PARTIAL: stopped before the end of {}", names.join(", ")), out)?;
    }
    for (part, title) in titles.iter().enumerate() {
        writeln!(out)?;
        outcome(part, title, ran, verbose, out)?;
    }
    Ok(())
}

/// What differs in the files.
fn changed(
    differences: &[Difference],
    ran: &[Ran],
    verbose: bool,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    if differences.is_empty() {
        return writeln!(out, "  What differs: nothing, the scenarios say the same");
    }
    let shown = if verbose { differences.len() } else { KEYS_SHOWN };
    let mut rows = vec![head("What differs", ran)];
    for difference in differences.iter().take(shown) {
        let cells = difference.values.iter().map(|value| match value {
            Some((text, false)) => text.clone(),
            Some((text, true)) => format!("{text} (default)"),
            None => "–".to_owned(),
        });
        rows.push(std::iter::once(difference.key.clone()).chain(cells).collect());
    }
    let words: Vec<usize> = (0..=ran.len()).collect();
    words::columns(&rows, &words, out)?;
    if differences.len() > shown {
        writeln!(out, "  … and {} more keys: --verbose", differences.len() - shown)?;
    }
    Ok(())
}

fn head(first: &str, ran: &[Ran]) -> Vec<String> {
    std::iter::once(first.to_owned()).chain(ran.iter().map(|one| one.name.clone())).collect()
}

/// What came of a part.
fn outcome(part: usize, title: &str, ran: &[Ran], verbose: bool, out: &mut dyn Write) -> std::io::Result<()> {
    let title = if title.is_empty() { "What came of it" } else { title };
    let mut first = vec![title.to_owned()];
    for (number, one) in ran.iter().enumerate() {
        first.push(one.name.clone());
        if number > 0 {
            first.push(String::new());
        }
    }
    let mut rows = vec![first];
    let mut same = Vec::new();
    for figure in keys(part, ran) {
        let values: Vec<Option<&Value>> =
            ran.iter().map(|one| Some(&one.parts[part].as_ref()?.get(&figure.key)?.value)).collect();
        let is_name = values.iter().any(|value| matches!(value, Some(Value::Name(_))));
        if is_nothing(&values) || (is_name && !verbose) {
            continue;
        }
        if is_same(&values) && !verbose {
            same.push(figure.label.clone());
            continue;
        }
        rows.push(row(&figure.label, &values));
    }
    let words: Vec<usize> = (1..ran.len()).map(|number| 1 + 2 * number).collect();
    words::columns(&rows, &words, out)?;
    if !same.is_empty() {
        writeln!(out, "  The same: {}", same.join(", "))?;
    }
    Ok(())
}

/// All rows that anybody has, in the order of those who have them.
fn keys(part: usize, ran: &[Ran]) -> Vec<&Figure> {
    let mut found: Vec<&Figure> = Vec::new();
    for figure in ran.iter().filter_map(|one| one.parts[part].as_ref()).flat_map(|one| &one.rows) {
        if !found.iter().any(|other| other.key == figure.key) {
            found.push(figure);
        }
    }
    found
}

fn is_nothing(values: &[Option<&Value>]) -> bool {
    values.iter().all(|value| matches!(value, None | Some(Value::Number(_, 0.0))))
}

fn is_same(values: &[Option<&Value>]) -> bool {
    values.iter().all(|value| match (values[0], value) {
        (Some(Value::Number(_, a)), Some(Value::Number(_, b))) => (a - b).abs() <= a.abs() * SAME,
        (Some(Value::Name(a)), Some(Value::Name(b))) => a == b,
        (None, None) => true,
        _ => false,
    })
}

/// A row: the value of each, and by how much it is more or less than the first one's.
fn row(label: &str, values: &[Option<&Value>]) -> Vec<String> {
    let mut cells = vec![label.to_owned()];
    for (number, value) in values.iter().enumerate() {
        cells.push(value.map_or_else(|| "–".to_owned(), shown));
        if number > 0 {
            cells.push(change(values[0], *value));
        }
    }
    cells
}

fn shown(value: &Value) -> String {
    let (kind, number) = match value {
        Value::Name(name) => return name.clone(),
        Value::Number(kind, number) => (kind, *number),
    };
    if number == 0.0 {
        return "0".to_owned();
    }
    match kind {
        Kind::Time => words::time(Span::from_ps((number * 1e6).round() as u64)),
        Kind::Bytes => words::bytes(number as u64),
        Kind::Bandwidth if number < 0.1 => format!("{}/s", words::bytes((number * 1e9).round() as u64)),
        Kind::Bandwidth if number < 9.95 => format!("{number:.2} GB/s"),
        Kind::Bandwidth => format!("{} GB/s", tenths(number)),
        Kind::Count | Kind::PerSecond | Kind::Hours if number < 9.95 && number.fract() != 0.0 => {
            significant(number)
        }
        Kind::Count | Kind::PerSecond | Kind::Hours => grouped(number.round() as u64),
        Kind::Share => format!("{} %", significant(number * 100.0)),
    }
}

/// Two digits that say something, or all before the point: `38`, `3.2`, `0.027`.
fn significant(number: f64) -> String {
    let digits = (0..12).find(|digits| number * 10_f64.powi(*digits) >= 9.95).unwrap_or(12);
    format!("{number:.0$}", digits as usize)
}

/// `+57 %`, `−12 %`, `× 8.4`. Nothing over a number that is shown as 0.
pub(super) fn change(from: Option<&Value>, to: Option<&Value>) -> String {
    let (Some(first), Some(second)) = (from, to) else { return String::new() };
    let (Value::Number(_, from), Value::Number(_, to)) = (first, second) else { return String::new() };
    let is_zero = |value: &Value| !shown(value).contains(|letter: char| ('1'..='9').contains(&letter));
    if is_zero(first) || is_zero(second) || (from - to).abs() <= from.abs() * f64::EPSILON {
        return String::new();
    }
    let ratio = to / from;
    if !(0.2..=3.0).contains(&ratio) {
        let digits = usize::from(ratio < 10.0 && ratio > 0.1);
        return if ratio > 1.0 { format!("× {ratio:.digits$}") } else { format!("÷ {:.1}", 1.0 / ratio) };
    }
    let hundredths = (ratio - 1.0) * 100.0;
    let digits = usize::from(hundredths.abs() < 9.95);
    let sign = if hundredths < 0.0 { "−" } else { "+" };
    format!("{sign}{:.digits$} %", hundredths.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown_as(kind: Kind, number: f64) -> String {
        shown(&Value::Number(kind, number))
    }

    #[test]
    fn small_figures_have_digits_that_say_something() {
        assert_eq!(shown_as(Kind::Bandwidth, 0.032), "32 MB/s");
        assert_eq!(shown_as(Kind::Bandwidth, 1.84), "1.84 GB/s");
        assert_eq!(shown_as(Kind::Bandwidth, 390.25), "390.3 GB/s");
        assert_eq!(shown_as(Kind::Share, 0.000_27), "0.027 %");
        assert_eq!(shown_as(Kind::Share, 0.382), "38 %");
        assert_eq!(shown_as(Kind::Share, 1.0), "100 %");
        assert_eq!(shown_as(Kind::Count, 4.0), "4");
        assert_eq!(shown_as(Kind::PerSecond, 0.25), "0.25");
        assert_eq!(shown_as(Kind::Time, 0.000_2), "0.20 ns");
    }

    #[test]
    fn nothing_is_a_multiple_of_what_is_shown_as_nothing() {
        let number = |number| Value::Number(Kind::Share, number);
        assert_eq!(change(Some(&number(0.000_1)), Some(&number(0.365))), "× 3650");
        assert_eq!(change(Some(&number(1e-18)), Some(&number(0.365))), "");
        assert_eq!(change(Some(&number(0.365)), Some(&number(0.0))), "");
        let time = |us| Value::Number(Kind::Time, us);
        assert_eq!(change(Some(&time(1e-7)), Some(&time(5.0))), "");
    }
}
