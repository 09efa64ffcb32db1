//! How a window is made: every rank tells the others where its part is, and finds its way to theirs.

use std::marker::PhantomData;
use std::net::TcpStream;
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use railnet_core::DataType;

use super::staging::Staging;
use super::{Error, Road, Window};
use crate::communicator::{Communicator, Element, derived};
use crate::conduit::Conduit;
use crate::memory::Buffer;
use crate::message::Malformed;
use crate::message::fields::Reader;
use crate::rdma::window::{Extent, WindowCard};
use crate::shared_memory::handover::{self, Counter, Token};
use crate::shared_memory::segment::Segment;
use crate::tcp::Name;
use crate::tcp::window::{Link, Service};

/// What parts of a window's memory begin at multiples of.
const PAGE: usize = 4096;
/// What tells windows from other things that are named after a communicator.
const WINDOWS: u64 = u64::MAX - 1;
/// Bytes of what a rank says when it cannot take part.
const WORDS: usize = 200;

/// Where things lie in a part of so many bytes: the data, then a page or more of signals.
pub(super) fn extent(length: usize) -> Extent {
    let signals = length.max(1).next_multiple_of(PAGE);
    Extent { length: length as u64, signals: signals as u64 }
}

/// The word that says that the owner has no more use for it: after a word for each rank, and one for the NIC.
pub(super) fn closed_at(extent: Extent, ranks: usize) -> usize {
    extent.signals as usize + 8 * (ranks + 1)
}

/// What a rank tells of its part.
struct Card {
    /// Whether it has one.
    is_ready: bool,
    count: u64,
    dtype: u8,
    /// With what its memory is asked for.
    token: Token,
    nic: Option<WindowCard>,
}

impl Card {
    fn write(&self) -> Vec<u8> {
        let mut out = vec![u8::from(self.is_ready), self.dtype];
        out.extend(self.count.to_le_bytes());
        out.extend(self.token);
        out.extend(self.nic.iter().flat_map(WindowCard::write));
        out
    }

    fn read(bytes: &[u8], ranks: usize, has_nic: bool) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let (is_ready, dtype) = (reader.byte("state")? != 0, reader.byte("type")?);
        let count = reader.long("elements")?;
        let token = reader.array("token")?;
        let nic = if has_nic { Some(WindowCard::read(&mut reader, ranks)?) } else { None };
        reader.finish()?;
        Ok(Self { is_ready, count, dtype, token, nic })
    }
}

