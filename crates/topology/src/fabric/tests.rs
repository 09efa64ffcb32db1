//! Sizes, degrees, routes and measures of every kind of fabric.

use proptest::prelude::*;
use railnet_core::{Random, Rate, Ratio, Span};

use super::*;
use crate::{DragonflyRoutes, Routes, bisection, summary};

const RATE: Rate = Rate::gbps(100);

fn links() -> LinkSpec {
    LinkSpec::new(RATE, Span::from_us(1))
}

fn build(kind: &FabricKind) -> FabricGraph {
    kind.build(&links()).unwrap()
}

fn fat_tree(k: u32) -> FabricGraph {
    build(&FabricKind::FatTree(FatTree::new(k)))
}

fn dragonfly(g: u32, a: u32, p: u32, h: u32) -> FabricKind {
    FabricKind::Dragonfly(Dragonfly {
        groups: g,
        routers_per_group: a,
        hosts_per_router: p,
        global_links_per_router: h,
    })
}

/// How many ports the switches of a tier have; all must have the same.
fn degree(graph: &FabricGraph, tier: u8) -> usize {
    let adjacency = graph.adjacency();
    let of_tier = (0..graph.switches.len()).filter(|id| graph.switches[*id].tier == tier);
    let degrees: Vec<_> = of_tier.map(|id| adjacency.of(Vertex::Switch(id as u32)).len()).collect();
    assert!(degrees.windows(2).all(|pair| pair[0] == pair[1]), "{degrees:?}");
    degrees[0]
}

fn times(rate: Rate, count: u64) -> Rate {
    Rate::from_bps(rate.as_bps() * count)
}

fn mean_links(routes: &Routes, pairs: &[(u32, u32)]) -> f64 {
    let links: u32 = pairs.iter().map(|(a, b)| routes.path_length(*a, *b).unwrap()).sum();
    f64::from(links) / pairs.len() as f64
}

#[test]
fn a_single_switch_has_a_port_per_host() {
    let graph = build(&FabricKind::SingleSwitch(SingleSwitch { hosts: 17 }));
    assert_eq!((graph.hosts.len(), graph.switches.len(), graph.links.len()), (17, 1, 17));
    assert_eq!(graph.port_count(Vertex::Switch(0)), 17);
    let routes = Routes::shortest(&graph);
    assert_eq!(routes.next_hops(0, 5), [5]);
    let summary = summary(&graph, &routes);
    assert_eq!((summary.longest_path, summary.paths), (2, (1, 1)));
    assert_eq!(summary.bisection, times(RATE, 8));
}

#[test]
fn leaf_spine_counts_and_oversubscription() {
    let shape = LeafSpine::new(4, 8, 2);
    let graph = build(&FabricKind::LeafSpine(shape));
    assert_eq!((graph.hosts.len(), graph.switches.len(), graph.links.len()), (32, 6, 40));
    assert_eq!((degree(&graph, 1), degree(&graph, 2)), (10, 4));
    assert_eq!(shape.oversubscription(&links()), Some(Ratio::new(4, 1)));
    assert_eq!(bisection(&graph), times(RATE, 4));

    let full = LeafSpine { links_per_spine: 4, ..shape };
    assert_eq!(full.oversubscription(&links()), Some(Ratio::ONE));
    assert_eq!(bisection(&build(&FabricKind::LeafSpine(full))), times(RATE, 16));

    let mut fast = links();
    fast.up.rate = Some(Rate::gbps(400));
    assert_eq!(shape.oversubscription(&fast), Some(Ratio::ONE));
    let graph = FabricKind::LeafSpine(shape).build(&fast).unwrap();
    assert_eq!(bisection(&graph), times(RATE, 16));
    let rates: Vec<_> =
        graph.links.iter().filter(|link| link.kind == LinkKind::Up).map(|link| link.rate).collect();
    assert!(rates.iter().all(|rate| *rate == Rate::gbps(400)));
}

