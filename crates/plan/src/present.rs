//! From slots to a map with its price, its moves and its break-even.

use crate::break_even::break_even;
use crate::frontier::Offers;
use crate::layer::Slots;
use crate::price::price_of;
use crate::schedule::schedule;
use crate::search::Point;
use crate::study::Study;
use crate::{
    FrontierPoint, Move, Objective, Plan, PlanError, Price, Refused, SearchEffort, SplitRule, Stage,
};
use evenkeel_types::{ExpertId, ExpertMap, LayerId, Provenance, RankId, SlotId};

impl Study<'_> {
    pub(crate) fn map_of(&self, offers: &[Offers], made_by: &str) -> ExpertMap {
        self.child(offers.iter().map(|offers| offers.chosen().slots.clone()), made_by)
    }

    /// A child of the live map with these slots.
    pub(crate) fn child(&self, layers: impl Iterator<Item = Slots>, made_by: &str) -> ExpertMap {
        let Self { input, .. } = self;
        let steps = input.loads.steps.len();
        let tokens: u64 = input.loads.steps.iter().map(|step| u64::from(step.tokens)).sum();
        let mut provenance = Provenance {
            made_by: format!("evenkeel {made_by} {}", env!("CARGO_PKG_VERSION")),
            window: format!("{steps} {} steps, {tokens} tokens", input.phase()),
            ..Provenance::default()
        };
        let objective = match input.objective {
            Objective::StepTime => "step_time",
            Objective::SummedTokens => "summed_tokens",
        };
        for (key, value) in [("objective", objective.to_owned()), ("seed", input.seed.to_string())]
        {
            provenance.options.insert(key.to_owned(), value);
        }
        if input.effort == SearchEffort::Quick {
            provenance.options.insert("effort".to_owned(), "quick".to_owned());
        }
        let named = |slots: Slots| -> Vec<Vec<Option<ExpertId>>> {
            slots
                .into_iter()
                .map(|rank| rank.into_iter().map(|e| e.map(ExpertId)).collect())
                .collect()
        };
        ExpertMap {
            version: input.live.version + 1,
            parent: Some(input.live.version),
            slots: layers.map(named).collect(),
            digests: Vec::new(),
            provenance,
            ..input.live.clone()
        }
    }

    /// Prices a map and lists its moves. `chosen`: where the gains of arrivals stand.
    pub(crate) fn present(
        &self,
        map: ExpertMap,
        chosen: &[(usize, &Point)],
        mut refused: Vec<Refused>,
        bought: Vec<(usize, f64)>,
    ) -> Result<Plan, PlanError> {
        let Self { input, .. } = self;
        let split = input.split_of(&map, &self.totals)?;
        let planned = self.value(&map, (input.split == SplitRule::Balanced).then_some(&split))?;
        let planned_us = planned.us;
        let predicted = self.predicted(planned);
        let bytes = input.shape.expert_bytes();
        let stages = schedule(input.live, &map, &self.links, input.policy, bytes);
        let price = price_of(
            input.live,
            &map,
            input.shape,
            input.topology,
            input.policy,
            stages,
            &self.links,
        );
        let break_even = break_even(
            price.time_s,
            self.link_share(&price.stages),
            self.exchange_us()?,
            self.us_live,
            self.us_live - planned_us,
            input.policy.moves.dwell_s,
        );
        let moves = self.moves(&map, &price, chosen, planned_us);
        refused.sort_by(|a, b| b.gain_us.total_cmp(&a.gain_us));
        let frontier = std::iter::once((0, 0.0))
            .chain(bought)
            .map(|(moves, saved_us)| FrontierPoint {
                moves,
                bytes: moves as u64 * bytes,
                step_us: self.us_resplit - saved_us,
            })
            .collect();
        let bound = self.bound.clone();
        let repaired = Vec::new();
        Ok(Plan {
            map,
            split,
            bound,
            predicted,
            price,
            break_even,
            moves,
            frontier,
            refused,
            repaired,
            traffic: None,
        })
    }

    /// Largest share of a link that weights take while they arrive.
    fn link_share(&self, stages: &[Stage]) -> f64 {
        let rate = self.input.policy.moves.byte_rate_gb_per_s;
        let transfers = stages.iter().flat_map(|stage| &stage.transfers);
        transfers
            .map(|t| {
                self.links.gb_per_s(t.from, t.to, rate) / self.links.link_gb_per_s(t.from, t.to)
            })
            .fold(0.0, f64::max)
    }

    /// The moves of a price, the best gain first; where no gain is known, an equal part of all.
    fn moves(
        &self,
        map: &ExpertMap,
        price: &Price,
        chosen: &[(usize, &Point)],
        planned_us: f64,
    ) -> Vec<Move> {
        let bytes = self.input.shape.expert_bytes();
        let even_gain = (self.us_resplit - planned_us) / price.moves.max(1) as f64;
        let gain_of = |layer: LayerId, expert: ExpertId, to: RankId| {
            let point = chosen.iter().find(|(index, _)| *index == layer.index());
            let arrivals = point.map_or(&[][..], |(_, point)| &point.arrivals);
            let known = arrivals.iter().find(|(e, rank, _)| *e == expert.0 && *rank == to);
            known.map_or(even_gain, |known| known.2)
        };
        let transfers = price.stages.iter().flat_map(|stage| &stage.transfers);
        let mut moves: Vec<Move> = transfers
            .map(|t| {
                let slots = &map.slots[t.layer.index()][t.to.index()];
                let slot = slots.iter().position(|held| *held == Some(t.expert)).unwrap_or(0);
                let (layer, expert, from, to) = (t.layer, t.expert, t.from, t.to);
                let gain_us = gain_of(layer, expert, to);
                Move { layer, expert, from, to, slot: SlotId(slot as u16), bytes, gain_us }
            })
            .collect();
        moves.sort_by(|a, b| {
            b.gain_us
                .total_cmp(&a.gain_us)
                .then((a.layer, a.expert, a.to).cmp(&(b.layer, b.expert, b.to)))
        });
        moves
    }
}
