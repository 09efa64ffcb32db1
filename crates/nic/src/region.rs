//! Memory regions and windows: who may touch which bytes.

use std::collections::{BTreeMap, VecDeque};
use std::ops::{BitOr, Range};

use railnet_core::event::Check;
use railnet_core::{QueuePairNumber, Random};

use crate::error::VerbsError;
use crate::memory::{Backing, SpaceId};

/// What may be done with a region, a window, or through a queue pair. The bits are those of the verbs interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Access(u8);

impl Access {
    /// Reading by the local NIC only.
    pub const NONE: Self = Self(0);
    /// Writing by the local NIC: receives, READ results.
    pub const LOCAL_WRITE: Self = Self(1);
    /// WRITE by the peer.
    pub const REMOTE_WRITE: Self = Self(2);
    /// READ by the peer.
    pub const REMOTE_READ: Self = Self(4);
    /// Atomics by the peer.
    pub const REMOTE_ATOMIC: Self = Self(8);
    /// Windows may be bound to the region.
    pub const WINDOW_BIND: Self = Self(16);
    /// Everything.
    pub const ALL: Self = Self(31);

    /// The verbs bits.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// From verbs bits; unknown ones are dropped.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits & 31)
    }

    /// Whether all of `needed` is granted.
    pub const fn allows(self, needed: Self) -> bool {
        self.0 & needed.0 == needed.0
    }

    const fn is_remote(self) -> bool {
        self.0 & (Self::REMOTE_WRITE.0 | Self::REMOTE_READ.0 | Self::REMOTE_ATOMIC.0) != 0
    }
}

impl BitOr for Access {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A protection domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub struct ProtectionDomain(pub(crate) u32);

/// A local or remote key: 24 bits that name it, counted up or drawn at random, and 8 bits that change with each use of a number
/// (of a window: those that the binding gives it).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub struct Key(pub u32);

/// Why memory may not be touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AccessFault {
    /// The key means nothing here.
    Key,
    /// The region does not grant this.
    Permission,
    /// Part of the range lies outside.
    Range,
}

impl AccessFault {
    /// The check that found it.
    pub(crate) const fn check(self) -> Check {
        match self {
            Self::Key => Check::Key,
            Self::Permission => Check::Permission,
            Self::Range => Check::Range,
        }
    }
}

/// A window bound to part of a region.
#[derive(Clone, Copy, Debug)]
struct Binding {
    region: u32,
    queue_pair: QueuePairNumber,
    address: u64,
    length: u64,
    access: Access,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Region { address: u64, length: u64, access: Access, space: SpaceId, backing: Backing, windows: u32 },
    Window { binding: Option<Binding> },
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    key: Key,
    domain: ProtectionDomain,
    kind: Kind,
}

/// Memory that passed the checks of its key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CheckedMemory {
    pub(crate) space: SpaceId,
    pub(crate) backing: Backing,
}

/// A request to bind a window (type 2B): it is good for one queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bind {
    /// The window, by its present key.
    pub window: Key,
    /// The low eight bits of the key it gets.
    pub variant: u8,
    /// The region, by its local key.
    pub region: Key,
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub length: u64,
    /// What the peer may do.
    pub access: Access,
}

/// All keys of a NIC.
#[derive(Debug)]
pub(crate) struct Regions {
    range: Range<u32>,
    slots: Vec<Option<Slot>>,
    free: VecDeque<u32>,
    /// The index of the slot that has the key of each upper 24 bits, where those are drawn at random.
    drawn: Option<BTreeMap<u32, u32>>,
    random: Random,
}

impl Regions {
    /// Keys whose upper 24 bits are of this range, drawn at random or counted up.
    pub(crate) fn new(range: Range<u32>, are_drawn: bool, random: Random) -> Self {
        let drawn = are_drawn.then(BTreeMap::new);
        Self { range, slots: Vec::new(), free: VecDeque::new(), drawn, random }
    }

    /// Where the slot of a key would be.
    #[inline]
    fn index(&self, key: Key) -> Option<usize> {
        let number = key.0 >> 8;
        match &self.drawn {
            None => Some(number.wrapping_sub(self.range.start) as usize),
            Some(drawn) => drawn.get(&number).map(|index| *index as usize),
        }
    }

