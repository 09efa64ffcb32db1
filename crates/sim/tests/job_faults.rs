//! What faults cost jobs: the right sign everywhere, the right size where a formula says it, and the right names.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use railnet_core::Span;
use railnet_sim::{FaultPrice, Scenario, run_jobs};

use crate::training::{SMALL, run};

fn price(fidelity: &str, job: &str, fault: &str) -> FaultPrice {
    let found = run(&format!("fidelity = \"{fidelity}\"\n{job}[[faults]]\n{fault}"));
    let [fault] = &found.jobs[0].faults[..] else { panic!("one fault, one price") };
    fault.clone()
}

#[test]
fn what_is_wrong_inside_a_server_has_a_price_and_a_name_either_way() {
    // Rings over each GPU of both servers, and over all GPUs of each: what a server has too little of shows.
    let rings = format!("{SMALL}[parallel]\ntp = 8\n");
    let cases = [
        ("kind = \"nvlink-down\"\ngpu = 11\nlinks = 12\n", "12 NVLinks of GPU 11 down"),
        ("kind = \"pcie-down\"\ngpu = 11\nlanes = 4\n", "PCIe of GPU 11 trained down to x4"),
        (
            "kind = \"pcie-down\"\nhost = 11\ngeneration = 3\nlanes = 8\n",
            "PCIe of the NIC of port 11 trained down to generation 3 x8",
        ),
        ("kind = \"wrong-numa\"\nhost = 11\n", "the NIC of port 11 in a slot of the wrong NUMA node"),
    ];
    for (fault, words) in cases {
        for fidelity in ["packet", "analytic"] {
            let found = price(fidelity, &rings, fault);
            assert_eq!(found.what, words);
            assert!(found.with > found.without, "{fidelity}: {found:?}");
            assert_eq!(found.more(), found.with - found.without, "one step is the whole job");
        }
    }
}

/// Half of the NVLinks of a GPU carry half: an exchange among the GPUs of a server takes twice as long, but for its latency.
#[test]
fn half_of_the_nvlinks_take_twice_as_long() {
    let experts = "[cluster]\nserver = \"dgx-h100\"\nnodes = 1\n[model]\nname = \"mixtral-8x7b\"\nlayers = 1\n\
                   sequence = 4096\n[parallel]\nep = 8\n";
    let exposed = |fault: &str| {
        let found = run(&format!("fidelity = \"analytic\"\n{experts}{fault}"));
        let said = &found.jobs[0].first.said;
        let exchange = said.iter().find(|row| row.said.scope.name() == "expert parallel").unwrap();
        exchange.said.median.as_secs_f64()
    };
    let (sound, hurt) = (exposed(""), exposed("[[faults]]\nkind = \"nvlink-down\"\ngpu = 5\nlinks = 9\n"));
    assert!((1.9..2.0).contains(&(hurt / sound)), "{hurt} and {sound}");
}

#[test]
fn what_breaks_on_the_way_slows_links_and_only_packets_know_it() {
    let late = "kind = \"nvlink-down\"\ngpu = 3\nlinks = 15\nat = \"1ms\"\n";
    let found = price("packet", SMALL, late);
    assert_eq!(found.what, "15 NVLinks of GPU 3 down from 1 ms on");
    assert!(found.with > found.without, "{found:?}");
    let text = format!("fidelity = \"analytic\"\n{SMALL}[[faults]]\n{late}");
    let error = run_jobs(&Scenario::parse(&text).unwrap()).unwrap_err().to_string();
    assert!(error.contains("`fidelity = \"packet\"` knows this"), "{error}");
}

#[test]
fn a_hot_expert_is_priced_against_even_ones() {
    let job = "[cluster]\nserver = \"dgx-h100\"\nnodes = 1\n[model]\nname = \"mixtral-8x7b\"\nlayers = 1\n\
               sequence = 2048\n[parallel]\nep = 8\n";
    for fidelity in ["packet", "analytic"] {
        let found = price(fidelity, job, "kind = \"hot-expert\"\ntimes = 2.0\n");
        assert_eq!(found.what, "an expert with 2 times its share of tokens");
        let ratio = found.with.as_secs_f64() / found.without.as_secs_f64();
        assert!((1.1..2.0).contains(&ratio), "{fidelity}: {ratio}");
        let hot = run(&format!("fidelity = \"{fidelity}\"\n{job}hot_expert = 2.0\n"));
        assert_eq!(hot.jobs[0].first.outcome.step, found.with, "{fidelity}: as the key of [parallel] has it");
    }
}

/// Lost work, waiting, restarting and reading add up to the price, in both fidelities.
#[test]
fn a_lost_gpu_costs_the_work_since_the_checkpoint_and_the_way_back() {
    let spare = SMALL.replace("nodes = 2", "nodes = 3");
    let rest = "[launch]\nspares = 1\ntimeout = \"60s\"\nrestart = \"30s\"\n\
                [storage]\nrate = \"8GB/s\"\ngpudirect = true\ncheckpoint = \"1.6GB\"\ninterval = 2\nread = \"4GB/s\"\n";
    for fidelity in ["packet", "analytic"] {
        let job = format!("steps = 6\n{spare}{rest}");
        let found = run(&format!(
            "fidelity = \"{fidelity}\"\n{job}[[faults]]\nkind = \"lost-gpu\"\ngpu = 11\nat = \"230ms\"\n"
        ));
        let job = &found.jobs[0];
        let [fault] = &job.faults[..] else { panic!("one fault, one price") };
        assert_eq!(fault.what, "GPU 11 of server 1 lost (Xid 79)");
        let story = fault.recovery.as_ref().unwrap();
        assert!(story.has_spare && story.nodes == 2);
        // Each second step writes for 0.1 s; the second checkpoint is there after a bit more than 0.2 s.
        assert_eq!((story.life.step, story.life.checkpoint), (5, 4), "{fidelity}: {:?}", job.steps);
        let done: Span = job.steps[..4].iter().fold(Span::ZERO, |sum, step| sum + *step);
        assert_eq!(story.life.lost, Span::from_ms(230) - done, "{fidelity}");
        // 0.8 GB of each server at 4 GB/s.
        let back = Span::from_secs(60 + 30) + Span::from_ms(200);
        assert_eq!(fault.more(), story.life.lost + back, "{fidelity}");
        assert_eq!(job.total(), fault.total_with);
        assert!((fault.gpu_hours(16) - fault.more().as_secs_f64() * 16.0 / 3_600.0).abs() < 1e-9);
    }
}

