use proptest::prelude::*;
use railnet_core::{Bytes, Rank, Span, Time};
use railnet_topology::Cluster;
use railnet_topology::catalogue::{cluster, host};

use super::analytic::{Asked, ClusterCosts, Network, NoPrice, Price, run};
use super::{Machine, Outcome, Special, Workers, critical_path, said};
use crate::compute::Gpu;
use crate::graph::{Job, StepGraph, Stream};
use crate::model::catalogue;
use crate::parallel::{Axis, Parallel, Schedule, Scope, Sharding};
use crate::training::{Precision, Recompute, Training};

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
        Ok(Price { time: self.0, permille: 0, network_permille: 0 })
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
        // Many layers and no words to speak of make stages alike.
        job.model.vocabulary = 1;
        job.model.layers = 128;
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
    for special in [vec![], vec![Special { rank: Rank(6), permille: 3_000 }]] {
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
        let kind = kinds.straggler.expect("the same one");
        assert_eq!(slow.rank, kind.rank);
        assert!(
            slow.delay.as_ps().abs_diff(kind.delay.as_ps() / u64::from(kind.alike)) < 1_000,
            "{slow:?} and {kind:?}"
        );
        if !special.is_empty() {
            assert_eq!(slow.rank, Rank(6));
        }
    }
}

#[test]
fn all_that_ranks_wait_for_a_slow_gpu_counts_for_it_however_few_stand_for_them() {
    let parallel = Parallel { tensor: 8, data: 4, ..Parallel::default() };
    let job = job("gpt-400m", parallel, 16);
    let graph = StepGraph::new(&job);
    let cluster = cluster("dgx-h100x4").expect("it is in the catalogue");
    let special = [Special { rank: Rank(13), permille: 1_200 }];
    for workers in [Workers::all(&graph, &special), Workers::kinds(&graph, &special)] {
        let machine = run(&graph, workers, &mut ClusterCosts::plain(&cluster)).expect("it runs");
        let found = Outcome::of(&job, &machine);
        let slow = found.straggler.expect("the slow one");
        assert_eq!(slow.rank, Rank(13));
        let waited = found.average.waiting.as_secs_f64() * 32.0;
        let share = slow.delay.as_secs_f64() / waited;
        assert!(
            (0.98..=1.001).contains(&share),
            "{share} of {waited} s in {} workers",
            machine.workers().len()
        );
        // The rows that are drawn say the same.
        let rows = super::timeline(&machine, 0, Time::ZERO);
        let drawn = rows.iter().filter_map(|row| {
            let (rank, wait) = row.late?;
            (rank == slow.rank).then(|| u64::from(row.stands_for) * wait.as_ps())
        });
        assert_eq!(drawn.sum::<u64>(), slow.delay.as_ps());
    }
}

#[test]
fn one_rank_of_each_kind_is_exact_where_servers_have_unlike_numbers_of_gpus() {
    let host = |name: &str| host(name).expect("it is in the catalogue");
    let groups = [(host("pcie-4gpu"), 1), (host("dgx-h100"), 3), (host("cpu"), 1), (host("pcie-4gpu"), 3)];
    let cluster = Cluster::of_groups(&groups).expect("there are some");
    assert_eq!(cluster.gpus(), 40);
    let layouts = [
        (Parallel::data(40), 16),
        (Parallel { tensor: 4, data: 10, ..Parallel::default() }, 40),
        (Parallel { tensor: 8, data: 5, ..Parallel::default() }, 40),
        (Parallel { tensor: 2, pipeline: 2, data: 10, ..Parallel::default() }, 40),
        (Parallel { tensor: 4, pipeline: 2, data: 5, ..Parallel::default() }, 40),
    ];
    for (parallel, most) in layouts {
        let mut job = job("gpt-400m", parallel, 40);
        job.others = crate::file::others(&cluster, job.training.precision).expect("they have GPUs");
        let graph = StepGraph::new(&job);
        let mut outcomes = Vec::new();
        for workers in [Workers::all(&graph, &[]), Workers::kinds(&graph, &[])] {
            assert_eq!(workers.workers.iter().map(|worker| worker.stands_for).sum::<u32>(), 40);
            let machine = run(&graph, workers, &mut ClusterCosts::plain(&cluster)).expect("it runs");
            outcomes.push(Outcome::of(&job, &machine));
        }
        let [all, kinds] = &outcomes[..] else { panic!("there are two") };
        assert!(kinds.workers.len() <= most, "{}", kinds.workers.len());
        assert_eq!(all.step, kinds.step);
        let near = |a: Span, b: Span| a.as_ps().abs_diff(b.as_ps()) < 40;
        assert!(near(all.average.compute(), kinds.average.compute()));
        assert!(near(all.average.waiting, kinds.average.waiting), "{:?} {:?}", all.average, kinds.average);
        assert!(near(all.average.exposed_total(), kinds.average.exposed_total()));
    }
}

