//! NCCL's variables by their own names.
//!
//! Pairs of names and values are handed in, source by source: this crate reads no environment and no files. One table
//! ([`DECLARATIONS`]) says what each takes and does; `docs/knobs.md` is written from it.
//!
//! ```
//! use railnet_coll::variables::{Source, Variables};
//!
//! let file = Variables::parse_file("# for the lab\nNCCL_ALGO=ring\nNCCL_MAX_CTAS=8\n")?;
//! let environment = vec![("NCCL_MAX_CTAS".to_owned(), "4".to_owned())];
//! let variables = Variables::merge([(Source::File, file), (Source::Environment, environment)])?;
//! assert_eq!(variables.channels_max(), Some(4));
//! # Ok::<(), railnet_coll::variables::VariableError>(())
//! ```

mod debug;
mod selection;
mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use railnet_core::{Bytes, nearest};
use railnet_topology::host::PathType;
use thiserror::Error;

pub use debug::{Debug, DebugLevel, Subsystem};
pub use selection::{Selection, TUNED};
pub use table::{DECLARATIONS, Declaration, Form, Place, declaration, markdown};

use crate::options::{CrossNic, NicFilter, TopologyOptions};
use crate::tuner::Settings;

/// Where a value comes from; the later one wins.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Source {
    /// `[env]` of a scenario.
    Scenario,
    /// `--env-file`.
    File,
    /// The environment.
    Environment,
    /// An option of the command.
    Option,
}

/// How names begin of variables that people set for NCCL's network: its own, SHARP's, UCX's, libibverbs', libfabric's.
const PREFIXES: [&str; 7] = ["NCCL_", "SHARP_", "UCX_", "MLX5_", "IBV_", "FI_", "OFI_NCCL_"];

/// Whether a name is one that people set for NCCL or the network libraries below it.
pub fn is_network_name(name: &str) -> bool {
    PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// A value without the quotes around it.
fn unquoted(value: &str) -> &str {
    let inside = |quote| value.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote));
    inside('"').or_else(|| inside('\'')).unwrap_or(value)
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Scenario => "the scenario's [env]",
            Self::File => "the file of --env-file",
            Self::Environment => "the environment",
            Self::Option => "the command line",
        })
    }
}

/// What is wrong with a variable, or with a file of them.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum VariableError {
    /// It cannot have this value.
    #[error("{name}={value} ({origin}): {advice}")]
    Value {
        /// Its name.
        name: String,
        /// The value.
        value: String,
        /// Where it comes from.
        origin: Source,
        /// What is wrong, and what would be right.
        advice: String,
    },
    /// Two of them exclude each other.
    #[error("{low} is more than {high}: raise NCCL_MAX_CTAS or lower NCCL_MIN_CTAS")]
    Limits {
        /// What is at least wanted: name and value.
        low: String,
        /// What is at most wanted.
        high: String,
    },
    /// A line of a file is not a variable.
    #[error("line {line}: \"{text}\" is not of the form NAME=VALUE")]
    Line {
        /// Its number.
        line: usize,
        /// What it says.
        text: String,
    },
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Value {
    Number(i64),
    Bytes(u64),
    Level(PathType),
    Algorithms(Selection<7>),
    Protocols(Selection<3>),
    Devices(NicFilter),
    File(String),
    DebugLevel(DebugLevel),
    Subsystems(u32),
}

/// A variable that is set.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Entry {
    text: String,
    source: Source,
    value: Value,
}

/// Variables that are set, read and checked.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Variables {
    entries: BTreeMap<&'static str, Entry>,
    unknown: BTreeMap<String, Source>,
    /// Whether NICs are used through sockets, whatever `NCCL_IB_DISABLE` says.
    sockets: bool,
}

impl Variables {
    /// Puts sources together. Of two values for one name that of the later source counts, whatever the order they are
    /// given in. Names of NCCL's and of the libraries below it ([`is_network_name`]) that have no effect are kept to be named; all
    /// others are left alone.
    pub fn merge(
        sources: impl IntoIterator<Item = (Source, Vec<(String, String)>)>,
    ) -> Result<Self, VariableError> {
        let mut sources: Vec<_> = sources.into_iter().collect();
        sources.sort_by_key(|(source, _)| *source);
        let mut texts: BTreeMap<String, (String, Source)> = BTreeMap::new();
        for (source, pairs) in sources {
            for (name, value) in pairs.into_iter().filter(|(name, _)| is_network_name(name)) {
                texts.insert(name, (value, source));
            }
        }
        let mut variables = Self::default();
        for (name, (text, source)) in texts {
            let Some(declared) = declaration(&name) else {
                variables.unknown.insert(name, source);
                continue;
            };
            let text = text.trim().to_owned();
            let value = read(declared, &text).map_err(|advice| VariableError::Value {
                name,
                value: text.clone(),
                origin: source,
                advice,
            })?;
            variables.entries.insert(declared.name, Entry { text, source, value });
        }
        variables.check()?;
        Ok(variables)
    }

