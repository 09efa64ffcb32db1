//! The shared buffer of a switch: dynamic thresholds, PFC headroom, and what each ingress port uses.
//!
//! Each ingress port and priority has a reserve of its own. Above it, it may use a share of what is free, times alpha
//! (Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches", 1998). A lossless priority
//! that exceeds the threshold sends XOFF, and what is under way by then goes to its headroom; any other loses the packet.

use crate::model::config::{FlowControl, SwitchConfig};

/// The shared buffer of one switch.
#[derive(Debug)]
pub(crate) struct SharedBuffer {
    /// Bytes above the reserves.
    pub(crate) used: u64,
    /// Bytes that are neither reserve nor headroom.
    size: u64,
    /// The threshold is the free part, times eight, shifted right by this,
    shift: u32,
    /// and at most this.
    threshold_max: u64,
    /// How far below the threshold XON is sent.
    xon_offset: u64,
    /// Of each ingress port and priority.
    pub(crate) reserve: u32,
}

/// Bytes that one ingress port uses of the buffer, by priority: a cache line.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
#[repr(align(64))]
pub(crate) struct IngressUsage {
    /// In the reserve and the shared part.
    pub(crate) shared: [u32; 8],
    pub(crate) headroom: [u32; 8],
}

/// Whether a packet was admitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Admission {
    Admitted,
    Dropped,
}

/// Packets that are admitted together, or not at all.
pub(crate) struct BulkAdmission {
    /// Bytes above the reserves with all of them, and the most of one ingress port and priority.
    used: u64,
    most: u32,
}

#[allow(clippy::inline_always, reason = "they are called for each packet-hop, from two places")]
impl BulkAdmission {
    /// None yet.
    #[inline(always)]
    pub(crate) fn new(buffer: &SharedBuffer) -> Self {
        Self { used: buffer.used, most: 0 }
    }

    /// Adds a packet to its ingress port. If the admission is not committed, it has to be subtracted there again.
    #[inline(always)]
    pub(crate) fn add(
        &mut self,
        buffer: &SharedBuffer,
        usage: &mut IngressUsage,
        priority: usize,
        bytes: u32,
    ) {
        let shared = &mut usage.shared[priority];
        let before = shared.saturating_sub(buffer.reserve);
        *shared += bytes;
        let after = shared.saturating_sub(buffer.reserve);
        self.used += u64::from(after - before);
        self.most = self.most.max(after);
    }

    /// Admits all of them, if no ingress port and priority exceeds its threshold with all of them there. Returns whether.
    #[inline(always)]
    pub(crate) fn commit(self, buffer: &mut SharedBuffer) -> bool {
        let fits = u64::from(self.most) < buffer.threshold(self.used);
        if fits {
            buffer.used = self.used;
        }
        fits
    }
}

impl SharedBuffer {
    /// Of a switch with so many ports, whose links need so many bytes of headroom for each lossless priority.
    pub(crate) fn new(config: &SwitchConfig, ports: usize, headroom: u64) -> Self {
        let lossless = u64::from(config.lossless.count_ones());
        let set_aside = ports as u64 * 8 * config.reserve.0
            + if config.flow_control == FlowControl::Pfc { headroom * lossless } else { 0 };
        Self {
            used: 0,
            size: config.buffer.0.saturating_sub(set_aside),
            shift: (config.shift.clamp(-3, 7) + 3) as u32,
            threshold_max: config.pause_at.map_or(u64::MAX, |bytes| bytes.0),
            xon_offset: config.resume_offset.0,
            reserve: config.reserve.0 as u32,
        }
    }

    /// What one ingress port and priority may use above its reserve, while all of them use so much.
    #[inline]
    fn threshold(&self, used: u64) -> u64 {
        (self.size.saturating_sub(used) << 3 >> self.shift).min(self.threshold_max)
    }

    #[inline]
    fn above_reserve(&self, usage: &IngressUsage, priority: usize) -> u64 {
        u64::from(usage.shared[priority].saturating_sub(self.reserve))
    }

    /// Admits a packet if that certainly sends no XOFF and drops nothing. Deferred releases make the accounting
    /// conservative: there may be more free space than is counted.
    #[inline]
    pub(crate) fn admit_fast(&mut self, usage: &mut IngressUsage, priority: usize, bytes: u32) -> bool {
        let mut one = BulkAdmission::new(self);
        one.add(self, usage, priority, bytes);
        let fits = usage.headroom[priority] == 0 && one.commit(self);
        if !fits {
            usage.shared[priority] -= bytes;
        }
        fits
    }

    /// Admits a packet if there is room for it, in `headroom` if need be.
    pub(crate) fn admit(
        &mut self,
        usage: &mut IngressUsage,
        priority: usize,
        bytes: u32,
        headroom: u32,
    ) -> Admission {
        let threshold = self.threshold(self.used);
        let shared = usage.shared[priority] + bytes;
        let above = u64::from(shared.saturating_sub(self.reserve));
        if above > threshold {
            // Only the headroom is left, which lossless priorities have.
            if usage.headroom[priority] + bytes > headroom {
                return Admission::Dropped;
            }
            usage.headroom[priority] += bytes;
            return Admission::Admitted;
        }
        self.used += above.min(u64::from(bytes));
        usage.shared[priority] = shared;
        Admission::Admitted
    }

    /// Releases the space of a packet: headroom empties first.
    #[inline]
    pub(crate) fn release(&mut self, usage: &mut IngressUsage, priority: usize, bytes: u32) {
        let from_headroom = usage.headroom[priority].min(bytes);
        usage.headroom[priority] -= from_headroom;
        self.release_shared(usage, priority, bytes - from_headroom);
    }

    /// The same where nothing is in the headroom.
    #[inline]
    pub(crate) fn release_shared(&mut self, usage: &mut IngressUsage, priority: usize, bytes: u32) {
        let from_shared = self.above_reserve(usage, priority).min(u64::from(bytes));
        self.used -= from_shared;
        usage.shared[priority] -= bytes;
    }

    /// Whether the sender of this ingress port has to get XOFF.
    #[inline]
    pub(crate) fn exceeds_xoff(&self, usage: &IngressUsage, priority: usize) -> bool {
        usage.headroom[priority] > 0
            || self.above_reserve(usage, priority) >= self.threshold(self.used).max(1)
    }

    /// Whether a sender that got XOFF may get XON.
    #[inline]
    pub(crate) fn is_below_xon(&self, usage: &IngressUsage, priority: usize) -> bool {
        let shared = self.above_reserve(usage, priority);
        usage.headroom[priority] == 0
            && (shared == 0 || shared + self.xon_offset <= self.threshold(self.used))
    }
}
