//! One send in the making: packets for one peer, back to back, as the kernel cuts them apart again.

use railnet_nic::Transmit;
use railnet_wire::{
    Authenticate, Authentication, Bth, DATAGRAM_BYTES_MAX, Extension, Fronts, Headers, Network, PayloadSum,
    datagram_length, seal_datagram_with,
};

use super::guard::{Guards, SessionId};
use super::shared_payload::Reference;

/// The most bytes of one send, which is one datagram until the kernel cuts it.
const BYTES_MAX: usize = DATAGRAM_BYTES_MAX;

/// Where packets go: packets of one lane may share a send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Lane {
    /// Which of the sending sockets.
    pub(super) sender: usize,
    /// Which of the targets that are known.
    pub(super) target: usize,
    pub(super) class: u8,
    /// The member of the target's address: the kernel steers a send by its first packet.
    pub(super) member: u16,
    /// The session under whose keys its packets are authenticated.
    pub(super) session: Option<SessionId>,
    /// Packets carry references in place of payloads.
    pub(super) by_reference: bool,
}

impl Lane {
    /// Whether packets without payload may follow those of another lane.
    fn leads_with(self, other: Self) -> bool {
        Self { by_reference: false, ..self } == Self { by_reference: false, ..other }
    }

    /// Bytes that follow the padding of its packets.
    fn trailer(self) -> usize {
        if self.session.is_some() { Authentication::LENGTH } else { 0 }
    }
}

/// Addressing and headers of a packet without payload that waits for the end of a send.
#[derive(Debug)]
struct Late {
    lane: Lane,
    network: Network,
    headers: Headers,
    extension: Option<Box<Extension>>,
}

/// The send in the making. The kernel wants segments of one length, but for the last, which may be shorter.
#[derive(Debug)]
pub(super) struct Batch {
    bytes: Vec<u8>,
    /// How many of them are packets that are complete.
    sealed: usize,
    segment: usize,
    count: u16,
    lane: Option<Lane>,
    /// The addressing of the first packet, for those who want to know what went out.
    network: Option<Network>,
    /// No other packet may follow.
    is_closed: bool,
    segments_max: u16,
    late: Option<Late>,
    fronts: Fronts,
}

/// What is ready to go.
pub(super) struct Send<'a> {
    pub(super) lane: Lane,
    pub(super) bytes: &'a [u8],
    pub(super) segment: usize,
    /// The addressing of all its packets, but for the IPv4 ID, which counts them.
    pub(super) network: Network,
}

impl Batch {
    pub(super) fn new(segments_max: u16) -> Self {
        Self {
            bytes: Vec::with_capacity(BYTES_MAX + 8192),
            sealed: 0,
            segment: 0,
            count: 0,
            lane: None,
            network: None,
            is_closed: false,
            segments_max,
            late: None,
            fronts: Fronts::default(),
        }
    }

    /// From now on every packet goes by itself.
    pub(super) fn stop_segmenting(&mut self) {
        self.segments_max = 1;
    }

    pub(super) fn segments_max(&self) -> u16 {
        self.segments_max
    }

    /// The place to append the payload of the next packet to. Most packets have a BTH and nothing else in front of it.
    pub(super) fn open(&mut self) -> &mut Vec<u8> {
        self.bytes.resize(self.sealed + Bth::LENGTH, 0);
        &mut self.bytes
    }

    /// No packet came.
    pub(super) fn cancel(&mut self) {
        self.bytes.truncate(self.sealed);
    }

    /// Puts headers in front of the payload that was appended, and makes room for what follows it.
    pub(super) fn frame(&mut self, packet: &Transmit, lane: Lane) {
        let headers = packet.headers.length() + packet.extension().length();
        let payload_at = self.sealed + Bth::LENGTH;
        let payload = self.bytes.len() - payload_at;
        let length = datagram_length(&packet.headers, packet.extension(), payload) + lane.trailer();
        self.bytes.resize(self.sealed + length, 0);
        if headers != Bth::LENGTH {
            self.bytes.copy_within(payload_at..payload_at + payload, self.sealed + headers);
        }
    }

    /// Makes room for headers and a reference to the payload.
    pub(super) fn frame_reference(&mut self) {
        self.bytes.truncate(self.sealed);
        self.bytes.resize(self.sealed + Reference::DATAGRAM, 0);
    }

