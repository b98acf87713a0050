//! `inspect`: what a trace holds, whether it obeys the laws, where its tokens went.

use super::traces;
use crate::fail::{Failure, Finding, Verdict};
use crate::out::Out;
use clap::Args;
use evenkeel_report::{fmt, text};
use evenkeel_store::{Table, Trace, Window};
use evenkeel_trace::{Direction, LinkMatrix, Log2Histogram, PhaseLoad, counts_by_slice};
use evenkeel_types::{ExpertMap, Phase};
use serde::Serialize;
use std::path::PathBuf;

/// Show what a trace holds: counts by phase, layer, rank and expert, links, slices, revisions.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  evenkeel inspect evenkeel-demo/trace-after --window 1s..3s
Exit code 1: the record breaks a conservation law.")]
pub(crate) struct Arguments {
    /// Trace folder.
    trace: PathBuf,
    /// Part of the trace, in steps (`100..200`) or seconds (`1.5s..3s`).
    #[arg(long, value_name = "FROM..TO")]
    window: Option<String>,
    /// Map for the loads of ranks where the trace names none.
    #[arg(long, value_name = "MAP")]
    map: Option<PathBuf>,
    /// Experts and links listed.
    #[arg(long, default_value_t = 10)]
    top: usize,
}

#[derive(Serialize)]
struct TableRows {
    table: String,
    rows: u64,
}

#[derive(Serialize)]
struct HotExpert {
    layer: usize,
    expert: usize,
    tokens: u64,
    over_mean: f64,
}

#[derive(Serialize)]
struct PhaseView {
    phase: Phase,
    source: &'static str,
    choices: u64,
    /// `[layer]`: mean ÷ largest rank, rows per rank; absent where ranks are not known.
    balancedness_ranks: Vec<f64>,
    /// `[layer]`: mean ÷ largest expert, tokens per expert.
    balancedness_experts: Vec<f64>,
    /// `[rank]`: rows over all layers.
    rows_by_rank: Vec<u64>,
    hot_experts: Vec<HotExpert>,
}

#[derive(Serialize)]
struct LinkView {
    phase: Phase,
    direction: Direction,
    source: u16,
    destination: u16,
    messages: u64,
    bytes: u64,
    largest_bytes: u64,
    /// (smallest size of the bucket in bytes, messages).
    sizes: Vec<(u64, u64)>,
    /// (fewest messages of the bucket per layer and step, how often).
    frequency: Vec<(u64, u64)>,
}

#[derive(Serialize)]
struct SliceView {
    tenant: String,
    template: String,
    model_revision: String,
    tokenizer_revision: String,
    requests: u64,
    prompt_tokens: u64,
    output_tokens: u64,
}

#[derive(Serialize)]
struct Inspection {
    model: String,
    revision: String,
    layers: u16,
    experts: u16,
    top_k: u8,
    times: evenkeel_trace::TimeOrigin,
    notes: Vec<String>,
    tables: Vec<TableRows>,
    maps: Vec<evenkeel_trace::MapVersion>,
    breaches: Vec<String>,
    slices: Vec<SliceView>,
    phases: Vec<PhaseView>,
    links: Vec<LinkView>,
}

pub(crate) fn run(arguments: &Arguments, out: &mut Out) -> Verdict {
    let trace = traces::open(&arguments.trace)?;
    let window = traces::window(arguments.window.as_deref())?;
    let map = traces::live_map(&trace, arguments.map.as_deref())?;
    let inspection = inspect(&trace, window, map.as_ref(), arguments.top)?;
    out.present(&inspection, || render(&inspection))?;
    Ok(Finding::from_good(inspection.breaches.is_empty()))
}

fn inspect(
    trace: &Trace,
    window: Window,
    map: Option<&ExpertMap>,
    top: usize,
) -> Result<Inspection, Failure> {
    let header = trace.header();
    let tables = Table::ALL.into_iter().filter(|table| trace.has(*table));
    let rows = |table: Table| TableRows { table: table.file_name(), rows: trace.rows(table) };
    Ok(Inspection {
        model: header.model.name.clone(),
        revision: header.model.revision.clone(),
        layers: header.model.moe_layers,
        experts: header.model.experts,
        top_k: header.model.top_k,
        times: header.times,
        notes: header.notes.clone(),
        tables: tables.map(rows).collect(),
        maps: header.maps.clone(),
        breaches: trace.breaches().iter().map(ToString::to_string).collect(),
        slices: slices(trace)?,
        phases: phases(trace, window, map, top)?,
        links: if trace.has(Table::Links) {
            links(&trace.link_matrix(window).map_err(Failure::store)?, top)
        } else {
            Vec::new()
        },
    })
}

