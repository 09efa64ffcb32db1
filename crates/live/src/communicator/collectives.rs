//! The collectives, on slices.

use std::sync::Arc;

use railnet_coll::{Call, Collective, Counts, Overlap, check_call};
use railnet_core::{Rank, ReduceOp};

use super::{At, Communicator, Element, Error};

/// The address of a slice that is read.
fn from<T: Element>(slice: &[T]) -> At {
    At(slice.as_ptr().cast_mut().cast())
}

/// The address of a slice that is written.
fn into<T: Element>(slice: &mut [T]) -> At {
    At(slice.as_mut_ptr().cast())
}

/// No buffer.
fn nowhere() -> At {
    At(std::ptr::NonNull::<u64>::dangling().as_ptr().cast())
}

fn call<T: Element>(collective: Collective, count: usize) -> Call {
    Call { dtype: T::TYPE, ..Call::new(collective, count as u64) }
}

fn needs(what: &'static str, has: usize, needed: usize, why: &str) -> Result<(), Error> {
    if has == needed { Ok(()) } else { Err(Error::Length { what, has, needs: format!("{needed} ({why})") }) }
}

impl Communicator {
    /// Makes any call, with buffers of bytes: for programs that know types only when they run. A call in place has its buffer
    /// in `output`, as long as the longer of the two, and no input.
    pub fn call(&self, call: &Call, input: &[u8], output: &mut [u8]) -> Result<(), Error> {
        let (rank, ranks) = (self.rank, self.size() as u32);
        check_call(call, ranks)?;
        let bytes = |count: u64| call.dtype.bytes(count).0 as usize;
        let (gives, gets) = (bytes(call.input_count(rank, ranks)), bytes(call.output_count(rank, ranks)));
        if !call.in_place {
            needs("the input, in bytes,", input.len(), gives, "as the call says")?;
            needs("the output, in bytes,", output.len(), gets, "as the call says")?;
            return self.run(call, from(input), into(output));
        }
        needs("the buffer, in bytes,", output.len(), gives.max(gets), "as the call says")?;
        let start = into(output);
        let at = |first: u64| At(start.0.wrapping_add(bytes(first)));
        let (input, output) = match call.overlap(rank, ranks) {
            Some(Overlap::InputInOutput(first)) => (at(first), at(0)),
            Some(Overlap::OutputInInput(first)) => (at(0), at(first)),
            None => (at(0), at(0)),
        };
        self.run(call, input, output)
    }

    /// The algorithm and protocol of a call, such as `Ring/Simple`.
    pub fn how(&self, call: &Call) -> Result<String, Error> {
        let schedule = self.process.with(|engine| self.schedule(engine, call))?;
        Ok(format!("{}/{}", schedule.algorithm, schedule.protocol))
    }

    /// AllReduce: every rank gets the reduction of all inputs.
    pub fn all_reduce<T: Element>(&self, input: &[T], output: &mut [T], op: ReduceOp) -> Result<(), Error> {
        needs("the output", output.len(), input.len(), "as many as the input")?;
        let call = Call { op, ..call::<T>(Collective::AllReduce, input.len()) };
        self.run(&call, from(input), into(output))
    }

    /// AllReduce in place.
    pub fn all_reduce_in_place<T: Element>(&self, data: &mut [T], op: ReduceOp) -> Result<(), Error> {
        let call = Call { op, in_place: true, ..call::<T>(Collective::AllReduce, data.len()) };
        let at = into(data);
        self.run(&call, at, at)
    }

    /// Broadcast: every rank gets the root's data.
    pub fn broadcast<T: Element>(&self, data: &mut [T], root: usize) -> Result<(), Error> {
        let call =
            Call { root: self.named(root)?, in_place: true, ..call::<T>(Collective::Broadcast, data.len()) };
        let at = into(data);
        self.run(&call, at, at)
    }

