//! From the record to the steps of the ladder: each says when, who and what, in words and as fields.

use std::collections::VecDeque;

use railnet_core::event::{Check, Event, PacketId, RetryReason};
use railnet_core::{Psn, Time};
use railnet_nic::{Completion, Operation, ReceiveRequest, SendRequest, Status};
use railnet_wire::{Extended, Headers};
use serde_json::{Map, Value, json};

use super::words;
use super::world::{A, Entry, Record};

/// Who acts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Actor {
    /// The application on a host's CPU.
    Cpu(usize),
    /// A host's NIC.
    Nic(usize),
    /// A packet on its way from a host.
    Wire { from: usize, lost: bool },
}

/// What kind of step it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum StepKind {
    Post,
    Doorbell,
    PostReceive,
    Fetch,
    Gather,
    Packet,
    Arrive,
    Complete,
    Poll,
    State,
    Wait,
    Retransmit,
}

impl StepKind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Post => "post",
            Self::Doorbell => "doorbell",
            Self::PostReceive => "post_receive",
            Self::Fetch => "fetch",
            Self::Gather => "gather",
            Self::Packet => "packet",
            Self::Arrive => "arrive",
            Self::Complete => "complete",
            Self::Poll => "poll",
            Self::State => "state",
            Self::Wait => "wait",
            Self::Retransmit => "retransmit",
        }
    }
}

/// Steps that are like each other, so that few of many need to be shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Likeness {
    kind: StepKind,
    host: usize,
    /// How many times the requester had gone back when the packet left.
    round: u32,
    /// It carries data, or it was thrown away.
    class: u8,
}

impl Likeness {
    fn new(kind: StepKind, host: usize, round: u32, class: u8) -> Self {
        Self { kind, host, round, class }
    }
}

/// One step.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) at: Time,
    pub(super) actor: Actor,
    pub(super) kind: StepKind,
    pub(super) lines: Vec<String>,
    pub(super) fields: Map<String, Value>,
    /// Steps that are alike; `None` for one that is always shown.
    pub(super) likeness: Option<Likeness>,
    pub(super) psn: Option<Psn>,
    /// Something failed or got lost here.
    pub(super) is_bad: bool,
}

/// What came of a packet that arrived, as far as it is known.
struct Arrival {
    at: Time,
    host: usize,
    psn: Psn,
    frame: Option<usize>,
    checks: Vec<(Check, bool)>,
    placed: Option<(u64, u32)>,
    dropped: Option<&'static str>,
}

struct Explainer<'a> {
    record: &'a Record,
    steps: Vec<Step>,
    /// By frame: its headers, payload length, and round.
    frames: Vec<(Option<(Headers, u32)>, u32)>,
    next_frame: usize,
    /// By target: frames on their way.
    on_the_way: [VecDeque<usize>; 2],
    arrival: Option<Arrival>,
    /// The arrival told last: when, where, which packet, and its step.
    told: Option<(Time, usize, Psn, usize)>,
    local_memory_checked: bool,
    round: u32,
    now: Time,
}

/// All steps, in the order in which they happened.
pub(super) fn explain(record: &Record) -> Vec<Step> {
    let framing = record.plan.framing;
    let parsed = record.frames.iter().map(|frame| words::headers_of(framing, &frame.frame));
    let mut explainer = Explainer {
        record,
        steps: Vec::new(),
        frames: parsed.map(|headers| (headers, 0)).collect(),
        next_frame: 0,
        on_the_way: [VecDeque::new(), VecDeque::new()],
        arrival: None,
        told: None,
        local_memory_checked: false,
        round: 0,
        now: Time::ZERO,
    };
    for (at, entry) in &record.entries {
        if !explainer.belongs_to_arrival(entry) {
            explainer.finish_arrival();
        }
        explainer.now = *at;
        explainer.entry(entry);
    }
    explainer.finish_arrival();
    explainer.steps
}

