//! Queue pairs: one end of a connection, or of datagrams.
//!
//! The requester sends the application's work and waits for answers; the responder serves the peer's. They share a
//! connection and nothing else.

mod answers;
mod completer;
mod connection;
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
pub(crate) use echo::Echo;
pub(crate) use requester::Requester;
pub(crate) use responder::Responder;
pub(crate) use state::check_transition;

use crate::completion::{Completion, CompletionKind, CompletionQueue, Status};
use crate::config::Mtu;
use crate::context::Context;
use crate::control::Controller;
use crate::device::{AsyncEvent, Device};
use crate::memory::Memory;
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
/// peer's requests, what every packet needs, what sends requests, what hardly anyone asks for.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct QueuePair {
    pub(crate) responder: Responder,
    /// What the peer is told about the way of its packets. Made where there is something to tell.
    pub(crate) echo: Option<Box<Echo>>,
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
    /// Whose turn it is when both READ responses and requests wait.
    pub(crate) responder_turn: bool,
    pub(crate) notify_drained: bool,
    pub(crate) recovery: Recovery,
    pub(crate) receive_queue: CompletionQueue,
    pub(crate) shared: Option<SharedReceiveQueue>,
    pub(crate) send_queue: CompletionQueue,
    /// When the rate limiter lets the next packet go.
    pub(crate) send_after: Time,
    pub(crate) requester: Requester,
    pub(crate) control: Controller,
    pub(crate) deadlines: Deadlines,
    pub(crate) queue_key: u32,
    pub(crate) send_depth: u32,
    pub(crate) receive_depth: u32,
    pub(crate) inline_max: u16,
    pub(crate) gather_max: u8,
}

impl QueuePair {
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

    /// Goes to the error state: everything queued comes back flushed, in order.
    ///
    /// Answers that wait, a fatal NAK last of all, still go out when `keep_answers` is set: the peer is owed them.
    pub(crate) fn enter_error<M: Memory, S: Sink>(
        &mut self,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        keep_answers: bool,
    ) {
        if self.state == State::Error {
            return;
        }
        self.set_state(device, cx, State::Error);
        self.deadlines.clear_all();
        self.flush_sends(device, cx);
        self.flush_receives(device, cx);
        self.responder.forget_early();
        if keep_answers {
            // The rate limiter's clock went with the others; this sets it again where it is needed.
            self.mark_data_ready(device);
        } else {
            device.responses.clear(&mut self.responder.answers);
        }
        if self.shared.is_some() {
            // IBTA 11.6.3.1: receives of a shared queue stay; this tells that the queue pair will take no more.
            device.events.push_back(AsyncEvent::LastReceiveTaken(self.number));
        }
    }

    pub(crate) fn flush_sends<M: Memory, S: Sink>(
        &mut self,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
    ) {
        while let Some(work) = device.sends.pop(&mut self.requester.queue) {
            self.complete_send(device, cx, self.flushed(work.work, work.operation.completion_kind()));
        }
        self.requester.forget_all();
        self.deadlines.clear(Timer::Acknowledgement);
        self.deadlines.clear(Timer::ReceiverNotReady);
    }

    fn flush_receives<M: Memory, S: Sink>(&mut self, device: &mut Device, cx: &mut Context<'_, M, S>) {
        if let Some(taken) = self.responder.release_taken() {
            let receive = device.receives.remove(taken);
            let completion = self.flushed(receive.work, CompletionKind::Receive);
            device.complete(cx, self.receive_queue, completion, false);
        }
        while let Some(receive) = device.receives.pop(&mut self.responder.receives) {
            let completion = self.flushed(receive.work, CompletionKind::Receive);
            device.complete(cx, self.receive_queue, completion, false);
        }
    }

    pub(crate) fn flushed(&self, work: u64, kind: CompletionKind) -> Completion {
        Completion { work, status: Status::Flushed, kind, queue_pair: self.number, ..Completion::EMPTY }
    }

    /// Forgets everything without a completion.
    pub(crate) fn reset(&mut self, device: &mut Device) {
        device.sends.clear(&mut self.requester.queue);
        device.responses.clear(&mut self.responder.answers);
        if let Some(taken) = self.responder.release_taken() {
            device.receives.remove(taken);
        }
        device.receives.clear(&mut self.responder.receives);
        device.forget_completions(self.number, [self.send_queue, self.receive_queue]);
        self.requester = Requester::new();
        self.responder = Responder::new();
        self.recovery = Recovery::new(device.config.recovery);
        self.deadlines.clear_all();
        self.send_after = Time::ZERO;
        self.echo = None;
        let line = device.config.ports[usize::from(self.port)].rate;
        self.control = Controller::new(&device.config.control, line, self.mtu);
    }
}
