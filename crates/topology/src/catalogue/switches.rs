//! How many ports the switches have that one can buy.

use railnet_core::Rate;

/// What the largest chips pass on: 51.2 Tb/s. Broadcom Tomahawk 5 (BCM78900: 64 × 800, 128 × 400 or 256 × 200 Gb/s), NVIDIA
/// Spectrum-4 (SN5600: 64 × 800, 128 × 400 Gb/s).
const CHIP: u64 = 51_200_000_000_000;
/// The most ports that such a chip has, however slow they are.
const PORTS_MAX: u64 = 256;

/// The ports of a switch whose ports have this rate; two at least.
pub fn switch_ports(rate: Rate) -> u32 {
    (CHIP / rate.as_bps().max(1)).clamp(2, PORTS_MAX) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_those_of_data_sheets() {
        let ports = [800, 400, 200, 100].map(|gbps| switch_ports(Rate::gbps(gbps)));
        assert_eq!(ports, [64, 128, 256, 256]);
    }
}
