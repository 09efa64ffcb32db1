//! The choice of an algorithm for a call between real processes: the cheapest by the transport's cost table.

use railnet_coll::tuner::{Cell, NoChoice, Out, Processes, Request};
use railnet_coll::variables::Variables;
use railnet_coll::{Algorithm, Call, ChannelNics, Choice, Collective, Counts, Fifo, TreePattern, Wiring};
use railnet_core::Bytes;

use crate::conduit::Conduit;
use crate::transport::PROTOCOL;
use crate::transport::cost::medium;
use crate::transport::limits::RING_BY_CORE_MIN;

/// How the ranks of a communicator are placed on hosts and cores, and the transport between them.
#[derive(Clone, Debug)]
pub(super) struct Placement {
    pub(super) wiring: Wiring,
    /// The same with ranks that share a core next to each other: what one sends the next finds in its cache.
    by_core: Wiring,
    table: Processes,
    conduit: Conduit,
    channels: u32,
    fifo: Fifo,
    /// Whether the user sets the length of buffers.
    is_fifo_given: bool,
}

/// The choice for a call, and the costs of all algorithms.
pub(super) struct Chosen {
    pub(super) choice: Choice,
    cells: Vec<Cell>,
    request: Request,
}

impl Placement {
    /// Of ranks with the names of their hosts, and their preferred CPUs where they share cores. `conduit` is the slowest
    /// between any two of them, and `share_cores` whether any of them do: the same on all ranks.
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
        // One core drives all channels of a rank: more than one help only between hosts.
        let most = variables.channels_max().unwrap_or(u32::MAX);
        let channels = variables.channels_min().unwrap_or(1).min(most);
        let buffer = variables.bytes("NCCL_BUFFSIZE");
        let (fifo, is_fifo_given) = (conduit.fifo_with(buffer), buffer.is_some());
        let by_core = Wiring { rings: vec![by_core.concat()], ..wiring.clone() };
        Self { wiring, by_core, table, conduit, channels, fifo, is_fifo_given }
    }

    /// The ring order of a call.
    pub(super) fn wiring_of(&self, call: &Call) -> &Wiring {
        let is_pipeline = matches!(call.collective, Collective::Broadcast | Collective::Reduce);
        let is_long = call.bytes(self.wiring.ranks()).0 >= RING_BY_CORE_MIN;
        if self.conduit == Conduit::Tcp && is_pipeline && is_long { &self.by_core } else { &self.wiring }
    }

    /// Chooses for a call.
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
        // In shared memory a slice is still in the cache when the next step takes it; elsewhere it is in flight meanwhile.
        let by_turns = self.conduit == Conduit::SharedMemory;
        Ok(Chosen { choice: Choice { fifo, chunk, by_turns, ..choice }, cells, request })
    }

    /// The longest slice of a call; `None` if slices are as long as slots.
    fn chunk(&self, call: &Call) -> Option<Bytes> {
        let (ranks, bytes) = (self.wiring.ranks(), call.bytes(self.wiring.ranks()).0);
        let is_mutual = match call.collective {
            Collective::AllGather => ranks == 2,
            collective => collective == Collective::AllToAll,
        };
        let is_whole = self.is_fifo_given || is_mutual && self.conduit.has_long_slices(bytes, ranks);
        (!is_whole).then(|| self.conduit.slice())
    }

    fn best(&self, call: &Call, request: &Request) -> Result<Algorithm, NoChoice> {
        let (cell, _) = self.table.best(request)?;
        // PAT and Hypercube take blocks of equal length.
        let is_even = matches!(call.counts, Counts::Each(_));
        Ok(match (cell.algorithm, call.collective) {
            (Algorithm::Pat, _) if !is_even => Algorithm::Ring,
            (Algorithm::Hypercube, Collective::AllToAll) if !is_even => Algorithm::PointToPoint,
            (algorithm, _) => algorithm,
        })
    }
}

impl Chosen {
    /// The estimated cost of each algorithm, or why it is not eligible, if that is of interest.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The measured winners: no other algorithm was faster there by more than the spread of the runs.
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
            // Those of four ranks were measured on two cores.
            let placement =
                Placement::new(&hosts, &vec![None; hosts.len()], conduit, ranks > 2, &Variables::default());
            let is_of_blocks = matches!(collective, AllGather | ReduceScatter | AllToAll);
            let parts = if is_of_blocks { ranks as u64 } else { 1 };
            let call = Call::new(collective, bytes / 4 / parts);
            let chosen = placement.choose(&call).unwrap();
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
            let placement = Placement::new(&hosts, &cores, conduit, true, &Variables::default());
            placement.wiring_of(&Call::new(collective, bytes / 4)).rings.clone()
        };
        let (plain, by_core) = (vec![vec![0, 1, 2, 3, 4, 5, 6, 7]], vec![vec![0, 2, 1, 3, 4, 6, 5, 7]]);
        assert_eq!(ring(Conduit::Tcp, Collective::Broadcast, 64 << 10), by_core);
        assert_eq!(ring(Conduit::Tcp, Collective::Reduce, RING_BY_CORE_MIN), by_core);
        assert_eq!(ring(Conduit::Tcp, Collective::Broadcast, RING_BY_CORE_MIN - 4), plain);
        assert_eq!(ring(Conduit::Tcp, Collective::AllReduce, 64 << 10), plain);
        assert_eq!(ring(Conduit::SharedMemory, Collective::Broadcast, 64 << 10), plain);
    }
}
