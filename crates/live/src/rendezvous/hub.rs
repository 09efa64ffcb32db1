//! The meeting as rank 0 sees it.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::reminders::{Due, LIMIT_HINT};
use super::{Config, Door, MeetError, Prepare, member, named, verb};
use crate::launch::RendezvousAddress;
use crate::message::{
    ANSWER_MAX, Hello, Malformed, Member, Message, Nonce, REQUEST_MAX, Trouble, TroubleKind, VERSION,
};
use crate::secret::Side;
use crate::socket::{self, Broken, Connection};

/// How long a caller may take to introduce itself.
const INTRODUCTION_MAX: Duration = Duration::from_secs(10);
/// How long a failed meeting tries to tell its ranks.
const FAREWELL_MAX: Duration = Duration::from_secs(2);
/// How long callers have to hang up after that.
const HANG_UP_MAX: Duration = Duration::from_millis(300);
/// How often a missing rank is probed whose process is known, and how long an attempt may take.
const PROBE_INTERVAL: Duration = Duration::from_millis(50);
const PROBE_TIMEOUT: Duration = Duration::from_millis(100);
/// Callers beyond the ranks that are still expected: more, and the one that has said nothing for longest has to go.
const STRANGERS_AT_ONCE: usize = 256;
/// Strangers that are described; more are only counted.
const NOTES_MAX: usize = 4;

/// A connection with somebody who is not in yet.
struct Caller {
    connection: Connection,
    from: SocketAddr,
    since: Instant,
    /// Its introduction and our number, once it has introduced itself.
    challenged: Option<(Hello, Nonce)>,
}

/// A rank that is in.
struct Joined {
    connection: Connection,
    member: Member,
}

/// What becomes of a caller.
enum Verdict {
    /// It has more to say.
    Stays,
    /// It is a rank of this meeting.
    Joins(u32, Member),
    /// It is none of ours.
    Stranger(String, Option<Trouble>),
    /// It is one of ours, and the meeting cannot be held.
    Fatal(Trouble),
}

struct Hub<'a> {
    config: &'a Config,
    hello: &'a Hello,
    began: Instant,
    deadline: Instant,
    callers: Vec<Caller>,
    joined: Vec<Option<Joined>>,
    strangers: usize,
    notes: Vec<String>,
    /// Where ranks listen whose processes are known, by rank; empty at a first meeting.
    addresses: Vec<Vec<SocketAddr>>,
    /// When a missing rank was probed, and which.
    probed: (Instant, usize),
    reminders: Due<'a>,
}

/// Waits for all ranks. Connections come back in the order of ranks, from rank 1 on.
pub(super) fn meet(
    door: Door,
    config: &Config,
    meeting: &RendezvousAddress,
    hello: &Hello,
    prepare: Prepare<'_>,
    deadline: Instant,
) -> Result<(Vec<Connection>, Vec<Member>), MeetError> {
    let (listener, _alone, addresses) = match door {
        Door::Kept(Some(kept)) => {
            kept.listener.set_nonblocking(true)?;
            (kept.listener, None, kept.addresses)
        }
        Door::New | Door::Kept(None) => {
            let (listener, alone) = listen(config, meeting, deadline)?;
            (listener, alone, Vec::new())
        }
    };
    let joined = (1..config.world_size).map(|_| None).collect();
    let began = Instant::now();
    let mut hub = Hub {
        config,
        hello,
        began,
        deadline,
        callers: Vec::new(),
        joined,
        strangers: 0,
        notes: Vec::new(),
        addresses,
        probed: (began, 0),
        reminders: config.reminders.begin(began),
    };
    let outcome = loop {
        match hub.turn(&listener) {
            Ok(false) => {}
            Ok(true) => break prepare(hub.address()).map_err(Stop::Trouble),
            Err(stop) => break Err(stop),
        }
    };
    match outcome {
        Ok(blob) => Ok(hub.welcome(&blob)?),
        Err(Stop::Io(error)) => Err(error.into()),
        Err(Stop::Trouble(trouble)) => {
            hub.farewell(&listener, &trouble);
            Err(MeetError::Trouble(trouble))
        }
    }
}

enum Stop {
    Io(std::io::Error),
    Trouble(Trouble),
}

