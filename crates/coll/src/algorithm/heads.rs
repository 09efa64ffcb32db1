//! AllReduce over heads: what NVLS, NVLSTree and CollNetDirect have in common.
//!
//! In each node some ranks are heads, and each head takes care of its slice of every loop: all ranks of the node give
//! the slice to it (through a switch that reduces, or directly), it gets the sum with the heads of its rail in the other
//! nodes, and gives the result to all ranks of the node. For each channel a rank has four workers that do this at once, as
//! NCCL's warps do: one scatters, one reduces, one spreads and one gathers.

use std::collections::BTreeSet;

use super::split::Share;
use super::tree::double_tree;
use super::{BuildError, Choice, Program, Wiring, input, output, with};
use crate::schedule::{Connection, Peer, Step, SwitchGroup, SwitchKind, Usage, uses_of};

/// How ranks of a node reach a head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Inside {
    /// The NVLink switch reduces for the head, and multicasts for it.
    Switch,
    /// Everybody talks to the head.
    Direct,
}

/// How heads of a rail get the sum of all nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Between {
    /// There is one node.
    Nothing,
    /// The switches of the network reduce.
    Network,
    /// A double binary tree: channels take its two trees in turns.
    Tree,
}

/// Who is a head, and which switches there are.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) nodes: Vec<Vec<u32>>,
    pub(super) node_of: Vec<u32>,
    /// `[head][node]`.
    pub(super) heads: Vec<Vec<u32>>,
    /// Which head a rank is.
    pub(super) head_of: Vec<Option<u32>>,
}

impl Layout {
    pub(super) fn new(choice: &Choice, wiring: &Wiring, heads: Vec<Vec<u32>>) -> Result<Self, BuildError> {
        let impossible =
            |reason: &str| BuildError::Impossible { algorithm: choice.algorithm, reason: reason.to_owned() };
        if heads.is_empty() {
            return Err(impossible("no rank is a head"));
        }
        let node_of = wiring.node_of();
        let mut head_of = vec![None; node_of.len()];
        for (head, ranks) in heads.iter().enumerate() {
            if ranks.len() != wiring.nodes.len() {
                return Err(impossible("a rail needs one head in each node"));
            }
            for (node, rank) in ranks.iter().enumerate() {
                if node_of.get(*rank as usize) != Some(&(node as u32)) {
                    return Err(impossible("a head is not in its node"));
                }
                if head_of[*rank as usize].replace(head as u32).is_some() {
                    return Err(impossible("a rank is the head of two rails"));
                }
            }
        }
        Ok(Self { nodes: wiring.nodes.clone(), node_of, heads, head_of })
    }

    pub(super) fn is_everybody_a_head(&self) -> bool {
        self.head_of.iter().all(Option::is_some)
    }

    pub(super) fn many(&self) -> u64 {
        self.heads.len() as u64
    }

    pub(super) fn node(&self, rank: u32) -> u32 {
        self.node_of[rank as usize]
    }

    /// The other ranks of the node of a rank.
    pub(super) fn neighbours(&self, rank: u32) -> impl Iterator<Item = u32> + '_ {
        self.nodes[self.node(rank) as usize].iter().copied().filter(move |other| *other != rank)
    }

    /// The number of heads that a rank gives data to without a switch, itself not counted.
    pub(super) fn others(&self, rank: u32) -> u64 {
        self.many() - u64::from(self.head_of[rank as usize].is_some())
    }

    /// The `index`th of them. Each begins elsewhere, so that they do not all talk to the same one.
    pub(super) fn other(&self, rank: u32, index: u64) -> u32 {
        let first = match self.head_of[rank as usize] {
            Some(head) => u64::from(head) + 1,
            None => {
                let node = &self.nodes[self.node(rank) as usize];
                node.iter().position(|other| *other == rank).unwrap_or(0) as u64
            }
        };
        ((first + index) % self.many()) as u32
    }

    /// The group of the switch that reduces a node's slices for a head; the next one multicasts for it.
    pub(super) fn reducing(&self, node: u32, head: u32) -> u32 {
        2 * (node * self.heads.len() as u32 + head)
    }

    /// The two groups of every node and head, in the order of their numbers.
    pub(super) fn inside_groups(&self) -> Vec<SwitchGroup> {
        let mut groups = Vec::new();
        for (node, ranks) in self.nodes.iter().enumerate() {
            let all: Vec<u32> = sorted(ranks.iter().copied());
            for head in &self.heads {
                let one = vec![head[node]];
                let kind = SwitchKind::NvLink;
                groups.push(SwitchGroup { kind, senders: all.clone(), receivers: one.clone() });
                groups.push(SwitchGroup { kind, senders: one, receivers: all.clone() });
            }
        }
        groups
    }

    /// A group for each rail, in which all heads give and get.
    pub(super) fn rail_groups(&self) -> impl Iterator<Item = SwitchGroup> + '_ {
        self.heads.iter().map(|rail| {
            let rail = sorted(rail.iter().copied());
            SwitchGroup { kind: SwitchKind::Network, senders: rail.clone(), receivers: rail }
        })
    }
}

