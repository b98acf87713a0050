//! The steps of a window that are looked at in depth.

use crate::balance::{BestSplit, bound_us, copies_checked, expert_loads};
use crate::expect::Expectation;
use crate::frame::{Frame, Stage};
use crate::input::{Observation, Options, Selection};
use crate::stats::median;
use evenkeel_trace::StepRecord;
use evenkeel_types::{LayerId, RankId};
use std::ops::Range;

/// Examined steps of one window, with what its group looks like.
pub(crate) struct Window {
    pub(crate) layers: usize,
    pub(crate) ranks: usize,
    /// Dense layers over MoE layers.
    pub(crate) dense_share: f64,
    /// `[rank]` → node.
    pub(crate) node: Vec<usize>,
    pub(crate) frames: Vec<Frame>,
    /// Durations of all steps of the phase, ns.
    pub(crate) durations: Vec<f64>,
    /// Names of kernels.
    pub(crate) kernels: Vec<String>,
    /// The frames have layer spans.
    pub(crate) has_spans: bool,
    /// The frames have routing with known copies.
    pub(crate) has_routing: bool,
    /// Best fixed split of the map's copies, where routing was recorded and copies exist.
    pub(crate) split: Option<BestSplit>,
    /// Rows by (layer, expert) over the frames with routing.
    pub(crate) loads: Option<Vec<u64>>,
    /// `[(layer * experts + expert) * ranks + rank]`: rows that copies served over those frames.
    pub(crate) copy_rows: Option<Vec<u64>>,
    /// Share of what the best split promises that repeats from half to half.
    pub(crate) copies_checked: f64,
    /// Mean over frames and ranks: sequences and context tokens.
    pub(crate) sequences_per_rank: f64,
    pub(crate) context_per_rank: f64,
    /// `[rank]` → mean context tokens.
    pub(crate) context: Vec<f64>,
}

/// Where so many steps have routing, only those are examined: their work is known exactly.
const ROUTED_MIN: usize = 8;

impl Window {
    /// Builds a window from selected steps.
    pub(crate) fn of(
        observation: &Observation<'_>,
        selection: &Selection<'_>,
        expectation: &Expectation<'_>,
        options: &Options,
    ) -> Self {
        let layers = observation.map.layers();
        let topology_ranks = observation.topology.ranks();
        let ranks = topology_ranks.len();
        let examined = examine(&selection.steps, options.steps_max);
        let slots = slots(observation, layers, ranks);
        let mut window = Self {
            layers,
            ranks,
            dense_share: f64::from(observation.header.model.dense_layers) / layers.max(1) as f64,
            node: topology_ranks.iter().map(|rank| rank.node.index()).collect(),
            frames: Vec::with_capacity(examined.len()),
            durations: selection.steps.iter().map(|s| (s.end_ns - s.start_ns) as f64).collect(),
            kernels: observation.header.kernels.clone(),
            has_spans: examined.iter().all(|step| !step.cells.is_empty())
                && examined.iter().any(|step| step.cells.iter().any(|cell| cell.expert_ns > 0)),
            has_routing: false,
            split: None,
            loads: None,
            copy_rows: None,
            copies_checked: 1.0,
            sequences_per_rank: 0.0,
            context_per_rank: 0.0,
            context: vec![0.0; ranks],
        };
        let hosts: Vec<Vec<Vec<RankId>>> =
            (0..layers).map(|layer| observation.map.hosts(LayerId(layer as u16))).collect();
        let mut slot_rows = Vec::with_capacity(examined.len());
        for step in &examined {
            let mut frame = Frame::new(step, layers);
            let rows = rows_per_slot(step, &hosts, &slots);
            window.fill_rows(&mut frame, step, rows.as_ref());
            if let Some(rows) = &rows {
                let total = window.copy_rows.get_or_insert_with(|| vec![0; rows.copies.len()]);
                for (sum, rows) in total.iter_mut().zip(&rows.copies) {
                    *sum += u64::from(*rows);
                }
            }
            slot_rows.push(rows);
            window.frames.push(frame);
        }
        window.expect_experts(&slot_rows, &slots, expectation);
        window.expect_rest(&examined, expectation, options);
        window.has_routing = slot_rows.iter().any(Option::is_some);
        window.loads = expert_loads(&window);
        window.even_copies(observation, &slots, expectation);
        window.copies_checked = copies_checked(&window, observation.map);
        window.bounds(&examined, observation, &slots, expectation);
        if !window.has_spans {
            window.model_times();
        }
        window
    }

