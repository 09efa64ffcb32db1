//! One flow of each kind against all flows.

use proptest::prelude::*;
use railnet_core::{Rate, Time};
use railnet_flow::{FlowNetwork, Usage, quotient};

/// When each flow ends, of flows that all start at once.
fn ends(capacities: &[Rate], flows: &[(&[Usage], u64)]) -> Vec<Time> {
    let mut network = FlowNetwork::new(capacities);
    let mut place = vec![0; flows.len()];
    for (number, (path, bytes)) in flows.iter().enumerate() {
        let id = network.start(path, *bytes, 1).0 as usize;
        place[id] = number;
    }
    let (mut found, mut ended) = (vec![Time::NEVER; flows.len()], Vec::new());
    while let Some(next) = network.next_end() {
        network.advance(next, &mut ended);
        for id in ended.drain(..) {
            found[place[id.0 as usize]] = next;
        }
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// Copies of a part, of which some share a resource with the copy beside them, and a few flows that fit no pattern.
    #[test]
    fn one_of_each_kind_ends_when_all_of_its_kind_do(
        gbps in proptest::collection::vec(1_u64..4, 4),
        part in proptest::collection::vec((proptest::collection::btree_set(0_u32..4, 1..4), 1_u64..3, any::<bool>()), 1..5),
        copies in 1_u32..7,
        odd in proptest::collection::vec((0_u32..28, 1_u64..3), 0..2),
    ) {
        let resources = 4 * copies;
        let capacities: Vec<Rate> = (0..resources).map(|one| Rate::gbps(100 * gbps[one as usize % 4])).collect();
        let (mut paths, mut labels) = (Vec::new(), Vec::new());
        for copy in 0..copies {
            for (path, bytes, reaches_beside) in &part {
                let mut path: Vec<u32> = path.iter().map(|resource| 4 * copy + resource).collect();
                let beside = 4 * ((copy + 1) % copies) + 3;
                if *reaches_beside && !path.contains(&beside) {
                    path.push(beside);
                }
                paths.push(path.into_iter().map(Usage::whole).collect::<Vec<_>>());
                labels.push(*bytes);
            }
        }
        for (resource, bytes) in odd {
            paths.push(vec![Usage::whole(resource % resources)]);
            labels.push(bytes);
        }
        let bytes = |label: u64| label << 20;
        let all: Vec<(&[Usage], u64)> =
            paths.iter().zip(&labels).map(|(path, label)| (&path[..], bytes(*label))).collect();
        let expected = ends(&capacities, &all);

        let found = quotient(&capacities, &labels, &paths);
        let count: u32 = found.flows.iter().map(|kind| kind.count).sum();
        prop_assert_eq!(count as usize, paths.len());
        let kinds: Vec<(&[Usage], u64)> =
            found.flows.iter().map(|kind| (&kind.usage[..], bytes(labels[kind.first as usize]))).collect();
        for (kind, end) in found.flows.iter().zip(ends(&found.capacities, &kinds)) {
            let whole = expected[kind.first as usize];
            let apart = end.max(whole).since(end.min(whole)).as_ps();
            prop_assert!(apart <= 1 + whole.as_ps() / 100_000_000, "{:?}: {} instead of {}", kind, end, whole);
        }
        // Without flows that fit no pattern, a copy stands for all.
        if paths.len() == part.len() * copies as usize {
            prop_assert!(found.flows.len() <= part.len(), "{} kinds of {} flows", found.flows.len(), part.len());
        }
    }
}
