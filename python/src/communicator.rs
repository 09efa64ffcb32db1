//! Communicators for Python: calls on memory that belongs to Python's objects. `railnet.torch` stands on it.
//!
//! The GIL is released while a call waits. A call that was started holds the objects whose memory it uses until it has ended.
#![expect(unsafe_code, reason = "memory comes as addresses, and Python vouches for it")]
#![expect(clippy::needless_pass_by_value, reason = "arguments that come from Python are owned")]
#![expect(clippy::too_many_arguments, reason = "Python names them where it calls")]

use std::net::ToSocketAddrs as _;
use std::ptr::NonNull;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use railnet::raw::{self, Call, Collective, Counts, Transfer, TransferDirection};
use railnet::rendezvous::{Config, Launch, Launcher, RendezvousAddress, Secret};
use railnet::{DataType, Error, Options, Rank, ReduceOp, Scalar};

use crate::failure::exception;

/// How often a wait for other ranks lets Python hear of Ctrl-C.
const INTERVAL: Duration = Duration::from_millis(50);

/// The number of each type, by all of its names.
#[pyfunction]
pub(crate) fn data_types(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    numbered(py, DataType::ALL.iter().map(|dtype| dtype.name()))
}

/// The number of each operation.
#[pyfunction]
pub(crate) fn reductions(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    numbered(py, ReduceOp::PLAIN.iter().map(|op| op.name()).chain(["mulsum"]))
}

/// The number of each collective.
#[pyfunction]
pub(crate) fn collectives(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    numbered(py, Collective::ALL.iter().map(|one| one.test_name()))
}

fn numbered(py: Python<'_>, names: impl Iterator<Item = &'static str>) -> PyResult<Bound<'_, PyDict>> {
    let numbers = PyDict::new(py);
    names.enumerate().try_for_each(|(number, name)| numbers.set_item(name, number))?;
    Ok(numbers)
}

/// A port of this host that is free, and a secret: what rank 0 chooses before it tells the others.
#[pyfunction]
pub(crate) fn meeting() -> PyResult<(u16, String)> {
    let port = railnet::rendezvous::free_port()?;
    Ok((port, Secret::fresh()?))
}

/// A call as Python has it, in the order of [`Asked`]: a tuple is read faster than anything with names.
type AskedTuple = (usize, usize, usize, f64, u32, AskedCounts, usize, usize);

/// How this process was started, in the variables that PyTorch reads; empty where PyTorch's own launcher did it, or none.
#[pyfunction]
pub(crate) fn launch_variables() -> Vec<(&'static str, String)> {
    let Ok(launch) = Launch::from_env() else { return Vec::new() };
    if matches!(launch.launcher, Launcher::Torchrun | Launcher::Alone) {
        return Vec::new();
    }
    let Launch { rank, world_size, local_rank, local_size, rendezvous, .. } = launch;
    let mut variables = vec![("RANK", rank.0.to_string()), ("WORLD_SIZE", world_size.to_string())];
    variables.extend(local_rank.map(|rank| ("LOCAL_RANK", rank.to_string())));
    variables.extend(local_size.map(|size| ("LOCAL_WORLD_SIZE", size.to_string())));
    if let Some(RendezvousAddress { hosts, port }) = rendezvous {
        // Nodes that exist only for Slurm have no address, and PyTorch tries one host only.
        let is_known = |host: &&String| (host.as_str(), port).to_socket_addrs().is_ok();
        let host = hosts.iter().find(is_known).or(hosts.first());
        variables.extend(host.map(|host| ("MASTER_ADDR", host.clone())));
        variables.push(("MASTER_PORT", port.to_string()));
    }
    variables
}

/// What a call is, in the numbers of the functions above.
struct Asked {
    collective: usize,
    dtype: usize,
    op: usize,
    /// The scalar of a pre-multiplied sum.
    scalar: f64,
    root: u32,
    counts: AskedCounts,
    input: usize,
    output: usize,
}

/// One count for all, or one for each rank.
#[derive(FromPyObject)]
enum AskedCounts {
    Each(u64),
    PerRank(Vec<u64>),
}