    /// Reads lines of `NAME=VALUE`; empty lines and those that begin with `#` are skipped, as in `nccl.conf`, and so are
    /// `export` and quotes, as a shell script has them.
    pub fn parse_file(text: &str) -> Result<Vec<(String, String)>, VariableError> {
        let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
        lines
            .filter(|(_, text)| !text.is_empty() && !text.starts_with('#'))
            .map(|(line, text)| {
                let wrong = || VariableError::Line { line, text: text.to_owned() };
                let (name, value) = text.split_once('=').ok_or_else(wrong)?;
                // Lines of a shell script are as good.
                let name = name.trim();
                let name = name.strip_prefix("export ").map_or(name, str::trim);
                if name.is_empty() || name.contains(char::is_whitespace) {
                    return Err(wrong());
                }
                Ok((name.to_owned(), unquoted(value.trim()).to_owned()))
            })
            .collect()
    }

    fn check(&self) -> Result<(), VariableError> {
        if let (Some(low), Some(high)) = (self.channels_min(), self.channels_max())
            && low > high
        {
            let name = |names: [&'static str; 2], value: u32| {
                let set = names.into_iter().find(|name| self.entries.contains_key(name));
                format!("{}={value}", set.unwrap_or("NCCL_NCHANNELS"))
            };
            let low = name(["NCCL_MIN_CTAS", "NCCL_MIN_NCHANNELS"], low);
            let high = name(["NCCL_MAX_CTAS", "NCCL_MAX_NCHANNELS"], high);
            return Err(VariableError::Limits { low, high });
        }
        Ok(())
    }

    /// Names that are set and do nothing in a command, one line each.
    pub fn without_effect(&self, place: Place) -> Vec<String> {
        let mut lines = Vec::new();
        for (name, source) in &self.unknown {
            let names: Vec<&str> = DECLARATIONS.iter().map(|one| one.name).collect();
            let advice = nearest(name, &names).map(|known| format!("; did you mean {known}?"));
            lines.push(format!("{name} ({source}) has no effect in Railnet{}", advice.unwrap_or_default()));
        }
        for (name, entry) in self.elsewhere(place) {
            let command = place.name();
            lines.push(format!("{name} ({}) has no effect in railnet {command}", entry.source));
        }
        lines
    }

    /// The names alone of those that are set and do nothing in a command.
    pub fn names_without_effect(&self, place: Place) -> impl Iterator<Item = &str> {
        self.unknown.keys().map(String::as_str).chain(self.elsewhere(place).map(|(name, _)| name))
    }

    /// Those that other commands read, and this one does not.
    fn elsewhere(&self, place: Place) -> impl Iterator<Item = (&'static str, &Entry)> {
        let has_effect =
            move |name| declaration(name).is_some_and(|declared| declared.places.contains(&place));
        self.entries.iter().map(|(name, entry)| (*name, entry)).filter(move |(name, _)| !has_effect(name))
    }

    /// Everything that is set: name, value as written, and where.
    pub fn set(&self) -> impl Iterator<Item = (&'static str, &str, Source)> {
        self.entries.iter().map(|(name, entry)| (*name, entry.text.as_str(), entry.source))
    }

    fn value(&self, name: &str) -> Option<&Value> {
        debug_assert!(declaration(name).is_some(), "{name} is not declared");
        self.entries.get(name).map(|entry| &entry.value)
    }

    /// A number, where one is set.
    pub fn number(&self, name: &str) -> Option<i64> {
        match self.value(name)? {
            Value::Number(number) => Some(*number),
            _ => None,
        }
    }

    /// Whether a switch is on, where it is set.
    pub fn switch(&self, name: &str) -> Option<bool> {
        self.number(name).map(|number| number != 0)
    }

    fn small(&self, name: &str) -> Option<u32> {
        self.number(name).and_then(|number| u32::try_from(number).ok())
    }

