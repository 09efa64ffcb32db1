//! The reckoning: what memory and queue pairs must look like when all is over.

use std::net::IpAddr;

use railnet_core::GhostTag;
use railnet_wire::GRH_LENGTH;

use super::image::{Content, actual, front, number, stored, tokens};
use super::ledger::{Fate, Received};
use super::plan::{Act, Area, Job, KeyChoice, Piece, Scenario};
use super::run::Run;
use super::violation::Violation;
use super::world::job_work;
use crate::completion::{CompletionKind, Status};
use crate::queue_pair::{Service, State};
use crate::testing::loopback_gid;

impl Run<'_> {
    /// Checks everything that is left to check.
    pub(super) fn settle(&mut self) -> Result<(), Box<Violation>> {
        for end in 0..self.plan.ends.len() {
            if self.plan.ends[end].tiny_queue.is_some() {
                // What was put on the queue before it broke is still in order.
                self.drain_queue(end, self.world.ends[end].send_queue)?;
            }
        }
        for end in 0..self.plan.ends.len() {
            self.check_state(end)?;
            self.settle_jobs(end)?;
        }
        for end in 0..self.plan.ends.len() {
            match self.plan.ends[end].service {
                Service::ReliableConnection => self.settle_receives(end)?,
                _ => self.settle_unreliable(end)?,
            }
        }
        for index in 0..self.plan.common_counters.len() {
            self.settle_counter(index)?;
        }
        let Some(difference) = self.image.difference(&self.world) else {
            return Ok(());
        };
        let owner = self.owner(difference.nic, difference.area, difference.offset);
        let (area, offset) = (difference.area, difference.offset);
        let mut violation = Violation::new(format!("memory: {area:?} byte {offset:#x}, {owner}"))
            .expected(difference.expected)
            .found(difference.found);
        violation.nic = Some(difference.nic);
        Err(violation)
    }

    fn check_state(&self, end: usize) -> Result<(), Box<Violation>> {
        let (described, books) = (&self.plan.ends[end], &self.ledger.ends[end]);
        let handles = self.world.ends[end];
        let is_destroyed = self.plan.scenario == Scenario::Destroyed && end == self.plan.victim && books.gone;
        let info = self.world.lab.nics[described.nic].query_qp(handles.queue_pair);
        let Ok(info) = info else {
            return match is_destroyed {
                true => Ok(()),
                false => Err(Violation::new("a queue pair is gone").on(end)),
            };
        };
        let must_be = match (books.failed, described.ending.may_fail) {
            (true, _) => Some(State::Error),
            (false, false) => Some(State::ReadyToSend),
            // In error without a single completion: nothing was queued when it happened.
            (false, true) => None,
        };
        if must_be.is_some_and(|state| state != info.state) {
            return Err(Violation::new("state of the queue pair")
                .expected(must_be.unwrap_or(State::Error))
                .found(info.state)
                .on(end));
        }
        if info.sends != 0 {
            return Err(Violation::new("work left in the send queue").found(info.sends).on(end));
        }
        // What was posted has completed or is still there; one receive may be in use by an unfinished message.
        let left = (books.receives_posted - books.received.len().min(books.receives_posted)) as u32;
        let in_use =
            u32::from(described.service == Service::UnreliableConnection || described.ending.may_fail);
        let is_kept = (info.receives..=info.receives + in_use).contains(&left);
        if !described.shared && !books.gone && !is_kept {
            return Err(Violation::new("receives that are neither completed nor posted any more")
                .expected(left)
                .found(info.receives)
                .on(end));
        }
        // An acknowledged message has been delivered.
        let delivered = self.ledger.ends[described.peer].messages;
        let peer_gone = self.ledger.ends[described.peer].gone;
        let acknowledged = described.messages().filter(|&index| books.fates[index] == Fate::Done).count();
        if described.service == Service::ReliableConnection && acknowledged > delivered && !peer_gone {
            return Err(Violation::new("messages were acknowledged and not delivered")
                .expected(acknowledged)
                .found(delivered)
                .on(end));
        }
        Ok(())
    }

    /// What a job carries.
    fn content(&self, nic: usize, job: &Job) -> Content {
        match &job.inline {
            Some(bytes) => Content::Bytes(bytes.clone()),
            None => self.image.read(nic, &job.pieces),
        }
    }

    /// Carries out an end's WRITEs, READs and atomics in the model, as far as they are known to have happened.
    fn settle_jobs(&mut self, end: usize) -> Result<(), Box<Violation>> {
        let plan = self.plan;
        let described = &plan.ends[end];
        let (own, peer) = (described.nic, plan.ends[described.peer].nic);
        let is_reliable = described.service == Service::ReliableConnection;
        // Requests are carried out in order: after one that was not, none is.
        let mut is_over = false;
        for index in 0..self.ledger.ends[end].posted {
            let job = &described.jobs[index];
            let is_done = self.ledger.ends[end].fates[index] == Fate::Done;
            let named = |violation: Box<Violation>| violation.on(end).of(job_work(end, index));
            match job.act {
                Act::Write(target, immediate) => {
                    let content = self.content(own, job);
                    let arrived = !is_reliable && immediate.is_some() && self.has_arrived(end, immediate);
                    if is_done && is_reliable || arrived {
                        self.image.write(peer, &[target], 0, &content);
                        continue;
                    }
                    let is_refused = job.remote_key == KeyChoice::Unknown;
                    if job.length == 0 || described.ending.culprit == Some(index) || is_refused {
                        continue;
                    }
                    let (least, most) = self.check_partial(peer, &[target], &content).map_err(named)?;
                    if is_reliable && is_over && least > 0 {
                        return Err(named(Violation::new("a WRITE was carried out behind one that was not")));
                    }
                    is_over |= most < job.length;
                }
                Act::Read(source) => {
                    if described.ending.culprit == Some(index) {
                        continue;
                    }
                    let content = self.image.read(peer, &[source]);
                    if is_done {
                        self.image.write(own, &job.pieces, 0, &content);
                    } else {
                        self.check_partial(own, &job.pieces, &content).map_err(named)?;
                    }
                }
                Act::CompareSwap { .. } | Act::FetchAdd { .. } => {
                    self.settle_atomic(end, index, is_done).map_err(named)?;
                }
                Act::Send(_) | Act::Datagram { .. } | Act::Bind(_) | Act::Invalidate => {}
            }
        }
        Ok(())
    }

    /// Whether the receiver of an unreliable end reports the message with this immediate value.
    fn has_arrived(&self, end: usize, immediate: Option<u32>) -> bool {
        let receiver = &self.ledger.ends[self.plan.ends[end].peer];
        receiver.received.iter().any(|received| received.immediate == immediate)
    }

    /// Checks that pieces hold the first part of `content` and behind it what they held before. Tells how much came at
    /// least and at most: where old and new look alike, nobody knows.
    fn check_partial(
        &mut self,
        nic: usize,
        pieces: &[Piece],
        content: &Content,
    ) -> Result<(u32, u32), Box<Violation>> {
        let wanted = stored(content, self.plan.ghost && pieces.iter().all(|piece| piece.area == Area::Data));
        let room = front(pieces, 0, wanted.len() as u32);
        let (old, found) = (self.image.tokens(nic, &room), tokens(&actual(&self.world, nic, &room)));
        let came = wanted.iter().zip(&found).take_while(|(new, got)| new == got).count();
        if old.get(came..) != found.get(came..) {
            let at = (came..found.len()).find(|&at| old[at] != found[at]).unwrap_or(came);
            return Err(Violation::new("the target of unfinished work holds neither old nor new")
                .expected(format!("a first part of it, then as before from byte {came} on"))
                .found(format!("{:x?} at byte {at} of {}", found[at], found.len())));
        }
        let is_same = |at: &usize| old[*at] == wanted[*at];
        let same = (0..came).rev().take_while(is_same).count();
        self.image.adopt(&self.world, nic, &room);
        Ok(((came - same) as u32, came as u32))
    }

    fn settle_atomic(&mut self, end: usize, index: usize, is_done: bool) -> Result<(), Box<Violation>> {
        let plan = self.plan;
        let described = &plan.ends[end];
        let (own, peer) = (described.nic, plan.ends[described.peer].nic);
        let job = &described.jobs[index];
        let (Act::CompareSwap { at, .. } | Act::FetchAdd { at, .. }) = job.act else {
            return Ok(());
        };
        if plan.common_counters.contains(&(peer, at)) {
            // Several add to it in an order that nobody knows: reckoned together, from what each one fetched.
            return Ok(());
        }
        if described.ending.culprit == Some(index) {
            return Ok(());
        }
        let old = self.image.counter(peer, at);
        let new = match job.act {
            Act::FetchAdd { add, .. } => old.wrapping_add(add),
            Act::CompareSwap { compare, swap, .. } if old == compare => swap,
            _ => old,
        };
        let fetched = Content::Bytes(old.to_le_bytes().to_vec());
        if is_done {
            self.image.set_counter(peer, at, new);
            self.image.write(own, &job.pieces, 0, &fetched);
            return Ok(());
        }
        // It may have been carried out or not. Those behind it too: any point on the way will do, and the last one
        // that fits is taken.
        self.check_partial(own, &job.pieces, &fetched)?;
        let found = number(&actual(&self.world, peer, &[at]));
        if found != old {
            self.image.set_counter(peer, at, new);
        }
        Ok(())
    }

    /// Fills the receives of a reliable end in the model.
    fn settle_receives(&mut self, end: usize) -> Result<(), Box<Violation>> {
        let plan = self.plan;
        let described = &plan.ends[end];
        let sender = &plan.ends[described.peer];
        let received = self.ledger.ends[end].received.clone();
        for entry in received.iter().filter(|entry| entry.status == Status::Success) {
            let Some(index) = entry.message else { continue };
            let job = &sender.jobs[index];
            if matches!(job.act, Act::Send(_)) {
                let content = self.content(sender.nic, job);
                let pieces = self.pieces_of(end, entry.buffer).to_vec();
                self.image.write(described.nic, &pieces, 0, &content);
            }
        }
        // The first receive that did not succeed may hold a part of the next message.
        if described.shared {
            return Ok(());
        }
        let arrived = self.ledger.ends[end].messages;
        let mut next = arrived;
        // Completions that nobody saw: messages went on arriving, each in the next receive.
        let blind = self.ledger.ends[end].gone;
        loop {
            let Some(index) = sender.messages().nth(next) else {
                return Ok(());
            };
            let Some(buffer) = described.receives.get(next) else {
                return Ok(());
            };
            let job = &sender.jobs[index];
            if matches!(job.act, Act::Send(_)) && index < self.ledger.ends[described.peer].posted {
                let mut content = self.content(sender.nic, job);
                shorten(&mut content, buffer.length());
                let named = |violation: Box<Violation>| violation.on(end).of(job_work(described.peer, index));
                self.check_partial(described.nic, &buffer.pieces, &content).map_err(named)?;
            }
            next += 1;
            if !blind {
                return Ok(());
            }
        }
    }

    fn pieces_of(&self, end: usize, buffer: usize) -> &[Piece] {
        let described = &self.plan.ends[end];
        match described.shared {
            true => &self.plan.nics[described.nic].shared[buffer].pieces,
            false => &described.receives[buffer].pieces,
        }
    }

    /// Whatever completed must be a whole message that somebody sent; buffers beside it may hold parts of others.
    fn settle_unreliable(&mut self, end: usize) -> Result<(), Box<Violation>> {
        let plan = self.plan;
        let described = &plan.ends[end];
        let received = self.ledger.ends[end].received.clone();
        let mut after = 0;
        for entry in &received {
            let found = self.match_message(end, entry, after);
            let Some((sender, index)) = found else {
                return Err(Violation::new("what arrived is no message that was sent, or out of order")
                    .found(format!("{entry:?}"))
                    .on(end));
            };
            if plan.is_ordered() && described.service == Service::UnreliableConnection {
                after = index + 1;
            }
            if described.service == Service::Datagram && !plan.ghost {
                self.check_address(end, entry, sender, index)?;
            }
        }
        for buffer in &described.receives {
            self.image.adopt(&self.world, described.nic, &buffer.pieces);
        }
        Ok(())
    }

    /// The job whose message a receive holds: (end, index).
    fn match_message(&self, end: usize, entry: &Received, after: usize) -> Option<(usize, usize)> {
        let plan = self.plan;
        let described = &plan.ends[end];
        let is_datagram = described.service == Service::Datagram;
        let skip = if is_datagram { GRH_LENGTH as u32 } else { 0 };
        let length = entry.length.checked_sub(skip)?;
        let pieces = &described.receives[entry.buffer].pieces;
        let holds = tokens(&actual(&self.world, described.nic, &front(pieces, skip, length)));
        let address = self.source_of(end, entry);
        let senders = (0..plan.ends.len()).filter(|&sender| match is_datagram {
            true => {
                let from = &plan.ends[sender];
                from.service == Service::Datagram
                    && self.world.ends[sender].queue_pair.value() == entry.source
                    && address.is_none_or(|address| address == octets(from.nic))
            }
            false => sender == described.peer,
        });
        for sender in senders {
            let from = &plan.ends[sender];
            let posted = self.ledger.ends[sender].posted;
            for (index, job) in from.jobs[..posted].iter().enumerate().skip(after) {
                let is_candidate = match (job.act, entry.kind) {
                    (Act::Datagram { to, .. }, CompletionKind::Receive) => to == end,
                    (Act::Send(_), CompletionKind::Receive) => true,
                    (Act::Write(_, Some(_)), CompletionKind::ReceiveWriteImmediate) => {
                        if job.act.immediate() == entry.immediate && job.length == length {
                            return Some((sender, index));
                        }
                        false
                    }
                    _ => false,
                };
                if is_candidate
                    && job.act.immediate() == entry.immediate
                    && job.length == length
                    && stored(&self.content(from.nic, job), plan.ghost) == holds
                {
                    return Some((sender, index));
                }
            }
        }
        None
    }

    /// The sender's address in front of a datagram, where there are bytes.
    fn source_of(&self, end: usize, entry: &Received) -> Option<[u8; 4]> {
        let described = &self.plan.ends[end];
        if described.service != Service::Datagram {
            return None;
        }
        let pieces = &described.receives[entry.buffer].pieces;
        match actual(&self.world, described.nic, &front(pieces, 32, 4)) {
            Content::Bytes(bytes) => bytes.try_into().ok(),
            Content::Ghost(_) => None,
        }
    }

    /// The 40 bytes in front of a datagram: nothing, then the IPv4 header (IBTA annex A17).
    fn check_address(
        &self,
        end: usize,
        entry: &Received,
        sender: usize,
        index: usize,
    ) -> Result<(), Box<Violation>> {
        let described = &self.plan.ends[end];
        let pieces = &described.receives[entry.buffer].pieces;
        let area = actual(&self.world, described.nic, &front(pieces, 0, GRH_LENGTH as u32));
        let Content::Bytes(area) = area else {
            return Ok(());
        };
        let job = &self.plan.ends[sender].jobs[index];
        let immediate = if job.act.immediate().is_some() { 4 } else { 0 };
        let total = 20 + 8 + 12 + 8 + immediate + job.length.next_multiple_of(4) + 4;
        let good = area[..20] == [0; 20]
            && area[20] == 0x45
            && area[22..24] == (total as u16).to_be_bytes()
            && area[29] == 17
            && area[32..36] == octets(self.plan.ends[sender].nic)
            && area[36..40] == octets(described.nic);
        if good {
            return Ok(());
        }
        Err(Violation::new("the address area of a datagram")
            .found(format!("{area:02x?}"))
            .on(end)
            .of(job_work(sender, index)))
    }

    /// A counter that several ends add to: what they fetched must be the sums on the way, each once.
    fn settle_counter(&mut self, which: usize) -> Result<(), Box<Violation>> {
        let plan = self.plan;
        let (owner, counter) = plan.common_counters[which];
        let mut adds = Vec::new();
        for (end, described) in plan.ends.iter().enumerate() {
            for (index, job) in described.jobs.iter().enumerate() {
                let Act::FetchAdd { at, add } = job.act else { continue };
                if at == counter && plan.ends[described.peer].nic == owner {
                    let fetched = number(&actual(&self.world, described.nic, &job.pieces));
                    adds.push((end, index, add, fetched));
                    self.image.adopt(&self.world, described.nic, &job.pieces);
                }
            }
        }
        let mut value = self.image.counter(owner, counter);
        let mut last = vec![None; plan.ends.len()];
        while !adds.is_empty() {
            let Some(place) = adds.iter().position(|entry| entry.3 == value) else {
                let (end, index, _, fetched) = adds[0];
                return Err(Violation::new("what atomics fetched is no sequence of additions")
                    .expected(format!("one that fetched {value:#x}"))
                    .found(format!("{fetched:#x}, and {} more", adds.len() - 1))
                    .on(end)
                    .of(job_work(end, index)));
            };
            let (end, index, add, _) = adds.swap_remove(place);
            if last[end].is_some_and(|last| last > index) {
                return Err(Violation::new("atomics were carried out in another order than posted")
                    .on(end)
                    .of(job_work(end, index)));
            }
            last[end] = Some(index);
            value = value.wrapping_add(add);
        }
        self.image.set_counter(owner, counter, value);
        Ok(())
    }

    /// Whose memory a byte is, in words.
    fn owner(&self, nic: usize, area: Area, offset: u64) -> String {
        let covers = |piece: &Piece| {
            piece.area == area && (piece.offset..piece.offset + u64::from(piece.length)).contains(&offset)
        };
        for (end, described) in self.plan.ends.iter().enumerate() {
            for (index, job) in described.jobs.iter().enumerate() {
                let work = job_work(end, index);
                let remote = match job.act {
                    Act::Write(at, _) | Act::CompareSwap { at, .. } | Act::FetchAdd { at, .. } => Some(at),
                    _ => None,
                };
                let is_target =
                    self.plan.ends[described.peer].nic == nic && remote.as_ref().is_some_and(covers);
                let is_result = described.nic == nic
                    && !matches!(job.act, Act::Send(_) | Act::Write(..) | Act::Datagram { .. })
                    && job.pieces.iter().any(covers);
                if is_target || is_result {
                    return format!("target of work {work:#x}, {:?} of {} bytes", job.act, job.length);
                }
            }
            for (index, buffer) in described.receives.iter().enumerate() {
                if described.nic == nic && buffer.pieces.iter().any(covers) {
                    return format!("receive {index} of end {end}");
                }
            }
        }
        for (index, buffer) in self.plan.nics[nic].shared.iter().enumerate() {
            if buffer.pieces.iter().any(covers) {
                return format!("shared receive {index}");
            }
        }
        "which nothing may write".into()
    }
}

