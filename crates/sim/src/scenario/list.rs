//! A fabric link by link: in the scenario, or in a file of its own.

use std::collections::BTreeMap;
use std::fmt;

use railnet_core::{Rate, Span, nearest};
use railnet_topology::fabric::{Explicit, ExplicitLink, LINKS_MAX};
use serde::Deserialize;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::fabric::check_rate;
use super::{ScenarioError, SourceFile};
use crate::rows::{Row, rows};
use crate::written::Written;

/// `hosts = 4` or `hosts = ["a", "b"]`.
#[derive(Clone, Debug)]
pub enum HostNames {
    /// So many, called host0 and so on.
    Count(u32),
    /// By their names.
    Names(Vec<String>),
}

/// A link of a list: `["host0", "a"]`, or a table with what is special about it.
#[derive(Clone, Debug)]
pub struct LinkEntry {
    ends: [String; 2],
    rate: Option<Rate>,
    delay: Option<Span>,
    /// It was written as a table.
    is_table: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkTable {
    between: [String; 2],
    #[serde(default)]
    rate: Option<Written<Rate>>,
    #[serde(default)]
    delay: Option<Written<Span>>,
}

/// The fabric that these links make.
pub(super) fn written(
    hosts: Option<&HostNames>,
    switches: &[String],
    links: &[LinkEntry],
) -> Result<Explicit, ScenarioError> {
    let hosts = match hosts {
        None => {
            return Err(ScenarioError::new("how many hosts are there? Give `hosts`, or a `file`").at("kind"));
        }
        Some(HostNames::Count(count)) if u64::from(*count) > LINKS_MAX => {
            return Err(ScenarioError::new(format!("{count} hosts are more than are built")).at("hosts"));
        }
        Some(HostNames::Count(count)) => (0..*count).map(|host| format!("host{host}")).collect(),
        Some(HostNames::Names(names)) => names.clone(),
    };
    let mut known: BTreeMap<&str, &str> = BTreeMap::new();
    for (key, names) in [("hosts", hosts.as_slice()), ("switches", switches)] {
        for (place, name) in names.iter().enumerate() {
            let place = format!("{key}.{place}");
            check_name(name).map_err(|message| ScenarioError::new(message).at(&place))?;
            if known.insert(name, key).is_some() {
                let message =
                    format!("\"{name}\" is there twice: every host and switch has a name of its own");
                return Err(ScenarioError::new(message).at(&place));
            }
        }
    }
    let names: Vec<&str> = known.keys().copied().collect();
    for (index, link) in links.iter().enumerate() {
        for (side, name) in link.ends.iter().enumerate() {
            if !known.contains_key(name.as_str()) {
                let message = format!("\"{name}\" is neither among the hosts nor among the `switches`");
                let between = if link.is_table { ".between" } else { "" };
                let error = ScenarioError::new(message).at(&format!("links.{index}{between}.{side}"));
                return Err(ScenarioError { meant: nearest(name, &names).map(str::to_owned), ..error });
            }
        }
        if let Some(rate) = link.rate {
            check_rate(rate).map_err(|error| error.within(&format!("links.{index}")))?;
        }
    }
    let links = links.iter().map(|link| explicit(&link.ends, link.rate, link.delay)).collect();
    Ok(Explicit { hosts, switches: switches.to_vec(), links })
}

fn explicit(ends: &[impl fmt::Display; 2], rate: Option<Rate>, delay: Option<Span>) -> ExplicitLink {
    ExplicitLink { rate, delay, ..ExplicitLink::new(format!("{} - {}", ends[0], ends[1])) }
}

/// Names are joined by dashes and have ports after colons elsewhere.
fn check_name(name: &str) -> Result<(), String> {
    let is_good = |letter: char| letter.is_alphanumeric() || "._-/".contains(letter);
    match !name.is_empty() && name.chars().all(is_good) {
        true => Ok(()),
        false => Err(format!("\"{name}\" is no name: letters, digits, and . _ - / are")),
    }
}

/// The fabric that a file lists: a link each line, or the topology of the HPCC simulator.
pub(super) fn read(file: &SourceFile) -> Result<Explicit, ScenarioError> {
    let mut lines = rows(file).peekable();
    let is_hpcc = lines.peek().is_some_and(|row| {
        row.len() == 3 && (0..3).all(|place| row.text(place).is_some_and(|text| text.parse::<u32>().is_ok()))
    });
    if is_hpcc {
        return read_hpcc(file);
    }
    if lines.peek().is_some_and(|row| row.text(0) == Some("from")) {
        lines.next();
    }
    let mut links = Vec::new();
    // How many links each name has, in the order in which names appear, and where it first does.
    let mut names: Vec<(&str, usize)> = Vec::new();
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    for row in lines {
        let ends = [end(&row, 0)?, end(&row, 1)?];
        for name in ends {
            let place = *places.entry(name).or_insert(names.len());
            match names.get_mut(place) {
                Some((_, count)) => *count += 1,
                None => names.push((name, 1)),
            }
        }
        links.push(explicit(&ends, rate(&row, 2)?, row.optional(3)?));
        if row.len() > 4 {
            return Err(row.wrong(4, "a line has two names, and a rate and a delay where they are special"));
        }
    }
    if links.is_empty() {
        return Err(file.wrong(0..0, "there are no links here: write two names on a line, as in host0,leaf0"));
    }
    // A host has one link, a switch more.
    let of = |is_host: bool| names.iter().filter(move |(_, count)| (*count == 1) == is_host);
    let hosts = of(true).map(|(name, _)| (*name).to_owned()).collect();
    Ok(Explicit { hosts, switches: of(false).map(|(name, _)| (*name).to_owned()).collect(), links })
}

fn end<'a>(row: &Row<'a>, place: usize) -> Result<&'a str, ScenarioError> {
    let name = row.text(place).ok_or_else(|| row.wrong_line("a link has two ends: write two names"))?;
    check_name(name).map_err(|message| row.wrong(place, message))?;
    Ok(name)
}

