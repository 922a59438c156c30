//! What shapes a tree: page, grid, components, leaf rule, tenants.

use serde::{Deserialize, Serialize};

use super::cost::Cost;
use super::error::PrefixError;
use super::host::HostTier;

/// Names who inserted a span, as an index into `TreeConfig::tenants`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TenantId(pub u16);

/// Chooses the format of states in the tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckpointFormat {
    /// As in live slots, so that a finished request's slot can become the tree's.
    #[default]
    Native,
    /// In 8 bits, with a scale per head and channel of a state, in a pool of their own. Storing quantises, a hit dequantises.
    Int8,
}

/// Which state goes first when slots are short.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Eviction {
    /// The least recently used one.
    Lru,
    /// The one whose loss costs least recompute: what it covers, weighed with how likely it is to be used.
    #[default]
    Coverage,
}

/// The fixed properties of a [`Tree`](super::Tree).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TreeConfig {
    /// Tokens per KV block. Keys are multiples of it.
    pub page: usize,
    /// Tokens per chunk of the model's scan: interior states exist only at its multiples.
    pub chunk: usize,
    /// Tokens that a sliding-window layer looks back, if the model has such layers.
    pub window: Option<usize>,
    /// Whether the model has recurrent layers, so that a hit needs a state.
    pub states: bool,
    /// At most so many states on one root path; the shallowest beyond it go after an insert. `None`: no limit.
    pub states_per_path: Option<usize>,
    /// How states lie in the tree.
    pub checkpoints: CheckpointFormat,
    /// Host memory to move to what the device has no room for.
    pub host: Option<HostTier>,
    /// Whether blocks that come again for a span take the place of those that the tree has and nobody holds. So a page that
    /// ends within a block is held in the block of who went on from there.
    pub renews: bool,
    /// What a state is worth when one has to go.
    pub eviction: Eviction,
    /// What recomputing costs, for [`Eviction::Coverage`].
    pub cost: Cost,
    /// Relative shares of the tenants. Eviction takes from the tenant that is furthest above its share.
    pub tenants: Vec<u32>,
}

impl Default for TreeConfig {
    fn default() -> Self {
        Self {
            page: 1,
            chunk: 1,
            window: None,
            states: true,
            states_per_path: None,
            checkpoints: CheckpointFormat::default(),
            host: None,
            renews: false,
            eviction: Eviction::default(),
            cost: Cost::TOKENS,
            tenants: vec![1],
        }
    }
}

impl TreeConfig {
    /// The positions at which a checkpoint can be both computed and keyed: the least common multiple of chunk and page.
    #[must_use]
    pub fn grid(&self) -> usize {
        (self.chunk / gcd(self.chunk, self.page).max(1)).saturating_mul(self.page)
    }

    pub(super) fn validate(&self) -> Result<(), PrefixError> {
        let reject = |what, found: usize| Err(PrefixError::Config { what, found });
        if self.page == 0 {
            return reject("page", self.page);
        }
        if self.chunk == 0 {
            return reject("chunk", self.chunk);
        }
        if self.window == Some(0) {
            return reject("window", 0);
        }
        if self.states_per_path == Some(0) {
            return reject("states_per_path", 0);
        }
        Self::validate_tenants(&self.tenants)?;
        if self.page.checked_mul(self.chunk).is_none() {
            return reject("page * chunk", self.page);
        }
        Ok(())
    }
}

impl TreeConfig {
    /// Every [`TenantId`] may have a share.
    const MOST_TENANTS: usize = 1 << 16;

    pub(super) fn validate_tenants(shares: &[u32]) -> Result<(), PrefixError> {
        if shares.is_empty() || shares.len() > Self::MOST_TENANTS {
            return Err(PrefixError::Config { what: "tenants", found: shares.len() });
        }
        if shares.contains(&0) {
            return Err(PrefixError::Config { what: "tenants: share", found: 0 });
        }
        Ok(())
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
