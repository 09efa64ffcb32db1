//! Tracks, slices, counters and arrows of a trace.

use std::io::{self, Write};

use super::message::Message;

/// All packets are of one sequence: numbers of tracks are good for all of it.
const SEQUENCE: u64 = 1;

/// `TracePacket`.
mod packet {
    pub(super) const TIMESTAMP: u32 = 8;
    pub(super) const SEQUENCE_ID: u32 = 10;
    pub(super) const EVENT: u32 = 11;
    pub(super) const DESCRIPTOR: u32 = 60;
}

/// `TrackDescriptor`, and what is in it.
mod descriptor {
    pub(super) const UUID: u32 = 1;
    pub(super) const NAME: u32 = 2;
    pub(super) const PROCESS: u32 = 3;
    pub(super) const PARENT: u32 = 5;
    pub(super) const COUNTER: u32 = 8;
    pub(super) const PROCESS_PID: u32 = 1;
    pub(super) const PROCESS_NAME: u32 = 6;
    pub(super) const COUNTER_UNIT: u32 = 3;
    pub(super) const COUNTER_UNIT_NAME: u32 = 6;
    pub(super) const UNIT_BYTES: u64 = 3;
}

/// `TrackEvent`, and what is in it.
mod event {
    pub(super) const ANNOTATION: u32 = 4;
    pub(super) const KIND: u32 = 9;
    pub(super) const TRACK: u32 = 11;
    pub(super) const NAME: u32 = 23;
    pub(super) const DOUBLE: u32 = 44;
    pub(super) const FLOW: u32 = 47;
    pub(super) const LAST_OF_FLOW: u32 = 48;
    pub(super) const BEGIN: u64 = 1;
    pub(super) const END: u64 = 2;
    pub(super) const INSTANT: u64 = 3;
    pub(super) const COUNTER: u64 = 4;
    pub(super) const ANNOTATION_NUMBER: u32 = 3;
    pub(super) const ANNOTATION_NAME: u32 = 10;
}

/// Something that took a while.
#[derive(Clone, Debug)]
pub(super) struct Slice {
    /// From when, in picoseconds.
    pub(super) from: u64,
    /// The end.
    pub(super) to: u64,
    /// What it was.
    pub(super) name: String,
    /// Numbers that belong to it.
    pub(super) notes: Vec<(&'static str, u64)>,
}

/// One end of an arrow: when, which arrow, and what happened.
pub(super) type Moment = (u64, u64, String);

/// What a counter counts.
#[derive(Clone, Copy, Debug)]
pub(super) enum Unit {
    Bytes,
    Named(&'static str),
}

/// Writes a trace.
pub(super) struct Writer<'a, W> {
    out: &'a mut W,
    tracks: u64,
}

impl<'a, W: Write> Writer<'a, W> {
    pub(super) fn new(out: &'a mut W) -> Self {
        Self { out, tracks: 0 }
    }

    /// Servers have the first numbers of tracks.
    fn server(number: u32) -> u64 {
        u64::from(number) + 1
    }

    fn put(&mut self, packet: Message) -> io::Result<()> {
        let packet = packet.number(packet::SEQUENCE_ID, SEQUENCE);
        self.out.write_all(Message::default().message(1, &packet).as_bytes())
    }

    fn event(&mut self, at: u64, event: &Message) -> io::Result<()> {
        let packet = Message::default().number(packet::TIMESTAMP, at / 1_000).message(packet::EVENT, event);
        self.put(packet)
    }

    /// A server.
    pub(super) fn process(&mut self, number: u32, name: &str) -> io::Result<()> {
        let process = Message::default()
            .number(descriptor::PROCESS_PID, u64::from(number) + 1)
            .text(descriptor::PROCESS_NAME, name);
        let track = Message::default()
            .number(descriptor::UUID, Self::server(number))
            .message(descriptor::PROCESS, &process);
        self.put(Message::default().message(packet::DESCRIPTOR, &track))
    }

    /// A track of a server; gives its number.
    fn track(&mut self, server: u32, name: &str, counter: Option<&Message>) -> io::Result<u64> {
        self.tracks += 1;
        let uuid = (1 << 32) + self.tracks;
        let mut track = Message::default()
            .number(descriptor::UUID, uuid)
            .number(descriptor::PARENT, Self::server(server))
            .text(descriptor::NAME, name);
        if let Some(counter) = counter {
            track = track.message(descriptor::COUNTER, counter);
        }
        self.put(Message::default().message(packet::DESCRIPTOR, &track))?;
        Ok(uuid)
    }

    /// What took a while: on as many tracks of the same name as it takes for none to lie across another.
    pub(super) fn slices(&mut self, server: u32, name: &str, mut slices: Vec<Slice>) -> io::Result<()> {
        slices.sort_by_key(|slice| (slice.from, slice.to));
        let mut ends: Vec<(u64, u64)> = Vec::new();
        for slice in slices {
            let free = ends.iter().position(|(end, _)| *end <= slice.from);
            let place = match free {
                Some(place) => place,
                None => {
                    let track = self.track(server, name, None)?;
                    ends.push((0, track));
                    ends.len() - 1
                }
            };
            ends[place].0 = slice.to.max(slice.from + 1_000);
            let track = ends[place].1;
            let mut begin = Message::default()
                .number(event::KIND, event::BEGIN)
                .number(event::TRACK, track)
                .text(event::NAME, &slice.name);
            for (name, value) in &slice.notes {
                let note = Message::default()
                    .text(event::ANNOTATION_NAME, name)
                    .number(event::ANNOTATION_NUMBER, *value);
                begin = begin.message(event::ANNOTATION, &note);
            }
            self.event(slice.from, &begin)?;
            let end = Message::default().number(event::KIND, event::END).number(event::TRACK, track);
            self.event(slice.to, &end)?;
        }
        Ok(())
    }

    /// A number over time.
    pub(super) fn counter(
        &mut self,
        server: u32,
        name: &str,
        unit: Unit,
        points: Vec<(u64, f64)>,
    ) -> io::Result<()> {
        let unit = match unit {
            Unit::Bytes => Message::default().number(descriptor::COUNTER_UNIT, descriptor::UNIT_BYTES),
            Unit::Named(name) => Message::default().text(descriptor::COUNTER_UNIT_NAME, name),
        };
        let track = self.track(server, name, Some(&unit))?;
        for (at, value) in points {
            let event = Message::default()
                .number(event::KIND, event::COUNTER)
                .number(event::TRACK, track)
                .double(event::DOUBLE, value);
            self.event(at, &event)?;
        }
        Ok(())
    }

    /// Moments at either end of arrows.
    pub(super) fn moments(
        &mut self,
        server: u32,
        name: &str,
        mut moments: Vec<Moment>,
        is_beginning: bool,
    ) -> io::Result<()> {
        moments.sort();
        let track = self.track(server, name, None)?;
        let field = if is_beginning { event::FLOW } else { event::LAST_OF_FLOW };
        for (at, flow, name) in moments {
            let event = Message::default()
                .number(event::KIND, event::INSTANT)
                .number(event::TRACK, track)
                .text(event::NAME, &name)
                .fixed(field, flow);
            self.event(at, &event)?;
        }
        Ok(())
    }
}
