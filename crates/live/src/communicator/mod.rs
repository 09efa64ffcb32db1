//! Communicators: ranks that do collectives with each other.
//!
//! Every rank makes the same calls in the same order. A call returns when this rank's part is done: its buffers are its own
//! again. A failure is an error on every rank, which names the culprit and the reason; every wait has a timeout.
//!
//! ```
//! use railnet_live::Communicator;
//! use railnet_core::ReduceOp;
//!
//! // Started by hand this is one rank alone; under `railnet run`, torchrun, Slurm or MPI, one of many.
//! let world = Communicator::from_env()?;
//! let mut gradients = vec![world.rank() as f32; 1000];
//! world.all_reduce_in_place(&mut gradients, ReduceOp::Average)?;
//! # Ok::<(), railnet_live::communicator::Error>(())
//! ```

mod address;
mod any_source;
mod at_exit;
mod builder;
mod choice;
mod collectives;
mod element;
mod error;
mod group;
mod handle;
mod nic_thread;
mod operation;
mod pending;
mod process;
mod rebuild;
mod window;

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use railnet_coll::machine::{Failure, OperationId};
use railnet_coll::variables::{
    DECLARATIONS, Place as VariablePlace, Source, VariableError, Variables as NcclVariables, declaration,
};
use railnet_coll::{Call, Collective, Schedule, build, check_call};
use railnet_core::{Fold, Rank, ReduceOp};

pub use address::own_address;
pub use builder::CommunicatorBuilder;
pub use element::{Bf16, Element, F8E4M3, F8E5M2, F16};
pub use error::Error;
pub use group::Group;
pub use handle::GoOn;
pub use operation::{Operation, Transfer, TransferDirection};
pub use pending::Pending;
pub use rebuild::Agreed;
pub use window::{SignalCount, Window, WindowPath};

pub use crate::rdma::{RoceCounters, RoceOptions};

use crate::Control;
use crate::agreement::Quorum;
use crate::authentication::Authentication;
use crate::calls::{self, CallTrace, Calls};
use crate::conduit::Conduit;
use crate::engine::{At, ContextId, Engine, ListenAt, Prepared};
use crate::launch::{Launch, Variables, variable};
use crate::log::{Level, Log};
use crate::message::Member;
use crate::rdma::Rdma;
use crate::rendezvous::{self, Config, ConfigError, Door};
use choice::Placement;
use handle::ContextHandle;
use process::Process;

/// The default timeout of a call without progress: ranks load data and write checkpoints.
const LIMIT: Duration = Duration::from_mins(5);

/// How ranks reach each other, and their timeouts.
#[derive(Clone, Debug)]
pub struct Options {
    /// The timeout of a call without progress. The error says who is missing.
    pub limit: Duration,
    /// How many ranks have to survive a failure.
    pub quorum: Quorum,
    /// The conduit between all ranks; without one, shared memory inside a host and TCP between hosts.
    pub conduit: Option<Conduit>,
    /// Which packets and slices carry message authentication codes (MACs).
    pub authentication: Authentication,
    /// The NIC of this rank, where the conduit is RoCE.
    pub roce: RoceOptions,
    /// The log level on standard error.
    pub log: Level,
    /// The file of the call trace ([`calls`]); each rank adds `.rank` and its number.
    pub record: Option<PathBuf>,
    /// Whether calls are traced without a file too.
    pub traces_calls: bool,
    /// NCCL's variables for algorithms, channels, buffers and interfaces.
    pub nccl: NcclVariables,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            limit: LIMIT,
            quorum: Quorum::default(),
            conduit: None,
            authentication: Authentication::default(),
            roce: RoceOptions::default(),
            log: Level::Off,
            record: None,
            traces_calls: false,
            nccl: NcclVariables::default(),
        }
    }
}

impl Options {
    /// From the environment: `RAILNET_TIMEOUT`, `RAILNET_QUORUM`, `RAILNET_CONDUIT`, `RAILNET_AUTHENTICATION`,
    /// `RAILNET_FAULTS`, `RAILNET_PCAP`, `RAILNET_ROCE_PORT`, `RAILNET_RECORD`, `RAILNET_DEBUG` or `NCCL_DEBUG`, and NCCL's
    /// variables that apply here.
    pub fn from_env() -> Result<Self, ConfigError> {
        Self::from_variables(&variable)
    }

