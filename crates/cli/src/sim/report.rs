//! What came of a run, for programs: JSON and CSV.

use railnet_core::{Span, Time};
use railnet_sim::{Fidelity, FlowResult, LaneResult, LinkResult, Outcome};
use railnet_wire::Framing;
use serde::{Deserialize, Serialize};

use super::Finished;
use super::collectives::CollectiveRow;
use super::failure;
use super::problem::File as ScenarioFile;
use super::series::{self, SeriesObject};
use super::transfers::TransferRow;
use crate::careful;
use crate::files::Tables;

/// All of a run. `docs/scenarios.md` says what the fields mean.
#[derive(Serialize)]
pub(super) struct Whole<'a> {
    scenario: &'a str,
    fidelity: &'static str,
    seed: u64,
    /// Keys and variables that were set and did nothing.
    without_effect: serde_json::Value,
    /// Only where it was stopped before its end.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    partial: bool,
    /// Only where it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<serde_json::Value>,
    digest: String,
    hosts: usize,
    switches: usize,
    #[serde(flatten)]
    totals: Totals,
    wall_s: f64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    collectives: Vec<CollectiveRow>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    transfers: Vec<TransferRow>,
    flows: Vec<FlowRow>,
    links: Vec<LinkRow<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    lanes: Vec<LaneRow<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    series: Option<SeriesObject<'a>>,
}

/// The sums and extremes of a run.
#[derive(Serialize, Deserialize, Clone)]
pub(crate) struct Totals {
    pub(crate) completion_us: f64,
    pub(crate) flow_us_min: f64,
    pub(crate) flow_us_median: f64,
    pub(crate) flow_us_p99: f64,
    pub(crate) flow_us_max: f64,
    pub(crate) bytes: u64,
    /// Nothing at flow fidelity.
    #[serde(flatten)]
    pub(crate) packets: Option<PacketTotals>,
}

/// What packets did.
#[derive(Serialize, Deserialize, Clone)]
pub(crate) struct PacketTotals {
    pub(crate) packet_hops: u64,
    pub(crate) events: u64,
    pub(crate) drops: u64,
    pub(crate) losses: u64,
    /// Nothing on InfiniBand.
    #[serde(flatten)]
    pub(crate) ethernet: Option<EthernetTotals>,
    pub(crate) resent: u64,
    pub(crate) timeouts: u64,
    pub(crate) max_queue_bytes: u64,
}

/// What only Ethernet and IP have.
#[derive(Serialize, Deserialize, Clone, Default)]
pub(crate) struct EthernetTotals {
    pub(crate) marks: u64,
    pub(crate) notifications: u64,
    pub(crate) pauses: u64,
    pub(crate) paused_us: f64,
}

#[derive(Serialize)]
struct FlowRow {
    source: u32,
    target: u32,
    priority: u8,
    bytes: u64,
    start_us: f64,
    finish_us: f64,
}

#[derive(Serialize)]
struct LinkRow<'a> {
    from: &'a str,
    to: &'a str,
    rate_bps: u64,
    bytes: u64,
    packets: u64,
    utilisation: f64,
    /// Nothing at flow fidelity.
    #[serde(flatten)]
    counted: Option<LinkCounts>,
}

/// What happened to packets at a link.
#[derive(Serialize)]
struct LinkCounts {
    max_queue_bytes: u64,
    drops: u64,
    losses: u64,
    /// Nothing on InfiniBand.
    #[serde(flatten)]
    ethernet: Option<EthernetCounts>,
}

/// What only Ethernet and IP have.
#[derive(Serialize, Default)]
struct EthernetCounts {
    marks: u64,
    pauses: u64,
    paused_us: f64,
}

#[derive(Serialize)]
struct LaneRow<'a> {
    name: &'a str,
    bytes: u64,
    slices: u64,
    busy_us: f64,
    utilisation: f64,
}

