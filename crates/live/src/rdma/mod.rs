//! Collectives over RoCEv2: the NIC conduit of `railnet-coll`, all connections of a process on its one NIC.
//!
//! The slots of a connection are memory of this process that the NIC may use. Whatever moves between them is the NIC's
//! business from the moment a slice is handed over: it is held until the receiver asks for it, sent, and sent again
//! until it is acknowledged. So a call is over when its machine says so, and not when all that it sent is acknowledged:
//! slots are the conduit's own, and a thread keeps the NIC going while the program computes. What is not acknowledged
//! holds up the end of the process ([`Rdma::is_drained`]), and nothing else.

pub(crate) mod handshake;
mod options;
mod status;
mod transport;
pub(crate) mod window;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use railnet_coll::conduit::SlotMemory;
use railnet_coll::conduit::net::{Fill, Handle, NetConfig, NetError, Receiver, Sender};
use railnet_coll::machine::{Expect, Filled, Mark};
use railnet_core::{Psn, QueuePairNumber, Random, Span};
use railnet_nic::memory::SpaceId;
use railnet_nic::recovery::RecoveryKind;
use railnet_nic::{Access, Completion, CompletionQueue, Key, Mtu, Path, ProtectionDomain, VerbsError};
use railnet_wire::{Gid, ROCE_PORT};
use rustix::event::epoll;

pub use options::RoceOptions;

use crate::host;
use crate::memory::{Buffer, ProcessMemory};
use crate::roce::{self, Config, Driver, Guard, SessionKeys};
use crate::tcp::Tcp;
use crate::transport::ConnectionName;
use crate::transport::limits::{DEPTH, ROCE_SLOT as SLOT};
use handshake::{Handshake, Step};

/// Bytes of the slots of a connection.
const SLOTS: usize = DEPTH as usize * SLOT;
/// Packets of a connection under way: what its slots hold. Only those that are lost are sent again.
const WINDOW: u16 = 64;
/// How long after a timeout the answer to one packet is no proof that the others were lost: a peer that was not on its core
/// takes in a window of packets in less.
const SPURIOUS_WAIT: Span = Span::from_us(500);
/// Entries of the completion queue. Each connection has eight slices under way at most.
const COMPLETIONS: u32 = 1 << 16;
/// Bytes of a packet besides its payload: IPv6, UDP, BTH, RETH, immediate data and ICRC, and some for an extension header.
const HEADERS: u32 = 40 + 8 + 12 + 16 + 4 + 4 + 44;
/// How long an end stays after all that it sent is acknowledged: hundreds of times as long as the other end waits before it
/// asks again.
const LINGER: Duration = Duration::from_secs(1);
/// Completions that are taken at once.
const BATCH: usize = 32;

/// What a rank tells the others of its NIC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NicCard {
    /// Where it receives.
    pub(crate) address: SocketAddr,
    /// Payload bytes of a full packet that its network carries.
    pub(crate) mtu: u32,
}

impl NicCard {
    pub(crate) fn write(&self) -> Vec<u8> {
        format!("{} {}", self.address, self.mtu).into_bytes()
    }

    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let (address, mtu) = std::str::from_utf8(bytes).ok()?.split_once(' ')?;
        Some(Self { address: address.parse().ok()?, mtu: mtu.parse().ok()? })
    }
}

/// Packets of a rank's NIC so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RoceCounters {
    /// Packets sent, acknowledgements and those that were sent again included.
    pub sent: u64,
    /// Packets sent again.
    pub resent: u64,
    /// Acknowledgement timeouts.
    pub timeouts: u64,
    /// Packets received.
    pub received: u64,
    /// Sends that the kernel refused.
    pub refused: u64,
}

