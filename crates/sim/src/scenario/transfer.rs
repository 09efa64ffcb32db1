//! `[[transfer]]`: the KV cache of a prompt, from the GPUs that computed it to those that go on with it.

use railnet_coll::Collective;
use railnet_core::{Bytes, DataType};
use railnet_topology::FabricGraph;
use serde::Deserialize;

use super::collective::{CollectiveSection, Placement, Sizes};
use super::hosts::HostSet;
use super::{Scenario, ScenarioError};
use crate::written::Written;

/// The most layers, and the most blocks of all of them.
const BLOCKS_MAX: u64 = 1 << 16;

/// `[[transfer]]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TransferSection {
    /// Who has it.
    pub from: HostSet,
    /// Who needs it: the first gets what the first has, and so on.
    pub to: HostSet,
    /// Layers of the model.
    #[serde(default = "one")]
    pub layers: u32,
    /// Bytes of each layer that one GPU has.
    pub layer: Written<Bytes>,
    /// Bytes of a block: a layer lies in memory in blocks, each of which is sent for itself.
    pub block: Written<Bytes>,
    /// How it is sent.
    #[serde(default)]
    pub by: TransferWay,
}

fn one() -> u32 {
    1
}

/// `by = "…"`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
pub enum TransferWay {
    /// The sender puts blocks into the receiver's window, and signals.
    Put,
    /// Both call: one sends a block, the other receives it.
    Send,
    /// First by send and receive, then by put and signal.
    #[default]
    Both,
}

impl TransferSection {
    pub(super) fn check(&self) -> Result<(), ScenarioError> {
        let wrong = |key: &str, message: String| Err(ScenarioError::new(message).at(key));
        let (layer, block) = (self.layer.0.as_u64(), self.block.0.as_u64());
        if block == 0 || !block.is_multiple_of(DataType::F32.size() as u64) || !layer.is_multiple_of(block) {
            return wrong("block", "a layer is a whole number of blocks, and a block of 4 bytes".to_owned());
        }
        if !(1..=BLOCKS_MAX).contains(&self.blocks()) {
            return wrong("layers", format!("1 to {BLOCKS_MAX} blocks in all, not {}", self.blocks()));
        }
        Ok(())
    }

    /// Blocks of all layers.
    pub(crate) fn blocks(&self) -> u64 {
        u64::from(self.layers) * (self.layer.0.as_u64() / self.block.0.as_u64().max(1))
    }

    /// Who sends to whom.
    pub(crate) fn pairs(&self, ends: &FabricGraph) -> Result<Vec<[u32; 2]>, ScenarioError> {
        let numbers =
            |set: &HostSet, key: &str| HostSet::numbers(Some(set), ends).map_err(|error| error.at(key));
        let (from, to) = (numbers(&self.from, "from")?, numbers(&self.to, "to")?);
        if from.len() != to.len() || from.is_empty() {
            let message = format!("{} have it and {} need it: as many of both", from.len(), to.len());
            return Err(ScenarioError::new(message).at("to"));
        }
        if let Some(both) = from.iter().find(|one| to.contains(one)) {
            return Err(ScenarioError::new(format!("{both} has it and needs it")).at("to"));
        }
        Ok(from.into_iter().zip(to).map(|(from, to)| [from, to]).collect())
    }

    /// The calls by which blocks are sent and received, one after the other.
    pub(crate) fn calls(&self, pairs: &[[u32; 2]]) -> Option<CollectiveSection> {
        (self.by != TransferWay::Put).then(|| CollectiveSection {
            groups_given: pairs.iter().map(|pair| pair.to_vec()).collect(),
            iterations: self.blocks() as u32,
            placement: Placement::Out,
            peer: Some(1),
            ..CollectiveSection::new(Collective::SendReceive, Sizes(vec![self.block.0]))
        })
    }
}

impl Scenario {
    /// Checks every `[[transfer]]`.
    pub(super) fn check_transfers(&self) -> Result<(), ScenarioError> {
        for (index, transfer) in self.transfer.iter().enumerate() {
            transfer.check().map_err(|error| error.within(&format!("transfer.{index}")))?;
        }
        Ok(())
    }
}
