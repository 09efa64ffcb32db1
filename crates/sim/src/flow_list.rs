//! Flows that a file lists: in columns with names, in the usual four, or as HPCC's ns-3 has them.

use railnet_core::{Bytes, Span};
use railnet_topology::FabricGraph;

use crate::rows::{Row, rows};
use crate::scenario::{HostName, ScenarioError, SourceFile};
use crate::traffic::Flow;

/// The columns of a file.
struct Columns {
    source: usize,
    target: usize,
    bytes: usize,
    start: Option<(usize, StartUnit)>,
    priority: Option<usize>,
    /// How many a line has at most.
    count: usize,
}

/// How a start is written.
#[derive(Clone, Copy)]
enum StartUnit {
    /// With its unit.
    Written,
    /// As a number of these.
    Number(&'static str),
}

impl Columns {
    /// Where no names are given.
    const USUAL: Self = Self {
        source: 0,
        target: 1,
        bytes: 2,
        start: Some((3, StartUnit::Written)),
        priority: None,
        count: 4,
    };

    /// `source target priority port bytes start`, the start in seconds.
    const HPCC: Self = Self {
        source: 0,
        target: 1,
        bytes: 4,
        start: Some((5, StartUnit::Number("s"))),
        priority: Some(2),
        count: 6,
    };

    /// From the names on top of a file.
    fn named(row: &Row<'_>) -> Result<Self, ScenarioError> {
        let mut columns = Self { start: None, count: row.len(), ..Self::USUAL };
        let mut found = [false; 3];
        for place in 0..row.len() {
            match row.text(place).unwrap_or_default() {
                "source" => (columns.source, found[0]) = (place, true),
                "target" => (columns.target, found[1]) = (place, true),
                "bytes" => (columns.bytes, found[2]) = (place, true),
                "start" => columns.start = Some((place, StartUnit::Written)),
                "start_us" => columns.start = Some((place, StartUnit::Number("us"))),
                "start_ns" => columns.start = Some((place, StartUnit::Number("ns"))),
                "start_s" => columns.start = Some((place, StartUnit::Number("s"))),
                "priority" => columns.priority = Some(place),
                // What a run writes besides can be read back.
                "finish_us" => {}
                name => {
                    let known = "source, target, bytes, start, start_us, start_ns, start_s, priority";
                    return Err(row.wrong(place, format!("there is no column \"{name}\": one of {known}")));
                }
            }
        }
        for (name, found) in ["source", "target", "bytes"].into_iter().zip(found) {
            if !found {
                return Err(row.wrong_line(format!("the column \"{name}\" is missing")));
            }
        }
        Ok(columns)
    }
}

/// The flows of a file; what it does not say is as in `template`. `dscp_of` finds the DSCP of a priority.
pub(crate) fn read(
    file: &SourceFile,
    graph: &FabricGraph,
    template: &Flow,
    dscp_of: impl Fn(u8) -> Result<u8, ScenarioError>,
    most: usize,
) -> Result<Vec<Flow>, ScenarioError> {
    let mut lines = rows(file).peekable();
    let Some(first) = lines.peek() else {
        return Err(file.wrong(0..0, "there are no flows here: write source,target,bytes,start on a line"));
    };
    let mut columns = Columns::USUAL;
    let mut announced = None;
    let has = |name: &str| (0..first.len()).any(|place| first.text(place) == Some(name));
    if has("source") || has("target") {
        columns = Columns::named(first)?;
        lines.next();
    } else if first.len() == 1 {
        // HPCC's files begin with how many there are.
        announced = Some(first.number::<usize>(0, "the number of flows")?);
        columns = Columns::HPCC;
        lines.next();
    }
    let mut flows = Vec::new();
    for row in lines {
        if flows.len() >= most {
            return Err(row.wrong_line(format!("more than {most} flows are too many for a run")));
        }
        flows.push(flow(&row, &columns, graph, template, &dscp_of)?);
    }
    match announced {
        Some(count) if count != flows.len() => {
            Err(file.wrong(0..0, format!("{count} flows are announced and {} are there", flows.len())))
        }
        _ => Ok(flows),
    }
}

fn flow(
    row: &Row<'_>,
    columns: &Columns,
    graph: &FabricGraph,
    template: &Flow,
    dscp_of: &impl Fn(u8) -> Result<u8, ScenarioError>,
) -> Result<Flow, ScenarioError> {
    if row.len() > columns.count {
        let message = format!("a line has {} fields at most, and here are {}", columns.count, row.len());
        return Err(row.wrong(columns.count, message));
    }
    let host = |place: usize, what: &str| {
        let text = row.text(place).ok_or_else(|| row.wrong_line(format!("the {what} is missing")))?;
        let name = text.parse().map_or_else(|_| HostName::Name(text.to_owned()), HostName::Number);
        name.find(graph)
            .map_err(|error| ScenarioError { meant: error.meant, ..row.wrong(place, error.message) })
    };
    let (source, target) = (host(columns.source, "source")?, host(columns.target, "target")?);
    if source == target {
        return Err(
            row.wrong(columns.target, format!("a flow from host {source} to itself crosses no network"))
        );
    }
    let bytes = amount(row, columns.bytes)?;
    let after = match columns.start {
        Some((place, unit)) => start(row, place, unit)?,
        None => Span::ZERO,
    };
    let mut flow = Flow { source, target, bytes, start: template.start + after, ..*template };
    if let Some(place) = columns.priority
        && row.text(place).is_some()
    {
        flow.priority = row.number(place, "a priority")?;
        flow.dscp = dscp_of(flow.priority).map_err(|error| row.wrong(place, error.message))?;
    }
    Ok(flow)
}

/// Bytes, as a plain number or with a unit.
fn amount(row: &Row<'_>, place: usize) -> Result<u64, ScenarioError> {
    let text = row.text(place).ok_or_else(|| row.wrong_line("the number of bytes is missing"))?;
    if let Ok(bytes) = text.parse() {
        return Ok(bytes);
    }
    row.optional::<Bytes>(place).map(|bytes| bytes.map_or(0, Bytes::as_u64))
}

fn start(row: &Row<'_>, place: usize, unit: StartUnit) -> Result<Span, ScenarioError> {
    let Some(text) = row.text(place) else { return Ok(Span::ZERO) };
    match unit {
        StartUnit::Written => Ok(row.optional(place)?.unwrap_or(Span::ZERO)),
        StartUnit::Number(unit) => {
            let parse = |text: &str| format!("{text}{unit}").parse::<Span>();
            parse(text).map_err(|error| row.wrong(place, error.to_string()))
        }
    }
}
