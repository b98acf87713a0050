//! A hardware profile: every curve of one device, as committed JSON.

use evenkeel_types::{ModelShape, Phase, WeightFormat};
use serde::{Deserialize, Serialize};
use serde_json::{Number, Value};

use crate::attention::AttentionProfile;
use crate::basis::{Basis, Origin};
use crate::dense::{DenseProfile, EngineConstants};
use crate::error::CostError;
use crate::exchange::ExchangeProfile;
use crate::expert::{
    ExpertCoefficients, ExpertCurve, ExpertForm, ExpertShape, RankModel, TileModel,
};
use crate::report::FitReport;
use crate::residual::ResidualTable;

/// Schema of a profile file. A field that changes its meaning raises the number.
pub const PROFILE_SCHEMA: &str = "evenkeel.profile/1";

/// Every curve of one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// [`PROFILE_SCHEMA`].
    pub schema: String,
    /// Name, e.g. `h100-sxm`.
    pub name: String,
    /// Device and engine versions that the curves belong to, for a reader.
    pub identity: String,
    /// Expert curves; the first of a phase is the one used where no engine is named.
    pub experts: Vec<ExpertEntry>,
    /// Moving rows between ranks.
    pub exchange: ExchangeProfile,
    /// Attention.
    pub attention: AttentionProfile,
    /// Plain matrix products.
    pub dense: DenseProfile,
    /// What the engine adds.
    pub engine: EngineConstants,
    /// What the fits reached.
    #[serde(default)]
    pub report: FitReport,
}

/// One kernel's expert curves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpertEntry {
    /// Engine and kernel, e.g. `sglang deepgemm masked`.
    pub engine: String,
    /// Phase that it serves; none for both.
    #[serde(default)]
    pub phase: Option<Phase>,
    /// The form.
    pub model: ExpertModel,
    /// Shapes that the form was fitted to.
    pub measured: Vec<ExpertShape>,
    /// Basis at a measured shape.
    pub basis: Basis,
    /// Error stated for a shape that was not measured, as a share.
    pub scaled_error_share: f64,
}

/// A form in physical parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "form", rename_all = "snake_case")]
pub enum ExpertModel {
    /// Separable by expert.
    Tiles(TileModel),
    /// A knee over the rank's totals: pooled over models, and better constants for some.
    Rank {
        /// Constants pooled over all measured models.
        pooled: RankModel,
        /// Constants of one model each, in the order of [`ExpertEntry::measured`]; may be empty.
        #[serde(default)]
        by_model: Vec<RankModel>,
        /// Residual tables in the same order, or one for all; may be empty.
        #[serde(default)]
        residuals: Vec<ResidualTable>,
    },
}

