//! What `railnet dryrun` records: a JSON file with what one rank of each role did in a step.
//!
//! `{"format": "railnet recording", "version": 1, "ranks": 64, "command": "python train.py", "roles": […]}`. A role has lists of
//! `lines`, `kernels` and `groups`, and `operations` that name them by their places:
//!
//! | operation | what |
//! | --- | --- |
//! | `["k", line, stream, pass, kernel]` | a kernel |
//! | `["c", line, stream, pass, id, collective, group, bytes, dtype]` | a collective |
//! | `["s", line, stream, pass, id, rank, bytes]`, `["r", …]` | a message to a rank, or from it |
//! | `["w", stream, id]` | a stream waits for communication |
//! | `["e", stream, event]`, `["v", stream, event]` | an event is recorded; a stream waits for it |
//! | `["h", stream]` | the CPU waits for a stream; for all where it is `null` |
//!
//! A kernel is `["p", m, n, k, count, format, bytes, out]`, `["a", flops, is_backward]` or `["m", bytes]`; a pass is 0 forward,
//! 1 recomputation, 2 backward, 3 the optimiser.
//!
//! ```
//! let file = r#"{"format": "railnet recording", "version": 1, "ranks": 8, "command": "", "roles": [{
//!     "rank": 0, "lines": ["train.py:3"], "kernels": [["m", 4096]], "groups": [], "operations": [["k", 0, 0, 0, 0]],
//!     "memory": {"parameters": 0, "gradients": 0, "optimiser": 0, "peak": 4096}, "notes": []}]}"#;
//! assert_eq!(railnet_formats::recording::read(file).expect("it is one").roles[0].operations.len(), 1);
//! ```

use railnet_core::{Bytes, DataType};
use railnet_job::compute::{Format, Kernel};
use railnet_job::graph::Pass;
use railnet_job::trace::{Origin, RecordedGroup, RecordedMemory, RecordedOperation, Recording, Role};
use serde_json::Value;
use thiserror::Error;

/// The version that is read.
const VERSION: u64 = 1;
/// Ranks, and bytes of a buffer, that there may be.
const RANKS_MAX: u64 = 1 << 20;

/// Why a file is no recording.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum RecordingFileError {
    /// It is no JSON.
    #[error("it is no JSON: {why}")]
    Json {
        /// Why.
        why: String,
    },
    /// It is something else.
    #[error("it is no recording of railnet dryrun: its \"format\" is not \"{wanted}\"")]
    Format {
        /// What it should be.
        wanted: &'static str,
    },
    /// It has another version.
    #[error("it is a recording of version {found}; version {VERSION} is read here")]
    Version {
        /// Which.
        found: u64,
    },
    /// Something in it is not what it should be.
    #[error("{at} is no {wanted}")]
    Wrong {
        /// Where.
        at: String,
        /// What it should be.
        wanted: &'static str,
    },
}

/// Reads a recording of all roles.
pub fn read(text: &str) -> Result<Recording, RecordingFileError> {
    let value = parse(text, "railnet recording")?;
    let top = At { value: &value, path: String::new() };
    let roles = top.list("roles")?;
    let roles = roles.into_iter().map(|one| role(&one)).collect::<Result<_, _>>()?;
    Ok(Recording { ranks: top.rank("ranks")?, roles, command: top.text("command")? })
}

/// Reads what one rank recorded.
pub fn read_role(text: &str) -> Result<Role, RecordingFileError> {
    let value = parse(text, "railnet recording of a role")?;
    role(&At { value: &value, path: String::new() })
}

fn parse(text: &str, wanted: &'static str) -> Result<Value, RecordingFileError> {
    let value: Value =
        serde_json::from_str(text).map_err(|error| RecordingFileError::Json { why: error.to_string() })?;
    if value.get("format").and_then(Value::as_str) != Some(wanted) {
        return Err(RecordingFileError::Format { wanted });
    }
    match value.get("version").and_then(Value::as_u64) {
        Some(VERSION) => Ok(value),
        found => Err(RecordingFileError::Version { found: found.unwrap_or(0) }),
    }
}

/// A value, and where it is.
struct At<'a> {
    value: &'a Value,
    path: String,
}

impl<'a> At<'a> {
    fn wrong<T>(&self, wanted: &'static str) -> Result<T, RecordingFileError> {
        Err(RecordingFileError::Wrong { at: self.path.clone(), wanted })
    }

