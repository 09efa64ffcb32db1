//! Events, and how they are kept until they are run.

use crate::model::packet::PacketIndex;

/// An event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// A packet comes out of a channel.
    Arrive { channel: u32, packet: PacketIndex },
    /// The transmitter of a channel is free, and its port has more to send.
    TransmitReady { channel: u32 },
    /// A timer of a NIC is due.
    Timer { host: u32 },
    /// The application asked to be called.
    Call { token: u32 },
    /// A pause may have expired.
    PauseExpiry { channel: u32 },
    /// A pause that still holds is sent again.
    PauseRefresh { channel: u32, priority: u8 },
    /// A fault begins or ends.
    Fault { index: u32 },
    /// Switches learn which links work.
    Reroute,
    /// A slice has passed a hop of its bus path.
    Slice { slice: u32 },
    /// The sender of a channel hears of credit.
    Credit { channel: u32, priority: u8, bytes: u32 },
}

/// Ranks of events at the same moment: the application first, then arrivals, then what they make possible.
pub(crate) mod rank {
    pub(crate) const CALL: u8 = 0;
    pub(crate) const ARRIVE: u8 = 1;
    pub(crate) const CREDIT: u8 = 2;
    pub(crate) const PAUSE: u8 = 3;
    pub(crate) const TRANSMIT: u8 = 4;
    pub(crate) const TIMER: u8 = 5;
    /// Calls at the end of a moment.
    pub(crate) const LAST: u8 = 6;
}

/// An event in one word: four bits for its kind, 28 for the channel, 32 for the rest.
///
/// An enum is written field by field and read as a whole, which stalls store forwarding; with two or three events for every
/// packet-hop that was a twelfth of all time. A word stays in a register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PackedEvent(u64);

const KIND_SHIFT: u32 = 60;
const CHANNEL_SHIFT: u32 = 32;
/// Channels that fit into a word.
pub(crate) const CHANNELS_MAX: usize = 1 << (KIND_SHIFT - CHANNEL_SHIFT);
/// In the rest, a priority stands above so many bits of bytes: no packet is that long.
const BYTES_BITS: u32 = 29;

impl PackedEvent {
    #[allow(clippy::inline_always, reason = "what it is, is known where it is made")]
    #[inline(always)]
    pub(crate) fn new(event: Event) -> Self {
        let pack = |kind: u64, channel: u32, rest: u32| {
            Self(kind << KIND_SHIFT | u64::from(channel) << CHANNEL_SHIFT | u64::from(rest))
        };
        match event {
            Event::Arrive { channel, packet } => pack(0, channel, packet),
            Event::TransmitReady { channel } => pack(1, channel, 0),
            Event::Timer { host } => pack(2, 0, host),
            Event::Call { token } => pack(3, 0, token),
            Event::PauseExpiry { channel } => pack(4, channel, 0),
            Event::PauseRefresh { channel, priority } => pack(5, channel, priority.into()),
            Event::Fault { index } => pack(6, 0, index),
            Event::Reroute => pack(7, 0, 0),
            Event::Slice { slice } => pack(8, 0, slice),
            Event::Credit { channel, priority, bytes } => {
                pack(9, channel, u32::from(priority) << BYTES_BITS | bytes)
            }
        }
    }

    /// The channel and the packet of an arrival, as nearly all events are.
    #[inline]
    pub(crate) fn arrival(self) -> Option<(u32, PacketIndex)> {
        (self.0 >> KIND_SHIFT == 0).then_some(((self.0 >> CHANNEL_SHIFT) as u32, self.0 as u32))
    }

    #[allow(clippy::inline_always, reason = "it is taken apart where it is dealt with")]
    #[inline(always)]
    pub(crate) fn event(self) -> Event {
        let channel = (self.0 >> CHANNEL_SHIFT) as u32 & (CHANNELS_MAX as u32 - 1);
        let rest = self.0 as u32;
        match self.0 >> KIND_SHIFT {
            0 => Event::Arrive { channel, packet: rest },
            1 => Event::TransmitReady { channel },
            2 => Event::Timer { host: rest },
            3 => Event::Call { token: rest },
            4 => Event::PauseExpiry { channel },
            5 => Event::PauseRefresh { channel, priority: rest as u8 },
            6 => Event::Fault { index: rest },
            7 => Event::Reroute,
            8 => Event::Slice { slice: rest },
            _ => {
                let bytes = rest & ((1 << BYTES_BITS) - 1);
                Event::Credit { channel, priority: (rest >> BYTES_BITS) as u8, bytes }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_is_read_back() {
        let channel = CHANNELS_MAX as u32 - 1;
        for event in [
            Event::Arrive { channel, packet: u32::MAX - 1 },
            Event::Arrive { channel: 0, packet: 7 },
            Event::TransmitReady { channel },
            Event::Timer { host: u32::MAX },
            Event::Call { token: u32::MAX },
            Event::PauseExpiry { channel },
            Event::PauseRefresh { channel, priority: 7 },
            Event::Fault { index: u32::MAX },
            Event::Reroute,
            Event::Slice { slice: u32::MAX },
            Event::Credit { channel, priority: 7, bytes: (1 << BYTES_BITS) - 1 },
            Event::Credit { channel: 3, priority: 0, bytes: 4_140 },
        ] {
            assert_eq!(PackedEvent::new(event).event(), event);
        }
    }
}