impl Profile {
    /// Names accepted by [`Profile::builtin`].
    pub const BUILTIN: [&'static str; 4] = ["h100-sxm", "h200-sxm", "h20", "cpu"];

    /// A committed profile by name.
    ///
    /// # Errors
    /// [`CostError::UnknownProfile`] with the names there are.
    pub fn builtin(name: &str) -> Result<Self, CostError> {
        let text = match name {
            "h100-sxm" => include_str!("../profiles/h100-sxm.json"),
            "h200-sxm" => include_str!("../profiles/h200-sxm.json"),
            "h20" => include_str!("../profiles/h20.json"),
            "cpu" => include_str!("../profiles/cpu.json"),
            _ => {
                return Err(CostError::UnknownProfile {
                    name: name.to_owned(),
                    known: Self::BUILTIN.join(", "),
                });
            }
        };
        Self::from_json(text)
    }

    /// Reads a profile.
    ///
    /// # Errors
    /// Bad JSON, another schema, or a profile without expert curves.
    pub fn from_json(text: &str) -> Result<Self, CostError> {
        let profile: Self = serde_json::from_str(text)?;
        if profile.schema != PROFILE_SCHEMA {
            return Err(CostError::Schema { found: profile.schema, expected: PROFILE_SCHEMA });
        }
        if profile.experts.is_empty() {
            return Err(CostError::Field {
                profile: profile.name,
                field: "experts".to_owned(),
                value: "empty".to_owned(),
                expected: "at least one expert curve",
            });
        }
        Ok(profile)
    }

    /// The profile as indented JSON with a final newline, numbers to nine significant digits:
    /// far below any fit's error, and read back to the same value.
    ///
    /// # Errors
    /// Only where serialisation itself fails.
    pub fn to_json(&self) -> Result<String, CostError> {
        let mut value = serde_json::to_value(self)?;
        shorten(&mut value);
        Ok(serde_json::to_string_pretty(&value)? + "\n")
    }

    /// The expert curve used for a model in a phase where no engine is named.
    ///
    /// A profile without a curve for the phase answers with its first one, marked as borrowed.
    #[must_use]
    pub fn expert_curve(&self, shape: &ModelShape, phase: Phase) -> ExpertCurve {
        let of_phase = self.experts.iter().find(|e| e.phase.is_none_or(|p| p == phase));
        match (of_phase, self.experts.first()) {
            (Some(entry), _) => entry.curve(&ExpertShape::from(shape)),
            (None, Some(entry)) => {
                let mut curve = entry.curve(&ExpertShape::from(shape));
                let note = format!("no {phase} curve in profile `{}`", self.name);
                curve.basis = curve.basis.weaker(&Basis::new(Origin::Borrowed, 0.3, note));
                curve
            }
            // `from_json` refuses a profile without curves; one built by hand costs nothing.
            (None, None) => ExpertCurve::separable(
                "none",
                ExpertCoefficients::FREE,
                Basis::new(Origin::Assumed, 1.0, "profile without expert curves"),
            ),
        }
    }

    /// The expert curve of a named engine, where the profile has one for the phase.
    #[must_use]
    pub fn expert_curve_of(
        &self,
        engine: &str,
        shape: &ModelShape,
        phase: Phase,
    ) -> Option<ExpertCurve> {
        self.experts
            .iter()
            .find(|e| e.engine == engine && e.phase.is_none_or(|p| p == phase))
            .map(|entry| entry.curve(&ExpertShape::from(shape)))
    }
}

fn shorten(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(shorten),
        Value::Object(fields) => fields.values_mut().for_each(shorten),
        Value::Number(number) if number.is_f64() => {
            let short = number.as_f64().and_then(|x| format!("{x:.8e}").parse().ok());
            if let Some(short) = short.and_then(Number::from_f64) {
                *number = short;
            }
        }
        _ => {}
    }
}

impl ExpertEntry {
    /// The curve at a shape, with the basis that this shape deserves.
    #[must_use]
    pub fn curve(&self, shape: &ExpertShape) -> ExpertCurve {
        let same = |m: &ExpertShape| {
            m.hidden == shape.hidden && m.width == shape.width && m.weights == shape.weights
        };
        let at = self
            .measured
            .iter()
            .position(|m| same(m) && m.experts == shape.experts && m.top_k == shape.top_k)
            .or_else(|| self.measured.iter().position(same));
        let mut residual = ResidualTable::default();
        let form = match &self.model {
            ExpertModel::Tiles(model) => ExpertForm::Separable(model.coefficients(shape)),
            ExpertModel::Rank { pooled, by_model, residuals } => {
                let model = at.and_then(|i| by_model.get(i)).unwrap_or(pooled);
                if let Some(i) = at {
                    let own = residuals.get(i).filter(|_| !by_model.is_empty());
                    residual = own.or(residuals.first()).cloned().unwrap_or_default();
                }
                ExpertForm::Rank(model.at(shape))
            }
        };
        ExpertCurve {
            name: self.engine.clone(),
            form,
            residual,
            basis: self.basis_at(shape, at.is_some()),
        }
    }

    fn basis_at(&self, shape: &ExpertShape, measured: bool) -> Basis {
        if measured {
            return self.basis.clone();
        }
        let inner = format!("expert {} x {} was not measured", shape.hidden, shape.width);
        let format_known = self.measured.iter().any(|m| m.weights == shape.weights);
        let scaled = if format_known {
            Basis::new(Origin::Scaled, self.scaled_error_share, inner)
        } else {
            // Bytes and rates of another format are physics, not data.
            let note = format!("{inner}, nor were {} weights", word(shape.weights));
            Basis::new(Origin::Borrowed, self.scaled_error_share.max(FORMAT_ERROR), note)
        };
        self.basis.weaker(&scaled)
    }
}

/// Error stated where the weight format differs from every measured one.
const FORMAT_ERROR: f64 = 0.2;

const fn word(weights: WeightFormat) -> &'static str {
    match weights {
        WeightFormat::F32 => "f32",
        WeightFormat::Bf16 => "bf16",
        WeightFormat::Fp8Block => "block-scaled fp8",
        WeightFormat::Fp8 => "fp8",
        WeightFormat::Int4 => "int4",
        WeightFormat::Mxfp4 => "mxfp4",
    }
}
