//! Convolutions beside attention or a recurrence, of models whose classes were read.

use std::collections::BTreeMap;

use super::spec::{Entry, Spec};
use crate::engines::caches::{Attention, Beside, Caches, Channels, State};
use crate::engines::situation::Situation;
use crate::engines::version::Version;
use crate::error::EngineRefusal;

/// The oldest version of which they were read is 0.32.0; builds behind 0.31.0 logged the same of Qwen3.8-Flash-Next.
pub(super) const READ: Version = Version(0, 31, 1);

/// How a model's are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keeps {
    /// Not at all: it has no class of its own, and what runs transformers' code keeps keys and values alone.
    Nothing,
    /// As states of their own (`models/qwen4_exp`, a `MambaSpec` of type `SHORT_CONV`); what n-grams end in is in the requests.
    States,
    /// As windows of so many tokens as the convolution has columns (`InklingConvState`).
    Windows,
}

const MODELS: [(&str, Keeps); 5] = [
    ("inkling_mm_model", Keeps::Windows),
    ("inkling_text", Keeps::Windows),
    ("qwen4_exp", Keeps::States),
    ("qwen4_exp_text", Keeps::States),
    ("zaya", Keeps::Nothing),
];

impl Keeps {
    pub(super) fn of(model_type: &str) -> Option<Self> {
        MODELS.iter().find(|(of, _)| *of == model_type).map(|(_, keeps)| *keeps)
    }
}

/// The same with convolutions that are states among the states.
pub(super) fn among_states(mut situation: Situation<'_>) -> Situation<'_> {
    if Keeps::of(&situation.model.model_type) == Some(Keeps::States) {
        situation.caches.states.extend(states(&situation.caches));
        for stage in &mut situation.stages {
            stage.caches.states.extend(states(&stage.caches));
        }
    }
    situation
}

fn states(caches: &Caches<'_>) -> Vec<State> {
    let convolutions = caches.beside.iter().filter(|beside| beside.channels().is_some());
    let state = |beside: &Beside<'_>| {
        let mut state = State::default();
        state.add_convolution(beside.handler);
        state
    };
    convolutions.map(state).collect()
}

/// A window for the convolutions of each layer: of each head its keys, its values, and its part of the layer's outputs, in a width that
/// is a power of two.
pub(super) fn windows(situation: &Situation<'_>, caches: &Caches<'_>) -> Vec<Spec> {
    if Keeps::of(&situation.model.model_type) != Some(Keeps::Windows) {
        return Vec::new();
    }
    let mut layers: BTreeMap<Option<u32>, Vec<(Channels, u64)>> = BTreeMap::new();
    for beside in &caches.beside {
        let element = beside.handler.dtype().row_bytes(1).unwrap_or(0);
        layers.entry(beside.layer).or_default().extend(beside.channels().map(|channels| (channels, element)));
    }
    let ranks = u64::from(situation.budget.parallel.tp);
    let window = |convolutions: &Vec<(Channels, u64)>| {
        let heads = convolutions.iter().find_map(|(channels, _)| channels.heads)?;
        let (first, element) = *convolutions.first()?;
        let of_rank =
            |(channels, _): &(Channels, u64)| channels.size / if channels.heads.is_some() { 1 } else { ranks };
        let head_dim = (convolutions.iter().map(of_rank).sum::<u64>() / heads).next_power_of_two();
        let block = first.columns + 1;
        let entry = Entry { bytes: heads * head_dim * element, heads, head_dim };
        Some(Spec::Window { window: u32::try_from(block).ok()?, block: Some(block), entry })
    };
    layers.values().filter_map(window).collect()
}

/// Older versions, and the convolutions of what drafts, were not read.
pub(super) fn refuses(situation: &Situation<'_>) -> Option<EngineRefusal> {
    let unread = |cache: &&Attention<'_>| cache.draft || situation.version < READ;
    let cache = situation.caches.attention.iter().find(unread).filter(|_| !situation.caches.beside.is_empty())?;
    Some(EngineRefusal::Unread { engine: super::RULES.name, cache: cache.name.to_owned() })
}
