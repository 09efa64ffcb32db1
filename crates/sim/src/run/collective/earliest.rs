//! Before when calls inside a server cannot be over: whoever knows that can let a server go on by itself until then.
//!
//! However a call is carried out, what a rank cannot have without others comes to its GPU, all of it by the last lane of
//! NVLink before it where there is one. That occupies the resource from the moment on when the first rank begins to send: others
//! may send before a rank has come to the call itself.

use std::collections::{BTreeMap, VecDeque};

use railnet_coll::transport::Transport;
use railnet_coll::{Algorithm, Collective, Schedule};
use railnet_core::{Bytes, Rate, Time};

use super::{Collectives, HostResources};

/// Calls of a communicator that some have made and others have not; where there are more, not all ranks take part.
const OPEN_MOST: usize = 64;

/// What is known about the calls of all members.
#[derive(Debug, Default)]
pub(super) struct Earliest {
    /// Before when the call of each member cannot be over; never, where it has none.
    ends: Vec<Time>,
    /// How fast data can come to each member, as far as that is known.
    inlets: Vec<Option<Rate>>,
    /// Calls that each member has made.
    made: Vec<u64>,
    begun: BTreeMap<u32, Begun>,
}

/// Calls of a communicator that not all have made, from the oldest on: when it began for the first of them, and how many have
/// made it.
#[derive(Debug, Default)]
struct Begun {
    first: u64,
    calls: VecDeque<(Time, u32)>,
}

impl Begun {
    /// One of so many members makes a call. When it began for the first one, if that is known.
    fn note(&mut self, number: u64, active: Time, members: u32) -> Option<Time> {
        let index = number.checked_sub(self.first)? as usize;
        if index >= self.calls.len() {
            self.calls.resize(index + 1, (active, 0));
        }
        let (began, made) = &mut self.calls[index];
        *began = active.min(*began);
        *made += 1;
        let began = *began;
        while self.calls.len() > OPEN_MOST || self.calls.front().is_some_and(|(_, made)| *made == members) {
            self.calls.pop_front();
            self.first += 1;
        }
        Some(began)
    }
}

impl Earliest {
    /// Members of one more communicator.
    fn add(&mut self, mut inlets: Vec<Option<Rate>>) {
        self.inlets.append(&mut inlets);
        self.ends.resize(self.inlets.len(), Time::NEVER);
        self.made.resize(self.inlets.len(), 0);
    }

    /// The call of a member is over.
    pub(super) fn over(&mut self, member: u32, now: Time, has_more: bool) {
        let ends = &mut self.ends[member as usize];
        assert!(now >= *ends, "a call was over sooner than its data could have come");
        // What was called before this one was over ends no sooner.
        *ends = if has_more { now } else { Time::NEVER };
    }

    /// Before when none of them will be.
    pub(super) fn least(&self) -> Time {
        self.ends.iter().copied().min().unwrap_or(Time::NEVER)
    }
}

impl Collectives {
    /// A communicator was added.
    pub(super) fn add_inlets(&mut self, communicator: u32, resources: &HostResources<'_>) {
        let inlets = self.inlets(communicator, resources);
        self.earliest.add(inlets);
    }

    /// A member makes a call, which begins at `active`.
    pub(super) fn note_earliest(&mut self, member: u32, schedule: &Schedule, active: Time) {
        let communicator = self.members[member as usize].communicator;
        let members = self.communicators[communicator as usize].members.len() as u32;
        let mut least = active;
        if let Some(rate) = self.earliest.inlets[member as usize] {
            let came = self.least_bytes(member, schedule);
            let Earliest { made, begun, .. } = &mut self.earliest;
            let made = &mut made[member as usize];
            let began = begun.entry(communicator).or_default().note(*made, active, members);
            *made += 1;
            least = began.map_or(active, |began| active.max(began + rate.serialize(came)));
        }
        let ends = &mut self.earliest.ends[member as usize];
        *ends = least.min(*ends);
    }

    /// What comes to a member at least in a call.
    fn least_bytes(&self, member: u32, schedule: &Schedule) -> Bytes {
        let (call, machine) = (&schedule.call, &self.members[member as usize].machine);
        let count = match (call.collective, schedule.algorithm) {
            // Every block but one passes each rank of a ring.
            (Collective::ReduceScatter, Algorithm::Ring) => {
                let all = (0..machine.ranks()).map(|to| call.block_of(to, machine.ranks()));
                all.clone().sum::<u64>() - all.max().unwrap_or(0)
            }
            _ => call.received_count(machine.rank(), machine.ranks()),
        };
        Bytes(count * call.dtype.size() as u64)
    }

    /// How fast data can come to each member of a communicator inside a server, where all of it comes by one lane: the last
    /// of NVLink before its GPU.
    fn inlets(&self, communicator: u32, resources: &HostResources<'_>) -> Vec<Option<Rate>> {
        let state = &self.communicators[communicator as usize];
        let servers = resources.servers.as_deref().filter(|_| state.cluster.nodes < 2);
        let inlet = |(to, target): (usize, &u32)| {
            let servers = servers?;
            let switch = servers.hops_at_switch(*target, false);
            let last = switch.first()?;
            let mut rate = last.rate?;
            for (from, source) in state.ranks.iter().enumerate().filter(|(from, _)| *from != to) {
                let Transport::PeerToPeer { .. } = state.transport(from as u32, to as u32) else {
                    return None;
                };
                let hops = servers.hops_between(*source, *target);
                rate = rate.max(hops.iter().find(|hop| hop.resource == last.resource)?.rate?);
            }
            Some(rate)
        };
        state.ranks.iter().enumerate().map(inlet).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_begins_with_the_first_who_makes_it() {
        let at = Time::from_ps;
        let mut begun = Begun::default();
        assert_eq!(begun.note(0, at(50), 2), Some(at(50)));
        assert_eq!(begun.note(1, at(90), 2), Some(at(90)), "the same rank goes on to the next");
        assert_eq!(begun.note(0, at(70), 2), Some(at(50)));
        assert_eq!(begun.note(1, at(95), 2), Some(at(90)));
        assert!(begun.calls.is_empty() && begun.first == 2, "nothing is kept of what all have made");
        for number in 2..200 {
            begun.note(number, at(100 + number), 2);
        }
        assert_eq!(begun.calls.len(), OPEN_MOST);
        assert_eq!(begun.note(3, at(500), 2), None, "too old to be known");
    }
}
