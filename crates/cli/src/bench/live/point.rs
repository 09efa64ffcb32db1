//! What is measured: a collective of some size, at a place; and how often, so that it takes about the time that it may.

use railnet_coll::Collective;
use railnet_core::Bytes;

use super::protocol::Work;

/// How ranks reach each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Transport {
    /// Shared memory
    #[value(name = "shm")]
    SharedMemory,
    /// TCP over the loopback interface
    Tcp,
}

impl Transport {
    /// Its short name, as the options have it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::SharedMemory => "shm",
            Self::Tcp => "tcp",
        }
    }

    /// Its name in a heading.
    pub(crate) const fn words(self) -> &'static str {
        match self {
            Self::SharedMemory => "shared memory",
            Self::Tcp => "TCP",
        }
    }
}

/// How many ranks, and what is between them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub(crate) ranks: u32,
    pub(crate) transport: Transport,
}

/// One row of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Point {
    pub(crate) collective: Collective,
    /// Bytes of the largest buffer of a rank.
    pub(crate) bytes: u64,
}

/// The collectives that every contestant has a part for, in the order of the table.
pub(crate) const COLLECTIVES: [Collective; 6] = [
    Collective::AllReduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::Broadcast,
    Collective::AllToAll,
    Collective::SendReceive,
];

/// Elements are `f32`.
const ELEMENT: u64 = 4;

impl Point {
    /// With bytes rounded up to what every rank can have its part of. Rounding may make two sizes one.
    pub(crate) fn all(collectives: &[Collective], sizes: &[Bytes], ranks: u32) -> Vec<Self> {
        let mut points = Vec::new();
        for &collective in collectives {
            let grain = match collective {
                Collective::AllReduce | Collective::Broadcast | Collective::SendReceive => ELEMENT,
                _ => ELEMENT * u64::from(ranks),
            };
            for size in sizes {
                let bytes = size.as_u64().max(1).next_multiple_of(grain);
                points.push(Self { collective, bytes });
            }
        }
        points.dedup();
        points
    }

    /// A first look: how long does a call take?
    pub(crate) fn trial(self, salt: u32) -> Work {
        let Self { collective, bytes } = self;
        Work { collective, bytes, warmup: 2, batches: 5, calls: 1, salt }
    }

    /// As many calls as fit into the time, for calls that take about so long.
    ///
    /// A batch is long against the clock's own time. Where a root need not wait for anyone, batches are long enough for
    /// the root to be stopped by those that lag: many calls in a row cost what they cost the slowest.
    pub(crate) fn work(self, call_us: f64, seconds: f64, salt: u32) -> Work {
        let Self { collective, bytes } = self;
        let one_way = collective == Collective::Broadcast;
        let (batch_us, fewest) = if one_way { (1000.0, 4.0) } else { (20.0, 1.0) };
        let call_us = call_us.max(0.01);
        let calls = (batch_us / call_us).ceil().clamp(fewest, 100_000.0);
        let batches = (seconds * 1e6 / (calls * call_us)).ceil().clamp(3.0, 10_000.0);
        let warmup = (calls * batches / 10.0).ceil().clamp(1.0, 10_000.0);
        Work { collective, bytes, warmup: warmup as u32, batches: batches as u32, calls: calls as u32, salt }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_has_a_part_of_every_size() {
        let sizes = [Bytes(8), Bytes(16), Bytes(2048), Bytes(2050)];
        let bytes = |collective, ranks| -> Vec<u64> {
            Point::all(&[collective], &sizes, ranks).iter().map(|point| point.bytes).collect()
        };
        assert_eq!(bytes(Collective::AllReduce, 4), [8, 16, 2048, 2052]);
        assert_eq!(bytes(Collective::AllGather, 2), [8, 16, 2048, 2056]);
        assert_eq!(bytes(Collective::AllToAll, 4), [16, 2048, 2064]);
    }

    #[test]
    fn turns_take_about_the_time_that_they_may() {
        let point = |collective| Point { collective, bytes: 8 };
        for collective in COLLECTIVES {
            for call_us in [0.3, 12.0, 900.0, 8_000.0] {
                let work = point(collective).work(call_us, 0.1, 1);
                let took = f64::from(work.batches) * f64::from(work.calls) * call_us / 1e6;
                assert!((0.09..0.13).contains(&took), "{collective} of {call_us} µs takes {took} s");
            }
        }
        let slow = point(Collective::AllReduce).work(400_000.0, 0.1, 1);
        assert_eq!((slow.calls, slow.batches, slow.warmup), (1, 3, 1));
        let root = point(Collective::Broadcast).work(60_000.0, 0.1, 1);
        assert_eq!((root.calls, root.batches, root.warmup), (4, 3, 2));
    }
}
