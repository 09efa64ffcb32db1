//! `railnet bench calendar`: the calendar of the simulator against a binary heap, on the same events.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hint::black_box;
use std::io::Write;
use std::time::Instant;

use railnet_core::{Component, Order, Random, Time};
use railnet_fabric::{Calendar, Sequences};
use serde_json::{Value, json};

use crate::Outcome;

#[derive(clap::Args)]
#[command(after_help = "Example:\n  railnet bench calendar --repeat 5")]
pub(crate) struct Arguments {
    /// How often each row is repeated; the table shows median, min and max
    #[arg(long, value_name = "N", value_parser = super::times, default_value_t = 5)]
    repeat: usize,
    /// Events taken out and put in again in each run
    #[arg(long, value_name = "N", value_parser = super::times, default_value_t = 2_000_000)]
    events: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// How many events wait at any time: a small fabric, one of 128 hosts, one of 1,024 hosts, and more.
const WAITING: [usize; 4] = [100, 1_000, 20_000, 200_000];
/// Components that cause events: hosts and switches.
const COMPONENTS: u64 = 1_000;

/// Something that holds events.
trait Holds {
    fn push(&mut self, order: &Order, event: u64);
    fn pop(&mut self) -> Option<(Time, u64)>;
}

impl Holds for Calendar<u64> {
    fn push(&mut self, order: &Order, event: u64) {
        Self::push(self, order, event);
    }

    fn pop(&mut self) -> Option<(Time, u64)> {
        Self::pop(self)
    }
}

impl Holds for BinaryHeap<Reverse<(Order, u64)>> {
    fn push(&mut self, order: &Order, event: u64) {
        Self::push(self, Reverse((*order, event)));
    }

    fn pop(&mut self) -> Option<(Time, u64)> {
        Self::pop(self).map(|Reverse((order, event))| (order.time, event))
    }
}

/// How far ahead events lie in a fabric of 100 Gb/s and 1 µs: the next packet of a port, the arrival of one at the other
/// end, an acknowledgement, and now and then a timer.
fn ahead(random: &mut Random) -> u64 {
    match random.below(100) {
        0..45 => 334_240,
        45..80 => 1_334_240,
        80..98 => 1_000_000 + random.below(10_000),
        _ => 300_000_000 + random.below(1 << 36),
    }
}

/// Nanoseconds for taking one event out and putting one in, with `waiting` in all the time.
fn measure(events: usize, waiting: usize, mut holder: impl Holds) -> f64 {
    let mut random = Random::stream(1, "calendar", waiting as u64);
    let mut sequences = Sequences::new(COMPONENTS as usize);
    let mut put = |now: Time, holder: &mut dyn Holds| {
        let at = Time::from_ps(now.as_ps() + ahead(&mut random));
        let order = sequences.order(at, 0, Component(random.below(COMPONENTS) as u32));
        holder.push(&order, at.as_ps());
    };
    for _ in 0..waiting {
        put(Time::ZERO, &mut holder);
    }
    let mut run = |count: usize| {
        for _ in 0..count {
            let Some((now, event)) = holder.pop() else { break };
            black_box(event);
            put(now, &mut holder);
        }
    };
    // Once through, so that events lie as they do in the long run.
    run(waiting);
    let start = Instant::now();
    run(events);
    start.elapsed().as_nanos() as f64 / events as f64
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    if !arguments.json {
        writeln!(
            out,
            "Take the next event out and put one in, one core, median of {} runs (min – max)\n",
            arguments.repeat
        )?;
        writeln!(
            out,
            "  {:<18}{:>28}{:>28}{:>12}",
            "events waiting", "calendar, ns", "binary heap, ns", "ratio"
        )?;
    }
    let mut rows = Vec::new();
    for waiting in WAITING {
        let times = |run: &dyn Fn() -> f64| {
            let mut times: Vec<f64> = (0..arguments.repeat).map(|_| run()).collect();
            times.sort_by(f64::total_cmp);
            times
        };
        let calendar = times(&|| measure(arguments.events, waiting, Calendar::new()));
        let heap = times(&|| measure(arguments.events, waiting, BinaryHeap::new()));
        let median = |times: &[f64]| times[times.len() / 2];
        let ratio = median(&heap) / median(&calendar);
        if arguments.json {
            rows.push(
                json!({ "waiting": waiting, "calendar_ns": calendar, "heap_ns": heap, "ratio": ratio }),
            );
            continue;
        }
        let cell =
            |times: &[f64]| format!("{:.1} ({:.1} – {:.1})", median(times), times[0], times[times.len() - 1]);
        let waiting = crate::words::grouped(waiting as u64);
        writeln!(out, "  {waiting:<18}{:>28}{:>28}{ratio:>11.1}×", cell(&calendar), cell(&heap))?;
    }
    if arguments.json {
        writeln!(out, "{}", Value::Array(rows))?;
    }
    Ok(Outcome::Done)
}
