//! `railnet verbs`: one RDMA operation between two NICs, and everything that happens on the way; and how connections are set up
//! ([`connect`]).
//!
//! [`world`] runs it and records what the NICs, the wire and the applications did; [`steps`] puts the record into
//! words; [`verdict`] compares the outcome with what had to come of it; [`ladder`] prints.

mod capture;
mod connect;
mod connect_screen;
mod ladder;
mod steps;
mod verdict;
mod words;
mod world;

use std::io::Write;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{ArgMatches, Args, Command, FromArgMatches, ValueEnum};
use railnet_core::Bytes;
use railnet_nic::{Behaviour, Mtu};
use railnet_wire::Framing;

use crate::Outcome;
use crate::files::Output;

const EXAMPLES: &str = "\
Examples:
  railnet verbs write                          one WRITE, from the post to the poll
  railnet verbs read --bytes 64KiB --mtu 4096  a READ of 16 packets
  railnet verbs send --no-receive              B is late with its receive: A has to wait and try again
  railnet verbs write --bytes 8KiB --drop-psn 2
                                               the third packet is lost on the way
  railnet verbs write --pcap write.pcapng      keep the packets for Wireshark
  railnet verbs write --framing infiniband     the same with the headers of InfiniBand links
  railnet verbs connect                        PD, MR, CQ and QPs, the exchange, and the states RESET to RTS";

/// The longest message: every packet of it is kept and explained.
const BYTES_MAX: u64 = 16 << 20;

/// What to run, as it is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Subject {
    /// A puts bytes into B's memory
    Write,
    /// A takes bytes out of B's memory
    Read,
    /// A sends a message into a buffer that B has posted
    Send,
    /// A WRITE that also uses up a receive of B, to hand over 32 bits
    WriteImm,
    /// A adds to 64 bits of B's memory and gets the old value (fetch-and-add)
    Atomic,
    /// A and B make their objects and connect; then A writes on several queue pairs with one completion queue
    Connect,
}

impl Subject {
    /// The operation, where it is one.
    fn operation(self) -> Option<Kind> {
        match self {
            Self::Write => Some(Kind::Write),
            Self::Read => Some(Kind::Read),
            Self::Send => Some(Kind::Send),
            Self::WriteImm => Some(Kind::WriteImm),
            Self::Atomic => Some(Kind::Atomic),
            Self::Connect => None,
        }
    }
}

/// An operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Write,
    Read,
    Send,
    WriteImm,
    Atomic,
}

impl Kind {
    /// Its name on the command line.
    fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
            Self::Send => "send",
            Self::WriteImm => "write-imm",
            Self::Atomic => "atomic",
        }
    }

    /// Whether it uses up a receive of B.
    fn consumes_receive(self) -> bool {
        matches!(self, Self::Send | Self::WriteImm)
    }
}

/// How the NICs behave where real ones differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Profile {
    /// As the InfiniBand specification has it
    Spec,
    /// As Linux Soft-RoCE does
    Rxe,
}

/// What carries the packets, as it is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum FramingName {
    /// UDP and IP on Ethernet
    #[value(name = "rocev2")]
    RoceV2,
    /// A global route header on Ethernet
    #[value(name = "rocev1")]
    RoceV1,
    /// A local route header on InfiniBand links
    Infiniband,
}

impl FramingName {
    fn framing(self) -> Framing {
        match self {
            Self::RoceV2 => Framing::RoceV2,
            Self::RoceV1 => Framing::RoceV1,
            Self::Infiniband => Framing::Infiniband,
        }
    }
}

/// What goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Trouble {
    None,
    WrongKey,
    NoPermission,
    OutOfRange,
    NoReceive,
    /// The packet so many sequence numbers after the first is lost, once.
    Drop(u32),
}

