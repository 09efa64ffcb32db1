//! Payload that is copied once between processes of one host: a packet carries where it lies in its sender's memory, and the receiver
//! fetches it from there (`process_vm_readv`, Linux's cross-memory attach), where it would otherwise go through two sockets.
//!
//! All else is as without it: the NIC makes and takes the same packets with the same sequence numbers, and a receiver fetches a payload
//! when the packet comes, before it acknowledges it. Only reliable connections do it, whose sender leaves a buffer alone until it is
//! acknowledged, and only for the first transmission of a packet: what is sent again carries its bytes. So a payload that cannot be fetched
//! is a lost packet, and nothing worse.
//!
//! **Who may.** A process offers it to the process of a queue pair that it connects, over an abstract unix socket that is named by the
//! address and the member number, and with that of this network namespace. The offer has a random token, and a place in the
//! memory of its sender with a random number. The other accepts where the kernel says that the sender is of the same user, and the
//! number is found at that place of the process that the kernel says it is. After that the token names the process: who does not know it can
//! neither have memory of a process fetched nor choose from which process. Where nothing answers (another host, namespace or
//! user, `kernel.yama.ptrace_scope`, a container without the system call), packets carry their bytes.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixDatagram};

use railnet_core::{Span, Time};
use railnet_nic::Transmit;
use railnet_nic::memory::SpaceId;

use super::random_u64;
use super::system::{Told, receive_credentials};
use crate::shared_memory::foreign::Process;

/// A payload in the memory of the process that sends it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Source {
    pub(super) space: SpaceId,
    pub(super) address: u64,
    pub(super) length: usize,
}

/// Tells the address of this process at which an address of a space is.
pub(super) type Locate<M> = fn(&M, SpaceId, u64) -> u64;

/// Payloads that are shorter are sent: a system call takes as long as copying so much twice.
pub(super) const LEAST: usize = 1024;

/// How many bytes are fetched at once, where packets that came together have payloads that lie behind each other.
const FETCH_MAX: usize = 64 << 10;

/// How often the answers and offers of others are read.
const ATTEND_INTERVAL: Span = Span::from_us(500);

/// Processes whose memory may be fetched, and those to which this one may send references.
const PEERS_MAX: usize = 1024;

/// What a datagram carries in place of a payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Reference {
    /// Names the sending process.
    pub(super) token: u64,
    pub(super) address: u64,
    pub(super) length: u16,
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
        out[16..24].copy_from_slice(&self.address.to_be_bytes());
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
        let long = |at: usize| u64::from_be_bytes(front[at..at + 8].try_into().expect("eight bytes"));
        let short = |at: usize| u16::from_be_bytes([front[at], front[at + 1]]);
        let packet = behind.get(..usize::from(short(26)))?;
        let reference = Self { token: long(8), address: long(16), length: short(24) };
        (front[..4] == Self::NAME).then_some((reference, packet))
    }

    /// Whether a packet may have one: it is of a reliable connection, was not sent before, and there is room for its headers.
    pub(super) fn suits(packet: &Transmit) -> bool {
        const RELIABLE_CONNECTION: u8 = 0;
        let opcode = packet.headers.bth.opcode as u8;
        opcode >> 5 == RELIABLE_CONNECTION
            && packet.packet.transmission == 0
            && packet.extension.is_none()
            && Self::FRONT + packet.headers.length() + railnet_wire::ICRC_LENGTH <= Self::DATAGRAM
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
}

/// A process whose memory is fetched.
#[derive(Debug)]
struct Sender {
    token: u64,
    process: Process,
    name: UnixAddress,
}

/// The part of a process in this.
#[derive(Debug)]
pub(super) struct SingleCopy {
    socket: UnixDatagram,
    /// What others find here to know that it is this process.
    probe: Box<u64>,
    receivers: Vec<Receiver>,
    senders: Vec<Sender>,
    /// The receiver and the sender that were used last: bursts are of one queue pair.
    last_receiver: usize,
    last_sender: usize,
    attended: Time,
    /// Nothing is fetched any more.
    is_over: bool,
    fetched: Fetched,
}

/// Bytes of another process that were fetched ahead.
#[derive(Debug, Default)]
struct Fetched {
    token: u64,
    address: u64,
    bytes: Vec<u8>,
}

