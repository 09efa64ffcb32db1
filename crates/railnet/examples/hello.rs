//! Who is there, and a sum over all: the smallest thing to run under any launcher.
//!
//! ```text
//! railnet run -n 4 -- target/debug/examples/hello
//! srun -N 2 -n 4 target/debug/examples/hello
//! mpirun -n 4 target/debug/examples/hello
//! ```
#![allow(clippy::print_stdout, reason = "it is a program")]

use railnet::{Communicator, ReduceOp};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let launcher = railnet::launcher()?;
    let world = Communicator::from_env()?;
    let (rank, size) = (world.rank(), world.size());
    // More than one slot holds, so that all of a conduit is tried.
    let mut sums = vec![rank as u64; 100_000];
    world.all_reduce_in_place(&mut sums, ReduceOp::Sum)?;
    let is_right = sums.iter().all(|sum| *sum == (size * (size - 1) / 2) as u64);
    let hosts = world.host_groups();
    println!(
        "rank {rank} of {size} by {launcher}: {} in {hosts} host {}, the ranks add up to {}",
        if is_right { "all met" } else { "WRONG" },
        if hosts == 1 { "group" } else { "groups" },
        sums[0],
    );
    if is_right { Ok(()) } else { Err("the sum is not that of all ranks".into()) }
}
