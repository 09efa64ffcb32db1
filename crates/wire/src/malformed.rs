//! Why bytes are not a packet.

use std::fmt;

/// The part of a packet that an error is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each is named like its header")]
pub enum Layer {
    Ethernet,
    Vlan,
    LocalRoute,
    GlobalRoute,
    Ipv4,
    Ipv6,
    Udp,
    Tcp,
    TcpOption,
    BaseTransport,
    Extension,
    RdmaExtended,
    AcknowledgeExtended,
    AtomicExtended,
    AtomicAcknowledge,
    Immediate,
    Invalidate,
    DatagramExtended,
    FlushExtended,
    CongestionNotification,
    Authentication,
    Icrc,
    Pause,
    Mad,
    ConnectionManagement,
    CmaPrivate,
    ErfRecord,
}

impl Layer {
    /// The name that the specifications use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ethernet => "Ethernet",
            Self::Vlan => "VLAN tag",
            Self::LocalRoute => "LRH",
            Self::GlobalRoute => "GRH",
            Self::Ipv4 => "IPv4",
            Self::Ipv6 => "IPv6",
            Self::Udp => "UDP",
            Self::Tcp => "TCP",
            Self::TcpOption => "TCP option",
            Self::BaseTransport => "BTH",
            Self::Extension => "Railnet extension",
            Self::RdmaExtended => "RETH",
            Self::AcknowledgeExtended => "AETH",
            Self::AtomicExtended => "AtomicETH",
            Self::AtomicAcknowledge => "AtomicAckETH",
            Self::Immediate => "ImmDt",
            Self::Invalidate => "IETH",
            Self::DatagramExtended => "DETH",
            Self::FlushExtended => "FETH",
            Self::CongestionNotification => "CNP",
            Self::Authentication => "authentication trailer",
            Self::Icrc => "ICRC",
            Self::Pause => "PFC pause",
            Self::Mad => "MAD",
            Self::ConnectionManagement => "CM message",
            Self::CmaPrivate => "CMA private data",
            Self::ErfRecord => "ERF record",
        }
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What is wrong with some bytes, and where.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// The bytes end before the header does.
    #[error("{layer} needs {needed} bytes, {found} are there")]
    Truncated {
        /// Which header.
        layer: Layer,
        /// Bytes it has.
        needed: usize,
        /// Bytes that were left.
        found: usize,
    },
    /// A length field disagrees with the bytes.
    #[error("{layer} states a length of {stated} bytes, must be {least} to {most}")]
    Length {
        /// Which header.
        layer: Layer,
        /// What its length field says.
        stated: usize,
        /// The least that makes sense.
        least: usize,
        /// The most that is there.
        most: usize,
    },
    /// A field has a value that its header does not allow.
    #[error("{layer} field {field} is {value:#x}")]
    Field {
        /// Which header.
        layer: Layer,
        /// Which field, in the specification's words.
        field: &'static str,
        /// What stood there.
        value: u64,
    },
    /// The IPv4 header checksum does not fit its header.
    #[error("IPv4 header checksum is {found:#06x}, should be {computed:#06x}")]
    Ipv4Checksum {
        /// What stood there.
        found: u16,
        /// What belongs there.
        computed: u16,
    },
    /// A fragment of a datagram: RoCEv2 never fragments.
    #[error("IPv4 fragment at byte {offset}, more fragments {more}")]
    Fragment {
        /// Where in the datagram it belongs.
        offset: usize,
        /// Whether others follow.
        more: bool,
    },
    /// Not the RoCEv2 port.
    #[error("UDP target port is {0}, RoCEv2 is 4791")]
    NotRocePort(u16),
    /// An opcode that is not spoken here: RD, XRC, another manufacturer's, or none at all.
    #[error("BTH opcode {0:#04x} is not an RC, UC, UD or CNP opcode")]
    UnknownOpcode(u8),
    /// More padding than there are bytes, or a packet that is not a multiple of four bytes.
    #[error("BTH pad count {pad} does not fit the {found} bytes between headers and ICRC")]
    Pad {
        /// The pad count.
        pad: usize,
        /// Payload and pad bytes that are there.
        found: usize,
    },
    /// A management attribute that is not a connection-management message known here.
    #[error("CM attribute {0:#06x} is not known")]
    UnknownAttribute(u16),
}
