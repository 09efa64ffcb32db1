//! The NIC of an address in this process: its driver behind a lock, and the thread that makes progress when the application
//! does not.
//!
//! All contexts that a program opens on a device share one adapter. While the application polls, its own calls drive the NIC
//! and the progress thread only checks that they still come. When they stop, or never come (the target of WRITEs, a program that
//! waits for a completion channel or for a word of memory), the thread blocks on the socket and does the work.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};

use libc::c_int;
use railnet_core::QueuePairNumber;
use railnet_live::memory::application::ApplicationMemory;
use railnet_live::roce::{Config, Device, Driver, Settings};
use railnet_nic::control::{ControlConfig, DcqcnParameters};
use railnet_nic::{AsyncEvent, Behaviour, CompletionQueue, PortConfig, SharedReceiveQueue};
use railnet_wire::Identification;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};

use crate::abi;
use crate::channel::{Channel, Subject};
use crate::cma::Management;
use crate::errors::complain;

/// Asynchronous events of a context: the kind, and the object.
pub(crate) type Events = Channel<(c_int, Arc<Subject>)>;

/// Completion events: the completion queue.
pub(crate) type Completions = Channel<Arc<Subject>>;

/// Where the asynchronous events of an object go.
#[derive(Clone)]
pub(crate) struct EventTarget {
    pub(crate) events: Arc<Events>,
    pub(crate) subject: Arc<Subject>,
}

impl EventTarget {
    fn push(&self, kind: c_int) {
        self.events.push((kind, self.subject.clone()));
    }

    /// Waits until the application acknowledged what it took, and withdraws what it did not take.
    pub(crate) fn end(&self) -> Result<(), c_int> {
        self.events.withdraw_subject(&self.subject);
        match self.subject.wait_acknowledged() {
            true => Ok(()),
            false => {
                complain("an object cannot be destroyed: events of it were taken and not acknowledged");
                Err(libc::EBUSY)
            }
        }
    }
}

/// Work requests that may wait for the next poll while others are unacknowledged, and their bytes.
const DEFERRED_MAX: u32 = 16;
const DEFERRED_BYTES_MAX: u64 = 16 << 10;

/// How long the thread leaves the NIC to an application that polls, and blocks at most.
const POLLED_REST: Duration = Duration::from_micros(200);
const BLOCK_MAX: Duration = Duration::from_millis(250);

/// How long it blocks at most while the application polls. An acknowledgement waits for the next poll, so that it leaves with what
/// the application answers; when no poll comes any more, it must not wait for long.
const POLLED_BLOCK_MAX: Duration = Duration::from_millis(1);

/// How long the thread spins after it found something: a wake-up costs more than a short wait.
const SPIN: Duration = Duration::from_micros(30);

/// How often a thread tries to have the state before it blocks, and how often the progress thread pauses between two tries to
/// find something, so that the application comes in between.
const LOCK_SPINS: u32 = 100;
const PROGRESS_PAUSES: u32 = 8;

/// Packets that waited for an application which had polled before, until the thread stops relying on it; and wake-ups in vain
/// until it relies on it again.
const MISSES_MAX: u32 = 2;
const VAIN_MAX: u32 = 16;

/// Queue pairs that are taken to send to one socket at once: they share its buffer.
const SENDERS: u32 = 4;

/// A NIC on the sockets of an address.
pub(crate) struct Adapter {
    pub(crate) device: Device,
    process: u32,
    state: Mutex<State>,
    /// How often the application polled.
    polls: AtomicU64,
    /// Wakes the thread.
    doorbell: OwnedFd,
    /// When the thread wakes up by itself, in nanoseconds after `started`.
    wakes_at: AtomicU64,
    started: Instant,
    closing: AtomicBool,
    /// Descriptors that the progress thread has.
    of_thread: [AtomicI32; 2],
}

/// What the lock protects.
pub(crate) struct State {
    pub(crate) driver: Driver<ApplicationMemory>,
    pub(crate) completion_queues: BTreeMap<CompletionQueue, CompletionTarget>,
    pub(crate) queue_pairs: BTreeMap<QueuePairNumber, EventTarget>,
    pub(crate) shared_queues: BTreeMap<SharedReceiveQueue, EventTarget>,
    pub(crate) management: Management,
    /// Work requests posted and not sent, and their bytes.
    deferred: u32,
    deferred_bytes: u64,
    capture: Option<Capture>,
}

