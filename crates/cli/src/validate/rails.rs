//! Rails against leaves for whole servers: the first figure of SimAI's tutorial.

use super::measure::{Ask, Setup, each};
use super::{Cell, Part};

/// Sizes, and SimAI's figures for them: rail-optimised, and not.
const PUBLISHED: [(&str, f64, f64, bool); 4] = [
    ("16MiB", 33.10, 23.33, false),
    ("64MiB", 42.05, 23.68, true),
    ("128MiB", 44.04, 35.21, true),
    ("512MiB", 45.65, 36.24, true),
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
    let sizes: Vec<_> = PUBLISHED.iter().filter(|(.., is_long)| is_full || !is_long).collect();
    let jobs: Vec<_> = sizes.iter().flat_map(|(size, ..)| [(*size, true), (*size, false)]).collect();
    let measured = each(&jobs, |(size, is_rail)| {
        Ok(setup(*is_rail).measure(&[Ask::all_reduce(size, "ring")])?.remove(0).bus)
    })?;
    let rows = sizes.iter().zip(measured.chunks(2)).map(|((size, rail, plain, _), ours)| {
        vec![
            Cell::text(*size),
            Cell::number(*rail, 1),
            Cell::number(ours[0], 1),
            Cell::difference(ours[0] / rail - 1.0),
            Cell::number(*plain, 1),
            Cell::number(ours[1], 1),
            Cell::difference(ours[1] / plain - 1.0),
            Cell::number(rail / plain, 2),
            Cell::number(ours[0] / ours[1], 2),
        ]
    });
    Ok(Part {
        name: "rails",
        title: "Rails or not",
        intro: "256 H100 in 32 servers, data parallelism between GPUs of the same number: eight all-reduces by ring at once, of 32\n\
                ranks each, with DCQCN. SimAI's tutorial (docs/Tutorial.md) has the same with ns-3: rail-optimised (Spectrum-X there)\n\
                and not (DCN+). With rails a ring crosses one switch, and nobody else is on its links; without, servers hang on a\n\
                leaf with all of their NICs, rings of different rails meet on the links to the spines, and by hash some links get\n\
                several of them.",
        columns: vec![
            "size",
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
            "SimAI charges 2 µs for each message and moves flows; here slices go through the slots of NCCL's connections, so that \
             short messages suffer less. The direction and the gap are the same."
                .to_owned(),
        ],
    })
}
