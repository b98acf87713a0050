//! The certificate of a plan, from the question and the answer.

use evenkeel_plan::{Objective, Plan, PlanInput, SplitRule};
use evenkeel_prove::{
    Certificate, CertifiedObjective, Claims, LayerClaim, Question, check_certificate,
};
use evenkeel_types::LayerId;

pub fn certificate(input: &PlanInput<'_>, plan: &Plan) -> Certificate {
    let slots_live = input.live.slots.iter();
    let question = Question {
        objective: match input.objective {
            Objective::StepTime => CertifiedObjective::StepTime,
            Objective::SummedTokens => CertifiedObjective::SummedTokens,
        },
        shape: input.shape.clone(),
        topology: input.topology.clone(),
        policy: input.policy.clone(),
        coefficients: *input.coefficients,
        exchange_us_per_row: input.exchange_us_per_row,
        fixed_us: input.fixed_us,
        rank_extra_us: input.rank_extra_us.map(<[f64]>::to_vec),
        slots_live: slots_live
            .map(|layer| layer.iter().map(|slots| slots.len() as u16).collect())
            .collect(),
        loads: input.loads.clone(),
    };
    let parts = (0..plan.map.layers()).map(|index| {
        let layer = LayerId(index as u16);
        let parts = plan.map.copies(layer).map(|(rank, _, expert)| match input.split {
            SplitRule::Even => 1,
            SplitRule::Balanced => {
                let shares = plan.split.shares(layer, expert).iter();
                shares.filter(|(host, _)| *host == rank).map(|(_, ways)| u32::from(*ways)).sum()
            }
        });
        parts.collect()
    });
    let layers = plan.predicted.layers_us_planned.iter().zip(&plan.bound.layers);
    let claims = Claims {
        step_us: plan.predicted.step_us_planned,
        bound_us: plan.bound.step_us,
        gap_share: plan.predicted.gap_share,
        layers: layers.map(|(us, bound)| LayerClaim { us: *us, bound_us: bound.us }).collect(),
    };
    let parts = parts.collect();
    Certificate::seal("a test", question, plan.map.clone(), parts, claims).unwrap()
}

/// Derives the plan's value and bound again, by code that knows nothing of the planner.
pub fn certified(input: &PlanInput<'_>, plan: &Plan) {
    let certificate = certificate(input, plan);
    let found = check_certificate(&certificate);
    assert!(found.is_empty(), "{found:#?}");
}
