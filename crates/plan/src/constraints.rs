//! Maps that keep the policy's constraints: pinned copies, whole groups, even slots.
//!
//! A live map that breaks a constraint is changed before anything is bought: [`meet`] gives the map
//! from which buying starts. [`Constraints::pack_layer`] packs afresh under the same constraints.

use crate::layer::{Slots, hosts_of};
use crate::rows::{Effort, LayerRows, in_place, place};
use crate::study::{filled, widened};
use crate::{Objective, PlanError, PlanInput};
use evenkeel_types::{ExpertId, ExpertMap, LayerId, NodeId};

/// What the constraints say about one layer.
pub(crate) struct Constraints {
    /// (expert, rank) pairs that have to be there.
    pins: Vec<(u16, usize)>,
    /// Experts per group where groups stay whole on a node.
    per_group: Option<usize>,
    /// `[rank]`.
    nodes: Vec<NodeId>,
    layer: LayerId,
    effort: Effort,
}

impl Constraints {
    pub(crate) fn of(input: &PlanInput<'_>, layer: usize) -> Self {
        let policy = &input.policy.plan;
        let pins = policy.pinned.iter().filter(|pin| pin.layer.index() == layer);
        let groups = input.shape.groups.filter(|_| policy.groups_on_nodes);
        let experts = usize::from(input.shape.experts);
        Self {
            pins: pins.map(|pin| (pin.expert.0, pin.rank.index())).collect(),
            per_group: groups.map(|groups| experts / usize::from(groups.groups.max(1))),
            nodes: input.topology.ranks().iter().map(|rank| rank.node).collect(),
            layer: LayerId(layer as u16),
            // The exact answer for rows may leave slots empty, which steps could use and even
            // slots must not.
            effort: match input.objective {
                Objective::SummedTokens if !policy.same_slots_per_layer => Effort::THOROUGH,
                _ => Effort { exact_nodes: 0, ..Effort::THOROUGH },
            },
        }
    }

    /// Whether the contents of ranks may change places.
    pub(crate) fn allow_renaming(&self) -> bool {
        self.pins.is_empty() && self.per_group.is_none()
    }

    /// `[expert * ranks + rank]`: the copy has to stay.
    pub(crate) fn pinned(&self, experts: usize) -> Vec<bool> {
        let ranks = self.nodes.len();
        let mut pinned = vec![false; experts * ranks];
        for (expert, rank) in &self.pins {
            pinned[usize::from(*expert) * ranks + rank] = true;
        }
        pinned
    }

    /// `[expert * ranks + rank]`: a copy there would split its group, given where the groups lie.
    pub(crate) fn off_node(&self, slots: &Slots, experts: usize) -> Vec<bool> {
        let ranks = self.nodes.len();
        let mut off = vec![false; experts * ranks];
        let Some(per_group) = self.per_group else { return off };
        for (first, hosts) in hosts_of(slots, experts).iter().enumerate() {
            let Some(home) = hosts.first().map(|host| self.nodes[host.index()]) else { continue };
            if first % per_group == 0 {
                for expert in first..first + per_group {
                    for rank in 0..ranks {
                        off[expert * ranks + rank] = self.nodes[rank] != home;
                    }
                }
            }
        }
        off
    }

    /// Packs a layer afresh into `sizes[rank]` slots, pinned copies and whole groups first.
    pub(crate) fn pack_layer(
        &self,
        totals: &[u64],
        sizes: &[usize],
        weights: &[u32],
    ) -> Result<Slots, PlanError> {
        let slots: usize = sizes.iter().sum();
        if slots < totals.len() {
            let layer = self.layer;
            return Err(PlanError::TooFewSlots { layer, slots, experts: totals.len() });
        }
        let mut packed = match self.per_group {
            None => pack(totals, sizes, weights, self.effort),
            Some(per_group) => {
                let homes = self.homes(totals, sizes, weights, per_group)?;
                let mut packed: Slots = sizes.iter().map(|_| Vec::new()).collect();
                let mut nodes: Vec<NodeId> = homes.clone();
                nodes.sort_unstable();
                nodes.dedup();
                for node in nodes {
                    // The node alone: its ranks' slots, its groups' experts.
                    let here: Vec<usize> = (0..sizes.len())
                        .map(|rank| if self.nodes[rank] == node { sizes[rank] } else { 0 })
                        .collect();
                    let experts: Vec<usize> = (0..totals.len())
                        .filter(|expert| homes[expert / per_group] == node)
                        .collect();
                    let loads: Vec<u64> = experts.iter().map(|expert| totals[*expert]).collect();
                    for (all, local) in
                        packed.iter_mut().zip(pack(&loads, &here, weights, self.effort))
                    {
                        let named = local
                            .into_iter()
                            .map(|slot| slot.map(|local| experts[usize::from(local)] as u16));
                        all.extend(named);
                    }
                }
                packed
            }
        };
        self.pin(&mut packed, totals.len());
        Ok(packed)
    }

