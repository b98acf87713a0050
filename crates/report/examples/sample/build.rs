//! A report of synthetic data: shaped like the incident, with numbers from a seeded generator.

mod words;

use evenkeel_report::*;

const LAYERS: usize = 26;
const EXPERTS: usize = 64;
const RANKS: usize = 16;
const SLOTS: usize = 5;

/// SplitMix64.
struct Draws(u64);

impl Draws {
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn normal(&mut self) -> f64 {
        let (a, b) = (self.unit().max(1e-12), self.unit());
        (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()
    }
}

type Loads = Vec<Vec<f64>>;

/// Popularity of every expert in every layer for one slice, mean 1.
fn popularity(draws: &mut Draws) -> Loads {
    let row = |draws: &mut Draws| {
        let raw: Vec<f64> = (0..EXPERTS).map(|_| (0.75 * draws.normal()).exp()).collect();
        let mean = raw.iter().sum::<f64>() / EXPERTS as f64;
        raw.iter().map(|v| v / mean).collect()
    };
    (0..LAYERS).map(|_| row(draws)).collect()
}

fn mixed(slices: &[Loads], shares: &[f64]) -> Loads {
    let cell = |l: usize, e: usize| slices.iter().zip(shares).map(|(s, w)| s[l][e] * w).sum();
    (0..LAYERS).map(|l| (0..EXPERTS).map(|e| cell(l, e)).collect()).collect()
}

/// One spare slot per rank to the hottest experts, then longest first onto the emptiest rank.
fn pack(loads: &Loads) -> Vec<Vec<Vec<usize>>> {
    let layer = |row: &Vec<f64>| {
        let mut copies = vec![1usize; EXPERTS];
        for _ in 0..RANKS * SLOTS - EXPERTS {
            let per = |e: usize| row[e] / copies[e] as f64;
            let e = (0..EXPERTS).max_by(|a, b| per(*a).total_cmp(&per(*b))).unwrap_or(0);
            copies[e] += 1;
        }
        let mut items: Vec<(usize, f64)> =
            (0..EXPERTS).flat_map(|e| vec![(e, row[e] / copies[e] as f64); copies[e]]).collect();
        items.sort_by(|a, b| b.1.total_cmp(&a.1));
        let mut ranks: Vec<(f64, Vec<usize>)> = vec![(0.0, Vec::new()); RANKS];
        for (e, load) in items {
            let open = ranks.iter_mut().filter(|(_, held)| held.len() < SLOTS);
            if let Some(rank) = open.min_by(|a, b| a.0.total_cmp(&b.0)) {
                rank.0 += load;
                rank.1.push(e);
            }
        }
        ranks.into_iter().map(|r| r.1).collect()
    };
    loads.iter().map(layer).collect()
}

/// Load of every rank under a map, mean 1 per layer.
fn rank_loads(map: &[Vec<Vec<usize>>], loads: &Loads) -> Vec<Vec<f32>> {
    let of = |l: usize, rank: &Vec<usize>| {
        let copies = |e: usize| map[l].iter().flatten().filter(|x| **x == e).count() as f64;
        let sum: f64 = rank.iter().map(|&e| loads[l][e] / copies(e)).sum();
        (sum * RANKS as f64 / EXPERTS as f64) as f32
    };
    (0..LAYERS).map(|l| map[l].iter().map(|r| of(l, r)).collect()).collect()
}

fn heat(title: &str, loads: &Loads) -> HeatMap {
    HeatMap {
        title: title.to_owned(),
        unit: "× the layer's mean tokens per expert".to_owned(),
        first_row: 1,
        values: loads.iter().map(|r| r.iter().map(|v| *v as f32).collect()).collect(),
        ..HeatMap::default()
    }
}

fn waterfall(draws: &mut Draws, loads: &[Vec<f32>]) -> StepWaterfall {
    let layer = |draws: &mut Draws, row: &Vec<f32>| {
        let attention: Vec<f64> = row.iter().map(|_| 168.0 + 14.0 * draws.unit()).collect();
        let expert: Vec<f64> =
            row.iter().map(|v| 60.0 + 118.0 * f64::from(*v) + 9.0 * draws.unit()).collect();
        let top = |v: &[f64]| v.iter().copied().fold(0.0, f64::max);
        let (late, slow) = (top(&attention), top(&expert));
        let spans = |r: usize| RankSpans {
            attention_us: attention[r],
            wait_dispatch_us: late - attention[r],
            dispatch_us: 68.0,
            expert_us: expert[r],
            wait_return_us: slow - expert[r],
            return_us: 87.0,
            rest_us: 11.0,
        };
        (0..row.len()).map(spans).collect()
    };
    StepWaterfall {
        title: "Decode step 1841, live map, new mix (synthetic)".to_owned(),
        step: 1841,
        step_us: None,
        first_layer: 1,
        layers: loads.iter().map(|row| layer(draws, row)).collect(),
    }
}

fn panel(draws: &mut Draws, title: &str, maps: [(&str, f64, f64); 3], n: usize) -> Distribution {
    let mut series = Vec::new();
    for (name, centre, spread) in maps {
        let one = |draws: &mut Draws| {
            let burst = if draws.unit() < 0.03 { 1.0 + 0.25 * draws.unit() } else { 1.0 };
            centre * (spread * draws.normal()).exp() * burst
        };
        let samples: Vec<f64> = (0..n).map(|_| one(draws)).collect();
        series.push(Series::from_samples(name, &samples));
    }
    Distribution {
        title: title.to_owned(),
        quantity: "TPOT".to_owned(),
        unit: "ms".to_owned(),
        weighting: "by request".to_owned(),
        series,
        slo: Some(24.0),
        slo_q: None,
    }
}

/// The synthetic report of a seed.
pub fn sample(seed: u64) -> Report {
    let mut draws = Draws(seed);
    let slices: Vec<Loads> = (0..3).map(|_| popularity(&mut draws)).collect();
    let old = mixed(&slices, &[1.0 / 3.0; 3]);
    let new = mixed(&slices, &[0.1, 0.1, 0.8]);
    let (live, candidate) = (pack(&old), pack(&new));
    let stale = rank_loads(&live, &new);
    let unit = "tokens ÷ the layer's mean per rank".to_owned();
    let ranks = |title: &str, values: Vec<Vec<f32>>| RankLoads {
        title: title.to_owned(),
        unit: unit.clone(),
        first_layer: 1,
        values,
    };
    let waterfall = waterfall(&mut draws, &stale);
    let mut distributions = Vec::new();
    for (slice, factor) in [("translation", 1.0), ("summary", 0.985), ("intent", 0.97)] {
        let maps = [
            ("live", 20.6 * factor, 0.075),
            ("candidate", 18.4 * factor, 0.062),
            ("from scratch", 18.2 * factor, 0.062),
        ];
        distributions.push(panel(
            &mut draws,
            slice,
            maps,
            if slice == "intent" { 380 } else { 2400 },
        ));
    }
    Report {
        title: "Translation took over: new copies bring p99 TPOT back within its SLO".to_owned(),
        subtitle: "Synthetic sample, seed 7 · 26 MoE layers × 64 experts, top-6 · EP16, one spare \
                   slot per rank · H20 · 256 decoding sequences per rank"
            .to_owned(),
        generated_note: "Evenkeel sample report; every number in it is synthetic.".to_owned(),
        verdict: Some(words::verdict()),
        facts: words::facts(),
        story: words::story(),
        mix: Some(words::mix()),
        heat: vec![heat("Before the shift", &old), heat("After the shift", &new)],
        hot_experts: hot(&old, &new, &live, &candidate),
        diagnosis: Some(words::diagnosis()),
        rank_loads: vec![
            ranks("Live map, new mix", stale),
            ranks("Candidate map, new mix", rank_loads(&candidate, &new)),
        ],
        waterfall: Some(waterfall),
        distributions,
        prices: words::prices(),
        bound_note: "Bound: no map whatsoever could make the mean decode step more than 12 % \
                     faster, with any number of copies."
            .to_owned(),
        comparisons: words::comparisons(),
        counter_incidents: words::counter_incidents(),
        tables: vec![ExtraTable {
            title: "The same verdict over ten seeds".to_owned(),
            note: "Unselected.".to_owned(),
            head: vec!["seed".into(), "p99 TPOT change".into(), "verdict".into()],
            rows: (1..=3)
                .map(|s| vec![s.to_string(), format!("−{}.4 %", 8 + s), "accept (modelled)".into()])
                .collect(),
        }],
        assumptions: vec![
            "Decode routing is the teacher-forced routing of recorded text.".to_owned(),
            "All-to-all times of H20 are borrowed from H100, ± 20 %.".to_owned(),
        ],
        model: vec![CurveNote {
            curve: "experts, decode".into(),
            origin: "fitted on grouped GEMM, H20".into(),
            error: "9.1 % MAPE".into(),
            support: "1–2 048 rows per rank; inside".into(),
        }],
        provenance: vec![
            Fact::new("seed", "7", ""),
            Fact::new("live map", "version 4, sha256 5f1c…9a", "balanced for the old mix"),
            Fact::time("replay", "4 000 steps per map", "common random numbers"),
        ],
        attribution: vec!["No recorded data is shown in this sample.".to_owned()],
        ..Report::default()
    }
}

fn hot(
    old: &Loads,
    new: &Loads,
    live: &[Vec<Vec<usize>>],
    next: &[Vec<Vec<usize>>],
) -> Vec<HotExpert> {
    let mut all: Vec<(usize, usize)> =
        (0..LAYERS).flat_map(|l| (0..EXPERTS).map(move |e| (l, e))).collect();
    all.sort_by(|a, b| new[b.0][b.1].total_cmp(&new[a.0][a.1]));
    let copies = |map: &[Vec<Vec<usize>>], l: usize, e: usize| {
        map[l].iter().flatten().filter(|x| **x == e).count() as u32
    };
    let view = |&(l, e): &(usize, usize)| HotExpert {
        layer: l as u32 + 1,
        expert: e as u32,
        before: old[l][e],
        after: new[l][e],
        copies_live: copies(live, l, e),
        copies_candidate: Some(copies(next, l, e)),
        note: "translation 94 %".to_owned(),
    };
    all.iter().take(6).map(view).collect()
}
