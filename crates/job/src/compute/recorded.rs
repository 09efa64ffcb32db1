//! Kernels as a program started them, by shape: what a recording has instead of layers.

use railnet_topology::host::Host;

use super::kernel::{Product, fused_attention, moved};
use super::{Cost, Gpu, NoGpu};
use crate::training::Precision;

/// Matrix products of f32 without tensor cores, as a share of those with TF32: A100 19.5 of 156 TFLOP/s, H100 66.9 of 494.7 by
/// their data sheets.
const WITHOUT_TENSOR_CORES: f64 = 1.0 / 8.0;

/// What a matrix product computes with.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Format {
    /// bfloat16 and half precision.
    Half,
    /// 8-bit floating point.
    Eight,
    /// TF32.
    Tf32,
    /// f32 throughout: not on tensor cores.
    Single,
}

/// A kernel, by what its time depends on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kernel {
    /// Products of an m × k and a k × n matrix, `count` of them at once.
    Product {
        /// Rows.
        m: u64,
        /// Columns.
        n: u64,
        /// What is summed over.
        k: u64,
        /// How many.
        count: u64,
        /// What it computes with.
        format: Format,
        /// Bytes of each number that goes in.
        bytes: u64,
        /// Bytes of each number that comes out.
        out: u64,
    },
    /// Attention that stays on the chip.
    Attention {
        /// Operations of its matrix products, without what a mask leaves out.
        flops: u64,
        /// Whether it makes gradients.
        is_backward: bool,
    },
    /// A kernel that streams so many bytes through memory.
    Stream {
        /// How many, read and written.
        bytes: u64,
    },
}

/// The rates of a GPU in each format.
#[derive(Clone, PartialEq, Debug)]
pub struct Rates {
    half: Gpu,
    eight: Result<Gpu, NoGpu>,
    tf32: Gpu,
    single: Gpu,
}

impl Rates {
    /// Those of the first GPU of a server.
    pub fn of(host: &Host) -> Result<Self, NoGpu> {
        let tf32 = Gpu::of(host, Precision::F32)?;
        let slower = |rate: f64| rate * WITHOUT_TENSOR_CORES;
        let single = Gpu {
            peak: slower(tf32.peak),
            best: slower(tf32.best),
            sustained: slower(tf32.sustained),
            ..tf32.clone()
        };
        Ok(Self { half: Gpu::of(host, Precision::Bf16)?, eight: Gpu::of(host, Precision::F8), tf32, single })
    }

    /// The GPU, at half precision.
    pub const fn gpu(&self) -> &Gpu {
        &self.half
    }

    /// What a kernel takes; an error where the GPU has no units for its format.
    pub fn cost(&self, kernel: &Kernel) -> Result<Cost, NoGpu> {
        Ok(match *kernel {
            Kernel::Product { m, n, k, count, format, bytes, out } => {
                let gpu = match format {
                    Format::Half => &self.half,
                    Format::Eight => self.eight.as_ref().map_err(Clone::clone)?,
                    Format::Tf32 => &self.tf32,
                    Format::Single => &self.single,
                };
                Product { m, n, k, count, bytes, out }.cost(gpu)
            }
            Kernel::Attention { flops, is_backward } => {
                fused_attention(&self.half, flops as f64, is_backward)
            }
            Kernel::Stream { bytes } => moved(&self.half, bytes as f64),
        })
    }
}

#[cfg(test)]
mod tests {
    use railnet_topology::catalogue::host;

    use super::*;

    #[test]
    fn a_product_takes_eight_times_as_long_without_tensor_cores() {
        let rates = Rates::of(&host("dgx-h100").expect("it is there")).expect("it has GPUs");
        let product =
            |format| Kernel::Product { m: 8192, n: 8192, k: 8192, count: 1, format, bytes: 4, out: 4 };
        let seconds = |format| rates.cost(&product(format)).expect("it has units for it").seconds;
        let times = seconds(Format::Single) / seconds(Format::Tf32);
        assert!((times - 8.0).abs() < 0.05, "{times}");
        assert!(seconds(Format::Half) < seconds(Format::Tf32));
        assert!(seconds(Format::Eight) < seconds(Format::Half));
    }

    #[test]
    fn formats_that_a_gpu_lacks_are_named() {
        let rates = Rates::of(&host("dgx-a100").expect("it is there")).expect("it has GPUs");
        let product = Kernel::Product { m: 8, n: 8, k: 8, count: 1, format: Format::Eight, bytes: 1, out: 2 };
        assert!(matches!(rates.cost(&product), Err(NoGpu::Eight { .. })));
    }
}
