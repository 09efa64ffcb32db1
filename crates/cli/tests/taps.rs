//! `railnet sim --pcap` from outside: what is in the file, and what is refused.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use railnet_wire::capture::{Packet, Reader};
use railnet_wire::{Frame, Mac};

use crate::harness::{is_installed, railnet, scratch, text};

/// An incast over spines, with a buffer that needs pauses and thresholds that mark early.
const INCAST: &str = "seed = 1\n[fabric]\n\
    topology = { kind = \"leaf-spine\", leaves = 2, hosts_per_leaf = 3, spines = 2 }\n\
    switch = { buffer = \"3MB\", ecn = { kmin = \"20KB\", kmax = \"80KB\", pmax = 0.5 } }\n\
    [nic]\ncontrol = \"none\"\n[[traffic]]\nkind = \"incast\"\nfrom = \"0..4\"\nto = 5\nbytes = \"400KB\"\n";

/// Runs the incast with these taps; the path of the capture, and what was printed.
fn capture(name: &str, taps: &[&str], more: &[&str]) -> (PathBuf, String) {
    let (scenario, file) = (scratch(&format!("{name}.toml")), scratch(&format!("{name}.pcapng")));
    fs::write(&scenario, INCAST).unwrap();
    let mut arguments = vec!["sim", scenario.to_str().unwrap(), "--pcap", file.to_str().unwrap()];
    arguments.extend(taps.iter().flat_map(|tap| ["--tap", tap]));
    arguments.extend(more);
    let output = railnet(&arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));
    (file, text(&output.stdout))
}

/// The packets of a capture, each with the name of its interface.
fn packets(file: &Path) -> Vec<(String, Packet)> {
    let mut reader = Reader::new(fs::File::open(file).unwrap()).unwrap();
    let mut all = Vec::new();
    while let Some(packet) = reader.next_packet().unwrap() {
        let interface = reader.interfaces()[packet.interface as usize].name.clone().unwrap();
        all.push((interface, packet));
    }
    all
}

/// What a hop shows of a packet.
#[derive(Debug)]
struct Hop {
    interface: String,
    macs: (Mac, Mac),
    limit: u8,
    ecn: u8,
    icrc: u32,
}

#[test]
fn a_packet_is_followed_from_link_to_link() {
    let (file, printed) = capture("follow", &["host0", "leaf0", "leaf1"], &[]);
    let mut ways: BTreeMap<u32, Vec<Hop>> = BTreeMap::new();
    let mut pauses = 0;
    let mut last = None;
    let all = packets(&file);
    for (interface, packet) in &all {
        assert!(last <= Some(packet.timestamp), "in the order of time");
        last = Some(packet.timestamp);
        match Frame::parse(&packet.bytes).unwrap() {
            Frame::Pause { .. } => pauses += 1,
            Frame::Roce(roce) => {
                assert!(roce.icrc.is_good());
                let (network, ethernet) = (roce.network(), roce.ethernet.unwrap());
                if network.source.to_ip().to_string() == "10.0.0.1" && !roce.headers.bth.opcode.is_response()
                {
                    ways.entry(roce.headers.bth.psn.value()).or_default().push(Hop {
                        interface: interface.clone(),
                        macs: (ethernet.source, ethernet.target),
                        limit: network.hop_limit,
                        ecn: network.ecn(),
                        icrc: roce.icrc.found,
                    });
                }
            }
            Frame::Other { .. } => panic!("nothing else is on these links"),
            _ => {}
        }
    }
    assert!(pauses > 0);
    let line = format!("of 10 links in {}", file.display());
    assert!(printed.contains(&line) && printed.contains("Captured"), "{printed}");
    assert_eq!(ways.len(), 400_000_usize.div_ceil(4096));
    let mut turned = 0;
    for hops in ways.values() {
        let [first, second, third, fourth] = &hops[..] else { panic!("{hops:?}") };
        assert_eq!(first.interface, "host0 - leaf0");
        assert!(second.interface.starts_with("leaf0 - spine"), "{hops:?}");
        assert!(third.interface.starts_with("leaf1 - spine"), "{hops:?}");
        assert_eq!(fourth.interface, "host5 - leaf1");
        assert_eq!([first, second, third, fourth].map(|hop| hop.limit), [64, 63, 62, 61]);
        let mut macs: Vec<_> = hops.iter().flat_map(|hop| [hop.macs.0, hop.macs.1]).collect();
        macs.sort_unstable();
        macs.dedup();
        assert_eq!(macs.len(), 8, "each port has its own: {hops:?}");
        assert!(hops.iter().all(|hop| hop.icrc == first.icrc));
        assert_eq!(first.ecn, 2);
        assert!(hops.is_sorted_by_key(|hop| hop.ecn), "a mark stays: {hops:?}");
        turned += u32::from(second.ecn == 3 || fourth.ecn == 3);
    }
    assert!(turned > 10, "only {turned} were marked");
}

