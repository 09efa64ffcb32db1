//! The thread behind the control channel: one loop around `poll`.

use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::NoticeKind;
use super::hub::Hub;
use super::shared::{Ending, Shared};
use crate::message::Message;
use crate::socket::{self, Broken, Connection};

/// Signs of life per silence that would be noticed.
const SIGNS: u32 = 4;
/// What may wait to be sent to rank 0. Calls wait for their answers, so more means that it does not read.
const QUEUE_MAX: usize = 16 * 1024 * 1024;

/// Which end this is.
pub(super) enum Role {
    Hub(Hub),
    Leaf(Connection),
}

impl Role {
    pub(super) fn hub(connections: Vec<Connection>) -> Self {
        Self::Hub(Hub::new(connections))
    }
}

pub(super) struct Engine {
    role: Role,
    shared: Arc<Shared>,
    silence: Duration,
    is_silent: bool,
}

impl Engine {
    pub(super) fn new(role: Role, shared: Arc<Shared>, silence: Duration) -> Self {
        Self { role, shared, silence, is_silent: false }
    }

    pub(super) fn run(mut self) {
        loop {
            // Before the first sleep too: something may have come together with the end of the meeting.
            match &mut self.role {
                Role::Hub(hub) => hub.hear(&self.shared),
                Role::Leaf(_) => self.hear_hub(),
            }
            let (commands, ending) = self.shared.take_commands();
            let count = commands.len();
            for command in commands {
                self.obey(command);
            }
            if count > 0 {
                self.shared.obeyed(count);
            }
            let now = Instant::now();
            match ending {
                Ending::Stop => break,
                Ending::Leave(deadline) if self.has_left(deadline) || now >= deadline => break,
                _ => {}
            }
            let interval = self.silence / SIGNS;
            let mut next = match &mut self.role {
                Role::Hub(hub) => hub.attend(&self.shared, self.silence, interval, now),
                Role::Leaf(_) => self.attend_hub(interval, now),
            };
            if let Ending::Leave(deadline) = ending {
                next = next.min(deadline);
            }
            if self.sleep(next).is_err() {
                break;
            }
        }
        self.shared.close("this rank has left the control channel");
    }

    fn obey(&mut self, command: Message) {
        match &mut self.role {
            Role::Hub(hub) => hub.handle(0, command, &self.shared),
            Role::Leaf(connection) => {
                let said = connection.say(&command, QUEUE_MAX);
                self.check_said(said);
            }
        }
    }

    /// Says goodbye, and whether that is done: rank 0 stays until the others have left.
    fn has_left(&mut self, deadline: Instant) -> bool {
        match &mut self.role {
            Role::Hub(hub) => hub.has_left(deadline),
            Role::Leaf(connection) => {
                if connection.say(&Message::Leave, QUEUE_MAX).is_ok() {
                    connection.drain(deadline);
                }
                true
            }
        }
    }

    fn sleep(&self, until: Instant) -> std::io::Result<()> {
        let wake = self.shared.wake_fd();
        let mut fds = vec![PollFd::from_borrowed_fd(wake.as_fd(), PollFlags::IN)];
        match &self.role {
            Role::Hub(hub) => fds.extend(hub.poll_fds()),
            // After the end of the connection only this rank itself has anything to say.
            Role::Leaf(connection) if !connection.is_over() => fds.push(connection.poll_fd()),
            Role::Leaf(_) => {}
        }
        socket::wait(&mut fds, until)
    }

    /// Gives a sign of life and looks for rank 0's. Returns when to do so next.
    fn attend_hub(&mut self, interval: Duration, now: Instant) -> Instant {
        let Role::Leaf(connection) = &mut self.role else {
            return now + interval;
        };
        if connection.is_over() {
            return now + interval;
        }
        let is_silent = now.saturating_duration_since(connection.last_heard) >= self.silence;
        if is_silent != self.is_silent {
            self.is_silent = is_silent;
            let kind = if is_silent { NoticeKind::Silent } else { NoticeKind::Heard };
            let body = format!("nothing heard for {:.1?}", self.silence).into_bytes();
            self.shared.deliver(Message::Notice { from: 0, kind: kind.number(), body });
        }
        if now >= connection.last_said + interval {
            let said = connection.say(&Message::Ping, QUEUE_MAX);
            self.check_said(said);
        }
        now + interval
    }

    fn hear_hub(&mut self) {
        let Role::Leaf(connection) = &mut self.role else {
            return;
        };
        if connection.is_over() {
            return;
        }
        let flushed = connection.flush();
        let heard = connection.fill().and(flushed);
        loop {
            match connection.decoder.next() {
                Ok(Some(Message::Leave)) => {
                    connection.end();
                    let left = NoticeKind::Left.number();
                    self.shared.deliver(Message::Notice { from: 0, kind: left, body: Vec::new() });
                    self.shared.close("it has finished");
                    return;
                }
                Ok(Some(message)) => self.shared.deliver(message),
                Ok(None) => break,
                Err(malformed) => return self.check(Err(malformed.into())),
            }
        }
        self.check(heard);
    }

    /// Where nothing more can be said, what rank 0 said last is heard first: it may be a goodbye.
    fn check_said(&mut self, said: Result<(), Broken>) {
        if said.is_err() {
            self.hear_hub();
        }
        self.check(said);
    }

    /// Rank 0 being gone is news, and the end of the channel.
    fn check(&mut self, outcome: Result<(), Broken>) {
        let (Err(cause), Role::Leaf(connection)) = (outcome, &mut self.role) else {
            return;
        };
        if connection.is_over() {
            return;
        }
        connection.end();
        let cause = cause.to_string();
        let body = cause.clone().into_bytes();
        self.shared.deliver(Message::Notice { from: 0, kind: NoticeKind::Lost.number(), body });
        self.shared.close(&cause);
    }
}
