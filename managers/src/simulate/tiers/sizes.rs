//! Bytes of tiers, and how they are divided.

use serde::Serialize;

/// Bytes of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Kinds {
    /// Keys and values, or latents, of all tokens.
    pub keys: u64,
    /// Keys and values of sliding windows.
    pub windows: u64,
    /// Recurrent states.
    pub states: u64,
}

impl Kinds {
    /// Sums them.
    #[must_use]
    pub fn bytes(self) -> u64 {
        self.keys.saturating_add(self.windows).saturating_add(self.states)
    }
}

/// How a tier is divided: shares of its bytes, the rest being keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Split {
    /// The share of sliding windows.
    pub windows: f64,
    /// The share of recurrent states.
    pub states: f64,
}

impl Split {
    /// Divides so many bytes.
    #[must_use]
    pub fn of(self, bytes: u64) -> Kinds {
        let share = |share: f64| (bytes as f64 * share) as u64;
        let (windows, states) = (share(self.windows), share(self.states));
        Kinds { keys: bytes.saturating_sub(windows).saturating_sub(states), windows, states }
    }

    /// The division that bytes of each kind have.
    pub(super) fn in_proportion_to(kinds: Kinds) -> Self {
        let all = kinds.bytes().max(1) as f64;
        Self { windows: kinds.windows as f64 / all, states: kinds.states as f64 / all }
    }
}

/// Bytes of each tier, for prefixes and, on the device, for running sequences too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sizes {
    /// On the device, beside the states of running sequences.
    pub device: Kinds,
    /// In host memory.
    pub host: Kinds,
    /// On the disk.
    pub disk: Kinds,
}