/// Where the events of a completion queue go.
pub(crate) struct CompletionTarget {
    pub(crate) channel: Option<Arc<Completions>>,
    /// Of completion events.
    pub(crate) subject: Arc<Subject>,
    pub(crate) errors: EventTarget,
}

/// The adapters of this process.
pub(crate) type Adapters = Vec<Weak<Adapter>>;
static ADAPTERS: Mutex<Adapters> = Mutex::new(Vec::new());

impl Adapter {
    /// The adapter of a device: the one that is open, or a new one. After a fork the child has its own.
    pub(crate) fn open(device: &Device, settings: &Settings) -> Result<Arc<Self>, c_int> {
        let mut adapters = ADAPTERS.lock().unwrap_or_else(PoisonError::into_inner);
        let process = std::process::id();
        let is_ours =
            |adapter: &Arc<Self>| adapter.process == process && adapter.device.address == device.address;
        if let Some(adapter) = adapters.iter().filter_map(Weak::upgrade).find(is_ours) {
            return Ok(adapter);
        }
        adapters.retain(|adapter| adapter.strong_count() > 0);
        crate::errors::at_exit(Self::leave);
        crate::fork::watch();
        let adapter = Arc::new(Self::new(device, settings)?);
        let attended = Arc::downgrade(&adapter);
        let socket = adapter
            .state()
            .driver
            .as_fd()
            .try_clone_to_owned()
            .map_err(|error| crate::errors::of_io(&error))?;
        let doorbell = adapter.doorbell.try_clone().map_err(|error| crate::errors::of_io(&error))?;
        for (own, descriptor) in adapter.of_thread.iter().zip([&socket, &doorbell]) {
            own.store(descriptor.as_raw_fd(), Ordering::Relaxed);
        }
        let thread = std::thread::Builder::new().name("railnet-rdma".to_owned());
        thread
            .spawn(move || attend(&attended, &socket, &doorbell))
            .map_err(|error| crate::errors::of_io(&error))?;
        adapters.push(Arc::downgrade(&adapter));
        Ok(adapter)
    }

    fn new(device: &Device, settings: &Settings) -> Result<Self, c_int> {
        let of_io = |error: &io::Error| crate::errors::of_io(error);
        let memory = ApplicationMemory::new().map_err(|error| of_io(&error))?;
        let mut driver = Driver::open(&config(device, settings), memory).map_err(|error| {
            let text = error.to_string();
            complain(&match text.contains("in use") {
                true => format!(
                    "{text}: another user's process, or the kernel's rdma_rxe, holds UDP port 4791 there"
                ),
                false => text,
            });
            crate::errors::of_driver(&error)
        })?;
        let capture = match &settings.capture {
            Some(path) => Some(Capture::begin(&mut driver, path, device).map_err(|error| of_io(&error))?),
            None => None,
        };
        if settings.against_shared_memory().is_none()
            && let Err(error) = driver.enable_shared_memory(ApplicationMemory::copy_to)
        {
            complain(&format!("payload goes through sockets to processes of this host, too: {error}"));
        }
        if settings.log {
            let member = driver.member();
            complain(&format!("{} is {}, member {member} of its port", device.name, device.socket_address()));
        }
        let management = Management::open(&mut driver, device.guid())?;
        let doorbell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(rustix::io::Errno::raw_os_error)?;
        Ok(Self {
            device: device.clone(),
            process: std::process::id(),
            state: Mutex::new(State {
                driver,
                completion_queues: BTreeMap::new(),
                queue_pairs: BTreeMap::new(),
                shared_queues: BTreeMap::new(),
                management,
                deferred: 0,
                deferred_bytes: 0,
                capture,
            }),
            polls: AtomicU64::new(0),
            doorbell,
            wakes_at: AtomicU64::new(0),
            started: Instant::now(),
            closing: AtomicBool::new(false),
            of_thread: [const { AtomicI32::new(-1) }; 2],
        })
    }

