//! The groups that ranks form, and what all of them agree on.

use serde::{Deserialize, Serialize};

use crate::budget::key::{Values, section};

/// The size of a group of ranks.
const RANKS: Values = Values::Count(1, 4096);

section! {
    /// Sizes of the groups that ranks form; 1 each where absent.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    pub struct Parallel under "parallel." {
        /// Tensor parallel: divides KV heads, state heads and convolution channels.
        key("--tp", RANKS, "1", "1")
        pub tp: u32,
        /// Pipeline parallel: divides layers.
        key("--pp", RANKS, "1", "1")
        pub pp: u32,
        /// Data parallel: replicas that serve other sequences; they share routed experts where ep says so.
        key("--dp", RANKS, "1", "1")
        pub dp: u32,
        /// Expert parallel: divides routed experts, over tp or over tp times dp ranks; no caches.
        key("--ep", RANKS, "1", "1")
        pub ep: u32,
        /// Context parallel with ranks of its own: divides a sequence's paged tokens.
        key("--cp", RANKS, "1", "1")
        pub cp: u32,
        /// Decode context parallel: tp ranks that hold the same heads divide a sequence's paged tokens.
        key("--dcp", RANKS, "1", "1")
        #[serde(skip_serializing_if = "is_one")]
        pub dcp: u32,
    }
}

impl Default for Parallel {
    fn default() -> Self {
        Self { tp: 1, pp: 1, dp: 1, ep: 1, cp: 1, dcp: 1 }
    }
}

fn is_one(size: &u32) -> bool {
    *size == 1
}

/// What every rank of a group can serve, hence the size of every pool on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agreement {
    /// Sequences.
    pub sequences: u64,
    /// Tokens beyond those of the sequences.
    pub spare_tokens: u64,
    /// Sequences in the host tier; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_sequences: Option<u64>,
}

impl Parallel {
    /// Ranks in all.
    pub const fn world_size(&self) -> u64 {
        self.tp as u64 * self.pp as u64 * self.dp as u64 * self.cp as u64
    }

    /// What divides the caches of one rank beside what they are: the ranks that divide a sequence's tokens.
    pub(crate) fn of_rank(&self) -> Self {
        Self { cp: self.cp.saturating_mul(self.dcp), ..Self::default() }
    }

    /// Ranks that serve the same sequences.
    pub(crate) const fn replica_size(&self) -> u64 {
        self.tp as u64 * self.pp as u64 * self.cp as u64
    }

    /// Whether the ranks of all replicas share the experts, as those of one engine's data-parallel group do.
    pub(crate) const fn shares_experts(&self) -> bool {
        self.dp == 1 || self.ep as u64 == self.tp as u64 * self.dp as u64
    }

    /// Groups of several ranks that a rank exchanges with: those of its layers, stages, replicas with shared experts, and
    /// of the tokens of a sequence.
    pub(crate) fn groups(&self) -> u32 {
        let shares_experts = self.ep > self.tp;
        [self.tp > 1, self.pp > 1, shares_experts, self.cp > 1, self.dcp > 1].into_iter().map(u32::from).sum()
    }

    /// Over how many ranks the tokens of a sequence are divided.
    pub(crate) const fn context_ranks(&self) -> u64 {
        self.cp as u64 * self.dcp as u64
    }

    /// Every size with its key.
    pub const fn sizes(&self) -> [(&'static str, u32); 6] {
        [("tp", self.tp), ("pp", self.pp), ("dp", self.dp), ("ep", self.ep), ("cp", self.cp), ("dcp", self.dcp)]
    }

    /// The keys whose sizes are not those of `before`.
    pub(crate) fn changes(&self, before: Self) -> Vec<(&'static str, String)> {
        let sizes = Self::KEYS.iter().filter_map(|key| {
            let of = |parallel: Self| {
                parallel.sizes().into_iter().find(|(name, _)| key.path.strip_prefix("parallel.") == Some(*name))
            };
            let (_, size) = of(*self).filter(|size| Some(*size) != of(before))?;
            Some((key.path, size.to_string()))
        });
        sizes.collect()
    }

    /// That its sizes go with each other.
    ///
    /// # Errors
    /// In words, those that do not.
    pub fn validate(&self) -> Result<(), String> {
        let holders = u64::from(self.tp) * u64::from(self.dp);
        if !holders.is_multiple_of(self.ep.into()) {
            return Err(format!("`parallel.ep` {} does not divide tp * dp = {holders}", self.ep));
        }
        if !self.tp.is_multiple_of(self.dcp) {
            return Err(format!("`parallel.dcp` {} does not divide tp {}, whose ranks it takes", self.dcp, self.tp));
        }
        Ok(())
    }

    /// Over how many stages a model of so many layers is divided, hence its weights; `None` on a stage without a layer.
    pub(crate) fn stages_of(&self, stage: u32, layers: u32) -> Option<u64> {
        let stages = self.pp.min(layers.max(1));
        (stage < stages).then_some(stages.into())
    }
}
