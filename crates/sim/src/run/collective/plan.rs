//! What is to be run: one measurement after the other, each of one call in one or more groups at the same time.

use std::sync::Arc;

use railnet_coll::conduit::net::NetConfig;
use railnet_coll::init_log::Start;
use railnet_coll::tuner::{Decision, Inputs, Request, choose};
use railnet_coll::variables::{Source, VariableError, Variables};
use railnet_coll::{Algorithm, BuildError, Call, Choice, Fifo, Protocol, Schedule, build};
use railnet_core::event::Sink;
use railnet_core::{Bytes, Rank, Span, Time};
use railnet_fabric::Network;
use railnet_job::run::analytic::{Caller, Caveat, Interconnect, Prediction, Question, predict};
use railnet_nic::Mtu;
use railnet_topology::FabricGraph;

use super::connect::NetSettings;
use super::pending::PendingTable;
use super::put::Transfers;
use super::{Collectives, Communicator, HostResources};
use crate::scenario::{Chosen, CollectiveSection, Scenario, ScenarioError, TransferSection};
use crate::written::Written;

/// One measurement.
#[derive(Debug)]
pub(super) struct Entry {
    /// Which `[[collective]]` of the scenario.
    pub(super) section: usize,
    pub(super) iterations: u32,
    pub(super) parts: Vec<Part>,
    /// What NCCL's cost model says it takes.
    pub(super) estimated: Option<Span>,
    /// What that is when the interconnect is taken into account.
    pub(super) predicted: Option<Prediction>,
    /// What NCCL would say about the choice, where it is asked to.
    pub(super) told: Option<String>,
    /// Why another algorithm runs than was chosen first.
    pub(super) fell_back: Option<String>,
}

/// Ranks that make another call than the others, with what they execute, or none at all.
pub(super) type Differences = Vec<(Rank, Option<Arc<Schedule>>)>;

/// What one group does in a measurement.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) communicator: u32,
    pub(super) schedule: Arc<Schedule>,
    /// Ranks that make another call, or none.
    pub(super) differs: Differences,
}

impl Part {
    /// Whether a rank makes no call.
    pub(super) fn is_absent(&self, rank: Rank) -> bool {
        self.differs.iter().any(|(other, schedule)| *other == rank && schedule.is_none())
    }
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
    pub estimated: Option<Span>,
    /// The same, bounded by what the interconnect carries: what formulas say.
    pub predicted: Option<Span>,
    /// Why packets may differ from that.
    pub caveat: Option<Caveat>,
    /// Why another algorithm ran than was chosen first.
    pub fell_back: Option<String>,
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
            estimated: entry.estimated,
            predicted: entry.predicted.map(|one| one.time),
            caveat: entry.predicted.and_then(|one| one.caveat),
            fell_back: entry.fell_back.clone(),
        }
    }
}

