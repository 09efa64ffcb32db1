use std::collections::BTreeSet;

use super::*;
use crate::id::Label;
use crate::psn::Psn;
use crate::units::Rate;
use proptest::prelude::*;

fn digest_of(events: &[(u64, u32, Event)]) -> Digest {
    let mut digest = Digest::new();
    for (time, component, event) in events {
        digest.record(Time::from_ps(*time), Component(*component), event);
    }
    digest
}

/// Every event, with the fields set from `f(0)`, `f(1)`, ...: changing one index changes one field.
fn events_with(f: impl Fn(u32) -> u64) -> Vec<Event> {
    let queue_pair = QueuePairNumber::new(f(0) as u32);
    let psn = Psn::new(f(1) as u32);
    let small = |index| f(index) as u8;
    let word = |index| f(index) as u32;
    let packet = PacketId { queue_pair, psn, transmission: f(2) as u16, opcode: small(3) };
    vec![
        Event::WorkPosted { queue_pair, work: f(1), length: word(2), label: Label(f(3)) },
        Event::ReceivePosted { queue_pair: Some(queue_pair), work: f(1), length: word(2) },
        Event::ReceivePosted { queue_pair: None, work: f(1), length: word(2) },
        Event::WorkStarted { queue_pair, work: f(2), first: psn, packets: word(3) },
        Event::PacketSent {
            packet,
            target: QueuePairNumber::new(word(4)),
            length: word(5),
            fingerprint: f(6),
            label: Label(f(7)),
        },
        Event::PacketReceived { queue_pair, psn, opcode: small(2), length: word(3) },
        Event::PacketDropped { queue_pair, psn, opcode: small(2), reason: "too short" },
        Event::Checked { queue_pair, psn, check: Check::Key, passed: true },
        Event::DataPlaced { queue_pair, psn, address: f(2), length: word(3) },
        Event::Completed { queue_pair, queue: word(1), work: f(2), status: small(3) },
        Event::StateChanged { queue_pair, from: small(1), to: small(2) },
        Event::Retransmitting { queue_pair, from: psn, reason: RetryReason::Timeout },
        Event::RateChanged { queue_pair, rate: Rate::from_bps(f(1)) },
    ]
}

/// Events that came after the digest was pinned.
fn later_events_with(f: impl Fn(u32) -> u64) -> Vec<Event> {
    let (queue_pair, psn) = (QueuePairNumber::new(f(0) as u32), Psn::new(f(1) as u32));
    let id = PacketId { queue_pair, psn, transmission: f(2) as u16, opcode: f(3) as u8 };
    let packet = SentPacket { sender: Component(f(4) as u32), packet: id };
    let port = Port(f(5) as u32);
    vec![
        Event::DataGathered { queue_pair, psn, address: f(2), length: f(3) as u32 },
        Event::ReceiverWait { queue_pair, psn, until: Time::from_ps(f(2)) },
        Event::PacketStarted { packet: Some(packet), port, bytes: f(6) as u32, waiting: 0 },
        Event::Marked { packet, port, depth: f(6) },
        Event::DroppedBySwitch { packet, port, bytes: f(6) as u32, reason: SwitchDropReason::NoMemory },
        Event::DroppedBySwitch { packet, port, bytes: f(6) as u32, reason: SwitchDropReason::NoRoute },
        Event::PacketLost { packet: Some(packet), port, bytes: f(6) as u32 },
        Event::PacketLost { packet: None, port, bytes: f(6) as u32 },
        Event::PacketCorrupted { packet: Some(packet), port },
        Event::PacketCorrupted { packet: None, port },
        Event::Paused { port, priority: f(6) as u8 },
        Event::Resumed { port, priority: f(6) as u8 },
        Event::CreditAwaited { port, priority: f(6) as u8 },
        Event::CreditFound { port, priority: f(6) as u8 },
        Event::LinkDown { link: f(0) as u32 },
        Event::LinkUp { link: f(0) as u32 },
        Event::Rerouted { dead: f(0) as u32 },
    ]
}

#[test]
fn every_field_of_every_event_counts() {
    let mut seen = BTreeSet::new();
    let mut distinct = Vec::<Event>::new();
    let mut see = |event: Event| {
        // Details are left out: their digest is that of nothing.
        if event.is_detail() {
            assert_eq!(digest_of(&[(7, 1, event)]).finish(), Digest::new().finish());
        } else if !distinct.contains(&event) {
            distinct.push(event);
            assert!(seen.insert(digest_of(&[(7, 1, event)]).finish()), "{event:?} has the digest of another");
        }
    };
    // All fields zero, then each alone set to one and to another value.
    for changed in 0..8 {
        for value in [0, 1, 0x91] {
            let field = |index| if index == changed { value } else { 0 };
            for event in events_with(field).into_iter().chain(later_events_with(field)) {
                see(event);
            }
        }
    }
    let (queue_pair, psn) = (QueuePairNumber::new(0), Psn::new(0));
    let checks = [
        Check::QueuePair,
        Check::Sequence,
        Check::OpcodeOrder,
        Check::QueuePairAccess,
        Check::Resources,
        Check::Length,
        Check::Key,
        Check::Permission,
        Check::Range,
        Check::Alignment,
    ];
    for check in checks {
        for passed in [false, true] {
            see(Event::Checked { queue_pair, psn, check, passed });
        }
    }
    for reason in [
        RetryReason::Timeout,
        RetryReason::SequenceNak,
        RetryReason::ResponseLost,
        RetryReason::ReceiverNotReady,
        RetryReason::Missing,
    ] {
        see(Event::Retransmitting { queue_pair, from: psn, reason });
    }
    for reason in ["", "a", "a\0", "too short.", "another reason, longer than two words"] {
        see(Event::PacketDropped { queue_pair, psn, opcode: 0, reason });
    }
    // Every field of the thirteen above in its first value and both others: nothing was skipped as equal by mistake.
    assert!(distinct.len() > 90, "only {} events were compared", distinct.len());
}

