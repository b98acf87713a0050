//! The words of Evenkeel: what is an expert, a slot, a rank, a phase, a slice, a map?
//!
//! Every other crate speaks in these types. They hold data and the laws that a single value can
//! be checked against ([`ExpertMap::violations`]); they compute no plan, no time and no verdict.
//!
//! Counts are `u32`/`u64`, times are nanoseconds (`_ns`) or microseconds (`_us`), sizes are bytes,
//! rates are powers of ten (GB/s = 10^9 bytes per second). Units stand last in a name.

mod chance;
mod ids;
mod map;
mod policy;
mod shape;
mod slice;
mod survive;
mod topology;

pub use chance::{hash2, hash3, unit_f64};
pub use ids::{ExpertId, LayerId, NodeId, RankId, SliceId, SlotId};
pub use map::{CopyDigest, ExpertMap, MAP_SCHEMA, MapError, Provenance, Violation};
pub use policy::{GatePolicy, MemoryPolicy, MovePolicy, Pin, PlanPolicy, Policy, PolicyError, Slo};
pub use shape::{Attention, ExpertGroups, ModelShape, ShapeError, WeightFormat};
pub use slice::{Phase, Slice};
pub use survive::{Domain, DomainKind, Promise, RestorePolicy, SurvivePolicy};
pub use topology::{
    LinkClass, LinkHealth, Node, Rank, RankSpeed, TOPOLOGY_SCHEMA, Topology, TopologyError,
};
