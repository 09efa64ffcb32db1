//! Chakra traces: files that Google's protobuf package wrote, and damaged ones.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use proptest::prelude::*;
use railnet_coll::Collective;
use railnet_core::{Bytes, Span};
use railnet_formats::chakra::{self, ChakraError};
use railnet_job::trace::{TraceNode, TraceWork};

const RANK_0: &[u8] = include_bytes!("../../../testdata/chakra/two-servers.0.et");
const RANK_5: &[u8] = include_bytes!("../../../testdata/chakra/two-servers.5.et");
const RANK_9: &[u8] = include_bytes!("../../../testdata/chakra/two-servers.9.et");

#[test]
fn traces_of_another_writer_say_what_it_wrote() {
    let trace = chakra::read(RANK_0).unwrap();
    let named = |name: &str| trace.nodes.iter().find(|node| node.name == name).unwrap().clone();
    assert_eq!(trace.nodes.len(), 10);
    assert_eq!(named("iteration").what, TraceWork::Nothing);
    let forward = TraceWork::Compute { time: Some(Span::from_us(200)), operations: 0, bytes: Bytes::ZERO };
    assert_eq!(
        named("forward"),
        TraceNode { id: 2, name: "forward".into(), what: forward, after: vec![1], start: Span::ZERO }
    );
    // What the CPU does takes no time of the GPU.
    assert_eq!(named("launch").what, TraceWork::Nothing);
    let collective = |collective, bytes, group: &str| TraceWork::Collective {
        collective,
        bytes: Bytes(bytes),
        group: Some(group.to_owned()).filter(|group| !group.is_empty()),
    };
    assert_eq!(named("activations").what, collective(Collective::AllReduce, 8 << 20, "tensor0"));
    assert_eq!(named("activations").after, [2, 3], "data and control");
    assert_eq!(named("parameters").what, collective(Collective::AllGather, 4 << 20, "data0"));
    assert_eq!(named("end").what, collective(Collective::Barrier, 0, ""));
    let backward = TraceWork::Compute { time: None, operations: 1 << 37, bytes: Bytes(6 << 24) };
    assert_eq!(named("backward").what, backward);
    assert_eq!(named("hint").what, TraceWork::Send { to: 9, bytes: Bytes(1 << 20) });
    assert_eq!(
        trace.ignored.iter().map(|(name, count)| (name.as_str(), *count)).collect::<Vec<_>>(),
        [("comm_priority", 1), ("comm_tag", 1)]
    );
    let other = chakra::read(RANK_9).unwrap();
    assert!(
        other.nodes.iter().any(|node| node.what == TraceWork::Receive { from: 0, bytes: Bytes(1 << 20) })
    );
    let slow = chakra::read(RANK_5).unwrap();
    assert!(
        matches!(slow.nodes[1].what, TraceWork::Compute { time: Some(time), .. } if time == Span::from_us(300))
    );
}

#[test]
fn what_is_wrong_is_told_with_its_place() {
    let words = |file: &[u8]| chakra::read(file).unwrap_err().to_string();
    assert_eq!(words(&[0x1f, 0x8b, 8]), "it is compressed with gzip: unpack it first");
    assert!(
        words(b"<xml/>").contains("a message is longer than what is left at byte 1"),
        "{}",
        words(b"<xml/>")
    );
    // A collective (type 7) of no kind: node 5, "x".
    let nameless = [0, 7, 0x08, 5, 0x12, 1, b'x', 0x18, 7];
    assert_eq!(words(&nameless), "node 5 (x) has no attribute comm_type");
    // A send without a target.
    let lost = [0, 7, 0x08, 5, 0x12, 1, b'x', 0x18, 5];
    assert!(matches!(chakra::read(&lost), Err(ChakraError::Node { node: 5, .. })));
    assert_eq!(words(&lost), "node 5 (x) has no attribute comm_dst");
}

proptest! {
    #[test]
    fn damaged_files_are_refused_or_read_and_never_panic(at in 0_usize..700, byte: u8, length in 0_usize..700) {
        let mut file = RANK_0.to_vec();
        if let Some(place) = file.get_mut(at) {
            *place = byte;
        }
        file.truncate(length);
        let _ = chakra::read(&file);
    }
}
