//! Taps: copies of the frames that pass chosen links, for those who record them.

use railnet_core::event::Sink;
use railnet_core::{Label, PacketSample, QueuePairNumber, Time};
use railnet_topology::Vertex;

use crate::network::Network;

/// A frame that passed a tap, without preamble and check sequence.
#[derive(Clone, Copy, Debug)]
pub struct Tapped<'a> {
    /// When its first bit left.
    pub at: Time,
    /// The link that is tapped, by its number in the fabric.
    pub link: u32,
    /// The sender on this link.
    pub from: Vertex,
    /// The receiver on this link.
    pub to: Vertex,
    /// The frame as it left, with the addresses, hop limit and marks that it has on this link.
    pub frame: &'a [u8],
    /// The label of its work request; none for acknowledgements and pause frames.
    pub label: Label,
    /// The hosts that it travels between; `None` for a pause frame.
    pub flow: Option<[u32; 2]>,
    /// A bit of it was flipped before it came to this link.
    pub is_corrupt: bool,
    /// The link loses it. Frames under way on a link that fails are not counted.
    pub is_lost: bool,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    at: Time,
    channel: u32,
    label: Label,
    flow: Option<[u32; 2]>,
    /// Where its bytes end; they begin where those before it end.
    end: usize,
    is_corrupt: bool,
    is_lost: bool,
}

/// What is tapped, and the frames since the last [`Network::drain_taps`].
#[derive(Debug, Default)]
pub(crate) struct Taps {
    /// By channel.
    is_tapped: Vec<bool>,
    /// The packets that taps copy.
    pub(crate) sample: PacketSample,
    /// A connection of which all packets are: host and queue pair of both ends.
    pub(crate) followed: Option<[(u32, QueuePairNumber); 2]>,
    bytes: Vec<u8>,
    entries: Vec<Entry>,
}

impl Taps {
    pub(crate) fn is_tapped(&self, channel: u32) -> bool {
        self.is_tapped.get(channel as usize).copied().unwrap_or(false)
    }

    pub(crate) fn take(
        &mut self,
        at: Time,
        channel: u32,
        (label, flow): (Label, Option<[u32; 2]>),
        is_corrupt: bool,
        frame: &[u8],
    ) {
        self.bytes.extend_from_slice(frame);
        let end = self.bytes.len();
        self.entries.push(Entry { at, channel, label, flow, end, is_corrupt, is_lost: false });
    }

    /// The frame that was just copied is lost.
    pub(crate) fn lose_last(&mut self, channel: u32) {
        if let Some(last) = self.entries.last_mut().filter(|last| last.channel == channel) {
            last.is_lost = true;
        }
    }
}

impl<S: Sink> Network<S> {
    /// Whether packets travel as frames, or taps copy frames.
    pub fn shows_frames(&self) -> bool {
        self.fabric.shows_frames
    }

    /// Keeps a copy of every frame that passes a link from now on, in both directions, until
    /// [`Network::drain_taps`] hands them out.
    pub fn tap(&mut self, link: u32) {
        self.use_one_calendar();
        self.observers.taps.is_tapped.resize(self.fabric.channels.len(), false);
        for channel in [link * 2, link * 2 + 1] {
            self.observers.taps.is_tapped[channel as usize] = true;
        }
        self.fabric.show_frames();
    }

    /// Packets that taps copy from now on, besides pause frames; by default all.
    pub fn tap_sample(&mut self, sample: PacketSample) {
        self.observers.taps.sample = sample;
    }

    /// A connection of which taps copy all packets, whatever the sample has: host and queue pair of both ends.
    pub fn tap_connection(&mut self, ends: Option<[(u32, QueuePairNumber); 2]>) {
        self.observers.taps.followed = ends;
    }

    /// Hands out the frames that passed the taps since the last call, in the order of time.
    pub fn drain_taps(&mut self, mut take: impl FnMut(&Tapped<'_>)) {
        let mut start = 0;
        for &Entry { at, channel, label, flow, end, is_corrupt, is_lost } in &self.observers.taps.entries {
            let ends = &self.fabric.channels[channel as usize];
            let (link, from, to) = (channel / 2, ends.from, ends.to);
            let frame = &self.observers.taps.bytes[start..end];
            take(&Tapped { at, link, from, to, frame, label, flow, is_corrupt, is_lost });
            start = end;
        }
        self.observers.taps.entries.clear();
        self.observers.taps.bytes.clear();
    }
}
