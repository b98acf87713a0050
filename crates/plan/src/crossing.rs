//! What an answer means for the traffic between nodes: balance is never sold silently.

use crate::affinity::{Limit, Mode, Question, Reading, Traffic, cross_node, localise};
use crate::check::check_transition;
use crate::survive::{SurviveInput, broken_promises};
use crate::{Outcome, PlanError, PlanInput, Price, price};
use evenkeel_cost::exchange::Direction;
use evenkeel_split::{SourceSplit, SplitTable};
use evenkeel_types::{ExpertMap, ModelShape};
use serde::Serialize;

/// Changes tried per layer for [`Localised`].
const PROPOSALS: u32 = 2_000;

/// What crosses nodes, and how even the ranks are, before and after.
#[derive(Clone, Debug, Serialize)]
pub struct CrossNode {
    /// How the fabric carries tokens in the window's phase.
    pub mode: Mode,
    /// Live map under the live split.
    pub live: Crossing,
    /// Planned map and split; those of the live one where nothing is to be done.
    pub planned: Crossing,
    /// Less traffic at the loss of balance that `plan.cross_node_loss_max_share` allows, where it
    /// allows any and less was found. It needs a dispatcher that splits by source node, so it
    /// stands beside the plan and is not the plan.
    pub localised: Option<Box<Localised>>,
}

/// Both numbers of a map and its split, over the sampled tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Crossing {
    /// Share of the units sent that crosses from one node to another: (token, expert) rows in low
    /// latency; in normal mode tokens times other nodes.
    pub share: f64,
    /// Bytes that cross per token, dispatch and return together, all layers.
    pub bytes_per_token: f64,
    /// Mean ÷ slowest rank, axis ranks, rows, layers weighted by their slowest rank.
    pub balancedness: f64,
}

/// A map and a split by source node that cross less.
#[derive(Clone, Debug, Serialize)]
pub struct Localised {
    /// The map, one version after the live one.
    pub map: ExpertMap,
    /// Shares by the node that a token comes from.
    #[serde(skip)]
    pub split: SourceSplit,
    /// Its numbers.
    pub crossing: Crossing,
    /// What the move from the live map costs.
    pub price: Price,
}

/// Reads the outcome's traffic where the question brings any.
///
/// # Errors
/// Traffic of another model or machine.
pub(crate) fn read(input: PlanInput<'_>, outcome: &mut Outcome) -> Result<(), PlanError> {
    let Some(traffic) = input.traffic else { return Ok(()) };
    validate(&input, traffic)?;
    let totals = input.loads.total();
    let live_split = match input.live_split {
        Some(split) => split.clone(),
        None => input.split_of(input.live, &totals)?,
    };
    let reader = Reader { input, traffic, mode: Mode::of(input.loads.phase) };
    let (map, split) = match &*outcome {
        Outcome::Plan(plan) => (&plan.map, &plan.split),
        Outcome::DoNothing(_) => (input.live, &live_split),
    };
    let found = CrossNode {
        mode: reader.mode,
        live: reader.crossing(input.live, &live_split)?,
        planned: reader.crossing(map, split)?,
        localised: reader.localised(map, split)?.map(Box::new),
    };
    match outcome {
        Outcome::Plan(plan) => plan.traffic = Some(found),
        Outcome::DoNothing(nothing) => nothing.traffic = Some(found),
    }
    Ok(())
}

fn validate(input: &PlanInput<'_>, traffic: &Traffic) -> Result<(), PlanError> {
    let (layers, experts) = (input.loads.layers, input.loads.experts);
    for (what, found, expected) in [
        ("layers in `traffic`", traffic.layers, layers),
        ("experts in `traffic`", traffic.experts, experts),
        ("nodes in `traffic`", traffic.nodes(), input.topology.node.len()),
    ] {
        if found != expected {
            return Err(PlanError::Loads { what, found, expected });
        }
    }
    Ok(())
}

/// Bytes of one unit that crosses, there and back.
fn unit_bytes(shape: &ModelShape, mode: Mode) -> f64 {
    let of = |direction: Direction| match mode {
        Mode::LowLatency => direction.low_latency_bytes(shape),
        Mode::Normal => direction.normal_bytes(shape),
    };
    of(Direction::Dispatch) + of(Direction::Combine)
}

struct Reader<'a> {
    input: PlanInput<'a>,
    traffic: &'a Traffic,
    mode: Mode,
}

impl Reader<'_> {
    fn crossing(&self, map: &ExpertMap, split: &SplitTable) -> Result<Crossing, PlanError> {
        let split = SourceSplit::of_table(map, split, self.traffic.nodes())?;
        Ok(self.of(&cross_node(&split, self.traffic, self.input.topology, self.mode)))
    }

    fn of(&self, reading: &Reading) -> Crossing {
        let tokens: usize = self.traffic.lists.iter().map(Vec::len).sum();
        let bytes = reading.bytes(unit_bytes(self.input.shape, self.mode));
        Crossing {
            share: reading.share(),
            bytes_per_token: bytes / tokens.max(1) as f64,
            balancedness: reading.balancedness(),
        }
    }

    /// The lawful map nearest to this one in balance that crosses less, if the policy allows a loss.
    fn localised(
        &self,
        map: &ExpertMap,
        split: &SplitTable,
    ) -> Result<Option<Localised>, PlanError> {
        let PlanInput { live, shape, topology, policy, seed, .. } = self.input;
        let loss = policy.plan.cross_node_loss_max_share;
        if loss <= 0.0 || self.traffic.nodes() < 2 {
            return Ok(None);
        }
        let found = localise(Question {
            map,
            split,
            topology,
            traffic: self.traffic,
            mode: self.mode,
            limit: Limit::Loss(loss),
            pinned: &policy.plan.pinned,
            proposals: PROPOSALS,
            seed,
        })?;
        let mut map = found.map;
        (map.parent, map.version) = (Some(live.version), live.version + 1);
        map.digests.clear();
        map.provenance.made_by = "localised".to_owned();
        let survive = SurviveInput { shape, topology, map: &map, policy, loads: None };
        let unusable = found.after.crossing >= found.before.crossing
            || !check_transition(live, &map, shape, topology, policy)?.is_empty()
            || !broken_promises(&survive)?.is_empty();
        if unusable {
            return Ok(None);
        }
        let price = price(live, &map, shape, topology, policy)?;
        let crossing = self.of(&found.after);
        Ok(Some(Localised { map, split: found.split, crossing, price }))
    }
}
