//! How the NIC of a rank is made.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use super::handshake::QUEUE_PAIRS;
use crate::launch::Variables;
use crate::rendezvous::ConfigError;
use crate::roce::Faults;

/// How the NIC of a rank is made, where the conduit is RoCE.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RoceOptions {
    /// What happens to datagrams on their way out; each rank adds its number to the seed.
    pub faults: Faults,
    /// A file for what goes over the wire, as pcapng; each rank adds `.rank` and its number.
    pub capture: Option<PathBuf>,
    /// The most packets that go into it; all without a number.
    pub capture_most: Option<u64>,
    /// The UDP port of the first rank of a host; each further one has the next. One that is taken is left out, and
    /// without a number the system chooses.
    pub port: Option<u16>,
    /// Queue pairs of a connection, 8 at most.
    pub queue_pairs: u32,
    /// Whether each message goes over all of them, in parts; otherwise they take turns.
    pub split: bool,
    /// DSCP and ECN bits of packets.
    pub traffic_class: u8,
    /// Code of the time without an acknowledgement after which something is sent again: 4.096 µs × 2^this.
    pub timeout: u8,
    /// How often, before a connection is given up; 7 is for ever.
    pub retry_count: u8,
}

/// Code of the acknowledgement timeout, 2.1 ms: what is lost at the end of a burst is sent again after it. A peer that
/// is not on its core for so long only gets something twice.
const TIMEOUT: u8 = 9;
/// Packets that can be marked by ECN, of no special class.
const TRAFFIC_CLASS: u8 = 0x02;

impl Default for RoceOptions {
    fn default() -> Self {
        Self {
            faults: Faults::default(),
            capture: None,
            capture_most: None,
            port: None,
            queue_pairs: 1,
            split: false,
            traffic_class: TRAFFIC_CLASS,
            timeout: TIMEOUT,
            // Who does not answer may be slow. Whether it is dead, the control channel knows.
            retry_count: 7,
        }
    }
}

/// Captures that were begun in this process: ranks that meet again do not write over what they wrote before.
static CAPTURES: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

impl RoceOptions {
    /// What variables say: `RAILNET_FAULTS`, `RAILNET_PCAP`, `RAILNET_PCAP_MOST`, `RAILNET_ROCE_PORT`.
    pub(crate) fn from_variables(variables: Variables<'_>) -> Result<Self, ConfigError> {
        let mut options = Self::default();
        if let Some(text) = variables("RAILNET_FAULTS") {
            let need = "shares and a seed are needed, such as drop=0.05,reorder=0.05,corrupt=0.05,seed=7 \
                        (also duplicate, delay, and hold with a time)";
            let wrong = |_| ConfigError { name: "RAILNET_FAULTS", text: text.clone(), need: need.into() };
            options.faults = text.parse().map_err(wrong)?;
        }
        options.capture = variables("RAILNET_PCAP").map(PathBuf::from);
        if let Some(text) = variables("RAILNET_PCAP_MOST") {
            let need = "the most packets of a capture are needed, such as 10000";
            let wrong = |_| ConfigError { name: "RAILNET_PCAP_MOST", text: text.clone(), need: need.into() };
            options.capture_most = Some(text.parse().map_err(wrong)?);
        }
        if let Some(text) = variables("RAILNET_ROCE_PORT") {
            let need = "the number of a UDP port is needed, such as 4791";
            let wrong = |_| ConfigError { name: "RAILNET_ROCE_PORT", text: text.clone(), need: need.into() };
            options.port = Some(text.parse().map_err(wrong)?);
        }
        Ok(options)
    }

    /// With what NCCL's variables say.
    pub(crate) fn with(self, variables: &railnet_coll::variables::Variables) -> Result<Self, ConfigError> {
        let number = |name: &str| variables.number(name);
        let queue_pairs = number("NCCL_IB_QPS_PER_CONNECTION").map_or(self.queue_pairs, |one| one as u32);
        if queue_pairs > QUEUE_PAIRS as u32 {
            let need = format!("processes have {QUEUE_PAIRS} queue pairs for a connection at most");
            let (name, text) = ("NCCL_IB_QPS_PER_CONNECTION", queue_pairs.to_string());
            return Err(ConfigError { name, text, need: need.into() });
        }
        Ok(Self {
            queue_pairs,
            split: variables.switch("NCCL_IB_SPLIT_DATA_ON_QPS").unwrap_or(self.split),
            traffic_class: number("NCCL_IB_TC").map_or(self.traffic_class, |one| one as u8),
            timeout: number("NCCL_IB_TIMEOUT").map_or(self.timeout, |one| one as u8),
            retry_count: number("NCCL_IB_RETRY_CNT").map_or(self.retry_count, |one| one as u8),
            ..self
        })
    }

    /// Begins the capture of a rank, where there is to be one.
    pub(crate) fn create_capture(&self, rank: u32) -> io::Result<Option<File>> {
        let Some(path) = &self.capture else { return Ok(None) };
        let mut taken = CAPTURES.lock().unwrap_or_else(PoisonError::into_inner);
        let named = |suffix: String| {
            let mut name = path.clone().into_os_string();
            name.push(suffix);
            PathBuf::from(name)
        };
        let names = (1..).map(|number| match number {
            1 => named(format!(".rank{rank}")),
            _ => named(format!(".rank{rank}.{number}")),
        });
        let name = names.into_iter().find(|name| !taken.contains(name)).expect("numbers do not end");
        let file = File::create(&name).map_err(|error| {
            let text = format!("cannot write the capture {}: {error}", name.display());
            io::Error::new(error.kind(), text)
        })?;
        taken.insert(name);
        Ok(Some(file))
    }
}
