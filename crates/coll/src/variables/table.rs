//! Every variable, declared once: what it takes, what it is without being set, what it does, and where.

use std::fmt::Write as _;

/// What a variable takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// 0 or 1.
    Switch,
    /// A whole number from here to there.
    Number(i64, i64),
    /// Bytes, at least and at most.
    Bytes(u64, u64),
    /// A kind of path: `LOC`, `NVL`, `PIX`, `PXB`, `PHB`, `SYS`, or NCCL's old numbers for them.
    Level,
    /// A selection of algorithms.
    Algorithms,
    /// A selection of protocols.
    Protocols,
    /// Names of devices, with what NCCL puts around them.
    Devices,
    /// The name of a file.
    File,
    /// How much is told.
    DebugLevel,
    /// What is told of.
    Subsystems,
}

/// Where a variable has effect.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Place {
    /// In `railnet tune`: what is chosen, and what the search finds.
    Tune,
    /// In `railnet sim`: how collectives run.
    Sim,
    /// In `railnet plan`: what a step is expected to take.
    Plan,
    /// In `railnet run`, `railnet perf` and every program of ranks: how collectives run between processes.
    Run,
}

impl Place {
    /// The command.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tune => "tune",
            Self::Sim => "sim",
            Self::Plan => "plan",
            Self::Run => "run",
        }
    }
}

/// A variable of NCCL's that means something to Railnet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Declaration {
    /// NCCL's name for it.
    pub name: &'static str,
    /// What it takes.
    pub form: Form,
    /// Those values as people write them.
    pub values: &'static str,
    /// What it is without being set.
    pub default: &'static str,
    /// What it does.
    pub text: &'static str,
    /// Where the variable has an effect.
    pub places: &'static [Place],
}

const MODELS: &[Place] = &[Place::Tune, Place::Sim, Place::Plan];
const RUN: &[Place] = &[Place::Run];
const WORLDS: &[Place] = &[Place::Sim, Place::Run];
const ALL: &[Place] = &[Place::Tune, Place::Sim, Place::Plan, Place::Run];
/// Read and checked, and reported as without effect.
const NOWHERE: &[Place] = &[];
const CHANNELS_MAX: i64 = 64;

const fn variable(
    name: &'static str,
    form: Form,
    values: &'static str,
    default: &'static str,
    places: &'static [Place],
    text: &'static str,
) -> Declaration {
    Declaration { name, form, values, default, text, places }
}