#[test]
fn the_critical_path_has_no_holes() {
    let parallel = Parallel { tensor: 2, pipeline: 2, data: 2, ..Parallel::default() };
    let job = job("llama-3-8b", parallel, 8);
    let graph = StepGraph::new(&job);
    let machine = run(&graph, Workers::all(&graph, &[]), &mut Fixed(Span::from_us(50))).expect("it runs");
    let mut ran = 0;
    for stream in Stream::ALL {
        let row: Vec<_> = machine.timeline(0, stream).map(|(_, record)| record).collect();
        assert!(row.windows(2).all(|pair| pair[0].ended <= pair[1].entered), "one after the other");
        ran += row.len();
    }
    assert_eq!(ran, machine.records(0).len());
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
    // As many without a pipeline: one kind.
    let sharding = Sharding::Optimiser;
    let parallel = Parallel { tensor: 8, sequence: true, data: 2_048, sharding, ..Parallel::default() };
    let job = self::job("llama-3-70b", parallel, 4_096);
    let graph = StepGraph::new(&job);
    let workers = Workers::kinds(&graph, &[]);
    assert_eq!(workers.workers.len(), 1);
    let machine = run(&graph, workers, &mut ClusterCosts::plain(&cluster)).expect("it runs");
    assert!((0.1..0.5).contains(&Outcome::of(&job, &machine).mfu));
}

#[test]
fn what_was_said_is_counted_by_kind() {
    let parallel = Parallel { bucket: Bytes::mib(24), pipeline: 2, data: 4, ..Parallel::default() };
    let job = job("gpt-400m", parallel, 16);
    let graph = StepGraph::new(&job);
    let mut costs = Vec::new();
    let cluster = cluster("dgx-h100").expect("it is in the catalogue");
    for workers in [Workers::all(&graph, &[]), Workers::kinds(&graph, &[])] {
        let machine = run(&graph, workers, &mut ClusterCosts::plain(&cluster)).expect("it runs");
        let mut found = said(&machine);
        for one in &mut found {
            // Of ranks that come at the same moment, which one counts as the last depends on who is there.
            one.worst.last = one.worst.last.map(|_| Rank(0));
        }
        costs.push(found);
    }
    assert_eq!(costs[0], costs[1], "one of a kind stands for all");
    let of =
        |scope: Scope| -> Vec<&super::Said> { costs[0].iter().filter(|one| one.scope == scope).collect() };
    // Each of the two stages has 12 layers of 24 MiB and words of 96 MiB: 16 buckets.
    let [gradients] = of(Scope::Data)[..] else { panic!("one kind") };
    assert_eq!((gradients.count, gradients.largest, gradients.bytes), (16, Bytes::mib(24), Bytes::mib(384)));
    assert_eq!(graph.programs[0].volume(Scope::Data), (16, Bytes::mib(384)));
    assert!(
        gradients.median > Span::ZERO
            && gradients.median <= gradients.late
            && gradients.late <= gradients.longest
    );
    // Four microbatches forward and backward: half of the ranks send each way.
    let sent: u64 = of(Scope::Pipeline).iter().map(|one| one.count).sum();
    assert_eq!(sent, 8);
}

