//! From a recording to programs: one for each role.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use railnet_coll::Collective;
use railnet_core::{Bytes, DataType, Rank, Span};
use smallvec::SmallVec;

use super::TraceGraph;
use super::recording::{
    Lines, Origin, Recorded, RecordedGroup, RecordedOperation, Recording, RecordingError, Role,
};
use crate::compute::Rates;
use crate::graph::{Communication, Operation, Pass, Program, SLOWEST, Stream, What, Work};
use crate::parallel::{Axis, Group, Parallel, Scope};

/// The scopes that groups of a script may stand for, with the stream of each.
const FAMILIES: [(Scope, Stream); 5] = [
    (Scope::Data, Stream::Reduce),
    (Scope::Tensor, Stream::Tensor),
    (Scope::Context, Stream::Context),
    (Scope::Expert, Stream::Expert),
    (Scope::ExpertData, Stream::Gather),
];

/// What a mesh calls its dimensions, and the scope that this is.
const NAMES: [(&str, Scope); 12] = [
    ("tp", Scope::Tensor),
    ("tensor", Scope::Tensor),
    ("cp", Scope::Context),
    ("context", Scope::Context),
    ("efsdp", Scope::ExpertData),
    ("edp", Scope::ExpertData),
    ("expert_data", Scope::ExpertData),
    ("ep", Scope::Expert),
    ("expert", Scope::Expert),
    ("dp", Scope::Data),
    ("fsdp", Scope::Data),
    ("data", Scope::Data),
];

/// CUDA streams besides the default one.
const SIDES: [Stream; 4] = [Stream::Side1, Stream::Side2, Stream::Side3, Stream::Side4];

/// How a recording is priced.
#[derive(Clone, Debug)]
pub struct Pricing {
    /// The GPU.
    pub rates: Rates,
    /// What the CPU takes to start a kernel.
    pub launch: Span,
}

impl TraceGraph {
    /// The programs of a recording, and how its ranks are spread: the roles along the pipeline.
    pub fn of_recording(
        recording: &Recording,
        pricing: &Pricing,
    ) -> Result<(Self, Parallel), RecordingError> {
        let parallel = spread(recording)?;
        let groups = families(recording)?;
        let mut lines = Lines::default();
        let mut recorded = Recorded::default();
        let mut programs = Vec::new();
        for role in &recording.roles {
            let mut builder = Builder::new(recording, role, pricing, &groups, &mut lines);
            for (place, operation) in role.operations.iter().enumerate() {
                builder.take(place, operation)?;
            }
            let built = builder.finish();
            programs.push(Program::new(built.operations));
            recorded.programs.push(built.lines);
            recorded.flops.push(built.flops);
            recorded.launch.push(built.starved);
            recorded.kernels.push(built.kernels);
            recorded.memory.push(role.memory);
            recorded.roles.push(role.rank);
            for note in &role.notes {
                if !recorded.notes.contains(note) {
                    recorded.notes.push(note.clone());
                }
            }
        }
        recorded.lines = lines.all;
        let nodes = recording.roles.iter().map(|role| role.operations.len() as u64).sum();
        let listed = groups.iter().map(|family| (family.scope, family.groups(recording.ranks)));
        let groups = listed.collect();
        let (idle, ignored) = (0, BTreeMap::new());
        let graph = Self { programs, groups, nodes, idle, ignored, recorded: Some(Arc::new(recorded)) };
        Ok((graph, parallel))
    }
}

