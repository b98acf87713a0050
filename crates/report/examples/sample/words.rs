//! What the sample report says in words and fixed numbers; all of it invented.

use evenkeel_report::*;

pub fn verdict() -> VerdictView {
    VerdictView {
        label: "accept (modelled)".to_owned(),
        tone: Tone::Good,
        headline: "Move 118 of 2 080 slots: p99 TPOT falls from 25.4 to 22.1 ms, back under the \
                   SLO of 24 ms, and the move pays for itself in 41 s."
            .to_owned(),
        reasons: vec![
            ReasonView::new(
                Tone::Good,
                "p99 TPOT by request improves by 13 % (11 to 15 %), in every slice.",
            ),
            ReasonView::new(
                Tone::Good,
                "The sign of the gain holds over the whole error of the cost model.",
            ),
            ReasonView::new(
                Tone::Good,
                "KV headroom stays at 31 %, floor 20 %. Sameness L0: every expert keeps a live copy.",
            ),
            ReasonView::new(
                Tone::Unsure,
                "ITL p99.9 by token cannot be told apart; nothing suggests it is worse.",
            ),
        ],
    }
}

pub fn facts() -> Vec<Fact> {
    vec![
        Fact::time("p99 TPOT", "22.1 ms", "by request, SLO 24 ms").instead_of("25.4"),
        Fact::time("goodput within SLO", "61.8 req/s", "all slices").instead_of("52.3"),
        Fact::time("best any map could do", "−12 % step", "the plan takes −10.4 %"),
        Fact::new("price", "1.02 GB", "118 slots, 5.7 % of all"),
        Fact::time("break-even", "41 s", "2 130 decode steps"),
        Fact::new(
            "mean utilisation",
            "71 %",
            "looks harmless; says nothing about the slowest rank",
        ),
    ]
}

pub fn story() -> Vec<Paragraph> {
    vec![
        Paragraph::new(
            "The mix shifted.",
            "Translation grew from a third of the decoded tokens to four fifths within one window. \
             Model, template and tokenizer revisions did not change.",
        ),
        Paragraph::new(
            "The live map was balanced for the old mix.",
            "Its spare copies sit on experts that translation rarely chooses. In each layer one rank \
             now carries up to twice the mean, and every other rank waits for it.",
        ),
        Paragraph::new(
            "What to do.",
            "New copies of 22 experts win back most of it. Repacking without copies would win 2 %: \
             single hot experts exceed a rank's fair share.",
        ),
    ]
}

pub fn mix() -> MixView {
    let slice = |slice: &str, before, after| SliceShare { slice: slice.to_owned(), before, after };
    MixView {
        unit: "decoded tokens".to_owned(),
        before_label: "old mix, steps 0–1 199".to_owned(),
        after_label: "new mix, steps 1 200–3 999".to_owned(),
        slices: vec![
            slice("translation", 0.334, 0.801),
            slice("summary", 0.331, 0.101),
            slice("intent", 0.335, 0.098),
        ],
        note:
            "Within each slice the choice of experts did not change: distance 0.012, noise 0.011."
                .to_owned(),
    }
}

pub fn diagnosis() -> DiagnosisView {
    DiagnosisView {
        quantity: "mean decode step, new mix".to_owned(),
        baseline_label: "the same batch, every rank at its layer's mean".to_owned(),
        baseline_ms: Some(16.9),
        observed_ms: Some(20.6),
        causes: vec![
            CauseView {
                kind: "mix shift".to_owned(),
                ms_per_step: 2.31,
                place: "slice translation".to_owned(),
                evidence: vec![
                    "With the old mix on the same map the step loses 0.9 ms to skew, now 3.2 ms."
                        .to_owned(),
                    "Layers 17, 4 and 22 hold a third of it; rank 11 is awaited in 9 of 26 layers."
                        .to_owned(),
                ],
                remedy: "move copies to the experts that translation chooses".to_owned(),
            },
            CauseView {
                kind: "too few copies".to_owned(),
                ms_per_step: 0.92,
                place: "all layers".to_owned(),
                evidence: vec![
                    "Even the best map of one spare slot per rank leaves this.".to_owned(),
                ],
                remedy:
                    "a second spare slot per rank would win 0.5 ms and cost 1.9 % of the KV blocks"
                        .to_owned(),
            },
            CauseView {
                kind: "prefill interference".to_owned(),
                ms_per_step: 0.31,
                place: "ranks 0–15".to_owned(),
                evidence: vec!["4 % of the steps carry a prefill chunk.".to_owned()],
                remedy: String::new(),
            },
        ],
        ruled_out: vec![
            "Slow link: dispatch follows its curve within 2 % on every pair.".to_owned(),
            "Slow rank: at equal work no rank's expert time is off by more than 1.4 %.".to_owned(),
        ],
    }
}

