//! What came of a run, on one screen: plain words on the left, the number that matters, the reason on the right.

use std::io::Write;

use railnet_core::{Span, Time};
use railnet_fabric::last_lid;
use railnet_sim::{LinkResult, Outcome, Scenario};
use railnet_wire::Framing;

use super::problem::File;
use super::report::{EthernetTotals, PacketTotals, Times, Totals, Window, taken, utilisation};
use super::{Finished, collectives, transfers};
use crate::careful;
use crate::words::{bytes, count, grouped, kebab, micros, rate, tenths};

/// Links that are named for how busy they were, and for how long their queue was.
const NAMED: usize = 3;

pub(super) fn print(file: &File, finished: &Finished, out: &mut dyn Write) -> anyhow::Result<()> {
    let outcome = &finished.outcome;
    let totals = Totals::of(outcome);
    writeln!(
        out,
        "Railnet {} · {}{} · {} fidelity · seed {}\n",
        env!("CARGO_PKG_VERSION"),
        file.path,
        file.scenario.preset.map(|preset| format!(" · preset {}", kebab(&preset))).unwrap_or_default(),
        outcome.fidelity.name(),
        finished.seed
    )?;
    for text in careful::lines(&file.scenario.without_effect()) {
        writeln!(out, "  Careful: {text}\n")?;
    }
    if let Some((done, all)) = finished.partial {
        let now = micros(outcome.completion - Time::ZERO);
        writeln!(
            out,
            "PARTIAL: stopped after {now} µs, {done} of {all} flows and calls were over; this is known by then\n"
        )?;
    }
    collectives::print(&outcome.collectives, out)?;
    transfers::print(&outcome.transfers, out)?;
    let mut lines = vec![ran(&file.scenario, outcome, &totals)];
    lines.push(match totals.packets {
        Some(_) => with(&file.scenario),
        None => shared(&file.scenario),
    });
    lines.push(completed(outcome, totals.packets.as_ref()));
    if !outcome.flows.is_empty() {
        lines.extend([flows(outcome), throughput(outcome, &totals)]);
    }
    if let Some(packets) = &totals.packets {
        lines.push(losses(packets));
        match &packets.ethernet {
            Some(ethernet) => lines.extend([marks(outcome, ethernet), pauses(outcome, ethernet)]),
            None => lines.push(subnet(&file.scenario, outcome)),
        }
    }
    for (what, number, reason) in lines {
        line(out, what, &number, &reason)?;
    }
    busiest(outcome, out)?;
    queues(outcome, out)?;
    inside(outcome, out)?;
    let wall = finished.wall_s.max(1e-9);
    let speed = match &totals.packets {
        Some(packets) => format!(
            "{:.2} M packet-hops/s, {:.2} M events/s",
            packets.packet_hops as f64 / wall / 1e6,
            packets.events as f64 / wall / 1e6
        ),
        None => "queues, losses, pauses and congestion control are left out: `--fidelity packet` has them"
            .to_owned(),
    };
    line(out, "Wall time", &format!("{wall:.2} s"), &speed)?;
    let repeat = format!("railnet sim {} --seed {} gives it again", file.path, finished.seed);
    line(out, "Digest", &finished.digest.to_string(), &repeat)?;
    Ok(())
}

fn line(out: &mut dyn Write, what: &str, number: &str, reason: &str) -> std::io::Result<()> {
    let text = format!("  {what:<12}{number:<22} {reason}");
    writeln!(out, "{}", text.trim_end())
}

