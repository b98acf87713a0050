//! `split`: which copy takes which share of an expert's tokens, and whose fault the rest is.

use super::plan::from_loads;
use crate::fail::{Failure, Finding, Verdict};
use crate::load;
use crate::out::{Out, write_json};
use clap::Args;
use evenkeel_report::{fmt, text};
use evenkeel_split::{SplitTable, min_max_rows};
use evenkeel_types::{ExpertId, ExpertMap, LayerId, RankId};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Split each expert's tokens over its copies, and tell the split's part of imbalance from the
/// map's.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  evenkeel split map.json --loads loads.npy --out table.json
  evenkeel split map.json --loads loads.csv --even")]
pub(crate) struct Arguments {
    /// Map whose copies share the tokens.
    map: PathBuf,
    /// Tokens per layer and expert: `.npy`, CSV or JSON.
    #[arg(long, value_name = "FILE")]
    loads: PathBuf,
    /// Equal shares, as engines without a table give; default: least rows on the fullest rank.
    #[arg(long)]
    even: bool,
    /// Write the shares here, in 64ths.
    #[arg(long, value_name = "TABLE")]
    out: Option<PathBuf>,
}

#[derive(Serialize)]
struct LayerGap {
    layer: usize,
    /// Largest over mean rank under this split.
    measured: f64,
    /// Part of it that another split of the same map would save.
    dispatch: f64,
    /// Part of it that only another map would save.
    placement: f64,
}

#[derive(Serialize)]
struct Table {
    map_digest: String,
    ways: usize,
    /// `[layer][expert]`: (rank, ways).
    shares: Vec<Vec<Vec<(RankId, u16)>>>,
}

#[derive(Serialize)]
struct Answer<'a> {
    split: &'static str,
    layers: Vec<LayerGap>,
    written: Option<&'a Path>,
}

pub(crate) fn run(arguments: &Arguments, out: &mut Out) -> Verdict {
    let map = load::map(&arguments.map)?;
    let matrix = from_loads::read(&arguments.loads)?;
    let found = (matrix.layers, matrix.experts);
    let expected = (map.layers(), usize::from(map.experts));
    if found != expected {
        return Err(Failure::input(format!(
            "{}: {} layers x {} experts, expected {} x {} as in {}",
            arguments.loads.display(),
            found.0,
            found.1,
            expected.0,
            expected.1,
            arguments.map.display()
        )));
    }
    let table = if arguments.even {
        SplitTable::even(&map)
    } else {
        SplitTable::balanced(&map, &matrix.tokens)
    };
    let table = table.map_err(|error| Failure::input(error).context(arguments.map.display()))?;
    let layers: Result<Vec<LayerGap>, Failure> =
        (0..matrix.layers).map(|layer| gap(&map, &table, layer, matrix.layer(layer))).collect();
    if let Some(path) = &arguments.out {
        let of = |layer: usize, expert: usize| {
            table.shares(LayerId(layer as u16), ExpertId(expert as u16)).to_vec()
        };
        let shares = (0..matrix.layers)
            .map(|layer| (0..matrix.experts).map(|expert| of(layer, expert)).collect())
            .collect();
        write_json(path, &Table { map_digest: map.digest(), ways: SplitTable::WAYS, shares })?;
    }
    let split = if arguments.even { "even" } else { "balanced" };
    let answer = Answer { split, layers: layers?, written: arguments.out.as_deref() };
    out.present(&answer, || render(&answer))?;
    Ok(Finding::Positive)
}

/// How far a layer is from even, by the table, and how much of that a better table would save.
fn gap(
    map: &ExpertMap,
    table: &SplitTable,
    layer: usize,
    loads: &[u64],
) -> Result<LayerGap, Failure> {
    let id = LayerId(layer as u16);
    let mut rows = vec![0.0; map.ranks()];
    for (expert, load) in loads.iter().enumerate() {
        for (rank, ways) in table.shares(id, ExpertId(expert as u16)) {
            rows[rank.index()] += *load as f64 * f64::from(*ways) / SplitTable::WAYS as f64;
        }
    }
    let best = min_max_rows(&map.hosts(id), loads, map.ranks())
        .map_err(|error| Failure::input(error).context(id))?;
    let most = rows.iter().copied().fold(0.0, f64::max);
    let mean = rows.iter().sum::<f64>() / rows.len().max(1) as f64;
    if mean <= 0.0 {
        return Ok(LayerGap { layer, measured: 1.0, dispatch: 1.0, placement: 1.0 });
    }
    let (dispatch, placement) = (most / best.max_rows, best.max_rows / mean);
    Ok(LayerGap { layer, measured: most / mean, dispatch, placement })
}

fn render(answer: &Answer<'_>) -> String {
    const SHOWN: usize = 10;
    let mut worst: Vec<&LayerGap> = answer.layers.iter().collect();
    worst.sort_by(|a, b| b.measured.total_cmp(&a.measured));
    let mut table = text::Table::new(["layer", "max over mean", "dispatch gap", "placement gap"]);
    for gap in worst.iter().take(SHOWN) {
        let cell = |value: f64| format!("{value:.4}");
        let layer = gap.layer.to_string();
        table.row([layer, cell(gap.measured), cell(gap.dispatch), cell(gap.placement)]);
    }
    let count = answer.layers.len().max(1) as f64;
    let mean = |of: fn(&LayerGap) -> f64| answer.layers.iter().map(of).sum::<f64>() / count;
    let mut lines = vec![
        format!(
            "{} split: max over mean {} = dispatch gap {} x placement gap {} (means of layers)",
            answer.split,
            fmt::number(mean(|gap| gap.measured)),
            fmt::number(mean(|gap| gap.dispatch)),
            fmt::number(mean(|gap| gap.placement))
        ),
        table.render(2),
    ];
    lines.extend(answer.written.map(|path| format!("wrote {}", path.display())));
    lines.join("\n")
}