pub fn prices() -> Vec<PlanPrice> {
    let none = PlanPrice {
        name: "do nothing".to_owned(),
        moves: Some(0),
        slot_share: Some(0.0),
        bytes: Some(0.0),
        seconds: Some(0.0),
        step_change: Some(0.0),
        bound_gap: Some(0.12),
        ..PlanPrice::default()
    };
    let live = PlanPrice {
        name: "from the live map".to_owned(),
        chosen: true,
        moves: Some(118),
        slot_share: Some(118.0 / 2080.0),
        bytes: Some(1.02e9),
        seconds: Some(4.3),
        rate_note: "at 0.24 GB/s".to_owned(),
        step_change: Some(-0.104),
        bound_gap: Some(0.018),
        break_even_steps: Some(2130.0),
        break_even_s: Some(41.0),
        kv_lost: Some(0.0),
        ..PlanPrice::default()
    };
    let scratch = PlanPrice {
        name: "from scratch, greedy".to_owned(),
        chosen: false,
        moves: Some(1_764),
        slot_share: Some(1764.0 / 2080.0),
        bytes: Some(15.3e9),
        seconds: Some(64.0),
        step_change: Some(-0.109),
        bound_gap: Some(0.012),
        break_even_steps: Some(30_400.0),
        break_even_s: Some(590.0),
        note: "15 times the bytes for half a percent".to_owned(),
        ..live.clone()
    };
    vec![none, live, scratch]
}

pub fn comparisons() -> Vec<Comparison> {
    let tpot = |slice: &str, live: f64, candidate: f64| Comparison {
        metric: "TPOT p99".to_owned(),
        weighting: "by request".to_owned(),
        slice: slice.to_owned(),
        unit: "ms".to_owned(),
        time: true,
        live,
        candidate,
        change: candidate / live - 1.0,
        interval: Some((candidate / live - 1.022, candidate / live - 0.98)),
        limit: Some(0.0),
        pass: Some(true),
        ..Comparison::default()
    };
    vec![
        tpot("all", 25.4, 22.1),
        tpot("translation", 25.6, 22.2),
        tpot("summary", 25.1, 21.9),
        tpot("intent", 24.8, 21.7),
        Comparison {
            metric: "ITL p99.9".to_owned(),
            weighting: "by token".to_owned(),
            interval: Some((-0.061, 0.034)),
            limit: Some(0.02),
            pass: None,
            note: "too few gaps of this size".to_owned(),
            ..tpot("all", 41.0, 40.4)
        },
        Comparison {
            metric: "goodput within SLO".to_owned(),
            weighting: String::new(),
            unit: "req/s".to_owned(),
            interval: Some((0.14, 0.22)),
            higher_is_better: true,
            ..tpot("all", 52.3, 61.8)
        },
        Comparison {
            metric: "KV headroom".to_owned(),
            weighting: String::new(),
            unit: "%".to_owned(),
            time: false,
            interval: None,
            limit: Some(-0.35),
            higher_is_better: true,
            ..tpot("all", 31.0, 31.0)
        },
    ]
}

pub fn counter_incidents() -> Vec<CounterIncident> {
    let one = |title: &str, tone, verdict: &str, lines: &[&str]| CounterIncident {
        title: title.to_owned(),
        tone,
        verdict: verdict.to_owned(),
        lines: lines.iter().map(|l| (*l).to_owned()).collect(),
    };
    vec![
        one(
            "The same traffic, H100, 64 tokens per rank",
            Tone::Neutral,
            "do nothing",
            &[
                "Bound by communication: no map saves more than 2.1 % of the step.",
                "Decode groups of 256 would cut the cost per token by 38 % and add 6 ms of TPOT (modelled).",
            ],
        ),
        one(
            "A link at 60 %",
            Tone::Bad,
            "plan refused",
            &["Node 1 → node 0 serves 29 instead of 48 GB/s; moving experts along it is refused."],
        ),
        one(
            "A fallback kernel",
            Tone::Neutral,
            "no plan",
            &["Rank 5 runs `grouped_gemm_generic` in every layer: 61 % slower at equal work."],
        ),
        one(
            "Flat routing, 8 experts, top-2",
            Tone::Neutral,
            "do nothing",
            &["Balancedness 0.94; the best map saves 0.8 % of the step, within the model's error."],
        ),
    ]
}
