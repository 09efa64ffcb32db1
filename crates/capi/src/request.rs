//! Requests: calls that go on while the program computes.

use std::ffi::c_int;
use std::sync::Arc;

use railnet_live::communicator::Operation;

use crate::communicator::Entry;
use crate::failure::Failure;
use crate::group;
use crate::handle::{Handle, Table};
use crate::pointer::Out;

static REQUESTS: Table<Request> = Table::new(2);

#[derive(Debug)]
struct Request {
    entry: Arc<Entry>,
    operation: Operation,
}

impl Request {
    fn wait(&self) -> Result<(), Failure> {
        let ended = self.operation.wait(None, &mut || true);
        ended.map_err(|error| Failure::from(error).at(&self.entry))
    }
}

pub(crate) fn insert(entry: &Arc<Entry>, operation: Operation) -> Handle {
    REQUESTS.insert(Arc::new(Request { entry: Arc::clone(entry), operation }))
}

/// Waits for all of a communicator, which are requests still.
pub(crate) fn wait_for_all(entry: &Arc<Entry>) -> Result<(), Failure> {
    let mut outcome = Ok(());
    for (_, request) in REQUESTS.all(|request| Arc::ptr_eq(&request.entry, entry)) {
        let ended = request.wait();
        outcome = outcome.and(ended);
    }
    outcome
}

fn find(handle: Handle) -> Result<Arc<Request>, Failure> {
    let request = REQUESTS.get(handle).ok_or_else(no_request)?;
    request.entry.check_process().map_err(|failure| failure.at(&request.entry))?;
    Ok(request)
}

fn no_request() -> Failure {
    Failure::argument("request is none: it was waited for already, or never was one")
}

/// Waits for one, which is `NULL` after that. `NULL` has ended.
pub(crate) fn wait(place: &Out<Handle>) -> Result<(), Failure> {
    group::refuse()?;
    let handle = place.get("request")?;
    if handle == Handle::NONE {
        return Ok(());
    }
    let request = find(handle)?;
    // Another thread may have been first.
    REQUESTS.remove(handle).ok_or_else(no_request)?;
    place.set("request", Handle::NONE)?;
    request.wait()
}

/// Waits for several; the first error is that of all.
pub(crate) fn wait_all(count: c_int, places: &Out<Handle>) -> Result<(), Failure> {
    let count = usize::try_from(count)
        .map_err(|_| Failure::argument(format!("count is {count}: it is 0 or more")))?;
    let mut outcome = Ok(());
    for index in 0..count {
        let ended = wait(&places.at(index));
        outcome = outcome.and(ended);
    }
    outcome
}

/// Whether one has ended; if so, it is `NULL` after that.
pub(crate) fn test(place: &Out<Handle>, done: &Out<c_int>) -> Result<(), Failure> {
    let handle = place.get("request")?;
    if handle == Handle::NONE {
        return done.set("done", 1);
    }
    let request = find(handle)?;
    done.check("done")?;
    let ended = match request.operation.is_done() {
        Ok(false) => return done.set("done", 0),
        Ok(true) => request.wait(),
        Err(error) => Err(Failure::from(error).at(&request.entry)),
    };
    REQUESTS.remove(handle);
    place.set("request", Handle::NONE)?;
    done.set("done", 1)?;
    ended
}
