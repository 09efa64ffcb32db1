//! Several processes behind one address: which of them gets a packet.
//!
//! RoCEv2 has one UDP port, 4791, and applications exchange only a GID and a queue pair number. So the processes of a host
//! that use one address bind that port together (`SO_REUSEPORT`), and a classic BPF program in the kernel chooses the
//! socket of each datagram by the packet's own fields. There is no daemon, no file, and nothing to clean up: packets go
//! from the wire to their process without a detour, also those of foreign peers.
//!
//! - The upper ten bits of a queue pair number are the **member** number of its process ([`QUEUE_PAIR_BITS`]).
//! - Connection management (QP1): a request goes to the member that listens on its service id, every later message to the
//!   member in the upper ten bits of the communication id that it answers ([`COMMUNICATION_BITS`]).
//!
//! A member number is the name of an abstract unix socket, which the kernel hands out once per network namespace and takes
//! back when the process dies, however it dies. The program needs each member's index in the kernel's list of sockets, which
//! changes when one is closed: the last takes its place. So whoever joins, listens, or gets a packet that is not its own
//! **rebuilds** the program: it sends a probe to each index (the program lets probes choose their index), every member answers with
//! its number over its unix socket, and the new program replaces the old one for all. Packets that go astray meanwhile are
//! lost, and sent again. Each member also checks now and then that its own packets still reach it.
//!
//! The kernel lets only sockets of one effective user share a port. Answers carry the random nonce of the probe, which only
//! members can have seen.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixDatagram};
use std::time::{Duration, Instant};

use railnet_core::QueuePairNumber;
use railnet_wire::mad::ServiceId;

use super::random_u64;
use super::system::{Endpoint, Target};

/// Bits of a queue pair number below the member's.
pub const QUEUE_PAIR_BITS: u32 = 14;

/// Bits of a communication id below the member's.
pub const COMMUNICATION_BITS: u32 = 22;

/// Members of an address.
pub const MEMBERS_MAX: u16 = 1 << 10;

/// Service ids that one member may listen on.
const SERVICES_MAX: usize = 256;

/// Instructions that the kernel takes.
const INSTRUCTIONS_MAX: usize = 4096;

/// The first four bytes of a probe, which the program steers by the index in it, and of a check, which it steers like any
/// packet by its queue pair number: an opcode that no transport has, and a name.
const PROBE: u32 = u32::from_be_bytes([0xff, b'R', b'N', b'P']);
const CHECK: u32 = u32::from_be_bytes([0xff, b'R', b'N', b'C']);

/// Bytes of either: the name, the index or queue pair number, the nonce, and the member that sent it.
const PROBE_BYTES: usize = 4 + 4 + 8 + 4;

/// How long a rebuild waits for members to answer, and for another rebuild to end.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(30);
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// How often a member checks that its own packets reach it, and how often it rebuilds at most.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
const REBUILD_INTERVAL: Duration = Duration::from_millis(20);

/// How long requests for a service that was given up still come to the member: a little longer than they wait there.
const RELISTEN_WAIT: Duration = Duration::from_millis(4050);

/// This process's membership of an address.
#[derive(Debug)]
pub(super) struct Steering {
    address: SocketAddr,
    member: u16,
    /// Named by the member number; answers to probes come here.
    control: UnixDatagram,
    /// Sends probes.
    prober: Endpoint,
    nonce: u64,
    /// The lower halves of the service ids that it listens on, each with the unix socket that keeps others from it.
    services: Vec<(u32, UnixDatagram)>,
    /// Those that it keeps for itself and does not listen on.
    reserved: Vec<(u32, UnixDatagram)>,
    /// Those that it gave up just now, each with a unix socket that says so. Requests for them still come here, where they wait for
    /// a new listener.
    given_up: Vec<(u32, Instant, Option<UnixDatagram>)>,
    /// Held from the bind on until the first program is in place.
    joining: Option<UnixDatagram>,
    /// Packets went astray, or this member's services changed.
    is_stale: bool,
    last_rebuild: Option<Instant>,
    last_check: Instant,
    check_arrived: bool,
}

/// What a member tells of itself, in answer to a probe.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Answer {
    index: u32,
    member: u16,
    /// The lower halves of the service ids that it listens on.
    services: Vec<u32>,
}