impl Collectives {
    /// Everything that a scenario wants ranks to do, or nothing.
    pub(in crate::run) fn new<S: Sink>(
        network: &mut Network<S>,
        resources: &mut HostResources<'_>,
        scenario: &Scenario,
        ends: &FabricGraph,
    ) -> Result<Option<Self>, ScenarioError> {
        if scenario.collective.is_empty() && scenario.transfer.is_empty() && !scenario.has_jobs() {
            return Ok(None);
        }
        let mtu = Mtu::of_payload(scenario.payload()).ok_or_else(|| ScenarioError::new("no such MTU"))?;
        let variables = scenario.nccl();
        let number = |name: &str| variables.number(name).and_then(|number| u32::try_from(number).ok());
        let config = NetConfig {
            mtu,
            queue_pairs: number("NCCL_IB_QPS_PER_CONNECTION").unwrap_or(1).max(1),
            split: variables.switch("NCCL_IB_SPLIT_DATA_ON_QPS").unwrap_or(false),
            timeout: number("NCCL_IB_TIMEOUT").map_or_else(|| scenario.timeout(), |code| code as u8),
            retry_count: number("NCCL_IB_RETRY_CNT").map_or(scenario.nic.retry_count, |count| count as u8),
            ..NetConfig::default()
        };
        // The lower two bits say that the path understands ECN marks.
        let traffic_class = number("NCCL_IB_TC")
            .filter(|_| scenario.has_ip())
            .map_or(0x02, |class| (class as u8 & !3) | 0x02);
        let mut this = Self {
            seed: scenario.seed,
            everyone: scenario.everyone(ends),
            algorithms: scenario.algorithms.clone(),
            aggregates: scenario.switch_config().aggregation.is_some(),
            interconnect: interconnect(scenario),
            entries: Vec::new(),
            at: 0,
            started: Time::ZERO,
            running: 0,
            last_end: Time::ZERO,
            communicators: Vec::new(),
            members: Vec::new(),
            pairs: Vec::new(),
            pair_names: std::collections::BTreeMap::new(),
            net_pairs: Vec::new(),
            groups: Vec::new(),
            group_names: std::collections::BTreeMap::new(),
            sharps: Vec::new(),
            sharp_names: std::collections::BTreeMap::new(),
            sharp_teams: std::collections::BTreeMap::new(),
            pending: PendingTable::default(),
            applier: railnet_coll::machine::Applier::new(),
            notices: Vec::new(),
            settings: NetSettings { config, traffic_class, mtu_bytes: u64::from(scenario.payload()) },
            transfers: Transfers::beside(scenario.collective.len()),
            driven: super::driven::Driven::new(scenario.has_jobs()),
            earliest: super::earliest::Earliest::default(),
            results: Vec::new(),
            failure: None,
            finished: Time::ZERO,
        };
        for (index, section) in scenario.collective.iter().enumerate() {
            this.plan(network, resources, index, section, ends, variables)
                .map_err(|error| error.within(&format!("collective.{index}")))?;
        }
        for (index, transfer) in scenario.transfer.iter().enumerate() {
            this.plan_transfer(network, resources, index, transfer, ends, variables)
                .map_err(|error| error.within(&format!("transfer.{index}")))?;
        }
        Ok(Some(this))
    }

