//! How large must each tier be: a trace over splits of device, host memory and disk between keys, windows and states.
//!
//! The tree of [`simulate`](super) runs over the trace, a symbol for each page. What a device of these sizes has no room
//! for goes to host memory, and from there to the disk. A hit from below the device counts where loading takes less time
//! than computing does at best.

mod answer;
mod asked;
mod error;
mod question;
mod replay;
mod search;
#[cfg(test)]
mod sglang;
mod sizes;
mod table;
#[cfg(test)]
mod tests;

pub use answer::{Gain, TierPoint, TiersAnswer};
pub use asked::{TierSources, TiersAsked, TiersTold};
pub use error::TiersError;
pub use question::TiersQuestion;
pub use sizes::{Kinds, Sizes, Split};
