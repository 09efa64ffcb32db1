//! The reference model's books: which completions must come next, and what each one settles.

use super::plan::{Act, End, Plan, Scenario};
use super::violation::Violation;
use super::watch::Retries;
use super::world::{RECEIVE, SHARED, is_signaled};
use crate::completion::{Completion, CompletionKind, Status};
use crate::queue_pair::Service;
use railnet_wire::GRH_LENGTH;

/// What became of a job, as far as its queue pair's completions tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    /// Nothing is known.
    Open,
    /// It succeeded, seen or, when not signalled, implied.
    Done,
    /// It failed.
    Failed,
    /// It was flushed.
    Flushed,
}

/// A receive that completed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Received {
    /// Which buffer, of the end's own or of the shared queue.
    pub(super) buffer: usize,
    pub(super) status: Status,
    pub(super) length: u32,
    pub(super) kind: CompletionKind,
    pub(super) immediate: Option<u32>,
    /// A datagram's sender.
    pub(super) source: u32,
    /// On a reliable connection: the peer's job that filled it, or would have.
    pub(super) message: Option<usize>,
}

/// The books of one end.
#[derive(Clone, Debug)]
pub(super) struct Books {
    /// Jobs handed to the NIC.
    pub(super) posted: usize,
    /// Jobs that are settled.
    pub(super) settled: usize,
    pub(super) fates: Vec<Fate>,
    /// Receives handed to the NIC.
    pub(super) receives_posted: usize,
    pub(super) received: Vec<Received>,
    /// Messages that arrived whole.
    pub(super) messages: usize,
    /// An error completion was seen.
    pub(super) failed: bool,
    /// A job failed or was flushed.
    pub(super) send_failed: bool,
    /// Nothing more can be asked of it: destroyed, or its completions are lost.
    pub(super) gone: bool,
    /// Its completion queue is reported to have run over; the queue pair to be in error for that.
    pub(super) overflow: [bool; 2],
}

/// All books.
#[derive(Debug)]
pub(super) struct Ledger {
    pub(super) ends: Vec<Books>,
    /// Receives of each NIC's shared queue that have completed.
    shared_done: Vec<Vec<bool>>,
}

fn kind(act: Act) -> CompletionKind {
    match act {
        Act::Send(_) | Act::Datagram { .. } => CompletionKind::Send,
        Act::Write(..) => CompletionKind::Write,
        Act::Read(_) => CompletionKind::Read,
        Act::CompareSwap { .. } => CompletionKind::CompareSwap,
        Act::FetchAdd { .. } => CompletionKind::FetchAdd,
        Act::Bind(_) => CompletionKind::BindWindow,
        Act::Invalidate => CompletionKind::LocalInvalidate,
    }
}

impl Ledger {
    pub(super) fn new(plan: &Plan) -> Self {
        let books = |end: &End| Books {
            posted: 0,
            settled: 0,
            fates: vec![Fate::Open; end.jobs.len()],
            receives_posted: 0,
            received: Vec::new(),
            messages: 0,
            failed: false,
            send_failed: false,
            gone: false,
            overflow: [false; 2],
        };
        Self {
            ends: plan.ends.iter().map(books).collect(),
            shared_done: plan.nics.iter().map(|nic| vec![false; nic.shared.len()]).collect(),
        }
    }

    /// A completion came. `retries` is what the queue pair has been through.
    pub(super) fn take(
        &mut self,
        plan: &Plan,
        end: usize,
        completion: &Completion,
        retries: Retries,
    ) -> Result<(), Box<Violation>> {
        let result = if completion.work & (RECEIVE | SHARED) == 0 {
            self.take_send(plan, end, completion, retries)
        } else {
            self.take_receive(plan, end, completion)
        };
        result.map_err(|violation| violation.on(end).of(completion.work))
    }

