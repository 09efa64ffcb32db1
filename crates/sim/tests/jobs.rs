//! Jobs of scenarios: by formulas and as packets, with faults, beside each other, and those that are refused.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use railnet_core::Span;
use railnet_sim::{Scenario, run_jobs};

use crate::training::{SMALL, run};

fn step(text: &str) -> Span {
    run(text).jobs[0].first.outcome.step
}

fn analytic(text: &str) -> String {
    format!("fidelity = \"analytic\"\n{text}")
}

fn flow(text: &str) -> String {
    format!("fidelity = \"flow\"\n{text}")
}

#[test]
fn packets_and_formulas_agree_within_a_tenth_where_nothing_is_congested() {
    let job = SMALL.replace(
        "name = \"gpt-400m\"\nlayers = 4",
        "name = \"llama-3-8b\"\nlayers = 2\nvocabulary = 16384\nsequence = 4096",
    );
    let layouts = [
        ("data parallel", "dp = 16"),
        ("tensor and sequence parallel", "tp = 8\nsp = true"),
        ("tensor parallel", "tp = 8"),
        ("parameters shared out", "fsdp = true"),
        ("a pipeline", "tp = 4\npp = 2"),
        (
            "a pipeline inside servers",
            "pp = 8\norder = [\"pp\", \"tp\", \"cp\", \"dp\"]\nschedule = \"gpipe\"",
        ),
        ("sequences shared out", "cp = 2"),
        // Groups of several GPUs of a server that are not beside each other: their channels leave by the NICs of those GPUs.
        ("matrices shared by two", "tp = 2"),
        ("matrices and the optimiser shared by two", "tp = 2\nzero = 1"),
        ("matrices shared by four", "tp = 4\nsp = true"),
        // Servers of their own: as many as there are nodes, and such as are slower than their NICs.
        ("two parameter servers", "[parameters]\nservers = 2"),
        ("two for shared matrices", "tp = 8\n[parameters]\nservers = 2"),
        ("slow parameter servers", "tp = 2\n[parameters]\nservers = 2\nrate = \"100GB/s\""),
        (
            "storage on servers",
            "zero = 1\n[storage]\nrate = \"1TB/s\"\ngpudirect = true\nservers = 2\ninterval = 1",
        ),
        ("storage on slow servers", "[storage]\nrate = \"100GB/s\"\nservers = 2\ninterval = 1"),
    ];
    for (name, layout) in layouts {
        let layers = if layout.contains("pp = 8") { "layers = 8" } else { "layers = 2" };
        let servers = if layout.contains("servers = 2") { 2 } else { 0 };
        let job = job.replace("layers = 2", layers).replace("nodes = 2", &format!("nodes = {}", 2 + servers));
        let text = format!("{job}[parallel]\n{layout}\n");
        let packets = step(&text).as_secs_f64();
        for (fidelity, time) in [("formulas", step(&analytic(&text))), ("flows", step(&flow(&text)))] {
            let off = packets / time.as_secs_f64() - 1.0;
            assert!(off.abs() < 0.1, "{name}: {packets} with packets, {time} by {fidelity}");
        }
    }
}

#[test]
fn packets_and_formulas_agree_on_short_messages_too() {
    // 4 MiB inside a server go by LL, LL128 or Simple: what the formulas have for threads, packets have too.
    for layout in ["tp = 2", "tp = 4", "tp = 4\nsp = true", "tp = 8", "tp = 8\nsp = true", "fsdp = true"] {
        let text = format!("{SMALL}[parallel]\n{layout}\n");
        for other in [analytic(&text), flow(&text)] {
            let off = step(&text).as_secs_f64() / step(&other).as_secs_f64() - 1.0;
            assert!(off.abs() < 0.07, "{layout}: {off}");
        }
    }
}

