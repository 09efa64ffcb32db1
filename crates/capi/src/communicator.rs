//! Communicators: how they are made, asked and given back.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use railnet_core::{DataType, ReduceOp, Scalar};
use railnet_live::communicator::Error;
use railnet_live::{Communicator, Options};

use crate::codes::{Code, REDUCTIONS, code};
use crate::failure::Failure;
use crate::handle::{Handle, Table};
use crate::pointer::{In, Out};
use crate::unique_id::UniqueId;
use crate::{group, process, request, window};

/// The largest number of a reduction.
pub(crate) const MAX_REDUCTION: c_int = c_int::MAX;
/// The color of a rank that wants no communicator.
const NO_COLOR: c_int = -1;

static COMMUNICATORS: Table<Entry> = Table::new(1);

/// A communicator with what the program has said of it.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) inner: Arc<Communicator>,
    /// The message of its last failure.
    last: Mutex<String>,
    /// The scalars of reductions that the program has made, by number.
    scalars: Mutex<BTreeMap<c_int, Scalar>>,
    made: AtomicU64,
    is_finalized: AtomicBool,
    /// How long a call may stand still; 0 where the environment says it.
    timeout_ms: AtomicU64,
    /// The process that made it.
    process: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Entry {
    fn new(inner: Communicator) -> Self {
        process::watch();
        Self {
            inner: Arc::new(inner),
            last: Mutex::default(),
            scalars: Mutex::default(),
            made: AtomicU64::new(0),
            is_finalized: AtomicBool::new(false),
            timeout_ms: AtomicU64::new(0),
            process: process::generation(),
        }
    }

    /// One that comes of this one, which has its timeout.
    fn derive(&self, inner: Communicator) -> Self {
        let entry = Self::new(inner);
        entry.set_timeout(self.timeout_ms.load(Ordering::Relaxed));
        entry
    }

    fn set_timeout(&self, milliseconds: u64) {
        if milliseconds > 0 {
            self.timeout_ms.store(milliseconds, Ordering::Relaxed);
            self.inner.set_timeout(Duration::from_millis(milliseconds));
        }
    }

    pub(crate) fn set_last(&self, text: &str) {
        text.clone_into(&mut lock(&self.last));
    }

    pub(crate) fn last(&self) -> String {
        lock(&self.last).clone()
    }

    /// A process that was forked has no thread that answers the other ranks.
    pub(crate) fn check_process(&self) -> Result<(), Failure> {
        if self.process != process::generation() {
            return Err(Failure::usage(
                "this process was forked from the one that made the communicator: make another one here",
            ));
        }
        Ok(())
    }

    /// Whether calls may be made.
    pub(crate) fn check_open(&self) -> Result<(), Failure> {
        if self.is_finalized.load(Ordering::Relaxed) {
            return Err(Failure::usage("the communicator was finalized: all that is left is to destroy it"));
        }
        Ok(())
    }

    /// A rank of it.
    pub(crate) fn rank(&self, name: &str, number: c_int) -> Result<usize, Failure> {
        let size = self.inner.size();
        let rank = usize::try_from(number).ok().filter(|rank| *rank < size);
        rank.ok_or_else(|| Failure::argument(format!("{name} is {number}: ranks are 0 to {}", size - 1)))
    }

    /// What a reduction of data of this type is.
    pub(crate) fn reduction(&self, number: c_int, dtype: DataType) -> Result<ReduceOp, Failure> {
        let plain = usize::try_from(number).ok().and_then(|number| REDUCTIONS.get(number));
        if let Some((_, op)) = plain {
            return Ok(*op);
        }
        match lock(&self.scalars).get(&number) {
            Some(scalar) if scalar.dtype() == dtype => Ok(ReduceOp::PreMulSum(*scalar)),
            Some(scalar) => Err(Error::Scalar { scalar: scalar.dtype(), data: dtype }.into()),
            None => Err(no_reduction(number)),
        }
    }

    /// Ends what was started and not waited for.
    fn finalize(self: &Arc<Self>) -> Result<(), Failure> {
        self.is_finalized.store(true, Ordering::Relaxed);
        request::wait_for_all(self)
    }
}

