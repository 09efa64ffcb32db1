//! `fabric.switch`: memory, flow control, marking.

use std::fmt;

use railnet_core::{Bytes, Rate, Ratio};
use railnet_fabric::{AggregationConfig, FlowControl, Marking, MarksAt, SwitchConfig};
use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, Visitor};

use super::control::RatioVisitor;
use super::priorities::PriorityList;
use super::{Scenario, ScenarioError};
use crate::written::Written;

/// The most memory a switch may have.
const BUFFER_MAX: Bytes = Bytes(1_000_000_000_000);
/// The most that may be set aside for a port.
const SET_ASIDE_MAX: Bytes = Bytes(1_000_000_000);
/// The least memory a switch has that is not told how much.
const BUFFER_LEAST: Bytes = Bytes(16_000_000);

/// `switch = { … }`.
#[derive(Clone, Debug, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub struct SwitchSection {
    /// All of its packet memory; 32 MB for each 100 Gb/s of a link by default, and 16 MB at least.
    pub buffer: Option<Written<Bytes>>,
    /// Guaranteed to each (port, priority).
    pub reserve: Option<Written<Bytes>>,
    /// Kept free for each (port, priority) that is paused.
    pub headroom: Option<Written<Bytes>>,
    /// What of the free shared memory one port and priority may use: 1/128 to 8, a power of two.
    pub alpha: Option<Alpha>,
    /// The most that one port and priority may use of it.
    pub pause_at: Option<Written<Bytes>>,
    /// How far below the threshold a queue must fall before its sender may go on.
    pub resume_offset: Option<Written<Bytes>>,
    /// `"pfc"`, `"credits"` or `"none"`.
    pub flow_control: Option<FlowControlName>,
    /// The priorities that flow control is for; all by default.
    pub lossless: Option<PriorityList>,
    /// Thresholds of ECN marking, or `false` for none.
    pub ecn: Option<EcnSection>,
    /// When a packet is looked at to mark it.
    pub marks_at: MarksAtName,
    /// Forward when the header is there.
    pub cut_through: bool,
    /// Whether switches reduce what passes them, as SHARP does, and how.
    pub aggregation: Option<AggregationSection>,
}

/// `aggregation = { … }`.
#[derive(Clone, Debug, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub struct AggregationSection {
    /// Groups that a switch can serve at once.
    pub contexts: Option<u32>,
    /// The pieces in which data is reduced.
    pub segment: Option<Written<Bytes>>,
    /// Pieces that a member may have under way.
    pub slots: Option<u32>,
    /// What a switch can take in for reduction; as much as all of its ports by default.
    pub rate: Option<Written<Rate>>,
}

/// The longest piece in which a switch reduces.
const SEGMENT_MAX: Bytes = Bytes(1 << 20);
/// The most pieces of a member under way.
const SEGMENTS_MAX: u32 = 1 << 12;

impl AggregationSection {
    fn check(&self) -> Result<(), ScenarioError> {
        let wrong = |key: &str, message: String| Err(ScenarioError::new(message).at(key));
        if self.segment.is_some_and(|one| one.0 == Bytes::ZERO || one.0 > SEGMENT_MAX) {
            return wrong("segment", format!("a switch reduces pieces of 1 B to {SEGMENT_MAX}"));
        }
        if self.slots.is_some_and(|slots| !(1..=SEGMENTS_MAX).contains(&slots)) {
            return wrong("slots", format!("a member has 1 to {SEGMENTS_MAX} pieces under way"));
        }
        if self.rate.is_some_and(|rate| rate.0 == Rate::ZERO) {
            return wrong("rate", "a switch that takes nothing in reduces nothing".to_owned());
        }
        Ok(())
    }

    fn config(&self) -> AggregationConfig {
        let usual = AggregationConfig::default();
        AggregationConfig {
            contexts: self.contexts.unwrap_or(usual.contexts),
            segment: self.segment.map_or(usual.segment, |bytes| bytes.0),
            slots: self.slots.unwrap_or(usual.slots),
            rate: self.rate.map(|rate| rate.0),
        }
    }
}

/// `flow_control = "…"`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FlowControlName {
    /// Pause frames.
    Pfc,
    /// Credits.
    Credits,
    /// Nothing: packets are dropped.
    None,
}

/// `alpha = "1/8"`, as the shift that it amounts to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Alpha(i8);

impl<'de> Deserialize<'de> for Alpha {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let ratio = deserializer.deserialize_any(RatioVisitor)?;
        let shift = (-3..=7i8).find(|shift| {
            let (up, down) = (1u64 << (-shift).max(0), 1u64 << shift.max(&0));
            Ratio::new(up, down) == ratio
        });
        shift.map(Self).ok_or_else(|| {
            D::Error::custom(format!("{ratio} is no alpha of a switch: a power of two from \"1/128\" to 8"))
        })
    }
}

/// `marks_at = "…"`.
#[derive(Clone, Copy, Debug, Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
pub enum MarksAtName {
    /// As it joins the queue.
    Arrival,
    /// As it leaves the queue.
    #[default]
    Departure,
}

