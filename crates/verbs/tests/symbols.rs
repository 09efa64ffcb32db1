//! The symbols of the shared object: all that the installed rdma-core has, each under its version.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]
#![allow(clippy::print_stderr, reason = "a test that is left out says so")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The shared object of this build, beside the tests.
fn shared_object() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let path = tests.parent().unwrap().join("librailnet_verbs.so");
    assert!(path.exists(), "{} is built with these tests", path.display());
    path
}

/// Every `symbol@version` that a library defines; `None` where `nm` or the library is not there.
fn symbols(library: &Path) -> Option<BTreeSet<String>> {
    let output = Command::new("nm")
        .args(["-D", "--defined-only", "--with-symbol-versions"])
        .arg(library)
        .output()
        .ok()?;
    if !output.status.success() {
        return None;
    }
    let text = String::from_utf8(output.stdout).unwrap();
    // Whether a version is the default one matters to linkers of new programs only.
    let named = text.lines().filter_map(|line| Some(line.split_whitespace().nth(2)?.replace("@@", "@")));
    Some(named.filter(|symbol| symbol.contains('@')).collect())
}

#[test]
fn every_symbol_of_the_installed_libraries_is_there() {
    let Some(own) = symbols(&shared_object()) else {
        eprintln!("LEFT OUT: nm (binutils) is needed to list symbols");
        return;
    };
    assert!(own.contains("ibv_open_device@IBVERBS_1.1") && own.contains("rdma_connect@RDMACM_1.0"));
    for name in ["libibverbs.so.1", "librdmacm.so.1"] {
        let folders = ["/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu", "/usr/lib64", "/lib64"];
        let installed = folders.iter().map(|folder| Path::new(folder).join(name)).find(|path| path.exists());
        let Some(theirs) = installed.and_then(|path| symbols(&path)) else {
            eprintln!("LEFT OUT: {name} is not installed");
            continue;
        };
        // Nodes of versions are symbols, too; nothing refers to them.
        let is_node =
            |symbol: &&String| symbol.split_once('@').is_some_and(|(symbol, version)| symbol == version);
        let missing: Vec<_> = theirs.difference(&own).filter(|symbol| !is_node(symbol)).collect();
        assert!(missing.is_empty(), "{name} has what this library does not: {missing:?}");
    }
}

#[test]
fn versions_that_are_newer_than_the_installed_ones_are_there() {
    let Some(own) = symbols(&shared_object()) else { return };
    for symbol in [
        "ibv_reg_mr_ex@IBVERBS_1.15",
        "ibv_query_port_speed@IBVERBS_1.16",
        "ibv_alloc_buf@IBVERBS_1.17",
        "_ibv_query_comp_cntr_caps@IBVERBS_1.18",
        // Programs look these two up under the oldest version.
        "ibv_get_cq_event@IBVERBS_1.0",
        "ibv_ack_cq_events@IBVERBS_1.0",
    ] {
        assert!(own.contains(symbol), "{symbol}");
    }
}