    fn take_send(
        &mut self,
        plan: &Plan,
        end: usize,
        completion: &Completion,
        retries: Retries,
    ) -> Result<(), Box<Violation>> {
        let described = &plan.ends[end];
        let books = &mut self.ends[end];
        let index = (completion.work & 0xffff_ffff) as usize;
        if completion.work >> 32 != end as u64 || index >= books.posted {
            return Err(Violation::new("a completion of work that was not posted here"));
        }
        if index < books.settled {
            return Err(Violation::new("a second completion of the same work").found(completion.status));
        }
        let skipped = (books.settled..index).find(|&job| is_signaled(described, &described.jobs[job]));
        if let Some(skipped) = skipped {
            return Err(Violation::new("completions are out of order or lost")
                .expected(format!("work {skipped:#x} first"))
                .found(format!("work {index:#x}, {}", completion.status)));
        }
        let job = &described.jobs[index];
        match completion.status {
            Status::Success => {
                if books.send_failed {
                    return Err(Violation::new("success after a failure"));
                }
                if !is_signaled(described, job) {
                    return Err(Violation::new("a completion of an unsignalled success"));
                }
                if described.ending.culprit == Some(index) {
                    return Err(Violation::new("work that cannot succeed did")
                        .expected(format!("{:?}", described.ending.statuses)));
                }
                let (wanted, got) = ((kind(job.act), job.length), (completion.kind, completion.length));
                if wanted != got {
                    return Err(Violation::new("kind and length of a completion")
                        .expected(format!("{wanted:?}"))
                        .found(format!("{got:?}")));
                }
            }
            Status::Flushed if books.send_failed => {
                if index != books.settled {
                    return Err(Violation::new("flushes are out of order or lost")
                        .expected(format!("work {:#x}", books.settled)));
                }
            }
            status => {
                if books.send_failed {
                    return Err(Violation::new("a second error").expected("a flush").found(status));
                }
                check_first_failure(plan, end, index, status, retries)?;
            }
        }
        for fate in &mut books.fates[books.settled..index] {
            *fate = Fate::Done;
        }
        books.settled = index + 1;
        books.fates[index] = match completion.status {
            Status::Success => Fate::Done,
            Status::Flushed => Fate::Flushed,
            _ => Fate::Failed,
        };
        let is_error = completion.status != Status::Success;
        books.send_failed |= is_error;
        books.failed |= is_error;
        Ok(())
    }

    fn take_receive(
        &mut self,
        plan: &Plan,
        end: usize,
        completion: &Completion,
    ) -> Result<(), Box<Violation>> {
        let described = &plan.ends[end];
        let buffer = (completion.work & 0xffff_ffff) as usize;
        let is_shared = completion.work & SHARED != 0;
        if is_shared != described.shared {
            return Err(Violation::new("a receive completed on a queue pair that it was not posted for"));
        }
        let books = &self.ends[end];
        if is_shared {
            let done = &mut self.shared_done[described.nic];
            if done.get(buffer).is_none_or(|done| *done) {
                return Err(Violation::new("a shared receive completed twice, or was never posted"));
            }
            done[buffer] = true;
            if books.received.last().is_some_and(|last| last.buffer > buffer) {
                return Err(Violation::new("a queue pair took shared receives out of order"));
            }
        } else if buffer != books.received.len() || buffer >= books.receives_posted {
            return Err(Violation::new("receives complete out of order")
                .expected(format!("receive {} of {}", books.received.len(), books.receives_posted))
                .found(format!("receive {buffer}, {}", completion.status)));
        }
        let message = self.check_receive(plan, end, completion)?;
        let books = &mut self.ends[end];
        books.received.push(Received {
            buffer,
            status: completion.status,
            length: completion.length,
            kind: completion.kind,
            immediate: completion.immediate,
            source: completion.source.value(),
            message,
        });
        match completion.status {
            Status::Success => books.messages += 1,
            _ => books.failed = true,
        }
        Ok(())
    }

