//! What is behind the ports: PCIe, NVLink, copies through the host, and the kernel's path.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use railnet_core::Rate;
use railnet_core::event::NoSink;
use railnet_sim::{Outcome, Scenario, run};

/// Two DGX H100 on rails of 400 Gb/s, and one flow.
fn dgx(cluster: &str, from: u32, to: u32, bytes: &str) -> Outcome {
    let text = format!(
        "[fabric]\ntopology = {{ kind = \"rail-optimised\", nodes = 2, rails = 8, nodes_per_group = 2, spines = 2 }}\n\
         link = {{ rate = \"400Gbps\", delay = \"500ns\" }}\n\
         [cluster]\nserver = \"dgx-h100\"\n{cluster}\n\
         [[traffic]]\nkind = \"flow\"\nfrom = {from}\nto = {to}\nbytes = \"{bytes}\"\n"
    );
    run(&Scenario::parse(&text).unwrap(), NoSink).unwrap().0
}

fn microseconds(outcome: &Outcome) -> f64 {
    outcome.completion.as_ps() as f64 / 1e6
}

/// Bytes of the slices that went over the lane of this name.
fn carried(outcome: &Outcome, name: &str) -> u64 {
    outcome.lanes.iter().filter(|lane| lane.name == name).map(|lane| lane.counters.bytes).sum()
}

fn close(found: f64, expected: f64, part: f64, what: &str) {
    assert!((found / expected - 1.0).abs() < part, "{what}: {found:.1}, expected {expected:.1}");
}

#[test]
fn a_flow_between_gpus_of_two_servers_is_as_fast_as_their_pcie() {
    let outcome = dgx("", 0, 8, "64MB");
    // 16 lanes of PCIe 5 carry 48 GB/s, the port a little more.
    close(microseconds(&outcome), 64e6 / 48e9 * 1e6, 0.02, "64 MB at 48 GB/s, in µs");
    assert_eq!(carried(&outcome, "server0 PCI0 → mlx5_0"), 64_000_000);
    assert_eq!(carried(&outcome, "server1 PCI0 → GPU0"), 64_000_000);
    assert_eq!(carried(&outcome, "server0 PCI0 → CPU0"), 0, "GPUDirect never touches the host");
}

#[test]
fn without_gpudirect_data_goes_through_the_host_twice() {
    let (direct, bounced) = (dgx("", 0, 8, "8B"), dgx("gpudirect = false", 0, 8, "8B"));
    let more = microseconds(&bounced) - microseconds(&direct);
    // Two copies to start, and two more bridges at either end.
    close(more, 2.0 * 5.0 + 4.0 * 0.15, 0.01, "µs");
    let bounced = dgx("gpudirect = false", 0, 8, "64MB");
    for lane in ["server0 PCI0 → CPU0", "server0 CPU0 → PCI0", "server1 PCI0 → CPU0", "server1 CPU0 → PCI0"]
    {
        assert_eq!(carried(&bounced, lane), 64_000_000, "{lane}");
    }
}

#[test]
fn gpus_of_one_server_use_nvlink_and_not_the_network() {
    let outcome = dgx("", 0, 5, "64MB");
    // 18 links of 20.6 GB/s, up to the switch and down again, piece by piece.
    close(microseconds(&outcome), (64e6 + 4096.0) / 370.8e9 * 1e6 + 0.15, 0.001, "µs");
    assert_eq!(outcome.packet_hops, 0);
    assert_eq!(carried(&outcome, "server0 NVSwitch → GPU5"), 64_000_000);
}

#[test]
fn the_kernel_is_as_fast_as_one_core_copies_and_handles_packets() {
    let outcome = dgx("transport = \"tcp\"", 0, 8, "64MB");
    // A slice of 128 KiB: a system call, 32 packets, and a copy at 10 GB/s.
    let slice_us = 0.5 + 32.0 * 0.35 + 131_072.0 / 10e9 * 1e6;
    close(microseconds(&outcome), 64e6 / 131_072.0 * slice_us, 0.02, "µs");
    let cores: Vec<_> = outcome.lanes.iter().filter(|lane| lane.name.contains("core")).collect();
    assert_eq!(cores.len(), 2, "a connection is served by one core at either end");
    for core in cores {
        let busy = core.counters.busy.as_ps() as f64 / outcome.completion.as_ps() as f64;
        assert!(busy > 0.95, "{} is {busy:.2} busy", core.name);
    }
    let direct = dgx("", 0, 8, "64MB");
    assert!(microseconds(&outcome) > 8.0 * microseconds(&direct));
}

#[test]
fn gpus_that_share_a_nic_share_its_rate() {
    // Four GPUs of each server on one NIC of 100 Gb/s.
    let text = "[fabric]\ntopology = { kind = \"single-switch\", hosts = 2 }\n[nic]\ncontrol = \"none\"\n\
                [cluster]\nserver = \"pcie-4gpu\"\n";
    let flow = |from: u32| {
        format!("[[traffic]]\nkind = \"flow\"\nfrom = {from}\nto = {}\nbytes = \"8MB\"\n", from + 4)
    };
    let time = |count: u32| {
        let flows: String = (0..count).map(flow).collect();
        microseconds(&run(&Scenario::parse(&format!("{text}{flows}")).unwrap(), NoSink).unwrap().0)
    };
    close(time(1), 8e6 * 8.0 / 100e9 * 1e6, 0.1, "one alone, in µs");
    close(time(4), 32e6 * 8.0 / 100e9 * 1e6, 0.05, "four together, in µs");
}

