//! What a scoreboard makes of what it is told.

use super::*;
use proptest::prelude::*;

const NEVER_TIMED: Time = Time::ZERO;

fn at(us: u64) -> Time {
    Time::ZERO + Span::from_us(us)
}

fn told(arrived: impl IntoIterator<Item = Psn>, first: Psn) -> SelectiveAck {
    let mut told = SelectiveAck::new(first, 0);
    arrived.into_iter().for_each(|psn| told.insert(psn));
    told
}

/// What is newly taken for lost, for works of one packet each.
fn find(board: &mut Scoreboard, now: Time, reordering: Span) -> Vec<Psn> {
    board.ripen(now, reordering);
    let mut found = Vec::new();
    board.lose_resent(&mut found);
    if let Some(range) = board.take_unchecked() {
        found.extend(range.filter(|&serial| board.lose_first(serial)));
    }
    found.into_iter().map(|serial| board.psn(serial)).collect()
}

#[test]
fn what_was_sent_before_an_arrival_is_lost_and_what_was_sent_after_it_is_not() {
    let first = Psn::new(Psn::MASK - 1);
    let mut board = Scoreboard::new(first);
    let sent = first.plus(8);
    assert_eq!(board.note(&told([first.plus(2), first.plus(5)], first), sent, at(1), Span::ZERO), 2);
    assert_eq!(find(&mut board, at(1), Span::ZERO), [first, first.plus(1), first.plus(3), first.plus(4)]);
    assert_eq!(board.absent(), 6, "two arrived, four lost, two on their way");
    assert_eq!(board.note(&told([first.plus(2)], first), sent, at(1), Span::ZERO), 0, "old news");
    assert!(find(&mut board, at(1), Span::ZERO).is_empty());
}

#[test]
fn a_packet_sent_again_is_lost_when_one_sent_after_it_arrives() {
    let first = Psn::new(7);
    let mut board = Scoreboard::new(first);
    board.note(&told([first.plus(3)], first), first.plus(4), at(0), Span::ZERO);
    assert_eq!(find(&mut board, at(0), Span::ZERO).len(), 3);
    for index in 0..3 {
        board.note_resent(first.plus(index), first.plus(4), NEVER_TIMED);
    }
    assert_eq!(board.next_lost(), None);
    // The second of them arrives: the first is lost again, the third may be on its way.
    board.note(&told([first.plus(1)], first), first.plus(4), at(1), Span::ZERO);
    assert_eq!(find(&mut board, at(1), Span::ZERO), [first]);
    board.note_resent(first, first.plus(4), NEVER_TIMED);
    // A new packet is sent after all of them, and arrives.
    board.note(&told([first.plus(4)], first), first.plus(5), at(2), Span::ZERO);
    assert_eq!(find(&mut board, at(2), Span::ZERO), [first.plus(2), first]);
}

#[test]
fn an_answer_that_comes_too_soon_is_to_the_first_transmission() {
    let first = Psn::new(7);
    let mut board = Scoreboard::new(first);
    board.note(&told([first.plus(5)], first), first.plus(6), at(0), Span::ZERO);
    find(&mut board, at(0), Span::ZERO);
    for index in 0..5 {
        board.note_resent(first.plus(index), first.plus(6), at(10));
    }
    // They were only late, and come one after the other.
    for index in 1..5 {
        board.note(&told([first.plus(index)], first), first.plus(6), at(2), Span::ZERO);
        assert!(find(&mut board, at(2), Span::ZERO).is_empty(), "nothing shows that {first} is lost again");
    }
}

#[test]
fn the_answer_to_what_a_timeout_sends_shows_what_else_was_lost() {
    let first = Psn::new(7);
    let mut board = Scoreboard::new(first);
    board.lose_oldest();
    assert_eq!(board.next_lost(), Some(first));
    board.note_resent(first, first.plus(4), Time::NEVER);
    board.advance(first.plus(1), at(100), Span::ZERO);
    assert_eq!(find(&mut board, at(100), Span::ZERO), [first.plus(1), first.plus(2), first.plus(3)]);
}