/// Listens where the others will call, and makes sure that no second rank 0 does on a port that is held for it.
fn listen(
    config: &Config,
    meeting: &RendezvousAddress,
    deadline: Instant,
) -> Result<(TcpListener, Option<UnixListener>), MeetError> {
    let address = SocketAddr::new(listening_address(config, meeting, deadline), meeting.port);
    let failed = |cause: String| MeetError::Listen { address: address.to_string(), cause };
    let in_use =
        "the port is taken; another rank 0, or another program, has it (RAILNET_PORT chooses a port)";
    let mut alone = None;
    if config.is_port_held {
        // Two sockets may share a held port; a name in the abstract namespace has one owner, and goes with it.
        let name = format!("railnet-rendezvous-{}", meeting.port);
        let name = std::os::unix::net::SocketAddr::from_abstract_name(name.as_bytes())?;
        let listener = UnixListener::bind_addr(&name);
        alone = Some(listener.map_err(|_| failed("another rank 0 of this job is there already".to_owned()))?);
    }
    match socket::listen(address, config.is_port_held) {
        Ok(listener) => Ok((listener, alone)),
        Err(error) if error.kind() == ErrorKind::AddrInUse => Err(failed(in_use.to_owned())),
        Err(error) => Err(failed(error.to_string())),
    }
}

/// The address of the rendezvous, where it is one of this host. A name that means a loopback address here means another one elsewhere
/// (Debian gives a host's own name 127.0.1.1), and one with several addresses may be tried at any of them: then at all.
fn listening_address(config: &Config, meeting: &RendezvousAddress, deadline: Instant) -> IpAddr {
    let all = Ipv6Addr::UNSPECIFIED.into();
    if let Some(address) = config.bind {
        return address;
    }
    let host = meeting.hosts.first().map_or("", String::as_str);
    let literal = if host == "localhost" { Some(Ipv4Addr::LOCALHOST.into()) } else { host.parse().ok() };
    if let Some(address) = literal {
        return if is_here(&address) { address } else { all };
    }
    let named = socket::resolve(host, meeting.port, deadline).unwrap_or_default();
    let named: BTreeSet<IpAddr> = named.iter().map(|address| address.ip().to_canonical()).collect();
    let mut named = named.into_iter();
    match (named.next(), named.next()) {
        (Some(address), None) if !address.is_loopback() && is_here(&address) => address,
        _ => all,
    }
}

/// Whether an address is one of this host.
fn is_here(address: &IpAddr) -> bool {
    std::net::UdpSocket::bind(SocketAddr::new(*address, 0)).is_ok()
}

