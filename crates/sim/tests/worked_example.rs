//! The worked example from which this project was born, "life of a training job": 32 GPUs in four servers, one ring, and
//! every step between servers one WRITE of 24 MiB. What the story says is what is on the wire.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};

use railnet_core::event::NoSink;
use railnet_core::{Span, Time};
use railnet_fabric::host_gid;
use railnet_sim::{Run, Scenario, graph};
use railnet_topology::Vertex;
use railnet_wire::{Aeth, Extended, Frame, Headers, NakCode, Network, Opcode, Reth, Syndrome};

const STORY: &str = include_str!("../../../scenarios/life-of-a-job.toml");
const LOSS: &str = include_str!("../../../scenarios/textbook-loss.toml");

/// Nothing that is waited for here takes longer.
const LIMIT: Span = Span::from_ms(20);

/// A packet of the transport, as a tap has it.
#[derive(Clone, Copy, Debug)]
struct Packet {
    link: u32,
    from: Vertex,
    network: Network,
    headers: Headers,
    payload: usize,
    is_good: bool,
}

impl Packet {
    fn to(&self) -> u32 {
        self.headers.bth.destination.value()
    }

    fn psn(&self) -> u32 {
        self.headers.bth.psn.value()
    }
}

/// A run with taps on links.
struct Listener {
    run: Run<NoSink>,
    packets: Vec<Packet>,
}

impl Listener {
    fn new(text: &str, between: &[(Vertex, Vertex)]) -> Self {
        let scenario = Scenario::parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let graph = graph(&scenario).unwrap();
        let mut run = Run::new(&scenario, NoSink).unwrap();
        for (a, b) in between {
            let links = graph.links_between(*a, *b);
            assert_eq!(links.len(), 1, "{a:?} and {b:?}");
            run.tap(links[0]);
        }
        Self { run, packets: Vec::new() }
    }

    /// Goes on for a while; whether the run is over.
    fn advance(&mut self, span: Span) -> bool {
        let is_over = self.run.advance(span);
        let packets = &mut self.packets;
        self.run.drain_taps(|tapped| {
            let Ok(Frame::Roce(packet)) = Frame::parse(tapped.frame) else { return };
            packets.push(Packet {
                link: tapped.link,
                from: tapped.from,
                network: packet.network(),
                headers: packet.headers,
                payload: packet.payload.len(),
                is_good: packet.icrc.is_good(),
            });
        });
        is_over
    }

    /// Goes on until something was seen.
    fn until(&mut self, seen: impl Fn(&Packet) -> bool) {
        let mut looked = 0;
        while !self.packets[looked..].iter().any(&seen) {
            looked = self.packets.len();
            assert!(self.run.now() < Time::ZERO + LIMIT, "not seen within {LIMIT}");
            assert!(!self.advance(Span::from_us(50)), "not seen until the end");
        }
    }
}

const LEAF: [Vertex; 4] = [Vertex::Switch(0), Vertex::Switch(1), Vertex::Switch(2), Vertex::Switch(3)];
const SPINE: Vertex = Vertex::Switch(4);

fn is_ack(packet: &Packet) -> bool {
    packet.headers.bth.opcode == Opcode::RcAcknowledge
}

