//! Shared receive queues.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::c_int;
use railnet_nic::SharedReceiveQueue;

use crate::abi::*;
use crate::adapter::{Adapter, EventTarget};
use crate::channel::Subject;
use crate::context::Context;
use crate::errors::{guard, null, of_verb, status};
use crate::memory::Domain;
use crate::object;

/// A shared receive queue.
#[repr(C)]
pub(crate) struct SharedQueue {
    pub(crate) c: ibv_srq,
    pub(crate) adapter: Arc<Adapter>,
    pub(crate) queue: SharedReceiveQueue,
    attr: ibv_srq_attr,
    limit: AtomicU32,
    target: EventTarget,
}

fn make(pd: *mut ibv_pd, srq_context: *mut libc::c_void, attr: ibv_srq_attr) -> Result<*mut ibv_srq, c_int> {
    let domain = object::of::<Domain, _>(pd)?;
    let context = Context::of(object::read(pd)?.context)?;
    let mut state = domain.adapter.state();
    let queue = state.driver.nic_mut().create_srq(domain.domain, attr.max_wr, attr.max_sge);
    let queue = queue.map_err(|error| of_verb(&error))?;
    let mut c: ibv_srq = object::zeroed();
    (c.context, c.srq_context, c.pd, c.handle) = (context.c(), srq_context, pd, context.handle());
    let mut created = Box::new(SharedQueue {
        c,
        adapter: domain.adapter.clone(),
        queue,
        attr,
        limit: AtomicU32::new(0),
        target: context.event_target(0),
    });
    created.target = context.event_target(std::ptr::from_ref::<SharedQueue>(&created) as usize);
    state.shared_queues.insert(queue, created.target.clone());
    Ok(object::publish(created))
}

pub(crate) extern "C" fn create(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    guard(std::ptr::null_mut(), || {
        object::read(init).and_then(|init| make(pd, init.srq_context, init.attr)).unwrap_or_else(null)
    })
}

pub(crate) extern "C" fn create_extended(
    _: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    guard(std::ptr::null_mut(), || {
        let made = (|| {
            let init = object::read(init)?;
            let has = |mask| init.comp_mask & mask != 0;
            if !has(IBV_SRQ_INIT_ATTR_PD) {
                return Err(libc::EINVAL);
            }
            if has(IBV_SRQ_INIT_ATTR_TYPE) && init.srq_type != IBV_SRQT_BASIC {
                return Err(libc::EOPNOTSUPP);
            }
            make(init.pd, init.srq_context, init.attr)
        })();
        made.unwrap_or_else(null)
    })
}

pub(crate) extern "C" fn modify(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int {
    guard(libc::EIO, || {
        status((|| {
            let shared = object::of::<SharedQueue, _>(srq)?;
            let attr = object::read(attr)?;
            if mask & IBV_SRQ_MAX_WR != 0 {
                return Err(libc::EOPNOTSUPP);
            }
            if mask & !IBV_SRQ_LIMIT != 0 {
                return Err(libc::EINVAL);
            }
            if mask & IBV_SRQ_LIMIT != 0 {
                let mut state = shared.adapter.state();
                let armed = state.driver.nic_mut().modify_srq(shared.queue, attr.srq_limit);
                armed.map_err(|error| of_verb(&error))?;
                shared.limit.store(attr.srq_limit, Ordering::Relaxed);
                state.deliver();
            }
            Ok(())
        })())
    })
}

pub(crate) extern "C" fn query(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    guard(libc::EIO, || {
        status((|| {
            let shared = object::of::<SharedQueue, _>(srq)?;
            let srq_limit = shared.limit.load(Ordering::Relaxed);
            *object::write(attr)? = ibv_srq_attr { srq_limit, ..shared.attr };
            Ok(())
        })())
    })
}

pub(crate) fn subject(srq: *mut ibv_srq) -> Result<Arc<Subject>, c_int> {
    Ok(object::of::<SharedQueue, _>(srq)?.target.subject.clone())
}

pub(crate) extern "C" fn destroy(srq: *mut ibv_srq) -> c_int {
    guard(libc::EIO, || {
        status((|| {
            let shared = object::of::<SharedQueue, _>(srq)?;
            {
                let mut state = shared.adapter.state();
                state.driver.nic_mut().destroy_srq(shared.queue).map_err(|error| of_verb(&error))?;
                state.shared_queues.remove(&shared.queue);
            }
            shared.target.end()?;
            object::retire::<SharedQueue, _>(srq);
            Ok(())
        })())
    })
}