/// All of them, by topic. Defaults are those of NCCL 2.30.7.
pub const DECLARATIONS: &[Declaration] = &[
    variable(
        "NCCL_ALGO",
        Form::Algorithms,
        "`[^]Tree,Ring,CollnetDirect,CollnetChain,NVLS,NVLSTree,PAT`, `;collective:list`",
        "all",
        ALL,
        "Algorithms that may run; `^` leaves out those listed. `;allreduce:tree,ring` is for one collective. Processes have Ring, Tree and PAT, and two that have no name, a direct exchange and one bit by bit of ranks' numbers (Hypercube): these take part where the list says what to leave out.",
    ),
    variable(
        "NCCL_PROTO",
        Form::Protocols,
        "`[^]LL,LL128,Simple`, `;collective:list`",
        "all",
        MODELS,
        "Protocols that may run, in the same grammar. A list with LL128 takes it also where NVLink is missing, as NCCL does. Processes have Simple only.",
    ),
    variable(
        "NCCL_NCHANNELS",
        Form::Number(1, CHANNELS_MAX),
        "1 … 64",
        "what the search finds",
        ALL,
        "Channels, neither more nor less: both limits at once. Processes have one without it.",
    ),
    variable("NCCL_MIN_NCHANNELS", Form::Number(1, CHANNELS_MAX), "1 … 64", "1", ALL, "Channels at least."),
    variable("NCCL_MAX_NCHANNELS", Form::Number(1, CHANNELS_MAX), "1 … 64", "64", ALL, "Channels at most."),
    variable(
        "NCCL_MIN_CTAS",
        Form::Number(1, CHANNELS_MAX),
        "1 … 64",
        "1",
        ALL,
        "The newer name of `NCCL_MIN_NCHANNELS`; it wins where both are set.",
    ),
    variable(
        "NCCL_MAX_CTAS",
        Form::Number(1, CHANNELS_MAX),
        "1 … 64",
        "64",
        ALL,
        "The newer name of `NCCL_MAX_NCHANNELS`; it wins where both are set.",
    ),
    variable(
        "NCCL_BUFFSIZE",
        Form::Bytes(4096, 1 << 30),
        "bytes",
        "4194304",
        ALL,
        "The buffer of a connection with Simple: 8 slots, and with them the chunks. Between processes 1048576 without it; at most 8388608 over TCP, 4194304 in shared memory; RoCEv2 has 262144.",
    ),
    variable(
        "NCCL_LL_BUFFSIZE",
        Form::Bytes(1024, 1 << 30),
        "bytes",
        "524288",
        MODELS,
        "The same with LL, flags included.",
    ),
    variable(
        "NCCL_LL128_BUFFSIZE",
        Form::Bytes(15360, 1 << 30),
        "bytes",
        "4915200",
        MODELS,
        "The same with LL128, flags included.",
    ),
    variable(
        "NCCL_NTHREADS",
        Form::Number(64, 512),
        "64 … 512, in steps of 32",
        "512",
        MODELS,
        "Threads of a channel at most, with Simple and LL: fewer need less data to be worth a channel.",
    ),
    variable(
        "NCCL_NET_OVERHEAD",
        Form::Number(0, 1_000_000),
        "nanoseconds",
        "1000, AMD 2000",
        MODELS,
        "What the network costs a CPU in each step of a ring, in the cost model.",
    ),
    variable(
        "NCCL_TOPO_FILE",
        Form::File,
        "an XML file",
        "none",
        MODELS,
        "The server, as NCCL writes it with `NCCL_TOPO_DUMP_FILE`.",
    ),
    variable(
        "NCCL_P2P_DISABLE",
        Form::Switch,
        "0, 1",
        "0",
        ALL,
        "GPUs do not write into each other's memory, and processes do not read each other's.",
    ),
    variable(
        "NCCL_P2P_LEVEL",
        Form::Level,
        "LOC, NVL, PIX, PXB, PHB, SYS",
        "PXB; SYS for two GPUs on AMD",
        MODELS,
        "How far GPUs may be from each other and still do.",
    ),
    variable(
        "NCCL_SHM_DISABLE",
        Form::Switch,
        "0, 1",
        "0",
        ALL,
        "GPUs of a server do not go through the host's memory, but through NICs. Processes use TCP instead.",
    ),
    variable(
        "NCCL_IB_DISABLE",
        Form::Switch,
        "0, 1",
        "0",
        ALL,
        "No RDMA: kernel sockets instead. Processes use RDMA only where they are told to.",
    ),
    variable(
        "NCCL_IB_HCA",
        Form::Devices,
        "`[^][=]name[:port],…`",
        "all",
        MODELS,
        "NICs that are used: names that begin so; `=` for these names exactly, `^` for all others.",
    ),
    variable(
        "NCCL_SOCKET_IFNAME",
        Form::Devices,
        "`[^][=]name,…`",
        "all",
        RUN,
        "Interfaces of kernel sockets, in the same grammar; without it a rank of `railnet run` uses the one that leads to rank 0. A simulated server has one network.",
    ),
    variable(
        "NCCL_CROSS_NIC",
        Form::Number(0, 2),
        "0, 1, 2",
        "2",
        MODELS,
        "Whether a ring may leave a server by one NIC and enter the next by another: 0 never, 1 yes, 2 where it helps.",
    ),
    variable(
        "NCCL_NET_GDR_LEVEL",
        Form::Level,
        "LOC, NVL, PIX, PXB, PHB, SYS",
        "P2C: no farther than PCIe switches",
        MODELS,
        "How far a NIC may be from a GPU and still reach its memory by itself (GPUDirect).",
    ),
    variable(
        "NCCL_NET_GDR_READ",
        Form::Switch,
        "0, 1",
        "1 since Ampere or with NVLink",
        MODELS,
        "Whether NICs read from GPUs by themselves too, not only write.",
    ),
    variable(
        "NCCL_PXN_DISABLE",
        Form::Switch,
        "0, 1",
        "0",
        MODELS,
        "GPUs do not hand data to another GPU whose NIC is nearer to the target.",
    ),
    variable(
        "NCCL_NVLS_ENABLE",
        Form::Number(0, 2),
        "0, 1, 2",
        "2",
        MODELS,
        "Reductions in NVLink switches: 0 never, 1 and 2 where the hardware has them.",
    ),
    variable(
        "NCCL_COLLNET_ENABLE",
        Form::Switch,
        "0, 1",
        "0",
        MODELS,
        "Reductions in the network's switches (SHARP), where it has them.",
    ),
    variable(
        "NCCL_IB_QPS_PER_CONNECTION",
        Form::Number(1, 128),
        "1 … 128",
        "1",
        WORLDS,
        "Queue pairs of a connection between two ranks. Processes have 8 at most.",
    ),
    variable(
        "NCCL_IB_SPLIT_DATA_ON_QPS",
        Form::Switch,
        "0, 1",
        "0",
        WORLDS,
        "Each message goes over all of them, in parts; otherwise they take turns.",
    ),
    variable(
        "NCCL_IB_TC",
        Form::Number(0, 255),
        "0 … 255",
        "0",
        WORLDS,
        "The traffic class of data: DSCP and ECN bits of its packets. Packets between processes can be marked by ECN without it.",
    ),
    variable(
        "NCCL_IB_GID_INDEX",
        Form::Number(-1, 255),
        "-1 … 255",
        "-1",
        NOWHERE,
        "Which of a NIC's addresses is used; -1 for the one that fits. A simulated NIC has one.",
    ),
    variable(
        "NCCL_IB_TIMEOUT",
        Form::Number(1, 31),
        "1 … 31",
        "20",
        WORLDS,
        "A NIC sends again after 4.096 µs × 2^this without an acknowledgement. Between processes 9 without it.",
    ),
    variable(
        "NCCL_IB_RETRY_CNT",
        Form::Number(0, 7),
        "0 … 7",
        "7",
        WORLDS,
        "How often, before it gives up. Between processes 7 is for ever.",
    ),
    variable(
        "NCCL_DEBUG",
        Form::DebugLevel,
        "VERSION, WARN, INFO, TRACE",
        "none",
        ALL,
        "What is told on standard error: with INFO the lines that NCCL writes while it starts.",
    ),
    variable(
        "NCCL_DEBUG_SUBSYS",
        Form::Subsystems,
        "`[^]INIT,COLL,P2P,SHM,NET,GRAPH,TUNING,ENV,…,ALL`",
        "INIT,BOOTSTRAP,ENV",
        MODELS,
        "Which of them: with TUNING also the cost model's table and each decision.",
    ),
];

