//! What must hold when a run is over.

use railnet_core::{GhostRun, GhostTag};
use railnet_nic::memory::GhostRuns;
use railnet_nic::{Counters, Status};

use super::balance;
use super::plan::{Act, Message, POOL, Plan};
use super::run::{Ended, Run};
use super::violation::Violation;

/// How a run ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Verdict {
    /// Senders hold each other up for good, which the plan allows.
    pub(super) is_locked: bool,
    pub(super) failed: u64,
}

impl Run<'_> {
    pub(super) fn settle(&mut self) -> Result<Verdict, Violation> {
        let is_locked = self.is_locked();
        if is_locked && !self.plan.may_lock() {
            let found = format!("{:?}", self.world.network.stall());
            return Err(
                Violation::new("senders hold each other up on paths that go up and then down").found(found)
            );
        }
        if !is_locked {
            if !self.is_quiet {
                let found = format!("{} messages to go, {:?}", self.unfinished(), self.world.network.stall());
                return Err(Violation::new("the run does not come to an end").found(found));
            }
            let at_rest = self.world.network.audit_at_rest();
            at_rest.map_err(|what| Violation::new("something is left over").found(what))?;
            let xoff_count = self.world.network.sink.ports.iter().find(|(_, books)| books.paused != 0);
            if let Some((port, _)) = xoff_count {
                return Err(Violation::new("a pause was sent and its end was not").found(format!("{port:?}")));
            }
        }
        balance::check(&self.world, !is_locked)?;
        let failed = self.settle_messages(is_locked)?;
        self.settle_memory()?;
        self.settle_losses()?;
        Ok(Verdict { is_locked, failed })
    }

    fn settle_messages(&self, is_locked: bool) -> Result<u64, Violation> {
        let may_fail = self.plan.may_fail() || is_locked;
        let mut failed = 0;
        for (index, (message, ended)) in self.plan.messages.iter().zip(&self.books.ended).enumerate() {
            let wrong = |what: &str| {
                let found = format!("{ended:?}, {message:?}");
                Err(Violation::new(format!("message {index} {what}")).found(found))
            };
            let Ended { request, receive } = *ended;
            match request {
                // A NIC that may not even send its first packet waits without a limit.
                None if is_locked => failed += 1,
                None => return wrong("never ends"),
                Some(Status::Success) => {
                    if message.act != Act::Read && receive != Some(Status::Success) {
                        return wrong("succeeds, and its receive does not");
                    }
                }
                Some(Status::RetryExceeded | Status::Flushed) if may_fail => failed += 1,
                Some(Status::RetryExceeded | Status::Flushed) => return wrong("fails for no reason"),
                Some(_) => return wrong("fails in a way that no network causes"),
            }
            if !matches!(receive, None | Some(Status::Success | Status::Flushed)) {
                return wrong("has a receive that fails in a way that no network causes");
            }
        }
        Ok(failed)
    }

    /// All memory: pools as they were, what arrived where it belongs, and nothing anywhere else.
    fn settle_memory(&self) -> Result<(), Violation> {
        for host in 0..self.plan.graph.hosts.len() as u32 {
            let mut place = 0;
            self.compare(host, 0, POOL, &Expected::Pool { host, from: 0 }, &mut place)?;
            for (message, ended) in self.plan.messages.iter().zip(&self.books.ended) {
                let (has, gets) = message.way(self.plan);
                if gets != host {
                    continue;
                }
                self.compare(host, place, message.to - place, &Expected::Blank, &mut place)?;
                let is_there = [ended.request, ended.receive].contains(&Some(Status::Success));
                let from = message.from;
                let expected = match is_there {
                    true => Expected::Pool { host: has, from },
                    false => Expected::PoolOrBlank { host: has, from },
                };
                self.compare(host, message.to, u64::from(message.length), &expected, &mut place)?;
            }
            let rest = self.plan.options.memory - place;
            self.compare(host, place, rest, &Expected::Blank, &mut place)?;
        }
        Ok(())
    }

    fn compare(
        &self,
        host: u32,
        offset: u64,
        length: u64,
        expected: &Expected,
        place: &mut u64,
    ) -> Result<(), Violation> {
        *place = offset + length;
        let space = self.world.space(host);
        let wrong = |at: u64| {
            let what = format!("host {host}: byte {at} of its memory is wrong");
            Err(Violation::new(what).expected(format!("{expected:?}")))
        };
        let Some(ghost) = self.world.network.memory.ghost(space) else {
            let bytes = &self.world.network.memory.bytes(space)[offset as usize..(offset + length) as usize];
            let first_wrong = bytes
                .iter()
                .enumerate()
                .find(|(index, byte)| !expected.allows_byte(self, *index as u64, **byte));
            return first_wrong.map_or(Ok(()), |(index, _)| wrong(offset + index as u64));
        };
        let mut runs = GhostRuns::new();
        ghost.read(offset, length as u32, &mut runs);
        let mut index = 0;
        for GhostRun { tag, length } in runs {
            if length > 0 && !expected.allows_tag(self, index, tag) {
                return wrong(offset + index);
            }
            index += u64::from(length);
        }
        Ok(())
    }

    fn settle_losses(&self) -> Result<(), Violation> {
        let (plan, watch) = (self.plan, &self.world.network.sink);
        if watch.no_memory > 0 && !plan.may_drop() {
            return Err(Violation::new("a lossless fabric drops packets").found(watch.no_memory));
        }
        if watch.no_route > 0 && !plan.reroutes() {
            return Err(Violation::new("packets have no route, and no link failed").found(watch.no_route));
        }
        if !plan.is_calm() || self.is_locked() {
            return Ok(());
        }
        let sum = |count: fn(&Counters) -> u64| -> u64 {
            self.world.network.endpoints.hosts.iter().map(|host| count(host.nic.counters())).sum()
        };
        let again = [
            sum(|counters| counters.resent),
            sum(|counters| counters.timeouts),
            sum(|counters| counters.sequence_naks),
            // An acknowledgement that a later one overtook is of no use.
            if plan.may_overtake() { 0 } else { watch.refused },
        ];
        if again != [0; 4] {
            let what = "nothing is lost and nothing overtakes (sent again, timeouts, sequence NAKs, refused)";
            return Err(Violation::new(what).expected("none of it").found(format!("{again:?}")));
        }
        Ok(())
    }
}

