//! What is written is what is read, whole or in windows.
#![allow(clippy::unwrap_used, reason = "a test stops at the first failure")]

mod common;

use common::{events, header, map, random_steps, requests, routes};
use evenkeel_store::{StoreError, Table, Trace, TraceWriter, Window, unpack};
use evenkeel_trace::StepRecord;
use evenkeel_types::{Phase, RankId};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

fn write(dir: &Path, steps: &[StepRecord]) {
    let mut writer = TraceWriter::create(dir, header()).unwrap();
    writer.map(&map(1)).unwrap();
    for step in steps {
        writer.step(step).unwrap();
    }
    writer.requests(&requests()).unwrap();
    writer.events(&events()).unwrap();
    writer.routes(&routes()).unwrap();
    writer.finish().unwrap();
}

fn read(trace: &Trace, window: Window) -> Vec<StepRecord> {
    trace.steps(window).unwrap().collect::<Result<_, _>>().unwrap()
}

#[test]
fn everything_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    let steps = random_steps(3, 200);
    write(&path, &steps);
    let trace = Trace::open(&path).unwrap();
    assert_eq!(trace.breaches(), []);
    assert_eq!(trace.ranks(), common::RANKS);
    assert_eq!(read(&trace, Window::All), steps);
    assert_eq!(trace.requests().unwrap(), requests());
    assert_eq!(trace.events().unwrap(), events());
    assert_eq!(trace.routes().unwrap(), Some(routes()));
    assert_eq!(trace.maps().unwrap(), [map(1)]);
    assert_eq!(trace.header().maps[0].digest, map(1).digest());
    assert!(Table::ALL.iter().all(|table| trace.has(*table)));
}

#[test]
fn windows_by_step_and_time_agree_with_a_filter() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    let steps = random_steps(5, 300);
    write(&path, &steps);
    let trace = Trace::open(&path).unwrap();
    let (mid, late) = (&steps[90], &steps[210]);
    for window in [
        Window::Steps { from: mid.step, to: late.step },
        Window::Steps { from: 0, to: mid.step + 1 },
        Window::Steps { from: u64::MAX, to: u64::MAX },
        Window::Time { from_ns: mid.start_ns, to_ns: late.start_ns },
        Window::Time { from_ns: late.start_ns + 1, to_ns: u64::MAX },
        Window::Time { from_ns: 0, to_ns: 0 },
    ] {
        let expected: Vec<StepRecord> = steps
            .iter()
            .filter(|step| window.contains(step.step, step.start_ns))
            .cloned()
            .collect();
        assert_eq!(read(&trace, window), expected, "{window:?}");
        let loads = trace.load_matrix(window).unwrap();
        for phase in Phase::ALL {
            let steps = expected.iter().filter(|step| step.phase == phase);
            let rows = steps.flat_map(|step| &step.routing);
            let total: u64 = rows.map(|row| u64::from(row.tokens)).sum();
            assert_eq!(loads.phase(phase).by_expert.iter().sum::<u64>(), total);
            assert_eq!(loads.phase(phase).by_source.iter().sum::<u64>(), total);
        }
        let links = trace.link_matrix(window).unwrap();
        let messages: u64 = links.links.values().map(|link| link.messages).sum();
        let rows = expected.iter().flat_map(|step| &step.links);
        assert_eq!(messages, rows.map(|row| u64::from(row.messages)).sum::<u64>());
    }
}

#[test]
fn loads_are_sampled_evenly_and_keep_their_phase() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    let steps = random_steps(7, 400);
    write(&path, &steps);
    let trace = Trace::open(&path).unwrap();
    let all = trace.loads(Phase::Decode, Window::All, usize::MAX).unwrap();
    let decode: Vec<&StepRecord> = steps
        .iter()
        .filter(|step| step.phase == Phase::Decode && !step.routing.is_empty())
        .collect();
    assert_eq!(all.steps.len(), decode.len());
    for (load, step) in all.steps.iter().zip(&decode) {
        assert_eq!(u64::from(load.tokens), step.tokens());
    }
    let few = trace.loads(Phase::Decode, Window::All, 10).unwrap();
    assert_eq!(few.steps.len(), 10);
    assert!(few.steps.iter().all(|load| all.steps.contains(load)));
    assert_eq!(trace.loads(Phase::Prefill, Window::All, 0).unwrap().steps.len(), 0);
}

#[test]
fn only_the_owner_reads_and_nothing_is_left_behind() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    let mut writer = TraceWriter::create(&path, header()).unwrap();
    writer.step(&random_steps(1, 1)[0]).unwrap();
    drop(writer);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    write(&path, &random_steps(1, 3));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o700);
    assert_eq!(mode(&path.join("maps")), 0o700);
    for file in ["trace.json", "steps.parquet", "tokens.parquet", "maps/v1.json"] {
        assert_eq!(mode(&path.join(file)), 0o600, "{file}");
    }
    let again = TraceWriter::create(&path, header());
    assert!(matches!(again.map(|_| ()), Err(StoreError::Exists { .. })));
}

