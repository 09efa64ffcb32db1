//! Whether a job fits, and what would make it fit.

use std::fmt;

use railnet_core::Bytes;

use super::{Memory, memory};
use crate::model::Model;
use crate::parallel::{Parallel, Sharding};
use crate::training::{Recompute, Training};

/// A change of the job, and what it leads to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Suggestion {
    /// What to write.
    pub change: String,
    /// What a GPU would need then.
    pub total: Bytes,
}

/// A job needs more memory than a GPU has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DoesNotFit {
    /// The model.
    pub model: String,
    /// What a GPU would need.
    pub memory: Memory,
    /// The GPU.
    pub gpu: String,
    /// What it has.
    pub available: Bytes,
    /// How the job is spread, in words.
    pub spread: String,
    /// Changes that make it fit, or help most where none does.
    pub suggestions: Vec<Suggestion>,
    /// Whether the suggestions make it fit.
    pub is_enough: bool,
}

impl std::error::Error for DoesNotFit {}

/// As people say it: 87 GB, 17.5 GB.
fn gigabytes(bytes: Bytes) -> String {
    let tenths = (bytes.as_u64() + 50_000_000) / 100_000_000;
    if tenths >= 1_000 || tenths.is_multiple_of(10) {
        format!("{}", (tenths + 5) / 10)
    } else {
        format!("{}.{}", tenths / 10, tenths % 10)
    }
}

impl fmt::Display for DoesNotFit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { model, memory, gpu, available, spread, .. } = self;
        let article = if gpu.starts_with(['A', 'H', 'L']) { "an" } else { "a" };
        writeln!(
            f,
            "{model} does not fit: {} GB a GPU needed, {article} {gpu} has {} GB",
            gigabytes(memory.total()),
            gigabytes(*available)
        )?;
        write!(
            f,
            "  parameters {} · gradients {} · optimiser {} · activations {} GB   ({spread})",
            gigabytes(memory.parameters),
            gigabytes(memory.gradients),
            gigabytes(memory.optimiser),
            gigabytes(memory.activations)
        )?;
        let told = |one: &Suggestion| format!("{} brings it to {} GB", one.change, gigabytes(one.total));
        let told: Vec<String> = self.suggestions.iter().map(told).collect();
        match (told.is_empty(), self.is_enough) {
            (true, _) => Ok(()),
            (false, true) => write!(f, "\n  help: {}", told.join(", or ")),
            (false, false) => write!(f, "\n  help: nothing alone is enough; {}", told.join(", ")),
        }
    }
}

/// What a GPU of this kind would have in its memory, or why that is too much; parameters may live on servers. The total counts
/// what lies there for the whole step, not what kernels borrow for a moment.
pub fn fit(
    model: &Model,
    parallel: &Parallel,
    training: &Training,
    servers: Option<u32>,
    (gpu, available): (&str, Bytes),
) -> Result<Memory, Box<DoesNotFit>> {
    let needed = memory(model, parallel, training, servers);
    if needed.total() <= available {
        return Ok(needed);
    }
    let mut tried: Vec<Suggestion> = changes(model, parallel, training)
        .into_iter()
        // What lives on servers is not shared out among GPUs.
        .filter(|(_, changed, _)| servers.is_none() || changed.sharding == parallel.sharding)
        .map(|(change, parallel, training)| Suggestion {
            change,
            total: memory(model, &parallel, &training, servers).total(),
        })
        .filter(|one| one.total < needed.total())
        .collect();
    let is_enough = tried.iter().any(|one| one.total <= available);
    if is_enough {
        tried.retain(|one| one.total <= available);
    } else {
        tried.sort_by_key(|one| one.total);
    }
    tried.truncate(3);
    Err(Box::new(DoesNotFit {
        model: model.name.clone(),
        memory: needed,
        gpu: gpu.to_owned(),
        available,
        spread: spread(parallel, training),
        suggestions: tried,
        is_enough,
    }))
}

fn spread(parallel: &Parallel, training: &Training) -> String {
    let Parallel { tensor, context, pipeline, data, expert, .. } = parallel;
    let mut words = vec![format!("tp {tensor}"), format!("pp {pipeline}"), format!("dp {data}")];
    if *context > 1 {
        words.push(format!("cp {context}"));
    }
    if *expert > 1 {
        words.push(format!("ep {expert}"));
    }
    words.push(match parallel.sharding {
        Sharding::None => "no sharding".to_owned(),
        sharding => format!("zero {}", sharding as u8),
    });
    match training.recompute {
        Recompute::None => {}
        Recompute::Selective => words.push("selective recomputation".to_owned()),
        Recompute::Full => words.push("full recomputation".to_owned()),
    }
    words.join(", ")
}

/// What may be changed without more GPUs, those that cost least first.
fn changes(model: &Model, parallel: &Parallel, training: &Training) -> Vec<(String, Parallel, Training)> {
    let mut found = Vec::new();
    let with = |change: String, parallel: Parallel, training: Training| (change, parallel, training);
    for sharding in Sharding::ALL.into_iter().filter(|one| *one > parallel.sharding) {
        let change = format!("`zero = {}`", sharding as u8);
        found.push(with(change, Parallel { sharding, ..parallel.clone() }, *training));
    }
    if parallel.tensor > 1 && !parallel.sequence {
        found.push(with("`sp = true`".into(), Parallel { sequence: true, ..parallel.clone() }, *training));
    }
    for (recompute, word) in [(Recompute::Selective, "selective"), (Recompute::Full, "full")] {
        if recompute > training.recompute {
            let change = format!("`recompute = \"{word}\"`");
            found.push(with(change, parallel.clone(), Training { recompute, ..*training }));
        }
    }
    // Ranks of the data axis go to another one.
    let others = [(parallel.pipeline, "pp"), (parallel.tensor, "tp")];
    for (size, key) in others {
        for factor in [2, 4, 8] {
            if !parallel.data.is_multiple_of(factor) {
                continue;
            }
            let mut changed = Parallel { data: parallel.data / factor, ..parallel.clone() };
            let axis = if key == "pp" { &mut changed.pipeline } else { &mut changed.tensor };
            *axis = size * factor;
            changed.expert = changed.expert.min(changed.data);
            let ranks = changed.ranks();
            if changed.check(ranks, model, training.global_batch, training.micro_batch).is_ok() {
                let change = format!("`{key} = {}` with `dp = {}`", size * factor, changed.data);
                found.push(with(change, changed, *training));
            }
        }
    }
    if training.micro_batch > 1 {
        let smaller = Training { micro_batch: 1, ..*training };
        found.push(with("`micro_batch = 1`".into(), parallel.clone(), smaller));
    }
    let both = Training { recompute: Recompute::Full, ..*training };
    if parallel.sharding < Sharding::Parameters && training.recompute < Recompute::Full {
        let sharded = Parallel { sharding: Sharding::Parameters, ..parallel.clone() };
        found.push(with("`zero = 3` with `recompute = \"full\"`".into(), sharded, both));
    }
    found
}
