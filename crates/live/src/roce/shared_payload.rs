//! Payload through shared memory between processes of one host: a packet carries the slot of a ring in which its payload is, where the
//! payload would otherwise go through two sockets.
//!
//! All else is as without it: the NIC makes and takes the same packets with the same sequence numbers, which go over the same sockets and
//! may be lost there. A sender copies a payload into a free slot when it sends the packet; the receiver places it in memory and frees the
//! slot. Where no slot is free the packet carries its bytes. The slot of a packet that was lost is taken back after a while, and the word that
//! tells its state says of which packet it is, so that a packet which comes too late finds nothing, and is lost as well.
//!
//! **Who may.** A process offers a ring to the process of a queue pair that it connects, over an abstract unix socket that is named by the
//! address and the member number, and with that by this network namespace. The other maps it where the kernel says that the sender is of the
//! same user, and where the ring cannot shrink. A random token, which only the two know, names the ring in packets. Where nothing answers
//! (another host, namespace or user), packets carry their bytes.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, AsRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixDatagram};
use std::sync::atomic::Ordering;

use railnet_core::{Span, Time};
use railnet_nic::Transmit;
use railnet_nic::memory::SpaceId;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags};

use super::random_u64;
use super::system::{Told, receive_told, send_with};
use crate::shared_memory::segment::Segment;

/// A payload in the memory of the application that sends it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Source {
    pub(super) space: SpaceId,
    pub(super) address: u64,
    pub(super) length: usize,
}

/// Copies from an address of a space; `false` where it is not there any more.
pub(super) type CopyFrom<M> = fn(&M, SpaceId, u64, &mut [u8]) -> bool;

/// Payloads that are shorter are sent.
pub(super) const LEAST: usize = 512;

/// Slots of a ring, and bytes of one: the largest payload of a packet. They fit the second level of caches.
const SLOTS: usize = 256;
const SLOT: usize = 4096;

/// Bytes of a ring: a cache line for the state of each slot, and the slots.
const LINE: usize = 64;
const RING: usize = SLOTS * (LINE + SLOT);

/// States of a slot: free, or that of a packet, which has a number.
const FREE: u64 = 0;
const FULL: u64 = 1;
const READING: u64 = 2;

/// Slots that are tried for a packet.
const TRIES: usize = 4;

/// After how long the slot of a packet is taken back that was not read.
const LOST_AFTER: Span = Span::from_ms(500);

/// How often the answers and offers of others are read.
const ATTEND_INTERVAL: Span = Span::from_us(500);

/// Processes that this one has rings with, in either direction.
const PEERS_MAX: usize = 1024;

/// What a datagram carries in place of a payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Reference {
    /// Names the ring.
    token: u64,
    slot: u32,
    /// Of the packet, among those of the ring.
    number: u32,
    length: u16,
}

impl Reference {
    /// An opcode that no transport has, and a name.
    const NAME: [u8; 4] = [0xff, b'R', b'N', b'S'];
    /// Bytes in front of the packet, of which the first eight are steered by as those of any packet.
    pub(super) const FRONT: usize = 28;
    /// All such datagrams are of one length, so that the kernel cuts one send into many. BTH, RETH, ImmDt and ICRC have room.
    pub(super) const DATAGRAM: usize = 64;

    /// Writes what stands in front of a packet of so many bytes.
    pub(super) fn emit(&self, destination: u32, packet: usize, out: &mut [u8]) {
        out[..4].copy_from_slice(&Self::NAME);
        out[4..8].copy_from_slice(&destination.to_be_bytes());
        out[8..16].copy_from_slice(&self.token.to_be_bytes());
        out[16..20].copy_from_slice(&self.slot.to_be_bytes());
        out[20..24].copy_from_slice(&self.number.to_be_bytes());
        out[24..26].copy_from_slice(&self.length.to_be_bytes());
        out[26..28].copy_from_slice(&(packet as u16).to_be_bytes());
    }

