//! Traffic as a list of flows.

use railnet_core::limits::{FLOW_BYTES_MAX, FLOWS_MAX};
use railnet_core::{Bytes, Random, Span, Time};
use railnet_topology::FabricGraph;

use crate::flow_list;
use crate::scenario::{Common, HostName, HostSet, Scenario, ScenarioError, Traffic};

/// Bytes that go from one host to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flow {
    /// The sender.
    pub source: u32,
    /// The receiver.
    pub target: u32,
    /// How many bytes.
    pub bytes: u64,
    /// When it may start.
    pub start: Time,
    /// The DSCP of its packets.
    pub dscp: u8,
    /// The priority that it chooses.
    pub priority: u8,
    /// The flow that must have finished before it starts.
    pub after: Option<u32>,
}

/// Flows, or only how many there are.
struct FlowList {
    flows: Vec<Flow>,
    count: usize,
    is_built: bool,
}

impl FlowList {
    /// Adds so many flows, which are made only where the list is built.
    fn extend<I: IntoIterator<Item = Flow>>(
        &mut self,
        count: usize,
        flows: impl FnOnce(usize) -> I,
    ) -> Result<(), ScenarioError> {
        check_count(count, FLOWS_MAX - self.count)?;
        if self.is_built {
            self.flows.extend(flows(self.flows.len()));
            self.count = self.flows.len();
        } else {
            self.count += count;
        }
        Ok(())
    }
}

/// The flows of a scenario on this fabric.
pub(crate) fn flows(scenario: &Scenario, graph: &FabricGraph) -> Result<Vec<Flow>, ScenarioError> {
    let list = list(scenario, graph, true)?;
    refuse_silence(scenario, list.count)?;
    Ok(list.flows)
}

/// The same, where a scenario need not send anything by itself.
pub(crate) fn flows_if_any(scenario: &Scenario, graph: &FabricGraph) -> Result<Vec<Flow>, ScenarioError> {
    list(scenario, graph, true).map(|list| list.flows)
}

/// Whether a scenario has flows that can run on this fabric. They are counted, not built.
pub(crate) fn check(scenario: &Scenario, graph: &FabricGraph) -> Result<(), ScenarioError> {
    refuse_silence(scenario, list(scenario, graph, false)?.count)
}

/// A scenario in which nothing is sent is a mistake.
fn refuse_silence(scenario: &Scenario, flows: usize) -> Result<(), ScenarioError> {
    let calls = !scenario.collective.is_empty() || !scenario.transfer.is_empty() || scenario.has_jobs();
    if flows == 0 && !calls {
        let message = match scenario.cluster.is_some() {
            true => {
                "nothing is sent: add a [model] for its servers to train, a [[collective]] table, or a [[traffic]] one with a kind, \
                 such as \"incast\""
            }
            false => {
                "nothing is sent: add a [[traffic]] table with a kind, such as \"incast\", or a [[collective]] one"
            }
        };
        return Err(ScenarioError::new(message));
    }
    Ok(())
}

fn list(scenario: &Scenario, graph: &FabricGraph, is_built: bool) -> Result<FlowList, ScenarioError> {
    let mut flows = FlowList { flows: Vec::new(), count: 0, is_built };
    let priorities = scenario.priorities();
    for (index, traffic) in scenario.traffic.iter().enumerate() {
        let within = |error: ScenarioError| error.within(&format!("traffic.{index}"));
        let Common { start, jitter, priority, dscp } = traffic.common();
        let dscp = scenario.traffic_dscp(priority, dscp).map_err(within)?;
        let priority = priorities[usize::from(dscp)];
        let start = Time::ZERO + start;
        let template = Flow { source: 0, target: 0, bytes: 0, start, dscp, priority, after: None };
        let base = flows.flows.len();
        let random = Random::stream(scenario.seed, "traffic", index as u64);
        add(traffic, scenario, graph, &template, random, &mut flows).map_err(within)?;
        let random = Random::stream(scenario.seed, "jitter", index as u64);
        delay(&mut flows.flows[base..], jitter, random);
    }
    Ok(flows)
}

/// Lets each flow that waits for no other start at random up to `jitter` later.
fn delay(flows: &mut [Flow], jitter: Span, mut random: Random) {
    if jitter > Span::ZERO {
        for flow in flows.iter_mut().filter(|flow| flow.after.is_none()) {
            flow.start += Span::from_ps(random.between(0, jitter.as_ps()));
        }
    }
}

