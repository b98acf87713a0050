//! Dumps of routed expert ids and a requests CSV → recorded routing.

use crate::requests::{self, RequestLine};
use crate::source::SourceFile;
use crate::{ImportError, ids};
use evenkeel_trace::{Finish, RecordedRequest, RequestRecord, Routes};
use evenkeel_types::{ModelShape, Slice, SliceId};
use std::collections::{BTreeMap, BTreeSet};

/// Slices beyond this are refused: their ids have 16 bits.
const SLICES_MAX: usize = 65_535;

/// What a dump does not say by itself.
#[derive(Clone, Debug, PartialEq)]
pub struct ImportOptions {
    /// The model that made the ids.
    pub shape: ModelShape,
    /// Share of each request's tokens that count as decoded, the last ones, where the CSV does not
    /// say which are prompt; in [0, 1]. At least one token is decoded unless the share is 0.
    pub decode_share: f64,
    /// All recorded tokens were generated, and `prompt_tokens` is the length of a prompt that the
    /// dump does not contain. Understood by itself where the CSV says `n_generated_tokens`.
    pub all_output: bool,
}

impl ImportOptions {
    /// The usual reading of a dump of this model: the last quarter was decoded.
    #[must_use]
    pub fn new(shape: ModelShape) -> Self {
        Self { shape, decode_share: 0.25, all_output: false }
    }
}

/// Recorded routing with its requests and slices, ready to be written as a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Imported {
    /// Routing of every token.
    pub routes: Routes,
    /// The requests, in the order of the routing, without times. Requests are numbered anew.
    pub requests: Vec<RequestRecord>,
    /// One slice per tenant, in order of appearance.
    pub slices: Vec<Slice>,
    /// What was assumed, a sentence each, for the trace's header.
    pub notes: Vec<String>,
}

/// Imports dumps of ids.
///
/// With one file every line of the CSV points into it. A file whose name up to the first dot is a
/// tenant holds that tenant's requests; tenants without a file are then left out, with a note.
///
/// # Errors
/// Names the file, and line and column or the array's shape, of the first thing that is wrong.
pub fn import_ids(
    files: &[SourceFile],
    requests: &SourceFile,
    options: &ImportOptions,
) -> Result<Imported, ImportError> {
    let shape = &options.shape;
    shape.validate()?;
    if !(0.0..=1.0).contains(&options.decode_share) {
        return Err(ImportError::Option {
            option: "decode_share",
            found: options.decode_share.to_string(),
            expected: "a share in 0..=1",
        });
    }
    let lines = requests::read(&requests.name, &requests.bytes)?;
    let row = usize::from(shape.moe_layers) * usize::from(shape.top_k);
    let mut builder = Builder { row, ..Builder::new(options) };
    for (file, lines) in assign(files, &lines, &requests.name)? {
        let dump = ids::read(file, shape)?;
        builder.add(file, &requests.name, &dump, &lines)?;
    }
    builder.finish(files, &lines)
}

/// Which lines point into which file.
fn assign<'a>(
    files: &'a [SourceFile],
    lines: &'a [RequestLine],
    requests: &str,
) -> Result<Vec<(&'a SourceFile, Vec<&'a RequestLine>)>, ImportError> {
    let tenant_of = |file: &SourceFile| file.name.split('.').next().unwrap_or("").to_owned();
    let tenants: BTreeSet<&str> = lines.iter().map(|line| line.tenant.as_str()).collect();
    let by_name = files.iter().any(|file| tenants.contains(tenant_of(file).as_str()));
    if !by_name {
        return match files {
            [file] => Ok(vec![(file, lines.iter().collect())]),
            [] => Err(ImportError::File {
                file: requests.to_owned(),
                problem: "no file of ids was given with it".to_owned(),
            }),
            [file, ..] => Err(ImportError::File {
                file: file.name.clone(),
                problem: format!(
                    "several files of ids were given, and none is named after a tenant of `{requests}`"
                ),
            }),
        };
    }
    let mut by_tenant: BTreeMap<&str, Vec<&RequestLine>> = BTreeMap::new();
    for line in lines {
        by_tenant.entry(&line.tenant).or_default().push(line);
    }
    let mut assigned = Vec::with_capacity(files.len());
    for file in files {
        let tenant = tenant_of(file);
        let lines = by_tenant.remove(tenant.as_str()).ok_or_else(|| ImportError::File {
            file: file.name.clone(),
            problem: format!(
                "no request of `{requests}` has the tenant `{}` left",
                tenant.escape_debug()
            ),
        })?;
        assigned.push((file, lines));
    }
    Ok(assigned)
}

struct Builder<'a> {
    options: &'a ImportOptions,
    /// Ids per token.
    row: usize,
    ids: Vec<u16>,
    recorded: Vec<RecordedRequest>,
    requests: Vec<RequestRecord>,
    slices: Vec<Slice>,
    guessed: bool,
    generated: bool,
}

