//! Machines of whole communicators, in memory and in an order drawn by lot, against a plain reference.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use railnet_coll::testing::{Data, Lab};
use railnet_coll::{Algorithm, Call, Choice, Collective, Protocol, Wiring, build};
use railnet_core::Bytes;

#[test]
fn a_ring_sums_on_real_bytes() {
    let call = Call::new(Collective::AllReduce, 10_000);
    let choice = Choice { buffer: Some(Bytes(4096)), ..Choice::new(Algorithm::Ring, Protocol::Simple) };
    let schedule = build(&call, &choice, &Wiring::flat(5)).unwrap();
    let mut lab = Lab::new(5, Data::Bytes, 1);
    lab.submit(&schedule);
    lab.submit(&schedule);
    lab.run().unwrap();
    assert!(lab.work_done > 100);
}