#[test]
fn a_slow_gpu_takes_as_much_longer_while_it_lasts() {
    let slow = |fault: &str| {
        let fault = format!("[[faults]]\nkind = \"slow-gpu\"\ngpu = 8\nshare = 0.25\n{fault}");
        microseconds(&dgx(&fault, 0, 8, "64MB"))
    };
    let usual = microseconds(&dgx("", 0, 8, "64MB"));
    close(slow(""), 4.0 * usual, 0.02, "all the time, in µs");
    // For 1 ms a quarter of the work is done; the rest at full speed, but for the slices that were waiting then.
    close(slow("until = \"1ms\"\n"), 1000.0 + (usual - 250.0), 0.06, "for 1 ms, in µs");
    let other = microseconds(&dgx("[[faults]]\nkind = \"slow-gpu\"\ngpu = 9\nshare = 0.25\n", 0, 8, "64MB"));
    close(other, usual, 0.001, "another GPU, in µs");
}

#[test]
fn slots_bound_what_is_under_way() {
    // With one slot each slice waits for the round trip of the one before it.
    let (one, many) = (dgx("slots = 1", 0, 8, "8MiB"), dgx("slots = 16", 0, 8, "8MiB"));
    let slices = 64.0;
    let per_slice = microseconds(&one) / slices;
    // PCIe and the wire work on it at the same time: the time of the wire (32 packets), what PCIe takes longer at either
    // end, a bridge and a piece for each link but the first, and two ways through the network with a packet's time at
    // the switch.
    let (wire, pcie) = ((131_072.0 + 32.0 * 82.0) / 50e9 * 1e6, 131_072.0 / 48e9 * 1e6);
    let lags = pcie - 131_072.0 / 50e9 * 1e6;
    let piece = 4096.0 / 48e9 * 1e6;
    let expected = wire + 2.0 * (lags + 0.15) + 3.0 * piece + 4178.0 / 50e9 * 1e6 + 2.0 * 1.0;
    close(per_slice, expected, 0.01, "a slice with one slot, in µs");
    assert!(microseconds(&one) > 2.0 * microseconds(&many));
}

#[test]
fn a_cluster_that_makes_no_sense_is_refused_before_anything_runs() {
    let parse = |cluster: &str| {
        let text = format!(
            "[fabric]\ntopology = {{ kind = \"single-switch\", hosts = 12 }}\n[cluster]\n{cluster}\n\
             [[traffic]]\nkind = \"permutation\"\nbytes = \"1MB\"\n"
        );
        match Scenario::parse(&text) {
            Ok(scenario) => run(&scenario, NoSink).unwrap_err().to_string(),
            Err(error) => {
                assert!(error.span.is_some(), "{error}");
                error.to_string()
            }
        }
    };
    assert!(parse("server = \"dgx-h1000\"").contains("one of dgx-a100, dgx-h100"));
    assert!(parse("server = \"dgx-h100\"").contains("give it a multiple of 8"));
    assert!(parse("slice = \"0B\"").contains("1 B to"));
    assert!(parse("slots = 0").contains("1 to 4096 slots"));
    assert!(parse("tcp = { cores = 0 }").contains("cores serve a port"));
    assert!(parse("tcp = { copy = \"0Gbps\" }").contains("10GB/s"));
    let slow = |gpu: &str| format!("{gpu}[[faults]]\nkind = \"slow-gpu\"\ngpu = 99\nshare = 0.5\n");
    assert!(parse(&slow("")).contains("there are no GPUs"));
    assert!(
        parse(&slow("server = \"pcie-4gpu\"\n"))
            .contains("there is no GPU 99: the servers have GPUs 0 to 47")
    );
    assert!(parse("transport = \"udp\"").contains("`rdma` or `tcp`"));
}

#[test]
fn links_are_as_fast_as_the_nics_where_nobody_says_otherwise() {
    let rate =
        |text: &str| Scenario::parse(&format!("{text}\n[model]\nname = \"tiny\"\n")).unwrap().edge_rate();
    let servers = |name: &str| format!("[cluster]\nserver = \"{name}\"\nnodes = 2\n");
    assert_eq!(rate(&servers("dgx-h100")), Rate::gbps(400));
    assert_eq!(rate(&servers("dgx-a100")), Rate::gbps(200));
    let said = "[fabric.link]\nrate = \"50Gbps\"\n";
    assert_eq!(rate(&format!("{}{said}", servers("dgx-h100"))), Rate::gbps(50));
    let slow = "[fabric]\nlink = { delay = \"2us\", edge = { rate = \"25Gbps\" } }\n";
    assert_eq!(rate(&format!("{}{slow}", servers("dgx-h100"))), Rate::gbps(25));
    let unlike = "[[cluster.groups]]\nserver = \"dgx-a100\"\nnodes = 1\n[[cluster.groups]]\nserver = \"dgx-h100\"\nnodes = 1\n";
    assert_eq!(rate(unlike), Rate::gbps(400));
    let bare = "[fabric]\ntopology = { kind = \"single-switch\", hosts = 4 }\n";
    assert_eq!(Scenario::parse(bare).unwrap().edge_rate(), Rate::gbps(100));
}
