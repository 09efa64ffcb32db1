//! What a driver does for an address that it shares with other processes, and with children that fork off.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};

use railnet_nic::memory::{Memory, SpaceId};

use super::Driver;
use super::shared_payload::SharedPayload;
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

    /// From now on payloads between this and other processes of this user and host that do the same go through shared memory: a packet
    /// carries the slot in which its payload is. `copy` fills so many bytes from an address of a space, and tells whether it could. The
    /// address has to be one that others may share, and without faults and captures: what passes is then not in packets.
    pub fn enable_shared_memory(&mut self, copy: fn(&M, SpaceId, u64, &mut [u8]) -> bool) -> io::Result<()> {
        let refused = |text: &str| Err(io::Error::new(io::ErrorKind::Unsupported, text));
        let Some(steering) = &self.steering else { return refused("the address is not shared") };
        if self.injector.is_some() || self.tap.is_some() {
            return refused("faults and captures are of packets that carry their bytes");
        }
        self.shared_payload = Some((SharedPayload::new(self.local(), steering.member())?, copy));
        Ok(())
    }

    /// Numbers of all its descriptors: a child that forks off must close them, or the address stays taken when this process ends.
    pub fn list_descriptors(&self, into: &mut Vec<RawFd>) {
        let sockets = self.senders.endpoints().chain([&self.receiver]);
        into.extend(sockets.map(|endpoint| endpoint.as_fd().as_raw_fd()));
        if let Some(steering) = &self.steering {
            steering.list_descriptors(into);
        }
        if let Some((shared_payload, _)) = &self.shared_payload {
            shared_payload.list_descriptors(into);
        }
    }
}
