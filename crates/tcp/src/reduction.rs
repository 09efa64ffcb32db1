//! How much may be sent while losses are repaired.

/// Proportional rate reduction (RFC 9937): in fast recovery what is sent follows what arrives, so that a window that was far too large
/// falls in one round trip, without a pause and without losses among what is sent again.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reduction {
    /// Bytes on their way when it began.
    pub(crate) began_with: u64,
    /// Bytes that arrived since, and were sent.
    pub(crate) delivered: u64,
    pub(crate) sent: u64,
    /// Bytes that the last acknowledgement told of.
    pub(crate) last: u64,
}

impl Reduction {
    /// Bytes that may be sent now, where so many are on their way and the window is to become `target`.
    pub(crate) fn allows(&self, pipe: u64, target: u64, segment_size: u64) -> u64 {
        if pipe > target {
            let share = u128::from(self.delivered) * u128::from(target) / u128::from(self.began_with.max(1));
            (share as u64).saturating_sub(self.sent)
        } else {
            let conserved = self.delivered.saturating_sub(self.sent).max(self.last) + segment_size;
            conserved.min(target - pipe)
        }
    }
}
