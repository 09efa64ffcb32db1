//! The control channel of ranks that have met: barriers, exchanges of small values, and news for everyone.
//!
//! Every rank keeps its connection to rank 0, which passes things on. A thread in each process, asleep in `poll` most of
//! the time, serves it, so that a rank that computes still answers and a rank that dies is noticed at once: by the end
//! of its connection, or by its silence. The kernel of a process that is stopped still acknowledges what is sent to it; a host that does
//! not is unreachable, and the kernel ends the connection after the heartbeat timeout. Every wait has a limit, and an exchange that fails names the ranks it waited
//! for.

mod engine;
mod hub;
mod shared;

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use railnet_core::Rank;

use crate::message::{BLOB_MAX, Member, Message, NAME_MAX, NOTICE_MAX, Trouble};
use crate::rendezvous::{SLACK, millis};
use crate::socket::{self, Connection};
use crate::thread::Reserved;

use engine::{Engine, Role};
use shared::{Describe, STATUS_WANTED, Shared};

/// The control channel. Dropping it without [`Control::leave`] tells the others that this rank is lost.
pub struct Control {
    rank: Rank,
    members: Arc<Vec<Member>>,
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    sequence: AtomicU32,
    ticket: AtomicU32,
}

/// News from the control channel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Notice {
    /// The rank it is about, or from.
    pub rank: Rank,
    /// What sort.
    pub kind: NoticeKind,
    /// What there is to say; text for all but [`NoticeKind::Mismatch`] and [`NoticeKind::Failed`], whose form their sender decides.
    pub body: Vec<u8>,
}

/// Sorts of news.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum NoticeKind {
    /// A rank gives up, and so should all.
    Abort,
    /// A rank's call does not fit the others'.
    Mismatch,
    /// A rank is gone without a word: its process ended, or its connection broke.
    Lost,
    /// A rank has given no sign of life for a while: its process or host stands still.
    Silent,
    /// A silent rank is back.
    Heard,
    /// A rank has finished.
    Left,
    /// A call of a rank failed because of others, as its body says: if the rank leaves now, that is why. An empty body withdraws it.
    Failed,
}

impl NoticeKind {
    /// Their numbers are places in this list, which only ever grows at its end.
    const ALL: [Self; 7] =
        [Self::Abort, Self::Mismatch, Self::Lost, Self::Silent, Self::Heard, Self::Left, Self::Failed];

    fn number(self) -> u8 {
        Self::ALL.iter().position(|kind| *kind == self).expect("every kind is in the list") as u8
    }

    fn of(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

impl Notice {
    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rank, text) = (self.rank.0, self.text());
        match self.kind {
            NoticeKind::Abort => write!(f, "rank {rank} aborts: {text}"),
            NoticeKind::Mismatch => write!(f, "rank {rank} calls for something else"),
            NoticeKind::Lost => write!(f, "rank {rank} is lost: {text}"),
            NoticeKind::Silent => write!(f, "rank {rank} gives no sign of life: {text}"),
            NoticeKind::Heard => write!(f, "rank {rank} is back"),
            NoticeKind::Left => write!(f, "rank {rank} has finished"),
            NoticeKind::Failed => write!(f, "a call of rank {rank} has failed because of others"),
        }
    }
}

/// What is known of a rank that is not there as it should be.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Absence {
    /// It is gone without a word.
    Lost(String),
    /// It gives no sign of life.
    Silent,
    /// It has finished.
    Left,
}

/// Why a call on the control channel failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// What rank 0 says about it, the same on every rank.
    #[error("{what}: {}", .trouble.text)]
    Trouble {
        /// Which call.
        what: String,
        /// What is wrong.
        trouble: Trouble,
    },
    /// Rank 0 is gone, and the control channel with it.
    #[error("{what}: rank 0 is gone: {cause}")]
    HubGone {
        /// Which call.
        what: String,
        /// What was seen of it.
        cause: String,
    },
    /// Rank 0 did not answer in time.
    #[error("{what}: rank 0 has not answered for {waited:.1?}")]
    NoAnswer {
        /// Which call.
        what: String,
        /// How long it was waited for.
        waited: Duration,
    },
    /// A value that nobody has put there.
    #[error("nobody has put a value under {key:?} in {waited:.1?}")]
    NoValue {
        /// The name.
        key: String,
        /// How long it was waited for.
        waited: Duration,
    },
    /// More than a message carries.
    #[error("{what} of {size} bytes: {limit} is the limit")]
    TooLong {
        /// What it is.
        what: &'static str,
        /// How long it is.
        size: usize,
        /// How long it may be.
        limit: usize,
    },
}

