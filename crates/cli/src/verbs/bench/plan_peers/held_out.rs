//! Held-out decode steps of gpt-oss-20b: half of the requests plan, the other half judges.

use super::{Context, Figure, Target};
use crate::fail::Failure;
use crate::setting::Setting;
use evenkeel_interop::{ImportOptions, SourceFile, import_ids};
use evenkeel_plan::{
    LayerSlots, Objective, PlanInput, SplitRule, peer, plan_from_scratch, slack_slots,
};
use evenkeel_split::{SplitTable, StepSplitter};
use evenkeel_trace::{Routes, StepLoad, StepLoads, draw};
use evenkeel_types::{
    ExpertId, ExpertMap, LayerId, ModelShape, Phase, Policy, RankId, Topology, hash3,
};

const IDS: &[u8] = include_bytes!("../../../../../../assets/routing-gpt-oss-20b/topk_ids.npy.gz");

const REQUESTS: &[u8] = include_bytes!("../../../../../../assets/routing-gpt-oss-20b/requests.csv");

const RANKS: usize = 8;

const SLOTS_PER_RANK: usize = 5;

/// Sampled steps that plan, and that judge.
const STEPS: (usize, usize) = (64, 400);

/// Changes that the search for slack tries per layer.
const TRIES: usize = 3000;

/// The recorded requests of gpt-oss-20b.
pub(super) fn gpt_oss() -> Result<(ModelShape, Routes), Failure> {
    let shape = ModelShape::known("gpt-oss-20b")
        .ok_or_else(|| Failure::input("the shape of gpt-oss-20b is not known"))?;
    let file =
        |name: &str, bytes: &[u8]| SourceFile { name: name.to_owned(), bytes: bytes.to_vec() };
    let options = ImportOptions::new(shape.clone());
    let imported =
        import_ids(&[file("topk_ids.npy.gz", IDS)], &file("requests.csv", REQUESTS), &options)
            .map_err(Failure::input)?;
    Ok((shape, imported.routes))
}

pub(crate) fn measure(context: &Context<'_>) -> Result<Vec<Figure>, Failure> {
    let (shape, routes) = gpt_oss()?;
    let (planning, judging) = draw::halves(&routes, 1);
    let mut figures = Vec::new();
    for tokens in [128_usize, 512] {
        let _progress = context.progress(&format!("held_out: {tokens} tokens per step"));
        let window = steps(&planning, tokens, context.runs(STEPS.0), 7);
        let judges = steps(&judging, tokens, context.runs(STEPS.1), 8);
        let maps = Maps::plan(&shape, &window)?;
        let reuse = tokens as f64 / judging.requests().len() as f64;
        figures.extend(maps.judge(&judges, tokens, reuse)?);
    }
    Ok(figures)
}

/// Steps of `tokens` sequences, one token of each at a random phase; requests are drawn without
/// repetition until all are in the step, then again.
fn steps(routes: &Routes, tokens: usize, count: usize, seed: u64) -> StepLoads {
    let (layers, experts) = (routes.layers(), usize::from(routes.experts()));
    let requests = routes.requests();
    let step = |step: usize| {
        let mut order: Vec<usize> = (0..requests.len()).collect();
        order.sort_by_key(|index| hash3(seed, step as u64, *index as u64));
        let mut counts = vec![0; layers * experts];
        for sequence in 0..tokens {
            let request = &requests[order[sequence % order.len()]];
            let key = (sequence + 1) as u64 * 0x1_0000;
            let at = hash3(seed, step as u64, key) % u64::from(request.output_tokens().max(1));
            let token = request.first_token + request.prompt_tokens as usize + at as usize;
            for layer in 0..layers {
                for expert in routes.choices(token, layer) {
                    counts[layer * experts + usize::from(*expert)] += 1;
                }
            }
        }
        StepLoad { tokens: tokens as u32, counts }
    };
    StepLoads { phase: Phase::Decode, layers, experts, steps: (0..count).map(step).collect() }
}

/// Maps planned on one half.
struct Maps {
    vllm: Vec<LayerSlots>,
    ours: ExpertMap,
    table: SplitTable,
    slack: Vec<LayerSlots>,
}

impl Maps {
    fn plan(shape: &ModelShape, window: &StepLoads) -> Result<Self, Failure> {
        let totals = window.total();
        let experts = usize::from(shape.experts);
        let vllm = totals
            .chunks_exact(experts)
            .map(|loads| peer::eplb_global(loads, RANKS, SLOTS_PER_RANK))
            .collect();
        let topology = Topology::uniform("h20", RANKS as u16, 96 << 30);
        let mut policy = Policy::default();
        policy.plan.slots_per_rank = SLOTS_PER_RANK as u16;
        let setting = Setting::new(shape.clone(), topology, "h20", policy)?;
        let live = ExpertMap::contiguous(shape, RANKS, SLOTS_PER_RANK);
        let question = setting.question(&live, None, window, 0.0, 1);
        let question = PlanInput {
            objective: Objective::SummedTokens,
            split: SplitRule::Balanced,
            ..question
        };
        let plan = plan_from_scratch(question).map_err(Failure::input)?;
        let mut slack = Vec::with_capacity(window.layers);
        for (layer, start) in plan.map.slots.iter().enumerate() {
            let steps: Vec<Vec<u32>> =
                (0..window.steps.len()).map(|step| window.layer(step, layer).to_vec()).collect();
            slack.push(slack_slots(start, &steps, TRIES, layer as u64).map_err(Failure::input)?);
        }
        Ok(Self { vllm, ours: plan.map, table: plan.split, slack })
    }

