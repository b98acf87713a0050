//! A checkpoint on disk: `config.json` and safetensors files, mapped, never copied whole.

mod config;

pub use config::{Architecture, ModelConfig};

use crate::EngineError;
use evenkeel_kernels::{Matrix, bf16};
use evenkeel_transport::Mapping;
use half::f16;
use half::slice::HalfFloatSliceExt;
use safetensors::tensor::TensorInfo;
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A folder with a model in Hugging Face's form.
#[derive(Debug)]
pub struct Checkpoint {
    folder: PathBuf,
    config: ModelConfig,
    files: Vec<(PathBuf, Mapping)>,
    tensors: BTreeMap<String, Place>,
}

#[derive(Clone, Debug)]
struct Place {
    file: usize,
    bytes: Range<usize>,
    dtype: Dtype,
    shape: Vec<usize>,
}

/// Weights as an engine keeps them: mapped where they can be used as they are, else converted.
#[derive(Clone, Debug)]
pub(crate) struct Weights {
    kind: Kind,
    cols: usize,
}

#[derive(Clone, Debug)]
enum Kind {
    MappedF32 { file: usize, bytes: Range<usize> },
    MappedBf16 { file: usize, bytes: Range<usize> },
    F32(Vec<f32>),
    Bf16(Vec<bf16>),
}

/// Which arithmetic multiplies rows by weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numerics {
    /// Rows and weights in f32; stored weights are widened. The mode of reference comparisons.
    F32,
    /// Rows and weights rounded to bf16, sums in f32. The mode of speed.
    Bf16,
}

/// `model.safetensors`, or the files that `model.safetensors.index.json` lists.
fn weight_files(folder: &Path) -> Result<Vec<PathBuf>, EngineError> {
    let one = folder.join("model.safetensors");
    let index = folder.join("model.safetensors.index.json");
    if one.is_file() || !index.is_file() {
        return Ok(vec![one]);
    }
    let text = std::fs::read_to_string(&index)
        .map_err(|source| EngineError::Read { path: index.clone(), source })?;
    let list: Index = serde_json::from_str(&text)
        .map_err(|source| EngineError::Json { path: index.clone(), source })?;
    let names: BTreeSet<String> = list.weight_map.into_values().collect();
    let plain = |name: &String| Path::new(name).file_name() == Some(name.as_ref());
    match names.iter().find(|name| !plain(name)) {
        Some(name) => Err(EngineError::Safetensors {
            path: index,
            problem: format!("lists `{name}`, expected the name of a file beside it"),
        }),
        None => Ok(names.into_iter().map(|name| folder.join(name)).collect()),
    }
}

