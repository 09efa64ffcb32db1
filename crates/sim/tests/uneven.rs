//! Servers with unlike numbers of GPUs and NICs in one cluster.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use railnet_core::event::NoSink;
use railnet_sim::{JobsOutcome, Run, Scenario, ScenarioError, run_jobs};

use crate::training::run;

/// Two DGX H100 with 8 GPUs and 8 NICs, four servers with 4 GPUs and one NIC, and one without GPUs: what ships.
const SHIPPED: &str = include_str!("../../../scenarios/unlike-servers.toml");

/// A server with 4 GPUs in front, so that no GPU has the number that its place in its server suggests.
const SERVERS: &str = "
[[cluster.groups]]
server = \"pcie-4gpu\"
nodes = 1
[[cluster.groups]]
server = \"dgx-h100\"
nodes = 2
[[cluster.groups]]
server = \"pcie-4gpu\"
nodes = 1
[[cluster.groups]]
server = \"cpu\"
nodes = 1
[fabric.link]
rate = \"400Gbps\"
delay = \"500ns\"
";

fn job(fidelity: &str, rest: &str) -> String {
    format!(
        "fidelity = \"{fidelity}\"\n{SERVERS}[model]\nname = \"tiny\"\nheads = 8\nkv_heads = 8\n\
         [training]\nglobal_batch = 24\n{rest}"
    )
}

fn refused(text: &str) -> ScenarioError {
    let scenario = match Scenario::parse(text) {
        Ok(scenario) => scenario,
        Err(error) => return error,
    };
    Run::new(&scenario, NoSink).err().unwrap_or_else(|| panic!("it is fine: {text}"))
}

/// What `[[collective]]`s come to: algorithm, ranks, and elements that were wrong.
fn calls(collectives: &str) -> Vec<(String, u32, u64)> {
    let scenario = Scenario::parse(&format!("{SERVERS}{collectives}")).unwrap();
    let (outcome, _) = Run::new(&scenario, NoSink).unwrap().finish().unwrap();
    let found = outcome.collectives.iter();
    found.map(|one| (one.algorithm.to_string(), one.ranks, one.wrong)).collect()
}

#[test]
fn the_shipped_scenario_agrees_with_the_formulas() {
    let packet = run(SHIPPED);
    let analytic = run(&format!("fidelity = \"analytic\"\n{SHIPPED}"));
    for found in [&packet, &analytic] {
        let job = &found.jobs[0];
        assert_eq!((job.placed.ranks(), job.placed.cluster.nodes, job.placed.storage.clone()), (32, 6, 6..7));
        let kinds: Vec<_> = job.first.kinds.iter().map(|kind| (kind.gpu.as_str(), kind.ranks)).collect();
        assert_eq!(kinds, [("H100 SXM5", 16), ("L40S", 16)]);
        assert!(job.first.outcome.straggler.unwrap().rank.0 >= 16, "L40S are the slow ones");
    }
    let [with_packets, by_formulas] = [&packet, &analytic]
        .map(|found| found.jobs[0].steps.iter().map(|step| step.as_secs_f64()).collect::<Vec<_>>());
    for (step, (one, other)) in with_packets.iter().zip(&by_formulas).enumerate() {
        let ratio = one / other;
        assert!((0.9..1.1).contains(&ratio), "step {step}: {one} s with packets, {other} s by formulas");
    }
    assert!(with_packets[1] > with_packets[0], "the second writes a checkpoint");
    assert_eq!(packet.digest, run(SHIPPED).digest);
}

#[test]
fn collectives_among_unlike_servers_are_right() {
    let found = calls(
        "[[collective]]\nkind = \"all_reduce\"\nsize = [\"8B\", \"1MiB\", \"16MiB\"]\n\
         [[collective]]\nkind = \"all_reduce\"\nsize = \"1MiB\"\nalgorithm = \"tree\"\n\
         [[collective]]\nkind = \"all_reduce\"\nsize = \"1MiB\"\nalgorithm = \"direct\"\n\
         [[collective]]\nkind = \"all_reduce\"\nsize = \"1MiB\"\norder = \"ascending\"\n\
         [[collective]]\nkind = \"all_gather\"\nsize = \"1MiB\"\n\
         [[collective]]\nkind = \"reduce_scatter\"\nsize = \"1MiB\"\n\
         [[collective]]\nkind = \"broadcast\"\nsize = \"1MiB\"\nroot = 13\n\
         [[collective]]\nkind = \"alltoall\"\nsize = \"3MiB\"\n",
    );
    assert!(found.len() >= 15, "{found:?}");
    assert!(found.iter().all(|(_, ranks, wrong)| (*ranks, *wrong) == (24, 0)), "{found:?}");
    for algorithm in ["Ring", "Tree", "Direct", "P2P"] {
        assert!(found.iter().any(|(name, ..)| name == algorithm), "{algorithm}: {found:?}");
    }
}

