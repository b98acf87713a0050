//! Blocks of time: what is dependent is resampled together.

use crate::sample::{NS_PER_MS, Sample};
use evenkeel_types::hash3;

/// Atoms of a block. A block starts at any atom (circular block bootstrap, Politis & Romano
/// 1992); four starts per block length keep the variance of the estimate within a few percent of
/// starting anywhere.
const ATOMS_PER_BLOCK: usize = 4;

/// Most blocks of a run. More make no interval better and every replicate dearer.
const BLOCKS_MAX: usize = 2048;

/// Fewest blocks from which an interval is read. Below, one busy minute is the whole evidence.
pub(crate) const BLOCKS_MIN: u32 = 8;

/// Lags searched for the end of correlation, and the series length below which there is none.
const SERIES_MIN: usize = 32;

/// Atoms of one run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    /// Start of the run.
    pub(crate) start_ns: u64,
    /// Length of the run.
    pub(crate) span_ns: u64,
    /// Number of atoms.
    pub(crate) atoms: usize,
}

impl Grid {
    /// Atom of a time; times outside belong to the first or last.
    pub(crate) fn atom(&self, at_ns: u64) -> u32 {
        let passed = at_ns.saturating_sub(self.start_ns).min(self.span_ns) as f64;
        let atom = passed / self.span_ns.max(1) as f64 * self.atoms as f64;
        (atom as usize).min(self.atoms - 1) as u32
    }
}

/// Lengths of blocks, chosen from the data of both runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockLength {
    /// Length of a block, ns.
    pub(crate) block_ns: f64,
    /// What the step times' autocorrelation asks for, ns.
    pub(crate) autocorrelation_ns: f64,
    /// What the requests' lives ask for, ns.
    pub(crate) life_ns: f64,
}

impl BlockLength {
    /// The longer of what step times and request lives ask for, in either run.
    ///
    /// TPOT is a mean over a request's life, so requests whose lives overlap are dependent even
    /// where steps are not.
    pub(crate) fn of(samples: [&Sample; 2]) -> Self {
        let longest = |ask: fn(&Sample) -> f64| samples.iter().map(|s| ask(s)).fold(0.0, f64::max);
        let autocorrelation_ns = longest(steps_ask_ns);
        let life_ns = longest(typical_life_ns);
        let block_ns = autocorrelation_ns.max(life_ns).max(1.0);
        Self { block_ns, autocorrelation_ns, life_ns }
    }

    /// Atoms of a run.
    pub(crate) fn grid(&self, sample: &Sample) -> Grid {
        let span_ns = sample.end_ns - sample.start_ns;
        let blocks = span_ns as f64 / self.block_ns;
        let atoms = (blocks * ATOMS_PER_BLOCK as f64).round() as usize;
        let atoms = atoms.clamp(ATOMS_PER_BLOCK, BLOCKS_MAX * ATOMS_PER_BLOCK);
        Grid { start_ns: sample.start_ns, span_ns, atoms }
    }

    /// Whole blocks in a run.
    pub(crate) fn count(&self, sample: &Sample) -> u32 {
        let blocks = (sample.end_ns - sample.start_ns) as f64 / self.block_ns;
        blocks.min(BLOCKS_MAX as f64) as u32
    }

    /// Length, ms.
    pub(crate) fn block_ms(&self) -> f64 {
        self.block_ns / NS_PER_MS
    }
}

/// Blocks' worth of atoms that hold anything.
pub(crate) fn occupied_blocks(weights: impl Iterator<Item = bool>) -> f64 {
    weights.filter(|held| *held).count() as f64 / ATOMS_PER_BLOCK as f64
}

/// What the autocorrelation of decode step times asks for.
fn steps_ask_ns(sample: &Sample) -> f64 {
    let steps: Vec<f64> = sample.decode_steps_ns.iter().map(|step| step.1).collect();
    let mean = steps.iter().sum::<f64>() / steps.len().max(1) as f64;
    optimal_block(&steps) * mean
}

/// 75th percentile of first to last token.
fn typical_life_ns(sample: &Sample) -> f64 {
    let mut lives: Vec<u64> = sample.requests.iter().filter_map(|r| r.life_ns).collect();
    if lives.is_empty() {
        return 0.0;
    }
    let at = lives.len() * 3 / 4;
    *lives.select_nth_unstable(at).1 as f64
}

