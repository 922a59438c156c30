//! What is read of `models/*.json`: the graph, and what its inputs and outputs are. Everything else is jumped over.

use std::collections::{BTreeMap, HashMap};

use cacheplan_handlers::DType;
use serde::Deserialize;

use crate::graph::Extent;

/// The version of the schema that is known; its minor version only adds to it.
pub(super) const MAJOR: u64 = 8;

#[derive(Deserialize)]
pub(super) struct Program {
    pub(super) graph_module: GraphModule,
    pub(super) schema_version: SchemaVersion,
    #[serde(default)]
    pub(super) torch_version: String,
}

#[derive(Deserialize)]
pub(super) struct SchemaVersion {
    pub(super) major: u64,
    pub(super) minor: u64,
}

#[derive(Deserialize)]
pub(super) struct GraphModule {
    pub(super) graph: Graph,
    pub(super) signature: Signature,
}

#[derive(Deserialize)]
pub(super) struct Graph {
    pub(super) nodes: Vec<Node>,
    pub(super) tensor_values: HashMap<String, TensorMeta>,
}

#[derive(Deserialize)]
pub(super) struct Node {
    pub(super) target: String,
    pub(super) inputs: Vec<Input>,
    pub(super) outputs: Vec<Argument>,
}

#[derive(Deserialize)]
pub(super) struct Input {
    pub(super) arg: Argument,
}

/// A value of a node; of all its kinds tensors alone are looked at.
#[derive(Deserialize)]
pub(super) struct Argument {
    #[serde(default)]
    as_tensor: Option<Named>,
    #[serde(default)]
    as_tensors: Option<Vec<Named>>,
}

impl Argument {
    pub(super) fn tensors(&self) -> impl Iterator<Item = &str> {
        self.as_tensor.iter().chain(self.as_tensors.iter().flatten()).map(|tensor| tensor.name.as_str())
    }
}

#[derive(Deserialize)]
pub(super) struct Named {
    name: String,
}

#[derive(Deserialize)]
pub(super) struct TensorMeta {
    dtype: u64,
    sizes: Vec<Size>,
}

#[derive(Deserialize)]
struct Size {
    #[serde(default)]
    as_int: Option<i64>,
}

impl TensorMeta {
    pub(super) fn shape(&self) -> Vec<Extent> {
        let extent = |size: &Size| size.as_int.and_then(|size| u64::try_from(size).ok());
        self.sizes.iter().map(|size| extent(size).map_or(Extent::SEQUENCE, Extent::Known)).collect()
    }

    /// The sizes of a tensor that has no open ones.
    pub(super) fn sizes(&self) -> Option<Vec<u64>> {
        // No cache is larger than this in any direction, and products of five of them fit.
        let size = |size: &Size| size.as_int.and_then(|size| u64::try_from(size).ok()).filter(|size| *size <= 1 << 24);
        self.sizes.iter().map(size).collect()
    }

    /// What torch calls it, where a cache could have it.
    pub(super) fn dtype(&self) -> Option<DType> {
        Some(match self.dtype {
            2 => DType::Int8,
            4 => DType::Int32,
            6 => DType::F16,
            7 => DType::F32,
            13 => DType::Bf16,
            29 => DType::F8E4m3,
            30 => DType::F8E5m2,
            _ => return None,
        })
    }
}

/// Which inputs are parameters and buffers, and which outputs take a buffer's place.
#[derive(Deserialize)]
pub(super) struct Signature {
    pub(super) input_specs: Vec<BTreeMap<String, Spec>>,
    pub(super) output_specs: Vec<BTreeMap<String, Spec>>,
}

#[derive(Deserialize)]
pub(super) struct Spec {
    #[serde(default)]
    pub(super) arg: Option<SpecArgument>,
    #[serde(default)]
    pub(super) buffer_name: Option<String>,
    #[serde(default)]
    pub(super) tensor_constant_name: Option<String>,
}

/// A tensor's name, directly or as an argument has it.
#[derive(Deserialize)]
pub(super) struct SpecArgument {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    as_tensor: Option<Named>,
}

impl SpecArgument {
    pub(super) fn tensor(&self) -> Option<&str> {
        self.name.as_deref().or(self.as_tensor.as_ref().map(|tensor| tensor.name.as_str()))
    }
}
