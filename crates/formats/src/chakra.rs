//! Chakra execution traces (MLCommons): what one rank did, a file for each rank.
//!
//! A file is a row of Protocol Buffers messages, each after its length: `GlobalMetadata`, then one `Node` for each thing done
//! (mlcommons/chakra, schema/protobuf/et_def.proto). [`read`] is lenient about attributes, which differ by producer: it takes those
//! that say what a node does, and counts the others.
//!
//! ```
//! use railnet_formats::chakra;
//!
//! // Metadata of version "1", and a node 3 that computes (type 4) for 25 us.
//! let file = [3, 0x0a, 1, b'1', 6, 0x08, 3, 0x18, 4, 0x38, 25];
//! let trace = chakra::read(&file).expect("it is a trace");
//! assert_eq!(trace.nodes[0].id, 3);
//! ```

mod message;

use railnet_coll::Collective;
use railnet_core::{Bytes, Span};
use railnet_job::trace::{RankTrace, TraceNode, TraceWork};
use thiserror::Error;

use message::{Field, Fields, Value};

/// Why a file is no trace.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum ChakraError {
    /// It is compressed.
    #[error("it is compressed with gzip: unpack it first")]
    Compressed,
    /// It ends too soon, or is something else.
    #[error("it is no Chakra trace: {what} at byte {at}")]
    Damaged {
        /// What is wrong.
        what: &'static str,
        /// The byte of the file at which it was noticed.
        at: usize,
    },
    /// A node does not say what it should.
    #[error("node {node} ({name}) {what}")]
    Node {
        /// Its number.
        node: u64,
        /// What it is called.
        name: String,
        /// What is wrong with it.
        what: String,
    },
}

/// Reads the trace of a rank.
pub fn read(file: &[u8]) -> Result<RankTrace, ChakraError> {
    if file.starts_with(&[0x1f, 0x8b]) {
        return Err(ChakraError::Compressed);
    }
    let mut trace = RankTrace::default();
    for (number, found) in message::delimited(file).enumerate() {
        let fields = found?;
        // The first one is about the file.
        if number > 0 {
            let node = node(fields, &mut trace)?;
            trace.nodes.push(node);
        }
    }
    Ok(trace)
}

/// A node as it is written.
#[derive(Default)]
struct Written {
    id: u64,
    name: String,
    kind: u64,
    after: Vec<u64>,
    start_us: u64,
    duration_us: u64,
    attributes: Vec<(String, Value)>,
}

/// Attributes that say what a node does.
const KNOWN: [&str; 8] =
    ["is_cpu_op", "num_ops", "tensor_size", "comm_type", "comm_size", "comm_src", "comm_dst", "pg_name"];

fn node(fields: Fields<'_>, trace: &mut RankTrace) -> Result<TraceNode, ChakraError> {
    let mut written = Written::default();
    for field in fields {
        let (number, field) = field?;
        match (number, field) {
            (1, Field::Number(id)) => written.id = id,
            (2, Field::Bytes(name)) => written.name = name.text(),
            (3, Field::Number(kind)) => written.kind = kind,
            (4 | 5, Field::Number(before)) => written.after.push(before),
            (4 | 5, Field::Bytes(list)) => written.after.extend(list.packed()?),
            (6, Field::Number(us)) => written.start_us = us,
            (7, Field::Number(us)) => written.duration_us = us,
            (10, Field::Bytes(attribute)) => written.attributes.push(attribute.attribute()?),
            _ => {}
        }
    }
    for (name, _) in written.attributes.iter().filter(|(name, _)| !KNOWN.contains(&name.as_str())) {
        *trace.ignored.entry(name.clone()).or_insert(0) += 1;
    }
    let what = written.what(trace)?;
    // What a node names twice, or as data and as control, it waits for once.
    written.after.sort_unstable();
    written.after.dedup();
    let Written { id, name, after, start_us, .. } = written;
    Ok(TraceNode { id, name, what, after, start: Span::from_us(start_us) })
}

