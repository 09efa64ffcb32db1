//! NVLS: the NVLink switch reduces what the ranks of a node have for a head, and multicasts what a head has for them
//! (NCCL 2.30 device/all_reduce.h, transport/nvls.cc). Between nodes the switches of the network reduce too (SHARP).

use super::heads::{Between, Heads, Inside, Layout};
use super::rails::Rails;
use super::split::{Blocks, Cells, chunk};
use super::{Arc, BuildError, Call, Choice, Collective, Schedule, Wiring};

pub(super) fn build(call: &Call, choice: &Choice, wiring: &Wiring) -> Result<Schedule, BuildError> {
    check_switch(choice, wiring)?;
    let (ranks, fifo) = (wiring.ranks(), choice.fifo(false));
    let is_one_node = wiring.nodes.len() == 1;
    let heads = match call.collective {
        // Inside one node every rank can reduce and multicast for itself.
        Collective::AllGather | Collective::ReduceScatter if is_one_node => {
            wiring.nodes[0].iter().map(|rank| vec![*rank]).collect()
        }
        _ => wiring.heads.clone(),
    };
    let layout = Layout::new(choice, wiring, heads)?;
    let chunk = chunk(call, choice, &fifo);
    if call.collective == Collective::AllReduce {
        let cells = Cells::new(call, choice, ranks);
        let program = Heads {
            layout,
            inside: Inside::Switch,
            between: if is_one_node { Between::Nothing } else { Between::Network },
            grain: cells.grain(),
            chunk,
            shares: cells.shares(call.block_of(0, ranks)),
        };
        let groups = program.groups();
        let schedule = choice.schedule(call, ranks, fifo, program.channels(), Arc::new(program));
        return Ok(Schedule { groups, ..schedule });
    }
    over_rails(call, choice, layout, Inside::Switch, chunk)
}

/// AllGather or ReduceScatter where every rank is a head.
pub(super) fn over_rails(
    call: &Call,
    choice: &Choice,
    layout: Layout,
    inside: Inside,
    chunk: u64,
) -> Result<Schedule, BuildError> {
    if !layout.is_everybody_a_head() {
        let reason = format!("{} between nodes needs a rail for every rank", call.collective);
        return Err(BuildError::Impossible { algorithm: choice.algorithm, reason });
    }
    let ranks = layout.node_of.len() as u32;
    let program = Rails {
        layout,
        inside,
        collective: call.collective,
        in_place: call.in_place,
        blocks: Blocks::new(call, choice, ranks),
        chunk,
    };
    let (groups, channels) = (program.groups(), program.blocks.channels());
    let schedule = choice.schedule(call, ranks, choice.fifo(false), channels, Arc::new(program));
    Ok(Schedule { groups, ..schedule })
}

pub(super) fn check_switch(choice: &Choice, wiring: &Wiring) -> Result<(), BuildError> {
    if wiring.switch_reduces {
        return Ok(());
    }
    let reason = "the ranks of a node share no switch that reduces".to_owned();
    Err(BuildError::Impossible { algorithm: choice.algorithm, reason })
}