    #[inline]
    fn slot(&self, key: Key) -> Option<&Slot> {
        self.slots.get(self.index(key)?)?.as_ref().filter(|slot| slot.key == key)
    }

    fn slot_mut(&mut self, key: Key) -> Option<&mut Slot> {
        let index = self.index(key)?;
        self.slots.get_mut(index)?.as_mut().filter(|slot| slot.key == key)
    }

    fn insert(
        &mut self,
        domain: ProtectionDomain,
        kind: Kind,
        wanted: Option<Key>,
    ) -> Result<Key, VerbsError> {
        let index = match wanted {
            Some(key) => self.claim(key)?,
            None => self.next_index()?,
        };
        let variant = (self.random.next_u32() & 0xff).max(1);
        let key = wanted.unwrap_or_else(|| Key(self.number_for(index) << 8 | variant));
        if let Some(drawn) = &mut self.drawn {
            drawn.insert(key.0 >> 8, index);
        }
        self.slots[index as usize] = Some(Slot { key, domain, kind });
        Ok(key)
    }

    /// The upper 24 bits of the key of a slot.
    fn number_for(&mut self, index: u32) -> u32 {
        let Some(drawn) = &self.drawn else { return self.range.start + index };
        // There are more numbers than slots.
        loop {
            let number = self.random.between(self.range.start.into(), u64::from(self.range.end) - 1) as u32;
            if !drawn.contains_key(&number) {
                return number;
            }
        }
    }

    /// An index nobody has. Freed ones wait for some time, so that a stale key does not find a new region.
    fn next_index(&mut self) -> Result<u32, VerbsError> {
        const REST: usize = 64;
        let fresh = self.slots.len() as u32;
        if self.free.len() <= REST && self.range.start + fresh < self.range.end {
            self.slots.push(None);
            return Ok(fresh);
        }
        self.free.pop_front().ok_or(VerbsError::Exhausted("key"))
    }

    fn claim(&mut self, key: Key) -> Result<u32, VerbsError> {
        let number = key.0 >> 8;
        if let Some(drawn) = &self.drawn {
            return match self.range.contains(&number) && !drawn.contains_key(&number) {
                true => self.next_index(),
                false => Err(VerbsError::NotAvailable { what: "key", number: key.0 }),
            };
        }
        let index = number.wrapping_sub(self.range.start);
        if !self.range.contains(&number) || self.slots.get(index as usize).is_some_and(Option::is_some) {
            return Err(VerbsError::NotAvailable { what: "key", number: key.0 });
        }
        while self.slots.len() <= index as usize {
            self.free.push_back(self.slots.len() as u32);
            self.slots.push(None);
        }
        self.free.retain(|&free| free != index);
        Ok(index)
    }

    #[allow(clippy::too_many_arguments, reason = "a region is these seven facts")]
    pub(crate) fn register(
        &mut self,
        domain: ProtectionDomain,
        space: SpaceId,
        backing: Backing,
        address: u64,
        length: u64,
        access: Access,
        wanted: Option<Key>,
    ) -> Result<Key, VerbsError> {
        let writes = access.0 & (Access::REMOTE_WRITE | Access::REMOTE_ATOMIC).0 != 0;
        if writes && !access.allows(Access::LOCAL_WRITE) {
            return Err(VerbsError::RemoteWriteNeedsLocalWrite);
        }
        let kind = Kind::Region { address, length, access, space, backing, windows: 0 };
        self.insert(domain, kind, wanted)
    }

    pub(crate) fn allocate_window(&mut self, domain: ProtectionDomain) -> Result<Key, VerbsError> {
        self.insert(domain, Kind::Window { binding: None }, None)
    }

    pub(crate) fn is_window(&self, key: Key) -> bool {
        matches!(self.slot(key), Some(Slot { kind: Kind::Window { .. }, .. }))
    }

