//! Posting work: `ibv_post_send`, `ibv_post_recv`, and the calls of `ibv_wr_*`.

use std::sync::atomic::Ordering;

use libc::{c_int, c_void};
use railnet_core::QueuePairNumber;
use railnet_nic::{
    Access, Bind, DatagramTarget, Key, Operation, PostError, ReceiveRequest, Remote, SendRequest, Service,
    Sge, SgeList,
};

use crate::abi::*;
use crate::adapter::State;
use crate::address::Handle;
use crate::errors::{guard, of_post};
use crate::memory::{Region, Window};
use crate::object;
use crate::queue_pair::QueuePair;
use crate::receive::SharedQueue;

fn sge_list(entries: *const ibv_sge, count: c_int) -> Result<SgeList, c_int> {
    let count = usize::try_from(count).map_err(|_| libc::EINVAL)?;
    let entries = object::array(entries, count)?;
    Ok(entries.iter().map(|one| Sge { address: one.addr, length: one.length, key: Key(one.lkey) }).collect())
}

fn bind_of(state: &State, mw: *mut ibv_mw, key: u32, info: &ibv_mw_bind_info) -> Result<Operation, c_int> {
    let window = object::of::<Window, _>(mw)?;
    let present = state.driver.nic().window_key(Key(window.c.rkey)).map_err(|_| libc::EINVAL)?;
    let region = match object::maybe::<Region, _>(info.mr) {
        Some(region) => region.key,
        // A bind of no bytes unbinds, and needs no region.
        None if info.length == 0 => Key(0),
        None => return Err(libc::EINVAL),
    };
    Ok(Operation::BindWindow(Bind {
        window: present,
        variant: key as u8,
        region,
        address: info.addr,
        length: info.length,
        access: Access::from_bits(info.mw_access_flags as u8),
    }))
}

fn datagram_target(ah: *mut ibv_ah, queue_pair: u32, queue_key: u32) -> Result<DatagramTarget, c_int> {
    let handle = object::of::<Handle, _>(ah)?.handle;
    Ok(DatagramTarget { handle, queue_pair: QueuePairNumber::new(queue_pair & 0xff_ffff), queue_key })
}

/// A work request of C as one of the NIC.
#[expect(unsafe_code, reason = "which part of the union holds is told by the operation")]
fn send_request(state: &State, service: Service, wr: &ibv_send_wr) -> Result<SendRequest, c_int> {
    // SAFETY: all parts of the union are numbers and pointers, of which the application fills those that go with its
    // operation and its kind of queue pair.
    let (rdma, atomic, datagram) = unsafe { (wr.wr.rdma, wr.wr.atomic, wr.wr.ud) };
    let remote = Remote { address: rdma.remote_addr, key: Key(rdma.rkey) };
    let atomic_remote = Remote { address: atomic.remote_addr, key: Key(atomic.rkey) };
    let immediate = u32::from_be(wr.imm_data);
    let operation = match wr.opcode {
        IBV_WR_RDMA_WRITE => Operation::Write(remote),
        IBV_WR_RDMA_WRITE_WITH_IMM => Operation::WriteImmediate(remote, immediate),
        IBV_WR_SEND => Operation::Send,
        IBV_WR_SEND_WITH_IMM => Operation::SendImmediate(immediate),
        IBV_WR_RDMA_READ => Operation::Read(remote),
        IBV_WR_ATOMIC_CMP_AND_SWP => {
            Operation::CompareSwap { remote: atomic_remote, compare: atomic.compare_add, swap: atomic.swap }
        }
        IBV_WR_ATOMIC_FETCH_AND_ADD => Operation::FetchAdd { remote: atomic_remote, add: atomic.compare_add },
        IBV_WR_LOCAL_INV => Operation::LocalInvalidate(Key(wr.imm_data)),
        IBV_WR_SEND_WITH_INV => Operation::SendInvalidate(Key(wr.imm_data)),
        IBV_WR_BIND_MW => bind_of(state, wr.bind_mw.mw, wr.bind_mw.rkey, &wr.bind_mw.bind_info)?,
        _ => return Err(libc::EINVAL),
    };
    let mut request = flagged(SendRequest::new(wr.wr_id, operation), wr.send_flags);
    let gather = sge_list(wr.sg_list, wr.num_sge)?;
    let has_no_data = matches!(operation, Operation::BindWindow(_) | Operation::LocalInvalidate(_));
    let reads =
        matches!(operation, Operation::Read(_) | Operation::CompareSwap { .. } | Operation::FetchAdd { .. });
    if wr.send_flags & IBV_SEND_INLINE != 0 && !has_no_data && !reads {
        request.inline = Some(gathered(gather.iter().map(|sge| (sge.address, sge.length as usize)))?);
    } else if !has_no_data {
        request.gather = gather;
    }
    if service == Service::Datagram {
        request.target = Some(datagram_target(datagram.ah, datagram.remote_qpn, datagram.remote_qkey)?);
    }
    Ok(request)
}

