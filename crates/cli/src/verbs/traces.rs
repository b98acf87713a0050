//! What several verbs ask of a trace folder.

use crate::fail::Failure;
use evenkeel_store::{Trace, Window};
use evenkeel_trace::Routes;
use evenkeel_types::{ExpertMap, Topology};
use std::path::Path;

/// Opens a trace.
pub(crate) fn open(dir: &Path) -> Result<Trace, Failure> {
    Trace::open(dir).map_err(Failure::store)
}

/// The recorded routing of a trace that a verb cannot do without.
pub(crate) fn routes(trace: &Trace, dir: &Path) -> Result<Routes, Failure> {
    trace.routes().map_err(Failure::store)?.ok_or_else(|| {
        Failure::input(format!("{}: has no table `tokens`", dir.display()))
            .hint("a replay draws from routing recorded token by token; `evenkeel import` makes such a trace")
    })
}

/// The map given, else the last one that was live in the trace.
pub(crate) fn live_map(trace: &Trace, given: Option<&Path>) -> Result<Option<ExpertMap>, Failure> {
    match given {
        Some(path) => crate::load::map(path).map(Some),
        None => match trace.header().maps.last() {
            Some(listed) => trace.map(listed.version).map(Some).map_err(Failure::store),
            None => Ok(None),
        },
    }
}

/// The topology that the trace was recorded on.
pub(crate) fn recorded_topology(trace: &Trace) -> Option<&Topology> {
    trace.header().topology.as_ref()
}

/// Reads `FROM..TO`: steps (`100..200`) or times (`1.5s..3s`); either side may be left out.
pub(crate) fn window(text: Option<&str>) -> Result<Window, Failure> {
    let Some(text) = text else { return Ok(Window::All) };
    let bad = || {
        Failure::input(format!("--window `{text}`: expected FROM..TO in steps or seconds"))
            .hint("e.g. `100..200` or `1.5s..3s`")
    };
    let empty = || Failure::input(format!("--window `{text}`: ends before it begins"));
    let (from, to) = text.split_once("..").ok_or_else(bad)?;
    if from.ends_with('s') || to.ends_with('s') {
        let ns = |side: &str, absent: u64| match side.strip_suffix('s').unwrap_or(side) {
            "" => Ok(absent),
            number => match number.parse::<f64>() {
                Ok(seconds) if seconds.is_finite() && seconds >= 0.0 => Ok((seconds * 1e9) as u64),
                _ => Err(bad()),
            },
        };
        let (from_ns, to_ns) = (ns(from, 0)?, ns(to, u64::MAX)?);
        return if from_ns < to_ns { Ok(Window::Time { from_ns, to_ns }) } else { Err(empty()) };
    }
    let step = |side: &str, absent: u64| {
        if side.is_empty() { Ok(absent) } else { side.parse().map_err(|_| bad()) }
    };
    let (from, to) = (step(from, 0)?, step(to, u64::MAX)?);
    if from < to { Ok(Window::Steps { from, to }) } else { Err(empty()) }
}

/// Reads `tenant=weight,tenant=weight` into weights by slice; equal weights where absent.
pub(crate) fn mix(text: Option<&str>, trace: &Trace) -> Result<Vec<f64>, Failure> {
    let slices = &trace.header().slices;
    let Some(text) = text else { return Ok(vec![1.0; slices.len()]) };
    let mut weights = vec![0.0; slices.len()];
    for part in text.split(',') {
        let bad = |problem: &str| {
            let tenants: Vec<_> = slices.iter().map(|slice| slice.tenant.as_str()).collect();
            Failure::input(format!("--mix `{part}`: {problem}"))
                .hint(format!("tenants of this trace: {}", tenants.join(", ")))
        };
        let (tenant, weight) = part.split_once('=').ok_or_else(|| bad("expected TENANT=WEIGHT"))?;
        let index = slices.iter().position(|slice| slice.tenant == tenant);
        let index = index.ok_or_else(|| bad("no such tenant"))?;
        weights[index] = match weight.parse::<f64>() {
            Ok(weight) if weight.is_finite() && weight >= 0.0 => weight,
            _ => return Err(bad("expected a weight of 0 or more")),
        };
    }
    if weights.iter().sum::<f64>() <= 0.0 {
        return Err(Failure::input(format!("--mix `{text}`: all weights are 0")));
    }
    Ok(weights)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_read() {
        assert_eq!(window(None).unwrap(), Window::All);
        assert_eq!(window(Some("3..9")).unwrap(), Window::Steps { from: 3, to: 9 });
        let time = Window::Time { from_ns: 1_500_000_000, to_ns: u64::MAX };
        assert_eq!(window(Some("1.5s..")).unwrap(), time);
        for bad in ["3", "a..b", "-1s..2s", "NaNs..1s", "5..2", "3s..3s"] {
            assert!(window(Some(bad)).is_err(), "{bad}");
        }
    }
}