/// The NIC of this process, and the connections of collectives on it.
#[derive(Debug)]
pub(crate) struct Rdma {
    driver: Driver,
    domain: ProtectionDomain,
    queue: CompletionQueue,
    peers: Vec<SocketAddr>,
    /// What packets of each rank are held to.
    guards: Vec<Guard>,
    mtu: Mtu,
    options: RoceOptions,
    /// Ends by their token. One is used again only where its end was retired: nothing late can come of it.
    ends: Vec<Option<End>>,
    free: Vec<u32>,
    /// Ends that have no more to do, and since when all that they sent is acknowledged.
    retired: Vec<(Slots, Option<Instant>)>,
    /// One-sided windows by their token.
    windows: Vec<Option<window::End>>,
    /// Receivers whose senders have not come yet.
    awaited: Vec<(ConnectionName, u32)>,
    handshakes: Vec<Handshake>,
    /// Readable when the NIC or a handshake has something to do.
    watch: OwnedFd,
    dice: Random,
    /// Why nothing works any more.
    failure: Option<String>,
}

/// One end of a connection.
#[derive(Debug)]
struct End {
    peer: u32,
    half: Half,
    space: SpaceId,
    keys: Vec<Key>,
    /// Slices that have arrived or are out of their slots, and were not told of.
    done: u32,
    /// What the receiver does now, if that was not told.
    heard: Option<Mark>,
    /// Why it carries nothing any more.
    failure: Option<String>,
}

impl End {
    /// Whether all that it sent is acknowledged.
    fn is_done(&self) -> bool {
        match &self.half {
            Half::Sends(sender, _) => sender.waiting() == 0 && sender.under_way() == 0,
            Half::Receives(_) => true,
        }
    }
}

#[derive(Debug)]
enum Half {
    Sends(Sender, SlotMemory),
    Receives(Receiver),
}

impl Half {
    fn handle(&self) -> Handle {
        match self {
            Self::Sends(sender, _) => sender.handle(),
            Self::Receives(receiver) => receiver.handle(),
        }
    }

    fn queue_pairs(&self) -> &[QueuePairNumber] {
        match self {
            Self::Sends(sender, _) => sender.queue_pairs(),
            Self::Receives(receiver) => receiver.queue_pairs(),
        }
    }
}

/// The slots of one end: its name at the NIC, and where its data lies.
#[derive(Debug)]
pub(crate) struct Slots {
    token: u32,
    buffer: Buffer,
}

impl Slots {
    /// Where the data of a slice goes, or is.
    #[inline]
    pub(crate) fn data(&self, slot: u32, length: usize) -> *mut u8 {
        assert!(slot < DEPTH && length <= SLOT, "{length} bytes do not fit into slot {slot}");
        self.buffer.pointer().wrapping_add(slot as usize * SLOT)
    }
}

/// The largest payload of a packet on the interface of an address.
fn mtu_of(address: IpAddr) -> u32 {
    // All of 127.0.0.0/8 is the loopback interface's, which lists one of them.
    let has_it = |one: &host::Interface| {
        one.addresses.contains(&address) || one.is_loopback && address.is_ipv4() && address.is_loopback()
    };
    let found = host::interfaces().into_iter().flatten().find(has_it);
    let room = found.and_then(|one| one.mtu).unwrap_or(1500).saturating_sub(HEADERS);
    [4096, 2048, 1024, 512].into_iter().find(|mtu| *mtu <= room).unwrap_or(256)
}

/// Whether an address or port cannot be had, and another one might.
fn is_elsewhere(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable)
}

/// The addresses at which the NIC of a rank can have RoCEv2's port where all ranks are on one host: one for each rank, in
/// one block of 127.0.0.0/8 for the job, `127.block.0.1` for rank 0, `127.block.0.2` for rank 1. Blocks come from what rank 0
/// drew at random, several in case another job has one; the last is that of the host itself.
pub(crate) fn loopback_addresses(drawn: &[u8], rank: u32) -> Vec<IpAddr> {
    const HOSTS: u32 = 254;
    let (high, low) = (rank / HOSTS, rank % HOSTS + 1);
    let blocks = drawn.iter().filter(|block| !matches!(**block, 0 | 255));
    let own = blocks.filter_map(|block| {
        let high = u8::try_from(high).ok()?;
        Some(IpAddr::V4(Ipv4Addr::new(127, *block, high, low as u8)))
    });
    own.chain([IpAddr::V4(Ipv4Addr::LOCALHOST)]).collect()
}

