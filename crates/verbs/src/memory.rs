//! Protection domains, memory regions and memory windows.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{c_int, c_uint, c_void};
use railnet_live::memory::application::is_accessible;
use railnet_nic::memory::SpaceId;
use railnet_nic::{Access, Key, ProtectionDomain};

use crate::abi::*;
use crate::adapter::{Adapter, State};
use crate::context::Context;
use crate::errors::{guard, null, of_verb, status};
use crate::object;

/// A protection domain, or a parent domain, which is one in other clothes.
#[repr(C)]
pub(crate) struct Domain {
    pub(crate) c: ibv_pd,
    pub(crate) adapter: Arc<Adapter>,
    pub(crate) domain: ProtectionDomain,
    parent_of: AtomicU32,
    /// Of a parent domain: the protection domain behind it.
    original: *const Self,
}

pub(crate) extern "C" fn alloc_domain(context: *mut ibv_context) -> *mut ibv_pd {
    guard(std::ptr::null_mut(), || match Context::of(context) {
        Ok(of_context) => {
            let domain = of_context.adapter.state().driver.nic_mut().alloc_pd();
            object::publish(Box::new(Domain {
                c: ibv_pd { context, handle: of_context.handle() },
                adapter: of_context.adapter.clone(),
                domain,
                parent_of: AtomicU32::new(0),
                original: std::ptr::null(),
            }))
        }
        Err(number) => null(number),
    })
}

pub(crate) extern "C" fn dealloc_domain(pd: *mut ibv_pd) -> c_int {
    guard(libc::EIO, || {
        status((|| {
            let domain = object::of::<Domain, _>(pd)?;
            if let Some(original) = object::maybe::<Domain, ibv_pd>(domain.original.cast()) {
                original.parent_of.fetch_sub(1, Ordering::Relaxed);
            } else {
                if domain.parent_of.load(Ordering::Relaxed) > 0 {
                    return Err(libc::EBUSY);
                }
                let mut state = domain.adapter.state();
                state.driver.nic_mut().dealloc_pd(domain.domain).map_err(|error| of_verb(&error))?;
            }
            object::retire::<Domain, _>(pd);
            Ok(())
        })())
    })
}

pub(crate) extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    guard(std::ptr::null_mut(), || {
        let made = (|| {
            let of_context = Context::of(context)?;
            let attr = object::read(attr)?;
            if attr.comp_mask != 0 {
                // Allocators of the application: nothing here is allocated with them.
                return Err(libc::EOPNOTSUPP);
            }
            let original = object::of::<Domain, _>(attr.pd)?;
            original.parent_of.fetch_add(1, Ordering::Relaxed);
            Ok(object::publish(Box::new(Domain {
                c: ibv_pd { context, handle: of_context.handle() },
                adapter: original.adapter.clone(),
                domain: original.domain,
                parent_of: AtomicU32::new(0),
                original,
            })))
        })();
        made.unwrap_or_else(null)
    })
}

#[repr(C)]
pub(crate) struct ThreadDomain {
    pub(crate) c: ibv_td,
}

pub(crate) extern "C" fn alloc_thread_domain(context: *mut ibv_context, _attr: *mut c_void) -> *mut ibv_td {
    object::publish(Box::new(ThreadDomain { c: ibv_td { context } }))
}

pub(crate) extern "C" fn dealloc_thread_domain(td: *mut ibv_td) -> c_int {
    guard(libc::EIO, || {
        status(object::of::<ThreadDomain, _>(td).map(|_| object::retire::<ThreadDomain, _>(td)))
    })
}

/// A memory region.
#[repr(C)]
pub(crate) struct Region {
    pub(crate) c: ibv_mr,
    adapter: Arc<Adapter>,
    pub(crate) key: Key,
    space: SpaceId,
    access: c_uint,
    name: u64,
}

/// Access flags that this NIC has.
const ACCESS: c_uint = 0x1f;

fn check_access(access: c_uint) -> Result<Access, c_int> {
    if access & (IBV_ACCESS_ZERO_BASED | IBV_ACCESS_ON_DEMAND) != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    if access & !(ACCESS | IBV_ACCESS_HUGETLB | IBV_ACCESS_OPTIONAL_RANGE) != 0 {
        return Err(libc::EINVAL);
    }
    Ok(Access::from_bits((access & ACCESS) as u8))
}

