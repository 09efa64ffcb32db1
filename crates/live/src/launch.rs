//! The identity of a rank, from the variables that its launcher sets.
//!
//! [`detect`] is a function of those variables alone. The first launcher in [`Launcher::ALL`] whose variables are complete
//! wins; `RAILNET_LAUNCHER` names one instead. Nothing is derived that a launcher says itself: Slurm places tasks unevenly, so
//! that the node does not follow from the rank.
//!
//! ```
//! use railnet_live::launch::{Launcher, detect};
//!
//! let variables = |name: &str| match name {
//!     "OMPI_COMM_WORLD_RANK" | "OMPI_COMM_WORLD_LOCAL_RANK" => Some("1".to_owned()),
//!     "OMPI_COMM_WORLD_SIZE" | "OMPI_COMM_WORLD_LOCAL_SIZE" => Some("2".to_owned()),
//!     _ => None,
//! };
//! let launch = detect(&variables, 1)?;
//! assert_eq!((launch.launcher, launch.rank.0, launch.world_size), (Launcher::OpenMpi, 1, 2));
//! # Ok::<(), railnet_live::launch::LaunchError>(())
//! ```

mod hostlist;
mod rendezvous_address;
#[cfg(test)]
mod tests;

use std::fmt;

use railnet_core::Rank;

pub use hostlist::{HostlistError, expand};
pub use rendezvous_address::{HeldPort, RendezvousAddress, free_port};

/// The most ranks of a world.
pub const WORLD_SIZE_MAX: u32 = 65_536;

/// A variable by its name; an empty one counts as missing.
pub type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

/// What started this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Launcher {
    /// `railnet run`.
    Railnet,
    /// PyTorch's torchrun.
    Torchrun,
    /// `srun` of Slurm.
    Slurm,
    /// `mpirun` of Open MPI.
    OpenMpi,
    /// `mpiexec` of MPICH or Intel MPI (Hydra), or another that speaks PMI.
    Mpich,
    /// MVAPICH.
    Mvapich,
    /// PALS, of Cray.
    Pals,
    /// `jsrun` of LSF.
    Jsrun,
    /// Flux.
    Flux,
    /// None: one process by itself.
    Alone,
}

impl Launcher {
    /// All launchers, in the order in which they are tried.
    pub const ALL: [Self; 9] = [
        Self::Railnet,
        Self::Torchrun,
        Self::Slurm,
        Self::OpenMpi,
        Self::Mpich,
        Self::Mvapich,
        Self::Pals,
        Self::Jsrun,
        Self::Flux,
    ];

