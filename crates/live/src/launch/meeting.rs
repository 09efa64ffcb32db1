//! Where the ranks of a job meet, and what tells it from others.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::{fmt, io};

use super::{LaunchError, Launcher, Variables, expand};

/// The ports that are chosen from, where a launcher names none: below the range from which Linux takes ports by itself.
const PORTS: std::ops::Range<u32> = 15_000..31_000;

/// A port where ranks can meet on this host: free now, and none that the system gives away by itself before rank 0
/// listens there.
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
    /// Takes one of an address of this host.
    pub fn new(address: IpAddr) -> io::Result<Self> {
        let (socket, port) = crate::socket::reserve(address)?;
        Ok(Self { _socket: socket, port })
    }
}

/// A place where ranks meet: rank 0 listens there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Meeting {
    /// Names or addresses of rank 0's host: the first that means something here is taken.
    pub hosts: Vec<String>,
    /// The port.
    pub port: u16,
}

impl Meeting {
    /// A place on one host.
    pub fn new(host: &str, port: u16) -> Self {
        Self { hosts: vec![host.to_owned()], port }
    }

    /// Reads `host:port`; an IPv6 address stands in brackets.
    pub fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let port = port.parse().ok().filter(|port| *port != 0)?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_host = bare.is_some() || !host.contains(':');
        let host = bare.unwrap_or(host);
        (is_host && !host.is_empty()).then(|| Self::new(host, port))
    }
}

impl fmt::Display for Meeting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = self.hosts.first().map_or("", String::as_str);
        if host.contains(':') {
            write!(f, "[{host}]:{}", self.port)
        } else {
            write!(f, "{host}:{}", self.port)
        }
    }
}

/// What tells a job from others of its launcher.
pub(super) fn job(launcher: Launcher, variables: Variables<'_>, parent: u32) -> String {
    let get = |name: &str| variables(name).unwrap_or_default();
    if let Some(job) = variables("RAILNET_JOB") {
        return job;
    }
    match launcher {
        Launcher::Railnet => get("RAILNET_RENDEZVOUS"),
        // Ranks change over a restart, so a restart is another job.
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
        // Hydra gives its processes no name for the job; on one host they have a parent in common.
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

/// Where to meet, where the variables tell.
pub(super) fn place(
    launcher: Launcher,
    variables: Variables<'_>,
    job: &str,
    is_one_host: bool,
) -> Result<Option<Meeting>, LaunchError> {
    if let Some(text) = variables("RAILNET_RENDEZVOUS") {
        let need = "host:port is needed, such as 10.0.0.1:29400 or [fd00::1]:29400";
        let meeting = Meeting::parse(&text);
        return match meeting {
            Some(meeting) => Ok(Some(meeting)),
            None => Err(LaunchError::Meeting { name: "RAILNET_RENDEZVOUS", text, need }),
        };
    }
    let port = match variables("RAILNET_PORT") {
        None => chosen_port(job),
        Some(text) => text.parse().ok().filter(|port| *port != 0).ok_or(LaunchError::Meeting {
            name: "RAILNET_PORT",
            text,
            need: "a port from 1 to 65535 is needed",
        })?,
    };
    let hosts = match launcher {
        Launcher::Slurm => slurm_hosts(variables, "SLURM_STEP_NODELIST")?,
        // The port of MASTER_ADDR is taken by PyTorch's own store, so only the host is the same.
        _ => match variables("MASTER_ADDR") {
            Some(host) => vec![host],
            None if is_one_host => vec!["127.0.0.1".to_owned()],
            None => slurm_hosts(variables, "SLURM_JOB_NODELIST")?,
        },
    };
    Ok((!hosts.is_empty()).then_some(Meeting { hosts, port }))
}

/// The first node of a list runs rank 0. Nodes that exist only for Slurm have no address; then the host of `srun` is the
/// best guess, and the right one where nodes are virtual or a batch script ran it.
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
