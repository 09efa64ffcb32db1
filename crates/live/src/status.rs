//! What a rank does now, asked from outside, as NCCL's RAS answers: `railnet status`.
//!
//! A rank that is asked for all of its job asks the others over the control channel, wherever they are.
//!
//! Each rank listens at a socket in the abstract namespace, `railnet-status-<pid>-<rank>`, and answers processes of its user. A rank
//! in a call describes itself where it looks at the clock; for one that computes the thread that answers does. One that does neither
//! for half a second is told of as not answering.

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags};

use crate::Control;
use crate::control::ControlError;
use crate::message::fields::{Reader, put_text};
use crate::message::{BLOB_MAX, Malformed};
use crate::shared_memory::fd_passing::is_same_user;
use crate::socket;

/// How long a rank that is in a call may take to describe itself.
const DESCRIPTION_MAX: Duration = Duration::from_millis(500);
/// How long a conversation may take.
const CONVERSATION: Duration = Duration::from_secs(2);
/// How long ranks of other hosts may take, and how much longer rank 0, which has what they say.
const OTHERS_MAX: Duration = Duration::from_millis(1500);
const HUB_MAX: Duration = Duration::from_millis(300);
/// Between two looks at what they say.
const PAUSE: Duration = Duration::from_millis(10);
/// The same for one that asks them: with what the network and rank 0 take.
const CONVERSATION_OF_ALL: Duration = Duration::from_secs(5);
/// The most bytes of an answer.
const ANSWER_MAX: usize = 16 << 20;
const PREFIX: &str = "railnet-status-";
const TEXT_MAX: usize = 4096;
/// Questions of other ranks that an answer names.
const RECENT_MAX: usize = 16;
/// Ranks of one number in one process: of communicators that follow each other.
const NAMES: u32 = 16;

/// What a rank does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RankState {
    /// It is in no call.
    Computes,
    /// It is in a call, or has calls under way that it started.
    InCall,
    /// It has neither described itself nor let others do so: it is stopped, or busy in a part of a call that takes long.
    DoesNotAnswer,
}

impl RankState {
    const ALL: [Self; 3] = [Self::Computes, Self::InCall, Self::DoesNotAnswer];

    /// As words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Computes => "computes",
            Self::InCall => "in a call",
            Self::DoesNotAnswer => "does not answer",
        }
    }
}

/// A call under way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CallStatus {
    /// What it is, with its number.
    pub call: String,
    /// How many ranks take part.
    pub ranks: u32,
    /// How long ago it was seen first.
    pub age: Duration,
    /// How long nothing has moved.
    pub still_for: Duration,
    /// Ranks of the world for whose data or room it waits.
    pub waits_for: Vec<u32>,
}

/// Another rank, as one reaches it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerStatus {
    /// Its process.
    pub pid: u32,
    /// Its host.
    pub host: String,
    /// The transport to it.
    pub transport: String,
}

/// A counter.
pub type Counter = (String, u64);

/// A queue pair of a rank's NIC.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueuePairStatus {
    /// Its number.
    pub number: u32,
    /// The peer's.
    pub destination: u32,
    /// Its state, as verbs name it.
    pub state: String,
    /// Sends that are not complete.
    pub sends: u32,
    /// Receives that are posted.
    pub receives: u32,
    /// The next sequence number to send.
    pub send_psn: u32,
    /// The sequence number that is expected.
    pub receive_psn: u32,
}

/// What somebody wants to know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Request {
    /// What the rank does.
    Own = b'r' as isize,
    /// What all ranks of its job do.
    Job = b'j' as isize,
}

/// What a rank says of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RankStatus {
    /// Whether it is on this host, so that its process is one of this host. It is what the reader knows, and is not said.
    pub is_here: bool,
    /// Its job.
    pub job: String,
    /// Its number.
    pub rank: u32,
    /// How many there are.
    pub world_size: u32,
    /// Its process.
    pub pid: u32,
    /// What it does.
    pub state: RankState,
    /// Calls under way, the oldest of each communicator first.
    pub calls: Vec<CallStatus>,
    /// Calls that are over, of all communicators that are in use.
    pub calls_done: u64,
    /// Ranks that are lost or have left.
    pub gone: Vec<u32>,
    /// All ranks, by number.
    pub peers: Vec<PeerStatus>,
    /// Counters of transports: of the port of its NIC, and of connections that were refused.
    pub counters: Vec<Counter>,
    /// Where its NIC receives, where it has one.
    pub nic: Option<String>,
    /// Queue pairs of its NIC.
    pub queue_pairs: Vec<QueuePairStatus>,
}