/// Ranks between two roles are alike, and so are those that come after the last one.
fn spread(recording: &Recording) -> Result<Parallel, RecordingError> {
    let roles: Vec<u32> = recording.roles.iter().map(|role| role.rank).collect();
    let Some(first) = roles.first() else { return Err(RecordingError::Empty) };
    let count = roles.len() as u32;
    // Roles of one rank each, of which all others are copies.
    let stride = roles.get(1).map_or(recording.ranks, |second| second - first);
    let is_even = *first == 0
        && stride > 0
        && roles.iter().zip(0..).all(|(rank, place): (&u32, u32)| *rank == place * stride)
        && recording.ranks.is_multiple_of(stride * count);
    if !is_even {
        let list: Vec<String> = roles.iter().map(u32::to_string).collect();
        return Err(RecordingError::Uneven { roles: list.join(", "), ranks: recording.ranks });
    }
    Ok(Parallel {
        tensor: stride,
        pipeline: count,
        data: recording.ranks / (stride * count),
        order: [Axis::Tensor, Axis::Pipeline, Axis::Data, Axis::Context],
        ..Parallel::default()
    })
}

/// Groups of a kind: they share out all ranks.
#[derive(Clone, PartialEq, Debug)]
struct Family {
    scope: Scope,
    stream: Stream,
    /// Counts and strides, the innermost first.
    levels: SmallVec<[(u32, u32); 4]>,
}

impl Family {
    fn first(&self, rank: u32) -> u32 {
        self.levels.iter().fold(rank, |rank, (count, stride)| rank - rank / stride % count * stride)
    }

    fn groups(&self, ranks: u32) -> Vec<Group> {
        let firsts = (0..ranks).filter(|rank| self.first(*rank) == *rank);
        firsts.map(|first| Group { first: Rank(first), levels: self.levels.clone() }).collect()
    }
}

/// Ranks as counts and strides, where a mesh has such a group.
fn levels(ranks: &[u32], all: u32) -> Option<SmallVec<[(u32, u32); 4]>> {
    let mut sorted = ranks.to_vec();
    sorted.sort_unstable();
    let mut levels = SmallVec::new();
    let mut rest = sorted.clone();
    while rest.len() > 1 {
        let stride = rest[1] - rest[0];
        let mut count = 1;
        while count < rest.len() && rest[count] == rest[0] + count as u32 * stride {
            count += 1;
        }
        if stride == 0 || !rest.len().is_multiple_of(count) {
            return None;
        }
        levels.push((count as u32, stride));
        rest = rest.iter().copied().step_by(count).collect();
    }
    let family = Family { scope: Scope::World, stream: Stream::World, levels: levels.clone() };
    // Levels nest, and the ranks are those that they say.
    let nests =
        levels.windows(2).all(|pair| pair[0].0 * pair[0].1 <= pair[1].1 && pair[1].1 % pair[0].1 == 0);
    let outer = levels.last().map_or(1, |(count, stride)| count * stride);
    let group = Group { first: Rank(sorted[0]), levels: levels.clone() };
    let same = group.ranks().map(|rank| rank.0).eq(sorted.iter().copied());
    (nests && same && all.is_multiple_of(outer) && family.first(sorted[0]) == sorted[0]).then_some(levels)
}

