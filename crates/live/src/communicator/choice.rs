//! Which algorithm carries out a call between real processes: the cheapest by a table of what each costs over the conduit.

use railnet_coll::tuner::{Cell, HypercubeLimits, Medium, NoChoice, Out, Processes, Request};
use railnet_coll::variables::Variables;
use railnet_coll::{Algorithm, Call, ChannelNics, Choice, Collective, Counts, Fifo, TreePattern, Wiring};
use railnet_core::Bytes;

use crate::conduit::{Conduit, PROTOCOL};

/// The most ranks that exchange with each other directly: each has a connection to each, with memory of its own.
const DIRECT_MOST: u32 = 8;

/// Bytes for each rank from which slices are as long as slots where blocks cross each other: an AlltoAll of 8 MiB between two
/// ranks took 530 µs so, and 670 with slices of 32 KiB; one of 16 MiB 1.58 ms, and 1.77 with slices of 128 KiB.
const LONG_LEAST: u64 = 128 << 10;
/// Bytes of a call among more than two ranks up to which that is so: beyond, slots of all connections are more than the caches hold.
const LONG_MOST: u64 = 4 << 20;
/// Bytes of a call between two ranks from which slices are as long as slots over TCP: AllGather and AlltoAll of 32 MiB take 0.86 of the
/// time so, those of 2 MiB 1.1 to 1.3 times as long.
const LONG_TCP: u64 = 16 << 20;
/// Bytes of a Broadcast or Reduce over TCP from which ranks that share a core follow each other.
const BY_CORE_LEAST: u64 = 8 << 10;

