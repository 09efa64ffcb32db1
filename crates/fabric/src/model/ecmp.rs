//! The hash by which a switch chooses among equal-cost paths (ECMP): the same for every packet of a connection.
//!
//! A connection has one hash, from its addresses and its UDP source port; each switch spreads it with a seed of its own, so that the
//! choices of switches on a path do not follow from each other. Flow-level runs use it to put each flow on the path that its packets
//! would take.

use railnet_core::Random;

/// The hash of a connection: its hosts and its UDP source port.
#[inline]
pub fn connection_hash(source: u32, target: u32, source_port: u16) -> u32 {
    mix(source ^ mix(target ^ u32::from(source_port) << 8))
}

/// How one switch spreads hashes of connections over ports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EcmpSeed(u32);

impl EcmpSeed {
    /// That of a switch, in a run with this seed.
    pub fn of_switch(seed: u64, switch: u32) -> Self {
        Self::draw(&mut switch_stream(seed, switch))
    }

    /// The first number of the random stream of a switch.
    pub(crate) fn draw(stream: &mut Random) -> Self {
        Self(stream.next_u32())
    }

    /// Which of `ports`, of which there are some, a connection with this hash takes.
    #[inline]
    pub fn choose(self, ports: &[u16], hash: u32) -> u16 {
        ports[((u64::from(self.spread(hash)) * ports.len() as u64) >> 32) as usize]
    }

    /// The hash as this switch sees it.
    #[inline]
    pub(crate) fn spread(self, hash: u32) -> u32 {
        mix(hash ^ self.0)
    }
}

/// The random stream of a switch, in a run with this seed.
pub(crate) fn switch_stream(seed: u64, switch: u32) -> Random {
    Random::stream(seed, "switch", u64::from(switch))
}

/// Mixes the bits of a hash, so that the paths that switches select do not depend on each other (no hash polarisation).
#[inline]
pub(crate) fn mix(value: u32) -> u32 {
    let value = (value ^ value >> 16).wrapping_mul(0x85eb_ca6b);
    let value = (value ^ value >> 13).wrapping_mul(0xc2b2_ae35);
    value ^ value >> 16
}
