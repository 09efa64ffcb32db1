//! `--trace`: the calls of all ranks as they were timed, for ui.perfetto.dev.

use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use railnet_core::digest::Fold;
use railnet_formats::perfetto::{self, Slice, Track};
use railnet_live::launch::Launch;
use railnet_live::{Communicator, Conduit};

/// The calls of this rank, on a clock that all ranks share.
pub(super) struct Trace {
    /// When its clock began, and how far that of rank 0 was then, in nanoseconds.
    began: Instant,
    ahead_ns: u64,
    /// When each call began and ended, in nanoseconds.
    times: Vec<u64>,
    /// What each was, and its bytes: the same on all ranks.
    names: Vec<(String, u64)>,
}

/// What ranks tell of themselves: where they run, and how they reach the others.
const FACTS: usize = 2;

impl Trace {
    /// Clocks are set by the time of day: that of one machine is one clock, and those of several are as far apart as they are.
    pub(super) fn new(world: &Communicator) -> anyhow::Result<Self> {
        let began = Instant::now();
        let own = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos() as u64;
        let mut first = [own];
        world.broadcast(&mut first, 0)?;
        // Ranks that come later are ahead; earlier ones wait in the broadcast.
        Ok(Self { began, ahead_ns: own.saturating_sub(first[0]), times: Vec::new(), names: Vec::new() })
    }

    /// Notes a call.
    pub(super) fn note(&mut self, name: &str, bytes: u64, (from, to): (Instant, Instant)) {
        for moment in [from, to] {
            self.times.push(self.ahead_ns + moment.duration_since(self.began).as_nanos() as u64);
        }
        self.names.push((name.to_owned(), bytes));
    }

    /// Brings the calls of all ranks to rank 0, which writes them.
    pub(super) fn write(&self, world: &Communicator, launch: &Launch, path: &Path) -> anyhow::Result<()> {
        let ranks = world.size();
        let mut host = Fold::new();
        let name = launch.host_group.clone().unwrap_or_else(railnet_live::machine::host_name);
        host.push_bytes(name.as_bytes());
        let reached = (0..ranks).filter(|rank| *rank != world.rank()).map(|rank| world.conduit(rank));
        let ways = reached.fold(0, |ways, conduit| ways | 1_u64 << conduit as u8);
        let (mut facts, mut times) = (vec![0; FACTS * ranks], vec![0; self.times.len() * ranks]);
        world.gather(&[host.finish(), ways], &mut facts, 0)?;
        world.gather(&self.times, &mut times, 0)?;
        if world.rank() != 0 {
            return Ok(());
        }
        let mut nodes: Vec<u64> = Vec::new();
        let mut tracks = Vec::new();
        for (rank, facts) in facts.chunks(FACTS).enumerate() {
            let node = nodes.iter().position(|known| *known == facts[0]).unwrap_or_else(|| {
                nodes.push(facts[0]);
                nodes.len() - 1
            });
            let ways = Conduit::ALL.into_iter().filter(|conduit| facts[1] >> *conduit as u8 & 1 == 1);
            let ways: Vec<&str> = ways.map(Conduit::name).collect();
            let name = format!(
                "rank {rank} ({})",
                if ways.is_empty() { "alone".to_owned() } else { ways.join(", ") }
            );
            let own = &times[rank * self.times.len()..][..self.times.len()];
            let slice = |((name, bytes), time): (&(String, u64), &[u64])| Slice {
                from: time[0] * 1_000,
                to: time[1] * 1_000,
                name: name.clone(),
                notes: vec![("bytes", *bytes)],
            };
            let slices = self.names.iter().zip(own.chunks(2)).map(slice).collect();
            tracks.push(Track { process: node as u32, name, slices });
        }
        let nodes: Vec<String> = (1..=nodes.len()).map(|node| format!("node{node:02}")).collect();
        let written = || -> std::io::Result<()> {
            let mut file = BufWriter::new(std::fs::File::create(path)?);
            perfetto::write_tracks(&nodes, tracks, &mut file)?;
            file.flush()
        };
        written().with_context(|| format!("cannot write {}", path.display()))
    }
}
