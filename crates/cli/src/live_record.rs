//! `--record` and `--trace` of real ranks: what they called, and what their NICs sent, for whoever looks at it.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use railnet_formats::perfetto;
use railnet_formats::run_file::{Budget, LiveCall, LivePacket, LiveRank, RunFile, add_packets, live};
use railnet_live::calls::{self, Calls};
use railnet_wire::capture::Reader;
use railnet_wire::{Extended, Headers, Ip, Udp};

use crate::files::{self, Output};

/// Packets of each rank that are looked at, the first ones.
const PACKETS_MOST: u64 = 20_000;
/// The most ranks of a run whose files are read.
const RANKS_MAX: u32 = 1 << 16;
/// Bytes of the check sequence behind the payload.
const ICRC_BYTES: usize = 4;

#[derive(clap::Args, Clone)]
#[group(id = "live-recording")]
pub(crate) struct Options {
    /// Write what ranks called and, over RoCE, their first packets to a run file, for `railnet view`
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Write the calls of all ranks as a trace for ui.perfetto.dev
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

impl Options {
    /// Whether packets are wanted, too: a trace has none.
    pub(crate) const fn has_packets(&self) -> bool {
        self.record.is_some()
    }

    /// Whether anybody wants to see what happened.
    pub(crate) const fn is_on(&self) -> bool {
        self.record.is_some() || self.trace.is_some()
    }

    /// Says so before anything is run where the files could not be written.
    pub(crate) fn check(&self, force: bool) -> anyhow::Result<()> {
        for path in [&self.record, &self.trace].into_iter().flatten() {
            files::check(path, force)?;
        }
        Ok(())
    }

    /// Claims the files: in one process of those that take part.
    pub(crate) fn claim(&self, force: bool) -> anyhow::Result<Outputs> {
        let claim = |path: &Option<PathBuf>| Output::claim_given(path.as_deref(), force);
        Ok(Outputs { record: claim(&self.record)?, trace: claim(&self.trace)? })
    }

