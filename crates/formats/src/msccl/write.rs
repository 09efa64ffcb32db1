//! A schedule as a file.

use std::fmt::Write as _;

use railnet_coll::{Buffer, Collective, Counts, Schedule};
use railnet_core::Rank;

use super::lower::{Cell, PlannedGpu, PlannedStep, lower};
use super::refusal::WriteError;
use super::{COLLECTIVES, has_blocks_in, has_blocks_out};

/// Writes a schedule. The file is for all sizes, but it has the chunks of this one: a size that takes one loop and that
/// the ranks divide gives the shortest file.
pub fn write(schedule: &Schedule) -> Result<String, WriteError> {
    let call = &schedule.call;
    let no_word = |reason: &str| Err(WriteError::NoWord(reason.to_owned()));
    let Some((name, _)) = COLLECTIVES.into_iter().find(|(_, one)| *one == call.collective) else {
        return no_word(&format!("it knows no {}", call.collective));
    };
    let Counts::Each(count) = call.counts else {
        return no_word("blocks of different lengths");
    };
    if count == 0 {
        return no_word("a collective without data has no chunks");
    }
    let (gpus, cell, channels) = lower(schedule)?;
    let ranks = schedule.ranks;
    let has_blocks = has_blocks_in(call.collective) || has_blocks_out(call.collective);
    let per_loop = count / cell * if has_blocks { u64::from(ranks) } else { 1 };
    let mut text = String::new();
    let _ = writeln!(
        text,
        "<!-- {} {} among {ranks} ranks, written by Railnet. -->",
        schedule.algorithm, call.collective
    );
    if !schedule.groups.is_empty() {
        let _ = writeln!(
            text,
            "<!-- MSCCL has no switches that reduce: each such reduction is an exchange among the ranks around the switch. -->"
        );
    }
    let _ = writeln!(
        text,
        r#"<algo name="{} {} {ranks}" proto="{}" nchannels="{channels}" nchunksperloop="{per_loop}" ngpus="{ranks}" coll="{name}" inplace="{}"{} minBytes="0" maxBytes="{}">"#,
        schedule.algorithm,
        call.collective,
        schedule.protocol,
        u8::from(call.in_place),
        root(call.collective, call.root),
        1u64 << 40,
    );
    for (rank, gpu) in (0..).zip(&gpus) {
        let (input, output) = (call.input_count(Rank(rank), ranks), call.output_count(Rank(rank), ranks));
        write_gpu(&mut text, rank, gpu, [input / cell, output / cell]);
    }
    text.push_str("</algo>\n");
    Ok(text)
}

/// MSCCL's readers pass over what they do not know, and this one reads it.
fn root(collective: Collective, root: Rank) -> String {
    if collective.has_root() { format!(r#" root="{}""#, root.0) } else { String::new() }
}

fn write_gpu(text: &mut String, rank: u32, gpu: &PlannedGpu, chunks: [u64; 2]) {
    let [input, output] = chunks;
    let _ = writeln!(
        text,
        r#"  <gpu id="{rank}" i_chunks="{input}" o_chunks="{output}" s_chunks="{}">"#,
        gpu.scratch
    );
    for (number, block) in gpu.blocks.iter().enumerate() {
        let peer = |peer: Option<u32>| peer.map_or("-1".to_owned(), |peer| peer.to_string());
        let (send, receive) = (peer(block.send), peer(block.receive));
        let _ = writeln!(
            text,
            r#"    <tb id="{number}" send="{send}" recv="{receive}" chan="{}">"#,
            block.channel
        );
        for (number, step) in block.steps.iter().enumerate() {
            write_step(text, number, step);
        }
        text.push_str("    </tb>\n");
    }
    text.push_str("  </gpu>\n");
}

fn write_step(text: &mut String, number: usize, step: &PlannedStep) {
    let cell = |cell: Option<Cell>| {
        let cell = cell.unwrap_or(Cell { buffer: Buffer::Input, index: 0 });
        let buffer = match cell.buffer {
            Buffer::Input => "i",
            Buffer::Output => "o",
            Buffer::Scratch => "s",
        };
        (buffer, cell.index)
    };
    let ((source, from), (target, to)) = (cell(step.source), cell(step.target));
    let (block, awaited) = step
        .after
        .map_or(("-1".to_owned(), "-1".to_owned()), |(block, step)| (block.to_string(), step.to_string()));
    let _ = writeln!(
        text,
        r#"      <step s="{number}" type="{}" srcbuf="{source}" srcoff="{from}" dstbuf="{target}" dstoff="{to}" cnt="{}" depid="{block}" deps="{awaited}" hasdep="{}"/>"#,
        step.kind,
        step.count,
        u8::from(step.is_awaited),
    );
}