    /// Whether the packet that was framed last can share the send with those before it.
    pub(super) fn takes(&self, lane: Lane) -> bool {
        let length = self.bytes.len() - self.sealed;
        match self.lane {
            None => true,
            Some(mine) => {
                mine == lane && !self.is_closed && length <= self.segment && self.bytes.len() <= BYTES_MAX
            }
        }
    }

    /// Completes the packet that was framed last. After this [`Batch::is_full`] tells whether the send must go now.
    /// `sum` is what the payload adds to the ICRC, where that is known. With a `reference` there is no payload.
    #[expect(clippy::too_many_arguments, reason = "all that a packet consists of")]
    pub(super) fn seal(
        &mut self,
        lane: Lane,
        network: &Network,
        packet: &Transmit,
        payload: usize,
        sum: Option<PayloadSum>,
        reference: Option<Reference>,
        guards: &mut Guards,
    ) {
        let length = self.bytes.len() - self.sealed;
        if self.lane.is_none() {
            (self.lane, self.segment, self.network) = (Some(lane), length, Some(*network));
        }
        let network = Network { identification: self.count, ..*network };
        let mut datagram = &mut self.bytes[self.sealed..];
        if let Some(reference) = reference {
            let length = datagram_length(&packet.headers, packet.extension(), 0);
            reference.emit(packet.headers.bth.destination.value(), length, datagram);
            datagram = &mut datagram[Reference::FRONT..][..length];
        }
        let sum = sum.map(|sum| (sum, &mut self.fronts));
        let mut authenticate =
            lane.session.map(|session| move |bytes: &[u8]| guards.authenticate(session, bytes));
        let authenticate = authenticate.as_mut().map(|make| make as Authenticate<'_>);
        let extension = packet.extension();
        seal_datagram_with(datagram, &network, &packet.headers, extension, payload, sum, authenticate);
        self.sealed = self.bytes.len();
        self.count += 1;
        self.is_closed = length < self.segment
            || self.count >= self.segments_max
            || self.bytes.len() + self.segment > BYTES_MAX;
    }

    pub(super) fn is_full(&self) -> bool {
        self.is_closed
    }

    /// Sets a packet without payload aside, to go as the last of a send to the same peer. An acknowledgement that rides
    /// behind data costs no send of its own. `false` when one waits already.
    pub(super) fn set_aside(&mut self, lane: Lane, network: &Network, packet: &mut Transmit) -> bool {
        if self.late.is_some() {
            return false;
        }
        let extension = packet.extension.take();
        self.late = Some(Late { lane, network: *network, headers: packet.headers, extension });
        true
    }

    /// What was completed, with the packet that was set aside where that fits. `None` when there is nothing.
    pub(super) fn ready(&mut self, guards: &mut Guards) -> Option<Send<'_>> {
        let lane = self.lane.or(self.late.as_ref().map(|late| late.lane))?;
        // A packet that has no payload yet may stand behind the completed ones: it is not to be overwritten.
        if self.bytes.len() == self.sealed
            && let Some(late) = self.late.take_if(|late| late.lane.leads_with(lane))
        {
            let none = Extension::NONE;
            let extension = late.extension.as_deref().unwrap_or(&none);
            let length = datagram_length(&late.headers, extension, 0) + lane.trailer();
            let fits = self.lane.is_none()
                || !self.is_closed && length <= self.segment && self.sealed + length <= BYTES_MAX;
            if fits {
                if self.lane.is_none() {
                    (self.lane, self.segment, self.network) = (Some(lane), length, Some(late.network));
                }
                self.bytes.resize(self.sealed + length, 0);
                let network = Network { identification: self.count, ..late.network };
                let mut authenticate =
                    lane.session.map(|session| move |bytes: &[u8]| guards.authenticate(session, bytes));
                let authenticate = authenticate.as_mut().map(|make| make as Authenticate<'_>);
                let datagram = &mut self.bytes[self.sealed..];
                seal_datagram_with(datagram, &network, &late.headers, extension, 0, None, authenticate);
                self.sealed = self.bytes.len();
                self.count += 1;
            } else {
                self.late = Some(late);
            }
        }
        let network = self.network?;
        Some(Send { lane, bytes: &self.bytes[..self.sealed], segment: self.segment, network })
    }

    /// What was ready has gone. A packet that was framed behind it is now the first.
    pub(super) fn restart(&mut self) {
        let rest = self.bytes.len() - self.sealed;
        self.bytes.copy_within(self.sealed.., 0);
        self.bytes.truncate(rest);
        (self.sealed, self.count, self.lane, self.network, self.is_closed) = (0, 0, None, None, false);
    }
}
