//! Collectives through NICs: clear-to-sends, WRITEs, several queue pairs, packets that get lost.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::sync::Arc;

use railnet_coll::conduit::net::NetConfig;
use railnet_coll::testing::{Data, LabError, NetworkLab, NetworkOptions};
use railnet_coll::{Algorithm, Call, Choice, Collective, Protocol, Schedule, Wiring, build};
use railnet_core::{Bytes, Span};
use railnet_nic::recovery::RecoveryKind;
use railnet_nic::testing::Faults;

fn schedule(count: u64, protocol: Protocol, wiring: &Wiring) -> Schedule {
    let buffer = match protocol {
        Protocol::Ll => 8 * 4096,
        Protocol::Simple | Protocol::Ll128 => 8 * 8192,
    };
    let choice = Choice { buffer: Some(Bytes(buffer)), ..Choice::new(Algorithm::Ring, protocol).on(2) };
    build(&Call::new(Collective::AllReduce, count), &choice, wiring).unwrap()
}

fn options(data: Data, net: NetConfig) -> NetworkOptions {
    // A lab is quick: 1 ms is a long time without an answer.
    let net = NetConfig { timeout: 8, ..net };
    NetworkOptions { data, net, faults: Faults::default(), buffer: 1 << 17, seed: 7 }
}

fn networks() -> [NetConfig; 4] {
    let plain = NetConfig::default();
    [
        plain,
        NetConfig { queue_pairs: 3, ..plain },
        NetConfig { queue_pairs: 3, split: true, ..plain },
        NetConfig { queue_pairs: 2, split: true, apart_above: Some(Bytes(1024)), ..plain },
    ]
}

#[test]
fn slots_travel_over_one_or_more_queue_pairs() {
    let wiring = Wiring::flat(3);
    for net in networks() {
        for data in [Data::Bytes, Data::Ghosts] {
            let mut lab = NetworkLab::new(3, options(data, net), |_| ());
            // Layouts change between operations, and come back.
            for protocol in [Protocol::Simple, Protocol::Ll, Protocol::Ll128, Protocol::Simple] {
                lab.submit(&schedule(50_001, protocol, &wiring));
            }
            lab.submit(&schedule(0, Protocol::Simple, &wiring));
            lab.submit(&schedule(7, Protocol::Simple, &wiring));
            lab.run().unwrap_or_else(|error| panic!("{net:?} {data:?}: {error}"));
        }
    }
}

#[test]
fn lost_and_reordered_packets_change_nothing() {
    let wiring = Wiring::flat(3);
    let recoveries =
        [RecoveryKind::GoBackN, RecoveryKind::SelectiveRepeat { window: 128, reordering: Span::from_us(5) }];
    for recovery in recoveries {
        for net in networks() {
            let mut options = options(Data::Bytes, net);
            options.faults = Faults { loss: 10_000, reorder: 20_000, duplicate: 5_000, ..Faults::default() };
            let mut lab = NetworkLab::new(3, options, |config| config.recovery = recovery);
            (0..2).for_each(|_| lab.submit(&schedule(30_000, Protocol::Simple, &wiring)));
            lab.run().unwrap_or_else(|error| panic!("{net:?} {recovery:?}: {error}"));
            assert!(lab.wires.injected.lost > 0, "the wire was bad");
        }
    }
}

#[test]
fn a_clear_to_send_of_another_operation_takes_no_data() {
    let wiring = Wiring::flat(2);
    let mut lab = NetworkLab::new(2, options(Data::Ghosts, NetConfig::default()), |_| ());
    lab.submit(&schedule(100, Protocol::Simple, &wiring));
    lab.run().unwrap();
    for (rank, count) in [(0, 1000), (1, 1001)] {
        lab.submit_on(rank, &Arc::new(schedule(count, Protocol::Simple, &wiring)));
    }
    let Err(LabError::Failed(_, failure)) = lab.run() else { panic!("it must fail") };
    assert!(failure.to_string().starts_with("ranks disagree about collective #1 (count)"), "{failure}");
    assert_eq!(lab.failures.len(), 2);
    assert!(lab.waiting() > 0, "what was filled was not sent");
}

#[test]
fn a_dead_wire_breaks_the_communicator_and_says_where() {
    let wiring = Wiring::flat(2);
    let mut options = options(Data::Ghosts, NetConfig { retry_count: 2, ..NetConfig::default() });
    options.faults = Faults { loss: 1_000_000, ..Faults::default() };
    let mut lab = NetworkLab::new(2, options, |_| ());
    lab.submit(&schedule(1000, Protocol::Simple, &wiring));
    let Err(LabError::Failed(_, failure)) = lab.run() else { panic!("it must fail") };
    let text = failure.to_string();
    assert!(text.contains("the connection with rank") && text.contains("IBV_WC_RETRY_EXC_ERR"), "{text}");
    assert_eq!(lab.failures.len(), 2, "both are told");
}
