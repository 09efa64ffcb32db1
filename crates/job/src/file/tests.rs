use railnet_core::{Bytes, Rate, Span};
use railnet_topology::Cluster;
use railnet_topology::catalogue::cluster;

use super::{FileError, JobSection, Resolved};
use crate::graph::StepGraph;
use crate::parallel::{Schedule, Sharding};
use crate::plan::Passes;
use crate::run::{Outcome, Workers, analytic};

fn h100(nodes: u32) -> Cluster {
    cluster(&format!("dgx-h100x{nodes}")).expect("it is in the catalogue")
}

fn resolve(text: &str, nodes: u32) -> Result<Resolved, FileError> {
    let section: JobSection = toml::from_str(text).expect("it is a job");
    section.resolve(&h100(nodes))
}

#[test]
fn a_name_and_a_cluster_are_a_job() {
    let text = "
        [model]
        name = \"llama-3-70b\"
        [training]
        global_batch = 256
        [parallel]
        tp = 8
        pp = 4
        sp = true
        zero = 1
        schedule = \"interleaved\"
        chunks = 5
    ";
    let found = resolve(text, 64).expect("it fits");
    assert_eq!((found.job.parallel.data, found.job.training.global_batch), (16, 256));
    assert_eq!(found.job.parallel.sharding, Sharding::Optimiser);
    assert_eq!(found.job.parallel.schedule, Schedule::Interleaved { chunks: 5 });
    assert!(found.memory.total() < Bytes(80_000_000_000));
    let graph = StepGraph::new(&found.job);
    let cluster = h100(64);
    let mut costs = analytic::ClusterCosts::plain(&cluster);
    let machine = analytic::run(&graph, Workers::kinds(&graph, &[]), &mut costs).expect("it runs");
    let outcome = Outcome::of(&found.job, &machine);
    assert!((0.3..0.6).contains(&outcome.mfu), "{}", outcome.mfu);
}

#[test]
fn what_is_wrong_is_told_with_its_key() {
    let cases = [
        ("[model]\nname = \"llama-3-70\"", "model.name", "unknown model \"llama-3-70\": one of llama-3-8b, "),
        ("[model]\nlayers = 4", "model", "name a model, one of "),
        (
            "model = { name = \"tiny\" }\nparallel = { tp = 3 }",
            "parallel",
            "tp 3 × cp 1 × pp 1 × dp 2 are 6 ranks",
        ),
        (
            "model = { name = \"tiny\" }\nparallel = { zero = 4 }",
            "parallel.zero",
            "`zero` is 0 (nothing shared)",
        ),
        ("model = { name = \"tiny\" }\nlaunch = { nodes = 2 }", "launch.nodes", "the cluster has 1 nodes"),
        (
            "model = { name = \"tiny\" }\nparameters = { servers = 1 }\nparallel = { fsdp = true }",
            "parameters",
            "parameters that live on servers",
        ),
        ("[model]\nname = \"llama-3-405b\"", "model", "llama-3-405b does not fit: "),
        (
            "model = { name = \"tiny\" }\ntraining = { forward = \"0ms\" }",
            "training.forward",
            "a forward pass takes some time: leave `forward` out",
        ),
        (
            "model = { name = \"tiny\" }\ntraining = { backward = \"3601s\" }",
            "training.backward",
            "a backward pass of 3601 s is longer than 3600 s",
        ),
    ];
    for (text, key, message) in cases {
        let error = resolve(text, 1).expect_err(text);
        assert_eq!(error.key, key, "{error}");
        assert!(error.message.starts_with(message), "{error}");
    }
    assert_eq!(resolve(cases[0].0, 1).expect_err("wrong").meant.as_deref(), Some("llama-3-70b"));
    assert!(resolve(cases[6].0, 1).expect_err("wrong").memory.is_some());
    let unknown =
        toml::from_str::<JobSection>("[parallel]\nschedule = \"zigzag\"").expect_err("no such schedule");
    assert!(unknown.message().contains("expected one of `gpipe`, `1f1b`, `interleaved`"), "{unknown}");
}

#[test]
fn passes_take_the_times_that_are_given() {
    let layouts = ["", "pp = 2", "tp = 4\nzero = 1", "pp = 2\ntp = 2\nschedule = \"gpipe\""];
    for (layout, recompute) in layouts.into_iter().flat_map(|layout| [(layout, "none"), (layout, "full")]) {
        let passes = |more: &str| {
            let text = format!(
                "[model]\nname = \"gpt-400m\"\n[parallel]\n{layout}\n\
                 [training]\nglobal_batch = 64\nrecompute = \"{recompute}\"\n{more}"
            );
            Passes::of(&resolve(&text, 1).expect("it fits").job)
        };
        let near = |found: Span, told: Span| {
            assert!(found.as_ps().abs_diff(told.as_ps()) < 1_000_000, "{layout}: {found} is not {told}");
        };
        let modelled = passes("");
        let both = passes("forward = \"200ms\"\nbackward = \"300ms\"");
        near(both.forward, Span::from_ms(200));
        near(both.backward, Span::from_ms(300));
        assert_eq!(both.optimiser, modelled.optimiser, "the optimiser is not in the passes");
        let one = passes("forward = \"1ms\"");
        near(one.forward, Span::from_ms(1));
        assert_eq!(one.backward, modelled.backward, "what is not given is modelled");
        let none = passes("forward = \"1ps\"");
        assert_eq!((none.forward, none.backward), (Span::ZERO, modelled.backward), "it rounds to nothing");
    }
}

