//! NVLSTree: the NVLink switch reduces inside a node, and the heads of a rail are a double binary tree between nodes
//! (NCCL 2.30 device/all_reduce.h, graph/connect.cc). Channels take the two trees in turns.

use super::heads::{Between, Heads, Inside, Layout};
use super::nvls::check_switch;
use super::split::{Cells, chunk, stepped};
use super::{Arc, BuildError, Call, Choice, Schedule, Wiring};

pub(super) fn build(call: &Call, choice: &Choice, wiring: &Wiring) -> Result<Schedule, BuildError> {
    check_switch(choice, wiring)?;
    if wiring.nodes.len() == 1 {
        let reason = "there is one node, and a tree needs several: choose NVLS".to_owned();
        return Err(BuildError::Impossible { algorithm: choice.algorithm, reason });
    }
    let (ranks, fifo) = (wiring.ranks(), choice.fifo(false));
    let layout = Layout::new(choice, wiring, wiring.heads.clone())?;
    let at_once = u64::from(choice.channels.max(1)) * layout.many();
    let longest = if wiring.nodes.len() >= 4 { 64 << 10 } else { 128 << 10 };
    let usual = stepped(longest, at_once, call.bytes(ranks), &[(64 << 10, 4), (32 << 10, 1)]);
    let program = Heads {
        layout,
        inside: Inside::Switch,
        between: Between::Tree,
        count: call.block_of(0, ranks),
        chunk: chunk(call, choice, &fifo, Some(usual)),
        cells: Cells::new(call, choice, ranks),
    };
    let groups = program.groups();
    let schedule = choice.schedule(call, ranks, fifo, program.channels(), Arc::new(program));
    Ok(Schedule { groups, ..schedule })
}
