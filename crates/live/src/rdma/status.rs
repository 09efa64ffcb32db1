//! What the NIC of a rank says of itself when it is asked from outside.

use railnet_nic::DropReason;

use super::{Half, Rdma};
use crate::status::{QueuePairStatus, RankStatus};

/// Queue pairs that are told of.
const QUEUE_PAIRS: usize = 1024;

impl Rdma {
    /// Adds the counters of its port and its queue pairs.
    pub(crate) fn describe(&self, status: &mut RankStatus) {
        let (nic, driver) = (self.driver.nic().counters(), self.driver.counters());
        status.nic = Some(self.driver.local().to_string());
        let own = [
            ("packets sent", nic.sent),
            ("packets sent again", nic.resent),
            ("packets received", nic.received),
            ("acknowledgement timeouts", nic.timeouts),
            ("sequence NAKs sent", nic.sequence_naks),
            ("RNR NAKs sent", nic.rnr_naks),
            ("CNPs sent", nic.notifications_sent),
            ("CNPs received", nic.notifications_received),
            ("datagrams sent", driver.sent),
            ("datagrams received", driver.received),
            ("datagrams malformed", driver.malformed),
            ("sends refused by the kernel", driver.refused),
            ("packets from a wrong port", driver.forged_port),
            ("packets with a wrong code", driver.forged_code),
            ("packets replayed", driver.replayed),
        ];
        status.counters.extend(own.map(|(name, value)| (name.to_owned(), value)));
        let drops = DropReason::ALL.into_iter().map(|reason| (reason, nic.dropped(reason)));
        let drops = drops.filter(|(_, count)| *count > 0);
        status.counters.extend(drops.map(|(reason, count)| (format!("packets dropped: {reason}"), count)));
        let of_ends = self.ends.iter().flatten().flat_map(|end| match &end.half {
            Half::Sends(sender, _) => sender.queue_pairs(),
            Half::Receives(receiver) => receiver.queue_pairs(),
        });
        let of_windows = self.windows.iter().flatten().flat_map(super::window::End::queue_pairs);
        for number in of_ends.chain(of_windows).take(QUEUE_PAIRS) {
            let Ok(info) = self.driver.nic().query_qp(*number) else { continue };
            status.queue_pairs.push(QueuePairStatus {
                number: number.value(),
                destination: info.destination.value(),
                state: info.state.to_string(),
                sends: info.sends,
                receives: info.receives,
                send_psn: info.send_psn.value(),
                receive_psn: info.receive_psn.value(),
            });
        }
    }
}
