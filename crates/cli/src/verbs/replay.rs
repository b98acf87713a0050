//! `replay`: serve the same requests on several maps under the cost curves, and keep the runs.

use super::traces;
use crate::fail::{Failure, Finding, Verdict};
use crate::out::{Out, write_json};
use crate::replays::{Placed, Recorder, Scenario, request_records};
use crate::runs::{Manifest, ManifestMap, write_run};
use crate::setting::{MachineArguments, Setting};
use crate::view::ms_or_dash;
use clap::{Args, ValueEnum};
use evenkeel_prove::{DrawOutcome, RunMetrics, summary};
use evenkeel_report::{fmt, text};
use evenkeel_sim::{
    Faults, Job, MixChange, NoSink, Role, TrafficFacts, TrafficSpec, draw_jobs, superpose,
};
use evenkeel_split::SplitTable;
use evenkeel_store::TraceWriter;
use evenkeel_trace::{Routes, TimeOrigin, TraceHeader, draw};
use evenkeel_types::{ExpertMap, Phase, Slice};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Replay recorded routing on one or more maps: predicted TPOT, ITL, TTFT, goodput, KV headroom.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  evenkeel replay my-trace --topology h20:16 --map live.json --map next.json --out proof
  evenkeel gate proof
The first --map is the live one. Requests are judged that a plan with the same seed did not see.")]
pub(crate) struct Arguments {
    /// Trace with routing recorded token by token.
    trace: PathBuf,
    /// Map to replay; the first is the live one. Default: the contiguous map.
    #[arg(long = "map", value_name = "MAP")]
    maps: Vec<PathBuf>,
    /// Keep the runs here, for `evenkeel gate`.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Write the first map's run as a trace here.
    #[arg(long, value_name = "TRACE")]
    record: Option<PathBuf>,
    /// Which requests: the judging half, the planning half, or all.
    #[arg(long, value_enum, default_value = "judging")]
    requests: Half,
    /// How tokens are split over copies: fresh (best for the planning half) or even.
    #[arg(long, value_enum, default_value = "fresh")]
    split: SplitKind,
    /// What the group does.
    #[arg(long, value_enum, default_value = "decode")]
    role: RoleKind,
    /// Most sequences per rank at once.
    #[arg(long, default_value_t = 64)]
    sequences_per_rank: u32,
    /// Simulated seconds.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Arrivals per second, from copies of the bundled Azure conversation trace; 0: as many as keep
    /// the batch nine tenths full on ranks that are perfectly even.
    #[arg(long, default_value_t = 0.0)]
    arrivals_per_s: f64,
    /// Tenants' weights among requests, e.g. `intent=1,summary=2`; default: equal.
    #[arg(long, value_name = "TENANT=WEIGHT,…")]
    mix: Option<String>,
    /// Draws of the model's shared parameters for the gate, at least both ends of every borrowed
    /// band; 0: none.
    #[arg(long, default_value_t = 8)]
    draws: usize,
    /// Seed of the halves, the traffic and the draws.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    machine: MachineArguments,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Half {
    Judging,
    Planning,
    All,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum SplitKind {
    Fresh,
    Even,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RoleKind {
    Decode,
    Prefill,
    Mixed,
}

#[derive(Serialize)]
struct Replayed {
    traffic: TrafficFacts,
    arrival_copies: u32,
    modelled: bool,
    maps: Vec<RunMetrics>,
    draws: Vec<Vec<DrawOutcome>>,
    model_notes: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments, out: &mut Out) -> Verdict {
    if !(arguments.seconds.is_finite() && arguments.seconds > 0.0) {
        return Err(Failure::input("--seconds: expected a positive number"));
    }
    if !(arguments.arrivals_per_s.is_finite() && arguments.arrivals_per_s >= 0.0) {
        return Err(Failure::input("--arrivals-per-s: expected a number of 0 or more"));
    }
    let trace = traces::open(&arguments.trace)?;
    let routes = traces::routes(&trace, &arguments.trace)?;
    let recorded = traces::recorded_topology(&trace);
    let setting = Setting::load(&arguments.machine, &trace.header().model, recorded)?;
    let slices = trace.header().slices.clone();
    let (planning, judging) = draw::halves(&routes, arguments.seed);
    let mix = traces::mix(arguments.mix.as_deref(), &trace)?;
    let placed = placed(arguments, &setting, &planning, &mix)?;
    let chosen = match arguments.requests {
        Half::Judging => judging,
        Half::Planning => planning,
        Half::All => routes,
    };
    let even_us = even_step_us(&setting, &placed, arguments.sequences_per_rank);
    let (jobs, traffic, copies) = traffic(arguments, &setting, &chosen, &mix, even_us)?;
    let scenario = Scenario {
        setting: &setting,
        routes: &chosen,
        jobs: &jobs,
        role: arguments.role.role(),
        sequences_per_rank: arguments.sequences_per_rank,
        until_ns: (arguments.seconds * 1e9) as u64,
        faults: &Faults::default(),
    };
    let keeper = Keeper { arguments, slices: &slices, setting: &setting };
    let replayed = keeper.replay_all(&scenario, &placed, traffic, copies, out)?;
    out.present(&replayed, || render(&replayed))?;
    Ok(Finding::Positive)
}

impl RoleKind {
    fn role(self) -> Role {
        match self {
            Self::Decode => Role::Decode,
            Self::Prefill => Role::Prefill,
            Self::Mixed => Role::Mixed,
        }
    }
}

fn placed(
    arguments: &Arguments,
    setting: &Setting,
    planning: &Routes,
    mix: &[f64],
) -> Result<Vec<Placed>, Failure> {
    let mut named = Vec::new();
    for path in &arguments.maps {
        let name =
            path.file_stem().map_or_else(|| "map".into(), |s| s.to_string_lossy().into_owned());
        named.push((name, crate::load::map(path)?));
    }
    if named.is_empty() {
        let slots = usize::from(setting.shape.experts).div_ceil(setting.ranks());
        let map = ExpertMap::contiguous(&setting.shape, setting.ranks(), slots);
        named.push(("contiguous".into(), map));
    }
    let per_rank = arguments.sequences_per_rank as usize;
    let loads = draw::decode_loads(planning, mix, setting.ranks(), per_rank, 64, arguments.seed)
        .map_err(Failure::input)?;
    let mut placed = Vec::new();
    for (name, map) in named {
        setting.admit(&map, &name)?;
        let split = match arguments.split {
            SplitKind::Fresh => SplitTable::balanced(&map, &loads.total()),
            SplitKind::Even => SplitTable::even(&map),
        };
        placed.push(Placed { name, map, split: split.map_err(Failure::input)? });
    }
    Ok(placed)
}

/// A decode step of nine tenths of the batch if every slot of every rank had the same rows, µs.
fn even_step_us(setting: &Setting, placed: &[Placed], sequences_per_rank: u32) -> f64 {
    let per_rank = 0.9 * f64::from(sequences_per_rank);
    let slots = placed.first().map_or(1, |one| one.map.copies_per_rank().iter().sum::<u64>());
    let per_layer = slots as f64 / f64::from(setting.shape.moe_layers) / setting.ranks() as f64;
    let rows = per_rank * f64::from(setting.shape.top_k) / per_layer.max(1.0);
    let even = vec![rows.round() as u32; per_layer.round() as usize];
    let experts_us = setting.model.experts(Phase::Decode).rank_us(&even, per_rank as u32);
    // The fixed part leaves out what grows with rows.
    let exchange_us = setting.exchange_us_per_row(Phase::Decode, per_rank)
        * per_rank
        * f64::from(setting.shape.top_k);
    setting.fixed_us(Phase::Decode, per_rank, 1024.0)
        + f64::from(setting.shape.moe_layers) * (experts_us + exchange_us)
}

fn traffic(
    arguments: &Arguments,
    setting: &Setting,
    routes: &Routes,
    mix: &[f64],
    even_us: f64,
) -> Result<(Vec<Job>, TrafficFacts, u32), Failure> {
    let recorded = super::demo::assets::arrivals_ns()?;
    let span_s = match recorded.as_slice() {
        [first, .., last] => (last - first) as f64 * 1e-9,
        _ => 1.0,
    };
    let recorded_per_s = recorded.len() as f64 / span_s;
    let sequences = 0.9 * f64::from(arguments.sequences_per_rank) * setting.ranks() as f64;
    let rate = if arguments.arrivals_per_s > 0.0 {
        arguments.arrivals_per_s
    } else {
        let tokens: f64 = draw::mean_output_tokens(routes, mix);
        sequences / (tokens.max(1.0) * even_us * 1e-6)
    };
    let copies = (rate / recorded_per_s).round().max(1.0) as u32;
    let until_ns = (arguments.seconds * 1e9) as u64;
    let arrivals_ns =
        superpose(&recorded, copies, until_ns, arguments.seed).map_err(Failure::input)?;
    let fill = if arguments.role == RoleKind::Prefill { 0 } else { sequences as u32 };
    let spec = TrafficSpec {
        arrivals_ns,
        mix: vec![MixChange { from_ns: 0, share_by_slice: mix.to_vec() }],
        fill_sequences: fill,
        seed: arguments.seed,
    };
    let (jobs, facts) = draw_jobs(routes, &spec).map_err(Failure::input)?;
    Ok((jobs, facts, copies))
}

/// Runs the maps and keeps what was asked for.
struct Keeper<'a> {
    arguments: &'a Arguments,
    slices: &'a [Slice],
    setting: &'a Setting,
}

impl Keeper<'_> {
    fn replay_all(
        &self,
        scenario: &Scenario<'_>,
        placed: &[Placed],
        traffic: TrafficFacts,
        copies: u32,
        out: &Out,
    ) -> Result<Replayed, Failure> {
        let mut replayed = Replayed {
            traffic,
            arrival_copies: copies,
            modelled: true,
            maps: Vec::new(),
            draws: Vec::new(),
            model_notes: self.setting.model_notes(),
        };
        let mut manifest = Manifest::new(self.slices, replayed.model_notes.clone());
        for (index, one) in placed.iter().enumerate() {
            let run = match (&self.arguments.record, index) {
                (Some(dir), 0) => self.record(scenario, one, dir, out)?,
                _ => scenario.replay(one, &mut NoSink, out)?,
            };
            let metrics =
                summary(&run, self.slices, &self.setting.policy).map_err(Failure::input)?;
            let draws = if index == 0 || self.arguments.draws == 0 {
                Vec::new()
            } else {
                let short = Scenario { until_ns: scenario.until_ns / 2, ..*scenario };
                let (count, seed) = (self.arguments.draws, self.arguments.seed);
                short.draws(&placed[0], one, self.slices, count, seed, out)?
            };
            if let Some(dir) = &self.arguments.out {
                let file = format!("run-{index}.json.gz");
                write_run(&dir.join(&file), &run)?;
                let draws = draws.clone();
                manifest.maps.push(ManifestMap {
                    name: one.name.clone(),
                    file,
                    map: one.map.clone(),
                    draws,
                });
            }
            replayed.maps.push(metrics);
            replayed.draws.push(draws);
        }
        if let Some(dir) = &self.arguments.out {
            manifest.topology = Some(self.setting.topology.clone());
            manifest.model = Some(self.setting.shape.clone());
            manifest.seed = self.arguments.seed;
            write_json(&dir.join("replay.json"), &manifest)?;
        }
        Ok(replayed)
    }