/// The command line as it is written.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
struct Raw {
    /// The operation, or the set-up of a connection
    #[arg(value_enum, value_name = "OPERATION")]
    subject: Subject,
    /// How much data: a number of bytes, or with a unit such as 64KiB [default: 2048; atomic: 8; connect: 1024]
    #[arg(long, value_name = "N", value_parser = parse_bytes)]
    bytes: Option<u32>,
    /// Payload bytes of a full packet (path MTU): 256, 512, 1024, 2048 or 4096
    #[arg(long, value_name = "N", default_value = "1024", value_parser = parse_mtu)]
    mtu: Mtu,
    /// A uses a remote key that B never gave
    #[arg(long, group = "trouble")]
    wrong_rkey: bool,
    /// B's memory region does not grant this kind of access
    #[arg(long, group = "trouble")]
    no_permission: bool,
    /// The remote range runs past the end of B's memory region
    #[arg(long, group = "trouble")]
    out_of_range: bool,
    /// B has no receive posted until it has said so three times
    #[arg(long, group = "trouble")]
    no_receive: bool,
    /// Lose the first transmission of packet N, counted from 0 (for read: of the answer)
    #[arg(long, value_name = "N", group = "trouble")]
    drop_psn: Option<u32>,
    /// Where NICs differ: do as the specification says, or as Linux Soft-RoCE does
    #[arg(long, value_enum, default_value = "spec")]
    behaviour: Profile,
    /// What carries the packets
    #[arg(long, value_enum, default_value = "rocev2")]
    framing: FramingName,
    /// Where data, keys and sequence numbers come from
    #[arg(long, value_name = "S", default_value = "1", value_parser = parse_seed)]
    seed: u64,
    /// connect: connections between A and B, 1 to 16 [default: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16))]
    queue_pairs: Option<u32>,
    /// connect: one WRITE of so many makes a completion, 1 to 64 [default: 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    signal_every: Option<u32>,
    /// Keep the packets in a pcapng file
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Overwrite FILE if it is there
    #[arg(long, requires = "pcap")]
    force: bool,
    /// Print every packet, however many there are
    #[arg(long)]
    all: bool,
    /// Print one JSON object per step, for tools
    #[arg(long, conflicts_with = "all")]
    json: bool,
}

/// What to run, under which conditions.
#[derive(Clone, Copy, Debug)]
struct Plan {
    kind: Kind,
    bytes: u32,
    mtu: Mtu,
    trouble: Trouble,
    behaviour: Behaviour,
    is_rxe: bool,
    framing: Framing,
    seed: u64,
}

impl Plan {
    /// How many packets carry the message.
    fn packets(&self) -> u32 {
        match self.kind {
            Kind::Atomic => 1,
            _ => self.bytes.div_ceil(self.mtu.bytes()).max(1),
        }
    }
}

/// The command line of `verbs`, checked.
pub(crate) struct Arguments {
    what: What,
    pcap: Option<PathBuf>,
    force: bool,
    all: bool,
    json: bool,
}

/// What was asked for.
enum What {
    Operation(Plan),
    Connect(connect::Plan),
}

impl Args for Arguments {
    fn augment_args(command: Command) -> Command {
        Raw::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Raw::augment_args_for_update(command)
    }
}

impl FromArgMatches for Arguments {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Raw::from_arg_matches(matches)?.resolve()
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

fn conflict(message: String) -> clap::Error {
    clap::Error::raw(ErrorKind::ArgumentConflict, message)
}

impl Raw {
    /// Checks what no single option can know.
    fn resolve(self) -> Result<Arguments, clap::Error> {
        let Some(kind) = self.subject.operation() else { return self.resolve_connect() };
        let of_connect = [("--queue-pairs", self.queue_pairs), ("--signal-every", self.signal_every)];
        if let Some((option, _)) = of_connect.iter().find(|(_, given)| given.is_some()) {
            return Err(conflict(format!(
                "{option} cannot be used with {}: it runs one operation on one queue pair (try connect)",
                kind.name()
            )));
        }
        if self.behaviour == Profile::Rxe && self.framing == FramingName::Infiniband {
            return Err(conflict(
                "--behaviour rxe cannot be used with --framing infiniband: Soft-RoCE has no such links"
                    .to_owned(),
            ));
        }
        let trouble = self.trouble();
        let option = match trouble {
            Trouble::WrongKey => "--wrong-rkey",
            Trouble::NoPermission => "--no-permission",
            Trouble::OutOfRange => "--out-of-range",
            _ => "",
        };
        if kind == Kind::Send && !option.is_empty() {
            return Err(conflict(format!(
                "{option} cannot be used with send: a SEND names no address and no key of B, its data goes \
                 where B's receive says (try write, read, write-imm or atomic)"
            )));
        }
        if trouble == Trouble::NoReceive && !kind.consumes_receive() {
            return Err(conflict(format!(
                "--no-receive cannot be used with {}: it needs no receive, so a missing one changes nothing \
                 (try send or write-imm)",
                kind.name()
            )));
        }
        let bytes = match (kind, self.bytes) {
            (Kind::Atomic, Some(bytes)) if bytes != 8 => {
                return Err(conflict(format!(
                    "--bytes {bytes} cannot be used with atomic: an atomic always works on 8 bytes"
                )));
            }
            (Kind::Atomic, _) => 8,
            (_, bytes) => bytes.unwrap_or(2048),
        };
        let plan = Plan {
            kind,
            bytes,
            mtu: self.mtu,
            trouble,
            behaviour: match self.behaviour {
                Profile::Spec => Behaviour::SPECIFICATION,
                Profile::Rxe => Behaviour::RXE,
            },
            is_rxe: self.behaviour == Profile::Rxe,
            framing: self.framing.framing(),
            seed: self.seed,
        };
        if let Trouble::Drop(packet) = trouble
            && packet >= plan.packets()
        {
            let packets = plan.packets();
            let (those, last) = (if packets == 1 { "packet" } else { "packets" }, packets - 1);
            return Err(conflict(format!(
                "--drop-psn {packet}: {bytes} B at an MTU of {} are {packets} {those}, so the last one that can \
                 be lost is {last}",
                plan.mtu.bytes()
            )));
        }
        let what = What::Operation(plan);
        Ok(Arguments { what, pcap: self.pcap, force: self.force, all: self.all, json: self.json })
    }

