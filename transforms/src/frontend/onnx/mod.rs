//! ONNX: the graph of a real export, without its weights.
//!
//! Nodes that keep state are rewritten to ops of [`crate::ops`]; all others stay what they are.

mod attention;
mod file;
mod fixed;
mod lookup;
mod lower;
mod mask;
mod states;

use cacheplan_files::Source;

use self::lookup::{Lookup, parameter_bytes};
use self::lower::Lowering;
use super::{FrontendError, ReadOptions};
use crate::model::{Fact, Model, ModelInfo};
use crate::weights::WeightBytes;

/// Reads the structure of an ONNX file; data in other files is not looked at.
pub(super) fn read(source: &Source, options: &ReadOptions) -> Result<Model, FrontendError> {
    if let Some(assumption) = options.assume.first() {
        let reason = "an ONNX graph has no keys; describe the model with GraphBuilder instead".to_owned();
        return Err(FrontendError::Assumption { text: format!("{assumption:?}"), reason });
    }
    let name = source.name().to_owned();
    let (proto, fingerprint) = file::decode(source)?;
    let Some(graph) = &proto.graph else {
        return Err(FrontendError::Onnx { file: name, node: "model".to_owned(), reason: "it has no graph".to_owned() });
    };
    let lookup = Lookup::new(graph);
    if let Some(node) = lookup.too_early() {
        let reason =
            "it reads what a later node makes, or itself; nodes must stand in the order of their inputs".to_owned();
        return Err(FrontendError::Onnx { file: name, node: format!("node `{node}`"), reason });
    }
    let lowered = Lowering::new(&name, &lookup, &proto.opset_import).run()?;
    let bytes = graph.initializer.iter().try_fold(0u64, |sum, tensor| sum.checked_add(parameter_bytes(tensor)?));
    let info = ModelInfo {
        name: None,
        model_type: "onnx".to_owned(),
        layers: lowered.layers.len() as u32,
        dtype: lowered.dtype,
        max_position_embeddings: lowered.max_tokens,
        weights: bytes.map(|bytes| WeightBytes::new(bytes, true)),
        fingerprint,
        revision: None,
        step_tokens: lowered.step_tokens,
    };
    let mut model = Model::new(info, lowered.graph, lowered.layers);
    let opsets = proto.opset_import.iter();
    let opsets = opsets
        .map(|opset| format!("{} {}", if opset.domain.is_empty() { "ai.onnx" } else { &opset.domain }, opset.version));
    model.source = format!("{name} (ONNX, {})", opsets.collect::<Vec<_>>().join(", "));
    model.facts = lowered.facts;
    model.states = lowered.states;
    model.vocab_size = lookup.size("logits", 2);
    model.facts.push(Fact {
        what: "nodes".to_owned(),
        value: graph.node.len().to_string(),
        from: "the graph".to_owned(),
        assumed: false,
    });
    Ok(model)
}
