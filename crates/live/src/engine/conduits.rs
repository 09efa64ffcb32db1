//! The transports of a process: which one leads to which rank, and how they are set up.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::cores::{PreferredCpu, UsableCores};
use crate::Control;
use crate::authentication::Authentication;
use crate::conduit::Conduit;
use crate::control::ControlError;
use crate::host;
use crate::launch::RendezvousAddress;
use crate::message::fields::{Reader, put_blob, put_text};
use crate::message::{Malformed, Trouble, TroubleKind};
use crate::rdma::{self, NicCard, Rdma, RoceOptions};
use crate::rendezvous::{Door, Kept};
use crate::roce::{self, SessionKeys};
use crate::secret::Secret;
use crate::shared_memory::SharedMemory;
use crate::shared_memory::fd_passing::{FdServer, is_exhaustion};
use crate::tcp::{self, Tcp};
use crate::transport::{ConnectionName, ReceiveEnd, SendEnd, Transport};

/// The most addresses of a rank.
const ADDRESSES: usize = 16;

/// A flag of a rank whose segment is mapped: all its memory can be read.
const READS: u32 = 1 << 31;

/// How a rank can be reached: its part of the address exchange.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Card {
    /// The token that its clients have to know.
    token: [u8; 16],
    /// The boot id of its machine and its network namespace.
    boot: String,
    /// The conduit that its options force.
    forced: Option<Conduit>,
    /// What its options say of authentication.
    authentication: Authentication,
    /// Whether its options say which address to use.
    is_bound: bool,
    /// Whether it listens at the first of its addresses only.
    listens_at_first: bool,
    /// Its addresses, and the port of its TCP listener.
    addresses: Vec<IpAddr>,
    port: u16,
    /// The port of the next rendezvous, if this is the first surviving rank.
    next_port: u16,
    cores: UsableCores,
}

impl Card {
    pub(crate) fn write(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(self.token);
        put_text(&mut out, &self.boot);
        out.push(self.forced.map_or(0, |conduit| 1 + conduit as u8));
        out.push(self.authentication as u8);
        out.push(u8::from(self.is_bound) | u8::from(self.listens_at_first) << 1);
        out.extend(self.port.to_le_bytes());
        out.extend(self.next_port.to_le_bytes());
        out.extend((self.addresses.len() as u32).to_le_bytes());
        for address in &self.addresses {
            put_blob(&mut out, address.to_string().as_bytes());
        }
        self.cores.write(&mut out);
        out
    }

    pub(crate) fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let token = reader.array("token")?;
        let boot = reader.text("machine", 128)?;
        let forced = match reader.byte("conduit")? {
            0 => None,
            number => Some(*Conduit::ALL.get(usize::from(number) - 1).ok_or(Malformed::Field("conduit"))?),
        };
        let authentication = usize::from(reader.byte("authentication")?);
        let authentication =
            *Authentication::ALL.get(authentication).ok_or(Malformed::Field("authentication"))?;
        let listens = reader.byte("address")?;
        let (is_bound, listens_at_first) = (listens & 1 != 0, listens & 2 != 0);
        let port = u16::from_le_bytes(reader.array("port")?);
        let next_port = u16::from_le_bytes(reader.array("port")?);
        let addresses = reader.list("addresses", |reader| {
            let text = reader.text("address", 64)?;
            text.parse().map_err(|_| Malformed::Field("address"))
        })?;
        let cores = UsableCores::read(&mut reader)?;
        reader.finish()?;
        Ok(Self {
            token,
            boot,
            forced,
            authentication,
            is_bound,
            listens_at_first,
            addresses,
            port,
            next_port,
            cores,
        })
    }

    /// The addresses at which a rank of the same host, or of another, reaches its listener.
    fn reached_at(&self, is_near: bool) -> impl Iterator<Item = IpAddr> + '_ {
        let near = (is_near && !self.listens_at_first).then_some(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let most = if self.listens_at_first { 1 } else { self.addresses.len() };
        near.into_iter().chain(self.addresses.iter().copied().take(most))
    }
}

