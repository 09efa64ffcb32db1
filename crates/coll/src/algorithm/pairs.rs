//! The order in which ranks talk to each other in grouped sends and receives (NCCL 2.30 init.cc, enqueue.cc).
//!
//! Ranks are in groups of at most 8 of one node. In each round every rank sends to one and receives from one, so that a
//! round is a permutation, and everybody agrees on its number. Round 0 is for what a rank sends to itself.

use crate::wiring::Wiring;

/// Who talks to whom in which round.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PairOrder {
    /// Ranks of a group.
    group: u32,
    is_one_node: bool,
    /// How many groups ahead the target is, in the order of rounds.
    ahead: Vec<u32>,
    /// When each of them comes: the inverse.
    turn: Vec<u32>,
    /// Ranks, one group after the other.
    members: Vec<u32>,
    /// The place of each rank among them: the inverse.
    places: Vec<u32>,
}

impl PairOrder {
    /// NCCL's `NCCL_P2P_SCHEDULE_GROUP_SIZE`.
    const GROUP: u32 = 8;

    /// The order for these nodes.
    pub fn new(wiring: &Wiring) -> Self {
        let members = wiring.nodes.concat();
        let is_one_node = wiring.nodes.len() == 1;
        let common = |group, node: &Vec<u32>| greatest_common_divisor(group, node.len() as u32);
        let group =
            if is_one_node { members.len() as u32 } else { wiring.nodes.iter().fold(Self::GROUP, common) };
        let groups = members.len() as u32 / group;
        // Triangular numbers modulo a power of two go through all residues.
        let modulus = groups.next_power_of_two();
        let triangular = (0..modulus).scan(0, |at, step| {
            *at = (*at + step) % modulus;
            Some(*at)
        });
        let ahead: Vec<u32> = triangular.filter(|ahead| *ahead < groups).collect();
        Self { group, is_one_node, turn: inverse(&ahead), ahead, places: inverse(&members), members }
    }

    /// How many rounds there are: as many as ranks.
    pub fn rounds(&self) -> u32 {
        self.members.len() as u32
    }

    /// To whom a rank sends in a round.
    pub fn target(&self, rank: u32, round: u32) -> u32 {
        let groups = self.ahead.len() as u32;
        let (group, member) = self.place(rank);
        let (ahead, next) = (self.ahead[(round / self.group) as usize], round % self.group);
        self.at((group + ahead) % groups, (member + next) % self.group)
    }

    /// From whom a rank receives in a round.
    pub fn source(&self, rank: u32, round: u32) -> u32 {
        let groups = self.ahead.len() as u32;
        let (group, member) = self.place(rank);
        let (ahead, next) = (self.ahead[(round / self.group) as usize], round % self.group);
        self.at((group + groups - ahead) % groups, (member + self.group - next) % self.group)
    }

    /// In which round one rank sends to another.
    pub fn round(&self, from: u32, to: u32) -> u32 {
        let groups = self.ahead.len() as u32;
        let ((from_group, from), (to_group, to)) = (self.place(from), self.place(to));
        let ahead = (to_group + groups - from_group) % groups;
        self.turn[ahead as usize] * self.group + (to + self.group - from) % self.group
    }

    /// The first channel that a round uses, of a power of two of them.
    pub fn channel(&self, round: u32, channels: u32) -> u32 {
        let base = if self.is_one_node {
            round
        } else {
            round / self.group * self.group.div_ceil(8) + round % self.group / 8
        };
        // Rounds that follow each other are to use channels that are far from each other.
        match channels.ilog2() {
            0 => 0,
            bits => (base % channels).reverse_bits() >> (u32::BITS - bits),
        }
    }

    fn place(&self, rank: u32) -> (u32, u32) {
        let place = self.places[rank as usize];
        (place / self.group, place % self.group)
    }

    fn at(&self, group: u32, member: u32) -> u32 {
        self.members[(group * self.group + member) as usize]
    }
}

fn inverse(permutation: &[u32]) -> Vec<u32> {
    let mut inverse = vec![0; permutation.len()];
    for (index, value) in permutation.iter().enumerate() {
        inverse[*value as usize] = index as u32;
    }
    inverse
}

fn greatest_common_divisor(one: u32, other: u32) -> u32 {
    if other == 0 { one } else { greatest_common_divisor(other, one % other) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(order: &PairOrder, rank: u32) -> Vec<(u32, u32)> {
        (0..order.rounds()).map(|round| (order.target(rank, round), order.source(rank, round))).collect()
    }

    #[test]
    fn one_node_goes_round() {
        let order = PairOrder::new(&Wiring::flat(8));
        let known = [(3, 3), (4, 2), (5, 1), (6, 0), (7, 7), (0, 6), (1, 5), (2, 4)];
        assert_eq!(pairs(&order, 3), known);
        let channels: Vec<_> = (0..8).map(|round| order.channel(round, 8)).collect();
        assert_eq!(channels, [0, 4, 2, 6, 1, 5, 3, 7]);
    }

    #[test]
    fn groups_come_in_triangular_order() {
        let order = PairOrder::new(&Wiring::uniform(4, 8));
        let (targets, sources): (Vec<u32>, Vec<u32>) = pairs(&order, 0).into_iter().unzip();
        assert_eq!(targets, [0..8, 8..16, 24..32, 16..24].into_iter().flatten().collect::<Vec<_>>());
        let back = |first: u32| std::iter::once(first).chain((first + 1..first + 8).rev());
        assert_eq!(sources, [0, 24, 8, 16].into_iter().flat_map(back).collect::<Vec<_>>());
        let known = [0, 1, 3, 6, 10, 15, 5, 12, 4, 13, 7, 2, 14, 11, 9, 8];
        assert_eq!(PairOrder::new(&Wiring::uniform(16, 8)).ahead, known);
    }

    #[test]
    fn every_round_is_a_permutation_and_every_pair_has_one() {
        let mut uneven = Wiring::flat(20);
        uneven.nodes = vec![(0..8).collect(), (8..12).collect(), (12..20).rev().collect()];
        let shapes = [(1, 1), (1, 5), (2, 8), (3, 8), (5, 4), (6, 1), (7, 12), (3, 3)];
        let even = shapes.map(|(nodes, per_node)| Wiring::uniform(nodes, per_node));
        for wiring in even.iter().chain([&uneven]) {
            let order = PairOrder::new(wiring);
            for rank in 0..wiring.ranks() {
                let mut met: Vec<_> = pairs(&order, rank).into_iter().map(|(target, _)| target).collect();
                assert_eq!(met[0], rank);
                for (round, target) in met.iter().enumerate() {
                    assert_eq!(order.source(*target, round as u32), rank);
                    assert_eq!(order.round(rank, *target), round as u32);
                }
                met.sort_unstable();
                assert!(met.into_iter().eq(0..wiring.ranks()));
            }
        }
    }
}
