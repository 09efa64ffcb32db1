//! A run that failed: for programs, and what to try.

use std::fmt::Write as _;

use railnet_sim::{BlockingCause, RunError, StallReport, Waiting, listed};
use serde_json::{Value, json};

/// Says it to people, before anything else is done with what was seen until then.
pub(super) fn tell(error: &RunError, out: &mut dyn std::io::Write) {
    let _ = out.flush();
    crate::report(&format!("error: {}", words(error)));
}

/// For programs. `docs/scenarios.md` says what the fields mean.
pub(super) fn object(error: &RunError) -> Value {
    let mut details = match error {
        RunError::Stuck(stall) => {
            let StallReport { cause, idle, waiting } = stall.as_ref();
            let mut value = held(cause);
            value["idle_us"] = idle.as_us_f64().into();
            value["waiting"] = waiting.iter().map(flow).collect();
            value
        }
        RunError::Flow(failure) => json!({
            "kind": "flow-failed",
            "status": failure.status.to_string(),
            "waiting": [flow(&failure.waiting)],
            "held_by": held(&failure.cause),
        }),
        RunError::Unfinished { limit, waiting, .. } => json!({
            "kind": "unfinished",
            "limit_us": limit.as_us_f64(),
            "waiting": waiting.iter().map(flow).collect::<Vec<_>>(),
        }),
        RunError::Post { flow, from, to, .. } => {
            json!({ "kind": "not-started", "flow": flow, "source": from, "target": to })
        }
        RunError::Samples { .. } => json!({ "kind": "too-many-samples" }),
        _ => json!({ "kind": "other" }),
    };
    details["message"] = error.to_string().into();
    details
}

fn flow(waiting: &Waiting) -> Value {
    json!({
        "flow": waiting.flow,
        "source": waiting.from,
        "target": waiting.to,
        "queue_pair": waiting.queue_pair.value(),
        "psn": waiting.psn.value(),
    })
}

fn held(cause: &BlockingCause) -> Value {
    let pairs = |links: &[(String, String)]| -> Value {
        links.iter().map(|(from, to)| json!({ "from": from, "to": to })).collect()
    };
    match cause {
        BlockingCause::Deadlock { links, priority } => {
            json!({ "kind": "deadlock", "links": pairs(links), "priority": priority })
        }
        BlockingCause::Storm { hosts, .. } => json!({ "kind": "pause-storm", "hosts": hosts }),
        BlockingCause::Paused { links } => json!({ "kind": "paused", "links": pairs(links) }),
        BlockingCause::Dead { links } => json!({ "kind": "link-down", "links": links }),
        BlockingCause::Silence => json!({ "kind": "silence" }),
        _ => json!({ "kind": "nothing" }),
    }
}

/// The error for people: what, who is hit, and what one could try.
pub(super) fn words(error: &RunError) -> String {
    let mut text = error.to_string();
    if let RunError::Stuck(stall) = error {
        text = stall.headline();
        for (what, flows) in stall.groups() {
            let _ = write!(text, "\n    {what}: {}", listed(&flows));
        }
    }
    if let Some(advice) = advice(error) {
        let _ = write!(text, "\n  = {advice}");
    }
    text
}

/// What one could try.
fn advice(error: &RunError) -> Option<&'static str> {
    match error {
        RunError::Unfinished { .. } => Some("`limit` in the scenario gives a run more virtual time"),
        RunError::Stuck(stall) => match stall.cause {
            BlockingCause::Deadlock { .. } => Some(
                "without pauses or credits (flow_control = \"none\"), or with routes that form no circle, it moves",
            ),
            BlockingCause::Silence => Some("a NIC with `timeout = 0` never asks again for what was lost"),
            _ => Some("`stall` in the scenario says how long nothing may move"),
        },
        RunError::Flow(_) => {
            Some("`timeout` and `retry_count` of [nic] say how long a connection waits for an answer")
        }
        _ => None,
    }
}
