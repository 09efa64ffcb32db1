//! What the driver of jobs acts on: a network and the collectives in it, or several that carry out parts of one.

use railnet_coll::Call;
use railnet_coll::variables::Variables;
use railnet_core::Time;
use railnet_core::event::Sink;
use railnet_fabric::{BusCounters, BusResource, Network};
use railnet_topology::Vertex;
use smallvec::SmallVec;

use super::report::Trouble;
use crate::run::collective::driven::{Place, Planned};
use crate::run::collective::{Collectives, Ground};
use crate::run::world::World;
use crate::scenario::ScenarioError;

/// All parts, at one moment. What is made is made in each of them in the same order, so that all give it the same number;
/// what is done is done in the one that carries it out.
pub(super) struct Stage<'a, S> {
    parts: SmallVec<[(&'a mut Network<S>, &'a mut World); 1]>,
}

impl<'a, S: Sink> Stage<'a, S> {
    /// A network in one part.
    pub(super) fn whole(network: &'a mut Network<S>, world: &'a mut World) -> Self {
        Self::new([(network, world)])
    }

    pub(super) fn new(parts: impl IntoIterator<Item = (&'a mut Network<S>, &'a mut World)>) -> Self {
        Self { parts: parts.into_iter().collect() }
    }

    pub(super) fn now(&self) -> Time {
        self.parts[0].0.now
    }

    /// The present, in all parts.
    pub(super) fn set_now(&mut self, now: Time) {
        for (network, _) in &mut self.parts {
            network.now = now;
        }
    }

    /// Has the application called at the end of a moment, where a network is in one part. Where it is in several, whoever runs
    /// them looks after the clock.
    pub(super) fn call_last_at(&mut self, at: Time, token: u32) {
        if let [(network, _)] = &mut self.parts[..] {
            network.call_last_at(at, token);
        }
    }

    /// Does something in each part; gives what came of it in the first.
    fn in_each<R>(
        &mut self,
        mut what: impl FnMut(&mut Network<S>, &mut Collectives, &mut Ground<'_>) -> R,
    ) -> R {
        let mut first = None;
        for (network, world) in &mut self.parts {
            let (Some(collectives), mut ground) = world.parts() else { continue };
            let found = what(network, collectives, &mut ground);
            first.get_or_insert(found);
        }
        first.expect("jobs have collectives in every part")
    }

    fn collectives(&self) -> &Collectives {
        self.parts[0].1.collectives.as_ref().expect("jobs have collectives in every part")
    }

    /// The part that carries out what a member does.
    fn home(&self, member: u32) -> usize {
        self.parts[0].0.partition_of(Vertex::Host(self.collectives().host_of(member))) as usize
    }

    /// As [`Collectives::add_group`].
    pub(super) fn add_group(
        &mut self,
        endpoints: &[u32],
        variables: &Variables,
    ) -> Result<(u32, u32), ScenarioError> {
        self.in_each(|network, collectives, ground| {
            collectives.add_group(network, ground, endpoints, variables)
        })
    }

    /// As [`Collectives::bounce`].
    pub(super) fn bounce(&mut self, communicator: u32) {
        self.in_each(|_, collectives, _| collectives.bounce(communicator));
    }

    /// As [`Collectives::place`], with the lanes of the part that has them.
    pub(super) fn place(&mut self, communicator: u32, first_member: u32) -> Place {
        let home = self.home(first_member);
        let (Some(collectives), ground) = self.parts[home].1.parts() else {
            unreachable!("jobs have collectives in every part")
        };
        collectives.place(communicator, &ground)
    }

    /// As [`Collectives::plan_call`].
    pub(super) fn plan_call(&mut self, member: u32, call: &Call) -> Result<Planned, ScenarioError> {
        let home = self.home(member);
        let mut planned = Vec::with_capacity(self.parts.len());
        self.in_each(|_, collectives, _| planned.push(collectives.plan_call(member, call)));
        planned.swap_remove(home)
    }

    /// As [`Collectives::make_call`].
    pub(super) fn make_call(&mut self, member: u32, planned: &Planned, at: Time) {
        let (home, mut part) = (self.home(member), 0);
        self.in_each(|network, collectives, ground| {
            collectives.make_call(network, ground, member, planned, at, part == home);
            part += 1;
        });
    }

    /// As [`Collectives::skip_call`].
    pub(super) fn skip_call(&mut self, member: u32) {
        let home = self.home(member);
        if let Some(collectives) = &mut self.parts[home].1.collectives {
            collectives.skip_call(member);
        }
    }

    /// As [`Collectives::seat`].
    pub(super) fn seat(&self, member: u32) -> (u32, u32) {
        self.collectives().seat(member)
    }

    /// Members whose calls are over by now that were not told of, and since when: in the order of time, then of members.
    pub(super) fn take_ended(&mut self) -> Vec<(u32, Time)> {
        let (now, mut ended) = (self.now(), Vec::new());
        self.in_each(|_, collectives, _| ended.append(&mut collectives.take_ended(now)));
        ended.sort_unstable_by_key(|(member, at)| (*at, *member));
        ended
    }

    /// When the first of those was through who were not told of.
    pub(super) fn first_ended(&self) -> Option<Time> {
        let all = self.parts.iter().filter_map(|(_, world)| world.collectives.as_ref()?.first_ended());
        all.min()
    }

    /// As [`Collectives::note_end`].
    pub(super) fn note_end(&mut self) {
        let now = self.now();
        self.in_each(|_, collectives, _| collectives.note_end(now));
    }

    /// What a lane of a group inside a server has counted.
    pub(super) fn lane(&self, first_member: u32, lane: BusResource) -> BusCounters {
        let home = self.home(first_member);
        self.parts[home].0.bus_counters(lane)
    }

    /// As [`Network::count_on_bus`], for a lane of a group inside a server.
    pub(super) fn count_on_bus(&mut self, first_member: u32, lane: BusResource, more: BusCounters) {
        let home = self.home(first_member);
        self.parts[home].0.count_on_bus(lane, more);
    }

    /// What has gone wrong in the network so far.
    pub(super) fn trouble(&mut self) -> Trouble {
        let mut found = Trouble::default();
        for (network, _) in &mut self.parts {
            found.add(Trouble::so_far(network));
        }
        found
    }
}
