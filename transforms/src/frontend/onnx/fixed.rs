//! Keys and values in tensors of fixed shapes: one input and one output for all layers, and columns that a call renews.

use cacheplan_handlers::DType;

use super::lookup::Lookup;
use super::states::{MAX_LAYER, State, States, key_to_value, layer_in};
use crate::frontend::FrontendError;
use crate::graph::Extent;
use crate::model::{StateBinding, StatePart};

/// `[layers, 1, heads, tokens, head_dim]`, before and after a call.
pub(super) struct FixedCache<'a> {
    pub(super) key: State<'a>,
    /// Absent where keys and values are made of one latent.
    pub(super) value: Option<State<'a>>,
    /// The layer of each row.
    pub(super) layers: Vec<u32>,
    /// Whether the graph says so; else its rows are taken for the model's layers in their order.
    pub(super) layers_are_told: bool,
    pub(super) heads: u64,
    pub(super) tokens: u64,
    pub(super) head_dim: u64,
    pub(super) dtype: DType,
}

impl<'a> FixedCache<'a> {
    /// The pairs of states whose shapes are known to the last axis and stay the same, and those alone that are of latents:
    /// one for each size of heads.
    pub(super) fn find(file: &str, lookup: &Lookup<'a>, states: &States<'a>) -> Result<Vec<Self>, FrontendError> {
        let mut found = Vec::new();
        for key in states.iter() {
            let Some(([rows, batch, heads, tokens, head_dim], dtype)) = shape(lookup, key) else { continue };
            let value = match key_to_value(key.input) {
                None if heads == 1 && is_latent(key) => None,
                name => match name.and_then(|name| states.of(&name).cloned()) {
                    Some(value) if shape(lookup, &value) == shape(lookup, key) => Some(value),
                    _ => continue,
                },
            };
            let refuse = |reason: String| {
                let node = format!("state `{}`", key.input);
                FrontendError::Onnx { file: file.to_owned(), node, reason }
            };
            if batch != 1 {
                return Err(refuse(format!(
                    "it holds {batch} sequences, which would share one position; export the graph with a batch of 1"
                )));
            }
            let count = u32::try_from(rows).ok().filter(|&rows| rows <= MAX_LAYER);
            let count = count.ok_or_else(|| refuse(format!("its {rows} layers are more than {MAX_LAYER}")))?;
            let told = told(lookup, key.input, count);
            let layers_are_told = told.is_some();
            let layers = told.unwrap_or_else(|| (0..count).collect());
            let key = key.clone();
            found.push(Self { key, value, layers, layers_are_told, heads, tokens, head_dim, dtype });
        }
        Ok(found)
    }

    /// Its tensors: keys and values, or latents.
    pub(super) fn states(&self) -> impl Iterator<Item = &State<'a>> {
        std::iter::once(&self.key).chain(&self.value)
    }

    pub(super) fn bindings(&self) -> impl Iterator<Item = StateBinding> {
        self.states().map(|state| {
            let (input, output) = (state.input.to_owned(), state.output.to_owned());
            StateBinding { input, output, layers: self.layers.clone(), part: StatePart::Fixed }
        })
    }

    /// A graph whose number of tokens is open takes as many as the cache has room for.
    pub(super) fn step_tokens(&self, lookup: &Lookup<'_>) -> u64 {
        lookup.size("input_ids", 1).unwrap_or(self.tokens)
    }
}

/// The layer of each row, by the names of the nodes that take the rows out; `None` where they do not tell all of them
/// apart.
fn told(lookup: &Lookup<'_>, input: &str, rows: u32) -> Option<Vec<u32>> {
    let mut layers = vec![None; rows as usize];
    let takes = lookup.graph.node.iter().filter(|node| node.op_type == "Gather" && node.at(0) == Some(input));
    for node in takes.filter(|node| node.number("axis").unwrap_or(0) == 0) {
        let row = node.at(1).and_then(|row| usize::try_from(lookup.whole_number(row)?).ok());
        let layer = layer_in(&node.name).filter(|&layer| layer <= MAX_LAYER);
        *layers.get_mut(row?)? = layer;
    }
    let layers: Vec<u32> = layers.into_iter().collect::<Option<_>>()?;
    layers.is_sorted_by(|a, b| a < b).then_some(layers)
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