/// Block length, in observations, that minimises the error of the circular block bootstrap's
/// variance: Politis & White 2004 with the correction of Patton, Politis & White 2009.
/// 1 for a series without correlation, without variance or too short to say.
pub(crate) fn optimal_block(series: &[f64]) -> f64 {
    let n = series.len();
    if n < SERIES_MIN {
        return 1.0;
    }
    let size = n as f64;
    let mean = series.iter().sum::<f64>() / size;
    let quiet_lags = (size.log10().sqrt().ceil() as usize).max(5);
    let lag_max = (size.sqrt().ceil() as usize + quiet_lags).min(n - 1);
    let covariance = |lag: usize| {
        series.iter().zip(&series[lag..]).map(|(a, b)| (a - mean) * (b - mean)).sum::<f64>() / size
    };
    let variance = covariance(0);
    if variance <= mean * mean * 1e-18 {
        return 1.0;
    }
    // The last lag that stands out, followed by `quiet_lags` that do not.
    let noise = 2.0 * (size.log10() / size).sqrt() * variance;
    let mut covariances = vec![variance];
    let mut quiet = 0;
    while covariances.len() <= lag_max && quiet < quiet_lags {
        let value = covariance(covariances.len());
        quiet = if value.abs() < noise { quiet + 1 } else { 0 };
        covariances.push(value);
    }
    let reach = covariances.len() - 1 - quiet;
    if reach == 0 {
        return 1.0;
    }
    let bandwidth = (2 * reach).min(lag_max);
    while covariances.len() <= bandwidth {
        covariances.push(covariance(covariances.len()));
    }
    // Flat-top lag window: 1 up to half the bandwidth, then falling to 0.
    let window = |lag: usize| (2.0 * (1.0 - lag as f64 / bandwidth as f64)).clamp(0.0, 1.0);
    let (mut spectrum, mut slope) = (variance, 0.0);
    for (lag, value) in covariances.iter().enumerate().take(bandwidth + 1).skip(1) {
        spectrum += 2.0 * window(lag) * value;
        slope += 2.0 * window(lag) * lag as f64 * value;
    }
    let scale = 4.0 / 3.0 * spectrum * spectrum;
    if scale <= 0.0 {
        return 1.0;
    }
    let block = (2.0 * slope * slope / scale).cbrt() * size.cbrt();
    block.clamp(1.0, (3.0 * size.sqrt()).min(size / 3.0))
}

/// Fills `times[atom]`: how often each atom is drawn in a replicate. Blocks of
/// [`ATOMS_PER_BLOCK`] atoms start anywhere and wrap around.
pub(crate) fn resample(times: &mut [u32], seed: u64, replicate: u64, side: u64) {
    let atoms = times.len();
    times.fill(0);
    let stream = hash3(seed, replicate, side);
    for draw in 0..atoms.div_ceil(ATOMS_PER_BLOCK) {
        let start = hash3(stream, draw as u64, 0) % atoms as u64;
        for offset in 0..ATOMS_PER_BLOCK {
            times[(start as usize + offset) % atoms] += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_types::{hash2, unit_f64};

    fn autoregressive(share: f64, n: u64) -> Vec<f64> {
        let mut value = 0.0;
        let noise = |i| unit_f64(hash2(5, i)) - 0.5;
        (0..n)
            .map(|i| {
                value = share * value + noise(i);
                10.0 + value
            })
            .collect()
    }

    #[test]
    fn longer_memory_asks_for_longer_blocks() {
        let none = optimal_block(&autoregressive(0.0, 4000));
        let some = optimal_block(&autoregressive(0.7, 4000));
        let much = optimal_block(&autoregressive(0.95, 4000));
        assert!(none < 5.0 && some > 8.0 && much > 2.0 * some, "{none} {some} {much}");
        assert!((optimal_block(&[3.0; 500]) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn every_atom_is_drawn_alike_and_repeatably() {
        let mut sum = vec![0_u64; 40];
        let mut times = vec![0; 40];
        for replicate in 0..2000 {
            resample(&mut times, 3, replicate, 0);
            assert_eq!(times.iter().sum::<u32>(), 40);
            sum.iter_mut().zip(&times).for_each(|(s, t)| *s += u64::from(*t));
        }
        assert!(sum.iter().all(|s| (1850..2150).contains(s)), "{sum:?}");
        let before = times.clone();
        resample(&mut times, 3, 1999, 0);
        assert_eq!(before, times);
        resample(&mut times, 3, 1999, 1);
        assert_ne!(before, times);
    }
}
