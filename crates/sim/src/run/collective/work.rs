//! From what a machine asks for to what takes time: memory that is touched, links that carry, messages that are posted.

use railnet_coll::machine::{
    ConnectionId, Expect, Filled, Layout, Place, Work, expected_output, wrong_bytes,
};
use railnet_coll::{Buffer, Call, Overlap};
use railnet_core::event::Sink;
use railnet_core::{Bytes, GhostRun, GhostTag, Rank, Rate, Span};
use railnet_fabric::{BusHop, BusPath, BusResource, Network};
use railnet_nic::Completion;
use railnet_nic::memory::{Memory as _, SpaceId};

use super::carrier::{BusPaths, Carrier, TOUCHES};
use super::pending::Pending;
use super::put::PUT;
use super::threads::{Limit, Pace};
use super::{Block, Collectives, End, HostResources, Member};
use crate::run::server_ranks::GpuBus;

/// Where the buffers of every rank begin.
const BUFFERS: u64 = 1 << 40;
/// How much memory a buffer of a rank has. It is ghost memory: only what is used takes any.
pub(super) const BUFFER_LENGTH: u64 = 1 << 44;
/// The most that one run of ghost memory can say.
const RUN_MAX: u64 = 1 << 30;

/// Threads that a piece of work passes.
#[derive(Clone, Copy, Debug)]
struct Passes {
    pace: Pace,
    /// The channel, where each has its own.
    channel: Option<u16>,
    limit: Option<(BusResource, Rate)>,
}

impl Passes {
    const NOTHING: Self = Self { pace: Pace::FREE, channel: None, limit: None };
}

/// What a piece of work does at its own GPU.
#[derive(Clone, Copy, Debug)]
struct Own {
    passes: Passes,
    bus: GpuBus,
    /// How often memory is touched for each byte.
    touches: u32,
}

impl Own {
    fn hops(self) -> impl Iterator<Item = BusHop> {
        let threads = self.passes.limit.map(|(resource, rate)| BusHop::moves(resource, rate, Span::ZERO));
        let compute = BusHop::computes(self.bus.memory, self.bus.bandwidth, self.touches);
        threads.into_iter().chain((self.touches > 0).then_some(compute))
    }
}

/// Where a buffer of a rank is, in place or not.
fn buffer(spaces: &[SpaceId; 3], call: &Call, rank: Rank, ranks: u32, which: Buffer) -> (SpaceId, u64) {
    let size = call.dtype.size() as u64;
    match (which, call.overlap(rank, ranks)) {
        (Buffer::Scratch, _) => (spaces[2], BUFFERS),
        (Buffer::Input, Some(Overlap::InputInOutput(start))) => (spaces[1], BUFFERS + start * size),
        (Buffer::Output, Some(Overlap::OutputInInput(start))) => (spaces[0], BUFFERS + start * size),
        (Buffer::Input, _) => (spaces[0], BUFFERS),
        (Buffer::Output, _) => (spaces[1], BUFFERS),
    }
}

impl Collectives {
    /// Memory for a buffer of a rank.
    pub(super) fn add_buffer<S: Sink>(network: &mut Network<S>) -> SpaceId {
        network.memory.add_ghost(BUFFERS, BUFFER_LENGTH)
    }

    /// Gives a rank its input, and makes sure that nothing is left in its output.
    pub(super) fn fill_buffers<S: Sink>(&mut self, network: &mut Network<S>, member: u32, call: &Call) {
        let state = &self.members[member as usize];
        let (rank, ranks) = (state.machine.rank(), state.machine.ranks());
        let word = self.word(member, state.done);
        let counts = [
            (Buffer::Output, call.output_count(rank, ranks), GhostTag::BLANK),
            (Buffer::Input, call.input_count(rank, ranks), GhostTag { sum: word, origin: 0 }),
        ];
        for (which, count, tag) in counts {
            let (space, address) = buffer(&state.buffers, call, rank, ranks, which);
            let length = call.dtype.bytes(count).as_u64();
            let mut offset = 0;
            while offset < length {
                let part = (length - offset).min(RUN_MAX);
                let run = GhostRun { tag: tag.advanced(offset), length: part as u32 };
                network.memory.write_ghost(space, address + offset, run);
                offset += part;
            }
        }
    }

