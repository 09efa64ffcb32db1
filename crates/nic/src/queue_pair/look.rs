//! Looking ahead: a field of every line of the cache that a packet will need of a queue pair. What is found says nothing of use.

use super::responder::Message;
use super::{QueuePair, Responder};
use crate::device::Device;
use crate::pool::Handle;
use crate::work::SendWork;

impl QueuePair {
    /// What sending a request needs, or an answer to one, and the work that it is for.
    #[inline]
    pub(crate) fn look_at_requester(&self, device: &Device, work: Handle) -> u32 {
        let bits = u32::from(self.control.is_none())
            ^ u32::from(self.route.priority)
            ^ u32::from(self.route.network.source.0[0])
            ^ self.send_after.as_ps() as u32;
        let work = device.sends.peek(work).map_or(0, SendWork::look);
        self.number.value() ^ self.requester.unacked.value() ^ bits ^ self.deadlines.look() ^ work
    }

    /// The same for a request of the peer, which may take a receive when it ends.
    #[inline]
    pub(crate) fn look_at_responder(&self, device: &Device, ends: bool) -> u32 {
        let Responder { receives, expected, message, .. } = &self.responder;
        let message = u32::from(matches!(message, Message::None)) ^ u32::from(self.shared.is_some());
        let route = u32::from(self.route.network.source.0[0]) ^ u32::from(self.route.priority);
        let echo = u32::from(self.echo.is_some());
        let receive = match ends {
            true => device.receives.peek(receives.front()).map_or(0, |receive| receive.work as u32),
            false => 0,
        };
        self.number.value() ^ message ^ echo ^ receives.len() ^ expected.value() ^ route ^ receive
    }

    /// The same for a congestion notification.
    #[inline]
    pub(crate) fn look_at_control(&self) -> u32 {
        let control = u32::from(self.control.is_none()) ^ self.control.next_timer().as_ps() as u32;
        let route = u32::from(self.route.network.source.0[0]) ^ u32::from(self.route.priority);
        self.number.value() ^ self.send_after.as_ps() as u32 ^ control ^ route ^ self.deadlines.look()
    }
}