    /// Reduce: the root gets the reduction of all inputs. Other ranks need no output.
    pub fn reduce<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: ReduceOp,
        root: usize,
    ) -> Result<(), Error> {
        if root == self.rank() {
            needs("the output", output.len(), input.len(), "as many as the input")?;
        }
        let call = Call { op, root: self.named(root)?, ..call::<T>(Collective::Reduce, input.len()) };
        self.run(&call, from(input), into(output))
    }

    /// AllGather: every rank gets all inputs, in the order of ranks.
    pub fn all_gather<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<(), Error> {
        needs("the output", output.len(), self.size() * input.len(), "a block from each rank")?;
        self.run(&call::<T>(Collective::AllGather, input.len()), from(input), into(output))
    }

    /// AllGather of blocks that differ in length: `counts` has that of each rank.
    pub fn all_gather_v<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
    ) -> Result<(), Error> {
        needs("the list of counts", counts.len(), self.size(), "one for each rank")?;
        needs("the input", input.len(), counts[self.rank()], "as the counts say")?;
        needs("the output", output.len(), counts.iter().sum(), "a block from each rank")?;
        let counts = counts.iter().map(|count| *count as u64).collect();
        let call = Call { counts: Counts::PerRank(counts), ..call::<T>(Collective::AllGather, 0) };
        self.run(&call, from(input), into(output))
    }

    /// ReduceScatter: each rank gets its block of the reduction.
    pub fn reduce_scatter<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: ReduceOp,
    ) -> Result<(), Error> {
        needs("the input", input.len(), self.size() * output.len(), "a block for each rank")?;
        let call = Call { op, ..call::<T>(Collective::ReduceScatter, output.len()) };
        self.run(&call, from(input), into(output))
    }

    /// AllToAll: each rank has a block for every rank, and gets one from every rank.
    pub fn all_to_all<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<(), Error> {
        needs("the output", output.len(), input.len(), "as many as the input")?;
        if !input.len().is_multiple_of(self.size()) {
            let needs = format!("a multiple of {} (a block for each rank)", self.size());
            return Err(Error::Length { what: "the input", has: input.len(), needs });
        }
        let count = input.len() / self.size();
        self.run(&call::<T>(Collective::AllToAll, count), from(input), into(output))
    }

    /// AllToAll of blocks that differ in length: `counts` has how many elements of the input go to each rank. Returns what came
    /// from each.
    pub fn all_to_all_v<T: Element + Default>(
        &self,
        input: &[T],
        counts: &[usize],
    ) -> Result<Vec<Vec<T>>, Error> {
        let ranks = self.size();
        needs("the list of counts", counts.len(), ranks, "one for each rank")?;
        needs("the input", input.len(), counts.iter().sum(), "as the counts say")?;
        let own: Vec<u64> = counts.iter().map(|count| *count as u64).collect();
        let mut all = vec![0_u64; ranks * ranks];
        self.all_gather(&own, &mut all)?;
        let incoming: Vec<usize> = (0..ranks).map(|from| all[from * ranks + self.rank()] as usize).collect();
        let mut output = vec![T::default(); incoming.iter().sum()];
        let call = Call { counts: Counts::PerPair(Arc::from(all)), ..call::<T>(Collective::AllToAll, 0) };
        self.run(&call, from(input), into(&mut output))?;
        let mut rest = &output[..];
        let parts = incoming.into_iter().map(|length| {
            let (part, others) = rest.split_at(length);
            rest = others;
            part.to_vec()
        });
        Ok(parts.collect())
    }

    /// Gather: the root gets all inputs, in the order of ranks. Other ranks need no output.
    pub fn gather<T: Element>(&self, input: &[T], output: &mut [T], root: usize) -> Result<(), Error> {
        if root == self.rank() {
            needs("the output", output.len(), self.size() * input.len(), "a block from each rank")?;
        }
        let call = Call { root: self.named(root)?, ..call::<T>(Collective::Gather, input.len()) };
        self.run(&call, from(input), into(output))
    }

    /// Scatter: each rank gets its block of the root's data. Other ranks need no input.
    pub fn scatter<T: Element>(&self, input: &[T], output: &mut [T], root: usize) -> Result<(), Error> {
        if root == self.rank() {
            needs("the input", input.len(), self.size() * output.len(), "a block for each rank")?;
        }
        let call = Call { root: self.named(root)?, ..call::<T>(Collective::Scatter, output.len()) };
        self.run(&call, from(input), into(output))
    }

    /// Barrier: returns when every rank has entered it.
    pub fn barrier(&self) -> Result<(), Error> {
        self.run(&call::<u8>(Collective::Barrier, 0), nowhere(), nowhere())
    }

    /// Checks that this is a rank of the communicator.
    pub(super) fn named(&self, rank: usize) -> Result<Rank, Error> {
        let ranks = self.size() as u32;
        let rank = u32::try_from(rank).unwrap_or(u32::MAX);
        if rank < ranks {
            Ok(Rank(rank))
        } else {
            Err(railnet_coll::BuildError::NoSuchRank { rank, ranks }.into())
        }
    }
}
