//! One-sided windows: memory of every rank that all others may write, read and signal, while its owner computes.

mod owner;
mod setup;
mod staging;
mod wait;

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use railnet_coll::window::{At, WindowError, WindowId};
use railnet_core::{Bytes, Rank};

use super::{Element, Error, element};
use crate::memory::Buffer;
use crate::rdma::window::Signals;
use crate::shared_memory::peer_process::PeerProcess;
use crate::tcp::window::{Link, ServiceThread};
use owner::Owner;
use staging::Staging;

/// Memory of every rank of a communicator that all of them may put data into and get data from, without the owner's help: made
/// by [`Communicator::window`](crate::Communicator::window).
///
/// - A **put** returns when its source buffer may be reused; the data is at the target when a [signal](Window::signal) that was
///   sent after it is seen there, or when a [flush](Window::flush) after it has returned.
/// - **Signals** are counted for each pair of ranks and each window. A wait consumes as many as it waited for.
/// - Operations to one target are executed in order, those to different targets in any.
/// - A rank that dies, leaves or does not answer is an error that names it. A put that failed may have been executed in part;
///   do not use the window after that.
///
/// In shared memory these are stores into the target's memory, over RoCEv2 WRITEs, READs and atomics of its NIC, over TCP
/// requests to the RMA service of the target.
///
/// ```
/// use railnet_live::Communicator;
///
/// let world = Communicator::from_env()?;
/// let (rank, size) = (world.rank(), world.size());
/// let window = world.window::<f32>(1000)?;
/// // Into the memory of the next rank, from its element 10 on.
/// window.put_signal((rank + 1) % size, 10, &[rank as f32; 5])?;
/// let before = (rank + size - 1) % size;
/// window.wait_signal(before, 1)?;
/// let mut found = [0.0; 5];
/// window.read(10, &mut found)?;
/// assert_eq!(found, [before as f32; 5]);
/// window.close()?;
/// # Ok::<(), railnet_live::communicator::Error>(())
/// ```
#[derive(Debug)]
pub struct Window<'a, T: Element> {
    communicator: Owner<'a>,
    /// Its index among the windows of its communicator.
    number: u64,
    memory: Buffer,
    signals: Signals,
    /// Whether others write to memory that they have not mapped, and that must not be freed.
    is_written_from_outside: bool,
    /// Elements of each rank's part.
    lengths: Vec<usize>,
    routes: Vec<Route>,
    service: Option<ServiceThread>,
    staging: Option<Mutex<Staging>>,
    /// Signals of each rank that waits have consumed.
    used: Mutex<Vec<u64>>,
    _elements: PhantomData<fn() -> T>,
}

/// How a rank's part is reached.
#[derive(Debug)]
enum Route {
    /// It is this process's, or mapped into it.
    Memory(Buffer, Signals),
    /// It is the target program's own memory: the kernel copies to and from it, at this address.
    PeerProcess(PeerProcess, u64, Signals),
    Tcp(Mutex<Link>),
    Nic,
}

/// The path of puts to a rank's part of a window.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum WindowPath {
    /// Stores into memory that both processes have mapped.
    SharedMemory,
    /// `process_vm_writev`: the memory is the target program's own ([`Communicator::register`](crate::Communicator::register)), on the same host.
    ProcessMemory,
    /// Requests to the RMA service of the target over TCP: between hosts, and on one host if the memory is the target program's
    /// own and the kernel does not let this process write there.
    Service,
    /// RDMA WRITEs of the NIC.
    Rdma,
}

impl fmt::Display for WindowPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::SharedMemory => "shared memory",
            Self::ProcessMemory => "process_vm_writev",
            Self::Service => "RMA service over TCP",
            Self::Rdma => "RDMA",
        })
    }
}

/// Signals to wait for: of which rank, and how many.
pub type SignalCount = (usize, u64);

