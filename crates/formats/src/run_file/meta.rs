//! What a run was, for those who open its file.

use std::collections::BTreeSet;

use railnet_core::Time;
use railnet_job::graph::Stream;
use railnet_sim::{JobsOutcome, Scenario, ScenarioError, Topology};
use railnet_topology::host::DeviceKind;
use railnet_topology::{Cluster, FabricGraph, Vertex};
use serde_json::{Value, json};

use super::recorder::Recorded;
use super::table::Table;

/// What the file has to say about where the run came from.
#[derive(Clone, Debug)]
pub struct About<'a> {
    /// What the scenario is called.
    pub name: &'a str,
    /// Its text.
    pub text: &'a str,
    /// What was run.
    pub scenario: &'a Scenario,
    /// What the command says of it, in full.
    pub report: Value,
    /// The digest.
    pub digest: String,
    /// When it was over.
    pub end: Time,
    /// The jobs, where it had any.
    pub jobs: Option<&'a JobsOutcome>,
}

/// All that is said about a run besides its tables.
pub fn meta(about: &About<'_>, graph: &FabricGraph, recorded: &Recorded) -> Result<Value, ScenarioError> {
    let scenario = about.scenario;
    let kind = if about.jobs.is_some() {
        "job"
    } else if scenario.collective.is_empty() && scenario.transfer.is_empty() {
        "traffic"
    } else {
        "collectives"
    };
    let is_traffic = kind == "traffic";
    let endpoints = if is_traffic { Vec::new() } else { scenario.endpoints(graph)? };
    let streams: Vec<&str> = match about.jobs {
        Some(_) => Stream::ALL.iter().map(|stream| stream.name()).collect(),
        None => vec![if is_traffic { "flows" } else { "calls" }],
    };
    let gpu =
        about.jobs.and_then(|jobs| jobs.jobs.first()).map(|job| job.placed.resolved.job.gpu.name.clone());
    let servers = endpoints.iter().map(|one| one.node + 1).max().unwrap_or(0);
    let cluster = scenario.servers().ok();
    let is_mixed = gpu.is_some() && cluster.as_ref().is_some_and(|cluster| !cluster.unlike.is_empty());
    let homes = homes(scenario, graph, servers);
    let names = names(scenario, graph, &homes, servers);
    let nodes: Vec<Value> = (0..servers)
        .map(|node| {
            let all = endpoints.iter().enumerate().filter(|(_, one)| one.node == node);
            let ranks: Vec<usize> = all.map(|(rank, _)| rank).collect();
            let hosts = ports_of(&homes, node);
            let own = cluster.as_ref().filter(|_| is_mixed);
            let gpu = own.map_or_else(|| gpu.clone(), |cluster| gpu_of(cluster, node));
            json!({ "name": names[node as usize], "gpu": gpu, "ranks": ranks, "hosts": hosts })
        })
        .collect();
    let ranks: Vec<Value> = endpoints
        .iter()
        .map(|one| {
            let ports = ports_of(&homes, one.node);
            let gpus = endpoints.iter().filter(|other| other.node == one.node).count().max(1);
            // A GPU uses the NIC beside it: with fewer NICs than GPUs, neighbours share one.
            let host = ports.get(one.rail as usize * ports.len() / gpus).copied();
            json!({ "node": one.node, "gpu": one.rail, "host": host })
        })
        .collect();
    let communicators: Vec<Value> =
        recorded.members.iter().map(|ranks| json!({ "name": named(ranks.len()), "ranks": ranks })).collect();
    Ok(json!({
        "format": 1,
        "railnet": env!("CARGO_PKG_VERSION"),
        "name": about.name,
        "title": title(about.text),
        "scenario": about.text,
        "seed": scenario.seed,
        "digest": about.digest,
        "kind": kind,
        "credits": scenario.uses_credits(),
        "fidelity": about.jobs.map_or("packet", |jobs| jobs.fidelity.name()),
        "control": word(scenario.control_name()),
        "routing": word(scenario.routing_name()),
        "transport": if scenario.uses_tcp() { "tcp" } else { "rdma" },
        "alike": about.jobs.map(alike).unwrap_or_default(),
        "recorded_until": recorded_until(recorded, about.end),
        "duration": about.end.as_ps(),
        "report": about.report,
        "fabric": fabric(graph, &homes),
        "nodes": nodes,
        "ranks": ranks,
        "streams": streams,
        "strings": recorded.strings,
        "communicators": communicators,
        "bins": { "width": recorded.bins.0, "count": recorded.bins.1 },
        "kept": { "packets": recorded.packets.0, "packets_sent": recorded.packets.1, "notes": recorded.notes, "followed": recorded.followed.map(|one| one.meta()) },
        "steps": about.jobs.map(steps).unwrap_or_default(),
        "critical": about.jobs.map(critical).unwrap_or_default(),
        "tables": recorded.tables.iter().map(count).collect::<serde_json::Map<_, _>>(),
    }))
}

/// The GPU of a server; none where it has none.
fn gpu_of(cluster: &Cluster, node: u32) -> Option<String> {
    let host = cluster.host_of(node);
    match &host.device(*host.gpus().first()?).kind {
        DeviceKind::Gpu { model, .. } => Some(model.clone()),
        _ => None,
    }
}

fn count(table: &Table) -> (String, Value) {
    (table.name.clone(), table.rows.into())
}

/// A name as scenarios write it.
fn word(name: impl std::fmt::Debug) -> String {
    format!("{name:?}").to_lowercase()
}

fn named(ranks: usize) -> String {
    format!("{ranks} ranks")
}

