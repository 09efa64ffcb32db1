//! What the threads of GPUs send at most, besides what memory and links carry: a lane for all of a GPU's threads with LL, one
//! for each channel with LL128 and in trees. Figures and what they mean: [`Threads`]. What leaves a GPU passes its lane
//! once, however many it is sent to; what a rank only receives does not.

use railnet_coll::tuner::{Constants, Inputs, Threads};
use railnet_coll::{Algorithm, Protocol, Schedule};
use railnet_core::Rate;

/// Which of a communicator's limits holds for a schedule; schedules with the same one are as fast.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Pace(u8);

impl Pace {
    /// Work that sends nothing.
    pub(super) const FREE: Self = Self(u8::MAX);

    /// That of what a schedule sends.
    pub(super) fn of(schedule: &Schedule) -> Self {
        let tree = u8::from(schedule.algorithm == Algorithm::Tree);
        Self(tree * 3 + schedule.protocol as u8)
    }
}

/// A limit, in bytes on the way: flags included.
#[derive(Clone, Copy, Debug)]
pub(super) enum Limit {
    Unlimited,
    Gpu(Rate),
    Block(Rate),
}

/// The limits of a communicator, by pace.
#[derive(Clone, Debug)]
pub(super) struct Limits([Limit; 6]);

impl Limits {
    pub(super) fn new(inputs: &Inputs) -> Self {
        let limit = |algorithm, protocol: Protocol| {
            // Lines of all protocols fit into so many bytes of data.
            const DATA: u64 = 120;
            let on_the_way = protocol.on_the_way(DATA) as f64 / DATA as f64;
            let rate = |gigabytes: f64| Rate::from_bps((gigabytes * on_the_way * 8e9) as u64);
            match Threads::of(&Constants::NCCL, inputs, algorithm, protocol) {
                Threads::Unlimited => Limit::Unlimited,
                Threads::Gpu(gigabytes) => Limit::Gpu(rate(gigabytes)),
                Threads::Block(gigabytes) => Limit::Block(rate(gigabytes)),
            }
        };
        let [ring, tree] = [Algorithm::Ring, Algorithm::Tree]
            .map(|algorithm| Protocol::ALL.map(|protocol| limit(algorithm, protocol)));
        Self([ring[0], ring[1], ring[2], tree[0], tree[1], tree[2]])
    }

    pub(super) fn at(&self, pace: Pace) -> Limit {
        self.0.get(usize::from(pace.0)).copied().unwrap_or(Limit::Unlimited)
    }
}
