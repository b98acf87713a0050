//! Bounds on what a trace may make a reader allocate or do, each with its reason.
//!
//! They are far above what Evenkeel writes and far below what would harm the reader's machine.

/// `trace.json`: the longest known header (320 ranks, 100 slices, 1000 maps) stays below 1 MiB.
pub const HEADER_BYTES_MAX: u64 = 16 << 20;

/// One map file: 61 layers × 320 ranks × 9 slots with digests stays below 64 MiB.
pub const MAP_BYTES_MAX: u64 = 64 << 20;

/// Maps of one trace: one every ten minutes for a month.
pub const MAPS_MAX: usize = 4464;

/// Footer of a Parquet file, which is decoded at once: 10,000 row groups of 20 columns are 40 MiB.
pub const FOOTER_BYTES_MAX: u64 = 64 << 20;

/// Rows of one table. A scan of this many takes minutes, not hours.
pub const ROWS_MAX: u64 = 1 << 33;

/// Uncompressed bytes of one page, which a decoder holds at once. Writers in use stay near 1 MiB.
pub const PAGE_BYTES_MAX: u64 = 32 << 20;

/// Rows of the tables that are read as a whole (`requests`, `events`).
pub const LISTED_ROWS_MAX: u64 = 1 << 24;

/// Values in the ids of recorded routing that are read as a whole: 8 GiB of u16.
pub const ROUTE_IDS_MAX: u64 = 1 << 32;

/// Rows of one row group that we write: statistics per million rows let a window skip the rest.
pub const ROW_GROUP_ROWS: usize = 1 << 20;

/// Rows decoded at a time: eight columns of a batch stay in a second-level cache.
pub const BATCH_ROWS: usize = 1 << 14;
