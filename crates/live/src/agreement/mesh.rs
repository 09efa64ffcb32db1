//! Drives an [`Agreement`] over TCP: each rank dials every other one and sends along that connection, and receives along those it accepted.
//!
//! ```text
//!   dialer ── magic, instance, rank ──▶ acceptor        which agreement, and who calls
//!   dialer ◀──────── nonce ──────────── acceptor        only once the acceptor has entered the same agreement
//!   dialer ── length, message, HMAC ──▶ acceptor        over secret, instance, both ranks, nonce and a counter
//! ```
//!
//! A refused connection is a dead process. A connection that is taken and gets no nonce is a process that has not entered yet: it has the
//! whole enter timeout. A host that takes no connection for the heartbeat timeout is unreachable.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use railnet_core::Time;
use rustix::event::{PollFd, PollFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::{Agreement, Config, Message, Outcome};
use crate::message::{self, Decoder, REQUEST_MAX, Trouble, TroubleKind};
use crate::secret::Secret;
use crate::socket;

const MAGIC: [u8; 8] = *b"RAILAGRE";
const GREETING_SIZE: usize = MAGIC.len() + 16 + 4;
const NONCE_SIZE: usize = 16;
const MAC_SIZE: usize = 32;
/// The longest message: a few lists of ranks.
const MESSAGE_MAX: usize = 64 * 1024;
/// Messages that are kept for a rank that is not connected; the machine repeats those that matter.
const PENDING_MAX: usize = 16;
/// Accepted connections beyond one for each rank; of more, the oldest is closed.
const UNPROVEN_MAX: usize = 64;
/// Pause before a rank is dialled again.
const REDIAL: Duration = Duration::from_millis(25);
/// How long a decision that is on its way is waited for.
const LINGER: Duration = Duration::from_millis(300);

/// Who agrees about what, and where the ranks are.
pub(crate) struct Mesh<'a> {
    /// Which agreement this is, the same number on every rank.
    pub(crate) instance: u128,
    pub(crate) secret: &'a Secret,
    /// Where this rank is dialled.
    pub(crate) listener: &'a TcpListener,
    /// Where each rank is dialled.
    pub(crate) addresses: &'a [Vec<SocketAddr>],
    /// After how long without a connection a host is unreachable.
    pub(crate) heartbeat_timeout: Duration,
    /// Rendezvous that this rank has given up: ranks that still call there are told so.
    pub(crate) abandoned: &'a [u64],
}

/// The connection along which this rank sends to another.
enum Link {
    /// Not before then.
    Redial(Instant),
    Connecting {
        stream: TcpStream,
        deadline: Instant,
    },
    /// Connected; the peer has not entered.
    Greeted {
        stream: TcpStream,
        nonce: Vec<u8>,
    },
    Open {
        stream: TcpStream,
        nonce: Vec<u8>,
        counter: u64,
        out: Vec<u8>,
    },
}

struct Dialed {
    link: Link,
    /// The address that is tried, and whether all before it in this pass were refused.
    address: usize,
    all_refused: bool,
    has_refused: bool,
    /// Since when there is no connection.
    down_since: Option<Instant>,
    pending: VecDeque<Vec<u8>>,
    has_been_open: bool,
    is_gone: bool,
}

/// A connection that was accepted.
struct Accepted {
    stream: TcpStream,
    bytes: Vec<u8>,
    from: Option<u32>,
    nonce: [u8; NONCE_SIZE],
    counter: u64,
}

struct Driver<'a> {
    mesh: &'a Mesh<'a>,
    rank: u32,
    machine: Agreement,
    began: Instant,
    dialed: Vec<Dialed>,
    accepted: Vec<Accepted>,
}

/// Agrees with the other ranks: returns at the latest after the timeout of the configuration.
pub(crate) fn agree(mesh: &Mesh<'_>, config: Config, failed: &[u32], flags: u64) -> io::Result<Outcome> {
    mesh.listener.set_nonblocking(true)?;
    let began = Instant::now();
    let dialed = (0..config.size)
        .map(|rank| Dialed {
            link: Link::Redial(began),
            address: 0,
            all_refused: true,
            has_refused: false,
            down_since: Some(began),
            pending: VecDeque::new(),
            has_been_open: false,
            is_gone: rank == config.rank || failed.contains(&rank),
        })
        .collect();
    let machine = Agreement::new(config, failed, flags, Time::ZERO);
    let mut driver = Driver { mesh, rank: config.rank, machine, began, dialed, accepted: Vec::new() };
    driver.run()
}

