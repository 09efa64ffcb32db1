//! An incast in code: how long it takes, how long the queue becomes and how often NICs are paused, by congestion control.
#![allow(clippy::print_stdout, reason = "an example talks")]

use railnet::sim::{FabricSpec, LinkSpec, NicSpec, ScenarioSpec, TopologySpec, TrafficSpec, simulate};
use railnet::units::{Bytes, Rate, Span, Time};

const SENDERS: u32 = 16;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("control   completed     longest queue   pauses   marks");
    for control in ["none", "dcqcn", "swift", "hpcc"] {
        let spec = scenario(control);
        let outcome = simulate(&spec.build()?)?;
        assert_eq!(outcome.flows.len(), SENDERS as usize);
        let queue = outcome.links.iter().map(|link| link.counters.queue_max).max().unwrap_or_default();
        let pauses: u64 = outcome.links.iter().map(|link| link.counters.pauses).sum();
        let marks: u64 = outcome.links.iter().map(|link| link.counters.marks).sum();
        let completed = outcome.completion.since(Time::ZERO).as_us_f64();
        println!("{control:<9} {completed:>9.1} us {:>12} KB {pauses:>8} {marks:>7}", queue / 1000);
    }
    // The same scenario as a file, for `railnet sim`.
    print!("\n{}", scenario("dcqcn").to_toml()?);
    Ok(())
}

/// Sixteen hosts of 100 Gb/s send 1 MB each to the seventeenth.
fn scenario(control: &str) -> ScenarioSpec {
    let link = LinkSpec { rate: Some(Rate::gbps(100)), delay: Some(Span::from_us(1)), ..LinkSpec::default() };
    ScenarioSpec {
        fabric: Some(FabricSpec {
            topology: TopologySpec::SingleSwitch { hosts: SENDERS + 1 },
            link: Some(link),
            ..FabricSpec::default()
        }),
        nic: Some(NicSpec { control: Some(control.to_owned()), ..NicSpec::default() }),
        traffic: vec![TrafficSpec::incast("0..15", SENDERS, Bytes(1_000_000))],
        ..ScenarioSpec::default()
    }
}
