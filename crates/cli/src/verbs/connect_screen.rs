//! Prints a set-up: objects, exchange, states, work, an error; and as JSON.

use std::io::Write;

use railnet_nic::testing::loopback_gid;
use railnet_nic::{Attributes, Completion, State};
use serde_json::{Value, json};

use super::connect::{A, B, Host, Plan, QUEUE_DEPTH, Record};
use super::words;
use crate::words::{count, grouped};

/// Columns for the attributes of a change.
const WIDTH: usize = 90;

/// What was asked of the first queue pair of A.
#[derive(Clone, Debug)]
pub(super) enum Trial {
    /// It is in this state.
    In(State),
    /// A change that was made.
    Moved(Attributes),
    /// A call, and what came of it.
    Tried {
        /// What was posted, or the state that was asked for.
        what: &'static str,
        /// Why the NIC refused it.
        result: Result<(), String>,
    },
}

pub(super) fn print(out: &mut dyn Write, record: &Record) -> std::io::Result<()> {
    let plan = &record.plan;
    let connections = count(u64::from(plan.queue_pairs), "reliable connection", "reliable connections");
    writeln!(out, "Setting up {connections} (RC) between two NICs, then WRITEs · seed {}\n", plan.seed)?;
    objects(out, record)?;
    exchange(out, record)?;
    states(out, record)?;
    work(out, record)?;
    error(out, record)?;
    let outcome = if record.is_good() { "as expected" } else { "NOT as expected" };
    writeln!(out, "Outcome  {outcome}")
}

/// What each host makes on its own NIC, before it knows of the other.
fn objects(out: &mut dyn Write, record: &Record) -> std::io::Result<()> {
    let [a, b] = &record.hosts;
    let region = record.plan.region();
    writeln!(out, "1. Objects: each host makes them on its own NIC")?;
    row(out, "", &format!("{:<34}", "A"), "B")?;
    row(out, "open device", &address(A), &address(B))?;
    row(out, "ibv_alloc_pd", "a protection domain (PD)", "the same")?;
    row(out, "ibv_create_cq", &format!("CQ {}, {QUEUE_DEPTH} entries", a.queue.number()), "the same")?;
    let memory = |host: &Host, name: &str| {
        format!("{} B at {:#x}, {name} {:#x}", grouped(region), host.region, host.key.0)
    };
    row(out, "ibv_reg_mr", &memory(a, "lkey"), &memory(b, "rkey"))?;
    row(out, "  access", &words::rights(a.access), &words::rights(b.access))?;
    for (index, (here, there)) in a.ends.iter().zip(&b.ends).enumerate() {
        let name = if index == 0 { "ibv_create_qp" } else { "" };
        row(out, name, &format!("QP {}, RESET", here.number), &format!("QP {}, RESET", there.number))?;
    }
    writeln!(out, "  All queue pairs of a host complete on its one CQ.\n")
}

fn row(out: &mut dyn Write, call: &str, a: &str, b: &str) -> std::io::Result<()> {
    writeln!(out, "  {}", format!("{call:<15}{a:<44}{b}").trim_end())
}

fn address(host: usize) -> String {
    loopback_gid(host).to_ip().to_string()
}

/// What each has to tell the other, by any channel that they have.
fn exchange(out: &mut dyn Write, record: &Record) -> std::io::Result<()> {
    writeln!(out, "2. Exchange: over TCP, a rendezvous or the connection manager")?;
    for (own, name) in [(A, "A tells B"), (B, "B tells A")] {
        let host = &record.hosts[own];
        for (index, end) in host.ends.iter().enumerate() {
            let name = if index == 0 { name } else { "" };
            let text = format!("  {name:<11}{}, QPN {}, first PSN {}", address(own), end.number, end.psn);
            writeln!(out, "{text}")?;
        }
        if own == B {
            let text = format!("its memory: {:#x}, rkey {:#x}", host.region, host.key.0);
            writeln!(out, "  {:<11}{text}", "")?;
        }
    }
    writeln!(out)
}

/// One queue pair from RESET to RTS.
fn states(out: &mut dyn Write, record: &Record) -> std::io::Result<()> {
    let number = record.hosts[A].ends[0].number;
    writeln!(
        out,
        "3. States: ibv_modify_qp takes QP {number} of A from RESET to RTS; the others go the same way"
    )?;
    for trial in &record.trials {
        match trial {
            Trial::In(state) => writeln!(out, "  {state}")?,
            Trial::Moved(change) => {
                for line in wrapped(&attributes(change)) {
                    writeln!(out, "    │  {line}")?;
                }
            }
            Trial::Tried { what, result: Ok(()) } => writeln!(out, "    {what:<22} accepted")?,
            Trial::Tried { what, result: Err(why) } => {
                writeln!(out, "    {what:<22} refused: {why}")?;
            }
        }
    }
    writeln!(out)
}

/// Attributes one behind the other, in lines that fit a page.
fn wrapped(attributes: &[String]) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for attribute in attributes {
        match lines.last_mut() {
            Some(line) if line.chars().count() + attribute.chars().count() + 2 <= WIDTH => {
                line.push_str(", ");
                line.push_str(attribute);
            }
            _ => lines.push(attribute.clone()),
        }
    }
    lines
}

