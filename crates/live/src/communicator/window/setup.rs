//! Setting up a window: every rank announces its part, and finds a route to those of the others.

use std::collections::BTreeSet;
use std::io;
use std::marker::PhantomData;
use std::os::fd::AsFd as _;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

use railnet_core::DataType;

use super::owner::Owner;
use super::staging::Staging;
use super::{Error, Route, Window, WindowPath};
use crate::communicator::{Communicator, Element, derived};
use crate::conduit::Conduit;
use crate::memory::Buffer;
use crate::memory::given::Given;
use crate::message::Malformed;
use crate::message::fields::Reader;
use crate::rdma::window::{Signals, WindowCard};
use crate::shared_memory::fd_passing::{self, FdServer, Token};
use crate::shared_memory::peer_process::PeerProcess;
use crate::shared_memory::segment::Segment;
use crate::tcp::Stream;
use crate::tcp::window::{Link, ServiceThread};
use crate::thread::Reserved;
use crate::transport::ConnectionName;

/// Alignment of the parts of a window's memory.
const PAGE: usize = 4096;
/// Tells windows from other names that are derived from a communicator.
const WINDOWS: u64 = u64::MAX - 1;
/// Bytes of the reason why a rank cannot take part.
const WORDS: usize = 200;

/// The words after the counts of signals: whether the owner has closed the window, and a probe by which a process that can read
/// its memory recognises it.
pub(super) fn closed_at(signals: &Signals, ranks: usize) -> usize {
    signals.start + 8 * (ranks + 1)
}

fn probe_at(signals: &Signals, ranks: usize) -> usize {
    signals.start + 8 * (ranks + 2)
}

/// Bytes of the control words.
const fn signal_bytes(ranks: usize) -> usize {
    (8 * (ranks + 3)).next_multiple_of(PAGE)
}

/// The offset of the signals in a segment whose part has so many bytes.
fn signals_after(length: usize) -> usize {
    length.max(1).next_multiple_of(PAGE)
}

/// What a rank announces of its part.
struct Card {
    /// Whether it can take part.
    is_ready: bool,
    count: u64,
    dtype: u8,
    /// The address of its data, if that is memory that the program had already; otherwise 0.
    given_at: u64,
    /// The address of its probe.
    probe_at: u64,
    /// The token with which its segment is fetched.
    token: Token,
    nic: Option<WindowCard>,
}

impl Card {
    fn write(&self) -> Vec<u8> {
        let mut out = vec![u8::from(self.is_ready), self.dtype];
        for long in [self.count, self.given_at, self.probe_at] {
            out.extend(long.to_le_bytes());
        }
        out.extend(self.token);
        out.extend(self.nic.iter().flat_map(WindowCard::write));
        out
    }

    fn read(bytes: &[u8], ranks: usize, has_nic: bool) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let (is_ready, dtype) = (reader.byte("state")? != 0, reader.byte("type")?);
        let count = reader.long("elements")?;
        let (given_at, probe_at) = (reader.long("memory")?, reader.long("memory")?);
        let token = reader.array("token")?;
        let nic = if has_nic { Some(WindowCard::read(&mut reader, ranks)?) } else { None };
        reader.finish()?;
        Ok(Self { is_ready, count, dtype, given_at, probe_at, token, nic })
    }
}

