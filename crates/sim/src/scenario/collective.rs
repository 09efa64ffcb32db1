//! `[[collective]]`: what ranks do together.

use std::fmt;
use std::str::FromStr;

use railnet_coll::{Algorithm, Call, Collective, Counts, Protocol};
use railnet_core::parse::ParseError;
use railnet_core::{Bytes, DataType, Rank, ReduceOp, Scalar};
use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};

use super::counts::{CountList, check_skew, skewed};
use super::differs::DiffersSection;
use super::hosts::HostSet;
use super::identity::{ConnectionSection, Order, SLOT_MAX};
use super::{Scenario, ScenarioError};
use crate::written::Written;

/// The most sizes of one entry.
const SIZES_MAX: usize = 1 << 10;
/// The most times that one call is made.
const ITERATIONS_MAX: u32 = 1 << 16;
/// The most channels that anybody may ask for: NCCL's limit.
const CHANNELS_MAX: u32 = 64;

/// `[[collective]]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CollectiveSection {
    /// The collective.
    pub kind: Written<Collective>,
    /// Bytes of the largest buffer, as nccl-tests counts them; one size, or several.
    #[serde(default)]
    pub size: Sizes,
    /// Elements of each rank, or of each pair of ranks, where they are not the same; instead of a size.
    #[serde(default)]
    pub counts: Option<CountList>,
    /// How many times as much the last rank has as the first.
    #[serde(default)]
    pub skew: Option<u32>,
    /// The type of the elements.
    #[serde(default = "float", rename = "type")]
    pub dtype: Written<DataType>,
    /// How contributions are put together.
    #[serde(default)]
    pub op: OpName,
    /// The special rank of the group, by its place in it.
    #[serde(default)]
    pub root: u32,
    /// The receiver, where one rank sends to another.
    #[serde(default)]
    pub peer: Option<u32>,
    /// The algorithm; chosen as NCCL chooses it where nothing is said.
    #[serde(default)]
    pub algorithm: Option<Written<Chosen<Algorithm>>>,
    /// The protocol; chosen as NCCL chooses it where nothing is said.
    #[serde(default)]
    pub protocol: Option<Written<Chosen<Protocol>>>,
    /// How many channels share the data.
    #[serde(default)]
    pub channels: Option<u32>,
    /// The longest chunk.
    #[serde(default)]
    pub chunk: Option<Written<Bytes>>,
    /// Data that one slot holds: each chunk is then one slice in one slot, a message of its own.
    #[serde(default)]
    pub slot: Option<Written<Bytes>>,
    /// In which order ranks follow each other.
    #[serde(default)]
    pub order: Order,
    /// What connections are called, where somebody wants to recognise them.
    #[serde(default)]
    pub connection: Vec<ConnectionSection>,
    /// Ranks that make another call than the others, or none.
    #[serde(default)]
    pub differs: Vec<DiffersSection>,
    /// A program in MSCCL's format, instead of an algorithm.
    #[serde(default)]
    pub file: Option<String>,
    /// How often it is called, one right after the other; the time is that of one.
    #[serde(default = "once")]
    pub iterations: u32,
    /// Whether it is run out of place, in place, or both.
    #[serde(default)]
    pub placement: Placement,
    /// The ranks that take part; all by default.
    #[serde(default)]
    pub ranks: Option<HostSet>,
    /// Several groups at the same time.
    #[serde(default)]
    pub groups: Option<Groups>,
    /// The groups themselves, where they were worked out already.
    #[serde(skip)]
    pub(super) groups_given: Vec<Vec<u32>>,
}

fn float() -> Written<DataType> {
    Written(DataType::F32)
}

fn once() -> u32 {
    1
}

/// `placement = "…"`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// Input and output are apart.
    Out,
    /// Input and output are the same memory.
    In,
    /// First the one, then the other.
    #[default]
    Both,
}

impl Placement {
    /// Whether input and output share memory, for each time it is run; not where a collective has no such thing.
    pub(crate) fn each(self, collective: Collective) -> &'static [bool] {
        match self {
            Self::In => &[true],
            Self::Both if collective.has_in_place() => &[false, true],
            Self::Out | Self::Both => &[false],
        }
    }
}

/// `groups = { … }`: how the ranks are divided.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Groups {
    /// Ranks one after the other, so many in each: those of one server, as in tensor parallelism.
    Of(u32),
    /// Every so-manieth rank: those on one rail, as in data parallelism.
    Every(u32),
}

impl Groups {
    /// The groups that these ranks make.
    fn divide(self, ranks: &[u32]) -> Result<Vec<Vec<u32>>, ScenarioError> {
        let (Self::Of(size) | Self::Every(size)) = self;
        if size == 0 || !(ranks.len() as u32).is_multiple_of(size) {
            let message = format!("{} ranks cannot be divided by {size}", ranks.len());
            return Err(ScenarioError::new(message).at("groups"));
        }
        Ok(match self {
            Self::Of(size) => ranks.chunks(size as usize).map(<[u32]>::to_vec).collect(),
            Self::Every(stride) => {
                let stride = stride as usize;
                (0..stride).map(|first| ranks[first..].iter().copied().step_by(stride).collect()).collect()
            }
        })
    }
}

