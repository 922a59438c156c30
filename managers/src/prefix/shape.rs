//! How large the units of a prefix cache are.

use super::host::HostTier;

/// The bytes of one unit of each component.
#[derive(Debug)]
pub(crate) struct Shape {
    /// Bytes of one KV block.
    pub(crate) block_bytes: usize,
    /// Bytes of one window block; 0 without windows.
    pub(crate) window_bytes: usize,
    /// Bytes of one state; 0 without states.
    pub(crate) state_bytes: usize,
}

impl Shape {
    /// Bytes of a host tier.
    pub(crate) fn tier_bytes(&self, tier: HostTier) -> u64 {
        let parts =
            [(tier.blocks, self.block_bytes), (tier.windows, self.window_bytes), (tier.slots, self.state_bytes)];
        parts
            .into_iter()
            .fold(0, |sum, (units, bytes)| sum.saturating_add(u64::from(units).saturating_mul(bytes as u64)))
    }
}
