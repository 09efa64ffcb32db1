//! A run as a trace for Perfetto: a process for each server, a track for each stream of each rank and for each NIC, counters
//! for links, and arrows from where a slice was sent to where it arrived.
//!
//! Field numbers are those of perfetto's protos/perfetto/trace. Times there are nanoseconds.

mod message;
mod writer;

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde_json::Value;

use crate::run_file::schema::NOBODY;
use crate::run_file::{MISSING, RunFile, Table};
use writer::{Moment, Slice, Unit, Writer};

/// Arrows that are drawn: more are a carpet.
const ARROWS_MAX: usize = 50_000;
/// Rows of counters.
const COUNTS_MAX: usize = 400_000;

/// Writes a run as a trace.
pub fn write(run: &RunFile, out: &mut impl Write) -> io::Result<()> {
    let mut writer = Writer::new(out);
    let servers = Servers::of(&run.meta);
    for (number, name) in servers.names.iter().enumerate() {
        writer.process(number as u32, name)?;
    }
    if let Some(why) = run.meta["report"]["error"]["message"].as_str() {
        let end = run.meta["duration"].as_u64().unwrap_or(0);
        let whole = Slice { from: 0, to: end, name: format!("failed: {why}"), notes: Vec::new() };
        writer.slices(servers.fabric, "the run", vec![whole])?;
    }
    operations(run, &servers, &mut writer)?;
    nics(run, &servers, &mut writer)?;
    links(run, &servers, &mut writer)?;
    arrows(run, &servers, &mut writer)
}

/// Which process each rank and each port belongs to.
struct Servers {
    names: Vec<String>,
    of_rank: Vec<u32>,
    of_host: Vec<u32>,
    /// That of the switches.
    fabric: u32,
}

impl Servers {
    fn of(meta: &Value) -> Self {
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let hosts = list(&meta["fabric"]["hosts"]);
        let number = |value: &Value| value.as_u64().unwrap_or(0) as u32;
        let of_host: Vec<u32> = hosts.iter().map(|host| number(&host["node"])).collect();
        let of_rank: Vec<u32> = list(&meta["ranks"]).iter().map(|rank| number(&rank["node"])).collect();
        let servers = of_host.iter().chain(&of_rank).max().map_or(0, |last| last + 1);
        let named = |server: u32| {
            let known = meta["nodes"][server as usize]["name"].as_str();
            let mut own = hosts.iter().zip(&of_host).filter(|(_, node)| **node == server);
            // A server that nobody named and that has one port is called as that is.
            let alone =
                own.next().filter(|_| own.next().is_none()).and_then(|(host, _)| host["name"].as_str());
            known.or(alone).map_or_else(|| format!("node{:02}", server + 1), str::to_owned)
        };
        let mut names: Vec<String> = (0..servers).map(named).collect();
        // Of what is between hosts a live run knows nothing.
        if meta["kind"] != "live" {
            names.push("fabric".to_owned());
        }
        Self { names, of_rank, of_host, fabric: servers }
    }

    /// Where a rank is; without ranks, operations are those of ports.
    fn rank(&self, rank: u64) -> u32 {
        let list = if self.of_rank.is_empty() { &self.of_host } else { &self.of_rank };
        list.get(rank as usize).copied().unwrap_or(0)
    }
}

fn columns<const N: usize>(table: &Table, names: [&str; N]) -> [usize; N] {
    names.map(|name| table.column(name).unwrap_or(0))
}

fn operations<W: Write>(run: &RunFile, servers: &Servers, writer: &mut Writer<'_, W>) -> io::Result<()> {
    let Some(table) = run.table("operations") else { return Ok(()) };
    let [rank, stream, kind, name, begun, ended, bytes, entered] =
        columns(table, ["rank", "stream", "kind", "name", "begun", "ended", "bytes", "entered"]);
    let is_ranked = !servers.of_rank.is_empty();
    let mut tracks: BTreeMap<(u64, u64), Vec<Slice>> = BTreeMap::new();
    for row in 0..table.rows {
        let cell = |column: usize| table.get(row, column);
        let text = run.meta["strings"][cell(name) as usize].as_str().unwrap_or("?").to_owned();
        let mut notes = Vec::new();
        if cell(kind) == 5 {
            notes.push(("bytes", cell(bytes)));
            notes.push(("waited for others, ns", (cell(begun) - cell(entered)) / 1_000));
        }
        let slice = Slice { from: cell(entered), to: cell(ended), name: text, notes };
        tracks.entry((cell(rank), cell(stream))).or_default().push(slice);
    }
    for ((rank, stream), slices) in tracks {
        let named = run.meta["streams"][stream as usize].as_str().unwrap_or("?");
        let ways = run.meta["ranks"][rank as usize]["conduits"].as_array();
        let ways = ways.map(|ways| match ways.as_slice() {
            [] => " (alone)".to_owned(),
            ways => format!(" ({})", ways.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", ")),
        });
        let who = match is_ranked {
            true => format!("rank {rank}{}", ways.unwrap_or_default()),
            false => format!("host {rank}"),
        };
        writer.slices(servers.rank(rank), &format!("{who} {named}"), slices)?;
    }
    Ok(())
}