    fn key(&self, name: &str) -> Self {
        let path = if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) };
        At { value: self.value.get(name).unwrap_or(&Value::Null), path }
    }

    fn place(&self, place: usize) -> Self {
        At { value: self.value.get(place).unwrap_or(&Value::Null), path: format!("{}[{place}]", self.path) }
    }

    fn items(&self) -> Result<Vec<At<'a>>, RecordingFileError> {
        let Some(items) = self.value.as_array() else { return self.wrong("list") };
        let path = |place| format!("{}[{place}]", self.path);
        Ok(items.iter().enumerate().map(|(place, value)| At { value, path: path(place) }).collect())
    }

    fn list(&self, name: &str) -> Result<Vec<At<'a>>, RecordingFileError> {
        self.key(name).items()
    }

    fn number(&self) -> Result<u64, RecordingFileError> {
        // As large as sizes may be that are multiplied later.
        match self.value.as_u64().filter(|number| *number < 1 << 60) {
            Some(number) => Ok(number),
            None => self.wrong("number of 0 or more"),
        }
    }

    fn small(&self) -> Result<u32, RecordingFileError> {
        match u32::try_from(self.number()?) {
            Ok(number) => Ok(number),
            Err(_) => self.wrong("number of 32 bits"),
        }
    }

    fn rank(&self, name: &str) -> Result<u32, RecordingFileError> {
        let at = self.key(name);
        match at.number()? {
            number if number <= RANKS_MAX => Ok(number as u32),
            _ => at.wrong("number of ranks"),
        }
    }

    fn text(&self, name: &str) -> Result<String, RecordingFileError> {
        self.key(name).string().map(str::to_owned)
    }

    fn string(&self) -> Result<&'a str, RecordingFileError> {
        match self.value.as_str() {
            Some(text) => Ok(text),
            None => self.wrong("text"),
        }
    }

    fn texts(&self, name: &str) -> Result<Vec<String>, RecordingFileError> {
        self.list(name)?.iter().map(|one| one.string().map(str::to_owned)).collect()
    }
}

fn role(at: &At<'_>) -> Result<Role, RecordingFileError> {
    let memory = at.key("memory");
    let bytes = |name: &str| memory.key(name).number().map(Bytes);
    let groups = at.list("groups")?.into_iter().map(|one| {
        let ranks = one.list("ranks")?.iter().map(At::small).collect::<Result<Vec<_>, _>>()?;
        if ranks.is_empty() {
            return one.wrong("group: it has no ranks");
        }
        Ok(RecordedGroup { name: one.text("name")?, ranks })
    });
    Ok(Role {
        rank: at.rank("rank")?,
        lines: at.texts("lines")?,
        kernels: at.list("kernels")?.iter().map(kernel).collect::<Result<_, _>>()?,
        groups: groups.collect::<Result<_, _>>()?,
        operations: at.list("operations")?.iter().map(operation).collect::<Result<_, _>>()?,
        memory: RecordedMemory {
            parameters: bytes("parameters")?,
            gradients: bytes("gradients")?,
            optimiser: bytes("optimiser")?,
            peak: bytes("peak")?,
        },
        notes: at.texts("notes")?,
    })
}

fn kernel(at: &At<'_>) -> Result<Kernel, RecordingFileError> {
    let number = |place| at.place(place).number();
    // Products of sizes are counted in 64 bits.
    let size = |place| {
        let at = at.place(place);
        at.number().and_then(|size| if size < 1 << 32 { Ok(size) } else { at.wrong("size of a matrix") })
    };
    match at.place(0).string()? {
        "p" => {
            let format = match at.place(5).string()? {
                "half" => Format::Half,
                "eight" => Format::Eight,
                "tf32" => Format::Tf32,
                "single" => Format::Single,
                _ => return at.place(5).wrong("format: half, eight, tf32 or single"),
            };
            let (m, n, k, count) = (size(1)?, size(2)?, size(3)?, size(4)?);
            let whole = [m, n, k, count].into_iter().try_fold(1_u64, u64::checked_mul);
            if whole.is_none_or(|whole| whole > 1 << 62) {
                return at.wrong("matrix product that a GPU computes");
            }
            Ok(Kernel::Product { m, n, k, count, format, bytes: size(6)?.min(16), out: size(7)?.min(16) })
        }
        "a" => {
            let is_backward = at.place(2).value.as_bool();
            let Some(is_backward) = is_backward else { return at.place(2).wrong("truth value") };
            Ok(Kernel::Attention { flops: number(1)?, is_backward })
        }
        "m" => Ok(Kernel::Stream { bytes: number(1)? }),
        _ => at.place(0).wrong("kernel: p, a or m"),
    }
}

