//! Priorities: the eight classes that packets travel in, how a packet's DSCP chooses one, and who goes first.

use std::collections::BTreeMap;
use std::fmt;

use railnet_fabric::{Scheduling, Weights};
use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, Visitor};

use super::{Scenario, ScenarioError};

/// The largest priority.
const PRIORITY_MAX: u8 = 7;
/// The largest DSCP: six bits.
const DSCP_MAX: u8 = 63;
/// The largest weight: more would only make rounds longer.
const WEIGHT_MAX: u32 = 1_000;

/// A list of priorities, such as `[3]`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(transparent)]
pub struct PriorityList(Vec<u8>);

impl PriorityList {
    pub(super) fn check(&self) -> Result<(), ScenarioError> {
        self.0.iter().try_for_each(|priority| check(*priority))
    }

    /// One bit for each.
    pub(crate) fn mask(&self) -> u8 {
        self.0.iter().fold(0, |mask, priority| mask | 1 << (priority & PRIORITY_MAX))
    }
}

fn check(priority: u8) -> Result<(), ScenarioError> {
    if priority > PRIORITY_MAX {
        return Err(ScenarioError::new(format!(
            "there is no priority {priority}: they are 0 to {PRIORITY_MAX}"
        )));
    }
    Ok(())
}

/// `dscp = { 26 = 3, 48 = 6 }`: the priority of packets with this DSCP.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(transparent)]
pub struct DscpMap(BTreeMap<String, u8>);

impl DscpMap {
    pub(super) fn check(&self) -> Result<(), ScenarioError> {
        for (dscp, priority) in &self.0 {
            if number(dscp).is_none() {
                let message = format!("\"{dscp}\" is no DSCP: they are 0 to {DSCP_MAX}, as in {{ 26 = 3 }}");
                return Err(ScenarioError::new(message).at(dscp));
            }
            check(*priority).map_err(|error| error.at(dscp))?;
        }
        Ok(())
    }

    /// Whether it says nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The priority of every DSCP: its upper three bits where the map says nothing.
    pub(super) fn priorities(&self) -> [u8; 64] {
        let mut priorities = std::array::from_fn(|dscp| (dscp >> 3) as u8);
        for (dscp, priority) in &self.0 {
            if let Some(dscp) = number(dscp) {
                priorities[usize::from(dscp)] = *priority;
            }
        }
        priorities
    }
}

fn number(dscp: &str) -> Option<u8> {
    dscp.parse().ok().filter(|dscp| *dscp <= DSCP_MAX)
}

/// `scheduling = "strict"` or `{ weights = […] }`.
#[derive(Clone, Debug, Default)]
pub enum SchedulingSection {
    /// The highest priority first.
    #[default]
    Strict,
    /// By weight.
    Weighted(WeightTable),
}

/// `scheduling = { … }`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WeightTable {
    /// One for each priority, from 0 on.
    pub weights: Vec<u32>,
    /// Priorities that go before all of that.
    #[serde(default)]
    pub strict: PriorityList,
}

impl SchedulingSection {
    pub(super) fn check(&self) -> Result<(), ScenarioError> {
        let Self::Weighted(WeightTable { weights, strict }) = self else { return Ok(()) };
        if weights.len() != 8 {
            let message = format!(
                "there are 8 priorities, and {} weights here: one for each, from 0 on",
                weights.len()
            );
            return Err(ScenarioError::new(message).at("weights"));
        }
        if let Some(place) = weights.iter().position(|weight| !(1..=WEIGHT_MAX).contains(weight)) {
            let message = match weights[place] {
                0 => format!("with a weight of 0 priority {place} would wait for ever: 1 to {WEIGHT_MAX}"),
                weight => format!("a weight of {weight} makes rounds too long: 1 to {WEIGHT_MAX}"),
            };
            return Err(ScenarioError::new(message).at(&format!("weights.{place}")));
        }
        strict.check().map_err(|error| error.at("strict"))
    }

    pub(super) fn scheduling(&self) -> Scheduling {
        let Self::Weighted(table) = self else { return Scheduling::Strict };
        let mut weights = [1; 8];
        for (place, weight) in weights.iter_mut().zip(&table.weights) {
            *place = *weight;
        }
        Scheduling::Weighted(Weights { weights, strict: table.strict.mask() })
    }
}

impl<'de> Deserialize<'de> for SchedulingSection {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SchedulingVisitor)
    }
}

// By hand, because an untagged enum would answer every mistake with "no variant matches".
struct SchedulingVisitor;

impl<'de> Visitor<'de> for SchedulingVisitor {
    type Value = SchedulingSection;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"strict\" or { weights = [1, 1, 1, 4, 1, 1, 1, 1] }")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<SchedulingSection, E> {
        match name {
            "strict" => Ok(SchedulingSection::Strict),
            name => Err(E::unknown_variant(name, &["strict"])),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<SchedulingSection, A::Error> {
        WeightTable::deserialize(MapAccessDeserializer::new(map)).map(SchedulingSection::Weighted)
    }
}

impl Scenario {
    /// The priority of every DSCP, at NICs and switches; on InfiniBand the virtual lane of every service level.
    pub fn priorities(&self) -> [u8; 64] {
        if self.is_infiniband() { self.lanes() } else { self.fabric.dscp.priorities() }
    }

    /// The DSCP that packets in a priority are sent with: the lowest that is mapped to it. On InfiniBand, where a service level has
    /// its place, a priority is one.
    pub(crate) fn dscp_of(&self, priority: u8) -> Result<u8, ScenarioError> {
        check(priority)?;
        if self.is_infiniband() {
            return Ok(priority);
        }
        let found = self.priorities().iter().position(|mapped| *mapped == priority);
        found.map(|dscp| dscp as u8).ok_or_else(|| {
            ScenarioError::new(format!(
                "no DSCP is mapped to priority {priority}: add one to `dscp` of [fabric], as in {{ {} = {priority} }}",
                priority << 3
            ))
        })
    }

    /// The DSCP of traffic that says either of these, or neither.
    pub(crate) fn traffic_dscp(&self, priority: Option<u8>, dscp: Option<u8>) -> Result<u8, ScenarioError> {
        match (priority, dscp) {
            (None, None) => Ok(0),
            (Some(priority), None) => self.dscp_of(priority).map_err(|error| error.at("priority")),
            (None, Some(dscp)) if dscp <= DSCP_MAX => self.check_dscp().map(|()| dscp),
            (None, Some(dscp)) => {
                let message = format!("there is no DSCP {dscp}: they are 0 to {DSCP_MAX}");
                Err(ScenarioError::new(message).at("dscp"))
            }
            (Some(_), Some(_)) => {
                let message = "the DSCP chooses the priority: give `priority` or `dscp`, not both";
                Err(ScenarioError::new(message).at("priority"))
            }
        }
    }
}
