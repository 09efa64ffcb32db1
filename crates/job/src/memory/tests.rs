use railnet_core::Bytes;

use super::{Memory, fit, layer_activations, memory, memory_of_stage};
use crate::model::{Model, catalogue};
use crate::parallel::{Parallel, Schedule, Sharding};
use crate::training::{AttentionKernel, Recompute, Training};

fn model(name: &str) -> Model {
    catalogue::model(name).expect("it is in the catalogue")
}

/// Korthikanti et al. 2022 (arXiv 2205.05198), table 2: bytes of activations of a layer, with sequence s, microbatch b,
/// hidden h, heads a, tensor parallelism t.
#[test]
fn activations_are_those_of_the_published_table() {
    let gpt = model("gpt-3-175b");
    let (s, h, a) = (2_048_u64, 12_288_u64, 96_u64);
    for (b, t) in [(1_u64, 8_u64), (4, 2), (2, 1)] {
        let sbh = s * b * h;
        let scores = 5 * a * s * s * b;
        let cases = [
            (Recompute::None, false, sbh * 10 + (sbh * 24 + scores) / t),
            (Recompute::None, true, (sbh * 34 + scores) / t),
            (Recompute::Selective, false, sbh * 10 + sbh * 24 / t),
            (Recompute::Selective, true, sbh * 34 / t),
            (Recompute::Full, false, sbh * 2),
        ];
        for (recompute, sequence, expected) in cases {
            let parallel = Parallel { tensor: t as u32, sequence, ..Parallel::default() };
            let attention = AttentionKernel::Plain;
            let training = Training { micro_batch: b, recompute, attention, ..Training::default() };
            let found = layer_activations(&gpt, &parallel, &training);
            assert_eq!(found, Bytes(expected), "{recompute:?}, sequence {sequence}, b {b}, t {t}");
        }
    }
}

/// The first stage has as many microbatches under way as there are stages, so L layers' worth; interleaved with m chunks
/// L × (1 + (p − 1) / (p × m)) (the same paper, section 4.2.3).
#[test]
fn a_full_pipeline_holds_the_activations_of_all_layers() {
    let gpt = model("gpt-3-175b");
    let training = Training { global_batch: 64, recompute: Recompute::Selective, ..Training::default() };
    let even = Parallel { tensor: 8, sequence: true, pipeline: 8, ..Parallel::default() };
    let per_layer = layer_activations(&gpt, &even, &training).as_u64();
    let first = memory_of_stage(&gpt, &even, &training, 0);
    assert_eq!(first.activations.as_u64(), 96 * per_layer);
    let interleaved = Parallel { schedule: Schedule::Interleaved { chunks: 3 }, ..even.clone() };
    let more = memory_of_stage(&gpt, &interleaved, &training, 0).activations.as_u64();
    assert_eq!(more, 96 * per_layer * (24 + 7) / 24);
    let all = Parallel { schedule: Schedule::GPipe, ..even };
    assert_eq!(memory_of_stage(&gpt, &all, &training, 0).activations.as_u64(), 64 * 12 * per_layer);
}

/// ZeRO (arXiv 1910.02054), figure 1: 7.5 B parameters on 64 GPUs are 120, 31.4, 16.6 and 1.9 GB with nothing, the optimiser,
/// gradients and parameters shared out.
#[test]
fn shared_out_states_are_those_of_the_zero_paper() {
    // 12 × 36 × 4096² = 7.25 B and the words.
    let gpt = catalogue::gpt(36, 4_096, 32, 59_066);
    let parameters = gpt.parameters() as f64;
    assert!((parameters / 7.5e9 - 1.0).abs() < 0.001, "{parameters}");
    let training = Training { global_batch: 64, ..Training::default() };
    let cases = [
        (Sharding::None, 120.0),
        (Sharding::Optimiser, 31.4),
        (Sharding::Gradients, 16.6),
        (Sharding::Parameters, 1.9),
    ];
    for (sharding, gigabytes) in cases {
        let parallel = Parallel { sharding, prefetch: 0, ..Parallel::data(64) };
        let found = memory(&gpt, &parallel, &training, None);
        let mut states = (found.parameters + found.gradients + found.optimiser).as_u64() as f64 / 1e9;
        if sharding == Sharding::Parameters {
            // The paper does not count the layer that is gathered at the time.
            states -= gpt.layer_parameters(0).dense as f64 * 2.0 / 1e9;
        }
        assert!((states - gigabytes).abs() < 0.06, "{sharding:?}: {states}");
    }
}

#[test]
fn a_job_that_does_not_fit_is_told_what_would() {
    let llama = model("llama-3-70b");
    let training = Training { global_batch: 64, ..Training::default() };
    let parallel = Parallel { tensor: 8, data: 8, sequence: true, ..Parallel::default() };
    let refusal =
        fit(&llama, &parallel, &training, None, ("H100 SXM5", Bytes(80_000_000_000))).expect_err("too much");
    let text = refusal.to_string();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "llama-3-70b does not fit: 164 GB a GPU needed, an H100 SXM5 has 80 GB");
    assert_eq!(
        lines[1],
        "  parameters 17.6 · gradients 17.6 · optimiser 106 · activations 23 GB   (tp 8, pp 1, dp 8, no sharding)"
    );
    assert!(
        lines[2].starts_with("  help: `zero = 1` brings it to 71.5 GB, or `zero = 2` brings it to "),
        "{text}"
    );
    for suggestion in &refusal.suggestions {
        assert!(suggestion.total <= refusal.available, "{text}");
    }
    let shared = Parallel { sharding: Sharding::Optimiser, ..parallel };
    assert!(fit(&llama, &shared, &training, None, ("H100 SXM5", Bytes(80_000_000_000))).is_ok());
    // Where nothing is enough, it says so.
    let alone =
        fit(&llama, &Parallel::data(1), &Training::default(), None, ("H100 SXM5", Bytes(80_000_000_000)));
    assert!(alone.expect_err("too much").to_string().contains("nothing alone is enough"));
}

/// Adam's state and the parameters in f32 are on the servers; what a GPU could share out it does not have.
#[test]
fn where_parameters_live_on_servers_so_does_the_optimisers_state() {
    let llama = model("llama-3-8b");
    let parallel = Parallel::data(8);
    let training = Training { global_batch: 8, recompute: Recompute::Full, ..Training::default() };
    let [own, away] = [None, Some(2)].map(|servers| memory(&llama, &parallel, &training, servers));
    assert_eq!(own.optimiser.as_u64(), 12 * llama.parameters());
    assert_eq!(away, Memory { optimiser: Bytes::ZERO, ..own });
    let h100 = ("H100 SXM5", Bytes(80_000_000_000));
    assert!(own.total() > h100.1 && away.total() <= h100.1, "{own:?} and {away:?}");
    assert!(fit(&llama, &parallel, &training, None, h100).is_err());
    assert_eq!(fit(&llama, &parallel, &training, Some(2), h100), Ok(away));
    let refusal =
        fit(&llama, &parallel, &training, Some(2), ("small", Bytes(20_000_000_000))).expect_err("too much");
    assert!(!refusal.to_string().contains("zero"), "{refusal}");
}
