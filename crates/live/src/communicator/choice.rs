//! Which algorithm carries out a call between real processes.

use railnet_coll::{Algorithm, Call, ChannelNics, Choice, Collective, TreePattern, Wiring};

use crate::conduit::{Conduit, PROTOCOL};

/// How a communicator lies on hosts, and what joins its ranks.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) wiring: Wiring,
    /// The slowest conduit between any two of its ranks: the same on all of them.
    pub(super) conduit: Conduit,
}

impl Place {
    /// Ranks with the names of their hosts.
    pub(super) fn new(hosts: &[&str], conduit: Conduit) -> Self {
        let mut nodes: Vec<(&str, Vec<u32>)> = Vec::new();
        for (rank, host) in (0..).zip(hosts) {
            match nodes.iter_mut().find(|(name, _)| name == host) {
                Some((_, ranks)) => ranks.push(rank),
                None => nodes.push((host, vec![rank])),
            }
        }
        let nodes: Vec<Vec<u32>> = nodes.into_iter().map(|(_, ranks)| ranks).collect();
        let wiring = Wiring {
            rings: vec![nodes.concat()],
            chains: vec![nodes.clone()],
            pattern: TreePattern::Plain,
            heads: Vec::new(),
            switch_reduces: false,
            nics: ChannelNics::default(),
            nodes,
        };
        Self { wiring, conduit }
    }

    /// The choice for a call.
    ///
    /// Everybody exchanging with everybody has the fewest steps, and between few ranks it moves no more than a ring does,
    /// but for sums of many: there a ring or a tree moves less.
    pub(super) fn choose(&self, call: &Call) -> Choice {
        let ranks = self.wiring.ranks();
        let bytes = call.bytes(ranks).0;
        let is_few = ranks <= 8;
        let algorithm = match call.collective {
            Collective::AllReduce if is_few && bytes * u64::from(ranks - 1) <= self.one_shot_most() => {
                Algorithm::Direct
            }
            Collective::AllReduce if !is_few && bytes <= 16 << 10 => Algorithm::Tree,
            Collective::AllGather | Collective::ReduceScatter | Collective::Broadcast if is_few => {
                Algorithm::Direct
            }
            Collective::AllReduce
            | Collective::AllGather
            | Collective::ReduceScatter
            | Collective::Broadcast
            | Collective::Reduce => Algorithm::Ring,
            Collective::AllToAll
            | Collective::Gather
            | Collective::Scatter
            | Collective::SendReceive
            | Collective::Barrier => Algorithm::PointToPoint,
        };
        Choice { fifo: Some(self.conduit.fifo()), ..Choice::new(algorithm, PROTOCOL) }
    }

    /// Bytes that a rank may send in one shot of an AllReduce.
    const fn one_shot_most(&self) -> u64 {
        match self.conduit {
            Conduit::SharedMemory => 64 << 10,
            Conduit::Tcp | Conduit::Roce => 32 << 10,
        }
    }
}