#[test]
fn some_gpus_of_unlike_servers_make_a_group_too() {
    // Half of the first server and most of the second; then the GPUs and the memory of the server without any.
    for (ranks, count) in [("2..9", 8), ("3..4", 2), ("4..19", 16), ("0..24", 25)] {
        let found =
            calls(&format!("[[collective]]\nkind = \"all_reduce\"\nsize = \"1MiB\"\nranks = \"{ranks}\"\n"));
        assert!(found.iter().all(|(_, ranks, wrong)| (*ranks, *wrong) == (count, 0)), "{ranks}: {found:?}");
    }
}

#[test]
fn any_gpus_of_equal_servers_make_a_group() {
    let servers = "[cluster]\nserver = \"dgx-a100\"\nnodes = 2\n[fabric.link]\nrate = \"200Gbps\"\n";
    for (ranks, count) in [("0..8", 9), ("0..1,10..11", 4), ("3,8..15", 9)] {
        for kind in ["all_reduce", "alltoall"] {
            let call = format!("[[collective]]\nkind = \"{kind}\"\nsize = \"1MiB\"\nranks = \"{ranks}\"\n");
            let scenario = Scenario::parse(&format!("{servers}{call}")).unwrap();
            let (outcome, _) = Run::new(&scenario, NoSink).unwrap().finish().unwrap();
            let found = outcome.collectives.iter().map(|one| (one.ranks, one.wrong));
            assert!(found.clone().all(|one| one == (count, 0)), "{ranks}: {:?}", found.collect::<Vec<_>>());
        }
    }
}

#[test]
fn what_needs_a_head_on_every_rail_is_not_there() {
    for algorithm in ["nvlstree", "nvls", "collnetchain"] {
        let text = format!(
            "{SERVERS}[[collective]]\nkind = \"all_reduce\"\nsize = \"1MiB\"\nalgorithm = \"{algorithm}\"\n"
        );
        let error = refused(&text);
        assert!(
            error.message.contains("servers have unlike numbers of GPUs or NICs"),
            "{algorithm}: {error}"
        );
    }
    // Inside one of them it is.
    let text =
        "[[collective]]\nkind = \"all_reduce\"\nsize = \"1MiB\"\nalgorithm = \"nvls\"\nranks = \"4..11\"\n";
    assert!(calls(text).iter().all(|(algorithm, _, wrong)| (algorithm.as_str(), *wrong) == ("NVLS", 0)));
}

#[test]
fn every_parallel_dimension_runs_where_servers_are_unlike() {
    for layout in ["tp = 4\n", "tp = 8\n", "pp = 2\ntp = 2\n", "pp = 3\ntp = 8\n", "fsdp = true\n"] {
        for fidelity in ["packet", "analytic"] {
            let found = run(&job(fidelity, &format!("[parallel]\n{layout}")));
            let placed = &found.jobs[0].placed;
            assert_eq!(placed.ranks(), 24, "{layout}");
            // With 8 in a group none fits behind the 4 GPUs of the first server.
            let warns = placed.straddling().is_some();
            assert_eq!(warns, layout.contains("tp = 8"), "{layout}: {:?}", placed.straddling());
        }
    }
    let told = run(&job("analytic", "[parallel]\ntp = 8\n")).jobs[0].placed.straddling().unwrap();
    assert!(told.starts_with("3 of 3 groups of tensor parallelism") && told.contains("divides 4"), "{told}");
}

