//! Priority flow control: the pause frame of IEEE 802.1Qbb.

use crate::bytes::{header, put_u16, u16_at};
use crate::ethernet::{EtherType, Ethernet, Mac};
use crate::malformed::{Layer, Malformed};

mod field {
    pub(super) const OPCODE: usize = 0;
    pub(super) const CLASS_ENABLE: usize = 2;
    pub(super) const QUANTA: usize = 4;
}

const PRIORITY_PAUSE: u16 = 0x0101;

/// How many priorities there are.
pub const PRIORITIES: usize = 8;

/// For each priority: leave it alone, or stop sending for so many quanta. 0 quanta let it go on at once.
///
/// A quantum is the time of 512 bits at the speed of the link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pause {
    /// By priority; `None` where the class-enable bit is 0.
    pub quanta: [Option<u16>; PRIORITIES],
}

impl Pause {
    /// The group address that pause frames go to; bridges never forward it.
    pub const TARGET: Mac = Mac([0x01, 0x80, 0xc2, 0x00, 0x00, 0x01]);
    /// Bytes after the Ethernet header, less the padding to the least frame size.
    pub const LENGTH: usize = 20;
    /// Bytes of the whole frame without its check sequence: the least that Ethernet allows.
    pub const FRAME_LENGTH: usize = 60;

    /// The Ethernet header of a pause frame. Pause frames carry no VLAN tag.
    pub const fn ethernet(source: Mac) -> Ethernet {
        Ethernet { target: Self::TARGET, source, vlan: None, ether_type: EtherType::MAC_CONTROL }
    }

    /// Whether this MAC control payload is a priority pause: plain 802.3x pauses have another opcode.
    pub fn is_priority_pause(bytes: &[u8]) -> bool {
        bytes.starts_with(&PRIORITY_PAUSE.to_be_bytes())
    }

    /// Reads what follows the Ethernet header.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let raw: &[u8; Self::LENGTH] = header(bytes, Layer::Pause)?;
        let wrong =
            |field, value: u16| Err(Malformed::Field { layer: Layer::Pause, field, value: value.into() });
        let opcode = u16_at(raw, field::OPCODE);
        if opcode != PRIORITY_PAUSE {
            return wrong("opcode", opcode);
        }
        let enabled = u16_at(raw, field::CLASS_ENABLE);
        if enabled > 0xff {
            return wrong("class-enable vector", enabled);
        }
        let mut pause = Self::default();
        for (priority, quanta) in pause.quanta.iter_mut().enumerate() {
            if enabled >> priority & 1 != 0 {
                *quanta = Some(u16_at(raw, field::QUANTA + 2 * priority));
            }
        }
        Ok(pause)
    }

    /// What follows the Ethernet header, less the padding.
    pub fn to_bytes(&self) -> [u8; Self::LENGTH] {
        let mut raw = [0; Self::LENGTH];
        put_u16(&mut raw, field::OPCODE, PRIORITY_PAUSE);
        let mut enabled = 0;
        for (priority, quanta) in self.quanta.iter().enumerate() {
            if let Some(quanta) = *quanta {
                enabled |= 1 << priority;
                put_u16(&mut raw, field::QUANTA + 2 * priority, quanta);
            }
        }
        put_u16(&mut raw, field::CLASS_ENABLE, enabled);
        raw
    }

    /// The whole frame, padded.
    pub fn to_frame(&self, source: Mac) -> [u8; Self::FRAME_LENGTH] {
        let mut frame = [0; Self::FRAME_LENGTH];
        Self::ethernet(source).emit(&mut frame);
        frame[Ethernet::LENGTH..][..Self::LENGTH].copy_from_slice(&self.to_bytes());
        frame
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_of_priority_three_has_the_bytes_of_the_standard() {
        let mut pause = Pause::default();
        pause.quanta[3] = Some(0xffff);
        let frame = pause.to_frame(Mac([2, 0, 0, 0, 0, 7]));
        let start = [
            0x01, 0x80, 0xc2, 0, 0, 1, 2, 0, 0, 0, 0, 7, 0x88, 0x08, 1, 1, 0, 8, 0, 0, 0, 0, 0, 0, 0xff,
            0xff, 0,
        ];
        assert_eq!(frame[..start.len()], start);
        assert_eq!(Pause::parse(&frame[Ethernet::LENGTH..]), Ok(pause));
    }
}
