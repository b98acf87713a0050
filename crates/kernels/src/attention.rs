//! Grouped-query attention of one new token over paged KV.

use crate::Isa;
use crate::elementwise::{exp, row_sum};
use half::bf16;

/// Tokens per KV block.
pub const BLOCK_TOKENS: usize = 16;

/// A number as the KV cache stores it.
pub trait Stored: Copy + Default + Send + Sync + 'static {
    /// As f32.
    fn widen(self) -> f32;
    /// From f32, to nearest even.
    fn narrow(value: f32) -> Self;
}

impl Stored for f32 {
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
    #[inline(always)]
    fn narrow(value: f32) -> Self {
        value
    }
}

impl Stored for bf16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
    #[inline(always)]
    fn narrow(value: f32) -> Self {
        Self::from_f32(value)
    }
}

/// Heads of an attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionShape {
    /// Query heads, a multiple of `kv_heads`.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Numbers per head.
    pub head_dim: usize,
}

/// Keys and values of one layer and rank, in blocks of [`BLOCK_TOKENS`] tokens.
///
/// Keys lie `[block][kv_head][head_dim][token]`, so that the scores of a block are sixteen
/// independent sums; values lie `[block][kv_head][token][head_dim]`.
#[derive(Clone, Debug)]
pub struct KvLayer<S> {
    shape: AttentionShape,
    keys: Vec<S>,
    values: Vec<S>,
}

impl<S: Stored> KvLayer<S> {
    /// Room for so many blocks.
    #[must_use]
    pub fn new(shape: AttentionShape, blocks: usize) -> Self {
        let len = blocks * Self::per_block(shape);
        Self { shape, keys: vec![S::default(); len], values: vec![S::default(); len] }
    }

    fn per_block(shape: AttentionShape) -> usize {
        shape.kv_heads * shape.head_dim * BLOCK_TOKENS
    }

    /// Bytes of a block, keys and values.
    #[must_use]
    pub fn block_bytes(shape: AttentionShape) -> usize {
        2 * Self::per_block(shape) * size_of::<S>()
    }

    /// Puts a token's key and value rows, `[kv_heads][head_dim]` each, at a position of a sequence
    /// whose blocks are `table`.
    ///
    /// # Panics
    /// Where the table is too short or names a block that is not there: a caller's fault.
    pub fn put(&mut self, table: &[u32], position: usize, key: &[f32], value: &[f32]) {
        let head_dim = self.shape.head_dim;
        let (block, token) = (table[position / BLOCK_TOKENS] as usize, position % BLOCK_TOKENS);
        let start = block * Self::per_block(self.shape);
        let rows = key.chunks_exact(head_dim).zip(value.chunks_exact(head_dim));
        for (head, (key, value)) in rows.enumerate() {
            let start = start + head * head_dim * BLOCK_TOKENS;
            for (d, key) in key.iter().enumerate() {
                self.keys[start + d * BLOCK_TOKENS + token] = S::narrow(*key);
            }
            let values = &mut self.values[start + token * head_dim..][..head_dim];
            for (stored, value) in values.iter_mut().zip(value) {
                *stored = S::narrow(*value);
            }
        }
    }
}

/// Attention of one query row, `[heads][head_dim]`, over the first `keys` tokens of a sequence.
/// Scores are scaled by `head_dim^(-1/2)`. `out` is `[heads][head_dim]` and overwritten; `scores`
/// is scratch.
///
/// # Panics
/// Where lengths do not fit: a caller's fault.
pub fn attend<S: Stored>(
    isa: Isa,
    kv: &KvLayer<S>,
    table: &[u32],
    keys: usize,
    query: &[f32],
    scores: &mut Vec<f32>,
    out: &mut [f32],
) {
    let width = kv.shape.heads * kv.shape.head_dim;
    assert!(query.len() == width && out.len() == width, "query and output are rows of {width}");
    assert!(
        table.len() * BLOCK_TOKENS >= keys && keys > 0,
        "{keys} keys in {} blocks",
        table.len()
    );
    isa.run(|| attend_body(kv, table, keys, query, scores, out));
}

#[inline(always)]
fn attend_body<S: Stored>(
    kv: &KvLayer<S>,
    table: &[u32],
    keys: usize,
    query: &[f32],
    scores: &mut Vec<f32>,
    out: &mut [f32],
) {
    let AttentionShape { heads, kv_heads, head_dim } = kv.shape;
    let group = heads / kv_heads;
    let blocks = keys.div_ceil(BLOCK_TOKENS);
    let room = blocks * BLOCK_TOKENS;
    let scale = 1.0 / (head_dim as f32).sqrt();
    scores.resize(group * room, 0.0);
    for kv_head in 0..kv_heads {
        let queries = &query[kv_head * group * head_dim..][..group * head_dim];
        for (index, block) in table[..blocks].iter().enumerate() {
            let keys = kv.head_of(&kv.keys, *block, kv_head);
            for (head, query) in queries.chunks_exact(head_dim).enumerate() {
                let mut sums = [0.0_f32; BLOCK_TOKENS];
                for (query, keys) in query.iter().zip(keys.as_chunks::<BLOCK_TOKENS>().0) {
                    for (sum, key) in sums.iter_mut().zip(keys) {
                        *sum += query * key.widen();
                    }
                }
                let scores = &mut scores[head * room + index * BLOCK_TOKENS..][..BLOCK_TOKENS];
                for (score, sum) in scores.iter_mut().zip(sums) {
                    *score = sum * scale;
                }
            }
        }
        let out = &mut out[kv_head * group * head_dim..][..group * head_dim];
        out.fill(0.0);
        for head in 0..group {
            let scores = &mut scores[head * room..][..keys];
            let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            for score in scores.iter_mut() {
                *score = exp(*score - most);
            }
            let inverse = 1.0 / row_sum(scores, |value| value);
            for score in scores {
                *score *= inverse;
            }
        }
        for (index, block) in table[..blocks].iter().enumerate() {
            let values = kv.head_of(&kv.values, *block, kv_head);
            let tokens = (keys - index * BLOCK_TOKENS).min(BLOCK_TOKENS);
            for (head, out) in out.chunks_exact_mut(head_dim).enumerate() {
                let weights = &scores[head * room + index * BLOCK_TOKENS..][..tokens];
                for (weight, values) in weights.iter().zip(values.chunks_exact(head_dim)) {
                    for (out, value) in out.iter_mut().zip(values) {
                        *out += weight * value.widen();
                    }
                }
            }
        }
    }
}

impl<S: Stored> KvLayer<S> {
    #[inline(always)]
    fn head_of<'a>(&self, numbers: &'a [S], block: u32, kv_head: usize) -> &'a [S] {
        let per_head = self.shape.head_dim * BLOCK_TOKENS;
        &numbers[(block as usize * self.shape.kv_heads + kv_head) * per_head..][..per_head]
    }
}
