//! A preload for RDMA programs: what they read below `/sys/class/infiniband` and its neighbours by absolute path comes from a
//! directory that `railnet rdma exec` has filled. `RAILNET_RDMA_ROOT` names it, and it stands for `/`. Every other path goes to
//! the C library unchanged, and so does everything where the variable is not set.
//!
//! Each function here has the name of one of the C library's and calls the next of that name with the path that `redirected`
//! gives it.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(unsafe_code, reason = "functions of the C library, with its pointers")]
#![allow(
    clippy::missing_safety_doc,
    missing_docs,
    reason = "the manual pages of the C library describe them"
)]

mod next;

use std::ffi::{CStr, CString};
use std::sync::OnceLock;

use libc::{DIR, FILE, c_char, c_int, c_uint, c_void, mode_t, size_t, ssize_t};

use next::forward;

/// Directories that an RDMA device of the kernel would appear in.
const REDIRECTED: [&[u8]; 5] = [
    b"/dev/infiniband",
    b"/sys/class/infiniband",
    b"/sys/class/infiniband_verbs",
    b"/sys/class/misc/rdma_cm",
    b"/sys/devices/virtual/infiniband",
];

/// The directory that stands for `/`.
fn root() -> Option<&'static [u8]> {
    static ROOT: OnceLock<Option<Vec<u8>>> = OnceLock::new();
    let read = || {
        // SAFETY: the name is a C string, and the answer is one that is copied at once.
        let value = unsafe { libc::getenv(c"RAILNET_RDMA_ROOT".as_ptr()) };
        if value.is_null() {
            return None;
        }
        // SAFETY: not null, so a C string.
        let value = unsafe { CStr::from_ptr(value) }.to_bytes();
        value.starts_with(b"/").then(|| value.to_vec())
    };
    ROOT.get_or_init(read).as_deref()
}

/// Where a path leads instead; `None` where it stays.
fn redirected(path: *const c_char) -> Option<CString> {
    if path.is_null() {
        return None;
    }
    // SAFETY: not null, so a C string that lives as long as the call.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    let is_below = |directory: &[u8]| {
        path.strip_prefix(directory).is_some_and(|rest| matches!(rest.first(), None | Some(b'/')))
    };
    REDIRECTED.iter().find(|directory| is_below(directory))?;
    CString::new([root()?, path].concat()).ok()
}

/// The path that the next function is given.
fn target(kept: Option<&CString>, path: *const c_char) -> *const c_char {
    kept.map_or(path, |kept| kept.as_ptr())
}

/// Functions whose only path is the first argument.
macro_rules! redirect_first {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {
        $(#[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(path: *const c_char $(, $argument: $kind)*) -> $result {
            let kept = redirected(path);
            // SAFETY: the caller's arguments, for the function that the caller meant.
            unsafe { forward!($name: fn(*const c_char $(, $kind)*) -> $result)(target(kept.as_ref(), path) $(, $argument)*) }
        })*
    };
}

/// Functions whose path comes after a directory or a version.
macro_rules! redirect_second {
    ($($name:ident($first:ident: c_int, path $(, $argument:ident: $kind:ty)*) -> $result:ty;)*) => {
        $(#[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($first: c_int, path: *const c_char $(, $argument: $kind)*) -> $result {
            let kept = redirected(path);
            // SAFETY: the caller's arguments, for the function that the caller meant.
            unsafe {
                forward!($name: fn(c_int, *const c_char $(, $kind)*) -> $result)($first, target(kept.as_ref(), path) $(, $argument)*)
            }
        })*
    };
}

