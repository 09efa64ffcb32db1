//! What the control thread and the rank's own threads share.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use railnet_core::Rank;
use rustix::event::EventfdFlags;

use super::{Absence, Notice, NoticeKind};
use crate::message::{Message, Trouble};

/// News that nobody takes: more than this, and the oldest goes.
const NOTICES_MAX: usize = 4096;

/// When the control thread shall end.
#[derive(Clone, Copy)]
pub(super) enum Ending {
    /// Not yet.
    No,
    /// After a farewell, at the latest then.
    Leave(Instant),
    /// At once and without a word.
    Stop,
}

/// What has arrived, and what shall be sent.
pub(super) struct Inbox {
    pub(super) commands: VecDeque<Message>,
    /// Commands there have been, and those that the control thread has carried out.
    commanded: u64,
    obeyed: u64,
    pub(super) exchanges: BTreeMap<u32, Result<Vec<Vec<u8>>, Trouble>>,
    pub(super) answers: BTreeMap<u32, Option<Vec<u8>>>,
    notices: VecDeque<Notice>,
    absent: BTreeMap<Rank, Absence>,
    /// Why no exchange can be finished.
    pub(super) refused: Option<Trouble>,
    /// Why nothing more will arrive.
    closed: Option<String>,
    ending: Ending,
    is_poked: bool,
}

pub(super) struct Shared {
    inbox: Mutex<Inbox>,
    changed: Condvar,
    notices: AtomicUsize,
    wake: OwnedFd,
    /// What is done when a rank wants to know what this one does.
    describe: OnceLock<Describe>,
}

/// Has this rank described, under the number of the question.
pub(crate) type Describe = Box<dyn Fn(u64) + Send + Sync>;

/// The kind of notice that asks all ranks what they do. It is no news to the engine.
pub(super) const STATUS_WANTED: u8 = 200;

