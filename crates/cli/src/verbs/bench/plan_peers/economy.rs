//! Section `economy`: what copies buy on recorded routing by the fitted cost, and the expert time
//! that ranks wait for each other, planned on one half of the requests and judged on the other.

use super::fitted::{Cost, Way, fixed};
use super::held_out::gpt_oss;
use super::{Context, Figure, Target};
use crate::fail::Failure;
use crate::setting::Setting;
use crate::verbs::demo::assets;
use evenkeel_plan::{
    LayerSlots, Outcome, PlanError, PlanInput, pareto, peer, plan, plan_from_scratch, slack_slots,
};
use evenkeel_report::fmt;
use evenkeel_split::SplitTable;
use evenkeel_trace::{Routes, StepLoads, draw};
use evenkeel_types::{ExpertMap, ModelShape, Phase, Policy, Topology};

/// Decoding sequences, and prompt tokens of a prefill step, per rank.
const PER_RANK: [usize; 2] = [64, 1024];

/// Sampled steps that plan, and that judge.
const STEPS: (usize, usize) = (64, 128);

/// The same for prefill, whose steps are large and alike.
const PREFILL_STEPS: (usize, usize) = (16, 32);

/// Memory budgets tried on the way to the uniform plan's cost.
const BUDGETS: usize = 48;

/// Changes that the search for slack tries per layer.
const TRIES: usize = 800;

/// Most slots per rank and layer where copies go where they pay, of those of a map without copies.
const WIDTH: usize = 2;

/// A model's recorded requests on a machine.
struct Subject {
    shape: ModelShape,
    /// Those that plan, and those that judge.
    halves: (Routes, Routes),
    slices: usize,
    ranks: usize,
    /// Slots per rank with uniform redundancy.
    slots: usize,
}

impl Subject {
    fn window(&self, routes: &Routes, phase: Phase, steps: usize) -> Result<StepLoads, Failure> {
        let shares = vec![1.0; self.slices];
        let drawn = match phase {
            Phase::Decode => {
                draw::decode_loads(routes, &shares, self.ranks, PER_RANK[0], steps, 11)
            }
            Phase::Prefill => {
                draw::prefill_loads(routes, &shares, self.ranks, PER_RANK[1], steps, 11)
            }
        };
        drawn.map_err(Failure::input)
    }

    /// The setting with limits out of the way: the figures ask what a map can reach.
    fn setting(&self, hardware: &str, slots: usize) -> Result<Setting, Failure> {
        let topology = Topology::uniform(hardware, self.ranks as u16, 96 << 30);
        let mut policy = Policy::default();
        policy.plan.slots_per_rank = slots as u16;
        policy.plan.balancedness_enough = 1.0;
        policy.plan.gain_min_share = 0.0;
        policy.plan.gain_us_per_gb_min = 0.0;
        policy.moves.moves_max = u32::MAX;
        policy.moves.dwell_s = f64::MAX;
        Setting::new(self.shape.clone(), topology, hardware, policy)
    }

    /// Phases that both halves have tokens of: gpt-oss's prompts are not recorded.
    fn phases(&self) -> impl Iterator<Item = Phase> {
        let (planning, judging) = &self.halves;
        let prompts =
            |routes: &Routes| routes.requests().iter().any(|request| request.prompt_tokens > 0);
        let both = prompts(planning) && prompts(judging);
        Phase::ALL.into_iter().filter(move |phase| *phase == Phase::Decode || both)
    }

    /// Slots per rank without any redundancy.
    fn bare(&self) -> usize {
        usize::from(self.shape.experts).div_ceil(self.ranks)
    }

    fn peer(&self, window: &StepLoads) -> Vec<LayerSlots> {
        let totals = window.total();
        let layers = totals.chunks_exact(window.experts);
        layers.map(|loads| peer::eplb_global(loads, self.ranks, self.slots)).collect()
    }
}

pub(crate) fn measure(context: &Context<'_>) -> Result<Vec<Figure>, Failure> {
    let dir = tempfile::tempdir().map_err(|error| Failure::io("temporary folder", &error))?;
    let recorded = assets::recorded(&dir.path().join("recorded"))?;
    let lite = Subject {
        shape: recorded.shape,
        halves: draw::halves(&recorded.routes, 1),
        slices: recorded.slices.len(),
        ranks: 16,
        slots: 5,
    };
    let (shape, routes) = gpt_oss()?;
    let slices = routes.requests().iter().map(|request| request.slice.index() + 1).max();
    let oss = Subject {
        shape,
        halves: draw::halves(&routes, 1),
        slices: slices.unwrap_or(1),
        ranks: 8,
        slots: 5,
    };
    let mut figures = Vec::new();
    for (subject, name) in [(&lite, "V2-Lite EP16"), (&oss, "gpt-oss EP8")] {
        for hardware in hardware(context) {
            for phase in subject.phases() {
                let name = format!("{name}, {hardware}, {phase}");
                let _progress = context.progress(&format!("economy: copies, {name}"));
                figures.extend(copies(context, subject, &name, hardware, phase)?);
            }
        }
    }
    for hardware in hardware(context) {
        let _progress = context.progress(&format!("economy: excess, {hardware}"));
        figures.extend(excess(context, &lite, hardware)?);
    }
    Ok(figures)
}

