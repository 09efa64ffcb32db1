//! Capture files as other programs write them, and as Railnet writes them.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use railnet_core::{Span, Time};
use railnet_wire::capture::{
    CaptureError, LinkType, Packet, PcapWriter, PcapngWriter, Precision, Reader, Timestamp, Undecodable,
};

fn packets(file: &[u8]) -> Vec<Packet> {
    Reader::new(file).unwrap().map(Result::unwrap).collect()
}

/// Builds files in either byte order.
struct Builder {
    bytes: Vec<u8>,
    is_big: bool,
}

impl Builder {
    fn new(is_big: bool) -> Self {
        Self { bytes: Vec::new(), is_big }
    }

    fn u16(mut self, value: u16) -> Self {
        self.bytes.extend(if self.is_big { value.to_be_bytes() } else { value.to_le_bytes() });
        self
    }

    fn u32(mut self, value: u32) -> Self {
        self.bytes.extend(if self.is_big { value.to_be_bytes() } else { value.to_le_bytes() });
        self
    }

    fn raw(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    fn block(self, kind: u32, body: impl FnOnce(Self) -> Self) -> Self {
        let inner = body(Self::new(self.is_big)).bytes;
        let length = inner.len() as u32 + 12;
        self.u32(kind).u32(length).raw(&inner).u32(length)
    }

    fn section(self) -> Self {
        self.block(0x0a0d_0d0a, |body| body.u32(0x1a2b_3c4d).u16(1).u16(0).raw(&[0xff; 8]))
    }
}

#[test]
fn pcap_is_read_in_both_byte_orders_and_both_precisions() {
    for is_big in [false, true] {
        for (magic, fraction) in [(0xa1b2_c3d4, 7_000_000), (0xa1b2_3c4d, 7_000)] {
            let file = Builder::new(is_big)
                .u32(magic)
                .u16(2)
                .u16(4)
                .raw(&[0; 8])
                .u32(65_535)
                .u32(101)
                .u32(1_700_000_000)
                .u32(7)
                .u32(3)
                .u32(90)
                .raw(b"abc");
            let found = packets(&file.bytes);
            assert_eq!(found.len(), 1);
            assert_eq!(found[0].timestamp, Some(Timestamp::new(1_700_000_000, fraction)));
            assert_eq!((found[0].bytes.as_slice(), found[0].original_length), (&b"abc"[..], 90));
            assert_eq!(found[0].link_type, LinkType::RAW);
            assert!(found[0].is_cut());
        }
    }
}

#[test]
fn pcapng_is_read_in_both_byte_orders_with_everything_that_may_be_in_it() {
    for is_big in [false, true] {
        let file = Builder::new(is_big)
            .section()
            .block(1, |body| body.u16(1).u16(0).u32(4))
            .block(1, |body| {
                body.u16(147)
                    .u16(0)
                    .u32(0)
                    .u16(2)
                    .u16(5)
                    .raw(b"port1\0\0\0")
                    .u16(9)
                    .u16(1)
                    .raw(&[0x8a, 0, 0, 0])
                    .u32(0)
            })
            .block(0x0bad_cafe, |body| body.raw(b"unknown to all"[..12].as_ref()))
            .block(6, |body| {
                let head = body.u32(0).u32(0).u32(3_000_001).u32(5).u32(5).raw(b"hello\0\0\0");
                head.u16(1).u16(3).raw(b"hi!\0").u16(1).u16(2).raw(b"ho\0\0").u32(0)
            })
            .block(3, |body| body.u32(9).raw(b"simp"))
            .block(2, |body| body.u16(1).u16(0).u32(0).u32(1536).u32(1).u32(1).raw(b"x\0\0\0"))
            .section()
            .block(1, |body| body.u16(101).u16(0).u32(0).u16(14).u16(8).raw(&offset(is_big)).u32(0))
            .block(6, |body| body.u32(0).u32(0).u32(0).u32(0).u32(0));
        let found = packets(&file.bytes);
        assert_eq!(found.len(), 4);
        assert_eq!(found[0].timestamp, Some(Timestamp::new(3, 1_000_000)));
        assert_eq!(
            (found[0].bytes.as_slice(), &found[0].comments[..]),
            (&b"hello"[..], &["hi!".into(), "ho".into()][..])
        );
        assert_eq!(
            (found[1].timestamp, found[1].bytes.as_slice(), found[1].original_length),
            (None, &b"simp"[..], 9)
        );
        // 1536 units of 2^-10 s.
        assert_eq!(found[2].timestamp, Some(Timestamp::new(1, 500_000_000_000)));
        assert_eq!((found[2].interface, found[2].link_type), (1, LinkType(147)));
        assert!(matches!(found[2].frame(), Err(Undecodable::LinkType(LinkType(147)))));
        assert_eq!((found[3].timestamp, found[3].link_type), (Some(Timestamp::new(100, 0)), LinkType::RAW));
    }
}

/// 100 seconds as the option for a clock's offset.
fn offset(is_big: bool) -> [u8; 8] {
    if is_big { 100_i64.to_be_bytes() } else { 100_i64.to_le_bytes() }
}

#[test]
fn what_is_written_is_read_back() {
    let time = Timestamp::from(Time::from_ps(1_234_567_890_123_456));
    let mut writer = PcapngWriter::new(Vec::new()).unwrap();
    let ports = [
        writer.interface("gpu0-rail1", LinkType::ETHERNET, PcapngWriter::<Vec<u8>>::PICOSECONDS).unwrap(),
        writer.interface("", LinkType::RAW, PcapngWriter::<Vec<u8>>::NANOSECONDS).unwrap(),
    ];
    writer.write(ports[0], time, b"12345", &["retransmission", "step 3"]).unwrap();
    writer.write(ports[1], time, b"", &[]).unwrap();
    let file = writer.finish().unwrap();
    let mut reader = Reader::new(&file[..]).unwrap();
    let first = reader.next_packet().unwrap().unwrap();
    assert_eq!(first.timestamp, Some(time));
    assert_eq!(
        (first.bytes.as_slice(), first.comments),
        (&b"12345"[..], vec!["retransmission".into(), "step 3".into()])
    );
    assert_eq!(reader.interfaces()[0].name.as_deref(), Some("gpu0-rail1"));
    let second = reader.next_packet().unwrap().unwrap();
    assert_eq!(time.since(second.timestamp.unwrap()), Span::from_ps(456));
    assert_eq!((second.interface, second.link_type), (1, LinkType::RAW));

    for (precision, lost) in [(Precision::Microseconds, 123_456), (Precision::Nanoseconds, 456)] {
        let mut writer = PcapWriter::new(Vec::new(), precision, LinkType::ETHERNET).unwrap();
        writer.write(time, b"abc").unwrap();
        let found = packets(&writer.finish().unwrap());
        assert_eq!(time.since(found[0].timestamp.unwrap()), Span::from_ps(lost));
        assert_eq!((found[0].bytes.as_slice(), found[0].is_cut()), (&b"abc"[..], false));
    }
}

#[test]
fn a_time_that_does_not_fit_is_refused() {
    let mut pcap = PcapWriter::new(Vec::new(), Precision::Microseconds, LinkType::ETHERNET).unwrap();
    assert!(matches!(pcap.write(Timestamp::new(1 << 32, 0), b""), Err(CaptureError::Time(_))));
    let mut pcapng = PcapngWriter::new(Vec::new()).unwrap();
    let port = pcapng.interface("port", LinkType::ETHERNET, 12).unwrap();
    assert!(matches!(pcapng.write(port, Timestamp::new(1 << 25, 0), b"", &[]), Err(CaptureError::Time(_))));
}

#[test]
fn what_is_no_capture_is_named() {
    let error = |bytes: &[u8]| Reader::new(bytes).map(drop).unwrap_err().to_string();
    assert_eq!(error(b""), "the file is empty, no capture");
    assert!(error(b"# not one").starts_with("not a pcap or pcapng capture"));
    assert!(error(&[0x1f, 0x8b, 8, 0]).contains("gunzip"));
    assert!(error(&[0xd4, 0xc3]).contains("cut off at byte 2"));
    let version = Builder::new(false).u32(0xa1b2_c3d4).u16(3).u16(0).raw(&[0; 16]);
    assert_eq!(error(&version.bytes), "pcap version 3.0 is not known");
}

#[test]
fn a_length_that_promises_too_much_is_refused_before_memory_is_taken() {
    let last = |file: Builder| Reader::new(&file.bytes[..]).unwrap().last().unwrap().unwrap_err().to_string();
    let pcap = Builder::new(false).u32(0xa1b2_c3d4).u16(2).u16(4).raw(&[0; 16]);
    assert!(last(pcap.u32(0).u32(0).u32(0xffff_fff0).u32(0)).contains("packet length at byte 24"));
    assert!(last(Builder::new(false).section().u32(6).u32(0xffff_fff0)).contains("block length at byte 28"));
    let inside = Builder::new(false)
        .section()
        .block(1, |body| body.u16(1).u16(0).u32(0))
        .block(6, |body| body.u32(0).u32(0).u32(0).u32(0xffff_ffff).u32(0));
    assert!(last(inside).contains("packet length at byte 48"));
    let nobody = Builder::new(false).section().block(6, |body| body.u32(3).raw(&[0; 16]));
    assert!(last(nobody).contains("interface 3"));
}