#[test]
fn one_that_computes_waits_for_nobody() {
    let parallel = Parallel { data: 2, ..Parallel::default() };
    let graph = StepGraph::new(&job("tiny", parallel, 2));
    let mut machine = Machine::new(&graph, Workers::all(&graph, &[]), Time::ZERO);
    let mut said = None;
    while said.is_none() {
        assert_eq!(machine.waiting().next(), None, "all compute");
        let at = machine.poll_timeout().expect("data parallel ranks come to a communication");
        machine.handle_timeout(at);
        said = machine.poll_entry();
    }
    assert!(machine.waiting().any(|ticket| Some(ticket) == said), "who entered a communication waits in it");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever the layout: nobody waits for ever, and every picosecond of every rank is accounted for; one rank of a kind
    /// stands for all; the critical path is as long as the step.
    #[test]
    fn every_layout_runs_to_its_end(
        tensor in 0u32..2, sequence: bool, context in 0u32..2, pipeline in 1u32..4, blocks in 1u32..3, expert in 0u32..2,
        chunks in 1u32..3, sharding in 0usize..4, overlap: bool, groups in 1u64..3, recompute in 0usize..3, gpipe: bool,
        turn in 0usize..4, slow in 0u32..64,
    ) {
        let mut order = Axis::ALL;
        order.rotate_left(turn);
        let schedule = match (gpipe, chunks) {
            (true, _) => Schedule::GPipe,
            (false, 1) => Schedule::OneForwardOneBackward,
            (false, chunks) => Schedule::Interleaved { chunks },
        };
        let parallel = Parallel {
            tensor: 1 << tensor,
            context: 1 << context,
            pipeline,
            data: blocks << expert,
            expert: 1 << expert,
            sequence: sequence && tensor > 0,
            sharding: Sharding::ALL[sharding],
            schedule,
            overlap,
            order,
            bucket: Bytes::mib(1),
            ..Parallel::default()
        };
        let batch = u64::from(parallel.data) * u64::from(pipeline) * groups;
        let mut job = job("tiny", Parallel::default(), 1);
        job.model.experts = Some(crate::model::Experts { count: 4, top_k: 2, shared: 1, ffn: 512, dense_layers: 1 });
        job.model.tied = true;
        job.training.global_batch = batch;
        job.training.recompute = [Recompute::None, Recompute::Selective, Recompute::Full][recompute];
        job.hot_expert = 1.5;
        let job = Job { parallel, ..job };
        job.parallel.check(job.parallel.ranks(), &job.model, batch, 1).expect("it fits together");
        let graph = StepGraph::new(&job);
        let special = [Special { rank: Rank(slow % job.parallel.ranks()), permille: 1_300 }];
        let mut steps = Vec::new();
        for workers in [Workers::all(&graph, &special), Workers::kinds(&graph, &special)] {
            let ranks: u32 = workers.workers.iter().map(|worker| worker.stands_for).sum();
            prop_assert_eq!(ranks, job.parallel.ranks());
            let machine = run(&graph, workers, &mut Fixed(Span::from_us(7))).expect("it runs");
            prop_assert!(machine.is_done());
            let outcome = Outcome::of(&job, &machine);
            for worker in &outcome.workers {
                prop_assert_eq!(worker.total(), outcome.step);
            }
            let path = critical_path(&machine);
            prop_assert!(path.windows(2).all(|pair| pair[0].to == pair[1].from));
            prop_assert_eq!(path[0].from, Time::ZERO);
            steps.push(outcome.step);
        }
        prop_assert_eq!(steps[0], steps[1]);
    }
}
