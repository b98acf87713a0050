//! Makes a trace of our own schema out of dumps of expert ids, as `assets/routing-*` were made.
//!
//! ```text
//! cargo run -p evenkeel-store --example bundle -- \
//!     deepseek-v2-lite OUT requests.csv intent.topk_ids.u8.gz summary.topk_ids.u8.gz -- "Note."
//! ```
#![allow(clippy::print_stderr, reason = "a tool for the terminal")]

use evenkeel_interop::{ImportOptions, SourceFile, import_ids};
use evenkeel_store::{Trace, TraceWriter};
use evenkeel_trace::TraceHeader;
use evenkeel_types::ModelShape;
use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let split = arguments.iter().position(|word| word == "--").unwrap_or(arguments.len());
    let (files, notes) = arguments.split_at(split);
    let [model, out, requests, dumps @ ..] = files else {
        return Err("usage: bundle MODEL OUT REQUESTS.csv IDS... [-- NOTE...]".into());
    };
    let shape = ModelShape::known(model).ok_or("no such model")?;
    let read = |path: &String| SourceFile::read(Path::new(path));
    let dumps: Vec<SourceFile> = dumps.iter().map(read).collect::<Result<_, _>>()?;
    let imported = import_ids(&dumps, &read(requests)?, &ImportOptions::new(shape.clone()))?;
    let mut header = TraceHeader::new(shape, imported.slices);
    header.notes = notes.iter().skip(1).cloned().chain(imported.notes).collect();
    let out = Path::new(out);
    let mut writer = TraceWriter::create(out, header)?;
    writer.requests(&imported.requests)?;
    writer.routes(&imported.routes)?;
    writer.finish()?;
    let trace = Trace::open(out)?;
    if trace.routes()?.as_ref() != Some(&imported.routes) {
        return Err("what was read back is not what was written".into());
    }
    eprintln!(
        "{}: {} requests, {} tokens",
        out.display(),
        imported.requests.len(),
        imported.routes.tokens()
    );
    Ok(())
}
