//! The queue pairs through which a host talks to others.

use railnet_core::QueuePairNumber;

/// Connections between two hosts are told apart by DSCP. One serves both directions; only where acknowledgements have a
/// DSCP of their own, which goes by the queue pair that sends them, each direction has one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Lane {
    pub(super) dscp: u8,
    pub(super) side: Side,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Side {
    Both,
    Sends,
    Receives,
}

impl Lane {
    /// The lanes of a connection for data with this DSCP, at its source and at its target.
    pub(super) const fn of(dscp: u8, ack_dscp: Option<u8>) -> [Self; 2] {
        let [source, target] = match ack_dscp {
            None => [Side::Both, Side::Both],
            Some(_) => [Side::Sends, Side::Receives],
        };
        [Self { dscp, side: source }, Self { dscp, side: target }]
    }
}

/// A connection, as seen from one of its hosts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Peer {
    pub(super) host: u32,
    pub(super) lane: Lane,
    pub(super) own: QueuePairNumber,
    /// The queue pair at the other end.
    pub(super) other: QueuePairNumber,
}

impl Peer {
    fn key(&self) -> (u32, Lane) {
        (self.host, self.lane)
    }
}

/// The connections of one host.
///
/// A thousand hosts that all talk to each other have a million of these, made in any order and each looked for once or twice:
/// a tree, or a list that is kept in order, takes as long for that as all that connections need else. The order of a
/// hash map of the standard library is random.
#[derive(Clone, Default, Debug)]
pub(super) struct Peers {
    /// In the order in which they were made.
    list: Vec<Peer>,
    /// Where each is in the list, from the place that its key says on; [`NOBODY`] where none is. Half of it at least is empty.
    places: Vec<u32>,
}

const NOBODY: u32 = u32::MAX;

impl Peers {
    pub(super) fn find(&self, host: u32, lane: Lane) -> Option<&Peer> {
        let in_list = |place| self.list.get(self.places[place] as usize);
        self.probe(host, lane).map_while(in_list).find(|peer| peer.key() == (host, lane))
    }

    /// One more, which is not there.
    pub(super) fn insert(&mut self, peer: Peer) {
        self.list.push(peer);
        if 2 * self.list.len() > self.places.len() {
            self.places = vec![NOBODY; (4 * self.list.len()).next_power_of_two()];
            (0..self.list.len()).for_each(|index| self.put(index));
        } else {
            self.put(self.list.len() - 1);
        }
    }

    fn put(&mut self, index: usize) {
        let Peer { host, lane, .. } = self.list[index];
        let free = self.probe(host, lane).find(|place| self.places[*place] == NOBODY);
        self.places[free.expect("half of the places are free")] = index as u32;
    }

    /// The places where a connection may be found, the first one first.
    fn probe(&self, host: u32, lane: Lane) -> impl Iterator<Item = usize> + use<> {
        let key = u64::from(host) << 16 | u64::from(lane.dscp) << 8 | lane.side as u64;
        // The upper bits of a product by 2^64 / golden ratio depend on all bits of the key.
        let first = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize;
        let count = self.places.len();
        (0..count).map(move |step| (first + step) & (count - 1))
    }

    /// Room for so many, before there are any.
    pub(super) fn reserve(&mut self, count: usize) {
        self.list.reserve(count);
        self.places = vec![NOBODY; (2 * count).next_power_of_two()];
    }

    /// All of them, in the order in which they were made.
    pub(super) fn made(&self) -> &[Peer] {
        &self.list
    }

    /// All of them, in the order of hosts and lanes.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Peer> {
        let mut peers: Vec<_> = self.list.iter().collect();
        peers.sort_unstable_by_key(|peer| peer.key());
        peers.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_found_in_any_order() {
        let lane = |dscp| Lane { dscp, side: Side::Both };
        let peer = |host: u32, dscp: u8| {
            let number = QueuePairNumber::new(host * 8 + u32::from(dscp));
            Peer { host, lane: lane(dscp), own: number, other: QueuePairNumber::new(number.value() + 1) }
        };
        let mut peers = Peers::default();
        for host in [5, 9, 2, 7, 1] {
            for dscp in [3, 0] {
                peers.insert(peer(host, dscp));
            }
        }
        let order: Vec<_> = peers.iter().map(Peer::key).collect();
        assert!(order.is_sorted() && order.len() == 10);
        for (host, dscp) in [(1, 0), (1, 3), (2, 0), (9, 3), (9, 0), (9, 3), (5, 0)] {
            assert_eq!(peers.find(host, lane(dscp)), Some(&peer(host, dscp)));
        }
        assert_eq!(
            (peers.find(1, lane(1)), peers.find(3, lane(0)), peers.find(10, lane(0))),
            (None, None, None)
        );
        assert_eq!(Peers::default().find(1, lane(0)), None);
        for host in 20..2_000 {
            peers.insert(peer(host, 5));
        }
        for host in 0..2_020 {
            let expected = (20..2_000).contains(&host).then(|| peer(host, 5));
            assert_eq!(peers.find(host, lane(5)), expected.as_ref());
        }
    }
}
