//! `railnet decode`: a line for every packet of a capture.

mod describe;
mod infiniband;
mod tcp;

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use railnet_wire::capture::{Packet, Reader, Timestamp, Undecodable};
use railnet_wire::{Frame, Framing};
use serde_json::{Map, Value};

use crate::{Outcome, Usage, input, report};
use describe::Fields;

const EXAMPLES: &str = "\
Examples:
  railnet decode run.pcapng                 a line per packet
  railnet decode run.pcapng --json          a JSON object per packet
  railnet decode run.pcapng --check         exit 1 when a packet is malformed or has a bad check sequence";

/// The command line of `decode`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The capture to read: pcap or pcapng
    file: PathBuf,
    /// Print one JSON object per line, with all fields
    #[arg(long)]
    json: bool,
    /// Exit with 1 when any RoCE or InfiniBand packet is malformed or has a bad check sequence
    #[arg(long)]
    check: bool,
}

/// How many packets of which kind there were.
#[derive(Default)]
struct Counts {
    packets: u64,
    roce: u64,
    infiniband: u64,
    bad_icrc: u64,
    bad_vcrc: u64,
    malformed: u64,
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let name = arguments.file.display();
    let file = File::open(&arguments.file)
        .map_err(|error| Usage(format!("cannot read {name}: {}", input::reason(&error))))?;
    if file.metadata().is_ok_and(|metadata| metadata.is_dir()) {
        return Err(Usage(format!("{name} is a directory: name a pcap or pcapng file")).into());
    }
    let mut reader = Reader::new(file).map_err(|error| {
        Usage(format!("cannot read {name} as a capture (record one with tcpdump -w or dumpcap): {error}"))
    })?;
    let mut counts = Counts::default();
    let mut start = None;
    while let Some(packet) = reader
        .next_packet()
        .map_err(|error| Usage(format!("{name}, after {} packets: {error}", counts.packets)))?
    {
        counts.packets += 1;
        let start = *start.get_or_insert(packet.timestamp);
        let frame = packet.frame();
        counts.add(&frame);
        let fields = describe::packet(&packet, &frame);
        if arguments.json {
            let interface = reader.interfaces().get(packet.interface as usize);
            let interface_name = interface.and_then(|interface| interface.name.as_deref());
            let mut object = capture_fields(counts.packets, &packet, start, interface_name);
            object.extend(fields.into_json());
            writeln!(out, "{}", Value::Object(object))?;
        } else {
            print_line(out, &packet, start, &fields)?;
        }
    }
    if !arguments.check {
        return Ok(Outcome::Done);
    }
    // The packets come first, the verdict after them.
    out.flush()?;
    report(&counts.summary());
    Ok(if counts.is_good() { Outcome::Done } else { Outcome::CheckFailed })
}

impl Counts {
    fn add(&mut self, frame: &Result<Frame<'_>, Undecodable>) {
        match frame {
            Ok(Frame::Roce(packet)) => {
                self.roce += 1;
                self.bad_icrc += u64::from(!packet.icrc.is_good());
            }
            Ok(Frame::Infiniband(packet)) => {
                let count = match packet.framing() {
                    Framing::Infiniband => &mut self.infiniband,
                    _ => &mut self.roce,
                };
                *count += 1;
                self.bad_icrc += u64::from(!packet.icrc.is_good());
                self.bad_vcrc += u64::from(packet.vcrc.is_some_and(|vcrc| !vcrc.is_good()));
            }
            Err(Undecodable::Malformed(_)) => self.malformed += 1,
            _ => {}
        }
    }

    fn summary(&self) -> String {
        let Self { packets, roce, infiniband, bad_icrc, bad_vcrc, malformed } = self;
        let verdict = if self.is_good() { "good" } else { "BAD" };
        let (of_links, bad_links) = match infiniband {
            0 => (String::new(), String::new()),
            _ => (format!(", {infiniband} InfiniBand"), format!(", {bad_vcrc} with a bad VCRC")),
        };
        format!(
            "{verdict}: {packets} packets, {roce} RoCE{of_links}, {bad_icrc} with a bad ICRC{bad_links}, {malformed} malformed"
        )
    }

    fn is_good(&self) -> bool {
        self.bad_icrc + self.bad_vcrc + self.malformed == 0
    }
}

/// Picoseconds since the first packet of the file; `None` where one of the two has no time.
fn elapsed_ps(packet: &Packet, start: Option<Timestamp>) -> Option<u64> {
    Some(packet.timestamp?.since(start?).as_ps())
}

fn print_line(
    out: &mut dyn Write,
    packet: &Packet,
    start: Option<Timestamp>,
    fields: &Fields,
) -> anyhow::Result<()> {
    match elapsed_ps(packet, start) {
        Some(ps) => {
            let time = format!("{}.{:06}", ps / 1_000_000, ps % 1_000_000);
            write!(out, "{time:>16} us  ")?;
        }
        None => write!(out, "{:>16}     ", "no time")?,
    }
    write!(out, "{}", fields.line())?;
    for comment in &packet.comments {
        // A file may hold anything: nothing in it may steer a terminal.
        write!(out, "  # {}", comment.escape_debug())?;
    }
    writeln!(out)?;
    Ok(())
}

/// What the capture itself says about a packet.
fn capture_fields(
    number: u64,
    packet: &Packet,
    start: Option<Timestamp>,
    interface_name: Option<&str>,
) -> Map<String, Value> {
    let mut object = Map::new();
    let mut insert = |name: &str, value: Value| object.insert(name.to_owned(), value);
    insert("packet", number.into());
    insert("time_ps", elapsed_ps(packet, start).into());
    insert("seconds", packet.timestamp.map(Timestamp::seconds).into());
    insert("picoseconds", packet.timestamp.map(Timestamp::picoseconds).into());
    insert("interface", packet.interface.into());
    insert("interface_name", interface_name.into());
    insert("bytes", packet.bytes.len().into());
    insert("original_bytes", packet.original_length.into());
    insert("comments", packet.comments.clone().into());
    object
}
