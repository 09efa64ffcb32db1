//! What came of transfers: both ways side by side, and the same for programs.

use std::io::Write;

use railnet_sim::TransferResult;
use serde::Serialize;

use crate::words::{bytes, grouped, micros};

/// A result for programs.
#[derive(Serialize)]
pub(super) struct TransferRow {
    transfer: usize,
    by: &'static str,
    pairs: usize,
    blocks: u64,
    block_bytes: u64,
    start_us: f64,
    first_block_us: f64,
    time_us: f64,
    messages: u64,
    packets: u64,
    wire_bytes: u64,
    wrong_bytes: u64,
}

fn name(result: &TransferResult) -> &'static str {
    if result.is_put { "put" } else { "send" }
}

impl TransferRow {
    pub(super) fn of(result: &TransferResult) -> Self {
        Self {
            transfer: result.section,
            by: name(result),
            pairs: result.pairs,
            blocks: result.blocks,
            block_bytes: result.block.as_u64(),
            start_us: result.started.since(railnet_core::Time::ZERO).as_us_f64(),
            first_block_us: result.first.as_us_f64(),
            time_us: result.time.as_us_f64(),
            messages: result.messages,
            packets: result.packets,
            wire_bytes: result.wire.as_u64(),
            wrong_bytes: result.wrong,
        }
    }
}

/// Prints a table for each `[[transfer]]`.
pub(super) fn print(results: &[TransferResult], out: &mut dyn Write) -> std::io::Result<()> {
    for alike in results.chunk_by(|a, b| a.section == b.section) {
        let TransferResult { pairs, blocks, block, .. } = &alike[0];
        writeln!(
            out,
            "# transfer of {} blocks of {} between each of {pairs} pairs, simulated",
            grouped(*blocks),
            bytes(block.as_u64())
        )?;
        let heads = ["by", "first block", "all", "messages", "packets", "on the wire", "wrong"];
        let [by, first, all, messages, packets, wire, wrong] = heads;
        writeln!(out, "# {by:<6}{first:>14}{all:>14}{messages:>12}{packets:>12}{wire:>14}{wrong:>8}")?;
        writeln!(out, "# {:<6}{:>14}{:>14}{:>38}{:>8}", "", "(us)", "(us)", "", "(B)")?;
        for one in alike {
            writeln!(
                out,
                "  {:<6}{:>14}{:>14}{:>12}{:>12}{:>14}{:>8}",
                name(one),
                micros(one.first),
                micros(one.time),
                grouped(one.messages),
                grouped(one.packets),
                bytes(one.wire.as_u64()),
                one.wrong
            )?;
        }
        writeln!(out)?;
    }
    Ok(())
}