/// The attributes of a change, by name.
fn attributes(change: &Attributes) -> Vec<String> {
    let state = change.state.map(|state| format!("to {state}: "));
    let all = [
        change.partition_index.map(|index| format!("partition key index {index}")),
        change.port.map(|port| format!("port {port}")),
        change.access.map(|access| format!("peers may: {}", words::rights(access))),
        change.path.map(|path| format!("path to {}", path.target.to_ip())),
        change.path_mtu.map(|mtu| format!("path MTU {}", mtu.bytes())),
        change.destination.map(|number| format!("peer's QPN {number}")),
        change.receive_psn.map(|psn| format!("receive PSN {psn}")),
        change.destination_reads.map(|reads| format!("{reads} READs served at once")),
        change.min_rnr_timer.map(|code| format!("RNR timer code {code}")),
        change.send_psn.map(|psn| format!("send PSN {psn}")),
        change.timeout.map(|code| format!("ACK timeout code {code}")),
        change.retry_count.map(|tries| format!("{tries} retries")),
        change.rnr_retry.map(|tries| format!("RNR retry {tries}")),
        change.initiator_reads.map(|reads| format!("{reads} READs in flight")),
    ];
    let mut all: Vec<String> = all.into_iter().flatten().collect();
    if let (Some(state), Some(first)) = (state, all.first_mut()) {
        first.insert_str(0, &state);
    }
    all
}

/// The WRITEs, and the few completions that they make.
fn work(out: &mut dyn Write, record: &Record) -> std::io::Result<()> {
    let plan = &record.plan;
    let all = plan.queue_pairs * plan.messages();
    let signaled = match plan.signal_every {
        1 => "all of them signaled".to_owned(),
        every => format!("one signaled after {} that are not", every - 1),
    };
    let queue_pairs = count(u64::from(plan.queue_pairs), "queue pair", "queue pairs");
    let (messages, bytes) = (plan.messages(), plan.bytes);
    writeln!(out, "4. Work: {messages} WRITEs of {bytes} B on each of {queue_pairs}, {signaled}")?;
    writeln!(
        out,
        "  {} posted, {} on the wire",
        count(u64::from(all), "WRITE", "WRITEs"),
        count(record.packets, "packet", "packets")
    )?;
    writeln!(
        out,
        "  A polls its CQ: {}",
        count(record.completions.len() as u64, "completion", "completions")
    )?;
    for one in &record.completions {
        writeln!(out, "    {}", completed(plan, one))?;
    }
    let equal = if record.is_equal { "equal at A and B" } else { "NOT equal at A and B" };
    writeln!(out, "  Memory compared: {} B {equal}\n", grouped(plan.region()))
}

/// A completion, and the silent work that it stands for.
fn completed(plan: &Plan, one: &Completion) -> String {
    let text = format!("QP {}  wr_id {:<4} {}", one.queue_pair, one.work, one.status.verbs_name());
    match u64::from(plan.signal_every) {
        1 => text,
        2 => format!("{text}: wr_id {} before it is done, too", one.work - 1),
        every => {
            format!("{text}: wr_id {} to {} before it are done, too", one.work + 1 - every, one.work - 1)
        }
    }
}

/// Unsignalled work that fails completes all the same.
fn error(out: &mut dyn Write, record: &Record) -> std::io::Result<()> {
    let last = record.hosts[A].ends.last().expect("there is at least one queue pair");
    writeln!(
        out,
        "5. Error: an unsignaled WRITE with a wrong rkey on QP {}, then a right one behind it",
        last.number
    )?;
    for one in &record.failed {
        let text = one.status.text();
        writeln!(
            out,
            "    QP {}  wr_id {:<4} {} ({text})",
            one.queue_pair,
            one.work,
            one.status.verbs_name()
        )?;
    }
    let states: Vec<String> = record.hosts[A]
        .ends
        .iter()
        .zip(&record.states)
        .map(|(end, state)| format!("QP {} {state}", end.number))
        .collect();
    writeln!(out, "  Afterwards: {}\n", states.join(", "))
}

/// One object for each part.
pub(super) fn print_json(out: &mut dyn Write, record: &Record) -> std::io::Result<()> {
    let plan = &record.plan;
    for (index, host) in record.hosts.iter().enumerate() {
        let queue_pairs: Vec<Value> = host
            .ends
            .iter()
            .map(|end| json!({ "qp": end.number.value(), "first_psn": end.psn.value() }))
            .collect();
        let object = json!({ "step": "objects", "host": words::host(index), "address": address(index),
            "cq": host.queue.number(), "cq_entries": QUEUE_DEPTH, "key": host.key.0, "region": host.region,
            "region_bytes": plan.region(), "queue_pairs": queue_pairs });
        writeln!(out, "{object}")?;
    }
    for trial in &record.trials {
        let object = match trial {
            Trial::In(state) => json!({ "step": "state", "state": state.to_string() }),
            Trial::Moved(change) => json!({ "step": "modify", "attributes": attributes(change) }),
            Trial::Tried { what, result } => {
                json!({ "step": "try", "what": what, "refused": result.as_ref().err() })
            }
        };
        writeln!(out, "{object}")?;
    }
    for (step, found) in [("completion", &record.completions), ("failure", &record.failed)] {
        for one in found {
            let object = json!({ "step": step, "qp": one.queue_pair.value(), "wr_id": one.work,
                "status": one.status.verbs_name() });
            writeln!(out, "{object}")?;
        }
    }
    let states: Vec<String> = record.states.iter().map(ToString::to_string).collect();
    let result = json!({ "step": "result", "as_expected": record.is_good(), "packets": record.packets,
        "bytes_equal": record.is_equal, "states": states });
    writeln!(out, "{result}")
}