    /// The reference in a datagram, and the packet behind it; `None` where it is a packet like any other.
    #[inline]
    pub(super) fn parse(datagram: &[u8]) -> Option<(Self, &[u8])> {
        if datagram.first() != Some(&Self::NAME[0]) || datagram.len() != Self::DATAGRAM {
            return None;
        }
        let (front, behind) = datagram.split_at(Self::FRONT);
        let word = |at: usize| u32::from_be_bytes([front[at], front[at + 1], front[at + 2], front[at + 3]]);
        let short = |at: usize| u16::from_be_bytes([front[at], front[at + 1]]);
        let packet = behind.get(..usize::from(short(26)))?;
        let token = u64::from(word(8)) << 32 | u64::from(word(12));
        let reference = Self { token, slot: word(16), number: word(20), length: short(24) };
        (front[..4] == Self::NAME).then_some((reference, packet))
    }

    /// Whether a packet may have one: it was not sent before, so that what is lost for whatever reason arrives at last, and there is room
    /// for its headers.
    pub(super) fn suits(packet: &Transmit) -> bool {
        packet.packet.transmission == 0
            && packet.extension.is_none()
            && Self::FRONT + packet.headers.length() + railnet_wire::ICRC_LENGTH <= Self::DATAGRAM
    }

    /// The state of its slot while it waits there.
    fn full(&self) -> u64 {
        u64::from(self.number) << 2 | FULL
    }
}

/// Which process: an address, and its member number there.
type Peer = (SocketAddr, u16);

/// A process that this one sends to.
#[derive(Debug)]
struct Receiver {
    peer: Peer,
    token: u64,
    is_accepted: bool,
    ring: Segment,
    next: usize,
    number: u32,
    /// When each slot was filled.
    filled: Box<[Time]>,
}

/// A process whose payloads are read.
#[derive(Debug)]
struct Sender {
    token: u64,
    ring: Segment,
    name: UnixAddress,
    /// Becomes readable when it ends; none where its number is not seen.
    process: Option<OwnedFd>,
}

/// The part of a process in this.
#[derive(Debug)]
pub(super) struct SharedPayload {
    socket: UnixDatagram,
    receivers: Vec<Receiver>,
    senders: Vec<Sender>,
    /// The receiver and the sender that were used last: bursts are of one queue pair.
    last_receiver: usize,
    last_sender: usize,
    attended: Time,
    /// Nothing is sent so any more.
    is_over: bool,
}

fn state_at(slot: usize) -> usize {
    slot * LINE
}

fn slot_at(slot: usize) -> usize {
    SLOTS * LINE + slot * SLOT
}

impl Receiver {
    fn new(peer: Peer) -> io::Result<Self> {
        let filled = vec![Time::ZERO; SLOTS].into();
        let ring = Segment::create(RING)?;
        Ok(Self { peer, token: random_u64(), is_accepted: false, ring, next: 0, number: 0, filled })
    }

    /// A slot that is free now.
    #[inline]
    fn free_slot(&mut self, now: Time) -> Option<usize> {
        for _ in 0..TRIES {
            let slot = self.next;
            self.next = (slot + 1) % SLOTS;
            let word = self.ring.word(state_at(slot));
            let state = word.load(Ordering::Acquire);
            // The packet of a full one was lost, unless it is read just now.
            let is_lost = state & 3 == FULL && now.since(self.filled[slot]) > LOST_AFTER;
            let is_free = state == FREE
                || is_lost
                    && word.compare_exchange(state, FREE, Ordering::Acquire, Ordering::Relaxed).is_ok();
            if is_free {
                return Some(slot);
            }
        }
        None
    }
}

impl SharedPayload {
    /// Of a member of an address.
    pub(super) fn new(address: SocketAddr, member: u16) -> io::Result<Self> {
        let socket = UnixDatagram::bind_addr(&UnixAddress::from_abstract_name(name((address, member)))?)?;
        socket.set_nonblocking(true)?;
        rustix::net::sockopt::set_socket_passcred(&socket, true)?;
        let (receivers, senders) = (Vec::new(), Vec::new());
        let attended = Time::ZERO;
        Ok(Self { socket, receivers, senders, last_receiver: 0, last_sender: 0, attended, is_over: false })
    }

    /// Numbers of its descriptors.
    pub(super) fn list_descriptors(&self, into: &mut Vec<RawFd>) {
        into.push(self.socket.as_raw_fd());
        let rings =
            self.receivers.iter().map(|one| &one.ring).chain(self.senders.iter().map(|one| &one.ring));
        into.extend(rings.map(|ring| ring.as_fd().as_raw_fd()));
        into.extend(self.senders.iter().filter_map(|one| one.process.as_ref()).map(AsRawFd::as_raw_fd));
    }