impl Rdma {
    /// Opens the NIC of a rank, one of so many, at the first of these addresses that it can have. `index` counts the ranks of
    /// this host.
    pub(crate) fn open(
        rank: u32,
        ranks: u32,
        addresses: &[IpAddr],
        index: u16,
        options: &RoceOptions,
    ) -> Result<Self, roce::Error> {
        let port = match options.port {
            Some(first) => first.checked_add(index).unwrap_or(0),
            None => ROCE_PORT,
        };
        let last = addresses.last().copied().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        // Who names ports has NICs that differ by these alone.
        let addresses = if options.port.is_some() { &[last] } else { addresses };
        // The others are told where it is: any port will do where that one is taken.
        let places = addresses.iter().map(|address| SocketAddr::new(*address, port));
        let mut places = places.chain([SocketAddr::new(last, 0)]).peekable();
        loop {
            let place = places.next().expect("the last one is not skipped");
            match Self::open_at(rank, ranks, place, options) {
                Err(roce::Error::Bind { source, .. }) if places.peek().is_some() && is_elsewhere(&source) => {
                }
                outcome => return outcome,
            }
        }
    }

    fn open_at(
        rank: u32,
        ranks: u32,
        address: SocketAddr,
        options: &RoceOptions,
    ) -> Result<Self, roce::Error> {
        let mut config = Config::new(address);
        config.senders = ranks.saturating_sub(1).max(1);
        // Its slices are too short to gain by it, and what comes from others would wait.
        config.rest = Duration::ZERO;
        config.faults = options.faults;
        // Not the same luck for every rank.
        config.faults.seed = config.faults.seed.wrapping_add(u64::from(rank));
        // Who does not answer may be slow. Whether it is dead, the control channel knows.
        config.nic.behaviour.retry_seven_is_infinite = true;
        config.nic.recovery = RecoveryKind::SelectiveRepeat { window: WINDOW, reordering: Span::ZERO };
        config.nic.behaviour.spurious_timeout_wait = SPURIOUS_WAIT;
        let mut driver = Driver::open(&config, ProcessMemory::default())?;
        let domain = driver.nic_mut().alloc_pd();
        let queue = driver.nic_mut().create_cq(COMPLETIONS)?;
        let bind = |source| roce::Error::Bind { address: driver.local(), source };
        let watch = watch(driver.as_fd()).map_err(bind)?;
        let dice = Random::from_seed(config.nic.seed);
        Ok(Self {
            driver,
            domain,
            queue,
            peers: Vec::new(),
            guards: Vec::new(),
            mtu: Mtu::Mtu256,
            options: options.clone(),
            ends: Vec::new(),
            free: Vec::new(),
            retired: Vec::new(),
            windows: Vec::new(),
            awaited: Vec::new(),
            handshakes: Vec::new(),
            watch,
            dice,
            failure: None,
        })
    }

    /// What the others have to know.
    pub(crate) fn card(&self) -> NicCard {
        let address = self.driver.local();
        NicCard { address, mtu: mtu_of(address.ip()) }
    }

    /// The NICs of all ranks, in their order; which of them are on this host, and the keys of a session with those between which
    /// and this one packets are authenticated.
    pub(crate) fn set_peers(&mut self, cards: &[NicCard], ways: &[(bool, Option<SessionKeys>)]) {
        let guard = |(is_here, keys): &(bool, Option<SessionKeys>)| {
            let session = keys.as_ref().map(|keys| self.driver.add_session(keys));
            // A host has one way to itself: nothing is gained there by source ports that differ.
            Guard { exact_port: *is_here, session }
        };
        self.guards = ways.iter().map(guard).collect();
        self.peers = cards.iter().map(|card| card.address).collect();
        let mtu = cards.iter().map(|card| card.mtu).min();
        self.mtu = mtu.and_then(Mtu::from_bytes).unwrap_or(Mtu::Mtu1024);
    }

    /// Writes what goes over the wire to a file from now on. Where NICs have other ports than RoCEv2's, the file says so.
    pub(crate) fn capture(&mut self, write: Box<dyn io::Write + Send>, most: Option<u64>) -> io::Result<()> {
        let mut ports: Vec<u16> = self.peers.iter().map(SocketAddr::port).collect();
        ports.sort_unstable();
        ports.dedup();
        let odd = ports.into_iter().filter(|port| *port != ROCE_PORT);
        let hints: Vec<String> = odd.map(|port| format!("-d udp.port=={port},rroce")).collect();
        let hint = (!hints.is_empty())
            .then(|| format!("RoCEv2 on ports of its own; Wireshark needs: {}", hints.join(" ")));
        self.driver.capture_first(write, most, hint.as_deref()).map_err(io::Error::other)
    }

