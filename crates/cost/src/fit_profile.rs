//! Fits a built-in profile to the measurement tables. `evenkeel calibrate` and a test call it; the
//! committed JSON under `profiles/` is its output.

use evenkeel_types::Phase;

use crate::calibrate::expert_rows;
use crate::error::CostError;
use crate::expert::{
    FusedKernel, GroupedDevice, fit_deepgemm, fit_fused, fit_grouped, fit_measured, fit_trtllm,
};
use crate::fit::non_negative;
use crate::parts::{CpuRates, Parts, cpu_parts, fit_parts};
use crate::profile::{ExpertEntry, ExpertModel, PROFILE_SCHEMA, Profile};
use crate::report::{FitLine, FitReport};
use crate::stats::ErrorStats;
use crate::tables::Tables;

/// Rows that enter one formula fit of the large tables: more change the constants by less than
/// the tables' noise.
const ROWS_PER_FIT: usize = 6000;
/// DeepGEMM prefill: host floors differ by version (0.39 and 0.9 ms), so one version is taken.
const PREFILL_VERSION: &str = "sglang-0.5.10";

/// Fits a built-in profile by name.
///
/// # Errors
/// An unknown name, or a table that is missing or unreadable.
pub fn fit_profile(name: &str, tables: &Tables) -> Result<Profile, CostError> {
    let (experts, mut report, identity) = match name {
        "h100-sxm" => hopper(tables, "h100_sxm", "NVIDIA H100 80GB HBM3, SXM")?,
        "h200-sxm" => hopper(tables, "h200_sxm", "NVIDIA H200 141GB HBM3e, SXM")?,
        "h20" => h20(tables)?,
        "cpu" => return fit_cpu(tables),
        _ => {
            return Err(CostError::UnknownProfile {
                name: name.to_owned(),
                known: Profile::BUILTIN.join(", "),
            });
        }
    };
    let parts = fit_parts(tables, name)?;
    report.extend(parts.report.clone());
    Ok(assemble(name, &identity, experts, parts, report))
}

fn assemble(
    name: &str,
    identity: &str,
    experts: Vec<ExpertEntry>,
    parts: Parts,
    report: FitReport,
) -> Profile {
    let Parts { exchange, attention, dense, engine, report: _ } = parts;
    Profile {
        schema: PROFILE_SCHEMA.to_owned(),
        name: name.to_owned(),
        identity: identity.to_owned(),
        experts,
        exchange,
        attention,
        dense,
        engine,
        report,
    }
}

type Experts = (Vec<ExpertEntry>, FitReport, String);

fn hopper(tables: &Tables, system: &str, device: &str) -> Result<Experts, CostError> {
    let mut entries = Vec::new();
    let mut report = FitReport::default();
    let mut take = |fitted: (ExpertEntry, FitReport)| {
        entries.push(fitted.0);
        report.extend(fitted.1);
    };
    let decode = tables.table("wideep_sglang_moe_decode")?;
    take(fit_deepgemm(&decode, system, None, Phase::Decode)?);
    let prefill = tables.table("wideep_sglang_moe_prefill")?;
    take(fit_deepgemm(&prefill, system, Some(PREFILL_VERSION), Phase::Prefill)?);
    let wide = tables.table("wideep_trtllm_moe_with_and_without_eplb")?;
    take(fit_trtllm(&wide, system, ROWS_PER_FIT)?);
    let fused = tables.table("moe_kernel_by_model")?;
    for kernel in FusedKernel::all() {
        if let Some(fitted) = fit_fused(&fused, system, &kernel, ROWS_PER_FIT)? {
            take(fitted);
        }
    }
    let identity = format!(
        "{device}; SGLang 0.5.6 and 0.5.10 (DeepGEMM), TensorRT-LLM 1.3.0rc10 (wide EP), \
         fused kernels of SGLang 0.5.14, TensorRT-LLM 1.3.0rc20, vLLM 0.24.0"
    );
    Ok((entries, report, identity))
}

