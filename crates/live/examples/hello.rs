//! Ranks meet, exchange their numbers, wait for each other and go: the smallest thing to run under any launcher.
//!
//! ```text
//! railnet run -n 4 -- target/debug/examples/hello
//! srun -N 2 -n 4 target/debug/examples/hello
//! mpirun -n 4 target/debug/examples/hello
//! ```
#![allow(clippy::print_stdout, reason = "this is a program")]

use std::time::Duration;

use railnet_live::{Launch, rendezvous};

const LIMIT: Duration = Duration::from_secs(20);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let launch = Launch::from_env()?;
    let config = rendezvous::Config::from_env(&launch)?;
    let control = rendezvous::meet(&config, &launch.rank.0.to_le_bytes())?;
    let numbers = |blobs: &mut dyn Iterator<Item = &[u8]>| -> Result<Vec<u32>, _> {
        blobs.map(|blob| blob.try_into().map(u32::from_le_bytes)).collect()
    };
    let met = numbers(&mut control.members().iter().map(|member| &member.blob[..]))?;
    let squares = control.all_gather("squares", &launch.rank.0.pow(2).to_le_bytes(), LIMIT)?;
    let squares = numbers(&mut squares.iter().map(|blob| &blob[..]))?;
    let is_right =
        (0..launch.world_size).eq(met) && squares.iter().sum::<u32>() == expected(launch.world_size);
    control.barrier(LIMIT)?;
    let groups: std::collections::BTreeSet<_> =
        control.members().iter().map(|member| &member.group).collect();
    println!(
        "rank {} of {} by {}: {} in {} host {}, this is {}",
        launch.rank.0,
        launch.world_size,
        launch.launcher,
        if is_right { "all met" } else { "WRONG" },
        groups.len(),
        if groups.len() == 1 { "group" } else { "groups" },
        control.members()[launch.rank.0 as usize].group,
    );
    control.leave(LIMIT);
    if is_right { Ok(()) } else { Err("the exchange gave something else than what was put in".into()) }
}

/// The sum of the squares below `count`.
fn expected(count: u32) -> u32 {
    (0..count).map(|number| number.pow(2)).sum()
}
