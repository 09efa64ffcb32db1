use railnet_coll::Collective;
use railnet_core::{Bytes, DataType, Span};
use railnet_topology::catalogue::{cluster, host};

use super::super::{
    Origin, RecordedGroup, RecordedMemory, RecordedOperation, Recording, RecordingError, Role, TraceGraph,
};
use super::{Pricing, levels};
use crate::compute::{Kernel, Rates};
use crate::graph::{Job, Pass, StepGraph};
use crate::parallel::Scope;
use crate::run::analytic::{ClusterCosts, run};
use crate::run::{LineTime, Outcome, Workers, lines};

/// Streams through memory for about a millisecond.
const LONG: Kernel = Kernel::Stream { bytes: 3_000_000_000 };

fn origin(stream: u32) -> Origin {
    Origin { line: stream, stream, pass: Pass::Backward }
}

fn kernel(stream: u32) -> RecordedOperation {
    RecordedOperation::Kernel { origin: origin(stream), kernel: 0 }
}

fn all_reduce(stream: u32, id: u32, group: u32) -> RecordedOperation {
    RecordedOperation::Collective {
        origin: Origin { line: 2, ..origin(stream) },
        id,
        collective: Collective::AllReduce,
        group,
        bytes: Bytes(64 << 20),
        dtype: DataType::F32,
    }
}

fn role(rank: u32, groups: &[&[u32]], operations: Vec<RecordedOperation>) -> Role {
    let named = groups.iter().map(|ranks| RecordedGroup { name: String::new(), ranks: ranks.to_vec() });
    Role {
        rank,
        lines: ["a.py:1", "a.py:2", "a.py:3"].map(str::to_owned).to_vec(),
        kernels: vec![LONG],
        groups: named.collect(),
        operations,
        memory: RecordedMemory::default(),
        notes: Vec::new(),
    }
}

fn recording(ranks: u32, roles: Vec<Role>) -> Recording {
    Recording { ranks, roles, command: String::new() }
}

fn pricing() -> Pricing {
    let rates = Rates::of(&host("dgx-h100").expect("it is there")).expect("it has GPUs");
    Pricing { rates, launch: Span::ZERO }
}

fn outcome(recording: &Recording) -> (Outcome, Vec<LineTime>) {
    let cluster = cluster("dgx-h100").expect("it is there");
    let (graph, parallel) = TraceGraph::of_recording(recording, &pricing()).expect("it fits together");
    let job = Job::of_recording(graph, parallel, pricing().rates.gpu().clone());
    let graph = StepGraph::new(&job);
    let machine =
        run(&graph, Workers::kinds(&graph, &[]), &mut ClusterCosts::plain(&cluster)).expect("it runs");
    (Outcome::of(&job, &machine), lines(&machine))
}

const ALL: &[u32] = &[0, 1, 2, 3, 4, 5, 6, 7];

fn alone(operations: Vec<RecordedOperation>) -> (Outcome, Vec<LineTime>) {
    outcome(&recording(8, vec![role(0, &[ALL], operations)]))
}

#[test]
fn communication_is_hidden_until_a_stream_waits_for_it() {
    let wait = RecordedOperation::Wait { stream: 0, id: 7 };
    let (hidden, _) = alone(vec![all_reduce(0, 7, 0), kernel(0), wait, kernel(0)]);
    let (exposed, by_line) = alone(vec![all_reduce(0, 7, 0), wait, kernel(0), kernel(0)]);
    assert_eq!(hidden.average.exposed_total(), Span::ZERO);
    let call = exposed.average.exposed_total();
    assert!(call > Span::from_us(100), "{call}");
    assert_eq!(exposed.average.exposed[Scope::Data as usize], call);
    let of_call = by_line.iter().find(|one| one.line == "a.py:3").expect("its line is there");
    assert_eq!((of_call.calls, of_call.bytes, of_call.exposed), (1, Bytes(64 << 20), call));
}

#[test]
fn streams_share_the_gpu_unless_an_event_orders_them() {
    let (together, _) = alone(vec![kernel(0), kernel(1)]);
    let record = RecordedOperation::RecordEvent { stream: 0, event: 3 };
    let wait = RecordedOperation::WaitEvent { stream: 1, event: 3 };
    let (ordered, _) = alone(vec![kernel(0), record, wait, kernel(1)]);
    let (one, _) = alone(vec![kernel(0)]);
    let is_twice = |found: Span| {
        let ratio = found.as_secs_f64() / one.step.as_secs_f64();
        (ratio - 2.0).abs() < 1e-6
    };
    assert!(
        is_twice(together.step) && is_twice(ordered.step),
        "{} {} {}",
        together.step,
        ordered.step,
        one.step
    );
    // The default stream is through twice as late where it shares.
    assert_eq!(ordered.average.backward, one.average.backward);
    assert!(together.average.contention > Span::ZERO);
}

