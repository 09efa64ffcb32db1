//! Clusters: so many servers of a kind, and some that are unlike them.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::catalogue::Catalogue;
use crate::host::Host;

/// The most servers of a cluster.
const NODES_MAX: u32 = 1 << 16;

/// Servers. Rank r is GPU r mod g of node r / g, where each node has g GPUs: all have as many, and as many NICs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// What it is called: `dgx-h100x8`.
    pub name: String,
    /// Each of its servers, but for those that are unlike it.
    pub host: Host,
    /// How many there are.
    pub nodes: u32,
    /// Those that are unlike it, by their number.
    pub unlike: BTreeMap<u32, Arc<Host>>,
}

impl Cluster {
    /// So many servers. There is at least one.
    pub fn new(host: Host, nodes: u32) -> Self {
        let name = if nodes == 1 { host.name.clone() } else { format!("{}x{nodes}", host.name) };
        Self { name, host, nodes: nodes.max(1), unlike: BTreeMap::new() }
    }

    /// A server by its number.
    pub fn host_of(&self, node: u32) -> &Host {
        self.unlike.get(&node).map_or(&self.host, |host| host)
    }

    /// Some of its servers.
    #[must_use]
    pub fn part(&self, first: u32, nodes: u32) -> Self {
        let unlike = self.unlike.range(first..first + nodes);
        let unlike = unlike.map(|(node, host)| (node - first, Arc::clone(host))).collect();
        Self { unlike, ..Self::new(self.host.clone(), nodes) }
    }

    /// Puts another server in the place of this one.
    pub fn replace(&mut self, node: u32, host: Host) {
        if host == self.host {
            self.unlike.remove(&node);
            return;
        }
        // Servers that look alike are one description, so that whoever compares them does it once.
        let known = self.unlike.values().find(|known| ***known == host).cloned();
        self.unlike.insert(node, known.unwrap_or_else(|| Arc::new(host)));
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

    /// GPUs of each server.
    pub fn gpus_per_node(&self) -> u32 {
        self.host.gpus().len() as u32
    }

    /// GPUs of all servers.
    pub fn gpus(&self) -> u32 {
        self.nodes * self.gpus_per_node()
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
        assert_eq!((eight.nodes, eight.gpus_per_node(), eight.gpus()), (8, 8, 64));
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
