use railnet_coll::Collective;
use railnet_core::{Bytes, Span};
use railnet_topology::catalogue::{cluster, host};

use super::{RankTrace, TraceError, TraceGraph, TraceNode, TraceWork};
use crate::compute::Gpu;
use crate::graph::{Job, StepGraph};
use crate::parallel::Scope;
use crate::run::analytic::{ClusterCosts, run};
use crate::run::{Outcome, Workers};
use crate::training::Precision;

fn gpu() -> Gpu {
    Gpu::of(&host("dgx-h100").expect("it is there"), Precision::Bf16).expect("it has GPUs")
}

fn node(id: u64, what: TraceWork, after: &[u64]) -> TraceNode {
    TraceNode { id, name: format!("n{id}"), what, after: after.to_vec(), start: Span::ZERO }
}

fn compute(us: u64) -> TraceWork {
    TraceWork::Compute { time: Some(Span::from_us(us)), operations: 0, bytes: Bytes::ZERO }
}

fn all_reduce(bytes: u64, group: Option<&str>) -> TraceWork {
    TraceWork::Collective {
        collective: Collective::AllReduce,
        bytes: Bytes(bytes),
        group: group.map(str::to_owned),
    }
}

fn outcome(traces: &[RankTrace]) -> Outcome {
    let cluster = cluster("dgx-h100").expect("it is there");
    let trace = TraceGraph::new(traces, &gpu()).expect("the traces fit together");
    let job = Job::of_trace(trace, traces.len() as u32, gpu());
    let graph = StepGraph::new(&job);
    let machine = run(&graph, Workers::kinds(&graph, &[]), &mut ClusterCosts::plain(&cluster));
    Outcome::of(&job, &machine.expect("it runs"))
}

#[test]
fn nodes_run_when_what_they_wait_for_is_done() {
    // Rank 3 computes twice as long: the others wait for it in the collective, and compute once more.
    let of = |rank: u64| {
        let first = node(7, compute(if rank == 3 { 200 } else { 100 }), &[]);
        let idle = node(8, TraceWork::Nothing, &[7]);
        let reduce = node(9, all_reduce(1 << 20, None), &[8]);
        RankTrace { nodes: vec![node(10, compute(50), &[9]), reduce, idle, first], ..RankTrace::default() }
    };
    let traces: Vec<RankTrace> = (0..8).map(of).collect();
    let found = outcome(&traces);
    assert!(found.step > Span::from_us(250), "{}", found.step);
    let waited = found.workers[0].waiting;
    assert_eq!(waited, Span::from_us(100), "for rank 3");
    assert_eq!(found.straggler.map(|one| one.rank.0), Some(3));
}

#[test]
fn messages_go_between_any_two_ranks_and_groups_are_those_who_use_them() {
    let send = |to| TraceWork::Send { to, bytes: Bytes(1 << 20) };
    let receive = |from| TraceWork::Receive { from, bytes: Bytes(1 << 20) };
    let pair = |rank: u64| if rank < 4 { "low" } else { "high" };
    let of = |rank: u64| {
        let mut nodes = vec![node(1, all_reduce(1 << 20, Some(pair(rank))), &[])];
        match rank {
            0 => nodes.extend([node(2, send(5), &[1]), node(3, send(2), &[1]), node(4, receive(6), &[1])]),
            2 | 5 => nodes.push(node(2, receive(0), &[1])),
            6 => nodes.push(node(2, send(0), &[1])),
            _ => {}
        }
        RankTrace { nodes, ..RankTrace::default() }
    };
    let traces: Vec<RankTrace> = (0..8).map(of).collect();
    let graph = TraceGraph::new(&traces, &gpu()).expect("it fits together");
    let [(Scope::Tensor, groups)] = &graph.groups[..] else { panic!("{:?}", graph.groups) };
    assert_eq!(
        groups.iter().map(|group| (group.first.0, group.size())).collect::<Vec<_>>(),
        [(4, 4), (0, 4)]
    );
    assert!(outcome(&traces).step > Span::ZERO);
}

#[test]
fn what_is_wrong_with_traces_names_the_rank_and_the_node() {
    let one = |nodes: Vec<TraceNode>| {
        let mut traces = vec![RankTrace::default(); 3];
        traces[1].nodes = nodes;
        TraceGraph::new(&traces, &gpu()).unwrap_err()
    };
    let (a, b) = (node(1, compute(1), &[2]), node(2, compute(1), &[1]));
    assert_eq!(one(vec![a.clone(), b]), TraceError::Circle { rank: 1, node: 1 });
    assert_eq!(one(vec![a.clone()]), TraceError::Missing { rank: 1, node: 1, missing: 2 });
    assert_eq!(one(vec![node(1, compute(1), &[]), a]), TraceError::Twice { rank: 1, node: 1 });
    let far = node(4, TraceWork::Send { to: 3, bytes: Bytes(1) }, &[]);
    assert_eq!(one(vec![far]), TraceError::NoSuchRank { rank: 1, node: 4, other: 3, last: 2 });
    let odd = |rank: u32| {
        let nodes = if rank == 2 { vec![] } else { vec![node(1, all_reduce(8, Some("odd")), &[])] };
        RankTrace { nodes, ..RankTrace::default() }
    };
    let traces: Vec<RankTrace> = (0..4).map(odd).collect();
    let error = TraceGraph::new(&traces, &gpu()).unwrap_err().to_string();
    assert!(error.contains("\"odd\" has ranks 0, 1, 3"), "{error}");
}
