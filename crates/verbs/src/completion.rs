//! Completion queues and completion channels.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use libc::{c_int, c_uint, c_void};
use railnet_nic::{Completion, CompletionQueue, Notify};

use crate::abi::*;
use crate::adapter::{Adapter, CompletionTarget, Completions, EventTarget};
use crate::channel::{Channel, Subject};
use crate::context::Context;
use crate::errors::complain;
use crate::errors::{guard, null, of_verb, set, status};
use crate::object;

/// A completion channel.
#[repr(C)]
pub(crate) struct CompletionChannel {
    pub(crate) c: ibv_comp_channel,
    queue: Arc<Completions>,
    adapter: Arc<Adapter>,
}

pub(crate) extern "C" fn create_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    guard(std::ptr::null_mut(), || {
        let created = (|| {
            let context = Context::of(context)?;
            let queue: Arc<Completions> =
                Arc::new(Channel::new().map_err(|error| crate::errors::of_io(&error))?);
            let c = ibv_comp_channel { context: context.c(), fd: queue.raw(), refcnt: 0 };
            Ok(object::publish(Box::new(CompletionChannel { c, queue, adapter: context.adapter.clone() })))
        })();
        created.unwrap_or_else(null)
    })
}

pub(crate) extern "C" fn destroy_channel(channel: *mut ibv_comp_channel) -> c_int {
    guard(libc::EIO, || {
        status((|| {
            let object = object::of::<CompletionChannel, _>(channel)?;
            {
                let _state = object.adapter.state();
                if object.c.refcnt > 0 {
                    return Err(libc::EBUSY);
                }
            }
            object::retire::<CompletionChannel, _>(channel);
            Ok(())
        })())
    })
}

/// A completion queue.
#[repr(C)]
pub(crate) struct Queue {
    pub(crate) c: ibv_cq_ex,
    adapter: Arc<Adapter>,
    /// The service level of received datagrams.
    datagram_level: u8,
    pub(crate) queue: CompletionQueue,
    channel: Option<Arc<Completions>>,
    /// Of completion events.
    subject: Arc<Subject>,
    errors: EventTarget,
    /// A thread is between `ibv_start_poll` and `ibv_end_poll`. Others wait.
    polling: AtomicBool,
    /// The completion that it is at.
    current: Cell<Completion>,
}

/// What ConnectX tells of a received datagram's network layer where Ethernet has no service level: bit 3 for UDP, 1 for IPv6 or
/// 2 for IPv4 below it. UCX needs it to find the target's address in front of the datagram.
fn datagram_level(adapter: &Adapter) -> u8 {
    0b1000 | if adapter.device.address.is_ipv4() { 2 } else { 1 }
}