#[test]
fn without_a_spare_a_job_goes_on_with_fewer_servers_and_longer_steps() {
    let four = SMALL.replace("nodes = 2", "nodes = 4");
    let job = format!(
        "fidelity = \"analytic\"\nsteps = 10\n{four}[training]\nglobal_batch = 64\n\
         [[faults]]\nkind = \"crash\"\nnode = 1\nat = \"1ms\"\n"
    );
    let found = run(&job);
    let fault = &found.jobs[0].faults[0];
    let story = fault.recovery.as_ref().unwrap();
    // 64 sequences are not shared out evenly among 24 ranks.
    assert_eq!((story.nodes, story.has_spare, story.noticed), (2, false, "NICs gave up"));
    assert!(fault.with > fault.without && story.life.slower > Span::ZERO, "{fault:?}");
    // 4.096 us times 2^14, eight times.
    assert_eq!(story.life.failure.notice, Span::from_ns(4_096) * (8 << 14));
    let alone = job
        .replace("global_batch = 64", "global_batch = 32\nmicro_batch = 1")
        .replace("nodes = 4", "nodes = 1");
    let error =
        run_jobs(&Scenario::parse(&alone.replace("node = 1", "node = 0")).unwrap()).unwrap_err().to_string();
    assert!(error.contains("keep some for it with `spares`"), "{error}");
}

#[test]
fn faults_that_make_no_sense_are_refused_where_they_are_written() {
    let job = format!("fidelity = \"analytic\"\n{SMALL}");
    let cases = [
        ("kind = \"lost-gpu\"\ngpu = 16\n", "faults.0.gpu", "the servers have GPUs 0 to 15"),
        ("kind = \"crash\"\nnode = 2\n", "faults.0.node", "the cluster has 0 to 1"),
        ("kind = \"crash\"\nnode = 1\nat = \"9s\"\n", "faults.0.at", "the job is over after"),
        ("kind = \"hot-expert\"\ntimes = 2.0\n", "faults.0.kind", "no job has experts"),
        ("kind = \"pcie-down\"\nlanes = 8\n", "faults.0.kind", "whose PCIe?"),
        ("kind = \"pcie-down\"\ngpu = 1\nlanes = 16\n", "faults.0", "GPU1 of dgx-h100 has PCIe 5 x16"),
        ("kind = \"nvlink-down\"\ngpu = 1\nlinks = 18\n", "faults.0", "1 to 17 of them can be down"),
    ];
    for (fault, key, message) in cases {
        let text = format!("{job}[[faults]]\n{fault}");
        let error = match Scenario::parse(&text) {
            Err(error) => error,
            Ok(scenario) => match run_jobs(&scenario) {
                Err(railnet_sim::RunError::Scenario(error)) => error,
                other => panic!("{fault}: {other:?}"),
            },
        };
        assert_eq!(error.key, key, "{error}");
        assert!(error.message.contains(message), "{error}");
    }
    let traffic = "[fabric]\ntopology = { kind = \"single-switch\", hosts = 2 }\n[[faults]]\nkind = \"crash\"\nnode = 0\n";
    let error = Scenario::parse(traffic).unwrap_err();
    assert!(error.message.contains("this happens to jobs"), "{error}");
}

/// Sending the one packet again costs less than sending all after it again. Where it was the last of its message nobody misses it
/// until the sender's timer goes off, and the whole job waits for that.
#[test]
fn a_lost_packet_costs_what_is_sent_again_or_a_timeout() {
    let job = SMALL.replace(
        "name = \"gpt-400m\"\nlayers = 4",
        "name = \"tiny\"\nlayers = 8\nhidden = 512\nheads = 8\nffn = 2048",
    );
    let lose = |recovery: &str, nth: u32| {
        let fault = format!("[[faults]]\nkind = \"lose-packet\"\nfrom = 3\nnth = {nth}\n");
        let found = run(&format!("{job}[nic]\nrecovery = \"{recovery}\"\n{fault}"));
        let [price] = &found.jobs[0].faults[..] else { panic!("one fault, one price") };
        assert_eq!(price.what, format!("packet {nth} of port 3 lost"));
        (price.more(), found.network.unwrap().resent)
    };
    let (back, alone) = (lose("go-back-n", 100), lose("selective-repeat", 100));
    assert!(back.0 >= alone.0, "{back:?} and {alone:?}");
    assert!(back.1 > 1 && alone.1 == 1, "{back:?} and {alone:?}");
    let timeout = Span::from_ns(4_096) * (1 << 14);
    let last = lose("go-back-n", 20).0;
    assert!(last > timeout * 9 / 10 && last < timeout * 2, "{last} and {timeout}");
}
