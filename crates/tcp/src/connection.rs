//! A connection: its states, its timers, and the segments between them.

use railnet_core::{Span, Time};
use railnet_wire::{SackBlocks, Tcp, TcpFlags, TcpOptions};

use crate::config::Config;
use crate::control::{Acked, CongestionControl};
use crate::receiver::{Arrived, Receiver};
use crate::reduction::Reduction;
use crate::round_trip::RoundTrip;
use crate::sender::{Limits, Piece, Sender};
use crate::state::{Counters, Failure, Segment, State, TimeoutReason};

/// The segment size where the peer says none (RFC 9293, 3.7.1).
const SEGMENT_SIZE_USUAL: u16 = 536;
/// Bytes of the timestamps option.
const TIMESTAMPS_BYTES: u64 = 12;
/// The IP header's ECN bits: understood, and congestion met.
const ECN_CAPABLE: u8 = 2;
const CONGESTION: u8 = 3;

/// When an acknowledgement has to go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum AckDue {
    No,
    /// At this moment, or with data before.
    By(Time),
    Now,
}

/// One end of a connection.
#[derive(Debug)]
pub struct Connection {
    config: Config,
    state: State,
    failure: Option<Failure>,
    peer_port: u16,
    /// Sequence numbers of both SYNs.
    own_first: u32,
    peer_first: u32,
    sender: Sender,
    receiver: Receiver,
    control: Box<dyn CongestionControl>,
    round_trip: RoundTrip,
    /// The position and the moment of a segment whose round trip is measured, where there are no timestamps.
    timed: Option<(u64, Time)>,
    /// The longest segment, without options.
    segment_size: u64,
    /// By how much the peer's windows are shifted, and the own.
    scales: (u8, u8),
    has_sack: bool,
    has_timestamps: bool,
    has_ecn: bool,
    /// The peer's last timestamp.
    echo: u32,
    ack: AckDue,
    /// Bytes since the last acknowledgement went.
    unacked: u64,
    /// Acknowledgements that go before all others: up to a position, with or without a mark (RFC 8257, 3.2).
    owed: Vec<(u64, bool)>,
    /// What the acknowledgements say of congestion.
    tells_congestion: bool,
    /// The next data says that the window was reduced.
    tells_reduced: bool,
    /// Marks up to here belong to a reduction that was made.
    reduced_until: u64,
    /// How much may be sent in fast recovery.
    reduction: Reduction,
    wants_syn: bool,
    wants_probe: bool,
    retransmit_at: Option<Time>,
    probe_at: Option<Time>,
    probes: u32,
    forget_at: Option<Time>,
    counters: Counters,
}

impl Connection {
    /// A connection that is opened: the peer's port is the config's of the other end. `first` is its initial sequence number.
    pub fn connect(config: Config, first: u32) -> Self {
        let mut connection = Self::new(config, first, State::SynSent);
        connection.wants_syn = true;
        connection
    }

    /// One that waits for a peer to open it.
    pub fn listen(config: Config, first: u32) -> Self {
        Self::new(config, first, State::Listen)
    }

    fn new(config: Config, first: u32, state: State) -> Self {
        let segment_size = u64::from(config.segment_size);
        let control = config.control.start(segment_size, config.window_first);
        Self {
            receiver: Receiver::new(config.receive_buffer),
            state,
            failure: None,
            peer_port: 0,
            own_first: first,
            peer_first: 0,
            sender: Sender::new(),
            control,
            round_trip: RoundTrip::default(),
            timed: None,
            segment_size,
            scales: (0, 0),
            has_sack: false,
            has_timestamps: false,
            has_ecn: false,
            echo: 0,
            ack: AckDue::No,
            unacked: 0,
            owed: Vec::new(),
            tells_congestion: false,
            tells_reduced: false,
            reduced_until: 0,
            reduction: Reduction::default(),
            wants_syn: false,
            wants_probe: false,
            retransmit_at: None,
            probe_at: None,
            probes: 0,
            forget_at: None,
            counters: Counters::default(),
            config,
        }
    }