/// `size = "64MiB"`, `size = ["1MiB", "64MiB"]`, or `size = { from = "8B", to = "1GiB", factor = 4 }`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Sizes(pub Vec<Bytes>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SizeRange {
    from: Written<Bytes>,
    to: Written<Bytes>,
    #[serde(default = "two")]
    factor: u64,
}

fn two() -> u64 {
    2
}

impl SizeRange {
    fn sizes(&self) -> Result<Vec<Bytes>, String> {
        let (from, to) = (self.from.0.as_u64(), self.to.0.as_u64());
        if self.factor < 2 || from == 0 || from > to {
            return Err("sizes go from one up to another, by a factor of 2 or more".to_owned());
        }
        let sizes = std::iter::successors(Some(from), |size| size.checked_mul(self.factor));
        Ok(sizes.take_while(|size| *size <= to).map(Bytes).collect())
    }
}

impl<'de> Deserialize<'de> for Sizes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SizesVisitor)
    }
}

// By hand, because an untagged enum would answer every mistake with "no variant matches".
struct SizesVisitor;

impl<'de> Visitor<'de> for SizesVisitor {
    type Value = Sizes;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a size such as \"64MiB\", a list of them, or { from = \"8B\", to = \"1GiB\", factor = 4 }",
        )
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Sizes, E> {
        text.parse().map(|size| Sizes(vec![size])).map_err(|error: ParseError| E::custom(error))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Sizes, A::Error> {
        let mut sizes = Vec::new();
        while let Some(Written(size)) = list.next_element::<Written<Bytes>>()? {
            sizes.push(size);
        }
        Ok(Sizes(sizes))
    }

    fn visit_map<A: serde::de::MapAccess<'de>>(self, map: A) -> Result<Sizes, A::Error> {
        let range = SizeRange::deserialize(serde::de::value::MapAccessDeserializer::new(map))?;
        range.sizes().map(Sizes).map_err(A::Error::custom)
    }
}

/// `op = "…"`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
pub enum OpName {
    /// Their sum.
    #[default]
    Sum,
    /// Their product.
    Prod,
    /// The smallest.
    Min,
    /// The largest.
    Max,
    /// Their average.
    Avg,
    /// Their sum, each multiplied by a number beforehand.
    Mulsum,
}

/// `algorithm = "…"` or `protocol = "…"`: a name, or "auto" for the choice that NCCL would make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chosen<T>(pub Option<T>);

impl<T> Default for Chosen<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: FromStr> FromStr for Chosen<T> {
    type Err = T::Err;

    fn from_str(text: &str) -> Result<Self, T::Err> {
        if text == "auto" { Ok(Self(None)) } else { text.parse().map(|one| Self(Some(one))) }
    }
}

impl CollectiveSection {
    /// A call with everything else left to the defaults.
    pub(super) fn new(kind: Collective, size: Sizes) -> Self {
        Self {
            kind: Written(kind),
            size,
            counts: None,
            skew: None,
            dtype: float(),
            op: OpName::default(),
            root: 0,
            peer: None,
            algorithm: None,
            protocol: None,
            channels: None,
            chunk: None,
            slot: None,
            order: Order::default(),
            connection: Vec::new(),
            differs: Vec::new(),
            file: None,
            iterations: once(),
            placement: Placement::default(),
            ranks: None,
            groups: None,
            groups_given: Vec::new(),
        }
    }

    pub(super) fn check(&self) -> Result<(), ScenarioError> {
        let wrong = |key: &str, message: String| Err(ScenarioError::new(message).at(key));
        self.check_amount()?;
        if !(1..=ITERATIONS_MAX).contains(&self.iterations) {
            let message = format!("a call is made 1 to {ITERATIONS_MAX} times, not {}", self.iterations);
            return wrong("iterations", message);
        }
        if self.channels.is_some_and(|channels| !(1..=CHANNELS_MAX).contains(&channels)) {
            return wrong("channels", format!("1 to {CHANNELS_MAX} channels"));
        }
        if self.chunk.is_some_and(|chunk| chunk.0 == Bytes::ZERO) {
            return wrong("chunk", "a chunk has a byte at least".to_owned());
        }
        if let Some(Written(slot)) = self.slot.filter(|slot| slot.0 == Bytes::ZERO || slot.0 > SLOT_MAX) {
            return wrong("slot", format!("a slot has 1 B to {SLOT_MAX}, not {slot}"));
        }
        for (index, one) in self.connection.iter().enumerate() {
            one.check().map_err(|error| error.within(&format!("connection.{index}")))?;
        }
        for (index, one) in self.differs.iter().enumerate() {
            one.check().map_err(|error| error.within(&format!("differs.{index}")))?;
        }
        if self.placement == Placement::In && !self.kind.0.has_in_place() {
            let message = format!("{} is always out of place: leave `placement` out", self.kind.0);
            return wrong("placement", message);
        }
        if self.file.is_some() && self.algorithm.is_some() {
            return wrong("file", "a program from a file is its own algorithm: give one of both".to_owned());
        }
        Ok(())
    }

