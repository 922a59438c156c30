//! What a tree learns from its own hits: how likely states are used, by what they are and how often they were used.

use super::node::Checkpoint;

/// Values are told apart by their power of two, from half a token up, in so many lists.
pub(super) const RANKS: usize = 16;

/// Uses are told apart by their power of two, up to this one.
const USES: usize = 4;

/// After so many doublings the older half of an experience is forgotten.
const MEMORY: f64 = 16_384.0;

/// What became of the states of a class that had been used so often before.
#[derive(Clone, Copy, Debug, Default)]
struct Fate {
    uses: f64,
    /// How many times they doubled their age, all together.
    doublings: f64,
}

impl Fate {
    /// How likely a use is before the age doubles.
    fn chance(self) -> f64 {
        // Starts at one in four, before there is any experience.
        (self.uses + 1.0) / (self.doublings + 4.0)
    }

    fn count(&mut self, doublings: f64, used: bool) {
        self.uses += f64::from(u8::from(used));
        self.doublings += doublings;
        if self.doublings > MEMORY {
            self.uses /= 2.0;
            self.doublings /= 2.0;
        }
    }
}

/// What a tree has learnt from its own hits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Experience {
    /// By class and power of two of uses.
    fates: [[Fate; USES + 1]; 3],
    /// The age at which states are lost, a mean of the last dozens.
    pub(super) lifetime: f64,
}

impl Experience {
    pub(super) fn chance(&self, state: Checkpoint) -> f64 {
        let (class, uses) = state.kind();
        self.fates[class][uses].chance()
    }

    pub(super) fn count(&mut self, state: Checkpoint, age: f64, used: bool) {
        let start = 1.0 + self.lifetime;
        let (class, uses) = state.kind();
        self.fates[class][uses].count(((start + age) / start).log2(), used);
        if !used {
            self.lifetime += (age - self.lifetime) / 64.0;
        }
    }
}

impl Checkpoint {
    /// What its fate is counted under.
    fn kind(&self) -> (usize, usize) {
        (self.class as usize, (self.uses.saturating_add(1).ilog2() as usize).min(USES))
    }
}