fn put_list<T>(out: &mut Vec<u8>, list: &[T], put: impl Fn(&mut Vec<u8>, &T)) {
    out.extend((list.len() as u32).to_le_bytes());
    for one in list {
        put(out, one);
    }
}

fn put_number(out: &mut Vec<u8>, number: u32) {
    out.extend(number.to_le_bytes());
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

impl RankStatus {
    /// The process of rank 0, which tells jobs of one name apart.
    pub fn first(&self) -> u32 {
        self.peers.first().map_or(self.pid, |peer| peer.pid)
    }

    fn is_of_job(&self, other: &Self) -> bool {
        (&self.job, self.first()) == (&other.job, other.first())
    }

    pub(crate) fn write(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_text(&mut out, &self.job);
        for number in [self.rank, self.world_size, self.pid] {
            put_number(&mut out, number);
        }
        out.push(self.state as u8);
        out.extend(self.calls_done.to_le_bytes());
        put_list(&mut out, &self.calls, |out, call| {
            put_text(out, &call.call);
            put_number(out, call.ranks);
            out.extend(micros(call.age).to_le_bytes());
            out.extend(micros(call.still_for).to_le_bytes());
            put_list(out, &call.waits_for, |out, rank| put_number(out, *rank));
        });
        put_list(&mut out, &self.gone, |out, rank| put_number(out, *rank));
        put_list(&mut out, &self.peers, |out, peer| {
            put_number(out, peer.pid);
            put_text(out, &peer.host);
            put_text(out, &peer.transport);
        });
        put_list(&mut out, &self.counters, |out, (name, value)| {
            put_text(out, name);
            out.extend(value.to_le_bytes());
        });
        put_text(&mut out, self.nic.as_deref().unwrap_or_default());
        put_list(&mut out, &self.queue_pairs, |out, one| {
            for number in
                [one.number, one.destination, one.sends, one.receives, one.send_psn, one.receive_psn]
            {
                put_number(out, number);
            }
            put_text(out, &one.state);
        });
        out
    }

    /// Reads what a rank wrote.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let job = reader.text("job", TEXT_MAX)?;
        let (rank, world_size, pid) =
            (reader.number("rank")?, reader.number("ranks")?, reader.number("process")?);
        let state = reader.byte("state")?;
        let state = *RankState::ALL.get(usize::from(state)).ok_or(Malformed::Field("state"))?;
        let calls_done = reader.long("calls")?;
        let calls = reader.list("calls", |reader| {
            Ok(CallStatus {
                call: reader.text("call", TEXT_MAX)?,
                ranks: reader.number("ranks")?,
                age: Duration::from_micros(reader.long("age")?),
                still_for: Duration::from_micros(reader.long("age")?),
                waits_for: reader.list("ranks", |reader| reader.number("rank"))?,
            })
        })?;
        let gone = reader.list("ranks", |reader| reader.number("rank"))?;
        let peers = reader.list("peers", |reader| {
            let pid = reader.number("process")?;
            Ok(PeerStatus {
                pid,
                host: reader.text("host", TEXT_MAX)?,
                transport: reader.text("transport", TEXT_MAX)?,
            })
        })?;
        let counters = reader
            .list("counters", |reader| Ok((reader.text("counter", TEXT_MAX)?, reader.long("counter")?)))?;
        let nic = Some(reader.text("NIC", TEXT_MAX)?).filter(|text| !text.is_empty());
        let queue_pairs = reader.list("queue pairs", |reader| {
            let mut next = || reader.number("queue pair");
            let (number, destination, sends) = (next()?, next()?, next()?);
            let (receives, send_psn, receive_psn) = (next()?, next()?, next()?);
            let state = reader.text("state", TEXT_MAX)?;
            Ok(QueuePairStatus { number, destination, state, sends, receives, send_psn, receive_psn })
        })?;
        reader.finish()?;
        Ok(Self {
            is_here: true,
            job,
            rank,
            world_size,
            pid,
            state,
            calls,
            calls_done,
            gone,
            peers,
            counters,
            nic,
            queue_pairs,
        })
    }
}

