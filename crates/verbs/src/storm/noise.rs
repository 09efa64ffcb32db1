//! Calls beside the work: objects that come and go, questions, and mistakes that must be refused.

use libc::{c_int, c_void};
use railnet_core::Random;

use super::calls::{Pages, why};
use super::endpoint::{Endpoint, REMOTE_ALL, STATE_RTS, zero};
use super::play::Process;
use super::program::Transport;
use crate::abi::*;
use crate::object;

/// Bytes of memory that is registered for a moment.
const BYTES: usize = 3 * 4096;

/// One such call, or a few that belong together.
pub(super) fn call(process: &Process<'_>, thread: u32, random: &mut Random) -> Result<(), String> {
    let lost = process.program.victim;
    let is_own = |one: &&Endpoint<'_>| one.end.thread == thread && !one.program.touches(lost);
    let own: Vec<_> = process.endpoints.iter().filter(is_own).collect();
    let chosen = random.next_u64();
    let endpoint = own.get(chosen as usize % own.len().max(1)).copied();
    match (random.below(8), endpoint) {
        (0, _) => questions(process),
        (1, _) => regions(process, random),
        (2, _) => domains(process),
        (3, _) => queues(process, random),
        (4, _) => queue_pairs(process, random),
        (5, Some(endpoint)) => mistakes(process, endpoint),
        (6, Some(endpoint)) => busy(process, endpoint),
        (_, Some(endpoint)) => state(endpoint),
        (_, None) => questions(process),
    }
    .map_err(|why| format!("process {} thread {thread}: {why}", process.number))
}

/// A call that must be refused with this number.
fn refused(outcome: c_int, expected: c_int, call: &str) -> Result<(), String> {
    match outcome == expected {
        true => Ok(()),
        false => Err(format!("{call} gave {outcome} instead of {expected}")),
    }
}

fn questions(process: &Process<'_>) -> Result<(), String> {
    let (calls, context) = (process.common.calls, process.common.context.0);
    let mut port: ibv_port_attr = object::zeroed();
    zero(calls.ibv_query_port(context, 1, &raw mut port), "ibv_query_port")?;
    if port.state != IBV_PORT_ACTIVE {
        return Err(format!("the port is in state {}", port.state));
    }
    refused(calls.ibv_query_port(context, 9, &raw mut port), libc::EINVAL, "ibv_query_port of port 9")?;
    let mut device: ibv_device_attr = object::zeroed();
    zero(calls.ibv_query_device(context, &raw mut device), "ibv_query_device")?;
    if device.phys_port_cnt != 1 || device.max_qp < 1 {
        return Err(format!(
            "the device has {} ports and {} queue pairs",
            device.phys_port_cnt, device.max_qp
        ));
    }
    let mut gid = ibv_gid { raw: [0; 16] };
    zero(calls.ibv_query_gid(context, 1, 0, &raw mut gid), "ibv_query_gid")?;
    if gid.raw != process.common.gid.raw {
        return Err("the GID is another one".to_owned());
    }
    let mut count = 0;
    let list = calls.ibv_get_device_list(&raw mut count);
    let first = *object::read(list).map_err(|_| why())?;
    if count < 1 || calls.ibv_get_device_name(first).is_null() {
        return Err("the list of devices is empty".to_owned());
    }
    calls.ibv_free_device_list(list);
    Ok(())
}

fn regions(process: &Process<'_>, random: &mut Random) -> Result<(), String> {
    const TRANSLATION: c_int = 1;
    const ACCESS: c_int = 4;
    let (calls, domain) = (process.common.calls, process.common.domain.0);
    let pages = Pages::map(BYTES)?;
    let address = pages.address() as *mut c_void;
    let region = calls.ibv_reg_mr(domain, address, BYTES, REMOTE_ALL as c_int);
    let keys = object::read(region).map(|region| (region.lkey, region.rkey)).map_err(|_| why())?;
    let changes = *random.pick(&[TRANSLATION, ACCESS, TRANSLATION | ACCESS]);
    let outcome = calls.ibv_rereg_mr(region, changes, domain, address, BYTES / 2, 1);
    if outcome != 0 {
        return Err(format!("ibv_rereg_mr with {changes} gave {outcome}: {}", why()));
    }
    let changed = object::read(region).map_err(|_| why())?;
    let expected = if changes & TRANSLATION != 0 { BYTES / 2 } else { BYTES };
    if changed.length != expected || (changed.lkey, changed.rkey) != keys {
        return Err("ibv_rereg_mr changed what it was not asked to change".to_owned());
    }
    zero(calls.ibv_dereg_mr(region), "ibv_dereg_mr")?;
    // Remote peers may not write where this side may not.
    if !calls.ibv_reg_mr(domain, address, BYTES, 2).is_null() {
        return Err("a region for remote writes without local ones was registered".to_owned());
    }
    pages.unmap();
    Ok(())
}

fn domains(process: &Process<'_>) -> Result<(), String> {
    let (calls, context) = (process.common.calls, process.common.context.0);
    let domain = calls.ibv_alloc_pd(context);
    let pages = Pages::map(BYTES)?;
    let region = calls.ibv_reg_mr(domain, pages.address() as *mut c_void, BYTES, 0);
    if domain.is_null() || region.is_null() {
        return Err(format!("ibv_alloc_pd or ibv_reg_mr: {}", why()));
    }
    refused(calls.ibv_dealloc_pd(domain), libc::EBUSY, "ibv_dealloc_pd with a region")?;
    zero(calls.ibv_dereg_mr(region), "ibv_dereg_mr")?;
    pages.unmap();
    zero(calls.ibv_dealloc_pd(domain), "ibv_dealloc_pd")
}

