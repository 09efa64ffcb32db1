//! One call, measured among real ranks.

use std::ops::{Deref, DerefMut};
use std::time::Instant;

use railnet_coll::{Call, Collective};
use railnet_core::{Rank, Span};
use railnet_live::Communicator;
use railnet_live::communicator::Error;

use super::data::Data;

/// What can be made again and again on all ranks.
pub(crate) trait Measured {
    /// Makes so many calls, and gives how long one took.
    fn time(&mut self, calls: u32) -> Result<Span, Error>;

    /// Makes the call on new data, and counts the elements on this rank that are not what they should be.
    fn check(&mut self, salt: u64) -> anyhow::Result<u64>;

    /// Every rank has no more use for it.
    fn end(self: Box<Self>) -> Result<(), Error>;
}

impl Measured for Bench<'_> {
    fn time(&mut self, calls: u32) -> Result<Span, Error> {
        Bench::time(self, calls)
    }

    fn check(&mut self, salt: u64) -> anyhow::Result<u64> {
        Bench::check(self, salt)
    }

    fn end(self: Box<Self>) -> Result<(), Error> {
        Ok(())
    }
}

/// A call with its buffers, ready to be made again and again.
pub(crate) struct Bench<'a> {
    world: &'a Communicator,
    call: Call,
    input: Aligned<u8>,
    output: Aligned<u8>,
    data: Option<Data>,
}

/// Where buffers begin: at pages, as those of the programs do that it is compared with. The system copies from and to such
/// places faster.
const PAGE: usize = 4096;

/// Elements from the beginning of a page on.
pub(super) struct Aligned<T> {
    memory: Vec<T>,
    start: usize,
    length: usize,
}

impl<T: Copy + Default> Aligned<T> {
    /// So many zeros.
    pub(super) fn new(length: usize) -> Self {
        let most = PAGE / size_of::<T>();
        let memory = vec![T::default(); length + most];
        // Where that cannot be told, anywhere is right.
        let start = memory.as_ptr().align_offset(PAGE).min(most);
        Self { memory, start, length }
    }
}

impl<T> Deref for Aligned<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.memory[self.start..][..self.length]
    }
}

impl<T> DerefMut for Aligned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.memory[self.start..][..self.length]
    }
}

/// The call whose largest buffer is about so many bytes, as nccl-tests counts them.
pub(crate) fn call_of(call: &Call, bytes: u64, ranks: u32) -> Call {
    let size = call.dtype.size() as u64;
    let count = match call.collective {
        Collective::AllReduce | Collective::Broadcast | Collective::Reduce | Collective::SendReceive => {
            bytes / size
        }
        _ => bytes / size / u64::from(ranks),
    };
    Call { counts: railnet_coll::Counts::Each(count), ..call.clone() }
}

impl<'a> Bench<'a> {
    pub(crate) fn new(world: &'a Communicator, call: Call) -> Self {
        let (rank, ranks) = (Rank(world.rank() as u32), world.size() as u32);
        let bytes = |count: u64| call.dtype.bytes(count).0 as usize;
        let (gives, gets) = (bytes(call.input_count(rank, ranks)), bytes(call.output_count(rank, ranks)));
        let (input, output) = if call.in_place { (0, gives.max(gets)) } else { (gives, gets) };
        Self { world, call, input: Aligned::new(input), output: Aligned::new(output), data: None }
    }

    /// Puts new data where the input is.
    fn fill(&mut self, data: &Data) {
        let (rank, ranks) = (Rank(self.world.rank() as u32), self.world.size() as u32);
        let bytes = |count: u64| self.call.dtype.bytes(count).0 as usize;
        if !self.call.in_place {
            self.output.fill(0xa5);
            return data.fill(self.call.dtype, &mut self.input);
        }
        self.output.fill(0xa5);
        let first = match self.call.overlap(rank, ranks) {
            Some(railnet_coll::Overlap::InputInOutput(first)) => bytes(first),
            _ => 0,
        };
        let gives = bytes(self.call.input_count(rank, ranks));
        data.fill(self.call.dtype, &mut self.output[first..][..gives]);
    }

    /// What the call left, as long as the output is.
    fn result(&self) -> &[u8] {
        let (rank, ranks) = (Rank(self.world.rank() as u32), self.world.size() as u32);
        let bytes = |count: u64| self.call.dtype.bytes(count).0 as usize;
        let first = match self.call.overlap(rank, ranks) {
            Some(railnet_coll::Overlap::OutputInInput(first)) => bytes(first),
            _ => 0,
        };
        &self.output[first..][..bytes(self.call.output_count(rank, ranks))]
    }

    pub(crate) fn run(&mut self) -> Result<(), Error> {
        self.world.call(&self.call, &self.input, &mut self.output)
    }

    /// Makes so many calls, and gives how long one took.
    pub(crate) fn time(&mut self, calls: u32) -> Result<Span, Error> {
        let start = Instant::now();
        for _ in 0..calls {
            self.run()?;
        }
        Ok(Span::from_ps(start.elapsed().as_nanos() as u64 * 1000 / u64::from(calls.max(1))))
    }

    /// Makes the call on new data, and counts the elements on this rank that are not what they should be.
    pub(crate) fn check(&mut self, salt: u64) -> anyhow::Result<u64> {
        self.prepare(salt)?;
        self.run()?;
        Ok(self.wrong())
    }

    /// Puts in the data that a salt stands for. In place, what is there becomes the input of the next call.
    pub(crate) fn prepare(&mut self, salt: u64) -> anyhow::Result<()> {
        let data = Data::new(&self.call, self.world.rank() as u32, self.world.size() as u32, salt)?;
        self.fill(&data);
        self.data = Some(data);
        Ok(())
    }

    /// Elements on this rank that are not what they should be after a call on the data that was put in last.
    pub(crate) fn wrong(&self) -> u64 {
        self.data.as_ref().map_or(0, |data| data.wrong(&self.call, self.result()))
    }
}
