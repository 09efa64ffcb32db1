//! The states of a queue pair, and what each transition needs (IBTA 11.2.5.2, table 94).

use std::fmt;

use railnet_core::{Psn, QueuePairNumber};

use super::{Path, Service};
use crate::config::Mtu;
use crate::error::VerbsError;
use crate::region::Access;

/// The state of a queue pair. The numbers are those of the verbs interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
#[repr(u8)]
pub enum State {
    /// New or wiped.
    Reset = 0,
    /// Receives may be posted.
    Init = 1,
    /// Requests of the peer are served.
    ReadyToReceive = 2,
    /// Work is sent.
    ReadyToSend = 3,
    /// No new work is started; what was started is finished.
    SendQueueDrain = 4,
    /// A send of an unreliable queue pair failed; receives go on.
    SendQueueError = 5,
    /// Nothing works any more.
    Error = 6,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::ReadyToReceive => "RTR",
            Self::ReadyToSend => "RTS",
            Self::SendQueueDrain => "SQD",
            Self::SendQueueError => "SQE",
            Self::Error => "ERR",
        })
    }
}

/// What to change. `None` leaves a thing as it is; whether it may be given or must be depends on the transition.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Attributes {
    /// The state to go to; `None` stays.
    pub state: Option<State>,
    /// The state the caller believes it to be in.
    pub current_state: Option<State>,
    /// Index into the partition table, which has one entry.
    pub partition_index: Option<u16>,
    /// The port, from 1.
    pub port: Option<u8>,
    /// What the peer may do.
    pub access: Option<Access>,
    /// The queue key of datagrams.
    pub queue_key: Option<u32>,
    /// The way to the peer.
    pub path: Option<Path>,
    /// Payload bytes of a full packet.
    pub path_mtu: Option<Mtu>,
    /// The peer's queue pair.
    pub destination: Option<QueuePairNumber>,
    /// The sequence number that the peer starts with.
    pub receive_psn: Option<Psn>,
    /// The sequence number to start with.
    pub send_psn: Option<Psn>,
    /// READs and atomics of the peer served at once.
    pub destination_reads: Option<u8>,
    /// READs and atomics in flight to the peer.
    pub initiator_reads: Option<u8>,
    /// The code of the wait asked for when no receive is posted.
    pub min_rnr_timer: Option<u8>,
    /// The code of the acknowledgement timeout.
    pub timeout: Option<u8>,
    /// Retries without an answer.
    pub retry_count: Option<u8>,
    /// Retries when the peer has no receive; 7 is for ever.
    pub rnr_retry: Option<u8>,
    /// Raise an event when the send queue is drained.
    pub notify_drained: Option<bool>,
}

macro_rules! attributes {
    ($($name:ident = $bit:literal, $field:ident, $text:literal;)*) => {
        /// The name of an attribute.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[allow(missing_docs, reason = "each is documented as a field of `Attributes`")]
        pub enum Attribute {
            $($name,)*
        }

        impl Attribute {
            const ALL: &[Self] = &[$(Self::$name,)*];

            const fn bit(self) -> u32 {
                match self {
                    $(Self::$name => 1 << $bit,)*
                }
            }
        }

        impl fmt::Display for Attribute {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(match self {
                    $(Self::$name => $text,)*
                })
            }
        }

        impl Attributes {
            /// Which are given, as bits.
            fn given(&self) -> u32 {
                let mut bits = 0;
                $(if self.$field.is_some() { bits |= 1 << $bit; })*
                bits
            }
        }
    };
}

