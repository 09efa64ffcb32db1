//! Rails against leaves for whole servers: the first figure of SimAI's tutorial.

use super::measure::{Ask, Setup, each};
use super::{Cell, Part};

/// One size: what SimAI has for rails and for plain leaves.
struct Case {
    size: &'static str,
    /// A step of the ring: the size over its ranks.
    step: &'static str,
    simai: (f64, f64),
    /// Runs of each, with different hashes.
    seeds: u64,
    is_long: bool,
}

const CASES: [Case; 4] = [
    Case { size: "16MiB", step: "512KiB", simai: (33.10, 23.33), seeds: 4, is_long: false },
    Case { size: "64MiB", step: "2MiB", simai: (42.05, 23.68), seeds: 3, is_long: false },
    Case { size: "128MiB", step: "4MiB", simai: (44.04, 35.21), seeds: 3, is_long: false },
    Case { size: "512MiB", step: "16MiB", simai: (45.65, 36.24), seeds: 1, is_long: true },
];

/// How a ring is run.
#[derive(Clone, Copy)]
struct How {
    name: &'static str,
    /// Channels of a ring, where it is not NCCL's own number.
    channels: Option<u32>,
    /// As SimAI has it: each step is one message, on a queue pair that none of the last 63 had, between ports without GPUs.
    is_simai: bool,
}

const KEEPS: How = How { name: "servers, a connection keeps its path", channels: Some(1), is_simai: false };
const HOWS: [How; 2] =
    [KEEPS, How { name: "as SimAI: a path for each message", channels: Some(1), is_simai: true }];
/// With NCCL's own number of channels, for the smallest size.
const NCCL: How = How { name: "servers, NCCL's number of channels", channels: None, ..KEEPS };

const SERVERS: u32 = 32;

fn setup(how: How, seed: Option<u64>) -> Setup {
    // Sizes as in SimAI's generator: leaves of 64 NICs, and as many links up as down.
    let topology = if seed.is_some() {
        "{ kind = \"leaf-spine\", leaves = 4, hosts_per_leaf = 64, spines = 64 }".to_owned()
    } else {
        "{ kind = \"rail-optimised\", nodes = 32, rails = 8, nodes_per_group = 32, spines = 32 }".to_owned()
    };
    let mut setup = Setup::new("dgx-h100", SERVERS);
    setup.topology = Some(topology);
    setup.groups = Some("{ every = 8 }");
    setup.seed = seed;
    if how.is_simai {
        setup.is_bare = true;
        setup.env = "NCCL_IB_QPS_PER_CONNECTION = 64";
        setup.more = "[nic]\ncontrol = \"none\"";
    }
    setup
}

/// One line of the table: a size and a way, and the runs behind it.
struct Line<'a> {
    case: &'a Case,
    how: How,
}

impl Line<'_> {
    fn ask(&self) -> Ask {
        let slot = self.how.is_simai.then_some(self.case.step);
        let ask = Ask::all_reduce(self.case.size, "ring").by("simple");
        Ask { channels: self.how.channels, slot, ..ask }
    }

    /// The seeds of its runs, none on rails: nobody meets anybody there, so that one run is enough.
    fn seeds(&self) -> impl Iterator<Item = Option<u64>> {
        std::iter::once(None).chain((1..=self.case.seeds).map(Some))
    }
}

pub(super) fn part(is_full: bool) -> anyhow::Result<Part> {
    let cases: Vec<&Case> = CASES.iter().filter(|case| is_full || !case.is_long).collect();
    let mut lines: Vec<Line<'_>> = cases.iter().flat_map(|case| HOWS.map(|how| Line { case, how })).collect();
    lines.insert(HOWS.len(), Line { case: cases[0], how: NCCL });
    let jobs: Vec<_> =
        lines.iter().flat_map(|line| line.seeds().map(move |seed| (line.how, line.ask(), seed))).collect();
    let measured = each(&jobs, |(how, ask, seed)| Ok(setup(*how, *seed).measure(&[*ask])?.remove(0).bus))?;
    let mut measured = measured.into_iter();
    let mut rows = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let Case { size, simai: (rails, plain), .. } = line.case;
        let all: Vec<f64> = measured.by_ref().take(line.seeds().count()).collect();
        // The command was asked to stop.
        if all.len() < line.seeds().count() {
            break;
        }
        if index == 0 || lines[index - 1].case.size != *size {
            rows.push(row(size, "SimAI", *rails, &[*plain]));
        }
        rows.push(row(size, line.how.name, all[0], &all[1..]));
    }
    Ok(Part {
        name: "rails",
        title: "Rails or not",
        intro: INTRO,
        columns: vec!["size", "who, how", "rails", "plain", "plain, least and most", "gain of rails"],
        rows,
        remarks: REMARKS.iter().map(|remark| (*remark).to_owned()).collect(),
    })
}

fn row(size: &str, how: &str, rails: f64, plain: &[f64]) -> Vec<Cell> {
    let mean = plain.iter().sum::<f64>() / plain.len() as f64;
    let range = match plain {
        [_] => Cell::none(),
        _ => {
            let least = plain.iter().copied().fold(f64::MAX, f64::min);
            let most = plain.iter().copied().fold(0.0, f64::max);
            Cell::text(format!("{least:.1}–{most:.1}"))
        }
    };
    vec![
        Cell::text(size),
        Cell::text(how),
        Cell::number(rails, 1),
        Cell::number(mean, 1),
        range,
        Cell::number(rails / mean, 2),
    ]
}

const INTRO: &str = "256 H100 in 32 servers, data parallelism between GPUs of the same number: eight all-reduces by ring at once, of 32
ranks each. SimAI's tutorial (docs/Tutorial.md) has the same with ns-3: rail-optimised (Spectrum-X there) and not (DCN+,
a leaf for 64 NICs and 64 spines). With rails a ring crosses one switch, and nobody else is on its links; without, servers
hang on a leaf with all of their NICs, and rings of different GPUs meet on the links to the spines wherever the hash puts
two on one. Plain is the mean over seeds, each with another hash: 4 for 16 MiB, 3 for 64 and 128, 1 for 512.";

const REMARKS: [&str; 4] = [
    "How much is lost without rails depends on how often paths are drawn. NCCL's connections keep their queue pairs, and ECMP keeps \
     the path of a queue pair: two rings on one link halve each other from the first step to the last, and with 8 flows on 64 \
     links at each of 4 leaves some pair meets in five of six runs. The gain of rails is about 2 from 64 MiB on.",
    "SimAI sends every message, a whole step, from a source port of its own (`portNumber[src][dst]++` in its ns-3 front end, with \
     one queue pair for each message): who meets whom changes with every step, and the gain is less. \"As SimAI\" does the same: 64 queue pairs \
     take turns (`NCCL_IB_QPS_PER_CONNECTION`), a step is one message, and there are ports in place of GPUs with their latencies (SimAI: \
     2 µs for each message). That gives 1.3 to 1.6 here; SimAI has 1.25 to 1.78, with one hash for each size.",
    "SimAI's senders have a window of what a link carries in an idle round trip (`HAS_WIN` in SimAI.conf), about 240 KB. Two or three of them \
     fill a queue to less than the 800 KB from which on it marks, so its DCQCN has nothing to do. Railnet's DCQCN has no window, so \
     \"as SimAI\" is without it: with it, two that meet are cut for 300 µs and more, and 128 MiB reach 16 GB/s.",
    "NCCL makes more channels of a ring than SimAI, and their thinner flows share links better: then nothing is left of the gap.",
];
