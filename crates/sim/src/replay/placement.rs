//! Where each choice goes: (layer, expert, way) → slot of a rank, resolved once per map.

use crate::SimError;
use evenkeel_split::SplitTable;
use evenkeel_types::{ExpertId, ExpertMap, LayerId, RankId, Topology, hash2};

/// Seed of the ways: any constant; it only has to differ from the traffic's draws.
const WAY_SEED: u64 = 0x5157_4159;

/// The way of a token among the copies of each of its experts. Two requests that replay the same
/// recorded tokens take different ways when `owner` differs.
#[inline]
pub(super) fn way(owner: u64, position: u64) -> usize {
    hash2(WAY_SEED ^ owner, position) as usize % SplitTable::WAYS
}

/// A map and a split, resolved to slots.
///
/// `flat` ids are `layer * experts + expert`; slots are numbered over all layers and ranks, layer
/// by layer, rank by rank.
#[derive(Clone, Debug)]
pub(super) struct Placement {
    pub layers: usize,
    pub experts: usize,
    pub ranks: usize,
    pub nodes: usize,
    /// `[flat]`: start in `entries` << 6, and a mask of the way: 0 or `WAYS - 1`.
    packed: Vec<u32>,
    /// Slot << 12 | rank by (flat, way); one entry for an expert that one copy serves alone.
    entries: Vec<u32>,
    /// Flat ids of the experts that several copies serve.
    shared: Vec<u16>,
    /// `[way * shared.len() + index]`: slots of the shared experts, for a whole way at a time.
    shared_slots: Vec<u32>,
    /// `[layer * ranks + rank]` → first slot; one more entry closes the last.
    pub starts: Vec<u32>,
    /// `[slot]` → its rank.
    pub host: Vec<u16>,
    /// `[slot]` → its expert within the layer; `u16::MAX` where empty.
    pub expert: Vec<u16>,
    /// `[rank]` → its node.
    pub node: Vec<u16>,
    /// `[rank]` → its place within its node.
    pub place: Vec<u16>,
    /// `[node]` → its first rank; one more entry closes the last.
    pub node_starts: Vec<usize>,
}

impl Placement {
    /// Most (layer, expert) pairs: flat ids are 16 bits wide. DeepSeek-V3 has 14,848.
    const FLAT_MAX: usize = 1 << 16;
    /// Most slots over all layers and ranks; `Topology::RANKS_MAX` bounds the ranks at 2^12.
    const SLOTS_MAX: usize = 1 << 20;

    pub(super) fn new(
        map: &ExpertMap,
        split: &SplitTable,
        topology: &Topology,
    ) -> Result<Self, SimError> {
        let (layers, ranks, experts) = (map.layers(), map.ranks(), usize::from(map.experts));
        if layers * experts > Self::FLAT_MAX {
            let found = layers * experts;
            return Err(SimError::range("replay: layers x experts", found, "at most 65536"));
        }
        let mut placement = Self {
            layers,
            experts,
            ranks,
            nodes: topology.node.len(),
            packed: Vec::with_capacity(layers * experts),
            entries: Vec::new(),
            shared: Vec::new(),
            shared_slots: Vec::new(),
            starts: vec![0],
            host: Vec::new(),
            expert: Vec::new(),
            node: topology.ranks().iter().map(|rank| rank.node.0).collect(),
            place: Vec::new(),
            node_starts: vec![0],
        };
        for node in &topology.node {
            placement.place.extend(0..node.ranks);
            placement.node_starts.push(placement.place.len());
        }
        for layer in 0..layers {
            placement.add_layer(map, split, layer)?;
        }
        for way in 0..SplitTable::WAYS {
            for &expert in &placement.shared {
                placement.shared_slots.push(placement.slot(expert, way) as u32);
            }
        }
        if placement.slots() > Self::SLOTS_MAX {
            let found = placement.slots();
            return Err(SimError::range("replay: slots of all layers", found, "at most 2^20"));
        }
        Ok(placement)
    }