/// What things cost over a conduit.
///
/// Fitted to `railnet bench live --peers railnet --collectives all_reduce --ranks 2,4` and, for RoCEv2, `railnet perf
/// all_reduce --conduit roce`, each with `NCCL_ALGO` forcing one algorithm after the other, three times, on a machine with two
/// cores that share no cache: hop and message from 8 B, bandwidths from 512 KiB and 2 MiB between two ranks, `two_shots` from
/// 2 MiB among four (in shared memory with cores that share one, where a ring takes 1.1 ms and two shots 1.4). What was measured there, in µs, for 8 B, 32 KiB, 64 KiB, 512 KiB:
///
/// ```text
///                    Direct                Ring                  Tree
///   2 ranks, shm     0.65 5.4 10.3 80      1.1 5.5 9.2 70        1.1 9.0 14 80
///   2 ranks, TCP     10.5 17  50   340     20  38  33  270       20  57  95 450
///   2 ranks, RoCEv2  23   62  –    –       36  80  –   –         27  90  –  –
///   4 ranks, shm     6–8  35–64 –  490–770 13–19 31–34 – 230–290 13–19 37–42 – 260–300
///   4 ranks, TCP     112–150 199–286 – 2,100–2,700   109–130 173–185 – 700–1,250   90–102 142–166 – 880–1,150
/// ```
///
/// Where ranks share cores, each message takes one away from somebody, and many under way at a time are in each other's way. Four
/// ranks on two cores, in µs (`--ranks 4`, seven to nine times by turns, middle):
///
/// ```text
///   TCP     AllReduce      8 B … 16 KiB, 32, 64, 128, 512 KiB    Hypercube 43 41 44 51 65 95 183 583   Ring 76 79 84 98 112 139 188 549   Tree 53 45 51 59 100 151 249 677
///           AllGather      512 KiB, 1, 2, 8 MiB       Hypercube 273 407 917 6,549    Ring 384 507 1,049 5,484    Direct 502 707 1,474 7,100
///           ReduceScatter  512 KiB, 1, 2, 8 MiB       Hypercube 247 603 1,334 6,496  Ring 264 531 1,063 5,278    Direct 646 1,223 2,496 8,175
///           AlltoAll       16 B, 2, 32, 128 KiB       Hypercube 66 56 99 214         P2P 93 81 112 168
///           Broadcast      8 B, 2, 32, 128, 512 KiB   Direct 8.9 15 26 101 271       Ring 5.7 5.7 22 71 219
///   memory  AllGather      8, 32, 512 KiB, 2, 8 MiB   Hypercube 22 22 125 322 3,913  Ring 8.7 22 61 325 2,780    Direct 11 32 193 304 3,905
///           ReduceScatter  8, 32, 512 KiB, 2, 8 MiB   Hypercube 8 11 85 545 3,516    Ring 8.4 10 57 231 1,842    Direct 6.2 14 143 832 3,117
/// ```
///
/// Since what a hypercube and a ring send over TCP lies in the caller's buffers, again in µs, four and five times by turns: the
/// least, and the middle where the cores were far from each other in most. Half of what a hypercube sends stays on a core.
///
/// ```text
///           AllReduce      128, 512 KiB, 2, 8, 32 MiB   Hypercube 144 188, 388 450, 1,718 2,341, 8,542 11,663, 35,574 43,329
///                                                       Ring      164 325, 432 463, 1,986 4,024, 8,511 18,574, 34,398 75,288
///           AllGather      2, 8, 32 MiB                 Hypercube 693 944, 3,774 4,668, 16,841 20,906
///                                                       Ring      825 1,575, 4,142 7,927, 16,757 17,982
///           ReduceScatter  1, 2, 8, 32 MiB              Hypercube 409 543, 1,070 1,221, 5,178 5,765, 20,228 25,013
///                                                       Ring      446 828, 939 1,622, 4,285 6,957, 18,129 28,270
/// ```
const fn medium(conduit: Conduit, shares_cores: bool) -> Medium {
    let [hop_us, message_us, bandwidth, reduce_bandwidth, two_shots] = match conduit {
        Conduit::SharedMemory => [0.4, 0.2, 8.8, 24.0, 1.1],
        // What TCP gains from a ring it gains from both directions at once: here that is a cost of reducing.
        Conduit::Tcp if shares_cores => [2.0, 8.0, 2.8, 3.2, 1.1],
        Conduit::Tcp => [5.5, 5.0, 2.8, 3.2, 1.1],
        Conduit::Roce => [12.0, 9.0, 0.78, 3.0, 2.1],
    };
    let (blocks, hypercube) = match conduit {
        Conduit::SharedMemory if shares_cores => (1.6, HypercubeLimits::NEVER),
        Conduit::Tcp if shares_cores => {
            let hypercube = HypercubeLimits {
                all_reduce: 64 << 20,
                all_gather: 16 << 20,
                reduce_scatter: 1 << 20,
                all_to_all: 64 << 10,
            };
            (1.6, hypercube)
        }
        _ => (1.0, HypercubeLimits::NEVER),
    };
    // Two ranks with a core each, in µs (three times by turns and more, middle): 512 KiB, 1, 2, 4, 8 MiB around a ring 128 255 548 1,328 3,053, in two shots
    // 133 221 524 1,469 3,679.
    let two_shots_of_pair = match conduit {
        Conduit::Tcp if !shares_cores => 768 << 10..=2 << 20,
        _ => 0..=0,
    };
    Medium {
        hop_us,
        message_us,
        bandwidth,
        reduce_bandwidth,
        two_shots,
        two_shots_of_pair,
        blocks,
        direct_most: DIRECT_MOST,
        hypercube,
    }
}

/// How a communicator lies on hosts, and what joins its ranks.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) wiring: Wiring,
    /// The same with ranks that share a core next to each other: what goes from one to the other stays in its caches.
    by_core: Wiring,
    table: Processes,
    conduit: Conduit,
    channels: u32,
    fifo: Fifo,
    /// Whether the user says how long buffers are.
    is_fifo_given: bool,
}

/// What was chosen for a call, and what the others would have cost.
pub(super) struct Chosen {
    pub(super) choice: Choice,
    cells: Vec<Cell>,
    request: Request,
}