fn rate(row: &Row<'_>, place: usize) -> Result<Option<Rate>, ScenarioError> {
    let rate = row.optional(place)?;
    if let Some(rate) = rate {
        check_rate(rate).map_err(|error| row.wrong(place, error.message))?;
    }
    Ok(rate)
}

/// The topology file of HPCC's ns-3: nodes, switches and links; the numbers of the switches; then for each link its ends,
/// rate, delay and error rate.
fn read_hpcc(file: &SourceFile) -> Result<Explicit, ScenarioError> {
    let mut lines = rows(file);
    let head = lines.next().ok_or_else(|| file.wrong(0..0, "the file is empty"))?;
    let (nodes, switch_count, link_count): (u32, usize, u64) =
        (head.number(0, "nodes")?, head.number(1, "switches")?, head.number(2, "links")?);
    if u64::from(nodes) > LINKS_MAX || link_count > LINKS_MAX {
        return Err(head.wrong_line("more than are ever built"));
    }
    let mut is_switch = vec![false; nodes as usize];
    let mut left = switch_count;
    while left > 0 {
        let row = lines.next().ok_or_else(|| head.wrong(1, "the numbers of the switches are missing"))?;
        for place in 0..row.len() {
            let node = node(&row, place, nodes)?;
            is_switch[node as usize] = true;
            left = left.saturating_sub(1);
        }
    }
    // Hosts are counted by themselves; in these files they usually come first and keep their numbers.
    let mut next = 0;
    let names: Vec<String> = (0..nodes)
        .map(|node| {
            if is_switch[node as usize] {
                return format!("switch{node}");
            }
            next += 1;
            format!("host{}", next - 1)
        })
        .collect();
    let mut links = Vec::new();
    for row in lines {
        let ends = [node(&row, 0, nodes)?, node(&row, 1, nodes)?].map(|node| &names[node as usize]);
        if row.text(4).is_some_and(|share| share.parse() != Ok(0.0)) {
            return Err(
                row.wrong(4, "error rates are not taken from here: write 0, and `loss` in fabric.link")
            );
        }
        links.push(explicit(&ends, rate(&row, 2)?, row.optional(3)?));
    }
    if links.len() as u64 != link_count {
        return Err(head.wrong(2, format!("{link_count} links are announced and {} are there", links.len())));
    }
    let of = |wanted: bool| {
        let nodes = names.iter().zip(&is_switch).filter(move |(_, is_switch)| **is_switch == wanted);
        nodes.map(|(name, _)| name.clone()).collect()
    };
    Ok(Explicit { hosts: of(false), switches: of(true), links })
}

fn node(row: &Row<'_>, place: usize, nodes: u32) -> Result<u32, ScenarioError> {
    let node = row.number(place, "a node")?;
    if node >= nodes {
        return Err(row.wrong(place, format!("there is no node {node}: they are 0 to {}", nodes.max(1) - 1)));
    }
    Ok(node)
}

impl<'de> Deserialize<'de> for HostNames {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(HostNamesVisitor)
    }
}

// By hand, because an untagged enum would answer every mistake with "no variant matches".
struct HostNamesVisitor;

impl<'de> Visitor<'de> for HostNamesVisitor {
    type Value = HostNames;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("how many hosts there are, such as 4, or their names, such as [\"a\", \"b\"]")
    }

    fn visit_i64<E: Error>(self, count: i64) -> Result<HostNames, E> {
        u32::try_from(count)
            .map(HostNames::Count)
            .map_err(|_| E::custom(format!("{count} is no number of hosts")))
    }

    fn visit_u64<E: Error>(self, count: u64) -> Result<HostNames, E> {
        u32::try_from(count)
            .map(HostNames::Count)
            .map_err(|_| E::custom(format!("{count} is no number of hosts")))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<HostNames, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(list)).map(HostNames::Names)
    }
}

impl<'de> Deserialize<'de> for LinkEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LinkEntryVisitor)
    }
}

struct LinkEntryVisitor;

impl<'de> Visitor<'de> for LinkEntryVisitor {
    type Value = LinkEntry;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a link: [\"host0\", \"leaf0\"], or { between = [\"host0\", \"leaf0\"], rate = \"400Gbps\" }",
        )
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<LinkEntry, A::Error> {
        let ends = Vec::<String>::deserialize(SeqAccessDeserializer::new(list))?;
        let count = ends.len();
        let ends = <[String; 2]>::try_from(ends).map_err(|_| {
            A::Error::custom(format!("a link has two ends, such as [\"host0\", \"leaf0\"]: here are {count}"))
        })?;
        Ok(LinkEntry { ends, rate: None, delay: None, is_table: false })
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<LinkEntry, A::Error> {
        let LinkTable { between, rate, delay } = LinkTable::deserialize(MapAccessDeserializer::new(map))?;
        let (rate, delay) = (rate.map(|rate| rate.0), delay.map(|delay| delay.0));
        Ok(LinkEntry { ends: between, rate, delay, is_table: true })
    }
}
