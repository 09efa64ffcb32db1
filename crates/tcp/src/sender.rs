//! The sending half: what was written and not acknowledged, what is on its way, and what to send next.

use std::collections::VecDeque;

use crate::ranges::{DUPLICATES, Ranges};

/// What a connection sends. Positions count the bytes of its stream from its SYN, which is 0, to its FIN.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sender {
    /// What is not acknowledged, from `first` on.
    buffer: VecDeque<u8>,
    first: u64,
    /// The first position that is not acknowledged.
    pub(crate) una: u64,
    /// The next that was never sent.
    pub(crate) next: u64,
    /// The program has written all.
    pub(crate) has_fin: bool,
    /// The position behind the window that the peer offers.
    pub(crate) edge: u64,
    pub(crate) board: Ranges,
    /// Loss recovery goes on until all up to here is acknowledged.
    pub(crate) recovery: Option<Recovery>,
    /// Acknowledgements in a row that acknowledged nothing.
    pub(crate) duplicates: u64,
}

/// Lost segments are being sent again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Recovery {
    /// What had been sent when it began.
    pub(crate) until: u64,
    /// All that is missing up to here was sent again.
    sent_again: u64,
    /// What is missing up to here is lost, whatever the peer told.
    lost_below: u64,
    /// It began with a timeout: the window grows meanwhile.
    pub(crate) is_timeout: bool,
}

/// What to send: bytes of the stream, and whether its end is behind them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub(crate) position: u64,
    pub(crate) length: usize,
    pub(crate) has_fin: bool,
    pub(crate) is_again: bool,
}

/// What holds for the next segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) segment_size: u64,
    pub(crate) window: u64,
    pub(crate) nagle: bool,
    pub(crate) sack: bool,
}

impl Sender {
    pub(crate) fn new() -> Self {
        Self { first: 1, ..Self::default() }
    }

    /// Takes what there is room for.
    pub(crate) fn write(&mut self, data: &[u8], capacity: usize) -> usize {
        let room = capacity.saturating_sub(self.buffer.len());
        let count = if self.has_fin { 0 } else { data.len().min(room) };
        self.buffer.extend(&data[..count]);
        count
    }

    /// Behind the last byte that was written.
    fn data_end(&self) -> u64 {
        self.first + self.buffer.len() as u64
    }

    /// Behind the last position, that of the FIN counted.
    pub(crate) fn end(&self) -> u64 {
        self.data_end() + u64::from(self.has_fin)
    }

    /// Bytes that were written and not acknowledged.
    pub(crate) fn unacknowledged(&self) -> usize {
        self.buffer.len()
    }

    /// Whether anything is sent and not acknowledged.
    pub(crate) fn has_in_flight(&self) -> bool {
        self.next > self.una
    }

    /// Bytes taken to be on their way.
    pub(crate) fn pipe(&self, segment_size: u64, has_sack: bool) -> u64 {
        let (again, lost) =
            self.recovery.map_or((0, 0), |recovery| (recovery.sent_again, recovery.lost_below));
        let pipe = self.board.pipe((self.una, self.next), again, lost, segment_size);
        // Without SACK each duplicate says that a segment has left the network.
        if has_sack { pipe } else { pipe.saturating_sub(self.duplicates * segment_size) }
    }

    /// All up to here is acknowledged. Returns how many bytes of data that were.
    pub(crate) fn acknowledge(&mut self, position: u64, segment_size: u64, has_sack: bool) -> u64 {
        let drop = (position.min(self.data_end()).saturating_sub(self.first)) as usize;
        self.buffer.drain(..drop);
        self.first += drop as u64;
        self.una = position;
        self.next = self.next.max(position);
        self.duplicates = 0;
        self.board.advance(position);
        match &mut self.recovery {
            Some(recovery) if position >= recovery.until => self.recovery = None,
            Some(recovery) => {
                recovery.sent_again = recovery.sent_again.max(position);
                // NewReno (RFC 6582): the next one is missing too.
                if !has_sack && !recovery.is_timeout {
                    recovery.lost_below = recovery.lost_below.max(position + segment_size);
                }
            }
            None => {}
        }
        drop as u64
    }

