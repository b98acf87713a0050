//! Damaged, foreign and unlawful traces: a clear error, never a panic, never a half-read answer.
#![allow(clippy::unwrap_used, reason = "a test stops at the first failure")]

mod common;

use arrow_array::{
    ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray, UInt16Array, UInt64Array,
};
use common::{RANKS, header, map, random_steps, requests, routes, shape};
use evenkeel_store::{StoreError, Table, Trace, TraceWriter, Window};
use evenkeel_trace::{Cause, StepRecord, TraceHeader};
use evenkeel_types::{ExpertMap, ModelShape, Phase};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use proptest::prelude::*;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use tempfile::TempDir;

fn write(dir: &Path, header: TraceHeader, steps: &[StepRecord]) -> Trace {
    let mut writer = TraceWriter::create(dir, header).unwrap();
    for step in steps {
        writer.step(step).unwrap();
    }
    writer.finish().unwrap();
    Trace::open(dir).unwrap()
}

/// A whole trace in a folder of its own.
fn whole() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    let mut writer = TraceWriter::create(&path, header()).unwrap();
    writer.map(&map(1)).unwrap();
    for step in random_steps(3, 40) {
        writer.step(&step).unwrap();
    }
    writer.requests(&requests()).unwrap();
    writer.events(&common::events()).unwrap();
    writer.routes(&routes()).unwrap();
    writer.finish().unwrap();
    (dir, path)
}

/// Opens a trace and asks it everything: what must not panic.
fn ask(path: &Path) -> Result<(), StoreError> {
    let trace = Trace::open(path)?;
    trace.steps(Window::All)?.collect::<Result<Vec<_>, _>>()?;
    trace.routes()?;
    trace.requests()?;
    trace.events()?;
    trace.maps()?;
    if trace.has(Table::Routing) {
        trace.load_matrix(Window::Time { from_ns: 0, to_ns: 9000 })?;
        trace.loads(Phase::Decode, Window::All, 5)?;
    }
    trace.link_matrix(Window::All).map(drop)
}

fn message(path: &Path) -> String {
    let error = ask(path).unwrap_err();
    assert!(!error.is_environment(), "{error}");
    error.to_string()
}

