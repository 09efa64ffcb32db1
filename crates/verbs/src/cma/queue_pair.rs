//! Queue pairs of identifiers, with completion queues and shared receive queues that are made for them.

use libc::c_int;
use railnet_nic::State as NicState;

use super::identifier::CmId;
use super::{call, checked, connect, made};
use crate::abi::*;
use crate::errors::guard;
use crate::{completion, object, queue_pair, receive};

/// Makes a completion channel and a completion queue of an identifier, where there are none.
fn make_queue(
    id: *mut rdma_cm_id,
    depth: u32,
    channel: &mut *mut ibv_comp_channel,
    queue: &mut *mut ibv_cq,
) -> Result<(), c_int> {
    let verbs = object::read(id)?.verbs;
    if depth == 0 || !queue.is_null() {
        return Ok(());
    }
    *channel = made(completion::create_channel(verbs))?;
    *queue = made(completion::create(verbs, depth as c_int, id.cast(), *channel, 0))?;
    Ok(())
}

/// Makes the completion queues that the application did not bring.
fn make_queues(id: *mut rdma_cm_id, init: &mut ibv_qp_init_attr_ex) -> Result<(), c_int> {
    let c = object::write(id)?;
    if init.send_cq.is_null() {
        make_queue(id, init.cap.max_send_wr, &mut c.send_cq_channel, &mut c.send_cq)?;
        init.send_cq = c.send_cq;
    }
    if init.recv_cq.is_null() {
        make_queue(id, init.cap.max_recv_wr, &mut c.recv_cq_channel, &mut c.recv_cq)?;
        init.recv_cq = c.recv_cq;
    }
    // A queue of which nothing is asked needs no completions of its own.
    if init.send_cq.is_null() {
        init.send_cq = init.recv_cq;
    } else if init.recv_cq.is_null() {
        init.recv_cq = init.send_cq;
    }
    Ok(())
}

/// Destroys the queues that were made for an identifier.
fn destroy_queues(id: *mut rdma_cm_id) {
    let Ok(c) = object::write(id) else { return };
    for queue in [&mut c.send_cq, &mut c.recv_cq] {
        let queue = std::mem::replace(queue, std::ptr::null_mut());
        if !queue.is_null() {
            completion::destroy(queue);
        }
    }
    for channel in [&mut c.send_cq_channel, &mut c.recv_cq_channel] {
        let channel = std::mem::replace(channel, std::ptr::null_mut());
        if !channel.is_null() {
            completion::destroy_channel(channel);
        }
    }
}

/// Brings a new queue pair to the state that it waits for a connection in; one for datagrams all the way up.
fn prepare(id: *mut rdma_cm_id, qp: *mut ibv_qp) -> Result<(), c_int> {
    let shared = &CmId::of(id)?.shared;
    let states: &[NicState] = match shared.is_datagram() {
        true => &[NicState::Init, NicState::ReadyToReceive, NicState::ReadyToSend],
        false => &[NicState::Init],
    };
    for to in states {
        let (mut attr, mask) = connect::attributes(shared, *to)?;
        checked(queue_pair::modify(qp, &raw mut attr, mask))?;
    }
    Ok(())
}

fn make(id: *mut rdma_cm_id, init: &mut ibv_qp_init_attr_ex) -> Result<(), c_int> {
    let shared = &CmId::of(id)?.shared;
    let c = object::write(id)?;
    let is_datagram = init.qp_type == IBV_QPT_UD;
    if !c.qp.is_null() || c.verbs.is_null() || is_datagram != shared.is_datagram() {
        return Err(libc::EINVAL);
    }
    if init.comp_mask & IBV_QP_INIT_ATTR_PD == 0 || init.pd.is_null() {
        init.comp_mask |= IBV_QP_INIT_ATTR_PD;
        init.pd = c.pd;
    } else if object::read(init.pd)?.context != c.verbs {
        return Err(libc::EINVAL);
    }
    if init.srq.is_null() {
        init.srq = c.srq;
    }
    let given = (init.send_cq, init.recv_cq);
    let outcome = make_queues(id, init).and_then(|()| {
        let qp = made(queue_pair::create_extended(c.verbs, init))?;
        prepare(id, qp).inspect_err(|_| _ = queue_pair::destroy(qp))?;
        Ok(qp)
    });
    // The application's structure says what the application said.
    (init.send_cq, init.recv_cq) = given;
    match outcome {
        Ok(qp) => {
            let c = object::write(id)?;
            (c.qp, c.pd) = (qp, init.pd);
            Ok(())
        }
        Err(number) => {
            destroy_queues(id);
            Err(number)
        }
    }
}

pub(crate) extern "C" fn create(id: *mut rdma_cm_id, pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> c_int {
    call(|| {
        let init = object::write(init)?;
        let mut extended: ibv_qp_init_attr_ex = object::zeroed();
        (extended.qp_context, extended.cap) = (init.qp_context, init.cap);
        (extended.send_cq, extended.recv_cq, extended.srq) = (init.send_cq, init.recv_cq, init.srq);
        (extended.qp_type, extended.sq_sig_all) = (init.qp_type, init.sq_sig_all);
        (extended.comp_mask, extended.pd) = (IBV_QP_INIT_ATTR_PD, pd);
        make(id, &mut extended)?;
        init.cap = extended.cap;
        Ok(())
    })
}

pub(crate) extern "C" fn create_extended(id: *mut rdma_cm_id, init: *mut ibv_qp_init_attr_ex) -> c_int {
    call(|| make(id, object::write(init)?))
}

pub(crate) extern "C" fn destroy(id: *mut rdma_cm_id) {
    guard((), || {
        let Ok(c) = object::write(id) else { return };
        let qp = std::mem::replace(&mut c.qp, std::ptr::null_mut());
        if !qp.is_null() {
            queue_pair::destroy(qp);
        }
        destroy_queues(id);
    });
}

pub(crate) extern "C" fn create_shared(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> c_int {
    call(|| {
        let c = object::write(id)?;
        let pd = if pd.is_null() { c.pd } else { pd };
        if !c.srq.is_null() || c.verbs.is_null() || object::read(pd)?.context != c.verbs {
            return Err(libc::EINVAL);
        }
        (c.srq, c.pd) = (made(receive::create(pd, init))?, pd);
        Ok(())
    })
}

pub(crate) extern "C" fn create_shared_extended(
    id: *mut rdma_cm_id,
    init: *mut ibv_srq_init_attr_ex,
) -> c_int {
    call(|| {
        let c = object::write(id)?;
        let init = object::write(init)?;
        if init.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 || init.pd.is_null() {
            init.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
            init.pd = c.pd;
        }
        if !c.srq.is_null() || c.verbs.is_null() || object::read(init.pd)?.context != c.verbs {
            return Err(libc::EINVAL);
        }
        let pd = init.pd;
        (c.srq, c.pd) = (made(receive::create_extended(c.verbs, init))?, pd);
        Ok(())
    })
}

pub(crate) extern "C" fn destroy_shared(id: *mut rdma_cm_id) {
    guard((), || {
        let Ok(c) = object::write(id) else { return };
        let srq = std::mem::replace(&mut c.srq, std::ptr::null_mut());
        if !srq.is_null() {
            receive::destroy(srq);
        }
    });
}
