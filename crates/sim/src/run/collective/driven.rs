//! Calls that a job makes: each rank when it comes to them, in communicators of its own, several at the same time.

use std::collections::BTreeMap;
use std::sync::Arc;

use railnet_coll::tuner::{Request, choose};
use railnet_coll::variables::Variables;
use railnet_coll::{Call, Protocol, Schedule, build};
use railnet_core::event::Sink;
use railnet_core::{Bytes, Time};
use railnet_fabric::Network;

use super::carrier::Carrier;
use super::{Collectives, Ground};
use crate::run::job::{Connections, How};
use crate::scenario::{Order, ScenarioError};

/// What jobs do with collectives.
#[derive(Debug, Default)]
pub(super) struct Driven {
    /// Whether jobs make the calls, and not the entries of a scenario.
    pub(super) is_on: bool,
    /// Members whose call is over.
    ended: Vec<u32>,
    /// What communicators that look alike execute for the same call.
    schedules: BTreeMap<u32, Vec<(Call, Arc<Schedule>)>>,
    /// Bytes that were wrong.
    wrong: u64,
}

impl Driven {
    pub(super) fn new(is_on: bool) -> Self {
        Self { is_on, ..Self::default() }
    }
}

impl Collectives {
    /// A communicator of these endpoints for a stream of a job; gives its number and that of its first member.
    pub(in crate::run) fn add_group<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        ground: &mut Ground<'_>,
        endpoints: &[u32],
        variables: &Variables,
    ) -> Result<(u32, u32), ScenarioError> {
        let added = self.add_communicator(network, ground, endpoints, variables, false, Order::Search)?;
        Ok((added, self.communicators[added as usize].members.start))
    }

    /// A member makes a call; says how that is run.
    pub(in crate::run) fn make_call<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        member: u32,
        call: &Call,
    ) -> Result<How, ScenarioError> {
        let schedule = self.schedule_for(self.members[member as usize].communicator, call)?;
        let Schedule { algorithm, protocol, channels, .. } = *schedule;
        self.members[member as usize].own = Some(schedule);
        self.call_later(network, member);
        Ok(How { algorithm, protocol, channels })
    }

    fn schedule_for(&mut self, communicator: u32, call: &Call) -> Result<Arc<Schedule>, ScenarioError> {
        let state = &self.communicators[communicator as usize];
        let known = self.driven.schedules.entry(state.kind).or_default();
        if let Some((_, schedule)) = known.iter().find(|(other, _)| other == call) {
            return Ok(Arc::clone(schedule));
        }
        let refused = |why: String| ScenarioError::new(why);
        let mut inputs = state.inputs.clone();
        // Switches that reduce are for scenarios with [[collective]] so far: their contexts are reserved beforehand.
        inputs.settings.collnet = false;
        inputs.collnet.is_enabled = false;
        inputs.collnet.is_available = false;
        let decision =
            choose(&inputs, &Request::of(call, inputs.ranks)).map_err(|error| refused(error.to_string()))?;
        let schedule =
            build(call, &decision.choice(), &state.wiring).map_err(|error| refused(error.to_string()))?;
        let schedule = Arc::new(schedule);
        known.push((call.clone(), Arc::clone(&schedule)));
        Ok(schedule)
    }

    /// A call of a member is over.
    pub(super) fn end_driven(&mut self, member: u32, wrong: u64) {
        self.driven.wrong += wrong;
        self.members[member as usize].done += 1;
        self.driven.ended.push(member);
    }

    /// Members whose calls are over since the last time.
    pub(in crate::run) fn take_ended(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.driven.ended)
    }

    /// Whether there are any.
    pub(in crate::run) fn has_ended(&self) -> bool {
        !self.driven.ended.is_empty()
    }

    /// Bytes of outputs that were wrong.
    pub(in crate::run) fn wrong(&self) -> u64 {
        self.driven.wrong
    }

    /// A job was through at this time.
    pub(in crate::run) fn note_end(&mut self, now: Time) {
        self.finished = self.finished.max(now);
    }

    /// What communicators have made of connections.
    pub(in crate::run) fn connections(&self, communicators: impl Iterator<Item = u32>) -> Connections {
        let mut found = Connections::default();
        let mut of = vec![false; self.communicators.len()];
        for number in communicators {
            let one = &self.communicators[number as usize];
            if one.cluster.nodes < 2 {
                continue;
            }
            of[number as usize] = true;
            found.communicators += 1;
            let ranks = one.ranks.len() as u32;
            if ranks > found.ranks {
                (found.ranks, found.channels) = (ranks, one.graphs.counts.collective);
            }
        }
        let joined = self.pairs.iter().filter(|pair| {
            let communicator = self.members[pair.sender.0 as usize].communicator;
            of[communicator as usize] && matches!(pair.carrier, Carrier::Net(_))
        });
        let joined = joined.count() as u64;
        found.queue_pairs = 2 * joined * u64::from(self.settings.config.queue_pairs);
        found.buffers = Bytes(2 * joined * Protocol::Simple.buffer().as_u64());
        found
    }
}