    fn record(
        &self,
        scenario: &Scenario<'_>,
        placed: &Placed,
        dir: &Path,
        out: &Out,
    ) -> Result<evenkeel_sim::Run, Failure> {
        let mut header = TraceHeader::new(self.setting.shape.clone(), self.slices.to_vec());
        header.topology = Some(self.setting.topology.clone());
        header.times = TimeOrigin::Modelled;
        header.routing_every = 16;
        header.notes = vec!["Times are modelled: a replay under fitted cost curves.".into()];
        let mut writer = TraceWriter::create(dir, header).map_err(Failure::store)?;
        writer.map(&placed.map).map_err(Failure::store)?;
        let mut sink = Recorder { writer: &mut writer, every: 16 };
        let run = scenario.replay(placed, &mut sink, out)?;
        writer.requests(&request_records(&run)).map_err(Failure::store)?;
        writer.finish().map_err(Failure::store)?;
        Ok(run)
    }
}

fn render(replayed: &Replayed) -> String {
    let facts = &replayed.traffic;
    let mut lines = vec![format!(
        "modelled: {} jobs from {} distinct recorded requests (cloning factor {}), {} arrivals/s ({} copies of the recording)",
        fmt::count(facts.jobs),
        facts.distinct_requests,
        fmt::number(facts.cloning_factor),
        fmt::number(facts.arrivals_per_s),
        replayed.arrival_copies
    )];
    let mut table = text::Table::new([
        "map",
        "requests",
        "p50 TPOT",
        "p99 TPOT",
        "p99 ITL",
        "p99.9 ITL",
        "p99 TTFT",
        "goodput",
        "KV free, least",
    ]);
    for one in &replayed.maps {
        let overall = &one.overall;
        table.row([
            one.name.clone(),
            fmt::count(overall.finished),
            ms_or_dash(overall.tpot_ms.map(|s| s.p50)),
            ms_or_dash(overall.tpot_ms.map(|s| s.p99)),
            ms_or_dash(overall.itl_ms.map(|s| s.p99)),
            ms_or_dash(overall.itl_ms.map(|s| s.p999)),
            ms_or_dash(overall.ttft_ms.map(|s| s.p99)),
            overall.goodput_share.map_or("–".into(), fmt::percent),
            one.kv_blocks_free_min_share.map_or("–".into(), fmt::percent),
        ]);
    }
    lines.push(table.render(0));
    lines.push("TPOT, TTFT and goodput by request, ITL by token".into());
    for (metrics, draws) in replayed.maps.iter().zip(&replayed.draws) {
        let changes: Vec<String> =
            draws.iter().filter_map(|draw| draw.change_share).map(fmt::change).collect();
        if !changes.is_empty() {
            lines.push(format!(
                "{}: change of p99 TPOT under draws of the model's parameters: {}",
                metrics.name,
                changes.join(", ")
            ));
        }
    }
    lines.join("\n")
}
