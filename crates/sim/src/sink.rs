//! Where the trace of a run goes.

use crate::SinkError;
use evenkeel_trace::StepRecord;

/// Takes the steps of a run, one by one, as they end.
pub trait StepSink {
    /// Whether the record of this step shall carry `routing` and `links`.
    fn wants_routing(&self, step: u64) -> bool;

    /// Whether records shall carry `cells`.
    fn wants_layers(&self) -> bool;

    /// Whether records are wanted at all; a run without is faster.
    fn wants_steps(&self) -> bool {
        true
    }

    /// Takes one step. The record is reused: copy what must stay.
    ///
    /// # Errors
    /// What kept the sink from taking it; the run stops.
    fn record(&mut self, step: &StepRecord) -> Result<(), SinkError>;
}

/// No trace.
pub struct NoSink;

impl StepSink for NoSink {
    fn wants_routing(&self, _step: u64) -> bool {
        false
    }

    fn wants_layers(&self) -> bool {
        false
    }

    fn wants_steps(&self) -> bool {
        false
    }

    fn record(&mut self, _step: &StepRecord) -> Result<(), SinkError> {
        Ok(())
    }
}
