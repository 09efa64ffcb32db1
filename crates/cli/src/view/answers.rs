//! What the page asks for, and what it gets: docs/page.md has the list.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};

use railnet_formats::run_file::{MISSING, Query, RankShares, RunFile, coarser, packet_latency, select};
use serde_json::json;

use super::http::{Request, Response};
use super::rerun::{Reruns, Runs};
use super::{packet, page};

/// Rows that are sent at once, unless fewer are asked for.
const ROWS_MAX: usize = 200_000;

/// Bins that are sent at once of each rank.
const BINS_MAX: u64 = 8_192;

/// A run, and what was made of it for those who look at it.
pub(super) struct Served {
    pub(super) run: RunFile,
    shares: OnceLock<RankShares>,
}

impl Served {
    pub(super) fn new(mut run: RunFile) -> Self {
        run.meta["latency"] = packet_latency(&run);
        Self { run, shares: OnceLock::new() }
    }

    fn shares(&self) -> &RankShares {
        self.shares.get_or_init(|| {
            let operations = self.run.table("operations");
            operations.map(|table| RankShares::of(table, &self.run.meta["alike"])).unwrap_or_default()
        })
    }
}

/// The runs that are shown: the one that was opened with those beside it, and those that were made from it since.
pub(super) struct Shown {
    runs: Runs,
    reruns: Reruns,
}

impl Shown {
    pub(super) fn new(mut run: RunFile) -> Self {
        run.meta["runs"] = page::runs(&run);
        let others = std::mem::take(&mut run.others);
        let all = std::iter::once(run).chain(others).map(|run| Some(Arc::new(Served::new(run))));
        let runs = Arc::new(Mutex::new(all.collect()));
        Self { reruns: Reruns::new(Arc::clone(&runs)), runs }
    }

    pub(super) fn answer(&self, request: &Request) -> Response {
        match (request.method.as_str(), request.path.as_str()) {
            ("GET", "/") => page::asset("index.html"),
            ("GET", "/api/run") => self.with(request, |one| Response::json(&one.run.meta)),
            ("GET", "/api/rows") => self.with(request, |one| rows(&one.run, request)),
            ("GET", "/api/shares") => self.with(request, |one| shares(one, request)),
            ("GET", "/api/packet") => self.with(request, |one| one_packet(&one.run, request)),
            ("POST", "/api/plan") => planned(&request.body),
            ("POST", "/api/rerun") => self.reruns.start(&request.body),
            ("GET", "/api/rerun") => self.reruns.state(number(request, "run").unwrap_or(0) as usize),
            ("GET", path) => page::asset(path.trim_start_matches('/')),
            _ => Response::error(405, "only GET, and POST where a run is made again"),
        }
    }

    fn with(&self, request: &Request, answer: impl FnOnce(&Served) -> Response) -> Response {
        let index = number(request, "run").unwrap_or(0) as usize;
        let run = self.runs.lock().ok().and_then(|runs| runs.get(index).cloned().flatten());
        match run {
            Some(run) => answer(&run),
            None => Response::error(404, &format!("there is no run {index}")),
        }
    }
}

fn number(request: &Request, name: &str) -> Option<u64> {
    request.get(name)?.parse().ok()
}

/// The ranks of a list such as 0,8,16; none where there is no list.
fn ranks(request: &Request) -> Option<Vec<u32>> {
    let list = request.get("ranks").filter(|list| !list.is_empty())?;
    Some(list.split([',', '.']).filter_map(|rank| rank.parse().ok()).collect())
}

/// What ranks did in a window, in bins.
fn shares(one: &Served, request: &Request) -> Response {
    let end = one.run.meta["duration"].as_u64().unwrap_or(MISSING);
    let window = (number(request, "from").unwrap_or(0), number(request, "to").unwrap_or(end));
    let bins = number(request, "bins").unwrap_or(1).clamp(1, BINS_MAX);
    let table = one.shares().bins(window, bins, ranks(request).as_deref());
    Response::new("application/octet-stream", table.block(table.rows))
}

fn rows(run: &RunFile, request: &Request) -> Response {
    let name = request.get("table").unwrap_or_default();
    let Some(table) = run.table(name) else {
        let known: Vec<&str> = run.tables.iter().map(|table| table.name.as_str()).collect();
        return Response::error(404, &format!("there is no table \"{name}\": {}", known.join(", ")));
    };
    let mut query = Query {
        from: number(request, "from").unwrap_or(0),
        to: number(request, "to").unwrap_or(MISSING),
        most: number(request, "most").map_or(ROWS_MAX, |most| most as usize).clamp(1, ROWS_MAX),
        equal: Vec::new(),
        ranks: ranks(request),
    };
    for (key, value) in request.query() {
        if ["run", "table", "from", "to", "most", "ranks"].contains(&key.as_str()) {
            continue;
        }
        match (table.column(key), value.parse()) {
            (Some(_), Ok(value)) => query.equal.push((key.clone(), value)),
            _ => return Response::error(400, &format!("\"{name}\" has no column \"{key}\" to look for")),
        }
    }
    let width = run.meta["bins"]["width"].as_u64().unwrap_or(1);
    let most = query.most;
    if name == "load" {
        query.most = usize::MAX;
    }
    let (rows, total) = select(table, &query, width);
    let answer = match name {
        "load" if rows.len() > most => coarser(table, &rows, most),
        // Packets are asked for by their number in the whole table.
        "packets" => table.take(&rows).numbered(&rows),
        _ => table.take(&rows),
    };
    Response::new("application/octet-stream", answer.block(total))
}

/// What `railnet plan` answers to options, as texts by their names.
fn planned(body: &[u8]) -> Response {
    let Ok(asked) = serde_json::from_slice::<BTreeMap<String, String>>(body) else {
        return Response::error(400, "write {\"params\":\"70B\",\"gpus\":\"64\"}");
    };
    let options: Vec<(String, String)> = asked.into_iter().filter(|(_, value)| !value.is_empty()).collect();
    match crate::plan::answer_to(&options) {
        Ok(plan) => Response::json(&plan),
        Err(error) => Response::error(400, &format!("{error:#}")),
    }
}

fn one_packet(run: &RunFile, request: &Request) -> Response {
    let found = number(request, "packet").and_then(|row| packet::describe(run, row as usize));
    found.map_or_else(
        || Response::error(404, "there is no such packet"),
        |packet| Response::json(&json!(packet)),
    )
}
