//! What does a row become? Matrix kernels whose answer for a row depends on nothing but the row.
//!
//! An expert-parallel engine may run a token's row alone or among others, in any order, on any
//! rank. Here that never shows: every kernel reduces each row in one fixed order, given below, and
//! no blocking, batch size or neighbour changes it. So the outputs of two maps can be compared
//! with `==`.
//!
//! **The fixed orders.** A dot product keeps [`LANES`] partial sums; element `i` goes to lane
//! `i mod 16` by a fused multiply-add, in ascending `i`, and the lanes are added in halves (8, 4,
//! 2, 1). With bf16 rows (see [`Rows`]) lane `l` takes the pair `2l`, `2l + 1` of every 32
//! elements, as `VDPBF16PS` does. Attention sums over `head_dim` and over keys one after another.
//! Everything else works element by element.
//!
//! **Two arithmetics**, chosen by the type of the rows: [`Rows::F32`] multiplies in f32 whatever
//! the weights are stored in; [`Rows::Bf16`] multiplies bf16 by bf16 and adds in f32. The f32
//! arithmetic gives the same bits on every [`Isa`]; the bf16 one gives the same bits on all that
//! emulate, and differs from the hardware instruction by what that one rounds in between (within
//! `2^-16` of the sum of magnitudes, tested).
//!
//! **Invariants.** Nothing here allocates per row, spawns threads or reads a clock. `unsafe` is
//! confined to SIMD: loads whose bounds the safe callers check, and calls into code compiled for
//! an instruction set that [`Isa::detect`] has found.

mod attention;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod elementwise;
mod experts;
mod isa;
mod matmul;
mod portable;
mod router;

pub use attention::{AttentionShape, BLOCK_TOKENS, KvLayer, Stored, attend};
pub use elementwise::{Rope, accumulate, exp, rms_norm, round_rows, softmax, swiglu};
pub use experts::{ExpertScratch, ExpertWeights, run_expert};
pub use half::bf16;
pub use isa::Isa;
pub use matmul::{Matrix, Rows, matmul};
pub use router::{Choice, choose};

/// Partial sums of a dot product.
pub const LANES: usize = 16;
