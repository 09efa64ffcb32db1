//! A scenario as a value: sections with defaults, serialisable both ways.

use railnet_core::{Bytes, Rate, Span};
use railnet_sim::{Scenario, ScenarioError};
use serde::{Deserialize, Serialize};
use toml::Table;

use super::quantity;

/// Why a [`ScenarioSpec`] is no scenario.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// A value that a file cannot hold.
    #[error("it cannot be written as a file: {0}")]
    Unwritable(#[from] toml::ser::Error),
    /// A key or a value that no scenario has.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
}

/// A scenario as a value. All that it does not say has the default of docs/scenarios.md.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ScenarioSpec {
    /// The root of all randomness; 1 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// How jobs run: `"packet"` or `"analytic"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fidelity: Option<String>,
    /// Steps of every job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<u32>,
    /// The network between the hosts; rails between the servers of `cluster` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fabric: Option<FabricSpec>,
    /// The NICs of the hosts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nic: Option<NicSpec>,
    /// The servers behind the NICs; by default a host is a NIC with memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterSpec>,
    /// What a job trains.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelSpec>,
    /// How it trains that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub training: Option<TrainingSpec>,
    /// How it is spread over its GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parallel: Option<ParallelSpec>,
    /// Flows.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub traffic: Vec<TrafficSpec>,
    /// Collectives, one after the other.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub collective: Vec<CollectiveSpec>,
    /// What goes wrong.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<FaultSpec>,
    /// Every other key.
    #[serde(flatten)]
    pub more: Table,
}

impl ScenarioSpec {
    /// Reads a scenario file, to change it before it is built. Keys that no scenario has are found by [`Self::build`].
    pub fn from_toml(text: &str) -> Result<Self, toml::de::Error> {
        toml::from_str(text)
    }

    /// Writes the scenario as a file.
    ///
    /// ```
    /// use railnet::sim::{ScenarioSpec, TrafficSpec};
    /// use railnet::units::Bytes;
    ///
    /// let traffic = vec![TrafficSpec::all_to_all(Bytes(64_000))];
    /// let spec = ScenarioSpec { seed: Some(7), traffic, ..ScenarioSpec::default() };
    /// let text = spec.to_toml()?;
    /// assert_eq!(text, "seed = 7\n\n[[traffic]]\nkind = \"all-to-all\"\nbytes = \"64KB\"\n");
    /// assert_eq!(ScenarioSpec::from_toml(&text)?, spec);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(self)
    }

    /// Checks it, as a file is checked. It may not name files: read those with [`Scenario::parse_with`].
    pub fn build(&self) -> Result<Scenario, SpecError> {
        Ok(Scenario::parse(&self.to_toml()?)?)
    }
}

/// The network between the hosts.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct FabricSpec {
    /// The shape.
    pub topology: TopologySpec,
    /// Its links.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<LinkSpec>,
    /// Its switches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switch: Option<SwitchSpec>,
    /// How a switch chooses among equal paths: `"ecmp"`, `"flowlet"`, `"adaptive"`, `"spray"`, …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routing: Option<String>,
    /// Every other key.
    #[serde(flatten)]
    pub more: Table,
}

impl Default for FabricSpec {
    /// Two hosts on one switch.
    fn default() -> Self {
        let topology = TopologySpec::SingleSwitch { hosts: 2 };
        Self { topology, link: None, switch: None, routing: None, more: Table::new() }
    }
}

/// The shape of a fabric.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum TopologySpec {
    /// All hosts on one switch.
    SingleSwitch {
        /// Hosts.
        hosts: u32,
    },
    /// Leaves with hosts, and spines that join them.
    LeafSpine {
        /// Leaf switches.
        leaves: u32,
        /// Hosts on each of them.
        hosts_per_leaf: u32,
        /// Spine switches.
        spines: u32,
        /// Links between a leaf and a spine; 1 by default.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        links_per_spine: Option<u32>,
    },
    /// A fat-tree of switches with `k` ports.
    FatTree {
        /// Ports of every switch.
        k: u32,
        /// Tiers, 2 or 3; 3 by default.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tiers: Option<u32>,
    },
    /// A leaf for each NIC of a group of servers, and spines.
    RailOptimised {
        /// Servers.
        nodes: u32,
        /// NICs of each.
        rails: u32,
        /// Servers that share a leaf for each rail.
        nodes_per_group: u32,
        /// Spine switches.
        spines: u32,
        /// Links between a leaf and a spine; 1 by default.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        links_per_spine: Option<u32>,
    },
    /// Groups of routers, joined by global links.
    Dragonfly {
        /// Groups.
        groups: u32,
        /// Routers of each.
        routers: u32,
        /// Hosts of a router.
        hosts: u32,
        /// Links of a router to other groups.
        global_links: u32,
    },
}

/// The links of a fabric.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LinkSpec {
    /// What each direction carries.
    #[serde(with = "quantity", skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// How long a bit travels.
    #[serde(with = "quantity", skip_serializing_if = "Option::is_none")]
    pub delay: Option<Span>,
    /// The chance of each packet to be lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Every other key.
    #[serde(flatten)]
    pub more: Table,
}

/// The switches of a fabric.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SwitchSpec {
    /// All of its packet memory.
    #[serde(with = "quantity", skip_serializing_if = "Option::is_none")]
    pub buffer: Option<Bytes>,
    /// What keeps packets from being dropped: `"pfc"`, `"credits"` or `"none"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flow_control: Option<String>,
    /// Every other key.
    #[serde(flatten)]
    pub more: Table,
}

