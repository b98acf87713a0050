//! Is the candidate map better, for certain, and for everyone? The gate that accepts or rejects.
//!
//! Two runs go in, on the same jobs (replays) or on two records (before and after); a [`Verdict`]
//! comes out: accept, reject, need more data, cannot tell, or withheld, with the numbers that
//! decided. Requests and steps are dependent, so whole blocks of time are resampled; slices are
//! judged each, with a correction for their number; looking again at growing data is paid for.
//!
//! **Invariants.** The judge never meets the advocate: nothing here knows what a plan thought of
//! itself. No mean utilisation is evidence. A percentile carries its weighting, an "unchanged" its
//! sameness level, a verdict on modelled times the word `modelled`. Same input and seed, same
//! verdict.

mod blocks;
mod certificate;
mod compare;
mod distribution;
mod error;
mod gate;
mod input;
mod interval;
mod judge;
mod measured;
mod metrics;
mod quantile;
mod rates;
mod sample;
mod stalls;
mod verdict;

pub use certificate::{
    CERTIFICATE_SCHEMA, Certificate, CertificateError, CertifiedObjective, Claims, Digests,
    Disagreement, LayerClaim, Question, check_certificate, derive_certificate,
};
pub use distribution::{
    Distributions, ExpertChoiceShift, RankLoad, RankLoadShift, TPOT_BINS, TpotHistogram,
};
pub use error::ProveError;
pub use gate::{draw_outcome, gate};
pub use input::{
    BothRuns, Design, DrawOutcome, GateInput, KvHeadroom, OutputMatch, Pair, Sameness,
};
pub use judge::{QUALITY_LOSS_MAX, SLICE_REQUESTS_MIN};
pub use measured::run_from_trace;
pub use metrics::{
    MixShare, RunMetrics, SliceMetrics, Spread, StepMetrics, Utilisation, mix_of_runs, summary,
};
pub use rates::{ErrorRates, KindRates, Rate, RatesInput, error_rates};
pub use stalls::{STALLS_LISTED_MAX, Stall, Stalls};
pub use verdict::{
    BlockDesign, Comparison, Decision, Metric, Reason, SamenessLevel, SamenessReport, Standing,
    Verdict,
};
