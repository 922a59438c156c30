//! A model's caches as engines see them: attention layers with bytes per token, layers with a state.

use std::collections::{BTreeMap, BTreeSet};

use cacheplan_handlers::{DType, Dim, Growth, Kind, Recurrence, ResourceHandler, Shape, Split};

use super::version::Version;
use crate::budget::Budget;
use crate::mla_cache::MlaCache;
use crate::solver::demand::{Demand, Load};
use crate::solver::inputs::RankResources;

/// The compute capability, times ten, of the GPU that engines are taken to run on where nobody says.
pub(crate) const HOPPER: u32 = 90;

/// What engines store each in a way of its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Storage {
    /// Layers that read another layer's cache have one of their own all the same.
    pub(super) copies_shared: bool,
    /// An indexer's keys are 8 bits wide with a scale, whatever the dtype of the cache.
    pub(super) quantises_index: bool,
    /// In versions before this one every latent of sparse attention has an index, also where a layer uses another's choice.
    pub(super) index_per_latent_before: Version,
    /// A window that no sequence outgrows stays one.
    pub(super) keeps_long_windows: bool,
    /// What a layer keeps beside attention or a recurrence is no part of its state.
    pub(super) sets_apart: bool,
    /// Bytes of a latent of sparse attention in 8 bits, where it lies beside its scales and a rope key of 16 bits.
    pub(super) packed: fn(&Packing<'_>) -> Option<u64>,
}

/// What decides how latents of sparse attention are packed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packing<'a> {
    pub(super) model: &'a str,
    /// Elements of a latent with its rope key.
    pub(super) width: u64,
    pub(super) version: Version,
    /// Compute capability, times ten.
    pub(super) capability: u32,
    /// AMD's number of the GPU, of one of theirs.
    pub(super) gfx: Option<u32>,
}

impl Storage {
    /// Nothing in a way of its own.
    pub(super) const AS_MODELLED: Self = Self {
        copies_shared: false,
        quantises_index: false,
        index_per_latent_before: Version(0, 0, 0),
        keeps_long_windows: false,
        sets_apart: false,
        packed: |_| None,
    };
}

/// The caches of one rank.
#[derive(Clone)]
pub(super) struct Caches<'a> {
    /// Paged caches, in registration order.
    pub(super) attention: Vec<Attention<'a>>,
    /// Layers with a state of fixed size, ascending.
    pub(super) states: Vec<State>,
    /// What entries of several tokens are formed of, a state of its layer in `states` too.
    pub(super) forming: Vec<Forming<'a>>,
    /// What layers keep beside attention or a recurrence, where that is no part of their state.
    pub(super) beside: Vec<Beside<'a>>,
    /// Whether an indexer chooses the tokens that a latent's attention looks at.
    pub(super) sparse: bool,
}

/// One paged cache.
#[derive(Clone)]
pub(super) struct Attention<'a> {
    pub(super) name: &'a str,
    pub(super) layer: Option<u32>,
    pub(super) handler: &'a ResourceHandler,
    /// Bytes per entry; an entry is a token except for compressed caches.
    pub(super) bytes: u64,
    pub(super) stride: u64,
    /// The window, if a sequence can exceed it.
    pub(super) window: Option<u32>,
    /// Whether it belongs to the draft model.
    pub(super) draft: bool,
}

/// Rows of tokens that an entry is formed of.
#[derive(Clone, Copy)]
pub(super) struct Forming<'a> {
    pub(super) handler: &'a ResourceHandler,
    /// Bytes of one token's row.
    pub(super) row_bytes: u64,
}

/// A convolution over a layer's keys, values or outputs, or a state of no recurrence beside one.
#[derive(Clone, Copy)]
pub(super) struct Beside<'a> {
    pub(super) layer: Option<u32>,
    pub(super) handler: &'a ResourceHandler,
}

