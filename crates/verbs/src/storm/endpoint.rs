//! One queue pair of a process: made, connected, and given work, in the way that its program says.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use libc::{c_int, c_uint};

use super::calls::{Calls, Pages, Shared, why};
use super::program::{
    End, GRH_BYTES, INLINE_BYTES, Kind, Link, PIECES_MAX, POOL_BYTES, Transport, WORDS, Work, pattern,
    static_id,
};
use crate::abi::*;
use crate::object;

/// Queue depths that no program fills.
const SEND_DEPTH: u32 = 64;
const RECEIVE_DEPTH: u32 = 256;
/// Local ACK timeout code: 134 ms. Eight times that is longer than a process is kept from its core.
const TIMEOUT: u8 = 15;
const RETRIES: u8 = 7;
const RNR_RETRIES_UNLIMITED: u8 = 7;
const MIN_RNR_TIMER: u8 = 12;
const READS: u8 = 16;
const QUEUE_KEY: u32 = 0x1234;
/// Bit of a region's own name, where that is not its address.
const RENAMED: u64 = 1 << 44;

/// Everything that remote peers may do.
pub(super) const REMOTE_ALL: c_uint = 0xf;

/// What a peer needs to know of an end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Address {
    pub(super) link: usize,
    pub(super) side: usize,
    pub(super) number: u32,
    pub(super) key: u32,
    pub(super) base: u64,
}

impl Address {
    pub(super) fn write(&self) -> String {
        let Self { link, side, number, key, base } = self;
        format!("{link}:{side}:{number}:{key}:{base}")
    }

    pub(super) fn read(text: &str) -> Option<Self> {
        let mut parts = text.split(':').map(|part| part.parse::<u64>().ok());
        let mut next = || parts.next().flatten();
        let (link, side) = (next()? as usize, next()? as usize);
        Some(Self { link, side, number: next()? as u32, key: next()? as u32, base: next()? })
    }
}

/// What the ends of a process have in common.
#[derive(Clone, Copy)]
pub(super) struct Common<'a> {
    pub(super) calls: &'a Calls,
    pub(super) seed: u64,
    pub(super) context: Shared<ibv_context>,
    pub(super) domain: Shared<ibv_pd>,
    pub(super) shared_queue: Shared<ibv_srq>,
    pub(super) gid: ibv_gid,
}

/// A queue pair with its memory.
pub(super) struct Endpoint<'a> {
    common: Common<'a>,
    pub(super) link: usize,
    pub(super) side: usize,
    pub(super) program: &'a Link,
    pub(super) end: &'a End,
    pub(super) pages: Pages,
    pub(super) region: Shared<ibv_mr>,
    /// The same memory, without the right to write to it.
    source_region: Shared<ibv_mr>,
    pub(super) queue_pair: Shared<ibv_qp>,
    extended: Shared<ibv_qp_ex>,
    handle: Shared<ibv_ah>,
    pub(super) peer: Option<Address>,
    /// Where the next receive buffer begins.
    next_buffer: AtomicU32,
    is_unmapped: AtomicBool,
}

fn check<T>(pointer: *mut T, call: &str) -> Result<*mut T, String> {
    if pointer.is_null() { Err(format!("{call}: {}", why())) } else { Ok(pointer) }
}

/// 0, or the errno of a call.
pub(super) fn zero(outcome: c_int, call: &str) -> Result<(), String> {
    match outcome {
        0 => Ok(()),
        number => Err(format!("{call}: {}", std::io::Error::from_raw_os_error(number))),
    }
}

impl<'a> Endpoint<'a> {
    /// Makes the queue pair of one side of a link, and what it needs.
    pub(super) fn make(
        common: Common<'a>,
        links: &'a [Link],
        link: usize,
        side: usize,
        queues: [Shared<ibv_cq>; 2],
    ) -> Result<Self, String> {
        let program = &links[link];
        let end = &program.ends[side];
        let calls = common.calls;
        let pages = Pages::map(region_bytes(program, side) as usize)?;
        pages.store(0, &pattern(common.seed, static_id(link, side), WORDS));
        let (address, length) = (pages.address() as *mut libc::c_void, pages.bytes());
        let region = match end.is_renamed {
            true => {
                let name = pages.address() ^ RENAMED;
                calls.ibv_reg_mr_iova2(common.domain.0, address, length, name, REMOTE_ALL)
            }
            false => calls.ibv_reg_mr(common.domain.0, address, length, REMOTE_ALL as c_int),
        };
        let region = Shared(check(region, "ibv_reg_mr")?);
        let source = calls.ibv_reg_mr(common.domain.0, address, length, 0);
        let source_region = Shared(check(source, "ibv_reg_mr of a source")?);
        let mut made = Self {
            common,
            link,
            side,
            program,
            end,
            pages,
            region,
            source_region,
            queue_pair: Shared(std::ptr::null_mut()),
            extended: Shared(std::ptr::null_mut()),
            handle: Shared(std::ptr::null_mut()),
            peer: None,
            next_buffer: AtomicU32::new(end.room),
            is_unmapped: AtomicBool::new(false),
        };
        made.make_queue_pair(queues)?;
        Ok(made)
    }

