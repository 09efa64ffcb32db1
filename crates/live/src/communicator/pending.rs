//! Calls that are started and waited for later: the progress thread drives them while the program computes.

use std::marker::PhantomData;
use std::sync::Arc;

use railnet_coll::{Call, Collective};
use railnet_core::ReduceOp;

use super::{At, Communicator, Element, Error, Operation};

/// A call under way. It owns its buffers until it is over, and returns them.
#[must_use = "a call that nobody waits for may not be over when the program ends"]
#[derive(Debug)]
pub struct Pending<'a, T> {
    operation: Operation,
    /// The buffers, which the engine owns as well.
    data: Arc<Shared<T>>,
    _communicator: PhantomData<&'a Communicator>,
}

/// A buffer that the engine works on while the program owns it. The program does not touch it before the call is over.
#[derive(Debug)]
struct Shared<T>(std::sync::Mutex<Vec<T>>);

impl Communicator {
    /// Starts an AllReduce of `data` in place, and returns it when that is over.
    ///
    /// ```
    /// # use railnet_live::Communicator;
    /// # use railnet_core::ReduceOp;
    /// # let world = Communicator::from_env()?;
    /// let pending = world.start_all_reduce(vec![1.0_f32; 1 << 20], ReduceOp::Sum)?;
    /// // Compute something else meanwhile.
    /// let sums = pending.wait()?;
    /// assert_eq!(sums[0], world.size() as f32);
    /// # Ok::<(), railnet_live::communicator::Error>(())
    /// ```
    pub fn start_all_reduce<T: Element>(&self, data: Vec<T>, op: ReduceOp) -> Result<Pending<'_, T>, Error> {
        let count = data.len() as u64;
        let call = Call { op, dtype: T::TYPE, in_place: true, ..Call::new(Collective::AllReduce, count) };
        self.start_in_place(&call, data)
    }

    /// Starts a Broadcast of the root's data.
    pub fn start_broadcast<T: Element>(&self, data: Vec<T>, root: usize) -> Result<Pending<'_, T>, Error> {
        let root = self.named(root)?;
        let count = data.len() as u64;
        let call = Call { root, dtype: T::TYPE, in_place: true, ..Call::new(Collective::Broadcast, count) };
        self.start_in_place(&call, data)
    }

    /// Starts an AllGather: `data` has a block for each rank, of which this rank's is filled in.
    pub fn start_all_gather<T: Element>(&self, data: Vec<T>) -> Result<Pending<'_, T>, Error> {
        let count = self.block(data.len())?;
        let call = Call { dtype: T::TYPE, in_place: true, ..Call::new(Collective::AllGather, count as u64) };
        self.start_at(&call, data, self.rank() * count, 0)
    }

    /// Starts a ReduceScatter: `data` has a block for each rank, of which this rank's will have the result.
    pub fn start_reduce_scatter<T: Element>(
        &self,
        data: Vec<T>,
        op: ReduceOp,
    ) -> Result<Pending<'_, T>, Error> {
        let count = self.block(data.len())?;
        let call =
            Call { op, dtype: T::TYPE, in_place: true, ..Call::new(Collective::ReduceScatter, count as u64) };
        self.start_at(&call, data, 0, self.rank() * count)
    }

    fn block(&self, length: usize) -> Result<usize, Error> {
        if length.is_multiple_of(self.size()) {
            return Ok(length / self.size());
        }
        let needs = format!("a multiple of {} (a block for each rank)", self.size());
        Err(Error::Length { what: "the buffer", has: length, needs })
    }

    fn start_in_place<T: Element>(&self, call: &Call, data: Vec<T>) -> Result<Pending<'_, T>, Error> {
        self.start_at(call, data, 0, 0)
    }

    /// Starts a call with input and output in `data`, from these elements on.
    fn start_at<T: Element>(
        &self,
        call: &Call,
        mut data: Vec<T>,
        input: usize,
        output: usize,
    ) -> Result<Pending<'_, T>, Error> {
        let at = |first: usize, data: &mut Vec<T>| At(data.as_mut_ptr().wrapping_add(first).cast());
        let (input, output) = (at(input, &mut data), at(output, &mut data));
        // Moving the vector does not move its elements.
        let data = Arc::new(Shared(std::sync::Mutex::new(data)));
        let operation = self.start_operation(call, input, output, Arc::clone(&data))?;
        Ok(Pending { operation, data, _communicator: PhantomData })
    }
}

impl<T: Element> Pending<'_, T> {
    /// Whether it is over.
    pub fn is_done(&self) -> Result<bool, Error> {
        self.operation.is_done()
    }

    /// Waits until it is over, and returns the buffer.
    pub fn wait(self) -> Result<Vec<T>, Error> {
        self.operation.wait(None, &mut || true)?;
        let mut data = self.data.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        Ok(std::mem::take(&mut *data))
    }
}
