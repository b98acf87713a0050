//! AVX-512 dot products in the crate's fixed order, several rows and outputs at a time.
//!
//! A tile is `M` rows by `N` outputs, each with one register of partial sums; so the shape of the
//! tile never shows in a result. Weights are streamed once per [`STRIPE`] of rows; the rows of the
//! next outputs are prefetched, since a stored row is often a whole page and the processor's own
//! prefetcher stops at pages.

use half::bf16;
use std::arch::x86_64::{
    __m128, __m512, __m512bh, __m512i, _MM_HINT_T1, _mm_mask_storeu_ps, _mm_prefetch,
    _mm256_maskz_loadu_epi16, _mm512_add_ps, _mm512_castps512_ps128, _mm512_castsi512_ps,
    _mm512_cvtepu16_epi32, _mm512_dpbf16_ps, _mm512_fmadd_ps, _mm512_maskz_compress_ps,
    _mm512_maskz_loadu_epi16, _mm512_maskz_loadu_ps, _mm512_permute_ps, _mm512_setzero_ps,
    _mm512_shuffle_f32x4, _mm512_slli_epi32,
};

/// Rows that are multiplied with a band of outputs before the next band: they stay in cache.
const STRIPE: usize = 64;

/// How one step of a dot product is done. `STEP` elements at a time, the last step masked.
trait Arithmetic {
    type X;
    type W;
    type Vector: Copy;
    const STEP: usize;

    /// # Safety
    /// `left` elements (at most `STEP`) must be readable, and the processor must have AVX-512.
    unsafe fn load_x(from: *const Self::X, left: usize) -> Self::Vector;
    /// # Safety
    /// As [`Arithmetic::load_x`].
    unsafe fn load_w(from: *const Self::W, left: usize) -> Self::Vector;
    /// # Safety
    /// The processor must have the instruction.
    unsafe fn step(sums: __m512, x: Self::Vector, w: Self::Vector) -> __m512;
}

struct F32;
struct Widened;
struct Bf16;

impl Arithmetic for F32 {
    type X = f32;
    type W = f32;
    type Vector = __m512;
    const STEP: usize = 16;

    #[inline(always)]
    unsafe fn load_x(from: *const f32, left: usize) -> __m512 {
        // SAFETY: the mask keeps the load within `left`.
        unsafe { _mm512_maskz_loadu_ps(mask16(left), from) }
    }

    #[inline(always)]
    unsafe fn load_w(from: *const f32, left: usize) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_maskz_loadu_ps(mask16(left), from) }
    }

    #[inline(always)]
    unsafe fn step(sums: __m512, x: __m512, w: __m512) -> __m512 {
        // SAFETY: the caller has the instruction.
        unsafe { _mm512_fmadd_ps(x, w, sums) }
    }
}

impl Arithmetic for Widened {
    type X = f32;
    type W = bf16;
    type Vector = __m512;
    const STEP: usize = 16;

    #[inline(always)]
    unsafe fn load_x(from: *const f32, left: usize) -> __m512 {
        // SAFETY: the mask keeps the load within `left`.
        unsafe { _mm512_maskz_loadu_ps(mask16(left), from) }
    }

    #[inline(always)]
    unsafe fn load_w(from: *const bf16, left: usize) -> __m512 {
        // SAFETY: the mask keeps the load within `left`; bf16 is the upper half of an f32.
        unsafe {
            let narrow = _mm256_maskz_loadu_epi16(mask16(left), from.cast());
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(narrow)))
        }
    }

    #[inline(always)]
    unsafe fn step(sums: __m512, x: __m512, w: __m512) -> __m512 {
        // SAFETY: the caller has the instruction.
        unsafe { _mm512_fmadd_ps(x, w, sums) }
    }
}

impl Arithmetic for Bf16 {
    type X = bf16;
    type W = bf16;
    type Vector = __m512i;
    const STEP: usize = 32;

    #[inline(always)]
    unsafe fn load_x(from: *const bf16, left: usize) -> __m512i {
        // SAFETY: the mask keeps the load within `left`.
        unsafe { _mm512_maskz_loadu_epi16(mask32(left), from.cast()) }
    }

