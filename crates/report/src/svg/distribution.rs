//! Latency curves on an axis of nines: the tail, which decides, gets the room.

use super::axis::Axis;
use super::{Anchor, Picture, fit};
use crate::fmt;
use crate::view::{Distribution, Quantile, Series, TimeOrigin};

const WIDTH: f64 = 356.0;
const LEFT: f64 = 44.0;
const RIGHT: f64 = 12.0;
const PLOT: f64 = 190.0;
const LINE: f64 = 16.0;
/// Styles of curves; more than these repeat.
const STYLES: usize = 5;

/// Which name is drawn how. Curves of one name look alike in all panels.
pub(crate) struct Styles(Vec<String>);

impl Styles {
    /// Styles in the order in which names first appear.
    pub(crate) fn of(panels: &[Distribution]) -> Styles {
        let mut names: Vec<String> = Vec::new();
        for series in panels.iter().flat_map(|p| &p.series) {
            if !names.contains(&series.name) {
                names.push(series.name.clone());
            }
        }
        Styles(names)
    }

    fn index(&self, name: &str) -> usize {
        self.0.iter().position(|n| n == name).unwrap_or(0) % STYLES
    }
}

/// One picture per panel that has a curve; panels of one quantity and unit share both axes.
pub(crate) fn distributions(
    panels: &[Distribution],
    styles: &Styles,
    origin: TimeOrigin,
) -> Vec<Picture> {
    let curves = |p: &Distribution| p.series.iter().any(|s| !points(s).is_empty());
    let full = panels.iter().filter(|p| curves(p));
    full.map(|panel| {
        let same =
            || panels.iter().filter(|p| p.quantity == panel.quantity && p.unit == panel.unit);
        let values = same()
            .flat_map(|p| &p.series)
            .flat_map(points)
            .map(|p| p.value)
            .chain(same().filter_map(|p| p.slo));
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for v in values.filter(|v| v.is_finite()) {
            low = low.min(v);
            high = high.max(v);
        }
        let last = same().flat_map(|p| &p.series).flat_map(points).map(|p| nines(p.q));
        let scale = Scale {
            y: Axis::new(low, high, 6),
            nines: last.fold(2.0, f64::max).min(5.0),
            lines: same().map(|p| p.series.len()).max().unwrap_or(0),
        };
        picture(panel, styles, &scale, origin)
    })
    .collect()
}

struct Scale {
    y: Axis,
    /// Where the axis of nines ends: 3 is p99.9.
    nines: f64,
    /// Lines of the largest legend, so that panels align.
    lines: usize,
}

/// The usable points of a curve. A largest sample at q = 1 has no place on an axis of nines.
fn points(series: &Series) -> Vec<Quantile> {
    let usable = |p: &&Quantile| p.value.is_finite() && (0.0..1.0).contains(&p.q);
    series.quantiles.iter().filter(usable).copied().collect()
}

fn nines(q: f64) -> f64 {
    -(1.0 - q).log10()
}

fn picture(panel: &Distribution, styles: &Styles, scale: &Scale, origin: TimeOrigin) -> Picture {
    let top = 48.0 + LINE * scale.lines as f64;
    let bottom = top + PLOT;
    let decisive = panel.slo_q.filter(|q| (0.0..1.0).contains(q)).unwrap_or(0.99);
    let mut p = Picture::new(WIDTH, bottom + 42.0, &panel.title, &describe(panel, decisive));
    p.text([LEFT, 16.0], Anchor::Start, "t", &fit(&panel.title, WIDTH - LEFT, 13.5));
    let what =
        format!("{} in {} ({}), {}", panel.quantity, panel.unit, origin.word(), panel.weighting);
    p.text([LEFT, 32.0], Anchor::Start, "s m", &fit(&what, WIDTH - LEFT, 11.0));
    let x = |q: f64| LEFT + (nines(q) / scale.nines).clamp(0.0, 1.0) * (WIDTH - LEFT - RIGHT);
    let y = |v: f64| bottom - scale.y.at(v) * PLOT;
    frame(&mut p, scale, [top, bottom], decisive, &x);
    if let Some(slo) = panel.slo.filter(|v| v.is_finite()) {
        p.line([LEFT, y(slo), WIDTH - RIGHT, y(slo)], "slo");
        let label = format!("SLO {}", fmt::with_unit(slo, &panel.unit));
        p.text([LEFT + 5.0, y(slo) - 5.0], Anchor::Start, "s b halo", &fit(&label, 150.0, 11.0));
    }
    for (i, series) in panel.series.iter().enumerate() {
        let style = styles.index(&series.name);
        let line: Vec<[f64; 2]> = points(series).iter().map(|p| [x(p.q), y(p.value)]).collect();
        p.polyline(&line, CURVE[style]);
        legend_line(&mut p, series, style, 44.0 + LINE * i as f64, (decisive, &panel.unit));
        if let Some(v) = series.at(decisive) {
            mark(&mut p, [x(decisive), y(v)], style);
        }
    }
    p
}

