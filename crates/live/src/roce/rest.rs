//! When a receiver leaves its socket alone.
//!
//! A receiver that is faster than its sender takes each send as soon as it has come, and looks in vain in between. Then the
//! sender's kernel always copies into pages that the receiver has just read, and waits for each of their lines to come out of the
//! other's cache: on one host that is most of a sender's time. In the middle of a long WRITE nobody waits for what has come so
//! far, so a receiver that has found nothing lets more of it gather, and takes it in larger pieces. It waits for about a third of
//! what is still to come, so that it sees the end when that is there. Where WRITEs follow each other without a pause, their
//! sender waits for none of them, and the receiver lets most of one gather.

use std::time::Duration;

use railnet_core::{QueuePairNumber, Span, Time};
use railnet_wire::{Extended, Headers, Position};

/// Datagrams in one receive that show a sender at full speed.
const MANY: usize = 8;

/// For each byte that is still to come: a third of what a fast sender takes for it.
const PER_BYTE: Span = Span::from_ps(80);

/// For each byte of a WRITE that will be followed by another one: two thirds of it.
const PER_BYTE_IN_A_ROW: Span = Span::from_ps(160);

/// So many WRITEs in a row that were there when the one before them ended are likely to be followed by one more.
const A_FEW: u32 = 2;

/// More of them say no more.
const MOST: u32 = 4 * A_FEW;

/// When to look again, and why not at once.
#[derive(Debug)]
pub(super) struct Rest {
    most: Span,
    until: Time,
    /// Whose packets came last.
    queue_pair: Option<QueuePairNumber>,
    /// They came many in one piece, and there was nothing to rest for since then.
    is_fast: bool,
    /// A WRITE to it ended, and all looks since then found something.
    has_ended: bool,
    /// The bytes of the WRITE that began last.
    length: u32,
    /// How many WRITEs up to that one did not wait for anything that the end of the one before them has led to.
    in_a_row: u32,
}

impl Rest {
    /// No rest is longer than this.
    pub(super) fn new(most: Duration) -> Self {
        Self {
            most: Span::from_ns(u64::try_from(most.as_nanos()).unwrap_or(u64::MAX / 1000)),
            until: Time::ZERO,
            queue_pair: None,
            is_fast: false,
            has_ended: false,
            length: 0,
            in_a_row: 0,
        }
    }

    #[inline]
    pub(super) fn is_over(&self, now: Time) -> bool {
        now >= self.until
    }

    /// Somebody wants to know what has come.
    pub(super) fn end(&mut self) {
        self.until = Time::ZERO;
    }

    /// A packet came.
    #[inline]
    pub(super) fn came(&mut self, headers: &Headers) {
        let queue_pair = Some(headers.bth.destination);
        if self.queue_pair != queue_pair {
            (self.queue_pair, self.has_ended, self.in_a_row) = (queue_pair, false, 0);
        }
        match headers.bth.opcode.position() {
            // What is short, or only an acknowledgement, is no reason.
            Position::Middle | Position::Only => {}
            Position::First => {
                // A look may fall between two that follow each other.
                self.in_a_row = match std::mem::take(&mut self.has_ended) {
                    true => (self.in_a_row + 1).min(MOST),
                    false => self.in_a_row / 2,
                };
                self.length = match headers.extended {
                    Extended::Reth(reth) => reth.length,
                    _ => 0,
                };
            }
            Position::Last => self.has_ended = true,
        }
    }

    /// Those that came were so many in one piece.
    #[inline]
    pub(super) fn came_together(&mut self, datagrams: usize) {
        self.is_fast = datagrams >= MANY;
    }

    /// Nothing is there now. `to_come` tells how many bytes are still to come for a queue pair before anyone can want them.
    #[inline]
    pub(super) fn came_nothing(&mut self, now: Time, to_come: impl FnOnce(QueuePairNumber) -> u32) {
        self.has_ended = false;
        if !std::mem::take(&mut self.is_fast) {
            return;
        }
        let to_come = self.queue_pair.map_or(0, to_come);
        if to_come > 0 {
            let rest = match self.in_a_row >= A_FEW {
                true => PER_BYTE_IN_A_ROW * u64::from(self.length),
                false => PER_BYTE * u64::from(to_come),
            };
            self.until = now + rest.min(self.most);
        }
    }
}

#[cfg(test)]
mod tests {
    use railnet_core::Psn;
    use railnet_wire::{Bth, Opcode, Reth};

