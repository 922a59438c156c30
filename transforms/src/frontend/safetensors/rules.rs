//! Which weight tells which dimension of which op.

use std::collections::{BTreeSet, HashMap};

use super::header::TensorHeader;
use crate::frontend::FrontendError;
use crate::graph::{Attribute, Extent, Graph, Op};

/// A weight whose size along one axis follows from the tensors of an op.
struct Rule {
    /// The op's kind.
    op: &'static str,
    /// How the weight's name ends, after the layer.
    weight: &'static str,
    /// The axis of the weight.
    axis: usize,
    /// What its size is made of, in words.
    meaning: &'static str,
    /// Its size according to the graph.
    expected: fn(&Shapes<'_>) -> Option<u64>,
}

const RULES: &[Rule] = &[
    Rule {
        op: Op::ATTENTION,
        weight: "k_proj.weight",
        axis: 0,
        meaning: "num_kv_heads * head_dim",
        expected: |op| op.product("key", &[2, 3]),
    },
    Rule {
        op: Op::ATTENTION,
        weight: "v_proj.weight",
        axis: 0,
        meaning: "num_kv_heads * head_dim",
        expected: |op| op.product("value", &[2, 3]),
    },
    Rule {
        op: Op::ATTENTION,
        weight: "qkv_proj.weight",
        axis: 0,
        meaning: "(num_heads + 2 * num_kv_heads) * head_dim",
        expected: |op| Some(op.product("query", &[2, 3])? + 2 * op.product("key", &[2, 3])?),
    },
    Rule {
        op: Op::MLA,
        weight: "kv_a_proj_with_mqa.weight",
        axis: 0,
        meaning: "kv_lora_rank + qk_rope_head_dim",
        expected: |op| Some(op.size("latent", 2)? + op.size("rope_key", 2)?),
    },
    Rule {
        op: Op::MLA,
        weight: "kv_a_layernorm.weight",
        axis: 0,
        meaning: "kv_lora_rank",
        expected: |op| op.size("latent", 2),
    },
    Rule { op: Op::SSD, weight: "A_log", axis: 0, meaning: "num_heads of the state", expected: |op| op.size("x", 2) },
    Rule {
        op: Op::SSD,
        weight: "out_proj.weight",
        axis: 1,
        meaning: "num_heads * head_dim of the state",
        expected: |op| op.product("x", &[2, 3]),
    },
    Rule { op: Op::SELECTIVE_SCAN, weight: "A_log", axis: 0, meaning: "d_inner", expected: |op| op.size("x", 2) },
    Rule { op: Op::SELECTIVE_SCAN, weight: "A_log", axis: 1, meaning: "d_state", expected: |op| op.size("b", 2) },
    Rule {
        op: Op::LINEAR_ATTENTION,
        weight: "linear_attn.A_log",
        axis: 0,
        meaning: "num_v_heads",
        expected: |op| op.size("value", 2),
    },
    Rule {
        op: Op::LINEAR_ATTENTION,
        weight: "k_conv1d.weight",
        axis: 0,
        meaning: "num_k_heads * head_k_dim",
        expected: |op| op.product("key", &[2, 3]),
    },
    Rule {
        op: Op::LINEAR_ATTENTION,
        weight: "v_conv1d.weight",
        axis: 0,
        meaning: "num_v_heads * head_v_dim",
        expected: |op| op.product("value", &[2, 3]),
    },
    Rule {
        op: Op::LINEAR_ATTENTION,
        weight: "self_attn.qkv_proj.weight",
        axis: 0,
        meaning: "2 * num_k_heads * head_k_dim + num_v_heads * head_v_dim",
        expected: |op| Some(2 * op.product("key", &[2, 3])? + op.product("value", &[2, 3])?),
    },
    Rule {
        op: Op::CAUSAL_CONV,
        weight: "conv1d.weight",
        axis: 0,
        meaning: "conv_dim (d_inner + 2 * n_groups * d_state in Mamba-2)",
        expected: |op| op.size("x", 2),
    },
    Rule {
        op: Op::CAUSAL_CONV,
        weight: "conv1d.weight",
        axis: 2,
        meaning: "d_conv",
        expected: |op| op.size("weight", 1),
    },
    Rule {
        op: Op::CAUSAL_CONV,
        weight: "conv.conv.weight",
        axis: 0,
        meaning: "conv_dim",
        expected: |op| op.size("x", 2),
    },
    Rule {
        op: Op::CAUSAL_CONV,
        weight: "conv.conv.weight",
        axis: 2,
        meaning: "d_conv",
        expected: |op| op.size("weight", 1),
    },
    Rule {
        op: Op::RG_LRU,
        weight: "rg_lru.recurrent_param",
        axis: 0,
        meaning: "lru_width",
        expected: |op| op.size("x", 2),
    },
];

/// The shapes around one op.
struct Shapes<'a> {
    graph: &'a Graph,
    op: &'a Op,
}

