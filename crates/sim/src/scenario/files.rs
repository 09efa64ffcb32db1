//! Files that a scenario names, and who reads them: this crate reads none.

use std::sync::Arc;

use railnet_coll::CustomAlgorithm;
use railnet_job::trace::{RankTrace, Recording};
use railnet_topology::host::Host;

/// Reads what a scenario names, and says why where it cannot. A closure that gives texts will do where nothing else is
/// named.
pub trait Files {
    /// A text: a list of flows or links.
    fn text(&mut self, path: &str) -> Result<String, String>;

    /// A server: NCCL's topology file.
    fn server(&mut self, _path: &str) -> Result<Host, String> {
        Err("files with servers are not read here".to_owned())
    }

    /// What a rank did: Chakra's execution trace.
    fn trace(&mut self, _path: &str) -> Result<RankTrace, String> {
        Err("files with traces are not read here".to_owned())
    }

    /// What a script did: a recording of `railnet dryrun`.
    fn recording(&mut self, _path: &str) -> Result<Recording, String> {
        Err("recordings of scripts are not read here".to_owned())
    }

    /// An algorithm: MSCCL's file.
    fn algorithm(&mut self, _path: &str) -> Result<Arc<dyn CustomAlgorithm>, String> {
        Err("files with algorithms are not read here".to_owned())
    }
}

impl<F: FnMut(&str) -> Result<String, String>> Files for F {
    fn text(&mut self, path: &str) -> Result<String, String> {
        self(path)
    }
}