    /// From now on packets carry their bytes, in both directions: what passes is to be seen.
    pub(super) fn end(&mut self) {
        self.is_over = true;
        self.receivers.clear();
        for Sender { token, name, .. } in self.senders.drain(..) {
            // What is on its way is lost, and sent again with its bytes.
            let name = name.as_abstract_name().unwrap_or_default();
            let _ = send_with(&self.socket, name, &Message::Refused { token }.emit(), &[]);
        }
    }

    /// A queue pair sends to a process from now on: offers it a ring.
    pub(super) fn offer(&mut self, peer: Peer) {
        if self.is_over {
            return;
        }
        let known = self.receivers.iter().position(|one| one.peer == peer);
        let new = match known {
            None if self.receivers.len() < PEERS_MAX => Receiver::new(peer).ok(),
            _ => None,
        };
        let Some(receiver) = new.as_ref().or(known.map(|known| &self.receivers[known])) else { return };
        let message = Message::Offer { token: receiver.token };
        match (send_with(&self.socket, &name(peer), &message.emit(), &[receiver.ring.as_fd()]), known) {
            (Ok(()), None) => self.receivers.extend(new),
            // Another process may have the number now.
            (Ok(()), Some(known)) => self.receivers[known].is_accepted = false,
            // Where nothing has this name, there is no such process on this host.
            (Err(error), Some(known)) if error.kind() != io::ErrorKind::WouldBlock => {
                self.receivers.remove(known);
            }
            (Err(_), _) => {}
        }
    }

    /// Whether some process may read what this one sends.
    #[inline]
    pub(super) fn is_active(&self) -> bool {
        !self.receivers.is_empty()
    }

    /// Puts a payload where a process finds it; `copy` fills so many bytes, or tells that they are gone, which is an error here. `None`
    /// where its packet has to carry it.
    #[inline]
    pub(super) fn put(
        &mut self,
        peer: Peer,
        now: Time,
        length: usize,
        copy: impl FnOnce(&mut [u8]) -> bool,
    ) -> Option<Result<Reference, Gone>> {
        if self.receivers.get(self.last_receiver).is_none_or(|last| last.peer != peer) {
            self.last_receiver = self.receivers.iter().position(|one| one.peer == peer)?;
        }
        let receiver = &mut self.receivers[self.last_receiver];
        if !receiver.is_accepted || length > SLOT {
            return None;
        }
        let slot = receiver.free_slot(now)?;
        if !copy(free_bytes(&mut receiver.ring, slot, length)) {
            return Some(Err(Gone));
        }
        receiver.number = receiver.number.wrapping_add(1);
        let (token, number) = (receiver.token, receiver.number);
        let reference = Reference { token, slot: slot as u32, number, length: length as u16 };
        receiver.filled[slot] = now;
        receiver.ring.word(state_at(slot)).store(reference.full(), Ordering::Release);
        Some(Ok(reference))
    }

    /// Gives the payload of a packet to `place`, and its slot back. `None` where it is not there, or not any more.
    #[inline]
    pub(super) fn take<T>(&mut self, reference: &Reference, place: impl FnOnce(&[u8]) -> T) -> Option<T> {
        if self.senders.get(self.last_sender).is_none_or(|last| last.token != reference.token) {
            self.last_sender = self.senders.iter().position(|sender| sender.token == reference.token)?;
        }
        let ring = &self.senders[self.last_sender].ring;
        let (slot, length) = (reference.slot as usize, usize::from(reference.length));
        if slot >= SLOTS || length > SLOT {
            return None;
        }
        let (word, full) = (ring.word(state_at(slot)), reference.full());
        word.compare_exchange(full, full ^ FULL ^ READING, Ordering::Acquire, Ordering::Relaxed).ok()?;
        let outcome = place(read_bytes(ring, slot, length));
        word.store(FREE, Ordering::Release);
        Some(outcome)
    }

    /// Reads what others say, now and then.
    #[inline]
    pub(super) fn attend(&mut self, now: Time) {
        if now.since(self.attended) >= ATTEND_INTERVAL {
            self.attended = now;
            self.hear();
        }
    }

