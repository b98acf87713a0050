//! The setting that several verbs share: a model on a machine, its cost curves, the policy.

use crate::fail::Failure;
use crate::load;
use clap::Args;
use evenkeel_cost::{AttentionLoad, CurveNote, ExpertCoefficients, StepModel};
use evenkeel_plan::{Objective, PlanInput, SearchEffort, SplitRule};
use evenkeel_sim::{GroupConfig, Role};
use evenkeel_split::SplitTable;
use evenkeel_trace::StepLoads;
use evenkeel_types::{ExpertMap, ModelShape, Phase, Policy, Topology};
use std::path::{Path, PathBuf};

/// Tokens in a KV block, as in vLLM's default.
const KV_BLOCK_TOKENS: u32 = 16;

/// Where and under which policy.
#[derive(Debug, Args)]
pub(crate) struct MachineArguments {
    /// Topology file, or PROFILE:RANKS for equal nodes of eight ranks, e.g. `h20:16`.
    #[arg(long, value_name = "FILE|PROFILE:RANKS")]
    pub(crate) topology: Option<String>,
    /// Cost profile, built in or a file; default: the topology's hardware.
    #[arg(long, value_name = "NAME|FILE")]
    pub(crate) profile: Option<String>,
    /// Policy file; default: every field at its default.
    #[arg(long, value_name = "FILE")]
    pub(crate) policy: Option<PathBuf>,
}

/// A model on a machine.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) shape: ModelShape,
    pub(crate) topology: Topology,
    pub(crate) model: StepModel,
    /// Decode and prefill coefficients of the expert curves, by `Phase::index`.
    pub(crate) coefficients: [ExpertCoefficients; 2],
    pub(crate) policy: Policy,
}

impl Setting {
    /// Resolves the arguments for a model; `recorded` is the trace's own topology, if it has one.
    pub(crate) fn load(
        arguments: &MachineArguments,
        shape: &ModelShape,
        recorded: Option<&Topology>,
    ) -> Result<Self, Failure> {
        let topology = match (&arguments.topology, recorded) {
            (Some(request), _) => topology(request)?,
            (None, Some(recorded)) => recorded.clone(),
            (None, None) => {
                return Err(Failure::input("--topology is missing and the trace has none")
                    .hint("e.g. `--topology h20:16`, or a file from `evenkeel init --topology`"));
            }
        };
        let profile = arguments.profile.as_deref().unwrap_or(&topology.hardware).to_owned();
        let policy = load::policy(arguments.policy.as_deref())?;
        Self::new(shape.clone(), topology, &profile, policy)
    }

    /// Resolves a profile by name for a model and a machine.
    pub(crate) fn new(
        shape: ModelShape,
        topology: Topology,
        profile: &str,
        policy: Policy,
    ) -> Result<Self, Failure> {
        let profile = load::profile(profile)?;
        let model = StepModel::resolve(&profile, &shape, &topology).map_err(Failure::input)?;
        let coefficients = Phase::ALL.map(|phase| model.experts(phase).coefficients());
        Ok(Self { shape, topology, model, coefficients, policy })
    }

    /// The same model and policy on a machine with other health.
    pub(crate) fn on(&self, topology: Topology, profile: &str) -> Result<Self, Failure> {
        Self::new(self.shape.clone(), topology, profile, self.policy.clone())
    }

    /// Number of ranks.
    pub(crate) fn ranks(&self) -> usize {
        self.topology.rank_count()
    }

    /// Limits of a group that runs `map`: KV blocks are what the fullest rank's memory leaves.
    pub(crate) fn group(
        &self,
        role: Role,
        sequences_per_rank: u32,
        map: &ExpertMap,
    ) -> Result<GroupConfig, Failure> {
        let copies = map.copies_per_rank();
        let ranks = self.topology.ranks();
        let left = ranks.iter().zip(&copies).map(|(rank, copies)| {
            self.policy.memory.kv_bytes(&self.shape, rank.hbm_bytes, *copies)
        });
        let bytes = left.min().unwrap_or(0);
        let block = self.shape.kv_bytes_per_token() * u64::from(KV_BLOCK_TOKENS);
        let blocks = u64::try_from(bytes).unwrap_or(0) / block.max(1);
        if blocks == 0 {
            return Err(Failure::input(format!(
                "map version {}: no memory is left for KV blocks on the fullest rank",
                map.version
            ))
            .hint("fewer slots per rank, or ranks with more memory"));
        }
        Ok(GroupConfig {
            role,
            decode_sequences_per_rank: sequences_per_rank,
            prefill_tokens_per_rank: 4096,
            prefill_steps_in_row_max: 4,
            kv_blocks_per_rank: u32::try_from(blocks).unwrap_or(u32::MAX),
            kv_block_tokens: KV_BLOCK_TOKENS,
        })
    }

