//! What a NIC is made with: its ports, its number ranges, its limits, and how it behaves where there is a choice.

use std::ops::Range;

use railnet_core::{Component, Rate, Span};
use railnet_wire::{Framing, Gid, NakCode};

use crate::control::ControlConfig;
use crate::recovery::RecoveryKind;

/// Payload bytes in a full packet of a path.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Mtu(u16);

#[allow(non_upper_case_globals, reason = "the values of the specification's enumeration")]
impl Mtu {
    /// 256 bytes.
    pub const Mtu256: Self = Self(256);
    /// 512 bytes.
    pub const Mtu512: Self = Self(512);
    /// 1024 bytes.
    pub const Mtu1024: Self = Self(1024);
    /// 2048 bytes.
    pub const Mtu2048: Self = Self(2048);
    /// 4096 bytes.
    pub const Mtu4096: Self = Self(4096);
}

impl Mtu {
    /// Those of the specification, smallest first.
    pub const ALL: [Self; 5] = [Self::Mtu256, Self::Mtu512, Self::Mtu1024, Self::Mtu2048, Self::Mtu4096];
    /// The smallest of [`Mtu::of_payload`].
    pub const LEAST: u32 = 64;

    /// The payload bytes of a full packet.
    #[inline]
    pub const fn bytes(self) -> u32 {
        self.0 as u32
    }

    /// The specification's MTU of exactly `bytes`, if there is one.
    pub fn from_bytes(bytes: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| mtu.bytes() == bytes)
    }

    /// Any payload of whole words from [`Mtu::LEAST`] to 4096 bytes. No RoCE path has the ones between those of the
    /// specification; other simulators do.
    pub fn of_payload(bytes: u32) -> Option<Self> {
        let fits = (Self::LEAST..=Self::Mtu4096.bytes()).contains(&bytes) && bytes.is_multiple_of(4);
        fits.then_some(Self(bytes as u16))
    }

    /// How many packets a message of `length` bytes takes: one at least.
    pub(crate) const fn packets(self, length: u32) -> u32 {
        let packets = length.div_ceil(self.bytes());
        if packets == 0 { 1 } else { packets }
    }
}

/// One port of a NIC.
#[derive(Clone, Debug)]
pub struct PortConfig {
    /// Its addresses; a queue pair names one by index.
    pub gids: Vec<Gid>,
    /// Its line rate: where congestion control starts.
    pub rate: Rate,
    /// The largest path MTU it can carry.
    pub mtu: Mtu,
}

/// When a requester asks for an acknowledgement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AckRequests {
    /// At the end of every message, as rxe does; otherwise at the end of signalled messages and of bursts.
    pub every_message: bool,
    /// At the latest after so many packets.
    pub interval: u16,
}

