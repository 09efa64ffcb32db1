//! How fast GPUs compute: what their data sheets say, and what people measured.

/// Products of matrices, dense, and what else training is made of. Rates are in FLOP/s.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Compute {
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Matrix products in bfloat16 and half precision, by the data sheet.
    pub half: u64,
    /// The same at best: the largest figure that anybody measured, over all shapes, before power runs out.
    pub half_best: u64,
    /// The same for hours: what power and heat leave of it with random numbers.
    pub half_sustained: u64,
    /// Matrix products in 8-bit floating point, by the data sheet; none where it has no units for that.
    pub eight: Option<u64>,
    /// Matrix products in f32 (TF32 where it has that), by the data sheet.
    pub single: u64,
    /// Attention that stays on the chip, forward.
    pub attention_forward: u64,
    /// The same, backward.
    pub attention_backward: u64,
    /// How many percent of its memory's bandwidth a long copy reaches.
    pub memory_percent: u8,
}

/// How fast a GPU of the catalogue computes, by the name of its model.
pub fn compute(model: &str) -> Option<Compute> {
    ROWS.iter().find(|(name, _)| *name == model).map(|(_, row)| *row)
}

const fn teraflops_tenths(tenths: u64) -> u64 {
    tenths * 100_000_000_000
}

// NVIDIA A100 data sheet: 312 TFLOP/s in bfloat16, 156 in TF32; 108 multiprocessors (A100 whitepaper). 267.9 at best: S.
// Bekman, "Machine Learning Engineering", table of maximum achievable matmul FLOPS (CUDA 12.1, 6912x16384x2048). For hours: the
// same at 1,305 of 1,410 MHz, the clock that NVIDIA took as sustained at the power limit in HPL, which is no training
// (G. Lockwood, "peak FLOPS"). FlashAttention 2 (arXiv 2307.08691) has 50 to 73 % of the peak; 62 forward and 52 backward
// are a choice within that. Memory: the Hopper share.
const A100: Compute = Compute {
    multiprocessors: 108,
    half: teraflops_tenths(3_120),
    half_best: teraflops_tenths(2_679),
    half_sustained: teraflops_tenths(2_480),
    eight: None,
    single: teraflops_tenths(1_560),
    attention_forward: teraflops_tenths(1_934),
    attention_backward: teraflops_tenths(1_622),
    memory_percent: 88,
};

// NVIDIA H100 data sheet: 989.4 TFLOP/s in bfloat16, 1,978.9 in FP8, 494.7 in TF32 (all dense); 132 multiprocessors. 792.1
// at best: Bekman's table (CUDA 12.1, 6144x17920x2816). The rest is measured on an H200, the same chip at the same 700 W:
// testdata/gpu/h200.csv. For hours: the median of its products of 10 GFLOP and more. Attention: the mean of its shapes.
// Memory: a copy of 2 GiB, 4,233 of 4,800 GB/s.
const H100: Compute = Compute {
    multiprocessors: 132,
    half: teraflops_tenths(9_894),
    half_best: teraflops_tenths(7_921),
    half_sustained: teraflops_tenths(6_556),
    eight: Some(teraflops_tenths(19_789)),
    single: teraflops_tenths(4_947),
    attention_forward: teraflops_tenths(4_630),
    attention_backward: teraflops_tenths(3_876),
    memory_percent: 88,
};

// NVIDIA DGX B200 data sheet: 8 of them 18 PFLOP/s in bfloat16 (dense), 36 in FP8; 148 multiprocessors; TF32 from memory.
// 1,745 at best: Bekman's table. For hours and attention no figures are known: Hopper's shares of the best.
const B200: Compute = Compute {
    multiprocessors: 148,
    half: teraflops_tenths(22_500),
    half_best: teraflops_tenths(17_450),
    half_sustained: teraflops_tenths(14_443),
    eight: Some(teraflops_tenths(45_000)),
    single: teraflops_tenths(11_000),
    attention_forward: teraflops_tenths(10_200),
    attention_backward: teraflops_tenths(8_539),
    memory_percent: 88,
};

const ROWS: [(&str, Compute); 7] = [
    // NVIDIA V100 data sheet: 125 TFLOP/s in half precision, 15.7 in f32; 80 multiprocessors. The rest: the A100's shares.
    (
        "V100 SXM2",
        Compute {
            multiprocessors: 80,
            half: teraflops_tenths(1_250),
            half_best: teraflops_tenths(1_073),
            half_sustained: teraflops_tenths(993),
            single: teraflops_tenths(157),
            attention_forward: teraflops_tenths(775),
            attention_backward: teraflops_tenths(650),
            ..A100
        },
    ),
    ("A100 SXM4", A100),
    // NVIDIA L40S data sheet: 362 TFLOP/s in bfloat16, 733 in FP8, 183 in TF32 (dense); 142 multiprocessors. The rest: the
    // A100's shares.
    (
        "L40S",
        Compute {
            multiprocessors: 142,
            half: teraflops_tenths(3_620),
            half_best: teraflops_tenths(3_108),
            half_sustained: teraflops_tenths(2_877),
            eight: Some(teraflops_tenths(7_330)),
            single: teraflops_tenths(1_830),
            attention_forward: teraflops_tenths(2_244),
            attention_backward: teraflops_tenths(1_882),
            ..A100
        },
    ),
    ("H100 SXM5", H100),
    ("H200 SXM5", H100),
    ("B200", B200),
    // NVIDIA GB200 NVL72 data sheet: 180 PFLOP/s in bfloat16 (dense) for 72 of them. The rest: the B200's shares.
    (
        "GB200",
        Compute {
            half: teraflops_tenths(25_000),
            half_best: teraflops_tenths(19_389),
            half_sustained: teraflops_tenths(16_048),
            eight: Some(teraflops_tenths(50_000)),
            single: teraflops_tenths(12_500),
            attention_forward: teraflops_tenths(11_333),
            attention_backward: teraflops_tenths(9_488),
            ..B200
        },
    ),
];

#[cfg(test)]
mod tests {
    use super::super::{GPUS, gpu};
    use super::*;

    #[test]
    fn every_gpu_computes_no_faster_than_its_data_sheet_says() {
        for row in &GPUS {
            let compute = compute(row.model).unwrap_or_else(|| panic!("{} is missing", row.model));
            assert!(compute.half_sustained <= compute.half_best && compute.half_best < compute.half);
            assert!(compute.attention_backward < compute.attention_forward);
            assert!(compute.attention_forward < compute.half_sustained);
        }
        assert!(compute("abacus").is_none());
        assert!(ROWS.iter().all(|(name, _)| gpu(name).is_some()));
    }
}