impl Steering {
    /// Joins the processes that share this address: takes a member number and binds its port. The caller rebuilds the
    /// program next.
    pub(super) fn join(address: SocketAddr) -> io::Result<(Endpoint, Self)> {
        let (member, control) = claim_member(address)?;
        control.set_nonblocking(true)?;
        let joining = lock(address)?;
        let receiver = Endpoint::bind_shared(address)?;
        let any_port = SocketAddr::new(address.ip(), 0);
        let steering = Self {
            address,
            member,
            control,
            prober: Endpoint::bind(any_port)?,
            nonce: random_u64(),
            services: Vec::new(),
            reserved: Vec::new(),
            given_up: Vec::new(),
            joining: Some(joining),
            is_stale: true,
            last_rebuild: None,
            last_check: Instant::now(),
            check_arrived: true,
        };
        Ok((receiver, steering))
    }

    pub(super) fn member(&self) -> u16 {
        self.member
    }

    /// Numbers of its descriptors.
    pub(super) fn list_descriptors(&self, into: &mut Vec<RawFd>) {
        let claims = self.services.iter().chain(&self.reserved).map(|(_, socket)| socket);
        let signs = self.given_up.iter().filter_map(|(.., socket)| socket.as_ref());
        let sockets = claims.chain(signs).chain(&self.joining).chain([&self.control]);
        into.extend(sockets.map(AsRawFd::as_raw_fd));
        into.push(self.prober.as_fd().as_raw_fd());
    }

    fn claim_name(&self, service: u32) -> io::Result<UnixAddress> {
        UnixAddress::from_abstract_name(format!("{}service/{service:#010x}", name_prefix(self.address)))
    }

    fn closing_name(&self, service: u32) -> io::Result<UnixAddress> {
        UnixAddress::from_abstract_name(format!("{}closing/{service:#010x}", name_prefix(self.address)))
    }

    fn claim(&self, service: u32) -> io::Result<UnixDatagram> {
        UnixDatagram::bind_addr(&self.claim_name(service)?)
    }

    /// A message of connection management came that names a communication id. Where it is one of another member, which lives,
    /// the program is stale, and this tells so: the peer sends again.
    pub(super) fn on_foreign_id(&mut self, id: u32) -> bool {
        let member = (id >> COMMUNICATION_BITS) as u16;
        let is_foreign = member != self.member && is_alive(self.address, member);
        self.is_stale |= is_foreign;
        is_foreign
    }