/// Where a rank should listen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListenAt {
    /// The address that its options name.
    pub(crate) told: Option<IpAddr>,
    /// The loopback address, if all ranks meet there.
    pub(crate) loopback: Option<IpAddr>,
    /// The local address of its connection to the rendezvous; a loopback address if all ranks are on this host.
    pub(crate) local: Option<IpAddr>,
}

impl ListenAt {
    /// The address, and whether it is announced before all others. A link-local address depends on the interface: then it
    /// listens at all.
    fn address(self) -> (Option<IpAddr>, bool) {
        if let Some(told) = self.told {
            return (Some(told), !told.is_unspecified());
        }
        let found = self.loopback.or(self.local.filter(|address| !is_link_local(address)));
        (found, found.is_some_and(|address| !address.is_loopback()))
    }
}

/// What a rank opens before the rendezvous.
#[derive(Debug)]
pub(crate) struct Prepared {
    card: Card,
    counter: Option<FdServer>,
    tcp: Tcp,
    next: TcpListener,
    secret: Secret,
}

/// Why ranks that have met cannot reach each other.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReachError {
    /// The kernel refuses something.
    #[error("cannot prepare conduits: {0}")]
    Io(#[from] io::Error),
    /// The address exchange failed.
    #[error(transparent)]
    Control(#[from] crate::control::ControlError),
    /// A rank's card is malformed.
    #[error("rank {rank} told nonsense of how it is reached ({error}): do all ranks run the same version?")]
    Nonsense {
        /// The rank.
        rank: u32,
        /// What is malformed.
        error: Malformed,
    },
    /// The options of ranks force different conduits.
    #[error(
        "rank 0 was told to use {first}, rank {rank} {other}: set RAILNET_CONDUIT the same on every rank"
    )]
    Disagree {
        /// The other rank.
        rank: u32,
        /// What rank 0 was told.
        first: String,
        /// What the other rank was told.
        other: String,
    },
    /// The options of ranks authenticate differently.
    #[error(
        "rank 0 was told RAILNET_AUTHENTICATION={first}, rank {rank} {other}: set it the same on every rank"
    )]
    AuthenticationDiffers {
        /// The other rank.
        rank: u32,
        /// What rank 0 was told.
        first: Authentication,
        /// What the other rank was told.
        other: Authentication,
    },
    /// Shared memory is forced, and does not reach every rank.
    #[error("RAILNET_CONDUIT=shm, but rank {rank} shares no memory with rank {other}: {why}")]
    NotShared {
        /// The rank that reports it.
        rank: u32,
        /// The rank that it cannot reach.
        other: u32,
        /// Why not.
        why: &'static str,
    },
    /// The NIC cannot be opened.
    #[error("cannot open the NIC of this rank: {0}")]
    Nic(#[from] roce::Error),
    /// No version of IP is there on all ranks.
    #[error(
        "RAILNET_CONDUIT=roce, but no version of IP is there on every rank: rank {rank} has {has}. \
         Set RAILNET_BIND to an address of each host"
    )]
    NoAddress {
        /// A rank without an address that all others could reach.
        rank: u32,
        /// The addresses that it has.
        has: String,
    },
}

impl ReachError {
    /// What the other ranks are told of it: an error of the kernel is this rank's own.
    pub(crate) fn trouble(&self, rank: u32) -> Trouble {
        match self {
            Self::Control(ControlError::Trouble { trouble, .. }) => trouble.clone(),
            Self::Control(ControlError::HubGone { .. } | ControlError::NoAnswer { .. }) => {
                Trouble { kind: TroubleKind::Gone, ranks: vec![0], text: self.to_string() }
            }
            _ => {
                let (host, pid) = (host::host_name(), std::process::id());
                let text = format!("rank {rank} ({host}, pid {pid}) failed by itself: {self}");
                Trouble { kind: TroubleKind::Local, ranks: vec![rank], text }
            }
        }
    }
}