fn flagged(mut request: SendRequest, flags: libc::c_uint) -> SendRequest {
    request.signaled = flags & IBV_SEND_SIGNALED != 0;
    request.solicited = flags & IBV_SEND_SOLICITED != 0;
    request.fence = flags & IBV_SEND_FENCE != 0;
    request
}

/// Copies inline data.
fn gathered(pieces: impl Iterator<Item = (u64, usize)>) -> Result<Box<[u8]>, c_int> {
    let mut data = Vec::new();
    for (address, length) in pieces {
        data.extend_from_slice(object::bytes(address, length)?);
    }
    Ok(data.into())
}

fn bytes_of(request: &SendRequest) -> u64 {
    let gathered: u64 = request.gather.iter().map(|sge| u64::from(sge.length)).sum();
    gathered + request.inline.as_ref().map_or(0, |data| data.len() as u64)
}

pub(crate) extern "C" fn post_send(
    qp: *mut ibv_qp,
    first: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    guard(libc::EIO, || {
        let Ok(queue_pair) = object::of::<QueuePair, _>(qp) else { return libc::EINVAL };
        let mut state = queue_pair.adapter.state();
        let (mut posted, mut bytes, mut outcome) = (0, 0, 0);
        let mut next = first;
        while let Ok(wr) = object::read(next) {
            let request = send_request(&state, queue_pair.service, wr);
            let accepted = request.and_then(|request| {
                bytes += bytes_of(&request);
                state.driver.post_send(queue_pair.number, request).map_err(|error| of_post(&error))
            });
            if let Err(number) = accepted {
                outcome = number;
                if let Ok(bad) = object::write(bad) {
                    *bad = next;
                }
                break;
            }
            posted += 1;
            next = wr.next;
        }
        if posted > 0 {
            queue_pair.adapter.after_post(&mut state, queue_pair.number, posted, bytes);
        }
        outcome
    })
}

/// Posts a list of receives with `accept`.
fn post_receives(
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    mut accept: impl FnMut(ReceiveRequest) -> Result<(), PostError>,
) -> c_int {
    let mut next = first;
    while let Ok(wr) = object::read(next) {
        let request =
            sge_list(wr.sg_list, wr.num_sge).map(|scatter| ReceiveRequest { work: wr.wr_id, scatter });
        if let Err(number) = request.and_then(|request| accept(request).map_err(|error| of_post(&error))) {
            if let Ok(bad) = object::write(bad) {
                *bad = next;
            }
            return number;
        }
        next = wr.next;
    }
    0
}

pub(crate) extern "C" fn post_receive(
    qp: *mut ibv_qp,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    guard(libc::EIO, || {
        let Ok(queue_pair) = object::of::<QueuePair, _>(qp) else { return libc::EINVAL };
        let mut state = queue_pair.adapter.state();
        let outcome = post_receives(first, bad, |request| state.driver.post_recv(queue_pair.number, request));
        // A queue pair in error flushes at once.
        state.deliver();
        outcome
    })
}