#[test]
fn the_first_step_from_node01_to_node02_is_what_the_story_says() {
    let (sender, receiver) = (Vertex::Host(7), Vertex::Host(8));
    let way = [(sender, LEAF[0]), (LEAF[0], SPINE), (SPINE, LEAF[1]), (LEAF[1], receiver)];
    let mut listener = Listener::new(STORY, &way);
    listener.until(|packet| packet.from == LEAF[0] && is_ack(packet) && packet.to() == 42);
    let packets = &listener.packets;

    // 6,144 packets of 4,096 bytes, PSN 5000 to 11143, to queue pair 17.
    let is_data = |packet: &&Packet| {
        let ends = (packet.network.source, packet.network.target);
        ends == (host_gid(7), host_gid(8)) && !is_ack(packet) && packet.psn() <= 11_143
    };
    let sent: Vec<&Packet> = packets.iter().filter(is_data).filter(|packet| packet.from == sender).collect();
    assert_eq!(sent.len(), 6_144);
    assert!(sent.iter().map(|packet| packet.psn()).eq(5_000..=11_143));
    for (index, packet) in sent.iter().enumerate() {
        let (opcode, extended) = match index {
            0 => {
                let reth = Reth { address: 0x7f80_0000, key: 0x1234, length: 24 << 20 };
                (Opcode::RcWriteFirst, Extended::Reth(reth))
            }
            6_143 => (Opcode::RcWriteLastImmediate, Extended::Immediate(24 << 20)),
            _ => (Opcode::RcWriteMiddle, Extended::None),
        };
        assert_eq!((packet.headers.bth.opcode, packet.headers.extended), (opcode, extended), "{index}");
        assert_eq!(packet.headers.bth.ack_request, index == 6_143, "{index}");
        assert_eq!((packet.payload, packet.network.target_port), (4_096, 4_791));
        assert!(packet.to() == 17 && packet.is_good);
    }

    // By way of both top-of-rack switches and the spine, each packet once.
    for from in [LEAF[0], SPINE, LEAF[1]] {
        let passed = packets.iter().filter(is_data).filter(|packet| packet.from == from);
        assert!(passed.map(Packet::psn).eq(5_000..=11_143), "{from:?}");
    }

    // One acknowledgement for all of them.
    let answers: Vec<&Packet> = packets
        .iter()
        .filter(|packet| packet.from == LEAF[0] && is_ack(packet) && packet.to() == 42)
        .collect();
    assert_eq!(answers.len(), 1);
    assert_eq!(answers[0].psn(), 11_143);
    let Extended::Aeth(Aeth { syndrome, msn }) = answers[0].headers.extended else { panic!() };
    assert_eq!((syndrome, msn), (Syndrome::ACK, 1));

    // What node02 knows of node01: where it is told which slots are free.
    let told: Vec<Reth> = packets
        .iter()
        .filter(|packet| packet.from == receiver && packet.to() == 42)
        .filter_map(|packet| match packet.headers.extended {
            Extended::Reth(reth) => Some(reth),
            _ => None,
        })
        .collect();
    assert_eq!(told[0], Reth { address: 0x7f00_0000, key: 0xabcd, length: 64 });
    assert!(told.iter().all(|reth| reth.key == 0xabcd && reth.length == 64));
}

/// The story with a loss: PSN 7200 does not arrive, the receiver asks for it, and the sender goes back to it.
#[test]
fn a_lost_packet_is_asked_for_and_sent_again_with_all_behind_it() {
    let mut listener = Listener::new(LOSS, &[(Vertex::Host(7), LEAF[0]), (LEAF[1], Vertex::Host(8))]);
    listener.until(|packet| packet.from == LEAF[0] && is_ack(packet) && packet.to() == 42);
    listener.advance(Span::from_us(20));
    let psns = |from: Vertex| {
        let data = listener.packets.iter().filter(|packet| packet.from == from && packet.to() == 17);
        data.filter(|packet| !is_ack(packet)).map(Packet::psn).collect::<Vec<u32>>()
    };
    let sent = psns(Vertex::Host(7));
    let back = sent.windows(2).position(|pair| pair[1] != pair[0] + 1).unwrap();
    let last = sent[back];
    assert!(sent[..=back].iter().copied().eq(5_000..=last), "in order up to the NAK");
    assert_eq!(sent[back + 1..][..3], [7_200, 7_201, 7_202], "go-back-N");

    let arrived = psns(LEAF[1]);
    assert_eq!(arrived[2_199..][..3], [7_199, 7_201, 7_202], "a gap");
    assert_eq!(arrived.iter().filter(|psn| **psn == 7_200).count(), 1);

    let answers = listener.packets.iter().filter(|packet| packet.from == LEAF[0] && packet.to() == 42);
    let naks = answers.filter_map(|packet| match packet.headers.extended {
        Extended::Aeth(Aeth { syndrome, .. }) if is_ack(packet) => Some((packet.psn(), syndrome)),
        _ => None,
    });
    assert_eq!(naks.take(1).collect::<Vec<_>>(), [(7_200, Syndrome::Nak(NakCode::Sequence))]);
}