/// Replaces a table by one with these columns.
fn replace(path: &Path, table: Table, columns: Vec<(&str, ArrayRef)>) {
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let file = File::create(path.join(table.file_name())).unwrap();
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .build();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

fn wide(values: &[i64]) -> ArrayRef {
    Arc::new(Int64Array::from(values.to_vec()))
}

/// Columns of a table by name.
type Columns = Vec<(&'static str, ArrayRef)>;

/// A routing table as another tool would write it: 64-bit signed columns.
fn foreign_routing(tokens: ArrayRef) -> Columns {
    vec![
        ("step", wide(&[1, 1])),
        ("phase", wide(&[1, 1])),
        ("layer", wide(&[0, 0])),
        ("source", wide(&[0, 0])),
        ("expert", wide(&[2, 3])),
        ("host", wide(&[0, 1])),
        ("tokens", tokens),
    ]
}

/// A trace with nothing but a header, to put foreign tables into.
fn bare() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    TraceWriter::create(&path, header()).unwrap().finish().unwrap();
    (dir, path)
}

#[test]
fn foreign_columns_are_taken_where_they_hold_counts() {
    let (_dir, path) = bare();
    replace(&path, Table::Routing, foreign_routing(wide(&[7, 9])));
    let trace = Trace::open(&path).unwrap();
    let loads = trace.load_matrix(Window::All).unwrap();
    assert_eq!(loads.phase(Phase::Decode).by_expert[2..4], [7, 9]);
    for (tokens, word) in [
        (wide(&[7, -9]), "row 1, column `tokens`: -9"),
        (wide(&[7, 1 << 40]), "row 1, column `tokens`: 1099511627776"),
        (Arc::new(Float64Array::from(vec![f64::NAN, 1.0])), "row 0, column `tokens`: NaN"),
        (Arc::new(Float64Array::from(vec![1.0, 2.5])), "row 1, column `tokens`: 2.5"),
        (Arc::new(Int64Array::from(vec![Some(1), None])), "row 1, column `tokens`: null"),
        (Arc::new(StringArray::from(vec!["7", "9"])), "column `tokens` holds Utf8"),
    ] {
        replace(&path, Table::Routing, foreign_routing(tokens));
        let message = message(&path);
        assert!(message.contains("routing.parquet") && message.contains(word), "{message}");
    }
    let mut columns = foreign_routing(wide(&[7, 9]));
    columns.remove(4);
    replace(&path, Table::Routing, columns);
    assert!(message(&path).contains("column `expert` is missing, expected UInt16"));
}

#[test]
fn unlawful_rows_are_named() {
    let (_dir, path) = bare();
    let routing = |change: &dyn Fn(&mut Columns), word: &str| {
        let mut columns = foreign_routing(wide(&[7, 9]));
        change(&mut columns);
        replace(&path, Table::Routing, columns);
        let message = message(&path);
        assert!(message.contains("row 1: step 1, layer") && message.contains(word), "{message}");
    };
    routing(&|columns| columns[4].1 = wide(&[2, 16]), "expert 16, expected below 16");
    routing(&|columns| columns[3].1 = wide(&[0, 4]), "source rank 4, expected below 4");
    routing(&|columns| columns[5].1 = wide(&[0, 9]), "host rank 9, expected below 4");
    routing(&|columns| columns[2].1 = wide(&[0, 3]), "layer 3, expected below 3");
    routing(&|columns| columns[1].1 = wide(&[1, 2]), "phase is 2");
    routing(&|columns| (columns[4].1, columns[5].1) = (wide(&[2, 2]), wide(&[0, 0])), "twice");
    routing(&|columns| columns[4].1 = wide(&[3, 2]), "unsorted");
    routing(&|columns| columns[0].1 = wide(&[2, 1]), "unsorted");
}

#[test]
fn steps_must_rise_and_be_complete() {
    let (_dir, path) = bare();
    let steps = |step: &[i64], rank: &[i64], start: &[i64], word: &str| {
        let same = |value| wide(&vec![value; step.len()]);
        let columns = vec![
            ("step", wide(step)),
            ("rank", wide(rank)),
            ("phase", same(1)),
            ("start_ns", wide(start)),
            ("end_ns", same(1000)),
            ("map_version", same(1)),
            ("sequences", same(1)),
            ("tokens", same(1)),
            ("tokens_padded", same(1)),
            ("kv_blocks_used", same(1)),
            ("kv_blocks_free", same(1)),
        ];
        replace(&path, Table::Steps, columns);
        let message = message(&path);
        assert!(message.contains("steps.parquet: row") && message.contains(word), "{message}");
    };
    let ranks: Vec<i64> = (0..4).chain(0..4).collect();
    let twice = |a: i64, b: i64| -> Vec<i64> { [[a; 4], [b; 4]].concat() };
    steps(&twice(5, 4), &ranks, &twice(0, 1), "expected steps to rise");
    steps(&twice(5, 6), &ranks, &twice(9, 1), "expected starts to rise");
    steps(&twice(5, 6), &[0, 1, 2, 3, 0, 1, 1, 3], &twice(0, 1), "step 6, rank 1: expected rank 2");
    steps(&[5; 3], &[0, 1, 2], &[0; 3], "has 3 ranks, expected 4");
    steps(&[5; 4], &[0, 1, 2, 3], &[2000; 4], "before start_ns");
    steps(&[5; 5], &[0, 1, 2, 3, 4], &[0; 5], "expected ranks below 4");
}

#[test]
fn recorded_tokens_stand_once_and_complete() {
    let (_dir, path) = whole();
    let tokens = |request: &[u64], layer: &[u16], second: &[u16], word: &str| {
        let count = request.len();
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("request", Arc::new(UInt64Array::from(request.to_vec()))),
            ("position", wide(&vec![0; count])),
            ("layer", Arc::new(UInt16Array::from(layer.to_vec()))),
            ("expert_0", wide(&vec![1; count])),
            ("expert_1", Arc::new(UInt16Array::from(second.to_vec()))),
        ];
        replace(&path, Table::Tokens, columns);
        let message = message(&path);
        assert!(message.contains("tokens.parquet") && message.contains(word), "{message}");
    };
    tokens(
        &[0, 0, 0],
        &[0, 1, 1],
        &[2, 2, 2],
        "row 2: request 0, position 0, layer 1: is there twice",
    );
    tokens(&[0, 0], &[0, 1], &[2, 2], "2 rows, expected 3");
    tokens(&[0, 0, 0], &[0, 1, 2], &[2, 1, 2], "layer 1: expert 1 is chosen twice");
    tokens(&[0, 0, 0], &[0, 1, 2], &[2, 2, 16], "layer 2: expert 16, expected below 16");
    tokens(&[0, 0, 0], &[0, 1, 3], &[2, 2, 2], "expected layers below 3");
    tokens(&[99, 99, 99], &[0, 1, 2], &[2, 2, 2], "request 99 is not in the table `requests`");
    fs::remove_file(path.join("requests.parquet")).unwrap();
    assert!(message(&path).contains("has no table `requests`"));
}

