//! How long packets with data take from NIC to NIC, from those that a run file has.

use serde_json::{Value, json};

use super::RunFile;
use super::recorder::is_answer;
use super::table::MISSING;

/// The fastest, the median and the 99th percentile in picoseconds, of how many packets, and whether those are a sample; nothing where
/// there are none.
pub fn packet_latency(run: &RunFile) -> Value {
    let Some(packets) = run.table("packets") else { return Value::Null };
    let columns = ["sent", "received", "opcode"].map(|name| packets.column(name));
    let [Some(sent), Some(received), Some(opcode)] = columns else { return Value::Null };
    let took = (0..packets.rows).filter_map(|row| {
        let (sent, received, opcode) =
            (packets.get(row, sent), packets.get(row, received), packets.get(row, opcode));
        (!is_answer(opcode as u8) && received != MISSING).then(|| received.saturating_sub(sent))
    });
    let mut took: Vec<u64> = took.collect();
    took.sort_unstable();
    let (Some(least), kept) = (took.first(), &run.meta["kept"]) else { return Value::Null };
    let part = |percent: usize| took[(took.len() * percent).div_ceil(100).max(1) - 1];
    json!({
        "packets": took.len(),
        "is_sample": kept["packets"] != kept["packets_sent"],
        "min": least,
        "median": part(50),
        "p99": part(99),
    })
}
