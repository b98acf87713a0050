//! Driving a group by hand: prompts in, logits out, and reference tensors read.

#![allow(clippy::unwrap_used, reason = "a test stops where it cannot go on")]
#![allow(dead_code, reason = "each test file uses its part")]

use evenkeel_engine::{Checkpoint, LocalGroup, Numerics, Share};
use evenkeel_kernels::{Choice, Isa};
use evenkeel_split::SplitTable;
use evenkeel_types::{ExpertId, ExpertMap};
use safetensors::SafeTensors;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Tensors of a reference file.
pub struct Reference {
    bytes: Vec<u8>,
}

impl Reference {
    pub fn read(name: &str) -> Self {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
        Self { bytes: std::fs::read(data.join(name).join("reference.safetensors")).unwrap() }
    }

    pub fn shape(&self, tensor: &str) -> Vec<usize> {
        SafeTensors::deserialize(&self.bytes).unwrap().tensor(tensor).unwrap().shape().to_vec()
    }

    /// The last axis of a tensor at an index of the others.
    fn words(&self, tensor: &str, at: &[usize]) -> Vec<[u8; 4]> {
        let file = SafeTensors::deserialize(&self.bytes).unwrap();
        let view = file.tensor(tensor).unwrap();
        let (last, axes) = view.shape().split_last().unwrap();
        assert_eq!(at.len(), axes.len(), "{tensor} has {axes:?} rows");
        let row = at.iter().zip(axes).fold(0, |row, (index, axis)| row * axis + index);
        view.data().as_chunks::<4>().0[row * last..(row + 1) * last].to_vec()
    }

    pub fn row(&self, tensor: &str, at: &[usize]) -> Vec<f32> {
        self.words(tensor, at).into_iter().map(f32::from_le_bytes).collect()
    }

    pub fn row_of_ids(&self, tensor: &str, at: &[usize]) -> Vec<u32> {
        self.words(tensor, at).into_iter().map(u32::from_le_bytes).collect()
    }
}

/// Folder of a model that the tests know.
pub fn folder(name: &str) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    match name {
        "tiny-moe" => here.join("../../assets/tiny-moe"),
        _ => here.join("tests/data").join(name),
    }
}

/// `copies[layer][expert]` → ranks, as a map.
pub fn map_of(ranks: usize, copies: &[Vec<Vec<usize>>]) -> ExpertMap {
    let experts = copies[0].len();
    let layer = |copies: &Vec<Vec<usize>>| {
        let mut slots = vec![Vec::new(); ranks];
        for (expert, hosts) in copies.iter().enumerate() {
            hosts.iter().for_each(|rank| slots[*rank].push(Some(ExpertId(expert as u16))));
        }
        slots
    };
    ExpertMap {
        schema: evenkeel_types::MAP_SCHEMA.to_owned(),
        model: "test".into(),
        model_revision: "1".into(),
        experts: experts as u16,
        version: 1,
        parent: None,
        slots: copies.iter().map(layer).collect(),
        digests: Vec::new(),
        provenance: evenkeel_types::Provenance::default(),
    }
}

/// Experts in order over the ranks.
pub fn contiguous(name: &str, ranks: usize) -> ExpertMap {
    let checkpoint = Checkpoint::open(&folder(name)).unwrap();
    let (layers, experts) = (checkpoint.config().layers, checkpoint.config().experts);
    map_of(ranks, &vec![(0..experts).map(|e| vec![e * ranks / experts]).collect(); layers])
}

/// What a layer showed: `[position][experts]` and `[position][top_k]`.
pub struct LayerShown {
    pub router_logits: Vec<f32>,
    pub choices: Vec<Choice>,
}

/// What a pass over tokens showed.
pub struct Pass {
    pub layers: Vec<LayerShown>,
    /// `[position]` → `[vocab]`.
    pub logits: Vec<Vec<f32>>,
}

/// A group with one sequence at a time, on rank 0.
pub struct Run {
    pub group: LocalGroup,
    blocks: Vec<u32>,
    ranks: usize,
}

impl Run {
    pub fn new(folder: &Path, numerics: Numerics, isa: Isa, map: &ExpertMap) -> Self {
        let checkpoint = Arc::new(Checkpoint::open(folder).unwrap());
        let split = SplitTable::even(map).unwrap();
        let group = LocalGroup::new(&checkpoint, numerics, isa, map, &split, 16).unwrap();
        Self { group, blocks: (0..16).rev().collect(), ranks: map.ranks() }
    }

    /// Feeds tokens from a position on and returns what each showed.
    pub fn feed(&mut self, ids: &[u32], from: usize) -> Pass {
        let mut shares = vec![Vec::new(); self.ranks];
        shares[0].push(Share {
            job: 1,
            context: from as u32,
            tokens: ids.to_vec(),
            blocks: self.blocks.clone(),
            choose: None,
        });
        let mut layers = Vec::new();
        self.group
            .step(&shares, |_, workers| {
                layers.push(LayerShown {
                    router_logits: workers[0].rank().router_logits().to_vec(),
                    choices: workers[0].rank().choices().to_vec(),
                });
            })
            .unwrap();
        let logits = (0..ids.len()).map(|token| {
            let mut logits = Vec::new();
            self.group.workers_mut()[0].rank_mut().logits(token, &mut logits);
            logits
        });
        Pass { logits: logits.collect(), layers }
    }

    pub fn prefill(&mut self, ids: &[u32]) -> Pass {
        self.feed(ids, 0)
    }

    /// Prefills, then takes the likeliest token `steps` times.
    pub fn greedy(&mut self, prompt: &[u32], steps: usize) -> Vec<u32> {
        let mut tokens = prompt.to_vec();
        let mut next = best(self.prefill(prompt).logits.last().unwrap());
        for _ in 1..steps {
            tokens.push(next);
            next = best(&self.feed(&[next], tokens.len() - 1).logits[0]);
        }
        tokens.push(next);
        tokens[prompt.len()..].to_vec()
    }
}

/// The likeliest token, the lowest id among equals.
pub fn best(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (id, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = id;
        }
    }
    best as u32
}

/// Largest difference.
pub fn largest(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}
