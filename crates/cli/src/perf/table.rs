//! What was measured, for people, spreadsheets and programs.

use std::fmt;
use std::io::Write;

use railnet_coll::Call;
use railnet_formats::nccl_tests::{self, Bandwidth, Measurement, Row};
use railnet_live::Communicator;
use railnet_live::communicator::RoceCounters;
use serde_json::json;

use super::{ALL, Subject};

/// One size, out of place and in place.
pub(super) struct Point {
    pub(super) subject: Subject,
    pub(super) row: Row,
    /// Processor time of all ranks, for each byte of the buffers of all ranks.
    pub(super) processor_ns: f64,
}

/// The columns of `--csv`.
pub(super) const CSV: &str = "bytes,count,type,op,root,out_us,out_algbw_gbps,out_busbw_gbps,out_wrong,in_us,\
    in_algbw_gbps,in_busbw_gbps,in_wrong,cpu_ns_per_byte";

/// The lines above the rows: those of nccl-tests, and one column more.
pub(super) fn header() -> String {
    let lines = nccl_tests::HEADER.lines().zip(["", "cpu", "(ns/B)"]);
    let lines: Vec<String> = lines.map(|(line, more)| format!("{line} {more:>8}\n")).collect();
    lines.concat()
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decimals = if self.processor_ns < 10.0 { 3 } else { 0 };
        let row = match self.subject {
            Subject::Call(_) => self.row.to_string(),
            Subject::Put => self.row.without_root(),
        };
        write!(f, "{row}  {:>8.decimals$}", self.processor_ns)
    }
}

impl Point {
    pub(super) fn write_csv(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let Row { call, ranks, out_of_place, in_place } = &self.row;
        let (bytes, count) = (call.bytes(*ranks).0, call.block_of(0, *ranks));
        let root = if self.subject.has_root() { i64::from(call.root.0) } else { -1 };
        write!(out, "{bytes},{count},{},{},{root}", call.dtype, call.op)?;
        for measured in [out_of_place, in_place] {
            match measured {
                Some(Measurement { time, wrong }) => {
                    let Bandwidth { algorithm, bus } = Bandwidth::of(call, *ranks, *time);
                    let wrong = wrong.map_or_else(String::new, |wrong| wrong.to_string());
                    write!(out, ",{:.3},{algorithm:.4},{bus:.4},{wrong}", time.as_us_f64())?;
                }
                None => write!(out, ",,,,")?,
            }
        }
        writeln!(out, ",{:.4}", self.processor_ns)?;
        out.flush()
    }
}

/// What NICs did, in a line below the rows.
pub(super) fn packets_line(packets: RoceCounters) -> String {
    let RoceCounters { sent, resent, timeouts, .. } = packets;
    let share = resent as f64 * 100.0 / sent.max(1) as f64;
    format!(
        "# RoCEv2 packets       : {sent} sent, {resent} of them again ({share:.2} %), {timeouts} timeouts"
    )
}

/// What all rows have, or that there are several.
fn one_or_all(points: &[Point], of: impl Fn(&Call) -> String) -> String {
    let mut names = points.iter().map(|point| of(&point.row.call));
    let first = names.next().unwrap_or_default();
    if names.all(|other| other == first) { first } else { ALL.to_owned() }
}

pub(super) fn json(
    subject: Subject,
    world: &Communicator,
    points: &[Point],
    packets: Option<RoceCounters>,
) -> serde_json::Value {
    let ranks = world.size() as u32;
    let side = |call: &Call, measured: &Option<Measurement>| {
        measured.map(|Measurement { time, wrong }| {
            let Bandwidth { algorithm, bus } = Bandwidth::of(call, ranks, time);
            json!({"time_us": time.as_us_f64(), "algbw_gbps": algorithm, "busbw_gbps": bus, "wrong": wrong})
        })
    };
    let rows: Vec<_> = points
        .iter()
        .map(|Point { row, processor_ns, .. }| {
            json!({
                "type": row.call.dtype.to_string(),
                "op": row.call.op.to_string(),
                "bytes": row.call.bytes(ranks).0,
                "count": row.call.block_of(0, ranks),
                "out_of_place": side(&row.call, &row.out_of_place),
                "in_place": side(&row.call, &row.in_place),
                "cpu_ns_per_byte": processor_ns,
            })
        })
        .collect();
    let others = (0..world.size()).filter(|rank| *rank != world.rank());
    let conduits: Vec<String> = others.map(|rank| world.conduit(rank).to_string()).collect();
    json!({
        "collective": subject.test_name(),
        "type": one_or_all(points, |call| call.dtype.to_string()),
        "op": one_or_all(points, |call| call.op.to_string()),
        "ranks": ranks,
        "conduits_of_rank_0": conduits,
        "rows": rows,
        "roce_packets": packets.map(|packets| json!({
            "sent": packets.sent,
            "resent": packets.resent,
            "timeouts": packets.timeouts,
            "received": packets.received,
            "refused_sends": packets.refused,
        })),
    })
}
