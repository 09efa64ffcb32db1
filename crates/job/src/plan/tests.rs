use railnet_core::{Bytes, Span};
use railnet_topology::Cluster;
use railnet_topology::catalogue::cluster;

use super::sweep::{bound, judge};
use super::*;
use crate::compute::Gpu;
use crate::model::catalogue;
use crate::parallel::{Axis, Parallel, Sharding};
use crate::training::{Precision, Training};

fn h100(nodes: u32) -> Cluster {
    cluster(&format!("dgx-h100x{nodes}")).expect("it is in the catalogue")
}

fn job(cluster: &Cluster, model: crate::model::Model, parallel: Parallel, batch: u64) -> Job {
    let gpu = Gpu::of(&cluster.host, Precision::Bf16).expect("it is known");
    let training = Training { global_batch: batch, ..Training::default() };
    Job::new(model, parallel, training, gpu)
}

fn near(found: f64, expected: f64, part: f64) {
    assert!((found / expected - 1.0).abs() < part, "{found} is not {expected}");
}

/// The worked example that articles about RDMA have: 70 B parameters in 16 bits are 140 GB of gradients, an AllReduce of them
/// sends 2 (n - 1) / n of that through each GPU, 280 GB where n is large, and to hide it behind 200 ms takes 1.4 TB/s.
#[test]
fn the_textbook_example_comes_out() {
    for (nodes, through, needed) in [(8, 275.6e9, 1.378e12), (128, 279.7e9, 1.399e12)] {
        let cluster = h100(nodes);
        let ranks = cluster.gpus();
        let job = job(&cluster, model_of(70_000_000_000), Parallel::data(ranks), u64::from(ranks));
        let job = paced(&job, Span::from_ms(200));
        near(compute(&job).as_secs_f64(), 0.2, 1e-6);
        let plan = Plan::new(&job, &Ground::plain(&cluster)).expect("it runs");
        let data = plan.demand(Scope::Data).expect("gradients are added up");
        near(data.bytes.as_u64() as f64, 140e9, 1e-4);
        near(data.through_gpu, through, 1e-3);
        near(data.through_gpu / 0.2, needed, 1e-3);
        // A ring passes each of the nodes once, a tree between nodes goes through each of them as well.
        assert!(data.out_of_node <= data.through_gpu && data.out_of_node >= 0.85 * data.through_gpu);
        // 8 × 400 Gb/s are 400 GB/s by their labels, and less behind PCIe.
        near(plan.carries.node(), 384e9, 0.02);
        // So it cannot be hidden: the NICs alone take longer.
        let least = data.out_of_node / plan.carries.node() - 0.2;
        assert!(data.exposed.as_secs_f64() > least, "{} and {least}", data.exposed);
        assert_eq!((data.nodes, data.local, data.ranks), (nodes, 8, ranks));
        assert!(
            plan.memory.total() > Bytes(1_000_000_000_000),
            "it does not fit, and is planned all the same"
        );
    }
}

/// Megatron-LM's forms (arXiv 1909.08053, 2104.04473): with tensor parallelism each layer has four AllReduces of b s h numbers
/// for each microbatch, and each GPU has a part of the gradients that many times smaller.
#[test]
fn tensor_and_pipeline_parallelism_say_what_their_papers_say() {
    let cluster = h100(4);
    let model = catalogue::model("llama-3-70b").expect("it is there");
    let (layers, hidden, sequence) = (u64::from(model.layers), model.hidden, model.sequence);
    let parallel = Parallel { tensor: 8, data: 2, pipeline: 2, ..Parallel::default() };
    let job = job(&cluster, model.clone(), parallel, 8);
    let plan = Plan::new(&job, &Ground::plain(&cluster)).expect("it runs");
    let microbatches = 4;
    let tensor = plan.demand(Scope::Tensor).expect("matrices are shared");
    let said = microbatches * 4 * layers / 2 * sequence * hidden * 2;
    // The words at the end of the pipeline add a few.
    near(tensor.bytes.as_u64() as f64, said as f64, 0.03);
    near(tensor.through_gpu, tensor.bytes.as_u64() as f64 * 2.0 * 7.0 / 8.0, 1e-9);
    assert_eq!((tensor.nodes, tensor.out_of_node), (1, 0.0));
    let pipeline = plan.demand(Scope::Pipeline).expect("there are stages");
    assert_eq!(pipeline.bytes.as_u64(), microbatches * sequence * hidden * 2);
    near(pipeline.out_of_node, 8.0 * pipeline.through_gpu, 1e-9);
    let data = plan.demand(Scope::Data).expect("the batch is shared");
    near(data.bytes.as_u64() as f64, model.parameters() as f64 * 2.0 / 16.0, 0.02);
    // Eight groups of two, each with a NIC for each of its ranks; all of it between NICs of the same number.
    near(data.out_of_node, 8.0 * data.bytes.as_u64() as f64, 1e-9);
    near(data.on_rails, 1.0, 1e-9);
}

#[test]
fn all_to_all_leaves_its_rails_where_no_gpu_sends_for_others() {
    let cluster = h100(4);
    let model = catalogue::model("mixtral-8x7b").expect("it is there");
    let parallel = Parallel { data: 32, expert: 8, order: crate::parallel::Axis::ALL, ..Parallel::default() };
    let spread = Parallel { tensor: 2, data: 16, sequence: true, ..parallel.clone() };
    let job = job(&cluster, model, spread, 32);
    let mut ground = Ground::plain(&cluster);
    let shares = |ground: &Ground<'_>| {
        let plan = Plan::new(&job, ground).expect("it runs");
        let expert = *plan.demand(Scope::Expert).expect("experts are shared");
        // Eight ranks on two servers, four of them on each: half of all tokens leave.
        near(expert.out_of_node, expert.bytes.as_u64() as f64 * 0.5 * 8.0, 1e-9);
        expert.on_rails
    };
    near(shares(&ground), 1.0, 1e-9);
    ground.options.pxn_disable = true;
    near(shares(&ground), 0.25, 1e-9);
}

