//! Rails against leaves for whole servers: the first figure of SimAI's tutorial.

use super::measure::{Ask, Setup, each};
use super::{Cell, Part};

/// One size: what SimAI has for rails and for plain leaves, and how many channels each ring has here.
struct Case {
    size: &'static str,
    published: Option<(f64, f64)>,
    channels: Option<u32>,
    is_long: bool,
}

const fn case(size: &'static str, rails: f64, plain: f64, is_long: bool) -> Case {
    Case { size, published: Some((rails, plain)), channels: Some(1), is_long }
}

/// SimAI has one flow for each neighbour in a ring; the last is with NCCL's own number of channels.
const CASES: [Case; 5] = [
    case("16MiB", 33.10, 23.33, false),
    case("64MiB", 42.05, 23.68, false),
    case("128MiB", 44.04, 35.21, false),
    case("512MiB", 45.65, 36.24, true),
    Case { size: "16MiB", published: None, channels: None, is_long: false },
];

const SERVERS: u32 = 32;

fn setup(is_rail: bool) -> Setup {
    // Sizes as in SimAI's generator: leaves of 64 NICs, and as many links up as down.
    let topology = if is_rail {
        "{ kind = \"rail-optimised\", nodes = 32, rails = 8, nodes_per_group = 32, spines = 32 }".to_owned()
    } else {
        "{ kind = \"leaf-spine\", leaves = 4, hosts_per_leaf = 64, spines = 64 }".to_owned()
    };
    let mut setup = Setup::new("dgx-h100", SERVERS);
    setup.topology = Some(topology);
    setup.groups = Some("{ every = 8 }");
    setup
}

pub(super) fn part(is_full: bool) -> anyhow::Result<Part> {
    let cases: Vec<_> = CASES.iter().filter(|case| is_full || !case.is_long).collect();
    let jobs: Vec<_> = cases.iter().flat_map(|case| [(*case, true), (*case, false)]).collect();
    let measured = each(&jobs, |(case, is_rail)| {
        let ask = Ask { channels: case.channels, ..Ask::all_reduce(case.size, "ring").by("simple") };
        Ok(setup(*is_rail).measure(&[ask])?.remove(0))
    })?;
    let rows = cases.iter().zip(measured.chunks(2)).map(|(case, ours)| {
        let [rails, plain] = [ours[0].bus, ours[1].bus];
        let published = |cell: fn((f64, f64)) -> Cell| case.published.map_or_else(Cell::none, cell);
        let difference = |ours: f64, theirs: Option<f64>| {
            theirs.map_or_else(Cell::none, |theirs| Cell::difference(ours / theirs - 1.0))
        };
        vec![
            Cell::text(case.size),
            Cell::number(f64::from(ours[0].result.channels), 0),
            published(|(rails, _)| Cell::number(rails, 1)),
            Cell::number(rails, 1),
            difference(rails, case.published.map(|(rails, _)| rails)),
            published(|(_, plain)| Cell::number(plain, 1)),
            Cell::number(plain, 1),
            difference(plain, case.published.map(|(_, plain)| plain)),
            published(|(rails, plain)| Cell::number(rails / plain, 2)),
            Cell::number(rails / plain, 2),
        ]
    });
    Ok(Part {
        name: "rails",
        title: "Rails or not",
        intro: "256 H100 in 32 servers, data parallelism between GPUs of the same number: eight all-reduces by ring at once, of 32\n\
                ranks each, with DCQCN. SimAI's tutorial (docs/Tutorial.md) has the same with ns-3: rail-optimised (Spectrum-X there)\n\
                and not (DCN+). With rails a ring crosses one switch, and nobody else is on its links; without, servers hang on a\n\
                leaf with all of their NICs, and rings of different GPUs meet on the links to the spines wherever the hash puts two\n\
                on one.",
        columns: vec![
            "size",
            "channels",
            "SimAI rails",
            "Railnet rails",
            "difference",
            "SimAI plain",
            "Railnet plain",
            "difference of plain",
            "SimAI gain",
            "Railnet gain",
        ],
        rows: rows.collect(),
        remarks: vec![
            "With one connection between neighbours, as SimAI has, two rings on one link halve each other. NCCL makes more channels \
             of a ring, and their thinner flows share links better: then little is left of the gap (last row)."
                .to_owned(),
        ],
    })
}