    #[inline(always)]
    unsafe fn load_w(from: *const bf16, left: usize) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_maskz_loadu_epi16(mask32(left), from.cast()) }
    }

    #[inline(always)]
    unsafe fn step(sums: __m512, x: __m512i, w: __m512i) -> __m512 {
        // SAFETY: both types are 512 bits of the same lanes; the caller has the instruction.
        unsafe {
            _mm512_dpbf16_ps(
                sums,
                std::mem::transmute::<__m512i, __m512bh>(x),
                std::mem::transmute::<__m512i, __m512bh>(w),
            )
        }
    }
}

#[inline(always)]
fn mask16(left: usize) -> u16 {
    if left >= 16 { u16::MAX } else { (1 << left) - 1 }
}

#[inline(always)]
fn mask32(left: usize) -> u32 {
    if left >= 32 { u32::MAX } else { (1 << left) - 1 }
}

/// Adds the lanes of four registers in halves, each as `portable::fold` does.
#[inline(always)]
unsafe fn fold(sums: [__m512; 4]) -> __m128 {
    // SAFETY: the caller has AVX-512.
    unsafe {
        let [a, b, c, d] = sums;
        // Lanes 0–7 plus 8–15 of a and of b, and of c and of d.
        let halves = |a, b| {
            _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xee>(a, b))
        };
        let (ab, cd) = (halves(a, b), halves(c, d));
        // Four lanes of each, in order.
        let four = _mm512_add_ps(
            _mm512_shuffle_f32x4::<0x88>(ab, cd),
            _mm512_shuffle_f32x4::<0xdd>(ab, cd),
        );
        let two = _mm512_add_ps(four, _mm512_permute_ps::<0b01_00_11_10>(four));
        let one = _mm512_add_ps(two, _mm512_permute_ps::<0b10_11_00_01>(two));
        _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, one))
    }
}

/// One product: where the operands lie, and how long a row is.
struct Operands<A: Arithmetic> {
    x: *const A::X,
    w: *const A::W,
    y: *mut f32,
    cols: usize,
    outputs: usize,
}

/// One step of all dot products of a tile: `left` elements, masked where they are fewer than a step.
///
/// # Safety
/// `left` elements of `M` rows from `x` and `N` rows from `w` must lie within the operands.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "rows and outputs index registers, side by side")]
unsafe fn step_all<A: Arithmetic, const M: usize, const N: usize>(
    sums: &mut [[__m512; N]; M],
    at: &Operands<A>,
    x: *const A::X,
    w: *const A::W,
    left: usize,
    ahead: u8,
) {
    // SAFETY: the caller's promise; a prefetch may point anywhere.
    unsafe {
        let mut columns = [A::load_x(x, left); M];
        for (row, column) in columns.iter_mut().enumerate().skip(1) {
            *column = A::load_x(x.add(row * at.cols), left);
        }
        for output in 0..N {
            let from = w.add(output * at.cols);
            if ahead >> output & 1 != 0 {
                _mm_prefetch::<_MM_HINT_T1>(from.wrapping_add(N * at.cols).cast());
            }
            let weights = A::load_w(from, left);
            for row in 0..M {
                sums[row][output] = A::step(sums[row][output], columns[row], weights);
            }
        }
    }
}