impl Prepared {
    /// Opens the listeners by which others will reach this rank.
    pub(crate) fn new(
        (secret, authentication): (&Secret, Authentication),
        forced: Option<Conduit>,
        place: ListenAt,
        kept: Option<TcpListener>,
    ) -> Result<Self, ReachError> {
        let token = crate::secret::random()?;
        // A kept listener decides where the rank is reached.
        let local = match &kept {
            Some(kept) => Some(kept.local_addr()?.ip()).filter(|address| !address.is_unspecified()),
            None => place.local,
        };
        let place = ListenAt { local, ..place };
        let (bind, listens_at_first) = place.address();
        let tcp = Tcp::listen(secret.clone(), token, bind)?;
        let is_bound = place.told.is_some_and(|address| !address.is_unspecified());
        let mut addresses = if is_bound { Vec::new() } else { addresses() };
        if let Some(first) = bind.filter(|_| listens_at_first) {
            addresses.retain(|address| *address != first);
            addresses.insert(0, first);
        }
        let counter = match forced {
            None | Some(Conduit::SharedMemory) => Some(FdServer::bind(token)?),
            Some(_) => None,
        };
        let next = match kept {
            Some(listener) => listener,
            None => tcp::listener(bind)?,
        };
        let next_port = next.local_addr()?.port();
        let card = Card {
            token,
            boot: boot()?,
            forced,
            authentication,
            is_bound,
            listens_at_first,
            addresses,
            port: tcp.port()?,
            next_port,
            cores: UsableCores::own(),
        };
        Ok(Self { card, counter, tcp, next, secret: secret.clone() })
    }

    /// The card for the other ranks.
    pub(crate) fn blob(&self) -> Vec<u8> {
        self.card.write()
    }

