//! The library as a program in C has it: opened by its path, its functions found by name, and the inline functions of
//! `infiniband/verbs.h` that go through its tables.
#![expect(
    unsafe_code,
    reason = "symbols of a library that is opened at run time, and memory that its NIC writes"
)]

use std::ffi::CString;
use std::mem::offset_of;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use libc::{c_char, c_int, c_uint, c_void};

use crate::abi::*;
use crate::object;

/// Functions of the library that are symbols, under the versions that programs are linked with now; each call is counted.
macro_rules! functions {
    ($($name:ident($($argument:ident: $kind:ty),*) $(-> $result:ty)?;)*) => {
        struct Functions {
            $($name: extern "C" fn($($kind),*) $(-> $result)?,)*
        }

        impl Functions {
            fn find(library: *mut c_void) -> Result<Self, String> {
                Ok(Self {
                    $($name: {
                        let symbol = symbol(library, stringify!($name))?;
                        // SAFETY: the symbol is the function that the manual page has under this name.
                        unsafe {
                            std::mem::transmute::<*mut c_void, extern "C" fn($($kind),*) $(-> $result)?>(symbol)
                        }
                    },)*
                })
            }
        }

        impl Calls {
            $(pub(super) fn $name(&self, $($argument: $kind),*) $(-> $result)? {
                self.of_table(Some(self.functions.$name))($($argument),*)
            })*
        }
    };
}

functions! {
    ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device;
    ibv_free_device_list(list: *mut *mut ibv_device);
    ibv_get_device_name(device: *mut ibv_device) -> *const c_char;
    ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
    ibv_close_device(context: *mut ibv_context) -> c_int;
    ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int;
    ibv_query_port(context: *mut ibv_context, port: u8, attr: *mut ibv_port_attr) -> c_int;
    ibv_query_gid(context: *mut ibv_context, port: u8, index: c_int, gid: *mut ibv_gid) -> c_int;
    ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int;
    ibv_ack_async_event(event: *mut ibv_async_event);
    ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
    ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
    ibv_reg_mr(pd: *mut ibv_pd, address: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr;
    ibv_reg_mr_iova2(pd: *mut ibv_pd, address: *mut c_void, length: usize, iova: u64, access: c_uint) -> *mut ibv_mr;
    ibv_rereg_mr(mr: *mut ibv_mr, flags: c_int, pd: *mut ibv_pd, address: *mut c_void, length: usize, access: c_int) -> c_int;
    ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
    ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
    ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
    ibv_get_cq_event(channel: *mut ibv_comp_channel, cq: *mut *mut ibv_cq, context: *mut *mut c_void) -> c_int;
    ibv_ack_cq_events(cq: *mut ibv_cq, events: c_uint);
    ibv_create_cq(context: *mut ibv_context, depth: c_int, cq_context: *mut c_void, channel: *mut ibv_comp_channel, vector: c_int) -> *mut ibv_cq;
    ibv_resize_cq(cq: *mut ibv_cq, depth: c_int) -> c_int;
    ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
    ibv_create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq;
    ibv_destroy_srq(srq: *mut ibv_srq) -> c_int;
    ibv_create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp;
    ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex;
    ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int;
    ibv_query_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int, init: *mut ibv_qp_init_attr) -> c_int;
    ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
    ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah;
    ibv_destroy_ah(ah: *mut ibv_ah) -> c_int;
}

fn symbol(library: *mut c_void, name: &str) -> Result<*mut c_void, String> {
    let text = CString::new(name).map_err(|error| error.to_string())?;
    // SAFETY: the library is open, and the name ends with a zero.
    let found = unsafe { libc::dlsym(library, text.as_ptr()) };
    if found.is_null() { Err(format!("the library has no {name}")) } else { Ok(found) }
}

/// The library, and how often it was called.
pub(super) struct Calls {
    functions: Functions,
    count: AtomicU64,
}