    /// The present key of the window that a key's index names.
    pub(crate) fn present_key(&self, key: Key) -> Option<Key> {
        let slot = self.slots.get(self.index(key)?)?.as_ref()?;
        matches!(slot.kind, Kind::Window { .. }).then_some(slot.key)
    }

    /// Frees a region or a window.
    pub(crate) fn remove(&mut self, key: Key) -> Result<ProtectionDomain, VerbsError> {
        let slot = *self.slot(key).ok_or(VerbsError::Unknown("key"))?;
        match slot.kind {
            Kind::Region { windows, .. } if windows > 0 => {
                return Err(VerbsError::Busy { what: "memory region", by: "memory windows", count: windows });
            }
            Kind::Region { .. } => {}
            Kind::Window { binding } => self.unbind(binding),
        }
        let index = self.index(key).expect("it has a slot");
        self.slots[index] = None;
        self.free.push_back(index as u32);
        if let Some(drawn) = &mut self.drawn {
            drawn.remove(&(key.0 >> 8));
        }
        Ok(slot.domain)
    }

    fn unbind(&mut self, binding: Option<Binding>) {
        let Some(binding) = binding else { return };
        if let Some(Slot { kind: Kind::Region { windows, .. }, .. }) =
            &mut self.slots[binding.region as usize]
        {
            *windows -= 1;
        }
    }

    /// Binds a window; the window has the new key afterwards. A bind of zero bytes unbinds.
    pub(crate) fn bind(
        &mut self,
        domain: ProtectionDomain,
        queue_pair: QueuePairNumber,
        bind: &Bind,
    ) -> Result<Key, AccessFault> {
        let Some(&Slot { domain: window_domain, kind: Kind::Window { binding: old }, .. }) =
            self.slot(bind.window)
        else {
            return Err(AccessFault::Key);
        };
        let Some(&Slot { domain: region_domain, kind: Kind::Region { address, length, access, .. }, .. }) =
            self.slot(bind.region)
        else {
            return Err(AccessFault::Key);
        };
        if window_domain != domain || region_domain != domain || old.is_some() {
            return Err(AccessFault::Key);
        }
        // IBTA 10.6.7.2: the region must allow binding, and local write where the window grants remote writing.
        let needs_write = bind.access.0 & (Access::REMOTE_WRITE | Access::REMOTE_ATOMIC).0 != 0;
        if !access.allows(Access::WINDOW_BIND) || needs_write && !access.allows(Access::LOCAL_WRITE) {
            return Err(AccessFault::Permission);
        }
        if !contains(address, length, bind.address, bind.length) {
            return Err(AccessFault::Range);
        }
        let region = self.index(bind.region).expect("it has a slot") as u32;
        if let Some(Slot { kind: Kind::Region { windows, .. }, .. }) = &mut self.slots[region as usize] {
            *windows += 1;
        }
        let key = Key(bind.window.0 & !0xff | u32::from(bind.variant));
        let binding =
            Binding { region, queue_pair, address: bind.address, length: bind.length, access: bind.access };
        let slot = self.slot_mut(bind.window).expect("it was there a moment ago");
        slot.key = key;
        slot.kind = Kind::Window { binding: Some(binding) };
        Ok(key)
    }

    /// Takes the rights of a window away. Only a window of type 2B that is bound to this queue pair can be
    /// invalidated; a region made by plain registration cannot.
    pub(crate) fn invalidate(
        &mut self,
        key: Key,
        domain: ProtectionDomain,
        queue_pair: QueuePairNumber,
    ) -> Result<(), AccessFault> {
        match self.slot(key) {
            Some(&Slot { domain: owner, kind: Kind::Window { binding: Some(binding) }, .. })
                if owner == domain && binding.queue_pair == queue_pair =>
            {
                self.unbind(Some(binding));
                self.slot_mut(key).expect("it was there a moment ago").kind = Kind::Window { binding: None };
                Ok(())
            }
            _ => Err(AccessFault::Key),
        }
    }