fn register(
    pd: *mut ibv_pd,
    address: u64,
    length: usize,
    name: u64,
    access: c_uint,
) -> Result<Box<Region>, c_int> {
    let domain = object::of::<Domain, _>(pd)?;
    let granted = check_access(access)?;
    let write = granted.allows(Access::LOCAL_WRITE);
    if !is_accessible(address, length as u64, write).map_err(|error| crate::errors::of_io(&error))? {
        return Err(libc::EFAULT);
    }
    let mut state = domain.adapter.state();
    let space = state.driver.memory_mut().space(address, name);
    let key = state.driver.register(domain.domain, space, name, length as u64, granted).map_err(|error| {
        state.driver.memory_mut().remove(space);
        of_verb(&error)
    })?;
    let c = ibv_mr {
        context: domain.c.context,
        pd,
        addr: address as *mut c_void,
        length,
        handle: key.0 >> 8,
        lkey: key.0,
        rkey: key.0,
    };
    Ok(Box::new(Region { c, adapter: domain.adapter.clone(), key, space, access, name }))
}

fn register_or_null(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    name: u64,
    access: c_uint,
) -> *mut ibv_mr {
    guard(std::ptr::null_mut(), || {
        register(pd, address as u64, length, name, access).map_or_else(null, object::publish)
    })
}

pub(crate) extern "C" fn register_region(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    register_or_null(pd, address, length, address as u64, access as c_uint)
}

pub(crate) extern "C" fn register_region_iova(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    name: u64,
    access: c_int,
) -> *mut ibv_mr {
    register_or_null(pd, address, length, name, access as c_uint)
}

pub(crate) extern "C" fn register_region_iova2(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    name: u64,
    access: c_uint,
) -> *mut ibv_mr {
    register_or_null(pd, address, length, name, access)
}

/// Memory of devices: there is none that this NIC could reach.
pub(crate) extern "C" fn register_dmabuf(
    _pd: *mut ibv_pd,
    _offset: u64,
    _length: usize,
    _name: u64,
    _descriptor: c_int,
    _access: c_int,
) -> *mut ibv_mr {
    null(libc::EOPNOTSUPP)
}

pub(crate) extern "C" fn deregister_region(mr: *mut ibv_mr) -> c_int {
    guard(libc::EIO, || {
        status((|| {
            let region = object::of::<Region, _>(mr)?;
            {
                let mut state = region.adapter.state();
                state.driver.nic_mut().dereg_mr(region.key).map_err(|error| of_verb(&error))?;
                state.driver.memory_mut().remove(region.space);
            }
            object::retire::<Region, _>(mr);
            Ok(())
        })())
    })
}

/// What a region is registered with.
#[derive(Clone, Copy)]
struct Extent {
    domain: ProtectionDomain,
    address: u64,
    length: usize,
    name: u64,
    access: Access,
}

/// Gives a key another region. Where that is refused, the old one is as it was.
fn exchange(region: &Region, old: &Extent, new: &Extent) -> Result<SpaceId, c_int> {
    let mut state = region.adapter.state();
    let put = |state: &mut State, extent: &Extent| {
        let space = state.driver.memory_mut().space(extent.address, extent.name);
        let length = extent.length as u64;
        let put =
            state.driver.register_as(extent.domain, space, extent.name, length, extent.access, region.key);
        put.map(|()| space).inspect_err(|_| state.driver.memory_mut().remove(space))
    };
    state.driver.nic_mut().dereg_mr(region.key).map_err(|error| of_verb(&error))?;
    state.driver.memory_mut().remove(region.space);
    put(&mut state, new).map_err(|error| {
        // The key was free a moment ago, and the lock of the NIC was held since.
        let _ = put(&mut state, old);
        of_verb(&error)
    })
}