    /// Agrees with all ranks on the transport of each pair, and sets the transports up.
    pub(crate) fn reach(
        self,
        control: &Control,
        limit: Duration,
        options: &RoceOptions,
        reads_memory: bool,
    ) -> Result<Conduits, ReachError> {
        let Self { card: own, counter, mut tcp, next, secret } = self;
        let rank = control.rank().0;
        let members = control.members();
        let mut cards = Vec::with_capacity(members.len());
        for (rank, member) in (0..).zip(members) {
            let card = Card::read(&member.blob).map_err(|error| ReachError::Nonsense { rank, error })?;
            cards.push(card);
        }
        let name = |forced: Option<Conduit>| forced.map_or("what fits".to_owned(), |one| one.to_string());
        let first = cards[0].forced;
        if let Some((rank, card)) = (0..).zip(&cards).find(|(_, card)| card.forced != first) {
            return Err(ReachError::Disagree { rank, first: name(first), other: name(card.forced) });
        }
        let mode = cards[0].authentication;
        if let Some((rank, card)) = (0..).zip(&cards).find(|(_, card)| card.authentication != mode) {
            let (first, other) = (mode, card.authentication);
            return Err(ReachError::AuthenticationDiffers { rank, first, other });
        }
        let group = &members[rank as usize].group;
        let is_near = |other: u32| {
            let (card, member) = (&cards[other as usize], &members[other as usize]);
            other != rank && card.boot == own.boot && member.group == *group
        };
        let near: BTreeMap<u32, _> = (0..cards.len() as u32)
            .filter(|other| is_near(*other))
            .map(|other| {
                let process = reads_memory.then_some(members[other as usize].pid);
                (other, (cards[other as usize].token, process))
            })
            .collect();
        // A pair shares memory if both can: a container may hide one from the other.
        let agree = |reached: &[(u32, bool)]| {
            let word = |(rank, reads): &(u32, bool)| rank | if *reads { READS } else { 0 };
            let blob: Vec<u8> = reached.iter().flat_map(|one| word(one).to_le_bytes()).collect();
            control.all_gather("shared memory", &blob, limit)
        };
        let mut notes = Vec::new();
        let own_memory = match &counter {
            None => None,
            Some(counter) => match SharedMemory::new(near.len() + 1) {
                Ok(shared) => Some((counter, shared)),
                // A limit of address space (`ulimit -v`), most likely: streams need hardly any.
                Err(error) if first != Some(Conduit::SharedMemory) => {
                    notes.push(format!(
                        "no shared memory: {error} for {} GiB of address space (ulimit -v limits it); ranks of this host are \
                         reached over TCP",
                        SharedMemory::BYTES >> 30
                    ));
                    None
                }
                Err(error) => return Err(error.into()),
            },
        };
        let (mut shared, told) = match own_memory {
            Some((counter, mut shared)) => {
                let told = shared.exchange(counter, &near, limit, |shared| {
                    agree(&shared.reached().collect::<Vec<_>>())
                })??;
                (Some(shared), told)
            }
            None => (None, agree(&[])?),
        };
        let words = |one: u32| {
            let bytes = told[one as usize].as_chunks::<4>().0;
            bytes.iter().map(|word| u32::from_le_bytes(*word))
        };
        let says = |one: u32, other: u32| words(one).any(|word| word & !READS == other);
        if let Some(shared) = &mut shared {
            let readers =
                (0..cards.len() as u32).filter(|other| words(*other).any(|word| word == rank | READS));
            readers.for_each(|other| shared.set_reader(other));
        }
        let between = |one: u32, other: u32| match first {
            Some(Conduit::Roce) if one != other => Conduit::Roce,
            _ if one == other || says(one, other) && says(other, one) => Conduit::SharedMemory,
            _ => Conduit::Tcp,
        };
        let ranks = cards.len() as u32;
        let pairs: Vec<Vec<Conduit>> =
            (0..ranks).map(|one| (0..ranks).map(|other| between(one, other)).collect()).collect();
        let kinds = &pairs[rank as usize];
        if first == Some(Conduit::SharedMemory)
            && let Some(other) = (0..cards.len() as u32)
                .find(|other| *other != rank && kinds[*other as usize] != Conduit::SharedMemory)
        {
            let why =
                if near.contains_key(&other) { "it could not be reached" } else { "it is on another host" };
            return Err(ReachError::NotShared { rank, other, why });
        }
        let peers = (0..).zip(&cards).map(|(other, card): (u32, _)| {
            let is_here = card.boot == own.boot;
            let all = card.reached_at(is_here);
            let addresses = all.map(|address| SocketAddr::new(address, card.port)).collect();
            let is_sealed = mode.covers(&secret, is_here);
            (other, tcp::Peer { addresses, token: card.token, is_here, is_sealed })
        });
        let here = cards.iter().filter(|card| card.boot == own.boot);
        let shares_cores = here.clone().count() > UsableCores::union_count(here.map(|card| &card.cores));
        tcp.set_peers(peers.collect(), shares_cores);
        let nic = match first {
            Some(Conduit::Roce) => Some(open_nic(control, &cards, limit, options, &secret)?),
            _ => None,
        };
        Ok(Conduits { rank, pairs, shared, tcp, nic, cards, next: Some(next), notes })
    }
}

/// Opens the NIC of this rank, and exchanges addresses with the others.
fn open_nic(
    control: &Control,
    cards: &[Card],
    limit: Duration,
    options: &RoceOptions,
    secret: &Secret,
) -> Result<Rdma, ReachError> {
    let rank = control.rank().0;
    let own = &cards[rank as usize];
    let before = cards[..rank as usize].iter().filter(|card| card.boot == own.boot).count();
    let addresses = nic_addresses(rank, cards)?;
    let mut nic = Rdma::open(rank, cards.len() as u32, &addresses, before as u16, options)?;
    let capture = options.create_capture(rank)?;
    let told = control.all_gather("NICs", &nic.card().write(), limit)?;
    let mut peers = Vec::with_capacity(told.len());
    for (rank, bytes) in (0..).zip(&told) {
        let error = Malformed::Field("NIC");
        peers.push(NicCard::read(bytes).ok_or(ReachError::Nonsense { rank, error })?);
    }
    let way = |other: &Card| {
        let is_here = other.boot == own.boot;
        // A token is of one process and one rendezvous, so these keys are used once.
        let key = |from: &Card, to: &Card| secret.key_of(b"railnet packets", &[&from.token, &to.token]);
        let is_covered = own.authentication.covers(secret, is_here);
        (is_here, is_covered.then(|| SessionKeys { send: key(own, other), receive: key(other, own) }))
    };
    nic.set_peers(&peers, &cards.iter().map(way).collect::<Vec<_>>());
    if let Some(file) = capture {
        nic.capture(Box::new(io::BufWriter::new(file)), options.capture_most)?;
    }
    Ok(nic)
}

