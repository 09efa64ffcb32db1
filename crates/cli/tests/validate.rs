//! `railnet validate` from outside: the page in the documentation is what it writes.

use serde_json::Value;

use crate::harness::railnet;

const PAGE: &str = include_str!("../../../docs/collectives.md");

/// The quickest part stands for all: one that changes without the others is unlikely.
#[test]
fn the_page_has_what_the_command_measures() {
    let output = railnet(&["validate", "--only", "latency", "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = value["parts"][0]["rows"].as_array().unwrap();
    assert!(rows.len() >= 5);
    for row in rows {
        let text = |name: &str| row[name].as_str().unwrap();
        let (what, size, by, published) = (text("what"), text("size"), text("by"), text("published"));
        let railnet = row["Railnet"].as_f64().unwrap();
        let line = format!("| {what} | {size} | {by} | {published} | {railnet:.1} |");
        assert!(
            PAGE.contains(&line),
            "{line} is not in docs/collectives.md: run `railnet validate --write docs/collectives.md`"
        );
    }
}

#[test]
fn a_part_that_is_not_there_is_wrong_usage() {
    for (arguments, advice) in [
        (vec!["validate", "--only", "server"], "servers, clusters, latency"),
        (vec!["validate", "--only", "latency", "--write", "page.md"], "leave out --only"),
    ] {
        let output = railnet(&arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(message.contains(advice), "{message}");
    }
}
