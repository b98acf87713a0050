//! CPU time of this thread: what a planner costs, whatever else the machine does.

/// CPU time of `work` on this thread in ms, and what it returned.
pub(crate) fn cpu_ms<T>(work: impl FnOnce() -> T) -> (f64, T) {
    let start = now_ns();
    let value = work();
    ((now_ns() - start) as f64 / 1e6, value)
}

/// Median CPU time over `runs` runs in ms, after one that warms up, and what the last returned.
pub(crate) fn median_cpu_ms<T>(runs: usize, mut work: impl FnMut() -> T) -> (f64, T) {
    let mut last = work();
    let mut times = Vec::with_capacity(runs);
    for _ in 0..runs.max(1) {
        let (time, value) = cpu_ms(&mut work);
        times.push(time);
        last = value;
    }
    times.sort_by(f64::total_cmp);
    (times[times.len() / 2], last)
}

#[cfg(unix)]
fn now_ns() -> i64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// Elsewhere wall time, which other work on the machine inflates.
#[cfg(not(unix))]
fn now_ns() -> i64 {
    use std::sync::LazyLock;
    use std::time::Instant;
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed().as_nanos() as i64
}
