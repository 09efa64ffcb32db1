//! Why a cell of the table is out.

use std::fmt;

use railnet_core::{Bytes, DataType, ReduceOp};
use railnet_topology::host::PathType;

use super::inputs::Inputs;
use crate::algorithm::Algorithm;
use crate::call::Collective;
use crate::protocol::Protocol;

/// GPUs of a node that CollNet takes at most.
const COLLNET_LOCAL_MAX: u32 = 8;
/// GPUs around an NVLink switch that NVLS takes at most where it does not reduce for all.
const NVLS_LOCAL_MAX: u32 = 32;

/// Why an algorithm with a protocol does not run. Its text is for people.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Out {
    /// The algorithm does not do the collective.
    Collective(Algorithm, Collective),
    /// The algorithm has no such protocol.
    Protocol(Algorithm),
    /// One rank has nobody to talk to.
    OneRank,
    /// The user left it out: the variable and its value.
    Variable(&'static str, String),
    /// SHARP is not asked for.
    SharpOff,
    /// SHARP is asked for, and the network does not have it.
    NoSharp,
    /// SHARP between nodes needs more than one.
    SharpOnOneNode,
    /// NVLS between nodes needs SHARP.
    NvlsNeedsSharp,
    /// The network reduces, but neither gathers nor scatters.
    SharpOnlyReduces,
    /// Servers have unlike numbers of GPUs or NICs, and a rail needs a head in each.
    Uneven,
    /// A head for each GPU of a node is needed.
    TooFewHeads {
        /// Heads that there are.
        heads: u32,
        /// Ranks of a node.
        local: u32,
    },
    /// NVLSTree between nodes needs more than one.
    NvlsTreeOnOneNode,
    /// NVLS is switched off.
    NvlsOff,
    /// The NVLink switch does not reduce, or there is none.
    NoMulticast,
    /// The NVLink switch cannot do this.
    NvlsOperation(ReduceOp, DataType),
    /// There are no NVLink switches.
    NoNvSwitch,
    /// Too many ranks on a node.
    TooManyLocal {
        /// Ranks of a node.
        local: u32,
        /// What the algorithm takes.
        limit: u32,
    },
    /// Too many ranks for a connection from each to each.
    TooManyPeers {
        /// Ranks that are too many.
        ranks: u32,
        /// What the algorithm takes.
        limit: u32,
    },
    /// It needs a power of two of ranks.
    NoPowerOfTwo(u32),
    /// The call is too long.
    TooMuch {
        /// Bytes of the call.
        bytes: u64,
        /// What the algorithm takes.
        limit: u64,
    },
    /// PAT needs one rank on each node.
    PatManyLocal(u32),
    /// PAT cannot do this operation.
    PatOperation(ReduceOp),
    /// PAT and NICs that run the protocol exclude each other.
    PatOffload,
    /// The GPU is too old.
    TooOld(u32),
    /// LL128 needs NVLink.
    Ll128Inside(PathType),
    /// LL128 needs NICs near their GPUs.
    Ll128Between(PathType),
    /// LL128 needs equal GPUs.
    Ll128Mixed,
    /// The search found no channel for it.
    NoChannels,
    /// The search found one channel, and it needs two.
    OneChannel,
    /// The model gives it no bandwidth.
    NoBandwidth,
}