#[test]
fn tables_can_be_absent() {
    let dir = tempfile::tempdir().unwrap();
    let empty = dir.path().join("empty");
    TraceWriter::create(&empty, header()).unwrap().finish().unwrap();
    let trace = Trace::open(&empty).unwrap();
    assert_eq!(read(&trace, Window::All), []);
    assert_eq!(trace.routes().unwrap(), None);
    let error = trace.load_matrix(Window::All).unwrap_err();
    assert!(error.to_string().contains("no table `routing`"), "{error}");
    let routing = dir.path().join("routing");
    let mut writer = TraceWriter::create(&routing, header()).unwrap();
    writer.routes(&routes()).unwrap();
    writer.finish().unwrap();
    let trace = Trace::open(&routing).unwrap();
    assert_eq!(trace.routes().unwrap(), Some(routes()));
    assert_eq!(trace.requests().unwrap().len(), routes().requests().len());
    assert!(!trace.has(Table::Steps));
}

#[test]
fn the_same_rows_give_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let steps = random_steps(11, 50);
    let mut shuffled = steps.clone();
    for step in &mut shuffled {
        step.routing.reverse();
    }
    write(&dir.path().join("a"), &steps);
    write(&dir.path().join("b"), &shuffled);
    for table in Table::ALL {
        let bytes = |side: &str| fs::read(dir.path().join(side).join(table.file_name())).unwrap();
        assert!(bytes("a") == bytes("b"), "{table}");
    }
}

#[test]
fn an_embedded_trace_unpacks_to_a_whole_one() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    write(&source, &random_steps(2, 5));
    let names = ["trace.json", "tokens.parquet", "requests.parquet", "maps/v1.json"];
    let bytes: Vec<Vec<u8>> =
        names.iter().map(|name| fs::read(source.join(name)).unwrap()).collect();
    let files: Vec<(&str, &[u8])> =
        names.iter().copied().zip(bytes.iter().map(Vec::as_slice)).collect();
    let target = dir.path().join("unpacked");
    unpack(&target, &files).unwrap();
    assert_eq!(Trace::open(&target).unwrap().routes().unwrap(), Some(routes()));
    for name in ["../evil", "/etc/evil", "maps/../../evil.json", ".hidden"] {
        assert!(unpack(&dir.path().join("bad"), &[(name, b"x")]).is_err(), "{name}");
    }
    assert!(!dir.path().join("bad").exists());
}

#[test]
fn a_writer_refuses_what_a_reader_would() {
    let dir = tempfile::tempdir().unwrap();
    let steps = random_steps(1, 4);
    let refuse = |change: &dyn Fn(&mut StepRecord), word: &str| {
        let mut writer = TraceWriter::create(&dir.path().join("t"), header()).unwrap();
        writer.step(&steps[1]).unwrap();
        let mut step = steps[2].clone();
        change(&mut step);
        let message = writer.step(&step).unwrap_err().to_string();
        assert!(message.contains(word), "{message}");
    };
    refuse(&|step| step.step = steps[1].step, "expected both to rise");
    refuse(&|step| step.start_ns = 0, "expected both to rise");
    refuse(&|step| step.end_ns = step.start_ns - 1, "before its start");
    refuse(&|step| step.ranks.truncate(1), "ranks, expected");
    refuse(&|step| step.cells.truncate(1), "layer cells");
    refuse(&|step| step.routing[0].expert.0 = 999, "expert 999");
    refuse(&|step| step.routing[0].host = Some(RankId(77)), "host rank 77");
    refuse(&|step| step.routing[1] = step.routing[0], "is there twice");
    refuse(&|step| step.links[1] = step.links[0], "is there twice");
    refuse(&|step| step.cells[0].kernel = 9, "kernel 9");
}

#[test]
fn the_bundled_routing_opens_as_any_trace_does() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/routing-deepseek-v2-lite");
    let trace = Trace::open(&root).unwrap();
    let routes = trace.routes().unwrap().unwrap();
    assert_eq!((routes.tokens(), routes.layers(), routes.top_k()), (24_952, 26, 6));
    let tenants: Vec<&str> =
        trace.header().slices.iter().map(|slice| slice.tenant.as_str()).collect();
    assert_eq!(tenants, ["intent", "summary", "translation"]);
    for phase in Phase::ALL {
        let by_slice = evenkeel_trace::counts_by_slice(&routes, 3, phase);
        assert!(by_slice.iter().all(|counts| counts.iter().sum::<u64>() > 50_000), "{phase}");
    }
    assert!(trace.header().notes.iter().any(|note| note.contains("teacher-forced")));
}
