//! Loads as Python hands them over, and as the planner counts them.

use crate::error::{Refused, refuse};

/// Largest count of a layer after scaling: sums stay exact, and one count is a 17-millionth.
const SCALED_MAX: f64 = (1 << 24) as f64;

/// Load per layer and expert.
#[derive(Clone, Debug)]
pub(crate) struct Loads {
    /// Layers, at least 1.
    pub(crate) layers: usize,
    /// Experts per layer, at least 1.
    pub(crate) experts: usize,
    /// `[layer * experts + expert]` as given, finite and not negative.
    pub(crate) weight: Vec<f64>,
    /// The same as whole numbers. A layer of small whole numbers is taken as it is; any other is
    /// scaled so that its largest is [`SCALED_MAX`].
    pub(crate) counts: Vec<u32>,
}

impl Loads {
    /// Reads float64, little endian.
    pub(crate) fn read(bytes: &[u8], layers: usize, experts: usize) -> Result<Self, Refused> {
        if layers == 0 || experts == 0 {
            return refuse(format!("weight: {layers} x {experts}, expected at least 1 x 1"));
        }
        if experts > usize::from(u16::MAX) || layers > usize::from(u16::MAX) {
            return refuse(format!("weight: {layers} x {experts}, expected at most 65535 of each"));
        }
        if layers.checked_mul(experts * 8) != Some(bytes.len()) {
            return refuse(format!(
                "weight: {} bytes, expected {layers} x {experts} float64",
                bytes.len()
            ));
        }
        let mut weight = Vec::with_capacity(layers * experts);
        for (index, chunk) in bytes.chunks_exact(8).enumerate() {
            let mut raw = [0; 8];
            raw.copy_from_slice(chunk);
            let value = f64::from_le_bytes(raw);
            if !(value.is_finite() && value >= 0.0) {
                return refuse(format!(
                    "weight: layer {}, expert {} is {value}, expected a finite number of 0 or more",
                    index / experts,
                    index % experts
                ));
            }
            weight.push(value);
        }
        let scale: Vec<f64> = weight.chunks_exact(experts).map(scale_of).collect();
        let counts = weight
            .chunks_exact(experts)
            .zip(&scale)
            .flat_map(|(layer, scale)| layer.iter().map(move |load| (load * scale).round() as u32))
            .collect();
        Ok(Self { layers, experts, weight, counts })
    }

    /// Loads of one layer as given.
    pub(crate) fn layer(&self, layer: usize) -> &[f64] {
        &self.weight[layer * self.experts..][..self.experts]
    }

    /// Loads of one layer times a power of two that makes the largest about 1: squares stay finite,
    /// digits stay.
    pub(crate) fn rows(&self, layer: usize) -> Vec<f64> {
        let loads = self.layer(layer);
        let most = loads.iter().copied().fold(0.0, f64::max);
        let scale =
            if most > 0.0 { (-most.log2().floor().clamp(-1000.0, 1000.0)).exp2() } else { 1.0 };
        loads.iter().map(|load| load * scale).collect()
    }

    /// Loads of one layer as whole numbers.
    pub(crate) fn counts(&self, layer: usize) -> &[u32] {
        &self.counts[layer * self.experts..][..self.experts]
    }
}

fn scale_of(layer: &[f64]) -> f64 {
    let most = layer.iter().copied().fold(0.0, f64::max);
    let whole = layer.iter().all(|load| load.fract().abs() < f64::EPSILON);
    if most <= 0.0 || (whole && most <= f64::from(u32::MAX)) { 1.0 } else { SCALED_MAX / most }
}