#[test]
fn parallel_links_are_equal_cost_ports() {
    let shape = LeafSpine { links_per_spine: 3, ..LeafSpine::new(2, 2, 2) };
    let graph = build(&FabricKind::LeafSpine(shape));
    let routes = Routes::shortest(&graph);
    // Ports 0 and 1 are hosts, then three to each spine.
    assert_eq!(routes.next_hops(0, 2), [2, 3, 4, 5, 6, 7]);
    assert_eq!(summary(&graph, &routes).paths, (1, 18));
}

#[test]
fn fat_tree_counts_and_degrees() {
    for k in [2, 4, 8, 16] {
        let graph = fat_tree(k);
        let (half, k) = (k as usize / 2, k as usize);
        assert_eq!(graph.hosts.len(), k * half * half);
        assert_eq!(graph.switches.len(), 2 * k * half + half * half);
        assert_eq!(graph.links.len(), 3 * k * half * half);
        for tier in 1..=3 {
            assert_eq!(degree(&graph, tier), k);
        }
        assert_eq!(bisection(&graph), times(RATE, graph.hosts.len() as u64 / 2));
    }
    let two = build(&FabricKind::FatTree(FatTree { tiers: 2, ..FatTree::new(8) }));
    assert_eq!((two.hosts.len(), two.switches.len(), two.links.len()), (32, 12, 64));
    assert_eq!((degree(&two, 1), degree(&two, 2)), (8, 8));
    assert_eq!(bisection(&two), times(RATE, 16));
}

#[test]
fn an_oversubscribed_fat_tree_has_less_on_top() {
    let tree = |k, tiers, ratio| FabricKind::FatTree(FatTree { k, tiers, oversubscription: ratio });
    let graph = build(&tree(8, 3, Ratio::new(2, 1)));
    assert_eq!((graph.hosts.len(), graph.switches.len()), (128, 64 + 8));
    assert_eq!((degree(&graph, 1), degree(&graph, 2), degree(&graph, 3)), (8, 6, 8));
    assert_eq!(bisection(&graph), times(RATE, 32));
    let graph = build(&tree(8, 2, Ratio::new(4, 3)));
    assert_eq!(degree(&graph, 1), 7);
    assert_eq!(bisection(&graph), times(RATE, 12));
    let error = tree(8, 3, Ratio::new(3, 1)).build(&links()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "fat-tree: an oversubscription of 3 does not leave a whole number of the 4 uplinks; \
         possible with k = 8: 1, 4/3, 2, 4",
    );
    let error = tree(8, 3, Ratio::new(1, 2)).build(&links()).unwrap_err();
    assert!(error.to_string().contains("needs more uplinks than the 4 there are"), "{error}");
}

#[test]
fn fat_tree_paths_are_as_long_as_published_runs_say() {
    let graph = fat_tree(8);
    let routes = Routes::shortest(&graph);
    let summary = summary(&graph, &routes);
    assert_eq!(summary.average_path, Ratio::new(726, 127));
    assert!((summary.average_links() - 5.717).abs() < 0.001);
    assert_eq!((summary.longest_path, summary.paths), (6, (1, 16)));
    assert_eq!(summary.switches_per_tier, [32, 32, 16]);
    assert_eq!(summary.unreachable_pairs, 0);
    let ring: Vec<_> = (0..128).map(|host| (host, (host + 1) % 128)).collect();
    assert!((mean_links(&routes, &ring) - 2.625).abs() < 1e-9);
    let all = summary.average_path;
    let pairs: Vec<_> =
        (0..128).flat_map(|a| (0..128).map(move |b| (a, b))).filter(|(a, b)| a != b).collect();
    assert!((mean_links(&routes, &pairs) - all.numerator() as f64 / all.denominator() as f64).abs() < 1e-9);
}

#[test]
fn random_permutations_cross_nearly_the_whole_tree() {
    let routes = Routes::shortest(&fat_tree(8));
    let mut random = Random::stream(1, "permutation", 0);
    let mut sum = 0.0;
    for _ in 0..20 {
        let mut targets: Vec<u32> = (0..128).collect();
        while (0..128).any(|host| targets[host as usize] == host) {
            for place in (1..128).rev() {
                targets.swap(place, random.below(place as u64 + 1) as usize);
            }
        }
        let pairs: Vec<_> = (0..128).zip(targets).collect();
        let mean = mean_links(&routes, &pairs);
        // One such permutation of a published comparison has 5.828.
        assert!((5.5..5.95).contains(&mean), "{mean}");
        sum += mean;
    }
    assert!((sum / 20.0 - 5.717).abs() < 0.06, "{sum}");
}