#[test]
fn thousands_of_servers_with_unlike_numbers_of_gpus_are_a_few_kinds() {
    let text = "fidelity = \"analytic\"\n[[cluster.groups]]\nserver = \"dgx-h100\"\nnodes = 512\n\
                [[cluster.groups]]\nserver = \"pcie-4gpu\"\nnodes = 512\n\
                [model]\nname = \"gpt-400m\"\n[training]\nglobal_batch = 6144\n[parallel]\ntp = 4\n";
    let found = run(text);
    let ranks: Vec<u32> = found.jobs[0].first.kinds.iter().map(|kind| kind.ranks).collect();
    assert_eq!(ranks, [4_096, 2_048]);
    assert!(found.jobs[0].first.outcome.workers.len() < 100, "one rank of a kind stands for all");
}

#[test]
fn jobs_share_a_cluster_of_unlike_servers() {
    for fidelity in ["packet", "analytic"] {
        let text = format!(
            "fidelity = \"{fidelity}\"\n{SERVERS}\
             [[job]]\nname = \"small\"\nmodel = {{ name = \"tiny\" }}\nlaunch = {{ nodes = 1 }}\n\
             [[job]]\nname = \"large\"\nmodel = {{ name = \"tiny\" }}\nlaunch = {{ nodes = 2, ranks_per_node = 8 }}\n\
             [[job]]\nname = \"last\"\nmodel = {{ name = \"tiny\" }}\nparameters = {{ servers = 1 }}\n"
        );
        let found = run(&text);
        let told: Vec<_> = found
            .jobs
            .iter()
            .map(|job| {
                (job.placed.ranks(), job.placed.endpoint(0), job.placed.resolved.job.gpu.name.as_str())
            })
            .collect();
        assert_eq!(told, [(4, 0, "L40S"), (16, 4, "H100 SXM5"), (4, 20, "L40S")], "{fidelity}");
        assert_eq!(found.jobs[2].placed.servers, 4..5);
    }
}

#[test]
fn faults_strike_whom_they_name() {
    let step = |found: &JobsOutcome| found.jobs[0].first.outcome.step;
    let parallel = "[parallel]\ntp = 2\n";
    let sound = ["packet", "analytic"].map(|fidelity| step(&run(&job(fidelity, parallel))));
    let cases = [
        // The last GPU of the second DGX, slow enough to be the slowest of all.
        ("kind = \"slow-gpu\"\ngpu = 19\nshare = 0.1", "GPU 19 at 10 % of its speed", 19),
        // The second of the last server.
        ("kind = \"pcie-down\"\ngpu = 21\ngeneration = 1", "PCIe of GPU 21 trained down to generation 1", 21),
        (
            "kind = \"slow-nic\"\nhost = \"node3.nic0\"\nshare = 0.2",
            "the NIC of port 17 at 20 % of its rate",
            20,
        ),
    ];
    for (fault, words, rank) in cases {
        for (fidelity, sound) in ["packet", "analytic"].into_iter().zip(sound) {
            let found = run(&job(fidelity, &format!("{parallel}[[faults]]\n{fault}\n")));
            let told = &found.jobs[0].faults[0];
            assert_eq!(told.what, words, "{fidelity}");
            assert!(told.with.as_secs_f64() > 1.05 * sound.as_secs_f64(), "{fidelity}, {words}: {told:?}");
            let slowest = found.jobs[0].first.outcome.straggler.unwrap().rank.0;
            if fault.contains("slow-gpu") {
                assert_eq!(slowest, rank, "{fidelity}, {words}");
            }
        }
    }
    let error = refused(&job("packet", "[[faults]]\nkind = \"slow-gpu\"\ngpu = 24\nshare = 0.5\n"));
    assert!(error.message.contains("GPUs 0 to 23"), "{error}");
}

#[test]
fn a_slow_gpu_in_traffic_is_the_one_that_is_named() {
    // The server without GPUs comes first: GPU 4 is the fifth of those who send, behind its port.
    let text = "[[cluster.groups]]\nserver = \"cpu\"\nnodes = 1\n[[cluster.groups]]\nserver = \"pcie-4gpu\"\nnodes = 2\n\
                [fabric.link]\nrate = \"100Gbps\"\n\
                [[traffic]]\nkind = \"flow\"\nfrom = \"server2.gpu0\"\nto = \"server1.gpu0\"\nbytes = \"4MB\"\n";
    let took = |text: &str| {
        let scenario = Scenario::parse(text).unwrap();
        Run::new(&scenario, NoSink).unwrap().finish().unwrap().0.completion
    };
    let slow =
        |gpu: u32| took(&format!("{text}[[faults]]\nkind = \"slow-gpu\"\ngpu = {gpu}\nshare = 0.05\n"));
    let sound = took(text);
    assert!(slow(4) > sound, "GPU 4 sends");
    assert_eq!(slow(5), sound, "GPU 5 has no part in it");
}