impl Driver<'_> {
    fn now(&self) -> Time {
        Time::from_ps(self.began.elapsed().as_nanos() as u64 * 1000)
    }

    fn run(&mut self) -> io::Result<Outcome> {
        let mut lingers_until = None;
        loop {
            // Messages first: a rank that was off its core must not take its own delay for the others' silence.
            self.accept();
            self.hear()?;
            self.dial();
            let now = self.now();
            if self.machine.poll_timeout().is_some_and(|due| due <= now) {
                self.machine.handle_timeout(now);
            }
            while let Some((to, message)) = self.machine.poll_transmit() {
                let pending = &mut self.dialed[to as usize].pending;
                if pending.len() >= PENDING_MAX {
                    pending.pop_front();
                }
                pending.push_back(message.write());
            }
            self.flush();
            let mut until = Instant::now() + REDIAL;
            if let Some(outcome) = self.machine.outcome() {
                let end = *lingers_until.get_or_insert(Instant::now() + LINGER);
                let is_sent = |one: &Dialed| match &one.link {
                    Link::Open { out, .. } => out.is_empty() && one.pending.is_empty(),
                    // A rank that was connected and is no longer has decided, too, and left.
                    Link::Redial(_) | Link::Connecting { .. } | Link::Greeted { .. } => {
                        one.is_gone || one.has_been_open
                    }
                };
                if Instant::now() >= end || self.dialed.iter().all(is_sent) {
                    return Ok(outcome.clone());
                }
                until = until.min(end);
            } else if let Some(due) = self.machine.poll_timeout() {
                until = until.min(self.began + Duration::from_nanos(due.as_ps().div_ceil(1000)));
            }
            self.wait(until)?;
        }
    }

    fn wait(&self, until: Instant) -> io::Result<()> {
        let mut fds = vec![PollFd::new(self.mesh.listener, PollFlags::IN)];
        fds.extend(self.accepted.iter().map(|one| PollFd::new(&one.stream, PollFlags::IN)));
        for one in &self.dialed {
            let (stream, flags) = match &one.link {
                Link::Redial(_) => continue,
                Link::Connecting { stream, .. } => (stream, PollFlags::OUT),
                Link::Greeted { stream, .. } => (stream, PollFlags::IN),
                Link::Open { stream, out, .. } if out.is_empty() => (stream, PollFlags::IN),
                Link::Open { stream, .. } => (stream, PollFlags::IN | PollFlags::OUT),
            };
            fds.push(PollFd::from_borrowed_fd(stream.as_fd(), flags));
        }
        socket::wait(&mut fds, until)
    }

    fn accept(&mut self) {
        // Anything but a caller, such as too many open files, is left for the next turn.
        while let Ok((stream, _)) = self.mesh.listener.accept() {
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            if self.accepted.len() >= self.dialed.len() + UNPROVEN_MAX {
                self.accepted.remove(0);
            }
            let one = Accepted { stream, bytes: Vec::new(), from: None, nonce: [0; NONCE_SIZE], counter: 0 };
            self.accepted.push(one);
        }
    }

    fn hear(&mut self) -> io::Result<()> {
        let now = self.now();
        let (mesh, rank, size) = (self.mesh, self.rank, self.dialed.len() as u32);
        let mut heard = Vec::new();
        let mut kept = Vec::new();
        for mut one in std::mem::take(&mut self.accepted) {
            let is_open = fill(&mut one.stream, &mut one.bytes);
            if one.from.is_none() && one.bytes.len() >= GREETING_SIZE {
                if !one.is_greeted(mesh, size)? {
                    continue;
                }
            } else if one.from.is_none() && !one.bytes.is_empty() && one.is_rendezvous(mesh) {
                continue;
            }
            if let Some(from) = one.from {
                match one.messages(mesh, from, rank) {
                    Some(messages) => heard.extend(messages.into_iter().map(|message| (from, message))),
                    None => continue,
                }
            }
            if is_open {
                kept.push(one);
            }
        }
        self.accepted = kept;
        for (from, message) in heard {
            self.machine.receive(now, from, message);
        }
        Ok(())
    }

    /// Lets connections proceed.
    fn dial(&mut self) {
        let now = Instant::now();
        for rank in 0..self.dialed.len() as u32 {
            let dialed = &mut self.dialed[rank as usize];
            if rank == self.rank || dialed.is_gone {
                continue;
            }
            dialed.proceed(self.mesh, self.rank, rank, now);
            let is_unreachable = dialed
                .down_since
                .is_some_and(|since| now.saturating_duration_since(since) >= self.mesh.heartbeat_timeout);
            if dialed.is_gone || is_unreachable {
                dialed.is_gone = true;
                let time = self.now();
                self.machine.report_gone(time, rank);
            }
        }
    }

    fn flush(&mut self) {
        let (mesh, own) = (self.mesh, self.rank);
        for (rank, dialed) in (0_u32..).zip(&mut self.dialed) {
            let Link::Open { stream, nonce, counter, out } = &mut dialed.link else { continue };
            while let Some(message) = dialed.pending.pop_front() {
                let mac = mac(mesh, own, rank, nonce, *counter, &message);
                *counter += 1;
                out.extend((message.len() as u32).to_le_bytes());
                out.extend(message);
                out.extend(mac);
            }
            while !out.is_empty() {
                match stream.write(out) {
                    Ok(count) if count > 0 => _ = out.drain(..count),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    _ => {
                        dialed.hang_up();
                        break;
                    }
                }
            }
        }
    }
}

