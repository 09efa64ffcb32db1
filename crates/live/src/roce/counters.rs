//! What a driver counts.

use super::faults::FaultCounters;
use super::guard::Refusal;

/// What a driver counted; what the NIC counted is in [`railnet_nic::Nic::counters`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Datagrams sent.
    pub sent: u64,
    /// Calls to send them.
    pub sends: u64,
    /// Datagrams received.
    pub received: u64,
    /// Calls that received some.
    pub receives: u64,
    /// Datagrams that are no RoCEv2 packets.
    pub malformed: u64,
    /// Sends that the kernel refused; their packets are lost.
    pub refused: u64,
    /// Packets that came from another port than that of their queue pair's peer, and were thrown away for it.
    pub forged_port: u64,
    /// Packets without the code that their queue pair asks for, or with a wrong one.
    pub forged_code: u64,
    /// Packets whose code had come before: sent again by somebody who listened, or doubled by the network.
    pub replayed: u64,
    /// Payloads that came through shared memory.
    pub shared: u64,
    /// Packets that were lost because their payload was not there, or not any more.
    pub unshared: u64,
    /// What the faults did that were asked for.
    pub faults: FaultCounters,
}

impl Counters {
    /// Counts a packet that was thrown away.
    pub(super) fn refuse(&mut self, refusal: Refusal) {
        *match refusal {
            Refusal::Port => &mut self.forged_port,
            Refusal::Code => &mut self.forged_code,
            Refusal::Replay => &mut self.replayed,
        } += 1;
    }
}