#[test]
fn a_server_that_crashes_leaves_the_others() {
    for fidelity in ["packet", "analytic"] {
        let found = run(&job(fidelity, "[[faults]]\nkind = \"crash\"\nnode = 0\nat = \"1ms\"\n"));
        let story = found.jobs[0].faults[0].recovery.as_ref().unwrap();
        // 16 GPUs of what is left share 24 sequences no better than 8 do.
        assert!(!story.has_spare && story.nodes >= 1, "{fidelity}: {story:?}");
        let spared = run(&job(fidelity, "[launch]\nnodes = 3\nspares = 1\n[parallel]\ndp = 20\n[[faults]]\nkind = \"crash\"\nnode = 0\nat = \"1ms\"\n")
            .replace("global_batch = 24", "global_batch = 20"));
        let story = spared.jobs[0].faults[0].recovery.as_ref().unwrap();
        assert!(story.has_spare && story.nodes == 3, "{fidelity}: {story:?}");
    }
    let other = job(
        "analytic",
        "[launch]\nnodes = 3\nspares = 1\n[[faults]]\nkind = \"crash\"\nnode = 1\nat = \"1ms\"\n",
    )
    .replace("global_batch = 24", "global_batch = 20");
    let error = run_jobs(&Scenario::parse(&other).unwrap()).unwrap_err().to_string();
    assert!(error.contains("stand in for one with 8 ranks and has 4 GPUs"), "{error}");
    // One that has more uses as many.
    let more = job(
        "analytic",
        "[launch]\nnodes = 1\nspares = 1\n[[faults]]\nkind = \"crash\"\nnode = 0\nat = \"1ms\"\n",
    );
    for fidelity in ["analytic", "packet"] {
        let outcome = run(&more.replace("\"analytic\"", &format!("\"{fidelity}\"")));
        let story = outcome.jobs[0].faults[0].recovery.as_ref().unwrap();
        assert!(story.has_spare && story.nodes == 1, "{fidelity}: {story:?}");
        assert_eq!(outcome.jobs[0].placed.ranks(), 4);
    }
    let alone = "fidelity = \"analytic\"\n[[cluster.groups]]\nserver = \"dgx-h100\"\nnodes = 1\n[[cluster.groups]]\nserver = \"cpu\"\n\
                 nodes = 1\n[model]\nname = \"tiny\"\n[[faults]]\nkind = \"crash\"\nnode = 0\nat = \"100us\"\n";
    let error = run_jobs(&Scenario::parse(alone).unwrap()).unwrap_err().to_string();
    assert!(error.contains("cannot go on with fewer servers (cpu has no GPUs to train on"), "{error}");
}

#[test]
fn parameters_may_be_on_a_server_without_gpus() {
    let [packet, analytic] = ["packet", "analytic"].map(|fidelity| {
        let found = run(&job(fidelity, "[parameters]\nservers = 1\n"));
        assert_eq!((found.jobs[0].placed.ranks(), found.jobs[0].placed.servers.clone()), (24, 4..5));
        found.jobs[0].first.outcome.step.as_secs_f64()
    });
    assert!((0.85..1.15).contains(&(packet / analytic)), "{packet} s and {analytic} s");
    // A rate below that of the NIC is kept.
    let slow = run(&job("packet", "[parameters]\nservers = 1\nrate = \"20Gbps\"\n"));
    assert!(slow.jobs[0].first.outcome.step.as_secs_f64() > 3.0 * packet);
}

