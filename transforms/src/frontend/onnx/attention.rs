//! Where the keys and values of an attention come from, whatever the export made of it.

use super::lookup::Lookup;
use super::states::States;
use crate::graph::Extent;
use crate::onnx::NodeProto;

/// What an attention keeps: the keys it weighs by and the values it sums.
pub(super) struct Operands<'a> {
    pub(super) key: &'a str,
    pub(super) value: &'a str,
    /// What is added to the scores, or chooses among them.
    pub(super) masks: Vec<&'a str>,
}

/// Where a key or a value begins.
pub(super) struct Root<'a> {
    /// The tensor that is the same for all attentions that read one cache.
    pub(super) tensor: &'a str,
    /// The state it comes from.
    pub(super) state: Option<&'a str>,
    /// Heads and channels of a head.
    pub(super) dims: (u64, u64),
}

/// Ops that move numbers without computing with them; a product with a constant (the scale) counts as one.
fn moves(node: &NodeProto) -> bool {
    matches!(
        node.op_type.as_str(),
        "Cast"
            | "Concat"
            | "Expand"
            | "Gather"
            | "Identity"
            | "Mul"
            | "Reshape"
            | "ScatterElements"
            | "ScatterND"
            | "Slice"
            | "Squeeze"
            | "TensorScatter"
            | "Tile"
            | "Transpose"
            | "Unsqueeze"
    )
}

/// Ops between the product of queries and keys and the one with the values.
fn scores(node: &NodeProto) -> bool {
    matches!(
        node.op_type.as_str(),
        "Add" | "Cast" | "Div" | "Dropout" | "Identity" | "Mul" | "Slice" | "Softmax" | "Sub" | "Where"
    )
}

/// The operands of an attention that was written out as MatMul, Softmax, MatMul; `node` is the second MatMul.
pub(super) fn written_out<'a>(lookup: &Lookup<'a>, node: &'a NodeProto) -> Option<Operands<'a>> {
    if node.full_type() != "MatMul" {
        return None;
    }
    let value = node.at(1)?;
    let (mut softmax_seen, mut masks) = (false, Vec::new());
    let mut name = node.at(0)?;
    // The chain is short: scale, mask, softmax, guards against empty rows.
    for _ in 0..16 {
        let producer = lookup.producer(name)?;
        match producer.op_type.as_str() {
            "MatMul" if softmax_seen => {
                return Some(Operands { key: producer.at(1)?, value, masks });
            }
            _ if scores(producer) => {
                softmax_seen |= producer.op_type == "Softmax";
                // Where(mask, scores, filler) before the softmax; behind it, one that guards rows without tokens.
                let position = if producer.op_type == "Where" { where_scores_are(lookup, producer) } else { 0 };
                if softmax_seen {
                    masks.extend(match producer.op_type.as_str() {
                        "Where" => producer.at(0),
                        "Add" => producer.at(1),
                        _ => None,
                    });
                }
                name = producer.at(position)?;
            }
            _ => return None,
        }
    }
    None
}

/// The operand of a `Where` that leads to the scores.
fn where_scores_are(lookup: &Lookup<'_>, node: &NodeProto) -> usize {
    let leads = |name| lookup.producer(name).is_some_and(|node| scores(node) || node.op_type == "MatMul");
    if node.at(2).is_some_and(leads) { 2 } else { 1 }
}

/// Follows a key or value back to the state it is kept in, or else to the last tensor that shows its heads.
pub(super) fn root<'a>(lookup: &Lookup<'a>, states: &States<'a>, name: &'a str) -> Option<Root<'a>> {
    let mut visible = None;
    let mut open = vec![(name, None)];
    // Every step looks at one tensor; a cache is a handful of moves away from its attention.
    for _ in 0..512 {
        let Some((name, gathered)) = open.pop() else { break };
        if states.of(name).is_some() {
            let drop = usize::from(gathered.is_some());
            let dims = heads(lookup, name, drop)?;
            return Some(Root { tensor: gathered.unwrap_or(name), state: Some(name), dims });
        }
        if let Some(dims) = new_heads(lookup, name) {
            visible = Some(Root { tensor: name, state: None, dims });
        }
        let Some(producer) = lookup.producer(name).filter(|node| moves(node)) else { continue };
        // A Gather that lowers the rank takes one layer out of a stack.
        let takes_layer = producer.op_type == "Gather" && rank(lookup, producer.at(0)?) > rank(lookup, name);
        let gathered = if takes_layer { Some(name) } else { gathered };
        // The last pushed is looked at first: the old part of a Concat or Scatter is its first operand.
        open.extend(
            producer.input.iter().rev().filter(|input| !input.is_empty()).map(|input| (input.as_str(), gathered)),
        );
    }
    visible
}

fn rank(lookup: &Lookup<'_>, name: &str) -> usize {
    lookup.value(name).map_or(0, |value| value.shape.len())
}

/// Heads and head_dim of a state [B, heads, tokens, head_dim] behind `drop` leading axes.
fn heads(lookup: &Lookup<'_>, name: &str, drop: usize) -> Option<(u64, u64)> {
    let shape = lookup.value(name)?.shape.get(drop..)?;
    match shape {
        // Tokens before heads: only the token axis is open.
        [_, Extent::Symbol(_), Extent::Known(heads), Extent::Known(head_dim)] => Some((*heads, *head_dim)),
        [_, Extent::Known(heads), _, Extent::Known(head_dim)] => Some((*heads, *head_dim)),
        _ => None,
    }
}

/// Heads and head_dim of new keys [B, heads, tokens, head_dim] whose token axis is open.
fn new_heads(lookup: &Lookup<'_>, name: &str) -> Option<(u64, u64)> {
    match lookup.value(name)?.shape.as_slice() {
        [_, Extent::Known(heads), Extent::Symbol(_), Extent::Known(head_dim)] => Some((*heads, *head_dim)),
        _ => None,
    }
}
