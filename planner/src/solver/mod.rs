//! From inputs to pools with sizes: what a rank holds, which caches share a pool, how many sequences fit, where the bytes go.
//!
//! It knows budget and plan, and no engine. [`make::make_all`] plans all pipeline stages together.

mod checkpoints;
mod context;
pub(crate) mod demand;
pub(crate) mod divisible;
mod group;
mod host;
pub(crate) mod inputs;
pub(crate) mod ledger;
pub(crate) mod make;
pub(crate) mod rank_step;
pub(crate) mod ranks;
pub(crate) mod room;
pub(crate) mod solve;
mod speculation;
pub(crate) mod step;
mod weights;