fn queues(process: &Process<'_>, random: &mut Random) -> Result<(), String> {
    let (calls, context) = (process.common.calls, process.common.context.0);
    let depth = random.between(1, 500) as c_int;
    let cq = calls.ibv_create_cq(context, depth, std::ptr::null_mut(), std::ptr::null_mut(), 0);
    if cq.is_null() {
        return Err(format!("ibv_create_cq: {}", why()));
    }
    let mut wc: [ibv_wc; 1] = [object::zeroed()];
    refused(calls.poll_cq(cq, &mut wc), 0, "ibv_poll_cq of a new queue")?;
    zero(calls.ibv_resize_cq(cq, 2 * depth), "ibv_resize_cq")?;
    refused(calls.ibv_resize_cq(cq, -1), libc::EINVAL, "ibv_resize_cq to -1")?;
    zero(calls.ibv_destroy_cq(cq), "ibv_destroy_cq")
}

/// A queue pair that is made and destroyed, and refuses work until it is connected.
fn queue_pairs(process: &Process<'_>, random: &mut Random) -> Result<(), String> {
    let (calls, domain) = (process.common.calls, process.common.domain.0);
    let cq = random.pick(&process.completions.queues).cq.0;
    let mut init: ibv_qp_init_attr = object::zeroed();
    (init.send_cq, init.recv_cq) = (cq, cq);
    init.qp_type = *random.pick(&[IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD]);
    (init.cap.max_send_wr, init.cap.max_recv_wr) = (4, 4);
    (init.cap.max_send_sge, init.cap.max_recv_sge) = (1, 1);
    let qp = calls.ibv_create_qp(domain, &raw mut init);
    if qp.is_null() {
        return Err(format!("ibv_create_qp: {}", why()));
    }
    let mut wr: ibv_send_wr = object::zeroed();
    wr.opcode = IBV_WR_SEND;
    let (outcome, bad) = calls.post_send(qp, &raw mut wr);
    refused(outcome, libc::EINVAL, "ibv_post_send in RESET")?;
    if !std::ptr::eq(bad, &raw const wr) {
        return Err("ibv_post_send named another request as the bad one".to_owned());
    }
    let mut attr: ibv_qp_attr = object::zeroed();
    attr.qp_state = STATE_RTS;
    let outcome = calls.ibv_modify_qp(qp, &raw mut attr, IBV_QP_STATE | IBV_QP_SQ_PSN);
    refused(outcome, libc::EINVAL, "ibv_modify_qp from RESET to RTS")?;
    zero(calls.ibv_destroy_qp(qp), "ibv_destroy_qp")
}

/// Work requests that a queue pair in use refuses, and that leave it as it is.
fn mistakes(process: &Process<'_>, endpoint: &Endpoint<'_>) -> Result<(), String> {
    const PIECES_TOO_MANY: usize = 200;
    const NO_OPERATION: c_int = 99;
    let calls = process.common.calls;
    let mut pieces = vec![ibv_sge { addr: 0, length: 1, lkey: 0 }; PIECES_TOO_MANY];
    let mut wr: ibv_send_wr = object::zeroed();
    (wr.opcode, wr.sg_list, wr.num_sge) = (IBV_WR_SEND, pieces.as_mut_ptr(), PIECES_TOO_MANY as c_int);
    if endpoint.program.transport != Transport::Datagram {
        let (outcome, _) = calls.post_send(endpoint.queue_pair.0, &raw mut wr);
        refused(outcome, libc::EINVAL, "ibv_post_send of 200 pieces")?;
        (wr.opcode, wr.num_sge) = (NO_OPERATION, 0);
        let (outcome, _) = calls.post_send(endpoint.queue_pair.0, &raw mut wr);
        refused(outcome, libc::EINVAL, "ibv_post_send of an operation that does not exist")?;
    }
    let mut path: ibv_ah_attr = object::zeroed();
    path.port_num = 1;
    if !calls.ibv_create_ah(process.common.domain.0, &raw mut path).is_null() {
        return Err("an address handle without a GID was made".to_owned());
    }
    state(endpoint)
}

/// Objects that others use stay.
fn busy(process: &Process<'_>, endpoint: &Endpoint<'_>) -> Result<(), String> {
    let calls = process.common.calls;
    let cq = object::read(endpoint.queue_pair.0).map_err(|_| why())?.send_cq;
    refused(calls.ibv_destroy_cq(cq), libc::EBUSY, "ibv_destroy_cq of a queue in use")?;
    let outcome = calls.ibv_dealloc_pd(process.common.domain.0);
    refused(outcome, libc::EBUSY, "ibv_dealloc_pd of a domain in use")
}

fn state(endpoint: &Endpoint<'_>) -> Result<(), String> {
    let attr = endpoint.query()?;
    let peer = endpoint.peer.map_or(0, |peer| peer.number);
    let is_connected = endpoint.program.transport != Transport::Datagram;
    if attr.qp_state != STATE_RTS || is_connected && attr.dest_qp_num != peer {
        return Err(format!("ibv_query_qp tells state {} and peer {:#x}", attr.qp_state, attr.dest_qp_num));
    }
    Ok(())
}