/// The NICs of the hosts.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NicSpec {
    /// Congestion control: `"none"`, `"dcqcn"`, `"timely"`, `"swift"`, `"hpcc"`, …
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control: Option<String>,
    /// What a receiver does with packets out of order: `"go-back-n"`, `"selective-repeat"`, …
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recovery: Option<String>,
    /// Payload bytes of a full packet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Every other key.
    #[serde(flatten)]
    pub more: Table,
}

/// The servers behind the NICs.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterSpec {
    /// A server of the catalogue, such as `"dgx-h100"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// How many; as many as the fabric has ports for by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u32>,
    /// What carries data between servers: `"rdma"` or `"tcp"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transport: Option<String>,
    /// Every other key.
    #[serde(flatten)]
    pub more: Table,
}

/// What a job trains.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelSpec {
    /// A model of the catalogue, such as `"llama-3-70b"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its transformer layers, where they are not the catalogue's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layers: Option<u32>,
    /// Every other key.
    #[serde(flatten)]
    pub more: Table,
}

/// How a job trains.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TrainingSpec {
    /// Sequences that a rank computes with at a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub micro_batch: Option<u32>,
    /// Sequences of a step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub global_batch: Option<u32>,
    /// What is computed again in the backward pass: `"none"`, `"selective"` or `"full"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recompute: Option<String>,
    /// Every other key.
    #[serde(flatten)]
    pub more: Table,
}

/// How a job is spread over its GPUs.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ParallelSpec {
    /// Ranks that share each matrix.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tp: Option<u32>,
    /// Stages of the pipeline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pp: Option<u32>,
    /// Data-parallel ranks; all that are left by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dp: Option<u32>,
    /// Data-parallel ranks that share the experts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ep: Option<u32>,
    /// What data-parallel ranks share out: 0 nothing, 1 the optimiser, 2 gradients too, 3 parameters too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zero: Option<u32>,
    /// Every other key.
    #[serde(flatten)]
    pub more: Table,
}

/// Flows of one kind.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TrafficSpec {
    /// `"incast"`, `"permutation"`, `"all-to-all"`, `"ring"` or `"flow"`.
    pub kind: String,
    /// What each sends, or what a ring reduces.
    #[serde(with = "quantity::must")]
    pub bytes: Bytes,
    /// Every other key, such as `from`, `to` and `priority`.
    #[serde(flatten)]
    pub more: Table,
}

impl TrafficSpec {
    fn new(kind: &str, bytes: Bytes) -> Self {
        Self { kind: kind.to_owned(), bytes, more: Table::new() }
    }

    /// Hosts such as `"0..15"` send to one.
    #[must_use]
    pub fn incast(from: &str, to: u32, bytes: Bytes) -> Self {
        Self::new("incast", bytes).with("from", from).with("to", to)
    }

    /// One host sends to another.
    #[must_use]
    pub fn flow(from: u32, to: u32, bytes: Bytes) -> Self {
        Self::new("flow", bytes).with("from", from).with("to", to)
    }

    /// Every host sends to one other, at random.
    #[must_use]
    pub fn permutation(bytes: Bytes) -> Self {
        Self::new("permutation", bytes)
    }

    /// Every host sends to every other.
    #[must_use]
    pub fn all_to_all(bytes: Bytes) -> Self {
        Self::new("all-to-all", bytes)
    }

    /// The traffic of a ring AllReduce of so many bytes.
    #[must_use]
    pub fn ring(bytes: Bytes) -> Self {
        Self::new("ring", bytes)
    }

    /// With one more key.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<toml::Value>) -> Self {
        self.more.insert(key.to_owned(), value.into());
        self
    }
}

/// A collective of all ranks, or of groups of them.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CollectiveSpec {
    /// `"all_reduce"`, `"all_gather"`, …
    pub kind: String,
    /// Bytes of the largest buffer.
    #[serde(with = "quantity::must")]
    pub size: Bytes,
    /// Every other key, such as `algorithm`.
    #[serde(flatten)]
    pub more: Table,
}

impl CollectiveSpec {
    /// A collective by its name in nccl-tests.
    #[must_use]
    pub fn new(kind: &str, size: Bytes) -> Self {
        Self { kind: kind.to_owned(), size, more: Table::new() }
    }

    /// With one more key.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<toml::Value>) -> Self {
        self.more.insert(key.to_owned(), value.into());
        self
    }
}

/// Something that goes wrong.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct FaultSpec {
    /// `"link-down"`, `"slow-gpu"`, `"crash"`, …
    pub kind: String,
    /// Every other key of this kind.
    #[serde(flatten)]
    pub more: Table,
}

impl FaultSpec {
    /// A fault of a kind.
    #[must_use]
    pub fn new(kind: &str) -> Self {
        Self { kind: kind.to_owned(), more: Table::new() }
    }

    /// With one more key.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<toml::Value>) -> Self {
        self.more.insert(key.to_owned(), value.into());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_keep_every_digit() {
        let link = LinkSpec {
            rate: Some(Rate::from_bps(106_250_000_001)),
            delay: Some(Span::from_ps(1_234_567)),
            ..LinkSpec::default()
        };
        let text = toml::to_string(&link).unwrap();
        assert_eq!(toml::from_str::<LinkSpec>(&text).unwrap(), link, "{text}");
    }

    #[test]
    fn a_wrong_key_is_refused_as_in_a_file() {
        let fabric = FabricSpec { more: "colour = 1".parse().unwrap(), ..FabricSpec::default() };
        let spec = ScenarioSpec { fabric: Some(fabric), ..ScenarioSpec::default() };
        assert!(spec.build().unwrap_err().to_string().contains("colour"));
    }
}