    /// Cells of a layer.
    pub(crate) fn cells(&self, layer: usize) -> Range<usize> {
        layer * self.ranks..(layer + 1) * self.ranks
    }

    /// Name of a kernel, or its number where the header has none.
    pub(crate) fn kernel_name(&self, kernel: u16) -> String {
        let name = self.kernels.get(usize::from(kernel));
        name.cloned().unwrap_or_else(|| format!("kernel {kernel}"))
    }

    /// Mean of a value over the frames.
    pub(crate) fn mean(&self, value: impl Fn(usize, &Frame) -> f64) -> f64 {
        let sum: f64 = self.frames.iter().enumerate().map(|(i, frame)| value(i, frame)).sum();
        sum / self.frames.len().max(1) as f64
    }

    /// Without spans, the curves' times stand in, and where steps have no times either, their sum.
    fn model_times(&mut self) {
        let (layers, ranks) = (self.layers, self.ranks);
        for frame in &mut self.frames {
            frame.time = frame.expected.clone();
            if frame.observed_ns <= 0.0 {
                let stages = [Stage::Attention, Stage::Dispatch, Stage::Expert, Stage::Return];
                let sum = |stage| frame.over_layers(layers, ranks, |cell| frame.at(stage, cell));
                frame.observed_ns = stages.into_iter().map(sum).sum();
            }
        }
    }

    fn fill_rows(&self, frame: &mut Frame, step: &StepRecord, slots: Option<&SlotRows>) {
        let Some(slots) = slots else {
            if frame.rows.is_empty() {
                let cells = self.layers * self.ranks;
                (frame.rows, frame.activated, frame.tokens) =
                    (vec![0; cells], vec![0; cells], vec![0; cells]);
            }
            return;
        };
        frame.expert_rows = Some(slots.expert_rows.clone());
        if step.cells.is_empty() {
            frame.rows = slots.by_cell.iter().map(|rows| rows.iter().sum()).collect();
            let active = |rows: &Vec<u32>| rows.iter().filter(|rows| **rows > 0).count() as u16;
            frame.activated = slots.by_cell.iter().map(active).collect();
            // Distinct tokens are not recorded: a rank cannot have received more than the step's.
            let tokens = step.tokens().min(u64::from(u32::MAX)) as u32;
            frame.tokens = frame.rows.iter().map(|rows| (*rows).min(tokens)).collect();
        }
    }

    /// Expert expectations: exact from rows per slot; elsewhere from rows and activated experts,
    /// set right by the median ratio of the two where both are known.
    fn expect_experts(
        &mut self,
        slot_rows: &[Option<SlotRows>],
        slots: &[Vec<usize>],
        expectation: &Expectation<'_>,
    ) {
        let cells = self.layers * self.ranks;
        let mut ratios: Vec<Vec<f64>> = vec![Vec::new(); self.ranks];
        for (frame, exact) in self.frames.iter_mut().zip(slot_rows) {
            for cell in 0..cells {
                let (layer, rank) = (cell / self.ranks, cell % self.ranks);
                let spread = spread_rows(
                    frame.rows[cell],
                    u32::from(frame.activated[cell]),
                    slots[layer][rank],
                );
                let linear = expectation.expert_ns(&spread, frame.tokens[cell]);
                frame.expected[Stage::Expert as usize][cell] = match exact {
                    Some(exact) => {
                        let rows = &exact.by_cell[cell];
                        let ns = expectation.expert_ns(rows, frame.tokens[cell]);
                        if linear > 0.0 && frame.rows[cell] > 0 {
                            ratios[rank].push(ns / linear);
                        }
                        ns
                    }
                    None => linear,
                };
            }
        }
        for (rank, ratios) in ratios.iter_mut().enumerate() {
            let ratio = if ratios.is_empty() { 1.0 } else { median(ratios) };
            for (frame, _) in
                self.frames.iter_mut().zip(slot_rows).filter(|(_, exact)| exact.is_none())
            {
                for layer in 0..self.layers {
                    frame.expected[Stage::Expert as usize][layer * self.ranks + rank] *= ratio;
                }
            }
        }
    }