impl Explainer<'_> {
    fn push(&mut self, actor: Actor, kind: StepKind, lines: Vec<String>, fields: Value) -> &mut Step {
        let fields = match fields {
            Value::Object(fields) => fields,
            _ => Map::new(),
        };
        self.steps.push(Step {
            at: self.now,
            actor,
            kind,
            lines,
            fields,
            likeness: None,
            psn: None,
            is_bad: false,
        });
        let last = self.steps.len() - 1;
        &mut self.steps[last]
    }

    fn entry(&mut self, entry: &Entry) {
        match entry {
            Entry::Post(request) => self.post(request),
            Entry::PostReturned => {
                let text = "rings the NIC's doorbell, the post call returns: this CPU is free from here on";
                self.push(Actor::Cpu(A), StepKind::Doorbell, vec![text.to_owned()], json!({}));
            }
            Entry::PostReceive(request) => self.post_receive(request),
            Entry::Polled(host, completion) => self.polled(*host, completion),
            Entry::Nic(host, event) => self.event(*host, event),
        }
    }

    fn post(&mut self, request: &SendRequest) {
        let bytes: u32 = request.gather.iter().map(|sge| sge.length).sum();
        let flags = if request.signaled { "signaled" } else { "unsignaled" };
        let name = request.operation.name();
        let mut lines =
            vec![format!("posts a work request (WQE): {name}, {bytes} B, wr_id {}, {flags}", request.work)];
        let reads = matches!(
            request.operation,
            Operation::Read(_) | Operation::FetchAdd { .. } | Operation::CompareSwap { .. }
        );
        let (local, far) = if reads { ("to", "from") } else { ("from", "to") };
        for sge in &request.gather {
            lines.push(format!(
                "  {local} its own memory {:#x}, {} B, lkey {:#x}",
                sge.address, sge.length, sge.key.0
            ));
        }
        let mut fields = json!({ "operation": name, "wr_id": request.work, "bytes": bytes,
            "signaled": request.signaled, "fence": request.fence, "solicited": request.solicited,
            "sge": request.gather.iter().map(|sge| json!({ "address": sge.address, "length": sge.length,
                "lkey": sge.key.0 })).collect::<Vec<_>>() });
        match request.operation {
            Operation::Write(remote) | Operation::Read(remote) => {
                lines.push(far_memory(far, remote, ""));
            }
            Operation::WriteImmediate(remote, value) => {
                lines.push(far_memory(far, remote, &format!(", immediate {value:#x}")));
                fields["immediate"] = value.into();
            }
            Operation::FetchAdd { remote, add } => {
                lines.push(far_memory("on", remote, &format!(", add {add}")));
                fields["add"] = add.into();
            }
            _ => lines.push("  to whatever memory B's next receive names".to_owned()),
        }
        if let Some(remote) = self.record.remote {
            fields["remote_address"] = remote.address.into();
            fields["rkey"] = remote.key.0.into();
        }
        self.push(Actor::Cpu(A), StepKind::Post, lines, fields);
    }

    fn post_receive(&mut self, request: &ReceiveRequest) {
        let work = request.work;
        let bytes: u32 = request.scatter.iter().map(|sge| sge.length).sum();
        let text = match request.scatter.first() {
            Some(sge) => format!(
                "posts a receive, wr_id {work}: {bytes} B at {:#x}, lkey {:#x}",
                sge.address, sge.key.0
            ),
            None => format!("posts a receive, wr_id {work}, with no memory: none is needed"),
        };
        let address = request.scatter.first().map(|sge| sge.address);
        self.push(
            Actor::Cpu(1),
            StepKind::PostReceive,
            vec![text],
            json!({ "wr_id": work, "bytes": bytes, "address": address }),
        );
    }

    fn polled(&mut self, host: usize, completion: &Completion) {
        let Completion { work, status, .. } = *completion;
        let mut text =
            format!("polls: wr_id {work}, {}, {}", words::completed(completion.kind), status.verbs_name());
        let mut fields =
            json!({ "wr_id": work, "status": status.verbs_name(), "status_number": status as u8 });
        if status == Status::Success {
            text = format!("{text}, {} B", completion.length);
            fields["length"] = completion.length.into();
            if let Some(value) = completion.immediate {
                text = format!("{text}, immediate {value:#x}");
                fields["immediate"] = value.into();
            }
        } else {
            text = format!("polls: wr_id {work}, {} ({status})", status.verbs_name());
        }
        let step = self.push(Actor::Cpu(host), StepKind::Poll, vec![text], fields);
        step.is_bad = status != Status::Success;
    }

    fn event(&mut self, host: usize, event: &Event) {
        match *event {
            Event::WorkStarted { work, first, packets, .. } => self.fetch(work, first, packets),
            Event::DataGathered { psn, address, length, .. } => {
                let text = format!("reads {length} B at {address:#x} by DMA");
                let likeness = Likeness::new(StepKind::Gather, host, self.round, 0);
                let step = self.push(
                    Actor::Nic(host),
                    StepKind::Gather,
                    vec![text],
                    json!({ "psn": psn.value(), "address": address, "length": length }),
                );
                (step.likeness, step.psn) = (Some(likeness), Some(psn));
            }
            Event::PacketSent { packet, length, .. } => self.sent(host, packet, length),
            Event::PacketReceived { psn, .. } => self.arrives(host, psn),
            Event::Checked { check, passed, .. } => match &mut self.arrival {
                Some(arrival) => arrival.checks.push((check, passed)),
                None => self.checked_locally(host, check, passed),
            },
            Event::DataPlaced { address, length, .. } => {
                if let Some(arrival) = &mut self.arrival {
                    arrival.placed = Some((address, length));
                }
            }
            Event::PacketDropped { psn, reason, .. } => self.dropped(host, psn, reason),
            Event::Completed { work, status, .. } => self.completed(host, work, status),
            Event::StateChanged { from, to, .. } => self.state_changed(host, from, to),
            Event::ReceiverWait { psn, until, .. } => {
                let wait = words::span(until.since(self.now));
                self.push(
                    Actor::Nic(host),
                    StepKind::Wait,
                    vec![format!("waits {wait} before it tries again")],
                    json!({ "psn": psn.value(), "until_ps": until.as_ps() }),
                );
            }
            Event::Retransmitting { from, reason, .. } => self.retransmits(host, from, reason),
            // The post is told by the one who made it; rates do not change here.
            _ => {}
        }
    }

    fn checked_locally(&mut self, host: usize, check: Check, passed: bool) {
        if passed {
            self.local_memory_checked = true;
            return;
        }
        let text = format!("its own memory fails the check: {}", words::failure(check));
        let step = self.push(Actor::Nic(host), StepKind::Fetch, vec![text], json!({ "passed": false }));
        step.is_bad = true;
    }

    fn fetch(&mut self, work: u64, first: Psn, packets: u32) {
        let checked = if std::mem::take(&mut self.local_memory_checked) { ", checks its lkey" } else { "" };
        let numbers = match packets {
            0 | 1 => format!("PSN {first}"),
            _ => format!("PSN {first} to {}", first.plus(packets - 1)),
        };
        self.push(
            Actor::Nic(A),
            StepKind::Fetch,
            vec![format!("fetches WQE {work}{checked}, gives it {numbers}")],
            json!({ "wr_id": work, "first_psn": first.value(), "packets": packets }),
        );
    }

    fn sent(&mut self, host: usize, packet: PacketId, length: u32) {
        let index = self.next_frame;
        self.next_frame += 1;
        let (record, round) = (self.record, self.round);
        let Some(((headers, slot), frame)) =
            self.frames.get_mut(index).map(|(headers, slot)| (*headers, slot)).zip(record.frames.get(index))
        else {
            return;
        };
        *slot = round;
        if !frame.lost {
            self.on_the_way[1 - host].push_back(index);
        }
        let Some((headers, _)) = headers else {
            return;
        };
        let mut lines = vec![words::packet(&headers, length)];
        if packet.transmission > 0 {
            lines[0] += " · sent again";
        }
        lines.extend(words::extended(&headers));
        let mut fields = json!({ "frame": index + 1, "opcode": headers.bth.opcode.name(),
            "psn": packet.psn.value(), "qp": headers.bth.destination.value(), "payload_bytes": length,
            "ack_request": headers.bth.ack_request, "transmission": packet.transmission, "lost": frame.lost });
        extended_fields(&mut fields, &headers.extended);
        if let Some((text, Value::Object(around))) = words::around(record.plan.framing, &frame.frame) {
            lines.push(text);
            if let Value::Object(fields) = &mut fields {
                fields.extend(around);
            }
        }
        let actor = Actor::Wire { from: host, lost: frame.lost };
        let class = u8::from(length > 0) + 2 * u8::from(packet.transmission > 0);
        let likeness = Likeness::new(StepKind::Packet, host, round, class);
        let step = self.push(actor, StepKind::Packet, lines, fields);
        step.likeness = (!frame.lost).then_some(likeness);
        step.psn = Some(packet.psn);
        step.is_bad = frame.lost;
    }

    fn arrives(&mut self, host: usize, psn: Psn) {
        let frame = self.on_the_way[host].pop_front();
        self.arrival =
            Some(Arrival { at: self.now, host, psn, frame, checks: Vec::new(), placed: None, dropped: None });
    }

    fn dropped(&mut self, host: usize, psn: Psn, reason: &'static str) {
        if self.arrival.is_none() {
            // What came of it in between is told already.
            if let Some((at, at_host, at_psn, index)) = self.told
                && (at, at_host, at_psn) == (self.now, host, psn)
            {
                let step = &mut self.steps[index];
                step.lines.push(format!("thrown away: {reason}"));
                step.fields.insert("dropped".to_owned(), reason.into());
                step.is_bad = true;
                return;
            }
            self.arrives(host, psn);
        }
        if let Some(arrival) = &mut self.arrival {
            arrival.dropped = Some(reason);
        }
    }

    /// Whether an entry tells more about the packet that has just arrived.
    fn belongs_to_arrival(&self, entry: &Entry) -> bool {
        let Some(arrival) = &self.arrival else {
            return false;
        };
        let Entry::Nic(host, event) = entry else {
            return false;
        };
        let (Event::Checked { psn, .. } | Event::DataPlaced { psn, .. } | Event::PacketDropped { psn, .. }) =
            event
        else {
            return false;
        };
        *host == arrival.host && *psn == arrival.psn
    }

    fn finish_arrival(&mut self) {
        let Some(arrival) = self.arrival.take() else {
            return;
        };
        let (headers, round) =
            arrival.frame.and_then(|index| self.frames.get(index).copied()).unwrap_or((None, self.round));
        let headers = headers.map(|(headers, _)| headers);
        let is_answer = headers.is_some_and(|headers| headers.bth.opcode.is_response());
        let mut lines =
            if is_answer { answer_lines(&arrival, headers.as_ref()) } else { self.request_lines(&arrival) };
        if let Some(reason) = arrival.dropped {
            lines.push(format!("thrown away: {reason}"));
        }
        let failed = arrival.checks.iter().find(|(_, passed)| !passed);
        let mut fields = json!({ "psn": arrival.psn.value(), "frame": arrival.frame.map(|index| index + 1),
            "dropped": arrival.dropped });
        let name = |check| words::check(check, self.record.plan.kind);
        fields["checks"] = arrival
            .checks
            .iter()
            .map(|&(check, passed)| json!({ "check": name(check), "passed": passed }))
            .collect();
        if let Some((address, length)) = arrival.placed {
            (fields["address"], fields["length"]) = (address.into(), length.into());
        }
        let is_bad = failed.is_some() || arrival.dropped.is_some();
        let class = u8::from(arrival.placed.is_some()) + 2 * u8::from(is_bad);
        let likeness = Likeness::new(StepKind::Arrive, arrival.host, round, class);
        self.now = arrival.at;
        let step = self.push(Actor::Nic(arrival.host), StepKind::Arrive, lines, fields);
        (step.likeness, step.psn, step.is_bad) = (Some(likeness), Some(arrival.psn), is_bad);
        self.told = Some((arrival.at, arrival.host, arrival.psn, self.steps.len() - 1));
    }

    fn request_lines(&self, arrival: &Arrival) -> Vec<String> {
        let kind = self.record.plan.kind;
        let passed: Vec<_> = arrival
            .checks
            .iter()
            .filter(|(_, passed)| *passed)
            .map(|&(check, _)| words::check(check, kind))
            .collect();
        let mut lines = Vec::new();
        let failed = arrival.checks.iter().find(|(_, passed)| !passed);
        match failed {
            Some((Check::Sequence, _)) if arrival.dropped.is_none() => {
                let what = match kind {
                    super::Kind::Read => "its data is read and sent again",
                    super::Kind::Atomic => "the old value is sent again, nothing is added",
                    _ => "it is acknowledged again, and not carried out again",
                };
                lines.push(format!("PSN {} was here before: {what}", arrival.psn));
                return lines;
            }
            Some((Check::Sequence, _)) => {
                lines.push(format!(
                    "PSN {} is not the one that comes next: one before it is not there",
                    arrival.psn
                ));
                return lines;
            }
            _ => {}
        }
        lines.extend(word_lines("checks passed: ", &passed));
        if let Some(&(check, _)) = failed {
            lines.push(format!("check FAILED: {} ({})", words::check(check, kind), words::failure(check)));
        }
        if let Some((address, length)) = arrival.placed {
            lines.push(match kind {
                super::Kind::Atomic => format!("reads, adds and writes {length} B at {address:#x} in one go"),
                _ => format!("writes {length} B to {address:#x} by DMA"),
            });
        }
        lines
    }

    fn completed(&mut self, host: usize, work: u64, number: u8) {
        let status = words::status(number);
        let name = status.map_or("an unknown status", Status::verbs_name);
        let whose = if host == A { "" } else { " for the receive" };
        let step = self.push(
            Actor::Nic(host),
            StepKind::Complete,
            vec![format!("writes a completion (CQE){whose}: wr_id {work}, {name}")],
            json!({ "wr_id": work, "status": name, "status_number": number }),
        );
        step.is_bad = number != 0;
    }

    fn state_changed(&mut self, host: usize, from: u8, to: u8) {
        let text = if to == 6 {
            "its queue pair goes to the error state: it takes in nothing more".to_owned()
        } else {
            format!("its queue pair goes from state {from} to state {to}")
        };
        let step =
            self.push(Actor::Nic(host), StepKind::State, vec![text], json!({ "from": from, "to": to }));
        step.is_bad = to == 6;
    }

    fn retransmits(&mut self, host: usize, from: Psn, reason: RetryReason) {
        self.round += 1;
        let (why, name) = match reason {
            RetryReason::Timeout => (
                format!("no answer for {}: the timer ran out", words::span(self.record.ack_timeout)),
                "timeout",
            ),
            RetryReason::SequenceNak => ("because of the NAK".to_owned(), "sequence_nak"),
            RetryReason::ResponseLost => ("part of the answer is missing".to_owned(), "response_lost"),
            RetryReason::ReceiverNotReady => ("the wait is over".to_owned(), "receiver_not_ready"),
            RetryReason::Missing => ("later ones have arrived".to_owned(), "missing"),
        };
        let text = match reason {
            RetryReason::Missing => format!("{why}, sends PSN {from} again"),
            _ => format!("{why}, goes back to PSN {from} (go-back-N)"),
        };
        self.push(
            Actor::Nic(host),
            StepKind::Retransmit,
            vec![text],
            json!({ "from_psn": from.value(), "reason": name }),
        );
    }
}

