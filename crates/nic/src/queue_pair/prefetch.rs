//! Prefetching a queue pair: the cache lines that handling a packet, or sending one, needs of it.

use railnet_core::prefetch::prefetch;

use super::{QueuePair, Responder};
use crate::device::Device;
use crate::pool::Handle;

impl QueuePair {
    /// For sending a request or handling a response to one, with the work request it is for.
    #[inline]
    pub(crate) fn prefetch_requester(&self, device: &Device, work: Handle) {
        prefetch(&self.shared.number);
        prefetch(&self.shared.route.network.source);
        prefetch(&self.shared.route.priority);
        prefetch(&self.shared.send_after);
        prefetch(&self.requester.unacked);
        prefetch(&self.shared.control);
        self.shared.deadlines.prefetch();
        device.sends.prefetch(work);
    }

    /// For handling a request of the peer. Its last packet may take a receive.
    #[inline]
    pub(crate) fn prefetch_responder(&self, device: &Device, is_last: bool) {
        let Responder { receives, expected, message, .. } = &self.responder;
        prefetch(receives);
        prefetch(expected);
        prefetch(message);
        prefetch(&self.shared.number);
        prefetch(&self.responder.echo);
        prefetch(&self.shared.receive_source);
        prefetch(&self.shared.route.network.source);
        prefetch(&self.shared.route.priority);
        if is_last {
            device.receives.prefetch(receives.front());
        }
    }

    /// For handling a congestion notification.
    #[inline]
    pub(crate) fn prefetch_congestion_control(&self) {
        prefetch(&self.shared.number);
        prefetch(&self.shared.route.network.source);
        prefetch(&self.shared.route.priority);
        prefetch(&self.shared.send_after);
        prefetch(&self.shared.control);
        self.shared.deadlines.prefetch();
    }
}