fn add(
    traffic: &Traffic,
    scenario: &Scenario,
    graph: &FabricGraph,
    template: &Flow,
    mut random: Random,
    list: &mut FlowList,
) -> Result<(), ScenarioError> {
    let named = |host: &HostName, key: &str| host.find(graph).map_err(|error| error.at(key));
    let plain = |source, target, bytes: Bytes| Flow { source, target, bytes: bytes.as_u64(), ..*template };
    check_bytes(traffic)?;
    match traffic {
        Traffic::Incast { from, to, bytes, .. } => {
            let senders = from.0.numbers(graph).map_err(|error| error.at("from"))?;
            let target = named(to, "to")?;
            let count = senders.iter().filter(|source| **source != target).count();
            let senders = senders.into_iter().filter(|source| *source != target);
            list.extend(count, |_| senders.map(|source| plain(source, target, bytes.0)))?;
        }
        Traffic::Permutation { hosts, bytes, .. } => {
            let members = members(hosts.as_ref(), graph, "a permutation")?;
            list.extend(members.len(), |_| {
                let targets = derangement(members.len(), &mut random);
                let pairs = members.iter().zip(targets);
                pairs.map(|(source, target)| plain(*source, members[target], bytes.0))
            })?;
        }
        Traffic::AllToAll { hosts, bytes, .. } => {
            let members = members(hosts.as_ref(), graph, "an all-to-all")?;
            let count = members.len();
            // Each host begins with its neighbour, so that not all begin with the same receiver.
            let pairs =
                (1..count).flat_map(|step| (0..count).map(move |place| (place, (place + step) % count)));
            list.extend(count.saturating_mul(count - 1), |_| {
                pairs.map(|(source, target)| plain(members[source], members[target], bytes.0))
            })?;
        }
        Traffic::Ring { hosts, bytes, .. } => {
            let members = members(hosts.as_ref(), graph, "a ring")?;
            let count = members.len().saturating_mul(2 * (members.len() - 1));
            list.extend(count, |base| ring(&members, bytes.0, plain, base))?;
        }
        Traffic::Flow { from, to, bytes, .. } => {
            let (source, target) = (named(from, "from")?, named(to, "to")?);
            if source == target {
                let message = format!("a flow from host {source} to itself crosses no network");
                return Err(ScenarioError::new(message).at("to"));
            }
            list.extend(1, |_| [plain(source, target, bytes.0)])?;
        }
        Traffic::List { file, .. } => {
            let dscp_of = |priority| scenario.dscp_of(priority);
            let left = FLOWS_MAX - list.count;
            let read = flow_list::read(&scenario.file(file), graph, template, dscp_of, left)?;
            if let Some(flow) = read.iter().find(|flow| flow.bytes > FLOW_BYTES_MAX) {
                return Err(too_long(Bytes(flow.bytes), "file"));
            }
            list.extend(read.len(), |_| read)?;
        }
    }
    Ok(())
}

fn check_bytes(traffic: &Traffic) -> Result<(), ScenarioError> {
    match traffic {
        Traffic::Incast { bytes, .. }
        | Traffic::Permutation { bytes, .. }
        | Traffic::AllToAll { bytes, .. }
        | Traffic::Ring { bytes, .. }
        | Traffic::Flow { bytes, .. }
            if bytes.0.as_u64() > FLOW_BYTES_MAX =>
        {
            Err(too_long(bytes.0, "bytes"))
        }
        _ => Ok(()),
    }
}

fn too_long(bytes: Bytes, key: &str) -> ScenarioError {
    let limit = Bytes(FLOW_BYTES_MAX);
    ScenarioError::new(format!("a flow of {bytes} is too long: {limit} is the limit")).at(key)
}

/// The hosts of a table, two at least.
fn members(set: Option<&HostSet>, graph: &FabricGraph, what: &str) -> Result<Vec<u32>, ScenarioError> {
    let members = HostSet::numbers(set, graph)?;
    if members.len() < 2 {
        return Err(ScenarioError::new(format!("{what} needs two hosts at least")).at("hosts"));
    }
    Ok(members)
}

fn ring(members: &[u32], bytes: Bytes, plain: impl Fn(u32, u32, Bytes) -> Flow, base: usize) -> Vec<Flow> {
    let (mut flows, count) = (Vec::new(), members.len());
    let part = Bytes(bytes.as_u64().div_ceil(count as u64));
    for step in 0..2 * (count - 1) {
        for place in 0..count {
            // What it passes on came from its neighbour in the step before.
            let before = (place + count - 1) % count;
            let after = step.checked_sub(1).map(|earlier| (base + earlier * count + before) as u32);
            let flow = plain(members[place], members[(place + 1) % count], part);
            flows.push(Flow { after, ..flow });
        }
    }
    flows
}

/// An error where a table would bring more flows than are run.
fn check_count(count: usize, left: usize) -> Result<(), ScenarioError> {
    if count > left {
        let message = format!("{count} flows here are too many: a run has at most {FLOWS_MAX} in all");
        return Err(ScenarioError::new(message).at("kind"));
    }
    Ok(())
}

/// A random permutation in which nobody stays in place.
fn derangement(count: usize, random: &mut Random) -> Vec<usize> {
    // Sattolo's algorithm: one cycle through all, so nobody keeps its own.
    let mut targets: Vec<usize> = (0..count).collect();
    for last in (1..count).rev() {
        targets.swap(last, random.below(last as u64) as usize);
    }
    targets
}
