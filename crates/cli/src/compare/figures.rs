//! What came of a run, as rows that can be put beside those of another.

use railnet_core::{Span, Time};
use railnet_job::parallel::Scope;
use railnet_sim::{JobResult, LinkResult, Outcome, RunError, Scenario};

use crate::careful::{self, Notice};
use crate::interrupt::Interrupt;
use crate::sim::report::{Times, Totals, Window, taken, utilisation};
use crate::sim::{job, simulate};
use crate::wire::Wire;

/// What a number is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Microseconds.
    Time,
    Bytes,
    /// Gigabytes per second.
    Bandwidth,
    Count,
    /// Something each second.
    PerSecond,
    /// A part of 1.
    Share,
    Hours,
}

/// A number or a name.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Value {
    Number(Kind, f64),
    Name(String),
}

/// A row.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Figure {
    /// For programs.
    pub(super) key: String,
    /// For people.
    pub(super) label: String,
    pub(super) value: Value,
}

/// All rows of a run.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Figures {
    pub(super) rows: Vec<Figure>,
    pub(super) digest: String,
    /// Why packets may differ from formulas.
    pub(super) caveats: Vec<Notice>,
}

impl Figures {
    fn put(&mut self, key: impl Into<String>, label: impl Into<String>, kind: Kind, number: f64) {
        self.rows.push(Figure { key: key.into(), label: label.into(), value: Value::Number(kind, number) });
    }

    fn time(&mut self, key: impl Into<String>, label: impl Into<String>, span: Span) {
        self.put(key, label, Kind::Time, span.as_us_f64());
    }

    fn name(&mut self, key: impl Into<String>, label: impl Into<String>, name: String) {
        self.rows.push(Figure { key: key.into(), label: label.into(), value: Value::Name(name) });
    }

    pub(super) fn get(&self, key: &str) -> Option<&Figure> {
        self.rows.iter().find(|row| row.key == key)
    }

    pub(super) fn number(&self, key: &str) -> Option<f64> {
        match self.get(key)?.value {
            Value::Number(_, number) => Some(number),
            Value::Name(_) => None,
        }
    }
}

/// Runs a scenario; nothing where it is asked to stop before its end.
pub(super) fn run(scenario: &Scenario, interrupt: &Interrupt) -> Result<Option<Figures>, RunError> {
    if interrupt.is_set() {
        return Ok(None);
    }
    let mut figures = Figures::default();
    if scenario.has_jobs() {
        let Some(outcome) = job::run_whole(scenario, true, interrupt)? else { return Ok(None) };
        for (number, job) in outcome.jobs.iter().enumerate() {
            let prefix =
                if outcome.jobs.len() > 1 { Some((number, job.placed.resolved.name.clone())) } else { None };
            add_job(&mut figures, job, prefix);
            figures.caveats.extend(careful::notices_of_job(&outcome, job));
        }
        if let Some(network) = &outcome.network {
            add_network(&mut figures, scenario, network, Window::whole(network));
        }
        figures.digest = format!("{:?}", outcome.digest);
        return Ok(Some(figures));
    }
    let Some(finished) = simulate(scenario, Wire::Values, interrupt)? else { return Ok(None) };
    let outcome = finished.outcome;
    figures.time("completion_us", "completed after (JCT)", outcome.completion.since(Time::ZERO));
    add_flows(&mut figures, &outcome);
    add_collectives(&mut figures, &outcome);
    add_network(&mut figures, scenario, &outcome, Window::of(&outcome));
    figures.digest = format!("{:?}", finished.digest);
    Ok(Some(figures))
}

fn add_job(figures: &mut Figures, job: &JobResult, prefix: Option<(usize, String)>) {
    let (key, label) = match prefix {
        Some((number, name)) => (format!("job{number}."), format!("{name}: ")),
        None => (String::new(), String::new()),
    };
    let outcome = &job.first.outcome;
    let average = &outcome.average;
    let mut time = |name: &str, words: &str, span: Span| {
        figures.time(format!("{key}{name}"), format!("{label}{words}"), span);
    };
    time("step_us", "step", outcome.step);
    time("total_us", "all steps (JCT)", job.total());
    time("compute_us", "computing", average.compute());
    time("contention_us", "sharing GPUs with communication", average.contention);
    time("exposed_us", "waiting for communication", average.exposed_total());
    for scope in Scope::ALL {
        let name = scope.name();
        let words = format!("waiting for {name}");
        time(&format!("exposed_{}_us", name.replace(' ', "_")), &words, average.exposed[scope as usize]);
    }
    time("bubble_us", "pipeline bubble", average.bubble);
    time("waiting_us", "waiting for late ranks", average.waiting);
    if let Some(row) = job.first.said.iter().max_by_key(|row| row.said.bytes) {
        let name = format!("{} calls", row.said.scope.name());
        time("call_us_median", &format!("{name}, median"), row.said.median);
        time("call_us_p99", &format!("{name}, p99"), row.said.late);
        time("call_us_max", &format!("{name}, longest"), row.said.longest);
    }
    let gpus = f64::from(job.placed.ranks());
    let lost = (1.0 - outcome.utilisation).max(0.0) * gpus * 24.0;
    let mut put = |name: &str, words: &str, kind: Kind, number: f64| {
        figures.put(format!("{key}{name}"), format!("{label}{words}"), kind, number);
    };
    put("tokens_per_s", "tokens/s", Kind::PerSecond, outcome.tokens);
    put("mfu", "MFU", Kind::Share, outcome.mfu);
    put("busy", "GPUs busy", Kind::Share, outcome.utilisation);
    put("gpu_hours_lost_per_day", "GPU-hours lost a day", Kind::Hours, lost);
    put("memory_bytes", "memory of a GPU", Kind::Bytes, job.placed.resolved.memory.total().as_u64() as f64);
}

