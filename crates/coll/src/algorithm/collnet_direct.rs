//! CollNetDirect: every rank gives each head of its node its slice, heads reduce it and the switches of the network
//! reduce between the heads of a rail (NCCL 2.30 device/all_reduce.h, transport/coll_net.cc).

use super::heads::{Between, Heads, Inside, Layout};
use super::nvls::over_rails;
use super::split::{Cells, chunk};
use super::{Arc, BuildError, Call, Choice, Collective, Schedule, Wiring};

pub(super) fn build(call: &Call, choice: &Choice, wiring: &Wiring) -> Result<Schedule, BuildError> {
    check_nodes(choice, wiring)?;
    let (ranks, fifo) = (wiring.ranks(), choice.fifo(false));
    let layout = Layout::new(choice, wiring, wiring.heads.clone())?;
    let chunk = chunk(call, choice, &fifo);
    if call.collective != Collective::AllReduce {
        return over_rails(call, choice, layout, Inside::Direct, chunk);
    }
    let cells = Cells::new(call, choice, ranks);
    let program = Heads {
        layout,
        inside: Inside::Direct,
        between: Between::Network,
        grain: cells.grain(),
        chunk,
        shares: cells.shares(call.block_of(0, ranks)),
    };
    let groups = program.groups();
    let schedule = choice.schedule(call, ranks, fifo, program.channels(), Arc::new(program));
    Ok(Schedule { groups, ..schedule })
}

pub(super) fn check_nodes(choice: &Choice, wiring: &Wiring) -> Result<(), BuildError> {
    if wiring.nodes.len() > 1 {
        return Ok(());
    }
    let reason = "there is one node, and so no network that could reduce: it takes two or more".to_owned();
    Err(BuildError::Impossible { algorithm: choice.algorithm, reason })
}
