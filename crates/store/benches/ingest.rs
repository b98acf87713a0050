//! Routing rows per second of one core: written, opened with every check, summed; beside what bounds
//! them, measured in the same run. Memory at two lengths of the trace.
//!
//! ```text
//! cargo bench -p evenkeel-store --bench ingest            # 8 M rows
//! cargo bench -p evenkeel-store --bench ingest -- 800     # steps
//! ```
#![allow(clippy::print_stdout, missing_docs, reason = "a bench prints its figures")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a bench stops at the first failure")]

use evenkeel_store::{Table, Trace, TraceWriter, Window};
use evenkeel_trace::{RankCell, RoutingRow, StepRecord, TraceHeader};
use evenkeel_types::{
    ExpertId, LayerId, ModelShape, Phase, RankId, Slice, Topology, hash3, unit_f64,
};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use std::fs::{self, File};
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

const RANKS: usize = 16;
const TOKENS_PER_RANK: u32 = 64;
const REPEATS: usize = 5;

fn main() {
    let steps = std::env::args().skip(1).find_map(|word| word.parse().ok()).unwrap_or(400);
    let dir = tempfile::tempdir().expect("a folder for the bench");
    let short = write(&dir.path().join("short"), steps / 4);
    let at_short = peak_mib();
    measure_open(&dir.path().join("short"));
    let open_short = peak_mib();
    println!(
        "peak memory   {at_short:>8.1} MiB after writing {short} rows, {open_short:.1} MiB after reading them"
    );
    let start = Instant::now();
    let path = dir.path().join("long");
    let rows = write(&path, steps);
    let written = start.elapsed().as_secs_f64();
    measure_open(&path);
    println!("peak memory   {:>8.1} MiB after writing and reading {rows} rows", peak_mib());
    let file = path.join(Table::Routing.file_name());
    let bytes = fs::metadata(&file).expect("routing table").len();
    println!(
        "table         {:>8.2} bytes per row, {rows} rows, {steps} steps",
        bytes as f64 / rows as f64
    );
    rate("write (drawing the steps included)", rows, written);
    let decode = median(|| decode(&file));
    rate("bound: decode of the same columns", rows, decode);
    // u64 + u8 + 3 u16 + a u16 that may be null + u32.
    let size = rows as usize * (8 + 1 + 6 + 2 + 4);
    let (source, mut target) = (vec![1_u8; size], vec![0_u8; size]);
    let copy = median(|| target.copy_from_slice(black_box(&source)));
    black_box(&target);
    rate("bound: memory copy of them", rows, copy);
    let open = median(|| measure_open(&path));
    rate("open: order, ranges, conservation", rows, open);
    let trace = Trace::open(&path).expect("the bench's own trace");
    let matrix = median(|| {
        black_box(trace.load_matrix(Window::All).expect("routing"));
    });
    rate("sum by phase, layer, expert, rank", rows, matrix);
    let loads = median(|| {
        black_box(trace.loads(Phase::Decode, Window::All, 64).expect("routing"));
    });
    rate("loads of 64 steps (two passes)", rows, loads);
}

fn rate(what: &str, rows: u64, seconds: f64) {
    println!("{what:<36} {:>8.1} M rows/s", rows as f64 / seconds / 1e6);
}

fn median(mut run: impl FnMut()) -> f64 {
    let mut times: Vec<f64> = (0..REPEATS)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed().as_secs_f64()
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[REPEATS / 2]
}

fn measure_open(path: &Path) {
    let trace = Trace::open(path).expect("the bench's own trace");
    assert!(trace.breaches().is_empty());
}

fn decode(path: &Path) {
    let file = File::open(path).expect("routing table");
    let builder = ParquetRecordBatchReaderBuilder::try_new(file).expect("routing table");
    let mask = ProjectionMask::all();
    let reader = builder.with_projection(mask).with_batch_size(1 << 14).build().expect("reader");
    for batch in reader {
        black_box(batch.expect("batch"));
    }
}

/// Largest resident size so far, MiB.
fn peak_mib() -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or("");
    let kib: f64 = line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).unwrap_or(0.0);
    kib / 1024.0
}

/// Steps of DeepSeek-V2-Lite at EP16; experts skewed, so that counts look like real ones.
fn write(path: &Path, steps: u64) -> u64 {
    let shape = ModelShape::known("deepseek-v2-lite").expect("a known model");
    let mut header = TraceHeader::new(shape.clone(), vec![Slice::of_tenant("bench")]);
    header.topology = Some(Topology::uniform("h20", RANKS as u16, 96_000_000_000));
    header.routing_every = 1;
    let mut writer = TraceWriter::create(path, header).expect("a new trace");
    let mut rows = 0;
    for step in 0..steps {
        let record = record(&shape, step);
        rows += record.routing.len() as u64;
        writer.step(&record).expect("a lawful step");
    }
    writer.finish().expect("a whole trace");
    rows
}

fn record(shape: &ModelShape, step: u64) -> StepRecord {
    let experts = usize::from(shape.experts);
    let cell = RankCell {
        sequences: TOKENS_PER_RANK,
        tokens: TOKENS_PER_RANK,
        tokens_padded: TOKENS_PER_RANK,
        ..RankCell::default()
    };
    let mut routing = Vec::new();
    for layer in 0..shape.moe_layers {
        for source in 0..RANKS as u16 {
            let mut counts = vec![0_u32; experts];
            for choice in 0..TOKENS_PER_RANK * u32::from(shape.top_k) {
                let key = u64::from(layer) << 40 | u64::from(source) << 32 | u64::from(choice);
                let unit = unit_f64(hash3(1, step, key));
                counts[((unit * unit * experts as f64) as usize + usize::from(layer)) % experts] +=
                    1;
            }
            for (expert, &tokens) in counts.iter().enumerate().filter(|(_, tokens)| **tokens > 0) {
                routing.push(RoutingRow {
                    layer: LayerId(layer),
                    source: RankId(source),
                    expert: ExpertId(expert as u16),
                    host: Some(RankId((expert / (experts / RANKS)) as u16)),
                    tokens,
                });
            }
        }
    }
    StepRecord {
        step,
        phase: Phase::Decode,
        start_ns: step * 20_000_000,
        end_ns: step * 20_000_000 + 19_000_000,
        map_version: 1,
        ranks: vec![cell; RANKS],
        cells: Vec::new(),
        routing,
        links: Vec::new(),
    }
}
