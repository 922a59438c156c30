//! How states are kept: in which mode, in how many blocks, and how large their pages are.

use std::ops::Range;

use cacheplan_handlers::{DecayKind, Recurrence};

use crate::budget::MambaCacheMode;
use crate::engines::caches::State;
use crate::engines::situation::Situation;
use crate::engines::version::Version;

/// Read in 0.11.2, and not in 0.11.0: states are kept with prefix caching, of model types that keep one for every block.
pub(super) const KEEPS_STATES: Version = Version(0, 11, 1);
/// Read in 0.15.1, and not in 0.14.0: so are those of others, the last alone.
pub(super) const KEEPS_LAST_STATES: Version = Version(0, 15, 0);
/// Read in 0.28.0, and not in 0.27.0: where nobody says, the last alone is kept of all model types.
pub(super) const KEEPS_LAST_STATES_OF_ALL: Version = Version(0, 28, 0);
/// Read in 0.21.0 alone: so it is with drafts.
const KEEPS_LAST_STATES_WITH_DRAFTS: Range<Version> = Version(0, 21, 0)..Version(0, 22, 0);
/// Likewise: a state at a block's end is written inside a prefill, into a block of its own.
pub(super) const EXPORTS_CHECKPOINTS: Version = Version(0, 32, 0);
/// The same of gated delta layers, as 0.33.0 answers and 0.32.0 does not.
pub(super) const EXPORTS_GATED_DELTA: Version = Version(0, 33, 0);
/// Model types that can keep a state for every block (`SupportsMambaPrefixCaching`), with the chunk of their scan where their
/// class states one.
const KEEPS_EVERY_STATE: [(&str, u64); 9] = [
    ("bamba", 256),
    ("falcon_h1", 256),
    ("falcon_mamba", NO_CHUNK),
    ("granitemoehybrid", 256),
    ("jamba", NO_CHUNK),
    ("mamba", NO_CHUNK),
    ("mamba2", 256),
    ("nemotron_h", 128),
    ("zamba2", 256),
];
/// Mamba-1 has none.
const NO_CHUNK: u64 = 2048;

/// The chunk of the scan of a model that can keep a state for every block.
pub(super) fn every_state(situation: &Situation<'_>) -> Option<u64> {
    let model = situation.model.model_type.as_str();
    KEEPS_EVERY_STATE.iter().find(|(of, _)| *of == model).map(|(_, chunk)| *chunk)
}

/// How states are kept.
pub(super) fn cache_mode(situation: &Situation<'_>) -> MambaCacheMode {
    let (version, keeps_all) = (situation.version, every_state(situation).is_some());
    let with_drafts = situation.draft_tokens > 0 && KEEPS_LAST_STATES_WITH_DRAFTS.contains(&version);
    match situation.options.mamba_cache_mode {
        // Without prefix caching any other mode is ignored, and with it a prefix has its state.
        _ if !situation.prefix_caching() || version < KEEPS_STATES => MambaCacheMode::None,
        _ if version < KEEPS_LAST_STATES && !keeps_all => MambaCacheMode::None,
        _ if version < KEEPS_LAST_STATES => MambaCacheMode::All,
        Some(MambaCacheMode::All) if keeps_all => MambaCacheMode::All,
        None | Some(MambaCacheMode::None) if keeps_all && version < KEEPS_LAST_STATES_OF_ALL && !with_drafts => {
            MambaCacheMode::All
        }
        _ => MambaCacheMode::Align,
    }
}

/// Asserted in 0.24.0 (`validate_block_size`), and not in 0.33.0: a step has room for the block that is aligned to states.
const ASSERTS_STEP: Range<Version> = Version(0, 15, 0)..Version(0, 25, 0);

/// Tokens that a step must have room for.
pub(super) fn least_step(situation: &Situation<'_>, block: u64) -> Option<u64> {
    let asserts = ASSERTS_STEP.contains(&situation.version) && cache_mode(situation) == MambaCacheMode::Align;
    asserts.then_some(block)
}

/// Blocks of states that one sequence holds in each group.
pub(super) fn state_blocks(situation: &Situation<'_>, exported: u64, block: u64) -> u64 {
    let drafts = situation.draft_tokens;
    match cache_mode(situation) {
        MambaCacheMode::None => 1 + drafts,
        MambaCacheMode::Align => 2 + drafts + exported,
        MambaCacheMode::All => situation.load.max_seq_len.div_ceil(block) + drafts,
    }
}

/// The chunk of the scan that blocks must be multiples of: where it writes states inside a prefill, all layers alike.
pub(super) fn chunk(situation: &Situation<'_>) -> u64 {
    const GATED_DELTA_CHUNK: u64 = 64;
    let mut recurrent = situation.caches.states.iter().filter(|state| state.ssm > 0).peekable();
    let exported = situation.version >= EXPORTS_GATED_DELTA && cache_mode(situation) == MambaCacheMode::Align;
    if exported && recurrent.peek().is_some() && recurrent.all(is_gated_delta) { GATED_DELTA_CHUNK } else { 1 }
}

fn is_gated_delta(state: &State) -> bool {
    matches!(state.recurrence, Some(Recurrence::LinearAttention { delta_rule: true, decay: DecayKind::PerHead, .. }))
}

/// Blocks more that a layer needs to write a state inside a prefill.
pub(super) fn exported(situation: &Situation<'_>, state: &State) -> u64 {
    let exports = match state.recurrence {
        Some(Recurrence::Ssd { .. }) => true,
        // Kimi-K3 has kernels of its own for the delta rule of its linear layers.
        Some(Recurrence::LinearAttention { delta_rule: true, .. }) if situation.model.model_type == "kimi_k3" => true,
        _ => chunk(situation) > 1,
    };
    u64::from(exports && situation.version >= EXPORTS_CHECKPOINTS)
}

/// The state page of each layer; speculation widens the convolution by the drafted columns.
pub(super) fn state_pages(situation: &Situation<'_>) -> impl Iterator<Item = u64> {
    situation.caches.states.iter().map(|state| state_page(situation, state))
}

pub(super) fn state_page(situation: &Situation<'_>, state: &State) -> u64 {
    // Mamba-1 has no kernel that verifies several tokens at once.
    let drafts = if state.recurrence == Some(Recurrence::SelectiveScan) { 0 } else { situation.draft_tokens };
    state.bytes() + drafts * state.conv_column
}

/// What of a state the block is aligned to. A model of short convolutions does not say that drafts widen them, though its
/// layers do.
pub(super) fn aligned_state(situation: &Situation<'_>, state: &State) -> u64 {
    if state.ssm == 0 { state.bytes() } else { state_page(situation, state) }
}