fn slices(trace: &Trace) -> Result<Vec<SliceView>, Failure> {
    let mut views: Vec<SliceView> = trace
        .header()
        .slices
        .iter()
        .map(|slice| SliceView {
            tenant: slice.tenant.clone(),
            template: slice.template.clone(),
            model_revision: slice.model_revision.clone(),
            tokenizer_revision: slice.tokenizer_revision.clone(),
            requests: 0,
            prompt_tokens: 0,
            output_tokens: 0,
        })
        .collect();
    for request in trace.requests().map_err(Failure::store)? {
        if let Some(view) = views.get_mut(request.slice.index()) {
            view.requests += 1;
            view.prompt_tokens += u64::from(request.prompt_tokens);
            view.output_tokens += u64::from(request.output_tokens);
        }
    }
    Ok(views)
}

fn phases(
    trace: &Trace,
    window: Window,
    map: Option<&ExpertMap>,
    top: usize,
) -> Result<Vec<PhaseView>, Failure> {
    let experts = usize::from(trace.header().model.experts);
    let mut views = Vec::new();
    if trace.has(Table::Routing) {
        let loads = trace.load_matrix(window).map_err(Failure::store)?;
        for phase in Phase::ALL {
            let load = loads.phase(phase);
            let choices: u64 = load.by_expert.iter().sum();
            if choices > 0 {
                views.push(view(phase, "routing", load, experts, loads.ranks, top));
            }
        }
    } else if let Some(routes) = trace.routes().map_err(Failure::store)? {
        for phase in Phase::ALL {
            let by_slice = counts_by_slice(&routes, trace.header().slices.len(), phase);
            let mut by_expert = vec![0_u64; routes.layers() * experts];
            for counts in &by_slice {
                for (sum, count) in by_expert.iter_mut().zip(counts) {
                    *sum += count;
                }
            }
            if by_expert.iter().sum::<u64>() == 0 {
                continue;
            }
            let by_host = map.map(|map| hosted(map, &by_expert)).transpose()?.unwrap_or_default();
            let ranks = map.map_or(0, ExpertMap::ranks);
            let load = PhaseLoad { by_expert, by_host, ..PhaseLoad::default() };
            views.push(view(phase, "tokens", &load, experts, ranks, top));
        }
    }
    Ok(views)
}

/// Rows per rank if the copies of the map shared every expert's tokens exactly.
fn hosted(map: &ExpertMap, by_expert: &[u64]) -> Result<Vec<u64>, Failure> {
    let split = evenkeel_split::SplitTable::balanced(map, by_expert).map_err(Failure::input)?;
    let (experts, ranks) = (usize::from(map.experts), map.ranks());
    let mut by_host = vec![0; map.layers() * ranks];
    for (index, count) in by_expert.iter().enumerate() {
        let layer = evenkeel_types::LayerId((index / experts) as u16);
        let expert = evenkeel_types::ExpertId((index % experts) as u16);
        for (rank, ways) in split.shares(layer, expert) {
            let share = u64::from(*ways) * count / evenkeel_split::SplitTable::WAYS as u64;
            by_host[layer.index() * ranks + rank.index()] += share;
        }
    }
    Ok(by_host)
}

fn view(
    phase: Phase,
    source: &'static str,
    load: &PhaseLoad,
    experts: usize,
    ranks: usize,
    top: usize,
) -> PhaseView {
    let mut hot: Vec<HotExpert> = load
        .by_expert
        .chunks(experts)
        .enumerate()
        .flat_map(|(layer, counts)| {
            let mean = counts.iter().sum::<u64>() as f64 / experts as f64;
            counts.iter().enumerate().map(move |(expert, &tokens)| HotExpert {
                layer,
                expert,
                tokens,
                over_mean: if mean > 0.0 { tokens as f64 / mean } else { 0.0 },
            })
        })
        .collect();
    hot.sort_by(|a, b| b.over_mean.total_cmp(&a.over_mean));
    hot.truncate(top);
    let mut rows_by_rank = vec![0; ranks];
    for layer in load.by_host.chunks(ranks.max(1)) {
        for (sum, rows) in rows_by_rank.iter_mut().zip(layer) {
            *sum += rows;
        }
    }
    PhaseView {
        phase,
        source,
        choices: load.by_expert.iter().sum(),
        balancedness_ranks: load.by_host.chunks(ranks.max(1)).map(balancedness).collect(),
        balancedness_experts: load.by_expert.chunks(experts).map(balancedness).collect(),
        rows_by_rank,
        hot_experts: hot,
    }
}

/// Mean ÷ max over ranks (or experts) of one layer; 1 for an empty layer.
fn balancedness(counts: &[u64]) -> f64 {
    let max = counts.iter().copied().max().unwrap_or(0);
    if max == 0 {
        return 1.0;
    }
    counts.iter().sum::<u64>() as f64 / counts.len() as f64 / max as f64
}

