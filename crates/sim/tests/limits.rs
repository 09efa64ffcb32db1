//! Numbers past their limits are errors before anything is built for them, and `check` refuses what a run refuses.

use railnet_core::event::NoSink;
use railnet_sim::{Run, Scenario, check};

const JOB: &str = "[cluster]\nserver = \"dgx-h100\"\nnodes = 2\n[model]\nname = \"tiny\"\n";

fn refusal(text: &str) -> String {
    let checked = Scenario::parse(text).and_then(|scenario| check(&scenario));
    checked.err().map(|error| error.message).unwrap_or_default()
}

#[test]
fn large_numbers_are_refused_at_once() {
    let one_switch = |hosts: u32, traffic: &str| {
        format!(
            "[fabric]\ntopology = {{ kind = \"single-switch\", hosts = {hosts} }}\n[[traffic]]\n{traffic}\n"
        )
    };
    let cases = [
        (format!("{JOB}[training]\nglobal_batch = 2147483647\n"), "passes of a rank through a layer"),
        (format!("{JOB}[training]\nglobal_batch = 9007199254740992\n"), "sequences of the global batch"),
        (format!("{JOB}[training]\nsteps = 4000000000\n"), "steps are too many"),
        (format!("{JOB}layers = 2147483648\n"), "`layers` are too many: 10000 is the limit"),
        (format!("{JOB}hidden = 4294967296\n"), "`hidden` are too many"),
        (format!("{JOB}sequence = 134217728\n[training]\nmicro_batch = 64\n"), "tokens of a microbatch"),
        (format!("{JOB}hidden = 1048576\nffn = 1048576\nlayers = 10000\n"), "`parameters` are too many"),
        (one_switch(65_536, "kind = \"permutation\"\nbytes = \"1KiB\""), "65536 ports on one switch"),
        (one_switch(5_000, "kind = \"all-to-all\"\nbytes = \"1KiB\""), "24995000 flows here are too many"),
        (one_switch(4, "kind = \"permutation\"\nbytes = \"64TiB\""), "a flow of 64 TiB is too long"),
    ];
    for (text, part) in cases {
        let message = refusal(&text);
        assert!(message.contains(part), "{text}\n{message}");
    }
}

#[test]
fn the_largest_that_are_taken_cost_check_little() {
    for fabric in ["kind = \"fat-tree\", k = 100", "kind = \"single-switch\", hosts = 65535"] {
        let text = format!(
            "[fabric]\ntopology = {{ {fabric} }}\n[[traffic]]\nkind = \"permutation\"\nbytes = \"1KiB\"\n"
        );
        assert_eq!(refusal(&text), "", "{fabric}");
    }
    let text = "[fabric]\ntopology = { kind = \"single-switch\", hosts = 4000 }\n\
                [[traffic]]\nkind = \"all-to-all\"\nbytes = \"1KiB\"\n";
    assert_eq!(refusal(text), "");
}

#[test]
fn check_refuses_what_a_run_refuses() {
    let traffic = "[[traffic]]\nkind = \"permutation\"\nbytes = \"64KB\"\n";
    let fabric = "[fabric]\ntopology = { kind = \"single-switch\", hosts = 4 }\n";
    for value in ["nan", "inf", "-1.0", "0.0"] {
        let texts = [
            format!("{fabric}link = {{ loss = {value} }}\n{traffic}"),
            format!("{fabric}link = {{ bit_error_rate = {value} }}\n{traffic}"),
            format!(
                "{fabric}switch = {{ ecn = {{ kmin = \"1KB\", kmax = \"2KB\", pmax = {value} }} }}\n{traffic}"
            ),
        ];
        for text in texts {
            let runs = Scenario::parse(&text).and_then(|scenario| Run::new(&scenario, NoSink).map(|_| ()));
            assert_eq!(refusal(&text).is_empty(), runs.is_ok(), "{text}");
        }
        for fault in ["kind = \"hot-expert\"\ntimes", "kind = \"slow-gpu\"\ngpu = 0\nshare"] {
            assert!(!refusal(&format!("{JOB}[[faults]]\n{fault} = {value}\n")).is_empty(), "{fault} {value}");
        }
    }
    assert!(!refusal(&format!("limit = \"0s\"\n{fabric}{traffic}")).is_empty());
}
