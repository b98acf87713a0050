//! The measurement tables that a profile is fitted to, by file stem.

use std::collections::BTreeMap;

use crate::error::CostError;
use crate::table::Table;

/// Decompressed text of the measurement tables, by stem (file name without `.csv` or `.csv.gz`).
///
/// Reading and decompressing is the caller's: this crate does no I/O.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    texts: BTreeMap<String, String>,
}

impl Tables {
    /// Files under `assets/measured-kernels/` that the built-in profiles are fitted to.
    pub const FILES: [&'static str; 18] = [
        "cpu_experts.csv",
        "cpu_memory_copy.csv",
        "deepep_low_latency.csv",
        "deepep_normal.csv.gz",
        "end_to_end_server_ep.csv.gz",
        "infersim_grouped_gemm_decode_h20.csv",
        "infersim_grouped_gemm_decode_h800.csv",
        "infersim_grouped_gemm_prefill_h20.csv",
        "infersim_grouped_gemm_prefill_h800.csv",
        "llmservingsim_qwen3-30b-a3b_rtxpro6000_moe.csv",
        "moe_a2a.csv.gz",
        "moe_kernel_by_model.csv.gz",
        "nccl_collectives.csv.gz",
        "wideep_sglang_mla_context.csv.gz",
        "wideep_sglang_mla_generation.csv.gz",
        "wideep_sglang_moe_decode.csv.gz",
        "wideep_sglang_moe_prefill.csv.gz",
        "wideep_trtllm_moe_with_and_without_eplb.csv.gz",
    ];

    /// The stem of a file name: what [`Tables::table`] is asked for.
    #[must_use]
    pub fn stem(file: &str) -> &str {
        let file = file.strip_suffix(".gz").unwrap_or(file);
        file.strip_suffix(".csv").unwrap_or(file)
    }

    /// Adds the text of one file.
    pub fn insert(&mut self, file: &str, text: String) {
        self.texts.insert(Self::stem(file).to_owned(), text);
    }

    /// Parses one table.
    ///
    /// # Errors
    /// [`CostError::NoTable`] where it was not given, or a malformed row.
    pub fn table(&self, stem: &str) -> Result<Table<'_>, CostError> {
        let text =
            self.texts.get(stem).ok_or_else(|| CostError::NoTable { table: stem.to_owned() })?;
        Table::parse(stem, text)
    }
}
