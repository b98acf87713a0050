//! Why is this step slow? Causes with their milliseconds, place, evidence and remedy.
//!
//! [`diagnose`] compares at equal work: residuals against the cost curves, never raw times of
//! different batches. It heals each fault that it finds in arithmetic, step by step, and splits what
//! healing all of them saves over the faults by Shapley values, so that the parts add up. Where the
//! record does not say enough, the answer is "cannot tell", with what is missing.
//!
//! **Invariants.** A fault is named only above the noise of the record and the error of the model
//! *at that place*: what all ranks share cancels between ranks. A record that breaks a
//! conservation law gets no verdict (law 7). Mean utilisation is printed with the reason why it
//! decides nothing, and decides nothing (law 6).

mod attribute;
mod balance;
mod causes;
mod change;
mod diagnose;
mod diagnosis;
mod effects;
mod expect;
mod findings;
mod frame;
mod group;
mod heal;
mod input;
mod links;
mod mix;
mod placement;
mod stats;
mod window;

pub use diagnose::diagnose;
pub use diagnosis::{
    Cause, CauseKind, Diagnosis, Gaps, HotExpert, LayerBalance, MapBound, MixShift, Part, Place,
    RankShare, SliceShare, Slowdown, Utilisation, Verdict,
};
pub use group::{LargerBatch, larger_batch};
pub use input::{DiagnoseError, Observation, Options};
