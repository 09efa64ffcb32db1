//! Who sends what to whom: ranges of hosts, jitter, and flows from files.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use railnet_core::event::NoSink;
use railnet_core::{Digest, Time};
use railnet_sim::{Outcome, Run, Scenario, ScenarioError};

const FABRIC: &str = "[fabric]\ntopology = { kind = \"single-switch\", hosts = 8 }\n";

fn outcome(text: &str) -> Outcome {
    let scenario = Scenario::parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    railnet_sim::run(&scenario, NoSink).unwrap().0
}

/// The pairs of a table's flows, in order.
fn pairs(table: &str) -> Vec<(u32, u32)> {
    let outcome = outcome(&format!("{FABRIC}[[traffic]]\n{table}\nbytes = \"4KB\"\n"));
    outcome.flows.iter().map(|flow| (flow.flow.source, flow.flow.target)).collect()
}

#[test]
fn tables_are_about_the_hosts_they_name() {
    assert_eq!(pairs("kind = \"all-to-all\"\nhosts = \"4..5\""), [(4, 5), (5, 4)]);
    assert_eq!(pairs("kind = \"all-to-all\"\nhosts = \"1,6,7\"").len(), 6);
    assert_eq!(pairs("kind = \"all-to-all\"\nhosts = 3").len(), 6);
    assert_eq!(pairs("kind = \"all-to-all\"").len(), 56);
    let even = pairs("kind = \"permutation\"\nhosts = \"0..7/2\"");
    assert_eq!(even.iter().map(|pair| pair.0).collect::<Vec<_>>(), [0, 2, 4, 6]);
    assert!(even.iter().all(|(source, target)| target % 2 == 0 && source != target));
    let ring = pairs("kind = \"ring\"\nhosts = \"5,2,7\"");
    assert_eq!(ring[..3], [(5, 2), (2, 7), (7, 5)], "in the order they are written");
    assert_eq!(ring.len(), 12);
    assert_eq!(pairs("kind = \"ring\"\nhosts = 2")[..2], [(0, 1), (1, 0)]);
    assert_eq!(pairs("kind = \"incast\"\nfrom = \"0,3..5,7\"\nto = 3"), [(0, 3), (4, 3), (5, 3), (7, 3)]);
}

#[test]
fn a_table_about_all_hosts_is_the_same_said_and_unsaid() {
    let digest = |hosts: &str| {
        let text = format!("{FABRIC}[[traffic]]\nkind = \"permutation\"\n{hosts}\nbytes = \"100KB\"\n");
        railnet_sim::run(&Scenario::parse(&text).unwrap(), Digest::new()).unwrap().1.finish()
    };
    assert_eq!(digest(""), digest("hosts = 8"));
    assert_eq!(digest(""), digest("hosts = \"0..7\""));
    assert_ne!(digest(""), digest("jitter = \"1us\""));
}

#[test]
fn jitter_spreads_starts_over_its_length_and_no_further() {
    let outcome = outcome(&format!(
        "{FABRIC}[[traffic]]\nkind = \"all-to-all\"\nbytes = \"4KB\"\nstart = \"10us\"\njitter = \"5us\"\n"
    ));
    let starts: Vec<u64> = outcome.flows.iter().map(|flow| flow.started.as_ps()).collect();
    assert!(starts.iter().all(|start| (10_000_000..=15_000_000).contains(start)));
    let mean = starts.iter().sum::<u64>() as f64 / starts.len() as f64;
    assert!((11.5e6..13.5e6).contains(&mean), "{mean}");
    let differing = starts.iter().collect::<std::collections::BTreeSet<_>>().len();
    assert!(differing > 50, "{differing} of 56 start at moments of their own");
}

fn listed(content: &str, rest: &str) -> Result<Scenario, ScenarioError> {
    let text = format!("{FABRIC}[[traffic]]\nkind = \"list\"\nfile = \"flows.csv\"\n{rest}");
    Scenario::parse_with(&text, |_: &str| Ok(content.to_owned()))
}

/// Source, target, bytes, start in ns and priority of each flow of a file.
fn flows(content: &str, rest: &str) -> Vec<(u32, u32, u64, u64, u8)> {
    let (outcome, _) = railnet_sim::run(&listed(content, rest).unwrap(), NoSink).unwrap();
    let flows = outcome.flows.iter();
    flows
        .map(|flow| {
            let since = flow.started.since(Time::ZERO).as_ps() / 1000;
            (flow.flow.source, flow.flow.target, flow.flow.bytes, since, flow.flow.priority)
        })
        .collect()
}