#[test]
fn fat_tree_groups_are_few_and_right() {
    let graph = fat_tree(4);
    let routes = Routes::shortest(&graph);
    let edge = graph.find_switch("edge0.0").unwrap();
    assert_eq!(routes.next_hops(edge, 0), [0]);
    assert_eq!(routes.next_hops(edge, 1), [1]);
    // Ports 0 and 1 are hosts, 2 and 3 lead up.
    for host in 2..16 {
        assert_eq!(routes.next_hops(edge, host), [2, 3]);
    }
    let core = graph.find_switch("core3").unwrap();
    assert_eq!(routes.next_hops(core, 13), [3]);
    assert_eq!(routes.distance(core, 13), Some(3));
    assert_eq!(routes.path_length(0, 1), Some(2));
    assert_eq!(routes.path_length(0, 2), Some(4));
    assert_eq!(routes.path_length(0, 15), Some(6));
    assert_eq!(routes.path_length(3, 3), Some(0));
    assert!(routes.groups().len() <= 8, "{:?}", routes.groups());
}

#[test]
fn dead_links_are_routed_around() {
    let graph = fat_tree(4);
    let edge = graph.find("edge0.0").unwrap();
    let aggregation = graph.find("agg0.0").unwrap();
    let mut dead = vec![false; graph.links.len()];
    for link in graph.links_between(edge, aggregation) {
        dead[link as usize] = true;
    }
    let routes = Routes::without(&graph, &dead);
    assert_eq!(routes.next_hops(0, 15), [3]);
    assert_eq!(routes.path_length(0, 15), Some(6));
    // Cores of the first plane reach edge0.0 no longer by two links, but down and up again.
    let core = graph.find_switch("core0").unwrap();
    assert_eq!(routes.distance(core, 2), Some(3));
    assert_eq!(routes.distance(core, 0), Some(5));
    assert_eq!(summary(&graph, &routes).unreachable_pairs, 0);

    for link in graph.links_between(Vertex::Host(0), edge) {
        dead[link as usize] = true;
    }
    let routes = Routes::without(&graph, &dead);
    assert!((0..20).all(|switch| routes.next_hops(switch, 0).is_empty()));
    assert_eq!(routes.path_length(5, 0), None);
    assert_eq!(routes.path_length(0, 5), None);
    assert_eq!(routes.path_length(5, 1), Some(6));
    assert_eq!(summary(&graph, &routes).unreachable_pairs, 30);
}

#[test]
fn rails_of_a_group_meet_on_one_leaf() {
    let shape = RailOptimised { nodes_per_group: 4, ..RailOptimised::new(6, 8, 4) };
    let graph = build(&FabricKind::RailOptimised(shape));
    assert_eq!((graph.hosts.len(), graph.switches.len(), graph.links.len()), (48, 16 + 4, 48 + 64));
    let host = &graph.hosts[8 + 3];
    assert_eq!((host.name.as_str(), host.node, host.rail), ("node1.nic3", 1, 3));
    let routes = Routes::shortest(&graph);
    let id = |node: u32, rail: u32| node * 8 + rail;
    assert_eq!(routes.path_length(id(0, 3), id(3, 3)), Some(2));
    assert_eq!(routes.path_length(id(0, 3), id(0, 4)), Some(4));
    assert_eq!(routes.path_length(id(0, 3), id(5, 3)), Some(4));
    assert_eq!(graph.name(Vertex::Switch(routes.leaf_of(id(5, 3)).unwrap())), "leaf1.3");
    assert_eq!(summary(&graph, &routes).paths, (1, 4));
}