    #[cold]
    fn hear(&mut self) {
        let own = rustix::process::geteuid().as_raw();
        let mut bytes = [0; Message::LENGTH];
        while let Ok(Some(told)) = receive_told(&self.socket, &mut bytes) {
            let Told { length, process, user, name, mut descriptors } = told;
            match Message::parse(&bytes[..length]).filter(|_| user == own) {
                Some(Message::Offer { token }) => {
                    let Some(name) = name else { continue };
                    let ring = descriptors.pop().map(Segment::open);
                    if let (Some(Ok(ring)), Ok(from)) = (ring, UnixAddress::from_abstract_name(&name))
                        && self.accept(token, process, ring, from)
                    {
                        // One that is gone needs no answer.
                        let _ = send_with(&self.socket, &name, &Message::Accepted { token }.emit(), &[]);
                    }
                }
                Some(Message::Accepted { token }) => {
                    if let Some(receiver) = self.receivers.iter_mut().find(|one| one.token == token) {
                        receiver.is_accepted = true;
                    }
                }
                Some(Message::Refused { token }) => self.receivers.retain(|one| one.token != token),
                None => {}
            }
        }
    }

    fn accept(&mut self, token: u64, process: u32, ring: Segment, name: UnixAddress) -> bool {
        if self.senders.iter().any(|sender| sender.token == token) {
            return !self.is_over;
        }
        let same_name = |one: &Sender| one.name.as_abstract_name() == name.as_abstract_name();
        self.senders.retain(|sender| !same_name(sender) && sender.is_running());
        if self.is_over || ring.len() != RING || self.senders.len() >= PEERS_MAX {
            return false;
        }
        let pid = i32::try_from(process).ok().and_then(Pid::from_raw);
        let process = pid.and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok());
        self.senders.push(Sender { token, ring, name, process });
        true
    }
}

/// The bytes that were to be put somewhere are not there any more.
#[derive(Debug)]
pub(super) struct Gone;

impl Sender {
    /// Whether it has not ended, as far as that is seen.
    fn is_running(&self) -> bool {
        self.process.as_ref().is_none_or(|process| {
            let mut fds = [PollFd::new(process, PollFlags::IN)];
            !matches!(rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1..))
        })
    }
}

fn name((address, member): Peer) -> Vec<u8> {
    format!("railnet-rdma-payload/{address}/{member}").into_bytes()
}

/// The first bytes of a slot that is free: they are the sender's alone.
#[expect(unsafe_code, reason = "bytes of memory that two processes have mapped")]
fn free_bytes(ring: &mut Segment, slot: usize, length: usize) -> &mut [u8] {
    // SAFETY: they lie in the mapping. The word of the slot says that it is free, so the other process does not read them, and in
    // this one the ring is borrowed.
    unsafe { std::slice::from_raw_parts_mut(ring.pointer(slot_at(slot), length), length) }
}

/// The first bytes of a slot whose word says that they are read.
#[expect(unsafe_code, reason = "bytes of memory that two processes have mapped")]
fn read_bytes(ring: &Segment, slot: usize, length: usize) -> &[u8] {
    // SAFETY: they lie in the mapping. The sender leaves a slot alone while its word says that it is read: it is a process of the same
    // user, which is part of the job.
    unsafe { std::slice::from_raw_parts(ring.pointer(slot_at(slot), length), length) }
}

/// What processes tell each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Message {
    /// A ring, which comes with it, and its token.
    Offer { token: u64 },
    /// It is read.
    Accepted { token: u64 },
    /// It is read no longer.
    Refused { token: u64 },
}

impl Message {
    const LENGTH: usize = 16;

    fn emit(self) -> [u8; Self::LENGTH] {
        let (kind, token) = match self {
            Self::Offer { token } => (1, token),
            Self::Accepted { token } => (2, token),
            Self::Refused { token } => (3, token),
        };
        (u128::from(token) << 64 | kind).to_ne_bytes()
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let number = u128::from_ne_bytes(bytes.try_into().ok()?);
        let token = (number >> 64) as u64;
        match number as u64 {
            1 => Some(Self::Offer { token }),
            2 => Some(Self::Accepted { token }),
            3 => Some(Self::Refused { token }),
            _ => None,
        }
    }
}