    /// From any source of variables.
    pub fn from_variables(variables: Variables<'_>) -> Result<Self, ConfigError> {
        let mut options = Self { log: Level::from_variables(variables), ..Self::default() };
        let variables = |name: &str| variables(name).filter(|value| !value.is_empty());
        if let Some(text) = variables("RAILNET_TIMEOUT") {
            let need = "a time such as 30s or 5min is needed";
            let wrong = ConfigError { name: "RAILNET_TIMEOUT", text: text.clone(), need: need.into() };
            options.limit = rendezvous::duration(&text).ok_or(wrong)?;
        }
        if let Some(text) = variables("RAILNET_QUORUM") {
            let need = "majority or a number of ranks such as 1 is needed";
            let wrong = |_| ConfigError { name: "RAILNET_QUORUM", text: text.clone(), need: need.into() };
            options.quorum = text.parse().map_err(wrong)?;
        }
        if let Some(text) = variables("RAILNET_CONDUIT") {
            let need = "shm, tcp or roce is needed";
            let wrong = |_| ConfigError { name: "RAILNET_CONDUIT", text: text.clone(), need: need.into() };
            options.conduit = Some(text.parse().map_err(wrong)?);
        }
        if let Some(text) = variables("RAILNET_AUTHENTICATION") {
            let need = "auto, always or off is needed";
            let wrong =
                |()| ConfigError { name: "RAILNET_AUTHENTICATION", text: text.clone(), need: need.into() };
            options.authentication = text.parse().map_err(wrong)?;
        }
        options.record = variables("RAILNET_RECORD").map(PathBuf::from);
        options.nccl = nccl(&variables)?;
        options.roce = RoceOptions::from_variables(&variables)?.with(&options.nccl)?;
        let is_on = |name: &str| options.nccl.switch(name) == Some(true);
        let forbidden = match options.conduit {
            Some(Conduit::SharedMemory) if is_on("NCCL_SHM_DISABLE") => Some("NCCL_SHM_DISABLE"),
            Some(Conduit::Roce) if is_on("NCCL_IB_DISABLE") => Some("NCCL_IB_DISABLE"),
            None if is_on("NCCL_SHM_DISABLE") => {
                options.conduit = Some(Conduit::Tcp);
                None
            }
            _ => None,
        };
        match forbidden {
            Some(name) => {
                let need = "RAILNET_CONDUIT asks for what it forbids; unset one of them";
                Err(ConfigError { name, text: "1".to_owned(), need: need.into() })
            }
            None => Ok(options),
        }
    }
}

/// NCCL's variables, as far as they are known.
fn nccl(variables: Variables<'_>) -> Result<NcclVariables, ConfigError> {
    let names = DECLARATIONS.iter().map(|one| one.name);
    let pairs = names.filter_map(|name| Some((name.to_owned(), variables(name)?))).collect();
    NcclVariables::merge([(Source::Environment, pairs)]).map_err(|error| {
        let (name, text, need) = match error {
            VariableError::Value { name, value, advice, .. } => (name, value, advice),
            other => ("NCCL_MIN_CTAS".to_owned(), "set".to_owned(), other.to_string()),
        };
        let name = declaration(&name).map_or("NCCL_", |one| one.name);
        ConfigError { name, text, need: need.into() }
    })
}

/// Ranks that do collectives with each other.
#[derive(Debug)]
pub struct Communicator {
    process: Arc<Process>,
    name: u64,
    handle: Arc<ContextHandle>,
    rank: Rank,
    /// Its ranks, as ranks of the world.
    members: Arc<[u32]>,
    placement: Placement,
    log: Log,
    splits: AtomicU64,
    windows: AtomicU64,
    /// Agreements that this rank has entered.
    agreements: AtomicU64,
    pairs: Mutex<BTreeMap<Pair, Arc<ContextHandle>>>,
    /// The timeout of a call without progress, if it is not that of the process.
    timeout: Mutex<Option<Duration>>,
}

/// What one rank sends to another under a tag.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Pair {
    from: u32,
    to: u32,
    tag: u64,
}

impl Communicator {
    /// All ranks that were started together, by the launcher's variables.
    pub fn from_env() -> Result<Self, Error> {
        let launch = Launch::from_env()?;
        Self::meet(&Config::from_env(&launch)?, &Options::from_env()?)
    }