pub(super) fn sorted(ranks: impl Iterator<Item = u32>) -> Vec<u32> {
    ranks.collect::<BTreeSet<_>>().into_iter().collect()
}

/// The connection with a switch.
pub(super) const fn with_switch(channel: u32, group: u32) -> Connection {
    Connection { channel: channel as u16, lane: 0, peer: Peer::Switch(group) }
}

/// What a worker does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    /// Gives each head its slice.
    Scatter,
    /// Adds up what a head gets, and passes it on.
    Reduce,
    /// Gives the result of a head to the node.
    Spread,
    /// Takes the slices from the heads.
    Gather,
}

/// One AllReduce.
#[derive(Debug)]
pub(super) struct Heads {
    pub(super) layout: Layout,
    pub(super) inside: Inside,
    pub(super) between: Between,
    pub(super) chunk: u64,
    /// Elements that 16 bytes hold.
    pub(super) grain: u64,
    /// What each channel deals with.
    pub(super) shares: Vec<Share>,
}

impl Heads {
    pub(super) fn channels(&self) -> u32 {
        self.shares.len() as u32
    }

    pub(super) fn groups(&self) -> Vec<SwitchGroup> {
        let mut groups = match self.inside {
            Inside::Switch => self.layout.inside_groups(),
            Inside::Direct => Vec::new(),
        };
        if self.between == Between::Network {
            groups.extend(self.layout.rail_groups());
        }
        groups
    }

    /// The group of the network for a rail.
    fn rail(&self, head: u32) -> u32 {
        let before = match self.inside {
            Inside::Switch => 2 * self.layout.nodes.len() * self.layout.heads.len(),
            Inside::Direct => 0,
        };
        before as u32 + head
    }

    /// The heads above and below a rank in the tree of a channel.
    fn tree(&self, rank: u32, head: u32, channel: u32) -> (Option<u32>, impl Iterator<Item = u32> + '_) {
        let rail = &self.layout.heads[head as usize];
        let place = match self.between {
            Between::Tree => {
                let nodes = self.layout.nodes.len() as u32;
                Some(double_tree(nodes, self.layout.node(rank))[channel as usize % 2])
            }
            _ => None,
        };
        let up = place.and_then(|place| place.up).map(|node| rail[node as usize]);
        let down = place.into_iter().flat_map(|place| place.down.into_iter().flatten());
        (up, down.map(|node| rail[node as usize]))
    }

    /// Where the slice of a head begins in a loop, and how many elements it has.
    fn slice(&self, channel: u32, looped: u64, head: u32) -> (u64, u64) {
        let share = self.shares[channel as usize];
        share.looped(self.chunk, self.grain, self.layout.many(), looped, u64::from(head))
    }

    const fn role(worker: u32) -> Role {
        match worker % 4 {
            0 => Role::Scatter,
            1 => Role::Reduce,
            2 => Role::Spread,
            _ => Role::Gather,
        }
    }

    /// How often a channel goes over all heads.
    fn loops(&self, channel: u32) -> u64 {
        self.shares[channel as usize].count.div_ceil(self.layout.many() * self.chunk)
    }

