//! Rows times a stored matrix.

#[cfg(target_arch = "x86_64")]
use crate::isa::Level;
use crate::portable;
use half::bf16;

/// A stored matrix, `[outputs][cols]` row-major: the layout of checkpoints.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    data: Stored<'a>,
    cols: usize,
}

#[derive(Clone, Copy, Debug)]
enum Stored<'a> {
    F32(&'a [f32]),
    Bf16(&'a [bf16]),
}

impl<'a> Matrix<'a> {
    /// From f32 weights; `None` where `data` is not whole rows of `cols`.
    #[must_use]
    pub fn f32(data: &'a [f32], cols: usize) -> Option<Self> {
        whole(data.len(), cols).then_some(Self { data: Stored::F32(data), cols })
    }

    /// From bf16 weights; `None` where `data` is not whole rows of `cols`.
    #[must_use]
    pub fn bf16(data: &'a [bf16], cols: usize) -> Option<Self> {
        whole(data.len(), cols).then_some(Self { data: Stored::Bf16(data), cols })
    }

    /// Numbers in an input row.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Numbers in an output row.
    #[must_use]
    pub fn outputs(&self) -> usize {
        let len = match self.data {
            Stored::F32(data) => data.len(),
            Stored::Bf16(data) => data.len(),
        };
        len / self.cols
    }
}

fn whole(len: usize, cols: usize) -> bool {
    cols > 0 && len.is_multiple_of(cols)
}

/// Input rows, `[m][cols]`; their type chooses the arithmetic.
#[derive(Clone, Copy, Debug)]
pub enum Rows<'a> {
    /// Multiply in f32.
    F32(&'a [f32]),
    /// Multiply bf16 by bf16, add in f32. The matrix must be stored in bf16.
    Bf16(&'a [bf16]),
}

/// `y[m][n] = x[m] · w[n]` for `m` rows; `y` is `[m][w.outputs()]` and overwritten.
///
/// # Panics
/// Where lengths do not fit, or rows are bf16 and the matrix is not: a caller's fault.
pub fn matmul(isa: crate::Isa, x: Rows<'_>, w: Matrix<'_>, y: &mut [f32]) {
    let len = match x {
        Rows::F32(x) => x.len(),
        Rows::Bf16(x) => x.len(),
    };
    assert!(whole(len, w.cols), "{len} numbers are no rows of {}", w.cols);
    let rows = len / w.cols;
    assert_eq!(y.len(), rows * w.outputs(), "output of {rows} rows times {}", w.outputs());
    if y.is_empty() {
        return;
    }
    let cols = w.cols;
    match (x, w.data) {
        (Rows::F32(x), Stored::F32(w)) => times_f32(isa, x, w, cols, y),
        (Rows::F32(x), Stored::Bf16(w)) => times_widened(isa, x, w, cols, y),
        (Rows::Bf16(x), Stored::Bf16(w)) => times_bf16(isa, x, w, cols, y),
        (Rows::Bf16(_), Stored::F32(_)) => {
            assert_eq!("bf16 rows", "f32 weights", "rows are bf16, the matrix is f32");
        }
    }
}

fn times_f32(isa: crate::Isa, x: &[f32], w: &[f32], cols: usize, y: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if isa.0 >= Level::Avx512 {
        // SAFETY: the level says that the processor has AVX-512; lengths were checked.
        return unsafe { crate::avx512::matmul_f32(x, w, cols, y) };
    }
    isa.run(|| portable::matmul_f32(x, w, cols, y));
}

fn times_widened(isa: crate::Isa, x: &[f32], w: &[bf16], cols: usize, y: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if isa.0 >= Level::Avx512 {
        // SAFETY: as above.
        return unsafe { crate::avx512::matmul_widened(x, w, cols, y) };
    }
    isa.run(|| portable::matmul_f32(x, w, cols, y));
}

fn times_bf16(isa: crate::Isa, x: &[bf16], w: &[bf16], cols: usize, y: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if isa.0 >= Level::Avx512Bf16 {
        // SAFETY: as above, and BF16.
        return unsafe { crate::avx512::matmul_bf16(x, w, cols, y) };
    }
    isa.run(|| portable::matmul_bf16(x, w, cols, y));
}
