//! What ranks and flows did, as rows.

use railnet_core::Bytes;
use railnet_job::graph::{Pass, What};
use railnet_job::run::RankSpan;
use railnet_sim::{FlowResult, JobResult, Outcome};

use super::recorder::Recorder;
use super::schema::NOBODY;

/// No layer.
const NO_LAYER: u64 = 65_535;
/// What a communication is among the kinds of operations.
const COMMUNICATION: u64 = 5;

/// Adds what the ranks of jobs did. Ranks of several jobs are told apart by the GPUs that they have.
pub fn add_jobs(recorder: &mut Recorder, jobs: &[JobResult]) {
    for job in jobs {
        for span in &job.timeline {
            let name = recorder.strings.number(&words(span));
            recorder.operation([
                u64::from(job.placed.endpoint(span.rank.0)),
                span.stream as u64,
                if span.said.is_some() { COMMUNICATION } else { kind(span.pass) },
                u64::from(name),
                span.entered.as_ps(),
                span.begun.as_ps(),
                span.ended.as_ps(),
                span.bytes().as_u64(),
                span.layer.map_or(NO_LAYER, u64::from),
                u64::from(span.microbatch),
                u64::from(span.step),
                u64::from(span.is_critical),
                span.late.map_or(NOBODY, |(rank, _)| u64::from(job.placed.endpoint(rank.0))),
                span.late.map_or(0, |(_, wait)| wait.as_ps()),
            ]);
        }
    }
}

/// Adds what still waits in queues when a run ends.
pub fn add_queues(recorder: &mut Recorder, outcome: &Outcome) {
    for (channel, link) in outcome.links.iter().enumerate() {
        recorder.left_waiting(channel, link.queued);
    }
}

/// Adds the flows of a traffic scenario: each is an operation of its source. Those that had not arrived when it ended last until
/// then.
pub fn add_flows(recorder: &mut Recorder, outcome: &Outcome) {
    let whole = outcome.flows.iter().map(|flow| (flow, flow.finished, ""));
    let open = outcome.open_flows.iter().map(|flow| (flow, outcome.completion, ", never all there"));
    for (FlowResult { flow, started, .. }, finished, how) in whole.chain(open) {
        let text = format!("{} to host {}{how}", Bytes(flow.bytes), flow.target);
        let name = recorder.strings.number(&text);
        let (began, ended) = (started.as_ps(), finished.as_ps());
        let source = u64::from(flow.source);
        recorder.operation([
            source,
            0,
            COMMUNICATION,
            u64::from(name),
            began,
            began,
            ended,
            flow.bytes,
            NO_LAYER,
            0,
            0,
            0,
            NOBODY,
            0,
        ]);
    }
}

fn kind(pass: Pass) -> u64 {
    match pass {
        Pass::Forward => 0,
        Pass::Recompute => 1,
        Pass::Backward => 2,
        Pass::Optimiser => 3,
        Pass::Checkpoint => 4,
    }
}

/// What an operation is, in words.
fn words(span: &RankSpan) -> String {
    let Some(said) = &span.said else {
        let pass = match span.pass {
            Pass::Forward => "forward",
            Pass::Recompute => "recompute",
            Pass::Backward => "backward",
            Pass::Optimiser => "optimiser",
            Pass::Checkpoint => "checkpoint",
        };
        return match span.layer {
            Some(layer) => format!("{pass}, layer {layer}"),
            None => pass.to_owned(),
        };
    };
    let what = match said.what {
        What::Collective(collective) => collective.name().to_owned(),
        What::Send { stage } => format!("send to stage {stage}"),
        What::Receive { stage } => format!("receive from stage {stage}"),
        What::Push => "push to the parameter servers".to_owned(),
        What::Pull => "pull from the parameter servers".to_owned(),
        What::Write => "write to storage".to_owned(),
    };
    format!("{what} {} ({})", said.bytes, said.scope.name())
}
