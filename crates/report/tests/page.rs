//! The page and its pictures: well-formed, self-contained, deterministic, harmless whatever they
//! are given.

#[path = "../examples/sample/build.rs"]
mod build;
mod markup;

use evenkeel_report::*;
use proptest::prelude::*;
use serde_json::Value;

/// Everything that can be rendered from a report.
fn all(report: &Report) -> (String, Vec<String>) {
    let mut pictures: Vec<String> = Vec::new();
    pictures.extend(report.heat.iter().filter_map(svg_heat_map));
    pictures.extend(report.rank_loads.iter().filter_map(svg_rank_loads));
    pictures.extend(report.waterfall.iter().flat_map(|s| svg_waterfall(s, report.origin)));
    let panels = report.distributions.iter();
    pictures.extend(panels.filter_map(|d| svg_distribution(d, report.origin)));
    (html(report), pictures)
}

/// Well-formed, self-contained, and without the traces of numbers that are none.
fn sound(report: &Report) -> Result<(), String> {
    let (page, pictures) = all(report);
    let names = markup::check(&page)?;
    for banned in ["script", "iframe", "img", "link", "object", "form", "base"] {
        if names.contains(banned) {
            return Err(format!("element {banned}"));
        }
    }
    for text in pictures.iter().chain([&page]) {
        markup::check(text)?;
        let text = text.replace("http://www.w3.org/2000/svg", "");
        for banned in ["://", "NaN", "\"inf", "-inf", "url(http", "@import"] {
            if let Some(at) = text.find(banned) {
                return Err(text[at.saturating_sub(60)..].chars().take(120).collect());
            }
        }
    }
    Ok(())
}

#[test]
fn the_sample_is_sound_and_complete() {
    let report = build::sample(7);
    sound(&report).unwrap();
    let (page, pictures) = all(&report);
    assert_eq!(pictures.len(), 2 + 2 + 2 + 3);
    for id in [
        "story", "experts", "causes", "ranks", "step", "latency", "plans", "gate", "counter",
        "more", "method",
    ] {
        assert!(page.contains(&format!("<section id=\"{id}\">")), "{id}");
    }
    assert!(page.contains("Accept (modelled)"));
    assert!(page.contains("TPOT in ms (modelled), by request"));
    assert!(page.len() < 1_000_000, "{} bytes", page.len());
}

#[test]
fn the_same_report_gives_the_same_bytes() {
    assert_eq!(all(&build::sample(3)), all(&build::sample(3)));
    let stored = build::sample(3).to_json().unwrap();
    let again = Report::from_json(&stored).unwrap();
    assert_eq!(all(&again), all(&build::sample(3)));
    assert_eq!(again.to_json().unwrap(), stored);
}

#[test]
fn golden_markdown_and_picture() {
    let map = HeatMap {
        title: "Two layers".to_owned(),
        unit: "tokens".to_owned(),
        values: vec![vec![0.0, 1.0, 9.0], vec![4.0, f32::NAN, 2.0]],
        ..HeatMap::default()
    };
    let why = "differs from what is stored: look at it, then EVENKEEL_BLESS=1";
    assert!(golden("sample.md", &markdown(&build::sample(7))).unwrap(), "sample.md {why}");
    assert!(golden("heat.svg", &svg_heat_map(&map).unwrap()).unwrap(), "heat.svg {why}");
}

/// Whether a stored file says the same; `EVENKEEL_BLESS=1` writes it anew.
fn golden(name: &str, got: &str) -> std::io::Result<bool> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("EVENKEEL_BLESS").is_some() {
        std::fs::write(&path, got)?;
    }
    Ok(std::fs::read_to_string(&path)? == got)
}

#[test]
fn an_empty_report_has_no_empty_boxes() {
    let page = html(&Report::default());
    let names = markup::check(&page).unwrap();
    for absent in ["section", "nav", "table", "figure", "dl", "ul", "footer", "h2"] {
        assert!(!names.contains(absent), "{absent}");
    }
    assert!(page.contains("Times are modelled"), "modelled unless someone says otherwise");
    let measured = Report { origin: TimeOrigin::Measured, ..Report::default() };
    assert!(html(&measured).contains("Times are measured"));
    assert!(markdown(&Report::default()).contains("modelled"));
}

#[test]
fn containers_without_content_are_left_out() {
    let report = Report {
        heat: vec![HeatMap::default()],
        rank_loads: vec![RankLoads::default()],
        waterfall: Some(StepWaterfall::default()),
        distributions: vec![Distribution::default()],
        diagnosis: Some(DiagnosisView::default()),
        mix: Some(MixView::default()),
        tables: vec![ExtraTable::default()],
        ..Report::default()
    };
    let names = markup::check(&html(&report)).unwrap();
    assert!(!names.contains("section") && !names.contains("figure"));
    assert_eq!(svg_heat_map(&HeatMap::default()), None);
    assert_eq!(svg_rank_loads(&RankLoads::default()), None);
    assert!(svg_waterfall(&StepWaterfall::default(), TimeOrigin::Modelled).is_empty());
    assert_eq!(svg_distribution(&Distribution::default(), TimeOrigin::Modelled), None);
}

#[test]
fn one_of_everything_is_enough() {
    let spans = RankSpans { expert_us: 1.0, ..RankSpans::default() };
    let report = Report {
        heat: vec![HeatMap { values: vec![vec![1.0]], ..HeatMap::default() }],
        rank_loads: vec![RankLoads { values: vec![vec![1.0]], ..RankLoads::default() }],
        waterfall: Some(StepWaterfall { layers: vec![vec![spans]], ..StepWaterfall::default() }),
        distributions: vec![Distribution {
            series: vec![Series::from_samples("live", &[3.0])],
            ..Distribution::default()
        }],
        ..Report::default()
    };
    sound(&report).unwrap();
    assert_eq!(all(&report).1.len(), 5);
}