pub(crate) extern "C" fn post_shared_receive(
    srq: *mut ibv_srq,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    guard(libc::EIO, || {
        let Ok(shared) = object::of::<SharedQueue, _>(srq) else { return libc::EINVAL };
        let mut state = shared.adapter.state();
        post_receives(first, bad, |request| state.driver.nic_mut().post_srq_recv(shared.queue, request))
    })
}

/// Work requests between `ibv_wr_start` and `ibv_wr_complete`.
#[derive(Default)]
pub(crate) struct Builder {
    requests: Vec<SendRequest>,
    failed: Option<c_int>,
}

impl Builder {
    fn last(&mut self, change: impl FnOnce(&mut SendRequest) -> Result<(), c_int>) {
        let changed = self.requests.last_mut().ok_or(libc::EINVAL).and_then(change);
        if let Err(number) = changed {
            self.failed.get_or_insert(number);
        }
    }
}

/// The functions behind `ibv_wr_*`.
pub(crate) fn fill_table(qp: &mut ibv_qp_ex) {
    qp.wr_atomic_cmp_swp = Some(wr_compare_swap);
    qp.wr_atomic_fetch_add = Some(wr_fetch_add);
    qp.wr_bind_mw = Some(wr_bind);
    qp.wr_local_inv = Some(wr_local_invalidate);
    qp.wr_rdma_read = Some(wr_read);
    qp.wr_rdma_write = Some(wr_write);
    qp.wr_rdma_write_imm = Some(wr_write_immediate);
    qp.wr_send = Some(wr_send);
    qp.wr_send_imm = Some(wr_send_immediate);
    qp.wr_send_inv = Some(wr_send_invalidate);
    qp.wr_set_ud_addr = Some(wr_set_datagram_target);
    qp.wr_set_inline_data = Some(wr_set_inline);
    qp.wr_set_inline_data_list = Some(wr_set_inline_list);
    qp.wr_set_sge = Some(wr_set_sge);
    qp.wr_set_sge_list = Some(wr_set_sge_list);
    qp.wr_start = Some(wr_start);
    qp.wr_complete = Some(wr_complete);
    qp.wr_abort = Some(wr_abort);
}

extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    guard((), || {
        let Ok(queue_pair) = object::of::<QueuePair, _>(qp) else { return };
        while queue_pair.building.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
        let mut builder = queue_pair.builder();
        builder.requests.clear();
        builder.failed = None;
    });
}

fn begin(qp: *mut ibv_qp_ex, operation: impl FnOnce(&QueuePair) -> Result<Operation, c_int>) {
    guard((), || {
        let Ok(queue_pair) = object::of::<QueuePair, _>(qp) else { return };
        let (id, flags) = (queue_pair.c.wr_id, queue_pair.c.wr_flags);
        let operation = operation(queue_pair);
        let mut builder = queue_pair.builder();
        match operation {
            Ok(operation) => builder.requests.push(flagged(SendRequest::new(id, operation), flags)),
            Err(number) => {
                builder.failed.get_or_insert(number);
            }
        }
    });
}

fn change(qp: *mut ibv_qp_ex, change: impl FnOnce(&mut SendRequest) -> Result<(), c_int>) {
    guard((), || {
        if let Ok(queue_pair) = object::of::<QueuePair, _>(qp) {
            queue_pair.builder().last(change);
        }
    });
}

extern "C" fn wr_compare_swap(qp: *mut ibv_qp_ex, key: u32, address: u64, compare: u64, swap: u64) {
    begin(qp, |_| Ok(Operation::CompareSwap { remote: Remote { address, key: Key(key) }, compare, swap }));
}

extern "C" fn wr_fetch_add(qp: *mut ibv_qp_ex, key: u32, address: u64, add: u64) {
    begin(qp, |_| Ok(Operation::FetchAdd { remote: Remote { address, key: Key(key) }, add }));
}

extern "C" fn wr_bind(qp: *mut ibv_qp_ex, mw: *mut ibv_mw, key: u32, info: *const ibv_mw_bind_info) {
    begin(qp, |queue_pair| bind_of(&queue_pair.adapter.state(), mw, key, object::read(info)?));
}