/// The kinds of groups that the steps of all roles use.
fn families(recording: &Recording) -> Result<Vec<Family>, RecordingError> {
    let mut found: Vec<Found> = Vec::new();
    for role in &recording.roles {
        for (place, operation) in role.operations.iter().enumerate() {
            let RecordedOperation::Collective { group, origin, collective, .. } = operation else { continue };
            let of = named(role, place, *group)?;
            let line = line(role, origin);
            let levels = levels(&of.ranks, recording.ranks).ok_or_else(|| {
                let ranks: Vec<String> = of.ranks.iter().map(u32::to_string).collect();
                RecordingError::UnevenGroup { line: line.clone(), ranks: ranks.join(", ") }
            })?;
            if levels.is_empty() {
                continue;
            }
            let place = found.iter().position(|one| one.levels == levels).unwrap_or(found.len());
            if place == found.len() {
                found.push(Found { levels, name: String::new(), exchanges: false, line });
            }
            let one = &mut found[place];
            one.exchanges |= *collective == Collective::AllToAll;
            if one.name.is_empty() {
                one.name.clone_from(&of.name);
            }
        }
    }
    found.sort_by_key(|one| (one.levels[0].1, one.size()));
    let mut left: Vec<(Scope, Stream)> = FAMILIES.to_vec();
    let mut families: Vec<Option<Family>> = vec![None; found.len()];
    // Those that have a name of a known dimension come first.
    for (place, Found { levels, name, .. }) in found.iter().enumerate() {
        let known =
            NAMES.iter().find(|(known, _)| name.split('_').any(|part| part == *known) || name == known);
        let scope = known.and_then(|(_, scope)| left.iter().position(|(left, _)| left == scope));
        if let Some(at) = scope {
            let (scope, stream) = left.remove(at);
            families[place] = Some(Family { scope, stream, levels: levels.clone() });
        }
    }
    let count = found.len();
    for (place, one) in found.into_iter().enumerate() {
        if families[place].is_some() {
            continue;
        }
        let is_all = one.size() == recording.ranks;
        let Found { levels, exchanges, line, .. } = one;
        let world = families.iter().flatten().any(|family| family.scope == Scope::World);
        if is_all && !world && !left.iter().any(|(scope, _)| *scope == Scope::Data) {
            families[place] = Some(Family { scope: Scope::World, stream: Stream::World, levels });
            continue;
        }
        // Those who exchange tokens share experts; neighbours share matrices as a rule, others the batch.
        let wanted = match levels[0].1 {
            _ if exchanges => Scope::Expert,
            1 if !is_all => Scope::Tensor,
            _ => Scope::Data,
        };
        let at = left.iter().position(|(scope, _)| *scope == wanted).unwrap_or(0);
        if left.is_empty() {
            return Err(RecordingError::TooMany { line, families: count, most: FAMILIES.len() });
        }
        let (scope, stream) = left.remove(at);
        families[place] = Some(Family { scope, stream, levels });
    }
    Ok(families.into_iter().flatten().collect())
}

/// A kind of groups that is used.
struct Found {
    levels: SmallVec<[(u32, u32); 4]>,
    name: String,
    /// Whether its ranks exchange blocks, each with each.
    exchanges: bool,
    /// A line that uses it.
    line: String,
}

impl Found {
    /// Ranks of a group.
    fn size(&self) -> u32 {
        self.levels.iter().map(|(count, _)| *count).product()
    }
}

fn named(role: &Role, operation: usize, group: u32) -> Result<&RecordedGroup, RecordingError> {
    let missing = RecordingError::Missing { rank: role.rank, operation, what: "group", number: group };
    role.groups.get(group as usize).ok_or(missing)
}

fn line(role: &Role, origin: &Origin) -> String {
    role.lines.get(origin.line as usize).cloned().unwrap_or_default()
}

/// What a stream runs at the moment: kernels one after the other that nobody else waits for.
#[derive(Debug)]
struct Open {
    time: Span,
    lines: Vec<(u32, Span)>,
    pass: Pass,
    after: SmallVec<[u32; 2]>,
}

/// A CUDA stream.
#[derive(Debug, Default)]
struct Queue {
    open: Option<Open>,
    /// Its last operation.
    last: Option<u32>,
    /// What comes next waits for these.
    pending: SmallVec<[u32; 2]>,
    /// When it is through with what it has, where communication takes no time.
    free: Span,
}

/// Makes the program of a role.
struct Builder<'a> {
    recording: &'a Recording,
    role: &'a Role,
    pricing: &'a Pricing,
    families: &'a [Family],
    lines: &'a mut Lines,
    queues: BTreeMap<u32, Queue>,
    works: BTreeMap<u32, u32>,
    events: BTreeMap<u32, SmallVec<[u32; 2]>>,
    /// How far the CPU is, where communication takes no time.
    cpu: Span,
    built: Built,
}

#[derive(Debug, Default)]
struct Built {
    operations: Vec<Operation>,
    lines: Vec<Vec<(u32, Span)>>,
    flops: f64,
    starved: Span,
    kernels: u64,
}

impl<'a> Builder<'a> {
    fn new(
        recording: &'a Recording,
        role: &'a Role,
        pricing: &'a Pricing,
        families: &'a [Family],
        lines: &'a mut Lines,
    ) -> Self {
        let (queues, works, events) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (cpu, built) = (Span::ZERO, Built::default());
        Self { recording, role, pricing, families, lines, queues, works, events, cpu, built }
    }

