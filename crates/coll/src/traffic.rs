//! How many bytes of data a schedule moves over each connection.

use std::collections::BTreeMap;

use railnet_core::Bytes;

use crate::schedule::{Peer, Schedule};

/// The bytes of data (flags of protocols not counted) that go from each to each, over all channels. What comes from a
/// switch counts for each of its receivers.
///
/// ```
/// use railnet_coll::{Algorithm, Call, Choice, Collective, Peer, Protocol, Wiring, build, traffic};
/// use railnet_core::Bytes;
///
/// let call = Call::new(Collective::AllReduce, 1024);
/// let schedule = build(&call, &Choice::new(Algorithm::Ring, Protocol::Simple), &Wiring::flat(4))?;
/// // 2 (n - 1) / n of 4 KiB.
/// assert_eq!(traffic(&schedule)[&(Peer::Rank(0), Peer::Rank(1))], Bytes(6 * 1024));
/// # Ok::<(), railnet_coll::BuildError>(())
/// ```
pub fn traffic(schedule: &Schedule) -> BTreeMap<(Peer, Peer), Bytes> {
    let mut traffic = BTreeMap::new();
    for rank in 0..schedule.ranks {
        for worker in 0..schedule.program.workers(rank) {
            for number in 0..schedule.program.steps(rank, worker) {
                let step = schedule.program.step(rank, worker, number);
                let here = Peer::Rank(rank);
                let sent = step.sends.iter().map(|to| (here, to.peer));
                let from_switches = step.receives.iter().map(|from| (from.peer, here));
                for pair in sent.chain(from_switches.filter(|(from, _)| matches!(from, Peer::Switch(_)))) {
                    *traffic.entry(pair).or_insert(Bytes(0)) += schedule.call.dtype.bytes(step.count);
                }
            }
        }
    }
    traffic
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Algorithm, Call, Choice, Collective, Protocol, Wiring, build};

    const MIB: u64 = 1 << 20;

    /// What rank 0 sends and receives, to and from anybody.
    fn through_rank_0(algorithm: Algorithm, call: &Call, wiring: &Wiring, channels: u32) -> (u64, u64) {
        let schedule = build(call, &Choice::new(algorithm, Protocol::Simple).on(channels), wiring).unwrap();
        let rank = Peer::Rank(0);
        let sum = |is_wanted: &dyn Fn(&(Peer, Peer)) -> bool| {
            traffic(&schedule).iter().filter(|(pair, _)| is_wanted(pair)).map(|(_, bytes)| bytes.0).sum()
        };
        (sum(&|(from, _)| *from == rank), sum(&|(_, to)| *to == rank))
    }

    /// Bytes that leave rank 0, for 1 MiB of f32 in the largest buffer, against theory.
    #[test]
    fn every_algorithm_moves_what_theory_says() {
        let one_node = Wiring::flat(8);
        let eight_nodes = Wiring::uniform(8, 1);
        let all = |count| Call::new(Collective::AllReduce, count);
        let elements = MIB / 4;
        let blocks = |collective| Call::new(collective, elements / 8);
        let eighth = MIB / 8;
        let known = [
            (Algorithm::Ring, all(elements), &one_node, 14 * eighth),
            (Algorithm::Ring, blocks(Collective::AllGather), &one_node, 7 * eighth),
            (Algorithm::Ring, blocks(Collective::ReduceScatter), &one_node, 7 * eighth),
            (Algorithm::Ring, Call::new(Collective::Broadcast, elements), &one_node, MIB),
            (Algorithm::Pat, blocks(Collective::AllGather), &eight_nodes, 7 * eighth),
            (Algorithm::Pat, blocks(Collective::ReduceScatter), &eight_nodes, 7 * eighth),
            (Algorithm::PointToPoint, blocks(Collective::AllToAll), &one_node, 7 * eighth),
            // Everything to the switch, and a slice back to everybody.
            (Algorithm::Nvls, all(elements), &one_node, 9 * eighth),
            (Algorithm::Nvls, blocks(Collective::AllGather), &one_node, eighth),
            (Algorithm::Nvls, blocks(Collective::ReduceScatter), &one_node, 8 * eighth),
            // The data once: half of what a ring sends.
            (Algorithm::CollNetChain, all(elements), &eight_nodes, MIB),
            (Algorithm::CollNetDirect, all(elements), &eight_nodes, MIB),
            // One shot of 256 KiB to each of the others, and two of 1 MiB.
            (Algorithm::Direct, all(elements / 4), &one_node, 7 * MIB / 4),
            (Algorithm::Direct, all(elements), &one_node, 14 * eighth),
        ];
        for (algorithm, call, wiring, expected) in known {
            for channels in [1, 4] {
                let (sent, received) = through_rank_0(algorithm, &call, wiring, channels);
                assert_eq!(sent, expected, "{algorithm} {} on {channels}", call.collective);
                if call.collective == Collective::AllReduce {
                    assert_eq!(sent, received, "{algorithm}");
                }
            }
        }
    }

    /// With both trees every node sends and receives the data about twice, however many nodes there are: once with its
    /// parents, once with its children.
    #[test]
    fn two_trees_share_the_load() {
        for nodes in [4, 12, 13, 64] {
            let wiring = Wiring::uniform(nodes, 1);
            let choice = Choice::new(Algorithm::Tree, Protocol::Simple).on(2);
            let schedule = build(&Call::new(Collective::AllReduce, MIB / 4), &choice, &wiring).unwrap();
            let mut sent = vec![0; nodes as usize];
            for ((from, to), bytes) in traffic(&schedule) {
                let (Peer::Rank(from), Peer::Rank(_)) = (from, to) else { panic!("no switches here") };
                sent[from as usize] += bytes.0;
            }
            assert_eq!(sent.iter().sum::<u64>(), u64::from(2 * (nodes - 1)) * MIB);
            // Three links in one tree and one in the other, half of the data each.
            assert!(sent.iter().all(|sent| *sent <= 2 * MIB), "{nodes}: {sent:?}");
        }
    }

    /// Between nodes of 8 ranks on 8 rails each NIC carries an eighth of the data by SHARP, and by a ring 2 (n - 1) / n
    /// of what a channel has.
    #[test]
    fn rails_carry_an_eighth_each() {
        let wiring = Wiring::uniform(4, 8);
        let call = Call::new(Collective::AllReduce, MIB / 4);
        for algorithm in [Algorithm::Nvls, Algorithm::CollNetDirect, Algorithm::NvlsTree] {
            let schedule = build(&call, &Choice::new(algorithm, Protocol::Simple).on(2), &wiring).unwrap();
            let node = |peer: Peer| match peer {
                Peer::Rank(rank) => Some(rank / 8),
                Peer::Switch(group) => {
                    let group = &schedule.groups[group as usize];
                    (group.kind == crate::SwitchKind::NvLink).then(|| group.senders[0] / 8)
                }
            };
            let mut sent = vec![0; 32];
            for ((from, to), bytes) in traffic(&schedule) {
                if let (Peer::Rank(rank), true) = (from, node(from) != node(to)) {
                    sent[rank as usize] += bytes.0;
                }
            }
            if algorithm == Algorithm::NvlsTree {
                // Three links up and down of each rail, both ways, spread over its four heads.
                assert_eq!(sent.iter().sum::<u64>(), 6 * MIB);
                assert!(sent.iter().all(|sent| *sent <= 2 * MIB / 8), "{sent:?}");
            } else {
                assert_eq!(sent, vec![MIB / 8; 32], "{algorithm}");
            }
        }
    }
}
