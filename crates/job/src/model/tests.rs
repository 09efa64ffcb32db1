use super::catalogue::{gpt, model, models};
use super::{Model, ModelError, Norm};

fn named(name: &str) -> Model {
    model(name).expect("it is in the catalogue")
}

#[test]
fn parameters_are_those_of_the_published_checkpoints() {
    // Total sizes in the safetensors indices of the checkpoints on the Hugging Face hub.
    assert_eq!(named("llama-3-8b").parameters(), 8_030_261_248);
    assert_eq!(named("llama-3-70b").parameters(), 70_553_706_496);
    assert_eq!(named("llama-3-405b").parameters(), 405_853_388_800);
    assert_eq!(named("mixtral-8x7b").parameters(), 46_702_792_704);
    // MosaicML llm-foundry, scripts/train/benchmarking/README.md, column NumParams at 2,048 tokens.
    let cases = [
        (gpt(80, 8_192, 64, 50_368), 64_862_437_376),
        (gpt(48, 7_168, 56, 50_368), 29_975_214_080),
        (gpt(40, 5_120, 40, 50_368), 12_853_954_560),
        (gpt(32, 4_096, 32, 50_368), 6_658_859_008),
    ];
    for (model, parameters) in cases {
        assert_eq!(model.parameters(), parameters, "{}", model.name);
    }
    // Narayanan et al. 2021 (arXiv 2104.04473), equation 2, for its model of a trillion parameters.
    let (layers, hidden, words, tokens) = (128_f64, 25_600_f64, 51_200_f64, 2_048_f64);
    let formula = 12.0
        * layers
        * hidden
        * hidden
        * (1.0 + 13.0 / (12.0 * hidden) + (words + tokens) / (12.0 * layers * hidden));
    let counted = gpt(128, 25_600, 160, 51_200).parameters() as f64;
    assert!((counted / formula - 1.0).abs() < 1e-5, "{counted} and {formula}");
}

#[test]
fn sizes_are_those_that_the_papers_round_to() {
    let near = |count: u64, billions: f64| (count as f64 / 1e9 / billions - 1.0).abs() < 0.01;
    assert!(near(named("gpt-3-175b").parameters(), 175.0));
    assert!(near(named("mixtral-8x7b").active_parameters(), 12.9));
    assert!(near(named("deepseek-v3").parameters(), 671.0));
    // "37B activated" counts one matrix of words.
    let deepseek = named("deepseek-v3");
    let met = deepseek.active_parameters() - deepseek.embedding_parameters();
    assert!(near(met, 36.7), "{met}");
}

#[test]
fn the_built_in_job_has_gradients_of_32_times_24_mib() {
    let model = named("gpt-400m");
    assert_eq!(model.parameters() * 2, 768 << 20);
    assert_eq!(model.layer_parameters(0).dense * 2, 24 << 20);
    assert_eq!(model.norm, Norm::Plain);
}

#[test]
fn every_model_of_the_catalogue_makes_sense() {
    for (name, title) in models() {
        assert!(!title.is_empty());
        named(name).check().unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn a_model_that_makes_no_sense_is_told_why() {
    let heads = Model { kv_heads: 7, ..named("llama-3-8b") }.check();
    assert_eq!(
        heads.map_err(|error| error.to_string()),
        Err("32 heads cannot share 7 heads of keys and values evenly: 4 or 8 would do".to_owned())
    );
    let none = Model { layers: 0, ..named("tiny") }.check();
    assert_eq!(none, Err(ModelError::Zero { key: "layers" }));
}
