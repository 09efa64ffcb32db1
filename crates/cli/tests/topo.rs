//! `railnet topo` from outside: fabrics, servers, pictures.

use std::fs;
use std::path::Path;

use crate::harness;
use crate::harness::{json, railnet, text};

fn scenario(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios").join(name);
    path.to_str().unwrap().to_owned()
}

#[test]
fn servers_have_a_port_for_each_nic_that_they_have() {
    let value = json(&["topo", &scenario("unlike-servers.toml"), "--json"]);
    // Twice 8, four times 1, and one: eight rails.
    assert_eq!((&value["hosts"], &value["nodes"]), (&21.into(), &7.into()), "{value}");
    let output = railnet(&["topo", &scenario("unlike-servers.toml"), "--links"]);
    let lines = text(&output.stdout);
    assert!(
        lines.contains("node2.nic0") && lines.contains("node1.nic7") && !lines.contains("node2.nic1"),
        "{lines}"
    );
}

#[test]
fn a_fabric_is_told_in_a_few_lines() {
    let output = railnet(&["topo", &scenario("permutation.toml")]);
    let lines = text(&output.stdout);
    assert!(output.status.success());
    for part in [
        "permutation.toml · fat-tree\n",
        "Hosts            128 ",
        "Switches         80                 32 edge + 32 agg + 16 core, leaves first",
        "Ports            8                  of the largest switch, a core",
        "128 to hosts, 256 between switches; all of 100 Gbps and 1 us",
        "Bisection        6.4 Tbps ",
        "Paths            1 to 16 ",
        "Path length      5.717 links        on average, 6 links at most",
        "Oversubscription 1.00 : 1 ",
    ] {
        assert!(lines.contains(part), "{part} is missing in\n{lines}");
    }
}

#[test]
fn rails_that_nobody_described_are_of_switches_that_are_sold() {
    let lines = |nodes: u32| {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("rails-{nodes}.toml"));
        let cluster = format!("[cluster]\nserver = \"dgx-h100\"\nnodes = {nodes}\n");
        fs::write(&path, format!("{cluster}[model]\nname = \"tiny\"\n")).unwrap();
        text(&railnet(&["topo", path.to_str().unwrap()]).stdout)
    };
    let flat = lines(512);
    assert!(flat.contains("128 leaf + 32 spine, leaves first"), "{flat}");
    assert!(flat.contains("Ports            128                of the largest switch, a spine"), "{flat}");
    let tall = lines(1024);
    assert!(tall.contains("256 leaf + 128 spine + 64 core, leaves first"), "{tall}");
    assert!(tall.contains("Ports            128                of the largest switch, a core"), "{tall}");
    assert!(tall.contains("Oversubscription 1.00 : 1"), "{tall}");
}

#[test]
fn json_has_the_same_numbers() {
    let value = json(&["topo", &scenario("leaf-spine.toml"), "--json"]);
    assert_eq!(
        (&value["kind"], &value["hosts"], &value["switches"]),
        (&"leaf-spine".into(), &32.into(), &8.into())
    );
    assert_eq!(value["bisection_bps"], 800_000_000_000_u64);
    assert_eq!((&value["paths_min"], &value["paths_max"]), (&1.into(), &4.into()));
    assert_eq!(value["oversubscription"], 2.0);
    assert_eq!(value["tiers"][0]["oversubscription"], 2.0);
    let odd = json(&["topo", &scenario("incast.toml"), "--json"]);
    assert_eq!((&odd["hosts"], &odd["oversubscription"]), (&17.into(), &1.0.into()));
}