fn operation(at: &At<'_>) -> Result<RecordedOperation, RecordingFileError> {
    let small = |place| at.place(place).small();
    let bytes = |place| at.place(place).number().map(Bytes);
    let origin = || Ok(Origin { line: small(1)?, stream: small(2)?, pass: pass(&at.place(3))? });
    Ok(match at.place(0).string()? {
        "k" => RecordedOperation::Kernel { origin: origin()?, kernel: small(4)? },
        "c" => {
            let Ok(collective) = at.place(5).string()?.parse() else {
                return at.place(5).wrong("collective");
            };
            let Ok(dtype) = at.place(8).string()?.parse::<DataType>() else {
                return at.place(8).wrong("data type");
            };
            let (id, group, bytes) = (small(4)?, small(6)?, bytes(7)?);
            RecordedOperation::Collective { origin: origin()?, id, collective, group, bytes, dtype }
        }
        "s" => RecordedOperation::Send { origin: origin()?, id: small(4)?, to: small(5)?, bytes: bytes(6)? },
        "r" => {
            RecordedOperation::Receive { origin: origin()?, id: small(4)?, from: small(5)?, bytes: bytes(6)? }
        }
        "w" => RecordedOperation::Wait { stream: small(1)?, id: small(2)? },
        "e" => RecordedOperation::RecordEvent { stream: small(1)?, event: small(2)? },
        "v" => RecordedOperation::WaitEvent { stream: small(1)?, event: small(2)? },
        "h" => {
            let stream = at.place(1);
            let stream = if stream.value.is_null() { None } else { Some(stream.small()?) };
            RecordedOperation::Synchronise { stream }
        }
        _ => return at.place(0).wrong("operation: k, c, s, r, w, e, v or h"),
    })
}

fn pass(at: &At<'_>) -> Result<Pass, RecordingFileError> {
    match at.number()? {
        0 => Ok(Pass::Forward),
        1 => Ok(Pass::Recompute),
        2 => Ok(Pass::Backward),
        3 => Ok(Pass::Optimiser),
        _ => at.wrong("pass: 0 to 3"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(operation: &str) -> Result<Recording, RecordingFileError> {
        let text = format!(
            r#"{{"format": "railnet recording", "version": 1, "ranks": 8, "command": "", "roles": [{{
                "rank": 0, "lines": ["a.py:1"], "kernels": [["m", 4096]], "groups": [{{"name": "dp", "ranks": [0, 1]}}],
                "operations": [{operation}],
                "memory": {{"parameters": 0, "gradients": 0, "optimiser": 0, "peak": 0}}, "notes": []}}]}}"#
        );
        read(&text)
    }

    #[test]
    fn operations_are_read() {
        let read =
            with(r#"["c", 0, 1, 2, 7, "AllReduce", 0, 1024, "bf16"], ["h", null]"#).expect("it is right");
        let origin = Origin { line: 0, stream: 1, pass: Pass::Backward };
        let collective = railnet_coll::Collective::AllReduce;
        let first = RecordedOperation::Collective {
            origin,
            id: 7,
            collective,
            group: 0,
            bytes: Bytes(1024),
            dtype: DataType::Bf16,
        };
        assert_eq!(read.roles[0].operations, [first, RecordedOperation::Synchronise { stream: None }]);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        let text = |operation| with(operation).unwrap_err().to_string();
        assert_eq!(text(r#"["x"]"#), "roles[0].operations[0][0] is no operation: k, c, s, r, w, e, v or h");
        assert_eq!(text(r#"["k", 0, -1, 0, 0]"#), "roles[0].operations[0][2] is no number of 0 or more");
        assert_eq!(text(r#"["w", 0]"#), "roles[0].operations[0][2] is no number of 0 or more");
        assert!(read("{}").unwrap_err().to_string().contains("no recording of railnet dryrun"));
        assert!(read("[").unwrap_err().to_string().starts_with("it is no JSON"));
    }
}