fn hardware(context: &Context<'_>) -> Vec<&'static str> {
    if context.quick { vec!["h20"] } else { vec!["h20", "h100-sxm"] }
}

/// The planning question for expert time alone.
fn question<'a>(setting: &'a Setting, live: &'a ExpertMap, window: &'a StepLoads) -> PlanInput<'a> {
    PlanInput { exchange_us_per_row: 0.0, ..setting.question(live, None, window, 0.0, 1) }
}

/// The best of a plan from a fresh packing and the packing itself, with its table.
fn best(setting: &Setting, window: &StepLoads) -> Result<(ExpertMap, SplitTable), Failure> {
    let slots = usize::from(setting.policy.plan.slots_per_rank);
    let live = ExpertMap::contiguous(&setting.shape, setting.ranks(), slots);
    let packed = plan_from_scratch(question(setting, &live, window)).map_err(Failure::input)?;
    let better = plan(question(setting, &packed.map, window)).map_err(Failure::input)?;
    Ok(match better {
        Outcome::Plan(plan) => (plan.map, plan.split),
        Outcome::DoNothing(_) => (packed.map, packed.split),
    })
}

/// Copies until the slowest rank costs what it costs with uniform redundancy.
fn copies(
    context: &Context<'_>,
    subject: &Subject,
    name: &str,
    hardware: &str,
    phase: Phase,
) -> Result<Vec<Figure>, Failure> {
    let (planning, judging) = &subject.halves;
    let steps = if phase == Phase::Decode { STEPS } else { PREFILL_STEPS };
    let window = subject.window(planning, phase, context.runs(steps.0))?;
    let judges = subject.window(judging, phase, context.runs(steps.1))?;
    let setting = subject.setting(hardware, subject.slots)?;
    let cost = Cost::new(&setting, phase);
    let (uniform, table) = best(&setting, &window)?;
    let at = |map: &ExpertMap, table: &SplitTable, loads: &StepLoads| {
        Ok::<f64, Failure>(cost.judge(&map.slots, loads, Way::Fixed(&fixed(map, table)))?.slowest)
    };
    let ours = at(&uniform, &table, &window)?;
    let theirs = cost.judge(&subject.peer(&window), &window, Way::Even)?.slowest;
    let bare = subject.setting(hardware, subject.bare())?;
    let (start, _) = best(&bare, &window)?;
    let wide = subject.setting(hardware, subject.bare() * WIDTH)?;
    let curve = pareto(question(&wide, &start, &window), BUDGETS).map_err(Failure::input)?;
    let extra = (subject.slots - subject.bare()) * subject.ranks * window.layers;
    let mut curve_us = Vec::with_capacity(curve.len());
    for point in &curve {
        curve_us.push(at(&point.map, &point.split, &window)?);
    }
    let end = curve_us.last().copied().unwrap_or(f64::NAN);
    let none = curve_us.first().copied().unwrap_or(f64::NAN);
    let mut figures = Vec::new();
    for (whose, us) in [("uniform plan of ours", ours), ("vLLM's plan", theirs)] {
        let reached = curve_us.iter().position(|found| *found <= us).map(|place| &curve[place]);
        let held_out = match reached {
            Some(point) => format!(
                "{:.3} against {:.3} held out",
                at(&point.map, &point.split, &judges)? / 1e3,
                if whose.starts_with("vLLM") {
                    cost.judge(&subject.peer(&window), &judges, Way::Even)?.slowest
                } else {
                    at(&uniform, &table, &judges)?
                } / 1e3
            ),
            None => "not reached".to_owned(),
        };
        let most = reached.and_then(|point| point.copies_by_layer.iter().max().copied());
        let untouched = reached
            .map_or(0, |point| point.copies_by_layer.iter().filter(|copies| **copies == 0).count());
        figures.push(Figure {
            what: format!("{name}: copies for the cost of {whose}"),
            unit: "share",
            best_today: format!("{extra} copies, the same in every layer"),
            target: Target::AtMost(0.5),
            found: reached.map_or(f64::INFINITY, |point| point.copies as f64 / extra as f64),
            note: format!(
                "slowest rank, ms of expert time a step: {:.3} with {extra} copies; ours \
                 {:.3} without copies, {:.3} with as many as pay ({}); {} copies reach it, at most \
                 {} in a layer, none in {untouched} of {} layers; {held_out}",
                us / 1e3,
                none / 1e3,
                end / 1e3,
                curve.last().map_or(0, |point| point.copies),
                reached.map_or(0, |point| point.copies),
                most.unwrap_or(0),
                window.layers,
            ),
        });
    }
    Ok(figures)
}

