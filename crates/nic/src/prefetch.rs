//! Prefetching the state of a NIC, for drivers that know which packets come next.
//!
//! One packet needs state that is found step by step: the queue pair's slot in a table, the queue pair, the entries of its
//! queues. A driver with a batch of packets takes each step for all of them, so that the misses of a step overlap:
//! [`Nic::prefetch_slot`] for all, then [`Nic::prefetch_queue_pair`] for all, then it delivers them. None of these calls
//! changes anything.

use railnet_core::Psn;
use railnet_core::prefetch::prefetch;
use railnet_wire::{Headers, Opcode};

use crate::nic::Nic;
use crate::queue_pair::Requester;

impl Nic {
    /// Prefetches what every packet needs of the NIC itself: its timers, counters and the scheduler of its first port.
    #[inline]
    pub fn prefetch_device(&self) {
        self.device.timers.prefetch();
        prefetch(&self.device.counters.sent);
        if let Some(port) = self.device.ports.first() {
            port.prefetch();
        }
    }

    /// Prefetches the slot of the queue pair that a packet is for.
    #[inline]
    pub fn prefetch_slot(&self, headers: &Headers) {
        let slot = headers.bth.destination.value().wrapping_sub(self.device.config.queue_pairs.start);
        if let Some(slot) = self.queue_pairs.get(slot as usize) {
            prefetch(slot);
        }
    }

    /// Prefetches the state that a packet will need of the queue pair it is for.
    #[inline]
    pub fn prefetch_queue_pair(&self, headers: &Headers) {
        let slot = self.slot_of(headers.bth.destination);
        let Some(queue_pair) = slot.and_then(|slot| self.queue_pairs[slot].as_deref()) else { return };
        match headers.bth.opcode {
            Opcode::Cnp => queue_pair.prefetch_congestion_control(),
            opcode if opcode.is_response() => {
                queue_pair.prefetch_requester(&self.device, queue_pair.requester.queue.front());
            }
            opcode => queue_pair.prefetch_responder(&self.device, opcode.position().is_end()),
        }
    }

    /// Prefetches the slot of the queue pair that sends next.
    #[inline]
    pub fn prefetch_sender_slot(&self) {
        if let Some(slot) = self.device.ports[0].next_data().next() {
            prefetch(&self.queue_pairs[slot as usize]);
        }
    }

    /// Prefetches the queue pairs that will send the next `packets` packets on the first port.
    #[inline]
    pub fn prefetch_senders(&self, packets: u32) {
        let (schedule, limit) = (&self.device.ports[0], u32::from(self.device.config.burst_packets));
        let (mut left, mut burst) = (packets, limit.saturating_sub(schedule.burst.into()));
        for slot in schedule.next_data() {
            let Some(queue_pair) = self.queue_pairs[slot as usize].as_deref() else { continue };
            let Requester { next, sent, cursor, .. } = &queue_pair.requester;
            queue_pair.prefetch_requester(&self.device, *cursor);
            let unsent = next.value().wrapping_sub(sent.value()) & Psn::MASK;
            left = left.saturating_sub(unsent.min(burst));
            if left == 0 {
                break;
            }
            burst = limit;
        }
    }
}