impl Beside<'_> {
    pub(super) fn is_convolution(&self) -> bool {
        *self.handler.kind() == Kind::CausalConv
    }

    /// Channels of a convolution on this rank, the heads whose they are, and its columns.
    pub(super) fn channels(&self) -> Option<Channels> {
        let [channels, columns] = self.handler.shape() else { return None };
        let heads = match channels.split {
            Split::KvChannels(heads) => Some(heads),
            _ => None,
        };
        self.is_convolution().then_some(Channels { size: channels.size, heads, columns: columns.size })
    }
}

/// What a convolution goes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Channels {
    pub(super) size: u64,
    /// None of channels that every rank holds whole.
    pub(super) heads: Option<u64>,
    pub(super) columns: u64,
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
    /// How the recurrent one moves on, where it is known.
    pub(super) recurrence: Option<Recurrence>,
}

impl<'a> Caches<'a> {
    /// Those of several ranks, as if one held them all.
    pub(super) fn together<'b>(ranks: impl Iterator<Item = &'b Self>) -> Self
    where
        'a: 'b,
    {
        let (attention, states, forming, beside) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut all = Self { attention, states, forming, beside, sparse: false };
        for Self { attention, states, forming, beside, sparse } in ranks {
            all.attention.extend(attention.iter().cloned());
            all.states.extend(states);
            all.forming.extend(forming);
            all.beside.extend(beside);
            all.sparse |= sparse;
        }
        all
    }

    pub(super) fn of(
        held: &'a RankResources<'_>,
        model: &str,
        max_seq_len: u64,
        budget: &Budget,
        storage: Storage,
        version: Version,
    ) -> Self {
        let mla_cache = budget.engine_mla_cache();
        let capability = budget.engine.compute_capability.unwrap_or(HOPPER);
        let packed =
            |width: u64| (storage.packed)(&Packing { model, width, version, capability, gfx: budget.engine.gfx });
        let mut attention = Vec::new();
        let indexer = held.resources.iter().map(|resource| &resource.handler).find(|handler| is_indexer(handler));
        let indexer = indexer.filter(|_| held.resources.of_kind(&Kind::MlaPaged).next().is_some());
        let bytes = |handler: &ResourceHandler| match (indexer, handler.known_shape()) {
            (Some(_), Some(Shape::Vector { head_dim })) if storage.quantises_index && is_indexer(handler) => {
                index_bytes(head_dim)
            }
            (Some(_), Some(Shape::Kv { head_dim, .. })) if is_narrow_latent(handler) => {
                packed(head_dim).unwrap_or_else(|| entry_bytes(handler, mla_cache))
            }
            _ => entry_bytes(handler, mla_cache),
        };
        let mut states: BTreeMap<Option<u32>, State> = BTreeMap::new();
        let (mut forming, mut beside) = (Vec::new(), Vec::new());
        let layers = |has: fn(&ResourceHandler) -> bool| -> BTreeSet<Option<u32>> {
            held.resources.iter().filter(|it| has(&it.handler)).map(|it| it.layer).collect()
        };
        let (compressed, convolved) = (layers(is_strided), layers(is_beside));
        for (resource, draft) in held.iter() {
            let handler = &resource.handler;
            let growth = handler.growth();
            match if storage.keeps_long_windows { growth } else { growth.within(max_seq_len) } {
                Growth::Paged { stride, window } => {
                    let readers = if storage.copies_shared { resource.shared_by.len() } else { 0 };
                    attention.extend((0..=readers).map(|_| Attention {
                        name: &resource.name,
                        layer: resource.layer,
                        handler,
                        bytes: bytes(handler),
                        stride: stride.into(),
                        window,
                        draft,
                    }));
                }
                Growth::PerSequence => {
                    let scored = *handler.kind() == Kind::State && compressed.contains(&resource.layer);
                    let is_plain = *handler.kind() == Kind::State && handler.recurrence().is_none();
                    let apart = is_beside(handler) || is_plain && convolved.contains(&resource.layer);
                    if storage.sets_apart && apart {
                        beside.push(Beside { layer: resource.layer, handler });
                        continue;
                    }
                    let rows = handler.shape().iter().rev().nth(1).filter(|_| scored || handler.as_ring().is_some());
                    forming.extend(
                        rows.map(|rows| Forming { handler, row_bytes: handler.unit_bytes() / rows.size.max(1) }),
                    );
                    let state = states.entry(resource.layer).or_default();
                    if *handler.kind() == Kind::CausalConv {
                        state.add_convolution(handler);
                    } else {
                        state.ssm += handler.unit_bytes();
                        state.ssm_elements += elements(handler);
                        state.recurrence = state.recurrence.or(handler.recurrence());
                    }
                }
                Growth::PerSlotToken | Growth::PerDraftPosition | Growth::Fixed => {}
            }
        }
        if let (true, Some(handler)) = (version < storage.index_per_latent_before, indexer) {
            let latents = attention.iter().filter(|cache| *cache.handler.kind() == Kind::MlaPaged).count();
            let indexed = attention.iter().filter(|cache| is_indexer(cache.handler)).count();
            let (name, layer, window) = ("", None, None);
            let index = || Attention { name, layer, handler, bytes: bytes(handler), stride: 1, window, draft: false };
            attention.extend((indexed..latents).map(|_| index()));
        }
        Self { attention, states: states.into_values().collect(), forming, beside, sparse: indexer.is_some() }
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

/// Whether it is a convolution that is no part of a recurrence's mixer.
pub(super) fn is_beside(handler: &ResourceHandler) -> bool {
    let of_a_mixer = |dim: &Dim| matches!(dim.split, Split::Sections(_));
    *handler.kind() == Kind::CausalConv && !handler.shape().iter().any(of_a_mixer)
}

/// Whether an entry stands for several tokens.
fn is_strided(handler: &ResourceHandler) -> bool {
    matches!(handler.growth(), Growth::Paged { stride: 2.., .. })
}

/// Whether it holds an indexer's keys, one per token.
fn is_indexer(handler: &ResourceHandler) -> bool {
    let every_token = matches!(handler.growth(), Growth::Paged { stride: 1, .. });
    every_token && *handler.kind() == Kind::IndexKey
}

/// Elements that share a float32 scale in the layouts of sparse attention.
const SCALED_TOGETHER: u64 = 128;

/// An index key is 8 bits wide whatever the dtype of the cache (vLLM's indexer cache, SGLang's NSA and DSA pools,
/// TensorRT-LLM's DSA cache managers).
pub(super) const fn index_bytes(head_dim: u64) -> u64 {
    head_dim + head_dim / SCALED_TOGETHER * 4
}

fn is_narrow_latent(handler: &ResourceHandler) -> bool {
    *handler.kind() == Kind::MlaPaged && matches!(handler.dtype(), DType::F8E4m3 | DType::F8E5m2)
}

/// A latent of 8 bits with its scales, and a rope key of 16 bits, where it has one.
pub(super) const fn packed_bytes(latent: u64) -> u64 {
    let rope = latent % SCALED_TOGETHER;
    let rank = latent - rope;
    rank + rank / SCALED_TOGETHER * 4 + 2 * rope
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

fn elements(handler: &ResourceHandler) -> u64 {
    handler.shape().iter().map(|dim| dim.size).product()
}

impl State {
    pub(super) fn add_convolution(&mut self, handler: &ResourceHandler) {
        let columns = handler.shape().last().map_or(1, |dim| dim.size);
        self.conv += handler.unit_bytes();
        self.conv_column += handler.unit_bytes() / columns;
        self.conv_elements += elements(handler);
        self.conv_column_elements += elements(handler) / columns;
    }

    pub(super) const fn bytes(&self) -> u64 {
        self.ssm + self.conv
    }

    /// Whether it is not what entries are formed of.
    pub(super) fn is_recurrent(&self) -> bool {
        self.recurrence.is_some_and(|recurrence| !matches!(recurrence, Recurrence::Ring(_)))
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