    use super::*;

    const MIB: u32 = 1 << 20;

    fn at(ns: u64) -> Time {
        Time::ZERO + Span::from_ns(ns)
    }

    fn packet(queue_pair: u32, opcode: Opcode) -> Headers {
        let bth = Bth::new(opcode, QueuePairNumber::new(queue_pair), Psn::new(0));
        let extended = match opcode {
            Opcode::RcWriteFirst => Extended::Reth(Reth { address: 0, key: 0, length: MIB }),
            _ => Extended::None,
        };
        Headers { bth, extended }
    }

    fn rest() -> Rest {
        Rest::new(Duration::from_micros(100))
    }

    /// How long it rests at `now`, with so many bytes to come for the queue pair 7.
    fn rests(rest: &mut Rest, now: u64, bytes: u32) -> Span {
        rest.came_nothing(
            at(now),
            |queue_pair| if queue_pair == QueuePairNumber::new(7) { bytes } else { 0 },
        );
        rest.until.since(at(now))
    }

    #[test]
    fn a_receiver_rests_in_the_middle_of_a_long_write_only() {
        let mut rest = rest();
        assert_eq!(rests(&mut rest, 1, MIB), Span::ZERO, "nothing came before");
        rest.came(&packet(7, Opcode::RcWriteMiddle));
        rest.came_together(1);
        assert_eq!(rests(&mut rest, 3, MIB), Span::ZERO, "they come one by one");
        rest.came_together(15);
        assert_eq!(rests(&mut rest, 4, 0), Span::ZERO, "all of it is there");
        rest.came_together(15);
        assert_eq!(rests(&mut rest, 1_000, 10_000), Span::from_ns(800));
        assert!(!rest.is_over(at(1_799)) && rest.is_over(at(1_800)));
        assert_eq!(rests(&mut rest, 3_000, MIB), Span::ZERO, "it rests once for what came once");
        rest.came_together(15);
        assert_eq!(rests(&mut rest, 10_000, u32::MAX), Span::from_us(100), "no longer than it may");
        rest.end();
        assert!(rest.is_over(at(10_000)), "who asks ends it");
    }

    #[test]
    fn one_that_must_not_never_rests() {
        let mut rest = Rest::new(Duration::ZERO);
        rest.came(&packet(7, Opcode::RcWriteMiddle));
        rest.came_together(15);
        assert_eq!(rests(&mut rest, 2, MIB), Span::ZERO);
    }

    /// How long it rests near the end of the last of some WRITEs, with or without a look in vain between them.
    fn after_some(writes: u32, looks: bool) -> Span {
        let mut rest = rest();
        for _ in 0..writes {
            rest.came(&packet(7, Opcode::RcWriteFirst));
            rest.came_together(2);
            rests(&mut rest, 0, MIB);
            rest.came(&packet(7, Opcode::RcWriteLast));
            rest.came(&packet(7, Opcode::RcAcknowledge));
            if looks {
                rests(&mut rest, 0, 0);
            }
        }
        rest.came(&packet(7, Opcode::RcWriteFirst));
        rest.came_together(15);
        rests(&mut rest, 0, 1_000)
    }

    #[test]
    fn where_writes_follow_each_other_the_next_one_is_expected() {
        let short = Span::from_ns(80);
        assert_eq!(after_some(1, false), short);
        assert_eq!(after_some(2, false), (PER_BYTE_IN_A_ROW * u64::from(MIB)).min(Span::from_us(100)));
        assert_eq!(after_some(9, true), short, "those may have waited for an answer");
        let mut rest = rest();
        for has_ended in [true, true, true, true, true, false, false, false] {
            rest.has_ended = has_ended;
            rest.came(&packet(7, Opcode::RcWriteFirst));
        }
        assert!(rest.in_a_row < A_FEW, "three that waited are no row any more");
    }

    #[test]
    fn writes_to_another_queue_pair_say_nothing() {
        let mut rest = rest();
        for queue_pair in [7, 8, 7, 8, 7] {
            rest.came(&packet(queue_pair, Opcode::RcWriteFirst));
            rest.came(&packet(queue_pair, Opcode::RcWriteLast));
        }
        rest.came(&packet(7, Opcode::RcWriteFirst));
        rest.came_together(15);
        assert_eq!(rests(&mut rest, 7, 1_000), Span::from_ns(80));
    }
}
