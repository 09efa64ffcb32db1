//! Queue pairs: one end of a connection, or of datagrams.
//!
//! The [`Requester`] sends the application's work and waits for answers; the [`Responder`] serves the peer's. They have a
//! connection in common ([`Shared`]) and nothing else: each is a type of its own, and the [`QueuePair`] hands packets and
//! timers to the one that they are for.

mod answers;
mod completer;
mod connection;
mod duplicates;
mod early;
mod echo;
mod pace;
mod prefetch;
mod request;
mod requester;
mod responder;
mod retry;
mod selective;
mod state;
mod unreliable;

use railnet_core::event::{Event, Sink};
use railnet_core::{QueuePairNumber, Time};
use railnet_wire::{Gid, Network};

pub use connection::Connection;
pub use state::{Attribute, Attributes, State};

pub(crate) use answers::Response;
pub(crate) use requester::Requester;
pub(crate) use responder::Responder;
pub(crate) use state::check_transition;

use crate::completion::{Completion, CompletionKind, CompletionQueue, Status};
use crate::config::{Mtu, NicConfig};
use crate::context::Context;
use crate::control::Controller;
use crate::device::Device;
use crate::error::DropReason;
use crate::memory::Memory;
use crate::packet::{Inbound, Transmit};
use crate::recovery::Recovery;
use crate::region::{Access, ProtectionDomain};
use crate::timer::{Deadlines, Timer};

/// The transport service of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Service {
    /// Reliable connection.
    ReliableConnection,
    /// Unreliable connection.
    UnreliableConnection,
    /// Unreliable datagram.
    Datagram,
}

/// A shared receive queue of a NIC.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub struct SharedReceiveQueue(pub(crate) u32);

/// What a queue pair is made with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueuePairConfig {
    /// Its transport service.
    pub service: Service,
    /// Where its sends complete.
    pub send_queue: CompletionQueue,
    /// Where its receives complete.
    pub receive_queue: CompletionQueue,
    /// Where its receives come from, when not from itself.
    pub shared: Option<SharedReceiveQueue>,
    /// Work requests its send queue holds.
    pub send_depth: u32,
    /// Work requests its receive queue holds.
    pub receive_depth: u32,
    /// Scatter and gather entries of a work request.
    pub gather_max: u32,
    /// Inline bytes of a work request.
    pub inline_max: u32,
    /// Every send makes a completion, signalled or not.
    pub signal_all: bool,
    /// A number to have, instead of the next free one.
    pub number: Option<QueuePairNumber>,
}

impl QueuePairConfig {
    /// A queue pair of ordinary depth that completes on one queue.
    pub fn new(service: Service, queue: CompletionQueue) -> Self {
        Self {
            service,
            send_queue: queue,
            receive_queue: queue,
            shared: None,
            send_depth: 256,
            receive_depth: 256,
            gather_max: 4,
            inline_max: 128,
            signal_all: false,
            number: None,
        }
    }
}

/// The way to a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Path {
    /// Which of the port's addresses to send from.
    pub source: u8,
    /// The peer's address.
    pub target: Gid,
    /// Entropy for the UDP source port; 0 derives it from the queue pair numbers.
    pub flow_label: u32,
    /// DSCP and ECN bits.
    pub traffic_class: u8,
    /// Hops that routers allow.
    pub hop_limit: u8,
}

impl Path {
    /// An ECN-capable path to `target` from the first address.
    pub fn to(target: Gid) -> Self {
        Self { source: 0, target, flow_label: 0, traffic_class: 0x02, hop_limit: 64 }
    }
}

/// Where to send the packets of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    pub(crate) network: Network,
    pub(crate) priority: u8,
}

/// One queue pair.
///
/// Among very many of them each line of the cache that a packet needs is waited for. So fields lie together by use: what answers a
/// peer's requests, what every packet needs, what sends requests.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct QueuePair {
    pub(crate) responder: Responder,
    pub(crate) shared: Shared,
    pub(crate) requester: Requester,
    /// Whose turn it is when both READ responses and requests wait.
    pub(crate) responder_turn: bool,
}

