//! What contents mean: the words of contributions, and which calls make sense.

use railnet_core::{GhostTag, Random, Rank, ReduceOp};

use super::error::CheckError;
use crate::call::{Call, Collective, Counts};
use crate::outputs::Source;

/// Ranks that get a digit of their own when contributions are counted one by one.
const DIGITS: u32 = 14;
/// Bits of a digit, and of the one that all other ranks share.
const DIGIT_BITS: u32 = 8;
const SHARED_BITS: u32 = 16;

/// The words that stand for contributions.
#[derive(Debug)]
pub(super) struct Words {
    /// What memory holds that a rank gives, and what comes out when it is read as input. They differ where contributions
    /// are multiplied beforehand.
    pub(super) raw: Vec<u128>,
    pub(super) given: Vec<u128>,
    /// All contributions, and what a final step makes of them. They differ where an average is divided.
    pub(super) full: u128,
    pub(super) divided: u128,
}

impl Words {
    /// Random words: equal sums mean equal contributions, but for one in 2^128.
    pub(super) fn random(call: &Call, ranks: u32) -> Self {
        let is_multiplied = matches!(call.op, ReduceOp::PreMulSum(_));
        Self::drawn(call, ranks, is_multiplied, call.op == ReduceOp::Average)
    }

    /// Random words that tell apart whatever any operation tells apart.
    pub(super) fn distinct(call: &Call, ranks: u32) -> Self {
        Self::drawn(call, ranks, true, true)
    }

    fn drawn(call: &Call, ranks: u32, is_multiplied: bool, is_divided: bool) -> Self {
        let mut random = Random::stream(0, "schedule-check", 0);
        let mut word = || u128::from(random.next_u64()) << 64 | u128::from(random.next_u64() | 1);
        let given: Vec<u128> = (0..ranks).map(|_| word()).collect();
        let reduces = call.collective.reduces();
        let raw = if reduces && is_multiplied { (0..ranks).map(|_| word()).collect() } else { given.clone() };
        let full = sum(&given);
        Self { divided: if reduces && is_divided { word() } else { full }, full, raw, given }
    }

    /// Words in which the contributions of [`DIGITS`] ranks from `first` on can be counted.
    pub(super) fn counting(ranks: u32, first: u32) -> Self {
        let given: Vec<u128> = (0..ranks)
            .map(|rank| match rank.checked_sub(first) {
                Some(digit) if digit < DIGITS => 1 << (SHARED_BITS + digit * DIGIT_BITS),
                _ => 1,
            })
            .collect();
        let full = sum(&given);
        Self { raw: given.clone(), given, full, divided: full }
    }

    /// Words in which contributions are only counted, not told apart.
    pub(super) fn alike(ranks: u32) -> Self {
        Self::counting(ranks, ranks)
    }

    /// How many contributions are in a sum of words that are alike.
    pub(super) const fn contributions(sum: u128) -> u32 {
        sum as u32
    }

    /// The ranks that [`Words::counting`] can count, and how often each is in a sum.
    pub(super) fn counted(ranks: u32, first: u32, sum: u128) -> impl Iterator<Item = (u32, u32)> {
        (first..ranks.min(first + DIGITS)).enumerate().map(move |(digit, rank)| {
            let times = sum >> (SHARED_BITS + digit as u32 * DIGIT_BITS) & ((1 << DIGIT_BITS) - 1);
            (rank, times as u32)
        })
    }

    /// The first ranks of the passes that count all of them.
    pub(super) fn passes(ranks: u32) -> impl Iterator<Item = u32> {
        (0..ranks).step_by(DIGITS as usize)
    }
}

fn sum(words: &[u128]) -> u128 {
    words.iter().fold(0, |sum, word| sum.wrapping_add(*word))
}

/// What a stretch of an output should hold.
pub(super) fn tag(stretch: &Source, words: &Words) -> GhostTag {
    let sum = stretch.from.map_or(words.divided, |rank| words.given[rank.0 as usize]);
    GhostTag { sum, origin: stretch.origin }
}

/// Whether the call makes sense at all.
pub(super) fn sensible(call: &Call, ranks: u32) -> Result<(), CheckError> {
    let refuse = |reason: String| Err(CheckError::Call { reason });
    if ranks == 0 {
        return refuse("there are no ranks".into());
    }
    let (given, wanted) = match &call.counts {
        Counts::Each(_) => (0, 0),
        Counts::PerRank(counts) => (counts.len(), ranks as usize),
        Counts::PerPair(counts) => (counts.len(), ranks as usize * ranks as usize),
    };
    if given != wanted {
        return refuse(format!("it has {given} counts, and {ranks} ranks need {wanted}"));
    }
    let is_sent = call.collective == Collective::SendReceive;
    for (rank, matters) in [(call.root, call.collective.has_root()), (call.peer, is_sent)] {
        if matters && rank.0 >= ranks {
            return refuse(format!("rank {} does not exist: there are {ranks}", rank.0));
        }
    }
    if matches!(call.collective, Collective::AllReduce | Collective::Reduce) {
        let count = call.input_count(Rank(0), ranks);
        if let Some(other) = (0..ranks).find(|rank| call.input_count(Rank(*rank), ranks) != count) {
            return refuse(format!("ranks 0 and {other} do not give the same number of elements"));
        }
    }
    Ok(())
}
