//! Any bytes as a dump of expert ids: `.npy`, `.npz`, gzip or raw, as their first bytes say.
#![no_main]

use evenkeel_interop::{ImportOptions, SourceFile, import_ids};
use evenkeel_types::ModelShape;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let known = ModelShape::known("olmoe-1b-7b").expect("a known model");
    let options = ImportOptions::new(ModelShape { moe_layers: 2, experts: 4, top_k: 2, ..known });
    let requests = SourceFile {
        name: "requests.csv".into(),
        bytes: b"request,first_token,n_tokens\n0,0,1\n".to_vec(),
    };
    for name in ["ids.u8", "ids.u16le"] {
        let file = SourceFile { name: name.into(), bytes: bytes.to_vec() };
        let _ = import_ids(&[file], &requests, &options);
    }
});