impl Written {
    fn wrong(&self, what: impl Into<String>) -> ChakraError {
        ChakraError::Node { node: self.id, name: self.name.clone(), what: what.into() }
    }

    fn attribute(&self, name: &str) -> Option<&Value> {
        self.attributes.iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }

    fn number(&self, name: &str) -> Result<Option<u64>, ChakraError> {
        match self.attribute(name) {
            None => Ok(None),
            Some(value) => match value.number() {
                Some(number) => Ok(Some(number)),
                None => Err(self.wrong(format!("has a {name} that is no number of 0 or more"))),
            },
        }
    }

    fn needed(&self, name: &str) -> Result<u64, ChakraError> {
        self.number(name)?.ok_or_else(|| self.wrong(format!("has no attribute {name}")))
    }

    fn rank(&self, name: &str) -> Result<u32, ChakraError> {
        u32::try_from(self.needed(name)?).map_err(|_| self.wrong(format!("has a {name} that is no rank")))
    }

    fn what(&self, trace: &mut RankTrace) -> Result<TraceWork, ChakraError> {
        let time = (self.duration_us > 0).then(|| Span::from_us(self.duration_us));
        let size = || self.number("tensor_size").map(|size| Bytes(size.unwrap_or(0)));
        match self.kind {
            1 => Ok(TraceWork::Nothing),
            2 | 3 => Ok(TraceWork::Compute { time, operations: 0, bytes: size()? }),
            4 if self.number("is_cpu_op")? == Some(1) => Ok(TraceWork::Nothing),
            4 => {
                let operations = self.number("num_ops")?.unwrap_or(0);
                Ok(TraceWork::Compute { time, operations, bytes: size()? })
            }
            5 => Ok(TraceWork::Send { to: self.rank("comm_dst")?, bytes: Bytes(self.needed("comm_size")?) }),
            6 => {
                let bytes = Bytes(self.needed("comm_size")?);
                Ok(TraceWork::Receive { from: self.rank("comm_src")?, bytes })
            }
            7 => {
                let collective = self.collective()?;
                let bytes = match collective {
                    Collective::Barrier => Bytes::ZERO,
                    _ => Bytes(self.needed("comm_size")?),
                };
                let group = self.attribute("pg_name").and_then(Value::name).filter(|name| !name.is_empty());
                Ok(TraceWork::Collective { collective, bytes, group })
            }
            other => {
                *trace.ignored.entry(format!("nodes of type {other}")).or_insert(0) += 1;
                Ok(TraceWork::Nothing)
            }
        }
    }

    /// By its number, or by its name.
    fn collective(&self) -> Result<Collective, ChakraError> {
        const NAMES: [(&str, Collective); 10] = [
            ("ALL_REDUCE", Collective::AllReduce),
            ("REDUCE", Collective::Reduce),
            ("ALL_GATHER", Collective::AllGather),
            ("GATHER", Collective::Gather),
            ("SCATTER", Collective::Scatter),
            ("BROADCAST", Collective::Broadcast),
            ("ALL_TO_ALL", Collective::AllToAll),
            ("REDUCE_SCATTER", Collective::ReduceScatter),
            ("REDUCE_SCATTER_BLOCK", Collective::ReduceScatter),
            ("BARRIER", Collective::Barrier),
        ];
        let found = match self.attribute("comm_type") {
            Some(Value::Text(text)) => {
                let name = text.to_ascii_uppercase();
                NAMES.iter().find(|(known, _)| *known == name).map(|(_, collective)| *collective)
            }
            _ => {
                let number = usize::try_from(self.needed("comm_type")?).unwrap_or(usize::MAX);
                NAMES.get(number).map(|(_, collective)| *collective)
            }
        };
        found.ok_or_else(|| self.wrong("has a comm_type that is no collective"))
    }
}