    /// An amount of data, where one is set.
    pub fn bytes(&self, name: &str) -> Option<Bytes> {
        match self.value(name)? {
            Value::Bytes(bytes) => Some(Bytes(*bytes)),
            _ => None,
        }
    }

    /// A kind of path, where one is set.
    pub fn level(&self, name: &str) -> Option<PathType> {
        match self.value(name)? {
            Value::Level(level) => Some(*level),
            _ => None,
        }
    }

    /// A list of devices, where one is set.
    pub fn devices(&self, name: &str) -> Option<&NicFilter> {
        match self.value(name)? {
            Value::Devices(devices) => Some(devices),
            _ => None,
        }
    }

    /// The name of the file with the server (`NCCL_TOPO_FILE`).
    pub fn topology_file(&self) -> Option<&str> {
        match self.value("NCCL_TOPO_FILE")? {
            Value::File(file) => Some(file),
            _ => None,
        }
    }

    /// Channels at least.
    pub fn channels_min(&self) -> Option<u32> {
        ["NCCL_MIN_CTAS", "NCCL_MIN_NCHANNELS", "NCCL_NCHANNELS"]
            .into_iter()
            .find_map(|name| self.small(name))
    }

    /// Channels at most.
    pub fn channels_max(&self) -> Option<u32> {
        ["NCCL_MAX_CTAS", "NCCL_MAX_NCHANNELS", "NCCL_NCHANNELS"]
            .into_iter()
            .find_map(|name| self.small(name))
    }

    /// Whether the network's switches may reduce.
    pub fn collnet(&self) -> bool {
        self.switch("NCCL_COLLNET_ENABLE").unwrap_or(false)
    }

    /// How much is told, and of what.
    pub fn debug(&self) -> Debug {
        let level = match self.value("NCCL_DEBUG") {
            Some(Value::DebugLevel(level)) => Some(*level),
            _ => None,
        };
        let subsystems = match self.value("NCCL_DEBUG_SUBSYS") {
            Some(Value::Subsystems(bits)) => Some(*bits),
            _ => None,
        };
        Debug::default().with(level, subsystems)
    }

    /// NICs are used through sockets, as with `NCCL_IB_DISABLE=1`.
    #[must_use]
    pub fn over_sockets(self) -> Self {
        Self { sockets: true, ..self }
    }

    /// Whether NICs are used through sockets.
    pub fn uses_sockets(&self) -> bool {
        self.sockets || self.switch("NCCL_IB_DISABLE").unwrap_or(false)
    }

    /// What the search takes from here.
    pub fn topology(&self) -> TopologyOptions {
        let usual = TopologyOptions::default();
        let is_on = |name: &str| self.switch(name).unwrap_or(false);
        TopologyOptions {
            p2p_disable: is_on("NCCL_P2P_DISABLE"),
            p2p_level: self.level("NCCL_P2P_LEVEL"),
            shm_disable: is_on("NCCL_SHM_DISABLE"),
            net_gdr_level: self.level("NCCL_NET_GDR_LEVEL"),
            net_gdr_read: self.switch("NCCL_NET_GDR_READ"),
            pxn_disable: is_on("NCCL_PXN_DISABLE"),
            cross_nic: match self.number("NCCL_CROSS_NIC") {
                Some(0) => CrossNic::Never,
                Some(1) => CrossNic::Always,
                _ => CrossNic::Auto,
            },
            ib_disable: self.uses_sockets(),
            ib_hca: self.devices("NCCL_IB_HCA").cloned().unwrap_or(usual.ib_hca),
            collnet_enable: self.collnet(),
            nvls_enable: self.number("NCCL_NVLS_ENABLE") != Some(0),
            channels_min: self.channels_min().unwrap_or(usual.channels_min),
            channels_max: self.channels_max().unwrap_or(usual.channels_max),
        }
    }

    /// What the cost model takes from here.
    pub fn settings(&self) -> Settings {
        let mut settings = Settings::default();
        if let Some(Value::Algorithms(selection)) = self.value("NCCL_ALGO") {
            settings.algorithms = selection.clone();
        }
        if let Some(Value::Protocols(selection)) = self.value("NCCL_PROTO") {
            settings.protocols = selection.clone();
        }
        let buffers = ["NCCL_LL_BUFFSIZE", "NCCL_LL128_BUFFSIZE", "NCCL_BUFFSIZE"];
        for (buffer, name) in settings.buffers.iter_mut().zip(buffers) {
            *buffer = self.bytes(name).unwrap_or(*buffer);
        }
        settings.threads = self.small("NCCL_NTHREADS");
        settings.net_overhead_us =
            self.small("NCCL_NET_OVERHEAD").map(|nanoseconds| nanoseconds as f32 / 1000.0);
        settings.collnet = self.collnet();
        settings.nvls = self.number("NCCL_NVLS_ENABLE") != Some(0);
        settings
    }
}

