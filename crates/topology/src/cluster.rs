//! Clusters: so many servers of a kind, and some that are unlike them.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::catalogue::Catalogue;
use crate::host::Host;
use crate::places::Places;

/// The most servers of a cluster.
const NODES_MAX: u32 = 1 << 16;

/// Servers, which may have unlike numbers of GPUs and NICs.
///
/// GPUs are counted from the first server to the last, and so are NICs: [`Cluster::ranks`] and [`Cluster::ports`] say where
/// each is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cluster {
    /// What it is called: `dgx-h100x8`.
    pub name: String,
    /// Each of its servers, but for those that are unlike it. It has GPUs where any of them has.
    pub host: Host,
    /// How many there are.
    pub nodes: u32,
    /// Those that are unlike it, by their number.
    pub unlike: BTreeMap<u32, Arc<Host>>,
    ranks: Places,
    ports: Places,
    ends: Places,
}

/// What is counted of a server: GPUs, NICs for traffic between them, and those that send and receive.
fn counts(host: &Host) -> [u32; 3] {
    let (gpus, nics) = (host.gpus().len() as u32, host.compute_nics().len() as u32);
    [gpus, nics, if gpus > 0 { gpus } else { nics }]
}

/// So many servers, by name.
fn named(host: &Host, nodes: u32) -> String {
    if nodes == 1 { host.name.clone() } else { format!("{}x{nodes}", host.name) }
}

impl Cluster {
    /// So many servers. There is at least one.
    pub fn new(host: Host, nodes: u32) -> Self {
        let (name, nodes) = (named(&host, nodes), nodes.max(1));
        let [ranks, ports, ends] = counts(&host).map(|each| Places::even(nodes, each));
        Self { name, host, nodes, unlike: BTreeMap::new(), ranks, ports, ends }
    }

    /// Groups of servers, one after the other: so many of each kind. There is at least one.
    pub fn of_groups(groups: &[(Host, u32)]) -> Option<Self> {
        let has_gpus = |(host, _): &&(Host, u32)| !host.gpus().is_empty();
        let usual = groups.iter().find(has_gpus).or_else(|| groups.first())?;
        let mut cluster = Self::new(usual.0.clone(), groups.iter().map(|(_, nodes)| nodes).sum());
        let mut first = 0;
        let mut kinds: Vec<Arc<Host>> = Vec::new();
        for (host, nodes) in groups {
            if *host != cluster.host {
                let known = kinds.iter().find(|kind| ***kind == *host).cloned();
                let kind = known.unwrap_or_else(|| Arc::new(host.clone()));
                cluster.unlike.extend((first..first + nodes).map(|node| (node, Arc::clone(&kind))));
                kinds.push(kind);
            }
            first += nodes;
        }
        cluster.count();
        Some(cluster)
    }

    /// Finds out again where everything is, and what it is called.
    fn count(&mut self) {
        let nodes: Vec<u32> = (0..self.nodes).collect();
        let runs = nodes.chunk_by(|one, other| self.host_of(*one).name == self.host_of(*other).name);
        let names = runs.map(|run| named(self.host_of(run[0]), run.len() as u32));
        self.name = names.collect::<Vec<_>>().join("+");
        let usual = counts(&self.host);
        // Kinds are shared, so that each is looked at once.
        let mut known: Vec<(&Arc<Host>, [u32; 3])> = Vec::new();
        let mut all = vec![usual; self.nodes as usize];
        for (node, host) in &self.unlike {
            let found = known.iter().find(|(kind, _)| Arc::ptr_eq(kind, host)).map(|(_, counts)| *counts);
            all[*node as usize] = found.unwrap_or_else(|| {
                known.push((host, counts(host)));
                known[known.len() - 1].1
            });
        }
        let [ranks, ports, ends] = [0, 1, 2].map(|what| Places::new(all.iter().map(|counts| counts[what])));
        (self.ranks, self.ports, self.ends) = (ranks, ports, ends);
    }

    /// A server by its number.
    pub fn host_of(&self, node: u32) -> &Host {
        self.unlike.get(&node).map_or(&self.host, |host| host)
    }

    /// Some of its servers.
    #[must_use]
    pub fn part(&self, first: u32, nodes: u32) -> Self {
        self.of_nodes(first..first + nodes)
    }

    /// Its servers but for one.
    #[must_use]
    pub fn without(&self, lost: u32) -> Self {
        self.of_nodes((0..self.nodes).filter(|node| *node != lost))
    }

