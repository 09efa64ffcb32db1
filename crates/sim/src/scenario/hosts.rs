//! Several hosts at once, by number.

use std::fmt;
use std::str::FromStr;

use railnet_topology::FabricGraph;
use serde::Deserialize;
use serde::de::{Deserializer, Error, Visitor};

use super::ScenarioError;
use super::names::HostName;

/// Hosts by number: "0..15" means 0 to 15, "7" means 7, "0..28/4" every fourth of those, and "0..3,8" all of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hosts(Vec<Part>);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Part {
    first: u32,
    last: u32,
    step: u32,
}

impl Hosts {
    /// The first so many.
    fn first(count: u32) -> Self {
        let part = Part { first: 0, last: count.saturating_sub(1), step: 1 };
        Self(if count == 0 { Vec::new() } else { vec![part] })
    }

    /// Their numbers, as they are written; an error where one is not there, or is there twice.
    pub(crate) fn numbers(&self, graph: &FabricGraph) -> Result<Vec<u32>, ScenarioError> {
        let mut is_taken = vec![false; graph.hosts.len()];
        let mut numbers = Vec::new();
        for part in &self.0 {
            HostName::Number(part.last).find(graph)?;
            for host in (part.first..=part.last).step_by(part.step as usize) {
                if std::mem::replace(&mut is_taken[host as usize], true) {
                    return Err(ScenarioError::new(format!("host {host} is meant twice")));
                }
                numbers.push(host);
            }
        }
        Ok(numbers)
    }
}

impl FromStr for Hosts {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.split(',').map(part).collect::<Result<_, String>>().map(Self)
    }
}

fn part(text: &str) -> Result<Part, String> {
    let number = |part: &str| {
        part.trim().parse::<u32>().map_err(|_| {
            format!("\"{text}\" names no hosts: write \"0..15\" for hosts 0 to 15, or \"7\" for one")
        })
    };
    let (range, step) = match text.split_once('/') {
        Some((range, step)) => (range, number(step)?),
        None => (text, 1),
    };
    let (first, last) = match range.split_once("..") {
        Some((first, last)) => (number(first)?, number(last)?),
        None => (number(range)?, number(range)?),
    };
    if first > last {
        return Err(format!("\"{text}\" runs backwards: write \"{last}..{first}\""));
    }
    if step == 0 {
        return Err(format!("\"{text}\" gets nowhere: write \"{first}..{last}/2\" for every second"));
    }
    // The last of a stride that it meets.
    Ok(Part { first, last: last - (last - first) % step, step })
}

/// `hosts = 8` for the first eight, or `hosts = "8..15"`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostSet(Hosts);

impl HostSet {
    /// Their numbers; all that there are where nothing is said.
    pub(crate) fn numbers(set: Option<&Self>, graph: &FabricGraph) -> Result<Vec<u32>, ScenarioError> {
        match set {
            None => Ok((0..graph.hosts.len() as u32).collect()),
            Some(set) => set.0.numbers(graph).map_err(|error| error.at("hosts")),
        }
    }
}

impl<'de> Deserialize<'de> for HostSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(HostSetVisitor)
    }
}

// By hand, because an untagged enum would answer every mistake with "no variant matches".
struct HostSetVisitor;

impl Visitor<'_> for HostSetVisitor {
    type Value = HostSet;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("hosts: a number for the first so many, or a text such as \"8..15\"")
    }

    fn visit_i64<E: Error>(self, count: i64) -> Result<HostSet, E> {
        let count = u32::try_from(count).map_err(|_| E::custom(format!("{count} is no number of hosts")))?;
        Ok(HostSet(Hosts::first(count)))
    }

    fn visit_u64<E: Error>(self, count: u64) -> Result<HostSet, E> {
        let count = u32::try_from(count).map_err(|_| E::custom(format!("{count} is no number of hosts")))?;
        Ok(HostSet(Hosts::first(count)))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<HostSet, E> {
        text.parse().map(HostSet).map_err(E::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_strides_and_lists_are_read() {
        let numbers = |text: &str| -> Vec<u32> {
            let hosts: Hosts = text.parse().unwrap();
            let each = |part: &Part| (part.first..=part.last).step_by(part.step as usize);
            hosts.0.iter().flat_map(each).collect()
        };
        assert_eq!(numbers("0..3"), [0, 1, 2, 3]);
        assert_eq!(numbers("7"), [7]);
        assert_eq!(numbers("0..10/4"), [0, 4, 8]);
        assert_eq!(numbers("5, 1..2 ,9..11/2"), [5, 1, 2, 9, 11]);
        for bad in ["", "a", "3..1", "0..4/0", "1,,2", "0..", "1-3"] {
            assert!(bad.parse::<Hosts>().is_err(), "{bad}");
        }
    }
}