    /// The port of the peer, for one that connects.
    #[must_use]
    pub fn to_port(mut self, port: u16) -> Self {
        self.peer_port = port;
        self
    }

    /// Its state.
    pub fn state(&self) -> State {
        self.state
    }

    /// Why it is no more, where it did not end in order.
    pub fn failure(&self) -> Option<Failure> {
        self.failure
    }

    /// What happened so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The congestion window in bytes.
    pub fn congestion_window(&self) -> u64 {
        self.control.window()
    }

    /// The smoothed round trip.
    pub fn round_trip(&self) -> Option<Span> {
        self.round_trip.smoothed()
    }

    /// Leaves data to be sent; returns for how much there was room.
    pub fn write(&mut self, data: &[u8]) -> usize {
        if self.failure.is_some() { 0 } else { self.sender.write(data, self.config.send_buffer) }
    }

    /// Takes data that came; returns how much.
    pub fn read(&mut self, out: &mut [u8]) -> usize {
        let count = self.receiver.read(out);
        if count > 0 && self.is_synchronised() && self.receiver.should_update(self.segment_size) {
            self.ack = AckDue::Now;
        }
        count
    }

    /// Bytes that can be read.
    pub fn readable(&self) -> usize {
        self.receiver.readable()
    }

    /// Bytes that were written and are not acknowledged.
    pub fn unacknowledged(&self) -> usize {
        self.sender.unacknowledged()
    }

    /// Whether the peer has sent all, and all of it was read.
    pub fn is_at_end(&self) -> bool {
        self.receiver.is_over() && self.receiver.readable() == 0
    }

    /// No more will be written.
    pub fn close(&mut self) {
        self.sender.has_fin = true;
    }

    fn is_synchronised(&self) -> bool {
        !matches!(self.state, State::Closed | State::Listen | State::SynSent)
    }

    fn sequence(&self, position: u64) -> u32 {
        self.own_first.wrapping_add(position as u32)
    }

    /// The position of a sequence number that lies near another position.
    fn position(first: u32, sequence: u32, near: u64) -> Option<u64> {
        let distance = sequence.wrapping_sub(first.wrapping_add(near as u32)) as i32;
        near.checked_add_signed(distance.into())
    }

    fn clock(now: Time) -> u32 {
        (now.since(Time::ZERO).as_ps() / 1_000_000) as u32
    }

    fn timeout(&self) -> Span {
        let Config { timeout_first, timeout_least, timeout_most, .. } = self.config;
        self.round_trip.timeout(timeout_first, timeout_least, timeout_most)
    }

    fn limits(&self) -> Limits {
        let options = if self.has_timestamps { TIMESTAMPS_BYTES } else { 0 };
        let (segment_size, sack) = (self.segment_size - options, self.has_sack);
        let window = match self.sender.recovery {
            Some(recovery) if !recovery.is_timeout => {
                let pipe = self.sender.pipe(segment_size, sack);
                pipe + self.reduction.allows(pipe, self.control.window(), segment_size)
            }
            _ => self.control.window(),
        };
        Limits { segment_size, window, nagle: self.config.nagle, sack }
    }

    /// The next segment to send now; `None` where there is none. Call it until then after every other call.
    pub fn poll_transmit(&mut self, now: Time) -> Option<Segment> {
        if self.wants_syn {
            self.wants_syn = false;
            return Some(self.syn(now));
        }
        if !self.is_synchronised() || self.state == State::SynReceived && self.sender.una == 0 {
            return None;
        }
        if !self.owed.is_empty() {
            let (position, is_marked) = self.owed.remove(0);
            return Some(self.pure_ack(now, Some((position, is_marked)), self.sender.next));
        }
        if self.failure.is_none()
            && let limits = self.limits()
            && let Some(piece) = self.sender.next_piece(&limits)
        {
            return Some(self.data(now, &piece));
        }
        if std::mem::take(&mut self.wants_probe) {
            // A number that was acknowledged already: the peer answers with its window.
            return Some(self.pure_ack(now, None, self.sender.next - 1));
        }
        match self.ack {
            AckDue::Now => Some(self.pure_ack(now, None, self.sender.next)),
            AckDue::By(at) if at <= now => Some(self.pure_ack(now, None, self.sender.next)),
            _ => {
                self.watch_window(now);
                None
            }
        }
    }

