//! One call of a collective among all GPUs of a cluster, by the formulas that a plan has for those of a step.

use railnet_coll::Collective;
use railnet_core::{Bytes, DataType, Rank, Span};
use smallvec::smallvec;

use super::Ground;
use super::demand::{crossing, on_rails};
use crate::graph::{Communication, What};
use crate::parallel::{Group, Scope};
use crate::run::analytic::{Asked, Carries, Network as _, NoPrice};

/// What a call sends through what.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CallTraffic {
    /// All GPUs.
    pub ranks: u32,
    /// All servers.
    pub nodes: u32,
    /// Bytes of its largest buffer.
    pub bytes: Bytes,
    /// Bytes that a GPU sends.
    pub through_gpu: f64,
    /// Bytes that leave a node through all its NICs.
    pub out_of_node: f64,
    /// The part of those that arrives at the NIC of the same number as it left from.
    pub on_rails: f64,
    /// How long it takes by NCCL's cost model.
    pub time: Span,
    /// What GPUs and NICs carry.
    pub carries: Carries,
}

impl CallTraffic {
    /// A call of so many bytes, of its largest buffer as [`railnet_coll::Call::bytes`] counts them.
    pub fn new(ground: &Ground<'_>, collective: Collective, bytes: Bytes) -> Result<Self, NoPrice> {
        let ranks = ground.cluster.gpus();
        let mut costs = ground.costs();
        let said = Communication {
            what: What::Collective(collective),
            scope: Scope::Data,
            bytes,
            dtype: DataType::Bf16,
        };
        let group = Group { first: Rank(0), levels: smallvec![(ranks, 1)] };
        let asked = Asked { said: &said, group: &group, pair: None, load: 1.0 };
        let (through_gpu, out_of_node) = crossing(&asked, &mut costs)?;
        let on_rails = if out_of_node > 0.0 { on_rails(&asked, &mut costs, ground)? } else { 0.0 };
        Ok(Self {
            ranks,
            nodes: ground.cluster.nodes,
            bytes,
            through_gpu,
            out_of_node,
            on_rails,
            time: costs.price(&asked)?.time,
            carries: costs.carries(),
        })
    }

    /// Bytes that each NIC of a node sends.
    pub fn through_nic(&self) -> f64 {
        self.out_of_node / f64::from(self.carries.nics.max(1))
    }
}