    /// Bytes of a rank's output that do not cause what they should.
    pub(super) fn wrong_bytes<S: Sink>(&mut self, network: &Network<S>, member: u32, call: &Call) -> u64 {
        let state = &self.members[member as usize];
        let (rank, ranks) = (state.machine.rank(), state.machine.ranks());
        let expected = expected_output(call, rank, ranks);
        if expected.is_empty() {
            return 0;
        }
        let (space, address) = buffer(&state.buffers, call, rank, ranks, Buffer::Output);
        let ghost = network.memory.ghost(space).expect("buffers are ghosts");
        wrong_bytes(&expected, call.dtype, self.words(member), ghost, address - BUFFERS)
    }

    /// Does a piece of work: it takes as long as memory and links do.
    pub(super) fn begin_work<S: Sink>(&mut self, network: &mut Network<S>, member: u32, work: Work) {
        let schedule = self.schedule(member);
        let data = schedule.call.dtype.bytes(work.count).as_u64();
        let bytes = Bytes(schedule.protocol.on_the_way(data));
        let (id, worker) = (work.id, work.id.worker() as usize);
        let paths = self.paths_of(network, member, &work);
        let works = &mut self.members[member as usize].works;
        if works.len() <= worker {
            works.resize(worker + 1, None);
        }
        works[worker] = Some(work);
        if paths.is_empty() {
            self.complete(network, member, worker as u32);
            return;
        }
        let token = self.pending.add(Pending::Work { member, work: id, parts: paths.len() as u32 });
        for path in paths {
            network.carry(path, bytes, 1, token);
        }
    }