fn make(
    context: *mut ibv_context,
    depth: u32,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> Result<*mut ibv_cq_ex, c_int> {
    let of_context = Context::of(context)?;
    if depth == 0 || !(0..object::read(context)?.num_comp_vectors).contains(&vector) {
        return Err(libc::EINVAL);
    }
    let mut state = of_context.adapter.state();
    let queue = state.driver.nic_mut().create_cq(depth).map_err(|error| of_verb(&error))?;
    let mut c: ibv_cq_ex = object::zeroed();
    c.base.context = context;
    c.base.channel = channel;
    c.base.cq_context = cq_context;
    c.base.handle = queue.number();
    c.base.cqe = depth as c_int;
    c.start_poll = Some(start_poll);
    c.next_poll = Some(next_poll);
    c.end_poll = Some(end_poll);
    c.read_opcode = Some(read_opcode);
    c.read_vendor_err = Some(read_vendor_error);
    c.read_byte_len = Some(read_byte_length);
    c.read_imm_data = Some(read_immediate);
    c.read_qp_num = Some(read_queue_pair);
    c.read_src_qp = Some(read_source_queue_pair);
    c.read_wc_flags = Some(read_flags);
    c.read_slid = Some(read_nothing);
    c.read_sl = Some(read_service_level);
    c.read_dlid_path_bits = Some(read_no_byte);
    c.read_completion_ts = Some(read_timestamp);
    c.read_completion_wallclock_ns = Some(read_wallclock);
    let events = object::maybe::<CompletionChannel, _>(channel).map(|channel| channel.queue.clone());
    let mut created = Box::new(Queue {
        c,
        adapter: of_context.adapter.clone(),
        datagram_level: datagram_level(&of_context.adapter),
        queue,
        channel: events.clone(),
        subject: Subject::new(0),
        errors: of_context.event_target(0),
        polling: AtomicBool::new(false),
        current: Cell::new(Completion::EMPTY),
    });
    let token = std::ptr::from_ref::<Queue>(&created) as usize;
    (created.subject, created.errors) = (Subject::new(token), of_context.event_target(token));
    let target = CompletionTarget {
        channel: events,
        subject: created.subject.clone(),
        errors: created.errors.clone(),
    };
    state.completion_queues.insert(queue, target);
    if let Ok(channel) = object::write(channel) {
        channel.refcnt += 1;
    }
    Ok(object::publish(created))
}

pub(crate) extern "C" fn create(
    context: *mut ibv_context,
    depth: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    guard(std::ptr::null_mut(), || {
        let depth = u32::try_from(depth).unwrap_or(0);
        make(context, depth, cq_context, channel, vector).map_or_else(null, <*mut ibv_cq_ex>::cast)
    })
}

pub(crate) extern "C" fn create_extended(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    const FLAGS_MASK: u32 = 1 << 0;
    const PARENT_DOMAIN_MASK: u32 = 1 << 1;
    /// Single threaded, and ignore overrun: allowed, and of no effect.
    const FLAGS: u32 = 1 << 0 | 1 << 1;
    guard(std::ptr::null_mut(), || {
        let created = (|| {
            let attr = object::read(attr)?;
            let has_flags = attr.comp_mask & FLAGS_MASK != 0;
            if attr.wc_flags & !WC_EX_SUPPORTED != 0
                || attr.comp_mask & !(FLAGS_MASK | PARENT_DOMAIN_MASK) != 0
                || has_flags && attr.flags & !FLAGS != 0
            {
                return Err(libc::EOPNOTSUPP);
            }
            make(context, attr.cqe, attr.cq_context, attr.channel, attr.comp_vector as c_int)
        })();
        created.unwrap_or_else(null)
    })
}

pub(crate) extern "C" fn resize(cq: *mut ibv_cq, depth: c_int) -> c_int {
    guard(libc::EIO, || {
        status((|| {
            let queue = object::of::<Queue, _>(cq)?;
            let wanted = u32::try_from(depth).ok().filter(|depth| *depth > 0).ok_or(libc::EINVAL)?;
            let mut state = queue.adapter.state();
            let resized = state.driver.nic_mut().resize_cq(queue.queue, wanted);
            resized.map_err(|_| libc::EINVAL)?;
            object::write(cq)?.cqe = depth;
            Ok(())
        })())
    })
}

pub(crate) extern "C" fn destroy(cq: *mut ibv_cq) -> c_int {
    guard(libc::EIO, || {
        status((|| {
            let queue = object::of::<Queue, _>(cq)?;
            {
                let mut state = queue.adapter.state();
                state.driver.nic_mut().destroy_cq(queue.queue).map_err(|error| of_verb(&error))?;
                state.completion_queues.remove(&queue.queue);
                if let Ok(channel) = object::write(queue.c.base.channel) {
                    channel.refcnt -= 1;
                }
            }
            if let Some(channel) = &queue.channel {
                channel.withdraw_subject(&queue.subject);
            }
            queue.errors.end()?;
            if !queue.subject.wait_acknowledged() {
                complain(
                    "ibv_destroy_cq: completion events were taken and not acknowledged (ibv_ack_cq_events)",
                );
            }
            object::retire::<Queue, _>(cq);
            Ok(())
        })())
    })
}

pub(crate) fn error_subject(cq: *mut ibv_cq) -> Result<Arc<Subject>, c_int> {
    Ok(object::of::<Queue, _>(cq)?.errors.subject.clone())
}

pub(crate) extern "C" fn get_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    guard(-1, || {
        let taken = (|| {
            let events = object::of::<CompletionChannel, _>(channel)?.queue.clone();
            let subject = events.next().map_err(|error| crate::errors::of_io(&error))?;
            let queue = subject.token as *mut ibv_cq;
            *object::write(cq)? = queue;
            *object::write(cq_context)? = object::read(queue)?.cq_context;
            Ok(())
        })();
        taken.map_or_else(
            |number| {
                set(number);
                -1
            },
            |()| 0,
        )
    })
}

pub(crate) extern "C" fn ack_events(cq: *mut ibv_cq, events: c_uint) {
    guard((), || {
        if let Ok(queue) = object::of::<Queue, _>(cq) {
            queue.subject.acknowledge(events);
        }
    });
}

pub(crate) extern "C" fn request_notification(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    guard(libc::EIO, || {
        status((|| {
            let queue = object::of::<Queue, _>(cq)?;
            let notify = if solicited_only == 0 { Notify::Next } else { Notify::Solicited };
            // The application goes to sleep: what it posted must not wait for a poll.
            let mut state = queue.adapter.state();
            state.send();
            state.driver.nic_mut().req_notify(queue.queue, notify).map_err(|error| of_verb(&error))
        })())
    })
}

/// Completions taken from the NIC at a time.
const BATCH: usize = 16;

pub(crate) extern "C" fn poll(cq: *mut ibv_cq, room: c_int, wc: *mut ibv_wc) -> c_int {
    guard(-1, || {
        let Ok(queue) = object::of::<Queue, _>(cq) else { return -1 };
        let room = usize::try_from(room).unwrap_or(0);
        let mut batch = [Completion::EMPTY; BATCH];
        let mut state = queue.adapter.polled_state();
        let mut filled = 0;
        let mut progressed = false;
        while filled < room {
            let wanted = (room - filled).min(BATCH);
            let found = state.driver.poll_cq(queue.queue, &mut batch[..wanted]);
            if found == 0 {
                if filled > 0 || progressed {
                    break;
                }
                progressed = true;
                state.progress();
                continue;
            }
            for completion in &batch[..found] {
                if object::fill(wc.wrapping_add(filled), &[queue.to_wc(completion)]).is_err() {
                    return -1;
                }
                filled += 1;
            }
        }
        filled as c_int
    })
}

