//! What a schedule amounts to: the head, the measures against theory, the verdict, and all of it as JSON.

use std::io::Write;

use railnet_coll::check::Report;
use railnet_coll::{Algorithm, Collective, Peer, Schedule, traffic};
use railnet_core::{Bytes, DataType};
use serde_json::{Value, json};

use super::moves::{Moves, name};
use crate::words::{bytes, count, grouped};

/// Everything about a schedule that is shown.
pub(super) struct Shown<'a> {
    pub(super) schedule: &'a Schedule,
    /// Where it comes from, if from a file.
    pub(super) origin: Option<&'a str>,
    pub(super) nodes: u32,
    pub(super) moves: &'a Moves,
}

impl Shown<'_> {
    pub(super) fn reduces(&self) -> bool {
        self.schedule.call.collective.reduces()
    }

    /// The node of a rank.
    pub(super) fn node(&self, rank: u32) -> u32 {
        rank / (self.schedule.ranks / self.nodes)
    }

    /// What it is, in a line.
    pub(super) fn title(&self) -> String {
        let Schedule { call, ranks, protocol, channels, algorithm, .. } = self.schedule;
        let algorithm = self.origin.map_or_else(|| algorithm.to_string(), str::to_owned);
        let mut parts = vec![call.collective.to_string(), algorithm, protocol.to_string()];
        let nodes = if self.nodes > 1 { format!(" on {} nodes", self.nodes) } else { String::new() };
        parts.push(count(u64::from(*ranks), "rank", "ranks") + &nodes);
        parts.push(amount(call.bytes(*ranks), call.dtype));
        if *channels > 1 {
            parts.push(format!("{channels} channels"));
        }
        if call.collective.has_root() {
            parts.push(format!("root {}", call.root.0));
        }
        if call.in_place {
            parts.push("in place".into());
        }
        parts.join(" · ")
    }
}

fn amount(size: Bytes, dtype: DataType) -> String {
    format!("{} = {} × {}", size, grouped(size.0 / dtype.size() as u64), dtype.nccl_name())
}

pub(super) fn head(shown: &Shown<'_>, out: &mut dyn Write) -> anyhow::Result<()> {
    writeln!(out, "{}", shown.title())?;
    writeln!(out, "{}\n", gist(shown.schedule))?;
    Ok(())
}

/// The idea, in a sentence.
fn gist(schedule: &Schedule) -> &'static str {
    use Collective::{AllGather, AllReduce, Barrier, Broadcast, Reduce, ReduceScatter};
    match (schedule.algorithm, schedule.call.collective) {
        (Algorithm::Ring, AllReduce) => {
            "Chunks go round: once to be added up rank by rank, and once more to reach everybody."
        }
        (Algorithm::Ring, AllGather) => "Each rank's block goes round until everybody has it.",
        (Algorithm::Ring, ReduceScatter) => {
            "Each block goes round, is added to on the way, and ends at its owner."
        }
        (Algorithm::Ring, Broadcast) => "Chunks go along the ring from the root, one behind the other.",
        (Algorithm::Ring, Reduce) => "Chunks go along the ring to the root, and are added to on the way.",
        (Algorithm::Tree, _) => {
            "Chunks go up a tree and are added up on the way; from the root the sums go down again."
        }
        (Algorithm::CollNetDirect, _) => {
            "Inside a node each head collects its part from all; between nodes the network's switches reduce."
        }
        (Algorithm::CollNetChain, _) => {
            "Inside a node chunks go along a chain to a head; between nodes the network's switches reduce."
        }
        (Algorithm::Nvls, _) => {
            "The switch between the GPUs reduces and multicasts: a rank sends its data once."
        }
        (Algorithm::NvlsTree, _) => {
            "The switch of each node reduces; the sums go up and down a tree between nodes."
        }
        (Algorithm::Pat, _) => {
            "A binomial tree for each block, all at once: few messages, far away ones first."
        }
        (Algorithm::Direct, _) => "Everybody exchanges with everybody at once.",
        (Algorithm::Hypercube, _) => {
            "Ranks whose numbers differ in one bit exchange what they have, one bit after the other."
        }
        (Algorithm::PointToPoint, Barrier) => {
            "Everybody tells somebody twice as far each time, until all have heard of all."
        }
        (Algorithm::PointToPoint, _) => {
            "Sends and receives in an order in which no two send to the same rank."
        }
        _ => "An algorithm from a file.",
    }
}

/// Bytes that the ranks together have to send at least where no switch helps, over the bytes of the call.
fn least(collective: Collective, ranks: u32) -> Option<(f64, &'static str)> {
    let n = f64::from(ranks);
    Some(match collective {
        Collective::AllReduce => (2.0 * (n - 1.0), "2 (n - 1)"),
        Collective::AllGather
        | Collective::ReduceScatter
        | Collective::AllToAll
        | Collective::Broadcast
        | Collective::Reduce => (n - 1.0, "n - 1"),
        Collective::Gather | Collective::Scatter => ((n - 1.0) / n, "(n - 1) / n"),
        Collective::SendReceive | Collective::Barrier => return None,
    })
}

/// What was moved.
struct Measures {
    /// Bytes that each rank sends.
    sent: Vec<u64>,
    /// Bytes from a rank to another or to a switch, the most, and between whom.
    busiest: Option<((Peer, Peer), u64)>,
    pairs: usize,
    /// Bytes that leave a node.
    between: u64,
}

