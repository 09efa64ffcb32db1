//! The run file of real ranks: what they called, and what their NICs sent, from what each of them noted.
//!
//! Times are those of the clocks of hosts. Of the network between them nothing is known but its ends.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::RunFile;
use super::schema::{self, NOBODY};
use super::strings::Strings;
use super::table::Table;

/// What a communication is among the kinds of operations, and that it is of no layer.
const COMMUNICATION: u64 = 5;
const NO_LAYER: u64 = 65_535;

/// A call of a rank.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct LiveCall {
    /// The ranks that make it, and which communicator of theirs it is of.
    pub communicator: (Vec<u32>, u64),
    /// Its number there.
    pub sequence: u64,
    /// When this rank came and went, in nanoseconds.
    pub time_ns: (u64, u64),
    /// Bytes of the largest buffer.
    pub bytes: u64,
    /// Where all data comes from, and where it goes to, where there is such a rank.
    pub ends: (Option<u32>, Option<u32>),
    /// What it was.
    pub name: String,
}

/// A rank.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct LiveRank {
    /// Where it runs, as people say it.
    pub host: String,
    /// Its process.
    pub process: u32,
    /// What leads to each rank, by name.
    pub conduits: Vec<String>,
    /// What it called.
    pub calls: Vec<LiveCall>,
    /// Calls that are not in the list.
    pub missing: u64,
}

/// The run of some ranks, which is called so.
pub fn live(name: &str, ranks: &[LiveRank]) -> RunFile {
    let start = ranks.iter().flat_map(|rank| &rank.calls).map(|call| call.time_ns.0).min().unwrap_or(0);
    let ps = |ns: u64| ns.saturating_sub(start) * 1_000;
    let mut people = People::default();
    let meetings = Meetings::of(ranks, &mut people);
    let mut strings = Strings::default();
    let mut operations = Table::new("operations", schema::OPERATIONS);
    for (rank, one) in ranks.iter().enumerate() {
        for call in &one.calls {
            let begun = meetings.begun(call, &people);
            let name = u64::from(strings.number(&call.name));
            let (entered, ended) = (ps(call.time_ns.0), ps(call.time_ns.1));
            let begun = ps(begun).clamp(entered, ended);
            let step = call.sequence & 0xffff;
            let rank = rank as u64;
            operations.push([
                rank,
                0,
                COMMUNICATION,
                name,
                entered,
                begun,
                ended,
                call.bytes,
                NO_LAYER,
                0,
                step,
                0,
                if begun > entered { meetings.last(call, &people) } else { NOBODY },
                begun - entered,
            ]);
        }
    }
    let mut calls = Table::new("calls", schema::CALLS);
    for ((communicator, sequence), meeting) in &meetings.0 {
        let name = u64::from(strings.number(meeting.name));
        let row =
            [*communicator as u64, *sequence, name, ps(meeting.begun), ps(meeting.ended), meeting.bytes];
        calls.push(row);
    }
    let slices = meetings.slices(ranks, &ps);
    let duration =
        ranks.iter().flat_map(|rank| &rank.calls).map(|call| ps(call.time_ns.1)).max().unwrap_or(0);
    let missing: u64 = ranks.iter().map(|rank| rank.missing).sum();
    let notes: Vec<String> =
        if missing > 0 { vec![format!("calls: {missing} of them are not here")] } else { Vec::new() };
    let (nodes, places) = nodes(ranks);
    let tables = vec![operations, calls, slices];
    let hosts: Vec<Value> = places
        .iter()
        .enumerate()
        .map(|(rank, (node, _))| json!({ "name": format!("rank {rank}"), "node": node }))
        .collect();
    let place = |(one, (node, local)): (&LiveRank, &(usize, usize))| json!({ "node": node, "gpu": local, "host": Value::Null, "process": one.process, "conduits": ways(one) });
    let communicators: Vec<Value> = people
        .0
        .iter()
        .map(|(members, _)| json!({ "name": format!("{} ranks", members.len()), "ranks": members }))
        .collect();
    let meta = json!({
        "format": 1,
        "railnet": env!("CARGO_PKG_VERSION"),
        "name": name,
        "title": "A live run",
        "scenario": "",
        "seed": 0,
        "digest": "",
        "kind": "live",
        "fidelity": "live",
        "began_ns": start,
        "duration": duration,
        "report": { "scenario": name },
        "fabric": { "hosts": hosts, "switches": [], "links": [] },
        "nodes": nodes,
        "ranks": ranks.iter().zip(&places).map(place).collect::<Vec<_>>(),
        "streams": ["calls"],
        "strings": strings.finish(),
        "communicators": communicators,
        "bins": { "width": 1, "count": 0 },
        "kept": { "packets": 0, "packets_sent": 0, "notes": notes },
        "steps": [],
        "critical": [],
        "tables": tables.iter().map(|table| (table.name.clone(), table.rows.into())).collect::<serde_json::Map<_, _>>(),
    });
    RunFile { meta, tables, others: Vec::new() }
}