    /// Checks the options of `connect`.
    fn resolve_connect(self) -> Result<Arguments, clap::Error> {
        let others = [
            ("--pcap", self.pcap.is_some()),
            ("--all", self.all),
            ("--behaviour rxe", self.behaviour == Profile::Rxe),
            ("--framing", self.framing != FramingName::RoceV2),
            ("what goes wrong (--wrong-rkey, --drop-psn and their like)", self.trouble() != Trouble::None),
        ];
        if let Some((option, _)) = others.iter().find(|(_, is_given)| *is_given) {
            return Err(conflict(format!(
                "{option} cannot be used with connect: it is about one operation (try write)"
            )));
        }
        let plan = connect::Plan {
            queue_pairs: self.queue_pairs.unwrap_or(2),
            signal_every: self.signal_every.unwrap_or(4),
            bytes: self.bytes.unwrap_or(1024),
            mtu: self.mtu,
            seed: self.seed,
        };
        if plan.bytes == 0 || plan.region() > BYTES_MAX {
            return Err(conflict(format!(
                "--bytes {}: {} WRITEs of it are {} B, and memory here is 1 to {BYTES_MAX} B",
                plan.bytes,
                plan.queue_pairs * plan.messages(),
                plan.region()
            )));
        }
        Ok(Arguments { what: What::Connect(plan), pcap: None, force: false, all: false, json: self.json })
    }

    /// The one thing that goes wrong: clap lets no two through.
    fn trouble(&self) -> Trouble {
        match self.drop_psn {
            Some(packet) => Trouble::Drop(packet),
            None if self.wrong_rkey => Trouble::WrongKey,
            None if self.no_permission => Trouble::NoPermission,
            None if self.out_of_range => Trouble::OutOfRange,
            None if self.no_receive => Trouble::NoReceive,
            None => Trouble::None,
        }
    }
}

/// The option is called bytes, so a bare number is one of bytes.
fn parse_bytes(text: &str) -> Result<u32, String> {
    let bytes = if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        text.parse().map_or(Bytes(u64::MAX), Bytes)
    } else {
        text.parse::<Bytes>().map_err(|error| error.to_string())?
    };
    if bytes.0 > BYTES_MAX {
        return Err(format!("at most {} here: every packet of the message is kept", Bytes(BYTES_MAX)));
    }
    Ok(bytes.0 as u32)
}

fn parse_mtu(text: &str) -> Result<Mtu, String> {
    let found = text.parse().ok().and_then(Mtu::from_bytes);
    found.ok_or_else(|| "a path MTU is one of 256, 512, 1024, 2048, 4096".to_owned())
}

fn parse_seed(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|error| error.to_string())
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let plan = match &arguments.what {
        What::Operation(plan) => plan,
        What::Connect(plan) => return run_connect(plan, arguments.json, out),
    };
    // A file that may not be written is better known before than after.
    let output = Output::claim_given(arguments.pcap.as_deref(), arguments.force)?;
    let record = world::run(plan)?;
    let steps = steps::explain(&record);
    let verdict = verdict::judge(&record);
    if let Some(output) = output {
        capture::write(output, &record)?;
    }
    if arguments.json {
        ladder::print_json(out, &record, &steps, &verdict)?;
    } else {
        let colour = crate::terminal::has_colour(&std::io::stdout());
        let view = ladder::View { colour, all: arguments.all, pcap: arguments.pcap.as_deref() };
        view.print(out, &record, &steps, &verdict)?;
    }
    Ok(if verdict.is_good() { Outcome::Done } else { Outcome::CheckFailed })
}

fn run_connect(plan: &connect::Plan, json: bool, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let record = connect::run(plan)?;
    if json { connect_screen::print_json(out, &record) } else { connect_screen::print(out, &record) }?;
    Ok(if record.is_good() { Outcome::Done } else { Outcome::CheckFailed })
}