impl Communicator {
    /// Makes a window in which this rank has `length` elements of zero; other ranks may have other numbers. Every rank calls
    /// it, with the same type.
    pub fn window<T: Element>(&self, length: usize) -> Result<Window<'_, T>, Error> {
        Window::make(&Owner::Borrowed(self), || Source::new::<T>(length))
    }

    /// Makes a window of memory that this rank already has. Every rank calls this or [`Communicator::window`], with the same
    /// type. The window owns the vector until [`Window::into_vec`] returns it; nothing is copied. On an error it is dropped.
    ///
    /// Over RoCEv2 the memory is registered with the NIC, over TCP the RMA service of the window writes to it. Ranks of the
    /// same host write to it by `process_vm_writev`, because memory that was not allocated to be shared cannot be mapped by
    /// others; if the kernel forbids that (`kernel.yama.ptrace_scope`, other users, containers), or with `NCCL_P2P_DISABLE=1`,
    /// by requests to the service. [`Window::path`] tells which.
    ///
    /// ```
    /// use railnet_live::Communicator;
    ///
    /// let world = Communicator::from_env()?;
    /// let (rank, size) = (world.rank(), world.size());
    /// let gradients = vec![0.0_f32; 1000];
    /// let window = world.register(gradients)?;
    /// window.put_signal((rank + 1) % size, 10, &[rank as f32; 5])?;
    /// let before = (rank + size - 1) % size;
    /// window.wait_signals(&[(before, 1)])?;
    /// // Every rank calls it; the vector is the one that was registered.
    /// let gradients = window.into_vec()?;
    /// assert_eq!(gradients[10..15], [before as f32; 5]);
    /// # Ok::<(), railnet_live::communicator::Error>(())
    /// ```
    pub fn register<T: Element>(&self, memory: Vec<T>) -> Result<Window<'_, T>, Error> {
        Window::make(&Owner::Borrowed(self), || {
            let elements = memory.len();
            let given = Given::vector(memory).map_err(|memory| misaligned(memory.as_ptr().cast()))?;
            Ok(Source::Given { elements, given })
        })
    }

    /// The same with memory that is not a vector, such as a mapped file or what another library allocated.
    ///
    /// # Safety
    /// The memory has `length` elements. Until [`Window::close`] has returned without an error, it is read and written only
    /// through the window, and not freed; if it is never closed, as long as processes of other ranks live.
    #[expect(unsafe_code, reason = "who has the memory promises to leave it alone")]
    pub unsafe fn register_raw<T: Element>(
        &self,
        start: NonNull<T>,
        length: usize,
    ) -> Result<Window<'_, T>, Error> {
        // SAFETY: as the caller promises.
        Window::make(&Owner::Borrowed(self), || unsafe { Source::raw(start, length) })
    }

    /// What this rank prepares before it knows the others.
    fn prepare<T: Element>(&self, number: u64, source: Source) -> io::Result<(Card, Prepared)> {
        let ranks = self.size();
        // Others map the counts of signals, even if they cannot map the data.
        let (elements, length, start) = match &source {
            Source::New { elements, bytes } => (*elements, *bytes, signals_after(*bytes)),
            Source::Given { elements, .. } => (*elements, elements * size_of::<T>(), 0),
        };
        let segment = Arc::new(Segment::create(start + signal_bytes(ranks))?);
        let mapped = Buffer::mapped(Arc::clone(&segment));
        let signals = Signals { memory: mapped.clone(), start };
        let (memory, given_at) = match source {
            Source::New { .. } => (mapped, 0),
            Source::Given { given, .. } => {
                let memory = Buffer::given(Arc::new(given));
                let address = memory.address();
                (memory, address)
            }
        };
        let token: Token = crate::secret::random()?;
        let probe = probe_at(&signals, ranks);
        signals.memory.store(probe, known_by(&token));
        let probe_at = signals.memory.address() + probe as u64;
        let handover = Some((FdServer::bind(token)?, Reserved::new("railnet-handover")?));
        let opened = self.process.with(|engine| {
            let Some(nic) = engine.conduits_mut().nic() else { return Ok(None) };
            let staging = Buffer::mapped(Arc::new(Segment::create(Staging::BYTES)?));
            let opened =
                nic.open_window(self.rank.0, &self.members, &memory, length as u64, &signals, &staging);
            opened.map(|(token, card)| Some((card, Staging::new(token, staging))))
        });
        let (nic, staging) = opened?.unzip();
        let (count, dtype) = (elements as u64, kind::<T>());
        let card = Card { is_ready: true, count, dtype, given_at, probe_at, token, nic };
        let name = derived(self.name, [WINDOWS, number]);
        fd_passing::check_spare()?;
        Ok((card, Prepared { name, memory, length, signals, segment, handover, staging, routes: Vec::new() }))
    }

    /// The announcement of a rank that cannot take part: as long as any other.
    fn empty_card<T: Element>(&self) -> Card {
        let ranks = self.size();
        let has_nic = self.process.with(|engine| engine.conduits().nic_ref().is_some());
        let nic = match has_nic {
            true => {
                let zeros = vec![0; 36 + 4 * ranks];
                WindowCard::read(&mut Reader::new(&zeros), ranks).ok()
            }
            false => None,
        };
        Card {
            is_ready: false,
            count: 0,
            dtype: kind::<T>(),
            given_at: 0,
            probe_at: 0,
            token: Token::default(),
            nic,
        }
    }

    fn exchange(&self, card: &Card) -> Result<Vec<Card>, Error> {
        let own = card.write();
        let mut all = vec![0; own.len() * self.size()];
        self.all_gather(&own, &mut all)?;
        let cards = (0..).zip(all.chunks_exact(own.len())).map(|(rank, bytes)| {
            let read = Card::read(bytes, self.size(), card.nic.is_some());
            read.map_err(|error| crate::ReachError::Nonsense { rank, error }.into())
        });
        cards.collect()
    }

    /// Finds the routes to the parts of all others.
    fn find_ways<T: Element>(&self, number: u64, prepared: &mut Prepared, cards: &[Card]) -> io::Result<()> {
        let name = |dtype: u8| DataType::ALL.get(usize::from(dtype)).map_or("nothing", |one| one.name());
        let mut others = cards.iter().enumerate();
        if let Some((rank, card)) = others.find(|(_, card)| card.dtype != kind::<T>()) {
            let (own, other) = (name(kind::<T>()), name(card.dtype));
            let text = format!("window #{number} has elements of type {own} here and {other} on rank {rank}");
            return Err(io::Error::other(text));
        }
        let limit = self.process.origin().1.limit;
        let Prepared { handover, segment, routes, name, memory, signals, .. } = prepared;
        let stop = Arc::new(AtomicBool::new(false));
        let server = handover.take().map(|(counter, thread)| {
            let (segment, stop) = (Arc::clone(segment), Arc::clone(&stop));
            thread.start(move || _ = counter.serve(&[segment.as_fd(), segment.as_fd()], &stop))
        });
        for (rank, card) in cards.iter().enumerate() {
            let route = match self.conduit(rank) {
                _ if rank == self.rank() => Ok(Route::Memory(memory.clone(), signals.clone())),
                Conduit::SharedMemory => fd_passing::fetch(&card.token, limit)
                    .and_then(|(file, _)| Segment::open(file))
                    .and_then(|segment| self.road_on_host::<T>(*name, rank, card, segment)),
                Conduit::Tcp => self.dial(*name, rank).map(|link| Route::Tcp(Mutex::new(link))),
                Conduit::Roce => Ok(Route::Nic),
            };
            routes.push(route);
        }
        if let Err(error) = fd_passing::check_spare() {
            routes.push(Err(error));
        }
        if let Some(route) = routes.iter().position(Result::is_err) {
            // Resources are freed, so that others can be answered.
            let error = routes.swap_remove(route);
            *routes = vec![error];
        }
        // Others fetch this rank's segment until all have said that they have it.
        let all = self.barrier();
        stop.store(true, Ordering::Release);
        let joined = server.map_or(Ok(()), JoinHandle::join);
        joined.map_err(|_| io::Error::other("handing over memory failed"))?;
        all.map_err(io::Error::other)?;
        match routes.iter_mut().find(|route| route.is_err()) {
            Some(route) => Err(std::mem::replace(route, Ok(Route::Nic)).expect_err("it was found to be one")),
            None => Ok(()),
        }
    }

    /// The route to the part of a rank of this host, whose segment this is.
    fn road_on_host<T: Element>(
        &self,
        name: u64,
        rank: usize,
        card: &Card,
        segment: Segment,
    ) -> io::Result<Route> {
        let memory = Buffer::mapped(Arc::new(segment));
        if card.given_at == 0 {
            let start = signals_after(card.count as usize * size_of::<T>());
            return Ok(Route::Memory(memory.clone(), Signals { memory, start }));
        }
        let is_allowed = self.process.origin().1.nccl.switch("NCCL_P2P_DISABLE") != Some(true);
        let process = self.process.control().members()[self.members[rank] as usize].pid;
        let found =
            is_allowed.then(|| PeerProcess::find(process, card.probe_at, known_by(&card.token))).flatten();
        match found {
            Some(process) => Ok(Route::PeerProcess(process, card.given_at, Signals { memory, start: 0 })),
            None => self.dial(name, rank).map(|link| Route::Tcp(Mutex::new(link))),
        }
    }

    /// The path from each rank to each, by source.
    fn exchange_paths(&self, routes: &[Route]) -> Result<Vec<u8>, Error> {
        let own: Vec<u8> = routes.iter().map(|route| route.path() as u8).collect();
        let mut all = vec![0; own.len() * self.size()];
        self.all_gather(&own, &mut all)?;
        Ok(all)
    }

    fn dial(&self, context: u64, rank: usize) -> io::Result<Link> {
        let (from, to) = (self.members[self.rank()], self.members[rank]);
        let name = ConnectionName { context, from, channel: 0, lane: 0 };
        Link::new(self.process.with(|engine| engine.conduits_mut().tcp().dial(to, name))?)
    }

    /// Checks whether all ranks have succeeded so far: if one has not, all know which and why.
    fn agree_on_window(&self, number: u64, trouble: Option<String>) -> Result<(), Error> {
        let mut own = [0; WORDS];
        if let Some(trouble) = trouble {
            let length = trouble.len().min(WORDS);
            own[..length].copy_from_slice(&trouble.as_bytes()[..length]);
        }
        let mut all = vec![0; WORDS * self.size()];
        self.all_gather(&own, &mut all)?;
        let Some((rank, text)) = all.chunks_exact(WORDS).enumerate().find(|(_, text)| text[0] != 0) else {
            return Ok(());
        };
        let text = String::from_utf8_lossy(text);
        let why = format!("cannot take part: {}", text.trim_end_matches('\0'));
        let what = format!("making window #{number}");
        Err(Error::OneSided { what, rank, why, notes: String::new() })
    }

    /// The stream that another rank has opened: it was connected, and may not be accepted yet.
    fn called(&self, number: u64, context: u64, rank: usize) -> Result<Stream, Error> {
        let limit = self.process.origin().1.limit;
        let began = Instant::now();
        let name = ConnectionName { context, from: self.members[rank], channel: 0, lane: 0 };
        loop {
            let found = self.process.with(|engine| engine.conduits_mut().tcp().take(name));
            if let Some(stream) = found.map_err(crate::ReachError::from)? {
                return Ok(stream);
            }
            if began.elapsed() > limit {
                let (what, why) = (format!("making window #{number}"), "has not connected".to_owned());
                return Err(Error::OneSided { what, rank, why, notes: String::new() });
            }
            std::thread::yield_now();
        }
    }
}

