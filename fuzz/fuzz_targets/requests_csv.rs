//! Any bytes as a requests CSV beside a good dump.
#![no_main]

use evenkeel_interop::{ImportOptions, SourceFile, import_ids};
use evenkeel_types::ModelShape;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let known = ModelShape::known("olmoe-1b-7b").expect("a known model");
    let options = ImportOptions::new(ModelShape { moe_layers: 1, experts: 4, top_k: 1, ..known });
    let ids = SourceFile { name: "t.u8".into(), bytes: vec![3; 64] };
    let requests = SourceFile { name: "requests.csv".into(), bytes: bytes.to_vec() };
    if let Ok(imported) = import_ids(&[ids], &requests, &options) {
        assert_eq!(imported.requests.len(), imported.routes.requests().len());
    }
});
