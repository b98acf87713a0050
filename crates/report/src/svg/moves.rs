//! Pictures of a plan: what further moves gain, and when each copy arrives.

use super::axis::{Axis, stride};
use super::{Anchor, Picture, fit, num};
use crate::fmt;
use crate::view::{Frontier, Schedule};

const LEFT: f64 = 92.0;
const TOP: f64 = 52.0;
const PLOT: f64 = 190.0;
/// Beyond this many bars a picture no longer tells each: the file would outgrow its use.
const TIPS: usize = 4_000;

/// A curve with its bound; `None` with fewer than two points.
pub(crate) fn frontier_picture(view: &Frontier) -> Option<Picture> {
    let finite = view.points.iter().filter(|(x, y)| x.is_finite() && y.is_finite());
    let points: Vec<(f64, f64)> = finite.copied().collect();
    let (first, last) = (points.first()?, points.last()?);
    if points.len() < 2 {
        return None;
    }
    let bound = view.bound.filter(|bound| bound.is_finite());
    let values = || points.iter().map(|point| point.1).chain(bound);
    let y_axis = Axis::new(
        values().fold(f64::INFINITY, f64::min),
        values().fold(f64::NEG_INFINITY, f64::max),
        5,
    );
    let x_axis = Axis::new(first.0.min(0.0), last.0, 6);
    let (width, bottom) = (540.0, TOP + PLOT);
    let summary = format!(
        "from {} to {} after {}",
        fmt::number(first.1),
        fmt::number(last.1),
        fmt::number(last.0)
    );
    let mut p = Picture::new(width, bottom + 50.0, &view.title, &summary);
    p.text([LEFT, 17.0], Anchor::Start, "t", &fit(&view.title, width - LEFT, 13.5));
    p.text([LEFT, 34.0], Anchor::Start, "s m", &fit(&summary, width - LEFT, 11.0));
    let x = |v: f64| LEFT + x_axis.at(v) * (width - LEFT - 14.0);
    let y = |v: f64| bottom - y_axis.at(v) * PLOT;
    for tick in &y_axis.ticks {
        p.line([LEFT, y(*tick), width - 14.0, y(*tick)], "grid");
        p.text([LEFT - 7.0, y(*tick) + 4.0], Anchor::End, "s m", &fmt::number(*tick));
    }
    for tick in &x_axis.ticks {
        p.line([x(*tick), bottom, x(*tick), bottom + 4.0], "axis");
        p.text([x(*tick), bottom + 16.0], Anchor::Middle, "s m", &x_axis.label(*tick));
    }
    if let Some(bound) = bound {
        p.line([LEFT, y(bound), width - 14.0, y(bound)], "slo");
        let label = format!("no map below {}", fmt::number(bound));
        p.text([LEFT + 6.0, y(bound) - 5.0], Anchor::Start, "s b halo", &label);
    }
    let line: Vec<[f64; 2]> = points.iter().map(|point| [x(point.0), y(point.1)]).collect();
    p.polyline(&line, "c1");
    p.circle([x(last.0), y(last.1)], 4.0, "d1", &summary);
    p.text([(LEFT + width) / 2.0, bottom + 34.0], Anchor::Middle, "s m", &view.x_label);
    p.text_up([12.0, TOP + PLOT / 2.0], "s m", &fit(&view.y_label, PLOT + 30.0, 11.0));
    Some(p)
}

/// Bars by the rank that receives, over time; `None` without a copy.
pub(crate) fn schedule_picture(view: &Schedule) -> Option<Picture> {
    let mut ranks: Vec<u16> = view.arrivals.iter().map(|arrival| arrival.to).collect();
    ranks.sort_unstable();
    ranks.dedup();
    let end = view.arrivals.iter().map(|arrival| arrival.end_s).filter(|end| end.is_finite());
    let end = end.chain(view.stage_ends_s.iter().copied()).fold(0.0, f64::max);
    if ranks.is_empty() {
        return None;
    }
    let (width, row) = (1080.0, (640.0 / ranks.len() as f64).clamp(4.0, 16.0));
    let bottom = TOP + 18.0 + row * ranks.len() as f64;
    let axis = Axis::new(0.0, end, 8).until(end);
    let across = view.arrivals.iter().filter(|arrival| arrival.crosses_nodes).count();
    let summary = format!(
        "{} copies in {} stages, {}; {across} cross nodes",
        view.arrivals.len(),
        view.stage_ends_s.len(),
        fmt::seconds(end)
    );
    let mut p = Picture::new(width, bottom + 48.0, &view.title, &summary);
    p.text([LEFT, 17.0], Anchor::Start, "t", &fit(&view.title, width - LEFT, 13.5));
    p.text([LEFT, 34.0], Anchor::Start, "s m", &fit(&summary, width - LEFT, 11.0));
    legend(&mut p);
    let x = |v: f64| LEFT + axis.at(v) * (width - LEFT - 16.0);
    let top = TOP + 18.0;
    stage_lines(&mut p, view, [top, bottom], &x);
    bars(&mut p, view, &ranks, [top, row], &x);
    for index in (0..ranks.len()).step_by(stride(ranks.len(), (bottom - top) as usize / 12)) {
        let at = [LEFT - 7.0, top + (index as f64 + 0.5) * row + 4.0];
        p.text(at, Anchor::End, "s m", &ranks[index].to_string());
    }
    for tick in &axis.ticks {
        p.line([x(*tick), bottom, x(*tick), bottom + 4.0], "axis");
        p.text([x(*tick), bottom + 16.0], Anchor::Middle, "s m", &axis.label(*tick));
    }
    p.text([(LEFT + width) / 2.0, bottom + 34.0], Anchor::Middle, "s m", "seconds");
    p.text_up([12.0, (top + bottom) / 2.0], "s m", "rank");
    Some(p)
}