    /// Adds the packets of a folder to the record that ranks have written.
    pub(crate) fn add_packets(&self, folder: &Folder) -> anyhow::Result<()> {
        let Some(path) = &self.record else { return Ok(()) };
        let Ok(bytes) = std::fs::read(path) else { return Ok(()) };
        let mut run = RunFile::parse(&bytes).with_context(|| path.display().to_string())?;
        if folder.add_packets(&mut run)? {
            // It is the one that rank 0 has just written.
            Output::claim(path, true)?.write(|file| run.write(file))?;
        }
        Ok(())
    }
}

/// The files that were asked for.
pub(crate) struct Outputs {
    record: Option<Output>,
    trace: Option<Output>,
}

impl Outputs {
    pub(crate) fn write(self, run: &RunFile) -> anyhow::Result<()> {
        if let Some(output) = self.record {
            output.write(|file| run.write(file))?;
        }
        if let Some(output) = self.trace {
            output.write(|file| perfetto::write(run, file))?;
        }
        Ok(())
    }
}

/// The run of ranks that noted this.
pub(crate) fn assemble(name: &str, ranks: &[Calls]) -> RunFile {
    let call = |call: &calls::Call| LiveCall {
        communicator: (call.members.clone(), call.communicator),
        sequence: call.sequence,
        time_ns: (call.entered_ns, call.ended_ns),
        bytes: call.bytes,
        ends: (call.from, call.to),
        name: if call.is_failed { format!("{}, failed", call.name) } else { call.name.clone() },
    };
    let rank = |one: &Calls| LiveRank {
        host: one.group.clone(),
        process: one.process,
        conduits: one.conduits.clone(),
        calls: one.calls.iter().map(call).collect(),
        missing: one.missing,
    };
    live(name, &ranks.iter().map(rank).collect::<Vec<_>>())
}

/// The run of ranks that wrote their calls to files which begin with this name, as `RAILNET_RECORD` makes them, where there are
/// such files. The name of one of them stands for all.
pub(crate) fn of_files(path: &Path) -> Option<RunFile> {
    let name = path.file_name()?.to_str()?;
    let base = match rank_of(name) {
        Some((base, _)) => path.with_file_name(base),
        // A run file of that name is what is meant.
        None if path.exists() => return None,
        None => path.to_owned(),
    };
    let ranks = ranks_of(&base)?;
    Some(assemble(&base.display().to_string(), &noted(&base, ranks)))
}

/// A name without the rank at its end, and that rank.
fn rank_of(name: &str) -> Option<(&str, u32)> {
    let (base, rank) = name.rsplit_once(".rank")?;
    Some((base, rank.parse().ok()?))
}

/// How many ranks there were, by the files that begin with this name.
fn ranks_of(base: &Path) -> Option<u32> {
    let folder = base.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let wanted = base.file_name()?.to_str()?;
    let files =
        std::fs::read_dir(folder).ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let ranks = files.filter_map(|name| {
        let (_, rank) = rank_of(&name).filter(|(base, _)| *base == wanted)?;
        Some(read_calls(base, rank)?.ranks)
    });
    ranks.max()
}

/// What ranks wrote to files that begin with this name. Those that wrote nothing made no calls, as far as anybody knows.
fn noted(base: &Path, ranks: u32) -> Vec<Calls> {
    let nothing = |rank| Calls { rank, ranks, group: "?".to_owned(), ..Calls::default() };
    (0..ranks).map(|rank| read_calls(base, rank).unwrap_or_else(|| nothing(rank))).collect()
}

/// What a rank wrote; nothing where that is not whole or cannot be.
fn read_calls(base: &Path, rank: u32) -> Option<Calls> {
    let calls = Calls::parse(&std::fs::read_to_string(calls::path_of(base, rank)).ok()?)?;
    let is_one = |rank: u32| rank < calls.ranks;
    let is_possible = |call: &calls::Call| {
        call.members.iter().chain(&call.from).chain(&call.to).all(|member| is_one(*member))
    };
    let is_sound = calls.rank == rank && is_one(rank) && calls.ranks <= RANKS_MAX;
    (is_sound && calls.calls.iter().all(is_possible)).then_some(calls)
}

/// A folder in which ranks leave what they noted, gone when nobody needs it any more.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> anyhow::Result<Self> {
        let path = std::env::temp_dir().join(format!("railnet-record-{}", std::process::id()));
        std::fs::create_dir(&path)
            .with_context(|| format!("cannot make the directory {}", path.display()))?;
        Ok(Self(path))
    }

    /// What tells ranks to note packets.
    pub(crate) fn packet_variables(&self) -> Vec<(OsString, OsString)> {
        // Who captures packets wants all of them, in a file of their own.
        if std::env::var_os("RAILNET_PCAP").is_some() {
            return Vec::new();
        }
        vec![
            ("RAILNET_PCAP".into(), self.0.join("packets").into_os_string()),
            ("RAILNET_PCAP_MOST".into(), PACKETS_MOST.to_string().into()),
        ]
    }

    /// What tells ranks to note calls.
    pub(crate) fn call_variables(&self) -> Vec<(OsString, OsString)> {
        vec![("RAILNET_RECORD".into(), self.0.join("calls").into_os_string())]
    }

    /// What ranks noted of their calls.
    pub(crate) fn calls(&self, ranks: u32) -> Vec<Calls> {
        noted(&self.0.join("calls"), ranks)
    }

    /// Adds what NICs noted; whether there was anything.
    pub(crate) fn add_packets(&self, run: &mut RunFile) -> anyhow::Result<bool> {
        let ranks = run.meta["ranks"].as_array().map_or(0, Vec::len) as u32;
        let mut captures = Vec::new();
        for rank in 0..ranks {
            let path = calls::path_of(&self.0.join("packets"), rank);
            if path.exists() {
                captures.push((rank, read(&path).with_context(|| path.display().to_string())?));
            }
        }
        let (mut packets, mut is_all) = (Vec::new(), true);
        let homes: Vec<(SocketAddr, u32)> =
            captures.iter().filter_map(|(rank, capture)| Some((capture.home?, *rank))).collect();
        for (rank, capture) in captures {
            is_all &= (capture.packets.len() as u64) < PACKETS_MOST;
            for (at_ns, bytes) in capture.packets {
                packets.extend(understood(rank, at_ns, bytes, &homes));
            }
        }
        if packets.is_empty() {
            return Ok(false);
        }
        add_packets(run, &mut packets, Budget::default().packets, is_all);
        Ok(true)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What is left of it is in the way of nobody.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What a NIC noted: its address, and packets with their times in nanoseconds.
struct Capture {
    home: Option<SocketAddr>,
    packets: Vec<(u64, Vec<u8>)>,
}

fn read(path: &Path) -> anyhow::Result<Capture> {
    let mut reader = Reader::new(std::io::BufReader::new(std::fs::File::open(path)?))?;
    let mut packets = Vec::new();
    // A rank that was ended leaves a file that ends in the middle of a packet.
    while let Ok(Some(packet)) = reader.next_packet() {
        if let Some(at) = packet.timestamp {
            packets.push((at.seconds() * 1_000_000_000 + at.picoseconds() / 1_000, packet.bytes));
        }
    }
    let home = reader.interfaces().first().and_then(|interface| interface.name.as_deref()?.parse().ok());
    Ok(Capture { home, packets })
}

/// A packet of a NIC, from its IP header on; nothing where it goes to nobody who is known.
fn understood(rank: u32, at_ns: u64, bytes: Vec<u8>, homes: &[(SocketAddr, u32)]) -> Option<LivePacket> {
    let ip = Ip::parse(&bytes).ok()?;
    let udp = Udp::parse(bytes.get(ip.length()..)?).ok()?;
    let start = ip.length() + Udp::LENGTH;
    let parsed = Headers::parse(bytes.get(start..)?).ok()?;
    let target = SocketAddr::new(ip.network(&udp).target.to_ip(), udp.target_port);
    let (_, to) = homes.iter().find(|(home, _)| *home == target)?;
    let bth = parsed.headers.bth;
    let taken = start + parsed.length + parsed.pad + ICRC_BYTES;
    let verdict = match parsed.headers.extended {
        Extended::Aeth(aeth) => Some((aeth.syndrome.to_byte(), aeth.msn)),
        _ => None,
    };
    Some(LivePacket {
        at_ns,
        rank,
        to: *to,
        target: bth.destination.value(),
        psn: bth.psn.value(),
        opcode: bth.opcode as u8,
        is_answer: bth.opcode.is_response(),
        length: bytes.len().saturating_sub(taken) as u32,
        verdict,
        bytes,
    })
}
