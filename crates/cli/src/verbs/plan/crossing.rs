//! What a plan means for the traffic between nodes.

use crate::fail::Failure;
use crate::setting::Setting;
use evenkeel_plan::CrossNode;
use evenkeel_plan::affinity::{Mode, Traffic};
use evenkeel_report::fmt;
use evenkeel_types::Phase;

/// Tokens read, at even distances.
const TOKENS_MAX: usize = 2_000;

/// The trace's tokens, listed at every node: where requests live is not recorded. `None` on one node,
/// or where routing was recorded as counts only.
pub(super) fn traffic(
    trace: &evenkeel_store::Trace,
    setting: &Setting,
    phase: Phase,
    seed: u64,
) -> Result<Option<Traffic>, Failure> {
    let nodes = setting.topology.node.len();
    let routes = if nodes > 1 { trace.routes().map_err(Failure::store)? } else { None };
    Ok(routes.map(|routes| {
        let share = vec![vec![1.0; nodes]; trace.header().slices.len()];
        Traffic::of_routes(&routes, phase, &share, TOKENS_MAX, seed)
    }))
}

/// Balance and traffic between nodes, before and after.
pub(super) fn lines(traffic: &CrossNode) -> Vec<String> {
    let CrossNode { mode, live, planned, localised } = traffic;
    let mode = match mode {
        Mode::LowLatency => "low latency: rows",
        Mode::Normal => "normal mode: tokens per other node",
    };
    let bytes = fmt::bytes;
    let mut lines = vec![format!(
        "across nodes ({mode}): live {} ({} per token), planned {} ({}); balancedness of ranks over \
         all layers: live {}, planned {}",
        fmt::percent(live.share),
        bytes(live.bytes_per_token),
        fmt::percent(planned.share),
        bytes(planned.bytes_per_token),
        fmt::number(live.balancedness),
        fmt::number(planned.balancedness)
    )];
    lines.extend(localised.as_ref().map(|other| {
        format!(
            "split by source node, another map crosses {} ({} per token) at balancedness {}: {} \
             moves, {} (in --json)",
            fmt::percent(other.crossing.share),
            bytes(other.crossing.bytes_per_token),
            fmt::number(other.crossing.balancedness),
            other.price.moves,
            bytes(other.price.bytes as f64)
        )
    }));
    lines
}
