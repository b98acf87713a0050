//! The bundled data, embedded in the binary: recorded routing, arrivals, expert counts.

use crate::fail::Failure;
use evenkeel_interop::{ExpertCounts, arrivals, expert_counts};
use evenkeel_store::{Trace, unpack};
use evenkeel_trace::Routes;
use evenkeel_types::{ModelShape, Slice};
use std::path::Path;

/// DeepSeek-V2-Lite routing of three tenants as a trace of our own schema.
const RECORDED: [(&str, &[u8]); 3] = [
    ("trace.json", include_bytes!("../../../../../assets/routing-deepseek-v2-lite/trace.json")),
    (
        "requests.parquet",
        include_bytes!("../../../../../assets/routing-deepseek-v2-lite/requests.parquet"),
    ),
    (
        "tokens.parquet",
        include_bytes!("../../../../../assets/routing-deepseek-v2-lite/tokens.parquet"),
    ),
];

const ARRIVALS: &[u8] = include_bytes!("../../../../../assets/arrivals/azure2023_conv.csv.gz");

const MIXTRAL: &[u8] = include_bytes!("../../../../../assets/routing-mixtral/expert_counts.csv.gz");

/// Whose data the demonstration shows. The files' ATTRIBUTION.md says more.
pub(crate) const ATTRIBUTION: [&str; 4] = [
    "Routing of DeepSeek-V2-Lite: github.com/deepseek-ai/ESFT, MIT licence.",
    "Arrivals: Azure LLM inference trace 2023, CC-BY-4.0 (Patel et al., Splitwise, ISCA 2024).",
    "Expert counts of Mixtral 8x7B: github.com/allenai/OLMoE, Apache-2.0.",
    "Kernel and network times behind the curves: see assets/measured-kernels/ATTRIBUTION.md.",
];

/// The recorded trace, opened.
pub(crate) struct Recorded {
    pub(crate) shape: ModelShape,
    pub(crate) slices: Vec<Slice>,
    pub(crate) routes: Routes,
}

/// Writes the recorded trace to `dir` and opens it there, laws checked, as any other trace.
pub(crate) fn recorded(dir: &Path) -> Result<Recorded, Failure> {
    unpack(dir, &RECORDED).map_err(Failure::store)?;
    let trace = Trace::open(dir).map_err(Failure::store)?;
    let routes = trace.routes().map_err(Failure::store)?;
    let routes = routes.ok_or_else(|| Failure::input("the bundled trace has no routing"))?;
    let header = trace.header();
    Ok(Recorded { shape: header.model.clone(), slices: header.slices.clone(), routes })
}

/// Arrivals of Azure's conversation trace, ns from its first.
pub(crate) fn arrivals_ns() -> Result<Vec<u64>, Failure> {
    arrivals(ARRIVALS, "azure2023_conv.csv.gz").map_err(Failure::input)
}

/// Expert counts of Mixtral, summed over domains.
pub(crate) fn mixtral_counts() -> Result<ExpertCounts, Failure> {
    expert_counts(MIXTRAL, "expert_counts.csv.gz").map_err(Failure::input)
}