    /// A request came for a service that this member does not have. Where another one listens on it, or did just now, the program
    /// is stale, and this tells so: the peer asks again.
    pub(super) fn on_foreign_service(&mut self, service: u32) -> bool {
        let reach = |name: io::Result<UnixAddress>| UnixDatagram::unbound()?.connect_addr(&name?);
        // The kernel lets no other socket connect to a claim that is connected to itself.
        let claim = reach(self.claim_name(service));
        let is_listened = claim.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied);
        let is_own = self.given_up.iter().any(|(one, ..)| *one == service);
        let is_foreign = is_listened || !is_own && reach(self.closing_name(service)).is_ok();
        self.is_stale |= is_foreign;
        is_foreign
    }

    /// Keeps a service for this member, which may listen on it later: the lower half of its id.
    pub(super) fn reserve_service(&mut self, service: u32) -> io::Result<()> {
        self.reserved.push((service, self.claim(service)?));
        Ok(())
    }

    /// The member listens on a service of connection management: the lower half of its id.
    pub(super) fn add_service(&mut self, service: u32) -> io::Result<()> {
        if self.services.len() >= SERVICES_MAX {
            return Err(io::Error::other(format!("a process listens on {SERVICES_MAX} services at most")));
        }
        let reserved = self.reserved.iter().position(|(one, _)| *one == service);
        let claim = match reserved {
            Some(index) => self.reserved.swap_remove(index).1,
            None => self.claim(service)?,
        };
        self.services.push((service, claim));
        self.given_up.retain(|(one, ..)| *one != service);
        (self.is_stale, self.last_rebuild) = (true, None);
        Ok(())
    }

    /// Requests for a service arrive from now on. Its claim is connected to itself, so that `/proc/net/unix` tells services that
    /// are listened on (state 03) from those that are only kept.
    pub(super) fn show_listening(&self, service: u32) -> io::Result<()> {
        let listening = self.services.iter().find(|(one, _)| *one == service);
        listening.map_or(Ok(()), |(_, claim)| claim.connect_addr(&claim.local_addr()?))
    }

    /// The member gives a service up, whether it listened on it or only kept it.
    pub(super) fn remove_service(&mut self, service: u32) {
        self.reserved.retain(|(one, _)| *one != service);
        let before = self.services.len();
        self.services.retain(|(one, _)| *one != service);
        if self.services.len() == before {
            return;
        }
        for service in ServiceId(service.into()).same_port().map(|service| service.0 as u32) {
            if self.services.iter().all(|(one, _)| *one != service) {
                // Another one that gave it up just now holds the name already, which does as well.
                let sign = self.closing_name(service).and_then(|name| UnixDatagram::bind_addr(&name)).ok();
                self.given_up.push((service, Instant::now(), sign));
            }
        }
        // Services came, if only to wait.
        self.is_stale = true;
    }

    /// A packet arrived for a queue pair that the NIC does not have.
    pub(super) fn on_unknown(&mut self, queue_pair: QueuePairNumber) {
        let member = queue_pair.value() >> QUEUE_PAIR_BITS;
        self.is_stale |= member != u32::from(self.member) && queue_pair.value() > 1;
    }

    /// Takes a datagram that is a probe or a check; `false` where it is neither.
    #[inline]
    pub(super) fn on_datagram(&mut self, datagram: &[u8]) -> bool {
        datagram.first() == Some(&0xff) && self.on_probe(datagram)
    }

    #[cold]
    fn on_probe(&mut self, datagram: &[u8]) -> bool {
        let Ok(bytes) = <&[u8; PROBE_BYTES]>::try_from(datagram) else { return false };
        let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        match word(0) {
            CHECK => {
                self.check_arrived |= bytes[8..16] == self.nonce.to_be_bytes();
                true
            }
            PROBE => {
                let listened = self.services.iter().map(|(service, _)| *service);
                let services = listened.chain(self.given_up.iter().map(|(service, ..)| *service)).collect();
                let answer = Answer { index: word(4), member: self.member, services };
                // An asker that is gone needs no answer.
                if let Ok(name) = member_name(self.address, word(16) as u16) {
                    let _ = self.control.send_to_addr(&answer.emit(&bytes[8..16]), &name);
                }
                true
            }
            _ => false,
        }
    }

    /// Whether the program must be rebuilt. Sends a check of this member's own path when one is due.
    pub(super) fn needs_rebuild(&mut self) -> bool {
        if self.last_check.elapsed() >= CHECK_INTERVAL {
            self.is_stale |= !self.check_arrived;
            (self.check_arrived, self.last_check) = (false, Instant::now());
            self.probe(CHECK, u32::from(self.member) << QUEUE_PAIR_BITS);
        }
        let before = self.given_up.len();
        self.given_up.retain(|(_, since, _)| since.elapsed() < RELISTEN_WAIT);
        self.is_stale |= self.given_up.len() != before;
        self.is_stale && self.last_rebuild.is_none_or(|last| last.elapsed() >= REBUILD_INTERVAL)
    }

    fn probe(&self, name: u32, index: u32) {
        let mut bytes = Vec::with_capacity(PROBE_BYTES);
        bytes.extend(name.to_be_bytes());
        bytes.extend(index.to_be_bytes());
        bytes.extend(self.nonce.to_be_bytes());
        bytes.extend(u32::from(self.member).to_be_bytes());
        // A probe that is lost is a member that does not answer.
        let _ = self.prober.send(&Target::from(self.address), &bytes, bytes.len(), 0);
    }

    /// Begins a rebuild: sends the probes. `None` when another member rebuilds and does not end.
    pub(super) fn begin_rebuild(&mut self) -> io::Result<Rebuild> {
        let lock = match self.joining.take() {
            Some(lock) => lock,
            None => lock(self.address)?,
        };
        // What an earlier rebuild left over must not be taken for an answer to this one.
        self.nonce = random_u64();
        let members = members(self.address);
        for index in 0..members + 2 {
            self.probe(PROBE, index);
        }
        (self.is_stale, self.check_arrived) = (false, true);
        Ok(Rebuild { _lock: lock, members, began: Instant::now(), answers: Vec::new() })
    }

    /// Takes the answers that have come. `true` when the rebuild can end.
    pub(super) fn gather_answers(&self, rebuild: &mut Rebuild) -> bool {
        let mut bytes = [0; 16 + 4 * SERVICES_MAX];
        while let Ok(length) = self.control.recv(&mut bytes) {
            if let Some(answer) = Answer::parse(&bytes[..length], self.nonce) {
                rebuild.take(answer);
            }
        }
        rebuild.answers.len() >= rebuild.members as usize || rebuild.began.elapsed() >= ANSWER_TIMEOUT
    }

    /// Puts the new program in place, for all members.
    pub(super) fn end_rebuild(&mut self, rebuild: &Rebuild, receiver: &Endpoint) -> io::Result<()> {
        (self.last_rebuild, self.last_check) = (Some(Instant::now()), Instant::now());
        receiver.steer(&program(&rebuild.answers))
    }
}

