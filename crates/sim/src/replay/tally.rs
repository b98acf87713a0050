//! Counting: which slot gets how many rows, which rank how many distinct tokens.
//!
//! Two ways to the same counts. [`Tally::histogram`] is for decode without a trace: it counts
//! choices by expert, the tokens of one way at a time, and resolves copies once per way instead of
//! once per choice. [`Tally::by_source`] keeps the sources apart and counts distinct tokens.

use super::blocks::Blocks;
use super::placement::{Placement, way};
use crate::StepBatch;
use evenkeel_split::SplitTable;
use evenkeel_trace::Routes;
use evenkeel_types::Phase;

/// Choices of every recorded token as flat ids, `[token][layer][k]`.
pub(super) struct FlatRoutes {
    ids: Vec<u16>,
    pub width: usize,
    pub top_k: usize,
}

impl FlatRoutes {
    pub(super) fn new(routes: &Routes) -> Self {
        let (top_k, experts) = (routes.top_k(), usize::from(routes.experts()));
        let mut ids = Vec::with_capacity(routes.tokens() * routes.layers() * top_k);
        for token in 0..routes.tokens() {
            for (layer, choices) in routes.token(token).chunks_exact(top_k).enumerate() {
                let base = (layer * experts) as u16;
                ids.extend(choices.iter().map(|expert| base + expert));
            }
        }
        Self { ids, width: routes.layers() * top_k, top_k }
    }

    #[inline]
    pub(super) fn row(&self, token: usize) -> &[u16] {
        &self.ids[token * self.width..(token + 1) * self.width]
    }
}

/// Counts of one step.
pub(super) struct Tally {
    /// `[slot]`: rows.
    pub rows: Vec<u32>,
    /// `[layer * ranks + rank]`: distinct tokens on the rank; only after `by_source`.
    pub distinct: Vec<u32>,
    /// `[source]` lanes of [`LaneLayout`]; only after `by_source`.
    pub lanes: Vec<u32>,
    pub layout: LaneLayout,
    counts: Box<[u16; 1 << 16]>,
    by_way: [Vec<usize>; SplitTable::WAYS],
    marks: Marks,
}

/// What is counted of one source: rows by slot, distinct tokens by rank, distinct by node.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaneLayout {
    slots: usize,
    ranks: usize,
    nodes: usize,
    pub stride: usize,
}

impl LaneLayout {
    pub(super) fn new(placement: &Placement) -> Self {
        let slots = placement.slots();
        let ranks = placement.layers * placement.ranks;
        let nodes = placement.layers * placement.nodes;
        Self { slots, ranks, nodes, stride: slots + ranks + nodes }
    }

    /// `[slot]`: rows.
    pub(super) fn rows<'a>(&self, lane: &'a [u32]) -> &'a [u32] {
        &lane[..self.slots]
    }

    /// `[layer * ranks + rank]`: distinct tokens sent there.
    pub(super) fn distinct<'a>(&self, lane: &'a [u32]) -> &'a [u32] {
        &lane[self.slots..self.slots + self.ranks]
    }

    /// `[layer * nodes + node]`: distinct tokens sent there; counted in prefill only.
    pub(super) fn nodes<'a>(&self, lane: &'a [u32]) -> &'a [u32] {
        &lane[self.slots + self.ranks..self.slots + self.ranks + self.nodes]
    }
}

/// Which ranks and nodes the token at hand has been counted for: bits where 64 are enough, else
/// the number of the last token that was counted there.
pub(super) struct Marks {
    rank: Vec<u32>,
    node: Vec<u32>,
    now: u32,
}

impl Marks {
    pub(super) fn new(placement: &Placement) -> Self {
        Self { rank: vec![0; placement.ranks], node: vec![0; placement.nodes], now: 0 }
    }

    /// Adds one token's choices to a lane; `NODES`: also to the distinct tokens by node.
    pub(super) fn add_token<C: Count, const NODES: bool>(
        &mut self,
        placement: &Placement,
        flat: &FlatRoutes,
        token: usize,
        way: usize,
        lane: &mut [C],
    ) {
        if placement.ranks <= 64 {
            add_bits::<C, NODES>(placement, flat.row(token), flat.top_k, way, lane);
        } else {
            self.add_marked::<C, NODES>(placement, flat.row(token), flat.top_k, way, lane);
        }
    }

    fn add_marked<C: Count, const NODES: bool>(
        &mut self,
        placement: &Placement,
        row: &[u16],
        top_k: usize,
        way: usize,
        lane: &mut [C],
    ) {
        let (slots, rest) = lane.split_at_mut(placement.slots());
        let (ranks, nodes) = rest.split_at_mut(placement.layers * placement.ranks);
        for (layer, choices) in row.chunks_exact(top_k).enumerate() {
            let now = self.next();
            let ranks = &mut ranks[layer * placement.ranks..(layer + 1) * placement.ranks];
            for &choice in choices {
                let (slot, rank) = placement.serve(choice, way);
                slots[slot].add(true);
                ranks[rank].add(self.rank[rank] != now);
                self.rank[rank] = now;
                if NODES {
                    let node = usize::from(placement.node[rank]);
                    nodes[layer * placement.nodes + node].add(self.node[node] != now);
                    self.node[node] = now;
                }
            }
        }
    }

