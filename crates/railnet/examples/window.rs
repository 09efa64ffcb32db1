//! Heat in a rod, in parts: each rank has one, and puts the temperatures at its ends into the memory of its neighbours.
//!
//! Nobody receives anything: a signal says that a border is there. One process that has the whole rod reaches the same
//! temperatures, bit by bit; the example computes both and compares them.
//!
//! ```text
//! railnet run -n 4 -- target/release/examples/window
//! ```
#![allow(clippy::print_stdout, reason = "it is a program")]

use railnet::{Communicator, Error};

/// Places of the rod that a rank has.
const PLACES: usize = 1000;
const STEPS: usize = 500;
/// Where the borders of the left and of the right neighbour are put, for even and odd steps: a neighbour may be a step
/// ahead, and never two.
const LEFT: usize = 0;
const RIGHT: usize = 2;

/// The temperature at the beginning.
fn start(place: usize) -> f64 {
    if place.is_multiple_of(97) { 100.0 } else { 0.0 }
}

/// One step: every place takes on some of the warmth of its neighbours.
fn step(rod: &[f64], left: f64, right: f64) -> Vec<f64> {
    let at = |index: usize| rod.get(index).copied().unwrap_or(right);
    let before = |index: usize| if index == 0 { left } else { rod[index - 1] };
    (0..rod.len())
        .map(|index| rod[index] + 0.25 * (before(index) - 2.0 * rod[index] + at(index + 1)))
        .collect()
}

fn main() -> Result<(), Error> {
    let world = Communicator::from_env()?;
    let (rank, size) = (world.rank(), world.size());
    let window = world.window::<f64>(4)?;
    let mut rod: Vec<f64> = (rank * PLACES..(rank + 1) * PLACES).map(start).collect();
    for number in 0..STEPS {
        let side = number % 2;
        let mut borders = [0.0; 4];
        if rank > 0 {
            window.put_signal(rank - 1, RIGHT + side, &rod[..1])?;
        }
        if rank + 1 < size {
            window.put_signal(rank + 1, LEFT + side, &rod[PLACES - 1..])?;
        }
        if rank > 0 {
            window.wait_signal(rank - 1, 1)?;
        }
        if rank + 1 < size {
            window.wait_signal(rank + 1, 1)?;
        }
        window.read(0, &mut borders)?;
        rod = step(&rod, borders[LEFT + side], borders[RIGHT + side]);
    }
    window.close()?;
    let mut found = vec![0.0; size * PLACES];
    world.all_gather(&rod, &mut found)?;
    if rank == 0 {
        let mut alone: Vec<f64> = (0..size * PLACES).map(start).collect();
        for _ in 0..STEPS {
            alone = step(&alone, 0.0, 0.0);
        }
        let same = found.iter().zip(&alone).all(|(one, other)| one.to_bits() == other.to_bits());
        assert!(same, "the temperatures are not those of one process");
        println!("{size} ranks reached what one process reaches");
    }
    Ok(())
}