    /// Configures a communicator of all ranks in code, with the launcher's variables as defaults.
    pub fn builder() -> CommunicatorBuilder {
        CommunicatorBuilder::default()
    }

    /// Meets all other ranks.
    pub fn meet(config: &Config, options: &Options) -> Result<Self, Error> {
        Self::meet_at(Door::New, config, options, None)
    }

    fn meet_at(
        door: Door,
        config: &Config,
        options: &Options,
        kept: Option<&TcpListener>,
    ) -> Result<Self, Error> {
        let bind = match config.bind {
            None => address::named_address(options)?,
            bind => bind,
        };
        let log = Log::new(options.log, config.rank.0);
        if !config.secret.is_given() && options.authentication == Authentication::Always {
            let need =
                "there is nothing to authenticate with: set RAILNET_SECRET to the same secret on every rank";
            let (name, text) = ("RAILNET_AUTHENTICATION", options.authentication.to_string());
            return Err(ConfigError { name, text, need: need.into() }.into());
        }
        let is_first = matches!(door, Door::New);
        if is_first && !config.secret.is_given() && config.rank.0 == 0 && config.world_size > 1 {
            let text = "no secret (RAILNET_SECRET): any process that reaches the rendezvous can join, and what ranks send is not \
                        authenticated";
            match config.listen() {
                // No connection can come from another host: a warning in the log is enough.
                Some(_) => log.warn(|| text.to_owned()),
                None => config.reminders.say(text),
            }
        }
        let security = (&config.secret, options.authentication);
        let mut prepared = None;
        let control = rendezvous::meet_at(door, config, &mut |local| {
            let kept = kept.map(TcpListener::try_clone).transpose();
            let place = ListenAt { told: bind, loopback: config.listen(), local };
            let made = kept.map_err(crate::ReachError::from);
            let made = made.and_then(|kept| Prepared::new(security, options.conduit, place, kept));
            let made = made.map_err(|error| error.trouble(config.rank.0))?;
            let blob = made.blob();
            prepared = Some(made);
            Ok(blob)
        })?;
        let prepared = prepared.expect("ranks that have met have told each other of themselves");
        // NCCL's switch for GPUs that access each other's memory applies to processes too.
        let reads_memory = options.nccl.switch("NCCL_P2P_DISABLE") != Some(true);
        let conduits = match prepared.reach(&control, config.limit, &options.roce, reads_memory) {
            Ok(conduits) => conduits,
            Err(error) => {
                control.give_up(error.trouble(config.rank.0));
                return Err(error.into());
            }
        };
        let rank = config.rank;
        let members: Arc<[u32]> = (0..config.world_size).collect();
        conduits.notes().iter().for_each(|note| log.warn(|| note.clone()));
        let control = Arc::new(control);
        let engine = Engine::new(config.job.clone(), Arc::clone(&control), conduits, options.limit);
        log.info(|| introduction(config, options, &engine));
        log.info(|| {
            let set = options.nccl.set().map(|(name, text, _)| format!("{name} is {text}"));
            let lines: Vec<String> = set.chain(options.nccl.without_effect(VariablePlace::Run)).collect();
            lines.join("\n")
        });
        let is_traced = options.record.is_some() || options.traces_calls;
        let call_trace =
            is_traced.then(|| CallTrace::new(options.record.as_deref(), about(config, &engine))).transpose();
        let made = call_trace.and_then(|call_trace| Process::new(engine, config, options, call_trace));
        let made = made.map_err(crate::ReachError::from);
        let process = made.inspect_err(|error| control.give_up(error.trouble(config.rank.0)))?;
        // An error of one rank is reported to all.
        control.all_gather("threads", &[], config.limit).map_err(crate::ReachError::from)?;
        Ok(Self::new(Arc::new(process), 0, rank, members, log))
    }

