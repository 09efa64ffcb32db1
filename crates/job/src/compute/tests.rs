use railnet_topology::catalogue::host;

use super::{Gpu, Shard, layer_cost, model_flops, optimiser_cost, step_flops};
use crate::model::{Model, catalogue};
use crate::parallel::Parallel;
use crate::training::{Precision, Training};

fn gpu(server: &str) -> Gpu {
    Gpu::of(&host(server).expect("it is in the catalogue"), Precision::Bf16).expect("it has GPUs")
}

fn model(name: &str) -> Model {
    catalogue::model(name).expect("it is in the catalogue")
}

/// Narayanan et al. 2021 (arXiv 2104.04473), equation 3: 96 B s l h² (1 + s / 6h + V / 16 l h), with everything but the words
/// computed once more.
#[test]
fn operations_are_those_of_megatrons_formula() {
    for (layers, hidden, heads) in [(24_u32, 2_304_u64, 24), (80, 12_288, 96), (128, 25_600, 160)] {
        let gpt = catalogue::gpt(layers, hidden, heads, 51_200);
        let batch = 512;
        let (l, h, s, v) = (f64::from(layers), hidden as f64, gpt.sequence as f64, 51_200.0);
        let formula = 96.0 * batch as f64 * s * l * h * h * (1.0 + s / (6.0 * h) + v / (16.0 * l * h));
        let (of_layers, of_words) = model_flops(&gpt, batch);
        let counted = 4.0 * of_layers + 3.0 * of_words;
        assert!((counted / formula - 1.0).abs() < 1e-12, "{counted} and {formula}");
    }
}

#[test]
fn a_dense_token_takes_six_operations_a_parameter_and_its_attention() {
    let llama = model("llama-3-405b");
    let tokens = 8_192_f64;
    // 6 N D and 12 l h s² for the scores; the words that go in are looked up, not multiplied.
    let scores = 12.0 * 126.0 * 16_384.0 * tokens * tokens;
    let met = (llama.parameters() - llama.embedding_parameters()) as f64;
    let expected = 6.0 * met * tokens + scores;
    assert!((step_flops(&llama, 1) / expected - 1.0).abs() < 1e-4);
    // Of a mixture only those count that a token meets.
    let mixtral = model("mixtral-8x7b");
    let met = (mixtral.active_parameters() - mixtral.embedding_parameters()) as f64;
    let scores = 12.0 * 32.0 * 4_096.0 * 32_768_f64.powi(2);
    assert!((step_flops(&mixtral, 1) / (6.0 * met * 32_768.0 + scores) - 1.0).abs() < 1e-4);
    let deepseek = model("deepseek-v3");
    let met = (deepseek.active_parameters() - deepseek.embedding_parameters()) as f64;
    let scores = 6.0 * 61.0 * 128.0 * (192.0 + 128.0) * 4_096_f64.powi(2);
    assert!((step_flops(&deepseek, 1) / (6.0 * met * 4_096.0 + scores) - 1.0).abs() < 1e-3);
}

#[test]
fn every_operation_of_a_layer_has_a_kernel() {
    let training = Training::default();
    for name in ["llama-3-70b", "gpt-3-175b", "mixtral-8x7b", "deepseek-v3"] {
        let model = model(name);
        let kernel = crate::training::AttentionKernel::Plain;
        let training = Training { attention: kernel, ..training };
        let shard = Shard::new(&model, &Parallel::default(), &training);
        let layer = model.layers - 1;
        let total = layer_cost(&gpu("dgx-h100"), &model, &shard, layer).total();
        let one = Model {
            layers: 1,
            experts: model.experts.map(|it| crate::model::Experts { dense_layers: 0, ..it }),
            ..model
        };
        let (expected, _) = model_flops(&one, 1);
        let ratio = total.forward.flops / expected;
        assert!((ratio - 1.0).abs() < 1e-3, "{name}: {ratio}");
        let backward = (total.backward.flops + total.tail.flops) / total.forward.flops;
        assert!((backward - 2.0).abs() < 1e-9, "{name}: {backward}");
    }
}

/// Layers on a real GPU: testdata/gpu/h200.csv, by testdata/gpu/measure.py.
#[test]
#[expect(clippy::print_stdout, reason = "the table is what one runs it for")]
fn layers_take_as_long_as_they_do_on_a_real_gpu() {
    let measured = include_str!("../../../../testdata/gpu/h200.csv");
    let gpu = gpu("hgx-h200");
    let mut seen = 0;
    for line in measured.lines().filter(|line| line.starts_with("layer_")) {
        let fields: Vec<&str> = line.split(',').collect();
        let shape: Vec<u64> =
            fields[1].split(['x', '/']).map(|number| number.parse().expect("a number")).collect();
        let [batch, tokens, hidden, heads, kv_heads, ffn] = shape[..] else { panic!("{line}") };
        // The part of a tensor-parallel rank is a layer with fewer heads; it does not turn queries and keys.
        let llama = model("llama-3-8b");
        let layer =
            Model { hidden, heads, kv_heads, ffn, sequence: tokens, learned_positions: true, ..llama };
        let training = Training { micro_batch: batch, ..Training::default() };
        let total = layer_cost(&gpu, &layer, &Shard::new(&layer, &Parallel::default(), &training), 0).total();
        let mut seconds = total.forward.seconds;
        if fields[0] == "layer_both" {
            seconds += total.backward.seconds + total.tail.seconds;
        }
        let real: f64 = fields[2].parse().expect("microseconds");
        let error = seconds * 1e6 / real - 1.0;
        // The last two ran without fused kernels, which costs them more.
        let limit = if tokens == 2_048 && batch == 1 { 0.20 } else { 0.10 };
        println!(
            "{} {}: {:.0} us, measured {real:.0} us, {:+.1} %",
            fields[0],
            fields[1],
            seconds * 1e6,
            error * 100.0
        );
        assert!(error.abs() < limit, "{line}: {:.0} us, {:.1} % off", seconds * 1e6, error * 100.0);
        seen += 1;
    }
    assert_eq!(seen, 12);
}

#[test]
fn small_products_and_streams_are_bound_by_memory() {
    let gpu = gpu("dgx-a100");
    let adam = optimiser_cost(&gpu, &Training::default(), 1_000_000_000);
    // 24 bytes of state, a gradient four times and a parameter: 34 GB at 88 % of 2,039 GB/s.
    assert!((adam.seconds - 34e9 / (2_039e9 * 0.88)).abs() < 1e-5);
    assert!(Gpu::of(&host("cpu").expect("it is there"), Precision::Bf16).is_err());
    let error = Gpu::of(&host("dgx-a100").expect("it is there"), Precision::F8).expect_err("no such units");
    assert_eq!(error.to_string(), "A100 SXM4 has no 8-bit matrix units: train in bf16");
}