#[test]
fn rails_get_a_third_tier_where_spines_have_too_few_ports() {
    let widest = |graph: &FabricGraph| {
        let switches = 0..graph.switches.len() as u32;
        switches.map(|switch| graph.port_count(Vertex::Switch(switch))).max().unwrap()
    };
    // Sixteen groups of eight leaves fill spines of 128 ports.
    let flat = RailOptimised::of_switches(512, 8, 32, 128);
    let spines = RailOptimised { nodes_per_group: 32, ..RailOptimised::new(512, 8, 32) };
    assert_eq!(flat, spines);
    assert_eq!(widest(&build(&FabricKind::RailOptimised(flat))), 128);
    // One group more: pods of eight groups, 32 spines each with 64 links down and up, cores with links to all three pods.
    let tall = RailOptimised::of_switches(544, 8, 32, 128);
    assert_eq!(tall.pods, Some(Pods { groups: 8, cores: 2, links_per_core: 32 }));
    let graph = build(&FabricKind::RailOptimised(tall));
    assert_eq!((graph.tiers(), widest(&graph)), (3, 128));
    assert_eq!(graph.switches.len(), 17 * 8 + 3 * 32 + 32 * 2);
    let routes = Routes::shortest(&graph);
    let id = |node: u32, rail: u32| node * 8 + rail;
    assert_eq!(routes.path_length(id(0, 3), id(31, 3)), Some(2));
    assert_eq!(routes.path_length(id(0, 3), id(32, 3)), Some(4));
    assert_eq!(routes.path_length(id(0, 3), id(543, 5)), Some(6));
    // The largest that one asks for, and all of it of switches that are sold.
    for (nodes, rails, ports) in [(8_192, 8, 128), (8_192, 8, 64), (32_768, 8, 128)] {
        let shape = RailOptimised::of_switches(nodes, rails, 32, ports);
        let pods = shape.pods.unwrap();
        let groups = nodes / 32;
        let spine = pods.groups * rails + pods.cores * pods.links_per_core;
        let core = groups.div_ceil(pods.groups) * pods.links_per_core;
        assert!(spine <= ports && core <= ports, "{nodes} on {ports}: {spine} and {core}");
        assert_eq!(pods.groups * rails, pods.cores * pods.links_per_core, "as much up as down");
    }
}

#[test]
fn a_full_dragonfly_joins_every_pair_of_groups_once() {
    let graph = build(&dragonfly(9, 4, 2, 2));
    assert_eq!((graph.hosts.len(), graph.switches.len()), (72, 36));
    assert_eq!(graph.links.len(), 72 + 9 * 6 + 36);
    assert_eq!(degree(&graph, 1), 2 + 3 + 2);
    assert_eq!(links_between_groups(&graph).len(), 36);
    assert!(links_between_groups(&graph).iter().all(|(_, count)| *count == 1));
}

#[test]
fn spare_global_links_are_spread_evenly() {
    for (g, a, h, fewest, most) in
        [(5, 4, 2, 2, 2), (4, 4, 2, 2, 3), (2, 2, 3, 6, 6), (6, 4, 2, 1, 2), (1, 4, 1, 0, 0)]
    {
        let graph = build(&dragonfly(g, a, 1, h));
        let pairs = links_between_groups(&graph);
        assert_eq!(pairs.len() as u32, g * (g - 1) / 2);
        assert!(pairs.iter().all(|(_, count)| (fewest..=most).contains(count)), "{g} {a} {h} {pairs:?}");
    }
}

fn links_between_groups(graph: &FabricGraph) -> Vec<((u32, u32), u32)> {
    let mut pairs = std::collections::BTreeMap::new();
    for link in graph.links.iter().filter(|link| link.kind == LinkKind::Global) {
        let [Vertex::Switch(a), Vertex::Switch(b)] = link.ends.map(|end| end.vertex) else {
            panic!("{link:?}")
        };
        let [a, b] = [a, b].map(|switch| graph.switches[switch as usize].pod);
        assert_ne!(a, b);
        *pairs.entry((a.min(b), a.max(b))).or_insert(0) += 1;
    }
    pairs.into_iter().collect()
}

