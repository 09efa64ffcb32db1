//! Calls that a job makes: each rank when it comes to them, in communicators of its own, several at the same time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use railnet_coll::transport::Transport;
use railnet_coll::tuner::{Request, choose};
use railnet_coll::variables::Variables;
use railnet_coll::{Call, Protocol, Schedule, build};
use railnet_core::event::Sink;
use railnet_core::{Bytes, Span, Time};
use railnet_fabric::{BusResource, Network};

use super::carrier::Carrier;
use super::timing::Hop;
use super::{Collectives, HostResources};
use crate::run::job::{Connections, How};
use crate::scenario::{Order, ScenarioError};

/// What jobs do with collectives.
#[derive(Debug, Default)]
pub(super) struct Driven {
    /// Whether jobs make the calls, and not the entries of a scenario.
    pub(super) is_on: bool,
    /// Members whose call is over, and since when.
    ended: Vec<(u32, Time)>,
    /// What communicators that look alike execute for the same call.
    schedules: BTreeMap<u32, Vec<(Call, Arc<Schedule>)>>,
    /// Bytes that were wrong.
    wrong: u64,
}

/// How a call is run.
#[derive(Clone, Debug)]
pub(in crate::run) struct Planned {
    /// What is executed.
    pub(in crate::run) schedule: Arc<Schedule>,
    /// Which of the schedules of communicators that look alike that is.
    pub(in crate::run) number: u32,
    /// From the call to its first step.
    pub(in crate::run) launch: Span,
}

impl Planned {
    /// As reports say it.
    pub(in crate::run) fn how(&self) -> How {
        let Schedule { algorithm, protocol, channels, .. } = *self.schedule;
        How { algorithm, protocol, channels }
    }
}