fn h20(tables: &Tables) -> Result<Experts, CostError> {
    let mut entries = Vec::new();
    let mut report = FitReport::default();
    for (phase, stem) in [
        (Phase::Decode, "infersim_grouped_gemm_decode_h20"),
        (Phase::Prefill, "infersim_grouped_gemm_prefill_h20"),
    ] {
        let (entry, part) = fit_grouped(&tables.table(stem)?, &GroupedDevice::h20(phase), phase)?;
        entries.push(entry);
        report.extend(part);
    }
    // H800 checks the form on a device that reads its weights in a first tile.
    for (phase, stem) in [
        (Phase::Decode, "infersim_grouped_gemm_decode_h800"),
        (Phase::Prefill, "infersim_grouped_gemm_prefill_h800"),
    ] {
        let (_, part) = fit_grouped(&tables.table(stem)?, &GroupedDevice::h800(), phase)?;
        report.extend(part);
    }
    report.extend(activated_experts(tables)?);
    Ok((entries, report, "NVIDIA H20 96GB; grouped GEMM, FP8, balanced".to_owned()))
}

/// Fits the table that varies activated experts directly (RTX PRO 6000): a check of the form on a
/// device that no profile is made for.
fn activated_experts(tables: &Tables) -> Result<FitReport, CostError> {
    let table = tables.table("llmservingsim_qwen3-30b-a3b_rtxpro6000_moe")?;
    crate::expert::fit_activated(&table)
}

/// Fits the CPU profile from the tables that `examples/measure_cpu.rs` prints.
///
/// # Errors
/// A table that is missing or unreadable, or too short.
pub fn fit_cpu(tables: &Tables) -> Result<Profile, CostError> {
    let rows = expert_rows(&tables.table("cpu_experts")?)?;
    let (mut entry, mut report) = fit_measured("ndarray f32", &rows, None)?;
    "one thread, processor time, least of three".clone_into(&mut entry.basis.note);
    let (read, ops) = match &entry.model {
        ExpertModel::Tiles(model) => (model.weight_bytes_per_us, model.further_ops_per_us),
        ExpertModel::Rank { pooled, .. } => (pooled.weight_bytes_per_us, pooled.ops_per_us),
    };
    let (copy_start_us, copy_bytes_per_us, line) = copies(tables)?;
    report.rows.push(line);
    let rates = CpuRates {
        copy_start_us,
        copy_bytes_per_us,
        read_bytes_per_us: read,
        ops_per_us: ops,
        error_share: 0.3,
    };
    let identity = "AMD EPYC, one core of two shared; f32";
    Ok(assemble("cpu", identity, vec![entry], cpu_parts(&rates), report))
}

/// Start and rate of memory copies between pools larger than the cache.
fn copies(tables: &Tables) -> Result<(f64, f64, FitLine), CostError> {
    let table = tables.table("cpu_memory_copy")?;
    let [bytes, time] = table.columns(["bytes", "time_us"])?;
    let mut rows = Vec::new();
    for row in table.rows() {
        rows.push((row.positive(bytes)?, row.positive(time)?));
    }
    let features: Vec<Vec<f64>> = rows.iter().map(|(bytes, _)| vec![1.0, *bytes]).collect();
    let times: Vec<f64> = rows.iter().map(|(_, time)| *time).collect();
    let weights: Vec<f64> = times.iter().map(|t| 1.0 / (t * t)).collect();
    let line = non_negative(&features, &times, &weights);
    let [start, slope] = [line.first(), line.get(1)].map(|x| x.copied().unwrap_or(0.0).max(1e-9));
    let stats = ErrorStats::of(rows.iter().map(|(bytes, time)| (start + slope * bytes, *time)));
    let line =
        FitLine::new("memory copy, cpu", "all rows, none held out", rows.len(), &stats, None);
    Ok((start, 1.0 / slope, line))
}
