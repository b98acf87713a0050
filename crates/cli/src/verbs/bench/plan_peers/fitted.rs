//! The fitted cost of ranks under a map and a split, step by step.

use super::held_out::hosts;
use crate::fail::Failure;
use crate::setting::Setting;
use evenkeel_cost::ExpertCoefficients;
use evenkeel_plan::LayerSlots;
use evenkeel_split::{SplitTable, StepSplitter, TimedInput, timed_shares};
use evenkeel_trace::StepLoads;
use evenkeel_types::{ExpertId, ExpertMap, LayerId, Phase, RankId};

/// `[layer][expert]`: ranks and shares.
pub(super) type Shares = Vec<Vec<Vec<(usize, f64)>>>;

pub(super) fn fixed(map: &ExpertMap, table: &SplitTable) -> Shares {
    let share =
        |(rank, ways): &(RankId, u16)| (rank.index(), f64::from(*ways) / SplitTable::WAYS as f64);
    let expert = |layer: usize, expert: u16| -> Vec<(usize, f64)> {
        table.shares(LayerId(layer as u16), ExpertId(expert)).iter().map(share).collect()
    };
    (0..map.layers()).map(|layer| (0..map.experts).map(|e| expert(layer, e)).collect()).collect()
}

/// How rows are split in a judged step.
#[derive(Clone, Copy)]
pub(super) enum Way<'a> {
    /// Evenly over slots, two of one rank included.
    Even,
    /// By fixed shares.
    Fixed(&'a Shares),
    /// Level rows, anew.
    Step,
    /// Least time, anew.
    StepTimed,
}

/// Sums over layers, means over steps, µs of expert time.
#[derive(Clone, Copy, Default)]
pub(super) struct Judged {
    /// Of the slowest rank.
    pub(super) slowest: f64,
    /// Over ranks.
    pub(super) mean: f64,
}

impl Judged {
    pub(super) fn excess(&self) -> f64 {
        self.slowest - self.mean
    }
}

/// The fitted cost of a rank.
pub(super) struct Cost {
    coefficients: ExpertCoefficients,
}

impl Cost {
    pub(super) fn new(setting: &Setting, phase: Phase) -> Self {
        Self { coefficients: setting.coefficients[phase.index()] }
    }

    /// Time of a copy with so many expected rows, its slot left out; linear between whole rows.
    fn cell_us(&self, rows: f64) -> f64 {
        let whole = rows.floor();
        let at = |rows: f64| self.coefficients.slot_us(rows as u32) - self.coefficients.slot_us;
        at(whole) + (rows - whole) * (at(whole + 1.0) - at(whole))
    }

    fn base_us(&self, slots: &LayerSlots) -> Vec<f64> {
        let c = &self.coefficients;
        slots.iter().map(|held| c.floor_us + c.slot_us * held.len() as f64).collect()
    }

    /// Shares that minimise the slowest rank's time over a window.
    pub(super) fn timed(&self, maps: &[LayerSlots], window: &StepLoads) -> Result<Shares, Failure> {
        let steps = window.steps.len();
        let mut all = Vec::with_capacity(maps.len());
        for (layer, slots) in maps.iter().enumerate() {
            let hosts = hosts(slots, window.experts);
            let rows = |expert: usize| {
                (0..steps).map(move |step| f64::from(window.layer(step, layer)[expert]))
            };
            let rows: Vec<f64> = (0..window.experts).flat_map(rows).collect();
            let input = TimedInput {
                hosts: &hosts,
                rows: &rows,
                steps,
                base_us: &self.base_us(slots),
                inverse_speed: &vec![1.0; slots.len()],
            };
            let timed = timed_shares(&input, |rows| self.cell_us(rows)).map_err(Failure::input)?;
            let pair = |(ranks, shares): (&Vec<RankId>, Vec<f64>)| {
                ranks.iter().map(|rank| rank.index()).zip(shares).collect()
            };
            all.push(hosts.iter().zip(timed.shares).map(pair).collect());
        }
        Ok(all)
    }

    pub(super) fn judge(
        &self,
        maps: &[LayerSlots],
        loads: &StepLoads,
        way: Way<'_>,
    ) -> Result<Judged, Failure> {
        let mut judged = Judged::default();
        for (layer, slots) in maps.iter().enumerate() {
            let hosts = hosts(slots, loads.experts);
            let mut splitter =
                StepSplitter::new(&hosts, &vec![1; slots.len()]).map_err(Failure::input)?;
            let base = self.base_us(slots);
            let even = evenly(slots, loads.experts);
            for step in 0..loads.steps.len() {
                let counts = loads.layer(step, layer);
                let mut time = base.clone();
                let mut add = |rank: usize, rows: f64| time[rank] += self.cell_us(rows);
                let shares = match way {
                    Way::Even => Some(&even),
                    Way::Fixed(shares) => Some(&shares[layer]),
                    Way::Step | Way::StepTimed => None,
                };
                if let Some(shares) = shares {
                    for (count, shares) in counts.iter().zip(shares) {
                        shares.iter().for_each(|(rank, part)| add(*rank, f64::from(*count) * part));
                    }
                } else {
                    match way {
                        Way::StepTimed => splitter
                            .split_timed(counts, &base, |rows| self.cell_us(rows as f64))
                            .map(|_| ()),
                        _ => splitter.split(counts),
                    }
                    .map_err(Failure::input)?;
                    for (expert, hosts) in hosts.iter().enumerate() {
                        let rows = hosts.iter().zip(splitter.rows(expert));
                        rows.for_each(|(rank, rows)| add(rank.index(), *rows as f64));
                    }
                }
                judged.slowest += time.iter().copied().fold(0.0, f64::max);
                judged.mean += time.iter().sum::<f64>() / time.len() as f64;
            }
        }
        let steps = loads.steps.len() as f64;
        Ok(Judged { slowest: judged.slowest / steps, mean: judged.mean / steps })
    }
}

/// `[expert]`: equal shares for all slots, a rank with two listed twice.
fn evenly(slots: &LayerSlots, experts: usize) -> Vec<Vec<(usize, f64)>> {
    let mut shares = vec![Vec::new(); experts];
    for (rank, held) in slots.iter().enumerate() {
        held.iter().flatten().for_each(|expert| shares[expert.index()].push((rank, 1.0)));
    }
    for shares in &mut shares {
        let copies = shares.len() as f64;
        shares.iter_mut().for_each(|(_, share)| *share = 1.0 / copies);
    }
    shares
}
