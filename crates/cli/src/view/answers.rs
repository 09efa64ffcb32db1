//! What the page asks for, and what it gets: docs/page.md has the list.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use railnet_formats::run_file::{MISSING, Query, RunFile, coarser, select};
use serde_json::json;

use super::http::{Request, Response};
use super::rerun::Reruns;
use super::{packet, page};

/// Rows that are sent at once, unless fewer are asked for.
const ROWS_MAX: usize = 200_000;

/// The runs that are shown: the one that was opened, and those that were made from it since.
pub(super) struct Shown {
    runs: Arc<Mutex<Vec<Option<Arc<RunFile>>>>>,
    reruns: Reruns,
}

impl Shown {
    pub(super) fn new(run: RunFile) -> Self {
        let runs = Arc::new(Mutex::new(vec![Some(Arc::new(run))]));
        Self { reruns: Reruns::new(Arc::clone(&runs)), runs }
    }

    pub(super) fn answer(&self, request: &Request) -> Response {
        match (request.method.as_str(), request.path.as_str()) {
            ("GET", "/") => page::asset("index.html"),
            ("GET", "/api/run") => self.with(request, |run| Response::json(&run.meta)),
            ("GET", "/api/rows") => self.with(request, |run| rows(run, request)),
            ("GET", "/api/packet") => self.with(request, |run| one_packet(run, request)),
            ("POST", "/api/plan") => planned(&request.body),
            ("POST", "/api/rerun") => self.reruns.start(&request.body),
            ("GET", "/api/rerun") => self.reruns.state(number(request, "run").unwrap_or(0) as usize),
            ("GET", path) => page::asset(path.trim_start_matches('/')),
            _ => Response::error(405, "only GET, and POST where a run is made again"),
        }
    }

    fn with(&self, request: &Request, answer: impl FnOnce(&RunFile) -> Response) -> Response {
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
    };
    for (key, value) in request.query() {
        if ["run", "table", "from", "to", "most"].contains(&key.as_str()) {
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
