//! `[[faults]]`: what goes wrong, and when.

use railnet_core::{Psn, Span, Time};
use railnet_fabric::{Chance, Fault, Ports, WhichPacket};
use railnet_topology::FabricGraph;
use serde::Deserialize;

use super::damage::no_gpu;
use super::names::{self, HostName, LinkName};
use super::priorities::PriorityList;
use super::{ClusterSection, Scenario, ScenarioError};
use crate::written::Written;

/// More flaps than a fault has.
const FLAPS_MAX: u32 = 100_000;
/// The whole of a rate, in the unit of the fabric.
const WHOLE: f64 = 1e6;

/// `[[faults]]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum FaultSection {
    /// Nothing gets through a link.
    LinkDown {
        /// The link, by the names of its ends.
        link: LinkName,
        /// When it goes down.
        #[serde(default = "at_once")]
        at: Written<Span>,
        /// When it comes back; never by default.
        #[serde(default)]
        until: Option<Written<Span>>,
        /// How long it takes until routes change, both times.
        #[serde(default = "detection")]
        detection: Written<Span>,
    },
    /// A link goes down and comes back, over and over.
    Flap {
        /// The link, by the names of its ends.
        link: LinkName,
        /// When it first goes down.
        #[serde(default = "at_once")]
        at: Written<Span>,
        /// From one time down to the next.
        period: Written<Span>,
        /// How long it stays down; half of the period by default.
        #[serde(default)]
        down: Option<Written<Span>>,
        /// How many times.
        count: u32,
        /// How long it takes until routes change.
        #[serde(default = "detection")]
        detection: Written<Span>,
    },
    /// A link loses packets.
    Loss {
        /// The link, by the names of its ends.
        link: LinkName,
        /// How likely for each packet.
        chance: f64,
        /// When it begins.
        #[serde(default = "at_once")]
        at: Written<Span>,
        /// When it ends; never by default.
        #[serde(default)]
        until: Option<Written<Span>>,
    },
    /// Packets are damaged where only the receiving NIC notices.
    Corruption {
        /// The link on which that happens.
        link: LinkName,
        /// How likely for each packet.
        chance: f64,
        /// When it begins.
        #[serde(default = "at_once")]
        at: Written<Span>,
        /// When it ends; never by default.
        #[serde(default)]
        until: Option<Written<Span>>,
    },
    /// A link flips bits, and the frame check at its far end notices.
    BitErrors {
        /// The link, by the names of its ends.
        link: LinkName,
        /// How likely for each bit.
        chance: f64,
        /// When it begins.
        #[serde(default = "at_once")]
        at: Written<Span>,
        /// When it ends; never by default.
        #[serde(default)]
        until: Option<Written<Span>>,
    },
    /// A link runs at a part of its rate.
    SlowLink {
        /// The link, by the names of its ends.
        link: LinkName,
        /// How much of its rate is left.
        share: f64,
        /// When it begins.
        #[serde(default = "at_once")]
        at: Written<Span>,
        /// When it ends; never by default.
        #[serde(default)]
        until: Option<Written<Span>>,
    },
    /// A NIC sends and takes in at a part of its rate.
    SlowNic {
        /// The host whose NIC it is.
        host: HostName,
        /// How much of its rate is left.
        share: f64,
        /// When it begins.
        #[serde(default = "at_once")]
        at: Written<Span>,
        /// When it ends; never by default.
        #[serde(default)]
        until: Option<Written<Span>>,
    },
    /// A GPU moves data at a part of its speed.
    SlowGpu {
        /// Which, counted over all servers.
        gpu: u32,
        /// How much of its speed is left.
        share: f64,
        /// When it begins.
        #[serde(default = "at_once")]
        at: Written<Span>,
        /// When it ends; never by default.
        #[serde(default)]
        until: Option<Written<Span>>,
    },
    /// NVLinks of a GPU are down.
    NvlinkDown {
        /// Which GPU, counted over all servers.
        gpu: u32,
        /// How many of its NVLinks.
        #[serde(default = "one_link")]
        links: u16,
        /// When it begins.
        #[serde(default = "at_once")]
        at: Written<Span>,
        /// When it ends; never by default.
        #[serde(default)]
        until: Option<Written<Span>>,
    },
    /// The PCIe link of a GPU or of a NIC trained to less than it could have.
    PcieDown {
        /// The GPU, counted over all servers.
        #[serde(default)]
        gpu: Option<u32>,
        /// Or the port of the NIC.
        #[serde(default)]
        host: Option<HostName>,
        /// The generation that it has; what it should have by default.
        #[serde(default)]
        generation: Option<u8>,
        /// The lanes that it has; what it should have by default.
        #[serde(default)]
        lanes: Option<u8>,
        /// When it begins.
        #[serde(default = "at_once")]
        at: Written<Span>,
        /// When it ends; never by default.
        #[serde(default)]
        until: Option<Written<Span>>,
    },
    /// A NIC is in a slot of the wrong NUMA node.
    WrongNuma {
        /// Its port.
        host: HostName,
    },
    /// An expert of a job gets more tokens than the others.
    HotExpert {
        /// How many times as many as the average.
        times: f64,
    },
    /// A GPU is lost, and what it does never ends.
    LostGpu {
        /// Which, counted over all servers.
        gpu: u32,
        /// What the driver calls it.
        #[serde(default = "off_the_bus")]
        xid: u32,
        /// When it is lost.
        #[serde(default = "at_once")]
        at: Written<Span>,
    },
    /// A server crashes.
    Crash {
        /// The server that crashes.
        node: u32,
        /// When it crashes.
        #[serde(default = "at_once")]
        at: Written<Span>,
    },
    /// One data packet is lost.
    LosePacket {
        /// Its sender.
        from: HostName,
        /// Its receiver; anybody by default.
        #[serde(default)]
        to: Option<HostName>,
        /// Which of those that leave, counted from 1.
        #[serde(default)]
        nth: Option<u64>,
        /// Its sequence number; connections begin with 0.
        #[serde(default)]
        psn: Option<u32>,
        /// From when on packets are counted and looked at.
        #[serde(default = "at_once")]
        at: Written<Span>,
    },
    /// A host sends pause frames without end.
    PauseStorm {
        /// The host that pauses.
        host: HostName,
        /// When it begins.
        #[serde(default = "at_once")]
        at: Written<Span>,
        /// When it ends; never by default.
        #[serde(default)]
        until: Option<Written<Span>>,
    },
    /// Ports have pause frames enabled for other priorities than those that the data travels in.
    WrongClass {
        /// The priorities for which they are enabled.
        lossless: PriorityList,
        /// The switch; all of them by default.
        #[serde(default)]
        switch: Option<String>,
        /// The one port of it that leads there; all of them by default.
        #[serde(default)]
        towards: Option<String>,
        /// When it begins.
        #[serde(default = "at_once")]
        at: Written<Span>,
        /// When it ends; never by default.
        #[serde(default)]
        until: Option<Written<Span>>,
    },
}