/// Which file holds which tensor.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Checkpoint {
    /// Opens a folder and reads its config and the tables of its tensors.
    ///
    /// # Errors
    /// A file that is absent, cut short or no safetensors file; a config that is not supported.
    pub fn open(folder: &Path) -> Result<Self, EngineError> {
        let config = ModelConfig::read(folder)?;
        let names = weight_files(folder)?;
        let mut checkpoint =
            Self { folder: folder.to_owned(), config, files: Vec::new(), tensors: BTreeMap::new() };
        for path in names {
            checkpoint.add(path)?;
        }
        Ok(checkpoint)
    }

    fn add(&mut self, path: PathBuf) -> Result<(), EngineError> {
        let mapping = Mapping::open(&path)
            .map_err(|source| EngineError::Read { path: path.clone(), source })?;
        let broken = |problem: String| EngineError::Safetensors { path: path.clone(), problem };
        let (length, metadata) =
            SafeTensors::read_metadata(&mapping).map_err(|error| broken(error.to_string()))?;
        let start = length + size_of::<u64>();
        let tensors: BTreeMap<String, &TensorInfo> = metadata.tensors().into_iter().collect();
        for (name, info) in tensors {
            let (from, to) = info.data_offsets;
            let bytes = start + from..start + to;
            if bytes.end > mapping.len() {
                return Err(broken(format!("tensor `{name}` ends beyond the file")));
            }
            let file = self.files.len();
            let place = Place { file, bytes, dtype: info.dtype, shape: info.shape.clone() };
            if self.tensors.insert(name.clone(), place).is_some() {
                return Err(broken(format!("tensor `{name}` is in an earlier file too")));
            }
        }
        self.files.push((path, mapping));
        Ok(())
    }

    /// The model's dimensions.
    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn place(&self, name: &str, shape: &[usize]) -> Result<&Place, EngineError> {
        let folder = || self.folder.clone();
        let place = self
            .tensors
            .get(name)
            .ok_or_else(|| EngineError::Missing { folder: folder(), tensor: name.to_owned() })?;
        if place.shape != shape {
            return Err(EngineError::Shape {
                folder: folder(),
                tensor: name.to_owned(),
                found: place.shape.clone(),
                expected: shape.to_vec(),
            });
        }
        Ok(place)
    }

    fn bytes(&self, place: &Place) -> &[u8] {
        &self.files[place.file].1[place.bytes.clone()]
    }

    /// A tensor of any shape as f32, finite throughout: norms and biases.
    pub(crate) fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, EngineError> {
        let place = self.place(name, &[len])?;
        self.widened(name, place)
    }

    fn widened(&self, name: &str, place: &Place) -> Result<Vec<f32>, EngineError> {
        let bytes = self.bytes(place);
        let pairs = || bytes.as_chunks::<2>().0.iter().map(|b| u16::from_le_bytes(*b));
        let values: Vec<f32> = match place.dtype {
            Dtype::F32 => bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
            Dtype::BF16 => pairs().map(|bits| bf16::from_bits(bits).to_f32()).collect(),
            Dtype::F16 => {
                let halves: Vec<f16> = pairs().map(f16::from_bits).collect();
                let mut values = vec![0.0; halves.len()];
                halves.convert_to_f32_slice(&mut values);
                values
            }
            other => {
                let (folder, tensor) = (self.folder.clone(), name.to_owned());
                return Err(EngineError::Dtype { folder, tensor, found: format!("{other:?}") });
            }
        };
        if let Some(index) = values.iter().position(|value| !value.is_finite()) {
            let (folder, tensor) = (self.folder.clone(), name.to_owned());
            return Err(EngineError::NotFinite { folder, tensor, index, value: values[index] });
        }
        Ok(values)
    }

    /// A matrix `[rows][cols]` for the given arithmetic: mapped where its stored form can be used.
    pub(crate) fn matrix(
        &self,
        name: &str,
        rows: usize,
        cols: usize,
        numerics: Numerics,
    ) -> Result<Weights, EngineError> {
        let place = self.place(name, &[rows, cols])?;
        let (file, bytes) = (place.file, place.bytes.clone());
        let raw = self.bytes(place);
        let kind = match (place.dtype, numerics) {
            (Dtype::BF16, _) if bytemuck::try_cast_slice::<u8, u16>(raw).is_ok() => {
                self.check_bf16(name, raw)?;
                Kind::MappedBf16 { file, bytes }
            }
            (Dtype::F32, Numerics::F32) if bytemuck::try_cast_slice::<u8, f32>(raw).is_ok() => {
                self.widened(name, place)?;
                Kind::MappedF32 { file, bytes }
            }
            (_, Numerics::F32) => Kind::F32(self.widened(name, place)?),
            (_, Numerics::Bf16) => {
                let wide = self.widened(name, place)?;
                Kind::Bf16(wide.into_iter().map(bf16::from_f32).collect())
            }
        };
        Ok(Weights { kind, cols })
    }

    /// Refuses NaN and infinity: a router fed by them would send every token to one expert.
    fn check_bf16(&self, name: &str, raw: &[u8]) -> Result<(), EngineError> {
        let bits: &[u16] = bytemuck::try_cast_slice(raw).unwrap_or_default();
        match bits.iter().position(|bits| bits & 0x7f80 == 0x7f80) {
            None => Ok(()),
            Some(index) => Err(EngineError::NotFinite {
                folder: self.folder.clone(),
                tensor: name.to_owned(),
                index,
                value: bf16::from_bits(bits[index]).to_f32(),
            }),
        }
    }

    /// The matrix behind weights of this checkpoint.
    pub(crate) fn view<'a>(&'a self, weights: &'a Weights) -> Matrix<'a> {
        let mapped = |file: &usize, bytes: &Range<usize>| &self.files[*file].1[bytes.clone()];
        let found = match &weights.kind {
            Kind::MappedF32 { file, bytes } => {
                Matrix::f32(bytemuck::cast_slice(mapped(file, bytes)), weights.cols)
            }
            Kind::MappedBf16 { file, bytes } => {
                let bits: &[u16] = bytemuck::cast_slice(mapped(file, bytes));
                Matrix::bf16(bytemuck::cast_slice(bits), weights.cols)
            }
            Kind::F32(values) => Matrix::f32(values, weights.cols),
            Kind::Bf16(values) => Matrix::bf16(values, weights.cols),
        };
        // `matrix` checked that the tensor is whole rows.
        found.unwrap_or_else(|| unreachable!("weights are whole rows"))
    }

    /// Row `row` of a matrix, widened.
    pub(crate) fn row(&self, weights: &Weights, row: usize, into: &mut [f32]) {
        let cols = weights.cols;
        let range = row * cols..(row + 1) * cols;
        let widen = |values: &[bf16], into: &mut [f32]| {
            for (into, value) in into.iter_mut().zip(values) {
                *into = value.to_f32();
            }
        };
        let mapped = |file: &usize, bytes: &Range<usize>| &self.files[*file].1[bytes.clone()];
        match &weights.kind {
            Kind::F32(values) => into.copy_from_slice(&values[range]),
            Kind::Bf16(values) => widen(&values[range], into),
            Kind::MappedF32 { file, bytes } => {
                let values: &[f32] = bytemuck::cast_slice(mapped(file, bytes));
                into.copy_from_slice(&values[range]);
            }
            Kind::MappedBf16 { file, bytes } => {
                let values: &[u16] = bytemuck::cast_slice(mapped(file, bytes));
                widen(bytemuck::cast_slice(&values[range]), into);
            }
        }
    }
}
