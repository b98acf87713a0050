//! An expert curve at one shape: form × residual table, with its basis.

use serde::{Deserialize, Serialize};

use super::{ExpertCoefficients, RankForm};
use crate::basis::Basis;
use crate::residual::ResidualTable;

/// The formula under an [`ExpertCurve`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "form", rename_all = "snake_case")]
pub enum ExpertForm {
    /// Separable by expert.
    Separable(ExpertCoefficients),
    /// A knee over the rank's totals.
    Rank(RankForm),
}

/// Time of a rank's experts in one layer of one model on one device. Times in µs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpertCurve {
    /// Engine and kernel, e.g. `sglang deepgemm masked`.
    pub name: String,
    /// The formula.
    pub form: ExpertForm,
    /// What the formula misses; empty for separable curves.
    #[serde(default)]
    pub residual: ResidualTable,
    /// What the curve stands on.
    pub basis: Basis,
}

impl ExpertCurve {
    /// A curve without residual table.
    #[must_use]
    pub fn separable(name: &str, coefficients: ExpertCoefficients, basis: Basis) -> Self {
        Self {
            name: name.to_owned(),
            form: ExpertForm::Separable(coefficients),
            residual: ResidualTable::default(),
            basis,
        }
    }

    /// The linear coefficients: exact for a separable curve, its linear neighbour otherwise.
    #[must_use]
    pub fn coefficients(&self) -> ExpertCoefficients {
        match &self.form {
            ExpertForm::Separable(coefficients) => *coefficients,
            ExpertForm::Rank(form) => form.coefficients(),
        }
    }

    /// `f(m)` of one slot under [`Self::coefficients`]; 0 rows cost the slot alone.
    #[must_use]
    pub fn slot_us(&self, rows: u32) -> f64 {
        match &self.form {
            ExpertForm::Separable(coefficients) => coefficients.slot_us(rows),
            ExpertForm::Rank(form) => form.coefficients().slot_us(rows),
        }
    }

    /// Time of a rank whose slots hold these rows and which received `distinct_tokens` tokens.
    ///
    /// The slice has one entry per local slot, idle ones included.
    #[must_use]
    pub fn rank_us(&self, rows_per_slot: &[u32], distinct_tokens: u32) -> f64 {
        let formula = match &self.form {
            ExpertForm::Separable(coefficients) => {
                coefficients.rank_us(rows_per_slot, distinct_tokens)
            }
            ExpertForm::Rank(form) => form.rank_us(rows_per_slot, distinct_tokens),
        };
        if self.residual.is_empty() {
            return formula;
        }
        let slots = u32::try_from(rows_per_slot.len()).unwrap_or(u32::MAX);
        let rows: f64 = rows_per_slot.iter().map(|m| f64::from(*m)).sum();
        formula * self.residual.factor(slots, rows)
    }

    /// The same curve with every time multiplied by `share`: a slower rank, or an error band.
    #[must_use]
    pub fn scaled(&self, share: f64) -> Self {
        let form = match &self.form {
            ExpertForm::Separable(coefficients) => {
                ExpertForm::Separable(coefficients.scaled(share))
            }
            ExpertForm::Rank(form) => ExpertForm::Rank(form.scaled(share)),
        };
        Self { form, ..self.clone() }
    }
}
