//! The page: its files, and one file with a run in it.

use std::collections::{BTreeMap, BTreeSet};

use railnet_formats::run_file::{Query, RankShares, RunFile, Table, coarser, packet_latency, select};
use serde_json::{Map, Value, json};

use super::http::Response;
use super::packet;

const HTML: &str = include_str!("../../embedded/page/index.html");
const SCRIPT: &str = include_str!("../../embedded/page/page.js");
const STYLE: &str = include_str!("../../embedded/page/page.css");

/// Rows of each table that a report has: enough for every picture, few enough to be mailed.
const REPORT_ROWS: usize = 20_000;
/// Packets that a report shows byte by byte: so many of all over the run, and so many of the connection that is there whole.
const REPORT_PACKETS: usize = 300;
/// So many of them follow each other.
const REPORT_NEIGHBOURS: usize = 6;
/// Rows of the shares of time of ranks, where not all operations are in a report; the fewest bins of a rank, and the most.
const REPORT_SHARES: usize = 60_000;
const REPORT_BINS: (usize, usize) = (128, 4_096);
/// A run beside the one that a report is about has this part of what that one has.
const BESIDE_PART: usize = 4;
/// Where the page keeps its own script and style.
const SCRIPT_TAG: &str = r#"<script type="module" src="/page.js"></script>"#;
const STYLE_TAG: &str = r#"<link rel="stylesheet" href="/page.css">"#;

/// A file of the page.
pub(super) fn asset(name: &str) -> Response {
    match name {
        "index.html" => Response::new("text/html; charset=utf-8", HTML),
        "page.js" => Response::new("text/javascript; charset=utf-8", SCRIPT),
        "page.css" => Response::new("text/css; charset=utf-8", STYLE),
        _ => Response::error(404, &format!("there is no {name}")),
    }
}

/// The runs that a page has, by their numbers: the first is what was opened.
pub(super) fn runs(run: &RunFile) -> Value {
    let own = run.others.iter().find_map(|other| other.meta["change"]["was"].as_str());
    let first = json!({ "name": own.unwrap_or("this run"), "role": "own" });
    let other = |other: &RunFile| match other.meta["change"]["name"].as_str() {
        Some(name) => json!({ "name": name, "role": "beside", "asked": other.meta["change"]["asked"] }),
        None => json!({ "name": other.meta["example"], "role": "example" }),
    };
    std::iter::once(first).chain(run.others.iter().map(other)).collect()
}

/// The page with a run inside, and those beside it: one file that opens from disk.
pub(crate) fn report(run: &RunFile) -> String {
    let mut data = section(run, REPORT_ROWS, "", runs(run));
    for (number, other) in run.others.iter().enumerate() {
        data += &section(other, REPORT_ROWS / BESIDE_PART, &format!("-{}", number + 1), Value::Null);
    }
    let policy = r#"<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'">"#;
    let script = format!("<script type=\"module\">{}</script>", SCRIPT.replace("</script", "<\\/script"));
    let style = format!("<style>{STYLE}</style>");
    HTML.replacen("<head>", &format!("<head>\n{policy}"), 1)
        .replacen(STYLE_TAG, &style, 1)
        .replacen(SCRIPT_TAG, "", 1)
        .replacen("</body>", &format!("{data}{script}\n</body>"), 1)
}

/// A run as elements of the page: what it says about itself, its tables, and some packets byte by byte.
fn section(run: &RunFile, most: usize, suffix: &str, runs: Value) -> String {
    let latency = packet_latency(run);
    let mut run = run.with_fewer_packets(most);
    run.meta["latency"] = latency;
    run.meta["runs"] = runs;
    let whole_call = WholeCall::of(&run, most);
    run.meta["kept"]["call"] = whole_call.as_ref().map_or(Value::Null, WholeCall::meta);
    let mut blocks = Vec::new();
    if let Some((count, table)) = shares(&run, most) {
        run.meta["shares"] = count.into();
        blocks.extend(table.block(table.rows));
    }
    let run = &run;
    let width = run.meta["bins"]["width"].as_u64().unwrap_or(1);
    for table in &run.tables {
        match table.name.as_str() {
            // Told packet by packet, below.
            "frames" | "heap" => {}
            // All of them: hops say by number which they belong to.
            "packets" | "hops" => blocks.extend(table.block(table.rows)),
            "load" => {
                let rows: Vec<u32> = (0..table.rows as u32).collect();
                let loads = if table.rows > most { &coarser(table, &rows, most) } else { table };
                blocks.extend(loads.block(loads.rows));
            }
            _ => {
                let query = Query { most, ..Query::all() };
                let (mut rows, total) = select(table, &query, width);
                if rows.len() < total {
                    rows.extend(followed(run, table, most));
                    rows.extend(whole_call.iter().flat_map(|call| call.rows(table, most)));
                    rows.sort_unstable();
                    rows.dedup();
                }
                blocks.extend(table.take(&rows).block(total));
            }
        }
    }
    format!(
        "<script type=\"application/json\" id=\"railnet-run{suffix}\">{}</script>\n<script type=\"text/plain\" \
         id=\"railnet-tables{suffix}\">{}</script>\n<script type=\"application/json\" \
         id=\"railnet-packets{suffix}\">{}</script>\n",
        inert(&run.meta),
        base64(&blocks),
        inert(&stories(run, most * REPORT_PACKETS / REPORT_ROWS))
    )
}