impl Dialed {
    fn hang_up(&mut self) {
        self.link = Link::Redial(Instant::now() + REDIAL);
        self.down_since.get_or_insert_with(Instant::now);
    }

    fn proceed(&mut self, mesh: &Mesh<'_>, own: u32, rank: u32, now: Instant) {
        match &mut self.link {
            Link::Redial(at) if now >= *at => {
                let addresses = &mesh.addresses[rank as usize];
                let Some(address) = addresses.get(self.address) else { return self.pass_over(now) };
                let timeout = (mesh.heartbeat_timeout / 4).min(Duration::from_secs(1));
                match connect(*address, mesh.heartbeat_timeout) {
                    Ok(stream) => self.link = Link::Connecting { stream, deadline: now + timeout },
                    Err(error) => self.missed(&error),
                }
            }
            Link::Redial(_) => {}
            Link::Connecting { stream, deadline } => match connected(stream) {
                Some(Ok(())) => {
                    let mut greeting = MAGIC.to_vec();
                    greeting.extend(mesh.instance.to_le_bytes());
                    greeting.extend(own.to_le_bytes());
                    if stream.write_all(&greeting).is_err() {
                        return self.hang_up();
                    }
                    let connecting = std::mem::replace(&mut self.link, Link::Redial(now));
                    if let Link::Connecting { stream, .. } = connecting {
                        self.link = Link::Greeted { stream, nonce: Vec::new() };
                    }
                    (self.address, self.all_refused, self.has_refused, self.down_since) =
                        (0, true, false, None);
                }
                Some(Err(error)) => self.missed(&error),
                None if now >= *deadline => self.missed(&ErrorKind::TimedOut.into()),
                None => {}
            },
            Link::Greeted { stream, nonce } => {
                if !fill(stream, nonce) || nonce.len() > NONCE_SIZE {
                    return self.hang_up();
                }
                if nonce.len() == NONCE_SIZE {
                    let greeted = std::mem::replace(&mut self.link, Link::Redial(now));
                    if let Link::Greeted { stream, nonce } = greeted {
                        self.link = Link::Open { stream, nonce, counter: 0, out: Vec::new() };
                        self.has_been_open = true;
                    }
                }
            }
            Link::Open { stream, .. } => {
                // Nothing is said along it but its end.
                if !fill(stream, &mut Vec::new()) {
                    self.hang_up();
                }
            }
        }
    }

    /// An address did not answer: the next one is tried.
    fn missed(&mut self, error: &io::Error) {
        let is_refused = matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset);
        let is_elsewhere = matches!(
            error.kind(),
            ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable | ErrorKind::AddrNotAvailable
        );
        self.has_refused |= is_refused;
        self.all_refused &= is_refused || is_elsewhere;
        self.address += 1;
        self.link = Link::Redial(Instant::now());
        self.down_since.get_or_insert_with(Instant::now);
    }

    /// No address has taken a connection: the process is gone where its host says so.
    fn pass_over(&mut self, now: Instant) {
        self.is_gone = self.has_refused && self.all_refused;
        (self.address, self.all_refused, self.has_refused) = (0, true, false);
        self.link = Link::Redial(now + REDIAL);
    }
}

