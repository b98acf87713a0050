//! One file per verb: load, one pure call, present.

pub(crate) mod bench;
pub(crate) mod calibrate;
pub(crate) mod check;
pub(crate) mod demo;
pub(crate) mod diagnose;
pub(crate) mod gate;
pub(crate) mod import;
pub(crate) mod init;
pub(crate) mod inspect;
pub(crate) mod plan;
pub(crate) mod replay;
pub(crate) mod report;
pub(crate) mod split;
pub(crate) mod survive;
pub(crate) mod traces;
