//! The round trip of a fabric in which nothing waits: what HPCC and DCTCP begin with.

use railnet_core::{Bytes, Span};
use railnet_topology::{FabricGraph, Routes};

use crate::scenario::{Scenario, graph};

/// Transport headers of a data packet in the middle of a message, telemetry included.
const DATA_HEADERS: u64 = 12 + 4 + 40;
/// Transport headers of an acknowledgement that echoes the telemetry of two switches.
const ANSWER_HEADERS: u64 = 12 + 4 + 16 + 4;
/// What a cut-through switch waits for before it forwards.
const CUT_THROUGH: u64 = 64;

/// The time of a full packet over the longest path and of its acknowledgement back, with all queues empty. A fabric that
/// cannot be made has none: the run says why.
pub(crate) fn idle_round_trip(scenario: &Scenario) -> Span {
    let Ok(graph) = graph(scenario) else { return Span::ZERO };
    let links = longest_path(&graph, &Routes::shortest(&graph));
    let link = &scenario.fabric.link;
    let overhead = u64::from(scenario.framing().overhead);
    let over_all = |bytes: u64| {
        let whole = link.rate.0.serialize(Bytes(bytes));
        let forward = if scenario.fabric.switch.cut_through { CUT_THROUGH.min(bytes) } else { bytes };
        whole + link.rate.0.serialize(Bytes(forward)) * (links - 1) + link.delay.0 * links
    };
    over_all(overhead + DATA_HEADERS + u64::from(scenario.payload())) + over_all(overhead + ANSWER_HEADERS)
}

/// Links between the two hosts that are furthest apart; one at least.
fn longest_path(graph: &FabricGraph, routes: &Routes) -> u64 {
    let hosts = 0..graph.hosts.len() as u32;
    let mut leaves: Vec<u32> = hosts.clone().filter_map(|host| routes.leaf_of(host)).collect();
    leaves.sort_unstable();
    leaves.dedup();
    let lengths =
        leaves.iter().flat_map(|leaf| hosts.clone().filter_map(|host| routes.distance(*leaf, host)));
    u64::from(lengths.max().unwrap_or(0)) + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(topology: &str, switch: &str) -> Span {
        let text = format!("[fabric]\ntopology = {{ {topology} }}\nswitch = {{ {switch} }}\n");
        idle_round_trip(&Scenario::parse(&text).unwrap())
    }

    #[test]
    fn a_round_trip_is_delay_and_packets_on_every_link() {
        // 4096 + 126 bytes there and 106 back at 80 ps a byte, over two links or six; 1 µs a link.
        let one_way = |links: u64| Span::from_ps((4222 + 106) * 80) * links;
        let flat = of("kind = \"single-switch\", hosts = 3", "");
        assert_eq!(flat, Span::from_us(4) + one_way(2));
        let tall = of("kind = \"fat-tree\", k = 4", "");
        assert_eq!(tall, Span::from_us(12) + one_way(6));
    }

    #[test]
    fn cut_through_switches_wait_for_headers_only() {
        let found = of("kind = \"single-switch\", hosts = 3", "cut_through = true");
        assert_eq!(found, Span::from_us(4) + Span::from_ps((4222 + 106 + 2 * 64) * 80));
    }
}
