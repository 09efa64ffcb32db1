//! Memory that an application registers and may unmap at any time, read and written without trusting it.
//!
//! A hardware NIC pins the pages of a region. A NIC in user space cannot: when the application unmaps a registered range, a
//! plain copy would end the process with SIGSEGV. So copies run in a few instructions at known addresses, and the handler of
//! SIGSEGV and SIGBUS resumes a fault at one of these at an exit that reports it, as the kernel does for its copies from user
//! space. All other faults go to the previous handler.
#![expect(unsafe_code, reason = "copies between addresses that the application names, and a signal handler")]

use std::arch::global_asm;
use std::cell::Cell;
use std::io;
use std::mem::MaybeUninit;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{c_int, c_void};
use railnet_core::{GhostRun, GhostTag};
use railnet_nic::memory::{Backing, GhostRuns, Memory, Segments, SpaceId};

// rdi: target, rsi: source, rdx: bytes. Returns 0, or 1 after a fault. The last bytes of a copy are stored after all others (a
// string store is ordered before the stores that follow it), and a copy of 1, 2, 4 or 8 bytes is one store: an application may
// poll the last word of a WRITE.
global_asm!(
    ".pushsection .text.railnet_guarded, \"ax\", @progbits",
    ".p2align 4",
    "railnet_guarded_begin:",
    ".globl railnet_guarded_copy",
    ".hidden railnet_guarded_copy",
    "railnet_guarded_copy:",
    "cmp rdx, 16",
    "jb 2f",
    "mov r8, qword ptr [rsi + rdx - 8]",
    "lea rcx, [rdx - 8]",
    "rep movsb",
    "mov qword ptr [rdi], r8",
    "xor eax, eax",
    "ret",
    "2: cmp rdx, 8",
    "jb 3f",
    "mov r8, qword ptr [rsi]",
    "mov r9, qword ptr [rsi + rdx - 8]",
    "mov qword ptr [rdi], r8",
    "mov qword ptr [rdi + rdx - 8], r9",
    "xor eax, eax",
    "ret",
    "3: cmp rdx, 4",
    "jb 4f",
    "mov r8d, dword ptr [rsi]",
    "mov r9d, dword ptr [rsi + rdx - 4]",
    "mov dword ptr [rdi], r8d",
    "mov dword ptr [rdi + rdx - 4], r9d",
    "xor eax, eax",
    "ret",
    "4: test rdx, rdx",
    "jz 5f",
    "mov al, byte ptr [rsi]",
    "mov byte ptr [rdi], al",
    "inc rsi",
    "inc rdi",
    "dec rdx",
    "jmp 4b",
    "5: xor eax, eax",
    "ret",
    // rdi: an aligned word, rsi: the expected value, replaced by the value found, rdx: the new value. Returns 0 if it was
    // exchanged, 2 if another value was found, 1 after a fault.
    ".globl railnet_guarded_exchange",
    ".hidden railnet_guarded_exchange",
    "railnet_guarded_exchange:",
    "mov rax, qword ptr [rsi]",
    "lock cmpxchg qword ptr [rdi], rdx",
    "mov qword ptr [rsi], rax",
    "jne 6f",
    "xor eax, eax",
    "ret",
    "6: mov eax, 2",
    "ret",
    // rdi: a byte that is written unchanged. Returns 0, or 1 after a fault.
    ".globl railnet_guarded_touch",
    ".hidden railnet_guarded_touch",
    "railnet_guarded_touch:",
    "lock or byte ptr [rdi], 0",
    "xor eax, eax",
    "ret",
    "railnet_guarded_end:",
    "railnet_guarded_fault:",
    "mov eax, 1",
    "ret",
    ".popsection",
);

unsafe extern "C" {
    static railnet_guarded_begin: u8;
    static railnet_guarded_end: u8;
    static railnet_guarded_fault: u8;
    fn railnet_guarded_copy(target: *mut u8, source: *const u8, bytes: usize) -> u32;
    fn railnet_guarded_exchange(word: *mut u64, expected: *mut u64, new: u64) -> u32;
    fn railnet_guarded_touch(byte: *mut u8) -> u32;
}