#[test]
fn a_cpu_that_is_behind_leaves_the_gpu_idle() {
    let operations = vec![kernel(0); 10];
    let recording = recording(8, vec![role(0, &[], operations)]);
    let slow = Pricing { launch: Span::from_ms(5), ..pricing() };
    let (graph, _) = TraceGraph::of_recording(&recording, &slow).expect("it fits together");
    let starved = graph.recorded.expect("it is one").launch[0];
    let kernel = pricing().rates.cost(&LONG).expect("it is known") * 1.08;
    // Ten launches, of which each but the first hides one kernel.
    let wanted = Span::from_ms(50) - kernel.span() * 9;
    assert_eq!(starved, wanted);
}

#[test]
fn stages_of_a_pipeline_stand_for_the_ranks_between_them() {
    let send = RecordedOperation::Send { origin: origin(0), id: 1, to: 4, bytes: Bytes(1 << 20) };
    let receive = RecordedOperation::Receive { origin: origin(0), id: 1, from: 0, bytes: Bytes(1 << 20) };
    let wait = RecordedOperation::Wait { stream: 0, id: 1 };
    let first = role(0, &[&[0, 1, 2, 3]], vec![kernel(0), send, all_reduce(0, 2, 0)]);
    let second = role(4, &[&[4, 5, 6, 7]], vec![receive, wait, kernel(0), all_reduce(0, 2, 0)]);
    let both = recording(8, vec![first, second]);
    let (graph, parallel) = TraceGraph::of_recording(&both, &pricing()).expect("it fits together");
    assert_eq!((parallel.tensor, parallel.pipeline, parallel.data), (4, 2, 1));
    assert_eq!(graph.programs.len(), 2);
    let [(Scope::Tensor, groups)] = &graph.groups[..] else { panic!("{:?}", graph.groups) };
    assert_eq!(groups.iter().map(|group| group.first.0).collect::<Vec<_>>(), [0, 4]);
    let (found, _) = outcome(&both);
    let one = pricing().rates.cost(&LONG).expect("it is known") * 1.08;
    assert!(found.step > one.span() * 2, "the second stage computes after the first: {}", found.step);
    assert!(found.average.bubble > Span::ZERO);
}

#[test]
fn ranks_along_the_axes_of_a_mesh_are_levels() {
    let of = |ranks: &[u32]| levels(ranks, 16).map(|levels| levels.to_vec());
    assert_eq!(of(ALL), Some(vec![(8, 1)]));
    assert_eq!(of(&[1, 5, 9, 13]), Some(vec![(4, 4)]));
    assert_eq!(of(&[0, 1, 8, 9]), Some(vec![(2, 1), (2, 8)]));
    assert_eq!(of(&[3]), Some(Vec::new()));
    assert_eq!(of(&[0, 1, 3]), None);
    assert_eq!(of(&[1, 2]), None, "ranks 0 and 15 would be left over");
}

#[test]
fn what_is_wrong_with_a_recording_names_the_line_or_the_ranks() {
    let wrong =
        |recording: &Recording| TraceGraph::of_recording(recording, &pricing()).unwrap_err().to_string();
    let gather = RecordedOperation::Collective {
        origin: origin(0),
        id: 1,
        collective: Collective::Gather,
        group: 0,
        bytes: Bytes(8),
        dtype: DataType::U8,
    };
    assert_eq!(
        wrong(&recording(8, vec![role(0, &[ALL], vec![gather])])),
        "a.py:1: Gather inside a step is not run: it belongs before the first step or after the last"
    );
    let odd: &[u32] = &[0, 1, 3];
    let text = wrong(&recording(8, vec![role(0, &[odd], vec![all_reduce(0, 1, 0)])]));
    assert!(text.starts_with("a.py:3: the process group of ranks 0, 1, 3 is not evenly spaced"), "{text}");
    let send = RecordedOperation::Send { origin: origin(0), id: 1, to: 4, bytes: Bytes(8) };
    let text = wrong(&recording(8, vec![role(0, &[], vec![send])]));
    assert!(text.contains("rank 0 exchanges messages with rank 4, which did not run"), "{text}");
    let roles = vec![role(0, &[], vec![]), role(3, &[], vec![])];
    assert!(matches!(
        TraceGraph::of_recording(&recording(8, roles), &pricing()),
        Err(RecordingError::Uneven { .. })
    ));
    let missing =
        recording(8, vec![role(0, &[], vec![RecordedOperation::Kernel { origin: origin(0), kernel: 9 }])]);
    assert_eq!(wrong(&missing), "operation 0 of rank 0 names kernel 9, which the recording does not have");
}