#[test]
fn flows_are_read_from_a_file() {
    let expected = [(0, 1, 4096, 0, 0), (2, 3, 8000, 1500, 0)];
    assert_eq!(flows("0,1,4KiB,0s\n2,3,8000,1.5us\n", ""), expected);
    assert_eq!(flows("# who, whom\n0 1 4096\n\n2 3 8KB 1500ns\n", ""), expected);
    assert_eq!(flows("bytes,target,source,start_us\n4096,1,0,\n8000,host3,host2,1.5\n", ""), expected);
    assert_eq!(flows("host0,host1,1B\n", ""), [(0, 1, 1, 0, 0)]);
    let later = flows("0,1,4KiB,0s\n2,3,8000,1.5us\n", "start = \"10us\"\npriority = 2\n");
    assert_eq!(later, [(0, 1, 4096, 10_000, 2), (2, 3, 8000, 11_500, 2)]);
    let priorities = flows("source,target,bytes,priority\n0,1,1,5\n0,1,1,\n", "priority = 2\n");
    assert_eq!(priorities, [(0, 1, 1, 0, 5), (0, 1, 1, 0, 2)]);
}

#[test]
fn the_flow_files_of_hpcc_are_read() {
    let content = "2\n0 1 3 100 4096 0.000000000\n2 3 3 100 8000 0.0000015\n";
    assert_eq!(flows(content, ""), [(0, 1, 4096, 0, 3), (2, 3, 8000, 1500, 3)]);
    let error = Run::new(&listed(&content.replace("2\n0", "3\n0"), "").unwrap(), NoSink).err().unwrap();
    assert!(error.message.contains("3 flows are announced and 2 are there"), "{error}");
}

#[test]
fn a_bad_line_is_shown_with_the_file() {
    for (content, hint, place) in [
        ("0,1,1MB\n0,9,1MB\n", "no host 9", "9"),
        ("0,1,1MB\n0,hots3,1MB\n", "no host or switch \"hots3\"", "hots3"),
        ("0,switch0,1MB\n", "is a switch", "switch0"),
        ("0,1,1MB\n3,3,1MB\n", "to itself", "3"),
        ("0,1,1mb\n", "could be bits or bytes", "1mb"),
        ("0,1,many\n", "cannot read \"many\"", "many"),
        ("0,1\n", "the number of bytes is missing", "0,1"),
        ("0,1,1MB,5\n", "no unit", "5"),
        ("0,1,1MB,5us,1\n", "4 fields at most", "1"),
        ("source,target,byte\n", "no column \"byte\"", "byte"),
        ("source,target\n", "column \"bytes\" is missing", "source,target"),
        ("source,target,bytes,priority\n0,1,1,8\n", "no priority 8", "8"),
        ("x\n", "the number of flows is a number", "x"),
        ("# nothing\n", "no flows here", ""),
    ] {
        let error =
            Run::new(&listed(content, "").unwrap(), NoSink).err().unwrap_or_else(|| panic!("{content}"));
        assert!(error.message.contains(hint), "{content}: {error}");
        assert_eq!(error.file.as_ref().unwrap().path, "flows.csv");
        assert_eq!(&content[error.span.unwrap()], place, "{content}");
    }
}

#[test]
fn bad_tables_are_refused_with_their_place() {
    for (table, hint, place) in [
        ("kind = \"all-to-all\"\nhosts = \"0..8\"", "no host 8", "\"0..8\""),
        ("kind = \"all-to-all\"\nhosts = 9", "no host 8", "9"),
        ("kind = \"all-to-all\"\nhosts = \"3\"", "two hosts", "\"3\""),
        ("kind = \"permutation\"\nhosts = \"0..3,2\"", "host 2 is meant twice", "\"0..3,2\""),
        ("kind = \"ring\"\nhosts = \"3..1\"", "runs backwards", "3..1"),
        ("kind = \"ring\"\nhosts = \"0..4/0\"", "gets nowhere", "0..4/0"),
        ("kind = \"ring\"\nhosts = true", "a number for the first so many", "true"),
        ("kind = \"ring\"\njitter = \"5\"", "no unit", "5"),
        ("kind = \"incast\"\nfrom = \"0..9\"\nto = 1", "no host 9", "\"0..9\""),
        ("kind = \"incast\"\nfrom = \"0..3\"\nto = \"hots1\"", "no host or switch", "\"hots1\""),
    ] {
        let text = format!("{FABRIC}[[traffic]]\n{table}\nbytes = \"4KB\"\n");
        let error = match Scenario::parse(&text) {
            Err(error) => error,
            Ok(scenario) => Run::new(&scenario, NoSink).err().unwrap().located(&text),
        };
        assert!(error.message.contains(hint), "{table}: {error}");
        assert_eq!(&text[error.span.unwrap()], place, "{table}");
    }
    let missing =
        Scenario::parse(&format!("{FABRIC}[[traffic]]\nkind = \"list\"\nfile = \"no.csv\"\n")).unwrap_err();
    assert!(missing.message.contains("cannot read no.csv"), "{missing}");
}
