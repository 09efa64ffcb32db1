//! Numbers and names as people read them.

use std::io::Write;

use railnet_core::Span;
use railnet_job::parallel::{Parallel, Sharding};
use railnet_topology::Cluster;
use railnet_topology::host::DeviceKind;

pub(crate) use railnet_core::nearest;

use crate::terminal;

/// The servers of a job: `4 nodes × 8 H100`, or each run of those that have as many GPUs.
pub(crate) fn servers(cluster: &Cluster, gpu: &str) -> String {
    let nodes = |nodes: u32| count(u64::from(nodes), "node", "nodes");
    if let Some(each) = cluster.ranks().each() {
        return format!("{} × {each} {gpu}", nodes(cluster.nodes));
    }
    let model = |node: u32| {
        let host = cluster.host_of(node);
        host.gpus().first().map(|gpu| match &host.device(*gpu).kind {
            DeviceKind::Gpu { model, .. } => model.clone(),
            _ => String::new(),
        })
    };
    let looks = |node: u32| (cluster.ranks().count(node), model(node));
    let all: Vec<u32> = (0..cluster.nodes).collect();
    let runs = all.chunk_by(|one, other| looks(*one) == looks(*other));
    let told = runs.map(|run| match looks(run[0]) {
        (gpus, Some(model)) => format!("{} × {gpus} {model}", nodes(run.len() as u32)),
        (_, None) => format!("{} without GPUs", nodes(run.len() as u32)),
    });
    told.collect::<Vec<_>>().join(" + ")
}

/// With a comma between thousands: `1,204`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// With a comma between thousands and one decimal: `10,408.6`.
pub(crate) fn tenths(number: f64) -> String {
    let tenths = (number * 10.0).round().max(0.0) as u64;
    format!("{}.{}", grouped(tenths / 10), tenths % 10)
}

/// Microseconds without their unit: `10,408.6`.
pub(crate) fn micros(span: Span) -> String {
    tenths(span.as_us_f64())
}

/// A rate in bits per second with three digits or more: `98.1 Gbps`.
pub(crate) fn rate(bits_per_second: f64) -> String {
    scaled(bits_per_second, &[(1e12, "Tbps"), (1e9, "Gbps"), (1e6, "Mbps"), (1e3, "Kbps")], "bps")
}

/// An amount of data with three digits or more: `130.6 MB`.
pub(crate) fn bytes(amount: u64) -> String {
    scaled(amount as f64, &[(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "KB")], "B")
}

fn scaled(value: f64, units: &[(f64, &str)], smallest: &str) -> String {
    let Some((size, name)) = units.iter().find(|(size, _)| value >= *size) else {
        return format!("{value:.0} {smallest}");
    };
    let value = value / size;
    let digits = if value < 9.995 { 2 } else { usize::from(value < 999.95) };
    let text = format!("{value:.digits$}");
    let text = if digits > 0 { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text} {name}")
}

/// Three digits and a unit: `20.2 ms`.
pub(crate) fn time(span: Span) -> String {
    let us = span.as_us_f64();
    if us == 0.0 {
        return "0 s".to_owned();
    }
    let (value, unit) = match us {
        us if us >= 1e6 => (us / 1e6, "s"),
        us if us >= 1e3 => (us / 1e3, "ms"),
        us if us >= 0.01 => (us, "µs"),
        us => (us * 1e3, "ns"),
    };
    let digits = if value >= 100.0 { 0 } else { 1 + usize::from(value < 10.0) };
    format!("{value:.digits$} {unit}")
}

/// A part in hundredths: `38 %`.
pub(crate) fn percent(part: f64) -> String {
    format!("{:.0} %", part * 100.0)
}

/// As people say it: 400 M, 70.6 B.
pub(crate) fn magnitude(number: f64) -> String {
    let units = [(1e12, "T"), (1e9, "B")];
    let (size, unit) = units.into_iter().find(|(size, _)| number >= *size).unwrap_or((1e6, "M"));
    let value = number / size;
    let digits = usize::from(value < 100.0);
    format!("{value:.digits$} {unit}")
}