/// The server of each port. A fabric that knows nothing of servers has one port after the other in each.
fn homes(scenario: &Scenario, graph: &FabricGraph, servers: u32) -> Vec<u32> {
    if let Some(cluster) = scenario.servers().ok().filter(Cluster::is_uneven) {
        return (0..graph.hosts.len() as u32).map(|port| cluster.ports().node_of(port)).collect();
    }
    let known = graph.hosts.iter().map(|host| host.node + 1).max().unwrap_or(0);
    if servers == 0 || servers == known {
        return graph.hosts.iter().map(|host| host.node).collect();
    }
    let each = (graph.hosts.len() as u32 / servers).max(1);
    (0..graph.hosts.len() as u32).map(|host| host / each).collect()
}

/// What servers are called: as their ports are, where the scenario names those; else by their numbers.
fn names(scenario: &Scenario, graph: &FabricGraph, homes: &[u32], servers: u32) -> Vec<String> {
    let shared = |node: u32| {
        let names: Vec<&str> =
            ports_of(homes, node).into_iter().map(|port| graph.hosts[port].name.as_str()).collect();
        let (first, rest) = names.split_first()?;
        let long = first.char_indices().map(|(place, letter)| place + letter.len_utf8());
        let ends = long.rev().find(|end| rest.iter().all(|name| name.starts_with(&first[..*end])))?;
        // The number of a port, or what stands before it, is none of the server.
        let trimmed =
            if rest.is_empty() { first } else { first[..ends].trim_end_matches(['.', '-', '_', ':', '/']) };
        (!trimmed.is_empty()).then(|| trimmed.to_owned())
    };
    let given: Option<Vec<String>> = match scenario.fabric.topology {
        Topology::List { .. } => (0..servers).map(shared).collect(),
        _ => None,
    };
    let is_clear = |names: &Vec<String>| names.iter().collect::<BTreeSet<_>>().len() == names.len();
    given
        .filter(is_clear)
        .unwrap_or_else(|| (0..servers).map(|node| format!("node{:02}", node + 1)).collect())
}

fn ports_of(homes: &[u32], node: u32) -> Vec<usize> {
    (0..homes.len()).filter(|host| homes[*host] == node).collect()
}

/// The first words that the author of a scenario has for it: a comment, all of its lines, without marks of code.
fn title(text: &str) -> String {
    let lines = text.lines().map(str::trim).skip_while(|line| !line.starts_with('#'));
    let words = lines.map_while(|line| line.strip_prefix('#')).map(str::trim).collect::<Vec<_>>();
    words.join(" ").replace('`', "").trim().to_owned()
}

fn fabric(graph: &FabricGraph, homes: &[u32]) -> Value {
    let hosts = graph.hosts.len() as u32;
    let number = |vertex: Vertex| match vertex {
        Vertex::Host(host) => host,
        Vertex::Switch(switch) => hosts + switch,
    };
    let ports = graph.hosts.iter().zip(homes).map(|(host, node)| json!({ "name": host.name, "node": node }));
    let switches = graph
        .switches
        .iter()
        .map(|switch| json!({ "name": switch.name, "tier": switch.tier, "pod": switch.pod }));
    let links = graph.links.iter().map(|link| {
        json!({
            "a": number(link.ends[0].vertex),
            "b": number(link.ends[1].vertex),
            "rate": link.rate.as_bps(),
            "delay": link.delay.as_ps(),
        })
    });
    json!({
        "hosts": ports.collect::<Vec<_>>(),
        "switches": switches.collect::<Vec<_>>(),
        "links": links.collect::<Vec<_>>(),
    })
}

/// Ranks of which something was recorded, and how many each of them stands for.
fn alike(jobs: &JobsOutcome) -> Vec<[u64; 2]> {
    let ranks = jobs.jobs.iter().flat_map(|job| {
        job.timeline
            .iter()
            .map(|span| (u64::from(job.placed.endpoint(span.rank.0)), u64::from(span.stands_for)))
    });
    ranks.collect::<BTreeSet<_>>().into_iter().map(|(rank, stands_for)| [rank, stands_for]).collect()
}

/// The end of the last operation that was recorded: of steps that are calculated once, only the first has any.
fn recorded_until(recorded: &Recorded, end: Time) -> u64 {
    let operations = recorded.tables.iter().find(|table| table.name == "operations");
    let column = operations.and_then(|table| Some((table, table.column("ended")?)));
    let last = column.and_then(|(table, ended)| (0..table.rows).map(|row| table.get(row, ended)).max());
    last.filter(|last| *last > 0).map_or(end.as_ps(), |last| last.min(end.as_ps()))
}

/// The steps of the first job.
fn steps(jobs: &JobsOutcome) -> Vec<Value> {
    let mut begun = 0;
    let steps = jobs.jobs.first().map(|job| job.steps.as_slice()).unwrap_or_default();
    let row = |step: &railnet_core::Span| {
        let ended = begun + step.as_ps();
        let row = json!({ "begun": begun, "ended": ended });
        begun = ended;
        row
    };
    steps.iter().map(row).collect()
}

/// The critical path of the first step of the first job, as the operations on it, in order of time.
fn critical(jobs: &JobsOutcome) -> Vec<Value> {
    let Some(job) = jobs.jobs.first() else { return Vec::new() };
    let mut path: Vec<_> = job.timeline.iter().filter(|span| span.is_critical && span.step == 0).collect();
    path.sort_by_key(|span| (span.begun, span.ended));
    let row = |span: &&railnet_job::run::RankSpan| {
        json!({
            "rank": job.placed.endpoint(span.rank.0),
            "begun": span.begun.as_ps(),
            "ended": span.ended.as_ps(),
            "communicates": span.said.is_some(),
        })
    };
    path.iter().map(row).collect()
}
