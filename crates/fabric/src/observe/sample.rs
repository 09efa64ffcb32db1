//! Samples of all links during a run.

use railnet_core::Time;
use railnet_core::event::Sink;

use crate::model::channel::Channel;
use crate::network::Network;

/// One direction of a link at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ChannelSample {
    /// Bytes transmitted so far, to the byte: of a packet that is being transmitted, the part that has left.
    pub bytes: u64,
    /// Bytes queued in front of it now, at a switch.
    pub queued: u64,
    /// How long it has been paused so far, in picoseconds, the present pause included.
    pub paused_ps: u64,
}

impl<S: Sink> Network<S> {
    /// Both directions of every link now, in the order of [`Network::channels`]. It changes nothing.
    pub fn samples(&self) -> impl Iterator<Item = ChannelSample> {
        self.fabric.channels.iter().map(|channel| sample(channel, self.now))
    }
}

fn sample(channel: &Channel, now: Time) -> ChannelSample {
    // Bytes are counted when a packet begins to leave: those that have not left yet are subtracted.
    let to_come = channel.rate().bytes_in(channel.busy_until.since(now)).as_u64();
    let usage = match channel.paused {
        0 => 0,
        _ => now.since(channel.pause_began).as_ps(),
    };
    ChannelSample {
        bytes: channel.counters.bytes.saturating_sub(to_come),
        queued: channel.queued(),
        paused_ps: channel.counters.paused_ps + usage,
    }
}
