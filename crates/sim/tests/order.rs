//! Whether switches and hosts are simulated one after the other or all in the order of time makes no difference to a run.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use railnet_core::event::{Event, NoSink, Sink};
use railnet_core::{Component, Digest, RunDigest, Span, Time};
use railnet_sim::{CollectiveResult, JobSettings, JobsOutcome, Run, Scenario, run_jobs_with};

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
        Box::new(scenario(tree, &format!("{{ buffer = \"2MB\", {eager} }}"), "[nic]\ncontrol = \"dcqcn\"")),
        Box::new(scenario(leaves, "{ flow_control = \"credits\" }", "[nic]\ncontrol = \"hpcc\"")),
        Box::new(scenario(leaves, "{ flow_control = \"none\", buffer = \"1MB\" }", "[nic]\ntimeout = 8")),
        Box::new(scenario(leaves, "{ }", "routing = \"spray\"\n[nic]\nrecovery = \"reorder\"")),
        Box::new(scenario(
            tree,
            "{ cut_through = true }",
            "routing = \"adaptive\"\nlink = { delay = \"70ns\" }",
        )),
        Box::new(scenario(
            dragonfly,
            "{ buffer = \"1MB\" }",
            "routing = \"valiant\"\n[nic]\ncontrol = \"none\"",
        )),
        Box::new(scenario(tree, "{ }", "[[traffic]]\nkind = \"ring\"\nbytes = \"6MB\"\nhosts = \"0..5\"")),
        // PFC XOFF and XON alternate all the time, with many marks in between.
        Box::new(scenario(
            leaves,
            &format!("{{ buffer = \"600KB\", {eager} }}"),
            "[nic]\ncontrol = \"dcqcn\"",
        )),
        Box::new(scenario(
            tree,
            &format!("{{ marks_at = \"arrival\", {eager} }}"),
            "[nic]\ncontrol = \"dcqcn\"",
        )),
        Box::new(scenario(
            tree,
            &format!("{{ {eager} }}"),
            "scheduling = { weights = [3, 1, 1, 1, 1, 1, 2, 1] }",
        )),
    ];
    for (index, case) in cases.iter().enumerate() {
        let in_order = run(case, InOrder::default(), Span::from_us(100));
        // Strides that end in the middle of what switches run at once.
        for stride in [Span::from_us(1_000), Span::from_ps(7_777_777)] {
            let by_switch = run(case, NoSink, stride);
            assert_eq!((in_order.0, in_order.1), (by_switch.0, by_switch.1), "case {index}");
            assert_eq!(in_order.3, by_switch.3, "case {index}");
        }
        assert_eq!(in_order.2, run(case, NoSink, Span::from_us(100)).2, "case {index}");
    }
}

/// So many servers, each with eight NICs.
fn servers(nodes: u32, server: &str, rest: &str) -> Scenario {
    let text = format!(
        "seed = 5\n[cluster]\nserver = \"{server}\"\nnodes = {nodes}\n\
         [fabric]\nlink = {{ rate = \"400Gbps\", delay = \"500ns\" }}\n{rest}"
    );
    Scenario::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

#[test]
fn collectives_server_by_server_are_those_in_the_order_of_time() {
    let in_order = |case: &Scenario| -> (RunDigest, Vec<CollectiveResult>) {
        let (outcome, (digest, _)) = railnet_sim::run(case, (Digest::new(), InOrder::default())).unwrap();
        (digest.finish(), outcome.collectives)
    };
    let apart = |case: &Scenario| {
        let (outcome, digest) = railnet_sim::run(case, Digest::new()).unwrap();
        (digest.finish(), outcome.collectives)
    };
    let one = |kind: &str, more: &str| format!("[[collective]]\nkind = \"{kind}\"\n{more}\n");
    let several = [
        one("all_reduce", "size = [\"8KiB\", \"1MiB\"]\niterations = 2"),
        one("alltoall", "size = \"256KiB\"\nranks = \"0..15\""),
        one("all_gather", "size = \"1MiB\"\nplacement = \"out\""),
    ];
    let tree = one("all_reduce", "size = \"1MiB\"\nalgorithm = \"tree\"");
    let hosts = format!(
        "seed = 5\n[fabric]\ntopology = {{ kind = \"fat-tree\", k = 8 }}\n{}",
        one("all_reduce", "size = \"2MiB\"\niterations = 2")
    );
    let cases = [
        servers(9, "dgx-h100", &several.concat()),
        servers(8, "dgx-a100", &tree),
        // Nothing is launched where there are no GPUs: one call may be taken apart, several not.
        Scenario::parse(&hosts).unwrap(),
        Scenario::parse(&format!("{hosts}{tree}")).unwrap(),
    ];
    for (index, case) in cases.iter().enumerate() {
        assert_eq!(in_order(case), apart(case), "case {index}");
    }
}

#[test]
fn jobs_server_by_server_are_those_in_the_order_of_time() {
    fn job<S: Sink>(scenario: &Scenario, sink: S, memo: bool, threads: u32) -> JobsOutcome {
        run_jobs_with(scenario, sink, JobSettings { memo, threads, observer: None }).unwrap().0
    }
    let deep = "[model]\nname = \"gpt-400m\"\nlayers = 2\nvocabulary = 4096\n[parallel]\n";
    let eager =
        "switch = { ecn = { kmin = \"10KB\", kmax = \"40KB\", pmax = 0.5 } }\n[nic]\ncontrol = \"dcqcn\"";
    let model = "[model]\nname = \"gpt-400m\"\nlayers = 1\nvocabulary = 4096\n[parallel]\n";
    let cases = [
        servers(8, "dgx-h100", &format!("{model}tp = 8\nsp = true\nzero = 1\n")),
        servers(8, "dgx-h100", &format!("{model}tp = 4\nfsdp = true\n")),
        servers(8, "dgx-h100", &format!("{deep}pp = 2\ntp = 2\n")),
        // All push to the same servers: queues that mark.
        servers(
            10,
            "dgx-a100",
            &format!("{eager}\n{model}tp = 8\n[parameters]\nservers = 2\n[launch]\nnodes = 8\n"),
        ),
    ];
    for (index, case) in cases.iter().enumerate() {
        let in_order = job(case, InOrder::default(), false, 4);
        let marks: u64 =
            in_order.network.iter().flat_map(|one| &one.links).map(|link| link.counters.marks).sum();
        assert_eq!(marks > 0, index == 3, "case {index}: {marks} marks");
        for (memo, threads) in [(true, 1), (false, 1), (true, 2), (false, 3)] {
            let name = format!("case {index}, memory {memo}, {threads} threads");
            let apart = job(case, NoSink, memo, threads);
            assert_eq!(in_order.digest, apart.digest, "{name}");
            for (one, other) in in_order.jobs.iter().zip(&apart.jobs) {
                assert_eq!(one.steps, other.steps, "{name}");
                assert_eq!(one.first.outcome, other.first.outcome, "{name}");
                assert_eq!((&one.ports, &one.connections), (&other.ports, &other.connections), "{name}");
            }
            let [one, other] = [&in_order, &apart].map(|outcome| outcome.network.as_ref().unwrap());
            assert_eq!((&one.links, &one.lanes), (&other.links, &other.lanes), "{name}");
            assert_eq!((one.completion, one.packet_hops), (other.completion, other.packet_hops), "{name}");
        }
    }
}