const fn one_link() -> u16 {
    1
}

/// "GPU has fallen off the bus" (NVIDIA, Xid errors).
const fn off_the_bus() -> u32 {
    79
}

fn at_once() -> Written<Span> {
    Written(Span::ZERO)
}

/// Loss of light shows within about a millisecond, and so do the routes of one's own ports; protocols that ask their
/// neighbours, such as BFD, take longer.
fn detection() -> Written<Span> {
    Written(Span::from_ms(1))
}

/// The faults of a scenario, in the order they are written, each with its moment.
pub(crate) fn faults(scenario: &Scenario, graph: &FabricGraph) -> Result<Vec<(Time, Fault)>, ScenarioError> {
    let link = &scenario.fabric.link;
    let standing = Standing {
        loss: chance(link.loss, "fabric.link.loss")?,
        bit_errors: chance(link.bit_error_rate, "fabric.link.bit_error_rate")?,
    };
    let lossless = scenario.switch_config().lossless;
    let is_infiniband = scenario.is_infiniband();
    let mut plan = Plan { graph, standing, lossless, is_infiniband, faults: Vec::new() };
    plan.standing();
    for (index, fault) in scenario.faults.iter().enumerate() {
        plan.add(fault).map_err(|error| error.within(&format!("faults.{index}")))?;
    }
    Ok(plan.faults)
}