    fn new(process: Arc<Process>, name: u64, rank: Rank, members: Arc<[u32]>, log: Log) -> Self {
        let nccl = &process.origin().1.nccl;
        let (context, placement) = process.with(|engine| {
            let context = engine.context(name, rank, &members);
            let people = engine.control().members();
            let hosts: Vec<&str> = members.iter().map(|world| &*people[*world as usize].group).collect();
            let conduits = engine.conduits();
            let (slowest, cores) = (conduits.slowest(&members), conduits.cores(&members));
            let placement = Placement::new(&hosts, &cores, slowest, conduits.share_cores(&members), nccl);
            (context, placement)
        });
        let handle = Arc::new(ContextHandle::new(Arc::clone(&process), context));
        Self {
            process,
            name,
            handle,
            rank,
            members,
            placement,
            log,
            splits: AtomicU64::new(0),
            windows: AtomicU64::new(0),
            agreements: AtomicU64::new(0),
            pairs: Mutex::new(BTreeMap::new()),
            timeout: Mutex::new(None),
        }
    }

    /// The rank of this process, from 0 on.
    pub fn rank(&self) -> usize {
        self.rank.0 as usize
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.members.len()
    }

    /// The conduit from this rank to another.
    pub fn conduit(&self, rank: usize) -> Conduit {
        let world = self.members[rank];
        self.process.with(|engine| engine.conduits().kind(world))
    }

    /// The call trace of this rank so far, if calls are traced ([`Options::traces_calls`]).
    pub fn traced_calls(&self) -> Option<Calls> {
        self.process.call_trace().map(CallTrace::calls)
    }

    /// Pauses or resumes the call trace, if there is one.
    pub fn set_call_trace(&self, is_traced: bool) {
        if let Some(call_trace) = self.process.call_trace() {
            call_trace.set_enabled(is_traced);
        }
    }

    /// The number of host groups that its ranks are on.
    pub fn host_groups(&self) -> usize {
        self.placement.wiring.nodes.len()
    }

    /// Connections of unauthenticated peers that were closed, and their packets, or damaged ones, that were dropped.
    pub fn unauthenticated_refused(&self) -> u64 {
        self.process.with(|engine| engine.conduits().refused())
    }

    /// Packets that the NIC of this process has sent and received, for all communicators; `None` where the conduit is not RoCE.
    pub fn roce_counters(&self) -> Option<RoceCounters> {
        self.process.with(|engine| engine.conduits().nic_ref().map(Rdma::counters))
    }

    /// Splits it: ranks with the same `color` are together in a new communicator, in the order of `key` and then of their
    /// ranks. Every rank calls it; one without a color gets no communicator (`MPI_Comm_split`).
    pub fn split(&self, color: Option<u32>, key: i64) -> Result<Option<Self>, Error> {
        let number = self.splits.fetch_add(1, Ordering::Relaxed);
        let own = [color.map_or(-1, i64::from), key];
        let mut all = vec![0; 2 * self.size()];
        self.all_gather(&own, &mut all)?;
        let Some(color) = color else { return Ok(None) };
        let mut chosen: Vec<(i64, usize)> = all
            .chunks_exact(2)
            .enumerate()
            .filter(|(_, pair)| pair[0] == i64::from(color))
            .map(|(rank, pair)| (pair[1], rank))
            .collect();
        chosen.sort_unstable();
        let members: Arc<[u32]> = chosen.iter().map(|(_, rank)| self.members[*rank]).collect();
        let rank = chosen.iter().position(|(_, rank)| *rank == self.rank());
        let rank = Rank(rank.expect("it has chosen itself") as u32);
        let name = derived(self.name, [number, u64::from(color)]);
        Ok(Some(Self::new(Arc::clone(&self.process), name, rank, members, self.log.clone())))
    }

    /// A communicator of some of its ranks. Only these call it, all with the same ranks and the same name, which no other
    /// communicator of them has: no message is sent (`MPI_Comm_create_group`).
    pub fn subset(&self, ranks: &[usize], name: &str) -> Result<Self, Error> {
        let chosen: Vec<Rank> = ranks.iter().map(|rank| self.named(*rank)).collect::<Result<_, _>>()?;
        let twice = ranks.iter().enumerate().find(|(index, rank)| ranks[..*index].contains(rank));
        if let Some((_, rank)) = twice {
            return Err(Error::Repeated { rank: *rank });
        }
        let own = chosen.iter().position(|rank| *rank == self.rank);
        let own = own.ok_or(Error::LeftOut { rank: self.rank() })?;
        let members: Arc<[u32]> = chosen.iter().map(|rank| self.members[rank.0 as usize]).collect();
        let mut fold = Fold::new();
        name.bytes().for_each(|byte| fold.push(u64::from(byte)));
        let name = derived(self.name, [u64::MAX - 1, fold.finish()]);
        Ok(Self::new(Arc::clone(&self.process), name, Rank(own as u32), members, self.log.clone()))
    }