    /// Begins fast recovery where acknowledgements say that a segment is lost. Whether it began.
    pub(crate) fn detect_loss(&mut self, segment_size: u64) -> bool {
        let is_lost = self.duplicates >= DUPLICATES || self.una < self.board.lost_below(segment_size);
        if self.recovery.is_some() || !self.has_in_flight() || !is_lost {
            return false;
        }
        // The first missing segment is lost, even where the ranges above it alone would not yet say so.
        let lost_below = self.una + segment_size;
        self.recovery =
            Some(Recovery { until: self.next, sent_again: self.una, lost_below, is_timeout: false });
        true
    }

    /// The retransmission timer ran out: all that is missing is lost.
    pub(crate) fn time_out(&mut self) {
        // What the peer told of it may have thrown away since (RFC 2018, 8).
        self.board.clear();
        self.duplicates = 0;
        let (until, una) = (self.next, self.una);
        self.recovery = Some(Recovery { until, sent_again: una, lost_below: until, is_timeout: true });
    }

    /// What to send next, if anything may be sent.
    pub(crate) fn next_piece(&mut self, limits: &Limits) -> Option<Piece> {
        let Limits { segment_size, window, sack, .. } = *limits;
        let pipe = self.pipe(segment_size, sack);
        if pipe > 0 && pipe + segment_size > window {
            return None;
        }
        if let Some(piece) = self.lost_piece(segment_size) {
            return Some(piece);
        }
        self.new_piece(limits).or_else(|| self.missing_piece(segment_size))
    }

    /// RFC 6675, NextSeg rule 1: the first that is lost.
    fn lost_piece(&mut self, segment_size: u64) -> Option<Piece> {
        let recovery = self.recovery?;
        let (start, next) = self.board.gap_at(self.una.max(recovery.sent_again));
        let is_lost = start < recovery.lost_below.max(self.board.lost_below(segment_size));
        (start < self.next && is_lost).then(|| self.again(start, next, segment_size))
    }

    /// Rule 3: in recovery, what is missing below what has arrived.
    fn missing_piece(&mut self, segment_size: u64) -> Option<Piece> {
        let recovery = self.recovery?;
        let highest = self.board.highest()?;
        let (start, next) = self.board.gap_at(self.una.max(recovery.sent_again));
        (start < highest.min(self.next)).then(|| self.again(start, next, segment_size))
    }

    /// A segment that is sent again.
    fn again(&mut self, start: u64, next: Option<u64>, segment_size: u64) -> Piece {
        let end = next.unwrap_or(self.next).min(self.next).min(start + segment_size);
        if let Some(recovery) = &mut self.recovery {
            recovery.sent_again = end;
        }
        self.piece(start, end, true)
    }

    fn piece(&self, start: u64, end: u64, is_again: bool) -> Piece {
        let has_fin = self.has_fin && end > self.data_end();
        let length = (end.min(self.data_end()).saturating_sub(start)) as usize;
        Piece { position: start, length, has_fin, is_again }
    }

    /// Rule 2: what was never sent.
    fn new_piece(&mut self, limits: &Limits) -> Option<Piece> {
        let Limits { segment_size, nagle, .. } = *limits;
        let end = self.end().min(self.next + segment_size).min(self.edge);
        if end <= self.next {
            return None;
        }
        let (length, has_more) = (end - self.next, self.end() > end);
        let is_small = length < segment_size;
        // The window cuts it: rather a whole segment later (RFC 9293, 3.8.6.2.1), unless nothing else would open it.
        if is_small && has_more && self.has_in_flight() {
            return None;
        }
        if is_small && nagle && self.has_in_flight() && !self.has_fin {
            return None;
        }
        let start = std::mem::replace(&mut self.next, end);
        Some(self.piece(start, end, false))
    }

    /// The bytes of a piece.
    pub(crate) fn bytes(&self, piece: &Piece) -> Vec<u8> {
        let start = piece.position.saturating_sub(self.first) as usize;
        self.buffer.range(start..start + piece.length).copied().collect()
    }

    /// Whether data waits for a window that is closed, and nothing is on its way that would open it.
    pub(crate) fn needs_probe(&self) -> bool {
        !self.has_in_flight() && self.end() > self.next && self.edge <= self.next
    }
}
