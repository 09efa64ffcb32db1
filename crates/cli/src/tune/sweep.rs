//! The winner at each power of two.

use std::io::Write;

use railnet_coll::tuner::{Decision, Table, choose};
use railnet_coll::variables::TUNED;
use railnet_core::Bytes;

use super::{MOST, Question, bus_bandwidth, size};

/// One size.
pub(super) struct Point {
    pub(super) bytes: Bytes,
    pub(super) decision: Decision,
    /// The next best of another algorithm or protocol, and what it costs.
    pub(super) runner_up: Option<(String, f32)>,
}

/// Powers of two from 8 bytes on, as nccl-tests has them.
pub(super) fn points(question: &Question) -> anyhow::Result<Vec<Point>> {
    let table = Table::new(&question.inputs, &question.request);
    let sizes = (3..=MOST.0.ilog2()).map(|power| Bytes(1 << power));
    sizes
        .map(|bytes| {
            let request = question.request.sized(bytes);
            let decision = choose(&question.inputs, &request)?;
            let mut others: Vec<_> = table
                .cells()
                .iter()
                .filter(|cell| (cell.algorithm, cell.protocol) != (decision.algorithm, decision.protocol))
                .filter_map(|cell| {
                    let estimate = table.estimate(cell, bytes, request.together)?;
                    Some((format!("{}/{}", cell.algorithm, cell.protocol), estimate.time_us))
                })
                .collect();
            others.sort_by(|(_, one), (_, other)| one.total_cmp(other));
            Ok(Point { bytes, decision, runner_up: others.into_iter().next() })
        })
        .collect()
}

pub(super) fn print(question: &Question, out: &mut dyn Write) -> anyhow::Result<()> {
    writeln!(out, "{}", question.headline())?;
    let points = points(question)?;
    if !TUNED.contains(&question.request.collective) {
        writeln!(out, "{:>9}  {:<10} {:>8}  {:>9}", "size", "protocol", "channels", "chunk")?;
        for Point { bytes, decision, .. } in points {
            let (protocol, channels) = (decision.protocol, decision.channels);
            writeln!(out, "{:>9}  {protocol:<10} {channels:>8}  {:>9}", size(bytes), size(decision.chunk))?;
        }
        return Ok(());
    }
    writeln!(
        out,
        "{:>9}  {:<20} {:>10} {:>7}  {:>8} {:>7} {:>9}  next best",
        "size", "winner", "time µs", "busbw", "channels", "threads", "chunk"
    )?;
    for Point { bytes, decision, runner_up } in points {
        let time = decision.estimate.map_or(0.0, |estimate| estimate.time_us);
        let bus = bus_bandwidth(question.request.collective, question.inputs.ranks, bytes.0, time);
        let next = runner_up.map_or(String::new(), |(name, cost)| {
            format!("{name} +{:.0} %", 100.0 * (cost / time - 1.0).max(0.0))
        });
        writeln!(
            out,
            "{:>9}  {:<20} {time:>10.1} {bus:>7.2}  {:>8} {:>7} {:>9}  {next}",
            size(bytes),
            format!("{}/{}", decision.algorithm, decision.protocol),
            decision.channels,
            decision.threads,
            size(decision.chunk),
        )?;
    }
    Ok(())
}
