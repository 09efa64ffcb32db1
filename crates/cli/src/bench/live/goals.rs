//! What is asked of Railnet: how much faster than the others it has to be, by what runs where.
//!
//! The figures are for two cores. Between two ranges of sizes the lesser of their two goals holds.

use railnet_coll::Collective;

use super::contestant::Family;
use super::point::{Place, Transport};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The least that the time of the best of a family, divided by Railnet's, has to be. None where nothing is asked.
pub(crate) fn goal(against: Family, place: Place, collective: Collective, bytes: u64) -> Option<f64> {
    if collective == Collective::SendReceive {
        return None;
    }
    match (against, place.transport) {
        (Family::Gloo, Transport::Tcp) => Some(if bytes <= 512 * KIB { 3.0 } else { 1.2 }),
        (Family::Mpi, Transport::Tcp) => Some(1.0),
        (Family::Mpi, Transport::SharedMemory) if place.ranks > 2 => Some(1.0),
        (Family::Mpi, Transport::SharedMemory) => Some(shared_memory_of_two(collective, bytes)),
        _ => None,
    }
}

fn shared_memory_of_two(collective: Collective, bytes: u64) -> f64 {
    let is_long = bytes >= 32 * MIB;
    match collective {
        Collective::AllReduce if bytes < 8 * KIB => 1.0,
        Collective::AllReduce if is_long => 2.0,
        Collective::AllReduce => 1.3,
        _ if is_long => 1.3,
        _ => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_are_those_of_the_table() {
        use Collective::{AllGather, AllReduce, AllToAll, Broadcast, ReduceScatter, SendReceive};
        use Family::{Gloo, Mpi};
        use Transport::{SharedMemory, Tcp};
        let check = |against, transport, ranks, collective, goals: &[(u64, Option<f64>)]| {
            for &(bytes, expected) in goals {
                let found = goal(against, Place { ranks, transport }, collective, bytes);
                assert_eq!(
                    found, expected,
                    "{collective} {bytes} B, {ranks} ranks, {transport:?}, {against:?}"
                );
            }
        };
        check(
            Mpi,
            SharedMemory,
            2,
            AllReduce,
            &[
                (8, Some(1.0)),
                (2 * KIB, Some(1.0)),
                (4 * KIB, Some(1.0)),
                (8 * KIB, Some(1.3)),
                (2 * MIB, Some(1.3)),
                (8 * MIB, Some(1.3)),
                (32 * MIB, Some(2.0)),
                (256 * MIB, Some(2.0)),
            ],
        );
        for collective in [AllGather, ReduceScatter, Broadcast, AllToAll] {
            let goals = [(8, Some(1.0)), (8 * MIB, Some(1.0)), (32 * MIB, Some(1.3)), (256 * MIB, Some(1.3))];
            check(Mpi, SharedMemory, 2, collective, &goals);
        }
        for collective in [AllReduce, AllGather, ReduceScatter, Broadcast, AllToAll] {
            check(Mpi, SharedMemory, 4, collective, &[(8, Some(1.0)), (256 * MIB, Some(1.0))]);
            check(Gloo, SharedMemory, 2, collective, &[(8, None)]);
            for ranks in [2, 4] {
                check(Mpi, Tcp, ranks, collective, &[(8, Some(1.0)), (256 * MIB, Some(1.0))]);
                let goals =
                    [(8, Some(3.0)), (512 * KIB, Some(3.0)), (2 * MIB, Some(1.2)), (8 * MIB, Some(1.2))];
                check(Gloo, Tcp, ranks, collective, &goals);
            }
        }
        check(Mpi, Tcp, 2, SendReceive, &[(8, None)]);
        check(Family::Railnet, Tcp, 2, AllReduce, &[(8, None)]);
    }
}