fn nics<W: Write>(run: &RunFile, servers: &Servers, writer: &mut Writer<'_, W>) -> io::Result<()> {
    let Some(table) = run.table("messages") else { return Ok(()) };
    let [host, queue_pair, posted, completed, length, sequence, chunk] =
        columns(table, ["host", "queue_pair", "posted", "completed", "length", "sequence", "chunk"]);
    let mut tracks: BTreeMap<u64, Vec<Slice>> = BTreeMap::new();
    for row in 0..table.rows {
        let cell = |column: usize| table.get(row, column);
        if cell(completed) == MISSING {
            continue;
        }
        let notes = vec![
            ("queue pair", cell(queue_pair)),
            ("bytes", cell(length)),
            ("call", cell(sequence)),
            ("chunk", cell(chunk)),
        ];
        let name = format!("message of {} bytes", cell(length));
        let slice = Slice { from: cell(posted), to: cell(completed), name, notes };
        tracks.entry(cell(host)).or_default().push(slice);
    }
    for (host, slices) in tracks {
        let name = run.meta["fabric"]["hosts"][host as usize]["name"].as_str().unwrap_or("?");
        let server = servers.of_host.get(host as usize).copied().unwrap_or(0);
        writer.slices(server, &format!("NIC {name}"), slices)?;
    }
    let Some(table) = run.table("rates") else { return Ok(()) };
    let [time, host, queue_pair, rate] = columns(table, ["time", "host", "queue_pair", "rate"]);
    let mut series: BTreeMap<(u64, u64), Vec<(u64, f64)>> = BTreeMap::new();
    for row in 0..table.rows.min(COUNTS_MAX) {
        let cell = |column: usize| table.get(row, column);
        series.entry((cell(host), cell(queue_pair))).or_default().push((cell(time), cell(rate) as f64 / 1e9));
    }
    for ((host, queue_pair), points) in series {
        let server = servers.of_host.get(host as usize).copied().unwrap_or(0);
        writer.counter(
            server,
            &format!("rate of queue pair {queue_pair:#x}"),
            Unit::Named("Gbit/s"),
            points,
        )?;
    }
    Ok(())
}

fn links<W: Write>(run: &RunFile, servers: &Servers, writer: &mut Writer<'_, W>) -> io::Result<()> {
    let Some(table) = run.table("load") else { return Ok(()) };
    let [bin, channel, bytes, queue] = columns(table, ["bin", "channel", "bytes", "queue"]);
    let width = run.meta["bins"]["width"].as_u64().unwrap_or(1).max(1);
    // Where there are more points than anybody can look at, some of them.
    let every = table.rows.div_ceil(COUNTS_MAX).max(1) as u64;
    let mut series: BTreeMap<u64, [Vec<(u64, f64)>; 2]> = BTreeMap::new();
    let mut last: BTreeMap<u64, u64> = BTreeMap::new();
    for row in 0..table.rows {
        let cell = |column: usize| table.get(row, column);
        if cell(bin) % every != 0 {
            continue;
        }
        let (at, lane) = (cell(bin) * width, cell(channel));
        let [rates, queues] = series.entry(lane).or_default();
        if let Some(before) = last.insert(lane, cell(bin))
            && cell(bin) > before + every
        {
            // Nothing went over it in between.
            let quiet = (before + 1) * width;
            rates.push((quiet, 0.0));
            queues.push((quiet, 0.0));
        }
        rates.push((at, cell(bytes) as f64 * 8_000.0 / width as f64));
        queues.push((at, cell(queue) as f64));
    }
    let fabric = &run.meta["fabric"];
    let hosts = servers.of_host.len() as u64;
    let name = |vertex: u64| match vertex.checked_sub(hosts) {
        None => fabric["hosts"][vertex as usize]["name"].as_str().unwrap_or("?"),
        Some(switch) => fabric["switches"][switch as usize]["name"].as_str().unwrap_or("?"),
    };
    for (channel, [rates, queues]) in series {
        let link = &fabric["links"][channel as usize / 2];
        let ends = [link["a"].as_u64().unwrap_or(0), link["b"].as_u64().unwrap_or(0)];
        let (from, to) = if channel % 2 == 0 { (ends[0], ends[1]) } else { (ends[1], ends[0]) };
        let server = servers.of_host.get(from as usize).copied().unwrap_or(servers.fabric);
        let way = format!("{} → {}", name(from), name(to));
        writer.counter(server, &format!("{way} rate"), Unit::Named("Gbit/s"), rates)?;
        writer.counter(server, &format!("{way} queue"), Unit::Bytes, queues)?;
    }
    Ok(())
}

fn arrows<W: Write>(run: &RunFile, servers: &Servers, writer: &mut Writer<'_, W>) -> io::Result<()> {
    let Some(table) = run.table("slices") else { return Ok(()) };
    let [from, to, sent, arrived, chunk, step] =
        columns(table, ["from", "to", "sent", "arrived", "chunk", "step"]);
    let whole: Vec<usize> = (0..table.rows)
        .filter(|row| {
            let cell = |column: usize| table.get(*row, column);
            cell(from) != NOBODY && cell(to) != NOBODY && cell(arrived) != MISSING
        })
        .collect();
    let every = whole.len().div_ceil(ARROWS_MAX).max(1);
    let mut ends: BTreeMap<(u64, bool), Vec<Moment>> = BTreeMap::new();
    for (number, row) in whole.into_iter().step_by(every).enumerate() {
        let cell = |column: usize| table.get(row, column);
        let flow = number as u64 + 1;
        let what = format!("chunk {} step {}", cell(chunk), cell(step));
        ends.entry((cell(from), true)).or_default().push((cell(sent), flow, format!("send {what}")));
        ends.entry((cell(to), false)).or_default().push((cell(arrived), flow, format!("receive {what}")));
    }
    for ((rank, is_sender), moments) in ends {
        let name = format!("rank {rank} {}", if is_sender { "sends" } else { "receives" });
        writer.moments(servers.rank(rank), &name, moments, is_sender)?;
    }
    Ok(())
}