attributes! {
    CurrentState = 0, current_state, "the current state";
    PartitionIndex = 1, partition_index, "the partition key index";
    Port = 2, port, "the port";
    Access = 3, access, "the access flags";
    QueueKey = 4, queue_key, "the queue key";
    Path = 5, path, "the path (address vector)";
    PathMtu = 6, path_mtu, "the path MTU";
    Destination = 7, destination, "the destination queue pair";
    ReceivePsn = 8, receive_psn, "the receive PSN";
    SendPsn = 9, send_psn, "the send PSN";
    DestinationReads = 10, destination_reads, "the destination's READ and atomic depth";
    InitiatorReads = 11, initiator_reads, "the initiator's READ and atomic depth";
    MinRnrTimer = 12, min_rnr_timer, "the minimum RNR timer";
    Timeout = 13, timeout, "the acknowledgement timeout";
    RetryCount = 14, retry_count, "the retry count";
    RnrRetry = 15, rnr_retry, "the RNR retry count";
    NotifyDrained = 16, notify_drained, "the drained notification";
}

const fn bits(list: &[Attribute]) -> u32 {
    let (mut bits, mut index) = (0, 0);
    while index < list.len() {
        bits |= list[index].bit();
        index += 1;
    }
    bits
}

/// (required, optional) of a transition, or `None` where there is no such transition.
fn rules(service: Service, from: State, to: State) -> Option<(u32, u32)> {
    use Attribute as A;
    use Service::{Datagram, ReliableConnection, UnreliableConnection};
    use State::{Error, Init, ReadyToReceive, ReadyToSend, Reset, SendQueueDrain, SendQueueError};

    let key = match service {
        Datagram => A::QueueKey,
        _ => A::Access,
    };
    let rules = match (from, to) {
        (_, Reset | Error) => (0, 0),
        (Reset, Init) => (bits(&[A::PartitionIndex, A::Port, key]), 0),
        (Init, Init) => (0, bits(&[A::PartitionIndex, A::Port, key])),
        (Init, ReadyToReceive) => match service {
            ReliableConnection => (
                bits(&[
                    A::Path,
                    A::PathMtu,
                    A::Destination,
                    A::ReceivePsn,
                    A::DestinationReads,
                    A::MinRnrTimer,
                ]),
                bits(&[A::Access, A::PartitionIndex]),
            ),
            UnreliableConnection => (
                bits(&[A::Path, A::PathMtu, A::Destination, A::ReceivePsn]),
                bits(&[A::Access, A::PartitionIndex]),
            ),
            Datagram => (0, bits(&[A::PartitionIndex, A::QueueKey])),
        },
        (ReadyToReceive, ReadyToSend) => match service {
            ReliableConnection => (
                bits(&[A::SendPsn, A::Timeout, A::RetryCount, A::RnrRetry, A::InitiatorReads]),
                bits(&[A::CurrentState, A::Access, A::MinRnrTimer]),
            ),
            UnreliableConnection => (bits(&[A::SendPsn]), bits(&[A::CurrentState, A::Access])),
            Datagram => (bits(&[A::SendPsn]), bits(&[A::CurrentState, A::QueueKey])),
        },
        (ReadyToSend | SendQueueDrain, ReadyToSend) => match service {
            ReliableConnection => (0, bits(&[A::CurrentState, A::Access, A::MinRnrTimer])),
            UnreliableConnection => (0, bits(&[A::CurrentState, A::Access])),
            Datagram => (0, bits(&[A::CurrentState, A::QueueKey])),
        },
        (SendQueueError, ReadyToSend) if service != ReliableConnection => (0, bits(&[A::CurrentState, key])),
        (ReadyToSend, SendQueueDrain) => (0, bits(&[A::NotifyDrained])),
        (SendQueueDrain, SendQueueDrain) => match service {
            ReliableConnection => (
                0,
                bits(&[
                    A::Port,
                    A::Path,
                    A::InitiatorReads,
                    A::DestinationReads,
                    A::PartitionIndex,
                    A::Access,
                    A::MinRnrTimer,
                    A::Timeout,
                    A::RetryCount,
                    A::RnrRetry,
                ]),
            ),
            UnreliableConnection => (0, bits(&[A::Path, A::PartitionIndex, A::Access])),
            Datagram => (0, bits(&[A::PartitionIndex, A::QueueKey])),
        },
        _ => return None,
    };
    Some(rules)
}

