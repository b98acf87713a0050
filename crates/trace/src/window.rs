//! Windows: which steps of a trace are meant.

/// A half-open part of a trace, by step number or by the time at which steps start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Window {
    /// Every step.
    #[default]
    All,
    /// Steps `from..to`.
    Steps {
        /// First step.
        from: u64,
        /// One past the last step.
        to: u64,
    },
    /// Steps that start in `from_ns..to_ns`.
    Time {
        /// Earliest start, ns.
        from_ns: u64,
        /// Start of the first step left out, ns.
        to_ns: u64,
    },
}

impl Window {
    /// Whether a step lies in the window.
    #[must_use]
    pub fn contains(self, step: u64, start_ns: u64) -> bool {
        match self {
            Self::All => true,
            Self::Steps { from, to } => (from..to).contains(&step),
            Self::Time { from_ns, to_ns } => (from_ns..to_ns).contains(&start_ns),
        }
    }

    /// Whether this step and, as steps and starts only rise, all later ones lie behind the window.
    #[must_use]
    pub fn is_past(self, step: u64, start_ns: u64) -> bool {
        match self {
            Self::All => false,
            Self::Steps { to, .. } => step >= to,
            Self::Time { to_ns, .. } => start_ns >= to_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_half_open() {
        let steps = Window::Steps { from: 2, to: 4 };
        assert_eq!([1, 2, 3, 4].map(|step| steps.contains(step, 0)), [false, true, true, false]);
        assert!(steps.is_past(4, 0) && !steps.is_past(3, 9));
        let time = Window::Time { from_ns: 10, to_ns: 20 };
        assert_eq!([9, 10, 19, 20].map(|ns| time.contains(7, ns)), [false, true, true, false]);
        assert!(Window::All.contains(0, 0) && !Window::All.is_past(u64::MAX, u64::MAX));
        assert!(!Window::Steps { from: 3, to: 3 }.contains(3, 0));
    }
}