impl From<AskedTuple> for Asked {
    fn from((collective, dtype, op, scalar, root, counts, input, output): AskedTuple) -> Self {
        Self { collective, dtype, op, scalar, root, counts, input, output }
    }
}

impl Asked {
    fn buffers(&self) -> (usize, usize) {
        (address(self.input), address(self.output))
    }

    fn call(&self, rank: Rank, ranks: u32) -> PyResult<Call> {
        let dtype = pick(&DataType::ALL, self.dtype, "data type")?;
        let op = match ReduceOp::PLAIN.get(self.op) {
            Some(op) => *op,
            None => ReduceOp::PreMulSum(scalar(dtype, self.scalar)),
        };
        let counts = match &self.counts {
            AskedCounts::Each(count) => Counts::Each(*count),
            AskedCounts::PerRank(counts) => Counts::PerRank(counts.as_slice().into()),
        };
        let collective = pick(&Collective::ALL, self.collective, "collective")?;
        let root = Rank(self.root);
        let mut call = Call { op, dtype, root, counts, ..Call::new(collective, 0) };
        call.in_place = call.is_in_place_at(rank, ranks, (self.input, self.output));
        Ok(call)
    }
}

/// Where a tensor begins: one without elements is nowhere, and slices are never there.
fn address(of: usize) -> usize {
    if of == 0 { NonNull::<u64>::dangling().as_ptr() as usize } else { of }
}

fn pick<T: Copy>(all: &[T], number: usize, what: &str) -> PyResult<T> {
    all.get(number).copied().ok_or_else(|| PyRuntimeError::new_err(format!("there is no {what} {number}")))
}

/// The element nearest to a number of Python's.
fn scalar(dtype: DataType, value: f64) -> Scalar {
    match dtype {
        DataType::F64 => Scalar::from_bits(dtype, value.to_bits()),
        _ => Scalar::from_f32(dtype, value as f32),
    }
}

/// Ranks that do collectives with each other.
#[pyclass(frozen, module = "railnet._railnet")]
pub(crate) struct Communicator {
    inner: Mutex<Option<Arc<railnet::Communicator>>>,
    errors: Arc<Errors>,
}

/// How failures become exceptions.
struct Errors {
    /// Their class.
    class: Py<PyAny>,
    /// The rank of the whole job that each rank of the communicator is, once Python has said so.
    global_ranks: OnceLock<Vec<u32>>,
    /// The same of the communicator that it is a part of, whose ranks have met.
    met: Option<Arc<Errors>>,
}

impl Communicator {
    fn new(inner: railnet::Communicator, class: Py<PyAny>, met: Option<Arc<Errors>>) -> Self {
        let errors = Arc::new(Errors { class, global_ranks: OnceLock::new(), met });
        Self { inner: Mutex::new(Some(Arc::new(inner))), errors }
    }

    fn slot(&self) -> MutexGuard<'_, Option<Arc<railnet::Communicator>>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn inner(&self) -> PyResult<Arc<railnet::Communicator>> {
        let closed = || PyRuntimeError::new_err("the communicator is closed: make another one");
        self.slot().clone().ok_or_else(closed)
    }

    fn raised(&self, py: Python<'_>, error: &Error) -> PyErr {
        self.errors.raised(py, error)
    }
}

impl Errors {
    /// The exception of a failed call: `ranks` has those whose fault it is, as far as that is known, as ranks of the job.
    fn raised(&self, py: Python<'_>, error: &Error) -> PyErr {
        let mut text = error.to_string();
        let global = |rank: Rank| self.global(rank);
        let culprits: Vec<Rank> = error.culprits().into_iter().map(|rank| Rank(rank as u32)).collect();
        let renamed: Vec<String> = culprits
            .iter()
            .filter(|rank| global(**rank) != rank.0)
            .map(|rank| format!("rank {} of this group is rank {} of the job", rank.0, global(*rank)))
            .collect();
        if !renamed.is_empty() {
            text = format!("{text}\n  ({})", renamed.join(", "));
        }
        let met = self.met.as_deref().unwrap_or(self);
        let outsiders = error.outsiders().into_iter().map(|rank| met.global(Rank(rank as u32)));
        raised(py, &self.class, text, culprits.into_iter().map(global).chain(outsiders).collect())
    }

