//! Do the replica tables of an engine's ranks serve every (token, expert) once?
//!
//! Where every rank sees the same tokens and outputs are summed over ranks (no dispatch), the copies
//! must be chosen alike by all: a table that prefers the own rank's copy runs an expert twice, or,
//! where tables point at each other, not at all, and nothing but the output shows it. Where each
//! token is dispatched by one rank, tables may differ.

use crate::SplitError;
use evenkeel_types::{ExpertId, ExpertMap, LayerId, RankId};
use std::fmt;

/// Which ranks look up a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokensSeen {
    /// Every rank sees all tokens, runs those whose chosen copy it holds, and outputs are summed.
    ByAllRanks,
    /// One rank sees a token and sends it to the chosen copy.
    ByOneRank,
}

/// A (layer, expert, way) that is not served exactly once by a rank that holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChoiceFault {
    /// Several ranks choose their own copy of an expert for the same token.
    Executed {
        /// Layer.
        layer: LayerId,
        /// Expert.
        expert: ExpertId,
        /// Way of its tokens.
        way: usize,
        /// Ranks that run it: none, or two and more.
        by: Vec<RankId>,
    },
    /// A table sends rows to a rank without a copy.
    NotHeld {
        /// Whose table.
        reader: RankId,
        /// Layer.
        layer: LayerId,
        /// Expert.
        expert: ExpertId,
        /// Way of its tokens.
        way: usize,
        /// The rank chosen.
        chosen: RankId,
    },
}

impl fmt::Display for ChoiceFault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Executed { layer, expert, way, by } => {
                let times = match by.len() {
                    0 => "never".to_owned(),
                    2 => "twice".to_owned(),
                    times => format!("{times} times"),
                };
                write!(out, "{layer}, {expert}, way {way}: ")?;
                write!(out, "(token, expert) executed {times}: output wrong")?;
                let names: Vec<String> = by.iter().map(ToString::to_string).collect();
                if names.is_empty() { Ok(()) } else { write!(out, " (by {})", names.join(", ")) }
            }
            Self::NotHeld { reader, layer, expert, way, chosen } => {
                write!(out, "{layer}, {expert}, way {way}: the table of {reader} ")?;
                write!(out, "chooses {chosen}, which holds no copy")
            }
        }
    }
}

/// Checks the tables of all ranks: `tables[rank]` is flat, `[layer][expert][way]`, the rank whose
/// copy takes a token; `ways` is 1 where an expert's tokens are not cut.
///
/// Returns all faults, by layer, expert and way; none where every (token, expert) is executed once.
///
/// # Errors
/// A number of tables other than the map's ranks, or a table of another length.
pub fn check_replica_choice(
    map: &ExpertMap,
    tables: &[Vec<RankId>],
    ways: usize,
    seen: TokensSeen,
) -> Result<Vec<ChoiceFault>, SplitError> {
    let length = |what, found, expected| match found == expected {
        true => Ok(()),
        false => Err(SplitError::Length { what, found, expected }),
    };
    let experts = usize::from(map.experts);
    length("replica tables of ranks", tables.len(), map.ranks())?;
    for table in tables {
        length("replica table", table.len(), map.layers() * experts * ways)?;
    }
    let mut faults = Vec::new();
    for layer in 0..map.layers() {
        let layer = LayerId(layer as u16);
        for (expert, hosts) in map.hosts(layer).iter().enumerate() {
            for way in 0..ways {
                let place = (layer.index() * experts + expert) * ways + way;
                let expert = ExpertId(expert as u16);
                let chosen = |reader: usize| tables[reader][place];
                let reader = |index: usize| RankId(index as u16);
                let foreign = (0..tables.len()).filter(|index| !hosts.contains(&chosen(*index)));
                faults.extend(foreign.map(|index| ChoiceFault::NotHeld {
                    reader: reader(index),
                    layer,
                    expert,
                    way,
                    chosen: chosen(index),
                }));
                if seen == TokensSeen::ByAllRanks {
                    let runs = |index: &usize| {
                        chosen(*index) == reader(*index) && hosts.contains(&reader(*index))
                    };
                    let by: Vec<RankId> = (0..tables.len()).filter(runs).map(reader).collect();
                    if by.len() != 1 {
                        faults.push(ChoiceFault::Executed { layer, expert, way, by });
                    }
                }
            }
        }
    }
    Ok(faults)
}
