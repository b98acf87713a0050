//! Everything of a built-in profile but its experts: exchange, attention, products, engine.

use crate::attention::{AttentionProfile, Borrowed, ContextCurve, GenerationCurve, fit_attention};
use crate::basis::{Basis, Origin};
use crate::dense::{DenseProfile, DenseRates, EngineConstants};
use crate::error::CostError;
use crate::exchange::{
    Collectives, ExchangeProfile, LowLatencyCurve, NormalTables, OneNode, fit_collectives,
    fit_low_latency, fit_normal,
};
use crate::report::FitReport;
use crate::tables::Tables;

/// Kernel whose attention the built-in profiles carry; the others are fitted for the report.
const ATTENTION_KERNEL: &str = "fa3";
const OTHER_KERNEL: &str = "flashinfer";
/// NCCL version of the built-in profiles.
const NCCL: &str = "nccl-2.29.2";
/// Error stated for what H20 borrows (docs/cost-model.md).
const H20_ERROR: f64 = 0.2;

/// The fields of a profile that this module fits.
#[derive(Clone, Debug)]
pub struct Parts {
    /// Moving rows.
    pub exchange: ExchangeProfile,
    /// Attention.
    pub attention: AttentionProfile,
    /// Plain products.
    pub dense: DenseProfile,
    /// Engine constants.
    pub engine: EngineConstants,
    /// What the fits reached.
    pub report: FitReport,
}

/// Fits the parts of a built-in GPU profile: `h100-sxm`, `h200-sxm` or `h20`.
///
/// # Errors
/// An unknown name, or a table that is missing or unreadable.
pub fn fit_parts(tables: &Tables, device: &str) -> Result<Parts, CostError> {
    match device {
        "h100-sxm" => measured(tables, "h100_sxm", HOPPER_H100),
        "h200-sxm" => measured(tables, "h200_sxm", HOPPER_H200),
        "h20" => h20(tables),
        _ => Err(CostError::UnknownProfile {
            name: device.to_owned(),
            known: "h100-sxm, h200-sxm, h20".to_owned(),
        }),
    }
}

/// Plain products: typical values of the FP8 block kernels, written down, not fitted; whole
/// servers check them (docs/cost-model.md).
const HOPPER_H100: DenseRates = DenseRates {
    call_us: 4.0,
    weight_bytes_per_us: 2.85e6,
    fp8_ops_per_us: 0.9e9,
    bf16_ops_per_us: 0.6e9,
};
const HOPPER_H200: DenseRates = DenseRates { weight_bytes_per_us: 4.0e6, ..HOPPER_H100 };
/// 86 % of H20's 4.0 TB/s; rates as the measured grouped GEMM reaches them, bf16 at half.
const H20: DenseRates = DenseRates {
    call_us: 4.0,
    weight_bytes_per_us: 3.44e6,
    fp8_ops_per_us: 0.26e9,
    bf16_ops_per_us: 0.13e9,
};

/// SGLang with a CUDA graph for decode. δ is the median over the three SGLang servers of the table
/// (8, 22 and 56 µs); TensorRT-LLM's is 21 µs, on two nodes 30 µs.
fn engine() -> EngineConstants {
    EngineConstants {
        name: "sglang".to_owned(),
        gate_us: 8.0,
        layer_us: 20.0,
        step_us: 0.0,
        overlap_share: 0.0,
        prefill_host_floor: true,
    }
}

fn measured(tables: &Tables, system: &str, rates: DenseRates) -> Result<Parts, CostError> {
    let mut report = FitReport::default();
    let exchange = exchange(tables, system, &mut report)?;
    let (generation, context) =
        (tables.table("wideep_sglang_mla_generation")?, tables.table("wideep_sglang_mla_context")?);
    let (attention, lines) = fit_attention(&generation, &context, system, ATTENTION_KERNEL)?;
    report.extend(lines);
    report.extend(fit_attention(&generation, &context, system, OTHER_KERNEL)?.1);
    let note = "plain products and engine constants are typical values, checked on whole servers";
    let basis = Basis::new(Origin::Assumed, 0.15, note);
    Ok(Parts {
        exchange,
        attention,
        dense: DenseProfile { rates, basis },
        engine: engine(),
        report,
    })
}

fn exchange(
    tables: &Tables,
    system: &str,
    report: &mut FitReport,
) -> Result<ExchangeProfile, CostError> {
    let low_latency = fit_low_latency(&tables.table("deepep_low_latency")?, system)?;
    report.extend(low_latency.report);
    let normal = fit_normal(&tables.table("deepep_normal")?, system)?;
    report.extend(normal.report);
    let (collectives, lines) = fit_collectives(&tables.table("nccl_collectives")?, system, NCCL)?;
    report.extend(lines);
    Ok(ExchangeProfile {
        dispatch: low_latency.dispatch,
        combine: low_latency.combine,
        one_node_basis: low_latency.one_node_basis,
        multi_node_basis: low_latency.multi_node_basis,
        normal: normal.tables,
        normal_one_node_basis: normal.one_node_basis,
        normal_multi_node_basis: normal.multi_node_basis,
        collectives,
    })
}