/// What a stretch of memory may hold.
#[derive(Debug)]
enum Expected {
    /// What it held before: nothing.
    Blank,
    /// What the pool of a host holds from here on.
    Pool { host: u32, from: u64 },
    /// That, or nothing: the message failed on its way.
    PoolOrBlank { host: u32, from: u64 },
}

impl Expected {
    fn allows_tag(&self, run: &Run<'_>, index: u64, tag: GhostTag) -> bool {
        let is_pool = |host: u32, from: u64| tag == run.pools[host as usize].0.advanced(from + index);
        match *self {
            Self::Blank => tag == GhostTag::BLANK,
            Self::Pool { host, from } => is_pool(host, from),
            Self::PoolOrBlank { host, from } => tag == GhostTag::BLANK || is_pool(host, from),
        }
    }

    fn allows_byte(&self, run: &Run<'_>, index: u64, byte: u8) -> bool {
        let is_pool = |host: u32, from: u64| byte == run.pools[host as usize].1[(from + index) as usize];
        match *self {
            Self::Blank => byte == 0,
            Self::Pool { host, from } => is_pool(host, from),
            Self::PoolOrBlank { host, from } => byte == 0 || is_pool(host, from),
        }
    }
}

/// Changes a byte, or a tag, of what arrived. Returns whether there was something.
pub(super) fn falsify(run: &mut Run<'_>) -> bool {
    let plan: &Plan = run.plan;
    let arrived = |(message, ended): (&Message, &Ended)| {
        (message.length > 0 && ended.request == Some(Status::Success)).then_some(*message)
    };
    let Some(message) = plan.messages.iter().zip(&run.books.ended).find_map(arrived) else { return false };
    let (_, gets) = message.way(plan);
    let (space, address) = (run.world.space(gets), run.world.address(message.to));
    let memory = &mut run.world.network.memory;
    if plan.options.is_ghost {
        let tag = GhostTag { sum: 99, origin: 1 };
        railnet_nic::memory::Memory::write_ghost(memory, space, address, GhostRun { tag, length: 1 });
    } else {
        memory.bytes_mut(space)[message.to as usize] ^= 1;
    }
    true
}