    /// These of its servers, in this order. The kind that is usual stays so as long as one of them is of it.
    fn of_nodes(&self, nodes: impl Iterator<Item = u32>) -> Self {
        let nodes: Vec<u32> = nodes.collect();
        let mut unlike: BTreeMap<u32, Arc<Host>> = BTreeMap::new();
        for (place, node) in nodes.iter().enumerate() {
            if let Some(host) = self.unlike.get(node) {
                unlike.insert(place as u32, Arc::clone(host));
            }
        }
        let mut host = self.host.clone();
        if unlike.len() == nodes.len() {
            let has_gpus = |host: &&Arc<Host>| !host.gpus().is_empty();
            if let Some(usual) = unlike.values().find(has_gpus).or_else(|| unlike.values().next()).cloned() {
                unlike.retain(|_, other| *other != usual);
                host = (*usual).clone();
            }
        }
        let mut some = Self { unlike, ..Self::new(host, nodes.len() as u32) };
        if !some.unlike.is_empty() {
            some.count();
        }
        some
    }

    /// The same with the first so many GPUs of each server that has any; none where one has fewer.
    pub fn with_gpus(&self, each: u32) -> Option<Self> {
        let cut = |host: &Host| match host.gpus().len() as u32 {
            0 => Some(host.clone()),
            has if has < each || each == 0 => None,
            _ => Some(host.with_gpus(&(0..each).collect::<Vec<_>>())),
        };
        let mut small = self.clone();
        small.host = cut(&self.host)?;
        // Kinds stay shared.
        let mut kinds: Vec<(&Arc<Host>, Arc<Host>)> = Vec::new();
        for (node, host) in &self.unlike {
            let known =
                kinds.iter().find(|(kind, _)| Arc::ptr_eq(kind, host)).map(|(_, small)| Arc::clone(small));
            let kind = match known {
                Some(kind) => kind,
                None => Arc::new(cut(host)?),
            };
            kinds.push((host, Arc::clone(&kind)));
            small.unlike.insert(*node, kind);
        }
        small.count();
        Some(small)
    }

    /// Puts another server in the place of this one.
    pub fn replace(&mut self, node: u32, host: Host) {
        let has_as_many = counts(self.host_of(node)) == counts(&host);
        if host == self.host {
            self.unlike.remove(&node);
        } else {
            // Servers that look alike are one description, so that whoever compares them does it once.
            let known = self.unlike.values().find(|known| ***known == host).cloned();
            self.unlike.insert(node, known.unwrap_or_else(|| Arc::new(host)));
        }
        if !has_as_many {
            self.count();
        }
    }

    /// The kinds of servers: the usual one first, then each that is unlike all before it.
    pub fn kinds(&self) -> Vec<&Host> {
        let mut kinds = vec![&self.host];
        for host in self.unlike.values() {
            if !kinds.contains(&&**host) {
                kinds.push(host);
            }
        }
        kinds
    }

    /// Where GPUs are: a rank is one of them.
    pub const fn ranks(&self) -> &Places {
        &self.ranks
    }

    /// Where NICs for traffic between GPUs are: each has a port of the fabric.
    pub const fn ports(&self) -> &Places {
        &self.ports
    }

    /// Where those are that send and receive: the GPUs of each server, or its NICs where it has none.
    pub const fn ends(&self) -> &Places {
        &self.ends
    }

    /// GPUs of all servers.
    pub fn gpus(&self) -> u32 {
        self.ranks.total()
    }

    /// Whether servers have unlike numbers of GPUs or NICs.
    pub fn is_uneven(&self) -> bool {
        self.ranks.each().is_none() || self.ports.each().is_none()
    }
}

/// Why there is no such cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// No server has that name.
    #[error(
        "no server is called \"{name}\": one of {known}, or that with x and how many{}",
        meant.as_ref().map_or(String::new(), |meant| format!("; did you mean \"{meant}\"?"))
    )]
    Unknown {
        /// The name.
        name: String,
        /// Those there are.
        known: String,
        /// What was probably meant.
        meant: Option<String>,
    },
    /// A cluster of no servers, or of more than anybody has.
    #[error("a cluster has 1 to {NODES_MAX} servers, not {nodes}: write it as dgx-h100x8")]
    Nodes {
        /// How many were asked for.
        nodes: String,
    },
}

/// A cluster of servers of the catalogue that ships, by name: `dgx-h100` is one of them, `dgx-h100x8` eight.
pub fn cluster(name: &str) -> Result<Cluster, ClusterError> {
    Catalogue::built_in().cluster(name)
}

