//! What the user may say about how ranks reach each other. Each field is one of NCCL's variables, with NCCL's default.

use std::fmt;

use railnet_topology::host::PathType;

/// Whether a ring may enter a node by one NIC and leave it by another (`NCCL_CROSS_NIC`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum CrossNic {
    /// Never: each rail is a network of its own.
    Never,
    /// Whenever it helps: all NICs are on one network.
    Always,
    /// Only in pairs of channels that keep to their rails.
    #[default]
    Auto,
}

/// How ranks may reach each other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TopologyOptions {
    /// No GPU reads or writes another's memory (`NCCL_P2P_DISABLE`).
    pub p2p_disable: bool,
    /// How far apart GPUs may be that do (`NCCL_P2P_LEVEL`); NCCL decides by the processor otherwise.
    pub p2p_level: Option<PathType>,
    /// No data goes through memory of the host (`NCCL_SHM_DISABLE`).
    pub shm_disable: bool,
    /// How far apart a GPU and a NIC may be for GPUDirect (`NCCL_NET_GDR_LEVEL`).
    pub net_gdr_level: Option<PathType>,
    /// Whether NICs read from GPUs when they send (`NCCL_NET_GDR_READ`); NCCL decides by the GPU otherwise.
    pub net_gdr_read: Option<bool>,
    /// No GPU hands data to another that is nearer to the NIC (`NCCL_PXN_DISABLE`).
    pub pxn_disable: bool,
    /// Whether rings may change rails (`NCCL_CROSS_NIC`).
    pub cross_nic: CrossNic,
    /// No RDMA: sockets, and no GPUDirect with them (`NCCL_IB_DISABLE`).
    pub ib_disable: bool,
    /// Which NICs are used (`NCCL_IB_HCA`).
    pub ib_hca: NicFilter,
    /// Whether switches of the network reduce (`NCCL_COLLNET_ENABLE`).
    pub collnet_enable: bool,
    /// Whether NVLink switches reduce, where they can (`NCCL_NVLS_ENABLE`).
    pub nvls_enable: bool,
    /// Fewest channels of a communicator (`NCCL_MIN_CTAS`, `NCCL_MIN_NCHANNELS`).
    pub channels_min: u32,
    /// Most channels of a communicator (`NCCL_MAX_CTAS`, `NCCL_MAX_NCHANNELS`).
    pub channels_max: u32,
}

impl TopologyOptions {
    /// NCCL's limit on channels.
    pub const CHANNELS_MAX: u32 = 64;
}

impl Default for TopologyOptions {
    fn default() -> Self {
        Self {
            p2p_disable: false,
            p2p_level: None,
            shm_disable: false,
            net_gdr_level: None,
            net_gdr_read: None,
            pxn_disable: false,
            cross_nic: CrossNic::default(),
            ib_disable: false,
            ib_hca: NicFilter::default(),
            collnet_enable: false,
            nvls_enable: true,
            channels_min: 1,
            channels_max: Self::CHANNELS_MAX,
        }
    }
}

/// Which NICs are used, by name: `mlx5` is every name that begins so, `=mlx5_0,mlx5_3` just these, `^mlx5_1` all others.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NicFilter {
    /// Whether the names are those left out.
    pub excludes: bool,
    /// Whether names are whole names, not beginnings.
    pub is_exact: bool,
    /// The names; none means every NIC.
    pub names: Vec<String>,
}

impl NicFilter {
    /// Reads NCCL's notation. Ports, rails and planes after a colon are left aside: a NIC here is one port.
    pub fn new(text: &str) -> Self {
        let (excludes, text) = match text.strip_prefix('^') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (is_exact, text) = match text.strip_prefix('=') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let names = text.split(',').map(|name| name.split(':').next().unwrap_or("").trim());
        Self { excludes, is_exact, names: names.filter(|name| !name.is_empty()).map(str::to_owned).collect() }
    }

    /// Whether a NIC of this name is used.
    pub fn allows(&self, name: &str) -> bool {
        if self.names.is_empty() {
            return true;
        }
        let matches = |wanted: &String| if self.is_exact { name == wanted } else { name.starts_with(wanted) };
        self.names.iter().any(matches) != self.excludes
    }
}

impl fmt::Display for NicFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exclude = if self.excludes { "^" } else { "" };
        let exact = if self.is_exact { "=" } else { "" };
        write!(f, "{exclude}{exact}{}", self.names.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nics_are_chosen_as_nccl_does() {
        let cases = [
            ("", "mlx5_0", true),
            ("mlx5", "mlx5_11", true),
            ("mlx5_1", "mlx5_11", true),
            ("=mlx5_1", "mlx5_11", false),
            ("=mlx5_1,mlx5_11:1", "mlx5_11", true),
            ("^mlx5_1", "mlx5_11", false),
            ("^=mlx5_1", "mlx5_11", true),
            ("^mlx5_1", "mlx5_0", true),
            ("bnxt", "mlx5_0", false),
        ];
        for (text, name, expected) in cases {
            assert_eq!(NicFilter::new(text).allows(name), expected, "{text:?} and {name}");
        }
        assert_eq!(NicFilter::new("^=mlx5_1:1,mlx5_2").to_string(), "^=mlx5_1,mlx5_2");
    }
}
