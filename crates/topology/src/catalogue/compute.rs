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