    /// Steps of a worker in a loop.
    fn steps_of_loop(&self, rank: u32, worker: u32) -> u64 {
        let channel = worker / 4;
        let head = self.layout.head_of[rank as usize];
        match (Self::role(worker), head) {
            (Role::Scatter | Role::Gather, _) => match self.inside {
                Inside::Switch => self.layout.many(),
                Inside::Direct => self.layout.others(rank),
            },
            (_, None) => 0,
            (Role::Reduce, _) => 1,
            (Role::Spread, Some(head)) => match self.between {
                Between::Nothing => 0,
                Between::Network => 1,
                Between::Tree => u64::from(self.tree(rank, head, channel).0.is_some()),
            },
        }
    }

    /// What a rank gives to a head, or takes from it.
    fn exchange(&self, rank: u32, channel: u32, number: u64, role: Role) -> Step {
        let node = self.layout.node(rank);
        let (looped, head) = match self.inside {
            Inside::Switch => (number / self.layout.many(), (number % self.layout.many()) as u32),
            Inside::Direct => {
                let others = self.layout.others(rank);
                (number / others, self.layout.other(rank, number % others))
            }
        };
        let (offset, count) = self.slice(channel, looped, head);
        let chunk = (looped * self.layout.many()) as u32 + head;
        let mut step = Step { chunk, count, ..Step::default() };
        let other = self.layout.heads[head as usize][node as usize];
        let group = self.layout.reducing(node, head);
        if role == Role::Scatter {
            step.sources.push(input(offset));
            step.sends.push(match self.inside {
                Inside::Switch => with_switch(channel, group),
                Inside::Direct => with(channel, 0, other),
            });
        } else {
            step.receives.push(match self.inside {
                Inside::Switch => with_switch(channel, group + 1),
                Inside::Direct => with(channel, 1, other),
            });
            step.stores.push(output(offset));
        }
        step
    }

    /// Gives the result to the node of a head.
    fn spread(&self, step: &mut Step, rank: u32, head: u32, channel: u32, offset: u64) {
        match self.inside {
            Inside::Switch => {
                let group = self.layout.reducing(self.layout.node(rank), head);
                step.sends.push(with_switch(channel, group + 1));
            }
            Inside::Direct => {
                step.sends.extend(self.layout.neighbours(rank).map(|other| with(channel, 1, other)));
                step.stores.push(output(offset));
            }
        }
    }
}

impl Program for Heads {
    fn workers(&self, _rank: u32) -> u32 {
        4 * self.channels()
    }

    fn steps(&self, rank: u32, worker: u32) -> u64 {
        self.loops(worker / 4) * self.steps_of_loop(rank, worker)
    }

    fn uses(&self, rank: u32, worker: u32) -> Vec<Usage> {
        uses_of(self, rank, worker, self.steps_of_loop(rank, worker), self.loops(worker / 4))
    }

    fn step(&self, rank: u32, worker: u32, number: u64) -> Step {
        let (channel, role) = (worker / 4, Self::role(worker));
        let Some(head) =
            self.layout.head_of[rank as usize].filter(|_| matches!(role, Role::Reduce | Role::Spread))
        else {
            return self.exchange(rank, channel, number, role);
        };
        let (offset, count) = self.slice(channel, number, head);
        let chunk = (number * self.layout.many()) as u32 + head;
        let mut step = Step { chunk, count, ..Step::default() };
        let (up, down) = self.tree(rank, head, channel);
        let down: Vec<_> = down.map(|child| with(channel, 0, child)).collect();
        let rail = with_switch(channel, self.rail(head));
        if role == Role::Spread {
            let from_above = up.map(|parent| with(channel, 0, parent));
            step.is_final = from_above.is_none();
            step.receives.push(from_above.unwrap_or(rail));
            step.sends.extend(down);
            self.spread(&mut step, rank, head, channel, offset);
            return step;
        }
        match self.inside {
            Inside::Switch => {
                let group = self.layout.reducing(self.layout.node(rank), head);
                step.receives.push(with_switch(channel, group));
            }
            Inside::Direct => {
                step.receives.extend(self.layout.neighbours(rank).map(|other| with(channel, 0, other)));
                step.sources.push(input(offset));
            }
        }
        step.receives.extend(down.iter().copied());
        match (self.between, up) {
            (Between::Network, _) => step.sends.push(rail),
            (_, Some(parent)) => step.sends.push(with(channel, 0, parent)),
            (_, None) => {
                step.sends.extend(down);
                step.is_final = true;
                self.spread(&mut step, rank, head, channel, offset);
            }
        }
        step
    }
}