#[test]
fn every_link_is_listed_with_its_number_and_the_names_of_its_ends() {
    let file = scenario("leaf-spine.toml");
    let lines = text(&railnet(&["topo", &file, "--links"]).stdout);
    for part in
        ["\n  0       host0   leaf0   100 Gbps, 1 us\n", "\n  47      leaf3   spine3  100 Gbps, 1 us\n"]
    {
        assert!(lines.contains(part), "{part} is missing in\n{lines}");
    }
    let value = json(&["topo", &file, "--links", "--json"]);
    let links = value["link_list"].as_array().unwrap();
    assert_eq!(links.len(), 48);
    assert_eq!((&links[32]["from"], &links[32]["to"]), (&"leaf0".into(), &"spine0".into()));
    assert!(json(&["topo", &file, "--json"])["link_list"].is_null());
    assert_eq!(railnet(&["topo", "cpu", "--links"]).status.code(), Some(2));
}

#[test]
fn every_server_of_the_catalogue_has_its_table() {
    let output = railnet(&["topo", "dgx-h100"]);
    let lines = text(&output.stdout);
    assert!(output.status.success());
    for part in ["GPU0", "NIC11", "NV18", "PXB", "SYS", "370.8", "GB/s one way", "400 Gbps, compute"] {
        assert!(lines.contains(part), "{part} is missing in\n{lines}");
    }
    for name in ["dgx-a100", "hgx-h200", "dgx-b200", "gb200-nvl72", "pcie-4gpu", "cpu"] {
        assert!(railnet(&["topo", name]).status.success(), "{name}");
    }
    let value = json(&["topo", "dgx-h100", "--json"]);
    assert_eq!((value["gpus"].as_array().unwrap().len(), value["nics"].as_array().unwrap().len()), (8, 12));
    let paths = value["paths"].as_array().unwrap();
    assert_eq!(paths.len(), 8 * (7 + 12));
    assert_eq!(
        (&paths[0]["type"], &paths[0]["bandwidth_bps"]),
        (&"NVL".into(), &2_966_400_000_000_u64.into())
    );
}

#[test]
fn channels_are_told_in_the_words_of_nccls_log() {
    let lines = text(&railnet(&["topo", "dgx-h100x2", "--channels"]).stdout);
    for part in [
        "Channels of 16 ranks on 2 nodes\n",
        "ring: Pattern 4, crossNic 2, nChannels 8, bw 48.0/48.0, type NVL/PIX, sameChannels 0\n",
        "   0 : NET/0(mlx5_0) GPU/0 GPU/7 GPU/6 GPU/5 GPU/4 GPU/3 GPU/2 GPU/1 NET/1(mlx5_3)\n",
        "\nChannel 00/16 :  0  7  6  5  4  3  2  1  9 10 11 12 13 14 15  8\n",
        "\nChannel 01/16 :  0  8 15 14 13 12 11 10  9  1  2  3  4  5  6  7\n",
        "\nTrees [0] 1/8/-1->0->-1 ",
        "\n16 coll channels, 16 nvls channels, 16 p2p channels, 4 p2p channels per peer\n",
    ] {
        assert!(lines.contains(part), "{part} is missing in\n{lines}");
    }
    let many = text(&railnet(&["topo", "dgx-a100", "--nodes", "64", "--channels"]).stdout);
    assert!(many.contains("Channels of 512 ranks on 64 nodes") && many.contains("the other 504 ranks"));
    let value = json(&["topo", "dgx-h100", "--channels", "--transports", "--json"]);
    let ring = &value["channels"]["graphs"]["ring"];
    assert_eq!((&ring["bandwidth_intra"], ring["channels"].as_array().unwrap().len()), (&30.0.into(), 12));
    assert_eq!(value["transports"][0]["via"], "P2P/CUMEM");
}

#[test]
fn transports_are_told_with_their_reasons_and_follow_the_environment() {
    let arguments = ["topo", "dgx-h100x2", "--transports"];
    let lines = text(&railnet(&arguments).stdout);
    assert!(lines.contains("0 -> 1   via P2P/CUMEM           NVLink (NVL), 370.8 GB/s\n"), "{lines}");
    assert!(lines.contains("0 -> 11  via NET/IB/3(3)/GDRDMA  different nodes; out by mlx5_5"), "{lines}");
    let mut command = harness::command::<&str>(&[]);
    let output = command.args(arguments).env("NCCL_P2P_DISABLE", "1").output().unwrap();
    let lines = text(&output.stdout);
    assert!(lines.contains("via SHM/direct/direct  NCCL_P2P_DISABLE forbids P2P"), "{lines}");
}

