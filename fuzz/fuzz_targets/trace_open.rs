//! A whole trace with one file edited or replaced: it opens or is refused, and what opens answers.
//!
//! Input: byte 0 picks the file; bit 7 of it says whether the rest replaces the file or is a list of
//! edits (three bytes of offset, one of value) to a good one, which reaches behind the checksums of
//! form that random bytes never pass.
#![no_main]

use evenkeel_store::{StoreError, Table, Trace, TraceWriter, Window};
use evenkeel_trace::{
    LayerCell, RankCell, RecordedRequest, Routes, RoutingRow, StepRecord, TraceHeader,
};
use evenkeel_types::{
    ExpertId, ExpertMap, LayerId, ModelShape, Phase, RankId, Slice, SliceId, Topology,
};
use libfuzzer_sys::fuzz_target;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

const RANKS: u16 = 2;

type Files = Vec<(String, Vec<u8>)>;

fn good() -> &'static Files {
    static GOOD: OnceLock<Files> = OnceLock::new();
    GOOD.get_or_init(|| make().expect("the target's own trace"))
}

fn make() -> Result<Files, StoreError> {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("trace");
    let known = ModelShape::known("olmoe-1b-7b").expect("a known model");
    let shape = ModelShape { moe_layers: 2, experts: 4, top_k: 1, ..known };
    let mut header = TraceHeader::new(shape.clone(), vec![Slice::of_tenant("t")]);
    header.topology = Some(Topology::uniform("h20", RANKS, 1 << 36));
    let mut writer = TraceWriter::create(&path, header)?;
    writer.map(&ExpertMap::contiguous(&shape, usize::from(RANKS), 2))?;
    for step in 0..20 {
        let cell = RankCell { tokens: 3, tokens_padded: 3, ..RankCell::default() };
        let row = |layer, source| RoutingRow {
            layer: LayerId(layer),
            source: RankId(source),
            expert: ExpertId(source),
            host: Some(RankId(source)),
            tokens: 3,
        };
        writer.step(&StepRecord {
            step,
            phase: Phase::Decode,
            start_ns: step * 10,
            end_ns: step * 10 + 9,
            map_version: 1,
            ranks: vec![cell; usize::from(RANKS)],
            cells: vec![LayerCell::default(); 2 * usize::from(RANKS)],
            routing: (0..2).flat_map(|layer| (0..RANKS).map(move |rank| row(layer, rank))).collect(),
            links: Vec::new(),
        })?;
    }
    let request = RecordedRequest {
        request: 0,
        slice: SliceId(0),
        first_token: 0,
        prompt_tokens: 2,
        tokens: 4,
    };
    let routes = Routes::new(&shape, vec![request], vec![0, 1, 2, 3, 0, 1, 2, 3]);
    writer.routes(&routes.expect("good routing"))?;
    writer.finish()?;
    let tables = Table::ALL.iter().map(|table| table.file_name());
    let names = tables.chain(["trace.json".into(), "maps/v1.json".into()]);
    let files = names.filter_map(|name| Some((name.clone(), fs::read(path.join(name)).ok()?)));
    Ok(files.collect())
}

fn ask(path: &Path) -> Result<(), StoreError> {
    let trace = Trace::open(path)?;
    for step in trace.steps(Window::All)? {
        step?;
    }
    trace.routes()?;
    trace.maps()?;
    trace.load_matrix(Window::Time { from_ns: 0, to_ns: 50 })?;
    trace.loads(Phase::Decode, Window::All, 5).map(drop)
}

fuzz_target!(|input: &[u8]| {
    let Some((pick, rest)) = input.split_first() else { return };
    let dir = tempfile::tempdir().expect("a folder");
    fs::create_dir(dir.path().join("maps")).expect("a folder");
    let victim = usize::from(pick & 0x7f) % good().len();
    for (index, (name, bytes)) in good().iter().enumerate() {
        let mut bytes = bytes.clone();
        if index == victim && pick & 0x80 != 0 {
            bytes = rest.to_vec();
        } else if index == victim {
            for edit in rest.chunks_exact(4) {
                let at = u32::from_le_bytes([edit[0], edit[1], edit[2], 0]) as usize % bytes.len();
                bytes[at] = edit[3];
            }
        }
        fs::write(dir.path().join(name), bytes).expect("a file");
    }
    let _ = ask(dir.path());
});
