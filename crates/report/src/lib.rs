//! How does a decision look to the people who must agree with it?
//!
//! This crate turns a plain-data [`Report`] into one self-contained HTML file, single SVG pictures,
//! Markdown, and building blocks for terminal output. It computes nothing about placement: whoever
//! fills the view model has already decided, and the numbers shown are the numbers given.
//!
//! Invariants:
//! * no output refers to anything outside itself; there is no script, and the page's own content
//!   security policy forbids loading anything;
//! * every string is escaped where it is written, whatever it holds;
//! * no picture says anything by colour alone;
//! * absent, empty, and non-finite data are left out or shown as "–"; nothing panics on them;
//! * the same report gives the same bytes.

mod escape;
pub mod fmt;
mod html;
mod markdown;
mod num;
mod svg;
pub mod text;
mod view;

pub use html::html;
pub use markdown::markdown;
pub use svg::{
    svg_distribution, svg_frontier, svg_heat_map, svg_rank_loads, svg_schedule, svg_waterfall,
};
pub use view::*;