/// What a control channel needs of the kernel, had before ranks join a rendezvous: what is lacking then is named to all.
pub(crate) struct Resources {
    shared: Arc<Shared>,
    thread: Reserved,
}

impl Resources {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { shared: Arc::new(Shared::new()?), thread: Reserved::new("railnet-control")? })
    }
}

impl Control {
    pub(crate) fn alone(resources: Resources, member: Member, silence: Duration) -> Self {
        Self::start(resources, Rank(0), Role::hub(Vec::new()), vec![member], silence)
    }

    pub(crate) fn hub(
        resources: Resources,
        connections: Vec<Connection>,
        members: Vec<Member>,
        silence: Duration,
    ) -> io::Result<Self> {
        for connection in &connections {
            socket::set_dead_peer_timeout(connection, silence)?;
        }
        Ok(Self::start(resources, Rank(0), Role::hub(connections), members, silence))
    }

    pub(crate) fn leaf(
        resources: Resources,
        rank: Rank,
        connection: Connection,
        members: Vec<Member>,
        silence: Duration,
    ) -> io::Result<Self> {
        socket::set_dead_peer_timeout(&connection, silence)?;
        Ok(Self::start(resources, rank, Role::Leaf(connection), members, silence))
    }

    fn start(resources: Resources, rank: Rank, role: Role, members: Vec<Member>, silence: Duration) -> Self {
        let Resources { shared, thread } = resources;
        let engine = Engine::new(role, Arc::clone(&shared), silence);
        let thread = thread.start(move || engine.run());
        Self {
            rank,
            members: Arc::new(members),
            shared,
            thread: Mutex::new(Some(thread)),
            sequence: AtomicU32::new(0),
            ticket: AtomicU32::new(0),
        }
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// How many ranks there are.
    pub fn world_size(&self) -> u32 {
        self.members.len() as u32
    }

    /// Everybody, in the order of ranks, with what they contributed to the meeting.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Every rank contributes something and gets it all, in the order of ranks. All ranks call it with the same label,
    /// and exchanges in the same order.
    pub fn all_gather(
        &self,
        label: &str,
        blob: &[u8],
        limit: Duration,
    ) -> Result<Vec<Vec<u8>>, ControlError> {
        fits("a label", label.len(), NAME_MAX)?;
        fits("a contribution", blob.len(), BLOB_MAX)?;
        let began = Instant::now();
        let what = || format!("exchange \"{label}\"");
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
        let (label_text, blob) = (label.to_owned(), blob.to_vec());
        self.shared.command(Message::Gather { sequence, limit_ms: millis(limit), label: label_text, blob });
        let outcome = self.shared.wait_for(began + limit + SLACK, |inbox| {
            let refused = || inbox.refused.clone().map(Err);
            inbox.exchanges.remove(&sequence).or_else(refused)
        });
        match outcome {
            Ok(Some(Ok(blobs))) => Ok(blobs),
            Ok(Some(Err(trouble))) => Err(ControlError::Trouble { what: what(), trouble }),
            Ok(None) => Err(ControlError::NoAnswer { what: what(), waited: began.elapsed() }),
            Err(cause) => Err(ControlError::HubGone { what: what(), cause }),
        }
    }

    /// Waits until every rank has called it.
    pub fn barrier(&self, limit: Duration) -> Result<(), ControlError> {
        self.all_gather("barrier", &[], limit).map(|_| ())
    }

    /// Puts a value under a name, where every rank finds it. It replaces what was there.
    pub fn put(&self, key: &str, value: &[u8]) -> Result<(), ControlError> {
        fits("a key", key.len(), NAME_MAX)?;
        fits("a value", value.len(), BLOB_MAX)?;
        self.shared.command(Message::Put { key: key.to_owned(), value: value.to_vec() });
        Ok(())
    }

    /// The value under a name, as soon as some rank has put it there.
    pub fn get(&self, key: &str, limit: Duration) -> Result<Vec<u8>, ControlError> {
        self.get_within(key, limit, SLACK)
    }

    /// The same, and how much longer than that rank 0 may take to answer.
    pub(crate) fn get_within(
        &self,
        key: &str,
        limit: Duration,
        slack: Duration,
    ) -> Result<Vec<u8>, ControlError> {
        fits("a key", key.len(), NAME_MAX)?;
        let began = Instant::now();
        let ticket = self.ticket.fetch_add(1, Ordering::Relaxed);
        self.shared.command(Message::Get { ticket, limit_ms: millis(limit), key: key.to_owned() });
        let answer = self.shared.wait_for(began + limit + slack, |inbox| inbox.answers.remove(&ticket));
        let what = || format!("the value of {key:?}");
        match answer {
            Ok(Some(Some(value))) => Ok(value),
            Ok(Some(None)) => Err(ControlError::NoValue { key: key.to_owned(), waited: began.elapsed() }),
            Ok(None) => Err(ControlError::NoAnswer { what: what(), waited: began.elapsed() }),
            Err(cause) => Err(ControlError::HubGone { what: what(), cause }),
        }
    }

    /// Tells all other ranks something. A body that is too long is cut.
    pub fn notify(&self, kind: NoticeKind, body: &[u8]) {
        let body = body[..body.len().min(NOTICE_MAX)].to_vec();
        self.shared.command(Message::Notice { from: self.rank.0, kind: kind.number(), body });
    }

    /// Waits until all that this rank has said is with the kernel, for so long at most.
    pub(crate) fn flush(&self, limit: Duration) {
        self.shared.flush(Instant::now() + limit);
    }

    /// Asks all other ranks what they do.
    pub(crate) fn want_status(&self, number: u64) {
        let (kind, body) = (STATUS_WANTED, number.to_le_bytes().to_vec());
        self.shared.command(Message::Notice { from: self.rank.0, kind, body });
    }

    /// What is done, in the thread of the control channel, when another rank asks that.
    pub(crate) fn on_status_wanted(&self, describe: Describe) {
        self.shared.set_describe(describe);
    }

    /// Whether there is news: one load, for loops that cannot spare more.
    pub fn has_notice(&self) -> bool {
        self.shared.has_notice()
    }

    /// The oldest news that was not taken yet.
    pub fn try_notice(&self) -> Option<Notice> {
        if self.has_notice() { self.shared.take_notice() } else { None }
    }

    /// The oldest news, waiting for it until the limit.
    pub fn wait_notice(&self, limit: Duration) -> Option<Notice> {
        self.shared.wait_notice(Instant::now() + limit)
    }

    /// Every rank that is not there as it should be, and why, as far as this rank has heard.
    pub fn absent(&self) -> Vec<(Rank, Absence)> {
        self.shared.absent()
    }

    /// Whether a rank is gone without a word, as far as this rank has heard.
    pub(crate) fn is_lost(&self, rank: Rank) -> bool {
        self.shared.is_lost(rank)
    }

    /// Waits until there is news, or somebody pokes, or the limit is over. Whether there is news.
    pub(crate) fn wait_for_news(&self, limit: Duration) -> bool {
        self.shared.wait_for_news(Instant::now() + limit);
        self.has_notice()
    }

    /// Ends the wait of [`Control::wait_for_news`].
    pub(crate) fn poke(&self) {
        self.shared.poke();
    }

    /// This rank cannot go on: exchanges of all ranks, now and later, fail and say why. Leaves.
    pub(crate) fn give_up(&self, trouble: Trouble) {
        self.refuse(trouble);
        self.say_goodbye(SLACK);
    }

    /// The same for one that leaves in another way.
    pub(crate) fn refuse(&self, trouble: Trouble) {
        self.shared.command(Message::Refused(trouble));
    }

    /// Says goodbye. Rank 0 first serves the others until they have left too, or until the limit; all others wait only
    /// until their farewell is on its way.
    pub fn leave(self, limit: Duration) {
        self.say_goodbye(limit);
    }

    pub(crate) fn say_goodbye(&self, limit: Duration) {
        self.shared.leave(Instant::now() + limit);
        self.join();
    }

    /// Ends without a goodbye, once what this rank has said so far is on its way: the others take it for lost.
    pub(crate) fn end(&self) {
        self.shared.stop();
        self.join();
    }

    fn join(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // It has nothing to say; a panic of its was printed.
            let _ = thread.join();
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Control({} of {})", self.rank, self.world_size())
    }
}

fn fits(what: &'static str, size: usize, limit: usize) -> Result<(), ControlError> {
    if size <= limit { Ok(()) } else { Err(ControlError::TooLong { what, size, limit }) }
}
