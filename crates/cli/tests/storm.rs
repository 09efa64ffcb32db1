//! `railnet storm` and `railnet bench` as a user calls them.

use std::process::Output;

use crate::harness;
use crate::harness::railnet;

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn digest(output: &Output) -> String {
    text(output).lines().find(|line| line.starts_with("digest")).unwrap().to_owned()
}

#[test]
fn the_same_seeds_give_the_same_digest_on_values_and_on_bytes() {
    let values = railnet(&["storm", "nic", "--seeds", "40", "--seed", "0x51"]);
    assert!(values.status.success(), "{}", text(&values));
    let again = railnet(&["storm", "nic", "--seeds", "40", "--seed", "81"]);
    let bytes = railnet(&["storm", "nic", "--seeds", "40", "--seed", "0x51", "--wire", "bytes"]);
    assert_eq!(digest(&values), digest(&again));
    assert_eq!(digest(&values), digest(&bytes));
    let others = railnet(&["storm", "nic", "--seeds", "40", "--seed", "82"]);
    assert_ne!(digest(&values), digest(&others));
}

#[test]
fn a_digest_does_not_depend_on_how_many_seeds_run_beside_it() {
    let all = text(&railnet(&["storm", "nic", "--seeds", "6", "--seed", "9", "--verbose"]));
    let one = text(&railnet(&["storm", "nic", "--seeds", "1", "--seed", "12", "--verbose"]));
    let line = one.lines().find(|line| line.starts_with("seed 0xc:")).unwrap();
    assert!(all.contains(line), "{line}\nis not in\n{all}");
}

#[test]
fn the_fabric_has_a_storm_of_the_same_kind() {
    let both = railnet(&["storm", "fabric", "--seeds", "20", "--seed", "0x51"]);
    let printed = text(&both);
    assert!(both.status.success(), "{printed}");
    for part in
        ["seeds           20 passed, 0 failed", "fabrics         ", "messages        ", "wall time       "]
    {
        assert!(printed.contains(part), "no {part} in\n{printed}");
    }
    for wire in ["values", "bytes"] {
        let one = railnet(&["storm", "fabric", "--seeds", "20", "--seed", "81", "--wire", wire]);
        assert_eq!(digest(&both), digest(&one));
    }
    let all = text(&railnet(&["storm", "fabric", "--seeds", "6", "--seed", "9", "--verbose"]));
    let one = text(&railnet(&["storm", "fabric", "--seeds", "1", "--seed", "12", "--verbose"]));
    let line = one.lines().find(|line| line.starts_with("seed 0xc:")).unwrap();
    assert!(all.contains(line), "{line}\nis not in\n{all}");
}

/// Over RoCEv2 with a twentieth lost, a twentieth overtaken and a twentieth damaged.
#[test]
fn random_collectives_between_real_ranks_are_right() {
    let roce = railnet(&["storm", "live", "--conduit", "roce", "--seeds", "3", "--seed", "0x51"]);
    let printed = text(&roce);
    assert!(roce.status.success(), "{printed}");
    let thrown = printed.lines().find_map(|line| line.strip_prefix("thrown away     ")).unwrap();
    assert!(printed.contains("collectives     300 over roce") && !thrown.starts_with("0 "), "{printed}");
    let all = railnet(&["storm", "live", "--seeds", "3", "--seed", "3", "--calls", "40"]);
    let printed = text(&all);
    assert!(all.status.success(), "{printed}");
    assert!(printed.contains("collectives     40 over shm, 40 over tcp, 40 over roce"), "{printed}");
    // The calls follow from the seed, whatever the way they take.
    let same = railnet(&["storm", "live", "--conduit", "shm", "--seeds", "3", "--seed", "0x51"]);
    assert_eq!(digest(&roce), digest(&same));
}