    fn expect_rest(
        &mut self,
        steps: &[&StepRecord],
        expectation: &Expectation<'_>,
        options: &Options,
    ) {
        let n = steps.len().max(1) as f64;
        for (frame, step) in self.frames.iter_mut().zip(steps) {
            for (rank, cell) in step.ranks.iter().enumerate() {
                let context = u64::from(cell.kv_blocks_used) * u64::from(options.kv_block_tokens);
                let attention = expectation.attention_ns(cell, context);
                for layer in 0..self.layers {
                    let at = layer * self.ranks + rank;
                    frame.expected[Stage::Attention as usize][at] = attention;
                }
                self.context[rank] += context as f64 / n;
                self.sequences_per_rank += f64::from(cell.sequences) / n / self.ranks as f64;
            }
            expectation.exchange(step, frame);
        }
        self.context_per_rank = self.context.iter().sum::<f64>() / self.ranks.max(1) as f64;
    }

    /// What the best fixed split of this map's copies would make of each frame.
    fn even_copies(
        &mut self,
        observation: &Observation<'_>,
        slots: &[Vec<usize>],
        expectation: &Expectation<'_>,
    ) {
        let Some(loads) = &self.loads else { return };
        let Some(split) = BestSplit::of(observation.map, loads) else { return };
        let experts = usize::from(observation.map.experts);
        let redundant = (0..self.layers).any(|layer| {
            observation.map.hosts(LayerId(layer as u16)).iter().any(|hosts| hosts.len() > 1)
        });
        for frame in self.frames.iter_mut().filter(|_| redundant) {
            let Some(rows) = frame.expert_rows.as_ref() else { continue };
            let mut share = vec![1.0; self.layers * self.ranks];
            for layer in 0..self.layers {
                let of_layer = &rows[layer * experts..(layer + 1) * experts];
                let by_rank = split.slots(layer, of_layer, &slots[layer]);
                for (rank, rows) in by_rank.iter().enumerate() {
                    let cell = layer * self.ranks + rank;
                    let total: u32 = rows.iter().sum();
                    // Distinct tokens go with the rows.
                    let tokens = f64::from(frame.tokens[cell]) * f64::from(total)
                        / f64::from(frame.rows[cell].max(1));
                    let best = expectation.expert_ns(rows, tokens.round() as u32);
                    let measured = frame.expected[Stage::Expert as usize][cell];
                    if measured > 0.0 {
                        share[cell] = best / measured;
                    }
                }
            }
            frame.split_share = Some(share);
        }
        self.split = Some(split);
    }

    fn bounds(
        &mut self,
        steps: &[&StepRecord],
        observation: &Observation<'_>,
        slots: &[Vec<usize>],
        expectation: &Expectation<'_>,
    ) {
        let experts = usize::from(observation.map.experts);
        for (frame, step) in self.frames.iter_mut().zip(steps) {
            let tokens = step.tokens().min(u64::from(u32::MAX)) as u32;
            for layer in 0..self.layers {
                let cells = layer * self.ranks..(layer + 1) * self.ranks;
                let slots_per_rank = slots[layer].iter().sum::<usize>() as f64 / self.ranks as f64;
                let of_rank = |cell: usize| frame.expected[Stage::Expert as usize][cell];
                let slowest = cells.clone().map(of_rank).fold(0.0, f64::max);
                let bound = match &frame.expert_rows {
                    Some(rows) => {
                        let rows = &rows[layer * experts..(layer + 1) * experts];
                        let curve = expectation.experts();
                        1000.0 * bound_us(curve, rows, self.ranks, slots_per_rank, tokens)
                    }
                    // Without experts, the mean rank: copies of one expert may have been
                    // activated on several ranks, so this is a little above the bound.
                    None => cells.map(of_rank).sum::<f64>() / self.ranks as f64,
                };
                frame.bound_ns[layer] = bound.min(slowest);
            }
        }
    }
}