/// Where a rank that is in a call leaves its description when somebody wants it.
#[derive(Debug, Default)]
pub(crate) struct StatusBoard {
    is_wanted: AtomicBool,
    answer: Mutex<Option<RankStatus>>,
}

impl StatusBoard {
    /// Whether somebody waits for a description.
    #[inline]
    pub(crate) fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::Relaxed)
    }

    /// Leaves one.
    pub(crate) fn leave(&self, status: RankStatus) {
        *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(status);
        self.is_wanted.store(false, Ordering::Release);
    }

    /// Has a description made, by the thread that drives the rank, or by `make`, which succeeds where none does.
    fn ask(&self, make: impl Fn() -> Option<RankStatus>) -> Option<RankStatus> {
        let take = || self.answer.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(take());
        self.is_wanted.store(true, Ordering::Release);
        let deadline = Instant::now() + DESCRIPTION_MAX;
        loop {
            if let Some(status) = make().or_else(take) {
                self.is_wanted.store(false, Ordering::Release);
                return Some(status);
            }
            if Instant::now() >= deadline {
                return None;
            }
            std::thread::sleep(Duration::from_micros(500));
        }
    }
}

/// The socket at which a rank answers.
#[derive(Debug)]
pub(crate) struct Server {
    listener: UnixListener,
    bell: OwnedFd,
    ends: AtomicBool,
    questions: Mutex<Questions>,
}

/// What other ranks have asked this one.
#[derive(Debug, Default)]
struct Questions {
    /// The numbers of the last of them: an answer is one to all.
    recent: VecDeque<u64>,
    are_open: bool,
}

fn name(pid: u32, rank: u32, index: u32) -> String {
    format!("{PREFIX}{pid}-{rank}-{index}")
}

