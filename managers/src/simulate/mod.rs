//! What a prefix cache would do to a workload, without a model.
//!
//! The real tree runs over a trace; only the forward passes are left out. So sizes and policies can be chosen before
//! anything is rented.

mod below;
mod ceiling;
mod chart;
mod error;
mod report;
mod run;
mod scenario;
mod sequence;
pub mod tiers;
mod trace;
mod workload;

pub use below::{Compute, Links, Moved};
pub use ceiling::Ceiling;
pub use error::SimulateError;
pub use report::{Peak, Point, Report};
pub use scenario::{Policy, Scenario};
pub use trace::{Piece, TraceRequest};
pub use workload::Workload;
