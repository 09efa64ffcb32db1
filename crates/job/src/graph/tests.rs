use railnet_coll::Collective;
use railnet_core::{Bytes, Rank};
use railnet_topology::catalogue::host;

use super::{Communication, Job, Operation, Program, StepGraph, Stream, Turn, What, Work, turns};
use crate::compute::Gpu;
use crate::model::catalogue;
use crate::parallel::{Parallel, Schedule, Scope, Sharding};
use crate::training::{Precision, Recompute, Training};

fn job(model: &str, parallel: Parallel, global_batch: u64) -> Job {
    let model = catalogue::model(model).expect("it is in the catalogue");
    let gpu = Gpu::of(&host("dgx-h100").expect("it is there"), Precision::Bf16).expect("it has GPUs");
    let training = Training { global_batch, ..Training::default() };
    parallel.check(parallel.ranks(), &model, global_batch, 1).expect("it fits together");
    Job::new(model, parallel, training, gpu)
}

fn said(program: &Program, stream: Stream) -> Vec<Communication> {
    let said = |operation: &Operation| match operation.work {
        Work::Communicate(said) if operation.stream == stream => Some(said),
        _ => None,
    };
    program.operations.iter().filter_map(said).collect()
}

fn total(program: &Program, scope: Scope, what: Collective) -> (usize, u64) {
    let of_scope = Stream::ALL.into_iter().flat_map(|stream| said(program, stream));
    let bytes: Vec<u64> = of_scope
        .filter(|one| one.scope == scope && one.what == What::Collective(what))
        .map(|one| one.bytes.as_u64())
        .collect();
    (bytes.len(), bytes.iter().sum())
}

#[test]
fn the_built_in_job_reduces_32_buckets_of_24_mib() {
    let parallel = Parallel { bucket: Bytes::mib(24), ..Parallel::data(32) };
    let graph = StepGraph::new(&job("gpt-400m", parallel, 32));
    let buckets = said(&graph.programs[0], Stream::Reduce);
    assert_eq!(buckets.len(), 32);
    assert!(buckets.iter().all(|one| one.bytes == Bytes::mib(24) && one.scope == Scope::Data));
    // Each starts as soon as its gradients are there: most wait for an operation of their own.
    let program = &graph.programs[0];
    let waits: std::collections::BTreeSet<u32> = program.streams[Stream::Reduce as usize]
        .iter()
        .map(|number| program.operations[*number as usize].after[0])
        .collect();
    assert_eq!(waits.len(), 26, "24 layers, and the words at both ends");
}

/// Megatron-LM's tensor parallelism (arXiv 1909.08053, section 3): two AllReduces forward and two backward in each layer, each
/// of all activations; as many bytes as ReduceScatter and AllGather with sequence parallelism (arXiv 2205.05198), and one more
/// AllGather for each of the two for the gradient of weights.
#[test]
fn tensor_parallel_layers_say_what_megatrons_do() {
    let layers = 80;
    let activation = 8_192 * 8_192 * 2;
    let plain = Parallel { tensor: 8, ..Parallel::default() };
    let graph = StepGraph::new(&job("llama-3-70b", plain.clone(), 1));
    let (count, bytes) = total(&graph.programs[0], Scope::Tensor, Collective::AllReduce);
    // And the words: one after those that go in, one for the loss, one for the gradient of what goes into the head.
    assert_eq!((count, bytes), (4 * layers + 3, (4 * layers as u64 + 2) * activation + 8_192 * 12));
    let sequence = Parallel { sequence: true, ..plain.clone() };
    let graph = StepGraph::new(&job("llama-3-70b", sequence, 1));
    assert_eq!(total(&graph.programs[0], Scope::Tensor, Collective::ReduceScatter).0, 4 * layers + 2);
    assert_eq!(total(&graph.programs[0], Scope::Tensor, Collective::AllGather).0, 6 * layers + 2);
    // Computing everything again says everything again.
    let mut full = job("llama-3-70b", plain, 1);
    full.training.recompute = Recompute::Full;
    let graph = StepGraph::new(&full);
    assert_eq!(total(&graph.programs[0], Scope::Tensor, Collective::AllReduce).0, 6 * layers + 3);
}

/// ZeRO (arXiv 1910.02054, section 7): reduced gradients are 2 Ψ with or without sharding up to gradients; sharded parameters
/// are 3 Ψ: gathered twice and reduced once.
#[test]
fn sharding_moves_what_the_zero_paper_says() {
    let parameters = catalogue::model("llama-3-8b").expect("it is there").parameters();
    let count = |sharding| {
        let parallel = Parallel { sharding, ..Parallel::data(64) };
        let graph = StepGraph::new(&job("llama-3-8b", parallel, 64));
        let of = |what| total(&graph.programs[0], Scope::Data, what).1;
        (of(Collective::AllReduce), of(Collective::ReduceScatter), of(Collective::AllGather))
    };
    assert_eq!(count(Sharding::None), (2 * parameters, 0, 0));
    let model = catalogue::model("llama-3-8b").expect("it is there");
    for sharding in [Sharding::Optimiser, Sharding::Gradients] {
        assert_eq!(count(sharding), (0, 2 * parameters, 2 * parameters));
    }
    // The words are gathered once: between their use forward and backward there is no time to forget them.
    let words = model.embedding_parameters() + model.head_parameters();
    assert_eq!(count(Sharding::Parameters), (0, 2 * parameters, 4 * parameters - 2 * words));
    // Layer by layer: each is gathered twice and reduced once, the words at both ends once.
    let parallel = Parallel { sharding: Sharding::Parameters, ..Parallel::data(64) };
    let graph = StepGraph::new(&job("llama-3-8b", parallel, 64));
    let of = |what| total(&graph.programs[0], Scope::Data, what).0;
    assert_eq!((of(Collective::AllGather), of(Collective::ReduceScatter)), (2 * 32 + 2, 32 + 2));
}

