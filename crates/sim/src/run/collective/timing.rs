//! What a GPU and its helpers take besides moving bytes. All of it is NCCL's own figures (2.30.7, src/graph/tuning.cc), as
//! the tuner has them: nothing is fitted.

use railnet_coll::tuner::Constants;
use railnet_coll::{Algorithm, Protocol, Schedule};
use railnet_core::Span;

/// What joins two ranks, as far as latency goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Hop {
    /// NVLink.
    NvLink = 0,
    /// PCIe, or memory of the host.
    Pcie = 1,
}

/// Latencies of one cluster.
#[derive(Clone, Debug)]
pub(super) struct Timing {
    /// What the network costs a CPU each time it is involved; `None` where there are no GPUs whose data it would handle.
    net: Option<Span>,
}

impl Timing {
    /// No GPUs: data lies right behind the NIC, and nobody has to be told.
    pub(super) const BARE: Self = Self { net: None };

    /// GPUs beside CPUs that take so long for a message (`netOverhead`).
    pub(super) fn new(net_overhead_us: f32) -> Self {
        Self { net: Some(micros(net_overhead_us)) }
    }

    /// From the call to the first step.
    pub(super) fn launch(&self, schedule: &Schedule) -> Span {
        let Some(row) = self.net.and(row(schedule.algorithm)) else { return Span::ZERO };
        let constants = &Constants::NCCL;
        let protocol = schedule.protocol as usize;
        let whole = match schedule.algorithm {
            // NCCL charges these once, not for each step.
            Algorithm::Nvls | Algorithm::NvlsTree => constants.step[0][row][protocol],
            _ => constants.base[row][protocol],
        };
        micros(whole)
    }

    /// The least that it can take from the end of a call to the first step of the next one, among GPUs and without switches of
    /// the network that reduce.
    pub(super) fn least_reaction() -> Span {
        let Constants { base, step, .. } = &Constants::NCCL;
        let launch = Algorithm::TUNED.iter().enumerate().flat_map(|(row, algorithm)| match algorithm {
            Algorithm::Nvls | Algorithm::NvlsTree => step[0][row],
            _ => base[row],
        });
        // What NCCL has no figure for cannot be chosen.
        launch.filter(|value| *value > 0.0).map(micros).min().unwrap_or(Span::ZERO)
    }

    /// From the moment when a slot is filled to the moment when its receiver has seen that, inside a node.
    pub(super) fn local(&self, schedule: &Schedule, hop: Hop) -> Span {
        let Some(row) = self.net.and(row(schedule.algorithm)) else { return Span::ZERO };
        match schedule.algorithm {
            Algorithm::Nvls | Algorithm::NvlsTree => Span::ZERO,
            _ => micros(Constants::NCCL.step[hop as usize][row][schedule.protocol as usize]),
        }
    }

    /// From the moment when a slot is emptied to the moment when its sender has seen that, inside a node: what the least
    /// of all steps takes, a line with its flag.
    pub(super) fn credit(&self, hop: Hop) -> Span {
        let ring = Algorithm::Ring as usize;
        self.net
            .map_or(Span::ZERO, |_| micros(Constants::NCCL.step[hop as usize][ring][Protocol::Ll as usize]))
    }

    /// From the moment when a slot is filled to the moment when the CPU posts it.
    pub(super) fn post(&self) -> Span {
        self.net.unwrap_or(Span::ZERO)
    }

    /// From the moment when data has come from the network to the moment when the GPU has seen that. With LL and LL128 it
    /// watches the flags in the data; with Simple a CPU has to flush and to tell it. NCCL counts its overhead three times
    /// there, one of which is the sender's.
    pub(super) fn deliver(&self, schedule: &Schedule) -> Span {
        let told = match schedule.protocol {
            Protocol::Simple => self.net.unwrap_or(Span::ZERO) * 2,
            Protocol::Ll | Protocol::Ll128 => Span::ZERO,
        };
        told + self.local(schedule, Hop::NvLink)
    }
}

/// The row of an algorithm in NCCL's tables; what it has no row for runs like a ring.
fn row(algorithm: Algorithm) -> Option<usize> {
    let found = Algorithm::TUNED.iter().position(|one| *one == algorithm);
    found.or_else(|| Algorithm::TUNED.iter().position(|one| *one == Algorithm::Ring))
}

fn micros(value: f32) -> Span {
    Span::from_ps((f64::from(value) * 1e6) as u64)
}
