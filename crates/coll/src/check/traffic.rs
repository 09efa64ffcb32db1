//! How chunks get into connections, through switches, and out again.

use std::mem;

use railnet_core::{GhostRun, GhostTag};
use railnet_nic::memory::GhostRuns;

use super::error::{CheckError, Fault};
use super::links::NONE;
use super::run::{Failed, Run};
use crate::schedule::Step;

impl Run<'_> {
    /// Takes the first chunk out of a link, and tells who waits for room.
    pub(super) fn take(&mut self, link: u32) -> Result<(), Failed> {
        self.links.pop(link);
        let found = &mut self.links.all[link as usize];
        if mem::take(&mut found.sender_waits) {
            let sender = found.sender;
            self.wake(sender);
        } else if found.switch != NONE && found.queued + 1 == self.links.room {
            let switch = found.switch;
            self.links.switches[switch as usize].full -= 1;
            self.switch(switch)?;
        }
        Ok(())
    }

    pub(super) fn send(&mut self, worker: u32, step: &Step, link: u32, round: u32) -> Result<(), Failed> {
        let one = &self.workers[worker as usize];
        let slot = self.links.push(link, step.count, &self.result, (worker, one.done), round);
        if let Some(hazards) = &mut self.hazards {
            hazards.sent(worker, slot);
        }
        self.sent[one.rank as usize] += step.count;
        self.chunks += 1;
        let found = &mut self.links.all[link as usize];
        if found.switch != NONE {
            if found.queued == 1 {
                let switch = found.switch;
                self.links.switches[switch as usize].filled += 1;
                return self.switch(switch);
            }
        } else if mem::take(&mut found.receiver_waits) {
            let receiver = found.receiver;
            self.wake(receiver);
        }
        Ok(())
    }

    /// Lets a switch reduce and multicast what all its senders have given, as long as its receivers have room.
    fn switch(&mut self, switch: u32) -> Result<(), Failed> {
        loop {
            let here = &self.links.switches[switch as usize];
            if here.filled < here.ups.len() as u32 || here.full > 0 {
                return Ok(());
            }
            let (ups, downs) = (here.ups.clone(), here.downs.clone());
            let mut result = GhostRuns::new();
            let mut spare = GhostRuns::new();
            let (mut first, mut round) = (None, 0);
            for up in &ups {
                let slot = self.links.front(*up);
                let chunk = &self.links.chunks[slot as usize];
                round = chunk.round.max(round);
                let Some((from, count, first_slot)) = first else {
                    result.clone_from(&chunk.runs);
                    first = Some((chunk.from, chunk.count, slot));
                    continue;
                };
                let fault = if chunk.count == count {
                    combine(&mut result, &chunk.runs, &mut spare)
                        .err()
                        .map(|(one, other)| Fault::Unlike { one, other })
                } else {
                    let other = self.place(from.0, from.1);
                    Some(Fault::UnequalParts { other, others: count, sent: chunk.count })
                };
                if let Some(fault) = fault {
                    let place = self.place(chunk.from.0, chunk.from.1);
                    return Err(Box::new(CheckError::Step { place, fault }));
                }
                if let Some(hazards) = &mut self.hazards {
                    hazards.merged(slot, first_slot);
                }
            }
            let (from, count, slot) = first.expect("a switch has senders");
            for down in &downs {
                let to = self.links.push(*down, count, &result, from, round);
                if let Some(hazards) = &mut self.hazards {
                    hazards.copied(slot, to);
                }
                let found = &mut self.links.all[*down as usize];
                if found.queued == self.links.room {
                    self.links.switches[switch as usize].full += 1;
                }
                if mem::take(&mut found.receiver_waits) {
                    let receiver = found.receiver;
                    self.wake(receiver);
                }
            }
            for up in &ups {
                self.links.pop(*up);
                let found = &mut self.links.all[*up as usize];
                if found.queued == 0 {
                    self.links.switches[switch as usize].filled -= 1;
                }
                if mem::take(&mut found.sender_waits) {
                    let sender = found.sender;
                    self.wake(sender);
                }
            }
        }
    }
}

/// What the element `at` of a result holds.
pub(super) fn tag_in(runs: &GhostRuns, at: u64) -> GhostTag {
    let mut left = at;
    for run in runs {
        if left < u64::from(run.length) {
            return run.tag.advanced(left);
        }
        left -= u64::from(run.length);
    }
    GhostTag::BLANK
}

/// Adds one list of runs to another of the same length; `spare` is for the rare case of many runs. An error names the
/// elements that do not belong together.
pub(super) fn combine(
    into: &mut GhostRuns,
    from: &GhostRuns,
    spare: &mut GhostRuns,
) -> Result<(), (u64, u64)> {
    let add = |one: GhostTag, other: GhostTag| {
        let sum = one.reduced_with(other);
        if sum.is_poison() { Err((one.origin, other.origin)) } else { Ok(sum) }
    };
    if let ([one], [other]) = (into.as_mut_slice(), from.as_slice()) {
        one.tag = add(one.tag, other.tag)?;
        return Ok(());
    }
    spare.clear();
    let (mut left, mut right) = (into.iter().copied(), from.iter().copied());
    let (mut one, mut other) = (left.next(), right.next());
    while let (Some(a), Some(b)) = (one, other) {
        let length = a.length.min(b.length);
        let run = GhostRun { tag: add(a.tag, b.tag)?, length };
        match spare.last_mut() {
            Some(last) if last.tag.advanced(u64::from(last.length)) == run.tag => last.length += length,
            _ => spare.push(run),
        }
        let rest = |run: GhostRun| {
            let tag = run.tag.advanced(u64::from(length));
            (run.length > length).then(|| GhostRun { tag, length: run.length - length })
        };
        one = rest(a).or_else(|| left.next());
        other = rest(b).or_else(|| right.next());
    }
    mem::swap(into, spare);
    Ok(())
}