impl Calls {
    /// Opens a library.
    pub(super) fn open(path: &Path) -> Result<Self, String> {
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
        // SAFETY: the name ends with a zero; what the library does when it is loaded is its own.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            // SAFETY: after a failure this is a text.
            let why = object::string(unsafe { libc::dlerror() });
            return Err(format!("cannot open {}: {why}", path.display()));
        }
        Ok(Self { functions: Functions::find(library)?, count: AtomicU64::new(0) })
    }

    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// A function of a table, for one call.
    fn of_table<F: Copy>(&self, function: Option<F>) -> F {
        self.count.fetch_add(1, Ordering::Relaxed);
        function.expect("the tables are filled")
    }

    /// `ibv_poll_cq`.
    pub(super) fn poll_cq(&self, cq: *mut ibv_cq, into: &mut [ibv_wc]) -> c_int {
        let context = object::read(cq).expect("a queue").context;
        self.of_table(ops(context).poll_cq)(cq, into.len() as c_int, into.as_mut_ptr())
    }

    /// `ibv_req_notify_cq`.
    pub(super) fn request_notification(&self, cq: *mut ibv_cq, solicited_only: bool) -> c_int {
        let context = object::read(cq).expect("a queue").context;
        self.of_table(ops(context).req_notify_cq)(cq, solicited_only.into())
    }

    /// `ibv_post_send`.
    pub(super) fn post_send(&self, qp: *mut ibv_qp, first: *mut ibv_send_wr) -> (c_int, *mut ibv_send_wr) {
        let context = object::read(qp).expect("a queue pair").context;
        let mut bad = std::ptr::null_mut();
        (self.of_table(ops(context).post_send)(qp, first, &raw mut bad), bad)
    }

    /// `ibv_post_recv`, or `ibv_post_srq_recv` where there is a shared queue.
    pub(super) fn post_receive(&self, qp: *mut ibv_qp, srq: *mut ibv_srq, wr: &mut ibv_recv_wr) -> c_int {
        let ops = ops(object::read(qp).expect("a queue pair").context);
        let mut bad = std::ptr::null_mut();
        match srq.is_null() {
            true => self.of_table(ops.post_recv)(qp, wr, &raw mut bad),
            false => self.of_table(ops.post_srq_recv)(srq, wr, &raw mut bad),
        }
    }

    /// `ibv_create_cq_ex`.
    pub(super) fn create_extended_cq(
        &self,
        context: *mut ibv_context,
        attr: &mut ibv_cq_init_attr_ex,
    ) -> *mut ibv_cq_ex {
        self.of_table(verbs(context).create_cq_ex)(context, attr)
    }

    /// `ibv_create_qp_ex`.
    pub(super) fn create_extended_qp(
        &self,
        context: *mut ibv_context,
        attr: &mut ibv_qp_init_attr_ex,
    ) -> *mut ibv_qp {
        self.of_table(verbs(context).create_qp_ex)(context, attr)
    }

    /// `ibv_start_poll`, `ibv_next_poll` and what they read, until nothing is there.
    pub(super) fn poll_extended(&self, cq: *mut ibv_cq_ex, mut take: impl FnMut(ibv_wc)) -> c_int {
        let mut attr = 0_u64;
        let table = object::read(cq).expect("a queue");
        let mut outcome = self.of_table(table.start_poll)(cq, (&raw mut attr).cast());
        if outcome != 0 {
            return outcome;
        }
        while outcome == 0 {
            let table = object::read(cq).expect("a queue");
            take(ibv_wc {
                wr_id: table.wr_id,
                status: table.status,
                opcode: self.of_table(table.read_opcode)(cq),
                vendor_err: self.of_table(table.read_vendor_err)(cq),
                byte_len: self.of_table(table.read_byte_len)(cq),
                imm_data: self.of_table(table.read_imm_data)(cq),
                qp_num: self.of_table(table.read_qp_num)(cq),
                src_qp: self.of_table(table.read_src_qp)(cq),
                wc_flags: self.of_table(table.read_wc_flags)(cq),
                pkey_index: 0,
                slid: 0,
                sl: 0,
                dlid_path_bits: 0,
            });
            outcome = self.of_table(table.next_poll)(cq);
        }
        self.of_table(table.end_poll)(cq);
        outcome
    }

    /// The table of `ibv_wr_*`, for one call.
    pub(super) fn writer(&self, qp: *mut ibv_qp_ex) -> &mut ibv_qp_ex {
        self.count.fetch_add(1, Ordering::Relaxed);
        object::write(qp).expect("a queue pair")
    }
}

fn verbs<'a>(context: *mut ibv_context) -> &'a verbs_context {
    let all = context.wrapping_byte_sub(offset_of!(verbs_context, context)).cast::<verbs_context>();
    object::read(all).expect("a context lies in a larger one")
}

fn ops<'a>(context: *mut ibv_context) -> &'a ibv_context_ops {
    &object::read(context).expect("an open device").ops
}

/// A pointer that threads share, as they do in C: the library takes calls of several threads at once.
pub(super) struct Shared<T>(pub(super) *mut T);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Shared<T> {}

// SAFETY: verbs may be called from any thread, and several at once.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}

/// Memory for a region. The NIC writes to it at any time, so it is read and written by copies only.
pub(super) struct Pages {
    address: *mut u8,
    bytes: usize,
}

// SAFETY: it is an address range, and what threads do there is the program's.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    pub(super) fn map(bytes: usize) -> Result<Self, String> {
        let (protection, kind) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh mapping.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, kind, -1, 0) };
        match address == libc::MAP_FAILED {
            true => Err(format!("no memory: {}", std::io::Error::last_os_error())),
            false => Ok(Self { address: address.cast(), bytes }),
        }
    }

    pub(super) fn address(&self) -> u64 {
        self.address as u64
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    fn at(&self, offset: u32, length: usize) -> *mut u8 {
        assert!(offset as usize + length <= self.bytes, "{offset}+{length} of {}", self.bytes);
        self.address.wrapping_add(offset as usize)
    }

    pub(super) fn store(&self, offset: u32, data: &[u8]) {
        // SAFETY: it lies in the mapping.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.at(offset, data.len()), data.len()) };
    }

    pub(super) fn load(&self, offset: u32, length: u32) -> Vec<u8> {
        let mut out = vec![0; length as usize];
        // SAFETY: it lies in the mapping.
        unsafe { std::ptr::copy_nonoverlapping(self.at(offset, out.len()), out.as_mut_ptr(), out.len()) };
        out
    }

    pub(super) fn word(&self, offset: u32) -> u64 {
        u64::from_ne_bytes(self.load(offset, 8).try_into().expect("eight bytes"))
    }

    /// Takes the mapping away while it is registered.
    pub(super) fn unmap(&self) {
        // SAFETY: nothing of this program reads it afterwards.
        unsafe { libc::munmap(self.address.cast(), self.bytes) };
    }
}

/// What a failed call left in `errno`, in words.
pub(super) fn why() -> String {
    std::io::Error::last_os_error().to_string()
}
