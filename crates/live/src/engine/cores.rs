//! The cores that ranks of one host have between them: where there are fewer than ranks, a rank that waits is in the way of
//! the one that it waits for.

use rustix::thread::CpuSet;

use crate::message::Malformed;
use crate::message::fields::{Reader, put_blob};

/// The longest mask of cores.
const MASK: usize = CpuSet::MAX_CPU / 8;

/// What a rank may use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Cores {
    /// How many, by affinity and control group.
    pub(super) usable: u32,
    /// Which, by affinity: a bit for each. Nothing where the system does not tell.
    pub(super) mask: Vec<u8>,
}

impl Cores {
    /// Of this process.
    pub(super) fn own() -> Self {
        let set = rustix::thread::sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
        let mut mask = vec![0; MASK];
        for core in (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)) {
            mask[core / 8] |= 1 << (core % 8);
        }
        let length = mask.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        mask.truncate(length);
        Self { usable: crate::machine::cores().usable as u32, mask }
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend(self.usable.to_le_bytes());
        put_blob(out, &self.mask);
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self { usable: reader.number("cores")?, mask: reader.blob("cores", MASK)? })
    }

    /// How many ranks of one host have between them. Each may be bound to some, or all may use the same; a control group
    /// that grants less than affinity does grants it to all together.
    pub(super) fn together<'a>(all: impl Iterator<Item = &'a Self> + Clone) -> usize {
        let count = |mask: &[u8]| mask.iter().map(|byte| byte.count_ones()).sum::<u32>();
        let limited = all.clone().filter(|one| one.usable < count(&one.mask)).map(|one| one.usable).min();
        let mut union = vec![0; MASK];
        for one in all.clone() {
            for (whole, byte) in union.iter_mut().zip(&one.mask) {
                *whole |= byte;
            }
        }
        let most = all.map(|one| one.usable).max().unwrap_or(1);
        limited.unwrap_or_else(|| count(&union).max(most)) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn together(all: &[(u32, &[u8])]) -> usize {
        let all: Vec<Cores> =
            all.iter().map(|(usable, mask)| Cores { usable: *usable, mask: mask.to_vec() }).collect();
        Cores::together(all.iter())
    }

    #[test]
    fn ranks_that_are_bound_to_cores_of_their_own_have_as_many_together() {
        assert_eq!(together(&[(2, &[0b11]), (2, &[0b11]), (2, &[0b11])]), 2);
        assert_eq!(together(&[(1, &[0b01]), (1, &[0b10]), (2, &[0, 0b11])]), 4);
        // Half of eight cores' time is for all ranks of a control group together.
        assert_eq!(together(&[(4, &[0xff]), (4, &[0xff])]), 4);
        // A system that does not say which.
        assert_eq!(together(&[(3, &[]), (3, &[])]), 3);
    }

    #[test]
    fn this_process_has_some_and_they_are_read_as_they_were_written() {
        let own = Cores::own();
        assert!(own.usable >= 1 && Cores::together([&own].into_iter()) == own.usable as usize);
        let mut bytes = Vec::new();
        own.write(&mut bytes);
        let mut reader = Reader::new(&bytes);
        assert_eq!(Cores::read(&mut reader).unwrap(), own);
        assert!(reader.finish().is_ok());
    }
}
