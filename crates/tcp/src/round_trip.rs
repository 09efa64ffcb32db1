//! The round trip and the retransmission timeout. RFC 6298.

use railnet_core::Span;

/// What is known of the round trip, in picoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RoundTrip {
    smoothed: Option<u64>,
    variation: u64,
    least: Option<u64>,
    /// Timeouts in a row.
    pub(crate) backoff: u32,
}

impl RoundTrip {
    /// A round trip was measured.
    pub(crate) fn sample(&mut self, span: Span) {
        let sample = span.as_ps();
        self.least = Some(self.least.map_or(sample, |least| least.min(sample)));
        match self.smoothed {
            None => (self.smoothed, self.variation) = (Some(sample), sample / 2),
            Some(smoothed) => {
                // Alpha is 1/8, beta is 1/4.
                self.variation = self.variation - self.variation / 4 + smoothed.abs_diff(sample) / 4;
                self.smoothed = Some(smoothed - smoothed / 8 + sample / 8);
            }
        }
    }

    /// The smoothed round trip.
    pub(crate) fn smoothed(&self) -> Option<Span> {
        self.smoothed.map(Span::from_ps)
    }

    /// The retransmission timeout.
    pub(crate) fn timeout(&self, first: Span, least: Span, most: Span) -> Span {
        let usual = match self.smoothed {
            None => first,
            Some(smoothed) => Span::from_ps(smoothed.saturating_add(4 * self.variation)).max(least),
        };
        let doubled = usual.as_ps().saturating_mul(1 << self.backoff.min(16));
        Span::from_ps(doubled).min(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timeout_is_that_of_the_rfc() {
        let mut round_trip = RoundTrip::default();
        let [first, least, most] = [Span::from_secs(1), Span::from_us(1), Span::from_secs(60)];
        assert_eq!(round_trip.timeout(first, least, most), first);
        round_trip.sample(Span::from_us(100));
        // SRTT = R, RTTVAR = R/2, RTO = SRTT + 4 RTTVAR.
        assert_eq!(round_trip.timeout(first, least, most), Span::from_us(300));
        round_trip.sample(Span::from_us(180));
        // RTTVAR = 3/4 · 50 + 1/4 · 80, SRTT = 7/8 · 100 + 1/8 · 180.
        assert_eq!(
            round_trip.timeout(first, least, most),
            Span::from_us(110) + Span::from_ps(57_500_000) * 4
        );
        round_trip.backoff = 3;
        assert_eq!(round_trip.timeout(first, Span::from_ms(200), most), Span::from_ms(1600));
        round_trip.backoff = 40;
        assert_eq!(round_trip.timeout(first, Span::from_ms(200), most), most);
    }
}
