//! Communicators that come and go, more of them than there is room for at once. A test alone in its process: it limits
//! the files that the process may have open.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod world;

use railnet_core::ReduceOp;
use railnet_live::Conduit;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use world::{LONG, world};

/// Open files of all ranks together. The NIC of each has up to 64 sockets, whatever becomes of communicators.
const FILES: u64 = 400;

#[test]
fn what_a_communicator_took_is_free_when_it_is_dropped() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(FILES), maximum }).unwrap();
    // More than a rank has rings, more than the process may have streams, and more than a NIC keeps for those who ask again.
    for (conduit, times) in [(Conduit::SharedMemory, 4100), (Conduit::Tcp, 300), (Conduit::Roce, 300)] {
        world(3, conduit, LONG, |world| {
            let own = world.rank() as u64;
            // One that stays is not touched by what becomes of the others.
            let stays = world.split(Some(0), 0).unwrap().unwrap();
            for number in 0..times {
                let part = world.split(Some(0), number).unwrap().unwrap();
                let mut data = vec![number as u64 + own; 3];
                part.all_reduce_in_place(&mut data, ReduceOp::Sum).unwrap();
                assert_eq!(data, [3 * number as u64 + 3; 3], "communicator {number} over {conduit}");
                // A rank that sends is gone before the other has looked, and what it sent is there.
                match own {
                    0 => part.send(&[number, -number], 1).unwrap(),
                    1 => {
                        if number % 16 == 0 {
                            std::thread::yield_now();
                        }
                        let mut came = [0; 2];
                        part.receive(&mut came, 0).unwrap();
                        assert_eq!(came, [number, -number], "communicator {number} over {conduit}");
                    }
                    _ => {}
                }
                drop(part);
                if number % 50 == 0 {
                    let mut data = [own];
                    stays.all_reduce_in_place(&mut data, ReduceOp::Sum).unwrap();
                    assert_eq!(data, [3]);
                }
            }
        });
    }
}
