//! Stateless seeded chance: a draw is a function of its coordinates.
//!
//! Two replays that ask for the same coordinates see the same draw however many other draws they
//! make, which is what common random numbers need. The mixer is splitmix64's finaliser
//! (Steele, Lea, Flood, OOPSLA 2014).

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// A 64-bit draw that depends on both arguments.
#[must_use]
pub const fn hash2(seed: u64, a: u64) -> u64 {
    mix(mix(seed.wrapping_add(GOLDEN)) ^ a.wrapping_mul(GOLDEN).wrapping_add(GOLDEN))
}

/// A 64-bit draw that depends on all three arguments.
#[must_use]
pub const fn hash3(seed: u64, a: u64, b: u64) -> u64 {
    hash2(hash2(seed, a), b)
}

/// Maps a 64-bit draw to `[0, 1)`.
#[must_use]
pub fn unit_f64(draw: u64) -> f64 {
    (draw >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_spread_and_repeatable() {
        let mean: f64 = (0..10_000).map(|i| unit_f64(hash3(7, i, 3))).sum::<f64>() / 10_000.0;
        assert!((mean - 0.5).abs() < 0.01, "{mean}");
        assert_eq!(hash3(7, 1, 2), hash3(7, 1, 2));
        assert_ne!(hash3(7, 1, 2), hash3(7, 2, 1));
    }
}