pub(super) fn whole<'a>(file: &'a ScenarioFile, finished: &'a Finished) -> Whole<'a> {
    let outcome = &finished.outcome;
    let window = Window::of(outcome);
    Whole {
        scenario: &file.path,
        fidelity: outcome.fidelity.name(),
        seed: finished.seed,
        without_effect: careful::object(&file.scenario.without_effect()),
        partial: finished.partial.is_some() || finished.failure.is_some(),
        error: finished.failure.as_ref().map(failure::object),
        digest: format!("{:?}", finished.digest),
        hosts: outcome.size.0,
        switches: outcome.size.1,
        totals: Totals::of(outcome),
        wall_s: finished.wall_s,
        collectives: outcome.collectives.iter().map(CollectiveRow::of).collect(),
        transfers: outcome.transfers.iter().map(TransferRow::of).collect(),
        flows: outcome.flows.iter().map(FlowRow::of).collect(),
        links: outcome.links.iter().map(|link| LinkRow::of(link, window, outcome)).collect(),
        lanes: outcome.lanes.iter().map(|lane| LaneRow::of(lane, window)).collect(),
        series: outcome.series.as_ref().map(|series| series::object(outcome, series)),
    }
}

/// What the fabric saw of a job.
#[derive(Serialize)]
pub(super) struct Fabric<'a> {
    #[serde(flatten)]
    totals: Totals,
    links: Vec<LinkRow<'a>>,
}

pub(super) fn fabric(outcome: &Outcome) -> Fabric<'_> {
    let window = Window::whole(outcome);
    let links = outcome.links.iter().map(|link| LinkRow::of(link, window, outcome)).collect();
    Fabric { totals: Totals::of(outcome), links }
}

impl<'a> LaneRow<'a> {
    fn of(lane: &'a LaneResult, window: Window) -> Self {
        let LaneResult { name, counters } = lane;
        Self {
            name,
            bytes: counters.bytes,
            slices: counters.slices,
            busy_us: counters.busy.as_us_f64(),
            utilisation: taken(lane, window),
        }
    }
}

/// The part of a run in which something was sent.
#[derive(Clone, Copy)]
pub(crate) struct Window {
    start: Time,
    end: Time,
}

impl Window {
    /// From the first flow or call to the end of the last.
    pub(crate) fn of(outcome: &Outcome) -> Self {
        let flows = outcome.flows.iter().chain(&outcome.open_flows).map(|flow| flow.started);
        let collectives = outcome.collectives.iter().map(|call| call.started);
        let transfers = outcome.transfers.iter().map(|transfer| transfer.started);
        let start = flows.chain(collectives).chain(transfers).min().unwrap_or(Time::ZERO);
        Self { start: start.min(outcome.completion), end: outcome.completion }
    }

    /// All of a run: jobs begin with it.
    pub(crate) const fn whole(outcome: &Outcome) -> Self {
        Self { start: Time::ZERO, end: outcome.completion }
    }

    pub(crate) fn span(self) -> Span {
        self.end.since(self.start)
    }
}

/// The part of a window for which a lane was taken.
pub(crate) fn taken(lane: &LaneResult, window: Window) -> f64 {
    lane.counters.busy.as_ps() as f64 / window.span().as_ps().max(1) as f64
}

impl Totals {
    pub(crate) fn of(outcome: &Outcome) -> Self {
        let times = Times::of(outcome);
        Self {
            completion_us: since_start(outcome.completion),
            flow_us_min: times.at(0, 100).as_us_f64(),
            flow_us_median: times.at(50, 100).as_us_f64(),
            flow_us_p99: times.at(99, 100).as_us_f64(),
            flow_us_max: times.at(100, 100).as_us_f64(),
            bytes: outcome.flows.iter().map(|flow| flow.flow.bytes).sum(),
            packets: (outcome.fidelity == Fidelity::Packet).then(|| PacketTotals::of(outcome)),
        }
    }
}

impl PacketTotals {
    /// What Ethernet and IP have; zeros where links are InfiniBand's.
    pub(crate) fn on_ethernet(&self) -> EthernetTotals {
        self.ethernet.clone().unwrap_or_default()
    }

    fn of(outcome: &Outcome) -> Self {
        let sum = |of: fn(&LinkResult) -> u64| outcome.links.iter().map(of).sum::<u64>();
        Self {
            packet_hops: outcome.packet_hops,
            events: outcome.events,
            drops: sum(|link| link.counters.drops),
            losses: sum(|link| link.counters.losses),
            ethernet: (outcome.framing != Framing::Infiniband).then(|| EthernetTotals {
                marks: sum(|link| link.counters.marks),
                notifications: outcome.notifications,
                pauses: sum(|link| link.counters.pauses),
                paused_us: Span::from_ps(sum(|link| link.counters.paused_ps)).as_us_f64(),
            }),
            resent: outcome.resent,
            timeouts: outcome.timeouts,
            max_queue_bytes: outcome.links.iter().map(|link| link.counters.queue_max).max().unwrap_or(0),
        }
    }
}