#[test]
fn a_model_can_be_described_or_changed() {
    let text = "
        [model]
        layers = 4
        hidden = 512
        heads = 8
        ffn = 2048
        vocabulary = 1000
        sequence = 128
        experts = { count = 8, top_k = 2 }
    ";
    let found = resolve(text, 1).expect("it is complete");
    assert_eq!(found.job.model.experts.map(|experts| experts.ffn), Some(2_048));
    let changed = resolve("[model]\nname = \"tiny\"\nsequence = 512", 1).expect("it is there");
    assert_eq!((changed.job.model.sequence, changed.job.model.layers), (512, 4));
}

#[test]
fn checkpoints_and_servers_cost_what_their_bytes_take() {
    let text = "
        [model]
        name = \"gpt-400m\"
        [storage]
        rate = \"10GB/s\"
        gpudirect = true
        interval = 100
        [parameters]
        servers = 2
        rate = \"100Gbps\"
    ";
    let found = resolve(text, 6).expect("it fits, with two nodes for parameters");
    let (interval, bytes) = found.checkpoint.expect("it has one");
    assert_eq!((interval, bytes.as_u64()), (100, 402_653_184 * 14 / 32));
    assert_eq!(found.rates.storage, Some(Rate::gbps(80)));
    let cluster = h100(4);
    let step = |checkpoint| {
        let mut job = found.job.clone();
        job.checkpoint = checkpoint;
        let graph = StepGraph::new(&job);
        let mut costs = analytic::ClusterCosts::new(
            &cluster,
            railnet_coll::tuner::Settings::default(),
            railnet_coll::TopologyOptions::default(),
            found.rates,
        );
        let machine = analytic::run(&graph, Workers::kinds(&graph, &[]), &mut costs).expect("it runs");
        Outcome::of(&job, &machine).step.as_secs_f64()
    };
    // 768 MiB of gradients and as much of parameters, 32 times, through two servers of 12.5 GB/s.
    let through_servers = 2.0 * 32.0 * 805_306_368.0 / 25e9;
    let plain = step(None);
    assert!(plain > through_servers && plain < 1.2 * through_servers + 0.05, "{plain} and {through_servers}");
    let written = bytes.as_u64() as f64 * 8.0 / 10e9;
    assert!((step(Some(bytes)) - plain - written).abs() < 0.001);
}

#[test]
fn numbers_within_the_limits_count_without_overflow() {
    use railnet_core::Random;
    let mut random = Random::stream(1, "limits", 0);
    let mut resolved = 0;
    for _ in 0..20_000 {
        let mut power = |most: u64| 1_u64 << random.between(0, most);
        let (heads, layers) = (power(16), power(13));
        let text = format!(
            "[model]\nname = \"x\"\nlayers = {layers}\nhidden = {}\nheads = {heads}\nhead_size = {}\nffn = {}\n\
             vocabulary = {}\nsequence = {}\nexperts = {{ count = {}, top_k = 1, shared = {}, ffn = {} }}\n\
             [training]\nmicro_batch = {}\nglobal_batch = {}\nattention = \"plain\"\nprecision = \"fp32\"\n\
             [parallel]\ntp = {}\nzero = 3\nprefetch = {}\n",
            power(20),
            power(10),
            power(20),
            power(24),
            power(27),
            power(16),
            power(6),
            power(20),
            power(10),
            power(31),
            power(3),
            power(13),
        );
        let section: JobSection = toml::from_str(&text).expect("it is a job");
        // Built with overflow checks: a sum that wraps is a panic here.
        resolved += u32::from(section.lay_out(&h100(1)).is_ok());
    }
    assert!(resolved > 100, "{resolved}");
}

#[test]
fn divisors_near_are_the_nearest() {
    for number in 1..200_u64 {
        for wanted in 1..220 {
            let below = (1..wanted).rev().find(|one| number.is_multiple_of(*one));
            let above = (wanted + 1..=number).find(|one| number.is_multiple_of(*one));
            let slow: Vec<String> = below.into_iter().chain(above).map(|one| one.to_string()).collect();
            assert_eq!(
                crate::parallel::divisors_near(number, wanted),
                slow.join(" or "),
                "{number} {wanted}"
            );
        }
    }
    assert_eq!(crate::parallel::divisors_near(2_147_483_647, 16), "1 or 2147483647");
}
