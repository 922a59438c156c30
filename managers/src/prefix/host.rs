//! The host tier: what the device has no room for moves there instead of being lost.
//!
//! A span lies on the device or on the host, never on both, and so does a state. A window goes where its span goes.
//! Spans move out from the leaves and come back from the root, so whatever lies on the device hangs below device spans
//! only. The tree owns the host's units, numbered from 0; it says what to copy and the caller copies, in order, before
//! it uses anything that was released.

use serde::{Deserialize, Serialize};

use crate::book::{BlockId, SlotId};

/// The size of the host tier, from the plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostTier {
    /// KV blocks.
    pub blocks: u32,
    /// States.
    pub slots: u32,
    /// Window blocks.
    #[serde(default)]
    pub windows: u32,
}

/// A KV block, or a window block, in host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostBlockId(pub u32);

/// A state in host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostSlotId(pub u32);

/// A copy from the device to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offload {
    /// A KV block.
    Block {
        /// Where it is.
        from: BlockId,
        /// Where it goes.
        to: HostBlockId,
    },
    /// A window block.
    Window {
        /// Where it is.
        from: BlockId,
        /// Where it goes.
        to: HostBlockId,
    },
    /// A state.
    State {
        /// Where it is.
        from: SlotId,
        /// Where it goes.
        to: HostSlotId,
    },
}

/// A copy from the host to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// A KV block.
    Block {
        /// Where it is.
        from: HostBlockId,
        /// Where it goes.
        to: BlockId,
    },
    /// A window block.
    Window {
        /// Where it is.
        from: HostBlockId,
        /// Where it goes.
        to: BlockId,
    },
}

/// The units of the host tier that hold nothing.
#[derive(Debug)]
pub(super) struct HostPool {
    pub blocks: Vec<HostBlockId>,
    pub slots: Vec<HostSlotId>,
    pub windows: Vec<HostBlockId>,
}

impl HostPool {
    pub(super) fn new(tier: HostTier) -> Self {
        Self {
            blocks: (0..tier.blocks).rev().map(HostBlockId).collect(),
            slots: (0..tier.slots).rev().map(HostSlotId).collect(),
            windows: (0..tier.windows).rev().map(HostBlockId).collect(),
        }
    }
}