    fn global(&self, rank: Rank) -> u32 {
        self.global_ranks.get().and_then(|ranks| ranks.get(rank.0 as usize)).copied().unwrap_or(rank.0)
    }
}

fn raised(py: Python<'_>, class: &Py<PyAny>, text: String, ranks: Vec<u32>) -> PyErr {
    let make = || {
        let made = class.bind(py).call1((text,))?;
        made.setattr("ranks", ranks)?;
        Ok::<_, PyErr>(PyErr::from_value(made))
    };
    make().unwrap_or_else(|error| error)
}

/// Whether Python wants to go on: not after Ctrl-C, of which the exception is kept.
fn goes_on(interrupt: &mut Option<PyErr>) -> bool {
    if interrupt.is_none() {
        #[expect(clippy::redundant_closure_for_method_calls, reason = "the method is of one lifetime only")]
        let signalled = Python::attach(|py| py.check_signals());
        *interrupt = signalled.err();
    }
    interrupt.is_none()
}

#[pymethods]
impl Communicator {
    /// Meets the other ranks at rank 0, which listens at the port of one of its names or addresses.
    #[staticmethod]
    #[pyo3(signature = (rank, size, *, hosts, port, job, secret, timeout, error))]
    fn meet(
        py: Python<'_>,
        rank: u32,
        size: u32,
        hosts: Vec<String>,
        port: u16,
        job: String,
        secret: &str,
        timeout: Duration,
        error: Py<PyAny>,
    ) -> PyResult<Self> {
        let usage = |text: String| exception(py, "UsageError", (text,));
        let launch = Launch::told(Rank(rank), size, RendezvousAddress { hosts, port }, job);
        let mut config = Config::from_env(&launch).map_err(|error| usage(error.to_string()))?;
        if !config.secret.is_given() {
            config.secret = Secret::new(secret.as_bytes());
        }
        // The launcher holds the port of its own rendezvous, and this is another one.
        config.is_port_held = false;
        config.limit = timeout;
        let mut options = Options::from_env().map_err(|error| usage(error.to_string()))?;
        options.limit = timeout;
        start_notifier()?;
        // In a thread of its own, so that Ctrl-C is heard meanwhile.
        let (give, take) = channel();
        let take = Mutex::new(take);
        let wait = || take.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(INTERVAL);
        thread::Builder::new().name("railnet-meet".to_owned()).spawn(move || {
            // Python may not wait any more.
            let _ = give.send(railnet::Communicator::meet(&config, &options));
        })?;
        loop {
            match py.detach(wait) {
                Ok(Ok(inner)) => return Ok(Self::new(inner, error, None)),
                Ok(Err(failure)) => {
                    let ranks = failure.culprits().into_iter().map(|rank| rank as u32).collect();
                    return Err(raised(py, &error, failure.to_string(), ranks));
                }
                Err(RecvTimeoutError::Timeout) => py.check_signals()?,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(PyRuntimeError::new_err("meeting the other ranks ended in a panic"));
                }
            }
        }
    }

    /// A communicator of some of its ranks, of which only those call.
    fn subset(&self, py: Python<'_>, ranks: Vec<usize>, name: &str, timeout: Duration) -> PyResult<Self> {
        let inner = self.inner()?;
        let made = py.detach(|| inner.subset(&ranks, name));
        let made = made.map_err(|error| self.raised(py, &error))?;
        made.set_timeout(timeout);
        let met = self.errors.met.as_ref().unwrap_or(&self.errors);
        Ok(Self::new(made, self.errors.class.clone_ref(py), Some(Arc::clone(met))))
    }

    /// Says which rank of the job each of its ranks is: exceptions name those.
    fn set_global_ranks(&self, ranks: Vec<u32>) {
        // The first answer holds: a communicator has one group.
        let _ = self.errors.global_ranks.set(ranks);
    }

    /// How it got to know its launcher, for the log.
    #[staticmethod]
    fn launcher() -> String {
        railnet::launcher().map_or_else(|error| error.to_string(), |launcher: Launcher| launcher.to_string())
    }

    #[getter]
    fn rank(&self) -> PyResult<usize> {
        Ok(self.inner()?.rank())
    }

    #[getter]
    fn size(&self) -> PyResult<usize> {
        Ok(self.inner()?.size())
    }

    /// What leads to each rank, by name; empty for this one.
    fn conduits(&self) -> PyResult<Vec<String>> {
        let inner = self.inner()?;
        let name = |rank| if rank == inner.rank() { String::new() } else { inner.conduit(rank).to_string() };
        Ok((0..inner.size()).map(name).collect())
    }

    /// Ranks that are not known to be lost.
    fn survivors(&self, py: Python<'_>) -> PyResult<Vec<usize>> {
        let inner = self.inner()?;
        Ok(py.detach(|| inner.survivors()))
    }

    /// Makes a call and waits for it. Ctrl-C breaks the communicator: the others may wait for this rank.
    fn run(&self, py: Python<'_>, asked: AskedTuple) -> PyResult<()> {
        let asked = Asked::from(asked);
        let inner = self.inner()?;
        let call = asked.call(Rank(inner.rank() as u32), inner.size() as u32)?;
        let (input, output) = asked.buffers();
        let mut interrupt = None;
        let done = py.detach(|| {
            // SAFETY: Python gives addresses of tensors that are as long as the call says, and holds them while this runs.
            unsafe {
                inner.run_raw(&call, input as *const u8, output as *mut u8, &mut || goes_on(&mut interrupt))
            }
        });
        match interrupt {
            Some(error) => Err(error),
            None => done.map_err(|error| self.raised(py, &error)),
        }
    }

    /// Starts a call. `keep` is held until it has ended.
    fn start(&self, py: Python<'_>, asked: AskedTuple, keep: Py<PyAny>) -> PyResult<Operation> {
        let asked = Asked::from(asked);
        let inner = self.inner()?;
        let call = asked.call(Rank(inner.rank() as u32), inner.size() as u32)?;
        let (input, output) = asked.buffers();
        let (kept, end) = Kept::new(keep);
        let started = py.detach(|| {
            // SAFETY: Python gives addresses of tensors that are as long as the call says, and `keep` holds them.
            unsafe { inner.start_raw(&call, input as *const u8, output as *mut u8, kept) }
        });
        let inner = started.map_err(|error| self.raised(py, &error))?;
        Ok(Operation { inner, end, errors: Arc::clone(&self.errors) })
    }

    /// Starts to send to a rank, or to receive from it.
    #[pyo3(signature = (peer, tag, dtype, count, data, keep, *, sends))]
    fn transfer(
        &self,
        py: Python<'_>,
        peer: usize,
        tag: u64,
        dtype: usize,
        count: u64,
        data: usize,
        keep: Py<PyAny>,
        sends: bool,
    ) -> PyResult<Operation> {
        let inner = self.inner()?;
        let direction = if sends { TransferDirection::Send } else { TransferDirection::Receive };
        let dtype = pick(&DataType::ALL, dtype, "data type")?;
        let transfer = Transfer { direction, peer, tag, dtype, count };
        let (kept, end) = Kept::new(keep);
        // SAFETY: as for a call.
        let started =
            py.detach(|| unsafe { inner.start_transfer_raw(transfer, address(data) as *mut u8, kept) });
        let inner = started.map_err(|error| self.raised(py, &error))?;
        Ok(Operation { inner, end, errors: Arc::clone(&self.errors) })
    }

    /// Waits until a rank sends to this one under a tag, and says which.
    #[pyo3(signature = (tag, timeout=None))]
    fn await_sender(&self, py: Python<'_>, tag: u64, timeout: Option<Duration>) -> PyResult<usize> {
        let inner = self.inner()?;
        let mut interrupt = None;
        let found = py.detach(|| inner.await_sender(tag, timeout, &mut || goes_on(&mut interrupt)));
        match interrupt {
            Some(error) => Err(error),
            None => found.map_err(|error| self.raised(py, &error)),
        }
    }

    /// How long a call may stand still before it is an error.
    fn set_timeout(&self, py: Python<'_>, timeout: Duration) -> PyResult<()> {
        let inner = self.inner()?;
        py.detach(|| inner.set_timeout(timeout));
        Ok(())
    }

    /// Makes all calls fail, of this rank and the others, now and later.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        let inner = self.inner()?;
        py.detach(|| inner.abort());
        Ok(())
    }

    /// Gives it back. The last one of a process says goodbye to the other ranks.
    fn close(&self, py: Python<'_>) {
        let inner = self.slot().take();
        py.detach(|| drop(inner));
    }
}

