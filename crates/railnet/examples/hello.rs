//! Who is there, and a sum over all: `railnet run -n 4 -- target/debug/examples/hello`.
#![allow(clippy::print_stdout, reason = "it is a program")]

use railnet::{Communicator, ReduceOp};

fn main() -> Result<(), railnet::Error> {
    let world = Communicator::from_env()?;
    let mut sum = [world.rank() as u64];
    world.all_reduce_in_place(&mut sum, ReduceOp::Sum)?;
    println!("rank {} of {}: the ranks add up to {}", world.rank(), world.size(), sum[0]);
    Ok(())
}
