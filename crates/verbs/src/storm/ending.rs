//! How connections end that end in an error: the status of the work, what follows it, and what the peer hears.

use libc::c_int;

use super::completions::{Posted, Seen};
use super::endpoint::{Endpoint, STATE_ERROR, STATE_RTS, region_bytes, zero};
use super::play::Process;
use super::program::Ending;
use crate::abi::*;
use crate::object;

/// Identifiers of such work: behind those of the program, by link.
const ERRORS: u64 = 1 << 31;
/// Work requests behind the one that fails.
const FOLLOWING: u64 = 2;

const SUCCESS: c_int = 0;
const LOCAL_LENGTH: c_int = 1;
const LOCAL_PROTECTION: c_int = 4;
const FLUSHED: c_int = 5;
const REMOTE_INVALID: c_int = 9;
const REMOTE_ACCESS: c_int = 10;
const RETRY_EXCEEDED: c_int = 12;

/// Bytes of a receive that is too short, and of the message that does not fit.
const SHORT: u32 = 16;
const LONG: u32 = 64;
/// What keys are made wrong with.
const WRONG: u32 = 0x5500;

/// Posts what must be there before the other side begins.
pub(super) fn prepare(process: &Process<'_>, endpoint: &Endpoint<'_>) -> Result<(), String> {
    match (endpoint.program.ending, endpoint.side) {
        (Ending::TooLong, 1) => post_receives(process, endpoint, 1),
        _ => Ok(()),
    }
}

fn post_receives(process: &Process<'_>, endpoint: &Endpoint<'_>, count: usize) -> Result<(), String> {
    for _ in 0..count {
        let (offset, list) = endpoint.take_buffer(SHORT);
        let posted = Posted { endpoint: usize::MAX, offset, bytes: SHORT, expected: None };
        let id = process.completions.seen().expect(posted);
        endpoint.post_receive(id, &list)?;
    }
    Ok(())
}

/// Ends one side of a connection.
pub(super) fn play(process: &Process<'_>, endpoint: &Endpoint<'_>) -> Result<(), String> {
    let ending = endpoint.program.ending;
    let outcome = match (ending, endpoint.side) {
        (Ending::Clean, _) => Ok(()),
        (Ending::Flushed, 0) => flush(process, endpoint),
        (_, 0) => fail(process, endpoint),
        (_, _) => hear(process, endpoint),
    };
    outcome.map_err(|why| format!("{} ends with {ending:?}: {why}", endpoint.name()))
}

/// What the first work request may complete with. With faults on, the answer of a peer that went to the error state may be lost, and
/// is not sent again.
fn statuses(ending: Ending) -> &'static [c_int] {
    match ending {
        Ending::Clean | Ending::Flushed => &[SUCCESS],
        Ending::WrongKey | Ending::BeyondEnd => &[REMOTE_ACCESS, RETRY_EXCEEDED],
        Ending::TooLong => &[REMOTE_INVALID, RETRY_EXCEEDED],
        Ending::WrongLocalKey | Ending::Unmapped => &[LOCAL_PROTECTION],
    }
}

