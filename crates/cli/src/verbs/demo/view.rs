//! The incident as a report: numbers into the view model, sentences around them. Decides nothing.

use super::counter::{Counter, outcome_line};
use super::incident::{Incident, Judged, PREFILL_GROUPS};
use super::scene::{RANKS, SEQUENCES_PER_RANK, SLO_TPOT_MS, SLOTS_PER_RANK, Scene};
use crate::view::{comparison_views, curve_notes, diagnosis_view, ms_or_dash, tone, waterfall};
use evenkeel_prove::Metric;
use evenkeel_report::{
    CounterIncident, Distribution, Fact, HeatMap, HotExpert, MixView, Paragraph, PlanPrice,
    RankLoads, ReasonView, Report, Series, SliceShare, TimeOrigin, Tone, VerdictView, fmt,
};
use evenkeel_trace::{LoadMatrix, counts_by_slice};
use evenkeel_types::{LayerId, Phase};

/// The whole page.
pub(super) fn report(scene: &Scene, incident: &Incident, counters: &[Counter]) -> Report {
    let shape = &scene.setting.shape;
    Report {
        title: format!("A surge of {}: does moving experts help?", scene.surging()),
        subtitle: format!(
            "{}, expert parallelism over {RANKS} ranks of H20 (modelled), at most \
             {SEQUENCES_PER_RANK} decoding sequences per rank, {SLOTS_PER_RANK} expert slots per rank \
             and layer",
            shape.name
        ),
        origin: TimeOrigin::Modelled,
        generated_note: format!(
            "Made by evenkeel {} demo --seed {} --surge {}",
            env!("CARGO_PKG_VERSION"),
            scene.seed,
            scene.surging()
        ),
        verdict: Some(verdict(scene, incident)),
        facts: facts(incident),
        story: story(scene, incident),
        mix: mix(scene, incident),
        heat: heat(scene, incident),
        hot_experts: hot_experts(scene, incident),
        diagnosis: Some(diagnosis_view(&incident.diagnosis, &scene.slices)),
        rank_loads: incident.judged.iter().map(|one| rank_loads(scene, one)).collect(),
        waterfall: waterfall(&incident.after.steps, scene.setting.ranks()),
        distributions: distributions(scene, incident),
        prices: incident
            .judged
            .iter()
            .enumerate()
            .skip(1)
            .map(|(i, one)| price(scene, incident, i, one))
            .collect(),
        bound_note: format!(
            "No map with these slots saves more than {} of the decode step on the planning window.",
            fmt::percent(bound_share(incident))
        ),
        comparisons: shown(incident)
            .and_then(|one| one.verdict.as_ref())
            .map(|verdict| comparison_views(verdict, &scene.slices))
            .unwrap_or_default(),
        counter_incidents: counters.iter().map(counter).collect(),
        assumptions: assumptions(scene, incident),
        model: curve_notes(&scene.setting.model),
        provenance: provenance(scene, incident),
        attribution: super::assets::ATTRIBUTION.iter().map(|&line| line.to_owned()).collect(),
        ..Report::default()
    }
}

/// The candidate that the page is about: the chosen one, else the plan, else the last one judged.
pub(super) fn shown(incident: &Incident) -> Option<&Judged> {
    let planned = || incident.judged.iter().find(|one| one.placed.name == "planned");
    incident
        .chosen
        .and_then(|index| incident.judged.get(index))
        .or_else(planned)
        .or_else(|| incident.judged.get(1))
}

fn bound_share(incident: &Incident) -> f64 {
    super::incident::bound_share(&incident.outcome)
}

fn p99_ms(one: &Judged) -> Option<f64> {
    one.metrics.overall.tpot_ms.map(|spread| spread.p99)
}

