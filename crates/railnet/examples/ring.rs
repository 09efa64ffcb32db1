//! Something goes once around, and everybody adds to it: `railnet run -n 4 -- target/debug/examples/ring`.
#![allow(clippy::print_stdout, reason = "it is a program")]

use railnet::Communicator;

fn main() -> Result<(), railnet::Error> {
    let world = Communicator::from_env()?;
    let (rank, size) = (world.rank(), world.size());
    let mut token = [0_u64];
    if rank > 0 {
        world.receive(&mut token, rank - 1)?;
    }
    token[0] += 1;
    if rank + 1 < size {
        world.send(&token, rank + 1)?;
    } else {
        println!("rank {rank}: {} ranks have seen it", token[0]);
    }
    world.barrier()
}