    /// The name that `RAILNET_LAUNCHER` takes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Railnet => "railnet",
            Self::Torchrun => "torchrun",
            Self::Slurm => "slurm",
            Self::OpenMpi => "openmpi",
            Self::Mpich => "mpich",
            Self::Mvapich => "mvapich",
            Self::Pals => "pals",
            Self::Jsrun => "jsrun",
            Self::Flux => "flux",
            Self::Alone => "alone",
        }
    }

    /// The variables of this launcher. PMI's names are those of Hydra.
    fn names(self) -> Names {
        let names = |rank, sizes, local_rank, local_size, node, also| Names {
            rank,
            sizes,
            local_rank,
            local_size,
            node,
            also,
        };
        match self {
            Self::Railnet => names(
                "RAILNET_RANK",
                &["RAILNET_WORLD_SIZE"],
                "RAILNET_LOCAL_RANK",
                "RAILNET_LOCAL_SIZE",
                "RAILNET_NODE",
                &[],
            ),
            // Kubernetes' PyTorchJob sets RANK and WORLD_SIZE too, but for nodes: only torchrun sets the other two.
            Self::Torchrun => names(
                "RANK",
                &["WORLD_SIZE"],
                "LOCAL_RANK",
                "LOCAL_WORLD_SIZE",
                "GROUP_RANK",
                &["LOCAL_RANK", "GROUP_RANK"],
            ),
            // A batch script has SLURM_PROCID as well, and is no step: only `srun` sets the step's id.
            Self::Slurm => names(
                "SLURM_PROCID",
                &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
                "SLURM_LOCALID",
                "",
                "SLURM_NODEID",
                &["SLURM_STEP_ID"],
            ),
            Self::OpenMpi => names(
                "OMPI_COMM_WORLD_RANK",
                &["OMPI_COMM_WORLD_SIZE"],
                "OMPI_COMM_WORLD_LOCAL_RANK",
                "OMPI_COMM_WORLD_LOCAL_SIZE",
                "",
                &[],
            ),
            Self::Mpich => names("PMI_RANK", &["PMI_SIZE"], "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "", &[]),
            Self::Mvapich => names(
                "MV2_COMM_WORLD_RANK",
                &["MV2_COMM_WORLD_SIZE"],
                "MV2_COMM_WORLD_LOCAL_RANK",
                "MV2_COMM_WORLD_LOCAL_SIZE",
                "",
                &[],
            ),
            Self::Pals => names(
                "PALS_RANKID",
                &["PALS_SIZE"],
                "PALS_LOCAL_RANKID",
                "PALS_LOCAL_SIZE",
                "PALS_NODEID",
                &[],
            ),
            Self::Jsrun => names(
                "JSM_NAMESPACE_RANK",
                &["JSM_NAMESPACE_SIZE"],
                "JSM_NAMESPACE_LOCAL_RANK",
                "JSM_NAMESPACE_LOCAL_SIZE",
                "",
                &[],
            ),
            Self::Flux => names("FLUX_TASK_RANK", &["FLUX_JOB_SIZE"], "FLUX_TASK_LOCAL_ID", "", "", &[]),
            Self::Alone => names("", &[], "", "", "", &[]),
        }
    }
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Railnet => "railnet run",
            Self::Torchrun => "torchrun",
            Self::Slurm => "Slurm (srun)",
            Self::OpenMpi => "Open MPI",
            Self::Mpich => "MPICH or another with PMI",
            Self::Mvapich => "MVAPICH",
            Self::Pals => "PALS",
            Self::Jsrun => "jsrun",
            Self::Flux => "Flux",
            Self::Alone => "none",
        })
    }
}

/// The names of a launcher's variables; an empty name is a variable that it does not set.
struct Names {
    rank: &'static str,
    sizes: &'static [&'static str],
    local_rank: &'static str,
    local_size: &'static str,
    node: &'static str,
    /// What must be set besides rank and size, so that this launcher is not taken for another.
    also: &'static [&'static str],
}

/// The identity of a rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Launch {
    /// Its launcher.
    pub launcher: Launcher,
    /// Its rank.
    pub rank: Rank,
    /// The number of ranks.
    pub world_size: u32,
    /// Its rank on its node, if the launcher sets it.
    pub local_rank: Option<u32>,
    /// The number of ranks on its node, if the launcher sets it.
    pub local_size: Option<u32>,
    /// The number of its node, if the launcher sets it.
    pub node: Option<u32>,
    /// The name of its host group: ranks of different groups never use shared memory. Without one, the host's name.
    pub host_group: Option<String>,
    /// The address of the rendezvous, if it is known.
    pub rendezvous: Option<RendezvousAddress>,
    /// Tells this job from others that may use the same address.
    pub job: String,
}

/// Why the identity of a rank is unknown.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// Some of a launcher's variables are set, and others are not.
    #[error("{set} is set but {missing} is not: {advice}")]
    Incomplete {
        /// A variable that is set.
        set: &'static str,
        /// One that is missing.
        missing: String,
        /// What to do about it.
        advice: String,
    },
    /// A variable that should be a number.
    #[error("{name} is {text:?}: a whole number is needed")]
    NotANumber {
        /// The variable.
        name: &'static str,
        /// Its value.
        text: String,
    },
    /// A number out of range.
    #[error("{name} is {value}, but {size_name} is {size}: {range}")]
    OutOfRange {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: u32,
        /// The variable that it contradicts.
        size_name: String,
        /// The value of that one.
        size: u32,
        /// What would be right.
        range: String,
    },
    /// A world that is empty or too large.
    #[error("{name} is {size}: a world has 1 to {WORLD_SIZE_MAX} ranks")]
    WorldSize {
        /// The variable.
        name: &'static str,
        /// Its value.
        size: u32,
    },
    /// `RAILNET_LAUNCHER` names an unknown launcher.
    #[error(
        "RAILNET_LAUNCHER is {0:?}: one of railnet, torchrun, slurm, openmpi, mpich, mvapich, pals, jsrun, flux, alone"
    )]
    UnknownLauncher(String),
    /// The address of the rendezvous is malformed.
    #[error("{name} is {text:?}: {need}")]
    RendezvousAddress {
        /// The variable.
        name: &'static str,
        /// Its value.
        text: String,
        /// What is needed.
        need: &'static str,
    },
    /// A list of hosts is malformed.
    #[error("{name}: {error}")]
    Hostlist {
        /// The variable.
        name: &'static str,
        /// What is malformed.
        error: HostlistError,
    },
}

