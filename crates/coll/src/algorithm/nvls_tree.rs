//! NVLSTree: the NVLink switch reduces inside a node, and the heads of a rail are a double binary tree between nodes
//! (NCCL 2.30 device/all_reduce.h, graph/connect.cc). Channels take the two trees in turns.

use super::heads::{Between, Heads, Inside, Layout};
use super::nvls::check_switch;
use super::split::{Cells, chunk};
use super::{Arc, BuildError, Call, Choice, Schedule, Wiring};

pub(super) fn build(call: &Call, choice: &Choice, wiring: &Wiring) -> Result<Schedule, BuildError> {
    check_switch(choice, wiring)?;
    if wiring.nodes.len() == 1 {
        let reason = "there is one node, and a tree needs several: choose NVLS".to_owned();
        return Err(BuildError::Impossible { algorithm: choice.algorithm, reason });
    }
    let (ranks, fifo) = (wiring.ranks(), choice.fifo(false));
    let layout = Layout::new(choice, wiring, wiring.heads.clone())?;
    let cells = Cells::new(call, choice, ranks);
    let program = Heads {
        layout,
        inside: Inside::Switch,
        between: Between::Tree,
        grain: cells.grain(),
        chunk: chunk(call, choice, &fifo),
        shares: cells.shares(call.block_of(0, ranks)),
    };
    let groups = program.groups();
    let schedule = choice.schedule(call, ranks, fifo, program.channels(), Arc::new(program));
    Ok(Schedule { groups, ..schedule })
}
