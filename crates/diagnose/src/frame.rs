//! One examined step as arrays: what each span took, and what it should take at equal work.

use evenkeel_trace::{LayerCell, StepRecord};

/// A span of a cell. A layer takes
/// `max(attention + router + host) + max(dispatch) + max(expert) + max(return) + max(combine)`,
/// each maximum over ranks: the group meets at every exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Attention,
    Router,
    /// Lateness at dispatch that no recorded span accounts for.
    Host,
    Dispatch,
    Expert,
    Return,
    Combine,
}

pub(crate) const STAGES: usize = 7;

/// One step. Arrays are `[layer * ranks + rank]`, times ns.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    /// Number of the step.
    pub(crate) step: u64,
    /// Observed duration.
    pub(crate) observed_ns: f64,
    /// `[stage]`: recorded spans, waiting taken out.
    pub(crate) time: [Vec<f64>; STAGES],
    /// `[stage]`: what the curves give for the same work; 0 where there is no curve.
    pub(crate) expected: [Vec<f64>; STAGES],
    /// Kernel ids.
    pub(crate) kernel: Vec<u16>,
    /// Expert rows.
    pub(crate) rows: Vec<u32>,
    /// Local experts with rows.
    pub(crate) activated: Vec<u16>,
    /// Distinct tokens received.
    pub(crate) tokens: Vec<u32>,
    /// `[(layer * experts + expert)]` rows, where routing was recorded.
    pub(crate) expert_rows: Option<Vec<u32>>,
    /// Expert time under the best fixed split of this map over that under the measured one.
    pub(crate) split_share: Option<Vec<f64>>,
    /// Expert time that every map needs at least, per layer, ns.
    pub(crate) bound_ns: Vec<f64>,
    /// Waiting at dispatch was recorded as service and has been told apart.
    pub(crate) waiting_untangled: bool,
}

impl Frame {
    /// Takes the spans of a step. Expectations are filled in by [`crate::expect`].
    pub(crate) fn new(step: &StepRecord, layers: usize) -> Self {
        let ranks = step.ranks.len();
        let cells = &step.cells;
        let span = |get: fn(&LayerCell) -> u64| cells.iter().map(|c| get(c) as f64).collect();
        let mut frame = Self {
            step: step.step,
            observed_ns: (step.end_ns - step.start_ns) as f64,
            time: [
                span(|c| c.attention_ns),
                span(|c| c.router_ns),
                vec![0.0; cells.len()],
                span(|c| c.dispatch_service_ns),
                span(|c| c.expert_ns),
                span(|c| c.return_service_ns),
                span(|c| c.combine_ns),
            ],
            expected: std::array::from_fn(|_| vec![0.0; layers * ranks]),
            kernel: cells.iter().map(|c| c.kernel).collect(),
            rows: cells.iter().map(|c| c.rows_in).collect(),
            activated: cells.iter().map(|c| c.experts_activated).collect(),
            tokens: cells.iter().map(|c| c.tokens_in).collect(),
            expert_rows: None,
            split_share: None,
            bound_ns: vec![0.0; layers],
            waiting_untangled: false,
        };
        if !cells.is_empty() {
            for layer in 0..layers {
                frame.lateness(layer, &cells[layer * ranks..(layer + 1) * ranks]);
            }
        }
        frame
    }

    /// Fills the host stage of a layer from arrivals, and takes waiting out of dispatch service
    /// where a record counts it as communication.
    fn lateness(&mut self, layer: usize, cells: &[LayerCell]) {
        let ranks = cells.len();
        let from = layer * ranks;
        let mut skew: Vec<f64> = cells.iter().map(|cell| cell.dispatch_skew_ns as f64).collect();
        if skew.iter().all(|late| *late <= 0.0) {
            // The last to arrive waits for nobody.
            let wait = |cell: &LayerCell| cell.dispatch_wait_ns as f64;
            let longest = cells.iter().map(wait).fold(0.0, f64::max);
            skew = cells.iter().map(|cell| longest - wait(cell)).collect();
        }
        let recorded = skew.iter().any(|late| *late > 0.0);
        if !recorded {
            match self.untangle(from, ranks) {
                Some(untangled) => skew = untangled,
                None => return,
            }
        }
        // A rank's chain since the group last met: attention and router of this layer, behind
        // return and combine of the one before (unless the engine meets after these too: then
        // they do not show in the skew, so the smaller remainder counts).
        let own = |rank: usize| {
            self.at(Stage::Attention, from + rank) + self.at(Stage::Router, from + rank)
        };
        let before = |rank: usize| match layer {
            0 => 0.0,
            _ => {
                let cell = from + rank - ranks;
                self.at(Stage::Return, cell) + self.at(Stage::Combine, cell)
            }
        };
        let first = (0..ranks).min_by(|a, b| skew[*a].total_cmp(&skew[*b])).unwrap_or(0);
        let hidden: Vec<f64> = (0..ranks)
            .map(|rank| {
                let late = (skew[rank] - skew[first]) - (own(rank) - own(first));
                late.min(late - (before(rank) - before(first))).max(0.0)
            })
            .collect();
        self.time[Stage::Host as usize][from..from + ranks].copy_from_slice(&hidden);
    }

    /// Arrival skew of a layer whose record has no waits, if its dispatch service hides them.
    ///
    /// Either the ranks that arrive later (by their own spans) are served for less, so that all end
    /// together; or no spans tell, and at most a quarter of the ranks needs less than a fifth of
    /// the median. A slow link shows neither: it makes a minority *slower*.
    fn untangle(&mut self, from: usize, ranks: usize) -> Option<Vec<f64>> {
        let service = self.time[Stage::Dispatch as usize][from..from + ranks].to_vec();
        let before = |rank: usize| {
            self.at(Stage::Attention, from + rank) + self.at(Stage::Router, from + rank)
        };
        let range = |values: &mut dyn Iterator<Item = f64>| {
            values.fold((f64::MAX, 0.0_f64), |(low, high), v| (low.min(v), high.max(v)))
        };
        let (least, most) = range(&mut service.iter().copied());
        let (end_least, end_most) = range(&mut (0..ranks).map(|rank| before(rank) + service[rank]));
        if ranks < 2 || most <= 1.2 * least {
            return None;
        }
        let together = end_most - end_least < 0.25 * (most - least);
        let median = crate::stats::median(&mut service.clone());
        let short = service.iter().filter(|ns| **ns < 0.2 * median).count();
        if !together && (short == 0 || 4 * short > ranks) {
            return None;
        }
        for rank in 0..ranks {
            self.time[Stage::Dispatch as usize][from + rank] = least;
        }
        self.waiting_untangled = true;
        Some(service.iter().map(|ns| most - ns).collect())
    }

    /// A span, ns; 0 where spans are absent.
    pub(crate) fn at(&self, stage: Stage, cell: usize) -> f64 {
        self.time[stage as usize].get(cell).copied().unwrap_or(0.0)
    }

    /// What the curves give for it.
    pub(crate) fn expects(&self, stage: Stage, cell: usize) -> f64 {
        self.expected[stage as usize][cell]
    }

    /// Σ over layers of the largest rank's value.
    pub(crate) fn over_layers(
        &self,
        layers: usize,
        ranks: usize,
        value: impl Fn(usize) -> f64,
    ) -> f64 {
        (0..layers)
            .map(|layer| (layer * ranks..(layer + 1) * ranks).map(&value).fold(0.0, f64::max))
            .sum()
    }
}