fn verdict(scene: &Scene, incident: &Incident) -> VerdictView {
    let live = incident.judged.first().and_then(p99_ms);
    let Some(one) = shown(incident) else { return VerdictView::default() };
    let Some(verdict) = &one.verdict else { return VerdictView::default() };
    let bytes = one.plan.as_ref().map_or(0.0, |plan| plan.price.bytes as f64);
    let split = incident.judged.get(1).and_then(p99_ms);
    let headline = match (incident.chosen, live, split, p99_ms(one)) {
        (Some(_), Some(live), Some(split), Some(p99)) if one.plan.is_some() => format!(
            "p99 TPOT (request-weighted) of the surge: {} on the live map, {} with a new split that \
             moves nothing, {} with the map {}, which moves {}.",
            fmt::ms(live),
            fmt::ms(split),
            fmt::ms(p99),
            one.placed.name,
            fmt::bytes(bytes)
        ),
        (Some(_), Some(live), _, Some(p99)) => format!(
            "A new split alone brings p99 TPOT (request-weighted) of the surge from {} to {}; no \
             weights move.",
            fmt::ms(live),
            fmt::ms(p99)
        ),
        _ => format!(
            "No candidate is accepted while {} has four fifths of the decoded tokens; the live map \
             stays.",
            scene.surging()
        ),
    };
    VerdictView {
        label: verdict.label.clone(),
        tone: tone(verdict.decision),
        headline,
        reasons: crate::view::ordered(&verdict.reasons)
            .into_iter()
            .map(|reason| {
                ReasonView::new(crate::view::standing_tone(reason.standing), &reason.statement)
            })
            .collect(),
    }
}

/// Goodput of the live map and of a candidate, over the requests due under either, as the gate
/// counts it.
pub(super) fn goodput_of(one: &Judged) -> Option<(f64, f64)> {
    let rows = &one.verdict.as_ref()?.metrics;
    let row = rows.iter().find(|row| row.metric == Metric::Goodput && row.slice.is_none())?;
    Some((row.live, row.candidate))
}

fn facts(incident: &Incident) -> Vec<Fact> {
    let live = incident.judged.first();
    let chosen = shown(incident);
    let p99 = |one: Option<&Judged>| ms_or_dash(one.and_then(p99_ms));
    let goodput = chosen.and_then(goodput_of);
    let share = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), fmt::percent);
    let before = incident.before.metrics.overall.tpot_ms.map(|spread| spread.p99);
    let mut facts = vec![
        Fact::time("p99 TPOT before the shift", ms_or_dash(before), "request-weighted, live map"),
        Fact::time("p99 TPOT in the surge", p99(chosen), "request-weighted, held-out requests")
            .instead_of(p99(live)),
        Fact::time("SLO", fmt::ms(SLO_TPOT_MS), "TPOT, every request"),
        Fact::time(
            "goodput",
            share(goodput.map(|both| both.1)),
            "share of due requests within the SLO",
        )
        .instead_of(share(goodput.map(|both| both.0))),
        Fact::new(
            "bound",
            fmt::percent(bound_share(incident)),
            "of the step, experts and exchange, on the planning window: no map with these slots saves more",
        ),
    ];
    if let Some(plan) = chosen.and_then(|one| one.plan.as_ref()) {
        let moves = plan.price.moves;
        facts.push(Fact::new(
            "price",
            fmt::bytes(plan.price.bytes as f64),
            format!("{moves} copies moved"),
        ));
        facts.push(Fact::time(
            "break-even",
            fmt::seconds(plan.break_even.seconds),
            format!("{} steps", fmt::number(plan.break_even.steps)),
        ));
    }
    let busy = incident.diagnosis.utilisation.mean_busy_share;
    facts.push(Fact::time(
        "mean utilisation",
        fmt::percent(busy),
        &incident.diagnosis.utilisation.why,
    ));
    facts
}