    /// All adapters, while a thread forks.
    pub(crate) fn lock_all() -> MutexGuard<'static, Adapters> {
        ADAPTERS.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those that this process opened.
    pub(crate) fn of_this_process(all: &Adapters) -> Vec<Arc<Self>> {
        let process = std::process::id();
        all.iter().filter_map(Weak::upgrade).filter(|one| one.process == process).collect()
    }

    /// The descriptors that a child of this process must not keep open.
    pub(crate) fn list_descriptors(&self, state: &State, into: &mut Vec<RawFd>) {
        state.driver.list_descriptors(into);
        into.push(self.doorbell.as_raw_fd());
        into.extend(self.of_thread.iter().map(|one| one.load(Ordering::Relaxed)).filter(|one| *one >= 0));
        if let Some(capture) = &state.capture {
            into.push(capture.descriptor());
        }
    }

    /// The state. A thread that holds it is at most in a system call of a microsecond or two, so it is worth spinning for: to
    /// be woken up takes longer.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        for _ in 0..LOCK_SPINS {
            if let Some(state) = self.try_state() {
                return state;
            }
            std::hint::spin_loop();
        }
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, unless another thread has it.
    fn try_state(&self) -> Option<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(state)) => Some(state.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The state, for a call that waits for completions.
    pub(crate) fn polled_state(&self) -> MutexGuard<'_, State> {
        self.polls.fetch_add(1, Ordering::Relaxed);
        self.state()
    }

    /// Sends what was posted, unless more of it is likely to come first, and wakes the thread where a timer is due before it
    /// would wake up.
    pub(crate) fn after_post(&self, state: &mut State, queue_pair: QueuePairNumber, posted: u32, bytes: u64) {
        state.deferred += posted;
        state.deferred_bytes += bytes;
        // As Nagle's algorithm: whatever is posted while earlier work is unacknowledged goes with the next poll, or when the
        // acknowledgement comes. Unreliable queue pairs get none.
        let outstanding = state.driver.nic().unacknowledged(queue_pair);
        let waits = outstanding > posted
            && state.deferred < DEFERRED_MAX
            && state.deferred_bytes < DEFERRED_BYTES_MAX;
        if !waits {
            state.send();
        }
        self.wake_for_timer(state);
    }

    /// Does what calls of connection management led to, and wakes the thread in time for what follows.
    pub(crate) fn after_management(&self, state: &mut State) {
        if state.manage() {
            state.send();
        }
        self.wake_for_timer(state);
    }

    fn wake_for_timer(&self, state: &State) {
        let Some(timeout) = state.next_timeout() else { return };
        let due = (self.started.elapsed() + timeout).as_nanos() as u64;
        if due < self.wakes_at.load(Ordering::Relaxed) {
            self.ring();
        }
    }

    fn ring(&self) {
        let _ = rustix::io::write(&self.doorbell, &1_u64.to_ne_bytes());
    }

    /// The program ends without closing its devices: tells the peers of its connections, and ends the captures.
    extern "C" fn leave() {
        let adapters = Self::lock_all();
        for adapter in Self::of_this_process(&adapters) {
            if let Ok(mut state) = adapter.state.try_lock() {
                let State { driver, management, .. } = &mut *state;
                management.leave(driver);
                state.send();
                state.finish_capture();
            }
        }
    }
}

impl Drop for Adapter {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::Relaxed);
        self.ring();
        if self.process == std::process::id() {
            self.state().finish_capture();
        }
    }
}

impl State {
    /// Sends what is due.
    pub(crate) fn send(&mut self) {
        (self.deferred, self.deferred_bytes) = (0, 0);
        self.driver.flush_sends();
        self.deliver();
    }

    /// Does what can be done without waiting; tells whether there was anything.
    pub(crate) fn progress(&mut self) -> bool {
        (self.deferred, self.deferred_bytes) = (0, 0);
        // An error of the socket is a loss like any other; timers go on.
        let active = self.driver.progress().unwrap_or(false);
        let managed = self.manage();
        if managed {
            self.driver.flush_sends();
        }
        self.deliver();
        active || managed
    }

    /// Does what is due in connection management; tells whether there was anything.
    fn manage(&mut self) -> bool {
        self.management.progress(&mut self.driver)
    }

    /// How long until something is due.
    fn next_timeout(&self) -> Option<Duration> {
        let management = self.management.next_timeout(&self.driver);
        self.driver.next_timeout().into_iter().chain(management).min()
    }

