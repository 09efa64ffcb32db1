//! The table as people read it.

use std::fmt::Write as _;
use std::io::Write;

use railnet_coll::tuner::{Cell, Crossover, Decision, Estimate, Out, Request, Table};
use railnet_coll::{Algorithm, Collective, Protocol};
use railnet_core::Bytes;

use super::{MOST, Question, bus_bandwidth, per_peer, size};
use crate::words;

/// The widest that a line about sizes gets.
const LINE: usize = 110;

pub(super) fn print(question: &Question, table: &Table, out: &mut dyn Write) -> anyhow::Result<()> {
    let request = &question.request;
    let headline = question.headline();
    writeln!(out, "{headline:<70} time = latency + bytes / bandwidth")?;
    let best = table.best(request.bytes, request.together);
    let winner = best.as_ref().ok().map(|(cell, _)| (cell.algorithm, cell.protocol));
    let rows: Vec<Row> = Algorithm::TUNED
        .into_iter()
        .map(|algorithm| Row::new(question, table, algorithm, winner))
        .filter(|row| !row.is_foreign)
        .collect();
    let width = |column: usize| {
        let texts = rows.iter().map(|row| row.cells[column].chars().count());
        texts.max().unwrap_or(0).max(8) + 2
    };
    let widths = [width(0), width(1), width(2)];
    let mut header = format!("{:<14}", "");
    for (protocol, width) in Protocol::ALL.into_iter().zip(widths) {
        let _ = write!(header, "{:<width$}", protocol.name());
    }
    writeln!(out, "{}", header.trim_end())?;
    for row in &rows {
        let mut line = format!("{:<14}", row.algorithm);
        for ((text, width), protocol) in row.cells.iter().zip(widths).zip(Protocol::ALL) {
            let padding = " ".repeat(width - text.chars().count());
            let text =
                if winner == Some((row.algorithm, protocol)) { question.bold(text) } else { text.clone() };
            let _ = write!(line, "{text}{padding}");
        }
        line.push_str(&row.reason);
        writeln!(out, "{}", line.trim_end())?;
    }
    let (_, estimate) = best?;
    let decision = table.choose(&question.inputs, request)?;
    writeln!(out)?;
    writeln!(out, "Chosen   {}", question.bold(&chosen(question, &decision, &estimate)))?;
    write!(out, "{}", sizes(&table.crossovers(MOST)?))?;
    Ok(())
}

struct Row {
    algorithm: Algorithm,
    cells: [String; 3],
    /// Why cells are out.
    reason: String,
    /// Whether the algorithm has nothing to do with the collective.
    is_foreign: bool,
}

impl Row {
    fn new(
        question: &Question,
        table: &Table,
        algorithm: Algorithm,
        winner: Option<(Algorithm, Protocol)>,
    ) -> Self {
        let request = &question.request;
        let cells = Protocol::ALL.map(|protocol| table.cell(algorithm, protocol));
        let text = |cell: &Cell| match table.estimate(cell, request.bytes, request.together) {
            Some(estimate) => {
                let mark = if winner == Some((cell.algorithm, cell.protocol)) { " ◀" } else { "" };
                format!("{}{mark}", sum(&estimate))
            }
            None => "–".to_owned(),
        };
        let outs: Vec<(Protocol, &Out)> =
            cells.iter().filter_map(|cell| Some((cell.protocol, cell.outcome.as_ref().err()?))).collect();
        let is_foreign = outs.iter().any(|(_, out)| matches!(out, Out::Collective(..)));
        Self { algorithm, cells: cells.map(text), reason: reasons(&outs), is_foreign }
    }
}

/// Why cells of a row are out: each reason once, with its protocol where others of the row are in or out for another.
fn reasons(outs: &[(Protocol, &Out)]) -> String {
    let telling: Vec<_> = outs.iter().filter(|(_, out)| !matches!(out, Out::Protocol(_))).collect();
    let Some((_, first)) = telling.first() else { return String::new() };
    let is_whole_row = outs.len() == Protocol::ALL.len() && telling.iter().all(|(_, out)| out == first);
    if is_whole_row {
        return first.to_string();
    }
    let each = telling.iter().map(|(protocol, out)| {
        let text = out.to_string();
        // "LL128 needs …" names itself.
        if text.starts_with(protocol.name()) { text } else { format!("{protocol}: {text}") }
    });
    each.collect::<Vec<_>>().join("; ")
}

/// `45.2 + 6579 = 6624 µs`.
fn sum(estimate: &Estimate) -> String {
    let number = |value: f32| match value {
        value if value < 99.95 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    };
    let Estimate { latency_us, transfer_us, time_us, .. } = *estimate;
    format!("{latency_us:.1} + {} = {} µs", number(transfer_us), number(time_us))
}

fn chosen(question: &Question, decision: &Decision, estimate: &Estimate) -> String {
    let bytes = question.request.bytes;
    let ranks = question.inputs.ranks;
    let bus = bus_bandwidth(question.request.collective, ranks, bytes.0, estimate.time_us);
    format!(
        "{}/{}, {} of {} threads, chunks of {}; {:.1} GB/s on the bus",
        decision.algorithm,
        decision.protocol,
        words::count(u64::from(decision.channels), "channel", "channels"),
        decision.threads,
        size(decision.chunk),
        bus,
    )
}

/// Who wins from which size on, in as many lines as it takes.
fn sizes(crossovers: &[Crossover]) -> String {
    let mut text = String::from("Sizes  ");
    let mut column = text.len();
    for (index, one) in crossovers.iter().enumerate() {
        let from = if index == 0 { "any".to_owned() } else { format!("from {}", size(one.from)) };
        let from = if crossovers.len() > 1 && index == 0 { "small".to_owned() } else { from };
        let part = format!("  {from} {}/{}", one.algorithm, one.protocol);
        if column + part.len() > LINE {
            text.push_str("\n       ");
            column = 7;
        }
        column += part.len();
        text.push_str(&part);
    }
    text.push('\n');
    text
}

/// What is known of grouped sends and receives: NCCL's model does not cost them.
pub(super) fn transfers(request: &Request, decision: &Decision, ranks: u32) -> String {
    let each = match request.collective {
        Collective::Barrier => String::from("rounds in which each rank tells another that it is there"),
        Collective::SendReceive => format!("one transfer of {}", size(request.bytes)),
        _ => format!("transfers of {} between pairs of ranks", size(per_peer(request, ranks))),
    };
    let channels = words::count(u64::from(decision.channels), "channel", "channels");
    format!(
        "Not in the cost model: it is {each}.\nChosen   {}, {channels} for each transfer, chunks of {}",
        decision.protocol,
        size(Bytes(decision.chunk.0)),
    )
}