fn story(scene: &Scene, incident: &Incident) -> Vec<Paragraph> {
    let diagnosis = &incident.diagnosis;
    let mut story = vec![Paragraph::new(
        "What changed.",
        format!(
            "{} rose to four fifths of the decoded tokens; revisions did {}change. The live map was \
             balanced for equal shares.",
            scene.surging(),
            if diagnosis.mix.as_ref().is_some_and(|mix| mix.revisions_changed) {
                ""
            } else {
                "not "
            },
        ),
    )];
    if let Some(rank) = diagnosis.waited_for.first() {
        story.push(Paragraph::new(
            "Whom the step waits for.",
            format!(
                "{} ends last in {} of all layers and steps; the mean rank waits {} per step for it.",
                rank.rank,
                fmt::percent(rank.share_of_layers),
                fmt::ms(rank.waited_ms_per_step)
            ),
        ));
    }
    let in_bridge = |kind| diagnosis.slowdown.since_baseline.iter().any(|part| part.cause == kind);
    for cause in diagnosis.causes.iter().filter(|cause| !in_bridge(cause.kind)) {
        story.push(Paragraph::new(
            format!("Found beside it: {}.", cause.kind),
            format!(
                "{} of a step ({}), at {}; it was there before the shift too, or is part of what the \
                 shift cost. Remedy: {}.",
                fmt::ms(cause.ms_per_step),
                fmt::percent(cause.share_of_step),
                crate::view::place(cause, &scene.slices),
                cause.remedy
            ),
        ));
    }
    story.push(Paragraph::new("What could help.", format!("{}.", outcome_line(&incident.outcome))));
    if let Some((one, plan)) = shown(incident).and_then(|one| Some((one, one.plan.as_ref()?))) {
        let live = incident.judged.first().and_then(p99_ms);
        if let (Some(live), Some(p99)) = (live, p99_ms(one)) {
            story.push(Paragraph::new(
                "Predicted and replayed.",
                format!(
                    "The planner expected {} of its own window's step; on requests that it had not \
                     seen p99 TPOT changed by {}. A plan's opinion of itself is not evidence.",
                    fmt::change(-plan.predicted.gain_share),
                    fmt::change(p99 / live - 1.0)
                ),
            ));
        }
    }
    story.push(Paragraph::new(
        "What utilisation says.",
        format!("It looks harmless and says nothing: {}.", diagnosis.utilisation.why),
    ));
    let ttft: Vec<String> = incident
        .prefill
        .iter()
        .filter_map(|metrics| {
            let ttft = metrics.overall.ttft_ms?;
            Some(format!("{}: p50 {}, p99 {}", metrics.name, fmt::ms(ttft.p50), fmt::ms(ttft.p99)))
        })
        .collect();
    if !ttft.is_empty() {
        story.push(Paragraph::new(
            "Prefill beside it.",
            format!(
                "TTFT (request-weighted, modelled) of one of {PREFILL_GROUPS} prefill groups that \
                 share the arrivals: {}.",
                ttft.join("; ")
            ),
        ));
    }
    story
}

fn mix(scene: &Scene, incident: &Incident) -> Option<MixView> {
    let mix = incident.diagnosis.mix.as_ref()?;
    let name = |slice: &evenkeel_diagnose::SliceShare| {
        scene
            .slices
            .get(slice.slice.index())
            .map_or_else(|| slice.name.clone(), |s| s.tenant.clone())
    };
    Some(MixView {
        unit: "decoded tokens".into(),
        before_label: "before".into(),
        after_label: "surge".into(),
        slices: mix
            .slices
            .iter()
            .map(|slice| SliceShare {
                slice: name(slice),
                before: slice.before,
                after: slice.after,
            })
            .collect(),
        note: format!(
            "Divergence {} bits, {} by chance (p99); revisions {}.",
            fmt::number(mix.jsd_bits),
            fmt::number(mix.jsd_chance_p99_bits),
            if mix.revisions_changed { "changed" } else { "did not change" }
        ),
    })
}

fn heat(scene: &Scene, incident: &Incident) -> Vec<HeatMap> {
    let map = |title: &str, loads: &LoadMatrix| HeatMap {
        title: title.into(),
        unit: "tokens over the layer's mean expert".into(),
        x_label: "logical expert".into(),
        y_label: "MoE layer".into(),
        first_row: 0,
        values: loads
            .phase(Phase::Decode)
            .by_expert
            .chunks(usize::from(scene.setting.shape.experts))
            .map(over_mean)
            .collect(),
    };
    vec![
        map("Before the shift", &incident.before.loads),
        map("In the surge", &incident.after.loads),
    ]
}

fn over_mean(counts: &[u64]) -> Vec<f32> {
    let mean = counts.iter().sum::<u64>() as f64 / counts.len().max(1) as f64;
    counts.iter().map(|count| (*count as f64 / mean.max(1e-9)) as f32).collect()
}