#[test]
fn a_server_goes_into_a_file_of_nccl_and_comes_back() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hgx.xml");
    let _ = fs::remove_file(&path);
    let file = path.to_str().unwrap();
    let output = railnet(&["topo", "hgx-h200", "--nccl-xml", file]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(fs::read_to_string(&path).unwrap().starts_with("<system version=\"1\">"));
    assert_eq!(railnet(&["topo", "hgx-h200", "--nccl-xml", file]).status.code(), Some(2));
    let channels = |what: &str| {
        let lines = text(&railnet(&["topo", what, "--nodes", "4", "--channels"]).stdout);
        lines[lines.find("\nChannels of").unwrap()..].to_owned()
    };
    assert_eq!(channels(file), channels("hgx-h200"));
    fs::write(&path, "<system version=\"1\">\n<cpu/>\n</system>").unwrap();
    let message = text(&railnet(&["topo", file]).stderr);
    assert!(message.contains("hgx.xml, line 2: <cpu> has no numaid"), "{message}");
    let scenario = railnet(&["topo", &scenario("incast.toml"), "--channels"]);
    assert!(text(&scenario.stderr).contains("--channels is about servers"));
    assert_eq!(scenario.status.code(), Some(2));
}

#[test]
fn a_picture_is_written_but_not_over_another() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fabric.svg");
    let _ = fs::remove_file(&path);
    let file = scenario("leaf-spine.toml");
    let arguments = ["topo", &file, "--svg", path.to_str().unwrap()];
    let first = railnet(&arguments);
    assert!(first.status.success() && text(&first.stdout).contains("Picture"));
    let picture = fs::read_to_string(&path).unwrap();
    assert!(picture.starts_with("<svg") && picture.contains("32 hosts"));
    fs::write(&path, "mine").unwrap();
    let second = railnet(&arguments);
    assert_eq!(second.status.code(), Some(2));
    assert!(
        text(&second.stderr).contains("is there already: --force replaces it"),
        "{}",
        text(&second.stderr)
    );
    assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
    let forced = [&arguments[..], &["--force"]].concat();
    assert!(railnet(&forced).status.success());
    assert_eq!(fs::read_to_string(&path).unwrap(), picture);
}

#[test]
fn an_unknown_name_lists_the_known_ones_and_says_that_a_file_will_do() {
    let output = railnet(&["topo", "dgx-h10"]);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2));
    for part in [
        "called dgx-h10",
        "dgx-a100",
        "pcie-4gpu",
        "did you mean \"dgx-h100\"?",
        "or give a scenario: a file",
    ] {
        assert!(message.contains(part), "{part} is missing in\n{message}");
    }
    let server = railnet(&["topo", "cpu", "--svg", "x.svg"]);
    assert_eq!(server.status.code(), Some(2));
    assert!(text(&server.stderr).contains("draws fabrics"), "{}", text(&server.stderr));
    assert_eq!(railnet(&["topo"]).status.code(), Some(2));
    assert_eq!(railnet(&["topo", "cpu", "--force"]).status.code(), Some(2));
}

#[test]
fn a_fabric_that_cannot_be_built_is_shown_with_its_line() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("odd.toml");
    fs::write(&path, "[fabric]\ntopology = { kind = \"fat-tree\", k = 5 }\n").unwrap();
    let output = railnet(&["topo", path.to_str().unwrap()]);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2));
    assert!(message.contains("use 4 or 6") && message.contains("odd.toml:2:12"), "{message}");
}
