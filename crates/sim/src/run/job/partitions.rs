//! The view that the driver of jobs has of a run: one network with its collectives, or the partitions of one.

use railnet_coll::Call;
use railnet_coll::variables::Variables;
use railnet_core::Time;
use railnet_core::event::Sink;
use railnet_fabric::{BusCounters, BusResource, Network};
use railnet_topology::Vertex;
use smallvec::SmallVec;

use super::report::Trouble;
use crate::run::collective::driven::{Footprint, Planned};
use crate::run::collective::{Collectives, HostResources};
use crate::run::world::World;
use crate::scenario::ScenarioError;

/// All partitions, at one moment. Groups and connections are made in each of them in the same order, so that all give them the
/// same numbers; a call is made in the partition that runs its member.
pub(super) struct PartitionView<'a, S> {
    partitions: SmallVec<[(&'a mut Network<S>, &'a mut World); 1]>,
}

impl<'a, S: Sink> PartitionView<'a, S> {
    /// A network in one partition.
    pub(super) fn whole(network: &'a mut Network<S>, world: &'a mut World) -> Self {
        Self::new([(network, world)])
    }

    pub(super) fn new(partitions: impl IntoIterator<Item = (&'a mut Network<S>, &'a mut World)>) -> Self {
        Self { partitions: partitions.into_iter().collect() }
    }

    pub(super) fn now(&self) -> Time {
        self.partitions[0].0.now
    }

    /// Sets the present, in all partitions.
    pub(super) fn set_now(&mut self, now: Time) {
        for (network, _) in &mut self.partitions {
            network.now = now;
        }
    }

    /// Has the application called at the end of a moment, if there is one partition. With several, the coordinator keeps the clock.
    pub(super) fn call_last_at(&mut self, at: Time, token: u32) {
        if let [(network, _)] = &mut self.partitions[..] {
            network.call_last_at(at, token);
        }
    }

    /// Does something in each partition; returns the result of the first.
    fn in_each<R>(
        &mut self,
        mut what: impl FnMut(&mut Network<S>, &mut Collectives, &mut HostResources<'_>) -> R,
    ) -> R {
        let mut first = None;
        for (network, world) in &mut self.partitions {
            let (Some(collectives), mut resources) = world.parts() else { continue };
            let found = what(network, collectives, &mut resources);
            first.get_or_insert(found);
        }
        first.expect("jobs have collectives in every partition")
    }

    fn collectives(&self) -> &Collectives {
        self.partitions[0].1.collectives.as_ref().expect("jobs have collectives in every partition")
    }

    /// The partition that runs a member.
    fn partition_of(&self, member: u32) -> usize {
        self.partitions[0].0.partition_of(Vertex::Host(self.collectives().host_of(member))) as usize
    }

    /// As [`Collectives::add_group`].
    pub(super) fn add_group(
        &mut self,
        endpoints: &[u32],
        variables: &Variables,
    ) -> Result<(u32, u32), ScenarioError> {
        self.in_each(|network, collectives, resources| {
            collectives.add_group(network, resources, endpoints, variables)
        })
    }

    /// As [`Collectives::bounce`].
    pub(super) fn bounce(&mut self, communicator: u32) {
        self.in_each(|_, collectives, _| collectives.bounce(communicator));
    }

    /// As [`Collectives::footprint`], with the bus resources of the partition that has them.
    pub(super) fn footprint(&mut self, communicator: u32, first_member: u32) -> Footprint {
        let index = self.partition_of(first_member);
        let (Some(collectives), resources) = self.partitions[index].1.parts() else {
            unreachable!("jobs have collectives in every partition")
        };
        collectives.footprint(communicator, &resources)
    }

    /// As [`Collectives::plan_call`].
    pub(super) fn plan_call(&mut self, member: u32, call: &Call) -> Result<Planned, ScenarioError> {
        let index = self.partition_of(member);
        let mut planned = Vec::with_capacity(self.partitions.len());
        self.in_each(|_, collectives, _| planned.push(collectives.plan_call(member, call)));
        planned.swap_remove(index)
    }

    /// As [`Collectives::make_call`].
    pub(super) fn make_call(&mut self, member: u32, planned: &Planned, at: Time) {
        let (index, mut number) = (self.partition_of(member), 0);
        self.in_each(|network, collectives, resources| {
            collectives.make_call(network, resources, member, planned, at, number == index);
            number += 1;
        });
    }

    /// As [`Collectives::skip_call`].
    pub(super) fn skip_call(&mut self, member: u32) {
        let index = self.partition_of(member);
        if let Some(collectives) = &mut self.partitions[index].1.collectives {
            collectives.skip_call(member);
        }
    }

    /// As [`Collectives::rank_slot`].
    pub(super) fn rank_slot(&self, member: u32) -> (u32, u32) {
        self.collectives().rank_slot(member)
    }

    /// Members whose calls are over by now and were not reported, and since when: in the order of time, then of members.
    pub(super) fn take_ended(&mut self) -> Vec<(u32, Time)> {
        let (now, mut ended) = (self.now(), Vec::new());
        self.in_each(|_, collectives, _| ended.append(&mut collectives.take_ended(now)));
        ended.sort_unstable_by_key(|(member, at)| (*at, *member));
        ended
    }

    /// When the first of the calls ended that were not reported.
    pub(super) fn first_ended(&self) -> Option<Time> {
        let all = self.partitions.iter().filter_map(|(_, world)| world.collectives.as_ref()?.first_ended());
        all.min()
    }

    /// As [`Collectives::note_end`].
    pub(super) fn note_end(&mut self) {
        let now = self.now();
        self.in_each(|_, collectives, _| collectives.note_end(now));
    }

    /// What a bus resource of a group inside a server has counted.
    pub(super) fn bus_counters(&self, first_member: u32, resource: BusResource) -> BusCounters {
        let index = self.partition_of(first_member);
        self.partitions[index].0.bus_counters(resource)
    }

    /// As [`Network::count_on_bus`], for a bus resource of a group inside a server.
    pub(super) fn count_on_bus(&mut self, first_member: u32, resource: BusResource, more: BusCounters) {
        let index = self.partition_of(first_member);
        self.partitions[index].0.count_on_bus(resource, more);
    }

    /// What has gone wrong in the network so far.
    pub(super) fn trouble(&mut self) -> Trouble {
        let mut found = Trouble::default();
        for (network, _) in &mut self.partitions {
            found.add(Trouble::so_far(network));
        }
        found
    }
}