#[test]
fn experts_get_their_tokens_by_two_exchanges_each_way() {
    let parallel = Parallel { expert: 8, ..Parallel::data(8) };
    let mut mixtral = job("mixtral-8x7b", parallel, 8);
    mixtral.hot_expert = 3.0;
    let graph = StepGraph::new(&mixtral);
    let tokens = 32_768 * 2 * 4_096 * 2;
    assert_eq!(total(&graph.programs[0], Scope::Expert, Collective::AllToAll), (4 * 32, 4 * 32 * tokens));
    // One expert a rank: the hot one has three times its share, the others what is left.
    assert!((graph.loads[0] - 3.0).abs() < 1e-12 && (graph.loads[1] - 5.0 / 7.0).abs() < 1e-12);
    // All ranks have different experts, and nothing to reduce for them.
    assert_eq!(total(&graph.programs[0], Scope::ExpertData, Collective::AllReduce).0, 0);
}

/// What a driver with packets hands to `coll` has the bytes that the cost model is asked about.
#[test]
fn communication_is_a_call_of_as_many_bytes() {
    let parallel = Parallel { tensor: 2, sequence: true, expert: 8, ..Parallel::data(8) };
    let mut mixtral = job("mixtral-8x7b", parallel, 8);
    let mut seen = std::collections::BTreeSet::new();
    for hot in [1.0, 3.0] {
        mixtral.hot_expert = hot;
        let graph = StepGraph::new(&mixtral);
        for stream in Stream::ALL {
            for said in said(&graph.programs[0], stream) {
                let group = graph.layout.group(Rank(0), said.scope);
                let call = graph.call(&said, group.size());
                let (bytes, wanted) = (call.bytes(group.size()).as_u64(), said.bytes.as_u64());
                // An exchange is as large as what its busiest rank gets; blocks are whole.
                let load = if said.scope == Scope::Expert { graph.loads[0] } else { 1.0 };
                assert!(
                    (bytes as f64 / (wanted as f64 * load) - 1.0).abs() < 1e-3 || bytes < 64,
                    "{said:?}: {bytes}"
                );
                assert_eq!(call.dtype, said.dtype);
                seen.insert(call.collective);
            }
        }
    }
    assert_eq!(seen.len(), 4, "{seen:?}");
}

#[test]
fn microbatches_take_turns_as_in_megatron() {
    let words = |schedule, stage, stages, microbatches| -> String {
        let turns = turns(schedule, stage, stages, microbatches);
        let word = |turn: &Turn| {
            let letter = if turn.is_backward { 'b' } else { 'f' };
            format!("{letter}{}{}", ["", "'", "\""][turn.chunk as usize], turn.microbatch)
        };
        turns.iter().map(word).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(words(Schedule::GPipe, 1, 2, 2), "f0 f1 b0 b1");
    assert_eq!(words(Schedule::OneForwardOneBackward, 0, 3, 4), "f0 f1 f2 b0 f3 b1 b2 b3");
    assert_eq!(words(Schedule::OneForwardOneBackward, 2, 3, 3), "f0 b0 f1 b1 f2 b2");
    // 2 stages of 2 chunks: two microbatches go through both chunks before the next two come.
    let two = Schedule::Interleaved { chunks: 2 };
    assert_eq!(words(two, 1, 2, 4), "f0 f1 f'0 b'0 f'1 b'1 f2 b0 f3 b1 f'2 b'2 f'3 b'3 b2 b3");
    for (schedule, stages, microbatches) in
        [(two, 4, 8), (Schedule::Interleaved { chunks: 3 }, 2, 2), (Schedule::GPipe, 4, 3)]
    {
        for stage in 0..stages {
            let turns = turns(schedule, stage, stages, microbatches);
            assert_eq!(turns.len() as u32, 2 * microbatches * schedule.chunks());
            for (place, turn) in turns.iter().enumerate().filter(|(_, turn)| turn.is_backward) {
                let forward = Turn { is_backward: false, ..*turn };
                assert!(turns[..place].contains(&forward), "{turn:?} comes before its forward pass");
            }
        }
    }
}

#[test]
fn neighbours_in_a_pipeline_say_the_same_number_of_things() {
    let schedule = Schedule::Interleaved { chunks: 2 };
    let parallel = Parallel { pipeline: 4, tensor: 2, sequence: true, schedule, ..Parallel::default() };
    let graph = StepGraph::new(&job("llama-3-8b", parallel, 8));
    for stage in 0..4_usize {
        let next = (stage + 1) % 4;
        for (out, into) in [
            (
                said(&graph.programs[stage], Stream::SendForward),
                said(&graph.programs[next], Stream::ReceiveForward),
            ),
            (
                said(&graph.programs[next], Stream::SendBackward),
                said(&graph.programs[stage], Stream::ReceiveBackward),
            ),
        ] {
            assert_eq!(out.len(), into.len());
            // From the last stage to the first goes only what is not at the end of the model.
            assert_eq!(out.len(), if stage == 3 { 8 } else { 16 });
            assert!(out.iter().all(|one| one.bytes == Bytes(8_192 / 2 * 4_096 * 2)));
        }
    }
}
