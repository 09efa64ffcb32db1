//! Whether switches and hosts are simulated one after the other or all in the order of time makes no difference to a run.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use railnet_core::event::{Event, NoSink, Sink};
use railnet_core::{Component, Digest, RunDigest, Span, Time};
use railnet_sim::{Run, Scenario};

/// Wants to see everything in the order of time.
#[derive(Default)]
struct InOrder {
    last: Time,
}

impl Sink for InOrder {
    fn record(&mut self, at: Time, _source: Component, event: &Event) {
        assert!(at >= self.last, "{event:?} at {at:?} after {:?}", self.last);
        self.last = at;
    }
}

/// The digest, the number of events, and when each flow began and ended.
type Seen = (RunDigest, u64, Time, Vec<(u64, u64)>);

fn run<S: Sink>(scenario: &Scenario, sink: S, stride: Span) -> Seen {
    let mut run = Run::new(scenario, (Digest::new(), sink)).unwrap();
    while !run.advance(stride) {}
    let now = run.now();
    let (outcome, (digest, _)) = run.finish().unwrap();
    let flows = outcome.flows.iter().map(|flow| (flow.started.as_ps(), flow.finished.as_ps()));
    (digest.finish(), outcome.events, now, flows.collect())
}

fn scenario(topology: &str, switch: &str, rest: &str) -> Scenario {
    let text = format!(
        "seed = 11\n[fabric]\ntopology = {topology}\nswitch = {switch}\n{rest}\n\
         [[traffic]]\nkind = \"permutation\"\nbytes = \"90KB\"\n\
         [[traffic]]\nkind = \"incast\"\nbytes = \"40KB\"\nfrom = \"20..49\"\nto = 7\n"
    );
    Scenario::parse(&text).unwrap()
}

#[test]
fn place_by_place_is_the_run_in_the_order_of_time() {
    // Large enough that switches are taken one by one; and hosts, where no flow waits for another one.
    let leaves = "{ kind = \"leaf-spine\", leaves = 20, hosts_per_leaf = 15, spines = 6 }";
    let tree = "{ kind = \"fat-tree\", k = 12 }";
    let dragonfly = "{ kind = \"dragonfly\", groups = 9, routers = 4, hosts = 8, global_links = 2 }";
    let eager = "ecn = { kmin = \"10KB\", kmax = \"40KB\", pmax = 0.5 }";
    let cases = [
        scenario(tree, &format!("{{ buffer = \"2MB\", {eager} }}"), "[nic]\ncontrol = \"dcqcn\""),
        scenario(leaves, "{ flow_control = \"credits\" }", "[nic]\ncontrol = \"hpcc\""),
        scenario(leaves, "{ flow_control = \"none\", buffer = \"1MB\" }", "[nic]\ntimeout = 8"),
        scenario(leaves, "{ }", "routing = \"spray\"\n[nic]\nrecovery = \"reorder\""),
        scenario(tree, "{ cut_through = true }", "routing = \"adaptive\"\nlink = { delay = \"70ns\" }"),
        scenario(dragonfly, "{ buffer = \"1MB\" }", "routing = \"valiant\"\n[nic]\ncontrol = \"none\""),
        scenario(tree, "{ }", "[[traffic]]\nkind = \"ring\"\nbytes = \"6MB\"\nhosts = \"0..5\""),
    ];
    for (index, case) in cases.iter().enumerate() {
        let in_order = run(case, InOrder::default(), Span::from_us(100));
        // Strides that end in the middle of what the switches are taken through at once.
        for stride in [Span::from_us(1_000), Span::from_ps(7_777_777)] {
            let by_switch = run(case, NoSink, stride);
            assert_eq!((in_order.0, in_order.1), (by_switch.0, by_switch.1), "case {index}");
            assert_eq!(in_order.3, by_switch.3, "case {index}");
        }
        assert_eq!(in_order.2, run(case, NoSink, Span::from_us(100)).2, "case {index}");
    }
}