    /// Node of every group: pinned ones where their pins are, then the heaviest to the node with
    /// least load per weight that has room for a whole group.
    fn homes(
        &self,
        totals: &[u64],
        sizes: &[usize],
        weights: &[u32],
        per_group: usize,
    ) -> Result<Vec<NodeId>, PlanError> {
        let groups = totals.len() / per_group;
        let nodes = self.nodes.iter().map(|node| node.index() + 1).max().unwrap_or(0);
        let (mut room, mut weight) = (vec![0_usize; nodes], vec![0.0_f64; nodes]);
        for (rank, node) in self.nodes.iter().enumerate() {
            room[node.index()] += sizes[rank];
            weight[node.index()] += if sizes[rank] > 0 { f64::from(weights[rank]) } else { 0.0 };
        }
        let mut home: Vec<Option<NodeId>> = vec![None; groups];
        for (expert, rank) in &self.pins {
            home[usize::from(*expert) / per_group] = Some(self.nodes[*rank]);
        }
        let load = |group: usize| -> f64 {
            totals[group * per_group..(group + 1) * per_group].iter().map(|t| *t as f64).sum()
        };
        let mut order: Vec<usize> = (0..groups).collect();
        order.sort_by(|a, b| {
            let free = |group: usize| home[group].is_none();
            free(*a).cmp(&free(*b)).then(load(*b).total_cmp(&load(*a))).then(a.cmp(b))
        });
        let mut rows = vec![0.0_f64; nodes];
        let mut found = vec![NodeId(0); groups];
        for group in order {
            let fits = |node: &usize| {
                room[*node] >= per_group && home[group].is_none_or(|home| home.index() == *node)
            };
            let level = |node: usize| (rows[node] + load(group)) / weight[node].max(1e-9);
            let node = (0..nodes)
                .filter(fits)
                .min_by(|a, b| level(*a).total_cmp(&level(*b)).then(a.cmp(b)));
            let Some(node) = node else {
                let why =
                    format!("{}: no node has {per_group} slots left for group {group}", self.layer);
                return Err(PlanError::Constraint { constraint: "groups_on_nodes", why });
            };
            room[node] -= per_group;
            rows[node] += load(group);
            found[group] = NodeId(node as u16);
        }
        Ok(found)
    }

    /// Puts pinned copies where they are missing: in exchange for another place of the same expert,
    /// else over a copy that has siblings, else into an empty slot. A pin that finds no place is
    /// left out; the check of the map names it.
    pub(crate) fn pin(&self, slots: &mut Slots, experts: usize) {
        let ranks = slots.len();
        let stays = self.pinned(experts);
        let stays = |expert: u16, rank: usize| stays[usize::from(expert) * ranks + rank];
        for &(expert, rank) in &self.pins {
            if slots[rank].contains(&Some(expert)) {
                continue;
            }
            let hosts = hosts_of(slots, experts);
            let free: Vec<(usize, u16)> = slots[rank]
                .iter()
                .enumerate()
                .filter_map(|(slot, held)| Some((slot, (*held)?)))
                .filter(|(_, held)| !stays(*held, rank))
                .collect();
            let others = hosts[usize::from(expert)].iter().map(|host| host.index());
            let others: Vec<usize> = others.filter(|other| !stays(expert, *other)).collect();
            let swap = others.iter().find_map(|other| {
                let lacks = |held: u16| !slots[*other].contains(&Some(held));
                let (slot, held) = free.iter().find(|(_, held)| lacks(*held))?;
                let there = slots[*other].iter().position(|slot| *slot == Some(expert))?;
                Some((*other, there, *slot, *held))
            });
            if let Some((other, there, slot, held)) = swap {
                slots[other][there] = Some(held);
                slots[rank][slot] = Some(expert);
            } else if let Some((slot, _)) =
                free.iter().find(|(_, held)| hosts[usize::from(*held)].len() > 1)
            {
                slots[rank][*slot] = Some(expert);
            } else if let Some(slot) = slots[rank].iter().position(Option::is_none) {
                slots[rank][slot] = Some(expert);
            }
        }
    }
}