    fn plan_transfer<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        resources: &mut HostResources<'_>,
        index: usize,
        transfer: &TransferSection,
        ends: &FabricGraph,
        variables: &Variables,
    ) -> Result<(), ScenarioError> {
        let pairs = transfer.pairs(ends)?;
        if let Some(section) = transfer.calls(&pairs) {
            let index = self.transfers.sections + index;
            self.plan(network, resources, index, &section, ends, variables)
                .map_err(|error| ScenarioError::new(error.message).at("to"))?;
        }
        self.plan_put(network, resources, index, transfer, &pairs, variables)
            .map_err(|error| ScenarioError::new(error.to_string()).at("to"))
    }

    fn plan<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        resources: &mut HostResources<'_>,
        index: usize,
        section: &CollectiveSection,
        ends: &FabricGraph,
        variables: &Variables,
    ) -> Result<(), ScenarioError> {
        let groups = section.group_list(ends, &self.everyone)?;
        let asked = section.algorithm.and_then(|Written(Chosen(name))| name);
        let collnet = matches!(asked, Some(Algorithm::CollNetDirect | Algorithm::CollNetChain));
        let mut communicators = Vec::new();
        for ranks in &groups {
            let known = self.communicator(network, resources, ranks, variables, collnet, section.order);
            let known = known.map_err(|error| error.at("ranks"))?;
            self.communicators[known as usize].named.extend(&section.connection);
            communicators.push(known);
        }
        for size in section.sizes() {
            for in_place in section.placement.each(section.kind.0) {
                let entry = self.entry(
                    network,
                    resources,
                    index,
                    section,
                    &communicators,
                    *size,
                    *in_place,
                    variables,
                )?;
                self.entries.push(entry);
            }
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments, reason = "a measurement is these facts")]
    fn entry<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        resources: &mut HostResources<'_>,
        index: usize,
        section: &CollectiveSection,
        communicators: &[u32],
        size: Bytes,
        in_place: bool,
        variables: &Variables,
    ) -> Result<Entry, ScenarioError> {
        let mut parts: Vec<Part> = Vec::new();
        let (mut estimated, mut predicted, mut told, mut fell_back) = (None, None, None, None);
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
                None if let Some(file) = &section.file => {
                    let algorithm = self.algorithms.get(file).expect("a scenario's files are read with it");
                    let schedule = algorithm.schedule(&call, state.wiring.ranks());
                    Arc::new(schedule.map_err(|why| ScenarioError::new(format!("{file}: {why}")).at("file"))?)
                }
                None => {
                    let planned = Self::decide(section, state, &call, variables, true)?;
                    let schedule =
                        build(&call, &planned.choice, &state.wiring).map_err(|error| refused(&error))?;
                    (estimated, predicted) = self.predicted(resources, &planned, communicators);
                    told = planned.told;
                    Arc::new(schedule)
                }
            };
            let schedule = match self.reserve(network, resources, *communicator, &schedule) {
                Ok(()) => schedule,
                Err(why) => {
                    let state = &self.communicators[*communicator as usize];
                    let planned = Self::decide(section, state, &call, variables, false)?;
                    (estimated, predicted) = self.predicted(resources, &planned, communicators);
                    told = planned.told;
                    let other =
                        build(&call, &planned.choice, &state.wiring).map_err(|error| refused(&error))?;
                    let (wanted, instead) = (schedule.algorithm, other.algorithm);
                    fell_back = Some(format!("{wanted} could not run, {instead} ran instead: {why}"));
                    Arc::new(other)
                }
            };
            let differs =
                self.differing(network, resources, section, *communicator, (size, in_place), variables)?;
            parts.push(Part { communicator: *communicator, schedule, differs });
        }
        Ok(Entry {
            section: index,
            iterations: section.iterations,
            parts,
            estimated,
            predicted,
            told,
            fell_back,
        })
    }

    /// What NCCL's cost model says of a call that these groups make at the same time, and what the interconnect makes of it.
    fn predicted(
        &self,
        resources: &HostResources<'_>,
        planned: &Planned,
        communicators: &[u32],
    ) -> (Option<Span>, Option<Prediction>) {
        let Some((inputs, request, decision)) = planned.asked.as_ref() else { return (None, None) };
        let estimated = decision.estimate.map(|estimate| micros(estimate.time_us));
        let cluster = resources.servers.as_deref().and_then(|servers| Some((servers, servers.cluster()?)));
        let (Some(net), Some((servers, cluster))) = (&self.interconnect, cluster) else {
            return (estimated, estimated.map(|time| Prediction { time, caveat: None }));
        };
        let question = Question { net, cluster, inputs, request, decision };
        let caller = |communicator: &u32| {
            let Communicator { ranks, wiring, transports, .. } = &self.communicators[*communicator as usize];
            let places = ranks.iter().map(|endpoint| servers.place_of(*endpoint)).collect();
            Caller { wiring, transports, places }
        };
        let callers: Vec<Caller<'_>> = communicators.iter().map(caller).collect();
        (estimated, predict(&question, &callers))
    }

    /// What those ranks execute whose calls differ from the others'.
    fn differing<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        resources: &mut HostResources<'_>,
        section: &CollectiveSection,
        communicator: u32,
        (size, in_place): (Bytes, bool),
        variables: &Variables,
    ) -> Result<Differences, ScenarioError> {
        let mut differs = Vec::new();
        for (index, one) in section.differs.iter().enumerate() {
            if one.absent {
                differs.push((Rank(one.rank), None));
                continue;
            }
            let (own, at) = (one.of(section), format!("differs.{index}"));
            let state = &self.communicators[communicator as usize];
            let call = own.call(one.size.map_or(size, |size| size.0), state.wiring.ranks(), in_place);
            let planned = Self::decide(&own, state, &call, variables, true).map_err(|error| error.at(&at))?;
            let schedule = build(&call, &planned.choice, &state.wiring)
                .map_err(|error| ScenarioError::new(error.to_string()).at(&at))?;
            self.reserve(network, resources, communicator, &schedule)
                .map_err(|why| ScenarioError::new(why).at(&at))?;
            differs.push((Rank(one.rank), Some(Arc::new(schedule))));
        }
        Ok(differs)
    }

    /// What NCCL would say while these communicators start; nothing unless `NCCL_DEBUG` asks for it.
    pub(in crate::run) fn start_lines(&self, variables: &Variables) -> Vec<String> {
        let mut lines = Vec::new();
        for one in &self.communicators {
            let start = Start::new(&one.cluster, &one.graphs, &one.inputs, variables);
            lines.extend((0..one.inputs.ranks).flat_map(|rank| start.lines(rank)));
        }
        lines.extend(self.entries.iter().filter_map(|entry| entry.told.clone()));
        lines
    }

    /// How a call is to run: as NCCL would choose, within what the scenario leaves open.
    fn decide(
        section: &CollectiveSection,
        state: &super::Communicator,
        call: &Call,
        variables: &Variables,
        may_aggregate: bool,
    ) -> Result<Planned, ScenarioError> {
        let mut algorithm = section.algorithm.and_then(|Written(Chosen(name))| name);
        let protocol = section.protocol.and_then(|Written(Chosen(name))| name);
        if let Some(algorithm) = algorithm
            && !algorithm.does(call.collective)
        {
            return Err(refused(&BuildError::Unsupported { algorithm, collective: call.collective }));
        }
        let request = Request::of(call, state.inputs.ranks);
        let mut inputs = state.inputs.clone();
        if !may_aggregate {
            algorithm = None;
            inputs.settings.collnet = false;
            inputs.collnet.is_enabled = false;
            inputs.collnet.is_available = false;
        }
        // What the scenario says of this call goes before what variables say of all.
        let asked =
            [("NCCL_ALGO", algorithm.map(Algorithm::name)), ("NCCL_PROTO", protocol.map(Protocol::name))];
        let is_tuned = algorithm.is_none_or(|one| Algorithm::TUNED.contains(&one));
        for (name, value) in asked {
            let Some(value) = value.filter(|_| is_tuned) else { continue };
            let pair = (name.to_owned(), value.to_owned());
            let settings =
                Variables::merge([(Source::Option, vec![pair])]).map_err(|error| unknown(&error))?.settings();
            match name {
                "NCCL_ALGO" => inputs.settings.algorithms = settings.algorithms,
                _ => inputs.settings.protocols = settings.protocols,
            }
        }
        let decision = choose(&inputs, &request).map_err(|none| {
            ScenarioError::new(none.to_string()).at(if algorithm.is_some() { "algorithm" } else { "kind" })
        })?;
        let mut choice = decision.choice();
        if !is_tuned {
            let algorithm = algorithm.unwrap_or(choice.algorithm);
            choice =
                Choice { algorithm, protocol: protocol.unwrap_or(choice.protocol), chunk: None, ..choice };
        }
        if let Some(channels) = section.channels {
            choice.channels = channels;
        }
        if let Some(chunk) = section.chunk {
            choice.chunk = Some(chunk.0);
        }
        if let Some(Written(slot)) = section.slot {
            let depth = Protocol::SLOTS;
            choice.fifo = Some(Fifo { slot, depth, slots_per_slice: 1, slices_per_chunk: 1 });
            choice.chunk = section.chunk.map(|chunk| chunk.0);
        }
        let start = Start::new(&state.cluster, &state.graphs, &state.inputs, variables);
        let told = start.decision(&request, &decision);
        let decision = Decision { channels: choice.channels, ..decision };
        let asked = is_tuned.then_some((inputs, request, decision));
        Ok(Planned { choice, asked, told })
    }
}

/// What the cost model sees of the network, where it is asked and GPUs are behind it.
fn interconnect(scenario: &Scenario) -> Option<Interconnect> {
    let has_calls = !scenario.collective.is_empty() || !scenario.transfer.is_empty();
    let has_gpus = scenario.servers().is_ok_and(|cluster| cluster.gpus() > 0);
    (has_calls && has_gpus).then(|| scenario.whole_interconnect().ok()).flatten()
}

/// How a call is to run.
struct Planned {
    choice: Choice,
    /// What the cost model was asked, where it knows the algorithm, and what it chose.
    asked: Option<(Inputs, Request, Decision)>,
    told: Option<String>,
}

fn micros(value: f32) -> Span {
    Span::from_ps((f64::from(value) * 1e6) as u64)
}

fn unknown(error: &VariableError) -> ScenarioError {
    ScenarioError::new(error.to_string())
}

fn refused(error: &BuildError) -> ScenarioError {
    ScenarioError::new(error.to_string()).at("algorithm")
}
