//! AllGather and ReduceScatter over heads: what NVLS and CollNetDirect have in common.
//!
//! Every rank is the head of its rail in its node. In AllGather a block goes to the heads of its rail, by a multicast of
//! the network, and each gives it to its node. In ReduceScatter a block goes the other way, and is reduced twice: inside
//! each node, and between the heads.

use super::heads::{Inside, Layout, sorted, with_switch};
use super::split::Blocks;
use super::{Collective, Program, input, output, with};
use crate::schedule::{Step, SwitchGroup, SwitchKind, Usage, uses_of};

/// One AllGather or ReduceScatter.
#[derive(Debug)]
pub(super) struct Rails {
    pub(super) layout: Layout,
    pub(super) inside: Inside,
    pub(super) collective: Collective,
    pub(super) in_place: bool,
    pub(super) blocks: Blocks,
    pub(super) chunk: u64,
}

/// What a worker does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    /// AllGather: gives the blocks of its rail to the node.
    Relay,
    /// AllGather: takes blocks from the heads.
    Gather,
    /// ReduceScatter: gives each head the blocks of its rail.
    Scatter,
    /// ReduceScatter: passes the sum of its node on.
    Forward,
    /// ReduceScatter: takes its own block.
    Take,
}

impl Rails {
    pub(super) fn groups(&self) -> Vec<SwitchGroup> {
        let mut groups = match self.inside {
            Inside::Switch => self.layout.inside_groups(),
            Inside::Direct => Vec::new(),
        };
        if self.nodes() == 1 {
            return groups;
        }
        for (rank, head) in self.layout.head_of.iter().enumerate() {
            let rank = rank as u32;
            let rail = head.map(|head| sorted(self.layout.heads[head as usize].iter().copied()));
            let rail = rail.unwrap_or_default();
            let kind = SwitchKind::Network;
            groups.push(if self.collective == Collective::AllGather {
                let receivers = rail.into_iter().filter(|other| *other != rank).collect();
                SwitchGroup { kind, senders: vec![rank], receivers }
            } else {
                SwitchGroup { kind, senders: rail, receivers: vec![rank] }
            });
        }
        groups
    }

    /// The group of the network for the block of a rank.
    fn between(&self, rank: u32) -> u32 {
        let before = match self.inside {
            Inside::Switch => 2 * self.layout.nodes.len() * self.layout.heads.len(),
            Inside::Direct => 0,
        };
        before as u32 + rank
    }

    fn nodes(&self) -> u64 {
        self.layout.nodes.len() as u64
    }

    fn role(&self, worker: u32) -> (u32, Role) {
        let roles: &[Role] = match self.collective {
            Collective::AllGather => &[Role::Relay, Role::Gather],
            _ => &[Role::Scatter, Role::Forward, Role::Take],
        };
        let many = roles.len() as u32;
        (worker / many, roles[(worker % many) as usize])
    }

    /// The heads with which a rank exchanges data.
    fn partners(&self, rank: u32) -> u64 {
        match self.inside {
            Inside::Switch => self.layout.many(),
            Inside::Direct => self.layout.others(rank),
        }
    }

    fn partner(&self, rank: u32, index: u64) -> u32 {
        match self.inside {
            Inside::Switch => index as u32,
            Inside::Direct => self.layout.other(rank, index),
        }
    }

    fn all_gather(&self, rank: u32, channel: u32, role: Role, number: u64) -> Step {
        let (node, nodes) = (self.layout.node(rank), self.nodes());
        // The block of the node itself comes first, then that of the next.
        let member = |head: u32, after: u64| {
            self.layout.heads[head as usize][((u64::from(node) + after) % nodes) as usize]
        };
        if role == Role::Gather {
            let partners = self.partners(rank);
            let (looped, rest) = (number / (nodes * partners), number % (nodes * partners));
            let head = self.partner(rank, rest % partners);
            let block = member(head, rest / partners);
            let (mut step, offset) = self.part(block, channel, looped);
            step.receives.push(match self.inside {
                Inside::Switch => with_switch(channel, self.layout.reducing(node, head) + 1),
                Inside::Direct => with(channel, 1, member(head, 0)),
            });
            step.stores.push(output(self.blocks.start(block) + offset));
            return step;
        }
        let head = self.own_head(rank);
        let (looped, after) = (number / nodes, number % nodes);
        let block = member(head, after);
        let (mut step, offset) = self.part(block, channel, looped);
        if after > 0 {
            step.receives.push(with_switch(channel, self.between(block)));
        } else {
            step.sources.push(input(offset));
            step.sends.extend((nodes > 1).then(|| with_switch(channel, self.between(block))));
        }
        match self.inside {
            Inside::Switch => step.sends.push(with_switch(channel, self.layout.reducing(node, head) + 1)),
            Inside::Direct => {
                step.sends.extend(self.layout.neighbours(rank).map(|other| with(channel, 1, other)));
                if after > 0 || !self.in_place {
                    step.stores.push(output(self.blocks.start(block) + offset));
                }
            }
        }
        step
    }