#[test]
fn experts_are_reached_over_the_network_either_way() {
    let model = "
        [cluster]
        server = \"dgx-h100\"
        nodes = 2
        [fabric.link]
        rate = \"400Gbps\"
        [model]
        name = \"mixtral-8x7b\"
        layers = 1
        sequence = 4096
        [parallel]
        ep = 8
        order = [\"tp\", \"cp\", \"dp\", \"pp\"]
    ";
    let even = step(model);
    let hot = step(&format!("{model}hot_expert = 2.0\n"));
    assert!(hot > even, "a busy expert takes time: {hot} and {even}");
    for other in [analytic(model), flow(model)] {
        let off = even.as_secs_f64() / step(&other).as_secs_f64() - 1.0;
        assert!(off.abs() < 0.1, "{off}");
    }
}

#[test]
fn the_same_file_and_seed_give_the_same_digest_and_all_of_it_counts() {
    for fidelity in ["packet", "flow", "analytic"] {
        let text = format!("fidelity = \"{fidelity}\"\nsteps = 2\n{SMALL}[parallel]\ntp = 2\n");
        let first = run(&text);
        assert_eq!(first.digest, run(&text).digest, "{fidelity}");
        assert_eq!(first.jobs[0].steps.len(), 2);
        let other = run(&text.replace("layers = 4", "layers = 5"));
        assert_ne!(first.digest, other.digest, "{fidelity}");
    }
}

#[test]
fn a_slow_gpu_and_a_slow_nic_have_a_price_and_a_name() {
    for fidelity in ["packet", "flow", "analytic"] {
        let job = format!("fidelity = \"{fidelity}\"\n{SMALL}[[faults]]\n");
        let slow = run(&format!("{job}kind = \"slow-gpu\"\ngpu = 11\nshare = 0.5\n"));
        let [fault] = &slow.jobs[0].faults[..] else { panic!("{fidelity}: one fault, one price") };
        assert_eq!(fault.what, "GPU 11 at 50 % of its speed");
        // All wait for the one that computes twice as long.
        let ratio = fault.with.as_secs_f64() / fault.without.as_secs_f64();
        assert!((1.6..2.1).contains(&ratio), "{fidelity}: {ratio}");
        assert_eq!(slow.jobs[0].first.outcome.straggler.unwrap().rank.0, 11, "{fidelity}");
        let slow = run(&format!("{job}kind = \"slow-nic\"\nhost = 11\nshare = 0.25\n"));
        let [fault] = &slow.jobs[0].faults[..] else { panic!("{fidelity}: one fault, one price") };
        assert_eq!(fault.what, "the NIC of port 11 at 25 % of its rate");
        assert!(fault.with > fault.without, "{fidelity}: {fault:?}");
    }
}

/// Two jobs on two servers each. The second server of the first job has half its ports on the leaf of the second job's first server.
const TWO_JOBS: &str = "
    [fabric]
    topology = { kind = \"leaf-spine\", leaves = 4, hosts_per_leaf = 12, spines = 2 }
    routing = \"spray\"
    link = { rate = \"400Gbps\", delay = \"500ns\" }
    [nic]
    control = \"none\"
    [cluster]
    server = \"dgx-h100\"
    [[job]]
    model = { name = \"gpt-400m\", layers = 2 }
    launch = { nodes = 2 }
    [[job]]
    model = { name = \"gpt-400m\", layers = 2 }
    launch = { nodes = 2 }
";

#[test]
fn jobs_share_the_fabric_at_flow_fidelity_as_with_packets() {
    let steps = |text: &str| -> Vec<f64> {
        run(text).jobs.iter().map(|job| job.first.outcome.step.as_secs_f64()).collect()
    };
    let (packets, flows) = (steps(TWO_JOBS), steps(&flow(TWO_JOBS)));
    for (packets, flows) in packets.iter().zip(&flows) {
        assert!((flows / packets - 1.0).abs() < 0.15, "{packets} s with packets, {flows} s with flows");
    }
    // By formulas, each job has the leaf that both share for itself.
    let formulas = steps(&analytic(TWO_JOBS));
    assert!(flows[0] > formulas[0] * 1.1, "{} s with flows, {} s by formulas", flows[0], formulas[0]);
}

#[test]
fn one_coflow_stands_for_those_that_are_alike() {
    let text = "[cluster]\nserver = \"dgx-h100\"\nnodes = 32\n[fabric.link]\nrate = \"400Gbps\"\n\
                [model]\nname = \"llama-3-8b\"\nlayers = 8\nsequence = 4096\n[parallel]\ntp = 8\npp = 4\n";
    let seen = run(&flow(text)).jobs[0].first.flow_level.clone().unwrap();
    assert!(seen.coflows >= 4 * seen.run, "{seen:?}");
    let (link, busy) = seen.busiest.unwrap();
    assert!(busy > 0.0 && busy <= 1.0, "{link} {busy}");
}

#[test]
fn a_fault_that_formulas_do_not_know_is_refused() {
    let text =
        analytic(&format!("{SMALL}[[faults]]\nkind = \"slow-nic\"\nhost = 1\nshare = 0.5\nat = \"1ms\"\n"));
    let error = run_jobs(&Scenario::parse(&text).unwrap()).unwrap_err().to_string();
    assert!(error.contains("`fidelity = \"packet\"` knows this"), "{error}");
}

#[test]
fn packets_know_every_fault_and_name_it() {
    let text = format!("{SMALL}[[faults]]\nkind = \"slow-nic\"\nhost = 3\nshare = 0.1\nat = \"3ms\"\n");
    let found = run(&text);
    let [fault] = &found.jobs[0].faults[..] else { panic!("one price for all faults") };
    assert_eq!(fault.what, "the NIC of port 3 at 10 % of its rate from 3 ms on");
    assert!(fault.with > fault.without, "{fault:?}");
}

#[test]
fn jobs_share_a_cluster_and_stay_on_their_own_servers() {
    let text = "
        [cluster]
        server = \"dgx-h100\"
        nodes = 3
        [fabric.link]
        rate = \"400Gbps\"
        [[job]]
        name = \"first\"
        model = { name = \"gpt-400m\", layers = 2 }
        launch = { nodes = 2 }
        [[job]]
        model = { name = \"tiny\" }
        training = { steps = 3 }
    ";
    let found = run(text);
    let placed: Vec<(&str, u32, u32, usize)> = found
        .jobs
        .iter()
        .map(|job| {
            let placed = &job.placed;
            (placed.resolved.name.as_str(), placed.first_node, placed.ranks(), job.steps.len())
        })
        .collect();
    assert_eq!(placed, [("first", 0, 16, 1), ("tiny", 2, 8, 3)]);
    // Alone on its server, the second job has nothing to do with the network.
    assert_eq!(found.jobs[1].connections.queue_pairs, 0);
    assert!(found.jobs[0].connections.queue_pairs > 0);
}

#[test]
fn a_step_that_writes_a_checkpoint_takes_as_much_longer() {
    for fidelity in ["packet", "analytic"] {
        let storage = "[storage]\nrate = \"8GB/s\"\ngpudirect = true\ncheckpoint = \"1.6GB\"\ninterval = 2\n";
        let found = run(&format!("fidelity = \"{fidelity}\"\nsteps = 4\n{SMALL}{storage}"));
        let steps = &found.jobs[0].steps;
        // 0.8 GB of each of two servers at 8 GB/s, in the second step and in the fourth.
        let more = (steps[1] - steps[0]).as_secs_f64();
        assert!((more - 0.1).abs() < 0.002, "{fidelity}: {more}");
        assert!(steps[2] < steps[1] && steps[3] > steps[2], "{fidelity}: {steps:?}");
    }
}

#[test]
fn traffic_beside_a_job_makes_its_steps_longer() {
    let job = format!("{SMALL}[training]\nmicro_batch = 1\n");
    let alone = step(&job);
    let beside = "[[traffic]]\nkind = \"incast\"\nfrom = \"0..7\"\nto = 8\nbytes = \"20MB\"\n";
    let found = run(&format!("{job}{beside}"));
    assert!(found.jobs[0].first.outcome.step > alone);
    assert_eq!(found.network.unwrap().flows.len(), 8);
}

#[test]
fn what_is_wrong_with_a_job_is_told_with_its_key() {
    let cluster = "[cluster]\nserver = \"dgx-h100\"\nnodes = 2\n";
    let cases = [
        ("[model]\nname = \"lama-3-8b\"\n", "model.name", "unknown model \"lama-3-8b\""),
        ("[model]\nname = \"tiny\"\n[parallel]\ntp = 3\n", "parallel", "tp 3"),
        ("[model]\nname = \"tiny\"\n[launch]\nnodes = 3\n", "launch.nodes", "the cluster has 2 nodes"),
        (
            "[model]\nname = \"tiny\"\n[[collective]]\nkind = \"all-reduce\"\nsize = \"1MB\"\n",
            "collective",
            "makes its own calls",
        ),
        ("[model]\nname = \"tiny\"\n[[job]]\n", "model", "not both"),
        ("[parallel]\ntp = 2\n", "parallel", "name what it trains in [model]"),
        ("[[job]]\nmodel = { name = \"tiny\" }\n[[job]]\n", "job.1.launch.nodes", "have all 2 servers"),
        (
            "[[job]]\nlaunch = { nodes = 1 }\nmodel = { name = \"tinny\" }\n",
            "job.0.model.name",
            "unknown model",
        ),
    ];
    for (rest, key, message) in cases {
        let error = Scenario::parse(&format!("{cluster}{rest}")).unwrap_err();
        assert_eq!(error.key, key, "{error}");
        assert!(error.message.contains(message), "{error}");
        assert!(error.span.is_some(), "{error} has no place in the text");
    }
    let bare = cluster.replace("dgx-h100", "cpu");
    let bare = Scenario::parse(&format!("{bare}[model]\nname = \"tiny\"\n")).unwrap_err();
    assert_eq!(
        (bare.key.as_str(), bare.message.as_str()),
        ("cluster.server", "cpu has no GPUs to train on: name a server that does")
    );
    let meant = Scenario::parse(&format!("{cluster}[model]\nname = \"lama-3-8b\"\n")).unwrap_err().meant;
    assert_eq!(meant.as_deref(), Some("llama-3-8b"));
    let alone = Scenario::parse("steps = 0\n[model]\nname = \"tiny\"\n").unwrap_err();
    assert!(alone.message.contains("there is no network"), "{alone}");
}

#[test]
fn a_job_that_does_not_fit_says_what_would() {
    let text =
        "[cluster]\nserver = \"dgx-h100\"\nnodes = 8\n[model]\nname = \"llama-3-70b\"\n[parallel]\ntp = 8\n";
    let message = Scenario::parse(text).unwrap_err().message;
    let lines: Vec<&str> = message.lines().collect();
    assert!(lines[0].starts_with("llama-3-70b does not fit: "), "{message}");
    assert!(lines[1].contains("parameters 17.6") && lines[1].contains("tp 8, pp 1, dp 8"), "{message}");
    assert!(lines[2].starts_with("  help: "), "{message}");
}

#[test]
fn sixteen_thousand_gpus_run_by_formulas() {
    let text = include_str!("../../../scenarios/llama-405b.toml");
    let found = run(text);
    let outcome = &found.jobs[0].first.outcome;
    assert_eq!(found.jobs[0].placed.ranks(), 16_384);
    // 38 to 43 % on so many GPUs (arXiv 2407.21783, table 4), with layouts that are near this one.
    assert!((0.35..0.50).contains(&outcome.mfu), "{}", outcome.mfu);
}
