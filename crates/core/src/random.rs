//! Seeded randomness: one root seed, one stream per component.
//!
//! A component's stream depends on the root seed, its kind and its id alone, so adding a switch never shifts another
//! component's random stream. The generator is xoshiro256++ (Blackman and Vigna, public domain), written out here because its
//! output is part of every recorded digest and must never change under us.

/// A stream of random numbers that belongs to one component.
#[derive(Clone, Debug)]
pub struct Random {
    state: [u64; 4],
}

impl Random {
    /// The stream of the component (`kind`, `id`) in a run with the seed `root`.
    pub fn stream(root: u64, kind: &str, id: u64) -> Self {
        let mut seed = mix(root ^ 0x005e_ed0f_7a11_0e70);
        for byte in kind.bytes() {
            seed = mix(seed ^ u64::from(byte));
        }
        Self::from_seed(mix(seed ^ id))
    }

    /// A stream from a bare seed.
    pub fn from_seed(seed: u64) -> Self {
        let mut at = seed;
        let state = std::array::from_fn(|_| {
            at = at.wrapping_add(0x9e37_79b9_7f4a_7c15);
            mix(at)
        });
        Self { state }
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        let [s0, s1, s2, s3] = self.state;
        let result = s0.wrapping_add(s3).rotate_left(23).wrapping_add(s0);
        let mut s = [s0, s1, s2 ^ s0, s3 ^ s1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= s1 << 17;
        s[3] = s[3].rotate_left(45);
        self.state = s;
        result
    }

    /// 32 random bits.
    pub fn next_u32(&mut self) -> u32 {
        (self.next_u64() >> 32) as u32
    }

    /// A number in `0..limit`, each equally likely. `limit` must not be zero.
    pub fn below(&mut self, limit: u64) -> u64 {
        assert!(limit > 0, "no number is below zero");
        // Lemire's multiplication method; the rejection keeps it exactly uniform.
        loop {
            let wide = u128::from(self.next_u64()) * u128::from(limit);
            if (wide as u64) >= limit.wrapping_neg() % limit {
                return (wide >> 64) as u64;
            }
        }
    }

    /// A number in `low..=high`, each equally likely.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        assert!(low <= high, "empty range {low}..={high}");
        match (high - low).checked_add(1) {
            Some(count) => low + self.below(count),
            None => self.next_u64(),
        }
    }

    /// True `parts_per_million` times in a million.
    pub fn chance(&mut self, parts_per_million: u32) -> bool {
        parts_per_million != 0 && self.below(1_000_000) < u64::from(parts_per_million)
    }

    /// One of `items`, each equally likely. `items` must not be empty.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood): every input bit moves every output bit.
pub(crate) const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_pinned_and_independent() {
        let mut a = Random::stream(1, "nic", 0);
        let mut again = Random::stream(1, "nic", 0);
        let mut other = Random::stream(1, "nic", 1);
        let first = a.next_u64();
        assert_eq!(first, again.next_u64());
        assert_ne!(first, other.next_u64());
        assert_eq!(first, 0x4af1_678b_5aa4_ccd3);
    }

    #[test]
    fn the_generator_is_xoshiro256_plus_plus() {
        // Reference outputs for the state 1, 2, 3, 4 from the authors' C code.
        let mut random = Random { state: [1, 2, 3, 4] };
        let expected = [41_943_041, 58_720_359, 3_588_806_011_781_223, 3_591_011_842_654_386];
        assert_eq!(std::array::from_fn(|_| random.next_u64()), expected);
    }

    #[test]
    fn bounds_hold() {
        let mut random = Random::from_seed(7);
        for _ in 0..10_000 {
            assert!(random.below(3) < 3);
            assert!((5..=6).contains(&random.between(5, 6)));
        }
        assert!(!random.chance(0));
        assert!(random.chance(1_000_000));
    }
}