/// How long the flows took, shortest first.
pub(crate) struct Times(Vec<Span>);

impl Times {
    pub(crate) fn of(outcome: &Outcome) -> Self {
        let mut times: Vec<Span> =
            outcome.flows.iter().map(|flow| flow.finished.since(flow.started)).collect();
        times.sort_unstable();
        Self(times)
    }

    /// The smallest time that at least `part` of `whole` flows do not exceed.
    pub(crate) fn at(&self, part: usize, whole: usize) -> Span {
        let rank = (self.0.len() * part).div_ceil(whole).max(1);
        self.0.get(rank - 1).copied().unwrap_or(Span::ZERO)
    }
}

/// The share of a link's capacity that was used in a window.
pub(crate) fn utilisation(link: &LinkResult, window: Window) -> f64 {
    let could = link.rate.as_bps() as f64 * window.span().as_secs_f64();
    if could > 0.0 { link.counters.bytes as f64 * 8.0 / could } else { 0.0 }
}

fn since_start(at: Time) -> f64 {
    at.since(Time::ZERO).as_us_f64()
}

impl FlowRow {
    fn of(result: &FlowResult) -> Self {
        Self {
            source: result.flow.source,
            target: result.flow.target,
            priority: result.flow.priority,
            bytes: result.flow.bytes,
            start_us: since_start(result.started),
            finish_us: since_start(result.finished),
        }
    }
}

impl<'a> LinkRow<'a> {
    fn of(link: &'a LinkResult, window: Window, outcome: &Outcome) -> Self {
        let counters = &link.counters;
        let counted = LinkCounts {
            max_queue_bytes: counters.queue_max,
            drops: counters.drops,
            losses: counters.losses,
            ethernet: (outcome.framing != Framing::Infiniband).then(|| EthernetCounts {
                marks: counters.marks,
                pauses: counters.pauses,
                paused_us: Span::from_ps(counters.paused_ps).as_us_f64(),
            }),
        };
        Self {
            from: &link.from,
            to: &link.to,
            rate_bps: link.rate.as_bps(),
            bytes: counters.bytes,
            packets: counters.packets,
            utilisation: utilisation(link, window),
            counted: (outcome.fidelity == Fidelity::Packet).then_some(counted),
        }
    }
}

/// Writes `flows.csv` and `links.csv`.
pub(super) fn write_csv(tables: &mut Tables, outcome: &Outcome, window: Window) -> anyhow::Result<()> {
    tables.write("flows.csv", |out| {
        writeln!(out, "source,target,priority,bytes,start_us,finish_us")?;
        for result in &outcome.flows {
            let FlowRow { source, target, priority, bytes, start_us, finish_us } = FlowRow::of(result);
            writeln!(out, "{source},{target},{priority},{bytes},{start_us:.6},{finish_us:.6}")?;
        }
        Ok(())
    })?;
    tables.write("links.csv", |out| {
        writeln!(
            out,
            "from,to,rate_bps,bytes,packets,utilisation,max_queue_bytes,marks,drops,losses,pauses,paused_us"
        )?;
        for link in &outcome.links {
            let row = LinkRow::of(link, window, outcome);
            let LinkRow { from, to, rate_bps, bytes, packets, utilisation, counted } = row;
            write!(out, "{from},{to},{rate_bps},{bytes},{packets},{utilisation:.6}")?;
            match counted {
                Some(LinkCounts { max_queue_bytes, drops, losses, ethernet }) => {
                    let EthernetCounts { marks, pauses, paused_us } = ethernet.unwrap_or_default();
                    writeln!(out, ",{max_queue_bytes},{marks},{drops},{losses},{pauses},{paused_us:.6}")?;
                }
                // Columns stay where they are.
                None => writeln!(out, ",,,,,,")?,
            }
        }
        Ok(())
    })
}