impl Shapes<'_> {
    fn size(&self, port: &str, axis: usize) -> Option<u64> {
        match self.graph.tensor(self.op.port(port)?).shape.get(axis)? {
            Extent::Known(size) => Some(*size),
            Extent::Symbol(_) => None,
        }
    }

    fn product(&self, port: &str, axes: &[usize]) -> Option<u64> {
        axes.iter().try_fold(1u64, |product, &axis| product.checked_mul(self.size(port, axis)?))
    }
}

/// Compares all dimensions that the tensors tell, and says how many there were.
pub(super) fn check(file: &str, tensors: &[TensorHeader], graph: &Graph) -> Result<usize, FrontendError> {
    let mut layers: HashMap<u32, Vec<&TensorHeader>> = HashMap::new();
    for tensor in tensors {
        if let Some(layer) = layer_of(&tensor.name) {
            layers.entry(layer).or_default().push(tensor);
        }
    }
    let mut checked = 0;
    for id in graph.op_ids() {
        let op = graph.op(id);
        let Some(weights) = op.name.layer.and_then(|layer| layers.get(&layer)) else { continue };
        // Descriptions state convolutions by what they keep, and not what their weights are called.
        if op.number(Attribute::DILATION).is_some() {
            continue;
        }
        let shapes = Shapes { graph, op };
        for rule in RULES.iter().filter(|rule| rule.op == op.kind) {
            let Some(weight) = weights.iter().find(|weight| weight.plain && has_suffix(&weight.name, rule.weight))
            else {
                continue;
            };
            let (Some(expected), Some(&found)) = ((rule.expected)(&shapes), weight.shape.get(rule.axis)) else {
                continue;
            };
            if expected != found {
                return Err(FrontendError::Disagreement {
                    file: file.to_owned(),
                    tensor: weight.name.clone(),
                    axis: rule.axis,
                    found,
                    meaning: rule.meaning,
                    expected,
                });
            }
            checked += 1;
        }
    }
    Ok(checked)
}

/// The layers of a graph that are not among those `present`, in order.
pub(super) fn layers_without(present: &BTreeSet<u32>, graph: &Graph) -> Vec<u32> {
    let layers: BTreeSet<u32> = graph.op_ids().filter_map(|id| graph.op(id).name.layer).collect();
    layers.difference(present).copied().collect()
}

/// Whether a tensor of this name tells a dimension.
pub(super) fn tells(name: &str) -> bool {
    let mut suffixes = RULES.iter().map(|rule| rule.weight).chain(OPEN.iter().map(|(suffix, ..)| *suffix));
    suffixes.any(|suffix| has_suffix(name, suffix))
}

/// What one weight determines, and what it leaves open.
const OPEN: [(&str, &str, &str); 4] = [
    ("k_proj.weight", "head_dim", "num_kv_heads * head_dim"),
    ("kv_a_proj_with_mqa.weight", "the sliding window and the model_type", "kv_lora_rank + qk_rope_head_dim"),
    ("A_log", "the number of layers without weights of their own and the model_type", "the state's heads"),
    ("conv1d.weight", "n_groups", "d_inner + 2 * n_groups * d_state"),
];

/// The first dimension of the first cache that the tensors leave open.
pub(super) fn missing_dimension(file: &str, tensors: &[TensorHeader]) -> FrontendError {
    let open = OPEN.iter().find_map(|(suffix, missing, known)| {
        let tensor = tensors.iter().find(|tensor| has_suffix(&tensor.name, suffix))?;
        Some((missing, format!("`{}` of shape {:?} gives only {known}", tensor.name, tensor.shape)))
    });
    let (dimension, known) = open.unwrap_or((&"model_type", "no tensor belongs to a known kind of cache".to_owned()));
    FrontendError::NoConfig { file: file.to_owned(), dimension: (*dimension).to_owned(), known }
}

fn has_suffix(name: &str, suffix: &str) -> bool {
    name.strip_suffix(suffix).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// Parts with layers of their own: draft layers, towers for pictures and sound, talkers.
const FOREIGN: [&str; 11] =
    ["mtp", "draft", "eagle", "vision", "visual", "image", "img_", "audio", "speech", "talker", "2wav"];

/// The decoder layer that a tensor belongs to: the number after `layers`, `h` or `blocks`.
pub(super) fn layer_of(name: &str) -> Option<u32> {
    let mut parts = name.split('.');
    parts.find(|part| matches!(*part, "layers" | "h" | "blocks"))?;
    let layer = parts.next()?.parse().ok()?;
    (!FOREIGN.iter().any(|word| name.contains(word))).then_some(layer)
}
