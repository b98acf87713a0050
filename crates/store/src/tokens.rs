//! The table `tokens` ↔ [`Routes`].
//!
//! Rows may stand in any order; each (request, position, layer) must be there once, and a request's
//! positions must be a run without gaps. We write layer by layer: the ids of one layer have a
//! distribution of their own, which compresses better together.

use crate::StoreError;
use crate::cell::{Place, Source, unsigned};
use crate::limits::{BATCH_ROWS, ROUTE_IDS_MAX};
use crate::table::{Row, Table, TokenKey};
use crate::table_file::{Scan, TableFile};
use crate::table_writer::{TableWriter, properties};
use arrow_array::types::UInt16Type;
use arrow_array::{Array, ArrayRef, PrimitiveArray, UInt16Array};
use arrow_schema::{DataType, Field, Schema};
use evenkeel_trace::{RecordedRequest, RequestRecord, Routes};
use evenkeel_types::ModelShape;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::schema::types::ColumnPath;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

fn expert_column(choice: usize) -> String {
    format!("expert_{choice}")
}

/// Schema of the table for a model with this many choices per token and layer.
pub(crate) fn schema(top_k: usize) -> Schema {
    let keys = TokenKey::schema();
    let mut fields: Vec<Arc<Field>> = keys.fields().iter().cloned().collect();
    for choice in 0..top_k {
        fields.push(Arc::new(Field::new(expert_column(choice), DataType::UInt16, false)));
    }
    Schema::new(fields)
}

/// Writes routing. `starts[i]` is the position of the first recorded token of request i.
pub(crate) fn write(path: &Path, routes: &Routes, starts: &[u32]) -> Result<(), StoreError> {
    let top_k = routes.top_k();
    let mut properties = properties(Table::Tokens)
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(9).unwrap_or_default()));
    for choice in 0..top_k {
        // Ids of one byte's width behind three zero bytes: split, they compress to their entropy.
        let column = ColumnPath::from(expert_column(choice));
        properties = properties
            .set_column_dictionary_enabled(column.clone(), false)
            .set_column_encoding(column, Encoding::BYTE_STREAM_SPLIT);
    }
    let mut writer = TableWriter::create(path, schema(top_k), properties)?;
    let mut keys: Vec<TokenKey> = Vec::with_capacity(BATCH_ROWS);
    let mut ids: Vec<Vec<u16>> = vec![Vec::with_capacity(BATCH_ROWS); top_k];
    for layer in 0..routes.layers() {
        for (request, start) in routes.requests().iter().zip(starts) {
            for position in 0..request.tokens {
                let choices = routes.choices(request.first_token + position as usize, layer);
                for (column, id) in ids.iter_mut().zip(choices) {
                    column.push(*id);
                }
                let position = start + position;
                keys.push(TokenKey { request: request.request, position, layer: layer as u16 });
                if keys.len() == BATCH_ROWS {
                    flush(&mut writer, &mut keys, &mut ids)?;
                }
            }
        }
    }
    if !keys.is_empty() {
        flush(&mut writer, &mut keys, &mut ids)?;
    }
    writer.finish()
}

fn flush(
    writer: &mut TableWriter,
    keys: &mut Vec<TokenKey>,
    ids: &mut [Vec<u16>],
) -> Result<(), StoreError> {
    let mut columns = TokenKey::arrays(keys);
    for column in ids {
        columns.push(Arc::new(UInt16Array::from_iter_values(column.drain(..))) as ArrayRef);
    }
    keys.clear();
    writer.append(columns)
}

/// What is recorded of one request.
struct Span {
    first: u32,
    last: u32,
    /// Index of its first token among all recorded tokens, once counted.
    first_token: usize,
}

/// Reads the table whole, or only checks it where `keep_ids` is false (the result is then `None`).
pub(crate) fn read(
    table: &TableFile,
    shape: &ModelShape,
    requests: &[RequestRecord],
    keep_ids: bool,
) -> Result<Option<Routes>, StoreError> {
    let (layers, top_k) = (usize::from(shape.moe_layers), usize::from(shape.top_k));
    let path = table.path();
    let values = table.rows().saturating_mul(top_k as u64);
    if values > ROUTE_IDS_MAX {
        let (path, what) = (path.to_owned(), "number of routing ids".to_owned());
        return Err(StoreError::Limit { path, what, found: values, limit: ROUTE_IDS_MAX });
    }
    let mut spans = spans(table, shape.moe_layers)?;
    let recorded = lay_out(table, &mut spans, requests, layers)?;
    let groups = 0..table.groups().len();
    let experts: Vec<String> = (0..top_k).map(expert_column).collect();
    let names: Vec<&str> =
        TokenKey::NAMES.iter().copied().chain(experts.iter().map(String::as_str)).collect();
    let mut scan = table.batches(&names, groups)?;
    let mut seen = vec![0_u64; (table.rows() as usize).div_ceil(64)];
    let mut ids = vec![0_u16; if keep_ids { values as usize } else { 0 }];
    while let Some((batch, first_row)) = scan.next()? {
        let keys = TokenKey::decode(&Source { path, batch: &batch, first_row })?;
        let columns = id_columns(&scan, &batch, first_row, &experts)?;
        let mut choices = vec![0_u16; top_k];
        for row in 0..batch.num_rows() {
            let key = TokenKey::at(&keys, row);
            let fault = |problem: String| fault(path, first_row + row as u64, &key, problem);
            for (choice, column) in choices.iter_mut().zip(&columns) {
                *choice = column.values()[row];
            }
            if let Some(problem) = choices_problem(&choices, shape.experts) {
                return Err(fault(problem));
            }
            // Every key of the table was seen by the pass before.
            let Some(span) = spans.get(&key.request) else { continue };
            let token = span.first_token + (key.position - span.first) as usize;
            let place = token * layers + usize::from(key.layer);
            let (word, bit) = (place / 64, 1_u64 << (place % 64));
            if seen.get(word).is_none_or(|word| word & bit != 0) {
                return Err(fault("is there twice, expected once".to_owned()));
            }
            seen[word] |= bit;
            if keep_ids {
                ids[place * top_k..(place + 1) * top_k].copy_from_slice(&choices);
            }
        }
    }
    if !keep_ids {
        return Ok(None);
    }
    let refused = |source| StoreError::Routes { path: path.to_owned(), source };
    Routes::new(shape, recorded, ids).map(Some).map_err(refused)
}