fn legend(p: &mut Picture) {
    for (x, class, hatch, label) in
        [(LEFT, "p3", false, "within a node"), (LEFT + 130.0, "p4", true, "across nodes")]
    {
        p.rect([x, TOP - 8.0, 18.0, 9.0], class);
        if hatch {
            p.rect([x, TOP - 8.0, 18.0, 9.0], "hatch");
        }
        p.text([x + 24.0, TOP], Anchor::Start, "s m", label);
    }
}

fn stage_lines(p: &mut Picture, view: &Schedule, [top, bottom]: [f64; 2], x: &impl Fn(f64) -> f64) {
    let every = stride(view.stage_ends_s.len(), 200);
    let mut data = String::new();
    for end in view.stage_ends_s.iter().step_by(every) {
        data.push_str(&format!("M{} {}V{}", num(x(*end)), num(top), num(bottom)));
    }
    p.path(&data, "grid");
}

fn bars(
    p: &mut Picture,
    view: &Schedule,
    ranks: &[u16],
    [top, row]: [f64; 2],
    x: &impl Fn(f64) -> f64,
) {
    let tips = view.arrivals.len() <= TIPS;
    let mut paths = [String::new(), String::new()];
    for arrival in &view.arrivals {
        let Ok(index) = ranks.binary_search(&arrival.to) else { continue };
        let (from, to) = (x(arrival.start_s), x(arrival.end_s));
        let at = [from, top + index as f64 * row + row * 0.15, (to - from).max(0.6), row * 0.7];
        if !tips {
            let [x, y, w, h] = at.map(num);
            paths[usize::from(arrival.crosses_nodes)].push_str(&format!("M{x} {y}h{w}v{h}h-{w}z"));
            continue;
        }
        let tip = format!(
            "stage {}: {} from rank {} to rank {}, {} to {}",
            arrival.stage,
            arrival.what,
            arrival.from,
            arrival.to,
            fmt::seconds(arrival.start_s),
            fmt::seconds(arrival.end_s)
        );
        p.rect_tip(at, if arrival.crosses_nodes { "p4" } else { "p3" }, &tip);
        if arrival.crosses_nodes && row >= 8.0 {
            p.rect(at, "hatch");
        }
    }
    for (data, class) in paths.iter().zip(["p3", "p4"]).filter(|(data, _)| !data.is_empty()) {
        p.path(data, class);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::Arrival;

    #[test]
    fn copies_are_told_and_nothing_is_not_drawn() {
        assert!(schedule_picture(&Schedule::default()).is_none());
        assert!(frontier_picture(&Frontier::default()).is_none());
        let arrival = Arrival {
            what: "layer 3, expert 7".into(),
            to: 5,
            crosses_nodes: true,
            end_s: 0.5,
            ..Arrival::default()
        };
        let view =
            Schedule { arrivals: vec![arrival], stage_ends_s: vec![0.5], ..Schedule::default() };
        let svg = schedule_picture(&view).unwrap().standalone();
        assert!(svg.contains("layer 3, expert 7 from rank 0 to rank 5"), "{svg}");
        assert!(svg.contains("1 cross nodes"), "{svg}");
        let odd = Arrival { end_s: f64::NAN, ..view.arrivals[0].clone() };
        let view = Schedule { arrivals: vec![odd], ..view };
        assert!(!schedule_picture(&view).unwrap().standalone().contains("NaN"));
    }

    #[test]
    fn a_frontier_shows_its_bound() {
        let points = vec![(0.0, 10.0), (2.0, 6.0), (f64::NAN, 1.0)];
        let view = Frontier { points, bound: Some(5.0), ..Frontier::default() };
        let svg = frontier_picture(&view).unwrap().standalone();
        assert!(svg.contains("no map below 5") && !svg.contains("NaN"), "{svg}");
    }
}