impl Place {
    /// Ranks with the names of their hosts, and the cores that they are best off on where they share them. `conduit` is the slowest between any two of them: the same on all, as is whether
    /// any of them share cores.
    pub(super) fn new(
        hosts: &[&str],
        cores: &[Option<usize>],
        conduit: Conduit,
        share_cores: bool,
        variables: &Variables,
    ) -> Self {
        let mut nodes: Vec<(&str, Vec<u32>)> = Vec::new();
        for (rank, host) in (0..).zip(hosts) {
            match nodes.iter_mut().find(|(name, _)| name == host) {
                Some((_, ranks)) => ranks.push(rank),
                None => nodes.push((host, vec![rank])),
            }
        }
        let nodes: Vec<Vec<u32>> = nodes.into_iter().map(|(_, ranks)| ranks).collect();
        let table = Processes {
            ranks: hosts.len() as u32,
            nodes: nodes.len() as u32,
            medium: medium(conduit, share_cores),
            settings: variables.settings(),
        };
        let mut by_core = nodes.clone();
        for node in &mut by_core {
            node.sort_by_key(|rank| cores[*rank as usize]);
        }
        let wiring = Wiring {
            rings: vec![nodes.concat()],
            chains: vec![nodes.clone()],
            patterns: vec![TreePattern::Plain; nodes.len()],
            heads: Vec::new(),
            switch_reduces: false,
            nics: ChannelNics::default(),
            nodes,
        };
        // One core drives all channels of a rank: more than one help only the network between hosts.
        let most = variables.channels_max().unwrap_or(u32::MAX);
        let channels = variables.channels_min().unwrap_or(1).min(most);
        let buffer = variables.bytes("NCCL_BUFFSIZE");
        let (fifo, is_fifo_given) = (conduit.fifo_with(buffer), buffer.is_some());
        let by_core = Wiring { rings: vec![by_core.concat()], ..wiring.clone() };
        Self { wiring, by_core, table, conduit, channels, fifo, is_fifo_given }
    }

    /// How ranks lie around a ring of a call.
    pub(super) fn wiring_of(&self, call: &Call) -> &Wiring {
        let is_pipeline = matches!(call.collective, Collective::Broadcast | Collective::Reduce);
        let is_long = call.bytes(self.wiring.ranks()).0 >= BY_CORE_LEAST;
        if self.conduit == Conduit::Tcp && is_pipeline && is_long { &self.by_core } else { &self.wiring }
    }

    /// The choice for a call.
    pub(super) fn choose(&self, call: &Call) -> Result<Chosen, NoChoice> {
        let request = Request::of(call, self.wiring.ranks());
        let cells = self.table.cells(&request);
        let algorithm = match call.collective {
            Collective::Gather | Collective::Scatter | Collective::SendReceive | Collective::Barrier => {
                Algorithm::PointToPoint
            }
            _ => self.best(call, &request)?,
        };
        let choice = Choice::new(algorithm, PROTOCOL).on(self.channels);
        let (fifo, chunk) = (Some(self.fifo), self.chunk(call));
        // In shared memory a slice is still in the caches when the next step takes it; elsewhere it is under way meanwhile.
        let by_turns = self.conduit == Conduit::SharedMemory;
        Ok(Chosen { choice: Choice { fifo, chunk, by_turns, ..choice }, cells, request })
    }

    /// The longest slice of a call: as long as a slot where blocks of all ranks cross each other, and there are more than a few.
    fn chunk(&self, call: &Call) -> Option<Bytes> {
        let (ranks, bytes) = (self.wiring.ranks(), call.bytes(self.wiring.ranks()).0);
        let is_mutual = match call.collective {
            Collective::AllGather => ranks == 2,
            collective => collective == Collective::AllToAll,
        };
        let is_long = match self.conduit {
            Conduit::SharedMemory => {
                bytes / u64::from(ranks) >= LONG_LEAST && (ranks == 2 || bytes <= LONG_MOST)
            }
            Conduit::Tcp => ranks == 2 && bytes >= LONG_TCP,
            Conduit::Roce => false,
        };
        let is_whole = self.is_fifo_given || is_mutual && is_long;
        (!is_whole).then(|| self.conduit.slice())
    }

