//! Prefetching a queue pair: the cache lines that handling a packet, or sending one, needs of it.

use railnet_core::prefetch::prefetch;

use super::{QueuePair, Responder};
use crate::device::Device;
use crate::pool::Handle;

impl QueuePair {
    /// For sending a request or handling a response to one, with the work request it is for.
    #[inline]
    pub(crate) fn prefetch_requester(&self, device: &Device, work: Handle) {
        prefetch(&self.number);
        prefetch(&self.route.network.source);
        prefetch(&self.route.priority);
        prefetch(&self.send_after);
        prefetch(&self.requester.unacked);
        prefetch(&self.control);
        self.deadlines.prefetch();
        device.sends.prefetch(work);
    }

    /// For handling a request of the peer. Its last packet may take a receive.
    #[inline]
    pub(crate) fn prefetch_responder(&self, device: &Device, is_last: bool) {
        let Responder { receives, expected, message, .. } = &self.responder;
        prefetch(receives);
        prefetch(expected);
        prefetch(message);
        prefetch(&self.number);
        prefetch(&self.echo);
        prefetch(&self.shared);
        prefetch(&self.route.network.source);
        prefetch(&self.route.priority);
        if is_last {
            device.receives.prefetch(receives.front());
        }
    }

    /// For handling a congestion notification.
    #[inline]
    pub(crate) fn prefetch_congestion_control(&self) {
        prefetch(&self.number);
        prefetch(&self.route.network.source);
        prefetch(&self.route.priority);
        prefetch(&self.send_after);
        prefetch(&self.control);
        self.deadlines.prefetch();
    }
}
