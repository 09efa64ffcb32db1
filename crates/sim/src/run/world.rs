//! All that runs on the hosts: flows, and what ranks do together.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use railnet_core::event::Sink;
use railnet_fabric::{Application, Group, Network, ReductionFailure};
use railnet_nic::Completion;

use super::collective::{Collectives, HostResources, TOKEN};
use super::error::RunError;
use super::runner::Runner;

/// The application of a scenario.
pub(super) struct World {
    pub(super) runner: Runner,
    pub(super) collectives: Option<Collectives>,
    /// Is set from outside where nothing more is to be run.
    pub(super) stop: Option<Arc<AtomicBool>>,
}

impl World {
    /// What collectives are about to happen on.
    pub(super) fn parts(&mut self) -> (Option<&mut Collectives>, HostResources<'_>) {
        let Runner { inside, endpoints, .. } = &mut self.runner;
        let servers = inside.as_mut().map(|inside| &mut inside.servers);
        (self.collectives.as_mut(), HostResources { servers, ports: endpoints })
    }

    /// Takes in what another part of the same network has carried out: what collectives sent, and what bus resources of servers counted.
    pub(super) fn absorb<S: Sink>(&mut self, network: &mut Network<S>, other: &Self, theirs: &Network<S>) {
        if let (Some(ours), Some(other)) = (&mut self.collectives, &other.collectives) {
            ours.absorb(other);
        }
        let [ours, other] = [&self.runner.inside, &other.runner.inside];
        let resources = ours
            .iter()
            .zip(other)
            .flat_map(|(one, other)| one.servers.names.iter().zip(&other.servers.names));
        for ((_, resource), (_, other)) in resources {
            network.count_on_bus(*resource, theirs.bus_counters_so_far(*other));
        }
    }

    /// Whether nothing more is to be run.
    pub(super) fn is_stopped(&self) -> bool {
        self.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed))
    }

    /// Flows and calls that are not over.
    pub(super) fn unfinished(&self) -> usize {
        let calls = self.collectives.as_ref().map_or(0, Collectives::unfinished);
        self.runner.unfinished + calls
    }
}

impl<S: Sink> Application<S> for World {
    fn completed(&mut self, network: &mut Network<S>, host: u32, completion: &Completion) {
        if !Collectives::owns(completion) {
            return self.runner.completed(network, host, completion);
        }
        if let (Some(collectives), mut resources) = self.parts() {
            collectives.completed(network, &mut resources, completion);
        }
    }

    fn called(&mut self, network: &mut Network<S>, token: u32) {
        if token & TOKEN == 0 {
            return self.runner.called(network, token);
        }
        if let (Some(collectives), mut resources) = self.parts() {
            collectives.over(network, &mut resources, token);
        }
    }

    fn carried(&mut self, network: &mut Network<S>, token: u32) {
        if token & TOKEN == 0 {
            return self.runner.carried(network, token);
        }
        if let (Some(collectives), mut resources) = self.parts() {
            collectives.over(network, &mut resources, token);
        }
    }

    fn reduced(&mut self, network: &mut Network<S>, _group: Group, _member: u32, token: u64) {
        if let Some(collectives) = &mut self.collectives {
            collectives.reduced(network, token);
        }
    }

    fn reduction_failed(&mut self, _network: &mut Network<S>, _group: Group, failure: &ReductionFailure) {
        let failure = RunError::Collective(failure.to_string());
        self.runner.failure.get_or_insert(failure);
    }

    fn is_stopped(&self) -> bool {
        self.is_stopped()
    }

    fn touched(&mut self, network: &mut Network<S>, token: u64) {
        if let (Some(collectives), mut resources) = self.parts() {
            collectives.touched(network, &mut resources, token as u32);
        }
    }
}