/// A GPU that becomes slow, or is itself again: what is left of its speed, in millionths.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SlowGpu {
    pub(crate) at: Time,
    pub(crate) gpu: u32,
    pub(crate) rate: u32,
}

/// The GPUs of a scenario that are slow for a while.
pub(crate) fn slow_gpus(scenario: &Scenario) -> Result<Vec<SlowGpu>, ScenarioError> {
    let mut slow = Vec::new();
    for (index, fault) in scenario.faults.iter().enumerate() {
        let FaultSection::SlowGpu { gpu, share, at, until } = fault else { continue };
        let within = |error: ScenarioError| error.within(&format!("faults.{index}"));
        let has_gpus = scenario
            .cluster
            .as_ref()
            .and_then(ClusterSection::host)
            .is_some_and(|host| !host.gpus().is_empty());
        if !has_gpus {
            let message = "there are no GPUs: name a `server` in [cluster] that has some";
            return Err(within(ScenarioError::new(message).at("gpu")));
        }
        let gpus = scenario.servers().map_err(within)?.gpus();
        if *gpu >= gpus {
            return Err(within(no_gpu(*gpu, gpus)));
        }
        let moments = order(*at, *until).map_err(within)?;
        let rates = [parts(*share).map_err(within)?, WHOLE as u32];
        slow.extend(moments.zip(rates).map(|(at, rate)| SlowGpu { at, gpu: *gpu, rate }));
    }
    Ok(slow)
}

/// When a fault begins, and when it ends if it does.
pub(super) fn order(
    at: Written<Span>,
    until: Option<Written<Span>>,
) -> Result<impl Iterator<Item = Time>, ScenarioError> {
    if let Some(until) = until.filter(|until| until.0 <= at.0) {
        let message = format!("it would end at {} and begin at {}: `until` comes after `at`", until.0, at.0);
        return Err(ScenarioError::new(message).at("until"));
    }
    Ok([Some(at), until].into_iter().flatten().map(|moment| Time::ZERO + moment.0))
}

/// What links are like where no fault is on.
#[derive(Clone, Copy)]
struct Standing {
    loss: Chance,
    bit_errors: Chance,
}

struct Plan<'a> {
    graph: &'a FabricGraph,
    standing: Standing,
    /// The priorities that should be lossless.
    lossless: u8,
    /// There are no pause frames, and no priorities without them.
    is_infiniband: bool,
    faults: Vec<(Time, Fault)>,
}