impl Hub<'_> {
    /// The address at which the ranks have reached this one, if it is one. Those of this host may have come by the loopback interface.
    fn address(&self) -> Option<IpAddr> {
        let joined = self.joined.iter().flatten();
        let all: BTreeSet<IpAddr> = joined.filter_map(|one| one.connection.local_address()).collect();
        let mut far = all.iter().filter(|address| !address.is_loopback());
        match (far.next(), far.next()) {
            (Some(address), None) => Some(*address),
            (None, _) => all.first().map(|_| Ipv4Addr::LOCALHOST.into()),
            _ => None,
        }
    }

    /// Waits for something to happen and deals with it. True when all are in.
    fn turn(&mut self, listener: &TcpListener) -> Result<bool, Stop> {
        if self.joined.iter().all(Option::is_some) {
            return Ok(true);
        }
        let now = Instant::now();
        if now >= self.deadline {
            let mut trouble = self.missing();
            let _ = write!(trouble.text, " ({LIMIT_HINT})");
            return Err(Stop::Trouble(trouble));
        }
        if now >= self.reminders.next() {
            let missing = self.missing().text;
            self.reminders.remind(now, self.deadline, || missing);
        }
        self.wait(listener).map_err(Stop::Io)?;
        self.accept(listener);
        self.hear_joined()?;
        self.probe()?;
        let mut kept = Vec::new();
        let mut callers = std::mem::take(&mut self.callers).into_iter();
        while let Some(mut caller) = callers.next() {
            match self.judge(&mut caller) {
                Verdict::Stays => kept.push(caller),
                Verdict::Joins(rank, member) => {
                    self.joined[rank as usize - 1] = Some(Joined { connection: caller.connection, member });
                }
                Verdict::Stranger(why, trouble) => self.dismiss(caller, &why, trouble),
                Verdict::Fatal(trouble) => {
                    refuse(&mut caller.connection, &trouble);
                    kept.push(caller);
                    self.callers = kept.into_iter().chain(callers).collect();
                    return Err(Stop::Trouble(trouble));
                }
            }
        }
        self.callers = kept;
        Ok(false)
    }

    fn wait(&self, listener: &TcpListener) -> std::io::Result<()> {
        let mut fds = vec![PollFd::new(listener, PollFlags::IN)];
        let joined = self.joined.iter().flatten().map(|joined| joined.connection.poll_fd());
        fds.extend(self.callers.iter().map(|caller| caller.connection.poll_fd()).chain(joined));
        let slowest = self.callers.iter().map(|caller| caller.since + INTRODUCTION_MAX).min();
        let mut until = self.deadline.min(self.reminders.next());
        if !self.addresses.is_empty() {
            until = until.min(Instant::now() + PROBE_INTERVAL);
        }
        socket::wait(&mut fds, slowest.map_or(until, |slowest| slowest.min(until)))
    }

    fn accept(&mut self, listener: &TcpListener) {
        let most = self.config.world_size as usize + STRANGERS_AT_ONCE;
        // Anything but a caller, such as too many open files, is left for the next turn.
        while let Ok((stream, from)) = listener.accept() {
            if self.callers.len() >= most {
                let oldest = self.callers.remove(0);
                self.dismiss(oldest, "said nothing", None);
            }
            if let Ok(connection) = Connection::new(stream, REQUEST_MAX) {
                self.callers.push(Caller { connection, from, since: Instant::now(), challenged: None });
            }
        }
    }

    /// Whether a missing rank is still there, one at a time: a process that has ended refuses connections.
    fn probe(&mut self) -> Result<(), Stop> {
        if self.addresses.is_empty() || self.probed.0.elapsed() < PROBE_INTERVAL {
            return Ok(());
        }
        let missing: Vec<usize> =
            (0..self.joined.len()).filter(|index| self.joined[*index].is_none()).collect();
        let next = missing.iter().copied().find(|index| *index > self.probed.1).or(missing.first().copied());
        let Some(index) = next else { return Ok(()) };
        self.probed = (Instant::now(), index);
        let rank = index as u32 + 1;
        let Some(addresses) = self.addresses.get(rank as usize) else { return Ok(()) };
        let refused = |address: &SocketAddr| {
            let attempt = std::net::TcpStream::connect_timeout(address, PROBE_TIMEOUT);
            attempt.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
        };
        if !addresses.is_empty() && addresses.iter().all(refused) {
            let text = format!("rank {rank} did not come to the meeting: its process has ended");
            return Err(Stop::Trouble(Trouble { kind: TroubleKind::Gone, ranks: vec![rank], text }));
        }
        Ok(())
    }

    /// Ranks that are in say nothing until all are; their leaving is news.
    fn hear_joined(&mut self) -> Result<(), Stop> {
        for (index, joined) in self.joined.iter_mut().enumerate() {
            let Some(Joined { connection, member }) = joined else {
                continue;
            };
            let heard = connection.flush().and_then(|()| connection.fill());
            let Err(cause) = heard.and_then(|()| Ok(connection.decoder.next().map(|_| ())?)) else {
                continue;
            };
            let rank = index as u32 + 1;
            let (host, pid) = (&member.host, member.pid);
            let text =
                format!("rank {rank} ({host}, pid {pid}) came to the meeting and is gone again: {cause}");
            return Err(Stop::Trouble(Trouble { kind: TroubleKind::Gone, ranks: vec![rank], text }));
        }
        Ok(())
    }

    /// Hears a caller out.
    fn judge(&mut self, caller: &mut Caller) -> Verdict {
        let heard = caller.connection.flush().and_then(|()| caller.connection.fill());
        loop {
            match caller.connection.decoder.next() {
                Ok(Some(message)) => match self.answer(caller, message) {
                    Verdict::Stays => {}
                    verdict => return verdict,
                },
                Ok(None) => break,
                Err(Malformed::Version(version)) => return self.foreign(caller, version),
                Err(malformed) => return Verdict::Stranger(malformed.to_string(), None),
            }
        }
        if let Err(cause) = heard {
            return Verdict::Stranger(
                match &caller.challenged {
                    Some((hello, _)) => format!("(rank {}) broke off; has it another secret?", hello.rank),
                    None => cause.to_string(),
                },
                None,
            );
        }
        if caller.since.elapsed() >= INTRODUCTION_MAX {
            return Verdict::Stranger("did not introduce itself in time".to_owned(), None);
        }
        Verdict::Stays
    }

    fn answer(&mut self, caller: &mut Caller, message: Message) -> Verdict {
        match (message, caller.challenged.take()) {
            (Message::Hello(hello), None) => self.challenge(caller, hello),
            (Message::Join { proof, blob }, Some((hello, nonce))) => {
                let side = Side::Caller { rank: hello.rank, world_size: hello.world_size };
                if !self.config.secret.is_proof(&proof, side, &hello.nonce, &nonce) {
                    return Verdict::Stranger(
                        "has another secret".to_owned(),
                        Some(self.wrong_secret(&hello)),
                    );
                }
                self.admit(caller, &hello, &blob)
            }
            // A rank that lacks something says what before it would join. Where there is a secret, it came with a code.
            (Message::Refused(trouble), Some((hello, _))) if self.is_missing(&hello) => {
                let (kind, ranks) = (TroubleKind::Local, vec![hello.rank]);
                Verdict::Fatal(Trouble { kind, ranks, text: trouble.text })
            }
            _ => Verdict::Stranger("spoke out of turn".to_owned(), None),
        }
    }

    /// Whether a rank of this meeting is still to come.
    fn is_missing(&self, hello: &Hello) -> bool {
        let place = (hello.rank as usize).checked_sub(1).and_then(|index| self.joined.get(index));
        hello.world_size == self.config.world_size && place.is_some_and(Option::is_none)
    }

    fn challenge(&mut self, caller: &mut Caller, hello: Hello) -> Verdict {
        if hello.job != self.hello.job {
            let text = format!("the ranks that meet here are of another job than rank {}", hello.rank);
            let trouble = Trouble { kind: TroubleKind::Job, ranks: vec![hello.rank], text };
            return Verdict::Stranger("is of another job".to_owned(), Some(trouble));
        }
        let nonce = match crate::secret::random() {
            Ok(nonce) => nonce,
            Err(error) => return Verdict::Stranger(error.to_string(), None),
        };
        let proof = self.config.secret.prove(Side::Hub, &hello.nonce, &nonce);
        if let Err(cause) = caller.connection.say(&Message::Challenge { nonce, proof }, REQUEST_MAX) {
            return Verdict::Stranger(cause.to_string(), None);
        }
        if let Some(seals) = self.config.secret.seals_of(true, &hello.nonce, &nonce) {
            caller.connection.authenticate(seals);
        }
        caller.challenged = Some((hello, nonce));
        Verdict::Stays
    }

    /// One who knows the secret: is there a place for it?
    fn admit(&mut self, caller: &Caller, hello: &Hello, blob: &[u8]) -> Verdict {
        let (rank, size) = (hello.rank, self.config.world_size);
        let who = format!("rank {rank} ({}, pid {})", hello.host, hello.pid);
        if hello.world_size != size || rank >= size {
            let text = if hello.world_size == size {
                format!("{who} is none of the {size} ranks: they are 0 to {}", size - 1)
            } else {
                format!(
                    "{who} was told that there are {} ranks, rank 0 that there are {size}",
                    hello.world_size
                )
            };
            return Verdict::Fatal(Trouble { kind: TroubleKind::WorldSize, ranks: vec![rank], text });
        }
        let other = match rank {
            0 => Some((self.hello.host.as_str(), self.hello.pid)),
            _ => {
                self.joined[rank as usize - 1].as_ref().map(|one| (one.member.host.as_str(), one.member.pid))
            }
        };
        if let Some((host, pid)) = other {
            let text = format!(
                "rank {rank} is there twice: pid {pid} on {host}, and pid {} on {} (from {})",
                hello.pid, hello.host, caller.from
            );
            return Verdict::Fatal(Trouble { kind: TroubleKind::Twice, ranks: vec![rank], text });
        }
        // Who waits least decides when those who are missing are named, so that all hear it.
        let patience = Duration::from_millis(u64::from(hello.limit_ms));
        self.deadline = self.deadline.min(caller.since + patience);
        Verdict::Joins(rank, member(hello, blob))
    }

    fn wrong_secret(&self, hello: &Hello) -> Trouble {
        let given = if self.config.secret.is_given() { "has one" } else { "has none" };
        let text =
            format!("rank {} does not know the secret of rank 0, which {given} (RAILNET_SECRET)", hello.rank);
        Trouble { kind: TroubleKind::Secret, ranks: vec![hello.rank], text }
    }

    /// One who speaks another version cannot prove anything: it ends the meeting only where no proof is asked for.
    fn foreign(&self, caller: &Caller, version: u16) -> Verdict {
        let Some((rank, size)) = caller.connection.decoder.foreign_rank() else {
            return Verdict::Stays;
        };
        if size != self.config.world_size || rank >= size {
            return Verdict::Stranger(
                format!("speaks version {version} of the protocol, and is no rank"),
                None,
            );
        }
        let text = format!("rank {rank} speaks version {version} of the protocol, rank 0 version {VERSION}");
        let trouble = Trouble { kind: TroubleKind::Version, ranks: vec![rank], text: text.clone() };
        if self.config.secret.is_given() {
            Verdict::Stranger(text, Some(trouble))
        } else {
            Verdict::Fatal(trouble)
        }
    }

    /// Sends a stranger away, with a word where it will understand it.
    fn dismiss(&mut self, mut caller: Caller, why: &str, trouble: Option<Trouble>) {
        self.strangers += 1;
        if self.notes.len() < NOTES_MAX {
            self.notes.push(format!("{} {why}", caller.from));
        }
        if let Some(trouble) = trouble {
            refuse(&mut caller.connection, &trouble);
        }
    }

    fn missing(&self) -> Trouble {
        let is_missing = |(_, joined): &(u32, &Option<Joined>)| joined.is_none();
        let ranks: Vec<u32> = (1..).zip(&self.joined).filter(is_missing).map(|(rank, _)| rank).collect();
        let mut text = format!(
            "{} of {} {} missing after {:.1?}",
            named(&ranks),
            self.config.world_size,
            verb(&ranks),
            self.began.elapsed()
        );
        if self.strangers > 0 {
            let many = if self.strangers == 1 { "stranger" } else { "strangers" };
            let _ = write!(text, "; {} {many} called: {}", self.strangers, self.notes.join(", "));
        }
        Trouble { kind: TroubleKind::Missing, ranks, text }
    }

    /// Tells everyone that nothing came of it, also those who are only just coming.
    fn farewell(&mut self, listener: &TcpListener, trouble: &Trouble) {
        let linger = if trouble.kind == TroubleKind::Missing { Duration::ZERO } else { FAREWELL_MAX };
        let deadline = Instant::now() + linger;
        let mut told: Vec<u32> = trouble.ranks.clone();
        for (rank, joined) in (1..).zip(&mut self.joined) {
            if let Some(joined) = joined {
                refuse(&mut joined.connection, trouble);
                told.push(rank);
            }
        }
        for caller in &mut self.callers {
            if let Some((hello, _)) = caller.challenged.take() {
                refuse(&mut caller.connection, trouble);
                told.push(hello.rank);
            }
        }
        let is_told = |told: &[u32]| (1..self.config.world_size).all(|rank| told.contains(&rank));
        while !is_told(&told) && Instant::now() < deadline {
            let mut fds = vec![PollFd::new(listener, PollFlags::IN)];
            fds.extend(self.callers.iter().map(|caller| caller.connection.poll_fd()));
            if socket::wait(&mut fds, deadline).is_err() {
                break;
            }
            self.accept(listener);
            self.callers.retain_mut(|caller| {
                let is_open = caller.connection.flush().and_then(|()| caller.connection.fill()).is_ok();
                if let Ok(Some(Message::Hello(hello))) = caller.connection.decoder.next()
                    && hello.job == self.hello.job
                {
                    refuse(&mut caller.connection, trouble);
                    told.push(hello.rank);
                }
                is_open
            });
        }
        let last = Instant::now() + FAREWELL_MAX;
        for joined in self.joined.iter_mut().flatten() {
            joined.connection.drain(last);
        }
        // Who is told hangs up. What it said meanwhile is read first: a close with something unread takes back what it was told.
        let last = Instant::now() + HANG_UP_MAX;
        for caller in &mut self.callers {
            while let Ok(Some(_)) = caller.connection.hear(last) {}
        }
    }

    /// Tells everyone who is there.
    fn welcome(self, blob: &[u8]) -> Result<(Vec<Connection>, Vec<Member>), MeetError> {
        let mut members = vec![member(self.hello, blob)];
        let mut connections = Vec::new();
        for Joined { connection, member } in self.joined.into_iter().flatten() {
            members.push(member);
            connections.push(connection);
        }
        let mut bytes = Vec::new();
        let welcome = Message::Welcome(members);
        welcome.write(&mut bytes);
        if bytes.len() > ANSWER_MAX {
            let text = format!("{} bytes of contributions are too many for a meeting", bytes.len());
            let trouble = Trouble { kind: TroubleKind::TooMuch, ranks: Vec::new(), text };
            for connection in &mut connections {
                refuse(connection, &trouble);
            }
            return Err(MeetError::Trouble(trouble));
        }
        for connection in &mut connections {
            // A rank that is gone by now is the control channel's first news.
            let _ = connection.say(&welcome, usize::MAX);
        }
        let Message::Welcome(members) = welcome else { unreachable!("it was made a few lines above") };
        Ok((connections, members))
    }
}

fn refuse(connection: &mut Connection, trouble: &Trouble) {
    // Nobody there to hear it is no trouble of ours.
    let _: Result<(), Broken> = connection.say(&Message::Refused(trouble.clone()), usize::MAX);
}