/// Steps to look at: routed ones where there are enough, evenly spread, at most `most`.
fn examine<'a>(steps: &[&'a StepRecord], most: usize) -> Vec<&'a StepRecord> {
    let routed: Vec<&StepRecord> =
        steps.iter().copied().filter(|step| !step.routing.is_empty()).collect();
    let pool: &[&StepRecord] = if routed.len() >= ROUTED_MIN { &routed } else { steps };
    if pool.len() <= most {
        return pool.to_vec();
    }
    (0..most).map(|index| pool[index * pool.len() / most]).collect()
}

/// `[layer][rank]` → filled slots.
fn slots(observation: &Observation<'_>, layers: usize, ranks: usize) -> Vec<Vec<usize>> {
    (0..layers)
        .map(|layer| {
            let mut counts = vec![0; ranks];
            for (rank, _, _) in observation.map.copies(LayerId(layer as u16)) {
                counts[rank.index()] += 1;
            }
            counts
        })
        .collect()
}

/// Rows of one step by slot and by expert.
struct SlotRows {
    /// `[layer * ranks + rank]` → rows of each filled slot, idle ones included.
    by_cell: Vec<Vec<u32>>,
    /// `[layer * experts + expert]`.
    expert_rows: Vec<u32>,
    /// `[(layer * experts + expert) * ranks + rank]`.
    copies: Vec<u32>,
}

/// Adds up a step's routing rows by copy. `None` where there are none, or where the record does
/// not say which copy served an expert that has several.
fn rows_per_slot(
    step: &StepRecord,
    hosts: &[Vec<Vec<RankId>>],
    slots: &[Vec<usize>],
) -> Option<SlotRows> {
    if step.routing.is_empty() {
        return None;
    }
    let (layers, ranks) = (slots.len(), step.ranks.len());
    let experts = hosts.first().map_or(0, Vec::len);
    let mut expert_rows = vec![0_u32; layers * experts];
    let mut copies = vec![0_u32; layers * experts * ranks];
    for row in &step.routing {
        let (layer, expert) = (row.layer.index(), row.expert.index());
        let host = match (row.host, hosts[layer][expert].as_slice()) {
            (Some(host), _) => host,
            (None, [only]) => *only,
            (None, _) => return None,
        };
        let at = layer * experts + expert;
        expert_rows[at] = expert_rows[at].saturating_add(row.tokens);
        let copy = &mut copies[at * ranks + host.index()];
        *copy = copy.saturating_add(row.tokens);
    }
    let mut by_cell = vec![Vec::new(); layers * ranks];
    for (index, rows) in copies.iter().enumerate().filter(|(_, rows)| **rows > 0) {
        let (layer, rank) = (index / ranks / experts, index % ranks);
        by_cell[layer * ranks + rank].push(*rows);
    }
    for (cell, rows) in by_cell.iter_mut().enumerate() {
        rows.resize(slots[cell / ranks][cell % ranks].max(rows.len()), 0);
    }
    Some(SlotRows { by_cell, expert_rows, copies })
}

/// Rows spread evenly over the activated experts of a rank with so many slots.
fn spread_rows(rows: u32, activated: u32, slots: usize) -> Vec<u32> {
    // Where a record does not count activated experts, as many as can be.
    let most = (slots as u32).min(rows);
    let active = if activated == 0 { most } else { activated.min(rows) };
    let mut spread = vec![0; slots.max(active as usize)];
    if active > 0 {
        for (index, slot) in spread.iter_mut().take(active as usize).enumerate() {
            *slot = rows / active + u32::from((index as u32) < rows % active);
        }
    }
    spread
}