/// The map that buying starts from where the live one breaks a constraint: pins put in, layers whose
/// groups are split or whose slots are uneven packed anew into the slots that they fill now. `None`
/// where the live map keeps them all. `live` holds nothing on dead ranks.
pub(crate) fn meet(input: &PlanInput<'_>) -> Result<Option<ExpertMap>, PlanError> {
    let PlanInput { live, shape, topology, policy, .. } = input;
    if policy.plan.violations(live, shape, topology).is_empty() {
        return Ok(None);
    }
    let (totals, experts) = (input.loads.total(), usize::from(shape.experts));
    let wanted = usize::from(policy.plan.slots_per_rank);
    let mut wide: Vec<Slots> = live.slots.iter().map(|layer| widened(layer, wanted)).collect();
    let even = policy.plan.same_slots_per_layer.then(|| even_sizes(&wide));
    for (layer, slots) in wide.iter_mut().enumerate() {
        let constraints = Constraints::of(input, layer);
        let sizes: Vec<usize> = match &even {
            Some(even) => even.clone(),
            None => slots.iter().map(|slots| filled(slots)).collect(),
        };
        let uneven = sizes.iter().zip(slots.iter()).any(|(size, slots)| *size != filled(slots));
        let split = constraints.per_group.is_some_and(|per_group| {
            let off = constraints.off_node(slots, experts);
            let pinned_off =
                constraints.pins.iter().any(|(e, r)| off[usize::from(*e) * slots.len() + r]);
            let ranks = slots.len();
            let held =
                |r: usize| slots[r].iter().flatten().map(move |e| usize::from(*e) * ranks + r);
            per_group > 0 && (pinned_off || (0..ranks).flat_map(held).any(|cell| off[cell]))
        });
        if uneven || split {
            let totals = &totals[layer * experts..(layer + 1) * experts];
            let weights = input.weights();
            // Whole groups may need slots that are empty now; memory is checked with the map.
            let all: Vec<usize> = slots
                .iter()
                .zip(topology.ranks())
                .map(|(slots, rank)| if rank.dead { 0 } else { slots.len() })
                .collect();
            let packed = match constraints.pack_layer(totals, &sizes, &weights) {
                Err(_) if even.is_none() => constraints.pack_layer(totals, &all, &weights)?,
                packed => packed?,
            };
            *slots = in_place(&packed, slots);
        }
        constraints.pin(slots, experts);
    }
    let named = |slots: Slots| {
        let name = |rank: Vec<Option<u16>>| rank.into_iter().map(|e| e.map(ExpertId)).collect();
        slots.into_iter().map(name).collect()
    };
    let slots = wide.into_iter().map(named).collect();
    Ok(Some(ExpertMap { slots, digests: Vec::new(), ..(*live).clone() }))
}

/// Packs experts into `sizes[rank]` slots, at least as many as experts, ranks as high as their
/// weights.
fn pack(totals: &[u64], sizes: &[usize], weights: &[u32], effort: Effort) -> Slots {
    let loads: Vec<f64> = totals.iter().map(|total| *total as f64).collect();
    let inverse_speed: Vec<f64> = weights.iter().map(|weight| 1.0 / f64::from(*weight)).collect();
    let layer = LayerRows { loads: &loads, sizes, inverse_speed: &inverse_speed, extra: &[] };
    place(&layer, effort).unwrap_or_else(|| sizes.iter().map(|n| vec![None; *n]).collect())
}

/// `[rank]`: copies per layer that every layer can have: as many as the fullest has, as far as the
/// layer with fewest slots goes.
fn even_sizes(layers: &[Slots]) -> Vec<usize> {
    let ranks = layers.first().map_or(0, Vec::len);
    let fullest = |rank: usize| layers.iter().map(|slots| filled(&slots[rank])).max();
    let fewest = |rank: usize| layers.iter().map(|slots| slots[rank].len()).min();
    (0..ranks).map(|rank| fullest(rank).min(fewest(rank)).unwrap_or(0)).collect()
}
