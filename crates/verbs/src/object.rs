//! Objects of the application: a C structure, which the application holds a pointer to, and what this library keeps behind it.
#![expect(unsafe_code, reason = "the application hands pointers back that this library gave it")]

use libc::c_int;

use crate::{abi, address, buffer, cma, completion, context, memory, queue_pair, receive};

/// A structure that begins with the C structure `C`.
///
/// # Safety
/// The type is `repr(C)`, and its first field is a `C` or begins with one.
pub(crate) unsafe trait Object<C>: Sized {}

/// The object behind a pointer.
///
/// The reference may live as long as the caller needs it within a call: a program that destroys an object during another call on
/// it is wrong with every libibverbs.
pub(crate) fn of<'a, T: Object<C>, C>(pointer: *const C) -> Result<&'a T, c_int> {
    // SAFETY: not null, so it is one that `publish` gave out for a `T`; the application may name no others.
    unsafe { pointer.cast::<T>().as_ref() }.ok_or(libc::EINVAL)
}

/// The same, where null means that there is none.
pub(crate) fn maybe<'a, T: Object<C>, C>(pointer: *const C) -> Option<&'a T> {
    of(pointer).ok()
}

/// Puts an object where the application finds it.
pub(crate) fn publish<T: Object<C>, C>(object: Box<T>) -> *mut C {
    Box::into_raw(object).cast()
}

/// Takes an object back that the application destroys.
pub(crate) fn retire<T: Object<C>, C>(pointer: *mut C) {
    // SAFETY: `publish` gave it out, and the application may not name it again.
    drop(unsafe { Box::from_raw(pointer.cast::<T>()) });
}

/// What a pointer of the application points to.
pub(crate) fn read<'a, C>(pointer: *const C) -> Result<&'a C, c_int> {
    // SAFETY: not null, so the application vouches for it, as the manual pages ask.
    unsafe { pointer.as_ref() }.ok_or(libc::EINVAL)
}

/// The same, where null means that there is none.
pub(crate) fn maybe_read<'a, C>(pointer: *const C) -> Option<&'a C> {
    read(pointer).ok()
}

/// The same, to write there.
pub(crate) fn write<'a, C>(pointer: *mut C) -> Result<&'a mut C, c_int> {
    // SAFETY: not null, so the application vouches for it, as the manual pages ask.
    unsafe { pointer.as_mut() }.ok_or(libc::EINVAL)
}

/// A copy of what a pointer of the application points to, wherever that is aligned.
pub(crate) fn load<C: Copy>(pointer: *const C) -> Result<C, c_int> {
    if pointer.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: not null, so the application vouches for it, as the manual pages ask.
    Ok(unsafe { pointer.read_unaligned() })
}

/// Writes where the caller has room for it, wherever that is aligned.
pub(crate) fn store<C: Copy>(pointer: *mut C, value: C) {
    // SAFETY: the caller names room of its own, or of an application that vouches for it.
    unsafe { pointer.write_unaligned(value) };
}

/// An array of the application's.
pub(crate) fn array<'a, C>(pointer: *const C, length: usize) -> Result<&'a [C], c_int> {
    match length {
        0 => Ok(&[]),
        _ if pointer.is_null() => Err(libc::EINVAL),
        // SAFETY: the application vouches for so many of them.
        _ => Ok(unsafe { std::slice::from_raw_parts(pointer, length) }),
    }
}

/// The same, to write there.
pub(crate) fn array_mut<'a, C>(pointer: *mut C, length: usize) -> Result<&'a mut [C], c_int> {
    match length {
        0 => Ok(&mut []),
        _ if pointer.is_null() => Err(libc::EINVAL),
        // SAFETY: the application vouches for so many of them, and uses them in one call at a time.
        _ => Ok(unsafe { std::slice::from_raw_parts_mut(pointer, length) }),
    }
}

/// A descriptor of this library's or of the application's.
pub(crate) fn descriptor(number: &c_int) -> std::os::fd::BorrowedFd<'_> {
    // SAFETY: it is open, or the system refuses it. -1, which stands for none, is made one that is never open.
    unsafe { std::os::fd::BorrowedFd::borrow_raw(if *number == -1 { c_int::MAX } else { *number }) }
}

/// `poll` of the C library; an error is no event.
pub(crate) fn poll(entries: &mut [libc::pollfd], limit: std::time::Duration) {
    let limit = limit.as_micros().div_ceil(1000) as c_int;
    // SAFETY: the slice is what the system writes to.
    unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, limit) };
}

/// The parameters of a connection in an event.
pub(crate) fn conn_param(event: &abi::rdma_cm_event) -> abi::rdma_conn_param {
    // SAFETY: both parts of the union are numbers and pointers, and this library fills all of it.
    unsafe { event.param.conn }
}