/// What the requester and the responder of a queue pair share: the connection and its congestion control.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Shared {
    pub(crate) number: QueuePairNumber,
    pub(crate) slot: u32,
    pub(crate) peer: QueuePairNumber,
    pub(crate) domain: ProtectionDomain,
    pub(crate) route: Route,
    pub(crate) service: Service,
    pub(crate) state: State,
    pub(crate) mtu: Mtu,
    /// Index of the port, from 0.
    pub(crate) port: u8,
    pub(crate) partition: u16,
    pub(crate) access: Access,
    pub(crate) signal_all: bool,
    /// On the ring of queue pairs with answers to send.
    pub(crate) in_control_ring: bool,
    /// On the ring of queue pairs with data to send.
    pub(crate) in_data_ring: bool,
    pub(crate) notify_drained: bool,
    /// One half has failed, and the other half has not been told.
    failure: Option<Failure>,
    pub(crate) recovery: Recovery,
    pub(crate) receive_queue: CompletionQueue,
    pub(crate) receive_source: Option<SharedReceiveQueue>,
    pub(crate) send_queue: CompletionQueue,
    /// When the rate limiter lets the next packet go.
    pub(crate) send_after: Time,
    pub(crate) control: Controller,
    pub(crate) deadlines: Deadlines,
    pub(crate) queue_key: u32,
    pub(crate) send_depth: u32,
    pub(crate) receive_depth: u32,
    pub(crate) inline_max: u16,
    pub(crate) gather_max: u8,
}

/// Which half has failed. Its own part of the error state is done; [`QueuePair::settle_failure`] does the rest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Failure {
    /// The state is the error state and the send queue is flushed.
    Requester,
    /// A NAK waits for the peer, or is owed no more.
    Responder {
        /// Whether answers that wait still go out.
        keep_answers: bool,
    },
}

impl Shared {
    /// Of a queue pair in the reset state.
    pub(crate) fn new(
        device: &NicConfig,
        config: &QueuePairConfig,
        domain: ProtectionDomain,
        (number, slot): (QueuePairNumber, u32),
        route: Route,
    ) -> Self {
        let port = &device.ports[0];
        Self {
            number,
            slot,
            peer: QueuePairNumber::new(0),
            domain,
            route,
            service: config.service,
            state: State::Reset,
            mtu: port.mtu,
            port: 0,
            partition: 0xffff,
            access: Access::NONE,
            signal_all: config.signal_all,
            in_control_ring: false,
            in_data_ring: false,
            notify_drained: false,
            failure: None,
            recovery: Recovery::new(device.recovery),
            receive_queue: config.receive_queue,
            receive_source: config.shared,
            send_queue: config.send_queue,
            send_after: Time::ZERO,
            control: Controller::new(&device.control, port.rate, port.mtu),
            deadlines: Deadlines::NONE,
            queue_key: 0,
            send_depth: config.send_depth,
            receive_depth: config.receive_depth,
            inline_max: config.inline_max as u16,
            gather_max: config.gather_max as u8,
        }
    }

    pub(crate) fn is_reliable(&self) -> bool {
        self.service == Service::ReliableConnection
    }

    /// Puts the queue pair in line for the port, if it is not already.
    #[inline]
    pub(crate) fn mark_data_ready(&mut self, device: &mut Device) {
        if !self.in_data_ring {
            self.in_data_ring = true;
            device.ports[usize::from(self.port)].push_data(self.route.priority, self.slot);
        }
    }

    /// Puts the queue pair in line with an answer.
    #[inline]
    pub(crate) fn mark_control_ready(&mut self, device: &mut Device) {
        if !self.in_control_ring {
            self.in_control_ring = true;
            device.ports[usize::from(self.port)].push_control(self.route.priority, self.slot);
        }
    }

    pub(crate) fn set_state<M: Memory, S: Sink>(
        &mut self,
        device: &Device,
        cx: &mut Context<'_, M, S>,
        to: State,
    ) {
        let from = std::mem::replace(&mut self.state, to);
        if from != to {
            let queue_pair = self.number;
            cx.emit(device.component, || Event::StateChanged { queue_pair, from: from as u8, to: to as u8 });
        }
    }

    /// Makes a completion for a send.
    pub(crate) fn complete_send<M: Memory, S: Sink>(
        &self,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        completion: Completion,
    ) {
        device.complete(cx, self.send_queue, completion, false);
    }

    /// Makes the flushed completion of a receive.
    fn flush_receive<M: Memory, S: Sink>(&self, device: &mut Device, cx: &mut Context<'_, M, S>, work: u64) {
        let completion = self.flushed(work, CompletionKind::Receive);
        device.complete(cx, self.receive_queue, completion, false);
    }

    pub(crate) fn flushed(&self, work: u64, kind: CompletionKind) -> Completion {
        Completion { work, status: Status::Flushed, kind, queue_pair: self.number, ..Completion::EMPTY }
    }
}

impl QueuePair {
    pub(crate) fn new(shared: Shared) -> Self {
        Self { responder: Responder::new(), shared, requester: Requester::new(), responder_turn: false }
    }

    /// Goes to the error state: everything queued comes back flushed, in order.
    ///
    /// Answers that wait, a fatal NAK last of all, still go out when `keep_answers` is set: the peer is owed them.
    pub(crate) fn enter_error<M: Memory, S: Sink>(
        &mut self,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        keep_answers: bool,
    ) {
        if self.shared.state == State::Error {
            return;
        }
        self.requester.enter_error(&mut self.shared, device, cx);
        self.responder.enter_error(&mut self.shared, device, cx, keep_answers);
    }

