//! Every recorded conversation with Linux Soft-RoCE, held again by this NIC.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use railnet_nic::Behaviour;
use railnet_nic::testing::replay::{Finding, Freedom, Freedoms, NotesError, ReplayError, Report, replay};
use railnet_wire::capture::{PcapWriter, Precision, Reader};
use railnet_wire::{Extended, Frame, RocePacket, Syndrome};

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/rxe")
}

/// The names of all captures, sorted.
fn captures() -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "pcap"))
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    names.sort();
    names
}

fn notes(name: &str) -> Option<String> {
    fs::read_to_string(directory().join(format!("{name}.txt"))).ok()
}

fn bytes(name: &str) -> Vec<u8> {
    fs::read(directory().join(format!("{name}.pcap"))).unwrap()
}

fn held(name: &str, behaviour: Behaviour) -> Report {
    replay(&bytes(name)[..], notes(name).as_deref(), behaviour).unwrap()
}

/// What differs, in words.
fn findings(report: &Report) -> Vec<String> {
    report.conversations.iter().flat_map(|one| &one.findings).map(ToString::to_string).collect()
}

fn differing_fields(report: &Report) -> BTreeMap<&'static str, usize> {
    let mut fields = BTreeMap::new();
    for finding in report.conversations.iter().flat_map(|one| &one.findings) {
        match finding {
            Finding::Answer(pair) => {
                for difference in &pair.differences {
                    *fields.entry(difference.field).or_default() += 1;
                }
            }
            Finding::Ending(difference) => *fields.entry(difference.field).or_default() += 1,
        }
    }
    fields
}

#[test]
fn answers_are_those_of_soft_roce_in_every_capture() {
    let (mut conversations, mut requests, mut answers, mut completions, mut others) = (0, 0, 0, 0, 0);
    let mut freedoms = Freedoms::default();
    let mut left_out = Vec::new();
    for name in captures() {
        let report = held(&name, Behaviour::RXE);
        assert!(report.is_equal(), "{name}:\n{}", findings(&report).join("\n"));
        assert_eq!((report.other, report.malformed), (0, 0), "{name}");
        freedoms.add_all(&report.freedoms());
        for one in &report.conversations {
            assert_eq!(one.answers, one.equal, "{name}");
            conversations += 1;
            requests += one.requests;
            answers += one.answers;
            completions += one.completions;
            others += one.other_checks;
            if !one.left_out.is_empty() {
                left_out.push((name.clone(), one.left_out.clone()));
            }
        }
    }
    assert_eq!(captures().len(), 48);
    assert_eq!((conversations, requests, answers, completions, others), (59, 943, 737, 185, 102));
    let lost = |name: &str, numbers: &[u64]| (name.to_owned(), numbers.to_vec());
    assert_eq!(
        left_out,
        [
            lost("loss_rc_retry_exceeded", &[1, 2, 3]),
            lost("loss_rc_send_multi_req_dropped", &[6, 22, 30, 39]),
            lost("loss_rc_write_req_dropped", &[4, 22, 39]),
        ],
        "only where the receiver was made to lose packets"
    );
    let used = [
        (Freedom::Identification, 735),
        (Freedom::EthernetAddresses, 737),
        (Freedom::Path, 50),
        (Freedom::QueuePair, 8),
        (Freedom::Region, 7),
        (Freedom::Memory, 16),
        (Freedom::Receives, 90),
        (Freedom::PostingTime, 1),
    ];
    assert_eq!(freedoms.iter().collect::<Vec<_>>(), used);
    assert_eq!(Freedom::ALL.len(), freedoms.iter().count(), "each documented freedom is needed");
}