/// H20 has no published exchange and no published attention: both are borrowed.
fn h20(tables: &Tables) -> Result<Parts, CostError> {
    let mut report = FitReport::default();
    let mut exchange = exchange(tables, "h100_sxm", &mut report)?;
    let note = "H100's exchange: same NVLink generation, network by the card's rate; measure it";
    let borrowed = Basis::new(Origin::Borrowed, H20_ERROR, note);
    for basis in [
        &mut exchange.one_node_basis,
        &mut exchange.multi_node_basis,
        &mut exchange.normal_one_node_basis,
        &mut exchange.normal_multi_node_basis,
    ] {
        *basis = basis.weaker(&borrowed);
    }
    let (generation, context) =
        (tables.table("wideep_sglang_mla_generation")?, tables.table("wideep_sglang_mla_context")?);
    let (h200, _) = fit_attention(&generation, &context, "h200_sxm", ATTENTION_KERNEL)?;
    // Peaks: 4.0 against 4.8 TB/s, 0.148 against 0.989 PF bf16. A machine with little compute
    // reaches nearly all of it, so projections take the rate of the measured grouped GEMM.
    let attention = h200.borrowed(&Borrowed {
        bytes: 4.0 / 4.8,
        ops: 0.148 / 0.989,
        projection_ops_per_us: H20.fp8_ops_per_us,
        error_share: H20_ERROR,
        note: "H200's attention by the peaks of memory and compute; measure it",
    });
    let note = "plain products by the rates of the grouped GEMM, engine constants typical values";
    let dense = DenseProfile { rates: H20, basis: Basis::new(Origin::Assumed, H20_ERROR, note) };
    // The lines of borrowed fits belong to the machines that they were measured on.
    Ok(Parts { exchange, attention, dense, engine: engine(), report: FitReport::default() })
}

/// What a machine without accelerators was measured to do.
#[derive(Clone, Copy, Debug)]
pub struct CpuRates {
    /// Fixed time of a copy between two ranks, µs.
    pub copy_start_us: f64,
    /// Rate of a copy, bytes/µs.
    pub copy_bytes_per_us: f64,
    /// Rate at which weights and KV are read, bytes/µs.
    pub read_bytes_per_us: f64,
    /// Rate of f32 products, operations/µs.
    pub ops_per_us: f64,
    /// Error stated.
    pub error_share: f64,
}

/// Parts of a CPU profile: ranks that copy through shared memory, plain kernels.
#[must_use]
pub fn cpu_parts(rates: &CpuRates) -> Parts {
    let note = "memory copies and plain products; no exchange was measured under load";
    let basis = Basis::new(Origin::Scaled, rates.error_share, note);
    let curve = LowLatencyCurve {
        one_node: OneNode {
            floor_us: 0.0,
            per_1000_experts_us: 0.0,
            per_1000_hidden_us: 0.0,
            start_us: rates.copy_start_us,
            bytes_per_us: rates.copy_bytes_per_us,
            message_us: 0.0,
            // A copy has no multiprocessors that few experts could leave idle.
            sm_bytes_per_us: 1e15,
            knee: 1.0,
        },
        lines: Vec::new(),
        line_shape: [1, 1],
        any_nodes: None,
    };
    let (read, ops) = (rates.read_bytes_per_us, rates.ops_per_us);
    Parts {
        exchange: ExchangeProfile {
            dispatch: curve.clone(),
            combine: curve,
            one_node_basis: basis.clone(),
            multi_node_basis: basis.weaker(&Basis::new(
                Origin::Assumed,
                0.5,
                "no network was measured",
            )),
            normal: NormalTables::default(),
            normal_one_node_basis: basis.clone(),
            normal_multi_node_basis: basis.clone(),
            collectives: Collectives::default(),
        },
        attention: AttentionProfile {
            kernel: "plain".to_owned(),
            generation: GenerationCurve {
                call_us: rates.copy_start_us,
                sequence_us: 0.0,
                weight_bytes_per_us: read,
                projection_ops_per_us: ops,
                kv_bytes_per_us: read,
                attention_ops_per_us: ops,
                length_us: 0.0,
            },
            generation_basis: basis.clone(),
            context: ContextCurve {
                host_us: 0.0,
                call_us: rates.copy_start_us,
                sequence_us: 0.0,
                projection_ops_per_us: ops,
                attention_ops_per_us: ops,
                token_us: 0.0,
                knee: 1.0,
            },
            context_basis: basis.clone(),
        },
        dense: DenseProfile {
            rates: DenseRates {
                call_us: 1.0,
                weight_bytes_per_us: read,
                fp8_ops_per_us: ops,
                bf16_ops_per_us: ops,
            },
            basis,
        },
        engine: EngineConstants {
            name: "embedded".to_owned(),
            gate_us: 1.0,
            layer_us: 1.0,
            step_us: 0.0,
            overlap_share: 0.0,
            prefill_host_floor: false,
        },
        report: FitReport::default(),
    }
}