    /// Sets the timeout of this communicator's calls, from now on.
    pub fn set_timeout(&self, timeout: Duration) {
        *self.timeout.lock().unwrap_or_else(PoisonError::into_inner) = Some(timeout);
        let pairs: Vec<_> = self.pairs().values().cloned().collect();
        self.process.with(|engine| {
            engine.set_limit(self.context(), timeout);
            for pair in &pairs {
                engine.set_limit(pair.context, timeout);
            }
        });
    }

    /// The timeout, if [`Communicator::set_timeout`] has set one.
    fn timeout(&self) -> Option<Duration> {
        *self.timeout.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn context(&self) -> ContextId {
        self.handle.context
    }

    /// Aborts it on every rank: calls under way fail, and so do all later ones.
    pub fn abort(&self) {
        let pairs: Vec<_> = self.pairs().values().cloned().collect();
        self.process.with(|engine| {
            engine.abort(self.context());
            for pair in &pairs {
                engine.abort(pair.context);
            }
        });
    }

    fn pairs(&self) -> MutexGuard<'_, BTreeMap<Pair, Arc<ContextHandle>>> {
        self.pairs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why calls of this rank fail from now on, as far as it is known here; `None` while nothing has failed.
    pub fn failure(&self) -> Option<Error> {
        let pairs: Vec<_> = self.pairs().iter().map(|(pair, handle)| (*pair, handle.context)).collect();
        let failures = self.process.with(|engine| {
            engine.poll_notices();
            let pairs = pairs.iter().filter_map(|(pair, context)| Some((*pair, engine.failure(*context)?)));
            (engine.failure(self.context()), pairs.collect::<Vec<_>>())
        });
        match failures {
            (Some(failure), _) => Some(self.process.with(|engine| self.failed(engine, failure))),
            (None, pairs) => pairs.first().map(|(pair, failure)| self.pair_failed(failure, *pair)),
        }
    }

    /// Its ranks that are not known to be lost, in ascending order.
    pub fn survivors(&self) -> Vec<usize> {
        let gone = self.process.with(Engine::gone);
        (0..self.size()).filter(|rank| !gone.contains(&self.members[*rank])).collect()
    }

    /// The schedule of a call, cached for the next.
    fn schedule(&self, engine: &mut Engine, call: &Call) -> Result<Arc<Schedule>, Error> {
        if let Some(known) = engine.known(self.context(), call) {
            return Ok(known);
        }
        if let ReduceOp::PreMulSum(scalar) = call.op
            && scalar.dtype() != call.dtype
        {
            return Err(Error::Scalar { scalar: scalar.dtype(), data: call.dtype });
        }
        check_call(call, self.members.len() as u32)?;
        let chosen = self.placement.choose(call)?;
        let schedule = Arc::new(build(call, &chosen.choice, self.placement.wiring_of(call))?);
        self.log.info(|| {
            let Schedule { algorithm, protocol, channels, fifo, .. } = &*schedule;
            let (bytes, dtype, slot) = (call.bytes(self.members.len() as u32), call.dtype, fifo.slot);
            let plural = if *channels == 1 { "" } else { "s" };
            let how = format!("{algorithm}/{protocol}, {channels} channel{plural}, slots of {slot}");
            let why = match chosen.reasons() {
                reasons if reasons.is_empty() => reasons,
                reasons => format!(" ({reasons})"),
            };
            format!("{} of {bytes} ({dtype}) among {} ranks: {how}{why}", call.collective, self.members.len())
        });
        engine.keep(self.context(), &schedule);
        Ok(schedule)
    }

    /// Makes a call and waits for it. Buffers must be as long as the call says.
    fn run(&self, call: &Call, input: At, output: At) -> Result<(), Error> {
        self.run_while(call, (input, output), &mut || true)
    }

    /// The same, as long as `goes_on` returns true.
    fn run_while(&self, call: &Call, (input, output): (At, At), goes_on: &mut GoOn<'_>) -> Result<(), Error> {
        let (context, begun) = (self.context(), self.begins());
        let until = self.process.until();
        // The error is boxed: it is large, and would be moved on the fast path too.
        let made = self.process.with(|engine| {
            let submitted = match engine.submit_known(context, call, (input, output)) {
                Some(submitted) => submitted,
                None => {
                    let schedule = self.schedule(engine, call)?;
                    engine.submit(context, &schedule, (input, output), None)
                }
            };
            let operation = submitted.map_err(|failure| Box::new(self.refused(engine, call, failure)))?;
            Ok((operation, engine.wait(context, operation, &until)))
        });
        let (operation, done) = made.map_err(|error: Box<Error>| *error)?;
        let done = done.unwrap_or_else(|| self.handle.wait(operation, goes_on));
        if let Some(begun) = begun {
            let schedule = self.process.with(|engine| self.schedule(engine, call))?;
            trace(&self.process, (self.name, &self.members), begun, operation, &schedule, done.is_err());
        }
        done.map_err(|failure| self.process.with(|engine| self.failed(engine, failure)))
    }

    /// Starts a call whose buffers `keep` owns.
    fn start(
        &self,
        call: &Call,
        input: At,
        output: At,
        keep: impl Any + Send,
    ) -> Result<(OperationId, Started), Error> {
        let (context, begun) = (self.context(), self.begins());
        let keep = self.process.in_flight(keep);
        let started = self.process.with(|engine| {
            let schedule = self.schedule(engine, call)?;
            let noted = begun.map(|begun| (begun, Arc::clone(&schedule)));
            let submitted = engine.submit(context, &schedule, (input, output), Some(keep));
            let operation = submitted.map_err(|failure| self.refused(engine, call, failure))?;
            engine.poll(true);
            Ok::<_, Error>((operation, noted))
        })?;
        self.process.wake();
        Ok(started)
    }

    /// The time, if calls are traced.
    fn begins(&self) -> Option<Instant> {
        self.process.call_trace().filter(|call_trace| call_trace.is_enabled()).map(|_| Instant::now())
    }

    /// The error of a call that was not begun, because of an earlier failure.
    fn refused(&self, engine: &mut Engine, call: &Call, failure: Arc<Failure>) -> Error {
        engine.announce_failure(&failure, &self.members);
        let number = engine.next_operation(self.context());
        let more = notes(&failure, &self.members, engine.control());
        self.log.warn(|| format!("{} {number} was not begun: {failure}", call.collective));
        let notes = format!("\n  so {} {number} was not begun{more}", call.collective);
        Error::Failed { failure, notes }
    }

    /// The error of a one-sided operation that needs a rank that is gone, where that has said why it would leave.
    fn departed(&self, engine: &mut Engine, rank: usize) -> Option<Error> {
        engine.poll_notices();
        let departure = engine.departure(self.members[rank], &self.members)?;
        let failure = Failure::Departed { rank: Rank(rank as u32), departure, during: None };
        Some(self.failed(engine, Arc::new(failure)))
    }

    fn failed(&self, engine: &mut Engine, failure: Arc<Failure>) -> Error {
        self.log.warn(|| failure.to_string());
        failed(engine, failure, &self.members)
    }
}

/// The error of a failure that the program is about to learn of. The other ranks hear of it first.
fn failed(engine: &mut Engine, failure: Arc<Failure>, members: &[u32]) -> Error {
    engine.announce_failure(&failure, members);
    let notes = notes(&failure, members, engine.control());
    Error::Failed { failure, notes }
}

/// When a call was started, and its schedule, if calls are traced.
type Started = Option<(Instant, Arc<Schedule>)>;

/// Adds a call that is over to the call trace. `members` are ranks of the world.
fn trace(
    process: &Process,
    (communicator, members): (u64, &[u32]),
    begun: Instant,
    OperationId(sequence): OperationId,
    schedule: &Schedule,
    is_failed: bool,
) {
    let Some(call_trace) = process.call_trace() else { return };
    let Schedule { call, algorithm, protocol, .. } = schedule;
    let bytes = call.bytes(members.len() as u32);
    let world = |rank: Rank| members.get(rank.0 as usize).copied();
    let root = world(call.root);
    let (from, to) = match call.collective {
        Collective::Broadcast | Collective::Scatter => (root, None),
        Collective::Reduce | Collective::Gather => (None, root),
        Collective::SendReceive => (root, world(call.peer)),
        _ => (None, None),
    };
    let name = match call.collective {
        Collective::SendReceive if from == Some(process.control().rank().0) => format!("Send {bytes}"),
        Collective::SendReceive => format!("Receive {bytes}"),
        collective => {
            let place = if call.in_place { ", in place" } else { "" };
            format!("{collective} {bytes} {algorithm}/{protocol}{place}")
        }
    };
    call_trace.record(
        begun,
        calls::Call {
            members: members.to_vec(),
            communicator,
            sequence,
            bytes: bytes.0,
            from,
            to,
            is_failed,
            name,
            ..calls::Call::default()
        },
    );
}

/// The header of the call trace of this rank.
fn about(config: &Config, engine: &Engine) -> Calls {
    let own = config.rank.0;
    let people = engine.control().members();
    let Member { pid, host, group, .. } = &people[own as usize];
    let way = |rank: u32| if rank == own { "-".to_owned() } else { engine.conduits().kind(rank).to_string() };
    Calls {
        rank: own,
        ranks: config.world_size,
        process: *pid,
        host: host.clone(),
        group: group.clone(),
        conduits: (0..config.world_size).map(way).collect(),
        ..Calls::default()
    }
}

/// The log message of a rank after the rendezvous.
fn introduction(config: &Config, options: &Options, engine: &Engine) -> String {
    let ranks = config.world_size;
    let mut text = format!(
        "Railnet {} started by {}, rank {} of {ranks}; a call may stand still for {:?}\n",
        env!("CARGO_PKG_VERSION"),
        config.launcher,
        config.rank.0,
        options.limit,
    );
    let people = engine.control().members();
    for (rank, member) in (0..).zip(people).filter(|(rank, _)| *rank != config.rank.0) {
        let Member { pid, host, group, .. } = member;
        let kind = engine.conduits().kind(rank);
        let _ = writeln!(
            text,
            "{} -> {rank} via {kind}: process {pid} on {host}, host group {group}",
            config.rank.0
        );
    }
    let (ranks, cores) = engine.conduits().ranks_and_cores_here();
    let _ = writeln!(text, "{ranks} of the ranks share this host and its {cores} cores");
    let _ = write!(text, "packets and slices are {}", options.authentication.describe(&config.secret));
    text
}

/// The processes of the culprits of a failure, and their states.
fn notes(failure: &Failure, members: &[u32], control: &Control) -> String {
    notes_on(&failure.culprits(), &|rank| rank, members, control) + &notes_on_outsiders(failure, control)
}

/// The same of ranks that are outside of the communicator.
fn notes_on_outsiders(failure: &Failure, control: &Control) -> String {
    let mut text = String::new();
    for world in failure.outsiders().iter().filter(|world| **world < control.world_size()) {
        let _ = write!(text, "\n  rank {world} of the job is {}", process_of(*world, control));
    }
    text
}

/// The processes of these ranks; `number` maps to the ranks that the caller knows.
fn notes_on(ranks: &[Rank], number: &dyn Fn(Rank) -> Rank, members: &[u32], control: &Control) -> String {
    let mut text = String::new();
    for rank in ranks {
        let Some(world) = members.get(rank.0 as usize) else { continue };
        let _ = write!(text, "\n  rank {} is {}", number(*rank).0, process_of(*world, control));
    }
    text
}

/// Which process a rank of the world is, and its state where it is of this host.
fn process_of(world: u32, control: &Control) -> String {
    let Member { pid, host, .. } = &control.members()[world as usize];
    let state = if *host == crate::host::host_name() { state(*pid) } else { "" };
    format!("process {pid} on {host}{state}")
}

/// The state of a process of this host.
fn state(pid: u32) -> &'static str {
    let Ok(line) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return ": it is gone";
    };
    // The state follows the name, which is in parentheses and may contain anything.
    match line.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()) {
        Some('T' | 't') => ": it is stopped (state T)",
        Some('Z' | 'X') => ": it has ended",
        Some('D') => ": it waits for a device (state D)",
        _ => "",
    }
}

/// The name of a communicator that is derived from another.
fn derived(name: u64, numbers: [u64; 2]) -> u64 {
    let mut fold = Fold::new();
    fold.push(name);
    for number in numbers {
        fold.push(number);
    }
    fold.finish()
}