    /// Checks a receive's completion against the message that it must be, and tells which that is.
    fn check_receive(
        &self,
        plan: &Plan,
        end: usize,
        completion: &Completion,
    ) -> Result<Option<usize>, Box<Violation>> {
        let (described, books) = (&plan.ends[end], &self.ends[end]);
        let is_reliable = described.service == Service::ReliableConnection;
        let message = is_reliable.then(|| plan.ends[described.peer].messages().nth(books.messages)).flatten();
        let had_error = books.received.last().is_some_and(|last| last.status != Status::Success);
        match completion.status {
            Status::Success if had_error => return Err(Violation::new("a receive succeeded after an error")),
            Status::Success => {}
            status => {
                let ending = &described.ending;
                // What went wrong on the sending side takes the receives with it.
                let expected = status == Status::Flushed && (ending.flushed || ending.may_fail)
                    || Some(status) == ending.receive_status && !had_error;
                if !expected {
                    return Err(Violation::new("a receive failed").found(status));
                }
                return Ok(message);
            }
        }
        if !is_reliable {
            let least = if described.service == Service::Datagram { GRH_LENGTH as u32 } else { 0 };
            if completion.length < least {
                return Err(Violation::new("a datagram without its address area").found(completion.length));
            }
            return Ok(None);
        }
        let Some(index) = message else {
            return Err(Violation::new("a message arrived that was never posted"));
        };
        let sender = &self.ends[described.peer];
        if index >= sender.posted {
            return Err(Violation::new("a message arrived before it was posted"));
        }
        let job = &plan.ends[described.peer].jobs[index];
        let kind = match job.act {
            Act::Send(_) => CompletionKind::Receive,
            _ => CompletionKind::ReceiveWriteImmediate,
        };
        let grh = plan.nics[described.nic].behaviour.grh_flag_always;
        let wanted = (kind, job.length, job.act.immediate(), None, grh);
        let got = (
            completion.kind,
            completion.length,
            completion.immediate,
            completion.invalidated,
            completion.has_grh,
        );
        if wanted != got {
            return Err(Violation::new(
                "kind, length, immediate, invalidated key or address flag of a receive",
            )
            .expected(format!("{wanted:?}"))
            .found(format!("{got:?}")));
        }
        Ok(message)
    }
}

/// Whether the first job to fail may be this one, in this way.
fn check_first_failure(
    plan: &Plan,
    end: usize,
    index: usize,
    status: Status,
    retries: Retries,
) -> Result<(), Box<Violation>> {
    let described = &plan.ends[end];
    let ending = &described.ending;
    let wrong = |what: &str, expected: String| Err(Violation::new(what).expected(expected).found(status));
    if !ending.may_fail {
        return wrong("work failed for no reason", "success".into());
    }
    let is_planned =
        ending.statuses.contains(&status) && ending.culprit.is_none_or(|culprit| culprit == index);
    if is_planned {
        if status == Status::RnrRetryExceeded && retries.not_ready < u32::from(described.rnr_retry) {
            let tried = format!("{} retries", described.rnr_retry);
            return wrong("gave up on the receiver early", tried);
        }
        return Ok(());
    }
    match status {
        Status::Flushed if ending.flushed => Ok(()),
        // Retries run out when nothing answers any more. On a good wire the culprit's end is told so instead.
        Status::RetryExceeded if ending.culprit.is_none() || !plan.is_clean() => {
            if plan.scenario == Scenario::Destroyed && end == plan.victim && plan.is_clean() {
                return wrong("retries ran out at the end that was destroyed", "nothing".into());
            }
            if retries.unanswered < u32::from(described.retry_count) {
                let tried = format!("{} retries, not {}", described.retry_count, retries.unanswered);
                return wrong("gave up early", tried);
            }
            Ok(())
        }
        _ => wrong(
            "the first failure is not what it should be",
            format!("{:?} of work {:x?}", ending.statuses, ending.culprit),
        ),
    }
}