/// A rebuild under way. While it lives no other member begins one.
#[derive(Debug)]
pub(super) struct Rebuild {
    _lock: UnixDatagram,
    /// Names that are taken in this network namespace.
    members: u32,
    began: Instant,
    answers: Vec<Answer>,
}

impl Rebuild {
    /// An index past the end of the kernel's list falls to any member, so the least that a member claims is its own.
    fn take(&mut self, answer: Answer) {
        match self.answers.iter_mut().find(|known| known.member == answer.member) {
            Some(known) if known.index <= answer.index => {}
            Some(known) => *known = answer,
            None => self.answers.push(answer),
        }
    }
}

impl Answer {
    fn emit(&self, nonce: &[u8]) -> Vec<u8> {
        let mut bytes = nonce.to_vec();
        for word in [self.index, u32::from(self.member)].iter().chain(&self.services) {
            bytes.extend(word.to_be_bytes());
        }
        bytes
    }

    fn parse(bytes: &[u8], nonce: u64) -> Option<Self> {
        let (front, words) = bytes.split_at_checked(8)?;
        let (words, _) = words.as_chunks::<4>();
        let mut words = words.iter().map(|word| u32::from_be_bytes(*word));
        if front != nonce.to_be_bytes() {
            return None;
        }
        Some(Self { index: words.next()?, member: words.next()? as u16, services: words.collect() })
    }
}

/// The name of a member's unix socket. Abstract names belong to the network namespace, as ports do.
fn member_name(address: SocketAddr, member: u16) -> io::Result<UnixAddress> {
    UnixAddress::from_abstract_name(format!("{}{member}", name_prefix(address)))
}

/// The member that has a queue pair.
pub(super) fn member_of(queue_pair: QueuePairNumber) -> u16 {
    (queue_pair.value() >> QUEUE_PAIR_BITS) as u16
}

/// Whether a process of this network namespace is this member of an address.
pub(super) fn is_alive(address: SocketAddr, member: u16) -> bool {
    let reached = member_name(address, member).and_then(|name| UnixDatagram::unbound()?.connect_addr(&name));
    reached.is_ok()
}

fn name_prefix(address: SocketAddr) -> String {
    format!("railnet-rdma/{address}/")
}

