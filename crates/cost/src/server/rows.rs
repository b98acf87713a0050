//! Reads the table of whole servers and says which rows can be compared.

use super::{Layout, ServerLoad};
use crate::error::CostError;
use crate::report::{FitReport, SetAside};
use crate::table::{Row, Table};

/// A usable run of a server.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerRow {
    /// Engine, as in the table.
    pub engine: String,
    /// System, e.g. `h200_sxm`.
    pub system: String,
    /// What it did.
    pub load: ServerLoad,
    /// Measured time per output token, µs.
    pub tpot_us: f64,
    /// Measured time to the first token, µs.
    pub ttft_us: f64,
}

impl ServerRow {
    /// Key of the decode configuration: equal keys are repetitions.
    #[must_use]
    pub fn configuration(&self) -> String {
        let ServerLoad { ranks, layout, batch, prompt, output, aggregated } = self.load;
        format!(
            "{},{},{ranks},{layout:?},{batch},{prompt},{output},{aggregated}",
            self.engine, self.system
        )
    }
}

/// Rows of the table, classed.
#[derive(Clone, Debug, Default)]
pub struct ServerRows {
    /// Rows that can be compared.
    pub usable: Vec<ServerRow>,
    /// Probably speculative decoding, which no column records.
    pub set_aside: Vec<ServerRow>,
    /// What was not used, and why.
    pub report: FitReport,
}

/// The source whose parallelism columns overwrite those of an earlier one.
const RELABELLED: &str = "source_file=2026-04-06.csv";
/// The source of the R1 rows that are faster than the model by a nearly constant factor.
const SPECULATIVE: &str = "source_file=2026-03-25.csv";
/// GPUs of an aggregated server; the newest rows are labelled with 64 but hold the times of 8.
const AGGREGATED_RANKS: u32 = 8;

/// Reads and classes all rows (docs/cost-model.md).
///
/// # Errors
/// A missing column or an unreadable cell.
pub fn read_servers(table: &Table<'_>) -> Result<ServerRows, CostError> {
    let columns = Columns::of(table)?;
    let mut rows = ServerRows::default();
    let (mut no_batch, mut relabelled) = (0, 0);
    for row in table.rows() {
        let source = row.text(columns.source);
        let aggregated = row.text(columns.mode) == "agg";
        let batch = if aggregated { columns.batch } else { columns.decode_batch };
        if row.text(batch).is_empty() {
            no_batch += 1;
        } else if source == RELABELLED {
            relabelled += 1;
        } else {
            let read = columns.read(&row, aggregated)?;
            let speculative = source == SPECULATIVE && aggregated;
            if speculative { &mut rows.set_aside } else { &mut rows.usable }.push(read);
        }
    }
    let mut aside = |rows_out: usize, reason: &str, hopeless: bool| {
        rows.report.set_aside.push(SetAside {
            table: table.name().to_owned(),
            rows: rows_out,
            reason: reason.to_owned(),
            hopeless,
        });
    };
    aside(no_batch, "no batch size: no model can say what a step held", true);
    aside(relabelled, "repeats of an earlier source with the parallelism overwritten", true);
    let speculative = rows.set_aside.len();
    aside(
        speculative,
        "probably speculative decoding, which no column records: nearly all are faster by a \
         constant factor; inferred after their residuals were seen",
        false,
    );
    Ok(rows)
}

struct Columns {
    source: usize,
    engine: usize,
    system: usize,
    mode: usize,
    prompt: usize,
    output: usize,
    batch: usize,
    dp: usize,
    decode_batch: usize,
    decode_tp: usize,
    decode_dp: usize,
    ttft: usize,
    tpot: usize,
}

impl Columns {
    fn of(table: &Table<'_>) -> Result<Self, CostError> {
        let column = |name| table.column(name);
        Ok(Self {
            source: column("silicon_data_source")?,
            engine: column("backend")?,
            system: column("system")?,
            mode: column("mode")?,
            prompt: column("isl")?,
            output: column("osl")?,
            batch: column("batch_size")?,
            dp: column("attention_dp_size")?,
            decode_batch: column("decode_batch_size")?,
            decode_tp: column("decode_tp_size")?,
            decode_dp: column("decode_attention_dp_size")?,
            ttft: column("silicon_ttft_ms")?,
            tpot: column("silicon_tpot_ms")?,
        })
    }

    fn read(&self, row: &Row<'_, '_>, aggregated: bool) -> Result<ServerRow, CostError> {
        let whole = |column| row.positive(column).map(|value| value.round() as u32);
        let (ranks, layout, batch) = if aggregated {
            let dp = whole(self.dp)?;
            let layout = if dp > 1 { Layout::DataParallel } else { Layout::TensorParallel };
            // Rows labelled dp 64 divided the batch of 8 ranks' groups by 8 once more.
            let batch = whole(self.batch)? * if dp > AGGREGATED_RANKS { 8 } else { 1 };
            (AGGREGATED_RANKS, layout, batch)
        } else {
            let (tp, dp) = (whole(self.decode_tp)?, whole(self.decode_dp)?);
            let layout = if dp > 1 { Layout::DataParallel } else { Layout::TensorParallel };
            (tp * dp, layout, whole(self.decode_batch)?)
        };
        Ok(ServerRow {
            engine: row.text(self.engine).to_owned(),
            system: row.text(self.system).to_owned(),
            load: ServerLoad {
                ranks,
                layout,
                batch,
                prompt: whole(self.prompt)?,
                output: whole(self.output)?,
                aggregated,
            },
            tpot_us: 1000.0 * row.positive(self.tpot)?,
            ttft_us: 1000.0 * row.positive(self.ttft)?,
        })
    }
}
