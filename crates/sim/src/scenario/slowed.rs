//! What faults mean for jobs: GPUs and NICs that are slow from the start to the end.

use railnet_core::Span;

use super::faults::FaultSection;
use super::filled::name;
use super::{PlacedJob, Scenario, ScenarioError};

/// Something that is slow for as long as a job runs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Slowed {
    /// A GPU.
    Gpu {
        /// Which, of the whole cluster.
        gpu: u32,
        /// What is left of its speed.
        share: f64,
    },
    /// A NIC.
    Nic {
        /// Its port.
        port: u32,
        /// What is left of its rate.
        share: f64,
    },
}

impl Slowed {
    /// Whether it is on the servers of a job.
    pub(crate) fn is_in(&self, placed: &PlacedJob) -> bool {
        let (number, each) = match self {
            Self::Gpu { gpu, .. } => (*gpu, placed.cluster.gpus_per_node()),
            Self::Nic { port, .. } => (*port, placed.cluster.host.compute_nics().len() as u32),
        };
        let node = number / each.max(1);
        (placed.first_node..placed.first_node + placed.cluster.nodes).contains(&node)
    }

    /// Whether this NIC is the one beside the GPU of a rank.
    pub(crate) fn carries(&self, placed: &PlacedJob, rank: u32) -> bool {
        let Self::Nic { port, .. } = self else { return false };
        let (gpus, nics) = (placed.cluster.gpus_per_node(), placed.cluster.host.compute_nics().len() as u32);
        let beside = (placed.first_node + rank / gpus) * nics + rank % gpus * nics / gpus;
        beside == *port
    }

    /// What a report calls it.
    pub(crate) fn words(&self) -> String {
        match self {
            Self::Gpu { gpu, share } => format!("GPU {gpu} at {:.0} % of its speed", share * 100.0),
            Self::Nic { port, share } => {
                format!("the NIC of port {port} at {:.0} % of its rate", share * 100.0)
            }
        }
    }
}

impl Scenario {
    /// What is slow. Where `only_these`, a fault of any other kind is an error: formulas do not know it.
    pub(crate) fn slowed(&self, only_these: bool) -> Result<Vec<Slowed>, ScenarioError> {
        let mut slowed = Vec::new();
        for (index, fault) in self.faults.iter().enumerate() {
            let within = |error: ScenarioError| error.within(&format!("faults.{index}"));
            match fault {
                FaultSection::SlowGpu { gpu, share, at, until: None } if at.0 == Span::ZERO => {
                    let gpus = self.servers()?.gpus();
                    if *gpu >= gpus {
                        let message =
                            format!("there is no GPU {gpu}: the servers have GPUs 0 to {}", gpus - 1);
                        return Err(within(ScenarioError::new(message).at("gpu")));
                    }
                    slowed.push(Slowed::Gpu { gpu: *gpu, share: checked(*share).map_err(within)? });
                }
                FaultSection::SlowNic { host, share, at, until: None } if at.0 == Span::ZERO => {
                    let port = host.find(&super::graph(self)?).map_err(|error| within(error.at("host")))?;
                    slowed.push(Slowed::Nic { port, share: checked(*share).map_err(within)? });
                }
                _ if only_these => {
                    let message = "formulas know GPUs and NICs that are slow from the start to the end \
                                   (slow-gpu, slow-nic without `at` and `until`): `fidelity = \"packet\"` knows this";
                    return Err(within(ScenarioError::new(message)));
                }
                _ => {}
            }
        }
        Ok(slowed)
    }
}

impl Scenario {
    /// All faults in words, for a report.
    pub(crate) fn fault_words(&self) -> Result<String, ScenarioError> {
        let slow = self.slowed(false)?;
        let mut words: Vec<String> = slow.iter().map(Slowed::words).collect();
        let is_other = |fault: &&FaultSection| match fault {
            FaultSection::SlowGpu { at, until, .. } | FaultSection::SlowNic { at, until, .. } => {
                at.0 > Span::ZERO || until.is_some()
            }
            _ => true,
        };
        words.extend(self.faults.iter().filter(is_other).map(name));
        Ok(words.join(" and "))
    }
}

fn checked(share: f64) -> Result<f64, ScenarioError> {
    if share > 0.0 && share <= 1.0 {
        return Ok(share);
    }
    Err(ScenarioError::new(format!("a share is above 0 and at most 1, not {share}")).at("share"))
}
