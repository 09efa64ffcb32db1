//! A look at the links in the middle of a run.

use railnet_core::event::Sink;

use crate::channel::Channel;
use crate::network::Network;

/// One direction of a link at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ChannelSample {
    /// Bytes that have gone over it so far; of a packet that is on its way into the link, the part that is.
    pub bytes: u64,
    /// Bytes that wait in front of it now, at a switch.
    pub queued: u64,
    /// How long it has been held back by pauses so far, in picoseconds, a pause that still holds included.
    pub paused_ps: u64,
}

impl<S: Sink> Network<S> {
    /// Both directions of every link now, in the order of [`Network::channels`]. Looking changes nothing.
    pub fn samples(&self) -> impl Iterator<Item = ChannelSample> {
        self.channels.iter().map(|channel| self.sample(channel))
    }

    fn sample(&self, channel: &Channel) -> ChannelSample {
        // Bytes are counted when a packet begins to leave: what has not left yet comes off again.
        let to_come = channel.rate().bytes_in(channel.busy_until.since(self.now)).as_u64();
        let held = match channel.paused {
            0 => 0,
            _ => self.now.since(channel.pause_began).as_ps(),
        };
        ChannelSample {
            bytes: channel.counters.bytes.saturating_sub(to_come),
            queued: channel.queued(),
            paused_ps: channel.counters.paused_ps + held,
        }
    }
}
