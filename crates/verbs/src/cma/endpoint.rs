//! Endpoints: `rdma_create_ep`, and identifiers whose calls wait for their events.

use libc::c_int;

use super::identifier::{self, CmId, Endpoint};
use super::resolve::{self, resolve_route};
use super::{call, checked, event, queue_pair, socket_address};
use crate::abi::*;
use crate::errors::{guard, last};
use crate::object;

/// Waits for the event that a call leads to, where the identifier's calls wait. It stays in `event` until the next call.
pub(super) fn complete(id: *mut rdma_cm_id) -> Result<(), c_int> {
    if !CmId::of(id)?.shared.inner().is_synchronous {
        return Ok(());
    }
    identifier::acknowledge_last(id)?;
    let told = event::next(object::read(id)?.channel)?;
    object::write(id)?.event = told;
    let told = object::read(told)?;
    match (told.event, told.status) {
        (_, 0) => Ok(()),
        (RDMA_CM_EVENT_REJECTED, _) => Err(libc::ECONNREFUSED),
        (RDMA_CM_EVENT_UNREACHABLE, status) if status > 0 => Err(libc::ECONNREFUSED),
        (_, status) => Err(status.abs()),
    }
}

/// The outcome of a function of librdmacm.
fn posix(returned: c_int) -> Result<(), c_int> {
    if returned == 0 { Ok(()) } else { Err(last()) }
}

pub(crate) extern "C" fn create(
    out: *mut *mut rdma_cm_id,
    info: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    call(|| {
        let (out, info) = (object::write(out)?, object::read(info)?);
        let kind = (info.ai_qp_type != 0).then_some(info.ai_qp_type);
        let id =
            identifier::create_of_type(std::ptr::null_mut(), std::ptr::null_mut(), info.ai_port_space, kind)?;
        if let Err(number) = prepare(id, info, pd, init) {
            identifier::destroy(id);
            return Err(number);
        }
        *out = id;
        Ok(())
    })
}

/// Binds a listening endpoint, or resolves the peer of one that connects and makes its queue pair.
fn prepare(
    id: *mut rdma_cm_id,
    info: &rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> Result<(), c_int> {
    let shared = &CmId::of(id)?.shared;
    if let Ok(init) = object::write(init) {
        init.qp_type = shared.queue_pair_type;
    }
    if info.ai_flags & RAI_PASSIVE != 0 {
        resolve::bind(id, socket_address::parse(info.ai_src_addr)?)?;
        let init = object::maybe_read(init).copied();
        CmId::of(id)?.endpoint.set(Some(Endpoint { domain: pd, init }));
        return Ok(());
    }
    let source = socket_address::maybe(info.ai_src_addr)?;
    resolve::resolve(id, source, socket_address::parse(info.ai_dst_addr)?)?;
    complete(id)?;
    posix(resolve_route(id, 0))?;
    if !init.is_null() {
        posix(queue_pair::create(id, pd, init))?;
    }
    let data = object::array(info.ai_connect.cast::<u8>(), info.ai_connect_len)?;
    shared.inner().connect_data = data.to_vec();
    Ok(())
}

pub(crate) extern "C" fn destroy(id: *mut rdma_cm_id) {
    guard((), || {
        let Ok(c) = object::read(id) else { return };
        if !c.qp.is_null() {
            queue_pair::destroy(id);
        }
        if !c.srq.is_null() {
            queue_pair::destroy_shared(id);
        }
        identifier::destroy(id);
    });
}

pub(crate) extern "C" fn get_request(listener: *mut rdma_cm_id, out: *mut *mut rdma_cm_id) -> c_int {
    call(|| {
        let out = object::write(out)?;
        let (is_synchronous, endpoint) = {
            let own = CmId::of(listener)?;
            (own.shared.inner().is_synchronous, own.endpoint.get())
        };
        if !is_synchronous {
            return Err(libc::EINVAL);
        }
        identifier::acknowledge_last(listener)?;
        let told = event::next(object::read(listener)?.channel)?;
        let (kind, status, id) = {
            let told = object::read(told)?;
            (told.event, told.status, told.id)
        };
        let outcome = match (kind, status) {
            (RDMA_CM_EVENT_CONNECT_REQUEST, 0) => match endpoint {
                Some(Endpoint { domain, init: Some(mut init) }) => {
                    posix(queue_pair::create(id, domain, &raw mut init))
                }
                _ => Ok(()),
            },
            (_, 0) => Err(libc::EINVAL),
            (_, status) => checked(status.abs()),
        };
        if let Err(number) = outcome {
            object::write(listener)?.event = told;
            return Err(number);
        }
        object::write(id)?.event = told;
        *out = id;
        Ok(())
    })
}
