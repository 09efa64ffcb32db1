//! NVLink switches that reduce and multicast: contributions go up to the switch, results come down from it.

use std::collections::VecDeque;

use railnet_coll::machine::{ConnectionId, Filled, Mark, OperationId, Place, Tag, Work, WorkId};
use railnet_core::event::Sink;
use railnet_fabric::{BusHop, Network};
use railnet_nic::memory::SpaceId;

use super::Collectives;
use super::carrier::{BusPaths, SLOTS};
use super::pending::Pending;
use super::threads::Pace;
use super::timing::Hop;

/// The ranks around a switch.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) senders: Vec<Spoke>,
    pub(super) receivers: Vec<Spoke>,
    /// Slices that some sender has filled and not all receivers have taken, the oldest first.
    slices: VecDeque<Slice>,
    /// The number of the oldest.
    first: u64,
}

/// One rank of a group.
#[derive(Debug)]
pub(super) struct Spoke {
    pub(super) member: u32,
    pub(super) connection: Option<ConnectionId>,
    /// Its slots.
    pub(super) slots: SpaceId,
    /// Between its GPU and the switch.
    pub(super) hops: Vec<BusHop>,
    /// The paths over them.
    pub(super) paths: BusPaths,
    /// Slices that it has filled or taken.
    count: u64,
    /// What came before it had made its call.
    pub(super) early: Vec<Mark>,
}

impl Spoke {
    pub(super) fn new(member: u32, slots: SpaceId, hops: Vec<BusHop>) -> Self {
        Self {
            member,
            connection: None,
            slots,
            hops,
            paths: BusPaths::default(),
            count: 0,
            early: Vec::new(),
        }
    }
}

/// A slice that goes through the switch.
#[derive(Debug, Default)]
struct Slice {
    filled: u32,
    taken: u32,
}

impl Group {
    pub(super) fn new(senders: Vec<Spoke>, receivers: Vec<Spoke>) -> Self {
        Self { senders, receivers, slices: VecDeque::new(), first: 0 }
    }

    fn spokes(&self, is_sender: bool) -> &[Spoke] {
        if is_sender { &self.senders } else { &self.receivers }
    }

    /// The paths of a sender up to the switch, and the hops on them.
    pub(super) fn up(&mut self, place: u32) -> (&mut BusPaths, &Vec<BusHop>) {
        let spoke = &mut self.senders[place as usize];
        (&mut spoke.paths, &spoke.hops)
    }

    /// A rank has joined. Gives its place among the senders or receivers, and what the senders said before.
    pub(super) fn join(
        &mut self,
        is_sender: bool,
        member: u32,
        connection: ConnectionId,
    ) -> (u32, Vec<Mark>) {
        let spokes = if is_sender { &mut self.senders } else { &mut self.receivers };
        let place = spokes.iter().position(|spoke| spoke.member == member);
        let place = place.expect("only its ranks use a group");
        let spoke = &mut spokes[place];
        spoke.connection = Some(connection);
        (place as u32, std::mem::take(&mut spoke.early))
    }
}

impl Collectives {
    /// A rank's slice is at the switch. With the last one, the result goes to all receivers.
    pub(super) fn contribute<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        index: u32,
        sender: u32,
        filled: &Filled,
    ) {
        let group = &mut self.groups[index as usize];
        let spoke = &mut group.senders[sender as usize];
        let member = spoke.member;
        let place = (spoke.count - group.first) as usize;
        spoke.count += 1;
        while group.slices.len() <= place {
            group.slices.push_back(Slice::default());
        }
        let slice = &mut group.slices[place];
        slice.filled += 1;
        if (slice.filled as usize) < group.senders.len() {
            return;
        }
        self.reduce(network, index, member, filled);
        let group = &mut self.groups[index as usize];
        for (receiver, spoke) in group.receivers.iter_mut().enumerate() {
            let see = Pending::SeeResult { group: index, receiver: receiver as u32, mark: filled.mark };
            let token = self.pending.add(see);
            if spoke.hops.is_empty() {
                network.call_on(self.members[spoke.member as usize].host, network.now, token);
            } else {
                let path = spoke.paths.get(Pace::FREE, 0, || network.add_bus_path(spoke.hops.clone()));
                network.carry(path, filled.bytes, 1, token);
            }
        }
    }

    /// Puts the contributions to a slice together, in the slots of all receivers.
    fn reduce<S: Sink>(&mut self, network: &mut Network<S>, index: u32, member: u32, filled: &Filled) {
        let schedule = std::sync::Arc::clone(self.schedule(member));
        let layout = filled.layout;
        let element = schedule.call.dtype.size() as u64;
        let group = &self.groups[index as usize];
        if filled.data.as_u64() == 0 {
            return;
        }
        // Senders count up from 0, receivers after them.
        let senders = group.senders.len() as u32;
        let place = |number: u32| Place::Slot(ConnectionId(number), filled.slot);
        let work = Work {
            id: WorkId(0),
            operation: OperationId(filled.tag.sequence),
            count: filled.data.as_u64() / element,
            sources: (0..senders).map(place).collect(),
            targets: (0..group.receivers.len() as u32).map(|number| place(senders + number)).collect(),
            is_final: false,
            slice: 0,
            layout,
            tag: Tag { ..filled.tag },
        };
        let locate = |place: Place| match place {
            Place::Slot(ConnectionId(number), slot) => {
                let (is_sender, number) =
                    if number < senders { (true, number) } else { (false, number - senders) };
                let spoke = &group.spokes(is_sender)[number as usize];
                (spoke.slots, SLOTS + layout.stride() * u64::from(slot))
            }
            Place::Buffer(..) => unreachable!("a switch has no buffers"),
        };
        let applied = self.applier.apply(&mut network.memory, &work, &schedule.call, schedule.ranks, locate);
        applied.expect("slots are ghost memory that was made large enough");
    }

    /// A receiver has taken a slice. With the last one, the senders may use its slots again.
    pub(super) fn taken<S: Sink>(&mut self, network: &mut Network<S>, index: u32, receiver: u32) {
        let group = &mut self.groups[index as usize];
        let spoke = &mut group.receivers[receiver as usize];
        let (place, member) = ((spoke.count - group.first) as usize, spoke.member);
        spoke.count += 1;
        let slice = &mut group.slices[place];
        slice.taken += 1;
        if (slice.taken as usize) < group.receivers.len() {
            return;
        }
        // Receivers take slices in order, so the oldest is the first to have been taken by all.
        group.slices.pop_front();
        group.first += 1;
        let communicator = self.members[member as usize].communicator;
        let after = self.communicators[communicator as usize].timing.credit(Hop::NvLink);
        for spoke in &group.senders {
            let connection = spoke.connection.expect("all ranks make the same call");
            let token = self.pending.add(Pending::Free { member: spoke.member, connection });
            network.call_on(self.members[spoke.member as usize].host, network.now + after, token);
        }
    }
}