fn far_memory(word: &str, remote: railnet_nic::Remote, more: &str) -> String {
    format!("  {word} B's memory {:#x}, rkey {:#x}{more}", remote.address, remote.key.0)
}

/// What the requester makes of an answer.
fn answer_lines(arrival: &Arrival, headers: Option<&Headers>) -> Vec<String> {
    match (arrival.placed, headers) {
        (Some((address, length)), _) => {
            vec![format!("writes {length} B of the answer to {address:#x} by DMA")]
        }
        (None, Some(headers)) if arrival.dropped.is_none() => vec![words::learned(headers)],
        _ => vec![format!("takes an answer for PSN {}", arrival.psn)],
    }
}

/// A list of words, broken into lines of a readable length.
fn word_lines(start: &str, words: &[&str]) -> Vec<String> {
    const WIDTH: usize = 68;
    let mut lines = Vec::new();
    let mut line = start.to_owned();
    for (index, word) in words.iter().enumerate() {
        if line.chars().count() + word.chars().count() > WIDTH {
            lines.push(std::mem::take(&mut line).trim_end().to_owned());
        }
        line += word;
        if index + 1 < words.len() {
            line += ", ";
        }
    }
    if !words.is_empty() {
        lines.push(line);
    }
    lines
}

fn extended_fields(fields: &mut Value, extended: &Extended) {
    match extended {
        Extended::Reth(reth) | Extended::RethImmediate(reth, _) => {
            fields["address"] = reth.address.into();
            fields["rkey"] = reth.key.into();
            fields["length"] = reth.length.into();
        }
        Extended::Atomic(atomic) => {
            fields["address"] = atomic.address.into();
            fields["rkey"] = atomic.key.into();
            fields["add"] = atomic.swap_or_add.into();
        }
        Extended::AtomicAck(_, original) => fields["original"] = (*original).into(),
        _ => {}
    }
    if let Extended::RethImmediate(_, value) | Extended::Immediate(value) = extended {
        fields["immediate"] = (*value).into();
    }
    if let Extended::Aeth(aeth) | Extended::AtomicAck(aeth, _) = extended {
        fields["syndrome"] = aeth.syndrome.to_byte().into();
        fields["msn"] = aeth.msn.into();
    }
}
