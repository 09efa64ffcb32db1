//! `railnet perf put`: every rank puts into the memory of the next one and signals, and waits for the signal of the one before.

use std::time::Instant;

use railnet_core::Span;
use railnet_live::communicator::Error;
use railnet_live::{Communicator, Window};

use super::measure::Measured;

/// A window, and what is put into it.
pub(super) struct PutBench<'a> {
    world: &'a Communicator,
    window: Window<'a, u8>,
    data: Vec<u8>,
}

impl<'a> PutBench<'a> {
    /// A window of so many bytes: one that Railnet makes, or memory that was there before it.
    pub(super) fn new(world: &'a Communicator, bytes: usize, is_registered: bool) -> Result<Self, Error> {
        let window = match is_registered {
            true => world.register(vec![0; bytes])?,
            false => world.window(bytes)?,
        };
        Ok(Self { world, window, data: vec![0; bytes] })
    }

    fn before(&self) -> usize {
        (self.world.rank() + self.world.size() - 1) % self.world.size()
    }

    fn run(&self) -> Result<(), Error> {
        let next = (self.world.rank() + 1) % self.world.size();
        self.window.put_signal(next, 0, &self.data)?;
        self.window.wait_signal(self.before(), 1)
    }
}

/// What a rank puts at an index of its data.
fn pattern(rank: usize, salt: u64, index: usize) -> u8 {
    let mixed = (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (salt << 32 | rank as u64);
    (mixed.wrapping_mul(0xff51_afd7_ed55_8ccd) >> 56) as u8
}

impl Measured for PutBench<'_> {
    fn time(&mut self, calls: u32) -> Result<Span, Error> {
        let start = Instant::now();
        for _ in 0..calls {
            self.run()?;
        }
        Ok(Span::from_ps(start.elapsed().as_nanos() as u64 * 1000 / u64::from(calls.max(1))))
    }

    fn check(&mut self, salt: u64) -> anyhow::Result<u64> {
        let rank = self.world.rank();
        let fill = |(index, byte): (usize, &mut u8)| *byte = pattern(rank, salt, index);
        self.data.iter_mut().enumerate().for_each(fill);
        // What came before belongs to another salt.
        self.window.write(0, &vec![0xa5; self.data.len()])?;
        self.world.barrier()?;
        self.run()?;
        let mut found = vec![0; self.data.len()];
        self.window.read(0, &mut found)?;
        let before = self.before();
        let is_wrong = |(index, byte): &(usize, &u8)| **byte != pattern(before, salt, *index);
        let wrong = found.iter().enumerate().filter(is_wrong).count() as u64;
        // Nobody puts again before all have looked.
        self.world.barrier()?;
        Ok(wrong)
    }

    fn end(self: Box<Self>) -> Result<(), Error> {
        self.window.close()
    }
}