    /// A header with what all segments have.
    fn tcp(&mut self, now: Time, position: u64, flags: TcpFlags) -> Tcp {
        let (size, scale) = (self.segment_size, self.scales.1);
        let window = self.receiver.window(size) >> scale;
        Tcp {
            source_port: self.config.port,
            target_port: self.peer_port,
            sequence: self.sequence(position),
            acknowledgement: self.peer_first.wrapping_add(self.receiver.next as u32),
            flags,
            window: window.min(u16::MAX.into()) as u16,
            urgent: 0,
            options: TcpOptions {
                timestamps: self.has_timestamps.then(|| (Self::clock(now), self.echo)),
                ..TcpOptions::default()
            },
        }
    }

    /// The SYN, or the SYN that answers one.
    fn syn(&mut self, now: Time) -> Segment {
        let is_answer = self.state == State::SynReceived;
        let is_again = self.sender.next > 0;
        let mut flags = TcpFlags::SYN;
        match (is_answer, self.config.ecn) {
            (false, true) => flags = flags.with(TcpFlags::ECE).with(TcpFlags::CWR),
            (true, _) if self.has_ecn => flags = flags.with(TcpFlags::ECE),
            _ => {}
        }
        if is_answer {
            flags = flags.with(TcpFlags::ACK);
        }
        let offers = |of_peer: bool, own: bool| own && (!is_answer || of_peer);
        let mut tcp = self.tcp(now, 0, flags);
        if !is_answer {
            tcp.acknowledgement = 0;
        }
        // Windows of SYNs are not shifted.
        tcp.window = self.config.receive_buffer.min(u16::MAX.into()) as u16;
        let has_scale = !is_answer || self.scales.1 > 0;
        tcp.options = TcpOptions {
            segment_size: Some(self.config.segment_size),
            window_scale: has_scale.then(|| self.config.window_scale()),
            sack_permitted: offers(self.has_sack, self.config.sack),
            timestamps: offers(self.has_timestamps, self.config.timestamps)
                .then(|| (Self::clock(now), self.echo)),
            ..TcpOptions::default()
        };
        self.sender.next = self.sender.next.max(1);
        self.retransmit_at = Some(now + self.timeout());
        self.timed = (!is_again).then_some((1, now));
        self.count(is_again, false);
        Segment { tcp, payload: Vec::new(), ecn: 0, is_again }
    }

    fn count(&mut self, is_again: bool, is_ack: bool) {
        self.counters.segments += 1;
        self.counters.resent += u64::from(is_again);
        self.counters.acks += u64::from(is_ack);
    }

    /// A segment with data or the FIN.
    fn data(&mut self, now: Time, piece: &Piece) -> Segment {
        let payload = self.sender.bytes(piece);
        let is_last = piece.position + payload.len() as u64 + u64::from(piece.has_fin) == self.sender.end();
        let mut flags = TcpFlags::ACK;
        if piece.has_fin {
            flags = flags.with(TcpFlags::FIN);
            self.state = match self.state {
                State::Established => State::FinWait1,
                State::CloseWait => State::LastAck,
                state => state,
            };
        }
        if is_last && !payload.is_empty() {
            flags = flags.with(TcpFlags::PSH);
        }
        if self.tells_congestion {
            flags = flags.with(TcpFlags::ECE);
        }
        if !piece.is_again && std::mem::take(&mut self.tells_reduced) {
            flags = flags.with(TcpFlags::CWR);
        }
        let mut tcp = self.tcp(now, piece.position, flags);
        tcp.options.sack = self.sack_blocks();
        // SACK blocks and a full segment do not go together.
        let room = self.segment_size as usize + Tcp::LENGTH;
        if tcp.length() + payload.len() > room {
            tcp.options.sack = SackBlocks::default();
        }
        if self.retransmit_at.is_none() {
            self.retransmit_at = Some(now + self.timeout());
        }
        if self.timed.is_none() && !piece.is_again {
            self.timed = Some((piece.position + payload.len() as u64, now));
        }
        if piece.is_again {
            // Karn: which transmission an acknowledgement is for cannot be told.
            self.timed = None;
        }
        (self.ack, self.unacked) = (AckDue::No, 0);
        self.reduction.sent += payload.len() as u64;
        self.count(piece.is_again, false);
        // RFC 3168, 6.1.5: not on what is sent again.
        let ecn = if self.has_ecn && !piece.is_again && !payload.is_empty() { ECN_CAPABLE } else { 0 };
        Segment { tcp, payload, ecn, is_again: piece.is_again }
    }

