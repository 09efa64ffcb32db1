//! What a connection is made with.

use railnet_core::Span;

use crate::control::ControlKind;

/// What a connection is made with. The defaults are those of Linux.
#[derive(Clone, Debug)]
pub struct Config {
    /// The own port.
    pub port: u16,
    /// The longest segment that this end takes, without options.
    pub segment_size: u16,
    /// Bytes that the program may leave here until they are acknowledged.
    pub send_buffer: usize,
    /// Bytes that are kept until the program reads them.
    pub receive_buffer: usize,
    /// Selective acknowledgements, if the peer understands them.
    pub sack: bool,
    /// Timestamps, if the peer understands them. They count microseconds.
    pub timestamps: bool,
    /// Small segments wait for acknowledgements of those before them (Nagle's algorithm).
    pub nagle: bool,
    /// How long an acknowledgement may wait for data to go with, or a second segment.
    pub delayed_ack: Span,
    /// ECN, if the peer understands it.
    pub ecn: bool,
    /// Congestion control.
    pub control: ControlKind,
    /// Segments of the first window (RFC 6928).
    pub window_first: u32,
    /// The retransmission timeout before a round trip is known (RFC 6298, 2.1).
    pub timeout_first: Span,
    /// The least retransmission timeout. RFC 6298 says a second; Linux has 200 ms.
    pub timeout_least: Span,
    /// The longest.
    pub timeout_most: Span,
    /// Timeouts in a row without an acknowledgement after which the connection fails.
    pub retries: u32,
    /// How long the end that closed first remembers the connection.
    pub time_wait: Span,
}

impl Config {
    /// The defaults, for an end with this port.
    pub fn new(port: u16) -> Self {
        Self {
            port,
            segment_size: 1460,
            send_buffer: 4 << 20,
            receive_buffer: 4 << 20,
            sack: true,
            timestamps: true,
            nagle: true,
            delayed_ack: Span::from_ms(40),
            ecn: false,
            control: ControlKind::Cubic,
            window_first: 10,
            timeout_first: Span::from_secs(1),
            timeout_least: Span::from_ms(200),
            timeout_most: Span::from_secs(120),
            retries: 15,
            time_wait: Span::from_secs(60),
        }
    }

    /// By how many bits windows are shifted: so that the whole receive buffer can be offered.
    pub(crate) fn window_scale(&self) -> u8 {
        let most = usize::from(u16::MAX);
        (0..=14).find(|scale| self.receive_buffer >> scale <= most).unwrap_or(14)
    }
}
