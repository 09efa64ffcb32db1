//! What ranks did together: the table of nccl-tests, and the same for programs.

use std::io::Write;

use railnet_coll::Counts;
use railnet_formats::nccl_tests::{self, Bandwidth, Measurement, Row};
use railnet_sim::CollectiveResult;
use serde::Serialize;

/// A result for programs.
#[derive(Serialize)]
pub(super) struct CollectiveRow {
    kind: &'static str,
    bytes: u64,
    count: u64,
    #[serde(rename = "type")]
    dtype: &'static str,
    op: &'static str,
    ranks: u32,
    groups: usize,
    in_place: bool,
    algorithm: &'static str,
    protocol: &'static str,
    channels: u32,
    start_us: f64,
    time_us: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    predicted_us: Option<f64>,
    /// Why what is predicted may differ from what packets take.
    #[serde(skip_serializing_if = "Option::is_none")]
    predicted_caveat: Option<String>,
    algbw: f64,
    busbw: f64,
    wrong: u64,
    /// Why another algorithm ran than was chosen first.
    #[serde(skip_serializing_if = "Option::is_none")]
    fell_back: Option<String>,
}

impl CollectiveRow {
    pub(super) fn of(result: &CollectiveResult) -> Self {
        let CollectiveResult { call, ranks, groups, algorithm, protocol, channels, .. } = result;
        let bandwidth = Bandwidth::of(call, *ranks, result.time);
        Self {
            kind: call.collective.name(),
            bytes: call.bytes(*ranks).as_u64(),
            count: call.longest_block(),
            dtype: call.dtype.nccl_name(),
            op: if call.collective.reduces() { call.op.name() } else { "none" },
            ranks: *ranks,
            groups: *groups,
            in_place: call.in_place,
            algorithm: algorithm.name(),
            protocol: protocol.name(),
            channels: *channels,
            start_us: result.started.since(railnet_core::Time::ZERO).as_us_f64(),
            time_us: result.time.as_us_f64(),
            predicted_us: result.predicted.map(railnet_core::Span::as_us_f64),
            predicted_caveat: result.caveat.map(|caveat| caveat.reason()),
            algbw: bandwidth.algorithm,
            busbw: bandwidth.bus,
            wrong: result.wrong,
            fell_back: result.fell_back.clone(),
        }
    }
}

/// Results of one size become one row: out of place and in place.
fn rows(results: &[CollectiveResult]) -> Vec<(Row, &CollectiveResult)> {
    let mut rows: Vec<(Row, &CollectiveResult)> = Vec::new();
    for result in results {
        let measured = Some(Measurement { time: result.time, wrong: Some(result.wrong) });
        let fits = rows.last_mut().filter(|(row, first)| {
            result.call.in_place
                && row.in_place.is_none()
                && first.section == result.section
                && row.call.bytes(row.ranks) == result.call.bytes(result.ranks)
        });
        if let Some((row, _)) = fits {
            row.in_place = measured;
            continue;
        }
        let (mut out_of_place, mut in_place) = (measured, None);
        if result.call.in_place {
            (out_of_place, in_place) = (None, measured);
        }
        rows.push((Row { call: result.call.clone(), ranks: result.ranks, out_of_place, in_place }, result));
    }
    rows
}

/// Prints a table for each `[[collective]]`.
pub(super) fn print(results: &[CollectiveResult], out: &mut dyn Write) -> std::io::Result<()> {
    for alike in results.chunk_by(|a, b| a.section == b.section) {
        let first = &alike[0];
        let groups =
            if first.groups > 1 { format!(", {} groups at once", first.groups) } else { String::new() };
        let uneven = if matches!(first.call.counts, Counts::Each(_)) { "" } else { "V" };
        writeln!(out, "# {}{uneven} over {} ranks{groups}, simulated", first.call.collective, first.ranks)?;
        write!(out, "{}", nccl_tests::HEADER)?;
        let rows = rows(alike);
        for (row, result) in &rows {
            let how = format!("{}/{} on {} ch", result.algorithm, result.protocol, result.channels);
            writeln!(out, "{row}  {how}")?;
        }
        let mut reasons: Vec<&str> = alike.iter().filter_map(|one| one.fell_back.as_deref()).collect();
        reasons.dedup();
        for why in reasons {
            writeln!(out, "# {why}")?;
        }
        let rows: Vec<Row> = rows.into_iter().map(|(row, _)| row).collect();
        writeln!(out, "{}", nccl_tests::footer(&rows, first.call.collective))?;
    }
    Ok(())
}