impl Fetched {
    fn get(&self, reference: &Reference) -> Option<&[u8]> {
        let at = usize::try_from(reference.address.checked_sub(self.address)?).ok()?;
        let bytes = self.bytes.get(at..at.checked_add(usize::from(reference.length))?)?;
        (self.token == reference.token).then_some(bytes)
    }
}

impl SingleCopy {
    /// Of a member of an address.
    pub(super) fn new(address: SocketAddr, member: u16) -> io::Result<Self> {
        let socket = UnixDatagram::bind_addr(&name((address, member))?)?;
        socket.set_nonblocking(true)?;
        rustix::net::sockopt::set_socket_passcred(&socket, true)?;
        Ok(Self {
            socket,
            probe: Box::new(random_u64()),
            receivers: Vec::new(),
            senders: Vec::new(),
            last_receiver: 0,
            last_sender: 0,
            attended: Time::ZERO,
            is_over: false,
            fetched: Fetched::default(),
        })
    }

    /// Numbers of its descriptors.
    pub(super) fn list_descriptors(&self, into: &mut Vec<RawFd>) {
        into.push(self.socket.as_raw_fd());
        into.extend(self.senders.iter().map(|sender| sender.process.descriptor().as_raw_fd()));
    }

    /// From now on packets carry their bytes, in both directions: what passes is to be seen.
    pub(super) fn end(&mut self) {
        self.is_over = true;
        self.receivers.clear();
    }

    /// A queue pair sends to a process from now on: asks it.
    pub(super) fn offer(&mut self, peer: Peer) {
        let known = self.receivers.iter().position(|one| one.peer == peer);
        if self.is_over || known.is_none() && self.receivers.len() >= PEERS_MAX {
            return;
        }
        let token = known.map_or_else(random_u64, |known| self.receivers[known].token);
        let message = Message::Offer { token, address: &raw const *self.probe as u64, number: *self.probe };
        let sent = name(peer).and_then(|name| self.socket.send_to_addr(&message.emit(), &name));
        match (sent, known) {
            (Ok(_), None) => self.receivers.push(Receiver { peer, token, is_accepted: false }),
            // Another process may have the number now: it is asked again.
            (Ok(_), Some(known)) => self.receivers[known].is_accepted = false,
            // Where nothing has this name, there is no such process on this host.
            (Err(error), Some(known)) if error.kind() != io::ErrorKind::WouldBlock => {
                self.receivers.remove(known);
            }
            (Err(_), _) => {}
        }
    }

    /// Whether some process fetches.
    #[inline]
    pub(super) fn is_active(&self) -> bool {
        !self.receivers.is_empty()
    }

    /// The token of packets for a process, where it fetches.
    #[inline]
    pub(super) fn token(&mut self, peer: Peer) -> Option<u64> {
        if self.receivers.get(self.last_receiver).is_none_or(|last| last.peer != peer) {
            self.last_receiver = self.receivers.iter().position(|one| one.peer == peer)?;
        }
        let receiver = &self.receivers[self.last_receiver];
        receiver.is_accepted.then_some(receiver.token)
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
        let mut bytes = [0; Message::LENGTH];
        while let Ok(Some(Told { length, process, name, .. })) = self.receive(&mut bytes) {
            match Message::parse(&bytes[..length]) {
                Some(Message::Offer { token, address, number }) => {
                    let Some(from) = name.and_then(|name| UnixAddress::from_abstract_name(name).ok()) else {
                        continue;
                    };
                    let answer = match self.accept(token, process, address, number, &from) {
                        true => Message::Accepted { token },
                        false => Message::Refused { token },
                    };
                    // One that is gone needs no answer.
                    let _ = self.socket.send_to_addr(&answer.emit(), &from);
                }
                Some(Message::Accepted { token }) => {
                    if let Some(receiver) = self.receivers.iter_mut().find(|one| one.token == token) {
                        receiver.is_accepted = true;
                    }
                }
                Some(Message::Refused { token }) => {
                    if let Some(receiver) = self.receivers.iter_mut().find(|one| one.token == token) {
                        receiver.is_accepted = false;
                    }
                }
                None => {}
            }
        }
    }

