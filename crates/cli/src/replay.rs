//! `railnet replay`: recorded conversations, held again with Railnet's NIC in the place of each responder.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use railnet_nic::Behaviour;
use railnet_nic::testing::replay::{Conversation, Freedom, Report, replay};

use crate::{Outcome, Usage, input};

const EXAMPLES: &str = "\
The notes are a text with the two commands, `# server (ADDRESS): COMMAND` and `# client (ADDRESS): COMMAND`, and what \
they printed, under `## server output` and `## client output`. What they do not tell is learned from the capture.

Examples:
  railnet replay testdata/rxe/cm_rping.pcap testdata/rxe/cm_rping.txt
  railnet replay run.pcap                   learn everything from the capture
  railnet replay run.pcap run.txt --verbose every answer, recorded and ours";

/// The command line of `replay`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The capture to replay: pcap or pcapng, of both directions
    capture: PathBuf,
    /// The notes of how it was made
    notes: Option<PathBuf>,
    /// How the NIC behaves where implementations differ
    #[arg(long, value_enum, default_value = "rxe")]
    profile: Profile,
    /// Print every answer, recorded and ours
    #[arg(long)]
    verbose: bool,
}

/// Which behaviour the NIC has.
#[derive(Clone, Copy, ValueEnum)]
enum Profile {
    /// As Linux Soft-RoCE
    Rxe,
    /// As the InfiniBand specification
    Specification,
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let name = arguments.capture.display();
    let file = File::open(&arguments.capture)
        .map_err(|error| Usage(format!("cannot read {name}: {}", input::reason(&error))))?;
    if file.metadata().is_ok_and(|metadata| metadata.is_dir()) {
        return Err(Usage(format!("{name} is a directory: name a pcap or pcapng file")).into());
    }
    let notes = match &arguments.notes {
        Some(path) => Some(input::text(path)?),
        None => None,
    };
    let behaviour = match arguments.profile {
        Profile::Rxe => Behaviour::RXE,
        Profile::Specification => Behaviour::SPECIFICATION,
    };
    let report = replay(file, notes.as_deref(), behaviour)
        .map_err(|error| Usage::of(anyhow::Error::from(error).context(format!("cannot replay {name}"))))?;
    print(out, &report, arguments.verbose)?;
    Ok(if report.is_equal() { Outcome::Done } else { Outcome::CheckFailed })
}

fn print(out: &mut dyn Write, report: &Report, verbose: bool) -> anyhow::Result<()> {
    for conversation in &report.conversations {
        print_conversation(out, conversation, verbose)?;
    }
    let skipped = [
        (report.management, "management datagrams (queue pair 1): the connection manager's, not the NIC's"),
        (report.other, "packets that are not RoCEv2"),
        (report.malformed, "malformed packets"),
    ];
    for (count, what) in skipped {
        if count > 0 {
            writeln!(out, "skipped {count} {what}")?;
        }
    }
    let all = &report.conversations;
    let sum = |count: fn(&Conversation) -> usize| all.iter().map(count).sum::<usize>();
    writeln!(
        out,
        "{}: {} packets, {} conversations, {} requests fed, {} left out, {} of {} answers equal, {} completions \
         compared, {} mismatches",
        if report.is_equal() { "equal" } else { "DIFFERENT" },
        report.packets,
        all.len(),
        sum(|one| one.requests),
        sum(|one| one.left_out.len()),
        sum(|one| one.equal),
        sum(|one| one.answers),
        sum(|one| one.completions),
        sum(|one| one.findings.len()),
    )?;
    if verbose {
        for (freedom, _) in report.freedoms().iter() {
            writeln!(out, "freedom: {}: {}", Freedom::text(freedom), freedom.reason())?;
        }
    }
    Ok(())
}

fn print_conversation(out: &mut dyn Write, conversation: &Conversation, verbose: bool) -> anyhow::Result<()> {
    let Conversation { responder, requester, queue_pair, peer, .. } = conversation;
    let service = conversation.service_name();
    write!(out, "{service} responder {responder} qp {queue_pair}, requester {requester}")?;
    match peer.value() {
        0 => writeln!(out)?,
        peer => writeln!(out, " qp {peer:#x}")?,
    }
    let Conversation { requests, left_out, answers, equal, completions, other_checks, .. } = conversation;
    let left = left_out.len();
    write!(out, "  {requests} requests fed, {left} left out; {answers} answers compared, {equal} equal")?;
    writeln!(out, "; {completions} completions and {other_checks} other facts compared")?;
    if !left_out.is_empty() {
        let numbers: Vec<String> = left_out.iter().map(ToString::to_string).collect();
        writeln!(
            out,
            "  left out, for the answers show that they were not seen: packets {}",
            numbers.join(", ")
        )?;
    }
    writeln!(out, "  freedoms used: {}", conversation.freedoms)?;
    if verbose {
        for pair in &conversation.pairs {
            let verdict = if pair.is_equal() { "equal" } else { "DIFFERENT" };
            writeln!(out, "  {verdict}: {pair}")?;
        }
    }
    for finding in &conversation.findings {
        writeln!(out, "  MISMATCH: {finding}")?;
    }
    Ok(())
}
