//! What a scenario decides about connections: who follows whom, and what they are called on the wire.

use std::sync::Arc;

use railnet_coll::Peer;
use railnet_coll::Wiring;
use railnet_coll::conduit::net::{NetConfig, NetError};
use railnet_coll::machine::Failure;
use railnet_coll::search::Graphs;
use railnet_coll::transport::Transports;
use railnet_coll::{ChannelNics, NicPair};
use railnet_core::{Psn, QueuePairNumber, Rank};
use railnet_nic::Key;

use super::communicator::Communicator;
use super::{Collectives, PairKey};

/// What the ends of a connection are called: the sender's, and the receiver's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Identity {
    queue_pairs: [Option<QueuePairNumber>; 2],
    psns: [Option<Psn>; 2],
    /// Of the memory that the peer writes.
    pub(super) keys: [Option<Key>; 2],
    /// Where that memory begins.
    pub(super) addresses: [Option<u64>; 2],
}

impl Identity {
    /// How each end uses its queue pairs.
    pub(super) fn configs(&self, config: NetConfig) -> [NetConfig; 2] {
        [0, 1].map(|end| NetConfig {
            psn: self.psns[end].unwrap_or(config.psn),
            number: self.queue_pairs[end].or(config.number),
            ..config
        })
    }
}

impl Communicator {
    /// What a connection is called.
    pub(super) fn identity(&self, (channel, lane, sender, receiver): PairKey) -> Identity {
        let first = self.members.start;
        let ranks = (sender - first, receiver - first);
        let named = self.named.iter().find(|one| (one.from, one.to) == ranks);
        let Some(one) = named.filter(|_| (channel, lane) == (0, 0)) else { return Identity::default() };
        Identity {
            queue_pairs: both(one.queue_pairs, QueuePairNumber::new),
            psns: both(one.psns, Psn::new),
            keys: both(one.keys, Key),
            addresses: both(one.addresses, |address| address),
        }
    }
}

fn both<T: Copy, U>(pair: Option<[T; 2]>, of: impl Fn(T) -> U) -> [Option<U>; 2] {
    [0, 1].map(|end| pair.map(|pair| of(pair[end])))
}

impl Collectives {
    /// A connection cannot have the names that the scenario gives it.
    pub(super) fn refuse(&mut self, (channel, _, sender, receiver): PairKey, error: &NetError) {
        let first = self.communicators[self.members[sender as usize].communicator as usize].members.start;
        let (at, with) = (Rank(sender - first), Peer::Rank(receiver - first));
        let reason = format!("it cannot have the names of [[collective.connection]]: {error}");
        self.failure.get_or_insert(Arc::new(Failure::Broken { at, with, channel, reason, during: None }));
    }
}

/// Ranks one after the other, each by the NIC beside it.
pub(super) fn ascending(graphs: &Graphs, transports: &Transports) -> Wiring {
    let mut wiring = Wiring::ascending(&graphs.places());
    wiring.switch_reduces = graphs.nvls.is_some();
    if graphs.nodes == 1 {
        return wiring;
    }
    // What comes from another server comes in by the receiver's own NIC.
    let beside = |rank: u32| transports.nic_beside(rank).unwrap_or(0);
    let pairs = wiring.nodes.iter();
    let pairs = pairs.map(|node| NicPair { first: beside(node[0]), other: beside(node[node.len() - 1]) });
    let pairs: Vec<NicPair> = pairs.collect();
    let heads = wiring.heads.iter().map(|head| head.iter().map(|rank| beside(*rank)).collect());
    wiring.nics = ChannelNics { rings: vec![pairs.clone()], chains: vec![pairs], heads: heads.collect() };
    wiring
}