/// What a communicator occupies.
#[derive(Debug)]
pub(in crate::run) struct Footprint {
    /// The first communicator that looks the same.
    pub(in crate::run) kind: u32,
    /// Its servers.
    pub(in crate::run) servers: Vec<u32>,
    /// What its calls can use, where that is inside one server.
    pub(in crate::run) bus: Option<Vec<BusResource>>,
    /// How long after a call something of it may be left: notes about slots that are free again.
    pub(in crate::run) residue: Span,
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
        resources: &mut HostResources<'_>,
        endpoints: &[u32],
        variables: &Variables,
    ) -> Result<(u32, u32), ScenarioError> {
        let added = self.add_communicator(network, resources, endpoints, variables, false, Order::Search)?;
        self.add_inlets(added, resources);
        Ok((added, self.communicators[added as usize].members.start))
    }

    /// What ranks of a communicator send passes the memory of the host.
    pub(in crate::run) fn bounce(&mut self, communicator: u32) {
        self.communicators[communicator as usize].is_bounced = true;
    }

    /// How a call of a member will be run.
    pub(in crate::run) fn plan_call(&mut self, member: u32, call: &Call) -> Result<Planned, ScenarioError> {
        let communicator = self.members[member as usize].communicator;
        let (schedule, number) = self.schedule_for(communicator, call)?;
        let launch = self.communicators[communicator as usize].timing.launch(&schedule);
        Ok(Planned { schedule, number, launch })
    }

    /// A host of the network in the server of a member.
    pub(in crate::run) fn host_of(&self, member: u32) -> u32 {
        self.members[member as usize].host
    }

    /// A member makes a call, at a time that may have passed where nothing else has happened since on what it needs. If
    /// another partition runs the member (not `here`), only connections are made.
    pub(in crate::run) fn make_call<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        resources: &mut HostResources<'_>,
        member: u32,
        planned: &Planned,
        at: Time,
        here: bool,
    ) {
        let now = std::mem::replace(&mut network.now, at);
        self.connect_before(network, resources, member, &planned.schedule, planned.launch);
        if here {
            if self.is_wide(member) {
                network.begin_traffic_phase();
            }
            self.note_earliest(member, &planned.schedule, at + planned.launch);
            self.members[member as usize].planned.push_back(Arc::clone(&planned.schedule));
            self.launch_call(network, member, planned.launch);
        }
        network.now = now;
    }

    /// A member is taken to have made the call that was planned.
    pub(in crate::run) fn skip_call(&mut self, member: u32) {
        self.members[member as usize].done += 1;
    }

    /// The communicator of a member, and its rank there.
    pub(in crate::run) fn rank_slot(&self, member: u32) -> (u32, u32) {
        let communicator = self.members[member as usize].communicator;
        (communicator, member - self.communicators[communicator as usize].members.start)
    }

    /// What a communicator occupies, and which others are like it.
    pub(in crate::run) fn footprint(&self, communicator: u32, resources: &HostResources<'_>) -> Footprint {
        let state = &self.communicators[communicator as usize];
        let mut servers: Vec<u32> = match resources.servers.as_deref() {
            Some(servers) => state.ranks.iter().map(|endpoint| servers.server_of(*endpoint)).collect(),
            None => state.ranks.clone(),
        };
        servers.dedup();
        let credits = [Hop::NvLink, Hop::Pcie].map(|hop| state.timing.credit(hop));
        Footprint {
            kind: state.kind,
            servers,
            bus: self.bus_within(communicator, resources),
            residue: credits[0].max(credits[1]),
        }
    }

    /// All that the calls of a communicator inside a server can use; none where a NIC is involved. Those of communicators
    /// of the same kind are in the same order.
    fn bus_within(&self, communicator: u32, resources: &HostResources<'_>) -> Option<Vec<BusResource>> {
        let state = &self.communicators[communicator as usize];
        let servers = resources.servers.as_deref()?;
        if state.cluster.nodes > 1 {
            return None;
        }
        let members = &self.members[state.members.start as usize..state.members.end as usize];
        let gpus = members.iter().filter_map(|member| member.gpu.as_ref());
        let mut bus: Vec<BusResource> = gpus.flat_map(|gpu| [gpu.bus.memory, gpu.bus.lines]).collect();
        for (from, source) in state.ranks.iter().enumerate() {
            for is_up in [true, false] {
                bus.extend(servers.hops_at_switch(*source, is_up).iter().map(|hop| hop.resource));
            }
            for (to, target) in state.ranks.iter().enumerate().filter(|(to, _)| *to != from) {
                let hops = match state.transport(from as u32, to as u32) {
                    Transport::PeerToPeer { .. } => servers.hops_between(*source, *target),
                    Transport::SharedMemory => servers.hops_through_host(*source, *target),
                    Transport::Same | Transport::Network { .. } | Transport::None => return None,
                };
                bus.extend(hops.iter().map(|hop| hop.resource));
            }
        }
        let mut seen = BTreeSet::new();
        bus.retain(|resource| seen.insert(*resource));
        Some(bus)
    }

    fn schedule_for(
        &mut self,
        communicator: u32,
        call: &Call,
    ) -> Result<(Arc<Schedule>, u32), ScenarioError> {
        let state = &self.communicators[communicator as usize];
        let known = self.driven.schedules.entry(state.kind).or_default();
        if let Some(number) = known.iter().position(|(other, _)| other == call) {
            return Ok((Arc::clone(&known[number].1), number as u32));
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
        Ok((schedule, known.len() as u32 - 1))
    }

    /// A call of a member is over.
    pub(super) fn end_driven<S: Sink>(&mut self, network: &mut Network<S>, member: u32, wrong: u64) {
        if self.is_wide(member) {
            network.end_traffic_phase();
        }
        let has_more = !self.members[member as usize].planned.is_empty();
        self.earliest.over(member, network.now, has_more);
        self.driven.wrong += wrong;
        self.members[member as usize].done += 1;
        self.driven.ended.push((member, network.now));
    }

    /// Before when no call will be over of those that are under way, as far as is known.
    pub(in crate::run) fn ends_from(&self) -> Time {
        if self.driven.ended.is_empty() { self.earliest.least() } else { Time::ZERO }
    }

    /// Whether jobs make the calls.
    pub(in crate::run) fn is_driven(&self) -> bool {
        self.driven.is_on
    }

    /// Whether the communicator of a member reaches across servers.
    pub(super) fn is_wide(&self, member: u32) -> bool {
        let communicator = self.members[member as usize].communicator;
        self.communicators[communicator as usize].cluster.nodes > 1
    }

    /// Members whose calls are over by now and were not reported, and since when: in the order of time, then of members.
    pub(in crate::run) fn take_ended(&mut self, now: Time) -> Vec<(u32, Time)> {
        let mut ended: Vec<_> = self.driven.ended.extract_if(.., |(_, at)| *at <= now).collect();
        ended.sort_unstable_by_key(|(member, at)| (*at, *member));
        ended
    }

    /// When the first of the calls ended that were not reported.
    pub(in crate::run) fn first_ended(&self) -> Option<Time> {
        self.driven.ended.iter().map(|(_, at)| *at).min()
    }

    /// Whether there are any.
    pub(in crate::run) fn has_ended(&self) -> bool {
        !self.driven.ended.is_empty()
    }

    /// Bytes of outputs that were wrong.
    pub(in crate::run) fn wrong(&self) -> u64 {
        self.driven.wrong
    }

    /// Adds what the collectives of another partition of the network have carried out.
    pub(in crate::run) fn absorb(&mut self, other: &Self) {
        self.driven.wrong += other.driven.wrong;
        self.finished = self.finished.max(other.finished);
        // Connections of NICs were made in the same order; those inside servers only where they are.
        for (ours, theirs) in self.net_pairs.iter().zip(&other.net_pairs) {
            let carriers = (&mut self.pairs[*ours as usize].carrier, &other.pairs[*theirs as usize].carrier);
            if let (Carrier::Net(ours), Carrier::Net(theirs)) = carriers {
                ours.sent += theirs.sent;
            }
        }
    }

    /// A job was through at this time.
    pub(in crate::run) fn note_end(&mut self, now: Time) {
        self.finished = self.finished.max(now);
    }

    /// What each communicator sent from a port to another: its number, the ports, and bytes of messages.
    pub(in crate::run) fn sent(&self) -> impl Iterator<Item = (u32, [u32; 2], u64)> + '_ {
        self.pairs.iter().filter_map(|pair| match &pair.carrier {
            Carrier::Net(net) => {
                Some((self.members[pair.sender.0 as usize].communicator, net.ports, net.sent))
            }
            Carrier::Local(_) => None,
        })
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