fn no_reduction(number: c_int) -> Failure {
    Failure::argument(format!(
        "op is {number}: it is none of railnetRedOp_t, and none that railnetRedOpCreatePreMulSum has made for this communicator"
    ))
}

/// Runs an action on a communicator, and keeps the error of one that fails for `railnetGetLastError`.
pub(crate) fn on<T>(
    comm: Handle,
    action: impl FnOnce(&Arc<Entry>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let entry = COMMUNICATORS.get(comm).ok_or_else(|| no_communicator(comm))?;
    entry.check_process().and_then(|()| action(&entry)).map_err(|failure| failure.at(&entry))
}

fn no_communicator(comm: Handle) -> Failure {
    Failure::argument(match comm {
        Handle::NONE => {
            "comm is NULL: railnetCommInitRank, railnetCommInitFromEnv and railnetCommSplit make one"
        }
        _ => "comm is no communicator: it was destroyed or aborted, or never was one",
    })
}

/// The communicator of a handle, if it is one.
pub(crate) fn find(comm: Handle) -> Option<Arc<Entry>> {
    COMMUNICATORS.get(comm)
}

pub(crate) fn from_env(new: &Out<Handle>) -> Result<(), Failure> {
    new.set("comm", Handle::NONE)?;
    group::refuse()?;
    let entry = Entry::new(Communicator::from_env()?);
    new.set("comm", COMMUNICATORS.insert(Arc::new(entry)))
}

pub(crate) fn from_id(new: &Out<Handle>, ranks: c_int, id: &UniqueId, rank: c_int) -> Result<(), Failure> {
    new.set("comm", Handle::NONE)?;
    group::refuse()?;
    let size = u32::try_from(ranks).ok().filter(|size| *size > 0);
    let size =
        size.ok_or_else(|| Failure::argument(format!("nranks is {ranks}: there is at least one rank")))?;
    let own = u32::try_from(rank).ok().filter(|own| *own < size);
    let own = own.ok_or_else(|| Failure::argument(format!("rank is {rank}: ranks are 0 to {}", size - 1)))?;
    let (config, _in_use) = id.config(own, size)?;
    let entry = Entry::new(Communicator::meet(&config, &Options::from_env()?)?);
    new.set("comm", COMMUNICATORS.insert(Arc::new(entry)))
}

pub(crate) fn split(comm: Handle, color: c_int, key: c_int, new: &Out<Handle>) -> Result<(), Failure> {
    on(comm, |entry| {
        new.set("newcomm", Handle::NONE)?;
        group::refuse()?;
        entry.check_open()?;
        let color = match color {
            NO_COLOR => None,
            color => Some(u32::try_from(color).map_err(|_| {
                Failure::argument(format!("color is {color}: it is RAILNET_SPLIT_NOCOLOR, or 0 or more"))
            })?),
        };
        match entry.inner.split(color, i64::from(key))? {
            Some(part) => new.set("newcomm", COMMUNICATORS.insert(Arc::new(entry.derive(part)))),
            None => Ok(()),
        }
    })
}

pub(crate) fn shrink(
    comm: Handle,
    excluded: &In<c_int>,
    count: c_int,
    new: &Out<Handle>,
) -> Result<(), Failure> {
    on(comm, |entry| {
        new.set("newcomm", Handle::NONE)?;
        group::refuse()?;
        let count = usize::try_from(count)
            .map_err(|_| Failure::argument(format!("excludeRanksCount is {count}: it is 0 or more")))?;
        let excluded = excluded.values("excludeRanksList", count)?;
        let excluded: Vec<usize> = excluded
            .into_iter()
            .map(|rank| entry.rank("an excluded rank", rank))
            .collect::<Result<_, _>>()?;
        let rest = entry.inner.rebuild_without(&excluded)?;
        new.set("newcomm", COMMUNICATORS.insert(Arc::new(entry.derive(rest))))
    })
}

pub(crate) fn revoke(comm: Handle) -> Result<(), Failure> {
    on(comm, |entry| {
        entry.inner.revoke();
        Ok(())
    })
}

pub(crate) fn finalize(comm: Handle) -> Result<(), Failure> {
    on(comm, |entry| {
        group::refuse()?;
        entry.finalize()
    })
}

pub(crate) fn destroy(comm: Handle) -> Result<(), Failure> {
    if comm == Handle::NONE {
        return Ok(());
    }
    on(comm, |entry| {
        group::refuse()?;
        let windows = window::count(entry);
        if windows > 0 {
            return Err(Failure::usage(format!(
                "the communicator has windows, {windows} in all: railnetCommWindowDeregister them first"
            )));
        }
        let ended = entry.finalize();
        // Another thread may have been first.
        COMMUNICATORS.remove(comm).ok_or_else(|| no_communicator(comm))?;
        ended
    })
}

pub(crate) fn abort(comm: Handle) -> Result<(), Failure> {
    if comm == Handle::NONE {
        return Ok(());
    }
    on(comm, |entry| {
        // Another thread may have been first.
        COMMUNICATORS.remove(comm).ok_or_else(|| no_communicator(comm))?;
        entry.inner.abort();
        window::forget(entry);
        Ok(())
    })
}

pub(crate) fn async_error(comm: Handle, result: &Out<c_int>) -> Result<(), Failure> {
    on(comm, |entry| {
        let code = match entry.inner.failure() {
            None => Code::Success,
            Some(error) => {
                entry.set_last(&error.to_string());
                code(&error)
            }
        };
        result.set("asyncError", code as c_int)
    })
}

pub(crate) fn count(comm: Handle, count: &Out<c_int>) -> Result<(), Failure> {
    on(comm, |entry| count.set("count", entry.inner.size() as c_int))
}

pub(crate) fn user_rank(comm: Handle, rank: &Out<c_int>) -> Result<(), Failure> {
    on(comm, |entry| rank.set("rank", entry.inner.rank() as c_int))
}

pub(crate) fn set_timeout(comm: Handle, milliseconds: u64) -> Result<(), Failure> {
    on(comm, |entry| {
        if milliseconds == 0 {
            return Err(Failure::argument("milliseconds is 0: every wait needs some time"));
        }
        entry.set_timeout(milliseconds);
        Ok(())
    })
}

/// Makes a sum before which each contribution is multiplied by the scalar that its rank gives here.
pub(crate) fn create_reduction(
    comm: Handle,
    op: &Out<c_int>,
    dtype: DataType,
    scalar: &[u8],
) -> Result<(), Failure> {
    on(comm, |entry| {
        op.check("op")?;
        let mut bits = [0; 8];
        bits[..scalar.len()].copy_from_slice(scalar);
        let scalar = Scalar::from_bits(dtype, u64::from_le_bytes(bits));
        let next = entry.made.fetch_add(1, Ordering::Relaxed) + REDUCTIONS.len() as u64;
        let number = c_int::try_from(next).ok().filter(|number| *number < MAX_REDUCTION);
        let number = number.ok_or_else(|| {
            Failure::usage("the numbers for reductions are used up: make another communicator")
        })?;
        lock(&entry.scalars).insert(number, scalar);
        op.set("op", number)
    })
}

pub(crate) fn destroy_reduction(comm: Handle, number: c_int) -> Result<(), Failure> {
    on(comm, |entry| match lock(&entry.scalars).remove(&number) {
        Some(_) => Ok(()),
        None if (0..REDUCTIONS.len() as c_int).contains(&number) => {
            Err(Failure::argument(format!("op is {number}: that one is always there")))
        }
        None => Err(no_reduction(number)),
    })
}