/// `M` rows from `m` on times `N` outputs from `n` on.
///
/// # Safety
/// Rows and outputs must lie within the operands, and the processor must have the instructions.
#[inline(always)]
unsafe fn tile<A: Arithmetic, const M: usize, const N: usize>(
    at: &Operands<A>,
    m: usize,
    n: usize,
    ahead: u8,
) {
    // SAFETY: the caller's promise; `left` keeps every load within its row, and a prefetch may
    // point anywhere.
    unsafe {
        let mut sums = [[_mm512_setzero_ps(); N]; M];
        let x = at.x.add(m * at.cols);
        let w = at.w.add(n * at.cols);
        let whole = at.cols - at.cols % A::STEP;
        let mut start = 0;
        while start < whole {
            step_all::<A, M, N>(&mut sums, at, x.add(start), w.add(start), A::STEP, ahead);
            start += A::STEP;
        }
        if whole < at.cols {
            let left = at.cols - whole;
            step_all::<A, M, N>(&mut sums, at, x.add(whole), w.add(whole), left, ahead);
        }
        for (row, sums) in sums.iter().enumerate() {
            let mut four = [_mm512_setzero_ps(); 4];
            four[..N].copy_from_slice(sums);
            let y = at.y.add((m + row) * at.outputs + n);
            _mm_mask_storeu_ps(y, (1 << N) - 1, fold(four));
        }
    }
}

/// All rows of `from..to` times `N` outputs from `n` on.
///
/// # Safety
/// As [`tile`].
#[inline(always)]
unsafe fn band<A: Arithmetic, const N: usize>(at: &Operands<A>, from: usize, to: usize, n: usize) {
    let tiles = (to - from).div_ceil(4).min(4);
    let mut m = from;
    while m < to {
        // Every tile fetches a part of the next band, so that memory is never idle.
        let index = (m - from) / 4;
        let mine = |output: usize| index < tiles && output % tiles == index;
        let ahead = (0..N).fold(0, |mask, output| mask | u8::from(mine(output)) << output);
        // SAFETY: at most `to - m` rows are taken.
        unsafe {
            match to - m {
                1 => tile::<A, 1, N>(at, m, n, ahead),
                2 => tile::<A, 2, N>(at, m, n, ahead),
                3 => tile::<A, 3, N>(at, m, n, ahead),
                _ => tile::<A, 4, N>(at, m, n, ahead),
            }
        }
        m += 4.min(to - m);
    }
}

/// The whole product.
///
/// # Safety
/// `x` is `rows × cols`, `w` is `outputs × cols`, `y` is `rows × outputs`; the processor must have
/// the instructions.
#[inline(always)]
unsafe fn product<A: Arithmetic>(at: &Operands<A>, rows: usize) {
    let mut from = 0;
    while from < rows {
        let to = (from + STRIPE).min(rows);
        let mut n = 0;
        // SAFETY: a band ends within the outputs.
        unsafe {
            while n + 4 <= at.outputs {
                band::<A, 4>(at, from, to, n);
                n += 4;
            }
            while n < at.outputs {
                band::<A, 1>(at, from, to, n);
                n += 1;
            }
        }
        from = to;
    }
}

/// # Safety
/// The processor must have AVX-512 F, BW, VL and DQ; lengths must fit (see `crate::matmul`).
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512dq")]
pub(crate) unsafe fn matmul_f32(x: &[f32], w: &[f32], cols: usize, y: &mut [f32]) {
    let outputs = w.len() / cols;
    let at = Operands::<F32> { x: x.as_ptr(), w: w.as_ptr(), y: y.as_mut_ptr(), cols, outputs };
    // SAFETY: the caller's promise.
    unsafe { product(&at, x.len() / cols) }
}

/// # Safety
/// As [`matmul_f32`].
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512dq")]
pub(crate) unsafe fn matmul_widened(x: &[f32], w: &[bf16], cols: usize, y: &mut [f32]) {
    let outputs = w.len() / cols;
    let at = Operands::<Widened> { x: x.as_ptr(), w: w.as_ptr(), y: y.as_mut_ptr(), cols, outputs };
    // SAFETY: the caller's promise.
    unsafe { product(&at, x.len() / cols) }
}

/// # Safety
/// As [`matmul_f32`], and AVX-512-BF16.
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
pub(crate) unsafe fn matmul_bf16(x: &[bf16], w: &[bf16], cols: usize, y: &mut [f32]) {
    let outputs = w.len() / cols;
    let at = Operands::<Bf16> { x: x.as_ptr(), w: w.as_ptr(), y: y.as_mut_ptr(), cols, outputs };
    // SAFETY: the caller's promise.
    unsafe { product(&at, x.len() / cols) }
}