/// The hosts in the order of their ranks; of each rank its host, and which of that host's ranks it is.
fn nodes(ranks: &[LiveRank]) -> (Vec<Value>, Vec<(usize, usize)>) {
    let mut known: Vec<(&str, Vec<usize>)> = Vec::new();
    let mut places = Vec::new();
    for (rank, one) in ranks.iter().enumerate() {
        let node = known.iter().position(|(name, _)| *name == one.host).unwrap_or_else(|| {
            known.push((&one.host, Vec::new()));
            known.len() - 1
        });
        places.push((node, known[node].1.len()));
        known[node].1.push(rank);
    }
    let node = |(name, ranks): &(&str, Vec<usize>)| json!({ "name": name, "gpu": Value::Null, "ranks": ranks, "hosts": ranks });
    (known.iter().map(node).collect(), places)
}

/// What leads from a rank to others, each once.
fn ways(rank: &LiveRank) -> Vec<&str> {
    let mut ways: Vec<&str> = rank.conduits.iter().map(String::as_str).filter(|way| *way != "-").collect();
    ways.sort_unstable();
    ways.dedup();
    ways
}

/// Communicators, in the order in which they were met first.
#[derive(Default)]
struct People(Vec<(Vec<u32>, u64)>);

impl People {
    fn number(&mut self, communicator: &(Vec<u32>, u64)) -> usize {
        self.find(communicator).unwrap_or_else(|| {
            self.0.push(communicator.clone());
            self.0.len() - 1
        })
    }

    fn find(&self, communicator: &(Vec<u32>, u64)) -> Option<usize> {
        self.0.iter().position(|known| known == communicator)
    }
}

/// A call of all who make it: it begins when the last one comes.
#[derive(Default)]
struct Meeting<'a> {
    name: &'a str,
    begun: u64,
    ended: u64,
    bytes: u64,
    ends: (Option<u32>, Option<u32>),
    /// Who came last.
    last: u64,
    /// When each rank came and went.
    times: BTreeMap<u32, (u64, u64)>,
}

/// All calls, by communicator and number.
struct Meetings<'a>(BTreeMap<(usize, u64), Meeting<'a>>);

impl<'a> Meetings<'a> {
    fn of(ranks: &'a [LiveRank], people: &mut People) -> Self {
        let mut all: BTreeMap<(usize, u64), Meeting<'a>> = BTreeMap::new();
        for (rank, one) in ranks.iter().enumerate() {
            for call in &one.calls {
                let key = (people.number(&call.communicator), call.sequence);
                let meeting = all.entry(key).or_default();
                meeting.name = &call.name;
                meeting.bytes = call.bytes;
                meeting.ends = call.ends;
                if call.time_ns.0 >= meeting.begun {
                    (meeting.begun, meeting.last) = (call.time_ns.0, rank as u64);
                }
                meeting.ended = meeting.ended.max(call.time_ns.1);
                meeting.times.insert(rank as u32, call.time_ns);
            }
        }
        Self(all)
    }

    /// When the last of those came who make a call.
    fn begun(&self, call: &LiveCall, people: &People) -> u64 {
        let number = people.find(&call.communicator).unwrap_or(0);
        self.0.get(&(number, call.sequence)).map_or(call.time_ns.0, |meeting| meeting.begun)
    }

    /// Who that was.
    fn last(&self, call: &LiveCall, people: &People) -> u64 {
        let number = people.find(&call.communicator).unwrap_or(0);
        self.0.get(&(number, call.sequence)).map_or(NOBODY, |meeting| meeting.last)
    }

    /// What went from one rank to another, where a call leaves no doubt about that: from when it was given until it was there.
    fn slices(&self, ranks: &[LiveRank], ps: &impl Fn(u64) -> u64) -> Table {
        let mut slices = Table::new("slices", schema::SLICES);
        let mut rows = Vec::new();
        for ((communicator, sequence), meeting) in &self.0 {
            let pairs: Vec<(u32, u32)> = match meeting.ends {
                (Some(from), Some(to)) => vec![(from, to)],
                (Some(from), None) => meeting.times.keys().map(|to| (from, *to)).collect(),
                (None, Some(to)) => meeting.times.keys().map(|from| (*from, to)).collect(),
                (None, None) => Vec::new(),
            };
            for (from, to) in pairs.into_iter().filter(|(from, to)| from != to) {
                let (Some((sent, _)), Some((_, arrived))) =
                    (meeting.times.get(&from), meeting.times.get(&to))
                else {
                    continue;
                };
                let way = ranks[from as usize].conduits.get(to as usize);
                let by_nic = u64::from(way.is_some_and(|way| way == "roce"));
                rows.push([
                    *communicator as u64,
                    *sequence,
                    0,
                    0,
                    0,
                    by_nic,
                    u64::from(from),
                    u64::from(to),
                    ps(*sent),
                    ps(*arrived),
                    meeting.bytes.min(NOBODY),
                ]);
            }
        }
        rows.sort_by_key(|row| row[8]);
        for row in rows {
            slices.push(row);
        }
        slices
    }
}
