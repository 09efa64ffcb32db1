//! What a GPU reaches.

use railnet_core::Bytes;
use railnet_topology::host::{DeviceKind, Host};
use thiserror::Error;

use crate::training::Precision;

/// What a GPU reaches at one precision. Rates are in operations and bytes per second.
#[derive(Clone, PartialEq, Debug)]
pub struct Gpu {
    /// Its model.
    pub name: String,
    /// Its memory.
    pub memory: Bytes,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Matrix products by the data sheet: what utilisation is measured against.
    pub peak: f64,
    /// Matrix products at best.
    pub best: f64,
    /// Matrix products for hours.
    pub sustained: f64,
    /// Attention that stays on the chip: forward, backward.
    pub attention: [f64; 2],
    /// Bytes read and written by kernels that stream through memory.
    pub bandwidth: f64,
}

/// There is nobody to compute.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum NoGpu {
    /// The server has none.
    #[error("{host} has no GPUs to train on")]
    None {
        /// The server.
        host: String,
    },
    /// Nothing is known of its speed.
    #[error("how fast {model} computes is not in the catalogue: use a GPU that is")]
    Unknown {
        /// The GPU.
        model: String,
    },
    /// It has no units for the precision.
    #[error("{model} has no 8-bit matrix units: train in bf16")]
    Eight {
        /// The GPU.
        model: String,
    },
}

impl Gpu {
    /// The first GPU of a server.
    pub fn of(host: &Host, precision: Precision) -> Result<Self, NoGpu> {
        let first = host.gpus().first().map(|gpu| host.device(*gpu).kind.clone());
        let Some(DeviceKind::Gpu { model, memory, memory_bandwidth, compute, .. }) = first else {
            return Err(NoGpu::None { host: host.name.clone() });
        };
        let Some(compute) = compute else {
            return Err(NoGpu::Unknown { model });
        };
        let half = compute.half as f64;
        let peak = match precision {
            Precision::Bf16 | Precision::F16 => half,
            Precision::F8 => match compute.eight {
                Some(eight) => eight as f64,
                None => return Err(NoGpu::Eight { model }),
            },
            Precision::F32 => compute.single as f64,
        };
        // What is reached was measured at half precision; others are taken to reach the same share.
        let share = peak / half;
        let bandwidth = memory_bandwidth.as_bps() as f64 / 8.0;
        Ok(Self {
            name: model,
            memory,
            multiprocessors: compute.multiprocessors,
            peak,
            best: compute.half_best as f64 * share,
            sustained: compute.half_sustained as f64 * share,
            attention: [compute.attention_forward as f64, compute.attention_backward as f64],
            bandwidth: bandwidth * f64::from(compute.memory_percent) / 100.0,
        })
    }
}