    /// Hands the NIC's events to those who wait for them.
    pub(crate) fn deliver(&mut self) {
        while let Some(event) = self.driver.nic_mut().poll_event() {
            let of_queue_pair = |number: &QueuePairNumber, kind| (self.queue_pairs.get(number), kind);
            let (target, kind) = match &event {
                AsyncEvent::CompletionReady(queue) => {
                    if let Some(target) = self.completion_queues.get(queue)
                        && let Some(channel) = &target.channel
                    {
                        channel.push(target.subject.clone());
                    }
                    continue;
                }
                AsyncEvent::CompletionQueueOverflow(queue) => {
                    if let Some(target) = self.completion_queues.get(queue) {
                        target.errors.push(abi::IBV_EVENT_CQ_ERR);
                    }
                    continue;
                }
                AsyncEvent::QueuePairFatal(number) => of_queue_pair(number, abi::IBV_EVENT_QP_FATAL),
                AsyncEvent::QueuePairRequestError(number) => of_queue_pair(number, abi::IBV_EVENT_QP_REQ_ERR),
                AsyncEvent::QueuePairAccessError(number) => {
                    of_queue_pair(number, abi::IBV_EVENT_QP_ACCESS_ERR)
                }
                AsyncEvent::CommunicationEstablished(number) => {
                    of_queue_pair(number, abi::IBV_EVENT_COMM_EST)
                }
                AsyncEvent::SendQueueDrained(number) => of_queue_pair(number, abi::IBV_EVENT_SQ_DRAINED),
                AsyncEvent::LastReceiveTaken(number) => {
                    of_queue_pair(number, abi::IBV_EVENT_QP_LAST_WQE_REACHED)
                }
                AsyncEvent::SharedReceiveLimit(queue) => {
                    (self.shared_queues.get(queue), abi::IBV_EVENT_SRQ_LIMIT_REACHED)
                }
                _ => continue,
            };
            if let Some(target) = target {
                target.push(kind);
            }
        }
    }

    fn finish_capture(&mut self) {
        let Some(capture) = self.capture.take() else { return };
        let outcome = self.driver.finish_capture().map_err(|error| error.to_string());
        if let Err(error) = outcome.and_then(|()| capture.flush().map_err(|error| error.to_string())) {
            complain(&format!("the capture is not whole: {error}"));
        }
    }
}

/// How the NIC is made.
fn config(device: &Device, settings: &Settings) -> Config {
    let mut config = Config::new(device.socket_address());
    config.shared = true;
    config.senders = SENDERS;
    config.accepted = Identification::Any;
    config.faults = settings.faults;
    config.faults.seed = config.faults.seed.wrapping_add(u64::from(std::process::id()));
    let PortConfig { mtu, rate, .. } = &mut config.nic.ports[0];
    *mtu = device.mtu;
    if let Some(limit) = settings.rate {
        *rate = limit;
    }
    if settings.dcqcn {
        config.nic.control = ControlConfig::Dcqcn(DcqcnParameters::paper(*rate));
    }
    if settings.rxe {
        config.nic.behaviour = Behaviour::RXE;
    }
    config
}

/// The progress thread of an adapter.
fn attend(adapter: &Weak<Adapter>, socket: &OwnedFd, doorbell: &OwnedFd) {
    let (mut seen, mut misses, mut vain) = (0, 0, 0);
    let mut block_max = BLOCK_MAX;
    loop {
        let Some(timeout) = before_block(adapter, block_max) else { return };
        let readable = block(socket.as_fd(), doorbell.as_fd(), timeout);
        let Some(adapter) = adapter.upgrade().filter(|adapter| !adapter.closing.load(Ordering::Relaxed))
        else {
            return;
        };
        let polls = adapter.polls.load(Ordering::Relaxed);
        let is_polled = std::mem::replace(&mut seen, polls) != polls;
        block_max = if is_polled { POLLED_BLOCK_MAX } else { BLOCK_MAX };
        if is_polled && !readable {
            continue;
        }
        if is_polled && misses < MISSES_MAX {
            // The application drives the NIC. A thread that drove it too would only be in its way.
            std::thread::sleep(POLLED_REST);
            if adapter.polls.load(Ordering::Relaxed) != polls {
                misses = 0;
                continue;
            }
            misses += 1;
        }
        let mut idle_since = Instant::now();
        let mut found = false;
        while idle_since.elapsed() < SPIN {
            // An application that has the state makes progress itself.
            if adapter.try_state().is_some_and(|mut state| state.progress()) {
                (found, idle_since) = (true, Instant::now());
            }
            for _ in 0..PROGRESS_PAUSES {
                std::hint::spin_loop();
            }
        }
        vain = if found { 0 } else { vain + 1 };
        if vain >= VAIN_MAX {
            (misses, vain) = (0, 0);
        }
    }
}

