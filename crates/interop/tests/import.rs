//! Real dumps import, and faults of dumps are named.
#![allow(clippy::unwrap_used, reason = "a test stops at the first failure")]

use evenkeel_interop::{
    ImportError, ImportOptions, Imported, SourceFile, arrivals_with_lengths, expert_counts,
    import_ids,
};
use evenkeel_types::{ModelShape, SliceId};
use proptest::prelude::*;
use std::path::Path;

fn asset(path: &str) -> SourceFile {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets");
    SourceFile::read(&root.join(path)).unwrap()
}

fn text(name: &str, text: &str) -> SourceFile {
    SourceFile { name: name.to_owned(), bytes: text.as_bytes().to_vec() }
}

fn options() -> ImportOptions {
    let known = ModelShape::known("olmoe-1b-7b").unwrap();
    ImportOptions::new(ModelShape { moe_layers: 1, experts: 8, top_k: 2, ..known })
}

/// `tokens` tokens of one layer: token i chose i mod 8 and the next.
fn dump(name: &str, tokens: u8) -> SourceFile {
    let bytes = (0..tokens).flat_map(|token| [token % 8, (token + 1) % 8]).collect();
    SourceFile { name: name.to_owned(), bytes }
}

fn import(files: &[SourceFile], csv: &str) -> Result<Imported, ImportError> {
    import_ids(files, &text("requests.csv", csv), &options())
}

#[test]
fn gpt_oss_decode_routing_imports_as_output() {
    let options = ImportOptions::new(ModelShape::known("gpt-oss-20b").unwrap());
    let ids = asset("routing-gpt-oss-20b/topk_ids.npy.gz");
    let imported =
        import_ids(&[ids], &asset("routing-gpt-oss-20b/requests.csv"), &options).unwrap();
    assert_eq!(imported.routes.tokens(), 27_786);
    assert_eq!((imported.requests.len(), imported.slices.len()), (84, 8));
    assert!(imported.routes.requests().iter().all(|request| request.prompt_tokens == 0));
    let first = &imported.requests[0];
    assert_eq!((first.prompt_tokens, first.output_tokens), (103, 101));
    assert_eq!(imported.slices[0].tenant, "Polyglot-or-Not_Fact-Completion");
    assert!(imported.notes.iter().any(|note| note.contains("prompts were not recorded")));
}

#[test]
fn bundled_arrivals_and_counts_are_read() {
    let conversation = asset("arrivals/azure2023_conv.csv.gz");
    let arrivals = arrivals_with_lengths(&conversation.bytes, &conversation.name).unwrap();
    assert_eq!(arrivals.len(), 19_366);
    assert_eq!((arrivals[0].at_ns, arrivals[0].prompt_tokens), (0, 374));
    let hour = arrivals[arrivals.len() - 1].at_ns as f64 / 3.6e12;
    assert!((0.9..1.1).contains(&hour), "{hour}");
    let code = asset("arrivals/azure2023_code.csv.gz");
    assert_eq!(arrivals_with_lengths(&code.bytes, &code.name).unwrap().len(), 8_819);
    let mixtral = asset("routing-mixtral/expert_counts.csv.gz");
    let counts = expert_counts(&mixtral.bytes, &mixtral.name).unwrap();
    assert_eq!((counts.layers, counts.experts), (3, 8));
    assert_eq!(counts.layer_numbers, [0, 7, 15]);
    let layers: Vec<u64> = counts.counts.chunks(8).map(|layer| layer.iter().sum()).collect();
    assert!(layers[0] > 0 && layers.iter().all(|sum| *sum == layers[0]), "{layers:?}");
}

