//! Progress of long work on stderr: a bar on a terminal, a line per stage elsewhere.

use crate::out::Out;
use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;

/// One piece of long work.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// Starts showing `name`; `length` 0: of unknown length.
    pub(crate) fn start(out: &Out, name: &str, length: u64) -> Self {
        let bar = if out.shows_progress() {
            let bar = ProgressBar::new(length);
            let form = if length == 0 {
                "{spinner} {msg} {elapsed}"
            } else {
                "{msg:40} {bar:30} {percent:>3} % {elapsed}"
            };
            if let Ok(style) = ProgressStyle::with_template(form) {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        } else {
            out.note(name);
            ProgressBar::hidden()
        };
        bar.set_message(name.to_owned());
        Self { bar }
    }

    /// Moves to `position` of the length.
    pub(crate) fn at(&self, position: u64) {
        self.bar.set_position(position);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