/// All memory of this process, at its own addresses or, for regions with other addresses for peers, with an offset. Accesses to
/// unmapped pages report a fault.
#[derive(Debug, Default)]
pub struct ApplicationMemory {
    /// The offset of the addresses of each space.
    offsets: Vec<Option<u64>>,
    faulted: Cell<bool>,
}

impl ApplicationMemory {
    /// Memory of this process. Installs the fault handlers, if they are not installed.
    pub fn new() -> io::Result<Self> {
        install_handlers()?;
        Ok(Self { offsets: vec![Some(0)], faulted: Cell::new(false) })
    }

    /// The space in which memory at `address` has the address `name`.
    pub fn space(&mut self, address: u64, name: u64) -> SpaceId {
        let offset = address.wrapping_sub(name);
        if offset == 0 {
            return SpaceId(0);
        }
        let free = self.offsets.iter().position(Option::is_none).unwrap_or_else(|| {
            self.offsets.push(None);
            self.offsets.len() - 1
        });
        self.offsets[free] = Some(offset);
        SpaceId(free as u32)
    }

    /// Frees a space. No region may be in it any more.
    pub fn remove(&mut self, space: SpaceId) {
        if space.0 != 0 {
            self.offsets[space.0 as usize] = None;
        }
    }

    /// Fills bytes from an address of a space on; `false` where pages are gone.
    pub fn copy_to(&self, space: SpaceId, address: u64, out: &mut [u8]) -> bool {
        // SAFETY: the target is borrowed for as many bytes, and a fault at the source is reported.
        unsafe { railnet_guarded_copy(out.as_mut_ptr(), self.at(space, address), out.len()) == 0 }
    }

    #[inline]
    fn at(&self, space: SpaceId, address: u64) -> *mut u8 {
        let offset = self.offsets.get(space.0 as usize).copied().flatten().unwrap_or_default();
        address.wrapping_add(offset) as *mut u8
    }
}

/// Whether every page of a range can be read, and written if asked. Pages are populated, as pinning would.
pub fn is_accessible(address: u64, length: u64, write: bool) -> io::Result<bool> {
    install_handlers()?;
    let page = rustix::param::page_size() as u64;
    let Some(end) = address.checked_add(length).and_then(|end| end.checked_add(page)) else {
        return Ok(false);
    };
    if length == 0 {
        return Ok(true);
    }
    let (first, end) = (address & !(page - 1), (end - 1) & !(page - 1));
    let advice = if write { MADV_POPULATE_WRITE } else { MADV_POPULATE_READ };
    // SAFETY: populating changes no contents; a range that is not mapped is an error of the call.
    if unsafe { libc::madvise(first as *mut c_void, (end - first) as usize, advice) } == 0 {
        return Ok(true);
    }
    // Kernels before 5.14, and mappings of devices.
    let touch = |page: u64| {
        let at = page.max(address) as *mut u8;
        let mut byte = 0_u8;
        // SAFETY: a fault at these addresses is reported, not raised.
        unsafe {
            railnet_guarded_copy(&raw mut byte, at, 1) == 0 && (!write || railnet_guarded_touch(at) == 0)
        }
    };
    Ok((first..end).step_by(page as usize).all(touch))
}

const MADV_POPULATE_READ: c_int = 22;
const MADV_POPULATE_WRITE: c_int = 23;

impl Memory for ApplicationMemory {
    fn backing(&self, space: SpaceId, _: u64, _: u64) -> Option<Backing> {
        self.offsets.get(space.0 as usize).copied().flatten().map(|_| Backing::Bytes)
    }