impl<'a, T: Element> Window<'a, T> {
    fn make(owner: &Owner<'a>, source: impl FnOnce() -> io::Result<Source>) -> Result<Self, Error> {
        let communicator = &**owner;
        let number = communicator.windows.fetch_add(1, Ordering::Relaxed);
        let outcome = source().and_then(|source| communicator.prepare::<T>(number, source));
        let (card, mut prepared, trouble) = match outcome {
            Ok((card, prepared)) => (card, Some(prepared), None),
            Err(error) => (communicator.empty_card::<T>(), None, Some(error)),
        };
        let cards = communicator.exchange(&card)?;
        // All ranks do this, or none does.
        let trouble = match &mut prepared {
            Some(prepared) if cards.iter().all(|card| card.is_ready) => {
                communicator.find_ways::<T>(number, prepared, &cards).err()
            }
            _ => trouble,
        };
        communicator.agree_on_window(number, trouble.map(|trouble| trouble.to_string()))?;
        let prepared = prepared.expect("it was agreed that nothing is wrong");
        let window = Self::open(owner.clone(), number, prepared, &cards);
        // No rank writes to a NIC that is not ready for it, or to a rank that lacks a resource.
        communicator.agree_on_window(number, window.as_ref().err().map(ToString::to_string))?;
        window
    }