#[test]
fn versions_headers_and_maps_are_checked() {
    let (_dir, path) = whole();
    let header_file = path.join("trace.json");
    let text = fs::read_to_string(&header_file).unwrap();
    let with = |from: &str, to: &str, word: &str| {
        assert!(text.contains(from), "{from}");
        fs::write(&header_file, text.replacen(from, to, 1)).unwrap();
        let message = message(&path);
        assert!(message.contains("trace.json") && message.contains(word), "{message}");
        fs::write(&header_file, &text).unwrap();
    };
    with("evenkeel.trace/1", "evenkeel.trace/2", "schema is `evenkeel.trace/2`, expected");
    with("\"slices\"", "\"slizes\"", "slizes");
    with("\"experts\": 16", "\"experts\": 0", "`experts` is 0");
    with("\"experts\": 16", "\"experts\": -3", "invalid value");
    with("\"top_k\": 2", "\"top_k\": 40", "top_k is 40");
    with("\"notes\"", "notes", "key must be a string");
    let map_file = path.join("maps/v1.json");
    let map_text = fs::read_to_string(&map_file).unwrap();
    let other = ExpertMap { model_revision: "other".into(), ..map(1) };
    fs::write(&map_file, other.to_json().unwrap()).unwrap();
    assert!(message(&path).contains("revision `other`"));
    let moved = ExpertMap { version: 1, ..ExpertMap::contiguous(&shape(), RANKS, 6) };
    fs::write(&map_file, moved.to_json().unwrap()).unwrap();
    assert!(message(&path).contains("the header lists version 1"));
    let narrow = ExpertMap { version: 1, ..ExpertMap::contiguous(&shape(), 2, 8) };
    fs::write(&map_file, narrow.to_json().unwrap()).unwrap();
    assert!(message(&path).contains("2 ranks, expected 4"));
    fs::write(&map_file, &map_text[..map_text.len() / 2]).unwrap();
    assert!(message(&path).contains("v1.json"));
    fs::remove_file(&map_file).unwrap();
    assert!(ask(&path).is_err());
    fs::write(&map_file, map_text).unwrap();
    ask(&path).unwrap();
    let nowhere = Trace::open(&path.join("nowhere")).unwrap_err();
    assert!(matches!(nowhere, StoreError::NotATrace { .. }) && !nowhere.is_environment());
}

#[test]
fn a_footer_of_another_version_or_table_is_refused() {
    let (_dir, path) = whole();
    let file = path.join("steps.parquet");
    let bytes = fs::read(&file).unwrap();
    let needle = b"evenkeel.trace/1";
    let at = bytes.windows(needle.len()).rposition(|window| window == needle).unwrap();
    let mut newer = bytes.clone();
    newer[at + needle.len() - 1] = b'7';
    fs::write(&file, newer).unwrap();
    assert!(message(&path).contains("schema is `evenkeel.trace/7`"));
    fs::copy(path.join("layers.parquet"), &file).unwrap();
    assert!(message(&path).contains("schema is `layers`, expected `steps`"));
}

#[test]
fn files_cut_off_anywhere_are_refused() {
    let (_dir, path) = whole();
    for table in Table::ALL {
        let file = path.join(table.file_name());
        let bytes = fs::read(&file).unwrap();
        for part in 0..40 {
            fs::write(&file, &bytes[..bytes.len() * part / 40]).unwrap();
            let error = ask(&path).unwrap_err();
            assert!(error.to_string().contains(&table.file_name()), "{error}");
            assert!(!error.is_environment() && error.hint().is_some(), "{error}");
        }
        fs::write(&file, bytes).unwrap();
    }
    ask(&path).unwrap();
}