    fn add_layer(
        &mut self,
        map: &ExpertMap,
        split: &SplitTable,
        layer: usize,
    ) -> Result<(), SimError> {
        // [expert][rank]: slot of the first copy on the rank.
        let mut slot_of = vec![u32::MAX; self.experts * self.ranks];
        for (rank, slots) in map.slots[layer].iter().enumerate() {
            for expert in slots {
                let slot = self.host.len() as u32;
                self.host.push(rank as u16);
                self.expert.push(expert.map_or(u16::MAX, |expert| expert.0));
                if let Some(expert) = expert {
                    let first = &mut slot_of[expert.index() * self.ranks + rank];
                    *first = (*first).min(slot);
                }
            }
            self.starts.push(self.host.len() as u32);
        }
        for expert in 0..self.experts {
            let (layer, id) = (LayerId(layer as u16), ExpertId(expert as u16));
            let slots = &slot_of[expert * self.ranks..(expert + 1) * self.ranks];
            if slots.iter().all(|slot| *slot == u32::MAX) {
                let version = map.version;
                return Err(SimError::Missing { version, layer, expert: id });
            }
            let start = self.entries.len();
            for way in 0..SplitTable::WAYS {
                let rank: RankId = split.host(layer, id, way);
                match slots.get(rank.index()) {
                    Some(&slot) if slot != u32::MAX => {
                        self.entries.push(slot << 12 | u32::from(rank.0));
                    }
                    _ => return Err(SimError::Misplaced { layer, expert: id, rank }),
                }
            }
            let alone = self.entries[start..].iter().all(|slot| *slot == self.entries[start]);
            if alone {
                self.entries.truncate(start + 1);
            } else {
                self.shared.push((layer.index() * self.experts + expert) as u16);
            }
            let mask = if alone { 0 } else { SplitTable::WAYS - 1 };
            self.packed.push((start << 6 | mask) as u32);
        }
        Ok(())
    }

    /// The slot that serves a choice, and its rank.
    #[inline]
    pub(super) fn serve(&self, flat: u16, way: usize) -> (usize, usize) {
        let packed = self.packed[usize::from(flat)] as usize;
        let entry = self.entries[(packed >> 6) + (way & packed & (SplitTable::WAYS - 1))];
        ((entry >> 12) as usize, (entry & 0xfff) as usize)
    }

    /// The slot that serves a choice.
    #[inline]
    pub(super) fn slot(&self, flat: u16, way: usize) -> usize {
        self.serve(flat, way).0
    }

    /// The shared experts with their slots in one way.
    pub(super) fn shared_in(&self, way: usize) -> impl Iterator<Item = (u16, usize)> + '_ {
        let count = self.shared.len();
        let slots = &self.shared_slots[way * count..(way + 1) * count];
        self.shared.iter().copied().zip(slots.iter().map(|slot| *slot as usize))
    }

    /// Whether one copy serves all of the expert's tokens.
    pub(super) fn is_alone(&self, flat: usize) -> bool {
        self.packed[flat] as usize & (SplitTable::WAYS - 1) == 0
    }

    pub(super) fn slots(&self) -> usize {
        self.host.len()
    }

    /// Slots of a rank in a layer, as a range of slot numbers.
    #[inline]
    pub(super) fn rank_slots(&self, layer: usize, rank: usize) -> std::ops::Range<usize> {
        let cell = layer * self.ranks + rank;
        self.starts[cell] as usize..self.starts[cell + 1] as usize
    }

    /// Slots of all ranks in a layer.
    pub(super) fn layer_slots(&self, layer: usize) -> std::ops::Range<usize> {
        self.starts[layer * self.ranks] as usize..self.starts[(layer + 1) * self.ranks] as usize
    }
}

const _: () = assert!(SplitTable::WAYS == 64, "the way's mask is six bits wide");
