//! What rank 0 does for all: passes news on, collects exchanges, keeps values, and notices who is gone.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use rustix::event::PollFd;

use super::NoticeKind;
use super::shared::Shared;
use crate::message::{ANSWER_MAX, Message, Trouble, TroubleKind};
use crate::rendezvous::{named, verb};
use crate::socket::{Broken, Connection};

/// What may wait to be sent to one rank.
const QUEUE_MAX: usize = 2 * ANSWER_MAX;
/// Exchanges that one rank may be ahead of the others: its calls wait for their answers, so one would do.
const AHEAD_MAX: usize = 64;
/// Failed exchanges that are remembered for those who come late.
const FAILED_MAX: usize = 1024;
/// Values that are kept, and their bytes in all.
const VALUES_MAX: (usize, usize) = (65_536, 256 * 1024 * 1024);
/// Questions that wait for their values.
const QUESTIONS_MAX: usize = 65_536;

struct Peer {
    connection: Connection,
    /// Why it can be sent nothing any more: what it said before that is still heard.
    broken: Option<Broken>,
    /// Why there is nothing to be expected of it, once that is so.
    gone: Option<String>,
    is_silent: bool,
}

/// An exchange that waits for contributions.
struct Exchange {
    label: String,
    /// Who named it first.
    first: u32,
    blobs: Vec<Option<Vec<u8>>>,
    began: Instant,
    deadline: Instant,
}

struct Question {
    rank: u32,
    ticket: u32,
    key: String,
    deadline: Instant,
}

pub(super) struct Hub {
    /// From rank 1 on.
    peers: Vec<Peer>,
    exchanges: BTreeMap<u32, Exchange>,
    failed: BTreeMap<u32, Trouble>,
    /// Why no exchange can be finished any more.
    refused: Option<Trouble>,
    values: BTreeMap<String, Vec<u8>>,
    values_size: usize,
    questions: Vec<Question>,
    has_said_goodbye: bool,
}

impl Hub {
    pub(super) fn new(connections: Vec<Connection>) -> Self {
        let peer = |connection| Peer { connection, broken: None, gone: None, is_silent: false };
        Self {
            peers: connections.into_iter().map(peer).collect(),
            exchanges: BTreeMap::new(),
            failed: BTreeMap::new(),
            refused: None,
            values: BTreeMap::new(),
            values_size: 0,
            questions: Vec::new(),
            has_said_goodbye: false,
        }
    }

