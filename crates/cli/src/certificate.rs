//! Certificates: made from a planning question and its answer, checked without either.

use crate::fail::{Failure, Finding, Verdict};
use crate::load;
use crate::out::{Out, write_file};
use evenkeel_plan::{Objective, Plan, PlanInput, SplitRule};
use evenkeel_prove::{
    Certificate, CertifiedObjective, Claims, Digests, Disagreement, LayerClaim, Question,
    check_certificate,
};
use evenkeel_report::fmt;
use evenkeel_types::LayerId;
use serde::Serialize;
use std::path::Path;

/// The certificate of a plan: all that its value and bound follow from, and what it claims.
pub(crate) fn of(input: &PlanInput<'_>, plan: &Plan) -> Result<Certificate, Failure> {
    let lengths = |layer: &Vec<Vec<_>>| layer.iter().map(|slots| slots.len() as u16).collect();
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
        slots_live: input.live.slots.iter().map(lengths).collect(),
        loads: input.loads.clone(),
    };
    let parts = (0..plan.map.layers()).map(|index| {
        let layer = LayerId(index as u16);
        let of_copy = |(rank, _, expert)| match input.split {
            SplitRule::Even => 1,
            SplitRule::Balanced => {
                let shares = plan.split.shares(layer, expert).iter();
                shares.filter(|(host, _)| *host == rank).map(|(_, ways)| u32::from(*ways)).sum()
            }
        };
        plan.map.copies(layer).map(of_copy).collect()
    });
    let layers = plan.predicted.layers_us_planned.iter().zip(&plan.bound.layers);
    let claims = Claims {
        step_us: plan.predicted.step_us_planned,
        bound_us: plan.bound.step_us,
        gap_share: plan.predicted.gap_share,
        layers: layers.map(|(us, bound)| LayerClaim { us: *us, bound_us: bound.us }).collect(),
    };
    let made_by = concat!("evenkeel plan ", env!("CARGO_PKG_VERSION"));
    Certificate::seal(made_by, question, plan.map.clone(), parts.collect(), claims)
        .map_err(Failure::input)
}

/// Writes the certificate of a plan beside its map.
pub(crate) fn write(path: &Path, input: &PlanInput<'_>, plan: &Plan) -> Result<(), Failure> {
    write_file(path, of(input, plan)?.to_json().map_err(Failure::environment)?.as_bytes())
}

#[derive(Serialize)]
struct Checked<'a> {
    certificate: String,
    made_by: &'a str,
    objective: CertifiedObjective,
    layers: usize,
    ranks: usize,
    steps: usize,
    step_us: f64,
    bound_us: f64,
    gap_share: f64,
    digests: &'a Digests,
    disagreements: Vec<Disagreement>,
}

/// Derives a certificate's value and bound again; with a map, that it is the one certified.
pub(crate) fn check(path: &Path, map: Option<&Path>, out: &mut Out) -> Verdict {
    let text = load::text_within(path, CERTIFICATE_BYTES_MAX)?;
    let certificate = Certificate::from_json(&text)
        .map_err(|error| Failure::input(error).context(path.display()))?;
    let mut disagreements = check_certificate(&certificate);
    if let Some(map) = map {
        let found = load::map(map)?;
        if found.digest() != certificate.map.digest() {
            disagreements.push(Disagreement {
                place: map.display().to_string(),
                field: "digest of the map".into(),
                claimed: certificate.map.digest(),
                found: found.digest(),
            });
        }
    }
    let Certificate { made_by, question, claims, digests, .. } = &certificate;
    let checked = Checked {
        certificate: path.display().to_string(),
        made_by,
        objective: question.objective,
        layers: question.loads.layers,
        ranks: question.topology.rank_count(),
        steps: question.loads.steps.len(),
        step_us: claims.step_us,
        bound_us: claims.bound_us,
        gap_share: claims.gap_share,
        digests,
        disagreements,
    };
    out.present(&checked, || lines(&checked))?;
    Ok(Finding::from_good(checked.disagreements.is_empty()))
}

/// Certificates beyond this are refused; one of 58 layers x 256 experts x 64 steps has 4 MB.
const CERTIFICATE_BYTES_MAX: u64 = 1 << 30;

fn lines(checked: &Checked<'_>) -> String {
    let Checked { layers, ranks, steps, digests, .. } = checked;
    let value = |value: f64| match checked.objective {
        CertifiedObjective::StepTime => fmt::us(value),
        CertifiedObjective::SummedTokens => format!("{} rows", fmt::number(value)),
    };
    let mut lines = vec![format!(
        "{}: {layers} layers x {ranks} ranks, {steps} steps; digests: loads {}, map {}, all {}",
        checked.certificate, digests.loads, digests.map, digests.all
    )];
    let claims = format!(
        "value {}, bound {}, gap {}",
        value(checked.step_us),
        value(checked.bound_us),
        fmt::percent(checked.gap_share)
    );
    if checked.disagreements.is_empty() {
        lines.push(format!("derived again and agreed: {claims}; the map keeps the laws"));
    } else {
        lines.push(format!("does not hold: claimed {claims}"));
    }
    for Disagreement { place, field, claimed, found } in &checked.disagreements {
        lines.push(format!("{place}: {field}: claimed {claimed}, found {found}"));
    }
    lines.join("\n")
}
