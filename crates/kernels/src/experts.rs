//! One expert on the rows that chose it: SwiGLU, `down(silu(gate(x)) · up(x))`.

use crate::elementwise::{round_rows, swiglu};
use crate::{Isa, Matrix, Rows, matmul};
use half::bf16;

/// The three matrices of an expert.
#[derive(Clone, Copy, Debug)]
pub struct ExpertWeights<'a> {
    /// `[width][hidden]`.
    pub gate: Matrix<'a>,
    /// `[width][hidden]`.
    pub up: Matrix<'a>,
    /// `[hidden][width]`.
    pub down: Matrix<'a>,
}

/// Memory that is kept between calls.
#[derive(Clone, Debug, Default)]
pub struct ExpertScratch {
    gate: Vec<f32>,
    up: Vec<f32>,
    narrow: Vec<bf16>,
}

/// Runs an expert on rows `[m][hidden]`; `y` is `[m][hidden]` and overwritten. With bf16 rows the
/// inner activation is rounded to bf16 as well.
///
/// # Panics
/// Where lengths do not fit: a caller's fault.
pub fn run_expert(
    isa: Isa,
    weights: &ExpertWeights<'_>,
    x: Rows<'_>,
    scratch: &mut ExpertScratch,
    y: &mut [f32],
) {
    let len = match x {
        Rows::F32(x) => x.len(),
        Rows::Bf16(x) => x.len(),
    };
    let inner = len / weights.gate.cols() * weights.gate.outputs();
    scratch.gate.resize(inner, 0.0);
    scratch.up.resize(inner, 0.0);
    matmul(isa, x, weights.gate, &mut scratch.gate);
    matmul(isa, x, weights.up, &mut scratch.up);
    swiglu(&mut scratch.gate, &scratch.up);
    match x {
        Rows::F32(_) => matmul(isa, Rows::F32(&scratch.gate), weights.down, y),
        Rows::Bf16(_) => {
            round_rows(&scratch.gate, &mut scratch.narrow);
            matmul(isa, Rows::Bf16(&scratch.narrow), weights.down, y);
        }
    }
}
