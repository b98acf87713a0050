//! Splits: time and optimality of the exact one, rounding of the table, and time in decode.

use super::{Context, Figure, Target, median_cpu_ms};
use crate::fail::Failure;
use crate::setting::Setting;
use crate::verbs::demo::assets;
use evenkeel_plan::peer;
use evenkeel_split::{SplitTable, StepSplitter, TimedInput, min_max_rows, timed_shares};
use evenkeel_trace::{StepLoads, draw};
use evenkeel_types::{ExpertId, ExpertMap, LayerId, ModelShape, Phase, Policy, RankId, Topology};

/// Splits per timed batch: one is too short for the clock.
const BATCH: usize = 200;

/// Ranks, slots per rank and sequences per rank of the decode comparison.
const DECODE: (usize, usize, usize) = (16, 5, 128);

/// Sampled decode steps that plan, and that judge.
const STEPS: usize = 48;

pub(crate) fn measure(context: &Context<'_>) -> Result<Vec<Figure>, Failure> {
    let mut figures = rows(context)?;
    figures.extend(decode(context)?);
    Ok(figures)
}

/// B1 under vLLM's algorithm's map (two copies on a rank are one host), loads after drift.
fn rows(context: &Context<'_>) -> Result<Vec<Figure>, Failure> {
    let problem = context.problem("B1")?;
    let loads = problem.drifted.as_ref().unwrap_or(&problem.loads);
    let shape = ModelShape {
        moe_layers: problem.layers as u16,
        experts: problem.experts as u16,
        groups: None,
        ..ModelShape::known("deepseek-v3").ok_or_else(|| Failure::input("no deepseek-v3"))?
    };
    let mut map = ExpertMap::contiguous(&shape, problem.ranks, problem.slots_per_rank());
    let (mut times, mut exact_times, mut worst) = (Vec::new(), Vec::new(), 1.0_f64);
    for layer in 0..problem.layers {
        let planned =
            peer::eplb_global(problem.layer(layer), problem.ranks, problem.slots_per_rank());
        map.slots[layer] = planned.into_iter().map(once).collect();
        let hosts = map.hosts(LayerId(layer as u16));
        let counts = &loads[layer * problem.experts..][..problem.experts];
        let mut splitter =
            StepSplitter::new(&hosts, &vec![1; problem.ranks]).map_err(Failure::input)?;
        let (ms, result) = median_cpu_ms(context.runs(9), || {
            for _ in 0..BATCH {
                splitter.split(std::hint::black_box(counts))?;
            }
            Ok(())
        });
        result.map_err(|error: evenkeel_split::SplitError| Failure::input(error))?;
        times.push(ms * 1e3 / BATCH as f64);
        let (ms, exact) =
            median_cpu_ms(context.runs(9), || min_max_rows(&hosts, counts, problem.ranks));
        exact_times.push(ms * 1e3);
        let most = splitter.rank_rows().iter().copied().max().unwrap_or(0);
        worst = worst.max(most as f64 / exact.map_err(Failure::input)?.max_rows);
    }
    let table = SplitTable::balanced(&map, loads).map_err(Failure::input)?;
    let loss: Vec<f64> =
        table.rounding().iter().map(|r| r.table_max_rows / r.exact_max_rows).collect();
    let worst_loss = loss.iter().copied().fold(1.0, f64::max);
    times.sort_by(f64::total_cmp);
    exact_times.sort_by(f64::total_cmp);
    let layers = problem.layers;
    let figure = |what: &str, unit, best_today: &str, target, found, note: String| Figure {
        what: what.to_owned(),
        unit,
        best_today: best_today.to_owned(),
        target,
        found,
        note,
    };
    Ok(vec![
        figure(
            "exact split of a step, 288 slots, 32 ranks, one layer",
            "us",
            "about 100 us on a GPU (LPLB, quoted)",
            Target::AtMost(20.0),
            times[layers / 2],
            format!(
                "median of {layers} layers of B1, drifted loads, whole rows; slowest {:.1} us; \
                 fractions of a row and every level (min_max_rows): {:.1} us",
                times[layers - 1],
                exact_times[layers / 2]
            ),
        ),
        figure(
            "its largest rank ÷ LP optimum, worst layer",
            "ratio",
            "under 1.000001 (open change to LPLB, quoted)",
            Target::AtMost(1.001),
            worst,
            "against min_max_rows, whose value tests compare with enumeration".to_owned(),
        ),
        figure(
            "static table of 64 ways ÷ exact, mean of layers",
            "ratio",
            "",
            Target::None,
            loss.iter().sum::<f64>() / layers as f64,
            format!("worst layer {worst_loss:.4}"),
        ),
    ])
}

/// A rank's experts, each once.
fn once(mut slots: Vec<Option<ExpertId>>) -> Vec<Option<ExpertId>> {
    for slot in 1..slots.len() {
        let (before, here) = slots.split_at_mut(slot);
        if before.contains(&here[0]) {
            here[0] = None;
        }
    }
    slots
}