#[test]
fn fabrics_have_a_port_for_each_nic_there_is() {
    let traffic = "[[traffic]]\nkind = \"permutation\"\nbytes = \"64KB\"\n";
    let rails =
        "topology = { kind = \"rail-optimised\", nodes = 5, rails = 8, nodes_per_group = 3, spines = 2 }\n";
    let switch = "topology = { kind = \"single-switch\", hosts = 19 }\n";
    let with = |topology: &str| {
        format!(
            "{}{traffic}",
            SERVERS.replace("[fabric.link]", &format!("[fabric]\n{topology}[fabric.link]"))
        )
    };
    for topology in ["", rails, switch] {
        let scenario = Scenario::parse(&with(topology)).unwrap();
        let graph = railnet_sim::graph(&scenario).unwrap();
        assert_eq!((graph.hosts.len(), graph.check()), (19, Ok(())), "{topology}");
        // A link carries what the NIC behind it does.
        let rate = |host: u32| {
            let vertex = railnet_topology::Vertex::Host(host);
            graph.links[graph.neighbours(vertex)[0].link as usize].rate.as_bps() / 1_000_000_000
        };
        assert_eq!([0, 1, 16, 17, 18].map(rate), [100, 400, 400, 100, 100], "{topology}");
        let (outcome, _) = Run::new(&scenario, NoSink).unwrap().finish().unwrap();
        assert_eq!(outcome.flows.len(), 25, "24 GPUs and a server without any");
    }
    let error = refused(&with(&rails.replace("rails = 8", "rails = 4")));
    assert!(error.message.contains("dgx-h100 has 8 NICs, and there are 4 rails"), "{error}");
    assert_eq!(error.key, "fabric.topology.rails");
    let error = refused(&with(&rails.replace("nodes = 5", "nodes = 6")));
    assert!(error.message.contains("`nodes = 5`"), "{error}");
    let error = refused(&with(&switch.replace("19", "24")));
    assert!(error.message.contains("19 NICs") && error.message.contains("24 hosts"), "{error}");
}

#[test]
fn ranks_on_some_of_the_gpus() {
    // Four on each of the servers that have GPUs, whichever they have.
    for fidelity in ["analytic", "packet"] {
        let text = job(fidelity, "[launch]\nranks_per_node = 4\n").replace("batch = 24", "batch = 32");
        let outcome = run(&text);
        assert_eq!(outcome.jobs[0].placed.ranks(), 16);
    }
    let even = |rest: &str| {
        format!(
            "[cluster]\nserver = \"dgx-h100\"\nnodes = 2\n[model]\nname = \"tiny\"\n[parallel]\ntp = 2\n{rest}\
             [launch]\nranks_per_node = 2\n"
        )
    };
    let outcome = run(&even(""));
    let job = &outcome.jobs[0];
    assert_eq!((job.placed.ranks(), job.placed.endpoint(2)), (4, 8));
    let mut ports: Vec<&str> = job.ports.iter().map(|port| port.port.as_str()).collect();
    ports.dedup();
    assert_eq!(ports, ["node0.nic0", "node0.nic1", "node1.nic0", "node1.nic1"]);
    // What is wrong with a GPU without a rank is nobody's trouble.
    let idle = even("").replace("[launch]", "[[faults]]\nkind = \"nvlink-down\"\ngpu = 5\n[launch]");
    assert_eq!(run(&idle).jobs[0].steps, job.steps);
    for (asked, right) in [(0, "1 to 8"), (9, "1 to 8")] {
        let error = refused(&even("").replace("ranks_per_node = 2", &format!("ranks_per_node = {asked}")));
        assert!(error.key == "launch.ranks_per_node" && error.message.contains(right), "{error}");
    }
}

#[test]
fn launches_that_cannot_be_say_what_would_be_right() {
    let error = refused(&job("analytic", "[launch]\nranks_per_node = 8\n"));
    assert_eq!(error.key, "launch.ranks_per_node");
    assert!(error.message.contains("not every node has 8 GPUs (1 × 4, 2 × 8, 1 × 4, 1 × 0)"), "{error}");
    let first = "[[cluster.groups]]\nserver = \"cpu\"\nnodes = 1\n";
    let error = refused(&job("analytic", "[launch]\nnodes = 1\n").replacen(
        "[[cluster",
        &format!("{first}[[cluster"),
        1,
    ));
    assert_eq!(error.key, "launch.nodes");
    assert!(error.message.contains("have no GPUs to train on"), "{error}");
    // A server without GPUs in front of the others has no rank, and takes none of their numbers.
    let found = run(&job("packet", "").replacen("[[cluster", &format!("{first}[[cluster"), 1));
    assert_eq!((found.jobs[0].placed.ranks(), found.jobs[0].placed.endpoint(0)), (24, 1));
}
