//! All ranks of a group in one process, one after another: the virtual backend's arithmetic.

use crate::EngineError;
use crate::checkpoint::{Checkpoint, Numerics};
use crate::model::Model;
use crate::rank::Rank;
use crate::texts::Share;
use crate::worker::{LayerWork, Packet, Worker};
use evenkeel_kernels::{BLOCK_TOKENS, Isa};
use evenkeel_sim::Group;
use evenkeel_split::SplitTable;
use evenkeel_trace::RoutingRow;
use evenkeel_types::{ExpertId, ExpertMap};
use std::sync::Arc;

/// What a step did, layer by layer.
#[derive(Clone, Debug, Default)]
pub struct StepWork {
    /// `[layer * ranks + rank]`.
    pub ranks: Vec<LayerWork>,
    /// `[(layer * ranks + source) * ranks + host]`: token rows sent.
    pub sent: Vec<u32>,
    /// `[(layer * ranks + source) * ranks + host]`: outputs of experts that came back.
    pub returned: Vec<u32>,
    /// Who sent what to which copy, by layer, host, expert and source.
    pub routing: Vec<RoutingRow>,
}

impl StepWork {
    fn clear(&mut self, layers: usize, ranks: usize) {
        let Self { ranks: work, sent, returned, routing } = self;
        work.clear();
        work.resize(layers * ranks, LayerWork::default());
        for counts in [sent, returned] {
            counts.clear();
            counts.resize(layers * ranks * ranks, 0);
        }
        routing.clear();
    }
}

/// Ranks that share a process.
#[derive(Debug)]
pub struct LocalGroup {
    workers: Vec<Worker>,
    info: Group,
    hidden: usize,
    vocab: usize,
    numerics: Numerics,
    /// `[source][host]`: on the way to experts, and what each host sends back.
    packets: Vec<Vec<Packet>>,
    work: StepWork,
}

impl LocalGroup {
    /// Loads a model for every rank of a map.
    ///
    /// # Errors
    /// A map of other dimensions or that breaks a law; a checkpoint that cannot be loaded.
    pub fn new(
        checkpoint: &Arc<Checkpoint>,
        numerics: Numerics,
        isa: Isa,
        map: &ExpertMap,
        split: &SplitTable,
        kv_blocks: usize,
    ) -> Result<Self, EngineError> {
        let config = checkpoint.config();
        let bad = |problem: String| Err(EngineError::Map { problem });
        if map.layers() != config.layers || usize::from(map.experts) != config.experts {
            let (layers, experts) = (map.layers(), map.experts);
            return bad(format!(
                "{layers} layers of {experts} experts, the model has {} of {}",
                config.layers, config.experts
            ));
        }
        if let Some(violation) = map.violations().into_iter().next() {
            return bad(violation.to_string());
        }
        let worker = |rank: usize| -> Result<Worker, EngineError> {
            let holds = |layer: usize, expert: usize| {
                map.slots[layer][rank].contains(&Some(ExpertId(expert as u16)))
            };
            let model = Model::load(checkpoint, numerics, holds)?;
            Ok(Worker::new(Rank::new(model, isa, kv_blocks), rank as u16, split.clone()))
        };
        let workers: Vec<Worker> = (0..map.ranks()).map(worker).collect::<Result<_, _>>()?;
        let count = workers.len();
        Ok(Self {
            workers,
            info: Group {
                ranks: count as u16,
                layers: config.layers,
                experts: config.experts,
                top_k: config.top_k,
                map_version: map.version,
                map_digest: map.digest(),
            },
            hidden: config.hidden,
            vocab: config.vocab,
            numerics,
            packets: vec![vec![Packet::default(); count]; count],
            work: StepWork::default(),
        })
    }

    /// Tokens in a KV block.
    pub const BLOCK_TOKENS: usize = BLOCK_TOKENS;

    /// The ranks.
    #[must_use]
    pub fn workers(&self) -> &[Worker] {
        &self.workers
    }

    /// The ranks, to read logits.
    pub fn workers_mut(&mut self) -> &mut [Worker] {
        &mut self.workers
    }

    /// What the last step did.
    #[must_use]
    pub fn work(&self) -> &StepWork {
        &self.work
    }

    /// Dimensions.
    #[must_use]
    pub fn info(&self) -> &Group {
        &self.info
    }

    /// Tokens of the vocabulary.
    #[must_use]
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Bytes of a token's row on its way to experts, and of an expert's output on its way back.
    #[must_use]
    pub fn row_bytes(&self) -> [u64; 2] {
        let hidden = self.hidden as u64;
        match self.numerics {
            Numerics::F32 => [4 * hidden, 4 * hidden],
            Numerics::Bf16 => [2 * hidden, 4 * hidden],
        }
    }

    /// Runs all layers on `shares[rank]`. `watch(layer, ranks)` sees every layer after its router.
    ///
    /// # Errors
    /// A split that sends work to a rank without the expert.
    pub fn step(
        &mut self,
        shares: &[Vec<Share>],
        mut watch: impl FnMut(usize, &[Worker]),
    ) -> Result<(), EngineError> {
        let Self { workers, packets, work, info, .. } = self;
        let count = workers.len();
        work.clear(info.layers, count);
        for (worker, shares) in workers.iter_mut().zip(shares) {
            worker.begin(shares);
        }
        // [host][source] on the way in, [source][host] on the way back.
        let mut outputs = vec![vec![Vec::new(); count]; count];
        for layer in 0..info.layers {
            for (source, (worker, shares)) in workers.iter_mut().zip(shares).enumerate() {
                worker.dispatch(layer, shares, &mut packets[source]);
            }
            watch(layer, workers);
            for (host, worker) in workers.iter_mut().enumerate() {
                let incoming: Vec<Packet> =
                    packets.iter_mut().map(|of| std::mem::take(&mut of[host])).collect();
                for (source, packet) in incoming.iter().enumerate() {
                    let link = (layer * count + source) * count + host;
                    work.sent[link] = packet.rows;
                    work.returned[link] = packet.work.len() as u32;
                }
                worker.serve(layer, &incoming, &mut outputs[host]).map_err(|expert| {
                    let problem =
                        format!("the split sends {expert} of layer {layer} to rank {host}");
                    EngineError::Map { problem }
                })?;
                for (source, packet) in incoming.into_iter().enumerate() {
                    packets[source][host] = packet;
                }
            }
            for (source, worker) in workers.iter_mut().enumerate() {
                let returned: Vec<Vec<f32>> =
                    outputs.iter_mut().map(|of| std::mem::take(&mut of[source])).collect();
                worker.combine(layer, &returned);
                for (host, returned) in returned.into_iter().enumerate() {
                    outputs[host][source] = returned;
                }
                let (layer_work, routing) = worker.layer_work();
                work.ranks[layer * count + source] = *layer_work;
                work.routing.extend_from_slice(routing);
            }
        }
        Ok(())
    }
}
