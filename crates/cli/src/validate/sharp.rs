//! Reduction inside the network's switches against a ring: what each NIC sends and gets, and how many wires are crossed
//! one after the other.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{anyhow, ensure};
use railnet_core::event::{Event, Sink};
use railnet_core::{Component, Time};
use railnet_sim::{Outcome, Run, Scenario};

use super::measure::{completed, each};
use super::{Cell, Part};

/// Long enough for headers, and short enough to be quick.
const SIZE: u64 = 16 << 20;
/// So few bytes that a call is nothing but steps.
const SHORT: u64 = 64;
/// The wires of the measurement of steps, in nanoseconds: what the longer ones add is how many are crossed.
const WIRES_NS: [u64; 2] = [1000, 3000];

/// Payload that each NIC has sent and got.
#[derive(Default)]
struct Payload(BTreeMap<u32, [u64; 2]>);

impl Sink for Payload {
    const DETAIL: bool = false;

    fn record(&mut self, _at: Time, Component(source): Component, event: &Event) {
        let (way, length) = match event {
            Event::PacketSent { length, .. } => (0, *length),
            Event::PacketReceived { length, .. } => (1, *length),
            _ => return,
        };
        self.0.entry(source).or_default()[way] += u64::from(length);
    }
}

/// Who is joined to what.
#[derive(Clone, Copy)]
enum Fabric {
    /// So many DGX H100 around one switch, with so many GPUs of each taking part.
    Servers(u32, u32),
    /// So many ports with memory right behind them, under a binary tree of switches.
    BinaryTree(u32),
}

impl Fabric {
    fn nodes(self) -> u32 {
        let (Self::Servers(nodes, _) | Self::BinaryTree(nodes)) = self;
        nodes
    }

    /// GPUs of a node that take part, each with its NIC.
    fn rails(self) -> u32 {
        match self {
            Self::Servers(_, gpus) => gpus,
            Self::BinaryTree(_) => 1,
        }
    }

    /// Switches one above the other, up to the root.
    fn levels(self) -> u32 {
        match self {
            Self::Servers(..) => 1,
            Self::BinaryTree(nodes) => nodes.ilog2(),
        }
    }

    fn ranks(self) -> u32 {
        self.nodes() * self.rails()
    }

    fn what(self) -> String {
        match self {
            Self::Servers(nodes, gpus) => format!("{nodes} × {gpus} H100, one switch"),
            Self::BinaryTree(nodes) => format!("{nodes} ports, binary tree"),
        }
    }

    fn topology(self) -> String {
        match self {
            Self::Servers(nodes, _) => format!("{{ kind = \"single-switch\", hosts = {} }}", 8 * nodes),
            Self::BinaryTree(nodes) => {
                // Switch 1 is on top; below switch s are 2 s and 2 s + 1, and in the last row hosts.
                let names: Vec<String> = (1..nodes).map(|switch| format!("\"s{switch}\"")).collect();
                let below = |place: u32| match place.checked_sub(nodes) {
                    Some(host) => format!("host{host}"),
                    None => format!("s{place}"),
                };
                let links = (2..2 * nodes).map(|place| format!("[\"{}\", \"s{}\"]", below(place), place / 2));
                format!(
                    "{{ kind = \"list\", hosts = {nodes}, switches = [{}], links = [{}] }}",
                    names.join(", "),
                    links.collect::<Vec<_>>().join(", ")
                )
            }
        }
    }

    fn run(self, algorithm: &str, size: u64, wire_ns: u64) -> anyhow::Result<(Outcome, Payload)> {
        let mut text = format!(
            "[fabric]\ntopology = {}\nlink = {{ rate = \"400Gbps\", delay = \"{wire_ns}ns\" }}\n\
             switch = {{ aggregation = {{}} }}\n",
            self.topology()
        );
        if let Self::Servers(nodes, gpus) = self {
            let ranks = (0..nodes).map(|node| format!("{}..{}", 8 * node, 8 * node + gpus - 1));
            let ranks = ranks.collect::<Vec<_>>().join(",");
            let _ = writeln!(text, "[cluster]\nserver = \"dgx-h100\"\n[[collective]]\nranks = \"{ranks}\"");
        } else {
            text += "[[collective]]\n";
        }
        let _ = writeln!(
            text,
            "kind = \"all_reduce\"\nsize = \"{size}B\"\nalgorithm = \"{algorithm}\"\nprotocol = \"simple\"\nplacement = \"out\""
        );
        let scenario = Scenario::parse(&text).map_err(|error| anyhow!("{}\n{text}", error.message))?;
        let run =
            Run::new(&scenario, Payload::default()).map_err(|error| anyhow!("{}\n{text}", error.message))?;
        let (outcome, payload) = completed(run, &text)?;
        let result = &outcome.collectives[0];
        ensure!(result.wrong == 0, "{} elements are wrong\n{text}", result.wrong);
        ensure!(result.fell_back.is_none(), "{:?}\n{text}", result.fell_back);
        Ok((outcome, payload))
    }

