//! Phase and slice: the keys under which counts and times are kept apart.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Which kind of work a token belongs to. Counts and times of the two are never added up (law 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Prompt tokens, many per sequence and step.
    Prefill,
    /// Generated tokens, one per sequence and step (more under speculation).
    Decode,
}

impl Phase {
    /// Both phases, prefill first.
    pub const ALL: [Self; 2] = [Self::Prefill, Self::Decode];

    /// 0 for prefill, 1 for decode: the code used in Parquet tables and dense arrays.
    #[must_use]
    pub const fn index(self) -> usize {
        match self {
            Self::Prefill => 0,
            Self::Decode => 1,
        }
    }

    /// The phase with that code, if there is one.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Prefill),
            1 => Some(Self::Decode),
            _ => None,
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        })
    }
}

/// A share of the traffic that is served, judged and capped as one: tenant, template, revisions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slice {
    /// Who sends the requests. Comes from outside: escape it wherever it is shown.
    pub tenant: String,
    /// Prompt template, or empty where unknown.
    #[serde(default)]
    pub template: String,
    /// Model revision that served the slice, or empty where unknown.
    #[serde(default)]
    pub model_revision: String,
    /// Tokenizer revision that served the slice, or empty where unknown.
    #[serde(default)]
    pub tokenizer_revision: String,
}

impl Slice {
    /// A slice that is known by its tenant alone.
    #[must_use]
    pub fn of_tenant(tenant: &str) -> Self {
        Self {
            tenant: tenant.to_owned(),
            template: String::new(),
            model_revision: String::new(),
            tokenizer_revision: String::new(),
        }
    }
}