/// Where the specification leaves a choice or real implementations differ from it. [`Behaviour::SPECIFICATION`] is the
/// default; [`Behaviour::RXE`] does as Linux Soft-RoCE 6.12 does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Behaviour {
    /// The migration bit of every packet: hardware sends 1, rxe 0.
    pub migrated_bit: bool,
    /// rxe takes a retry count of 7 to mean for ever; to the specification it is just seven.
    pub retry_seven_is_infinite: bool,
    /// When to ask for acknowledgements.
    pub ack_requests: AckRequests,
    /// One pending acknowledgement may stand for several requests. rxe answers each on its own.
    pub coalesce_acks: bool,
    /// Use end-to-end credits in acknowledgements. RoCE NICs do not.
    pub credits: bool,
    /// How many packets may be unacknowledged. The specification's limit is half the PSN space; rxe has 128.
    pub unacked_packets_max: u32,
    /// Send congestion notifications for marked packets. rxe never does.
    pub notify_congestion: bool,
    /// Set the GRH flag in every receive completion, as rxe does, not only on datagrams.
    pub grh_flag_always: bool,
    /// The NAK for an operation that the queue pair's access flags do not allow.
    pub access_flag_nak: NakCode,
    /// The NAK for a SEND that is longer than the receive buffer. The local status goes with it: length error for the
    /// specification's invalid request, operation error for rxe's operational error.
    pub receive_too_small_nak: NakCode,
    /// A receiver-not-ready NAK acknowledges what came before it. rxe's requester does not use that.
    pub rnr_nak_acknowledges: bool,
    /// Waits for a receiver are rounded up to a multiple of this: a clock tick (4 ms) in rxe.
    pub rnr_tick: Span,
    /// After a receiver-not-ready NAK, packets ahead of it get a sequence NAK too.
    pub sequence_nak_after_rnr: bool,
    /// A READ that is asked for again from its middle is answered as a new message (First or Only); rxe goes on with
    /// Middle and Last.
    pub replay_starts_message: bool,
    /// More READs and atomics at once than the queue pair was set up for are refused; rxe forgets the oldest instead.
    pub refuse_excess_reads: bool,
    /// Requests wait while a READ before them is answered, as in rxe. The specification orders a later WRITE after an
    /// earlier READ only with a fence, so hardware goes on, and the WRITE may show in the READ's last packets.
    pub reads_block_requests: bool,
    /// Packets over IPv6 carry a UDP checksum. rxe sends 0. Drivers put it in: [`railnet_wire::fill_udp_checksum`].
    pub udp_checksum_over_ipv6: bool,
    /// Selective repeat: how long a requester waits for further acknowledgements after that of the packet which a timeout
    /// sent, before it takes the rest of the flight for lost. If any come, the timeout was spurious (F-RTO, RFC 5682): the
    /// peer was slow, and the flight arrives. Timeouts in a row double then (RFC 6298, 5.5), up to 2^5. Zero: all that was
    /// sent before that packet is lost at once, and timeouts stay as they are, as in hardware.
    pub spurious_timeout_wait: Span,
}

impl Behaviour {
    /// As the InfiniBand specification has it, with the habits of RoCE hardware.
    pub const SPECIFICATION: Self = Self {
        migrated_bit: true,
        retry_seven_is_infinite: false,
        ack_requests: AckRequests { every_message: false, interval: 64 },
        coalesce_acks: true,
        credits: false,
        unacked_packets_max: railnet_core::Psn::WINDOW - 1,
        notify_congestion: true,
        grh_flag_always: false,
        access_flag_nak: NakCode::RemoteAccess,
        receive_too_small_nak: NakCode::InvalidRequest,
        rnr_nak_acknowledges: true,
        rnr_tick: Span::from_ps(1),
        sequence_nak_after_rnr: false,
        replay_starts_message: true,
        refuse_excess_reads: true,
        reads_block_requests: false,
        udp_checksum_over_ipv6: true,
        spurious_timeout_wait: Span::ZERO,
    };

    /// As Linux Soft-RoCE (`rdma_rxe`, 6.12) behaves.
    pub const RXE: Self = Self {
        migrated_bit: false,
        retry_seven_is_infinite: true,
        ack_requests: AckRequests { every_message: true, interval: 65 },
        coalesce_acks: false,
        credits: false,
        unacked_packets_max: 128,
        notify_congestion: false,
        grh_flag_always: true,
        access_flag_nak: NakCode::InvalidRequest,
        receive_too_small_nak: NakCode::RemoteOperational,
        rnr_nak_acknowledges: false,
        rnr_tick: Span::from_ms(4),
        sequence_nak_after_rnr: true,
        replay_starts_message: false,
        refuse_excess_reads: false,
        reads_block_requests: true,
        udp_checksum_over_ipv6: false,
        spurious_timeout_wait: Span::ZERO,
    };
}

/// The largest of everything. A call that asks for more is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Work requests in a send or receive queue.
    pub queue_depth: u32,
    /// Scatter and gather entries of a work request.
    pub gather: u32,
    /// Inline bytes of a work request.
    pub inline: u32,
    /// Entries of a completion queue.
    pub completions: u32,
    /// READs and atomics at once, in each direction.
    pub reads: u8,
}

