//! `[fabric]`: links, routing, and how lengths are counted.

use railnet_core::{Bytes, Rate, Span};
use railnet_fabric::Routing;
use railnet_topology::fabric::{LinkOverride, LinkSpec};
use serde::Deserialize;

use super::framing::{FramingName, InfinibandSection};
use super::priorities::{DscpMap, SchedulingSection};
use super::switch::SwitchSection;
use super::{Scenario, ScenarioError, Topology};
use crate::written::Written;

/// The fastest link: a hundred times what is built.
const RATE_MAX: Rate = Rate::gbps(100_000);
/// The most that may be on the way on a link.
const ON_THE_WAY_MAX: Bytes = Bytes(1_000_000_000);

/// `[fabric]`.
#[derive(Clone, Debug, Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub struct FabricSection {
    /// Its shape.
    #[serde(default)]
    pub topology: Topology,
    /// Its links.
    #[serde(default)]
    pub link: LinkSection,
    /// Its switches.
    #[serde(default)]
    pub switch: SwitchSection,
    /// How a switch chooses among equal paths.
    #[serde(default)]
    pub routing: Option<RoutingName>,
    /// By what hash it chooses where it goes by one.
    #[serde(default)]
    pub hash: HashName,
    /// Which priority a DSCP travels in.
    #[serde(default)]
    pub dscp: DscpMap,
    /// Which priority goes first, at switches and NICs.
    #[serde(default)]
    pub scheduling: SchedulingSection,
    /// What carries packets, and how their length is counted.
    #[serde(default)]
    pub framing: Option<FramingName>,
    /// What a subnet manager chooses, where packets travel on InfiniBand links.
    #[serde(default)]
    pub infiniband: InfinibandSection,
}

impl FabricSection {
    pub(super) fn check(&self) -> Result<(), ScenarioError> {
        if self.routing == Some(RoutingName::Valiant) && !matches!(self.topology, Topology::Dragonfly { .. })
        {
            let message =
                "detours by way of another group need groups: \"valiant\" is for the kind \"dragonfly\"";
            return Err(ScenarioError::new(message).at("routing"));
        }
        if self.hash == HashName::Ns3 && !matches!(self.routing, None | Some(RoutingName::Ecmp)) {
            let message = "ns-3's hash chooses paths where nothing else does: it goes with routing \"ecmp\"";
            return Err(ScenarioError::new(message).at("hash"));
        }
        self.link.check().map_err(|error| error.within("link"))?;
        self.switch.check().map_err(|error| error.within("switch"))?;
        self.infiniband.check().map_err(|error| error.within("infiniband"))?;
        self.dscp.check().map_err(|error| error.within("dscp"))?;
        self.scheduling.check().map_err(|error| error.within("scheduling"))
    }
}

/// `link = { … }`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LinkSection {
    /// Of every link.
    pub rate: Written<Rate>,
    /// One way.
    pub delay: Written<Span>,
    /// How likely each packet is lost.
    pub loss: f64,
    /// How likely each bit is flipped.
    pub bit_error_rate: f64,
    /// What differs between hosts and switches.
    pub edge: LinkOverrides,
    /// What differs between leaves and the tier above.
    pub up: LinkOverrides,
    /// What differs between the upper tiers of three.
    pub core: LinkOverrides,
    /// What differs inside a group of a dragonfly.
    pub local: LinkOverrides,
    /// What differs between groups of a dragonfly.
    pub global: LinkOverrides,
}

/// `up = { rate = "400Gbps" }`.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LinkOverrides {
    /// Their rate.
    pub rate: Option<Written<Rate>>,
    /// Their delay.
    pub delay: Option<Written<Span>>,
}

impl Default for LinkSection {
    fn default() -> Self {
        Self {
            rate: Written(Rate::gbps(100)),
            delay: Written(Span::from_us(1)),
            loss: 0.0,
            bit_error_rate: 0.0,
            edge: LinkOverrides::default(),
            up: LinkOverrides::default(),
            core: LinkOverrides::default(),
            local: LinkOverrides::default(),
            global: LinkOverrides::default(),
        }
    }
}

