//! Devices of identifiers: opened once for each address, and kept. All identifiers of an address share its context and its
//! protection domain, as rdma-core has it.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libc::c_int;

use crate::abi::{ibv_context, ibv_device, ibv_pd};
use crate::adapter::Adapter;
use crate::context::{self, Context};
use crate::errors::{guard, null};
use crate::{memory, object};

/// An open device.
#[derive(Clone, Copy)]
pub(super) struct Opened {
    /// A child after a fork opens its own.
    process: u32,
    pub(super) address: IpAddr,
    context: usize,
    domain: usize,
}

static OPENED: Mutex<Vec<Opened>> = Mutex::new(Vec::new());

/// The open devices, while a thread forks.
pub(crate) struct OpenedGuard(
    #[expect(dead_code, reason = "it is only held")] MutexGuard<'static, Vec<Opened>>,
);

pub(crate) fn lock_opened() -> OpenedGuard {
    OpenedGuard(OPENED.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Opened {
    pub(super) fn context(&self) -> *mut ibv_context {
        self.context as *mut ibv_context
    }

    pub(super) fn domain(&self) -> *mut ibv_pd {
        self.domain as *mut ibv_pd
    }

    pub(super) fn adapter(&self) -> Result<Arc<Adapter>, c_int> {
        Ok(Context::of(self.context())?.adapter.clone())
    }
}

fn open(address: IpAddr, device: *mut ibv_device) -> Result<Opened, c_int> {
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    let process = std::process::id();
    if let Some(known) = opened.iter().find(|one| (one.process, one.address) == (process, address)) {
        return Ok(*known);
    }
    let context = context::open(device)?;
    let domain = super::made(memory::alloc_domain(context))?;
    let new = Opened { process, address, context: context as usize, domain: domain as usize };
    opened.push(new);
    Ok(new)
}

/// The device of an address.
pub(super) fn of(address: IpAddr) -> Result<Opened, c_int> {
    let devices = context::addresses()?;
    let found = devices.into_iter().find(|(one, _)| *one == address);
    let (address, device) = found.ok_or(libc::EADDRNOTAVAIL)?;
    open(address, device)
}

/// The device of an address that an identifier is bound to. The address that stands for all has none; nor has a loopback address
/// that no device has, as in Linux, where the loopback is no RDMA device: programs bind to it to learn whether they can.
pub(super) fn bound_to(address: IpAddr) -> Result<Option<Opened>, c_int> {
    if address.is_unspecified() {
        return Ok(None);
    }
    match of(address) {
        Err(libc::EADDRNOTAVAIL) if address.is_loopback() => Ok(None),
        found => found.map(Some),
    }
}

/// All devices whose addresses satisfy this. One that cannot be opened is left out, unless none can.
pub(super) fn all(matches: impl Fn(IpAddr) -> bool) -> Result<Vec<Opened>, c_int> {
    let devices = context::addresses()?;
    let wanted = devices.into_iter().filter(|(address, _)| matches(*address));
    let (mut found, mut refused) = (Vec::new(), libc::ENODEV);
    for (address, device) in wanted {
        match open(address, device) {
            Ok(opened) => found.push(opened),
            Err(number) => refused = number,
        }
    }
    if found.is_empty() { Err(refused) } else { Ok(found) }
}

pub(crate) extern "C" fn get_devices(count: *mut c_int) -> *mut *mut ibv_context {
    guard(std::ptr::null_mut(), || match all(|_| true) {
        Ok(devices) => {
            if let Ok(count) = object::write(count) {
                *count = devices.len() as c_int;
            }
            let mut contexts: Vec<_> = devices.iter().map(Opened::context).collect();
            contexts.push(std::ptr::null_mut());
            object::to_c_array(&contexts)
        }
        Err(number) => null(number),
    })
}

pub(crate) extern "C" fn free_devices(list: *mut *mut ibv_context) {
    object::free_c_array(list);
}
