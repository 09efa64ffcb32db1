//! `rdma_getaddrinfo`: names to addresses, by the C library's `getaddrinfo`.
#![expect(unsafe_code, reason = "a function of the C library's, and its list")]

use libc::{addrinfo, c_char, c_int, sockaddr, sockaddr_storage, socklen_t};

use super::socket_address;
use crate::abi::*;
use crate::errors::{guard, set};
use crate::object;

/// What an application leaves open.
fn no_hints() -> rdma_addrinfo {
    object::zeroed()
}

/// The hints of `getaddrinfo`.
fn to_system(hints: &rdma_addrinfo) -> addrinfo {
    let (passive, numeric) = (hints.ai_flags & RAI_PASSIVE, hints.ai_flags & RAI_NUMERICHOST);
    let flag = |is_set, flag| if is_set != 0 { flag } else { 0 };
    let is_datagram = match hints.ai_qp_type {
        0 => matches!(hints.ai_port_space, RDMA_PS_UDP | RDMA_PS_IPOIB),
        kind => kind == IBV_QPT_UD,
    };
    addrinfo {
        ai_flags: flag(passive, libc::AI_PASSIVE) | flag(numeric, libc::AI_NUMERICHOST),
        ai_family: hints.ai_family,
        ai_socktype: if is_datagram { libc::SOCK_DGRAM } else { libc::SOCK_STREAM },
        ai_protocol: 0,
        ai_addrlen: 0,
        ai_addr: std::ptr::null_mut(),
        ai_canonname: std::ptr::null_mut(),
        ai_next: std::ptr::null_mut(),
    }
}

/// Asks the C library; the first address that it has, or its error.
fn look_up(
    node: *const c_char,
    service: *const c_char,
    hints: &rdma_addrinfo,
) -> Result<(sockaddr_storage, socklen_t), c_int> {
    let mut found: *mut addrinfo = std::ptr::null_mut();
    let wanted = to_system(hints);
    // SAFETY: the strings are the application's, which vouches for them; the list is freed below.
    let error = unsafe { libc::getaddrinfo(node, service, &raw const wanted, &raw mut found) };
    if error != 0 {
        return Err(error);
    }
    // SAFETY: without an error there is at least one entry.
    let first = unsafe { (*found).ai_addr };
    let address = socket_address::parse(first);
    // SAFETY: it came from `getaddrinfo`, and nothing of it is kept.
    unsafe { libc::freeaddrinfo(found) };
    let address = address.map_err(|_| libc::EAI_FAMILY)?;
    Ok((socket_address::to_c(address), socket_address::length(address) as socklen_t))
}

/// A copy of an address in room that `rdma_freeaddrinfo` frees.
fn copied(address: *const sockaddr, length: socklen_t) -> Result<*mut sockaddr, c_int> {
    let bytes = object::array(address.cast::<u8>(), length as usize).map_err(|_| libc::EAI_SYSTEM)?;
    let copy = object::to_c_array(bytes);
    if copy.is_null() { Err(libc::EAI_MEMORY) } else { Ok(copy.cast()) }
}

/// Fills what is asked for; the error is one of `getaddrinfo`.
fn fill(
    node: *const c_char,
    service: *const c_char,
    hints: &rdma_addrinfo,
    out: &mut rdma_addrinfo,
) -> Result<(), c_int> {
    let is_passive = hints.ai_flags & RAI_PASSIVE != 0;
    out.ai_flags = hints.ai_flags;
    (out.ai_qp_type, out.ai_port_space) = match (hints.ai_qp_type, hints.ai_port_space) {
        (0, space @ (RDMA_PS_UDP | RDMA_PS_IPOIB)) => (IBV_QPT_UD, space),
        (0, 0) => (IBV_QPT_RC, RDMA_PS_TCP),
        (0, space) => (IBV_QPT_RC, space),
        (IBV_QPT_UD, 0) => (IBV_QPT_UD, RDMA_PS_UDP),
        (kind, 0) => (kind, RDMA_PS_TCP),
        (kind, space) => (kind, space),
    };
    if node.is_null() && service.is_null() {
        out.ai_family = hints.ai_family;
        if hints.ai_dst_len > 0 {
            (out.ai_dst_addr, out.ai_dst_len) =
                (copied(hints.ai_dst_addr, hints.ai_dst_len)?, hints.ai_dst_len);
        }
    } else {
        let (address, length) = look_up(node, service, hints)?;
        out.ai_family = address.ss_family.into();
        let copy = copied((&raw const address).cast(), length)?;
        if is_passive {
            (out.ai_src_addr, out.ai_src_len) = (copy, length);
        } else {
            (out.ai_dst_addr, out.ai_dst_len) = (copy, length);
        }
    }
    if out.ai_src_addr.is_null() && hints.ai_src_len > 0 {
        (out.ai_src_addr, out.ai_src_len) = (copied(hints.ai_src_addr, hints.ai_src_len)?, hints.ai_src_len);
    }
    Ok(())
}

/// 0, a number of `getaddrinfo`, or -1 and `errno`.
pub(crate) extern "C" fn get(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    out: *mut *mut rdma_addrinfo,
) -> c_int {
    guard(-1, || {
        let Ok(out) = object::write(out) else {
            set(libc::EINVAL);
            return -1;
        };
        if node.is_null() && service.is_null() && hints.is_null() {
            set(libc::EINVAL);
            return -1;
        }
        let none = no_hints();
        let hints = object::maybe_read(hints).unwrap_or(&none);
        let mut info = no_hints();
        let outcome = fill(node, service, hints, &mut info);
        let made: *mut rdma_addrinfo = object::to_c_array(&[info]);
        match outcome {
            Ok(()) if made.is_null() => libc::EAI_MEMORY,
            Ok(()) => {
                *out = made;
                0
            }
            Err(error) => {
                free(made);
                error
            }
        }
    })
}

pub(crate) extern "C" fn free(info: *mut rdma_addrinfo) {
    let mut next = info;
    while let Ok(info) = object::load(next) {
        for part in [info.ai_src_addr, info.ai_dst_addr] {
            object::free_c_array(part);
        }
        object::free_c_array(next);
        next = info.ai_next;
    }
}
