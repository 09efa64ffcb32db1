//! The k-ary fat-tree (Al-Fares, Loukissas and Vahdat, SIGCOMM 2008).

use railnet_core::Ratio;

use super::{BuildError, LinkSpec, Place, Plan, Size, impossible, product};
use crate::graph::{FabricGraph, Vertex};

/// A fat-tree of switches with `k` ports.
///
/// Three tiers: k pods of k/2 edge and k/2 aggregation switches, (k/2)² core switches, k³/4 hosts. Two tiers: k
/// leaves, k/2 spines, k²/2 hosts. Host ids count edge switch by edge switch, so hosts i and i+1 are neighbours.
///
/// An oversubscribed tree has all its hosts and fewer switches on top: of the uplinks into the top tier only
/// 1/oversubscription is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FatTree {
    /// Ports of a switch.
    pub k: u32,
    /// 2 or 3.
    pub tiers: u8,
    /// What hosts can send over what the top tier carries: 1 is full, 2 is "two to one".
    pub oversubscription: Ratio,
}

impl FatTree {
    pub(super) const NAME: &'static str = "fat-tree";

    /// The full tree of three tiers.
    pub fn new(k: u32) -> Self {
        Self { k, tiers: 3, oversubscription: Ratio::ONE }
    }

    pub(super) fn build(&self, links: &LinkSpec) -> Result<FabricGraph, BuildError> {
        let Self { k, tiers, .. } = *self;
        if k == 0 {
            return Err(impossible(Self::NAME, "k is 0", "use an even number from 2"));
        }
        if k % 2 == 1 {
            let problem = format!("k = {k} is odd, but half of a switch's ports face up");
            let remedy = match k {
                1 => "use 2".to_owned(),
                _ => format!("use {} or {}", k - 1, u64::from(k) + 1),
            };
            return Err(impossible(Self::NAME, problem, remedy));
        }
        let half = k / 2;
        let size = match tiers {
            2 => Size { hosts: product(&[k, half]), links: product(&[k, k]), ports: u64::from(k) },
            3 => {
                let hosts = product(&[k, half, half]);
                Size { hosts, links: hosts.saturating_mul(3), ports: u64::from(k) }
            }
            _ => return Err(impossible(Self::NAME, format!("{tiers} tiers"), "use 2 or 3")),
        };
        size.check(Self::NAME)?;
        let uplinks = self.top_uplinks(half)?;
        Ok(if tiers == 2 { two_tiers(k, uplinks, links) } else { three_tiers(k, uplinks, links) })
    }

    /// How many of the `half` uplinks into the top tier there are.
    fn top_uplinks(&self, half: u32) -> Result<u32, BuildError> {
        let ratio = self.oversubscription;
        let scaled = u128::from(half) * u128::from(ratio.denominator());
        let numerator = u128::from(ratio.numerator());
        if numerator > 0
            && scaled.is_multiple_of(numerator)
            && (1..=u128::from(half)).contains(&(scaled / numerator))
        {
            return Ok((scaled / numerator) as u32);
        }
        let problem = if ratio < Ratio::ONE {
            format!("an oversubscription of {ratio} needs more uplinks than the {half} there are")
        } else {
            format!("an oversubscription of {ratio} does not leave a whole number of the {half} uplinks")
        };
        let possible: Vec<_> = (1..=half.min(8))
            .map(|divisor| Ratio::new(half.into(), (half + 1 - divisor).into()).to_string())
            .collect();
        let more = if half > 8 { format!(", ..., {half}") } else { String::new() };
        Err(impossible(
            Self::NAME,
            problem,
            format!("possible with k = {}: {}{more}", self.k, possible.join(", ")),
        ))
    }
}

fn two_tiers(k: u32, uplinks: u32, links: &LinkSpec) -> FabricGraph {
    let mut plan = Plan::new(links);
    let leaves: Vec<_> = (0..k).map(|id| plan.graph.switch(format!("leaf{id}"), 1, 0)).collect();
    let spines: Vec<_> = (0..uplinks).map(|id| plan.graph.switch(format!("spine{id}"), 2, 0)).collect();
    attach_hosts(&mut plan, &leaves, k / 2);
    for leaf in &leaves {
        for spine in &spines {
            plan.link(*leaf, *spine, Place::Up);
        }
    }
    plan.finish()
}

fn three_tiers(k: u32, uplinks: u32, links: &LinkSpec) -> FabricGraph {
    let half = k / 2;
    let mut plan = Plan::new(links);
    let mut tier = |name: &str, tier: u8| -> Vec<Vertex> {
        let ids = (0..k * half).map(|id| (id / half, id % half));
        ids.map(|(pod, id)| plan.graph.switch(format!("{name}{pod}.{id}"), tier, pod)).collect()
    };
    let edges = tier("edge", 1);
    let aggregations = tier("agg", 2);
    let cores: Vec<_> =
        (0..half * uplinks).map(|id| plan.graph.switch(format!("core{id}"), 3, id / uplinks)).collect();
    attach_hosts(&mut plan, &edges, half);
    for (id, edge) in edges.iter().enumerate() {
        let pod = id / half as usize * half as usize;
        for aggregation in &aggregations[pod..pod + half as usize] {
            plan.link(*edge, *aggregation, Place::Up);
        }
    }
    for (id, aggregation) in aggregations.iter().enumerate() {
        let plane = id % half as usize * uplinks as usize;
        for core in &cores[plane..plane + uplinks as usize] {
            plan.link(*aggregation, *core, Place::Core);
        }
    }
    plan.finish()
}

fn attach_hosts(plan: &mut Plan<'_>, leaves: &[Vertex], each: u32) {
    for id in 0..leaves.len() as u32 * each {
        let host = plan.host(id);
        plan.link(host, leaves[(id / each) as usize], Place::Edge);
    }
}