fn hot_experts(scene: &Scene, incident: &Incident) -> Vec<HotExpert> {
    let times_mean = |loads: &LoadMatrix, layer: usize, expert: usize| {
        let counts = &loads.phase(Phase::Decode).by_expert;
        let layer = &counts[layer * loads.experts..(layer + 1) * loads.experts];
        f64::from(over_mean(layer)[expert])
    };
    let copies = |map: &evenkeel_types::ExpertMap, layer: LayerId, expert: usize| {
        map.hosts(layer).get(expert).map_or(0, |hosts| hosts.len() as u32)
    };
    let by_slice = counts_by_slice(&scene.planning, scene.slices.len(), Phase::Decode);
    incident
        .diagnosis
        .hot_experts
        .iter()
        .map(|hot| {
            let (layer, expert) = (hot.layer.index(), hot.expert.index());
            HotExpert {
                layer: layer as u32,
                expert: expert as u32,
                before: times_mean(&incident.before.loads, layer, expert),
                after: times_mean(&incident.after.loads, layer, expert),
                copies_live: copies(&incident.live.map, hot.layer, expert),
                copies_candidate: shown(incident)
                    .map(|one| copies(&one.placed.map, hot.layer, expert)),
                note: tokens_from(scene, &by_slice, layer, expert),
            }
        })
        .collect()
}

/// Which slices an expert's tokens come from in the surge: recorded choices weighted by the mix.
fn tokens_from(scene: &Scene, by_slice: &[Vec<u64>], layer: usize, expert: usize) -> String {
    let cell = layer * usize::from(scene.setting.shape.experts) + expert;
    let weights: Vec<f64> = by_slice
        .iter()
        .zip(scene.new_mix())
        .map(|(counts, share)| {
            let all: u64 = counts.iter().sum();
            share * counts[cell] as f64 / (all as f64).max(1.0)
        })
        .collect();
    let total: f64 = weights.iter().sum::<f64>().max(1e-12);
    let mut shares: Vec<(f64, &str)> = weights
        .iter()
        .zip(&scene.slices)
        .map(|(weight, slice)| (weight / total, slice.tenant.as_str()))
        .collect();
    shares.sort_by(|a, b| b.0.total_cmp(&a.0));
    let words: Vec<String> =
        shares.iter().map(|(share, tenant)| format!("{tenant} {}", fmt::percent(*share))).collect();
    words.join(", ")
}

fn rank_loads(scene: &Scene, one: &Judged) -> RankLoads {
    let totals = &one.run.totals;
    let steps = totals.steps[Phase::Decode.index()].max(1) as f32;
    RankLoads {
        title: one.placed.name.clone(),
        unit: "rows per step".into(),
        first_layer: 0,
        values: totals.rank_rows[Phase::Decode.index()]
            .chunks(scene.setting.ranks())
            .map(|row| row.iter().map(|rows| *rows as f32 / steps).collect())
            .collect(),
    }
}

fn distributions(scene: &Scene, incident: &Incident) -> Vec<Distribution> {
    let panel = |title: String, slice: Option<usize>| Distribution {
        title,
        quantity: "TPOT".into(),
        unit: "ms".into(),
        weighting: "request-weighted".into(),
        series: incident
            .judged
            .iter()
            .map(|one| {
                let samples: Vec<f64> = one
                    .run
                    .requests
                    .iter()
                    .filter(|request| slice.is_none_or(|slice| request.slice.index() == slice))
                    .filter_map(|request| request.tpot_ns())
                    .map(|ns| ns * 1e-6)
                    .collect();
                Series::from_samples(one.placed.name.clone(), &samples)
            })
            .collect(),
        slo: Some(SLO_TPOT_MS),
        slo_q: None,
    };
    let mut panels = vec![panel("All requests".into(), None)];
    panels.extend(
        scene.slices.iter().enumerate().map(|(i, slice)| panel(slice.tenant.clone(), Some(i))),
    );
    panels
}