    fn sack_blocks(&self) -> SackBlocks {
        if !self.has_sack {
            return SackBlocks::default();
        }
        let most = if self.has_timestamps { 3 } else { 4 };
        let sequence = |position: u64| self.peer_first.wrapping_add(position as u32);
        self.receiver.blocks(most).into_iter().map(|(first, end)| (sequence(first), sequence(end))).collect()
    }

    /// An acknowledgement without data; of a position and with a mark where those are given.
    fn pure_ack(&mut self, now: Time, of: Option<(u64, bool)>, position: u64) -> Segment {
        let is_marked = of.map_or(self.tells_congestion, |(_, is_marked)| is_marked);
        let flags = if is_marked { TcpFlags::ACK.with(TcpFlags::ECE) } else { TcpFlags::ACK };
        let mut tcp = self.tcp(now, position, flags);
        match of {
            Some((next, _)) => tcp.acknowledgement = self.peer_first.wrapping_add(next as u32),
            None => (self.ack, self.unacked) = (AckDue::No, 0),
        }
        tcp.options.sack = self.sack_blocks();
        self.count(false, true);
        Segment { tcp, payload: Vec::new(), ecn: 0, is_again: false }
    }

    /// A segment came.
    pub fn receive(&mut self, now: Time, segment: &Segment) {
        let tcp = &segment.tcp;
        match self.state {
            State::Closed => {}
            State::Listen => self.receive_first(now, tcp),
            State::SynSent => self.receive_answer(now, tcp),
            _ => self.receive_synchronised(now, segment),
        }
    }

    /// Takes over what the peer's SYN says.
    fn agree(&mut self, now: Time, tcp: &Tcp) {
        self.peer_first = tcp.sequence;
        self.peer_port = tcp.source_port;
        let options = tcp.options;
        let size = options.segment_size.unwrap_or(SEGMENT_SIZE_USUAL).min(self.config.segment_size);
        self.segment_size = u64::from(size.max(64));
        self.scales =
            options.window_scale.map_or((0, 0), |scale| (scale.min(14), self.config.window_scale()));
        self.has_sack = options.sack_permitted && self.config.sack;
        self.has_timestamps = options.timestamps.is_some() && self.config.timestamps;
        self.echo = options.timestamps.map_or(0, |(value, _)| value);
        let wants =
            if tcp.flags.has(TcpFlags::ACK) { TcpFlags::ECE } else { TcpFlags::ECE.with(TcpFlags::CWR) };
        self.has_ecn = self.config.ecn && tcp.flags.has(wants);
        let size = self.limits().segment_size;
        self.control = self.config.control.start(size, self.config.window_first);
        self.sender.edge = 1 + u64::from(tcp.window);
        let _ = now;
    }

    fn receive_first(&mut self, now: Time, tcp: &Tcp) {
        if tcp.flags.has(TcpFlags::SYN) && !tcp.flags.has(TcpFlags::ACK) && !tcp.flags.has(TcpFlags::RST) {
            self.agree(now, tcp);
            self.state = State::SynReceived;
            self.wants_syn = true;
        }
    }