#[test]
fn the_last_part_counts_as_decoded_where_nothing_says_otherwise() {
    let csv = "request,first_token,n_tokens\n0,0,8\n1,8,3\n";
    let imported = import(&[dump("x.u8", 11)], csv).unwrap();
    let prompts: Vec<u32> =
        imported.routes.requests().iter().map(|request| request.prompt_tokens).collect();
    assert_eq!(prompts, [6, 2], "a quarter, at least one token");
    assert!(imported.notes.iter().any(|note| note.contains("the last 25 %")));
    let none = ImportOptions { decode_share: 0.0, ..options() };
    let imported = import_ids(&[dump("x.u8", 11)], &text("r.csv", csv), &none).unwrap();
    assert!(imported.routes.requests().iter().all(|request| request.output_tokens() == 0));
    let told = "request,first_token,n_tokens,prompt_tokens\n0,0,8,5\n1,8,3,\n";
    let imported = import(&[dump("x.u8", 11)], told).unwrap();
    assert_eq!(imported.routes.requests()[0].prompt_tokens, 5);
    let all = ImportOptions { all_output: true, ..options() };
    let imported = import_ids(&[dump("x.u8", 11)], &text("r.csv", told), &all).unwrap();
    assert_eq!(imported.requests[0].prompt_tokens, 5);
    assert_eq!(imported.requests[0].output_tokens, 8);
}

#[test]
fn files_named_after_tenants_hold_their_requests() {
    let csv = "domain,request,first_token,n_tokens\na,0,0,4\nb,0,0,5\nb,1,5,3\nc,0,0,9\n";
    let imported = import(&[dump("b.ids.u8", 8), dump("a.ids.u8", 4)], csv).unwrap();
    let tenants: Vec<&str> = imported.slices.iter().map(|slice| slice.tenant.as_str()).collect();
    assert_eq!(tenants, ["b", "a"]);
    assert_eq!(imported.routes.tokens(), 12);
    assert_eq!(imported.routes.requests()[2].slice, SliceId(1));
    assert!(imported.notes.iter().any(|note| note.starts_with("1 requests of tenants without")));
    let error = import(&[dump("b.u8", 8), dump("z.u8", 4)], csv).unwrap_err().to_string();
    assert!(error.contains("z.u8: no request of `requests.csv` has the tenant `z`"), "{error}");
    let error = import(&[dump("y.u8", 8), dump("z.u8", 4)], csv).unwrap_err().to_string();
    assert!(error.contains("none is named after a tenant"), "{error}");
}

#[test]
fn faults_are_named() {
    let message = |csv: &str| import(&[dump("x.u8", 8)], csv).unwrap_err().to_string();
    assert!(message("request,first_token\n0,0\n").contains("no column `n_tokens` or `n_generated"));
    let head = "tenant,request,first_token,n_tokens,prompt_tokens";
    let line = |line: &str| message(&format!("{head}\n{line}\n"));
    assert!(line("t,0,0,-4,").contains("line 2, column `n_tokens`: `-4`"));
    assert!(line("t,0,0,0,").contains("expected at least 1 token"));
    assert!(line("t,0,0,NaN,").contains("`NaN`"));
    assert!(line("t,0,5,4,").contains("request 0 of `t`: tokens 5..9, expected within the 8"));
    assert!(line("t,0,18446744073709551615,4,").contains("expected within the 8"));
    assert!(line("t,0,0,4,5").contains("are all of them output?"));
    assert!(line("t,0,0,4,\nt,0,4,4,").contains("each request of a tenant once"));
    assert!(line("").contains("has no requests"));
    let foreign = SourceFile { name: "x.u8".into(), bytes: vec![0, 1, 9, 2] };
    let error = import(&[foreign], &format!("{head}\nt,0,0,2,\n")).unwrap_err();
    assert!(error.to_string().contains("token 1, layer 0, choice 0: expert 9"), "{error}");
    let twice = SourceFile { name: "x.u8".into(), bytes: vec![0, 1, 2, 2] };
    let error = import(&[twice], &format!("{head}\nt,0,0,2,\n")).unwrap_err();
    assert!(error.to_string().contains("expert 2 is chosen twice"), "{error}");
    assert!(!error.is_environment() && error.hint().is_some());
    let bad = ImportOptions { decode_share: f64::NAN, ..options() };
    assert!(import_ids(&[dump("x.u8", 8)], &text("r.csv", ""), &bad).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn mutated_requests_end_without_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes =
            b"tenant,request,first_token,n_tokens,prompt_tokens\nt,0,0,4,2\nt,1,4,4,\n".to_vec();
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let requests = SourceFile { name: "r.csv".into(), bytes };
        if let Ok(imported) = import_ids(&[dump("x.u8", 8)], &requests, &options()) {
            prop_assert_eq!(imported.requests.len(), imported.routes.requests().len());
        }
    }
}
