//! The tables of a trace: names, columns, and one row type per table.
//!
//! A row type is declared once with [`table!`]; the declaration is the schema, the writer and the
//! reader of its columns. A row type may name a part of a table's columns: then only these are
//! decoded.

use crate::StoreError;
use crate::cell::{Cell, Source};
use arrow_array::ArrayRef;
use arrow_schema::{Field, Schema};
use std::fmt;

/// A table of a trace, a Parquet file of that name. Every table can be absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Table {
    /// One row per step and rank.
    Steps,
    /// One row per step, layer and rank.
    Layers,
    /// One row per step, layer, source rank, expert and host.
    Routing,
    /// One row per step, layer, direction, source and destination rank.
    Links,
    /// One row per request, position and layer.
    Tokens,
    /// One row per request.
    Requests,
    /// One row per event.
    Events,
}

impl Table {
    /// All tables.
    pub const ALL: [Self; 7] = [
        Self::Steps,
        Self::Layers,
        Self::Routing,
        Self::Links,
        Self::Tokens,
        Self::Requests,
        Self::Events,
    ];

    /// Name of the table.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Steps => "steps",
            Self::Layers => "layers",
            Self::Routing => "routing",
            Self::Links => "links",
            Self::Tokens => "tokens",
            Self::Requests => "requests",
            Self::Events => "events",
        }
    }

    /// Name of its file in the trace's folder.
    #[must_use]
    pub fn file_name(self) -> String {
        format!("{}.parquet", self.name())
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A row of a table, or the part of it that a reader wants.
pub(crate) trait Row: Sized {
    /// The table.
    const TABLE: Table;
    /// Decoded columns of a batch.
    type Columns;
    /// Names of the columns, in order.
    const NAMES: &'static [&'static str];
    /// Arrow schema of these columns.
    fn schema() -> Schema;
    /// Rows as columns, in schema order.
    fn arrays(rows: &[Self]) -> Vec<ArrayRef>;
    /// Takes the columns out of a decoded batch.
    fn decode(source: &Source<'_>) -> Result<Self::Columns, StoreError>;
    /// Row `index` of a batch, which must be below the batch's length.
    fn at(columns: &Self::Columns, index: usize) -> Self;
}

macro_rules! table {
    ($(#[$doc:meta])* $row:ident, $columns:ident, $table:ident {
        $($(#[$field_doc:meta])* $field:ident: $kind:ty,)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub(crate) struct $row { $($(#[$field_doc])* pub $field: $kind,)* }

        pub(crate) struct $columns { $($field: <$kind as Cell>::Column,)* }

        impl Row for $row {
            const TABLE: Table = Table::$table;
            type Columns = $columns;
            const NAMES: &'static [&'static str] = &[$(stringify!($field)),*];

            fn schema() -> Schema {
                Schema::new(vec![$(
                    Field::new(stringify!($field), <$kind as Cell>::data_type(), <$kind as Cell>::NULLABLE)
                ),*])
            }

            fn arrays(rows: &[Self]) -> Vec<ArrayRef> {
                vec![$(<$kind as Cell>::array(rows.iter().map(|row| &row.$field))),*]
            }

            fn decode(source: &Source<'_>) -> Result<$columns, StoreError> {
                Ok($columns { $($field: source.column::<$kind>(stringify!($field))?,)* })
            }

            #[inline]
            fn at(columns: &$columns, index: usize) -> Self {
                Self { $($field: <$kind as Cell>::at(&columns.$field, index),)* }
            }
        }
    };
}

table! {
    /// `steps`. `phase`: 0 prefill, 1 decode.
    StepRow, StepColumns, Steps {
        step: u64,
        rank: u16,
        phase: u8,
        start_ns: u64,
        end_ns: u64,
        map_version: u64,
        sequences: u32,
        tokens: u32,
        tokens_padded: u32,
        kv_blocks_used: u32,
        kv_blocks_free: u32,
    }
}

table! {
    /// `layers`.
    LayerRow, LayerColumns, Layers {
        step: u64,
        layer: u16,
        rank: u16,
        attention_ns: u64,
        router_ns: u64,
        dispatch_skew_ns: u64,
        dispatch_wait_ns: u64,
        dispatch_service_ns: u64,
        queue_ns: u64,
        expert_ns: u64,
        cpu_ns: u64,
        return_skew_ns: u64,
        return_wait_ns: u64,
        return_service_ns: u64,
        combine_ns: u64,
        rows_in: u32,
        tokens_in: u32,
        experts_activated: u16,
        kernel: u16,
        bytes_out: u64,
        bytes_in: u64,
    }
}

table! {
    /// `layers`, what its laws need.
    LayerKey, LayerKeyColumns, Layers {
        step: u64,
        layer: u16,
        rank: u16,
        rows_in: u32,
        kernel: u16,
    }
}

table! {
    /// `routing`. `host` is null where the record does not say which copy served.
    RouteRow, RouteColumns, Routing {
        step: u64,
        phase: u8,
        layer: u16,
        source: u16,
        expert: u16,
        host: Option<u16>,
        tokens: u32,
    }
}

table! {
    /// `links`. `direction`: 0 dispatch, 1 return.
    LinkTableRow, LinkColumns, Links {
        step: u64,
        layer: u16,
        direction: u8,
        source: u16,
        destination: u16,
        messages: u32,
        bytes: u64,
        largest_bytes: u64,
        service_ns: u64,
    }
}

table! {
    /// `tokens`, its keys. The columns `expert_0` .. `expert_{k-1}` follow.
    TokenKey, TokenKeyColumns, Tokens {
        request: u64,
        position: u32,
        layer: u16,
    }
}

table! {
    /// `requests`. `finish`: 0 stop, 1 length, 2 error, 3 unfinished.
    RequestRow, RequestColumns, Requests {
        request: u64,
        slice: u16,
        arrival_ns: u64,
        queue_ns: Option<u64>,
        ttft_ns: Option<u64>,
        finish_ns: Option<u64>,
        token_ns: Vec<u64>,
        prompt_tokens: u32,
        output_tokens: u32,
        finish: u8,
        error: String,
        output_digest: String,
        mean_log_probability: Option<f64>,
        quality_score: Option<f64>,
    }
}

table! {
    /// `events`. `kind` is the event's name.
    EventRow, EventColumns, Events {
        at_ns: u64,
        step: Option<u64>,
        kind: String,
        phase: Option<u8>,
        layer: Option<u16>,
        rank: Option<u16>,
        value: u64,
        detail: String,
    }
}