fn fault(path: &Path, row: u64, key: &TokenKey, problem: String) -> StoreError {
    let place = format!("request {}, position {}, layer {}", key.request, key.position, key.layer);
    StoreError::Row { path: path.to_owned(), row, place, problem }
}

fn choices_problem(choices: &[u16], experts: u16) -> Option<String> {
    for (index, id) in choices.iter().enumerate() {
        if *id >= experts {
            return Some(format!("expert {id}, expected below {experts}"));
        }
        if choices[..index].contains(id) {
            return Some(format!("expert {id} is chosen twice"));
        }
    }
    None
}

fn id_columns(
    scan: &Scan,
    batch: &arrow_array::RecordBatch,
    first_row: u64,
    names: &[String],
) -> Result<Vec<PrimitiveArray<UInt16Type>>, StoreError> {
    let mut columns = Vec::with_capacity(names.len());
    for name in names {
        let place = Place::new(scan.path(), name, first_row);
        let array = batch.column_by_name(name).ok_or_else(|| StoreError::Column {
            path: scan.path().to_owned(),
            column: name.clone(),
            problem: "is missing".to_owned(),
        })?;
        if array.null_count() > 0 {
            return Err(place.null(array, "an expert id"));
        }
        columns.push(unsigned::<UInt16Type>(array, &place, "an expert id")?);
    }
    Ok(columns)
}

/// First and last position of every request in the table.
fn spans(table: &TableFile, layers: u16) -> Result<BTreeMap<u64, Span>, StoreError> {
    let mut spans: BTreeMap<u64, Span> = BTreeMap::new();
    let mut cursor = table.all::<TokenKey>()?;
    // Rows of one request stand together, so the map is rarely asked.
    let mut run: Option<(u64, u32, u32)> = None;
    let mut close = |(request, first, last): (u64, u32, u32)| {
        let span = spans.entry(request).or_insert(Span { first, last, first_token: 0 });
        (span.first, span.last) = (span.first.min(first), span.last.max(last));
    };
    while let Some(key) = cursor.peek()? {
        if key.layer >= layers {
            let problem = format!("expected layers below {layers}");
            return Err(fault(table.path(), cursor.row(), &key, problem));
        }
        run = Some(match run {
            Some((request, first, last)) if request == key.request => {
                (request, first.min(key.position), last.max(key.position))
            }
            other => {
                if let Some(done) = other {
                    close(done);
                }
                (key.request, key.position, key.position)
            }
        });
        cursor.advance();
    }
    if let Some(done) = run {
        close(done);
    }
    Ok(spans)
}

/// Gives every recorded request its place, in the order of the table `requests`.
fn lay_out(
    table: &TableFile,
    spans: &mut BTreeMap<u64, Span>,
    requests: &[RequestRecord],
    layers: usize,
) -> Result<Vec<RecordedRequest>, StoreError> {
    let bad = |problem: String| StoreError::Field { path: table.path().to_owned(), problem };
    let mut recorded = Vec::with_capacity(spans.len());
    let mut tokens = 0_usize;
    for request in requests {
        let Some(span) = spans.get_mut(&request.request) else { continue };
        let count = u64::from(span.last - span.first) + 1;
        let all = u64::from(request.prompt_tokens) + u64::from(request.output_tokens);
        if u64::from(span.last) >= all {
            return Err(bad(format!(
                "request {}: position {}, expected below its {all} tokens",
                request.request, span.last
            )));
        }
        span.first_token = tokens;
        tokens += count as usize;
        recorded.push(RecordedRequest {
            request: request.request,
            slice: request.slice,
            first_token: span.first_token,
            prompt_tokens: request.prompt_tokens.saturating_sub(span.first).min(count as u32),
            tokens: count as u32,
        });
    }
    if recorded.len() < spans.len() {
        let known: std::collections::BTreeSet<u64> = requests.iter().map(|r| r.request).collect();
        let missing = spans.keys().find(|request| !known.contains(request));
        let missing = missing.copied().unwrap_or_default();
        return Err(bad(format!("request {missing} is not in the table `requests`")));
    }
    let expected = (tokens as u64).saturating_mul(layers as u64);
    if expected != table.rows() {
        return Err(bad(format!(
            "{} rows, expected {expected} ({tokens} tokens x {layers} layers): \
             a (request, position, layer) is missing or there twice",
            table.rows()
        )));
    }
    Ok(recorded)
}
