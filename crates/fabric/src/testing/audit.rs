//! Consistency checks of a network's state.

use railnet_core::event::Sink;
use railnet_topology::Vertex;

use crate::model::buffer::IngressUsage;
use crate::model::config::FlowControl;
use crate::model::fabric::Fabric;
use crate::model::fabric::credit;
use crate::model::topology::Topology;
use crate::network::Network;

impl Fabric {
    fn audit_shared(&self, switch: u32) -> Result<(), String> {
        let state = &self.switches[switch as usize];
        let into = self.channels.iter().zip(&self.usage);
        let into = into.filter(|(channel, _)| channel.to == Vertex::Switch(switch));
        let over =
            into.flat_map(|(_, usage)| usage.shared).map(|bytes| bytes.saturating_sub(state.buffer.reserve));
        let over: u64 = over.map(u64::from).sum();
        if over != state.buffer.used {
            let counted = state.buffer.used;
            return Err(format!("switch {switch}: {over} B above the reserves, {counted} B counted"));
        }
        Ok(())
    }

    /// Packets and bytes queued in a switch.
    pub(crate) fn queued_in(&self, switch: u32) -> (u64, u64) {
        let ports = self.switches[switch as usize].ports.iter();
        let queues = ports.flat_map(|port| self.channels[*port as usize].queues.iter());
        queues.fold((0, 0), |(packets, bytes), queue| {
            (packets + queue.iter(&self.pool).count() as u64, bytes + queue.bytes)
        })
    }
}

impl<S: Sink> Network<S> {
    /// What of the present state is inconsistent.
    ///
    /// Queues hold the bytes of their packets, a buffer what came in and has not left, its shared part what exceeds the
    /// reserves; no sender has more credit than there is.
    pub fn audit(&self) -> Result<(), String> {
        self.fabric.audit(&self.topology)
    }

    /// Like [`Network::audit`], for a network with nothing under way: buffers are empty, no sender is paused, credit is
    /// complete.
    pub fn audit_at_rest(&self) -> Result<(), String> {
        self.fabric.audit_at_rest(&self.topology)
    }
}

impl Fabric {
    fn audit(&self, topology: &Topology) -> Result<(), String> {
        let mut usage = vec![[0_u64; 8]; self.channels.len()];
        let mut packets = 0;
        for egress in 0..self.channels.len() {
            packets += self.audit_queues(egress, &mut usage)?;
        }
        if packets > self.packets.in_use() {
            return Err(format!("{packets} packets wait, {} are under way", self.packets.in_use()));
        }
        for (ingress, usage) in usage.iter().enumerate() {
            self.audit_memory(topology, ingress, usage)?;
        }
        for switch in 0..self.switches.len() as u32 {
            self.audit_shared(switch)?;
        }
        Ok(())
    }

    fn audit_at_rest(&self, topology: &Topology) -> Result<(), String> {
        self.audit(topology)?;
        let in_use = self.packets.in_use();
        if in_use > 0 {
            return Err(format!("{in_use} packets are left in the arena"));
        }
        for (index, channel) in self.channels.iter().enumerate() {
            let name = format!("{:?} to {:?}", channel.from, channel.to);
            if channel.paused != 0 || channel.xoff != 0 {
                let (paused, xoff) = (channel.paused, channel.xoff);
                return Err(format!("{name}: paused {paused:#010b}, XOFF {xoff:#010b}"));
            }
            if self.usage[index] != IngressUsage::default() {
                let IngressUsage { shared, headroom } = self.usage[index];
                return Err(format!(
                    "{name}: memory not given back, shared {shared:?}, headroom {headroom:?}"
                ));
            }
            let whole = Self::whole_credit(topology, index);
            if self.config.flow_control == FlowControl::Credits && channel.credits != [whole; 8] {
                return Err(format!("{name}: credit {:?} instead of {whole}", channel.credits));
            }
        }
        Ok(())
    }

    /// The credit of a sender that has nothing under way.
    fn whole_credit(topology: &Topology, channel: usize) -> u32 {
        let link = &topology.graph.links[channel / 2];
        credit(link.rate, link.delay)
    }

    /// Adds what is queued in front of a channel to the usage of each ingress. Returns the packets.
    fn audit_queues(&self, egress: usize, usage: &mut [[u64; 8]]) -> Result<usize, String> {
        let channel = &self.channels[egress];
        let mut packets = channel.pause_frames.iter(&self.pool).count();
        for (priority, queue) in channel.queues.iter().enumerate() {
            let mut bytes = 0;
            for packet in queue.iter(&self.pool) {
                let metadata = &self.packets.metadata[packet.packet() as usize];
                bytes += u64::from(metadata.bytes);
                packets += 1;
                let ingress = &self.channels[packet.ingress() as usize];
                let is_consistent = (packet.bytes(), packet.priority())
                    == (metadata.bytes.into(), usize::from(metadata.priority));
                if ingress.to != channel.from || packet.priority() != priority || !is_consistent {
                    return Err(format!("channel {egress}, priority {priority}: a packet of another queue"));
                }
                usage[packet.ingress() as usize][packet.ingress_priority()] += u64::from(metadata.bytes);
            }
            let is_occupied = channel.occupied >> priority & 1 != 0;
            if bytes != queue.bytes || is_occupied != (bytes > 0) {
                let counted = queue.bytes;
                return Err(format!(
                    "channel {egress}, priority {priority}: {bytes} B wait, {counted} B are counted, occupied {is_occupied}"
                ));
            }
        }
        Ok(packets)
    }

    fn audit_memory(&self, topology: &Topology, ingress: usize, usage: &[u64; 8]) -> Result<(), String> {
        let channel = &self.channels[ingress];
        for (priority, &bytes) in usage.iter().enumerate() {
            let IngressUsage { shared, headroom } = &self.usage[ingress];
            let (shared, headroom) = (shared[priority], headroom[priority]);
            let place = format!("behind channel {ingress}, priority {priority}");
            if self.config.flow_control == FlowControl::Credits {
                let whole = u64::from(Self::whole_credit(topology, ingress));
                let left = u64::from(channel.credits[priority]);
                if left + bytes > whole {
                    return Err(format!(
                        "{place}: {left} B of credit and {bytes} B held are more than {whole} B"
                    ));
                }
            } else if bytes != u64::from(shared) + u64::from(headroom) {
                return Err(format!(
                    "{place}: {bytes} B are held, counted {shared} B shared and {headroom} B headroom"
                ));
            }
            if headroom > channel.headroom_max {
                return Err(format!("{place}: {headroom} B of headroom, {} B exist", channel.headroom_max));
            }
        }
        if channel.xoff & !self.config.lossless != 0 {
            return Err(format!("channel {ingress} has XOFF for a priority that may lose packets"));
        }
        Ok(())
    }
}