    fn finish(mut self) -> Built {
        let streams: Vec<u32> = self.queues.keys().copied().collect();
        for stream in streams {
            self.close(stream);
        }
        self.built
    }

    fn take(&mut self, place: usize, operation: &RecordedOperation) -> Result<(), RecordingError> {
        let rank = self.role.rank;
        let missing = |what, number| RecordingError::Missing { rank, operation: place, what, number };
        match *operation {
            RecordedOperation::Kernel { origin, kernel } => {
                let known = self.role.kernels.get(kernel as usize);
                let known = *known.ok_or_else(|| missing("kernel", kernel))?;
                let cost = self
                    .pricing
                    .rates
                    .cost(&known)
                    .map_err(|why| RecordingError::NoGpu { line: line(self.role, &origin), why })?;
                self.built.flops += cost.flops;
                self.kernel(&origin, (cost * self.pace()).span());
            }
            RecordedOperation::Collective { origin, id, collective, group, bytes, dtype } => {
                self.collective(place, &origin, id, (collective, group, bytes, dtype))?;
            }
            RecordedOperation::Send { origin, id, to, bytes } => {
                let stage = self.stage(&origin, to)?;
                let stream = if to > rank { Stream::SendForward } else { Stream::SendBackward };
                self.message(&origin, id, (stream, What::Send { stage }, bytes));
            }
            RecordedOperation::Receive { origin, id, from, bytes } => {
                let stage = self.stage(&origin, from)?;
                let stream = if from < rank { Stream::ReceiveForward } else { Stream::ReceiveBackward };
                self.message(&origin, id, (stream, What::Receive { stage }, bytes));
            }
            RecordedOperation::Wait { stream, id } => {
                // What was begun before the step is over.
                let work = self.works.get(&id).copied();
                self.wait(stream, work);
            }
            RecordedOperation::RecordEvent { stream, event } => {
                self.close(stream);
                let queue = self.queues.entry(stream).or_default();
                let state = queue.last.iter().chain(&queue.pending).copied().collect();
                self.events.insert(event, state);
            }
            RecordedOperation::WaitEvent { stream, event } => {
                let before = self.events.get(&event).cloned().unwrap_or_default();
                self.wait(stream, before);
            }
            RecordedOperation::Synchronise { stream } => {
                let named = self.queues.iter().filter(|(number, _)| stream.is_none_or(|one| one == **number));
                let free = named.map(|(_, queue)| queue.free).max().unwrap_or(Span::ZERO);
                self.cpu = self.cpu.max(free);
            }
        }
        Ok(())
    }

    /// Ranks that wait for each other compute at the speed of the slowest GPU, as those of a model do.
    fn pace(&self) -> f64 {
        if self.recording.ranks > 1 { SLOWEST } else { 1.0 }
    }

    fn kernel(&mut self, origin: &Origin, time: Span) {
        let number =
            self.lines.number(&self.role.lines.get(origin.line as usize).cloned().unwrap_or_default());
        self.built.kernels += 1;
        self.cpu += self.pricing.launch;
        let cpu = self.cpu;
        let queue = self.queues.entry(origin.stream).or_default();
        let starved = Span::from_ps(cpu.as_ps().saturating_sub(queue.free.as_ps()));
        queue.free = queue.free.max(cpu) + time;
        if origin.stream == 0 {
            self.built.starved += starved;
        }
        // Beside the default stream there is always something to do.
        let took = if origin.stream == 0 { time + starved } else { time };
        let is_other = |open: &Open| open.pass != origin.pass;
        if queue.open.as_ref().is_some_and(is_other) {
            self.close(origin.stream);
        }
        let queue = self.queues.entry(origin.stream).or_default();
        let after = &mut queue.pending;
        let open = queue.open.get_or_insert_with(|| Open {
            time: Span::ZERO,
            lines: Vec::new(),
            pass: origin.pass,
            after: std::mem::take(after),
        });
        open.time += took;
        match open.lines.iter_mut().find(|(known, _)| *known == number) {
            Some((_, sum)) => *sum += took,
            None => open.lines.push((number, took)),
        }
    }

