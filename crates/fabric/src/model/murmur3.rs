//! The hash by which switches of the HPCC paper's ns-3 choose among equal paths, so that flows take the paths that they
//! take there.
//!
//! `switch-node.cc`: MurmurHash3 of both addresses and ports, with the number of the switch as its seed, modulo the number
//! of next hops. Nodes are numbered hosts first; a host has the address 11.x.y.1 of its number, and the first flow between
//! two hosts has the ports 10000 and, in the flow files that come with it, 100. Next hops stand in the order of the
//! addresses that switches have in memory: each is mapped by itself, and Linux maps from high addresses to low ones, so the
//! switch with the highest number is the first.

use railnet_wire::Opcode;

use crate::model::packet::PacketMetadata;

/// Source port of the first flow from a host to another, and the target port of all.
const PORTS: (u32, u32) = (10_000, 100);

/// The ns-3 numbering of a network.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Murmur3Hash {
    pub(crate) hosts: u32,
}

impl Murmur3Hash {
    /// Which of `ports`, of which there is one at least, a packet takes at a switch.
    pub(crate) fn choose(self, switch: u32, ports: &[u16], metadata: &PacketMetadata) -> u16 {
        let (near, far) = PORTS;
        // Answers have the ports the other way round; all requests of a connection stay in order.
        let opcode = Opcode::from_byte(metadata.packet.opcode);
        let is_answer = opcode.is_some_and(|opcode| opcode.is_response() || opcode == Opcode::Cnp);
        let words = if is_answer { far | near << 16 } else { near | far << 16 };
        let hash = murmur3([address(metadata.source), address(metadata.target), words], self.hosts + switch);
        ports[ports.len() - 1 - hash as usize % ports.len()]
    }
}

/// `third.cc`, `node_id_to_ip`.
fn address(host: u32) -> u32 {
    0x0b00_0001 + ((host / 256) << 16) + ((host % 256) << 8)
}

/// MurmurHash3, 32 bits, of three words.
fn murmur3(words: [u32; 3], seed: u32) -> u32 {
    let mut hash = seed;
    for word in words {
        let word = word.wrapping_mul(0xcc9e_2d51).rotate_left(15).wrapping_mul(0x1b87_3593);
        hash = (hash ^ word).rotate_left(13).wrapping_mul(5).wrapping_add(0xe654_6b64);
    }
    let bytes = size_of_val(&words) as u32;
    crate::model::ecmp::mix(hash ^ bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_murmur3() {
        // As `SwitchNode::EcmpHash` computes them.
        assert_eq!(murmur3([0, 0, 0], 0), 0xd941_144b);
        assert_eq!(murmur3([0x0b00_0001, 0x0b00_1101, 0x0064_2710], 0x80), 0x0e2f_9116);
    }

    #[test]
    fn requests_of_a_connection_share_a_path_and_so_do_its_answers() {
        let ports: Vec<u16> = (0..64).collect();
        let port = |opcode: Opcode| {
            let mut metadata = PacketMetadata { source: 3, target: 9, ..PacketMetadata::NONE };
            metadata.packet.opcode = opcode as u8;
            Murmur3Hash { hosts: 128 }.choose(7, &ports, &metadata)
        };
        let write = port(Opcode::RcWriteFirst);
        assert_eq!((port(Opcode::RcReadRequest), port(Opcode::RcSendOnly)), (write, write));
        let answer = port(Opcode::RcAcknowledge);
        assert_eq!((port(Opcode::RcReadResponseMiddle), port(Opcode::Cnp)), (answer, answer));
        assert_ne!(write, answer);
    }

    #[test]
    fn addresses_are_those_of_node_numbers() {
        assert_eq!([0, 17, 256, 319].map(address), [0x0b00_0001, 0x0b00_1101, 0x0b01_0001, 0x0b01_3f01]);
    }
}
