//! Why a comparison cannot even be tried.

use thiserror::Error;

/// Input that contradicts itself. Too little data is not an error: it is a verdict.
#[derive(Debug, PartialEq, Error)]
pub enum ProveError {
    /// A slice that the list of slices does not have.
    #[error("run `{run}`, request {job}: slice {slice} is unknown, expected below {slices}")]
    Slice {
        /// Run.
        run: String,
        /// Request.
        job: u64,
        /// The slice.
        slice: u16,
        /// Slices known.
        slices: usize,
    },
    /// One job twice in one run.
    #[error("run `{run}`, request {job}: listed twice, expected once")]
    DuplicateJob {
        /// Run.
        run: String,
        /// Request.
        job: u64,
    },
    /// Times that run backwards.
    #[error("run `{run}`, request {job}: {later} lies before {earlier}, expected after")]
    RequestTimes {
        /// Run.
        run: String,
        /// Request.
        job: u64,
        /// The time that should be later.
        later: &'static str,
        /// The time that should be earlier.
        earlier: &'static str,
    },
    /// Steps out of order or ending before they start.
    #[error("run `{run}`, step {step}: {what}")]
    Step {
        /// Run.
        run: String,
        /// Step.
        step: u64,
        /// What is wrong, and what was expected.
        what: &'static str,
    },
    /// A score that is no number in [0, 1].
    #[error("run `{run}`, request {job}: quality score {score}, expected a number from 0 to 1")]
    Score {
        /// Run.
        run: String,
        /// Request.
        job: u64,
        /// The score.
        score: f64,
    },
    /// Paired runs that share no job.
    #[error("runs `{live}` and `{candidate}` share no request number: not a pair")]
    NoCommonJob {
        /// Live run.
        live: String,
        /// Candidate run.
        candidate: String,
    },
    /// A setting outside its range.
    #[error("{field} is {value}, expected {expected}")]
    Setting {
        /// Field.
        field: &'static str,
        /// Value.
        value: f64,
        /// What would be right.
        expected: &'static str,
    },
}