    #[inline]
    fn read(&self, space: SpaceId, address: u64, length: usize, out: &mut Vec<u8>) {
        out.reserve(length);
        let spare: &mut [MaybeUninit<u8>] = &mut out.spare_capacity_mut()[..length];
        // SAFETY: there is room for so many bytes; a fault at the source is reported.
        let fault =
            unsafe { railnet_guarded_copy(spare.as_mut_ptr().cast(), self.at(space, address), length) };
        if fault == 0 {
            // SAFETY: they were all written.
            unsafe { out.set_len(out.len() + length) };
        } else {
            self.faulted.set(true);
        }
    }

    #[inline]
    fn write(&mut self, space: SpaceId, address: u64, data: &[u8]) {
        // SAFETY: the application registered the range for writing; a fault there is reported.
        let fault = unsafe { railnet_guarded_copy(self.at(space, address), data.as_ptr(), data.len()) };
        if fault != 0 {
            self.faulted.set(true);
        }
    }

    fn read_ghost(&self, _: SpaceId, _: u64, length: u32, out: &mut GhostRuns) {
        out.push(GhostRun { tag: GhostTag::POISON, length });
    }

    fn write_ghost(&mut self, space: SpaceId, address: u64, run: GhostRun) {
        let mut pattern = Vec::with_capacity(run.length as usize);
        Segments::append_pattern(&[run], &mut pattern);
        self.write(space, address, &pattern);
    }

    #[inline]
    fn take_fault(&self) -> bool {
        self.faulted.replace(false)
    }

    fn update(&mut self, space: SpaceId, address: u64, change: impl FnOnce(u64) -> u64) -> u64 {
        #[expect(clippy::cast_ptr_alignment, reason = "the NIC has checked that atomics are aligned")]
        let at = self.at(space, address).cast::<u64>();
        let mut old = 0_u64;
        // SAFETY: the word is ours, and a fault at the source is reported.
        if unsafe { railnet_guarded_copy((&raw mut old).cast(), at.cast(), 8) } != 0 {
            self.faulted.set(true);
            return 0;
        }
        // The application may store to the word meanwhile; as with atomics of the NIC alone (IBV_ATOMIC_HCA) the last of both
        // stays, but never half of one.
        let new = change(old);
        let mut found = old;
        loop {
            // SAFETY: the word was readable; a fault is reported.
            match unsafe { railnet_guarded_exchange(at, &raw mut found, new) } {
                0 => return old,
                2 => {}
                _ => {
                    self.faulted.set(true);
                    return 0;
                }
            }
        }
    }
}

/// The previous handlers of SIGSEGV and SIGBUS.
static PREVIOUS: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];
static PREVIOUS_FLAGS: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];
static INSTALLING: Mutex<()> = Mutex::new(());