impl LinkSection {
    /// The kinds of links that may differ from the rest.
    fn kinds(&self) -> [(&'static str, LinkOverrides); 5] {
        let Self { edge, up, core, local, global, .. } = *self;
        [("edge", edge), ("up", up), ("core", core), ("local", local), ("global", global)]
    }

    pub(super) fn check(&self) -> Result<(), ScenarioError> {
        check_rate(self.rate.0)?;
        check_amount(self.rate.0, self.delay.0)?;
        for (kind, LinkOverrides { rate, delay }) in self.kinds() {
            let within = |error: ScenarioError| error.within(kind);
            let (rate, delay) = (rate.unwrap_or(self.rate).0, delay.unwrap_or(self.delay).0);
            check_rate(rate).map_err(within)?;
            check_amount(rate, delay).map_err(within)?;
        }
        Ok(())
    }

    /// What each kind of link is like.
    pub(super) fn spec(&self) -> LinkSpec {
        let [edge, up, core, local, global] = self.kinds().map(|(_, kind)| LinkOverride {
            rate: kind.rate.map(|rate| rate.0),
            delay: kind.delay.map(|delay| delay.0),
        });
        LinkSpec { edge, up, core, local, global, ..LinkSpec::new(self.rate.0, self.delay.0) }
    }
}

/// An error where no link has such a rate.
pub(super) fn check_rate(rate: Rate) -> Result<(), ScenarioError> {
    let message = match rate {
        Rate::ZERO => "a link rate of 0 moves nothing: give `rate` such as \"100Gbps\"".to_owned(),
        rate if rate > RATE_MAX => format!("no link has {rate}: at most {RATE_MAX}"),
        _ => return Ok(()),
    };
    Err(ScenarioError::new(message).at("rate"))
}

/// An error where a link holds more than a switch could take in.
pub(super) fn check_amount(rate: Rate, delay: Span) -> Result<(), ScenarioError> {
    if rate.bytes_in(delay * 3) > ON_THE_WAY_MAX {
        let message = format!(
            "{delay} of delay at {rate} hold more than a switch could: three delays' worth may be {ON_THE_WAY_MAX} at most"
        );
        return Err(ScenarioError::new(message).at("delay"));
    }
    Ok(())
}

/// `routing = "…"`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RoutingName {
    /// By a hash of the five-tuple.
    Ecmp,
    /// By a hash, until a connection paused.
    Flowlet,
    /// The shortest queue.
    Adaptive,
    /// Any, packet by packet.
    Spray,
    /// In a dragonfly, by way of a random group.
    Valiant,
    /// On InfiniBand, by the subnet manager's linear forwarding tables.
    Lft,
}

/// `hash = "…"`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
pub enum HashName {
    /// One of Railnet's, which depends on the seed.
    #[default]
    Seeded,
    /// That of the HPCC paper's ns-3.
    #[serde(rename = "ns-3")]
    Ns3,
}

impl RoutingName {
    /// Whether packets of one connection may overtake each other.
    pub(super) fn spreads(self) -> bool {
        !matches!(self, Self::Ecmp | Self::Valiant | Self::Lft)
    }
}

impl Scenario {
    /// What the links of hosts carry, where a list of links says nothing else.
    pub fn edge_rate(&self) -> Rate {
        self.nic.rate.or(self.fabric.link.edge.rate).unwrap_or(self.fabric.link.rate).0
    }

    /// How switches choose among equal paths, by name.
    pub fn routing_name(&self) -> RoutingName {
        self.fabric.routing.unwrap_or(self.choices().routing)
    }

    pub(crate) fn routing(&self) -> Routing {
        match self.routing_name() {
            RoutingName::Ecmp if self.fabric.hash == HashName::Ns3 => Routing::Murmur3,
            RoutingName::Ecmp => Routing::Ecmp,
            RoutingName::Flowlet => Routing::Flowlet(Span::from_us(50)),
            RoutingName::Adaptive => Routing::Adaptive,
            RoutingName::Spray => Routing::Spray,
            RoutingName::Valiant => Routing::Valiant,
            RoutingName::Lft => self.tables(),
        }
    }
}
