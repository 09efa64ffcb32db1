//! What algorithms cost over each transport: the tuner's table, fitted to measurements.

use railnet_coll::tuner::{HypercubeLimits, Medium};

use super::limits::DIRECT_RANKS_MAX;
use crate::conduit::Conduit;

/// The costs of hops, messages and bytes over a conduit.
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
/// Where ranks share cores, each message takes a core from another rank, and many in flight at a time disturb each other. Four
/// ranks on two cores, in µs (`--ranks 4`, medians of seven to nine interleaved runs):
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
/// The same with zero-copy sends over TCP of hypercube and ring, in µs, of four and five interleaved runs: the minimum, and the
/// median where the cores were distant in most. Half of what a hypercube sends stays on a core.
///
/// ```text
///           AllReduce      128, 512 KiB, 2, 8, 32 MiB   Hypercube 144 188, 388 450, 1,718 2,341, 8,542 11,663, 35,574 43,329
///                                                       Ring      164 325, 432 463, 1,986 4,024, 8,511 18,574, 34,398 75,288
///           AllGather      2, 8, 32 MiB                 Hypercube 693 944, 3,774 4,668, 16,841 20,906
///                                                       Ring      825 1,575, 4,142 7,927, 16,757 17,982
///           ReduceScatter  1, 2, 8, 32 MiB              Hypercube 409 543, 1,070 1,221, 5,178 5,765, 20,228 25,013
///                                                       Ring      446 828, 939 1,622, 4,285 6,957, 18,129 28,270
/// ```
pub(crate) const fn medium(conduit: Conduit, shares_cores: bool) -> Medium {
    let [hop_us, message_us, bandwidth, reduce_bandwidth, two_shots] = match conduit {
        Conduit::SharedMemory => [0.4, 0.2, 8.8, 24.0, 1.1],
        // A ring gains from full duplex over TCP: here that is part of the cost of reducing.
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
    // Two ranks with a core each, in µs (medians of three interleaved runs and more): 512 KiB, 1, 2, 4, 8 MiB around a ring 128 255 548 1,328 3,053, in two shots
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
        direct_most: DIRECT_RANKS_MAX,
        hypercube,
    }
}
