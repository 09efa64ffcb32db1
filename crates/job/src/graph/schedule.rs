//! In which order a stage works through microbatches and chunks.

use crate::parallel::Schedule;

/// One pass over one chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Turn {
    /// Whether it is a backward pass.
    pub is_backward: bool,
    /// Which chunk of the stage.
    pub chunk: u32,
    /// Which microbatch.
    pub microbatch: u32,
}

/// What a stage does one after the other. Interleaved schedules are Megatron's (core/pipeline_parallel/schedules.py): groups
/// of as many microbatches as there are stages go through all chunks before the next group.
pub fn turns(schedule: Schedule, stage: u32, stages: u32, microbatches: u32) -> Vec<Turn> {
    let chunks = schedule.chunks();
    let passes = microbatches * chunks;
    let turn = |number: u32, is_backward: bool| {
        if chunks == 1 {
            return Turn { is_backward, chunk: 0, microbatch: number };
        }
        let round = number % (stages * chunks);
        let chunk = if is_backward { chunks - 1 - round / stages } else { round / stages };
        Turn { is_backward, chunk, microbatch: number / (stages * chunks) * stages + number % stages }
    };
    let behind = stages - 1 - stage;
    let ahead = match schedule {
        Schedule::GPipe => passes,
        Schedule::OneForwardOneBackward | Schedule::Interleaved { chunks: 1 } => behind,
        // With one group there is no steady state.
        Schedule::Interleaved { .. } if microbatches == stages => passes,
        Schedule::Interleaved { .. } => 2 * behind + (chunks - 1) * stages,
    };
    let ahead = ahead.min(passes);
    let forward = (0..ahead).map(|number| turn(number, false));
    let steady = (ahead..passes).flat_map(|number| [turn(number, false), turn(number - ahead, true)]);
    let backward = (passes - ahead..passes).map(|number| turn(number, true));
    forward.chain(steady).chain(backward).collect()
}
