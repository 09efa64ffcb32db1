//! Windows: memory of every rank that all others may write, read and signal.
#![expect(unsafe_code, reason = "the program vouches for the memory of a window")]

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::{Arc, PoisonError, RwLock};

use railnet_live::Window;

use crate::communicator::{Entry, on};
use crate::failure::Failure;
use crate::group;
use crate::handle::{Handle, Table};
use crate::operation::{data_type, size};
use crate::pointer::{In, Out, Source, Target};

static WINDOWS: Table<Registered> = Table::new(3);

#[derive(Debug)]
struct Registered {
    entry: Arc<Entry>,
    /// Calls share it; its end waits for them and leaves nothing.
    window: RwLock<Option<Window<'static, u8>>>,
}

/// `railnetWaitSignalDesc_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct WaitSignalDesc {
    count: c_int,
    peer: c_int,
}

pub(crate) fn register(comm: Handle, memory: Target, bytes: usize, new: &Out<Handle>) -> Result<(), Failure> {
    on(comm, |entry| {
        new.set("win", Handle::NONE)?;
        group::refuse()?;
        entry.check_open()?;
        let inner = Arc::clone(&entry.inner);
        let window = if memory.is_none() {
            Window::create(inner, bytes)?
        } else {
            let start = memory.address("buff", bytes)?;
            let start = NonNull::new(start).unwrap_or(NonNull::<u64>::dangling().cast());
            // SAFETY: the program says that the memory is there until the window is deregistered.
            unsafe { Window::register_raw(inner, start, bytes) }?
        };
        let registered = Registered { entry: Arc::clone(entry), window: RwLock::new(Some(window)) };
        new.set("win", WINDOWS.insert(Arc::new(registered)))
    })
}

pub(crate) fn deregister(comm: Handle, win: Handle) -> Result<(), Failure> {
    if win == Handle::NONE {
        return Ok(());
    }
    on(comm, |entry| {
        group::refuse()?;
        let registered = find(entry, win)?;
        WINDOWS.remove(win);
        // No call uses it any more when this is had.
        let window = registered.window.write().unwrap_or_else(PoisonError::into_inner).take();
        window.map_or(Ok(()), Window::close)?;
        Ok(())
    })
}

/// Windows of a communicator.
pub(crate) fn count(entry: &Arc<Entry>) -> usize {
    WINDOWS.all(|one| Arc::ptr_eq(&one.entry, entry)).len()
}

/// Gives back the windows of a communicator that was aborted.
pub(crate) fn forget(entry: &Arc<Entry>) {
    for (handle, _) in WINDOWS.all(|one| Arc::ptr_eq(&one.entry, entry)) {
        WINDOWS.remove(handle);
    }
}

fn find(entry: &Arc<Entry>, win: Handle) -> Result<Arc<Registered>, Failure> {
    let found = WINDOWS.get(win).ok_or_else(no_window)?;
    if Arc::ptr_eq(&found.entry, entry) {
        return Ok(found);
    }
    Err(Failure::argument("win is a window of another communicator than comm"))
}

fn no_window() -> Failure {
    Failure::argument(
        "win is no window: it was deregistered, or never was one; railnetCommWindowRegister makes one",
    )
}

/// Does something with a window of a communicator.
fn with<T>(
    comm: Handle,
    win: Handle,
    action: impl FnOnce(&Entry, &Window<'static, u8>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    on(comm, |entry| {
        let registered = find(entry, win)?;
        let window = registered.window.read().unwrap_or_else(PoisonError::into_inner);
        action(entry, window.as_ref().ok_or_else(no_window)?)
    })
}

/// Where this rank's part is.
pub(crate) fn start(comm: Handle, win: Handle, place: &Out<*mut c_void>) -> Result<(), Failure> {
    with(comm, win, |_, window| place.set("ptr", window.start().as_ptr().cast()))
}

/// What a put copies, and where to.
pub(crate) struct Put {
    pub(crate) data: Source,
    pub(crate) count: usize,
    pub(crate) dtype: c_int,
    pub(crate) peer: c_int,
    /// In bytes.
    pub(crate) offset: usize,
    pub(crate) signals: bool,
}

pub(crate) fn put(comm: Handle, win: Handle, put: &Put) -> Result<(), Failure> {
    with(comm, win, |entry, window| {
        let peer = entry.rank("peer", put.peer)?;
        let data = put.data.bytes("localbuff", size(put.count, data_type(put.dtype)?)?)?;
        if put.signals {
            window.put_signal(peer, put.offset, data)?;
        } else {
            window.put(peer, put.offset, data)?;
        }
        Ok(())
    })
}

pub(crate) fn get(
    comm: Handle,
    win: Handle,
    mut into: Target,
    (count, dtype): (usize, c_int),
    peer: c_int,
    offset: usize,
) -> Result<(), Failure> {
    with(comm, win, |entry, window| {
        let peer = entry.rank("peer", peer)?;
        let into = into.bytes("localbuff", size(count, data_type(dtype)?)?)?;
        Ok(window.get(peer, offset, into)?)
    })
}

pub(crate) fn signal(comm: Handle, win: Handle, peer: c_int) -> Result<(), Failure> {
    with(comm, win, |entry, window| Ok(window.signal(entry.rank("peer", peer)?)?))
}

pub(crate) fn wait_signal(
    comm: Handle,
    win: Handle,
    count: c_int,
    awaited: &In<WaitSignalDesc>,
) -> Result<(), Failure> {
    with(comm, win, |entry, window| {
        group::refuse()?;
        let count = usize::try_from(count)
            .map_err(|_| Failure::argument(format!("nDesc is {count}: it is 0 or more")))?;
        let awaited = awaited.values("signalDescs", count)?;
        let counts = awaited.into_iter().map(|WaitSignalDesc { count, peer }| {
            let wrong = || Failure::argument(format!("opCnt is {count}: at least 1 signal is waited for"));
            Ok((
                entry.rank("peer", peer)?,
                u64::try_from(count).ok().filter(|count| *count > 0).ok_or_else(wrong)?,
            ))
        });
        let counts: Vec<(usize, u64)> = counts.collect::<Result<_, Failure>>()?;
        Ok(window.wait_signals(&counts)?)
    })
}

pub(crate) fn signals(comm: Handle, win: Handle, peer: c_int, count: &Out<u64>) -> Result<(), Failure> {
    with(comm, win, |entry, window| count.set("count", window.signals(entry.rank("peer", peer)?)?))
}

pub(crate) fn flush(comm: Handle, win: Handle) -> Result<(), Failure> {
    with(comm, win, |_, window| {
        group::refuse()?;
        Ok(window.flush()?)
    })
}
