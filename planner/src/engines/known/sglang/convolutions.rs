//! Convolutions beside attention: Inkling's are states of every layer; those of Qwen4's n-grams are paid by nobody.
//!
//! Rules: `InklingModelConfig.mamba2_cache_params`, `_inkling_overrides` and `extra_mamba_cache_bytes_per_req` of 0.5.23.

use std::collections::BTreeSet;

use super::{INDEXES_WHERE_CHOSEN, STATE_RATIO_MILLIONTHS, WINDOW_RATIO_MILLIONTHS};
use crate::engines::caches::{Attention, Beside, Caches, State};
use crate::engines::situation::Situation;

const INKLING: [&str; 2] = ["inkling_mm_model", "inkling_text"];
const QWEN4: [&str; 2] = ["qwen4_exp", "qwen4_exp_text"];
/// Tokens of windows to one of full attention, and bytes of states to those of tokens, of Inkling.
const INKLING_MILLIONTHS: u128 = 100_000;

pub(super) fn known(model_type: &str) -> bool {
    INKLING.contains(&model_type) || QWEN4.contains(&model_type)
}

pub(super) fn is_qwen4(situation: &Situation<'_>) -> bool {
    QWEN4.contains(&&*situation.model.model_type)
}

fn is_inkling(situation: &Situation<'_>) -> bool {
    INKLING.contains(&&*situation.model.model_type)
}

/// What nobody states of states and of windows, in millionths.
pub(super) fn state_ratio(situation: &Situation<'_>) -> u128 {
    if is_inkling(situation) { INKLING_MILLIONTHS } else { STATE_RATIO_MILLIONTHS }
}

pub(super) fn window_ratio(situation: &Situation<'_>) -> u128 {
    if is_inkling(situation) { INKLING_MILLIONTHS } else { WINDOW_RATIO_MILLIONTHS }
}

/// Whether they are those of a version that was read.
pub(super) fn are_read(situation: &Situation<'_>) -> bool {
    let drafts = situation.caches.attention.iter().any(|cache| cache.draft);
    situation.caches.beside.is_empty() || (situation.version >= INDEXES_WHERE_CHOSEN && !drafts)
}

/// The same with Inkling's convolutions as states: each layer has those of keys and values both of its own kind and of the other.
pub(super) fn among_states<'a>(situation: &Situation<'a>) -> Situation<'a> {
    let mut situation = situation.clone();
    if is_inkling(&situation) {
        let state = state(&situation.of_all_stages().caches);
        let put = |caches: &mut Caches<'_>| {
            let layers: BTreeSet<Option<u32>> = caches.beside.iter().map(|beside| beside.layer).collect();
            caches.states = vec![state; layers.len()];
        };
        put(&mut situation.caches);
        situation.stages.iter_mut().for_each(|stage| put(&mut stage.caches));
    }
    situation
}

fn state(caches: &Caches<'_>) -> State {
    let first = |windowed: bool| {
        let is_such = |cache: &&Attention<'_>| cache.window.is_some() == windowed;
        caches.attention.iter().find(is_such).map(|cache| cache.layer)
    };
    let (full, local) = (first(false), first(true));
    // What is over a layer's outputs is the same in both.
    let is_over_keys = |beside: &Beside<'_>| beside.channels().is_some_and(|channels| channels.heads.is_some());
    let mut state = State::default();
    for beside in &caches.beside {
        let layer = Some(beside.layer);
        if layer == full || (layer == local && is_over_keys(beside)) {
            state.add_convolution(beside.handler);
        }
    }
    state
}