    /// The paths that a piece of work takes: over the threads and the memory of its GPU, and from there to each GPU that it
    /// writes to.
    fn paths_of<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        member: u32,
        work: &Work,
    ) -> smallvec::SmallVec<[BusPath; 2]> {
        let mut paths = smallvec::SmallVec::new();
        let Some(gpu) = &self.members[member as usize].gpu else { return paths };
        let bus = gpu.bus;
        let mut touches = work.sources.len();
        let mut far = smallvec::SmallVec::<[End; 2]>::new();
        for place in &work.targets {
            let end = match place {
                Place::Slot(connection, _) => self.members[member as usize].ends[connection.0 as usize],
                Place::Buffer(..) => {
                    touches += 1;
                    continue;
                }
            };
            match end {
                End::Sender(pair) if matches!(self.pairs[pair as usize].carrier, Carrier::Local(_)) => {
                    far.push(end);
                }
                End::Contributor(..) => far.push(end),
                _ => touches += 1,
            }
        }
        let passes = self.threads(network, member, work);
        let mut own = Own { passes, bus, touches: touches.min(TOUCHES - 1) as u32 };
        for end in far {
            // The first one is fused with the work on memory: bytes leave as they are made.
            paths.push(self.path_to(network, end, own));
            own = Own { passes: Passes::NOTHING, touches: 0, ..own };
        }
        if paths.is_empty() {
            let Member { gpu, blocks, .. } = &mut self.members[member as usize];
            let known = match own.passes.channel {
                Some(channel) => blocks[channel as usize].as_mut().map(|block| &mut block.paths),
                None => gpu.as_mut().map(|gpu| &mut gpu.paths),
            };
            let known = known.expect("what was just looked at is there");
            paths.push(known.get(passes.pace, own.touches, || network.add_bus_path(own.hops().collect())));
        }
        paths
    }

    /// The threads that a piece of work passes on its way out, where there is a limit to what they send.
    fn threads<S: Sink>(&mut self, network: &mut Network<S>, member: u32, work: &Work) -> Passes {
        // Slots come last.
        let Some(Place::Slot(connection, _)) = work.targets.last() else { return Passes::NOTHING };
        let pace = Pace::of(self.schedule(member));
        let Member { communicator, machine, gpu: Some(gpu), blocks, .. } = &mut self.members[member as usize]
        else {
            return Passes::NOTHING;
        };
        match self.communicators[*communicator as usize].limits.at(pace) {
            Limit::Unlimited => Passes::NOTHING,
            Limit::Gpu(rate) => Passes { pace, channel: None, limit: Some((gpu.bus.lines, rate)) },
            Limit::Block(rate) => {
                let channel = machine.connection(*connection).0.channel;
                if blocks.len() <= usize::from(channel) {
                    blocks.resize_with(usize::from(channel) + 1, || None);
                }
                let block = blocks[usize::from(channel)].get_or_insert_with(|| Block {
                    resource: network.add_bus_resource(gpu.bus.host),
                    paths: BusPaths::default(),
                });
                Passes { pace, channel: Some(channel), limit: Some((block.resource, rate)) }
            }
        }
    }

    /// The way to another GPU or to the switch, after what the GPU itself does.
    fn path_to<S: Sink>(&mut self, network: &mut Network<S>, end: End, own: Own) -> BusPath {
        let (paths, hops) = match end {
            End::Sender(pair) => match &mut self.pairs[pair as usize].carrier {
                Carrier::Local(local) => (&mut local.paths, &local.hops),
                Carrier::Net(_) => unreachable!("NICs are not written to"),
            },
            End::Contributor(group, place) => self.groups[group as usize].up(place),
            _ => unreachable!("other ends are not written to over NVLink"),
        };
        paths.get(own.passes.pace, own.touches, || {
            network.add_bus_path(own.hops().chain(hops.iter().copied()).collect())
        })
    }

    /// A piece of work is done: memory holds what came of it.
    pub(super) fn complete<S: Sink>(&mut self, network: &mut Network<S>, member: u32, worker: u32) {
        let schedule = std::sync::Arc::clone(self.schedule(member));
        let stride = Layout { protocol: schedule.protocol, fifo: schedule.fifo }.stride();
        let Member { works, slots, buffers, machine, .. } = &mut self.members[member as usize];
        let Some(work) = works.get_mut(worker as usize).and_then(Option::take) else { return };
        let (rank, ranks) = (machine.rank(), machine.ranks());
        let size = schedule.call.dtype.size() as u64;
        let locate = |place: Place| match place {
            Place::Buffer(which, element) => {
                let (space, address) = buffer(buffers, &schedule.call, rank, ranks, which);
                (space, address + element * size)
            }
            Place::Slot(ConnectionId(connection), slot) => {
                let (space, first) = slots[connection as usize];
                (space, first + stride * u64::from(slot))
            }
        };
        let applied = self.applier.apply(&mut network.memory, &work, &schedule.call, ranks, locate);
        applied.expect("all places are ghost memory that was made large enough");
        self.members[member as usize].machine.finished(network.now, work.id);
    }

    /// A slot is filled.
    pub(super) fn filled<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        resources: &mut HostResources<'_>,
        member: u32,
        filled: Filled,
    ) {
        let state = &self.members[member as usize];
        let timing = &self.communicators[state.communicator as usize].timing;
        match state.ends[filled.connection.0 as usize] {
            End::Sender(pair) => match &self.pairs[pair as usize].carrier {
                Carrier::Local(local) => {
                    let after = timing.local(self.schedule(member), local.hop) + local.extra;
                    let (receiver, _) = self.pairs[pair as usize].receiver;
                    self.later(network, after, receiver, Pending::See { pair, mark: filled.mark });
                }
                Carrier::Net(_) => {
                    let after = timing.post();
                    if after.as_ps() == 0 {
                        self.set_out(network, resources, member, filled);
                    } else {
                        self.later(network, after, member, Pending::Notice { member, filled });
                    }
                }
            },
            End::Giver(..) => {
                let after = timing.post();
                self.later(network, after, member, Pending::Notice { member, filled });
            }
            End::Contributor(group, place) => self.contribute(network, group, place, &filled),
            End::Receiver(_) | End::Beneficiary(..) | End::Taker(..) => {
                unreachable!("slots are filled where they are sent from")
            }
        }
    }

    /// A slot that is to go over the network sets out for the NIC.
    pub(super) fn set_out<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        resources: &mut HostResources<'_>,
        member: u32,
        filled: Filled,
    ) {
        let end = self.members[member as usize].ends[filled.connection.0 as usize];
        let out = match (end, self.carrier(end)) {
            (End::Giver(group, head), _) => {
                let paths = self.sharp_out((group, head));
                paths.get(filled.connection.0 as usize % paths.len().max(1)).copied()
            }
            (_, Some(Carrier::Net(net))) => net.out,
            _ => return,
        };
        let Some(path) = out else {
            self.send(network, resources, member, filled);
            return;
        };
        let packets = filled.bytes.as_u64().div_ceil(self.settings.mtu_bytes).max(1) as u32;
        let token = self.pending.add(Pending::Out { member, filled });
        network.carry(path, filled.bytes, packets, token);
    }

    /// A slot is emptied.
    pub(super) fn emptied<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        member: u32,
        connection: ConnectionId,
    ) {
        let state = &self.members[member as usize];
        let timing = &self.communicators[state.communicator as usize].timing;
        match state.ends[connection.0 as usize] {
            End::Receiver(pair) => match &mut self.pairs[pair as usize].carrier {
                Carrier::Local(local) => {
                    let after = timing.credit(local.hop) + local.extra;
                    let (from, connection) = self.pairs[pair as usize].sender;
                    let connection = connection.expect("what is emptied was filled");
                    self.later(network, after, from, Pending::Free { member: from, connection });
                }
                Carrier::Net(net) => {
                    let port = net.ports[1];
                    let (nic, mut cx) = network.nic(port);
                    let result = net.receiver.emptied(nic, &mut cx);
                    network.kick(port);
                    self.note(member, connection, result);
                }
            },
            End::Beneficiary(group, place) => self.taken(network, group, place),
            End::Taker(group, head) => self.sharp_taken(network, (group, head)),
            End::Sender(_) | End::Contributor(..) | End::Giver(..) => {
                unreachable!("slots are emptied where they were received")
            }
        }
    }

    /// An operation will receive something.
    pub(super) fn expect<S: Sink>(&mut self, network: &mut Network<S>, member: u32, expect: Expect) {
        let end = self.members[member as usize].ends[expect.connection.0 as usize];
        if let End::Taker(group, head) = end {
            self.sharp_expect(network, (group, head), expect.slices);
        }
        let End::Receiver(pair) = end else { return };
        if let Carrier::Net(net) = &mut self.pairs[pair as usize].carrier {
            let port = net.ports[1];
            let (nic, mut cx) = network.nic(port);
            let result = net.receiver.expect(nic, &mut cx, expect);
            network.kick(port);
            self.note(member, expect.connection, result);
        }
    }

    /// A connection does not work.
    pub(super) fn note(
        &mut self,
        member: u32,
        connection: ConnectionId,
        result: Result<(), railnet_coll::conduit::net::NetError>,
    ) {
        if let Err(error) = result {
            self.members[member as usize].machine.broken(connection, error.to_string());
        }
    }

    /// A NIC has something to say about a message.
    pub(in crate::run) fn completed<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        resources: &mut HostResources<'_>,
        completion: &Completion,
    ) {
        let token = (completion.work >> 32) as u32 - 1;
        if token & PUT != 0 {
            return self.put_completed(network, completion);
        }
        let (pair, is_sender) = (self.net_pairs[token as usize / 2], token.is_multiple_of(2));
        let Carrier::Net(net) = &mut self.pairs[pair as usize].carrier else { return };
        let result =
            if is_sender { net.sender.completed(completion) } else { net.receiver.completed(completion) };
        let pair = &self.pairs[pair as usize];
        let (member, connection) = if is_sender { pair.sender } else { pair.receiver };
        let connection = connection.expect("what completes was begun");
        let slices = match result {
            Ok(slices) => slices,
            Err(error) => {
                self.note(member, connection, Err(error));
                self.pump(network, resources, member);
                return;
            }
        };
        for _ in 0..slices {
            if is_sender {
                self.members[member as usize].machine.freed(network.now, connection);
                self.pump(network, resources, member);
            } else {
                self.come_in(
                    network,
                    member,
                    connection,
                    Bytes(u64::from(completion.immediate.unwrap_or(0))),
                );
            }
        }
    }

    /// A slice has come from the network: it is on its way to memory.
    fn come_in<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        member: u32,
        connection: ConnectionId,
        bytes: Bytes,
    ) {
        let end = self.members[member as usize].ends[connection.0 as usize];
        let Some(Carrier::Net(net)) = self.carrier(end) else { return };
        let into = Pending::Into { member, connection };
        match net.into {
            Some(path) => {
                let packets = bytes.as_u64().div_ceil(self.settings.mtu_bytes).max(1) as u32;
                let token = self.pending.add(into);
                network.carry(path, bytes, packets, token);
            }
            None => self.delivered(network, member, connection),
        }
    }

    /// A slice from the network is in memory; soon its receiver will see it.
    pub(super) fn delivered<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        member: u32,
        connection: ConnectionId,
    ) {
        let communicator = self.members[member as usize].communicator;
        let after = self.communicators[communicator as usize].timing.deliver(self.schedule(member));
        self.later(network, after, member, Pending::Arrive { member, connection });
    }
}
