//! What faults mean for jobs: what is slow from the start to the end, and what ends them.

use railnet_core::Span;
use railnet_job::file::others;

use super::damage::{Damage, no_gpu};
use super::faults::FaultSection;
use super::filled::name;
use super::names::{HostName, LinkName};
use super::{PlacedJob, Scenario, ScenarioError};

/// Something that slows a job down for as long as it runs.
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
    /// Something inside a server.
    Server {
        /// The server.
        node: u32,
        /// The damage.
        damage: Damage,
        /// The first of its GPUs and of its ports.
        first: [u32; 2],
    },
    /// An expert that gets more tokens than the others.
    Expert {
        /// How many times as many as the average.
        times: f64,
    },
}

impl Slowed {
    /// Whether it is about a job.
    pub(crate) fn is_in(&self, placed: &PlacedJob) -> bool {
        let node = match self {
            Self::Gpu { gpu, .. } => placed.whole.ranks().node_of(*gpu),
            Self::Nic { port, .. } => placed.whole.ports().node_of(*port),
            Self::Server { node, .. } => *node,
            Self::Expert { .. } => return placed.resolved.job.model.experts.is_some(),
        };
        placed.place_of(node).is_some()
    }

    /// Whether this NIC is the one beside the GPU of a rank.
    pub(crate) fn carries(&self, placed: &PlacedJob, rank: u32) -> bool {
        let Self::Nic { port, .. } = self else { return false };
        let (node, gpu) = placed.cluster.ranks().place(rank);
        let home = placed.home(node);
        let (gpus, ports) = (placed.whole.ranks().count(home), placed.whole.ports().range(home));
        let beside = ports.start + gpu * (ports.end - ports.start) / gpus;
        beside == *port
    }

    /// What a report calls it.
    pub(crate) fn words(&self) -> String {
        match self {
            Self::Gpu { gpu, share } => format!("GPU {gpu} at {:.0} % of its speed", share * 100.0),
            Self::Nic { port, share } => {
                format!("the NIC of port {port} at {:.0} % of its rate", share * 100.0)
            }
            Self::Server { damage, first, .. } => damage.words(*first),
            Self::Expert { times } => format!("an expert with {times} times its share of tokens"),
        }
    }
}

impl PlacedJob {
    /// Which of its servers one of the whole cluster is.
    fn place_of(&self, home: u32) -> Option<u32> {
        match &self.homes {
            Some(homes) => homes.iter().position(|one| *one == home).map(|place| place as u32),
            None => self.nodes().contains(&home).then(|| home - self.first_node),
        }
    }

    /// The job with what slows it down.
    pub(crate) fn with(&self, slowed: &[Slowed]) -> Result<Self, ScenarioError> {
        let wrong = |error: &dyn std::fmt::Display| ScenarioError::new(error.to_string());
        let mut placed = self.clone();
        for one in slowed.iter().filter(|one| one.is_in(self)) {
            match one {
                Slowed::Server { node, damage, .. } => {
                    let Some(node) = self.place_of(*node) else { continue };
                    if !damage.is_on(placed.cluster.host_of(node)) {
                        // No rank runs there.
                        continue;
                    }
                    let hurt = damage.on(placed.cluster.host_of(node)).map_err(|error| wrong(&error))?;
                    placed.cluster.replace(node, hurt);
                }
                Slowed::Expert { times } => {
                    let job = &mut placed.resolved.job;
                    job.hot_expert = job.hot_expert.max(*times);
                }
                Slowed::Gpu { .. } | Slowed::Nic { .. } => {}
            }
        }
        let job = &mut placed.resolved.job;
        job.others = others(&placed.cluster, job.training.precision).map_err(|error| wrong(&error))?;
        Ok(placed)
    }
}

impl Scenario {
    /// What is slow. Where `only_these`, a fault of any other kind is an error: formulas do not know it.
    pub(crate) fn slowed(&self, only_these: bool) -> Result<Vec<Slowed>, ScenarioError> {
        let mut slowed = Vec::new();
        for (index, fault) in self.faults.iter().enumerate() {
            let within = |error: ScenarioError| error.within(&format!("faults.{index}"));
            match self.slow(fault).map_err(within)? {
                Some(Slowed::Nic { port, .. }) if only_these && self.is_beside(port)? => {
                    let message = "formulas know slow NICs of ranks, and this one is of a server that has parameters or \
                                   storage: `fidelity = \"packet\"` knows it";
                    return Err(within(ScenarioError::new(message)));
                }
                Some(one) => slowed.push(one),
                None if only_these && !fault.ends_jobs() => {
                    let message = "formulas know what is wrong from the start to the end with GPUs, NICs, NVLink, PCIe and \
                                   experts, and what is lost (slow-gpu, slow-nic, nvlink-down, pcie-down, wrong-numa, \
                                   hot-expert, lost-gpu, crash): `fidelity = \"packet\"` knows this";
                    return Err(within(ScenarioError::new(message)));
                }
                None => {}
            }
        }
        Ok(slowed)
    }

    /// Whether a port is one of a server that has parameters or storage.
    fn is_beside(&self, port: u32) -> Result<bool, ScenarioError> {
        let is_of = |placed: &PlacedJob| {
            let node = placed.whole.ports().node_of(port);
            placed.servers.contains(&node) || placed.storage.contains(&node)
        };
        Ok(self.jobs()?.iter().any(is_of))
    }