    /// Has the error state reach both halves where one of them has failed.
    #[inline]
    fn settle_failure<M: Memory, S: Sink>(&mut self, device: &mut Device, cx: &mut Context<'_, M, S>) {
        match self.shared.failure.take() {
            None => {}
            Some(Failure::Requester) => self.responder.enter_error(&mut self.shared, device, cx, false),
            Some(Failure::Responder { keep_answers }) => self.enter_error(device, cx, keep_answers),
        }
    }

    /// A request of the peer.
    #[inline]
    pub(crate) fn receive_request<M: Memory, S: Sink>(
        &mut self,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        packet: &Inbound<'_>,
    ) -> Result<(), DropReason> {
        let result = self.responder.receive_request(&mut self.shared, device, cx, packet);
        self.settle_failure(device, cx);
        result
    }

    /// An answer to one of this queue pair's requests.
    #[inline]
    pub(crate) fn receive_response<M: Memory, S: Sink>(
        &mut self,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        packet: &Inbound<'_>,
    ) -> Result<(), DropReason> {
        let result = self.requester.receive_response(&mut self.shared, device, cx, packet);
        self.settle_failure(device, cx);
        result
    }

    /// The next data packet: READ responses and requests take turns.
    #[inline]
    pub(crate) fn transmit_data<M: Memory, S: Sink>(
        &mut self,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        out: &mut Vec<u8>,
        slot: &mut Option<Transmit>,
    ) -> bool {
        let sent = self.next_data(device, cx, out, slot);
        self.settle_failure(device, cx);
        sent
    }

    #[inline]
    fn next_data<M: Memory, S: Sink>(
        &mut self,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        out: &mut Vec<u8>,
        slot: &mut Option<Transmit>,
    ) -> bool {
        let Self { requester, responder, shared, responder_turn } = self;
        shared.wake_clock(device, cx);
        if shared.control.rate().is_some() && cx.now < shared.send_after {
            if shared.control.window().is_some() && responder.has_read_response(device) {
                // Acknowledgements open a window, and answers to READs have none: they would wait for ever.
                return responder.transmit_read_response(shared, device, cx, out, slot);
            }
            shared.wait_for_pace(device);
            return false;
        }
        shared.deadlines.clear(Timer::Pace);
        let has_response = responder.has_read_response(device);
        if has_response && *responder_turn {
            *responder_turn = false;
            return responder.transmit_read_response(shared, device, cx, out, slot);
        }
        if requester.transmit_request(shared, device, cx, out, slot) {
            *responder_turn = true;
            return true;
        }
        // A request that failed took the answers with it.
        has_response
            && shared.failure.is_none()
            && responder.transmit_read_response(shared, device, cx, out, slot)
    }

    /// One of this queue pair's timers came up.
    pub(crate) fn handle_timer<M: Memory, S: Sink>(
        &mut self,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        timer: Timer,
    ) {
        let Self { requester, responder, shared, .. } = self;
        match timer {
            Timer::Acknowledgement => requester.handle_timeout(shared, device, cx),
            Timer::ReceiverNotReady => requester.handle_receiver_wait(shared, device, cx),
            Timer::Reordering => requester.find_losses(shared, device, cx),
            Timer::Pace => {
                shared.deadlines.clear(Timer::CongestionControl);
                shared.mark_data_ready(device);
            }
            // Nobody would notice at what rate it may send.
            Timer::CongestionControl
                if requester.queue.is_empty() && !responder.has_read_response(device) => {}
            Timer::CongestionControl => {
                let before = shared.control.rate();
                shared.control.handle_timer(&device.config.control, cx.now);
                shared.after_control(device, cx, before);
            }
        }
        self.settle_failure(device, cx);
    }

    /// Forgets everything without a completion.
    pub(crate) fn reset(&mut self, device: &mut Device) {
        let Self { requester, responder, shared, .. } = self;
        device.sends.clear(&mut requester.queue);
        device.responses.clear(&mut responder.answers);
        if let Some(taken) = responder.release_taken() {
            device.receives.remove(taken);
        }
        device.receives.clear(&mut responder.receives);
        device.forget_completions(shared.number, [shared.send_queue, shared.receive_queue]);
        *requester = Requester::new();
        *responder = Responder::new();
        shared.recovery = Recovery::new(device.config.recovery);
        shared.deadlines.clear_all();
        shared.send_after = Time::ZERO;
        let line = device.config.ports[usize::from(shared.port)].rate;
        shared.control = Controller::new(&device.config.control, line, shared.mtu);
    }
}
