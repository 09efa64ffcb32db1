//! The largest numbers that a description may hold: the one home of limits that files, options and the page share.
//!
//! A value past its limit is an error that names the limit, before anything is allocated for it. Each limit is some orders of magnitude
//! past what is built today, and low enough that products of a few of them still fit the integers that hold them.
//! docs/scenarios.md lists them.

/// Hosts of a fabric; a fat-tree of 100-port switches has 250,000.
pub const HOSTS_MAX: u64 = 1 << 18;
/// Links of a fabric.
pub const LINKS_MAX: u64 = 1 << 21;
/// Ports of a switch: their numbers have 16 bits, and one stands for none.
pub const PORTS_MAX: u64 = (1 << 16) - 1;
/// Servers of a cluster.
pub const NODES_MAX: u32 = 1 << 16;
/// Flows of a run: they take 1 GB.
pub const FLOWS_MAX: usize = 1 << 24;
/// Bytes of a flow: a send queue of 32,768 messages of 1 GiB.
pub const FLOW_BYTES_MAX: u64 = 1 << 45;

/// Layers of a model.
pub const LAYERS_MAX: u32 = 10_000;
/// Widths of a model: hidden, feed-forward, head, expert.
pub const WIDTH_MAX: u64 = 1 << 20;
/// Widths that one token meets in a layer: of the queries of all heads, and of all its experts together.
pub const TOKEN_WIDTH_MAX: u64 = 1 << 26;
/// Attention heads.
pub const HEADS_MAX: u64 = 1 << 16;
/// Experts of a layer.
pub const EXPERTS_MAX: u64 = 1 << 16;
/// Words of a vocabulary.
pub const VOCABULARY_MAX: u64 = 1 << 24;
/// Tokens of a sequence.
pub const SEQUENCE_MAX: u64 = 1 << 27;
/// Parameters of a model.
pub const PARAMETERS_MAX: u64 = 10_000_000_000_000_000;

/// Sequences of a global batch.
pub const BATCH_MAX: u64 = 1 << 31;
/// Tokens of a global batch.
pub const BATCH_TOKENS_MAX: u64 = 1 << 48;
/// Tokens of a microbatch.
pub const MICROBATCH_TOKENS_MAX: u64 = 1 << 32;
/// Layers that a rank passes through in a step, over all its microbatches: each is an operation of the step's graph.
pub const PASSES_MAX: u64 = 1 << 26;
/// Steps of a job.
pub const STEPS_MAX: u32 = 1 << 20;

/// A count of bytes that no memory has: sums stop there.
pub const MEMORY_MAX: u64 = 1 << 60;