// A mode that the caller left out is whatever the register holds, as in the C library itself.
redirect_first! {
    open(flags: c_int, mode: mode_t) -> c_int;
    open64(flags: c_int, mode: mode_t) -> c_int;
    __open_2(flags: c_int) -> c_int;
    __open64_2(flags: c_int) -> c_int;
    fopen(mode: *const c_char) -> *mut FILE;
    fopen64(mode: *const c_char) -> *mut FILE;
    access(mode: c_int) -> c_int;
    stat(status: *mut c_void) -> c_int;
    stat64(status: *mut c_void) -> c_int;
    lstat(status: *mut c_void) -> c_int;
    lstat64(status: *mut c_void) -> c_int;
    readlink(text: *mut c_char, room: size_t) -> ssize_t;
    __readlink_chk(text: *mut c_char, room: size_t, size: size_t) -> ssize_t;
    getxattr(name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t;
    lgetxattr(name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t;
    opendir() -> *mut DIR;
    scandir(names: *mut c_void, filter: *const c_void, order: *const c_void) -> c_int;
    scandir64(names: *mut c_void, filter: *const c_void, order: *const c_void) -> c_int;
}

redirect_second! {
    openat(directory: c_int, path, flags: c_int, mode: mode_t) -> c_int;
    openat64(directory: c_int, path, flags: c_int, mode: mode_t) -> c_int;
    __openat_2(directory: c_int, path, flags: c_int) -> c_int;
    __openat64_2(directory: c_int, path, flags: c_int) -> c_int;
    faccessat(directory: c_int, path, mode: c_int, flags: c_int) -> c_int;
    fstatat(directory: c_int, path, status: *mut c_void, flags: c_int) -> c_int;
    fstatat64(directory: c_int, path, status: *mut c_void, flags: c_int) -> c_int;
    statx(directory: c_int, path, flags: c_int, mask: c_uint, status: *mut c_void) -> c_int;
    readlinkat(directory: c_int, path, text: *mut c_char, room: size_t) -> ssize_t;
    __xstat(version: c_int, path, status: *mut c_void) -> c_int;
    __xstat64(version: c_int, path, status: *mut c_void) -> c_int;
    __lxstat(version: c_int, path, status: *mut c_void) -> c_int;
    __lxstat64(version: c_int, path, status: *mut c_void) -> c_int;
}

/// A resolved path below the directory that stands for `/`, as the program asked for it.
fn restored(resolved: *mut c_char) -> *mut c_char {
    let (Some(root), false) = (root(), resolved.is_null()) else { return resolved };
    // SAFETY: not null, so a C string of the C library's or the caller's.
    let bytes = unsafe { CStr::from_ptr(resolved) }.to_bytes_with_nul();
    let Some(rest) = bytes.strip_prefix(root).filter(|rest| rest.first() == Some(&b'/')) else {
        return resolved;
    };
    // SAFETY: a part of the string moves to its beginning.
    unsafe { resolved.copy_from(resolved.add(root.len()), rest.len()) };
    resolved
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn realpath(path: *const c_char, resolved: *mut c_char) -> *mut c_char {
    let kept = redirected(path);
    // SAFETY: the caller's arguments, for the function that the caller meant.
    let found = unsafe {
        forward!(realpath: fn(*const c_char, *mut c_char) -> *mut c_char)(
            target(kept.as_ref(), path),
            resolved,
        )
    };
    if kept.is_some() { restored(found) } else { found }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __realpath_chk(
    path: *const c_char,
    resolved: *mut c_char,
    size: size_t,
) -> *mut c_char {
    let kept = redirected(path);
    // SAFETY: the caller's arguments, for the function that the caller meant.
    let found = unsafe {
        forward!(__realpath_chk: fn(*const c_char, *mut c_char, size_t) -> *mut c_char)(
            target(kept.as_ref(), path),
            resolved,
            size,
        )
    };
    if kept.is_some() { restored(found) } else { found }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn canonicalize_file_name(path: *const c_char) -> *mut c_char {
    let kept = redirected(path);
    // SAFETY: the caller's argument, for the function that the caller meant.
    let found = unsafe {
        forward!(canonicalize_file_name: fn(*const c_char) -> *mut c_char)(target(kept.as_ref(), path))
    };
    if kept.is_some() { restored(found) } else { found }
}