type Line = (&'static str, String, String);

fn ran(scenario: &Scenario, outcome: &Outcome, totals: &Totals) -> Line {
    let (hosts, switches) = outcome.size;
    let calls = outcome.collectives.len() + outcome.transfers.len();
    let number = match (outcome.flows.len(), calls) {
        (0, calls) if calls > 0 => count(calls as u64, "call", "calls"),
        (flows, 0) => format!("{}, {}", count(flows as u64, "flow", "flows"), bytes(totals.bytes)),
        (flows, calls) => {
            format!("{}, {}", count(flows as u64, "flow", "flows"), count(calls as u64, "call", "calls"))
        }
    };
    let rates = outcome.links.iter().map(|link| link.rate);
    let alike = match (rates.clone().min(), rates.max()) {
        (Some(least), Some(most)) if least < most => format!("{least} to {most}"),
        (Some(rate), _) => format!("{rate} and {}", scenario.fabric.link.delay.0),
        _ => "no rate".to_owned(),
    };
    let reason = format!(
        "{} and {}, {} of {alike}",
        count(hosts as u64, "host", "hosts"),
        count(switches as u64, "switch", "switches"),
        count(outcome.links.len() as u64 / 2, "link", "links"),
    );
    ("Ran", number, reason)
}

fn with(scenario: &Scenario) -> Line {
    let (switch, framing) = (scenario.switch_config(), scenario.wire_framing());
    let recovery = kebab(&scenario.recovery());
    let recovery = recovery.split_whitespace().next().unwrap_or_default();
    let reason = format!(
        "{}{recovery}, MTU {} B; switches: {} routing, flow control {}{}",
        if framing == Framing::RoceV2 { String::new() } else { format!("{}, ", framing.name()) },
        scenario.payload(),
        kebab(&scenario.routing_name()),
        kebab(&scenario.flow_control_name()),
        match framing {
            Framing::Infiniband => String::new(),
            _ => format!(", {}, {} of buffer", if switch.marks { "ECN" } else { "no ECN" }, switch.buffer),
        },
    );
    ("With", format!("control {}", kebab(&scenario.control_name())), reason)
}

/// How flows share links at flow fidelity.
fn shared(scenario: &Scenario) -> Line {
    let reason = format!("MTU {} B; {} routing", scenario.payload(), kebab(&scenario.routing_name()));
    ("With", "max-min fair rates".to_owned(), reason)
}

fn completed(outcome: &Outcome, packets: Option<&PacketTotals>) -> Line {
    let completion = outcome.completion.since(Time::ZERO);
    let reason = packets.map_or_else(String::new, |packets| {
        let hops = count(packets.packet_hops, "packet-hop", "packet-hops");
        format!("{hops}, {}", count(packets.events, "event", "events"))
    });
    ("Completed", format!("{} µs", micros(completion)), reason)
}

fn flows(outcome: &Outcome) -> Line {
    let times = Times::of(outcome);
    let at = |part| micros(times.at(part, 100));
    let reason = format!("a flow, median; min {} µs, p99 {} µs, max {} µs", at(0), at(99), at(100));
    ("Flows took", format!("{} µs", at(50)), reason)
}

fn throughput(outcome: &Outcome, totals: &Totals) -> Line {
    let per_second = |bytes: u64, span: Span| match span.as_secs_f64() {
        seconds if seconds > 0.0 => bytes as f64 * 8.0 / seconds,
        _ => 0.0,
    };
    let mut each: Vec<f64> = outcome
        .flows
        .iter()
        .map(|flow| per_second(flow.flow.bytes, flow.finished.since(flow.started)))
        .collect();
    each.sort_by(f64::total_cmp);
    let at = |place: usize| rate(each.get(place).copied().unwrap_or(0.0));
    let last = each.len().saturating_sub(1);
    let total = per_second(totals.bytes, Window::of(outcome).span());
    let reason =
        format!("payload, all flows; one flow: min {}, median {}, max {}", at(0), at(last / 2), at(last));
    ("Throughput", rate(total), reason)
}

fn losses(totals: &PacketTotals) -> Line {
    let mut reason = format!(
        "{} sent again, {}",
        count(totals.resent, "packet", "packets"),
        count(totals.timeouts, "timeout", "timeouts")
    );
    if totals.losses > 0 {
        reason = format!("{} lost or damaged on links; {reason}", grouped(totals.losses));
    }
    ("Dropped", count(totals.drops, "packet", "packets"), reason)
}

fn marks(outcome: &Outcome, totals: &EthernetTotals) -> Line {
    let share = totals.marks as f64 / outcome.packet_hops.max(1) as f64 * 100.0;
    let notifications = count(totals.notifications, "congestion notification", "congestion notifications");
    let reason = format!("ECN, on {share:.1} % of packet-hops; {notifications}");
    ("Marked", count(totals.marks, "packet", "packets"), reason)
}

/// What the subnet manager assigned.
fn subnet(scenario: &Scenario, outcome: &Outcome) -> Line {
    let lmc = scenario.fabric.infiniband.lmc;
    let (hosts, switches) = outcome.size;
    let reason = format!(
        "LIDs 1 to {}, {} for each host (LMC {lmc}); credits for each virtual lane, so nothing is sent that has no room",
        last_lid(hosts, switches, lmc),
        1 << lmc
    );
    ("Subnet", count((hosts + switches) as u64, "node", "nodes"), reason)
}

fn pauses(outcome: &Outcome, totals: &EthernetTotals) -> Line {
    let worst = outcome.links.iter().max_by_key(|link| link.counters.paused_ps);
    let reason = match worst.filter(|link| link.counters.paused_ps > 0) {
        Some(worst) => format!(
            "{} µs in all; longest {}, {} µs",
            tenths(totals.paused_us),
            name(worst),
            micros(Span::from_ps(worst.counters.paused_ps))
        ),
        None => "no link was held back".to_owned(),
    };
    ("Paused", count(totals.pauses, "time", "times"), reason)
}

fn name(link: &LinkResult) -> String {
    format!("{} → {}", link.from, link.to)
}

/// The links with most of something; of equals, those that come first in the fabric.
fn most(outcome: &Outcome, of: impl Fn(&LinkResult) -> u64) -> Vec<&LinkResult> {
    let mut links: Vec<&LinkResult> = outcome.links.iter().filter(|link| of(link) > 0).collect();
    links.sort_by_key(|link| std::cmp::Reverse(of(link)));
    links.truncate(NAMED);
    links
}

fn busiest(outcome: &Outcome, out: &mut dyn Write) -> std::io::Result<()> {
    let window = Window::of(outcome);
    let parts = |link: &LinkResult| (utilisation(link, window) * 1e9) as u64;
    for (index, link) in most(outcome, parts).into_iter().enumerate() {
        let share = format!("{:.1} %", utilisation(link, window) * 100.0);
        let reason = format!("{}, {} of {}", name(link), bytes(link.counters.bytes), link.rate);
        line(out, if index == 0 { "Busiest" } else { "" }, &share, &reason)?;
    }
    Ok(())
}

fn queues(outcome: &Outcome, out: &mut dyn Write) -> std::io::Result<()> {
    for (index, link) in most(outcome, |link| link.counters.queue_max).into_iter().enumerate() {
        let what = if index == 0 { "Queues" } else { "" };
        let drains = link.rate.serialize(railnet_core::Bytes(link.counters.queue_max));
        let depth = format!("{} KB", grouped(link.counters.queue_max.div_ceil(1000)));
        let marks = match outcome.framing {
            Framing::Infiniband => String::new(),
            _ => format!(", {}", count(link.counters.marks, "mark", "marks")),
        };
        line(out, what, &depth, &format!("{}, {} µs of waiting{marks}", name(link), micros(drains)))?;
    }
    Ok(())
}

/// The links and cores inside servers that were taken for the longest time.
fn inside(outcome: &Outcome, out: &mut dyn Write) -> std::io::Result<()> {
    let mut lanes: Vec<_> = outcome.lanes.iter().collect();
    lanes.sort_by_key(|lane| std::cmp::Reverse(lane.counters.busy));
    for (index, lane) in lanes.into_iter().take(NAMED).enumerate() {
        let share = format!("{:.1} %", taken(lane, Window::of(outcome)) * 100.0);
        let reason = format!("{}, {}", lane.name, bytes(lane.counters.bytes));
        line(out, if index == 0 { "In servers" } else { "" }, &share, &reason)?;
    }
    Ok(())
}
