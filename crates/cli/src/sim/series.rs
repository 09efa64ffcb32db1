//! What happened over time, for programs: series.csv and connections.csv, and the same in JSON.

use std::collections::BTreeMap;

use railnet_core::{Span, Time};
use railnet_sim::{LinkSample, Outcome, Series};
use serde::Serialize;

use crate::files::Tables;

/// Both tables of a directory.
pub(super) fn write_csv(tables: &mut Tables, outcome: &Outcome, series: &Series) -> anyhow::Result<()> {
    tables.write("series.csv", |out| {
        writeln!(out, "time_us,from,to,queue_bytes,throughput_bps,paused")?;
        for sample in &series.links {
            let link = &outcome.links[sample.link as usize];
            let (time, bps, paused) = numbers(sample, series.interval);
            writeln!(out, "{time:.6},{},{},{},{bps:.0},{paused:.6}", link.from, link.to, sample.queue)?;
        }
        Ok(())
    })?;
    tables.write("connections.csv", |out| {
        writeln!(out, "time_us,source,target,dscp,throughput_bps")?;
        for sample in &series.connections {
            let (time, bps) = (since_start(sample.time), per_second(sample.bytes, series.interval));
            writeln!(out, "{time:.6},{},{},{},{bps:.0}", sample.source, sample.target, sample.dscp)?;
        }
        Ok(())
    })
}

/// The same by link and by connection, in columns.
#[derive(Serialize)]
pub(super) struct SeriesObject<'a> {
    sample_us: f64,
    links: Vec<LinkColumns<'a>>,
    connections: Vec<ConnectionColumns>,
}

#[derive(Serialize)]
struct LinkColumns<'a> {
    from: &'a str,
    to: &'a str,
    time_us: Vec<f64>,
    queue_bytes: Vec<u64>,
    throughput_bps: Vec<f64>,
    paused: Vec<f64>,
}

#[derive(Serialize)]
struct ConnectionColumns {
    source: u32,
    target: u32,
    dscp: u8,
    time_us: Vec<f64>,
    throughput_bps: Vec<f64>,
}

pub(super) fn object<'a>(outcome: &'a Outcome, series: &Series) -> SeriesObject<'a> {
    let mut links: BTreeMap<u32, LinkColumns<'a>> = BTreeMap::new();
    for sample in &series.links {
        let link = &outcome.links[sample.link as usize];
        let columns = links.entry(sample.link).or_insert_with(|| LinkColumns {
            from: &link.from,
            to: &link.to,
            time_us: Vec::new(),
            queue_bytes: Vec::new(),
            throughput_bps: Vec::new(),
            paused: Vec::new(),
        });
        let (time, bps, paused) = numbers(sample, series.interval);
        columns.time_us.push(time);
        columns.queue_bytes.push(sample.queue);
        columns.throughput_bps.push(bps);
        columns.paused.push(paused);
    }
    let mut connections: BTreeMap<(u32, u32, u8), ConnectionColumns> = BTreeMap::new();
    for sample in &series.connections {
        let (source, target, dscp) = (sample.source, sample.target, sample.dscp);
        let columns = connections.entry((source, target, dscp)).or_insert_with(|| ConnectionColumns {
            source,
            target,
            dscp,
            time_us: Vec::new(),
            throughput_bps: Vec::new(),
        });
        columns.time_us.push(since_start(sample.time));
        columns.throughput_bps.push(per_second(sample.bytes, series.interval));
    }
    SeriesObject {
        sample_us: series.interval.as_us_f64(),
        links: links.into_values().collect(),
        connections: connections.into_values().collect(),
    }
}

/// When, in µs; bits a second; the share of the interval in which it was held back.
fn numbers(sample: &LinkSample, interval: Span) -> (f64, f64, f64) {
    let paused = sample.paused.as_secs_f64() / interval.as_secs_f64();
    (since_start(sample.time), per_second(sample.bytes, interval), paused.min(1.0))
}

fn per_second(bytes: u64, interval: Span) -> f64 {
    (bytes as f64 * 8.0 / interval.as_secs_f64()).round()
}

fn since_start(at: Time) -> f64 {
    at.since(Time::ZERO).as_us_f64()
}