    fn make_queue_pair(&mut self, [send, receive]: [Shared<ibv_cq>; 2]) -> Result<(), String> {
        let Common { calls, context, domain, shared_queue, .. } = self.common;
        let srq = if self.end.is_shared { shared_queue.0 } else { std::ptr::null_mut() };
        let cap = ibv_qp_cap {
            max_send_wr: SEND_DEPTH,
            max_recv_wr: RECEIVE_DEPTH,
            max_send_sge: PIECES_MAX,
            max_recv_sge: PIECES_MAX,
            max_inline_data: INLINE_BYTES,
        };
        let (qp_type, operations) = match self.program.transport {
            Transport::Reliable => (IBV_QPT_RC, SEND_OPS_SUPPORTED),
            Transport::Unreliable => (IBV_QPT_UC, SEND_OPS_SUPPORTED),
            Transport::Datagram => (IBV_QPT_UD, SEND_OPS_SUPPORTED),
        };
        let sq_sig_all = self.end.signals_all.into();
        let made = if self.end.is_extended {
            let mut init: ibv_qp_init_attr_ex = object::zeroed();
            (init.send_cq, init.recv_cq, init.srq, init.cap) = (send.0, receive.0, srq, cap);
            (init.qp_type, init.sq_sig_all, init.pd) = (qp_type, sq_sig_all, domain.0);
            init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
            init.send_ops_flags = operations;
            calls.create_extended_qp(context.0, &mut init)
        } else {
            let mut init: ibv_qp_init_attr = object::zeroed();
            (init.send_cq, init.recv_cq, init.srq, init.cap) = (send.0, receive.0, srq, cap);
            (init.qp_type, init.sq_sig_all) = (qp_type, sq_sig_all);
            calls.ibv_create_qp(domain.0, &raw mut init)
        };
        self.queue_pair = Shared(check(made, "ibv_create_qp")?);
        self.extended = Shared(calls.ibv_qp_to_qp_ex(made));
        if self.extended.0.is_null() == self.end.is_extended {
            return Err(format!(
                "ibv_qp_to_qp_ex of a queue pair that is extended: {}",
                self.end.is_extended
            ));
        }
        let mut attr: ibv_qp_attr = object::zeroed();
        (attr.qp_state, attr.port_num) = (STATE_INIT, 1);
        let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
        match self.program.transport {
            Transport::Datagram => {
                attr.qkey = QUEUE_KEY;
                self.modify(&mut attr, mask | IBV_QP_QKEY)
            }
            _ => {
                attr.qp_access_flags = REMOTE_ALL;
                self.modify(&mut attr, mask | IBV_QP_ACCESS_FLAGS)
            }
        }
    }

    fn modify(&self, attr: &mut ibv_qp_attr, mask: c_int) -> Result<(), String> {
        let outcome = self.common.calls.ibv_modify_qp(self.queue_pair.0, attr, mask);
        zero(outcome, &format!("ibv_modify_qp to state {}", attr.qp_state))
    }

    pub(super) fn number(&self) -> u32 {
        object::read(self.queue_pair.0).map_or(0, |qp| qp.qp_num)
    }

    /// What the peer is told.
    pub(super) fn address(&self) -> Address {
        let name = if self.end.is_renamed { RENAMED } else { 0 };
        Address {
            link: self.link,
            side: self.side,
            number: self.number(),
            key: object::read(self.region.0).map_or(0, |region| region.rkey),
            base: self.pages.address() ^ name,
        }
    }

    fn path(&self) -> ibv_ah_attr {
        let mut path: ibv_ah_attr = object::zeroed();
        (path.is_global, path.port_num) = (1, 1);
        (path.grh.dgid, path.grh.hop_limit) = (self.common.gid, 64);
        path
    }