    /// Checks a local key for a work request of this protection domain.
    #[inline]
    pub(crate) fn local(
        &self,
        key: Key,
        domain: ProtectionDomain,
        address: u64,
        length: u64,
        needed: Access,
    ) -> Result<CheckedMemory, AccessFault> {
        match self.slot(key) {
            Some(&Slot { domain: owner, kind: Kind::Region { .. }, .. }) if owner != domain => {
                Err(AccessFault::Key)
            }
            Some(Slot {
                kind: Kind::Region { address: base, length: size, access, space, backing, .. },
                ..
            }) => {
                if !access.allows(needed) {
                    return Err(AccessFault::Permission);
                }
                if !contains(*base, *size, address, length) {
                    return Err(AccessFault::Range);
                }
                Ok(CheckedMemory { space: *space, backing: *backing })
            }
            _ => Err(AccessFault::Key),
        }
    }

    /// Checks a remote key that came over `queue_pair`.
    #[inline]
    pub(crate) fn remote(
        &self,
        key: Key,
        domain: ProtectionDomain,
        queue_pair: QueuePairNumber,
        address: u64,
        length: u64,
        needed: Access,
    ) -> Result<CheckedMemory, AccessFault> {
        match self.slot(key) {
            Some(Slot { domain: owner, .. }) if *owner != domain => Err(AccessFault::Key),
            Some(Slot { kind: Kind::Region { access, .. }, .. }) if !access.is_remote() => {
                Err(AccessFault::Key)
            }
            Some(Slot { kind: Kind::Region { .. }, .. }) => self.local(key, domain, address, length, needed),
            Some(&Slot { kind: Kind::Window { binding: Some(binding) }, .. }) => {
                if binding.queue_pair != queue_pair {
                    return Err(AccessFault::Key);
                }
                if !binding.access.allows(needed) {
                    return Err(AccessFault::Permission);
                }
                if !contains(binding.address, binding.length, address, length) {
                    return Err(AccessFault::Range);
                }
                match self.slots[binding.region as usize] {
                    Some(Slot { kind: Kind::Region { space, backing, .. }, .. }) => {
                        Ok(CheckedMemory { space, backing })
                    }
                    _ => Err(AccessFault::Key),
                }
            }
            _ => Err(AccessFault::Key),
        }
    }
}