/// What ranks did in bins, as fine as there is room for, where the report has not all of their operations; and how many bins there are.
fn shares(run: &RunFile, most: usize) -> Option<(usize, Table)> {
    let operations = run.table("operations").filter(|table| table.rows > most)?;
    let shares = RankShares::of(operations, &run.meta["alike"]);
    let bins = (REPORT_SHARES / shares.ranks().count().max(1)).clamp(REPORT_BINS.0, REPORT_BINS.1);
    let end = run.meta["duration"].as_u64()?;
    Some((bins, shares.bins((0, end), bins as u64, None)))
}

/// The rows of the connection that is there whole, at most so many.
fn followed(run: &RunFile, table: &Table, most: usize) -> Vec<u32> {
    let one = &run.meta["kept"]["followed"];
    let end = |names: [&str; 2]| Some((one[names[0]].as_u64()?, one[names[1]].as_u64()?));
    let ends = [end(["host", "queue_pair"]), end(["to", "target"])];
    let (Some(host), Some(queue_pair)) = (table.column("host"), table.column("queue_pair")) else {
        return Vec::new();
    };
    let is_it = |row: &u32| {
        ends.contains(&Some((table.get(*row as usize, host), table.get(*row as usize, queue_pair))))
    };
    (0..table.rows as u32).filter(is_it).take(most).collect()
}

/// A channel of a collective of which a report has every slice, where it leaves out others.
struct WholeCall {
    /// Communicator, call and channel.
    is: [u64; 3],
}

impl WholeCall {
    const COLUMNS: [&str; 3] = ["communicator", "sequence", "channel"];

    /// The first channel of the call that has most slices; of several the first.
    fn of(run: &RunFile, most: usize) -> Option<Self> {
        let table = run.table("slices").filter(|table| table.rows > most)?;
        let mut counts: BTreeMap<[u64; 2], (usize, u64)> = BTreeMap::new();
        for row in 0..table.rows as u32 {
            let [communicator, sequence, channel] = Self::cells(table, row);
            let known = counts.entry([communicator, sequence]).or_insert((0, channel));
            *known = (known.0 + 1, known.1.min(channel));
        }
        let most = counts.iter().rev().max_by_key(|(_, (slices, _))| *slices)?;
        Some(Self { is: [most.0[0], most.0[1], most.1.1] })
    }

    fn cells(table: &Table, row: u32) -> [u64; 3] {
        Self::COLUMNS.map(|name| table.column(name).map_or(0, |column| table.get(row as usize, column)))
    }

    fn rows(&self, table: &Table, most: usize) -> Vec<u32> {
        let is_it = |row: &u32| table.name == "slices" && Self::cells(table, *row) == self.is;
        (0..table.rows as u32).filter(is_it).take(most).collect()
    }

    fn meta(&self) -> Value {
        let [communicator, sequence, channel] = self.is;
        json!({ "communicator": communicator, "sequence": sequence, "channel": channel })
    }
}

/// Packets byte by byte. Names and explanations of their headers' fields are there once for all packets that have the same.
fn stories(run: &RunFile, most: usize) -> Value {
    let Some(table) = run.table("packets") else { return json!({ "shapes": [], "stories": {} }) };
    // Some in a row from all over the run, so that neighbours can be compared.
    let step = (table.rows * REPORT_NEIGHBOURS).div_ceil(most).max(REPORT_NEIGHBOURS);
    let mut chosen: BTreeSet<usize> = (0..table.rows).filter(|row| row % step < REPORT_NEIGHBOURS).collect();
    chosen.extend(followed(run, table, most).into_iter().map(|row| row as usize));
    let index = packet::Index::of(run, &chosen);
    let mut shapes: BTreeMap<String, usize> = BTreeMap::new();
    let mut stories = Map::new();
    for row in chosen {
        let Some(mut story) = packet::describe_with(run, row, &index) else { continue };
        let layers = story["layers"].as_array_mut().into_iter().flatten();
        let fields = layers.filter_map(|layer| layer["fields"].as_array_mut()).flatten();
        let values: Vec<Value> = fields.map(|field| field["value"].take()).collect();
        let next = shapes.len();
        let shape = *shapes.entry(story["layers"].take().to_string()).or_insert(next);
        story["layers"] = json!({ "shape": shape, "values": values });
        stories.insert(row.to_string(), story);
    }
    let mut list = vec![Value::Null; shapes.len()];
    for (text, number) in shapes {
        list[number] = serde_json::from_str(&text).unwrap_or_default();
    }
    json!({ "shapes": list, "stories": stories })
}

/// JSON that cannot end the element it stands in, whatever texts it has.
fn inert(value: &Value) -> String {
    value.to_string().replace('<', "\\u003c")
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for part in bytes.chunks(3) {
        let word =
            part.iter().fold(0_u32, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - part.len()));
        for place in 0..4 {
            let digit = DIGITS[(word >> (18 - 6 * place) & 63) as usize];
            text.push(if place <= part.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_rfc_4648() {
        let known = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("foobar", "Zm9vYmFy"),
        ];
        for (plain, text) in known {
            assert_eq!(base64(plain.as_bytes()), text);
        }
    }

    #[test]
    fn texts_of_a_run_cannot_leave_their_element() {
        let value = serde_json::json!({ "name": "</script><script>alert(1)</script>" });
        assert!(!inert(&value).contains('<'));
        assert_eq!(serde_json::from_str::<Value>(&inert(&value)).unwrap(), value);
    }

    #[test]
    fn the_page_has_its_script_and_style_where_a_report_looks_for_them() {
        for tag in ["<head>", STYLE_TAG, SCRIPT_TAG, "</body>"] {
            assert_eq!(HTML.matches(tag).count(), 1, "{tag}");
        }
    }
}