fn price(scene: &Scene, incident: &Incident, index: usize, one: &Judged) -> PlanPrice {
    let label = one.verdict.as_ref().map_or(String::new(), |verdict| verdict.label.clone());
    let chosen = incident.chosen == Some(index);
    let base =
        PlanPrice { name: one.placed.name.clone(), chosen, note: label, ..PlanPrice::default() };
    let Some(plan) = &one.plan else {
        return PlanPrice { moves: Some(0), bytes: Some(0.0), ..base };
    };
    let slots: u64 = one.placed.map.copies_per_rank().iter().sum();
    let kv = incident.judged[0].metrics.kv_blocks_free_min_share;
    let rate = scene.setting.policy.moves.byte_rate_gb_per_s;
    PlanPrice {
        moves: Some(plan.price.moves as u64),
        slot_share: Some(plan.price.moves as f64 / slots.max(1) as f64),
        bytes: Some(plan.price.bytes as f64),
        seconds: Some(plan.price.time_s),
        rate_note: format!("{} GB/s per rank", fmt::number(rate)),
        step_change: Some(-plan.predicted.gain_share),
        bound_gap: Some(plan.predicted.gap_share),
        break_even_steps: Some(plan.break_even.steps),
        break_even_s: Some(plan.break_even.seconds),
        kv_lost: kv.map(|_| (plan.price.kv_bytes_lost.max(0)) as f64 / kv_total(scene)),
        ..base
    }
}

fn kv_total(scene: &Scene) -> f64 {
    scene.setting.topology.ranks().iter().map(|rank| rank.hbm_bytes as f64).sum::<f64>().max(1.0)
}

fn counter(counter: &Counter) -> CounterIncident {
    CounterIncident {
        title: counter.title.clone(),
        lines: counter.lines.clone(),
        verdict: counter.verdict.clone(),
        tone: Tone::Neutral,
    }
}

fn assumptions(scene: &Scene, incident: &Incident) -> Vec<String> {
    let after = &incident.after;
    let facts = &incident.judging;
    vec![
        "All times are modelled: recorded routing replayed under fitted cost curves; no GPU was used.".into(),
        "Routing is real and teacher-forced: recorded in one pass over prompt and target. The first \
         three quarters of a request are its prompt, the last quarter is decoded token by token.".into(),
        "Arrivals are Azure's conversation trace of November 2023, many copies of it superposed; pairing \
         it with these tenants is an assumption.".into(),
        format!(
            "Judging: {} copies of the arrivals, {} jobs from {} distinct recorded requests, each \
             replayed {} times on average. Requests repeat; their tokens are not independent.",
            incident.judging_copies, facts.jobs, facts.distinct_requests, fmt::number(facts.cloning_factor)
        ),
        format!(
            "Planning (the surge's trace): {} copies, {} jobs from {} distinct requests, none of \
             which is among those judged on.",
            after.copies, after.traffic.jobs, after.traffic.distinct_requests
        ),
        format!(
            "{} surging means four fifths of decoded tokens, not of requests. Arrivals are what \
             perfectly even ranks could serve: the batch stays full on every map, a queue forms \
             slowly, and waiting for a place counts as TTFT, not TPOT.",
            scene.surging()
        ),
        "Prefill and decode run on separate groups; a place in the decode group is reserved before \
         a request's prefill begins.".into(),
        format!(
            "The SLO of {} was chosen between the p99 TPOT before the shift and in it; requests differ \
             little, so goodput flips between none and nearly all.",
            fmt::ms(SLO_TPOT_MS)
        ),
        "Mean utilisation is shown because people ask for it; it decides nothing.".into(),
    ]
}

fn provenance(scene: &Scene, incident: &Incident) -> Vec<Fact> {
    let mut facts = vec![
        Fact::new("seed", scene.seed.to_string(), "of every draw"),
        Fact::new(
            "trace before",
            "trace-before/",
            format!("{} steps", incident.before.steps.len()),
        ),
        Fact::new(
            "trace in the surge",
            "trace-after/",
            format!("{} steps", incident.after.steps.len()),
        ),
    ];
    facts.extend(incident.judged.iter().map(|one| {
        Fact::new(
            format!("map `{}`", one.placed.name),
            one.placed.map.digest(),
            "digest of its placement",
        )
    }));
    facts
}
