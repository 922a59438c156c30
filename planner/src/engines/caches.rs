//! A model's caches as engines see them: attention layers with bytes per token, layers with a state.

use std::collections::BTreeMap;

use cacheplan_handlers::{DType, Growth, Kind, ResourceHandler};
use cacheplan_transforms::Resources;

use super::{Engine, MlaCache};
use crate::demand::{Demand, Load};

/// The caches of one rank.
pub(super) struct Caches<'a> {
    /// Paged caches, in registration order.
    pub(super) attention: Vec<Attention<'a>>,
    /// Layers with a state of fixed size, ascending.
    pub(super) states: Vec<State>,
    /// Whether an indexer chooses the tokens that a latent's attention looks at.
    pub(super) sparse: bool,
}

/// One paged cache.
pub(super) struct Attention<'a> {
    pub(super) handler: &'a ResourceHandler,
    /// Bytes per entry; an entry is a token except for compressed caches.
    pub(super) bytes: u64,
    pub(super) stride: u64,
    /// The window, if a sequence can exceed it.
    pub(super) window: Option<u32>,
    /// Whether it belongs to the draft model.
    pub(super) draft: bool,
}

/// The states of one layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub(super) ssm: u64,
    pub(super) conv: u64,
    /// Bytes of one more column of the convolution.
    pub(super) conv_column: u64,
    /// The same in elements, for engines that store states in a dtype of their own.
    pub(super) ssm_elements: u64,
    pub(super) conv_elements: u64,
    pub(super) conv_column_elements: u64,
}

impl<'a> Caches<'a> {
    pub(super) fn of(held: &'a Resources, max_seq_len: u64, mla_cache: Option<MlaCache>, engine: Engine) -> Self {
        let mut attention = Vec::new();
        let indexer = held.iter().find(|resource| is_indexer(&resource.handler)).map(|resource| &resource.handler);
        let indexer = indexer.filter(|_| held.of_kind(&Kind::MlaPaged).next().is_some());
        // These store sparse attention in layouts of their own.
        let packs = matches!(engine, Engine::Vllm | Engine::Sglang);
        let quantises_index = packs || engine == Engine::TensorRtLlm;
        let bytes = |handler: &ResourceHandler| match indexer {
            Some(_) if quantises_index && is_indexer(handler) => index_bytes(handler),
            Some(_) if packs && is_packed(handler) => packed_bytes(handler),
            _ => entry_bytes(handler, mla_cache),
        };
        let mut states: BTreeMap<Option<u32>, State> = BTreeMap::new();
        for resource in held {
            let handler = &resource.handler;
            match handler.growth() {
                Growth::Paged { stride, window } => {
                    // SGLang allocates for layers that read another's cache too.
                    let readers = if engine == Engine::Sglang { resource.shared_by.len() } else { 0 };
                    attention.extend((0..=readers).map(|_| Attention {
                        handler,
                        bytes: bytes(handler),
                        stride: stride.into(),
                        window: window.filter(|window| u64::from(*window) < max_seq_len),
                        draft: resource.name.starts_with("draft."),
                    }));
                }
                Growth::PerSequence => {
                    let state = states.entry(resource.layer).or_default();
                    let elements: u64 = handler.shape().iter().map(|dim| dim.size).product();
                    if *handler.kind() == Kind::CausalConv {
                        let columns = handler.shape().last().map_or(1, |dim| dim.size);
                        state.conv += handler.unit_bytes();
                        state.conv_column += handler.unit_bytes() / columns;
                        state.conv_elements += elements;
                        state.conv_column_elements += elements / columns;
                    } else {
                        state.ssm += handler.unit_bytes();
                        state.ssm_elements += elements;
                    }
                }
                Growth::PerSlotToken | Growth::PerDraftPosition | Growth::Fixed => {}
            }
        }
        // SGLang allocates an index for every latent, also where a layer uses another's choice.
        if let (Engine::Sglang, Some(handler)) = (engine, indexer) {
            let latents = attention.iter().filter(|cache| *cache.handler.kind() == Kind::MlaPaged).count();
            let indexed = attention.iter().filter(|cache| is_indexer(cache.handler)).count();
            let index = || Attention { handler, bytes: bytes(handler), stride: 1, window: None, draft: false };
            attention.extend((indexed..latents).map(|_| index()));
        }
        Self { attention, states: states.into_values().collect(), sparse: indexer.is_some() }
    }

