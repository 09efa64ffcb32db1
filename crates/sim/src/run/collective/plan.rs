//! What is to be run: one measurement after the other, each of one call in one or more groups at the same time.

use std::sync::Arc;

use railnet_coll::{Algorithm, BuildError, Call, Choice, Protocol, Schedule, TopologyOptions, build};
use railnet_core::event::Sink;
use railnet_core::{Bytes, Span, Time};
use railnet_fabric::Network;
use railnet_nic::Mtu;
use railnet_topology::FabricGraph;

use super::connect::NetSettings;
use super::pending::PendingTable;
use super::{Collectives, Ground};
use crate::scenario::{CollectiveSection, Scenario, ScenarioError};

/// One measurement.
#[derive(Debug)]
pub(super) struct Entry {
    /// Which `[[collective]]` of the scenario.
    pub(super) section: usize,
    pub(super) iterations: u32,
    pub(super) parts: Vec<Part>,
    /// What NCCL's cost model says it takes.
    pub(super) predicted: Option<Span>,
}

/// What one group does in a measurement.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) communicator: u32,
    pub(super) schedule: Arc<Schedule>,
}

impl Entry {
    /// The call that every group makes.
    pub(super) fn call(&self) -> &Call {
        &self.parts[0].schedule.call
    }
}

/// What came of a call.
#[derive(Clone, PartialEq, Debug)]
pub struct CollectiveResult {
    /// Which `[[collective]]` of the scenario.
    pub section: usize,
    /// What was called.
    pub call: Call,
    /// Ranks of each group.
    pub ranks: u32,
    /// Groups at the same time.
    pub groups: usize,
    /// By which algorithm.
    pub algorithm: Algorithm,
    /// By which protocol.
    pub protocol: Protocol,
    /// On how many channels.
    pub channels: u32,
    /// When it began.
    pub started: Time,
    /// How long one call took, until the last rank was done.
    pub time: Span,
    /// Elements of outputs that were wrong, of all ranks and calls.
    pub wrong: u64,
    /// What NCCL's cost model says it takes, where it has anything to say.
    pub predicted: Option<Span>,
}

impl CollectiveResult {
    pub(super) fn new(entry: &Entry, started: Time, time: Span, wrong: u64) -> Self {
        let schedule = &entry.parts[0].schedule;
        Self {
            section: entry.section,
            call: schedule.call.clone(),
            ranks: schedule.ranks,
            groups: entry.parts.len(),
            algorithm: schedule.algorithm,
            protocol: schedule.protocol,
            channels: schedule.channels,
            started,
            time,
            wrong,
            predicted: entry.predicted,
        }
    }
}

impl Collectives {
    /// Everything that a scenario wants ranks to do, or nothing.
    pub(in crate::run) fn new<S: Sink>(
        network: &mut Network<S>,
        ground: &mut Ground<'_>,
        scenario: &Scenario,
        ends: &FabricGraph,
    ) -> Result<Option<Self>, ScenarioError> {
        if scenario.collective.is_empty() {
            return Ok(None);
        }
        let mtu = Mtu::from_bytes(scenario.nic.mtu).ok_or_else(|| ScenarioError::new("no such MTU"))?;
        let config = railnet_coll::conduit::net::NetConfig {
            mtu,
            timeout: scenario.timeout(),
            retry_count: scenario.nic.retry_count,
            ..Default::default()
        };
        let mut this = Self {
            seed: scenario.seed,
            entries: Vec::new(),
            at: 0,
            started: Time::ZERO,
            running: 0,
            communicators: Vec::new(),
            members: Vec::new(),
            pairs: Vec::new(),
            pair_names: std::collections::BTreeMap::new(),
            groups: Vec::new(),
            group_names: std::collections::BTreeMap::new(),
            pending: PendingTable::default(),
            applier: railnet_coll::machine::Applier::new(),
            notices: Vec::new(),
            settings: NetSettings { config, traffic_class: 0x02, mtu_bytes: u64::from(scenario.nic.mtu) },
            results: Vec::new(),
            failure: None,
            finished: Time::ZERO,
        };
        for (index, section) in scenario.collective.iter().enumerate() {
            this.plan(network, ground, index, section, ends)
                .map_err(|error| error.within(&format!("collective.{index}")))?;
        }
        Ok(Some(this))
    }

    fn plan<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        ground: &mut Ground<'_>,
        index: usize,
        section: &CollectiveSection,
        ends: &FabricGraph,
    ) -> Result<(), ScenarioError> {
        let groups = section.group_list(ends)?;
        let options = TopologyOptions::default();
        let mut communicators = Vec::new();
        for ranks in &groups {
            let known = self.communicator(network, ground, ranks, &options);
            communicators.push(known.map_err(|error| error.at("ranks"))?);
        }
        for size in &section.size.0 {
            for in_place in section.placement.each() {
                let entry = self.entry(index, section, &communicators, *size, *in_place)?;
                self.entries.push(entry);
            }
        }
        Ok(())
    }

    fn entry(
        &self,
        index: usize,
        section: &CollectiveSection,
        communicators: &[u32],
        size: Bytes,
        in_place: bool,
    ) -> Result<Entry, ScenarioError> {
        let mut parts: Vec<Part> = Vec::new();
        for communicator in communicators {
            let state = &self.communicators[*communicator as usize];
            let call = section.call(size, state.wiring.ranks(), in_place);
            // Groups that look alike run alike.
            let same = parts.iter().find(|part| {
                let other = &self.communicators[part.communicator as usize];
                other.wiring == state.wiring
            });
            let schedule = match same {
                Some(part) => Arc::clone(&part.schedule),
                None => {
                    let choice = self.choice(section, state, &call)?;
                    Arc::new(build(&call, &choice, &state.wiring).map_err(|error| refused(&error))?)
                }
            };
            parts.push(Part { communicator: *communicator, schedule });
        }
        Ok(Entry { section: index, iterations: section.iterations, parts, predicted: None })
    }

    fn choice(
        &self,
        section: &CollectiveSection,
        state: &super::Communicator,
        _call: &Call,
    ) -> Result<Choice, ScenarioError> {
        let algorithm = section.algorithm.and_then(|name| name.algorithm()).unwrap_or(Algorithm::Ring);
        let protocol = section.protocol.and_then(|name| name.protocol()).unwrap_or(Protocol::Simple);
        let channels = section.channels.unwrap_or(2 * state.wiring.rings.len() as u32);
        let chunk = section.chunk.map(|chunk| chunk.0);
        Ok(Choice { chunk, ..Choice::new(algorithm, protocol).on(channels) })
    }
}

fn refused(error: &BuildError) -> ScenarioError {
    ScenarioError::new(error.to_string()).at("algorithm")
}
