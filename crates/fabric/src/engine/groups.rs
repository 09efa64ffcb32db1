//! Host groups: hosts that form one LP, such as the NICs of a server.

/// The hosts of each host group; empty where hosts are not partitioned.
#[derive(Debug, Default)]
pub(crate) struct HostGroups {
    of_host: Vec<u32>,
    hosts: Vec<Vec<u32>>,
}

impl HostGroups {
    /// By each host's group. Groups count up from 0.
    pub(crate) fn new(of_host: Vec<u32>) -> Self {
        let count = of_host.iter().max().map_or(0, |last| *last as usize + 1);
        let mut hosts = vec![Vec::new(); count];
        for (host, group) in of_host.iter().enumerate() {
            hosts[*group as usize].push(host as u32);
        }
        Self { of_host, hosts }
    }

    /// The group of a host.
    #[inline]
    pub(crate) fn of(&self, host: u32) -> Option<u32> {
        self.of_host.get(host as usize).copied()
    }

    /// How many groups there are.
    pub(crate) fn count(&self) -> u32 {
        self.hosts.len() as u32
    }

    /// The host of a group that has only one.
    #[inline]
    pub(crate) fn only_host(&self, group: u32) -> Option<u32> {
        match self.hosts[group as usize][..] {
            [host] => Some(host),
            _ => None,
        }
    }

    /// The hosts of a group.
    pub(crate) fn hosts(&self, group: u32) -> &[u32] {
        &self.hosts[group as usize]
    }
}
