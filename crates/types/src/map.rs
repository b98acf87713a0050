//! The map: which logical expert lives in which slot of which rank, per layer.
//!
//! **Invariant.** A map says where weights live. Nothing in it, and no function on it, can change
//! which logical expert a token is routed to (law 1).

use crate::{ExpertId, LayerId, ModelShape, NodeId, RankId, SlotId};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt;
use thiserror::Error;

/// Schema name that a map file must carry.
pub const MAP_SCHEMA: &str = "evenkeel.map/1";

/// Where a map came from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provenance {
    /// Planner or importer, with its version.
    #[serde(default)]
    pub made_by: String,
    /// The trace and window that it was planned on, in words.
    #[serde(default)]
    pub window: String,
    /// Options of the planner that differ from the defaults.
    #[serde(default)]
    pub options: BTreeMap<String, String>,
}

/// Digest of one tensor of one copy (weights, scales, bias: each on its own).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CopyDigest {
    /// Layer of the copy.
    pub layer: LayerId,
    /// Rank that holds it.
    pub rank: RankId,
    /// Slot on that rank.
    pub slot: SlotId,
    /// Tensor name within the expert, e.g. `w13`, `w2`, `w13_scale`.
    pub tensor: String,
    /// Digest over bytes and layout, hexadecimal.
    pub digest: String,
}

/// Slot → logical expert for every layer and rank, with a version and a parent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpertMap {
    /// [`MAP_SCHEMA`].
    pub schema: String,
    /// Model that the map is for.
    pub model: String,
    /// Revision of its weights.
    pub model_revision: String,
    /// Experts per layer.
    pub experts: u16,
    /// Version of this map; versions of one deployment only rise.
    pub version: u64,
    /// Version that this map replaces, if any.
    pub parent: Option<u64>,
    /// `[layer][rank][slot]` → logical expert, or `null` for an empty slot.
    pub slots: Vec<Vec<Vec<Option<ExpertId>>>>,
    /// Digests of copies, where an engine reported them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub digests: Vec<CopyDigest>,
    /// Where the map came from.
    #[serde(default)]
    pub provenance: Provenance,
}

/// Why a map file is refused before its laws are looked at.
#[derive(Debug, Error)]
pub enum MapError {
    /// Not JSON, or a field is missing, unknown or of another type.
    #[error("map: {0}")]
    Parse(#[from] serde_json::Error),
    /// Another schema.
    #[error("map: schema is `{found}`, expected `{MAP_SCHEMA}`")]
    Schema {
        /// What the file says.
        found: String,
    },
    /// Made for other weights.
    #[error(
        "map version {version} is for `{model}` revision `{revision}`, \
         expected `{expected_model}` revision `{expected_revision}`"
    )]
    Revision {
        /// Version of the map.
        version: u64,
        /// Model in the map.
        model: String,
        /// Revision in the map.
        revision: String,
        /// Model expected.
        expected_model: String,
        /// Revision expected.
        expected_revision: String,
    },
    /// A dimension that contradicts the model or the topology.
    #[error("map version {version}: {place} has {found}, expected {expected}")]
    Dimension {
        /// Version of the map.
        version: u64,
        /// Where.
        place: String,
        /// What was found.
        found: String,
        /// What was expected.
        expected: String,
    },
}