impl Shared {
    pub(super) fn new() -> io::Result<Self> {
        let inbox = Inbox {
            commands: VecDeque::new(),
            commanded: 0,
            obeyed: 0,
            exchanges: BTreeMap::new(),
            answers: BTreeMap::new(),
            notices: VecDeque::new(),
            absent: BTreeMap::new(),
            refused: None,
            closed: None,
            ending: Ending::No,
            is_poked: false,
        };
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self {
            inbox: Mutex::new(inbox),
            changed: Condvar::new(),
            notices: AtomicUsize::new(0),
            wake,
            describe: OnceLock::new(),
        })
    }

    /// Nothing that holds the lock can leave it half changed, so a panic elsewhere does not matter.
    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        // The counter being full means that it is awake already.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    pub(super) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// What to do, and whether to end. Takes it.
    pub(super) fn take_commands(&self) -> (VecDeque<Message>, Ending) {
        let mut counter = [0; 8];
        let _ = rustix::io::read(&self.wake, &mut counter);
        let mut inbox = self.lock();
        (std::mem::take(&mut inbox.commands), inbox.ending)
    }

    pub(super) fn set_describe(&self, describe: Describe) {
        // Who asks hears of the first one; there is one for each process.
        let _ = self.describe.set(describe);
    }

    pub(super) fn command(&self, message: Message) {
        let mut inbox = self.lock();
        inbox.commands.push_back(message);
        inbox.commanded += 1;
        drop(inbox);
        self.wake();
    }

    /// So many commands have been carried out.
    pub(super) fn obeyed(&self, count: usize) {
        self.lock().obeyed += count as u64;
        self.changed.notify_all();
    }

    /// Waits until all commands so far have been carried out.
    pub(super) fn flush(&self, deadline: Instant) {
        let commanded = self.lock().commanded;
        // Where nothing can be said any more, there is nothing to wait for.
        let _ = self.wait_for(deadline, |inbox| (inbox.obeyed >= commanded).then_some(()));
    }

    pub(super) fn leave(&self, deadline: Instant) {
        self.lock().ending = Ending::Leave(deadline);
        self.wake();
    }

    pub(super) fn stop(&self) {
        let mut inbox = self.lock();
        if matches!(inbox.ending, Ending::No) {
            inbox.ending = Ending::Stop;
        }
        drop(inbox);
        self.wake();
    }

    /// Takes what arrived for this rank.
    pub(super) fn deliver(&self, message: Message) {
        match message {
            Message::Gathered { sequence, blobs } => {
                self.lock().exchanges.insert(sequence, Ok(blobs));
            }
            Message::GatherFailed { sequence, trouble } => {
                self.lock().exchanges.insert(sequence, Err(trouble));
            }
            Message::Refused(trouble) => _ = self.lock().refused.get_or_insert(trouble),
            Message::Got { ticket, value } => {
                self.lock().answers.insert(ticket, value);
            }
            Message::Notice { kind: STATUS_WANTED, body, .. } => {
                if let (Some(describe), Some(number)) = (self.describe.get(), body.first_chunk()) {
                    describe(u64::from_le_bytes(*number));
                }
                return;
            }
            // A kind that is not known is of no use to anyone here.
            Message::Notice { from, kind, body } => {
                if let Some(kind) = NoticeKind::of(kind) {
                    self.tell(Notice { rank: Rank(from), kind, body });
                }
            }
            _ => return,
        }
        self.changed.notify_all();
    }

    fn tell(&self, notice: Notice) {
        let mut inbox = self.lock();
        match notice.kind {
            NoticeKind::Lost => _ = inbox.absent.insert(notice.rank, Absence::Lost(notice.text())),
            NoticeKind::Left => _ = inbox.absent.insert(notice.rank, Absence::Left),
            NoticeKind::Silent => _ = inbox.absent.insert(notice.rank, Absence::Silent),
            NoticeKind::Heard => _ = inbox.absent.remove(&notice.rank),
            NoticeKind::Abort | NoticeKind::Mismatch | NoticeKind::Failed => {}
        }
        if inbox.notices.len() >= NOTICES_MAX {
            inbox.notices.pop_front();
        }
        inbox.notices.push_back(notice);
        self.notices.store(inbox.notices.len(), Ordering::Release);
    }

    /// Nothing more will arrive.
    pub(super) fn close(&self, cause: &str) {
        self.lock().closed.get_or_insert_with(|| cause.to_owned());
        self.changed.notify_all();
    }

    /// Waits until `take` finds what it looks for. The deadline passing is `None`; that nothing more can arrive is an
    /// error with its cause.
    pub(super) fn wait_for<T>(
        &self,
        deadline: Instant,
        mut take: impl FnMut(&mut Inbox) -> Option<T>,
    ) -> Result<Option<T>, String> {
        let mut inbox = self.lock();
        loop {
            if let Some(found) = take(&mut inbox) {
                return Ok(Some(found));
            }
            if let Some(cause) = &inbox.closed {
                return Err(cause.clone());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let waited = self.changed.wait_timeout(inbox, left);
            inbox = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub(super) fn has_notice(&self) -> bool {
        self.notices.load(Ordering::Acquire) > 0
    }

    fn pop(&self, inbox: &mut Inbox) -> Option<Notice> {
        let notice = inbox.notices.pop_front();
        self.notices.store(inbox.notices.len(), Ordering::Release);
        notice
    }

    pub(super) fn take_notice(&self) -> Option<Notice> {
        let mut inbox = self.lock();
        self.pop(&mut inbox)
    }

    pub(super) fn wait_notice(&self, deadline: Instant) -> Option<Notice> {
        self.wait_for(deadline, |inbox| self.pop(inbox)).ok().flatten()
    }

    pub(super) fn wait_for_news(&self, deadline: Instant) {
        let seen = self.wait_for(deadline, |inbox| {
            let is_over = inbox.is_poked || !inbox.notices.is_empty();
            inbox.is_poked = false;
            is_over.then_some(())
        });
        if seen.is_err() {
            // Nothing will ever arrive. Who asks again and again shall not do so without a pause.
            let left = deadline.saturating_duration_since(Instant::now());
            std::thread::sleep(left.min(std::time::Duration::from_millis(5)));
        }
    }

    pub(super) fn poke(&self) {
        self.lock().is_poked = true;
        self.changed.notify_all();
    }

    pub(super) fn is_lost(&self, rank: Rank) -> bool {
        matches!(self.lock().absent.get(&rank), Some(Absence::Lost(_)))
    }

    pub(super) fn absent(&self) -> Vec<(Rank, Absence)> {
        self.lock().absent.iter().map(|(rank, absence)| (*rank, absence.clone())).collect()
    }
}
