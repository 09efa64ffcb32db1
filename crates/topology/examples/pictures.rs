//! Draws the usual shapes of fabrics and prints what they amount to: `cargo run --example pictures -- DIRECTORY`.
#![allow(clippy::print_stdout)]

use std::path::PathBuf;

use railnet_core::{Rate, Span};
use railnet_topology::fabric::{
    Dragonfly, FabricKind, FatTree, LeafSpine, LinkSpec, RailOptimised, SingleSwitch,
};
use railnet_topology::{Routes, draw, summary};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::args().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let mut links = LinkSpec::new(Rate::gbps(400), Span::from_ns(500));
    links.core.rate = Some(Rate::gbps(800));
    links.global.delay = Some(Span::from_us(2));
    let dragonfly = |groups, routers_per_group, hosts_per_router, global_links_per_router| {
        FabricKind::Dragonfly(Dragonfly {
            groups,
            routers_per_group,
            hosts_per_router,
            global_links_per_router,
        })
    };
    let fabrics = [
        ("single-switch", FabricKind::SingleSwitch(SingleSwitch { hosts: 17 })),
        ("leaf-spine", FabricKind::LeafSpine(LeafSpine { links_per_spine: 2, ..LeafSpine::new(4, 8, 2) })),
        ("fat-tree-4", FabricKind::FatTree(FatTree::new(4))),
        ("fat-tree-8", FabricKind::FatTree(FatTree::new(8))),
        ("fat-tree-16", FabricKind::FatTree(FatTree::new(16))),
        ("rails", FabricKind::RailOptimised(RailOptimised::new(4, 8, 4))),
        (
            "rails-large",
            FabricKind::RailOptimised(RailOptimised { nodes_per_group: 16, ..RailOptimised::new(32, 8, 8) }),
        ),
        ("dragonfly", dragonfly(9, 4, 2, 2)),
        ("dragonfly-large", dragonfly(33, 8, 4, 4)),
    ];
    for (name, kind) in fabrics {
        let graph = kind.build(&links)?;
        let path = directory.join(format!("{name}.svg"));
        std::fs::write(&path, draw(&graph))?;
        println!("{}\n{}\n", path.display(), summary(&graph, &Routes::shortest(&graph)));
    }
    Ok(())
}