    /// Brings the queue pair up to its peer.
    pub(super) fn connect(&mut self, peer: Address) -> Result<(), String> {
        self.peer = Some(peer);
        let mut attr: ibv_qp_attr = object::zeroed();
        attr.qp_state = STATE_RTR;
        let connected = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
        let ready = match self.program.transport {
            Transport::Datagram => IBV_QP_STATE,
            Transport::Unreliable => connected,
            Transport::Reliable => connected | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
        };
        (attr.ah_attr, attr.path_mtu, attr.dest_qp_num) =
            (self.path(), self.program.mtu as c_int, peer.number);
        attr.rq_psn = first_psn(peer.number);
        (attr.max_dest_rd_atomic, attr.min_rnr_timer) = (READS, MIN_RNR_TIMER);
        self.modify(&mut attr, ready)?;
        attr.qp_state = STATE_RTS;
        attr.sq_psn = first_psn(self.number());
        (attr.timeout, attr.retry_cnt, attr.rnr_retry) = (TIMEOUT, RETRIES, RNR_RETRIES_UNLIMITED);
        attr.max_rd_atomic = READS;
        let mask = match self.program.transport {
            Transport::Reliable => {
                IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC
            }
            _ => 0,
        };
        self.modify(&mut attr, IBV_QP_STATE | IBV_QP_SQ_PSN | mask)?;
        if self.program.transport == Transport::Datagram {
            let handle = self.common.calls.ibv_create_ah(self.common.domain.0, &mut self.path());
            self.handle = Shared(check(handle, "ibv_create_ah")?);
        }
        Ok(())
    }

    /// Fills the memory that a round's work reads, and clears what it writes.
    pub(super) fn fill(&self, round: usize) {
        for work in self.end.rounds[round].iter().flatten() {
            match work.kind {
                Kind::Send | Kind::Write => {
                    self.pages.store(work.local, &pattern(self.common.seed, work.id, work.length));
                }
                _ => self.pages.store(work.local, &vec![0; work.length as usize]),
            }
        }
    }

    /// Posts a receive whose buffer is at `buffer`.
    pub(super) fn post_receive(&self, id: u64, buffer: &[ibv_sge]) -> Result<(), String> {
        let mut list = buffer.to_vec();
        let mut wr = ibv_recv_wr {
            wr_id: id,
            next: std::ptr::null_mut(),
            sg_list: list.as_mut_ptr(),
            num_sge: list.len() as c_int,
        };
        let srq = if self.end.is_shared { self.common.shared_queue.0 } else { std::ptr::null_mut() };
        zero(self.common.calls.post_receive(self.queue_pair.0, srq, &mut wr), "ibv_post_recv")
    }

    /// Bytes that a receive needs for a message.
    pub(super) fn buffer_bytes(message: Option<&Work>) -> u32 {
        match message {
            // A WRITE takes a receive, and puts nothing in its buffer.
            Some(work) if work.kind != Kind::Send => 0,
            Some(work) => work.length,
            None => POOL_BYTES + GRH_BYTES,
        }
    }

    /// The pieces that the data of a piece of work are in.
    fn pieces(&self, work: &Work) -> Vec<ibv_sge> {
        let is_source = matches!(work.kind, Kind::Send | Kind::Write);
        let region = if is_source && work.id.is_multiple_of(2) { self.source_region } else { self.region };
        let lkey = object::read(region.0).map_or(0, |region| region.lkey);
        // Local names are those of the region, too.
        let name = if region.0 == self.region.0 { self.address().base } else { self.pages.address() };
        split(name + u64::from(work.local), work.length, work.pieces, lkey)
    }

    fn flags(work: &Work) -> c_uint {
        let flag = |is_set: bool, flag: c_uint| if is_set { flag } else { 0 };
        flag(work.is_signaled, IBV_SEND_SIGNALED)
            | flag(work.is_fenced, IBV_SEND_FENCE)
            | flag(work.is_solicited && work.takes_receive(), IBV_SEND_SOLICITED)
            | flag(work.is_inline, IBV_SEND_INLINE)
    }

    /// Posts work requests, together.
    pub(super) fn post(&self, works: &[Work]) -> Result<(), String> {
        match self.end.is_extended {
            true => self.post_extended(works),
            false => self.post_list(works),
        }
    }

    fn remote(&self, work: &Work) -> (u64, u32) {
        let peer = self.peer.expect("connected");
        (peer.base + u64::from(work.remote), peer.key)
    }

