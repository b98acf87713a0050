//! The requests CSV that goes with a dump of ids.

use crate::ImportError;
use crate::table::Table;
use std::collections::BTreeSet;

/// Requests of one file beyond this are refused: the store reads no more.
const REQUESTS_MAX: usize = 1 << 24;

/// What the CSV says of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestLine {
    /// Number within the file's own count; with several tenants it may repeat.
    pub request: u64,
    /// Tenant, empty where there is no such column.
    pub tenant: String,
    /// First token in the dump.
    pub first_token: u64,
    /// Tokens in the dump.
    pub tokens: u32,
    /// Prompt tokens, where the file says.
    pub prompt_tokens: Option<u32>,
    /// Whether the file says that all recorded tokens were generated.
    pub all_generated: bool,
    /// Whether generation ended by itself, where the file says.
    pub finished: Option<bool>,
}

/// Reads a requests CSV. Columns: `tenant` or `domain` or `dataset` (may be absent), `request`,
/// `first_token`, `n_tokens` (prompt and output) or `n_generated_tokens` (output alone), and where
/// known `prompt_tokens` and `finished` (0 or 1).
pub(crate) fn read(name: &str, bytes: &[u8]) -> Result<Vec<RequestLine>, ImportError> {
    let mut table = Table::open(name, bytes)?;
    let tenant = table.find(&["tenant", "domain", "dataset"]);
    let request = table.need(&["request"])?;
    let first = table.need(&["first_token"])?;
    let all = table.find(&["n_tokens"]);
    let tokens = table.need(&["n_tokens", "n_generated_tokens"])?;
    let prompt = table.find(&["prompt_tokens"]);
    let finished = table.find(&["finished"]);
    let mut lines: Vec<RequestLine> = Vec::new();
    let mut seen = BTreeSet::new();
    while table.advance()? {
        if lines.len() == REQUESTS_MAX {
            let (file, limit) = (name.to_owned(), REQUESTS_MAX as u64);
            return Err(ImportError::Limit { file, what: "number of requests", limit });
        }
        let line = RequestLine {
            request: table.number(request, "a whole number")?,
            tenant: tenant.map_or_else(String::new, |column| table.text(column).to_owned()),
            first_token: table.number(first, "a whole number")?,
            tokens: table.number(tokens, "a whole number below 2^32")?,
            prompt_tokens: match prompt {
                Some(column) if !table.text(column).is_empty() => {
                    Some(table.number(column, "a whole number below 2^32, or nothing")?)
                }
                _ => None,
            },
            all_generated: all.is_none(),
            finished: match finished.map(|column| (column, table.text(column))) {
                None | Some((_, "")) => None,
                Some((_, "1" | "true" | "True")) => Some(true),
                Some((_, "0" | "false" | "False")) => Some(false),
                Some((column, _)) => return Err(table.fault(column, "0 or 1")),
            },
        };
        if line.tokens == 0 {
            return Err(table.fault(tokens, "at least 1 token"));
        }
        if !seen.insert((line.tenant.clone(), line.request)) {
            return Err(table.fault(request, "each request of a tenant once"));
        }
        lines.push(line);
    }
    if lines.is_empty() {
        let problem = "has no requests, expected at least one line below the first".to_owned();
        return Err(ImportError::File { file: name.to_owned(), problem });
    }
    Ok(lines)
}