#[test]
fn minimal_dragonfly_paths_cross_one_global_link() {
    let graph = build(&dragonfly(9, 4, 2, 2));
    let routes = DragonflyRoutes::new(&graph);
    assert_eq!(routes.groups, 9);
    let adjacency = graph.adjacency();
    for source in 0..graph.switches.len() as u32 {
        for host in 0..graph.hosts.len() as u32 {
            let (mut switch, mut globals, mut locals) = (source, 0, 0);
            while routes.minimal.leaf_of(host) != Some(switch) {
                let port = routes.minimal.next_hops(switch, host)[0];
                let next = adjacency.of(Vertex::Switch(switch))[port as usize];
                let Vertex::Switch(peer) = next.peer.vertex else { panic!("a host in between") };
                if routes.is_global[next.link as usize] {
                    globals += 1;
                } else {
                    locals += 1;
                }
                switch = peer;
            }
            let far = routes.group_of_switch[source as usize] != routes.group_of_host[host as usize];
            assert_eq!(globals, u32::from(far));
            assert!(locals <= 2);
        }
    }
    // Shortest by links alone would also use paths over a third group: two global links and no local one.
    let plain = summary(&graph, &Routes::shortest(&graph)).average_path;
    assert!(plain < summary(&graph, &routes.minimal).average_path);
}

#[test]
fn valiant_detours_reach_their_group() {
    let graph = build(&dragonfly(9, 4, 2, 2));
    let routes = DragonflyRoutes::new(&graph);
    let adjacency = graph.adjacency();
    for start in 0..36 {
        for group in 0..9 {
            let mut switch = start;
            let mut hops = 0;
            while routes.group_of_switch[switch as usize] != group {
                let port = routes.toward_group(switch, group)[0];
                let next = adjacency.of(Vertex::Switch(switch))[port as usize];
                let Vertex::Switch(peer) = next.peer.vertex else { panic!("a host in between") };
                switch = peer;
                hops += 1;
            }
            assert!(hops <= 2);
            assert!(routes.toward_group(switch, group).is_empty());
        }
    }
}

#[test]
fn a_dragonfly_survives_the_loss_of_a_global_link() {
    let graph = build(&dragonfly(9, 4, 2, 2));
    let mut dead = vec![false; graph.links.len()];
    dead[graph.links.iter().position(|link| link.kind == LinkKind::Global).unwrap()] = true;
    let routes = DragonflyRoutes::without(&graph, &dead);
    assert_eq!(summary(&graph, &routes.minimal).unreachable_pairs, 0);
}

#[test]
fn too_many_groups_say_what_would_do() {
    let error = dragonfly(10, 4, 2, 2).build(&links()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "dragonfly: 10 groups, but the 4 routers of a group with 2 global links each reach 8 other groups; \
         use at most 9 groups, or 3 global links per router",
    );
}

fn explicit(switches: &[&str], links: &[&str]) -> FabricKind {
    FabricKind::Explicit(Explicit {
        hosts: Vec::new(),
        switches: switches.iter().map(|name| (*name).to_owned()).collect(),
        links: links.iter().map(|link| ExplicitLink::new(*link)).collect(),
    })
}

#[test]
fn explicit_lists_name_hosts_by_first_use() {
    let kind = explicit(
        &["tor-a", "tor-b", "top"],
        &[
            "n0.nic0 - tor-a:1",
            "n0.nic1 - tor-b",
            "n1.nic0 - tor-a",
            "tor-a - top",
            "tor-b-x - tor-b",
            "top:0 - tor-b",
        ],
    );
    let graph = build(&kind);
    let names: Vec<_> = graph.hosts.iter().map(|host| (host.name.as_str(), host.node, host.rail)).collect();
    assert_eq!(names, [("n0.nic0", 0, 0), ("n0.nic1", 0, 1), ("n1.nic0", 1, 0), ("tor-b-x", 2, 0)]);
    assert_eq!(graph.switches.iter().map(|switch| switch.tier).collect::<Vec<_>>(), [1, 1, 2]);
    let ports: Vec<_> =
        graph.neighbours(Vertex::Switch(0)).iter().map(|neighbour| neighbour.peer.vertex).collect();
    assert_eq!(ports, [Vertex::Host(2), Vertex::Host(0), Vertex::Switch(2)]);
    assert_eq!(Routes::shortest(&graph).path_length(0, 1), Some(4));
}

