//! What the checks are about, as plain values.

use railnet_live::Launch;
use railnet_live::host::{self, Cores, Interface, Limits, Memory};
use railnet_live::launch::LaunchError;
use railnet_wire::ROCE_PORT;

use super::owner::{self, Owner};

/// What was found.
pub(super) struct Facts {
    pub(super) host: String,
    pub(super) system: String,
    pub(super) launch: Result<Launch, LaunchError>,
    pub(super) memfd: Result<(), String>,
    /// Free and total bytes of `/dev/shm`.
    pub(super) shm: Option<(u64, u64)>,
    pub(super) interfaces: Vec<Interface>,
    pub(super) roce_port: Result<(), String>,
    /// Who has RoCEv2's port, where it is taken and this user may know.
    pub(super) roce_owners: Vec<Owner>,
    pub(super) segments_sent: usize,
    pub(super) segments_received: usize,
    pub(super) limits: Limits,
    pub(super) cores: Cores,
    pub(super) memory: Memory,
}

impl Facts {
    pub(super) fn gather() -> Self {
        let shared_memory = host::shared_memory();
        let udp = host::udp();
        let (roce_port, segments_sent, segments_received) = match udp {
            Ok(udp) => {
                (udp.roce_port.map_err(|error| error.to_string()), udp.segments_sent, udp.segments_received)
            }
            Err(error) => (Err(error.to_string()), 0, 0),
        };
        let roce_owners = if roce_port.is_err() { owner::of_udp_port(ROCE_PORT) } else { Vec::new() };
        Self {
            host: host::host_name(),
            system: host::system(),
            launch: Launch::from_env(),
            memfd: shared_memory.memfd.map_err(|error| error.to_string()),
            shm: shared_memory.folder,
            interfaces: host::interfaces().unwrap_or_default(),
            roce_port,
            roce_owners,
            segments_sent,
            segments_received,
            limits: host::limits(),
            cores: host::cores(),
            memory: host::memory(),
        }
    }
}
