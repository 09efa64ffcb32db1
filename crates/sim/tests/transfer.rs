//! KV caches that move between GPUs: put and signal against send and receive.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use railnet_core::event::NoSink;
use railnet_core::{Bytes, Digest, Span};
use railnet_sim::{Scenario, TransferResult, run};

const KV: &str = include_str!("../../../scenarios/kv-transfer.toml");

fn transfers(text: &str) -> Vec<TransferResult> {
    let scenario = Scenario::parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    run(&scenario, NoSink).unwrap_or_else(|error| panic!("{error}\n{text}")).0.transfers
}

#[test]
fn one_sided_blocks_come_sooner_with_fewer_packets() {
    let both = transfers(KV);
    let [send, put] = &both[..] else { panic!("{both:?}") };
    assert!(!send.is_put && put.is_put);
    for one in [send, put] {
        assert_eq!((one.pairs, one.blocks, one.block, one.wrong), (8, 1024, Bytes::kib(64), 0));
        assert!(one.first > Span::ZERO && one.first < one.time);
        // 64 MiB for each pair, and headers.
        let payload = 8 * (64 << 20);
        assert!(one.wire.as_u64() > payload && one.wire.as_u64() < payload * 11 / 10, "{}", one.wire);
    }
    // A WRITE and a signal for each block; when sent, a note and a WRITE for each half of it.
    assert_eq!((put.messages, send.messages), (8 * 1024 * 2, 8 * 1024 * 4));
    assert!(put.packets < send.packets);
    assert!(put.first < send.first && put.time < send.time);
    // The wire is what a put waits for: 64 MiB at 400 Gb/s are 1.34 ms.
    assert!(put.time < Span::from_us(1_800), "{}", put.time);
}

#[test]
fn each_way_alone_takes_what_it_takes_beside_the_other() {
    let both = transfers(KV);
    for (way, beside) in [("send", &both[0]), ("put", &both[1])] {
        let [alone] = &transfers(&format!("{KV}by = \"{way}\"\n"))[..] else { panic!() };
        assert_eq!((alone.time, alone.first, alone.wrong), (beside.time, beside.first, 0), "{way}");
        assert_eq!(alone.messages, beside.messages, "{way}");
    }
}

#[test]
fn data_right_behind_the_nic_moves_too_and_runs_repeat() {
    let text = "[fabric]\ntopology = { kind = \"single-switch\", hosts = 4 }\n\
                [[transfer]]\nfrom = \"0,1\"\nto = \"3,2\"\nlayers = 3\nlayer = \"96KiB\"\nblock = \"32KiB\"\n";
    let [send, put] = &transfers(text)[..] else { panic!() };
    assert_eq!((send.blocks, put.blocks, send.wrong, put.wrong), (9, 9, 0, 0));
    assert_eq!(put.messages, 2 * 9 * 2);
    let scenario = Scenario::parse(text).unwrap();
    let digest = || run(&scenario, Digest::new()).unwrap().1.finish();
    assert_eq!(digest(), digest());
}

#[test]
fn transfers_that_make_no_sense_are_refused() {
    let cases = [
        (
            "from = \"0\"\nto = \"1..2\"\nlayer = \"64KiB\"\nblock = \"64KiB\"",
            "1 have it and 2 need it: as many of both",
        ),
        ("from = \"0\"\nto = \"0\"\nlayer = \"64KiB\"\nblock = \"64KiB\"", "0 has it and needs it"),
        (
            "from = \"0\"\nto = \"1\"\nlayer = \"64KiB\"\nblock = \"48KiB\"",
            "a layer is a whole number of blocks, and a block of 4 bytes",
        ),
    ];
    for (table, expected) in cases {
        let text = format!(
            "[fabric]\ntopology = {{ kind = \"single-switch\", hosts = 4 }}\n[[transfer]]\n{table}\n"
        );
        let error = match Scenario::parse(&text) {
            Ok(scenario) => run(&scenario, NoSink).unwrap_err().to_string(),
            Err(error) => error.to_string(),
        };
        assert!(error.contains(expected), "{error}");
    }
}
