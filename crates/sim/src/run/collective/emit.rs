//! Events of collectives. They are details: without a sink that wants those, the compiler removes all of this.

use railnet_coll::Peer;
use railnet_coll::machine::{ConnectionId, Direction, Filled, OperationId};
use railnet_core::event::{CallId, Event, Sink, SliceWay};
use railnet_fabric::Network;

use super::carrier::Carrier;
use super::{Collectives, End};

impl Collectives {
    /// A member makes a call.
    pub(super) fn emit_call_made<S: Sink>(
        &self,
        network: &mut Network<S>,
        member: u32,
        operation: OperationId,
    ) {
        if S::ENABLED && S::DETAIL {
            let schedule = self.schedule(member);
            let event = Event::CallMade {
                call: self.call_id(member, operation),
                name: schedule.call.collective.name(),
                algorithm: schedule.algorithm.name(),
                protocol: schedule.protocol.name(),
                bytes: schedule.call.bytes(self.members[member as usize].machine.ranks()).as_u64(),
            };
            emit(network, &event);
        }
    }

    /// The call of a member is over.
    pub(super) fn emit_call_over<S: Sink>(
        &self,
        network: &mut Network<S>,
        member: u32,
        operation: OperationId,
    ) {
        if S::ENABLED && S::DETAIL {
            emit(network, &Event::CallOver { call: self.call_id(member, operation) });
        }
    }

    /// A member has filled a slot.
    pub(super) fn emit_slice_sent<S: Sink>(&self, network: &mut Network<S>, member: u32, filled: &Filled) {
        if S::ENABLED && S::DETAIL {
            let end = self.members[member as usize].ends[filled.connection.0 as usize];
            let by_nic = matches!((end, self.carrier(end)), (End::Giver(..), _) | (_, Some(Carrier::Net(_))));
            let event = Event::SliceSent {
                way: self.way(member, filled.connection),
                label: filled.tag.into(),
                bytes: filled.data.as_u64() as u32,
                by_nic,
            };
            emit(network, &event);
        }
    }

    /// A member sees that a slot of its own was filled.
    pub(super) fn emit_slice_arrived<S: Sink>(
        &self,
        network: &mut Network<S>,
        member: u32,
        connection: ConnectionId,
    ) {
        if S::ENABLED && S::DETAIL {
            emit(network, &Event::SliceArrived { way: self.way(member, connection) });
        }
    }

    fn call_id(&self, member: u32, operation: OperationId) -> CallId {
        let state = &self.members[member as usize];
        CallId {
            communicator: state.communicator,
            rank: state.machine.rank().0,
            endpoint: state.endpoint,
            sequence: operation.0,
        }
    }

    fn way(&self, member: u32, connection: ConnectionId) -> SliceWay {
        let state = &self.members[member as usize];
        let (to, direction) = state.machine.connection(connection);
        let own = Some(state.machine.rank().0);
        let other = match to.peer {
            Peer::Rank(rank) => Some(rank),
            Peer::Switch(_) => None,
        };
        let (from, to_rank) = match direction {
            Direction::Send => (own, other),
            Direction::Receive => (other, own),
        };
        let communicator = state.communicator;
        SliceWay { communicator, channel: to.channel, lane: to.lane, from, to: to_rank }
    }
}

/// GPUs have no component of their own, and a rank is not its port: the network as a whole emits the event.
fn emit<S: Sink>(network: &mut Network<S>, event: &Event) {
    let (now, source) = (network.now, network.environment());
    network.sink.record(now, source, event);
}
