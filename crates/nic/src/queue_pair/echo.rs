//! What the receiver tells the sender in its answers besides the acknowledgement: telemetry, marks, and what came early.

use railnet_core::Psn;
use railnet_wire::{
    Aeth, CongestionEcho, Extended, Extension, SelectiveAck, Syndrome, Telemetry, TelemetryBlock,
};

use super::{Responder, Shared};
use crate::packet::{Inbound, Transmit};

/// What is told with the next acknowledgement.
#[derive(Clone, Debug, Default)]
pub(crate) struct Echo {
    /// What switches wrote into the newest packet.
    telemetry: Option<Telemetry>,
    /// Packets since the last acknowledgement, and how many of them came marked.
    congestion: Option<CongestionEcho>,
}

impl Responder {
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

    /// What an answer that leaves now carries that RoCEv2 has no field for: the echo, and which packets came early.
    pub(super) fn answer_extension(
        &mut self,
        shared: &Shared,
        psn: Psn,
        extended: Extended,
    ) -> Option<Extension> {
        let mut extension =
            Extension { selective: self.told_early(shared, psn, extended), ..Extension::NONE };
        if let Some(echo) = &mut self.echo {
            extension.telemetry = echo.telemetry.map_or(TelemetryBlock::None, TelemetryBlock::Echoed);
            extension.congestion = echo.congestion.take();
        }
        (!extension.is_none()).then_some(extension)
    }

    fn told_early(&mut self, shared: &Shared, psn: Psn, extended: Extended) -> Option<SelectiveAck> {
        let early = self.early.as_mut().filter(|_| shared.recovery.is_selective())?;
        let is_ack = |aeth: Aeth| matches!(aeth.syndrome, Syndrome::Ack { .. });
        let is_nak = matches!(extended, Extended::Aeth(aeth) if !is_ack(aeth));
        // An answer that waited may be behind: what came in order since then would seem to be missing.
        let expected = self.expected;
        if psn.plus(1) == expected || is_nak && psn == expected { early.told(expected) } else { None }
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