    fn reduce_scatter(&self, rank: u32, channel: u32, role: Role, number: u64) -> Step {
        let (node, nodes) = (self.layout.node(rank), self.nodes());
        let member = |head: u32, node: u64| self.layout.heads[head as usize][node as usize];
        match role {
            Role::Scatter => {
                let partners = self.partners(rank);
                let (looped, rest) = (number / (nodes * partners), number % (nodes * partners));
                let head = self.partner(rank, rest % partners);
                let block = member(head, rest / partners);
                let (mut step, offset) = self.part(block, channel, looped);
                step.sources.push(input(self.blocks.start(block) + offset));
                step.sends.push(match self.inside {
                    Inside::Switch => with_switch(channel, self.layout.reducing(node, head)),
                    Inside::Direct => with(channel, 0, member(head, u64::from(node))),
                });
                step
            }
            Role::Forward => {
                let head = self.own_head(rank);
                let (looped, block) = (number / nodes, member(head, number % nodes));
                let (mut step, offset) = self.part(block, channel, looped);
                match self.inside {
                    Inside::Switch => {
                        step.receives.push(with_switch(channel, self.layout.reducing(node, head)));
                    }
                    Inside::Direct => {
                        let neighbours = self.layout.neighbours(rank);
                        step.receives.extend(neighbours.map(|other| with(channel, 0, other)));
                        step.sources.push(input(self.blocks.start(block) + offset));
                    }
                }
                if nodes > 1 {
                    step.sends.push(with_switch(channel, self.between(block)));
                } else {
                    step.stores.push(output(offset));
                    step.is_final = true;
                }
                step
            }
            _ => {
                let (mut step, offset) = self.part(rank, channel, number);
                step.receives.push(with_switch(channel, self.between(rank)));
                step.stores.push(output(offset));
                step.is_final = true;
                step
            }
        }
    }

    fn steps_of_loop(&self, rank: u32, role: Role) -> u64 {
        match role {
            Role::Relay | Role::Forward => self.nodes(),
            Role::Gather | Role::Scatter => self.nodes() * self.partners(rank),
            Role::Take => u64::from(self.nodes() > 1),
        }
    }

    fn own_head(&self, rank: u32) -> u32 {
        self.layout.head_of[rank as usize].expect("every rank is a head: the builder has looked")
    }

    /// A step about a part of a block, and where the part begins in the block.
    fn part(&self, block: u32, channel: u32, looped: u64) -> (Step, u64) {
        let share = self.blocks.share(block, channel);
        let (offset, count) = share.part(looped * self.chunk, self.chunk);
        let ranks = self.layout.node_of.len() as u64;
        (Step { chunk: (looped * ranks) as u32 + block, count, ..Step::default() }, offset)
    }
}

impl Program for Rails {
    fn workers(&self, _rank: u32) -> u32 {
        self.blocks.channels() * if self.collective == Collective::AllGather { 2 } else { 3 }
    }

    fn steps(&self, rank: u32, worker: u32) -> u64 {
        let (channel, role) = self.role(worker);
        self.blocks.loops(channel, self.chunk) * self.steps_of_loop(rank, role)
    }

    fn uses(&self, rank: u32, worker: u32) -> Vec<Usage> {
        let (channel, role) = self.role(worker);
        uses_of(self, rank, worker, self.steps_of_loop(rank, role), self.blocks.loops(channel, self.chunk))
    }

    fn step(&self, rank: u32, worker: u32, number: u64) -> Step {
        let (channel, role) = self.role(worker);
        if self.collective == Collective::AllGather {
            self.all_gather(rank, channel, role, number)
        } else {
            self.reduce_scatter(rank, channel, role, number)
        }
    }
}