/// Changes a region under the same pointer and the same keys, as Soft-RoCE does.
pub(crate) extern "C" fn reregister_region(
    mr: *mut ibv_mr,
    changes: c_int,
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    const TRANSLATION: c_int = 1 << 0;
    const DOMAIN: c_int = 1 << 1;
    const ACCESS_FLAGS: c_int = 1 << 2;
    /// Nothing changed; the old region is as it was.
    const INPUT_ERROR: c_int = -1;
    guard(INPUT_ERROR, || {
        let changed = (|| {
            let region = object::of::<Region, _>(mr)?;
            if changes == 0 || changes & !(TRANSLATION | DOMAIN | ACCESS_FLAGS) != 0 {
                return Err(libc::EINVAL);
            }
            let has = |change| changes & change != 0;
            let old = Extent {
                domain: object::of::<Domain, _>(region.c.pd)?.domain,
                address: region.c.addr as u64,
                length: region.c.length,
                name: region.name,
                access: check_access(region.access)?,
            };
            let mut new = old;
            if has(TRANSLATION) {
                if address.is_null() || length == 0 {
                    return Err(libc::EINVAL);
                }
                (new.address, new.length, new.name) = (address as u64, length, address as u64);
            }
            if has(DOMAIN) {
                new.domain = object::of::<Domain, _>(pd)?.domain;
            }
            let flags = if has(ACCESS_FLAGS) { access as c_uint } else { region.access };
            new.access = check_access(flags)?;
            let write = new.access.allows(Access::LOCAL_WRITE);
            if !is_accessible(new.address, new.length as u64, write)
                .map_err(|error| crate::errors::of_io(&error))?
            {
                return Err(libc::EFAULT);
            }
            let space = exchange(region, &old, &new)?;
            let mut c = region.c;
            (c.addr, c.length) = (new.address as *mut c_void, new.length);
            if has(DOMAIN) {
                c.pd = pd;
            }
            let (adapter, key) = (region.adapter.clone(), region.key);
            object::replace::<Region, _>(
                mr,
                Region { c, adapter, key, space, access: flags, name: new.name },
            );
            Ok(())
        })();
        changed.map_or_else(
            |number| {
                crate::errors::set(number);
                INPUT_ERROR
            },
            |()| 0,
        )
    })
}

/// Advice is about pages that are fetched on demand; all are there.
pub(crate) extern "C" fn advise(_: *mut ibv_pd, _: c_int, _: u32, _: *mut ibv_sge, _: u32) -> c_int {
    libc::EOPNOTSUPP
}

/// A memory window, of type 2.
#[repr(C)]
pub(crate) struct Window {
    pub(crate) c: ibv_mw,
    adapter: Arc<Adapter>,
}

pub(crate) extern "C" fn alloc_window(pd: *mut ibv_pd, kind: c_int) -> *mut ibv_mw {
    guard(std::ptr::null_mut(), || {
        let made = (|| {
            let domain = object::of::<Domain, _>(pd)?;
            match kind {
                IBV_MW_TYPE_2 => {}
                IBV_MW_TYPE_1 => return Err(libc::EOPNOTSUPP),
                _ => return Err(libc::EINVAL),
            }
            let mut state = domain.adapter.state();
            let key = state.driver.nic_mut().alloc_mw(domain.domain).map_err(|error| of_verb(&error))?;
            let c = ibv_mw { context: domain.c.context, pd, rkey: key.0, handle: key.0 >> 8, kind };
            Ok(object::publish(Box::new(Window { c, adapter: domain.adapter.clone() })))
        })();
        made.unwrap_or_else(null)
    })
}

pub(crate) extern "C" fn dealloc_window(mw: *mut ibv_mw) -> c_int {
    guard(libc::EIO, || {
        status((|| {
            let window = object::of::<Window, _>(mw)?;
            {
                let mut state = window.adapter.state();
                let nic = state.driver.nic_mut();
                let key = nic.window_key(Key(window.c.rkey)).map_err(|error| of_verb(&error))?;
                nic.dealloc_mw(key).map_err(|error| of_verb(&error))?;
            }
            object::retire::<Window, _>(mw);
            Ok(())
        })())
    })
}

/// Windows of type 1 are bound by a call of their own. There are none here.
pub(crate) extern "C" fn bind_window(_: *mut ibv_qp, _: *mut ibv_mw, _: *mut ibv_mw_bind) -> c_int {
    libc::EOPNOTSUPP
}
