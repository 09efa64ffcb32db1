//! What links carry in captures: the link type of each framing, and packets as records of it.

use std::borrow::Cow;

use railnet_wire::Framing;
use railnet_wire::capture::{ERF_LENGTH, LinkType, Timestamp, infiniband_record};

/// The link type in which packets of a framing are written. Wireshark reads InfiniBand in ERF records only.
pub(crate) fn link_type(framing: Framing) -> LinkType {
    match framing {
        Framing::RoceV2 | Framing::RoceV1 => LinkType::ETHERNET,
        Framing::Infiniband => LinkType::ERF,
    }
}

/// A packet as it is written.
pub(crate) fn record(framing: Framing, time: Timestamp, packet: &[u8]) -> Cow<'_, [u8]> {
    match framing {
        Framing::RoceV2 | Framing::RoceV1 => Cow::Borrowed(packet),
        Framing::Infiniband => Cow::Owned(infiniband_record(time, packet)),
    }
}

/// Bytes of a record in front of the packet.
pub(crate) fn front(framing: Framing) -> usize {
    if framing == Framing::Infiniband { ERF_LENGTH } else { 0 }
}