fn add_flows(figures: &mut Figures, outcome: &Outcome) {
    if outcome.flows.is_empty() {
        return;
    }
    let bytes: u64 = outcome.flows.iter().map(|flow| flow.flow.bytes).sum();
    let seconds = Window::of(outcome).span().as_secs_f64().max(f64::MIN_POSITIVE);
    figures.put("gigabytes_per_s", "all flows together", Kind::Bandwidth, bytes as f64 / seconds / 1e9);
    if outcome.flows.len() == 1 {
        return;
    }
    let times = Times::of(outcome);
    figures.time("flow_us_median", "flows, median", times.at(50, 100));
    figures.time("flow_us_p99", "flows, p99", times.at(99, 100));
    figures.time("flow_us_max", "flows, longest", times.at(100, 100));
}

fn add_collectives(figures: &mut Figures, outcome: &Outcome) {
    for (number, one) in outcome.collectives.iter().enumerate() {
        let size = crate::words::bytes(one.call.bytes(one.ranks).as_u64());
        let name = format!("{} of {size}, {} ranks", one.call.collective, one.ranks);
        figures.time(format!("collective{number}_us"), name.clone(), one.time);
        let bandwidth = railnet_formats::nccl_tests::Bandwidth::of(&one.call, one.ranks, one.time);
        figures.put(
            format!("collective{number}_busbw"),
            format!("{name}, bus"),
            Kind::Bandwidth,
            bandwidth.bus,
        );
    }
    for (number, one) in outcome.transfers.iter().enumerate() {
        let way = if one.is_put { "put" } else { "sent and received" };
        let name = format!("transfer {} {way}", one.section);
        figures.time(format!("transfer{number}_us"), name, one.time);
    }
}

fn add_network(figures: &mut Figures, scenario: &Scenario, outcome: &Outcome, window: Window) {
    if let Some(copies) = scenario.copies() {
        figures.put("copies", "copies of each byte that leaves a server", Kind::Count, f64::from(copies));
        let cores = outcome.lanes.iter().filter(|lane| lane.is_core());
        let busy = cores.fold(Span::ZERO, |sum, lane| sum + lane.counters.busy);
        figures.time("cpu_us", "CPU time, all cores together", busy);
        let written = outcome.lanes.iter().filter(|lane| lane.is_into_host_memory());
        let written: u64 = written.map(|lane| lane.counters.bytes).sum();
        figures.put("host_memory_bytes", "written to host memory", Kind::Bytes, written as f64);
    }
    if let Some(packets) = Totals::of(outcome).packets {
        let ethernet = packets.on_ethernet();
        let counts = [
            ("packet_hops", "packets × links", packets.packet_hops),
            ("drops", "packets dropped", packets.drops),
            ("losses", "packets lost on links", packets.losses),
            ("resent", "packets sent again", packets.resent),
            ("timeouts", "timeouts", packets.timeouts),
            ("marks", "ECN marks", ethernet.marks),
            ("notifications", "congestion notifications", ethernet.notifications),
            ("pauses", "pauses", ethernet.pauses),
        ];
        for (key, label, number) in counts {
            figures.put(key, label, Kind::Count, number as f64);
        }
        figures.put("paused_us", "time paused, all links together", Kind::Time, ethernet.paused_us);
        figures.put("max_queue_bytes", "longest queue", Kind::Bytes, packets.max_queue_bytes as f64);
    }
    let part = |link: &LinkResult| utilisation(link, window);
    if let Some(link) = outcome.links.iter().max_by(|a, b| part(a).total_cmp(&part(b))) {
        figures.put("busiest_link", "busiest link", Kind::Share, part(link));
        figures.name("busiest_link_name", "which is", format!("{} → {}", link.from, link.to));
    }
    let lanes = outcome.lanes.iter();
    if let Some(lane) = lanes.max_by(|a, b| taken(a, window).total_cmp(&taken(b, window))) {
        figures.put("busiest_lane", "busiest in a server", Kind::Share, taken(lane, window));
        figures.name("busiest_lane_name", "which is", lane.name.clone());
    }
}