impl<'a> Builder<'a> {
    fn new(options: &'a ImportOptions) -> Self {
        Self {
            options,
            row: 0,
            ids: Vec::new(),
            recorded: Vec::new(),
            requests: Vec::new(),
            slices: Vec::new(),
            guessed: false,
            generated: false,
        }
    }

    fn add(
        &mut self,
        file: &SourceFile,
        csv: &str,
        dump: &[u16],
        lines: &[&RequestLine],
    ) -> Result<(), ImportError> {
        let tokens = (dump.len() / self.row) as u64;
        for line in lines {
            let end = line.first_token.saturating_add(u64::from(line.tokens));
            if end > tokens {
                let problem = format!(
                    "{}: tokens {}..{end}, expected within the {tokens} of `{}`",
                    place(line),
                    line.first_token,
                    file.name
                );
                return Err(ImportError::File { file: csv.to_owned(), problem });
            }
            let (outside, prompt) = self.split(line, csv)?;
            let slice = self.slice(&line.tenant, csv)?;
            let first_token = self.ids.len() / self.row;
            let span = line.first_token as usize * self.row..end as usize * self.row;
            self.ids.extend_from_slice(&dump[span]);
            let request = self.recorded.len() as u64;
            let recorded = RecordedRequest {
                request,
                slice,
                first_token,
                prompt_tokens: prompt,
                tokens: line.tokens,
            };
            self.requests.push(record(&recorded, outside + prompt, line.finished));
            self.recorded.push(recorded);
        }
        Ok(())
    }

    /// Prompt tokens outside and inside the dump.
    fn split(&mut self, line: &RequestLine, csv: &str) -> Result<(u32, u32), ImportError> {
        if line.all_generated || self.options.all_output {
            self.generated = true;
            let outside = line.prompt_tokens.unwrap_or(0);
            if outside.checked_add(line.tokens).is_none() {
                let problem = format!("{}: more than 2^32 tokens", place(line));
                return Err(ImportError::File { file: csv.to_owned(), problem });
            }
            return Ok((outside, 0));
        }
        match line.prompt_tokens {
            Some(prompt) if prompt <= line.tokens => Ok((0, prompt)),
            Some(prompt) => Err(ImportError::File {
                file: csv.to_owned(),
                problem: format!(
                    "{}: {prompt} prompt tokens, expected at most its {} (are all of them output?)",
                    place(line),
                    line.tokens
                ),
            }),
            None => {
                self.guessed = true;
                let share = self.options.decode_share;
                let output = (f64::from(line.tokens) * share).floor() as u32;
                let least = u32::from(share > 0.0);
                Ok((0, line.tokens - output.max(least).min(line.tokens)))
            }
        }
    }

    fn slice(&mut self, tenant: &str, csv: &str) -> Result<SliceId, ImportError> {
        // A handful of tenants, nearly always that of the line before.
        if let Some(index) = self.slices.iter().rposition(|slice| slice.tenant == tenant) {
            return Ok(SliceId(index as u16));
        }
        if self.slices.len() == SLICES_MAX {
            let (file, limit) = (csv.to_owned(), SLICES_MAX as u64);
            return Err(ImportError::Limit { file, what: "number of tenants", limit });
        }
        self.slices.push(Slice::of_tenant(tenant));
        Ok(SliceId((self.slices.len() - 1) as u16))
    }

    fn finish(self, files: &[SourceFile], lines: &[RequestLine]) -> Result<Imported, ImportError> {
        let names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
        let names = names.join(", ");
        let mut notes = vec![format!("Routing imported from {names}.")];
        if self.guessed {
            notes.push(format!(
                "The dump does not say which tokens were decoded: the last {} % of each request \
                 (at least one token) are taken as decoded one by one.",
                self.options.decode_share * 100.0
            ));
        }
        if self.generated {
            notes.push("All recorded tokens were generated; prompts were not recorded.".to_owned());
        }
        let left_out = lines.len() - self.recorded.len();
        if left_out > 0 {
            notes.push(format!(
                "{left_out} requests of tenants without a file of ids were left out."
            ));
        }
        let refused = |source| ImportError::Routes { file: names.clone(), source };
        let routes = Routes::new(&self.options.shape, self.recorded, self.ids).map_err(refused)?;
        Ok(Imported { routes, requests: self.requests, slices: self.slices, notes })
    }
}

fn place(line: &RequestLine) -> String {
    match line.tenant.as_str() {
        "" => format!("request {}", line.request),
        tenant => format!("request {} of `{}`", line.request, tenant.escape_debug()),
    }
}

fn record(recorded: &RecordedRequest, prompt_tokens: u32, finished: Option<bool>) -> RequestRecord {
    RequestRecord {
        request: recorded.request,
        slice: recorded.slice,
        arrival_ns: 0,
        queue_ns: None,
        ttft_ns: None,
        finish_ns: None,
        token_ns: Vec::new(),
        prompt_tokens,
        output_tokens: recorded.output_tokens(),
        finish: if finished == Some(false) { Finish::Length } else { Finish::Stop },
        error: String::new(),
        output_digest: String::new(),
        mean_log_probability: None,
        quality_score: None,
    }
}
