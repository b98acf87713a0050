//! What time does it take? Fitted curves for experts, exchanges, attention and the rest of a step.
//!
//! A [`Profile`] holds every curve of one device. Each curve is a physical formula, times a table
//! of what the formula misses where there are enough measurements, with the [`Basis`] that it
//! stands on: fitted, scaled, borrowed or assumed, over which range, within which error. Planners
//! get [`ExpertCoefficients`], plain numbers. Fits hold a fifth of the rows out by a hash of their
//! key and report the error on rows they did not see.

pub mod attention;
mod basis;
pub mod calibrate;
pub mod dense;
mod draw;
mod error;
pub mod exchange;
pub mod expert;
pub mod fit;
mod fit_profile;
pub mod load_generator;
pub mod parts;
mod profile;
mod report;
mod residual;
pub mod server;
mod stats;
mod step;
pub mod switches;
mod table;
mod tables;

pub use attention::AttentionLoad;
pub use basis::{Basis, Origin};
pub use draw::Draw;
pub use error::CostError;
pub use expert::{ExpertCoefficients, ExpertCurve, ExpertShape};
pub use fit_profile::{fit_cpu, fit_profile};
pub use profile::{ExpertEntry, ExpertModel, PROFILE_SCHEMA, Profile};
pub use report::{FitLine, FitReport, SetAside};
pub use residual::{ResidualLine, ResidualRow, ResidualTable};
pub use stats::{ErrorStats, quantile};
pub use step::{Crossing, CurveNote, StepModel};
pub use table::{Row, Table};
pub use tables::Tables;