    /// Ends what a stream runs, so that others can wait for it.
    fn close(&mut self, stream: u32) {
        let Some(queue) = self.queues.get_mut(&stream) else { return };
        let Some(open) = queue.open.take() else { return };
        let mut after = open.after;
        after.sort_unstable();
        after.dedup();
        let number = self.built.operations.len() as u32;
        queue.last = Some(number);
        let kind = stream
            .checked_sub(1)
            .map_or(Stream::Compute, |side| SIDES.get(side as usize).copied().unwrap_or(Stream::Side4));
        let work = Work::Compute { time: open.time, experts: Span::ZERO };
        self.built.operations.push(Operation {
            stream: kind,
            work,
            after,
            pass: open.pass,
            microbatch: 0,
            layer: None,
        });
        self.built.lines.push(open.lines);
    }

    fn wait(&mut self, stream: u32, before: impl IntoIterator<Item = u32>) {
        self.close(stream);
        let queue = self.queues.entry(stream).or_default();
        queue.pending.extend(before);
    }

    fn collective(
        &mut self,
        place: usize,
        origin: &Origin,
        id: u32,
        (collective, group, bytes, dtype): (Collective, u32, Bytes, DataType),
    ) -> Result<(), RecordingError> {
        let of = named(self.role, place, group)?;
        if of.ranks.len() < 2 {
            return Ok(());
        }
        let levels = levels(&of.ranks, self.recording.ranks);
        let family = self.families.iter().find(|family| Some(&family.levels) == levels.as_ref());
        let Some(family) = family else {
            let number = group;
            return Err(RecordingError::Missing {
                rank: self.role.rank,
                operation: place,
                what: "group",
                number,
            });
        };
        let (collective, bytes) = match collective {
            Collective::Barrier => (Collective::AllReduce, Bytes(4)),
            Collective::Gather | Collective::Scatter | Collective::SendReceive => {
                let line = line(self.role, origin);
                return Err(RecordingError::NotRun { line, what: collective.name() });
            }
            other => (other, bytes),
        };
        let (scope, stream) = (family.scope, family.stream);
        let said = Communication { what: What::Collective(collective), scope, bytes, dtype };
        self.communicate(origin, id, stream, said);
        Ok(())
    }

    fn message(&mut self, origin: &Origin, id: u32, (stream, what, bytes): (Stream, What, Bytes)) {
        let said = Communication { what, scope: Scope::Pipeline, bytes, dtype: DataType::U8 };
        self.communicate(origin, id, stream, said);
    }

    fn communicate(&mut self, origin: &Origin, id: u32, stream: Stream, said: Communication) {
        self.cpu += self.pricing.launch;
        self.close(origin.stream);
        let queue = self.queues.entry(origin.stream).or_default();
        let mut after: SmallVec<[u32; 2]> = queue.last.iter().chain(&queue.pending).copied().collect();
        after.sort_unstable();
        after.dedup();
        let number = self.built.operations.len() as u32;
        let line = self.role.lines.get(origin.line as usize).cloned().unwrap_or_default();
        self.built.lines.push(vec![(self.lines.number(&line), Span::ZERO)]);
        self.works.insert(id, number);
        let (work, pass) = (Work::Communicate(said), origin.pass);
        self.built.operations.push(Operation { stream, work, after, pass, microbatch: 0, layer: None });
    }

    /// The role that another rank has, as a stage.
    fn stage(&self, origin: &Origin, other: u32) -> Result<u32, RecordingError> {
        let found = self.recording.roles.iter().position(|role| role.rank == other);
        let none = || RecordingError::NoRole { rank: self.role.rank, other, line: line(self.role, origin) };
        found.map(|place| place as u32).ok_or_else(none)
    }
}