/// The side at which the error is made.
fn fail(process: &Process<'_>, endpoint: &Endpoint<'_>) -> Result<(), String> {
    let ending = endpoint.program.ending;
    let peer = endpoint.peer.expect("connected");
    let lkey = object::read(endpoint.region.0).map_or(0, |region| region.lkey);
    let end = peer.base + u64::from(region_bytes(endpoint.program, 1));
    let (opcode, key, remote, rkey) = match ending {
        Ending::WrongKey => (IBV_WR_RDMA_WRITE, lkey, peer.base, peer.key ^ WRONG),
        Ending::BeyondEnd => (IBV_WR_RDMA_READ, lkey, end - u64::from(LONG) / 2, peer.key),
        Ending::WrongLocalKey => (IBV_WR_SEND, lkey ^ WRONG, 0, 0),
        Ending::Unmapped => (IBV_WR_RDMA_WRITE, lkey, peer.base, peer.key),
        _ => (IBV_WR_SEND, lkey, 0, 0),
    };
    if ending == Ending::Unmapped {
        endpoint.unmap();
    }
    let mut piece = ibv_sge { addr: endpoint.address().base, length: LONG, lkey: key };
    let first_id = ERRORS + endpoint.link as u64 * (1 + FOLLOWING);
    let mut requests: Vec<ibv_send_wr> = Vec::new();
    for index in 0..=FOLLOWING {
        let mut wr: ibv_send_wr = object::zeroed();
        (wr.wr_id, wr.sg_list, wr.num_sge) = (first_id + index, &raw mut piece, 1);
        (wr.opcode, wr.send_flags) = (opcode, IBV_SEND_SIGNALED);
        wr.wr = send_wr_target { rdma: send_wr_rdma { remote_addr: remote, rkey } };
        requests.push(wr);
    }
    for index in 1..requests.len() {
        let next = &raw mut requests[index];
        requests[index - 1].next = next;
    }
    let (outcome, _) = process.common.calls.post_send(endpoint.queue_pair.0, requests.as_mut_ptr());
    zero(outcome, "ibv_post_send")?;
    let told = |seen: &Seen| -> Vec<c_int> {
        let ids = first_id..=first_id + FOLLOWING;
        ids.filter_map(|id| seen.sends.get(&id)).map(|wc| wc.status).collect()
    };
    let all = 1 + FOLLOWING as usize;
    process
        .completions
        .wait(|seen| told(seen).len() == all, |seen| format!("{} completions", all - told(seen).len()))?;
    let found = told(&process.completions.seen());
    if !statuses(ending).contains(&found[0]) || found[1..].iter().any(|status| *status != FLUSHED) {
        return Err(format!("statuses {found:?}, where the first should be one of {:?}", statuses(ending)));
    }
    expect_state(endpoint, STATE_ERROR)
}

fn expect_state(endpoint: &Endpoint<'_>, expected: c_int) -> Result<(), String> {
    match endpoint.query()?.qp_state {
        state if state == expected => Ok(()),
        state => Err(format!("the queue pair is in state {state} instead of {expected}")),
    }
}

/// Receives that wait are flushed, and so is what is posted later.
fn flush(process: &Process<'_>, endpoint: &Endpoint<'_>) -> Result<(), String> {
    let before: Vec<u64> = process.completions.seen().posted.keys().copied().collect();
    post_receives(process, endpoint, 2)?;
    endpoint.fail()?;
    post_receives(process, endpoint, 1)?;
    let number = endpoint.number();
    let flushed = |seen: &Seen| {
        let new = seen.receives.iter().filter(|(id, wc)| wc.qp_num == number && !before.contains(id));
        new.map(|(_, wc)| wc.status).collect::<Vec<_>>()
    };
    process
        .completions
        .wait(|seen| flushed(seen).len() == 3, |seen| format!("{} flushed", flushed(seen).len()))?;
    let found = flushed(&process.completions.seen());
    match found.iter().all(|status| *status == FLUSHED) {
        true => expect_state(endpoint, STATE_ERROR),
        false => Err(format!("receives were flushed with {found:?}")),
    }
}

/// The side that the error comes to.
fn hear(process: &Process<'_>, endpoint: &Endpoint<'_>) -> Result<(), String> {
    let object = endpoint.queue_pair.0 as usize;
    let number = endpoint.number();
    match endpoint.program.ending {
        Ending::WrongKey | Ending::BeyondEnd => {
            process.completions.wait(
                |seen| seen.events.contains(&(IBV_EVENT_QP_ACCESS_ERR, object)),
                |seen| format!("IBV_EVENT_QP_ACCESS_ERR (events: {:?})", seen.events),
            )?;
            expect_state(endpoint, STATE_ERROR)
        }
        Ending::TooLong => {
            let is_it = |wc: &ibv_wc| wc.qp_num == number && wc.status == LOCAL_LENGTH;
            process.completions.wait(
                |seen| seen.receives.values().any(is_it),
                |_| "the receive that is too short".to_owned(),
            )?;
            expect_state(endpoint, STATE_ERROR)
        }
        // Nothing of it leaves the other side.
        _ => expect_state(endpoint, STATE_RTS),
    }
}
