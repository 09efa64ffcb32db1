//! `[nic.dcqcn]`, `[nic.timely]`, `[nic.swift]`, `[nic.hpcc]`, `[nic.dctcp]`: what differs from the published parameters of a congestion control.
//!
//! One `parameters!` each: a key has the name of the field it changes. Another control needs its list here, a field in
//! `NicSection`, and a line in `Scenario::control`.

use std::fmt;
use std::str::FromStr;

use railnet_core::{Bytes, Rate, Ratio, Span};
use railnet_nic::control::{
    DcqcnParameters, DctcpParameters, HpccParameters, SwiftParameters, TimelyParameters,
};
use serde::Deserialize;
use serde::de::{Deserializer, Error, Visitor};

use crate::written::Written;

/// A table of optional keys, and how they change a set of parameters.
macro_rules! parameters {
    ($(#[$doc:meta])* $table:ident changes $target:ty { $($key:ident: $kind:ty, $what:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $table {
            $(#[doc = $what] pub $key: Option<$kind>,)*
        }

        impl $table {
            /// The same parameters with what is written here.
            pub(super) fn on(&self, mut parameters: $target) -> $target {
                $(if let Some(value) = self.$key {
                    parameters.$key = value.into();
                })*
                parameters
            }
        }
    };
}

parameters! {
    /// `[nic.dcqcn]`.
    DcqcnTable changes DcqcnParameters {
        gain: Share, "The weight of a new sample in alpha.";
        initial_alpha: Share, "Alpha before the first sample.";
        alpha_interval: Written<Interval>, "How often alpha moves.";
        alpha_rises_at_once: bool, "Alpha also rises at each notification.";
        cuts_at_once: bool, "A notification cuts when it comes, and not at the next tick of a clock.";
        decrease_interval: Written<Interval>, "The least time between two cuts, or the period of their clock.";
        increase_interval: Written<Interval>, "The period of the increase timer.";
        increase_bytes: Written<Bytes>, "Bytes between increases by volume; 0 for no byte counter.";
        fast_recovery: u32, "Increases in fast recovery.";
        additive: Written<Step>, "Additive increase.";
        hyper: Written<Step>, "Hyper increase.";
        minimum: Written<Step>, "Never slower than this.";
        clamp_target: bool, "A cut always sets the target to the present rate.";
        window: Written<Span>, "Bytes in flight at most, as time at line rate; 0 for no window.";
        window_follows_rate: bool, "The window is that time at the present rate.";
    }
}

parameters! {
    /// `[nic.timely]`.
    TimelyTable changes TimelyParameters {
        low: Written<Span>, "Below this round trip the rate rises.";
        high: Written<Span>, "Above this round trip the rate falls.";
        round_trip_least: Written<Interval>, "What changes are measured against.";
        weight: Share, "The weight of a new change in their average.";
        beta: Share, "The strength of a cut.";
        additive: Written<Step>, "Additive increase.";
        hyper: Written<Step>, "The increase after several in a row.";
        hyper_after: u8, "How many in a row.";
        hyper_below_low: bool, "Increases below `low` count too.";
        once_each_round_trip: bool, "One change of the rate in a round trip.";
        minimum: Written<Step>, "Never slower than this.";
        burst: Written<Bytes>, "Bytes between two packets that are measured.";
    }
}

parameters! {
    /// `[nic.swift]`.
    SwiftTable changes SwiftParameters {
        base: Written<Span>, "The target of a large window on a path without hops.";
        hop: Written<Span>, "What each hop adds.";
        scaling_range: Written<Span>, "The most that flow scaling adds.";
        scaling_least: Packets, "The window at which it adds all of that.";
        scaling_most: u32, "The window at which it adds nothing.";
        additive: u32, "Packets by which the window grows in a round trip.";
        beta: Share, "The strength of a cut.";
        cut_most: Share, "The largest cut.";
        window_least: Packets, "The smallest window.";
        window_first: Written<Span>, "The first window, as time at line rate.";
        window_most: Written<Span>, "The largest window, as time at line rate.";
    }
}

parameters! {
    /// `[nic.hpcc]`.
    HpccTable changes HpccParameters {
        target: Share, "The load that is aimed at.";
        stages_most: u8, "Round trips of small steps before a large one.";
        additive: Written<Step>, "The small step.";
        round_trip: Written<Interval>, "The round trip of an idle network.";
        minimum: Written<Step>, "Never slower than this.";
    }
}

parameters! {
    /// `[nic.dctcp]`.
    DctcpTable changes DctcpParameters {
        gain: Share, "The weight of a window's marks in alpha.";
        initial_alpha: Share, "Alpha before the first window.";
        window_first: Written<Bytes>, "The first window.";
        window_most: Written<Bytes>, "No window is larger.";
        slow_start: bool, "The window doubles each round trip at first, and after a timeout.";
    }
}

impl From<Written<Self>> for Span {
    fn from(value: Written<Self>) -> Self {
        value.0
    }
}

impl From<Written<Span>> for Option<Span> {
    fn from(value: Written<Span>) -> Self {
        (value.0 > Span::ZERO).then_some(value.0)
    }
}

impl From<Written<Interval>> for Span {
    fn from(value: Written<Interval>) -> Self {
        value.0.0
    }
}

impl From<Written<Step>> for Rate {
    fn from(value: Written<Step>) -> Self {
        value.0.0
    }
}

impl From<Written<Self>> for Bytes {
    fn from(value: Written<Self>) -> Self {
        value.0
    }
}

impl From<Written<Bytes>> for Option<Bytes> {
    fn from(value: Written<Bytes>) -> Self {
        (value.0 > Bytes(0)).then_some(value.0)
    }
}

impl From<Share> for (u32, u32) {
    fn from(value: Share) -> Self {
        value.0
    }
}

impl From<Packets> for (u32, u32) {
    fn from(value: Packets) -> Self {
        value.0
    }
}

/// The period of a clock: long enough that it is not all that happens.
#[derive(Clone, Copy, Debug)]
pub struct Interval(Span);

impl FromStr for Interval {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const LEAST: Span = Span::from_ns(100);
        const MOST: Span = Span::from_secs(1);
        let span: Span = text.parse().map_err(|error| format!("{error}"))?;
        match (LEAST..=MOST).contains(&span) {
            true => Ok(Self(span)),
            false => Err(format!("\"{text}\" is no period for a clock: {LEAST} to {MOST}")),
        }
    }
}