    fn receive_answer(&mut self, now: Time, tcp: &Tcp) {
        let acknowledges = tcp.flags.has(TcpFlags::ACK) && tcp.acknowledgement == self.sequence(1);
        if tcp.flags.has(TcpFlags::RST) {
            if acknowledges {
                self.fail(Failure::Reset);
            }
            return;
        }
        if !tcp.flags.has(TcpFlags::SYN) {
            return;
        }
        if !acknowledges {
            // Both opened at once (RFC 9293, 3.5): the answer is a SYN of its own.
            if !tcp.flags.has(TcpFlags::ACK) {
                self.agree(now, tcp);
                self.state = State::SynReceived;
                self.wants_syn = true;
            }
            return;
        }
        self.agree(now, tcp);
        self.measure(now, tcp, 1);
        self.sender.una = 1;
        self.retransmit_at = None;
        self.round_trip.backoff = 0;
        self.state = State::Established;
        self.ack = AckDue::Now;
    }

    /// An end without order.
    fn fail(&mut self, failure: Failure) {
        (self.state, self.failure) = (State::Closed, Some(failure));
        (self.retransmit_at, self.probe_at, self.forget_at, self.ack) = (None, None, None, AckDue::No);
        self.wants_syn = false;
    }

    fn receive_synchronised(&mut self, now: Time, segment: &Segment) {
        let (tcp, length) = (&segment.tcp, segment.payload.len() as u64);
        let has_fin = tcp.flags.has(TcpFlags::FIN);
        let Some(position) = Self::position(self.peer_first, tcp.sequence, self.receiver.next) else {
            return;
        };
        if tcp.flags.has(TcpFlags::SYN) {
            // The peer did not hear the answer to its SYN.
            match self.state {
                State::SynReceived => self.wants_syn = true,
                _ => self.ack = AckDue::Now,
            }
            if !tcp.flags.has(TcpFlags::ACK) || self.state != State::SynReceived {
                return;
            }
        }
        let next = self.receiver.next;
        let window = self.receiver.window(self.segment_size).max(1);
        if tcp.flags.has(TcpFlags::RST) {
            if (next..next + window).contains(&position) {
                self.fail(Failure::Reset);
            }
            return;
        }
        if !tcp.flags.has(TcpFlags::ACK) {
            return;
        }
        // RFC 7323, 4.3: the timestamp to echo is that of what is acknowledged next.
        if let Some((value, _)) = tcp.options.timestamps
            && position <= next
            && value.wrapping_sub(self.echo) as i32 >= 0
        {
            self.echo = value;
        }
        self.receive_ack(now, segment);
        if self.state == State::Closed {
            return;
        }
        if length > 0 || has_fin {
            self.receive_data(now, segment, position);
        } else if position + 1 == next {
            // A probe: it wants to hear of the window.
            self.ack = AckDue::Now;
        }
    }

    fn receive_ack(&mut self, now: Time, segment: &Segment) {
        let tcp = &segment.tcp;
        let Some(acknowledged) = Self::position(self.own_first, tcp.acknowledgement, self.sender.una) else {
            return;
        };
        if acknowledged > self.sender.next {
            // It acknowledges what was never sent.
            self.ack = AckDue::Now;
            return;
        }
        let size = self.limits().segment_size;
        let is_marked = self.has_ecn && tcp.flags.has(TcpFlags::ECE);
        let before = (self.sender.una, self.sender.edge, self.sender.pipe(size, self.has_sack));
        let (una, news) = (self.sender.una, self.take_blocks(tcp));
        let offered = u64::from(tcp.window) << self.scales.0;
        if acknowledged >= self.sender.una {
            self.sender.edge = self.sender.edge.max(acknowledged + offered);
        }
        if acknowledged > self.sender.una {
            self.acknowledge(now, tcp, acknowledged, is_marked, before.2);
        } else if acknowledged == self.sender.una
            && segment.payload.is_empty()
            && self.sender.has_in_flight()
            && !tcp.flags.has(TcpFlags::FIN)
            && (news > 0 || !self.has_sack && before.1 == self.sender.edge)
        {
            self.sender.duplicates += 1;
        }
        if is_marked && !self.control.counts_marks() && self.sender.una > self.reduced_until {
            self.reduced_until = self.sender.next;
            self.control.on_congestion(now, before.2);
            self.tells_reduced = true;
        }
        self.reduction.last = news + (self.sender.una - una);
        self.reduction.delivered += self.reduction.last;
        if self.sender.detect_loss(size) {
            self.reduction =
                Reduction { began_with: before.2, last: self.reduction.last, ..Reduction::default() };
            self.counters.recoveries += 1;
            self.reduced_until = self.sender.next;
            self.control.on_congestion(now, before.2);
        }
        self.sender_moved(now);
    }