fn flags(completion: &Completion) -> c_uint {
    let grh = if completion.has_grh { IBV_WC_GRH } else { 0 };
    let immediate = if completion.immediate.is_some() { IBV_WC_WITH_IMM } else { 0 };
    let invalidated = if completion.invalidated.is_some() { IBV_WC_WITH_INV } else { 0 };
    grh | immediate | invalidated
}

/// Immediate data in network byte order, or the key that was invalidated in this host's.
fn immediate(completion: &Completion) -> u32 {
    completion.immediate.map(u32::to_be).or(completion.invalidated).unwrap_or(0)
}

impl Queue {
    fn service_level(&self, completion: &Completion) -> u8 {
        if completion.has_grh { self.datagram_level } else { 0 }
    }

    fn to_wc(&self, completion: &Completion) -> ibv_wc {
        ibv_wc {
            wr_id: completion.work,
            status: completion.status as c_int,
            opcode: completion.kind as c_int,
            vendor_err: 0,
            byte_len: completion.length,
            imm_data: immediate(completion),
            qp_num: completion.queue_pair.value(),
            src_qp: completion.source.value(),
            wc_flags: flags(completion),
            pkey_index: 0,
            slid: 0,
            sl: self.service_level(completion),
            dlid_path_bits: 0,
        }
    }
}

/// Takes the next completion for the extended interface; `ENOENT` where there is none.
fn take_next(cq: *mut ibv_cq_ex) -> c_int {
    guard(libc::EIO, || {
        status((|| {
            let queue = object::of::<Queue, _>(cq)?;
            let mut state = queue.adapter.polled_state();
            let mut one = [Completion::EMPTY];
            if state.driver.poll_cq(queue.queue, &mut one) == 0 {
                state.progress();
                if state.driver.poll_cq(queue.queue, &mut one) == 0 {
                    return Err(libc::ENOENT);
                }
            }
            drop(state);
            queue.current.set(one[0]);
            let c = object::write(cq)?;
            (c.wr_id, c.status) = (one[0].work, one[0].status as c_int);
            Ok(())
        })())
    })
}

extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut c_void) -> c_int {
    // An attribute with a mask that is not empty asks for something that does not exist yet.
    match object::read(attr.cast::<u32>()) {
        Ok(&mask) if mask != 0 => libc::EINVAL,
        _ => {
            let Ok(queue) = object::of::<Queue, _>(cq) else { return libc::EINVAL };
            while queue.polling.swap(true, Ordering::Acquire) {
                std::thread::yield_now();
            }
            let outcome = take_next(cq);
            if outcome != 0 {
                // The application does not end a poll that has not begun.
                queue.polling.store(false, Ordering::Release);
            }
            outcome
        }
    }
}

extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    take_next(cq)
}

extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    if let Ok(queue) = object::of::<Queue, _>(cq) {
        queue.polling.store(false, Ordering::Release);
    }
}

fn current(cq: *mut ibv_cq_ex) -> Completion {
    object::of::<Queue, _>(cq).map_or(Completion::EMPTY, |queue| queue.current.get())
}

extern "C" fn read_opcode(cq: *mut ibv_cq_ex) -> c_int {
    current(cq).kind as c_int
}

extern "C" fn read_vendor_error(_: *mut ibv_cq_ex) -> u32 {
    0
}

extern "C" fn read_byte_length(cq: *mut ibv_cq_ex) -> u32 {
    current(cq).length
}

extern "C" fn read_immediate(cq: *mut ibv_cq_ex) -> u32 {
    immediate(&current(cq))
}

extern "C" fn read_queue_pair(cq: *mut ibv_cq_ex) -> u32 {
    current(cq).queue_pair.value()
}

extern "C" fn read_source_queue_pair(cq: *mut ibv_cq_ex) -> u32 {
    current(cq).source.value()
}

extern "C" fn read_flags(cq: *mut ibv_cq_ex) -> c_uint {
    flags(&current(cq))
}

extern "C" fn read_nothing(_: *mut ibv_cq_ex) -> u32 {
    0
}

extern "C" fn read_service_level(cq: *mut ibv_cq_ex) -> u8 {
    object::of::<Queue, _>(cq).map_or(0, |queue| queue.service_level(&queue.current.get()))
}

extern "C" fn read_no_byte(_: *mut ibv_cq_ex) -> u8 {
    0
}

/// Nanoseconds since 1970: when the application polled. A NIC of hardware has the time of the packet.
pub(crate) fn timestamp() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64)
}

extern "C" fn read_timestamp(_: *mut ibv_cq_ex) -> u64 {
    timestamp()
}

extern "C" fn read_wallclock(_: *mut ibv_cq_ex) -> u64 {
    timestamp()
}
