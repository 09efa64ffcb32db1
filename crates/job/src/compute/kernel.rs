//! What single kernels take.

use super::{Cost, Gpu};

/// What starting a kernel leaves unused at its beginning and end: a round figure, not a measurement. Kernels of large models
/// take hundreds of microseconds.
const START: f64 = 2e-6;

/// Rows and columns of the tiles that matrix products are cut into, and the share of the best rate that tiles of that size
/// reach (NVIDIA, "Matrix Multiplication Background User's Guide": 256 × 128 is the most efficient, smaller ones less so).
const TILES: [(u64, u64, f64); 3] = [(256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.9)];

/// A product of an m × k and a k × n matrix, `count` of them at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product {
    pub(super) m: u64,
    pub(super) n: u64,
    pub(super) k: u64,
    pub(super) count: u64,
    /// Bytes of each number that goes in.
    pub(super) bytes: u64,
    /// Bytes that are read and written for each number that comes out.
    pub(super) out: u64,
}

impl Product {
    pub(super) fn new(m: u64, n: u64, k: u64, bytes: u64) -> Self {
        Self { m, n, k, count: 1, bytes, out: bytes }
    }

    pub(super) fn flops(&self) -> f64 {
        2.0 * self.m as f64 * self.n as f64 * self.k as f64 * self.count as f64
    }

    pub(super) fn cost(&self, gpu: &Gpu) -> Cost {
        if self.m * self.n * self.k * self.count == 0 {
            return Cost::default();
        }
        let flops = self.flops();
        let (m, n, k) = (self.m as f64, self.n as f64, self.k as f64);
        let bytes = ((m * k + k * n) * self.bytes as f64 + m * n * self.out as f64) * self.count as f64;
        let arithmetic = flops / (gpu.best * self.filled(gpu)).min(gpu.sustained);
        Cost { seconds: arithmetic.max(bytes / gpu.bandwidth) + START, flops }
    }

    /// The share of the best rate that is left where the last round of tiles does not fill all multiprocessors. The sums of
    /// a product with few tiles are split, which makes more of them.
    fn filled(&self, gpu: &Gpu) -> f64 {
        let places = u64::from(gpu.multiprocessors);
        let mut best = 0.0_f64;
        for (rows, columns, share) in TILES {
            let tiles = self.m.div_ceil(rows) * self.n.div_ceil(columns) * self.count;
            let whole = (self.m * self.n * self.count) as f64 / (tiles * rows * columns) as f64;
            for split in [1, 2, 4, 8] {
                // A part has at least as many sums as make up for adding the parts.
                if split > 1 && self.k / split < 1_024 {
                    continue;
                }
                let parts = tiles * split;
                let rounds = parts.div_ceil(places);
                best = best.max(whole * share * parts as f64 / (rounds * places) as f64);
            }
        }
        best
    }
}

/// A kernel that streams so many bytes through memory.
pub(super) fn moved(gpu: &Gpu, bytes: f64) -> Cost {
    if bytes == 0.0 {
        return Cost::default();
    }
    Cost { seconds: bytes / gpu.bandwidth + START, flops: 0.0 }
}

/// Attention that stays on the chip.
pub(super) fn fused_attention(gpu: &Gpu, flops: f64, is_backward: bool) -> Cost {
    Cost { seconds: flops / gpu.attention[usize::from(is_backward)] + START, flops }
}