    fn post_list(&self, works: &[Work]) -> Result<(), String> {
        let mut lists: Vec<_> = works.iter().map(|work| self.pieces(work)).collect();
        let mut requests: Vec<ibv_send_wr> = Vec::new();
        for (work, list) in works.iter().zip(&mut lists) {
            let mut wr: ibv_send_wr = object::zeroed();
            (wr.wr_id, wr.sg_list, wr.num_sge) = (work.id.into(), list.as_mut_ptr(), list.len() as c_int);
            if work.is_inline {
                // Inline data need no key.
                for piece in list.iter_mut() {
                    piece.lkey = 0;
                }
                self.address_directly(list);
            }
            wr.send_flags = Self::flags(work);
            wr.imm_data = work.id.to_be();
            wr.opcode = match (work.kind, work.has_immediate) {
                (Kind::Send, false) => IBV_WR_SEND,
                (Kind::Send, true) => IBV_WR_SEND_WITH_IMM,
                (Kind::Write, false) => IBV_WR_RDMA_WRITE,
                (Kind::Write, true) => IBV_WR_RDMA_WRITE_WITH_IMM,
                (Kind::Read, _) => IBV_WR_RDMA_READ,
                (Kind::FetchAdd, _) => IBV_WR_ATOMIC_FETCH_AND_ADD,
                (Kind::CompareSwap, _) => IBV_WR_ATOMIC_CMP_AND_SWP,
            };
            let (remote_addr, rkey) = self.remote(work);
            wr.wr = match (work.kind, self.program.transport) {
                (_, Transport::Datagram) => send_wr_target {
                    ud: send_wr_ud {
                        ah: self.handle.0,
                        remote_qpn: self.peer.expect("connected").number,
                        remote_qkey: QUEUE_KEY,
                    },
                },
                (Kind::FetchAdd | Kind::CompareSwap, _) => {
                    let (compare_add, swap) = self.operands(work);
                    send_wr_target { atomic: send_wr_atomic { remote_addr, compare_add, swap, rkey } }
                }
                _ => send_wr_target { rdma: send_wr_rdma { remote_addr, rkey } },
            };
            requests.push(wr);
        }
        for index in 1..requests.len() {
            let next = &raw mut requests[index];
            requests[index - 1].next = next;
        }
        let Some(first) = requests.first_mut() else { return Ok(()) };
        let (outcome, bad) = self.common.calls.post_send(self.queue_pair.0, first);
        let bad = object::read(bad).map_or(0, |bad| bad.wr_id);
        zero(outcome, "ibv_post_send").map_err(|why| format!("{why} (work {bad})"))
    }

    /// Pieces of inline data are read by their addresses, whatever the region's name is.
    fn address_directly(&self, list: &mut [ibv_sge]) {
        let (base, own) = (self.address().base, self.pages.address());
        for piece in list {
            if (base..base + self.pages.bytes() as u64).contains(&piece.addr) {
                piece.addr = piece.addr - base + own;
            }
        }
    }

    fn post_extended(&self, works: &[Work]) -> Result<(), String> {
        let (calls, qp) = (self.common.calls, self.extended.0);
        let table = || calls.writer(qp);
        let missing = "the table of ibv_wr_* is filled";
        (table().wr_start.expect(missing))(qp);
        for work in works {
            let writer = table();
            (writer.wr_id, writer.wr_flags) = (work.id.into(), Self::flags(work) & !IBV_SEND_INLINE);
            let (address, key) = self.remote(work);
            let immediate = work.id.to_be();
            match (work.kind, work.has_immediate) {
                (Kind::Send, false) => (writer.wr_send.expect(missing))(qp),
                (Kind::Send, true) => (writer.wr_send_imm.expect(missing))(qp, immediate),
                (Kind::Write, false) => (writer.wr_rdma_write.expect(missing))(qp, key, address),
                (Kind::Write, true) => {
                    (writer.wr_rdma_write_imm.expect(missing))(qp, key, address, immediate);
                }
                (Kind::Read, _) => (writer.wr_rdma_read.expect(missing))(qp, key, address),
                (Kind::FetchAdd, _) => {
                    (writer.wr_atomic_fetch_add.expect(missing))(qp, key, address, work.operand);
                }
                (Kind::CompareSwap, _) => {
                    let (compare, swap) = self.operands(work);
                    (writer.wr_atomic_cmp_swp.expect(missing))(qp, key, address, compare, swap);
                }
            }
            if self.program.transport == Transport::Datagram {
                let number = self.peer.expect("connected").number;
                (writer.wr_set_ud_addr.expect(missing))(qp, self.handle.0, number, QUEUE_KEY);
            }
            let mut list = self.pieces(work);
            if work.is_inline {
                self.address_directly(&mut list);
                let whole: Vec<_> = list
                    .iter()
                    .map(|piece| ibv_data_buf { addr: piece.addr as *mut _, length: piece.length as usize })
                    .collect();
                (writer.wr_set_inline_data_list.expect(missing))(qp, whole.len(), whole.as_ptr());
            } else {
                (writer.wr_set_sge_list.expect(missing))(qp, list.len(), list.as_ptr());
            }
        }
        zero((table().wr_complete.expect(missing))(qp), "ibv_wr_complete")
    }