/// DeepSeek-V2-Lite in decode on H20: slowest rank of held-out steps under four splits of one map.
fn decode(context: &Context<'_>) -> Result<Vec<Figure>, Failure> {
    let folder = tempfile::tempdir().map_err(|error| Failure::io("temporary folder", &error))?;
    let recorded = assets::recorded(&folder.path().join("trace"))?;
    let (ranks, slots, sequences) = DECODE;
    let topology = Topology::uniform("h20", ranks as u16, 96 << 30);
    let setting = Setting::new(recorded.shape.clone(), topology, "h20", Policy::default())?;
    let cost = setting.coefficients[Phase::Decode.index()];
    let mix = vec![1.0; recorded.slices.len()];
    let (planning, judging) = draw::halves(&recorded.routes, 1);
    let steps = context.runs(STEPS);
    let sample = |routes, seed| {
        draw::decode_loads(routes, &mix, ranks, sequences, steps, seed).map_err(Failure::input)
    };
    let (window, judges) = (sample(&planning, 3)?, sample(&judging, 4)?);
    let whole = |rows: u64| cost.slot_us(rows as u32) - cost.slot_us;
    // A table hands a copy ⌊m⌋ or ⌈m⌉ rows.
    let cell = |rows: f64| {
        let below = rows.floor();
        whole(below as u64) * (1.0 - rows + below) + whole(below as u64 + 1) * (rows - below)
    };
    let base = vec![cost.floor_us + cost.slot_us * slots as f64; ranks];
    let speed = vec![1.0; ranks];
    let totals = window.total();
    let mut sums = [0.0_f64; 5];
    for layer in 0..window.layers {
        let loads = &totals[layer * window.experts..][..window.experts];
        let placed = peer::eplb_global(loads, ranks, slots);
        let hosts = hosts(&placed, window.experts);
        let (seen, judged) = (by_expert(&window, layer), by_expert(&judges, layer));
        let input =
            TimedInput { hosts: &hosts, rows: &seen, steps, base_us: &base, inverse_speed: &speed };
        let timed = timed_shares(&input, cell).map_err(Failure::input)?;
        let level = min_max_rows(&hosts, loads, ranks).map_err(Failure::input)?;
        let even: Vec<Vec<f64>> =
            hosts.iter().map(|list| vec![1.0 / list.len() as f64; list.len()]).collect();
        for (sum, shares) in sums.iter_mut().zip([&even, &level.shares, &timed.shares]) {
            *sum += slowest(&hosts, &judged, steps, &base, shares, cell);
        }
        let mut splitter = StepSplitter::new(&hosts, &vec![1; ranks]).map_err(Failure::input)?;
        for step in 0..steps {
            let counts = judges.layer(step, layer);
            splitter.split(counts).map_err(Failure::input)?;
            let mut time = base.clone();
            for (expert, list) in hosts.iter().enumerate() {
                for (rank, rows) in list.iter().zip(splitter.rows(expert)) {
                    time[rank.index()] += whole(*rows);
                }
            }
            sums[3] += time.into_iter().fold(0.0, f64::max) / steps as f64;
            let us = splitter.split_timed(counts, &base, whole).map_err(Failure::input)?;
            sums[4] += us / steps as f64;
        }
    }
    let per_layer = sums.map(|sum| sum / window.layers as f64);
    let names = [
        "even split",
        "static min–max of rows",
        "static by time",
        "min–max of rows per step",
        "by time per step",
    ];
    let figure = |(name, us): (&str, f64)| Figure {
        what: format!("slowest rank of a layer, V2-Lite decode, EP16, 80 slots, H20: {name}"),
        unit: "us",
        best_today: format!("even split {:.2} us, this run", per_layer[0]),
        target: Target::None,
        found: us,
        note: String::new(),
    };
    let mut figures: Vec<Figure> = names.into_iter().zip(per_layer).map(figure).collect();
    figures[4].note = format!(
        "one map (the engines' algorithm), {sequences} sequences per rank, {steps} held-out steps, mean over layers"
    );
    Ok(figures)
}

fn hosts(slots: &[Vec<Option<ExpertId>>], experts: usize) -> Vec<Vec<RankId>> {
    let holds = |expert: usize| {
        let wanted = Some(ExpertId(expert as u16));
        let ranks = slots.iter().enumerate().filter(move |(_, held)| held.contains(&wanted));
        ranks.map(|(rank, _)| RankId(rank as u16)).collect()
    };
    (0..experts).map(holds).collect()
}

/// `[expert * steps + step]`, rows of one layer.
fn by_expert(loads: &StepLoads, layer: usize) -> Vec<f64> {
    let steps = loads.steps.len();
    let mut rows = vec![0.0; loads.experts * steps];
    for step in 0..steps {
        for (expert, count) in loads.layer(step, layer).iter().enumerate() {
            rows[expert * steps + step] = f64::from(*count);
        }
    }
    rows
}

/// Mean over steps of the slowest rank's time under static shares, µs.
fn slowest(
    hosts: &[Vec<RankId>],
    rows: &[f64],
    steps: usize,
    base: &[f64],
    shares: &[Vec<f64>],
    cell: impl Fn(f64) -> f64,
) -> f64 {
    let mut sum = 0.0;
    for step in 0..steps {
        let mut time = base.to_vec();
        for (expert, list) in hosts.iter().enumerate() {
            for (rank, share) in list.iter().zip(&shares[expert]) {
                time[rank.index()] += cell(rows[expert * steps + step] * share);
            }
        }
        sum += time.into_iter().fold(0.0, f64::max);
    }
    sum / steps as f64
}