    fn next(&mut self) -> u32 {
        if self.now == u32::MAX {
            self.rank.fill(0);
            self.node.fill(0);
            self.now = 0;
        }
        self.now += 1;
        self.now
    }
}

fn add_bits<C: Count, const NODES: bool>(
    placement: &Placement,
    row: &[u16],
    top_k: usize,
    way: usize,
    lane: &mut [C],
) {
    let (slots, rest) = lane.split_at_mut(placement.slots());
    let (ranks, nodes) = rest.split_at_mut(placement.layers * placement.ranks);
    let by_layer = ranks.chunks_exact_mut(placement.ranks);
    for (layer, (choices, ranks)) in row.chunks_exact(top_k).zip(by_layer).enumerate() {
        let (mut seen, mut seen_nodes) = (0_u64, 0_u64);
        for &choice in choices {
            let (slot, rank) = placement.serve(choice, way);
            slots[slot].add(true);
            ranks[rank].add(seen >> rank & 1 == 0);
            seen |= 1 << rank;
            if NODES {
                let node = placement.node[rank];
                nodes[layer * placement.nodes + usize::from(node)].add(seen_nodes >> node & 1 == 0);
                seen_nodes |= 1 << node;
            }
        }
    }
}

/// A counter: wide in a step, narrow in a block.
pub(super) trait Count {
    fn add(&mut self, one: bool);
}

impl Count for u32 {
    #[inline]
    fn add(&mut self, one: bool) {
        *self += Self::from(one);
    }
}

impl Count for u8 {
    #[inline]
    fn add(&mut self, one: bool) {
        *self += Self::from(one);
    }
}

impl Tally {
    pub(super) fn new(placement: &Placement) -> Self {
        Self {
            rows: vec![0; placement.slots()],
            distinct: vec![0; placement.layers * placement.ranks],
            lanes: Vec::new(),
            layout: LaneLayout::new(placement),
            counts: Box::new([0; 1 << 16]),
            by_way: std::array::from_fn(|_| Vec::new()),
            marks: Marks::new(placement),
        }
    }

    pub(super) fn lane(&self, source: usize) -> &[u32] {
        &self.lanes[source * self.layout.stride..(source + 1) * self.layout.stride]
    }

    /// Rows by slot of a step whose entries have one token each, fast.
    pub(super) fn histogram(
        &mut self,
        placement: &Placement,
        flat: &FlatRoutes,
        batch: &StepBatch<'_>,
    ) {
        self.rows.fill(0);
        for tokens in &mut self.by_way {
            tokens.clear();
        }
        for entry in batch.entries {
            for offset in 0..entry.tokens {
                let way = way(entry.job, u64::from(entry.context + offset));
                self.by_way[way].push(entry.token + offset as usize);
            }
        }
        let mut counted = 0;
        for (way, tokens) in self.by_way.iter().enumerate() {
            // 16-bit counters hold what 65,535 tokens can give an expert.
            for part in tokens.chunks(usize::from(u16::MAX)) {
                if counted + part.len() > usize::from(u16::MAX) {
                    take_alone(&mut self.counts, placement, &mut self.rows);
                    counted = 0;
                }
                counted += part.len();
                for &token in part {
                    for &choice in flat.row(token) {
                        self.counts[usize::from(choice)] += 1;
                    }
                }
                for (choice, slot) in placement.shared_in(way) {
                    let count = std::mem::take(&mut self.counts[usize::from(choice)]);
                    self.rows[slot] += u32::from(count);
                }
            }
        }
        take_alone(&mut self.counts, placement, &mut self.rows);
    }

    /// Rows and distinct tokens by source.
    pub(super) fn by_source(
        &mut self,
        placement: &Placement,
        flat: &FlatRoutes,
        blocks: &mut Blocks,
        batch: &StepBatch<'_>,
    ) {
        let stride = self.layout.stride;
        self.lanes.clear();
        self.lanes.resize(stride * placement.ranks, 0);
        for (source, lane) in self.lanes.chunks_exact_mut(stride).enumerate() {
            for entry in batch.rank(source) {
                match batch.phase {
                    Phase::Prefill => blocks.add(placement, flat, &mut self.marks, entry, lane),
                    Phase::Decode => {
                        for offset in 0..entry.tokens {
                            let way = way(entry.job, u64::from(entry.context + offset));
                            let token = entry.token + offset as usize;
                            self.marks.add_token::<_, false>(placement, flat, token, way, lane);
                        }
                    }
                }
            }
        }
        self.rows.fill(0);
        self.distinct.fill(0);
        for lane in self.lanes.chunks_exact(stride) {
            add(&mut self.rows, self.layout.rows(lane));
            add(&mut self.distinct, self.layout.distinct(lane));
        }
    }
}

/// Moves the counts of experts that one copy serves alone to that copy's slot.
fn take_alone(counts: &mut [u16; 1 << 16], placement: &Placement, rows: &mut [u32]) {
    for flat in 0..placement.layers * placement.experts {
        if placement.is_alone(flat) {
            let count = std::mem::take(&mut counts[flat]);
            rows[placement.slot(flat as u16, 0)] += u32::from(count);
        }
    }
}

fn add(sums: &mut [u32], counts: &[u32]) {
    for (sum, count) in sums.iter_mut().zip(counts) {
        *sum += count;
    }
}