    /// The last steps, when all have found their routes.
    fn open(owner: Owner<'a>, number: u64, prepared: Prepared, cards: &[Card]) -> Result<Self, Error> {
        let communicator = &*owner;
        let Prepared { name, memory, length, signals, staging, routes, .. } = prepared;
        let routes: Vec<Route> = routes.into_iter().flatten().collect();
        let paths = communicator.exchange_paths(&routes)?;
        let reaches = |rank: usize, path: WindowPath| {
            paths[rank * communicator.size() + communicator.rank()] == path as u8
        };
        let mut streams = Vec::new();
        for rank in (0..communicator.size()).filter(|rank| reaches(*rank, WindowPath::Service)) {
            streams.push((rank, communicator.called(number, name, rank)?));
        }
        let is_written_from_outside =
            (0..communicator.size()).any(|rank| reaches(rank, WindowPath::ProcessMemory));
        communicator.log.info(|| {
            let paths: BTreeSet<WindowPath> = routes.iter().map(Route::path).collect();
            let paths: Vec<String> = paths.iter().map(ToString::to_string).collect();
            format!("window #{number}: {}", paths.join(", "))
        });
        let failed = |error: io::Error| Error::from(crate::ReachError::from(error));
        let service = match streams.is_empty() {
            true => None,
            false => {
                Some(ServiceThread::open(memory.clone(), length, signals.clone(), streams).map_err(failed)?)
            }
        };
        if let Some(staging) = &staging {
            let cards: Vec<WindowCard> = cards.iter().filter_map(|card| card.nic.clone()).collect();
            let connected = communicator.process.with(|engine| match engine.conduits_mut().nic() {
                Some(nic) => nic.connect_window(staging.token, &cards),
                None => Ok(()),
            });
            connected.map_err(failed)?;
        }
        let lengths: Vec<usize> = cards.iter().map(|card| card.count as usize).collect();
        Ok(Self {
            communicator: owner,
            number,
            memory,
            signals,
            is_written_from_outside,
            used: Mutex::new(vec![0; lengths.len()]),
            lengths,
            routes,
            service,
            staging: staging.map(Mutex::new),
            _elements: PhantomData,
        })
    }
}