    fn measure(self, algorithm: &'static str) -> anyhow::Result<Measured> {
        let (outcome, payload) = self.run(algorithm, SIZE, 500)?;
        // NICs come before switches.
        let nics = outcome.size.0 as u32;
        let most = |way: usize| payload.0.range(..nics).map(|(_, bytes)| bytes[way]).max().unwrap_or(0);
        let share = SIZE as f64 / f64::from(self.rails());
        let mut times = [0.0; 2];
        for (time, wire) in times.iter_mut().zip(WIRES_NS) {
            *time = self.run(algorithm, SHORT, wire)?.0.collectives[0].time.as_us_f64();
        }
        let wires = (times[1] - times[0]) * 1e3 / (WIRES_NS[1] - WIRES_NS[0]) as f64;
        let bytes = [most(0), most(1)].map(|bytes| bytes as f64 / share);
        Ok(Measured { bytes, wires, us: outcome.collectives[0].time.as_us_f64() })
    }
}

struct Measured {
    /// What the busiest NIC sent and got, of the data that it stands for.
    bytes: [f64; 2],
    /// Wires one after the other.
    wires: f64,
    us: f64,
}

/// The servers, the GPUs of each, and the ports of binary trees.
const SERVERS: [(u32, u32); 7] = [(2, 1), (4, 1), (8, 1), (16, 1), (2, 8), (4, 8), (8, 8)];
const TREES: [u32; 4] = [2, 4, 8, 16];

pub(super) fn part(_: bool) -> anyhow::Result<Part> {
    let servers = SERVERS.map(|(nodes, gpus)| Fabric::Servers(nodes, gpus));
    let fabrics: Vec<Fabric> = servers.into_iter().chain(TREES.map(Fabric::BinaryTree)).collect();
    let jobs: Vec<_> =
        fabrics.iter().flat_map(|fabric| [(*fabric, "ring"), (*fabric, "collnetdirect")]).collect();
    let measured = each(&jobs, |(fabric, algorithm)| fabric.measure(algorithm))?;
    let rows = fabrics.iter().zip(measured.chunks_exact(2)).map(|(fabric, both)| {
        let [ring, sharp] = [&both[0], &both[1]];
        let (ranks, levels) = (f64::from(fabric.ranks()), f64::from(fabric.levels()));
        vec![
            Cell::text(fabric.what()),
            Cell::number(ring.bytes[0], 3),
            Cell::number(2.0 * (ranks - 1.0) / ranks, 3),
            Cell::number(sharp.bytes[0], 3),
            Cell::number(sharp.bytes[1], 3),
            Cell::number(1.0, 3),
            Cell::number(ring.wires, 0),
            Cell::number(2.0 * (ranks - 1.0) * 2.0 * levels, 0),
            Cell::number(sharp.wires, 0),
            Cell::number(2.0 * levels, 0),
            Cell::number(ring.us, 0),
            Cell::number(sharp.us, 0),
        ]
    });
    Ok(Part {
        name: "sharp",
        title: "Reduction in the network against a ring",
        intro: INTRO,
        columns: COLUMNS.to_vec(),
        rows: rows.collect(),
        remarks: REMARKS.iter().map(|remark| (*remark).to_owned()).collect(),
    })
}

const COLUMNS: [&str; 12] = [
    "what",
    "ring sends",
    "ring theory",
    "SHARP sends",
    "SHARP gets",
    "SHARP theory",
    "ring wires",
    "ring wires theory",
    "SHARP wires",
    "SHARP wires theory",
    "ring µs",
    "SHARP µs",
];

const INTRO: &str = "\
All-reduce by a ring of n ranks, and by switches that add up (CollNetDirect, as with SHARP), both with Simple. Bytes are
the payload that the busiest NIC sent or got, of 16 MiB shared out over the NICs of a server: theory has 2 (n − 1) / n
for a ring, and once up and once down for SHARP, half of it when there are many. Wires are those that 64 bytes cross one
after the other, found out by making all of them longer: a ring takes 2 (n − 1) steps over the farthest of its hops, and
SHARP goes up the switches to the root and down again, 2 · log₂ N wires in a binary tree. Times are for 16 MiB, at
400 Gb/s and 0.5 µs a wire.";

const REMARKS: [&str; 3] = [
    "What a ring sends beyond theory are notes of the receivers that there is room (clear-to-send), and its first one is why \
     two wires more are crossed than theory has.",
    "A connection holds two chunks at a time, as NCCL's Simple in a ring does, so of rings whose hops differ the farthest sets \
     the pace of all steps, also of those that stay inside a server.",
    "A server with 8 GPUs has 8 rails: each is a group of the switches, whose channels share its context.",
];