    /// Ends it.
    pub(crate) fn finish_capture(&mut self) {
        // One that could not be written to its end is cut short; nobody is left to be told.
        let _ = self.driver.finish_capture();
    }

    /// Packets that nobody here waits for, or that were damaged.
    pub(crate) fn refused(&self) -> u64 {
        let nic = self.driver.nic().counters();
        let strange: u64 = roce::STRANGE.iter().map(|reason| nic.dropped(*reason)).sum();
        let driver = self.driver.counters();
        driver.malformed + driver.forged_port + driver.forged_code + strange
    }

    /// Can be read when there is something to do.
    pub(crate) fn watch(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }

    /// How long it may be left alone if nothing comes in: `None` is for ever.
    pub(crate) fn next_timeout(&self) -> Option<Duration> {
        self.driver.next_timeout()
    }

    /// Packets that came in so far.
    pub(crate) fn received(&self) -> u64 {
        self.driver.counters().received
    }

    /// What it sent and received so far.
    pub(crate) fn counters(&self) -> RoceCounters {
        let (nic, driver) = (self.driver.nic().counters(), self.driver.counters());
        RoceCounters {
            sent: nic.sent,
            resent: nic.resent,
            timeouts: nic.timeouts,
            received: nic.received,
            refused: driver.refused,
        }
    }

    /// The end from which slices are sent to a rank. Its queue pairs are told to the other end, whenever that comes.
    pub(crate) fn sender(&mut self, tcp: &Tcp, to: u32, name: ConnectionName) -> io::Result<Slots> {
        let token = self.token();
        let buffer = Buffer::new(SLOTS + Sender::RING_BYTES as usize);
        let space = self.driver.memory_mut().add(&buffer);
        let ring = buffer.address() + SLOTS as u64;
        let slots = self.register(space, buffer.address(), SLOTS as u64, Access::NONE)?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let ring = self.register(space, ring, Sender::RING_BYTES, access)?;
        let config = self.net_config();
        let sender = Sender::new(self.driver.nic_mut(), self.domain, self.queue, config, token, ring);
        let sender = sender.map_err(io::Error::other)?;
        let mut handshake = Handshake::new(token, tcp.dial(to, name)?)?;
        handshake.tell(&sender.handle())?;
        self.add(token, to, Half::Sends(sender, slots), space, vec![slots.key, ring.key]);
        self.begin(handshake)?;
        Ok(Slots { token, buffer })
    }

    /// The end at which slices of a rank arrive.
    pub(crate) fn receiver(&mut self, from: u32, name: ConnectionName) -> io::Result<Slots> {
        let token = self.token();
        let buffer = Buffer::new(SLOTS);
        let space = self.driver.memory_mut().add(&buffer);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let slots = self.register(space, buffer.address(), SLOTS as u64, access)?;
        let config = self.net_config();
        let receiver = Receiver::new(self.driver.nic_mut(), self.domain, self.queue, config, token, slots);
        let receiver = receiver.map_err(io::Error::other)?;
        self.add(token, from, Half::Receives(receiver), space, vec![slots.key]);
        self.awaited.push((name, token));
        Ok(Slots { token, buffer })
    }

    fn net_config(&mut self) -> NetConfig {
        let psn = Psn::new(self.dice.next_u32());
        let RoceOptions { queue_pairs, split, timeout, retry_count, .. } = self.options;
        let mtu = self.mtu;
        NetConfig { queue_pairs, split, mtu, timeout, retry_count, psn, ..NetConfig::default() }
    }

    fn register(
        &mut self,
        space: SpaceId,
        address: u64,
        length: u64,
        access: Access,
    ) -> io::Result<SlotMemory> {
        let key = self.driver.register(self.domain, space, address, length, access);
        Ok(SlotMemory { space, address, key: key.map_err(io::Error::other)? })
    }