impl Launch {
    /// The identity of this process, from its environment.
    pub fn from_env() -> Result<Self, LaunchError> {
        let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get() as u32);
        detect(&variable, parent)
    }

    /// A rank that its program told where all meet. Other variables of its launcher count if that started the same ranks.
    pub fn told(rank: Rank, world_size: u32, address: RendezvousAddress, job: String) -> Self {
        let found = Self::from_env().ok();
        let found = found.filter(|launch| (launch.rank, launch.world_size) == (rank, world_size));
        let found = found.unwrap_or_else(Self::alone);
        Self { rank, world_size, rendezvous: Some(address), job, ..found }
    }

    /// The only rank of its world.
    pub fn alone() -> Self {
        Self {
            launcher: Launcher::Alone,
            rank: Rank(0),
            world_size: 1,
            local_rank: Some(0),
            local_size: Some(1),
            node: Some(0),
            host_group: None,
            rendezvous: None,
            job: String::new(),
        }
    }
}

/// A variable of this process.
pub fn variable(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

/// Finds the identity of a rank. `parent` is the parent process: all that tells two runs of MPICH on one host apart.
pub fn detect(variables: Variables<'_>, parent: u32) -> Result<Launch, LaunchError> {
    let variables = &|name: &str| variables(name).filter(|value| !value.is_empty());
    if let Some(name) = variables("RAILNET_LAUNCHER") {
        if name == Launcher::Alone.name() {
            return Ok(Launch::alone());
        }
        let launcher = Launcher::ALL.into_iter().find(|one| one.name() == name);
        let launcher = launcher.ok_or(LaunchError::UnknownLauncher(name))?;
        return found(launcher, variables, parent);
    }
    let is_there = |name: &str| variables(name).is_some();
    let has_rank = |one: &Launcher| is_there(one.names().rank);
    let is_whole = |one: &Launcher| {
        let names = one.names();
        names.also.iter().all(|name| is_there(name)) && has_size(*one, variables)
    };
    let candidates: Vec<Launcher> = Launcher::ALL.into_iter().filter(has_rank).collect();
    if let Some(launcher) = candidates.iter().copied().find(is_whole) {
        return found(launcher, variables, parent);
    }
    // Without a step's id these are the variables of a batch script or a shell of Slurm's, which is one process.
    match candidates.into_iter().find(|one| *one != Launcher::Slurm || is_there("SLURM_STEP_ID")) {
        Some(partial) => Err(incomplete(partial, variables)),
        None => Ok(Launch::alone()),
    }
}

/// The identity of a rank whose launcher is known.
fn found(launcher: Launcher, variables: Variables<'_>, parent: u32) -> Result<Launch, LaunchError> {
    let names = launcher.names();
    let rank = number(names.rank, variables)?;
    let (Some(rank), true) = (rank, has_size(launcher, variables)) else {
        return Err(incomplete(launcher, variables));
    };
    let (size_name, world_size) = world_size(launcher, variables)?;
    if world_size == 0 || world_size > WORLD_SIZE_MAX {
        return Err(LaunchError::WorldSize { name: size_name, size: world_size });
    }
    below(names.rank, rank, size_name, world_size)?;
    let node = number(names.node, variables)?;
    let local_rank = number(names.local_rank, variables)?;
    let local_size = match launcher {
        Launcher::Slurm => node.and_then(|node| slurm_local_size(variables, node)),
        _ => number(names.local_size, variables)?,
    };
    if let (Some(local_rank), Some(local_size)) = (local_rank, local_size) {
        let size_name = if names.local_size.is_empty() { "the node's size" } else { names.local_size };
        below(names.local_rank, local_rank, size_name, local_size)?;
    }
    let host_group = variables("RAILNET_HOST_GROUP").or_else(|| match launcher {
        Launcher::Railnet | Launcher::Torchrun => node.map(|node| format!("node{node}")),
        Launcher::Slurm => variables("SLURMD_NODENAME"),
        _ => None,
    });
    let job = rendezvous_address::job(launcher, variables, parent);
    let is_one_host = local_size == Some(world_size);
    let rendezvous = rendezvous_address::address(launcher, variables, &job, is_one_host)?;
    Ok(Launch {
        launcher,
        rank: Rank(rank),
        world_size,
        local_rank,
        local_size,
        node,
        host_group,
        rendezvous,
        job,
    })
}

fn has_size(launcher: Launcher, variables: Variables<'_>) -> bool {
    launcher.names().sizes.iter().any(|name| variables(name).is_some())
        || (launcher == Launcher::Slurm && slurm_product(variables).is_some())
}

fn world_size(launcher: Launcher, variables: Variables<'_>) -> Result<(&'static str, u32), LaunchError> {
    for name in launcher.names().sizes {
        if let Some(size) = number(name, variables)? {
            return Ok((name, size));
        }
    }
    // `has_size` was checked before.
    Ok(("SLURM_NNODES times SLURM_NTASKS_PER_NODE", slurm_product(variables).unwrap_or(0)))
}

/// Nodes times tasks on each: some clusters set nothing else (gpt-neox#1069).
fn slurm_product(variables: Variables<'_>) -> Option<u32> {
    let get = |name: &str| variables(name)?.parse::<u32>().ok();
    get("SLURM_NNODES")?.checked_mul(get("SLURM_NTASKS_PER_NODE")?)
}

/// The tasks of a node, from a list such as `3,1` or `2(x2)`.
fn slurm_local_size(variables: Variables<'_>, node: u32) -> Option<u32> {
    let list = variables("SLURM_STEP_TASKS_PER_NODE").or_else(|| variables("SLURM_TASKS_PER_NODE"))?;
    let mut left = node;
    for part in list.split(',') {
        let (count, times) = match part.split_once("(x") {
            Some((count, times)) => (count, times.strip_suffix(')')?.parse().ok()?),
            None => (part, 1),
        };
        if left < times {
            return count.parse().ok();
        }
        left -= times;
    }
    None
}

fn number(name: &'static str, variables: Variables<'_>) -> Result<Option<u32>, LaunchError> {
    let Some(text) = variables(name).filter(|_| !name.is_empty()) else {
        return Ok(None);
    };
    text.trim().parse().map(Some).map_err(|_| LaunchError::NotANumber { name, text })
}

fn below(name: &'static str, value: u32, size_name: &str, size: u32) -> Result<(), LaunchError> {
    if value < size {
        return Ok(());
    }
    let range = match size {
        0 => "nothing fits in there".to_owned(),
        1 => "only 0 fits".to_owned(),
        _ => format!("0 to {} fit", size - 1),
    };
    Err(LaunchError::OutOfRange { name, value, size_name: size_name.to_owned(), size, range })
}

fn incomplete(launcher: Launcher, variables: Variables<'_>) -> LaunchError {
    let names = launcher.names();
    let is_there = |name: &str| variables(name).is_some();
    if !is_there(names.rank) {
        let advice = format!("this process was not started by {launcher}");
        return LaunchError::Incomplete { set: "RAILNET_LAUNCHER", missing: names.rank.to_owned(), advice };
    }
    if !has_size(launcher, variables) {
        let advice = format!("{launcher} sets both; set both by hand, or neither for a single process");
        return LaunchError::Incomplete { set: names.rank, missing: names.sizes.join(" or "), advice };
    }
    let missing = names.also.iter().find(|name| !is_there(name)).copied().unwrap_or_default();
    let advice = match launcher {
        Launcher::Torchrun => {
            "Kubernetes' PyTorchJob sets them so, for nodes and not for ranks: start the ranks with \
             torchrun or railnet run; RAILNET_LAUNCHER=torchrun takes RANK for the rank nevertheless"
                .to_owned()
        }
        _ => format!("start the ranks with {launcher}"),
    };
    LaunchError::Incomplete { set: names.rank, missing: missing.to_owned(), advice }
}
