//! SGLang: a pool of tokens, one of sliding-window tokens and one of states, split at fixed ratios.
//!
//! Rules: read in the 0.5.9 and 0.5.23 wheels; the logged sizes under `tests/fixtures/groundtruth` agree.

use cacheplan_handlers::Growth;

use super::{EnginePrediction, Setting, Version};
use crate::demand::Demand;
use crate::solve::last;
use crate::{Fraction, PlanError};

/// From here on the padding slot is paid from the states' share.
const PAYS_PADDING_SLOT: Version = Version(0, 5, 18);
const STATE_RATIO_MILLIONTHS: u128 = 900_000;
const WINDOW_RATIO_MILLIONTHS: u128 = 800_000;
/// Slots that a running request occupies with the radix cache on: running, and two for the tree.
const SLOTS_PER_REQUEST_WITH_RADIX: u64 = 3;

pub(super) fn predict(setting: &Setting<'_>) -> Result<EnginePrediction, PlanError> {
    let (caches, load) = (&setting.caches, &setting.load);
    let per_slot = caches.state_bytes();
    // The kernels of sparse attention read pages of 64 tokens.
    let page = setting.options.block_size.unwrap_or(if caches.sparse { 64 } else { 1 });
    let full = caches.bytes_per_token(|cache| cache.window.is_none());
    let windowed = caches.bytes_per_token(|cache| cache.window.is_some());
    // Without a full-attention layer every token is kept: the windows' pool needs another to lead it.
    let (full, windowed) = if full == 0 { (windowed, 0) } else { (full, windowed) };

    let slots_per_request = if setting.prefix_caching() { SLOTS_PER_REQUEST_WITH_RADIX } else { 1 };
    let slots = if per_slot == 0 { None } else { Some(state_slots(setting, per_slot, slots_per_request)?) };
    let state_bytes = slots.map(|slots| (u128::from(slots) + 1) * u128::from(per_slot));
    let speculation_bytes = slots.filter(|_| setting.draft_tokens > 0).map(|slots| {
        let running = setting.budget.max_batch_size.unwrap_or(slots / slots_per_request);
        let ssm: u64 = caches.states.iter().map(|state| state.ssm).sum();
        (u128::from(running) + 1) * u128::from(setting.draft_tokens) * u128::from(ssm)
    });

    let ratio = ratio(setting.options.window_ratio, WINDOW_RATIO_MILLIONTHS);
    let (tokens, window_tokens) = match setting.bytes {
        Some(bytes) if full > 0 => {
            let taken = state_bytes.unwrap_or(0) + speculation_bytes.unwrap_or(0);
            let rest = u128::from(bytes).saturating_sub(taken);
            let tokens = rest * 1_000_000 / (u128::from(full) * 1_000_000 + u128::from(windowed) * ratio);
            let tokens = tokens / u128::from(page) * u128::from(page);
            let window_tokens = tokens * ratio / 1_000_000 / u128::from(page) * u128::from(page);
            (Some(tokens), (windowed > 0).then_some(window_tokens))
        }
        _ => (None, None),
    };

    let demand = |window| Demand::new(Growth::Paged { stride: 1, window }, 1, page, load);
    let window = caches.attention.iter().filter(|_| windowed > 0).filter_map(|cache| cache.window).max();
    let (everything, in_window) = (demand(None), demand(window));
    let sequences = last(1 << 20, |sequences| {
        let holds = |demand: &Demand, tokens: Option<u128>| {
            tokens.is_none_or(|tokens| u128::from(demand.units(load, sequences) - 1) * u128::from(page) <= tokens)
        };
        holds(&everything, tokens)
            && holds(&in_window, window_tokens)
            && slots.is_none_or(|slots| sequences <= slots / slots_per_request)
    });
    if sequences == 0 {
        let needed = caches.bytes_per_sequence(load) + state_bytes.unwrap_or(0);
        return Err(setting.does_not_fit(needed, "max_total_num_tokens"));
    }
    let total = |of: fn(&super::caches::State) -> u64| {
        slots.map(|slots| (slots + 1) * caches.states.iter().map(of).sum::<u64>())
    };
    let narrow = |bytes: Option<u128>| bytes.and_then(|bytes| u64::try_from(bytes).ok());
    let kv_bytes = tokens.map(|tokens| {
        let slack = if page > 1 { u128::from(page) } else { 0 };
        (tokens + slack) * u128::from(full) + window_tokens.map_or(0, |tokens| tokens + slack) * u128::from(windowed)
    });
    Ok(EnginePrediction {
        block_size: Some(page),
        tokens: narrow(tokens),
        window_tokens: narrow(window_tokens),
        state_slots: slots,
        kv_bytes: narrow(kv_bytes),
        state_bytes: narrow(state_bytes),
        ssm_bytes: total(|state| state.ssm),
        conv_bytes: total(|state| state.conv),
        speculation_bytes: narrow(speculation_bytes),
        sequences: setting.budget.max_batch_size.map_or(sequences, |cap| cap.min(sequences)),
        notes: notes(setting, windowed > 0, slots_per_request),
        ..EnginePrediction::default()
    })
}

fn notes(setting: &Setting<'_>, windows: bool, slots_per_request: u64) -> Vec<String> {
    let mut notes = Vec::new();
    if !setting.caches.states.is_empty() {
        notes.push(format!("states get 0.{} times the tokens' bytes unless stated", STATE_RATIO_MILLIONTHS / 100_000));
        notes.push(format!("{slots_per_request} state slots per running request"));
    }
    if windows {
        notes.push(format!("windows get 0.{} times the tokens unless stated", WINDOW_RATIO_MILLIONTHS / 100_000));
    }
    if setting.caches.sparse {
        notes.push("an index for every latent, in pages of 64 tokens".into());
    }
    if notes.is_empty() {
        notes.push("every token has a slot of its own".into());
    }
    notes
}

fn ratio(stated: Option<Fraction>, default: u128) -> u128 {
    stated.map_or(default, |ratio| ratio.of(1_000_000).into())
}

/// `rest * r / (1 + r)` bytes of slots, unless their number is stated.
fn state_slots(setting: &Setting<'_>, per_slot: u64, slots_per_request: u64) -> Result<u64, PlanError> {
    if let Some(slots) = setting.options.state_slots {
        return Ok(slots);
    }
    let ratio = ratio(setting.options.state_ratio, STATE_RATIO_MILLIONTHS);
    let share = u128::from(setting.bytes()?) * ratio / (1_000_000 + ratio);
    let share = if setting.version >= PAYS_PADDING_SLOT { share.saturating_sub(per_slot.into()) } else { share };
    // Speculation holds draft states for every running request: 1 + drafts / slots per request.
    let drafts = u128::from(setting.draft_tokens);
    let share = share.saturating_sub(drafts * u128::from(per_slot));
    let q = u128::from(slots_per_request);
    let slots = share * q / (u128::from(per_slot) * (q + drafts));
    if slots == 0 {
        return Err(setting.does_not_fit(u128::from(per_slot) * (1_000_000 + ratio) / ratio, "max_mamba_cache_size"));
    }
    Ok(u64::try_from(slots).unwrap_or(u64::MAX))
}