    fn add(&mut self, token: u32, peer: u32, half: Half, space: SpaceId, keys: Vec<Key>) {
        let end = Some(End { peer, half, space, keys, done: 0, heard: None, failure: None });
        match self.ends.get_mut(token as usize) {
            Some(place) => {
                self.free.pop();
                *place = end;
            }
            None => self.ends.push(end),
        }
    }

    /// The token of the next end.
    fn token(&self) -> u32 {
        self.free.last().copied().unwrap_or(self.ends.len() as u32)
    }

    /// Nothing more is to be done at an end. It stays until all that it sent is acknowledged, and then for as long as the
    /// other end may ask again because it missed that. Those before it that need not stay any longer go.
    pub(crate) fn retire(&mut self, slots: Slots) {
        self.retired.push((slots, None));
        // Nothing of those that go is left among the completions.
        self.collect();
        let now = Instant::now();
        for (slots, mut since) in std::mem::take(&mut self.retired) {
            let Some(end) = &self.ends[slots.token as usize] else { continue };
            let is_over = end.is_done() || end.failure.is_some();
            if is_over && now.duration_since(*since.get_or_insert(now)) >= LINGER {
                self.close(&slots);
                self.free.push(slots.token);
            } else {
                self.retired.push((slots, since));
            }
        }
    }