    pub(super) fn poll_fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.peers.iter().filter(|peer| peer.gone.is_none()).map(|peer| peer.connection.poll_fd())
    }

    /// Takes in what the others say.
    pub(super) fn hear(&mut self, shared: &Shared) {
        for index in 0..self.peers.len() {
            let rank = index as u32 + 1;
            let peer = &mut self.peers[index];
            if peer.gone.is_some() {
                continue;
            }
            // A rank that has left may have closed its end: its goodbye comes before that.
            let flushed = peer.broken.take().map_or_else(|| peer.connection.flush(), Err);
            let heard = peer.connection.fill().and(flushed);
            while let Some(peer) = self.peers.get_mut(index).filter(|peer| peer.gone.is_none()) {
                match peer.connection.decoder.next() {
                    Ok(Some(message)) => self.handle(rank, message, shared),
                    Ok(None) => break,
                    Err(malformed) => self.lose(rank, &malformed.into(), shared),
                }
            }
            if let Err(cause) = heard {
                self.lose(rank, &cause, shared);
            }
        }
    }

    /// Does what a rank asks for; rank 0 itself asks in the same way.
    pub(super) fn handle(&mut self, rank: u32, message: Message, shared: &Shared) {
        match message {
            Message::Gather { sequence, limit_ms, label, blob } => {
                self.gather(rank, sequence, limit(limit_ms), &label, blob, shared);
            }
            Message::Put { key, value } => self.put(rank, key, value, shared),
            Message::Get { ticket, limit_ms, key } => match self.values.get(&key).cloned() {
                Some(value) => self.send(rank, &Message::Got { ticket, value: Some(value) }, shared),
                None if self.questions.len() < QUESTIONS_MAX => {
                    let deadline = Instant::now() + limit(limit_ms);
                    self.questions.push(Question { rank, ticket, key, deadline });
                }
                None => self.send(rank, &Message::Got { ticket, value: None }, shared),
            },
            // A rank speaks for itself only.
            Message::Notice { kind, body, .. } => {
                self.spread(rank, &Message::Notice { from: rank, kind, body }, shared);
            }
            Message::Refused(trouble) => self.refuse(&trouble, shared),
            Message::Leave => self.depart(rank, NoticeKind::Left, "it has finished", shared),
            _ => {}
        }
    }

    /// Gives signs of life, looks for those of the others, and ends what has waited too long. Returns when to do so next.
    pub(super) fn attend(
        &mut self,
        shared: &Shared,
        silence: Duration,
        interval: Duration,
        now: Instant,
    ) -> Instant {
        for index in 0..self.peers.len() {
            let rank = index as u32 + 1;
            let peer = &mut self.peers[index];
            if peer.gone.is_some() {
                continue;
            }
            let is_silent = now.saturating_duration_since(peer.connection.last_heard) >= silence;
            let has_changed = std::mem::replace(&mut peer.is_silent, is_silent) != is_silent;
            if now >= peer.connection.last_said + interval {
                self.send(rank, &Message::Ping, shared);
            }
            if has_changed {
                let kind = if is_silent { NoticeKind::Silent } else { NoticeKind::Heard };
                let body = format!("nothing heard for {silence:.1?}").into_bytes();
                self.announce(&Message::Notice { from: rank, kind: kind.number(), body }, shared);
            }
        }
        self.expire(shared, now);
        let exchanges = self.exchanges.values().map(|exchange| exchange.deadline);
        let questions = self.questions.iter().map(|question| question.deadline);
        exchanges.chain(questions).chain([now + interval]).min().unwrap_or(now + interval)
    }

    /// Says goodbye once all others have gone, or when the time is up. True when that is done.
    pub(super) fn has_left(&mut self, deadline: Instant) -> bool {
        let are_gone = self.peers.iter().all(|peer| peer.gone.is_some());
        if !are_gone && Instant::now() < deadline {
            return false;
        }
        if !std::mem::replace(&mut self.has_said_goodbye, true) {
            for peer in self.peers.iter_mut().filter(|peer| peer.gone.is_none()) {
                let _ = peer.connection.say(&Message::Leave, QUEUE_MAX);
            }
        }
        true
    }

    /// A rank cannot go on: no exchange will ever be complete, and all hear why.
    fn refuse(&mut self, trouble: &Trouble, shared: &Shared) {
        if self.refused.is_none() {
            self.refused = Some(trouble.clone());
            self.announce(&Message::Refused(trouble.clone()), shared);
            let open: Vec<u32> = self.exchanges.keys().copied().collect();
            for sequence in open {
                self.fail(sequence, trouble.clone(), shared);
            }
        }
    }

    fn gather(
        &mut self,
        rank: u32,
        sequence: u32,
        limit: Duration,
        label: &str,
        blob: Vec<u8>,
        shared: &Shared,
    ) {
        if let Some(trouble) = self.refused.as_ref().or(self.failed.get(&sequence)).cloned() {
            return self.send(rank, &Message::GatherFailed { sequence, trouble }, shared);
        }
        let ahead = self.exchanges.values().filter(|one| one.blobs[rank as usize].is_some()).count();
        if ahead >= AHEAD_MAX {
            let text = format!("rank {rank} began {ahead} exchanges without waiting for one");
            let trouble = Trouble { kind: TroubleKind::TooMuch, ranks: vec![rank], text };
            return self.send(rank, &Message::GatherFailed { sequence, trouble }, shared);
        }
        let world_size = self.peers.len() + 1;
        let now = Instant::now();
        let exchange = self.exchanges.entry(sequence).or_insert_with(|| Exchange {
            label: label.to_owned(),
            first: rank,
            blobs: vec![None; world_size],
            began: now,
            deadline: now + limit,
        });
        exchange.deadline = exchange.deadline.min(now + limit);
        exchange.blobs[rank as usize] = Some(blob);
        if exchange.label != label {
            let text = format!(
                "rank {} calls for \"{}\", rank {rank} for \"{label}\" (exchange {sequence})",
                exchange.first, exchange.label
            );
            let trouble = Trouble { kind: TroubleKind::Mismatch, ranks: vec![exchange.first, rank], text };
            return self.fail(sequence, trouble, shared);
        }
        self.settle(sequence, shared);
    }

    /// Ends an exchange that is complete, or that never will be.
    fn settle(&mut self, sequence: u32, shared: &Shared) {
        let Some(exchange) = self.exchanges.get(&sequence) else {
            return;
        };
        let missing = exchange.missing();
        if missing.is_empty() {
            let exchange = self.exchanges.remove(&sequence).expect("it was found above");
            let blobs: Vec<Vec<u8>> = exchange.blobs.into_iter().flatten().collect();
            let size: usize = blobs.iter().map(|blob| blob.len() + 4).sum();
            if size + 64 > ANSWER_MAX {
                let text = format!("{size} bytes of contributions are too many for one exchange");
                let trouble = Trouble { kind: TroubleKind::TooMuch, ranks: Vec::new(), text };
                return self.announce(&Message::GatherFailed { sequence, trouble }, shared);
            }
            return self.announce(&Message::Gathered { sequence, blobs }, shared);
        }
        let gone: Vec<(u32, &str)> =
            missing.iter().filter_map(|rank| Some((*rank, self.cause(*rank)?))).collect();
        if let Some((rank, cause)) = gone.first() {
            let ranks: Vec<u32> = gone.iter().map(|(rank, _)| *rank).collect();
            let text = format!("{} {} gone (rank {rank}: {cause})", named(&ranks), verb(&ranks));
            self.fail(sequence, Trouble { kind: TroubleKind::Gone, ranks, text }, shared);
        }
    }

    fn fail(&mut self, sequence: u32, trouble: Trouble, shared: &Shared) {
        let Some(exchange) = self.exchanges.remove(&sequence) else {
            return;
        };
        if self.failed.len() >= FAILED_MAX {
            self.failed.pop_first();
        }
        self.failed.insert(sequence, trouble.clone());
        let message = Message::GatherFailed { sequence, trouble };
        for (rank, blob) in (0..).zip(&exchange.blobs) {
            if blob.is_some() {
                self.send(rank, &message, shared);
            }
        }
    }

    fn expire(&mut self, shared: &Shared, now: Instant) {
        let late: Vec<u32> =
            self.exchanges.iter().filter(|(_, one)| one.deadline <= now).map(|(number, _)| *number).collect();
        for sequence in late {
            let exchange = &self.exchanges[&sequence];
            let ranks = exchange.missing();
            let silent: Vec<u32> = ranks.iter().copied().filter(|rank| self.is_silent(*rank)).collect();
            let mut text = format!(
                "{} {} missing after {:.1?}",
                named(&ranks),
                verb(&ranks),
                now.saturating_duration_since(exchange.began)
            );
            if !silent.is_empty() {
                let _ = write!(text, "; no sign of life from {}", named(&silent));
            }
            self.fail(sequence, Trouble { kind: TroubleKind::Missing, ranks, text }, shared);
        }
        let (late, waiting) =
            std::mem::take(&mut self.questions).into_iter().partition(|question| question.deadline <= now);
        self.questions = waiting;
        let late: Vec<Question> = late;
        for Question { rank, ticket, .. } in late {
            self.send(rank, &Message::Got { ticket, value: None }, shared);
        }
    }

    fn put(&mut self, rank: u32, key: String, value: Vec<u8>, shared: &Shared) {
        let (ready, waiting) =
            std::mem::take(&mut self.questions).into_iter().partition(|question| question.key == key);
        self.questions = waiting;
        let ready: Vec<Question> = ready;
        for Question { rank, ticket, .. } in ready {
            self.send(rank, &Message::Got { ticket, value: Some(value.clone()) }, shared);
        }
        let (before, after) = (self.values.get(&key).map_or(0, Vec::len), value.len());
        let size = self.values_size - before + after;
        if size > VALUES_MAX.1 || (before == 0 && self.values.len() >= VALUES_MAX.0) {
            let body = b"too many values were put: this one was not kept".to_vec();
            let kind = NoticeKind::Abort.number();
            return self.announce(&Message::Notice { from: rank, kind, body }, shared);
        }
        self.values_size = size;
        self.values.insert(key, value);
    }

    /// To one rank.
    fn send(&mut self, rank: u32, message: &Message, shared: &Shared) {
        if rank == 0 {
            return shared.deliver(message.clone());
        }
        let peer = &mut self.peers[rank as usize - 1];
        if peer.gone.is_some() || peer.broken.is_some() {
            return;
        }
        match peer.connection.say(message, QUEUE_MAX) {
            Ok(()) => {}
            Err(cause @ Broken::Stuck) => self.lose(rank, &cause, shared),
            Err(cause) => peer.broken = Some(cause),
        }
    }

    /// To all but the one it comes from.
    fn spread(&mut self, from: u32, message: &Message, shared: &Shared) {
        for rank in (0..=self.peers.len() as u32).filter(|rank| *rank != from) {
            self.send(rank, message, shared);
        }
    }

    /// To all.
    fn announce(&mut self, message: &Message, shared: &Shared) {
        for rank in 0..=self.peers.len() as u32 {
            self.send(rank, message, shared);
        }
    }

    fn lose(&mut self, rank: u32, cause: &Broken, shared: &Shared) {
        self.depart(rank, NoticeKind::Lost, &cause.to_string(), shared);
    }

    /// A rank is gone: all hear of it, and exchanges that wait for it end.
    fn depart(&mut self, rank: u32, kind: NoticeKind, cause: &str, shared: &Shared) {
        let Some(peer) = rank.checked_sub(1).and_then(|index| self.peers.get_mut(index as usize)) else {
            return;
        };
        if peer.gone.is_some() {
            return;
        }
        peer.gone = Some(cause.to_owned());
        peer.connection.end();
        self.questions.retain(|question| question.rank != rank);
        let body = cause.as_bytes().to_vec();
        self.spread(rank, &Message::Notice { from: rank, kind: kind.number(), body }, shared);
        let open: Vec<u32> = self.exchanges.keys().copied().collect();
        for sequence in open {
            self.settle(sequence, shared);
        }
    }

    fn cause(&self, rank: u32) -> Option<&str> {
        self.peers.get((rank as usize).checked_sub(1)?)?.gone.as_deref()
    }

    fn is_silent(&self, rank: u32) -> bool {
        (rank as usize)
            .checked_sub(1)
            .and_then(|index| self.peers.get(index))
            .is_some_and(|peer| peer.is_silent)
    }
}

impl Exchange {
    fn missing(&self) -> Vec<u32> {
        (0..).zip(&self.blobs).filter(|(_, blob)| blob.is_none()).map(|(rank, _)| rank).collect()
    }
}

fn limit(limit_ms: u32) -> Duration {
    Duration::from_millis(u64::from(limit_ms))
}
