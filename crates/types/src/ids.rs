//! Newtyped ids: a rank is never mistaken for an expert.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $word:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u16);

        impl $name {
            /// The id as an index into a dense array.
            #[must_use]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($word, " {}"), self.0)
            }
        }
    };
}

id!(
    /// A MoE layer, counted from the first MoE layer (dense layers have no number here).
    LayerId, "layer"
);
id!(
    /// A logical expert, as the router names it.
    ExpertId, "expert"
);
id!(
    /// A rank of the expert-parallel group.
    RankId, "rank"
);
id!(
    /// A physical place for one expert in a rank's memory, counted within the rank.
    SlotId, "slot"
);
id!(
    /// A machine: ranks on one node exchange over its internal links.
    NodeId, "node"
);
id!(
    /// An index into a trace's list of slices.
    SliceId, "slice"
);
