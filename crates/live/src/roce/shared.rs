//! What a driver does for an address that it shares with other processes, and with children that fork off.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};

use railnet_nic::memory::Memory;

use super::Driver;
use super::steering::Steering;

impl<M: Memory> Driver<M> {
    /// The number of this process among those that share its address; 0 where it has the address alone.
    pub fn member(&self) -> u16 {
        self.steering.as_ref().map_or(0, Steering::member)
    }

    /// Whether [`Driver::rebuild_steering`] is due: a process that shared the address is gone, say. To be asked now and then
    /// where the address is shared.
    pub fn needs_steering(&mut self) -> bool {
        self.steering.as_mut().is_some_and(Steering::needs_rebuild)
    }

    /// Finds out again which process gets which packets. Takes a fraction of a millisecond, or 30 where a process does not
    /// answer.
    pub fn rebuild_steering(&mut self) -> io::Result<()> {
        let Some(steering) = &mut self.steering else { return Ok(()) };
        let mut rebuild = steering.begin_rebuild()?;
        loop {
            let now = self.now();
            let received = self.receive(now)?;
            let Some(steering) = &mut self.steering else { return Ok(()) };
            if steering.gather_answers(&mut rebuild) {
                return steering.end_rebuild(&rebuild, &self.receiver);
            }
            if !received {
                std::thread::yield_now();
            }
        }
    }

    /// Numbers of all its descriptors: a child that forks off must close them, or the address stays taken when this process ends.
    pub fn list_descriptors(&self, into: &mut Vec<RawFd>) {
        let sockets = self.senders.endpoints().chain([&self.receiver]);
        into.extend(sockets.map(|endpoint| endpoint.as_fd().as_raw_fd()));
        if let Some(steering) = &self.steering {
            steering.list_descriptors(into);
        }
    }
}
