//! Where things are that are counted from the first server to the last: GPUs, NICs.

use std::ops::Range;
use std::sync::Arc;

/// Where things are that are counted from the first server to the last, one server after the other.
///
/// ```
/// use railnet_topology::Places;
///
/// // Two servers of 8 GPUs, one without any, one of 4.
/// let gpus = Places::new([8, 8, 0, 4].into_iter());
/// assert_eq!((gpus.total(), gpus.each()), (20, None));
/// assert_eq!(gpus.place(9), (1, 1));
/// assert_eq!(gpus.place(16), (3, 0));
/// assert_eq!(gpus.range(3), 16..20);
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Places(Counted);

#[derive(Clone, PartialEq, Eq, Debug)]
enum Counted {
    /// Every server has as many.
    Even { each: u32, nodes: u32 },
    /// What comes before each server, and at the end all of them.
    Uneven { before: Arc<[u32]> },
}

impl Places {
    /// As many on each of so many servers.
    pub const fn even(nodes: u32, each: u32) -> Self {
        Self(Counted::Even { each, nodes })
    }

    /// So many on each server.
    pub fn new(counts: impl Iterator<Item = u32>) -> Self {
        let mut before = vec![0];
        let mut all = 0;
        for count in counts {
            all += count;
            before.push(all);
        }
        let nodes = before.len() as u32 - 1;
        let each = before.get(1).copied().unwrap_or(0);
        if before.windows(2).all(|pair| pair[1] - pair[0] == each) {
            return Self::even(nodes, each);
        }
        Self(Counted::Uneven { before: before.into() })
    }

    /// How many there are.
    pub fn total(&self) -> u32 {
        match &self.0 {
            Counted::Even { each, nodes } => each * nodes,
            Counted::Uneven { before } => before[before.len() - 1],
        }
    }

    /// How many servers there are.
    pub fn nodes(&self) -> u32 {
        match &self.0 {
            Counted::Even { nodes, .. } => *nodes,
            Counted::Uneven { before } => before.len() as u32 - 1,
        }
    }

    /// How many every server has, where all have as many.
    pub const fn each(&self) -> Option<u32> {
        match &self.0 {
            Counted::Even { each, .. } => Some(*each),
            Counted::Uneven { .. } => None,
        }
    }

    /// The numbers of those of a server.
    pub fn range(&self, node: u32) -> Range<u32> {
        match &self.0 {
            Counted::Even { each, .. } => node * each..(node + 1) * each,
            Counted::Uneven { before } => before[node as usize]..before[node as usize + 1],
        }
    }

    /// How many a server has.
    pub fn count(&self, node: u32) -> u32 {
        let range = self.range(node);
        range.end - range.start
    }

    /// How many the fullest server has.
    pub fn most(&self) -> u32 {
        match &self.0 {
            Counted::Even { each, .. } => *each,
            Counted::Uneven { before } => {
                before.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
            }
        }
    }

    /// The server of a number.
    pub fn node_of(&self, number: u32) -> u32 {
        match &self.0 {
            Counted::Even { each, .. } => number / each,
            // Servers without any are passed over: the last that begins here has it.
            Counted::Uneven { before } => before.partition_point(|first| *first <= number) as u32 - 1,
        }
    }

    /// The server of a number, and which of those of that server it is.
    pub fn place(&self, number: u32) -> (u32, u32) {
        let node = self.node_of(number);
        (node, number - self.range(node).start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_on_each_is_known_as_such() {
        let even = Places::new([4, 4, 4].into_iter());
        assert_eq!(even, Places::even(3, 4));
        assert_eq!((even.each(), even.total(), even.most(), even.nodes()), (Some(4), 12, 4, 3));
        assert_eq!((even.place(7), even.range(2)), ((1, 3), 8..12));
    }

    #[test]
    fn every_number_has_its_place_and_every_place_its_number() {
        let counts = [0, 8, 1, 0, 0, 4, 2, 0];
        let places = Places::new(counts.into_iter());
        assert_eq!((places.each(), places.total(), places.most(), places.nodes()), (None, 15, 8, 8));
        let mut number = 0;
        for (node, count) in counts.into_iter().enumerate() {
            assert_eq!(places.count(node as u32), count);
            assert_eq!(places.range(node as u32), number..number + count);
            for local in 0..count {
                assert_eq!(places.place(number), (node as u32, local));
                number += 1;
            }
        }
    }
}