    /// A message of a process of this user.
    fn receive(&self, bytes: &mut [u8]) -> io::Result<Option<Told>> {
        let own = rustix::process::geteuid().as_raw();
        loop {
            match receive_credentials(&self.socket, bytes)? {
                Some(told) if told.user == own => return Ok(Some(told)),
                Some(_) => {}
                None => return Ok(None),
            }
        }
    }

    fn accept(&mut self, token: u64, pid: u32, address: u64, number: u64, from: &UnixAddress) -> bool {
        self.senders.retain(|sender| sender.process.is_running());
        if self.senders.iter().any(|sender| sender.token == token) {
            return !self.is_over;
        }
        if self.is_over || self.senders.len() >= PEERS_MAX {
            return false;
        }
        let Some(process) = Process::find(pid, address, number) else { return false };
        self.senders.push(Sender { token, process, name: from.clone() });
        true
    }

    /// The payload of a packet, and of those that came behind it as far as theirs lie behind its: `following` are their datagrams. `None`
    /// where it cannot be had, which its sender is told.
    pub(super) fn fetch<'a>(
        &mut self,
        reference: &Reference,
        following: impl Iterator<Item = &'a [u8]>,
    ) -> Option<&[u8]> {
        if self.fetched.get(reference).is_none() {
            self.fetch_ahead(reference, following)?;
        }
        self.fetched.get(reference)
    }

    fn fetch_ahead<'a>(
        &mut self,
        reference: &Reference,
        following: impl Iterator<Item = &'a [u8]>,
    ) -> Option<()> {
        if self.senders.get(self.last_sender).is_none_or(|last| last.token != reference.token) {
            self.last_sender = self.senders.iter().position(|sender| sender.token == reference.token)?;
        }
        let sender = &self.senders[self.last_sender];
        let own = usize::from(reference.length);
        let mut length = own;
        for (next, _) in following.map_while(Reference::parse) {
            let more = usize::from(next.length);
            let is_next = next.token == reference.token
                && next.address == reference.address.wrapping_add(length as u64)
                && length + more <= FETCH_MAX;
            if !is_next {
                break;
            }
            length += more;
        }
        let Fetched { token, address, bytes } = &mut self.fetched;
        (*token, *address) = (reference.token, reference.address);
        bytes.resize(length, 0);
        let mut outcome = match self.is_over {
            true => Err(io::ErrorKind::PermissionDenied.into()),
            false => sender.process.read_to(*address, bytes),
        };
        if outcome.is_err() && length > own && !self.is_over {
            // What is behind it may have gone since.
            bytes.truncate(own);
            outcome = sender.process.read_to(*address, bytes);
        }
        if outcome.is_err() {
            bytes.clear();
            let _ = self.socket.send_to_addr(&Message::Refused { token: sender.token }.emit(), &sender.name);
            return None;
        }
        Some(())
    }

    /// What was fetched ahead is no longer what is there.
    #[inline]
    pub(super) fn forget(&mut self) {
        self.fetched.bytes.clear();
    }
}

fn name((address, member): Peer) -> io::Result<UnixAddress> {
    UnixAddress::from_abstract_name(format!("railnet-rdma-single-copy/{address}/{member}"))
}

/// What processes tell each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Message {
    /// Packets with this token are of a process that has a number at an address.
    Offer { token: u64, address: u64, number: u64 },
    /// They are taken.
    Accepted { token: u64 },
    /// They are not, or no longer.
    Refused { token: u64 },
}

impl Message {
    const LENGTH: usize = 32;

    fn emit(self) -> [u8; Self::LENGTH] {
        let words = match self {
            Self::Offer { token, address, number } => [1, token, address, number],
            Self::Accepted { token } => [2, token, 0, 0],
            Self::Refused { token } => [3, token, 0, 0],
        };
        let mut bytes = [0; Self::LENGTH];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&u64::to_ne_bytes(word));
        }
        bytes
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::LENGTH] = bytes.try_into().ok()?;
        let word = |at: usize| u64::from_ne_bytes(bytes[8 * at..][..8].try_into().expect("eight bytes"));
        let token = word(1);
        match word(0) {
            1 => Some(Self::Offer { token, address: word(2), number: word(3) }),
            2 => Some(Self::Accepted { token }),
            3 => Some(Self::Refused { token }),
            _ => None,
        }
    }
}