/// Time that ranks wait for the slowest, decode, and the steps of both phases.
fn excess(
    context: &Context<'_>,
    subject: &Subject,
    hardware: &str,
) -> Result<Vec<Figure>, Failure> {
    let (planning, judging) = &subject.halves;
    let window = subject.window(planning, Phase::Decode, context.runs(STEPS.0))?;
    let judges = subject.window(judging, Phase::Decode, context.runs(STEPS.1))?;
    let setting = subject.setting(hardware, subject.slots)?;
    let cost = Cost::new(&setting, Phase::Decode);
    let peer = subject.peer(&window);
    let (map, table) = best(&setting, &window)?;
    let by_rows = fixed(&map, &table);
    let by_time = cost.timed(&map.slots, &window)?;
    let slack = slack(&map.slots, &window)?;
    // How far a static map gets that knows the judged steps themselves.
    let (known, _) = best(&setting, &judges)?;
    let known_time = cost.timed(&known.slots, &judges)?;
    let judge = |slots: &[LayerSlots], way: Way<'_>| cost.judge(slots, &judges, way);
    let theirs = judge(&peer, Way::Even)?;
    let all = [
        ("our map, its table", judge(&map.slots, Way::Fixed(&by_rows))?),
        ("our map, table by time", judge(&map.slots, Way::Fixed(&by_time))?),
        ("our map, rows split by step", judge(&map.slots, Way::Step)?),
        ("our map, time split by step", judge(&map.slots, Way::StepTimed)?),
        ("slack map, time split by step", judge(&slack, Way::StepTimed)?),
        ("vLLM's map, time split by step", judge(&peer, Way::StepTimed)?),
    ];
    let oracle = judge(&known.slots, Way::Fixed(&known_time))?;
    let best_today = format!(
        "vLLM's plan, even split: {} a step (measured in this run)",
        fmt::us(theirs.excess())
    );
    let mut figures = Vec::new();
    for (what, found) in &all {
        let target = match *what {
            "our map, table by time" | "our map, time split by step" => Target::AtMost(0.7),
            _ => Target::None,
        };
        let note = match target {
            Target::AtMost(_) => format!(
                "slowest and mean rank {} and {} a step, vLLM's {} and {}: copies that stay closed \
                 lower the mean too, and with it what this figure divides by; above vLLM's own mean \
                 the slowest rank keeps {} of vLLM's excess. A static map and table planned on the \
                 judged steps themselves keep {} ({} above vLLM's mean): what is left there is \
                 scatter of steps. {} judged steps of {} sequences",
                fmt::us(found.slowest),
                fmt::us(found.mean),
                fmt::us(theirs.slowest),
                fmt::us(theirs.mean),
                fmt::percent((found.slowest - theirs.mean) / theirs.excess()),
                fmt::percent(oracle.excess() / theirs.excess()),
                fmt::percent((oracle.slowest - theirs.mean) / theirs.excess()),
                judges.steps.len(),
                PER_RANK[0] * subject.ranks,
            ),
            _ => String::new(),
        };
        figures.push(Figure {
            what: format!("{hardware}: decode excess of vLLM's, {what}"),
            unit: "share",
            best_today: best_today.clone(),
            target,
            found: found.excess() / theirs.excess(),
            note,
        });
    }
    let ratio = |phase: &str, found: f64, note: &str| Figure {
        what: format!("{hardware}: {phase} expert time of vLLM's, our map, table by time"),
        unit: "ratio",
        best_today: "1 (measured in this run)".to_owned(),
        target: Target::AtMost(1.0),
        found,
        note: note.to_owned(),
    };
    figures.push(ratio("decode", all[1].1.slowest / theirs.slowest, "slowest rank, held out"));
    let cost = Cost::new(&setting, Phase::Prefill);
    let prompts = subject.window(planning, Phase::Prefill, context.runs(PREFILL_STEPS.0))?;
    let judges = subject.window(judging, Phase::Prefill, context.runs(PREFILL_STEPS.1))?;
    let by_time = cost.timed(&map.slots, &prompts)?;
    let ours = cost.judge(&map.slots, &judges, Way::Fixed(&by_time))?.slowest;
    let split = cost.judge(&map.slots, &judges, Way::Step)?.slowest;
    let theirs = cost.judge(&peer, &judges, Way::Even)?.slowest;
    let note = format!(
        "slowest rank, held out; both maps planned on decode, the table of the phase's own window; \
         rows split by step: {:.4}",
        split / theirs
    );
    figures.push(ratio("prefill", ours / theirs, &note));
    Ok(figures)
}

fn slack(start: &[LayerSlots], window: &StepLoads) -> Result<Vec<LayerSlots>, Failure> {
    let layer = |(layer, start): (usize, &LayerSlots)| -> Result<LayerSlots, PlanError> {
        let steps: Vec<Vec<u32>> =
            (0..window.steps.len()).map(|step| window.layer(step, layer).to_vec()).collect();
        slack_slots(start, &steps, TRIES, layer as u64)
    };
    let slots: Result<_, _> = start.iter().enumerate().map(layer).collect();
    slots.map_err(Failure::input)
}
