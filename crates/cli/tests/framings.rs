//! InfiniBand and RoCE v1 from outside: captures, `decode`, the ladder of `verbs`, screens and JSON.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::harness::{is_installed, railnet, scratch, text};

/// An incast over spines.
fn scenario(name: &str, framing: &str) -> PathBuf {
    let path = scratch(&format!("{name}.toml"));
    let text = format!(
        "seed = 1\n[fabric]\ntopology = {{ kind = \"leaf-spine\", leaves = 2, hosts_per_leaf = 3, spines = 2 }}\n\
         framing = \"{framing}\"\n[[traffic]]\nkind = \"incast\"\nfrom = \"0..4\"\nto = 5\nbytes = \"100KB\"\n"
    );
    fs::write(&path, text).unwrap();
    path
}

fn succeeds(arguments: &[&str]) -> (String, String) {
    let output = railnet(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    (text(&output.stdout), text(&output.stderr))
}

/// What tshark finds in a capture: these fields of each packet, and whether it is malformed.
fn dissected(file: &Path, fields: &[&str]) -> Vec<Vec<String>> {
    let output = Command::new("tshark")
        .args(["--disable-protocol", "rpcordma", "-r"])
        .arg(file)
        .args(["-T", "fields"])
        .args(fields.iter().chain(&["_ws.malformed"]).flat_map(|field| ["-e", field]))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout).lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

#[test]
fn a_run_on_infiniband_has_no_ethernet_in_it() {
    let (file, capture) = (scenario("infiniband", "infiniband"), scratch("infiniband.pcapng"));
    let (file, capture) = (file.to_str().unwrap(), capture.to_str().unwrap());
    let (screen, _) = succeeds(&["sim", file, "--pcap", capture, "--tap", "host5", "--tap", "leaf0"]);
    assert!(screen.contains("InfiniBand, go-back-n") && screen.contains("LIDs 1 to 10"), "{screen}");
    let json = scratch("infiniband.json");
    succeeds(&["sim", file, "--json", json.to_str().unwrap()]);
    let json = fs::read_to_string(json).unwrap();
    for word in ["Ethernet", "ethernet", "ECN", "pause", "Paused", "Marked", "marks", "RoCE", "DSCP"] {
        assert!(!screen.contains(word), "{word}: {screen}");
        assert!(!json.contains(word), "{word} in the JSON object");
    }
    let (_, verdict) = succeeds(&["decode", "--check", capture]);
    assert!(verdict.starts_with("good: ") && verdict.contains("0 with a bad VCRC, 0 malformed"), "{verdict}");
    assert!(verdict.contains(" 0 RoCE, "), "{verdict}");
    let (lines, _) = succeeds(&["decode", "--json", capture]);
    let packets: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(packets.len() > 100);
    for packet in &packets {
        assert_eq!(
            (&packet["kind"], &packet["vcrc_is_good"]),
            (&"infiniband".into(), &true.into()),
            "{packet}"
        );
        // Hosts have the LIDs 1 to 6.
        assert!((1..=6).contains(&packet["source_lid"].as_u64().unwrap()), "{packet}");
    }
    if !is_installed("tshark") {
        return;
    }
    let found =
        dissected(Path::new(capture), &["frame.protocols", "infiniband.lrh.slid", "infiniband.bth.psn"]);
    assert_eq!(found.len(), packets.len());
    for (found, packet) in found.iter().zip(&packets) {
        assert!(found[0].starts_with("erf:infiniband"), "{found:?}");
        assert_eq!(found[1], packet["source_lid"].to_string());
        assert_eq!((&found[2], found[3].as_str()), (&packet["psn"].to_string(), ""), "{found:?}");
    }
}

#[test]
fn roce_v1_is_on_ethernet_with_a_global_route_header() {
    let (file, capture) = (scenario("rocev1", "rocev1"), scratch("rocev1.pcapng"));
    let (file, capture) = (file.to_str().unwrap(), capture.to_str().unwrap());
    let (screen, _) = succeeds(&["sim", file, "--pcap", capture, "--tap", "host5", "--tap", "leaf0"]);
    assert!(screen.contains("RoCE v1, go-back-n") && screen.contains("control none"), "{screen}");
    let (lines, _) = succeeds(&["decode", "--json", capture]);
    let packets: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let roce: Vec<&Value> = packets.iter().filter(|packet| packet["kind"] == "roce-v1").collect();
    assert!(roce.len() > 100);
    // Bridges leave the addresses of both NICs, and routers between subnets there are none.
    let ends = |packet: &&Value| {
        packet["source_mac"].as_str().is_some_and(|mac| mac.starts_with("02:")) && packet["hop_limit"] == 64
    };
    assert!(roce.iter().all(ends));
    assert!(roce.iter().all(|packet| packet["source"].as_str().is_some_and(|ip| ip.starts_with("10.0.0."))));
    if !is_installed("tshark") {
        return;
    }
    let found = dissected(Path::new(capture), &["frame.protocols", "infiniband.bth.psn"]);
    assert_eq!(found.len(), packets.len());
    for (found, packet) in found.iter().zip(&packets).filter(|(_, packet)| packet["kind"] == "roce-v1") {
        assert!(found[0].contains("infiniband") && !found[0].contains("ip"), "{found:?}");
        assert_eq!((&found[1], found[2].as_str()), (&packet["psn"].to_string(), ""), "{found:?}");
    }
}

#[test]
fn the_ladder_shows_the_headers_of_each_framing() {
    for (framing, words) in [
        ("infiniband", ["LRH: LID 1 → 2, SL 0, VL 0", "VCRC ", " · InfiniBand"]),
        (
            "rocev1",
            [
                "Ethernet type 0x8915, priority 0; GRH: 10.0.0.1 → 10.0.0.2, hop limit 64",
                "ICRC ",
                " · RoCE v1",
            ],
        ),
    ] {
        for operation in ["write", "read", "send", "write-imm", "atomic"] {
            let capture = scratch(&format!("{framing}-{operation}.pcapng"));
            let file = capture.to_str().unwrap();
            let (ladder, _) =
                succeeds(&["verbs", operation, "--framing", framing, "--drop-psn", "0", "--pcap", file]);
            for word in words {
                assert!(ladder.contains(word), "{framing} {operation}: no {word:?} in\n{ladder}");
            }
            let (_, verdict) = succeeds(&["decode", "--check", file]);
            assert!(verdict.starts_with("good: "), "{verdict}");
            let (lines, _) = succeeds(&["verbs", operation, "--framing", framing, "--json"]);
            let field = if framing == "infiniband" { "lrh" } else { "grh" };
            let mut packets = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
            assert!(packets.any(|step| step["step"] == "packet" && step[field].is_object()), "{lines}");
            if is_installed("tshark") {
                let found = dissected(&capture, &["infiniband.bth.psn"]);
                assert!(
                    found.len() >= 3
                        && found.iter().all(|packet| !packet[0].is_empty() && packet[1].is_empty())
                );
            }
        }
    }
    let refused = railnet(&["verbs", "write", "--framing", "infiniband", "--behaviour", "rxe"]);
    assert_eq!(refused.status.code(), Some(2));
}

#[test]
fn a_recorded_run_has_the_layers_of_its_links() {
    let (file, run) = (scenario("recorded", "infiniband"), scratch("recorded.rail"));
    succeeds(&["sim", file.to_str().unwrap(), "--record", run.to_str().unwrap()]);
    let run = railnet_formats::run_file::RunFile::parse(&fs::read(&run).unwrap()).unwrap();
    assert_eq!(run.meta["framing"], "infiniband");
    assert_eq!(run.meta["fabric"]["hosts"][4]["lid"], 5);
    assert!(run.table("frames").unwrap().rows > 0);
}
