//! How the NIC of a rank is made.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use crate::launch::Variables;
use crate::rendezvous::ConfigError;
use crate::roce::Faults;

/// How the NIC of a rank is made, where the conduit is RoCE.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RoceOptions {
    /// What happens to datagrams on their way out; each rank adds its number to the seed.
    pub faults: Faults,
    /// A file for what goes over the wire, as pcapng; each rank adds `.rank` and its number.
    pub capture: Option<PathBuf>,
    /// The UDP port of the first rank of a host; each further one has the next. One that is taken is left out, and
    /// without a number the system chooses.
    pub port: Option<u16>,
}

/// Captures that were begun in this process: ranks that meet again do not write over what they wrote before.
static CAPTURES: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

impl RoceOptions {
    /// What variables say: `RAILNET_FAULTS`, `RAILNET_PCAP`, `RAILNET_ROCE_PORT`.
    pub(crate) fn from_variables(variables: Variables<'_>) -> Result<Self, ConfigError> {
        let mut options = Self::default();
        if let Some(text) = variables("RAILNET_FAULTS") {
            let need = "shares and a seed are needed, such as drop=0.05,reorder=0.05,corrupt=0.05,seed=7 \
                        (also duplicate, delay, and hold with a time)";
            let wrong = |_| ConfigError { name: "RAILNET_FAULTS", text: text.clone(), need };
            options.faults = text.parse().map_err(wrong)?;
        }
        options.capture = variables("RAILNET_PCAP").map(PathBuf::from);
        if let Some(text) = variables("RAILNET_ROCE_PORT") {
            let need = "the number of a UDP port is needed, such as 4791";
            let wrong = |_| ConfigError { name: "RAILNET_ROCE_PORT", text: text.clone(), need };
            options.port = Some(text.parse().map_err(wrong)?);
        }
        Ok(options)
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