/// Addresses for this rank's NIC that all others reach, the best first. On one host they are loopback addresses, unless another
/// was asked for.
fn nic_addresses(rank: u32, cards: &[Card]) -> Result<Vec<IpAddr>, ReachError> {
    let own = &cards[rank as usize];
    let of = |card: &Card, is_it: fn(&IpAddr) -> bool| card.addresses.iter().copied().find(is_it);
    if cards.iter().all(|card| card.boot == own.boot && !card.is_bound) {
        return Ok(rdma::loopback_addresses(&cards[0].token, rank));
    }
    for version in [IpAddr::is_ipv4 as fn(&IpAddr) -> bool, IpAddr::is_ipv6] {
        if let (true, Some(address)) =
            (cards.iter().all(|card| of(card, version).is_some()), of(own, version))
        {
            return Ok(vec![address]);
        }
    }
    let lacks = cards.iter().position(|card| of(card, IpAddr::is_ipv4).is_none()).unwrap_or(0);
    let has: Vec<String> = cards[lacks].addresses.iter().map(ToString::to_string).collect();
    let has = if has.is_empty() { "no address".to_owned() } else { has.join(", ") };
    Err(ReachError::NoAddress { rank: lacks as u32, has })
}

/// The transports of this process.
#[derive(Debug)]
pub(crate) struct Conduits {
    rank: u32,
    /// The conduit of each pair of ranks.
    pairs: Vec<Vec<Conduit>>,
    shared: Option<SharedMemory>,
    tcp: Tcp,
    nic: Option<Rdma>,
    cards: Vec<Card>,
    /// The listener of the next rendezvous. It stays open until this rank leaves, so that nobody else takes its port.
    next: Option<TcpListener>,
    /// What is unavailable, and what is used instead.
    notes: Vec<String>,
}

impl Conduits {
    /// What is unavailable, and what is used instead.
    pub(crate) fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The conduit to a rank.
    pub(crate) fn kind(&self, rank: u32) -> Conduit {
        self.pairs[self.rank as usize][rank as usize]
    }

    /// The slowest conduit between any two of these ranks.
    pub(crate) fn slowest(&self, ranks: &[u32]) -> Conduit {
        let row = |one: &u32| &self.pairs[*one as usize];
        let kinds = ranks.iter().flat_map(|one| ranks.iter().map(|other| row(one)[*other as usize]));
        kinds.max().unwrap_or(Conduit::SharedMemory)
    }

    /// How many ranks are on the host of a rank, and how many cores these have.
    pub(crate) fn ranks_and_cores(&self, rank: u32) -> (usize, usize) {
        let boot = &self.cards[rank as usize].boot;
        let here = self.cards.iter().filter(|card| card.boot == *boot);
        (here.clone().count(), UsableCores::union_count(here.map(|card| &card.cores)))
    }

    /// The same of this rank's host.
    pub(crate) fn ranks_and_cores_here(&self) -> (usize, usize) {
        self.ranks_and_cores(self.rank)
    }

    /// The preferred CPU of this rank, if ranks of this host share cores.
    pub(super) fn preferred_cpu(&self) -> Option<PreferredCpu> {
        self.preferred_cpu_of(self.rank)
    }

