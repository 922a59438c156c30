//! Weights of 8 bits with a scale for each block of them, which ranks must divide into whole blocks (vLLM's `validate_fp8_block_shape` and
//! `validate_fp8_block_shape_moe`, read in 0.22.0 to 0.33.0; SGLang's `fp8.py` of 0.5.23).

use cacheplan_planner::ModelCaches;
use cacheplan_transforms::Model;
use cacheplan_transforms::layers::{BlockSpec, FeedForward};
use serde_json::Value;

use super::Question;
use crate::error::ServeError;
use crate::remedy::Remedy;

/// The blocks of experts are cut as fine as ranks need them (`refine_fp8_moe_block_shape`), down to this.
const FINEST: u64 = 32;

/// Over how many ranks an engine divides weights.
pub(super) struct Cut {
    /// The flag that says how many, and their number.
    pub(super) ranks: (&'static str, u64),
    /// Those of each expert; one where a rank has whole ones.
    pub(super) of_expert: u64,
    /// What leaves experts whole.
    pub(super) whole: Option<Remedy>,
    pub(super) refines: bool,
}

/// The inputs of a matrix, and how the name of a module ends that may be left out.
type Part = (u64, &'static [&'static str]);

/// Refuses ranks that cut a block.
pub(super) fn look(question: &Question, model: &ModelCaches, cut: Cut) -> Result<(), ServeError> {
    let Some(model) = model.model() else { return Ok(()) };
    let Some(section) = model.stated("quantization_config") else { return Ok(()) };
    let Some([rows, columns]) = block(section) else { return Ok(()) };
    let Cut { ranks: (flag, tp), of_expert, whole, refines } = cut;
    let skipped: Vec<&str> = ["modules_to_not_convert", "ignored_layers"]
        .into_iter()
        .filter_map(|key| section.get(key)?.as_array())
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let is_left_out = |words: &[&str]| skipped.iter().any(|name| words.iter().any(|word| name.ends_with(word)));
    let refused = |said: String, more: Option<Remedy>| {
        let fewer = (1..tp).rev().find(|ranks| tp.is_multiple_of(*ranks));
        let fewer = fewer.map(|ranks| Remedy::Set(flag, ranks.to_string()));
        question.refused(said, more.into_iter().chain(fewer))
    };
    let blocks = model.layers.iter().flat_map(|layer| &layer.blocks);
    for (size, words) in blocks.flat_map(|block| parts(block, of_expert == 1)) {
        let share = size / tp;
        if tp > 1 && !share.is_multiple_of(columns) && !is_left_out(words) {
            let said = format!(
                "Weight input_size_per_partition = {share} is not divisible by weight quantization block_k = {columns}."
            );
            return Err(refused(said, None));
        }
    }
    for block in experts(model) {
        let share = block.intermediate_size / of_expert.max(1);
        let divides = share.is_multiple_of(rows) && (of_expert == 1 || share.is_multiple_of(columns));
        let sees = block.latent_size.or(model.hidden_size).unwrap_or(rows);
        let finest = [rows, columns, share, sees].into_iter().reduce(common).unwrap_or(0);
        if divides || is_left_out(&["experts", "mlp"]) || (refines && finest >= FINEST) {
            continue;
        }
        let said = format!(
            "The output_size of gate's and up's weight = {share} is not divisible by weight quantization block_n = {rows}."
        );
        return Err(refused(said, whole.filter(|_| of_expert > 1)));
    }
    Ok(())
}

/// Rows and columns of a block.
fn block(section: &Value) -> Option<[u64; 2]> {
    section.get("quant_method").and_then(Value::as_str).filter(|method| *method == "fp8")?;
    let sizes: Vec<u64> = section.get("weight_block_size")?.as_array()?.iter().filter_map(Value::as_u64).collect();
    <[u64; 2]>::try_from(sizes).ok().filter(|sizes| !sizes.contains(&0))
}

/// The inputs of those matrices of a block that ranks divide by these. Several matrices in one may have any outputs
/// (`_maybe_allow_fp8_block_shape_mismatch`).
fn parts(block: &BlockSpec, whole_experts: bool) -> Vec<Part> {
    const OUT: &[&str] = &["o_proj", "self_attn", "attention"];
    const DOWN: &[&str] = &["down_proj", "mlp"];
    match block {
        BlockSpec::Attention(of) => vec![(of.num_heads * of.value_dim.unwrap_or(of.head_dim), OUT)],
        BlockSpec::Mla(of) => vec![(of.num_heads * of.v_head_dim, OUT)],
        BlockSpec::FeedForward(of) if of.experts == 0 => vec![(of.intermediate_size, DOWN)],
        BlockSpec::FeedForward(of) if of.shared_size > 0 && !whole_experts => {
            vec![(of.shared_size, &["shared_expert", "shared_experts", "down_proj", "mlp"])]
        }
        _ => Vec::new(),
    }
}

fn experts(model: &Model) -> impl Iterator<Item = &FeedForward> {
    model.layers.iter().flat_map(|layer| &layer.blocks).filter_map(|block| match block {
        BlockSpec::FeedForward(block) if block.experts > 0 => Some(block),
        _ => None,
    })
}

const fn common(one: u64, other: u64) -> u64 {
    let (mut one, mut other) = (one, other);
    while other > 0 {
        (one, other) = (other, one % other);
    }
    one
}
