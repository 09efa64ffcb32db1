//! Hosts, switches and links by what people call them.

use std::fmt;

use railnet_core::nearest;
use railnet_topology::{FabricGraph, Vertex};
use serde::Deserialize;
use serde::de::value::SeqAccessDeserializer;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};

use super::ScenarioError;

/// A host: by its number, or by its name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HostName {
    /// Counted from 0.
    Number(u32),
    /// As `railnet topo` prints it.
    Name(String),
}

/// One link or several: by its number, by its ends, or by the host at one end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LinkName {
    /// As `railnet topo --links` counts them.
    Number(u32),
    /// The link of a host.
    Host(String),
    /// All links between these two.
    Ends(String, String),
}

impl HostName {
    /// The host in this fabric.
    pub(crate) fn find(&self, graph: &FabricGraph) -> Result<u32, ScenarioError> {
        match self {
            Self::Number(host) if (*host as usize) < graph.hosts.len() => Ok(*host),
            Self::Number(host) => Err(ScenarioError::new(format!(
                "there is no host {host}: the fabric has hosts 0 to {}",
                graph.hosts.len() - 1
            ))),
            Self::Name(name) => match vertex(graph, name)? {
                Vertex::Host(host) => Ok(host),
                Vertex::Switch(_) => Err(ScenarioError::new(format!(
                    "{name} is a switch: a host is meant, such as \"{}\"",
                    graph.hosts[0].name
                ))),
            },
        }
    }
}

impl LinkName {
    /// The links in this fabric.
    pub(crate) fn find(&self, graph: &FabricGraph) -> Result<Vec<u32>, ScenarioError> {
        match self {
            Self::Number(link) if (*link as usize) < graph.links.len() => Ok(vec![*link]),
            Self::Number(link) => Err(ScenarioError::new(format!(
                "there is no link {link}: the fabric has links 0 to {} (`railnet topo --links` lists them)",
                graph.links.len() - 1
            ))),
            Self::Host(name) => {
                let end = vertex(graph, name)?;
                let links: Vec<u32> = graph.neighbours(end).iter().map(|neighbour| neighbour.link).collect();
                if let Vertex::Switch(_) = end {
                    return Err(ScenarioError::new(format!(
                        "{name} has {} links: name the other end too, as in [\"{name}\", \"{}\"]",
                        links.len(),
                        neighbour_names(graph, end).first().copied().unwrap_or("spine0")
                    )));
                }
                Ok(links)
            }
            Self::Ends(a, b) => {
                let end = |name: &str, key| vertex(graph, name).map_err(|error| error.at(key));
                let (near, far) = (end(a, "0")?, end(b, "1")?);
                let links = graph.links_between(near, far);
                if links.is_empty() {
                    return Err(ScenarioError::new(format!(
                        "no link joins {a} and {b}: {a} is joined to {}",
                        listed(&neighbour_names(graph, near))
                    )));
                }
                Ok(links)
            }
        }
    }
}

/// The host or switch of that name.
pub(crate) fn vertex(graph: &FabricGraph, name: &str) -> Result<Vertex, ScenarioError> {
    if let Some(vertex) = graph.find(name) {
        return Ok(vertex);
    }
    let hosts = graph.hosts.iter().map(|host| host.name.as_str());
    let known: Vec<&str> = hosts.chain(graph.switches.iter().map(|switch| switch.name.as_str())).collect();
    let message =
        format!("there is no host or switch \"{name}\": the fabric has {}", listed(&ranges(&known)));
    // With the right word and a number that is too high, any other number would be a guess.
    let is_numbered = known.iter().any(|other| stem(other) == stem(name));
    let meant = if is_numbered { None } else { nearest(name, &known) };
    Err(ScenarioError { meant: meant.map(str::to_owned), ..ScenarioError::new(message) })
}

/// The switch of that name.
pub(crate) fn switch(graph: &FabricGraph, name: &str) -> Result<u32, ScenarioError> {
    match vertex(graph, name)? {
        Vertex::Switch(switch) => Ok(switch),
        Vertex::Host(_) => Err(ScenarioError::new(format!(
            "{name} is a host: a switch is meant, such as \"{}\"",
            graph.switches.first().map_or("leaf0", |switch| &switch.name)
        ))),
    }
}

fn neighbour_names(graph: &FabricGraph, end: Vertex) -> Vec<&str> {
    let mut names: Vec<&str> =
        graph.neighbours(end).iter().map(|neighbour| graph.name(neighbour.peer.vertex)).collect();
    names.dedup();
    names
}

/// A name without its number.
fn stem(name: &str) -> &str {
    name.trim_end_matches(|letter: char| letter.is_ascii_digit() || letter == '.')
}

/// Names that differ in their number only, as first and last.
fn ranges(names: &[&str]) -> Vec<String> {
    names
        .chunk_by(|a, b| stem(a) == stem(b))
        .map(|alike| match alike {
            [one] => (*one).to_owned(),
            [first, .., last] => format!("{first} to {last}"),
            [] => String::new(),
        })
        .collect()
}

/// Some of the names, and how many more there are.
fn listed(names: &[impl AsRef<str>]) -> String {
    const SHOWN: usize = 8;
    let mut text: Vec<&str> = names.iter().take(SHOWN).map(AsRef::as_ref).collect();
    let more = format!("{} more", names.len().saturating_sub(SHOWN));
    if names.len() > SHOWN {
        text.push(&more);
    }
    text.join(", ")
}

impl<'de> Deserialize<'de> for HostName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(HostVisitor)
    }
}

// By hand, because an untagged enum would answer every mistake with "no variant matches".
struct HostVisitor;

impl Visitor<'_> for HostVisitor {
    type Value = HostName;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a host: its number, such as 3, or its name, such as \"host3\"")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<HostName, E> {
        u32::try_from(number)
            .map(HostName::Number)
            .map_err(|_| E::custom(format!("there is no host {number}")))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<HostName, E> {
        u32::try_from(number)
            .map(HostName::Number)
            .map_err(|_| E::custom(format!("there is no host {number}")))
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<HostName, E> {
        Ok(HostName::Name(name.to_owned()))
    }
}

impl<'de> Deserialize<'de> for LinkName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LinkVisitor)
    }
}

struct LinkVisitor;

impl<'de> Visitor<'de> for LinkVisitor {
    type Value = LinkName;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a link: its ends, such as [\"leaf0\", \"spine1\"], the name of a host, or its number")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<LinkName, E> {
        u32::try_from(number)
            .map(LinkName::Number)
            .map_err(|_| E::custom(format!("there is no link {number}")))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<LinkName, E> {
        u32::try_from(number)
            .map(LinkName::Number)
            .map_err(|_| E::custom(format!("there is no link {number}")))
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<LinkName, E> {
        Ok(LinkName::Host(name.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<LinkName, A::Error> {
        let ends = Vec::<String>::deserialize(SeqAccessDeserializer::new(list))?;
        match <[String; 2]>::try_from(ends) {
            Ok([a, b]) => Ok(LinkName::Ends(a, b)),
            Err(ends) => Err(A::Error::custom(format!(
                "a link has two ends, such as [\"leaf0\", \"spine1\"]: here are {}",
                ends.len()
            ))),
        }
    }
}
