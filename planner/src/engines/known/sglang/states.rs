//! Slots for states, and copies of states at each drafted token beside them (`handle_max_mamba_cache`).

use super::convolutions;
use crate::engines::situation::Situation;
use crate::engines::version::Version;
use crate::error::PlanError;

/// Read in 0.5.4, and not in 0.5.3: states have a share of the bytes; before, as many slots as run at once, or [`UNSTATED`].
pub(super) const SHARES: Version = Version(0, 5, 4);
/// Read in 0.5.8, and not in 0.5.6: without the radix cache too, where nobody says how many run; and copies are not those of all slots.
pub(super) const SHARES_WITHOUT_RADIX: Version = Version(0, 5, 7);
const UNSTATED: u64 = 512;
/// Read in 0.5.13, and not in 0.5.12: copies are paid from the states' share; before, from all bytes.
pub(super) const PAYS_COPIES_FROM_SHARE: Version = Version(0, 5, 13);
/// Read in 0.5.17, and not in 0.5.16: a slot takes of every rank what it does of the pipeline stage with the most; before, of all stages.
pub(crate) const PAYS_LARGEST_STAGE: Version = Version(0, 5, 17);
/// From here on the padding slot is paid from the states' share; before nobody pays for it.
pub(super) const PAYS_PADDING_SLOT: Version = Version(0, 5, 18);
/// Slots that a running request occupies with the radix cache on: running, and two for the tree.
pub const SLOTS_WITH_RADIX: u64 = 3;
/// Read in 0.5.14, and not in 0.5.13: where nobody says, two more, to which states are copied while steps overlap.
pub const EXTRA_BUFFER: Version = Version(0, 5, 14);
const EXTRA_SLOTS: u64 = 2;
/// Model types with states that have none of these, up to a version that has.
const WITHOUT_EXTRA_BUFFER: [(&str, Version); 5] = [
    ("lfm2", Version(u32::MAX, 0, 0)),
    ("lfm2_moe", Version(u32::MAX, 0, 0)),
    ("jet_nemotron", Version(u32::MAX, 0, 0)),
    ("zaya", Version(u32::MAX, 0, 0)),
    ("kimi_linear", Version(0, 5, 16)),
];
/// Requests that run at once where something drafts and nobody says.
pub const RUNNING_WITH_DRAFTS: u64 = 48;

/// Slots of states that a running request occupies where nobody says.
pub(crate) fn slots_per_request(model_type: &str, prefix_caching: bool, version: Version) -> u64 {
    let lacks = |(name, before): &(&str, Version)| *name == model_type && version < *before;
    match prefix_caching {
        false => 1,
        true if version < EXTRA_BUFFER || WITHOUT_EXTRA_BUFFER.iter().any(lacks) => SLOTS_WITH_RADIX,
        true => SLOTS_WITH_RADIX + EXTRA_SLOTS,
    }
}

/// The same, unless their number is stated.
pub(super) fn each(situation: &Situation<'_>) -> u64 {
    let default = slots_per_request(&situation.model.model_type, situation.prefix_caching(), situation.version);
    situation.options.slots_per_request.unwrap_or(default)
}

/// Bytes that a slot is taken to have, on every rank alike.
pub(super) fn bytes_of_slot(situation: &Situation<'_>) -> u64 {
    let stages = situation.stages.iter().map(|stage| stage.caches.state_bytes());
    if situation.version < PAYS_LARGEST_STAGE { stages.sum() } else { stages.max().unwrap_or(0) }
}

/// `rest * r / (1 + r)` bytes of slots, unless their number is stated.
pub(super) fn slots(situation: &Situation<'_>, per_slot: u64, each: u64) -> Result<u64, PlanError> {
    if let Some(slots) = situation.options.state_slots {
        if slots < each {
            let said = format!("{slots} slots for states are stated, and each running request takes {each}");
            return Err(PlanError::TooFew { engine: super::RULES.name, said });
        }
        return Ok(slots);
    }
    let version = situation.version;
    let shares = version >= SHARES_WITHOUT_RADIX || (version >= SHARES && situation.prefix_caching());
    // Without the radix cache a slot for each running request is all that it takes.
    match situation.budget.max_batch_size {
        Some(running) if !shares || !situation.prefix_caching() => return Ok(running),
        None if !shares => return Ok(UNSTATED),
        _ => {}
    }
    let ratio =
        situation.options.state_ratio.map_or(convolutions::state_ratio(situation), |ratio| ratio.millionths().into());
    let (drafts, each, per_slot) = (u128::from(situation.draft_tokens), u128::from(each), u128::from(per_slot));
    let bytes = u128::from(situation.bytes()?);
    let bytes = match copies_beside(situation) {
        Some(copies) => bytes.saturating_sub(copies * per_slot),
        None => bytes,
    };
    let share = bytes * ratio / (1_000_000 + ratio);
    let slots = match version {
        _ if version < SHARES_WITHOUT_RADIX => share / (per_slot * (1 + drafts)),
        _ if version < PAYS_COPIES_FROM_SHARE => share / per_slot,
        // Copies for every running request: 1 + drafts / slots for each.
        _ if version < PAYS_PADDING_SLOT => share * each / (per_slot * (each + drafts)),
        _ => share.saturating_sub(per_slot * (1 + drafts)) * each / (per_slot * (each + drafts)),
    };
    if slots == 0 {
        return Err(situation.does_not_fit("max_mamba_cache_size"));
    }
    Ok(u64::try_from(slots).unwrap_or(u64::MAX))
}

/// Requests that run at once where something drafts.
fn running(situation: &Situation<'_>) -> u64 {
    situation.budget.max_batch_size.unwrap_or(RUNNING_WITH_DRAFTS)
}

/// Copies that are paid before states have their share, however many slots there are.
fn copies_beside(situation: &Situation<'_>) -> Option<u128> {
    let is_paid = (SHARES_WITHOUT_RADIX..PAYS_COPIES_FROM_SHARE).contains(&situation.version);
    is_paid.then(|| u128::from(running(situation)) * u128::from(situation.draft_tokens))
}

/// Copies of states that there are, the padding's among them; none where nothing drafts.
pub(super) fn copies(situation: &Situation<'_>, slots: u64, each: u64) -> Option<u128> {
    let drafts = u128::from(situation.draft_tokens);
    (drafts > 0).then(|| (u128::from(rows(situation, slots, each)) + 1) * drafts)
}

/// Requests that have copies.
fn rows(situation: &Situation<'_>, slots: u64, each: u64) -> u64 {
    match situation.version {
        version if version < SHARES_WITHOUT_RADIX => slots,
        version if version < PAYS_COPIES_FROM_SHARE => running(situation),
        _ => running(situation).min((slots / each).max(1)),
    }
}

/// Slots and copies that are taken out of the bytes for tokens.
pub(super) fn charged(situation: &Situation<'_>, slots: u64) -> u128 {
    let padding = u128::from(situation.version >= PAYS_PADDING_SLOT);
    let drafts = u128::from(situation.draft_tokens);
    let rows = u128::from(rows(situation, slots, each(situation)));
    u128::from(slots) + padding + if drafts > 0 { (rows + padding) * drafts } else { 0 }
}
