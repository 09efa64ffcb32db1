//! Which rank is where, and who is in a group with whom.

use railnet_core::Rank;
use smallvec::SmallVec;

use super::{Axis, Parallel};

/// Where a rank is on each axis.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Coordinates {
    /// Which part of each matrix it has.
    pub tensor: u32,
    /// Which part of each sequence.
    pub context: u32,
    /// Which part of the batch.
    pub data: u32,
    /// Which stage it is.
    pub pipeline: u32,
}

impl Coordinates {
    /// Where it is on an axis.
    pub const fn on(&self, axis: Axis) -> u32 {
        match axis {
            Axis::Tensor => self.tensor,
            Axis::Context => self.context,
            Axis::Data => self.data,
            Axis::Pipeline => self.pipeline,
        }
    }

    /// The same, elsewhere on one axis.
    #[must_use]
    pub const fn at(mut self, axis: Axis, place: u32) -> Self {
        match axis {
            Axis::Tensor => self.tensor = place,
            Axis::Context => self.context = place,
            Axis::Data => self.data = place,
            Axis::Pipeline => self.pipeline = place,
        }
        self
    }
}

/// Among whom a collective runs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Scope {
    /// Those who share matrices.
    Tensor,
    /// Those who share sequences.
    Context,
    /// Those who have the same parameters, but for experts: the data and context axes together.
    Data,
    /// Those who share the experts among them.
    Expert,
    /// Those who have the same experts.
    ExpertData,
    /// Two neighbours in the pipeline.
    Pipeline,
    /// The first and the last stage, which have the words where those are tied.
    Embedding,
    /// Everybody.
    World,
    /// A rank and the servers that have the parameters.
    Servers,
    /// A rank and its storage.
    Storage,
}

impl Scope {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Tensor,
        Self::Context,
        Self::Data,
        Self::Expert,
        Self::ExpertData,
        Self::Pipeline,
        Self::Embedding,
        Self::World,
        Self::Servers,
        Self::Storage,
    ];

    /// What reports call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tensor => "tensor parallel",
            Self::Context => "context parallel",
            Self::Data => "data parallel",
            Self::Expert => "expert parallel",
            Self::ExpertData => "expert data parallel",
            Self::Pipeline => "pipeline",
            Self::Embedding => "embedding",
            Self::World => "all ranks",
            Self::Servers => "parameter servers",
            Self::Storage => "storage",
        }
    }
}

/// Some ranks, as a first one and steps from it: `count` places `stride` apart on each of a few levels.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Group {
    /// The lowest rank.
    pub first: Rank,
    /// How many places there are on each level, and how far apart: the innermost first.
    pub levels: SmallVec<[(u32, u32); 4]>,
}

impl Group {
    /// How many ranks it has.
    pub fn size(&self) -> u32 {
        self.levels.iter().map(|(count, _)| count).product()
    }

    /// Whether nobody else is in it.
    pub fn is_alone(&self) -> bool {
        self.size() == 1
    }

    /// Its ranks, in the order of the group.
    pub fn ranks(&self) -> impl Iterator<Item = Rank> + '_ {
        (0..self.size()).map(|number| self.rank(number))
    }

    /// Its rank of this number.
    pub fn rank(&self, number: u32) -> Rank {
        let mut rest = number;
        let mut rank = self.first.0;
        for (count, stride) in &self.levels {
            rank += rest % count * stride;
            rest /= count;
        }
        Rank(rank)
    }
}

/// The places of all ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout {
    sizes: [u32; 4],
    strides: [u32; 4],
    /// The axes, the innermost first.
    order: [Axis; 4],
    expert: u32,
    /// Groups that are none along axes, by the scope that stands for them.
    groups: Vec<(Scope, Vec<Group>)>,
}

