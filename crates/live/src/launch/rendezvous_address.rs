//! The address of the rendezvous, and the name of the job.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::{fmt, io};

use super::{LaunchError, Launcher, Variables, expand};

/// Ports to choose from, if a launcher names none: below the ephemeral range of Linux.
const PORTS: std::ops::Range<u32> = 15_000..31_000;

/// A port for a rendezvous on this host: free now, and outside of the ephemeral range, so that it is likely to be free when
/// rank 0 listens there.
pub fn free_port() -> std::io::Result<u16> {
    let range = PORTS.end - PORTS.start;
    loop {
        let port = (PORTS.start + u32::from_le_bytes(crate::secret::random()?) % range) as u16;
        match std::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, port)) {
            Ok(_) => return Ok(port),
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(error),
        }
    }
}

/// A free port of this host, reserved as long as this lives: rank 0 listens there
/// ([`Config::is_port_held`](crate::rendezvous::Config::is_port_held)).
#[derive(Debug)]
pub struct HeldPort {
    _socket: OwnedFd,
    /// The port.
    pub port: u16,
}

impl HeldPort {
    /// Reserves a port of an address of this host.
    pub fn new(address: IpAddr) -> io::Result<Self> {
        let (socket, port) = crate::socket::reserve(address)?;
        Ok(Self { _socket: socket, port })
    }
}

/// The address of a rendezvous: rank 0 listens there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RendezvousAddress {
    /// Names or addresses of rank 0's host: the first that resolves is used.
    pub hosts: Vec<String>,
    /// The port.
    pub port: u16,
}

impl RendezvousAddress {
    /// On one host.
    pub fn new(host: &str, port: u16) -> Self {
        Self { hosts: vec![host.to_owned()], port }
    }

    /// Parses `host:port`; an IPv6 address is in brackets.
    pub fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let port = port.parse().ok().filter(|port| *port != 0)?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_host = bare.is_some() || !host.contains(':');
        let host = bare.unwrap_or(host);
        (is_host && !host.is_empty()).then(|| Self::new(host, port))
    }
}

impl fmt::Display for RendezvousAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = self.hosts.first().map_or("", String::as_str);
        if host.contains(':') {
            write!(f, "[{host}]:{}", self.port)
        } else {
            write!(f, "{host}:{}", self.port)
        }
    }
}

/// The name of the job, unique for its launcher.
pub(super) fn job(launcher: Launcher, variables: Variables<'_>, parent: u32) -> String {
    let get = |name: &str| variables(name).unwrap_or_default();
    if let Some(job) = variables("RAILNET_JOB") {
        return job;
    }
    match launcher {
        Launcher::Railnet => get("RAILNET_RENDEZVOUS"),
        // Ranks change at a restart, so a restart is another job.
        Launcher::Torchrun => format!(
            "torchrun {} {} {} {}",
            get("TORCHELASTIC_RUN_ID"),
            get("TORCHELASTIC_RESTART_COUNT"),
            get("MASTER_ADDR"),
            get("MASTER_PORT")
        ),
        Launcher::Slurm => format!("slurm {}.{}", get("SLURM_JOB_ID"), get("SLURM_STEP_ID")),
        Launcher::OpenMpi => {
            let id = variables("PMIX_NAMESPACE").unwrap_or_else(|| get("OMPI_MCA_ess_base_jobid"));
            format!("openmpi {id}")
        }
        // Hydra gives its processes no job id; on one host they have the same parent.
        Launcher::Mpich => match variables("PMI_JOBID") {
            Some(id) => format!("pmi {id}"),
            None => format!("pmi below {parent}"),
        },
        Launcher::Mvapich => "mvapich".to_owned(),
        Launcher::Pals => format!("pals {}", get("PALS_APID")),
        Launcher::Jsrun => format!("jsrun {}", get("LSB_JOBID")),
        Launcher::Flux => format!("flux {}", get("FLUX_JOB_ID")),
        Launcher::Alone => String::new(),
    }
}

/// The address of the rendezvous, as far as the variables tell.
pub(super) fn address(
    launcher: Launcher,
    variables: Variables<'_>,
    job: &str,
    is_one_host: bool,
) -> Result<Option<RendezvousAddress>, LaunchError> {
    if let Some(text) = variables("RAILNET_RENDEZVOUS") {
        let need = "host:port is needed, such as 10.0.0.1:29400 or [fd00::1]:29400";
        let address = RendezvousAddress::parse(&text);
        return match address {
            Some(address) => Ok(Some(address)),
            None => Err(LaunchError::RendezvousAddress { name: "RAILNET_RENDEZVOUS", text, need }),
        };
    }
    let port = match variables("RAILNET_PORT") {
        None => chosen_port(job),
        Some(text) => text.parse().ok().filter(|port| *port != 0).ok_or(LaunchError::RendezvousAddress {
            name: "RAILNET_PORT",
            text,
            need: "a port from 1 to 65535 is needed",
        })?,
    };
    let hosts = match launcher {
        Launcher::Slurm => slurm_hosts(variables, "SLURM_STEP_NODELIST")?,
        // PyTorch's own store uses the port of MASTER_ADDR, so only the host is the same.
        _ => match variables("MASTER_ADDR") {
            Some(host) => vec![host],
            None if is_one_host => vec!["127.0.0.1".to_owned()],
            None => slurm_hosts(variables, "SLURM_JOB_NODELIST")?,
        },
    };
    Ok((!hosts.is_empty()).then_some(RendezvousAddress { hosts, port }))
}

/// The first node of a list runs rank 0. Nodes that exist only for Slurm have no address; then the host of `srun` is the best
/// guess, and right where nodes are virtual or a batch script runs it.
fn slurm_hosts(variables: Variables<'_>, name: &'static str) -> Result<Vec<String>, LaunchError> {
    let Some(list) = variables(name) else {
        return Ok(Vec::new());
    };
    let first = expand(&list, 1).map_err(|error| LaunchError::Hostlist { name, error })?;
    Ok(first.into_iter().chain(variables("SLURM_LAUNCH_NODE_IPADDR")).collect())
}

/// The same port on every rank, and most likely another one for each job.
fn chosen_port(job: &str) -> u16 {
    let mut fold = railnet_core::Fold::new();
    for byte in job.bytes() {
        fold.push(u64::from(byte));
    }
    (PORTS.start + (fold.finish_wide() as u32) % (PORTS.end - PORTS.start)) as u16
}