/// Grid, ticks and the line of the percentile that decides.
fn frame(
    p: &mut Picture,
    scale: &Scale,
    [top, bottom]: [f64; 2],
    decisive: f64,
    x: &impl Fn(f64) -> f64,
) {
    for tick in &scale.y.ticks {
        let y = bottom - scale.y.at(*tick) * PLOT;
        p.line([LEFT, y, WIDTH - RIGHT, y], "grid");
        p.text([LEFT - 6.0, y + 4.0], Anchor::End, "s m", &scale.y.label(*tick));
    }
    for q in [0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999] {
        if nines(q) > scale.nines + 1e-9 {
            break;
        }
        let decides = (q - decisive).abs() < 1e-9;
        p.line([x(q), top, x(q), bottom + 4.0], if decides { "axis" } else { "grid" });
        // Beyond four nines the names no longer fit between the lines.
        let named = q > 0.0 && (nines(q) < 4.5 || decides);
        let label = if named { fmt::percentile(q) } else { String::new() };
        let class = if decides { "s b" } else { "s m" };
        // The last label stays inside the picture.
        let at_end = nines(q) > scale.nines - 0.05;
        let anchor = if at_end { Anchor::End } else { Anchor::Middle };
        p.text([x(q) + if at_end { 6.0 } else { 0.0 }, bottom + 17.0], anchor, class, &label);
    }
    p.text(
        [(LEFT + WIDTH) / 2.0, bottom + 34.0],
        Anchor::Middle,
        "s m",
        "percentile, spaced by nines",
    );
}

/// A curve's sample, name, and value at the percentile that decides.
fn legend_line(p: &mut Picture, series: &Series, style: usize, y: f64, (q, unit): (f64, &str)) {
    p.line([LEFT, y + 6.0, LEFT + 26.0, y + 6.0], CURVE[style]);
    mark(p, [LEFT + 13.0, y + 6.0], style);
    p.text([LEFT + 33.0, y + 10.0], Anchor::Start, "s", &fit(&series.name, 165.0, 11.0));
    let value = match series.at(q) {
        Some(v) => format!("{} {}", fmt::percentile(q), fmt::with_unit(v, unit)),
        None => format!("too few samples for {}", fmt::percentile(q)),
    };
    p.text([WIDTH - RIGHT, y + 10.0], Anchor::End, "s b", &value);
}

/// A mark whose shape tells curves apart.
fn mark(p: &mut Picture, [x, y]: [f64; 2], style: usize) {
    let class = DOT[style];
    match style {
        0 => p.circle([x, y], 4.2, class, ""),
        1 => p.rect([x - 4.0, y - 4.0, 8.0, 8.0], class),
        _ => {
            let r = 5.0;
            let (a, b) = if style == 2 { (r, -r) } else { (-r, r) };
            let data = format!(
                "M{} {}L{} {}L{} {}z",
                super::num(x - r),
                super::num(y + a * 0.8),
                super::num(x + r),
                super::num(y + a * 0.8),
                super::num(x),
                super::num(y + b)
            );
            p.path(&data, class);
        }
    }
}

fn describe(panel: &Distribution, q: f64) -> String {
    let mut parts: Vec<String> = Vec::new();
    for s in &panel.series {
        let value = s.at(q).map_or(fmt::NONE.to_owned(), |v| fmt::with_unit(v, &panel.unit));
        parts.push(format!("{} {} {value}", s.name, fmt::percentile(q)));
    }
    if let Some(slo) = panel.slo {
        parts.push(format!("SLO {}", fmt::with_unit(slo, &panel.unit)));
    }
    format!("Quantile curves of {}, {}: {}.", panel.quantity, panel.weighting, parts.join("; "))
}

const CURVE: [&str; STYLES] = ["c0", "c1", "c2", "c3", "c4"];
const DOT: [&str; STYLES] = ["d0", "d1", "d2", "d3", "d4"];