impl Layout {
    /// The layout of a job that has been checked.
    pub fn new(parallel: &Parallel) -> Self {
        let mut strides = [1; 4];
        let mut stride = 1;
        for axis in parallel.order {
            strides[axis as usize] = stride;
            stride *= parallel.size(axis);
        }
        Self {
            sizes: Axis::ALL.map(|axis| parallel.size(axis)),
            strides,
            order: parallel.order,
            expert: parallel.expert,
            groups: Vec::new(),
        }
    }

    /// The same with these groups in the place of those along axes.
    #[must_use]
    pub(crate) fn with_groups(mut self, groups: Vec<(Scope, Vec<Group>)>) -> Self {
        self.groups = groups;
        self
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> u32 {
        self.sizes.iter().product()
    }

    /// How many places an axis has.
    pub const fn size(&self, axis: Axis) -> u32 {
        self.sizes[axis as usize]
    }

    /// Where a rank is.
    pub fn coordinates(&self, rank: Rank) -> Coordinates {
        let on = |axis: Axis| rank.0 / self.strides[axis as usize] % self.sizes[axis as usize];
        Coordinates {
            tensor: on(Axis::Tensor),
            context: on(Axis::Context),
            data: on(Axis::Data),
            pipeline: on(Axis::Pipeline),
        }
    }

    /// Who is there.
    pub fn rank(&self, coordinates: Coordinates) -> Rank {
        let part = |axis: Axis| coordinates.on(axis) * self.strides[axis as usize];
        Rank(Axis::ALL.into_iter().map(part).sum())
    }

    /// The ranks with which a rank runs collectives of a scope. The two neighbours in a pipeline are not such a group.
    pub fn group(&self, rank: Rank, scope: Scope) -> Group {
        let named = self.groups.iter().find(|(of, _)| *of == scope);
        if let Some(group) =
            named.and_then(|(_, list)| list.iter().find(|group| group.ranks().any(|one| one == rank)))
        {
            return group.clone();
        }
        let here = self.coordinates(rank);
        match scope {
            Scope::Tensor => self.along(here, &[Axis::Tensor]),
            Scope::Context => self.along(here, &[Axis::Context]),
            Scope::Data => self.along(here, &[Axis::Context, Axis::Data]),
            Scope::World => self.along(here, &Axis::ALL),
            Scope::Expert => {
                let first = here.at(Axis::Data, here.data / self.expert * self.expert);
                let levels = [(self.expert, self.strides[Axis::Data as usize])];
                Group { first: self.rank(first), levels: levels.into_iter().collect() }
            }
            Scope::ExpertData => {
                let mut group =
                    self.along(here.at(Axis::Data, here.data % self.expert), &[Axis::Context, Axis::Data]);
                let first = self.coordinates(group.first).at(Axis::Data, here.data % self.expert);
                group.first = self.rank(first);
                let stride = self.strides[Axis::Data as usize];
                for level in &mut group.levels {
                    if *level == (self.sizes[Axis::Data as usize], stride) {
                        *level = (level.0 / self.expert, stride * self.expert);
                    }
                }
                group
            }
            Scope::Embedding => {
                let (stages, stride) =
                    (self.sizes[Axis::Pipeline as usize], self.strides[Axis::Pipeline as usize]);
                let levels = [(stages.min(2), stride * (stages - 1))];
                Group { first: self.rank(here.at(Axis::Pipeline, 0)), levels: levels.into_iter().collect() }
            }
            Scope::Pipeline | Scope::Servers | Scope::Storage => {
                Group { first: rank, levels: SmallVec::new() }
            }
        }
    }

    /// All who differ from a place only on these axes.
    fn along(&self, here: Coordinates, axes: &[Axis]) -> Group {
        let first = axes.iter().fold(here, |place, axis| place.at(*axis, 0));
        let levels = self.order.iter().filter(|axis| axes.contains(axis));
        let levels = levels.map(|axis| (self.sizes[*axis as usize], self.strides[*axis as usize]));
        Group { first: self.rank(first), levels: levels.collect() }
    }
}