fn links(matrix: &LinkMatrix, top: usize) -> Vec<LinkView> {
    let mut views: Vec<LinkView> = matrix
        .links
        .iter()
        .map(|((phase, direction, source, destination), traffic)| LinkView {
            phase: *phase,
            direction: *direction,
            source: source.0,
            destination: destination.0,
            messages: traffic.messages,
            bytes: traffic.bytes,
            largest_bytes: traffic.largest_bytes,
            sizes: buckets(&traffic.sizes),
            frequency: buckets(&traffic.frequency),
        })
        .collect();
    views.sort_by_key(|view| std::cmp::Reverse(view.bytes));
    views.truncate(top);
    views
}

fn buckets(histogram: &Log2Histogram) -> Vec<(u64, u64)> {
    let filled = histogram.buckets.iter().enumerate().filter(|(_, count)| **count > 0);
    filled.map(|(bucket, count)| (Log2Histogram::floor(bucket), *count)).collect()
}

fn render(inspection: &Inspection) -> String {
    let Inspection { model, revision, layers, experts, top_k, .. } = inspection;
    let mut lines = vec![format!(
        "{} revision {}: {layers} MoE layers, {experts} experts, top-{top_k}; times: {:?}",
        text::safe(model, 60),
        text::safe(revision, 60),
        inspection.times
    )];
    lines.extend(inspection.notes.iter().map(|note| text::wrap(&text::safe(note, 400), 100, 2)));
    let mut tables = text::Table::new(["table", "rows"]);
    for table in &inspection.tables {
        tables.row([table.table.clone(), fmt::count(table.rows)]);
    }
    lines.push(tables.render(0));
    let mut slices =
        text::Table::new(["tenant", "revision", "requests", "prompt tokens", "output tokens"]);
    for slice in &inspection.slices {
        slices.row([
            text::safe(&slice.tenant, 40),
            text::safe(&slice.model_revision, 20),
            fmt::count(slice.requests),
            fmt::count(slice.prompt_tokens),
            fmt::count(slice.output_tokens),
        ]);
    }
    lines.push(slices.render(0));
    for phase in &inspection.phases {
        lines.extend(phase_lines(phase));
    }
    if !inspection.links.is_empty() {
        lines.push(link_table(&inspection.links));
    }
    if inspection.breaches.is_empty() {
        lines.push("conservation laws hold".into());
    }
    lines.extend(inspection.breaches.iter().map(|breach| format!("law broken: {breach}")));
    lines.join("\n")
}

fn phase_lines(phase: &PhaseView) -> Vec<String> {
    let glyphs = text::Glyphs::default();
    let worst = |values: &[f64]| values.iter().copied().fold(f64::INFINITY, f64::min);
    let mut lines = vec![format!(
        "{}: {} (token, layer, expert) choices, from table `{}`",
        phase.phase,
        fmt::count(phase.choices),
        phase.source
    )];
    let mut balance = |axis: &str, unit: &str, values: &[f64]| {
        if !values.is_empty() {
            lines.push(format!(
                "  balancedness per layer over {axis} ({unit}, mean over max): worst {}  {}",
                fmt::number(worst(values)),
                text::sparkline(values, glyphs)
            ));
        }
    };
    balance("ranks", "rows", &phase.balancedness_ranks);
    balance("experts", "tokens", &phase.balancedness_experts);
    if !phase.rows_by_rank.is_empty() {
        let rows: Vec<f64> = phase.rows_by_rank.iter().map(|rows| *rows as f64).collect();
        lines.push(format!("  rows by rank: {}", text::sparkline(&rows, glyphs)));
    }
    let mut table = text::Table::new(["layer", "expert", "tokens", "over the layer's mean"]);
    for hot in &phase.hot_experts {
        table.row([
            hot.layer.to_string(),
            hot.expert.to_string(),
            fmt::count(hot.tokens),
            fmt::factor(hot.over_mean),
        ]);
    }
    lines.push(table.render(2));
    lines
}

fn link_table(links: &[LinkView]) -> String {
    let mut table = text::Table::new([
        "phase",
        "direction",
        "link",
        "messages",
        "bytes",
        "largest",
        "message size (median bucket)",
    ]);
    for link in links {
        let half = link.sizes.iter().map(|(_, count)| count).sum::<u64>() / 2;
        let mut seen = 0;
        let median = link.sizes.iter().find(|(_, count)| {
            seen += count;
            seen >= half
        });
        table.row([
            link.phase.to_string(),
            format!("{:?}", link.direction).to_lowercase(),
            format!("{} -> {}", link.source, link.destination),
            fmt::count(link.messages),
            fmt::bytes(link.bytes as f64),
            fmt::bytes(link.largest_bytes as f64),
            median.map_or("–".into(), |(size, _)| format!("from {}", fmt::bytes(*size as f64))),
        ]);
    }
    table.render(0)
}