/// The dimensions of a layout that are used: `tensor × 8, data × 32, zero 1`.
pub(crate) fn spread(parallel: &Parallel) -> String {
    let axes = [
        ("tensor", parallel.tensor),
        ("context", parallel.context),
        ("pipeline", parallel.pipeline),
        ("expert", parallel.expert),
        ("data", parallel.data),
    ];
    let used = axes.into_iter().filter(|(_, size)| *size > 1);
    let mut words: Vec<String> = used.map(|(name, size)| format!("{name} × {size}")).collect();
    if words.is_empty() {
        words.push("one rank".to_owned());
    }
    if parallel.sharding != Sharding::None {
        words.push(format!("zero {}", parallel.sharding as u8));
    }
    words.join(", ")
}

/// Rows with their columns under each other: words begin at the left, in the first column and in those named; numbers end at the
/// right.
pub(crate) fn columns<R: AsRef<[String]>>(
    rows: &[R],
    words: &[usize],
    out: &mut dyn Write,
) -> std::io::Result<()> {
    let count = rows.iter().map(|row| row.as_ref().len()).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.as_ref().get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..count).map(width).collect();
    for row in rows {
        let cells = row.as_ref().iter().enumerate().map(|(column, cell)| {
            let pad = " ".repeat(widths[column] - cell.chars().count());
            let is_word = column == 0 || words.contains(&column);
            if is_word { format!("{cell}{pad}") } else { format!("{pad}{cell}") }
        });
        let line = cells.collect::<Vec<_>>().join("  ");
        writeln!(out, "  {}", line.trim_end())?;
    }
    Ok(())
}

/// A text in lines that can be read, each two letters in.
pub(crate) fn paragraph(text: &str, out: &mut dyn Write) -> std::io::Result<()> {
    let width = terminal::text_columns();
    let mut line = String::from(" ");
    for word in text.split_whitespace() {
        if line.chars().count() + 1 + word.chars().count() > width && line.len() > 1 {
            writeln!(out, "{line}")?;
            line = String::from(" ");
        }
        line.push(' ');
        line.push_str(word);
    }
    writeln!(out, "{line}")
}

/// A name and what it stands for, in lines that can be read.
pub(crate) fn item(name: &str, width: usize, text: &str, out: &mut dyn Write) -> std::io::Result<()> {
    let (indent, mut line) = (width + 4, format!("  {name:<width$}  "));
    for word in text.split_whitespace() {
        if line.chars().count() + word.chars().count() > terminal::text_columns()
            && line.trim().len() > name.len()
        {
            writeln!(out, "{}", line.trim_end())?;
            line = " ".repeat(indent);
        }
        line.push_str(word);
        line.push(' ');
    }
    writeln!(out, "{}", line.trim_end())
}

/// `1 host`, `17 hosts`.
pub(crate) fn count(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", grouped(number), if number == 1 { one } else { many })
}

/// The name of a value as scenarios write it: `DcqcnPaper` is `dcqcn-paper`.
pub(crate) fn kebab(value: &impl std::fmt::Debug) -> String {
    let mut text = String::new();
    for letter in format!("{value:?}").chars() {
        if letter.is_uppercase() && !text.is_empty() {
            text.push('-');
        }
        text.extend(letter.to_lowercase());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_commas_and_units() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(tenths(10_408.64), "10,408.6");
        assert_eq!(tenths(999.96), "1,000.0");
        assert_eq!(rate(98.13e9), "98.1 Gbps");
        assert_eq!(rate(6.4e12), "6.4 Tbps");
        assert_eq!(rate(12.0), "12 bps");
        assert_eq!(bytes(128_000_000), "128 MB");
        assert_eq!(bytes(1_636_400), "1.64 MB");
        assert_eq!(count(1, "switch", "switches"), "1 switch");
    }

    #[test]
    fn names_are_those_of_scenarios() {
        #[derive(Debug)]
        struct DcqcnPaper;
        assert_eq!(kebab(&DcqcnPaper), "dcqcn-paper");
    }
}
