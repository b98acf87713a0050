//! Ranks as bins: which pieces lie on them, and how high each is filled.

/// One layer of the summed-token problem.
#[derive(Clone, Copy, Debug)]
pub struct LayerRows<'a> {
    /// `[expert]`: rows of the window, finite and at least 0.
    pub loads: &'a [f64],
    /// `[rank]`: slots; 0 for a rank that is dead.
    pub sizes: &'a [usize],
    /// `[rank]`: 1 ÷ speed; levels are rows times it.
    pub inverse_speed: &'a [f64],
    /// `[rank]`: rows that lie there in any case (shared experts); empty: none.
    pub extra: &'a [f64],
}

impl LayerRows<'_> {
    /// Ranks with at least one slot.
    pub(crate) fn ranks_in_use(&self) -> usize {
        self.sizes.iter().filter(|size| **size > 0).count()
    }

    /// Slots of all ranks.
    pub(crate) fn slots(&self) -> usize {
        self.sizes.iter().sum()
    }

    /// Rows per speed, were all ranks in use equally high: no placement is lower.
    #[must_use]
    pub fn mean(&self) -> f64 {
        let used = || self.sizes.iter().enumerate().filter(|(_, size)| **size > 0);
        let speed: f64 = used().map(|(rank, _)| 1.0 / self.inverse_speed[rank]).sum();
        let extra: f64 = used().filter_map(|(rank, _)| self.extra.get(rank)).sum();
        (self.loads.iter().sum::<f64>() + extra) / speed.max(f64::MIN_POSITIVE)
    }
}

/// Copies of experts on ranks, with the level of each. An expert's rows are split evenly.
#[derive(Clone, Debug)]
pub(crate) struct Bins<'a> {
    pub(crate) layer: LayerRows<'a>,
    /// `[expert]`.
    pub(crate) copies: Vec<u16>,
    /// `[expert]`: rows of one copy.
    pub(crate) piece: Vec<f64>,
    /// `[rank]`: rows ÷ speed.
    pub(crate) level: Vec<f64>,
    /// Room of a rank in the two flat lists.
    stride: usize,
    /// `[rank]`: copies that it holds.
    len: Vec<usize>,
    /// `[rank * stride + place]`: experts, largest piece first, and their pieces.
    experts: Vec<u16>,
    rows: Vec<f64>,
}

impl<'a> Bins<'a> {
    /// Empty ranks, and so many copies of each expert still to be laid.
    pub(crate) fn empty(layer: LayerRows<'a>, copies: Vec<u16>) -> Self {
        let ranks = layer.sizes.len();
        let piece = layer.loads.iter().zip(&copies);
        let piece = piece.map(|(load, copies)| load / f64::from(*copies).max(1.0)).collect();
        let extra = |rank: usize| layer.extra.get(rank).copied().unwrap_or(0.0);
        let stride = layer.sizes.iter().copied().max().unwrap_or(0);
        Self {
            layer,
            copies,
            piece,
            level: (0..ranks).map(|rank| extra(rank) * layer.inverse_speed[rank]).collect(),
            stride,
            len: vec![0; ranks],
            experts: vec![0; ranks * stride],
            rows: vec![0.0; ranks * stride],
        }
    }

    /// What a map holds. Repeated copies on a rank count once, as they are executed once.
    pub(crate) fn of(layer: LayerRows<'a>, slots: &[Vec<Option<u16>>]) -> Self {
        let held: Vec<Vec<u16>> = slots
            .iter()
            .map(|slots| {
                let mut experts: Vec<u16> = slots.iter().flatten().copied().collect();
                experts.sort_unstable();
                experts.dedup();
                experts
            })
            .collect();
        Self::holding(layer, &held)
    }