/// Reads a value as its declaration has it, or says what would be right.
fn read(declared: &Declaration, text: &str) -> Result<Value, String> {
    match declared.form {
        Form::Switch => match integer(text) {
            Some(number @ 0..=1) => Ok(Value::Number(number)),
            _ => Err("0 or 1 is wanted".to_owned()),
        },
        Form::Number(least, most) => match integer(text).filter(|number| (least..=most).contains(number)) {
            Some(number) if declared.name == "NCCL_NTHREADS" && number % 32 != 0 => {
                Err("threads come in warps of 32".to_owned())
            }
            Some(number) => Ok(Value::Number(number)),
            None => Err(format!("a whole number from {least} to {most} is wanted")),
        },
        Form::Bytes(least, most) => {
            let bytes = integer(text).and_then(|number| u64::try_from(number).ok());
            let bytes = bytes.filter(|bytes| (least..=most).contains(bytes));
            let advice =
                || format!("a whole number of bytes from {least} to {most} is wanted, without a unit");
            bytes.map(Value::Bytes).ok_or_else(advice)
        }
        Form::Level => level(text).map(Value::Level),
        Form::Algorithms => {
            let names = ["Tree", "Ring", "CollnetDirect", "CollnetChain", "NVLS", "NVLSTree", "PAT"];
            Selection::parse(text, "algorithm", &names).map(Value::Algorithms)
        }
        Form::Protocols => {
            Selection::parse(text, "protocol", &["LL", "LL128", "Simple"]).map(Value::Protocols)
        }
        Form::Devices => devices(text).map(Value::Devices),
        Form::File if text.is_empty() => Err("the name of a file is wanted".to_owned()),
        Form::File => Ok(Value::File(text.to_owned())),
        Form::DebugLevel => Debug::level(text).map(Value::DebugLevel),
        Form::Subsystems => Debug::subsystems(text).map(Value::Subsystems),
    }
}

/// A number as C's `strtoll` reads it: decimal, or hexadecimal after `0x`.
fn integer(text: &str) -> Option<i64> {
    let (is_negative, digits) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let hexadecimal = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X"));
    let is_plain = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = match hexadecimal {
        Some(digits) if is_plain(digits) => i64::from_str_radix(digits, 16).ok()?,
        None if is_plain(digits) => digits.parse().ok()?,
        _ => return None,
    };
    Some(if is_negative { -number } else { number })
}

/// Names of devices, each perhaps with its port, rail and plane.
fn devices(text: &str) -> Result<NicFilter, String> {
    let list = text.trim_start_matches('^').trim_start_matches('=');
    for device in list.split(',') {
        let mut parts = device.trim().split(':');
        if parts.next().is_none_or(str::is_empty) {
            return Err("a name is missing: write it like mlx5_0,mlx5_1".to_owned());
        }
        if parts.any(|number| number.parse::<u32>().is_err()) {
            return Err(format!("\"{}\" is not of the form name:port:rail:plane", device.trim()));
        }
    }
    Ok(NicFilter::new(text))
}

/// A kind of path by name, or by the number it had in NCCL's early days.
fn level(text: &str) -> Result<PathType, String> {
    const LEVELS: [PathType; 6] =
        [PathType::Loc, PathType::Nvl, PathType::Pix, PathType::Pxb, PathType::Phb, PathType::Sys];
    const NUMBERS: [PathType; 6] =
        [PathType::Loc, PathType::Pix, PathType::Pxb, PathType::Phb, PathType::Sys, PathType::Sys];
    if let Some(number) = integer(text).filter(|number| *number >= 0) {
        return Ok(NUMBERS[(number as usize).min(NUMBERS.len() - 1)]);
    }
    let found = LEVELS.into_iter().find(|level| level.name().eq_ignore_ascii_case(text));
    found.ok_or_else(|| selection::unknown("distance", text, &LEVELS.map(PathType::name)))
}

/// `a protocol`, `an algorithm`.
fn article(noun: &str) -> String {
    let vowel = noun.starts_with(['a', 'e', 'i', 'o']);
    format!("{} {noun}", if vowel { "an" } else { "a" })
}
