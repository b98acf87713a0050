//! `import`: dumps of routed expert ids and a requests CSV into a trace.

use super::traces;
use crate::fail::{Failure, Finding, Verdict};
use crate::load;
use crate::out::Out;
use crate::progress::Progress;
use clap::Args;
use evenkeel_interop::{FILE_BYTES_MAX, ImportOptions, SourceFile, import_ids};
use evenkeel_report::fmt;
use evenkeel_store::TraceWriter;
use evenkeel_trace::TraceHeader;
use evenkeel_types::ModelShape;
use serde::Serialize;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Import routed expert ids (.npy, .npz, raw u8 or u16, gzip or not) with a CSV of requests.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  evenkeel import --ids topk_ids.npy.gz --requests requests.csv --model gpt-oss-20b --out my-trace
Ids are [token][layer][k]. The CSV needs columns for tenant (domain, dataset), request, first token
and number of tokens; see docs/tutorial.md.")]
pub(crate) struct Arguments {
    /// File of ids; several where each is named after a tenant.
    #[arg(long, required = true, value_name = "FILE")]
    ids: Vec<PathBuf>,
    /// CSV of requests.
    #[arg(long, value_name = "FILE")]
    requests: PathBuf,
    /// Model: a known name, or a JSON file of its shape.
    #[arg(long, value_name = "NAME|FILE")]
    model: String,
    /// Trace folder to make.
    #[arg(long, value_name = "TRACE")]
    out: PathBuf,
    /// Share of each request's tokens that count as decoded where the CSV does not say.
    #[arg(long, default_value_t = 0.25)]
    decode_share: f64,
    /// All recorded tokens were generated.
    #[arg(long)]
    all_output: bool,
    /// A sentence for the trace's header, e.g. source and licence; may be repeated.
    #[arg(long)]
    note: Vec<String>,
}

#[derive(Serialize)]
struct Made<'a> {
    trace: &'a Path,
    model: &'a str,
    tokens: usize,
    requests: usize,
    slices: usize,
    notes: &'a [String],
}

pub(crate) fn run(arguments: &Arguments, out: &mut Out) -> Verdict {
    let shape = shape(&arguments.model)?;
    let progress = Progress::start(out, "import", 0);
    let files = arguments.ids.iter().map(|path| source(path)).collect::<Result<Vec<_>, _>>()?;
    let requests = source(&arguments.requests)?;
    let mut options = ImportOptions::new(shape.clone());
    options.decode_share = arguments.decode_share;
    options.all_output = arguments.all_output;
    let imported = import_ids(&files, &requests, &options).map_err(Failure::input)?;
    let mut header = TraceHeader::new(shape.clone(), imported.slices.clone());
    header.notes = arguments.note.clone();
    header.notes.extend(imported.notes.iter().cloned());
    let notes = header.notes.clone();
    let mut writer = TraceWriter::create(&arguments.out, header).map_err(Failure::store)?;
    writer.requests(&imported.requests).map_err(Failure::store)?;
    writer.routes(&imported.routes).map_err(Failure::store)?;
    writer.finish().map_err(Failure::store)?;
    traces::open(&arguments.out)?;
    drop(progress);
    let made = Made {
        trace: &arguments.out,
        model: &shape.name,
        tokens: imported.routes.tokens(),
        requests: imported.requests.len(),
        slices: imported.slices.len(),
        notes: &notes,
    };
    out.present(&made, || {
        let mut text = format!(
            "wrote {}: {} tokens of {} requests, {} slices\n",
            arguments.out.display(),
            fmt::count(made.tokens as u64),
            made.requests,
            made.slices
        );
        text.extend(notes.iter().map(|note| format!("note: {note}\n")));
        text
    })?;
    Ok(Finding::Positive)
}

/// A model by its known name, or from a file.
pub(crate) fn shape(name: &str) -> Result<ModelShape, Failure> {
    if let Some(shape) = ModelShape::known(name) {
        return Ok(shape);
    }
    let path = Path::new(name);
    if !path.exists() {
        return Err(Failure::input(format!("model `{name}`: no known model and no such file"))
            .hint(format!("known: {}", ModelShape::KNOWN.join(", "))));
    }
    let shape: ModelShape = serde_json::from_str(&load::text(path)?)
        .map_err(|error| Failure::input(error).context(path.display()))?;
    shape.validate().map_err(|error| Failure::input(error).context(path.display()))?;
    Ok(shape)
}

/// Reads a file whole, bounded; it keeps its name for the messages.
pub(crate) fn source(path: &Path) -> Result<SourceFile, Failure> {
    let io = |error: std::io::Error| Failure::io(path.display(), &error);
    let file = std::fs::File::open(path).map_err(io)?;
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| {
        if path.is_dir() {
            Failure::input(format!("{}: is a directory, expected a file", path.display()))
        } else {
            io(error)
        }
    })?;
    let name =
        path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    Ok(SourceFile { name, bytes })
}
