//! llama.cpp: cells for a context that is fixed at start, float32 states for each parallel sequence.
//!
//! Rules: those that reproduce the logged sizes under `tests/fixtures/groundtruth`.

use super::caches::Attention;
use super::{EnginePrediction, Setting};
use crate::PlanError;
use crate::solve::last;

const WINDOW_ALIGNMENT: u64 = 256;
const DEFAULT_UBATCH: u64 = 512;
const STATE_ELEMENT_BYTES: u64 = 4;

pub(super) fn predict(setting: &Setting<'_>) -> Result<EnginePrediction, PlanError> {
    let load = &setting.load;
    let ubatch = setting.options.ubatch.unwrap_or(DEFAULT_UBATCH);
    let context = |sequences: u64| setting.options.context.unwrap_or(load.max_seq_len.saturating_mul(sequences));
    let cells = |cache: &Attention<'_>, sequences: u64| match cache.window {
        Some(window) => {
            let needed = u64::from(window).saturating_mul(sequences).saturating_add(ubatch);
            needed.next_multiple_of(WINDOW_ALIGNMENT).min(context(sequences))
        }
        None => context(sequences),
    };
    let kv = |sequences: u64| -> u128 {
        let caches = setting.caches.attention.iter();
        caches.map(|cache| u128::from(cells(cache, sequences)) * u128::from(bytes_per_cell(cache))).sum()
    };
    // A rollback copy per drafted token.
    let copies = |sequences: u64| u128::from(sequences) * u128::from(1 + setting.draft_tokens);
    let elements = |of: fn(&super::caches::State) -> u64| -> u128 {
        setting.caches.states.iter().map(|state| u128::from(of(state))).sum()
    };
    let ssm = elements(|state| state.ssm_elements) * u128::from(STATE_ELEMENT_BYTES);
    let conv = elements(|state| state.conv_elements) * u128::from(STATE_ELEMENT_BYTES);
    let total = |sequences: u64| kv(sequences) + copies(sequences) * (ssm + conv);

    let stated = setting.options.state_slots.or(setting.budget.max_batch_size);
    let sequences = match (setting.bytes, stated) {
        (Some(bytes), cap) => last(cap.unwrap_or(1 << 20), |sequences| total(sequences) <= bytes.into()),
        (None, Some(sequences)) => sequences,
        (None, None) => setting.bytes()?,
    };
    if sequences == 0 {
        return Err(setting.does_not_fit(total(1), "context cells"));
    }
    let narrow = |bytes: u128| u64::try_from(bytes).ok();
    let states = !setting.caches.states.is_empty();
    let windowed = setting.caches.attention.iter().find(|cache| cache.window.is_some());
    Ok(EnginePrediction {
        tokens: Some(context(sequences)),
        window_tokens: windowed.map(|cache| cells(cache, sequences)),
        state_slots: states.then_some(sequences),
        kv_bytes: narrow(kv(sequences)),
        state_bytes: if states { narrow(copies(sequences) * (ssm + conv)) } else { None },
        ssm_bytes: if states { narrow(copies(sequences) * ssm) } else { None },
        conv_bytes: if states { narrow(copies(sequences) * conv) } else { None },
        sequences,
        notes: vec![
            "every sequence owns max_seq_len cells from the start".into(),
            format!("windows own their cells plus a batch of {ubatch}, in steps of {WINDOW_ALIGNMENT}"),
            "states are float32 whatever the model states".into(),
        ],
        ..EnginePrediction::default()
    })
}

/// A latent is stored once; bfloat16 models have float16 caches of the same size.
fn bytes_per_cell(cache: &Attention<'_>) -> u64 {
    cache.bytes.div_ceil(cache.stride)
}