/// A piece of the application's memory that inline data is in.
pub(crate) fn bytes<'a>(address: u64, length: usize) -> Result<&'a [u8], c_int> {
    array(address as *const u8, length)
}

/// Writes an array of the application's.
pub(crate) fn fill<C: Copy>(pointer: *mut C, values: &[C]) -> Result<(), c_int> {
    match values.len() {
        0 => Ok(()),
        _ if pointer.is_null() => Err(libc::EINVAL),
        count => {
            // SAFETY: the application vouches for room for so many of them.
            unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), pointer, count) };
            Ok(())
        }
    }
}

/// An array that the application gives back to `free_c_array`.
pub(crate) fn to_c_array<C: Copy>(values: &[C]) -> *mut C {
    // SAFETY: room for so many is asked for, and filled only where it was given.
    unsafe {
        let pointer = libc::calloc(values.len().max(1), size_of::<C>()).cast::<C>();
        if !pointer.is_null() {
            std::ptr::copy_nonoverlapping(values.as_ptr(), pointer, values.len());
        }
        pointer
    }
}

pub(crate) fn free_c_array<C>(pointer: *mut C) {
    // SAFETY: null, or one that `to_c_array` gave out and the application may not name again.
    unsafe { libc::free(pointer.cast()) };
}

/// A structure of zeros, of which the caller fills what it has.
pub(crate) fn zeroed<C: Plain>() -> C {
    // SAFETY: zeros are a value of every `Plain` type.
    unsafe { std::mem::zeroed() }
}

/// Writes the first `size` bytes of a structure: what a program knows that was compiled against an older header. A program
/// of a newer one gets zeros behind it.
pub(crate) fn copy_out<C: Plain>(value: &C, pointer: *mut C, size: usize) -> Result<(), c_int> {
    if pointer.is_null() {
        return Err(libc::EINVAL);
    }
    let known = size.min(size_of::<C>());
    // SAFETY: the application vouches for `size` bytes.
    unsafe {
        std::ptr::copy_nonoverlapping(std::ptr::from_ref(value).cast::<u8>(), pointer.cast::<u8>(), known);
        std::ptr::write_bytes(pointer.cast::<u8>().add(known), 0, size - known);
    }
    Ok(())
}

/// A C structure of numbers, pointers and functions that may be null.
///
/// # Safety
/// All zeros are a value of it.
pub(crate) unsafe trait Plain {}

macro_rules! plain {
    ($($type:ident)*) => {
        // SAFETY: `repr(C)`, and made of numbers, pointers, arrays and optional functions.
        $(unsafe impl Plain for abi::$type {})*
    };
}

plain!(
    ibv_device_attr ibv_device_attr_ex ibv_port_attr ibv_gid_entry verbs_context ibv_cq_ex ibv_qp_ex ibv_qp_attr ibv_srq ibv_ah_attr
    ibv_qp_init_attr ibv_qp_init_attr_ex ibv_send_wr ibv_wc ibv_sa_path_rec rdma_cm_id rdma_cm_event rdma_addrinfo
);

macro_rules! plain_addresses {
    ($($type:ident)*) => {
        // SAFETY: `repr(C)`, and made of numbers and arrays.
        $(unsafe impl Plain for libc::$type {})*
    };
}

plain_addresses!(sockaddr_storage sockaddr_in sockaddr_in6);

macro_rules! objects {
    ($($type:path: $($c:ident)+;)*) => {
        $(
            const _: () = assert!(std::mem::offset_of!($type, c) == 0);
            // SAFETY: `repr(C)`, and its first field is the C structure, or a larger one that begins with it.
            $(unsafe impl Object<abi::$c> for $type {})+
        )*
    };
}

objects! {
    context::ListedDevice: ibv_device;
    context::Context: verbs_context;
    memory::Domain: ibv_pd;
    memory::ThreadDomain: ibv_td;
    memory::Region: ibv_mr;
    memory::Window: ibv_mw;
    buffer::Buffer: ibv_buf;
    completion::CompletionChannel: ibv_comp_channel;
    completion::Queue: ibv_cq ibv_cq_ex;
    receive::SharedQueue: ibv_srq;
    queue_pair::QueuePair: ibv_qp ibv_qp_ex;
    address::Handle: ibv_ah;
    cma::EventChannel: rdma_event_channel;
    cma::CmId: rdma_cm_id;
    cma::CmEvent: rdma_cm_event;
}

/// Puts another object in an object's place. The application's pointer stays.
pub(crate) fn replace<T: Object<C>, C>(pointer: *mut C, with: T) {
    // SAFETY: `publish` gave it out for a `T`, and the application uses it in one call at a time.
    unsafe { *pointer.cast::<T>() = with };
}

/// A string of the application's; empty where there is none.
pub(crate) fn string(pointer: *const libc::c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
    // SAFETY: the application vouches for a zero at its end.
    unsafe { std::ffi::CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}