/// How long the thread may block. `None`: the adapter is gone.
fn before_block(adapter: &Weak<Adapter>, block_max: Duration) -> Option<Duration> {
    let adapter = adapter.upgrade()?;
    let mut state = adapter.state();
    if state.driver.needs_steering()
        && let Err(error) = state.driver.rebuild_steering()
    {
        complain(&format!("packets may go astray: {error}"));
    }
    if let Some(capture) = &state.capture {
        // What a process that is killed has captured until it was last idle is in the file.
        let _ = capture.flush();
    }
    let timeout = state.next_timeout().map_or(block_max, |timeout| timeout.min(block_max));
    let wakes_at = (adapter.started.elapsed() + timeout).as_nanos() as u64;
    adapter.wakes_at.store(wakes_at, Ordering::Relaxed);
    Some(timeout)
}

/// Blocks until there is something to receive (`true`), the doorbell rings, or time is up.
fn block(socket: BorrowedFd<'_>, doorbell: BorrowedFd<'_>, timeout: Duration) -> bool {
    let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
    let mut ready = [PollFd::new(&socket, PollFlags::IN), PollFd::new(&doorbell, PollFlags::IN)];
    let _ = rustix::event::poll(&mut ready, Some(&timeout));
    if !ready[1].revents().is_empty() {
        let _ = rustix::io::read(doorbell, &mut [0; 8]);
    }
    !ready[0].revents().is_empty()
}

/// A capture file that is shared with the driver, so that it can be completed at the end of the process.
struct Capture(Arc<Mutex<BufWriter<File>>>);

impl Capture {
    fn begin(driver: &mut Driver<ApplicationMemory>, path: &Path, device: &Device) -> io::Result<Self> {
        let refused = |name: &Path, error: io::Error| {
            complain(&format!("cannot write the capture {}: {error}", name.display()));
            error
        };
        let mut opened = None;
        for name in capture_names(path, &device.name, std::process::id()) {
            match File::create_new(&name) {
                Ok(file) => {
                    opened = Some(file);
                    break;
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(refused(&name, error)),
            }
        }
        let file = opened.ok_or_else(|| refused(path, io::ErrorKind::AlreadyExists.into()))?;
        let shared = Arc::new(Mutex::new(BufWriter::new(file)));
        let writer = Box::new(SharedWriter(shared.clone()));
        driver.capture(writer).map_err(|error| io::Error::other(error.to_string()))?;
        Ok(Self(shared))
    }

    fn flush(&self) -> io::Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).flush()
    }

    fn descriptor(&self) -> RawFd {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_ref().as_raw_fd()
    }
}

/// Where a capture goes: the name itself for the first process that captures, then beside it with the number of the process
/// (`run.4121.pcapng`), then with the device.
fn capture_names(path: &Path, device: &str, process: u32) -> [PathBuf; 3] {
    let beside = |middle: String| match path.extension() {
        Some(extension) => path.with_extension(format!("{middle}.{}", extension.to_string_lossy())),
        None => path.with_extension(middle),
    };
    [path.to_owned(), beside(process.to_string()), beside(format!("{process}.{device}"))]
}

struct SharedWriter(Arc<Mutex<BufWriter<File>>>);

impl Write for SharedWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn captures_of_several_processes_stand_side_by_side() {
        let names = capture_names(Path::new("/tmp/run.pcapng"), "railnet0", 41);
        assert_eq!(
            names.map(|name| name.display().to_string()),
            ["/tmp/run.pcapng", "/tmp/run.41.pcapng", "/tmp/run.41.railnet0.pcapng"]
        );
    }
}
