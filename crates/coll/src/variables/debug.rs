//! `NCCL_DEBUG` and `NCCL_DEBUG_SUBSYS`: how much is told, and of what.

use super::selection::unknown;

/// How much NCCL tells of what it does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum DebugLevel {
    /// Nothing.
    #[default]
    Silent,
    /// Its version.
    Version,
    /// What went wrong.
    Warn,
    /// What it found and decided.
    Info,
    /// Everything.
    Trace,
}

/// What a line is about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Subsystem {
    /// Starting.
    Init,
    /// Collective calls.
    Coll,
    /// GPUs that reach each other.
    P2p,
    /// The host's memory.
    Shm,
    /// The network.
    Net,
    /// The search.
    Graph,
    /// The cost model.
    Tuning,
    /// Variables.
    Env,
    /// Memory.
    Alloc,
    /// Calls.
    Call,
    /// The threads that serve the network.
    Proxy,
    /// NVLink switches.
    Nvls,
    /// Ranks that find each other.
    Bootstrap,
    /// Registered memory.
    Reg,
    /// Profilers.
    Profile,
    /// NCCL's watch over jobs.
    Ras,
    /// Stopping.
    Destroy,
}

impl Subsystem {
    const ALL: [(Self, &'static str); 17] = [
        (Self::Init, "INIT"),
        (Self::Coll, "COLL"),
        (Self::P2p, "P2P"),
        (Self::Shm, "SHM"),
        (Self::Net, "NET"),
        (Self::Graph, "GRAPH"),
        (Self::Tuning, "TUNING"),
        (Self::Env, "ENV"),
        (Self::Alloc, "ALLOC"),
        (Self::Call, "CALL"),
        (Self::Proxy, "PROXY"),
        (Self::Nvls, "NVLS"),
        (Self::Bootstrap, "BOOTSTRAP"),
        (Self::Reg, "REG"),
        (Self::Profile, "PROFILE"),
        (Self::Ras, "RAS"),
        (Self::Destroy, "DESTROY"),
    ];

    const fn bit(self) -> u32 {
        1 << self as u32
    }
}

/// How much is told, and of what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Debug {
    /// How much is logged.
    pub level: DebugLevel,
    subsystems: u32,
}

impl Default for Debug {
    /// Nothing; and with INFO, what NCCL tells of without being asked.
    fn default() -> Self {
        let subsystems = [Subsystem::Init, Subsystem::Bootstrap, Subsystem::Env];
        Self {
            level: DebugLevel::Silent,
            subsystems: subsystems.iter().map(|one| one.bit()).fold(0, |all, bit| all | bit),
        }
    }
}

impl Debug {
    /// Whether a line of INFO about any of these is told.
    pub fn tells(&self, subsystems: &[Subsystem]) -> bool {
        self.level >= DebugLevel::Info && subsystems.iter().any(|one| self.subsystems & one.bit() != 0)
    }

    pub(super) fn level(text: &str) -> Result<DebugLevel, String> {
        const LEVELS: [(&str, DebugLevel); 6] = [
            ("NONE", DebugLevel::Silent),
            ("VERSION", DebugLevel::Version),
            ("WARN", DebugLevel::Warn),
            ("INFO", DebugLevel::Info),
            ("ABORT", DebugLevel::Info),
            ("TRACE", DebugLevel::Trace),
        ];
        let found = LEVELS.iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
        found.map(|(_, level)| *level).ok_or_else(|| unknown("level", text, &LEVELS.map(|(name, _)| name)))
    }

    /// Reads a list of subsystems as a set of bits.
    pub(super) fn subsystems(text: &str) -> Result<u32, String> {
        let (is_exclusion, list) = text.strip_prefix('^').map_or((false, text), |rest| (true, rest));
        let mut bits = 0;
        for word in list.split(',').map(str::trim) {
            let found = Subsystem::ALL.iter().find(|(_, name)| name.eq_ignore_ascii_case(word));
            bits |= match found {
                Some((one, _)) => one.bit(),
                None if word.eq_ignore_ascii_case("ALL") => u32::MAX,
                None => {
                    let mut names: Vec<&str> = Subsystem::ALL.iter().map(|(_, name)| *name).collect();
                    names.push("ALL");
                    return Err(unknown("subsystem", word, &names));
                }
            };
        }
        Ok(if is_exclusion { !bits } else { bits })
    }

    pub(super) const fn with(self, level: Option<DebugLevel>, subsystems: Option<u32>) -> Self {
        Self {
            level: match level {
                Some(level) => level,
                None => self.level,
            },
            subsystems: match subsystems {
                Some(bits) => bits,
                None => self.subsystems,
            },
        }
    }
}