impl<T: Element> Window<'static, T> {
    /// Makes a window as [`Communicator::window`] does, which owns its communicator: for bindings of other languages.
    pub fn create(communicator: Arc<Communicator>, length: usize) -> Result<Self, Error> {
        Self::make(&Owner::Shared(communicator), || Source::new::<T>(length))
    }

    /// The same of memory that the program has, as [`Communicator::register_raw`].
    ///
    /// # Safety
    /// As for [`Communicator::register_raw`].
    #[expect(unsafe_code, reason = "who has the memory promises to leave it alone")]
    pub unsafe fn register_raw(
        communicator: Arc<Communicator>,
        start: NonNull<T>,
        length: usize,
    ) -> Result<Self, Error> {
        // SAFETY: as the caller promises.
        Self::make(&Owner::Shared(communicator), || unsafe { Source::raw(start, length) })
    }
}

/// The memory of a part of a window.
enum Source {
    New { elements: usize, bytes: usize },
    Given { elements: usize, given: Given },
}

impl Source {
    /// Elements of zero.
    fn new<T: Element>(length: usize) -> io::Result<Self> {
        let bytes = length.checked_mul(size_of::<T>()).filter(|bytes| *bytes < 1 << 46);
        let bytes = bytes.ok_or_else(|| io::Error::other("it is larger than any memory"))?;
        Ok(Self::New { elements: length, bytes })
    }

    /// Memory of the program.
    ///
    /// # Safety
    /// As for [`Communicator::register_raw`].
    #[expect(unsafe_code, reason = "who has the memory promises to leave it alone")]
    unsafe fn raw<T: Element>(start: NonNull<T>, length: usize) -> io::Result<Self> {
        let first = start.as_ptr().cast();
        // SAFETY: as the caller promises.
        let given = unsafe { Given::memory(first, length * size_of::<T>()) };
        Ok(Self::Given { elements: length, given: given.ok_or_else(|| misaligned(first))? })
    }
}

fn misaligned(start: *const u8) -> io::Error {
    io::Error::other(format!("its memory begins at {start:p}, which is no multiple of 8"))
}

/// The probe of a process that has a token.
fn known_by(token: &Token) -> u64 {
    u64::from_le_bytes(*token.first_chunk().expect("a token is longer than that"))
}

/// The number of a data type.
fn kind<T: Element>() -> u8 {
    DataType::ALL.iter().position(|one| *one == T::TYPE).expect("every type is in the list") as u8
}

/// A window that is being set up.
struct Prepared {
    name: u64,
    memory: Buffer,
    /// Bytes of its data.
    length: usize,
    signals: Signals,
    segment: Arc<Segment>,
    /// Serves this rank's segment, and the thread that does.
    handover: Option<(FdServer, Reserved)>,
    staging: Option<Staging>,
    routes: Vec<io::Result<Route>>,
}