/// A rate that others grow by, or stay above.
#[derive(Clone, Copy, Debug)]
pub struct Step(Rate);

impl FromStr for Step {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const LEAST: Rate = Rate::from_bps(100_000);
        const MOST: Rate = Rate::gbps(10_000);
        let rate: Rate = text.parse().map_err(|error| format!("{error}"))?;
        match (LEAST..=MOST).contains(&rate) {
            true => Ok(Self(rate)),
            false => Err(format!("\"{text}\" gets a flow nowhere: {LEAST} to {MOST}")),
        }
    }
}

/// A number from 0 to 1: `0.8` or `"1/256"`.
#[derive(Clone, Copy, Debug)]
pub struct Share((u32, u32));

/// A number of packets, which may be less than one: `0.01` or `"1/100"`.
#[derive(Clone, Copy, Debug)]
pub struct Packets((u32, u32));

impl<'de> Deserialize<'de> for Share {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let ratio = deserializer.deserialize_any(RatioVisitor)?;
        match parts(ratio).filter(|_| ratio <= Ratio::ONE) {
            Some(parts) => Ok(Self(parts)),
            None => Err(D::Error::custom(format!("{ratio} is not from 0 to 1, as 0.8 or \"1/256\""))),
        }
    }
}

impl<'de> Deserialize<'de> for Packets {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let ratio = deserializer.deserialize_any(RatioVisitor)?;
        match parts(ratio).filter(|_| ratio > Ratio::new(0, 1)) {
            Some(parts) => Ok(Self(parts)),
            None => Err(D::Error::custom(format!("{ratio} packets are no window: more than 0, as 0.01"))),
        }
    }
}

fn parts(ratio: Ratio) -> Option<(u32, u32)> {
    Some((u32::try_from(ratio.numerator()).ok()?, u32::try_from(ratio.denominator()).ok()?))
}

/// Reads `0.8`, `2` and `"1/256"` alike.
pub(super) struct RatioVisitor;

impl Visitor<'_> for RatioVisitor {
    type Value = Ratio;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number such as 0.8, or a fraction such as \"1/256\"")
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Ratio, E> {
        number.to_string().parse().map_err(E::custom)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Ratio, E> {
        number.to_string().parse().map_err(E::custom)
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Ratio, E> {
        // As it was written: the shortest text that reads back as the same number.
        number.to_string().parse().map_err(E::custom)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Ratio, E> {
        text.parse().map_err(E::custom)
    }
}
