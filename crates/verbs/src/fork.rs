//! What a fork leaves to the child: nothing of the parent's NIC.
//!
//! A child inherits the parent's descriptors. Were they left open there, the parent's address, member number and services would stay
//! taken after its death, its peers would not learn of that, and packets would wait in a socket that no process reads. So the child has
//! each of them replaced by an event counter of its own. The locks are held across the fork: the child finds all
//! state whole, and opens devices of its own.
#![expect(unsafe_code, reason = "handlers of the C library, and descriptors by their numbers")]

use std::cell::RefCell;
use std::sync::{Arc, MutexGuard, Once};

use libc::c_int;

use crate::adapter::{Adapter, Adapters, State};
use crate::cma;
use crate::context;

/// Everything that is locked while a thread forks.
struct Held {
    descriptors: Vec<c_int>,
    /// Before the adapters that they belong to: fields are dropped in this order.
    _states: Vec<MutexGuard<'static, State>>,
    _adapters: Vec<Arc<Adapter>>,
    _open: MutexGuard<'static, Adapters>,
    _listed: MutexGuard<'static, Vec<usize>>,
    _opened: cma::OpenedGuard,
}

thread_local! {
    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
}

/// Prepares for forks; once, however often it is asked for.
pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    // SAFETY: the functions live as long as this library, which programs do not unload.
    ONCE.call_once(|| _ = unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) });
}

extern "C" fn before() {
    crate::errors::guard((), || {
        // In the order in which calls take them.
        let opened = cma::lock_opened();
        let listed = context::lock_listed();
        let open = Adapter::lock_all();
        let adapters = Adapter::of_this_process(&open);
        let mut descriptors = Vec::new();
        let mut states = Vec::new();
        for adapter in &adapters {
            let state = adapter.state();
            adapter.list_descriptors(&state, &mut descriptors);
            // SAFETY: the adapter is kept beside the guard, and dropped after it.
            states.push(unsafe {
                std::mem::transmute::<MutexGuard<'_, State>, MutexGuard<'static, State>>(state)
            });
        }
        let held = Held {
            descriptors,
            _states: states,
            _adapters: adapters,
            _open: open,
            _listed: listed,
            _opened: opened,
        };
        HELD.with_borrow_mut(|slot| *slot = Some(held));
    });
}

fn release() -> Option<Held> {
    HELD.with_borrow_mut(Option::take)
}

extern "C" fn in_parent() {
    crate::errors::guard((), || drop(release()));
}

extern "C" fn in_child() {
    crate::errors::guard((), || {
        let Some(held) = release() else { return };
        // SAFETY: descriptors by number, of which those in the list are this library's.
        unsafe {
            let nothing = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
            for &descriptor in &held.descriptors {
                libc::dup3(nothing, descriptor, libc::O_CLOEXEC);
            }
            libc::close(nothing);
        }
    });
}
