//! What a rank says that it does: compared between ranks, so that a difference is seen and not computed with.

use std::fmt;
use std::sync::Arc;

use railnet_core::{Fold, ReduceOp, Scalar};

use crate::algorithm::Algorithm;
use crate::call::{Call, Counts};
use crate::machine::work::{Layout, OperationId};
use crate::schedule::Schedule;

/// An operation as one rank understands it. In place or not is each rank's own business, and so is its scalar of a
/// pre-multiplied sum.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Signature {
    /// Which operation of the communicator.
    pub operation: OperationId,
    /// What is called.
    pub call: Call,
    /// By which algorithm.
    pub algorithm: Algorithm,
    /// On how many channels.
    pub channels: u32,
    /// By which protocol, in which slots.
    pub layout: Layout,
}

/// What of a signature travels with data: the sequence number (24 bits, modulo) and a hash (40 bits).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Mark(pub u64);

impl Mark {
    /// Of an operation that means this.
    pub(super) fn new(operation: OperationId, mut meaning: Fold) -> Self {
        meaning.push(operation.0);
        Self(operation.0 << 40 | meaning.finish() & ((1 << 40) - 1))
    }

    /// The sequence number, modulo 2^24.
    pub const fn sequence(self) -> u32 {
        (self.0 >> 40) as u32
    }

    /// The sequence number near `around` that this one stands for.
    pub(super) const fn near(self, around: u64) -> u64 {
        let ahead = (self.sequence().wrapping_sub(around as u32)) & 0xff_ffff;
        let ahead = if ahead < 1 << 23 { ahead as i64 } else { ahead as i64 - (1 << 24) };
        around.saturating_add_signed(ahead)
    }
}

impl Signature {
    /// The signature of an operation that carries out a schedule.
    pub fn new(operation: OperationId, schedule: &Schedule) -> Self {
        let mut call = schedule.call.clone();
        call.in_place = false;
        if let ReduceOp::PreMulSum(scalar) = call.op {
            call.op = ReduceOp::PreMulSum(Scalar::from_bits(scalar.dtype(), 0));
        }
        Self {
            operation,
            call,
            algorithm: schedule.algorithm,
            channels: schedule.channels,
            layout: Layout { protocol: schedule.protocol, fifo: schedule.fifo },
        }
    }

    /// The hash of all of it but which operation it is.
    pub(super) fn meaning(&self) -> Fold {
        let mut fold = Fold::new();
        let call = &self.call;
        let fifo = &self.layout.fifo;
        for word in [
            call.collective as u64,
            call.dtype as u64,
            u64::from(call.root.0) << 32 | u64::from(call.peer.0),
            self.algorithm as u64,
            u64::from(self.channels) << 32 | self.layout.protocol as u64,
            fifo.slot.0,
            u64::from(fifo.depth) << 32
                | u64::from(fifo.slots_per_slice) << 16
                | u64::from(fifo.slices_per_chunk),
        ] {
            fold.push(word);
        }
        fold.push_bytes(call.op.name().as_bytes());
        match &call.counts {
            Counts::Each(count) => fold.push(*count),
            Counts::PerRank(counts) | Counts::PerPair(counts) => {
                counts.iter().for_each(|count| fold.push(*count));
            }
        }
        fold
    }

    /// In which respects two ranks' ideas of the same operation differ.
    pub fn differences(&self, other: &Self) -> Vec<&'static str> {
        let (a, b) = (&self.call, &other.call);
        let all = [
            ("collective", a.collective == b.collective),
            ("count", a.counts == b.counts),
            ("type", a.dtype == b.dtype),
            ("operation", a.op == b.op),
            ("root", a.root == b.root),
            ("receiver", a.peer == b.peer),
            ("algorithm", self.algorithm == other.algorithm),
            ("protocol", self.layout.protocol == other.layout.protocol),
            ("channels", self.channels == other.channels),
            ("slots", self.layout.fifo == other.layout.fifo),
        ];
        // Other algorithms and channels follow from another call: what the caller wrote comes first.
        let written = all[..6].iter().any(|(_, same)| !same);
        let shown = if written { &all[..6] } else { &all[..] };
        shown.iter().filter(|(_, same)| !same).map(|(name, _)| *name).collect()
    }
}

/// `AllReduce #118 f32 × 1,048,576 sum`
impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let call = &self.call;
        write!(f, "{} {}", call.collective, self.operation)?;
        match &call.counts {
            _ if call.collective == crate::call::Collective::Barrier => return Ok(()),
            Counts::Each(count) => write!(f, " {} × {}", call.dtype, thousands(*count))?,
            Counts::PerRank(counts) | Counts::PerPair(counts) => {
                write!(f, " {} × {} in {} parts", call.dtype, thousands(counts.iter().sum()), counts.len())?;
            }
        }
        if call.collective.reduces() {
            write!(f, " {}", call.op)?;
        }
        if call.collective.has_root() {
            write!(f, " root {}", call.root.0)?;
        }
        Ok(())
    }
}

/// How a signature that says the same in words differs all the same.
pub(super) struct Means<'a>(pub(super) &'a Signature);

impl fmt::Display for Means<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Signature { algorithm, channels, layout, .. } = self.0;
        write!(f, "{algorithm}/{}, {channels} channels, slots of {} B", layout.protocol, layout.fifo.slot.0)
    }
}

/// 1048576 as `1,048,576`.
pub(super) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A signature that several hold.
pub(super) type Shared = Arc<Signature>;