#[test]
fn values_and_bytes_write_the_same_file() {
    let (values, printed) = capture("values", &[], &[]);
    let (bytes, printed_too) = capture("bytes", &[], &["--wire", "bytes"]);
    assert_eq!(fs::read(values).unwrap(), fs::read(bytes).unwrap());
    let digest = |text: &str| text.lines().find(|line| line.contains("Digest")).unwrap()[..34].to_owned();
    assert_eq!(digest(&printed), digest(&printed_too));
    assert!(printed.contains("of 6 links in "), "all hosts where nobody says which: {printed}");
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_is_written() {
    let scenario = scratch("refused.toml");
    fs::write(&scenario, INCAST).unwrap();
    let file = scratch("refused.pcapng");
    let run = |more: &[&str]| {
        let mut arguments = vec!["sim", scenario.to_str().unwrap(), "--pcap", file.to_str().unwrap()];
        arguments.extend(more);
        let output = railnet(&arguments);
        (output.status.code(), text(&output.stderr))
    };
    let cases = [
        (&["--tap", "hots3"][..], "did you mean \"host3\"?"),
        (
            &["--tap", "leaf0:leaf1"],
            "no link joins leaf0 and leaf1\n  = leaf0 is joined to spine0, spine1, host0",
        ),
        (&["--tap", "leaf0:"], "there is no host or switch called \"\""),
        (&["--sweep", "seed=1,2"], "cannot be used with"),
    ];
    for (arguments, part) in cases {
        let (code, message) = run(arguments);
        assert_eq!(code, Some(2), "{message}");
        assert!(message.contains(part), "{message}");
        assert!(!file.exists());
    }
    let output = railnet(&["sim", scenario.to_str().unwrap(), "--tap", "host0"]);
    assert_eq!(output.status.code(), Some(2), "taps without a file");
    // A file that is there is left alone.
    fs::write(&file, "precious").unwrap();
    let (code, message) = run(&[]);
    assert_eq!(code, Some(2));
    assert!(message.contains("is there already: --force replaces it"), "{message}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
    assert_eq!(run(&["--force"]).0, Some(0));
    assert!(packets(&file).len() > 100);
}

#[test]
fn a_large_fabric_wants_to_be_told_where_to_listen() {
    let scenario = scratch("large.toml");
    fs::write(&scenario, INCAST.replace("hosts_per_leaf = 3", "hosts_per_leaf = 9")).unwrap();
    let file = scratch("large.pcapng");
    let output = railnet(&["sim", scenario.to_str().unwrap(), "--pcap", file.to_str().unwrap()]);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        message.contains("the fabric has 18 hosts: say where to listen, such as --tap host0"),
        "{message}"
    );
    assert!(!file.exists());
}

#[test]
fn tshark_reads_every_frame_as_it_was_meant() {
    if !is_installed("tshark") {
        return;
    }
    let (file, _) = capture("tshark", &["host0", "leaf0"], &[]);
    let fields = [
        "frame.interface_name",
        "eth.src",
        "ip.ttl",
        "ip.dsfield.ecn",
        "infiniband.bth.psn",
        "macc.opcode",
        "_ws.malformed",
    ];
    let output = Command::new("tshark")
        .args(["--disable-protocol", "rpcordma", "-o", "ip.check_checksum:TRUE", "-r"])
        .arg(&file)
        .args(["-T", "fields"])
        .args(fields.into_iter().flat_map(|field| ["-e", field]))
        .args(["-e", "ip.checksum.status"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let found = text(&output.stdout);
    let ours = packets(&file);
    assert_eq!(found.lines().count(), ours.len());
    for (line, (interface, packet)) in found.lines().zip(ours) {
        let columns: Vec<&str> = line.split('\t').collect();
        let [name, source, ttl, ecn, psn, opcode, malformed, checksum] = columns[..] else {
            panic!("{line}")
        };
        assert_eq!((name, malformed), (interface.as_str(), ""));
        match Frame::parse(&packet.bytes).unwrap() {
            Frame::Roce(roce) => {
                let network = roce.network();
                assert_eq!(source, roce.ethernet.unwrap().source.to_string());
                assert_eq!(ttl, network.hop_limit.to_string());
                assert_eq!(ecn, network.ecn().to_string());
                assert_eq!(psn, roce.headers.bth.psn.value().to_string());
                assert_eq!((opcode, checksum), ("", "1"), "1 is a good checksum");
            }
            _ => assert_eq!((psn, opcode), ("", "0x0101"), "a priority pause: {line}"),
        }
    }
}

#[test]
fn flows_windows_and_the_first_bytes_can_be_chosen() {
    let more = ["--flow", "host1:host5", "--between", "10us..40us", "--snaplen", "64"];
    let (file, _) = capture("chosen", &["leaf0"], &more);
    let all = packets(&file);
    assert!(!all.is_empty());
    for (_, packet) in &all {
        assert!(packet.bytes.len() <= 64 && packet.original_length > 64);
        let addresses = (&packet.bytes[26..30], &packet.bytes[30..34]);
        let (one, five) = (&[10, 0, 0, 2][..], &[10, 0, 0, 6][..]);
        assert!([(one, five), (five, one)].contains(&addresses), "{addresses:?}");
    }
    assert!(all.iter().any(|(_, packet)| packet.is_cut()));
    let scenario = scratch("refused.toml");
    fs::write(&scenario, INCAST).unwrap();
    let file = scratch("refused.pcapng");
    let paths = ["sim", scenario.to_str().unwrap(), "--pcap", file.to_str().unwrap()];
    for (arguments, words) in [
        (["--flow", "host1"], "write two hosts"),
        (["--flow", "host1:leaf0"], "leaf0 is a switch"),
        (["--flow", "host1:host55"], "--flow host1:host55: there is no host or switch called \"host55\""),
        (["--between", "5us"], "write a window such as 10us..25us"),
        (["--between", "5us..4us"], "the window ends before it begins"),
    ] {
        let output = railnet(&[&paths[..], &arguments[..]].concat());
        assert!(!output.status.success());
        assert!(text(&output.stderr).contains(words), "{arguments:?}: {}", text(&output.stderr));
    }
}

#[test]
fn packets_of_a_collective_say_what_they_are_part_of() {
    let (scenario, file) = (scratch("labelled.toml"), scratch("labelled.pcapng"));
    let ring = "seed = 1\n[fabric]\ntopology = { kind = \"single-switch\", hosts = 4 }\n\
                [[collective]]\nkind = \"all_reduce\"\nsize = \"1MB\"\nalgorithm = \"ring\"\n";
    fs::write(&scenario, ring).unwrap();
    let output = railnet(&["sim", scenario.to_str().unwrap(), "--pcap", file.to_str().unwrap()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let comments: Vec<String> = packets(&file).into_iter().flat_map(|(_, packet)| packet.comments).collect();
    assert!(
        comments.iter().any(|comment| comment.contains("· call 0, chunk 3, step ")),
        "{:?}",
        comments.first()
    );
}