    /// What a compare-and-swap compares with, and puts there: each one continues the one before it.
    fn operands(&self, work: &Work) -> (u64, u64) {
        if work.kind == Kind::FetchAdd {
            return (work.operand, 0);
        }
        (previous_swap(self.end, work), work.operand)
    }

    /// The state of the queue pair.
    pub(super) fn query(&self) -> Result<ibv_qp_attr, String> {
        let mut attr: ibv_qp_attr = object::zeroed();
        let mut init: ibv_qp_init_attr = object::zeroed();
        let outcome = self.common.calls.ibv_query_qp(
            self.queue_pair.0,
            &raw mut attr,
            IBV_QP_STATE | IBV_QP_DEST_QPN,
            &raw mut init,
        );
        zero(outcome, "ibv_query_qp")?;
        if init.cap.max_send_wr < SEND_DEPTH || init.send_cq.is_null() {
            return Err("ibv_query_qp forgot what the queue pair was made with".to_owned());
        }
        Ok(attr)
    }

    /// Puts the queue pair into the error state.
    pub(super) fn fail(&self) -> Result<(), String> {
        let mut attr: ibv_qp_attr = object::zeroed();
        attr.qp_state = STATE_ERROR;
        self.modify(&mut attr, IBV_QP_STATE)
    }

    /// Destroys all of it.
    pub(super) fn destroy(self) -> Result<(), String> {
        let calls = self.common.calls;
        zero(calls.ibv_destroy_qp(self.queue_pair.0), "ibv_destroy_qp")?;
        if !self.handle.0.is_null() {
            zero(calls.ibv_destroy_ah(self.handle.0), "ibv_destroy_ah")?;
        }
        zero(calls.ibv_dereg_mr(self.source_region.0), "ibv_dereg_mr of a source")?;
        zero(calls.ibv_dereg_mr(self.region.0), "ibv_dereg_mr")?;
        if !self.is_unmapped.load(Ordering::Relaxed) {
            self.pages.unmap();
        }
        Ok(())
    }

    /// Takes the memory away while it is registered.
    pub(super) fn unmap(&self) {
        self.is_unmapped.store(true, Ordering::Relaxed);
        self.pages.unmap();
    }

    /// Memory for a receive of so many bytes, in one piece or several.
    pub(super) fn take_buffer(&self, bytes: u32) -> (u32, Vec<ibv_sge>) {
        let offset = self.next_buffer.fetch_add(bytes.next_multiple_of(8), Ordering::Relaxed);
        if bytes == 0 {
            return (offset, Vec::new());
        }
        let lkey = object::read(self.region.0).map_or(0, |region| region.lkey);
        (offset, split(self.address().base + u64::from(offset), bytes, 1 + offset / 8 % 3, lkey))
    }
}

/// Bytes of the region of one side: what its work needs, and its receives.
pub(super) fn region_bytes(link: &Link, side: usize) -> u32 {
    let rounds = 0..link.ends[side].rounds.len();
    let receives = rounds.map(|round| link.receives(side, round).count() as u32).sum::<u32>();
    (link.ends[side].room + (2 * receives + SPARE_RECEIVES) * (POOL_BYTES + GRH_BYTES)).next_multiple_of(4096)
}

/// Receives beyond those that messages take.
const SPARE_RECEIVES: u32 = 4;

/// States of queue pairs in C.
pub(super) const STATE_INIT: c_int = 1;
pub(super) const STATE_RTR: c_int = 2;
pub(super) const STATE_RTS: c_int = 3;
pub(super) const STATE_ERROR: c_int = 6;

fn first_psn(number: u32) -> u32 {
    number.wrapping_mul(0x9e37_79b1) & 0xff_ffff
}

/// What the word of compare-and-swaps holds before one of them: its predecessor's value.
pub(super) fn previous_swap(end: &End, work: &Work) -> u64 {
    let swaps = end.rounds.iter().filter_map(|lanes| lanes.first()).flatten();
    let mut before = swaps.filter(|one| one.kind == Kind::CompareSwap && one.id < work.id);
    before.next_back().map_or(0, |one| one.operand)
}

/// So many bytes in pieces: all but the last of one length.
pub(super) fn split(address: u64, length: u32, pieces: u32, lkey: u32) -> Vec<ibv_sge> {
    let each = length / pieces;
    let piece = |index: u32| ibv_sge {
        addr: address + u64::from(index * each),
        length: if index + 1 == pieces { length - index * each } else { each },
        lkey,
    };
    (0..pieces).map(piece).collect()
}