/// A call under way.
#[pyclass(frozen, module = "railnet._railnet")]
pub(crate) struct Operation {
    inner: raw::Operation,
    end: Arc<End>,
    errors: Arc<Errors>,
}

#[pymethods]
impl Operation {
    /// Its number among those of its communicator.
    #[getter]
    fn number(&self) -> u64 {
        self.inner.number()
    }

    /// Whether it has ended.
    fn is_done(&self, py: Python<'_>) -> PyResult<bool> {
        py.detach(|| self.inner.is_done()).map_err(|error| self.errors.raised(py, &error))
    }

    /// Waits until it has ended, for so long at most as it may stand still.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<Duration>) -> PyResult<()> {
        let mut interrupt = None;
        let done = py.detach(|| self.inner.wait(timeout, &mut || goes_on(&mut interrupt)));
        match interrupt {
            Some(error) => Err(error),
            None => done.map_err(|error| self.errors.raised(py, &error)),
        }
    }

    /// Has a function called, in another thread, once it has ended, well or not; at once where it has.
    fn on_end(&self, callback: Py<PyAny>) {
        let mut state = self.end.state();
        match &mut *state {
            EndState::Ended => notify(callback),
            EndState::UnderWay(callbacks) => callbacks.push(callback),
        }
    }
}