    /// Ranks that hold these experts, each once.
    pub(crate) fn holding(layer: LayerRows<'a>, held: &[Vec<u16>]) -> Self {
        let mut copies = vec![0; layer.loads.len()];
        held.iter().flatten().for_each(|expert| copies[usize::from(*expert)] += 1);
        let mut bins = Self::empty(layer, copies);
        // A map in force may hold more than the slots that a planner may use.
        bins.stride = held.iter().map(Vec::len).max().unwrap_or(0).max(bins.stride);
        bins.experts = vec![0; held.len() * bins.stride];
        bins.rows = vec![0.0; held.len() * bins.stride];
        for (rank, held) in held.iter().enumerate() {
            held.iter().for_each(|expert| bins.put(rank, *expert));
        }
        bins
    }

    /// Number of ranks, dead ones included.
    pub(crate) fn ranks(&self) -> usize {
        self.len.len()
    }

    /// Experts on a rank, largest piece first.
    #[inline]
    pub(crate) fn held(&self, rank: usize) -> &[u16] {
        &self.experts[rank * self.stride..][..self.len[rank]]
    }

    /// Their pieces.
    #[inline]
    pub(crate) fn rows(&self, rank: usize) -> &[f64] {
        &self.rows[rank * self.stride..][..self.len[rank]]
    }

    /// Whether a rank has a copy of an expert.
    #[inline]
    pub(crate) fn holds(&self, rank: usize, expert: u16) -> bool {
        self.held(rank).contains(&expert)
    }

    /// Free slots of a rank.
    #[inline]
    pub(crate) fn room(&self, rank: usize) -> usize {
        self.layer.sizes[rank].saturating_sub(self.len[rank])
    }

    /// Lays a copy on a rank that has room for it.
    pub(crate) fn put(&mut self, rank: usize, expert: u16) {
        let piece = self.piece[usize::from(expert)];
        let (start, len) = (rank * self.stride, self.len[rank]);
        let mut place = start + len;
        while place > start && self.rows[place - 1] < piece {
            self.rows[place] = self.rows[place - 1];
            self.experts[place] = self.experts[place - 1];
            place -= 1;
        }
        (self.rows[place], self.experts[place]) = (piece, expert);
        self.len[rank] += 1;
        self.level[rank] += piece * self.layer.inverse_speed[rank];
    }

    /// Takes a copy off a rank.
    pub(crate) fn take(&mut self, rank: usize, expert: u16) {
        let (start, len) = (rank * self.stride, self.len[rank]);
        let Some(place) = self.held(rank).iter().position(|other| *other == expert) else { return };
        self.level[rank] -= self.rows[start + place] * self.layer.inverse_speed[rank];
        self.experts.copy_within(start + place + 1..start + len, start + place);
        self.rows.copy_within(start + place + 1..start + len, start + place);
        self.len[rank] -= 1;
    }

    /// Changes the number of an expert's copies, and so its pieces, on the ranks that hold it.
    pub(crate) fn recount(&mut self, expert: u16, copies: u16, hosts: &[u16]) {
        hosts.iter().for_each(|rank| self.take(usize::from(*rank), expert));
        let index = usize::from(expert);
        self.copies[index] = copies;
        self.piece[index] = self.layer.loads[index] / f64::from(copies);
        hosts.iter().for_each(|rank| self.put(usize::from(*rank), expert));
    }

    /// Ranks that hold an expert, ascending.
    pub(crate) fn hosts(&self, expert: u16) -> Vec<u16> {
        (0..self.ranks()).filter(|rank| self.holds(*rank, expert)).map(|rank| rank as u16).collect()
    }

    /// Level of the highest rank.
    pub(crate) fn highest(&self) -> f64 {
        self.level.iter().copied().fold(0.0, f64::max)
    }

    /// As slots, `[rank][slot]`, free ones last.
    pub(crate) fn slots(&self) -> Vec<Vec<Option<u16>>> {
        let slots = |rank: usize| {
            let mut slots: Vec<Option<u16>> = self.held(rank).iter().copied().map(Some).collect();
            slots.resize(self.layer.sizes[rank].max(slots.len()), None);
            slots
        };
        (0..self.ranks()).map(slots).collect()
    }
}
