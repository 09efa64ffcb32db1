use railnet_core::{Bytes, Rank, Span, Time};
use railnet_topology::catalogue::{cluster, host};

use super::analytic::{Asked, ClusterCosts, Network, NoPrice, Price, run};
use super::{Outcome, Special, Workers, critical_path};
use crate::compute::Gpu;
use crate::graph::{Job, StepGraph};
use crate::model::catalogue;
use crate::parallel::{Parallel, Schedule, Scope};
use crate::training::{Precision, Training};

fn job(model: &str, parallel: Parallel, global_batch: u64) -> Job {
    let model = catalogue::model(model).expect("it is in the catalogue");
    let gpu = Gpu::of(&host("dgx-h100").expect("it is there"), Precision::Bf16).expect("it has GPUs");
    let training = Training { global_batch, ..Training::default() };
    parallel.check(parallel.ranks(), &model, global_batch, 1).expect("it fits together");
    Job::new(model, parallel, training, gpu)
}

/// A network on which everything takes the same time.
struct Fixed(Span);

impl Network for Fixed {
    fn price(&mut self, _: &Asked<'_>) -> Result<Price, NoPrice> {
        Ok(Price { time: self.0, permille: 0 })
    }
}

/// The bubble of a pipeline is (p − 1) / m of the time that all microbatches take, and v times less with v chunks (arXiv
/// 2104.04473, section 2.2), where communication takes no time and stages are alike.
#[test]
fn bubbles_are_those_of_the_closed_form() {
    let cases = [
        (Schedule::GPipe, 8),
        (Schedule::OneForwardOneBackward, 8),
        (Schedule::OneForwardOneBackward, 4),
        (Schedule::Interleaved { chunks: 2 }, 8),
        (Schedule::Interleaved { chunks: 4 }, 16),
    ];
    for (schedule, microbatches) in cases {
        let parallel = Parallel { pipeline: 4, schedule, ..Parallel::default() };
        let mut job = job("llama-3-8b", parallel, microbatches);
        // Words that cost nothing make stages alike.
        job.model.vocabulary = 1;
        job.model.sequence = 4_096;
        let graph = StepGraph::new(&job);
        let machine = run(&graph, Workers::kinds(&graph, &[]), &mut Fixed(Span::ZERO)).expect("it runs");
        let outcome = Outcome::of(&job, &machine);
        let passes = outcome.workers[1].forward + outcome.workers[1].backward;
        let expected = passes.as_secs_f64() * 3.0 / (microbatches as f64 * f64::from(schedule.chunks()));
        let found = outcome.workers[1].bubble.as_secs_f64();
        assert!(
            (found / expected - 1.0).abs() < 0.02,
            "{schedule:?}, {microbatches}: {found} and {expected}"
        );
        for worker in &outcome.workers {
            assert_eq!(worker.total(), outcome.step, "every picosecond is accounted for");
        }
    }
}

#[test]
fn one_rank_of_a_kind_stands_for_all() {
    let schedule = Schedule::Interleaved { chunks: 2 };
    let parallel = Parallel {
        tensor: 2,
        sequence: true,
        pipeline: 2,
        data: 4,
        expert: 2,
        schedule,
        ..Parallel::default()
    };
    let mut job = job("mixtral-8x7b", parallel, 16);
    job.hot_expert = 2.0;
    let graph = StepGraph::new(&job);
    let cluster = cluster("dgx-h100x2").expect("it is in the catalogue");
    for special in [vec![], vec![Special { rank: Rank(6), permille: 1_100 }]] {
        let mut outcomes = Vec::new();
        for workers in [Workers::all(&graph, &special), Workers::kinds(&graph, &special)] {
            let count: u32 = workers.workers.iter().map(|worker| worker.stands_for).sum();
            assert_eq!(count, 16);
            let machine = run(&graph, workers, &mut ClusterCosts::plain(&cluster)).expect("it runs");
            outcomes.push(Outcome::of(&job, &machine));
        }
        let [all, kinds] = &outcomes[..] else { panic!("there are two") };
        assert_eq!(all.step, kinds.step);
        let near = |a: Span, b: Span| a.as_ps().abs_diff(b.as_ps()) < 10;
        assert!(near(all.average.bubble, kinds.average.bubble));
        assert!(near(all.average.waiting, kinds.average.waiting));
        assert!(near(all.average.exposed_total(), kinds.average.exposed_total()));
        let slow = all.straggler.expect("the hot expert, or the slow rank");
        assert_eq!(Some(slow.rank), kinds.straggler.map(|one| one.rank));
        if !special.is_empty() {
            assert_eq!(slow.rank, Rank(6));
        }
    }
}

#[test]
fn the_critical_path_has_no_holes() {
    let parallel = Parallel { tensor: 2, pipeline: 2, data: 2, ..Parallel::default() };
    let job = job("llama-3-8b", parallel, 8);
    let graph = StepGraph::new(&job);
    let machine = run(&graph, Workers::all(&graph, &[]), &mut Fixed(Span::from_us(50))).expect("it runs");
    let path = critical_path(&machine);
    assert_eq!(path[0].from, Time::ZERO);
    for pair in path.windows(2) {
        assert_eq!(pair[0].to, pair[1].from);
    }
    let outcome = Outcome::of(&job, &machine);
    assert_eq!(path.last().map(|step| step.to.since(Time::ZERO)), Some(outcome.step));
}

#[test]
fn overlap_hides_gradients_behind_the_backward_pass() {
    let cluster = cluster("dgx-h100x4").expect("it is in the catalogue");
    let mut steps = Vec::new();
    for overlap in [true, false] {
        let parallel = Parallel { bucket: Bytes::mib(24), overlap, ..Parallel::data(32) };
        let mut job = job("gpt-400m", parallel, 128);
        job.training.micro_batch = 4;
        let graph = StepGraph::new(&job);
        let machine =
            run(&graph, Workers::kinds(&graph, &[]), &mut ClusterCosts::plain(&cluster)).expect("it runs");
        let outcome = Outcome::of(&job, &machine);
        let exposed = outcome.average.exposed[Scope::Data as usize];
        steps.push((outcome.step, exposed));
        if overlap {
            assert!(outcome.average.contention > Span::ZERO, "reductions take multiprocessors");
        }
    }
    assert!(steps[0].0 < steps[1].0 && steps[0].1 < steps[1].1 / 2, "{steps:?}");
}

#[test]
fn sixteen_thousand_gpus_are_a_handful_of_kinds() {
    let schedule = Schedule::Interleaved { chunks: 8 };
    let parallel =
        Parallel { tensor: 8, sequence: true, pipeline: 16, data: 128, schedule, ..Parallel::default() };
    let job = job("llama-3-405b", parallel, 2_048);
    let graph = StepGraph::new(&job);
    let workers = Workers::kinds(&graph, &[]);
    assert_eq!(workers.workers.len(), 16);
    let cluster = cluster("dgx-h100x2048").expect("it is in the catalogue");
    let machine = run(&graph, workers, &mut ClusterCosts::plain(&cluster)).expect("it runs");
    let outcome = Outcome::of(&job, &machine);
    assert!((0.3..0.5).contains(&outcome.mfu), "{}", outcome.mfu);
}
