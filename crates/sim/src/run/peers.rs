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

/// The connections of one host, in the order of peers and lanes.
///
/// A thousand hosts that all talk to each other have a million of these. Flows mostly come in the order of their targets: then the
/// one that is looked for is behind the last one that was.
#[derive(Clone, Default, Debug)]
pub(super) struct Peers {
    list: Vec<Peer>,
    /// Behind the last one that was looked for.
    next: usize,
}

impl Peers {
    pub(super) fn find(&self, host: u32, lane: Lane) -> Option<&Peer> {
        let place = self.list.binary_search_by_key(&(host, lane), Peer::key).ok()?;
        Some(&self.list[place])
    }

    /// The same, for one who goes through all of them.
    pub(super) fn find_next(&mut self, host: u32, lane: Lane) -> Option<&Peer> {
        let is_next = self.list.get(self.next).is_some_and(|peer| peer.key() == (host, lane));
        let place = match is_next {
            true => self.next,
            false => self.list.binary_search_by_key(&(host, lane), Peer::key).ok()?,
        };
        self.next = place + 1;
        Some(&self.list[place])
    }

    /// One more, which is not there.
    pub(super) fn insert(&mut self, peer: Peer) {
        if self.list.last().is_none_or(|last| last.key() < peer.key()) {
            self.list.push(peer);
            return;
        }
        let place = self.list.partition_point(|other| other.key() < peer.key());
        self.list.insert(place, peer);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.list.iter()
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
            assert_eq!(peers.find_next(host, lane(dscp)), Some(&peer(host, dscp)));
            assert_eq!(peers.find(host, lane(dscp)), Some(&peer(host, dscp)));
        }
        assert_eq!(peers.find_next(1, lane(1)), None);
        assert_eq!((peers.find(3, lane(0)), peers.find(10, lane(0))), (None, None));
    }
}