const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// Installs the handler in front of the present one, unless it is installed.
pub fn install_handlers() -> io::Result<()> {
    let _one_at_a_time = INSTALLING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    for (index, signal) in SIGNALS.into_iter().enumerate() {
        // SAFETY: zeros are a valid action, which the call overwrites.
        let mut present: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: both pointers are good for the call.
        if unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut present) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let own = on_fault as *const () as usize;
        if present.sa_sigaction == own {
            continue;
        }
        PREVIOUS_FLAGS[index].store(present.sa_flags as usize, Ordering::Relaxed);
        PREVIOUS[index].store(present.sa_sigaction, Ordering::Release);
        let mut action = present;
        action.sa_sigaction = own;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
        // SAFETY: the handler only reads its arguments and atomics, and jumps inside code made for it.
        if unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel hands over a context of this kind, and the labels are addresses of code.
    unsafe {
        let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        let at = registers[libc::REG_RIP as usize] as usize;
        let guarded = (&raw const railnet_guarded_begin) as usize..(&raw const railnet_guarded_end) as usize;
        if guarded.contains(&at) {
            registers[libc::REG_RIP as usize] = (&raw const railnet_guarded_fault) as i64;
            return;
        }
    }
    let index = usize::from(signal == libc::SIGBUS);
    let previous = PREVIOUS[index].load(Ordering::Acquire);
    let flags = PREVIOUS_FLAGS[index].load(Ordering::Relaxed) as c_int;
    match previous {
        libc::SIG_DFL | libc::SIG_IGN => {
            // The instruction runs again, and the fault does what it would have done.
            // SAFETY: the default action is always valid.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        handler if flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: the flag says that it takes these three arguments.
            let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: without the flag it takes one argument.
            let handler: extern "C" fn(c_int) = unsafe { std::mem::transmute(handler) };
            handler(signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three pages of which the middle one is unmapped.
    struct Torn(*mut u8, usize);

    impl Torn {
        fn new() -> Self {
            let page = rustix::param::page_size();
            // SAFETY: a fresh mapping, and part of it taken away again.
            unsafe {
                let at = libc::mmap(
                    std::ptr::null_mut(),
                    3 * page,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                    -1,
                    0,
                );
                assert_ne!(at, libc::MAP_FAILED);
                assert_eq!(libc::munmap(at.byte_add(page), page), 0);
                Self(at.cast(), page)
            }
        }
    }

    #[test]
    fn copies_of_every_length_and_alignment_are_whole() {
        let mut memory = ApplicationMemory::new().unwrap();
        let mut place = [0xee_u8; 128];
        for offset in 0..9 {
            for length in 0..100_usize {
                place.fill(0xee);
                let data: Vec<u8> = (1..=length as u8).collect();
                memory.write(SpaceId(0), place.as_mut_ptr() as u64 + offset, &data);
                let offset = offset as usize;
                assert_eq!(place[offset..][..length], data);
                assert!(place[..offset].iter().chain(&place[offset + length..]).all(|byte| *byte == 0xee));
                let mut out = vec![7];
                memory.read(SpaceId(0), place.as_ptr() as u64 + offset as u64, length, &mut out);
                assert_eq!(out[1..], data);
            }
        }
        assert!(!memory.take_fault());
    }

    #[test]
    fn pages_that_are_gone_report_a_fault() {
        let torn = Torn::new();
        let mut memory = ApplicationMemory::new().unwrap();
        let gap = torn.0 as u64 + torn.1 as u64;
        for (address, length) in [(gap, 1), (gap - 100, 300), (gap + 8, 8), (gap - 2, 4), (gap + 100, 4096)] {
            memory.write(SpaceId(0), address, &vec![1; length]);
            assert!(memory.take_fault(), "a write of {length} bytes");
            let mut out = vec![9];
            memory.read(SpaceId(0), address, length, &mut out);
            assert!(memory.take_fault() && out == [9], "a read of {length} bytes");
        }
        assert_eq!(memory.update(SpaceId(0), gap, |old| old + 1), 0);
        assert!(memory.take_fault() && !memory.take_fault());
    }

    #[test]
    fn only_whole_ranges_are_accessible() {
        static CONSTANT: [u8; 64] = [3; 64];
        let torn = Torn::new();
        let (at, page) = (torn.0 as u64, torn.1 as u64);
        assert!(is_accessible(at, page, true).unwrap());
        assert!(is_accessible(at + page - 1, 1, true).unwrap());
        assert!(!is_accessible(at, page + 1, false).unwrap());
        assert!(!is_accessible(at + page, 1, false).unwrap());
        assert!(!is_accessible(u64::MAX - 5, 10, false).unwrap());
        assert!(is_accessible((&raw const CONSTANT) as u64, 64, false).unwrap());
        assert!(!is_accessible((&raw const CONSTANT) as u64, 64, true).unwrap());
    }

    #[test]
    fn atomics_work_at_other_names() {
        let mut memory = ApplicationMemory::new().unwrap();
        let mut word = 40_u64;
        let space = memory.space((&raw mut word) as u64, 0x1000);
        assert_eq!(memory.update(space, 0x1000, |old| old + 2), 40);
        assert_eq!(word, 42);
        memory.remove(space);
        assert_eq!(memory.backing(space, 0x1000, 8), None);
    }
}