/// The capture with its `nth` answer changed, ICRC made right again.
fn changed(name: &str, nth: usize, change: impl Fn(&mut RocePacket<'_>)) -> Vec<u8> {
    let original = bytes(name);
    let mut reader = Reader::new(&original[..]).unwrap();
    let mut file = Vec::new();
    let link_type = reader.interfaces()[0].link_type;
    let mut writer = PcapWriter::new(&mut file, Precision::Microseconds, link_type).unwrap();
    let mut answers = 0;
    while let Some(packet) = reader.next_packet().unwrap() {
        let at = packet.timestamp.unwrap();
        let Ok(Frame::Roce(mut roce)) = packet.frame() else {
            panic!("{name} holds RoCE only");
        };
        let is_answer = roce.headers.bth.opcode.is_response();
        if is_answer && answers == nth {
            change(&mut roce);
            writer.write(at, &roce.to_bytes()).unwrap();
        } else {
            writer.write(at, &packet.bytes).unwrap();
        }
        answers += usize::from(is_answer);
    }
    assert!(answers > nth);
    file
}

fn set_aeth(roce: &mut RocePacket<'_>, syndrome: Syndrome, more_messages: u32) {
    if let Extended::Aeth(aeth) | Extended::AtomicAck(aeth, _) = &mut roce.headers.extended {
        aeth.syndrome = syndrome;
        aeth.msn += more_messages;
    }
}

#[test]
fn one_changed_field_of_one_answer_is_found() {
    type Change = fn(&mut RocePacket<'_>);
    let cases: [(&str, &str, Change); 14] = [
        ("rc_send_4x5B_psnwrap", "syndrome", |roce| set_aeth(roce, Syndrome::Ack { credits: 30 }, 0)),
        ("rc_send_4x5B_psnwrap", "syndrome", |roce| set_aeth(roce, Syndrome::from_byte(0x60), 0)),
        ("err_rc_rnr_exceeded", "syndrome", |roce| set_aeth(roce, Syndrome::RnrNak { timer: 13 }, 0)),
        ("rc_send_4x5B_psnwrap", "MSN", |roce| set_aeth(roce, Syndrome::ACK, 1)),
        ("rc_send_4x5B_psnwrap", "PSN", |roce| roce.headers.bth.psn = roce.headers.bth.psn.plus(1)),
        ("rc_send_4x5B_psnwrap", "P_Key", |roce| roce.headers.bth.partition = 0x7fff),
        ("rc_send_4x5B_psnwrap", "migration bit", |roce| roce.headers.bth.migrated = true),
        ("rc_send_4x5B_psnwrap", "flags", |roce| roce.headers.bth.solicited = true),
        ("rc_send_4x5B_psnwrap", "UDP source port", |roce| roce.udp.source_port ^= 1),
        ("rc_send_4x5B_psnwrap", "UDP checksum", |roce| roce.udp.checksum = 1),
        ("rc_batch_reads_rd1", "payload", |roce| roce.payload = &[7; 1024]),
        ("rc_batch_reads_rd1", "payload length", |roce| {
            *roce = RocePacket::new(roce.ethernet, &roce.network(), roce.headers, &roce.payload[..1000]);
        }),
        ("rc_cas_match", "original value", |roce| {
            if let Extended::AtomicAck(_, original) = &mut roce.headers.extended {
                *original += 1;
            }
        }),
        ("loss_rc_write_req_dropped", "MSN", |roce| set_aeth(roce, Syndrome::ACK, 1)),
    ];
    for (name, field, change) in cases {
        let capture = changed(name, 1, change);
        let report = replay(&capture[..], notes(name).as_deref(), Behaviour::RXE).unwrap();
        let fields = differing_fields(&report);
        assert_eq!(fields.get(field), Some(&1), "{name}, {field}: {:?}", findings(&report));
    }
}

#[test]
fn a_missing_answer_does_not_spoil_those_after_it() {
    let name = "rc_batch_reads_rd1";
    // For another queue pair: it is no answer of this conversation any more.
    let capture =
        changed(name, 1, |roce| roce.headers.bth.destination = railnet_core::QueuePairNumber::new(0x999));
    let report = replay(&capture[..], notes(name).as_deref(), Behaviour::RXE).unwrap();
    let [one] = &report.conversations[..] else {
        panic!("one queue pair was asked");
    };
    assert_eq!((one.answers, one.equal, one.findings.len()), (7, 7, 1));
    assert!(one.findings[0].to_string().starts_with("an answer too many"), "{}", one.findings[0]);
}

#[test]
fn wrong_notes_of_the_end_are_found() {
    let name = "rc_cas_match";
    let right = notes(name).unwrap();
    for (from, to, field) in [
        ("server qp state 3", "server qp state 6", "final state"),
        ("buf[0..8] 98938e89847f7a75", "buf[0..8] 98938e89847f7a76", "first eight bytes of memory"),
    ] {
        let wrong = right.replace(from, to);
        assert_ne!(wrong, right);
        let report = replay(&bytes(name)[..], Some(&wrong), Behaviour::RXE).unwrap();
        assert_eq!(differing_fields(&report), BTreeMap::from([(field, 1)]));
    }
    let name = "ud_send_1024B";
    let right = notes(name).unwrap();
    let wrong =
        right.replace("imm abcd0001 src_qp 25", "imm abcd0002 src_qp 25").replace("45000438", "45000439");
    let report = replay(&bytes(name)[..], Some(&wrong), Behaviour::RXE).unwrap();
    assert_eq!(differing_fields(&report), BTreeMap::from([("completion", 1), ("address area (GRH)", 2)]));
}

#[test]
fn a_nic_that_follows_the_specification_differs_where_soft_roce_is_known_to() {
    let mut fields: BTreeMap<&str, usize> = BTreeMap::new();
    for name in captures() {
        let report = held(&name, Behaviour::SPECIFICATION);
        let answers: usize = report.conversations.iter().map(|one| one.answers).sum();
        let here = differing_fields(&report);
        // Soft-RoCE clears the migration bit of every packet.
        assert_eq!(here.get("migration bit").copied().unwrap_or(0), answers, "{name}");
        let differs_in_verdict =
            ["err_rc_send_too_long", "err_rc_write_no_perm", "err_rc_read_no_perm", "err_rc_atomic_no_perm"]
                .contains(&&name[..]);
        assert_eq!(here.contains_key("syndrome"), differs_in_verdict, "{name}");
        let over_ipv6 = if name.starts_with("v6") { answers } else { 0 };
        assert_eq!(here.get("UDP checksum").copied().unwrap_or(0), over_ipv6, "{name}");
        for (field, count) in here {
            *fields.entry(field).or_default() += count;
        }
    }
    // And it sets the GRH flag in every completion, ends a receive that is too small with another status, and sends no
    // UDP checksum over IPv6.
    let kinds: Vec<&str> = fields.keys().copied().collect();
    assert_eq!(kinds, ["UDP checksum", "completion", "migration bit", "syndrome"]);
    let too_long = findings(&held("err_rc_send_too_long", Behaviour::SPECIFICATION)).join("\n");
    assert!(
        too_long.contains("recorded NAK RemoteOperational (0x63), ours NAK InvalidRequest (0x61)"),
        "{too_long}"
    );
    assert!(too_long.contains("recorded work 1000 status 2, ours work 1000 status 1"), "{too_long}");
    let no_right = findings(&held("err_rc_write_no_perm", Behaviour::SPECIFICATION)).join("\n");
    assert!(
        no_right.contains("recorded NAK InvalidRequest (0x61), ours NAK RemoteAccess (0x62)"),
        "{no_right}"
    );
}

#[test]
fn without_notes_everything_is_learned_from_the_packets() {
    for name in captures() {
        let report = replay(&bytes(&name)[..], None, Behaviour::RXE).unwrap();
        // What a program forbade or had no room for cannot be seen from outside.
        let needs_notes = name.ends_with("_no_perm") || name == "err_rc_send_too_long";
        assert_eq!(!report.is_equal(), needs_notes, "{name}:\n{}", findings(&report).join("\n"));
    }
}

#[test]
fn damaged_captures_and_notes_do_no_harm() {
    for name in captures() {
        let (capture, notes) = (bytes(&name), notes(&name));
        for round in 0..4 {
            let mut damaged = capture.clone();
            // Steps that are coprime to record lengths reach every field sooner or later.
            for at in (24 + round * 7..damaged.len()).step_by(1009) {
                damaged[at] ^= 1 << (round % 8);
            }
            let _ = replay(&damaged[..], notes.as_deref(), Behaviour::RXE);
        }
        for (from, to) in
            [("0x", "0xf"), ("-z ", "-z 4294967295"), ("addr 0x", "addr 0xffff"), ("-l ", "-l 9999999")]
        {
            let notes = notes.as_deref().map(|notes| notes.replace(from, to));
            let _ = replay(&capture[..], notes.as_deref(), Behaviour::RXE);
        }
    }
}

#[test]
fn what_cannot_be_replayed_says_why() {
    let refused = |capture: &[u8], notes| replay(capture, notes, Behaviour::RXE).unwrap_err();
    assert!(matches!(refused(b"hello, world", None), ReplayError::Capture(_)));
    let capture = bytes("rc_cas_match");
    assert!(matches!(refused(&capture, Some("hello")), ReplayError::Notes(NotesError::Unknown)));
    assert!(refused(&capture, Some("hello")).to_string().contains("# server (ADDRESS): COMMAND"));
    let mut empty = Vec::new();
    let link_type = railnet_wire::capture::LinkType::ETHERNET;
    PcapWriter::new(&mut empty, Precision::Microseconds, link_type).unwrap();
    assert!(matches!(refused(&empty, None), ReplayError::NoRoce { packets: 0 }));
}