/// Takes a free member number. It starts at a random one: a packet that is still on its way to a process that died should
/// not find its successor.
fn claim_member(address: SocketAddr) -> io::Result<(u16, UnixDatagram)> {
    let first = random_u64() as u16 % MEMBERS_MAX;
    for step in 0..MEMBERS_MAX {
        let member = (first + step) % MEMBERS_MAX;
        match UnixDatagram::bind_addr(&member_name(address, member)?) {
            Ok(socket) => return Ok((member, socket)),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other(format!("{MEMBERS_MAX} processes share {address} already")))
}

/// One member at a time binds or rebuilds. The kernel frees the lock's name with its process.
fn lock(address: SocketAddr) -> io::Result<UnixDatagram> {
    let name = UnixAddress::from_abstract_name(format!("railnet-rdma-lock/{address}"))?;
    let began = Instant::now();
    loop {
        match UnixDatagram::bind_addr(&name) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                if began.elapsed() >= LOCK_TIMEOUT {
                    let text =
                        format!("another process is changing who receives at {address}, and does not end");
                    return Err(io::Error::new(io::ErrorKind::TimedOut, text));
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            outcome => return outcome,
        }
    }
}

/// How many members there are, by the names that are taken.
fn members(address: SocketAddr) -> u32 {
    const GUESS: u32 = 64;
    let prefix = format!("@{}", name_prefix(address));
    std::fs::read_to_string("/proc/net/unix").map_or(GUESS, |table| {
        let taken = table.lines().filter_map(|line| line.rsplit(' ').next());
        taken.filter(|name| name.starts_with(&prefix)).count() as u32
    })
}

/// The program that chooses a socket: members by the queue pair number, by the service id, or by the communication id.
fn program(answers: &[Answer]) -> Vec<libc::sock_filter> {
    use libc::{BPF_A, BPF_ABS, BPF_ALU, BPF_AND, BPF_H, BPF_JA, BPF_JMP, BPF_LD, BPF_RET, BPF_RSH, BPF_W};

    const WORD: u32 = BPF_LD | BPF_W | BPF_ABS;
    const HALF: u32 = BPF_LD | BPF_H | BPF_ABS;
    // Bytes of a UDP payload: BTH, DETH, MAD header, then the message of connection management (IBTA 12.6).
    const DESTINATION: u32 = 4;
    const ATTRIBUTE: u32 = 12 + 8 + 16;
    const LOCAL_ID: u32 = 12 + 8 + 24;
    const REMOTE_ID: u32 = LOCAL_ID + 4;
    const SERVICE_LOW: u32 = LOCAL_ID + 12;
    const CONNECT_REQUEST: u32 = 0x10;
    const SIDR_REQUEST: u32 = 0x17;
    const SIDR_REPLY: u32 = 0x18;

    let members: Vec<_> = answers.iter().map(|answer| (u32::from(answer.member), answer.index)).collect();
    let listens =
        |answer: &Answer| answer.services.iter().map(|service| (*service, answer.index)).collect::<Vec<_>>();
    let fixed = 32 + 4 * members.len();
    let mut services: Vec<_> = answers.iter().flat_map(listens).collect();
    services.truncate(INSTRUCTIONS_MAX.saturating_sub(fixed) / 2);

    let mut code = Program::default();
    code.op(WORD, 0);
    code.jump(PROBE, 0, 2);
    code.op(WORD, DESTINATION);
    code.op(BPF_RET | BPF_A, 0);
    code.op(WORD, DESTINATION);
    code.op(BPF_ALU | BPF_AND, 0x00ff_ffff);
    code.jump(1, 0, 1);
    code.op(BPF_JMP | BPF_JA, 1 + Program::chain_length(&members));
    code.op(BPF_ALU | BPF_RSH, QUEUE_PAIR_BITS);
    // Past the end of the list: the kernel gives it to any member, which finds out that the program is stale.
    code.choose(&members, u32::MAX);
    code.op(HALF, ATTRIBUTE);
    code.jump(CONNECT_REQUEST, 2, 0);
    code.jump(SIDR_REQUEST, 1, 0);
    code.op(BPF_JMP | BPF_JA, 1 + Program::chain_length(&services));
    code.op(WORD, SERVICE_LOW);
    // A service on which no member listens: the first one refuses it.
    code.choose(&services, 0);
    code.jump(SIDR_REPLY, 0, 2);
    code.op(WORD, LOCAL_ID);
    code.op(BPF_JMP | BPF_JA, 1);
    code.op(WORD, REMOTE_ID);
    code.op(BPF_ALU | BPF_RSH, COMMUNICATION_BITS);
    code.choose(&members, 0);
    code.0
}

/// A program in the making.
#[derive(Default)]
struct Program(Vec<libc::sock_filter>);

impl Program {
    fn op(&mut self, code: u32, operand: u32) {
        self.0.push(libc::sock_filter { code: code as u16, jt: 0, jf: 0, k: operand });
    }

    /// Skips so many instructions where the accumulator equals the value, and where not.
    fn jump(&mut self, value: u32, equal: u8, unequal: u8) {
        let code = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
        self.0.push(libc::sock_filter { code, jt: equal, jf: unequal, k: value });
    }

    /// Returns the index that goes with the accumulator.
    fn choose(&mut self, table: &[(u32, u32)], otherwise: u32) {
        for &(value, index) in table {
            self.jump(value, 0, 1);
            self.op(libc::BPF_RET | libc::BPF_K, index);
        }
        self.op(libc::BPF_RET | libc::BPF_K, otherwise);
    }

    /// Instructions of [`Program::choose`].
    fn chain_length(table: &[(u32, u32)]) -> u32 {
        2 * table.len() as u32 + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel does with such a program, for the instructions that occur in it.
    fn run(program: &[libc::sock_filter], packet: &[u8]) -> u32 {
        use libc::{
            BPF_A, BPF_ABS, BPF_ALU, BPF_AND, BPF_H, BPF_JA, BPF_JEQ, BPF_JMP, BPF_LD, BPF_RET, BPF_RSH,
        };
        let (mut at, mut a) = (0, 0_u32);
        loop {
            let op = program[at];
            let (code, k) = (u32::from(op.code), op.k);
            at += 1;
            let bytes = |n: usize| {
                packet
                    .get(k as usize..k as usize + n)
                    .map(|b| b.iter().fold(0, |v, b| v << 8 | u32::from(*b)))
            };
            if code == BPF_LD | BPF_ABS {
                let Some(value) = bytes(4) else { return 0 };
                a = value;
            } else if code == BPF_LD | BPF_H | BPF_ABS {
                let Some(value) = bytes(2) else { return 0 };
                a = value;
            } else if code == BPF_ALU | BPF_AND {
                a &= k;
            } else if code == BPF_ALU | BPF_RSH {
                a >>= k;
            } else if code == BPF_JMP | BPF_JA {
                at += k as usize;
            } else if code == BPF_JMP | BPF_JEQ {
                at += usize::from(if a == k { op.jt } else { op.jf });
            } else if code == BPF_RET | BPF_A {
                return a;
            } else {
                assert_eq!(code, BPF_RET);
                return k;
            }
        }
    }

    fn answers() -> Vec<Answer> {
        vec![
            Answer { index: 2, member: 7, services: vec![0x0106_1234] },
            Answer { index: 0, member: 1023, services: vec![] },
            Answer { index: 1, member: 0, services: vec![0x0106_4000, 0x0111_4000] },
        ]
    }

    fn packet(queue_pair: u32) -> Vec<u8> {
        let mut packet = vec![0; 300];
        packet[4..8].copy_from_slice(&(0xaa00_0000 | queue_pair).to_be_bytes());
        packet
    }

    fn management(attribute: u16, at: usize, value: u32) -> Vec<u8> {
        let mut packet = packet(1);
        packet[36..38].copy_from_slice(&attribute.to_be_bytes());
        packet[at..at + 4].copy_from_slice(&value.to_be_bytes());
        packet
    }

    #[test]
    fn packets_go_by_the_member_in_their_queue_pair_number() {
        let program = program(&answers());
        assert_eq!(run(&program, &packet(7 << QUEUE_PAIR_BITS | 0x33)), 2);
        assert_eq!(run(&program, &packet(1023 << QUEUE_PAIR_BITS)), 0);
        assert_eq!(run(&program, &packet(0x11)), 1);
        assert_eq!(run(&program, &packet(8 << QUEUE_PAIR_BITS)), u32::MAX);
        assert_eq!(run(&program, &[0xff]), 0, "a datagram that is too short");
    }

    #[test]
    fn management_goes_by_service_and_by_communication_id() {
        let program = program(&answers());
        assert_eq!(run(&program, &management(0x10, 56, 0x0106_1234)), 2);
        assert_eq!(run(&program, &management(0x17, 56, 0x0111_4000)), 1);
        assert_eq!(run(&program, &management(0x10, 56, 0x0106_9999)), 0);
        assert_eq!(run(&program, &management(0x14, 48, 7 << COMMUNICATION_BITS | 5)), 2);
        assert_eq!(run(&program, &management(0x18, 44, 5)), 1);
    }

    #[test]
    fn probes_choose_their_index() {
        let mut probe = PROBE.to_be_bytes().to_vec();
        probe.extend(41_u32.to_be_bytes());
        assert_eq!(run(&program(&answers()), &probe), 41);
    }

    #[test]
    fn an_answer_without_the_nonce_is_none() {
        let answer = answers().remove(0);
        let bytes = answer.emit(&9_u64.to_be_bytes());
        assert_eq!(Answer::parse(&bytes, 9), Some(answer));
        assert_eq!(Answer::parse(&bytes, 8), None);
        assert_eq!(Answer::parse(&bytes[..11], 9), None);
    }
}
