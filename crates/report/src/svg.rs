//! A small SVG writer and the pictures made with it.
//!
//! Coordinates are pixels of the view box, written with two decimals; what is not finite is
//! written as 0, so that no picture holds a NaN. Colours live in one style sheet, which the page
//! carries once and a standalone picture carries itself.

mod axis;
mod distribution;
mod heat;
mod moves;
mod rank_loads;
mod waterfall;
mod waterfall_zoom;

pub(crate) use distribution::{Styles, distributions};
pub(crate) use heat::heat_maps;
pub(crate) use heat::hottest;
pub(crate) use rank_loads::rank_load_pictures;
pub(crate) use waterfall::{mean_parts, step_picture};
pub(crate) use waterfall_zoom::{PARTS, awaited, zoom_picture};

use std::fmt::Write as _;

use crate::escape;
use crate::view::{
    Distribution, Frontier, HeatMap, RankLoads, Schedule, StepWaterfall, TimeOrigin,
};

/// Colours and text styles of all pictures.
pub(crate) const STYLE: &str = include_str!("svg/style.css");

/// What pictures refer to by id: the hatching of time spent waiting.
pub(crate) const DEFS: &str = "<defs><pattern id=\"ek-hatch\" width=\"5\" height=\"5\" \
     patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\">\
     <line class=\"hl\" x1=\"0\" y1=\"0\" x2=\"0\" y2=\"5\"/></pattern></defs>";

/// A standalone picture of one expert × layer map; `None` without values.
pub fn svg_heat_map(map: &HeatMap) -> Option<String> {
    heat_maps(std::slice::from_ref(map)).pop().map(|p| p.standalone())
}

/// A standalone picture of rank loads under one map; `None` without values.
pub fn svg_rank_loads(loads: &RankLoads) -> Option<String> {
    rank_load_pictures(std::slice::from_ref(loads)).pop().map(|p| p.standalone())
}

/// Standalone pictures of one step: all layers with all ranks, then the layer that loses most to
/// waiting. Empty without spans.
pub fn svg_waterfall(step: &StepWaterfall, origin: TimeOrigin) -> Vec<String> {
    let pictures = [step_picture(step, origin), zoom_picture(step, origin)];
    pictures.into_iter().flatten().map(|p| p.standalone()).collect()
}

/// A standalone picture of latency curves; `None` without a curve.
pub fn svg_distribution(panel: &Distribution, origin: TimeOrigin) -> Option<String> {
    let panels = std::slice::from_ref(panel);
    distributions(panels, &Styles::of(panels), origin).pop().map(|p| p.standalone())
}

/// A standalone picture of a curve with its bound; `None` with fewer than two points.
pub fn svg_frontier(frontier: &Frontier) -> Option<String> {
    moves::frontier_picture(frontier).map(|p| p.standalone())
}

/// A standalone Gantt chart of a move; `None` without a copy.
pub fn svg_schedule(schedule: &Schedule) -> Option<String> {
    moves::schedule_picture(schedule).map(|p| p.standalone())
}

/// A picture under construction, and when finished.
pub(crate) struct Picture {
    width: f64,
    height: f64,
    title: String,
    desc: String,
    body: String,
}

/// Where a text stands relative to its point.
#[derive(Clone, Copy)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

impl Picture {
    /// An empty picture. Title and description are what a screen reader says.
    pub(crate) fn new(width: f64, height: f64, title: &str, desc: &str) -> Picture {
        Picture {
            width,
            height,
            title: escape::name(title),
            desc: escape::text(desc),
            body: String::new(),
        }
    }

    /// Width of the view box, px.
    pub(crate) fn width(&self) -> f64 {
        self.width
    }

    /// A rectangle: x, y, width, height.
    pub(crate) fn rect(&mut self, at: [f64; 4], class: &str) {
        let [x, y, w, h] = at.map(num);
        let _ = write!(
            self.body,
            "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\"/>"
        );
    }

    /// A rectangle that tells its value when pointed at.
    pub(crate) fn rect_tip(&mut self, at: [f64; 4], class: &str, tip: &str) {
        let [x, y, w, h] = at.map(num);
        let tip = escape::text(tip);
        let _ = write!(
            self.body,
            "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\">\
             <title>{tip}</title></rect>"
        );
    }