    fn best(&self, call: &Call, request: &Request) -> Result<Algorithm, NoChoice> {
        let (cell, _) = self.table.best(request)?;
        // Trees of aggregated blocks take blocks of one length, and so does who passes blocks on.
        let is_even = matches!(call.counts, Counts::Each(_));
        Ok(match (cell.algorithm, call.collective) {
            (Algorithm::Pat, _) if !is_even => Algorithm::Ring,
            (Algorithm::Hypercube, Collective::AllToAll) if !is_even => Algorithm::PointToPoint,
            (algorithm, _) => algorithm,
        })
    }
}

impl Chosen {
    /// What each algorithm costs by the table, or why it is out, where that is worth a word.
    pub(super) fn reasons(&self) -> String {
        let one = |cell: &Cell| {
            let name = cell.algorithm;
            match (Processes::estimate(cell, &self.request), &cell.outcome) {
                (Some(estimate), _) => Some(format!("{name} {:.1} µs", estimate.time_us)),
                (None, Err(Out::Collective(..)) | Ok(_)) => None,
                (None, Err(out)) => Some(format!("{name} out: {out}")),
            }
        };
        self.cells.iter().filter_map(one).collect::<Vec<_>>().join(", ")
    }
}

impl Conduit {
    /// How slices lie in slots where the user says how long the buffer of a connection is.
    fn fifo_with(self, buffer: Option<Bytes>) -> Fifo {
        let usual = self.fifo();
        // A NIC has slots of one length.
        let (Some(buffer), Self::SharedMemory | Self::Tcp) = (buffer, self) else { return usual };
        let slot = (buffer.0 / u64::from(usual.depth)).next_multiple_of(64).min(self.slot_most());
        Fifo { slot: Bytes(slot), ..usual }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Winners where they were measured: no other algorithm was faster there by more than the spread of a run.
    #[test]
    fn the_table_has_the_winners_that_were_measured() {
        use Collective::{AllGather, AllReduce, AllToAll, Broadcast, ReduceScatter};
        let (direct, ring, hypercube) = (Algorithm::Direct, Algorithm::Ring, Algorithm::Hypercube);
        let cases = [
            (2, Conduit::SharedMemory, AllReduce, 8, direct),
            (2, Conduit::SharedMemory, AllReduce, 2 << 10, direct),
            (2, Conduit::SharedMemory, AllReduce, 64 << 10, ring),
            (2, Conduit::SharedMemory, AllReduce, 32 << 20, ring),
            (4, Conduit::SharedMemory, AllReduce, 2 << 10, direct),
            (4, Conduit::SharedMemory, AllReduce, 32 << 10, ring),
            (4, Conduit::SharedMemory, AllReduce, 512 << 10, ring),
            (4, Conduit::SharedMemory, AllReduce, 2 << 20, ring),
            (2, Conduit::Tcp, AllReduce, 32 << 10, direct),
            (2, Conduit::Tcp, AllReduce, 512 << 10, ring),
            (2, Conduit::Tcp, AllReduce, 2 << 20, direct),
            (2, Conduit::Tcp, AllReduce, 4 << 20, ring),
            (2, Conduit::SharedMemory, AllReduce, 2 << 20, ring),
            (4, Conduit::Tcp, AllReduce, 8, hypercube),
            (4, Conduit::Tcp, AllReduce, 32 << 10, hypercube),
            (4, Conduit::Tcp, AllReduce, 128 << 10, hypercube),
            (4, Conduit::Tcp, AllReduce, 512 << 10, hypercube),
            (4, Conduit::Tcp, AllGather, 2 << 10, hypercube),
            (4, Conduit::Tcp, AllGather, 2 << 20, hypercube),
            (4, Conduit::Tcp, AllGather, 8 << 20, hypercube),
            (4, Conduit::Tcp, ReduceScatter, 8, hypercube),
            (4, Conduit::Tcp, ReduceScatter, 2 << 20, ring),
            (4, Conduit::Tcp, AllToAll, 2 << 10, hypercube),
            (4, Conduit::Tcp, AllToAll, 128 << 10, Algorithm::PointToPoint),
            (2, Conduit::Tcp, AllToAll, 2 << 10, Algorithm::PointToPoint),
            (4, Conduit::SharedMemory, AllToAll, 2 << 10, Algorithm::PointToPoint),
            (4, Conduit::Tcp, Broadcast, 8, ring),
            (4, Conduit::Tcp, AllReduce, 2 << 20, hypercube),
            (2, Conduit::Roce, AllReduce, 32 << 10, direct),
            (4, Conduit::Roce, AllReduce, 4 << 10, direct),
            (4, Conduit::Roce, AllReduce, 256 << 10, ring),
            (2, Conduit::SharedMemory, AllGather, 8 << 20, direct),
            (4, Conduit::SharedMemory, ReduceScatter, 8 << 10, direct),
            (4, Conduit::SharedMemory, ReduceScatter, 32 << 10, ring),
            (4, Conduit::SharedMemory, AllGather, 2 << 10, direct),
            (4, Conduit::SharedMemory, AllGather, 512 << 10, ring),
            (4, Conduit::SharedMemory, Broadcast, 8, direct),
            (4, Conduit::Tcp, Broadcast, 512 << 10, ring),
            (2, Conduit::Tcp, Broadcast, 512 << 10, direct),
        ];
        for (ranks, conduit, collective, bytes, expected) in cases {
            let hosts = vec!["here"; ranks];
            // Those of four were measured on two cores.
            let place =
                Place::new(&hosts, &vec![None; hosts.len()], conduit, ranks > 2, &Variables::default());
            let is_of_blocks = matches!(collective, AllGather | ReduceScatter | AllToAll);
            let parts = if is_of_blocks { ranks as u64 } else { 1 };
            let call = Call::new(collective, bytes / 4 / parts);
            let chosen = place.choose(&call).unwrap();
            let what = format!("{collective} of {bytes} among {ranks} over {conduit}: {}", chosen.reasons());
            assert_eq!(chosen.choice.algorithm, expected, "{what}");
        }
    }

    /// Ranks 0, 2, 4, 6 and 1, 3, 5, 7 share cores of two hosts, of which the first has ranks 0 to 3.
    #[test]
    fn long_pipelines_go_from_rank_to_rank_of_a_core() {
        let hosts = ["a", "a", "a", "a", "b", "b", "b", "b"];
        let cores = [0, 1, 0, 1, 0, 1, 0, 1].map(Some);
        let ring = |conduit, collective, bytes: u64| {
            let place = Place::new(&hosts, &cores, conduit, true, &Variables::default());
            place.wiring_of(&Call::new(collective, bytes / 4)).rings.clone()
        };
        let (plain, by_core) = (vec![vec![0, 1, 2, 3, 4, 5, 6, 7]], vec![vec![0, 2, 1, 3, 4, 6, 5, 7]]);
        assert_eq!(ring(Conduit::Tcp, Collective::Broadcast, 64 << 10), by_core);
        assert_eq!(ring(Conduit::Tcp, Collective::Reduce, BY_CORE_LEAST), by_core);
        assert_eq!(ring(Conduit::Tcp, Collective::Broadcast, BY_CORE_LEAST - 4), plain);
        assert_eq!(ring(Conduit::Tcp, Collective::AllReduce, 64 << 10), plain);
        assert_eq!(ring(Conduit::SharedMemory, Collective::Broadcast, 64 << 10), plain);
    }
}