/// A flight of four after a timeout: the first was sent again.
fn probed() -> (Scoreboard, Psn) {
    let first = Psn::new(7);
    let mut board = Scoreboard::new(first);
    board.lose_oldest();
    board.note_resent(first, first.plus(4), Time::NEVER);
    (board, first)
}

#[test]
fn a_timeout_is_spurious_when_first_transmissions_arrive_after_it() {
    let wait = Span::from_us(50);
    let (mut board, first) = probed();
    board.advance(first.plus(1), at(100), wait);
    assert!(find(&mut board, at(100), Span::ZERO).is_empty());
    assert_eq!(board.next_due(Span::ZERO), Some(at(150)));
    board.advance(first.plus(3), at(140), wait);
    assert!(find(&mut board, at(1000), Span::ZERO).is_empty());
}

#[test]
fn a_timeout_is_not_spurious_when_nothing_else_is_answered_for_a_while() {
    let (mut board, first) = probed();
    // The second had arrived before the timeout, and nobody had asked for its acknowledgement.
    board.advance(first.plus(2), at(100), Span::from_us(50));
    assert!(find(&mut board, at(149), Span::ZERO).is_empty());
    assert_eq!(find(&mut board, at(150), Span::ZERO), [first.plus(2), first.plus(3)]);
}

#[test]
fn where_paths_differ_it_waits() {
    let first = Psn::new(7);
    let (mut board, reordering) = (Scoreboard::new(first), Span::from_us(10));
    board.note(&told([first.plus(1)], first), first.plus(9), at(0), Span::ZERO);
    assert!(find(&mut board, at(0), reordering).is_empty());
    assert_eq!(board.next_due(reordering), Some(at(10)));
    board.note(&told([first.plus(3)], first), first.plus(9), at(5), Span::ZERO);
    assert!(find(&mut board, at(5), reordering).is_empty());
    assert_eq!(find(&mut board, at(10), reordering), [first]);
    assert_eq!(board.next_due(reordering), Some(at(15)));
    assert_eq!(find(&mut board, at(15), reordering), [first.plus(2)]);
    assert_eq!(board.next_due(reordering), None);
}

#[test]
fn marks_do_not_pile_up_and_do_not_wait_for_ever() {
    let first = Psn::new(7);
    let (mut board, reordering) = (Scoreboard::new(first), Span::from_us(80));
    let mut found_at = None;
    // Something arrives each microsecond, and the oldest does not.
    for now in 0..120 {
        board.note(
            &told([first.plus(1 + now)], first.plus(1 + now)),
            first.plus(2000),
            at(now.into()),
            Span::ZERO,
        );
        if !find(&mut board, at(now.into()), reordering).is_empty() {
            found_at = found_at.or(Some(now));
        }
        assert!(board.marks.len() <= MARKS as usize + 2, "{:?}", board.marks);
    }
    assert!((80..=91).contains(&found_at.unwrap_or(0)), "{found_at:?}");
}

#[test]
fn losses_of_one_flight_are_one_episode() {
    let first = Psn::new(7);
    let mut board = Scoreboard::new(first);
    assert!(board.begin_episode(first.plus(10)));
    assert!(!board.begin_episode(first.plus(20)));
    board.advance(first.plus(9), at(0), Span::ZERO);
    assert!(!board.begin_episode(first.plus(20)) && !board.is_over());
    board.advance(first.plus(10), at(0), Span::ZERO);
    assert!(board.is_over());
    assert!(board.begin_episode(first.plus(20)));
}

#[test]
fn a_missing_answer_is_news_once() {
    let first = Psn::new(7);
    let mut board = Scoreboard::new(first);
    assert!(board.is_news(first, first.plus(2)));
    board.lose(board.serial(first));
    assert!(!board.is_news(first, first.plus(2)), "it waits to be asked for");
    board.note_resent(first, first.plus(4), NEVER_TIMED);
    assert!(!board.is_news(first, first.plus(3)), "that was sent before it was asked for again");
    assert!(board.is_news(first, first.plus(4)));
}