    /// Notes what the peer says has arrived early. Returns how many bytes of that are news.
    fn take_blocks(&mut self, tcp: &Tcp) -> u64 {
        if !self.has_sack {
            return 0;
        }
        let (una, next) = (self.sender.una, self.sender.next);
        let mut news = 0;
        for (first, end) in tcp.options.sack.as_slice() {
            let near = |sequence: u32| Self::position(self.own_first, sequence, una);
            // What is acknowledged already is a report of a duplicate (RFC 2883).
            if let (Some(first), Some(end)) = (near(*first), near(*end))
                && una < first
                && first < end
                && end <= next
            {
                news += self.sender.board.add(first, end);
            }
        }
        news
    }

    fn acknowledge(&mut self, now: Time, tcp: &Tcp, acknowledged: u64, is_marked: bool, in_flight: u64) {
        self.measure(now, tcp, acknowledged);
        let size = self.limits().segment_size;
        let in_timeout = self.sender.recovery.is_some_and(|recovery| recovery.is_timeout);
        let was_open = self.sender.recovery.is_none() || in_timeout;
        let bytes = self.sender.acknowledge(acknowledged, size, self.has_sack);
        (self.round_trip.backoff, self.probes) = (0, 0);
        self.retransmit_at = self.sender.has_in_flight().then(|| now + self.timeout());
        // A window that was not full is no reason for a larger one.
        let is_limited = in_timeout || in_flight + size >= self.control.window() / 2;
        let positions = (acknowledged, self.sender.next);
        if was_open && bytes > 0 {
            let round_trip = self.round_trip.smoothed();
            self.control.on_ack(&Acked { now, bytes, is_marked, positions, round_trip, is_limited });
        }
        if self.state == State::SynReceived {
            self.state = State::Established;
        }
    }

    /// A round trip, from the echo of a timestamp or from a segment that was timed.
    fn measure(&mut self, now: Time, tcp: &Tcp, acknowledged: u64) {
        if let Some((_, echo)) = tcp.options.timestamps.filter(|(_, echo)| *echo != 0 && self.has_timestamps)
        {
            let micros = Self::clock(now).wrapping_sub(echo);
            if micros < 1 << 31 {
                self.round_trip.sample(Span::from_us(u64::from(micros).max(1)));
            }
        } else if let Some((position, sent)) = self.timed
            && acknowledged >= position
        {
            self.round_trip.sample(now.since(sent));
        }
        if self.timed.is_some_and(|(position, _)| acknowledged >= position) {
            self.timed = None;
        }
    }

    /// What follows for the state when something was acknowledged.
    fn sender_moved(&mut self, now: Time) {
        let is_all = self.sender.has_fin && self.sender.una == self.sender.end() && self.sender.una > 1;
        if !is_all {
            return;
        }
        match self.state {
            State::FinWait1 => self.state = State::FinWait2,
            State::Closing => self.wait(now),
            State::LastAck => {
                self.state = State::Closed;
                (self.retransmit_at, self.probe_at) = (None, None);
            }
            _ => {}
        }
    }

    fn wait(&mut self, now: Time) {
        self.state = State::TimeWait;
        self.retransmit_at = None;
        self.forget_at = Some(now + self.config.time_wait);
    }

    fn receive_data(&mut self, now: Time, segment: &Segment, position: u64) {
        let length = segment.payload.len() as u64;
        if length > 0 {
            self.note_marks(segment);
        }
        let was_over = self.receiver.is_over();
        let arrived = self.receiver.receive(position, &segment.payload, segment.tcp.flags.has(TcpFlags::FIN));
        if self.receiver.is_over() {
            self.ack = AckDue::Now;
            if was_over {
                // Our acknowledgement of its FIN was lost.
                self.forget_at = self.forget_at.map(|_| now + self.config.time_wait);
            } else {
                self.receive_fin(now);
            }
            return;
        }
        self.unacked += length;
        // RFC 5681, 4.2: at once where there is a gap or one was closed, at the latest for every second full segment.
        let at_once = arrived != Arrived::InOrder { closed_gap: false };
        let limit = self.limits().segment_size;
        self.ack = match self.ack {
            _ if at_once || self.unacked >= 2 * limit => AckDue::Now,
            AckDue::No => AckDue::By(now + self.config.delayed_ack),
            due => due,
        };
    }