impl Accepted {
    /// Whether the caller is a rank of this agreement; it gets a nonce.
    fn is_greeted(&mut self, mesh: &Mesh<'_>, size: u32) -> io::Result<bool> {
        if self.is_rendezvous(mesh) {
            return Ok(false);
        }
        let greeting: Vec<u8> = self.bytes.drain(..GREETING_SIZE).collect();
        let (magic, rest) = greeting.split_at(MAGIC.len());
        let (instance, from) = rest.split_at(16);
        let from = u32::from_le_bytes(from.try_into().expect("four bytes are left"));
        if magic != MAGIC || instance != mesh.instance.to_le_bytes() || from >= size {
            return Ok(false);
        }
        self.nonce = crate::secret::random()?;
        self.from = Some(from);
        Ok(self.stream.write_all(&self.nonce).is_ok())
    }

    /// Whether the caller comes for a rendezvous: one that this rank has given up is refused in words, any other tries again.
    fn is_rendezvous(&mut self, mesh: &Mesh<'_>) -> bool {
        if !self.bytes.starts_with(b"RAILNET\0") {
            return false;
        }
        let mut decoder = Decoder::new(REQUEST_MAX);
        decoder.push(&self.bytes);
        match decoder.next() {
            Ok(Some(message::Message::Hello(hello))) if mesh.abandoned.contains(&hello.job) => {
                let text = "the ranks that were to meet here have restarted: one of them failed".to_owned();
                let trouble = Trouble { kind: TroubleKind::Gone, ranks: Vec::new(), text };
                let mut answer = message::preamble().to_vec();
                message::Message::Refused(trouble).write(&mut answer);
                // Who does not get it tries again.
                let _ = self.stream.write_all(&answer);
                true
            }
            Ok(None) => false,
            _ => true,
        }
    }

    /// What has come; `None` where it is not what a rank of this job sends.
    fn messages(&mut self, mesh: &Mesh<'_>, from: u32, own: u32) -> Option<Vec<Message>> {
        let mut messages = Vec::new();
        while let Some(length) = self.bytes.first_chunk::<4>() {
            let length = u32::from_le_bytes(*length) as usize;
            if length > MESSAGE_MAX {
                return None;
            }
            let Some(frame) = self.bytes.get(4..4 + length + MAC_SIZE) else { break };
            let (message, code) = frame.split_at(length);
            let code = code.try_into().expect("as many bytes as were taken");
            let parts = covered(mesh, from, own, &self.nonce, self.counter);
            if !mesh.secret.is_code(code, LABEL, &[&parts, message]) {
                return None;
            }
            messages.push(Message::read(message).ok()?);
            self.counter += 1;
            self.bytes.drain(..4 + length + MAC_SIZE);
        }
        Some(messages)
    }
}

const LABEL: &[u8] = b"railnet agreement";

fn covered(mesh: &Mesh<'_>, from: u32, to: u32, nonce: &[u8], counter: u64) -> Vec<u8> {
    let mut parts = mesh.instance.to_le_bytes().to_vec();
    parts.extend(from.to_le_bytes());
    parts.extend(to.to_le_bytes());
    parts.extend(nonce);
    parts.extend(counter.to_le_bytes());
    parts
}

fn mac(mesh: &Mesh<'_>, from: u32, to: u32, nonce: &[u8], counter: u64, message: &[u8]) -> [u8; MAC_SIZE] {
    mesh.secret.code_of(LABEL, &[&covered(mesh, from, to, nonce, counter), message])
}

/// Reads what has come. Whether more may come.
fn fill(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> bool {
    let mut buffer = [0; 4096];
    // A caller that never stops is cut off at what a message may have.
    while bytes.len() <= 2 * MESSAGE_MAX {
        match stream.read(&mut buffer) {
            Ok(0) => return false,
            Ok(count) => bytes.extend(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return false,
        }
    }
    true
}

/// Begins to connect. A connection whose host becomes unreachable ends after the timeout.
fn connect(address: SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    socket::set_dead_peer_timeout(&socket, timeout)?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(TcpStream::from(socket)),
        Err(error) => Err(error.into()),
    }
}

/// How an attempt ended, once it has.
fn connected(stream: &TcpStream) -> Option<io::Result<()>> {
    let mut fds = [PollFd::new(stream, PollFlags::OUT)];
    match rustix::event::poll(&mut fds, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 })) {
        Ok(0) | Err(rustix::io::Errno::INTR) => None,
        Ok(_) => Some(sockopt::socket_error(stream).and_then(|outcome| outcome).map_err(io::Error::from)),
        Err(error) => Some(Err(error.into())),
    }
}