    /// What a step costs whatever the map, µs: attention, the rest, and the part of the exchange
    /// that does not grow with rows (what does, a planner counts itself, row by row).
    pub(crate) fn fixed_us(&self, phase: Phase, tokens_per_rank: f64, context: f64) -> f64 {
        let tokens = tokens_per_rank.round().max(1.0) as u32;
        let sequences = if phase == Phase::Decode { tokens } else { 1 };
        let attention = AttentionLoad {
            sequences,
            new_tokens: tokens,
            context_tokens: (f64::from(sequences) * context) as u64,
            context_products: f64::from(tokens) * context,
        };
        let layer = self.model.attention_us(phase, &attention)
            + self.model.layer_rest_us(phase, tokens)
            + self.model.dispatch_us(phase, tokens_per_rank)
            + self.model.combine_us(phase, tokens_per_rank)
            - self.exchange_us_per_row(phase, tokens_per_rank)
                * tokens_per_rank
                * f64::from(self.shape.top_k);
        layer.max(0.0) * f64::from(self.shape.moe_layers) + self.model.step_rest_us(phase, tokens)
    }

    /// What one more (token, expert) row on the fullest rank adds to a layer's exchange, µs, at a
    /// load of `tokens_per_rank`.
    pub(crate) fn exchange_us_per_row(&self, phase: Phase, tokens_per_rank: f64) -> f64 {
        let both =
            |tokens| self.model.dispatch_us(phase, tokens) + self.model.combine_us(phase, tokens);
        let step = (tokens_per_rank / 10.0).max(1.0);
        let slope = (both(tokens_per_rank + step) - both(tokens_per_rank)) / step;
        slope / f64::from(self.shape.top_k)
    }

    /// The planning question for a live map and a window, decode or prefill.
    pub(crate) fn question<'a>(
        &'a self,
        live: &'a ExpertMap,
        live_split: Option<&'a SplitTable>,
        loads: &'a StepLoads,
        fixed_us: f64,
        seed: u64,
    ) -> PlanInput<'a> {
        let tokens: u64 = loads.steps.iter().map(|step| u64::from(step.tokens)).sum();
        let per_rank = tokens as f64 / loads.steps.len().max(1) as f64 / self.ranks() as f64;
        PlanInput {
            shape: &self.shape,
            topology: &self.topology,
            live,
            live_split,
            loads,
            coefficients: &self.coefficients[loads.phase.index()],
            exchange_us_per_row: self.exchange_us_per_row(loads.phase, per_rank),
            fixed_us,
            policy: &self.policy,
            seed,
            objective: Objective::StepTime,
            split: SplitRule::Balanced,
            effort: SearchEffort::Thorough,
            rank_extra_us: None,
            traffic: None,
        }
    }

    /// What the model is known to get wrong, one sentence per curve.
    pub(crate) fn model_notes(&self) -> Vec<String> {
        let sentence = |note: &CurveNote| {
            let support = if note.inside_support { "" } else { ", outside what was measured" };
            let percent = note.error_share * 100.0;
            format!(
                "{}: {}, ± {percent:.0} %{support}; {}",
                note.curve,
                note.origin.word(),
                note.text
            )
        };
        self.model.notes().iter().map(sentence).collect()
    }

    /// Checks a map against this model and machine: dimensions, revision, laws 2, 3 and 4.
    pub(crate) fn admit(
        &self,
        map: &ExpertMap,
        name: impl std::fmt::Display,
    ) -> Result<(), Failure> {
        map.fits(&self.shape, self.ranks())
            .map_err(|error| Failure::input(error).context(&name))?;
        let mut violations = map.violations();
        violations.extend(self.policy.memory.violations(map, &self.shape, &self.topology));
        match violations.first() {
            None => Ok(()),
            Some(first) => Err(Failure::input(format!(
                "{name}: the map breaks {} laws, the first: {first}",
                violations.len()
            ))
            .hint("`evenkeel check` lists them all")),
        }
    }
}

/// A topology file, or the shorthand `PROFILE:RANKS`.
pub(crate) fn topology(request: &str) -> Result<Topology, Failure> {
    if let Some((profile, ranks)) = request.split_once(':')
        && let Ok(ranks) = ranks.parse::<u64>()
    {
        let ranks = u16::try_from(ranks).map_err(|_| {
            Failure::input(format!("topology `{request}`: expected at most 4096 ranks"))
        })?;
        let topology = Topology::uniform(profile, ranks, load::hbm_bytes(profile)?);
        topology.validate().map_err(|error| Failure::input(error).context(request))?;
        return Ok(topology);
    }
    load::topology(Path::new(request))
}
