//! Traffic as a list of flows.

use railnet_core::{Bytes, Random, Time};
use railnet_topology::FabricGraph;

use crate::scenario::{HostName, Scenario, ScenarioError, Traffic};

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

/// More flows than a run has: they would take 1 GB.
const FLOWS_MAX: u64 = 1 << 24;

/// The flows of a scenario on this fabric.
pub(crate) fn flows(scenario: &Scenario, graph: &FabricGraph) -> Result<Vec<Flow>, ScenarioError> {
    let mut flows = Vec::new();
    let priorities = scenario.priorities();
    for (index, traffic) in scenario.traffic.iter().enumerate() {
        let dice = Random::stream(scenario.seed, "traffic", index as u64);
        let within = |error: ScenarioError| error.within(&format!("traffic.{index}"));
        let common = traffic.common();
        let dscp = scenario.traffic_dscp(common.priority, common.dscp).map_err(within)?;
        let priority = priorities[usize::from(dscp)];
        let start = Time::ZERO + common.start;
        let template = Flow { source: 0, target: 0, bytes: 0, start, dscp, priority, after: None };
        add(traffic, graph, template, dice, &mut flows).map_err(within)?;
    }
    if flows.is_empty() {
        return Err(ScenarioError::new(
            "nothing is sent: add a [[traffic]] table with a kind, such as \"incast\"",
        ));
    }
    Ok(flows)
}

fn add(
    traffic: &Traffic,
    graph: &FabricGraph,
    template: Flow,
    mut dice: Random,
    flows: &mut Vec<Flow>,
) -> Result<(), ScenarioError> {
    let hosts = graph.hosts.len() as u32;
    let named = |host: &HostName, key: &str| host.find(graph).map_err(|error| error.at(key));
    let exists = |host: u32, key: &str| named(&HostName::Number(host), key);
    check_count(traffic, hosts, flows.len())?;
    let plain = |source, target, bytes: Bytes| Flow { source, target, bytes: bytes.as_u64(), ..template };
    match traffic {
        Traffic::Incast { from, to, bytes, .. } => {
            exists(from.0.last, "from")?;
            let target = named(to, "to")?;
            let senders = (from.0.first..=from.0.last).filter(|source| *source != target);
            flows.extend(senders.map(|source| plain(source, target, bytes.0)));
        }
        Traffic::Permutation { bytes, .. } => {
            let targets = derangement(hosts, &mut dice)?;
            let pairs = targets.into_iter().enumerate();
            flows.extend(pairs.map(|(source, target)| plain(source as u32, target, bytes.0)));
        }
        Traffic::AllToAll { bytes, .. } => {
            // Each host begins with its neighbour, so that not all begin with the same receiver.
            for step in 1..hosts {
                let pair = |source: u32| (source, (source + step) % hosts);
                flows.extend((0..hosts).map(pair).map(|(source, target)| plain(source, target, bytes.0)));
            }
        }
        Traffic::Ring { bytes, hosts: ring, .. } => {
            let ring = ring.unwrap_or(hosts);
            if ring < 2 {
                return Err(ScenarioError::new("a ring needs two hosts at least").at("hosts"));
            }
            exists(ring - 1, "hosts")?;
            let base = flows.len() as u32;
            let part = Bytes(bytes.0.as_u64().div_ceil(u64::from(ring)));
            for step in 0..2 * (ring - 1) {
                for source in 0..ring {
                    // What it passes on came from its neighbour in the step before.
                    let before = (source + ring - 1) % ring;
                    let after = step.checked_sub(1).map(|earlier| base + earlier * ring + before);
                    let flow = plain(source, (source + 1) % ring, part);
                    flows.push(Flow { after, ..flow });
                }
            }
        }
        Traffic::Flow { from, to, bytes, .. } => {
            let (source, target) = (named(from, "from")?, named(to, "to")?);
            if source == target {
                let message = format!("a flow from host {source} to itself crosses no network");
                return Err(ScenarioError::new(message).at("to"));
            }
            flows.push(plain(source, target, bytes.0));
        }
    }
    Ok(())
}

/// An error where a table would bring more flows than are run.
fn check_count(traffic: &Traffic, hosts: u32, already: usize) -> Result<(), ScenarioError> {
    let hosts = u64::from(hosts);
    let count = match traffic {
        Traffic::Incast { .. } | Traffic::Permutation { .. } => hosts,
        Traffic::AllToAll { .. } => hosts * hosts.saturating_sub(1),
        Traffic::Ring { hosts: ring, .. } => {
            let ring = ring.map_or(hosts, u64::from).min(hosts);
            2 * ring * ring.saturating_sub(1)
        }
        Traffic::Flow { .. } => 1,
    };
    if already as u64 + count > FLOWS_MAX {
        let message = format!("{count} flows here are too many: a run has at most {FLOWS_MAX} in all");
        return Err(ScenarioError::new(message).at("kind"));
    }
    Ok(())
}

/// A random permutation in which nobody sends to itself.
fn derangement(hosts: u32, dice: &mut Random) -> Result<Vec<u32>, ScenarioError> {
    if hosts < 2 {
        return Err(ScenarioError::new("a permutation needs two hosts at least"));
    }
    // Sattolo's algorithm: one cycle through all hosts, so nobody keeps its own.
    let mut targets: Vec<u32> = (0..hosts).collect();
    for last in (1..hosts as usize).rev() {
        targets.swap(last, dice.below(last as u64) as usize);
    }
    Ok(targets)
}
