use proptest::prelude::*;
use railnet_core::Rank;

use super::{Axis, Coordinates, Layout, Parallel, Schedule, Scope};
use crate::model::{Model, catalogue};

fn model(name: &str) -> Model {
    catalogue::model(name).expect("it is in the catalogue")
}

fn message(parallel: &Parallel, gpus: u32, model: &Model, batch: u64) -> String {
    parallel.check(gpus, model, batch, 1).expect_err("it is wrong").to_string()
}

#[test]
fn wrong_layouts_are_told_what_would_do() {
    let llama = model("llama-3-70b");
    let cases = [
        (
            Parallel { tensor: 8, pipeline: 2, data: 3, ..Parallel::default() },
            64,
            48,
            "tp 8 × cp 1 × pp 2 × dp 3 are 48 ranks, and there are 64 GPUs: dp 4 would do",
        ),
        (
            Parallel { tensor: 8, pipeline: 3, data: 2, ..Parallel::default() },
            64,
            48,
            "tp 8 × cp 1 × pp 3 × dp 2 are 48 ranks, and there are 64 GPUs: 24 GPUs have one copy of the model, so write a \
             tp × cp × pp of 16 or 32",
        ),
        (
            Parallel { tensor: 6, data: 8, ..Parallel::default() },
            48,
            48,
            "`tp` = 6 does not divide the 64 attention heads: 4 or 8 would",
        ),
        (
            Parallel::data(6),
            6,
            32,
            "`dp` = 6 does not divide the 32 sequences of the global batch: 4 or 8 would",
        ),
        (
            Parallel { data: 2, expert: 2, ..Parallel::default() },
            2,
            2,
            "`ep` = 2, but llama-3-70b has no experts: leave `ep` out",
        ),
        (
            Parallel {
                pipeline: 8,
                data: 2,
                schedule: Schedule::Interleaved { chunks: 2 },
                ..Parallel::default()
            },
            16,
            20,
            "10 microbatches a rank are no multiple of the 8 stages, which an interleaved pipeline needs: a batch of 32 \
             would do",
        ),
        (
            Parallel { pipeline: 16, schedule: Schedule::Interleaved { chunks: 6 }, ..Parallel::default() },
            16,
            16,
            "96 chunks (pp 16 × 6) are too many for 80 layers: at most 82 can be filled",
        ),
    ];
    for (parallel, gpus, batch, expected) in cases {
        assert_eq!(message(&parallel, gpus, &llama, batch), expected);
    }
    let order = [Axis::Tensor, Axis::Tensor, Axis::Data, Axis::Pipeline];
    assert!(
        message(&Parallel { order, ..Parallel::default() }, 1, &llama, 1).starts_with("`order` names each")
    );
    let good = Parallel { tensor: 8, pipeline: 4, data: 2, sequence: true, ..Parallel::default() };
    assert_eq!(good.check(64, &llama, 64, 1), Ok(()));
}

#[test]
fn layers_that_do_not_come_out_even_are_fewer_at_the_ends() {
    let parallel = Parallel { pipeline: 16, ..Parallel::default() };
    let counts = parallel.layers_of_chunks(126);
    assert_eq!((counts[0], counts[1], counts[14], counts[15]), (7, 8, 8, 7));
    let chunks = Parallel { schedule: Schedule::Interleaved { chunks: 8 }, ..parallel.clone() };
    let counts = chunks.layers_of_chunks(126);
    assert_eq!((counts.len(), counts[0], counts[64], counts[127]), (128, 0, 1, 0));
    assert_eq!(parallel.layers_of_chunks(61).iter().sum::<u32>(), 61);
}

#[test]
fn groups_are_megatrons() {
    // Megatron-LM core/parallel_state.py gives this example: 16 GPUs, tp 2, pp 4.
    let layout = Layout::new(&Parallel { tensor: 2, pipeline: 4, data: 2, ..Parallel::default() });
    let ranks =
        |rank: u32, scope| layout.group(Rank(rank), scope).ranks().map(|rank| rank.0).collect::<Vec<_>>();
    assert_eq!(ranks(3, Scope::Tensor), [2, 3]);
    assert_eq!(ranks(3, Scope::Data), [1, 3]);
    assert_eq!(ranks(13, Scope::Data), [13, 15]);
    assert_eq!(ranks(6, Scope::Embedding), [2, 14]);
    assert_eq!(layout.coordinates(Rank(6)), Coordinates { tensor: 0, context: 0, data: 1, pipeline: 1 });
    // Experts are shared by neighbours along the data axis.
    let experts = Layout::new(&Parallel { tensor: 2, data: 8, expert: 4, ..Parallel::default() });
    let ranks =
        |rank: u32, scope| experts.group(Rank(rank), scope).ranks().map(|rank| rank.0).collect::<Vec<_>>();
    assert_eq!(ranks(11, Scope::Expert), [9, 11, 13, 15]);
    assert_eq!(ranks(11, Scope::ExpertData), [3, 11]);
}

proptest! {
    #[test]
    fn every_group_is_the_same_for_all_of_its_ranks(
        tensor in 1u32..4, context in 1u32..4, replicas in 1u32..4, pipeline in 1u32..4, expert in 1u32..4, turn in 0usize..4,
    ) {
        let mut order = Axis::ALL;
        order.rotate_left(turn);
        let data = replicas * expert;
        let parallel = Parallel { tensor, context, data, pipeline, expert, order, ..Parallel::default() };
        let layout = Layout::new(&parallel);
        for rank in 0..layout.ranks() {
            prop_assert_eq!(layout.rank(layout.coordinates(Rank(rank))), Rank(rank));
        }
        for scope in Scope::ALL {
            if matches!(scope, Scope::Pipeline | Scope::Servers | Scope::Storage) {
                continue;
            }
            for rank in 0..layout.ranks() {
                let place = layout.coordinates(Rank(rank));
                // The words belong to the two ends.
                if scope == Scope::Embedding && place.pipeline != 0 && place.pipeline != pipeline - 1 {
                    continue;
                }
                let group = layout.group(Rank(rank), scope);
                let ranks: Vec<Rank> = group.ranks().collect();
                prop_assert!(ranks.contains(&Rank(rank)), "{:?} of {}: {:?}", scope, rank, ranks);
                for other in &ranks {
                    prop_assert_eq!(&layout.group(*other, scope), &group);
                }
            }
        }
        let experts = layout.group(Rank(0), Scope::Expert).size() * layout.group(Rank(0), Scope::ExpertData).size();
        prop_assert_eq!(experts, layout.group(Rank(0), Scope::Data).size());
    }
}