/// What a NIC is made with.
#[derive(Clone, Debug)]
pub struct NicConfig {
    /// Who it is in the run.
    pub component: Component,
    /// The root seed of the run; the NIC's own stream comes from it and the component.
    pub seed: u64,
    /// Queue pair numbers it may hand out, so that several NICs can share one device.
    pub queue_pairs: Range<u32>,
    /// Key indices (the upper 24 bits of a key) it may hand out.
    pub keys: Range<u32>,
    /// Draw the upper 24 bits of keys at random, so that they cannot be guessed; otherwise they are counted up.
    pub random_keys: bool,
    /// Its ports, numbered from 1 in the verbs interface.
    pub ports: Vec<PortConfig>,
    /// Its limits.
    pub limits: Limits,
    /// Its choices.
    pub behaviour: Behaviour,
    /// Congestion control of its queue pairs.
    pub control: ControlConfig,
    /// Loss recovery of its queue pairs.
    pub recovery: RecoveryKind,
    /// The least time between two congestion notifications to one queue pair.
    pub notification_interval: Span,
    /// How many packets a queue pair may send before the next one has its turn.
    pub burst_packets: u16,
    /// The priority of each DSCP value.
    pub priorities: [u8; 64],
    /// What carries its packets: the rate limiter counts all bytes on the wire.
    pub framing: Framing,
}

impl NicConfig {
    /// A NIC with one port of 100 Gb/s and the address `gid`, for component `component` of a run with this seed.
    pub fn new(component: Component, seed: u64, gid: Gid) -> Self {
        Self {
            component,
            seed,
            queue_pairs: 0x11..1 << 24,
            keys: 1..1 << 24,
            random_keys: false,
            ports: vec![PortConfig { gids: vec![gid], rate: Rate::gbps(100), mtu: Mtu::Mtu4096 }],
            limits: Limits {
                queue_depth: 1 << 15,
                gather: 32,
                inline: 512,
                completions: 1 << 22,
                reads: 128,
            },
            behaviour: Behaviour::SPECIFICATION,
            control: ControlConfig::None,
            recovery: RecoveryKind::GoBackN,
            notification_interval: Span::from_us(50),
            burst_packets: 16,
            priorities: std::array::from_fn(|dscp| (dscp >> 3) as u8),
            framing: Framing::RoceV2,
        }
    }
}

/// The wait that a receiver-not-ready timer code stands for (IBTA table 45), in units of 10 µs.
const RNR_WAIT_10US: [u32; 32] = [
    65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1_024, 1_536, 2_048,
    3_072, 4_096, 6_144, 8_192, 12_288, 16_384, 24_576, 32_768, 49_152,
];

/// The least wait that a receiver-not-ready timer code asks for.
pub fn rnr_wait(code: u8) -> Span {
    Span::from_us(10) * u64::from(RNR_WAIT_10US[usize::from(code & 0x1f)])
}

/// How long a requester waits for an acknowledgement: 4.096 µs × 2^code; code 0 is for ever.
pub fn ack_timeout(code: u8) -> Option<Span> {
    (code & 0x1f != 0).then(|| Span::from_ns(4_096) * (1 << (code & 0x1f)))
}

/// How many credits a code in an acknowledgement stands for (IBTA table 46). 31 means that credits are not in use.
pub(crate) const CREDITS: [u32; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1_024, 1_536, 2_048,
    3_072, 4_096, 6_144, 8_192, 12_288, 16_384, 24_576, 32_768,
];

/// The largest code that promises no more than `receives`.
pub(crate) fn credit_code(receives: u32) -> u8 {
    CREDITS.partition_point(|&credits| credits <= receives) as u8 - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timer_codes_mean_what_the_tables_say() {
        assert_eq!(rnr_wait(0), Span::from_us(655_360));
        assert_eq!(rnr_wait(12), Span::from_us(640));
        assert_eq!(rnr_wait(25), Span::from_us(61_440));
        assert_eq!(rnr_wait(31), Span::from_us(491_520));
        assert_eq!(ack_timeout(14), Some(Span::from_ns(67_108_864)));
        assert_eq!(ack_timeout(0), None);
    }

    #[test]
    fn a_credit_code_never_promises_too_much() {
        for receives in 0..40_000 {
            let code = credit_code(receives);
            assert!(code < 31 && CREDITS[usize::from(code)] <= receives);
        }
        assert_eq!(credit_code(5), 4);
    }

    #[test]
    fn a_message_takes_one_packet_at_least() {
        assert_eq!(Mtu::Mtu256.packets(0), 1);
        assert_eq!(Mtu::Mtu256.packets(256), 1);
        assert_eq!(Mtu::Mtu256.packets(257), 2);
        assert_eq!(Mtu::Mtu4096.packets(1 << 31), 1 << 19);
    }
}
