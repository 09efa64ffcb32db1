//! Words that the network writes: whoever watches them hears of it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::common::{World, WorldOptions};
use railnet_core::event::NoSink;
use railnet_core::{Rate, Span, Time};
use railnet_fabric::{Application, Chance, Fault, Network, SwitchConfig};
use railnet_nic::frame::WireForm;
use railnet_nic::memory::SpaceId;
use railnet_nic::{Access, Completion, Operation, ReceiveRequest, Remote, SendRequest, Sge, Status};
use railnet_topology::fabric::{FabricKind, LinkSpec, SingleSwitch};

const WORDS: u64 = 4_000;
const BASE: u64 = 0x7000_0000;

/// What it heard, in order: a word and its value, or completed work.
#[derive(Default)]
struct Heard {
    space: SpaceId,
    words: Vec<(u64, u64)>,
    works: Vec<(u64, usize)>,
}

impl Application<NoSink> for Heard {
    fn completed(&mut self, _network: &mut Network<NoSink>, _host: u32, completion: &Completion) {
        assert_eq!(completion.status, Status::Success);
        self.works.push((completion.work, self.words.len()));
    }

    fn called(&mut self, _network: &mut Network<NoSink>, _token: u32) {}

    fn touched(&mut self, network: &mut Network<NoSink>, token: u64) {
        let word = &network.memory.bytes(self.space)[token as usize * 8..][..8];
        self.words.push((token, u64::from_le_bytes(word.try_into().unwrap())));
    }
}

/// A ghost buffer goes over, and with each part of it a word of control memory that lies beside it.
fn exchange(form: WireForm, loss: u32) -> (Heard, Time) {
    let links = LinkSpec::new(Rate::gbps(100), Span::from_us(1));
    let graph = FabricKind::SingleSwitch(SingleSwitch { hosts: 2 }).build(&links).unwrap();
    let mut world = World::watched(&graph, WorldOptions::new(SwitchConfig::default()), NoSink);
    world.network.set_wire(form);
    world.network.fault_at(Time::ZERO, Fault::Loss { link: 0, chance: Chance::parts_per_million(loss) });
    let spaces = [0, 1].map(|_| world.network.memory.add_bytes(BASE, vec![0; WORDS as usize * 8]));
    let keys = [0, 1].map(|host| world.register(host, spaces[host as usize], BASE, WORDS * 8, Access::ALL));
    for word in 0..WORDS {
        world.network.memory.watch(spaces[1], BASE + word * 8..BASE + word * 8 + 8, word);
    }
    let (near, far) = world.connect(0, 1);
    for work in 0..50_u64 {
        let word = work * 977 % WORDS;
        world.network.memory.bytes_mut(spaces[0])[word as usize * 8..][..8]
            .copy_from_slice(&(work + 1).to_le_bytes());
        let control = Sge { address: BASE + word * 8, length: 8, key: keys[0] };
        let there = Remote { address: BASE + word * 8, key: keys[1] };
        let control = SendRequest::new(work, Operation::Write(there)).with(control).unsignaled();
        let data = SendRequest::new(work, Operation::WriteImmediate(world.remote(1, 0), 7));
        let data = data.with(world.sge(0, 0, 10_000)).unsignaled();
        let (nic, mut cx) = world.network.nic(1);
        nic.post_recv(&mut cx, far, ReceiveRequest::new(work)).unwrap();
        let (nic, mut cx) = world.network.nic(0);
        nic.post_send(&mut cx, near, control).unwrap();
        nic.post_send(&mut cx, near, data).unwrap();
    }
    world.network.kick(0);
    let mut heard = Heard { space: spaces[1], ..Heard::default() };
    assert!(world.network.run(&mut heard, Time::ZERO + Span::from_secs(1)));
    let end = world.network.now;
    for (host, key) in keys.into_iter().enumerate() {
        world.network.nic(host as u32).0.dereg_mr(key).unwrap();
        world.network.memory.remove(spaces[host]);
    }
    (heard, end)
}

#[test]
fn a_watched_word_is_told_once_for_each_write_and_ghost_payload_never() {
    for loss in [0, 20_000] {
        let (heard, end) = exchange(WireForm::Values, loss);
        let words: Vec<_> = (0..50).map(|work| (work * 977 % WORDS, work + 1)).collect();
        assert_eq!(heard.words, words, "in order, each with the value that was written");
        // The message behind a word completes after it was told, and before the next.
        let works: Vec<_> = (0..50).map(|work| (work, work as usize + 1)).collect();
        assert_eq!(heard.works, works);
        let (as_bytes, same) = exchange(WireForm::Bytes, loss);
        assert_eq!((as_bytes.words, as_bytes.works, same), (heard.words, heard.works, end));
    }
}
