//! The Python package `evenkeel`: its native half, `evenkeel._native`.
//!
//! Arrays cross the boundary as bytes (float64 or int64, little endian, C order): NumPy is the
//! Python half's business, so that one wheel serves every version of it. The Python half checks
//! types and shapes, this half numbers and laws. The interpreter is released while it plans.

mod delta;
mod error;
mod loads;
mod placement;
mod report;

use error::Refused;
use loads::Loads;
use placement::{Machine, Wish};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

impl From<Refused> for PyErr {
    fn from(refused: Refused) -> Self {
        PyValueError::new_err(refused.to_string())
    }
}

/// A placement from scratch in DeepSeek's form: `phy2log` `[layers][slots]`, `log2phy`
/// `[layers][experts][most copies]` padded with -1, `logcnt` `[layers][experts]`, all int64, and
/// the most copies.
type Placement<'py> = (Bound<'py, PyBytes>, Bound<'py, PyBytes>, Bound<'py, PyBytes>, usize);

/// `rebalance_experts` of the Python half.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "the arguments of the function that it stands for")]
fn rebalance<'py>(
    py: Python<'py>,
    weight: &[u8],
    layers: usize,
    experts: usize,
    slots: usize,
    groups: usize,
    nodes: usize,
    ranks: usize,
) -> PyResult<Placement<'py>> {
    let tables = py.detach(|| {
        let loads = Loads::read(weight, layers, experts)?;
        let machine = Machine::new(ranks, slots, nodes)?;
        let whole = groups > 1 && groups.is_multiple_of(nodes);
        let placed = placement::full(&loads, &machine, whole.then_some(groups))?;
        Ok::<_, Refused>(report::Tables::of(&placed, experts))
    })?;
    let bytes = |values: &[i64]| {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        PyBytes::new(py, &bytes)
    };
    Ok((bytes(&tables.phy2log), bytes(&tables.log2phy), bytes(&tables.logcnt), tables.copies_max))
}

/// `plan` of the Python half: the answer as JSON.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "the arguments of the function that it stands for")]
fn plan(
    py: Python<'_>,
    weight: &[u8],
    layers: usize,
    experts: usize,
    ranks: usize,
    slots: usize,
    nodes: usize,
    groups: Option<usize>,
    live: Option<&str>,
    dead: Vec<usize>,
    moves_max: Option<u32>,
    target_balancedness: Option<f64>,
) -> PyResult<String> {
    py.detach(|| {
        let loads = Loads::read(weight, layers, experts)?;
        let machine = Machine::new(ranks, slots, nodes)?.without(&dead)?;
        let wish = Wish { groups, live, moves_max, target_balancedness };
        report::plan(&loads, &machine, &wish)
    })
    .map_err(PyErr::from)
}

/// `check` of the Python half: sentences, one per broken law.
#[pyfunction]
fn check(map: &str, live: Option<&str>) -> PyResult<Vec<String>> {
    report::check(map, live).map_err(PyErr::from)
}

/// Shares and loads as float64, ranks, slots per rank.
type Split<'py> = (Bound<'py, PyBytes>, Bound<'py, PyBytes>, usize, usize);

/// `split` of the Python half: shares `[layers][ranks][slots per rank]`, loads `[layers][ranks]`.
#[pyfunction]
fn split<'py>(
    py: Python<'py>,
    map: &str,
    weight: &[u8],
    layers: usize,
    experts: usize,
) -> PyResult<Split<'py>> {
    let found = py.detach(|| report::split(map, &Loads::read(weight, layers, experts)?))?;
    let bytes = |values: &[f64]| {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        PyBytes::new(py, &bytes)
    };
    Ok((bytes(&found.shares), bytes(&found.loads), found.ranks, found.per_rank))
}

/// Native half of the package `evenkeel`.
#[pymodule]
mod _native {
    #[pymodule_export]
    use super::{check, plan, rebalance, split};
}
