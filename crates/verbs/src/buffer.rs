//! Buffers that the library allocates for an application, and registration by a structure of attributes.

use libc::{c_int, c_void};

use crate::abi::*;
use crate::errors::null;
use crate::memory::{self, Domain};
use crate::object;

const PAGE: usize = 4096;

/// A buffer of whole pages.
#[repr(C)]
pub(crate) struct Buffer {
    pub(crate) c: ibv_buf,
    /// Room for the pages wherever they begin in it.
    memory: Vec<u8>,
    length: usize,
}

impl Buffer {
    fn address(&self) -> usize {
        (self.memory.as_ptr() as usize).next_multiple_of(PAGE)
    }

    fn contains(&self, address: usize, length: usize) -> bool {
        let offset = address.checked_sub(self.address());
        offset.and_then(|offset| offset.checked_add(length)).is_some_and(|end| end <= self.length)
    }
}

pub(crate) extern "C" fn allocate(pd: *mut ibv_pd, size: usize, handle: *mut *mut ibv_buf) -> *mut c_void {
    crate::errors::guard(std::ptr::null_mut(), || {
        let made = (|| {
            let domain = object::of::<Domain, _>(pd)?;
            let handle = object::write(handle)?;
            if size == 0 {
                return Err(libc::EINVAL);
            }
            let room = size.checked_add(PAGE).ok_or(libc::ENOMEM)?;
            let mut memory = Vec::new();
            memory.try_reserve_exact(room).map_err(|_| libc::ENOMEM)?;
            memory.resize(room, 0);
            let buffer = Box::new(Buffer { c: ibv_buf { context: domain.c.context }, memory, length: size });
            let address = buffer.address() as *mut c_void;
            *handle = object::publish(buffer);
            Ok(address)
        })();
        made.unwrap_or_else(null)
    })
}

pub(crate) extern "C" fn free(handle: *mut ibv_buf) {
    if !handle.is_null() {
        object::retire::<Buffer, _>(handle);
    }
}

pub(crate) extern "C" fn register(
    pd: *mut ibv_pd,
    handle: *mut ibv_buf,
    address: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    match object::of::<Buffer, _>(handle) {
        Ok(buffer) if buffer.contains(address as usize, length) => {
            memory::register_region(pd, address, length, access)
        }
        _ => null(libc::EINVAL),
    }
}

/// `ibv_reg_mr_ex`: memory of this process, by its address. Memory of devices and hints of where to put data in caches are none
/// of this NIC's.
pub(crate) extern "C" fn register_extended(pd: *mut ibv_pd, attr: *mut ibv_mr_init_attr) -> *mut ibv_mr {
    let Ok(attr) = object::read(attr) else { return null(libc::EINVAL) };
    if attr.comp_mask & !(IBV_REG_MR_MASK_IOVA | IBV_REG_MR_MASK_ADDR | IBV_REG_MR_MASK_BUF) != 0 {
        return null(libc::EOPNOTSUPP);
    }
    let has = |mask| attr.comp_mask & mask != 0;
    if !has(IBV_REG_MR_MASK_ADDR) {
        return null(libc::EINVAL);
    }
    if has(IBV_REG_MR_MASK_BUF) {
        let buffer = object::of::<Buffer, _>(attr.buf);
        if !buffer.is_ok_and(|buffer| buffer.contains(attr.addr as usize, attr.length)) {
            return null(libc::EINVAL);
        }
    }
    let name = if has(IBV_REG_MR_MASK_IOVA) { attr.iova } else { attr.addr as u64 };
    memory::register_region_iova(pd, attr.addr, attr.length, name, attr.access)
}