impl Plan<'_> {
    /// What is always wrong with all links.
    fn standing(&mut self) {
        let Standing { loss, bit_errors } = self.standing;
        for link in 0..self.graph.links.len() as u32 {
            if loss != Chance::NEVER {
                self.faults.push((Time::ZERO, Fault::Loss { link, chance: loss }));
            }
            if bit_errors != Chance::NEVER {
                self.faults.push((Time::ZERO, Fault::BitErrors { link, chance: bit_errors }));
            }
        }
    }

    fn add(&mut self, fault: &FaultSection) -> Result<(), ScenarioError> {
        match fault {
            FaultSection::LinkDown { link, at, until, detection } => {
                let detection = detection.0;
                self.on_links(link, *at, *until, |link| {
                    [Fault::LinkDown { link, detection }, Fault::LinkUp { link, detection }]
                })
            }
            FaultSection::Flap { link, at, period, down, count, detection } => {
                let down = flap(period.0, down.map(|down| down.0), *count)?;
                for index in 0..u64::from(*count) {
                    let (from, detection) = (at.0 + period.0 * index, detection.0);
                    self.on_links(link, Written(from), Some(Written(from + down)), |link| {
                        [Fault::LinkDown { link, detection }, Fault::LinkUp { link, detection }]
                    })?;
                }
                Ok(())
            }
            FaultSection::Loss { link, chance: share, at, until } => {
                let (bad, usual) = (chance(*share, "chance")?, self.standing.loss);
                self.on_links(link, *at, *until, |link| {
                    [bad, usual].map(|chance| Fault::Loss { link, chance })
                })
            }
            FaultSection::Corruption { link, chance: share, at, until } => {
                let bad = chance(*share, "chance")?;
                self.on_links(link, *at, *until, |link| {
                    [bad, Chance::NEVER].map(|chance| Fault::Corruption { link, chance })
                })
            }
            FaultSection::BitErrors { link, chance: share, at, until } => {
                let (bad, usual) = (chance(*share, "chance")?, self.standing.bit_errors);
                self.on_links(link, *at, *until, |link| {
                    [bad, usual].map(|chance| Fault::BitErrors { link, chance })
                })
            }
            FaultSection::SlowLink { link, share, at, until } => {
                let rates = [parts(*share)?, WHOLE as u32];
                self.on_links(link, *at, *until, |link| rates.map(|rate| Fault::SlowLink { link, rate }))
            }
            FaultSection::SlowNic { host, share, at, until } => {
                let rates = [parts(*share)?, WHOLE as u32];
                let host = self.host(host, "host")?;
                self.between(*at, *until, rates.map(|rate| Fault::SlowHost { host, rate }))
            }
            // What is inside servers is known when those are there: see `slow_gpus` and `damage`. What happens to jobs is
            // no business of the network.
            FaultSection::SlowGpu { .. }
            | FaultSection::NvlinkDown { .. }
            | FaultSection::PcieDown { .. }
            | FaultSection::WrongNuma { .. }
            | FaultSection::HotExpert { .. }
            | FaultSection::LostGpu { .. }
            | FaultSection::Crash { .. } => Ok(()),
            FaultSection::LosePacket { from, to, nth, psn, at } => {
                let host = self.host(from, "from")?;
                let target = to.as_ref().map(|to| self.host(to, "to")).transpose()?;
                let which = which_packet(*nth, *psn, target.is_some())?;
                self.faults.push((Time::ZERO + at.0, Fault::LosePacket { host, target, which }));
                Ok(())
            }
            FaultSection::PauseStorm { .. } | FaultSection::WrongClass { .. } if self.is_infiniband => {
                let message = "this fault is about pause frames, which an InfiniBand link has not: slow-nic has a host give credits slowly";
                Err(ScenarioError::new(message).at("kind"))
            }
            FaultSection::PauseStorm { host, at, until } => {
                let host = self.host(host, "host")?;
                self.between(*at, *until, [Fault::PauseStorm { host }, Fault::PauseStormEnd { host }])
            }
            FaultSection::WrongClass { lossless, switch, towards, at, until } => {
                lossless.check().map_err(|error| error.at("lossless"))?;
                let ports = self.ports(switch.as_deref(), towards.as_deref())?;
                let masks = [lossless.mask(), self.lossless];
                let faults = masks.map(|priorities| Fault::Lossless { ports, priorities });
                self.between(*at, *until, faults)
            }
        }
    }

    fn host(&self, name: &HostName, key: &str) -> Result<u32, ScenarioError> {
        name.find(self.graph).map_err(|error| error.at(key))
    }

    /// The first of `pair` at `at` on each of the links, the second at `until`.
    fn on_links(
        &mut self,
        links: &LinkName,
        at: Written<Span>,
        until: Option<Written<Span>>,
        pair: impl Fn(u32) -> [Fault; 2],
    ) -> Result<(), ScenarioError> {
        for link in links.find(self.graph).map_err(|error| error.within("link"))? {
            self.between(at, until, pair(link))?;
        }
        Ok(())
    }

    fn between(
        &mut self,
        at: Written<Span>,
        until: Option<Written<Span>>,
        pair: [Fault; 2],
    ) -> Result<(), ScenarioError> {
        self.faults.extend(order(at, until)?.zip(pair));
        Ok(())
    }

    fn ports(&self, switch: Option<&str>, towards: Option<&str>) -> Result<Ports, ScenarioError> {
        let Some(switch) = switch else {
            return match towards {
                None => Ok(Ports::All),
                Some(_) => Err(ScenarioError::new("`towards` names a port of a switch: say which `switch`")
                    .at("towards")),
            };
        };
        let number = names::switch(self.graph, switch).map_err(|error| error.at("switch"))?;
        let Some(towards) = towards else { return Ok(Ports::Switch(number)) };
        let ends = LinkName::Ends(switch.to_owned(), towards.to_owned());
        match ends.find(self.graph).map_err(|error| error.at("towards"))?.as_slice() {
            [link] => Ok(Ports::Link { switch: number, link: *link }),
            links => Err(ScenarioError::new(format!(
                "{} links join {switch} and {towards}: one port cannot be told from the others",
                links.len()
            ))
            .at("towards")),
        }
    }
}

