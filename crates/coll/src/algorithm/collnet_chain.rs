//! CollNetChain: a chain in each node leads to the rank that talks to the network, whose switches reduce between nodes
//! (NCCL 2.30 device/all_reduce.h, transport/coll_net.cc).

use super::collnet_direct::check_nodes;
use super::heads::sorted;
use super::split::{Cells, chunk};
use super::tree::check_chains;
use super::up_down::{Links, UpDown};
use super::{Arc, BuildError, Call, Choice, Schedule, Wiring};
use crate::schedule::{Peer, SwitchGroup, SwitchKind};

pub(super) fn build(call: &Call, choice: &Choice, wiring: &Wiring) -> Result<Schedule, BuildError> {
    check_nodes(choice, wiring)?;
    check_chains(choice, wiring)?;
    let (ranks, fifo) = (wiring.ranks(), choice.fifo(false));
    let groups = wiring.chains.iter().map(|chains| {
        let firsts = sorted(chains.iter().map(|chain| chain[0]));
        SwitchGroup { kind: SwitchKind::Network, senders: firsts.clone(), receivers: firsts }
    });
    let trees = wiring.chains.iter().enumerate().map(|(group, chains)| links(chains, group as u32, ranks));
    let program = UpDown {
        chunk: chunk(call, choice, &fifo),
        shares: Cells::new(call, choice, ranks).shares(call.block_of(0, ranks)),
        trees: trees.collect(),
    };
    let groups = groups.collect();
    let schedule = choice.schedule(call, ranks, fifo, program.channels(), Arc::new(program));
    Ok(Schedule { groups, ..schedule })
}

/// The links of all ranks: the first of each chain has the switch above it.
fn links(chains: &[Vec<u32>], group: u32, ranks: u32) -> Vec<Links> {
    let mut links = vec![Links::default(); ranks as usize];
    for chain in chains {
        links[chain[0] as usize].up = Some(Peer::Switch(group));
        for pair in chain.windows(2) {
            links[pair[1] as usize].up = Some(Peer::Rank(pair[0]));
            links[pair[0] as usize].down.push(pair[1]);
        }
    }
    links
}
