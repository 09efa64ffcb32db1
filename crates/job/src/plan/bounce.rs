//! What GPUDirect saves: without it, data goes from the GPU to the memory of the host, from there to the NIC, and the same way
//! back at the other end.

use railnet_core::Span;

use super::demand::{Demand, crossing};
use crate::run::analytic::{Asked, Carries, ClusterCosts, Network, NoPrice, Price};

/// A step with GPUDirect and without.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Bounce {
    /// Bytes that the host of a node would copy between GPUs and its memory, sending and receiving.
    pub copied: f64,
    /// Bytes that would pass the memory of a node for that: each is written once and read once.
    pub through_memory: f64,
    /// How long the NICs of a node take for what leaves it, with GPUDirect.
    pub direct: Span,
    /// The same through the memory of the host.
    pub bounced: Span,
    /// A step with GPUDirect.
    pub step_direct: Span,
    /// A step without.
    pub step_bounced: Span,
}

/// What the hosts at both ends copy without GPUDirect of data that goes from GPU to GPU, and how long NICs take for it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Copies {
    /// Bytes that are copied between GPUs and the memory of hosts, sending and receiving.
    pub copied: f64,
    /// Bytes that pass the memory of hosts for that: each is written once and read once.
    pub through_memory: f64,
    /// How long NICs take with GPUDirect.
    pub direct: Span,
    /// The same through the memory of the host.
    pub bounced: Span,
}

impl Copies {
    /// Of so many bytes through so many NICs; nothing where none leave, or nothing could be copied.
    pub fn new(bytes: f64, carries: Carries, nics: u32) -> Option<Self> {
        if bytes == 0.0 || carries.bounced == 0.0 {
            return None;
        }
        let each = bytes / f64::from(nics.max(1));
        Some(Self {
            copied: 2.0 * bytes,
            through_memory: 4.0 * bytes,
            direct: span(each / carries.nic),
            bounced: span(each / carries.bounced),
        })
    }
}

/// The saving, where anything leaves nodes.
pub(super) fn saving(demands: &[Demand], carries: Carries, steps: [Span; 2]) -> Option<Bounce> {
    let out: f64 = demands.iter().map(|demand| demand.out_of_node).sum();
    let Copies { copied, through_memory, direct, bounced } = Copies::new(out, carries, carries.nics)?;
    Some(Bounce { copied, through_memory, direct, bounced, step_direct: steps[0], step_bounced: steps[1] })
}

fn span(seconds: f64) -> Span {
    Span::from_ps((seconds * 1e12).round() as u64)
}

/// The cost model without GPUDirect: what leaves a node takes as much longer as its NICs carry less.
pub(super) struct Bounced<'a, 'b> {
    costs: &'a mut ClusterCosts<'b>,
    carries: Carries,
}

impl<'a, 'b> Bounced<'a, 'b> {
    pub(super) fn new(costs: &'a mut ClusterCosts<'b>) -> Self {
        Self { carries: costs.carries(), costs }
    }
}

impl Network for Bounced<'_, '_> {
    fn price(&mut self, asked: &Asked<'_>) -> Result<Price, NoPrice> {
        let mut price = self.costs.price(asked)?;
        let (_, leaves) = crossing(asked, self.costs)?;
        let Carries { nic, bounced, nics, .. } = self.carries;
        if leaves > 0.0 && bounced > 0.0 {
            price.time += span(leaves / f64::from(nics.max(1)) * (1.0 / bounced - 1.0 / nic));
        }
        Ok(price)
    }
}