/// The end of a call, as soon as there is one.
struct End(Mutex<EndState>);

enum EndState {
    /// What is to be called then.
    UnderWay(Vec<Py<PyAny>>),
    Ended,
}

impl End {
    fn state(&self) -> MutexGuard<'_, EndState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the engine holds while a call is under way. It drops this when the call has ended, on a thread that must not wait for
/// Python.
struct Kept {
    _object: Py<PyAny>,
    end: Arc<End>,
}

impl Kept {
    fn new(object: Py<PyAny>) -> (Self, Arc<End>) {
        let end = Arc::new(End(Mutex::new(EndState::UnderWay(Vec::new()))));
        (Self { _object: object, end: Arc::clone(&end) }, end)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let before = std::mem::replace(&mut *self.end.state(), EndState::Ended);
        if let EndState::UnderWay(callbacks) = before {
            callbacks.into_iter().for_each(notify);
        }
    }
}

/// The thread that may wait for Python, and the process it is in: a forked child has none.
static NOTIFIER: Mutex<Option<(u32, Sender<Py<PyAny>>)>> = Mutex::new(None);

/// Starts the thread that calls functions of Python, where there is none yet.
fn start_notifier() -> std::io::Result<()> {
    let mut notifier = NOTIFIER.lock().unwrap_or_else(PoisonError::into_inner);
    let process = std::process::id();
    if notifier.as_ref().is_some_and(|(owner, _)| *owner == process) {
        return Ok(());
    }
    let (give, take) = channel::<Py<PyAny>>();
    let run = move || {
        for callback in take {
            // None once Python ends: nothing waits for the call any more.
            let called = Python::try_attach(|py| {
                if let Err(error) = callback.call0(py) {
                    error.write_unraisable(py, Some(callback.bind(py)));
                }
            });
            if called.is_none() {
                return;
            }
        }
    };
    thread::Builder::new().name("railnet-futures".to_owned()).spawn(run)?;
    *notifier = Some((process, give));
    Ok(())
}

/// Has that thread call a function.
fn notify(callback: Py<PyAny>) {
    if let Some((_, give)) = &*NOTIFIER.lock().unwrap_or_else(PoisonError::into_inner) {
        // The thread is gone once Python ends.
        let _ = give.send(callback);
    }
}