/// One transmission on a wire that keeps order.
#[derive(Clone, Copy, Debug)]
struct Sent {
    psn: u32,
    arrives: bool,
}

proptest! {
    /// On a wire that keeps order, exactly those are taken for lost that were, once one sent after them arrives.
    #[test]
    fn order_of_sending_tells_exactly_what_is_lost(
        start in prop_oneof![Just(Psn::MASK - 20), 0u32..1000],
        fates in proptest::collection::vec(0u8..10, 20..300),
        batch in 1usize..20,
    ) {
        let first = Psn::new(start);
        let mut board = Scoreboard::new(first);
        let (mut next, mut wire) = (0u32, VecDeque::new());
        let mut has: BTreeSet<u32> = BTreeSet::new();
        let mut oldest = 0u32;
        for (step, &fate) in fates.iter().enumerate() {
            // What is lost goes again, else something new.
            let arrives = fate > 2;
            let psn = match board.next_lost() {
                Some(psn) => {
                    board.note_resent(psn, first.plus(next), NEVER_TIMED);
                    psn.value().wrapping_sub(first.value()) & Psn::MASK
                }
                None => { next += 1; next - 1 }
            };
            wire.push_back(Sent { psn, arrives });
            if step % batch != 0 {
                continue;
            }
            // All on the wire comes to the peer, and one answer tells of it.
            let mut lost = BTreeSet::new();
            let mut missed = Vec::new();
            while let Some(sent) = wire.pop_front() {
                if sent.arrives {
                    has.insert(sent.psn);
                    lost.append(&mut missed.drain(..).collect());
                } else {
                    missed.push(sent.psn);
                }
            }
            // What nothing arrived after is still in doubt: put it back in front of what is sent next.
            wire.extend(missed.iter().map(|&psn| Sent { psn, arrives: false }));
            while has.contains(&oldest) {
                oldest += 1;
            }
            board.advance(first.plus(oldest), at(step as u64), Span::ZERO);
            let ahead = has.range(oldest..).map(|&psn| first.plus(psn));
            board.note(&told(ahead, first.plus(oldest)), first.plus(next), at(step as u64), Span::ZERO);
            let found: BTreeSet<u32> = find(&mut board, at(step as u64), Span::ZERO)
                .into_iter()
                .map(|psn| psn.value().wrapping_sub(first.value()) & Psn::MASK)
                .collect();
            prop_assert_eq!(found, lost);
            prop_assert_eq!(board.oldest(), ORIGIN + Serial::from(oldest));
        }
    }

    #[test]
    fn bits_are_a_set(steps in proptest::collection::vec((0u8..4, 0u64..300), 1..200)) {
        let start = 1000;
        let (mut bits, mut set, mut least) = (Bits::new(start), BTreeSet::new(), start);
        for (what, number) in steps {
            let serial = least + number;
            match what {
                0 | 1 => prop_assert_eq!(bits.insert(serial), set.insert(serial)),
                2 => {
                    bits.remove(serial);
                    set.remove(&serial);
                }
                _ => {
                    least += number / 4;
                    let kept = set.split_off(&least);
                    let gone = std::mem::replace(&mut set, kept).len() as u32;
                    prop_assert_eq!(bits.forget_before(least), gone);
                }
            }
            prop_assert_eq!(bits.count as usize, set.len());
            for serial in least..least + 320 {
                prop_assert_eq!(bits.contains(serial), set.contains(&serial));
            }
            let run = (least..least + 320).take_while(|serial| set.contains(serial)).count() as u64;
            prop_assert!(bits.has_all(least..least + run));
            prop_assert!(!bits.has_all(least..least + run + 1));
        }
    }
}