impl Communicator {
    /// Makes a window in which this rank has `length` elements of zero, others may have other numbers of them. Every rank
    /// calls it, with the same type.
    pub fn window<T: Element>(&self, length: usize) -> Result<Window<'_, T>, Error> {
        let number = self.windows.fetch_add(1, Ordering::Relaxed);
        let outcome = self.prepare::<T>(number, length);
        let (card, mut prepared, trouble) = match outcome {
            Ok((card, prepared)) => (card, Some(prepared), None),
            Err(error) => (self.empty_card::<T>(), None, Some(error)),
        };
        let cards = self.exchange(&card)?;
        // All ranks do this, or none does.
        let trouble = match &mut prepared {
            Some(prepared) if cards.iter().all(|card| card.is_ready) => {
                self.find_ways::<T>(number, prepared, &cards).err()
            }
            _ => trouble,
        };
        self.agree(number, trouble.as_ref())?;
        let prepared = prepared.expect("it was agreed that nothing is wrong");
        let window = self.open(number, prepared, &cards)?;
        // Nobody writes to a NIC that is not ready for it.
        self.barrier()?;
        Ok(window)
    }

    /// What this rank has of a window before it knows the others.
    fn prepare<T: Element>(&self, number: u64, length: usize) -> std::io::Result<(Card, Prepared)> {
        let bytes = length.checked_mul(size_of::<T>()).filter(|bytes| *bytes < 1 << 46);
        let extent = extent(bytes.ok_or_else(|| std::io::Error::other("it is larger than any memory"))?);
        let ranks = self.size();
        let all = extent.signals as usize + (8 * (ranks + 2)).next_multiple_of(PAGE);
        let segment = Arc::new(Segment::create(all)?);
        let memory = Buffer::mapped(Arc::clone(&segment));
        let token = crate::secret::random()?;
        let counter = Counter::open(token)?;
        let opened = self.process.with(|engine| {
            let Some(nic) = engine.conduits_mut().nic() else { return Ok(None) };
            let staging = Buffer::mapped(Arc::new(Segment::create(Staging::BYTES)?));
            let opened = nic.open_window(self.rank.0, &self.members, &memory, extent, &staging);
            opened.map(|(token, card)| Some((card, Staging::new(token, staging))))
        });
        let (nic, staging) = opened?.unzip();
        let card = Card { is_ready: true, count: length as u64, dtype: kind::<T>(), token, nic };
        let name = derived(self.name, [WINDOWS, number]);
        Ok((card, Prepared { name, memory, segment, counter, extent, staging, roads: Vec::new() }))
    }

    /// What a rank says that cannot take part: as long as what others say.
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
        Card { is_ready: false, count: 0, dtype: kind::<T>(), token: Token::default(), nic }
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

    /// Finds what leads to the parts of all others.
    fn find_ways<T: Element>(
        &self,
        number: u64,
        prepared: &mut Prepared,
        cards: &[Card],
    ) -> std::io::Result<()> {
        let name = |dtype: u8| DataType::ALL.get(usize::from(dtype)).map_or("nothing", |one| one.name());
        let mut others = cards.iter().enumerate();
        if let Some((rank, card)) = others.find(|(_, card)| card.dtype != kind::<T>()) {
            let (own, other) = (name(kind::<T>()), name(card.dtype));
            let text = format!("window #{number} has elements of type {own} here and {other} on rank {rank}");
            return Err(std::io::Error::other(text));
        }
        let limit = self.process.origin().1.limit;
        let stop = AtomicBool::new(false);
        let Prepared { counter, segment, roads, name, memory, .. } = prepared;
        let give = [segment.as_fd(), segment.as_fd()];
        std::thread::scope(|scope| {
            let server = scope.spawn(|| counter.serve(&give, &stop));
            for (rank, card) in cards.iter().enumerate() {
                let road = match self.conduit(rank) {
                    _ if rank == self.rank() => Ok(Road::Memory(memory.clone())),
                    Conduit::SharedMemory => handover::fetch(&card.token, limit)
                        .and_then(|(file, _)| Segment::open(file))
                        .map(|segment| Road::Memory(Buffer::mapped(Arc::new(segment)))),
                    Conduit::Tcp => self.dial(*name, rank).map(|link| Road::Tcp(Mutex::new(link))),
                    Conduit::Roce => Ok(Road::Nic),
                };
                roads.push(road);
            }
            // Others fetch this rank's memory until all have said that they have what they need.
            let all = self.barrier();
            stop.store(true, Ordering::Release);
            server.join().map_err(|_| std::io::Error::other("handing over memory failed"))?;
            all.map_err(std::io::Error::other)
        })?;
        match roads.iter_mut().find(|road| road.is_err()) {
            Some(road) => Err(std::mem::replace(road, Ok(Road::Nic)).expect_err("it was found to be one")),
            None => Ok(()),
        }
    }

    fn dial(&self, context: u64, rank: usize) -> std::io::Result<Link> {
        let (from, to) = (self.members[self.rank()], self.members[rank]);
        let name = Name { context, from, channel: 0, lane: 0 };
        Link::new(self.process.with(|engine| engine.conduits_mut().tcp().dial(to, name))?)
    }

    /// Whether all ranks have come so far: if one has not, all know which and why.
    fn agree(&self, number: u64, trouble: Option<&std::io::Error>) -> Result<(), Error> {
        let mut own = [0; WORDS];
        if let Some(trouble) = trouble {
            let text = trouble.to_string();
            let length = text.len().min(WORDS);
            own[..length].copy_from_slice(&text.as_bytes()[..length]);
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

    /// The last steps, when all have found their ways.
    fn open<T: Element>(
        &self,
        number: u64,
        prepared: Prepared,
        cards: &[Card],
    ) -> Result<Window<'_, T>, Error> {
        let Prepared { name, memory, extent, staging, roads, .. } = prepared;
        let roads: Vec<Road> = roads.into_iter().flatten().collect();
        let mut streams = Vec::new();
        for (rank, _) in roads.iter().enumerate().filter(|(_, road)| matches!(road, Road::Tcp(_))) {
            streams.push((rank, self.called(number, name, rank)?));
        }
        let io = |error: std::io::Error| Error::from(crate::ReachError::from(error));
        let service = match streams.is_empty() {
            true => None,
            false => {
                let (length, signals) = (extent.length as usize, extent.signals as usize);
                Some(Service::open(memory.clone(), length, signals, streams).map_err(io)?)
            }
        };
        if let Some(staging) = &staging {
            let cards: Vec<WindowCard> = cards.iter().filter_map(|card| card.nic.clone()).collect();
            let connected = self.process.with(|engine| match engine.conduits_mut().nic() {
                Some(nic) => nic.connect_window(staging.token, &cards),
                None => Ok(()),
            });
            connected.map_err(io)?;
        }
        let lengths: Vec<usize> = cards.iter().map(|card| card.count as usize).collect();
        Ok(Window {
            communicator: self,
            number,
            memory,
            extent,
            used: Mutex::new(vec![0; lengths.len()]),
            lengths,
            roads,
            service,
            staging: staging.map(Mutex::new),
            _elements: PhantomData,
        })
    }

    /// The stream that another rank has opened: it was sent, and may still be on its way.
    fn called(&self, number: u64, context: u64, rank: usize) -> Result<TcpStream, Error> {
        let limit = self.process.origin().1.limit;
        let began = Instant::now();
        let name = Name { context, from: self.members[rank], channel: 0, lane: 0 };
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

/// The number of a type of elements.
fn kind<T: Element>() -> u8 {
    DataType::ALL.iter().position(|one| *one == T::TYPE).expect("every type is in the list") as u8
}

/// What a rank has of a window that is being made.
struct Prepared {
    name: u64,
    memory: Buffer,
    segment: Arc<Segment>,
    counter: Counter,
    extent: Extent,
    staging: Option<Staging>,
    roads: Vec<std::io::Result<Road>>,
}
