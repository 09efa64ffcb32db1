//! Reduction up a tree and broadcast down again, both at once: what Tree and CollNetChain have in common.
//!
//! A rank has two workers for each channel. One takes what comes from below, adds what the rank has and sends it up; the
//! other takes the result from above, keeps it and sends it down. At the root one does both.

use smallvec::SmallVec;

use super::split::Share;
use super::{Program, input, output, with};
use crate::schedule::{Connection, Peer, Step, Usage, uses_of};

/// A rank's place in a tree.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Links {
    /// Who is above: nobody for the root.
    pub(crate) up: Option<Peer>,
    /// Who is below: one in the node and two in other nodes at most.
    pub(crate) down: SmallVec<[u32; 3]>,
}

/// One AllReduce.
#[derive(Debug)]
pub(super) struct UpDown {
    pub(super) chunk: u64,
    /// What each channel deals with.
    pub(super) shares: Vec<Share>,
    /// Trees, with the links of each rank. Channels take theirs modulo how many there are.
    pub(super) trees: Vec<Vec<Links>>,
}

impl UpDown {
    pub(super) fn channels(&self) -> u32 {
        self.shares.len() as u32
    }

    fn links(&self, rank: u32, channel: u32) -> &Links {
        &self.trees[channel as usize % self.trees.len()][rank as usize]
    }
}

impl Program for UpDown {
    fn workers(&self, _rank: u32) -> u32 {
        2 * self.channels()
    }

    fn steps(&self, rank: u32, worker: u32) -> u64 {
        let channel = worker / 2;
        if worker % 2 == 1 && self.links(rank, channel).up.is_none() {
            return 0;
        }
        self.shares[channel as usize].count.div_ceil(self.chunk)
    }

    fn uses(&self, rank: u32, worker: u32) -> Vec<Usage> {
        uses_of(self, rank, worker, 1, self.steps(rank, worker))
    }

    fn step(&self, rank: u32, worker: u32, number: u64) -> Step {
        let channel = worker / 2;
        let Links { up, down } = self.links(rank, channel);
        let share = self.shares[channel as usize];
        let (offset, count) = share.part(number * self.chunk, self.chunk);
        let above = up.map(|peer| Connection { channel: channel as u16, lane: 0, peer });
        let below = down.iter().map(|child| with(channel, 0, *child));
        let mut step = Step { chunk: number as u32, count, ..Step::default() };
        if worker % 2 == 1 {
            step.receives.extend(above);
            step.stores.push(output(offset));
            step.sends.extend(below);
            // A switch has added everything up.
            step.is_final = matches!(up, Some(Peer::Switch(_)));
            return step;
        }
        step.receives.extend(below.clone());
        step.sources.push(input(offset));
        match above {
            Some(above) => step.sends.push(above),
            None => {
                step.stores.push(output(offset));
                step.sends.extend(below);
                step.is_final = true;
            }
        }
        step
    }
}