/// A broken law of a map, with its place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "law", rename_all = "snake_case")]
pub enum Violation {
    /// Law 2: an expert without a copy.
    Missing {
        /// Layer.
        layer: LayerId,
        /// The expert that lives nowhere.
        expert: ExpertId,
    },
    /// Two copies of one expert on one rank: the second adds memory and no capacity.
    Duplicate {
        /// Layer.
        layer: LayerId,
        /// Rank.
        rank: RankId,
        /// The expert listed twice.
        expert: ExpertId,
        /// Ranks that hold it, each counted once: the effective number of copies.
        effective_copies: usize,
        /// Slots that list it.
        listed_copies: usize,
    },
    /// An expert id that the model does not have.
    Foreign {
        /// Layer.
        layer: LayerId,
        /// Rank.
        rank: RankId,
        /// Slot.
        slot: SlotId,
        /// The id.
        expert: ExpertId,
    },
    /// Law 3: copies of one expert differ in a tensor, or one lacks it.
    Digest {
        /// Layer.
        layer: LayerId,
        /// Expert.
        expert: ExpertId,
        /// The tensor that differs or is missing.
        tensor: String,
        /// Rank of the copy that departs.
        rank: RankId,
    },
    /// Law 4: a rank's memory does not hold what the map puts there.
    Memory {
        /// Rank.
        rank: RankId,
        /// Bytes needed, KV floor and reserve included.
        needed_bytes: u64,
        /// Bytes of the rank.
        hbm_bytes: u64,
    },
    /// A slot of a dead rank is filled: nobody would compute there.
    DeadRank {
        /// Layer.
        layer: LayerId,
        /// The dead rank.
        rank: RankId,
        /// Slot.
        slot: SlotId,
        /// The expert that it lists.
        expert: ExpertId,
    },
    /// A copy that the policy pins is not there.
    NotPinned {
        /// Layer.
        layer: LayerId,
        /// Expert.
        expert: ExpertId,
        /// Rank that has to hold it.
        rank: RankId,
    },
    /// A rank has another number of copies in this layer than in layer 0, and the policy asks for
    /// the same in all.
    UnevenSlots {
        /// Layer.
        layer: LayerId,
        /// Rank.
        rank: RankId,
        /// Copies here.
        copies: usize,
        /// Copies in layer 0.
        expected: usize,
    },
    /// A group of experts lies on several nodes, and the policy keeps groups whole.
    SplitGroup {
        /// Layer.
        layer: LayerId,
        /// Group, from 0.
        group: u16,
        /// Node of its first copy.
        node: NodeId,
        /// A copy elsewhere: the expert,
        expert: ExpertId,
        /// and the rank that holds it.
        rank: RankId,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { layer, expert } => {
                write!(f, "{layer}: {expert} has no copy on any rank")
            }
            Self::Duplicate { layer, rank, expert, effective_copies, listed_copies } => write!(
                f,
                "{layer}, {rank}: {expert} is listed twice on this rank; \
                 {effective_copies} effective {}, not {listed_copies}",
                if *effective_copies == 1 { "copy" } else { "copies" }
            ),
            Self::Foreign { layer, rank, slot, expert } => {
                write!(f, "{layer}, {rank}, {slot}: {expert} does not exist in this model")
            }
            Self::Digest { layer, expert, tensor, rank } => write!(
                f,
                "{layer}, {expert}: tensor `{tensor}` on {rank} differs from the other copies or is missing"
            ),
            Self::Memory { rank, needed_bytes, hbm_bytes } => write!(
                f,
                "{rank}: {needed_bytes} bytes needed with KV floor and reserve, {hbm_bytes} bytes present"
            ),
            Self::DeadRank { layer, rank, slot, expert } => {
                write!(f, "{layer}, {rank}, {slot}: {expert} is placed on a dead rank")
            }
            Self::NotPinned { layer, expert, rank } => {
                write!(f, "{layer}: {expert} is pinned to {rank}, which does not hold it")
            }
            Self::UnevenSlots { layer, rank, copies, expected } => write!(
                f,
                "{layer}, {rank}: {copies} copies, expected {expected} as in layer 0 \
                 (plan.same_slots_per_layer)"
            ),
            Self::SplitGroup { layer, group, node, expert, rank } => write!(
                f,
                "{layer}: group {group} lies on {node}, but {expert} of it is on {rank} as well \
                 (plan.groups_on_nodes)"
            ),
        }
    }
}

impl ExpertMap {
    /// The map every engine starts with: slot i of a layer (ranks in order) holds expert i mod E.
    #[must_use]
    pub fn contiguous(shape: &ModelShape, ranks: usize, slots_per_rank: usize) -> Self {
        let experts = usize::from(shape.experts.max(1));
        let layer: Vec<Vec<Option<ExpertId>>> = (0..ranks)
            .map(|rank| {
                (0..slots_per_rank)
                    .map(|slot| Some(ExpertId(((rank * slots_per_rank + slot) % experts) as u16)))
                    .collect()
            })
            .collect();
        Self {
            schema: MAP_SCHEMA.to_owned(),
            model: shape.name.clone(),
            model_revision: shape.revision.clone(),
            experts: shape.experts,
            version: 1,
            parent: None,
            slots: vec![layer; usize::from(shape.moe_layers)],
            digests: Vec::new(),
            provenance: Provenance { made_by: "contiguous".into(), ..Provenance::default() },
        }
    }

    /// Reads a map file's text; dimensions are checked against a model with [`ExpertMap::fits`].
    ///
    /// # Errors
    /// Where the text is not a map of this schema or is ragged over its ranks.
    pub fn from_json(text: &str) -> Result<Self, MapError> {
        let map: Self = serde_json::from_str(text)?;
        if map.schema != MAP_SCHEMA {
            return Err(MapError::Schema { found: map.schema });
        }
        let ranks = map.ranks();
        for (index, layer) in map.slots.iter().enumerate() {
            if layer.len() != ranks {
                return Err(MapError::Dimension {
                    version: map.version,
                    place: format!("layer {index}"),
                    found: format!("{} ranks", layer.len()),
                    expected: format!("{ranks} as in layer 0"),
                });
            }
        }
        Ok(map)
    }