impl fmt::Display for Out {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Collective(algorithm, collective) => write!(f, "{algorithm} does not do {collective}"),
            Self::Protocol(algorithm) => write!(f, "{algorithm} has Simple only"),
            Self::OneRank => f.write_str("one rank has nobody to talk to"),
            Self::Variable(name, value) => write!(f, "{name}={value} leaves it out"),
            Self::SharpOff => f.write_str("SHARP is not enabled (NCCL_COLLNET_ENABLE=0)"),
            Self::NoSharp => f.write_str("the network's switches do not reduce (no SHARP)"),
            Self::SharpOnOneNode => f.write_str("SHARP works between nodes, and there is one"),
            Self::NvlsNeedsSharp => f.write_str("more than one node needs SHARP"),
            Self::SharpOnlyReduces => f.write_str("the network reduces, but does not gather or scatter"),
            Self::TooFewHeads { heads, local } => {
                write!(f, "it needs a NIC for each of the {local} GPUs of a node, and {heads} have one")
            }
            Self::Uneven => f.write_str(
                "a rail needs a head in every server, and servers have unlike numbers of GPUs or NICs",
            ),
            Self::NvlsTreeOnOneNode => f.write_str("it works between nodes, and there is one"),
            Self::NvlsOff => f.write_str("NVLS is switched off (NCCL_NVLS_ENABLE=0)"),
            Self::NoMulticast => f.write_str("no NVLink switch that reduces"),
            Self::NvlsOperation(op, dtype) => write!(f, "NVLink switches do not do {op} of {dtype}"),
            Self::NoNvSwitch => f.write_str("it needs NVLink switches"),
            Self::TooManyLocal { local, limit } => {
                write!(f, "{local} ranks on a node, and it takes {limit}")
            }
            Self::TooManyPeers { ranks, limit } => {
                write!(
                    f,
                    "{ranks} ranks are too many for a connection from each to each, of which it takes {limit}"
                )
            }
            Self::NoPowerOfTwo(ranks) => {
                write!(f, "it needs a power of two of ranks, and there are {ranks}")
            }
            Self::TooMuch { limit: 0, .. } => f.write_str("between these ranks it is never the fastest"),
            Self::TooMuch { bytes, limit } => {
                write!(f, "it is for up to {}, not for {}", Bytes(*limit), Bytes(*bytes))
            }
            Self::PatManyLocal(local) => write!(f, "it needs one rank on each node, and there are {local}"),
            Self::PatOperation(op) => write!(f, "PAT does not do {op}"),
            Self::PatOffload => f.write_str("NICs run the protocol themselves, and do not know PAT"),
            Self::TooOld(capability) => {
                write!(f, "compute capability {}.{} is too old", capability / 10, capability % 10)
            }
            Self::Ll128Inside(path) => write!(f, "LL128 needs NVLink inside the node, not {path}"),
            Self::Ll128Between(path) => write!(f, "LL128 needs NICs near the GPUs, not {path} away"),
            Self::Ll128Mixed => f.write_str("LL128 needs GPUs of one kind"),
            Self::NoChannels => f.write_str("the search found no channel for it"),
            Self::OneChannel => f.write_str("it needs two channels, and the search found one"),
            Self::NoBandwidth => f.write_str("the model gives it no bandwidth"),
        }
    }
}

/// What of a call the conditions look at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kind {
    /// The collective.
    pub collective: Collective,
    /// Of what type.
    pub dtype: DataType,
    /// How contributions are put together.
    pub op: ReduceOp,
}

/// Why the cell is out, whatever its size; the first reason that a person would want to hear.
pub(super) fn reason(inputs: &Inputs, kind: &Kind, algorithm: Algorithm, protocol: Protocol) -> Option<Out> {
    if !algorithm.does(kind.collective) {
        return Some(Out::Collective(algorithm, kind.collective));
    }
    if inputs.ranks == 1 {
        return ((algorithm, protocol) != (Algorithm::Ring, Protocol::Simple)).then_some(Out::OneRank);
    }
    let (variables, collective) = (&inputs.settings, kind.collective);
    if !matches!(algorithm, Algorithm::Ring | Algorithm::Tree) && protocol != Protocol::Simple {
        return Some(Out::Protocol(algorithm));
    }
    if !variables.algorithms.allows(collective, algorithm as usize) {
        return Some(Out::Variable("NCCL_ALGO", variables.algorithms.text().to_owned()));
    }
    if !variables.protocols.allows(collective, protocol as usize) {
        return Some(Out::Variable("NCCL_PROTO", variables.protocols.text().to_owned()));
    }
    of_algorithm(inputs, kind, algorithm).or_else(|| of_graph(inputs, kind, algorithm, protocol))
}

fn of_algorithm(inputs: &Inputs, kind: &Kind, algorithm: Algorithm) -> Option<Out> {
    let local = inputs.local_ranks;
    match algorithm {
        Algorithm::Tree | Algorithm::Ring => None,
        Algorithm::CollNetDirect | Algorithm::CollNetChain | Algorithm::Nvls | Algorithm::NvlsTree
            if inputs.is_uneven =>
        {
            Some(Out::Uneven)
        }
        Algorithm::CollNetDirect | Algorithm::CollNetChain => sharp(inputs).or_else(|| match local {
            _ if algorithm == Algorithm::CollNetDirect && !inputs.has_nvswitch && local > 1 => {
                Some(Out::NoNvSwitch)
            }
            0..=COLLNET_LOCAL_MAX => gathers(inputs, kind),
            _ => Some(Out::TooManyLocal { local, limit: COLLNET_LOCAL_MAX }),
        }),
        Algorithm::Nvls | Algorithm::NvlsTree => nvls(inputs, kind, algorithm),
        Algorithm::Pat => {
            if inputs.capability_min < 60 {
                Some(Out::TooOld(inputs.capability_min))
            } else if inputs.nodes != inputs.ranks {
                Some(Out::PatManyLocal(local))
            } else if inputs.net_offload {
                Some(Out::PatOffload)
            } else {
                let scales = matches!(kind.op, ReduceOp::Average | ReduceOp::PreMulSum(_));
                (kind.collective == Collective::ReduceScatter && scales).then_some(Out::PatOperation(kind.op))
            }
        }
        Algorithm::Direct | Algorithm::Hypercube | Algorithm::PointToPoint | Algorithm::Custom => {
            Some(Out::Collective(algorithm, kind.collective))
        }
    }
}

