//! Tables on the terminal, as JSON, and as a page of the documentation.

use std::fmt::Write as _;
use std::io::Write;

use serde_json::{Map, Value, json};

use super::{Cell, Part};

const HEAD: &str = "\
# Collectives against measurements

`railnet validate --write docs/collectives.md --force` makes this page: it runs every row and writes what came of it, and the same
commit gives the same page. `railnet validate` prints it, `--only NAME` just one part of it, `--full` with rows that take
many minutes: [collectives-full.md](collectives-full.md) has what came of those.

One set of constants is behind all rows: NCCL 2.30's own latencies and bandwidths, of links and of a GPU's threads, the data
sheets of the servers, and the NIC and switches of the simulator. **Nothing is fitted**, so the differences say how good the model is. Figures are bus
bandwidths in GB/s as nccl-tests reports them, unless a row says otherwise. Sources such as nccl#1455 and nccl-tests#212 are
issues of NVIDIA's repositories, where people posted what they measured.
";

const HEAD_FULL: &str = "\
# Collectives against measurements: the long rows too

`railnet validate --full --write docs/collectives-full.md --force` makes this page. It has the parts of
[collectives.md](collectives.md) that have rows which take many minutes, with those rows; what is said there holds here.
";

/// Columns whose text stands on the right, since all of it is numbers.
fn is_number(part: &Part, column: usize) -> bool {
    part.rows.iter().all(|row| row[column].value.is_number() || row[column].value.is_null())
}

pub(super) fn print(part: &Part, out: &mut dyn Write) -> std::io::Result<()> {
    writeln!(out, "{}", part.title)?;
    let width = |column: usize| {
        let cells = part.rows.iter().map(|row| row[column].text.chars().count());
        cells.chain([part.columns[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..part.columns.len()).map(width).collect();
    let line = |texts: &mut dyn Iterator<Item = &str>| {
        let mut line = String::new();
        for ((column, text), width) in texts.enumerate().zip(&widths) {
            let padding = " ".repeat(width - text.chars().count());
            let (before, after) =
                if is_number(part, column) { (padding, String::new()) } else { (String::new(), padding) };
            let _ = write!(line, "  {before}{text}{after}");
        }
        line.trim_end().to_owned()
    };
    writeln!(out, "{}", line(&mut part.columns.iter().copied()))?;
    for row in &part.rows {
        writeln!(out, "{}", line(&mut row.iter().map(|cell| cell.text.as_str())))?;
    }
    for remark in &part.remarks {
        writeln!(out, "  - {}", remark.replace('`', ""))?;
    }
    writeln!(out)
}

pub(super) fn object(parts: &[Part], is_partial: bool) -> Value {
    let part = |part: &Part| {
        let row = |row: &Vec<Cell>| {
            let fields = part.columns.iter().zip(row);
            let fields = fields.map(|(name, cell)| (name.replace([' ', '-'], "_"), cell.value.clone()));
            Value::Object(fields.collect::<Map<String, Value>>())
        };
        let rows: Vec<Value> = part.rows.iter().map(row).collect();
        json!({ "name": part.name, "title": part.title, "rows": rows, "remarks": part.remarks })
    };
    let mut value = json!({ "parts": parts.iter().map(part).collect::<Vec<Value>>() });
    if is_partial {
        value["partial"] = true.into();
    }
    value
}

/// The page with these parts; `is_full` where they are those with long rows.
pub(super) fn markdown(parts: &[Part], is_full: bool) -> String {
    let mut page = if is_full { HEAD_FULL } else { HEAD }.to_owned();
    for part in parts {
        let _ = write!(page, "\n{}", section(part));
    }
    page
}

/// One part of the page.
fn section(part: &Part) -> String {
    let mut text = format!("## {}\n\n{}\n\n", part.title, part.intro);
    let _ = writeln!(text, "| {} |", part.columns.join(" | "));
    let rule = (0..part.columns.len()).map(|column| if is_number(part, column) { "---:" } else { "---" });
    let _ = writeln!(text, "| {} |", rule.collect::<Vec<_>>().join(" | "));
    for row in &part.rows {
        let cells: Vec<&str> = row.iter().map(|cell| cell.text.as_str()).collect();
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
    if !part.remarks.is_empty() {
        text.push('\n');
    }
    for remark in &part.remarks {
        let _ = writeln!(text, "- {remark}");
    }
    text
}