#[inline]
fn contains(base: u64, size: u64, address: u64, length: u64) -> bool {
    address >= base && length <= size && address - base <= size - length
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOMAIN: ProtectionDomain = ProtectionDomain(0);

    fn regions() -> Regions {
        Regions::new(1..100, false, Random::from_seed(1))
    }

    fn register(regions: &mut Regions, access: Access) -> Key {
        regions.register(DOMAIN, SpaceId(0), Backing::Bytes, 0x1000, 0x100, access, None).unwrap()
    }

    #[test]
    fn ranges_are_checked_without_overflow() {
        let mut regions = regions();
        let key = register(&mut regions, Access::ALL);
        let check = |address, length| regions.local(key, DOMAIN, address, length, Access::NONE).map(|_| ());
        assert_eq!(check(0x1000, 0x100), Ok(()));
        assert_eq!(check(0x1100, 0), Ok(()));
        assert_eq!(check(0x10ff, 2), Err(AccessFault::Range));
        assert_eq!(check(u64::MAX, 2), Err(AccessFault::Range));
        assert_eq!(check(0xfff, 1), Err(AccessFault::Range));
    }

    #[test]
    fn a_key_of_another_domain_or_without_rights_is_refused() {
        let mut regions = regions();
        let key = register(&mut regions, Access::LOCAL_WRITE | Access::REMOTE_READ);
        let qp = QueuePairNumber::new(5);
        let remote = |domain, needed| regions.remote(key, domain, qp, 0x1000, 1, needed).map(|_| ());
        assert_eq!(remote(DOMAIN, Access::REMOTE_READ), Ok(()));
        assert_eq!(remote(DOMAIN, Access::REMOTE_WRITE), Err(AccessFault::Permission));
        assert_eq!(remote(ProtectionDomain(1), Access::REMOTE_READ), Err(AccessFault::Key));
        let local_only = register(&mut regions, Access::LOCAL_WRITE);
        assert_eq!(
            regions.remote(local_only, DOMAIN, qp, 0x1000, 1, Access::NONE).map(|_| ()),
            Err(AccessFault::Key)
        );
    }

    #[test]
    fn a_window_gives_rights_to_one_queue_pair_until_it_is_invalidated() {
        let mut regions = regions();
        let region = register(&mut regions, Access::ALL);
        let window = regions.allocate_window(DOMAIN).unwrap();
        let (mine, other) = (QueuePairNumber::new(5), QueuePairNumber::new(6));
        let bind =
            Bind { window, variant: 9, region, address: 0x1010, length: 16, access: Access::REMOTE_WRITE };
        let key = regions.bind(DOMAIN, mine, &bind).unwrap();
        assert_eq!(key.0 & 0xff, 9);
        assert!(regions.remote(key, DOMAIN, mine, 0x1010, 16, Access::REMOTE_WRITE).is_ok());
        assert!(regions.remote(key, DOMAIN, other, 0x1010, 16, Access::REMOTE_WRITE).is_err());
        assert!(regions.remote(key, DOMAIN, mine, 0x100f, 1, Access::REMOTE_WRITE).is_err());
        assert!(matches!(regions.remove(region), Err(VerbsError::Busy { .. })));
        assert!(regions.invalidate(key, DOMAIN, other).is_err());
        assert!(regions.invalidate(key, DOMAIN, mine).is_ok());
        assert!(regions.remote(key, DOMAIN, mine, 0x1010, 16, Access::REMOTE_WRITE).is_err());
        assert!(regions.remove(region).is_ok());
    }

    /// Keys of real NICs: 32 random bits, unique while they are in use, and a stale one finds nothing.
    #[test]
    fn drawn_keys_are_spread_over_their_range_and_stale_ones_mean_nothing() {
        let mut regions = Regions::new(1..1 << 24, true, Random::from_seed(2));
        let keys: Vec<Key> = (0..1000).map(|_| register(&mut regions, Access::ALL)).collect();
        let numbers: std::collections::BTreeSet<u32> = keys.iter().map(|key| key.0 >> 8).collect();
        assert_eq!(numbers.len(), 1000);
        // In each sixteenth of the range there are some, and neighbours are no neighbours there.
        for part in 0..16 {
            let found = numbers.range(part << 20..(part + 1) << 20).count();
            assert!((20..120).contains(&found), "{found} in part {part}");
        }
        assert!(keys.windows(2).filter(|pair| (pair[0].0 >> 8).abs_diff(pair[1].0 >> 8) < 1000).count() < 5);
        for key in &keys {
            regions.remove(*key).unwrap();
            assert!(regions.remove(*key).is_err());
        }
        let again: Vec<Key> = (0..1000).map(|_| register(&mut regions, Access::ALL)).collect();
        let is_stale = |key: &&Key| !again.contains(key);
        for key in keys.iter().filter(is_stale) {
            let found = regions.local(*key, DOMAIN, 0x1000, 1, Access::NONE);
            assert_eq!(found.map(|_| ()), Err(AccessFault::Key));
        }
        let wanted = Key(42 << 8 | 7);
        let place = |regions: &mut Regions| {
            regions.register(DOMAIN, SpaceId(0), Backing::Bytes, 0, 1, Access::NONE, Some(wanted))
        };
        assert_eq!(place(&mut regions), Ok(wanted));
        assert!(place(&mut regions).is_err());
    }

    #[test]
    fn a_wanted_key_is_honoured_or_refused() {
        let mut regions = regions();
        let wanted = Key(42 << 8 | 7);
        let place = |regions: &mut Regions, key| {
            regions.register(DOMAIN, SpaceId(0), Backing::Bytes, 0, 1, Access::NONE, Some(key))
        };
        assert_eq!(place(&mut regions, wanted), Ok(wanted));
        assert!(place(&mut regions, wanted).is_err());
        assert!(place(&mut regions, Key(100 << 8)).is_err());
        for _ in 0..98 {
            register(&mut regions, Access::NONE);
        }
        assert_eq!(
            regions.register(DOMAIN, SpaceId(0), Backing::Bytes, 0, 1, Access::NONE, None),
            Err(VerbsError::Exhausted("key"))
        );
    }
}