extern "C" fn wr_local_invalidate(qp: *mut ibv_qp_ex, key: u32) {
    begin(qp, |_| Ok(Operation::LocalInvalidate(Key(key))));
}

extern "C" fn wr_read(qp: *mut ibv_qp_ex, key: u32, address: u64) {
    begin(qp, |_| Ok(Operation::Read(Remote { address, key: Key(key) })));
}

extern "C" fn wr_write(qp: *mut ibv_qp_ex, key: u32, address: u64) {
    begin(qp, |_| Ok(Operation::Write(Remote { address, key: Key(key) })));
}

extern "C" fn wr_write_immediate(qp: *mut ibv_qp_ex, key: u32, address: u64, immediate: u32) {
    let immediate = u32::from_be(immediate);
    begin(qp, |_| Ok(Operation::WriteImmediate(Remote { address, key: Key(key) }, immediate)));
}

extern "C" fn wr_send(qp: *mut ibv_qp_ex) {
    begin(qp, |_| Ok(Operation::Send));
}

extern "C" fn wr_send_immediate(qp: *mut ibv_qp_ex, immediate: u32) {
    begin(qp, |_| Ok(Operation::SendImmediate(u32::from_be(immediate))));
}

extern "C" fn wr_send_invalidate(qp: *mut ibv_qp_ex, key: u32) {
    begin(qp, |_| Ok(Operation::SendInvalidate(Key(key))));
}

extern "C" fn wr_set_datagram_target(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, queue_pair: u32, queue_key: u32) {
    change(qp, |request| {
        request.target = Some(datagram_target(ah, queue_pair, queue_key)?);
        Ok(())
    });
}

extern "C" fn wr_set_inline(qp: *mut ibv_qp_ex, data: *mut c_void, length: usize) {
    change(qp, |request| {
        request.inline = Some(gathered(std::iter::once((data as u64, length)))?);
        Ok(())
    });
}

extern "C" fn wr_set_inline_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_data_buf) {
    change(qp, |request| {
        let list = object::array(list, count)?;
        request.inline = Some(gathered(list.iter().map(|one| (one.addr as u64, one.length)))?);
        Ok(())
    });
}

extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, key: u32, address: u64, length: u32) {
    change(qp, |request| {
        request.gather.clear();
        request.gather.push(Sge { address, length, key: Key(key) });
        Ok(())
    });
}

extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    change(qp, |request| {
        request.gather = sge_list(list, count as c_int)?;
        Ok(())
    });
}

/// All of them are posted, or none.
extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    guard(libc::EIO, || {
        let Ok(queue_pair) = object::of::<QueuePair, _>(qp) else { return libc::EINVAL };
        let mut builder = queue_pair.builder();
        let mut outcome = builder.failed.unwrap_or(0);
        if outcome == 0 && !builder.requests.is_empty() {
            let mut state = queue_pair.adapter.state();
            let waiting = state.driver.nic().query_qp(queue_pair.number).map_or(0, |info| info.sends);
            let count = builder.requests.len() as u32;
            if waiting + count > queue_pair.send_depth() {
                outcome = libc::ENOMEM;
            }
            let (mut posted, mut bytes) = (0, 0);
            for request in builder.requests.drain(..).take(if outcome == 0 { usize::MAX } else { 0 }) {
                bytes += bytes_of(&request);
                if let Err(error) = state.driver.post_send(queue_pair.number, request) {
                    outcome = of_post(&error);
                    break;
                }
                posted += 1;
            }
            if posted > 0 {
                queue_pair.adapter.after_post(&mut state, queue_pair.number, posted, bytes);
            }
        }
        drop(builder);
        queue_pair.building.store(false, Ordering::Release);
        outcome
    })
}

extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    guard((), || {
        if let Ok(queue_pair) = object::of::<QueuePair, _>(qp) {
            queue_pair.builder().requests.clear();
            queue_pair.building.store(false, Ordering::Release);
        }
    });
}
