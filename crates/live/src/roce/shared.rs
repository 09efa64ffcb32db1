//! What a driver does for an address that it shares with other processes, and with children that fork off.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};

use railnet_nic::memory::{Memory, SpaceId};

use super::Driver;
use super::single_copy::SingleCopy;
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

    /// From now on payloads are copied once between this and other processes of this user and host that do the same: a packet carries
    /// where its payload is, and the receiver fetches it ([`super`] has the details). `locate` tells the address of this process at which
    /// an address of a space is. It has to be the own address alone that others share, without faults and captures: what passes is
    /// then not in packets.
    pub fn enable_single_copy(&mut self, locate: fn(&M, SpaceId, u64) -> u64) -> io::Result<()> {
        let refused = |text: &str| Err(io::Error::new(io::ErrorKind::Unsupported, text));
        let Some(steering) = &self.steering else { return refused("the address is not shared") };
        if self.injector.is_some() || self.tap.is_some() {
            return refused("faults and captures are of packets that carry their bytes");
        }
        self.single_copy = Some(SingleCopy::new(self.local(), steering.member())?);
        self.locate = locate;
        Ok(())
    }

    /// Numbers of all its descriptors: a child that forks off must close them, or the address stays taken when this process ends.
    pub fn list_descriptors(&self, into: &mut Vec<RawFd>) {
        let sockets = self.senders.endpoints().chain([&self.receiver]);
        into.extend(sockets.map(|endpoint| endpoint.as_fd().as_raw_fd()));
        if let Some(steering) = &self.steering {
            steering.list_descriptors(into);
        }
        if let Some(single_copy) = &self.single_copy {
            single_copy.list_descriptors(into);
        }
    }
}