    /// What a fault slows down for as long as jobs run, where that is what it does.
    fn slow(&self, fault: &FaultSection) -> Result<Option<Slowed>, ScenarioError> {
        match fault {
            FaultSection::SlowGpu { gpu, share, at, until: None } if at.0 == Span::ZERO => {
                let gpus = self.servers()?.gpus();
                if *gpu >= gpus {
                    return Err(no_gpu(*gpu, gpus));
                }
                Ok(Some(Slowed::Gpu { gpu: *gpu, share: checked(*share)? }))
            }
            FaultSection::SlowNic { host, share, at, until: None } if at.0 == Span::ZERO => {
                let port = host.find(&super::graph(self)?).map_err(|error| error.at("host"))?;
                Ok(Some(Slowed::Nic { port, share: checked(*share)? }))
            }
            FaultSection::HotExpert { times } => self.hot(*times).map(Some),
            _ => {
                let Some(one) = self.damage(fault)?.filter(super::damage::DamageSection::is_standing) else {
                    return Ok(None);
                };
                let first = self.first_of(one.node)?;
                Ok(Some(Slowed::Server { node: one.node, damage: one.damage, first }))
            }
        }
    }

    /// The first GPU and the first port of a server.
    fn first_of(&self, node: u32) -> Result<[u32; 2], ScenarioError> {
        let cluster = self.servers()?;
        Ok([cluster.ranks().range(node).start, cluster.ports().range(node).start])
    }

    fn hot(&self, times: f64) -> Result<Slowed, ScenarioError> {
        if !(times.is_finite() && times > 1.0) {
            let message = format!("a hot expert gets more than its share: `times` above 1, not {times}");
            return Err(ScenarioError::new(message).at("times"));
        }
        if self.jobs()?.iter().all(|placed| placed.resolved.job.model.experts.is_none()) {
            let message = "no job has experts: train a model that does, such as mixtral-8x7b";
            return Err(ScenarioError::new(message).at("kind"));
        }
        Ok(Slowed::Expert { times })
    }
}

impl FaultSection {
    /// Whether jobs end by it, to begin again from their checkpoint.
    pub(crate) const fn ends_jobs(&self) -> bool {
        matches!(self, Self::LostGpu { .. } | Self::Crash { .. })
    }

    /// Whether it means nothing without a job.
    pub(crate) const fn is_about_jobs(&self) -> bool {
        matches!(self, Self::LostGpu { .. } | Self::Crash { .. } | Self::HotExpert { .. })
    }

    /// What a report calls it, where it is none of those that are slow all the time.
    fn words(&self) -> String {
        let from = |at: &Span| if *at == Span::ZERO { String::new() } else { format!(" from {at} on") };
        let host = |host: &HostName| match host {
            HostName::Number(number) => format!("port {number}"),
            HostName::Name(name) => name.clone(),
        };
        let link = |link: &LinkName| match link {
            LinkName::Number(number) => format!("link {number}"),
            LinkName::Host(host) => format!("the link of {host}"),
            LinkName::Ends(a, b) => format!("the link {a} - {b}"),
        };
        match self {
            Self::LinkDown { link: which, at, .. } => format!("{} down{}", link(which), from(&at.0)),
            Self::Flap { link: which, at, period, count, .. } => {
                format!("{} flapping {count} times, every {}{}", link(which), period.0, from(&at.0))
            }
            Self::Loss { link: which, chance, at, .. } => {
                format!("{} losing {} % of its packets{}", link(which), chance * 100.0, from(&at.0))
            }
            Self::SlowLink { link: which, share, at, .. } => {
                format!("{} at {:.0} % of its rate{}", link(which), share * 100.0, from(&at.0))
            }
            Self::SlowNic { host: whose, share, at, .. } => {
                format!("the NIC of {} at {:.0} % of its rate{}", host(whose), share * 100.0, from(&at.0))
            }
            Self::SlowGpu { gpu, share, at, .. } => {
                format!("GPU {gpu} at {:.0} % of its speed{}", share * 100.0, from(&at.0))
            }
            Self::LosePacket { from: sender, nth: Some(nth), .. } => {
                format!("packet {nth} of {} lost", host(sender))
            }
            Self::LosePacket { from: sender, .. } => format!("a packet of {} lost", host(sender)),
            Self::PauseStorm { host: whose, at, .. } => {
                format!("{} sending pauses without end{}", host(whose), from(&at.0))
            }
            other => name(other).replace('-', " "),
        }
    }
}

impl Scenario {
    /// Whether it has faults that do not end jobs.
    pub(crate) fn has_slowing_faults(&self) -> bool {
        self.faults.iter().any(|fault| !fault.ends_jobs())
    }

    /// All faults in words, for a report, but for those that end jobs.
    pub(crate) fn fault_words(&self) -> Result<String, ScenarioError> {
        let mut words = Vec::new();
        for fault in self.faults.iter().filter(|fault| !fault.ends_jobs()) {
            words.push(match (self.slow(fault)?, self.damage(fault)?) {
                (Some(slow), _) => slow.words(),
                (None, Some(one)) => {
                    format!("{} from {} on", one.damage.words(self.first_of(one.node)?), one.at)
                }
                (None, None) => fault.words(),
            });
        }
        Ok(words.join(" and "))
    }
}

fn checked(share: f64) -> Result<f64, ScenarioError> {
    if share > 0.0 && share <= 1.0 {
        return Ok(share);
    }
    Err(ScenarioError::new(format!("a share is above 0 and at most 1, not {share}")).at("share"))
}