/// `ecn = { … }` or `ecn = false`.
#[derive(Clone, Debug)]
pub enum EcnSection {
    /// On with thresholds for the rate, or off.
    Switch(bool),
    /// Thresholds.
    Thresholds(EcnThresholds),
}

/// `ecn = { … }`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EcnThresholds {
    /// Below this nothing is marked.
    pub kmin: Written<Bytes>,
    /// Above this everything is.
    pub kmax: Written<Bytes>,
    /// The chance just below `kmax`.
    pub pmax: f64,
}

impl<'de> Deserialize<'de> for EcnSection {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(EcnVisitor)
    }
}

// By hand, because an untagged enum would answer every mistake with "no variant matches".
struct EcnVisitor;

impl<'de> Visitor<'de> for EcnVisitor {
    type Value = EcnSection;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("true, false or { kmin = \"400KB\", kmax = \"1600KB\", pmax = 0.2 }")
    }

    fn visit_bool<E: serde::de::Error>(self, is_on: bool) -> Result<EcnSection, E> {
        Ok(EcnSection::Switch(is_on))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<EcnSection, A::Error> {
        EcnThresholds::deserialize(MapAccessDeserializer::new(map)).map(EcnSection::Thresholds)
    }
}

impl SwitchSection {
    pub(super) fn check(&self) -> Result<(), ScenarioError> {
        let amounts = [
            ("buffer", self.buffer, BUFFER_MAX),
            ("reserve", self.reserve, SET_ASIDE_MAX),
            ("headroom", self.headroom, SET_ASIDE_MAX),
            ("pause_at", self.pause_at, BUFFER_MAX),
            ("resume_offset", self.resume_offset, BUFFER_MAX),
        ];
        for (key, amount, most) in amounts {
            if let Some(amount) = amount.filter(|amount| amount.0 > most) {
                let message = format!("{} is more than any switch has: at most {most}", amount.0);
                return Err(ScenarioError::new(message).at(key));
            }
        }
        if let Some(aggregation) = &self.aggregation {
            aggregation.check().map_err(|error| error.within("aggregation"))?;
        }
        if let Some(EcnSection::Thresholds(EcnThresholds { kmin, kmax, pmax })) = &self.ecn
            && (kmin.0 > kmax.0 || kmax.0 > BUFFER_MAX || !(0.0..=1.0).contains(pmax))
        {
            let message = format!("ecn needs kmin ≤ kmax ≤ {BUFFER_MAX}, and pmax between 0 and 1");
            return Err(ScenarioError::new(message).at("ecn"));
        }
        self.lossless.as_ref().map_or(Ok(()), |list| list.check().map_err(|error| error.at("lossless")))
    }
}

impl Scenario {
    /// What keeps packets from being dropped, by name.
    pub fn flow_control_name(&self) -> FlowControlName {
        self.fabric.switch.flow_control.unwrap_or(self.choices().flow_control)
    }

    /// Whether links have credits, and not pauses.
    pub fn uses_credits(&self) -> bool {
        matches!(self.flow_control_name(), FlowControlName::Credits)
    }

    /// The configuration of the switches.
    pub fn switch_config(&self) -> SwitchConfig {
        let section = &self.fabric.switch;
        let default = SwitchConfig::default();
        let rate = self.fabric.link.rate.0;
        let usual = self.control_name().marking(rate);
        let (marks, marking) = match &section.ecn {
            None => (self.choices().ecn, usual),
            Some(EcnSection::Switch(is_on)) => (*is_on, usual),
            Some(EcnSection::Thresholds(EcnThresholds { kmin, kmax, pmax })) => {
                (true, Some(Marking { low: kmin.0, high: kmax.0, most: (pmax * 1e6) as u32 }))
            }
        };
        SwitchConfig {
            // As the HPCC runs have it: 16 MB for each 50 Gb/s, which is a byte for each 3125 bit/s.
            buffer: section.buffer.map_or(Bytes(rate.as_bps() / 3_125).max(BUFFER_LEAST), |bytes| bytes.0),
            reserve: section.reserve.map_or(default.reserve, |bytes| bytes.0),
            headroom: section.headroom.map(|bytes| bytes.0),
            // A static threshold alone: all of the free memory is below it.
            shift: section
                .alpha
                .map_or(if section.pause_at.is_some() { 0 } else { default.shift }, |alpha| alpha.0),
            pause_at: section.pause_at.map(|bytes| bytes.0),
            resume_offset: section.resume_offset.map_or(default.resume_offset, |bytes| bytes.0),
            flow_control: match self.flow_control_name() {
                FlowControlName::Pfc => FlowControl::Pfc,
                FlowControlName::Credits => FlowControl::Credits,
                FlowControlName::None => FlowControl::None,
            },
            lossless: section.lossless.as_ref().map_or(default.lossless, PriorityList::mask),
            scheduling: self.fabric.scheduling.scheduling(),
            marks,
            marking,
            marks_at: match section.marks_at {
                MarksAtName::Arrival => MarksAt::Arrival,
                MarksAtName::Departure => MarksAt::Departure,
            },
            cut_through: section.cut_through,
            aggregation: section.aggregation.as_ref().map(AggregationSection::config),
            routing: self.routing(),
            ..default
        }
    }
}