    /// The preferred CPU of any rank: all ranks compute the same.
    fn preferred_cpu_of(&self, rank: u32) -> Option<PreferredCpu> {
        let boot = &self.cards[rank as usize].boot;
        let is_here = |card: &&Card| card.boot == *boot;
        let index = self.cards[..rank as usize].iter().filter(is_here).count();
        let all: Vec<&UsableCores> = self.cards.iter().filter(is_here).map(|card| &card.cores).collect();
        PreferredCpu::of(index, &all)
    }

    /// The preferred CPUs of these ranks, if they share cores.
    pub(crate) fn cores(&self, ranks: &[u32]) -> Vec<Option<usize>> {
        ranks
            .iter()
            .map(|rank| self.preferred_cpu_of(*rank).map(|preferred_cpu| preferred_cpu.core()))
            .collect()
    }

    /// Whether ranks share cores on a host that one of these is on: all ranks compute the same.
    pub(crate) fn share_cores(&self, ranks: &[u32]) -> bool {
        ranks.iter().any(|rank| {
            let (ranks, cores) = self.ranks_and_cores(*rank);
            ranks > cores
        })
    }

    /// The next rendezvous of these ranks: at the first of them.
    pub(crate) fn next_meeting(&self, ranks: &[u32]) -> io::Result<(Option<RendezvousAddress>, Door)> {
        let cards: Vec<&Card> = ranks.iter().map(|rank| &self.cards[*rank as usize]).collect();
        let Some(first) = cards.first() else { return Ok((None, Door::Kept(None))) };
        let own = if ranks[0] == self.rank {
            Some(Kept { listener: self.kept_listener()?, addresses: self.kept_addresses(ranks) })
        } else {
            None
        };
        let are_near = cards.iter().all(|card| card.boot == first.boot);
        let address = first.reached_at(are_near).next().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        Ok((Some(RendezvousAddress::new(&address.to_string(), first.next_port)), Door::Kept(own)))
    }

    /// The listener at which surviving ranks find this one. It lives as long as the process has communicators, also those
    /// rebuilt from this one.
    pub(crate) fn kept_listener(&self) -> io::Result<TcpListener> {
        self.next.as_ref().ok_or(io::ErrorKind::NotConnected)?.try_clone()
    }

    /// This rank leaves: survivors do not wait for it.
    pub(crate) fn close_kept_listener(&mut self) {
        self.next = None;
    }

    /// Where these ranks have such listeners.
    pub(crate) fn kept_addresses(&self, ranks: &[u32]) -> Vec<Vec<SocketAddr>> {
        let own = &self.cards[self.rank as usize];
        let addresses = |rank: &u32| {
            let card = &self.cards[*rank as usize];
            let is_near = card.boot == own.boot;
            // A process of this host answers at the first of them or nowhere.
            let most = if is_near { 1 } else { ADDRESSES };
            let all = card.reached_at(is_near).take(most);
            all.map(|address| SocketAddr::new(address, card.next_port)).collect()
        };
        ranks.iter().map(addresses).collect()
    }

    /// Connections of unauthenticated peers that were closed, and their packets, or damaged ones, that were dropped.
    pub(crate) fn refused(&self) -> u64 {
        self.tcp.refused() + self.nic.as_ref().map_or(0, Transport::refused)
    }

    /// The NIC, if there is one.
    #[inline]
    pub(crate) fn nic(&mut self) -> Option<&mut Rdma> {
        self.nic.as_mut()
    }

    /// The NIC, read-only.
    pub(crate) fn nic_ref(&self) -> Option<&Rdma> {
        self.nic.as_ref()
    }

    /// Accepts pending connections: one left in the backlog would wake a blocked rank again and again.
    pub(crate) fn poll_accept(&mut self) {
        // An error is returned again when a stream is needed, and handled there.
        let _ = self.tcp.poll_accept();
    }

    /// The TCP of this rank.
    pub(crate) fn tcp(&mut self) -> &mut Tcp {
        &mut self.tcp
    }

    /// Polls the NIC. Whether anything moved.
    #[inline]
    pub(super) fn progress(&mut self) -> bool {
        let Self { nic, tcp, .. } = self;
        nic.as_mut().is_some_and(|nic| nic.progress(tcp))
    }