    /// Whether it is said how much there is, once and so that it can be.
    fn check_amount(&self) -> Result<(), ScenarioError> {
        let wrong = |key: &str, message: &str| Err(ScenarioError::new(message).at(key));
        let (sizes, collective) = (self.size.0.len(), self.kind.0);
        if self.file.is_some() && (self.counts.is_some() || self.skew.is_some()) {
            return wrong(
                "file",
                "a program from a file has as much for every rank: leave `counts` and `skew` out",
            );
        }
        if let Some(counts) = &self.counts {
            if sizes > 0 || self.skew.is_some() {
                return wrong("counts", "counts say how much each rank has: leave `size` and `skew` out");
            }
            return counts.check(collective);
        }
        if sizes == 0 && collective != Collective::Barrier {
            return wrong("kind", "say how much there is: `size`, or `counts` where ranks differ");
        }
        if sizes > SIZES_MAX {
            return wrong("size", &format!("1 to {SIZES_MAX} sizes, not {sizes}"));
        }
        self.skew.map_or(Ok(()), |skew| check_skew(skew, collective))
    }

    /// The sizes that it is run with: one where counts say how much there is.
    pub(crate) fn sizes(&self) -> &[Bytes] {
        if self.size.0.is_empty() { &[Bytes::ZERO] } else { &self.size.0 }
    }

    /// The groups that run it, each with its ranks in order; of everyone who takes part where none are named.
    pub(crate) fn group_list(
        &self,
        ends: &railnet_topology::FabricGraph,
        everyone: &[u32],
    ) -> Result<Vec<Vec<u32>>, ScenarioError> {
        if !self.groups_given.is_empty() {
            return Ok(self.groups_given.clone());
        }
        let ranks = match &self.ranks {
            Some(ranks) => HostSet::numbers(Some(ranks), ends).map_err(|error| error.at("ranks"))?,
            None => everyone.to_vec(),
        };
        let groups = match self.groups {
            Some(groups) => groups.divide(&ranks)?,
            None => vec![ranks],
        };
        let least = groups.iter().map(Vec::len).min().unwrap_or(0) as u32;
        if let Some(counts) = &self.counts {
            counts.counts(least)?;
        }
        let mut named = vec![("root".to_owned(), Some(self.root)), ("peer".to_owned(), self.peer)];
        for (index, one) in self.connection.iter().enumerate() {
            named.push((format!("connection.{index}.from"), Some(one.from)));
            named.push((format!("connection.{index}.to"), Some(one.to)));
        }
        for (index, one) in self.differs.iter().enumerate() {
            named.push((format!("differs.{index}.rank"), Some(one.rank)));
            named.push((format!("differs.{index}.root"), one.root));
        }
        for (key, rank) in named {
            if let Some(rank) = rank
                && rank >= least
            {
                let message = format!("rank {rank} is not there: a group has {least}, counted from 0");
                return Err(ScenarioError::new(message).at(&key));
            }
        }
        Ok(groups)
    }

    /// The call of a group of `ranks`, with buffers of at most `size`.
    pub(crate) fn call(&self, size: Bytes, ranks: u32, in_place: bool) -> Call {
        let dtype = self.dtype.0;
        let elements = size.as_u64() / dtype.size() as u64;
        let whole = Call { dtype, ..Call::new(self.kind.0, 1) };
        // One element of each rank is as many bytes as the call says.
        let each = whole.bytes(ranks).as_u64() / dtype.size() as u64;
        let count = elements.checked_div(each).unwrap_or(0);
        let op = match self.op {
            OpName::Sum => ReduceOp::Sum,
            OpName::Prod => ReduceOp::Product,
            OpName::Min => ReduceOp::Min,
            OpName::Max => ReduceOp::Max,
            OpName::Avg => ReduceOp::Average,
            OpName::Mulsum => ReduceOp::PreMulSum(Scalar::from_f32(dtype, 2.0)),
        };
        let given = self.counts.as_ref().and_then(|counts| counts.counts(ranks).ok());
        let skewed = self.skew.map(|skew| skewed(skew, self.kind.0, elements, ranks));
        let counts = given.or(skewed).unwrap_or(Counts::Each(count));
        let peer = Rank(self.peer.unwrap_or(1.min(ranks - 1)));
        let collective = self.kind.0;
        Call { collective, counts, dtype, op, root: Rank(self.root), peer, in_place }
    }
}

impl Scenario {
    /// Checks every `[[collective]]`.
    pub(super) fn check_collectives(&self) -> Result<(), ScenarioError> {
        for (index, collective) in self.collective.iter().enumerate() {
            collective.check().map_err(|error| error.within(&format!("collective.{index}")))?;
        }
        Ok(())
    }
}