/// The declaration of a name.
pub fn declaration(name: &str) -> Option<&'static Declaration> {
    DECLARATIONS.iter().find(|one| one.name == name)
}

/// The table as a page of documentation: what `docs/knobs.md` holds.
pub fn markdown() -> String {
    let mut page = String::from(
        "# NCCL's variables\n\n\
         <!-- Written by `railnet knobs --markdown`. Do not edit: change crates/coll/src/variables/table.rs. -->\n\n\
         Railnet takes these of NCCL's variables by their own names. They come from a scenario's `[env]`, from a file\n\
         given with `--env-file` (lines of `NAME=VALUE`, as in `/etc/nccl.conf`; `export` and quotes of a shell\n\
         script do no harm), and from the environment; a later one\n\
         of these three wins. A wrong value is an error. A `NCCL_…` name that has no effect is reported once.\n\n\
         | name | values | default | where | what it does |\n| --- | --- | --- | --- | --- |\n",
    );
    for one in DECLARATIONS {
        let places: Vec<_> = one.places.iter().map(|place| place.name()).collect();
        let places = if places.is_empty() { "nowhere yet".to_owned() } else { places.join(", ") };
        let Declaration { name, values, default, text, .. } = one;
        let _ = writeln!(page, "| `{name}` | {values} | {default} | {places} | {text} |");
    }
    page
}