/// The address of a NIC.
fn octets(nic: usize) -> [u8; 4] {
    match loopback_gid(nic).to_ip() {
        IpAddr::V4(address) => address.octets(),
        IpAddr::V6(_) => [0; 4],
    }
}

/// Keeps the first `length` bytes.
fn shorten(content: &mut Content, length: u32) {
    match content {
        Content::Bytes(bytes) => bytes.truncate(length as usize),
        Content::Ghost(runs) => {
            let mut left = length;
            for run in runs.iter_mut() {
                run.length = run.length.min(left);
                left -= run.length;
            }
            runs.retain(|run| run.length > 0);
        }
    }
}

/// Changes one byte behind everybody's back, for tests of the checker.
pub(super) fn flip(run: &mut Run<'_>, nic: usize, place: u64) {
    use crate::memory::Memory;
    use railnet_core::GhostRun;

    let nic = nic % run.plan.nics.len();
    let piece = Piece { area: Area::Data, offset: place % run.plan.nics[nic].data_bytes, length: 1 };
    let (space, address) = (run.world.stations[nic].data, super::world::address(piece));
    match actual(&run.world, nic, &[piece]) {
        Content::Bytes(bytes) => run.world.lab.memory.write(space, address, &[!bytes[0]]),
        Content::Ghost(_) => {
            let tag = GhostTag { sum: 0xdead, origin: 1 };
            run.world.lab.memory.write_ghost(space, address, GhostRun { tag, length: 1 });
        }
    }
}