/// The first packet of each message that was sent with an immediate, by link and queue pair: its length.
fn messages(packets: &[Packet]) -> BTreeMap<(u32, u32), Vec<u32>> {
    let mut messages: BTreeMap<(u32, u32), Vec<u32>> = BTreeMap::new();
    for packet in packets.iter().filter(|packet| matches!(packet.from, Vertex::Host(_))) {
        let length = match (packet.headers.bth.opcode, packet.headers.extended) {
            (Opcode::RcWriteFirst, Extended::Reth(reth))
            | (Opcode::RcWriteOnlyImmediate, Extended::RethImmediate(reth, _)) => reth.length,
            _ => continue,
        };
        messages.entry((packet.link, packet.to())).or_default().push(length);
    }
    messages
}

/// The links of all NICs of a server.
fn nics_of(server: u32) -> Vec<(Vertex, Vertex)> {
    (8 * server..8 * (server + 1)).map(|host| (Vertex::Host(host), LEAF[server as usize])).collect()
}

#[test]
fn after_31_and_31_steps_every_gpu_has_the_sum() {
    let text = STORY.replace("768MiB", "512KiB").replace("\"24MiB\"", "\"16KiB\"");
    let mut listener = Listener::new(&text, &nics_of(0));
    while !listener.advance(Span::from_ms(1)) {}
    let messages = messages(&listener.packets);
    // Only the last GPU of a server sends to the next one, on one connection.
    assert_eq!(messages.into_values().collect::<Vec<_>>(), [vec![16 << 10; 31 + 31]]);
    let (outcome, _) = listener.run.finish().unwrap();
    let [result] = &outcome.collectives[..] else { panic!() };
    assert_eq!((result.ranks, result.channels, result.wrong), (32, 1, 0));
    assert_eq!(outcome.resent, 0);
}

/// The same call as NCCL makes it: rings that stay on their rails, 16 channels, slots of 512 KiB.
#[test]
fn nccl_sends_the_same_bytes_in_smaller_messages_on_all_rails() {
    let mut text: String = STORY[..STORY.find("order ").unwrap()].to_owned();
    text.push_str("placement = \"in\"\n");
    let mut listener = Listener::new(&text, &nics_of(0));
    listener.advance(Span::from_us(400));
    let messages = messages(&listener.packets);
    // Of each step a channel has 1.5 MiB, which go in two slices: 62 × 16 × 2 messages instead of 62 are as many bytes.
    assert!(messages.values().flatten().all(|length| *length == 768 << 10), "{messages:?}");
    assert_eq!(62 * 16 * 2 * (768_u64 << 10), 62 * (24_u64 << 20));
    let links: BTreeSet<u32> = messages.keys().map(|(link, _)| *link).collect();
    assert_eq!((links.len(), messages.len()), (8, 16));
}

/// The lesson shows what is said.
#[test]
fn a_job_with_a_mistake_ends_with_what_the_lesson_shows() {
    const LESSON: &str = include_str!("../../../docs/lessons/02-life-of-a-job.md");
    let small = STORY.replace("768MiB", "512KiB").replace("\"24MiB\"", "\"16KiB\"");
    for (story, differs) in [(STORY, "size = \"384MiB\""), (&small, "absent = true")] {
        let text = format!("{story}\n[[collective.differs]]\nrank = 5\n{differs}\n");
        let error = railnet_sim::run(&Scenario::parse(&text).unwrap(), NoSink).unwrap_err().to_string();
        assert!(LESSON.contains(&format!("```text\n{error}\n```")), "{error}");
    }
}