#[test]
fn the_largest_group_still_gives_a_page_that_opens() {
    let loads: Vec<Vec<f32>> = (0..58)
        .map(|l| (0..256).map(|e| ((l * 31 + e * 17) % 97) as f32 / 48.0).collect())
        .collect();
    let span = |v: &f32| RankSpans { expert_us: f64::from(*v) * 80.0, ..RankSpans::default() };
    let layers = loads.iter().map(|row| row.iter().map(span).collect()).collect();
    let report = Report {
        heat: vec![HeatMap { values: loads.clone(), ..HeatMap::default() }; 2],
        rank_loads: vec![RankLoads { values: loads.clone(), ..RankLoads::default() }; 2],
        waterfall: Some(StepWaterfall { layers, ..StepWaterfall::default() }),
        ..Report::default()
    };
    sound(&report).unwrap();
    assert!(html(&report).len() < 4_000_000);
}

#[test]
fn another_schema_is_refused() {
    let json = build::sample(1).to_json().unwrap().replacen("evenkeel.report/1", "other/9", 1);
    let error = Report::from_json(&json).unwrap_err().to_string();
    assert_eq!(error, "report.json has schema `other/9`, expected `evenkeel.report/1`");
    assert!(Report::from_json("{").is_err());
}

const HOSTILE: [&str; 8] = [
    "<script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)>",
    "'; --></style></title></svg>",
    "&lt;b&gt; &amp; & &#0;",
    "\u{202e}evil\u{202c}\u{0}\u{1b}[31m\u{fffe}\u{200b}",
    "شركة الترجمة",
    "]]> {{7*7}} ${x} | `x` _y_ [a](javascript:x)",
    "",
];

/// Replaces some leaves of a stored report by what a broken or hostile record could hold. `pick`
/// decides which; integers stay integers, and numbers within what `f32` holds.
fn spoil(value: &mut Value, pick: &mut impl FnMut() -> u64) {
    match value {
        Value::Object(fields) => fields
            .iter_mut()
            .filter(|(key, _)| !["schema", "origin", "tone"].contains(&key.as_str()))
            .for_each(|(_, v)| spoil(v, pick)),
        Value::Array(items) => {
            match pick() % 16 {
                0 if items.iter().all(|i| !i.is_number()) => items.clear(),
                1 if items.iter().all(|i| !i.is_number()) => items.truncate(1),
                _ => {}
            }
            items.iter_mut().for_each(|v| spoil(v, pick));
        }
        Value::String(s) if pick().is_multiple_of(4) => {
            *s = HOSTILE[(pick() % 8) as usize].repeat(if pick().is_multiple_of(8) {
                3_000
            } else {
                1
            });
        }
        Value::Number(n) if pick().is_multiple_of(6) => {
            let floats = [3e38, -3e38, 0.0, -1.0, 1e-44, 1.0, 1e20, 1e-12];
            let float = floats[(pick() % 8) as usize];
            *value = match n.is_u64() {
                true => Value::from(pick() as u32),
                false if pick().is_multiple_of(3) => Value::Null,
                false => Value::from(float),
            };
        }
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_record_breaks_the_page(seed in any::<u64>()) {
        let mut value: Value = serde_json::from_str(&build::sample(1).to_json().unwrap()).unwrap();
        let mut state = seed;
        let mut pick = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 33
        };
        spoil(&mut value, &mut pick);
        let report = Report::from_json(&value.to_string()).unwrap();
        if let Err(why) = sound(&report) {
            return Err(TestCaseError::fail(why));
        }
        let text = markdown(&report);
        for banned in ["<script", "<img", "\u{1b}", "NaN", "[a]("] {
            prop_assert!(!text.contains(banned), "{}", banned);
        }
    }
}

#[test]
fn extremes_of_double_precision_are_drawn_somewhere() {
    let mut report = build::sample(1);
    for extreme in [f64::MAX, f64::MIN, 5e-324, f64::INFINITY, f64::NAN] {
        report.heat[0].values[0][0] = extreme as f32;
        report.rank_loads[0].values[0][0] = extreme as f32;
        report.distributions[0].series[0].quantiles[3].value = extreme;
        report.distributions[0].slo = Some(extreme);
        report.comparisons[0].interval = Some((extreme, -extreme));
        report.comparisons[1].change = extreme;
        report.prices[1].bytes = Some(extreme);
        report.prices[1].break_even_s = Some(extreme);
        for d in report.diagnosis.iter_mut() {
            d.observed_ms = Some(extreme);
            d.causes[0].ms_per_step = extreme;
        }
        for step in report.waterfall.iter_mut() {
            step.layers[0][0].expert_us = extreme;
        }
        sound(&report).unwrap();
        let again = Report::from_json(&report.to_json().unwrap()).unwrap();
        sound(&again).unwrap();
    }
}

#[test]
fn hostile_names_are_shown_as_text() {
    let mut report = build::sample(1);
    for hostile in HOSTILE {
        report.title = hostile.to_owned();
        report.heat[0].title = hostile.to_owned();
        report.distributions[0].series[0].name = hostile.repeat(500);
        report.comparisons[0].slice = hostile.to_owned();
        report.counter_incidents[0].title = hostile.to_owned();
        report.tables[0].rows[0][2] = hostile.to_owned();
        sound(&report).unwrap();
    }
    report.title = HOSTILE[0].to_owned();
    assert!(html(&report).contains("<h1>&lt;script&gt;alert(1)&lt;/script&gt;</h1>"));
}