#[test]
fn time_and_component_count() {
    let event = events_with(|_| 0)[0];
    let digests = [
        digest_of(&[]),
        digest_of(&[(1, 1, event)]),
        digest_of(&[(2, 1, event)]),
        digest_of(&[(1, 2, event)]),
    ];
    let distinct: BTreeSet<_> = digests.iter().map(Digest::finish).collect();
    assert_eq!(distinct.len(), digests.len());
}

#[test]
fn order_counts_inside_a_component_and_not_between_them() {
    let events = events_with(|index| u64::from(index) + 5);
    let (a, b) = (events[0], events[5]);
    let one = digest_of(&[(80, 1, a), (80, 2, b), (80, 1, b)]);
    let same = digest_of(&[(80, 2, b), (80, 1, a), (80, 1, b)]);
    let other = digest_of(&[(80, 1, b), (80, 2, b), (80, 1, a)]);
    assert_eq!(one.finish(), same.finish());
    assert_eq!(one.first_difference(&same), None);
    assert_ne!(one.finish(), other.finish());
    assert_eq!(one.first_difference(&other), Some(Component(1)));
}

#[test]
fn the_first_difference_is_the_lowest_id() {
    let event = events_with(|_| 3)[0];
    let base = digest_of(&[(1, 2, event), (1, 5, event), (1, 9, event)]);
    let later = digest_of(&[(1, 2, event), (2, 5, event), (2, 9, event)]);
    let more = digest_of(&[(1, 2, event), (1, 4, event), (1, 5, event), (1, 9, event)]);
    let fewer = digest_of(&[(1, 2, event), (1, 5, event)]);
    assert_eq!(base.first_difference(&later), Some(Component(5)));
    assert_eq!(base.first_difference(&more), Some(Component(4)));
    assert_eq!(more.first_difference(&base), Some(Component(4)));
    assert_eq!(base.first_difference(&fewer), Some(Component(9)));
    let ids: Vec<u32> = more.components().map(|(component, _)| component.0).collect();
    assert_eq!(ids, [2, 4, 5, 9]);
}

/// If this fails, every digest that was ever written down is void: say so in the changelog, or undo it.
#[test]
fn the_digest_is_pinned() {
    let mut digest = Digest::new();
    for (index, event) in
        events_with(|index| 0x0102_0304_0506_0708_u64.wrapping_mul(u64::from(index) + 1)).iter().enumerate()
    {
        digest.record(Time::from_ps(index as u64 * 1_000), Component(index as u32 % 3), event);
    }
    assert_eq!(format!("{:?}", digest.finish()), "420118b7d003f27d78d446174bb16191");
    let mut fold = Fold::new();
    fold.push(1);
    fold.push_bytes(b"railnet fold");
    assert_eq!(format!("{:032x}", fold.finish_wide()), "937e01a56683046e5181e2978f5e3a35");
}

#[test]
fn digests_print_in_groups() {
    let digest = RunDigest::from_u128(0x7f3a_91c2_0d1e_55aa_0123_4567_89ab_cdef);
    assert_eq!(digest.to_string(), "7f3a 91c2 0d1e 55aa");
    assert_eq!(format!("{digest:#}"), "7f3a 91c2 0d1e 55aa 0123 4567 89ab cdef");
    assert_eq!(RunDigest::from_u128(1).to_string(), "0000 0000 0000 0000");
}

#[test]
fn the_narrow_hash_is_the_upper_half_of_the_wide_one() {
    let mut fold = Fold::default();
    assert_eq!(u128::from(fold.finish()), fold.finish_wide() >> 64);
    fold.push(0);
    assert_eq!(u128::from(fold.finish()), fold.finish_wide() >> 64);
}

proptest! {
    /// One changed bit in one word changes about half of both halves; far fewer would be a weak hash.
    #[test]
    fn every_bit_of_every_word_spreads(words in prop::collection::vec(any::<u64>(), 1..8), at in 0usize..8, bit in 0u32..64) {
        let hash = |words: &[u64]| {
            let mut fold = Fold::new();
            for word in words {
                fold.push(*word);
            }
            fold.finish_wide()
        };
        let mut changed = words.clone();
        changed[at % words.len()] ^= 1 << bit;
        let difference = hash(&words) ^ hash(&changed);
        prop_assert!(((difference >> 64) as u64).count_ones() > 8);
        prop_assert!((difference as u64).count_ones() > 8);
    }

    #[test]
    fn bytes_and_their_padding_are_told_apart(bytes in prop::collection::vec(any::<u8>(), 0..30)) {
        let hash = |bytes: &[u8]| {
            let mut fold = Fold::new();
            fold.push_bytes(bytes);
            fold.finish()
        };
        let longer = [&bytes[..], &[0]].concat();
        prop_assert_ne!(hash(&bytes), hash(&longer));
    }
}