    fn begin(&mut self, handshake: Handshake) -> io::Result<()> {
        epoll::add(&self.watch, handshake.stream(), epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        self.handshakes.push(handshake);
        Ok(())
    }

    /// Forgets an end: nothing is sent or taken for it any more.
    pub(crate) fn close(&mut self, slots: &Slots) {
        let Some(end) = self.ends[slots.token as usize].take() else { return };
        self.awaited.retain(|(_, token)| *token != slots.token);
        self.handshakes.retain(|handshake| handshake.token != slots.token);
        for queue_pair in end.half.queue_pairs() {
            let gone = self.driver.destroy(*queue_pair);
            debug_assert!(gone.is_ok(), "it was made here");
        }
        for key in end.keys {
            let gone: Result<(), VerbsError> = self.driver.nic_mut().dereg_mr(key);
            debug_assert!(gone.is_ok(), "it was registered here");
        }
        self.driver.memory_mut().remove(end.space);
    }

    /// A slot is filled: it goes as soon as the receiver asks for it.
    pub(crate) fn fill(&mut self, slots: &Slots, filled: &Filled) {
        let Some(End { half: Half::Sends(sender, memory), heard, failure, .. }) =
            &mut self.ends[slots.token as usize]
        else {
            return;
        };
        debug_assert_eq!(filled.layout.stride(), SLOT as u64, "slots lie where the work put its data");
        let fill = Fill {
            address: memory.slot(&filled.layout, filled.slot),
            length: filled.bytes.0 as u32,
            key: memory.key,
            mark: filled.mark,
            label: filled.tag.into(),
        };
        let (nic, mut cx) = self.driver.lend();
        match sender.fill(nic, &mut cx, fill) {
            Ok(mark) => *heard = mark.or(*heard),
            Err(error) => *failure = Some(error.to_string()),
        }
    }

    /// A call will receive something: it is asked for.
    pub(crate) fn expect(&mut self, slots: &Slots, expect: Expect) {
        self.ask(slots, |receiver, driver| {
            let (nic, mut cx) = driver.lend();
            receiver.expect(nic, &mut cx, expect)
        });
    }

    /// The oldest slice that arrived is out of its slot: the next is asked for.
    pub(crate) fn release(&mut self, slots: &Slots) {
        self.ask(slots, |receiver, driver| {
            let (nic, mut cx) = driver.lend();
            receiver.emptied(nic, &mut cx)
        });
    }

    fn ask(&mut self, slots: &Slots, ask: impl FnOnce(&mut Receiver, &mut Driver) -> Result<(), NetError>) {
        if let Some(End { half: Half::Receives(receiver), failure, .. }) =
            &mut self.ends[slots.token as usize]
            && let Err(error) = ask(receiver, &mut self.driver)
        {
            *failure = Some(error.to_string());
        }
    }

    /// What happened to a sending end since the last look: slices that are out of their slots, and what the receiver
    /// does where that is new.
    #[inline]
    pub(crate) fn news(&mut self, slots: &Slots) -> io::Result<(u32, Option<Mark>)> {
        let end = self.sound(slots)?;
        Ok((std::mem::take(&mut end.done), end.heard.take()))
    }

    /// Whether one more slice has arrived. It is taken off the count.
    #[inline]
    pub(crate) fn arrived(&mut self, slots: &Slots) -> io::Result<bool> {
        let end = self.sound(slots)?;
        let has_more = end.done > 0;
        end.done -= u32::from(has_more);
        Ok(has_more)
    }

    /// An end that can carry something.
    #[inline]
    fn sound(&mut self, slots: &Slots) -> io::Result<&mut End> {
        let end = self.ends[slots.token as usize].as_mut().expect("it was not closed");
        match end.failure.as_ref().or(self.failure.as_ref()) {
            Some(failure) => Err(io::Error::other(failure.clone())),
            None => Ok(end),
        }
    }

    /// Does what can be done now. Whether anything was.
    pub(crate) fn progress(&mut self, tcp: &mut Tcp) -> bool {
        if !self.awaited.is_empty() {
            self.welcome(tcp);
        }
        let mut moved = !self.handshakes.is_empty() && self.shake_hands();
        match self.driver.progress() {
            Ok(true) => {
                self.collect();
                moved = true;
            }
            Ok(false) => {}
            Err(error) => self.failure = Some(format!("the NIC cannot receive: {error}")),
        }
        moved
    }

    /// Takes completions and clear-to-sends to their ends.
    fn collect(&mut self) {
        let mut batch = [Completion::EMPTY; BATCH];
        loop {
            let count = self.driver.poll_cq(self.queue, &mut batch);
            for completion in &batch[..count] {
                if (completion.work >> 32) as u32 & window::WINDOWS != 0 {
                    self.window_completed(completion);
                    continue;
                }
                let Some(Some(end)) = self.ends.get_mut((completion.work >> 32) as usize) else { continue };
                let told = match &mut end.half {
                    Half::Sends(sender, _) => sender.completed(completion),
                    Half::Receives(receiver) => receiver.completed(completion),
                };
                match told {
                    Ok(slices) => end.done += slices,
                    Err(error) => end.failure = Some(error.to_string()),
                }
            }
            if count < BATCH {
                break;
            }
        }
        let (nic, mut cx) = self.driver.lend();
        for end in self.ends.iter_mut().flatten() {
            let Half::Sends(sender, _) = &mut end.half else { continue };
            match sender.poll(nic, &mut cx) {
                Ok(mark) => end.heard = mark.or(end.heard),
                Err(error) => end.failure = Some(error.to_string()),
            }
        }
    }

    /// Looks whether senders have come that receivers here wait for.
    fn welcome(&mut self, tcp: &mut Tcp) {
        let mut at = 0;
        while at < self.awaited.len() {
            let (name, token) = self.awaited[at];
            let begun = match tcp.take(name) {
                Ok(None) => {
                    at += 1;
                    continue;
                }
                Ok(Some(stream)) => Handshake::new(token, stream).and_then(|handshake| self.begin(handshake)),
                Err(error) => Err(error),
            };
            self.awaited.remove(at);
            if let Err(error) = begun {
                self.fail(token, &error);
            }
        }
    }

    fn fail(&mut self, token: u32, error: &io::Error) {
        if let Some(end) = &mut self.ends[token as usize] {
            end.failure = Some(format!("cannot exchange queue pairs with rank {}: {error}", end.peer));
        }
    }

    fn shake_hands(&mut self) -> bool {
        let mut moved = false;
        for mut handshake in std::mem::take(&mut self.handshakes) {
            let token = handshake.token;
            match self.shake(&mut handshake) {
                Ok(Shaken::Waits) => self.handshakes.push(handshake),
                Ok(Shaken::Moved) => {
                    moved = true;
                    self.handshakes.push(handshake);
                }
                Ok(Shaken::Over) => moved = true,
                Err(error) => {
                    moved = true;
                    self.fail(token, &error);
                }
            }
        }
        moved
    }

    fn shake(&mut self, handshake: &mut Handshake) -> io::Result<Shaken> {
        let token = handshake.token as usize;
        let (step, Some(end)) = (handshake.step()?, &self.ends[token]) else { return Ok(Shaken::Over) };
        match (step, &end.half) {
            (Step::Nothing, _) => Ok(Shaken::Waits),
            (Step::Handle(peer), Half::Sends(..)) => {
                self.connect(token, &peer)?;
                handshake.tell_ready()?;
                Ok(Shaken::Over)
            }
            (Step::Handle(peer), half @ Half::Receives(_)) => {
                handshake.tell(&half.handle())?;
                handshake.await_ready(peer);
                Ok(Shaken::Moved)
            }
            (Step::Ready(peer), _) => {
                self.connect(token, &peer)?;
                Ok(Shaken::Over)
            }
        }
    }

    /// Connects an end to the other.
    fn connect(&mut self, token: usize, handle: &Handle) -> io::Result<()> {
        let Some(end) = &mut self.ends[token] else { return Ok(()) };
        let address = self.peers[end.peer as usize];
        let traffic_class = self.options.traffic_class;
        let path = Path { traffic_class, ..Path::to(Gid::from_ip(address.ip())) };
        let (nic, mut cx) = self.driver.lend();
        let connected = match &mut end.half {
            Half::Sends(sender, _) => sender.connect(nic, &mut cx, path, handle),
            Half::Receives(receiver) => receiver.connect(nic, &mut cx, path, handle),
        };
        connected.map_err(io::Error::other)?;
        for queue_pair in end.half.queue_pairs() {
            let guard = self.guards[end.peer as usize];
            self.driver.route_guarded(*queue_pair, address, &path, guard).map_err(io::Error::other)?;
        }
        Ok(())
    }

    /// Whether all that was sent is acknowledged, but for what goes to ranks that are gone: they need nothing more.
    pub(crate) fn is_drained(&self, gone: &[u32]) -> bool {
        let mut ends = self.ends.iter().flatten();
        let mut windows = self.windows.iter().flatten();
        self.failure.is_some()
            || ends.all(|end| end.is_done() || end.failure.is_some() || gone.contains(&end.peer))
                && windows.all(|window| window.is_drained(gone))
    }

    /// Whether ranks that are not gone may still send something.
    pub(crate) fn has_senders(&self, gone: &[u32]) -> bool {
        let (mut ends, mut windows) = (self.ends.iter().flatten(), self.windows.iter().flatten());
        ends.any(|end| matches!(end.half, Half::Receives(_)) && !gone.contains(&end.peer))
            || windows.any(|window| window.has_peers(gone))
    }
}

/// What has come of a look at a handshake.
enum Shaken {
    Waits,
    Moved,
    Over,
}

/// What becomes readable when the NIC does.
fn watch(nic: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let watch = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&watch, nic, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
    Ok(watch)
}

impl Drop for Rdma {
    fn drop(&mut self) {
        self.finish_capture();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_one_host_have_an_address_each() {
        let of = |rank| loopback_addresses(&[0, 7, 255, 9], rank);
        let texts: Vec<String> = of(0).iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["127.7.0.1", "127.9.0.1", "127.0.0.1"]);
        let first: std::collections::BTreeSet<IpAddr> = (0..10_000).map(|rank| of(rank)[0]).collect();
        assert_eq!(first.len(), 10_000);
        // More ranks than a block has addresses: the ports differ then.
        assert_eq!(of(70_000), [IpAddr::V4(Ipv4Addr::LOCALHOST)]);
    }

    #[test]
    fn loopback_packets_are_as_long_as_those_of_its_interface() {
        assert_eq!(mtu_of("127.7.0.1".parse().unwrap()), mtu_of("127.0.0.1".parse().unwrap()));
    }

    #[test]
    fn a_card_is_read_as_it_was_written() {
        for address in ["10.0.0.1:4791", "[2001:db8::1]:65535"] {
            let card = NicCard { address: address.parse().unwrap(), mtu: 4096 };
            assert_eq!(NicCard::read(&card.write()), Some(card));
        }
        assert_eq!(NicCard::read(b"10.0.0.1:4791"), None);
        assert_eq!(NicCard::read(&[0xff, 0x20]), None);
    }
}