    fn judge(&self, judges: &StepLoads, tokens: usize, reuse: f64) -> Result<Vec<Figure>, Failure> {
        let vllm_even = tails(&self.vllm, judges, Split::Even)?;
        let exact = |slots: &[LayerSlots]| tails(slots, judges, Split::Exact);
        let vllm_exact = exact(&self.vllm)?;
        let ours_table = tails(&self.ours.slots, judges, Split::Table(&self.table))?;
        let ours_exact = exact(&self.ours.slots)?;
        let slack_exact = exact(&self.slack)?;
        let base = excess(&vllm_even);
        let best_today = format!(
            "vLLM's plan, even split: {} by layer, measured in this run",
            range(&vllm_even)
        );
        let figure = |name: &str, found: &[f64], target: Target, note: &str| Figure {
            what: format!("p99 excess removed, {tokens} tokens: {name}"),
            unit: "share",
            best_today: best_today.clone(),
            target,
            found: 1.0 - excess(found) / base,
            note: format!("p99 {} by layer{note}", range(found)),
        };
        let setting = format!(
            ". Counts must be known to all ranks before dispatch. EP8, 40 slots, {} judged steps, \
             each request {reuse:.1} times in a step, mean over layers",
            judges.steps.len()
        );
        Ok(vec![
            figure("slack map, step split", &slack_exact, Target::AtLeast(0.65), &setting),
            figure("our map, step split", &ours_exact, Target::None, ""),
            figure("our map, its table", &ours_table, Target::None, ""),
            figure("vLLM's map, step split", &vllm_exact, Target::None, ""),
        ])
    }
}

/// How rows are split in a judged step.
#[derive(Clone, Copy)]
enum Split<'a> {
    /// Evenly over slots, two of one rank included.
    Even,
    /// By a static table.
    Table(&'a SplitTable),
    /// Exactly, anew.
    Exact,
}

/// `[layer]`: p99 over steps of largest ÷ mean rank.
fn tails(maps: &[LayerSlots], judges: &StepLoads, split: Split<'_>) -> Result<Vec<f64>, Failure> {
    let mut tails = Vec::with_capacity(maps.len());
    for (layer, slots) in maps.iter().enumerate() {
        let mut splitter = StepSplitter::new(&hosts(slots, judges.experts), &[1; RANKS])
            .map_err(Failure::input)?;
        let mut ratios = Vec::with_capacity(judges.steps.len());
        for step in 0..judges.steps.len() {
            let counts = judges.layer(step, layer);
            let rows: Vec<f64> = match split {
                Split::Even => even(slots, counts),
                Split::Table(table) => by_table(table, layer, counts),
                Split::Exact => {
                    splitter.split(counts).map_err(Failure::input)?;
                    splitter.rank_rows().iter().map(|rows| *rows as f64).collect()
                }
            };
            let most = rows.iter().copied().fold(0.0, f64::max);
            ratios.push(most * RANKS as f64 / rows.iter().sum::<f64>().max(1.0));
        }
        ratios.sort_by(f64::total_cmp);
        let place = (ratios.len() * 99).div_ceil(100).max(1) - 1;
        tails.push(ratios[place]);
    }
    Ok(tails)
}

/// `[expert]`: ranks that hold it, ascending.
pub(super) fn hosts(slots: &LayerSlots, experts: usize) -> Vec<Vec<RankId>> {
    let holds = |expert: usize| {
        let wanted = Some(ExpertId(expert as u16));
        let ranks = slots.iter().enumerate().filter(move |(_, held)| held.contains(&wanted));
        ranks.map(|(rank, _)| RankId(rank as u16)).collect()
    };
    (0..experts).map(holds).collect()
}

fn even(slots: &LayerSlots, counts: &[u32]) -> Vec<f64> {
    let mut copies = vec![0_u32; counts.len()];
    for expert in slots.iter().flatten().flatten() {
        copies[expert.index()] += 1;
    }
    let piece = |e: &ExpertId| f64::from(counts[e.index()]) / f64::from(copies[e.index()]);
    slots.iter().map(|held| held.iter().flatten().map(piece).sum()).collect()
}

fn by_table(table: &SplitTable, layer: usize, counts: &[u32]) -> Vec<f64> {
    let mut rows = vec![0.0; RANKS];
    for (expert, count) in counts.iter().enumerate() {
        for (rank, ways) in table.shares(LayerId(layer as u16), ExpertId(expert as u16)) {
            rows[rank.index()] += f64::from(*count) * f64::from(*ways) / SplitTable::WAYS as f64;
        }
    }
    rows
}

fn excess(tails: &[f64]) -> f64 {
    tails.iter().map(|tail| tail - 1.0).sum::<f64>() / tails.len().max(1) as f64
}

fn range(tails: &[f64]) -> String {
    let least = tails.iter().copied().fold(f64::INFINITY, f64::min);
    let most = tails.iter().copied().fold(0.0, f64::max);
    format!("{least:.3} to {most:.3}, mean {:.3}", 1.0 + excess(tails))
}