    /// Bytes per token of all layers for which `of` holds; rounded up for compressed caches.
    pub(super) fn bytes_per_token(&self, of: impl Fn(&Attention<'_>) -> bool) -> u64 {
        self.attention.iter().filter(|cache| of(cache)).map(|cache| cache.bytes.div_ceil(cache.stride)).sum()
    }

    /// Bytes of all states of one sequence.
    pub(super) fn state_bytes(&self) -> u64 {
        self.states.iter().map(State::bytes).sum()
    }

    /// Bytes that one sequence of the load needs at least: single-token pages and states, no padding anywhere.
    pub(super) fn bytes_per_sequence(&self, load: &Load) -> u128 {
        const MANY: u64 = 1 << 16;
        let paged: u128 = self
            .attention
            .iter()
            .map(|cache| {
                let growth = Growth::Paged { stride: 1, window: cache.window };
                let tokens = Demand::new(growth, 1, 1, load).units(load, MANY);
                u128::from(tokens) * u128::from(cache.bytes.div_ceil(cache.stride)) / u128::from(MANY)
            })
            .sum();
        paged + u128::from(self.state_bytes())
    }
}

/// Whether it holds an indexer's keys, one per token.
fn is_indexer(handler: &ResourceHandler) -> bool {
    let every_token = matches!(handler.growth(), Growth::Paged { stride: 1, .. });
    every_token && handler.kind().name() == "core.index_key"
}

/// Elements that share a float32 scale in the layouts of sparse attention.
const SCALED_TOGETHER: u64 = 128;

/// An index key is 8 bits wide whatever the dtype of the cache (vLLM's indexer cache, SGLang's NSA and DSA pools,
/// TensorRT-LLM's DSA cache managers).
fn index_bytes(handler: &ResourceHandler) -> u64 {
    let width = handler.dim("head_dim").unwrap_or_default();
    width + width / SCALED_TOGETHER * 4
}

fn is_packed(handler: &ResourceHandler) -> bool {
    *handler.kind() == Kind::MlaPaged && matches!(handler.dtype(), DType::F8E4m3 | DType::F8E5m2)
}

/// `fp8_ds_mla`: a latent of 8 bits with its scales, and a rope key of 16 bits.
fn packed_bytes(handler: &ResourceHandler) -> u64 {
    let rank = handler.dim("head_dim").unwrap_or_default().saturating_sub(ROPE_DIM);
    rank + rank / SCALED_TOGETHER * 4 + 2 * ROPE_DIM
}

/// The rope key of every model with a latent that was seen.
const ROPE_DIM: u64 = 64;

/// Bytes of one entry, a latent's in the mode that is asked for.
fn entry_bytes(handler: &ResourceHandler, mla_cache: Option<MlaCache>) -> u64 {
    let latent = handler.dim("head_dim").filter(|_| *handler.kind() == Kind::MlaPaged);
    let rank = latent.and_then(|latent| latent.checked_sub(ROPE_DIM));
    match (mla_cache, rank) {
        (Some(MlaCache::Int8Nz), Some(rank)) => rank.next_multiple_of(32) + 2 * ROPE_DIM,
        (Some(MlaCache::Nz), Some(rank)) => 2 * (rank.next_multiple_of(16) + ROPE_DIM),
        (Some(MlaCache::Kvcache | MlaCache::KropeCtkv), Some(rank)) => 2 * (rank + ROPE_DIM),
        _ => handler.unit_bytes(),
    }
}

impl State {
    pub(super) const fn bytes(&self) -> u64 {
        self.ssm + self.conv
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(None, 1152)]
    #[case(Some(MlaCache::Kvcache), 1152)]
    #[case(Some(MlaCache::KropeCtkv), 1152)]
    #[case(Some(MlaCache::Nz), 1152)]
    #[case(Some(MlaCache::Int8Nz), 640)]
    fn a_latent_has_the_bytes_of_its_mode(#[case] mode: Option<MlaCache>, #[case] bytes: u64) {
        assert_eq!(entry_bytes(&ResourceHandler::mla_paged(512, 64, DType::Bf16).unwrap(), mode), bytes);
    }
}