#[test]
fn a_decompression_bomb_is_stopped_before_it_is_decoded() {
    let (_dir, path) = bare();
    // 40 MiB of zeros in one page of a few KiB.
    let rows = 5 << 20;
    let zeros: ArrayRef = Arc::new(UInt64Array::from(vec![0; rows]));
    let narrow: ArrayRef = Arc::new(UInt16Array::from(vec![0; rows]));
    let columns = ["layer", "source", "expert", "host"].map(|name| (name, Arc::clone(&narrow)));
    let first = [("step", Arc::clone(&zeros)), ("tokens", zeros), ("phase", Arc::clone(&narrow))];
    let batch = RecordBatch::try_from_iter(first.into_iter().chain(columns)).unwrap();
    let file = path.join(Table::Routing.file_name());
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_dictionary_enabled(false)
        .set_data_page_size_limit(1 << 30)
        .set_data_page_row_count_limit(1 << 30)
        .set_write_batch_size(1 << 30)
        .set_max_row_group_row_count(None)
        .build();
    let created = File::create(&file).unwrap();
    let mut writer = ArrowWriter::try_new(created, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    assert!(fs::metadata(&file).unwrap().len() < 100_000);
    let error = Trace::open(&path).unwrap_err();
    assert!(matches!(error, StoreError::Limit { .. }), "{error}");
    assert!(error.to_string().contains("column `step`: bytes of a page"), "{error}");
}

#[test]
fn odd_but_lawful_traces_open() {
    let dir = tempfile::tempdir().unwrap();
    let prefill: Vec<StepRecord> = random_steps(3, 20)
        .into_iter()
        .map(|step| StepRecord { phase: Phase::Prefill, ..step })
        .collect();
    let trace = write(&dir.path().join("prefill"), header(), &prefill);
    assert_eq!(trace.loads(Phase::Decode, Window::All, 9).unwrap().steps.len(), 0);
    assert!(trace.load_matrix(Window::All).unwrap().phase(Phase::Decode).by_expert[0] == 0);
    let shape = ModelShape { experts: 1, top_k: 1, moe_layers: 1, ..shape() };
    let alone = TraceHeader::new(shape, Vec::new());
    let trace = write(&dir.path().join("alone"), alone, &[]);
    assert_eq!((trace.ranks(), trace.steps(Window::All).unwrap().count()), (0, 0));
}

#[test]
fn breaches_are_kept_not_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut steps = random_steps(3, 20);
    for row in steps.iter_mut().flat_map(|step| &mut step.routing) {
        row.tokens *= RANKS as u32;
    }
    let trace = write(&dir.path().join("trace"), header(), &steps);
    let breaches = trace.breaches();
    assert!(!breaches.is_empty());
    assert!(breaches.iter().all(|breach| breach.cause == Cause::CountedPerRank { factor: 4 }));
    assert!(breaches.iter().map(|breach| breach.steps).max() > Some(1));
    // A layer that was not recorded.
    let mut steps = random_steps(3, 20);
    steps.iter_mut().for_each(|step| step.routing.retain(|row| row.layer.0 != 1));
    let trace = write(&dir.path().join("layer"), header(), &steps);
    let causes: Vec<Cause> = trace.breaches().iter().map(|breach| breach.cause).collect();
    assert!(!causes.is_empty() && causes.iter().all(|cause| *cause == Cause::LayerMissing));
}

/// A whole trace's files, made once.
fn files() -> &'static Vec<(String, Vec<u8>)> {
    static FILES: OnceLock<Vec<(String, Vec<u8>)>> = OnceLock::new();
    FILES.get_or_init(|| {
        let (_dir, path) = whole();
        let names = Table::ALL.iter().map(|table| table.file_name());
        let names = names.chain(["trace.json".into(), "maps/v1.json".into()]);
        names.map(|name| (name.clone(), fs::read(path.join(name)).unwrap())).collect()
    })
}

fn ask_mutated(victim: usize, mutate: impl FnOnce(&mut Vec<u8>)) {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("maps")).unwrap();
    let victim = victim % files().len();
    let mut mutate = Some(mutate);
    for (index, (name, bytes)) in files().iter().enumerate() {
        let mut bytes = bytes.clone();
        if index == victim
            && let Some(mutate) = mutate.take()
        {
            mutate(&mut bytes);
        }
        fs::write(dir.path().join(name), bytes).unwrap();
    }
    let _ = ask(dir.path());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn bytes_changed_anywhere_never_panic(
        victim in any::<usize>(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
    ) {
        ask_mutated(victim, |bytes| for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        });
    }

    #[test]
    fn bytes_changed_in_the_footer_never_panic(
        victim in 0_usize..7,
        edits in prop::collection::vec((0_usize..3000, any::<u8>()), 1..5),
    ) {
        ask_mutated(victim, |bytes| for (back, byte) in edits {
            let at = bytes.len().saturating_sub(1 + back);
            bytes[at] = byte;
        });
    }

    #[test]
    fn any_bytes_as_a_file_never_panic(
        victim in any::<usize>(),
        bytes in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        ask_mutated(victim, |file| *file = bytes);
    }
}