    /// What the ECN bits of data say.
    fn note_marks(&mut self, segment: &Segment) {
        if !self.has_ecn {
            return;
        }
        let is_marked = segment.ecn == CONGESTION;
        self.counters.marked += u64::from(is_marked);
        if self.control.counts_marks() {
            // RFC 8257, 3.2: what waits for an acknowledgement gets one that tells its own marks.
            if is_marked != self.tells_congestion && self.unacked > 0 {
                self.owed.push((self.receiver.next, self.tells_congestion));
                self.unacked = 0;
            }
            self.tells_congestion = is_marked;
        } else {
            // RFC 3168, 6.1.3: until the sender says that it has heard.
            if segment.tcp.flags.has(TcpFlags::CWR) {
                self.tells_congestion = false;
            }
            self.tells_congestion |= is_marked;
        }
    }

    /// The peer will send no more.
    fn receive_fin(&mut self, now: Time) {
        match self.state {
            State::SynReceived | State::Established => self.state = State::CloseWait,
            State::FinWait1 => self.state = State::Closing,
            State::FinWait2 => self.wait(now),
            _ => {}
        }
    }

    /// Sets the clock of probes where the window is closed, and stops it where it is not.
    fn watch_window(&mut self, now: Time) {
        let is_open = matches!(
            self.state,
            State::Established | State::CloseWait | State::FinWait1 | State::Closing | State::LastAck
        );
        if !is_open || !self.sender.needs_probe() {
            (self.probe_at, self.probes) = (None, 0);
        } else if self.probe_at.is_none() {
            let doubled = self.timeout() * (1 << self.probes.min(10));
            self.probe_at = Some(now + doubled.min(self.config.timeout_most));
        }
    }

    /// When something is due, and what.
    pub fn poll_timeout(&self) -> Option<(Time, TimeoutReason)> {
        let ack = match self.ack {
            AckDue::By(at) => Some(at),
            _ => None,
        };
        [
            (self.retransmit_at, TimeoutReason::Retransmission),
            (ack, TimeoutReason::DelayedAck),
            (self.probe_at, TimeoutReason::Probe),
            (self.forget_at, TimeoutReason::TimeWait),
        ]
        .into_iter()
        .filter_map(|(at, reason)| Some((at?, reason)))
        .min()
    }

    /// The time has come for what was due.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.forget_at.is_some_and(|at| at <= now) {
            (self.forget_at, self.state) = (None, State::Closed);
        }
        if self.probe_at.is_some_and(|at| at <= now) {
            self.probe_at = None;
            self.probes += 1;
            self.wants_probe = true;
        }
        if self.retransmit_at.is_some_and(|at| at <= now) {
            self.retransmit(now);
        }
        if let AckDue::By(at) = self.ack
            && at <= now
        {
            self.ack = AckDue::Now;
        }
    }

    /// The retransmission timer ran out.
    fn retransmit(&mut self, now: Time) {
        self.counters.timeouts += 1;
        if self.round_trip.backoff >= self.config.retries {
            self.fail(Failure::TimedOut);
            return;
        }
        let is_first = self.round_trip.backoff == 0;
        self.round_trip.backoff += 1;
        self.timed = None;
        self.retransmit_at = Some(now + self.timeout());
        if matches!(self.state, State::SynSent | State::SynReceived) && self.sender.una == 0 {
            self.wants_syn = true;
            return;
        }
        let in_flight = self.sender.pipe(self.limits().segment_size, self.has_sack);
        self.sender.time_out();
        if is_first {
            self.control.on_timeout(now, in_flight);
        }
        self.reduced_until = self.sender.next;
    }
}