/// Processes that open the verbs library; what they do follows from the seed, whatever is lost on the way.
#[cfg(target_arch = "x86_64")]
#[test]
fn random_programs_of_verbs_are_right() {
    // One test at a time has the address, in all programs of tests: unreliable services do not send again what is lost when processes
    // join.
    let turn = std::fs::File::create(concat!(env!("CARGO_TARGET_TMPDIR"), "/rdma-tests.lock")).unwrap();
    turn.lock().unwrap();
    let printed = |faults: &str| {
        let output = railnet(&["storm", "verbs", "--seeds", "8", "--seed", "0x51", "--faults", faults]);
        assert!(output.status.success(), "{}{}", text(&output), String::from_utf8_lossy(&output.stderr));
        output
    };
    let (lossy, reordered) = (printed("drop=0.03,corrupt=0.02"), printed("reorder=0.1,duplicate=0.05"));
    assert_eq!(digest(&lossy), digest(&reordered));
    let lossy = text(&lossy);
    for part in ["seeds           8 passed, 0 failed", "calls           ", " bytes, all compared"] {
        assert!(lossy.contains(part), "no {part} in\n{lossy}");
    }
}

#[test]
fn faults_that_do_not_exist_are_refused() {
    for layer in ["live", "verbs"] {
        let refused = railnet(&["storm", layer, "--faults", "loss=0.1"]);
        assert_eq!(refused.status.code(), Some(2));
        let error = String::from_utf8_lossy(&refused.stderr);
        assert!(error.contains("unknown fault \"loss\": write drop, duplicate"), "{error}");
    }
}

#[test]
fn the_scenario_of_a_seed_is_told_in_words() {
    let told = railnet(&["storm", "fabric", "--describe", "--seeds", "2", "--seed", "0x51"]);
    assert!(told.status.success());
    let lines: Vec<String> = text(&told).lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), 2);
    assert!(lines[1].starts_with("seed 0x52: ") && lines[1].contains(" hosts, "), "{lines:?}");
}

#[test]
fn wrong_usage_is_told_apart_from_failure() {
    assert_eq!(railnet(&["storm", "fabric", "--wire", "string"]).status.code(), Some(2));
    assert_eq!(railnet(&["storm", "fabric", "--describe", "--wire", "bytes"]).status.code(), Some(2));
    assert_eq!(railnet(&["storm", "switch"]).status.code(), Some(2));
    assert_eq!(railnet(&["storm"]).status.code(), Some(2));
    assert_eq!(railnet(&["storm", "nic", "--seeds", "many"]).status.code(), Some(2));
    assert_eq!(railnet(&["storm", "nic", "--wire", "string"]).status.code(), Some(2));
    assert_eq!(railnet(&["bench", "nic", "--seconds", "fast"]).status.code(), Some(2));
    assert_eq!(railnet(&["bench", "nic", "--seconds", "0"]).status.code(), Some(2));
}

#[test]
fn the_benchmark_prints_its_table() {
    let output = railnet(&["bench", "nic", "--seconds", "0.01", "--repeat", "1"]);
    assert!(output.status.success());
    let text = text(&output);
    for row in
        ["real bytes, ICRC made and checked", "ghost memory", "SEND 64 B", "10000 queue pairs", "512 bytes"]
    {
        assert!(text.contains(row), "no {row} in\n{text}");
    }
}

#[test]
fn a_comparison_that_cannot_be_made_is_refused_with_what_to_do() {
    for (arguments, part) in [
        (["--ranks", "1"], "--ranks 1 is not between 2 and 64"),
        (["--sizes", "8"], "8"),
        (["--sizes", "5GiB"], "more than 4 GiB"),
        (["--collectives", "barrier"], "one of all_reduce, all_gather"),
        (["--seconds", "0"], "not between 0 and 10"),
    ] {
        let output = railnet(&[&["bench", "live"][..], &arguments[..]].concat());
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{printed}");
        assert!(printed.contains(part), "no {part} in\n{printed}");
    }
    let output = railnet(&["bench", "live", "--peers", "gloo", "--transports", "shm"]);
    assert_eq!(output.status.code(), Some(2));
    let nothing = harness::command::<&str>(&[])
        .args(["bench", "live", "--peers", "openmpi,mpich,gloo"])
        .env("PATH", "")
        .output()
        .unwrap();
    assert_eq!(nothing.status.code(), Some(1));
    let printed = String::from_utf8_lossy(&nothing.stderr).into_owned();
    for part in ["apt-get install openmpi-bin libopenmpi-dev", "apt-get install mpich", "pip install torch"] {
        assert!(printed.contains(part), "no {part} in\n{printed}");
    }
}