fn measures(shown: &Shown<'_>, report: &Report) -> Measures {
    let links = traffic(shown.schedule);
    let busiest = links
        .iter()
        .map(|(pair, bytes)| (*pair, bytes.0))
        .max_by_key(|(pair, bytes)| (*bytes, std::cmp::Reverse(*pair)));
    let crosses = |pair: &(Peer, Peer)| match pair {
        (Peer::Rank(from), Peer::Rank(to)) => shown.node(*from) != shown.node(*to),
        (Peer::Rank(_), Peer::Switch(group)) => {
            shown.schedule.groups[*group as usize].kind == railnet_coll::SwitchKind::Network
        }
        _ => false,
    };
    let size = shown.schedule.call.dtype.size() as u64;
    Measures {
        sent: report.sent.iter().map(|elements| elements * size).collect(),
        busiest,
        pairs: links.len(),
        between: links.iter().filter(|(pair, _)| crosses(pair)).map(|(_, bytes)| bytes.0).sum(),
    }
}

pub(super) fn print(shown: &Shown<'_>, report: &Report, out: &mut dyn Write) -> anyhow::Result<()> {
    let Schedule { call, ranks, groups, .. } = shown.schedule;
    let measures = measures(shown, report);
    let mut line = |what: &str, number: String, why: String| {
        writeln!(out, "{}", format!("  {what:<11}{number:<22} {why}").trim_end())
    };
    line(
        "Steps",
        grouped(report.steps),
        format!(
            "in {}, {} over {}",
            count(u64::from(shown.moves.rounds), "round", "rounds"),
            count(report.chunks, "chunk", "chunks"),
            count(report.connections, "connection", "connections")
        ),
    )?;
    let whole = call.bytes(*ranks).0;
    if whole > 0 {
        let all: u64 = measures.sent.iter().sum();
        let most = measures.sent.iter().max().copied().unwrap_or(0);
        let average = all as f64 / f64::from(*ranks) / whole as f64;
        line("Sent", bytes(most), format!("by a rank at most; {average:.3} × the size on average"))?;
        if let Some((least, formula)) = least(call.collective, *ranks) {
            let least = least / f64::from(*ranks);
            let helped = if groups.is_empty() { "" } else { "; here switches help" };
            let why = format!("× the size is the least without switches, {formula} for all together{helped}");
            line("Theory", format!("{least:.3}"), why)?;
        }
    }
    if let Some(((from, to), most)) = measures.busiest.filter(|busiest| busiest.1 > 0) {
        let share = most as f64 / whole.max(1) as f64;
        line(
            "Busiest",
            format!("{} → {}", name(from), name(to)),
            format!(
                "{}, {share:.3} × the size; {} in use",
                bytes(most),
                count(measures.pairs as u64, "pair", "pairs")
            ),
        )?;
    }
    if shown.nodes > 1 && whole > 0 {
        let each = measures.between as f64 / f64::from(shown.nodes) / whole as f64;
        line(
            "Leaving",
            bytes(measures.between),
            format!("from all nodes together; {each:.3} × the size from each"),
        )?;
    }
    line("Proved", verdict(shown), String::new())?;
    line("", ordered(report), String::new())?;
    Ok(())
}

fn verdict(shown: &Shown<'_>) -> String {
    let ranks = shown.schedule.ranks;
    match shown.schedule.call.collective {
        Collective::Barrier => "nobody goes on before everybody has come".into(),
        one if one.reduces() => format!(
            "every element that {} holds exactly the {} it should, each once",
            if one == Collective::Reduce { "the root gets" } else { "a rank gets" },
            count(u64::from(ranks), "contribution", "contributions"),
        ),
        _ => "every element that a rank gets is the right one, from the right rank".into(),
    }
}

fn ordered(report: &Report) -> String {
    let races = if report.is_free_of_races { "; workers of a rank do not race" } else { "" };
    format!("nothing is used before it is ready; no deadlock; all queues end empty{races}")
}

pub(super) fn json(shown: &Shown<'_>, report: &Report) -> Value {
    let Schedule { call, ranks, algorithm, protocol, channels, groups, .. } = shown.schedule;
    let measures = measures(shown, report);
    let end = |peer: Peer| match peer {
        Peer::Rank(rank) => json!(rank),
        Peer::Switch(group) => json!(format!("switch {group}")),
    };
    let moves = shown.moves.all.iter().map(|one| {
        json!({
            "round": one.round + 1, "from": end(one.from), "to": end(one.to), "channel": one.channel,
            "chunk": one.chunk, "elements": one.count, "contributions": one.contributions,
        })
    });
    json!({
        "collective": call.collective.name(),
        "algorithm": algorithm.name(),
        "file": shown.origin,
        "protocol": protocol.name(),
        "ranks": ranks,
        "nodes": shown.nodes,
        "bytes": call.bytes(*ranks).0,
        "type": call.dtype.nccl_name(),
        "channels": channels,
        "switches": groups.len(),
        "in_place": call.in_place,
        "root": call.collective.has_root().then_some(call.root.0),
        "steps": report.steps,
        "rounds": shown.moves.rounds,
        "chunks": report.chunks,
        "connections": report.connections,
        "sent_bytes": measures.sent,
        "least_sent_bytes": least(call.collective, *ranks).map(|(least, _)| least * call.bytes(*ranks).0 as f64 / f64::from(*ranks)),
        "busiest": measures.busiest.map(|((from, to), bytes)| json!({ "from": end(from), "to": end(to), "bytes": bytes })),
        "leaving_nodes_bytes": measures.between,
        "proved": true,
        "free_of_races": report.is_free_of_races,
        "moves": moves.collect::<Vec<_>>(),
    })
}
