//! Prefetching in a large network, whose packets, ports and queue pairs are more than a cache holds.
//!
//! What an LP will need in its stride is known before the stride begins: the packets that arrive, the ports that transmit,
//! the queue pairs that send. Each is a chain of dependent loads, from the metadata of a packet to its headers to a queue
//! pair. One step of the chain is prefetched for all packets before the next step is, so that their misses overlap. Nothing
//! else comes of it.

use railnet_core::event::Sink;
use railnet_core::prefetch::{prefetch, prefetch_lines};
use railnet_topology::Vertex;

use crate::engine::event::Event;
use crate::engine::run::LARGE;
use crate::engine::scheduler::Scheduler;
use crate::model::fabric::Fabric;
use crate::model::host::Host;
use crate::model::packet::{PacketArena, PacketIndex};
use crate::network::Network;

/// From so many hosts on, the counters and queues of ports are more than a cache holds, too.
const VERY_LARGE: u32 = 256;
/// Ports of a switch whose queues are prefetched at most.
const PORTS_MAX: usize = 64;
/// Packets of a queue whose marks are foreseen: about as many as leave it in a stride.
const MARKED_MAX: usize = 4;
/// Payload bytes of a full packet.
const FULL_PACKET: u32 = 4_096;
/// Fewer arrivals than this are not prefetched.
const ARRIVALS_MIN: usize = 3;

impl Fabric {
    /// Prefetches the transmitters and buffer accounting of ports, and in front of them the first, second and last nodes of
    /// the queue.
    fn prefetch_ports(&self, ports: &[u32]) {
        for egress in ports {
            let channel = &self.channels[*egress as usize];
            channel.prefetch_transmitter();
            prefetch(&self.usage[channel.reverse as usize]);
        }
        let queues = || {
            let channels = ports.iter().map(|egress| &self.channels[*egress as usize]);
            channels.filter_map(|channel| channel.long_queue()).take(PORTS_MAX)
        };
        for queue in queues() {
            queue.prefetch_ends(&self.pool);
        }
        for queue in queues() {
            queue.prefetch_second(&self.pool);
        }
        if self.config.marks {
            self.prefetch_marked(ports);
        }
    }

    /// Prefetches the packets that will be marked: a mark is written to their metadata.
    fn prefetch_marked(&self, ports: &[u32]) {
        for egress in ports {
            let channel = &self.channels[*egress as usize];
            let Some(queue) = channel.long_queue().filter(|queue| queue.bytes > self.marks_above) else {
                continue;
            };
            let mut marks = self.markers[*egress as usize].foresee(queue.bytes);
            let markable = queue.iter(&self.pool).take(MARKED_MAX).filter(|queued| queued.can_be_marked());
            for queued in markable {
                if marks.next() == Some(true) {
                    prefetch(&self.packets.metadata[queued.packet() as usize]);
                    prefetch(&channel.counters.marks);
                }
            }
        }
    }
}

impl<S: Sink> Network<S> {
    /// Prefetches the packets that arrive at a switch in its stride, and its ports.
    pub(crate) fn prefetch_switch(&self, switch: u32) {
        let (Some(epochs), true) = (&self.scheduler.epochs, self.topology.host_count >= LARGE) else {
            return;
        };
        for arrival in epochs.active_arrivals() {
            prefetch(&self.fabric.packets.metadata[arrival.packet as usize]);
        }
        // Ports stay in the cache for the rest of the switch's strides.
        if self.topology.host_count >= VERY_LARGE && epochs.is_first_stride() {
            self.fabric.prefetch_ports(&self.fabric.switches[switch as usize].ports);
        }
    }

    /// Prefetches the packets that arrive at some host groups in the active epochs, and the queue pairs that send next
    /// there.
    pub(crate) fn prefetch_groups(&mut self, some: impl Iterator<Item = u32> + Clone) {
        let (Fabric { packets, channels, .. }, hosts) = (&self.fabric, &self.endpoints.hosts);
        let Scheduler { epochs, coming, .. } = &mut self.scheduler;
        let (Some(epochs), true) = (epochs, self.topology.host_count >= LARGE) else { return };
        coming.clear();
        for group in some.clone() {
            let only_host = epochs.groups().only_host(group);
            for arrival in epochs.arrivals_of(epochs.lp_of_group(group)) {
                let host = only_host.or_else(|| channels[arrival.channel as usize].to.host());
                coming.extend(host.map(|host| (host, arrival.packet)));
            }
            for host in epochs.groups().hosts(group) {
                let host = &hosts[*host as usize];
                host.nic.prefetch_device();
                channels[host.egress as usize].prefetch_transmitter();
            }
            epochs.prefetch_transmit_ready(group);
        }
        for group in some.clone() {
            for host in epochs.groups().hosts(group) {
                hosts[*host as usize].nic.prefetch_sender_slot();
            }
        }
        let span = epochs.active_span().as_ps();
        for group in some {
            for host in epochs.groups().hosts(group) {
                let Host { nic, egress, .. } = &hosts[*host as usize];
                let takes = channels[*egress as usize].serialize(FULL_PACKET).as_ps().max(1);
                nic.prefetch_senders((span / takes) as u32);
            }
        }
        prefetch_arrivals(packets, hosts, coming);
    }

    /// Prefetches the packets that arrive at hosts in the active bucket of the calendar, with the queue pairs that they are
    /// for and those that send next where a port transmits.
    #[inline]
    pub(crate) fn prefetch_bucket(&mut self) {
        if self.topology.host_count >= LARGE {
            self.prefetch_active_bucket();
        }
    }

    fn prefetch_active_bucket(&mut self) {
        let (Fabric { packets, channels, .. }, hosts) = (&self.fabric, &self.endpoints.hosts);
        let Scheduler { calendar, coming, .. } = &mut self.scheduler;
        coming.clear();
        for event in calendar.active_events() {
            match event.event() {
                Event::Arrive { channel, packet } => {
                    if let Vertex::Host(host) = channels[channel as usize].to {
                        coming.push((host, packet));
                    }
                }
                Event::TransmitReady { channel } => {
                    if let Vertex::Host(host) = channels[channel as usize].from {
                        hosts[host as usize].nic.prefetch_senders(1);
                    }
                }
                _ => {}
            }
        }
        if coming.len() >= ARRIVALS_MIN {
            prefetch_arrivals(packets, hosts, coming);
        }
    }
}

/// Prefetches packets that arrive at hosts, and the queue pairs that they are for, step by step for all of them.
fn prefetch_arrivals(packets: &PacketArena, hosts: &[Host], coming: &[(u32, PacketIndex)]) {
    for (_, packet) in coming {
        prefetch(&packets.metadata[*packet as usize]);
        prefetch_lines(packets.headers.slot(*packet));
    }
    for (host, packet) in coming {
        if let Some(transmit) = packets.headers(*packet) {
            hosts[*host as usize].nic.prefetch_slot(&transmit.headers);
        }
    }
    for (host, packet) in coming {
        if let Some(transmit) = packets.headers(*packet) {
            hosts[*host as usize].nic.prefetch_queue_pair(&transmit.headers);
        }
    }
}