    /// The map as a JSON file's text: one line per layer, stable byte for byte.
    ///
    /// # Errors
    /// Never for a map built in memory; the signature is serde's.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(self).map(|text| text.replace("]],[[", "]],\n[[") + "\n")
    }

    /// Number of layers.
    #[must_use]
    pub fn layers(&self) -> usize {
        self.slots.len()
    }

    /// Number of ranks.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.slots.first().map_or(0, Vec::len)
    }

    /// Checks that the map is for this model and this number of ranks.
    ///
    /// # Errors
    /// Names the revision or the dimension that differs.
    pub fn fits(&self, shape: &ModelShape, ranks: usize) -> Result<(), MapError> {
        if self.model != shape.name || self.model_revision != shape.revision {
            return Err(MapError::Revision {
                version: self.version,
                model: self.model.clone(),
                revision: self.model_revision.clone(),
                expected_model: shape.name.clone(),
                expected_revision: shape.revision.clone(),
            });
        }
        for (place, found, expected) in [
            ("the map", self.layers(), usize::from(shape.moe_layers)),
            ("layer 0", self.ranks(), ranks),
            ("every layer", usize::from(self.experts), usize::from(shape.experts)),
        ] {
            if found != expected {
                let unit = match place {
                    "the map" => "layers",
                    "layer 0" => "ranks",
                    _ => "experts",
                };
                return Err(MapError::Dimension {
                    version: self.version,
                    place: place.to_owned(),
                    found: format!("{found} {unit}"),
                    expected: expected.to_string(),
                });
            }
        }
        Ok(())
    }

    /// Filled slots of a layer in rank and slot order.
    pub fn copies(&self, layer: LayerId) -> impl Iterator<Item = (RankId, SlotId, ExpertId)> + '_ {
        self.slots.get(layer.index()).into_iter().flatten().enumerate().flat_map(|(rank, slots)| {
            slots.iter().enumerate().filter_map(move |(slot, expert)| {
                expert.map(|expert| (RankId(rank as u16), SlotId(slot as u16), expert))
            })
        })
    }

    /// `[expert]` → ranks that hold it, ascending, each once.
    #[must_use]
    pub fn hosts(&self, layer: LayerId) -> Vec<Vec<RankId>> {
        let mut hosts = vec![Vec::new(); usize::from(self.experts)];
        for (rank, _, expert) in self.copies(layer) {
            if let Some(ranks) = hosts.get_mut(expert.index()) {
                let ranks: &mut Vec<RankId> = ranks;
                if ranks.last() != Some(&rank) {
                    ranks.push(rank);
                }
            }
        }
        hosts
    }

    /// Filled slots per rank over all layers: what the rank's memory has to hold.
    #[must_use]
    pub fn copies_per_rank(&self) -> Vec<u64> {
        let mut copies = vec![0; self.ranks()];
        for layer in &self.slots {
            for (rank, slots) in layer.iter().enumerate() {
                if let Some(count) = copies.get_mut(rank) {
                    *count += slots.iter().flatten().count() as u64;
                }
            }
        }
        copies
    }

    /// The map with nothing on the ranks given, their slots empty: what is left once they are gone.
    #[must_use]
    pub fn without(&self, ranks: &[RankId]) -> Self {
        let mut map = self.clone();
        for layer in &mut map.slots {
            for rank in ranks {
                if let Some(slots) = layer.get_mut(rank.index()) {
                    slots.fill(None);
                }
            }
        }
        map.digests.retain(|entry| !ranks.contains(&entry.rank));
        map
    }

    /// Digest of the placement alone (model, revision and slots), 16 hexadecimal digits.
    #[must_use]
    pub fn digest(&self) -> String {
        let mut hash = Sha256::new();
        hash.update(self.model.as_bytes());
        hash.update([0]);
        hash.update(self.model_revision.as_bytes());
        hash.update([0]);
        hash.update(self.experts.to_le_bytes());
        for layer in &self.slots {
            hash.update([1]);
            for slots in layer {
                hash.update([2]);
                for expert in slots {
                    hash.update(expert.map_or(u16::MAX, |expert| expert.0).to_le_bytes());
                }
            }
        }
        hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
    }

    /// Every broken law of placement and copies (laws 2 and 3), in layer order.
    ///
    /// Memory (law 4) needs a topology and a policy: see [`crate::MemoryPolicy::violations`].
    #[must_use]
    pub fn violations(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        for index in 0..self.layers() {
            let layer = LayerId(index as u16);
            let mut listed = vec![0_usize; usize::from(self.experts)];
            let mut twice = Vec::new();
            let mut last: Vec<Option<RankId>> = vec![None; usize::from(self.experts)];
            for (rank, slot, expert) in self.copies(layer) {
                match (listed.get_mut(expert.index()), last.get_mut(expert.index())) {
                    (Some(count), Some(seen)) => {
                        *count += 1;
                        if *seen == Some(rank) {
                            twice.push((rank, expert));
                        }
                        *seen = Some(rank);
                    }
                    _ => found.push(Violation::Foreign { layer, rank, slot, expert }),
                }
            }
            for (expert, count) in listed.iter().enumerate() {
                if *count == 0 {
                    found.push(Violation::Missing { layer, expert: ExpertId(expert as u16) });
                }
            }
            if !twice.is_empty() {
                let hosts = self.hosts(layer);
                twice.dedup();
                for (rank, expert) in twice {
                    found.push(Violation::Duplicate {
                        layer,
                        rank,
                        expert,
                        effective_copies: hosts[expert.index()].len(),
                        listed_copies: listed[expert.index()],
                    });
                }
            }
        }
        self.digest_violations(&mut found);
        found
    }

    fn digest_violations(&self, found: &mut Vec<Violation>) {
        // (layer, expert) → tensor → rank → digest; a copy that lacks a tensor departs too.
        type Tensors<'a> = BTreeMap<&'a str, BTreeMap<RankId, &'a str>>;
        let mut by_expert: BTreeMap<(LayerId, ExpertId), Tensors<'_>> = BTreeMap::new();
        for entry in &self.digests {
            let slot = self
                .slots
                .get(entry.layer.index())
                .and_then(|ranks| ranks.get(entry.rank.index()))
                .and_then(|slots| slots.get(entry.slot.index()));
            if let Some(Some(expert)) = slot {
                let tensors = by_expert.entry((entry.layer, *expert)).or_default();
                tensors.entry(&entry.tensor).or_default().insert(entry.rank, &entry.digest);
            }
        }
        for ((layer, expert), tensors) in by_expert {
            let hosts = self.hosts(layer);
            for (tensor, digests) in tensors {
                let reference = digests.values().next().copied();
                for rank in &hosts[expert.index()] {
                    if digests.get(rank).copied() != reference {
                        let tensor = tensor.to_owned();
                        found.push(Violation::Digest { layer, expert, tensor, rank: *rank });
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tiny() -> ModelShape {
        ModelShape {
            moe_layers: 1,
            experts: 4,
            top_k: 2,
            ..ModelShape::known("olmoe-1b-7b").unwrap()
        }
    }

    #[test]
    fn contiguous_map_keeps_the_laws_and_round_trips() {
        let map = ExpertMap::contiguous(&tiny(), 2, 2);
        assert_eq!(map.violations(), []);
        map.fits(&tiny(), 2).unwrap();
        let again = ExpertMap::from_json(&map.to_json().unwrap()).unwrap();
        assert_eq!(again, map);
        assert_eq!(again.digest(), map.digest());
    }

    #[test]
    fn duplicate_missing_and_foreign_are_named() {
        let mut map = ExpertMap::contiguous(&tiny(), 2, 3);
        map.slots[0][0] = vec![Some(ExpertId(0)), Some(ExpertId(0)), Some(ExpertId(9))];
        let texts: Vec<String> = map.violations().iter().map(ToString::to_string).collect();
        assert!(
            texts.iter().any(|text| text.contains("layer 0: expert 2 has no copy")),
            "{texts:?}"
        );
        assert!(texts.iter().any(|text| text.contains("expert 9 does not exist")), "{texts:?}");
        assert!(
            texts.iter().any(|text| text.contains("rank 0: expert 0 is listed twice")),
            "{texts:?}"
        );
    }

    #[test]
    fn a_copy_with_other_scales_is_named() {
        let mut map = ExpertMap::contiguous(&tiny(), 2, 4);
        for rank in [0, 1] {
            for tensor in ["w13", "w13_scale"] {
                map.digests.push(CopyDigest {
                    layer: LayerId(0),
                    rank: RankId(rank),
                    slot: SlotId(1),
                    tensor: tensor.into(),
                    digest: "aa".into(),
                });
            }
        }
        assert_eq!(map.violations(), []);
        map.digests.pop();
        assert_eq!(
            map.violations(),
            [Violation::Digest {
                layer: LayerId(0),
                expert: ExpertId(1),
                tensor: "w13_scale".into(),
                rank: RankId(1),
            }]
        );
    }

    #[test]
    fn another_revision_is_refused() {
        let map = ExpertMap::contiguous(&tiny(), 2, 2);
        let other = ModelShape { revision: "r2".into(), ..tiny() };
        let message = map.fits(&other, 2).unwrap_err().to_string();
        assert!(message.contains("revision `main`") && message.contains("`r2`"), "{message}");
        assert!(map.fits(&tiny(), 4).is_err());
    }
}
