//! Groups: what a thread calls between `railnetGroupStart` and `railnetGroupEnd` is started together, so that no two ranks wait for each
//! other.

use std::cell::RefCell;
use std::mem;
use std::sync::Arc;

use crate::codes::Code;
use crate::communicator::Entry;
use crate::failure::Failure;
use crate::handle::Handle;
use crate::operation::{self, Work};
use crate::pointer::Out;
use crate::request;

thread_local! {
    static GROUP: RefCell<Group> = const { RefCell::new(Group { depth: 0, items: Vec::new(), failed: None }) };
}

#[derive(Debug, Default)]
struct Group {
    /// Groups may lie in groups: the outermost one counts.
    depth: usize,
    items: Vec<Item>,
    /// The first call that was wrong.
    failed: Option<(Code, String)>,
}

#[derive(Debug)]
struct Item {
    entry: Arc<Entry>,
    work: Work,
    request: Out<Handle>,
}

/// Whether this thread is in a group.
pub(crate) fn is_open() -> bool {
    GROUP.with_borrow(|group| group.depth > 0)
}

/// An error in a group, for calls that wait for other ranks: those cannot come before the group has ended.
pub(crate) fn refuse() -> Result<(), Failure> {
    if is_open() {
        return Err(Failure::usage(
            "it waits for other ranks, and this thread is in a group: call railnetGroupEnd first",
        ));
    }
    Ok(())
}

/// Makes a call that may be part of a group, whose end has to know of a call that was wrong.
pub(crate) fn grouped(action: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
    action().inspect_err(|failure| {
        GROUP.with_borrow_mut(|group| {
            if group.depth > 0 && group.failed.is_none() {
                group.failed = Some((failure.code, failure.text.clone()));
            }
        });
    })
}

/// Leaves a call to the end of the group.
pub(crate) fn add(entry: &Arc<Entry>, work: Work, request: Out<Handle>) {
    GROUP.with_borrow_mut(|group| group.items.push(Item { entry: Arc::clone(entry), work, request }));
}

pub(crate) fn begin() {
    GROUP.with_borrow_mut(|group| group.depth += 1);
}

/// Starts all of the outermost group, and waits for what has no request.
pub(crate) fn end() -> Result<(), Failure> {
    let group = GROUP.with_borrow_mut(|group| {
        match group.depth {
            0 => return Err(Failure::usage("this thread is in no group: railnetGroupStart begins one")),
            1 => {}
            _ => {
                group.depth -= 1;
                return Ok(None);
            }
        }
        Ok(Some(mem::take(group)))
    })?;
    let Some(Group { items, failed, .. }) = group else { return Ok(()) };
    if let Some((code, text)) = failed {
        return Err(Failure::new(
            code,
            format!("nothing of the group was started, because a call in it was wrong: {text}"),
        ));
    }
    let (own, others): (Vec<_>, Vec<_>) = items.into_iter().partition(Item::is_own);
    copy(&own)?;
    start(&others)
}

impl Item {
    /// Whether a rank sends it to itself.
    fn is_own(&self) -> bool {
        matches!(&self.work, Work::Transfer { transfer, .. } if transfer.peer == self.entry.inner.rank())
    }
}

fn copy(own: &[Item]) -> Result<(), Failure> {
    let mut done: Vec<&Arc<Entry>> = Vec::new();
    for Item { entry, .. } in own {
        if done.iter().any(|other| Arc::ptr_eq(other, entry)) {
            continue;
        }
        done.push(entry);
        let works = own.iter().filter(|item| Arc::ptr_eq(&item.entry, entry)).map(|item| &item.work);
        let works: Vec<&Work> = works.collect();
        operation::copy_own(entry, &works).map_err(|failure| failure.at(entry))?;
    }
    Ok(())
}

fn start(items: &[Item]) -> Result<(), Failure> {
    let mut outcome = Ok(());
    let mut started = Vec::with_capacity(items.len());
    for Item { entry, work, request } in items {
        match operation::start(entry, work) {
            Ok(operation) if request.is_none() => started.push((entry, operation)),
            Ok(operation) => request.set("request", request::insert(entry, operation))?,
            Err(failure) => {
                outcome = Err(failure.at(entry));
                break;
            }
        }
    }
    // Buffers are in use until all that was started has ended, well or not.
    for (entry, operation) in started {
        let ended = operation.wait(None, &mut || true);
        if outcome.is_ok() {
            outcome = ended.map_err(|error| Failure::from(error).at(entry));
        }
    }
    outcome
}