    /// A line: x1, y1, x2, y2.
    pub(crate) fn line(&mut self, at: [f64; 4], class: &str) {
        let [a, b, c, d] = at.map(num);
        let _ = write!(
            self.body,
            "<line class=\"{class}\" x1=\"{a}\" y1=\"{b}\" x2=\"{c}\" y2=\"{d}\"/>"
        );
    }

    /// A circle, with a tip unless empty.
    pub(crate) fn circle(&mut self, at: [f64; 2], r: f64, class: &str, tip: &str) {
        let ([x, y], r) = (at.map(num), num(r));
        let _ = write!(self.body, "<circle class=\"{class}\" cx=\"{x}\" cy=\"{y}\" r=\"{r}\"");
        if tip.is_empty() {
            self.body.push_str("/>");
        } else {
            let _ = write!(self.body, "><title>{}</title></circle>", escape::text(tip));
        }
    }

    /// A path from ready path data.
    pub(crate) fn path(&mut self, data: &str, class: &str) {
        let _ = write!(self.body, "<path class=\"{class}\" d=\"{data}\"/>");
    }

    /// A line through points.
    pub(crate) fn polyline(&mut self, points: &[[f64; 2]], class: &str) {
        let mut data = String::new();
        for (i, p) in points.iter().enumerate() {
            let _ = write!(data, "{}{} {}", if i == 0 { "M" } else { "L" }, num(p[0]), num(p[1]));
        }
        self.path(&data, class);
    }

    /// A text; cut where a name is too long for any picture.
    pub(crate) fn text(&mut self, at: [f64; 2], anchor: Anchor, class: &str, text: &str) {
        let [x, y] = at.map(num);
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => " text-anchor=\"middle\"",
            Anchor::End => " text-anchor=\"end\"",
        };
        let text = escape::text(text);
        let _ =
            write!(self.body, "<text class=\"{class}\" x=\"{x}\" y=\"{y}\"{anchor}>{text}</text>");
    }

    /// A text that reads upwards, centred at its point.
    pub(crate) fn text_up(&mut self, at: [f64; 2], class: &str, text: &str) {
        let [x, y] = at.map(num);
        let text = escape::text(text);
        let _ = write!(
            self.body,
            "<text class=\"{class}\" text-anchor=\"middle\" \
             transform=\"translate({x} {y}) rotate(-90)\">{text}</text>"
        );
    }

    /// The picture as an element of a page that carries [`STYLE`] and [`DEFS`]. `id` must be
    /// unique on the page.
    pub(crate) fn inline(&self, id: &str) -> String {
        format!(
            "<svg class=\"ek\" viewBox=\"0 0 {w} {h}\" role=\"img\" \
             aria-labelledby=\"{id}-t {id}-d\"><title id=\"{id}-t\">{}</title>\
             <desc id=\"{id}-d\">{}</desc>{}</svg>",
            self.title,
            self.desc,
            self.body,
            w = num(self.width),
            h = num(self.height),
        )
    }

    /// The picture as a file of its own.
    pub(crate) fn standalone(&self) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"ek\" viewBox=\"0 0 {w} {h}\" \
             width=\"{w}\" height=\"{h}\" role=\"img\" aria-labelledby=\"t d\">\
             <title id=\"t\">{}</title><desc id=\"d\">{}</desc><style>{STYLE}</style>{DEFS}\
             <rect class=\"bg\" width=\"100%\" height=\"100%\"/>{}</svg>\n",
            self.title,
            self.desc,
            self.body,
            w = num(self.width),
            h = num(self.height),
        )
    }
}

/// A coordinate: two decimals at most, 0 for what is not finite.
pub(crate) fn num(value: f64) -> String {
    if !value.is_finite() {
        return "0".to_owned();
    }
    let text = format!("{value:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text.is_empty() || text == "-0" { "0".to_owned() } else { text.to_owned() }
}

/// `text` cut so that it fits into `px` pixels at a font size; pictures cannot wrap.
pub(crate) fn fit(text: &str, px: f64, font: f64) -> String {
    // 0.56 em is the mean width of a character in common sans-serif fonts, rounded up.
    let room = (px / (font * 0.56)).max(1.0) as usize;
    escape::clean(text, room)
}
