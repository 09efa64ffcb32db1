//! What the receiver tells the sender about the way its packets had: telemetry and marks, in acknowledgements.

use railnet_wire::{CongestionEcho, Extension, Telemetry, TelemetryBlock};

use super::QueuePair;
use crate::packet::{Inbound, Transmit};

/// What is told with the next acknowledgement.
#[derive(Clone, Debug, Default)]
pub(crate) struct Echo {
    /// What switches wrote into the newest packet.
    telemetry: Option<Telemetry>,
    /// Packets since the last acknowledgement, and how many of them came marked.
    congestion: Option<CongestionEcho>,
}

impl QueuePair {
    /// Data came in: notes what it tells of its way. Telemetry is echoed to whoever sends it; marks are counted where
    /// `counts_marks` is set.
    pub(crate) fn note_way(&mut self, packet: &Inbound<'_>, counts_marks: bool) {
        let telemetry = packet.extension.map_or(TelemetryBlock::None, |extension| extension.telemetry);
        if let TelemetryBlock::Gathered(telemetry) = telemetry {
            self.echo.get_or_insert_default().telemetry = Some(telemetry);
        }
        if counts_marks {
            let echo = self.echo.get_or_insert_default();
            let CongestionEcho { marked, packets } = echo.congestion.get_or_insert_default();
            *marked = marked.saturating_add(u16::from(packet.network.ecn() == 3));
            *packets = packets.saturating_add(1);
        }
    }

    /// What an acknowledgement that leaves now carries besides its verdict.
    pub(super) fn answer_extension(&mut self) -> Option<Extension> {
        let echo = self.echo.as_mut()?;
        let extension = Extension {
            telemetry: echo.telemetry.map_or(TelemetryBlock::None, TelemetryBlock::Echoed),
            congestion: echo.congestion.take(),
            selective: None,
        };
        (!extension.is_none()).then_some(extension)
    }
}

/// The extension of a data packet in which switches write.
pub(super) const TELEMETRY_ROOM: Extension =
    Extension { telemetry: TelemetryBlock::Gathered(Telemetry::EMPTY), ..Extension::NONE };

/// A place for an extension: that of the packet which lies in the driver's place, where it has one.
#[cold]
pub(super) fn boxed(slot: &mut Option<Transmit>, extension: Extension) -> Box<Extension> {
    let mut place = slot.as_mut().and_then(|old| old.extension.take()).unwrap_or_default();
    *place = extension;
    place
}
