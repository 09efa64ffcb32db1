//! What went over the wire, as a capture file.

use std::fmt;
use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use railnet_wire::capture::{CaptureError, InterfaceId, LinkType, PcapngWriter, Timestamp};
use railnet_wire::{Network, Udp, fill_udp_checksum};

/// Writes packets with the IP and UDP headers that the kernel gave them, as far as a socket can know: not the hop limit
/// of what came in.
pub(super) struct Tap {
    writer: PcapngWriter<Box<dyn Write + Send>>,
    interface: InterfaceId,
    packet: Vec<u8>,
    /// Packets that may still be written.
    left: u64,
    /// The first thing that went wrong; nothing is written after it.
    failure: Option<CaptureError>,
}

impl Tap {
    pub(super) fn new(
        write: Box<dyn Write + Send>,
        name: &str,
        most: u64,
        comment: Option<&str>,
    ) -> Result<Self, CaptureError> {
        let mut writer = PcapngWriter::with_comment(write, comment)?;
        let interface =
            writer.interface(name, LinkType::RAW, PcapngWriter::<Box<dyn Write + Send>>::NANOSECONDS)?;
        Ok(Self { writer, interface, packet: Vec::new(), left: most, failure: None })
    }

    /// Writes one packet.
    pub(super) fn write(&mut self, network: &Network, datagram: &[u8], comment: Option<&str>) {
        if self.failure.is_some() || self.left == 0 {
            return;
        }
        self.left -= 1;
        let ip = network.ip(datagram.len());
        self.packet.clear();
        self.packet.resize(ip.length(), 0);
        ip.emit(&mut self.packet);
        self.packet.extend_from_slice(&network.udp(datagram.len()).to_bytes());
        debug_assert_eq!(self.packet.len(), ip.length() + Udp::LENGTH);
        self.packet.extend_from_slice(datagram);
        // The kernel fills it in; the bytes were just made, so that nothing can be wrong with them.
        let _ = fill_udp_checksum(&mut self.packet);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let timestamp = Timestamp::new(now.as_secs(), u64::from(now.subsec_nanos()) * 1000);
        let comments = comment.as_slice();
        if let Err(error) = self.writer.write(self.interface, timestamp, &self.packet, comments) {
            self.failure = Some(error);
        }
    }

    /// Ends the file.
    pub(super) fn finish(self) -> Result<(), CaptureError> {
        match self.failure {
            Some(failure) => Err(failure),
            None => self.writer.finish().map(|_| ()),
        }
    }
}

impl fmt::Debug for Tap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tap")
    }
}