#[test]
fn what_every_layer_waits_for_belongs_inside_a_server() {
    let cluster = h100(8);
    let model = catalogue::model("llama-3-70b").expect("it is there");
    let parallel = Parallel { tensor: 8, data: 8, sharding: Sharding::Optimiser, ..Parallel::default() };
    let inside = job(&cluster, model, parallel.clone(), 32);
    let plan = Plan::new(&inside, &Ground::plain(&cluster)).expect("it runs");
    let homes: Vec<_> =
        plan.homes.iter().map(|home| (home.scope, home.is_inside, home.belongs_inside)).collect();
    assert_eq!(homes, [(Scope::Tensor, true, true), (Scope::Data, false, false)]);
    for home in &plan.homes {
        assert!(home.across.expect("there are nodes") > home.inside.expect("it fits"), "{home:?}");
    }
    // The other way round it says so.
    let order = [Axis::Data, Axis::Context, Axis::Tensor, Axis::Pipeline];
    let outside = Job { parallel: Parallel { order, ..parallel }, ..inside };
    let turned = Plan::new(&outside, &Ground::plain(&cluster)).expect("it runs");
    assert!(turned.homes.iter().all(|home| home.is_inside != home.belongs_inside));
    let (order, step) = turned.better_order.expect("it is worth changing");
    assert_eq!((order[0], step), (Axis::Tensor, plan.outcome.step));
    assert_eq!(plan.better_order, None);
}

#[test]
fn without_gpudirect_everything_that_leaves_is_copied_at_both_ends() {
    let cluster = h100(4);
    let model = catalogue::model("gpt-400m").expect("it is there");
    let job = job(&cluster, model, Parallel::data(32), 32);
    let mut ground = Ground::plain(&cluster);
    let with = Plan::new(&job, &ground).expect("it runs");
    ground.gpudirect = false;
    let without = Plan::new(&job, &ground).expect("it runs");
    let saved = with.bounce.expect("gradients leave");
    assert_eq!(with.bounce, without.bounce);
    near(saved.copied, 2.0 * with.out_of_node(), 1e-9);
    assert_eq!((saved.step_direct, saved.step_bounced), (with.outcome.step, without.outcome.step));
    assert!(saved.step_bounced > saved.step_direct);
    // GPU and NIC of a DGX H100 are behind one PCIe link, which both copies need in both directions.
    near(saved.bounced.as_secs_f64(), 2.0 * saved.direct.as_secs_f64(), 0.05);
}

#[test]
fn a_model_of_any_size_has_that_size() {
    for parameters in
        [20_000_000, 400_000_000, 1_000_000_000, 13_000_000_000, 280_000_000_000, 1_800_000_000_000_u64]
    {
        let model = model_of(parameters);
        model.check().expect("it is a model");
        near(model.parameters() as f64, parameters as f64, 0.005);
    }
}

#[test]
fn every_layout_has_all_gpus_and_only_those_that_fit_are_said_to() {
    let cluster = h100(8);
    let model = catalogue::model("llama-3-70b").expect("it is there");
    let job = job(&cluster, model, Parallel::data(64), 64);
    let ground = Ground::plain(&cluster);
    let all = candidates(&job, common(&cluster));
    assert!(all.iter().all(|one| one.job.parallel.ranks() == 64 && one.job.parallel.tensor <= 8));
    assert!(all.iter().any(|one| !one.fits() && one.lacks() > Bytes::ZERO));
    let fits: Vec<Candidate> = all.into_iter().filter(Candidate::fits).collect();
    assert!(fits.iter().all(|one| one.memory.total() <= Bytes(80_000_000_000)));
    let mut costs = ground.costs();
    let judged = fits.into_iter().map(|one| judge(one, &ground, &mut costs).expect("it runs"));
    let mut judged: Vec<Judged> = judged.collect();
    judged.sort_by_key(|one| one.outcome.step);
    // No bound is above what really comes, so the best are those that all of them would give.
    for one in &judged {
        let bound = bound(&one.candidate.job, &mut costs).expect("it runs");
        assert!(bound.at_least() <= one.outcome.step, "{bound:?} and {}", one.outcome.step);
    }
    let found = Sweep::new(&job, &ground, 5).expect("it runs");
    let steps = |all: &[Judged]| all.iter().take(5).map(|one| one.outcome.step).collect::<Vec<_>>();
    assert_eq!(steps(&found.judged), steps(&judged));
    assert_eq!(found.judged.len() + found.beaten.len(), judged.len());
    assert!(!found.beaten.is_empty() && !found.misfits.is_empty());
    let (best, worst) = (&judged[0], &judged[judged.len() - 1]);
    // What makes the worst one worse adds up to the difference, less what it does better.
    let reasons = why(&best.outcome.average, &worst.outcome.average);
    let sum = reasons.iter().fold(Span::ZERO, |sum, (_, span)| sum + *span);
    assert!(sum >= worst.outcome.step - best.outcome.step, "{reasons:?}");
    assert!(reasons.windows(2).all(|pair| pair[0].1 >= pair[1].1));
}
