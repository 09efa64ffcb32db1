//! How many bytes of data a schedule moves over each connection.

use std::collections::BTreeMap;

use railnet_core::Bytes;

use crate::schedule::{Peer, Schedule};

/// The bytes of data (flags of protocols not counted) that go from each to each, over all channels. What comes from a
/// switch counts for each of its receivers.
///
/// ```
/// use railnet_coll::{Algorithm, Call, Choice, Collective, Peer, Protocol, Wiring, build, traffic};
/// use railnet_core::Bytes;
///
/// let call = Call::new(Collective::AllReduce, 1024);
/// let schedule = build(&call, &Choice::new(Algorithm::Ring, Protocol::Simple), &Wiring::flat(4))?;
/// // 2 (n - 1) / n of 4 KiB.
/// assert_eq!(traffic(&schedule)[&(Peer::Rank(0), Peer::Rank(1))], Bytes(6 * 1024));
/// # Ok::<(), railnet_coll::BuildError>(())
/// ```
pub fn traffic(schedule: &Schedule) -> BTreeMap<(Peer, Peer), Bytes> {
    let mut traffic = BTreeMap::new();
    for rank in 0..schedule.ranks {
        for worker in 0..schedule.program.workers(rank) {
            for number in 0..schedule.program.steps(rank, worker) {
                let step = schedule.program.step(rank, worker, number);
                let here = Peer::Rank(rank);
                let sent = step.sends.iter().map(|to| (here, to.peer));
                let from_switches = step.receives.iter().map(|from| (from.peer, here));
                for pair in sent.chain(from_switches.filter(|(from, _)| matches!(from, Peer::Switch(_)))) {
                    *traffic.entry(pair).or_insert(Bytes(0)) += schedule.call.dtype.bytes(step.count);
                }
            }
        }
    }
    traffic
}