/// Locks, also after a panic: no holder leaves its data inconsistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T: Element> Window<'_, T> {
    /// Its index among the windows of its communicator.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Elements of this rank's part.
    pub fn len(&self) -> usize {
        self.lengths[self.communicator.rank()]
    }

    /// Whether this rank's part has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The address of this rank's part. Direct accesses see what others have put once a wait for their signal has returned, and
    /// must not race with puts.
    pub fn start(&self) -> NonNull<T> {
        NonNull::new(self.memory.pointer().cast()).expect("memory does not begin at address 0")
    }

    /// Elements of a rank's part.
    pub fn len_at(&self, rank: usize) -> Result<usize, Error> {
        Ok(self.lengths[self.communicator.named(rank)?.0 as usize])
    }

    /// Copies elements of this rank's own part, from `offset` on.
    pub fn read(&self, offset: usize, out: &mut [T]) -> Result<(), Error> {
        self.check(self.communicator.rank(), offset, out.len())?;
        self.memory.read(offset * size_of::<T>(), element::bytes_mut(out));
        Ok(())
    }

    /// Replaces elements of this rank's own part, from `offset` on.
    pub fn write(&self, offset: usize, data: &[T]) -> Result<(), Error> {
        self.check(self.communicator.rank(), offset, data.len())?;
        self.memory.write(offset * size_of::<T>(), element::bytes(data));
        Ok(())
    }

    /// Writes into a rank's part, from `offset` on. The source may be reused when this returns; the data is there when a later
    /// signal is seen, or a later flush has returned.
    pub fn put(&self, target: usize, offset: usize, data: &[T]) -> Result<(), Error> {
        self.send("put", target, Some((offset, data)), false)
    }

    /// Adds one to a rank's count of signals from this one. It is seen after what was put there before.
    pub fn signal(&self, target: usize) -> Result<(), Error> {
        self.send("signal", target, None, true)
    }

    /// Writes into a rank's part, and signals.
    pub fn put_signal(&self, target: usize, offset: usize, data: &[T]) -> Result<(), Error> {
        self.send("put and signal", target, Some((offset, data)), true)
    }

    fn send(
        &self,
        what: &'static str,
        target: usize,
        data: Option<(usize, &[T])>,
        signals: bool,
    ) -> Result<(), Error> {
        let rank = self.communicator.named(target)?;
        let data = match data {
            Some((offset, data)) => {
                self.check(target, offset, data.len())?;
                Some((offset * size_of::<T>(), element::bytes(data)))
            }
            None => None,
        };
        self.check_there(what, target)?;
        match &self.routes[target] {
            Route::Memory(memory, counts) => {
                if let Some((offset, data)) = data {
                    memory.write(offset, data);
                }
                if signals {
                    counts.add(self.communicator.rank());
                }
                Ok(())
            }
            Route::PeerProcess(process, address, counts) => {
                if let Some((offset, data)) = data {
                    let written = process.write(address + offset as u64, data);
                    written.map_err(|error| self.out_of_reach(what, target, &error))?;
                }
                if signals {
                    counts.add(self.communicator.rank());
                }
                Ok(())
            }
            Route::Tcp(link) => self.over_tcp(what, target, link, |link, pause| match data {
                Some((offset, data)) => link.put(offset, data, signals, pause),
                None => link.signal(pause),
            }),
            Route::Nic => self.put_by_nic(what, rank, data, signals),
        }
    }

    /// Reads elements of a rank's part, from `offset` on.
    pub fn get(&self, target: usize, offset: usize, out: &mut [T]) -> Result<(), Error> {
        let rank = self.communicator.named(target)?;
        self.check(target, offset, out.len())?;
        self.check_there("get", target)?;
        let offset = offset * size_of::<T>();
        match &self.routes[target] {
            Route::Memory(memory, _) => {
                memory.read(offset, element::bytes_mut(out));
                Ok(())
            }
            Route::PeerProcess(process, address, _) => {
                let read = process.read_to(address + offset as u64, element::bytes_mut(out));
                read.map_err(|error| self.out_of_reach("get", target, &error))
            }
            Route::Tcp(link) => {
                let out = element::bytes_mut(out);
                self.over_tcp("get", target, link, |link, pause| link.get(offset, out, pause))
            }
            Route::Nic => self.get_by_nic(rank, offset, element::bytes_mut(out)),
        }
    }

    /// Returns when all that this rank has put and signalled so far is at its targets.
    pub fn flush(&self) -> Result<(), Error> {
        for (target, route) in self.routes.iter().enumerate() {
            match route {
                Route::Memory(..) | Route::PeerProcess(..) => self.check_there("flush", target)?,
                Route::Tcp(link) => self.over_tcp("flush", target, link, |link, pause| link.flush(pause))?,
                Route::Nic => {}
            }
        }
        self.flush_nic()
    }

    /// Signals of a rank that have arrived and were not consumed by a wait.
    pub fn signals(&self, from: usize) -> Result<u64, Error> {
        let from = self.communicator.named(from)?.0 as usize;
        self.serve();
        Ok(self.count(from) - lock(&self.used)[from])
    }

    /// Waits until a rank has signalled `count` times more than earlier waits have consumed, with the timeout of the
    /// communicator.
    pub fn wait_signal(&self, from: usize, count: u64) -> Result<(), Error> {
        self.wait_signal_for(from, count, self.limit())
    }

    /// The same with another timeout. A wait that times out consumes nothing, and may be repeated.
    pub fn wait_signal_for(&self, from: usize, count: u64, limit: Duration) -> Result<(), Error> {
        self.wait_signals_for(&[(from, count)], limit)
    }

    /// Waits until each of several ranks has signalled so many times more than earlier waits have consumed, as NCCL's
    /// `ncclWaitSignal` does with its descriptors. A rank may be named more than once: its counts add up.
    pub fn wait_signals(&self, counts: &[SignalCount]) -> Result<(), Error> {
        self.wait_signals_for(counts, self.limit())
    }

    /// The same with another timeout. A wait that times out consumes nothing, and may be repeated.
    pub fn wait_signals_for(&self, counts: &[SignalCount], limit: Duration) -> Result<(), Error> {
        let mut wanted: BTreeMap<usize, u64> = BTreeMap::new();
        for (from, count) in counts {
            let peer = self.communicator.named(*from)?;
            if *count == 0 {
                return Err(WindowError::NoSignals { peer }.into());
            }
            let sum = wanted.entry(*from).or_default();
            *sum = sum.saturating_add(*count);
        }
        let is_there = || {
            let mut used = lock(&self.used);
            let is_there = wanted.iter().all(|(from, count)| self.count(*from) - used[*from] >= *count);
            if is_there {
                for (from, count) in &wanted {
                    used[*from] += count;
                }
            }
            is_there
        };
        let have = |from: usize| self.count(from) - lock(&self.used)[from];
        let awaited = || {
            let missing = wanted.iter().filter(|(from, count)| have(**from) < **count);
            missing.map(|(from, _)| *from).collect()
        };
        let late = |ranks: &[usize]| {
            let mut text = String::new();
            for (index, from) in ranks.iter().enumerate() {
                let who = if index == 0 { String::new() } else { format!(", rank {from} ") };
                let _ = write!(text, "{who}has sent {} of {}", have(*from), wanted[from]);
            }
            format!("{text} in {limit:.1?}")
        };
        self.wait("wait for signals", &awaited, limit, is_there, &late)
    }

    /// The path of puts to a rank.
    pub fn path(&self, target: usize) -> Result<WindowPath, Error> {
        let target = self.communicator.named(target)?.0 as usize;
        Ok(self.routes[target].path())
    }

    fn count(&self, from: usize) -> u64 {
        self.signals.count(from)
    }

    /// Closes the window. Every rank calls it: it waits until all ranks have received what was sent to them, and frees the
    /// memory. Dropping the window instead frees only what no other rank could still write to.
    pub fn close(mut self) -> Result<(), Error> {
        self.finish()
    }

    /// Closes the window, as [`Window::close`] does, and returns the elements of this rank's part: the vector that was
    /// [registered](crate::Communicator::register), otherwise a copy.
    pub fn into_vec(mut self) -> Result<Vec<T>, Error> {
        self.finish()?;
        // Nothing else has the memory now.
        self.routes.clear();
        let memory = std::mem::replace(&mut self.memory, Buffer::new(0));
        if memory.is_vector() {
            return Ok(memory
                .into_vector()
                .expect("the memory of a window that is closed has no other user"));
        }
        let mut copy = element::zeros(self.len());
        memory.read(0, element::bytes_mut(&mut copy));
        Ok(copy)
    }

    fn finish(&mut self) -> Result<(), Error> {
        self.flush()?;
        // From here on no rank puts anything.
        self.communicator.barrier()?;
        self.is_written_from_outside = false;
        self.service = None;
        if let Some(staging) = &self.staging {
            let token = lock(staging).token;
            self.communicator
                .process
                .with(|engine| engine.conduits_mut().nic().map(|nic| nic.close_window(token)));
        }
        Ok(())
    }

    /// Whether a range is inside a rank's part.
    fn check(&self, rank: usize, offset: usize, count: usize) -> Result<(), Error> {
        let length = self.lengths[rank];
        if offset.checked_add(count).is_some_and(|end| end <= length) {
            return Ok(());
        }
        let bytes = |count: usize| Bytes((count as u64).saturating_mul(size_of::<T>() as u64));
        let at = At { window: WindowId(self.number as u32), offset: bytes(offset).0 };
        let rank = Rank(rank as u32);
        Err(WindowError::Outside { at, bytes: bytes(count), rank, length: bytes(length) }.into())
    }
}

impl Route {
    fn path(&self) -> WindowPath {
        match self {
            Self::Memory(..) => WindowPath::SharedMemory,
            Self::PeerProcess(..) => WindowPath::ProcessMemory,
            Self::Tcp(_) => WindowPath::Service,
            Self::Nic => WindowPath::Rdma,
        }
    }

    /// The counts of signals, if this process has mapped them.
    fn signals(&self) -> Option<&Signals> {
        match self {
            Self::Memory(_, signals) | Self::PeerProcess(_, _, signals) => Some(signals),
            Self::Tcp(_) | Self::Nic => None,
        }
    }
}

impl<T: Element> Drop for Window<'_, T> {
    fn drop(&mut self) {
        // Others may have it mapped, and must see that it is closed. At the NIC it stays registered as long as the NIC lives,
        // because late WRITEs have to be answered.
        self.signals.memory.store(setup::closed_at(&self.signals, self.lengths.len()), 1);
        if self.is_written_from_outside {
            // Another process may still write there: the memory must not be reused.
            std::mem::forget(self.memory.clone());
        }
    }
}
