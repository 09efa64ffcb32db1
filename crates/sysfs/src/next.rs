//! The C library's function behind one that this preload stands in front of.

use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::c_void;

/// Finds the next function of a name, and keeps it. Ends the process where there is none: the program called a function that
/// its own C library does not have.
pub(crate) fn find(name: &CStr, kept: &AtomicPtr<c_void>) -> *mut c_void {
    let known = kept.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    // SAFETY: a C string; the search changes nothing.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if found.is_null() {
        // SAFETY: ends the process, with no return.
        unsafe { libc::abort() };
    }
    kept.store(found, Ordering::Relaxed);
    found
}

/// `forward!(open: fn(*const c_char, c_int, mode_t) -> c_int)` is the C library's `open`.
macro_rules! forward {
    ($name:ident: fn($($kind:ty),*) -> $result:ty) => {{
        static NEXT: std::sync::atomic::AtomicPtr<libc::c_void> =
            std::sync::atomic::AtomicPtr::new(std::ptr::null_mut());
        const NAME: &std::ffi::CStr =
            match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a name ends at its end"),
            };
        std::mem::transmute::<*mut libc::c_void, unsafe extern "C" fn($($kind),*) -> $result>(
            $crate::next::find(NAME, &NEXT),
        )
    }};
}

pub(crate) use forward;