/// The state after the change, or why it cannot be.
pub(crate) fn check_transition(
    service: Service,
    from: State,
    change: &Attributes,
) -> Result<State, VerbsError> {
    if let Some(assumed) = change.current_state
        && assumed != from
    {
        return Err(VerbsError::WrongCurrentState { assumed, actual: from });
    }
    let to = change.state.unwrap_or(from);
    let (required, optional) = rules(service, from, to).ok_or(VerbsError::Transition { from, to })?;
    let given = change.given();
    if required & !given | given & !(required | optional) == 0 {
        return Ok(to);
    }
    for &attribute in Attribute::ALL {
        if required & attribute.bit() & !given != 0 {
            return Err(VerbsError::MissingAttribute { from, to, missing: attribute });
        }
        if given & attribute.bit() & !(required | optional) != 0 {
            return Err(VerbsError::ExtraAttribute { from, to, extra: attribute });
        }
    }
    Ok(to)
}

#[cfg(test)]
mod tests {
    use super::*;
    use railnet_wire::Gid;

    fn to_rtr() -> Attributes {
        Attributes {
            state: Some(State::ReadyToReceive),
            path: Some(Path::to(Gid::default())),
            path_mtu: Some(Mtu::Mtu1024),
            destination: Some(QueuePairNumber::new(7)),
            receive_psn: Some(Psn::new(1)),
            destination_reads: Some(1),
            min_rnr_timer: Some(12),
            ..Attributes::default()
        }
    }

    #[test]
    fn a_missing_attribute_is_named() {
        let change = Attributes { min_rnr_timer: None, ..to_rtr() };
        let error = check_transition(Service::ReliableConnection, State::Init, &change).unwrap_err();
        assert_eq!(error.to_string(), "the transition INIT to RTR needs the minimum RNR timer");
        assert!(check_transition(Service::ReliableConnection, State::Init, &to_rtr()).is_ok());
    }

    #[test]
    fn an_extra_attribute_is_named() {
        let error = check_transition(Service::UnreliableConnection, State::Init, &to_rtr()).unwrap_err();
        assert!(matches!(error, VerbsError::ExtraAttribute { extra: Attribute::DestinationReads, .. }));
    }

    #[test]
    fn only_the_transitions_of_the_table_exist() {
        use State::{Error, Init, ReadyToReceive, ReadyToSend, Reset, SendQueueDrain, SendQueueError};
        let all = [Reset, Init, ReadyToReceive, ReadyToSend, SendQueueDrain, SendQueueError, Error];
        let mut legal = Vec::new();
        for from in all {
            for to in all.into_iter().filter(|&to| to != Reset && to != Error) {
                if rules(Service::ReliableConnection, from, to).is_some() {
                    legal.push((from, to));
                }
            }
            assert!(rules(Service::ReliableConnection, from, Reset).is_some());
            assert!(rules(Service::ReliableConnection, from, Error).is_some());
        }
        assert_eq!(
            legal,
            [
                (Reset, Init),
                (Init, Init),
                (Init, ReadyToReceive),
                (ReadyToReceive, ReadyToSend),
                (ReadyToSend, ReadyToSend),
                (ReadyToSend, SendQueueDrain),
                (SendQueueDrain, ReadyToSend),
                (SendQueueDrain, SendQueueDrain),
            ]
        );
        assert!(rules(Service::Datagram, SendQueueError, ReadyToSend).is_some());
    }

    #[test]
    fn a_wrong_belief_about_the_state_is_an_error() {
        let change = Attributes { current_state: Some(State::ReadyToReceive), ..Attributes::default() };
        assert!(matches!(
            check_transition(Service::ReliableConnection, State::ReadyToSend, &change),
            Err(VerbsError::WrongCurrentState { .. })
        ));
    }
}
