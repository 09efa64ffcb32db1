//! Messages in bytes: there and back, and what happens to bytes that are none.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use proptest::collection::vec;
use proptest::prelude::*;
use railnet_live::message::{
    ANSWER_MAX, BLOB_MAX, Decoder, Hello, Malformed, Member, Message, NAME_MAX, REQUEST_MAX, Trouble,
    TroubleKind, preamble, preamble_of,
};

fn name() -> impl Strategy<Value = String> {
    "[a-zü0-9]{0,40}"
}

fn blob() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..200)
}

fn trouble() -> impl Strategy<Value = Trouble> {
    let kinds = [TroubleKind::Missing, TroubleKind::Twice, TroubleKind::Gone, TroubleKind::TooMuch];
    (0..kinds.len(), vec(any::<u32>(), 0..9), name()).prop_map(move |(kind, ranks, text)| Trouble {
        kind: kinds[kind],
        ranks,
        text,
    })
}

fn member() -> impl Strategy<Value = Member> {
    (any::<u32>(), name(), name(), blob()).prop_map(|(pid, host, group, blob)| Member {
        pid,
        host,
        group,
        blob,
    })
}

fn message() -> impl Strategy<Value = Message> {
    let hello = (any::<[u32; 4]>(), any::<u64>(), any::<[u8; 16]>(), name(), name()).prop_map(
        |([rank, world_size, limit_ms, pid], job, nonce, host, group)| {
            Message::Hello(Hello { rank, world_size, job, nonce, limit_ms, pid, host, group })
        },
    );
    prop_oneof![
        hello,
        any::<([u8; 16], [u8; 32])>().prop_map(|(nonce, proof)| Message::Challenge { nonce, proof }),
        (any::<[u8; 32]>(), blob()).prop_map(|(proof, blob)| Message::Join { proof, blob }),
        vec(member(), 0..5).prop_map(Message::Welcome),
        trouble().prop_map(Message::Refused),
        Just(Message::Ping),
        (any::<(u32, u32)>(), name(), blob()).prop_map(|((sequence, limit_ms), label, blob)| {
            Message::Gather { sequence, limit_ms, label, blob }
        }),
        (any::<u32>(), vec(blob(), 0..5)).prop_map(|(sequence, blobs)| Message::Gathered { sequence, blobs }),
        (any::<u32>(), trouble()).prop_map(|(sequence, trouble)| Message::GatherFailed { sequence, trouble }),
        (name(), blob()).prop_map(|(key, value)| Message::Put { key, value }),
        (any::<(u32, u32)>(), name()).prop_map(|((ticket, limit_ms), key)| Message::Get {
            ticket,
            limit_ms,
            key
        }),
        (any::<u32>(), proptest::option::of(blob()))
            .prop_map(|(ticket, value)| Message::Got { ticket, value }),
        (any::<(u32, u8)>(), blob()).prop_map(|((from, kind), body)| Message::Notice { from, kind, body }),
        Just(Message::Leave),
    ]
}

proptest! {
    /// However a stream is cut into pieces.
    #[test]
    fn what_is_written_is_read_again(messages in vec(message(), 0..6), piece in 1_usize..100) {
        let mut bytes = preamble().to_vec();
        for message in &messages {
            message.write(&mut bytes);
        }
        let mut decoder = Decoder::new(REQUEST_MAX);
        let mut read = Vec::new();
        for piece in bytes.chunks(piece) {
            decoder.push(piece);
            while let Some(message) = decoder.next().unwrap() {
                read.push(message);
            }
        }
        prop_assert_eq!(read, messages);
        prop_assert_eq!(decoder.waiting(), 0);
    }

    #[test]
    fn garbage_is_an_error_or_waits_and_never_more(bytes in vec(any::<u8>(), 0..300)) {
        let mut decoder = Decoder::new(REQUEST_MAX);
        decoder.push(&preamble());
        decoder.push(&bytes);
        while let Ok(Some(message)) = decoder.next() {
            // What was taken for a message is one.
            let mut again = Vec::new();
            message.write(&mut again);
            prop_assert_eq!(Message::read(&again[4..]).unwrap(), message);
        }
    }

    /// One byte of a good message is changed, or its end is cut off.
    #[test]
    fn damage_never_panics(message in message(), at in any::<proptest::sample::Index>(), value in any::<u8>()) {
        let mut bytes = Vec::new();
        message.write(&mut bytes);
        let at = at.index(bytes.len());
        prop_assert!(Message::read(&bytes[4..][..at.min(bytes.len() - 5)]).is_err());
        bytes[at] = value;
        let mut decoder = Decoder::new(REQUEST_MAX);
        decoder.push(&preamble());
        decoder.push(&bytes);
        while let Ok(Some(_)) = decoder.next() {}
    }
}

#[test]
fn another_protocol_shows_in_its_first_bytes_and_another_version_by_its_number() {
    for peer in ["GET / HTTP/1.1\r\n\r\n", "R\0", "\x16\x03\x01", "SSH-2.0-OpenSSH"] {
        let mut decoder = Decoder::new(REQUEST_MAX);
        decoder.push(peer.as_bytes());
        assert_eq!(decoder.next(), Err(Malformed::Magic), "{peer}");
    }
    let mut decoder = Decoder::new(REQUEST_MAX);
    decoder.push(&preamble_of(railnet_live::message::VERSION + 1));
    assert_eq!(decoder.next(), Err(Malformed::Version(railnet_live::message::VERSION + 1)));
    assert_eq!(decoder.foreign_rank(), None);
    let mut hello = Vec::new();
    let text = String::new;
    Message::Hello(Hello {
        rank: 3,
        world_size: 4,
        job: 0,
        nonce: [0; 16],
        limit_ms: 0,
        pid: 1,
        host: text(),
        group: text(),
    })
    .write(&mut hello);
    decoder.push(&hello);
    assert_eq!(decoder.foreign_rank(), Some((3, 4)));
}

#[test]
fn no_length_is_believed_beyond_its_limit() {
    for length in [0_u32, REQUEST_MAX as u32 + 1, u32::MAX] {
        let mut decoder = Decoder::new(REQUEST_MAX);
        decoder.push(&preamble());
        decoder.push(&length.to_le_bytes());
        assert_eq!(decoder.next(), Err(Malformed::Length(length as usize)));
    }
    let size = |message: Message| {
        let mut bytes = Vec::new();
        message.write(&mut bytes);
        (bytes.len() - 4, Message::read(&bytes[4..]).is_ok())
    };
    let put = |size: usize| Message::Put { key: "k".repeat(NAME_MAX), value: vec![0; size] };
    assert!(size(put(BLOB_MAX)).1);
    assert!(size(put(BLOB_MAX)).0 <= REQUEST_MAX);
    assert!(!size(put(BLOB_MAX + 1)).1);
    // A list that claims more than the frame could hold.
    let mut claim = vec![8, 0, 0, 0, 0];
    claim.extend(u32::MAX.to_le_bytes());
    assert_eq!(Message::read(&claim), Err(Malformed::Field("blobs")));
    const { assert!(ANSWER_MAX > REQUEST_MAX) };
}
