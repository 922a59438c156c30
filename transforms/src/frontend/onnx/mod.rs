//! ONNX: the graph of a real export, without its weights.
//!
//! Nodes that keep state are rewritten to ops of [`crate::ops`]; all others stay what they are.

mod attention;
mod file;
mod lower;
mod mask;
mod proto;
mod source;
mod states;

use std::path::Path;

use self::lower::Lowering;
use self::source::{Source, parameter_bytes};
use super::{FrontendError, ReadOptions};
use crate::model::{Fact, Model, ModelInfo, WeightBytes};

/// Reads the structure of an ONNX file; data in other files is not looked at.
pub(super) fn read(path: &Path, options: &ReadOptions) -> Result<Model, FrontendError> {
    if let Some(assumption) = options.assume.first() {
        let reason = "an ONNX graph has no keys; describe the model with GraphBuilder instead".to_owned();
        return Err(FrontendError::Assumption { text: format!("{assumption:?}"), reason });
    }
    let name = path.display().to_string();
    let (proto, fingerprint) = file::decode(path)?;
    let Some(graph) = &proto.graph else {
        return Err(FrontendError::Onnx { file: name, node: "model".to_owned(), reason: "it has no graph".to_owned() });
    };
    let source = Source::new(graph);
    let lowered = Lowering::new(&name, &source).run()?;
    let bytes = graph.initializer.iter().try_fold(0u64, |sum, tensor| sum.checked_add(parameter_bytes(tensor)?));
    let info = ModelInfo {
        model_type: "onnx".to_owned(),
        layers: lowered.layers,
        dtype: lowered.dtype,
        max_position_embeddings: None,
        weights: bytes.map(|bytes| WeightBytes { bytes, exact: true }),
        fingerprint,
    };
    let mut model = Model::new(info, lowered.graph);
    let opsets = proto.opset_import.iter();
    let opsets = opsets
        .map(|opset| format!("{} {}", if opset.domain.is_empty() { "ai.onnx" } else { &opset.domain }, opset.version));
    model.source = format!("{name} (ONNX, {})", opsets.collect::<Vec<_>>().join(", "));
    model.layer_kinds = lowered.layer_kinds;
    model.facts = lowered.facts;
    model.facts.push(Fact {
        what: "nodes".to_owned(),
        value: graph.node.len().to_string(),
        from: "the graph".to_owned(),
        assumed: false,
    });
    Ok(model)
}