#[test]
fn hosts_that_are_listed_are_numbered_first() {
    let links = ["c - s", "b - s", "a - s"].map(ExplicitLink::new).to_vec();
    let hosts = vec!["a".to_owned(), "b".to_owned()];
    let graph = build(&FabricKind::Explicit(Explicit { hosts, switches: vec!["s".to_owned()], links }));
    let names: Vec<_> = graph.hosts.iter().map(|host| host.name.as_str()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    assert_eq!(graph.link_name(0), "c - s", "links stay as they are listed");
}

#[test]
fn two_hosts_may_be_joined_back_to_back() {
    let graph = build(&explicit(&[], &["a - b"]));
    let routes = Routes::shortest(&graph);
    assert_eq!(routes.path_length(0, 1), Some(1));
    let summary = summary(&graph, &routes);
    assert_eq!((summary.average_path, summary.bisection), (Ratio::ONE, RATE));
    assert_eq!((summary.longest_path, summary.unreachable_pairs), (1, 0));
}

#[test]
fn mistakes_in_a_list_are_named() {
    let cases: [(&[&str], &[&str], &str); 9] = [
        (&["s"], &["a s"], "link \"a s\": there is no dash between two names"),
        (&["s"], &["a - s:x"], "\"x\" is not a port"),
        (&["s"], &["a - "], "a name is missing"),
        (&["s"], &["a - s:1"], "port 0 of s has no link"),
        (&["s"], &["a - s:0", "b - s:0"], "port 0 of s has two links"),
        (&["s"], &["a - s", "s - s"], "link 1 joins s to itself"),
        (&["s", "t"], &["a - s", "b - t"], "there is no path from a to b"),
        (&["s", "t"], &["a - s", "b - s"], "t has no link"),
        (&["s", "t"], &["a - s", "b - t", "s - u", "t - u"], "host u has 2 links"),
    ];
    for (switches, links_, expected) in cases {
        let error = explicit(switches, links_).build(&links()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let twice = explicit(&["s", "s"], &["a - s"]).build(&links()).unwrap_err();
    assert_eq!(twice.to_string(), "the name \"s\" is given twice");
    let stopped = explicit(&["s"], &["a - s"]).build(&LinkSpec::new(Rate::ZERO, Span::ZERO)).unwrap_err();
    assert_eq!(stopped.to_string(), "the link a - s has a rate of zero");
    let empty = explicit(&[], &[]).build(&links()).unwrap_err();
    assert_eq!(empty.to_string(), "the fabric has no hosts");
}

#[test]
fn impossible_and_huge_fabrics_are_refused() {
    let cases = [
        (FabricKind::SingleSwitch(SingleSwitch { hosts: 0 }), "single-switch: hosts is 0; use at least 1"),
        (
            FabricKind::SingleSwitch(SingleSwitch { hosts: 70_000 }),
            "70000 ports on one switch; at most 65535",
        ),
        (FabricKind::LeafSpine(LeafSpine::new(2, 2, 0)), "2 leaves without a spine cannot reach each other"),
        (FabricKind::FatTree(FatTree { tiers: 4, ..FatTree::new(4) }), "4 tiers; use 2 or 3"),
        (FabricKind::FatTree(FatTree::new(u32::MAX - 1)), "hosts; at most 262144 are built"),
        (FabricKind::FatTree(FatTree::new(1)), "use 2"),
        (FabricKind::RailOptimised(RailOptimised::new(4, 8, 0)), "use at least 1 spine"),
        (dragonfly(u32::MAX, u32::MAX, u32::MAX, u32::MAX), "hosts; at most 262144 are built"),
    ];
    for (kind, expected) in cases {
        let error = kind.build(&links()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn hosts_can_be_dealt_out_to_servers() {
    let graph = fat_tree(4).with_nics_per_node(8);
    let host = &graph.hosts[9];
    assert_eq!((host.name.as_str(), host.node, host.rail), ("node1.nic1", 1, 1));
    assert_eq!(graph.check(), Ok(()));
}

fn any_kind() -> impl Strategy<Value = FabricKind> {
    let small = || 0u32..7;
    prop_oneof![
        (0u32..40).prop_map(|hosts| FabricKind::SingleSwitch(SingleSwitch { hosts })),
        (small(), small(), small(), small()).prop_map(|(leaves, hosts_per_leaf, spines, links_per_spine)| {
            FabricKind::LeafSpine(LeafSpine { leaves, hosts_per_leaf, spines, links_per_spine })
        }),
        (0u32..11, 1u8..5, 0u64..6, 1u64..4).prop_map(|(k, tiers, a, b)| {
            FabricKind::FatTree(FatTree { k, tiers, oversubscription: Ratio::new(a, b) })
        }),
        (small(), small(), small(), small(), small()).prop_map(
            |(nodes, rails, nodes_per_group, spines, links)| {
                FabricKind::RailOptimised(RailOptimised {
                    nodes,
                    rails,
                    nodes_per_group,
                    spines,
                    links_per_spine: links,
                    pods: (links > 1).then_some(Pods { groups: spines, cores: rails, links_per_core: nodes }),
                })
            }
        ),
        (0u32..12, small(), 0u32..3, 0u32..5).prop_map(|(g, a, p, h)| dragonfly(g, a, p, h)),
        proptest::collection::vec(("[abst]", "[abst]", 0u16..4), 0..8).prop_map(|list| {
            let links = list.iter().map(|(a, b, port)| match port {
                0 => format!("{a} - {b}"),
                port => format!("{a}:{} - {b}", port - 1),
            });
            let links = links.map(ExplicitLink::new).collect();
            let switches = vec!["s".into(), "t".into()];
            FabricKind::Explicit(Explicit { hosts: Vec::new(), switches, links })
        }),
    ]
}

proptest! {
    #[test]
    fn whatever_is_built_is_a_fabric(kind in any_kind()) {
        let Ok(graph) = kind.build(&links()) else { return Ok(()) };
        prop_assert_eq!(graph.check(), Ok(()));
        let routes = Routes::shortest(&graph);
        let summary = summary(&graph, &routes);
        prop_assert_eq!(summary.unreachable_pairs, 0);
        prop_assert_eq!(DragonflyRoutes::new(&graph).minimal.path_length(0, 0), Some(0));
        prop_assert!(summary.to_string().contains("bisection"));
    }

    #[test]
    fn huge_numbers_never_panic(a: u32, b: u32, c: u32, d: u32) {
        let size = |kind: &FabricKind| kind.build(&links()).map(|graph| graph.hosts.len());
        // Builds only what is small; the rest must be refused before it is allocated.
        if u64::from(a) * u64::from(b) > HOSTS_MAX {
            let _ = size(&FabricKind::LeafSpine(LeafSpine { leaves: a, hosts_per_leaf: b, spines: c, links_per_spine: d }));
            let _ = size(&dragonfly(a, b, c, d));
            let shape = RailOptimised {
                nodes: a,
                rails: b,
                nodes_per_group: c,
                spines: d,
                links_per_spine: d,
                pods: None,
            };
            let _ = size(&FabricKind::RailOptimised(shape));
        }
    }

    #[test]
    fn every_next_hop_comes_one_link_closer(kind in any_kind(), cuts in proptest::collection::vec(any::<bool>(), 0..40)) {
        let Ok(graph) = kind.build(&links()) else { return Ok(()) };
        let routes = Routes::without(&graph, &cuts);
        let adjacency = graph.adjacency();
        for switch in 0..graph.switches.len() as u32 {
            for host in 0..graph.hosts.len() as u32 {
                let hops = routes.next_hops(switch, host);
                prop_assert_eq!(hops.is_empty(), routes.distance(switch, host).is_none());
                prop_assert!(hops.windows(2).all(|pair| pair[0] < pair[1]));
                for port in hops {
                    let next = adjacency.of(Vertex::Switch(switch))[*port as usize];
                    prop_assert!(!cuts.get(next.link as usize).copied().unwrap_or(false));
                    match next.peer.vertex {
                        Vertex::Host(peer) => prop_assert_eq!(peer, host),
                        Vertex::Switch(peer) => prop_assert_eq!(
                            routes.distance(peer, host).map(|distance| distance + 1),
                            routes.distance(switch, host)
                        ),
                    }
                }
            }
        }
    }
}
