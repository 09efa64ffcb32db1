//! The packets of the record as a pcapng file, each with a comment that says what it is.

use std::fs::File;
use std::io::BufWriter;

use anyhow::Context;
use railnet_wire::capture::{PcapngWriter, Timestamp};

use crate::files::Output;
use crate::links;

use super::words;
use super::world::{A, B, Record};

/// Writes all packets. Times are when a packet began to leave, in picoseconds of virtual time.
pub(super) fn write(output: Output, record: &Record) -> anyhow::Result<()> {
    let written = || -> anyhow::Result<()> {
        let mut writer = PcapngWriter::new(BufWriter::new(output.handle()?))?;
        let framing = record.plan.framing;
        let digits = PcapngWriter::<File>::PICOSECONDS;
        let ports = [
            writer.interface("A.nic0", links::link_type(framing), digits)?,
            writer.interface("B.nic0", links::link_type(framing), digits)?,
        ];
        for frame in &record.frames {
            let ways = [(A, B), (B, A)][frame.from];
            let mut comment = format!("{} to {}: ", words::host(ways.0), words::host(ways.1));
            if let Some((headers, length)) = words::headers_of(framing, &frame.frame) {
                comment += &words::packet(&headers, length);
                if let Some(extended) = words::extended(&headers) {
                    comment.push_str(" · ");
                    comment.push_str(&extended);
                }
            }
            if frame.lost {
                comment += " · LOST on the wire";
            }
            let time = Timestamp::new(0, frame.at.as_ps());
            let bytes = links::record(framing, time, &frame.frame);
            writer.write(ports[frame.from], time, &bytes, &[&comment])?;
        }
        writer.finish()?;
        Ok(())
    };
    written().with_context(|| format!("cannot write {}", output.name().display()))?;
    output.finish()
}