    /// Opens the sending end of a connection to a rank.
    pub(super) fn connect(&mut self, to: u32, name: ConnectionName) -> io::Result<SendEnd> {
        let conduit = self.kind(to);
        let Self { nic, shared, tcp, .. } = self;
        Ok(match (nic, shared, conduit) {
            (Some(nic), ..) => SendEnd::Roce(nic.connect(to, name, Some(tcp))?),
            (None, Some(shared), Conduit::SharedMemory) => SendEnd::Shared(shared.connect(to, name, None)?),
            _ => SendEnd::Tcp(tcp.connect(to, name, None)?),
        })
    }

    /// Opens the receiving end of a connection from the rank in its name.
    pub(super) fn accept(&mut self, name: ConnectionName) -> io::Result<ReceiveEnd> {
        let conduit = self.kind(name.from);
        let Self { nic, shared, tcp, .. } = self;
        let end = match (nic, shared, conduit) {
            (Some(nic), ..) => nic.accept(name)?.map(ReceiveEnd::Roce),
            (None, Some(shared), Conduit::SharedMemory) => shared.accept(name)?.map(ReceiveEnd::Shared),
            _ => tcp.accept(name)?.map(ReceiveEnd::Tcp),
        };
        Ok(end.unwrap_or(ReceiveEnd::Unconnected))
    }

    /// This rank receives nothing more of a communicator.
    pub(super) fn forget(&mut self, context: u64) {
        self.tcp.forget(context);
        if let Some(shared) = &mut self.shared {
            shared.forget(context);
        }
    }

    /// Tells the ranks of this host whether this one blocks, and has to be woken.
    pub(super) fn set_blocked(&self, is_blocked: bool) {
        if let Some(shared) = &self.shared {
            shared.set_blocked(is_blocked);
        }
    }

    /// What wakes a rank that blocks.
    pub(super) fn doorbells(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let nic = self.nic.iter().map(Transport::doorbell);
        self.shared.iter().map(Transport::doorbell).chain([self.tcp.doorbell()]).chain(nic)
    }
}

/// Identifies the boot of the machine and the network namespace: containers have their own, with loopback and unix sockets of
/// their own.
///
/// A rank without a free descriptor could not read them, and would take itself for a host of its own: that is an error.
fn boot() -> io::Result<String> {
    let known = |found: io::Result<String>| match found {
        Err(error) if !is_exhaustion(&error) => Ok(String::new()),
        found => found,
    };
    let boot = known(std::fs::read_to_string("/proc/sys/kernel/random/boot_id"))?;
    let network =
        known(std::fs::read_link("/proc/self/ns/net").map(|path| path.to_string_lossy().into_owned()))?;
    Ok(format!("{} {network}", boot.trim()))
}

/// This host's addresses that others may reach, IPv4 first: where both work, it is configured with more care.
fn addresses() -> Vec<IpAddr> {
    let mut addresses: Vec<IpAddr> = host::interfaces()
        .into_iter()
        .flatten()
        .flat_map(|interface| interface.addresses)
        .filter(|address| !address.is_loopback() && !is_link_local(address))
        .collect();
    addresses.sort_by_key(IpAddr::is_ipv6);
    addresses.truncate(ADDRESSES);
    addresses
}

/// Link-local addresses depend on the interface.
fn is_link_local(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_is_read_as_it_was_written() {
        let card = Card {
            token: [7; 16],
            boot: "3b1c".to_owned(),
            forced: Some(Conduit::Tcp),
            authentication: Authentication::Always,
            is_bound: true,
            listens_at_first: true,
            addresses: vec!["10.0.0.1".parse().unwrap(), "2001:db8::1".parse().unwrap()],
            port: 4791,
            next_port: 29_500,
            cores: UsableCores { usable: 2, mask: vec![3] },
        };
        let bytes = card.write();
        assert_eq!(Card::read(&bytes).unwrap(), card);
        assert!((0..bytes.len()).all(|length| Card::read(&bytes[..length]).is_err()));
    }
}
