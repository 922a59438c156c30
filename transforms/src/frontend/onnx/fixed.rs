//! Keys and values in tensors of fixed shapes: one input and one output for all layers, and columns that a call renews.

use cacheplan_handlers::DType;

use super::lookup::Lookup;
use super::states::{State, States, key_to_value};
use crate::frontend::FrontendError;
use crate::graph::Extent;
use crate::model::{StateBinding, StatePart};

/// What the state of such a cache is called.
pub(super) const STATIC_KV: &str = "static_kv";

/// `[layers, 1, heads, tokens, head_dim]`, before and after a call.
pub(super) struct FixedCache<'a> {
    pub(super) key: State<'a>,
    /// Absent where keys and values are made of one latent.
    pub(super) value: Option<State<'a>>,
    pub(super) layers: u64,
    pub(super) heads: u64,
    pub(super) tokens: u64,
    pub(super) head_dim: u64,
    pub(super) dtype: DType,
}

impl<'a> FixedCache<'a> {
    /// The pair of states whose shapes are known to the last axis and stay the same, or one alone that is of latents.
    pub(super) fn find(file: &str, lookup: &Lookup<'a>, states: &States<'a>) -> Result<Option<Self>, FrontendError> {
        for key in states.iter() {
            let Some(([layers, batch, heads, tokens, head_dim], dtype)) = shape(lookup, key) else { continue };
            let value = match key_to_value(key.input) {
                None if heads == 1 && is_latent(key) => None,
                name => match name.and_then(|name| states.of(&name).cloned()) {
                    Some(value) if shape(lookup, &value) == shape(lookup, key) => Some(value),
                    _ => continue,
                },
            };
            if batch != 1 {
                let node = format!("state `{}`", key.input);
                let reason = format!(
                    "it holds {batch} sequences, which would share one position; export the graph with a batch of 1"
                );
                return Err(FrontendError::Onnx { file: file.to_owned(), node, reason });
            }
            let key = key.clone();
            return Ok(Some(Self { key, value, layers, heads, tokens, head_dim, dtype }));
        }
        Ok(None)
    }

    pub(super) fn bindings(&self) -> impl Iterator<Item = StateBinding> {
        let key = if self.value.is_some() { StatePart::FixedKeys } else { StatePart::FixedLatents };
        let value = self.value.iter().map(|value| (value, StatePart::FixedValues));
        std::iter::once((&self.key, key)).chain(value).map(|(state, part)| {
            let (input, output) = (state.input.to_owned(), state.output.to_owned());
            StateBinding { input, output, layer: 0, part }
        })
    }

    /// Tensors of a layer: keys and values, or latents.
    pub(super) fn factor(&self) -> u64 {
        1 + u64::from(self.value.is_some())
    }

    /// A graph whose number of tokens is open takes as many as the cache has room for.
    pub(super) fn step_tokens(&self, lookup: &Lookup<'_>) -> u64 {
        lookup.size("input_ids", 1).unwrap_or(self.tokens)
    }
}

/// Whether a state says by its name that it is of latents.
fn is_latent(state: &State<'_>) -> bool {
    state.input.split(['.', '_', '/', ':']).any(|word| matches!(word, "latent" | "latents"))
}

fn shape(lookup: &Lookup<'_>, state: &State<'_>) -> Option<([u64; 5], DType)> {
    let (before, after) = (lookup.value(state.input)?, lookup.value(state.output)?);
    let known = |extent: &Extent| match extent {
        // No cache is larger than this in any direction, and products of five of them fit.
        Extent::Known(size) => Some(*size).filter(|&size| size > 0 && size <= 1 << 24),
        Extent::Symbol(_) => None,
    };
    let sizes: Vec<u64> = before.shape.iter().map(known).collect::<Option<_>>()?;
    let sizes = <[u64; 5]>::try_from(sizes).ok()?;
    (before.shape == after.shape).then_some((sizes, before.dtype?))
}