/// The same, of any catalogue.
pub(crate) fn cluster_of(catalogue: &Catalogue, name: &str) -> Result<Cluster, ClusterError> {
    if let Some(host) = catalogue.host(name) {
        return Ok(Cluster::new(host, 1));
    }
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|letter| letter.is_ascii_digit());
    let (server, nodes) = match name.rsplit_once('x') {
        Some((server, nodes)) if is_number(nodes) => (server, nodes),
        _ => (name, "1"),
    };
    let Some(host) = catalogue.host(server) else {
        let known: Vec<&str> = catalogue.hosts().map(|(name, _)| name).collect();
        let meant = railnet_core::nearest(server, &known);
        let suffix = &name[server.len()..];
        return Err(ClusterError::Unknown {
            name: name.to_owned(),
            known: known.join(", "),
            meant: meant.map(|meant| format!("{meant}{suffix}")),
        });
    };
    match nodes.parse::<u32>() {
        Ok(nodes) if (1..=NODES_MAX).contains(&nodes) => Ok(Cluster::new(host, nodes)),
        _ => Err(ClusterError::Nodes { nodes: nodes.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue;

    #[test]
    fn a_name_with_a_number_is_so_many_servers() {
        let eight = cluster("dgx-h100x8").unwrap();
        assert_eq!((eight.nodes, eight.ranks().each(), eight.gpus()), (8, Some(8), 64));
        assert_eq!(eight.name, "dgx-h100x8");
        assert_eq!(cluster("dgx-a100").unwrap(), cluster("dgx-a100x1").unwrap());
        for (name, _) in catalogue::hosts() {
            assert_eq!(cluster(name).unwrap().name, name);
            assert_eq!(cluster(&format!("{name}x1024")).unwrap().nodes, 1024);
        }
    }

    #[test]
    fn servers_that_are_unlike_keep_their_places() {
        let mut cluster = cluster("dgx-h100x4").unwrap();
        let other = catalogue::host("hgx-h200").unwrap();
        cluster.replace(2, other.clone());
        cluster.replace(3, other.clone());
        assert!(Arc::ptr_eq(&cluster.unlike[&2], &cluster.unlike[&3]));
        assert_eq!(cluster.kinds(), [&cluster.host, &other]);
        let part = cluster.part(1, 2);
        assert_eq!((part.host_of(0), part.host_of(1), part.nodes), (&cluster.host, &other, 2));
        cluster.replace(2, cluster.host.clone());
        assert_eq!(cluster.unlike.len(), 1);
    }

    #[test]
    fn unlike_servers_count_their_gpus_and_nics_one_after_the_other() {
        let host = |name: &str| catalogue::host(name).unwrap();
        let groups = [(host("cpu"), 1), (host("dgx-h100"), 2), (host("pcie-4gpu"), 3)];
        let cluster = Cluster::of_groups(&groups).unwrap();
        assert_eq!(cluster.name, "cpu+dgx-h100x2+pcie-4gpux3");
        // The usual server has GPUs, though the first has none.
        assert_eq!((cluster.host.name.as_str(), cluster.nodes, cluster.gpus()), ("dgx-h100", 6, 28));
        assert!(cluster.is_uneven() && cluster.ranks().each().is_none());
        assert_eq!((cluster.ranks().place(15), cluster.ranks().place(16)), ((2, 7), (3, 0)));
        let nics = host("cpu").compute_nics().len() as u32;
        assert_eq!((cluster.ports().range(0), cluster.ports().range(1)), (0..nics, nics..nics + 8));
        assert_eq!((cluster.ends().count(0), cluster.ends().count(3)), (nics, 4));
        // Of the last alone, they are the usual ones.
        let part = cluster.part(3, 3);
        assert_eq!((part.host.name.as_str(), part.unlike.len(), part.gpus()), ("pcie-4gpu", 0, 12));
        let fewer = cluster.without(1);
        assert_eq!((fewer.gpus(), fewer.ranks().range(2)), (20, 8..12));
        let mut other = cluster.clone();
        other.replace(5, host("dgx-h100"));
        assert_eq!((other.gpus(), other.ranks().range(5)), (32, 24..32));
        assert_eq!(
            Cluster::of_groups(&[(host("dgx-h100"), 2), (host("dgx-h100"), 1)]).unwrap().unlike.len(),
            0
        );
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        let message = |name: &str| cluster(name).unwrap_err().to_string();
        let wrong = message("dgx-h10x4");
        assert!(wrong.contains("dgx-a100, dgx-h100") && wrong.contains("mean \"dgx-h100x4\"?"), "{wrong}");
        assert!(message("my-box").starts_with("no server is called \"my-box\": one of "));
        assert!(message("dgx-h100x").contains("mean \"dgx-h100\"?"));
        assert!(message("dgx-h100x0").starts_with("a cluster has 1 to 65536 servers, not 0"));
        assert!(message("dgx-h100x99999999999").contains("not 99999999999"));
    }
}
