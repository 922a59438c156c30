//! A decoded ONNX graph with its names looked up.

use std::collections::HashMap;

use cacheplan_handlers::DType;

use crate::graph::Extent;
use crate::onnx::{GraphProto, NodeProto, TensorProto, ValueInfo};

/// Shape and element type of a value; the type is `None` where it is none that a cache could have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Value {
    pub(super) shape: Vec<Extent>,
    pub(super) dtype: Option<DType>,
}

pub(super) struct Lookup<'a> {
    pub(super) graph: &'a GraphProto,
    producers: HashMap<&'a str, usize>,
    /// Parameters that are one whole number.
    numbers: HashMap<&'a str, i64>,
    values: HashMap<&'a str, Value>,
}

impl<'a> Lookup<'a> {
    pub(super) fn new(graph: &'a GraphProto) -> Self {
        let mut producers = HashMap::new();
        for (index, node) in graph.node.iter().enumerate() {
            producers.extend(node.output.iter().filter(|name| !name.is_empty()).map(|name| (name.as_str(), index)));
        }
        let mut numbers = HashMap::new();
        let mut values = HashMap::new();
        for info in graph.value_info.iter().chain(&graph.output).chain(&graph.input) {
            if let Some(value) = value_of(info) {
                values.insert(info.name.as_str(), value);
            }
        }
        for tensor in &graph.initializer {
            values.insert(tensor.name.as_str(), parameter(tensor));
            numbers.extend(tensor.whole_number().map(|number| (tensor.name.as_str(), number)));
        }
        Self { graph, producers, numbers, values }
    }

    pub(super) fn value(&self, name: &str) -> Option<&Value> {
        self.values.get(name)
    }

    /// The first node that reads what it or a later node makes: ONNX wants them in order, and a circle has none.
    pub(super) fn too_early(&self) -> Option<&'a str> {
        let mut nodes = self.graph.node.iter().enumerate();
        let early = |index: usize, name: &String| self.producers.get(name.as_str()).is_some_and(|&made| made >= index);
        nodes
            .find(|(index, node)| node.input.iter().any(|name| early(*index, name)))
            .map(|(_, node)| node.name.as_str())
    }

    /// The node that makes a value.
    pub(super) fn producer(&self, name: &str) -> Option<&'a NodeProto> {
        self.producers.get(name).map(|&index| &self.graph.node[index])
    }

    /// The whole number that a constant is.
    pub(super) fn whole_number(&self, name: &str) -> Option<i64> {
        if let Some(&number) = self.numbers.get(name) {
            return Some(number);
        }
        let constant = self.producer(name).filter(|node| node.op_type == "Constant")?;
        let value = |name: &str| constant.attribute.iter().find(|attribute| attribute.name == name);
        value("value").and_then(|value| value.t.as_ref()?.whole_number()).or_else(|| Some(value("value_int")?.i))
    }

    /// The size of one axis, where it is known.
    pub(super) fn size(&self, name: &str, axis: usize) -> Option<u64> {
        match self.value(name)?.shape.get(axis)? {
            Extent::Known(size) => Some(*size),
            Extent::Symbol(_) => None,
        }
    }
}

fn value_of(info: &ValueInfo) -> Option<Value> {
    let tensor = info.r#type.as_ref()?.tensor_type.as_ref()?;
    let dims = tensor.shape.iter().flat_map(|shape| &shape.dim);
    let shape = dims
        .map(|dim| match (dim.dim_value, &dim.dim_param) {
            (Some(size), _) if size > 0 => Extent::Known(size.unsigned_abs()),
            (_, Some(symbol)) if !symbol.is_empty() => Extent::Symbol(symbol.clone().into()),
            _ => Extent::Symbol("unknown".into()),
        })
        .collect();
    Some(Value { shape, dtype: dtype(tensor.elem_type) })
}

fn parameter(tensor: &TensorProto) -> Value {
    let shape = tensor.dims.iter().map(|&size| Extent::Known(u64::try_from(size).unwrap_or(0))).collect();
    Value { shape, dtype: dtype(tensor.data_type) }
}

/// ONNX's numbers for element types.
fn dtype(number: i32) -> Option<DType> {
    Some(match number {
        1 => DType::F32,
        3 => DType::Int8,
        6 => DType::Int32,
        10 => DType::F16,
        16 => DType::Bf16,
        17 => DType::F8E4m3,
        19 => DType::F8E5m2,
        _ => return None,
    })
}

/// Bytes of a weight; `None` for a type that is not known.
pub(super) fn parameter_bytes(tensor: &TensorProto) -> Option<u64> {
    // Bits of an element.
    let bits: u64 = match tensor.data_type {
        1 | 6 | 12 => 32,
        2 | 3 | 9 | 17..=20 => 8,
        4 | 5 | 10 | 16 => 16,
        7 | 11 | 13 | 14 => 64,
        15 => 128,
        21..=23 => 4,
        _ => return None,
    };
    let mut sizes = tensor.dims.iter().map(|&size| u64::try_from(size).ok());
    let count = sizes.try_fold(1u64, |product, size| product.checked_mul(size?))?;
    Some(count.checked_mul(bits)?.div_ceil(8))
}