/// How long a flapping link stays down each time.
fn flap(period: Span, down: Option<Span>, count: u32) -> Result<Span, ScenarioError> {
    if count == 0 || count > FLAPS_MAX {
        let message = format!("a link flaps 1 to {FLAPS_MAX} times, not {count}");
        return Err(ScenarioError::new(message).at("count"));
    }
    let down = down.unwrap_or(period / 2);
    if down == Span::ZERO || down >= period {
        let message =
            format!("a link that is down for {down} of every {period} does not flap: down < period");
        return Err(ScenarioError::new(message).at(if down == Span::ZERO { "period" } else { "down" }));
    }
    Ok(down)
}

fn which_packet(nth: Option<u64>, psn: Option<u32>, has_target: bool) -> Result<WhichPacket, ScenarioError> {
    let wrong = |key: &str, message: &str| Err(ScenarioError::new(message).at(key));
    match (nth, psn) {
        (Some(0), None) => wrong("nth", "packets are counted from 1"),
        (Some(nth), None) => Ok(WhichPacket::Nth(nth)),
        (None, Some(psn)) if psn > Psn::MASK => {
            wrong("psn", "a sequence number has 24 bits: at most 16777215")
        }
        (None, Some(_)) if !has_target => {
            wrong("psn", "sequence numbers belong to a connection: say `to` whom it goes")
        }
        (None, Some(psn)) => Ok(WhichPacket::Psn(Psn::new(psn))),
        (None, None) => wrong("kind", "which packet is lost? Give `nth`, counted from 1, or `to` and `psn`"),
        (Some(_), Some(_)) => wrong("psn", "a packet is named by `nth` or by `psn`, not by both"),
    }
}

fn chance(share: f64, key: &str) -> Result<Chance, ScenarioError> {
    Chance::of(share).ok_or_else(|| {
        ScenarioError::new(format!("{share} is no probability: write a number from 0 to 1, such as 0.001"))
            .at(key)
    })
}

/// A share of a rate in millionths.
fn parts(share: f64) -> Result<u32, ScenarioError> {
    if !(1.0 / WHOLE..=1.0).contains(&share) {
        let message =
            format!("{share} is no share of a rate: write a number up to 1, such as 0.25 for a quarter");
        return Err(ScenarioError::new(message).at("share"));
    }
    Ok((share * WHOLE) as u32)
}