impl Server {
    pub(crate) fn open(rank: u32) -> io::Result<Self> {
        let mut last = io::Error::from(io::ErrorKind::AddrInUse);
        for index in 0..NAMES {
            match UnixListener::bind_addr(&SocketAddr::from_abstract_name(name(
                std::process::id(),
                rank,
                index,
            ))?) {
                Ok(listener) => {
                    listener.set_nonblocking(true)?;
                    let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
                    return Ok(Self {
                        listener,
                        bell,
                        ends: AtomicBool::new(false),
                        questions: Mutex::default(),
                    });
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Answers until it is told to end. `fallback` describes a rank of which nothing else is known now.
    pub(crate) fn run(
        &self,
        board: &StatusBoard,
        control: &Control,
        make: impl Fn() -> Option<RankStatus>,
        fallback: impl Fn() -> RankStatus,
    ) {
        while !self.ends.load(Ordering::Acquire) {
            let mut fds =
                [PollFd::new(&self.listener, PollFlags::IN), PollFd::new(&self.bell, PollFlags::IN)];
            if socket::wait(&mut fds, Instant::now() + Duration::from_hours(1)).is_err() {
                return;
            }
            let mut count = [0; 8];
            // Nothing to read means that the doorbell did not ring.
            let _ = rustix::io::read(&self.bell, &mut count);
            let describe = || board.ask(&make).unwrap_or_else(&fallback);
            self.answer_others(control, &describe);
            // Who hung up, and other users, get nothing; nor does anybody while this process has no descriptors left.
            match self.listener.accept() {
                Ok((stream, _)) if is_same_user(&stream).unwrap_or(false) => {
                    let _ = stream.set_nonblocking(false);
                    let _ = stream.set_write_timeout(Some(CONVERSATION));
                    let _ = stream.set_read_timeout(Some(CONVERSATION));
                    let mut request = [0];
                    let mut all = vec![describe()];
                    if (&stream).read_exact(&mut request).is_ok() && request[0] == Request::Job as u8 {
                        let own = all[0].clone();
                        all.extend(self.ask_others(control, &own, &describe));
                    }
                    let mut out = Vec::new();
                    put_list(&mut out, &all, |out, status| {
                        let bytes = status.write();
                        put_number(out, bytes.len() as u32);
                        out.extend(bytes);
                    });
                    let _ = (&stream).write_all(&out);
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    /// Leaves what this rank does for another one that has asked.
    fn answer_others(&self, control: &Control, describe: &impl Fn() -> RankStatus) {
        let mut questions = self.questions.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::take(&mut questions.are_open) {
            let numbers: Vec<u64> = questions.recent.iter().copied().collect();
            drop(questions);
            // Once the control channel has ended, no rank asks any more.
            let _ = control.put(&key(control.rank().0), &answer(&numbers, describe()));
        }
    }

    /// What the other ranks of the job say, as far as they say it in time. They may ask this one meanwhile.
    fn ask_others(
        &self,
        control: &Control,
        own: &RankStatus,
        describe: &impl Fn() -> RankStatus,
    ) -> Vec<RankStatus> {
        let Ok(number) = crate::secret::random().map(u64::from_le_bytes) else { return Vec::new() };
        control.want_status(number);
        let deadline = Instant::now() + OTHERS_MAX;
        let is_asked = |rank: &u32| *rank != own.rank && !own.gone.contains(rank);
        let mut missing: Vec<u32> = (0..own.world_size).filter(is_asked).collect();
        let mut found = Vec::new();
        while !missing.is_empty() && Instant::now() < deadline {
            self.answer_others(control, describe);
            let mut still_missing = Vec::new();
            for rank in missing {
                match control.get_within(&key(rank), PAUSE, HUB_MAX) {
                    Ok(said) => match read_answer(&said, number) {
                        Some(status) => found.push(status),
                        // It has answered others only.
                        None => still_missing.push(rank),
                    },
                    Err(ControlError::NoValue { .. }) => still_missing.push(rank),
                    // Rank 0, which has what the others say, does not answer.
                    Err(_) => return found,
                }
            }
            missing = still_missing;
            if !missing.is_empty() {
                std::thread::sleep(PAUSE);
            }
        }
        found
    }

    /// Another rank wants to know what this one does.
    pub(crate) fn want(&self, number: u64) {
        let mut questions = self.questions.lock().unwrap_or_else(PoisonError::into_inner);
        questions.are_open = true;
        questions.recent.push_back(number);
        if questions.recent.len() > RECENT_MAX {
            questions.recent.pop_front();
        }
        drop(questions);
        self.ring();
    }

    pub(crate) fn end(&self) {
        self.ends.store(true, Ordering::Release);
        self.ring();
    }

    fn ring(&self) {
        // A counter that is full wakes as well.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }
}

/// Where a rank leaves what it does for one that asks: always at the same place, so that questions leave nothing behind.
fn key(rank: u32) -> String {
    format!("railnet status of rank {rank}")
}

/// The answer to questions with these numbers. What is too long for the control channel is left out.
fn answer(numbers: &[u64], mut status: RankStatus) -> Vec<u8> {
    let mut out = Vec::new();
    put_list(&mut out, numbers, |out, number| out.extend(number.to_le_bytes()));
    let mut bytes = status.write();
    if out.len() + bytes.len() > BLOB_MAX {
        (status.peers, status.queue_pairs) = (Vec::new(), Vec::new());
        bytes = status.write();
    }
    out.extend(bytes);
    out
}

/// The answer, if it is one to the question with this number.
fn read_answer(bytes: &[u8], number: u64) -> Option<RankStatus> {
    let mut reader = Reader::new(bytes);
    let numbers = reader.list("questions", |reader| reader.long("question")).ok()?;
    let status = bytes.get(4 + numbers.len() * 8..)?;
    if numbers.contains(&number) { RankStatus::read(status).ok() } else { None }
}

/// The ranks of this host that this user may ask.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Those that answered.
    pub ranks: Vec<RankStatus>,
    /// The processes of those that are there and do not answer: they are stopped, as a rule.
    pub silent: Vec<u32>,
}

/// Asks all ranks of this host, at the same time, and through one of each job those of other hosts. Those that are gone by then, and
/// those of other users, are left out.
pub fn ranks_here() -> io::Result<Found> {
    let table = std::fs::read_to_string("/proc/net/unix")?;
    let names = table.lines().filter_map(|line| line.split_once(" @").map(|(_, name)| name));
    let mut names: Vec<&str> = names.filter(|name| name.starts_with(PREFIX)).collect();
    // A listener and its connections have one name.
    names.sort_unstable();
    names.dedup();
    let asked: Vec<(&str, UnixStream)> =
        names.into_iter().filter_map(|name| Some((name, ask(name, Request::Own).ok()?))).collect();
    let deadline = Instant::now() + CONVERSATION;
    let mut found = Found::default();
    let mut here: Vec<(&str, RankStatus)> = Vec::new();
    for (name, stream) in asked {
        match hear(&stream, deadline) {
            Ok(statuses) => here.extend(statuses.into_iter().map(|status| (name, status))),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                let pid: Option<u32> =
                    name[PREFIX.len()..].split('-').next().and_then(|pid| pid.parse().ok());
                found.silent.extend(pid);
            }
            Err(_) => {}
        }
    }
    found.ranks = here.iter().map(|(_, status)| status.clone()).collect();
    for (name, status) in &here {
        // Those of this host that do not answer here do not answer there.
        let is_missing = |ranks: &[RankStatus], rank: u32| {
            let is_it = |one: &RankStatus| one.is_of_job(status) && one.rank == rank;
            !ranks.iter().any(is_it) && !status.gone.contains(&rank)
        };
        let mut peers = (0..).zip(&status.peers);
        if peers.any(|(rank, peer)| is_missing(&found.ranks, rank) && !found.silent.contains(&peer.pid)) {
            let all = hear_job(name).unwrap_or_default();
            let far = all.into_iter().filter(|one| is_missing(&found.ranks, one.rank));
            let far: Vec<RankStatus> = far.map(|one| RankStatus { is_here: false, ..one }).collect();
            found.ranks.extend(far);
        }
    }
    found.ranks.sort_by(|a, b| (&a.job, a.rank, a.pid).cmp(&(&b.job, b.rank, b.pid)));
    Ok(found)
}

/// Asks a rank of this host for all ranks of its job, wherever they are: itself, and those that answer.
pub fn ranks_of_job(pid: u32, rank: u32) -> io::Result<Vec<RankStatus>> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for index in 0..NAMES {
        match hear_job(&name(pid, rank, index)) {
            Ok(ranks) => return Ok(ranks),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn hear_job(name: &str) -> io::Result<Vec<RankStatus>> {
    hear(&ask(name, Request::Job)?, Instant::now() + CONVERSATION_OF_ALL)
}

fn ask(name: &str, request: Request) -> io::Result<UnixStream> {
    let mut stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?;
    match is_same_user(&stream)? || rustix::process::geteuid().is_root() {
        true => {
            stream.write_all(&[request as u8])?;
            Ok(stream)
        }
        false => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

fn hear(mut stream: &UnixStream, deadline: Instant) -> io::Result<Vec<RankStatus>> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 16 << 10];
    loop {
        // One that has had all the time there is may still have answered.
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut buffer)? {
            0 => break,
            length => bytes.extend_from_slice(&buffer[..length]),
        }
        if bytes.len() > ANSWER_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    read_all(&bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Reads what several ranks wrote.
pub(crate) fn read_all(bytes: &[u8]) -> Result<Vec<RankStatus>, Malformed> {
    let mut reader = Reader::new(bytes);
    let all = reader.list("ranks", |reader| RankStatus::read(&reader.blob("rank", ANSWER_MAX)?))?;
    reader.finish()?;
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_read_as_it_was_written() {
        let status = RankStatus {
            is_here: true,
            job: "a job".to_owned(),
            rank: 3,
            world_size: 4,
            pid: 12,
            state: RankState::InCall,
            calls: vec![CallStatus {
                call: "AllReduce #7 f32 × 8 sum".to_owned(),
                ranks: 4,
                age: Duration::from_millis(1500),
                still_for: Duration::from_micros(7),
                waits_for: vec![0, 2],
            }],
            calls_done: 7,
            gone: vec![1],
            peers: vec![PeerStatus { pid: 9, host: "h".to_owned(), transport: "RoCE".to_owned() }],
            counters: vec![("packets sent".to_owned(), 1 << 40)],
            nic: Some("127.0.0.1:4791".to_owned()),
            queue_pairs: vec![QueuePairStatus {
                number: 1,
                destination: 2,
                state: "RTS".to_owned(),
                sends: 3,
                receives: 4,
                send_psn: 5,
                receive_psn: 6,
            }],
        };
        let bytes = status.write();
        assert_eq!(RankStatus::read(&bytes).unwrap(), status);
        assert!((0..bytes.len()).all(|length| RankStatus::read(&bytes[..length]).is_err()));
    }
}