fn sharp(inputs: &Inputs) -> Option<Out> {
    match inputs.collnet {
        _ if inputs.nodes < 2 => Some(Out::SharpOnOneNode),
        collnet if !collnet.is_enabled => Some(Out::SharpOff),
        collnet => (!collnet.is_available).then_some(Out::NoSharp),
    }
}

/// AllGather and ReduceScatter through the network's switches: the network must know them, and each GPU have its NIC.
fn gathers(inputs: &Inputs, kind: &Kind) -> Option<Out> {
    let (collnet, local) = (inputs.collnet, inputs.local_ranks);
    if kind.collective == Collective::AllReduce {
        None
    } else if !collnet.gathers {
        Some(Out::SharpOnlyReduces)
    } else {
        (local > collnet.heads).then_some(Out::TooFewHeads { heads: collnet.heads, local })
    }
}

fn nvls(inputs: &Inputs, kind: &Kind, algorithm: Algorithm) -> Option<Out> {
    let local = inputs.local_ranks;
    if algorithm == Algorithm::NvlsTree && inputs.nodes == 1 {
        return Some(Out::NvlsTreeOnOneNode);
    }
    if !inputs.settings.nvls {
        return Some(Out::NvlsOff);
    }
    if !inputs.switch_reduces {
        return Some(Out::NoMulticast);
    }
    if kind.collective != Collective::AllGather && !switch_does(kind.op, kind.dtype) {
        return Some(Out::NvlsOperation(kind.op, kind.dtype));
    }
    if kind.collective != Collective::AllReduce && local > NVLS_LOCAL_MAX {
        return Some(Out::TooManyLocal { local, limit: NVLS_LOCAL_MAX });
    }
    if algorithm == Algorithm::Nvls && inputs.nodes > 1 {
        return sharp(inputs).map(|_| Out::NvlsNeedsSharp).or_else(|| gathers(inputs, kind));
    }
    None
}

/// What NVLink switches reduce (NCCL 2.30 device.h). An average of floats is a pre-multiplied sum to them.
fn switch_does(op: ReduceOp, dtype: DataType) -> bool {
    use DataType::{Bf16, F16, F32, F64, I32, I64, U32, U64};
    match dtype {
        I32 | U32 | I64 | U64 | F16 | Bf16 => matches!(op, ReduceOp::Sum | ReduceOp::Min | ReduceOp::Max),
        F32 | F64 => op == ReduceOp::Sum,
        _ => false,
    }
}

fn of_graph(inputs: &Inputs, kind: &Kind, algorithm: Algorithm, protocol: Protocol) -> Option<Out> {
    let Some(graph) = inputs.graphs.of(algorithm).filter(|graph| graph.channels > 0) else {
        return Some(Out::NoChannels);
    };
    if matches!(algorithm, Algorithm::Nvls | Algorithm::NvlsTree) && graph.channels < 2 {
        return Some(Out::OneChannel);
    }
    let is_forced = inputs.settings.protocols.is_forced(kind.collective, protocol as usize);
    if protocol != Protocol::Ll128 || is_forced {
        return None;
    }
    let capability = inputs.capability_min;
    let farthest = if capability >= 90 { PathType::Pxn } else { PathType::Pxb };
    if graph.type_intra > PathType::Nvb {
        Some(Out::Ll128Inside(graph.type_intra))
    } else if inputs.nodes > 1 && graph.type_inter > farthest {
        Some(Out::Ll128Between(graph.type_inter))
    } else if capability != inputs.capability_max && capability < 90 {
        Some(Out::Ll128Mixed)
    } else {
        (capability < 70).then_some(Out::TooOld(capability))
    }
}
