//! Small agreements, by hand and by the adversary.

use std::collections::BTreeSet;

use railnet_core::{Span, Time};

use super::{Agreement, Ballot, Config, Decision, Message, Outcome, Quorum, Vote, storm};

const TIMEOUT: Span = Span::from_secs(1);

/// Ranks that hear each other at once, until nobody has more to say.
fn settle(ranks: &mut [Agreement], now: Time, hears: impl Fn(u32, u32) -> bool) {
    loop {
        let mut sent = Vec::new();
        for (from, rank) in (0..).zip(&mut *ranks) {
            while let Some((to, message)) = rank.poll_transmit() {
                sent.push((from, to, message));
            }
        }
        if sent.is_empty() {
            return;
        }
        for (from, to, message) in sent {
            if hears(from, to) {
                ranks[to as usize].receive(now, from, message);
            }
        }
    }
}

fn ranks(size: u32, known: &[&[u32]]) -> Vec<Agreement> {
    (0..size)
        .map(|rank| {
            let flags = !(1 << rank);
            Agreement::new(Config::new(rank, size, TIMEOUT), known[rank as usize], flags, Time::ZERO)
        })
        .collect()
}

#[test]
fn survivors_settle_on_the_union_of_what_they_know() {
    // Ranks 0 and 3 of five are dead; each survivor knows of one at most.
    let mut all = ranks(5, &[&[], &[0], &[3], &[], &[]]);
    let alive = |rank: u32| ![0, 3].contains(&rank);
    settle(&mut all, Time::ZERO, |from, to| alive(from) && alive(to));
    // Ranks 2 and 4 wait for rank 0 until it is reported or silent.
    for tick in 1..=5 {
        let now = Time::ZERO + TIMEOUT / 4 * tick;
        for rank in [1, 2, 4] {
            all[rank].handle_timeout(now);
        }
        settle(&mut all, now, |from, to| alive(from) && alive(to));
    }
    for rank in [1, 2, 4] {
        let Some(Outcome::Agreed(decision)) = all[rank].outcome() else {
            panic!("{:?}", all[rank].outcome())
        };
        assert_eq!(decision, &Decision { failed: [0, 3].into(), flags: !0b1_0110 });
    }
}

#[test]
fn of_two_halves_the_one_with_the_lowest_rank_goes_on() {
    let mut all = ranks(4, &[&[2, 3], &[2, 3], &[0, 1], &[0, 1]]);
    settle(&mut all, Time::ZERO, |from, to| (from < 2) == (to < 2));
    for rank in &all[..2] {
        assert!(
            matches!(rank.outcome(), Some(Outcome::Agreed(decision)) if decision.failed == [2, 3].into())
        );
    }
    for rank in &all[2..] {
        assert_eq!(rank.outcome(), Some(&Outcome::NoQuorum([2, 3].into())));
    }
}

#[test]
fn a_rank_that_found_no_quorum_and_left_has_answered() {
    // Rank 3 does not know yet that rank 1 is dead, when rank 2 gives up.
    let mut all = ranks(4, &[&[], &[], &[0, 1], &[0]]);
    settle(&mut all, Time::ZERO, |from, to| from >= 2 && to >= 2);
    assert_eq!(all[2].outcome(), Some(&Outcome::NoQuorum([2, 3].into())));
    assert_eq!(all[3].outcome(), None);
    all[3].report_gone(Time::ZERO, 1);
    assert_eq!(all[3].outcome(), Some(&Outcome::NoQuorum([2, 3].into())));
}

#[test]
fn a_rank_that_the_others_leave_out_is_told() {
    let mut all = ranks(3, &[&[2], &[2], &[]]);
    settle(&mut all, Time::ZERO, |_, _| true);
    assert!(matches!(all[0].outcome(), Some(Outcome::Agreed(_))));
    assert!(matches!(all[2].outcome(), Some(Outcome::Excluded(_))), "{:?}", all[2].outcome());
}

#[test]
fn the_program_may_set_the_quorum() {
    let config = Config { quorum: Quorum::AtLeast(1), ..Config::new(4, 5, TIMEOUT) };
    let agreement = Agreement::new(config, &[0, 1, 2, 3], 7, Time::ZERO);
    assert!(matches!(agreement.outcome(), Some(Outcome::Agreed(decision)) if decision.flags == 7));
    let config = Config { quorum: Quorum::AtLeast(2), ..config };
    let agreement = Agreement::new(config, &[0, 1, 2, 3], 7, Time::ZERO);
    assert_eq!(agreement.outcome(), Some(&Outcome::NoQuorum([4].into())));
}

#[test]
fn two_quorums_always_have_a_rank_in_common() {
    for size in 1..=10_u32 {
        let sets: Vec<u32> = (0..1_u32 << size).collect();
        let is_met = |set: u32| {
            let ranks: BTreeSet<u32> = (0..size).filter(|rank| set >> rank & 1 == 1).collect();
            Quorum::Majority.is_met(&ranks, size)
        };
        let quorums: Vec<u32> = sets.into_iter().filter(|set| is_met(*set)).collect();
        assert!(quorums.iter().all(|one| quorums.iter().all(|other| one & other != 0)), "{size}");
    }
}

#[test]
fn messages_are_read_as_they_were_written() {
    let ballot = Ballot { round: 3, leader: 2 };
    let decision = Decision { failed: [1, 7].into(), flags: 9 };
    let vote = Vote { accepted: Some((ballot, decision.clone())), failed: [4].into(), flags: 1 };
    let all = [
        Message::Ping,
        Message::Prepare(ballot),
        Message::Promise(ballot, vote),
        Message::Promise(ballot, Vote::default()),
        Message::Accept(ballot, decision.clone()),
        Message::Accepted(ballot),
        Message::Rejected(ballot),
        Message::Decided(decision),
        Message::NoQuorum([0, 5].into()),
    ];
    for message in all {
        let bytes = message.write();
        assert_eq!(Message::read(&bytes).as_ref(), Ok(&message));
        for length in 0..bytes.len() {
            assert!(Message::read(&bytes[..length]).is_err(), "{message:?} cut after {length} bytes");
        }
    }
}

#[test]
fn the_adversary_breaks_no_rule() {
    for seed in 0..1_000 {
        storm::run(seed).unwrap();
    }
    assert_eq!(storm::run(7), storm::run(7));
}

#[test]
fn a_leader_whose_voters_die_before_they_accept_gives_up() {
    // Ranks 1 and 2 of five are dead, which leaves a majority; then rank 3 dies between its vote and its acceptance.
    let mut all = ranks(5, &[&[1, 2], &[], &[], &[1, 2], &[1, 2]]);
    let is_vote =
        |message: &Message| matches!(message, Message::Ping | Message::Prepare(_) | Message::Promise(..));
    for _ in 0..4 {
        for from in [0, 3, 4] {
            while let Some((to, message)) = all[from as usize].poll_transmit() {
                if [0, 3, 4].contains(&to) && (is_vote(&message) || (from != 3 && to != 3)) {
                    all[to as usize].receive(Time::ZERO, from, message);
                }
            }
        }
    }
    assert_eq!(all[0].outcome(), None);
    for rank in [0, 4] {
        all[rank].report_gone(Time::ZERO, 3);
    }
    settle(&mut all, Time::ZERO, |from, to| [0, 4].contains(&from) && [0, 4].contains(&to));
    for rank in [0, 4] {
        assert_eq!(all[rank].outcome(), Some(&Outcome::NoQuorum([0, 4].into())), "rank {rank}");
    }
}
